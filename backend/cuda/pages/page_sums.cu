/* page_sums.cu - summaries of pages of keys (page_sums in backend/ops.h), and how much queries
 * attend to each page by them (page_watch in backend/pass.h).
 *
 *     keys       64 rows of a page and KV head   ->  mean, or middle and half width of each dim
 *     queries    of all layers of a pass         ->  kept as keys are stored, scaled
 *     summaries  page 0 | page 1 | ..            ->  room[query][page]: bounds of products
 *     room       query 0: .......                ->  its largest, and the sum of exponentials
 *                query 1: .......
 *                         | sum over queries     ->  votes[page] += shares of all queries
 *
 * Summaries: a thread has a dim and goes over the keys in order of position. Bounds follow from the
 * smallest and largest stored values by the operations of the host, so two streams give the bits of
 * the host. A page is summarised once, so simple reads do.
 *
 * Scores: a warp holds the summaries of a few pages in registers, as floats, and goes over the
 * queries, which lie in shared memory; so a summary is read and unpacked once for all rows and
 * heads of a job. Meanwhile the warp's next summaries are on their way. The layers of a pass are
 * jobs of one launch: one after the other, each would have too few blocks to hide how long memory
 * takes. Votes are whole numbers, so they are the same on every run, and on any number of GPUs.
 */
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/pages/launch_pages.h"
#include "backend/cuda/pages/warp_sums.cuh"

constexpr float VOTE = 1u << PAGE_VOTE; /* a query's whole vote */

/* ---- Summaries ----------------------------------------------------------------------------- */

enum { KEYS_MADE = 8 /* keys of one stream that a block makes at a time */ };

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

/* bf16 that is not below x; x >= 0 */
DEV uint32_t bf16_up(float x)
{
    uint32_t u = __float_as_uint(x);
    return (u >> 16) + ((u & 0xffff) != 0);
}

/* The largest magnitude of the group of dims that this thread's is in; a NaN is larger than any.
 * All threads of the block call. top: a word for each warp */
DEV float group_top(float v, uint32_t *top)
{
    constexpr int WARPS_EACH = SUM_GROUP / 32;
    int warp = (int)threadIdx.x >> 5, n = (int)blockDim.x >> 5, first = warp & ~(WARPS_EACH - 1);
    uint32_t most = warp_max_u32(__float_as_uint(fabsf(v)));
    if (lane_id() == 0)
        top[warp] = most;
    __syncthreads();
    for (int w = first; w < first + WARPS_EACH && w < n; w++)
        most = max(most, top[w]);
    return __uint_as_float(most);
}

DEV float scale_for(float top, float most)
{
    return top > 0 ? bf16_to_f32(bf16_up(fmaxf(top / most, 0x1p-100f))) : 0;
}

/* Dim i's codes, and the group's scales by its first thread: the operations of cpu_put_bounds, in
 * its order. Dims beyond the head have the value 0. */
DEV void put_bounds(const sums_args &a, float lo, float hi, size_t row, int i)
{
    __shared__ uint32_t top[2][32];
    int dim = a.kv.head_dim;
    float mid = mul_rn(0.5f, lo) + mul_rn(0.5f, hi), most = group_top(mid, top[0]);
    bool ok = most < 0x1p126f;
    float scale = scale_for(most, 127), code = ok && scale > 0 ? rintf(mid / scale) : 0;
    float at = ok ? mul_rn(scale, code) : 0, up = hi - at, down = at - lo;
    float need = mul_rn(up > down ? up : down, 1 + 0x1p-21f);
    most = group_top(need, top[1]);
    ok = ok && most < 0x1p126f;
    float wide_scale = scale_for(most, 255);
    float wide = ok && wide_scale > 0 ? fminf(ceilf(need / wide_scale), 255) : 0;
    if (i >= dim)
        return;
    uint8_t *to = (uint8_t *)a.to + row * 2 * dim;
    to[i] = (uint8_t)(int)(ok ? code : 0);
    to[dim + i] = (uint8_t)(int)wide;
    if (i % SUM_GROUP == 0)
        a.scales[row * ((dim + SUM_GROUP - 1) / SUM_GROUP) + i / SUM_GROUP] =
            ok ? __float_as_uint(scale) >> 16 | (__float_as_uint(wide_scale) & 0xffff0000u)
               : 0x7fc07fc0;
}

/* All threads of the block call; s of dims beyond the head is 0. */
DEV void put_sum(const sums_args &a, const dim_sum &s, int i)
{
    const float nan = __uint_as_float(0x7fc00000);
    size_t row = (size_t)blockIdx.y * a.n_rows + a.row + blockIdx.x;
    if (a.parts > 1)
        put_bounds(a, s.bad ? nan : s.lo, s.bad ? nan : s.hi, row, i);
    else if (i < a.kv.head_dim)
        ((uint16_t *)a.to)[row * a.kv.head_dim + i] =
            (uint16_t)f32_to_bf16(mul_rn(s.sum, 1.0f / PAGE_KEYS));
}

/* The first key's row of this block's page and head; rows of a page lie side by side. */
DEV const uint8_t *page_rows(const sums_args &a)
{
    int t0 = (a.first + (int)blockIdx.x) * PAGE_KEYS;
    return head_rows(a.kv, a.base.k, (int)blockIdx.y, a.kv.k_bytes) +
           (size_t)place_of_key(a.kv, a.base.page, t0) * a.kv.k_bytes;
}

/* grid:   page x KV head; a thread per dim
 * shared: two words per warp
 * bound:  latency: 64 reads, 16 of them in flight */
__global__ void __launch_bounds__(1024) sum_kernel(sums_args a)
{
    grid_trigger();
    grid_wait();
    const uint8_t *rows = page_rows(a);
    int i = (int)threadIdx.x;
    dim_sum s = {};
    for (int k0 = 0; k0 < PAGE_KEYS && i < a.kv.head_dim; k0 += 16) {
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
 * shared: KEYS_MADE keys in f32; two words per warp */
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

/* A lane's dims are 8 neighbours of each 256: e = 256 j + 8 lane .. + 7, j < N. In heads of up to
 * 128 (HALF) half a warp has a page. SETS: pages of such lanes at a time. */
template <int N, bool HALF> struct watch_shape {
    static constexpr int LANES = HALF ? 16 : 32, SETS = 4 / N, PAGES = SETS * 32 / LANES;
    static constexpr int DIM = 8 * LANES * N; /* at most */
};

/* to[((query n_kv + KV head) group + head), k] = scale q, rotated as keys are stored
 * grid:   query; a thread has four neighbours, a warp 128: a group of the rotation
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(256) query_kernel(query_args a)
{
    int dim = a.head_dim, e = 4 * (int)threadIdx.x, query = (int)blockIdx.x;
    int head = query % (a.n_kv * a.group), r = query / (a.n_kv * a.group);
    const float *q =
        a.q.at + (int64_t)(a.row0 + r) * a.q.stride + (int64_t)(a.head_kv0 * a.group + head) * dim;
    float v[4];
    grid_trigger();
    grid_wait();
#pragma unroll
    for (int k = 0; k < 4; k++)
        v[k] = e + k < dim ? q[e + k] : 0;
    float4 x = make_float4(v[0], v[1], v[2], v[3]);
    if (a.rot)
        x = rotate_four(x, false);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (e + k < dim)
            a.to[(size_t)query * dim + e + k] = mul_rn(v[k], a.scale);
}

extern "C" void cu_keep_queries(cudaStream_t s, query_args a)
{
    LAUNCH(query_kernel, dim3((unsigned)(a.n * a.n_kv * a.group)),
           dim3((unsigned)(a.head_dim + 127) / 128 * 32), 0, s, a);
}

/* Eight bf16 numbers of a row of `dim`, from e on; zeros beyond it. */
DEV uint4 mean_piece(const uint16_t *row, int e, int dim)
{
    uint32_t v[4] = {0, 0, 0, 0};
    if (e + 8 <= dim && dim % 8 == 0)
        return *(const uint4 *)(row + e);
    for (int i = 0; i < 8 && e + i < dim; i++)
        v[i / 2] |= (uint32_t)row[e + i] << 16 * (i % 2);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* Eight bytes of a row of `dim`, from e on; zeros beyond it. */
DEV uint2 code_piece(const uint8_t *row, int e, int dim)
{
    uint2 v = make_uint2(0, 0);
    if (e + 8 <= dim && dim % 8 == 0)
        return *(const uint2 *)(row + e);
    for (int i = 0; i < 8 && e + i < dim; i++)
        (i < 4 ? v.x : v.y) |= (uint32_t)row[e + i] << 8 * (i % 4);
    return v;
}

/* to[k] = scale (byte k of v - zero). Bytes become floats as the low bits of 2^23. */
DEV void code_floats(float *to, uint2 v, float zero, float scale)
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float x = __uint_as_float(pick_bytes(k < 4 ? v.x : v.y, 0x4b000000, 0x7440 | k % 4));
        to[k] = mul_rn(x - (0x1p23f + zero), scale);
    }
}

/* A lane's part of a page's summary as it is stored. Of bounds: codes of middles and of half
 * widths, and their scales. Of means: eight numbers in `mid` and `wide`. */
template <int N> struct page_codes {
    uint2 mid[N], wide[N];
    uint32_t scales[N];
};
template <int N, bool HALF>
DEV void load_codes(page_codes<N> *to, const watch_args &a, const watch_job &job, size_t row)
{
    using S = watch_shape<N, HALF>;
    int dim = a.head_dim, at = 8 * (lane_id() % S::LANES);
#pragma unroll
    for (int j = 0; j < N; j++, at += 256) {
        if (a.parts == 1) {
            uint4 u = mean_piece((const uint16_t *)job.sums + row * dim, at, dim);
            to->mid[j] = make_uint2(u.x, u.y), to->wide[j] = make_uint2(u.z, u.w);
            continue;
        }
        const uint8_t *codes = (const uint8_t *)job.sums + row * 2 * dim;
        int groups = (dim + SUM_GROUP - 1) / SUM_GROUP;
        to->scales[j] = at < dim ? job.scales[row * groups + at / SUM_GROUP] : 0;
        to->mid[j] = code_piece(codes, at, dim);
        to->wide[j] = code_piece(codes + dim, at, dim);
    }
}
/* A lane's middles and half widths of a page; of a mean, it and 0. */
template <int N> DEV void unpack_codes(float *mid, float *wide, const page_codes<N> &of, bool means)
{
#pragma unroll
    for (int j = 0; j < N; j++, mid += 8, wide += 8) {
        uint2 m = of.mid[j], w = of.wide[j];
        if (means) {
            uint32_t v[4] = {m.x, m.y, w.x, w.y};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                mid[2 * i] = bf16_to_f32(v[i] & 0xffff);
                mid[2 * i + 1] = __uint_as_float(v[i] & 0xffff0000u);
                wide[2 * i] = wide[2 * i + 1] = 0;
            }
            continue;
        }
        m.x ^= 0x80808080u, m.y ^= 0x80808080u;
        code_floats(mid, m, 128, bf16_to_f32(of.scales[j] & 0xffff));
        code_floats(wide, w, 0, __uint_as_float(of.scales[j] & 0xffff0000u));
    }
}

/* Queries of HEADS heads, from `from` on, to shared memory; zeros beyond n heads. Piece j of lane l
 * and half h, four floats, lies at ((head N + j) 2 + h) LANES + l: reads have no conflicts. */
template <int N, bool HALF> DEV void stage_queries(float4 *to, const float *from, int dim, int n)
{
    using S = watch_shape<N, HALF>;
    for (int i = (int)threadIdx.x; i < HEADS * S::DIM / 4; i += THREADS) {
        int head = i / (S::DIM / 4), e = i % (S::DIM / 4) * 4;
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = head < n && e + k < dim ? from[head * dim + e + k] : 0;
        to[((head * N + e / 256) * 2 + e / 4 % 2) * S::LANES + e % 256 / 8] =
            make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* Adds the product of four neighbours, the largest with any key of the page: in two sums, since one
 * would be a chain of twice as many steps. */
DEV void add_bounds(float &sum, float &more, float4 q, const float *mid, const float *wide)
{
    sum = fma_rn(q.x, mid[0], sum), more = fma_rn(fabsf(q.x), wide[0], more);
    sum = fma_rn(q.y, mid[1], sum), more = fma_rn(fabsf(q.y), wide[1], more);
    sum = fma_rn(q.z, mid[2], sum), more = fma_rn(fabsf(q.z), wide[2], more);
    sum = fma_rn(q.w, mid[3], sum), more = fma_rn(fabsf(q.w), wide[3], more);
}

/* room[query, page] = sum_k q_k m_k + |q_k| w_k, -infinity where it is infinite or no number
 * grid:   WARPS * PAGES pages x KV head x job; a block takes every gridDim.x-th of these. While it
 *         multiplies, the summaries of its next pages are on their way
 * shared: the queries of HEADS heads of one row
 * bound:  memory: summaries, while rows times heads are few; then instructions */
template <int N, bool HALF> __global__ void __launch_bounds__(THREADS, 2) watch_kernel(watch_args a)
{
    using S = watch_shape<N, HALF>;
    constexpr int SETS = S::SETS, BLOCK = WARPS * S::PAGES;
    __shared__ float4 q[HEADS * S::DIM / 4];
    const watch_job &job = a.job[blockIdx.z];
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), at = lane % S::LANES, dim = a.head_dim;
    int mine0 = warp * S::PAGES + lane / S::LANES * SETS;
    int kv = (int)blockIdx.y, n_kv = job.n_kv;
    bool staged = false, once = job.n == 1 && a.group <= HEADS; /* all queries fit at once */
    float mid[SETS][8 * N], wide[SETS][8 * N];
    page_codes<N> codes[SETS];
    grid_trigger();
    grid_wait();
    int n_pages = a.n_pages[job.watch];
    auto load = [&](int block) {
#pragma unroll
        for (int p = 0; p < SETS; p++) {
            int page = min(block * BLOCK + mine0 + p, n_pages - 1);
            load_codes<N, HALF>(&codes[p], a, job, (size_t)(job.head_kv0 + kv) * a.n_rows + page);
        }
    };
    if ((int)blockIdx.x * BLOCK >= n_pages || kv >= n_kv)
        return;
    load((int)blockIdx.x);
#pragma unroll 1
    for (int block = (int)blockIdx.x; block * BLOCK < n_pages; block += (int)gridDim.x) {
#pragma unroll
        for (int p = 0; p < SETS; p++)
            unpack_codes<N>(mid[p], wide[p], codes[p], a.parts == 1);
        if ((block + (int)gridDim.x) * BLOCK < n_pages)
            load(block + (int)gridDim.x);
        for (int r = 0; r < job.n; r++)
            for (int head0 = 0; head0 < a.group; head0 += HEADS) {
                int query = (r * n_kv + kv) * a.group + head0;
                if (!staged) {
                    __syncthreads();
                    stage_queries<N, HALF>(q, job.queries + (size_t)query * dim, dim,
                                           min((int)HEADS, a.group - head0));
                    __syncthreads();
                    staged = once;
                }
                for (int h = 0; h < HEADS && head0 + h < a.group; h++) {
                    float sum[SETS], more[SETS];
#pragma unroll
                    for (int p = 0; p < SETS; p++)
                        sum[p] = more[p] = 0;
#pragma unroll
                    for (int j = 0; j < N; j++) {
                        float4 x = q[((h * N + j) * 2) * S::LANES + at];
                        float4 y = q[((h * N + j) * 2 + 1) * S::LANES + at];
#pragma unroll
                        for (int p = 0; p < SETS; p++) {
                            add_bounds(sum[p], more[p], x, mid[p] + 8 * j, wide[p] + 8 * j);
                            add_bounds(sum[p], more[p], y, mid[p] + 8 * j + 4, wide[p] + 8 * j + 4);
                        }
                    }
#pragma unroll
                    for (int p = 0; p < SETS; p++)
                        sum[p] += more[p];
                    float mine = warp_sums<SETS, S::LANES>(sum);
                    int page = block * BLOCK + mine0 + summed_by<SETS, S::LANES>();
                    if (at % (S::LANES / SETS) == 0 && page < n_pages)
                        job.room[(size_t)(query + h) * n_pages + page] =
                            mine < INFINITY ? mine : -INFINITY;
                }
            }
    }
}

/* ---- Shares -------------------------------------------------------------------------------- */

/* The largest value of each query, and a whole vote over its sum of exponentials, behind the room.
 * grid:   query x job; blocks beyond the queries exit
 * shared: a word per warp
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) watch_top_kernel(watch_args a)
{
    __shared__ float table[WARPS];
    const watch_job &job = a.job[blockIdx.y];
    grid_trigger();
    grid_wait();
    if ((int)blockIdx.x >= job.n * job.n_kv * a.group)
        return;
    int n_pages = a.n_pages[job.watch];
    const float *x = job.room + (size_t)blockIdx.x * n_pages;
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
        float *to = job.stats + 2 * blockIdx.x;
        to[0] = top;
        to[1] = top > -INFINITY ? VOTE / sum : 0;
    }
}

/* votes[page] += exp(room - top) / sum of each query, in whole numbers, so no order counts
 * grid:   32 pages x job; a warp has every WARPS-th query
 * shared: a sum per warp and page
 * bound:  latency: 16 reads of a thread in flight */
__global__ void __launch_bounds__(THREADS) watch_add_kernel(watch_args a)
{
    constexpr int EACH = PAGE_QUERIES / WARPS;
    __shared__ unsigned long long sums[WARPS][32];
    float2 stats[EACH];
    float x[EACH];
    const watch_job &job = a.job[blockIdx.y];
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), n = job.n * job.n_kv * a.group;
    unsigned long long votes = 0;
    grid_trigger();
    grid_wait();
    int n_pages = a.n_pages[job.watch], page = (int)blockIdx.x * 32 + lane;
    if ((int)blockIdx.x * 32 >= n_pages)
        return;
#pragma unroll
    for (int j = 0; j < EACH; j++) { /* all reads, then all shares */
        int k = min(warp + j * WARPS, n - 1);
        stats[j] = *(const float2 *)(job.stats + 2 * k);
        x[j] = job.room[(size_t)k * n_pages + min(page, n_pages - 1)];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        float2 s = stats[j];
        bool asks = warp + j * WARPS < n && s.y > 0;
        votes += asks ? (uint32_t)mul_rn(expf(x[j] - s.x), s.y) : 0;
    }
    sums[warp][lane] = votes;
    __syncthreads();
    if (warp > 0 || page >= n_pages)
        return;
    for (int w = 1; w < WARPS; w++)
        votes += sums[w][lane];
    atomicAdd(&job.votes[page], votes);
}

template <int N, bool HALF> static void watch(cudaStream_t s, const watch_args &a)
{
    constexpr int PAGES = WARPS * watch_shape<N, HALF>::PAGES;
    unsigned heads = 1;
    for (int i = 0; i < a.n_jobs; i++)
        heads = heads > (unsigned)a.job[i].n_kv ? heads : (unsigned)a.job[i].n_kv;
    /* As many blocks as a GPU holds at a time: two for each multiprocessor. */
    unsigned most = (unsigned)((a.n_rows + PAGES - 1) / PAGES);
    unsigned fit = 2 * (unsigned)cu_gpu.n_sm / (heads * (unsigned)a.n_jobs);
    dim3 grid(fit < 1 ? 1 : fit < most ? fit : most, heads, (unsigned)a.n_jobs);
    LAUNCH((watch_kernel<N, HALF>), grid, dim3(THREADS), 0, s, a);
}

extern "C" void cu_watch_pages(cudaStream_t s, const watch_args *args)
{
    const watch_args a = *args;
    if (a.head_dim <= watch_shape<1, true>::DIM)
        watch<1, true>(s, a);
    else if (a.head_dim <= watch_shape<1, false>::DIM)
        watch<1, false>(s, a);
    else if (a.head_dim <= watch_shape<2, false>::DIM)
        watch<2, false>(s, a);
    else
        watch<4, false>(s, a);
    LAUNCH(watch_top_kernel, dim3(PAGE_QUERIES, (unsigned)a.n_jobs), dim3(THREADS), 0, s, a);
    LAUNCH(watch_add_kernel, dim3((unsigned)((a.n_rows + 31) / 32), (unsigned)a.n_jobs),
           dim3(THREADS), 0, s, a);
}
