/* dispatch.cuh - jobs for the host's cores (offload.h). */
#ifndef BACKEND_CUDA_DISPATCH_CUH
#define BACKEND_CUDA_DISPATCH_CUH

#include "backend/cuda/activations.cuh"
#include "backend/cuda/experts/offload.cuh"

/* The rows' codes in their natural order, a group a thread; quantise_warp has the device's. */
DEV void copy_rows(const offload_room &room, const dev_quant &x, int rows, int thread,
                   int n_threads)
{
    int n_group = x.cols >> 5;
    for (int i = thread; i < rows * n_group; i += n_threads) {
        int r = i / n_group, g = i - r * n_group;
        size_t at = quant_index(x, r, g);
        const uint4 *q = (const uint4 *)x.q + 2 * at;
        uint4 lo = load_fresh(q), hi = load_fresh(q + 1);
        uint4 *to = (uint4 *)(room.q + (size_t)r * room.n_in + (size_t)g * 32);
        to[0] = make_uint4(lo.x, lo.z, hi.x, hi.z);
        to[1] = make_uint4(lo.y, lo.w, hi.y, hi.w);
        ((float2 *)room.s)[(size_t)r * (room.n_in >> 5) + g] = load_fresh((const float2 *)x.s + at);
    }
}

DEV void describe(const offload_view &c, int n_experts, int n_pairs)
{
    offload_post *post = c.room.post;
    post->first[n_experts] = n_pairs;
    post->layer = (uint32_t)c.layer;
    post->n_experts = (uint32_t)n_experts;
    post->unit = (uint32_t)c.unit;
}

/* Publishes the job. All threads that wrote it have executed a system fence before. */
DEV void post_job(const offload_view &c)
{
    uint32_t seq = OFFLOAD_NEXT(load_fresh(&c.state->seq));
    c.state->seq = seq;
    store_system(&c.room.post->seq, seq);
}

/* A warp writes the job of a pass of one row, if there is one, and counts what came early. */
DEV void write_job(const offload_view &c, const int32_t *expert, const dev_quant &x)
{
    const int lane = lane_id();
    offload_post *post = c.room.post;
    prefetch_state *s = c.prefetch.state;
    offload_pair p = {0, OFFLOAD_READ, 0};
    if (lane < c.posts) {
        const uint4 u = load_fresh((const uint4 *)(c.pair + lane));
        p.place = (int)u.z, p.entry = u.w;
    }
    if (s) {
        int m = OFFLOAD_READ - 1 - p.place;
        bool waits = m >= 0 && load_system(&s->arrived[c.layer % PREFETCH_SETS][m]) != p.entry;
        uint32_t n_used = (uint32_t)warp_count(m >= 0), n_waited = (uint32_t)warp_count(waits);
        if (lane == 0 && n_used) {
            atomicAdd(&s->n_used, n_used);
            atomicAdd(&s->n_waited, n_waited);
        }
    }
    int n = warp_count(p.place >= 0);
    if (!n)
        return;
    if (p.place >= 0) {
        post->expert[p.place] = load_fresh(expert + lane);
        post->first[p.place] = p.place;
        post->row[p.place] = 0;
    }
    copy_rows(c.room, x, 1, lane, 32);
    if (lane == 0)
        describe(c, n, n);
    system_fence();
    __syncwarp();
    if (lane == 0)
        post_job(c);
}

/* The same, for all warps that wait for it. */
DEV void post_row(const offload_view &c, const int32_t *expert, const dev_quant &x)
{
    write_job(c, expert, x);
    __syncwarp();
    if (lane_id() == 0)
        store_system(&c.state->posted, 1);
}

/* Is expert e of the layer on its way, or here? Counts it. */
DEV bool comes_early(const prefetch_view &v, int e)
{
    uint32_t entry;
    int m = v.state ? prefetch_buffer(v, e, &entry) : -1;
    if (m < 0)
        return false;
    atomicAdd(&v.state->n_used, 1u);
    if (load_system(&v.state->arrived[v.layer % PREFETCH_SETS][m]) != entry)
        atomicAdd(&v.state->n_waited, 1u);
    return true;
}

#endif
