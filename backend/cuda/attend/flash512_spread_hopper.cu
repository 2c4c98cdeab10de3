/* flash512_spread_hopper.cu - what flash512_hopper.cu computes, spread over many blocks, for passes
 * of so few rows of a prompt that most multiprocessors would have no block: the last rows of a
 * prompt behind the last layer that owns keys, and the short prompt of a later turn.
 *
 *     scores512    S = Q K' of 64 pairs, tiles of keys side by side      S to scratch, f32
 *     sums512      softmax of all tiles in order, O += P V, 128 columns to a block
 *
 * Every bit is that of flash512_hopper.cu: an element of S has the same products in the same order,
 * wherever its tile is computed; so has an element of O, in whichever block its column is. The
 * softmax, whose order is fixed, is computed by every block of sums512. A row of a prompt therefore
 * does not depend on the number of rows beside it.
 *
 * S lies in scratch as the threads of a warpgroup hold it: for each tile, warp and four scores, 32
 * lanes. Warps without a pair have no place there.
 */
#include "backend/cuda/attend/flash_hopper.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    D = 512,
    PAIRS = 64,
    KEYS = 64,
    UNITS = 4, /* of K: 128 columns; of V: 16 keys */
    K_UNIT_BYTES = 16384,
    COLUMNS = D / SPREAD_COLUMNS, /* of a block of sums512 */
    V_BLOCK = 16 * ROW_BYTES,
    V_UNIT_BYTES = COLUMNS / 64 * V_BLOCK,
    STAGES = 4,
    WARP_SCORES = 8 * 32, /* float4, of a warp and tile */
};

using block = job<D, PAIRS, KEYS>;
using spot = place<KEYS>;

/* Where a warp's scores of tile t0 lie. */
DEV float4 *scores_of(const spread_args &x, int t0, int warp)
{
    size_t group = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    size_t tile = group * (size_t)x.n_tiles + (size_t)(t0 / KEYS - x.first_tile);
    return (float4 *)x.scores + (tile * (size_t)x.n_warps + (size_t)warp) * WARP_SCORES + lane_id();
}

/* ---- scores512 ---------------------------------------------------------------------------- */

struct score_tiles {
    uint8_t q[D / 64 * BLOCK_BYTES], k[UNITS][K_UNIT_BYTES];
    uint64_t k_full[UNITS], k_free[UNITS];
    sights<PAIRS> sees;
};

DEV void fetch_keys(const block &b, score_tiles &s)
{
    walk w = walk_begin(b);
    key_walk_of<spot::PAGES> ahead;
    spot p = {};
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        place_on<DENSE>(b, w, ahead, p);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            bar_wait(&s.k_free[u], (turn & 1) ^ 1);
#pragma unroll
            for (int n = 0; n < 4; n++)
                fetch_key<D>(s.k[u] + fetch_offset() + 16 * n * ROW_BYTES, p.k,
                             row_of_key(b, p.k_at, n), p.in >> n & 1, 2 * u, 2, BLOCK_BYTES);
            bar_arrive_copied(&s.k_full[u]);
        }
    }
    copy_commit();
    copy_wait<0>();
}

/* As score of flash512_hopper.cu multiplies. */
DEV void multiply_keys(score_tiles &s, float (&x)[32], int turn)
{
    uint64_t q = operand(shared_at(s.q), 16), k = operand(shared_at(s.k), 16);
    hold(x);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&s.k_full[u], turn & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < 8; i++)
            wg_mma_64(x, q + ((2 * u + i / 4) * BLOCK_BYTES + i % 4 * 32) / 16,
                      k + (u * K_UNIT_BYTES + i / 4 * BLOCK_BYTES + i % 4 * 32) / 16, u + i > 0);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&s.k_free[u - 1]);
        }
    }
    wg_wait<0>();
    hold(x);
    warp_arrive(&s.k_free[UNITS - 1]);
}

/* grid:   tile of 64 pairs x KV head x part of the tiles of keys
 * shared: Q and 64 keys: 130 KB
 * bound:  reading the keys once */
__global__ void __launch_bounds__(2 * GROUP_THREADS, 1) scores512_kernel(spread_args x)
{
    DYN_SHARED(uint8_t, mem);
    score_tiles &s = *(score_tiles *)(mem + (-shared_at(mem) & 1023));
    const block all = job_of<D, PAIRS, KEYS>(x.h, s.sees, NULL);
    attend_slice part = x.h.slice;
    const int from = (x.first_tile + (int)blockIdx.z * x.part_tiles) * KEYS;
    if (from > part.from) {
        if (part.k)
            part.k += (size_t)(from - part.from) * D;
        if (part.v)
            part.v += (size_t)(from - part.from) * D;
        part.from = from;
    }
    part.until = min(part.until, from + x.part_tiles * KEYS);
    const block b = {all.a, part, all.sparse, all.sees, all.pair0, all.n_pairs, all.group, NULL};
    grid_trigger();
    grid_wait();
    if (threadIdx.x == 0)
        for (int u = 0; u < UNITS; u++) {
            bar_init(&s.k_full[u], GROUP_THREADS);
            bar_init(&s.k_free[u], 4); /* warps */
        }
    prepare(b, &s.sees, s.q);
    __syncthreads();
    if (threadIdx.x < GROUP_THREADS) {
        fetch_keys(b, s);
        return;
    }
    const int warp = (int)(threadIdx.x >> 5) & 3;
    walk w = walk_begin(b);
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        float v[32];
        multiply_keys(s, v, turn);
        if (warp >= x.n_warps)
            continue;
        float4 *to = scores_of(x, w.t0, warp);
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i * 32] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
}

/* ---- sums512 ------------------------------------------------------------------------------ */

struct sum_tiles {
    uint8_t v[STAGES][UNITS * V_UNIT_BYTES], p[2][BLOCK_BYTES];
    float4 x[STAGES][4 * WARP_SCORES];
    uint64_t v_full[STAGES], v_free[STAGES], x_full[STAGES], x_free[STAGES];
    uint64_t p_full[2], p_free[2], all_summed;
    float keep[2][PAIRS];
    float by[PAIRS];
    uint32_t grown[2][4];
    sights<PAIRS> sees;
};

/* Scores and values of each tile, up to STAGES tiles ahead. */
DEV void fetch_sums(const block &b, const spread_args &x, sum_tiles &s)
{
    const int warp = (int)(threadIdx.x >> 5), column = (int)blockIdx.z * (COLUMNS / 64);
    walk w = walk_begin(b);
    key_walk_of<spot::PAGES> ahead;
    spot p = {};
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        const int stage = turn % STAGES, phase = (turn / STAGES & 1) ^ 1;
        place_on<DENSE>(b, w, ahead, p);
        bar_wait(&s.x_free[stage], phase);
        if (warp < x.n_warps) {
            const float4 *from = scores_of(x, w.t0, warp);
#pragma unroll
            for (int i = 0; i < 8; i++)
                copy16_async(&s.x[stage][warp * WARP_SCORES + i * 32 + lane_id()], from + i * 32,
                             true);
        }
        bar_arrive_copied(&s.x_full[stage]);
        bar_wait(&s.v_free[stage], phase);
#pragma unroll
        for (int n = 0; n < UNITS; n++)
            fetch_key<D>(s.v[stage] + n * V_UNIT_BYTES + fetch_offset(), p.v,
                         row_of_key(b, p.v_at, n), p.in >> n & 1, column, COLUMNS / 64, V_BLOCK);
        bar_arrive_copied(&s.v_full[stage]);
    }
    copy_commit();
    copy_wait<0>();
}

/* As score of flash512_hopper.cu, with scores that are there already. */
DEV void soften_tiles(const block &b, sum_tiles &s)
{
    const int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id(), tid = lane & 3;
    const int m0 = 16 * warp + (lane >> 2);
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
    walk w = walk_begin(b);
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        const int which = turn & 1, stage = turn % STAGES;
        float x[32], keep[2];
        bar_wait(&s.x_full[stage], turn / STAGES & 1);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 v = s.x[stage][warp * WARP_SCORES + i * 32 + lane];
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
        __syncwarp();
        warp_arrive(&s.x_free[stage]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            keep[h] = 1;
            if (16 * warp + 8 * h < b.n_pairs) { /* else no pair of the warp is there */
                mask(b, x, w, m0 + 8 * h, h);
                keep[h] = exponentials(x, sm[h], h);
            }
        }
        uint32_t grown = warp_max_u32(keep[0] != 1 || keep[1] != 1);
        bar_wait(&s.p_free[which], (turn >> 1 & 1) ^ 1);
        uint8_t *p = s.p[which];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int m = m0 + 8 * h;
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(uint32_t *)(p + piece_at(m, j) + 4 * tid) =
                    f32x2_to_f16(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]);
            if (tid == 0)
                s.keep[which][m] = keep[h];
        }
        if (lane == 0)
            s.grown[which][warp] = grown;
        tensor_fence();
        bar_arrive(&s.p_full[which]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float by = softmax_end(b, sm[h], m0 + 8 * h);
        if (tid == 0)
            s.by[m0 + 8 * h] = by;
    }
    bar_arrive(&s.all_summed);
}

DEV void collect_sums(const block &b, sum_tiles &s)
{
    const int warp = (int)(threadIdx.x >> 5) & 3, m0 = 16 * warp + (lane_id() >> 2);
    float o[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        o[i] = 0;
    walk w = walk_begin(b);
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        const int which = turn & 1, stage = turn % STAGES;
        bar_wait(&s.p_full[which], turn >> 1 & 1);
        if (s.grown[which][warp]) {
            float k0 = s.keep[which][m0], k1 = s.keep[which][m0 + 8];
#pragma unroll
            for (int i = 0; i < 64; i++)
                o[i] *= i & 2 ? k1 : k0;
        }
        uint64_t p = operand(shared_at(s.p[which]), 16);
        uint64_t v = operand(shared_at(s.v[stage]), V_BLOCK);
        bar_wait(&s.v_full[stage], turn / STAGES & 1);
        tensor_fence();
        hold(o);
        wg_fence();
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            wg_mma_128_v(o, p + u * 32 / 16, v + u * V_UNIT_BYTES / 16);
        wg_commit();
        wg_wait<0>();
        hold(o);
        warp_arrive(&s.v_free[stage]);
        bar_arrive(&s.p_free[which]);
    }
    bar_wait(&s.all_summed, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int m = m0 + 8 * h;
        if (m >= b.n_pairs)
            continue;
        float by = s.by[m], *to = sums_of(b, m, (int)blockIdx.z * COLUMNS, D);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            const float *x = &o[4 * j + 2 * h];
            *(float2 *)(to + 8 * j) = make_float2(x[0] * by, x[1] * by);
        }
    }
}

/* grid:   tile of 64 pairs x KV head x 128 columns
 * shared: four tiles of scores and of values, P twice: 146 KB
 * bound:  the order of the softmax: one block goes through all tiles */
__global__ void __launch_bounds__(3 * GROUP_THREADS, 1) sums512_kernel(spread_args x)
{
    DYN_SHARED(uint8_t, mem);
    sum_tiles &s = *(sum_tiles *)(mem + (-shared_at(mem) & 1023));
    const block b = job_of<D, PAIRS, KEYS>(x.h, s.sees, NULL);
    grid_trigger();
    grid_wait();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(&s.x_full[i], GROUP_THREADS);
            bar_init(&s.v_full[i], GROUP_THREADS);
            bar_init(&s.x_free[i], 4); /* warps */
            bar_init(&s.v_free[i], 4);
        }
        for (int i = 0; i < 2; i++) {
            bar_init(&s.p_full[i], GROUP_THREADS);
            bar_init(&s.p_free[i], GROUP_THREADS);
        }
        bar_init(&s.all_summed, GROUP_THREADS);
    }
    /* Scores of warps without a pair: numbers, which no pair reads. */
    for (int i = (int)threadIdx.x; i < STAGES * 4 * WARP_SCORES; i += (int)blockDim.x)
        s.x[i / (4 * WARP_SCORES)][i % (4 * WARP_SCORES)] = make_float4(0, 0, 0, 0);
    score_keys(b, &s.sees);
    __syncthreads();
    const int role = (int)threadIdx.x / GROUP_THREADS;
    if (role == 0)
        fetch_sums(b, x, s);
    else if (role == 1)
        soften_tiles(b, s);
    else
        collect_sums(b, s);
}

enum { SCORE_BYTES = sizeof(score_tiles) + 1024, SUM_BYTES = sizeof(sum_tiles) + 1024 };

extern "C" int cu_flash512_spread_init(void)
{
    return allow_shared(scores512_kernel, SCORE_BYTES) | allow_shared(sums512_kernel, SUM_BYTES);
}

extern "C" void cu_flash512_spread(cudaStream_t s, spread_args x)
{
    const int pairs = x.h.a.q.rows * (x.h.a.n_head / x.h.a.kv.n_head_kv);
    const unsigned tiles = (unsigned)((pairs + PAIRS - 1) / PAIRS);
    const unsigned heads = (unsigned)x.h.a.kv.n_head_kv;
    const unsigned parts = (unsigned)((x.n_tiles + x.part_tiles - 1) / x.part_tiles);
    LAUNCH(scores512_kernel, dim3(tiles, heads, parts), dim3(2 * GROUP_THREADS), SCORE_BYTES, s, x);
    LAUNCH(sums512_kernel, dim3(tiles, heads, SPREAD_COLUMNS), dim3(3 * GROUP_THREADS), SUM_BYTES,
           s, x);
}
