/* paging.c - see paging.h. */
#include "kv/paging.h"
#include "base/mem.h"

void kv_paging_free(kv_paging *s)
{
    for (int32_t side = 0; s && side < PASS_SIDES_MAX; side++)
        mem_free(s->watched[side]);
    if (s)
        mem_free(s->page);
    mem_free(s);
}

/* The pager's rules, and pages for n tokens. */
static kv_paging *paging_of(const kv_cache *c, int64_t n)
{
    const residency_rules *r = &c->pager->r.rules;
    size_t n_pages = (size_t)pages_of(n);
    kv_paging *s = mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (kv_paging){.policy = c->pager->policy,
                     .pool = r->pool,
                     .tau = r->tau,
                     .rows_max = r->rows_max,
                     .n_pages = (int32_t)n_pages,
                     .n_exact = INT64_MAX,
                     .since = n,
                     .page = mem_calloc(n_pages, sizeof *s->page),
                     .n_bytes = sizeof *s + n_pages * sizeof *s->page};
    if (!s->page) {
        kv_paging_free(s);
        return NULL;
    }
    return s;
}

kv_paging *kv_paging_new(const kv_cache *c)
{
    const kv_pager *g = c->pager;
    kv_paging *s = paging_of(c, c->n_past);
    size_t n_bytes = (size_t)pages_of(c->n_past) * sizeof(float);
    if (!s)
        return NULL;
    s->n_exact = g->n_exact;
    s->since = g->r.since;
    s->clock = g->r.clock;
    s->n_watched = g->n_watched;
    s->hold = g->hold;
    s->wants_look = g->wants_look;
    s->renew = g->renew;
    s->for_good = g->r.for_good;
    for (int32_t p = 0; p < s->n_pages; p++) {
        const residency_page *from = &g->r.page[p];
        s->page[p] = (kv_paging_page){.used = from->used,
                                      .score = from->score,
                                      .resident = from->place >= 0,
                                      .pinned = from->pinned,
                                      .scored = from->scored,
                                      .lost = residency_is_lost(&g->r, p)};
    }
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        if (!g->watch.score[side])
            continue;
        s->watched[side] = mem_alloc(n_bytes);
        if (!s->watched[side]) {
            kv_paging_free(s);
            return NULL;
        }
        c->dev[side]->download(c->dev[side], s->watched[side], g->watch.score[side], n_bytes);
        s->n_bytes += n_bytes;
    }
    return s;
}

kv_paging *kv_paging_young(const kv_cache *c, int64_t n)
{
    kv_paging *s = paging_of(c, n);
    for (int32_t p = 0; s && p < s->n_pages; p++)
        s->page[p] = (kv_paging_page){.used = p + 1,
                                      .resident = p < RESIDENCY_SINKS ||
                                                  p >= s->n_pages - s->pool + RESIDENCY_SINKS};
    if (s)
        s->clock = s->n_pages + 1;
    return s;
}

void kv_paging_apply(kv_cache *c, const kv_paging *s, int64_t n)
{
    kv_pager *g = c->pager;
    for (int32_t p = 0; p < s->n_pages; p++) {
        g->r.page[p].used = s->page[p].used;
        g->r.page[p].score = s->page[p].score;
        g->r.page[p].pinned = s->page[p].pinned;
        g->r.page[p].scored = s->page[p].scored;
        g->r.dropped |= s->page[p].lost;
        if (g->r.page[p].place >= 0)
            pages_write(&c->pool->pages, g->r.page[p].place / KV_PAGE,
                        n - (int64_t)p * KV_PAGE < KV_PAGE ? (int32_t)(n % KV_PAGE) : KV_PAGE);
    }
    g->r.n_past = n;
    g->r.since = s->since;
    g->r.clock = s->clock;
    g->n_exact = s->n_exact;
    g->n_watched = s->n_watched;
    g->hold = s->hold;
    g->ready = 0;
    g->wants_look = s->wants_look;
    g->renew = s->renew;
    g->r.for_good = s->for_good;
    g->n_summed = (int32_t)(n / KV_PAGE);
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        if (g->watch.score[side] && s->watched[side])
            c->dev[side]->upload(c->dev[side], g->watch.score[side], s->watched[side],
                                 (size_t)s->n_pages * sizeof(float));
    c->n_past = n;
}
