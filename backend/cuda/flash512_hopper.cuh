/* flash512_hopper.cuh - attention of many rows over f16 with heads of 512 on GPUs of 9.0: what the
 * kernels of two streams (flash512_hopper.cu) and of one (flash512_one_hopper.cu) share.
 *
 * A block has 64 pairs (row, head), as in flash.cu. Its four warpgroups do different things at the
 * same time and meet at barriers in shared memory only:
 *
 *   fetch     keys and values, in units of 16 KB, as soon as a unit's place is free again
 *   score     S = Q K', softmax, P in f16, of all 64 keys: a pair's maximum is four lanes'
 *   collect   O += P V, two of them, 256 columns each: O is half of the registers there are
 *
 * So the tensor cores multiply S of one tile and P V of the one before while exponentials are
 * taken, and copies never stop. Sums, softmax and O are f32; q and the probabilities are rounded to
 * f16, as in flash.cu.
 *
 * A kernel's file has its `tiles`, which begin with shared_notes n and q, and
 *
 *   fetch(b, s)                        the first warpgroup
 *   multiply_keys(s, x, turn)          S of the turn-th tile
 *   p_at(s, turn), p_wait(s, turn)     where P goes, and until it may
 *   multiply_values(s, o, half, turn)  O += P V, 256 columns
 */
#ifndef BACKEND_CUDA_FLASH512_HOPPER_CUH
#define BACKEND_CUDA_FLASH512_HOPPER_CUH

#include "backend/cuda/flash_hopper.cuh"

enum {
    D = 512,
    PAIRS = 64,
    UNITS = 4,
    UNIT_BYTES = 16384,
    COLUMNS = 256, /* of a collecting warpgroup */
    COLLECT_REGISTERS = 168,
};

using block = job<D, PAIRS>;

/* What score and collect tell each other, beside P. What belongs to P is there twice. */
struct shared_notes {
    uint64_t p_full[2], p_free[2], all_summed;
    float keep[2][PAIRS]; /* what O is worth beside the new maximum */
    float sum[PAIRS];     /* of all probabilities, at the end */
    uint32_t grown[2][4]; /* per warp: is any keep of its 16 pairs not 1? */
    sights<PAIRS> sees;
};

DEV void barriers_shared(shared_notes &n)
{
    for (int i = 0; i < 2; i++) {
        bar_init(&n.p_full[i], GROUP_THREADS);
        bar_init(&n.p_free[i], 8); /* warps */
    }
    bar_init(&n.all_summed, GROUP_THREADS);
}

/* One arrival of a warp. */
DEV void warp_arrive(uint64_t *bar)
{
    if (lane_id() == 0)
        bar_arrive(bar);
}

/* ---- Score -------------------------------------------------------------------------------- */

template <class T> DEV void score(const block &b, T &s)
{
    shared_notes &n = s.n;
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id(), tid = lane & 3;
    int m0 = 16 * warp + (lane >> 2);
    softmax sm[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    walk w = walk_begin(b);
    for (int turn = 0; walk_on(b, w); turn++) {
        int which = turn & 1;
        float x[32], keep[2];
        multiply_keys(s, x, turn);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mask(b, x, w, m0 + 8 * h, h);
            keep[h] = exponentials(x, sm[h], h);
        }
        uint32_t grown = warp_max_u32(keep[0] != 1 || keep[1] != 1);
        p_wait(s, turn);
        uint8_t *p = p_at(s, turn);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = m0 + 8 * h;
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(uint32_t *)(p + piece_at(m, j) + 4 * tid) =
                    f32x2_to_f16(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]);
            if (tid == 0)
                n.keep[which][m] = keep[h];
        }
        if (lane == 0)
            n.grown[which][warp] = grown;
        tensor_fence();
        bar_arrive(&n.p_full[which]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = whole_sum(sm[h]);
        if (tid == 0)
            n.sum[m0 + 8 * h] = sum;
    }
    bar_arrive(&n.all_summed);
}

/* ---- Collect ------------------------------------------------------------------------------ */

template <class T> DEV void collect(const block &b, T &s, int half)
{
    shared_notes &n = s.n;
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id();
    int m0 = 16 * warp + (lane >> 2);
    float o[2][64]; /* 128 columns each */
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i / 64][i % 64] = 0;
    walk w = walk_begin(b);
    for (int turn = 0; walk_on(b, w); turn++) {
        int which = turn & 1;
        bar_wait(&n.p_full[which], turn >> 1 & 1);
        if (n.grown[which][warp]) { /* rare after the first tiles */
            float k0 = n.keep[which][m0], k1 = n.keep[which][m0 + 8];
#pragma unroll
            for (int i = 0; i < 128; i++)
                o[i / 64][i % 64] *= i & 2 ? k1 : k0;
        }
        multiply_values(s, o, half, turn);
        __syncwarp(); /* all lanes have read keep */
        warp_arrive(&n.p_free[which]);
    }
    bar_wait(&n.all_summed, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = m0 + 8 * h, pair = b.pair0 + m;
        if (m >= b.n_pairs)
            continue;
        int head = (int)blockIdx.y * b.group + pair % b.group;
        float by = 1.0f / n.sum[m];
        float *to = b.a.o.at + pair / b.group * b.a.o.stride + head * D + half * COLUMNS;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            const float *x = &o[j / 16][4 * (j % 16) + 2 * h];
            *(float2 *)(to + 8 * j + 2 * (lane & 3)) = make_float2(x[0] * by, x[1] * by);
        }
    }
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* T: tiles in shared memory, at a multiple of 1024 bytes. */
template <class T> DEV void attend_tiles(const attend_args &a, T &s)
{
    static_assert(T::FETCH_REGISTERS + T::SCORE_REGISTERS + 2 * COLLECT_REGISTERS <= 512,
                  "registers");
    static_assert(T::FETCH_REGISTERS <= 128 && T::SCORE_REGISTERS >= 128, "of 128 at entry");
    int group = a.n_head / a.kv.n_head_kv;
    int pair0 = (int)(gridDim.x - 1 - blockIdx.x) * PAIRS;
    block b = {a, s.n.sees, pair0, min((int)PAIRS, a.st.rows.n * group - pair0), group};
    grid_trigger();
    grid_wait();
    if (threadIdx.x == 0) {
        barriers_shared(s.n);
        barriers(s);
    }
    prepare<T::ONE>(b, &s.n.sees, s.q);
    __syncthreads();
    int role = (int)threadIdx.x / GROUP_THREADS;
    if (role == 0) {
        registers_less<T::FETCH_REGISTERS>();
        fetch(b, s);
    } else if (role == 1) {
        registers_more<T::SCORE_REGISTERS>();
        score(b, s);
    } else {
        registers_more<COLLECT_REGISTERS>();
        collect(b, s, role - 2);
    }
}

#endif
