/* flash_pairs.cuh - what flash128_hopper.cu and flash256_hopper.cu share: blocks of 128 pairs whose
 * attending warpgroups hold O and P in registers.
 *
 *     warpgroup 0   fetch    K of tile i + 1, V of tile i; two tiles of either in flight
 *     warpgroup 1   attend   pairs  0 .. 63:    S of tile i + 1 | P V of tile i | softmax of i + 1
 *     warpgroup 2   attend   pairs 64 .. 127
 *
 * Here are shared memory with its barriers, the fetching warpgroup, and O from slice to slice. The
 * products and their order are the kernels' own.
 */
#ifndef BACKEND_CUDA_FLASH_PAIRS_CUH
#define BACKEND_CUDA_FLASH_PAIRS_CUH

#include "backend/cuda/attend/flash_hopper.cuh"

enum { PAIRS = 128 };

struct notes {
    uint64_t k_full[2], k_free[2], v_full[2], v_free[2];
    sights<PAIRS> sees;
};
/* KEYS: of a tile. */
template <int D, int KEYS> struct pair_tiles {
    enum {
        BLOCKS = columns<D>::BLOCKS,
        KEY_BLOCK = KEYS * ROW_BYTES, /* 64 columns of a tile */
        TILE_BYTES = BLOCKS * KEY_BLOCK,
        Q_BYTES = BLOCKS * BLOCK_BYTES, /* of 64 pairs */
    };
    uint8_t q[2][Q_BYTES], k[2][TILE_BYTES], v[2][TILE_BYTES];
    notes n;
};

DEV void barriers(notes &n)
{
    for (int i = 0; i < 2; i++) {
        bar_init(&n.k_full[i], GROUP_THREADS);
        bar_init(&n.v_full[i], GROUP_THREADS);
        bar_init(&n.k_free[i], 8); /* warps */
        bar_init(&n.v_free[i], 8);
    }
}

/* ---- Fetch -------------------------------------------------------------------------------- */

template <int D, int KEYS> struct line { /* tiles in flight, of K or V */
    uint8_t (*tile)[pair_tiles<D, KEYS>::TILE_BYTES];
    uint64_t *full, *free;
};
template <int D, int KEYS>
DEV void fetch_tile(const job<D, PAIRS, KEYS> &b, const line<D, KEYS> &to, const uint8_t *head,
                    const int (&at)[place<KEYS>::PAGES], uint32_t in, int turn)
{
    using tiles = pair_tiles<D, KEYS>;
    int which = turn & 1;
    bar_wait(&to.free[which], (turn >> 1 & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
        fetch_key<D>(to.tile[which] + fetch_offset() + 16 * n * ROW_BYTES, head,
                     row_of_key(b, at, n), in >> n & 1, 0, tiles::BLOCKS, tiles::KEY_BLOCK);
    bar_arrive_copied(&to.full[which]);
}

template <how HOW, int D, int KEYS>
DEV void fetch(const job<D, PAIRS, KEYS> &b, pair_tiles<D, KEYS> &s)
{
    line<D, KEYS> k = {s.k, s.n.k_full, s.n.k_free}, v = {s.v, s.n.v_full, s.n.v_free};
    walk w = walk_begin(b);
    bool more = walk_on<HOW>(b, w);
    place<KEYS> now = {}, next = {};
    key_walk_of<place<KEYS>::PAGES> ahead;
    if (more) {
        place_on<HOW>(b, w, ahead, next);
        now = next;
        fetch_tile(b, k, now.k, now.k_at, now.in, 0);
    }
    for (int turn = 0; more; turn++) {
        more = walk_on<HOW>(b, w);
        if (more) {
            place_on<HOW>(b, w, ahead, next);
            fetch_tile(b, k, next.k, next.k_at, next.in, turn + 1);
        }
        fetch_tile(b, v, now.v, now.v_at, now.in, turn);
        now = next;
    }
    copy_commit();
    copy_wait<0>();
}

/* ---- A warpgroup's P and O ---------------------------------------------------------------- */

/* Loads O as the slice before left it. */
template <int D, int KEYS>
DEV void load_sums(const job<D, PAIRS, KEYS> &b, float (&o)[D / 2], int m0)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (m0 + 8 * h >= b.n_pairs)
            continue;
        const float *from = sums_of(b, m0 + 8 * h, 0, D);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float2 x = *(const float2 *)(from + 8 * j);
            o[4 * j + 2 * h] = x.x;
            o[4 * j + 2 * h + 1] = x.y;
        }
    }
}
/* After the last tile. */
template <int D, int KEYS>
DEV void store_sums(const job<D, PAIRS, KEYS> &b, const float (&o)[D / 2], const softmax (&sm)[2],
                    int m0)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = m0 + 8 * h;
        float by = softmax_end(b, sm[h], m);
        if (m >= b.n_pairs)
            continue;
        float *to = sums_of(b, m, 0, D);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(float2 *)(to + 8 * j) = make_float2(o[4 * j + 2 * h] * by, o[4 * j + 2 * h + 1] * by);
    }
}

#endif
