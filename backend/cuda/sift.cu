/* sift.cu - a superset of the k largest logits of each row, so that a token costs a few kilobytes
 * on their way to the host instead of a megabyte. One launch serves rows of several sessions.
 *
 *     logits  [64][64][64] ..    blocks of 64
 *     maxima   m   m   m         one per block
 *     bound    the k-th largest maximum, or slightly less
 *
 * At least k blocks hold a logit that reaches the bound, so no smaller logit is among the k
 * largest. All logits that reach it are returned, in no order; they are few more than k. The host
 * picks among them exactly as it would among all (engine/sample.c does the same).
 */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/dev.cuh"

enum { BLOCK = 64, WARPS = 8, THREADS = 1024, SLACK = 64, PER_THREAD = SIFT_BLOCKS / THREADS };

/* An integer that orders like the float; NaN is above all, and -0 equals +0. */
DEV uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f + 0.0f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return 0xffffffff;
    return u ^ (u & 0x80000000u ? 0xffffffffu : 0x80000000u);
}

enum { KEY_INFINITY = 0xff800000u }; /* the key of +infinity; this and above are no logits */

/* The key of the largest of each 64 logits.
 * grid:   a warp per 64 logits x row
 * shared: none
 * bound:  latency; reading rows that were just written */
__global__ void __launch_bounds__(32 * WARPS) maxima_kernel(sift_rows rows, int n, uint32_t *key)
{
    const float *x = rows.x[blockIdx.y];
    grid_trigger();
    grid_wait();
    int b = (int)blockIdx.x * WARPS + ((int)threadIdx.x >> 5), i = b * BLOCK + 2 * lane_id();
    if (b * BLOCK >= n)
        return;
    uint32_t u = i < n ? key_of(x[i]) : 0, v = i + 1 < n ? key_of(x[i + 1]) : 0;
    u = warp_max_u32(u > v ? u : v);
    if (lane_id() == 0)
        key[blockIdx.y * SIFT_BLOCKS + b] = u;
}

/* Sum over the block's THREADS; all threads get it. table: a word per warp; callers alternate
 * two. */
DEV int count_all(int v, int *table)
{
    v = warp_count(v);
    if (lane_id() == 0)
        table[threadIdx.x >> 5] = v;
    __syncthreads();
    return warp_count(table[lane_id()]);
}

/* By bisection, in a dozen rounds: a bound that k to k + SLACK of the threads' keys reach, or the
 * k-th largest key if too many are equal. */
DEV uint32_t bound_of(const uint32_t *key, int k, int (*table)[32])
{
    uint32_t low = 0, high = KEY_INFINITY; /* at least k keys reach low, fewer reach high */
    for (int round = 0; high - low > 1; round ^= 1) {
        uint32_t middle = low + (high - low) / 2;
        int mine = 0;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++)
            mine += key[j] >= middle;
        int reach = count_all(mine, table[round]);
        if (reach < k) {
            high = middle;
            continue;
        }
        low = middle;
        if (reach <= k + SLACK)
            break;
    }
    return low;
}

/* Writes all logits that reach the bound to `to`, in no order; those that do not fit are only
 * counted.
 * grid:   a block per row
 * shared: the numbers of the blocks whose maximum reaches the bound
 * bound:  latency: keys stay in registers, a round is one barrier */
__global__ void __launch_bounds__(THREADS)
    sift_kernel(sift_rows rows, int n, const uint32_t *maxima, sift_result *to)
{
    DYN_SHARED(int, list);
    __shared__ int table[2][32], n_list, n_found, n_bad;
    int n_blocks = (n + BLOCK - 1) / BLOCK, bad = 0, k = rows.k[blockIdx.x];
    const float *x = rows.x[blockIdx.x];
    uint32_t key[PER_THREAD];
    maxima += blockIdx.x * SIFT_BLOCKS;
    to += blockIdx.x;
    grid_trigger();
    if (threadIdx.x == 0)
        n_list = n_found = n_bad = 0;
    __syncthreads();
    grid_wait();
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int b = (int)threadIdx.x + j * THREADS;
        key[j] = b < n_blocks ? maxima[b] : 0;
        bad |= key[j] >= KEY_INFINITY;
    }
    if (bad)
        atomicAdd(&n_bad, 1);
    uint32_t bound = k <= n_blocks ? bound_of(key, k, table) : 0;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int b = (int)threadIdx.x + j * THREADS;
        if (b < n_blocks && key[j] >= bound)
            list[atomicAdd(&n_list, 1)] = b;
    }
    __syncthreads();
    for (int l = (int)threadIdx.x >> 5; l < n_list; l += THREADS / 32) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int i = list[l] * BLOCK + 32 * j + lane_id();
            float v = i < n ? x[i] : 0;
            if (i >= n || key_of(v) < bound)
                continue;
            int at = atomicAdd(&n_found, 1);
            if (at < SIFT_MOST)
                to->at[at] = (sift_logit){i, v};
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        to->n = n_found;
        to->bad = n_bad;
    }
}

extern "C" void cu_sift(cudaStream_t s, sift_rows rows, int32_t n, uint32_t *maxima,
                        sift_result *to)
{
    unsigned blocks = (unsigned)(n + BLOCK - 1) / BLOCK, many = (unsigned)rows.n;
    LAUNCH(maxima_kernel, dim3((blocks + WARPS - 1) / WARPS, many), dim3(32 * WARPS), 0, s, rows, n,
           maxima);
    LAUNCH(sift_kernel, dim3(many), dim3(THREADS), (size_t)blocks * 4, s, rows, n, maxima, to);
}
