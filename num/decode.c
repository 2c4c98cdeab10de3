/* decode.c - stored rows to f32, one function per format.
 *
 * These are definitions: plain loops, one line of algebra each, that fast kernels are tested
 * against. Any bytes decode to something; only scales that are infinite or NaN in the file give
 * non-finite values. In all nibble formats of 32, byte j holds element j (low) and j + 16 (high).
 */
#include "num/num_int.h"

const int8_t num_iq4_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
/* The 8 magnitudes of MXFP4, doubled, with both signs. */
const int8_t num_fp4_level[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

NUM_DECODE(f32)
{
    memcpy(dst, src, (size_t)n * 4);
}

NUM_DECODE(f16)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        dst[i] = num_f16_to_f32(h);
    }
}

NUM_DECODE(bf16)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        dst[i] = num_bf16_to_f32(h);
    }
}

/* d, qs[16] */
NUM_DECODE(q4_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 18, dst += 32) {
        float d = ld_f16(b);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((b[2 + j] & 15) - 8) * d;
            dst[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
        }
    }
}

/* d, m, qs[16] */
NUM_DECODE(q4_1)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 20, dst += 32) {
        float d = ld_f16(b), m = ld_f16(b + 2);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(b[4 + j] & 15) * d + m;
            dst[j + 16] = (float)(b[4 + j] >> 4) * d + m;
        }
    }
}

/* d, qh (bit i is bit 4 of element i), qs[16] */
NUM_DECODE(q5_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 22, dst += 32) {
        float d = ld_f16(b);
        uint32_t qh = ld_u32(b + 2);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((int)((b[6 + j] & 15) | (qh >> j & 1) << 4) - 16) * d;
            dst[j + 16] = (float)((int)(b[6 + j] >> 4 | (qh >> (j + 16) & 1) << 4) - 16) * d;
        }
    }
}

/* d, m, qh, qs[16] */
NUM_DECODE(q5_1)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 24, dst += 32) {
        float d = ld_f16(b), m = ld_f16(b + 2);
        uint32_t qh = ld_u32(b + 4);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(int)((b[8 + j] & 15) | (qh >> j & 1) << 4) * d + m;
            dst[j + 16] = (float)(int)(b[8 + j] >> 4 | (qh >> (j + 16) & 1) << 4) * d + m;
        }
    }
}

/* d, i8 qs[32] */
NUM_DECODE(q8_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 34, dst += 32) {
        float d = ld_f16(b);
        for (int j = 0; j < 32; j++)
            dst[j] = (float)(int8_t)b[2 + j] * d;
    }
}

/* d, qs[16] */
NUM_DECODE(iq4_nl)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 18, dst += 32) {
        float d = ld_f16(b);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)num_iq4_level[b[2 + j] & 15] * d;
            dst[j + 16] = (float)num_iq4_level[b[2 + j] >> 4] * d;
        }
    }
}

/* e, qs[16] */
NUM_DECODE(mxfp4)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 32, b += 17, dst += 32) {
        float d = mxfp4_factor(b[0]);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)num_fp4_level[b[1 + j] & 15] * d;
            dst[j + 16] = (float)num_fp4_level[b[1 + j] >> 4] * d;
        }
    }
}

/* Four scales, one per 16, qs[32]; byte j of a sixteen holds element j (low) and j + 8 (high). */
NUM_DECODE(nvfp4)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 64, b += 36, dst += 64)
        for (int g = 0; g < 4; g++) {
            float d = nvfp4_factor(b[g]);
            for (int j = 0; j < 8; j++) {
                int q = b[4 + 8 * g + j];
                dst[16 * g + j] = (float)num_fp4_level[q & 15] * d;
                dst[16 * g + j + 8] = (float)num_fp4_level[q >> 4] * d;
            }
        }
}

/* d, a bit per element: +d or -d */
NUM_DECODE(q1_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 128, b += 18, dst += 128) {
        float d = ld_f16(b);
        for (int j = 0; j < 128; j++)
            dst[j] = b[2 + j / 8] >> j % 8 & 1 ? d : -d;
    }
}

/* d, two bits per element: -d, 0, d, 2d */
NUM_DECODE(q2_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= 64, b += 18, dst += 64) {
        float d = ld_f16(b);
        for (int j = 0; j < 64; j++)
            dst[j] = (float)((b[2 + j / 4] >> 2 * (j % 4) & 3) - 1) * d;
    }
}

/* qs[64], d: the pairs of bits of Q2_K, and one factor */
NUM_DECODE(tq2_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 66, dst += QK) {
        float d = ld_f16(b + 64);
        for (int j = 0; j < QK; j++)
            dst[j] = (float)((b[j / 128 * 32 + j % 32] >> 2 * (j % 128 / 32) & 3) - 1) * d;
    }
}

/* qs[48], qh[4], d. A byte has five digits of base 3 (qh: four), the most significant first. */
NUM_DECODE(tq1_0)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 54, dst += QK) {
        float d = ld_f16(b + 52);
        for (int j = 0; j < QK; j++)
            dst[j] = (float)(tq1_digit(b, j) - 1) * d;
    }
}

/* scales[16] (low nibble scale, high nibble minimum), qs[64], d, dmin. Two halves of 128; byte l of
 * a half holds two bits each of elements l, l + 32, l + 64, l + 96. */
NUM_DECODE(q2_k)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 84, dst += QK) {
        float d = ld_f16(b + 80), dmin = ld_f16(b + 82);
        for (int g = 0; g < 16; g++) { /* sub-blocks of 16 */
            const uint8_t *q = b + 16 + g / 8 * 32 + g % 2 * 16;
            int shift = g % 8 / 2 * 2;
            float s = d * (float)(b[g] & 15), m = dmin * (float)(b[g] >> 4);
            for (int l = 0; l < 16; l++)
                dst[16 * g + l] = s * (float)(q[l] >> shift & 3) - m;
        }
    }
}

/* Sixteen 6-bit scales in 12 bytes: nibbles in the first 8, two upper bits in the last 4. */
static void q3_scales(const uint8_t *p, int scale[16])
{
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? p[i] & 15 : p[i - 8] >> 4;
        scale[i] = (low | (p[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32;
    }
}

/* hmask[32], qs[64], scales[12], d. Two bits as in Q2_K; the third is bit 4n + k of hmask[l], and a
 * clear one subtracts 4. */
NUM_DECODE(q3_k)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 110, dst += QK) {
        float d = ld_f16(b + 108);
        int scale[16];
        q3_scales(b + 96, scale);
        for (int g = 0; g < 16; g++) {
            const uint8_t *q = b + 32 + g / 8 * 32 + g % 2 * 16, *h = b + g % 2 * 16;
            int shift = g % 8 / 2 * 2, hbit = g / 2;
            float s = d * (float)scale[g];
            for (int l = 0; l < 16; l++)
                dst[16 * g + l] = s * (float)((q[l] >> shift & 3) - 4 + (h[l] >> hbit & 1) * 4);
        }
    }
}

/* d, dmin, scales[12], qs[128]. Pair i of sub-blocks of 32 shares bytes 32i..: low, high nibble. */
NUM_DECODE(q4_k)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 144, dst += QK) {
        float d = ld_f16(b), dmin = ld_f16(b + 2);
        for (int j = 0; j < 8; j += 2) {
            const uint8_t *q = b + 16 + 16 * j;
            uint8_t sc0, mn0, sc1, mn1;
            k4_scale_min(b + 4, j, &sc0, &mn0);
            k4_scale_min(b + 4, j + 1, &sc1, &mn1);
            float s0 = d * (float)sc0, m0 = dmin * (float)mn0;
            float s1 = d * (float)sc1, m1 = dmin * (float)mn1;
            for (int l = 0; l < 32; l++) {
                dst[32 * j + l] = s0 * (float)(q[l] & 15) - m0;
                dst[32 * j + 32 + l] = s1 * (float)(q[l] >> 4) - m1;
            }
        }
    }
}

/* d, dmin, scales[12], qh[32], qs[128]: Q4_K with a fifth bit, bit j of qh[l] for sub-block j. */
NUM_DECODE(q5_k)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 176, dst += QK) {
        float d = ld_f16(b), dmin = ld_f16(b + 2);
        const uint8_t *h = b + 16;
        for (int j = 0; j < 8; j += 2) {
            const uint8_t *q = b + 48 + 16 * j;
            uint8_t sc0, mn0, sc1, mn1;
            k4_scale_min(b + 4, j, &sc0, &mn0);
            k4_scale_min(b + 4, j + 1, &sc1, &mn1);
            float s0 = d * (float)sc0, m0 = dmin * (float)mn0;
            float s1 = d * (float)sc1, m1 = dmin * (float)mn1;
            for (int l = 0; l < 32; l++) {
                dst[32 * j + l] = s0 * (float)((q[l] & 15) + (h[l] >> j & 1) * 16) - m0;
                dst[32 * j + 32 + l] = s1 * (float)((q[l] >> 4) + (h[l] >> (j + 1) & 1) * 16) - m1;
            }
        }
    }
}

/* ql[128], qh[64], i8 scales[16], d. A half of 128 takes its low nibbles from 64 bytes (element l
 * and l + 64 share one) and its upper two bits from 32 (element l + 32k has bits 2k). */
NUM_DECODE(q6_k)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 210, dst += QK) {
        float d = ld_f16(b + 208);
        for (int g = 0; g < 16; g++) { /* sub-blocks of 16: half g / 8, quarter k = g % 8 / 2 */
            int k = g % 8 / 2, at = g % 2 * 16;
            const uint8_t *l = b + g / 8 * 64 + k % 2 * 32 + at;
            const uint8_t *h = b + 128 + g / 8 * 32 + at;
            int low = k / 2 * 4, high = 2 * k;
            float s = d * (float)(int8_t)b[192 + g];
            for (int i = 0; i < 16; i++)
                dst[16 * g + i] = s * (float)(((l[i] >> low & 15) | (h[i] >> high & 3) << 4) - 32);
        }
    }
}

/* d, scales_h (u16), scales_l[4], qs[128] */
NUM_DECODE(iq4_xs)
{
    const uint8_t *b = src;
    for (; n > 0; n -= QK, b += 136, dst += QK) {
        float d = ld_f16(b);
        uint32_t high = ld_u16(b + 2);
        for (int g = 0; g < 8; g++) {
            int ls = (b[4 + g / 2] >> 4 * (g % 2) & 15) | (int)(high >> 2 * g & 3) << 4;
            float s = d * (float)(ls - 32);
            const uint8_t *q = b + 8 + 16 * g;
            for (int j = 0; j < 16; j++) {
                dst[32 * g + j] = s * (float)num_iq4_level[q[j] & 15];
                dst[32 * g + j + 16] = s * (float)num_iq4_level[q[j] >> 4];
            }
        }
    }
}
