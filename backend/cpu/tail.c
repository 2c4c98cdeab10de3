/* tail.c - what the last rows of a text attend to before the rotation (op_tail).
 *
 * Keys are stored after the rotation. A rotation can be undone, so no second store of keys is
 * needed: each is turned back by the angles of its position, and divided by YaRN's factor.
 *
 *     keys       | block 0 | block 1 | ...       a task is a block, of all heads
 *     measure    largest score and sum of each (head, row) in a block; then of all blocks
 *     merge      the scores again, as shares; their maximum over heads into p->tail
 *
 * Scores are computed twice and never kept: kept, they would take as much memory as the keys.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <math.h>
#include <string.h>

/* Keys of a task: with their angles and one head's scores, a part of the second cache. */
enum { TAIL_KEYS = 64 };

/* ---- The definition ------------------------------------------------------------------------ */

/* Key t of KV head h as it was before the rotation, in x; stored: room for a row. */
static void plain_key(const kv_view *kv, const kv_base *base, const rope *r, int32_t h, int64_t t,
                      float *stored, double *x)
{
    int32_t n = kv->head_dim, half = r ? r->n_pairs : 0;
    num_format_of(kv->k_type)
        ->decode(key_row(kv, base->k, kv->k_row_bytes, h, key_walk(kv, base, t).place), stored, n);
    if (kv->k_rot)
        num_unrotate(stored, n);
    for (int32_t i = 0; i < n; i++)
        x[i] = kv->single ? (double)stored[i] * ((const float *)kv->k_weight->data)[i] : stored[i];
    for (int32_t i = 0; i < half && !kv->single; i++) {
        double angle = (double)key_pos(base, t) * r->inv_freq[i];
        double c = cos(angle) / rope_factor(r), s = sin(angle) / rope_factor(r);
        double *pair = x + pair_at(r, i), a = pair[0], b = pair[pair_step(r)];
        pair[0] = a * c + b * s;
        pair[pair_step(r)] = b * c - a * s;
    }
}

void cpu_ref_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale)
{
    size_t mark = pass_mark(p), n = (size_t)kv->head_dim;
    float *stored = pass_temp(p, n * sizeof *stored);
    double *x = pass_temp(p, n * sizeof *x);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    const kv_base *base = step_store(p->st, 0, kv);
    for (int32_t row = 0; row < q.rows; row++)
        for (int32_t h = 0; h < q.heads; h++) {
            const float *of_head = mat_row(q, row) + (size_t)h * n;
            float *top = p->tail->top + row * p->tail->stride;
            key_range s = row_range(p->rows, kv, row);
            double most = -INFINITY, sum = 0;
            for (int walk = 0; walk < 3; walk++)
                for (int64_t t = s.lo; t < s.hi; t++) {
                    double score = 0;
                    plain_key(kv, base, r, h / (q.heads / kv->n_head_kv), t, stored, x);
                    for (size_t i = 0; i < n; i++)
                        score += of_head[i] * x[i];
                    score *= scale;
                    most = walk == 0 && score > most ? score : most;
                    sum += walk == 1 ? exp(score - most) : 0;
                    float share = walk == 2 ? (float)(exp(score - most) / sum) : 0;
                    if (share > top[key_pos(base, t)])
                        top[key_pos(base, t)] = share;
                }
        }
}

/* ---- In blocks ----------------------------------------------------------------------------- */

/* Largest score, and the sum of e^(score - largest). */
typedef struct tail_sum {
    float top, sum;
} tail_sum;

typedef struct tail_job {
    pass *p;
    const cpu_kernels *k;
    const kv_view *kv;
    const kv_base *base;
    const rope *r;
    int32_t n_q; /* of a KV head: the heads of its group times the rows */
    int64_t lo, hi;
    float *queries;                /* [n_head_kv][n_q][head_dim], scaled; a head's rows together */
    float *keys, *angles, *scores; /* of a thread: [TAIL_KEYS][head_dim], [TAIL_KEYS][2][n_pairs],
                                      [n_q][TAIL_KEYS] */
    tail_sum *block;               /* [blocks][n_head_kv][n_q] */
    tail_sum *all;                 /* [n_head_kv][n_q] */
    bool merge;
} tail_job;

static size_t pairs_of(const rope *r)
{
    return r ? (size_t)r->n_pairs : 0;
}

/* Cosines and negative sines of n keys from t0 on, over the rotation's factor. */
static void fill_angles(const tail_job *j, float *angles, int64_t t0, int32_t n)
{
    size_t half = pairs_of(j->r);
    for (int32_t i = 0; i < n && half; i++, angles += 2 * half) {
        float over = 1 / rope_factor(j->r);
        j->k->sincos(angles, angles + half, j->r->inv_freq, (int32_t)half,
                     (int32_t)key_pos(j->base, t0 + i));
        j->k->scale(angles, over, (int32_t)half);
        j->k->scale(angles + half, -over, (int32_t)half);
    }
}

/* Keys t0 .. t0 + n - 1 of KV head h before the rotation. */
static void plain_keys(const tail_job *j, float *keys, const float *angles, int32_t h, int64_t t0,
                       int32_t n)
{
    const kv_view *kv = j->kv;
    size_t half = pairs_of(j->r), dim = (size_t)kv->head_dim;
    for (int32_t i = 0; i < n;) {
        key_span s = key_walk(kv, j->base, t0 + i);
        int32_t some = s.n < n - i ? (int32_t)s.n : n - i;
        const key_rows rows = {.type = kv->k_type,
                               .at = key_row(kv, j->base->k, kv->k_row_bytes, h, s.place),
                               .row_bytes = kv->k_row_bytes,
                               .n = some,
                               .dim = kv->head_dim};
        j->k->unpack(&rows, keys + (size_t)i * dim, kv->head_dim);
        i += some;
    }
    for (int32_t i = 0; i < n; i++, keys += dim) {
        if (kv->k_rot)
            num_unrotate(keys, kv->head_dim);
        for (size_t c = 0; kv->single && c < dim; c++)
            keys[c] *= ((const float *)kv->k_weight->data)[c];
        if (half && !kv->single)
            cpu_rotate(j->k, j->r, keys, angles + (size_t)i * 2 * half,
                       angles + ((size_t)i * 2 + 1) * half);
    }
}

/* Adds the shares of the keys that a row sees, x[from .. to), to its line of p->tail. */
static void merge_row(const tail_job *j, const float *x, int32_t from, int32_t to, int64_t t0,
                      int32_t row, float factor)
{
    float *top = j->p->tail->top + row * j->p->tail->stride;
    for (int32_t i = from; i < to; i++) {
        float share = x[i] * factor, *at = top + key_pos(j->base, t0 + i);
        *at = share > *at ? share : *at;
    }
}

static void tail_block(void *arg, int32_t b, int32_t thread)
{
    const tail_job *j = arg;
    const kv_view *kv = j->kv;
    size_t dim = (size_t)kv->head_dim, n_q = (size_t)j->n_q;
    int64_t t0 = j->lo + (int64_t)b * TAIL_KEYS;
    int32_t n = j->hi - t0 < TAIL_KEYS ? (int32_t)(j->hi - t0) : TAIL_KEYS;
    float *keys = j->keys + (size_t)thread * TAIL_KEYS * dim;
    float *angles = j->angles + (size_t)thread * TAIL_KEYS * 2 * pairs_of(j->r);
    float *scores = j->scores + (size_t)thread * n_q * TAIL_KEYS;
    fill_angles(j, angles, t0, n);
    for (int32_t h = 0; h < kv->n_head_kv; h++) {
        plain_keys(j, keys, angles, h, t0, n);
        j->k->key_dot(&(key_product){.type = NUM_F32,
                                     .n_q = j->n_q,
                                     .n_keys = n,
                                     .dim = kv->head_dim,
                                     .s = scores,
                                     .s_stride = TAIL_KEYS,
                                     .q = j->queries + (size_t)h * n_q * dim,
                                     .q_stride = kv->head_dim,
                                     .k = (const char *)keys,
                                     .row_bytes = dim * sizeof *keys,
                                     .source = ROWS_IN_CACHE});
        for (size_t i = 0; i < n_q; i++) {
            int32_t row = (int32_t)i % j->p->tail->rows;
            key_range s = row_range(j->p->rows, kv, row);
            int32_t from = s.lo > t0 ? (int32_t)(s.lo - t0) : 0;
            int32_t to = s.hi - t0 < n ? (int32_t)(s.hi - t0) : n;
            float *x = scores + i * TAIL_KEYS;
            tail_sum now = {-INFINITY, 0}, *all = &j->all[(size_t)h * n_q + i];
            if (from < to)
                now.sum = j->k->softmax(x + from, to - from, &now.top);
            if (!j->merge)
                j->block[((size_t)b * (size_t)kv->n_head_kv + (size_t)h) * n_q + i] = now;
            else if (from < to)
                merge_row(j, x, from, to, t0, row, expf(now.top - all->top) / all->sum);
        }
    }
}

/* The sums of the blocks become those of all keys. */
static void join_blocks(const tail_job *j, size_t n_blocks)
{
    size_t n = (size_t)j->kv->n_head_kv * (size_t)j->n_q;
    for (size_t i = 0; i < n; i++) {
        tail_sum a = {-INFINITY, 0};
        for (size_t b = 0; b < n_blocks; b++)
            a.top = fmaxf(a.top, j->block[b * n + i].top);
        for (size_t b = 0; b < n_blocks; b++)
            if (j->block[b * n + i].sum > 0)
                a.sum += j->block[b * n + i].sum * expf(j->block[b * n + i].top - a.top);
        j->all[i] = a;
    }
}

void cpu_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale)
{
    cpu_device *c = cpu_of(p);
    size_t threads = (size_t)c->n_threads, dim = (size_t)kv->head_dim, mark = pass_mark(p);
    size_t n = (size_t)q.rows * (size_t)q.heads, n_head = (size_t)kv->n_head_kv;
    size_t n_blocks = ((size_t)kv->n_keys + TAIL_KEYS - 1) / TAIL_KEYS;
    int32_t group = q.heads / kv->n_head_kv;
    tail_job j = {.p = p, .k = c->k, .kv = kv, .r = r, .n_q = group * q.rows};
    j.queries = pass_temp(p, n * dim * sizeof *j.queries);
    j.keys = pass_temp(p, threads * TAIL_KEYS * dim * sizeof *j.keys);
    j.angles = pass_temp(p, threads * TAIL_KEYS * 2 * pairs_of(r) * sizeof *j.angles);
    j.scores = pass_temp(p, threads * TAIL_KEYS * (n / n_head) * sizeof *j.scores);
    j.block = pass_temp(p, n_blocks * n * sizeof *j.block);
    j.all = pass_temp(p, n * sizeof *j.all);
    pass_release(p, mark);
    if (p->dry || pass_failed(p) || !q.rows)
        return;
    j.base = step_store(p->st, 0, kv);
    j.lo = row_range(p->rows, kv, 0).lo;
    for (int32_t row = 0; row < q.rows; row++) {
        key_range s = row_range(p->rows, kv, row);
        j.lo = s.lo < j.lo ? s.lo : j.lo;
        j.hi = s.hi > j.hi ? s.hi : j.hi;
        for (int32_t h = 0; h < q.heads; h++) {
            float *to = j.queries + ((size_t)h * (size_t)q.rows + (size_t)row) * dim;
            memcpy(to, mat_row(q, row) + (size_t)h * dim, dim * sizeof *to);
            c->k->scale(to, scale, kv->head_dim);
        }
    }
    n_blocks = (size_t)(j.hi - j.lo + TAIL_KEYS - 1) / TAIL_KEYS;
    pool_run(c->pool, (int32_t)n_blocks, tail_block, &j);
    join_blocks(&j, n_blocks);
    j.merge = true;
    pool_run(c->pool, (int32_t)n_blocks, tail_block, &j);
}
