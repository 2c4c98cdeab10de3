/* rank_experts.cu - the down products of one row on a rank of a tensor split: all segments of the
 * rank in one launch.
 *
 *     block   a tile of 16 outputs of a segment; of the shared expert after the segments
 *     warp    an expert of the row, then the next one that is n_warps further; of the shared
 *             expert every shared_warps-th unit, as in matmul_vec.cu
 *
 * A segment has some of the columns of every expert, or some of the experts. A warp whose expert
 * the segment does not have reads nothing, and adds 0, which changes no bit: a sum begins with +0,
 * and no sum from there on is -0. The results are what rank_sum.cu adds.
 */
#include "backend/cuda/experts/own.cuh"
#include "backend/cuda/experts/vec_tile.cuh"

/* A warp's product with an expert of the row. */
template <int K> struct segment_warp {
    warp_tile<K, occupancy<K>::down> t;
    bool in;
    float share;

    DEV void begin(const down_segments &a, const down_segment &of, int tile, int j)
    {
        const int mat = j < a.k ? own_mat(of.own, load_fresh(a.expert + j)) : -1;
        in = mat >= 0;
        if (!in)
            return;
        t.begin(of.w, (size_t)mat, tile, 0, 1);
        share = load_fresh(a.share + j);
    }
    DEV float run(const down_segments &a, const down_segment &of, int j)
    {
        if (!in)
            return 0;
        x_view x = x_at(a.x, j);
        x.q += 2 * of.x_group * x.step, x.s += of.x_group * x.step;
        return mul_rn(t.run(of.w, x), share);
    }
};

/* y_z[o] = sum_j share[j] sum_i x[j, first_z + i] W_z(expert[j])(o, i), in ascending j
 * grid:   segment, or the shared expert x tile of 16 outputs
 * shared: a float per warp and output
 * bound:  reading the experts' rows; latency */
template <int K>
__global__ void __launch_bounds__(32 * DOWN_WARPS)
    down_segments_kernel(const __grid_constant__ down_segments a)
{
    __shared__ float part[DOWN_WARPS][16];
    const int warp = (int)(threadIdx.x >> 5), n_warps = (int)(blockDim.x >> 5);
    const int z = (int)blockIdx.x, tile = (int)blockIdx.y, o = tile * 16 + lane_id();
    const bool adds = warp == 0 && lane_id() < 16;
    float v = 0;
    grid_trigger();
    lattice_begin<K>(a.of[0].w.kind);
    if (z == a.n) { /* the shared expert */
        warp_tile<K, occupancy<K>::down> t;
        if (warp < a.shared_warps)
            t.begin(a.shared, 0, tile, warp, a.shared_warps);
        grid_wait();
        const float s = warp < a.shared_warps ? t.run(a.shared, x_at(a.x, a.k)) : 0;
        if (lane_id() < 16)
            part[warp][lane_id()] = s;
        __syncthreads();
        for (int i = 0; adds && i < a.shared_warps; i++)
            v += part[i][lane_id()];
        if (adds && o < a.n_out)
            a.shared_y[o] = mul_rn(v, load_fresh(a.share + a.k));
        return;
    }
    const down_segment &of = a.of[z];
    segment_warp<K> w;
    if (a.chosen)
        w.begin(a, of, tile, warp);
    grid_wait();
    if (!a.chosen)
        w.begin(a, of, tile, warp);
    for (int j = warp;; j += n_warps) {
        const float s = w.run(a, of, j);
        if (lane_id() < 16)
            part[warp][lane_id()] = s;
        __syncthreads();
        for (int i = 0; adds && i < n_warps; i++)
            v += part[i][lane_id()];
        if (j - warp + n_warps >= a.k)
            break;
        w.begin(a, of, tile, j + n_warps);
        __syncthreads();
    }
    if (adds && o < a.n_out)
        of.y[o] = v;
}

template <int K> static void launch_segments(cudaStream_t s, const down_segments &a)
{
    const int wanted = a.k > a.shared_warps ? a.k : a.shared_warps;
    const unsigned warps = (unsigned)(wanted < DOWN_WARPS ? wanted : (int)DOWN_WARPS);
    const dim3 grid((unsigned)(a.n + (a.shared_warps > 0)), (unsigned)(a.n_out + 15) / 16);
    LAUNCH((down_segments_kernel<K>), grid, dim3(32 * warps), 0, s, a);
}

extern "C" void cu_down_segments(cudaStream_t s, down_segments a)
{
    by_layout(all_packs, pack_kernels(a.of[0].w.kind),
              [&](auto k) { return launch_segments<k>(s, a), true; });
}
