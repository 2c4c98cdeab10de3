/* flash512_hopper.cu - attention of many rows over f16 keys and values in heads of 512, on GPUs of
 * compute capability 9.0. The store is read in place, or as slices that expand.cu makes of it.
 *
 *     warpgroup 0      fetch     keys and values, in units of 16 KB, as soon as a place is free
 *     warpgroup 1      score     S = Q K', softmax, P in f16, of all 64 keys
 *     warpgroups 2, 3  collect   O += P V, 256 columns each: O takes half of all registers
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
#include "backend/cuda/attend/flash512.cuh"

enum {
    V_UNIT_BYTES = D / 64 * V_BLOCK,
    COLUMNS = 256, /* of a collecting warpgroup */
    FETCH_REGISTERS = 40,
    SCORE_REGISTERS = 136,
    COLLECT_REGISTERS = 168,
};
static_assert(FETCH_REGISTERS + SCORE_REGISTERS + 2 * COLLECT_REGISTERS <= 512, "registers");
static_assert(FETCH_REGISTERS <= 128 && SCORE_REGISTERS >= 128, "of 128 at entry");

/* Barriers and votes that the warpgroups share. */
struct notes {
    uint64_t k_full[UNITS], k_free[UNITS], v_full[UNITS], v_free[UNITS];
    uint64_t voted[2];
    uint32_t live[2][4]; /* SKIPS, per warp: does any of its 16 pairs keep the tile? */
    sights<PAIRS> sees;
};
struct tiles {
    uint8_t q[D / 64 * BLOCK_BYTES], k[UNITS][K_UNIT_BYTES], v[UNITS][V_UNIT_BYTES];
    probabilities p;
    notes n;
};
enum { SHARED_BYTES = sizeof(tiles) + 1024 }; /* tiles begin at a multiple of 1024 */

DEV void barriers(tiles &s)
{
    notes &n = s.n;
    for (int u = 0; u < UNITS; u++) {
        bar_init(&n.k_full[u], GROUP_THREADS);
        bar_init(&n.v_full[u], GROUP_THREADS);
        bar_init(&n.k_free[u], 4); /* warps */
        bar_init(&n.v_free[u], 8);
    }
    for (int i = 0; i < 2; i++)
        bar_init(&n.voted[i], 4); /* warps */
    s.p.init(2 * GROUP_THREADS);
}

/* ---- Fetch -------------------------------------------------------------------------------- */

DEV void fetch_keys(const block &b, tiles &s, const spot &p, int unit, int turn)
{
    bar_wait(&s.n.k_free[unit], (turn & 1) ^ 1);
    fetch_key_unit(b, s.k[unit], p, unit);
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

template <how HOW> DEV void score(const block &b, tiles &s)
{
    notes &n = s.n;
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id(), m0 = 16 * warp + (lane >> 2);
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
        multiply_key_units(s.q, s.k, n.k_full, n.k_free, x, turn);
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
        s.p.put(x, keep, m0, turn);
    }
    if constexpr (HOW == SKIPS)
        votes_end(b, of[0], sm[0], m0), votes_end(b, of[1], sm[1], m0 + 8);
    s.p.end(b, sm, m0);
}

/* ---- Collect ------------------------------------------------------------------------------ */

/* O += P V of a tile; releases its units of V. which: of P. turn: of tiles of values. */
DEV void multiply_values(tiles &s, float (&o)[2][64], int half, int which, int turn)
{
    uint64_t p = operand(shared_at(s.p.p[which]), 16);
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
            wg_mma_128_v(o[i], p + u * 32 / 16, v + (u * V_UNIT_BYTES + i * 2 * V_BLOCK) / 16);
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
template <how HOW> DEV bool next_tile(const block &b, tiles &s, walk &w, int *turn)
{
    while (walk_on<HOW>(b, w)) {
        int which = ++*turn & 1;
        bar_wait(&s.p.full[which], *turn >> 1 & 1);
        if (HOW != SKIPS || any_keeps(s.n, which))
            return true;
        bar_arrive(&s.p.free[which]);
    }
    return false;
}

template <how HOW> DEV void collect(const block &b, tiles &s, int half)
{
    int m0 = 16 * ((int)(threadIdx.x >> 5) & 3) + (lane_id() >> 2);
    float o[2][64]; /* 128 columns each */
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i / 64][i % 64] = 0;
    if (!b.slice.first)
        load_sums(b, o, m0, half);
    walk w = walk_begin(b);
    int turn = -1, v_turn = 0; /* tiles so far; SKIPS: those of values */
    while (next_tile<HOW>(b, s, w, &turn)) {
        int which = turn & 1;
        s.p.rescale(o, which, m0);
        multiply_values(s, o, half, which, HOW == SKIPS ? v_turn : turn);
        bar_arrive(&s.p.free[which]);
        v_turn++;
    }
    s.p.store(b, o, m0, half * COLUMNS);
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
        barriers(s);
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
