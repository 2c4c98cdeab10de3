/* sample_options.c - see sample_options.h. */
#include "apps/sample_options.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void take_real(double from, float *to)
{
    if (from != SAMPLE_UNSET)
        *to = (float)from;
}

static void take_whole(int64_t from, int32_t *to)
{
    if (from != SAMPLE_UNSET)
        *to = (int32_t)from;
}

/* "penalties;top_k,temperature": llama.cpp separates by semicolons. */
static status read_order(const char *list, carat_sampling *p, err *e)
{
    int n = 0;
    memset(p->order, 0, sizeof p->order);
    for (const char *at = list;; at++) {
        char name[32];
        size_t len = strcspn(at, ",; ");
        snprintf(name, sizeof name, "%.*s", len < sizeof name ? (int)len : 31, at);
        at += len;
        carat_sampler is = carat_sampler_named(name);
        if (len && (!is || n == CARAT_SAMPLERS_MAX))
            return err_set(
                e, E_ARG,
                "--samplers: \"%s\" is unknown or too many; expected penalties, dry, top_n_sigma, "
                "top_k, typ_p, top_p, min_p, xtc and temperature, once each",
                name);
        if (len)
            p->order[n++] = is;
        if (!*at)
            return n ? OK : err_set(e, E_ARG, "--samplers: the list is empty");
    }
}

status sample_options_apply(const sample_options *o, carat_sampling *p, err *e)
{
    take_real(o->temperature, &p->temperature);
    take_whole(o->top_k, &p->top_k);
    take_real(o->top_p, &p->top_p);
    take_real(o->min_p, &p->min_p);
    take_real(o->repeat_penalty, &p->repeat_penalty);
    p->presence_penalty = (float)o->presence_penalty;
    p->frequency_penalty = (float)o->frequency_penalty;
    take_whole(o->repeat_last_n, &p->penalty_last_n);
    take_real(o->typical, &p->typical_p);
    take_real(o->sigma, &p->top_n_sigma);
    take_real(o->xtc_probability, &p->xtc_probability);
    take_real(o->xtc_threshold, &p->xtc_threshold);
    take_real(o->dynatemp_range, &p->dynatemp_range);
    take_real(o->dynatemp_exponent, &p->dynatemp_exponent);
    take_real(o->dry_multiplier, &p->dry_multiplier);
    take_real(o->dry_base, &p->dry_base);
    take_whole(o->dry_allowed, &p->dry_allowed_length);
    take_whole(o->dry_last_n, &p->dry_last_n);
    take_whole(o->mirostat, &p->mirostat);
    take_real(o->mirostat_tau, &p->mirostat_tau);
    take_real(o->mirostat_eta, &p->mirostat_eta);
    take_whole(o->min_keep, &p->min_keep);
    if (o->breakers.n) {
        p->dry_breakers = o->breakers.at;
        p->n_dry_breakers = o->breakers.n;
    }
    return o->order ? read_order(o->order, p, e) : OK;
}

uint32_t sample_random_seed(void)
{
    uint32_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint32_t)clock_ns();
    return seed;
}
