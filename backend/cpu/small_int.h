/* small_int.h - kernels over one row: norms, activations, soft cap, soft max, rotation.
 *
 * Included by each matmul_*.c and compiled for its vectors (vec_int.h). Each streams a few
 * kilobytes. An element's result does not depend on its place.
 */
#ifndef BACKEND_CPU_SMALL_INT_H
#define BACKEND_CPU_SMALL_INT_H

#include "backend/cpu/kernels_int.h"
#include "backend/cpu/vec_int.h"
#include "backend/swiglu.h"

#include <math.h>

/* Runs `body` (which reads vectors with AT(p) and writes one with PUT(p, v)) over n elements. */
#define EACH(n, body)                                                                              \
    do {                                                                                           \
        int32_t i_ = 0;                                                                            \
        for (; i_ + VL <= (n); i_ += VL) {                                                         \
            const int32_t left_ = VL;                                                              \
            body;                                                                                  \
        }                                                                                          \
        if (i_ < (n)) {                                                                            \
            const int32_t left_ = (n)-i_;                                                          \
            body;                                                                                  \
        }                                                                                          \
    } while (0)
#define AT(p) (left_ == VL ? vf_load((p) + i_) : vf_load_n((p) + i_, left_))
#define PUT(p, v)                                                                                  \
    do {                                                                                           \
        vf v_ = (v);                                                                               \
        if (left_ == VL)                                                                           \
            vf_store((p) + i_, v_);                                                                \
        else                                                                                       \
            vf_store_n((p) + i_, v_, left_);                                                       \
    } while (0)

/* (mean(x^2) + eps)^-1/2. Four sums side by side, joined pairwise. */
static float inverse_rms(const float *x, int32_t n, float eps)
{
    vf s[4] = {{0}, {0}, {0}, {0}};
    int32_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(x + i + j * VL);
            s[j] = vf_fma(v, v, s[j]);
        }
    for (; i < n; i += VL) {
        vf v = n - i >= VL ? vf_load(x + i) : vf_load_n(x + i, n - i);
        s[0] = vf_fma(v, v, s[0]);
    }
    float sum = vf_sum((s[0] + s[1]) + (s[2] + s[3]));
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static void k_rms_norm(float *y, const float *x, const float *w, int32_t n, float eps)
{
    vf c = vf_set(inverse_rms(x, n, eps));
    if (w)
        EACH(n, PUT(y, AT(x) * c * AT(w)));
    else
        EACH(n, PUT(y, AT(x) * c));
}

static void k_add_rms_norm(float *x, const float *y, const float *w, int32_t n, float eps)
{
    vf c = vf_set(inverse_rms(y, n, eps));
    if (w)
        EACH(n, PUT(x, AT(x) + AT(y) * c * AT(w)));
    else
        EACH(n, PUT(x, AT(x) + AT(y) * c));
}

/* Lanes past the end add nothing to the sum of squares. */
static void k_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n,
                         float eps)
{
    vf s[4] = {{0}, {0}, {0}, {0}}, q[4] = {{0}, {0}, {0}, {0}};
    int32_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int j = 0; j < 4; j++)
            s[j] += vf_load(x + i + j * VL);
    for (; i < n; i += VL)
        s[0] += n - i >= VL ? vf_load(x + i) : vf_load_n(x + i, n - i);
    vf mean = vf_set(vf_sum((s[0] + s[1]) + (s[2] + s[3])) / (float)n);
    for (i = 0; i + 4 * VL <= n; i += 4 * VL)
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(x + i + j * VL) - mean;
            q[j] = vf_fma(v, v, q[j]);
        }
    for (; i < n; i += VL) {
        float d[VL] = {0};
        vf_store_n(d, vf_load_n(x + i, n - i < VL ? n - i : VL) - mean, n - i < VL ? n - i : VL);
        vf v = vf_load(d);
        q[0] = vf_fma(v, v, q[0]);
    }
    float square = vf_sum((q[0] + q[1]) + (q[2] + q[3]));
    vf c = vf_set(1.0f / sqrtf(square / (float)n + eps));
    if (b)
        EACH(n, PUT(y, (AT(x) - mean) * c * AT(w) + AT(b)));
    else
        EACH(n, PUT(y, (AT(x) - mean) * c * AT(w)));
}

static void k_gelu_mul(float *y, const float *a, const float *b, int32_t n)
{
    EACH(n, PUT(y, vf_gelu(AT(a)) * AT(b)));
}

/* One by one: models apply it to a thousandth of what they compute. */
static void k_gelu_erf_mul(float *y, const float *a, const float *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = 0.5f * a[i] * erfcf(-0.70710678f * a[i]) * b[i];
}

static void k_silu_mul(float *y, const float *a, const float *b, int32_t n)
{
    EACH(n, PUT(y, vf_silu(AT(a)) * AT(b)));
}

static void k_sigmoid_mul(float *y, const float *a, const float *b, int32_t n)
{
    EACH(n, PUT(y, vf_sigmoid(AT(a)) * AT(b)));
}

static void k_swiglu_cut(float *y, const float *a, const float *b, int32_t n)
{
    vf cut = vf_set(SWIGLU_CUT), slope = vf_set(SWIGLU_SLOPE), one = vf_set(1);
    EACH(n, vf g = vf_min(cut, AT(a)); vf u = vf_max(-cut, vf_min(cut, AT(b)));
         PUT(y, g * vf_sigmoid(g * slope) * (u + one)));
}

/* One by one: models apply it to a value per head. */
static void k_softplus_mul(float *y, const float *a, const float *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = (fmaxf(a[i], 0.0f) + log1pf(expf(-fabsf(a[i])))) * b[i];
}

static void k_add(float *y, const float *a, const float *b, int32_t n)
{
    EACH(n, PUT(y, AT(a) + AT(b)));
}

static void k_scale(float *x, float c, int32_t n)
{
    EACH(n, PUT(x, AT(x) * vf_set(c)));
}

static void k_softcap(float *x, float cap, int32_t n)
{
    EACH(n, PUT(x, vf_set(cap) * vf_tanh(AT(x) / vf_set(cap))));
}

/* The same bits as num's encoder, for a NaN too. */
static void k_to_f16(uint16_t *to, const float *x, int32_t n)
{
    int32_t i = 0;
#if VL == 16
    for (; i + VL <= n; i += VL)
        _mm256_storeu_si256((__m256i *)(void *)(to + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#elif VL == 8
    for (; i + VL <= n; i += VL)
        _mm_storeu_si128((__m128i *)(void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        to[i] = num_f32_to_f16(x[i]);
}

/* x[i..], with -inf past the end. */
INLINE vf or_hidden(const float *x, int32_t left)
{
    vf v = vf_set(-INFINITY);
    if (left >= VL)
        return vf_load(x);
    memcpy(&v, x, (size_t)left * sizeof(float));
    return v;
}

static float k_softmax(float *x, int32_t n, float *top)
{
    vf m = vf_set(-INFINITY), total = {0};
    for (int32_t i = 0; i < n; i += VL)
        m = vf_max(or_hidden(x + i, n - i), m);
    *top = vf_top(m);
    vf ref = vf_set(*top == -INFINITY ? 0.0f : *top);
    for (int32_t i = 0; i < n; i += VL) {
        vf v = vf_exp(or_hidden(x + i, n - i) - ref);
        if (n - i >= VL)
            vf_store(x + i, v);
        else
            vf_store_n(x + i, v, n - i);
        total += v;
    }
    return vf_sum(total);
}

/* Sine and cosine of pos * inv_freq in double: at position 262144 an f32 angle is off by 0.02.
 * The angle less n pi/2 (pi/2 in three parts, so that n times the first two is exact for
 * n < 2^20), then Taylor polynomials to r^13 and r^12, within 1e-10 on |r| <= pi/4. */
static void k_sincos(float *c, float *s, const float *inv_freq, int32_t n, int32_t pos)
{
    const double magic = 0x1.8p52;
    for (int32_t i = 0; i < n; i++) {
        double a = (double)pos * (double)inv_freq[i];
        double t = a * 0.63661977236758134308 + magic;
        double k = t - magic;
        double r = ((a - k * 0x1.921fb544p0) - k * 0x1.0b4611a6p-34) - k * 0x1.3198a2e037073p-69;
        uint64_t bits;
        memcpy(&bits, &t, 8);
        double z = r * r;
        double sn = -1.0 / 39916800 + z * (1.0 / 6227020800);
        sn = 1.0 / 362880 + z * sn;
        sn = -1.0 / 5040 + z * sn;
        sn = 1.0 / 120 + z * sn;
        sn = -1.0 / 6 + z * sn;
        sn = r + r * z * sn;
        double cn = -1.0 / 3628800 + z * (1.0 / 479001600);
        cn = 1.0 / 40320 + z * cn;
        cn = -1.0 / 720 + z * cn;
        cn = 1.0 / 24 + z * cn;
        cn = -0.5 + z * cn;
        cn = 1.0 + z * cn;
        /* quadrant: 0 (c, s), 1 (-s, c), 2 (-c, -s), 3 (s, -c) */
        double ss = bits & 1 ? cn : sn, cc = bits & 1 ? sn : cn;
        s[i] = (float)(bits & 2 ? -ss : ss);
        c[i] = (float)((bits + 1) & 2 ? -cc : cc);
    }
}

static void k_rotate(float *x, const float *c, const float *s, int32_t n_pairs)
{
    float *y = x + n_pairs;
    EACH(n_pairs, vf a = AT(x); vf b = AT(y); vf cv = AT(c); vf sv = AT(s); PUT(x, a * cv - b * sv);
         PUT(y, a * sv + b * cv));
}

#endif
