/* offload_int.h - the kernels of offload.h. A file of one instruction set includes this one after
 * it has defined the integer products of a group:
 *
 *     group_codes   a type: the codes of 16 outputs and 32 inputs, unpacked
 *     take_codes    unpacks them
 *     group_dots    multiplies them with one row: a sum for each half of 16 inputs, of the codes as
 *                   stored, without their bias
 *
 * Everything else is loops of constant length over 16 outputs, which compilers turn into vector
 * instructions.
 */
#ifndef BACKEND_CPU_OFFLOAD_INT_H
#define BACKEND_CPU_OFFLOAD_INT_H

#include "backend/cpu/offload.h"
#include "backend/cpu/vec_int.h"
#include "backend/swiglu.h"
#include "num/num.h"

#include <math.h>
#include <string.h>

enum {
    UNIT_GROUPS = 8,
    LANES = OFFLOAD_TILE,
    CACHE_LINE = 64,
    AHEAD_BYTES = 1024 /* of codes, asked for before they are read: the best of 1 to 8 KiB */
};

/* ---- Facts of the layouts, as traits of backend/cuda/product/formats.cuh
 * ----------------------------- */

#define IS_BYTES(k) ((k) == OFFLOAD_Q8_0 || (k) == OFFLOAD_G8)
#define IS_FIVE(k) ((k) == OFFLOAD_Q5_0 || (k) == OFFLOAD_Q5_1 || (k) == OFFLOAD_Q5_K)
#define IS_SUPER(k) ((k) == OFFLOAD_Q4_K || (k) == OFFLOAD_Q5_K)
#define IS_LEVELS(k) ((k) == OFFLOAD_IQ4 || (k) == OFFLOAD_FP4)
#define IS_SIGNED(k) (IS_BYTES(k) || IS_LEVELS(k))
#define IS_SPLIT(k) ((k) == OFFLOAD_Q6_K || (k) == OFFLOAD_G8 || (k) == OFFLOAD_FP4)
#define HAS_OFFSET(k)                                                                              \
    ((k) == OFFLOAD_Q4_1 || (k) == OFFLOAD_Q5_1 || IS_SUPER(k) || (k) == OFFLOAD_G8)
#define BIAS(k) ((k) == OFFLOAD_Q4_0 ? 8 : (k) == OFFLOAD_Q5_0 ? 16 : (k) == OFFLOAD_Q6_K ? 32 : 0)
#define CODE_BYTES(k) (IS_BYTES(k) ? 32 : 16)
#define HIGH_BYTES(k) (IS_FIVE(k) ? 4 : (k) == OFFLOAD_Q6_K ? 8 : 0)

/* The levels that nibbles stand for: level_words of formats.cuh. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
INLINE const int8_t *levels_of(const int kind)
{
    return kind == OFFLOAD_IQ4 ? iq4_levels : fp4_levels;
}

/* The first byte of a group's codes; of its high bits, those of 16 rows of 4 groups of a parity. */
INLINE const uint8_t *codes_at(const int kind, const offload_matrix *w, int32_t tile, int32_t g)
{
    return w->codes + ((size_t)tile * (size_t)w->n_group + (size_t)g) * LANES * CODE_BYTES(kind);
}
INLINE const uint8_t *high_at(const int kind, const offload_matrix *w, size_t unit, int32_t parity)
{
    return w->high + (unit * 2 + (size_t)parity) * LANES * 4 * HIGH_BYTES(kind);
}

/* ---- Scales of a unit ------------------------------------------------------------------------ */

/* Factor and offset of each half of a group. The second ones count only where halves have their
 * own. */
typedef struct unit_scales {
    _Alignas(64) float f0[UNIT_GROUPS][LANES];
    float f1[UNIT_GROUPS][LANES], m0[UNIT_GROUPS][LANES], m1[UNIT_GROUPS][LANES];
} unit_scales;

/* From a plane of floats [parity][row][4 groups][n_each]: number `which` of each group. */
INLINE void spread_floats(float (*to)[LANES], const float *plane, const int n_each, const int which)
{
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < 4; i++)
            for (int r = 0; r < LANES; r++)
                to[2 * i + p][r] = plane[((p * LANES + r) * 4 + i) * n_each + which];
}

INLINE void take_super(const offload_matrix *w, size_t unit, unit_scales *s)
{
    uint32_t raw[LANES][4], lo[LANES], mins[LANES], top[LANES];
    float d[LANES], m[LANES];
    memcpy(raw, w->super + unit * sizeof raw, sizeof raw);
    for (int r = 0; r < LANES; r++) {
        d[r] = num_f16_to_f32((uint16_t)raw[r][0]);
        m[r] = num_f16_to_f32((uint16_t)(raw[r][0] >> 16));
        lo[r] = raw[r][1];
        mins[r] = raw[r][2];
        top[r] = raw[r][3];
    }
    for (int j = 0; j < UNIT_GROUPS; j++)
        for (int r = 0; r < LANES; r++) {
            uint32_t a = (lo[r] >> 4 * j & 15) | (top[r] >> 2 * j & 3) << 4;
            uint32_t b = (mins[r] >> 4 * j & 15) | (top[r] >> (16 + 2 * j) & 3) << 4;
            s->f0[j][r] = d[r] * (float)(int32_t)a;
            s->m0[j][r] = -(m[r] * (float)(int32_t)b);
        }
}

/* FP4: a bfloat16 of both halves with its sign set, or two e4m3. */
INLINE void take_level_scale(const int kind, uint16_t raw, float by, float *f0, float *f1)
{
    if (kind == OFFLOAD_IQ4) {
        *f0 = num_f16_to_f32(raw) * by;
        *f1 = 0;
        return;
    }
    float both = num_bits_f32((uint32_t)(raw & 0x7fff) << 16);
    float e0 = num_f16_to_f32((uint16_t)((raw & 0x7f) << 7)) * 128;
    float e1 = num_f16_to_f32((uint16_t)(raw >> 1 & 0x3f80)) * 128;
    *f0 = (raw & 0x8000 ? both : e0) * by;
    *f1 = (raw & 0x8000 ? both : e1) * by;
}

INLINE void take_scales(const int kind, const offload_matrix *w, size_t unit, unit_scales *s)
{
    enum { N = 2 * LANES * 4 }; /* rows and groups of a unit */
    if (IS_SUPER(kind)) {
        take_super(w, unit, s);
    } else if (kind == OFFLOAD_Q6_K) {
        int8_t raw[N][2];
        uint16_t half[LANES];
        float d[LANES];
        memcpy(raw, w->scale + unit * sizeof raw, sizeof raw);
        memcpy(half, w->super + unit * sizeof half, sizeof half);
        for (int r = 0; r < LANES; r++)
            d[r] = num_f16_to_f32(half[r]);
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < 4; i++)
                for (int r = 0; r < LANES; r++) {
                    const int8_t *at = raw[(p * LANES + r) * 4 + i];
                    s->f0[2 * i + p][r] = d[r] * (float)at[0];
                    s->f1[2 * i + p][r] = d[r] * (float)at[1];
                }
    } else if (IS_LEVELS(kind)) {
        uint16_t raw[N];
        float by[LANES];
        memcpy(raw, w->scale + unit * sizeof raw, sizeof raw);
        memcpy(by, w->super + unit * sizeof by, sizeof by);
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < 4; i++)
                for (int r = 0; r < LANES; r++)
                    take_level_scale(kind, raw[(p * LANES + r) * 4 + i], by[r],
                                     &s->f0[2 * i + p][r], &s->f1[2 * i + p][r]);
    } else if (kind == OFFLOAD_G8) {
        float raw[N * 4];
        memcpy(raw, w->scale + unit * sizeof raw, sizeof raw);
        spread_floats(s->f0, raw, 4, 0);
        spread_floats(s->f1, raw, 4, 1);
        spread_floats(s->m0, raw, 4, 2);
        spread_floats(s->m1, raw, 4, 3);
    } else {
        const int n_each = HAS_OFFSET(kind) ? 2 : 1;
        uint16_t raw[N * 2];
        float f[N * 2];
        memcpy(raw, w->scale + unit * (size_t)(N * n_each) * 2, (size_t)(N * n_each) * 2);
        for (int i = 0; i < N * n_each; i++)
            f[i] = num_f16_to_f32(raw[i]);
        spread_floats(s->f0, f, n_each, 0);
        if (n_each == 2)
            spread_floats(s->m0, f, 2, 1);
    }
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* group_sum of formats.cuh for sixteen outputs. */
INLINE void add_group(const int kind, float *acc, const unit_scales *u, int g, const int32_t *i0,
                      const int32_t *i1, offload_scale x)
{
    const int s0 = IS_SPLIT(kind) ? x.sum[0] : x.sum[0] + x.sum[1], s1 = x.sum[1];
    const float e0 = x.d * (float)s0, e1 = x.d * (float)s1;
    for (int r = 0; r < LANES; r++) {
        int32_t a = IS_SPLIT(kind) ? i0[r] : i0[r] + i1[r];
        float v = __builtin_fmaf(u->f0[g][r], x.d * (float)(a - BIAS(kind) * s0), acc[r]);
        if (IS_SPLIT(kind))
            v = __builtin_fmaf(u->f1[g][r], x.d * (float)(i1[r] - BIAS(kind) * s1), v);
        if (HAS_OFFSET(kind))
            v = __builtin_fmaf(u->m0[g][r], e0, v);
        if (HAS_OFFSET(kind) && IS_SPLIT(kind))
            v = __builtin_fmaf(u->m1[g][r], e1, v);
        acc[r] = v;
    }
}

/* Asks for a group's codes, so that the first cache has them in time: a core's own look ahead ends
 * with each page of memory. The group may be past the matrix's end; then nothing happens, or some
 * bytes of what follows come. */
INLINE void expect_codes(const int kind, const offload_matrix *w, int32_t tile, int32_t g)
{
    const uint8_t *at = codes_at(kind, w, tile, g);
    for (int i = 0; i < LANES * CODE_BYTES(kind); i += CACHE_LINE)
        __builtin_prefetch(at + i);
}

/* bound: reading W, once for all rows */
INLINE void tile_of(const int kind, const offload_matrix *w, int32_t tile, int32_t n_parts,
                    const offload_row *x, int32_t n_rows, float (*y)[LANES])
{
    _Alignas(64) float acc[OFFLOAD_ROWS][OFFLOAD_WARPS][2][LANES];
    memset(acc, 0, (size_t)n_rows * sizeof *acc);
    for (int32_t u = 0; u < w->n_unit; u++) {
        size_t unit = (size_t)tile * (size_t)w->n_unit + (size_t)u;
        unit_scales s;
        take_scales(kind, w, unit, &s);
        int32_t part = u % n_parts, left = w->n_group - u * UNIT_GROUPS;
        for (int32_t j = 0; j < UNIT_GROUPS && j < left; j++) {
            int32_t g = u * UNIT_GROUPS + j;
            group_codes c;
            expect_codes(kind, w, tile, g + AHEAD_BYTES / (LANES * CODE_BYTES(kind)));
            take_codes(kind, &c, codes_at(kind, w, tile, g),
                       HIGH_BYTES(kind) ? high_at(kind, w, unit, j & 1) : NULL, j >> 1);
            for (int32_t r = 0; r < n_rows; r++) {
                _Alignas(64) int32_t i0[LANES], i1[LANES];
                offload_scale xs = x[r].s[g];
                group_dots(kind, &c, x[r].q + (size_t)g * OFFLOAD_GROUP, xs, i0, i1);
                add_group(kind, acc[r][part][j & 1], &s, j, i0, i1, xs);
            }
        }
    }
    for (int32_t r = 0; r < n_rows; r++)
        for (int i = 0; i < LANES; i++) {
            float v = acc[r][0][0][i] + acc[r][0][1][i];
            y[r][i] = n_parts > 1 ? v + (acc[r][1][0][i] + acc[r][1][1][i]) : v;
        }
}

static void tile_sums(const offload_matrix *w, int32_t tile, int32_t n_parts, const offload_row *x,
                      int32_t n_rows, float (*y)[OFFLOAD_TILE])
{
    switch (w->kind) {
    case OFFLOAD_Q4_0:
        tile_of(OFFLOAD_Q4_0, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q4_1:
        tile_of(OFFLOAD_Q4_1, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q5_0:
        tile_of(OFFLOAD_Q5_0, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q5_1:
        tile_of(OFFLOAD_Q5_1, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q8_0:
        tile_of(OFFLOAD_Q8_0, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q4_K:
        tile_of(OFFLOAD_Q4_K, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q5_K:
        tile_of(OFFLOAD_Q5_K, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_Q6_K:
        tile_of(OFFLOAD_Q6_K, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_IQ4:
        tile_of(OFFLOAD_IQ4, w, tile, n_parts, x, n_rows, y);
        break;
    case OFFLOAD_FP4:
        tile_of(OFFLOAD_FP4, w, tile, n_parts, x, n_rows, y);
        break;
    default:
        tile_of(OFFLOAD_G8, w, tile, n_parts, x, n_rows, y);
    }
}

/* ---- The activation -------------------------------------------------------------------------- */

/* exp(x) as 2^n e^r: the polynomial is Taylor's up to r^7, |r| <= ln(2) / 2. NaN stays NaN.
 * backend/cuda/experts/offload.cuh has the same operations. */
INLINE float exp_of(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, in the low bits */
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float t = __builtin_fmaf(x, 0x1.715476p0f, magic);
    int32_t n;
    memcpy(&n, &t, 4);
    uint32_t bits = ((uint32_t)n - 0x4b400000u + 127u) << 23;
    float k = t - magic, scale;
    memcpy(&scale, &bits, 4);
    float r = __builtin_fmaf(k, -0x1.62e4p-1f, x);
    r = __builtin_fmaf(k, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f; /* 1/7! */
    p = __builtin_fmaf(p, r, 0x1.6c16c2p-10f);
    p = __builtin_fmaf(p, r, 0x1.111112p-7f);
    p = __builtin_fmaf(p, r, 0x1.555556p-5f);
    p = __builtin_fmaf(p, r, 0x1.555556p-3f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return p * scale;
}

/* gelu(x) = x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE float act_of(bool silu, float x)
{
    float cubic = __builtin_fmaf(0.044715f * x * x, x, x);
    float z = silu ? -x : -1.5957691216057308f * cubic;
    return x / (1.0f + exp_of(z));
}

/* quant_scale of backend/cuda/activations.cuh, which says why. */
INLINE float scale_of(uint32_t top)
{
    float d = num_bits_f32(num_f32_bits(num_bits_f32(top) / 127.0f) & ~3u);
    return d < 0x1p-120f ? 0.0f : d < 0x1p100f ? d : num_bits_f32(0x7fc00000);
}

/* A NaN stays one. */
INLINE float cut_unit(float a, float b)
{
    a = a > SWIGLU_CUT ? SWIGLU_CUT : a;
    b = b > SWIGLU_CUT ? SWIGLU_CUT : b < -SWIGLU_CUT ? -SWIGLU_CUT : b;
    return a / (1.0f + exp_of(-SWIGLU_SLOPE * a)) * (b + 1.0f);
}

static void gate_sums(offload_unit unit, const float *a, const float *b, int8_t *q,
                      offload_scale *s)
{
    float v[OFFLOAD_GROUP];
    uint32_t top = 0;
    int sum[2] = {0, 0};
    for (int i = 0; i < OFFLOAD_GROUP && unit == OFFLOAD_CUT; i++)
        v[i] = cut_unit(a[i], b[i]);
    for (int i = 0; i < OFFLOAD_GROUP && unit != OFFLOAD_CUT; i++)
        v[i] = act_of(unit == OFFLOAD_SILU, a[i]) * b[i];
    for (int i = 0; i < OFFLOAD_GROUP; i++) {
        uint32_t u = num_f32_bits(v[i]) & 0x7fffffff;
        top = u > top ? u : top;
    }
    float inv = top ? 127.0f / num_bits_f32(top) : 0.0f;
    for (int i = 0; i < OFFLOAD_GROUP; i++) {
        float c = rintf(v[i] * inv);
        c = c != c ? 0.0f : c < -127.0f ? -127.0f : c > 127.0f ? 127.0f : c;
        q[i] = (int8_t)(int)c;
        sum[i >> 4] += (int)c;
    }
    *s = (offload_scale){scale_of(top), {(int16_t)sum[0], (int16_t)sum[1]}};
}

#endif
