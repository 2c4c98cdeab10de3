/* encode.c - f32 rows to the scalar formats and the blocks of 32.
 *
 * KV caches and published files follow these rules, so they must not be "improved": codes come from
 * the unrounded f32 scale and are decoded with its f16 rounding. Values that are not finite are
 * made finite first: a NaN has no code, and an infinite scale would spoil the whole block.
 */
#include "num/num_int.h"

void num_finite(const float *x, float *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = x[i] != x[i] ? 0 : fminf(fmaxf(x[i], -0x1.fffffep127f), 0x1.fffffep127f);
}

void num_take(const float *src, const float *importance, float *x, float *w, int n)
{
    for (int i = 0; i < n; i++) {
        float v = src[i] != src[i] ? 0 : clamp_float(src[i], -1e9f, 1e9f);
        x[i] = fabsf(v) < 1e-30f ? 0 : v;
        w[i] = importance ? importance[i] : 1;
    }
}

/* x if all of it is finite; else clean, with NaN as 0 and infinities as the largest finite value.
 */
static const float *finite_block(const float *x, float clean[32])
{
    float probe = 0; /* NaN as soon as one value is NaN or infinite */
    for (int i = 0; i < 32; i++)
        probe += x[i] * 0.0f;
    if (probe == 0)
        return x;
    num_finite(x, clean, 32);
    return clean;
}

/* The element of largest magnitude, with its sign; the first of equals. */
static float signed_max(const float *x)
{
    float amax = 0, v = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            v = x[i];
        }
    return v;
}

/* 1 / d, or 0 if that overflows: a block of so small a scale is all zeros. */
static float reciprocal(float d)
{
    float id = d != 0 ? 1.0f / d : 0;
    return fabsf(id) <= 0x1.fffffep127f ? id : 0;
}

static uint8_t code_of(float v, int top)
{
    return (uint8_t)(v > 0 ? v < (float)top ? (int)v : top : 0); /* truncates; NaN gives 0 */
}

NUM_ENCODE(f32)
{
    memcpy(dst, src, (size_t)n * 4);
}

NUM_ENCODE(f16)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = num_f32_to_f16(src[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}

NUM_ENCODE(bf16)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = num_f32_to_bf16(src[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}

/* The scale has the negated sign of the largest element, which then gets code 0 exactly: the end of
 * the range without a counterpart. */
NUM_ENCODE(q4_0)
{
    uint8_t *b = dst;
    float clean[32];
    for (; n > 0; n -= 32, b += 18, src += 32) {
        const float *x = finite_block(src, clean);
        float d = signed_max(x) / -8, id = reciprocal(d);
        st_f16(b, d);
        for (int j = 0; j < 16; j++)
            b[2 + j] =
                (uint8_t)(code_of(x[j] * id + 8.5f, 15) | code_of(x[j + 16] * id + 8.5f, 15) << 4);
    }
}

NUM_ENCODE(q5_0)
{
    uint8_t *b = dst;
    float clean[32];
    for (; n > 0; n -= 32, b += 22, src += 32) {
        const float *x = finite_block(src, clean);
        float d = signed_max(x) / -16, id = reciprocal(d);
        uint32_t qh = 0;
        st_f16(b, d);
        for (int j = 0; j < 16; j++) {
            uint32_t q0 = code_of(x[j] * id + 16.5f, 31), q1 = code_of(x[j + 16] * id + 16.5f, 31);
            b[6 + j] = (uint8_t)((q0 & 15) | (q1 & 15) << 4);
            qh |= q0 >> 4 << j | q1 >> 4 << (j + 16);
        }
        st_u32(b + 2, qh);
    }
}

static void min_max(const float *x, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < 32; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
}

NUM_ENCODE(q4_1)
{
    uint8_t *b = dst;
    float clean[32], lo, hi;
    for (; n > 0; n -= 32, b += 20, src += 32) {
        const float *x = finite_block(src, clean);
        min_max(x, &lo, &hi);
        float d = (hi - lo) / 15, id = reciprocal(d);
        st_f16(b, d);
        st_f16(b + 2, lo);
        for (int j = 0; j < 16; j++)
            b[4 + j] = (uint8_t)(code_of((x[j] - lo) * id + 0.5f, 15) |
                                 code_of((x[j + 16] - lo) * id + 0.5f, 15) << 4);
    }
}

NUM_ENCODE(q5_1)
{
    uint8_t *b = dst;
    float clean[32], lo, hi;
    for (; n > 0; n -= 32, b += 24, src += 32) {
        const float *x = finite_block(src, clean);
        min_max(x, &lo, &hi);
        float d = (hi - lo) / 31, id = reciprocal(d);
        uint32_t qh = 0;
        st_f16(b, d);
        st_f16(b + 2, lo);
        for (int j = 0; j < 16; j++) {
            uint32_t q0 = code_of((x[j] - lo) * id + 0.5f, 31);
            uint32_t q1 = code_of((x[j + 16] - lo) * id + 0.5f, 31);
            b[8 + j] = (uint8_t)((q0 & 15) | (q1 & 15) << 4);
            qh |= q0 >> 4 << j | q1 >> 4 << (j + 16);
        }
        st_u32(b + 4, qh);
    }
}

NUM_ENCODE(q8_0)
{
    uint8_t *b = dst;
    float clean[32];
    for (; n > 0; n -= 32, b += 34, src += 32) {
        const float *x = finite_block(src, clean);
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        float d = amax / 127, id = reciprocal(d);
        st_f16(b, d);
        for (int i = 0; i < 32; i++) {
            /* Half away from zero; adding 0.5 first would round 0.49999997 up. */
            float v = x[i] * id;
            int q = (int)v;
            float rest = v - (float)q;
            q += (rest >= 0.5f) - (rest <= -0.5f);
            b[2 + i] = (uint8_t)(int8_t)q;
        }
    }
}

/* The nearest level: how many of the 15 midpoints are not above v. */
static uint8_t iq4_code(float v)
{
    int q = 0;
    for (int i = 0; i < 15; i++)
        q += 2 * v >= (float)(num_iq4_level[i] + num_iq4_level[i + 1]);
    return (uint8_t)q;
}

NUM_ENCODE(iq4_nl)
{
    uint8_t *b = dst;
    float clean[32];
    for (; n > 0; n -= 32, b += 18, src += 32) {
        const float *x = finite_block(src, clean);
        float id = reciprocal(signed_max(x) / -127);
        uint8_t q[32];
        /* Least squares for the scale, each value weighted by its square. */
        float qx = 0, qq = 0;
        for (int i = 0; i < 32; i++) {
            q[i] = iq4_code(x[i] * id);
            float t = num_iq4_level[q[i]], w = x[i] * x[i];
            qx += w * t * x[i];
            qq += w * t * t;
        }
        float d = qq > 0 ? qx / qq : 0;
        if (!(fabsf(d) <= 65504.0f)) /* the sums overflowed: fall back to the first guess */
            d = signed_max(x) / -127;
        st_f16(b, id != 0 ? d : 0);
        for (int j = 0; j < 16; j++)
            b[2 + j] = (uint8_t)(q[j] | q[j + 16] << 4);
    }
}

/* Ties go to the smaller magnitude; there is no negative zero. */
static uint8_t mxfp4_code(float v)
{
    float a = fabsf(v);
    int q = (a > 0.5f) + (a > 1.5f) + (a > 2.5f) + (a > 3.5f) + (a > 5) + (a > 7) + (a > 10);
    return (uint8_t)(v < 0 && q ? q + 8 : q);
}

NUM_ENCODE(mxfp4)
{
    uint8_t *b = dst;
    float clean[32];
    for (; n > 0; n -= 32, b += 17, src += 32) {
        const float *x = finite_block(src, clean);
        float amax = fabsf(signed_max(x));
        int e = amax > 0 ? ilogbf(amax) - 2 + 127 : 0;
        e = e < 0 ? 0 : e;
        b[0] = (uint8_t)e;
        /* ldexp twice: 2^(128 - e) alone may be above the largest float. */
        float half = ldexpf(1, (128 - e) / 2), rest = ldexpf(1, 128 - e - (128 - e) / 2);
        for (int j = 0; j < 16; j++)
            b[1 + j] = (uint8_t)(mxfp4_code(x[j] * half * rest) |
                                 mxfp4_code(x[j + 16] * half * rest) << 4);
    }
}
