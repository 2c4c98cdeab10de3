/* away.c - a timeline that waits: its pages in host memory, exact, until the pool has room again.
 *
 *     table    0  1  2  3  4  5          pages 2 and 5 of the timeline are away
 *     page     9  4  .  7  8  .
 *     away           x        x          in host memory, by store, stream, head, row
 *
 * Pages that others hold too stay where they are, because moving them would free nothing, unless
 * those leave as well: then each gets a copy. Rings,
 * recurrent states and counters stay as well, so the timeline goes on as if it had never waited.
 */
#include "backend/key_walk.h"
#include "base/mem.h"
#include "kv/kv.h"

static void move_stream(const kv_cache *c, const kv_view *v, void *stream, size_t row_bytes,
                        int32_t page, char *host, bool load)
{
    const block_move m = {.dev = key_row(v, stream, row_bytes, 0, (size_t)page * KV_PAGE),
                          .host = host,
                          .dev_stride = (size_t)v->n_slots * row_bytes,
                          .host_stride = KV_PAGE * row_bytes,
                          .n_bytes = KV_PAGE * row_bytes,
                          .n = v->n_head_kv,
                          .load = load};
    device_move(kv_device(c, v), &m);
}

/* Between a page of the pool and host memory. */
static void move_page(const kv_cache *c, int32_t page, char *host, bool load)
{
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        size_t head = KV_PAGE * (size_t)v->n_head_kv;
        if (v->window)
            continue;
        move_stream(c, v, c->base[i].k, v->k_row_bytes, page, host, load);
        host += head * v->k_row_bytes;
        if (c->base[i].v)
            move_stream(c, v, c->base[i].v, v->v_row_bytes, page, host, load);
        host += head * v->v_row_bytes;
    }
}

static void wait_for_moves(const kv_cache *c)
{
    for (int32_t i = 0; i < PASS_SIDES_MAX; i++)
        if (c->dev[i])
            device_moved(c->dev[i]);
}

static size_t page_bytes(const kv_cache *c)
{
    return (size_t)kv_page_bytes(c->layout);
}

status kv_page_out(kv_cache *c, const int32_t *leaving, err *e)
{
    pages *p = c->pool ? &c->pool->pages : NULL;
    status st = OK;
    for (int32_t i = 0; i < c->n_pages && !st; i++) {
        int32_t page = c->page[i];
        if (page < 0 || p->holders[page] > (leaving ? leaving[page] : 1))
            continue;
        c->away[i] = mem_alloc(page_bytes(c));
        if (!c->away[i]) {
            st = err_memory(e, "a page of a conversation that waits", page_bytes(c));
            break;
        }
        move_page(c, page, c->away[i], false);
        c->n_away++;
    }
    /* Pages may be taken again only when they have been read. */
    wait_for_moves(c);
    for (int32_t i = c->n_pages - 1; i >= 0; i--)
        if (c->away[i] && c->page[i] >= 0) {
            pages_drop(p, c->page[i]);
            c->page[i] = -1;
        }
    return st;
}

status kv_page_in(kv_cache *c, err *e)
{
    pages *p = &c->pool->pages;
    if (c->n_away > p->n_free)
        return err_set(e, E_LIMIT,
                       "the pool of keys is full: a conversation that waits needs %d pages of %d, "
                       "and %d of %d are free",
                       c->n_away, KV_PAGE, p->n_free, p->n);
    for (int32_t i = 0; i < c->n_pages; i++) {
        int64_t end = c->n_past - (int64_t)i * KV_PAGE;
        if (c->page[i] >= 0)
            continue;
        kv_set_page(c, i, pages_take(p));
        pages_write(p, c->page[i], end >= KV_PAGE ? KV_PAGE : end > 0 ? (int32_t)end : 0);
        move_page(c, c->page[i], c->away[i], true);
    }
    wait_for_moves(c);
    for (int32_t i = 0; i < c->n_pages; i++) {
        mem_free(c->away[i]);
        c->away[i] = NULL;
    }
    c->n_away = 0;
    kv_show_pages(c);
    return OK;
}
