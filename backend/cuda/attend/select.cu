/* select.cu - block selection (sparse.h): which tiles of 128 keys a query block of 128 rows reads.
 *
 *     keys     of a tile          ->  mean, f16                                  mean_kernel
 *     scores   rows x tile means  ->  (largest, sum of exponentials) of a tile   score_kernel
 *     lists    of a KV head's query heads  ->  a bit for each tile               list_kernel
 *
 * A tile's mean is the mean of two pages' means in bf16, as on a CPU, rounded to f16: queries and
 * means meet as queries and keys do in attention. Sums run over dims and rows in an order that
 * depends on neither the pass nor its other rows, so the lists depend on the prompt alone.
 *
 * The scores of all heads and query blocks of a launch lie in memory: 8 bytes for each tile, query
 * head and query block. SELECT_BLOCKS query blocks at a time bound that.
 *
 * On GPUs of 9.0 the scores are those of select_hopper.cu. Means lie as its products read them:
 * 64 columns of 64 tiles are 8 KB, which one copy brings.
 */
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/pages/launch_pages.h"

enum {
    ROWS = SELECT_ROWS,
    MEANS = 128,  /* tiles at a time */
    COLUMNS = 64, /* of a stage */
    ROW_BYTES = 2 * COLUMNS,
    STAGE_BYTES = MEANS * ROW_BYTES,
    BLOCK_BYTES = ROWS * ROW_BYTES, /* of queries: 64 columns */
    WARPS = 8,
    THREADS = 32 * WARPS,
    LIST_PAGES = SELECT_ROWS / PAGE_KEYS,
    /* A warp's scores: 64 rows, in 4 fragments of 16, by 32 tiles, in 4 fragments of 8. */
    FRAGMENTS = 4,
    WARP_ROWS = 16 * FRAGMENTS,
    WARP_MEANS = 8 * FRAGMENTS,
    TILE_WARPS = MEANS / WARP_MEANS, /* warps that divide the tiles; two divide the rows */
};

/* ---- Means --------------------------------------------------------------------------------- */

/* Element i of the mean of tile n, from the first tile of a KV head on. */
DEV size_t mean_at(int n, int i, int head_dim)
{
    int k = n % MEAN_TILES;
    return (size_t)(n - k) * head_dim + i / COLUMNS * MEAN_TILES * COLUMNS +
           piece_at(k, i % COLUMNS / 8) / 2 + i % 8;
}

/* Eight f16 values as floats. */
DEV void unpack_eight(float (&to)[8], uint4 v)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = f16_to_f32(w[i] & 0xffff);
        to[2 * i + 1] = f16_to_f32(w[i] >> 16);
    }
}

/* A thread's share of the keys of a page: eight neighbours of every GROUPS-th row. */
template <int D> struct mean_shape {
    static constexpr int PIECES = D / 8, GROUPS = THREADS / PIECES, MINE = PAGE_KEYS / GROUPS;
    static constexpr int F16_BLOCKS = D == 512 ? 2 : D == 256 ? 3 : 4; /* on a multiprocessor */
};

/* N of them, from the thread's k0-th row on. */
template <int KIND, int D, int N>
DEV void load_rows(uint4 (&u)[N], const uint8_t *rows, int row_bytes, int k0)
{
    using S = mean_shape<D>;
    int e = (int)threadIdx.x % S::PIECES, g = (int)threadIdx.x / S::PIECES;
#pragma unroll
    for (int k = 0; k < N; k++)
        u[k] = kv_piece<KIND>(rows + (size_t)(g + (k0 + k) * S::GROUPS) * row_bytes, e);
}
template <int N> DEV void add_rows(float (&sum)[8], const uint4 (&u)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        float x[8];
        unpack_eight(x, u[k]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] += x[i];
    }
}
/* The thread's sums to sum[group][dim]. */
template <int D> DEV void store_sums(float (*to)[D], const float (&sum)[8])
{
    using S = mean_shape<D>;
    int e = (int)threadIdx.x % S::PIECES, g = (int)threadIdx.x / S::PIECES;
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[g][8 * e + i] = sum[i];
}
/* Sums of the pages' rows as they are stored. Both pages are on their way at once, or a part of one
 * that fits in registers. */
template <int KIND, int D>
DEV void sum_rows(float (*to)[mean_shape<D>::GROUPS][D], const uint8_t *const (&pages)[LIST_PAGES],
                  int row_bytes)
{
    constexpr int MINE = mean_shape<D>::MINE, PART = KIND == KV_F16 ? MINE : MINE / 2;
    if constexpr (D < 512) {
        uint4 u[LIST_PAGES][MINE];
#pragma unroll
        for (int p = 0; p < LIST_PAGES; p++)
            load_rows<KIND, D>(u[p], pages[p], row_bytes, 0);
#pragma unroll
        for (int p = 0; p < LIST_PAGES; p++) {
            float sum[8] = {};
            add_rows(sum, u[p]);
            store_sums(to[p], sum);
        }
    } else {
#pragma unroll 1
        for (int p = 0; p < LIST_PAGES; p++) {
            float sum[8] = {};
#pragma unroll 1
            for (int k0 = 0; k0 < MINE; k0 += PART) {
                uint4 u[PART];
                load_rows<KIND, D>(u, p ? pages[1] : pages[0], row_bytes, k0);
                add_rows(sum, u);
            }
            store_sums(to[p], sum);
        }
    }
}

/* One stream: turning pairs of the same rows, turned by their places in the page. The sum over a
 * page is turned by the page's position afterwards: rotations are linear. Half of the threads take
 * each page. */
template <int KIND, int D>
DEV void sum_turned(float (*sums)[mean_shape<D>::GROUPS][D],
                    const uint8_t *const (&pages)[LIST_PAGES], const dev_kv &kv)
{
    using S = mean_shape<D>;
    constexpr int TURN = key_shape<D>::TURN, HALF = S::PIECES / LIST_PAGES;
    int e = (int)threadIdx.x % S::PIECES % HALF, g = (int)threadIdx.x / S::PIECES;
    int p = (int)threadIdx.x % S::PIECES / HALF;
    float(*sum)[D] = sums[p];
    const uint8_t *rows = p ? pages[1] : pages[0];
    if (8 * e >= TURN)
        return;
    float low[8] = {}, high[8] = {};
#pragma unroll 4
    for (int k = g; k < PAGE_KEYS; k += S::GROUPS) {
        const uint8_t *row = rows + (size_t)k * kv.k_bytes;
        const float *c = kv.turns + 2 * k * TURN + 8 * e, *s = c + TURN;
        float x[8], y[8];
        unpack_eight(x, kv_piece<KIND>(row, e));
        unpack_eight(y, kv_piece<KIND>(row, e + S::PIECES / 2));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] *= kv.k_weight[8 * e + i];
            y[i] *= kv.k_weight[D / 2 + 8 * e + i];
            low[i] += x[i] * c[i] - y[i] * s[i];
            high[i] += x[i] * s[i] + y[i] * c[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[g][8 * e + i] = low[i];
        sum[g][D / 2 + 8 * e + i] = high[i];
    }
}

/* The mean of dim i of a page whose first key is at `pos`, in bf16. */
template <int D> DEV float page_mean(const float (*sum)[D], const dev_kv &kv, int i, int pos)
{
    constexpr int TURN = key_shape<D>::TURN;
    int low = i % (D / 2);
    float x = 0, y = 0;
    for (int g = 0; g < mean_shape<D>::GROUPS; g++)
        x += sum[g][i];
    if (kv.single && low < TURN) {
        float sn, cs;
        turn_of(pos, kv.inv_freq[low], &sn, &cs);
        for (int g = 0; g < mean_shape<D>::GROUPS; g++)
            y += sum[g][i < D / 2 ? i + D / 2 : low];
        x = i < D / 2 ? x * cs - y * sn : y * sn + x * cs;
    } else if (kv.single) {
        x *= kv.k_weight[i];
    }
    return bf16_to_f32(f32_to_bf16(mul_rn(x, 1.0f / PAGE_KEYS)));
}

template <int KIND, int D>
DEV void tile_mean(const select_args &a, float (*sum)[mean_shape<D>::GROUPS][D])
{
    int n = (int)blockIdx.x, g = (int)blockIdx.y, t = n * SELECT_ROWS;
    const uint8_t *rows = head_rows(a.kv, a.base.k, g, a.kv.k_bytes), *at[LIST_PAGES];
#pragma unroll
    for (int p = 0; p < LIST_PAGES; p++)
        at[p] = rows + (size_t)place_of_key(a.kv, a.base.page, t + p * PAGE_KEYS) * a.kv.k_bytes;
    sum_rows<KIND, D>(sum, at, a.kv.k_bytes);
    __syncthreads();
    if (D > 128 && a.kv.single) {
        sum_turned<KIND, D>(sum, at, a.kv);
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < D; i += THREADS) {
        float mean = 0;
#pragma unroll
        for (int p = 0; p < LIST_PAGES; p++)
            mean += 0.5f * page_mean<D>(sum[p], a.kv, i, key_pos(a.base.page, t + p * PAGE_KEYS));
        a.means[(size_t)g * a.mean_room * D + mean_at(n, i, D)] = (uint16_t)f32_to_f16(mean);
    }
}

/* means[g, n] = the mean of the keys of tile n, each page's rounded to bf16 first
 * grid:   tile x KV head
 * shared: of both pages a sum of each dim for every group of threads that divide the rows: 16 KB
 * bound:  memory. F16 has an instance of its own: other formats need more registers */
template <int D, bool F16>
__global__ void __launch_bounds__(THREADS, (F16 ? mean_shape<D>::F16_BLOCKS : 2))
    mean_kernel(select_args a)
{
    __shared__ float sum[LIST_PAGES][mean_shape<D>::GROUPS][D];
    grid_trigger();
    grid_wait();
    if constexpr (F16) {
        tile_mean<KV_F16, D>(a, sum);
    } else {
        switch (a.kv.k_kind) {
#define DO(kind)                                                                                   \
    case kind:                                                                                     \
        tile_mean<kind, D>(a, sum);                                                                \
        break;
            EACH_BUT_F16(DO)
#undef DO
        }
    }
}

/* The same of pages' means: of one rotated stream, whose keys are made one by one.
 * means[g, n] = (pages[g, 2 n] + pages[g, 2 n + 1]) / 2
 * grid:   tile x KV head
 * shared: none
 * bound:  memory */
__global__ void __launch_bounds__(THREADS) join_kernel(select_args a)
{
    grid_trigger();
    grid_wait();
    int n = (int)blockIdx.x, g = (int)blockIdx.y, d = a.kv.head_dim;
    const uint16_t *first = a.pages + 2 * ((size_t)g * a.n_tiles + n) * d, *second = first + d;
    uint16_t *means = a.means + (size_t)g * a.mean_room * d;
    for (int i = (int)threadIdx.x; i < d; i += THREADS)
        means[mean_at(n, i, d)] =
            (uint16_t)f32_to_f16(mul_rn(0.5f, bf16_to_f32(first[i]) + bf16_to_f32(second[i])));
}

template <int D> static void mean(cudaStream_t s, dim3 grid, const select_args &a)
{
    if (a.kv.k_kind == KV_F16)
        LAUNCH((mean_kernel<D, true>), grid, dim3(THREADS), 0, s, a);
    else
        LAUNCH((mean_kernel<D, false>), grid, dim3(THREADS), 0, s, a);
}

extern "C" void cu_tile_means(cudaStream_t s, select_args a)
{
    int n = a.block0 + a.n_blocks;
    dim3 grid((unsigned)n, (unsigned)a.kv.n_head_kv);
    if (a.pages) {
        cu_sum_pages(s, (sums_args){a.kv, a.base, a.pages, 2 * a.n_tiles, 1, 0, 0, 2 * n});
        LAUNCH(join_kernel, grid, dim3(THREADS), 0, s, a);
    } else if (a.kv.head_dim == 128) {
        mean<128>(s, grid, a);
    } else if (a.kv.head_dim == 256) {
        mean<256>(s, grid, a);
    } else {
        mean<512>(s, grid, a);
    }
}

/* ---- Scores -------------------------------------------------------------------------------- */

/* Of one tile and some rows. */
struct peak {
    float top, sum; /* the largest score; the sum of e^(score - top) */
};
constexpr float log2_e = 1.4426950408889634f;

/* Heads of 512 leave room for one block on a multiprocessor, smaller ones for two. STREAM: queries
 * come again with every stage, for GPUs whose blocks have no room for all of them. */
template <int D, bool STREAM = false> struct score_shape {
    static constexpr int STAGES = D == 512 && !STREAM ? 4 : 3, BLOCKS = D == 512 || STREAM ? 1 : 2;
    static constexpr int QUERIES = STREAM ? STAGES : D / COLUMNS;
};
template <int D, bool STREAM = false> struct score_memory {
    uint8_t q[score_shape<D, STREAM>::QUERIES][BLOCK_BYTES];
    uint8_t means[score_shape<D, STREAM>::STAGES][STAGE_BYTES];
    peak part[MEANS]; /* of the second half of the rows */
};
static_assert(2 * (sizeof(score_memory<256>) + 1024) <= 228 * 1024, "two blocks");
static_assert(sizeof(score_memory<512, true>) <= 99 * 1024, "a block of any GPU of 8.x");

/* Queries times scale in f16, as attention has them. */
template <int D> DEV void load_queries(score_memory<D> &s, const select_args &a, int row0, int h)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < ROWS * (D / 4); i += THREADS) {
        int r = i / (D / 4), e = i % (D / 4) * 4;
        float4 v = *(const float4 *)(a.q.at + (row0 + r) * a.q.stride + h * D + e);
        *(uint2 *)(s.q[e / COLUMNS] + piece_at(r, e % COLUMNS / 8) + e % 8 * 2) = make_uint2(
            f32x2_to_f16(v.x * a.scale, v.y * a.scale), f32x2_to_f16(v.z * a.scale, v.w * a.scale));
    }
}

/* The same of 64 columns. */
template <int D> DEV void load_columns(uint8_t *to, const select_args &a, int row0, int h, int at)
{
    const float *q = a.q.at + row0 * a.q.stride + h * D + at;
#pragma unroll
    for (int i = (int)threadIdx.x; i < ROWS * (COLUMNS / 4); i += THREADS) {
        int r = i / (COLUMNS / 4), e = i % (COLUMNS / 4) * 4;
        float4 v = *(const float4 *)(q + r * a.q.stride + e);
        *(uint2 *)(to + piece_at(r, e / 8) + e % 8 * 2) = make_uint2(
            f32x2_to_f16(v.x * a.scale, v.y * a.scale), f32x2_to_f16(v.z * a.scale, v.w * a.scale));
    }
}

/* Starts the copies of stage i: 64 columns of the means of MEANS tiles. Zeros beyond tile m. */
template <int D, bool STREAM>
DEV void fetch_means(score_memory<D, STREAM> &s, const uint16_t *means, int i, int m)
{
    int n0 = i / (D / COLUMNS) * MEANS, column = i % (D / COLUMNS) * COLUMNS;
    uint8_t *to = s.means[i % score_shape<D, STREAM>::STAGES];
#pragma unroll
    for (int k = 0; k < MEANS * 8 / THREADS; k++) {
        int j = (int)threadIdx.x + k * THREADS, n = min(n0 + j / 8, m);
        copy16_async(to + piece_at(j / 8, j % 8), means + mean_at(n, column + j % 8 * 8, D),
                     n0 + j / 8 <= m);
    }
}

/* A warp's products over the columns of a stage, from row `row` and tile n on: x[i] is of rows 16 i
 * .. + 15, as fragments of 8 tiles each. */
DEV void multiply(float (&x)[FRAGMENTS][FRAGMENTS][4], const uint8_t *q, const uint8_t *means,
                  int row, int n)
{
    int lane = lane_id();
#pragma unroll
    for (int c = 0; c < COLUMNS / 16; c++) {
        uint32_t a[FRAGMENTS][4], b[FRAGMENTS / 2][4];
#pragma unroll
        for (int j = 0; j < FRAGMENTS / 2; j++)
            ldmatrix4(b[j], means + piece_at(n + 16 * j + lane % 8 + lane / 16 * 8,
                                             2 * c + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++)
            ldmatrix4(a[i], q + piece_at(row + 16 * i + lane % 16, 2 * c + lane / 16));
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
            for (int j = 0; j < FRAGMENTS; j++)
                mma_f16(x[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

DEV float relative(float t, float top)
{
    return top == -INFINITY ? 0.0f : fast_exp2((t - top) * log2_e);
}
/* Over the eight lanes that share a column. */
DEV float column_max(float v)
{
#pragma unroll
    for (int m = 4; m < 32; m *= 2)
        v = fmaxf(v, shfl_xor_f32(v, m));
    return v;
}
DEV float column_sum(float v)
{
#pragma unroll
    for (int m = 4; m < 32; m *= 2)
        v += shfl_xor_f32(v, m);
    return v;
}

/* A thread's columns of a warp's scores: tile column_of(j) of its 32. */
enum { MINE = 2 * FRAGMENTS };
DEV int column_of(int j)
{
    return 8 * (j / 2) + 2 * (lane_id() & 3) + j % 2;
}
/* The peaks of a warp's rows, of which the first is `row`, at its tiles, of which the first is tile
 * n0 of the store; x: set to 0. Tile m is scored by the last row alone. A NaN is ignored. */
DEV void take_peaks(float (&x)[FRAGMENTS][FRAGMENTS][4], peak (&to)[MINE], int row, int n0, int m)
{
    int g = lane_id() >> 2;
#pragma unroll
    for (int j = 0; j < MINE; j++) {
        float v[2 * FRAGMENTS], top = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < 2 * FRAGMENTS; i++) { /* rows 8 i + g */
            float &y = x[i / 2][j / 2][i % 2 * 2 + j % 2];
            bool counts = y == y && (n0 + column_of(j) < m || row + 8 * i + g == ROWS - 1);
            v[i] = counts ? y : -INFINITY;
            y = 0;
            top = fmaxf(top, v[i]);
        }
        top = column_max(top);
#pragma unroll
        for (int i = 0; i < 2 * FRAGMENTS; i++)
            sum += relative(v[i], top);
        to[j] = peak{top, column_sum(sum)};
    }
}
/* Both halves of the rows. */
DEV peak joined(peak a, peak b)
{
    float top = fmaxf(a.top, b.top);
    return peak{top, a.sum * relative(a.top, top) + b.sum * relative(b.top, top)};
}

/* scores[i, h, n] = (max_j t, sum_j e^(t - max)), t = scale q[128 i + j, h] . means[n, g]
 * grid:   query head x query block
 * shared: 128 queries, stages of 64 columns of 128 means, peaks: 81, 113 and 193 KB
 * bound:  tensor cores, beside shared memory */
template <int D, bool STREAM>
__global__ void __launch_bounds__(THREADS, (score_shape<D, STREAM>::BLOCKS))
    score_kernel(select_args a)
{
    DYN_SHARED(uint8_t, mem);
    score_memory<D, STREAM> &s = *(score_memory<D, STREAM> *)mem;
    constexpr int STEPS = D / COLUMNS, STAGES = score_shape<D, STREAM>::STAGES;
    int h = (int)blockIdx.x, i = (int)blockIdx.y, m = a.block0 + i;
    int n_stages = (m / MEANS + 1) * STEPS, warp = (int)threadIdx.x >> 5;
    int row = warp / TILE_WARPS * WARP_ROWS, tile = warp % TILE_WARPS * WARP_MEANS;
    const uint16_t *means = a.means + (size_t)(h / (a.n_head / a.kv.n_head_kv)) * a.mean_room * D;
    float2 *scores = (float2 *)a.scores + (size_t)(i * a.n_head + h) * a.n_tiles;
    float x[FRAGMENTS][FRAGMENTS][4] = {};
    grid_trigger();
    grid_wait();
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++) {
        if (k < n_stages)
            fetch_means(s, means, k, m);
        copy_commit();
        if (STREAM)
            load_columns<D>(s.q[k], a, ROWS * i, h, k % STEPS * COLUMNS);
    }
    if constexpr (!STREAM)
        load_queries<D>(s, a, ROWS * i, h);
    for (int k = 0; k < n_stages; k++) {
        copy_wait<STAGES - 2>();
        __syncthreads(); /* also between two uses of `part`, for a head has two stages or more */
        int later = k + STAGES - 1;
        if (later < n_stages)
            fetch_means(s, means, later, m);
        copy_commit();
        if (STREAM && later < n_stages)
            load_columns<D>(s.q[later % STAGES], a, ROWS * i, h, later % STEPS * COLUMNS);
        multiply(x, s.q[k % (STREAM ? STAGES : STEPS)], s.means[k % STAGES], row, tile);
        if (k % STEPS < STEPS - 1)
            continue;
        int n0 = k / STEPS * MEANS + tile;
        peak mine[MINE];
        take_peaks(x, mine, row, n0, m);
        bool writes = lane_id() < 4; /* of the eight lanes that share a column, the first */
#pragma unroll
        for (int j = 0; j < MINE; j++)
            if (row && writes)
                s.part[tile + column_of(j)] = mine[j];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            int n = n0 + column_of(j);
            if (row || !writes || n > m)
                continue;
            peak all = joined(mine[j], s.part[tile + column_of(j)]);
            scores[n] = make_float2(all.top, all.sum);
        }
    }
    copy_wait<0>();
}

/* ---- Lists --------------------------------------------------------------------------------- */

/* A tile's estimate among those of its head, whose largest score is `best`. */
DEV float share_of(float2 x, float best)
{
    return x.y * expf(x.x - best);
}

/* By a warp: the largest score of tiles 0 .. m of a head, and the least estimate that is kept. */
DEV float2 threshold_of(const float2 *x, int m, float alpha)
{
    float best = -INFINITY, most = 0;
#pragma unroll 8
    for (int n = lane_id(); n <= m; n += 32)
        best = x[n].x > best ? x[n].x : best;
    best = warp_max(best);
#pragma unroll 8
    for (int n = lane_id(); n <= m; n += 32) {
        float w = share_of(x[n], best);
        most = w > most ? w : most;
    }
    return make_float2(best, alpha * warp_max(most));
}

/* kept[i, g] = the tiles that a query head of KV head g keeps
 * grid:   KV head x query block; a warp finds a head's threshold, then all warps divide the tiles
 * shared: a word per 32 tiles, the thresholds of WARPS heads
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) list_kernel(select_args a)
{
    __shared__ float2 limit[WARPS]; /* of each head: its largest score, the least estimate kept */
    __shared__ uint32_t words[LIST_WORDS];
    int g = (int)blockIdx.x, i = (int)blockIdx.y, m = a.block0 + i, lane = lane_id();
    int group = a.n_head / a.kv.n_head_kv, warp = (int)threadIdx.x >> 5;
    grid_trigger();
    grid_wait();
    for (int w = warp; w < a.n_word; w += WARPS) {
        int n = 32 * w + lane;
        words[w] = warp_votes(n <= m && (n < a.sink || n > m - a.near));
    }
    for (int k0 = 0; k0 < group; k0 += WARPS) {
        int n_head = min(WARPS, group - k0);
        const float2 *x =
            (const float2 *)a.scores + (size_t)(i * a.n_head + g * group + k0) * a.n_tiles;
        if (warp < n_head) {
            float2 mine = threshold_of(x + (size_t)warp * a.n_tiles, m, a.alpha);
            if (lane == 0)
                limit[warp] = mine;
        }
        __syncthreads();
        for (int w = warp; w <= m / 32; w += WARPS) {
            int n = 32 * w + lane;
            bool keep = false;
#pragma unroll 4
            for (int k = 0; k < n_head; k++) {
                float2 own = x[(size_t)k * a.n_tiles + min(n, m)];
                keep |= !(share_of(own, limit[k].x) < limit[k].y);
            }
            uint32_t bits = warp_votes(keep && n <= m);
            if (lane == 0)
                words[w] |= bits;
        }
        __syncthreads();
    }
    int n_kept = 0;
    for (int w = (int)threadIdx.x; w < a.n_word; w += THREADS) {
        a.kept[(i * a.kv.n_head_kv + g) * a.n_word + w] = words[w];
        n_kept += bits_set(words[w]);
    }
    n_kept = warp_sum_i32(n_kept);
    if (a.stats && lane == 0) {
        unsigned long long pairs = (unsigned long long)ROWS * group;
        if (warp == 0)
            atomicAdd(&a.stats[0], pairs * (unsigned)(m + 1));
        atomicAdd(&a.stats[1], pairs * (unsigned)n_kept);
    }
}

template <int D, bool STREAM> static void score_as(cudaStream_t s, const select_args &a)
{
    LAUNCH((score_kernel<D, STREAM>), dim3((unsigned)a.n_head, (unsigned)a.n_blocks), dim3(THREADS),
           (sizeof(score_memory<D, STREAM>)), s, a);
}
/* Does a block have room for all queries? The lists are the same either way. */
template <int D> static bool whole_fits()
{
    return sizeof(score_memory<D>) <= (size_t)cu_gpu.shared_block;
}
template <int D> static void score(cudaStream_t s, const select_args &a)
{
    whole_fits<D>() ? score_as<D, false>(s, a) : score_as<D, true>(s, a);
}

extern "C" void cu_select(cudaStream_t s, select_args a)
{
    if (cu_gpu.wgmma)
        cu_select_hopper(s, a);
    else if (a.kv.head_dim == 128)
        score<128>(s, a);
    else if (a.kv.head_dim == 256)
        score<256>(s, a);
    else
        score<512>(s, a);
    LAUNCH(list_kernel, dim3((unsigned)a.kv.n_head_kv, (unsigned)a.n_blocks), dim3(THREADS), 0, s,
           a);
}

template <int D> static int allow()
{
    int bad = allow_shared(score_kernel<D, true>, sizeof(score_memory<D, true>));
    return whole_fits<D>() ? bad | allow_shared(score_kernel<D, false>, sizeof(score_memory<D>))
                           : bad;
}
extern "C" int cu_select_init(void)
{
    return allow<128>() | allow<256>() | allow<512>();
}
