/* choose.cuh - a row's choice of experts from its router's logits, and the router's products. */
#ifndef BACKEND_CUDA_CHOOSE_CUH
#define BACKEND_CUDA_CHOOSE_CUH

#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/warp_best.cuh"

/* An integer that orders like the float; NaN is below every number, and the result is never 0. */
DEV uint32_t order_of(float f)
{
    uint32_t u = __float_as_uint(f + 0.0f); /* -0 is 0 */
    if (f != f)
        return 1;
    return u >> 31 ? ~u : u | 0x80000000;
}
DEV float value_of(uint32_t order)
{
    if (order == 1)
        return __uint_as_float(0x7fc00000);
    return __uint_as_float(order >> 31 ? order & 0x7fffffff : ~order);
}

DEV float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* A warp chooses for one row: the k largest of n logits, best first, ties to the lower index; their
 * softmax, normalised to sum 1, times scale. The softmax's own sum cancels. SIGMOID: the k largest
 * of sigmoid + bias, and their sigmoids over their sum. Logits are in registers, PER_LANE a lane.
 * share NULL: the choice alone. Returns lane i's: the i-th expert, or -1. */
template <int PER_LANE, bool SIGMOID>
DEV int choose(int32_t *id, float *share, int k, const float *z, int n, const choice &how)
{
    uint32_t order[PER_LANE], column[PER_LANE];
    int lane = lane_id();
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int e = lane + 32 * j;
        column[j] = (uint32_t)e;
        if (SIGMOID)
            order[j] =
                e < n ? order_of(sigmoid_of(load_fresh(z + e)) + (how.bias ? how.bias[e] : 0.0f))
                      : 0;
        else
            order[j] = e < n ? order_of(load_fresh(z + e)) : 0;
    }
    const candidates mine = warp_best(order, column, k);
    const int who = (int)mine.column;
    if (lane < k)
        id[lane] = who;
    if (!share)
        return lane < k ? who : -1;
    float p;
    if (SIGMOID) {
        p = lane < k ? sigmoid_of(load_fresh(z + who)) : 0;
    } else {
        float v = value_of(mine.key), top = shfl_f32(v, 0);
        p = lane < k ? expf(v - top) : 0;
    }
    p = p / warp_sum(p) * how.factor * (how.scale ? how.scale[lane < k ? who : 0] : 1.0f);
    if (lane < k)
        share[lane] = p;
    return lane < k ? who : -1;
}

DEV float dot4(float acc, float4 w, float4 v)
{
    acc = fma_rn(w.x, v.x, acc);
    acc = fma_rn(w.y, v.y, acc);
    acc = fma_rn(w.z, v.z, acc);
    return fma_rn(w.w, v.w, acc);
}

#endif
