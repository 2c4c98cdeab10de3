/* hand.cuh - jobs for the host's cores (cold.h), and requests for experts of a later layer
 * (early.h).
 */
#ifndef BACKEND_CUDA_HAND_CUH
#define BACKEND_CUDA_HAND_CUH

#include "backend/cuda/cold.cuh"

/* ---- Jobs ------------------------------------------------------------------------------------ */

/* The rows' codes in their natural order, a group a thread; quantise_warp has the device's. */
DEV void copy_rows(const cold_room &room, const dev_quant &x, int rows, int thread, int n_threads)
{
    int n_group = x.cols >> 5;
    for (int i = thread; i < rows * n_group; i += n_threads) {
        int r = i / n_group, g = i - r * n_group;
        size_t at = quant_index(x, r, g);
        const uint4 *q = (const uint4 *)x.q + 2 * at;
        uint4 lo = q[0], hi = q[1];
        uint4 *to = (uint4 *)(room.q + (size_t)r * room.n_in + (size_t)g * 32);
        to[0] = make_uint4(lo.x, lo.z, hi.x, hi.z);
        to[1] = make_uint4(lo.y, lo.w, hi.y, hi.w);
        ((float2 *)room.s)[(size_t)r * (room.n_in >> 5) + g] = ((const float2 *)x.s)[at];
    }
}

DEV void describe(const cold_view &c, int n_experts, int n_pairs)
{
    cold_post *post = c.room.post;
    post->first[n_experts] = n_pairs;
    post->layer = (uint32_t)c.layer;
    post->n_experts = (uint32_t)n_experts;
    post->silu = c.silu;
}

/* Publishes the job. All threads that wrote it have executed a system fence before. */
DEV void post_job(const cold_view &c)
{
    uint32_t seq = COLD_NEXT(load_fresh(&c.state->seq));
    c.state->seq = seq;
    store_system(&c.room.post->seq, seq);
}

/* A warp writes the job of a pass of one row. */
DEV void post_row(const cold_view &c, const int32_t *expert, const int64_t *where,
                  const dev_quant &x)
{
    cold_post *post = c.room.post;
    cold_pair p = pair_alone(c, expert, where);
    early_state *s = c.early.state;
    if (s) {
        bool early = p.buffer >= 0;
        bool waits = early && load_system(&s->arrived[c.layer % EARLY_SETS][p.buffer]) != p.entry;
        uint32_t n_used = (uint32_t)warp_count(early), n_waited = (uint32_t)warp_count(waits);
        if (lane_id() == 0) {
            atomicAdd(&s->n_used, n_used);
            atomicAdd(&s->n_waited, n_waited);
        }
    }
    int n = warp_count(p.place >= 0);
    if (!n)
        return;
    if (p.place >= 0) {
        post->expert[p.place] = p.expert;
        post->first[p.place] = p.place;
        post->row[p.place] = 0;
    }
    copy_rows(c.room, x, 1, lane_id(), 32);
    if (lane_id() == 0)
        describe(c, n, n);
    system_fence();
    __syncwarp();
    if (lane_id() == 0)
        post_job(c);
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* Is expert e of the layer in the host's memory alone? */
DEV bool is_cold(const int64_t *where, int64_t from, int64_t end, int e)
{
    int64_t at = load_fresh(where + e);
    return at >= from && at < end;
}

/* By a warp: buffers whose copies are on their way, those of set `set` in *of_set. */
DEV int open_copies(const early_state *s, int set, int *of_set)
{
    int at = lane_id(), i = at / EARLY_MOST, m = at % EARLY_MOST;
    bool open = i < EARLY_SETS && m < load_fresh(&s->list[i].n) &&
                load_system(&s->arrived[i][m]) != load_fresh(&s->list[i].seq);
    uint32_t all = warp_votes(open);
    *of_set = bits_set(all >> set * EARLY_MOST & ((1 << EARLY_MOST) - 1));
    return bits_set(all);
}

/* To the host's memory: not where nothing happens, for it is a way over the bus. */
DEV void tell_accounts(const early_ask &q, const early_state *s)
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
DEV void ask_early(const early_ask &q, const early_view &v, int rows, int k)
{
    early_state *s = v.state;
    const int set = q.layer % EARLY_SETS, lane = lane_id(), n_pairs = rows * k;
    early_list *l = &s->list[set];
    int open_here, room = q.most - open_copies(s, set, &open_here), n = 0;
    int32_t mine = -1; /* lane i: the expert that is asked for as number i */
    if (lane == 0)
        l->layer = -1;
    if (lane == 0 && open_here)
        tell_accounts(q, s); /* no request may come for long, because copies do not */
    if (load_fresh(&s->off) || open_here)
        return;
    for (int p0 = 0; p0 < n_pairs && n < room; p0 += 32) {
        int p = p0 + lane, e = p < n_pairs ? load_fresh(q.guess + p % rows * k + p / rows) : -1;
        bool wants = e >= 0 && e < q.n_expert && is_cold(q.where, q.host_from, q.host_end, e);
        for (int i = 0; i < n; i++)
            wants = wants && (int)shfl_u32((uint32_t)mine, i) != e;
        for (uint32_t left = warp_votes(wants); left && n < room; left = warp_votes(wants)) {
            int next = (int)shfl_u32((uint32_t)e, lowest_bit(left));
            mine = lane == n ? next : mine;
            wants = wants && e != next;
            n++;
        }
    }
    const uint32_t seq = load_fresh(&s->seq) + 1, at = seq % EARLY_POSTS;
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

/* Is expert e of the layer on its way, or here? Counts it. */
DEV bool comes_early(const early_view &v, int e)
{
    uint32_t entry;
    int m = v.state ? early_buffer(v, e, &entry) : -1;
    if (m < 0)
        return false;
    atomicAdd(&v.state->n_used, 1u);
    if (load_system(&v.state->arrived[v.layer % EARLY_SETS][m]) != entry)
        atomicAdd(&v.state->n_waited, 1u);
    return true;
}

/* ---- Both, for a pass of one row ------------------------------------------------------------- */

/* By warp 0 and warp 1 of a block of the gated product. */
DEV void post_alone(const cold_view &c, const int32_t *expert, const int64_t *where,
                    const dev_quant &x, int warp)
{
    if (warp == 0)
        post_row(c, expert, where, x);
    else if (c.ask.guess)
        ask_early(c.ask, c.early, 1, c.alone);
    __syncwarp();
    if (lane_id() == 0)
        atomicAdd(&c.state->posted, 1u);
}

#endif
