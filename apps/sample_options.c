/* sample_options.c - see sample_options.h. */
#include "apps/sample_options.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

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
            return err_set(e, E_ARG,
                           "--samplers: \"%s\" is unknown or too many; expected %s, once each",
                           name, &CARAT_SAMPLER_LIST[2]);
        if (len)
            p->order[n++] = is;
        if (!*at)
            return n ? OK : err_set(e, E_ARG, "--samplers: the list is empty");
    }
}

status sample_options_apply(const sample_options *o, carat_sampling *p, err *e)
{
#define REAL float
#define WHOLE int32_t
#define TAKE(kind, field, ...)                                                                     \
    if (o->field != SAMPLE_UNSET)                                                                  \
        p->field = (kind)o->field;
    CARAT_SAMPLING_SETTINGS(TAKE, )
#undef TAKE
#undef WHOLE
#undef REAL
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
