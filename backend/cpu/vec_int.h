/* vec_int.h - a vector of floats, as wide as the instruction set this file is compiled for.
 *
 * The shared kernels (small_int.h, float_int.h, heads_int.h) use nothing else; each matmul_*.c
 * compiles them for its own instruction set. GCC's and clang's vector extensions give the
 * operators, this file the rest. No operation depends on the lane of a value, and tails are
 * computed at full width on a padded copy. So an element's result does not depend on its place.
 */
#ifndef BACKEND_CPU_VEC_INT_H
#define BACKEND_CPU_VEC_INT_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX2__)
#define VL 8
#else
#define VL 4
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

/* Unrolls a loop of constant length, so that its arrays live in registers. Under sanitizers
 * compilers refuse, and warn. */
#if defined(CARAT_DEBUG) || (defined(__GNUC__) && !defined(__OPTIMIZE__))
#define UNROLL(n)
#elif defined(__clang__)
#define UNROLL(n) _Pragma("unroll")
#else
#define UNROLL_TEXT(text) _Pragma(#text)
#define UNROLL(n) UNROLL_TEXT(GCC unroll n)
#endif

#define INLINE static inline __attribute__((always_inline, unused))
/* Each format of a kernel is a function of its own: a compiler takes longer than in proportion for
 * a long one. */
#define NOINLINE __attribute__((noinline))

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
/* The first n < VL of them; the other lanes are 0. */
INLINE vf vf_load_n(const float *p, int32_t n)
{
    vf v = {0};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}
INLINE void vf_store_n(float *p, vf v, int32_t n)
{
    memcpy(p, &v, (size_t)n * sizeof(float));
}
INLINE vf vf_set(float x)
{
#if VL == 16
    return (vf)_mm512_set1_ps(x);
#elif VL == 8
    return (vf)_mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}
/* Forces v into a register; the compiler would load it again for each use. */
INLINE void vf_keep(vf *v)
{
#if VL >= 8
    __asm__("" : "+v"(*v));
#else
    (void)v;
#endif
}
INLINE vi vi_set(int32_t x)
{
    return (vi)((vf)vf_set(0) != vf_set(0)) + x;
}

/* a * b + c, rounded once where the hardware can; in portable code rounded twice. */
INLINE vf vf_fma(vf a, vf b, vf c)
{
#if VL == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
INLINE vf vf_pick(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}
/* b where either is NaN */
INLINE vf vf_max(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_pick(a > b, a, b);
#endif
}
INLINE vf vf_min(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vf_pick(a < b, a, b);
#endif
}
INLINE vf vf_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}

/* The sum of all lanes, folded in halves: always the same tree. */
INLINE float vf_sum(vf v)
{
    float t[VL];
#if VL == 16
    __m256 h =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    _mm_storeu_ps(t, q);
#elif VL == 8
    __m128 q = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    _mm_storeu_ps(t, q);
#else
    vf_store(t, v);
#endif
    return (t[0] + t[2]) + (t[1] + t[3]);
}
/* s[i] is the sum of v[i], by vf_sum's tree, for VL vectors. With sixteen lanes they share the
 * folding: three instructions each instead of ten. */
INLINE vf vf_sums(const vf v[VL])
{
#if VL == 16
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) { /* v[i] below, v[i + 8] above: lanes l and l + 8 */
        __m512 x = (__m512)v[i], y = (__m512)v[i + 8];
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    for (int i = 0; i < 4; i++) /* quarters: a[i], a[i + 8], a[i + 4], a[i + 12] */
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                             _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    for (int i = 0; i < 2; i++) {
        __m512d x = _mm512_castps_pd(b[i]), y = _mm512_castps_pd(b[i + 2]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    /* a lane of four holds i, i + 2, then of c[1]; quarters hold +0, +8, +4, +12 */
    __m512 d =
        _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return (vf)_mm512_permutexvar_ps(order, d);
#else
    vf s;
    for (int i = 0; i < VL; i++)
        s[i] = vf_sum(v[i]);
    return s;
#endif
}
/* The largest lane; no lane may be a NaN. */
INLINE float vf_top(vf v)
{
#if VL == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float t[VL], m;
    vf_store(t, v);
    m = t[0];
    for (int i = 1; i < VL; i++)
        m = t[i] > m ? t[i] : m;
    return m;
#endif
}
/* Lane j of v[i] and lane i of v[j] change places. */
INLINE void vf_transpose(vf v[VL])
{
#if VL == 16
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* quarter L of b[i + k]: lane 4 L + k of v[i] .. v[i + 3] */
        for (int j = 0; j < 2; j++) {
            __m512d x = _mm512_castps_pd(a[i + j]), y = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    for (int k = 0; k < 4; k++) {
        __m512 low = _mm512_shuffle_f32x4(b[k], b[k + 4], 0x88);
        __m512 high = _mm512_shuffle_f32x4(b[k], b[k + 4], 0xdd);
        __m512 low1 = _mm512_shuffle_f32x4(b[k + 8], b[k + 12], 0x88);
        __m512 high1 = _mm512_shuffle_f32x4(b[k + 8], b[k + 12], 0xdd);
        v[k] = (vf)_mm512_shuffle_f32x4(low, low1, 0x88);
        v[k + 8] = (vf)_mm512_shuffle_f32x4(low, low1, 0xdd);
        v[k + 4] = (vf)_mm512_shuffle_f32x4(high, high1, 0x88);
        v[k + 12] = (vf)_mm512_shuffle_f32x4(high, high1, 0xdd);
    }
#elif VL == 8
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps((__m256)v[i], (__m256)v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps((__m256)v[i], (__m256)v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            __m256d x = _mm256_castps_pd(a[i + j]), y = _mm256_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
    for (int k = 0; k < 4; k++) {
        v[k] = (vf)_mm256_permute2f128_ps(b[k], b[k + 4], 0x20);
        v[k + 4] = (vf)_mm256_permute2f128_ps(b[k], b[k + 4], 0x31);
    }
#else
    float t[VL][VL];
    for (int i = 0; i < VL; i++)
        vf_store(t[i], v[i]);
    for (int i = 0; i < VL; i++)
        v[i] = (vf){t[0][i], t[1][i], t[2][i], t[3][i]};
#endif
}

/* ---- Half precision in memory ------------------------------------------------------------ */

INLINE vf vf_load_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

INLINE vf vf_of_f16(vh h)
{
#if VL == 16
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif VL == 8
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    /* Exponent and fraction are shifted up, and one product corrects the bias, for subnormals too.
     * Infinities and NaN get the top exponent separately. */
    vu u = __builtin_convertvector(h, vu);
    vu special = (vu)((u & 0x7c00) == 0x7c00) & 0x7f800000u;
    vf f = (vf)((u & 0x7fff) << 13) * 0x1p112f;
    return (vf)((vu)f | special | (u & 0x8000) << 16);
#endif
}
INLINE vf vf_load_f16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
    return vf_of_f16(h);
}

/* ---- Functions --------------------------------------------------------------------------- */

/* e^x. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial of degree 6 (error below 1e-8);
 * 2^n in two factors, so that infinite results come out as such. Below e^-87 the result is 0: a
 * subnormal one would be of no use to a sum, and costs Intel's processors a hundred cycles. */
INLINE vf vf_exp(vf x)
{
    const float magic = 0x1.8p23f; /* adding it leaves round(x) in the low bits */
    vf in = vf_max(vf_set(-87.0f), vf_min(vf_set(89.0f), x)); /* NaN passes: it is second */
    vf t = vf_fma(in, vf_set(0x1.715476p0f), vf_set(magic));
    vf n = t - vf_set(magic);
    vf r = vf_fma(n, vf_set(-0x1.62e4p-1f), in);
    r = vf_fma(n, vf_set(-0x1.7f7d1cp-20f), r);
    vf p = vf_set(0.00139465265f);
    p = vf_fma(p, r, vf_set(0.00836921576f));
    p = vf_fma(p, r, vf_set(0.0416662619f));
    p = vf_fma(p, r, vf_set(0.166665152f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p * r, r, r) + vf_set(1.0f);
#if VL == 16
    __mmask16 hidden = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    return (vf)_mm512_maskz_scalef_ps(_mm512_knot(hidden), (__m512)p, (__m512)n);
#else
    vi k = (vi)t - (vi)vf_set(magic);
    vi half = k >> 1;
    p = p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
    return vf_pick(x < vf_set(-87.0f), vf_set(0.0f), p);
#endif
}

/* gelu by tanh: 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
INLINE vf vf_gelu(vf x)
{
    vf u = x * x;
    u = vf_fma(u * x, vf_set(0.044715f), x);
    return x / (vf_set(1.0f) + vf_exp(u * vf_set(-2.0f * 0.79788456080286536f)));
}

/* 1 / (1 + e^-x) */
INLINE vf vf_sigmoid(vf x)
{
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x));
}

/* x / (1 + e^-x) */
INLINE vf vf_silu(vf x)
{
    return x / (vf_set(1.0f) + vf_exp(-x));
}

/* tanh z = z + z^3 P(z^2) below 0.5, where 1 - e^-2z would lose digits; above, from e^-2|z|. */
INLINE vf vf_tanh(vf z)
{
    vf a = vf_abs(z), s = z * z;
    vf e = vf_exp(a * vf_set(-2.0f));
    vf big = (vf_set(1.0f) - e) / (vf_set(1.0f) + e);
    big = (vf)((vi)big | ((vi)z & (int32_t)0x80000000));
    vf p = vf_set(-0.00694699727f);
    p = vf_fma(p, s, vf_set(0.0214727177f));
    p = vf_fma(p, s, vf_set(-0.0539337886f));
    p = vf_fma(p, s, vf_set(0.133332274f));
    p = vf_fma(p, s, vf_set(-0.333333328f));
    return vf_pick(a < vf_set(0.5f), vf_fma(p * s, z, z), big);
}

#endif
