/* page_ops.c - summaries of pages of keys, and how much queries attend to each page.
 *
 * The rows of a watch are neighbours, but for unusual passes; a launch takes as many rows and KV
 * heads as there is room for. All that changes from pass to pass is the number of pages, which
 * kernels read from the device. So a watched pass of answers is recorded and replayed like any
 * other: without that, one token in eight of a long answer would cost hundreds of launches.
 */
#include "backend/cuda/look_int.h"
#include "backend/cuda/ops_int.h"

_Static_assert((int)PAGE_QUERIES == (int)PAGE_WATCH_HEADS,
               "page_watch_room is for so many queries");

void cuda_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                    int32_t first, int32_t row, int32_t n)
{
    cuda_device *c = cuda_select(d);
    sums_args a = {.kv = cuda_kv_view(v, v->single ? v->k_weight->packed : NULL),
                   .base = {base->k, base->v, (const dev_kv_page *)base->page},
                   .to = to->at,
                   .n_rows = to->n_rows,
                   .parts = to->parts,
                   .first = first,
                   .row = row,
                   .n = n};
    if (n < 1)
        return;
    cuda_settle(c);
    cu_sum_pages(c->stream, a);
    cuda_ok(c, NULL, cudaGetLastError(), "summarising pages of keys");
}

void cuda_look_pages(device *d, const kv_view *v, const kv_base *base, const page_look *l)
{
    cuda_device *c = cuda_select(d);
    const look_args a = {.kv = cuda_kv_view(v, v->single ? v->k_weight->packed : NULL),
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
    cuda_settle(c);
    cu_look_pages(c->stream, a);
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
                         .score = w->score[PASS_MAIN],
                         .room = w->room[PASS_MAIN],
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
    watch_args a = {.kv = cuda_kv_view(kv, NULL),
                    .q = cuda_mat(q),
                    .sums = sums->at,
                    .room = w->room[p->here],
                    .score = w->score[p->here],
                    .n_pages = c->watched_pages + (w - p->watch),
                    .n_rows = sums->n_rows,
                    .parts = sums->parts,
                    .group = group,
                    .scale = scale};
    for (row_run run = next_run(p->rows, w, 0); run.n;
         run = next_run(p->rows, w, run.first + run.n))
        for (int32_t r = 0; r < run.n; r += rows)
            for (a.head_kv0 = 0; a.head_kv0 < kv->n_head_kv; a.head_kv0 += heads) {
                int32_t left = kv->n_head_kv - a.head_kv0;
                a.row0 = run.first + r;
                a.n = run.n - r < rows ? run.n - r : rows;
                a.n_kv = left < heads ? left : heads;
                cu_watch_pages(c->stream, a);
            }
    cuda_done(p, "watch_pages");
}
