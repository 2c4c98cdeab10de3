/* pager.c - see pager.h. */
#include "kv/pager.h"
#include "base/mem.h"
#include "kv/paging.h"

#include <math.h>
#include <string.h>

/* ---- Opening -------------------------------------------------------------------------------- */

static page_sums sums_of(const kv_layout *l)
{
    return (page_sums){.n_rows = pages_of(l->n_ctx), .parts = PAGE_SUM_BOUNDS};
}

static size_t sums_bytes(const kv_layout *l, const kv_view *v)
{
    const page_sums s = sums_of(l);
    return page_sums_bytes(&s, v);
}

/* Rooms of a side: one for each of its layers, if its device makes use of them. */
static int32_t n_rooms(const kv_layout *l, int32_t side)
{
    const device *d = l->dev[side];
    int32_t n = 0;
    for (int32_t i = 0; i < l->n; i++)
        n += !l->view[i].window && l->view[i].side == side;
    return !d || d->watch_rooms < 1 || n < 1 ? 1 : n < d->watch_rooms ? n : d->watch_rooms;
}

static size_t room_bytes(const kv_layout *l, int32_t side)
{
    int32_t dim = 0;
    for (int32_t i = 0; i < l->n; i++)
        if (!l->view[i].window && l->view[i].side == side && l->view[i].head_dim > dim)
            dim = l->view[i].head_dim;
    size_t one = page_watch_room(pages_of(l->n_ctx), dim) * sizeof(float);
    return dim ? (size_t)n_rooms(l, side) * one : 0;
}

uint64_t kv_pager_bytes(const kv_layout *l, kv_policy policy, int32_t side)
{
    uint64_t sum = room_bytes(l, side);
    if (policy == KV_POLICY_LRU || policy == KV_POLICY_DRAFTER || !sum)
        return 0;
    sum += (uint64_t)pages_of(l->n_ctx) * sizeof(uint64_t);
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
    int64_t heads = 0;
    g->sums = mem_calloc((size_t)l->n, sizeof *g->sums);
    g->score = mem_calloc(n, sizeof *g->score);
    g->votes = mem_calloc(2 * n, sizeof *g->votes);
    g->vote_bytes = n * sizeof *g->votes;
    if (!g->sums || !g->score || !g->votes)
        return err_memory(e, "scores of pages", 2 * g->vote_bytes);
    for (int32_t i = 0; i < l->n_whole; i++)
        heads += l->whole[i].window ? 0 : l->whole[i].n_head_kv;
    if (heads > KV_VOTE_HEADS)
        return err_set(e, E_UNSUPPORTED,
                       "a pool cannot score keys of %lld KV heads: expected at most %d, or "
                       "--kv-policy lru",
                       (long long)heads, KV_VOTE_HEADS);
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        device *d = kv_device(c, v);
        if (v->window)
            continue;
        g->sums[i] = sums_of(l);
        g->sums[i].at = d->alloc(d, sums_bytes(l, v));
        if (!g->sums[i].at)
            return err_memory(e, "summaries of pages", sums_bytes(l, v));
    }
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        g->room_bytes[side] = room_bytes(l, side);
        if (!g->room_bytes[side])
            continue;
        g->watch.n_rooms[side] = n_rooms(l, side);
        g->watch.votes[side] = d->alloc(d, g->vote_bytes);
        g->watch.room[side] = d->alloc(d, g->room_bytes[side]);
        if (!g->watch.votes[side] || !g->watch.room[side])
            return err_memory(e, "scores of pages", g->vote_bytes + g->room_bytes[side]);
    }
    g->watch.sums = g->sums;
    return OK;
}

/* All devices with queries can look at pages, or none has to. */
static status open_rescores(kv_cache *c, kv_pager *g, const page_query_size *query, err *e)
{
    int32_t heads = 0;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        heads += query[side].heads;
        if (query[side].heads && !c->dev[side]->rescore_pages)
            return OK;
    }
    status st = heads ? kv_rescore_open(c->pool, g->r.rules.pool, query, e) : OK;
    return st || !heads ? st : kv_queries_open(&g->queries, c, query, e);
}

status kv_pager_open(kv_cache *c, const kv_pager_want *w, err *e)
{
    const kv_layout *l = c->layout;
    int32_t n = w->n_resident ? pages_of(w->n_resident) : c->pool->pages.n;
    const residency_rules rules = {.pool = n < c->pool->pages.n ? n : c->pool->pages.n,
                                   .n_pages = pages_of(l->n_ctx),
                                   .sinks = RESIDENCY_SINKS,
                                   .tail = RESIDENCY_TAIL,
                                   .rows_max = w->rows_max ? w->rows_max : l->rows_max,
                                   .host_pages = -1,
                                   .tau = w->tau};
    kv_pager *g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_memory(e, "a pool's records", sizeof *g);
    c->pager = g;
    g->policy = w->policy;
    g->n_exact = INT64_MAX;
    status st = residency_init(&g->r, &rules, e);
    if (!st && !(g->copy = mem_calloc((size_t)rules.n_pages, sizeof *g->copy)))
        st = err_memory(e, "a pool's records", (size_t)rules.n_pages * sizeof *g->copy);
    if (!st && g->policy == KV_POLICY_DRAFTER) {
        g->score = mem_calloc((size_t)rules.n_pages, sizeof *g->score);
        st = g->score ? OK : err_memory(e, "scores of pages", (size_t)rules.n_pages * 4);
    } else if (!st && g->policy != KV_POLICY_LRU) {
        st = open_scores(c, g, e);
        if (!st && w->query && g->policy == KV_POLICY_SCORED)
            st = open_rescores(c, g, w->query, e);
    }
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
        if (g->watch.votes[side])
            d->release(d, g->watch.votes[side], g->vote_bytes);
        if (g->watch.room[side])
            d->release(d, g->watch.room[side], g->room_bytes[side]);
    }
    kv_queries_close(&g->queries, c);
    mem_free(g->votes);
    mem_free(g->score);
    mem_free(g->sums);
}

void kv_pager_close(kv_cache *c)
{
    kv_pager *g = c->pager;
    if (!g)
        return;
    if (g->copy)
        kv_pager_cut(c, 0);
    close_scores(c, g);
    mem_free(g->copy);
    residency_free(&g->r);
    mem_free(g);
    c->pager = NULL;
}

/* ---- Moves ---------------------------------------------------------------------------------- */

enum { MOVES_AT_ONCE = 64 };

/* Moves of a plan that copy pages, one after the other. */
typedef struct page_run {
    const residency_move *m;
    int32_t n;
} page_run;

static status run_out(kv_cache *c, const page_run *run, err *e)
{
    kv_pager *g = c->pager;
    kv_move move[MOVES_AT_ONCE];
    int32_t n_done;
    for (int32_t i = 0; i < run->n; i++) {
        int32_t page = run->m[i].page;
        move[i] = (kv_move){g->r.page[page].place / KV_PAGE, &g->copy[page]};
    }
    status st = kv_move_out(c->pool, move, run->n, &n_done, e);
    for (int32_t i = 0; i < n_done; i++) {
        pages_drop(&c->pool->pages, move[i].page);
        residency_done(&g->r, &run->m[i], -1);
    }
    return st;
}

static status no_page(const kv_cache *c, err *e)
{
    return err_set(e, E_LIMIT,
                   "the pool of keys is full: all of its %d pages are in use (--kv-pool)",
                   c->pool->pages.n);
}

/* Rows of a page that are written. */
static int32_t rows_in(const kv_cache *c, int32_t page)
{
    int64_t n = c->n_past - (int64_t)page * KV_PAGE;
    return n >= KV_PAGE ? KV_PAGE : n > 0 ? (int32_t)n : 0;
}

static status run_in(kv_cache *c, const page_run *run, err *e)
{
    kv_pager *g = c->pager;
    kv_move move[MOVES_AT_ONCE];
    int32_t n = 0, n_done = 0;
    for (; n < run->n; n++) {
        int32_t taken = kv_take_page(c->pool);
        if (taken < 0)
            break;
        move[n] = (kv_move){taken, &g->copy[run->m[n].page]};
    }
    status st = n ? kv_move_in(c->pool, move, n, &n_done, e) : OK;
    for (int32_t i = 0; i < n; i++) {
        if (i >= n_done) {
            pages_drop(&c->pool->pages, move[i].page);
            continue;
        }
        pages_write(&c->pool->pages, move[i].page, rows_in(c, run->m[i].page));
        residency_done(&g->r, &run->m[i], move[i].page * KV_PAGE);
    }
    return st || n == run->n ? st : no_page(c, e);
}

static status one_move(kv_cache *c, const residency_move *m, err *e)
{
    kv_pager *g = c->pager;
    int32_t place = g->r.page[m->page].place;
    if (m->what == RESIDENCY_FORGET) {
        kv_copy_drop(c->pool, &g->copy[m->page]);
    } else if (m->what == RESIDENCY_NEW) {
        int32_t taken = kv_take_page(c->pool);
        if (taken < 0)
            return no_page(c, e);
        place = taken * KV_PAGE;
    } else {
        pages_drop(&c->pool->pages, place / KV_PAGE);
        if (m->what == RESIDENCY_DROP)
            kv_copy_drop(c->pool, &g->copy[m->page]);
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
    const residency *r = &c->pager->r;
    status st = OK;
    if (!r->n_moves)
        return OK;
    for (int32_t i = 0, n; i < r->n_moves && !st; i += n) {
        const residency_move *m = &r->move[i];
        bool copies = m->what == RESIDENCY_OUT || m->what == RESIDENCY_IN;
        for (n = 1; copies && i + n < r->n_moves && m[n].what == m->what && n < MOVES_AT_ONCE;)
            n++;
        const page_run run = {m, n};
        st = !copies                    ? one_move(c, m, e)
             : m->what == RESIDENCY_OUT ? run_out(c, &run, e)
                                        : run_in(c, &run, e);
    }
    list_pages(c);
    return st;
}

/* Copies of this cache that the host may hold: those that it has, and room for more. */
static void count_host_room(kv_cache *c)
{
    residency *r = &c->pager->r;
    int64_t room = kv_mover_room(c->pool);
    int64_t most = room < 0 ? -1 : r->n_copied + room;
    r->rules.host_pages = most < INT32_MAX ? (int32_t)most : INT32_MAX;
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

/* ---- Scores --------------------------------------------------------------------------------- */

static void clear_votes(kv_cache *c)
{
    const kv_pager *g = c->pager;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        if (g->watch.votes[side])
            c->dev[side]->clear(c->dev[side], g->watch.votes[side], g->vote_bytes);
}

const page_watch *kv_pager_watch(kv_cache *c, int32_t seq, int32_t n_rows, bool again)
{
    kv_pager *g = c->pager;
    int64_t first = c->n_past;
    if (!g->sums || !c->n_absent)
        return NULL;
    int32_t window = g->policy == KV_POLICY_SNAPKV ? KV_WATCH_WINDOW : KV_WATCH_ROWS;
    if (c->n_past < g->hold)
        first = g->hold - window > first ? g->hold - window : first;
    else if (g->policy == KV_POLICY_SNAPKV)
        return NULL;
    else if (g->r.since + KV_WATCH_TOKENS < residency_tau(&g->r))
        return NULL;
    if (first >= c->n_past + n_rows)
        return NULL;
    /* However a chunk is cut into passes, its rows count together. */
    bool begins = c->n_past >= g->hold || g->counted != g->hold;
    if (again || !g->n_watched || (begins && g->n_watched >= KV_VOTE_ROWS)) {
        clear_votes(c);
        g->n_watched = 0;
    }
    g->counted = g->hold;
    g->watch.seq = seq;
    g->watch.n_pages = g->n_summed;
    g->watch.pos = (int32_t)first;
    return &g->watch;
}

page_queries *kv_pager_queries(kv_cache *c)
{
    page_queries *q = &c->pager->queries;
    if (!q->cap)
        return NULL;
    q->n = 0;
    memset(q->used, 0, sizeof q->used);
    q->pos = (int32_t)(c->pager->hold - KV_RESCORE_ROWS);
    return q;
}

void kv_pager_watched(kv_cache *c, int32_t n_rows)
{
    kv_pager *g = c->pager;
    g->n_watched = n_rows ? g->n_watched + c->n_past + n_rows - g->watch.pos : 0;
}

void kv_pager_get_votes(const kv_cache *c, uint64_t *to, int32_t n)
{
    const kv_pager *g = c->pager;
    uint64_t *part = to;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        if (!g->watch.votes[side])
            continue;
        d->download(d, part, g->watch.votes[side], (size_t)n * sizeof *part);
        for (int32_t i = 0; part != to && i < n; i++)
            to[i] += part[i];
        part = g->votes + g->r.rules.n_pages;
    }
}

/* On the first side that has any. */
void kv_pager_set_votes(kv_cache *c, const uint64_t *votes, int32_t n)
{
    const kv_pager *g = c->pager;
    clear_votes(c);
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        if (g->watch.votes[side]) {
            d->upload(d, g->watch.votes[side], votes, (size_t)n * sizeof *votes);
            return;
        }
    }
}

/* Reads the votes of all sides. Returns of how many pages; 0: there are none. */
static int32_t read_votes(kv_cache *c)
{
    kv_pager *g = c->pager;
    int32_t n = g->sums && g->n_watched ? g->watch.n_pages : 0;
    if (n)
        kv_pager_get_votes(c, g->votes, n);
    return n;
}

status kv_pager_rescore_votes(kv_cache *c, err *e)
{
    kv_pager *g = c->pager;
    int32_t n = g->queries.cap ? read_votes(c) : 0;
    status st = n ? kv_rescore_votes(c, &g->queries, g->votes, n, e) : OK;
    if (!st && n)
        kv_pager_set_votes(c, g->votes, n);
    return st;
}

/* Pages that were looked at come before all others. */
static float score_of(uint64_t votes)
{
    float x = (float)(votes & (KV_LOOKED - 1)) / (1 << PAGE_VOTE_BITS);
    return votes & KV_LOOKED ? x : x > 0 ? -1 / x : -INFINITY;
}

/* Brings in the best pages by what was watched, or by what was given. */
static status reselect(kv_cache *c, err *e)
{
    kv_pager *g = c->pager;
    status st;
    bool rescore = g->wants_rescore;
    g->wants_rescore = false;
    g->r.since = 0;
    int32_t n = g->n_given ? g->n_given : read_votes(c);
    for (int32_t i = 0; !g->n_given && i < n; i++)
        g->score[i] = score_of(g->votes[i]);
    g->n_given = 0;
    if (!n)
        return OK;
    g->n_watched = 0;
    g->n_reselected++;
    count_host_room(c);
    bool for_good = rescore && g->policy == KV_POLICY_SNAPKV;
    g->r.for_good |= for_good;
    if ((st = residency_plan_scores(&g->r, g->score, n, 0, e)) || (st = make_moves(c, e)) ||
        !for_good)
        return st;
    residency_plan_forget(&g->r);
    return make_moves(c, e);
}

/* ---- Passes --------------------------------------------------------------------------------- */

bool kv_pager_is_short(const kv_cache *c, int64_t n)
{
    return c->pager && (c->n_absent || pages_of(n) > c->pager->r.rules.pool);
}

int64_t kv_pager_answer_end(const kv_cache *c)
{
    const kv_pager *g = c->pager;
    int64_t next = (c->n_past / KV_PAGE + 1) * KV_PAGE;
    if (!kv_pager_is_short(c, c->n_past + KV_PAGE))
        return INT64_MAX;
    bool given = g->policy == KV_POLICY_DRAFTER;
    if ((!g->sums && !given) || g->policy == KV_POLICY_SNAPKV) /* no choice is due in an answer */
        return next;
    int64_t due = residency_tau(&g->r) - g->r.since, rows = given ? due : due - KV_WATCH_TOKENS;
    rows = rows > 0 ? rows : 1; /* a watched row is alone in its pass */
    return c->n_past + rows < next ? c->n_past + rows : next;
}

void kv_pager_hold(kv_cache *c, int64_t end)
{
    c->pager->hold = end;
}

bool kv_pager_held(const kv_cache *c)
{
    const kv_pager *g = c->pager;
    return c->n_past < g->hold && g->hold <= g->ready;
}

bool kv_pager_rescores(const kv_cache *c)
{
    const kv_pager *g = c->pager;
    return g->wants_rescore || (residency_due(&g->r) && !kv_pager_held(c) && !g->r.for_good);
}

void kv_pager_rescore(kv_cache *c, int64_t n)
{
    c->pager->wants_rescore |= kv_pager_is_short(c, n);
}

float *kv_pager_scores(kv_cache *c, int32_t n)
{
    c->pager->n_given = n;
    return c->pager->score;
}

/* A cache that was cut to exact tokens is as if it had never had others. */
static status renew(kv_cache *c, err *e)
{
    kv_pager *g = c->pager;
    status st;
    count_host_room(c);
    if ((st = residency_plan_all(&g->r, e)) || (st = make_moves(c, e)))
        return st;
    residency_renew(&g->r);
    g->renew = false;
    return OK;
}

status kv_pager_ready(kv_cache *c, int64_t end, err *e)
{
    kv_pager *g = c->pager;
    int64_t n = end - c->n_past;
    bool rescore = kv_pager_rescores(c);
    status st;
    if (!rescore && end <= g->ready)
        return OK;
    if (g->renew && (st = renew(c, e)))
        return st;
    sum_new_pages(c);
    if (rescore && (st = reselect(c, e)))
        return st;
    count_host_room(c);
    if ((st = residency_plan_rows(&g->r, n < INT32_MAX ? (int32_t)n : INT32_MAX, e)) ||
        (st = make_moves(c, e)))
        return st;
    g->ready = (int64_t)pages_of(end) * KV_PAGE;
    return OK;
}

int32_t kv_pager_needs(const kv_cache *c, int32_t n)
{
    const kv_pager *g = c->pager;
    const pages *p = &c->pool->pages;
    int32_t first = (int32_t)(c->n_past / KV_PAGE), all = pages_of(c->n_past + n), need;
    bool leaves = kv_pager_is_short(c, c->n_past + n);
    all = all < g->r.rules.pool ? all : g->r.rules.pool;
    need = all > g->r.n_resident ? all - g->r.n_resident : 0;
    /* A page that leaves the cache and has other holders frees none. */
    for (int32_t i = 0; leaves && i < c->n_pages; i++)
        need += c->page[i] >= 0 && p->holders[c->page[i]] > 1;
    int32_t page = kv_page_of(c, first);
    return need + (page >= 0 && !pages_may_write(p, page, (int32_t)(c->n_past % KV_PAGE)));
}

/* Rows from `row` on of a page will be written: it becomes this cache's own. *moved: it is another
 * one now. */
static status own_page(kv_cache *c, int32_t page, int32_t row, bool *moved, err *e)
{
    kv_pager *g = c->pager;
    pages *p = &c->pool->pages;
    int32_t now = g->r.page[page].place / KV_PAGE;
    if (pages_may_write(p, now, row))
        return OK;
    int32_t taken = kv_take_page(c->pool);
    if (taken < 0)
        return no_page(c, e);
    if (row)
        kv_copy_page(c, taken, now, row);
    pages_drop(p, now);
    g->r.page[page].place = taken * KV_PAGE;
    *moved = true;
    return OK;
}

status kv_pager_reserve(kv_cache *c, int32_t n, err *e)
{
    kv_pager *g = c->pager;
    int32_t first = (int32_t)(c->n_past / KV_PAGE), end = pages_of(c->n_past + n);
    bool moved = false;
    status st = kv_pager_ready(c, c->n_past + n, e);
    for (int32_t p = first; p < end && !st; p++)
        st = own_page(c, p, p == first ? (int32_t)(c->n_past % KV_PAGE) : 0, &moved, e);
    if (moved)
        list_pages(c);
    if (st)
        return st;
    for (int32_t p = first; p < end; p++) {
        int64_t rows = c->n_past + n - (int64_t)p * KV_PAGE;
        kv_copy_drop(c->pool, &g->copy[p]);
        pages_write(&c->pool->pages, g->r.page[p].place / KV_PAGE,
                    rows < KV_PAGE ? (int32_t)rows : KV_PAGE);
    }
    residency_write(&g->r, n);
    return OK;
}

void kv_pager_commit(kv_cache *c, int32_t n)
{
    kv_pager *g = c->pager;
    int64_t before = c->n_past - n;
    if (c->n_absent > 0 && n > 0 && before < g->n_exact)
        g->n_exact = before;
    residency_commit(&g->r, n);
    for (int32_t p = (int32_t)(c->n_past / KV_PAGE); p < pages_of(c->n_reserved); p++)
        if (g->r.page[p].place >= 0)
            pages_unwrite(&c->pool->pages, g->r.page[p].place / KV_PAGE, rows_in(c, p));
}

bool kv_pager_can_cut(const kv_cache *c, int64_t n)
{
    const kv_pager *g = c->pager;
    int32_t last = (int32_t)(n / KV_PAGE);
    if (c->n_paged_out && n)
        return false;
    /* Exact tokens need every page; others go on without those that were dropped. */
    for (int32_t p = 0; g->r.dropped && n <= g->n_exact && p < pages_of(n); p++)
        if (residency_is_lost(&g->r, p))
            return false;
    return n % KV_PAGE == 0 || g->r.page[last].place >= 0 || g->r.page[last].copied;
}

void kv_pager_cut(kv_cache *c, int64_t n)
{
    kv_pager *g = c->pager;
    for (int32_t i = c->n_pages - 1; i >= 0 && c->table[i].pos >= n; i--) {
        if (c->page[i] >= 0)
            pages_drop(&c->pool->pages, c->page[i]);
        else
            c->n_paged_out--;
    }
    for (int32_t p = residency_pages_of(n); p < g->r.rules.n_pages; p++)
        kv_copy_drop(c->pool, &g->copy[p]);
    residency_rewind(&g->r, n);
    if (g->n_summed > n / KV_PAGE)
        g->n_summed = (int32_t)(n / KV_PAGE);
    g->n_watched = 0;
    g->wants_rescore = false;
    g->ready = g->hold = 0;
    g->renew |= n <= g->n_exact;
    if (n <= g->n_exact)
        g->n_exact = INT64_MAX;
    c->n_past = n;
    list_pages(c);
}

void kv_pager_adopt(kv_cache *c, int64_t n)
{
    kv_pager *g = c->pager;
    for (int32_t p = 0; p < pages_of(n); p++)
        residency_done(&g->r, &(residency_move){p, RESIDENCY_NEW}, c->page[p] * KV_PAGE);
    residency_commit(&g->r, (int32_t)n);
    residency_renew(&g->r);
}

/* ---- Pages from a snapshot ------------------------------------------------------------------ */

static void sum_entry(kv_cache *c, int32_t entry, int32_t page)
{
    const kv_pager *g = c->pager;
    for (int32_t i = 0; g->sums && i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        device *d = kv_device(c, v);
        if (g->sums[i].at)
            d->sum_pages(d, v, &c->base[i], &g->sums[i], entry, page, 1);
    }
}

/* One page comes: its rows, its summary, and, if it is not resident, its copy. */
static status load_page(kv_cache *c, int32_t page, bool resident, bool whole, kv_page_load load,
                        void *user, err *e)
{
    kv_pager *g = c->pager;
    pages *p = &c->pool->pages;
    int32_t taken = kv_take_page(c->pool), n_done;
    status st = OK;
    if (taken < 0)
        return no_page(c, e);
    load(user, page, taken);
    kv_set_page_at(c, 0, taken, page * KV_PAGE);
    kv_show_pages(c);
    if (whole)
        sum_entry(c, 0, page);
    const residency_move came = {page, RESIDENCY_NEW}, left = {page, RESIDENCY_OUT};
    residency_done(&g->r, &came, taken * KV_PAGE);
    if (resident)
        return OK;
    const kv_move out = {taken, &g->copy[page]};
    st = kv_move_out(c->pool, &out, 1, &n_done, e);
    if (st)
        return st;
    residency_done(&g->r, &left, -1);
    pages_drop(p, taken);
    return OK;
}

/* After a failure: pages that have come go. */
static void drop_loaded(kv_cache *c)
{
    kv_pager *g = c->pager;
    for (int32_t p = 0; p < g->r.rules.n_pages; p++)
        if (g->r.page[p].place >= 0)
            pages_drop(&c->pool->pages, g->r.page[p].place / KV_PAGE);
    c->n_pages = 0;
    kv_pager_cut(c, 0);
}

status kv_pager_load(kv_cache *c, const kv_paging *s, int64_t n, kv_page_load load, void *user,
                     err *e)
{
    const residency_rules *r = &c->pager->r.rules;
    status st = OK;
    if (s->policy != c->pager->policy || s->pool != r->pool || s->tau != r->tau ||
        s->rows_max != r->rows_max)
        return err_set(e, E_ARG,
                       "the tokens were computed with a pool of %d tokens, --kv-tau %d and passes "
                       "of %d: this session has %d, %d and %d, or another --kv-policy",
                       s->pool * KV_PAGE, s->tau, s->rows_max, r->pool * KV_PAGE, r->tau,
                       r->rows_max);
    /* Those that leave again come first: they need one page of the pool. */
    for (int resident = 0; resident < 2; resident++)
        for (int32_t p = 0; p < s->n_pages && !st; p++)
            if (!s->page[p].lost && s->page[p].resident == resident)
                st = load_page(c, p, resident, (int64_t)(p + 1) * KV_PAGE <= n, load, user, e);
    if (st) {
        drop_loaded(c);
        return st;
    }
    kv_paging_apply(c, s, n);
    list_pages(c);
    kv_show_pages(c);
    return OK;
}
