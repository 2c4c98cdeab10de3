/* page_ops.c - summaries of pages of keys, and how much queries attend to each page.
 *
 *     layer 0 .. layer 1 .. layer 2 ..            | end of the pass
 *      queries    queries    queries -> job 2     |   products, shares, votes of all jobs
 *
 * A layer's queries are kept, and all layers are asked in three launches: one layer alone has too
 * few blocks to hide how long its launches and its reads take. The rows of a watch are neighbours,
 * but for unusual passes; a job takes as many rows and KV heads as a room has place for. All that
 * changes from pass to pass is the number of pages, which kernels read from the device. So a
 * watched pass of answers is recorded and replayed like any other: without that, one token in eight
 * of a long answer would cost hundreds of launches.
 */
#include "backend/cuda/pages/page_rescore_int.h"
#include "backend/cuda/ops_int.h"

_Static_assert((int)PAGE_QUERIES == (int)PAGE_WATCH_HEADS,
               "page_watch_room is for so many queries");
_Static_assert((int)PAGE_VOTE == (int)PAGE_VOTE_BITS, "votes are those of page_watch");
_Static_assert((int)SUM_GROUP == (int)PAGE_SUM_GROUP, "scales are those of page_sums");

void cuda_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                    int32_t first, int32_t row, int32_t n)
{
    cuda_device *c = cuda_select(d);
    sums_args a = {.kv = cuda_kv_view(v, v->single ? v->k_weight->packed : NULL),
                   .base = {base->k, base->v, (const dev_kv_page *)base->page},
                   .to = to->at,
                   .scales = (uint32_t *)(void *)page_scales(to, v, 0, 0),
                   .n_rows = to->n_rows,
                   .parts = to->parts,
                   .first = first,
                   .row = row,
                   .n = n};
    if (n < 1)
        return;
    cuda_select(&c->dev);
    cu_sum_pages(c->stream, a);
    cuda_ok(c, NULL, cudaGetLastError(), "summarising pages of keys");
}

void cuda_rescore_pages(device *d, const kv_view *v, const kv_base *base, const page_rescore *l)
{
    cuda_device *c = cuda_select(d);
    const page_rescore_args a = {.kv = cuda_kv_view(v, v->single ? v->k_weight->packed : NULL),
                                 .base = {base->k, base->v, (const dev_kv_page *)base->page},
                                 .q = cuda_mat(l->q),
                                 .to = l->to,
                                 .scale = l->scale,
                                 .group = l->q.heads / v->n_head_kv,
                                 .first = l->first,
                                 .n = l->n,
                                 .stride = l->stride};
    if (l->n < 1 || l->q.rows < 1)
        return;
    cuda_select(&c->dev);
    cu_rescore_pages(c->stream, a);
    cuda_ok(c, NULL, cudaGetLastError(), "looking at pages of keys");
}

/* The next rows, from r on, that w looks at; n 0: none. */
static row_run next_run(const rowset *rs, const page_watch *w, int32_t r)
{
    row_run run = {.first = r};
    while (run.first < rs->n && (rs->seq[run.first] != w->seq || rs->pos[run.first] < w->pos))
        run.first++;
    for (r = run.first; r < rs->n && rs->seq[r] == w->seq && rs->pos[r] >= w->pos; r++)
        run.n++;
    return run;
}

bool cuda_watched_rows(const pass *p, watched_rows *to)
{
    const page_watch *w = p->watch;
    const step *st = p->st;
    if (p->n_watch != 1)
        return false;
    *to = (watched_rows){.sums = w->sums,
                         .votes = w->votes[p->here],
                         .room = w->room[p->here],
                         .all = next_run(&st->all, w, 0),
                         .out = next_run(&st->out, w, 0)};
    return !next_run(&st->all, w, to->all.first + to->all.n).n &&
           !next_run(&st->out, w, to->out.first + to->out.n).n;
}

void cuda_show_watch(cuda_device *c, const pass *p)
{
    put_args a = {.to = (uint32_t *)c->watched_pages, .n = p->n_watch};
    if (!p->n_watch || c->watch_shown)
        return;
    for (int32_t i = 0; i < p->n_watch; i++)
        a.word[i] = (uint32_t)p->watch[i].n_pages;
    cu_put(c->stream, &a);
    c->watch_shown = true;
}

/* Summaries do not change in a pass. So queries may be asked at any time until it ends. */
void cuda_ask_pages(cuda_device *c, pass *p)
{
    if (c->watch.n_jobs && !pass_failed(p)) {
        cu_watch_pages(c->stream, &c->watch);
        cuda_ok(c, p, cudaGetLastError(), "scoring pages of keys");
    }
    c->watch.n_jobs = 0;
}

/* The jobs that wait are of heads and summaries like these. */
static bool same_shape(const watch_args *a, const watch_args *b)
{
    return a->head_dim == b->head_dim && a->group == b->group && a->n_rows == b->n_rows &&
           a->parts == b->parts;
}

/* The next job, with a room of its own. */
static watch_job *new_job(cuda_device *c, pass *p, const watch_args *shape, const page_watch *w)
{
    int32_t n_rooms = w->n_rooms[p->here] > 1 ? w->n_rooms[p->here] : 1, used = 0;
    size_t room = page_watch_room(shape->n_rows, shape->head_dim);
    watch_args *a = &c->watch;
    for (int32_t i = 0; i < a->n_jobs; i++)
        used += a->job[i].watch == w - p->watch;
    if (a->n_jobs == WATCH_JOBS || used == n_rooms || !same_shape(a, shape)) {
        cuda_ask_pages(c, p);
        used = 0;
    }
    if (!a->n_jobs)
        *a = *shape;
    watch_job *j = &a->job[a->n_jobs++];
    float *at = w->room[p->here] + (size_t)used * room;
    float *stats = at + (size_t)PAGE_QUERIES * (size_t)shape->n_rows;
    *j = (watch_job){.room = at,
                     .stats = stats,
                     .queries = stats + 2 * PAGE_QUERIES,
                     .votes = (unsigned long long *)w->votes[p->here],
                     .watch = (int16_t)(w - p->watch)};
    return j;
}

void cuda_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    _Static_assert((int)STEP_SEQS_MAX <= (int)PUT_WORDS, "a launch has room for every watch");
    cuda_device *c = cuda_of(p);
    const page_sums *sums = &w->sums[kv->id];
    int32_t group = q.heads / kv->n_head_kv, heads = PAGE_QUERIES / group;
    heads = heads < kv->n_head_kv ? heads : kv->n_head_kv;
    int32_t rows = PAGE_QUERIES / (heads * group);
    if (cuda_skip(p, q))
        return;
    cuda_show_watch(c, p);
    const watch_args shape = {.n_pages = c->watched_pages,
                              .head_dim = kv->head_dim,
                              .group = group,
                              .n_rows = sums->n_rows,
                              .parts = sums->parts};
    query_args keep = {.q = cuda_mat(q),
                       .head_dim = kv->head_dim,
                       .group = group,
                       .rot = kv->k_rot && !kv->single,
                       .scale = scale};
    for (row_run run = next_run(p->rows, w, 0); run.n;
         run = next_run(p->rows, w, run.first + run.n))
        for (int32_t r = 0; r < run.n; r += rows)
            for (int32_t head = 0; head < kv->n_head_kv; head += heads) {
                int32_t left = kv->n_head_kv - head;
                watch_job *j = new_job(c, p, &shape, w);
                j->sums = sums->at;
                j->scales = (const uint32_t *)(void *)page_scales(sums, kv, 0, 0);
                j->head_kv0 = (int16_t)head;
                j->n_kv = (int16_t)(left < heads ? left : heads);
                j->n = (int16_t)(run.n - r < rows ? run.n - r : rows);
                keep.to = j->queries;
                keep.head_kv0 = head;
                keep.n_kv = j->n_kv;
                keep.row0 = run.first + r;
                keep.n = j->n;
                cu_keep_queries(c->stream, keep);
            }
    cuda_done(p, "watch_pages");
}
