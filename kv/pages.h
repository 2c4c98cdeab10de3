/* pages.h - the pages of a pool: which are free, who holds each, and how far each is written.
 *
 * A page is KV_PAGE places of every head of every linear store of a model, on all of its devices at
 * once: page p is places KV_PAGE * p .. KV_PAGE * p + KV_PAGE - 1. Nothing here knows a device or a
 * byte of keys.
 *
 *     free       no holders
 *     private    one holder, which may write any row
 *     shared     several holders (timelines, checkpoints). Rows below `written` never change. The
 *                first holder that comes may still write the rows after them; any other holder
 *                takes a copy first.
 *
 * A list of free pages gives the page back first that was given back last, and is 0, 1, 2, .. in a
 * new pool: until pages are given back in another order, a sequence alone in a pool has its keys in
 * line. Only the thread that runs passes may call in.
 */
#ifndef KV_PAGES_H
#define KV_PAGES_H

#include "backend/step.h"
#include "base/err.h"

typedef struct pages {
    int32_t n;        /* pages of the pool */
    int32_t n_free;   /* free[0 .. n_free) */
    int32_t n_shared; /* pages with several holders */
    int32_t *free;    /* [n], the next one last */
    int32_t *holders; /* [n] */
    uint8_t *written; /* [n] rows that are written, or that a pass may write: 0 .. KV_PAGE */
    bool *stale;      /* [n] may hold rows of an earlier holder; poison.c alone clears it */
} pages;

/* The number of pages that hold n keys. */
static inline int32_t pages_of(int64_t n)
{
    return (int32_t)((n + KV_PAGE - 1) / KV_PAGE);
}

/* n: 1 or more; E_ARG. */
status pages_init(pages *p, int32_t n, err *e);
void pages_free(pages *p); /* safe on a zeroed or freed pool */

/* A free page, now with one holder and no rows written; -1: there is none, and nothing changed. */
int32_t pages_take(pages *p);
void pages_keep(pages *p, int32_t page); /* one more holder */
void pages_drop(pages *p, int32_t page); /* one fewer; the last one frees it */

/* May a holder write rows from `row` on in place? Else it needs a page of its own first. */
bool pages_may_write(const pages *p, int32_t page, int32_t row);
/* Rows up to `end` are, or will be, written. */
void pages_write(pages *p, int32_t page, int32_t end);
/* The holder that wrote last does not need its rows from `end` on. */
void pages_unwrite(pages *p, int32_t page, int32_t end);

#endif
