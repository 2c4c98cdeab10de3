/* pager.c - see pager.h. */
#include "kv/pager.h"
#include "backend/key_walk.h"
#include "base/mem.h"

#include <string.h>

/* ---- Bytes of a page ------------------------------------------------------------------------ */

/* One stream of a store: the page's rows of all heads. Returns where the next one begins. */
static unsigned char *move_stream(device *d, const kv_view *v, void *stream, size_t row_bytes,
                                  int32_t place, unsigned char *host, bool load)
{
    if (!row_bytes)
        return host;
    const block_move m = {.dev = key_row(v, stream, row_bytes, 0, (size_t)place),
                          .host = (char *)host,
                          .dev_stride = (size_t)v->n_slots * row_bytes,
                          .host_stride = KV_PAGE * row_bytes,
                          .n_bytes = KV_PAGE * row_bytes,
                          .n = v->n_head_kv,
                          .load = load};
    device_move(d, &m);
    return host + (size_t)v->n_head_kv * KV_PAGE * row_bytes;
}

/* Between the pool and the host, all stores. */
static void move_page(kv_cache *c, int32_t place, unsigned char *host, bool load)
{
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        if (v->window)
            continue;
        device *d = kv_device(c, v);
        host = move_stream(d, v, c->base[i].k, v->k_row_bytes, place, host, load);
        host = move_stream(d, v, c->base[i].v, v->v_row_bytes, place, host, load);
    }
    for (int side = 0; side < PASS_SIDES_MAX; side++)
        if (c->dev[side])
            device_moved(c->dev[side]);
}

/* ---- Opening -------------------------------------------------------------------------------- */

static size_t sums_bytes(const kv_layout *l, const kv_view *v)
{
    return (size_t)v->n_head_kv * (size_t)pages_of(l->n_ctx) * PAGE_SUM_BOUNDS *
           (size_t)v->head_dim * sizeof(uint16_t);
}

static size_t room_bytes(const kv_layout *l, int32_t side)
{
    int32_t dim = 0;
    for (int32_t i = 0; i < l->n; i++)
        if (!l->view[i].window && l->view[i].side == side && l->view[i].head_dim > dim)
            dim = l->view[i].head_dim;
    return dim ? page_watch_room(pages_of(l->n_ctx), dim) * sizeof(float) : 0;
}

uint64_t kv_pager_bytes(const kv_layout *l, kv_policy policy, int32_t side)
{
    uint64_t sum = room_bytes(l, side);
    if (policy != KV_POLICY_SCORED || !sum)
        return 0;
    sum += (uint64_t)pages_of(l->n_ctx) * sizeof(float);
    for (int32_t i = 0; i < l->n; i++)
        if (!l->view[i].window && l->view[i].side == side)
            sum += sums_bytes(l, &l->view[i]);
    return sum;
}

bool kv_pager_can_score(const kv_layout *l, device *main)
{
    for (int32_t i = 0; i < l->n; i++) {
        const device *d = l->view[i].side == PASS_MAIN ? main : l->dev[l->view[i].side];
        if (!l->view[i].window &&
            (!d->sum_pages || !d->op->watch_pages || l->view[i].head_dim > PAGE_SUM_DIM_MAX))
            return false;
    }
    return true;
}

static status open_scores(kv_cache *c, kv_pager *g, err *e)
{
    const kv_layout *l = c->layout;
    size_t n = (size_t)pages_of(l->n_ctx);
    g->sums = mem_calloc((size_t)l->n, sizeof *g->sums);
    g->score = mem_calloc(n, sizeof *g->score);
    g->score_bytes = n * sizeof *g->score;
    if (!g->sums || !g->score)
        return err_memory(e, "scores of pages", g->score_bytes);
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        device *d = kv_device(c, v);
        if (v->window)
            continue;
        g->sums[i] = (page_sums){.n_rows = (int32_t)n, .parts = PAGE_SUM_BOUNDS};
        g->sums[i].at = d->alloc(d, sums_bytes(l, v));
        if (!g->sums[i].at)
            return err_memory(e, "summaries of pages", sums_bytes(l, v));
    }
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        g->room_bytes[side] = room_bytes(l, side);
        if (!g->room_bytes[side])
            continue;
        g->watch.score[side] = d->alloc(d, g->score_bytes);
        g->watch.room[side] = d->alloc(d, g->room_bytes[side]);
        if (!g->watch.score[side] || !g->watch.room[side])
            return err_memory(e, "scores of pages", g->score_bytes + g->room_bytes[side]);
    }
    g->watch.sums = g->sums;
    return OK;
}

status kv_pager_open(kv_cache *c, const kv_pager_want *w, err *e)
{
    const kv_layout *l = c->layout;
    size_t page_bytes = (size_t)kv_page_bytes(l);
    residency_rules rules = {.pool = c->pool->pages.n,
                             .n_pages = pages_of(l->n_ctx),
                             .sinks = RESIDENCY_SINKS,
                             .tail = RESIDENCY_TAIL,
                             .rows_max = l->rows_max,
                             .host_pages = -1,
                             .tau = w->tau};
    if (w->host_bytes >= 0 && page_bytes && w->host_bytes / (int64_t)page_bytes < INT32_MAX)
        rules.host_pages = (int32_t)(w->host_bytes / (int64_t)page_bytes);
    kv_pager *g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_memory(e, "a pool's records", sizeof *g);
    c->pager = g;
    g->policy = w->policy;
    g->page_bytes = page_bytes;
    status st = residency_init(&g->r, &rules, e);
    if (!st && !(g->host = mem_calloc((size_t)rules.n_pages, sizeof *g->host)))
        st = err_memory(e, "a pool's records", (size_t)rules.n_pages * sizeof *g->host);
    if (!st && g->policy == KV_POLICY_SCORED)
        st = open_scores(c, g, e);
    if (st)
        kv_pager_close(c);
    return st;
}

static void close_scores(kv_cache *c, kv_pager *g)
{
    for (int32_t i = 0; g->sums && i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        device *d = kv_device(c, v);
        if (g->sums[i].at)
            d->release(d, g->sums[i].at, sums_bytes(c->layout, v));
    }
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        if (g->watch.score[side])
            d->release(d, g->watch.score[side], g->score_bytes);
        if (g->watch.room[side])
            d->release(d, g->watch.room[side], g->room_bytes[side]);
    }
    mem_free(g->score);
    mem_free(g->sums);
}

void kv_pager_close(kv_cache *c)
{
    kv_pager *g = c->pager;
    if (!g)
        return;
    if (g->host)
        kv_pager_cut(c, 0);
    close_scores(c, g);
    mem_free(g->host);
    residency_free(&g->r);
    mem_free(g);
    c->pager = NULL;
}

/* ---- Moves ---------------------------------------------------------------------------------- */

static void forget_copy(kv_pager *g, int32_t page)
{
    mem_free(g->host[page]);
    g->host[page] = NULL;
}

static status make_move(kv_cache *c, const residency_move *m, err *e)
{
    kv_pager *g = c->pager;
    int32_t place = g->r.page[m->page].place, taken = 0;
    switch (m->what) {
    case RESIDENCY_OUT:
        g->host[m->page] = mem_alloc(g->page_bytes);
        if (!g->host[m->page])
            return err_memory(e, "a page of keys and values", g->page_bytes);
        move_page(c, place, g->host[m->page], false);
        pages_drop(&c->pool->pages, place / KV_PAGE);
        break;
    case RESIDENCY_DROP:
    case RESIDENCY_LEAVE:
        pages_drop(&c->pool->pages, place / KV_PAGE);
        break;
    case RESIDENCY_FORGET:
        forget_copy(g, m->page);
        break;
    case RESIDENCY_IN:
    case RESIDENCY_NEW:
        taken = pages_take(&c->pool->pages);
        if (taken < 0)
            return err_set(e, E_LIMIT, "the pool of keys is full: %d pages", c->pool->pages.n);
        place = taken * KV_PAGE;
        if (m->what == RESIDENCY_IN)
            move_page(c, place, g->host[m->page], true);
        break;
    }
    residency_done(&g->r, m, place);
    return OK;
}

/* The cache's table is that of the resident pages. */
static void list_pages(kv_cache *c)
{
    const residency *r = &c->pager->r;
    c->n_pages = 0;
    for (int32_t p = 0; p < r->rules.n_pages; p++)
        if (r->page[p].place >= 0)
            kv_set_page_at(c, c->n_pages++, r->page[p].place / KV_PAGE, p * KV_PAGE);
    c->n_absent = c->n_past - residency_n_keys(r);
}

static status make_moves(kv_cache *c, err *e)
{
    status st = OK;
    for (int32_t i = 0; i < c->pager->r.n_moves && !st; i++)
        st = make_move(c, &c->pager->r.move[i], e);
    list_pages(c);
    return st;
}

/* Summarises the whole pages that have no summary yet. All of them are on the device: a page is
 * summarised before it can leave. */
static void sum_new_pages(kv_cache *c)
{
    kv_pager *g = c->pager;
    int32_t n_whole = (int32_t)(c->n_past / KV_PAGE), n = n_whole - g->n_summed;
    if (!g->sums || n <= 0)
        return;
    kv_show_pages(c);
    int32_t entry = 0;
    while (entry < c->n_pages && c->table[entry].pos < g->n_summed * KV_PAGE)
        entry++;
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        device *d = kv_device(c, v);
        if (g->sums[i].at)
            d->sum_pages(d, v, &c->base[i], &g->sums[i], entry, g->n_summed, n);
    }
    g->n_summed = n_whole;
}

status kv_pager_reserve(kv_cache *c, int32_t n, err *e)
{
    kv_pager *g = c->pager;
    status st;
    sum_new_pages(c);
    if ((g->wants_look || residency_due(&g->r)) && (st = kv_pager_reselect(c, e)))
        return st;
    if ((st = residency_plan_rows(&g->r, n, e)) || (st = make_moves(c, e)))
        return st;
    for (int32_t p = (int32_t)(c->n_past / KV_PAGE); p < pages_of(c->n_past + n); p++)
        forget_copy(g, p);
    residency_write(&g->r, n);
    return OK;
}

void kv_pager_commit(kv_cache *c, int32_t n)
{
    kv_pager *g = c->pager;
    g->lossy |= c->n_absent > 0 && n > 0;
    residency_commit(&g->r, n);
}

bool kv_pager_can_cut(const kv_cache *c, int64_t n)
{
    const kv_pager *g = c->pager;
    int32_t last = (int32_t)(n / KV_PAGE);
    return n % KV_PAGE == 0 || g->r.page[last].place >= 0 || g->r.page[last].copied;
}

void kv_pager_cut(kv_cache *c, int64_t n)
{
    kv_pager *g = c->pager;
    for (int32_t p = residency_pages_of(n); p < g->r.rules.n_pages; p++) {
        if (g->r.page[p].place >= 0)
            pages_drop(&c->pool->pages, g->r.page[p].place / KV_PAGE);
        forget_copy(g, p);
    }
    residency_rewind(&g->r, n);
    if (g->n_summed > n / KV_PAGE)
        g->n_summed = (int32_t)(n / KV_PAGE);
    g->n_watched = 0;
    g->wants_look = false;
    if (n == 0)
        g->lossy = false;
    c->n_past = n;
    list_pages(c);
}

/* ---- Scores --------------------------------------------------------------------------------- */

static void clear_scores(kv_cache *c)
{
    kv_pager *g = c->pager;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        if (g->watch.score[side])
            c->dev[side]->clear(c->dev[side], g->watch.score[side], g->score_bytes);
    g->n_watched = 0;
}

const page_watch *kv_pager_watch(kv_cache *c, int32_t seq, int32_t n_rows, bool prompt_end)
{
    kv_pager *g = c->pager;
    bool near = g->r.since + KV_WATCH_ROWS >= residency_tau(&g->r);
    if (!g->sums || !c->n_absent || !(near || prompt_end))
        return NULL;
    if (prompt_end || !g->n_watched)
        clear_scores(c);
    g->watch.seq = seq;
    g->watch.n_pages = g->n_summed;
    g->watch.pos = (int32_t)c->n_past;
    if (prompt_end && n_rows > KV_WATCH_ROWS)
        g->watch.pos += n_rows - KV_WATCH_ROWS;
    return &g->watch;
}

void kv_pager_watched(kv_cache *c, int32_t n_rows)
{
    c->pager->n_watched += n_rows;
}

status kv_pager_reselect(kv_cache *c, err *e)
{
    kv_pager *g = c->pager;
    status st;
    g->wants_look = false;
    g->r.since = 0;
    if (!g->sums || !g->n_watched)
        return OK;
    memset(g->score, 0, g->score_bytes);
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        float part[256];
        int32_t n = g->watch.n_pages;
        for (int32_t i = 0; g->watch.score[side] && i < n; i += 256) {
            int32_t k = n - i < 256 ? n - i : 256;
            d->download(d, part, g->watch.score[side] + i, (size_t)k * sizeof *part);
            for (int32_t j = 0; j < k; j++)
                g->score[i + j] += part[j];
        }
    }
    g->n_watched = 0;
    g->n_reselected++;
    if ((st = residency_plan_scores(&g->r, g->score, g->watch.n_pages, 0, false, e)))
        return st;
    return make_moves(c, e);
}
