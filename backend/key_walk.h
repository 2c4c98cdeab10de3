/* key_walk.h - from the number of a key to its place in a store: the host's half.
 *
 *     key      0   1   2   3   4   5   6   7   8   9       n_slots 8, 10 keys
 *     place    .   .   2   3   4   5   6   7   0   1       keys 0 and 1 are overwritten
 *
 * Whatever reads or writes a store on the host asks key_walk; kernels ask the key_walk of
 * cuda/key_walk.cuh, which follows the same rule. The rule stands nowhere else, so stores may
 * come to lie in pages without a change in any kernel: `base` is where a table of pages would be,
 * and neighbouring keys lie side by side for at least one key and at most to the end of a page.
 */
#ifndef BACKEND_KEY_WALK_H
#define BACKEND_KEY_WALK_H

#include "backend/step.h"

/* Keys t .. t + n - 1 lie in places `place` .. `place` + n - 1 of every KV head. */
typedef struct key_span {
    size_t place;
    int64_t n;
} key_span;

static inline key_span key_walk(const kv_view *kv, const kv_base *base, int64_t t)
{
    (void)base;
    int64_t place = t % kv->n_slots;
    return (key_span){(size_t)place, kv->n_slots - place};
}

/* Is key t's place t, for every key? Kernels that add a number to an address rely on it. */
static inline bool store_in_line(const kv_view *kv)
{
    return kv->kind == STORE_LINEAR;
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
