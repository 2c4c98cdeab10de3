/* carat/sampling.h - how a token is chosen. */
#ifndef CARAT_SAMPLING_H
#define CARAT_SAMPLING_H

#include "model.h"
#include "sampling_settings.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carat_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY bans the token */
} carat_logit_bias;

/* The steps that choose a token, as carat/sampling_settings.h lists them. */
#define CARAT_SAMPLER_STEP(step, name, others) CARAT_SAMPLER_##step,
#define CARAT_SAMPLER_COUNT(step, name, others) +1
typedef enum carat_sampler {
    CARAT_SAMPLER_NONE, /* ends an order */
    CARAT_SAMPLER_STEPS(CARAT_SAMPLER_STEP) CARAT_SAMPLERS_MAX =
        CARAT_SAMPLER_STEPS(CARAT_SAMPLER_COUNT)
} carat_sampler;

#define CARAT_SAMPLING_REAL float
#define CARAT_SAMPLING_WHOLE int32_t
#define CARAT_SAMPLING_FIELD(kind, field, ...) CARAT_SAMPLING_##kind field;

/* How a token is chosen: the numbers of carat/sampling_settings.h, each a field (`float
 * temperature`, `int32_t top_k`), and what is no number. engine/sample.h has the definition of each
 * step. All random numbers for a token depend on seed and position alone. A struct of zeros with
 * top_p and repeat_penalty 1 has every step off. */
typedef struct carat_sampling {
    CARAT_SAMPLING_SETTINGS(CARAT_SAMPLING_FIELD, )
    uint32_t seed;
    const carat_logit_bias *bias; /* [n_bias]; read during the call */
    int32_t n_bias;
    int32_t n_top_logprobs; /* 0: no logprobs; at most 20 */
    bool ignore_eog;        /* go on after tokens that end a turn (for benchmarks) */
    /* No repetition that DRY finds reaches back across one of these texts. NULL: "\n", ":", "\""
     * and "*". Read as `bias` is. */
    const char *const *dry_breakers; /* [n_dry_breakers], at most 32 */
    int32_t n_dry_breakers;
    /* The order of the steps, ended by CARAT_SAMPLER_NONE or full; each at most once. A step that
     * is not in it is off. All zero: the default order, with all steps. */
    carat_sampler order[CARAT_SAMPLERS_MAX];
} carat_sampling;

/* The step that other programs call by this name ("top_k", "typ_p", "temp") or letter ("k");
 * CARAT_SAMPLER_NONE: there is none. Any thread. */
CARAT_API carat_sampler carat_sampler_named(const char *name);
/* "top_k"; static storage; NULL: not a step. */
CARAT_API const char *carat_sampler_name(carat_sampler step);

/* A number of carat_sampling, as carat/sampling_settings.h lists it. */
typedef struct carat_sampling_setting {
    const char *name, *also; /* in JSON: "top_k"; another spelling, or NULL */
    const char *key;         /* in GGUF, after "general.sampling." */
    const char *flag;        /* on the command line: "top-k" */
    bool whole;
    double min, max, usual; /* usual: where neither the file nor the model's family says */
    size_t at;              /* in carat_sampling */
    const char *help;       /* what it does, in a few words; static */
} carat_sampling_setting;

/* All of them, [*n]; static storage. Any thread. */
CARAT_API const carat_sampling_setting *carat_sampling_settings(int32_t *n);
/* The one with this spelling in JSON; NULL: there is none. */
CARAT_API const carat_sampling_setting *carat_sampling_find(const char *name);
/* Every number as usual, everything else 0. Any thread. */
CARAT_API void carat_sampling_neutral(carat_sampling *s);
CARAT_API double carat_sampling_get(const carat_sampling *s, const carat_sampling_setting *is);
/* False: v is out of range, or no whole number where one is needed; *s is unchanged. */
CARAT_API bool carat_sampling_set(carat_sampling *s, const carat_sampling_setting *is, double v);

/* Fills *s with the recommended settings: general.sampling.* of the file, else those of the model's
 * family. Any thread. */
CARAT_API void carat_sampling_default(const carat_model *m, carat_sampling *s);

/* Samples one token from logits [n_vocab], which it changes. past[0..n_past) are the tokens before,
 * for penalties and DRY; *rng_state is advanced. *mu is mirostat's state: 0 before the first token;
 * NULL without mirostat. Returns the id; -1: no logit is finite, the settings are invalid, or there
 * is no memory for the work space that the first call allocates and the model keeps. Any thread. */
CARAT_API int32_t carat_sample(const carat_model *m, const carat_sampling *p, float *logits,
                               const int32_t *past, int64_t n_past, uint64_t *rng_state, float *mu);

#ifdef __cplusplus
}
#endif
#endif
