/* vec_tile.cuh - a warp's part of a tile of an expert times one row: what matmul_vec.cu and
 * rank_experts.cu share.
 */
#ifndef BACKEND_CUDA_VEC_TILE_CUH
#define BACKEND_CUDA_VEC_TILE_CUH

#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/product.cuh"

/* An activation row as a kernel reads it: group g's codes at q[g * step], scale at s[g * step]. */
struct x_view {
    const uint4 *q; /* two per group */
    const xscale *s;
    int step;
};

/* A lane's share of a unit times the activation. Groups past the end have codes and scales of zero
 * and are multiplied by the last group's activation. They add nothing, and need no branch. */
template <int K>
DEV float unit_sum(float acc, const raw_unit<K> &u, int unit, int n_group, x_view x)
{
    int g0 = unit * 8 + (lane_id() >> 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = min(g0 + 2 * i, n_group - 1) * x.step;
        uint4 xa = x.q[2 * at], xb = x.q[2 * at + 1];
        xscale xs = x.s[at];
        raw_group<K> raw;
        take_group<K>(&raw, u, i);
        acc = group_dot<K>(acc, raw, g0 + 2 * i, xa, xb, xs);
    }
    return acc;
}

/* A warp's part of a tile: units first, first + step, .. of matrix `mat`. AHEAD units are always in
 * flight. */
template <int K, int AHEAD> struct warp_tile {
    raw_unit<K> raw[AHEAD];
    size_t base;
    int tile, first, step;

    /* Weights depend on no earlier kernel, so they are requested before grid_wait. */
    DEV void begin(const packed &w, size_t mat, int tile_, int first_, int step_)
    {
        begin_at(w, mat_at(w, mat), tile_, first_, step_);
    }
    DEV void begin_at(const packed &w, size_t base_, int tile_, int first_, int step_)
    {
        base = base_;
        tile = tile_, first = first_, step = step_;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            load(&raw[i], w, first + i * step);
    }
    DEV void load(raw_unit<K> *u, const packed &w, int unit)
    {
        if (unit < w.n_unit)
            load_unit<K>(u, w, base, tile, unit, lane_id() & 15, lane_id() >> 4);
    }
    /* The sums, both parities added: lanes 0..15 get rows 0..15. */
    DEV float run(const packed &w, x_view x)
    {
        float acc = 0;
#pragma unroll 1
        for (int u = first; u < w.n_unit; u += AHEAD * step)
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (u + i * step < w.n_unit) {
                    acc = unit_sum<K>(acc, raw[i], u + i * step, w.n_group, x);
                    load(&raw[i], w, u + (AHEAD + i) * step);
                }
        return acc + shfl_xor_f32(acc, 16);
    }
};

DEV x_view x_at(const dev_quant &x, int row)
{
    size_t at = quant_index(x, row, 0);
    x_view v = {(const uint4 *)x.q + 2 * at, (const xscale *)x.s + at, x.tile};
    return v;
}

/* How many blocks of 4 warps must fit into a multiprocessor, so that all warps of a product run at
 * once (product_warps). An expert's warp has a handful of units: 16 warps have most of them in
 * flight, and the registers for that. */
template <int K> struct occupancy {
    static constexpr bool large = traits<K>::six || traits<K>::bytes || traits<K>::five;
    static constexpr int blocks = large ? 4 : 6;
    static constexpr int gated = traits<K>::bytes ? 2 : large ? 3 : 4;
    static constexpr int down = traits<K>::bytes ? 2 : 3;
};

#endif
