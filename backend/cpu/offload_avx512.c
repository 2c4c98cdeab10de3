/* offload_avx512.c - the kernels of offload.h for AVX-512 with VNNI.
 *
 *     register   4 outputs x 4 words of 4 codes; four of them are a group's half
 *     vpdpbusd   the products of such words with a row's, which all outputs share
 */
#include "backend/cpu/offload.h"
#include "backend/cpu/vec_int.h"

typedef struct group_codes {
    __m512i lo[4], hi[4];
} group_codes;

INLINE void take_codes(const int kind, group_codes *c, const uint8_t *codes, const uint8_t *high,
                       int i);
INLINE void group_dots(const int kind, const group_codes *c, const int8_t *x, offload_scale s,
                       int32_t *i0, int32_t *i1);

#include "backend/cpu/offload_int.h"

INLINE __m512i load(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* Bits w, or 2w and 2w + 1, of each byte of h, shifted to bit 4, for the words w of a half. */
INLINE __m512i high_bits(__m512i h, __m512i shift, int mask)
{
    return _mm512_slli_epi32(
        _mm512_and_si512(_mm512_srlv_epi32(h, shift), _mm512_set1_epi8((char)mask)), 4);
}

INLINE void take_codes(const int kind, group_codes *c, const uint8_t *codes, const uint8_t *high,
                       int i)
{
    const __m512i low = _mm512_set1_epi8(15), word = _mm512_set4_epi32(3, 2, 1, 0);
    UNROLL(4)
    for (int k = 0; k < 4; k++) {
        __m512i v = load(codes + 64 * k);
        if (IS_BYTES(kind)) { /* 128 more than the code, which group_dots takes off */
            const __m512i sign = _mm512_set1_epi8((char)0x80);
            c->lo[k] = _mm512_xor_si512(v, sign);
            c->hi[k] = _mm512_xor_si512(load(codes + 256 + 64 * k), sign);
            continue;
        }
        c->lo[k] = _mm512_and_si512(v, low);
        c->hi[k] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        if (IS_LEVELS(kind)) {
            const __m512i sign = _mm512_set1_epi8((char)0x80);
            const __m512i level = _mm512_xor_si512(
                _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)levels_of(kind))), sign);
            __m512 a = _mm512_castsi512_ps(_mm512_unpacklo_epi8(c->lo[k], c->hi[k]));
            __m512 b = _mm512_castsi512_ps(_mm512_unpackhi_epi8(c->lo[k], c->hi[k]));
            c->lo[k] =
                _mm512_shuffle_epi8(level, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)));
            c->hi[k] =
                _mm512_shuffle_epi8(level, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
        }
        if (IS_FIVE(kind)) {
            __m512i h = _mm512_castps_si512(_mm512_permutevar_ps(
                _mm512_castsi512_ps(load(high + 64 * k)), _mm512_set1_epi32(i)));
            c->lo[k] = _mm512_or_si512(c->lo[k], high_bits(h, word, 1));
            c->hi[k] = _mm512_or_si512(
                c->hi[k], high_bits(h, _mm512_add_epi32(word, _mm512_set1_epi32(4)), 1));
        }
        if (kind == OFFLOAD_Q6_K) {
            const __m512i pairs =
                _mm512_add_epi64(_mm512_set_epi64(12, 12, 8, 8, 4, 4, 0, 0), _mm512_set1_epi64(i));
            __m512i h =
                _mm512_permutex2var_epi64(load(high + 128 * k), pairs, load(high + 128 * k + 64));
            const __m512i twice = _mm512_slli_epi32(word, 1);
            c->lo[k] = _mm512_or_si512(c->lo[k],
                                       high_bits(_mm512_shuffle_epi32(h, _MM_PERM_AAAA), twice, 3));
            c->hi[k] = _mm512_or_si512(c->hi[k],
                                       high_bits(_mm512_shuffle_epi32(h, _MM_PERM_BBBB), twice, 3));
        }
    }
}

/* The sums of each four neighbouring words, in the order of the outputs. */
INLINE __m512i output_sums(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    return _mm512_permutexvar_epi32(order, s);
}

INLINE __m512i four_words(const int8_t *q)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)q));
}

INLINE void group_dots(const int kind, const group_codes *c, const int8_t *x, offload_scale s,
                       int32_t *i0, int32_t *i1)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i xl = four_words(x), xh = four_words(x + 16), a[4], b[4];
    UNROLL(4)
    for (int k = 0; k < 4; k++) {
        a[k] = _mm512_dpbusd_epi32(zero, c->lo[k], xl);
        b[k] = _mm512_dpbusd_epi32(IS_SPLIT(kind) ? zero : a[k], c->hi[k], xh);
    }
    __m512i second = output_sums(b[0], b[1], b[2], b[3]), first = zero;
    if (IS_SPLIT(kind))
        first = output_sums(a[0], a[1], a[2], a[3]);
    if (IS_SIGNED(kind)) {
        first = _mm512_sub_epi32(first, _mm512_set1_epi32(128 * s.sum[0]));
        second = _mm512_sub_epi32(second, _mm512_set1_epi32(128 * s.sum[1]));
    }
    _mm512_store_si512(i0, first);
    _mm512_store_si512(i1, second);
}

extern const offload_kernels offload_kernels_avx512;
const offload_kernels offload_kernels_avx512 = {"avx512", tile_sums, gate_sums};
