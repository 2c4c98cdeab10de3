/* encode_k.c - f32 rows to the super-blocks of 256, by search.
 *
 * A super-block has one or two f16 factors and small integer scales per sub-block. There is no
 * canonical encoder; this one minimises the squared error and takes, in order:
 *   1. per sub-block, real-valued scale (and minimum): several roundings of the values are tried,
 *      each followed by the least-squares scale for those codes; the best pair is kept;
 *   2. the factors that make those scales integers;
 *   3. with the integer scales fixed, codes again, then the factors by least squares again.
 * Step 3 is kept only when it lowers the error. The squared error of an element is multiplied by
 * its importance; without activations to say which columns matter, all have the same.
 */
#include "num/num_int.h"

#include <float.h>

/* Sub-blocks are multiples of LANES; sums run in LANES partial sums so that loops vectorise. */
enum { LANES = 16 };

/* The nearest whole number (even at ties) between lo and hi, as a float: adding 1.5 * 2^23 leaves
 * no room for a fraction. */
static inline float nearest_whole(float v, float lo, float hi)
{
    return (clamp_float(v, lo, hi) + 12582912.0f) - 12582912.0f;
}

static inline float total(const float lane[LANES])
{
    float s = 0;
    for (int l = 0; l < LANES; l++)
        s += lane[l];
    return s;
}

/* ---- Codes with a minimum: x = s q - m, s and m >= 0, q in 0..top ------------------------ */

typedef struct {
    float s, m;
} affine;

static float affine_error(const float *x, const float *w, int n, int top, affine a)
{
    float is = a.s > 0 ? 1 / a.s : 0, e[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float d = a.s * nearest_whole((x[i + l] + a.m) * is, 0, (float)top) - a.m - x[i + l];
            e[l] += w[i + l] * (d * d);
        }
    return total(e);
}

/* The best s and m for the codes that `a` gives, and their squared error less the sum of x squared.
 * Exact for the codes that are kept, so an upper bound. */
static affine affine_refit(const float *x, const float *w, int n, int top, affine a, float *rest)
{
    float is = a.s > 0 ? 1 / a.s : 0;
    float vw[LANES] = {0}, vq[LANES] = {0}, vqq[LANES] = {0}, vx[LANES] = {0}, vqx[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l], q = nearest_whole((v + a.m) * is, 0, (float)top);
            float wq = w[i + l] * q;
            vw[l] += w[i + l];
            vq[l] += wq;
            vqq[l] += wq * q;
            vx[l] += w[i + l] * v;
            vqx[l] += wq * v;
        }
    float sw = total(vw), sq = total(vq), sqq = total(vqq), sx = total(vx), sqx = total(vqx);
    float det = sw * sqq - sq * sq;
    affine r = a;
    if (det > 0) {
        r.s = (sw * sqx - sq * sx) / det;
        r.m = (sq * sqx - sqq * sx) / det;
    }
    if (r.m < 0 || r.s <= 0) { /* the format has no negative minimum */
        r.m = 0;
        r.s = sqq > 0 && sqx > 0 ? sqx / sqq : a.s;
    }
    *rest = r.s * (r.s * sqq - 2 * r.m * sq - 2 * sqx) + r.m * (sw * r.m + 2 * sx);
    return r;
}

static affine affine_fit(const float *x, const float *w, int n, int top)
{
    float lo = 0, hi = x[0], rest, least = FLT_MAX;
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    if (hi <= lo) /* all equal and not positive: the minimum alone represents them */
        return (affine){0, -lo};
    affine best = {(hi - lo) / (float)top, -lo};
    /* A slightly smaller range rounds the extremes worse and all other values better. What it loses
     * is taken from the top, from both ends alike, or from the bottom. */
    for (int step = -2; step <= 10; step++)
        for (int end = 0; end < 3; end++) {
            float range = (hi - lo) * (1 - 0.03f * (float)step);
            affine a = {range / (float)top, -lo - 0.5f * (float)end * (hi - lo - range)};
            a.m = a.m < 0 ? 0 : a.m;
            a = affine_refit(x, w, n, top, a, &rest);
            if (rest < least) {
                least = rest;
                best = a;
            }
        }
    for (int round = 0; round < 3; round++) { /* codes for the new scale, scale for the new codes */
        affine a = affine_refit(x, w, n, top, best, &rest);
        if (!(rest < least))
            break;
        least = rest;
        best = a;
    }
    return best;
}

/* A super-block of n_sub sub-blocks of n = QK / n_sub in progress. */
typedef struct {
    int n_sub, n, top, scale_top; /* codes 0..top, scales and minima 0..scale_top */
    const float *w;               /* [QK], the importance */
    uint8_t q[QK], sc[16], mn[16];
    float d, dmin; /* as read back from f16 */
    uint8_t d_bytes[2], dmin_bytes[2];
} affine_block;

/* Codes for the current scales; the squared error. */
static double affine_codes(affine_block *b, const float *x)
{
    double error = 0;
    for (int g = 0; g < b->n_sub; g++) {
        affine a = {b->d * (float)b->sc[g], b->dmin * (float)b->mn[g]};
        float is = a.s > 0 ? 1 / a.s : 0;
        for (int i = g * b->n; i < (g + 1) * b->n; i++)
            b->q[i] = (uint8_t)nearest_whole((x[i] + a.m) * is, 0, (float)b->top);
        error += affine_error(x + g * b->n, b->w + g * b->n, b->n, b->top, a);
    }
    return error;
}

/* The best integer scale and minimum of each sub-block near the rounded ones. */
static void affine_scales(affine_block *b, const float *x, const affine *fit)
{
    static const int8_t step[][2] = {{0, 0}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}, {1, 1}, {-1, -1}};
    float most = (float)b->scale_top;
    for (int g = 0; g < b->n_sub; g++) {
        int sc0 = b->d > 0 ? (int)nearest_whole(fit[g].s / b->d, 0, most) : 0;
        int mn0 = b->dmin > 0 ? (int)nearest_whole(fit[g].m / b->dmin, 0, most) : 0;
        float best = FLT_MAX;
        for (size_t k = 0; k < sizeof step / sizeof *step; k++) {
            int sc = sc0 + step[k][0], mn = mn0 + step[k][1];
            if (sc < 0 || mn < 0 || sc > b->scale_top || mn > b->scale_top)
                continue;
            affine a = {b->d * (float)sc, b->dmin * (float)mn};
            float e = affine_error(x + g * b->n, b->w + g * b->n, b->n, b->top, a);
            if (e < best) {
                best = e;
                b->sc[g] = (uint8_t)sc;
                b->mn[g] = (uint8_t)mn;
            }
        }
    }
}

/* d and dmin by least squares over the block, scales and codes fixed. */
static bool affine_factors(const affine_block *b, const float *x, float *d, float *dmin)
{
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < QK; i++) {
        double p = (double)b->sc[i / b->n] * b->q[i], m = b->mn[i / b->n];
        double wp = b->w[i] * p, wm = b->w[i] * m;
        aa += wp * p;
        ab += wp * m;
        bb += wm * m;
        ax += wp * x[i];
        bx += wm * x[i];
    }
    double det = aa * bb - ab * ab;
    if (det <= 1e-9 * aa * bb || det <= 0)
        return false;
    *d = (float)((ax * bb - ab * bx) / det);
    *dmin = (float)((ab * ax - aa * bx) / det);
    return *d > 0 && *dmin >= 0;
}

static void affine_encode(affine_block *b, const float *x)
{
    affine fit[16];
    float s_max = 0, m_max = 0, d, dmin;
    b->n = QK / b->n_sub;
    for (int g = 0; g < b->n_sub; g++) {
        fit[g] = affine_fit(x + g * b->n, b->w + g * b->n, b->n, b->top);
        s_max = fit[g].s > s_max ? fit[g].s : s_max;
        m_max = fit[g].m > m_max ? fit[g].m : m_max;
    }
    b->d = st_f16(b->d_bytes, s_max / (float)b->scale_top);
    b->dmin = st_f16(b->dmin_bytes, m_max / (float)b->scale_top);
    affine_scales(b, x, fit);
    double error = affine_codes(b, x);
    for (int round = 0; round < 3 && affine_factors(b, x, &d, &dmin); round++) {
        affine_block t = *b;
        t.d = st_f16(t.d_bytes, d);
        t.dmin = st_f16(t.dmin_bytes, dmin);
        affine_scales(&t, x, fit);
        double e = affine_codes(&t, x);
        if (e >= error)
            break;
        error = e;
        *b = t;
    }
}

NUM_WEIGH(q2_k)
{
    uint8_t *p = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, p += 84, src += QK, importance += importance ? QK : 0) {
        affine_block b = {.w = w, .n_sub = 16, .top = 3, .scale_top = 15};
        num_take(src, importance, x, w, QK);
        affine_encode(&b, x);
        memset(p, 0, 84);
        for (int g = 0; g < 16; g++)
            p[g] = (uint8_t)(b.sc[g] | b.mn[g] << 4);
        for (int i = 0; i < QK; i++)
            p[16 + i / 128 * 32 + i % 32] |= (uint8_t)(b.q[i] << i % 128 / 32 * 2);
        memcpy(p + 80, b.d_bytes, 2);
        memcpy(p + 82, b.dmin_bytes, 2);
    }
}

/* d, dmin and the twelve packed bytes at the head of Q4_K and Q5_K. */
static void put_k4_head(uint8_t *p, const affine_block *b)
{
    memcpy(p, b->d_bytes, 2);
    memcpy(p + 2, b->dmin_bytes, 2);
    for (int j = 0; j < 4; j++) {
        p[4 + j] = (uint8_t)(b->sc[j] | b->sc[j + 4] >> 4 << 6);
        p[8 + j] = (uint8_t)(b->mn[j] | b->mn[j + 4] >> 4 << 6);
        p[12 + j] = (uint8_t)((b->sc[j + 4] & 15) | (b->mn[j + 4] & 15) << 4);
    }
}

NUM_WEIGH(q4_k)
{
    uint8_t *p = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, p += 144, src += QK, importance += importance ? QK : 0) {
        affine_block b = {.w = w, .n_sub = 8, .top = 15, .scale_top = 63};
        num_take(src, importance, x, w, QK);
        affine_encode(&b, x);
        put_k4_head(p, &b);
        for (int i = 0; i < 128; i++) {
            const uint8_t *q = b.q + i / 32 * 64 + i % 32;
            p[16 + i] = (uint8_t)(q[0] | q[32] << 4);
        }
    }
}

NUM_WEIGH(q5_k)
{
    uint8_t *p = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, p += 176, src += QK, importance += importance ? QK : 0) {
        affine_block b = {.w = w, .n_sub = 8, .top = 31, .scale_top = 63};
        num_take(src, importance, x, w, QK);
        affine_encode(&b, x);
        put_k4_head(p, &b);
        memset(p + 16, 0, 32);
        for (int i = 0; i < QK; i++)
            p[16 + i % 32] |= (uint8_t)(b.q[i] >> 4 << i / 32);
        for (int i = 0; i < 128; i++) {
            const uint8_t *q = b.q + i / 32 * 64 + i % 32;
            p[48 + i] = (uint8_t)((q[0] & 15) | (q[32] & 15) << 4);
        }
    }
}

/* ---- Signed codes: x = s L[q], s of either sign ------------------------------------------- */

/* Which levels a code stands for: lo..hi, or the IQ4 table when hi is 0. */
typedef struct {
    int n_sub, n, lo, hi;
    int scale_lo, scale_hi; /* of the integer scales */
    const float *w;         /* [QK], the importance */
    int8_t level[QK];       /* the value of each code, not its bits */
    int sc[16];
    float d;
    uint8_t d_bytes[2];
} signed_block;

/* The levels nearest to x * is, one row of LANES. */
static inline void levels_of(const signed_block *b, const float *x, float is, float out[LANES])
{
    if (b->hi) {
        for (int l = 0; l < LANES; l++)
            out[l] = nearest_whole(x[l] * is, (float)b->lo, (float)b->hi);
        return;
    }
    for (int l = 0; l < LANES; l++)
        out[l] = num_iq4_level[0];
    for (int i = 0; i < 15; i++) { /* past each midpoint, one level up */
        float mid = 0.5f * (float)(num_iq4_level[i] + num_iq4_level[i + 1]);
        float up = (float)(num_iq4_level[i + 1] - num_iq4_level[i]);
        for (int l = 0; l < LANES; l++)
            out[l] += x[l] * is >= mid ? up : 0;
    }
}

static float signed_error(const signed_block *b, const float *x, const float *w, float s)
{
    float is = s != 0 ? 1 / s : 0, e[LANES] = {0}, level[LANES];
    for (int i = 0; i < b->n; i += LANES) {
        levels_of(b, x + i, is, level);
        for (int l = 0; l < LANES; l++) {
            float d = s * level[l] - x[i + l];
            e[l] += w[i + l] * (d * d);
        }
    }
    return total(e);
}

/* The best s for the levels that s gives, and how much of the sum of x squared it explains. */
static float signed_refit(const signed_block *b, const float *x, const float *w, float s,
                          float *explained)
{
    float is = s != 0 ? 1 / s : 0, vlx[LANES] = {0}, vll[LANES] = {0}, level[LANES];
    for (int i = 0; i < b->n; i += LANES) {
        levels_of(b, x + i, is, level);
        for (int l = 0; l < LANES; l++) {
            float wl = w[i + l] * level[l];
            vlx[l] += wl * x[i + l];
            vll[l] += wl * level[l];
        }
    }
    float lx = total(vlx), ll = total(vll);
    *explained = ll > 0 ? lx * (lx / ll) : 0;
    return ll > 0 && lx != 0 ? lx / ll : s;
}

static float signed_fit(const signed_block *b, const float *x, const float *w)
{
    float amax = 0, v = 0, most = -1, explained;
    for (int i = 0; i < b->n; i++)
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            v = x[i];
        }
    if (amax == 0)
        return 0;
    /* The largest value, with its sign, at the long end of the range; or at the short end. */
    float lo = b->hi ? (float)b->lo : -127, best = v / lo;
    for (int side = 0; side < 2; side++)
        for (int step = -3; step <= 9; step++) {
            float end = (side ? -1 : 1) * lo * (1 + 0.03f * (float)step);
            float s = signed_refit(b, x, w, v / end, &explained);
            if (explained > most) {
                most = explained;
                best = s;
            }
        }
    for (int round = 0; round < 3; round++) {
        float s = signed_refit(b, x, w, best, &explained);
        if (!(explained > most))
            break;
        most = explained;
        best = s;
    }
    return best;
}

static double signed_codes(signed_block *b, const float *x)
{
    double error = 0;
    float level[LANES];
    for (int g = 0; g < b->n_sub; g++) {
        float s = b->d * (float)b->sc[g], is = s != 0 ? 1 / s : 0;
        for (int i = g * b->n; i < (g + 1) * b->n; i += LANES) {
            levels_of(b, x + i, is, level);
            for (int l = 0; l < LANES; l++)
                b->level[i + l] = (int8_t)level[l];
        }
        error += signed_error(b, x + g * b->n, b->w + g * b->n, s);
    }
    return error;
}

static void signed_scales(signed_block *b, const float *x, const float *fit)
{
    for (int g = 0; g < b->n_sub; g++) {
        float r = b->d != 0 ? fit[g] / b->d : 0, best = FLT_MAX;
        int sc0 = (int)nearest_whole(r, (float)b->scale_lo, (float)b->scale_hi);
        for (int sc = sc0 - 1; sc <= sc0 + 1; sc++) {
            if (sc < b->scale_lo || sc > b->scale_hi)
                continue;
            float e = signed_error(b, x + g * b->n, b->w + g * b->n, b->d * (float)sc);
            if (e < best) {
                best = e;
                b->sc[g] = sc;
            }
        }
    }
}

static void signed_encode(signed_block *b, const float *x)
{
    float fit[16], s_max = 0;
    b->n = QK / b->n_sub;
    for (int g = 0; g < b->n_sub; g++) {
        fit[g] = signed_fit(b, x + g * b->n, b->w + g * b->n);
        if (fabsf(fit[g]) > fabsf(s_max))
            s_max = fit[g];
    }
    b->d = st_f16(b->d_bytes, s_max / (float)b->scale_lo);
    signed_scales(b, x, fit);
    double error = signed_codes(b, x);
    for (int round = 0; round < 3; round++) {
        double lx = 0, ll = 0;
        for (int i = 0; i < QK; i++) {
            double p = (double)b->sc[i / b->n] * b->level[i];
            lx += b->w[i] * p * x[i];
            ll += b->w[i] * p * p;
        }
        if (ll <= 0)
            return;
        signed_block t = *b;
        t.d = st_f16(t.d_bytes, (float)(lx / ll));
        signed_scales(&t, x, fit);
        double e = signed_codes(&t, x);
        if (e >= error)
            return;
        error = e;
        *b = t;
    }
}

NUM_WEIGH(q3_k)
{
    uint8_t *p = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, p += 110, src += QK, importance += importance ? QK : 0) {
        signed_block b = {.w = w, .n_sub = 16, .lo = -4, .hi = 3, .scale_lo = -32, .scale_hi = 31};
        num_take(src, importance, x, w, QK);
        signed_encode(&b, x);
        memset(p, 0, 110);
        for (int i = 0; i < QK; i++) {
            int q = b.level[i] + 4;
            p[32 + i / 128 * 32 + i % 32] |= (uint8_t)((q & 3) << i % 128 / 32 * 2);
            p[i % 32] |= (uint8_t)(q >> 2 << i / 32);
        }
        for (int g = 0; g < 16; g++) {
            int s = b.sc[g] + 32;
            p[96 + g % 8] |= (uint8_t)((s & 15) << g / 8 * 4);
            p[104 + g % 4] |= (uint8_t)(s >> 4 << g / 4 * 2);
        }
        memcpy(p + 108, b.d_bytes, 2);
    }
}

NUM_WEIGH(q6_k)
{
    uint8_t *p = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, p += 210, src += QK, importance += importance ? QK : 0) {
        signed_block b = {
            .w = w, .n_sub = 16, .lo = -32, .hi = 31, .scale_lo = -128, .scale_hi = 127};
        num_take(src, importance, x, w, QK);
        signed_encode(&b, x);
        memset(p, 0, 210);
        for (int i = 0; i < QK; i++) {
            int q = b.level[i] + 32, k = i % 128 / 32; /* quarter k of half i / 128 */
            p[i / 128 * 64 + k % 2 * 32 + i % 32] |= (uint8_t)((q & 15) << k / 2 * 4);
            p[128 + i / 128 * 32 + i % 32] |= (uint8_t)(q >> 4 << 2 * k);
        }
        for (int g = 0; g < 16; g++)
            p[192 + g] = (uint8_t)(int8_t)b.sc[g];
        memcpy(p + 208, b.d_bytes, 2);
    }
}

NUM_WEIGH(iq4_xs)
{
    uint8_t *p = dst;
    float x[QK], w[QK];
    for (; n > 0; n -= QK, p += 136, src += QK, importance += importance ? QK : 0) {
        signed_block b = {.w = w, .n_sub = 8, .scale_lo = -32, .scale_hi = 31};
        uint32_t high = 0;
        num_take(src, importance, x, w, QK);
        signed_encode(&b, x);
        memset(p, 0, 136);
        memcpy(p, b.d_bytes, 2);
        for (int g = 0; g < 8; g++) {
            int s = b.sc[g] + 32;
            p[4 + g / 2] |= (uint8_t)((s & 15) << g % 2 * 4);
            high |= (uint32_t)(s >> 4) << 2 * g;
        }
        st_u16(p + 2, high);
        for (int i = 0; i < QK; i++) {
            int q = 0;
            while (num_iq4_level[q] != b.level[i])
                q++;
            p[8 + i / 32 * 16 + i % 16] |= (uint8_t)(q << i % 32 / 16 * 4);
        }
    }
}

NUM_PLAIN(q2_k)
NUM_PLAIN(q3_k)
NUM_PLAIN(q4_k)
NUM_PLAIN(q5_k)
NUM_PLAIN(q6_k)
NUM_PLAIN(iq4_xs)
