/* sampling.c - what a model says about sampling: its recommended parameters, the tokens that are
 * never sampled, and carat_sample with its spare sampler. The chain itself is in sample.c.
 */
#include "engine/engine_int.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

void carat_sampling_default(const carat_model *m, carat_sampling *p)
{
    const model_sampling *usual = &m->core.arch->sampling;
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    carat_sampling_neutral(p);
    p->temperature = usual->temperature;
    p->top_k = usual->top_k;
    p->top_p = usual->top_p;
    p->min_p = usual->min_p;
    for (int32_t i = 0; i < n; i++) {
        char key[64];
        double v;
        int64_t k;
        snprintf(key, sizeof key, "general.sampling.%s", all[i].key);
        if (all[i].whole && gguf_get_i64(&m->core.file, key, &k))
            carat_sampling_set(p, &all[i], (double)k);
        else if (!all[i].whole && gguf_get_f64(&m->core.file, key, &v))
            carat_sampling_set(p, &all[i], v); /* out of range: as if it were not there */
    }
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

/* Compiling breakers takes milliseconds, so a sampler keeps those of its last call. */
static status keep_breakers(const carat_model *m, sampler *s, const carat_sampling *p)
{
    str key = {0};
    err e = {0};
    str_printf(&key, "%d", p->dry_breakers ? p->n_dry_breakers : -1);
    for (int32_t i = 0; p->dry_breakers && i < p->n_dry_breakers; i++) {
        str_putc(&key, 0);
        str_puts(&key, p->dry_breakers[i]);
    }
    if (key.bad) {
        str_free(&key);
        return E_MEMORY;
    }
    if (s->kept && s->n_kept_for == key.n && !memcmp(s->kept_for, key.at, key.n)) {
        str_free(&key);
        return OK;
    }
    dry_close(s->kept);
    mem_free(s->kept_for);
    s->n_kept_for = key.n;
    s->kept_for = str_take(&key);
    return dry_open(&s->kept, m->text, p, &e);
}

int32_t carat_sample(const carat_model *m, const carat_sampling *p, float *logits,
                     const int32_t *past, int64_t n_past, uint64_t *rng_state, float *mu)
{
    sample_state at = {.past = past, .n_past = n_past, .rng = *rng_state};
    bool dry = sample_uses_dry(p);
    int32_t id = -1;
    if (sample_check(p, m->core.n_vocab, NULL) || (p->mirostat && !mu))
        return -1;
    sampler *s = take_sampler(m);
    if (!s)
        return -1;
    if (p->mirostat)
        at.mu = *mu != 0 ? *mu : sample_first_mu(p);
    if (!dry || (!sampler_reserve(s, dry_window(p, n_past), NULL) &&
                 (!m->text || !keep_breakers(m, s, p)))) {
        at.breakers = dry && m->text ? s->kept : NULL;
        ban_place_holders(m, logits);
        id = sample_pick(s, p, logits, &at);
    }
    give_sampler(m, s);
    if (id >= 0)
        *rng_state = at.rng;
    if (id >= 0 && p->mirostat)
        *mu = at.mu;
    return id;
}
