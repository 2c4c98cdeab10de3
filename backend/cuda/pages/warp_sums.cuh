/* warp_sums.cuh - several sums over a warp, or over each half of one, for fewer exchanges.
 *
 *     lane          0 .. 7     8 .. 15    16 .. 23   24 .. 31        4 sums over 32 lanes
 *     has, before   v0 v1 v2 v3 everywhere
 *     by 16         v0 v1      v0 v1      v2 v3      v2 v3           2 exchanges
 *     by 8          v0         v1         v2         v3              1
 *     by 4, 2, 1    v0         v1         v2         v3              3, instead of 20 in all
 *
 * Every sum adds the pairs that warp_sum adds, so it has the same bits.
 */
#ifndef BACKEND_CUDA_WARP_SUMS_CUH
#define BACKEND_CUDA_WARP_SUMS_CUH

#include "backend/cuda/dev.cuh"

/* Which of the sums this lane gets. */
template <int SUMS, int LANES> DEV int summed_by()
{
    return lane_id() % LANES / (LANES / SUMS);
}

/* Sums of v[0 .. SUMS - 1] over LANES lanes; powers of two. v is used up. */
template <int SUMS, int LANES> DEV float warp_sums(float *v)
{
    int lane = lane_id();
#pragma unroll
    for (int m = LANES / 2; m; m /= 2) {
        bool upper = lane & m;
        if (SUMS * m < LANES) /* one is left */
            v[0] += shfl_xor_f32(v[0], m);
#pragma unroll
        for (int i = 0; i < SUMS * m / LANES; i++) {
            float *low = &v[i], *high = &v[i + SUMS * m / LANES];
            float other = shfl_xor_f32(upper ? *low : *high, m);
            *low = (upper ? *high : *low) + other;
        }
    }
    return v[0];
}

#endif
