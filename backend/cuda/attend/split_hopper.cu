/* split_hopper.cu - attention of few rows over f16 on GPUs of compute capability 9.0: two streams
 * in heads of 128, 256 and 512, or one stream in heads of 512.
 *
 *     warpgroup 0          fetch     tiles of 64 keys, as soon as a place is free
 *     warpgroup 1          score     S = Q K', softmax, P in f16; one stream: keys from values
 *     one or two others    collect   O += P V, up to 256 columns each
 *
 *     two streams    STAGES places for tiles of keys, and as many for tiles of values
 *     one stream     two places for tiles, which are keys and values
 *
 * A block has 64 pairs (row, head) of one KV head: all of them share each key that is read. Chunks
 * and partial results are those of split.cu, but a chunk's length depends on its row's keys alone
 * (row_chunk in attend.cuh), which makes partial results few. chunk_walk.cuh says which tiles a
 * block takes. Rows of few keys are left to split.cu.
 *
 * Every instruction has 64 pairs, whatever the number of rows, and a hidden tile changes no bit of
 * a pair. So a row's bits do not depend on the other rows. The warpgroups meet at barriers in
 * shared memory, as in flash512_hopper.cu. One stream (keys.cuh): the still three quarters of a key
 * are multiplied from the values, while the turning quarter is made.
 */
#include "backend/cuda/attend/chunk_walk.cuh"
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    UNITS = 4, /* of a tile of values: 16 keys each */
    UNIT_BYTES = 16 * ROW_BYTES,
    TURN = key_shape<512>::TURN
};
static_assert(TURN == 64, "low and high halves of turning pairs take a block each");
enum { QUERIES_SYNC = 1, KEYS_SYNC = 2 };

/* The streams of a store. */
enum { TWO, ONE };

template <int D, int S> struct shape {
    static constexpr int BLOCKS = D / 64, TILE_BYTES = BLOCKS * BLOCK_BYTES; /* [BLOCKS][64 keys] */
    static constexpr int COLLECTORS = D == 512 ? 2 : 1, COLUMNS = D / COLLECTORS;
    /* Places of tiles of keys, and of values. */
    static constexpr int KEY_STAGES = S == ONE ? 0 : 512 / D, KEY_UNITS = D / 128;
    static constexpr int VALUE_STAGES = S == ONE ? 2 : 512 / D;
    static constexpr int READERS = (1 + COLLECTORS) * GROUP_THREADS; /* prepare queries */
    static constexpr int THREADS = READERS + GROUP_THREADS;
    /* Registers are dealt out by role in heads of 512, where O takes half of them. */
    static constexpr int FETCH = 56, SCORE = 136, COLLECT = 160;
    static_assert(FETCH + SCORE + 2 * COLLECT <= 512, "registers");
};

struct bars {
    uint64_t full, free;
};
template <int D, int S> struct tiles {
    using F = shape<D, S>;
    uint8_t q[F::TILE_BYTES], p[BLOCK_BYTES];
    uint8_t v[F::VALUE_STAGES][F::TILE_BYTES];
    /* One stream: turning dims of keys, [low, high halves][64 keys]. */
    uint8_t k[S == ONE ? 1 : F::KEY_STAGES][S == ONE ? 2 * BLOCK_BYTES : F::TILE_BYTES];
    float turns[S == ONE ? 4 * TURN : 4]; /* one stream: of positions t0 and t0 + 32 */
    bars keys[S == ONE ? 1 : F::KEY_STAGES][UNITS], values[F::VALUE_STAGES][UNITS];
    uint64_t p_full, p_free;
    float keep[PAIRS]; /* the factor of O at the new maximum */
    uint32_t grown[4]; /* per warp: is any `keep` of its 16 pairs other than 1? */
    row_notes rows;
};
template <int D, int S> static constexpr int SHARED_BYTES = sizeof(tiles<D, S>) + 1024;

/* ---- Before the first tile ----------------------------------------------------------------- */

/* By all threads. The step was uploaded before the pass: no wait for the previous kernel. */
template <int D, int S> DEV void begin(const work &b, tiles<D, S> &s)
{
    using F = shape<D, S>;
    int r = (int)threadIdx.x;
    if (r == PAIRS) {
        for (int u = 0; u < UNITS; u++) {
            for (int i = 0; i < F::KEY_STAGES; i++) {
                bar_init(&s.keys[i][u].full, GROUP_THREADS);
                bar_init(&s.keys[i][u].free, 4); /* warps */
            }
            for (int i = 0; i < F::VALUE_STAGES; i++) {
                bar_init(&s.values[i][u].full, GROUP_THREADS);
                bar_init(&s.values[i][u].free, 4 * F::COLLECTORS);
            }
        }
        bar_init(&s.p_full, GROUP_THREADS);
        bar_init(&s.p_free, F::COLLECTORS * GROUP_THREADS);
    }
    if (r < b.n_rows) {
        const dev_rows &rows = b.a.st.rows;
        sight see = row_sight(rows, b.r0 + r, b.a.kv.window);
        s.rows.lo[r] = see.lo;
        s.rows.hi[r] = see.hi;
        s.rows.seq[r] = rows.seq[b.r0 + r];
        s.rows.chunk[r] = see.hi - see.lo > b.parts.shallow ? row_chunk(b.parts, see) : 0;
        s.rows.committed[r] = rows.first[b.r0 + r];
    }
    __syncthreads();
}

/* Queries times scale in f16, [BLOCKS][64 pairs]; zeros for absent pairs. By READERS threads, four
 * columns each. */
template <int D, int S> DEV void store_queries(const work &b, tiles<D, S> &s)
{
    constexpr int STEP = shape<D, S>::READERS / (D / 4);
    const attend_args &a = b.a;
    int i = (int)threadIdx.x - GROUP_THREADS, e = i % (D / 4) * 4;
    uint8_t *to = s.q + e / 64 * BLOCK_BYTES + e % 8 * 2;
    const float *from = a.q.at + b.r0 * a.q.stride + (int)blockIdx.y * b.group * D + e;
    float4 w = make_float4(1, 1, 1, 1);
    if (S == ONE && e % (D / 2) >= TURN) /* still dims have the keys' weight */
        w = *(const float4 *)(a.kv.k_weight + e);
#pragma unroll 8
    for (int m = i / (D / 4); m < PAIRS; m += STEP) {
        int r = m / b.group;
        uint2 u = make_uint2(0, 0);
        if (r < b.n_rows) {
            float4 v = *(const float4 *)(from + r * a.q.stride + (m - r * b.group) * D);
            u = make_uint2(f32x2_to_f16(v.x * w.x * a.scale, v.y * w.y * a.scale),
                           f32x2_to_f16(v.z * w.z * a.scale, v.w * w.w * a.scale));
        }
        *(uint2 *)(to + piece_at(m, e % 64 / 8)) = u;
    }
    tensor_fence();
    some_sync(QUERIES_SYNC, shape<D, S>::READERS);
}

/* ---- Fetch --------------------------------------------------------------------------------- */

/* A thread's share of a tile: piece `thread % 8` of every block of keys thread / 8 + 16 n. at: the
 * place of each key, or -1 for zeros. */
struct tile_place {
    const uint8_t *k, *v;
    int at[4];
};
/* `walk`: at the tile at w.t0, and then at the next one. Tiles of a chunk are neighbours, but those
 * that are a row's own. */
template <int D> DEV void place_on(const work &b, const tile_walk &w, key_walk &walk, tile_place &p)
{
    const dev_kv &kv = b.a.kv;
    int i = (int)threadIdx.x, g = (int)blockIdx.y;
    if (w.fresh) {
        dev_kv_base base = store_of(b.a.st, b.rows.seq[w.of.r0], kv);
        p.k = head_rows(kv, base.k, g, 2 * D) + i % 8 * 16;
        p.v = kv.single ? p.k : head_rows(kv, base.v, g, 2 * D) + i % 8 * 16;
        walk = key_walk_at(kv, base.page, w.t0);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int key = i / 8 + 16 * n, t = w.t0 + key;
        p.at[n] = t < w.from || t >= w.until ? -1
                  : w.own < 0                ? key_place(walk, key)
                              : row_key_place(kv, walk.page, b.a.st.rows, b.r0 + w.own, t);
    }
    key_walk_on(&walk, KEYS, w.t0 + KEYS, w.until);
}

/* Two streams: 128 columns of the keys of a tile. */
template <int D, int S> DEV void fetch_keys(tiles<D, S> &s, const tile_place &p, int unit, int turn)
{
    constexpr int STAGES = shape<D, S>::KEY_STAGES;
    int which = turn % STAGES;
    bar_wait(&s.keys[which][unit].free, (turn / STAGES & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < 4; n++)
        fetch_key<D>(s.k[which] + 2 * unit * BLOCK_BYTES + fetch_offset() + n * UNIT_BYTES, p.k,
                     max(p.at[n], 0), p.at[n] >= 0, 2 * unit, 2, BLOCK_BYTES);
    bar_arrive_copied(&s.keys[which][unit].full);
}

/* 16 values of a tile. */
template <int D, int S>
DEV void fetch_values(tiles<D, S> &s, const tile_place &p, int unit, int turn)
{
    using F = shape<D, S>;
    int which = turn % F::VALUE_STAGES;
    bars &bar = s.values[which][unit];
    bar_wait(&bar.free, (turn / F::VALUE_STAGES & 1) ^ 1);
    fetch_key<D>(s.v[which] + fetch_offset() + unit * UNIT_BYTES, p.v, max(p.at[unit], 0),
                 p.at[unit] >= 0, 0, F::BLOCKS, BLOCK_BYTES);
    bar_arrive_copied(&bar.full);
}

/* Keys of earlier passes are requested at once, keys of this pass after the previous kernel, which
 * stores them. */
DEV void await_keys(const work &b, const tile_walk &w, bool &waited)
{
    if (waited || min(w.t0 + KEYS, w.until) <= b.rows.committed[w.of.r0])
        return;
    grid_wait();
    waited = true;
}

template <int D, int S> DEV void fetch(const work &b, tiles<D, S> &s)
{
    tile_walk w = walk_begin(b);
    key_walk walk;
    tile_place now = {}, next = {};
    bool waited = false;
    if constexpr (S == ONE) {
        for (int turn = 0; walk_on(b, w); turn++) {
            place_on<D>(b, w, walk, now);
            await_keys(b, w, waited);
#pragma unroll
            for (int u = 0; u < UNITS; u++)
                fetch_values(s, now, u, turn);
        }
    } else {
        constexpr int KEY_UNITS = shape<D, S>::KEY_UNITS, EACH = UNITS / KEY_UNITS;
        bool more = walk_on(b, w);
        if (more) {
            place_on<D>(b, w, walk, next);
            await_keys(b, w, waited);
#pragma unroll
            for (int u = 0; u < KEY_UNITS; u++)
                fetch_keys(s, next, u, 0);
        }
        for (int turn = 0; more; turn++) {
            now = next;
            more = walk_on(b, w);
            if (more) {
                place_on<D>(b, w, walk, next);
                await_keys(b, w, waited);
            }
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                if (more && u % EACH == 0)
                    fetch_keys(s, next, u / EACH, turn + 1);
                fetch_values(s, now, u, turn);
            }
        }
    }
    if (!waited)
        grid_wait(); /* the next kernel relies on it */
    copy_commit();
    copy_wait<0>();
}

/* ---- Score --------------------------------------------------------------------------------- */

/* x (+)= Q K' of the block of 64 dims whose keys lie at k. */
DEV void score_block(float (&x)[32], uint64_t q, uint64_t k, bool sum)
{
#pragma unroll
    for (int i = 0; i < 4; i++) /* 16 dims: 32 of a row's 128 bytes */
        wg_mma_64(x, q + i * 2, k + i * 2, sum || i > 0);
}

/* S of a tile of two streams; releases its keys. */
template <int D, int S> DEV void multiply_keys(tiles<D, S> &s, float (&x)[32], int turn)
{
    using F = shape<D, S>;
    int which = turn % F::KEY_STAGES;
    bars *keys = s.keys[which];
    uint64_t q = operand(shared_at(s.q), 16), k = operand(shared_at(s.k[which]), 16);
    hold(x);
#pragma unroll
    for (int u = 0; u < F::KEY_UNITS; u++) {
        bar_wait(&keys[u].full, turn / F::KEY_STAGES & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int j = 2 * u; j < 2 * u + 2; j++)
            score_block(x, q + j * BLOCK_BYTES / 16, k + j * BLOCK_BYTES / 16, j > 0);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&keys[u - 1].free);
        }
    }
    wg_wait<0>();
    hold(x);
    warp_arrive(&keys[F::KEY_UNITS - 1].free);
}

/* A thread's constants for making keys: pairs 2e and 2e + 1 of keys warp, warp + 4, .. */
struct key_parts {
    key_maker<512> maker;
    float4 place[8]; /* of 32 places */
};
DEV void begin_keys(key_parts &k, const dev_kv &kv)
{
    int warp = (int)(threadIdx.x >> 5) & 3;
    k.maker = key_maker_of<512>(kv);
#pragma unroll
    for (int j = 0; j < 8; j++)
        k.place[j] = place_turns<512>(kv, k.maker.e, warp + 4 * j);
}
/* The turning dims of a tile's keys, made of its values. By the scoring warpgroup. */
DEV void make_tile(tiles<512, ONE> &s, const key_parts &k, const uint8_t *tile)
{
    int warp = (int)(threadIdx.x >> 5) & 3, e = k.maker.e;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        int key = warp + 4 * j, at = piece_at(key, e / 4) + e % 4 * 4;
        float4 base = *(const float4 *)(s.turns + (j / 8 * TURN + 2 * e) * 2);
        uint2 u = make_uint2(*(const uint32_t *)(tile + at),
                             *(const uint32_t *)(tile + 4 * BLOCK_BYTES + at));
        uint2 made = turned_pairs(u, k.maker, turns_add(base, k.place[j % 8]));
        *(uint32_t *)(s.k[0] + at) = made.x;
        *(uint32_t *)(s.k[0] + BLOCK_BYTES + at) = made.y;
    }
}

/* S of a tile of one stream, whose first key has position pos0. The still dims are multiplied while
 * the others are made. */
DEV void multiply_made(tiles<512, ONE> &s, const dev_kv &kv, const key_parts &keys, float (&x)[32],
                       int pos0, int turn)
{
    constexpr int BLOCKS = shape<512, ONE>::BLOCKS;
    const uint8_t *tile = s.v[turn & 1];
    uint64_t q = operand(shared_at(s.q), 16), u = operand(shared_at(tile), 16);
    uint64_t made = operand(shared_at(s.k[0]), 16);
#pragma unroll
    for (int i = 0; i < UNITS; i++)
        bar_wait(&s.values[turn & 1][i].full, turn >> 1 & 1);
    tensor_fence();
    hold(x);
    wg_fence();
#pragma unroll
    for (int j = 0; j < BLOCKS; j++)
        if (j % (BLOCKS / 2))
            score_block(x, q + j * BLOCK_BYTES / 16, u + j * BLOCK_BYTES / 16, j > 1);
    wg_commit();
    int i = (int)threadIdx.x % GROUP_THREADS;
    float sn, cs;
    turn_of(pos0 + i / TURN * 32, kv.inv_freq[i % TURN], &sn, &cs);
    *(float2 *)(s.turns + 2 * i) = make_float2(cs, sn);
    some_sync(KEYS_SYNC, GROUP_THREADS); /* turns are there; the keys made before have been read */
    make_tile(s, keys, tile);
    tensor_fence();
    some_sync(KEYS_SYNC, GROUP_THREADS);
    wg_fence();
    score_block(x, q, made, true);
    score_block(x, q + BLOCKS / 2 * BLOCK_BYTES / 16, made + BLOCK_BYTES / 16, true);
    wg_commit();
    wg_wait<0>();
    hold(x);
}

/* Minus infinity for keys that pair m, the thread's upper (h 0) or lower (h 1) one, does not see.
 */
DEV void hide(const work &b, float (&s)[32], const tile_walk &w, int m, int h)
{
    int r = m / b.group, lo = 0, hi = 0;
    if (r >= b.n_rows)
        return; /* the tile is not full: the result of this pair is not read */
    if (takes_part(b, w.of, r) && (w.own < 0 || w.own == r))
        lo = max(w.from, b.rows.lo[r]), hi = min(w.until, b.rows.hi[r]);
    if (w.t0 >= lo && w.t0 + KEYS <= hi)
        return;
    if (w.t0 >= hi || w.t0 + KEYS <= lo) {
#pragma unroll
        for (int j = 0; j < 16; j++)
            s[j / 2 * 4 + 2 * h + j % 2] = -INFINITY;
        return;
    }
    uint32_t sees = 0;
#pragma unroll 1
    for (int j = 0; j < 16; j++) {
        int t = w.t0 + j / 2 * 8 + lane_id() % 4 * 2 + j % 2;
        sees |= (uint32_t)(t >= lo && t < hi) << j;
    }
#pragma unroll
    for (int j = 0; j < 16; j++) {
        float &x = s[j / 2 * 4 + 2 * h + j % 2];
        x = sees >> j & 1 ? x : -INFINITY;
    }
}

/* The largest score and the sum of a chunk, to its part. */
template <int D> DEV void leave_sums(const work &b, const row_chunks &of, softmax (&sm)[2], int m0)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = whole_sum(sm[h]), *to = pair_part(b, of, m0 + 8 * h);
        if (to && (lane_id() & 3) == 0)
            *(float2 *)(to + D) = make_float2(sm[h].top, sum);
        sm[h] = softmax{-INFINITY, 0};
    }
}

template <int D, int S> DEV void score(const work &b, tiles<D, S> &s)
{
    int warp = (int)(threadIdx.x >> 5) & 3, lane = lane_id(), tid = lane & 3;
    int m0 = 16 * warp + (lane >> 2);
    softmax sm[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    key_parts keys;
    if constexpr (S == ONE)
        begin_keys(keys, b.a.kv);
    tile_walk w = walk_begin(b);
    for (int turn = 0;; turn++) {
        row_chunks before = w.of;
        bool more = walk_on(b, w);
        if (turn && (!more || w.fresh))
            leave_sums<D>(b, before, sm, m0);
        if (!more)
            break;
        float x[32], keep[2];
        if constexpr (S == ONE) { /* the position is here before the tile's values are */
            dev_kv_base base = store_of(b.a.st, b.rows.seq[w.of.r0], b.a.kv);
            multiply_made(s, b.a.kv, keys, x, key_pos(base.page, w.t0), turn);
        } else
            multiply_keys(s, x, turn);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            hide(b, x, w, m0 + 8 * h, h);
            keep[h] = exponentials(x, sm[h], h);
        }
        uint32_t grown = warp_max_u32(keep[0] != 1 || keep[1] != 1);
        bar_wait(&s.p_free, (turn & 1) ^ 1);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = m0 + 8 * h;
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(uint32_t *)(s.p + piece_at(m, j) + 4 * tid) =
                    f32x2_to_f16(x[4 * j + 2 * h], x[4 * j + 2 * h + 1]);
            if (tid == 0)
                s.keep[m] = keep[h];
        }
        if (lane == 0)
            s.grown[warp] = grown;
        tensor_fence();
        bar_arrive(&s.p_full);
    }
}

/* ---- Collect ------------------------------------------------------------------------------- */

/* O += P V of a tile, the part-th COLUMNS of it; releases its values. */
template <int D, int S, int N>
DEV void multiply_values(tiles<D, S> &s, float (&o)[N][64], int part, int turn)
{
    using F = shape<D, S>;
    int which = turn % F::VALUE_STAGES;
    bars *values = s.values[which];
    uint64_t p = operand(shared_at(s.p), 16);
    uint64_t v = operand(shared_at(s.v[which]) + part * F::COLUMNS / 64 * BLOCK_BYTES, BLOCK_BYTES);
#pragma unroll
    for (int i = 0; i < N; i++)
        hold(o[i]);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&values[u].full, turn / F::VALUE_STAGES & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < N; i++)
            wg_mma_128_v(o[i], p + u * 32 / 16, v + (u * UNIT_BYTES + i * 2 * BLOCK_BYTES) / 16);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&values[u - 1].free);
        }
    }
    wg_wait<0>();
#pragma unroll
    for (int i = 0; i < N; i++)
        hold(o[i]);
    warp_arrive(&values[UNITS - 1].free);
}

/* Columns of O from `column` on of a chunk, to its parts. */
template <int N>
DEV void leave_columns(const work &b, const row_chunks &of, const float (&o)[N][64], int m0,
                       int column)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = pair_part(b, of, m0 + 8 * h);
        if (!to)
            continue;
        to += column + 2 * (lane_id() & 3);
#pragma unroll
        for (int j = 0; j < 16 * N; j++) {
            const float *x = &o[j / 16][4 * (j % 16) + 2 * h];
            *(float2 *)(to + 8 * j) = make_float2(x[0], x[1]);
        }
    }
}

template <int D, int S> DEV void collect(const work &b, tiles<D, S> &s, int part)
{
    constexpr int COLUMNS = shape<D, S>::COLUMNS, N = COLUMNS / 128;
    int warp = (int)(threadIdx.x >> 5) & 3, m0 = 16 * warp + (lane_id() >> 2);
    float o[N][64]; /* 128 columns each */
#pragma unroll
    for (int i = 0; i < 64 * N; i++)
        o[i / 64][i % 64] = 0;
    tile_walk w = walk_begin(b);
    for (int turn = 0;; turn++) {
        row_chunks before = w.of;
        bool more = walk_on(b, w);
        if (turn && (!more || w.fresh))
            leave_columns(b, before, o, m0, part * COLUMNS);
        if (!more)
            break;
        bar_wait(&s.p_full, turn & 1);
        if (w.fresh || s.grown[warp]) { /* growing is rare after a chunk's first tiles */
            float k0 = w.fresh ? 0 : s.keep[m0], k1 = w.fresh ? 0 : s.keep[m0 + 8];
#pragma unroll
            for (int i = 0; i < 64 * N; i++)
                o[i / 64][i % 64] *= i & 2 ? k1 : k0;
        }
        multiply_values(s, o, part, turn);
        bar_arrive(&s.p_free);
    }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g], in parts
 * grid:   rows with 64 pairs x KV head x blocks that deal the chunks out among themselves
 * shared: Q, tiles of 64 keys and values, P: 153 to 221 KB
 * bound:  reading K and V */
template <int D, int S>
__global__ void __launch_bounds__(shape<D, S>::THREADS, 1) split_hopper_kernel(wgmma_args x)
{
    using F = shape<D, S>;
    constexpr bool DEALT = D == 512; /* registers are dealt out by role */
    DYN_SHARED(uint8_t, mem);
    tiles<D, S> &s = *(tiles<D, S> *)(mem + (-shared_at(mem) & 1023));
    int r0 = (int)blockIdx.x * x.tile_rows;
    work b = {x.a,
              x.parts,
              s.rows,
              x.parts.row0 + r0,
              min(x.tile_rows, x.parts.n_rows - r0),
              x.a.n_head / x.a.kv.n_head_kv,
              (int)blockIdx.z,
              (int)gridDim.z,
              x.a.st.rows.seen != NULL};
    grid_trigger();
    begin(b, s);
    int role = (int)threadIdx.x / GROUP_THREADS;
    if (role == 0) {
        if constexpr (DEALT)
            registers_less<F::FETCH>();
        fetch(b, s);
    } else if (role == 1) {
        if constexpr (DEALT)
            registers_more<F::SCORE>();
        grid_wait();
        store_queries(b, s);
        score(b, s);
    } else {
        if constexpr (DEALT)
            registers_more<F::COLLECT>();
        grid_wait();
        store_queries(b, s);
        collect(b, s, role - 2);
    }
}

template <int D, int S> static int allow()
{
    return allow_shared(split_hopper_kernel<D, S>, SHARED_BYTES<D, S>);
}
extern "C" int cu_split_hopper_init(void)
{
    return allow<128, TWO>() | allow<256, TWO>() | allow<512, TWO>() | allow<512, ONE>();
}

template <int D, int S> static void launch_of(cudaStream_t s, const wgmma_args &x)
{
    dim3 grid((unsigned)((x.parts.n_rows + x.tile_rows - 1) / x.tile_rows),
              (unsigned)x.a.kv.n_head_kv, (unsigned)x.n_block);
    dim3 block(shape<D, S>::THREADS);
    LAUNCH((split_hopper_kernel<D, S>), grid, block, (SHARED_BYTES<D, S>), s, x);
}

extern "C" void cu_split_hopper(cudaStream_t s, wgmma_args x)
{
    const dev_kv &kv = x.a.kv;
    if (kv.head_dim == 128)
        launch_of<128, TWO>(s, x);
    else if (kv.head_dim == 256)
        launch_of<256, TWO>(s, x);
    else
        kv.single ? launch_of<512, ONE>(s, x) : launch_of<512, TWO>(s, x);
}
