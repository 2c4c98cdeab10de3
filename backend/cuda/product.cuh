/* product.cuh - what the int8 products agree on, so that they add the same numbers in one order:
 * how many warps share a tile's columns. The rest of the agreement is group_sum (formats.cuh).
 */
#ifndef BACKEND_CUDA_PRODUCT_CUH
#define BACKEND_CUDA_PRODUCT_CUH

#include "backend/cuda/formats.cuh"

/* Warps per tile of 16 outputs: enough that all tiles together fill a large GPU, and each warp
 * still has a few groups. From the weight's shape alone (never the row count, never the GPU). */
static inline int product_warps(const packed &w, bool glu)
{
    int n = w.n_tile >= 2048 ? 4 : 8;
    if (w.n_tile <= 192 && w.n_group >= 128 && !glu)
        n = 16;
    if (glu && n > 8)
        n = 8;
    while (n > 1 && w.n_group < 4 * n)
        n /= 2;
    return n;
}

#endif
