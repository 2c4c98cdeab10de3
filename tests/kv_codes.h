/* kv_codes.h - a second session that takes over the keys and values of a first one.
 *
 * Storing in codes rounds. A value very near the edge between two codes may fall to different sides
 * in two sessions, and all later values then differ too. Two correct sessions drift apart by the
 * format's steps, and the distance proves nothing. So the second session follows the first: after
 * every store its rows are overwritten with the first session's bytes. Then
 *
 *   logits   differ only by the arithmetic of one pass, in every format;
 *   codes    of the first fit the second's values as well as the second's own codes, except for few
 *            values near an edge, which differ by one step.
 *
 * The second session computes its own activations and queries, so an error in either part shows in
 * the logits or in the codes.
 */
#ifndef TESTS_KV_CODES_H
#define TESTS_KV_CODES_H

#include "backend/key_walk.h"

/* n values, whole blocks of a type: as given to the store (rotated, for rotated formats), and
 * decoded from the codes of both sessions. */
typedef struct stored_values {
    const float *x, *own, *first;
    int32_t n;
    num_type type;
} stored_values;

/* A block's scale and minimum are f16. If one of them rounds to the other side, all values of the
 * block move by up to 2^-10 of the largest. */
#define CODE_HAIR 0x1p-9

/* hair: the error that the first session's codes may add to a value, as a share of the largest
 * value of its block: CODE_HAIR plus the difference of the two sessions' sums; set by the caller.
 */
typedef struct code_stats {
    double hair;
    int64_t n_other, n_far; /* codes that differ; that add more than `hair`, or are NaN */
    double rare;            /* how many may add more: none, in most formats */
    double beyond;          /* the largest difference of two values, less a step of the format */
} code_stats;
void code_stats_add(code_stats *t, const stored_values *s);

/* Of stream 0 (keys) or 1 (values): bytes of a row, 0 where there is one stream; the row of key
 * `index` of a head. */
static inline size_t stored_bytes(const kv_view *v, int stream)
{
    return stream ? v->v_row_bytes : v->k_row_bytes;
}
static inline char *stored_at(const kv_view *v, kv_base base, int stream, int32_t head,
                              int64_t index)
{
    return key_row(v, stream ? base.v : base.k, stored_bytes(v, stream), head,
                   key_walk(v, &base, index).place);
}

#endif
