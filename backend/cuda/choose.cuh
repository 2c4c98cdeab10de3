/* choose.cuh - a row's choice of experts from its router's logits, and the router's products. */
#ifndef BACKEND_CUDA_CHOOSE_CUH
#define BACKEND_CUDA_CHOOSE_CUH

#include "backend/cuda/dev.cuh"
#include "backend/cuda/launch_products.h"

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
 * of sigmoid + bias, and their sigmoids over their sum. Logits are in registers, PER_LANE a lane;
 * each of k rounds takes two warp-wide maxima. share NULL: the choice alone. Returns lane i's: the
 * i-th expert, or -1. */
template <int PER_LANE, bool SIGMOID>
DEV int choose(int32_t *id, float *share, int k, const float *z, int n, const choice &how)
{
    uint32_t order[PER_LANE], mine = 0;
    int lane = lane_id(), who = 0;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int e = lane + 32 * j;
        if (SIGMOID)
            order[j] =
                e < n ? order_of(sigmoid_of(load_fresh(z + e)) + (how.bias ? how.bias[e] : 0.0f))
                      : 0;
        else
            order[j] = e < n ? order_of(load_fresh(z + e)) : 0;
    }
#pragma unroll 1
    for (int i = 0; i < k; i++) {
        uint32_t best = 0, at = 0;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++)
            if (order[j] > best)
                best = order[j], at = (uint32_t)(lane + 32 * j);
        uint32_t most = warp_max_u32(best);
        at = ~warp_max_u32(best == most ? ~at : 0); /* the lowest index among equals */
        if (lane == i)
            mine = most, who = (int)at;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++)
            if (at == (uint32_t)(lane + 32 * j))
                order[j] = 0;
    }
    if (lane < k)
        id[lane] = who;
    if (!share)
        return lane < k ? who : -1;
    float p;
    if (SIGMOID) {
        p = lane < k ? sigmoid_of(load_fresh(z + who)) : 0;
    } else {
        float v = value_of(mine), top = shfl_f32(v, 0);
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
