/* guess.cuh - which experts a later layer will choose, and a request for those that only the host
 * has (prefetch.h).
 *
 *     some blocks   logits of the later layer's router, from this layer's rows
 *     one block     its warps choose for each row; then a warp writes the request
 *
 * Of one row the logits are computed in the launch of the layer's own router, and a block beside
 * the gated product chooses and asks. That chain of reads takes longer than a down product. Of more
 * rows the kernel that hands over has all these blocks.
 */
#ifndef BACKEND_CUDA_GUESS_CUH
#define BACKEND_CUDA_GUESS_CUH

#include "backend/cuda/experts/choose.cuh"
#include "backend/cuda/experts/offload.cuh"

/* ---- Requests -------------------------------------------------------------------------------- */

/* By a warp: buffers whose copies are on their way, those of set `set` in *of_set. */
DEV int open_copies(const prefetch_state *s, int set, int *of_set)
{
    int at = lane_id(), i = at / PREFETCH_MOST, m = at % PREFETCH_MOST;
    bool open = i < PREFETCH_SETS && m < load_fresh(&s->list[i].n) &&
                load_system(&s->arrived[i][m]) != load_fresh(&s->list[i].seq);
    uint32_t all = warp_votes(open);
    *of_set = bits_set(all >> set * PREFETCH_MOST & ((1 << PREFETCH_MOST) - 1));
    return bits_set(all);
}

/* To the host's memory: not where nothing happens, for it is a way over the bus. */
DEV void tell_accounts(const prefetch_ask &q, const prefetch_state *s)
{
    q.post->n_asked = load_fresh(&s->n_asked);
    q.post->n_used = load_fresh(&s->n_used);
    q.post->n_waited = load_fresh(&s->n_waited);
    q.post->n_late = load_fresh(&s->n_late);
}

/* A warp asks for experts of a later layer: those that its guess has and the device does not, the
 * first choices of rows first, as many as may be on their way besides those of earlier requests.
 * None while copies of an earlier request are on their way to the same buffers, whose record stays.
 * So each set of buffers has one open request at most. */
DEV void ask_prefetch(const prefetch_ask &q, const prefetch_view &v)
{
    prefetch_state *s = v.state;
    const int set = q.layer % PREFETCH_SETS, lane = lane_id(), rows = q.x.rows, k = q.k,
              n_pairs = rows * k;
    prefetch_list *l = &s->list[set];
    int open_here, room = q.most - open_copies(s, set, &open_here), n = 0;
    int32_t mine = -1; /* lane i: the expert that is asked for as number i */
    if (lane == 0)
        l->layer = -1;
    if (lane == 0 && open_here)
        tell_accounts(q, s); /* no request may come for long, because copies do not */
    if (load_fresh(&s->off) || open_here)
        return;
    for (int p0 = 0; p0 < n_pairs && n < room; p0 += 32) {
        int p = p0 + lane, e = p < n_pairs ? load_fresh(q.id + p % rows * k + p / rows) : -1;
        bool wants = e >= 0 && e < q.n_expert && is_offloaded(q.where, q.host_from, q.host_end, e);
        for (int i = 0; i < n; i++)
            wants = wants && (int)shfl_u32((uint32_t)mine, i) != e;
        for (uint32_t left = warp_votes(wants); left && n < room; left = warp_votes(wants)) {
            int next = (int)shfl_u32((uint32_t)e, lowest_bit(left));
            mine = lane == n ? next : mine;
            wants = wants && e != next;
            n++;
        }
    }
    const uint32_t seq = load_fresh(&s->seq) + 1, at = seq % PREFETCH_POSTS;
    if (lane < n) {
        l->expert[lane] = mine;
        s->arrived[set][lane] = seq - 1;
        q.post->ask[at].expert[lane] = (uint32_t)mine;
    }
    if (lane == 0) {
        l->layer = q.layer;
        l->n = n;
        l->seq = seq;
        l->gave_up = seq - 1;
        if (n) {
            q.post->ask[at].layer = (uint32_t)q.layer;
            q.post->ask[at].n = (uint32_t)n;
            s->n_asked = load_fresh(&s->n_asked) + (uint32_t)n;
            tell_accounts(q, s);
        }
    }
    if (!n)
        return;
    system_fence();
    __syncwarp();
    if (lane == 0) {
        s->seq = seq;
        store_system(&q.post->seq, seq);
    }
}

/* ---- Guesses --------------------------------------------------------------------------------- */

/* How many blocks compute a guess's logits, of so many warps and up to ROWS rows each. */
template <int ROWS>
static __host__ __device__ inline int guess_blocks(const prefetch_ask &q, int n_warps)
{
    int tiles = (q.x.rows + ROWS - 1) / ROWS;
    return q.router ? (q.n_expert + n_warps - 1) / n_warps * tiles : 0;
}

/* A warp's logits: expert e, up to ROWS rows from r0 on. The first weights are on their way before
 * the rows are known. ready: the rows were there before this kernel began. */
template <int ROWS> DEV void guess_logits(const prefetch_ask &q, int e, int r0, bool ready)
{
    enum { AHEAD = 8 };
    const int n = q.x.cols, lane = lane_id();
    const float *row = q.router + (size_t)min(e, q.n_expert - 1) * n, *x[ROWS];
    float4 w[AHEAD];
    float acc[ROWS];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        int i = 4 * lane + 128 * j;
        w[j] = i < n ? *(const float4 *)(row + i) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        x[r] = q.x.at + min(r0 + r, q.x.rows - 1) * q.x.stride;
        acc[r] = 0;
    }
    if (!ready)
        grid_wait();
#pragma unroll 1
    for (int i0 = 4 * lane; i0 < n; i0 += 128 * AHEAD)
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int i = i0 + 128 * j, next = i + 128 * AHEAD;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (i < n)
                    acc[r] = dot4(acc[r], w[j], load_fresh((const float4 *)(x[r] + i)));
            w[j] = next < n ? *(const float4 *)(row + next) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(acc[r]);
        if (lane == 0 && e < q.n_expert && r0 + r < q.x.rows)
            q.logits[(size_t)(r0 + r) * q.n_expert + e] = sum;
    }
}

/* The logits of block `block` of guess_blocks. */
template <int ROWS> DEV void guess_part(const prefetch_ask &q, int block, bool ready)
{
    const int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
    const int per_tile = (q.n_expert + n_warps - 1) / n_warps, tile = block / per_tile;
    guess_logits<ROWS>(q, block % per_tile * n_warps + warp, tile * ROWS, ready);
}

/* After all logits: the choice of each row, and the request. By a block. */
DEV void choose_and_ask(const prefetch_ask &q, const prefetch_view &v)
{
    enum { PER_LANE = ROUTER_EXPERTS / 32 };
    const int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
    const choice how = {.bias = q.bias, .scale = NULL, .factor = 1, .sigmoid = q.sigmoid};
#pragma unroll 1
    for (int r = warp; r < q.x.rows; r += n_warps) {
        const float *z = q.logits + (size_t)r * q.n_expert;
        if (q.sigmoid)
            choose<PER_LANE, true>(q.id + r * q.k, NULL, q.k, z, q.n_expert, how);
        else
            choose<PER_LANE, false>(q.id + r * q.k, NULL, q.k, z, q.n_expert, how);
    }
    __syncthreads();
    if (warp == 0)
        ask_prefetch(q, v);
}

/* Both in one launch: the last of its blocks chooses and asks. */
template <int ROWS> DEV void guess(const prefetch_ask &q, const prefetch_view &v, int block)
{
    __shared__ bool last;
    guess_part<ROWS>(q, block, false);
    write_fence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(&v.state->ticket, 1) == guess_blocks<ROWS>(q, (int)blockDim.x >> 5) - 1;
    __syncthreads();
    if (!last)
        return;
    write_fence();
    choose_and_ask(q, v);
    if (threadIdx.x == 0)
        v.state->ticket = 0;
}

#endif
