/* pairs.cuh - what kernels of experts share: pairs of row and expert are sorted by expert in every
 * block, and blocks take items of work from a ticket.
 *
 * Items of one group of pairs are computed by several blocks, so all blocks must form the same
 * groups. A pair's place among those of its expert is therefore counted, and not drawn.
 */
#ifndef BACKEND_CUDA_PAIRS_CUH
#define BACKEND_CUDA_PAIRS_CUH

#include "backend/cuda/activations.cuh"
#include "backend/cuda/experts/own.cuh"

/* What a product of experts is given, whichever kernel computes it. */
struct pair_args {
    int32_t n_out, n_pairs, k;
    const int32_t *expert;
    expert_range own;
    const float *share; /* the pair's weight in the sum over a row's experts; NULL: gated */
    dev_quant x;
    int32_t x_pairs; /* pairs per row of x: k or 1 */
    dev_mat y;       /* [rows, k * n_out] */
    bool silu;       /* the activation of a gated unit; else gelu */
    unit_rule unit;  /* of a gated unit */
    dev_quant copy;  /* of its y, by pair */
    int32_t *ticket;
    bool chosen, ready; /* as of expert_product */
};
static inline pair_args pairs_of_product(const expert_product &e, const launch_memory &memory)
{
    pair_args a = {};
    a.n_out = e.p.n_out;
    a.n_pairs = e.p.y.rows * e.k;
    a.k = e.k;
    a.expert = e.expert;
    a.own = e.own;
    a.share = e.share;
    a.x = e.p.x;
    a.x_pairs = e.x_per_pair ? 1 : e.k;
    a.y = e.p.y;
    a.silu = e.p.silu;
    a.unit = e.unit;
    a.copy = e.p.q;
    a.ticket = memory.ticket;
    a.chosen = e.chosen;
    a.ready = e.ready;
    return a;
}

/* Inclusive prefix sum of v over the block's threads. sums: an int for each warp. */
DEV int sum_up_to(int v, int *sums)
{
    int lane = lane_id(), warp = (int)threadIdx.x >> 5;
    for (int d = 1; d < 32; d *= 2) {
        int u = (int)shfl_u32((uint32_t)v, lane - d);
        v += lane >= d ? u : 0;
    }
    if (lane == 31)
        sums[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        v += sums[i];
    return v;
}

/* The byte of a pair that is left out. A weight that has not all experts has at most SOME_EXPERTS.
 */
enum { LEFT_OUT = 255 };
DEV bool is_left_out(const pair_args &a, const uint32_t *ids, int p)
{
    return a.own.n <= SOME_EXPERTS && ((const uint8_t *)ids)[p] == LEFT_OUT;
}

/* The number of pairs before p with p's expert, four bytes of ids at a time. A row chooses an
 * expert at most once, so the byte counters cannot overflow. */
DEV int rank_of(const uint32_t *ids, int p)
{
    uint32_t mine = ((const uint8_t *)ids)[p] * 0x01010101u, n = 0;
#pragma unroll 4
    for (int i = 0; i <= p >> 2; i++) {
        uint32_t x = ids[i] ^ mine;
        uint32_t equal = ~(((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) >> 7 & 0x01010101;
        n += i < p >> 2 ? equal : equal & ((1u << 8 * (p & 3)) - 1);
    }
    return (int)(n * 0x01010101u >> 24);
}

/* Thread 0 draws the number of the item after the next one. A block's first item is its own number.
 * Every block draws once for each of its items and once more, so the last draw is known, and it
 * resets the ticket for the next launch. */
DEV void draw_item(int32_t *ticket, int n_items, int *drawn)
{
    if (threadIdx.x)
        return;
    int old = atomicAdd(ticket, 1);
    *drawn = (int)gridDim.x + old;
    if (old == n_items + (int)gridDim.x - 1)
        *ticket = 0;
}

#endif
