/* matmul_float.cu - products with weights of floats: F32, F16, BF16, in the file's rows.
 *
 * Activations and sums are f32. Routers, per-layer projections at few rows and test models take
 * this path. One warp computes an output. A lane's columns and the tree that adds the lanes are the
 * same at every row count.
 */
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/dev.cuh"

template <int K> DEV float load1(const uint8_t *row, int64_t i)
{
    if (K == PACK_F32)
        return ((const float *)row)[i];
    uint32_t u = ((const uint16_t *)row)[i];
    return K == PACK_F16 ? f16_to_f32(u) : bf16_to_f32(u);
}

struct float_args {
    dev_mat y, x;
    packed w;
    const int32_t *expert; /* [rows * k] or NULL: the matrix of output row r, head j */
    int32_t k, x_heads;    /* experts per row; x has one head for all, or one each */
    bool glu;              /* y = gelu(W x) * (W' x), W' = up, rows up_row.. */
    packed up;
    int32_t up_row, n_out;
};

/* y[r, o] = sum_i x[r, i] W[o, i]      W: floats, x: f32, rows in tiles of R
 * grid:   one warp per output, 8 warps per block; y: tiles of rows (experts: one pair each)
 * shared: none
 * bound:  reading W, once per R rows */
template <int K, int R> __global__ void __launch_bounds__(256) matmul_float_kernel(float_args a)
{
    grid_trigger();
    grid_wait();
    int o = (int)(blockIdx.x * 8 + (threadIdx.x >> 5)), lane = lane_id();
    if (o >= a.n_out)
        return;
    int r0 = (int)blockIdx.y * R, n = a.w.n_in, head = 0;
    size_t mat = 0;
    if (a.expert) { /* R is 1 */
        mat = (size_t)a.expert[r0];
        head = r0 % a.k;
        r0 /= a.k;
    }
    size_t width = K == PACK_F32 ? 4 : 2;
    const uint8_t *row = a.w.codes + mat * a.w.mat_bytes + (size_t)o * n * width;
    const uint8_t *row2 = row;
    if (a.glu)
        row2 = a.up.codes + mat * a.up.mat_bytes + (size_t)(o + a.up_row) * n * width;
    const float *x[R];
    float acc[R], acc2[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        int at = r0 + r < a.x.rows ? r0 + r : a.x.rows - 1; /* rows past the end repeat the last */
        x[r] = a.x.at + at * a.x.stride + (a.x_heads > 1 ? (int64_t)head * n : 0);
        acc[r] = acc2[r] = 0;
    }
    if (n % 4 == 0 && a.x.stride % 4 == 0) {
#pragma unroll 4
        for (int i = lane * 4; i < n; i += 128) {
            float4 w = load4<K>(row, i), u = a.glu ? load4<K>(row2, i) : w;
#pragma unroll
            for (int r = 0; r < R; r++) {
                float4 v = *(const float4 *)(x[r] + i);
                acc[r] = fma_rn(w.x, v.x, acc[r]);
                acc[r] = fma_rn(w.y, v.y, acc[r]);
                acc[r] = fma_rn(w.z, v.z, acc[r]);
                acc[r] = fma_rn(w.w, v.w, acc[r]);
                if (a.glu) {
                    acc2[r] = fma_rn(u.x, v.x, acc2[r]);
                    acc2[r] = fma_rn(u.y, v.y, acc2[r]);
                    acc2[r] = fma_rn(u.z, v.z, acc2[r]);
                    acc2[r] = fma_rn(u.w, v.w, acc2[r]);
                }
            }
        }
    } else {
        for (int i = lane; i < n; i += 32) {
            float w = load1<K>(row, i), u = a.glu ? load1<K>(row2, i) : w;
#pragma unroll
            for (int r = 0; r < R; r++) {
                acc[r] = fma_rn(w, x[r][i], acc[r]);
                if (a.glu)
                    acc2[r] = fma_rn(u, x[r][i], acc2[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float s = warp_sum(acc[r]), u = a.glu ? warp_sum(acc2[r]) : 0;
        if (lane == 0 && r0 + r < a.y.rows)
            a.y.at[(r0 + r) * a.y.stride + (int64_t)head * a.n_out + o] =
                a.glu ? gelu_tanh(s) * u : s;
    }
}

template <int R> static void launch_float(cudaStream_t s, float_args a, int tiles)
{
    dim3 grid((unsigned)((a.n_out + 7) / 8), (unsigned)tiles);
    if (a.w.kind == PACK_F32)
        LAUNCH((matmul_float_kernel<PACK_F32, R>), grid, dim3(256), 0, s, a);
    else if (a.w.kind == PACK_F16)
        LAUNCH((matmul_float_kernel<PACK_F16, R>), grid, dim3(256), 0, s, a);
    else
        LAUNCH((matmul_float_kernel<PACK_BF16, R>), grid, dim3(256), 0, s, a);
}

extern "C" void cu_matmul_float(cudaStream_t s, dev_mat y, dev_mat x, packed w)
{
    float_args a = {y, x, w, 0, 1, 1, false, w, 0, w.n_out};
    if (y.rows == 1)
        launch_float<1>(s, a, 1);
    else
        launch_float<8>(s, a, (y.rows + 7) / 8);
}

/* Experts: row r, head j of y is a product with matrix id[r * k + j]; with up, the gated pair. */
extern "C" void cu_expert_float(cudaStream_t s, dev_mat y, dev_mat x, int32_t x_heads,
                                const int32_t *id, int32_t k, packed w, const packed *up,
                                int32_t up_row, int32_t n_out)
{
    float_args a = {y, x, w, id, k, x_heads, up != 0, up ? *up : w, up_row, n_out};
    launch_float<1>(s, a, y.rows * k);
}
