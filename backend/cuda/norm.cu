/* norm.cu - RMS norm of whole rows and of heads, alone and added to a residual stream.
 *
 * One block per vector, read twice, the second time from the first level cache. The sum of squares
 * is taken in f32 by a fixed tree, so it does not depend on other rows. A norm of a whole row is
 * nearly always followed by a product, so it can leave the int8 or bf16 copy that the product will
 * read (quantise.cu makes the same one).
 */
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/dev.cuh"

/* y = x * (mean(x^2) + eps)^-1/2 * w; RESIDUAL: y += that.
 * grid:   one block per vector: heads x rows
 * shared: one float per warp
 * bound:  latency at few rows, bandwidth at many */
template <bool RESIDUAL>
__global__ void __launch_bounds__(1024)
    rms_norm_kernel(dev_mat y, dev_mat x, int n, const float *w, float eps, dev_quant q)
{
    grid_trigger();
    grid_wait();
    __shared__ float table[32];
    int h = (int)blockIdx.x, r = (int)blockIdx.y;
    const float *from = x.at + r * x.stride + (int64_t)h * n;
    float *to = y.at + r * y.stride + (int64_t)h * n;
    float sum = 0;
    int step = (int)blockDim.x;
    for (int i = (int)threadIdx.x; i < n; i += step)
        sum = fma_rn(from[i], from[i], sum);
    float inv = 1.0f / sqrtf(block_sum(sum, table) / (float)n + eps);
    for (int i = (int)threadIdx.x; (i & ~31) < n; i += step) {
        bool in = i < n;
        float u = 0;
        if (in) {
            u = from[i];
            u = mul_rn(u, inv);
            if (w)
                u = mul_rn(u, w[i]);
            if (RESIDUAL)
                u += to[i];
            to[i] = u;
        }
        int base = i & ~31;
        if (q.q)
            quantise_warp(u, q, r, base / 32);
        if (q.bf && in)
            q.bf[(size_t)r * n + i] = (uint16_t)f32_to_bf16(u);
    }
}

static int threads_for(int n)
{
    int t = (n + 3) / 4; /* four values a thread */
    t = (t + 31) & ~31;
    return t > 1024 ? 1024 : t;
}

extern "C" void cu_rms_norm(cudaStream_t s, dev_mat y, dev_mat x, int32_t heads, const float *w,
                            float eps, dev_quant q)
{
    int n = x.cols / heads;
    LAUNCH(rms_norm_kernel<false>, dim3((unsigned)heads, (unsigned)x.rows), dim3(threads_for(n)), 0,
           s, y, x, n, w, eps, q);
}

extern "C" void cu_add_rms_norm(cudaStream_t s, dev_mat x, dev_mat y, const float *w, float eps)
{
    dev_quant none = {};
    LAUNCH(rms_norm_kernel<true>, dim3(1, (unsigned)x.rows), dim3(threads_for(y.cols)), 0, s, x, y,
           y.cols, w, eps, none);
}
