/* kv_store.cu - writes rows of keys and values to their places in a store, in any format; and
 * rotates queries and results for rotated formats. Few rows in the heads of large models seldom
 * come here: heads_kernel (norm.cu) stores them right after the norm.
 */
#include "backend/cuda/attend/key_walk.cuh"
#include "backend/cuda/attend/kv_formats.cuh"
#include "backend/cuda/launch_small.h"

/* One element, of the formats without blocks. */
DEV void store_one(void *row, int kind, int e, float v)
{
    if (kind == KV_F32)
        ((float *)row)[e] = v;
    else
        ((uint16_t *)row)[e] = (uint16_t)(kind == KV_F16 ? kv_f16(v) : f32_to_bf16(v));
}

/* k, v: [rows, n_head_kv * head_dim], to the places of the rows' keys.
 * grid:   row x 256 columns
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(256) kv_store_kernel(dev_kv kv, dev_step st, dev_mat k, dev_mat v)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    if (i >= k.cols)
        return;
    int h = i / kv.head_dim, e = i % kv.head_dim;
    store_one(stored_row(kv, st, r, h, true), kv.k_kind, e, k.at[r * k.stride + i]);
    if (!kv.single)
        store_one(stored_row(kv, st, r, h, false), kv.v_kind, e, v.at[r * v.stride + i]);
}

/* The same where keys or values are in blocks: four columns a lane, so a warp has whole blocks, and
 * whole groups of a rotation.
 * grid:   row x 1024 columns x (keys, values) */
__global__ void __launch_bounds__(256)
    kv_encode_kernel(dev_kv kv, dev_step st, dev_mat k, dev_mat v)
{
    grid_trigger();
    grid_wait();
    int i = 4 * (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    bool values = blockIdx.z, in = i < k.cols;
    const dev_mat &m = values ? v : k;
    const float *x = m.at + r * m.stride + (in ? i : 0);
    int h = (in ? i : 0) / kv.head_dim, e = i - h * kv.head_dim;
    kv_encode(stored_row(kv, st, r, h, !values), values ? kv.v_kind : kv.k_kind,
              values ? kv.v_rot : kv.k_rot, e, make_float4(x[0], x[1], x[2], x[3]), in);
}

extern "C" void cu_kv_store(cudaStream_t s, dev_kv kv, dev_step st, dev_mat k, dev_mat v)
{
    unsigned n = (unsigned)k.cols, rows = (unsigned)k.rows;
    if (kv.k_kind <= KV_BF16 && kv.v_kind <= KV_BF16)
        LAUNCH(kv_store_kernel, dim3(rows, (n + 255) / 256), dim3(256), 0, s, kv, st, k, v);
    else
        LAUNCH(kv_encode_kernel, dim3(rows, (n + 1023) / 1024, kv.single ? 1 : 2), dim3(256), 0, s,
               kv, st, k, v);
}

/* y = Rot x or Rot^-1 x, for every group of 128 columns; y may be x.
 * grid:   row x 8 groups
 * shared: none
 * bound:  bandwidth */
__global__ void __launch_bounds__(256) rotate_kernel(dev_mat y, dev_mat x, bool back)
{
    grid_trigger();
    grid_wait();
    int i = 4 * (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    bool in = i < x.cols;
    float4 v = make_float4(0, 0, 0, 0);
    if (in)
        v = *(const float4 *)(x.at + r * x.stride + i);
    v = rotate_four(v, back);
    if (in)
        *(float4 *)(y.at + r * y.stride + i) = v;
}

extern "C" void cu_rotate(cudaStream_t s, dev_mat y, dev_mat x, bool back)
{
    LAUNCH(rotate_kernel, dim3((unsigned)x.rows, (unsigned)((x.cols + 1023) / 1024)), dim3(256), 0,
           s, y, x, back);
}
