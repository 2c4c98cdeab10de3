/* attend.c - attention: soft max over the visible keys, in blocks of keys at fixed places.
 *
 *     prefill  task: row tile x KV head; walks the blocks of keys and merges as it goes
 *     decode   task: row tile x KV head x a few blocks; another loop merges their results
 *
 * Keys are cut into blocks at numbers that are multiples of KEY_BLOCK, in every pass. For one row
 * and head a block gives a partial result: the largest score, the sum of e^(s - top), the weighted
 * sum of values. They are merged in ascending order of block. So a row's result does not depend on
 * other rows, and blocks can be computed on different threads. The query heads of a group and the
 * rows of a tile take a block together: a key is read from memory once for all of them. Only the
 * scores of one block are ever stored. attend_block.c computes a block.
 *
 * Rotated formats: queries are rotated before the op, results rotated back after it.
 */
#include "backend/cpu/attend_int.h"
#include "backend/cpu/table_ops_int.h"

#include <math.h>
#include <string.h>

enum {
    PIECE_FLOATS = 8192, /* of unpacked keys: 32 KB */
    STREAM_BYTES = 8192, /* of one stream at a time: as many as are prefetched */
    QUERIES_MAX = 48,    /* rows of a tile times heads of a group, but at least one row */
    SPLIT_ROWS = 16,     /* passes of at most so many rows may be split by blocks */
    /* split decode. Partial results of all tiles and heads that are held at a time; of one tile and
     * head at least. Blocks of a task at most: a block prefetches the next. */
    WAVE_PARTS = 64,
    WAVE_BLOCKS_MIN = 8,
    RUN_BLOCKS = 4,
    MERGE_FLOATS = 65536 /* partial results that are worth waking the other threads for */
};
_Static_assert((int)KEY_BLOCK == (int)SPARSE_TILE, "a block is a tile of sparse attention");

/* Tiles are cut where the sequence changes, so their starts are found by walking. n_tiles is an
 * upper bound: the last tiles may be empty. */
static row_tile tile_at(const attention *a, int32_t tile)
{
    const rowset *rs = a->p->rows;
    row_tile t = {0, 0};
    for (int32_t i = 0;; i++) {
        t.r0 += t.n;
        t.n = 0;
        while (t.r0 + t.n < a->q.rows && t.n < a->tile_rows && rs->seq[t.r0 + t.n] == rs->seq[t.r0])
            t.n++;
        if (i == tile || !t.n)
            return t;
    }
}

static void tile_sight(const attention *a, row_tile t, int64_t *lo, int64_t *hi)
{
    *lo = INT64_MAX;
    *hi = 0;
    for (int32_t r = t.r0; r < t.r0 + t.n; r++) {
        key_range s = row_range(a->p->rows, a->kv, r);
        *lo = s.lo < *lo ? s.lo : *lo;
        *hi = s.hi > *hi ? s.hi : *hi;
    }
}

static size_t queries_cap(const attention *a)
{
    return (size_t)a->tile_rows * (size_t)a->group;
}

static block_work work_of(const attention *a, row_tile t, int32_t head, int32_t thread)
{
    size_t cap = queries_cap(a), dim = (size_t)a->kv->head_dim, th = (size_t)thread;
    float *state = a->state + th * 4 * cap;
    return (block_work){.t = t,
                        .head = head,
                        .n_q = t.n * a->group,
                        .queries = a->queries + th * cap * dim,
                        .scores = a->scores + th * cap * KEY_BLOCK,
                        .values = a->values + th * cap * dim,
                        .top = state + 2 * cap,
                        .sum = state + 3 * cap,
                        .piece = a->piece + th * (size_t)a->piece_rows * dim,
                        .across = a->across + th * (size_t)a->k->across.keys * dim,
                        .base = a->base + th * 2 * (size_t)a->n_turning,
                        .row = a->row + th * dim};
}

static int32_t piece_keys(int32_t head_dim)
{
    int32_t n = PIECE_FLOATS / head_dim & ~1;
    return n < 2 ? 2 : n > KEY_BLOCK ? KEY_BLOCK : n;
}

/* Merges a block's partial result of one query into o, *top and *sum. */
static void merge_block(const attention *a, float *o, float *top, float *sum, const float *values,
                        float block_top, float block_sum)
{
    if (block_sum == 0 && block_top == -INFINITY)
        return; /* sees nothing of this block */
    float new_top = block_top > *top ? block_top : *top;
    float co = *top == -INFINITY ? 0.0f : expf(*top - new_top), cx = expf(block_top - new_top);
    a->k->merge(o, co, values, cx, a->kv->head_dim);
    *sum = *sum * co + block_sum * cx;
    *top = new_top;
}

/* The sum of query iq with its head's sink, a score without a value. Far above `top` it is
 * infinite, and the result 0. */
static float with_sink(const attention *a, int32_t head, int32_t iq, float top, float sum)
{
    if (!a->kv->sinks)
        return sum;
    const float *sinks = a->kv->sinks->data;
    return sum + expf(sinks[head * a->group + iq % a->group] - top);
}

static float *o_head(const attention *a, row_tile t, int32_t head, int32_t iq)
{
    int32_t h = head * a->group + iq % a->group;
    return mat_row(a->o, t.r0 + iq / a->group) + (size_t)h * (size_t)a->kv->head_dim;
}

/* Keys [lo, hi) of the block at b0 for one tile and KV head: partial values and state of every
 * query of the tile. */
static void attend_block(const attention *a, block_work *w, int64_t lo, int64_t hi, int64_t b0)
{
    attend_score_block(a, w, lo, hi, b0);
    for (int32_t iq = 0; iq < w->n_q; iq++)
        w->sum[iq] = a->k->softmax(w->scores + (size_t)iq * KEY_BLOCK, KEY_BLOCK, &w->top[iq]);
    attend_sum_block(a, w, lo, hi);
}

/* ---- Blocks that are dropped (sparse.h) ----------------------------------------------------- */

/* The largest of KEY_BLOCK scores; a NaN if one of them is. */
static float block_top(const float *x)
{
    enum { LANES = 16 };
    float top[LANES], sick = 0;
    memcpy(top, x, sizeof top);
    for (int32_t i = 0; i < KEY_BLOCK; i += LANES)
        for (int32_t j = 0; j < LANES; j++)
            top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
    for (int32_t i = 0; i < KEY_BLOCK; i++)
        sick += x[i] != x[i] ? 1.0f : 0.0f;
    for (int32_t j = 1; j < LANES; j++)
        top[0] = top[j] > top[0] ? top[j] : top[0];
    return sick > 0 ? NAN : top[0];
}

static void begin_walk(const attention *a, row_tile t, int32_t iq, sparse_walk *w)
{
    const rowset *rs = a->p->rows;
    int32_t r = t.r0 + iq / a->group;
    key_range s = row_range(rs, a->kv, r);
    *w = (sparse_walk){.top = -INFINITY,
                       .limit = sparse_limit(sparse_rule_of(a->p->st, rs, a->kv, r), s.hi - s.lo)};
}

/* Does query iq of the tile drop the block at b0? top: the largest score in the block. A block
 * without a key that the query may see is dropped, and is not counted. */
static bool drops_block(const attention *a, row_tile t, int32_t head, int32_t iq, sparse_walk *w,
                        int64_t b0, float top)
{
    int32_t r = t.r0 + iq / a->group;
    key_range s = row_range(a->p->rows, a->kv, r);
    int64_t lo, hi;
    if (!block_span(s.lo, s.hi, b0, &lo, &hi))
        return true;
    if (!cpu_selected(&a->select, r, head, b0 / KEY_BLOCK)) {
        w->n_tiles++;
        return true;
    }
    return sparse_drops(w, top, hi - lo);
}

/* If no row of the tile selects the block at b0: counts it as left out. True then. */
static bool leave_unselected(const attention *a, row_tile t, int32_t head, sparse_walk *walk,
                             int64_t b0)
{
    int64_t lo, hi;
    for (int32_t r = t.r0; r < t.r0 + t.n; r++)
        if (cpu_selected(&a->select, r, head, b0 / KEY_BLOCK))
            return false;
    for (int32_t iq = 0; iq < t.n * a->group; iq++) {
        key_range s = row_range(a->p->rows, a->kv, t.r0 + iq / a->group);
        walk[iq].n_tiles += block_span(s.lo, s.hi, b0, &lo, &hi);
    }
    return true;
}

static void end_walk(const attention *a, row_tile t, int32_t head, int32_t iq, const sparse_walk *w,
                     float sum)
{
    size_t r = (size_t)(t.r0 + iq / a->group);
    size_t h = (size_t)(head * a->group + iq % a->group);
    a->account[r * (size_t)a->q.heads + h] =
        (sparse_account){sparse_certificate(w, sum), w->n_tiles, w->n_kept};
}

/* A query that drops a block leaves no partial result: merge_block ignores it. */
enum { DROPPED = -1 };
static bool keeps(const block_work *w, int32_t iq)
{
    return !(w->sum[iq] == 0 && w->top[iq] == -INFINITY);
}

/* The second half of attend_block, for the queries whose sum is not DROPPED. If rows have no keys
 * of their own, the products take these queries alone: they move together, and back. */
static void finish_block(const attention *a, block_work *w, int64_t lo, int64_t hi)
{
    size_t dim = (size_t)a->kv->head_dim;
    int32_t n = w->n_q, kept = 0;
    bool apart = attend_shared_end(a, w, lo, hi) < hi;
    for (int32_t iq = 0; iq < n; iq++) {
        float *s = w->scores + (size_t)iq * KEY_BLOCK;
        if (w->sum[iq] == DROPPED) {
            w->top[iq] = -INFINITY;
            w->sum[iq] = 0;
            memset(s, 0, KEY_BLOCK * sizeof *s);
            continue;
        }
        w->sum[iq] = a->k->softmax(s, KEY_BLOCK, &w->top[iq]);
        if (keeps(w, iq) && !apart && kept++ < iq)
            memcpy(w->scores + (size_t)(kept - 1) * KEY_BLOCK, s, KEY_BLOCK * sizeof *s);
    }
    if (apart)
        kept = n;
    w->n_q = kept;
    if (kept)
        attend_sum_block(a, w, lo, hi);
    w->n_q = n;
    for (int32_t iq = n - 1; iq >= 0 && !apart; iq--)
        if (keeps(w, iq) && --kept < iq)
            memcpy(w->values + (size_t)iq * dim, w->values + (size_t)kept * dim,
                   dim * sizeof(float));
}

static void begin_queries(const attention *a, row_tile t, int32_t head, float *top, float *sum)
{
    for (int32_t iq = 0; iq < t.n * a->group; iq++) {
        memset(o_head(a, t, head, iq), 0, (size_t)a->kv->head_dim * sizeof(float));
        top[iq] = -INFINITY;
        sum[iq] = 0;
    }
}

static void finish_queries(const attention *a, row_tile t, int32_t head, const float *top,
                           float *sum)
{
    for (int32_t iq = 0; iq < t.n * a->group; iq++) {
        sum[iq] = with_sink(a, head, iq, top[iq], sum[iq]);
        a->k->scale(o_head(a, t, head, iq), 1.0f / sum[iq], a->kv->head_dim);
    }
}

/* attend_block for the queries that keep the block. */
static void attend_kept(const attention *a, block_work *w, sparse_walk *walk, int64_t lo,
                        int64_t hi, int64_t b0)
{
    attend_score_block(a, w, lo, hi, b0);
    for (int32_t iq = 0; iq < w->n_q; iq++) {
        float top = block_top(w->scores + (size_t)iq * KEY_BLOCK);
        w->sum[iq] = drops_block(a, w->t, w->head, iq, &walk[iq], b0, top) ? DROPPED : 0;
    }
    finish_block(a, w, lo, hi);
}

/* Prefill: one tile and KV head, all blocks in order. */
static void attend_tile(void *arg, int32_t chunk, int32_t thread)
{
    const attention *a = arg;
    int32_t n_head = a->kv->n_head_kv, head = chunk % n_head;
    /* The last rows see the most keys: they go first, so that threads finish together. */
    row_tile t = tile_at(a, a->n_tiles - 1 - chunk / n_head);
    size_t cap = queries_cap(a), dim = (size_t)a->kv->head_dim;
    float *top = a->state + (size_t)thread * 4 * cap, *sum = top + cap;
    sparse_walk *walk = a->walk ? a->walk + (size_t)thread * cap : NULL;
    int64_t lo, hi, b_lo, b_hi;

    if (!t.n)
        return;
    block_work w = work_of(a, t, head, thread);
    attend_load_queries(a, t, head, w.queries);
    begin_queries(a, t, head, top, sum);
    for (int32_t iq = 0; walk && iq < w.n_q; iq++)
        begin_walk(a, t, iq, &walk[iq]);
    tile_sight(a, t, &lo, &hi);
    for (int64_t b0 = lo / KEY_BLOCK * KEY_BLOCK; b0 < hi; b0 += KEY_BLOCK) {
        block_span(lo, hi, b0, &b_lo, &b_hi);
        w.goes_on = b_hi < hi;
        if (walk && leave_unselected(a, t, head, walk, b0))
            continue;
        if (walk)
            attend_kept(a, &w, walk, b_lo, b_hi, b0);
        else
            attend_block(a, &w, b_lo, b_hi, b0);
        for (int32_t iq = 0; iq < t.n * a->group; iq++)
            merge_block(a, o_head(a, t, head, iq), &top[iq], &sum[iq], w.values + (size_t)iq * dim,
                        w.top[iq], w.sum[iq]);
    }
    finish_queries(a, t, head, top, sum);
    for (int32_t iq = 0; walk && iq < w.n_q; iq++)
        end_walk(a, t, head, iq, &walk[iq], sum[iq]);
}

/* Decode: a run of blocks of one tile and KV head; keeps each partial result. Where rows drop
 * blocks, `half` says which half of the work: the scores, or what follows them. */
typedef enum split_half { SPLIT_WHOLE, SPLIT_SCORES, SPLIT_VALUES } split_half;

static void split_run(const attention *a, int32_t chunk, int32_t thread, split_half half)
{
    int32_t n_head = a->kv->n_head_kv, n_runs = a->wave_blocks / a->run_blocks;
    int32_t th = chunk / n_runs, head = th % n_head, tile = th / n_head;
    row_tile t = tile_at(a, tile);
    if (!t.n) /* its bounds are no keys */
        return;
    size_t cap = queries_cap(a), dim = (size_t)a->kv->head_dim;
    int64_t lo = a->tile_lo[tile], hi = a->tile_hi[tile], b_lo, b_hi;
    int32_t block = chunk % n_runs * a->run_blocks, end = block + a->run_blocks;
    int64_t b0 = (lo / KEY_BLOCK + (int64_t)a->wave * a->wave_blocks + block) * KEY_BLOCK;
    if (!block_span(lo, hi, b0, &b_lo, &b_hi))
        return;
    block_work w = work_of(a, t, head, thread);
    attend_load_queries(a, t, head, w.queries);
    for (; block < end && block_span(lo, hi, b0, &b_lo, &b_hi); block++, b0 += KEY_BLOCK) {
        size_t part = (size_t)th * (size_t)a->wave_blocks + (size_t)block;
        w.top = a->part_state + part * 2 * cap;
        w.sum = w.top + cap;
        w.values = a->part_values + part * cap * dim;
        w.goes_on = block + 1 < end && b_hi < hi;
        if (half != SPLIT_WHOLE)
            w.scores = a->part_scores + part * cap * KEY_BLOCK;
        if (half == SPLIT_WHOLE) {
            attend_block(a, &w, b_lo, b_hi, b0);
        } else if (half == SPLIT_SCORES) {
            attend_score_block(a, &w, b_lo, b_hi, b0);
            for (int32_t iq = 0; iq < w.n_q; iq++)
                w.top[iq] = block_top(w.scores + (size_t)iq * KEY_BLOCK);
        } else {
            w.b0 = b0;
            finish_block(a, &w, b_lo, b_hi);
        }
    }
}

static void attend_split(void *arg, int32_t chunk, int32_t thread)
{
    split_run(arg, chunk, thread, SPLIT_WHOLE);
}

static void score_split(void *arg, int32_t chunk, int32_t thread)
{
    split_run(arg, chunk, thread, SPLIT_SCORES);
}

static void value_split(void *arg, int32_t chunk, int32_t thread)
{
    split_run(arg, chunk, thread, SPLIT_VALUES);
}

/* Between the halves: which blocks of the wave query iq of a tile and KV head drops. Afterwards
 * their sums are DROPPED. */
static void drop_split(const attention *a, int32_t th, int32_t iq)
{
    size_t cap = queries_cap(a);
    int32_t tile = th / a->kv->n_head_kv;
    row_tile t = tile_at(a, tile);
    sparse_walk *walk = &a->walk[(size_t)th * cap + (size_t)iq];
    int64_t lo = a->tile_lo[tile], hi = a->tile_hi[tile], b_lo, b_hi;
    int64_t b0 = (lo / KEY_BLOCK + (int64_t)a->wave * a->wave_blocks) * KEY_BLOCK;
    if (iq >= t.n * a->group)
        return;
    if (a->wave == 0)
        begin_walk(a, t, iq, walk);
    for (int32_t b = 0; b < a->wave_blocks && block_span(lo, hi, b0, &b_lo, &b_hi);
         b++, b0 += KEY_BLOCK) {
        size_t part = (size_t)th * (size_t)a->wave_blocks + (size_t)b;
        float *state = a->part_state + part * 2 * cap + iq;
        state[cap] = drops_block(a, t, th % a->kv->n_head_kv, iq, walk, b0, state[0]) ? DROPPED : 0;
    }
}

/* Merges the wave's partial results of one query, in ascending order of block. */
static void merge_query(void *arg, int32_t chunk, int32_t thread)
{
    (void)thread;
    const attention *a = arg;
    size_t cap = queries_cap(a), dim = (size_t)a->kv->head_dim;
    int32_t th = chunk / (int32_t)cap, iq = chunk % (int32_t)cap;
    int32_t head = th % a->kv->n_head_kv, tile = th / a->kv->n_head_kv;
    row_tile t = tile_at(a, tile);
    float *top = a->run_state + (size_t)th * 2 * cap + iq, *sum = top + cap;
    int64_t lo = a->tile_lo[tile], hi = a->tile_hi[tile], b_lo, b_hi;
    int64_t b0 = (lo / KEY_BLOCK + (int64_t)a->wave * a->wave_blocks) * KEY_BLOCK;
    if (iq >= t.n * a->group)
        return;
    float *o = o_head(a, t, head, iq);
    if (a->wave == 0) {
        memset(o, 0, dim * sizeof(float));
        *top = -INFINITY;
        *sum = 0;
    }
    for (int32_t b = 0; b < a->wave_blocks && block_span(lo, hi, b0, &b_lo, &b_hi);
         b++, b0 += KEY_BLOCK) {
        size_t part = (size_t)th * (size_t)a->wave_blocks + (size_t)b;
        const float *state = a->part_state + part * 2 * cap + iq;
        merge_block(a, o, top, sum, a->part_values + (part * cap + (size_t)iq) * dim, state[0],
                    state[cap]);
    }
    if (a->wave == a->n_waves - 1) {
        *sum = with_sink(a, head, iq, *top, *sum);
        a->k->scale(o, 1.0f / *sum, a->kv->head_dim);
        if (a->walk)
            end_walk(a, t, head, iq, &a->walk[(size_t)th * cap + (size_t)iq], *sum);
    }
}

static void attend_waves(attention *a, pool *threads)
{
    int64_t most = 0;
    for (int32_t tile = 0; tile < a->n_tiles; tile++) {
        row_tile t = tile_at(a, tile);
        tile_sight(a, t, &a->tile_lo[tile], &a->tile_hi[tile]);
        if (!t.n)
            continue;
        int64_t blocks =
            (a->tile_hi[tile] + KEY_BLOCK - 1) / KEY_BLOCK - a->tile_lo[tile] / KEY_BLOCK;
        most = blocks > most ? blocks : most;
    }
    a->n_waves = (int32_t)((most + a->wave_blocks - 1) / a->wave_blocks);
    int64_t held = most < a->wave_blocks ? most : a->wave_blocks;
    int32_t n_th = a->n_tiles * a->kv->n_head_kv, n_merges = n_th * (int32_t)queries_cap(a);
    a->run_blocks = RUN_BLOCKS;
    while (a->run_blocks > 1 && held * n_th < 4 * (int64_t)a->run_blocks * pool_n_threads(threads))
        a->run_blocks /= 2;
    for (a->wave = 0; a->wave < a->n_waves; a->wave++) {
        int32_t n_runs = n_th * (a->wave_blocks / a->run_blocks);
        if (a->walk) {
            pool_run(threads, n_runs, score_split, a);
            for (int32_t i = 0; i < n_merges; i++)
                drop_split(a, i / (int32_t)queries_cap(a), i % (int32_t)queries_cap(a));
            pool_run(threads, n_runs, value_split, a);
        } else {
            pool_run(threads, n_runs, attend_split, a);
        }
        if (held * n_merges * a->kv->head_dim >= MERGE_FLOATS)
            pool_run(threads, n_merges, merge_query, a);
        else
            for (int32_t i = 0; i < n_merges; i++)
                merge_query(a, i, 0);
    }
}

/* ---- Rotated formats --------------------------------------------------------------------- */

static void turn_row(void *arg, int32_t r, int32_t thread)
{
    (void)thread;
    const attention *a = arg;
    memcpy(mat_row(a->turned, r), mat_row(a->q, r), (size_t)mat_width(a->q) * sizeof(float));
    num_rotate(mat_row(a->turned, r), mat_width(a->q));
}

static void unturn_row(void *arg, int32_t r, int32_t thread)
{
    (void)thread;
    const attention *a = arg;
    num_unrotate(mat_row(a->o, r), mat_width(a->o));
}

static bool turns_queries(const kv_view *kv)
{
    return kv->k_rot && !kv->single;
}

/* ---- The op ------------------------------------------------------------------------------ */

/* How many rows share a tile, and how many tiles there are. */
static void cut_tiles(attention *a, bool split, int32_t n_threads)
{
    int32_t rows = a->q.rows, n_head = a->kv->n_head_kv;
    a->tile_rows = a->group < QUERIES_MAX ? QUERIES_MAX / a->group : 1;
    if (a->tile_rows > rows)
        a->tile_rows = rows;
    if (!split && (int64_t)a->tile_rows * 4 * n_threads > (int64_t)rows * n_head)
        a->tile_rows = 1 + (rows * n_head - 1) / (4 * n_threads);
    /* At most as many tiles as rows: neighbouring rows may all be of different sequences. Tiles
     * past the last are empty. */
    a->n_tiles = rows;
    if (!a->p->dry && !split)
        for (a->n_tiles = 0; tile_at(a, a->n_tiles).n;)
            a->n_tiles++;
}

static void take_temporaries(attention *a, bool split, int32_t n_threads)
{
    pass *p = a->p;
    const kv_view *kv = a->kv;
    size_t cap = queries_cap(a), dim = (size_t)kv->head_dim, nt = (size_t)n_threads;
    size_t th = (size_t)a->n_tiles * (size_t)kv->n_head_kv, mark = pass_mark(p);
    a->piece_keys = piece_keys(kv->head_dim);
    /* Unpacking turning dims is the first access to a row, so the row must be prefetched by then.
     */
    if (kv->single && a->piece_keys > (int32_t)(STREAM_BYTES / kv->k_row_bytes))
        a->piece_keys =
            kv->k_row_bytes < STREAM_BYTES / 4 ? (int32_t)(STREAM_BYTES / kv->k_row_bytes) & ~1 : 4;
    a->n_turning = kv->single ? kv->k_rope->n_turning : 0;
    a->on_blocks = kv->single && !kv->k_rot && kv->head_dim % 64 == 0 && a->n_turning % 32 == 0 &&
                   a->n_turning < kv->head_dim / 2;
    a->queries = pass_temp(p, nt * cap * dim * sizeof(float));
    a->scores = pass_temp(p, nt * cap * KEY_BLOCK * sizeof(float));
    a->values = pass_temp(p, nt * cap * dim * sizeof(float));
    a->state = pass_temp(p, nt * 4 * cap * sizeof(float));
    int32_t lanes = a->k->across.lanes, keys = a->k->across.keys;
    bool many = !split && kv->head_dim % lanes == 0 && cap >= MANY_QUERIES &&
                keys * kv->head_dim <= PIECE_FLOATS; /* past the first cache it costs, not gains */
    a->across = many ? pass_temp(p, nt * (size_t)keys * dim * sizeof(float)) : NULL;
    a->piece_rows = many && keys > a->piece_keys ? keys : a->piece_keys;
    a->piece = pass_temp(p, nt * (size_t)a->piece_rows * dim * sizeof(float));
    a->base = pass_temp(p, nt * 2 * (size_t)a->n_turning * sizeof(float));
    a->row = pass_temp(p, nt * dim * sizeof(float));
    a->account = cpu_sparse_accounts(p, a->q, kv);
    if (!kv->window)
        a->walk = pass_temp(p, (split ? th : nt) * cap * sizeof *a->walk);
    cpu_selection_take(p, a->q, kv, n_threads, &a->select);
    if (split) {
        a->wave_blocks = (int32_t)(WAVE_PARTS / th) / RUN_BLOCKS * RUN_BLOCKS;
        if (a->wave_blocks < WAVE_BLOCKS_MIN)
            a->wave_blocks = WAVE_BLOCKS_MIN;
        size_t n_parts = th * (size_t)a->wave_blocks;
        a->part_values = pass_temp(p, n_parts * cap * dim * sizeof(float));
        a->part_state = pass_temp(p, n_parts * 2 * cap * sizeof(float));
        a->run_state = pass_temp(p, th * 2 * cap * sizeof(float));
        if (!kv->window)
            a->part_scores = pass_temp(p, n_parts * cap * KEY_BLOCK * sizeof(float));
        a->tile_lo = pass_temp(p, (size_t)a->n_tiles * sizeof(int64_t));
        a->tile_hi = pass_temp(p, (size_t)a->n_tiles * sizeof(int64_t));
    }
    if (!a->account)
        a->walk = NULL;
    a->turned = turns_queries(kv) ? pass_mat(p, a->q.rows, a->q.heads, a->q.cols) : a->q;
    pass_release(p, mark);
}

void cpu_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale)
{
    cpu_device *c = cpu_of(p);
    attention a = {.p = p, .k = c->k, .o = *o, .q = q, .kv = kv, .scale = scale};
    a.group = q.heads / kv->n_head_kv;
    /* Too few tasks for the threads: split by blocks too. */
    bool split =
        q.rows <= SPLIT_ROWS && (int64_t)q.rows * kv->n_head_kv < 4 * (int64_t)c->n_threads;
    cut_tiles(&a, split, c->n_threads);
    take_temporaries(&a, split, c->n_threads);
    if (p->dry || pass_failed(p))
        return;
    if (turns_queries(kv))
        pool_run(c->pool, q.rows, turn_row, &a);
    if (a.account)
        cpu_select(p, a.turned, kv, scale, &a.select);
    if (split)
        attend_waves(&a, c->pool);
    else
        pool_run(c->pool, a.n_tiles * kv->n_head_kv, attend_tile, &a);
    if (kv->v_rot)
        pool_run(c->pool, o->rows, unturn_row, &a);
    cpu_sparse_count(p, q, kv, a.account);
}
