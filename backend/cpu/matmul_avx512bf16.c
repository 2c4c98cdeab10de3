/* matmul_avx512bf16.c - bf16 weights by vdpbf16ps, where the processor has it beside AVX-512, and
 * activations rounded to bf16.
 *
 * Two inputs at a time: a zmm register is sixteen outputs by two inputs, as the packed layout has
 * them. A device that keeps f32 activations never gets here.
 */
#include "backend/cpu/pairs_int.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

static void round_pairs(uint32_t *to, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += PAIR_STEP) {
        int32_t left = n - i;
        __mmask16 lo = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        __mmask16 hi = left >= 32 ? 0xffff : left > 16 ? (__mmask16)((1u << (left - 16)) - 1) : 0;
        __m512bh v = _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(hi, x + i + (hi ? 16 : 0)),
                                         _mm512_maskz_loadu_ps(lo, x + i));
        memcpy(to + i / 2, &v, sizeof v);
    }
}

INLINE __m512bh pairs_of(const void *p)
{
    __m512bh v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE __m512bh every(uint32_t pair)
{
    __m512i v = _mm512_set1_epi32((int)pair);
    __m512bh b;
    memcpy(&b, &v, sizeof b);
    return b;
}

/* acc[r][o] += sum over pairs, ascending, of x[r] w[o]
 * layout: [pairs][16 outputs][2 inputs], two groups
 * tile:   12 sums, two weights, one pair of activations
 * bound:  decode reads w; a prefill is vdpbf16ps, twice the products of an FMA */
INLINE void pair_rows(const void *const *w, int32_t n_pairs, const uint32_t *const *x,
                      const int n_rows, float *acc)
{
    __m512 sum[TILE_ROWS][TILE_GROUPS];
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            sum[r][g] = _mm512_loadu_ps(acc + r * TILE_COLS + g * PACK_LANES);
    for (int32_t i = 0; i < n_pairs; i++) {
        __m512bh wv[TILE_GROUPS];
        for (int g = 0; g < TILE_GROUPS; g++)
            wv[g] = pairs_of((const uint8_t *)w[g] + (size_t)i * 64);
        for (int r = 0; r < n_rows; r++) {
            __m512bh xv = every(x[r][i]);
            for (int g = 0; g < TILE_GROUPS; g++)
                sum[r][g] = _mm512_dpbf16_ps(sum[r][g], wv[g], xv);
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            _mm512_storeu_ps(acc + r * TILE_COLS + g * PACK_LANES, sum[r][g]);
}

static void pair_tile(const void *const w[TILE_GROUPS], int32_t n_pairs, const uint32_t *const *x,
                      int32_t n_rows, float *acc)
{
    switch (n_rows) {
    case 1:
        pair_rows(w, n_pairs, x, 1, acc);
        break;
    case 2:
        pair_rows(w, n_pairs, x, 2, acc);
        break;
    case 3:
        pair_rows(w, n_pairs, x, 3, acc);
        break;
    case 4:
        pair_rows(w, n_pairs, x, 4, acc);
        break;
    case 5:
        pair_rows(w, n_pairs, x, 5, acc);
        break;
    default:
        pair_rows(w, n_pairs, x, TILE_ROWS, acc);
    }
}

const pair_kernels cpu_pairs_avx512 = {
    .name = "avx512bf16", .round = round_pairs, .tile = pair_tile};
