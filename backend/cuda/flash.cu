/* flash.cu - attention of many rows on the f16 tensor cores: heads of 64, 128, 256 and 512, every
 * format but f32.
 *
 *            keys t0 .. t0+63
 *          +------------------+     A tile has 64 pairs (row, query head) of one KV head, from
 *   pairs  |  S = Q K'        |     neighbouring rows. For S the warps divide keys and pairs, for
 *    64    |                  |     P V the columns of V: no value of K or V is read from shared
 *          +------------------+     memory more often than the pairs demand.
 *   O += P V    [pairs, head_dim]
 *
 * The next tile of K is copied from the end of S on, the next tile of V from the end of P V on.
 * In heads of 256 a tile has 32 pairs where a block has 99 KB of shared memory.
 * Formats other than f16 are copied as stored, each row to its final place, and converted to f16
 * there (kv_formats.cuh). Sums, softmax and O are f32; q and the probabilities are rounded to f16.
 *
 * One stream (keys.cuh): the two tiles are this one and the next. The next is copied during this
 * one; its keys are made before its S.
 *
 * LISTED (block selection, sparse.h): the rows of a launch are whole query blocks of one sequence,
 * and a block of threads has pairs of one of them. It walks the two tiles of each listed 128 keys
 * as it walks all tiles otherwise.
 */
#include "backend/cuda/keys.cuh"
#include "backend/cuda/launch_attend.h"
#include "backend/cuda/launch_skip.h"
#include "backend/cuda/lists.cuh"

enum { KEYS = 64, LINE_P = KEYS + 8 };

/* Shapes of a tile: MT times 16 pairs; W warps; in S, WM of them divide the pairs and WN the keys. */
template <int D, bool ONE = false, int MT = 4> struct flash {
    static constexpr int W = D == 64 ? 4 : 8, WM = W / 4, WN = 4;
    static constexpr int M = 16 * MT, MS = MT / WM, LINE = D + 8, COLS = D / W, NT = COLS / 8;
    static constexpr int halves = (M + 2 * KEYS) * LINE + M * LINE_P;
    static constexpr int bytes = halves * 2 + (WN + 3) * M * 4 + 3 * M * 4 +
                                 (ONE ? KEYS * key_shape<D>::LINE * 2 + 4 * D : 0);
};

/* 64 keys or values from t0 on, where `walk` is; zeros outside [from, until). BLOCKS: rows of any
 * size. In f16, where all 64 are wanted and lie side by side, as they almost always do, a copy is
 * one instruction. */
template <int D, bool BLOCKS>
DEV void load_tile(uint16_t *to, const uint8_t *head, int row_bytes, int t0, int from, int until,
                   const key_walk &walk)
{
    if (BLOCKS && D <= 128) { /* rows begin at any multiple of 4 bytes */
        int words = row_bytes / 4;
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < KEYS * words; i += (int)blockDim.x) {
            int t = i / words, w = i - t * words;
            bool ok = t0 + t >= from && t0 + t < until;
            copy4_async((uint8_t *)(to + t * (D + 8)) + 4 * w,
                        head + (size_t)(ok ? key_place(walk, t) : 0) * row_bytes + 4 * w, ok);
        }
        copy_commit();
        return;
    }
    int pieces = BLOCKS ? row_bytes / 16 : D / 8;
    int k = (int)threadIdx.x / pieces, p = (int)threadIdx.x % pieces;
    if (!BLOCKS && t0 >= from && t0 + KEYS <= until && keys_adjoin(walk, KEYS)) {
        constexpr int step = 32 * flash<D>::W / (D / 8);
        const uint8_t *at = head + (size_t)(walk.place[0] + k) * (2 * D) + 16 * p;
#pragma unroll
        for (int i = 0; i < KEYS; i += step)
            copy16_async(to + (k + i) * (D + 8) + 8 * p, at + i * (2 * D), true);
        copy_commit();
        return;
    }
    int step_k = (int)blockDim.x / pieces, step_p = (int)blockDim.x % pieces;
#pragma unroll 1
    while (k < KEYS) {
        int place = key_place(walk, k);
        bool ok = t0 + k >= from && t0 + k < until;
        copy16_async(to + k * (D + 8) + 8 * p, head + (size_t)(ok ? place : 0) * row_bytes + 16 * p,
                     ok);
        k += step_k;
        p += step_p;
        if (BLOCKS && p >= pieces) {
            p -= pieces;
            k++;
        }
    }
    copy_commit();
}

/* ---- A block's work ------------------------------------------------------------------------ */

/* Shared memory of a block. One stream: k and v are exchanged after each tile. */
struct flash_shared {
    uint16_t *q, *k, *v, *p;   /* [M][LINE], [KEYS][LINE] twice, probabilities [M][LINE_P] */
    float *red, *shrink, *top; /* [WN][M]; [M]; [2][M]: largest scores, before and after a tile */
    int *lo, *hi, *row;        /* [M]: the keys that a pair sees, its row */
    float *turns;              /* one stream: of two tiles */
    uint16_t *made;            /* one stream: keys */
    uint32_t *list;            /* LISTED: behind everything else */
};
template <int D, bool ONE, int MT> DEV flash_shared shared_parts(uint16_t *mem)
{
    using F = flash<D, false, MT>;
    flash_shared s;
    s.q = mem, s.k = s.q + F::M * F::LINE, s.v = s.k + KEYS * F::LINE, s.p = s.v + KEYS * F::LINE;
    s.red = (float *)(s.p + F::M * LINE_P), s.shrink = s.red + F::WN * F::M;
    s.top = s.shrink + F::M;
    s.lo = (int *)(s.top + 2 * F::M), s.hi = s.lo + F::M, s.row = s.hi + F::M;
    s.turns = (float *)(s.row + F::M);
    s.made = (uint16_t *)(s.turns + D);
    s.list = (uint32_t *)mem + flash<D, ONE, MT>::bytes / 4;
    return s;
}

/* The pairs of a block: n_pairs from pair0 on, of KV head g. */
struct flash_block {
    int pair0, n_pairs, group, g;
};
/* Rows [r0, r1) of one sequence, and the keys [from, until) that they see. A block of rows of
 * several sequences takes one such run after the other. */
struct row_run {
    int r0, r1, seq, from, until;
};

/* What each pair sees, and queries times scale in f16; zeros for absent pairs. */
template <int D, bool ONE, int MT>
DEV void begin_pairs(const attend_args &a, const flash_shared &s, const flash_block &b)
{
    using F = flash<D, false, MT>;
    constexpr int M = F::M, TURN = key_shape<D>::TURN, threads = 32 * F::W;
    for (int i = (int)threadIdx.x; i < M; i += threads) {
        sight see = {0, 0};
        int r = (b.pair0 + min(i, b.n_pairs - 1)) / b.group;
        if (i < b.n_pairs)
            see = row_sight(a.st.rows, r, a.kv.window);
        s.lo[i] = see.lo;
        s.hi[i] = see.hi;
        s.row[i] = r;
        s.top[i] = -INFINITY;
    }
    constexpr int q_rows = threads / (D / 4);
#pragma unroll 4
    for (int m = (int)threadIdx.x / (D / 4); m < M; m += q_rows) {
        int e = (int)threadIdx.x % (D / 4) * 4, p = b.pair0 + m;
        int r = p / b.group, h = b.g * b.group + p % b.group;
        uint2 u = make_uint2(0, 0);
        if (m < b.n_pairs) {
            float4 v = *(const float4 *)(a.q.at + r * a.q.stride + h * D + e);
            if (ONE && e % (D / 2) >= TURN) { /* still dims have the keys' weight */
                float4 w = *(const float4 *)(a.kv.k_weight + e);
                v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
            }
            u = make_uint2(f32x2_to_f16(v.x * a.scale, v.y * a.scale),
                           f32x2_to_f16(v.z * a.scale, v.w * a.scale));
        }
        *(uint2 *)(s.q + m * F::LINE + e) = u;
    }
}

/* LISTED: the list of this block's pairs. */
DEV void load_list(const listed_args &x, const flash_shared &s, const flash_block &b)
{
    int block = b.pair0 / (LIST_KEYS * b.group);
    const uint32_t *from = x.kept + ((size_t)block * x.a.kv.n_head_kv + b.g) * (size_t)x.n_word;
    for (int i = (int)threadIdx.x; i < x.n_word; i += (int)blockDim.x)
        s.list[i] = from[i];
}
/* The first key of the tile after the one at t; `until` or more after the last. */
template <bool LISTED> DEV int tile_after(const flash_shared &s, int t, int until)
{
    t += KEYS;
    return LISTED && t % LIST_KEYS == 0 ? next_listed(s.list, t, until) : t;
}
/* Goes to the tile at key t, KEYS keys on if all tiles are walked. */
template <bool LISTED> DEV void go_on(key_walk *walk, int t, int until)
{
    if constexpr (LISTED)
        key_walk_to(walk, t, until);
    else
        key_walk_on(walk, KEYS, t, until);
}

/* The run of rows that begins at row r0; `last`: the block's last row. */
DEV row_run run_at(const attend_args &a, const flash_shared &s, const flash_block &b, int r0,
                   int last)
{
    row_run run = {r0, r0, a.st.rows.seq[r0], 0x7fffffff, 0};
    for (; run.r1 <= last && a.st.rows.seq[run.r1] == run.seq; run.r1++) {
        int m = max(run.r1 * b.group - b.pair0, 0);
        run.from = min(run.from, s.lo[m]);
        run.until = max(run.until, s.hi[m]);
    }
    return run;
}

/* ---- A tile -------------------------------------------------------------------------------- */

/* A warp's share: for S, MS times 16 pairs (part wm) and 16 keys (part wn); of a lane's fragments,
 * pairs gid and gid + 8, keys or columns 2 tid and 2 tid + 1. */
struct warp_share {
    int warp, wm, wn, lane, gid, tid;
};

/* One stream: keys of a tile, made of the values in s.k. `second`: of two tiles whose first
 * positions' turns are at hand. */
template <int D, bool BLOCKS>
DEV void make_tile(const attend_args &a, const flash_shared &s, bool second)
{
    constexpr int STEP = flash<D>::W * key_shape<D>::KEYS, LINE = flash<D>::LINE;
    key_maker<D> maker = key_maker_of<D>(a.kv);
    key_tile t = {s.made, s.k, s.turns + second * (D / 2), LINE};
    if (BLOCKS)
        plain_rows<D>(s.k, LINE, (const uint8_t *)s.k, 2 * LINE, KEYS, a.kv);
    make_keys<D, KEYS / STEP, STEP>(
        t, maker, [&](int, int k) { return place_turns<D>(a.kv, maker.e, k & 31); });
}

/* x = Q K' of the warp's pairs and keys. */
template <int D, bool ONE, int MS>
DEV void scores(float (&x)[MS][2][4], const flash_shared &s, const warp_share &w)
{
    constexpr int LINE = flash<D>::LINE, TURN = key_shape<D>::TURN, K_LINE = key_shape<D>::LINE;
    int lane = w.lane;
#pragma unroll
    for (int i = 0; i < MS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[i][j][e] = 0;
    const uint16_t *q = s.q + (w.wm * MS * 16 + (lane & 15)) * LINE + (lane >> 4 << 3);
    int key = w.wn * 16 + (lane & 7) + (lane >> 4 << 3), half = (lane >> 3 & 1) << 3;
    const uint16_t *k = s.k + key * LINE + half, *turning = s.made + key * K_LINE + half;
#pragma unroll 8
    for (int kk = 0; kk < D; kk += 16) {
        uint32_t fa[MS][4], fb[4];
        if (ONE && kk % (D / 2) < TURN)
            ldmatrix4(fb, turning + (kk < D / 2 ? kk : kk - D / 2 + TURN));
        else
            ldmatrix4(fb, k + kk);
#pragma unroll
        for (int i = 0; i < MS; i++) {
            ldmatrix4(fa[i], q + 16 * i * LINE + kk);
            mma_f16(x[i][0], fa[i], fb);
            mma_f16(x[i][1], fa[i], fb + 2);
        }
    }
}

/* Hides what pairs do not see, and leaves the largest score of each pair and 16 keys in s.red. */
template <int D, int MT, int MS>
DEV void hide_scores(float (&x)[MS][2][4], const flash_shared &s, const row_run &run,
                     const warp_share &w, int t0)
{
#pragma unroll
    for (int i = 0; i < MS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = (w.wm * MS + i) * 16 + w.gid + 8 * h, r = s.row[m];
            bool mine = r >= run.r0 && r < run.r1;
            int from_m = s.lo[m], until_m = s.hi[m];
            float best = -INFINITY;
            if (!mine || t0 < from_m || t0 + KEYS > until_m) {
                uint32_t sees = 0;
#pragma unroll 1
                for (int j = 0; j < 4; j++) {
                    int t = t0 + w.wn * 16 + (j >> 1) * 8 + 2 * w.tid + (j & 1);
                    bool in = mine && t >= from_m && t < until_m;
                    sees |= (uint32_t)in << j;
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float *v = &x[i][j >> 1][2 * h + (j & 1)];
                    *v = sees >> j & 1 ? *v : -INFINITY;
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                best = fmaxf(best, x[i][j >> 1][2 * h + (j & 1)]);
            best = fmaxf(best, shfl_xor_f32(best, 1));
            best = fmaxf(best, shfl_xor_f32(best, 2));
            if (w.tid == 0)
                s.red[w.wn * flash<D, false, MT>::M + m] = best;
        }
}

/* Scores to probabilities in s.p, and by what O and the sums shrink. turn: which of s.top's halves
 * has the largest scores so far; the other gets the new ones. */
template <int D, int MT, int MS>
DEV void probabilities(float (&sum)[MS][2], const float (&x)[MS][2][4], const flash_shared &s,
                       const warp_share &w, int turn)
{
    constexpr int M = flash<D, false, MT>::M;
    const float *old = s.top + turn * M, *red = s.red;
    float *now = s.top + (turn ^ 1) * M;
#pragma unroll
    for (int i = 0; i < MS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = (w.wm * MS + i) * 16 + w.gid + 8 * h;
            float was = old[m];
            float best = fmaxf(fmaxf(red[m], red[M + m]), fmaxf(red[2 * M + m], red[3 * M + m]));
            best = fmaxf(best, was);
            float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
            float keep = fast_exp2((was - zero) * 1.4426950408889634f), part_sum = 0;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float u = fast_exp2((x[i][j][2 * h] - zero) * 1.4426950408889634f);
                float v = fast_exp2((x[i][j][2 * h + 1] - zero) * 1.4426950408889634f);
                part_sum += u + v;
                *(uint32_t *)(s.p + m * LINE_P + w.wn * 16 + j * 8 + 2 * w.tid) =
                    f32x2_to_f16(u, v);
            }
            sum[i][h] = sum[i][h] * keep + part_sum;
            if (w.wn == 0 && w.tid == 0) {
                s.shrink[m] = keep;
                now[m] = best;
            }
        }
}

/* O shrinks, then gains P V of the warp's columns; values: s.k where there is one stream. */
template <int D, int MT, int NT>
DEV void add_values(float (&o)[MT][NT][4], const flash_shared &s, const uint16_t *values,
                    const warp_share &w)
{
    constexpr int LINE = flash<D>::LINE;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float keep = s.shrink[16 * i + w.gid + 8 * h];
            if (keep == 1) /* almost always, after the first tiles */
                continue;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                o[i][j][2 * h] *= keep;
                o[i][j][2 * h + 1] *= keep;
            }
        }
    int lane = w.lane;
    const uint16_t *v = values + (lane & 15) * LINE + w.warp * flash<D>::COLS + (lane >> 4 << 3);
    const uint16_t *p = s.p + (lane & 15) * LINE_P + (lane >> 4 << 3);
#pragma unroll 4
    for (int kk = 0; kk < KEYS; kk += 16) {
        uint32_t fa[MT][4];
#pragma unroll
        for (int i = 0; i < MT; i++)
            ldmatrix4(fa[i], p + 16 * i * LINE_P + kk);
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            uint32_t fb[4];
            ldmatrix4_t(fb, v + kk * LINE + j * 8);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                mma_f16(o[i][j], fa[i], fb);
                mma_f16(o[i][j + 1], fa[i], fb + 2);
            }
        }
    }
}

/* O divided by its sums, to the result. */
template <int D, int MT, int MS, int NT>
DEV void leave_rows(const float (&o)[MT][NT][4], const float (&sum)[MS][2], const attend_args &a,
                    const flash_shared &s, const flash_block &b, const warp_share &w)
{
    constexpr int M = flash<D, false, MT>::M;
    float *red = s.red;
#pragma unroll
    for (int i = 0; i < MS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = sum[i][h] + shfl_xor_f32(sum[i][h], 1);
            v += shfl_xor_f32(v, 2);
            if (w.tid == 0)
                red[w.wn * M + (w.wm * MS + i) * 16 + w.gid + 8 * h] = v;
        }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = 16 * i + w.gid + 8 * h, p = b.pair0 + m;
            if (m >= b.n_pairs)
                continue;
            float total = (red[m] + red[M + m]) + (red[2 * M + m] + red[3 * M + m]);
            int r = p / b.group, head = b.g * b.group + p % b.group;
            float *to = a.o.at + r * a.o.stride + head * D, by = 1.0f / total;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int col = w.warp * flash<D>::COLS + j * 8 + 2 * w.tid;
                *(float2 *)(to + col) = make_float2(o[i][j][2 * h] * by, o[i][j][2 * h + 1] * by);
            }
        }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 64 pairs x KV head, the last rows first: they see most keys
 * shared: Q, 64 keys, 64 values, probabilities, in f16: 41 to 213 KB
 * bound:  tensor cores and ldmatrix, about evenly */
template <int D, bool BLOCKS, bool ONE, bool LISTED, int MT>
__global__ void __launch_bounds__(32 * flash<D>::W, D == 64                       ? 3
                                                    : D == 256 && !BLOCKS && !ONE && MT == 4 ? BLOCKS_OF_113K
                                                                                  : 1)
    flash_kernel(listed_args x)
{
    const attend_args &a = x.a;
    using F = flash<D, false, MT>;
    constexpr int MS = F::MS, LINE = F::LINE, NT = F::NT, BLOCKS_D = BLOCKS ? D : 256;
    DYN_SHARED(uint16_t, mem);
    flash_shared s = shared_parts<D, ONE, MT>(mem);
    flash_block b = {(int)(gridDim.x - 1 - blockIdx.x) * F::M, 0, a.n_head / a.kv.n_head_kv,
                     (int)blockIdx.y};
    b.n_pairs = min((int)F::M, a.st.rows.n * b.group - b.pair0);
    int warp = (int)threadIdx.x >> 5, lane = lane_id();
    warp_share w = {warp, warp / F::WN, warp % F::WN, lane, lane >> 2, lane & 3};
    grid_trigger();
    grid_wait();
    begin_pairs<D, ONE, MT>(a, s, b);
    if constexpr (LISTED)
        load_list(x, s, b);

    float o[MT][NT][4], sum[MS][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[i][j][e] = 0;
#pragma unroll
    for (int i = 0; i < MS; i++)
        sum[i][0] = sum[i][1] = 0;
    __syncthreads();

    int turn = 0, last = (b.pair0 + b.n_pairs - 1) / b.group;
    for (int r0 = b.pair0 / b.group; r0 <= last;) {
        row_run run = run_at(a, s, b, r0, last);
        dev_kv_base base = store_of(a.st, run.seq, a.kv);
        int kb = BLOCKS ? a.kv.k_bytes : 2 * D, vb = BLOCKS ? a.kv.v_bytes : 2 * D;
        const uint8_t *hk = head_rows(a.kv, base.k, b.g, kb);
        const uint8_t *hv = head_rows(a.kv, base.v, b.g, vb);
        int first = LISTED ? next_listed(s.list, 0, run.until) : run.from / KEYS * KEYS;
        key_walk walk = key_walk_at(a.kv, base.page, first);
        if (first < run.until) {
            int second = ONE ? tile_after<LISTED>(s, first, run.until) : first;
            load_tile<D, BLOCKS>(s.k, hk, kb, first, run.from, run.until, walk);
            if (ONE)
                go_on<LISTED>(&walk, second, run.until);
            load_tile<D, BLOCKS>(s.v, ONE ? hk : hv, vb, second, run.from, run.until, walk);
        }
        if constexpr (ONE) {
            tile_turns<D>(s.turns, a.kv, base.page, first, run.until, 4);
            copy_wait<1>();
            __syncthreads();
        }
        for (int t0 = first, after; t0 < run.until; t0 = after, turn ^= 1) {
            /* Of two whose turns are at hand. Listed tiles come in twos. */
            bool second = (LISTED ? t0 : t0 - first) / KEYS & 1;
            after = tile_after<LISTED>(s, t0, run.until);
            int next = ONE ? tile_after<LISTED>(s, after, run.until) : after;
            go_on<LISTED>(&walk, next, run.until);
            if constexpr (ONE)
                make_tile<D, BLOCKS>(a, s, second);
            else
                copy_wait<1>();
            __syncthreads();
            if (BLOCKS && !ONE) {
                expand_tile<BLOCKS_D>(s.k, LINE, (const uint8_t *)s.k, 2 * LINE, KEYS, a.kv.k_kind);
                __syncthreads();
            }
            float z[MS][2][4];
            scores<D, ONE>(z, s, w);
            if constexpr (ONE)
                if (second)
                    tile_turns<D>(s.turns, a.kv, base.page, after, run.until, 4);
            hide_scores<D, MT>(z, s, run, w, t0);
            __syncthreads();
            if (!ONE && after < run.until)
                load_tile<D, BLOCKS>(s.k, hk, kb, after, run.from, run.until, walk);
            else if (!ONE)
                copy_commit();
            probabilities<D, MT>(sum, z, s, w, turn);
            if (!ONE)
                copy_wait<1>();
            __syncthreads();
            if (BLOCKS && !ONE) {
                expand_tile<BLOCKS_D>(s.v, LINE, (const uint8_t *)s.v, 2 * LINE, KEYS, a.kv.v_kind);
                __syncthreads();
            }
            add_values<D>(o, s, ONE ? s.k : s.v, w);
            if (ONE)
                copy_wait<0>();
            __syncthreads();
            uint16_t *spent = ONE ? s.k : s.v;
            if (next < run.until)
                load_tile<D, BLOCKS>(spent, ONE ? hk : hv, vb, next, run.from, run.until, walk);
            else
                copy_commit();
            if (ONE)
                s.k = s.v, s.v = spent;
        }
        copy_wait<0>();
        __syncthreads(); /* the next run's first tile of K overwrites what other warps may still
                            read */
        r0 = run.r1;
    }
    leave_rows<D>(o, sum, a, s, b, w);
}

/* Lists are 4 bytes for 4,096 keys. Heads of 512 in one stream leave room for those of 1M keys;
 * such prompts are of GPUs of 9.0, which have kernels of their own. */
template <int D, bool BLOCKS, bool ONE = false, int MT = 4> static int allow(int largest)
{
    int bytes = flash<D, ONE, MT>::bytes, bad = 0;
    int listed = bytes + LIST_WORDS * (int)sizeof(uint32_t);
    if constexpr (D >= 128)
        bad = allow_shared(flash_kernel<D, BLOCKS, ONE, true, MT>, listed < largest ? listed : largest);
    return bad | allow_shared(flash_kernel<D, BLOCKS, ONE, false, MT>, bytes);
}

/* Raises the limits on shared memory. largest: bytes that the GPU grants a block. *widest: the
 * largest head that fits. */
extern "C" int cu_flash_init(int largest, int *widest)
{
    int bad = allow<64, false>(largest) | allow<128, false>(largest) | allow<64, true>(largest) |
              allow<128, true>(largest);
    *widest = 128;
    if (flash<256, true>::bytes <= largest) {
        bad |= allow<256, false>(largest) | allow<256, true>(largest);
        bad |= allow<256, false, true>(largest) | allow<256, true, true>(largest);
        *widest = 256;
    } else if (flash<256, true, 2>::bytes <= largest) {
        bad |= allow<256, false, false, 2>(largest) | allow<256, true, false, 2>(largest);
        bad |= allow<256, false, true, 2>(largest) | allow<256, true, true, 2>(largest);
        *widest = 256;
    }
    if (flash<512, true>::bytes <= largest) {
        bad |= allow<512, false>(largest) | allow<512, true>(largest);
        bad |= allow<512, false, true>(largest) | allow<512, true, true>(largest);
        *widest = 512;
    }
    return bad;
}

template <int D, bool BLOCKS, bool ONE, int MT> static void flash_of(cudaStream_t s, listed_args x)
{
    using F = flash<D, ONE, MT>;
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + F::M - 1) / F::M), (unsigned)x.a.kv.n_head_kv), block(32 * F::W);
    if (D < 128 || !x.kept)
        LAUNCH((flash_kernel<D, BLOCKS, ONE, false, MT>), grid, block, F::bytes, s, x);
    else if constexpr (D >= 128)
        LAUNCH((flash_kernel<D, BLOCKS, ONE, true, MT>), grid, block,
               F::bytes + x.n_word * sizeof(uint32_t), s, x);
}

template <int D, bool ONE = false, int MT = 4> static void flash_any(cudaStream_t s, listed_args x)
{
    if (x.a.kv.k_kind == KV_F16 && x.a.kv.v_kind == KV_F16)
        flash_of<D, false, ONE, MT>(s, x);
    else
        flash_of<D, true, ONE, MT>(s, x);
}
/* Tiles of 64 pairs, or of 32 where a block has 99 KB of shared memory. */
template <bool ONE> static void flash_256(cudaStream_t s, listed_args x)
{
    if (flash<256, true>::bytes <= cu_gpu.shared_block)
        flash_any<256, ONE>(s, x);
    else
        flash_any<256, ONE, 2>(s, x);
}

extern "C" void cu_flash_listed(cudaStream_t s, listed_args x)
{
    bool one = x.a.kv.single;
    switch (x.a.kv.head_dim) {
    case 64:
        flash_any<64>(s, x);
        break;
    case 128:
        flash_any<128>(s, x);
        break;
    case 256:
        one ? flash_256<true>(s, x) : flash_256<false>(s, x);
        break;
    default:
        one ? flash_any<512, true>(s, x) : flash_any<512>(s, x);
    }
}
extern "C" void cu_flash(cudaStream_t s, attend_args a)
{
    cu_flash_listed(s, listed_args{a, NULL, 0});
}
