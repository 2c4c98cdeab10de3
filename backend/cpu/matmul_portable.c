/* matmul_portable.c - the kernels for any processor, in plain C.
 *
 * Vectors have four floats (vec_int.h), and the product of codes, which is written here, multiplies
 * byte by byte. All other kernels share their text with the instruction sets.
 */
#include "backend/cpu/codes_int.h"
#include "backend/cpu/float_int.h"
#include "backend/cpu/heads_int.h"
#include "backend/cpu/recur_int.h"
#include "backend/cpu/rows_int.h"
#include "backend/cpu/table_int.h"

/* acc[r][o] += d_x sum_b s_b (code . q)_b - m_b sum_b    one group, one row
 * layout: codes [n][8][16 outputs][4 inputs], lanes are outputs
 * bound:  sixteen 8-bit products per step, whatever the compiler makes of them */
static void code_row(const pack_kind *kind, const codes *c, int32_t n, const xblock *x, float *acc)
{
    int n_sub = kind->n_sub, n_quads = 8 / n_sub;
    for (int32_t b = 0; b < n; b++)
        for (int h = 0; h < n_sub; h++) {
            int32_t dot[PACK_LANES];
            for (int l = 0; l < PACK_LANES; l++)
                dot[l] = kind->mins ? 0 : x[b].start[h];
            for (int t = h * n_quads; t < (h + 1) * n_quads; t++) {
                const uint8_t *w = c->q + (size_t)b * PACK_CODES + (size_t)t * 64;
                const int8_t *q = x[b].q + 4 * t;
                for (int l = 0; l < PACK_LANES; l++)
                    dot[l] += w[4 * l] * q[0] + w[4 * l + 1] * q[1] + w[4 * l + 2] * q[2] +
                              w[4 * l + 3] * q[3];
            }
            size_t at = ((size_t)b * (size_t)n_sub + (size_t)h) * PACK_LANES;
            for (int l = 0; l < PACK_LANES; l++)
                acc[l] += (float)dot[l] * c->s[at + (size_t)l] * x[b].d;
            for (int l = 0; kind->mins && l < PACK_LANES; l++)
                acc[l] -= c->m[at + (size_t)l] * x[b].sum[h];
        }
}

static void code_tile(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc)
{
    for (int r = 0; r < n_rows; r++)
        for (int g = 0; g < TILE_GROUPS; g++)
            code_row(kind, &c[g], n, x[r], acc + r * TILE_COLS + g * PACK_LANES);
}

const cpu_kernels cpu_kernels_portable = {
    .name = "portable",
    SHARED_KERNELS,
    .code_tile = code_tile,
    .expand = k_expand,
};
