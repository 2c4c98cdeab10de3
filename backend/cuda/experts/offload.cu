/* offload.cu - hands experts to the host's cores, and adds their products to a row's sum
 * (offload.h). */
#include "backend/cuda/experts/guess.cuh"
#include "backend/cuda/experts/dispatch.cuh"
#include "backend/cuda/experts/own.cuh"

enum { THREADS = OFFLOAD_CHOICE, GUESS_ROWS = 4 /* of a block that guesses */ };

/* Exclusive prefix sum of v over the block's threads; *all: the sum. Begins with a barrier. */
DEV int sum_before(int v, int *sums, int *all)
{
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, up = v, before = 0, n = 0;
    for (int d = 1; d < 32; d *= 2) {
        int u = (int)shfl_u32((uint32_t)up, lane - d);
        up += lane >= d ? u : 0;
    }
    __syncthreads();
    if (lane == 31)
        sums[warp] = up;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) {
        before += i < warp ? sums[i] : 0;
        n += sums[i];
    }
    *all = n;
    return before + up - v;
}

/* Of several rows: decides which pairs the host computes, and writes their job. The host gets the
 * first of the missing experts, in ascending order, as long as there is room for their pairs.
 * Tables are read before the choice is known. Where no expert is missing, no sum is made and
 * nothing is written to the host.
 * grid:   one block; a thread per expert, then per pair, then per group of x. After it the blocks
 *         that guess (guess.cuh)
 * shared: pairs per expert, and where the next one goes; is an expert missing?
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) dispatch_kernel(dispatch_args a)
{
    __shared__ int count[THREADS], next[THREADS], sums[THREADS / 32], any;
    int e = (int)threadIdx.x, n_pairs = a.rows * a.k;
    offload_post *post = a.to.room.post;
    grid_trigger();
    if (blockIdx.x) {
        guess<GUESS_ROWS>(a.to.ask, a.to.prefetch, (int)blockIdx.x - 1);
        return;
    }
    /* Only copies between passes change this table. */
    bool offload =
        e < a.n_expert && is_offloaded(a.rule.where, a.rule.host_from, a.rule.host_end, e);
    count[e] = 0;
    next[e] = -1;
    any = 0;
    grid_wait();
    __syncthreads();
    for (int p = e; p < n_pairs; p += THREADS)
        atomicAdd(&count[load_fresh(a.expert + p)], 1);
    bool off = load_fresh(&a.to.state->dead);
    __syncthreads();
    offload = offload && count[e] && !off && !comes_early(a.to.prefetch, e);
    if (offload)
        any = 1;
    __syncthreads();
    if (!any) {
        for (int p = e; p < n_pairs; p += THREADS)
            a.rule.pair[p] = pair_read(a.rule, load_fresh(a.expert + p));
        return;
    }
    int n_offloaded, n_host, n_experts;
    int rank = sum_before(offload, sums, &n_offloaded);
    bool mine =
        offload && rank < load_fresh(a.to.state->take + min(n_offloaded, (int)OFFLOAD_PAIRS));
    int first = sum_before(mine ? count[e] : 0, sums, &n_host);
    mine = mine && first + count[e] <= OFFLOAD_PAIRS;
    sum_before(mine, sums, &n_experts);
    sum_before(mine ? count[e] : 0, sums, &n_host);
    if (mine) {
        next[e] = first;
        post->expert[rank] = e;
        post->first[rank] = first;
    }
    __syncthreads();
    for (int p = e; p < n_pairs; p += THREADS) {
        int id = load_fresh(a.expert + p);
        offload_pair to = pair_read(a.rule, id);
        if (next[id] >= 0) { /* it only grows */
            to.place = atomicAdd(&next[id], 1);
            post->row[to.place] = p / a.k;
        }
        a.rule.pair[p] = to;
    }
    if (!n_experts)
        return;
    copy_rows(a.to.room, a.x, a.rows, e, THREADS);
    if (e == 0)
        describe(a.to, n_experts, n_host);
    system_fence();
    __syncthreads();
    if (e == 0)
        post_job(a.to);
}

extern "C" void cu_offload_dispatch(cudaStream_t s, dispatch_args a)
{
    LAUNCH(dispatch_kernel, dim3(1 + (unsigned)guess_blocks<GUESS_ROWS>(a.to.ask, THREADS / 32)),
           dim3(THREADS), 0, s, a);
}

/* y[r, o] = sum_j part[r, j, o], in ascending j; with expert, over those in `own`. For the host's
 * pairs the term is share[r, j] y[place, o]
 * grid:   256 columns x row
 * shared: is the answer there?
 * bound:  latency, and the host */
__global__ void __launch_bounds__(256)
    offload_join_kernel(dev_mat y, const float *part, const float *share, int k,
                        const int32_t *expert, expert_range own, offload_view c)
{
    __shared__ bool there;
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    bool any = false;
    for (int j = 0; j < k; j++)
        any |= offload_place(c, r * k + j) >= 0;
    if (threadIdx.x == 0)
        there = !any || offload_answered(c, blockIdx.x == 0);
    __syncthreads();
    if (i >= y.cols)
        return;
    float v = 0;
    for (int j = 0; j < k; j++) {
        size_t p = (size_t)r * k + j;
        if (expert && own_mat(own, load_fresh(expert + p)) < 0)
            continue;
        int place = any ? offload_place(c, (int)p) : -1;
        v += place < 0 ? part[p * y.cols + i] : mul_rn(offload_value(c, place, i, there), share[p]);
    }
    y.at[r * y.stride + i] = v;
}

extern "C" void cu_offload_join(cudaStream_t s, dev_mat y, const float *part, const float *share,
                                int32_t k, const int32_t *expert, expert_range own, offload_view c)
{
    LAUNCH(offload_join_kernel, dim3((unsigned)((y.cols + 255) / 256), (unsigned)y.rows), dim3(256),
           0, s, y, part, share, k, expert, own, c);
}
