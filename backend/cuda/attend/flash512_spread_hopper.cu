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
#include "backend/cuda/attend/flash512.cuh"

enum {
    COLUMNS = D / SPREAD_COLUMNS, /* of a block of sums512 */
    V_UNIT_BYTES = COLUMNS / 64 * V_BLOCK,
    STAGES = 4,
    WARP_SCORES = 8 * 32, /* float4, of a warp and tile */
};

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
            fetch_key_unit(b, s.k[u], p, u);
            bar_arrive_copied(&s.k_full[u]);
        }
    }
    copy_commit();
    copy_wait<0>();
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
        multiply_key_units(s.q, s.k, s.k_full, s.k_free, v, turn);
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
    uint8_t v[STAGES][UNITS * V_UNIT_BYTES];
    probabilities p;
    float4 x[STAGES][4 * WARP_SCORES];
    uint64_t v_full[STAGES], v_free[STAGES], x_full[STAGES], x_free[STAGES];
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
    const int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id(), m0 = 16 * warp + (lane >> 2);
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
    walk w = walk_begin(b);
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        const int stage = turn % STAGES;
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
        s.p.put(x, keep, m0, turn);
    }
    s.p.end(b, sm, m0);
}

DEV void collect_sums(const block &b, sum_tiles &s)
{
    const int m0 = 16 * ((int)(threadIdx.x >> 5) & 3) + (lane_id() >> 2);
    float o[1][64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        o[0][i] = 0;
    walk w = walk_begin(b);
    for (int turn = 0; walk_on<DENSE>(b, w); turn++) {
        const int which = turn & 1, stage = turn % STAGES;
        bar_wait(&s.p.full[which], turn >> 1 & 1);
        s.p.rescale(o, which, m0);
        uint64_t p = operand(shared_at(s.p.p[which]), 16);
        uint64_t v = operand(shared_at(s.v[stage]), V_BLOCK);
        bar_wait(&s.v_full[stage], turn / STAGES & 1);
        tensor_fence();
        hold(o[0]);
        wg_fence();
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            wg_mma_128_v(o[0], p + u * 32 / 16, v + u * V_UNIT_BYTES / 16);
        wg_commit();
        wg_wait<0>();
        hold(o[0]);
        warp_arrive(&s.v_free[stage]);
        bar_arrive(&s.p.free[which]);
    }
    s.p.store(b, o, m0, (int)blockIdx.z * COLUMNS);
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
        s.p.init(GROUP_THREADS);
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
