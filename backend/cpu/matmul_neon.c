/* matmul_neon.c - the kernels for AArch64.
 *
 * A q register is four outputs by four inputs of codes; sdot multiplies them with four activations
 * repeated and adds into four 32-bit sums. Codes are unsigned and below 128, so they are signed
 * bytes as they stand; those of offset 128 become signed with their top bit turned. Processors
 * from before sdot (ARMv8.2) multiply to 16 bits and add pairs. The text of all other kernels is
 * shared (vec_int.h gives it four floats).
 */
#include "backend/cpu/codes_int.h"
#include "backend/cpu/float_int.h"
#include "backend/cpu/heads_int.h"
#include "backend/cpu/recur_int.h"
#include "backend/cpu/rows_int.h"
#include "backend/cpu/small_int.h"
#include "backend/cpu/table_int.h"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

enum { NEON_ROWS = 3, NEON_VECS = PACK_LANES / 4 };

INLINE int32x4_t dot_pairs(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    int16x8_t lo = vmull_s8(vget_low_s8(w), vget_low_s8(x)); /* outputs 0 and 1 */
    int16x8_t hi = vmull_high_s8(w, x);                      /* outputs 2 and 3 */
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi)));
}

/* In assembly, so that the file needs no flags and the choice can be made at run time. */
INLINE int32x4_t dot_sdot(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    __asm__(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(w), "w"(x));
    return sum;
}

/* acc[r][o] += d_x sum_b s_b (code . q)_b - m_b sum_b    one group, up to three rows
 * layout: codes [n][8][16 outputs][4 inputs], lanes are outputs
 * tile:   12 integer sums and four codes in registers; the float sums stay near
 * bound:  one sdot per 16 products, where there is one */
INLINE void code_rows(bool has_sdot, const int n_sub, const bool mins, const bool is_signed,
                      const codes *c, int32_t n, const xblock *const *x, const int n_rows,
                      float *acc)
{
    float32x4_t sum[NEON_ROWS][NEON_VECS];
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < NEON_VECS; v++)
            sum[r][v] = vld1q_f32(acc + r * TILE_COLS + 4 * v);
    for (int32_t b = 0; b < n; b++)
        for (int h = 0; h < n_sub; h++) {
            int32x4_t dot[NEON_ROWS][NEON_VECS];
            for (int r = 0; r < n_rows; r++)
                for (int v = 0; v < NEON_VECS; v++)
                    dot[r][v] = vdupq_n_s32(mins || is_signed ? 0 : x[r][b].start[h]);
            for (int t = h * 8 / n_sub; t < (h + 1) * 8 / n_sub; t++) {
                const uint8_t *q = c->q + (size_t)b * PACK_CODES + (size_t)t * 64;
                int8x16_t w[NEON_VECS];
                for (int v = 0; v < NEON_VECS; v++) {
                    uint8x16_t u = vld1q_u8(q + 16 * v);
                    w[v] = vreinterpretq_s8_u8(is_signed ? veorq_u8(u, vdupq_n_u8(0x80)) : u);
                }
                for (int r = 0; r < n_rows; r++) {
                    int32_t four;
                    memcpy(&four, x[r][b].q + 4 * t, 4);
                    int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(four));
                    for (int v = 0; v < NEON_VECS; v++)
                        dot[r][v] = has_sdot ? dot_sdot(dot[r][v], w[v], xv)
                                             : dot_pairs(dot[r][v], w[v], xv);
                }
            }
            size_t at = ((size_t)b * (size_t)n_sub + (size_t)h) * PACK_LANES;
            for (int v = 0; v < NEON_VECS; v++) {
                float32x4_t s = vld1q_f32(c->s + at + 4 * v);
                for (int r = 0; r < n_rows; r++) {
                    float32x4_t d = vmulq_f32(vcvtq_f32_s32(dot[r][v]), s);
                    sum[r][v] = vfmaq_n_f32(sum[r][v], d, x[r][b].d);
                }
                if (mins) {
                    float32x4_t m = vld1q_f32(c->m + at + 4 * v);
                    for (int r = 0; r < n_rows; r++)
                        sum[r][v] = vfmsq_n_f32(sum[r][v], m, x[r][b].sum[h]);
                }
            }
        }
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < NEON_VECS; v++)
            vst1q_f32(acc + r * TILE_COLS + 4 * v, sum[r][v]);
}

INLINE void code_tile_as(bool has_sdot, const int n_sub, const bool mins, const bool is_signed,
                         const codes *c, int32_t n, const xblock *const *x, int32_t n_rows,
                         float *acc)
{
    for (int32_t r = 0; r < n_rows; r += NEON_ROWS)
        for (int g = 0; g < TILE_GROUPS; g++) {
            float *at = acc + (size_t)r * TILE_COLS + g * PACK_LANES;
            if (n_rows - r >= NEON_ROWS)
                code_rows(has_sdot, n_sub, mins, is_signed, &c[g], n, x + r, NEON_ROWS, at);
            else if (n_rows - r == 2)
                code_rows(has_sdot, n_sub, mins, is_signed, &c[g], n, x + r, 2, at);
            else
                code_rows(has_sdot, n_sub, mins, is_signed, &c[g], n, x + r, 1, at);
        }
}

INLINE void code_tile_for(bool has_sdot, const pack_kind *kind, const codes *c, int32_t n,
                          const xblock *const *x, int32_t n_rows, float *acc)
{
    if (kind->off == 128)
        code_tile_as(has_sdot, 1, false, true, c, n, x, n_rows, acc);
    else if (kind->n_sub == 1 && kind->mins)
        code_tile_as(has_sdot, 1, true, false, c, n, x, n_rows, acc);
    else if (kind->n_sub == 1)
        code_tile_as(has_sdot, 1, false, false, c, n, x, n_rows, acc);
    else if (kind->mins)
        code_tile_as(has_sdot, 2, true, false, c, n, x, n_rows, acc);
    else
        code_tile_as(has_sdot, 2, false, false, c, n, x, n_rows, acc);
}

static bool machine_has_sdot(void)
{
#if defined(__linux__) && defined(HWCAP_ASIMDDP)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return false;
#endif
}

static void code_tile(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc)
{
    static int known; /* 0: not known yet; every thread finds the same answer */
    int has = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!has) {
        has = machine_has_sdot() ? 1 : -1;
        __atomic_store_n(&known, has, __ATOMIC_RELAXED);
    }
    if (has > 0)
        code_tile_for(true, kind, c, n, x, n_rows, acc);
    else
        code_tile_for(false, kind, c, n, x, n_rows, acc);
}

const cpu_kernels cpu_kernels_neon = {
    .name = "neon",
    SHARED_KERNELS,
    .code_tile = code_tile,
    .expand = k_expand,
};
