/* float_int.h - products with f32, f16 and bf16 weights, and the quantisation of activations.
 *
 * Included by each matmul_*.c and compiled for its vectors.
 */
#ifndef BACKEND_CPU_FLOAT_INT_H
#define BACKEND_CPU_FLOAT_INT_H

#include "backend/cpu/kernels_int.h"
#include "backend/cpu/vec_int.h"

#include <math.h>

/* With sixteen lanes both groups are computed together: twelve sums hide the latency of an FMA. */
enum {
    FLOAT_GROUPS = VL == 16 ? TILE_GROUPS : 1,
    GROUP_VECS = PACK_LANES / VL,
    FLOAT_VECS = FLOAT_GROUPS * GROUP_VECS
};

/* One input's weights. bf16 has two inputs in a lane: the low half is the first. */
INLINE vf float_weights(num_type t, const void *group, int32_t i, int v)
{
    size_t at = (size_t)i * PACK_LANES + (size_t)(v % GROUP_VECS) * VL;
    if (t == NUM_F32)
        return vf_load((const float *)group + at);
    if (t == NUM_F16)
        return vf_load_f16((const uint16_t *)group + at);
    vu pair;
    memcpy(&pair,
           (const uint32_t *)group + (size_t)(i / 2) * PACK_LANES + (size_t)(v % GROUP_VECS) * VL,
           sizeof pair);
    return (vf)(i % 2 ? pair & 0xffff0000u : pair << 16);
}

INLINE void float_rows(num_type t, const void *const *w, int32_t n, const float *const *x,
                       const int n_rows, float *acc)
{
    vf sum[TILE_ROWS][FLOAT_VECS];
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < FLOAT_VECS; v++)
            sum[r][v] = vf_load(acc + r * TILE_COLS + v * VL);
    const int step = t == NUM_BF16 ? 2 : 1;
    for (int32_t i0 = 0; i0 < n; i0 += step)
        for (int32_t i = i0; i < i0 + step && i < n; i++) {
            vf wv[FLOAT_VECS];
            for (int v = 0; v < FLOAT_VECS; v++)
                wv[v] = float_weights(t, w[v / GROUP_VECS], i, v);
            for (int r = 0; r < n_rows; r++) {
                vf xv = vf_set(x[r][i]);
                for (int v = 0; v < FLOAT_VECS; v++)
                    sum[r][v] = vf_fma(xv, wv[v], sum[r][v]);
            }
        }
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < FLOAT_VECS; v++)
            vf_store(acc + r * TILE_COLS + v * VL, sum[r][v]);
}

/* acc[r][o] += sum over i, ascending, of x[r][i] w[i][o]
 * w:     packed groups of 16 outputs, f32, f16 or bf16; x: f32; one sum per output
 * tile:  one group (sixteen lanes: two) by up to TILE_ROWS rows
 * bound: decode reads w; a prefill is two FMA per cycle */
INLINE void float_tile_as(num_type t, const void *const *w, int32_t n, const float *const *x,
                          int32_t n_rows, float *acc)
{
    for (int g = 0; g < TILE_GROUPS; g += FLOAT_GROUPS, w += FLOAT_GROUPS)
        switch (n_rows) {
        case 1:
            float_rows(t, w, n, x, 1, acc + g * PACK_LANES);
            break;
        case 2:
            float_rows(t, w, n, x, 2, acc + g * PACK_LANES);
            break;
        case 3:
            float_rows(t, w, n, x, 3, acc + g * PACK_LANES);
            break;
        case 4:
            float_rows(t, w, n, x, 4, acc + g * PACK_LANES);
            break;
        case 5:
            float_rows(t, w, n, x, 5, acc + g * PACK_LANES);
            break;
        default:
            float_rows(t, w, n, x, TILE_ROWS, acc + g * PACK_LANES);
        }
}

static void k_float_tile(num_type t, const void *const w[TILE_GROUPS], int32_t n,
                         const float *const *x, int32_t n_rows, float *acc)
{
    if (t == NUM_F32)
        float_tile_as(NUM_F32, w, n, x, n_rows, acc);
    else if (t == NUM_F16)
        float_tile_as(NUM_F16, w, n, x, n_rows, acc);
    else
        float_tile_as(NUM_BF16, w, n, x, n_rows, acc);
}

/* 32 activations to int8: d = max |x| / 127, q = round(x / d), ties to even. In a block with an
 * infinity or a NaN d is NaN, so the product is NaN and not a wrong number. A block too small for
 * 1/d becomes zero. */
#ifdef __AVX512F__
INLINE void quantise_block(xblock *to, const float *x, int32_t off, int32_t n_sub, bool mins)
{
    enum { INFINITE = 0x7f800000 };
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
    /* As integers, magnitudes of floats have the same order, and infinities and NaN come last. */
    __m512i top = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v0), magnitude),
                                   _mm512_and_si512(_mm512_castps_si512(v1), magnitude));
    uint32_t bits = _mm512_reduce_max_epu32(top);
    bool bad = bits >= INFINITE;
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    float inv = !bad && amax > 0x1p-100f ? 127.0f / amax : 0.0f;
    __mmask16 good = bad ? 0 : 0xffff;
    __m512i q0 = _mm512_maskz_cvtps_epi32(good, _mm512_mul_ps(v0, _mm512_set1_ps(inv)));
    __m512i q1 = _mm512_maskz_cvtps_epi32(good, _mm512_mul_ps(v1, _mm512_set1_ps(inv)));
    _mm_storeu_si128((__m128i *)(void *)to->q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((__m128i *)(void *)(to->q + 16), _mm512_cvtepi32_epi8(q1));
    int32_t sum[2] = {_mm512_reduce_add_epi32(n_sub == 1 ? _mm512_add_epi32(q0, q1) : q0),
                      n_sub == 1 ? 0 : _mm512_reduce_add_epi32(q1)};
    to->d = bad ? NAN : amax / 127.0f;
    for (int h = 0; h < 2; h++)
        if (mins)
            to->sum[h] = to->d * (float)sum[h];
        else
            to->start[h] = -off * sum[h];
    to->unused = 0;
}
#else
INLINE void quantise_block(xblock *to, const float *x, int32_t off, int32_t n_sub, bool mins)
{
    vf top = {0}, odd = {0};
    for (int i = 0; i < 32; i += VL) {
        vf v = vf_load(x + i);
        top = vf_max(vf_abs(v), top);
        odd += v * vf_set(0.0f);
    }
    float amax = vf_top(top), bad = vf_sum(odd);
    float d = bad != 0 ? NAN : amax / 127.0f;
    float inv = bad == 0 && amax > 0x1p-100f ? 127.0f / amax : 0.0f;
    int32_t q[32], sum[2] = {0, 0};
    for (int i = 0; i < 32; i += VL) {
        vf t = vf_load(x + i) * vf_set(inv) + vf_set(0x1.8p23f);
        vi k = (vi)t - (vi)vf_set(0x1.8p23f);
        memcpy(q + i, &k, sizeof k);
    }
    if (bad != 0)
        memset(q, 0, sizeof q);
    for (int i = 0; i < 32; i++)
        to->q[i] = (int8_t)q[i];
    for (int i = 0; i < 16; i++) {
        sum[0] += q[i];
        sum[1] += q[i + 16];
    }
    if (n_sub == 1) {
        sum[0] += sum[1];
        sum[1] = 0;
    }
    to->d = d;
    for (int h = 0; h < 2; h++)
        if (mins)
            to->sum[h] = d * (float)sum[h];
        else
            to->start[h] = -off * sum[h];
    to->unused = 0;
}
#endif

static void quantise_row(xblock *to, const float *x, int32_t n, int32_t off, int32_t n_sub,
                         bool mins)
{
    for (int32_t b = 0; b < n / 32; b++)
        quantise_block(to + b, x + 32 * b, off, n_sub, mins);
}

static void k_quantise(xblock *to, const float *x, int32_t n, const pack_kind *kind)
{
    quantise_row(to, x, n, kind->off, kind->n_sub, kind->mins);
}

#endif
