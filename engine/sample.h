/* sample.h - from logits to one token.
 *
 * The chain: bias and bans, then the steps of carat_sampling.order, then a draw. Every step but the
 * first three sees the candidates that earlier steps left; p is the softmax over them, z a logit.
 *
 *     penalties     z > 0: z / repeat, else z * repeat; then z - count * frequency - presence
 *     dry           z - multiplier * base^(n - allowed), as dry.h says
 *     top_n_sigma   keeps z >= max z - n * sigma; sigma: the standard deviation, by 1 / N
 *     top_k         keeps the k largest
 *     typical_p     H = - sum p ln p; by |-ln p - H| ascending, the least set with a sum >
 * typical_p top_p         by p descending, the least set with a sum >= top_p min_p         keeps z
 * >= max z + ln min_p xtc           if u < probability, and two or more have p >= threshold: drops
 * these but the least likely of them. u is a random number of its own temperature   z / t. With a
 * range r: h = H / ln N, t = max(0, t - r) + (t + r - that) * h^e
 *
 * Temperature 0 leaves the largest logit; of equal logits, the lowest id. min_keep bounds
 * typical_p, top_p, min_p and xtc from below.
 *
 * Mirostat replaces the steps: z / t, then the candidates with at most mu bits of surprise
 * (version 2), or the k best by an estimate of Zipf's exponent (version 1: Basu et al. 2021,
 * "Mirostat: a neural text decoding algorithm that directly controls perplexity"). q is the drawn
 * token's probability among the kept; mu -= eta * (-log2 q - tau).
 *
 * Everything but mu is a function of settings, logits, past tokens and position. So a token that a
 * check of drafts rejects leaves no trace.
 *
 * A sampler owns the work space of one vocabulary size; picking allocates nothing.
 */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include "backend/ops.h"
#include "engine/dry.h"

typedef logit candidate;

typedef struct sampler {
    int32_t n_vocab;
    candidate *cand;  /* [n_vocab] */
    int32_t *count;   /* [n_vocab], all zero between calls */
    uint32_t *bucket; /* counters of the radix selection */
    float *block;     /* the largest logit of each block */
    int32_t *match;   /* [n_match]: work space of DRY */
    int64_t n_match;
    dry_breakers *kept; /* of carat_sample, which has no answer to keep them */
    char *kept_for;     /* their texts */
    size_t n_kept_for;
} sampler;

/* Work space for logits of n_vocab tokens. E_MEMORY: *s is zeroed. */
status sampler_init(sampler *s, int32_t n_vocab, err *e);
/* Makes room for DRY after up to n_past tokens. */
status sampler_reserve(sampler *s, int64_t n_past, err *e);
void sampler_free(sampler *s); /* safe on a zeroed or freed sampler */

/* What a token depends on beside its logits. */
typedef struct sample_state {
    const int32_t *past;          /* [n_past]: the tokens before */
    int64_t n_past;               /* with DRY, at most as reserved */
    const dry_breakers *breakers; /* NULL: none */
    uint64_t rng;                 /* advanced by one draw */
    float mu;                     /* of mirostat */
} sample_state;

/* E_ARG, with a sentence, for invalid parameters. */
status sample_check(const carat_sampling *p, int32_t n_vocab, err *e);
/* Samples from logits [n_vocab], which it changes. -1: a logit is NaN or +inf, or all are -inf. */
int32_t sample_pick(sampler *s, const carat_sampling *p, float *logits, sample_state *at);
/* k, if the token depends on the k largest unmodified logits only; else 0. */
int32_t sample_needs(const carat_sampling *p);
/* The same token as sample_pick, from n candidates in any order: a superset of the sample_needs(p)
 * largest logits, without duplicates, NaN or +inf. */
int32_t sample_pick_among(sampler *s, const carat_sampling *p, const candidate *c, int32_t n,
                          sample_state *at);
bool sample_uses_dry(const carat_sampling *p);
float sample_first_mu(const carat_sampling *p); /* of an answer's first token */
/* The random state for the token at position pos of a timeline. It depends on seed and position
 * only, so the draw is the same in every batch. */
uint64_t sample_rng_at(uint32_t seed, int64_t pos);
/* Natural log probabilities of the n best tokens, best first, and of id. */
void sample_logprobs(sampler *s, const float *logits, int32_t id, float *of_id, carat_logprob *top,
                     int32_t n);

#endif
