/* split.cu - attention of few rows on the f16 tensor cores: heads of 64, 128, 256 and 512, every
 * format but f32.
 *
 *     keys  |.......|xxxxxxx|xxxxxxx|xxxxxxx|xxxxxxx|xxxx...|   chunks of a fixed size at fixed
 *            first ..^       block b ------->        ^.. end    numbers; a block has a run of them,
 *                                                               one KV head, 16 pairs
 *
 *     turn i    S of tile i, P V of tile i - 1   |   softmax of tile i         a barrier after each
 *
 * A pair is a row and one query head of the KV head. A block has the heads of one row, or of as
 * many rows of one sequence as fit: they share the keys. In a tree, rows share the chunks of
 * committed keys; the others have a block for each row (tile_part in attend.cuh). Over f16 on GPUs
 * of 9.0, rows of many keys are left to split_hopper.cu.
 *
 * A block walks its run in tiles of 32 keys; at each chunk's end it writes a partial result and
 * starts anew. So chunks decide the order of sums, and a row's bits depend neither on the grid nor
 * on other rows. Turns with two products hide the tensor cores' latency. Copies run two or three
 * turns ahead; keys of earlier passes are requested before the previous kernel has ended. Sums,
 * softmax and O are f32; q and probabilities are f16.
 *
 * Formats other than f16 lie in shared memory as stored and become f16 in registers
 * (split_tile.cuh), in small heads in shared memory.
 *
 * One stream (keys.cuh): a tile is copied once. Keys are made of it in turn i - 1, it is the values
 * in turn i + 1, and queries stay in registers, which halves the reads of shared memory:
 *
 *     turn i    S of tile i, P V of tile i - 1   |   softmax of tile i, keys of tile i + 1
 */
#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/attend/split_tile.cuh"

/* One stream: cosines and sines of TURNS tiles come beside `fixed`; made keys replace q, which lies
 * in registers. */
enum { TURNS = 8, BUFFERS_MORE = 2 };
/* Tiles of keys or values that a block has room for, by stages. One stream: f16 has a stage more
 * than are on their way; of blocks, BUFFERS_MORE are in f16. */
template <int D, bool BLOCKS, bool ONE>
static constexpr __host__ __device__ int ring_lead(int stages)
{
    return !ONE ? stages : 2 * stages - (BLOCKS ? BUFFERS_MORE : 1);
}
/* Bytes of shared memory for that many stages of keys and values, whose rows are `line` bytes
 * apart. One stream: twice as many tiles. Small heads of blocks have BUFFERS_MORE tiles in f16 in
 * addition. */
template <int D, bool BLOCKS, bool ONE = false>
static constexpr int split_bytes(int stages, int line)
{
    constexpr bool REGISTERS = in_registers<D, BLOCKS, ONE>;
    int in_f16 = BLOCKS && !REGISTERS ? BUFFERS_MORE * KEYS * (2 * D + 16) : 0;
    int tiles = (ONE ? 1 : 2) * (ring_lead<D, BLOCKS, ONE>(stages) + (ONE && !BLOCKS));
    return split_shape<D, REGISTERS>::fixed + (ONE ? TURNS * D : 0) + in_f16 + tiles * KEYS * line;
}

/* Bytes of a tile in f16. */
template <int D> static constexpr int F16_TILE = KEYS *(2 * D + 16);

/* A store's rows of one KV head, and the next tile to be copied. */
struct tile_source {
    const uint8_t *head;
    int row_bytes;
    key_walk next;
};

struct split_block;
DEV int block_key_place(const split_args &x, const split_block &b, int place, int t);
DEV bool whole_tile(const split_block &b, int t0, int from, int until);
DEV bool shared_tile(const split_args &x, const split_block &b, int t0);

/* Keys t0 .. t0 + 31. Rows outside [from, until) are copies of one inside: finite, and hidden by
 * the softmax. A copy's address takes some thirty instructions, because a tile may lie around the
 * end of a ring, or have other keys for each row of a tree. Most tiles do neither: in heads of up
 * to 128 a warp then copies several rows at a time, and in larger ones, where all rows are wanted,
 * with offsets known in advance. */
template <int D, bool BLOCKS, int W>
DEV void copy_tile(uint8_t *to, int line, tile_source *s, int t0, int from, int until,
                   const split_args &x, const split_block &b)
{
    constexpr int PIECES = D / 8, ROWS = PIECES < 32 ? 32 / PIECES : 1; /* of f16, in a warp */
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), bytes = BLOCKS ? s->row_bytes : 2 * D;
    bool inside = D <= 128 ? shared_tile(x, b, t0) : whole_tile(b, t0, from, until);
    if (!BLOCKS && inside && keys_adjoin(s->next, KEYS)) {
        constexpr int LINE = 2 * D + 16;
        int k = warp * ROWS + lane / (32 / ROWS), piece = 16 * (lane % (32 / ROWS));
        const uint8_t *tile = s->head + (size_t)s->next.place[0] * (2 * D) + piece;
        to += k * LINE + piece;
        if (D >= 256)
            tile += k * 2 * D;
#pragma unroll
        for (int i = 0; i < KEYS / W / ROWS; i++) {
            int at = D >= 256 ? i * W : min(max(k + i * W * ROWS, from - t0), until - 1 - t0);
#pragma unroll
            for (int j = 0; j < PIECES; j += 32)
                copy16_async(to + i * W * ROWS * LINE + 16 * j, tile + at * 2 * D + 16 * j, true);
        }
        key_walk_on(&s->next, KEYS, t0 + KEYS, until);
        return;
    }
    to += warp * line + 16 * lane;
#pragma unroll(BLOCKS || D >= 256 ? KEYS / W : 2)
    for (int i = 0; i < KEYS / W; i++) {
        int k = warp + i * W;
        k = min(max(k, from - t0), until - 1 - t0);
        int place = block_key_place(x, b, key_place(s->next, k), t0 + k);
        if (BLOCKS && D <= 128) { /* rows begin at any multiple of 4 bytes */
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
    key_walk_on(&s->next, KEYS, t0 + KEYS, until);
}

/* ---- A block's work ------------------------------------------------------------------------ */

/* Shared memory of a block; `tiles` takes the rest. */
struct split_shared {
    uint16_t *q, *p;        /* [16][LINE_Q], [16][LINE_P] */
    uint16_t *made;         /* one stream: made keys, where q was */
    float *scores, *shrink; /* [PARTS][16][LINE_S], [16] */
    int *lo, *hi;           /* [16]: the keys that a pair sees */
    float *turns;           /* one stream: [TURNS][D / 8] pairs, of tiles' first positions */
    uint8_t *tiles;
};
template <int D, bool BLOCKS, bool ONE> DEV split_shared shared_parts(uint16_t *mem)
{
    using F = split_shape<D, in_registers<D, BLOCKS, ONE>>;
    split_shared s;
    s.q = s.made = mem, s.p = s.q + 16 * F::LINE_Q;
    s.scores = (float *)(s.p + 16 * LINE_P), s.shrink = s.scores + F::PARTS * 16 * LINE_S;
    s.lo = (int *)(s.shrink + 16), s.hi = s.lo + 16;
    s.turns = (float *)(s.hi + 16);
    s.tiles = (uint8_t *)(s.turns + (ONE ? TURNS * D / 4 : 0));
    return s;
}

/* The pairs of a block, the heads of KV head g of rows from r0 on, and its run of keys. */
struct split_block {
    int r0, g, h0, group, n_pairs;
    dev_kv_base base;
    int committed;        /* keys below it were stored by earlier passes */
    int from, until;      /* the run; empty if they are equal */
    int own_from;         /* keys from there on are those of row r0, a tree's */
    int whole;            /* all pairs see [lo of the last pair, whole) */
    int t_first, n_tiles; /* its tiles of KEYS; the first begins at t_first */
};
/* The place of key t, which is `place` where all rows have the same keys. */
DEV int block_key_place(const split_args &x, const split_block &b, int place, int t)
{
    bool same = !x.a.st.rows.seen || t < b.own_from; /* the former is known in passes of one row */
    return same ? place : row_key_place(x.a.kv, b.base.page, x.a.st.rows, b.r0, t);
}
/* Have all rows the same keys in the tile? */
DEV bool shared_tile(const split_args &x, const split_block &b, int t0)
{
    return !x.a.st.rows.seen || t0 + KEYS <= b.own_from;
}
/* Are all keys of a tile in the run, and those of all rows? */
DEV bool whole_tile(const split_block &b, int t0, int from, int until)
{
    return t0 >= from && t0 + KEYS <= min(until, b.own_from);
}
/* What each pair sees, into shared memory, and the block's share of the chunks. The step was
 * uploaded before the pass, so this needs no wait for the previous kernel. */
DEV split_block block_work(const split_args &x, const split_shared &s)
{
    const attend_args &a = x.a;
    split_block b;
    bool tree = a.st.rows.seen;
    tile_part part = tile_part_of(x.parts, x.schedule, tree, (int)blockIdx.z, (int)blockIdx.x);
    b.group = a.n_head / a.kv.n_head_kv, b.g = (int)blockIdx.y, b.h0 = b.g * b.group;
    b.r0 = part.r0, b.n_pairs = part.n_rows * b.group;
    b.own_from = own_keys_from(a.st.rows, b.r0);
    if ((int)threadIdx.x < SPLIT_PAIRS) {
        sight see = {0, 0};
        if ((int)threadIdx.x < b.n_pairs)
            see = row_sight(a.st.rows, b.r0 + pair_row((int)threadIdx.x, x.schedule), a.kv.window);
        if (x.parts.most && see.hi - see.lo > x.parts.shallow)
            see = sight{0x7fffffff, 0}; /* a row of split_hopper.cu: nothing here */
        s.lo[threadIdx.x] = see.lo;
        s.hi[threadIdx.x] = see.hi;
    }
    b.base = store_of(a.st, a.st.rows.seq[b.r0], a.kv);
    b.committed = a.st.rows.first[b.r0];
    __syncthreads();
    int first = s.lo[0], end = s.hi[0];
    b.whole = s.hi[0];
    for (int i = b.group; i < b.n_pairs; i += b.group) {
        first = min(first, s.lo[i]);
        end = max(end, s.hi[i]);
        b.whole = min(b.whole, s.hi[i]);
    }
    int shift = x.schedule.chunk_shift;
    part_keys(part, b.committed, shift, &first, &end);
    int chunk0 = first >> shift, n = first < end ? ((end - 1) >> shift) + 1 - chunk0 : 0;
    int c0 = chunk0 + n * part.run / part.n_runs, c1 = chunk0 + n * (part.run + 1) / part.n_runs;
    b.from = max(first, c0 << shift), b.until = c0 == c1 ? b.from : min(end, c1 << shift);
    b.t_first = b.from / KEYS * KEYS, b.n_tiles = (b.until - b.t_first + KEYS - 1) / KEYS;
    return b;
}

/* Stages of copies, in use in turn. Group j of copies has keys of tile j and values of tile j - 1.
 * `lead` groups are on their way before turn 0; one stream in f16 has a stage more than that, which
 * holds the values of the tile before. */
struct tile_ring {
    uint8_t *first, *end;
    int stage_bytes, line, lead;
    tile_source k, v;
};
template <int D, bool BLOCKS, bool ONE>
DEV tile_ring ring_of(const split_args &x, const split_shared &s, const split_block &b)
{
    constexpr bool MADE_F16 = BLOCKS && !in_registers<D, BLOCKS, ONE>;
    const dev_kv &kv = x.a.kv;
    int kb = BLOCKS ? kv.k_bytes : 2 * D, vb = BLOCKS ? kv.v_bytes : 2 * D;
    key_walk walk = key_walk_at(kv, b.base.page, b.t_first);
    tile_ring r;
    r.line = BLOCKS ? x.line : 2 * D + 16;
    r.stage_bytes = (ONE ? 1 : 2) * KEYS * r.line;
    r.lead = ring_lead<D, BLOCKS, ONE>(x.schedule.stages);
    r.first = s.tiles + (MADE_F16 ? BUFFERS_MORE * F16_TILE<D> : 0);
    r.end = r.first + (r.lead + (ONE && !BLOCKS)) * r.stage_bytes;
    r.k = {head_rows(kv, b.base.k, b.g, kb), kb, walk};
    r.v = {head_rows(kv, b.base.v, b.g, vb), vb, walk};
    return r;
}
template <int D, bool BLOCKS, bool ONE>
DEV void copy_group(tile_ring *r, const split_args &x, const split_block &b, int j, uint8_t *to)
{
    constexpr int W = split_shape<D, in_registers<D, BLOCKS, ONE>>::W;
    int t = b.t_first + j * KEYS;
    if (j < b.n_tiles)
        copy_tile<D, BLOCKS, W>(to, r->line, &r->k, t, b.from, b.until, x, b);
    if (!ONE && j > 0 && j <= b.n_tiles)
        copy_tile<D, BLOCKS, W>(to + KEYS * r->line, r->line, &r->v, t - KEYS, b.from, b.until, x,
                                b);
    copy_commit();
}
/* Starts the first groups: keys of earlier passes at once, keys of this pass after the previous
 * kernel, which stores them. Returns whether the block has waited for that kernel. */
template <int D, bool BLOCKS, bool ONE>
DEV bool begin_copies(tile_ring *r, const split_args &x, const split_block &b)
{
    bool waited = false;
#pragma unroll 1
    for (int j = 0; j < r->lead; j++) {
        if (!waited && min(b.until, b.t_first + (j + 1) * KEYS) > b.committed) {
            grid_wait();
            waited = true;
        }
        copy_group<D, BLOCKS, ONE>(r, x, b, j, r->first + j * r->stage_bytes);
    }
    return waited;
}

/* Queries times scale, in f16; zeros for absent pairs. */
template <int D, bool BLOCKS, bool ONE>
DEV void store_queries(const split_args &x, const split_shared &s, const split_block &b)
{
    using F = split_shape<D, in_registers<D, BLOCKS, ONE>>;
    const attend_args &a = x.a;
    constexpr int q_rows = 32 * F::W / (D / 4);
    int e = (int)threadIdx.x % (D / 4) * 4;
#pragma unroll 4
    for (int m = (int)threadIdx.x / (D / 4); m < SPLIT_PAIRS; m += q_rows) {
        uint2 u = make_uint2(0, 0);
        if (m < b.n_pairs) {
            int r = pair_row(m, x.schedule), h = b.h0 + m - r * b.group;
            float4 v = *(const float4 *)(a.q.at + (b.r0 + r) * a.q.stride + h * D + e);
            if (ONE && e % (D / 2) >= D / 8) { /* still dims have the keys' weight */
                float4 w = *(const float4 *)(a.kv.k_weight + e);
                v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
            }
            u = make_uint2(f32x2_to_f16(v.x * a.scale, v.y * a.scale),
                           f32x2_to_f16(v.z * a.scale, v.w * a.scale));
        }
        *(uint2 *)(s.q + m * F::LINE_Q + e) = u;
    }
}

/* ---- Keys of one stream -------------------------------------------------------------------- */

/* A lane's queries, and its constants for making keys. */
template <int D> struct one_lane {
    key_maker<D> maker;
    float4 place[2];
    uint32_t q[ONE_STEPS][4];
};
template <int D> DEV void begin_keys(one_lane<D> *one, const dev_kv &kv)
{
    constexpr int K = key_shape<D>::KEYS;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5;
    one->maker = key_maker_of<D>(kv);
#pragma unroll
    for (int j = 0; j < 2; j++)
        one->place[j] = place_turns<D>(kv, one->maker.e, warp * K + lane * K / 32 + j * KEYS / 2);
}
/* Makes the keys of tile i from its values at u. ANEW: with constants read again, where blocks
 * need the registers. */
template <int D, bool ANEW>
DEV void make_tile(const dev_kv &kv, const split_shared &s, const one_lane<D> &one, int i,
                   const uint8_t *u)
{
    key_tile t = {s.made, (const uint16_t *)u, s.turns + i % TURNS * (D / 4), D + 8};
    key_maker<D> m = ANEW ? key_maker_of<D>(kv) : one.maker;
    make_keys<D, 2, KEYS / 2>(
        t, m, [&](int j, int k) { return ANEW ? place_turns<D>(kv, m.e, k) : one.place[j]; });
}

/* ---- A turn -------------------------------------------------------------------------------- */

/* Sums of 16 pairs and 8 keys, of a part of the head, to shared memory. */
DEV void put_octet(float *to, const float *x)
{
    int lane = lane_id();
    to += (lane >> 2) * LINE_S + 2 * (lane & 3);
    *(float2 *)to = make_float2(x[0], x[1]);
    *(float2 *)(to + 8 * LINE_S) = make_float2(x[2], x[3]);
}

/* The warp's scores of a tile, to shared memory. */
template <int D, bool BLOCKS, bool ONE>
DEV void put_scores(const split_shared &s, const share &mine, const one_lane<D> &one, int kind)
{
    constexpr bool REGISTERS = in_registers<D, BLOCKS, ONE>;
    float x[4] = {0, 0, 0, 0};
    if constexpr (ONE)
        scores_one<D>(x, one.q, mine);
    else if (REGISTERS)
        scores_any<REGISTERS ? D : 256>(x, mine, kind);
    else
        scores<D>(x, mine);
    put_octet(s.scores + mine.warp / 4 * 16 * LINE_S + mine.warp % 4 * 8, x);
}

template <int NT> DEV void clear(float (&o)[NT][4])
{
#pragma unroll
    for (int j = 0; j < NT; j++)
        o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
}

/* O shrinks as the new largest scores demand, and gains P V of a tile. */
template <int D, bool BLOCKS, bool ONE, int NT>
DEV void add_values(float (&o)[NT][4], const split_shared &s, const share &mine, int kind)
{
    int gid = lane_id() >> 2;
    float keep[2] = {s.shrink[gid], s.shrink[gid + 8]};
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o[j][k] *= keep[k / 2];
    if constexpr (in_registers<D, BLOCKS, ONE>)
        sums_any<D>(o, mine, kind);
    else
        sums<D>(o, mine);
}

/* Where pair m leaves its result of chunk c; NULL if it has none. */
DEV float *pair_part(const split_args &x, const split_shared &s, const split_block &b, int m, int c)
{
    int shift = x.schedule.chunk_shift, r = pair_row(m, x.schedule), part = c - (s.lo[m] >> shift);
    if (m >= b.n_pairs || part < 0 || c << shift >= s.hi[m])
        return NULL;
    return part_at(x.a, x.parts, b.r0 + r, b.h0 + m - r * b.group, part);
}
/* The warp's columns of O to chunk c's parts; then zero. */
template <int D, bool REGISTERS, int NT>
DEV void leave_columns(float (&o)[NT][4], const split_args &x, const split_shared &s,
                       const split_block &b, int c)
{
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, tid = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = pair_part(x, s, b, (lane >> 2) + 8 * h, c);
        if (!to)
            continue;
        to += warp * split_shape<D, REGISTERS>::COLS;
#pragma unroll
        for (int j = 0; j < NT; j++)
            if (!REGISTERS) {
                *(float2 *)(to + 8 * j + 2 * tid) = make_float2(o[j][2 * h], o[j][2 * h + 1]);
            } else if (j % 2 == 0) {
                float2 *at = (float2 *)(to + 16 * tid + j);
                at[0] = make_float2(o[j][2 * h], o[j + 1][2 * h]);
                at[4] = make_float2(o[j][2 * h + 1], o[j + 1][2 * h + 1]);
            }
    }
    clear(o);
}

/* Softmax of the tile at t0, a key to each lane, of the warp's pairs warp + i W; `last`: the chunk
 * ends here, and its largest score and sum go to its part. */
template <int D, bool REGISTERS, int ROWS>
DEV void softmax(float (&top)[ROWS], float (&sum)[ROWS], const split_args &x, const split_shared &s,
                 const split_block &b, int t0, bool last)
{
    using F = split_shape<D, REGISTERS>;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, t = t0 + lane;
    bool all = t0 + KEYS <= b.whole && t0 >= s.lo[b.n_pairs - 1];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int m = warp + i * F::W;
        if (m >= b.n_pairs)
            continue;
        float v = s.scores[m * LINE_S + lane];
#pragma unroll
        for (int k = 1; k < F::PARTS; k++)
            v += s.scores[(16 * k + m) * LINE_S + lane];
        if (!all)
            v = t >= s.lo[m] && t < s.hi[m] ? v : -INFINITY;
        float was = top[i], best = fmaxf(was, warp_max(v));
        float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
        float keep = fast_exp2((was - zero) * 1.4426950408889634f);
        v = fast_exp2((v - zero) * 1.4426950408889634f);
        float total = sum[i] * keep + v;
        s.p[m * LINE_P + lane] = (uint16_t)f32_to_f16(v);
        if (lane == 0)
            s.shrink[m] = keep;
        top[i] = last ? -INFINITY : best;
        sum[i] = last ? 0 : total;
        if (last) {
            total = warp_sum(total);
            float *to = pair_part(x, s, b, m, t0 >> x.schedule.chunk_shift);
            if (lane == 0 && to)
                *(float2 *)(to + D) = make_float2(best, total);
        }
    }
}

/* Small heads of blocks: keys, or values, of a stage to f16. */
template <int D>
DEV void expand_keys(const split_shared &s, const uint8_t *stage, int line, int kind)
{
    expand_tile<D>((uint16_t *)s.tiles, D + 8, stage, line, KEYS, kind);
}
template <int D>
DEV void expand_values(const split_shared &s, const uint8_t *stage, int line, int kind)
{
    expand_tile<D>((uint16_t *)(s.tiles + F16_TILE<D>), D + 8, stage + KEYS * line, line, KEYS,
                   kind);
}

/* The same arguments, with what a pass of one row has as constants. Its instructions run once, and
 * fetching them is much of its time. */
DEV split_args lone_row(split_args x)
{
    x.a.st.rows.seen = NULL;
    x.schedule.tile_rows = x.parts.n_rows = 1;
    x.schedule.group_inverse = 0;
    return x;
}

/* ---- The kernel ---------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g], in parts
 * grid:   runs of chunks x KV head x tile of rows
 * shared: Q, 2 or 3 stages of 32 keys and values, scores, probabilities: 50 to 227 KB
 * bound:  reading K and V */
template <int D, bool BLOCKS, bool ONE, bool LONE>
__global__ void __launch_bounds__(32 * split_shape<D, in_registers<D, BLOCKS, ONE>>::W,
                                  D == 512 ? 1 : 2) split_kernel(split_args x)
{
    if (LONE)
        x = lone_row(x);
    constexpr bool REGISTERS = in_registers<D, BLOCKS, ONE>, EXPAND = BLOCKS && !ONE && !REGISTERS;
    constexpr int EXPAND_D = EXPAND ? D : 256, LINE_F16 = 2 * D + 16;
    using F = split_shape<D, REGISTERS>;
    constexpr int NT = F::NT, ROWS = F::ROWS;
    const dev_kv &kv = x.a.kv;
    DYN_SHARED(uint16_t, mem);
    split_shared s = shared_parts<D, BLOCKS, ONE>(mem);
    int warp = (int)threadIdx.x >> 5, in_chunk = (1 << x.schedule.chunk_shift) - 1;
    grid_trigger();
    split_block b = block_work(x, s);
    if (b.from == b.until) {
        grid_wait(); /* the next kernel relies on it */
        return;
    }
    tile_ring ring = ring_of<D, BLOCKS, ONE>(x, s, b);
    bool waited = begin_copies<D, BLOCKS, ONE>(&ring, x, b);
    one_lane<D> one;
    if constexpr (ONE) {
        begin_keys<D>(&one, kv);
        tile_turns<D>(s.turns, kv, b.base.page, b.t_first, b.until, TURNS);
    }
    if (!waited)
        grid_wait();
    store_queries<D, BLOCKS, ONE>(x, s, b);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 16 * LINE_P / 2; i += 32 * F::W)
        ((uint32_t *)s.p)[i] = 0; /* probabilities of absent pairs */
    if ((int)threadIdx.x < SPLIT_PAIRS)
        s.shrink[threadIdx.x] = 0;
    copies_wait(ring.lead - 1);
    __syncthreads();
    if constexpr (ONE) {
        load_queries<D>(one.q, s.q, warp);
        if (BLOCKS)
            plain_rows<D>((uint16_t *)s.tiles, D + 8, ring.first, ring.line, KEYS, kv);
        __syncthreads(); /* keys replace the queries */
        make_tile<D, BLOCKS>(kv, s, one, 0, s.tiles);
        __syncthreads();
    }
    if (EXPAND) {
        expand_keys<EXPAND_D>(s, ring.first, ring.line, kv.k_kind);
        __syncthreads();
    }

    float o[NT][4], top[ROWS], sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        top[i] = -INFINITY, sum[i] = 0;
    clear(o);

    uint8_t *stage = ring.first;
    for (int i = 0;; i++) {
        int t0 = b.t_first + i * KEYS;
        uint8_t *next =
            stage + ring.stage_bytes == ring.end ? ring.first : stage + ring.stage_bytes;
        uint8_t *now = stage, *was = stage + KEYS * ring.line; /* keys i, values i - 1 */
        if (ONE && BLOCKS)
            now = s.tiles + (i & 1) * F16_TILE<D>, was = s.tiles + (~i & 1) * F16_TILE<D>;
        else if (ONE)
            was = (stage == ring.first ? ring.end : stage) - ring.stage_bytes;
        else if (EXPAND)
            now = s.tiles, was = s.tiles + F16_TILE<D>;
        share mine = {s.q, now, was, s.p, s.made, ONE || EXPAND ? LINE_F16 : ring.line, warp};
        if constexpr (ONE)
            if ((i + 1) % TURNS == 0)
                tile_turns<D>(s.turns, kv, b.base.page, t0 + KEYS, b.until, TURNS);
        if (i < b.n_tiles)
            put_scores<D, BLOCKS, ONE>(s, mine, one, kv.k_kind);
        if (i > 0) {
            add_values<D, BLOCKS, ONE>(o, s, mine, kv.v_kind);
            if (i == b.n_tiles || (t0 & in_chunk) == 0)
                leave_columns<D, REGISTERS>(o, x, s, b, (t0 - 1) >> x.schedule.chunk_shift);
        }
        if (i == b.n_tiles)
            break;
        copies_wait(ring.lead - 2);
        __syncthreads();
        copy_group<D, BLOCKS, ONE>(&ring, x, b, i + ring.lead, ONE && !BLOCKS ? was : stage);
        bool last = i + 1 == b.n_tiles || (t0 + KEYS & in_chunk) == 0;
        softmax<D, REGISTERS>(top, sum, x, s, b, t0, last);
        if constexpr (ONE)
            if (i + 1 < b.n_tiles) {
                uint8_t *u = next;
                if (BLOCKS) {
                    u = s.tiles + (~i & 1) * F16_TILE<D>;
                    plain_rows<D>((uint16_t *)u, D + 8, next, ring.line, KEYS, kv);
                }
                make_tile<D, BLOCKS>(kv, s, one, i + 1, u);
            }
        if (EXPAND && i + 1 < b.n_tiles)
            expand_keys<EXPAND_D>(s, next, ring.line, kv.k_kind);
        if (EXPAND)
            expand_values<EXPAND_D>(s, next, ring.line, kv.v_kind);
        stage = next;
        __syncthreads();
    }
}

/* Which have a kernel of their own for one row. */
template <int D, bool BLOCKS, bool ONE> constexpr bool has_lone = D <= 256 && !BLOCKS && !ONE;

template <int D, bool BLOCKS, bool ONE = false> static int allow(int stages)
{
    int bytes = split_bytes<D, BLOCKS, ONE>(stages, 2 * D + 16), bad = 0;
    if constexpr (has_lone<D, BLOCKS, ONE>)
        bad = allow_shared(split_kernel<D, BLOCKS, ONE, true>, bytes);
    return bad | allow_shared(split_kernel<D, BLOCKS, ONE, false>, bytes);
}

/* largest: bytes that the GPU grants a block. */
extern "C" split_limits cu_split_limits(int largest)
{
    split_limits l = {.widest = 128,
                      .stages_256 = split_bytes<256, true>(3, 528) <= largest ? 3 : 2,
                      .stages_512 = split_bytes<512, false, true>(3, 1040) <= largest ? 3 : 2};
    if (split_bytes<256, true>(l.stages_256, 528) <= largest &&
        split_bytes<256, false, true>(2, 528) <= largest)
        l.widest = 256;
    if (split_bytes<512, false, true>(l.stages_512, 1040) <= largest)
        l.widest = 512;
    return l;
}

/* Raises the limits on shared memory. */
extern "C" int cu_split_init(split_limits l)
{
    int bad = allow<64, false>(3) | allow<128, false>(3) | allow<64, true>(3) | allow<128, true>(3);
    if (l.widest >= 256) {
        bad |= allow<256, false>(2) | allow<256, true>(l.stages_256);
        bad |= allow<256, false, true>(2) | allow<256, true, true>(2);
    }
    if (l.widest >= 512) {
        bad |= allow<512, false>(l.stages_512) | allow<512, true>(l.stages_512);
        bad |= allow<512, false, true>(l.stages_512) | allow<512, true, true>(l.stages_512);
    }
    return bad;
}

template <int D, bool BLOCKS, bool ONE = false> static void split_of(cudaStream_t s, split_args x)
{
    dim3 grid((unsigned)(x.schedule.n_block + own_blocks(x.a, x.schedule)),
              (unsigned)x.a.kv.n_head_kv,
              (unsigned)((x.parts.n_rows + x.schedule.tile_rows - 1) / x.schedule.tile_rows));
    int row = x.a.kv.k_bytes > x.a.kv.v_bytes ? x.a.kv.k_bytes : x.a.kv.v_bytes;
    x.line = row + 16; /* an odd multiple of 16: neighbours' banks differ */
    x.line += x.line % 32 ? 0 : 16;
    if (!BLOCKS)
        x.line = 2 * D + 16;
    else if (D <= 128)
        x.line = (row + 15) / 16 * 16 + 16;
    dim3 block(32 * split_shape<D, in_registers<D, BLOCKS, ONE>>::W);
    size_t bytes = split_bytes<D, BLOCKS, ONE>(x.schedule.stages, x.line);
    if constexpr (has_lone<D, BLOCKS, ONE>)
        if (x.parts.n_rows == 1 && !x.a.st.rows.seen) {
            LAUNCH((split_kernel<D, BLOCKS, ONE, true>), grid, block, bytes, s, x);
            return;
        }
    LAUNCH((split_kernel<D, BLOCKS, ONE, false>), grid, block, bytes, s, x);
}

template <int D, bool ONE = false> static void split_any(cudaStream_t s, split_args x)
{
    bool f16 = x.a.kv.k_kind == KV_F16 && x.a.kv.v_kind == KV_F16;
    f16 ? split_of<D, false, ONE>(s, x) : split_of<D, true, ONE>(s, x);
}

extern "C" void cu_split(cudaStream_t s, split_args x)
{
    bool one = x.a.kv.single;
    switch (x.a.kv.head_dim) {
    case 64:
        split_any<64>(s, x);
        break;
    case 128:
        split_any<128>(s, x);
        break;
    case 256:
        one ? split_any<256, true>(s, x) : split_any<256>(s, x);
        break;
    default:
        one ? split_any<512, true>(s, x) : split_any<512>(s, x);
    }
}
