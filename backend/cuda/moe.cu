/* moe.cu - which experts a row goes to.
 *
 * The products of experts are in matmul_vec.cu and matmul_float.cu: a launch covers all (row,
 * expert) pairs and reads the expert's number on the device, so the host never learns the choice.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/dev.cuh"

/* id: the k largest of softmax(z), best first, ties to the lower index; share: their probabilities
 * over their sum, times scale[id]. The softmax's own sum cancels.
 * grid:   a warp per row
 * shared: z and whether it is taken
 * bound:  latency: k rounds of a warp-wide maximum */
__global__ void __launch_bounds__(32)
    route_kernel(int32_t *id, float *share, int k, dev_mat logits, const float *scale)
{
    grid_trigger();
    grid_wait();
    DYN_SHARED(float, z);
    int n = logits.cols, r = (int)blockIdx.x, lane = lane_id();
    uint8_t *taken = (uint8_t *)(z + n);
    for (int e = lane; e < n; e += 32) {
        z[e] = logits.at[r * logits.stride + e];
        taken[e] = 0;
    }
    __syncwarp();
    float top = 0, sum = 0;
    for (int j = 0; j < k; j++) {
        int best = -1;
        float v = 0;
        for (int e = lane; e < n; e += 32)
            if (!taken[e] && (best < 0 || z[e] > v)) { /* a NaN never compares larger */
                best = e;
                v = z[e];
            }
        for (int m = 16; m; m >>= 1) {
            int other = (int)shfl_xor_u32((uint32_t)best, m);
            float u = shfl_xor_f32(v, m);
            bool better = best < 0 || (other >= 0 && (u > v || (!(v > u) && other < best)));
            if (better && other >= 0) {
                best = other;
                v = u;
            }
        }
        best = (int)shfl_u32((uint32_t)best, 0);
        v = shfl_f32(v, 0);
        if (j == 0)
            top = v;
        float p = expf(v - top);
        sum += p;
        __syncwarp();
        if (lane == 0) {
            taken[best] = 1;
            id[(size_t)r * k + j] = best;
            share[(size_t)r * k + j] = p;
        }
        __syncwarp();
    }
    for (int j = lane; j < k; j += 32) {
        size_t at = (size_t)r * k + j;
        share[at] = share[at] / sum * (scale ? scale[id[at]] : 1.0f);
    }
}

extern "C" void cu_route(cudaStream_t s, int32_t *id, float *share, int32_t k, dev_mat logits,
                         const float *expert_scale)
{
    size_t shared = (size_t)logits.cols * 5;
    LAUNCH(route_kernel, dim3((unsigned)logits.rows), dim3(32), shared, s, id, share, k, logits,
           expert_scale);
}

/* y[r, o] = sum_j share[r, j] part[r, j, o], in ascending j
 * grid:   256 columns x row
 * shared: none
 * bound:  bandwidth */
__global__ void __launch_bounds__(256)
    join_kernel(dev_mat y, const float *part, const float *share, int k)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    if (i >= y.cols)
        return;
    float v = 0;
    for (int j = 0; j < k; j++)
        v = fma_rn(share[(size_t)r * k + j], part[((size_t)r * k + j) * y.cols + i], v);
    y.at[r * y.stride + i] = v;
}

extern "C" void cu_expert_join(cudaStream_t s, dev_mat y, const float *part, const float *share,
                               int32_t k)
{
    LAUNCH(join_kernel, dim3((unsigned)((y.cols + 255) / 256), (unsigned)y.rows), dim3(256), 0, s,
           y, part, share, k);
}
