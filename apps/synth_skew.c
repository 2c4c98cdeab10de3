/* synth_skew.c - see synth_skew.h.
 *
 * A router of random rows has logits g z, z a normal number, g the length of the row. Of n experts
 * with g = 1, a row of a pass chooses those with z > t, where Q(t) = SKEW_USED / n and Q(x) is the
 * probability of a normal number above x. An expert with Q(t / g) = p is chosen with probability p.
 * So g = t / Q^-1(p), and the sum of all p stays SKEW_USED. No bias is needed, which most routers
 * do not have. The stream that a router reads changes with the token, and through attention, more
 * slowly, with the text before it: so the experts in use drift.
 */
#include "apps/synth_skew.h"
#include "base/rng.h"

#include <math.h>

static const double most = 0.4; /* of p: Q^-1 must be well above 0 */

/* The x that a normal number is above with probability p, 0 < p < 1. */
static double above(double p)
{
    double lo = -40, hi = 40;
    for (int i = 0; i < 80; i++) {
        double x = (lo + hi) / 2;
        if (0.5 * erfc(x / sqrt(2)) > p)
            lo = x;
        else
            hi = x;
    }
    return (lo + hi) / 2;
}

static double zipf(double c, int32_t rank, double skew)
{
    double p = c * pow(rank, -skew);
    return p < most ? p : most;
}

void synth_skew_factors(float *factor, int32_t n, double skew, uint64_t seed)
{
    int32_t rank[SKEW_RANKS];
    double used = n * most / 2 < SKEW_USED ? n * most / 2 : SKEW_USED, lo = 0, hi = 1e6;
    for (int32_t i = 0; i < n; i++)
        rank[i] = i + 1;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)(rng_next(&seed) % (uint64_t)(i + 1)), r = rank[i];
        rank[i] = rank[j];
        rank[j] = r;
    }
    for (int round = 0; round < 80; round++) { /* the c for which the sum is right */
        double c = (lo + hi) / 2, sum = 0;
        for (int32_t i = 1; i <= n; i++)
            sum += zipf(c, i, skew);
        if (sum < used)
            lo = c;
        else
            hi = c;
    }
    double t = above(used / n);
    for (int32_t i = 0; i < n; i++)
        factor[i] = skew > 0 ? (float)(t / above(zipf((lo + hi) / 2, rank[i], skew))) : 1;
}
