/* skip.cu - attention of few rows that drops tiles of keys (skip-softmax, sparse.h) and does not
 * read their values: heads of 128, 256 and 512, two streams, every format but f32.
 *
 *     score_kernel   reads all keys             -> weights as f16; of a tile largest score and sum
 *     vote_kernel    reads the largest scores   -> a bit for each tile: is it kept?
 *     value_kernel   reads values of kept tiles -> partial results of chunks
 *
 * The time of answers is that of reading keys and values. One kernel that decided between the two
 * would request values that it then drops, or wait for memory at each decision. Here the decisions
 * are known before the first value is requested. So both kernels that read have copies in flight
 * all the time. The price is a weight of 2 bytes for each key and query head; an f16 key has 2
 * head_dim bytes.
 *
 * Each pair (row, query head) decides for itself. It drops tile n if the tile's largest score is
 * below the largest score of tiles 0 .. n - 1 by more than the limit. This rule does not depend on
 * how keys are divided between blocks. Tiles begin at multiples of 128. Chunks begin at multiples
 * of a length that depends on the store alone. A tile that only another pair keeps adds nothing to
 * a pair that drops it. So a pair's bits do not depend on other rows, on the grid, or on the chunks
 * of a prompt.
 *
 * The sums of dropped tiles are known too. So the certificate (sparse.h) is the dropped share
 * itself.
 *
 * A tree's rows share the tiles and chunks of committed keys; the others have a block for each row
 * (tile_part in attend.cuh).
 */
#include "backend/cuda/attend/attend.cuh"
#include "backend/cuda/attend/launch_skip.h"
#include "backend/cuda/attend/skip_tile.cuh"

static constexpr float LOG2E = 1.4426950408889634f; /* scores are made for exp2 */
static_assert((int)SKIP_TILE % (2 * (int)PAGE_KEYS) == 0, "a step lies in one page");

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    TILE_SHIFT = 7,
    TILE_EACH = SKIP_TILE / 32, /* scores of a lane in a tile */
    STAGES_MIN = 2,
    STAGES_MAX = 6
};
static_assert(1 << TILE_SHIFT == SKIP_TILE, "tiles");

/* A step is KEYS keys or values: 16 or 32 KB of f16. */
template <int D, int NG> struct shape {
    static constexpr int PAIRS = 8 * NG, KEYS = D == 128 ? 64 : 32, STEPS = SKIP_TILE / KEYS;
    /* Scores: groups of 16 keys, which divide the head's length by PARTS. */
    static constexpr int GROUPS = KEYS / 16, PARTS = WARPS / GROUPS, PART = D / PARTS;
    static constexpr int LINE_Q = D + 32, LINE_S = KEYS + 8, LINE_P = KEYS + 8;
    /* Values: 64 columns a warp, and MINE keys of a step. */
    static constexpr int COLUMNS = D / 64, SHARERS = WARPS / COLUMNS, MINE = KEYS / SHARERS;
    /* Blocks of the values' kernel on a multiprocessor: as registers allow. */
    static constexpr int VALUE_BLOCKS = D == 512 && NG == 2 ? 1 : 2;
    static constexpr int score_bytes = PAIRS * (LINE_Q * 2 + PARTS * LINE_S * 4 + 4);
    static constexpr int value_bytes = PAIRS * (SKIP_TILES + 1) * 4 + (SKIP_TILES + 4) * 4;
    static constexpr int weight_bytes = PAIRS * LINE_P * 2; /* of a stage */
    static constexpr int join_bytes = (WARPS - COLUMNS) * NG * 16 * 32 * 4;
};
/* From row to row in shared memory: an odd multiple of 16. */
static constexpr __host__ __device__ int line_of(int row)
{
    return line_bytes((row + 15) / 16 * 16);
}

/* ---- A block's rows and keys --------------------------------------------------------------- */

struct block_rows {
    int r0, h0, n, group; /* n pairs: the heads of a KV head of rows from r0 on */
    dev_kv_base base;
    int committed, own_from;
    int from, until; /* its keys; from: a multiple of a tile; empty if from >= until */
    int end;         /* of all keys of these rows */
};
/* hi: [PAIRS] the keys [0, hi) that each pair sees. The block takes its run of the chunks of 1 <<
 * shift keys. The step was uploaded before the pass, so this needs no wait. */
template <int PAIRS> DEV block_rows rows_of(const skip_args &x, int *hi, int shift)
{
    const dev_rows &rows = x.a.st.rows;
    tile_part part =
        tile_part_of(x.parts, x.schedule, rows.seen != NULL, (int)blockIdx.z, (int)blockIdx.y);
    block_rows b;
    b.group = x.a.n_head / x.a.kv.n_head_kv;
    b.r0 = part.r0, b.h0 = (int)blockIdx.x * b.group, b.n = part.n_rows * b.group;
    b.base = store_of(x.a.st, rows.seq[b.r0], x.a.kv);
    b.committed = rows.first[b.r0];
    b.own_from = own_keys_from(rows, b.r0);
    if ((int)threadIdx.x < PAIRS) {
        int see = 0;
        if ((int)threadIdx.x < b.n)
            see = row_sight(rows, b.r0 + pair_row((int)threadIdx.x, x.schedule), 0).hi;
        hi[threadIdx.x] = see;
    }
    __syncthreads();
    int first = 0;
    b.end = 0;
    for (int i = 0; i < b.n; i += b.group)
        b.end = max(b.end, hi[i]);
    part_keys(part, b.committed, shift, &first, &b.end);
    int c = first >> shift, n = first < b.end ? ((b.end - 1) >> shift) + 1 - c : 0;
    int c0 = c + n * part.run / part.n_runs, c1 = c + n * (part.run + 1) / part.n_runs;
    b.from = c0 << shift, b.until = min(b.end, c1 << shift);
    return b;
}

/* Rows t .. t + KEYS - 1 of a stream, 16 threads a row. Rows from `until` on are copies of the last
 * one before: finite, and of weight 0. */
template <int D, int KEYS>
DEV void copy_rows(uint8_t *to, const uint8_t *head, int bytes, int t, int until,
                   const skip_args &x, const block_rows &b)
{
    int at = (int)threadIdx.x % 16, line = line_of(bytes);
    key_walk walk = key_walk_at(x.a.kv, b.base.page, t);
#pragma unroll
    for (int i = 0; i < KEYS; i += 16) {
        int row = (int)threadIdx.x / 16 + i, key = min(row, until - 1 - t);
        int place = key_place(walk, key);
        if (t + key >= b.own_from)
            place = row_key_place(x.a.kv, b.base.page, x.a.st.rows, b.r0, t + key);
        const uint8_t *from = head + (uint64_t)(uint32_t)place * (uint32_t)bytes;
        uint8_t *row_at = to + row * line;
        if (D > 128 || bytes % 16 == 0) {
#pragma unroll 2
            for (int j = 16 * at; j < bytes; j += 256)
                copy16_async(row_at + j, from + j, true);
        } else { /* rows begin at multiples of 8 bytes */
#pragma unroll 2
            for (int j = 8 * at; j < bytes; j += 128)
                copy8_async(row_at + j, from + j);
        }
    }
}

/* The scratch of a pair. */
DEV size_t pair_at(const skip_args &x, const block_rows &b, int m)
{
    int r = pair_row(m, x.schedule);
    return (size_t)(b.r0 + r - x.parts.row0) * x.a.n_head + b.h0 + m - r * b.group;
}

/* ---- Keys ---------------------------------------------------------------------------------- */

template <int D, int NG, int KIND>
DEV void scores_as(float (*s)[4], const uint16_t *sq, const uint8_t *tile)
{
    using F = shape<D, NG>;
    constexpr int LINE = line_of(row_bytes<KIND, D>);
    int lane = lane_id(), g = lane >> 2, t = lane & 3, warp = (int)threadIdx.x >> 5;
    int part = warp / F::GROUPS;
    const uint8_t *k = tile + (warp % F::GROUPS * 16 + g) * LINE + part * row_bytes<KIND, F::PART>;
    const uint16_t *q = sq + g * F::LINE_Q + part * F::PART + 8 * t;
    multiply_keys<KIND, NG, F::PART, LINE, F::LINE_Q>(s, k, q);
}
template <int D, int NG>
DEV void scores(float (*s)[4], const uint16_t *sq, const uint8_t *tile, int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        scores_as<D, NG, k>(s, sq, tile);                                                          \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}

/* A lane's scores of pair m in tile n to weights, the largest score and the sum of weights. */
DEV void leave_tile(const skip_args &x, size_t pair, int n, const float *v)
{
    float best = -INFINITY, sum = 0;
#pragma unroll
    for (int j = 0; j < TILE_EACH; j++)
        best = fmaxf(best, v[j]);
    best = warp_max(best);
    float zero = best == -INFINITY ? 0 : best; /* no infinity minus itself */
    size_t tile = pair * x.n_tiles + n;
    uint16_t *to = x.weights + tile * SKIP_TILE + lane_id();
#pragma unroll
    for (int j = 0; j < TILE_EACH; j++) {
        float w = fast_exp2(v[j] - zero);
        sum += w;
        to[32 * j] = (uint16_t)f32_to_f16(w);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0)
        ((float2 *)x.tops)[tile] = make_float2(best, sum);
}

/* weights, tops = of scale q[r, h] . k[t, g], by tiles
 * grid:   KV head x runs of tiles x tile of rows
 * shared: Q, parts of S, 2 to 6 steps of keys
 * bound:  reading keys; decoding them, where they have few bytes */
template <int D, int NG> __global__ void __launch_bounds__(THREADS, 2) score_kernel(skip_args x)
{
    using F = shape<D, NG>;
    const attend_args &a = x.a;
    DYN_SHARED(uint16_t, sq);
    float *parts = (float *)(sq + F::PAIRS * F::LINE_Q);
    int *hi = (int *)(parts + F::PARTS * F::PAIRS * F::LINE_S);
    uint8_t *ring = (uint8_t *)(hi + F::PAIRS);
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), stages = x.schedule.stages;
    grid_trigger();
    block_rows b = rows_of<F::PAIRS>(x, hi, TILE_SHIFT);
    if (b.from >= b.until) {
        grid_wait(); /* the next kernel relies on it */
        return;
    }
    const uint8_t *head = head_rows(a.kv, b.base.k, (int)blockIdx.x, a.kv.k_bytes);
    int stage_bytes = F::KEYS * line_of(a.kv.k_bytes);
    bool waited = false;
    /* Keys of earlier passes are requested at once, keys of this pass after the previous kernel. */
#pragma unroll 1
    for (int i = 0, t = b.from; i < stages; i++, t += F::KEYS) {
        if (!waited && min(b.until, t + F::KEYS) > b.committed) {
            grid_wait();
            waited = true;
        }
        if (t < b.until)
            copy_rows<D, F::KEYS>(ring + i * stage_bytes, head, a.kv.k_bytes, t, b.until, x, b);
        copy_commit();
    }
    if (!waited)
        grid_wait();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < F::PAIRS * D / 8; i += THREADS) {
        int m = i / (D / 8), e = i % (D / 8), r = pair_row(m, x.schedule);
        const float *q = a.q.at + (b.r0 + r) * a.q.stride + (b.h0 + m - r * b.group) * D;
        *(uint4 *)(sq + m * F::LINE_Q + 8 * e) =
            query_piece(q, m < b.n, a.kv.k_kind, e, a.scale * LOG2E);
    }
    float v[NG][TILE_EACH]; /* pairs warp + 8 n: a tile's keys lane + 32 j */
#pragma unroll
    for (int n = 0; n < NG * TILE_EACH; n++)
        v[n / TILE_EACH][n % TILE_EACH] = -INFINITY;
    int stage = 0;
#pragma unroll 1
    for (int t = b.from; t < b.until; t += F::KEYS) {
        uint8_t *keys = ring + stage * stage_bytes;
        copies_wait(stages - 1);
        __syncthreads(); /* keys have arrived; parts of the step before have been added */
        float s[NG][4];
        scores<D, NG>(s, sq, keys, a.kv.k_kind);
        float *to = parts + (warp / F::GROUPS * F::PAIRS + 2 * (lane & 3)) * F::LINE_S +
                    warp % F::GROUPS * 16 + (lane >> 2);
#pragma unroll
        for (int n = 0; n < NG; n++, to += 8 * F::LINE_S)
            to[0] = s[n][0], to[F::LINE_S] = s[n][1], to[8] = s[n][2], to[F::LINE_S + 8] = s[n][3];
        __syncthreads(); /* parts are complete; keys have been read */
        int next = t + stages * F::KEYS;
        if (next < b.until)
            copy_rows<D, F::KEYS>(keys, head, a.kv.k_bytes, next, b.until, x, b);
        copy_commit();
        stage = stage + 1 == stages ? 0 : stage + 1;
        int step = t % SKIP_TILE / F::KEYS;
        bool ends = t + F::KEYS >= b.until || step == F::STEPS - 1;
#pragma unroll
        for (int n = 0; n < NG; n++) {
            int m = warp + 8 * n;
            if (m >= b.n)
                break;
#pragma unroll
            for (int j = 0; j < TILE_EACH; j++) {
                int key = lane + 32 * j - step * F::KEYS;
                if (32 * j / F::KEYS != step)
                    continue;
                float sum = parts[m * F::LINE_S + key];
#pragma unroll
                for (int p = 1; p < F::PARTS; p++)
                    sum += parts[(p * F::PAIRS + m) * F::LINE_S + key];
                v[n][j] = t + key < hi[m] ? sum : -INFINITY;
            }
            if (!ends)
                continue;
            leave_tile(x, pair_at(x, b, m), t / SKIP_TILE, v[n]);
#pragma unroll
            for (int j = 0; j < TILE_EACH; j++)
                v[n][j] = -INFINITY;
        }
    }
    copy_wait<0>();
}

/* ---- Votes --------------------------------------------------------------------------------- */

/* The largest value of the lanes below this one. */
DEV float max_below(float v)
{
    int lane = lane_id();
    v = shfl_f32(v, max(lane - 1, 0));
    v = lane ? v : -INFINITY;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        float u = shfl_f32(v, max(lane - d, 0));
        v = lane >= d ? fmaxf(v, u) : v;
    }
    return v;
}

/* Of a row and head: the sums of weights kept and dropped, relative to its largest score. */
struct vote_sums {
    float kept, lost;
    int n_kept;
};
DEV void count_votes(unsigned long long *stats, int n_tiles, vote_sums s)
{
    enum { DECADES = 8, STEPS = 20, BINS = SPARSE_COUNTS - 2 }; /* of sparse.h */
    float share = s.lost > 0 ? s.lost / (s.kept + s.lost) : 0;
    int bin = 0;
    if (share >= 1e-8f)
        bin = min((int)floorf((log10f(share) + DECADES) * STEPS) + 1, BINS - 1);
    atomicAdd(&stats[0], (unsigned long long)n_tiles);
    atomicAdd(&stats[1], (unsigned long long)s.n_kept);
    atomicAdd(&stats[2 + bin], 1ull);
}

/* kept[r, h] = the tiles whose largest score is not below those of the tiles before it by more than
 * log2(limit). A tile with a NaN is kept, so that it shows.
 * grid:   head x row
 * shared: the largest score of each 32 tiles
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) vote_kernel(skip_args x)
{
    __shared__ float top[SKIP_WORDS];
    __shared__ vote_sums table[WARPS];
    const dev_rows &rows = x.a.st.rows;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, r = x.parts.row0 + (int)blockIdx.y;
    int n_keys = row_sight(rows, r, 0).hi, seq = rows.seq[r];
    int n_tiles = (n_keys + SKIP_TILE - 1) / SKIP_TILE, n_words = (n_tiles + 31) / 32;
    size_t pair = (size_t)blockIdx.y * x.a.n_head + blockIdx.x;
    const float2 *tops = (const float2 *)x.tops + pair * x.n_tiles;
    float limit = fminf(log2f(x.skip[seq]) - log2f((float)n_keys), 0.0f), most = -INFINITY;
    grid_trigger();
    grid_wait();
    for (int w = warp; w < n_words; w += WARPS) {
        int n = 32 * w + lane;
        float best = warp_max(n < n_tiles ? tops[n].x : -INFINITY);
        if (lane == 0)
            top[w] = best;
    }
    __syncthreads();
    for (int w = lane; w < n_words; w += 32)
        most = fmaxf(most, top[w]);
    most = warp_max(most);
    vote_sums s = {0, 0, 0};
    for (int w = warp; w < n_words; w += WARPS) {
        int n = 32 * w + lane;
        float before = -INFINITY;
        for (int i = lane; i < w; i += 32)
            before = fmaxf(before, top[i]);
        before = warp_max(before);
        float2 t = n < n_tiles ? tops[n] : make_float2(-INFINITY, 0);
        before = fmaxf(before, max_below(t.x));
        bool drop = t.x - before < limit && t.y == t.y;
        float sum = n < n_tiles ? t.y * fast_exp2(t.x - most) : 0;
        s.kept += drop ? 0 : sum;
        s.lost += drop ? sum : 0;
        uint32_t bits = (uint32_t)warp_sum_i32((int)(n < n_tiles && !drop ? 1u << lane : 0));
        s.n_kept += bits_set(bits);
        if (lane == 0)
            x.kept[pair * x.n_word + w] = bits;
    }
    s.kept = warp_sum(s.kept);
    s.lost = warp_sum(s.lost);
    if (lane == 0)
        table[warp] = s;
    __syncthreads();
    unsigned long long *stats = x.stats[seq];
    if (threadIdx.x || !stats)
        return;
    for (int w = 1; w < WARPS; w++) {
        s.kept += table[w].kept;
        s.lost += table[w].lost;
        s.n_kept += table[w].n_kept;
    }
    count_votes(stats, n_tiles, s);
}

/* ---- Values -------------------------------------------------------------------------------- */

template <int D, int NG, int KIND>
DEV void sums_as(float (*o)[4][4], const uint16_t *p, const uint8_t *tile)
{
    using F = shape<D, NG>;
    constexpr int LINE = line_of(row_bytes<KIND, D>);
    int lane = lane_id(), warp = (int)threadIdx.x >> 5, first = warp / F::COLUMNS * F::MINE;
    p += (lane >> 2) * F::LINE_P + 2 * (lane & 3) + first;
    const uint8_t *v = tile + (first + 2 * (lane & 3)) * LINE;
#pragma unroll 1 /* registers are few */
    for (int k = 0; k < F::MINE; k += 16)
        multiply_values<KIND, NG, 16, LINE, F::LINE_P>(o, v + k * LINE, p + k, warp % F::COLUMNS);
}
template <int D, int NG>
DEV void sums(float (*o)[4][4], const uint16_t *p, const uint8_t *tile, int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        sums_as<D, NG, k>(o, p, tile);                                                             \
        break;
        EACH_FORMAT(DO)
#undef DO
    }
}

/* A chunk: its first tile, and the tiles that a pair keeps. In shared memory. */
struct chunk_tiles {
    float *factor;      /* [PAIRS][SKIP_TILES]: of a tile's weights, relative to the chunk's largest
                           score among the kept tiles; 0: the pair drops the tile */
    int *list, *n_list; /* [SKIP_TILES] numbers in the chunk, ascending */
    const int *hi;
};
/* Where pair m leaves its result of chunk c; NULL if it has none. */
DEV float *pair_part(const skip_args &x, const block_rows &b, const int *hi, int m, int c)
{
    if (m >= b.n || c << x.schedule.chunk_shift >= hi[m])
        return NULL;
    int r = pair_row(m, x.schedule);
    return part_at(x.a, x.parts, b.r0 + r, b.h0 + m - r * b.group, c);
}

/* What each pair keeps of chunk c, and its largest score and sum, to its part. All warps call. */
template <int D, int NG>
DEV void begin_chunk(const skip_args &x, const block_rows &b, const chunk_tiles &c, int number)
{
    int lane = lane_id(), warp = (int)threadIdx.x >> 5;
    int first = number << (x.schedule.chunk_shift - TILE_SHIFT), n = x.parts.chunk / SKIP_TILE;
#pragma unroll 1
    for (int m = warp; m < 8 * NG; m += WARPS) {
        int end = m < b.n ? (c.hi[m] + SKIP_TILE - 1) / SKIP_TILE : 0;
        size_t pair = m < b.n ? pair_at(x, b, m) : 0;
        const float2 *tops = (const float2 *)x.tops + pair * x.n_tiles;
        float2 t[SKIP_TILES / 32];
        float best = -INFINITY, total = 0;
#pragma unroll
        for (int k = 0; k < SKIP_TILES / 32; k++) {
            int i = lane + 32 * k, at = first + i;
            bool keeps = i < n && at < end && x.kept[pair * x.n_word + at / 32] >> (at % 32) & 1;
            t[k] = keeps ? tops[at] : make_float2(-INFINITY, 0);
            best = fmaxf(best, t[k].x);
        }
        best = warp_max(best);
#pragma unroll
        for (int k = 0; k < SKIP_TILES / 32; k++) {
            float f = best == -INFINITY ? 0 : fast_exp2(t[k].x - best);
            total += f * t[k].y;
            c.factor[m * SKIP_TILES + lane + 32 * k] = f;
        }
        total = warp_sum(total);
        float *to = pair_part(x, b, c.hi, m, number);
        if (lane == 0 && to)
            *(float2 *)(to + D) = make_float2(best / LOG2E, total);
    }
    __syncthreads();
    if (warp == 0) {
        int n_list = 0;
#pragma unroll
        for (int k = 0; k < SKIP_TILES; k += 32) {
            bool any = false;
            for (int m = 0; m < b.n; m++)
                any |= c.factor[m * SKIP_TILES + lane + k] != 0;
            uint32_t bits = (uint32_t)warp_sum_i32((int)(any ? 1u << lane : 0));
            if (any)
                c.list[n_list + bits_set(bits & ((1u << lane) - 1))] = lane + k;
            n_list += bits_set(bits);
        }
        if (lane == 0)
            *c.n_list = n_list;
    }
    __syncthreads();
}

/* Values of the kept tiles of a chunk: step s is a part of tile list[s / STEPS]. */
template <int D, int NG>
DEV void copy_step(uint8_t *to, const skip_args &x, const block_rows &b, const uint8_t *head,
                   int first, int until)
{
    using F = shape<D, NG>;
    int last = (until - 1) / F::KEYS * F::KEYS; /* later ones of its tile have weights of 0 */
    copy_rows<D, F::KEYS>(to + F::weight_bytes, head, x.a.kv.v_bytes, min(first, last), until, x,
                          b);
    constexpr int PIECES = F::KEYS / 8;
    int m = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;
    if (m < F::PAIRS) {
        size_t pair = m < b.n ? pair_at(x, b, m) : 0;
        copy16_async(to + m * F::LINE_P * 2 + 16 * piece,
                     x.weights + pair * x.n_tiles * SKIP_TILE + first + 8 * piece, m < b.n);
    }
}

/* Adds up the results of warps that share columns, in the order of warps, to the first of them.
 * All warps call. */
template <int D, int NG> DEV void join_sharers(float (*o)[4][4], float *room)
{
    using F = shape<D, NG>;
    int lane = lane_id(), warp = (int)threadIdx.x >> 5;
    if constexpr (F::SHARERS > 1) {
#pragma unroll
        for (int i = 0; i < NG * 16 && warp >= F::COLUMNS; i++)
            room[((warp - F::COLUMNS) * NG * 16 + i) * 32 + lane] = o[i / 16][i / 4 % 4][i % 4];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < F::SHARERS - 1 && warp < F::COLUMNS; k++)
#pragma unroll
            for (int i = 0; i < NG * 16; i++)
                o[i / 16][i / 4 % 4][i % 4] +=
                    room[((k * F::COLUMNS + warp) * NG * 16 + i) * 32 + lane];
    }
}

template <int NG> DEV void clear(float (*o)[4][4])
{
#pragma unroll
    for (int i = 0; i < NG * 16; i++)
        o[i / 16][i / 4 % 4][i % 4] = 0;
}

/* part[r, h, c] = sum of weights times values, over the kept tiles of chunk c
 * grid:   KV head x chunks x tile of rows
 * shared: factors of tiles, 2 to 6 steps of values and weights
 * bound:  reading kept values */
template <int D, int NG>
__global__ void __launch_bounds__(THREADS, (shape<D, NG>::VALUE_BLOCKS)) value_kernel(skip_args x)
{
    using F = shape<D, NG>;
    const attend_args &a = x.a;
    DYN_SHARED(float, factor);
    int *list = (int *)(factor + F::PAIRS * SKIP_TILES), *hi = list + SKIP_TILES + 4;
    uint8_t *ring = (uint8_t *)(hi + F::PAIRS);
    chunk_tiles tiles = {factor, list, list + SKIP_TILES, hi};
    int warp = (int)threadIdx.x >> 5, lane = lane_id(), stages = x.schedule.stages;
    int stage_bytes = F::weight_bytes + F::KEYS * line_of(a.kv.v_bytes);
    int shift = x.schedule.chunk_shift;
    grid_trigger();
    grid_wait();
    block_rows b = rows_of<F::PAIRS>(x, hi, shift);
    const uint8_t *head = head_rows(a.kv, b.base.v, (int)blockIdx.x, a.kv.v_bytes);
#pragma unroll 1
    for (int c = b.from >> shift; c << shift < b.until; c++) {
        begin_chunk<D, NG>(x, b, tiles, c);
        int until = min(b.end, (c + 1) << shift), n_steps = *tiles.n_list * F::STEPS;
        auto first_of = [&](int s) {
            return (c << shift) + list[s / F::STEPS] * SKIP_TILE + s % F::STEPS * F::KEYS;
        };
#pragma unroll 1
        for (int s = 0; s < stages; s++) {
            if (s < n_steps)
                copy_step<D, NG>(ring + s * stage_bytes, x, b, head, first_of(s), until);
            copy_commit();
        }
        float o[NG][4][4], sum[NG][4][4];
        clear<NG>(o);
        clear<NG>(sum);
        int stage = 0;
#pragma unroll 1
        for (int s = 0; s < n_steps; s++) {
            uint8_t *at = ring + stage * stage_bytes;
            copies_wait(stages - 1);
            __syncthreads(); /* values and weights have arrived */
            sums<D, NG>(sum, (const uint16_t *)at, at + F::weight_bytes, a.kv.v_kind);
            __syncthreads(); /* they have been read */
            if (s + stages < n_steps)
                copy_step<D, NG>(at, x, b, head, first_of(s + stages), until);
            copy_commit();
            stage = stage + 1 == stages ? 0 : stage + 1;
            if (s % F::STEPS != F::STEPS - 1)
                continue;
            const float *f = factor + 2 * (lane & 3) * SKIP_TILES + list[s / F::STEPS];
#pragma unroll
            for (int i = 0; i < NG * 16; i++) {
                float by = f[(i / 16 * 8 + i % 2) * SKIP_TILES], &y = o[i / 16][i / 4 % 4][i % 4];
                y = by > 0 ? fma_rn(by, sum[i / 16][i / 4 % 4][i % 4], y) : y;
            }
            clear<NG>(sum);
        }
        copy_wait<0>();
        __syncthreads();
        join_sharers<D, NG>(o, (float *)ring);
        int e = warp * 8 + (lane >> 2);
#pragma unroll
        for (int i = 0; i < 2 * NG; i++) {
            float *to = pair_part(x, b, hi, i / 2 * 8 + 2 * (lane & 3) + i % 2, c);
            if (!to || warp >= F::COLUMNS)
                continue;
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(float2 *)(to + value_order(a.kv.v_kind, e, 2 * j)) =
                    make_float2(o[i / 2][j][i % 2], o[i / 2][j][2 + i % 2]);
        }
        __syncthreads(); /* the next chunk overwrites the lists */
    }
}

/* ---- Host side ----------------------------------------------------------------------------- */

/* Stages of copies, and the shared memory of a block with them. Up to `blocks` blocks on a
 * multiprocessor: two, if each has three stages; else one, with all that fit. */
struct stage_plan {
    int stages, bytes, blocks;
};
static stage_plan plan_of(int fixed, int stage, int least, int blocks)
{
    int all = cu_gpu.shared_block, half = cu_gpu.shared_sm / 2 - BLOCK_RESERVED;
    stage_plan p = {(half - fixed) / stage, 0, 2};
    if (blocks == 1 || half > all || p.stages < 3)
        p.stages = (all - fixed) / stage, p.blocks = 1;
    p.stages = p.stages < STAGES_MAX ? p.stages : (int)STAGES_MAX;
    p.bytes = fixed + (p.stages * stage > least ? p.stages * stage : least);
    if (p.stages < STAGES_MIN || p.bytes > all)
        p.stages = 0;
    return p;
}
template <int D, int NG> static stage_plan score_plan(const dev_kv &kv)
{
    using F = shape<D, NG>;
    return plan_of(F::score_bytes, F::KEYS * line_of(kv.k_bytes), 0, 2);
}
template <int D, int NG> static stage_plan value_plan(const dev_kv &kv)
{
    using F = shape<D, NG>;
    return plan_of(F::value_bytes, F::weight_bytes + F::KEYS * line_of(kv.v_bytes), F::join_bytes,
                   F::VALUE_BLOCKS);
}

template <int D> static bool fits(const dev_kv &kv)
{
    return score_plan<D, 2>(kv).stages && value_plan<D, 2>(kv).stages &&
           score_plan<D, 1>(kv).stages && value_plan<D, 1>(kv).stages;
}
extern "C" bool cu_skip_fits(dev_kv kv)
{
    return kv.head_dim == 128   ? fits<128>(kv)
           : kv.head_dim == 256 ? fits<256>(kv)
                                : kv.head_dim == 512 && fits<512>(kv);
}

template <int D, int NG> static int allow(int largest)
{
    return allow_shared(score_kernel<D, NG>, largest) | allow_shared(value_kernel<D, NG>, largest);
}
extern "C" int cu_skip_init(int largest)
{
    return allow<128, 1>(largest) | allow<128, 2>(largest) | allow<256, 1>(largest) |
           allow<256, 2>(largest) | allow<512, 1>(largest) | allow<512, 2>(largest);
}

template <int D, int NG> static void launch_of(cudaStream_t s, skip_args x)
{
    unsigned heads = (unsigned)x.a.kv.n_head_kv, own = (unsigned)own_blocks(x.a, x.schedule);
    unsigned rows = (unsigned)((x.parts.n_rows + x.schedule.tile_rows - 1) / x.schedule.tile_rows);
    stage_plan p = score_plan<D, NG>(x.a.kv), v = value_plan<D, NG>(x.a.kv);
    int most = x.parts.n_chunk * (x.parts.chunk / SKIP_TILE);
    int n = cu_gpu.n_sm * p.blocks / (int)(heads * rows);
    x.schedule.n_block = n < 1 ? 1 : n < most ? n : most;
    x.schedule.stages = p.stages;
    LAUNCH((score_kernel<D, NG>), dim3(heads, (unsigned)x.schedule.n_block + own, rows),
           dim3(THREADS), (size_t)p.bytes, s, x);
    LAUNCH(vote_kernel, dim3((unsigned)x.a.n_head, (unsigned)x.parts.n_rows), dim3(THREADS), 0, s,
           x);
    x.schedule.n_block = x.parts.n_chunk;
    x.schedule.stages = v.stages;
    LAUNCH((value_kernel<D, NG>), dim3(heads, (unsigned)x.schedule.n_block + own, rows),
           dim3(THREADS), (size_t)v.bytes, s, x);
}
template <int D> static void launch(cudaStream_t s, const skip_args &x)
{
    int rows = x.schedule.tile_rows < x.parts.n_rows ? x.schedule.tile_rows : x.parts.n_rows;
    rows *x.a.n_head / x.a.kv.n_head_kv > 8 ? launch_of<D, 2>(s, x) : launch_of<D, 1>(s, x);
}

extern "C" void cu_skip(cudaStream_t s, skip_args x)
{
    if (x.a.kv.head_dim == 128)
        launch<128>(s, x);
    else if (x.a.kv.head_dim == 256)
        launch<256>(s, x);
    else
        launch<512>(s, x);
}
