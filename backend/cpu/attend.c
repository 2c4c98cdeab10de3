/* attend.c - attention: soft max over the visible keys, in blocks of keys at fixed places.
 *
 * Keys are cut into blocks at indices that are multiples of KEY_BLOCK, whatever the pass. For one
 * row and head a block gives a partial result of its own: the largest score, the sum of e^(s - top)
 * and the weighted sum of values. Partial results are merged in ascending order of block. Nothing
 * in that depends on other rows, so a row's result does not either; and since a partial result
 * needs only its block, blocks can be computed on different threads:
 *
 *   prefill  (row tile, kv head) is a task, which walks the blocks and merges as it goes
 *   decode   (row tile, kv head, block) is a task; another loop merges
 *
 * The query heads of a group, and the rows of a tile, go through a block together: a key is read
 * from memory once for all of them. Scores of one block are all that is ever stored.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"

#include <math.h>
#include <string.h>

enum {
    KEY_BLOCK = 128,
    QUERIES_MAX = 32, /* rows of a tile times heads of a group, but at least one row */
    SPLIT_ROWS = 16,  /* passes of no more rows may be split by blocks */
    WAVE_BLOCKS = 32  /* blocks whose partial results are held at a time, split decode */
};

typedef struct attention {
    pass *p;
    const cpu_kernels *k;
    mat o, q;
    const kv_view *kv;
    float scale;
    int32_t group; /* query heads per kv head */
    int32_t tile_rows;
    int32_t n_tiles;
    /* thread-local, by thread number */
    float *queries; /* [tile_rows * group, head_dim], scaled */
    float *scores;  /* [tile_rows * group, KEY_BLOCK] */
    float *values;  /* [tile_rows * group, head_dim]: the partial sums of one block */
    float *state;   /* [4, tile_rows * group]: largest score and sum, of all and of one block */
    /* split decode: partial results [n_tiles * n_head_kv, WAVE_BLOCKS, ...] */
    float *part_values, *part_state;
    float *run_state;           /* [n_tiles * n_head_kv, 2, tile_rows * group]: merged so far */
    int64_t *tile_lo, *tile_hi; /* [n_tiles]: keys any row of the tile sees */
    int32_t wave;               /* first block, in units of WAVE_BLOCKS from the tile's first */
} attention;

/* Rows r0 .. r0 + n of tile: consecutive rows of one sequence. Tiles are cut where the sequence
 * changes, so their starts are found by walking; n_tiles is an upper bound that some leave empty.
 */
typedef struct row_tile {
    int32_t r0, n;
} row_tile;

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

/* The keys of block [b0, b0 + KEY_BLOCK) that some row of the tile sees: [*lo, *hi). */
static bool block_span(int64_t tile_lo, int64_t tile_hi, int64_t b0, int64_t *lo, int64_t *hi)
{
    *lo = tile_lo > b0 ? tile_lo : b0;
    *hi = tile_hi < b0 + KEY_BLOCK ? tile_hi : b0 + KEY_BLOCK;
    return *lo < *hi;
}

static void tile_sight(const attention *a, row_tile t, int64_t *lo, int64_t *hi)
{
    *lo = INT64_MAX;
    *hi = 0;
    for (int32_t r = t.r0; r < t.r0 + t.n; r++) {
        row_sight s = cpu_row_sight(a->p->rows, r, a->kv->window);
        *lo = s.lo < *lo ? s.lo : *lo;
        *hi = s.hi > *hi ? s.hi : *hi;
    }
}

/* Hides from row r the keys of the block that it does not see. Columns are indices from b0; those
 * outside [lo, hi) were not computed and are hidden from all. */
static void mask_row(const attention *a, int32_t r, int64_t b0, float *scores)
{
    const rowset *rs = a->p->rows;
    row_sight s = cpu_row_sight(rs, r, a->kv->window);
    int64_t end = b0 + KEY_BLOCK;
    for (int64_t t = b0; t < s.lo && t < end; t++)
        scores[t - b0] = -INFINITY;
    for (int64_t t = s.hi > b0 ? s.hi : b0; t < end; t++)
        scores[t - b0] = -INFINITY;
    if (!s.tree)
        return;
    for (int64_t t = rs->first[r] > b0 ? rs->first[r] : b0; t < s.hi && t < end; t++)
        if (!cpu_row_sees(rs, r, a->kv->window, t))
            scores[t - b0] = -INFINITY;
}

/* One block for one tile and kv head: partial values and state of every query of the tile. */
static void attend_block(const attention *a, row_tile t, int32_t head, const float *queries,
                         float *scores, int64_t lo, int64_t hi, int64_t b0, float *values,
                         float *top, float *sum)
{
    const kv_view *kv = a->kv;
    const step *st = a->p->st;
    int32_t dim = kv->head_dim, n_q = t.n * a->group;
    kv_base base = st->kv[(size_t)a->p->rows->seq[t.r0] * (size_t)st->n_kv + (size_t)kv->id];
    const char *k = (char *)base.k + (size_t)head * (size_t)kv->n_slots * kv->k_row_bytes;
    const char *v = (char *)base.v + (size_t)head * (size_t)kv->n_slots * kv->v_row_bytes;
    /* Slots wrap at most once inside a block: no more keys are visible than there are slots. */
    size_t slot = (size_t)(lo % kv->n_slots);
    int32_t n = (int32_t)(hi - lo), at = (int32_t)(lo - b0);
    int32_t n0 = (size_t)kv->n_slots - slot < (size_t)n ? (int32_t)((size_t)kv->n_slots - slot) : n;

    a->k->key_dot(kv->k_type, scores + at, KEY_BLOCK, queries, dim, n_q, k + slot * kv->k_row_bytes,
                  kv->k_row_bytes, n0, dim);
    if (n0 < n)
        a->k->key_dot(kv->k_type, scores + at + n0, KEY_BLOCK, queries, dim, n_q, k,
                      kv->k_row_bytes, n - n0, dim);
    for (int32_t i = 0; i < t.n; i++)
        for (int32_t g = 0; g < a->group; g++) {
            int32_t iq = i * a->group + g;
            float *s = scores + (size_t)iq * KEY_BLOCK;
            mask_row(a, t.r0 + i, b0, s);
            sum[iq] = a->k->softmax(s, KEY_BLOCK, &top[iq]);
        }
    memset(values, 0, (size_t)n_q * (size_t)dim * sizeof(float));
    a->k->value_sum(kv->v_type, values, dim, n_q, scores + at, KEY_BLOCK,
                    v + slot * kv->v_row_bytes, kv->v_row_bytes, n0, dim);
    if (n0 < n)
        a->k->value_sum(kv->v_type, values, dim, n_q, scores + at + n0, KEY_BLOCK, v,
                        kv->v_row_bytes, n - n0, dim);
}

/* Joins a block's partial result of one query to what came before it: o, *top, *sum. */
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

static float *o_head(const attention *a, row_tile t, int32_t head, int32_t iq)
{
    int32_t h = head * a->group + iq % a->group;
    return mat_row(a->o, t.r0 + iq / a->group) + (size_t)h * (size_t)a->kv->head_dim;
}

static void load_queries(const attention *a, row_tile t, int32_t head, float *queries)
{
    int32_t dim = a->kv->head_dim;
    for (int32_t iq = 0; iq < t.n * a->group; iq++) {
        int32_t h = head * a->group + iq % a->group;
        float *to = queries + (size_t)iq * (size_t)dim;
        memcpy(to, mat_row(a->q, t.r0 + iq / a->group) + (size_t)h * (size_t)dim,
               (size_t)dim * sizeof(float));
        if (a->scale != 1.0f)
            a->k->scale(to, a->scale, dim);
    }
}

static void begin_queries(const attention *a, row_tile t, int32_t head, float *top, float *sum)
{
    for (int32_t iq = 0; iq < t.n * a->group; iq++) {
        memset(o_head(a, t, head, iq), 0, (size_t)a->kv->head_dim * sizeof(float));
        top[iq] = -INFINITY;
        sum[iq] = 0;
    }
}

static void finish_queries(const attention *a, row_tile t, int32_t head, const float *sum)
{
    for (int32_t iq = 0; iq < t.n * a->group; iq++)
        a->k->scale(o_head(a, t, head, iq), 1.0f / sum[iq], a->kv->head_dim);
}

/* Prefill: one tile and kv head, all blocks in order. */
static void attend_tile(void *arg, int32_t chunk, int32_t thread)
{
    const attention *a = arg;
    int32_t n_head = a->kv->n_head_kv, head = chunk % n_head;
    /* The last rows see the most keys: they go first, so that the end of the loop is even. */
    row_tile t = tile_at(a, a->n_tiles - 1 - chunk / n_head);
    size_t cap = (size_t)a->tile_rows * (size_t)a->group, dim = (size_t)a->kv->head_dim;
    float *queries = a->queries + (size_t)thread * cap * dim;
    float *values = a->values + (size_t)thread * cap * dim;
    float *scores = a->scores + (size_t)thread * cap * KEY_BLOCK;
    float *state = a->state + (size_t)thread * 4 * cap;
    float *top = state, *sum = state + cap, *btop = state + 2 * cap, *bsum = state + 3 * cap;
    int64_t lo, hi, b_lo, b_hi;

    if (!t.n)
        return;
    load_queries(a, t, head, queries);
    begin_queries(a, t, head, top, sum);
    tile_sight(a, t, &lo, &hi);
    for (int64_t b0 = lo / KEY_BLOCK * KEY_BLOCK; b0 < hi; b0 += KEY_BLOCK) {
        block_span(lo, hi, b0, &b_lo, &b_hi);
        attend_block(a, t, head, queries, scores, b_lo, b_hi, b0, values, btop, bsum);
        for (int32_t iq = 0; iq < t.n * a->group; iq++)
            merge_block(a, o_head(a, t, head, iq), &top[iq], &sum[iq], values + (size_t)iq * dim,
                        btop[iq], bsum[iq]);
    }
    finish_queries(a, t, head, sum);
}

/* Decode: one block of one tile and kv head, its partial result kept. */
static void attend_split(void *arg, int32_t chunk, int32_t thread)
{
    const attention *a = arg;
    int32_t n_head = a->kv->n_head_kv;
    int32_t block = chunk % WAVE_BLOCKS, th = chunk / WAVE_BLOCKS;
    int32_t head = th % n_head, tile = th / n_head;
    row_tile t = tile_at(a, tile);
    size_t cap = (size_t)a->tile_rows * (size_t)a->group, dim = (size_t)a->kv->head_dim;
    float *queries = a->queries + (size_t)thread * cap * dim;
    float *scores = a->scores + (size_t)thread * cap * KEY_BLOCK;
    float *part = a->part_state + (size_t)chunk * 2 * cap;
    int64_t lo = a->tile_lo[tile], hi = a->tile_hi[tile], b_lo, b_hi;
    int64_t b0 = (lo / KEY_BLOCK + a->wave * WAVE_BLOCKS + block) * KEY_BLOCK;

    if (!t.n || !block_span(lo, hi, b0, &b_lo, &b_hi))
        return;
    load_queries(a, t, head, queries);
    attend_block(a, t, head, queries, scores, b_lo, b_hi, b0,
                 a->part_values + (size_t)chunk * cap * dim, part, part + cap);
}

/* Merges a wave, on the calling thread: a few percent of the work of computing it. */
static void merge_wave(const attention *a)
{
    size_t cap = (size_t)a->tile_rows * (size_t)a->group, dim = (size_t)a->kv->head_dim;
    for (int32_t th = 0; th < a->n_tiles * a->kv->n_head_kv; th++) {
        int32_t head = th % a->kv->n_head_kv, tile = th / a->kv->n_head_kv;
        row_tile t = tile_at(a, tile);
        float *top = a->run_state + (size_t)th * 2 * cap, *sum = top + cap;
        int64_t lo = a->tile_lo[tile], hi = a->tile_hi[tile], b_lo, b_hi;
        if (!t.n)
            continue;
        if (a->wave == 0)
            begin_queries(a, t, head, top, sum);
        for (int32_t b = 0; b < WAVE_BLOCKS; b++) {
            int64_t b0 = (lo / KEY_BLOCK + a->wave * WAVE_BLOCKS + b) * KEY_BLOCK;
            if (!block_span(lo, hi, b0, &b_lo, &b_hi))
                break;
            size_t chunk = (size_t)th * WAVE_BLOCKS + (size_t)b;
            const float *part = a->part_state + chunk * 2 * cap;
            const float *values = a->part_values + chunk * cap * dim;
            for (int32_t iq = 0; iq < t.n * a->group; iq++)
                merge_block(a, o_head(a, t, head, iq), &top[iq], &sum[iq],
                            values + (size_t)iq * dim, part[iq], part[cap + (size_t)iq]);
        }
    }
}

static void attend_waves(attention *a, pool *threads)
{
    int64_t n_waves = 0;
    for (int32_t tile = 0; tile < a->n_tiles; tile++) {
        row_tile t = tile_at(a, tile);
        tile_sight(a, t, &a->tile_lo[tile], &a->tile_hi[tile]);
        if (!t.n)
            continue;
        int64_t blocks =
            (a->tile_hi[tile] + KEY_BLOCK - 1) / KEY_BLOCK - a->tile_lo[tile] / KEY_BLOCK;
        int64_t waves = (blocks + WAVE_BLOCKS - 1) / WAVE_BLOCKS;
        n_waves = waves > n_waves ? waves : n_waves;
    }
    for (a->wave = 0; a->wave < n_waves; a->wave++) {
        pool_run(threads, a->n_tiles * a->kv->n_head_kv * WAVE_BLOCKS, attend_split, a);
        merge_wave(a);
    }
    size_t cap = (size_t)a->tile_rows * (size_t)a->group;
    for (int32_t th = 0; th < a->n_tiles * a->kv->n_head_kv; th++) {
        row_tile t = tile_at(a, th / a->kv->n_head_kv);
        if (t.n)
            finish_queries(a, t, th % a->kv->n_head_kv, a->run_state + (size_t)th * 2 * cap + cap);
    }
}

void cpu_attend(pass *p, mat o, mat q, const kv_view *kv, float scale)
{
    cpu_device *c = cpu_of(p);
    size_t nt = (size_t)c->n_threads, dim = (size_t)kv->head_dim;
    attention a = {.p = p, .k = c->k, .o = o, .q = q, .kv = kv, .scale = scale};
    a.group = q.heads / kv->n_head_kv;
    /* Too few tasks for the threads: split by blocks as well. */
    bool split =
        q.rows <= SPLIT_ROWS && (int64_t)q.rows * kv->n_head_kv < 4 * (int64_t)c->n_threads;
    a.tile_rows = a.group < QUERIES_MAX ? QUERIES_MAX / a.group : 1;
    if (a.tile_rows > q.rows)
        a.tile_rows = q.rows;
    if (!split && (int64_t)a.tile_rows * 4 * c->n_threads > (int64_t)q.rows * kv->n_head_kv)
        a.tile_rows = 1 + (q.rows * kv->n_head_kv - 1) / (4 * c->n_threads);
    /* As many tiles as rows, should every row be of another sequence than its neighbours; most of
     * them then turn out empty. */
    a.n_tiles = q.rows;
    if (!p->dry && !split)
        for (a.n_tiles = 0; tile_at(&a, a.n_tiles).n;)
            a.n_tiles++;
    size_t cap = (size_t)a.tile_rows * (size_t)a.group;
    size_t th = (size_t)a.n_tiles * (size_t)kv->n_head_kv;

    size_t mark = pass_mark(p);
    a.queries = pass_temp(p, nt * cap * dim * sizeof(float));
    a.scores = pass_temp(p, nt * cap * KEY_BLOCK * sizeof(float));
    a.values = pass_temp(p, nt * cap * dim * sizeof(float));
    a.state = pass_temp(p, nt * 4 * cap * sizeof(float));
    if (split) {
        a.part_values = pass_temp(p, th * WAVE_BLOCKS * cap * dim * sizeof(float));
        a.part_state = pass_temp(p, th * WAVE_BLOCKS * 2 * cap * sizeof(float));
        a.run_state = pass_temp(p, th * 2 * cap * sizeof(float));
        a.tile_lo = pass_temp(p, (size_t)a.n_tiles * sizeof(int64_t));
        a.tile_hi = pass_temp(p, (size_t)a.n_tiles * sizeof(int64_t));
    }
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    if (split)
        attend_waves(&a, c->pool);
    else
        pool_run(c->pool, a.n_tiles * kv->n_head_kv, attend_tile, &a);
}
