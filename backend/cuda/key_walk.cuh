/* key_walk.cuh - from the number of a key to its place in a store: the kernels' half of key_walk.h.
 *
 * A head's rows lie side by side from head_rows on; a place counts rows from there. No other code
 * knows where a key lies. Stores in pages would change the functions below and nothing else: tiles
 * of up to 128 keys begin at multiples of their length, so a tile lies in one page of 128 keys.
 */
#ifndef BACKEND_CUDA_KEY_WALK_CUH
#define BACKEND_CUDA_KEY_WALK_CUH

#include "backend/cuda/dev.cuh"

/* The store of one sequence of the pass. */
DEV dev_kv_base store_of(const dev_step &st, int seq, const dev_kv &kv)
{
    return st.kv[(size_t)seq * st.n_kv + kv.id];
}
/* Rows of KV head g in a stream of rows of row_bytes. */
DEV uint8_t *head_rows(const dev_kv &kv, void *stream, int g, int row_bytes)
{
    return (uint8_t *)stream + (size_t)g * kv.n_slots * row_bytes;
}

/* Goes from key to key of one store in ascending order; `place` is that of the key it is at. */
struct key_walk {
    int n_slots, place;
};
DEV key_walk key_walk_at(const dev_kv &kv, int t)
{
    return key_walk{kv.n_slots, t % kv.n_slots};
}
/* The place of the k-th key from here, k >= 0. */
DEV int key_place(const key_walk &w, int k)
{
    int place = w.place + k;
    while (place >= w.n_slots) /* more than once only in rings shorter than a tile */
        place -= w.n_slots;
    return place;
}
DEV void key_walk_on(key_walk *w, int n)
{
    w->place = key_place(*w, n);
}
/* Where key t of row r lies. A row of a tree numbers the keys of its pass by depth: key first + d
 * is the d-th row that its mask has, counted from 0. */
DEV int row_key_place(const dev_kv &kv, const dev_rows &rs, int r, int t)
{
    int first = rs.first[r];
    if (rs.seen && t >= first) {
        uint64_t mask = rs.seen[r];
        for (int depth = t - first; depth > 0; depth--)
            mask &= mask - 1;
        while (mask && !(mask & 1)) {
            mask >>= 1;
            first++;
        }
        t = first;
    }
    return t % kv.n_slots;
}
/* The number from which on rows of a sequence have different keys: nowhere, in a chain. */
DEV int own_keys_from(const dev_rows &rs, int r)
{
    return rs.seen ? rs.first[r] : 0x7fffffff;
}
/* Do the next n keys lie side by side? */
DEV bool keys_adjoin(const key_walk &w, int n)
{
    return w.place + n <= w.n_slots;
}

/* Where row r of the pass keeps the key, or the value, of KV head h. */
DEV uint8_t *stored_row(const dev_kv &kv, const dev_step &st, int r, int h, bool keys)
{
    dev_kv_base base = store_of(st, st.rows.seq[r], kv);
    int row_bytes = keys ? kv.k_bytes : kv.v_bytes;
    return head_rows(kv, keys ? base.k : base.v, h, row_bytes) +
           (size_t)key_walk_at(kv, st.rows.index[r]).place * row_bytes;
}

#endif
