/* warp_best.cuh - the k largest of what a warp holds in registers, best first. */
#ifndef BACKEND_CUDA_WARP_BEST_CUH
#define BACKEND_CUDA_WARP_BEST_CUH

#include "backend/cuda/dev.cuh"

struct candidates { /* lane i < k has the i-th best */
    uint32_t key, column;
};

/* The k best of the warp's candidates, of which a lane's columns ascend where keys are equal; 0: no
 * candidate. Destroys key. */
template <int N> DEV candidates warp_best(uint32_t (&key)[N], const uint32_t (&column)[N], int k)
{
    candidates mine = {0, 0};
#pragma unroll 1
    for (int i = 0; i < k; i++) {
        uint32_t best = 0, at = 0;
#pragma unroll
        for (int j = 0; j < N; j++)
            if (key[j] > best)
                best = key[j], at = column[j];
        uint32_t most = warp_max_u32(best);
        at = ~warp_max_u32(best == most ? ~at : 0); /* the lowest column among equals */
        if (lane_id() == i)
            mine = {most, at};
#pragma unroll
        for (int j = 0; j < N; j++)
            if (column[j] == at)
                key[j] = 0;
    }
    return mine;
}

#endif
