/* num_int.h - what the decoders and encoders share: field access, tables, the list of functions. */
#ifndef NUM_NUM_INT_H
#define NUM_NUM_INT_H

#include "num/num.h"

#include <math.h>

enum { QK = 256 }; /* elements of a super-block */

/* to = x with NaN as 0 and the infinities as the largest finite. */
void num_finite(const float *x, float *to, int n);

/* n finite values of moderate size, and their importance, 1 if there is none. A scale below 1e-30
 * could overflow as a reciprocal and one above 1e9 cannot be stored, so anything outside is
 * squeezed. */
void num_take(const float *src, const float *importance, float *x, float *w, int n);

/* Fields are little-endian and unaligned. */
static inline uint16_t ld_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t ld_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline float ld_f16(const uint8_t *p)
{
    return num_f16_to_f32(ld_u16(p));
}
static inline void st_u16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void st_u32(uint8_t *p, uint32_t v)
{
    st_u16(p, v);
    st_u16(p + 2, v >> 16);
}
static inline float clamp_float(float v, float lo, float hi)
{
    return v > lo ? v < hi ? v : hi : lo; /* NaN gives lo */
}
/* Stores v as f16 and returns that. f16 stops at 65504; a larger v saturates rather than become
 * infinite. */
static inline float st_f16(uint8_t *p, float v)
{
    uint16_t h = num_f32_to_f16(clamp_float(v, -65504, 65504));
    st_u16(p, h);
    return num_f16_to_f32(h);
}
/* 2^(e - 128), the factor of an MXFP4 block. The first two are f32 subnormals. */
static inline float mxfp4_factor(uint8_t e)
{
    return num_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}
/* Half the value of an unsigned E4M3 number: levels of NVFP4 are doubled. Its top bit is ignored,
 * and 0x7f, a NaN, counts as 0. The bits, shifted, are an f16 with a bias of 15 instead of 7. */
static inline float nvfp4_factor(uint8_t e)
{
    return e == 0x7f ? 0 : num_f16_to_f32((uint16_t)((e & 0x7f) << 7)) * 128;
}
/* Digit j of the block of TQ1_0 at b. Its bytes are fractions of 256: multiplied by 3^k they lose k
 * digits, and the next one is what 3 times the rest carries. */
static inline int tq1_digit(const uint8_t *b, int j)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    int at = j < 160 ? j % 32 : j < 240 ? 32 + (j - 160) % 16 : 48 + (j - 240) % 4;
    int k = j < 160 ? j / 32 : j < 240 ? (j - 160) / 16 : (j - 240) / 4;
    return (uint8_t)(b[at] * power[k]) * 3 >> 8;
}
/* Scale and minimum j of the twelve packed bytes of Q4_K and Q5_K. */
static inline void k4_scale_min(const uint8_t *b, int j, uint8_t *sc, uint8_t *mn)
{
    if (j < 4) {
        *sc = b[j] & 63;
        *mn = b[j + 4] & 63;
    } else {
        *sc = (uint8_t)((b[j + 4] & 15) | b[j - 4] >> 6 << 4);
        *mn = (uint8_t)(b[j + 4] >> 4 | b[j] >> 6 << 4);
    }
}

#define NUM_DECODE(name) void num_decode_##name(const void *src, float *dst, int64_t n)
#define NUM_ENCODE(name) void num_encode_##name(const float *src, void *dst, int64_t n)
#define NUM_WEIGH(name)                                                                            \
    void num_weigh_##name(const float *src, const float *importance, void *dst, int64_t n)
/* The encoder of a format that has NUM_WEIGH. */
#define NUM_PLAIN(name)                                                                            \
    NUM_ENCODE(name)                                                                               \
    {                                                                                              \
        num_weigh_##name(src, NULL, dst, n);                                                       \
    }

NUM_DECODE(f32);
NUM_DECODE(f16);
NUM_DECODE(bf16);
NUM_DECODE(q4_0);
NUM_DECODE(q4_1);
NUM_DECODE(q5_0);
NUM_DECODE(q5_1);
NUM_DECODE(q8_0);
NUM_DECODE(q2_k);
NUM_DECODE(q3_k);
NUM_DECODE(q4_k);
NUM_DECODE(q5_k);
NUM_DECODE(q6_k);
NUM_DECODE(iq4_nl);
NUM_DECODE(iq4_xs);
NUM_DECODE(mxfp4);
NUM_DECODE(tq3_0);
NUM_DECODE(nvfp4);
NUM_DECODE(q1_0);
NUM_DECODE(q2_0);
NUM_DECODE(tq1_0);
NUM_DECODE(tq2_0);
NUM_DECODE(iq1_s);
NUM_DECODE(iq1_m);
NUM_DECODE(iq2_xxs);
NUM_DECODE(iq2_xs);
NUM_DECODE(iq2_s);
NUM_DECODE(iq3_xxs);
NUM_DECODE(iq3_s);

NUM_ENCODE(f32);
NUM_ENCODE(f16);
NUM_ENCODE(bf16);
NUM_ENCODE(q4_0);
NUM_ENCODE(q4_1);
NUM_ENCODE(q5_0);
NUM_ENCODE(q5_1);
NUM_ENCODE(q8_0);
NUM_ENCODE(iq4_nl);
NUM_ENCODE(mxfp4);
NUM_ENCODE(tq3_0);
NUM_ENCODE(q2_k);
NUM_ENCODE(q3_k);
NUM_ENCODE(q4_k);
NUM_ENCODE(q5_k);
NUM_ENCODE(q6_k);
NUM_ENCODE(iq4_xs);
NUM_ENCODE(q1_0);
NUM_ENCODE(q2_0);
NUM_ENCODE(tq1_0);
NUM_ENCODE(tq2_0);

NUM_WEIGH(q1_0);
NUM_WEIGH(q2_0);
NUM_WEIGH(tq1_0);
NUM_WEIGH(tq2_0);
NUM_WEIGH(nvfp4);
NUM_WEIGH(q2_k);
NUM_WEIGH(q3_k);
NUM_WEIGH(q4_k);
NUM_WEIGH(q5_k);
NUM_WEIGH(q6_k);
NUM_WEIGH(iq4_xs);
NUM_WEIGH(iq2_xxs);
NUM_WEIGH(iq2_xs);
NUM_WEIGH(iq2_s);
NUM_WEIGH(iq3_xxs);
NUM_WEIGH(iq3_s);
NUM_WEIGH(iq1_s);
NUM_WEIGH(iq1_m);

#endif
