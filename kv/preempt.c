/* preempt.c - a timeline that waits: its pages on the host, exact, until the pool has room again.
 *
 *     table    0  1  2  3  4  5          pages 2 and 5 of the timeline are away
 *     page     9  4  .  7  8  .
 *     away           x        x          copies (mover.h)
 *
 * Pages that others hold too stay where they are, because moving them would free nothing, unless
 * those leave as well: then each gets a copy. Rings, recurrent states and counters stay as well, so
 * the timeline goes on as if it had never waited. With a pager the copies are the pager's, so pages
 * that have one already leave without another, and the same pages are in the pool again afterwards.
 */
#include "kv/pager.h"

enum { MOVES_AT_ONCE = 64 };

static kv_copy *copy_of(const kv_cache *c, int32_t i)
{
    return c->pager ? &c->pager->copy[c->table[i].pos / KV_PAGE] : &c->paged_out[i];
}

/* Entry i of the table has a copy: its page leaves the pool. */
static void leave(kv_cache *c, int32_t i)
{
    if (c->pager)
        residency_copied(&c->pager->r, c->table[i].pos / KV_PAGE);
    pages_drop(&c->pool->pages, c->page[i]);
    c->page[i] = -1;
    c->n_paged_out++;
}

/* The first n entries of a list get copies, and leave. */
static status leave_all(kv_cache *c, const int32_t *entry, const kv_move *move, int32_t n, err *e)
{
    int32_t n_done = 0;
    status st = n ? kv_move_out(c->pool, move, n, &n_done, e) : OK;
    for (int32_t k = 0; k < n_done; k++)
        leave(c, entry[k]);
    return st;
}

status kv_page_out(kv_cache *c, const int32_t *leaving, err *e)
{
    const pages *p = c->pool ? &c->pool->pages : NULL;
    kv_move move[MOVES_AT_ONCE];
    int32_t entry[MOVES_AT_ONCE], n = 0;
    status st = OK;
    if (!c->n_pages)
        return OK;
    if (!c->pool->mover && (st = kv_mover_open(c->pool, &(kv_mover_want){.host_bytes = -1}, e)))
        return st;
    for (int32_t i = c->n_pages - 1; i >= 0 && !st; i--) {
        int32_t page = c->page[i];
        if (page < 0 || p->holders[page] > (leaving ? leaving[page] : 1))
            continue;
        if (kv_copy_is(copy_of(c, i))) {
            leave(c, i);
            continue;
        }
        move[n] = (kv_move){page, copy_of(c, i)};
        entry[n++] = i;
        if (n == MOVES_AT_ONCE) {
            st = leave_all(c, entry, move, n, e);
            n = 0;
        }
    }
    return st ? st : leave_all(c, entry, move, n, e);
}

/* The first n entries of a list have come into the pages of `move`. */
static void arrive(kv_cache *c, const int32_t *entry, const kv_move *move, int32_t n)
{
    for (int32_t k = 0; k < n; k++) {
        int32_t i = entry[k], pos = c->table[i].pos;
        int64_t end = c->n_past - pos;
        kv_set_page_at(c, i, move[k].page, pos);
        pages_write(&c->pool->pages, c->page[i],
                    end >= KV_PAGE ? KV_PAGE
                    : end > 0      ? (int32_t)end
                                   : 0);
        if (c->pager)
            c->pager->r.page[pos / KV_PAGE].place = c->page[i] * KV_PAGE;
        else
            kv_copy_drop(c->pool, &c->paged_out[i]);
        c->n_paged_out--;
    }
}

static status arrive_all(kv_cache *c, const int32_t *entry, const kv_move *move, int32_t n, err *e)
{
    int32_t n_done = 0;
    status st = n ? kv_move_in(c->pool, move, n, &n_done, e) : OK;
    arrive(c, entry, move, n_done);
    for (int32_t k = n_done; k < n; k++)
        pages_drop(&c->pool->pages, move[k].page);
    return st;
}

status kv_page_in(kv_cache *c, err *e)
{
    pages *p = &c->pool->pages;
    kv_move move[MOVES_AT_ONCE];
    int32_t entry[MOVES_AT_ONCE], n = 0;
    status st = OK;
    if (c->n_paged_out > p->n_free)
        return err_set(e, E_LIMIT,
                       "the pool of keys is full: a conversation that waits needs %d pages of %d "
                       "tokens, and %d of %d pages are free (--kv-pool)",
                       c->n_paged_out, KV_PAGE, p->n_free, p->n);
    for (int32_t i = 0; i < c->n_pages && !st; i++) {
        if (c->page[i] >= 0)
            continue;
        move[n] = (kv_move){kv_take_page(c->pool), copy_of(c, i)};
        entry[n++] = i;
        if (n == MOVES_AT_ONCE) {
            st = arrive_all(c, entry, move, n, e);
            n = 0;
        }
    }
    if (!st)
        st = arrive_all(c, entry, move, n, e);
    kv_show_pages(c);
    return st;
}
