/* activations.cuh - the activations of gated units, and copies of activations as int8. */
#ifndef BACKEND_CUDA_ACTIVATIONS_CUH
#define BACKEND_CUDA_ACTIVATIONS_CUH

#include "backend/cuda/dev.cuh"
#include "backend/swiglu.h"

/* exp(x) by operations that a CPU has too, for the host may compute some experts (offload.h): those
 * of exp_of in backend/cpu/offload_int.h, which says how it works. expf is a few operations
 * shorter, but has one that only a GPU knows. */
DEV float exp_of(float x)
{
    const float magic = 0x1.8p23f;
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float t = fma_rn(x, 0x1.715476p0f, magic);
    float scale = __uint_as_float((__float_as_uint(t) - 0x4b400000u + 127u) << 23);
    float k = t - magic;
    float r = fma_rn(k, -0x1.62e4p-1f, x);
    r = fma_rn(k, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f;
    p = fma_rn(p, r, 0x1.6c16c2p-10f);
    p = fma_rn(p, r, 0x1.111112p-7f);
    p = fma_rn(p, r, 0x1.555556p-5f);
    p = fma_rn(p, r, 0x1.555556p-3f);
    p = fma_rn(p, r, 0.5f);
    p = fma_rn(p, r, 1.0f);
    p = fma_rn(p, r, 1.0f);
    return mul_rn(p, scale);
}

/* The activation of a gated unit: silu, or gelu by its tanh formula; offload_gated of
 * backend/cpu/offload.h. Division is IEEE's on both sides. */
DEV float gate_of(bool silu, float x)
{
    float cubic = fma_rn(mul_rn(mul_rn(0.044715f, x), x), x, x);
    float z = silu ? -x : mul_rn(-1.5957691216057308f, cubic);
    return x / (1.0f + exp_of(z));
}

/* The gated unit of gpt-oss: ACT_SWIGLU_CUT. A NaN stays one. */
DEV float cut_unit(float a, float b)
{
    a = a > SWIGLU_CUT ? SWIGLU_CUT : a;
    b = b > SWIGLU_CUT ? SWIGLU_CUT : b < -SWIGLU_CUT ? -SWIGLU_CUT : b;
    return mul_rn(a / (1.0f + exp_of(mul_rn(-SWIGLU_SLOPE, a))), b + 1.0f);
}

/* Activations by their act_kind. */
template <int ACT> DEV float act_of(float x)
{
    if (ACT == 1)
        return gate_of(true, x);
    if (ACT == 2)
        return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    if (ACT == 3)
        return 1.0f / (1.0f + expf(-x));
    if (ACT == 5)
        return 0.5f * x * erfcf(-0.70710678f * x);
    return gate_of(false, x);
}

/* act(a) * b, or the unit of both. */
template <int ACT> DEV float act_times(float a, float b)
{
    if (ACT == 4)
        return cut_unit(a, b);
    return act_of<ACT>(a) * b;
}

/* ---- Activations as int8 ------------------------------------------------------------------ */

/* Scale of 32 values and the sums of each half's codes. */
struct __align__(8) xscale
{
    float d;
    int16_t sum0, sum1;
};

DEV size_t quant_index(const dev_quant &x, int row, int g)
{
    int n_group = x.cols >> 5;
    if (x.tile == 1)
        return (size_t)row * n_group + g;
    return ((size_t)(row >> 3) * n_group + g) * 8 + (row & 7);
}

/* max / 127 with 22 bits of mantissa, so that 1.5 * 2^23 times it is exact (rows_unit.cuh needs
 * that). NaN where the product would be near infinity, 0 where a sixteenth of it would lose
 * bits. */
DEV float quant_scale(uint32_t top)
{
    float d = __uint_as_float(__float_as_uint(__uint_as_float(top) / 127.0f) & ~3u);
    return d < 0x1p-120f ? 0.0f : d < 0x1p100f ? d : __uint_as_float(0x7fc00000);
}

/* A warp's 32 values, one a lane, as codes and a scale: d = max / 127, q = round(x / d). NaN and
 * infinity go into d, and so into every product. */
DEV void quantise_warp(float v, const dev_quant &x, int row, int g)
{
    size_t at = quant_index(x, row, g);
    uint32_t top = warp_max_u32(__float_as_uint(v) & 0x7fffffff);
    float d = quant_scale(top);
    float inv = top ? 127.0f / __uint_as_float(top) : 0.0f;
    int code = (int)rintf(v * inv), lane = lane_id();
    code = code < -127 ? -127 : code > 127 ? 127 : code;
    int sum = warp_sum_i32(code, 8);
    int other = (int)shfl_xor_u32((uint32_t)sum, 16);
    int word = lane >> 2, place = word < 4 ? 2 * word : 2 * word - 7;
    x.q[at * 32 + 4 * place + (lane & 3)] = (int8_t)code;
    if (lane == 0) {
        xscale s = {d, (int16_t)sum, (int16_t)other};
        ((xscale *)x.s)[at] = s;
    }
}

/* The same for four neighbouring values a lane, with the same bits: 8 lanes to a group, i the
 * lane's first element of the row. All lanes of a warp call it; lanes with !in write nothing. */
DEV void quantise_four(float4 v, const dev_quant &x, int row, int i, bool in)
{
    size_t at = quant_index(x, row, i >> 5);
    uint32_t top =
        __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    /* fmaxf ignores NaN, so it is added back */
    float nan = (v.x + v.y) + (v.z + v.w);
    if (nan != nan)
        top = 0x7fc00000;
    for (int m = 4; m; m >>= 1) {
        uint32_t o = shfl_xor_u32(top, m);
        top = o > top ? o : top;
    }
    float d = quant_scale(top);
    float inv = top ? 127.0f / __uint_as_float(top) : 0.0f;
    float c[4] = {v.x, v.y, v.z, v.w};
    uint32_t word = 0;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int code = (int)rintf(c[k] * inv);
        code = code < -127 ? -127 : code > 127 ? 127 : code;
        sum += code;
        word |= (uint32_t)(code & 0xff) << 8 * k;
    }
    sum = warp_sum_i32(sum, 2);
    int other = (int)shfl_xor_u32((uint32_t)sum, 4);
    if (!in)
        return;
    int w = i >> 2 & 7, place = w < 4 ? 2 * w : 2 * w - 7;
    *(uint32_t *)(x.q + at * 32 + 4 * place) = word;
    if (w == 0) {
        xscale s = {d, (int16_t)sum, (int16_t)other};
        ((xscale *)x.s)[at] = s;
    }
}

#endif
