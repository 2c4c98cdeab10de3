/* vision.cu - the ops that towers of pictures alone need: LayerNorm, activations without a gate,
 * bounds, means of rows, shifts of columns.
 *
 * A tower has thousands of rows, and its products and attention take the time. So these are plain:
 * one thread per value, but for the norm.
 */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/dev.cuh"

static dim3 grid_of(dev_mat y)
{
    return dim3((unsigned)y.rows, (unsigned)((y.cols + 255) / 256));
}

/* y = x, at least low and at most high; a NaN stays one.
 * grid:   row x 256 columns
 * shared: none
 * bound:  bandwidth */
__global__ void clamp_kernel(dev_mat y, dev_mat x, float low, float high)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    if (i >= y.cols)
        return;
    float v = x.at[r * x.stride + i];
    y.at[r * y.stride + i] = v < low ? low : v > high ? high : v;
}

extern "C" void cu_clamp(cudaStream_t s, dev_mat y, dev_mat x, float low, float high)
{
    LAUNCH(clamp_kernel, grid_of(y), dim3(256), 0, s, y, x, low, high);
}

/* y[r] = mean of x[n r] .. x[n r + n - 1], added in this order.
 * grid:   row x 256 columns
 * shared: none
 * bound:  bandwidth */
__global__ void pool_kernel(dev_mat y, dev_mat x, int n)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    if (i >= y.cols)
        return;
    float sum = 0;
    for (int k = 0; k < n; k++)
        sum += x.at[(r * (int64_t)n + k) * x.stride + i];
    y.at[r * y.stride + i] = sum / (float)n;
}

extern "C" void cu_pool(cudaStream_t s, dev_mat y, dev_mat x, int32_t n)
{
    LAUNCH(pool_kernel, grid_of(y), dim3(256), 0, s, y, x, n);
}

/* x = (x - shift) * scale, column by column. In f32: shift reaches 5e4.
 * grid:   row x 256 columns
 * shared: none
 * bound:  bandwidth */
__global__ void standardize_kernel(dev_mat x, const float *shift, const float *scale)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    if (i < x.cols)
        x.at[r * x.stride + i] = (x.at[r * x.stride + i] - shift[i]) * scale[i];
}

extern "C" void cu_standardize(cudaStream_t s, dev_mat x, const float *shift, const float *scale)
{
    LAUNCH(standardize_kernel, grid_of(x), dim3(256), 0, s, x, shift, scale);
}

/* x = act(x)
 * grid:   row x 256 columns
 * shared: none
 * bound:  bandwidth */
template <int ACT> __global__ void act_kernel(dev_mat x)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    if (i < x.cols)
        x.at[r * x.stride + i] = act_of<ACT>(x.at[r * x.stride + i]);
}

extern "C" void cu_act(cudaStream_t s, dev_mat x, int act)
{
    if (act == 1)
        LAUNCH(act_kernel<1>, grid_of(x), dim3(256), 0, s, x);
    else if (act == 2)
        LAUNCH(act_kernel<2>, grid_of(x), dim3(256), 0, s, x);
    else if (act == 3)
        LAUNCH(act_kernel<3>, grid_of(x), dim3(256), 0, s, x);
    else if (act == 5)
        LAUNCH(act_kernel<5>, grid_of(x), dim3(256), 0, s, x);
    else
        LAUNCH(act_kernel<0>, grid_of(x), dim3(256), 0, s, x);
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
