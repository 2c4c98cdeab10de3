/* matmul_avx2.c - the kernels for AVX2 with FMA.
 *
 * A ymm register is eight outputs by four inputs of codes. vpmaddubsw adds products of two inputs
 * in 16 bits: 2 * 127 * 127 fits, so codes above 127 (formats of offset 128) are multiplied as
 * signed bytes, sign moved to the activation. The text of all other kernels is shared.
 */
#include "backend/cpu/codes_int.h"
#include "backend/cpu/float_int.h"
#include "backend/cpu/heads_int.h"
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
#pragma GCC unroll 8
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

const cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2",
    SHARED_KERNELS,
    .code_tile = code_tile,
    .expand = k_expand,
};
