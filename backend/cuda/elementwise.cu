/* elementwise.cu - ops that touch each value once: embed, act_mul, add, scale, gather, softcap.
 *
 * A row may be part of a wider one (one head of every row). All are bound by launch latency at few
 * rows and by bandwidth at many.
 */
#include "backend/cuda/activations.cuh"
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/experts/own.cuh"
#include "backend/cuda/launch_small.h"
#include "backend/cuda/product/blocks.cuh"

enum { T_F32 = 0, T_F16 = 1, T_BF16 = 30 };

static dim3 grid_of(dev_mat y, int per_block)
{
    return dim3((unsigned)y.rows, (unsigned)((y.cols + per_block - 1) / per_block));
}

/* The token of row r; -1: not in the table. */
DEV int id_of(const row_ids &ids, int r)
{
    if (ids.token)
        return ids.token[r];
    float id = ids.at[r * ids.stride];
    return id >= 0 && id < (float)ids.n_ids ? (int)id : -1;
}

DEV float float_value(const uint8_t *row, int type, int i)
{
    return type == T_F32   ? ((const float *)row)[i]
           : type == T_F16 ? f16_to_f32(((const uint16_t *)row)[i])
                           : bf16_to_f32(((const uint16_t *)row)[i]);
}

DEV uint32_t table_u16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}
DEV float iq4(int q)
{
    const uint64_t lo = 0xf6eaddcfbfad9881ull, hi = 0x7159453526190d01ull;
    return (float)(int8_t)((q < 8 ? lo : hi) >> 8 * (q & 7));
}

/* Element i of a stored row of K-format super-blocks. */
DEV float k_value(const uint8_t *row, int type, int i)
{
    int in = i & 255, g = in >> 4, j = in >> 5, l = in & 31, k = g % 8 / 2, at = g % 2 * 16;
    int e = in & 15;
    if (type == 12 || type == 13) { /* Q4_K, Q5_K */
        const uint8_t *p = row + (size_t)(i >> 8) * (type == 12 ? 144 : 176), *b = p + 4;
        int sc = j < 4 ? b[j] & 63 : (b[j + 4] & 15) | b[j - 4] >> 6 << 4;
        int mn = j < 4 ? b[j + 4] & 63 : b[j + 4] >> 4 | b[j] >> 6 << 4;
        const uint8_t *q = p + (type == 12 ? 16 : 48) + 32 * (j / 2);
        int c = j & 1 ? q[l] >> 4 : q[l] & 15;
        if (type == 13)
            c += (p[16 + l] >> j & 1) * 16;
        return mul_rn(mul_rn(f16_to_f32(table_u16(p)), (float)sc), (float)c) -
               mul_rn(f16_to_f32(table_u16(p + 2)), (float)mn);
    }
    if (type == 14) { /* Q6_K */
        const uint8_t *p = row + (size_t)(i >> 8) * 210;
        int low = p[g / 8 * 64 + k % 2 * 32 + at + e] >> k / 2 * 4 & 15;
        int high = p[128 + g / 8 * 32 + at + e] >> 2 * k & 3;
        return mul_rn(f16_to_f32(table_u16(p + 208)), (float)(int8_t)p[192 + g]) *
               (float)((low | high << 4) - 32);
    }
    if (type == 10) { /* Q2_K */
        const uint8_t *p = row + (size_t)(i >> 8) * 84;
        int q = p[16 + g / 8 * 32 + at + e] >> 2 * k & 3;
        return mul_rn(mul_rn(f16_to_f32(table_u16(p + 80)), (float)(p[g] & 15)), (float)q) -
               mul_rn(f16_to_f32(table_u16(p + 82)), (float)(p[g] >> 4));
    }
    if (type == 11) { /* Q3_K */
        const uint8_t *p = row + (size_t)(i >> 8) * 110, *sc = p + 96;
        int q = (p[32 + g / 8 * 32 + at + e] >> 2 * k & 3) - 4 + (p[at + e] >> j & 1) * 4;
        int s = ((g < 8 ? sc[g] & 15 : sc[g - 8] >> 4) | (sc[8 + g % 4] >> 2 * (g / 4) & 3) << 4);
        return mul_rn(f16_to_f32(table_u16(p + 108)), (float)(s - 32)) * (float)q;
    }
    const uint8_t *p = row + (size_t)(i >> 8) * 136; /* IQ4_XS */
    int ls = (p[4 + j / 2] >> 4 * (j & 1) & 15) | (int)(table_u16(p + 2) >> 2 * j & 3) << 4;
    const uint8_t *q = p + 8 + 16 * j;
    return mul_rn(f16_to_f32(table_u16(p)), (float)(ls - 32)) *
           iq4(l < 16 ? q[l] & 15 : q[l - 16] >> 4);
}

/* Element i of a stored row of blocks of 32. */
DEV float block_value(const uint8_t *row, int type, int i)
{
    int l = i & 31;
    int head = type == 2 ? 2 : type == 3 ? 4 : type == 6 ? 6 : type == 7 ? 8 : type == 39 ? 1 : 2;
    const uint8_t *p = row + (size_t)(i >> 5) * (type == 8 ? 34 : head + 16), *q = p + head;
    float d = type == 39
                  ? __uint_as_float(p[0] < 2 ? 0x00200000u << p[0] : (uint32_t)(p[0] - 1) << 23)
                  : f16_to_f32(table_u16(p));
    if (type == 8)
        return (float)(int8_t)q[l] * d;
    int c = l < 16 ? q[l] & 15 : q[l - 16] >> 4;
    if (type == 6 || type == 7)
        c |= (q[-4 + l / 8] >> l % 8 & 1) << 4;
    if (type == 2 || type == 6)
        return (float)(c - (type == 2 ? 8 : 16)) * d;
    if (type == 3 || type == 7)
        return mul_rn((float)c, d) + f16_to_f32(table_u16(p + 2));
    if (type == 20)
        return iq4(c) * d;
    int m = (int)(0x0c08060403020100ull >> 8 * (c & 7) & 0xff); /* MXFP4 */
    return (float)(c < 8 ? m : -m) * d;
}

/* Element i of a row of blocks. */
DEV float stored_value(const uint8_t *row, int type, int i)
{
    bool k = (type >= 10 && type <= 14) || type == 23;
    float f;
    if (small_block(type))
        return (float)small_code(type, row, i >> 5, i & 31, &f) * f;
    return k ? k_value(row, type, i) : block_value(row, type, i);
}

/* Rows of a weight as the file has them; FLOATS: no blocks. */
template <bool FLOATS> struct table_rows {
    const uint8_t *at;
    int type;
    size_t row_bytes;
    DEV float value(size_t row, int i) const
    {
        const uint8_t *from = at + row * row_bytes;
        return FLOATS ? float_value(from, type, i) : stored_value(from, type, i);
    }
};
static bool is_float(int type)
{
    return type == T_F32 || type == T_F16 || type == T_BF16;
}

template <bool FLOATS>
void embed(cudaStream_t s, dev_mat y, table_rows<FLOATS> table, row_ids ids, float scale)
{
    each_value(s, y, [=] __device__(int r, int i) {
        int id = id_of(ids, r);
        float v = table.value((size_t)max(id, 0), i);
        return id < 0 ? NAN : v * scale;
    });
}
extern "C" void cu_embed(cudaStream_t s, dev_mat y, const void *table, int type, size_t row_bytes,
                         row_ids ids, float scale)
{
    const uint8_t *at = (const uint8_t *)table;
    if (is_float(type))
        embed<true>(s, y, {at, type, row_bytes}, ids, scale);
    else
        embed<false>(s, y, {at, type, row_bytes}, ids, scale);
}

template <bool FLOATS>
void embed_mix(cudaStream_t s, dev_mat y, table_rows<FLOATS> table, dev_mat ids, dev_mat share)
{
    each_value(s, y, [=] __device__(int r, int i) {
        float sum = 0;
        for (int k = 0; k < ids.cols; k++)
            sum += mul_rn(value_of(share, r, k), table.value((size_t)value_of(ids, r, k), i));
        return sum;
    });
}
extern "C" void cu_embed_mix(cudaStream_t s, dev_mat y, const void *table, int type,
                             size_t row_bytes, dev_mat ids, dev_mat share)
{
    const uint8_t *at = (const uint8_t *)table;
    if (is_float(type))
        embed_mix<true>(s, y, {at, type, row_bytes}, ids, share);
    else
        embed_mix<false>(s, y, {at, type, row_bytes}, ids, share);
}

/* y[r, i] = act(a[r, i / share]) * b[r, i], and its int8 or bf16 copy where wanted.
 * grid:   row x 256 columns
 * shared: none
 * bound:  bandwidth */
template <int ACT>
__global__ void act_mul_kernel(dev_mat y, dev_mat a, dev_mat b, int share, dev_quant q)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    bool in = i < y.cols;
    float v = 0;
    if (in) {
        int at = share == 1 ? i : i / share;
        v = act_times<ACT>(a.at[r * a.stride + at], b.at[r * b.stride + i]);
        y.at[r * y.stride + i] = v;
    }
    int base = i & ~31; /* with q, cols % 32 == 0, so a warp is inside or outside as a whole */
    if (q.q && base < y.cols)
        quantise_warp(v, q, r, base / 32);
    if (q.bf && in)
        q.bf[(size_t)r * y.cols + i] = (uint16_t)f32_to_bf16(v);
}

/* The same of many rows: four columns a thread; share is 1 or a multiple of 4.
 * grid:   row x 1024 columns
 * shared: none
 * bound:  bandwidth */
template <int ACT>
__global__ void act_mul_four_kernel(dev_mat y, dev_mat a, dev_mat b, int share, dev_quant q)
{
    grid_trigger();
    grid_wait();
    int i = 4 * (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    bool in = i < y.cols;
    float4 v = make_float4(0, 0, 0, 0);
    if (in) {
        v = *(const float4 *)(b.at + r * b.stride + i);
        const float *from = a.at + r * a.stride;
        if (share > 1) {
            float g = act_of<ACT>(from[i / share]);
            v = make_float4(g * v.x, g * v.y, g * v.z, g * v.w);
        } else {
            float4 u = *(const float4 *)(from + i);
            v = make_float4(act_times<ACT>(u.x, v.x), act_times<ACT>(u.y, v.y),
                            act_times<ACT>(u.z, v.z), act_times<ACT>(u.w, v.w));
        }
        *(float4 *)(y.at + r * y.stride + i) = v;
    }
    if (q.q)
        quantise_four(v, q, r, in ? i : 0, in);
    if (q.bf && in)
        *(uint2 *)(q.bf + (size_t)r * y.cols + i) =
            make_uint2(f32x2_to_bf16(v.x, v.y), f32x2_to_bf16(v.z, v.w));
}

static bool by_fours(dev_mat m)
{
    return m.stride % 4 == 0 && (uintptr_t)m.at % 16 == 0;
}

template <int ACT>
static void act_mul(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b, int share, dev_quant q)
{
    enum { MANY = 64 }; /* rows; fewer are quicker with a column a thread */
    bool gates = share == 1 ? by_fours(a) : share % 4 == 0;
    if (gates && y.rows >= MANY && y.cols % 4 == 0 && by_fours(y) && by_fours(b))
        LAUNCH(act_mul_four_kernel<ACT>, grid_of(y, 1024), dim3(256), 0, s, y, a, b, share, q);
    else
        LAUNCH(act_mul_kernel<ACT>, grid_of(y, 256), dim3(256), 0, s, y, a, b, share, q);
}

extern "C" void cu_act_mul(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b, int act, int share,
                           dev_quant q)
{
    if (act == 1)
        act_mul<1>(s, y, a, b, share, q);
    else if (act == 2)
        act_mul<2>(s, y, a, b, share, q);
    else if (act == 3)
        act_mul<3>(s, y, a, b, share, q);
    else if (act == 4)
        act_mul<4>(s, y, a, b, share, q);
    else if (act == 5)
        act_mul<5>(s, y, a, b, share, q);
    else
        act_mul<0>(s, y, a, b, share, q);
}

extern "C" void cu_add(cudaStream_t s, dev_mat y, dev_mat a, dev_mat b)
{
    each_value(s, y, [=] __device__(int r, int i) { return value_of(a, r, i) + value_of(b, r, i); });
}

extern "C" void cu_bias(cudaStream_t s, dev_mat y, const float *bias)
{
    each_value(s, y, [=] __device__(int r, int i) { return value_of(y, r, i) + bias[i]; });
}
extern "C" void cu_pair_bias(cudaStream_t s, dev_mat y, const int32_t *expert, expert_range own,
                             const float *bias)
{
    each_value(s, y, [=] __device__(int r, int i) {
        const int e = own_mat(own, expert[r]);
        return e < 0 ? value_of(y, r, i) : value_of(y, r, i) + bias[(size_t)e * y.cols + i];
    });
}
extern "C" void cu_expert_bias(cudaStream_t s, dev_mat y, const int32_t *expert, expert_range own,
                               const float *share, int32_t k, const float *bias)
{
    each_value(s, y, [=] __device__(int r, int i) {
        float v = 0;
        for (int j = 0; j < k; j++) {
            const int e = own_mat(own, expert[r * k + j]);
            if (e >= 0)
                v = fma_rn(share[r * k + j], bias[(size_t)e * y.cols + i], v);
        }
        return value_of(y, r, i) + v;
    });
}

extern "C" void cu_scale(cudaStream_t s, dev_mat x, float c, const float *w)
{
    each_value(s, x, [=] __device__(int r, int i) {
        return value_of(x, r, i) * (w ? c * w[0] : c);
    });
}

extern "C" void cu_gather(cudaStream_t s, dev_mat y, dev_mat x, const int32_t *row)
{
    each_value(s, y, [=] __device__(int r, int i) { return value_of(x, row ? row[r] : r, i); });
}

/* x = cap * tanh(x / cap) where cap > 0; then x[ids] = -inf. A thread looks for its own column in
 * the list, which is a few ids long.
 * grid:   row x 1024 columns
 * shared: none
 * bound:  bandwidth: a thread has four values in flight */
enum { CAPPED = 4 };
__global__ void softcap_kernel(dev_mat x, float cap, const int32_t *ids, int n_ids)
{
    grid_trigger();
    grid_wait();
    int i0 = (int)(blockIdx.y * 256 * CAPPED + threadIdx.x), r = (int)blockIdx.x;
    float *at = x.at + r * x.stride, v[CAPPED];
#pragma unroll
    for (int j = 0; j < CAPPED; j++)
        v[j] = i0 + 256 * j < x.cols ? at[i0 + 256 * j] : 0;
#pragma unroll
    for (int j = 0; j < CAPPED; j++)
        if (cap > 0)
            v[j] = cap * tanhf(v[j] / cap);
    for (int k = 0; k < n_ids; k++) {
        int id = ids[k];
#pragma unroll
        for (int j = 0; j < CAPPED; j++)
            if (id == i0 + 256 * j)
                v[j] = -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < CAPPED; j++)
        if (i0 + 256 * j < x.cols)
            at[i0 + 256 * j] = v[j];
}

extern "C" void cu_softcap(cudaStream_t s, dev_mat x, float cap, const int32_t *ids, int32_t n_ids)
{
    LAUNCH(softcap_kernel, grid_of(x, 256 * CAPPED), dim3(256), 0, s, x, cap, ids, n_ids);
}
