/* rope.cu - rotary embedding alone. Mostly heads_kernel (norm.cu) rotates heads after their
 * norm. */
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/dev.cuh"

/* Pairs (i, i + n_pairs) of every head turned by pos * inv_freq[i], in place.
 * grid:   256 (head, pair) x row
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(256)
    rope_kernel(dev_mat x, int heads, const int32_t *pos, const float *inv_freq, int n_pairs)
{
    grid_trigger();
    grid_wait();
    int k = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    int h = k / n_pairs, i = k % n_pairs;
    if (h >= heads)
        return;
    float sn, cs;
    turn_of(pos[r], inv_freq[i], &sn, &cs);
    float *v = x.at + r * x.stride + (int64_t)h * 2 * n_pairs;
    float p = v[i], q = v[i + n_pairs];
    v[i] = p * cs - q * sn;
    v[i + n_pairs] = p * sn + q * cs;
}

extern "C" void cu_rope(cudaStream_t s, dev_mat x, int32_t heads, const int32_t *pos,
                        const float *inv_freq, int32_t n_pairs)
{
    unsigned n = (unsigned)(heads * n_pairs);
    LAUNCH(rope_kernel, dim3((n + 255) / 256, (unsigned)x.rows), dim3(256), 0, s, x, heads, pos,
           inv_freq, n_pairs);
}
