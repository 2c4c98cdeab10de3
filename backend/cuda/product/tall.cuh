/* tall.cuh - what matmul_tall_hopper.cu and matmul_tall_experts_hopper.cu share: rings of stages in
 * shared memory, copies of weights to them, and the products of a warpgroup.
 *
 *     activations  [X_STAGES][rows][64]        bf16, swizzled (hopper.cuh)
 *     weights      [stages][warps][unit]       as packed: 16 outputs to a warp
 *     scales       [warps][table]              fragments.cuh
 *
 * Weights become bf16 in the registers that the tensor cores read. Every sum adds its columns 16 at
 * a time in ascending order, as in matmul_mma.cu. So results are bit-identical.
 */
#ifndef BACKEND_CUDA_TALL_CUH
#define BACKEND_CUDA_TALL_CUH

#include "backend/cuda/product/fragments.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/product/launch_tall.h"
#include "backend/cuda/product/prompt.cuh"

enum {
    STEP = 64,             /* columns of a stage of activations */
    STEP_BYTES = 2 * STEP, /* of a row */
    X_STAGES = 4,          /* so many as a unit has steps: a step's stage is a constant */
    MOST_STAGES = 4        /* of weights */
};

template <int ROWS> struct tall_x {
    static constexpr int stage = ROWS * STEP_BYTES;
};

struct tall_bars {
    uint64_t full[X_STAGES], free[X_STAGES], units_full[MOST_STAGES], units_free[MOST_STAGES];

    /* By one thread. */
    DEV void init(int warps, int stages)
    {
        for (int i = 0; i < X_STAGES; i++) {
            bar_init(&full[i], 64);
            bar_init(&free[i], warps);
        }
        for (int i = 0; i < stages; i++) {
            bar_init(&units_full[i], 4 * warps);
            bar_init(&units_free[i], warps);
        }
        tensor_fence(); /* bulk copies arrive at them */
    }
};

/* A place in a ring of n stages: the stage, and the parity of its turn. */
struct ring_place {
    int which, turn;
    DEV void next(int n)
    {
        if (++which == n)
            which = 0, turn ^= 1;
    }
};

/* One plane of a unit: where a warp's tile has it, and where it goes. A lane of the fetching warp
 * copies plane lane % 4 of tile lane / 4. */
template <int K> struct tall_plane {
    using S = staged<K>;
    const uint8_t *from;
    int bytes, to; /* of a unit; from the beginning of the warp's unit */
    bool codes;    /* of groups, of which the last unit may have fewer than eight */

    /* base: where the matrix begins in every plane. */
    DEV void begin(const packed &w, size_t base, int tile, int which)
    {
        const size_t units = (size_t)tile * w.n_unit;
        codes = which == 0 && !traits<K>::whole;
        bytes = which == 0 ? S::codes : which == 1 ? S::high : which == 2 ? S::scale : S::super;
        to = which == 0 ? 0 : which == 1 ? S::at_high : which == 2 ? S::at_scale : S::at_super;
        from = (which == 0   ? w.codes
                : which == 1 ? w.high
                : which == 2 ? w.scale
                             : w.super) +
               base +
               (traits<K>::shares || which ? units * bytes
                                           : (size_t)tile * w.n_group * (S::codes / 8));
    }
    /* Groups past the end keep what the stage had: they meet zeros of x. */
    DEV int bytes_of(int unit, int n_group) const
    {
        return codes ? min(bytes, (n_group - 8 * unit) * (S::codes / 8)) : bytes;
    }
};

/* A lane's copies of the units of a block's tiles. */
template <int K, int WARPS> struct tall_copies {
    static constexpr int all = 4 * WARPS, each = (all + 31) / 32;
    tall_plane<K> p[each];

    DEV static int tile(int i) /* of copy i: the warp whose tile it is */
    {
        return (lane_id() + 32 * i) / 4;
    }
    DEV void begin(int i, const packed &w, size_t base, int from_tile)
    {
        p[i].begin(w, base, from_tile, lane_id() & 3);
        p[i].to += tile(i) * staged<K>::bytes;
    }
    /* Copies unit k as soon as its stage is free; a plane of a tile is one copy. */
    DEV void copy(int k, int n_group, uint8_t *units, tall_bars &bars, ring_place at) const
    {
        uint8_t *to = units + at.which * WARPS * staged<K>::bytes;
        bar_wait(&bars.units_free[at.which], at.turn ^ 1);
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int n = p[i].bytes_of(k, n_group);
            if (all % 32 && lane_id() + 32 * i >= all)
                continue;
            if (n > 0)
                copy_bulk(to + p[i].to, p[i].from + (size_t)k * p[i].bytes, n,
                          &bars.units_full[at.which]);
            else
                bar_arrive(&bars.units_full[at.which]);
        }
    }
};

/* What a warp multiplies: of a stage of weights, two units of which it takes eight rows each. They
 * may be the same. */
struct tall_rows {
    int unit[2], row[2]; /* offsets in a stage; the lane's row of each */
    uint8_t *table;
};

/* The products of a warpgroup's 64 outputs with N rows; acc: as hopper.cuh has D. x: its place
 * among the units of activations so far. STAGE, WEIGHTS: bytes of a stage of activations, of
 * weights. */
template <int K, int N, int STAGE, int WEIGHTS>
DEV void multiply_rows(float (&acc)[N / 2], const tall_rows &of, int n_unit, int stages,
                       const uint8_t *units, const uint8_t *xs, tall_bars &bars, ring_place &at,
                       int &x_turn)
{
    /* A shuffle hides the constants from the compiler, which keeps them in registers then. */
    const constants is = {shfl_u32(0x4b000000, 0), shfl_u32(code_float<K>::power, 0)};
    uint32_t fa[2][2][4]; /* of a group while the tensor cores read those of the one before */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0;
    for (int k = 0; k < n_unit; k++, x_turn ^= 1) {
        const uint8_t *stage = units + at.which * WEIGHTS;
        const uint8_t *unit[2] = {stage + of.unit[0], stage + of.unit[1]};
        unit_scales<K> scale[2];
        bar_wait(&bars.units_full[at.which], at.turn);
        if (traits<K>::super) {
            /* The table has 16 lines. Line i holds the scales of output row i % 8 of the warp's
             * unit i / 8. */
            const bool second = lane_id() >> 3 & 1;
            const int row = (second ? of.row[1] - 8 : of.row[0]) - (lane_id() >> 2);
            write_scales(of.table,
                         (second ? unit[1] : unit[0]) + staged<K>::at_super + 16 * row, is.power);
            __syncwarp();
        }
        scale[0].begin(unit[0], of.row[0]);
        scale[1].begin(unit[1], of.row[1]);
#pragma unroll
        for (int g = 0; g < 8; g++) {
            const int which = g / 2;
            group_fragments<K>(fa[g & 1], unit, of.row, of.table, scale, g, is);
            if (g % 2 == 0) {
                bar_wait(&bars.full[which], x_turn);
                tensor_fence();
            }
            const uint64_t x = operand(shared_at(xs + which * STAGE), 16);
            hold(acc);
            wg_fence();
#pragma unroll
            for (int h = 0; h < 2; h++)
                wg_mma_bf16<N>(acc, fa[g & 1][h], x + (g % 2 * 64 + h * 32) / 16);
            wg_commit();
            wg_wait<1>(); /* the group before is multiplied: its fragments and its rows are free */
            hold(acc);
            if (g % 2 == 0 && (k > 0 || which > 0))
                warp_arrive(&bars.free[(which + X_STAGES - 1) % X_STAGES]);
        }
        __syncwarp(); /* all lanes have read the unit and the table */
        warp_arrive(&bars.units_free[at.which]);
        at.next(stages);
    }
    wg_wait<0>();
    hold(acc);
    warp_arrive(&bars.free[X_STAGES - 1]);
}

/* Stages of weights that fit beside those of activations, of a block of WARPS; bytes: with so many.
 */
template <int K, int ROWS, int WARPS> static int tall_bytes(int stages)
{
    return 1024 + X_STAGES * tall_x<ROWS>::stage +
           WARPS * (stages * staged<K>::bytes + scale_table<K>)+(int)sizeof(tall_bars);
}
template <int K, int ROWS, int WARPS> static int tall_stages()
{
    int n = MOST_STAGES;
    while (n > 0 && tall_bytes<K, ROWS, WARPS>(n) > cu_gpu.shared_block - table_bytes<K>)
        n--;
    return n;
}

#endif
