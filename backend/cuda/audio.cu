/* audio.cu - the ops that audio towers alone have: unfolded rows for convolutions, a convolution of
 * every column alone, and attention to the rows just before a row.
 *
 * 30 seconds are 750 rows of 1024, and products take the time. So these are plain: one thread per
 * value, or one warp per head of a row.
 */
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/launch_small.h"

/* What op_unfold says: the 3 x 3 neighbours of a place in time and frequency, zero outside.
 * grid:   256 values, rows side by side: a row may have 9 values alone
 * shared: none
 * bound:  bandwidth */
__global__ void unfold_kernel(dev_mat y, dev_mat x, int heads, int first)
{
    grid_trigger();
    grid_wait();
    int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    int places = (heads + 1) / 2, channels = x.cols / heads;
    int r = (int)(at / y.cols), i = (int)(at % y.cols);
    if (r >= y.rows)
        return;
    int time = 2 * (first + r / places) - 1 + i % 9 / 3, place = 2 * (r % places) - 1 + i % 3;
    bool inside = time >= 0 && time < x.rows && place >= 0 && place < heads;
    y.at[r * y.stride + i] = inside ? x.at[time * x.stride + place * channels + i / 9] : 0.0f;
}

extern "C" void cu_unfold(cudaStream_t s, dev_mat y, dev_mat x, int32_t heads, int32_t first)
{
    int64_t n = (int64_t)y.rows * y.cols;
    LAUNCH(unfold_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, y, x, heads, first);
}

/* y[r] = sum_j taps[j] x[r - (n - 1) + j], column by column, in ascending j; rows before the first
 * are zero. Of n reads n - 1 are from a cache. */
extern "C" void cu_depthwise(cudaStream_t s, dev_mat y, dev_mat x, const float *taps, int32_t n)
{
    each_value(s, y, [=] __device__(int r, int i) {
        float sum = 0;
        for (int j = n - 1 - r > 0 ? n - 1 - r : 0; j < n; j++)
            sum = fma_rn(taps[(int64_t)i * n + j], value_of(x, r - (n - 1) + j, i), sum);
        return sum;
    });
}

/* What op_near says. Lane l has the scores of distances l and l + 32:
 *
 *     distance   0 1 2 .. 31 | 32 33 .. 63       at most 64 (NEAR_MAX)
 *     lane       0 1 2 .. 31 |  0  1 .. 31
 *
 * grid:   one warp per row and head, 8 warps per block
 * shared: none
 * bound:  bandwidth of the caches: neighbouring rows read the same keys and values */
__global__ void __launch_bounds__(256) near_kernel(near_args a)
{
    grid_trigger();
    grid_wait();
    int lane = lane_id(), task = (int)(blockIdx.x * 8 + threadIdx.x / 32);
    int r = task / a.heads, h = task % a.heads, n_dims = a.q.cols / a.heads;
    if (r >= a.q.rows)
        return;
    int n = r + 1 < a.n_near ? r + 1 : a.n_near;
    const float *q = a.q.at + r * a.q.stride + h * n_dims;
    float near_score = -INFINITY, far_score = -INFINITY;
    for (int d = 0; d < n; d++) {
        const float *k = a.k.at + (r - d) * a.k.stride + h * n_dims;
        const float *far = a.far.at + d * a.far.stride + h * n_dims;
        float dot = 0;
        for (int i = lane; i < n_dims; i += 32)
            dot = fma_rn(mul_rn(q[i], a.scale[i]), fma_rn(a.k_factor, k[i], far[i]), dot);
        float score = a.cap * tanhf(a.c * warp_sum(dot) / a.cap);
        if (lane == d % 32)
            *(d < 32 ? &near_score : &far_score) = score;
    }
    float most = warp_max(near_score > far_score ? near_score : far_score);
    float near_share = expf(near_score - most), far_share = expf(far_score - most);
    float sum = warp_sum(near_share + far_share);
    for (int first = 0; first < n_dims; first += 32) { /* all lanes: shfl_f32 wants them */
        int i = first + lane;
        float y = 0;
        for (int d = 0; d < n; d++) {
            float share = shfl_f32(d < 32 ? near_share : far_share, d % 32);
            if (i < n_dims)
                y = fma_rn(share, a.v.at[(r - d) * a.v.stride + h * n_dims + i], y);
        }
        if (i < n_dims)
            a.o.at[r * a.o.stride + h * n_dims + i] = y / sum;
    }
}

extern "C" void cu_near(cudaStream_t s, near_args a)
{
    int64_t n = (int64_t)a.q.rows * a.heads;
    LAUNCH(near_kernel, dim3((unsigned)((n + 7) / 8)), dim3(256), 0, s, a);
}
