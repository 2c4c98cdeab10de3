/* moe.cu - which experts a row goes to.
 *
 * At few rows the router's product and the choice are one kernel: the last block to write a row's
 * logits chooses for it. The host never learns the choice: the products of experts (matmul_vec.cu,
 * matmul_experts.cu, matmul_float.cu) cover all pairs of row and expert, and read the expert's
 * number on the device.
 */
#include "backend/cuda/experts/guess.cuh"
#include "backend/cuda/experts/own.cuh"
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/layouts.cuh"

enum { ROUTER_THREADS = 128 };

/* What a block of the router computes: the products of `experts` with `rows`. Every block reads its
 * experts and rows from the second-level cache, so larger blocks read less. Of few rows, small
 * blocks occupy more multiprocessors. ahead: this many times 512 weights of an expert are loaded
 * into registers before x is known. More would lengthen the code, and at few rows the fetch of
 * instructions is most of the time. */
template <int EXPERTS, int ROWS, int AHEAD> struct router_shape {
    static constexpr int experts = EXPERTS, rows = ROWS, ahead = AHEAD;
};
typedef router_shape<1, 1, 6> one_row_shape;
typedef router_shape<1, 4, 6> four_rows_shape;
typedef router_shape<2, 4, 6> some_rows_shape; /* up to MANY_ROUTER_ROWS */
typedef router_shape<4, 4, 4> many_rows_shape;
enum { MANY_ROUTER_ROWS = 32 };

/* The share of the expert that every row goes to, by a warp, in the order of matmul_float.cu. */
template <int K> DEV void shared_share(const router_args &a)
{
    enum { AT_ONCE = 16 };
    int n = a.w.n_in, lane = lane_id();
    float4 w[AT_ONCE];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        int i = 4 * lane + 128 * j;
        w[j] = a.factor && i < n ? load4<K>(a.factor, i) : make_float4(0, 0, 0, 0);
    }
    grid_wait();
    if (!a.factor) {
        if (lane == 0)
            a.share[a.k] = 1;
        return;
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        int i = 4 * lane + 128 * j;
        if (i < n)
            sum = dot4(sum, w[j], *(const float4 *)(a.x.at + i));
    }
#pragma unroll 1
    for (int i = 4 * lane + 128 * AT_ONCE; i < n; i += 128)
        sum = dot4(sum, load4<K>(a.factor, i), *(const float4 *)(a.x.at + i));
    sum = warp_sum(sum);
    if (lane == 0)
        a.share[a.k] = sigmoid_of(sum);
}

/* A call: the router's own blocks are short of time, and so much of it is the fetch of code. */
static __device__ __noinline__ void guess_beside(const prefetch_ask &q, int block, bool ready)
{
    guess_part<1>(q, block, ready);
}

/* logits[r, e] = x[r] . W[e] for a block's experts and rows, which share their reads. The last
 * block of a tile of rows chooses for them, a warp for each row. Sums do not depend on the shape.
 * COLD, one row: it also tells what becomes of the pairs (offload.h). beside: it runs at the same
 * time as the kernel before it, whose results it does not read. grid:   experts x rows; SHARED: a
 * block more; COLD: then the blocks of a guess (guess.cuh) shared: a sum per product and warp; is
 * this the last block? bound:  latency: rows of W are in flight before x is known, then the choice;
 * at many rows reads of both from the second cache */
template <int K, int LANE, class SHAPE, bool SIGMOID, bool SHARED, bool OFFLOAD>
__global__ void __launch_bounds__(ROUTER_THREADS)
    router_kernel(router_args a, const __grid_constant__ offload_rule c)
{
    constexpr int WARPS = ROUTER_THREADS / 32, EXPERTS = SHAPE::experts, ROWS = SHAPE::rows;
    constexpr int AHEAD = SHAPE::ahead;
    static_assert(EXPERTS * ROWS <= 32, "a lane for each logit");
    __shared__ float sums[EXPERTS * ROWS][WARPS];
    __shared__ int last;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, n = a.w.n_in;
    const int n_blocks = (a.logits.cols + EXPERTS - 1) / EXPERTS;
    int e0 = (int)blockIdx.x * EXPERTS, r0 = (int)blockIdx.y * ROWS;
    int i0 = 4 * (int)threadIdx.x;
    const uint8_t *row[EXPERTS];
    const float *x[ROWS];
    float4 w[AHEAD][EXPERTS];
    float acc[EXPERTS][ROWS];
    grid_trigger();
    if (OFFLOAD && blockIdx.x == 0 && warp == 0)
        expect_rule(c, a.logits.cols);
    if (OFFLOAD && (int)blockIdx.x >= n_blocks + SHARED) {
        guess_beside(c.ask, (int)blockIdx.x - n_blocks - SHARED, a.beside);
        return;
    }
    if (SHARED && (int)blockIdx.x == n_blocks) {
        if (warp == 0)
            shared_share<K>(a);
        return;
    }
    /* Past the last expert or row the last one is repeated; the result is not written. */
#pragma unroll
    for (int e = 0; e < EXPERTS; e++)
        row[e] = a.w.codes + (size_t)min(e0 + e, a.logits.cols - 1) * n * (K == PACK_F32 ? 4 : 2);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        x[r] = a.x.at + min(r0 + r, a.x.rows - 1) * a.x.stride;
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
#pragma unroll
        for (int e = 0; e < EXPERTS; e++) {
            int i = i0 + 4 * ROUTER_THREADS * j;
            w[j][e] = i < n ? load4<K>(row[e], i) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
    for (int k = 0; k < EXPERTS * ROWS; k++)
        acc[k / ROWS][k % ROWS] = 0;
    if (!a.beside)
        grid_wait();
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int i = i0 + 4 * ROUTER_THREADS * j;
            float4 v = i < n ? load_fresh((const float4 *)(x[r] + i)) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int e = 0; e < EXPERTS; e++)
                acc[e][r] = dot4(acc[e][r], w[j][e], v);
        }
#pragma unroll 1
    for (int i = i0 + 4 * ROUTER_THREADS * AHEAD; i < n; i += 4 * ROUTER_THREADS) {
        float4 more[EXPERTS];
#pragma unroll
        for (int e = 0; e < EXPERTS; e++)
            more[e] = load4<K>(row[e], i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 v = load_fresh((const float4 *)(x[r] + i));
#pragma unroll
            for (int e = 0; e < EXPERTS; e++)
                acc[e][r] = dot4(acc[e][r], more[e], v);
        }
    }
#pragma unroll
    for (int k = 0; k < EXPERTS * ROWS; k++) {
        float sum = warp_sum(acc[k / ROWS][k % ROWS]);
        if (lane == 0)
            sums[k][warp] = sum;
    }
    __syncthreads();
    if (warp < ROWS) {
        if (warp == 0) {
            int e = e0 + lane / ROWS, r = r0 + lane % ROWS;
            if (lane < EXPERTS * ROWS && e < a.logits.cols && r < a.x.rows) {
                const float *of = sums[lane];
                float z = (of[0] + of[1]) + (of[2] + of[3]);
                a.logits.at[r * a.logits.stride + e] = a.bias ? z + a.bias[e] : z;
                write_fence();
            }
            __syncwarp();
            if (lane == 0)
                last = atomicAdd(&a.ticket[blockIdx.y], 1) == n_blocks - 1;
            __syncwarp();
        }
        if (ROWS > 1)
            __syncthreads();
        for (int r = r0 + warp; last && r < min(r0 + ROWS, a.x.rows); r += WARPS) {
            write_fence();
            int e = choose<LANE, SIGMOID>(a.id + (size_t)r * a.k, a.share + (size_t)r * a.k, a.k,
                                          a.logits.at + r * a.logits.stride, a.logits.cols, a.how);
            if (OFFLOAD)
                tell_row(c, e);
            if (threadIdx.x == 0)
                a.ticket[blockIdx.y] = 0;
        }
    }
    if (a.beside && blockIdx.x == 0 && blockIdx.y == 0)
        grid_wait(); /* the next kernel relies on it */
}

template <int K, class SHAPE, bool SIGMOID, bool SHARED, bool OFFLOAD>
static void router_of(cudaStream_t s, const router_args &a, const offload_rule &c)
{
    int n_blocks = (a.logits.cols + SHAPE::experts - 1) / SHAPE::experts;
    int guesses = OFFLOAD ? guess_blocks<1>(c.ask, ROUTER_THREADS / 32) : 0;
    dim3 grid((unsigned)(n_blocks + SHARED + guesses),
              (unsigned)((a.x.rows + SHAPE::rows - 1) / SHAPE::rows));
    if (a.logits.cols <= 128)
        LAUNCH((router_kernel<K, 4, SHAPE, SIGMOID, SHARED, OFFLOAD>), grid, dim3(ROUTER_THREADS),
               0, s, a, c);
    else
        LAUNCH((router_kernel<K, ROUTER_EXPERTS / 32, SHAPE, SIGMOID, SHARED, OFFLOAD>), grid,
               dim3(ROUTER_THREADS), 0, s, a, c);
}

template <int K, bool SIGMOID>
static void router_rows(cudaStream_t s, const router_args &a, const offload_rule &c)
{
    if (a.shared && c.pair)
        router_of<K, one_row_shape, SIGMOID, true, true>(s, a, c);
    else if (a.shared)
        router_of<K, one_row_shape, SIGMOID, true, false>(s, a, c);
    else if (c.pair)
        router_of<K, one_row_shape, SIGMOID, false, true>(s, a, c);
    else if (a.x.rows == 1)
        router_of<K, one_row_shape, SIGMOID, false, false>(s, a, c);
    else if (a.x.rows <= 4)
        router_of<K, four_rows_shape, SIGMOID, false, false>(s, a, c);
    else if (a.x.rows <= MANY_ROUTER_ROWS)
        router_of<K, some_rows_shape, SIGMOID, false, false>(s, a, c);
    else
        router_of<K, many_rows_shape, SIGMOID, false, false>(s, a, c);
}

template <int K> static void router(cudaStream_t s, const router_args &a, const offload_rule &c)
{
    if (a.how.sigmoid)
        router_rows<K, true>(s, a, c);
    else
        router_rows<K, false>(s, a, c);
}

extern "C" void cu_router(cudaStream_t s, router_args a, offload_rule c)
{
    by_layout(float_packs, a.w.kind, [&](auto k) { return router<k>(s, a, c), true; });
}

enum { CLUSTERS = 2048 /* of a drafter's head, in registers too */ };

/* The choice alone.
 * grid:   a warp per row
 * shared: none
 * bound:  latency */
template <int PER_LANE, bool SIGMOID>
__global__ void __launch_bounds__(32)
    choose_kernel(int32_t *id, float *share, int k, dev_mat logits, choice how)
{
    size_t r = blockIdx.x;
    grid_trigger();
    grid_wait();
    choose<PER_LANE, SIGMOID>(id + r * k, share + r * k, k, logits.at + (int64_t)r * logits.stride,
                              logits.cols, how);
}

/* The same for more experts than registers hold, or more of a row than a warp has lanes.
 * id: the k largest of softmax(z), best first, ties to the lower index; share: their probabilities
 * over their sum, times scale[id]. The softmax's own sum cancels. With sigmoid as in choose.
 * grid:   a warp per row
 * shared: z (with sigmoid: sigmoid(z) + bias) and whether it is taken
 * bound:  latency: k rounds of a warp-wide maximum */
__global__ void __launch_bounds__(32)
    route_kernel(int32_t *id, float *share, int k, dev_mat logits, choice how)
{
    grid_trigger();
    grid_wait();
    DYN_SHARED(float, z);
    int n = logits.cols, r = (int)blockIdx.x, lane = lane_id();
    uint8_t *taken = (uint8_t *)(z + n);
    const float *row = logits.at + (int64_t)r * logits.stride;
    for (int e = lane; e < n; e += 32) {
        z[e] = how.sigmoid ? sigmoid_of(row[e]) + (how.bias ? how.bias[e] : 0.0f) : row[e];
        taken[e] = 0;
    }
    __syncwarp();
    float top = 0, sum = 0;
    for (int j = 0; j < k; j++) {
        int best = -1;
        float v = 0;
        for (int e = lane; e < n; e += 32)
            if (!taken[e] && (best < 0 || z[e] > v)) { /* a NaN never compares larger */
                best = e;
                v = z[e];
            }
        for (int m = 16; m; m >>= 1) {
            int other = (int)shfl_xor_u32((uint32_t)best, m);
            float u = shfl_xor_f32(v, m);
            bool better = best < 0 || (other >= 0 && (u > v || (!(v > u) && other < best)));
            if (better && other >= 0) {
                best = other;
                v = u;
            }
        }
        best = (int)shfl_u32((uint32_t)best, 0);
        v = shfl_f32(v, 0);
        if (j == 0)
            top = v;
        float p = how.sigmoid ? sigmoid_of(row[best]) : expf(v - top);
        sum += p;
        __syncwarp();
        if (lane == 0) {
            taken[best] = 1;
            id[(size_t)r * k + j] = best;
            share[(size_t)r * k + j] = p;
        }
        __syncwarp();
    }
    for (int j = lane; j < k; j += 32) {
        size_t at = (size_t)r * k + j;
        share[at] = share[at] / sum * how.factor * (how.scale ? how.scale[id[at]] : 1.0f);
    }
}

template <bool SIGMOID>
static void route(cudaStream_t s, int32_t *id, float *share, int32_t k, dev_mat logits, choice how)
{
    size_t shared = (size_t)logits.cols * 5;
    dim3 rows((unsigned)logits.rows), warp(32);
    if (logits.cols <= ROUTER_EXPERTS && k <= ROUTER_MOST)
        LAUNCH((choose_kernel<ROUTER_EXPERTS / 32, SIGMOID>), rows, warp, 0, s, id, share, k,
               logits, how);
    else if (logits.cols <= CLUSTERS && k <= ROUTER_MOST)
        LAUNCH((choose_kernel<CLUSTERS / 32, SIGMOID>), rows, warp, 0, s, id, share, k, logits,
               how);
    else
        LAUNCH(route_kernel, rows, warp, shared, s, id, share, k, logits, how);
}

extern "C" void cu_route(cudaStream_t s, int32_t *id, float *share, int32_t k, dev_mat logits,
                         choice how)
{
    if (how.sigmoid)
        route<true>(s, id, share, k, logits, how);
    else
        route<false>(s, id, share, k, logits, how);
}

/* count[id[i]] += 1: of prompts, and where the product itself does not count
 * grid:   256 pairs
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(256) count_kernel(const int32_t *id, int n, uint32_t *count)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (i < n)
        atomicAdd(&count[id[i]], 1u);
}

extern "C" void cu_count_experts(cudaStream_t s, const int32_t *id, int32_t n, uint32_t *count)
{
    LAUNCH(count_kernel, dim3((unsigned)(n + 255) / 256), dim3(256), 0, s, id, n, count);
}

/* y[r, o] = sum_j share[r, j] part[r, j, o], in ascending j; without share, the sum of the parts;
 * with expert, the sum of the parts whose expert is in `own`
 * grid:   256 columns x row
 * shared: none
 * bound:  bandwidth */
__global__ void __launch_bounds__(256)
    join_kernel(dev_mat y, const float *part, const float *share, int k, const int32_t *expert,
                expert_range own)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    if (i >= y.cols)
        return;
    float v = 0;
#pragma unroll 8
    for (int j = 0; j < k; j++) {
        size_t p = (size_t)r * k + j;
        if (expert && own_mat(own, expert[p]) < 0)
            continue;
        v = fma_rn(share ? share[p] : 1.0f, part[p * y.cols + i], v);
    }
    y.at[r * y.stride + i] = v;
}

extern "C" void cu_expert_join(cudaStream_t s, dev_mat y, const float *part, const float *share,
                               int32_t k, const int32_t *expert, expert_range own)
{
    LAUNCH(join_kernel, dim3((unsigned)((y.cols + 255) / 256), (unsigned)y.rows), dim3(256), 0, s,
           y, part, share, k, expert, own);
}
