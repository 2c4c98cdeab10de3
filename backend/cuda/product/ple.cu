/* ple.cu - a layer's part of per-layer embeddings, for one row: y = P (gelu(G x) * b).
 *
 *     block of 8    0    1    2    ..   7       G x: 256 values, 32 of each block
 *                   '----'----'----..---'       all blocks take all of them, and make their codes
 *                   y    y    y    ..   y       P: an eighth of the outputs of each block
 *
 * Both products are small: what they take is the way from one kernel to the next. So the blocks of
 * one cluster do both and exchange the 256 values through shared memory. Each warp requests all of
 * its weights before the kernels before have ended. The order of sums is that of matmul_one.cu.
 */
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/units.cuh"

enum { WARPS = 16, LG_WARPS = 4, PLE_BLOCKS = 8 };

struct ple_args {
    planes gate, proj;
    int n_group, n_unit, lg; /* of G: a tile has 1 << lg warps */
    int n_tile;              /* of P */
    const int8_t *q;
    const void *s;
    const float *b;
    float *y;
};

/* BLOCKS: of the grid, which is one cluster, or 1.
 * grid:   BLOCKS
 * shared: the row, 1.25 bytes a value; a unit of both weights for each warp
 * bound:  latency: a read of the row, an exchange between blocks */
template <int K, int BLOCKS> __global__ void __launch_bounds__(32 * WARPS) ple_kernel(ple_args a)
{
    constexpr int TILES = PLE_WIDTH / TILE_ROWS / BLOCKS, OWN = PLE_WIDTH / BLOCKS;
    DYN_SHARED(char, mem);
    __shared__ float part[WARPS][16];
    __shared__ __align__(16) float own[OWN], all[PLE_WIDTH];
    __shared__ uint4 codes[PLE_WIDTH / 16];
    __shared__ float2 scale[PLE_WIDTH / GROUP];
    const int rank = (int)blockIdx.x, warp = (int)threadIdx.x >> 5, lane = lane_id();
    const int per = 1 << a.lg, abreast = WARPS >> a.lg, unit = warp & (per - 1);
    const int units = (a.n_unit - unit + per - 1) >> a.lg;
    const int n_out = a.n_tile / BLOCKS, first = rank * n_out;
    lane_units<K> t, u;
    t.b = mem + a.n_unit * UNIT * 40 + warp * slot<K>::bytes + lane * 16;
    u.b = t.b + WARPS * slot<K>::bytes;
    grid_trigger();
    int tile = warp >> a.lg;
    if (tile < TILES)
        t.begin(a.gate, a.lg, a.n_group, a.n_unit, rank * TILES + tile, unit);
    /* A tile of P is one unit, so its tiles are the units of one long tile. */
    u.begin(a.proj, LG_WARPS, UNIT * a.n_tile, first + n_out, 0, first + warp);
    grid_wait();
    shared_rows x = row_to_shared<K, 32 * WARPS>(mem, a.q, a.s, a.n_group, a.n_unit * UNIT);
    __syncthreads();
#pragma unroll 1
    for (int base = 0; base < TILES; base += abreast, tile += abreast) {
        const int o = base * TILE_ROWS + (int)threadIdx.x;
        const bool mine = (int)threadIdx.x < abreast * TILE_ROWS && o < OWN;
        float b = mine ? a.b[rank * OWN + o] : 0, sum, v = 0;
        if (base && tile < TILES)
            t.begin(a.gate, a.lg, a.n_group, a.n_unit, rank * TILES + tile, unit);
        tile_sums<K, 1, 1>(&sum, &t, tile < TILES ? units : 0, x, unit, per);
        if (lane < 16)
            part[warp][lane] = sum;
        __syncthreads();
        if (mine) {
            for (int i = 0; i < per; i++)
                v += part[((int)threadIdx.x >> 4 << a.lg) + i][threadIdx.x & 15];
            own[o] = gate_of(false, v) * b;
        }
        __syncthreads();
    }
    cluster_sync();
    const int i = 4 * (int)threadIdx.x;
    if (i < PLE_WIDTH)
        *(float4 *)(all + i) = cluster_four(own + i % OWN, i / OWN);
    __syncthreads();
    if (warp < PLE_WIDTH / GROUP) {
        const dev_quant to = {(int8_t *)codes, scale, NULL, 1, PLE_WIDTH, 1};
        quantise_warp(all[GROUP * warp + lane], to, 0, warp);
        __syncwarp();
        if (sums<K>::floats && lane == 0)
            scale[warp].y = scaled_sum(scale[warp]);
    }
    __syncthreads();
    x = (shared_rows){codes + 2 * (lane >> 4), scale + (lane >> 4)};
    auto put = [&](const raw_unit<K> &raw, int o) {
        float sum = 0, v = 0;
        unit_sums<K, 1, 1>(&sum, raw, x);
        sum += shfl_xor_f32(sum, 16);
        v += sum; /* as matmul_one.cu adds its warps */
        if (lane < 16)
            a.y[(first + o) * TILE_ROWS + lane] = v;
    };
#pragma unroll 1
    for (int o = warp; o < n_out; o += 2 * WARPS) {
        put(u.a, o);
        u.load(WARPS);
        if (o + WARPS < n_out) {
            raw_unit<K> raw;
            u.take(&raw);
            put(raw, o + WARPS);
        }
        u.copy(WARPS);
    }
    cluster_sync(); /* the other blocks have read `own` */
}

template <int K> static size_t shared_of(const packed &gate)
{
    return (size_t)gate.n_unit * UNIT * 40 + 2 * WARPS * slot<K>::bytes;
}

extern "C" int cu_ple_init(void)
{
    const int n = cu_gpu.shared_block - PLE_STATIC_SHARED;
    return each_layout(common_packs, [=](auto k) {
        return allow_shared(ple_kernel<k, PLE_BLOCKS>, n) | allow_shared(ple_kernel<k, 1>, n);
    });
}

template <int K>
static bool start(cudaStream_t s, const packed &gate, const packed &proj, ple_args a)
{
    const size_t bytes = shared_of<K>(gate);
    const dim3 block(32 * WARPS);
    if (bytes > (size_t)cu_gpu.shared_block - PLE_STATIC_SHARED)
        return false;
    a.gate = planes_from<K>(gate, 0);
    a.proj = planes_from<K>(proj, 0);
    if (has_clusters())
        launch_cluster(ple_kernel<K, PLE_BLOCKS>, dim3(PLE_BLOCKS), block, bytes, PLE_BLOCKS, s, a);
    else
        LAUNCH((ple_kernel<K, 1>), dim3(1), block, bytes, s, a);
    return true;
}

extern "C" bool cu_ple(cudaStream_t s, dev_mat y, dev_quant x, packed gate, packed proj,
                       const float *b)
{
#ifndef CARAT_EMU
    if (!has_clusters())
        return false; /* one block is slower than three kernels */
#endif
    if (gate.kind != proj.kind || gate.n_out != PLE_WIDTH || proj.n_in != PLE_WIDTH ||
        proj.n_out % (TILE_ROWS * PLE_BLOCKS) || !x.q || x.tile != 1)
        return false;
    ple_args a = {.n_group = gate.n_group,
                  .n_unit = gate.n_unit,
                  .n_tile = proj.n_tile,
                  .q = x.q,
                  .s = x.s,
                  .b = b,
                  .y = y.at};
    while (1 << a.lg < product_warps(gate, false))
        a.lg++;
    return by_layout(common_packs, gate.kind, [&](auto k) { return start<k>(s, gate, proj, a); });
}
