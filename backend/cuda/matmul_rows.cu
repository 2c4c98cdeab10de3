/* matmul_rows.cu - 2 to 32 rows times a block-format weight: verification of drafts.
 *
 * The integer tensor cores take 16 weight rows x 32 columns against 8 activation rows at once; a
 * group's integer sums leave the unit and meet their scales in f32, since every 32 columns have
 * scales of their own. The weight is read once for all rows. Warps share a tile's columns as in
 * matmul_vec.cu, even and odd groups are summed apart and joined at the end, so a row's result is
 * bit for bit the one that matmul_vec.cu gives.
 */
#include "backend/cuda/product.cuh"

/* A thread's share of a group: word t of weight rows g and g + 8. */
template <int K> struct raw_frag {
    uint32_t c0[2], c1[2], h0[2], h1[2];
    uint4 s[2];
};

template <int K>
DEV void load_frag(raw_frag<K> *f, const packed &w, int tile, int g, int gid, int tid)
{
    using T = traits<K>;
    size_t tg = (size_t)tile * w.n_group + g;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = gid + 8 * h;
        raw_group<K> one;
        if (T::bytes) {
            f->c0[h] = *(const uint32_t *)(w.codes + ((tg * 2) * 16 + row) * 16 + 4 * tid);
            f->c1[h] = *(const uint32_t *)(w.codes + ((tg * 2 + 1) * 16 + row) * 16 + 4 * tid);
        } else {
            f->c0[h] = *(const uint32_t *)(w.codes + (tg * 16 + row) * 16 + 4 * tid);
        }
        load_high<K>(&f->h0[h], &f->h1[h], w, 0, tile, g, row);
        load_scales<K>(&one, w, 0, tile, g, row);
        f->s[h] = one.s;
    }
}

enum { U = 4 }; /* groups on their way: half a unit */

template <int K> DEV void load_half(raw_frag<K> *f, const packed &w, int tile, int half)
{
#pragma unroll
    for (int u = 0; u < U; u++)
        if (half * U + u < w.n_group)
            load_frag<K>(&f[u], w, tile, half * U + u, lane_id() >> 2, lane_id() & 3);
}

/* Half a unit times the activations. Rows past the last are there in memory (tiles are whole) and
 * make columns that nobody reads: no branch holds up the loads. */
template <int K, int NT>
DEV void half_unit(float (*acc)[NT][4], const raw_frag<K> *raw, int ga, int n_group,
                   const dev_quant &x)
{
    using T = traits<K>;
    int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (ga + u >= n_group)
            break;
        uint2 b[NT];
        uint4 xs[NT]; /* the scales and sums of rows 2 tid and 2 tid + 1 */
#pragma unroll
        for (int t = 0; t < NT; t++) {
            size_t xi = ((size_t)t * n_group + ga + u) * 8;
            b[t] = *(const uint2 *)(x.q + (xi + gid) * 32 + 8 * tid);
            xs[t] = *(const uint4 *)((const xscale *)x.s + xi + 2 * tid);
        }
        uint32_t a[4];
        scales v[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            code_words_at<K>(raw[u].c0[h], raw[u].c1[h], raw[u].h0[h], raw[u].h1[h], tid, &a[h],
                             &a[2 + h]);
            v[h] = group_scales<K>(raw[u].s[h], ga + u);
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            int c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
            if (T::split) {
                mma_s8_k16(c, a, b[t].x);
                mma_s8_k16(d, a + 2, b[t].y);
            } else {
                uint32_t bb[2] = {b[t].x, b[t].y};
                mma_s8_k32(c, a, bb);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale = __uint_as_float(i & 1 ? xs[t].z : xs[t].x);
                uint32_t sums = i & 1 ? xs[t].w : xs[t].y;
                acc[u & 1][t][i] = group_sum<K>(acc[u & 1][t][i], v[i >> 1], c[i], d[i], scale,
                                                (int16_t)sums, (int16_t)(sums >> 16));
            }
        }
    }
}

/* acc: [even, odd groups][tile of 8 rows][c0..c3]
 * grid:   a tile of 16 outputs; blockDim / 32 warps share its columns
 * shared: the warps' sums
 * bound:  reading W; at 8 rows and more also the f32 work on each group's sums */
template <int K, int NT>
DEV void warp_tile(float (*acc)[NT][4], const packed &w, int tile, int warp, int n_warps,
                   const dev_quant &x)
{
    int n_half = 2 * w.n_unit;
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[b][n][i] = 0;
    /* Half units in turn; a warp's units are those of matmul_vec.cu. At up to 16 rows there are
     * registers to have the next half's words on their way while one is multiplied. */
    raw_frag<K> raw[U], next[U];
    int half = 2 * warp;
    if (NT <= 2)
        load_half<K>(raw, w, tile, half);
    while (half < n_half) {
        int then = half + (half & 1 ? 2 * n_warps - 1 : 1);
        load_half<K>(NT <= 2 ? next : raw, w, tile, NT <= 2 ? then : half);
        half_unit<K, NT>(acc, raw, half * U, w.n_group, x);
        if (NT <= 2)
#pragma unroll
            for (int u = 0; u < U; u++)
                raw[u] = next[u];
        half = then;
    }
}

/* GLU: the block's second half of warps has W'. */
template <int K, int NT, bool GLU>
__global__ void __launch_bounds__(256) rows_kernel(product_args a)
{
    grid_trigger();
    grid_wait();
    DYN_SHARED(float, part); /* [1 or 2][warp][8 * NT rows][16 outputs] */
    int n_warps = (int)(blockDim.x >> 5) / (GLU ? 2 : 1), tile = (int)blockIdx.x;
    int warp = (int)(threadIdx.x >> 5), which = GLU ? warp / n_warps : 0;
    int gid = lane_id() >> 2, tid = lane_id() & 3;
    float acc[2][NT][4];
    warp_tile<K, NT>(acc, which ? a.up : a.w, which ? tile + a.up_row / 16 : tile,
                     warp - which * n_warps, n_warps, a.x);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = n * 8 + 2 * tid + (i & 1), o = gid + 8 * (i >> 1);
            part[(warp * 8 * NT + r) * 16 + o] = acc[0][n][i] + acc[1][n][i];
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a.y.rows * 16; i += (int)blockDim.x) {
        int r = i >> 4, o = tile * 16 + (i & 15);
        if (o >= a.n_out)
            continue;
        float v = 0, u = 0;
        for (int w = 0; w < n_warps; w++) {
            v += part[(w * 8 * NT + r) * 16 + (i & 15)];
            if (GLU)
                u += part[((n_warps + w) * 8 * NT + r) * 16 + (i & 15)];
        }
        a.y.at[r * a.y.stride + o] = GLU ? gelu_tanh(v) * u : v;
    }
}

template <int K, int NT> static void rows_nt(cudaStream_t s, product_args a)
{
    int warps = product_warps(a.w, a.glu), tiles = (a.n_out + 15) / 16;
    size_t shared = (size_t)(a.glu ? 2 : 1) * (size_t)warps * 8 * NT * 16 * sizeof(float);
    if (a.glu) /* at most 2 x 8 warps x 32 rows x 16 floats: 32 KiB */
        LAUNCH((rows_kernel<K, NT, true>), dim3((unsigned)tiles), dim3(64u * (unsigned)warps),
               shared, s, a);
    else /* at most 8 warps x 32 rows x 16: 16 KiB */
        LAUNCH((rows_kernel<K, NT, false>), dim3((unsigned)tiles), dim3(32u * (unsigned)warps),
               shared, s, a);
}

template <int K> static void rows_of(cudaStream_t s, product_args a)
{
    if (a.y.rows <= 8)
        rows_nt<K, 1>(s, a);
    else if (a.y.rows <= 16)
        rows_nt<K, 2>(s, a);
    else
        rows_nt<K, 4>(s, a);
}

extern "C" void cu_product_rows(cudaStream_t s, product_args a)
{
    switch (a.w.kind) {
    case PACK_Q4_0:
        rows_of<PACK_Q4_0>(s, a);
        break;
    case PACK_Q4_1:
        rows_of<PACK_Q4_1>(s, a);
        break;
    case PACK_Q5_0:
        rows_of<PACK_Q5_0>(s, a);
        break;
    case PACK_Q5_1:
        rows_of<PACK_Q5_1>(s, a);
        break;
    case PACK_Q8_0:
        rows_of<PACK_Q8_0>(s, a);
        break;
    case PACK_Q4_K:
        rows_of<PACK_Q4_K>(s, a);
        break;
    case PACK_Q5_K:
        rows_of<PACK_Q5_K>(s, a);
        break;
    case PACK_Q6_K:
        rows_of<PACK_Q6_K>(s, a);
        break;
    default:
        rows_of<PACK_G8>(s, a);
    }
}
