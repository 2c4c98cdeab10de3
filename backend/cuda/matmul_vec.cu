/* matmul_vec.cu - one row times a block-format weight: the kernels of decoding.
 *
 * The activation is int8 with a scale per 32 columns; a weight's codes meet it in 4-way integer dot
 * products, exact within a group. A lane holds one of a tile's 16 rows and every second group, so
 * a warp reads 512 neighbouring bytes at a time and the activation is the same 64 bytes for all.
 * Wins at one row; from two rows on matmul_rows.cu reads the weight once for all, and adds the
 * same numbers in the same order.
 */
#include "backend/cuda/product.cuh"

/* One warp's part of tile x row: groups [g0, g1) of matrix `mat`, every second one from the lane's
 * parity. Both parities' sums joined; lanes 0..15 hold rows 0..15. */
template <int K>
DEV float warp_row(const packed &w, size_t mat, int tile, int g0, int g1, const dev_quant &x,
                   int x_row)
{
    enum { U = 4 };
    int row = lane_id() & 15;
    size_t base = mat * w.mat_bytes;
    float acc = 0;
    for (int g = g0 + (lane_id() >> 4); g < g1; g += 2 * U) {
        raw_group<K> raw[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (g + 2 * u < g1)
                load_group<K>(&raw[u], w, base, tile, g + 2 * u, row);
#pragma unroll
        for (int u = 0; u < U; u++) {
            int at = g + 2 * u;
            if (at >= g1)
                break;
            size_t xi = quant_index(x, x_row, at);
            const uint4 *xq = (const uint4 *)(x.q + xi * 32);
            uint4 xa = xq[0], xb = xq[1];
            xscale xs = ((const xscale *)x.s)[xi];
            uint32_t lo, hi;
            int i0 = 0, i1 = 0;
            code_words<K>(raw[u].c0.x, raw[u].c1.x, raw[u].h0, raw[u].h1, 0, &lo, &hi);
            i0 = dp4a(lo, xa.x, i0), i1 = dp4a(hi, xa.y, i1);
            code_words<K>(raw[u].c0.y, raw[u].c1.y, raw[u].h0, raw[u].h1, 1, &lo, &hi);
            i0 = dp4a(lo, xa.z, i0), i1 = dp4a(hi, xa.w, i1);
            code_words<K>(raw[u].c0.z, raw[u].c1.z, raw[u].h0, raw[u].h1, 2, &lo, &hi);
            i0 = dp4a(lo, xb.x, i0), i1 = dp4a(hi, xb.y, i1);
            code_words<K>(raw[u].c0.w, raw[u].c1.w, raw[u].h0, raw[u].h1, 3, &lo, &hi);
            i0 = dp4a(lo, xb.z, i0), i1 = dp4a(hi, xb.w, i1);
            scales v = group_scales<K>(raw[u].s, at);
            if (!traits<K>::split)
                i0 += i1;
            acc = group_sum<K>(acc, v, i0, i1, xs.d, xs.sum0, xs.sum1);
        }
    }
    return acc + shfl_xor_f32(acc, 16);
}

/* y[r, o] = sum_i x[r, i] W[o, i]; GLU: y = gelu(W x) * (W' x)
 *                                      W: blocks of 32, x: int8
 * grid:   TILES tiles of 16 outputs, blockDim / 32 / TILES warps share a tile's columns; y: rows
 * shared: a float per warp and output
 * bound:  reading W. Target 85 % of memory bandwidth */
template <int K, bool GLU> __global__ void __launch_bounds__(512) vec_kernel(product_args a)
{
    constexpr int TILES = GLU ? 2 : 1;
    __shared__ float part[GLU ? 2 : 1][16][16];
    int warp = (int)(threadIdx.x >> 5), n_warps = (int)(blockDim.x >> 5) / TILES;
    int tile = (int)blockIdx.x * TILES + warp / n_warps, p = (int)blockIdx.y;
    size_t mat = a.expert ? (size_t)a.expert[p] : 0;
    int x_row = a.expert && !a.x_per_pair ? p / a.k : p;
    int per = warp_share(a.w.n_group, n_warps);
    int g0 = warp % n_warps * per, g1 = min(g0 + per, a.w.n_group);
    if (tile * 16 < a.n_out) {
        float s = warp_row<K>(a.w, mat, tile, g0, g1, a.x, x_row);
        if (lane_id() < 16)
            part[0][warp][lane_id()] = s;
        if (GLU) {
            s = warp_row<K>(a.up, mat, tile + a.up_row / 16, g0, g1, a.x, x_row);
            if (lane_id() < 16)
                part[GLU][warp][lane_id()] = s;
        }
    }
    __syncthreads();
    if (warp > 0)
        return;
    int t = lane_id() >> 4, o = (int)blockIdx.x * TILES * 16 + lane_id();
    bool in = lane_id() < 16 * TILES && o < a.n_out;
    float v = 0, u = 0;
    if (in) {
        for (int i = 0; i < n_warps; i++) {
            v += part[0][t * n_warps + i][lane_id() & 15];
            if (GLU)
                u += part[GLU][t * n_warps + i][lane_id() & 15];
        }
        if (GLU)
            v = gelu_tanh(v) * u;
        if (a.expert)
            a.y.at[p / a.k * a.y.stride + (int64_t)(p % a.k) * a.n_out + o] = v;
        else
            a.y.at[p * a.y.stride + o] = v;
    }
    if (GLU && a.q.q)
        quantise_warp(v, a.q, p, (int)blockIdx.x);
}

/* y[r, o] = sum_j share[r, j] sum_i x[r, j, i] W_e(o, i), e = expert[r, j], in ascending j
 * grid:   tile of 16 outputs x row; a warp per expert of the row
 * shared: a float per expert and output
 * bound:  reading k experts' rows; at one row, latency */
template <int K> __global__ void __launch_bounds__(512) expert_down_kernel(product_args a)
{
    __shared__ float part[16][16];
    int warp = (int)(threadIdx.x >> 5), n_warps = (int)(blockDim.x >> 5);
    int tile = (int)blockIdx.x, r = (int)blockIdx.y, o = tile * 16 + lane_id();
    float v = 0;
    for (int j0 = 0; j0 < a.k; j0 += n_warps) {
        int j = j0 + warp, p = r * a.k + j;
        if (j < a.k) {
            float s = warp_row<K>(a.w, (size_t)a.expert[p], tile, 0, a.w.n_group, a.x, p);
            if (lane_id() < 16)
                part[warp][lane_id()] = mul_rn(s, a.share[p]);
        }
        __syncthreads();
        if (warp == 0 && lane_id() < 16)
            for (int i = 0; i < n_warps && j0 + i < a.k; i++)
                v += part[i][lane_id()];
        __syncthreads();
    }
    if (warp == 0 && lane_id() < 16 && o < a.n_out)
        a.y.at[r * a.y.stride + o] = v;
}

template <int K> static void vec(cudaStream_t s, product_args a)
{
    int warps = product_warps(a.w, a.glu);
    int rows = a.expert ? a.y.rows * a.k : a.y.rows;
    int tiles = (a.n_out + 15) / 16;
    if (a.share)
        LAUNCH((expert_down_kernel<K>), dim3((unsigned)tiles, (unsigned)a.y.rows),
               dim3(32u * (unsigned)(a.k < 16 ? a.k : 16)), 0, s, a);
    else if (a.glu)
        LAUNCH((vec_kernel<K, true>), dim3((unsigned)(tiles + 1) / 2, (unsigned)rows),
               dim3(64u * (unsigned)warps), 0, s, a);
    else
        LAUNCH((vec_kernel<K, false>), dim3((unsigned)tiles, (unsigned)rows),
               dim3(32u * (unsigned)warps), 0, s, a);
}

extern "C" void cu_product_vec(cudaStream_t s, product_args a)
{
    switch (a.w.kind) {
    case PACK_Q4_0:
        vec<PACK_Q4_0>(s, a);
        break;
    case PACK_Q4_1:
        vec<PACK_Q4_1>(s, a);
        break;
    case PACK_Q5_0:
        vec<PACK_Q5_0>(s, a);
        break;
    case PACK_Q5_1:
        vec<PACK_Q5_1>(s, a);
        break;
    case PACK_Q8_0:
        vec<PACK_Q8_0>(s, a);
        break;
    case PACK_Q4_K:
        vec<PACK_Q4_K>(s, a);
        break;
    case PACK_Q5_K:
        vec<PACK_Q5_K>(s, a);
        break;
    case PACK_Q6_K:
        vec<PACK_Q6_K>(s, a);
        break;
    default:
        vec<PACK_G8>(s, a);
    }
}
