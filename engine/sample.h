/* sample.h - from logits to one token.
 *
 * The chain, in this order: bias and bans, repetition / presence / frequency penalties, top_k,
 * top_p, min_p, temperature, draw. top_p and min_p use the probabilities, before temperature, of
 * the candidates that earlier steps left. Temperature 0 takes the largest logit; of equal logits,
 * the lowest id.
 *
 * A sampler owns the work space of one vocabulary size; picking allocates nothing.
 */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include "backend/ops.h"

typedef logit candidate;

typedef struct sampler {
    int32_t n_vocab;
    candidate *cand;  /* [n_vocab] */
    int32_t *count;   /* [n_vocab], all zero between calls */
    uint32_t *bucket; /* counters of the radix selection */
    float *block;     /* the largest logit of each block */
} sampler;

status sampler_init(sampler *s, int32_t n_vocab, err *e);
void sampler_free(sampler *s); /* safe on a zeroed or freed sampler */

/* E_ARG, with a sentence, for invalid parameters. */
status sample_check(const carat_sampling *p, int32_t n_vocab, err *e);
/* Samples from logits [n_vocab], which it changes, after the tokens past[0..n_past). -1: a logit is
 * NaN or +inf, or all are -inf. */
int32_t sample_pick(sampler *s, const carat_sampling *p, float *logits, const int32_t *past,
                    int64_t n_past, uint64_t *rng_state);
/* k, if the token depends on the k largest unmodified logits only; else 0. */
int32_t sample_needs(const carat_sampling *p);
/* The same token as sample_pick, from n candidates in any order: a superset of the sample_needs(p)
 * largest logits, without duplicates, NaN or +inf. */
int32_t sample_pick_among(sampler *s, const carat_sampling *p, const candidate *c, int32_t n,
                          uint64_t *rng_state);
/* The random state for the token at position pos of a timeline. It depends on seed and position
 * only, so the draw is the same in every batch. */
uint64_t sample_rng_at(uint32_t seed, int64_t pos);
/* Natural log probabilities of the n best tokens, best first, and of id. */
void sample_logprobs(sampler *s, const float *logits, int32_t id, float *of_id, carat_logprob *top,
                     int32_t n);

#endif
