/* kv_codes.h - two sessions of which one has the other's keys and values.
 *
 * Whoever stores in codes rounds: a value a hair from the edge between two codes falls to one side
 * of it in one session and to the other in the next, and moves all that is made after it. Two
 * sessions that are both right go apart by that as chance and the steps of the format will have it:
 * how far, says nothing. So let the second follow the first: after every store its rows become,
 * byte for byte, what the first has for them. Then
 *
 *   logits   differ by what the arithmetic of one pass differs, in whatever format;
 *   codes    of the first are as good for the second's values as the second's own, but for those
 *            few that are a hair from an edge, and these differ by one step.
 *
 * The second's stream and queries are its own, so what is wrong in either shows in one of the two.
 */
#ifndef TESTS_KV_CODES_H
#define TESTS_KV_CODES_H

#include "backend/key_walk.h"

/* Values as they were to be stored (rotated if they are stored so), and as two have stored them,
 * decoded: n of them, whole blocks of a type. */
typedef struct stored_values {
    const float *x, *own, *first;
    int32_t n;
    num_type type;
} stored_values;

/* A block's scale and least value are f16, and where either is rounded the other way all values of
 * the block are off by up to 2^-10 of the largest. */
#define CODE_HAIR 0x1p-9

/* hair: what a value may lose by another's codes, as a share of the largest of its block: CODE_HAIR
 * and what the two sessions' sums are off by; the caller's. */
typedef struct code_tally {
    double hair;
    int64_t n_other, n_far; /* that differ; that lose more than a hair by it, or are no numbers */
    double rare;            /* how many may: none of most formats */
    double beyond;          /* the most that two differ by, less a step of the format */
} code_tally;
void code_tally_add(code_tally *t, const stored_values *s);

/* Of stream 0, keys, or 1, values: a row's bytes, 0 where there is one stream; and where a head's
 * row `index` is. */
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
