/* key_walk.cuh - from the number of a key to its place in a store: the kernels' half of key_walk.h.
 *
 *     tile     |t0 ......... t0 + 63|                    64 keys or a part of them: one page
 *     table    .. | place pos | place pos | ..           an entry for PAGE_KEYS keys
 *                        ^           ^
 *                  of this tile   of the next one, requested when this one is copied
 *
 * A head's rows lie side by side from head_rows on; a place counts rows from there. No other code
 * knows where a key lies. Keys of a store with a table lie in pages (step.h); keys of a ring follow
 * one another around it. The table was uploaded before the pass, like the step.
 *
 * Tiles begin at multiples of their length, so a tile of up to 64 keys lies in one page and one of
 * 128 in two. Kernels ask for the table once a tile and one tile ahead: an entry is 8 bytes, where
 * 64 keys are 4 to 256 KB, but a copy that waits for its place waits for memory twice.
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

/* The page of key t, and its number in the page. */
DEV const dev_kv_page *page_of(const dev_kv_page *page, int t)
{
    return page + (unsigned)t / PAGE_KEYS;
}
DEV int in_page(int t)
{
    return (int)((unsigned)t % PAGE_KEYS);
}
/* Stores with a window are rings. Their kernels have one tile to a block: the place is computed
 * while `page` is still being read. */
DEV int place_of_key(const dev_kv &kv, const dev_kv_page *page, int t)
{
    if (kv.window)
        return t % kv.n_slots;
    return page ? page_of(page, t)->place + in_page(t) : t;
}
/* The position of key t in a store without a window. */
DEV int key_pos(const dev_kv_page *page, int t)
{
    return page ? page_of(page, t)->pos + in_page(t) : t;
}
/* Around the end of a ring; a place in a page is below n_slots. */
DEV int place_within(int place, int n_slots)
{
    while (place >= n_slots) /* more than once only in rings shorter than a tile */
        place -= n_slots;
    return place;
}

/* Goes from tile to tile of one store in ascending order; `place` is that of the tile's first key,
 * and of every 64th key after it. */
template <int PAGES> struct key_walk_of {
    const dev_kv_page *page; /* or NULL */
    int n_slots, place[PAGES];
};
typedef key_walk_of<1> key_walk; /* tiles of at most 64 keys */

/* The tile at key t; keys from `until` on have no page. */
template <int PAGES>
DEV void key_walk_begin(key_walk_of<PAGES> *w, const dev_kv &kv, const dev_kv_page *page, int t,
                        int until)
{
    w->page = page;
    w->n_slots = kv.n_slots;
#pragma unroll
    for (int i = 0; i < PAGES; i++, t += PAGE_KEYS)
        w->place[i] = i == 0 || t < until ? place_of_key(kv, page, t) : 0;
}
DEV key_walk key_walk_at(const dev_kv &kv, const dev_kv_page *page, int t)
{
    key_walk w;
    key_walk_begin(&w, kv, page, t, t);
    return w;
}
/* The place of the k-th key of the tile, k >= 0. */
template <int PAGES> DEV int key_place(const key_walk_of<PAGES> &w, int k)
{
    int first = w.place[0];
    if (PAGES > 1 && k >= PAGE_KEYS)
        first = w.place[PAGES - 1], k -= PAGE_KEYS;
    return place_within(first + k, w.n_slots);
}
/* Goes n keys on, to the tile at key t. Nothing waits for the table here. */
template <int PAGES> DEV void key_walk_on(key_walk_of<PAGES> *w, int n, int t, int until)
{
#pragma unroll
    for (int i = 0; i < PAGES; i++, t += PAGE_KEYS)
        if (!w->page)
            w->place[i] = place_within(w->place[i] + n, w->n_slots);
        else if (t < until)
            w->place[i] = page_of(w->page, t)->place + in_page(t);
}

/* Goes to the tile at key t of a store without a window. Nothing waits for the table here. */
template <int PAGES> DEV void key_walk_to(key_walk_of<PAGES> *w, int t, int until)
{
#pragma unroll
    for (int i = 0; i < PAGES; i++, t += PAGE_KEYS)
        if (!w->page)
            w->place[i] = t;
        else if (t < until)
            w->place[i] = page_of(w->page, t)->place + in_page(t);
}

/* The key of the pass that row r numbers t: a row of a tree numbers them by depth, and key first +
 * d is the d-th row that its mask has, counted from 0. */
DEV int row_key(const dev_rows &rs, int r, int t)
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
    return t;
}
/* Where key t of row r lies. */
DEV int row_key_place(const dev_kv &kv, const dev_kv_page *page, const dev_rows &rs, int r, int t)
{
    return place_of_key(kv, page, row_key(rs, r, t));
}
/* The number from which on rows of a sequence have different keys: nowhere, in a chain. */
DEV int own_keys_from(const dev_rows &rs, int r)
{
    return rs.seen ? rs.first[r] : 0x7fffffff;
}
/* Do the n keys of the tile lie side by side? n: at most 64. */
DEV bool keys_adjoin(const key_walk &w, int n)
{
    return w.place[0] + n <= w.n_slots;
}

/* Where row r of the pass keeps the key, or the value, of KV head h. */
DEV uint8_t *stored_row(const dev_kv &kv, const dev_step &st, int r, int h, bool keys)
{
    dev_kv_base base = store_of(st, st.rows.seq[r], kv);
    int row_bytes = keys ? kv.k_bytes : kv.v_bytes;
    return head_rows(kv, keys ? base.k : base.v, h, row_bytes) +
           (size_t)place_of_key(kv, base.page, st.rows.index[r]) * row_bytes;
}

#endif
