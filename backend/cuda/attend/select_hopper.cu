/* select_hopper.cu - scores of block selection (select.cu) on GPUs of compute capability 9.0:
 * queries times means of tiles by wgmma, and the peaks of each tile.
 *
 *     warpgroups 0, 1   score     64 tiles x 128 queries: products, maxima, sums of exponentials
 *     warpgroup 2       fill      queries, f32 to f16, in pieces of 64 columns
 *     warps 12, 13      fetch     means for warpgroup 0 or 1, in pieces of 64 columns
 *
 *     D, 64 x 128       rows: tiles                    columns: queries of a head and query block
 *                       a thread: 2 tiles x 32 queries, so 4 lanes share a tile
 *
 * Tiles are the rows of the products, because the peaks of a tile are sums over all its queries:
 * they stay within four lanes, and no warp needs what another one has.
 *
 * A block of threads lives as long as the kernel and takes one (query head, query block) after the
 * other. Its groups of 64 tiles go to the scoring warpgroups in turn, across heads too. Each
 * warpgroup has its own ring of means, so one multiplies while the other takes exponentials. The
 * pieces of queries are a ring as well: pieces of the next head come as soon as both warpgroups
 * have left those of this one. Queries beyond the ring are requested from memory a head ahead.
 *
 * A score is the sum over its dims in their order, wherever its tile and its query block are
 * computed. So lists depend on the prompt alone.
 */
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    ROWS = SELECT_ROWS,
    TILES = MEAN_TILES,
    SCORERS = 2,
    GROUP_THREADS = 128,
    THREADS = (SCORERS + 1) * GROUP_THREADS + 32 * SCORERS,
    COLUMNS = 64, /* of a piece */
    ROW_BYTES = 2 * COLUMNS,
    QUERY_BYTES = ROWS * ROW_BYTES,
    MEAN_BYTES = TILES * ROW_BYTES,
    SLOTS = 8, /* pieces of queries: a head of 512, four of 128 */
    STAGES = 6,
    FILL_ROWS = GROUP_THREADS / (COLUMNS / 4), /* that the filling warpgroup reads at once */
    LOADS = ROWS / FILL_ROWS                   /* of a filling thread for a piece, 16 bytes each */
};

struct score_memory {
    uint8_t q[SLOTS][QUERY_BYTES], means[SCORERS][STAGES][MEAN_BYTES];
    uint64_t q_full[SLOTS], q_free[SLOTS];
    uint64_t full[SCORERS][STAGES], free[SCORERS][STAGES];
};
enum { SHARED_BYTES = sizeof(score_memory) + 1024 }; /* it begins at a multiple of 1024 */
static_assert(SHARED_BYTES <= 227 * 1024, "a block");

/* A query head of a query block. */
struct job {
    int h, i, m; /* head, query block, its own tile */
    int n_group; /* groups of TILES tiles, the last one's part above tile m included */
};
DEV job job_of(const select_args &a, int item)
{
    int i = item / a.n_head, m = a.block0 + i;
    return job{item - i * a.n_head, i, m, m / TILES + 1};
}
DEV int n_jobs(const select_args &a)
{
    return a.n_head * a.n_blocks;
}
/* The first group of a job that is scorer w's; the others follow in steps of SCORERS. before:
 * groups of the block's jobs so far. */
DEV int first_group(int before, int w)
{
    return (w + before) & 1;
}

/* A place in a ring of N and the parity of its round. */
template <int N> struct ring_place {
    int at, parity;
};
template <int N> DEV void step(ring_place<N> &p)
{
    if (++p.at == N)
        p.at = 0, p.parity ^= 1;
}

DEV void barriers(score_memory &s)
{
    for (int k = 0; k < SLOTS; k++) {
        bar_init(&s.q_full[k], GROUP_THREADS);
        bar_init(&s.q_free[k], SCORERS * GROUP_THREADS / 32); /* warps */
    }
    for (int w = 0; w < SCORERS; w++)
        for (int k = 0; k < STAGES; k++) {
            bar_init(&s.full[w][k], 1);
            bar_init(&s.free[w][k], GROUP_THREADS / 32);
        }
    tensor_fence(); /* copies arrive at them */
}

/* ---- Fetch --------------------------------------------------------------------------------- */

/* By one thread: the means that scorer w multiplies. */
template <int D> DEV void fetch(const select_args &a, score_memory &s, int w)
{
    ring_place<STAGES> to = {0, 1};
    int group = a.n_head / a.kv.n_head_kv, before = 0;
    for (int item = (int)blockIdx.x; item < n_jobs(a); item += (int)gridDim.x) {
        job b = job_of(a, item);
        const uint16_t *means = a.means + (size_t)(b.h / group) * a.mean_room * D;
        for (int u = first_group(before, w); u < b.n_group; u += SCORERS)
            for (int p = 0; p < D / COLUMNS; p++, step(to)) {
                bar_wait(&s.free[w][to.at], to.parity);
                copy_bulk(s.means[w][to.at], means + (size_t)u * TILES * D + p * TILES * COLUMNS,
                          MEAN_BYTES, &s.full[w][to.at]);
            }
        before += b.n_group;
    }
}

/* ---- Fill ---------------------------------------------------------------------------------- */

/* Requests the queries of a job from memory. By GROUP_THREADS threads. */
template <int D> DEV void expect_queries(const select_args &a, int item)
{
    enum { LINES = D / 32 /* of 128 bytes, of a row */ };
    if (item >= n_jobs(a))
        return;
    job b = job_of(a, item);
    const float *q = a.q.at + ROWS * b.i * a.q.stride + b.h * D;
    for (int k = (int)threadIdx.x % GROUP_THREADS; k < ROWS * LINES; k += GROUP_THREADS)
        prefetch(q + k / LINES * a.q.stride + k % LINES * 32);
}

/* Queries times scale in f16, as attention has them. The reads of a piece are under way before its
 * place is free. */
template <int D> DEV void fill(const select_args &a, score_memory &s)
{
    ring_place<SLOTS> to = {0, 1};
    int i = (int)threadIdx.x % GROUP_THREADS, row0 = i / (COLUMNS / 4), e = i % (COLUMNS / 4) * 4;
    for (int item = (int)blockIdx.x; item < n_jobs(a); item += (int)gridDim.x) {
        job b = job_of(a, item);
        const float *q = a.q.at + (ROWS * b.i + row0) * a.q.stride + b.h * D + e;
        for (int p = 0; p < D / COLUMNS; p++, step(to)) {
            float4 v[LOADS];
#pragma unroll
            for (int k = 0; k < LOADS; k++)
                v[k] = *(const float4 *)(q + p * COLUMNS + k * FILL_ROWS * a.q.stride);
            bar_wait(&s.q_free[to.at], to.parity);
#pragma unroll
            for (int k = 0; k < LOADS; k++)
                *(uint2 *)(s.q[to.at] + piece_at(row0 + k * FILL_ROWS, e / 8) + e % 8 * 2) =
                    make_uint2(f32x2_to_f16(v[k].x * a.scale, v[k].y * a.scale),
                               f32x2_to_f16(v[k].z * a.scale, v[k].w * a.scale));
            tensor_fence();
            bar_arrive(&s.q_full[to.at]);
        }
        /* A head of 512 fills the ring; smaller ones are a head ahead or more anyway. */
        if (D / COLUMNS == SLOTS)
            expect_queries<D>(a, item + (int)gridDim.x);
    }
}

/* ---- Score --------------------------------------------------------------------------------- */

/* x = means of a group of tiles times queries; releases the pieces of means, and those of queries
 * if the group is the warpgroup's last one of the job. */
template <int D>
DEV void multiply(score_memory &s, float (&x)[64], int w, ring_place<STAGES> &from,
                  ring_place<SLOTS> &queries, bool first, bool last)
{
    uint64_t means = operand(shared_at(s.means[w]), 16), q = operand(shared_at(s.q), 16);
    uint64_t *left = NULL, *left_q = NULL;
    ring_place<SLOTS> piece = queries;
    hold(x);
#pragma unroll
    for (int p = 0; p < D / COLUMNS; p++) {
        if (first)
            bar_wait(&s.q_full[piece.at], piece.parity);
        bar_wait(&s.full[w][from.at], from.parity);
        wg_fence();
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++) /* 32 of a row's 128 bytes */
            wg_mma_128(x, means + (from.at * MEAN_BYTES + i * 32) / 16,
                       q + (piece.at * QUERY_BYTES + i * 32) / 16, p + i > 0);
        wg_commit();
        if (p > 0) {
            wg_wait<1>();
            warp_arrive(left);
            if (last)
                warp_arrive(left_q);
        }
        left = &s.free[w][from.at];
        left_q = &s.q_free[piece.at];
        step(from);
        step(piece);
    }
    wg_wait<0>();
    hold(x);
    warp_arrive(left);
    if (last)
        warp_arrive(left_q);
}

/* The peaks of a group of tiles, of which the first is tile n0 of the store. Tile m is scored by
 * the last query alone. A NaN is ignored. */
DEV void take_peaks(float (&x)[64], float2 *scores, int n0, int m)
{
    constexpr float log2_e = 1.4426950408889634f;
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int n = n0 + 16 * warp + (lane >> 2) + 8 * h;
        float top = -INFINITY, sum = 0;
        if (n0 + TILES > m) {
            bool alone = n == m;
#pragma unroll
            for (int j = 0; j < 32; j++) {
                float &v = x[j / 2 * 4 + 2 * h + j % 2];
                v = alone && (j < 31 || (lane & 3) < 3) ? -INFINITY : v;
            }
        }
#pragma unroll
        for (int j = 0; j < 32; j++) {
            float &v = x[j / 2 * 4 + 2 * h + j % 2];
            v = v == v ? v : -INFINITY;
            top = fmaxf(top, v);
        }
        top = fmaxf(top, shfl_xor_f32(top, 1));
        top = fmaxf(top, shfl_xor_f32(top, 2));
        float less = top == -INFINITY ? 0 : top; /* no infinity minus itself */
#pragma unroll
        for (int j = 0; j < 32; j++)
            sum += fast_exp2((x[j / 2 * 4 + 2 * h + j % 2] - less) * log2_e);
        sum += shfl_xor_f32(sum, 1);
        sum += shfl_xor_f32(sum, 2);
        if ((lane & 3) == 0 && n <= m)
            scores[n] = make_float2(top, sum);
    }
}

template <int D> DEV void score(const select_args &a, score_memory &s, int w)
{
    ring_place<STAGES> from = {0, 0};
    ring_place<SLOTS> queries = {0, 0};
    int before = 0;
    float x[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        x[i] = 0;
    for (int item = (int)blockIdx.x; item < n_jobs(a); item += (int)gridDim.x) {
        job b = job_of(a, item);
        float2 *scores = (float2 *)a.scores + (size_t)(b.i * a.n_head + b.h) * a.n_tiles;
        int first = first_group(before, w);
        for (int u = first; u < b.n_group; u += SCORERS) {
            multiply<D>(s, x, w, from, queries, u == first, u + SCORERS >= b.n_group);
            take_peaks(x, scores, u * TILES, b.m);
        }
        for (int p = 0; p < D / COLUMNS; p++, step(queries))
            if (first >= b.n_group) { /* not before they came: an arrival counts for one round */
                bar_wait(&s.q_full[queries.at], queries.parity);
                warp_arrive(&s.q_free[queries.at]);
            }
        before += b.n_group;
    }
}

/* scores[i, h, n] = (max_j t, sum_j e^(t - max)), t = scale q[128 i + j, h] . means[n, g]
 * grid:   as many blocks as multiprocessors
 * shared: 8 pieces of queries, 2 x 6 of means: 224 KB
 * bound:  tensor cores; in heads of 128 exponentials are as many cycles */
template <int D> __global__ void __launch_bounds__(THREADS, 1) score_hopper_kernel(select_args a)
{
    DYN_SHARED(uint8_t, mem);
    score_memory &s = *(score_memory *)(mem + (-shared_at(mem) & 1023));
    int role = (int)threadIdx.x / GROUP_THREADS;
    grid_trigger();
    if (role == SCORERS) /* Another kernel may still write them: this brings no value. */
        expect_queries<D>(a, (int)blockIdx.x);
    grid_wait();
    if (threadIdx.x == 0)
        barriers(s);
    __syncthreads();
    if (role < SCORERS)
        score<D>(a, s, role);
    else if (role == SCORERS)
        fill<D>(a, s);
    else if (lane_id() == 0)
        fetch<D>(a, s, (int)(threadIdx.x >> 5) & 1);
}

template <int D> static void launch_scores(cudaStream_t s, const select_args &a)
{
    int n = a.n_head * a.n_blocks;
    LAUNCH(score_hopper_kernel<D>, dim3((unsigned)(n < cu_gpu.n_sm ? n : cu_gpu.n_sm)),
           dim3(THREADS), SHARED_BYTES, s, a);
}

extern "C" void cu_select_hopper(cudaStream_t s, select_args a)
{
    if (a.kv.head_dim == 128)
        launch_scores<128>(s, a);
    else if (a.kv.head_dim == 256)
        launch_scores<256>(s, a);
    else
        launch_scores<512>(s, a);
}

extern "C" int cu_select_hopper_init(void)
{
    return allow_shared(score_hopper_kernel<128>, SHARED_BYTES) |
           allow_shared(score_hopper_kernel<256>, SHARED_BYTES) |
           allow_shared(score_hopper_kernel<512>, SHARED_BYTES);
}
