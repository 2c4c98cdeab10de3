/* rows_cut.h - how a product of 2 to 32 rows is cut into blocks: what fits, and about how long it
 * takes. matmul_rows.cu asks before each launch; what it launches is there. Host code, no CUDA.
 *
 * The times are a model with prices for each format, fitted to measured ones. They are for choosing
 * among cuts and are never promised to anyone.
 */
#ifndef BACKEND_CUDA_ROWS_CUT_H
#define BACKEND_CUDA_ROWS_CUT_H

#include "backend/cuda/cuda_int.h"

/* A GPU: shared memory that it grants a block, multiprocessors. */
typedef struct rows_gpu {
    size_t shared;
    int32_t processors;
} rows_gpu;

/* A launch, however it is cut: up to 32 rows times products of one layout side by side. */
typedef struct rows_shape {
    int32_t n_jobs, n_out[ONE_JOBS];
    int32_t rows, kind;
    int32_t shares;      /* parts that a tile's units are dealt to */
    int32_t n_unit;      /* of a tile */
    int32_t unit_rounds; /* most of a part */
    bool glu;
} rows_shape;

/* What a kernel takes: tiles of a warp; activations by 8 rows; bytes of a warp's tile, of a unit of
 * 8 rows of activations; warps that a multiprocessor has registers for. */
typedef struct rows_needs {
    int32_t tiles, n_8, per_tile, per_x, warps;
} rows_needs;

typedef struct rows_plan {
    rows_cut cut;
    size_t shared; /* bytes of a block; 0: nothing fits */
    double time;   /* nanoseconds */
} rows_plan;

#ifdef __cplusplus
extern "C" {
#endif
/* Parts of a tile that one block has. */
int32_t rows_own(const rows_shape *s, rows_cut c);
/* Steps of a block: a unit of each of the parts that are abreast. */
int32_t rows_steps(const rows_shape *s, rows_cut c);
/* Makes *best the quickest way with that kernel, if that is quicker. Where a field of `only` is not
 * 0, cuts have that. */
void rows_try(rows_plan *best, const rows_shape *s, const rows_needs *k, const rows_gpu *gpu,
              rows_cut only);
#ifdef __cplusplus
}
#endif

#endif
