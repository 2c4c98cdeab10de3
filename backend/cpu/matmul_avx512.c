/* matmul_avx512.c - the kernels for AVX-512 with VNNI.
 *
 * A zmm register is sixteen outputs by four inputs of codes; vpdpbusd multiplies them with four
 * activations broadcast from memory and adds into sixteen 32-bit sums. The text of all other
 * kernels is shared (vec_int.h gives it sixteen floats).
 */
#include "backend/cpu/codes_int.h"
#include "backend/cpu/float_int.h"
#include "backend/cpu/heads_int.h"
#include "backend/cpu/small_int.h"

INLINE __m512i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, 4);
    return _mm512_set1_epi32(v);
}

/* acc[r][o] += d_x sum_b s_b (code . q)_b - m_b sum_b    two groups, up to six rows
 * layout: codes [n][8][16 outputs][4 inputs], lanes are outputs
 * tile:   12 integer and 12 float sums in registers, two codes, one activation
 * bound:  two vpdpbusd per cycle; of 11 instructions on those ports 8 are products */
INLINE void code_rows(const int n_sub, const bool mins, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, const int n_rows, float *acc)
{
    __m512 sum[TILE_GROUPS][TILE_ROWS];
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            sum[g][r] = _mm512_loadu_ps(acc + r * TILE_COLS + g * PACK_LANES);
    for (int32_t b = 0; b < n; b++)
        for (int h = 0; h < n_sub; h++) {
            __m512i dot[TILE_GROUPS][TILE_ROWS];
            for (int r = 0; r < n_rows; r++) {
                __m512i start = mins ? _mm512_setzero_si512() : _mm512_set1_epi32(x[r][b].start[h]);
                for (int g = 0; g < TILE_GROUPS; g++)
                    dot[g][r] = start;
            }
#pragma GCC unroll 8
            for (int t = h * 8 / n_sub; t < (h + 1) * 8 / n_sub; t++) {
                __m512i w0 = _mm512_loadu_si512(c[0].q + (size_t)b * PACK_CODES + (size_t)t * 64);
                __m512i w1 = _mm512_loadu_si512(c[1].q + (size_t)b * PACK_CODES + (size_t)t * 64);
                for (int r = 0; r < n_rows; r++) {
                    __m512i xv = four(x[r][b].q + 4 * t);
                    dot[0][r] = _mm512_dpbusd_epi32(dot[0][r], w0, xv);
                    dot[1][r] = _mm512_dpbusd_epi32(dot[1][r], w1, xv);
                }
            }
            size_t at = ((size_t)b * (size_t)n_sub + (size_t)h) * PACK_LANES;
            for (int g = 0; g < TILE_GROUPS; g++) {
                __m512 s = _mm512_loadu_ps(c[g].s + at);
                for (int r = 0; r < n_rows; r++)
                    sum[g][r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[g][r]), s),
                                                _mm512_set1_ps(x[r][b].d), sum[g][r]);
                if (mins) {
                    __m512 m = _mm512_loadu_ps(c[g].m + at);
                    for (int r = 0; r < n_rows; r++)
                        sum[g][r] = _mm512_fnmadd_ps(m, _mm512_set1_ps(x[r][b].sum[h]), sum[g][r]);
                }
            }
        }
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            _mm512_storeu_ps(acc + r * TILE_COLS + g * PACK_LANES, sum[g][r]);
}

INLINE void code_tile_as(const int n_sub, const bool mins, const codes *c, int32_t n,
                         const xblock *const *x, int32_t n_rows, float *acc)
{
    switch (n_rows) {
    case 1:
        code_rows(n_sub, mins, c, n, x, 1, acc);
        break;
    case 2:
        code_rows(n_sub, mins, c, n, x, 2, acc);
        break;
    case 3:
        code_rows(n_sub, mins, c, n, x, 3, acc);
        break;
    case 4:
        code_rows(n_sub, mins, c, n, x, 4, acc);
        break;
    case 5:
        code_rows(n_sub, mins, c, n, x, 5, acc);
        break;
    default:
        code_rows(n_sub, mins, c, n, x, TILE_ROWS, acc);
    }
}

static void code_tile(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc)
{
    if (kind->n_sub == 1 && kind->mins)
        code_tile_as(1, true, c, n, x, n_rows, acc);
    else if (kind->n_sub == 1)
        code_tile_as(1, false, c, n, x, n_rows, acc);
    else if (kind->mins)
        code_tile_as(2, true, c, n, x, n_rows, acc);
    else
        code_tile_as(2, false, c, n, x, n_rows, acc);
}

#define KERNELS_NAME "avx512"
const cpu_kernels cpu_kernels_avx512 = {
#include "backend/cpu/table_int.h"
    .code_tile = code_tile,
    .quantise = k_quantise,
};
