/* offload_avx2.c - the kernels of offload.h for AVX2.
 *
 *     register   2 outputs x 4 words of 4 codes; eight of them are a group's half
 */
#include "backend/cpu/offload.h"
#include "backend/cpu/vec_int.h"

typedef struct group_codes {
    __m256i lo[8], hi[8];
} group_codes;

INLINE void take_codes(const int kind, group_codes *c, const uint8_t *codes, const uint8_t *high,
                       int i);
INLINE void group_dots(const int kind, const group_codes *c, const int8_t *x, offload_scale s,
                       int32_t *i0, int32_t *i1);

#include "backend/cpu/offload_int.h"

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

INLINE __m256i high_bits(__m256i h, __m256i shift, int mask)
{
    return _mm256_slli_epi32(
        _mm256_and_si256(_mm256_srlv_epi32(h, shift), _mm256_set1_epi8((char)mask)), 4);
}

/* Word i of each output's words, in all four places of its lane; n bytes from one output's to the
 * next's. */
INLINE __m256i both_words(const uint8_t *at, size_t n)
{
    int32_t a, b;
    memcpy(&a, at, 4);
    memcpy(&b, at + n, 4);
    return _mm256_set_epi32(b, b, b, b, a, a, a, a);
}

INLINE void take_codes(const int kind, group_codes *c, const uint8_t *codes, const uint8_t *high,
                       int i)
{
    const __m256i low = _mm256_set1_epi8(15), word = _mm256_set_epi32(3, 2, 1, 0, 3, 2, 1, 0);
    for (int k = 0; k < 8; k++) {
        __m256i v = load(codes + 32 * k);
        if (IS_BYTES(kind)) {
            c->lo[k] = v;
            c->hi[k] = load(codes + 256 + 32 * k);
            continue;
        }
        c->lo[k] = _mm256_and_si256(v, low);
        c->hi[k] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        if (IS_LEVELS(kind)) {
            const __m256i level =
                _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)levels_of(kind)));
            __m256 a = _mm256_castsi256_ps(_mm256_unpacklo_epi8(c->lo[k], c->hi[k]));
            __m256 b = _mm256_castsi256_ps(_mm256_unpackhi_epi8(c->lo[k], c->hi[k]));
            c->lo[k] =
                _mm256_shuffle_epi8(level, _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)));
            c->hi[k] =
                _mm256_shuffle_epi8(level, _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
        }
        if (IS_FIVE(kind)) {
            __m256i h = both_words(high + 32 * k + 4 * i, 16);
            c->lo[k] = _mm256_or_si256(c->lo[k], high_bits(h, word, 1));
            c->hi[k] = _mm256_or_si256(
                c->hi[k], high_bits(h, _mm256_add_epi32(word, _mm256_set1_epi32(4)), 1));
        }
        if (kind == OFFLOAD_Q6_K) {
            const __m256i twice = _mm256_slli_epi32(word, 1);
            const uint8_t *at = high + 64 * k + 8 * i;
            c->lo[k] = _mm256_or_si256(c->lo[k], high_bits(both_words(at, 32), twice, 3));
            c->hi[k] = _mm256_or_si256(c->hi[k], high_bits(both_words(at + 4, 32), twice, 3));
        }
    }
}

/* Sums of pairs of products, 16 bits: at most 2 * 128 * 127, so they never saturate. */
INLINE __m256i products(const int kind, __m256i w, __m256i x)
{
    if (IS_SIGNED(kind))
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* v[k]: the words of outputs 2k and 2k + 1. */
INLINE void output_sums(const __m256i *v, int32_t *to)
{
    const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    for (int h = 0; h < 2; h++) {
        const __m256i *u = v + 4 * h;
        __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(u[0], u[1]), _mm256_hadd_epi32(u[2], u[3]));
        _mm256_store_si256((__m256i *)(to + 8 * h), _mm256_permutevar8x32_epi32(s, order));
    }
}

INLINE void group_dots(const int kind, const group_codes *c, const int8_t *x, offload_scale s,
                       int32_t *i0, int32_t *i1)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i xl = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)x));
    __m256i xh = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(x + 16)));
    __m256i a[8], b[8];
    (void)s;
    for (int k = 0; k < 8; k++) {
        a[k] = _mm256_madd_epi16(products(kind, c->lo[k], xl), one);
        b[k] = _mm256_madd_epi16(products(kind, c->hi[k], xh), one);
        if (!IS_SPLIT(kind))
            b[k] = _mm256_add_epi32(a[k], b[k]);
    }
    output_sums(b, i1);
    if (IS_SPLIT(kind))
        output_sums(a, i0);
    else
        memset(i0, 0, sizeof *i0 * LANES);
}

extern const offload_kernels offload_kernels_avx2;
const offload_kernels offload_kernels_avx2 = {"avx2", tile_sums, gate_sums};
