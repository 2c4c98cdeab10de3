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
#include "kv/kv.h"

#include <string.h>

static size_t store_bytes(const kv_view *v, size_t row_bytes)
{
    return (size_t)v->n_head_kv * (size_t)v->n_slots * row_bytes;
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
                                   .journal = {at + p.at_journal[0], at + p.at_journal[1]}};
    return at;
}

status kv_open(kv_cache *c, device *dev, const kv_layout *l, err *e)
{
    *c = (kv_cache){.layout = l};
    memcpy(c->dev, l->dev, sizeof c->dev);
    c->dev[PASS_MAIN] = dev;
    c->base = mem_calloc((size_t)l->n, sizeof *c->base);
    if (!c->base)
        return err_memory(e, "the key/value cache", (size_t)l->n * sizeof *c->base);
    if (l->n_recur && !(c->recur = mem_calloc((size_t)l->n_recur, sizeof *c->recur))) {
        kv_close(c);
        return err_memory(e, "the recurrent states", (size_t)l->n_recur * sizeof *c->recur);
    }
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        size_t k_bytes = store_bytes(v, v->k_row_bytes), v_bytes = store_bytes(v, v->v_row_bytes);
        device *d = kv_device(c, v);
        c->base[i].k = d->alloc(d, k_bytes);
        c->base[i].v = c->base[i].k && v_bytes ? d->alloc(d, v_bytes) : NULL;
        if (!c->base[i].k || (v_bytes && !c->base[i].v)) {
            kv_close(c);
            return err_memory(e, "the key/value cache", k_bytes + v_bytes);
        }
    }
    for (int32_t i = 0; i < l->n_recur; i++)
        if (!open_recur(c, i)) {
            size_t n_bytes = kv_recur_parts_of(&l->recur[i]).all * sizeof(float);
            kv_close(c);
            return err_memory(e, "the recurrent states", n_bytes);
        }
    return OK;
}

void kv_close(kv_cache *c)
{
    for (int32_t i = 0; c->base && i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        device *d = kv_device(c, v);
        if (c->base[i].v)
            d->release(d, c->base[i].v, store_bytes(v, v->v_row_bytes));
        if (c->base[i].k)
            d->release(d, c->base[i].k, store_bytes(v, v->k_row_bytes));
    }
    for (int32_t i = 0; c->recur && i < c->layout->n_recur; i++) {
        const recur_view *v = &c->layout->recur[i];
        device *d = recur_device(c, v);
        if (c->recur[i].state)
            d->release(d, c->recur[i].state, kv_recur_parts_of(v).all * sizeof(float));
    }
    mem_free(c->recur);
    mem_free(c->base);
    *c = (kv_cache){0};
}

status kv_reserve(kv_cache *c, int32_t n, err *e)
{
    const kv_layout *l = c->layout;
    if (n < 1 || n > l->rows_max)
        return err_set(e, E_ARG, "a pass of %d rows: the cache was made for 1 to %d", n,
                       l->rows_max);
    if (c->n_past + n > l->n_ctx)
        return err_set(e, E_LIMIT, "the context is full: %lld tokens and %d more, of %d",
                       (long long)c->n_past, n, l->n_ctx);
    if (c->n_past + n > c->n_written)
        c->n_written = c->n_past + n;
    return OK;
}

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

/* The counters after n more rows. */
static void count_rows(kv_cache *c, const int32_t *path, int32_t n)
{
    c->n_past += n;
    if (c->layout->n_recur && !commit_recur(c, path, n))
        kv_reset(c);
}

void kv_commit(kv_cache *c, int32_t n)
{
    count_rows(c, NULL, n);
}

/* In all stores of one kind on one side, row n + skip + i becomes row n + skip + from[i], where n
 * is the number of committed keys. */
static void keep_rows(kv_cache *c, int8_t side, store_kind kind, int32_t skip, const int32_t *from,
                      int32_t n)
{
    enum { STORES = 64 };
    row_store s[STORES];
    int32_t n_stores = 0;
    int64_t first = kv_n_keys(c, kind) + skip;
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
            keep_rows(c, side, (store_kind)kind, in_place, from, n - in_place);
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
    if (n_past == 0)
        kv_reset(c);
    return true;
}

/* Keys of a dropped row are never read; a state is, so it becomes that of a new sequence. */
void kv_reset(kv_cache *c)
{
    c->n_past = c->n_written = c->n_loaded = 0;
    c->recur_rows = (recur_seq){0};
    for (int32_t i = 0; i < c->layout->n_recur; i++) {
        const recur_view *v = &c->layout->recur[i];
        device *d = recur_device(c, v);
        const kv_recur_parts p = kv_recur_parts_of(v);
        d->clear(d, c->recur[i].state, (p.at_conv + p.conv) * sizeof(float));
    }
}
