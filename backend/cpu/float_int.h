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

/* Integer dot products begin with it: of AVX-512 the bits of the float 1.5 * 2^23. */
enum { DOT_BASE = VL == 16 ? 0x4b400000 : 0 };

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
            to->start[h] = DOT_BASE - off * sum[h];
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
            to->start[h] = DOT_BASE - off * sum[h];
    to->unused = 0;
}
#endif

#ifdef __AVX512F__
/* Lane i is the sum, or the largest, of all lanes of v[i]: the shuffles of vf_sums. */
INLINE __m512i join(__m512i a, __m512i b, bool sums)
{
    return sums ? _mm512_add_epi32(a, b) : _mm512_max_epu32(a, b);
}
INLINE __m512i join_lanes(const __m512i v[16], bool sums)
{
    __m512i a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = join(_mm512_shuffle_i32x4(v[i], v[i + 8], 0x44),
                    _mm512_shuffle_i32x4(v[i], v[i + 8], 0xee), sums);
    for (int i = 0; i < 4; i++)
        b[i] = join(_mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                    _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd), sums);
    for (int i = 0; i < 2; i++)
        c[i] = join(_mm512_unpacklo_epi64(b[i], b[i + 2]), _mm512_unpackhi_epi64(b[i], b[i + 2]),
                    sums);
    __m512 x = _mm512_castsi512_ps(c[0]), y = _mm512_castsi512_ps(c[1]);
    __m512i d = join(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                     _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)), sums);
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_epi32(order, d);
}

/* quantise_block of 16 blocks, which share the reductions: a third of the instructions. False: one
 * has an infinity or a NaN, and nothing is written. */
INLINE bool quantise_sixteen(xblock *to, const float *x, int32_t off, int32_t n_sub, bool mins)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i v[16], w[16];
    UNROLL(16)
    for (int i = 0; i < 16; i++)
        v[i] = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * i), magnitude),
                                _mm512_and_si512(_mm512_loadu_si512(x + 32 * i + 16), magnitude));
    __m512i most = join_lanes(v, false);
    if (_mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(0x7f800000)))
        return false;
    __m512 top = _mm512_castsi512_ps(most), full = _mm512_set1_ps(127.0f);
    __mmask16 some = _mm512_cmp_ps_mask(top, _mm512_set1_ps(0x1p-100f), _CMP_GT_OQ);
    float inv[16];
    _mm512_storeu_ps(inv, _mm512_maskz_div_ps(some, full, top));
    /* Packing leaves in quarter L of a vector four bytes of A's halves, then of B's. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    UNROLL(8)
    for (int i = 0; i < 16; i += 2) {
        __m512i words[2];
        for (int j = 0; j < 2; j++) {
            __m512 c = _mm512_set1_ps(inv[i + j]);
            const float *from = x + 32 * (i + j);
            __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from), c));
            __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + 16), c));
            words[j] = _mm512_packs_epi32(q0, q1);
            v[i + j] = n_sub == 1 ? _mm512_add_epi32(q0, q1) : q0;
            w[i + j] = q1;
        }
        __m512i q = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
        _mm256_storeu_si256((__m256i *)(void *)to[i].q, _mm512_castsi512_si256(q));
        _mm256_storeu_si256((__m256i *)(void *)to[i + 1].q, _mm512_extracti64x4_epi64(q, 1));
    }
    __m512 d = _mm512_div_ps(top, full);
    __m512i half[2] = {join_lanes(v, true),
                       n_sub == 1 ? _mm512_setzero_si512() : join_lanes(w, true)};
    for (int h = 0; h < 2; h++)
        half[h] = mins ? _mm512_castps_si512(_mm512_mul_ps(d, _mm512_cvtepi32_ps(half[h])))
                       : _mm512_sub_epi32(_mm512_set1_epi32(DOT_BASE),
                                          _mm512_mullo_epi32(_mm512_set1_epi32(off), half[h]));
    /* d, both halves and a zero of block 4 L + k: quarter L of rest[k] */
    __m512i low = _mm512_unpacklo_epi32(_mm512_castps_si512(d), half[0]);
    __m512i high = _mm512_unpackhi_epi32(_mm512_castps_si512(d), half[0]);
    __m512i low1 = _mm512_unpacklo_epi32(half[1], _mm512_setzero_si512());
    __m512i high1 = _mm512_unpackhi_epi32(half[1], _mm512_setzero_si512());
    __m512i rest[4] = {_mm512_unpacklo_epi64(low, low1), _mm512_unpackhi_epi64(low, low1),
                       _mm512_unpacklo_epi64(high, high1), _mm512_unpackhi_epi64(high, high1)};
    for (int k = 0; k < 4; k++) {
        _mm_storeu_si128((__m128i *)(void *)&to[k].d, _mm512_castsi512_si128(rest[k]));
        _mm_storeu_si128((__m128i *)(void *)&to[4 + k].d, _mm512_extracti32x4_epi32(rest[k], 1));
        _mm_storeu_si128((__m128i *)(void *)&to[8 + k].d, _mm512_extracti32x4_epi32(rest[k], 2));
        _mm_storeu_si128((__m128i *)(void *)&to[12 + k].d, _mm512_extracti32x4_epi32(rest[k], 3));
    }
    return true;
}
#endif

INLINE void quantise_row(xblock *to, const float *x, int32_t n, int32_t off, int32_t n_sub,
                         bool mins)
{
    int32_t b = 0;
#ifdef __AVX512F__
    while (b + 16 <= n / 32 && quantise_sixteen(to + b, x + 32 * b, off, n_sub, mins))
        b += 16;
#endif
    for (; b < n / 32; b++)
        quantise_block(to + b, x + 32 * b, off, n_sub, mins);
}

static void k_quantise(xblock *to, const float *x, int32_t n, const pack_kind *kind)
{
    if (kind->mins)
        quantise_row(to, x, n, 0, kind->n_sub, true);
    else
        quantise_row(to, x, n, kind->off, kind->n_sub, false);
}

#endif
