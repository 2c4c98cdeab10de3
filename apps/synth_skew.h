/* synth_skew.h - routers that choose some experts more often than others. */
#ifndef APPS_SYNTH_SKEW_H
#define APPS_SYNTH_SKEW_H

#include <stdint.h>

enum {
    SKEW_USED = 8,    /* experts of a row, in every published mixture that synth writes */
    SKEW_RANKS = 4096 /* at most so many experts */
};

/* factor[e] is what the router's row of expert e is multiplied by, so that expert e is chosen with
 * a probability in proportion to rank(e)^-skew. Ranks are a permutation drawn from the seed. 1 <= n
 * <= SKEW_RANKS; skew 0: all factors are 1. */
void synth_skew_factors(float *factor, int32_t n, double skew, uint64_t seed);

#endif
