/* rows_cut.h - how a product of 2 to 32 rows is cut into blocks: which cuts fit, and their
 * estimated times. matmul_rows.cu asks before each launch. Host code without CUDA.
 *
 * Estimates come from prices per format that are fitted to measured times. They serve to compare
 * cuts, and nothing else.
 */
#ifndef BACKEND_CUDA_ROWS_CUT_H
#define BACKEND_CUDA_ROWS_CUT_H

#include "backend/cuda/product/launch_products.h"

/* A GPU: bytes of shared memory that it grants a block; multiprocessors. */
typedef struct rows_gpu {
    size_t shared;
    int32_t processors;
} rows_gpu;

/* A launch before it is cut: pieces of up to 32 rows times products of one layout. */
typedef struct rows_shape {
    int32_t n_jobs, n_out[ONE_JOBS];
    int32_t rows, kind;  /* rows of a piece */
    int32_t pieces;      /* each has blocks of its own */
    int32_t shares;      /* parts of a tile, which share its units */
    int32_t n_unit;      /* units of a tile */
    int32_t unit_rounds; /* the most units of a part */
    bool glu;
} rows_shape;

/* A kernel's needs: tiles of a warp; tiles of 8 activation rows; bytes of shared memory per tile of
 * a warp, per unit of 8 activation rows, and of each block beside those it asks for; warps that fit
 * into a multiprocessor's registers. */
typedef struct rows_needs {
    int32_t tiles, n_8, per_tile, per_x, fixed, warps;
} rows_needs;

typedef struct rows_plan {
    rows_cut cut;
    size_t shared; /* bytes that a block asks for; 0: nothing fits */
    double time;   /* nanoseconds */
} rows_plan;

#ifdef __cplusplus
extern "C" {
#endif
/* Parts of a tile in one block. */
int32_t rows_own(const rows_shape *s, rows_cut c);
/* Steps of a block; a step is a unit of each part abreast. */
int32_t rows_steps(const rows_shape *s, rows_cut c);
/* Replaces *best by a quicker cut for that kernel, if there is one. A field of `only` that is not 0
 * fixes that field of the cut. */
void rows_try(rows_plan *best, const rows_shape *s, const rows_needs *k, const rows_gpu *gpu,
              rows_cut only);
#ifdef __cplusplus
}
#endif

#endif
