/* sample_check.c - which sampling settings are valid, and the names of the steps.
 *
 * The names are those of llama.cpp, with the spellings that it accepts.
 */
#include "engine/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { TOP_LOGPROBS_MAX = 20 };

/* ---- Names ------------------------------------------------------------------------------- */

static const struct {
    carat_sampler is;
    const char *name; /* without separators; the first of a step is its shown name below */
} names[] = {
    {CARAT_SAMPLER_PENALTIES, "penalties"},
    {CARAT_SAMPLER_PENALTIES, "e"},
    {CARAT_SAMPLER_DRY, "dry"},
    {CARAT_SAMPLER_DRY, "d"},
    {CARAT_SAMPLER_TOP_N_SIGMA, "topnsigma"},
    {CARAT_SAMPLER_TOP_N_SIGMA, "s"},
    {CARAT_SAMPLER_TOP_K, "topk"},
    {CARAT_SAMPLER_TOP_K, "k"},
    {CARAT_SAMPLER_TYPICAL_P, "typp"},
    {CARAT_SAMPLER_TYPICAL_P, "typicalp"},
    {CARAT_SAMPLER_TYPICAL_P, "typ"},
    {CARAT_SAMPLER_TYPICAL_P, "typical"},
    {CARAT_SAMPLER_TYPICAL_P, "y"},
    {CARAT_SAMPLER_TOP_P, "topp"},
    {CARAT_SAMPLER_TOP_P, "nucleus"},
    {CARAT_SAMPLER_TOP_P, "p"},
    {CARAT_SAMPLER_MIN_P, "minp"},
    {CARAT_SAMPLER_MIN_P, "m"},
    {CARAT_SAMPLER_XTC, "xtc"},
    {CARAT_SAMPLER_XTC, "x"},
    {CARAT_SAMPLER_TEMPERATURE, "temperature"},
    {CARAT_SAMPLER_TEMPERATURE, "temp"},
    {CARAT_SAMPLER_TEMPERATURE, "t"},
};

carat_sampler carat_sampler_named(const char *name)
{
    char bare[24];
    size_t n = 0;
    for (const char *at = name; *at; at++) {
        if (*at == '_' || *at == '-')
            continue;
        if (n == sizeof bare - 1)
            return CARAT_SAMPLER_NONE;
        bare[n++] = *at;
    }
    bare[n] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, bare))
            return names[i].is;
    return CARAT_SAMPLER_NONE;
}

const char *carat_sampler_name(carat_sampler s)
{
    static const char *const shown[] = {[CARAT_SAMPLER_PENALTIES] = "penalties",
                                        [CARAT_SAMPLER_DRY] = "dry",
                                        [CARAT_SAMPLER_TOP_N_SIGMA] = "top_n_sigma",
                                        [CARAT_SAMPLER_TOP_K] = "top_k",
                                        [CARAT_SAMPLER_TYPICAL_P] = "typ_p",
                                        [CARAT_SAMPLER_TOP_P] = "top_p",
                                        [CARAT_SAMPLER_MIN_P] = "min_p",
                                        [CARAT_SAMPLER_XTC] = "xtc",
                                        [CARAT_SAMPLER_TEMPERATURE] = "temperature"};
    return s > 0 && (size_t)s < sizeof shown / sizeof *shown ? shown[s] : NULL;
}

/* ---- Settings ---------------------------------------------------------------------------- */

static status check_cuts(const carat_sampling *p, err *e)
{
    if (!(p->typical_p >= 0 && p->typical_p <= 1))
        return err_set(e, E_ARG, "sampling: typical_p %g is not between 0 and 1", p->typical_p);
    if (!isfinite(p->top_n_sigma))
        return err_set(e, E_ARG, "sampling: top_n_sigma must be a finite number");
    if (!(p->xtc_probability >= 0 && p->xtc_probability <= 1) ||
        !(p->xtc_threshold >= 0 && p->xtc_threshold <= 1))
        return err_set(e, E_ARG,
                       "sampling: xtc_probability %g and xtc_threshold %g are not both between 0 "
                       "and 1",
                       p->xtc_probability, p->xtc_threshold);
    if (!(p->dynatemp_range >= 0 && p->dynatemp_range <= FLT_MAX) ||
        !(p->dynatemp_exponent >= 0 && p->dynatemp_exponent <= FLT_MAX))
        return err_set(e, E_ARG,
                       "sampling: dynatemp_range %g and dynatemp_exponent %g are not both finite "
                       "numbers of at least 0",
                       p->dynatemp_range, p->dynatemp_exponent);
    if (p->min_keep < 0)
        return err_set(e, E_ARG, "sampling: min_keep %d is negative", p->min_keep);
    return OK;
}

static status check_dry(const carat_sampling *p, err *e)
{
    if (!(p->dry_multiplier >= 0 && p->dry_multiplier <= FLT_MAX) || !isfinite(p->dry_base))
        return err_set(e, E_ARG,
                       "sampling: dry_multiplier %g and dry_base %g must be finite, and the "
                       "multiplier not negative",
                       p->dry_multiplier, p->dry_base);
    if (p->dry_allowed_length < 0 || p->dry_last_n < -1)
        return err_set(e, E_ARG,
                       "sampling: dry_allowed_length %d is negative, or dry_last_n %d neither -1 "
                       "(all) nor a count",
                       p->dry_allowed_length, p->dry_last_n);
    if (p->n_dry_breakers < 0 || p->n_dry_breakers > DRY_BREAKERS_MAX ||
        (p->n_dry_breakers && !p->dry_breakers))
        return err_set(e, E_ARG, "sampling: %d breakers of DRY; 0 to %d are possible",
                       p->n_dry_breakers, DRY_BREAKERS_MAX);
    for (int32_t i = 0; i < p->n_dry_breakers; i++)
        if (!p->dry_breakers[i])
            return err_set(e, E_ARG, "sampling: breaker %d of DRY is no text", i);
    return OK;
}

static status check_mirostat(const carat_sampling *p, err *e)
{
    enum { TAU_MAX = 100, ETA_MAX = 10 }; /* a vocabulary has 18 bits */
    if (p->mirostat < 0 || p->mirostat > 2)
        return err_set(e, E_ARG, "sampling: mirostat %d is not 0, 1 or 2", p->mirostat);
    if (!(p->mirostat_tau >= 0 && p->mirostat_tau <= TAU_MAX) ||
        !(p->mirostat_eta >= 0 && p->mirostat_eta <= ETA_MAX))
        return err_set(e, E_ARG,
                       "sampling: mirostat_tau %g is not between 0 and %d, or mirostat_eta %g not "
                       "between 0 and %d",
                       p->mirostat_tau, TAU_MAX, p->mirostat_eta, ETA_MAX);
    return OK;
}

static status check_order(const carat_sampling *p, err *e)
{
    bool seen[CARAT_SAMPLERS_MAX + 1] = {false};
    for (int i = 0; i < CARAT_SAMPLERS_MAX && p->order[i]; i++) {
        if ((int)p->order[i] < 0 || p->order[i] > CARAT_SAMPLERS_MAX)
            return err_set(e, E_ARG, "sampling: step %d of the order is unknown", i);
        if (seen[p->order[i]])
            return err_set(e, E_ARG, "sampling: the order has %s twice",
                           carat_sampler_name(p->order[i]));
        seen[p->order[i]] = true;
    }
    return OK;
}

status sample_check(const carat_sampling *p, int32_t n_vocab, err *e)
{
    status st;
    if (!isfinite(p->temperature))
        return err_set(e, E_ARG, "sampling: the temperature must be a finite number");
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return err_set(e, E_ARG, "sampling: top_p %g is not between 0 and 1", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return err_set(e, E_ARG, "sampling: min_p %g is not between 0 and 1", p->min_p);
    if (!(p->repeat_penalty > 0) || !isfinite(p->repeat_penalty))
        return err_set(e, E_ARG, "sampling: repeat_penalty %g is not a positive number (1 is off)",
                       p->repeat_penalty);
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return err_set(e, E_ARG, "sampling: presence and frequency penalties must be finite");
    if (p->penalty_last_n < -1)
        return err_set(e, E_ARG, "sampling: penalty_last_n %d is neither -1 (all) nor a count",
                       p->penalty_last_n);
    if ((st = check_cuts(p, e)) || (st = check_dry(p, e)) || (st = check_mirostat(p, e)) ||
        (st = check_order(p, e)))
        return st;
    if (p->n_top_logprobs < 0 || p->n_top_logprobs > TOP_LOGPROBS_MAX)
        return err_set(e, E_ARG, "sampling: %d logprobs were asked for, and 0 to %d are possible",
                       p->n_top_logprobs, TOP_LOGPROBS_MAX);
    if (p->n_bias < 0 || (p->n_bias && !p->bias))
        return err_set(e, E_ARG, "sampling: a logit bias list without entries");
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= n_vocab)
            return err_set(e, E_ARG, "sampling: a logit bias for token %d, and ids end at %d",
                           p->bias[i].id, n_vocab - 1);
        if (!(p->bias[i].bias <= FLT_MAX)) /* NaN and +inf; -inf is a ban */
            return err_set(e, E_ARG, "sampling: the logit bias of token %d is not a number",
                           p->bias[i].id);
    }
    return OK;
}
