/* key_walk.h - from the number of a key to its place in a store: the host's half.
 *
 *     key      0   1   2   3   4   5   6   7   8   9       n_slots 8, 10 keys
 *     place    .   .   2   3   4   5   6   7   0   1       keys 0 and 1 are overwritten
 *
 *     pages    key 130 is in place page[2].place + 2 (KV_PAGE is 64)
 *
 *     tree     first  +1  +2  +3  +4        row 4 follows row 1, row 1 follows row 0: bits 0 1 4
 *     place      8     9  10  11  12        row 4's keys: .. 7 committed, then 8 in place 8,
 *                                           9 in place 9, 10 in place 12
 *
 * A row of a tree numbers the keys of its pass by depth: key first + d is that of its ancestor at
 * depth d, which lies where the ancestor's index says. So a row sums over its keys in the order,
 * and in the chunks, of a chain with the same tokens, and its result is bit-identical to the
 * chain's.
 *
 * Whatever reads or writes a store on the host asks key_walk; kernels ask the key_walk of
 * cuda/key_walk.cuh, which follows the same rule. The rule stands nowhere else. Neighbouring keys
 * lie side by side to the end of a page, or of a ring.
 */
#ifndef BACKEND_KEY_WALK_H
#define BACKEND_KEY_WALK_H

#include "backend/step.h"

/* Keys t .. t + n - 1 lie in places `place` .. `place` + n - 1 of every KV head. */
typedef struct key_span {
    size_t place;
    int64_t n;
} key_span;

/* The place of key t in a store of n_slots places; page as kv_base.page. */
static inline size_t store_place(const kv_page *page, int32_t n_slots, int64_t t)
{
    return (size_t)(page ? page[t / KV_PAGE].place + t % KV_PAGE : t % n_slots);
}

static inline key_span key_walk(const kv_view *kv, const kv_base *base, int64_t t)
{
    size_t place = store_place(base->page, kv->n_slots, t);
    return (key_span){place, base->page ? KV_PAGE - t % KV_PAGE : kv->n_slots - (int64_t)place};
}

/* The keys [lo, hi) that a row sees: all of them. */
typedef struct key_range {
    int64_t lo, hi;
} key_range;

/* The mask of row r of a tree; 0 for rows of chains. */
static inline uint64_t row_mask(const rowset *rs, const kv_view *kv, int32_t r)
{
    return rs->seen && kv_by_tree(kv) ? rs->seen[r] : 0;
}

static inline key_range row_range(const rowset *rs, const kv_view *kv, int32_t r)
{
    const row_keys *k = rows_keys(rs, kv);
    uint64_t mask = row_mask(rs, kv, r);
    int64_t lo = kv->window ? (int64_t)rs->pos[r] - kv->window + 1 : 0;
    int64_t hi = (int64_t)newest_keys(k, kv)[r] + 1;
    if (mask)
        hi = (int64_t)k->first[r] + __builtin_popcountll(mask);
    return (key_range){lo > 0 ? lo : 0, hi};
}

/* key_walk among the keys of row r, t < row_range().hi. Below `first`, and in chains, all rows of a
 * sequence have the same keys. */
static inline key_span row_key_walk(const kv_view *kv, const kv_base *base, const rowset *rs,
                                    int32_t r, int64_t t)
{
    int64_t first = rows_keys(rs, kv)->first[r];
    uint64_t left = row_mask(rs, kv, r);
    if (!left)
        return key_walk(kv, base, t);
    int64_t n = first - t; /* the ancestors from here on have neighbouring indices */
    if (n <= 0) {
        for (; n < 0; n++)
            left &= left - 1;
        int at = __builtin_ctzll(left);
        uint64_t gaps = ~(left >> at);
        t = first + at;
        n = gaps ? __builtin_ctzll(gaps) : STEP_TREE_ROWS_MAX;
    }
    key_span span = key_walk(kv, base, t);
    span.n = span.n < n ? span.n : n;
    return span;
}

/* The position of key t in a store without a window. Pages begin at multiples of KV_PAGE, so both
 * have the same place in their page. */
static inline int64_t key_pos(const kv_base *base, int64_t t)
{
    return base->page ? base->page[t / KV_PAGE].pos + t % KV_PAGE : t;
}

/* The row at a place of KV head h, in a stream (base.k or base.v) of rows of row_bytes. */
static inline char *key_row(const kv_view *kv, void *stream, size_t row_bytes, int32_t h,
                            size_t place)
{
    return (char *)stream + ((size_t)h * (size_t)kv->n_slots + place) * row_bytes;
}

/* The store of one sequence. */
static inline const kv_base *step_store(const step *st, int32_t seq, const kv_view *kv)
{
    return &st->kv[(size_t)seq * (size_t)st->n_kv + (size_t)kv->id];
}

#endif
