/* sampling.c - what a model says about sampling: its recommended parameters, the tokens that are
 * never sampled, and carat_sample with its spare sampler. The chain itself is in sample.c.
 */
#include "engine/engine_int.h"
#include "base/mem.h"

#include <math.h>

void carat_sampling_default(const carat_model *m, carat_sampling *p)
{
    const gguf *g = &m->core.file;
    double v;
    int64_t k;
    const model_sampling *usual = &m->core.arch->sampling;
    *p = (carat_sampling){.temperature = usual->temperature,
                          .top_k = usual->top_k,
                          .top_p = usual->top_p,
                          .min_p = usual->min_p,
                          .repeat_penalty = 1,
                          .penalty_last_n = 64};
    if (gguf_get_f64(g, "general.sampling.temp", &v) && isfinite(v))
        p->temperature = (float)v;
    if (gguf_get_i64(g, "general.sampling.top_k", &k) && k >= 0 && k <= INT32_MAX)
        p->top_k = (int32_t)k;
    if (gguf_get_f64(g, "general.sampling.top_p", &v) && v >= 0 && v <= 1)
        p->top_p = (float)v;
    if (gguf_get_f64(g, "general.sampling.min_p", &v) && v >= 0 && v <= 1)
        p->min_p = (float)v;
}

/* Placeholder tokens for media have logits, but a text answer must never contain them. */
void ban_place_holders(const carat_model *m, float *logits)
{
    int32_t n = 0;
    const int32_t *id = m->text ? vocab_never_sampled(m->text, &n) : NULL;
    for (int32_t i = 0; i < n; i++)
        logits[id[i]] = -INFINITY;
}

void drop_place_holders(const carat_model *m, row_logits *x)
{
    int32_t n = 0, left = 0;
    const int32_t *id = m->text ? vocab_never_sampled(m->text, &n) : NULL;
    for (int32_t i = 0; i < x->n_candidates; i++) {
        bool never = false;
        for (int32_t k = 0; k < n; k++)
            never |= id[k] == x->candidates[i].id;
        if (!never)
            x->candidates[left++] = x->candidates[i];
    }
    x->n_candidates = left;
}

/* A sampler takes megabytes, so the model keeps one for carat_sample instead of allocating one per
 * token. A concurrent call allocates another; of two returned samplers one is kept. */
static _Atomic(sampler *) *spare_sampler(const carat_model *m)
{
    return &((carat_model *)(uintptr_t)m)
                ->spare_sampler; /* the spare is a cache: a const model may change it */
}

static sampler *take_sampler(const carat_model *m)
{
    sampler *s = atomic_exchange(spare_sampler(m), NULL);
    if (s)
        return s;
    s = mem_calloc(1, sizeof *s);
    if (s && sampler_init(s, m->core.n_vocab, NULL)) {
        mem_free(s);
        s = NULL;
    }
    return s;
}

static void give_sampler(const carat_model *m, sampler *s)
{
    s = atomic_exchange(spare_sampler(m), s);
    if (s) {
        sampler_free(s);
        mem_free(s);
    }
}

int32_t carat_sample(const carat_model *m, const carat_sampling *p, float *logits,
                     const int32_t *past, int64_t n_past, uint64_t *rng_state)
{
    if (sample_check(p, m->core.n_vocab, NULL))
        return -1;
    sampler *s = take_sampler(m);
    if (!s)
        return -1;
    ban_place_holders(m, logits);
    int32_t id = sample_pick(s, p, logits, past, n_past, rng_state);
    give_sampler(m, s);
    return id;
}
