/* rows_int.h - rows of a key/value cache to floats, and values to the keys they were made of.
 *
 * Included by each matmul_*.c and compiled for its vectors. Attention over formats in blocks takes
 * a few keys at a time through here into a piece of floats that stays in the first-level cache, and
 * goes on as if they had been stored so: unpacking is paid once for all query heads of a group and
 * all rows of a tile. What comes out is bit for bit what num/decode.c says.
 */
#ifndef BACKEND_CPU_ROWS_INT_H
#define BACKEND_CPU_ROWS_INT_H

#include "backend/cpu/heads_int.h"
#include "backend/cpu/small_int.h"

#if VL >= 8 || defined(__ARM_NEON)

typedef uint8_t vb __attribute__((vector_size(16))); /* sixteen codes: half a block */

INLINE vf vf_set_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
#if VL >= 8
    return vf_set(_cvtsh_ss(h));
#else
    return vf_set(num_f16_to_f32(h));
#endif
}

INLINE vb vb_load(const uint8_t *p)
{
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE vb vb_set(uint8_t x)
{
    return (vb){0} + x;
}
INLINE vb vb_look_up(const int8_t *table, vb index)
{
#if VL >= 8
    return (vb)_mm_shuffle_epi8((__m128i)vb_load((const uint8_t *)table), (__m128i)index);
#else
    return (vb)vqtbl1q_u8((uint8x16_t)vb_load((const uint8_t *)table), (uint8x16_t)index);
#endif
}
/* 16 in byte j where bit j of h is set. */
INLINE vb vb_fifth_bits(const uint8_t *h)
{
    const vb bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint64_t spread[2] = {h[0] * 0x0101010101010101u, h[1] * 0x0101010101010101u};
    vb v;
    memcpy(&v, spread, sizeof v);
    return (vb)((v & bit) == bit) & 16;
}

/* to = codes * d (+ m): two roundings, as the decoder has them. */
INLINE void put_codes(float *to, vb code, vf d, vf m, bool has_m)
{
    vf x[16 / VL];
#if VL == 16
    x[0] = (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)code));
#elif VL == 8
    x[0] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32((__m128i)code));
    x[1] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128((__m128i)code, 8)));
#else
    int16x8_t low = vmovl_s8(vget_low_s8((int8x16_t)code));
    int16x8_t high = vmovl_s8(vget_high_s8((int8x16_t)code));
    x[0] = (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    x[1] = (vf)vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
    x[2] = (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    x[3] = (vf)vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
#endif
    for (int i = 0; i < 16 / VL; i++)
        vf_store(to + i * VL, has_m ? x[i] * d + m : x[i] * d);
}

/* One block of 32 in a format of codes and a scale. */
INLINE void unpack_codes(num_type t, const uint8_t *b, float *to)
{
    bool has_m = t == NUM_Q4_1 || t == NUM_Q5_1, fifth = t == NUM_Q5_0 || t == NUM_Q5_1;
    vf d = vf_set_f16(b), m = has_m ? vf_set_f16(b + 2) : vf_set(0);
    const uint8_t *h = b + (has_m ? 4 : 2), *q = h + (fifth ? 4 : 0);
    for (int half = 0; half < 2; half++) {
        vb c;
        if (t == NUM_Q8_0) {
            c = vb_load(q + 16 * half);
        } else {
            c = half ? vb_load(q) >> 4 : vb_load(q) & 15;
            if (fifth)
                c |= vb_fifth_bits(h + 2 * half);
            if (t == NUM_Q4_0 || t == NUM_Q5_0)
                c -= vb_set(t == NUM_Q4_0 ? 8 : 16);
            else if (t == NUM_IQ4_NL)
                c = vb_look_up(num_iq4_level, c);
        }
        put_codes(to + 16 * half, c, d, m, has_m);
    }
}

/* The levels of eight indices' worth of lanes. */
INLINE vf tq3_levels(vu index)
{
#if VL == 16
    const __m512 level = _mm512_castps256_ps512(_mm256_loadu_ps(num_tq3_level));
    return (vf)_mm512_permutexvar_ps((__m512i)index, level);
#elif VL == 8
    return (vf)_mm256_permutevar8x32_ps(_mm256_loadu_ps(num_tq3_level), (__m256i)index);
#else
    uint8x16x2_t level = {
        {vld1q_u8((const uint8_t *)num_tq3_level), vld1q_u8((const uint8_t *)num_tq3_level + 16)}};
    vu bytes = index * 0x04040404u + 0x03020100u; /* of a float, low to high */
    return (vf)vqtbl2q_u8(level, (uint8x16_t)bytes);
#endif
}

INLINE void unpack_tq3(const uint8_t *b, float *to)
{
    vf norm = vf_set_f16(b);
    vu lane;
    uint32_t low[2], high;
    for (uint32_t i = 0; i < VL; i++)
        lane[i] = i;
    memcpy(low, b + 2, 8);
    memcpy(&high, b + 10, 4);
    for (uint32_t i = 0; i < 32; i += VL) {
        vu word = (vu){0} + (low[i / 16] >> 2 * (i % 16)), sign = (vu){0} + (high >> i);
        vu index = ((word >> 2 * lane) & 3) | ((sign >> lane) & 1) << 2;
        vf_store(to + i, tq3_levels(index) * norm);
    }
}

INLINE void unpack_rows(num_type t, int32_t block_bytes, float *to, const char *rows,
                        size_t row_bytes, int32_t n, int32_t dim)
{
    for (int32_t r = 0; r < n; r++, rows += row_bytes, to += dim) {
        const uint8_t *b = (const uint8_t *)rows;
        for (int32_t i = 0; i < dim; i += 32, b += block_bytes)
            if (t == NUM_TQ3_0)
                unpack_tq3(b, to + i);
            else
                unpack_codes(t, b, to + i);
    }
}

static bool unpack_blocks(num_type t, float *to, const char *rows, size_t row_bytes, int32_t n,
                          int32_t dim)
{
    switch ((int)t) {
#define BLOCKS(type, bytes)                                                                        \
    case type:                                                                                     \
        unpack_rows(type, bytes, to, rows, row_bytes, n, dim);                                     \
        return true
        BLOCKS(NUM_Q8_0, 34);
        BLOCKS(NUM_Q5_1, 24);
        BLOCKS(NUM_Q5_0, 22);
        BLOCKS(NUM_Q4_1, 20);
        BLOCKS(NUM_Q4_0, 18);
        BLOCKS(NUM_IQ4_NL, 18);
        BLOCKS(NUM_TQ3_0, 14);
#undef BLOCKS
    default:
        return false;
    }
}

#else

static bool unpack_blocks(num_type t, float *to, const char *rows, size_t row_bytes, int32_t n,
                          int32_t dim)
{
    (void)t, (void)to, (void)rows, (void)row_bytes, (void)n, (void)dim;
    return false;
}

#endif

static void k_unpack(num_type t, float *to, const char *rows, size_t row_bytes, int32_t n,
                     int32_t dim)
{
    if (unpack_blocks(t, to, rows, row_bytes, n, dim))
        return;
    for (int32_t r = 0; r < n; r++)
        num_format_of(t)->decode(rows + (size_t)r * row_bytes, to + (size_t)r * (size_t)dim, dim);
}

/* x = RoPE(w * x): angles are those of the base and of the turn, added. */
static void k_make_key(float *x, const key_maker *m, int32_t dim)
{
    int32_t half = dim / 2, n = m->n_turning;
    const float *w = m->w, *bc = m->base, *bs = bc + n, *tc = m->turn, *ts = tc + n;
    float *y = x + half;
    const float *wy = w + half;
    EACH(n, vf c = AT(bc) * AT(tc) - AT(bs) * AT(ts); vf s = AT(bs) * AT(tc) + AT(bc) * AT(ts);
         vf a = AT(x) * AT(w); vf b = AT(y) * AT(wy); PUT(x, a * c - b * s); PUT(y, a * s + b * c));
    x += n, y += n, w += n, wy += n;
    EACH(half - n, PUT(x, AT(x) * AT(w)); PUT(y, AT(y) * AT(wy)));
}

#endif
