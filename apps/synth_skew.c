/* synth_skew.c - see synth_skew.h.
 *
 * A router of random rows has logits g z, z a normal number, g the length of the row. Of n experts
 * with g = 1, a row of a pass chooses those with z > t, where Q(t) = SKEW_USED / n and Q(x) is the
 * probability of a normal number above x. An expert with Q(t / g) = p is chosen with probability p.
 * So g = t / Q^-1(p), and the sum of all p stays SKEW_USED. No bias is needed, which most routers
 * do not have. The norm before a router multiplies all logits of a token alike, which changes no
 * choice.
 */
#include "apps/synth_skew.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

static const double most = 0.45; /* of p: Q^-1 must be well above 0 */

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

/* The c for which the probabilities of ranks 1..n add up to `used`. */
static double factor_of_law(int32_t n, double skew, double used)
{
    double lo = 0, hi = 1e6;
    for (int round = 0; round < 80; round++) {
        double c = (lo + hi) / 2, sum = 0;
        for (int32_t i = 1; i <= n; i++)
            sum += zipf(c, i, skew);
        if (sum < used)
            lo = c;
        else
            hi = c;
    }
    return (lo + hi) / 2;
}

/* The part of all uses that the commoner half has. */
static double half_of(int32_t n, double c, double skew, double bound)
{
    double half = 0, all = 0;
    for (int32_t i = 1; i <= n; i++) {
        double p = c * pow(i, -skew);
        p = p < bound ? p : bound;
        all += p;
        half += i <= n / 2 ? p : 0;
    }
    return half / all;
}

/* The law's first ranks would be used more often than `most` allows. A steeper law with that bound
 * gives the commoner half of all experts the uses that it has by the law asked for. */
static double steeper(int32_t n, double skew, double used)
{
    double want = half_of(n, 1, skew, 2), lo = skew, hi = skew + 2;
    for (int round = 0; round < 30; round++) {
        double s = (lo + hi) / 2;
        if (half_of(n, factor_of_law(n, s, used), s, most) < want)
            lo = s;
        else
            hi = s;
    }
    return lo;
}

void synth_skew_factors(float *factor, int32_t n, double skew, uint64_t seed)
{
    int32_t rank[SKEW_RANKS];
    double used = n * most / 2 < SKEW_USED ? n * most / 2 : SKEW_USED;
    for (int32_t i = 0; i < n; i++)
        rank[i] = i + 1;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)(rng_next(&seed) % (uint64_t)(i + 1)), r = rank[i];
        rank[i] = rank[j];
        rank[j] = r;
    }
    double t = above(used / n), s = skew > 0 ? steeper(n, skew, used) : 0;
    double c = factor_of_law(n, s, used);
    for (int32_t i = 0; i < n; i++)
        factor[i] = skew > 0 ? (float)(t / above(zipf(c, rank[i], s))) : 1;
}

/* ---- Tensors ------------------------------------------------------------------------------- */

/* How many entries of the stream are themes: the first ones. */
static uint64_t n_themes(uint64_t n_embd)
{
    uint64_t n = n_embd / 8 > 64 ? n_embd / 8 : 64;
    return n < n_embd / 2 ? n : n_embd / 2;
}

/* "blk.3.ffn_down.weight" is called "ffn_down.weight". */
static bool called(const shape_tensor *t, const char *tail)
{
    const char *dot =
        t->layer >= 0 && !strncmp(t->name, "blk.", 4) ? strchr(t->name + 4, '.') : NULL;
    return dot && !strcmp(dot + 1, tail);
}

bool synth_skew_is_router(const shape_tensor *t)
{
    return t->n_dims == 2 && t->ne[1] <= SKEW_RANKS && called(t, "ffn_gate_inp.weight");
}

void synth_skew_row(float *row, uint64_t n_in, float length, uint64_t seed)
{
    uint64_t n = n_themes(n_in);
    double sum = 0;
    memset(row, 0, n_in * sizeof *row);
    for (uint64_t i = 0; i < n; i++) {
        row[i] = (float)rng_normal(&seed);
        sum += (double)row[i] * row[i];
    }
    /* Of equal lengths: random ones would be ranks of their own. */
    double scale = length * sqrt((double)n_in / (double)n) / sqrt(sum);
    for (uint64_t i = 0; i < n; i++)
        row[i] = (float)(row[i] * scale);
}

static bool writes_stream(const shape_tensor *t)
{
    static const char *const list[] = {"ssm_out.weight", "ffn_down.weight", "ffn_down_exps.weight",
                                       "ffn_down_shexp.weight"};
    bool found = t->layer > 0 && called(t, "attn_output.weight");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        found |= called(t, list[i]);
    return found && t->n_dims > 1;
}

void synth_skew_silence(const shape_tensor *t, uint64_t first, uint64_t n_rows, void *dst,
                        uint64_t row_bytes)
{
    if (called(t, "exp_probs_b.bias"))
        memset(dst, 0, n_rows * row_bytes);
    if (!writes_stream(t))
        return;
    uint64_t themes = n_themes(t->ne[1]);
    for (uint64_t r = 0; r < n_rows; r++)
        if ((first + r) % t->ne[1] < themes)
            memset((char *)dst + r * row_bytes, 0, row_bytes);
}
