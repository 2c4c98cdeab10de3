/* prompt.cuh - what the kernels of prompt rows are given: matmul_mma.cu, matmul_short.cu and
 * matmul_tall_*.cu; and how they write results. All add a row's columns 16 at a time in ascending
 * order, so their results are bit-identical.
 */
#ifndef BACKEND_CUDA_PROMPT_CUH
#define BACKEND_CUDA_PROMPT_CUH

#include "backend/cuda/dev.cuh"

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

/* n rows of y from `first` on, in the order of a list, or (NULL) as they are. */
struct tile_rows {
    const int32_t *order;
    int first, n;
};
/* Writes a warp's sums: of 8 TILES rows of the tile from r0 on, and 16 M outputs from o0 on. acc: as
 * mma.cuh has D. */
template <int M, int TILES>
DEV void write_sums(const dev_mat &y, const tile_rows &t, const float (&acc)[M][TILES][4], int r0,
                    int o0)
{
    const int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = r0 + j * 8 + 2 * tid + e;
            if (r >= t.n)
                continue;
            const int row = t.order ? t.order[t.first + r] : t.first + r;
            float *to = y.at + row * y.stride + o0;
#pragma unroll
            for (int i = 0; i < M; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int o = 16 * i + 8 * h + gid;
                    if (o0 + o < y.cols)
                        to[o] = acc[i][j][2 * h + e];
                }
        }
}

int cu_short_init();

#endif
