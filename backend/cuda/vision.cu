/* vision.cu - the ops that towers of pictures alone need: LayerNorm, activations without a gate,
 * bounds, means of rows, shifts of columns.
 *
 * A tower has thousands of rows, and its products and attention take the time. So these are plain:
 * one thread per value, but for the norm.
 */
#include "backend/cuda/activations.cuh"
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/launch_small.h"

/* A NaN stays one. */
extern "C" void cu_clamp(cudaStream_t s, dev_mat y, dev_mat x, float low, float high)
{
    each_value(s, y, [=] __device__(int r, int i) {
        float v = value_of(x, r, i);
        return v < low ? low : v > high ? high : v;
    });
}

/* y[r] = mean of x[n r] .. x[n r + n - 1], added in this order. */
extern "C" void cu_pool(cudaStream_t s, dev_mat y, dev_mat x, int32_t n)
{
    each_value(s, y, [=] __device__(int r, int i) {
        float sum = 0;
        for (int k = 0; k < n; k++)
            sum += value_of(x, r * (int64_t)n + k, i);
        return sum / (float)n;
    });
}

/* In f32: shift reaches 5e4. */
extern "C" void cu_standardize(cudaStream_t s, dev_mat x, const float *shift, const float *scale)
{
    each_value(s, x, [=] __device__(int r, int i) {
        return (value_of(x, r, i) - shift[i]) * scale[i];
    });
}

template <int ACT> void activate(cudaStream_t s, dev_mat x)
{
    each_value(s, x, [=] __device__(int r, int i) { return act_of<ACT>(value_of(x, r, i)); });
}
extern "C" void cu_act(cudaStream_t s, dev_mat x, int act)
{
    if (act == 1)
        activate<1>(s, x);
    else if (act == 2)
        activate<2>(s, x);
    else if (act == 3)
        activate<3>(s, x);
    else if (act == 5)
        activate<5>(s, x);
    else
        activate<0>(s, x);
}

/* y = (x - mean) / sqrt(variance + eps) * w + b. The variance is that of differences from the mean:
 * rows whose mean is large keep their digits. A row is read three times, and twice from a cache.
 * grid:   row
 * shared: 32 floats
 * bound:  bandwidth */
__global__ void __launch_bounds__(256)
    layer_norm_kernel(dev_mat y, dev_mat x, const float *w, const float *b, float eps)
{
    __shared__ float table[32];
    int r = (int)blockIdx.x, n = x.cols;
    grid_trigger();
    grid_wait();
    const float *from = x.at + r * x.stride;
    float *to = y.at + r * y.stride, sum = 0, squares = 0;
    for (int i = (int)threadIdx.x; i < n; i += 256)
        sum += from[i];
    float mean = block_sum(sum, table) / (float)n;
    for (int i = (int)threadIdx.x; i < n; i += 256) {
        float d = from[i] - mean;
        squares = fma_rn(d, d, squares);
    }
    float inv = 1.0f / sqrtf(block_sum(squares, table) / (float)n + eps);
    for (int i = (int)threadIdx.x; i < n; i += 256)
        to[i] = fma_rn(mul_rn(from[i] - mean, inv), w[i], b ? b[i] : 0.0f);
}

extern "C" void cu_layer_norm(cudaStream_t s, dev_mat y, dev_mat x, const float *w, const float *b,
                              float eps)
{
    LAUNCH(layer_norm_kernel, dim3((unsigned)x.rows), dim3(256), 0, s, y, x, w, b, eps);
}
