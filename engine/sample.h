/* sample.h - from logits to one token.
 *
 * The chain, in this order: bias and bans, repetition / presence / frequency penalties, top_k,
 * top_p, min_p, temperature, draw. Each cut works on the probabilities of what the cut before it
 * left, before temperature. Temperature 0 takes the largest logit, the lowest id among equals.
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

/* E_ARG with a sentence for parameters that make no sense. */
status sample_check(const carat_sampling *p, int32_t n_vocab, err *e);
/* Picks from logits [n_vocab], which it changes, after past[0..n_past). -1: a NaN or +inf among
 * the logits, or nothing but -inf. */
int32_t sample_pick(sampler *s, const carat_sampling *p, float *logits, const int32_t *past,
                    int64_t n_past, uint64_t *rng_state);
/* Do the parameters take a token from the k largest logits as the model made them, whatever the
 * others are? Returns k, or 0. */
int32_t sample_needs(const carat_sampling *p);
/* What sample_pick would pick, from n candidates in any order: all logits that may be among the
 * sample_needs(p) largest, each once, none NaN or +inf. */
int32_t sample_pick_among(sampler *s, const carat_sampling *p, const candidate *c, int32_t n,
                          uint64_t *rng_state);
/* State from which the token at timeline position pos is drawn: the same (seed, position) gives
 * the same draw whatever was computed before, in whatever batches. */
uint64_t sample_rng_at(uint32_t seed, int64_t pos);
/* The n best of logits as natural log probabilities, best first, and those of id. */
void sample_logprobs(sampler *s, const float *logits, int32_t id, float *of_id, carat_logprob *top,
                     int32_t n);

#endif
