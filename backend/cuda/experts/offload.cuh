/* offload.cuh - what products of experts need where the host computes some of them (offload.h). */
#ifndef BACKEND_CUDA_OFFLOAD_CUH
#define BACKEND_CUDA_OFFLOAD_CUH

#include "backend/cuda/dev.cuh"
#include "backend/cuda/experts/launch_offload.h"

#ifdef CARAT_EMU
#include <sched.h>
#include <time.h>
#endif

/* ---- Memory that the host reads and writes --------------------------------------------------- */

#ifdef CARAT_EMU
DEV uint32_t load_system(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
/* After all earlier writes of this thread. */
DEV void store_system(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
DEV void system_fence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
DEV uint64_t time_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
DEV void pause_ns(unsigned)
{
    sched_yield();
}
#else
DEV uint32_t load_system(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV void store_system(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEV void system_fence()
{
    __threadfence_system();
}
DEV uint64_t time_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
DEV void pause_ns(unsigned ns)
{
    __nanosleep(ns);
}
#endif

/* ---- Pairs of the host ----------------------------------------------------------------------- */

/* Of pair p: the place of its product in room.y; below 0: the host does not compute it. */
DEV int offload_place(const offload_view &c, int p)
{
    return c.pair ? load_fresh(&c.pair[p].place) : (int)OFFLOAD_READ;
}

/* Waits for the answer to the last job; false: it is late. `asks`: this warp polls the host's word
 * over the bus; all others poll the word that it writes to the GPU's memory. The first
 * block of each row that waits asks. Blocks begin in the order of their numbers, so a block that
 * asks is always running. The others ask only after ASK_AFTER: when some hundred warps polled the
 * line that the host's threads write, an answer came 0.2 ms later.
 *
 * The host's threads answer without any help of the GPU: they use memory alone (offload_pool.h). So
 * the blocks that wait may fill the GPU, and may keep later kernels and copies waiting. A wait ends
 * after limit_ns, or, should the clock stand still, after LOOKS_MOST looks. A look takes the round
 * trip to the second-level cache at least, so these are no less than 20 seconds. */
DEV bool offload_answered(const offload_view &c, bool asks)
{
    enum { PAUSE = 200, ASK_AFTER = 10000000, LOOKS_MOST = 1 << 26 };
    const uint32_t seq = load_system(&c.state->seq);
    const uint64_t start = time_ns();
    const int64_t limit = (int64_t)c.state->limit_ns;
#pragma unroll 1
    for (int rescores = 0;; rescores++) {
        if (load_system(&c.state->seen) == seq)
            return true;
        if (load_system(&c.state->dead))
            return false;
        int64_t waited = (int64_t)(time_ns() - start);
        if (asks || waited > ASK_AFTER) {
            if (load_system(&c.room.post->done) == seq) {
                store_system(&c.state->seen, seq);
                return true;
            }
        }
        if (waited > limit || rescores == LOOKS_MOST) {
            store_system(&c.room.post->late, seq);
            store_system(&c.state->dead, 1);
            return false;
        }
        if (!asks)
            pause_ns(PAUSE);
    }
}

/* ---- Experts on their way -------------------------------------------------------------------- */

/* By a whole warp: has buffer m's expert arrived for request seq? Waits, but no longer than the
 * limit, and not at all where another warp has waited in vain: the bytes are the same wherever they
 * are read, so nothing hangs on the answer but time. */
DEV bool prefetch_arrived(const prefetch_view &v, int m, uint32_t seq)
{
    enum { LOOKS_MOST = 1 << 22 };
    bool here = false;
    if (lane_id() == 0) {
        prefetch_list *l = &v.state->list[v.layer % PREFETCH_SETS];
        const uint32_t *word = &v.state->arrived[v.layer % PREFETCH_SETS][m];
        const uint64_t start = time_ns();
        const int64_t limit = (int64_t)v.state->limit_ns;
#pragma unroll 1
        for (int rescores = 0;; rescores++) {
            here = load_system(word) == seq;
            if (here || load_system(&l->gave_up) == seq)
                break;
            if ((int64_t)(time_ns() - start) > limit || rescores == LOOKS_MOST) {
                if (atomicExch(&l->gave_up, seq) != seq) /* many warps wait */
                    atomicAdd(&v.state->n_late, 1u);
                break;
            }
            pause_ns(200);
        }
    }
    __syncwarp(); /* the other lanes' reads come after lane 0's */
    return shfl_u32(here, 0) != 0;
}

/* The buffer that expert e of the layer is on its way to, and its entry; -1: none. */
DEV int prefetch_buffer(const prefetch_view &v, int e, uint32_t *seq)
{
    const prefetch_list *l = &v.state->list[v.layer % PREFETCH_SETS];
    uint4 head = load_fresh((const uint4 *)l), who = load_fresh((const uint4 *)l->expert);
    const uint32_t n = head.x == (uint32_t)v.layer ? head.y : 0,
                   of[] = {who.x, who.y, who.z, who.w};
    int m = -1;
    for (uint32_t i = 0; i < PREFETCH_MOST; i++)
        m = i < n && of[i] == (uint32_t)e ? (int)i : m;
    *seq = head.z;
    return m;
}

/* ---- What becomes of pairs ------------------------------------------------------------------- */

/* Is expert e of the layer in the host's memory alone? */
DEV bool is_offloaded(const int64_t *where, int64_t from, int64_t end, int e)
{
    int64_t at = load_fresh(where + e);
    return at >= from && at < end;
}

/* A pair that the host does not compute. */
DEV offload_pair pair_read(const offload_rule &c, int e)
{
    offload_pair p = {load_fresh(c.where + e), OFFLOAD_READ, 0};
    bool offload = p.at >= c.host_from && p.at < c.host_end;
    uint32_t entry;
    int m = offload && c.prefetch.state ? prefetch_buffer(c.prefetch, e, &entry) : -1;
    if (m >= 0)
        p.place = OFFLOAD_READ - 1 - m, p.entry = entry;
    else
        p.entry = offload;
    return p;
}

/* Asks for what tell_row reads, so that the second cache has it: the weights of a token have gone
 * through the cache since the layer was computed last. By a warp. */
DEV void expect_rule(const offload_rule &c, int n_experts)
{
    enum { PER_LINE = 16 };
    const int lane = lane_id();
    for (int e = lane * PER_LINE; e < n_experts; e += 32 * PER_LINE)
        prefetch(c.where + e);
    if (lane < 2)
        prefetch((const char *)c.state + 128 * lane);
    if (lane == 2 && c.prefetch.state)
        prefetch(&c.prefetch.state->list[c.prefetch.layer % PREFETCH_SETS]);
}

/* By a warp, for the pairs of a row, one a lane; e: the pair's expert, or -1. The host gets the
 * first of the missing experts, as many as its table says. */
DEV void tell_row(const offload_rule &c, int e)
{
    const int lane = lane_id(), take = load_fresh(c.state->take + 1 + lane);
    const bool off = load_fresh(&c.state->dead);
    offload_pair p = {0, OFFLOAD_READ, 0};
    if (e >= 0)
        p = pair_read(c, e);
    uint32_t votes = warp_votes(p.place == OFFLOAD_READ && p.entry && !off);
    int n = bits_set(votes), rank = bits_set(votes & ((1u << lane) - 1));
    int most = n ? (int)shfl_u32((uint32_t)take, n - 1) : 0;
    if (votes >> lane & 1 && rank < most)
        p.place = rank;
    if (e >= 0)
        c.pair[lane] = p;
}

/* By a whole warp of a gated product that is to read over the bus. Thousands of reads would be
 * ahead of the job, so the job goes first; but for a time of no account, for a result does not hang
 * on it. */
DEV void let_post(const offload_view &c)
{
    enum { LONGEST = 20000, LOOKS_MOST = 1 << 12 };
    if (lane_id() == 0) {
        const uint64_t start = time_ns();
#pragma unroll 1
        for (int rescores = 0;
             rescores < LOOKS_MOST && !load_system(&c.state->posted) && time_ns() - start < LONGEST;
             rescores++)
            pause_ns(50);
    }
    __syncwarp();
}

/* By a whole warp: where a product reads an expert that the GPU does not hold. A call, so that
 * products of experts that it holds are short: much of their time is the fetch of instructions. */
static __device__ __noinline__ int64_t offload_reads(const offload_view &c, offload_pair p)
{
    int m = OFFLOAD_READ - 1 - p.place;
    if (m >= 0 && prefetch_arrived(c.prefetch, m, p.entry))
        return c.prefetch.where + m * c.prefetch.step;
    if (c.posts)
        let_post(c);
    return p.at;
}

/* By a whole warp: the place of pair p in room.y; or below 0, and where its expert is. expert: of
 * the first pair. w.where: of all experts, as offload_rule.where. */
DEV int offload_find(const offload_view &c, const packed &w, const int32_t *expert, int p,
                     size_t *at)
{
    if (!c.pair) {
        *at = mat_at(w, (size_t)load_fresh(expert + p));
        return OFFLOAD_READ;
    }
    const uint4 u = load_fresh((const uint4 *)(c.pair + p));
    offload_pair r = {(int64_t)((uint64_t)u.y << 32 | u.x), (int)u.z, u.w};
    if (r.place < 0 && (r.place != OFFLOAD_READ || r.entry))
        r.at = offload_reads(c, r);
    *at = (size_t)r.at;
    return r.place;
}

/* ---- Products of the host -------------------------------------------------------------------- */

/* A number of the host's product; NaN if the answer is late, so that nothing looks right. */
DEV float offload_value(const offload_view &c, int place, int o, bool there)
{
    const volatile float *y = c.room.y + (size_t)place * c.room.n_out + o;
    return there ? *y : __uint_as_float(0x7fc00000);
}

/* By a whole warp: output o of the pair at `place`, for lanes 0 to 15; o may be past the end. A
 * call, as offload_reads. */
static __device__ __noinline__ float offload_take(const offload_view &c, int place, int o,
                                                  int n_out, bool asks)
{
    bool there = lane_id() == 0 && offload_answered(c, asks);
    __syncwarp(); /* the other lanes' reads come after lane 0's; an exchange alone orders nothing */
    there = shfl_u32(there, 0);
    return lane_id() < 16 && o < n_out ? offload_value(c, place, o, there) : 0.0f;
}

#endif
