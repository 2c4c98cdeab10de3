/* sample_int.h - what sample.c and sample_chain.c share: selecting and ordering candidates.
 *
 * All lists are s->cand[0..n), without NaN, +inf and -inf.
 */
#ifndef ENGINE_SAMPLE_INT_H
#define ENGINE_SAMPLE_INT_H

#include "engine/sample.h"

enum { SAMPLE_NEEDS_MAX = 1024 }; /* the most candidates that a device is asked for */

/* Writes the block maxima to s->block. False if a logit is NaN or +inf. */
bool sample_block_maxima(sampler *s, const float *x);
/* The largest logit's id, by the block maxima; -1: all are -inf. */
int32_t sample_largest(const sampler *s, const float *x);
/* Writes the k largest finite logits to s->cand, in ascending order of id; k <= 0: all. Needs the
 * block maxima. Returns the number of candidates. */
int32_t sample_collect(sampler *s, const float *x, int32_t k);
/* The same for all finite logits of at least `least`. */
int32_t sample_collect_from(sampler *s, const float *x, double least);
/* Keeps the k largest of s->cand[0..n) in their order; of equal logits, the lowest ids. */
int32_t sample_keep_top(sampler *s, int32_t n, int32_t k);
/* Orders the largest of c[0..n) at the front, until their exp(logit - max) sum to `mass`; at least
 * min_keep and one. Returns their number; the rest of the array is undefined. */
int32_t sample_order(candidate *c, int32_t n, double mass, int32_t min_keep, bool *reached);
/* a before b: the larger logit, then the lower id. */
static inline bool sample_better(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}
float sample_max(const candidate *c, int32_t n); /* -INFINITY without candidates */
double sample_sum_exp(const candidate *c, int32_t n, double max);
/* Draws from softmax(logit / temperature); -1 without candidates. *q, if not NULL: the probability
 * of the drawn token. */
int32_t sample_draw(const candidate *c, int32_t n, double temperature, uint64_t *rng, double *q);

void sample_bias(const carat_sampling *p, float *x);
void sample_penalties(sampler *s, const carat_sampling *p, float *x, const sample_state *at);

/* sample_chain.c: a chain with any steps in any order. */
/* True if the chain has only the steps of sample.c, in their order. */
bool chain_is_plain(const carat_sampling *p);
/* The candidates to draw from: s->cand[0..n), with probabilities softmax(logit / *t). Returns n; 0:
 * a logit is NaN or +inf, or all are -inf. */
int32_t chain_survivors(sampler *s, const carat_sampling *p, float *x, sample_state *at, double *t);
/* As sample_pick. */
int32_t chain_pick(sampler *s, const carat_sampling *p, float *x, sample_state *at);
/* The same from the n candidates in s->cand, the top_k largest. */
int32_t chain_pick_among(sampler *s, const carat_sampling *p, int32_t n, sample_state *at);
/* As sample_needs, for chains that are not plain. */
int32_t chain_needs(const carat_sampling *p);

#endif
