/* attend_block.c - one block of keys of attention: scores of its keys, sums of its values.
 *
 *     query    w q, still, low half | w q, still, high half | q, turning, low and high, per block
 *     key      u as stored          | u as stored           | made                 (one stream)
 *
 * Trees: each row has its own keys of this pass (key_walk.h). A block takes the committed keys for
 * all rows of a tile together, then the others row by row.
 *
 * Formats in blocks: few queries decode them in registers; many queries unpack a few rows at a time
 * into floats that stay in cache. Tiles with many queries transpose keys (heads_int.h) and unpack
 * values of every format. The floats and the order of every sum are the same.
 *
 * One stream: a key is RoPE(w u). Pairs that stand still (three quarters in large heads) are not
 * made: their part of the score is (w q) . u, and w moves to the query once. Turning pairs are made
 * from a table of angles. Blocks lie at multiples of the table's length; queries are turned back by
 * the block's first position, so the angle of a key is its place in the block. Where a block's
 * second page has other positions, queries are turned back anew for it.
 */
#include "backend/cpu/attend_int.h"

#include <math.h>
#include <string.h>

/* Hides from row r the keys of the block that it does not see. Column i is key b0 + i; those that
 * were not computed are hidden from all. */
static void mask_row(const attention *a, int32_t r, int64_t b0, float *scores)
{
    key_range s = row_range(a->p->rows, a->kv, r);
    int64_t end = b0 + KEY_BLOCK;
    for (int64_t t = b0; t < s.lo && t < end; t++)
        scores[t - b0] = -INFINITY;
    for (int64_t t = s.hi > b0 ? s.hi : b0; t < end; t++)
        scores[t - b0] = -INFINITY;
}

static bool has_many(const attention *a, const block_work *w)
{
    return a->across && w->n_q >= MANY_QUERIES;
}

static bool in_floats(num_type t)
{
    return t == NUM_F32 || t == NUM_F16 || t == NUM_BF16;
}

static bool reads_stored(const attention *a, const block_work *w, num_type t)
{
    return t == NUM_F32 || (in_floats(t) ? !has_many(a, w) : w->n_q <= a->k->block_queries);
}

static key_rows piece_rows(const block_work *w, int32_t n, int32_t dim)
{
    return (key_rows){.type = NUM_F32,
                      .at = (const char *)w->piece,
                      .row_bytes = (size_t)dim * sizeof(float),
                      .n = n,
                      .dim = dim};
}

static key_product product_of(const attention *a, const block_work *w, const key_rows *k,
                              float *scores)
{
    bool in_piece = k->at == (const char *)w->piece;
    return (key_product){.type = k->type,
                         .n_q = w->n_q,
                         .n_keys = k->n,
                         .dim = k->dim,
                         .s = scores,
                         .q = w->queries,
                         .s_stride = KEY_BLOCK,
                         .q_stride = a->kv->head_dim,
                         .k = k->at,
                         .row_bytes = k->row_bytes,
                         .source = in_piece ? ROWS_IN_CACHE : ROWS_IN_MEMORY,
                         .next = w->next};
}

static void score_rows(const attention *a, const block_work *w, const key_rows *k, float *scores)
{
    key_product p = product_of(a, w, k, scores);
    a->k->key_dot(&p);
}

/* The next rows, from row `at` on; `most` of them. */
static key_rows next_rows(key_rows k, int32_t at, int32_t most)
{
    k.at += (size_t)at * k.row_bytes;
    k.n = k.n - at < most ? k.n - at : most;
    return k;
}

/* The first query of the tile that sees key `index` or a later one. Rows before it have no part in
 * products with these keys: their scores are hidden, their probabilities 0. */
static int32_t first_query(const attention *a, const block_work *w, int64_t index)
{
    int32_t i = 0;
    if (w->n_q != w->t.n * a->group) /* some queries dropped the block, the others have moved */
        return 0;
    while (i < w->t.n && row_range(a->p->rows, a->kv, w->t.r0 + i).hi <= index)
        i++;
    return i * a->group;
}

/* `dim` elements of each row from `first` on, where a block begins. */
static key_rows part_of(const key_rows *k, int32_t first, int32_t dim)
{
    key_rows part = *k;
    uint64_t skipped = 0;
    num_row_bytes(k->type, (uint64_t)first, &skipped);
    part.at += skipped;
    part.dim = dim;
    return part;
}

/* Makes the turning pairs of the keys of values u into `to`; the first is key `index`. */
static void make_keys(const attention *a, block_work *w, int64_t index, key_rows u, float *to,
                      int32_t to_stride)
{
    const rope *rp = a->kv->k_rope;
    const float *weights = a->kv->k_weight->data;
    const key_maker m = {.w = weights,
                         .w_high = weights + a->kv->head_dim / 2,
                         .turn = rp->turns + (size_t)(index - w->b0) * 2 * (size_t)a->n_turning,
                         .n_turning = a->n_turning};
    a->k->make_keys(&u, to, to_stride, &m);
}

/* One stream: rows of values to whole keys in the piece, still and made parts side by side. */
static void unpack_keys(const attention *a, block_work *w, int64_t index, const key_rows *k)
{
    int32_t dim = k->dim, half = dim / 2, n_turn = a->n_turning, still = half - n_turn;
    for (int32_t r = 0; r < k->n; r++) {
        key_rows one = *k;
        float *to = w->piece + (size_t)r * (size_t)dim;
        one.at += (size_t)r * k->row_bytes;
        one.n = 1;
        a->k->unpack(&one, w->row, dim);
        if (a->kv->k_rot)
            num_unrotate(w->row, dim);
        for (int32_t h = 0; h < 2; h++) {
            const float *from = w->row + h * half;
            memcpy(to + 2 * still + h * n_turn, from, (size_t)n_turn * sizeof *to);
            memcpy(to + h * still, from + n_turn, (size_t)still * sizeof *to);
        }
    }
    key_rows u = piece_rows(w, k->n, dim);
    u.at += 2 * (size_t)still * sizeof(float);
    u.high_bytes = (size_t)n_turn * sizeof(float);
    make_keys(a, w, index, u, w->piece + 2 * still, dim);
}

/* Scores of a few keys of one stream; the first is key `index`. */
static void score_single(const attention *a, block_work *w, int64_t index, const key_rows *k,
                         float *scores)
{
    int32_t dim = k->dim, half = dim / 2, n_turn = a->n_turning, still = half - n_turn;
    if (!a->on_blocks || !reads_stored(a, w, k->type)) {
        key_rows piece = piece_rows(w, k->n, dim);
        unpack_keys(a, w, index, k);
        score_rows(a, w, &piece, scores);
        return;
    }
    key_rows u = *k, high = part_of(k, half, n_turn);
    u.high_bytes = (size_t)(high.at - k->at);
    make_keys(a, w, index, u, w->piece, 2 * n_turn);
    key_rows all = part_of(k, n_turn, still);
    key_product p = product_of(a, w, &all, scores);
    p.high_bytes = u.high_bytes;
    p.made = w->piece;
    p.made_dim = 2 * n_turn;
    p.source = ROWS_ASKED_FOR; /* by the previous product */
    p.next = k->at + (size_t)k->n * k->row_bytes;
    a->k->key_dot(&p);
}

/* The same for many queries: keys are transposed, a few at a time. */
static void score_across(const attention *a, block_work *w, int64_t index, const key_rows *k,
                         float *scores)
{
    for (int32_t at = 0; at < k->n; at += a->k->across.keys) {
        int32_t first = first_query(a, w, index + at);
        key_rows some = next_rows(*k, at, a->k->across.keys);
        if (first == w->n_q)
            return;
        if (a->kv->single)
            unpack_keys(a, w, index + at, &some);
        else if (!in_floats(k->type))
            a->k->unpack(&some, w->piece, k->dim);
        if (a->kv->single || !in_floats(k->type))
            some = piece_rows(w, some.n, k->dim);
        a->k->keys_across(&some, w->across);
        key_product p = product_of(a, w, &some, scores + at);
        p.k = (const char *)w->across;
        p.n_q -= first;
        p.q += (size_t)first * (size_t)p.q_stride;
        p.s += (size_t)first * (size_t)p.s_stride;
        a->k->key_dot_across(&p);
    }
}

/* Scores of n keys that lie side by side from row k on; the first is key `index`. */
static void score_keys(const attention *a, block_work *w, int64_t index, const char *k, int32_t n,
                       float *scores)
{
    const kv_view *kv = a->kv;
    int32_t dim = kv->head_dim;
    const key_rows rows = {
        .type = kv->k_type, .at = k, .row_bytes = kv->k_row_bytes, .n = n, .dim = dim};
    if (has_many(a, w)) {
        score_across(a, w, index, &rows, scores);
        return;
    }
    if (!kv->single && reads_stored(a, w, kv->k_type)) {
        score_rows(a, w, &rows, scores);
        return;
    }
    for (int32_t at = 0; at < n; at += a->piece_keys) {
        key_rows some = next_rows(rows, at, a->piece_keys), piece = piece_rows(w, some.n, dim);
        if (kv->single) {
            score_single(a, w, index + at, &some, scores + at);
            continue;
        }
        a->k->unpack(&some, w->piece, dim);
        score_rows(a, w, &piece, scores + at);
    }
}

/* Adds n values from row v on; the first is that of key `index`. */
static void sum_values(const attention *a, block_work *w, int64_t index, const char *v, int32_t n,
                       const float *scores)
{
    const kv_view *kv = a->kv;
    size_t row_bytes = kv->single ? kv->k_row_bytes : kv->v_row_bytes;
    value_product p = {.type = kv->v_type,
                       .n_q = w->n_q,
                       .n_keys = n,
                       .dim = kv->head_dim,
                       .o = w->values,
                       .p = scores,
                       .o_stride = kv->head_dim,
                       .p_stride = KEY_BLOCK,
                       .v = v,
                       .row_bytes = row_bytes,
                       .next = w->after,
                       /* one stream: the bytes of the keys, read again */
                       .source = kv->single ? ROWS_IN_CACHE : ROWS_IN_MEMORY};
    if (reads_stored(a, w, kv->v_type)) {
        a->k->value_sum(&p);
        return;
    }
    const key_rows rows = {
        .type = kv->v_type, .at = v, .row_bytes = row_bytes, .n = n, .dim = p.dim};
    p.type = NUM_F32;
    p.v = (const char *)w->piece;
    p.row_bytes = (size_t)p.dim * sizeof(float);
    p.source = ROWS_IN_CACHE;
    for (int32_t at = 0; at < n; at += a->piece_keys) {
        key_rows some = next_rows(rows, at, a->piece_keys);
        int32_t first = first_query(a, w, index + at);
        if (first == w->n_q)
            return;
        a->k->unpack(&some, w->piece, p.dim);
        p.n_keys = some.n;
        p.n_q = w->n_q - first;
        p.o = w->values + (size_t)first * (size_t)p.o_stride;
        p.p = scores + (size_t)first * (size_t)p.p_stride + at;
        a->k->value_sum(&p);
    }
}

/* One stream: the still dims of a query, times the keys' weights. */
static void still_query(const attention *a, const float *q, float *to)
{
    int32_t half = a->kv->head_dim / 2, n_turn = a->n_turning, still = half - n_turn;
    const float *w = a->kv->k_weight->data;
    for (int32_t h = 0; h < 2; h++, q += half, w += half)
        for (int32_t i = 0; i < still; i++)
            to[h * still + i] = q[n_turn + i] * w[n_turn + i] * a->scale;
}

static const float *query_of(const attention *a, row_tile t, int32_t head, int32_t iq)
{
    int32_t h = head * a->group + iq % a->group;
    return mat_row(a->turned, t.r0 + iq / a->group) + (size_t)h * (size_t)a->kv->head_dim;
}

void attend_load_queries(const attention *a, row_tile t, int32_t head, float *queries)
{
    int32_t dim = a->kv->head_dim;
    for (int32_t iq = 0; iq < t.n * a->group; iq++) {
        float *to = queries + (size_t)iq * (size_t)dim;
        if (a->kv->single) {
            still_query(a, query_of(a, t, head, iq), to);
            continue;
        }
        memcpy(to, query_of(a, t, head, iq), (size_t)dim * sizeof(float));
        if (a->scale != 1.0f)
            a->k->scale(to, a->scale, dim);
    }
}

/* One stream: the turning dims of the queries, turned back by `pos`. */
static void turn_queries_back(const attention *a, block_work *w, int64_t pos)
{
    int32_t dim = a->kv->head_dim, half = dim / 2, n_turn = a->n_turning;
    float *c = w->base, *s = c + n_turn;
    if (pos == w->turned_by)
        return;
    w->turned_by = pos;
    a->k->sincos(c, s, a->kv->k_rope->inv_freq, n_turn, (int32_t)pos);
    a->k->scale(s, -1.0f, n_turn);
    for (int32_t iq = 0; iq < w->t.n * a->group; iq++) {
        const float *q = query_of(a, w->t, w->head, iq);
        float *to = w->queries + (size_t)iq * (size_t)dim + 2 * (half - n_turn);
        memcpy(to, q, (size_t)n_turn * sizeof *to);
        memcpy(to + n_turn, q + half, (size_t)n_turn * sizeof *to);
        a->k->scale(to, a->scale, 2 * n_turn);
        a->k->rotate(to, c, s, n_turn);
    }
}

/* The number from which on rows of the tile have different keys. */
static int64_t own_keys(const attention *a, row_tile t)
{
    const rowset *rs = a->p->rows;
    return row_mask(rs, a->kv, t.r0) ? rows_keys(rs, a->kv)->first[t.r0] : INT64_MAX;
}

/* Row i of the tile alone. */
static block_work row_work(const attention *a, const block_work *w, int32_t i)
{
    block_work one = *w;
    size_t iq = (size_t)i * (size_t)a->group, dim = (size_t)a->kv->head_dim;
    one.t = (row_tile){w->t.r0 + i, 1};
    one.n_q = a->group;
    one.queries += iq * dim;
    one.scores += iq * KEY_BLOCK;
    one.values += iq * dim;
    return one;
}

static int64_t row_end(const attention *a, const block_work *w, int64_t hi)
{
    int64_t end = row_range(a->p->rows, a->kv, w->t.r0).hi;
    return end < hi ? end : hi;
}

static const char *value_row(const attention *a, const block_work *w, size_t place)
{
    const kv_view *kv = a->kv;
    const kv_base *base = step_store(a->p->st, a->p->rows->seq[w->t.r0], kv);
    return kv->single ? key_row(kv, base->k, kv->k_row_bytes, w->head, place)
                      : key_row(kv, base->v, kv->v_row_bytes, w->head, place);
}

/* Keys from t on, below `end`, that lie side by side and have neighbouring positions. Pages that
 * follow each other in memory are one span: each span costs the calls of its products. */
static key_span span_of(const attention *a, const block_work *w, const kv_base *base, int64_t t,
                        int64_t end)
{
    const rowset *rows = a->p->rows;
    key_span span = row_key_walk(a->kv, base, rows, w->t.r0, t);
    while (span.n < end - t) {
        key_span next = row_key_walk(a->kv, base, rows, w->t.r0, t + span.n);
        if (next.place != span.place + (size_t)span.n ||
            key_pos(base, t + span.n) != key_pos(base, t) + span.n)
            break;
        span.n += next.n;
    }
    span.n = span.n < end - t ? span.n : end - t;
    return span;
}

/* Scores of keys [t, end), which have the same places for all rows of the tile. */
static void score_span(const attention *a, block_work *w, int64_t t, int64_t end)
{
    const kv_view *kv = a->kv;
    const kv_base *base = step_store(a->p->st, a->p->rows->seq[w->t.r0], kv);
    for (int64_t n; t < end; t += n) {
        key_span span = span_of(a, w, base, t, end);
        n = span.n;
        if (kv->single) /* to where the block would begin if all positions were neighbours */
            turn_queries_back(a, w, key_pos(base, t) - (t - w->b0));
        score_keys(a, w, t, key_row(kv, base->k, kv->k_row_bytes, w->head, span.place), (int32_t)n,
                   w->scores + (t - w->b0));
    }
}

/* Adds the values of such keys, times their probabilities. */
static void sum_span(const attention *a, block_work *w, int64_t t, int64_t end)
{
    const kv_base *base = step_store(a->p->st, a->p->rows->seq[w->t.r0], a->kv);
    for (int64_t n; t < end; t += n) {
        key_span span = span_of(a, w, base, t, end);
        n = span.n;
        sum_values(a, w, t, value_row(a, w, span.place), (int32_t)n, w->scores + (t - w->b0));
    }
}

int64_t attend_shared_end(const attention *a, const block_work *w, int64_t lo, int64_t hi)
{
    int64_t own = own_keys(a, w->t);
    return own < lo ? lo : own < hi ? own : hi;
}

void attend_score_block(const attention *a, block_work *w, int64_t lo, int64_t hi, int64_t b0)
{
    const kv_view *kv = a->kv;
    const kv_base *base = step_store(a->p->st, a->p->rows->seq[w->t.r0], kv);
    int64_t shared = attend_shared_end(a, w, lo, hi);

    w->b0 = b0;
    w->next = a->account ? NULL : value_row(a, w, key_walk(kv, base, lo).place);
    w->after = NULL;
    if (w->goes_on && !a->account)
        w->after = key_row(kv, base->k, kv->k_row_bytes, w->head, key_walk(kv, base, hi).place);
    w->turned_by = -1;
    score_span(a, w, lo, shared);
    for (int32_t i = 0; i < w->t.n && shared < hi; i++) {
        block_work one = row_work(a, w, i);
        score_span(a, &one, shared, row_end(a, &one, hi));
    }
    for (int32_t iq = 0; iq < w->n_q; iq++)
        mask_row(a, w->t.r0 + iq / a->group, b0, w->scores + (size_t)iq * KEY_BLOCK);
}

void attend_sum_block(const attention *a, block_work *w, int64_t lo, int64_t hi)
{
    int64_t shared = attend_shared_end(a, w, lo, hi);
    memset(w->values, 0, (size_t)w->n_q * (size_t)a->kv->head_dim * sizeof(float));
    sum_span(a, w, lo, shared);
    for (int32_t i = 0; i < w->t.n && shared < hi; i++) {
        block_work one = row_work(a, w, i);
        sum_span(a, &one, shared, row_end(a, &one, hi));
    }
}
