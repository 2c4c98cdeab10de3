/* cold.cu - hands experts to the host's cores, and adds their products to a row's sum (cold.h). */
#include "backend/cuda/cold.cuh"

enum { THREADS = COLD_CHOICE };

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

/* The rows' codes in their natural order, a group a thread; quantise_warp has the device's. */
DEV void copy_rows(const hand_args &a)
{
    int n_group = a.x.cols >> 5;
    for (int i = (int)threadIdx.x; i < a.rows * n_group; i += THREADS) {
        int r = i / n_group, g = i - r * n_group;
        size_t at = quant_index(a.x, r, g);
        const uint4 *q = (const uint4 *)a.x.q + 2 * at;
        uint4 x = q[0], y = q[1];
        uint4 *to = (uint4 *)(a.to.room.q + (size_t)r * a.to.room.n_in + (size_t)g * 32);
        to[0] = make_uint4(x.x, x.z, y.x, y.z);
        to[1] = make_uint4(x.y, x.w, y.y, y.w);
        ((float2 *)a.to.room.s)[(size_t)r * (a.to.room.n_in >> 5) + g] =
            ((const float2 *)a.x.s)[at];
    }
}

/* Asks for experts of the next layer: those that its guess has and the device does not, up to a
 * number, the first choices of rows first. None while copies for an earlier request are on their
 * way to the same buffers, whose record stays. So at most two requests are open. */
DEV void ask_early(const early_ask &q, const early_view &v, int rows, int k)
{
    enum { PAIRS = COLD_JOB_ROWS * ROUTER_MOST };
    __shared__ uint8_t wants[PAIRS]; /* by pair, first choices first: a cold expert's first one */
    __shared__ int16_t id[PAIRS];
    __shared__ bool busy;
    early_state *s = v.state;
    early_list *l = &s->list[q.layer & 1];
    int e = (int)threadIdx.x, n_pairs = rows * k, mine = PAIRS;
    if (e == 0) { /* copies end in their order, so the last one's number says it of all */
        busy = load_fresh(&s->off);
        if (l->n && !busy)
            busy = load_system(&s->arrived[q.layer & 1][l->n - 1][EARLY_DOWN]) != l->seq;
        q.post->n_used = s->n_used;
        q.post->n_late = s->n_late;
        l->layer = busy ? -1 : q.layer;
    }
    for (int p = e; p < n_pairs; p += THREADS) {
        id[p % k * rows + p / k] = (int16_t)load_fresh(q.guess + p);
        wants[p] = 0;
    }
    __syncthreads();
    if (busy)
        return;
    for (int p = n_pairs - 1; p >= 0; p--)
        mine = id[p] == e ? p : mine;
    int64_t at = e < q.n_expert && mine < PAIRS ? load_fresh(q.where + e) : -1;
    bool cold = at >= q.host_from && at < q.host_end;
    if (cold)
        wants[mine] = 1;
    __syncthreads();
    int rank = 0, n = 0;
    for (int p = 0; p < n_pairs; p++) {
        rank += p < mine ? wants[p] : 0;
        n += wants[p];
    }
    n = n < q.most ? n : q.most;
    const uint32_t seq = s->seq + 1;
    if (cold && rank < n) {
        l->expert[rank] = e;
        q.post->ask[seq % EARLY_POSTS].expert[rank] = (uint32_t)e;
        for (int part = 0; part < EARLY_PARTS; part++)
            s->arrived[q.layer & 1][rank][part] = seq - 1;
    }
    if (e == 0) {
        l->n = n;
        l->seq = seq;
        l->gave_up = seq - 1;
    }
    if (!n)
        return;
    if (e == 0) {
        q.post->ask[seq % EARLY_POSTS].layer = (uint32_t)q.layer;
        q.post->ask[seq % EARLY_POSTS].n = (uint32_t)n;
        s->n_asked += (uint32_t)n;
        q.post->n_asked = s->n_asked;
    }
    system_fence();
    __syncthreads();
    if (e == 0) {
        s->seq = seq;
        store_system(&q.post->seq, seq);
    }
}

/* Decides which pairs the host computes, and writes their job. The host gets the first of the
 * missing experts, in ascending order, as long as there is room for their pairs.
 * grid:   one block; a thread per expert, then per pair, then per group of x
 * shared: pairs per expert, and where the next one goes
 * bound:  latency; nothing is written to the host where no expert is missing */
__global__ void __launch_bounds__(THREADS) hand_kernel(hand_args a)
{
    __shared__ int count[THREADS], next[THREADS], sums[THREADS / 32];
    int e = (int)threadIdx.x, n_pairs = a.rows * a.k;
    cold_post *post = a.to.room.post;
    grid_trigger();
    count[e] = 0;
    grid_wait();
    __syncthreads();
    bool off = load_fresh(&a.to.state->dead);
    for (int p = e; p < n_pairs; p += THREADS)
        atomicAdd(&count[load_fresh(a.expert + p)], 1);
    __syncthreads();
    int64_t at = e < a.n_expert && count[e] && !off ? load_fresh(a.where + e) : -1;
    bool cold = at >= a.host_from && at < a.host_end;
    int n_cold, n_host, n_experts;
    uint32_t entry;
    if (cold && a.to.early.state && early_buffer(a.to.early, e, &entry) >= 0) {
        atomicAdd(&a.to.early.state->n_used, 1u);
        cold = false; /* it is on its way */
    }
    int rank = sum_before(cold, sums, &n_cold);
    bool mine = cold && rank < load_fresh(a.to.state->take + min(n_cold, (int)COLD_PAIRS));
    int first = sum_before(mine ? count[e] : 0, sums, &n_host);
    mine = mine && first + count[e] <= COLD_PAIRS;
    sum_before(mine, sums, &n_experts);
    sum_before(mine ? count[e] : 0, sums, &n_host);
    next[e] = mine ? first : -1;
    if (mine) {
        post->expert[rank] = e;
        post->first[rank] = first;
    }
    __syncthreads();
    for (int p = e; p < n_pairs; p += THREADS) {
        int id = load_fresh(a.expert + p), to = -1;
        if (next[id] >= 0) { /* it only grows */
            to = atomicAdd(&next[id], 1);
            post->row[to] = p / a.k;
        }
        a.place[p] = to;
    }
    if (n_experts) {
        copy_rows(a);
        if (e == 0) {
            post->first[n_experts] = n_host;
            post->layer = (uint32_t)a.layer;
            post->n_experts = (uint32_t)n_experts;
            post->silu = a.silu;
        }
        system_fence();
        __syncthreads();
        if (e == 0) {
            uint32_t seq = COLD_NEXT(a.to.state->seq);
            a.to.state->seq = seq;
            store_system(&post->seq, seq);
        }
    }
    if (a.ask.guess)
        ask_early(a.ask, a.to.early, a.rows, a.k);
}

extern "C" void cu_cold_hand(cudaStream_t s, hand_args a)
{
    LAUNCH(hand_kernel, dim3(1), dim3(THREADS), 0, s, a);
}

/* y[r, o] = sum_j part[r, j, o], in ascending j. For the host's pairs the term is
 * share[r, j] y[place, o]
 * grid:   256 columns x row
 * shared: is the answer there?
 * bound:  latency, and the host */
__global__ void __launch_bounds__(256)
    cold_join_kernel(dev_mat y, const float *part, const float *share, int k, cold_view c)
{
    __shared__ bool there;
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.x * 256 + threadIdx.x), r = (int)blockIdx.y;
    bool any = false;
    for (int j = 0; j < k; j++)
        any |= cold_place(c, r * k + j) >= 0;
    if (threadIdx.x == 0)
        there = !any || cold_answered(c, blockIdx.x == 0);
    __syncthreads();
    if (i >= y.cols)
        return;
    float v = 0;
    for (int j = 0; j < k; j++) {
        size_t p = (size_t)r * k + j;
        int place = any ? cold_place(c, (int)p) : -1;
        v += place < 0 ? part[p * y.cols + i] : mul_rn(cold_value(c, place, i, there), share[p]);
    }
    y.at[r * y.stride + i] = v;
}

extern "C" void cu_cold_join(cudaStream_t s, dev_mat y, const float *part, const float *share,
                             int32_t k, cold_view c)
{
    LAUNCH(cold_join_kernel, dim3((unsigned)((y.cols + 255) / 256), (unsigned)y.rows), dim3(256), 0,
           s, y, part, share, k, c);
}
