/* product.cuh - what the int8 products agree on, so that they add the same numbers in one order:
 * how many warps share a tile's columns. Warp w of n takes units w, w + n, ..; within a unit even
 * and odd groups are summed apart. The rest of the agreement is group_add (formats.cuh).
 */
#ifndef BACKEND_CUDA_PRODUCT_CUH
#define BACKEND_CUDA_PRODUCT_CUH

#include "backend/cuda/formats.cuh"

/* 1, 2, 4 or 8 warps per tile of 16 outputs: 10 to 20 warps for each multiprocessor of a large
 * GPU, all there at once, and a unit or more for each warp. From the weight's shape alone (never
 * the row count, never the GPU). Gated pairs have twice the tiles. */
static inline int product_warps(const packed &w, bool glu)
{
    int n = 1;
    while (n < 8 && w.n_tile * n * (glu ? 2 : 1) < 1300 && 2 * n <= w.n_unit)
        n *= 2;
    return glu && n > 2 ? 2 : n;
}

#endif
