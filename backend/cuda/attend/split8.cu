/* split8.cu - attention of few rows on the f16 tensor cores, keys first: heads of 256 and 512 whose
 * keys or values are in blocks or bf16; where split.cu does not fit, heads of 512 in f16 too.
 *
 *     S^T [16 keys x 8 pairs] = K Q^T        O^T [16 columns of V x 8 pairs] += V^T P^T
 *
 *     S: groups of 16 keys x parts of the head | softmax in every warp | P V: 64 columns a warp
 *     ^ keys have arrived                       ^ scores are complete   ^ values have arrived
 *
 * Chunks, their division among blocks and the partial results are those of split.cu. Here keys are
 * the 16 rows of a product and pairs (row, head) its 8 columns, so eight heads per KV head waste
 * nothing, and the eight elements that a lane decodes (kv_pieces.cuh) go into products whole. A
 * block walks tiles of 64 keys (32 in heads of 256, and where a tile would not fit in 99 KB), with
 * a barrier before each of the three steps above. Keys and values have separate stages, refilled as
 * soon as all warps have read them, so one stage of each may do. Blocks are small, two or four per
 * multiprocessor, and hide each other's latency. Every warp adds up the parts of S and makes the
 * probabilities that its products need.
 *
 * 9 to 16 pairs (NG = 2) are a second product with the decoded elements. Columns are independent,
 * so a pair's bits do not depend on other pairs. In a window a block has one tile and mostly waits
 * for instructions that run once: the most common formats (KIND) have kernels of their own, with
 * row lengths known to the compiler. KV_KINDS is the kernel of all other formats, and of mixed
 * ones.
 */
#include "backend/cuda/attend/attend.cuh"
#include "backend/cuda/attend/kv_pieces.cuh"
#include "backend/cuda/attend/launch_attend.h"

static constexpr float LOG2E = 1.4426950408889634f; /* scores are made for exp2 */

/* Heads of HEAD, 8 GROUPS pairs, tiles of TILE keys; W warps. For S, KEYS / 16 of them share a part
 * of the head's length. */
template <int HEAD, int GROUPS, int TILE> struct split8_shape {
    static constexpr int D = HEAD, NG = GROUPS, KEYS = TILE;
    static constexpr int W = D / 64, PARTS = W / (KEYS / 16);
    static constexpr int BLOCKS = D == 256 ? 4 : KEYS == 64 ? 2 : 1; /* per multiprocessor */
    static constexpr int PAIRS = 8 * NG, ROWS = PAIRS / W; /* ROWS: pairs of a warp's softmax */
    static constexpr int LINE_Q = D + 32, LINE_S = KEYS + 8, LINE_P = KEYS + 8;
    static constexpr int fixed =
        PAIRS * (LINE_Q * 2 + LINE_P * 2 + PARTS * LINE_S * 4 + 3 * (int)sizeof(int)) + 16;
};
/* Shared memory beside the stages. */
struct split8_shared {
    uint16_t *q, *p;          /* [PAIRS][LINE_Q], probabilities [PAIRS][LINE_P] */
    float *scores, *shrink;   /* [PARTS][PAIRS][LINE_S], [PAIRS] */
    const dev_kv_page **page; /* the table, here because registers are few; or NULL */
};

/* ---- A tile -------------------------------------------------------------------------------- */

/* Keys or values of one KV head, their stages, and the next tile. */
struct tile_copier {
    const uint8_t *head;
    uint8_t *stages;
    int bytes, stage, t; /* of a row; the next tile's stage and first key */
    int place;           /* of key t */
    int from, until;     /* keys outside are not there */
    int own_from;        /* keys from there on are row r0's own */
};

/* The next tile, as a group of copies: THREADS threads a row. Absent rows are copies of a present
 * one: finite, and hidden by the softmax. */
template <class F, int KIND>
DEV void copy_next(tile_copier *c, int n_stages, const attend_args &a, int r0,
                   const split8_shared &mem)
{
    constexpr int D = F::D, KEYS = F::KEYS;
    constexpr int THREADS = D / 2 / KEYS, STEP = 16 * THREADS;
    int row = (int)threadIdx.x / THREADS, at = (int)threadIdx.x % THREADS * 16;
    int bytes = KIND == KV_KINDS ? c->bytes : row_bytes<KIND, D>;
    if (c->t < c->until) {
        int key = min(max(row, c->from - c->t), c->until - 1 - c->t);
        key_walk walk = {a.kv.window ? NULL : *mem.page, a.kv.n_slots, {c->place}};
        int place = key_place(walk, key);
        if (c->t + key >= c->own_from)
            place = row_key_place(a.kv, walk.page, a.st.rows, r0, c->t + key);
        const uint8_t *from = opaque(c->head + (uint64_t)(uint32_t)place * (uint32_t)bytes + at);
        uint8_t *to = c->stages + (c->stage * KEYS + row) * line_bytes(bytes) + at;
        constexpr int FIRST = KIND == KV_KINDS ? 4 : (row_bytes<KIND, D> + STEP - 1) / STEP;
#pragma unroll
        for (int i = 0; i < FIRST; i++)
            if (at + i * STEP < bytes)
                copy16_async(to + i * STEP, from + i * STEP, true);
#pragma unroll 1
        for (int k = FIRST; k * STEP < bytes; k += 4)
#pragma unroll
            for (int i = k; i < k + 4; i++)
                if (at + i * STEP < bytes)
                    copy16_async(to + i * STEP, from + i * STEP, true);
        key_walk_on(&walk, KEYS, c->t + KEYS, c->until);
        c->place = walk.place[0];
    }
    copy_commit();
    c->t += KEYS;
    c->stage = c->stage + 1 == n_stages ? 0 : c->stage + 1;
}

/* s: the warp's 16 keys x pairs, over its part of the head's length. Even and odd products have
 * separate sums: half the latency. */
template <class F, int KIND>
DEV void scores_as(float (*s)[4], const uint16_t *sq, const uint8_t *tile)
{
    constexpr int D = F::D, NG = F::NG;
    constexpr int LINE = line_bytes(row_bytes<KIND, D>), PART = D / F::PARTS, G = F::KEYS / 16;
    int lane = lane_id(), g = lane >> 2, t = lane & 3, warp = (int)threadIdx.x >> 5;
    const uint8_t *k = tile + (warp % G * 16 + g) * LINE + warp / G * row_bytes<KIND, PART>;
    const uint16_t *q = sq + g * F::LINE_Q + warp / G * PART + 8 * t;
    float s1[NG][4];
#pragma unroll
    for (int n = 0; n < NG; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = s1[n][i] = 0;
#pragma unroll
    for (int b = 0; b < PART / 32; b++) {
        uint4 x = key_piece<KIND>(k, b, t), y = key_piece<KIND>(k + 8 * LINE, b, t);
        uint32_t fa[4] = {x.x, y.x, x.y, y.y}, ga[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
        for (int n = 0; n < NG; n++) {
            uint4 z = *(const uint4 *)(q + 8 * n * F::LINE_Q + 32 * b);
            uint32_t fb[2] = {z.x, z.y}, gb[2] = {z.z, z.w};
            mma_f16(s[n], fa, fb);
            mma_f16(s1[n], ga, gb);
        }
    }
#pragma unroll
    for (int n = 0; n < NG; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] += s1[n][i];
}

/* o += V^T P^T: piece `8 warp + g` of each value, its elements two to a product. */
template <class F, int KIND>
DEV void sums_as(float (*o)[4][4], const uint16_t *p, const uint8_t *tile)
{
    constexpr int NG = F::NG, LINE = line_bytes(row_bytes<KIND, F::D>);
    int lane = lane_id(), warp = (int)threadIdx.x >> 5;
    p += (lane >> 2) * F::LINE_P + 2 * (lane & 3);
    const uint8_t *v = tile + 2 * (lane & 3) * LINE;
#pragma unroll
    for (int kk = 0; kk < F::KEYS / 16; kk++, v += 16 * LINE) {
        uint32_t x[8], y[8], fb[NG][2];
#pragma unroll
        for (int n = 0; n < NG; n++) {
            fb[n][0] = *(const uint32_t *)(p + 8 * n * F::LINE_P + 16 * kk);
            fb[n][1] = *(const uint32_t *)(p + 8 * n * F::LINE_P + 16 * kk + 8);
        }
        value_pieces<KIND>(x, v, v + LINE, warp, lane >> 2);
        value_pieces<KIND>(y, v + 8 * LINE, v + 9 * LINE, warp, lane >> 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t fa[4] = {x[2 * j], x[2 * j + 1], y[2 * j], y[2 * j + 1]};
#pragma unroll
            for (int n = 0; n < NG; n++)
                mma_f16(o[n][j], fa, fb[n]);
        }
    }
}

template <class F, int KIND>
DEV void scores(float (*s)[4], const uint16_t *sq, const uint8_t *tile, int kind)
{
    if constexpr (KIND != KV_KINDS) {
        scores_as<F, KIND>(s, sq, tile);
        return;
    }
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        scores_as<F, k>(s, sq, tile);                                                              \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}
template <class F, int KIND>
DEV void sums(float (*o)[4][4], const uint16_t *p, const uint8_t *tile, int kind)
{
    if constexpr (KIND != KV_KINDS) {
        sums_as<F, KIND>(o, p, tile);
        return;
    }
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        sums_as<F, k>(o, p, tile);                                                                 \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}

/* ---- Softmax and what it leaves ------------------------------------------------------------ */

/* The pairs of a block, and the keys [lo, hi) that each sees, in shared memory. */
struct block_pairs {
    const int *lo, *hi;
    int r0, h0, n, group;
    int whole; /* all pairs see [lo of the last, whole) */
};
/* Where pair m leaves its result of chunk c; NULL if it has none. */
DEV float *pair_part(const split8_args &x, const block_pairs &b, int m, int c)
{
    int r = pair_row(m, x.schedule), part = c - (b.lo[m] >> x.schedule.chunk_shift);
    if (m >= b.n || part < 0 || c << x.schedule.chunk_shift >= b.hi[m])
        return NULL;
    return part_at(x.a, x.parts, b.r0 + r, b.h0 + m - r * b.group, part);
}

/* State of a warp's pairs, warp + i W, between tiles: the largest score, and each lane's share of
 * the sum of exponentials. */
template <int ROWS> struct pair_sums {
    float top[ROWS], sum[ROWS];
};

/* Probabilities of the warp's pairs in the tile at t0, and the factors of O; a lane has
 * neighbouring keys. `last`: the chunk ends here. */
template <class F>
DEV void softmax(pair_sums<F::ROWS> *s, const split8_shared &mem, const block_pairs &b,
                 const split8_args &args, int t0, bool last)
{
    constexpr int EACH = F::KEYS / 32;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5;
    bool all = t0 + F::KEYS <= b.whole && t0 >= b.lo[b.n - 1];
#pragma unroll
    for (int i = 0; i < F::ROWS; i++) {
        int m = warp + i * F::W;
        if (m >= b.n)
            break;
        float x[EACH], best = -INFINITY;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const float *from = mem.scores + m * F::LINE_S + EACH * lane + j;
            x[j] = from[0];
#pragma unroll
            for (int part = 1; part < F::PARTS; part++)
                x[j] += from[part * F::PAIRS * F::LINE_S];
            if (!all) {
                int key = t0 + EACH * lane + j;
                x[j] = key >= b.lo[m] && key < b.hi[m] ? x[j] : -INFINITY;
            }
            best = fmaxf(best, x[j]);
        }
        best = fmaxf(s->top[i], warp_max(best));
        float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
        float keep = fast_exp2(s->top[i] - zero), total = s->sum[i] * keep;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            x[j] = fast_exp2(x[j] - zero);
            total += x[j];
        }
        uint16_t *p = mem.p + m * F::LINE_P + EACH * lane;
        if (EACH == 2)
            *(uint32_t *)p = f32x2_to_f16(x[0], x[EACH - 1]);
        else
            *p = (uint16_t)f32_to_f16(x[0]);
        if (lane == 0)
            mem.shrink[m] = keep;
        s->top[i] = last ? -INFINITY : best;
        s->sum[i] = last ? 0 : total;
        if (last) {
            total = warp_sum(total);
            float *to = pair_part(args, b, m, t0 >> args.schedule.chunk_shift);
            if (lane == 0 && to)
                *(float2 *)(to + F::D) = make_float2(best / LOG2E, total);
        }
    }
}

/* Writes the lane's elements of O to chunk c's parts, and clears them. */
template <int NG>
DEV void leave_parts(float (*o)[4][4], const block_pairs &b, const split8_args &x, int c)
{
    int lane = lane_id(), e = ((int)threadIdx.x >> 5) * 8 + (lane >> 2);
#pragma unroll
    for (int n = 0; n < NG; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *to = pair_part(x, b, 8 * n + 2 * (lane & 3) + i, c);
            if (!to)
                continue;
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(float2 *)(to + value_order(x.a.kv.v_kind, e, 2 * j)) =
                    make_float2(o[n][j][i], o[n][j][2 + i]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[n][j][0] = o[n][j][1] = o[n][j][2] = o[n][j][3] = 0;
    }
}

/* Queries in the element order of key pieces; zeros for absent pairs. A piece has four pairs of
 * neighbouring elements, 1 or 4 places apart. */
template <class F>
DEV void load_queries(uint16_t *sq, const block_pairs &b, const split8_args &args, int kind)
{
    const attend_args &a = args.a;
    constexpr int D = F::D;
    bool far = kind == KV_Q4_0 || kind == KV_TQ3_0;
    float scale = a.scale * LOG2E;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < F::PAIRS * D / 8; i += D / 2) {
        int m = i / (D / 8), e = i % (D / 8), r = pair_row(m, args.schedule);
        const float *q = a.q.at + (b.r0 + r) * a.q.stride + (b.h0 + m - r * b.group) * D;
        float2 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[j] = make_float2(0, 0);
            if (m < b.n)
                x[j] = *(const float2 *)(q + key_order(kind, e, far ? j : 2 * j));
            x[j].x *= scale, x[j].y *= scale;
        }
        uint4 u;
        if (far)
            u = make_uint4(f32x2_to_f16(x[0].x, x[1].x), f32x2_to_f16(x[2].x, x[3].x),
                           f32x2_to_f16(x[0].y, x[1].y), f32x2_to_f16(x[2].y, x[3].y));
        else
            u = make_uint4(f32x2_to_f16(x[0].x, x[0].y), f32x2_to_f16(x[1].x, x[1].y),
                           f32x2_to_f16(x[2].x, x[2].y), f32x2_to_f16(x[3].x, x[3].y));
        *(uint4 *)(sq + m * F::LINE_Q + 8 * e) = u;
    }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g], in parts
 * grid:   KV head x runs of chunks x tile of rows; D / 2 threads
 * shared: Q, parts of S, 1 to 3 stages of keys and values: 25 to 150 KB
 * bound:  reading K and V; decoding them, where a key has few bytes */
template <class F, int KIND>
__global__ void __launch_bounds__(F::D / 2, F::BLOCKS) split8_kernel(split8_args x)
{
    const attend_args &a = x.a;
    constexpr int D = F::D, NG = F::NG, W = F::W, KEYS = F::KEYS, PAIRS = F::PAIRS, G = KEYS / 16;
    constexpr int LINE_S = F::LINE_S;
    DYN_SHARED(uint16_t, sq);
    uint16_t *sp = sq + PAIRS * F::LINE_Q;
    float *ss = (float *)(sp + PAIRS * F::LINE_P);
    split8_shared mem = {sq, sp, ss, ss + F::PARTS * PAIRS * LINE_S, NULL};
    int *lo = (int *)(mem.shrink + PAIRS), *hi = lo + PAIRS;
    mem.page = (const dev_kv_page **)(hi + PAIRS);
    uint8_t *k_ring = (uint8_t *)(hi + PAIRS) + 16;
    int group = a.n_head / a.kv.n_head_kv, lane = lane_id(), warp = (int)threadIdx.x >> 5;
    bool tree = a.st.rows.seen;
    tile_part part = tile_part_of(x.parts, x.schedule, tree, (int)blockIdx.z, (int)blockIdx.y);
    int r0 = part.r0;
    block_pairs b = {lo, hi, r0, (int)blockIdx.x * group, part.n_rows * group, group, 0};
    grid_trigger();

    /* The step was uploaded before the pass: no wait for the previous kernel. */
    if ((int)threadIdx.x < PAIRS) {
        sight s = {0, 0};
        if ((int)threadIdx.x < b.n)
            s = row_sight(a.st.rows, r0 + pair_row((int)threadIdx.x, x.schedule), a.kv.window);
        lo[threadIdx.x] = s.lo;
        hi[threadIdx.x] = s.hi;
    }
    dev_kv_base base = store_of(a.st, a.st.rows.seq[r0], a.kv);
    int committed = a.st.rows.first[r0];
    if (!a.kv.window && threadIdx.x == 0)
        *mem.page = base.page;
    __syncthreads();
    int first = lo[0], end = hi[0];
    b.whole = hi[0];
    for (int i = group; i < b.n; i += group) {
        first = min(first, lo[i]);
        end = max(end, hi[i]);
        b.whole = min(b.whole, hi[i]);
    }
    int shift = x.schedule.chunk_shift;
    part_keys(part, committed, shift, &first, &end);
    int chunk0 = first >> shift, n = first < end ? ((end - 1) >> shift) + 1 - chunk0 : 0;
    /* Blocks without a chunk come last, so that no multiprocessor has two blocks with chunks while
     * another has none. */
    int run = part.run, n_runs = min(n, part.n_runs);
    if (run >= n_runs)
        return; /* the next kernel relies on a wait of one block of the grid: others wait */
    int c0 = chunk0 + n * run / n_runs, c1 = chunk0 + n * (run + 1) / n_runs;
    int from = max(first, c0 << shift), until = min(end, c1 << shift);
    int t_first = from / KEYS * KEYS, n_tiles = (until - t_first + KEYS - 1) / KEYS;
    int stages = x.schedule.stages;
    int place = place_of_key(a.kv, base.page, t_first);
    int k_bytes = KIND == KV_KINDS ? a.kv.k_bytes : row_bytes<KIND, D>;
    int v_bytes = KIND == KV_KINDS ? a.kv.v_bytes : row_bytes<KIND, D>;
    int k_tile = KEYS * line_bytes(k_bytes), v_tile = KEYS * line_bytes(v_bytes);
    uint8_t *v_ring = k_ring + stages * k_tile;
    const uint8_t *head_k = head_rows(a.kv, base.k, (int)blockIdx.x, k_bytes);
    const uint8_t *head_v = head_rows(a.kv, base.v, (int)blockIdx.x, v_bytes);
    int own_from = own_keys_from(a.st.rows, r0);
    tile_copier keys = {head_k, k_ring, k_bytes, 0, t_first, place, from, until, own_from};
    tile_copier values = {head_v, v_ring, v_bytes, 0, t_first, place, from, until, own_from};

    /* Keys of earlier passes are requested at once, keys of this pass after the previous kernel. */
    bool waited = false;
#pragma unroll 1
    for (int i = 0; i < stages; i++) {
        if (!waited && min(until, keys.t + KEYS) > committed) {
            grid_wait();
            waited = true;
        }
        copy_next<F, KIND>(&keys, stages, a, r0, mem);
        copy_next<F, KIND>(&values, stages, a, r0, mem);
    }
    if (!waited)
        grid_wait();
    load_queries<F>(sq, b, x, KIND == KV_KINDS ? a.kv.k_kind : KIND);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < PAIRS * F::LINE_P / 2; i += 32 * W)
        ((uint32_t *)sp)[i] = 0; /* probabilities of absent pairs */
    if ((int)threadIdx.x < PAIRS)
        mem.shrink[threadIdx.x] = 0;

    pair_sums<F::ROWS> sum;
    float o[NG][4][4];
#pragma unroll
    for (int i = 0; i < F::ROWS; i++)
        sum.top[i] = -INFINITY, sum.sum[i] = 0;
#pragma unroll
    for (int i = 0; i < NG * 16; i++)
        o[i / 16][i / 4 % 4][i % 4] = 0;
    int stage = 0;
#pragma unroll 1
    for (int i = 0; i < n_tiles; i++) {
        int t0 = t_first + i * KEYS;
        bool last = i + 1 == n_tiles || (t0 + KEYS & ((1 << shift) - 1)) == 0;
        copies_wait(2 * stages - (i ? 2 : 1));
        __syncthreads(); /* keys have arrived; values of the tile before have been read */
        if (i)
            copy_next<F, KIND>(&values, stages, a, r0, mem);
        float s[NG][4];
        scores<F, KIND>(s, sq, k_ring + stage * k_tile, a.kv.k_kind);
        float *to = ss + (warp / G * PAIRS + 2 * (lane & 3)) * LINE_S + warp % G * 16 + (lane >> 2);
#pragma unroll
        for (int n = 0; n < NG; n++, to += 8 * LINE_S)
            to[0] = s[n][0], to[LINE_S] = s[n][1], to[8] = s[n][2], to[LINE_S + 8] = s[n][3];
        __syncthreads(); /* scores are complete; keys have been read */
        copy_next<F, KIND>(&keys, stages, a, r0, mem);
        softmax<F>(&sum, mem, b, x, t0, last);
        copies_wait(2 * stages - 1);
        __syncthreads(); /* probabilities are complete; values have arrived */
#pragma unroll
        for (int n = 0; n < NG; n++) {
            float2 keep = *(const float2 *)(mem.shrink + 8 * n + 2 * (lane & 3));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                o[n][j][0] *= keep.x, o[n][j][1] *= keep.y;
                o[n][j][2] *= keep.x, o[n][j][3] *= keep.y;
            }
        }
        sums<F, KIND>(o, sp, v_ring + stage * v_tile, a.kv.v_kind);
        if (last)
            leave_parts<NG>(o, b, x, t0 >> shift);
        stage = stage + 1 == stages ? 0 : stage + 1;
    }
}

/* ---- Host side ----------------------------------------------------------------------------- */

/* Heads of 256 and 512: keys of a tile. It depends on the store alone, for the last bits of sums
 * depend on it. */
extern "C" int cu_split8_keys(dev_kv kv)
{
    enum { CARDS_99K = 99 << 10 };
    int both = line_bytes(kv.k_bytes) + line_bytes(kv.v_bytes);
    bool fits = 64 * both + split8_shape<512, 2, 64>::fixed <= CARDS_99K;
    return kv.head_dim == 512 && fits ? 64 : 32;
}
template <int D, int TILE> static int fixed_bytes(int n_pairs)
{
    return n_pairs > 8 ? split8_shape<D, 2, TILE>::fixed : split8_shape<D, 1, TILE>::fixed;
}
/* Bytes of shared memory of a block; 0: no kernel for such heads. */
extern "C" int cu_split8_bytes(dev_kv kv, int n_pairs, int stages)
{
    int keys = cu_split8_keys(kv);
    if (kv.single || (kv.head_dim != 256 && kv.head_dim != 512))
        return 0;
    int fixed = kv.head_dim == 256 ? fixed_bytes<256, 32>(n_pairs)
                : keys == 64       ? fixed_bytes<512, 64>(n_pairs)
                                   : fixed_bytes<512, 32>(n_pairs);
    return fixed + stages * keys * (line_bytes(kv.k_bytes) + line_bytes(kv.v_bytes));
}

template <class F> static int allow(int largest)
{
    int bad = allow_shared(split8_kernel<F, KV_KINDS>, largest);
    if constexpr (F::D == 256)
        return bad | allow_shared(split8_kernel<F, KV_Q8_0>, largest) |
               allow_shared(split8_kernel<F, KV_Q4_0>, largest) |
               allow_shared(split8_kernel<F, KV_TQ3_0>, largest);
    if constexpr (F::D == 512 && F::KEYS == 32)
        bad |= allow_shared(split8_kernel<F, KV_F16>, largest);
    return bad;
}
extern "C" int cu_split8_init(int largest)
{
    return allow<split8_shape<256, 1, 32>>(largest) | allow<split8_shape<256, 2, 32>>(largest) |
           allow<split8_shape<512, 1, 64>>(largest) | allow<split8_shape<512, 2, 64>>(largest) |
           allow<split8_shape<512, 1, 32>>(largest) | allow<split8_shape<512, 2, 32>>(largest);
}

template <class F, int KIND> static void launch_kind(cudaStream_t s, const split8_args &x)
{
    dim3 grid((unsigned)x.a.kv.n_head_kv,
              (unsigned)(x.schedule.n_block + own_blocks(x.a, x.schedule)),
              (unsigned)((x.parts.n_rows + x.schedule.tile_rows - 1) / x.schedule.tile_rows));
    LAUNCH((split8_kernel<F, KIND>), grid, dim3(F::D / 2), (size_t)x.spread, s, x);
}

template <class F> static void launch_of(cudaStream_t s, const split8_args &x)
{
    int kind = x.a.kv.k_kind == x.a.kv.v_kind ? x.a.kv.k_kind : (int)KV_KINDS;
    if constexpr (F::D == 256) {
        if (kind == KV_Q8_0)
            return launch_kind<F, KV_Q8_0>(s, x);
        if (kind == KV_Q4_0)
            return launch_kind<F, KV_Q4_0>(s, x);
        if (kind == KV_TQ3_0)
            return launch_kind<F, KV_TQ3_0>(s, x);
    } else if constexpr (F::KEYS == 32) {
        if (kind == KV_F16)
            return launch_kind<F, KV_F16>(s, x);
    }
    launch_kind<F, KV_KINDS>(s, x);
}

template <int D, int TILE> static void launch_tile(cudaStream_t s, const split8_args &x)
{
    int rows = x.schedule.tile_rows < x.parts.n_rows ? x.schedule.tile_rows : x.parts.n_rows;
    if (rows * (x.a.n_head / x.a.kv.n_head_kv) > 8)
        launch_of<split8_shape<D, 2, TILE>>(s, x);
    else
        launch_of<split8_shape<D, 1, TILE>>(s, x);
}

extern "C" void cu_split8(cudaStream_t s, split8_args x)
{
    if (x.a.kv.head_dim == 256)
        launch_tile<256, 32>(s, x);
    else if (cu_split8_keys(x.a.kv) == 64)
        launch_tile<512, 64>(s, x);
    else
        launch_tile<512, 32>(s, x);
}
