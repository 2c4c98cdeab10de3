/* pairs_int.h - products of bf16 weights by instructions that take pairs of bf16: vdpbf16ps, and
 * tiles of AMX. Activations are rounded to bf16 once, before the product.
 */
#ifndef BACKEND_CPU_PAIRS_INT_H
#define BACKEND_CPU_PAIRS_INT_H

#include "backend/cpu/kernels_int.h"

enum { PAIR_STEP = 32 }; /* rows of pairs have zeros up to a multiple of so many inputs */

typedef struct pair_kernels {
    const char *name;
    /* n inputs in pairs, the low half first. */
    void (*round)(uint32_t *to, const float *x, int32_t n);
    /* acc[r][0..32) += two packed groups of bf16 times rows 0..n_rows, n_rows <= TILE_ROWS */
    void (*tile)(const void *const w[TILE_GROUPS], int32_t n_pairs, const uint32_t *const *x,
                 int32_t n_rows, float *acc);
    /* NULL, or around calls of `tile` in one thread. */
    void (*begin)(void);
    void (*end)(void);
} pair_kernels;

extern const pair_kernels cpu_pairs_avx512, cpu_pairs_amx;

/* Has the processor AMX for bf16, and does the system let this process use it? */
bool cpu_has_amx(void);

#endif
