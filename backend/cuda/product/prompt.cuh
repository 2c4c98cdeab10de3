/* prompt.cuh - what the kernels of prompt rows are given: matmul_mma.cu, matmul_short.cu and
 * matmul_tall_*.cu. All add a row's columns 16 at a time in ascending order, so their results are bit-identical.
 */
#ifndef BACKEND_CUDA_PROMPT_CUH
#define BACKEND_CUDA_PROMPT_CUH

#include "backend/cuda/launch.h"

/* A tile of rows of one expert: order[first .. first + n). */
struct expert_tile {
    int32_t expert, first, n, pad;
};

struct mma_args {
    dev_mat y;
    const uint16_t *x; /* [.., n_in] bf16 */
    packed w;
    int32_t rows;
    const expert_tile *tiles; /* NULL: rows in order, in tiles of the kernel's rows */
    const int32_t *n_tiles, *order;
    int32_t k; /* x row of pair p is p / k; 1: p */
};

/* matmul_short.cu: rows in tiles of 16, 32 or 64 (tile); tiles: how many, at most. Weights of
 * blocks alone. False, and nothing is launched, where a block has too little shared memory. */
bool cu_short(cudaStream_t s, const mma_args &a, int tile, int tiles);
int cu_short_init();

#endif
