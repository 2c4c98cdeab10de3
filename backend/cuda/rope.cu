/* rope.cu - rotary embedding, and rows of keys and values into their slots.
 * Few rows seldom come here: heads_kernel (norm.cu) does both after the norm.
 */
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

DEV void store_one(void *to, int kind, size_t at, float v)
{
    if (kind == KV_F32)
        ((float *)to)[at] = v;
    else
        ((uint16_t *)to)[at] = (uint16_t)(kind == KV_F16 ? f32_to_f16(v) : f32_to_bf16(v));
}

/* k, v: [rows, n_head_kv * head_dim], into the slots of the rows' indices.
 * grid:   256 columns x row
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(256) kv_store_kernel(dev_kv kv, dev_step st, dev_mat k, dev_mat v)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    if (i >= k.cols)
        return;
    dev_kv_base base = st.kv[(size_t)st.rows.seq[r] * st.n_kv + kv.id];
    int h = i / kv.head_dim, e = i % kv.head_dim, slot = st.rows.index[r] % kv.n_slots;
    size_t at = ((size_t)h * kv.n_slots + slot) * kv.head_dim + e;
    store_one(base.k, kv.k_kind, at, k.at[r * k.stride + i]);
    store_one(base.v, kv.v_kind, at, v.at[r * v.stride + i]);
}

extern "C" void cu_kv_store(cudaStream_t s, dev_kv kv, dev_step st, dev_mat k, dev_mat v)
{
    LAUNCH(kv_store_kernel, dim3((unsigned)((k.cols + 255) / 256), (unsigned)k.rows), dim3(256), 0,
           s, kv, st, k, v);
}
