/* rope.cu - rotary embedding alone. Mostly heads_kernel (norm.cu) rotates heads after their
 * norm. */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/dev.cuh"

/* Pairs (i, i + n_pairs), or (2 i, 2 i + 1), of every head turned by pos * inv_freq[i], in place.
 * grid:   row x 256 (head, pair)
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(256) rope_kernel(rope_args a)
{
    grid_trigger();
    grid_wait();
    int k = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    int h = k / a.n_pairs, i = k % a.n_pairs;
    if (h >= a.heads)
        return;
    float sn, cs;
    int axis = a.section[0] ? woven_axis(a.section, i) : i / a.range;
    int pos = a.pos[axis][r];
    turn_of(pos, a.inv_freq[i], &sn, &cs);
    float factor = a.factor;
    if (a.grow != 0)
        factor *= 1 + a.grow * logf((float)(1 + pos / a.period));
    sn *= factor, cs *= factor;
    float *v =
        a.x.at + r * a.x.stride + (int64_t)h * a.head_dim + i * a.pair_width + i / a.part * a.part;
    float p = v[0], q = v[a.pair_step];
    v[0] = p * cs - q * sn;
    v[a.pair_step] = p * sn + q * cs;
}

extern "C" void cu_rope(cudaStream_t s, rope_args a)
{
    unsigned n = (unsigned)(a.heads * a.n_pairs);
    LAUNCH(rope_kernel, dim3((unsigned)a.x.rows, (n + 255) / 256), dim3(256), 0, s, a);
}
