/* cache.c - one session's keys and values and recurrent states: their memory, and the counters that
 * say what is in it.
 *
 * n_written is the high-water mark of written indices. Rejected drafts and rewound tails have
 * overwritten older rows of the rings, so kv_can_rewind counts from n_written, never from n_past.
 *
 * Recurrent layers: a pass of an answer leaves its rows in the journal that had no pending rows. A
 * commit makes some of them the pending ones and turns the banks round:
 *
 *     before   state after 0..7    bank 0 has 8, 9 (pending)
 *     pass     of rows 10 11 12:   state after 0..9     bank 1 has 10 11 12
 *     commit 2                     state after 0..9     bank 1 has 10 11 (pending)    n_past 12
 */
#include "base/mem.h"
#include "kv/pager.h"

#include <string.h>

static size_t store_bytes(const kv_view *v, size_t row_bytes)
{
    return (size_t)v->n_head_kv * (size_t)v->n_slots * row_bytes;
}

/* ---- Stores ------------------------------------------------------------------------------- */

static void release_store(device *d, const kv_view *v, kv_base *b)
{
    if (b->v)
        d->release(d, b->v, store_bytes(v, v->v_row_bytes));
    if (b->k)
        d->release(d, b->k, store_bytes(v, v->k_row_bytes));
    *b = (kv_base){0};
}

static status alloc_store(device *d, const kv_view *v, kv_base *b, err *e)
{
    size_t k_bytes = store_bytes(v, v->k_row_bytes), v_bytes = store_bytes(v, v->v_row_bytes);
    b->k = d->alloc(d, k_bytes);
    b->v = b->k && v_bytes ? d->alloc(d, v_bytes) : NULL;
    if (b->k && (b->v || !v_bytes))
        return OK;
    release_store(d, v, b);
    return err_memory(e, "the key/value cache", k_bytes + v_bytes);
}

/* Gives the linear stores of a side their parts of `at`, keys before values; at NULL: measures
 * them. Returns the bytes. A page has its rows at even distances then, and moves as one copy. */
static size_t divide_block(kv_pool *p, int32_t side, char *at)
{
    const kv_layout *l = p->layout;
    size_t n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        size_t k_bytes = store_bytes(v, v->k_row_bytes), v_bytes = store_bytes(v, v->v_row_bytes);
        if (v->window || v->side != side)
            continue;
        if (at)
            p->base[i] = (kv_base){.k = at + n, .v = v_bytes ? at + n + k_bytes : NULL};
        n += k_bytes + v_bytes;
    }
    return n;
}

static status alloc_blocks(kv_pool *p, err *e)
{
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        size_t n = divide_block(p, side, NULL);
        if (!n)
            continue;
        if (!(p->block[side] = p->dev[side]->alloc(p->dev[side], n)))
            return err_memory(e, "the key/value cache", n);
        divide_block(p, side, p->block[side]);
    }
    return OK;
}

status kv_pool_open(kv_pool *p, device *dev, const kv_layout *l, err *e)
{
    status st = OK;
    *p = (kv_pool){.layout = l};
    memcpy(p->dev, l->dev, sizeof p->dev);
    p->dev[PASS_MAIN] = dev;
    if (!l->n_pool_pages)
        return OK;
    p->base = mem_calloc((size_t)l->n, sizeof *p->base);
    if (!p->base)
        st = err_memory(e, "a pool of keys", (size_t)l->n * sizeof *p->base);
    if (!st)
        st = pages_init(&p->pages, l->n_pool_pages, e);
    if (!st)
        st = alloc_blocks(p, e);
    if (st)
        kv_pool_close(p);
#ifdef CARAT_DEBUG
    p->poison = !st && dev->kind == DEVICE_CPU;
    for (int32_t side = 1; side < PASS_SIDES_MAX; side++)
        p->poison &= !p->dev[side] || p->dev[side]->kind == DEVICE_CPU;
#endif
    return st;
}

void kv_pool_close(kv_pool *p)
{
    kv_rescore_close(p);
    kv_mover_close(p);
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        if (p->block[side])
            p->dev[side]->release(p->dev[side], p->block[side], divide_block(p, side, NULL));
    pages_free(&p->pages);
    mem_free(p->base);
    *p = (kv_pool){0};
}

static device *recur_device(const kv_cache *c, const recur_view *v)
{
    return c->dev[v->side];
}

static bool open_recur(kv_cache *c, int32_t i)
{
    const recur_view *v = &c->layout->recur[i];
    const kv_recur_parts p = kv_recur_parts_of(v);
    device *d = recur_device(c, v);
    float *at = d->alloc(d, p.all * sizeof *at);
    if (at)
        c->recur[i] = (recur_base){.state = at,
                                   .conv = at + p.at_conv,
                                   .journal = {at + p.at_journal[0], at + p.at_journal[1]},
                                   .block = at + p.at_block};
    return at;
}

static status open_tables(kv_cache *c, err *e)
{
    const kv_layout *l = c->layout;
    size_t n = (size_t)l->n_table;
    c->page = mem_calloc(n, sizeof *c->page);
    c->table = mem_calloc(n, sizeof *c->table);
    c->paged_out = mem_calloc(n, sizeof *c->paged_out);
    if (!c->page || !c->table || !c->paged_out)
        return err_memory(e, "a table of pages",
                          n * (sizeof *c->page + sizeof *c->table + sizeof *c->paged_out));
    for (int side = 0; side < PASS_SIDES_MAX; side++) {
        device *d = c->dev[side];
        if (!l->side[side].table)
            continue;
        c->shown[side] = d->alloc(d, n * sizeof *c->table);
        if (!c->shown[side])
            return err_memory(e, "a table of pages", n * sizeof *c->table);
    }
    return OK;
}

static status open_stores(kv_cache *c, err *e)
{
    const kv_layout *l = c->layout;
    status st = OK;
    c->base = mem_calloc((size_t)l->n, sizeof *c->base);
    if (!c->base)
        return err_memory(e, "the key/value cache", (size_t)l->n * sizeof *c->base);
    if (l->n_recur && !(c->recur = mem_calloc((size_t)l->n_recur, sizeof *c->recur)))
        return err_memory(e, "the recurrent states", (size_t)l->n_recur * sizeof *c->recur);
    for (int32_t i = 0; i < l->n && !st; i++) {
        const kv_view *v = &l->view[i];
        if (v->window) {
            st = alloc_store(kv_device(c, v), v, &c->base[i], e);
        } else {
            c->base[i] = c->pool->base[i];
            c->base[i].page = c->shown[v->side];
        }
    }
    for (int32_t i = 0; i < l->n_recur && !st; i++)
        if (!open_recur(c, i))
            st = err_memory(e, "the recurrent states",
                            kv_recur_parts_of(&l->recur[i]).all * sizeof(float));
    return st;
}

status kv_open_in(kv_cache *c, kv_pool *p, err *e)
{
    status st;
    *c = (kv_cache){.layout = p->layout, .pool = p};
    memcpy(c->dev, p->dev, sizeof c->dev);
    if ((st = open_tables(c, e)) || (st = open_stores(c, e)))
        kv_close(c);
    return st;
}

status kv_open(kv_cache *c, device *dev, const kv_layout *l, err *e)
{
    kv_pool *own = mem_calloc(1, sizeof *own);
    status st = own ? kv_pool_open(own, dev, l, e) : err_memory(e, "a pool of keys", sizeof *own);
    *c = (kv_cache){0};
    if (!st && !(st = kv_open_in(c, own, e))) {
        c->own = own;
        return OK;
    }
    if (own)
        kv_pool_close(own);
    mem_free(own);
    return st;
}

void kv_close(kv_cache *c)
{
    const kv_layout *l = c->layout;
    kv_pager_close(c);
    if (c->paged_out)
        kv_cut_pages(c, 0);
    for (int32_t i = 0; c->base && i < l->n; i++)
        if (l->view[i].window)
            release_store(kv_device(c, &l->view[i]), &l->view[i], &c->base[i]);
    for (int32_t i = 0; c->recur && i < l->n_recur; i++) {
        const recur_view *v = &l->recur[i];
        device *d = recur_device(c, v);
        if (c->recur[i].state)
            d->release(d, c->recur[i].state, kv_recur_parts_of(v).all * sizeof(float));
    }
    for (int side = 0; side < PASS_SIDES_MAX; side++)
        if (c->shown[side])
            c->dev[side]->release(c->dev[side], c->shown[side],
                                  (size_t)l->n_table * sizeof *c->table);
    mem_free(c->paged_out);
    mem_free(c->table);
    mem_free(c->page);
    mem_free(c->recur);
    mem_free(c->base);
    if (c->own)
        kv_pool_close(c->own);
    mem_free(c->own);
    *c = (kv_cache){0};
}

kv_base kv_host_base(const kv_cache *c, int32_t i)
{
    kv_base b = c->base[i];
    if (b.page)
        b.page = c->table;
    return b;
}

/* ---- Pages -------------------------------------------------------------------------------- */

static void set_entry(kv_cache *c, int32_t i, int32_t page, int32_t pos)
{
    const kv_page now = {.place = page * KV_PAGE, .pos = pos};
    if (c->table[i].place == now.place && c->table[i].pos == pos)
        return; /* the copies have it, or will */
    c->table[i] = now;
    c->stale_lo = !c->stale_hi || i < c->stale_lo ? i : c->stale_lo;
    c->stale_hi = i >= c->stale_hi ? i + 1 : c->stale_hi;
}

void kv_set_page_at(kv_cache *c, int32_t i, int32_t page, int32_t pos)
{
    c->page[i] = page;
    set_entry(c, i, page, pos);
}

void kv_set_page(kv_cache *c, int32_t i, int32_t page)
{
    kv_set_page_at(c, i, page, i * KV_PAGE);
}

void kv_show_pages(kv_cache *c)
{
    size_t n = (size_t)(c->stale_hi - c->stale_lo);
    for (int side = 0; side < PASS_SIDES_MAX && c->stale_lo < c->stale_hi; side++) {
        device *d = c->dev[side];
        if (c->shown[side])
            d->upload(d, c->shown[side] + c->stale_lo, c->table + c->stale_lo,
                      n * sizeof *c->table);
    }
    c->stale_lo = c->stale_hi = 0;
}

void kv_cut_pages(kv_cache *c, int64_t n)
{
    c->n_reserved = 0;
    if (c->pager) {
        kv_pager_cut(c, n);
        return;
    }
    while (c->n_pages > pages_of(n)) {
        int32_t page = c->page[--c->n_pages];
        if (page >= 0) {
            pages_drop(&c->pool->pages, page);
            continue;
        }
        kv_copy_drop(c->pool, &c->paged_out[c->n_pages]);
        c->n_paged_out--;
    }
}

int32_t kv_page_of(const kv_cache *c, int32_t i)
{
    if (c->pager && c->n_absent) {
        int32_t place = c->n_paged_out ? -1 : c->pager->r.page[i].place;
        return place >= 0 ? place / KV_PAGE : -1;
    }
    return i < c->n_pages ? c->page[i] : -1;
}

int32_t kv_own_pages(const kv_cache *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_pages; i++)
        n += c->page[i] >= 0 && c->pool->pages.holders[c->page[i]] == 1;
    return n;
}

/* In all stores of one kind on one side, row first + i becomes row first + from[i]. */
static void keep_rows(kv_cache *c, int8_t side, store_kind kind, int64_t first, const int32_t *from,
                      int32_t n)
{
    enum { STORES = 64 };
    row_store s[STORES];
    int32_t n_stores = 0;
    device *d = NULL;
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        if (v->side != side || v->kind != kind)
            continue;
        d = kv_device(c, v);
        if (n_stores + 2 > STORES) {
            device_keep_rows(d, s, n_stores, first, from, n);
            n_stores = 0;
        }
        const kv_base *b = &c->base[i];
        s[n_stores++] = (row_store){b->k, v->k_row_bytes, v->n_head_kv, v->n_slots, b->page};
        if (b->v)
            s[n_stores++] = (row_store){b->v, v->v_row_bytes, v->n_head_kv, v->n_slots, b->page};
    }
    if (n_stores)
        device_keep_rows(d, s, n_stores, first, from, n);
}

void kv_copy_page(kv_cache *c, int32_t to, int32_t from, int32_t n)
{
    int32_t at = c->layout->n_table - KV_TABLE_MORE, row[KV_PAGE];
    set_entry(c, at, to, 0);
    set_entry(c, at + 1, from, 0);
    kv_show_pages(c);
    for (int32_t i = 0; i < n; i++)
        row[i] = KV_PAGE + i;
    for (int8_t side = 0; side < PASS_SIDES_MAX; side++)
        keep_rows(c, side, STORE_LINEAR, (int64_t)at * KV_PAGE, row, n);
}

int32_t kv_pages_needed(const kv_cache *c, int32_t n)
{
    int32_t first = (int32_t)(c->n_past / KV_PAGE), need = 0;
    if (!c->layout->n_pool_pages)
        return 0;
    if (c->pager)
        return kv_pager_needs(c, n);
    for (int32_t i = first; i < pages_of(c->n_past + n); i++)
        need += i >= c->n_pages || c->page[i] < 0 ||
                !pages_may_write(&c->pool->pages, c->page[i],
                                 i == first ? (int32_t)(c->n_past % KV_PAGE) : 0);
    return need;
}

int32_t kv_take_page(kv_pool *p)
{
    if (p->poison)
        kv_poison_free(p);
    return pages_take(&p->pages);
}

/* Makes page i writable from `row` on: takes it, or a copy of its rows below. The pool has a page.
 */
static void own_page(kv_cache *c, int32_t i, int32_t row)
{
    pages *p = &c->pool->pages;
    if (i < c->n_pages && pages_may_write(p, c->page[i], row))
        return;
    int32_t page = kv_take_page(c->pool);
    if (i < c->n_pages) {
        if (row)
            kv_copy_page(c, page, c->page[i], row);
        pages_drop(p, c->page[i]);
    } else {
        c->n_pages = i + 1;
    }
    kv_set_page(c, i, page);
}

status kv_reserve(kv_cache *c, int32_t n, err *e)
{
    const kv_layout *l = c->layout;
    if (n < 1 || n > l->rows_max)
        return err_set(e, E_ARG, "a pass of %d rows: the cache was made for 1 to %d", n,
                       l->rows_max);
    if (c->n_past + n > l->n_ctx)
        return err_set(e, E_LIMIT,
                       "the context is full: it has %lld tokens, and %d more exceed its %d (--ctx)",
                       (long long)c->n_past, n, l->n_ctx);
    if (c->n_paged_out)
        return err_set(e, E_ARG, "a pass over a conversation whose keys are on the host");
    int64_t end = c->n_past + n;
    status st;
    if (c->pager && (st = kv_pager_reserve(c, n, e)))
        return st;
    int32_t need = c->pager ? 0 : kv_pages_needed(c, n);
    if (need > c->pool->pages.n_free)
        return err_set(e, E_LIMIT,
                       "the pool of keys is full: %d more tokens need %d pages of %d tokens, and "
                       "%d of %d pages are free (--kv-pool)",
                       n, need, KV_PAGE, c->pool->pages.n_free, c->pool->pages.n);
    for (int32_t i = (int32_t)(c->n_past / KV_PAGE);
         l->n_pool_pages && !c->pager && i < pages_of(end); i++) {
        int64_t first = (int64_t)i * KV_PAGE, left = end - first;
        own_page(c, i, c->n_past > first ? (int32_t)(c->n_past - first) : 0);
        pages_write(&c->pool->pages, c->page[i], left < KV_PAGE ? (int32_t)left : KV_PAGE);
    }
    if (end > c->n_written)
        c->n_written = end;
    c->n_reserved = end;
    if (c->pool->poison)
        kv_poison_free(c->pool);
    return OK;
}

/* ---- Rows that stay ----------------------------------------------------------------------- */

/* The pass has applied the pending rows. path[n], or the first n rows, are the next ones. False:
 * the states are those after rows that are not kept. */
static bool commit_recur(kv_cache *c, const int32_t *path, int32_t n)
{
    recur_seq *s = &c->recur_rows;
    bool whole = !s->final || n == s->n;
    s->n_pending = 0;
    if (!s->final) {
        s->bank = !s->bank;
        s->n_pending = n;
        for (int32_t i = 0; i < n; i++)
            s->pending[i] = path ? path[i] : i;
    }
    s->n = 0;
    return whole;
}

/* The pass was the last to write to its pages: rows that it dropped are in nobody's way. */
static void free_dropped_rows(kv_cache *c)
{
    if (c->pager)
        return;
    for (int32_t i = (int32_t)(c->n_past / KV_PAGE); i < pages_of(c->n_reserved); i++) {
        int64_t kept = c->n_past - (int64_t)i * KV_PAGE;
        if (i < c->n_pages)
            pages_unwrite(&c->pool->pages, c->page[i], kept > 0 ? (int32_t)kept : 0);
    }
    c->n_reserved = 0;
}

/* The counters after n more rows. */
static void count_rows(kv_cache *c, const int32_t *path, int32_t n)
{
    c->n_past += n;
    if (c->pager)
        kv_pager_commit(c, n);
    free_dropped_rows(c);
    if (c->layout->n_recur && !commit_recur(c, path, n))
        kv_reset(c);
}

void kv_commit(kv_cache *c, int32_t n)
{
    count_rows(c, NULL, n);
}

/* Row path[i] was written at index n_past + path[i], with position n_past + i. Its key is rotated
 * by that position: when it was stored, or, with one stream, when it is read. So moved to index
 * n_past + i it is the row that a chain would have written there. n_written already includes the
 * rejected rows (kv_reserve). */
void kv_commit_path(kv_cache *c, const int32_t *path, int32_t n)
{
    int32_t from[STEP_TREE_ROWS_MAX], in_place = 0;
    while (in_place < n && path[in_place] == in_place)
        in_place++;
    for (int32_t i = in_place; i < n; i++)
        from[i - in_place] = path[i] - in_place;
    for (int8_t side = 0; in_place < n && side < PASS_SIDES_MAX; side++)
        for (int kind = 0; kind < STORE_KINDS; kind++)
            keep_rows(c, side, (store_kind)kind, kv_n_keys(c, (store_kind)kind) + in_place, from,
                      n - in_place);
    count_rows(c, path, n);
}

void kv_settle(kv_cache *c, int64_t n)
{
    const kv_layout *l = c->layout;
    recur_seq *r = &c->recur_rows, now = *r;
    if (n <= kv_n_settled(c))
        return;
    now.n_pending = (int32_t)(n - kv_n_settled(c));
    for (int32_t i = 0, k; i < l->n_recur; i = k) {
        device *d = recur_device(c, &l->recur[i]);
        for (k = i + 1; k < l->n_recur && l->recur[k].side == l->recur[i].side;)
            k++;
        d->settle(d, &l->recur[i], &c->recur[i], k - i, &now);
    }
    r->n_pending -= now.n_pending;
    memmove(r->pending, r->pending + now.n_pending, (size_t)r->n_pending * sizeof *r->pending);
}

/* The next query, at n_past, sees keys from n_past - window + 1 on. A ring holds the indices from
 * n_written - n_slots on; after a snapshot was loaded, only those from n_loaded - window on. */
bool kv_can_rewind(const kv_cache *c, int64_t n_past)
{
    if (n_past < 0 || n_past > c->n_past)
        return false;
    if (c->layout->n_recur && n_past && n_past < kv_n_settled(c))
        return false;
    if (c->pager && !kv_pager_can_cut(c, n_past))
        return false;
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        int64_t oldest = c->n_written - v->n_slots, loaded = c->n_loaded - v->window;
        oldest = oldest > loaded ? oldest : loaded;
        int64_t needed = n_past - v->window + 1;
        if (v->window && oldest > 0 && oldest > (needed > 0 ? needed : 0) && n_past > 0)
            return false;
    }
    return true;
}

bool kv_rewind(kv_cache *c, int64_t n_past)
{
    if (!kv_can_rewind(c, n_past))
        return false;
    if (c->layout->n_recur)
        c->recur_rows.n_pending -= (int32_t)(c->n_past - n_past);
    c->n_past = n_past;
    kv_cut_pages(c, n_past);
    if (n_past == 0)
        kv_reset(c);
    return true;
}

/* Keys of a dropped row are never read; a state is, so it becomes that of a new sequence. */
void kv_reset(kv_cache *c)
{
    c->n_past = c->n_written = c->n_loaded = 0;
    c->recur_rows = (recur_seq){0};
    kv_cut_pages(c, 0);
    for (int32_t i = 0; i < c->layout->n_recur; i++) {
        const recur_view *v = &c->layout->recur[i];
        device *d = recur_device(c, v);
        const kv_recur_parts p = kv_recur_parts_of(v);
        size_t head = p.block ? RECUR_BLOCK_HEAD : 0;
        d->clear(d, c->recur[i].state, (p.at_block + head) * sizeof(float));
    }
}
