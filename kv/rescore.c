/* rescore.c - see rescore.h: the stage, the kept queries, which pages are rescored, and their
 * scores. */
#include "kv/rescore.h"
#include "base/mem.h"
#include "kv/pager.h"

#include <math.h>
#include <stdlib.h>

/* The stage of one device (side). */
typedef struct rescore_side {
    device *d;      /* NULL: a side without queries */
    void *stage;    /* keys of KV_RESCORE_STAGED pages of one store, a head after the other */
    kv_page *table; /* [KV_RESCORE_STAGED] of the stage */
    float *to;      /* on the device, [KV_RESCORE_STAGED][n_queries]: what rescore_pages writes */
    size_t stage_bytes, to_bytes;
    int32_t n_queries; /* of all layers of the side and KV_RESCORE_ROWS rows */
    float *share;      /* on the host, [cap][n_queries]: log of a page's sum of exponentials, then
                          e to the power of that less the query's largest */
} rescore_side;

struct kv_rescore {
    rescore_side side[PASS_SIDES_MAX];
    int32_t cap;         /* most pages at a time */
    int32_t *page;       /* [cap] the rescored pages */
    int32_t *order;      /* [n_pages] */
    float *top, *sum;    /* [queries of the largest side] their largest share, and sum of shares */
    unsigned char *file; /* room for one page, read from the file */
};

/* ---- Opening ------------------------------------------------------------------------------- */

static size_t page_key_bytes(const kv_view *v)
{
    return KV_PAGE * (size_t)v->n_head_kv * v->k_row_bytes;
}

static size_t stage_bytes(const kv_layout *l, int32_t side)
{
    size_t most = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        if (!v->window && v->side == side && page_key_bytes(v) > most)
            most = page_key_bytes(v);
    }
    return KV_RESCORE_STAGED * most;
}

static size_t n_queries(const page_query_size *q)
{
    return KV_RESCORE_ROWS * (size_t)q->heads;
}

uint64_t kv_rescore_bytes(const kv_layout *l, const page_query_size *q, int32_t side)
{
    return q->heads ? stage_bytes(l, side) + KV_RESCORE_STAGED * sizeof(kv_page) +
                          KV_RESCORE_STAGED * n_queries(q) * sizeof(float)
                    : 0;
}

static status open_side(rescore_side *s, device *d, const kv_layout *l, const page_query_size *q,
                        int32_t side, int32_t cap, err *e)
{
    *s = (rescore_side){.d = d,
                        .stage_bytes = stage_bytes(l, side),
                        .to_bytes = KV_RESCORE_STAGED * n_queries(q) * sizeof(float),
                        .n_queries = (int32_t)n_queries(q)};
    s->stage = d->alloc(d, s->stage_bytes);
    s->table = d->alloc(d, KV_RESCORE_STAGED * sizeof *s->table);
    s->to = d->alloc(d, s->to_bytes);
    s->share = mem_alloc((size_t)cap * n_queries(q) * sizeof *s->share);
    return s->stage && s->table && s->to && s->share
               ? OK
               : err_memory(e, "looks at pages", s->stage_bytes + s->to_bytes);
}

status kv_rescore_open(kv_pool *p, int32_t n_resident, const page_query_size *query, err *e)
{
    const kv_layout *l = p->layout;
    int32_t n_pages = pages_of(l->n_ctx), cap = n_resident + n_pages / KV_RESCORE_PART + 1,
            most = 1;
    status st = OK;
    if (p->rescore)
        return OK;
    kv_rescore *k = p->rescore = mem_calloc(1, sizeof *k);
    if (!k)
        return err_memory(e, "looks at pages", sizeof *k);
    k->cap = cap < n_pages ? cap : n_pages;
    for (int32_t i = 0; i < PASS_SIDES_MAX && !st; i++) {
        if (!query[i].heads)
            continue;
        st = open_side(&k->side[i], p->dev[i], l, &query[i], i, k->cap, e);
        most = k->side[i].n_queries > most ? k->side[i].n_queries : most;
    }
    k->page = mem_calloc((size_t)k->cap, sizeof *k->page);
    k->order = mem_calloc((size_t)n_pages, sizeof *k->order);
    k->top = mem_calloc((size_t)most, sizeof *k->top);
    k->sum = mem_calloc((size_t)most, sizeof *k->sum);
    k->file = mem_alloc(kv_page_bytes(l));
    if (!st && !(k->page && k->order && k->top && k->sum && k->file))
        st = err_memory(e, "looks at pages", (size_t)n_pages * sizeof *k->order);
    if (st)
        kv_rescore_close(p);
    return st;
}

void kv_rescore_close(kv_pool *p)
{
    kv_rescore *k = p->rescore;
    if (!k)
        return;
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++) {
        rescore_side *s = &k->side[i];
        if (s->stage)
            s->d->release(s->d, s->stage, s->stage_bytes);
        if (s->table)
            s->d->release(s->d, s->table, KV_RESCORE_STAGED * sizeof *s->table);
        if (s->to)
            s->d->release(s->d, s->to, s->to_bytes);
        mem_free(s->share);
    }
    mem_free(k->file);
    mem_free(k->sum);
    mem_free(k->top);
    mem_free(k->order);
    mem_free(k->page);
    mem_free(k);
    p->rescore = NULL;
}

uint64_t kv_queries_bytes(const page_query_size *q)
{
    return KV_RESCORE_ROWS * (uint64_t)q->floats * sizeof(float);
}

status kv_queries_open(page_queries *q, const kv_cache *c, const page_query_size *query, err *e)
{
    *q = (page_queries){0};
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++) {
        size_t n_bytes = (size_t)kv_queries_bytes(&query[i]);
        q->cap += query[i].layers;
        if (!n_bytes)
            continue;
        q->mem[i] = c->dev[i]->alloc(c->dev[i], n_bytes);
        if (!q->mem[i])
            return err_memory(e, "queries for pages", n_bytes);
        q->n_floats[i] = n_bytes / sizeof(float);
    }
    q->at = mem_calloc((size_t)q->cap + 1, sizeof *q->at);
    return q->at ? OK : err_memory(e, "queries for pages", (size_t)q->cap * sizeof *q->at);
}

void kv_queries_close(page_queries *q, const kv_cache *c)
{
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++)
        if (q->mem[i])
            c->dev[i]->release(c->dev[i], q->mem[i], q->n_floats[i] * sizeof(float));
    mem_free(q->at);
    *q = (page_queries){0};
}

/* ---- Looking ------------------------------------------------------------------------------- */

/* One look, while it is computed. */
typedef struct rescore_run {
    kv_cache *c;
    kv_rescore *k;
    const page_queries *q;
    int32_t n; /* the rescored pages */
} rescore_run;

/* All kept queries of layer v against the keys of pages first .. first + n - 1 of base's table. */
static void ask_store(const rescore_run *r, const kv_view *v, const kv_base *base, int32_t first,
                      int32_t n)
{
    const rescore_side *s = &r->k->side[v->side];
    int32_t at = 0; /* queries of a side: layer after layer */
    for (int32_t i = 0; i < r->q->n; i++) {
        const page_query *q = &r->q->at[i];
        if (q->kv->side != v->side)
            continue;
        const page_rescore l = {q->q, q->scale, first, n, s->to + at, s->n_queries};
        if (q->kv->id == v->id)
            s->d->rescore_pages(s->d, v, base, &l);
        at += q->q.rows * q->q.heads;
    }
}

/* Copies the results of n more pages from the devices to `share`. */
static void take_shares(rescore_run *r, int32_t n)
{
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++) {
        const rescore_side *s = &r->k->side[i];
        size_t row = (size_t)s->n_queries;
        if (s->d)
            s->d->download(s->d, s->share + (size_t)r->n * row, s->to,
                           (size_t)n * row * sizeof(float));
    }
    r->n += n;
}

static bool is_asked(const rescore_run *r, const kv_view *v)
{
    return !v->window && r->k->side[v->side].d;
}

/* Pages in the pool, which are the first entries of the table. */
static void score_resident(rescore_run *r, int32_t n_whole)
{
    const kv_cache *c = r->c;
    int32_t n_entries = 0;
    while (n_entries < c->n_pages && c->table[n_entries].pos < n_whole * KV_PAGE)
        n_entries++;
    for (int32_t first = 0, n; first < n_entries; first += n) {
        n = n_entries - first < KV_RESCORE_STAGED ? n_entries - first : KV_RESCORE_STAGED;
        for (int32_t i = 0; i < n; i++)
            r->k->page[r->n + i] = c->table[first + i].pos / KV_PAGE;
        for (int32_t i = 0; i < c->layout->n; i++)
            if (is_asked(r, &c->layout->view[i]))
                ask_store(r, &c->layout->view[i], &c->base[i], first, n);
        take_shares(r, n);
    }
}

/* Copies one layer's keys of a packed page (mover.h) to place j of the stage. */
static void stage_keys(const rescore_side *s, const kv_view *v, const unsigned char *keys,
                       int32_t j)
{
    size_t run = KV_PAGE * v->k_row_bytes;
    const block_move m = {.dev = (char *)s->stage + (size_t)j * run,
                          .host = (char *)keys,
                          .dev_stride = KV_RESCORE_STAGED * run,
                          .host_stride = run,
                          .n_bytes = run,
                          .n = v->n_head_kv,
                          .load = true};
    device_move(s->d, &m);
}

/* Looks at the next n pages of r->k->page, whose host copies are packed[n]. */
static void score_staged(rescore_run *r, const unsigned char *const *packed, int32_t n)
{
    const kv_layout *l = r->c->layout;
    kv_page table[KV_RESCORE_STAGED];
    for (int32_t i = 0; i < n; i++)
        table[i] = (kv_page){i * KV_PAGE, r->k->page[r->n + i] * KV_PAGE};
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        const rescore_side *s = &r->k->side[side];
        if (s->d)
            s->d->upload(s->d, s->table, table, (size_t)n * sizeof *table);
    }
    for (int32_t i = 0; i < l->n; i++) {
        kv_view v = l->view[i];
        const rescore_side *s = &r->k->side[v.side];
        if (!is_asked(r, &v))
            continue;
        for (int32_t j = 0; j < n; j++)
            stage_keys(s, &v, packed[j] + kv_packed_keys(r->c->pool, i), j);
        v.n_slots = v.n_keys = KV_RESCORE_STAGED * KV_PAGE;
        ask_store(r, &v, &(kv_base){.k = s->stage, .page = s->table}, 0, n);
    }
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        if (r->k->side[side].d)
            device_moved(r->k->side[side].d);
    take_shares(r, n);
}

/* Looks at the pages up to n_all of r->k->page, which are away: as many at a time as are in memory
 * and fit on the stage, or one that is in the file. */
static status score_absent(rescore_run *r, int32_t n_all, err *e)
{
    const kv_copy *copy = r->c->pager->copy;
    const unsigned char *packed[KV_RESCORE_STAGED];
    status st;
    while (r->n < n_all) {
        const int32_t *page = r->k->page + r->n;
        int32_t n = 0;
        for (; n < KV_RESCORE_STAGED && r->n + n < n_all && copy[page[n]].at; n++)
            packed[n] = copy[page[n]].at;
        if (!n) {
            if ((st = kv_copy_read(r->c->pool, &copy[page[0]], r->k->file, e)))
                return st;
            packed[n++] = r->k->file;
        }
        score_staged(r, packed, n);
    }
    return OK;
}

/* ---- Choosing what to look at, and scores --------------------------------------------------- */

static void swap(int32_t *a, int32_t *b)
{
    int32_t was = *a;
    *a = *b;
    *b = was;
}

/* More votes; of equal ones the younger page. */
static bool is_better(const uint64_t *votes, int32_t a, int32_t b)
{
    return votes[a] != votes[b] ? votes[a] > votes[b] : a > b;
}

/* Puts the `first` best of n pages first, in any order (C. A. R. Hoare, "Find", 1961). */
static void part_pages(int32_t *page, int32_t n, int32_t first, const uint64_t *votes)
{
    int32_t lo = 0, hi = n - 1;
    while (lo < hi && first > lo && first <= hi) {
        int32_t pivot = page[lo + (hi - lo) / 2], i = lo, j = hi;
        while (i <= j) {
            while (is_better(votes, page[i], pivot))
                i++;
            while (is_better(votes, pivot, page[j]))
                j--;
            if (i <= j)
                swap(&page[i++], &page[j--]);
        }
        if (first <= j)
            hi = j;
        else if (first >= i)
            lo = i;
        else
            return;
    }
}

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Adds to k->page those of the pages with the most votes that are away. Returns the number of pages
 * in k->page then. */
static int32_t list_absent(const rescore_run *r, const uint64_t *votes, int32_t n_pages)
{
    const kv_pager *g = r->c->pager;
    kv_rescore *k = r->k;
    int32_t n = r->n, best = (n_pages + KV_RESCORE_PART - 1) / KV_RESCORE_PART;
    for (int32_t i = 0; i < n_pages; i++)
        k->order[i] = i;
    part_pages(k->order, n_pages, best, votes);
    qsort(k->order, (size_t)best, sizeof *k->order, by_number);
    for (int32_t i = 0; i < best && n < k->cap; i++) {
        int32_t p = k->order[i];
        if (g->r.page[p].place < 0 && kv_copy_is(&g->copy[p]))
            k->page[n++] = p;
    }
    return n;
}

/* Adds to votes[page] each query's share of attention, for the rescored pages: a softmax
 * over these pages for each query of the side. */
static void add_shares(const rescore_run *r, const rescore_side *s, uint64_t *votes)
{
    float *top = r->k->top, *sum = r->k->sum;
    int32_t n_q = 0;
    for (int32_t i = 0; i < r->q->n; i++)
        if (&r->k->side[r->q->at[i].kv->side] == s)
            n_q += r->q->at[i].q.rows * r->q->at[i].q.heads;
    for (int32_t j = 0; j < n_q; j++) {
        top[j] = -INFINITY;
        sum[j] = 0;
    }
    for (int32_t i = 0; i < r->n; i++) {
        const float *x = s->share + (size_t)i * (size_t)s->n_queries;
        for (int32_t j = 0; j < n_q; j++)
            top[j] = x[j] > top[j] ? x[j] : top[j];
    }
    for (int32_t i = 0; i < r->n; i++) {
        float *x = s->share + (size_t)i * (size_t)s->n_queries;
        for (int32_t j = 0; j < n_q; j++) {
            x[j] = top[j] > -INFINITY ? expf(x[j] - top[j]) : 0;
            sum[j] += x[j];
        }
    }
    for (int32_t i = 0; i < r->n; i++) {
        const float *x = s->share + (size_t)i * (size_t)s->n_queries;
        for (int32_t j = 0; j < n_q; j++)
            votes[r->k->page[i]] +=
                sum[j] > 0 ? (uint64_t)(x[j] / sum[j] * (1 << PAGE_VOTE_BITS)) : 0;
    }
}

status kv_rescore_votes(kv_cache *c, const page_queries *q, uint64_t *votes, int32_t n,
                        err *e)
{
    rescore_run r = {.c = c, .k = c->pool->rescore, .q = q};
    status st;
    if (!q->n)
        return OK;
    score_resident(&r, n);
    if ((st = score_absent(&r, list_absent(&r, votes, n), e)))
        return st;
    for (int32_t i = 0; i < r.n; i++)
        votes[r.k->page[i]] = KV_LOOKED;
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++)
        if (r.k->side[i].d)
            add_shares(&r, &r.k->side[i], votes);
    return OK;
}
