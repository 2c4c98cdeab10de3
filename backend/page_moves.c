/* page_moves.c - which moves are taken, and the definition of every call: for stores in the host's
 * memory each is a loop over segments, done when it returns.
 */
#include "backend/page_moves.h"
#include "backend/step.h"
#include "base/mem.h"

#include <string.h>

struct page_moves {
    device *d; /* without wrappers */
    row_store *store;
    int32_t n_stores, n_moves;
    void *self; /* the device's part; NULL: stores are the host's memory */
    bool used[PAGE_MOVES_MAX];
};

/* ---- Stores in the host's memory ----------------------------------------------------------- */

static size_t segment_bytes(const row_store *s)
{
    return s->row_bytes * KV_PAGE;
}
static char *segment(const row_store *s, int32_t head, int32_t place)
{
    return s->at + ((size_t)head * (size_t)s->n_slots + (size_t)place) * s->row_bytes;
}

/* Between the page at `place` and its packed bytes. */
static void copy_packed(const row_store *store, int32_t n_stores, int32_t place, char *packed,
                        bool in)
{
    for (const row_store *s = store; s < store + n_stores; s++)
        for (int32_t h = 0; h < s->n_heads; h++, packed += segment_bytes(s))
            memcpy(in ? segment(s, h, place) : packed, in ? packed : segment(s, h, place),
                   segment_bytes(s));
}

size_t page_bytes(const row_store *store, int32_t n_stores)
{
    size_t n = 0;
    for (const row_store *s = store; s < store + n_stores; s++)
        n += segment_bytes(s) * (size_t)s->n_heads;
    return n;
}

/* ---- Moves --------------------------------------------------------------------------------- */

status page_moves_open(page_moves **out, device *d, const row_store *store, int32_t n_stores,
                       int32_t n_moves, err *e)
{
    *out = NULL;
    if (n_stores < 1 || n_moves < 1 || n_moves > PAGE_MOVES_MAX)
        return err_set(e, E_ARG, "%d moves of pages of %d stores; 1 to %d moves are possible",
                       n_moves, n_stores, PAGE_MOVES_MAX);
    page_moves *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_memory(e, "moves of pages", sizeof *m);
    while (d->kind == DEVICE_WRAP)
        d = d->inner;
    m->d = d;
    m->n_stores = n_stores;
    m->n_moves = n_moves;
    size_t list = sizeof *store * (size_t)n_stores;
    m->store = mem_alloc(list);
    if (m->store)
        memcpy(m->store, store, list);
    status st = OK;
    if (!m->store)
        st = err_memory(e, "moves of pages", list);
    else if (m->d->page_moves)
        st = m->d->page_moves->open(&m->self, m->d, n_moves, e);
    if (st) {
        page_moves_close(m);
        return st;
    }
    *out = m;
    return OK;
}

void page_moves_close(page_moves *m)
{
    if (!m)
        return;
    if (m->self)
        m->d->page_moves->close(m->self);
    mem_free(m->store);
    mem_free(m);
}

/* A free move whose copy has ended, or -1. */
static int32_t take_move(page_moves *m)
{
    for (int32_t i = 0; i < m->n_moves; i++)
        if (!m->used[i] && page_move_state(m, i, false) != PAGE_MOVING) {
            m->used[i] = true;
            return i;
        }
    return -1;
}

bool page_moves_begin(page_moves *m)
{
    return !m->self || m->d->page_moves->begin(m->self);
}

bool page_moves_join(page_moves *m)
{
    return !m->self || m->d->page_moves->join(m->self);
}

static int32_t move_page(page_moves *m, int32_t place, void *packed, bool in)
{
    int32_t i = take_move(m);
    if (i < 0)
        return -1;
    if (m->self)
        m->used[i] = m->d->page_moves->move(m->self, i, m->store, m->n_stores, place, packed, in);
    else
        copy_packed(m->store, m->n_stores, place, packed, in);
    return m->used[i] ? i : -1;
}

int32_t page_out(page_moves *m, int32_t place, void *to)
{
    return move_page(m, place, to, false);
}

int32_t page_in(page_moves *m, int32_t place, const void *from)
{
    return move_page(m, place, (void *)from, true);
}

page_state page_move_state(page_moves *m, int32_t move, bool wait)
{
    return m->self ? m->d->page_moves->state(m->self, move, wait) : PAGE_MOVED;
}

void page_move_end(page_moves *m, int32_t move)
{
    m->used[move] = false;
}
