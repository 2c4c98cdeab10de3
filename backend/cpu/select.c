/* select.c - block selection on the CPU: which tiles of keys a query block attends to (sparse.h).
 *
 *     means    of pages, in bf16 (pages.c); a tile's mean is the mean of its two pages
 *     task     query block x KV head: its query heads one after the other, QUERY_ROWS rows and
 *              MEANS tiles at a time
 *
 * For each tile a task holds the largest score and the sum of e^(t - largest) over the rows so far.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/kernels_int.h"
#include "backend/cpu/sparse_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

#include <math.h>
#include <string.h>

enum { QUERY_ROWS = 32, MEANS = 32 };

/* Floats of a thread: means, scores; the largest score and the sum of each tile. */
static size_t select_room(const kv_view *kv)
{
    size_t n_tiles = (size_t)kv->n_keys / SPARSE_TILE + 1;
    return MEANS * ((size_t)kv->head_dim + QUERY_ROWS) + 2 * n_tiles;
}

void cpu_selection_take(pass *p, mat q, const kv_view *kv, int32_t n_threads, cpu_selection *s)
{
    size_t n = (size_t)q.rows / SPARSE_TILE, g = (size_t)kv->n_head_kv;
    *s = (cpu_selection){.n_word = sparse_words(kv->n_keys), .n_head_kv = kv->n_head_kv};
    if (kv->window || !n || kv->head_dim > PAGE_SUM_DIM_MAX)
        return;
    s->n_pages = kv->n_keys / KV_PAGE;
    s->query = pass_temp(p, n * sizeof *s->query);
    s->of_row = pass_temp(p, (size_t)q.rows * sizeof *s->of_row);
    s->kept = pass_temp(p, n * g * (size_t)s->n_word * sizeof *s->kept);
    if (!n_threads)
        return;
    s->means = pass_temp(p, g * (size_t)s->n_pages * (size_t)kv->head_dim * sizeof *s->means);
    s->room = pass_temp(p, (size_t)n_threads * select_room(kv) * sizeof *s->room);
}

typedef struct select_job {
    const cpu_kernels *k;
    const kv_view *kv;
    const rowset *rs;
    const sparse_rule *rules; /* of the sequences */
    cpu_selection *s;
    page_sums sums;
    mat q;
    float scale;
    int32_t first; /* of the query blocks of one sequence */
} select_job;

/* Means of tiles n0 .. n0 + n - 1 of KV head g. */
static void load_means(const select_job *j, int32_t g, int32_t n0, int32_t n, float *to)
{
    int32_t dim = j->kv->head_dim;
    for (int32_t i = 0; i < n; i++, to += dim) {
        const uint16_t *a = page_mean(&j->sums, j->kv, g, 2 * (n0 + i)), *b = a + dim;
        for (int32_t d = 0; d < dim; d++)
            to[d] = 0.5f * (num_bf16_to_f32(a[d]) + num_bf16_to_f32(b[d]));
    }
}

/* One more row's score of a tile; NaN is ignored. */
static void add_score(float *top, float *sum, float t)
{
    if (t > *top) {
        *sum = *sum * expf(*top - t) + 1;
        *top = t;
    } else if (t == t && t > -INFINITY) {
        *sum += expf(t - *top);
    }
}

/* top, sum: of tiles 0 .. m, for query head h of query block x. */
static void score_tiles(const select_job *j, sparse_query x, int32_t h, float *room, float *top,
                        float *sum)
{
    int32_t dim = j->kv->head_dim, g = h / (j->q.heads / j->kv->n_head_kv);
    float *means = room, *s = room + MEANS * dim;
    for (int32_t n = 0; n <= x.block; n++) {
        top[n] = -INFINITY;
        sum[n] = 0;
    }
    for (int32_t n0 = 0, n; n0 <= x.block; n0 += n) {
        n = x.block + 1 - n0 < MEANS ? x.block + 1 - n0 : MEANS;
        load_means(j, g, n0, n, means);
        for (int32_t r = 0; r < SPARSE_TILE; r += QUERY_ROWS) {
            const key_product p = {.type = NUM_F32,
                                   .n_q = QUERY_ROWS,
                                   .n_keys = n,
                                   .dim = dim,
                                   .s = s,
                                   .q = mat_row(j->q, x.r0 + r) + (size_t)h * (size_t)dim,
                                   .s_stride = MEANS,
                                   .q_stride = (int32_t)j->q.stride,
                                   .k = (const char *)means,
                                   .row_bytes = (size_t)dim * sizeof *means,
                                   .source = ROWS_IN_CACHE};
            j->k->key_dot(&p);
            for (int32_t i = 0; i < QUERY_ROWS; i++)
                for (int32_t k = 0; k < n; k++)
                    if (n0 + k < x.block || r + i == SPARSE_TILE - 1)
                        add_score(&top[n0 + k], &sum[n0 + k], s[i * MEANS + k] * j->scale);
        }
    }
}

static void select_task(void *arg, int32_t chunk, int32_t thread)
{
    const select_job *j = arg;
    int32_t group = j->q.heads / j->kv->n_head_kv, g = chunk % j->kv->n_head_kv;
    int32_t at = j->first + chunk / j->kv->n_head_kv;
    sparse_query x = j->s->query[at];
    float alpha = j->rules[j->rs->seq[x.r0]].alpha;
    float *room = j->s->room + (size_t)thread * select_room(j->kv);
    float *top = room + MEANS * (j->kv->head_dim + QUERY_ROWS), *sum = top + x.block + 1;
    for (int32_t n = 0; n <= x.block; n++)
        if (sparse_forced(x.block, n))
            cpu_keep(j->s, at, g, n);
    for (int32_t h = g * group; h < (g + 1) * group; h++) {
        float best = -INFINITY, most = 0;
        score_tiles(j, x, h, room, top, sum);
        for (int32_t n = 0; n <= x.block; n++)
            best = top[n] > best ? top[n] : best;
        for (int32_t n = 0; n <= x.block; n++) {
            sum[n] *= expf(top[n] - best);
            most = sum[n] > most ? sum[n] : most;
        }
        for (int32_t n = 0; n <= x.block; n++)
            if (!(sum[n] < alpha * most))
                cpu_keep(j->s, at, g, n);
    }
}

void cpu_select(pass *p, mat q, const kv_view *kv, float scale, cpu_selection *s)
{
    cpu_device *c = cpu_of(p);
    const rowset *rs = p->rows;
    if (!s->query || !p->st->sparse)
        return;
    s->n = sparse_queries(p->st, rs, kv, s->query, s->of_row);
    memset(s->kept, 0, (size_t)s->n * (size_t)kv->n_head_kv * (size_t)s->n_word * sizeof *s->kept);
    select_job j = {.k = c->k,
                    .kv = kv,
                    .rs = rs,
                    .rules = p->st->sparse,
                    .s = s,
                    .sums = {s->means, s->n_pages, PAGE_SUM_MEAN},
                    .q = q,
                    .scale = scale};
    for (int32_t n; j.first < s->n; j.first += n) {
        int32_t seq = rs->seq[s->query[j.first].r0], last = j.first;
        while (last + 1 < s->n && rs->seq[s->query[last + 1].r0] == seq)
            last++;
        n = last + 1 - j.first;
        cpu_sum_pages(p->dev, kv, step_store(p->st, seq, kv), &j.sums, 0, 0,
                      2 * (s->query[last].block + 1));
        pool_run(c->pool, n * kv->n_head_kv, select_task, &j);
    }
}

/* ---- Which rows leave keys out, and the account of it, for the reference and the kernels ---- */

bool cpu_sparse_any(const pass *p, const kv_view *kv)
{
    const rowset *rs = p->rows;
    for (int32_t r = 0; !p->dry && p->st->sparse && r < rs->n; r++)
        if (sparse_rule_of(p->st, rs, kv, r))
            return true;
    return false;
}

sparse_account *cpu_sparse_accounts(pass *p, mat q, const kv_view *kv)
{
    size_t n = (size_t)q.rows * (size_t)q.heads * sizeof(sparse_account);
    sparse_account *account = kv->window ? NULL : pass_temp(p, n);
    return cpu_sparse_any(p, kv) ? account : NULL;
}

void cpu_sparse_count(const pass *p, mat q, const kv_view *kv, const sparse_account *account)
{
    for (int32_t r = 0; account && !p->repeats && r < q.rows; r++) {
        const sparse_rule *rule = sparse_rule_of(p->st, p->rows, kv, r);
        if (!rule || !rule->stats || p->il < 0)
            continue;
        for (int32_t h = 0; h < q.heads; h++) {
            const sparse_account *x = &account[(size_t)r * (size_t)q.heads + (size_t)h];
            sparse_count(&rule->stats[p->il], rule->skip > 0 ? x->certificate : -1, x->n_tiles,
                         x->n_kept);
        }
    }
}
