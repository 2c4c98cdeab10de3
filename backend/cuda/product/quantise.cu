/* quantise.cu - copies of activations for products: int8 in groups of 32, or bf16.
 *
 * The int8 copy has one f32 scale per 32 values and the sum of each half's codes, which formats
 * with an offset need.
 */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/activations.cuh"

/* grid:   8 groups of 32 columns x row, a warp each
 * shared: none
 * bound:  latency at few rows, bandwidth at many */
__global__ void __launch_bounds__(256) quantise_kernel(dev_mat x, dev_quant q)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    int base = i & ~31;
    if (base >= x.cols)
        return;
    float v = i < x.cols ? x.at[r * x.stride + i] : 0;
    if (q.q)
        quantise_warp(v, q, r, base / 32);
    else if (i < x.cols)
        q.bf[(size_t)r * x.cols + i] = (uint16_t)f32_to_bf16(v);
}

/* As bf16, of many rows: eight columns a thread.
 * grid:   256 pieces of eight columns, row after row
 * shared: none
 * bound:  bandwidth */
__global__ void __launch_bounds__(256) bf16_kernel(dev_mat x, uint16_t *to)
{
    grid_trigger();
    grid_wait();
    const int pieces = x.cols / 8, i = (int)(blockIdx.x * 256 + threadIdx.x), r = i / pieces;
    if (r >= x.rows)
        return;
    const float4 *from = (const float4 *)(x.at + r * x.stride + (i - r * pieces) * 8);
    const float4 u = from[0], v = from[1];
    ((uint4 *)to)[i] = make_uint4(f32x2_to_bf16(u.x, u.y), f32x2_to_bf16(u.z, u.w),
                                  f32x2_to_bf16(v.x, v.y), f32x2_to_bf16(v.z, v.w));
}

extern "C" void cu_quantise(cudaStream_t s, dev_mat x, dev_quant q)
{
    enum { MANY = 64 }; /* rows; fewer are quicker with a column a thread */
    const int64_t pieces = (int64_t)x.rows * (x.cols / 8);
    if (q.bf && x.rows >= MANY && x.cols % 8 == 0 && x.stride % 4 == 0 &&
        (uintptr_t)x.at % 16 == 0 && (uintptr_t)q.bf % 16 == 0 && pieces < INT32_MAX - 256)
        LAUNCH(bf16_kernel, dim3((unsigned)((pieces + 255) / 256)), dim3(256), 0, s, x, q.bf);
    else
        LAUNCH(quantise_kernel, dim3((unsigned)((x.cols + 255) / 256), (unsigned)x.rows), dim3(256),
               0, s, x, q);
}
