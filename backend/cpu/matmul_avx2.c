/* matmul_avx2.c - the kernels for AVX2 with FMA.
 *
 * A ymm register is eight outputs by four inputs of codes. vpmaddubsw adds products of two inputs
 * in 16 bits: 2 * 127 * 127 fits, so codes above 127 (formats of offset 128) are multiplied as
 * signed bytes, sign moved to the activation. The text of all other kernels is shared.
 */
#include "backend/cpu/ahead_int.h"
#include "backend/cpu/codes_int.h"
#include "backend/cpu/float_int.h"
#include "backend/cpu/heads_int.h"
#include "backend/cpu/recur_int.h"
#include "backend/cpu/rows_int.h"
#include "backend/cpu/small_int.h"
#include "backend/cpu/table_int.h"

INLINE __m256i dot_four(__m256i sum, __m256i w, __m256i xv, bool is_signed)
{
    if (is_signed) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
        xv = _mm256_sign_epi8(xv, w);
        w = _mm256_abs_epi8(w);
    }
    __m256i pairs = _mm256_maddubs_epi16(w, xv);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* acc[r][o] += d_x sum_b s_b (code . q)_b - m_b sum_b    half a group, up to three rows
 * layout: codes [n][8][16 outputs][4 inputs], lanes are outputs
 * tile:   3 integer and 3 float sums, one code, one activation
 * bound:  three instructions per product of 32 pairs, five for signed codes */
INLINE void code_rows(const int n_sub, const bool mins, const bool is_signed, const codes *c,
                      int32_t n, const xblock *const *x, const int n_rows, float *acc, int half)
{
    __m256 sum[3];
    for (int r = 0; r < n_rows; r++)
        sum[r] = _mm256_loadu_ps(acc + r * TILE_COLS + 8 * half);
    for (int32_t b = 0; b < n; b++)
        for (int h = 0; h < n_sub; h++) {
            __m256i dot[3];
            for (int r = 0; r < n_rows; r++)
                dot[r] = mins || is_signed ? _mm256_setzero_si256()
                                           : _mm256_set1_epi32(x[r][b].start[h]);
            UNROLL(8)
            for (int t = h * 8 / n_sub; t < (h + 1) * 8 / n_sub; t++) {
                __m256i w = _mm256_loadu_si256(
                    (const __m256i *)(const void *)(c->q + (size_t)b * PACK_CODES + (size_t)t * 64 +
                                                    (size_t)half * 32));
                for (int r = 0; r < n_rows; r++) {
                    int32_t v;
                    memcpy(&v, x[r][b].q + 4 * t, 4);
                    dot[r] = dot_four(dot[r], w, _mm256_set1_epi32(v), is_signed);
                }
            }
            size_t at = ((size_t)b * (size_t)n_sub + (size_t)h) * PACK_LANES + (size_t)half * 8;
            __m256 s = _mm256_loadu_ps(c->s + at);
            for (int r = 0; r < n_rows; r++)
                sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot[r]), s),
                                         _mm256_set1_ps(x[r][b].d), sum[r]);
            if (mins) {
                __m256 m = _mm256_loadu_ps(c->m + at);
                for (int r = 0; r < n_rows; r++)
                    sum[r] = _mm256_fnmadd_ps(m, _mm256_set1_ps(x[r][b].sum[h]), sum[r]);
            }
        }
    for (int r = 0; r < n_rows; r++)
        _mm256_storeu_ps(acc + r * TILE_COLS + 8 * half, sum[r]);
}

INLINE void code_tile_as(const int n_sub, const bool mins, const bool is_signed, const codes *c,
                         int32_t n, const xblock *const *x, int32_t n_rows, float *acc)
{
    for (int32_t r = 0; r < n_rows; r += 3)
        for (int g = 0; g < TILE_GROUPS; g++)
            for (int half = 0; half < 2; half++) {
                float *at = acc + (size_t)r * TILE_COLS + g * PACK_LANES;
                if (n_rows - r >= 3)
                    code_rows(n_sub, mins, is_signed, &c[g], n, x + r, 3, at, half);
                else if (n_rows - r == 2)
                    code_rows(n_sub, mins, is_signed, &c[g], n, x + r, 2, at, half);
                else
                    code_rows(n_sub, mins, is_signed, &c[g], n, x + r, 1, at, half);
            }
}

static void code_tile(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc)
{
    if (kind->off == 128)
        code_tile_as(1, false, true, c, n, x, n_rows, acc);
    else if (kind->n_sub == 1 && kind->mins)
        code_tile_as(1, true, false, c, n, x, n_rows, acc);
    else if (kind->n_sub == 1)
        code_tile_as(1, false, false, c, n, x, n_rows, acc);
    else if (kind->mins)
        code_tile_as(2, true, false, c, n, x, n_rows, acc);
    else
        code_tile_as(2, false, false, c, n, x, n_rows, acc);
}

/* ---- Codes from the packed layout -------------------------------------------------------- */

INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE __m256i bits_of(__m256i v, int n, int mask)
{
    __m256i s = n > 0 ? _mm256_srli_epi16(v, n) : n < 0 ? _mm256_slli_epi16(v, -n) : v;
    return _mm256_and_si256(s, _mm256_set1_epi8((char)mask));
}

/* Bit i of the 32 at p as byte i: 0 or -1. */
INLINE __m256i bytes_of_bits(const uint8_t *p)
{
    const __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201ull);
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(v), from), bit),
                             bit);
}
/* Bit i of a byte as lane i: 0 or -1. */
INLINE __m256i lanes_of_bits(uint8_t v)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(v), bit), bit);
}

/* Quad k of the codes of a lattice by eight outputs, as in take_entries (codes_int.h). */
INLINE __m256i entry_codes(num_type t, const uint8_t *z, int half, int quad)
{
    const int n = 32 / lattice_width((int)t), quads = 8 / n, k = quad / quads;
    const bool shifts = lattice_shifts((int)t);
    const uint8_t *signs = z + 16 * n, *planes = signs + (shifts ? 0 : 64);
    const int *table = (const int *)(const void *)lattice_codes(t) + quad % quads;
    __m256i i = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64((const __m128i *)(const void *)(z + 16 * k + 8 * half)));
    for (int b = 0; b < index_planes(t); b++)
        i = _mm256_or_si256(i, _mm256_and_si256(lanes_of_bits(planes[2 * (n * b + k) + half]),
                                                _mm256_set1_epi32(256 << b)));
    __m256i v =
        quads == 1 ? _mm256_i32gather_epi32(table, i, 4) : _mm256_i32gather_epi32(table, i, 8);
    if (shifts)
        return _mm256_sub_epi8(v, _mm256_and_si256(lanes_of_bits(planes[2 * (n * 3 + k) + half]),
                                                   _mm256_set1_epi8(2)));
    __m256i minus = _mm256_sub_epi8(_mm256_set1_epi8((char)(2 * lattice_off(t))), v);
    return _mm256_blendv_epi8(v, minus, bytes_of_bits(signs + 8 * quad + 4 * half));
}

/* Codes of inputs 4k .. 4k + 3 by eight outputs, as in take_codes (codes_int.h). */
INLINE __m256i codes_at(num_type t, const uint8_t *z, int half, int k)
{
    if (lattice_type((int)t))
        return entry_codes(t, z, half, k);
    z += 32 * half;
    if (t == NUM_Q8_0)
        return load32(z + 64 * k);
    if (t == NUM_Q1_0)
        return bits_of(load32(z), k - 1, 2);
    if (t == NUM_Q2_K || t == NUM_Q3_K || t == NUM_Q2_0 || t == NUM_TQ2_0) {
        __m256i w = bits_of(load32(z + 64 * (k / 4)), 2 * (k % 4), 3);
        return t != NUM_Q3_K ? w : _mm256_or_si256(w, bits_of(load32(z + 128), k - 2, 4));
    }
    __m256i w = bits_of(load32(z + 64 * (k % 4)), k < 4 ? 0 : 4, 15);
    if (t == NUM_Q6_K)
        w = _mm256_or_si256(w, bits_of(load32(z + 256 + 64 * (k / 4)), 2 * (k % 4) - 4, 0x30));
    if (t == NUM_Q5_0 || t == NUM_Q5_1 || t == NUM_Q5_K)
        w = _mm256_or_si256(w, bits_of(load32(z + 256), k - 4, 0x10));
    if (t == NUM_IQ4_NL || t == NUM_IQ4_XS || t == NUM_MXFP4 || t == NUM_NVFP4) {
        const uint8_t *table = t == NUM_MXFP4 || t == NUM_NVFP4 ? fp4_codes : iq4_codes;
        w = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table)), w);
    }
    return w;
}

/* acc[r][o] += as code_rows, straight from the packed layout: half a group, one or two rows
 * layout: pack_int.h; scales were taken apart into s and m beforehand, one superblock at a time
 * order:  that of code_rows, operation by operation, so the bits are the same
 * bound:  unpacking; q4_k runs at about two thirds of one core's share of memory */
INLINE void packed_block(num_type t, const int n_sub, const bool mins, const uint8_t *z,
                         const float *s, const float *m, const xblock *const *x, int32_t b,
                         const int n_rows, int half, __m256 sum[2])
{
    const bool is_signed = t == NUM_Q8_0 || t == NUM_IQ4_NL || t == NUM_IQ4_XS;
    for (int h = 0; h < n_sub; h++) {
        __m256i dot[2];
        for (int r = 0; r < n_rows; r++)
            dot[r] =
                mins || is_signed ? _mm256_setzero_si256() : _mm256_set1_epi32(x[r][b].start[h]);
        UNROLL(8)
        for (int k = h * 8 / n_sub; k < (h + 1) * 8 / n_sub; k++) {
            __m256i w = codes_at(t, z, half, k);
            for (int r = 0; r < n_rows; r++) {
                int32_t v;
                memcpy(&v, x[r][b].q + 4 * k, 4);
                dot[r] = dot_four(dot[r], w, _mm256_set1_epi32(v), is_signed);
            }
        }
        int at = h * PACK_LANES + half * 8;
        for (int r = 0; r < n_rows; r++) {
            __m256 d = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_loadu_ps(s + at));
            sum[r] = _mm256_fmadd_ps(d, _mm256_set1_ps(x[r][b].d), sum[r]);
            if (mins)
                sum[r] = _mm256_fnmadd_ps(_mm256_loadu_ps(m + at), _mm256_set1_ps(x[r][b].sum[h]),
                                          sum[r]);
        }
    }
}

INLINE void packed_rows(num_type t, const pack_kind *kind, const int n_sub, const bool mins,
                        const uint8_t *z, int32_t n, const xblock *const *x, const int n_rows,
                        float *acc)
{
    const reach ahead = how_far_ahead();
    __m256 sum[2][2];
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < n_rows; r++)
            sum[half][r] = _mm256_loadu_ps(acc + r * TILE_COLS + 8 * half);
    for (int32_t b0 = 0; b0 < n; b0 += kind->n_blocks, z += kind->super_bytes) {
        float s[16 * PACK_LANES], m[16 * PACK_LANES];
        take_scales(t, z, s, m);
        ask_ahead(z, kind->super_bytes, &ahead);
        for (int j = 0; j < kind->n_blocks; j++)
            for (int half = 0; half < 2; half++)
                packed_block(t, n_sub, mins, z + kind->scale_bytes + j * kind->block_bytes,
                             s + j * n_sub * PACK_LANES, m + j * n_sub * PACK_LANES, x, b0 + j,
                             n_rows, half, sum[half]);
    }
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < n_rows; r++)
            _mm256_storeu_ps(acc + r * TILE_COLS + 8 * half, sum[half][r]);
}

#define PACKED(t, n_sub, mins)                                                                     \
    static NOINLINE void packed_##t(const pack_kind *kind, const uint8_t *z, int32_t n,            \
                                    const xblock *const *x, int32_t n_rows, float *acc)            \
    {                                                                                              \
        if (n_rows == 1)                                                                           \
            packed_rows(t, kind, n_sub, mins, z, n, x, 1, acc);                                    \
        else                                                                                       \
            packed_rows(t, kind, n_sub, mins, z, n, x, 2, acc);                                    \
    }
EVERY_KIND(PACKED)
#undef PACKED

static void packed_tile(const pack_kind *kind, const uint8_t *const group[TILE_GROUPS], int32_t n,
                        const xblock *const *x, int32_t n_rows, float *acc)
{
    for (int g = 0; g < TILE_GROUPS; g++, acc += PACK_LANES)
        switch (kind->type) {
#define PACKED(t, n_sub, mins)                                                                     \
    case t:                                                                                        \
        packed_##t(kind, group[g], n, x, n_rows, acc);                                             \
        break;
            EVERY_KIND(PACKED)
#undef PACKED
        default:
            break;
        }
}

INLINE void unpack_as(num_type t, const pack_kind *kind, const int n_sub, const uint8_t *z,
                      int32_t n, uint8_t *q, float *s, float *m)
{
    for (int32_t b0 = 0; b0 < n; b0 += kind->n_blocks, z += kind->super_bytes) {
        take_scales(t, z, s, m);
        s += kind->n_blocks * n_sub * PACK_LANES;
        m += kind->n_blocks * n_sub * PACK_LANES;
        for (int j = 0; j < kind->n_blocks; j++, q += PACK_CODES)
            for (int k = 0; k < 8; k++)
                for (int half = 0; half < 2; half++)
                    _mm256_storeu_si256(
                        (__m256i *)(void *)(q + 64 * k + 32 * half),
                        codes_at(t, z + kind->scale_bytes + j * kind->block_bytes, half, k));
    }
}

static void unpack(const pack_kind *kind, const uint8_t *z, int32_t n, uint8_t *q, float *s,
                   float *m)
{
    switch (kind->type) {
#define UNPACK(t, n_sub, mins)                                                                     \
    case t:                                                                                        \
        unpack_as(t, kind, n_sub, z, n, q, s, m);                                                  \
        break;
        EVERY_KIND(UNPACK)
#undef UNPACK
    default:
        break;
    }
}

const cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2",
    SHARED_KERNELS,
    .code_tile = code_tile,
    .expand = unpack,
    .packed_tile = packed_tile,
    .packed_rows = 2,
};
