/* blocks_int.h - decodes cached rows in blocks of 32, a vector of elements at a time.
 *
 * Included by heads_int.h and compiled for every instruction set. Results are bit-identical to
 * num/decode.c: codes become floats exactly and take scale and minimum in as many roundings. AVX2
 * and AVX-512 decode into the products' registers (load_block). NEON vectors are short beside a
 * block, so NEON unpacks whole blocks into memory. Portable code calls num.
 */
#ifndef BACKEND_CPU_BLOCKS_INT_H
#define BACKEND_CPU_BLOCKS_INT_H

#include "backend/cpu/kernels_int.h"
#include "backend/cpu/vec_int.h"

INLINE bool is_blocks(num_type t)
{
    return t != NUM_F32 && t != NUM_F16 && t != NUM_BF16;
}

INLINE size_t block_bytes(num_type t)
{
    return t == NUM_Q8_0                      ? 34
           : t == NUM_Q5_1                    ? 24
           : t == NUM_Q5_0                    ? 22
           : t == NUM_Q4_1                    ? 20
           : t == NUM_Q4_0 || t == NUM_IQ4_NL ? 18
                                              : 14;
}

#if VL >= 8

typedef uint8_t vb __attribute__((vector_size(16))); /* codes; with 8 lanes, in the lower half */

INLINE vb vb_set(uint8_t x)
{
    return (vb){0} + x;
}
INLINE vb vb_load(const uint8_t *p)
{
    vb v = {0};
    memcpy(&v, p, VL);
    return v;
}
/* c with 16 added in byte j where bit j of h is set. */
INLINE vb vb_fifth_bits(vb c, uint32_t h)
{
#if VL == 16
    return (vb)_mm_mask_add_epi8((__m128i)c, (__mmask16)h, (__m128i)c, _mm_set1_epi8(16));
#else
    const vb bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    vb v = (vb)_mm_shuffle_epi8(_mm_cvtsi32_si128((int)h), spread);
    return c | ((vb)((v & bit) == bit) & 16);
#endif
}
INLINE vf vf_set_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return vf_set(_cvtsh_ss(h));
}
INLINE vf vf_of_codes(vb c)
{
#if VL == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)c));
#else
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32((__m128i)c));
#endif
}

INLINE vf load_tq3(const uint8_t *b, int at)
{
    uint32_t low, high;
    memcpy(&low, b + 2 + at / 16 * 4, 4);
    memcpy(&high, b + 10, 4);
    low >>= 2 * (at % 16);
    high >>= at;
#if VL == 16
    const __m512i lane =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i index = _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi32((int)low), lane),
                                     _mm512_set1_epi32(3));
    index = _mm512_mask_or_epi32(index, (__mmask16)high, index, _mm512_set1_epi32(4));
    const __m512 level = _mm512_castps256_ps512(_mm256_loadu_ps(num_tq3_level));
    return (vf)_mm512_permutexvar_ps(index, level) * vf_set_f16(b);
#else
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i two = _mm256_srlv_epi32(_mm256_set1_epi32((int)low), _mm256_add_epi32(lane, lane));
    __m256i top = _mm256_srlv_epi32(_mm256_set1_epi32((int)high), lane);
    __m256i index =
        _mm256_or_si256(_mm256_and_si256(two, _mm256_set1_epi32(3)),
                        _mm256_slli_epi32(_mm256_and_si256(top, _mm256_set1_epi32(1)), 2));
    return (vf)_mm256_permutevar8x32_ps(_mm256_loadu_ps(num_tq3_level), index) * vf_set_f16(b);
#endif
}

/* Elements i .. i + VL - 1 of a row; i is a multiple of VL. */
INLINE vf load_block(num_type t, const char *row, int32_t i)
{
    const uint8_t *b = (const uint8_t *)row + (size_t)(i / 32) * block_bytes(t);
    int at = i % 32;
    if (t == NUM_TQ3_0)
        return load_tq3(b, at);
    bool has_m = t == NUM_Q4_1 || t == NUM_Q5_1, fifth = t == NUM_Q5_0 || t == NUM_Q5_1;
    const uint8_t *h = b + (has_m ? 4 : 2), *q = h + (fifth ? 4 : 0);
    vb c;
    if (t == NUM_Q8_0) {
        c = vb_load(q + at);
    } else {
        c = vb_load(q + at % 16);
        c = at < 16 ? c & 15 : c >> 4;
    }
    if (fifth) {
        uint32_t bits;
        memcpy(&bits, h, 4);
        c = vb_fifth_bits(c, bits >> at);
    }
    if (t == NUM_Q4_0 || t == NUM_Q5_0)
        c -= vb_set(t == NUM_Q4_0 ? 8 : 16);
    if (t == NUM_IQ4_NL)
        c = (vb)_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)num_iq4_level), (__m128i)c);
    vf x = vf_of_codes(c) * vf_set_f16(b);
    return has_m ? x + vf_set_f16(b + 2) : x;
}

#elif defined(__ARM_NEON)

/* Sixteen elements: codes * d (+ m). */
INLINE void put_codes(float *to, uint8x16_t code, float d, float m, bool has_m)
{
    int8x16_t c = vreinterpretq_s8_u8(code);
    int16x8_t half[2] = {vmovl_s8(vget_low_s8(c)), vmovl_s8(vget_high_s8(c))};
    for (int i = 0; i < 2; i++) {
        vf x = (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i]))) * d;
        vf y = (vf)vcvtq_f32_s32(vmovl_s16(vget_high_s16(half[i]))) * d;
        vf_store(to + 8 * i, has_m ? x + m : x);
        vf_store(to + 8 * i + 4, has_m ? y + m : y);
    }
}

INLINE float field_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return num_f16_to_f32(h);
}

INLINE uint8x16_t fifth_bits(const uint8_t *h)
{
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t v = vcombine_u8(vdup_n_u8(h[0]), vdup_n_u8(h[1])), bit = vld1q_u8(bits);
    return vandq_u8(vceqq_u8(vandq_u8(v, bit), bit), vdupq_n_u8(16));
}

INLINE void unpack_tq3(const uint8_t *b, float *to)
{
    const uint8x16x2_t level = {
        {vld1q_u8((const uint8_t *)num_tq3_level), vld1q_u8((const uint8_t *)num_tq3_level + 16)}};
    float norm = field_f16(b);
    for (int i = 0; i < 32; i += 4) {
        uint32_t low = b[2 + i / 4], high = (uint32_t)b[10 + i / 8] >> i % 8;
        vu index;
        for (uint32_t j = 0; j < 4; j++)
            index[j] = (low >> 2 * j & 3) | (high >> j & 1) << 2;
        vu bytes = index * 0x04040404u + 0x03020100u; /* of a float, low to high */
        vf_store(to + i, (vf)vqtbl2q_u8(level, (uint8x16_t)bytes) * norm);
    }
}

INLINE void unpack_block(num_type t, const uint8_t *b, float *to)
{
    if (t == NUM_TQ3_0) {
        unpack_tq3(b, to);
        return;
    }
    bool has_m = t == NUM_Q4_1 || t == NUM_Q5_1, fifth = t == NUM_Q5_0 || t == NUM_Q5_1;
    float d = field_f16(b), m = has_m ? field_f16(b + 2) : 0;
    const uint8_t *h = b + (has_m ? 4 : 2), *q = h + (fifth ? 4 : 0);
    for (int half = 0; half < 2; half++) {
        uint8x16_t c = vld1q_u8(q + (t == NUM_Q8_0 ? 16 * half : 0));
        if (t != NUM_Q8_0)
            c = half ? vshrq_n_u8(c, 4) : vandq_u8(c, vdupq_n_u8(15));
        if (fifth)
            c = vorrq_u8(c, fifth_bits(h + 2 * half));
        if (t == NUM_Q4_0 || t == NUM_Q5_0)
            c = vsubq_u8(c, vdupq_n_u8(t == NUM_Q4_0 ? 8 : 16));
        if (t == NUM_IQ4_NL)
            c = vqtbl1q_u8(vld1q_u8((const uint8_t *)num_iq4_level), c);
        put_codes(to + 16 * half, c, d, m, has_m);
    }
}

#endif

#endif
