/* split.cu - attention of few rows on the f16 tensor cores: heads of 64, 128, 256 and 512
 * over every format but f32.
 *
 *     keys  |.......|xxxxxxx|xxxxxxx|xxxxxxx|xxxxxxx|xxxx...|     chunks of a fixed size at fixed
 *            first ..^       block b ------->        ^.. end      indices; a block takes a run of
 *                                                                 them, one KV head, and up to 16
 *     pairs (row, head) of that KV head: the heads of one row, or of as many rows of one sequence
 *     as there is room for, since they meet the same keys.
 *
 * A block walks its run in tiles of 32 keys without stopping at chunks: it only leaves a partial
 * result at each chunk's end and starts the next with a clean state. So chunks decide what is
 * added to what, and how they are dealt to blocks does not: a row's result depends neither on the
 * grid nor on the rows beside it. combine_kernel (attend.cu) joins a row's chunks.
 *
 *     turn i    S of tile i, P V of tile i - 1   |   softmax of tile i
 *
 * with a barrier after each half, so the tensor cores' latency hides behind twice the work. Tiles
 * of keys i and values i - 1 come together, by asynchronous copies two or three turns ahead; what
 * earlier passes wrote is asked for before the kernel before this one has ended. Sums, softmax and
 * O are f32; q and the probabilities are f16.
 *
 * Other formats than f16 lie in shared memory as they are stored, and become f16 in the registers
 * of the lane that multiplies them, 8 neighbours at a time (kv_piece). For that, inner dimensions
 * are met in another order: lane (g, t) of a fragment has elements 8t .. 8t + 7 of every 32 of key
 * g, and for values, columns 8g .. 8g + 7 of keys 2t, 2t + 1, 2t + 8, 2t + 9, one to each product
 * of eight.
 *
 * One stream (keys.cuh): a tile is copied once. It is what keys are made of in turn i - 1, keys in
 * turn i and values in turn i + 1, in f16, which other formats become once, in turn i - 1:
 *
 *     turn i    S of tile i, P V of tile i - 1   |   softmax of tile i, keys of tile i + 1
 *
 * Queries then stay in registers: half of what would be read from shared memory per byte of cache.
 */
#include "backend/cuda/keys.cuh"

enum { KEYS = 32, M = SPLIT_PAIRS, LINE_S = KEYS + 8, LINE_P = KEYS + 8 };

/* Do formats other than f16 become it in the registers that multiply them? In small heads a tile of
 * them is made f16 in shared memory, where the tiles of one stream are, too. */
template <int D, bool BLOCKS, bool ONE>
static constexpr bool in_registers = BLOCKS && !ONE && D > 128;

/* W warps: for S four groups of 8 keys times parts of the head's length; for P V columns. */
template <int D, bool BLOCKS> struct split_shape {
    static constexpr int W = D <= 128 ? 4 : D / (BLOCKS ? 64 : 32), PARTS = W / 4, COLS = D / W;
    static constexpr int NT = COLS / 8, ROWS = M / W; /* ROWS: of S that a warp's softmax has */
    static constexpr int LINE_Q = D + (BLOCKS ? 32 : 8);
    static constexpr int fixed =
        M * (LINE_Q + LINE_P) * 2 + PARTS * M * LINE_S * 4 + M * 3 * (int)sizeof(int);
};
/* One stream, beside `fixed`: the turns of TURNS tiles. The keys that are made lie where q was. */
enum { TURNS = 8, BUFFERS_MORE = 2 };
/* Bytes of shared memory: stages of keys and values, whose rows are `line` bytes apart. One stream:
 * as many tiles, of which blocks have BUFFERS_MORE in f16; small heads of blocks have those beside.
 */
template <int D, bool BLOCKS, bool ONE = false>
static constexpr int split_bytes(int stages, int line)
{
    constexpr bool REGISTERS = in_registers<D, BLOCKS, ONE>;
    int in_f16 = BLOCKS && !REGISTERS ? BUFFERS_MORE * KEYS * (2 * D + 16) : 0;
    int as_stored = (2 * stages - (ONE && BLOCKS ? BUFFERS_MORE : 0)) * KEYS * line;
    return split_shape<D, REGISTERS>::fixed + (ONE ? TURNS * D : 0) + in_f16 + as_stored;
}

/* A store's rows of one KV head, and the next tile to be copied. */
struct tile_source {
    const uint8_t *head;
    int row_bytes;
    key_walk next;
};

/* Rows t0 .. t0 + 31, each by a warp; outside [from, until) some row inside stands in, which is
 * finite and counts for nothing. */
template <int D, bool BLOCKS, int W>
DEV void copy_tile(uint8_t *to, int line, tile_source *s, int t0, int from, int until)
{
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), bytes = BLOCKS ? s->row_bytes : 2 * D;
    to += warp * line + 16 * lane;
#pragma unroll
    for (int i = 0; i < KEYS / W; i++) {
        int k = warp + i * W;
        k = min(max(k, from - t0), until - 1 - t0);
        int place = key_place(s->next, k);
        if (BLOCKS && D <= 128) { /* rows that may begin at any word */
            const uint8_t *from_row = s->head + (size_t)place * bytes;
            for (int j = 4 * lane; j < bytes; j += 128)
                copy4_async(to + i * W * line - 16 * lane + j, from_row + j, true);
            continue;
        }
        const uint8_t *row = s->head + (size_t)place * bytes + 16 * lane;
#pragma unroll
        for (int j = 0; j < D / 8; j += 32)
            if ((D >= 256 && !BLOCKS) || 16 * (lane + j) < bytes)
                copy16_async(to + i * W * line + 16 * j, row + 16 * j, true);
    }
    key_walk_on(&s->next, KEYS);
}

/* ---- Tiles on the tensor cores ------------------------------------------------------------- */

/* Where a warp's share of a tile begins. */
struct share {
    const uint16_t *q; /* queries, [16][LINE_Q]; one stream: made keys */
    const uint8_t *k, *v;
    const uint16_t *p; /* probabilities, [16][LINE_P] */
    int line, warp;
};

/* s: 16 pairs x 8 keys, summed over the warp's part of the head. Even and odd steps of 16 have sums
 * of their own: half the latency. */
template <int D> DEV void scores(float *s, const share &w)
{
    using F = split_shape<D, false>;
    int lane = lane_id(), col = w.warp / 4 * (D / F::PARTS), keys = w.warp % 4 * 8;
    float s1[4] = {0, 0, 0, 0};
    const uint16_t *q = w.q + (lane & 15) * F::LINE_Q + (lane >> 4 << 3) + col;
    const uint16_t *k =
        (const uint16_t *)(w.k + (keys + (lane & 7)) * w.line) + (lane >> 3 << 3) + col;
#pragma unroll 4
    for (int kk = 0; kk < D / F::PARTS; kk += 32) {
        uint32_t fa[4], fb[4];
        ldmatrix4(fb, k + kk);
        ldmatrix4(fa, q + kk);
        mma_f16(s, fa, fb);
        ldmatrix4(fa, q + kk + 16);
        mma_f16(s1, fa, fb + 2);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += s1[i];
}
template <int D, int KIND> DEV void scores_as(float *s, const share &w)
{
    using F = split_shape<D, true>;
    int lane = lane_id(), g = lane >> 2, t = lane & 3;
    int col = w.warp / 4 * (D / F::PARTS), keys = w.warp % 4 * 8;
    float s1[4] = {0, 0, 0, 0};
    const uint16_t *q = w.q + g * F::LINE_Q + col + 8 * t;
    const uint8_t *k = w.k + (keys + g) * w.line;
#pragma unroll 4
    for (int kk = 0; kk < D / F::PARTS; kk += 32) {
        uint4 x = kv_piece<KIND>(k, (col + kk) / 8 + t);
        uint4 y = *(const uint4 *)(q + kk), z = *(const uint4 *)(q + 8 * F::LINE_Q + kk);
        uint32_t fa[4] = {y.x, z.x, y.y, z.y}, fb[2] = {x.x, x.y};
        uint32_t ga[4] = {y.z, z.z, y.w, z.w}, gb[2] = {x.z, x.w};
        mma_f16(s, fa, fb);
        mma_f16(s1, ga, gb);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += s1[i];
}

/* One stream: dims that stand still, then the warp's part of those that were made; the queries of
 * both in q, 16 dims each. */
enum { ONE_STEPS = 8, ONE_STILL = 96 };
template <int D> DEV int still_from(int part)
{
    constexpr int half = split_shape<D, false>::PARTS / 2;
    return part / half * (D / 2) + key_shape<D>::TURN + part % half * ONE_STILL;
}
template <int D> DEV void load_queries(uint32_t (*q)[4], const uint16_t *sq, int warp)
{
    constexpr int TURN = key_shape<D>::TURN, L = split_shape<D, false>::LINE_Q;
    int lane = lane_id(), part = warp / 4, col = still_from<D>(part), turning = 32 * part;
    turning += turning < TURN ? 0 : D / 2 - TURN;
    sq += (lane & 15) * L + (lane >> 4 << 3);
#pragma unroll
    for (int i = 0; i < ONE_STEPS; i++)
        ldmatrix4(q[i], sq + (i < 6 ? col + 16 * i : turning + 16 * (i - 6)));
}
template <int D> DEV void scores_one(float *s, const uint32_t (*q)[4], const share &w)
{
    int lane = lane_id(), part = w.warp / 4, key = w.warp % 4 * 8 + (lane & 7);
    float s1[4] = {0, 0, 0, 0};
    const uint16_t *u = (const uint16_t *)(w.k + key * w.line) + still_from<D>(part);
    const uint16_t *made = w.q + key * key_shape<D>::LINE + 32 * part;
#pragma unroll
    for (int i = 0; i < ONE_STEPS; i += 2) {
        uint32_t fb[4];
        ldmatrix4(fb, (i < 6 ? u + 16 * i : made) + (lane >> 3 << 3));
        mma_f16(s, q[i], fb);
        mma_f16(s1, q[i + 1], fb + 2);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] += s1[i];
}

/* o += P V for the warp's columns. */
template <int D> DEV void sums(float (*o)[4], const share &w)
{
    using F = split_shape<D, false>;
    int lane = lane_id();
    const uint8_t *v = w.v + (lane & 15) * w.line + 2 * (w.warp * F::COLS + (lane >> 4 << 3));
    const uint16_t *p = w.p + (lane & 15) * LINE_P + (lane >> 4 << 3);
#pragma unroll
    for (int kk = 0; kk < KEYS; kk += 16) {
        uint32_t fa[4];
        ldmatrix4(fa, p + kk);
#pragma unroll
        for (int j = 0; j < F::NT; j += 2) {
            uint32_t fb[4];
            ldmatrix4_t(fb, v + kk * w.line + 16 * j);
            mma_f16(o[j], fa, fb);
            mma_f16(o[j + 1], fa, fb + 2);
        }
    }
}
template <int D, int KIND> DEV void sums_as(float (*o)[4], const share &w)
{
    int lane = lane_id(), e = w.warp * 8 + (lane >> 2);
    const uint8_t *v = w.v + 2 * (lane & 3) * w.line;
    const uint16_t *p = w.p + (lane & 15) * LINE_P + (lane >> 4 << 3);
#pragma unroll
    for (int kk = 0; kk < KEYS; kk += 16, v += 16 * w.line) {
        uint32_t fa[4];
        ldmatrix4(fa, p + kk);
        uint4 a = kv_piece<KIND>(v, e), b = kv_piece<KIND>(v + w.line, e);
        uint4 c = kv_piece<KIND>(v + 8 * w.line, e), d = kv_piece<KIND>(v + 9 * w.line, e);
        uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
        uint32_t z[4] = {c.x, c.y, c.z, c.w}, u[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t sel = j & 1 ? 0x7632 : 0x5410;
            uint32_t fb[2] = {pick_bytes(x[j / 2], y[j / 2], sel),
                              pick_bytes(z[j / 2], u[j / 2], sel)};
            mma_f16(o[j], fa, fb);
        }
    }
}

template <int D> DEV void scores_any(float *s, const share &w, int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        scores_as<D, k>(s, w);                                                                     \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}
template <int D> DEV void sums_any(float (*o)[4], const share &w, int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        sums_as<D, k>(o, w);                                                                       \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

/* One stream: what a lane keeps of queries and of the keys it makes. */
template <int D> struct one_lane {
    key_maker<D> maker;
    float4 place[2];
    uint32_t q[ONE_STEPS][4];
};

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g], in parts
 * grid:   runs of chunks x KV head x tile of rows
 * shared: Q, 2 or 3 stages of 32 keys and values, scores, probabilities: 50 to 227 KB
 * bound:  reading K and V */
template <int D, bool BLOCKS, bool ONE>
__global__ void __launch_bounds__(32 * split_shape<D, in_registers<D, BLOCKS, ONE>>::W,
                                  D == 512 ? 1 : 2) split_kernel(attend_args a)
{
    constexpr bool REGISTERS = in_registers<D, BLOCKS, ONE>, EXPAND = BLOCKS && !ONE && !REGISTERS;
    using F = split_shape<D, REGISTERS>;
    constexpr int LINE_Q = F::LINE_Q, NT = F::NT, PARTS = F::PARTS, ROWS = F::ROWS;
    DYN_SHARED(uint16_t, mem);
    uint16_t *sq = mem, *sp = sq + M * LINE_Q;
    float *ss = (float *)(sp + M * LINE_P), *shrink = ss + PARTS * M * LINE_S;
    int *lo = (int *)(shrink + M), *hi = lo + M;
    float *base_turn = (float *)(hi + M); /* one stream: [TURNS][TURN] pairs */
    uint8_t *tiles = (uint8_t *)(base_turn + (ONE ? TURNS * D / 4 : 0));
    int group = a.n_head / a.kv.n_head_kv, g = (int)blockIdx.y, lane = lane_id();
    int warp = (int)threadIdx.x >> 5, gid = lane >> 2, tid = lane & 3;
    int r0 = a.row0 + (int)blockIdx.z * a.tile_rows, h0 = g * group;
    int n_rows = min(a.tile_rows, a.row0 + a.n_rows - r0), n_pairs = n_rows * group;
    grid_trigger();

    /* The step is there since before the pass: no waiting for the kernel before. */
    if ((int)threadIdx.x < M) {
        sight s = {0, 0};
        if ((int)threadIdx.x < n_pairs)
            s = row_sight(a.st.rows, r0 + pair_row((int)threadIdx.x, a), a.kv.window);
        lo[threadIdx.x] = s.lo;
        hi[threadIdx.x] = s.hi;
    }
    dev_kv_base base = store_of(a.st, a.st.rows.seq[r0], a.kv);
    int committed = a.st.rows.first[r0];
    __syncthreads();
    int first = lo[0], end = hi[0], whole = hi[0]; /* all pairs see [lo of the last, whole) */
    for (int i = group; i < n_pairs; i += group) {
        first = min(first, lo[i]);
        end = max(end, hi[i]);
        whole = min(whole, hi[i]);
    }
    int shift = a.chunk_shift, chunk0 = first >> shift, n = ((end - 1) >> shift) + 1 - chunk0;
    int c0 = chunk0 + n * (int)blockIdx.x / (int)gridDim.x;
    int c1 = chunk0 + n * ((int)blockIdx.x + 1) / (int)gridDim.x;
    int from = max(first, c0 << shift), until = min(end, c1 << shift);
    int t_first = from / KEYS * KEYS, n_tiles = (until - t_first + KEYS - 1) / KEYS;
    int in_chunk = (1 << shift) - 1;

    constexpr int TILE = KEYS * (2 * D + 16); /* in f16 */
    int kb = BLOCKS ? a.kv.k_bytes : 2 * D, vb = BLOCKS ? a.kv.v_bytes : 2 * D;
    key_walk first_tile = key_walk_at(a.kv, t_first);
    int line = BLOCKS ? a.line : 2 * D + 16;
    int stage_bytes = (ONE ? 1 : 2) * KEYS * line;
    tile_source src_k = {head_rows(a.kv, base.k, g, kb), kb, first_tile};
    tile_source src_v = {head_rows(a.kv, base.v, g, vb), vb, first_tile};
    /* Groups of copies on their way before turn 0, and stages of them. One stream in f16 has a
     * stage more: that of the values of the tile before. */
    int lead = !ONE ? a.stages : 2 * a.stages - (BLOCKS ? BUFFERS_MORE : 1);
    uint8_t *ring = tiles + (EXPAND || (ONE && BLOCKS) ? BUFFERS_MORE * TILE : 0);
    uint8_t *ring_end = ring + (lead + (ONE && !BLOCKS)) * stage_bytes;
    /* Group j of copies, into stage j mod stages: keys of tile j, values of tile j - 1. */
    auto copy_group = [&](int j, uint8_t *to) {
        int t = t_first + j * KEYS;
        if (j < n_tiles)
            copy_tile<D, BLOCKS, F::W>(to, line, &src_k, t, from, until);
        if (!ONE && j > 0 && j <= n_tiles)
            copy_tile<D, BLOCKS, F::W>(to + KEYS * line, line, &src_v, t - KEYS, from, until);
        copy_commit();
    };
    if (c0 == c1) {
        grid_wait(); /* who comes after us counts on it */
        return;
    }
    /* Keys of earlier passes are asked for at once, this pass's when they have been stored. */
    bool waited = false;
#pragma unroll 1
    for (int j = 0; j < lead; j++) {
        if (!waited && min(until, t_first + (j + 1) * KEYS) > committed) {
            grid_wait();
            waited = true;
        }
        copy_group(j, ring + j * stage_bytes);
    }
    one_lane<D> one;
    if constexpr (ONE) {
        constexpr int K = key_shape<D>::KEYS;
        one.maker = key_maker_of<D>(a.kv);
#pragma unroll
        for (int j = 0; j < 2; j++)
            one.place[j] =
                place_turns<D>(a.kv, one.maker.e, warp * K + lane * K / 32 + j * KEYS / 2);
        tile_turns<D>(base_turn, a.kv, t_first, TURNS);
    }
    if (!waited)
        grid_wait();
    constexpr int q_rows = 32 * F::W / (D / 4);
    int e = (int)threadIdx.x % (D / 4) * 4;
#pragma unroll 2
    for (int m = (int)threadIdx.x / (D / 4); m < M; m += q_rows) {
        uint2 u = make_uint2(0, 0);
        if (m < n_pairs) {
            int r = pair_row(m, a), h = h0 + m - r * group;
            float4 v = *(const float4 *)(a.q.at + (r0 + r) * a.q.stride + h * D + e);
            if (ONE && e % (D / 2) >= D / 8) { /* what stands still has the keys' weight */
                float4 w = *(const float4 *)(a.kv.k_weight + e);
                v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
            }
            u = make_uint2(f32x2_to_f16(v.x * a.scale, v.y * a.scale),
                           f32x2_to_f16(v.z * a.scale, v.w * a.scale));
        }
        *(uint2 *)(sq + m * LINE_Q + e) = u;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < M * LINE_P / 2; i += 32 * F::W)
        ((uint32_t *)sp)[i] = 0; /* probabilities of pairs that are not there */
    if ((int)threadIdx.x < M)
        shrink[threadIdx.x] = 0;
    copies_wait(lead - 1);
    __syncthreads();
    /* Keys of tile i of values at u. */
    auto make = [&](int i, const uint8_t *u) {
        if constexpr (ONE) {
            key_tile t = {sq,
                          (const uint16_t *)u,
                          base_turn + i % TURNS * (D / 4),
                          D + 8,
                          t_first + i * KEYS,
                          a.st.rows.seen ? committed : 0x7fffffff,
                          a.st.rows.seq[r0]};
            key_maker<D> m = BLOCKS ? key_maker_of<D>(a.kv) : one.maker; /* blocks want registers */
            make_keys<D, 2, KEYS / 2>(a, t, m, [&](int j, int k) {
                return BLOCKS ? place_turns<D>(a.kv, m.e, k) : one.place[j];
            });
        }
    };
    if constexpr (ONE) {
        load_queries<D>(one.q, sq, warp);
        if (BLOCKS)
            plain_rows<D>((uint16_t *)tiles, D + 8, ring, line, KEYS, a.kv);
        __syncthreads(); /* keys come where queries were */
        make(0, tiles);
        __syncthreads();
    }

    if (EXPAND) {
        expand_tile<EXPAND ? D : 256>((uint16_t *)tiles, D + 8, ring, line, KEYS, a.kv.k_kind);
        __syncthreads();
    }

    float o[NT][4], top[ROWS], sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        top[i] = -INFINITY, sum[i] = 0;
#pragma unroll
    for (int j = 0; j < NT; j++)
        o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;

    uint8_t *stage = ring;
    for (int i = 0;; i++) {
        int t0 = t_first + i * KEYS;
        uint8_t *next = stage + stage_bytes == ring_end ? ring : stage + stage_bytes;
        uint8_t *now = stage, *was = stage + KEYS * line; /* keys i, values i - 1 */
        if (ONE && BLOCKS)
            now = tiles + (i & 1) * TILE, was = tiles + (~i & 1) * TILE;
        else if (ONE)
            was = (stage == ring ? ring_end : stage) - stage_bytes;
        else if (EXPAND)
            now = tiles, was = tiles + TILE;
        share mine = {sq, now, was, sp, ONE || EXPAND ? 2 * D + 16 : line, warp};
        if constexpr (ONE)
            if ((i + 1) % TURNS == 0)
                tile_turns<D>(base_turn, a.kv, t0 + KEYS, TURNS);
        if (i < n_tiles) {
            float s[4] = {0, 0, 0, 0};
            if constexpr (ONE)
                scores_one<D>(s, one.q, mine);
            else if (REGISTERS)
                scores_any<REGISTERS ? D : 256>(s, mine, a.kv.k_kind);
            else
                scores<D>(s, mine);
            float *to = ss + (warp / 4 * M + gid) * LINE_S + warp % 4 * 8 + 2 * tid;
            *(float2 *)to = make_float2(s[0], s[1]);
            *(float2 *)(to + 8 * LINE_S) = make_float2(s[2], s[3]);
        }
        if (i > 0) {
            float keep[2] = {shrink[gid], shrink[gid + 8]};
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    o[j][k] *= keep[k / 2];
            if (REGISTERS)
                sums_any<REGISTERS ? D : 256>(o, mine, a.kv.v_kind);
            else
                sums<D>(o, mine);
            if (i == n_tiles || (t0 & in_chunk) == 0) {
                int c = (t0 - 1) >> shift;
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    int m = gid + 8 * b, r = pair_row(m, a), part = c - (lo[m] >> shift);
                    if (m >= n_pairs || part < 0 || c << shift >= hi[m])
                        continue;
                    float *to = part_at(a, r0 + r, h0 + m - r * group, part) + warp * F::COLS;
#pragma unroll
                    for (int j = 0; j < NT; j++)
                        if (!REGISTERS) {
                            *(float2 *)(to + 8 * j + 2 * tid) =
                                make_float2(o[j][2 * b], o[j][2 * b + 1]);
                        } else if (j % 2 == 0) {
                            float2 *at = (float2 *)(to + 16 * tid + j);
                            at[0] = make_float2(o[j][2 * b], o[j + 1][2 * b]);
                            at[4] = make_float2(o[j][2 * b + 1], o[j + 1][2 * b + 1]);
                        }
                }
#pragma unroll
                for (int j = 0; j < NT; j++)
                    o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
            }
        }
        if (i == n_tiles)
            break;
        copies_wait(lead - 2);
        __syncthreads();
        copy_group(i + lead, ONE && !BLOCKS ? was : stage);

        bool last = i + 1 == n_tiles || (t0 + KEYS & in_chunk) == 0;
        bool all = !a.st.rows.seen && t0 + KEYS <= whole && t0 >= lo[n_pairs - 1];
#pragma unroll
        for (int w = 0; w < ROWS; w++) {
            int m = warp + w * F::W, t = t0 + lane;
            if (m >= n_pairs)
                continue;
            float x = ss[m * LINE_S + lane];
#pragma unroll
            for (int k = 1; k < PARTS; k++)
                x += ss[(k * M + m) * LINE_S + lane];
            if (!all) {
                bool sees = t >= lo[m] && t < hi[m];
                if (a.st.rows.seen && sees)
                    sees = row_sees(a, r0 + pair_row(m, a), t);
                x = sees ? x : -INFINITY;
            }
            float was = top[w], best = fmaxf(was, warp_max(x));
            float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
            float keep = fast_exp2((was - zero) * 1.4426950408889634f);
            x = fast_exp2((x - zero) * 1.4426950408889634f);
            float total = sum[w] * keep + x;
            sp[m * LINE_P + lane] = (uint16_t)f32_to_f16(x);
            if (lane == 0)
                shrink[m] = keep;
            top[w] = last ? -INFINITY : best;
            sum[w] = last ? 0 : total;
            if (last) {
                total = warp_sum(total);
                int r = pair_row(m, a), c = t0 >> shift, part = c - (lo[m] >> shift);
                if (lane == 0 && part >= 0 && c << shift < hi[m])
                    *(float2 *)(part_at(a, r0 + r, h0 + m - r * group, part) + D) =
                        make_float2(best, total);
            }
        }
        if constexpr (ONE)
            if (i + 1 < n_tiles) {
                uint8_t *u = next;
                if (BLOCKS) {
                    u = tiles + (~i & 1) * TILE;
                    plain_rows<D>((uint16_t *)u, D + 8, next, line, KEYS, a.kv);
                }
                make(i + 1, u);
            }
        if (EXPAND && i + 1 < n_tiles)
            expand_tile<EXPAND ? D : 256>((uint16_t *)tiles, D + 8, next, line, KEYS, a.kv.k_kind);
        if (EXPAND)
            expand_tile<EXPAND ? D : 256>((uint16_t *)(tiles + TILE), D + 8, next + KEYS * line,
                                          line, KEYS, a.kv.v_kind);
        stage = next;
        __syncthreads();
    }
}

template <int D, bool BLOCKS, bool ONE = false> static int allow(int stages)
{
    return allow_shared(split_kernel<D, BLOCKS, ONE>,
                        split_bytes<D, BLOCKS, ONE>(stages, 2 * D + 16));
}

/* Raises the limits on shared memory; largest: what the GPU grants a block. How wide heads may be,
 * and in how many stages heads of 512 come. */
extern "C" int cu_split_init(int largest, int *widest, int *stages_512)
{
    int bad = allow<64, false>(3) | allow<128, false>(3) | allow<64, true>(3) | allow<128, true>(3);
    *widest = 128;
    *stages_512 = split_bytes<512, false, true>(3, 1040) <= largest ? 3 : 2;
    if (split_bytes<256, true>(3, 528) <= largest) {
        bad |= allow<256, false>(2) | allow<256, true>(3);
        bad |= allow<256, false, true>(2) | allow<256, true, true>(2);
        *widest = 256;
    }
    if (split_bytes<512, false, true>(*stages_512, 1040) <= largest) {
        bad |= allow<512, false>(*stages_512) | allow<512, true>(*stages_512);
        bad |= allow<512, false, true>(*stages_512) | allow<512, true, true>(*stages_512);
        *widest = 512;
    }
    return bad;
}

template <int D, bool BLOCKS, bool ONE = false> static void split_of(cudaStream_t s, attend_args a)
{
    dim3 grid((unsigned)a.n_block, (unsigned)a.kv.n_head_kv,
              (unsigned)((a.n_rows + a.tile_rows - 1) / a.tile_rows));
    int row = a.kv.k_bytes > a.kv.v_bytes ? a.kv.k_bytes : a.kv.v_bytes;
    a.line = row + 16; /* an odd multiple of 16: neighbours' banks differ */
    a.line += a.line % 32 ? 0 : 16;
    if (!BLOCKS)
        a.line = 2 * D + 16;
    else if (D <= 128)
        a.line = (row + 15) / 16 * 16 + 16;
    dim3 block(32 * split_shape<D, in_registers<D, BLOCKS, ONE>>::W);
    size_t bytes = split_bytes<D, BLOCKS, ONE>(a.stages, a.line);
    LAUNCH((split_kernel<D, BLOCKS, ONE>), grid, block, bytes, s, a);
}

template <int D, bool ONE = false> static void split_any(cudaStream_t s, attend_args a)
{
    if (a.kv.k_kind == KV_F16 && a.kv.v_kind == KV_F16)
        split_of<D, false, ONE>(s, a);
    else
        split_of<D, true, ONE>(s, a);
}

extern "C" void cu_split(cudaStream_t s, attend_args a)
{
    bool one = a.kv.single;
    switch (a.kv.head_dim) {
    case 64:
        split_any<64>(s, a);
        break;
    case 128:
        split_any<128>(s, a);
        break;
    case 256:
        one ? split_any<256, true>(s, a) : split_any<256>(s, a);
        break;
    default:
        one ? split_any<512, true>(s, a) : split_any<512>(s, a);
    }
}
