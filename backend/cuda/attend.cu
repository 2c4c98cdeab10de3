/* attend.cu - attention of any shape: one plain kernel, and the joining of chunks.
 *
 *     keys  |...........|xxxxxxxxxxx|xxxxxxxxxxx|xxxx.......|
 *            chunk 0     chunk 1     chunk 2     chunk 3        lo ..^          ^.. hi
 *
 * Keys are cut into chunks of a fixed size at fixed indices; a block takes one row, one KV head
 * with all its query heads, and one chunk, and leaves a partial softmax. combine_kernel joins a
 * row's chunks in ascending order. Neither depends on what else is in the batch. With many rows
 * there is enough to do without the cut: then a block walks all chunks of its row itself. Scores,
 * softmax and sums are f32; q is never rounded.
 */
#include "backend/cuda/attend.cuh"

enum { KEYS = 64 }; /* per step; chunks are multiples of it */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   chunk (1 when not split) x KV head x row; 4 warps
 * shared: q and o of the group's heads, scores of 64 keys
 * bound:  instructions: every value is widened and multiplied in f32 */
__global__ void __launch_bounds__(128) attend_kernel(attend_args a)
{
    grid_trigger();
    grid_wait();
    DYN_SHARED(float, mem);
    __shared__ float top[64], total[64], shrink[64];
    int r = (int)blockIdx.z, g = (int)blockIdx.y, d = a.kv.head_dim;
    int group = a.n_head / a.kv.n_head_kv, h0 = g * group;
    float *q = mem, *o = q + group * d, *p = o + group * d; /* p: [group][KEYS] */
    int warp = (int)threadIdx.x >> 5, lane = lane_id();
    sight s = row_sight(a.st.rows, r, a.kv.window);
    int chunk0 = s.lo / a.chunk, from = s.lo, to = s.hi;
    if (a.part) {
        from = max(s.lo, (chunk0 + (int)blockIdx.x) * a.chunk);
        to = min(s.hi, (chunk0 + (int)blockIdx.x + 1) * a.chunk);
        if (from >= to)
            return;
    }
    dev_kv_base base = a.st.kv[(size_t)a.st.rows.seq[r] * a.st.n_kv + a.kv.id];
    size_t head = (size_t)g * a.kv.n_slots * d;
    for (int i = (int)threadIdx.x; i < group * d; i += 128) {
        q[i] = a.q.at[r * a.q.stride + h0 * d + i] * a.scale;
        o[i] = 0;
    }
    for (int h = (int)threadIdx.x; h < group; h += 128) {
        top[h] = -INFINITY;
        total[h] = 0;
    }
    __syncthreads();
    for (int t0 = from / KEYS * KEYS; t0 < to; t0 += KEYS) {
        for (int k = warp; k < KEYS; k += 4) {
            int t = t0 + k;
            bool sees = t >= from && t < to && row_sees(a.st.rows, r, a.kv.window, t);
            size_t at = head + (size_t)(t % a.kv.n_slots) * d;
            for (int h = 0; h < group; h++) {
                float sum = 0;
                if (sees)
                    for (int i = lane; i < d; i += 32)
                        sum = fma_rn(q[h * d + i], kv_value(base.k, a.kv.k_kind, at + i), sum);
                sum = warp_sum(sum);
                if (lane == 0)
                    p[h * KEYS + k] = sees ? sum : -INFINITY;
            }
        }
        __syncthreads();
        for (int h = warp; h < group; h += 4) {
            float x = p[h * KEYS + lane], y = p[h * KEYS + 32 + lane];
            float m = warp_max(x > y ? x : y), old = top[h];
            m = m > old ? m : old;
            float ex = m == -INFINITY ? 0 : expf(x - m), ey = m == -INFINITY ? 0 : expf(y - m);
            p[h * KEYS + lane] = ex;
            p[h * KEYS + 32 + lane] = ey;
            float sum = warp_sum(ex + ey), k = old == -INFINITY ? 0 : expf(old - m);
            __syncwarp();
            if (lane == 0) {
                top[h] = m;
                shrink[h] = k;
                total[h] = total[h] * k + sum;
            }
        }
        __syncthreads();
        int k0 = max(from - t0, 0), k1 = min(to - t0, (int)KEYS);
        for (int i = (int)threadIdx.x; i < group * d; i += 128) {
            int h = i / d;
            float sum = o[i] * shrink[h];
            for (int k = k0; k < k1; k++) {
                size_t at = head + (size_t)((t0 + k) % a.kv.n_slots) * d + i % d;
                sum = fma_rn(p[h * KEYS + k], kv_value(base.v, a.kv.v_kind, at), sum);
            }
            o[i] = sum;
        }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < group * d; i += 128) {
        int h = i / d;
        if (!a.part) {
            a.o.at[r * a.o.stride + h0 * d + i] = o[i] / total[h];
            continue;
        }
        float *part = part_at(a, r, h0 + h, (int)blockIdx.x);
        part[i % d] = o[i];
        if (i % d == 0) {
            part[d] = top[h];
            part[d + 1] = total[h];
        }
    }
}

enum { PARTS_MAX = 1024 };

/* o[r, h] from the partial results of its chunks, and its int8 copy where wanted.
 * grid:   head x row; threads over head_dim
 * shared: a weight per chunk
 * bound:  latency; at long contexts reading the parts, 1 / chunk of the keys' own bytes */
__global__ void __launch_bounds__(256) combine_kernel(attend_args a, dev_quant q)
{
    __shared__ float weight[PARTS_MAX];
    grid_trigger();
    grid_wait();
    int h = (int)blockIdx.x, r = (int)blockIdx.y, d = a.kv.head_dim, lane = lane_id();
    sight s = row_sight(a.st.rows, r, a.kv.window);
    int n = (s.hi - 1) / a.chunk - s.lo / a.chunk + 1;
    const float *part = part_at(a, r, h, 0);
    float m = -INFINITY, total = 0;
    for (int c = lane; c < n; c += 32)
        m = fmaxf(m, part[(size_t)c * (d + 2) + d]);
    m = warp_max(m);
    for (int c = lane; c < n; c += 32) {
        float w = expf(part[(size_t)c * (d + 2) + d] - m);
        total = fma_rn(part[(size_t)c * (d + 2) + d + 1], w, total);
        if (threadIdx.x < 32)
            weight[c] = w;
    }
    total = warp_sum(total);
    __syncthreads();
    for (int i = (int)threadIdx.x; (i & ~31) < d; i += (int)blockDim.x) {
        float v = 0;
        if (i < d) {
#pragma unroll 8
            for (int c = 0; c < n; c++)
                v = fma_rn(part[(size_t)c * (d + 2) + i], weight[c], v);
            v /= total;
            a.o.at[r * a.o.stride + h * d + i] = v;
        }
        if (q.q)
            quantise_warp(v, q, r, (h * d + i) / 32);
    }
}

extern "C" void cu_attend_combine(cudaStream_t s, attend_args a, dev_quant q)
{
    int threads = a.kv.head_dim >= 256 ? 256 : (a.kv.head_dim + 31) & ~31;
    LAUNCH(combine_kernel, dim3((unsigned)a.n_head, (unsigned)a.q.rows), dim3((unsigned)threads), 0,
           s, a, q);
}

extern "C" void cu_attend(cudaStream_t s, attend_args a)
{
    int group = a.n_head / a.kv.n_head_kv;
    size_t shared = (size_t)group * (2 * (size_t)a.kv.head_dim + KEYS) * sizeof(float);
    LAUNCH(attend_kernel,
           dim3(a.part ? (unsigned)a.n_chunk : 1, (unsigned)a.kv.n_head_kv, (unsigned)a.q.rows),
           dim3(128), shared, s, a);
}

/* Once, at open: the shared memory that groups of 16 heads of 512 take. */
extern "C" int cu_attend_init(int shared_max)
{
#ifdef CARAT_EMU
    return shared_max < 0;
#else
    return (int)cudaFuncSetAttribute(attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     shared_max);
#endif
}
