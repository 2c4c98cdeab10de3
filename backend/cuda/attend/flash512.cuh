/* flash512.cuh - what flash512_hopper.cu and flash512_spread_hopper.cu share: heads of 512, blocks of
 * 64 pairs, tiles of 64 keys; S from units of keys, P and its factors in shared memory, O by columns.
 *
 *     K: 4 units of 128 columns, [2 blocks][64 keys]        V: 4 units of 16 keys
 */
#ifndef BACKEND_CUDA_FLASH512_CUH
#define BACKEND_CUDA_FLASH512_CUH

#include "backend/cuda/attend/flash_hopper.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    D = 512,
    PAIRS = 64,
    KEYS = 64,
    UNITS = 4,
    K_UNIT_BYTES = 16384,
    V_BLOCK = 16 * ROW_BYTES, /* 64 columns of a unit of V */
};
using block = job<D, PAIRS, KEYS>;
using spot = place<KEYS>;

/* A thread's part of a unit of keys. */
DEV void fetch_key_unit(const block &b, uint8_t *to, const spot &p, int unit)
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        fetch_key<D>(to + fetch_offset() + 16 * n * ROW_BYTES, p.k, row_of_key(b, p.k_at, n),
                     p.in >> n & 1, 2 * unit, 2, BLOCK_BYTES);
}

/* S of a tile; waits for its units of K (full), and releases them (free). */
DEV void multiply_key_units(const uint8_t *sq, const uint8_t (*sk)[K_UNIT_BYTES], uint64_t *full,
                            uint64_t *free, float (&x)[32], int turn)
{
    uint64_t q = operand(shared_at(sq), 16), k = operand(shared_at(sk), 16);
    hold(x);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&full[u], turn & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) /* 16 columns each: 32 of a row's 128 bytes, 4 to a block */
            wg_mma_64(x, q + ((2 * u + i / 4) * BLOCK_BYTES + i % 4 * 32) / 16,
                      k + (u * K_UNIT_BYTES + i / 4 * BLOCK_BYTES + i % 4 * 32) / 16, u + i > 0);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&free[u - 1]);
        }
    }
    wg_wait<0>();
    hold(x);
    warp_arrive(&free[UNITS - 1]);
}

/* P, twice, from the warpgroup that makes it to those that multiply it by V. */
struct probabilities {
    uint8_t p[2][BLOCK_BYTES]; /* begins at a multiple of 1024 */
    uint64_t full[2], free[2], all_summed;
    float keep[2][PAIRS]; /* the factor of O at the new maximum */
    float by[PAIRS];      /* the factor of O at the end */
    uint32_t grown[2][4]; /* per warp: is any `keep` of its 16 pairs other than 1? */

    DEV void init(int readers)
    {
        for (int i = 0; i < 2; i++) {
            bar_init(&full[i], GROUP_THREADS);
            bar_init(&free[i], readers); /* every reader of `keep` arrives */
        }
        bar_init(&all_summed, GROUP_THREADS);
    }
    /* A warp's exponentials of a tile as f16; m0: the thread's upper pair. */
    DEV void put(const float (&x)[32], const float (&of)[2], int m0, int turn)
    {
        const int which = turn & 1, lane = lane_id(), tid = lane & 3;
        uint32_t any = warp_max_u32(of[0] != 1 || of[1] != 1);
        bar_wait(&free[which], (turn >> 1 & 1) ^ 1);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int m = m0 + 8 * h;
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(uint32_t *)(p[which] + piece_at(m, j) + 4 * tid) =
                    f32x2_to_f16(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]);
            if (tid == 0)
                keep[which][m] = of[h];
        }
        if (lane == 0)
            grown[which][(int)(threadIdx.x >> 5) & 3] = any;
        tensor_fence();
        bar_arrive(&full[which]);
    }
    /* After the last tile. */
    DEV void end(const block &b, const softmax (&sm)[2], int m0)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = softmax_end(b, sm[h], m0 + 8 * h);
            if ((lane_id() & 3) == 0)
                by[m0 + 8 * h] = v;
        }
        bar_arrive(&all_summed);
    }
    /* O of the columns of a thread to the maxima of a tile; rare after the first tiles. */
    template <int N> DEV void rescale(float (&o)[N][64], int which, int m0) const
    {
        if (!grown[which][(int)(threadIdx.x >> 5) & 3])
            return;
        float k0 = keep[which][m0], k1 = keep[which][m0 + 8];
#pragma unroll
        for (int i = 0; i < 64 * N; i++)
            o[i / 64][i % 64] *= i & 2 ? k1 : k0;
    }
    /* O, 128 N columns from `column` on, to the result; waits for its factors. */
    template <int N>
    DEV void store(const block &b, const float (&o)[N][64], int m0, int column)
    {
        bar_wait(&all_summed, 0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int m = m0 + 8 * h;
            if (m >= b.n_pairs)
                continue;
            float v = by[m], *to = sums_of(b, m, column, D);
#pragma unroll
            for (int j = 0; j < 16 * N; j++) {
                const float *x = &o[j / 16][4 * (j % 16) + 2 * h];
                *(float2 *)(to + 8 * j) = make_float2(x[0] * v, x[1] * v);
            }
        }
    }
};

#endif
