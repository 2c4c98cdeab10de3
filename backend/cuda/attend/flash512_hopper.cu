/* flash512_hopper.cu - attention of many rows over f16 keys and values in heads of 512, on GPUs of
 * compute capability 9.0. The store is read in place, or as slices that expand.cu makes of it.
 *
 *     warpgroup 0      fetch     keys and values, in units of 16 KB, as soon as a place is free
 *     warpgroup 1      score     S = Q K', softmax, P in f16, of all 64 keys
 *     warpgroups 2, 3  collect   O += P V, 256 columns each: O takes half of all registers
 *
 *     K: 4 units of 128 columns, one tile ahead        V: 4 units of 16 keys
 *
 * SKIPS (flash_hopper.cuh): values of a tile are fetched after the vote of all 64 pairs, and not
 * at all if they all drop it.
 *
 * A block has 64 pairs (row, head), as in flash.cu. Its warpgroups meet at barriers in shared
 * memory only. So the tensor cores multiply S of one tile and P V of the one before while
 * exponentials are taken, and copies never stop. The maximum of a pair is reduced over four lanes.
 * Sums, softmax and O are f32; q and the probabilities are rounded to f16, as in flash.cu. K and V
 * are cut differently because S consumes a tile's columns one after the other, and P V its keys.
 */
#include "backend/cuda/attend/flash_hopper.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    D = 512,
    PAIRS = 64,
    KEYS = 64,
    UNITS = 4,
    UNIT_BYTES = 16384, /* K: [2 blocks][64 keys]; V: [8 blocks][16 keys] */
    V_BLOCK = 16 * ROW_BYTES,
    COLUMNS = 256, /* of a collecting warpgroup */
    FETCH_REGISTERS = 40,
    SCORE_REGISTERS = 136,
    COLLECT_REGISTERS = 168,
};
static_assert(FETCH_REGISTERS + SCORE_REGISTERS + 2 * COLLECT_REGISTERS <= 512, "registers");
static_assert(FETCH_REGISTERS <= 128 && SCORE_REGISTERS >= 128, "of 128 at entry");

using block = job<D, PAIRS, KEYS>;
using spot = place<KEYS>;

/* Barriers and factors that the warpgroups share. Those of P exist twice, as P does. */
struct notes {
    uint64_t k_full[UNITS], k_free[UNITS], v_full[UNITS], v_free[UNITS];
    uint64_t p_full[2], p_free[2], all_summed;
    uint64_t voted[2];
    float keep[2][PAIRS]; /* the factor of O at the new maximum */
    float by[PAIRS];      /* the factor of O at the end */
    uint32_t grown[2][4]; /* per warp: is any `keep` of its 16 pairs other than 1? */
    uint32_t live[2][4];  /* SKIPS, per warp: does any of its 16 pairs keep the tile? */
    sights<PAIRS> sees;
};
struct tiles {
    uint8_t q[D / 64 * BLOCK_BYTES], k[UNITS][UNIT_BYTES], v[UNITS][UNIT_BYTES], p[2][BLOCK_BYTES];
    notes n;
};
enum { SHARED_BYTES = sizeof(tiles) + 1024 }; /* tiles begin at a multiple of 1024 */

DEV void barriers(notes &n)
{
    for (int u = 0; u < UNITS; u++) {
        bar_init(&n.k_full[u], GROUP_THREADS);
        bar_init(&n.v_full[u], GROUP_THREADS);
        bar_init(&n.k_free[u], 4); /* warps */
        bar_init(&n.v_free[u], 8);
    }
    for (int i = 0; i < 2; i++) {
        bar_init(&n.voted[i], 4); /* warps */
        bar_init(&n.p_full[i], GROUP_THREADS);
        bar_init(&n.p_free[i], 2 * GROUP_THREADS); /* every reader of `keep` arrives */
    }
    bar_init(&n.all_summed, GROUP_THREADS);
}

/* ---- Fetch -------------------------------------------------------------------------------- */

DEV void fetch_keys(const block &b, tiles &s, const spot &p, int unit, int turn)
{
    bar_wait(&s.n.k_free[unit], (turn & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < 4; n++)
        fetch_key<D>(s.k[unit] + fetch_offset() + 16 * n * ROW_BYTES, p.k, row_of_key(b, p.k_at, n),
                     p.in >> n & 1, 2 * unit, 2, BLOCK_BYTES);
    bar_arrive_copied(&s.n.k_full[unit]);
}

DEV void fetch_values(const block &b, tiles &s, const spot &p, int unit, int turn)
{
    bar_wait(&s.n.v_free[unit], (turn & 1) ^ 1);
    fetch_key<D>(s.v[unit] + fetch_offset(), p.v, row_of_key(b, p.v_at, unit), p.in >> unit & 1, 0,
                 D / 64, V_BLOCK);
    bar_arrive_copied(&s.n.v_full[unit]);
}

/* SKIPS: does any pair keep the tile that was voted on? */
DEV bool any_keeps(const notes &n, int which)
{
    return (n.live[which][0] | n.live[which][1]) | (n.live[which][2] | n.live[which][3]);
}

template <how HOW> DEV void fetch(const block &b, tiles &s)
{
    int v_turn = 0; /* SKIPS: tiles of values so far */
    walk w = walk_begin(b);
    bool more = walk_on<HOW>(b, w);
    spot now = {}, next = {};
    key_walk_of<spot::PAGES> ahead;
    if (more) {
        place_on<HOW>(b, w, ahead, next);
        now = next;
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            fetch_keys(b, s, now, u, 0);
    }
    for (int turn = 0; more; turn++) {
        more = walk_on<HOW>(b, w);
        if (more)
            place_on<HOW>(b, w, ahead, next);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (more)
                fetch_keys(b, s, next, u, turn + 1);
            if (HOW != SKIPS)
                fetch_values(b, s, now, u, turn);
        }
        if constexpr (HOW == SKIPS) {
            bar_wait(&s.n.voted[turn & 1], turn >> 1 & 1);
            if (any_keeps(s.n, turn & 1)) {
#pragma unroll
                for (int u = 0; u < UNITS; u++)
                    fetch_values(b, s, now, u, v_turn);
                v_turn++;
            }
        }
        now = next;
    }
    copy_commit();
    copy_wait<0>();
}

/* ---- Score -------------------------------------------------------------------------------- */

/* S of a tile; releases its units of K. */
DEV void multiply_keys(tiles &s, float (&x)[32], int turn)
{
    uint64_t q = operand(shared_at(s.q), 16), k = operand(shared_at(s.k), 16);
    hold(x);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&s.n.k_full[u], turn & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) /* 16 columns each: 32 of a row's 128 bytes, 4 to a block */
            wg_mma_64(x, q + ((2 * u + i / 4) * BLOCK_BYTES + i % 4 * 32) / 16,
                      k + (u * UNIT_BYTES + i / 4 * BLOCK_BYTES + i % 4 * 32) / 16, u + i > 0);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&s.n.k_free[u - 1]);
        }
    }
    wg_wait<0>();
    hold(x);
    warp_arrive(&s.n.k_free[UNITS - 1]);
}

template <how HOW> DEV void score(const block &b, tiles &s)
{
    notes &n = s.n;
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id(), tid = lane & 3;
    int m0 = 16 * warp + (lane >> 2);
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
    votes of[2];
    if constexpr (HOW == SKIPS)
        of[0] = votes_begin(b, m0), of[1] = votes_begin(b, m0 + 8);
    walk w = walk_begin(b);
    for (int turn = 0; walk_on<HOW>(b, w); turn++) {
        int which = turn & 1;
        float x[32], keep[2];
        bool live[2];
        if constexpr (HOW ==
                      SKIPS) { /* so that products need no copy of x as the tile before left it */
#pragma unroll
            for (int i = 0; i < 32; i++)
                x[i] = 0;
        }
        multiply_keys(s, x, turn);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mask(b, x, w, m0 + 8 * h, h);
            if constexpr (HOW == SKIPS)
                keep[h] = vote(b, x, sm[h], of[h], w, m0 + 8 * h, h, &live[h]);
            else
                keep[h] = exponentials(x, sm[h], h);
        }
        if constexpr (HOW == SKIPS) {
            uint32_t any = warp_max_u32(live[0] || live[1]);
            if (lane == 0)
                n.live[which][warp] = any;
            warp_arrive(&n.voted[which]);
        }
        uint32_t grown = warp_max_u32(keep[0] != 1 || keep[1] != 1);
        bar_wait(&n.p_free[which], (turn >> 1 & 1) ^ 1);
        uint8_t *p = s.p[which];
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
        if constexpr (HOW == SKIPS)
            votes_end(b, of[h], sm[h], m0 + 8 * h);
        float by = softmax_end(b, sm[h], m0 + 8 * h);
        if (tid == 0)
            n.by[m0 + 8 * h] = by;
    }
    bar_arrive(&n.all_summed);
}

/* ---- Collect ------------------------------------------------------------------------------ */

/* O += P V of a tile; releases its units of V. which: of P. turn: of tiles of values. */
DEV void multiply_values(tiles &s, float (&o)[2][64], int half, int which, int turn)
{
    uint64_t p = operand(shared_at(s.p[which]), 16);
    uint64_t v = operand(shared_at(s.v) + half * (COLUMNS / 64) * V_BLOCK, V_BLOCK);
    hold(o[0]);
    hold(o[1]);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&s.n.v_full[u], turn & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < 2; i++)
            wg_mma_128_v(o[i], p + u * 32 / 16, v + (u * UNIT_BYTES + i * 2 * V_BLOCK) / 16);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&s.n.v_free[u - 1]);
        }
    }
    wg_wait<0>();
    hold(o[0]);
    hold(o[1]);
    warp_arrive(&s.n.v_free[UNITS - 1]);
}

/* Loads O as the slice before left it. */
DEV void load_sums(const block &b, float (&o)[2][64], int m0, int half)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (m0 + 8 * h >= b.n_pairs)
            continue;
        const float *from = sums_of(b, m0 + 8 * h, half * COLUMNS, D);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            float2 x = *(const float2 *)(from + 8 * j);
            o[j / 16][4 * (j % 16) + 2 * h] = x.x;
            o[j / 16][4 * (j % 16) + 2 * h + 1] = x.y;
        }
    }
}

/* Waits for P of the next tile that some pair keeps; false after the last. */
template <how HOW> DEV bool next_tile(const block &b, notes &n, walk &w, int *turn)
{
    while (walk_on<HOW>(b, w)) {
        int which = ++*turn & 1;
        bar_wait(&n.p_full[which], *turn >> 1 & 1);
        if (HOW != SKIPS || any_keeps(n, which))
            return true;
        bar_arrive(&n.p_free[which]);
    }
    return false;
}

template <how HOW> DEV void collect(const block &b, tiles &s, int half)
{
    notes &n = s.n;
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id();
    int m0 = 16 * warp + (lane >> 2);
    float o[2][64]; /* 128 columns each */
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i / 64][i % 64] = 0;
    if (!b.slice.first)
        load_sums(b, o, m0, half);
    walk w = walk_begin(b);
    int turn = -1, v_turn = 0; /* tiles so far; SKIPS: those of values */
    while (next_tile<HOW>(b, n, w, &turn)) {
        int which = turn & 1;
        if (n.grown[which][warp]) { /* rare after the first tiles */
            float k0 = n.keep[which][m0], k1 = n.keep[which][m0 + 8];
#pragma unroll
            for (int i = 0; i < 128; i++)
                o[i / 64][i % 64] *= i & 2 ? k1 : k0;
        }
        multiply_values(s, o, half, which, HOW == SKIPS ? v_turn : turn);
        bar_arrive(&n.p_free[which]);
        v_turn++;
    }
    bar_wait(&n.all_summed, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = m0 + 8 * h;
        if (m >= b.n_pairs)
            continue;
        float by = n.by[m], *to = sums_of(b, m, half * COLUMNS, D);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            const float *x = &o[j / 16][4 * (j % 16) + 2 * h];
            *(float2 *)(to + 8 * j) = make_float2(x[0] * by, x[1] * by);
        }
    }
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 64 pairs x KV head
 * shared: Q, 64 keys, 64 values, P twice: 211 KB
 * bound:  second-level cache, before the tensor cores: 64 products per element read */
template <how HOW>
__global__ void __launch_bounds__(4 * GROUP_THREADS, 1) flash512_hopper_kernel(flash_args x)
{
    DYN_SHARED(uint8_t, mem);
    tiles &s = *(tiles *)(mem + (-shared_at(mem) & 1023));
    uint32_t *list = (uint32_t *)(&s + 1);
    block b = job_of<D, PAIRS, KEYS>(x, s.n.sees, list);
    grid_trigger();
    grid_wait();
    if (threadIdx.x == 0)
        barriers(s.n);
    if constexpr (HOW == LISTED)
        load_list(b, list);
    prepare(b, &s.n.sees, s.q);
    __syncthreads();
    int role = (int)threadIdx.x / GROUP_THREADS;
    if (role == 0) {
        registers_less<FETCH_REGISTERS>();
        fetch<HOW>(b, s);
    } else if (role == 1) {
        registers_more<SCORE_REGISTERS>();
        score<HOW>(b, s);
    } else {
        registers_more<COLLECT_REGISTERS>();
        collect<HOW>(b, s, role - 2);
    }
}

extern "C" int cu_flash512_hopper_init(void)
{
    return allow_shared(flash512_hopper_kernel<DENSE>, SHARED_BYTES) |
           allow_shared(flash512_hopper_kernel<SKIPS>, SHARED_BYTES) |
           allow_shared(flash512_hopper_kernel<LISTED>, with_list(SHARED_BYTES, LIST_WORDS));
}

extern "C" void cu_flash512_hopper(cudaStream_t s, flash_args x)
{
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)x.a.kv.n_head_kv);
    if (x.sparse.kept)
        LAUNCH(flash512_hopper_kernel<LISTED>, grid, dim3(4 * GROUP_THREADS),
               (size_t)with_list(SHARED_BYTES, x.sparse.n_word), s, x);
    else if (x.sparse.skip > 0)
        LAUNCH(flash512_hopper_kernel<SKIPS>, grid, dim3(4 * GROUP_THREADS), SHARED_BYTES, s, x);
    else
        LAUNCH(flash512_hopper_kernel<DENSE>, grid, dim3(4 * GROUP_THREADS), SHARED_BYTES, s, x);
}
