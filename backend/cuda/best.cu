/* best.cu - the largest logits of each row and their log probabilities, in two launches; and other
 * numbers for the chosen.
 *
 *     logits   [2048][2048][2048] ..    pieces, a block each
 *     piece     k candidates, best first; the sum of e^(z - the largest)
 *     row       the k best of all candidates; the logarithm of the sum of all
 *
 * A candidate is two words: a key that orders like the logit, and its column. Every choice is k
 * rounds of a warp-wide maximum over registers; equal keys go to the lower column. Sums run in one
 * order, so a row's result does not depend on other rows.
 */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/warp_best.cuh"

enum {
    WARPS = 8,
    PER_LANE = BEST_PIECE / (32 * WARPS), /* candidates in a lane's registers */
    MOST = 8,                             /* BEST_MAX */
    JOIN_WARPS = 32
};
static_assert(BEST_CANDIDATES <= JOIN_WARPS * 32 * PER_LANE, "a block joins all candidates");

/* An integer that orders like the float, above 0; NaN is above all, and -0 equals +0. */
DEV uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f + 0.0f);
    if (f != f)
        return 0xffffffff;
    return u >> 31 ? ~u : u | 0x80000000u;
}
DEV float value_of(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffff : ~key);
}

/* The keys of +infinity and -infinity: only keys between them are those of finite logits. */
enum { KEY_HIGH = 0xff800000u, KEY_LOW = 0x007fffffu };

/* Warps leave their k best in `list`, and the first warp returns the best of all; n_warps warps,
 * at most N * 32 / k. */
template <int N> DEV candidates block_best(candidates mine, candidates *list, int k, int n_warps)
{
    int warp = (int)threadIdx.x >> 5, lane = lane_id();
    if (lane < k)
        list[warp * k + lane] = mine;
    __syncthreads();
    if (warp)
        return {0, 0};
    uint32_t key[N], column[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int e = lane + 32 * j;
        candidates c = e < n_warps * k ? list[e] : candidates{0, 0};
        key[j] = c.key;
        column[j] = c.column;
    }
    return warp_best(key, column, k);
}

/* The k best of a piece, and its sum of exponentials.
 * grid:   a piece x row
 * shared: k candidates of each warp
 * bound:  reading rows that were just written; then k rounds of latency */
__global__ void __launch_bounds__(32 * WARPS) piece_kernel(best_args a)
{
    __shared__ candidates list[WARPS * MOST];
    __shared__ float table[32], top;
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), piece = (int)blockIdx.x;
    int64_t r = blockIdx.y;
    const float *x = a.x.at + r * a.x.stride;
    int first = piece * BEST_PIECE + warp * 32 * PER_LANE + lane;
    float v[PER_LANE], sum = 0;
    uint32_t key[PER_LANE], column[PER_LANE];
    grid_trigger();
    grid_wait();
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        column[j] = (uint32_t)(first + 32 * j);
        v[j] = first + 32 * j < a.x.cols ? x[first + 32 * j] : -INFINITY;
        key[j] = first + 32 * j < a.x.cols ? key_of(v[j]) : 0;
    }
    candidates best = block_best<PER_LANE / 4>(warp_best(key, column, a.k), list, a.k, WARPS);
    size_t at = (size_t)r * a.n_piece + piece;
    if (warp == 0 && lane < a.k) {
        a.candidate[2 * (at * a.k + lane)] = best.key;
        a.candidate[2 * (at * a.k + lane) + 1] = best.column;
    }
    if (threadIdx.x == 0)
        top = value_of(best.key);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < PER_LANE; j++)
        sum += v[j] == -INFINITY ? 0 : expf(v[j] - top);
    sum = block_sum(sum, table);
    if (threadIdx.x == 0)
        a.sum[at] = sum;
}

/* The best of all pieces.
 * grid:   a row
 * shared: k candidates of each warp
 * bound:  latency */
__global__ void __launch_bounds__(32 * JOIN_WARPS) join_best_kernel(best_args a)
{
    __shared__ candidates list[JOIN_WARPS * MOST];
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), n = a.n_piece * a.k;
    size_t r = blockIdx.x;
    const uint32_t *c = a.candidate + 2 * r * n;
    uint32_t key[PER_LANE], column[PER_LANE];
    grid_trigger();
    grid_wait();
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int e = warp * 32 * PER_LANE + lane + 32 * j;
        key[j] = e < n ? c[2 * e] : 0;
        column[j] = e < n ? c[2 * e + 1] : 0;
    }
    candidates best = block_best<JOIN_WARPS * MOST / 32>(warp_best(key, column, a.k), list, a.k,
                                                         (int)(blockDim.x >> 5));
    if (warp)
        return;
    uint32_t most = shfl_u32(best.key, 0);
    bool bad = most >= KEY_HIGH || most <= KEY_LOW;
    float top = value_of(most), sum = 0;
    for (int i = lane; i < a.n_piece; i += 32) {
        float s = a.sum[r * a.n_piece + i];
        sum += s > 0 ? s * expf(value_of(c[2 * i * a.k]) - top) : 0;
    }
    float total = logf(warp_sum(sum));
    float *y = a.y.at + (int64_t)r * a.y.stride;
    if (lane < a.k) {
        y[lane] = bad ? -1.0f : (float)best.column;
        y[a.k + lane] = bad ? NAN : value_of(best.key) - top - total;
    }
}

extern "C" void cu_best(cudaStream_t s, best_args a)
{
    int n = a.n_piece * a.k, per_warp = 32 * PER_LANE, warps = (n + per_warp - 1) / per_warp;
    LAUNCH(piece_kernel, dim3((unsigned)a.n_piece, (unsigned)a.x.rows), dim3(32 * WARPS), 0, s, a);
    LAUNCH(join_best_kernel, dim3((unsigned)a.x.rows), dim3(32 * (unsigned)warps), 0, s, a);
}

/* x[r, i] = list[id[r, c / n] * n + c % n], c = x[r, i]; -1 stays.
 * grid:   a row
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(32)
    renumber_kernel(dev_mat x, int cols, const int32_t *id, int k, const int32_t *list, int n)
{
    int64_t r = blockIdx.x;
    grid_trigger();
    grid_wait();
    for (int i = lane_id(); i < cols; i += 32) {
        float *at = x.at + r * x.stride + i;
        int c = (int)*at;
        if (c >= 0)
            *at = (float)list[(int64_t)id[r * k + c / n] * n + c % n];
    }
}

extern "C" void cu_renumber(cudaStream_t s, dev_mat x, int32_t cols, const int32_t *id, int32_t k,
                            const int32_t *list, int32_t n)
{
    LAUNCH(renumber_kernel, dim3((unsigned)x.rows), dim3(32), 0, s, x, cols, id, k, list, n);
}
