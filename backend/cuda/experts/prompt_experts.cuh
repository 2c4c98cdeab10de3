/* prompt_experts.cuh - what the kernels of experts of prompts are given: matmul_short_experts.cu
 * and matmul_tall_experts_hopper.cu; and how they make gated units.
 */
#ifndef BACKEND_CUDA_PROMPT_EXPERTS_CUH
#define BACKEND_CUDA_PROMPT_EXPERTS_CUH

#include "backend/cuda/product/launch_tall.h"
#include "backend/cuda/product/product.cuh"
#include "backend/cuda/product/prompt.cuh"

struct expert_args {
    mma_args a;
    packed up;      /* of gated units; w again where it has both */
    int up_tile;    /* the first of up */
    int n_out;      /* outputs or gated units */
    unit_rule unit; /* of gated units */
    bool silu;
    uint16_t *copy; /* [pairs, n_out]: the gated units as bf16 */
};

/* Unit `unit` of an expert, whose sums are gate and up; of unit 0 past the last. */
DEV float unit_value(const expert_args &s, int expert, int unit, float gate, float up)
{
    return unit_of(s.unit, s.silu, gate, up, (size_t)expert, unit < s.n_out ? unit : 0);
}

/* Writes a unit's value v and its copy. By whole warps, in which lanes l and l + 4 have
 * neighbouring units of one pair, the former an even one; n_out is even. in: is there such a pair
 * and unit? */
DEV void write_unit(const expert_args &s, size_t pair, int unit, float v, bool in)
{
    const float next = __uint_as_float(shfl_u32(__float_as_uint(v), lane_id() + 4));
    if (!in)
        return;
    s.a.y.at[pair * s.a.y.stride + unit] = v;
    if (unit % 2 == 0)
        *(uint32_t *)(s.copy + pair * s.n_out + unit) = f32x2_to_bf16(v, next);
}

static inline expert_args args_of_product(dev_mat y, dev_quant x, const packed &w,
                                          const expert_lists &l, int32_t k)
{
    expert_args s = {};
    s.a = {y, x.bf, w, y.rows, (const expert_tile *)l.tiles, l.n_tiles, l.order, k};
    s.n_out = w.n_out;
    return s;
}

static inline expert_args args_of_units(const expert_units &u, const expert_lists &l, int32_t k)
{
    expert_args s = args_of_product(u.y, u.x, u.w, l, k);
    s.up = u.up;
    s.up_tile = u.up_row / TILE_ROWS;
    s.n_out = u.y.cols;
    s.unit = u.unit;
    s.silu = u.silu;
    s.copy = u.copy;
    return s;
}

/* matmul_short_experts.cu: tiles of up to 32 rows, weights of blocks alone; units: gated ones.
 * False, and nothing is launched, where it has no kernel or a block has too little shared memory.
 */
bool cu_short_experts(cudaStream_t s, const expert_args &a, const expert_lists &l, bool units);
int cu_short_experts_init();

#endif
