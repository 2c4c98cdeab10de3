/* sampling_settings.c - the rows of carat/sampling_settings.h as tables: numbers and names of
 * steps; which settings are valid.
 *
 * The names are those of llama.cpp, with the spellings that it accepts.
 */
#include "engine/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { TOP_LOGPROBS_MAX = 20 };

/* ---- Numbers ----------------------------------------------------------------------------- */

enum { REAL, WHOLE };

#define ROW(kind, field, name, also, key, flag, words, min, max, usual, needs, help)               \
    _Static_assert(_Generic(((carat_sampling *)0)->field, float                                    \
                            : REAL, int32_t                                                        \
                            : WHOLE) == (kind),                                                    \
                   #field " has another type than its row");
CARAT_SAMPLING_SETTINGS(ROW, )
#undef ROW

#define ROW(kind, field, name, also, key, flag, words, min, max, usual, needs, help)               \
    {name, also,  (key) ? (key) : (name),          flag, (kind) == WHOLE, min,                     \
     max,  usual, offsetof(carat_sampling, field), help},
static const carat_sampling_setting numbers[] = {CARAT_SAMPLING_SETTINGS(ROW, )};
#undef ROW

const carat_sampling_setting *carat_sampling_settings(int32_t *n)
{
    *n = sizeof numbers / sizeof *numbers;
    return numbers;
}

const carat_sampling_setting *carat_sampling_find(const char *name)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(numbers[i].name, name) || (numbers[i].also && !strcmp(numbers[i].also, name)))
            return &numbers[i];
    return NULL;
}

double carat_sampling_get(const carat_sampling *p, const carat_sampling_setting *is)
{
    float real;
    int32_t whole;
    if (is->whole)
        memcpy(&whole, (const char *)p + is->at, sizeof whole);
    else
        memcpy(&real, (const char *)p + is->at, sizeof real);
    return is->whole ? (double)whole : (double)real;
}

bool carat_sampling_set(carat_sampling *p, const carat_sampling_setting *is, double v)
{
    float real = (float)v;
    if (!(v >= is->min && v <= is->max) || (is->whole && v != floor(v)))
        return false;
    int32_t whole = is->whole ? (int32_t)v : 0;
    memcpy((char *)p + is->at, is->whole ? (const void *)&whole : &real, sizeof real);
    return true;
}

void carat_sampling_neutral(carat_sampling *p)
{
    *p = (carat_sampling){0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        carat_sampling_set(p, &numbers[i], numbers[i].usual);
}

/* ---- Names ------------------------------------------------------------------------------- */

#define STEP(step, name, others) [CARAT_SAMPLER_##step] = {name, others},
static const struct {
    const char *name, *others;
} steps[] = {CARAT_SAMPLER_STEPS(STEP)};

static bool is_separator(char c)
{
    return c == '_' || c == '-';
}

/* Is `name` these n letters, separators aside? */
static bool same_letters(const char *name, const char *word, size_t n)
{
    for (;; name++, word++, n--) {
        for (; is_separator(*name); name++)
            ;
        for (; n && is_separator(*word); n--)
            word++;
        if (!*name || !n)
            return !*name && !n;
        if (*name != *word)
            return false;
    }
}

carat_sampler carat_sampler_named(const char *name)
{
    for (int i = 1; i <= CARAT_SAMPLERS_MAX; i++) {
        size_t n = strlen(steps[i].name);
        if (same_letters(name, steps[i].name, n))
            return (carat_sampler)i;
        for (const char *at = steps[i].others; (n = strcspn(at, " ")); at += n, at += *at == ' ')
            if (same_letters(name, at, n))
                return (carat_sampler)i;
    }
    return CARAT_SAMPLER_NONE;
}

const char *carat_sampler_name(carat_sampler s)
{
    return s > 0 && s <= CARAT_SAMPLERS_MAX ? steps[s].name : NULL;
}

/* ---- Settings ---------------------------------------------------------------------------- */

static status check_numbers(const carat_sampling *p, err *e)
{
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    for (int32_t i = 0; i < n; i++) {
        double v = carat_sampling_get(p, &all[i]);
        if (!(v >= (all[i].whole ? all[i].min : (double)(float)all[i].min) && v <= all[i].max))
            return err_set(e, E_ARG, "sampling: %s %g is not between %g and %g", all[i].name, v,
                           all[i].min, all[i].max);
    }
    return OK;
}

static status check_breakers(const carat_sampling *p, err *e)
{
    if (p->n_dry_breakers < 0 || p->n_dry_breakers > DRY_BREAKERS_MAX ||
        (p->n_dry_breakers && !p->dry_breakers))
        return err_set(e, E_ARG, "sampling: %d breakers of DRY; 0 to %d are possible",
                       p->n_dry_breakers, DRY_BREAKERS_MAX);
    for (int32_t i = 0; i < p->n_dry_breakers; i++)
        if (!p->dry_breakers[i])
            return err_set(e, E_ARG, "sampling: breaker %d of DRY is no text", i);
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
    if ((st = check_numbers(p, e)) || (st = check_breakers(p, e)) || (st = check_order(p, e)))
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
