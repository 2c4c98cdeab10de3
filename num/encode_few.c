/* encode_few.c - f32 rows to blocks of very few levels: Q1_0, Q2_0, TQ1_0, TQ2_0, NVFP4.
 *
 * The squared error of an element is multiplied by its importance. For one factor and few levels
 * the best factor can be found, not searched: as it shrinks, elements step up one level at known
 * values, and between two such values the sums of least squares are constant. So all steps are
 * sorted, and the sums are kept along the way. A block that consists of its levels alone, as in
 * models trained for these formats, comes back exactly.
 */
#include "num/num_int.h"

/* One element's step from level l to l + 1, when the factor falls below `at`. */
typedef struct level_step {
    float at;
    double wx, ww; /* what it adds to the sums of w level x and of w level^2 */
} level_step;

static void sort_steps(level_step *s, int n) /* largest first; equal ones in any, fixed, order */
{
    static const int gaps[] = {57, 23, 10, 4, 1};
    for (size_t k = 0; k < sizeof gaps / sizeof *gaps; k++)
        for (int i = gaps[k]; i < n; i++) {
            level_step t = s[i];
            int j = i;
            for (; j >= gaps[k] && s[j - gaps[k]].at < t.at; j -= gaps[k])
                s[j] = s[j - gaps[k]];
            s[j] = t;
        }
}

/* The best factor, and the part of the sum of w x^2 that it explains. */
static double best_factor(level_step *s, int n, double *explained)
{
    double wx = 0, ww = 0, d = 0;
    *explained = 0;
    sort_steps(s, n);
    for (int i = 0; i < n; i++) {
        wx += s[i].wx;
        ww += s[i].ww;
        if (i + 1 < n && s[i + 1].at == s[i].at)
            continue; /* equal elements have equal levels */
        if (ww > 0 && wx * wx > *explained * ww) {
            *explained = wx * wx / ww;
            d = wx / ww;
        }
    }
    return d;
}

/* For levels -1 to top, of the elements times `sign`. */
static double factor_of(const float *x, const float *w, int n, int top, float sign,
                        double *explained)
{
    level_step s[2 * QK];
    int n_steps = 0;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        int most = x[i] * sign > 0 ? top : 1;
        for (int l = 0; l < most && a > 0; l++)
            s[n_steps++] =
                (level_step){a / ((float)l + 0.5f), (double)w[i] * a, (double)w[i] * (2 * l + 1)};
    }
    return best_factor(s, n_steps, explained);
}

static int level_of(float x, float d, int top)
{
    float v = d != 0 ? x / d : 0;
    int l = (int)floorf(clamp_float(v, -2, 4) + 0.5f);
    return l < -1 ? -1 : l > top ? top : l;
}

NUM_WEIGH(q1_0)
{
    enum { N = 128 };
    uint8_t *b = dst;
    float x[N], w[N];
    for (; n > 0; n -= N, b += 18, src += N, importance += importance ? N : 0) {
        double wx = 0, ww = 0;
        num_take(src, importance, x, w, N);
        memset(b, 0, 18);
        for (int i = 0; i < N; i++) {
            wx += (double)w[i] * fabsf(x[i]);
            ww += w[i];
            b[2 + i / 8] |= (uint8_t)((x[i] >= 0) << i % 8);
        }
        st_f16(b, ww > 0 ? (float)(wx / ww) : 0);
    }
}

/* Levels -1 to 2; a negative factor gives 1 to -2. */
NUM_WEIGH(q2_0)
{
    enum { N = 64 };
    uint8_t *b = dst;
    float x[N], w[N];
    for (; n > 0; n -= N, b += 18, src += N, importance += importance ? N : 0) {
        double up, down;
        num_take(src, importance, x, w, N);
        double d = factor_of(x, w, N, 2, 1, &up), other = factor_of(x, w, N, 2, -1, &down);
        memset(b, 0, 18);
        float factor = st_f16(b, (float)(down > up ? -other : d));
        for (int i = 0; i < N; i++)
            b[2 + i / 4] |= (uint8_t)((level_of(x[i], factor, 2) + 1) << i % 4 * 2);
    }
}

NUM_WEIGH(tq1_0)
{
    uint8_t *b = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, b += 54, src += QK, importance += importance ? QK : 0) {
        double explained;
        uint8_t digits[52][5] = {{0}}; /* of a byte, the first one counts most */
        num_take(src, importance, x, w, QK);
        float d = st_f16(b + 52, (float)factor_of(x, w, QK, 1, 1, &explained));
        for (int i = 0; i < QK; i++) { /* as in tq1_digit */
            int at = i < 160 ? i % 32 : i < 240 ? 32 + (i - 160) % 16 : 48 + (i - 240) % 4;
            int k = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
            digits[at][k] = (uint8_t)(level_of(x[i], d, 1) + 1);
        }
        for (int at = 0; at < 52; at++) {
            int v = 0;
            for (int k = 0; k < 5; k++)
                v = 3 * v + digits[at][k];
            b[at] = (uint8_t)((v * 256 + 242) / 243); /* a fraction, rounded up */
        }
    }
}

NUM_WEIGH(tq2_0)
{
    uint8_t *b = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, b += 66, src += QK, importance += importance ? QK : 0) {
        double explained;
        num_take(src, importance, x, w, QK);
        memset(b, 0, 64);
        float d = st_f16(b + 64, (float)factor_of(x, w, QK, 1, 1, &explained));
        for (int i = 0; i < QK; i++)
            b[i / 128 * 32 + i % 32] |= (uint8_t)((level_of(x[i], d, 1) + 1) << i % 128 / 32 * 2);
    }
}

/* ---- NVFP4 -------------------------------------------------------------------------------- */

enum { FP4_N = 16, FP4_TOP = 12 }; /* elements of a scale; the largest level, doubled */

/* The magnitudes of the levels nearest to v, doubled. */
static inline float fp4_level(float v)
{
    float a = fabsf(v), l = 0;
    for (int k = 1; k < 8; k++) {
        float low = num_fp4_level[k - 1], high = num_fp4_level[k];
        l += a > 0.5f * (low + high) ? high - low : 0;
    }
    return l;
}

static float fp4_error(const float *x, const float *w, float d)
{
    float id = 1 / d, e[FP4_N], sum = 0;
    for (int i = 0; i < FP4_N; i++) {
        float rest = fabsf(x[i]) - d * fp4_level(x[i] * id);
        e[i] = w[i] * rest * rest;
    }
    for (int i = 0; i < FP4_N; i++)
        sum += e[i];
    return sum;
}

/* The scale of 16 elements: tried around the one that maps the largest to the largest level. */
static uint8_t fp4_scale(const float *x, const float *w)
{
    enum { BELOW = 6, ABOVE = 5, TOP = 0x7e };
    float most = 0, least = INFINITY;
    int first = 1, best = 0;
    for (int i = 0; i < FP4_N; i++)
        most = fmaxf(most, fabsf(x[i]));
    if (most == 0)
        return 0;
    while (first < TOP && nvfp4_factor((uint8_t)first) * FP4_TOP < most)
        first++;
    for (int c = first - BELOW; c <= first + ABOVE; c++) {
        if (c < 1 || c > TOP)
            continue;
        float e = fp4_error(x, w, nvfp4_factor((uint8_t)c));
        if (e < least) {
            least = e;
            best = c;
        }
    }
    return (uint8_t)best;
}

NUM_WEIGH(nvfp4)
{
    uint8_t *b = dst;
    float x[FP4_N], w[FP4_N];
    for (int at = 0; n > 0; n -= FP4_N, src += FP4_N, importance += importance ? FP4_N : 0) {
        num_take(src, importance, x, w, FP4_N);
        b[at] = fp4_scale(x, w);
        float d = nvfp4_factor(b[at]), id = d > 0 ? 1 / d : 0;
        uint8_t code[FP4_N];
        for (int i = 0; i < FP4_N; i++) {
            float l = fp4_level(x[i] * id);
            int q = 0;
            while ((float)num_fp4_level[q] < l)
                q++;
            code[i] = (uint8_t)(x[i] < 0 && q ? q + 8 : q); /* no negative zero */
        }
        for (int i = 0; i < FP4_N / 2; i++)
            b[4 + 8 * at + i] = (uint8_t)(code[i] | code[i + 8] << 4);
        if (++at == 4) {
            at = 0;
            b += 36;
        }
    }
}

NUM_PLAIN(q1_0)
NUM_PLAIN(q2_0)
NUM_PLAIN(tq1_0)
NUM_PLAIN(tq2_0)
