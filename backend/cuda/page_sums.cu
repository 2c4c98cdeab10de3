/* page_sums.cu - summaries of pages of keys (page_sums in backend/ops.h), and how much queries
 * attend to each page by them (page_watch in backend/pass.h).
 *
 *     keys       64 rows of a page and KV head   ->  mean, or smallest and largest of each dim
 *     summaries  page 0 | page 1 | ..            ->  room[query][page]: bounds of products
 *     room       query 0: .......                ->  its largest, and the sum of exponentials
 *                query 1: .......
 *                         | sum over queries     ->  score[page] += shares of all queries
 *
 * Summaries: a thread has a dim and goes over the keys in order of position. Smallest and largest
 * are the stored values', rounded outwards, so two streams give the bits of the host. A page is
 * summarised once, so simple reads do.
 *
 * Scores: a warp holds the summaries of a few pages in registers and goes over the queries, which
 * lie in shared memory; so a summary is read once for all rows and heads of a launch. Queries are
 * added in a fixed order, so scores are the same on every run.
 */
#include "backend/cuda/keys.cuh"
#include "backend/cuda/launch_pages.h"

/* ---- Summaries ----------------------------------------------------------------------------- */

enum { KEYS_MADE = 8 /* keys of one stream that a block makes at a time */ };

/* Truncation goes towards zero; one step more goes away from it. */
DEV uint16_t bf16_towards(float x, bool away)
{
    uint32_t u = __float_as_uint(x);
    return (uint16_t)(x != x ? f32_to_bf16(x) : (u >> 16) + (away && (u & 0xffff)));
}

/* The sum, the smallest and the largest of some keys' values of a dim. A NaN stays. */
struct dim_sum {
    float sum, lo, hi;
    bool bad;
};
DEV void take_value(dim_sum &s, float x, bool first)
{
    s.sum = first ? x : s.sum + x;
    s.lo = first || x < s.lo ? x : s.lo;
    s.hi = first || x > s.hi ? x : s.hi;
    s.bad = (!first && s.bad) || x != x;
}
DEV void put_sum(const sums_args &a, const dim_sum &s, int i)
{
    const float nan = __uint_as_float(0x7fc00000);
    uint16_t *to = a.to + ((size_t)blockIdx.y * a.n_rows + a.row + blockIdx.x) *
                              ((size_t)a.parts * a.kv.head_dim);
    if (a.parts == 1) {
        to[i] = (uint16_t)f32_to_bf16(mul_rn(s.sum, 1.0f / PAGE_KEYS));
        return;
    }
    float lo = s.bad ? nan : s.lo, hi = s.bad ? nan : s.hi;
    to[i] = bf16_towards(lo, lo < 0);
    to[a.kv.head_dim + i] = bf16_towards(hi, hi > 0);
}

/* The first key's row of this block's page and head; rows of a page lie side by side. */
DEV const uint8_t *page_rows(const sums_args &a)
{
    int t0 = (a.first + (int)blockIdx.x) * PAGE_KEYS;
    return head_rows(a.kv, a.base.k, (int)blockIdx.y, a.kv.k_bytes) +
           (size_t)place_of_key(a.kv, a.base.page, t0) * a.kv.k_bytes;
}

/* grid:   page x KV head; a thread per dim
 * shared: none
 * bound:  latency: 64 reads, 16 of them in flight */
__global__ void __launch_bounds__(1024) sum_kernel(sums_args a)
{
    grid_trigger();
    grid_wait();
    const uint8_t *rows = page_rows(a);
    int i = (int)threadIdx.x;
    dim_sum s = {};
    if (i >= a.kv.head_dim)
        return;
    for (int k0 = 0; k0 < PAGE_KEYS; k0 += 16) {
        float x[16];
#pragma unroll
        for (int k = 0; k < 16; k++)
            x[k] = kv_value(rows + (size_t)(k0 + k) * a.kv.k_bytes, a.kv.k_kind, i);
#pragma unroll
        for (int k = 0; k < 16; k++)
            take_value(s, x[k], k0 + k == 0);
    }
    put_sum(a, s, i);
}

/* The same of keys that are made of values: warps make KEYS_MADE of them, then threads take them.
 * shared: KEYS_MADE keys in f32 */
__global__ void __launch_bounds__(1024) sum_made_kernel(sums_args a)
{
    DYN_SHARED(float, made);
    grid_trigger();
    grid_wait();
    const uint8_t *rows = page_rows(a);
    int i = (int)threadIdx.x, warp = i >> 5, n_warps = (int)(blockDim.x >> 5), d = a.kv.head_dim;
    int pos = key_pos(a.base.page, (a.first + (int)blockIdx.x) * PAGE_KEYS);
    dim_sum s = {};
    for (int k0 = 0; k0 < PAGE_KEYS; k0 += KEYS_MADE) {
        for (int k = warp; k < KEYS_MADE; k += n_warps)
            make_plain_key(made + k * d, rows + (size_t)(k0 + k) * a.kv.k_bytes, a.kv,
                           pos + k0 + k);
        __syncthreads();
        for (int k = 0; k < KEYS_MADE && i < d; k++)
            take_value(s, made[k * d + i], k0 + k == 0);
        __syncthreads();
    }
    if (i < d)
        put_sum(a, s, i);
}

extern "C" void cu_sum_pages(cudaStream_t s, sums_args a)
{
    dim3 grid((unsigned)a.n, (unsigned)a.kv.n_head_kv);
    dim3 block((unsigned)(a.kv.head_dim + 31) / 32 * 32);
    if (a.kv.single)
        LAUNCH(sum_made_kernel, grid, block, sizeof(float) * KEYS_MADE * a.kv.head_dim, s, a);
    else
        LAUNCH(sum_kernel, grid, block, 0, s, a);
}

/* ---- Products ------------------------------------------------------------------------------ */

enum { WARPS = 8, THREADS = 32 * WARPS, HEADS = 8 /* of queries in shared memory at a time */ };

/* A lane's dims are 8 neighbours of each 256: e = 256 j + 8 lane .. + 7, j < N. */
template <int N> struct watch_shape {
    static constexpr int PAGES = 8 / N, DIM = 256 * N; /* of a warp at a time; at most */
};

/* A lane's part of a summary row; zeros beyond the head. */
DEV uint4 summary_piece(const uint16_t *row, int e, int dim)
{
    if (e + 8 <= dim && dim % 8 == 0)
        return *(const uint4 *)(row + e);
    uint32_t v[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8 && e + i < dim; i++)
        v[i / 2] |= (uint32_t)row[e + i] << 16 * (i % 2);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* Queries of HEADS heads to shared memory: rotated as keys are stored, and scaled. Piece j of lane
 * l and half h, four floats, lies at ((head N + j) 2 + h) 32 + l, so that reads have no conflicts.
 */
template <int N> DEV void stage_queries(float4 *to, const watch_args &a, int row, int head0)
{
    constexpr int DIM = watch_shape<N>::DIM;
    int dim = a.kv.head_dim, n = min((int)HEADS, a.group - head0);
    const float *q = a.q.at + (int64_t)row * a.q.stride +
                     (int64_t)((a.head_kv0 + (int)blockIdx.y) * a.group + head0) * dim;
    /* Four neighbours a lane, a warp 128: a group of the rotation. */
    for (int i = (int)threadIdx.x; i < HEADS * DIM / 4; i += THREADS) {
        int head = i / (DIM / 4), e = i % (DIM / 4) * 4;
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = head < n && e + k < dim ? q[(int64_t)head * dim + e + k] : 0;
        float4 x = make_float4(v[0], v[1], v[2], v[3]);
        if (a.kv.k_rot && !a.kv.single)
            x = rotate_four(x, false);
        x.x = mul_rn(x.x, a.scale), x.y = mul_rn(x.y, a.scale);
        x.z = mul_rn(x.z, a.scale), x.w = mul_rn(x.w, a.scale);
        to[((head * N + e / 256) * 2 + e / 4 % 2) * 32 + e % 256 / 8] = x;
    }
}

/* Adds q times the bounds of two neighbours: the largest product with any key between them. */
DEV void add_bounds(float &sum, float q0, float q1, uint32_t lo, uint32_t hi)
{
    sum = fma_rn(q0, bf16_to_f32((q0 > 0 ? hi : lo) & 0xffff), sum);
    sum = fma_rn(q1, __uint_as_float((q1 > 0 ? hi : lo) & 0xffff0000u), sum);
}

/* room[query, page] = scale sum_k max(q_k lo_k, q_k hi_k), -infinity where it is a NaN
 * grid:   WARPS * PAGES pages x KV head; blocks beyond the pages exit
 * shared: the queries of HEADS heads of one row
 * bound:  memory: summaries, while rows times heads are few; then instructions */
template <int N> __global__ void __launch_bounds__(THREADS) watch_kernel(watch_args a)
{
    constexpr int PAGES = watch_shape<N>::PAGES;
    __shared__ float4 q[HEADS * N * 64];
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), dim = a.kv.head_dim;
    int page0 = ((int)blockIdx.x * WARPS + warp) * PAGES;
    uint4 lo[PAGES][N], hi[PAGES][N];
    grid_trigger();
    grid_wait();
    int n_pages = *a.n_pages;
    if ((int)blockIdx.x * WARPS * PAGES >= n_pages)
        return;
#pragma unroll
    for (int p = 0; p < PAGES; p++) {
        int page = min(page0 + p, n_pages - 1);
        const uint16_t *row = a.sums + ((size_t)(a.head_kv0 + blockIdx.y) * a.n_rows + page) *
                                           ((size_t)a.parts * dim);
#pragma unroll
        for (int j = 0; j < N; j++) {
            lo[p][j] = summary_piece(row, 256 * j + 8 * lane, dim);
            hi[p][j] = a.parts > 1 ? summary_piece(row + dim, 256 * j + 8 * lane, dim) : lo[p][j];
        }
    }
    for (int r = 0; r < a.n; r++)
        for (int head0 = 0; head0 < a.group; head0 += HEADS) {
            __syncthreads();
            stage_queries<N>(q, a, a.row0 + r, head0);
            __syncthreads();
            for (int h = 0; h < HEADS && head0 + h < a.group; h++) {
                float sum[PAGES];
#pragma unroll
                for (int p = 0; p < PAGES; p++)
                    sum[p] = 0;
#pragma unroll
                for (int j = 0; j < N; j++) {
                    float4 x = q[((h * N + j) * 2) * 32 + lane];
                    float4 y = q[((h * N + j) * 2 + 1) * 32 + lane];
#pragma unroll
                    for (int p = 0; p < PAGES; p++) {
                        add_bounds(sum[p], x.x, x.y, lo[p][j].x, hi[p][j].x);
                        add_bounds(sum[p], x.z, x.w, lo[p][j].y, hi[p][j].y);
                        add_bounds(sum[p], y.x, y.y, lo[p][j].z, hi[p][j].z);
                        add_bounds(sum[p], y.z, y.w, lo[p][j].w, hi[p][j].w);
                    }
                }
                int query = (r * a.n_kv + (int)blockIdx.y) * a.group + head0 + h;
                float mine = 0;
#pragma unroll
                for (int p = 0; p < PAGES; p++) {
                    float all = warp_sum(sum[p]);
                    mine = lane == p ? all : mine;
                }
                if (lane < PAGES && page0 + lane < n_pages)
                    a.room[(size_t)query * n_pages + page0 + lane] =
                        mine != mine ? -INFINITY : mine;
            }
        }
}

/* ---- Shares -------------------------------------------------------------------------------- */

/* The largest value of each query, and the reciprocal of its sum of exponentials, behind the room.
 * grid:   query
 * shared: a word per warp
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) watch_top_kernel(watch_args a)
{
    __shared__ float table[WARPS];
    grid_trigger();
    grid_wait();
    int n_pages = *a.n_pages;
    const float *x = a.room + (size_t)blockIdx.x * n_pages;
    float top = -INFINITY, sum = 0;
    for (int i = (int)threadIdx.x; i < n_pages; i += THREADS)
        top = x[i] > top ? x[i] : top;
    top = warp_max(top);
    if (lane_id() == 0)
        table[threadIdx.x >> 5] = top;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        top = table[w] > top ? table[w] : top;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_pages && top > -INFINITY; i += THREADS)
        sum += expf(x[i] - top);
    sum = block_sum(sum, table);
    if (threadIdx.x == 0) {
        float *to = a.room + (size_t)PAGE_QUERIES * n_pages + 2 * blockIdx.x;
        to[0] = top;
        to[1] = top > -INFINITY ? 1.0f / sum : 0;
    }
}

/* score[page] += sum over queries of exp(room - top) / sum, in their order
 * grid:   THREADS pages; blocks beyond the pages exit
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) watch_add_kernel(watch_args a)
{
    grid_trigger();
    grid_wait();
    int n_pages = *a.n_pages, i = (int)blockIdx.x * THREADS + (int)threadIdx.x;
    const float *stat = a.room + (size_t)PAGE_QUERIES * n_pages;
    int n = a.n * a.n_kv * a.group;
    if (i >= n_pages)
        return;
    float score = a.score[i];
#pragma unroll 8
    for (int k = 0; k < n; k++) {
        float2 s = *(const float2 *)(stat + 2 * k);
        float x = a.room[(size_t)k * n_pages + i];
        score += s.y > 0 ? expf(x - s.x) * s.y : 0;
    }
    a.score[i] = score;
}

template <int N> static void watch(cudaStream_t s, watch_args a)
{
    constexpr int PAGES = WARPS * watch_shape<N>::PAGES;
    dim3 grid((unsigned)((a.n_rows + PAGES - 1) / PAGES), (unsigned)a.n_kv);
    LAUNCH((watch_kernel<N>), grid, dim3(THREADS), 0, s, a);
}

extern "C" void cu_watch_pages(cudaStream_t s, watch_args a)
{
    if (a.kv.head_dim <= watch_shape<1>::DIM)
        watch<1>(s, a);
    else if (a.kv.head_dim <= watch_shape<2>::DIM)
        watch<2>(s, a);
    else
        watch<4>(s, a);
    LAUNCH(watch_top_kernel, dim3((unsigned)(a.n * a.n_kv * a.group)), dim3(THREADS), 0, s, a);
    LAUNCH(watch_add_kernel, dim3((unsigned)((a.n_rows + THREADS - 1) / THREADS)), dim3(THREADS), 0,
           s, a);
}
