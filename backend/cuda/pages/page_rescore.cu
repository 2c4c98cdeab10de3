/* page_rescore.cu - how much queries attend to pages of keys (page_rescore in backend/ops.h).
 *
 *     keys of a page and KV head   some at a time, plain, in f32   -> shared memory
 *     queries of a block           a warp has some in registers    -> product[query][key]
 *     product                      log of the sum of exponentials  -> to[page][query]
 *
 * The pages are a few of a stage (kv/rescore.c), and copying them takes longer than asking them. So
 * keys of every format are unpacked value by value, and products are made without tensor cores.
 * Sums have a fixed order: the same bits on every run.
 */
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/pages/page_rescore_int.h"
#include "backend/cuda/pages/warp_sums.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, QUERIES = 32 /* of a block */ };

/* Heads of up to 32 N. KEYS are plain at a time: 32 KB in heads of 512 and more. A warp has
 * TOGETHER queries at a time: so many products for each read of a key, and their sums at once, of
 * which every lane of a group of GROUP gets one. */
template <int N> struct rescore_shape {
    static constexpr int KEYS = N > 16 ? 8 : 16, TOGETHER = N > 16 ? 2 : 4, GROUP = 32 / TOGETHER;
    static constexpr int MINE = (KEYS + GROUP - 1) / GROUP; /* products of a lane */
};

/* A key as attention meets it, from its row of two streams; by a warp. */
DEV void plain_key(float *to, const uint8_t *row, const dev_kv &kv)
{
    int lane = lane_id(), d = kv.head_dim;
    for (int i = lane; i < d; i += 32)
        to[i] = kv_value(row, kv.k_kind, i);
    __syncwarp();
    if (kv.k_rot)
        for (int i = 4 * lane; i < d; i += 128)
            *(float4 *)(to + i) = rotate_four(*(float4 *)(to + i), true);
    __syncwarp();
}

/* grid:   page x KV head x QUERIES queries of its heads
 * shared: KEYS keys, and the products of all queries and keys
 * bound:  instructions: products, and reads of keys for them */
template <int N> __global__ void __launch_bounds__(THREADS, 2) rescore_kernel(page_rescore_args a)
{
    using S = rescore_shape<N>;
    constexpr int KEYS = S::KEYS, GROUP = S::GROUP;
    DYN_SHARED(float, key);
    float *product = key + KEYS * N * 32;
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), d = a.kv.head_dim;
    int page = (int)blockIdx.x, head = (int)blockIdx.y, q0 = (int)blockIdx.z * QUERIES;
    int n = min((int)QUERIES, a.q.rows * a.group - q0), t0 = (a.first + page) * PAGE_KEYS;
    grid_trigger();
    grid_wait();
    const uint8_t *rows = head_rows(a.kv, a.base.k, head, a.kv.k_bytes) +
                          (size_t)place_of_key(a.kv, a.base.page, t0) * a.kv.k_bytes;
    int pos = key_pos(a.base.page, t0);
    for (int k0 = 0; k0 < PAGE_KEYS; k0 += KEYS) {
        for (int k = warp; k < KEYS; k += WARPS) {
            const uint8_t *row = rows + (size_t)(k0 + k) * a.kv.k_bytes;
            if (a.kv.single)
                make_plain_key(key + k * d, row, a.kv, pos + k0 + k);
            else
                plain_key(key + k * d, row, a.kv);
        }
        __syncthreads();
        for (int j = warp * S::TOGETHER; j < n; j += WARPS * S::TOGETHER) {
            float x[S::TOGETHER][N], mine[S::MINE] = {};
#pragma unroll
            for (int t = 0; t < S::TOGETHER; t++) {
                int at = q0 + min(j + t, n - 1);
                const float *q = a.q.at + (int64_t)(at / a.group) * a.q.stride +
                                 (int64_t)(head * a.group + at % a.group) * d;
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[t][i] = lane + 32 * i < d ? q[lane + 32 * i] : 0;
            }
#pragma unroll
            for (int m = 0; m < S::MINE; m++)
                for (int k = m * GROUP; k < min((m + 1) * GROUP, KEYS); k++) {
                    float sum[S::TOGETHER] = {};
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        float y = lane + 32 * i < d ? key[k * d + lane + 32 * i] : 0;
#pragma unroll
                        for (int t = 0; t < S::TOGETHER; t++)
                            sum[t] = fma_rn(x[t][i], y, sum[t]);
                    }
                    float all = warp_sums<S::TOGETHER, 32>(sum);
                    mine[m] = lane % GROUP == k % GROUP ? all : mine[m];
                }
            int of = j + summed_by<S::TOGETHER, 32>();
#pragma unroll
            for (int m = 0; m < S::MINE; m++)
                if (of < n && m * GROUP + lane % GROUP < KEYS)
                    product[of * PAGE_KEYS + k0 + m * GROUP + lane % GROUP] =
                        mul_rn(mine[m], a.scale);
        }
        __syncthreads();
    }
    for (int j = warp; j < n; j += WARPS) {
        float x = product[j * PAGE_KEYS + lane], y = product[j * PAGE_KEYS + 32 + lane];
        float top = warp_max(x > y ? x : y);
        float all = top + logf(warp_sum(expf(x - top) + expf(y - top)));
        int query =
            (q0 + j) / a.group * a.kv.n_head_kv * a.group + head * a.group + (q0 + j) % a.group;
        if (lane == 0) /* a NaN or an infinity is no share */
            a.to[(size_t)page * a.stride + query] = all - all == 0 ? all : -INFINITY;
    }
}

template <int N> static void rescore(cudaStream_t s, page_rescore_args a)
{
    dim3 grid((unsigned)a.n, (unsigned)a.kv.n_head_kv,
              (unsigned)((a.q.rows * a.group + QUERIES - 1) / QUERIES));
    size_t bytes = sizeof(float) * (rescore_shape<N>::KEYS * N * 32 + QUERIES * PAGE_KEYS);
    LAUNCH((rescore_kernel<N>), grid, dim3(THREADS), bytes, s, a);
}

extern "C" void cu_rescore_pages(cudaStream_t s, page_rescore_args a)
{
    if (a.kv.head_dim <= 128)
        rescore<4>(s, a);
    else if (a.kv.head_dim <= 256)
        rescore<8>(s, a);
    else if (a.kv.head_dim <= 512)
        rescore<16>(s, a);
    else
        rescore<32>(s, a);
}
