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

extern "C" void cu_quantise(cudaStream_t s, dev_mat x, dev_quant q)
{
    LAUNCH(quantise_kernel, dim3((unsigned)((x.cols + 255) / 256), (unsigned)x.rows), dim3(256), 0,
           s, x, q);
}
