/* pages.c - see pages.h.
 *
 * Every call takes constant time: pages are taken between passes, while answers wait.
 */
#include "kv/pages.h"
#include "base/mem.h"

#include <assert.h>

status pages_init(pages *p, int32_t n, err *e)
{
    *p = (pages){0};
    if (n < 1 || n > INT32_MAX / KV_PAGE)
        return err_set(e, E_ARG, "a pool of %d pages: expected 1 to %d", n, INT32_MAX / KV_PAGE);
    p->free = mem_alloc((size_t)n * sizeof *p->free);
    p->holders = mem_calloc((size_t)n, sizeof *p->holders);
    p->written = mem_calloc((size_t)n, sizeof *p->written);
    p->stale = mem_calloc((size_t)n, sizeof *p->stale);
    if (!p->free || !p->holders || !p->written || !p->stale) {
        pages_free(p);
        return err_memory(e, "a pool of pages",
                          (size_t)n * (sizeof *p->free + sizeof *p->holders + sizeof *p->written +
                                       sizeof *p->stale));
    }
    p->n = p->n_free = n;
    for (int32_t i = 0; i < n; i++) {
        p->free[i] = n - 1 - i;
        p->stale[i] = true;
    }
    return OK;
}

void pages_free(pages *p)
{
    mem_free(p->stale);
    mem_free(p->written);
    mem_free(p->holders);
    mem_free(p->free);
    *p = (pages){0};
}

int32_t pages_take(pages *p)
{
    if (!p->n_free)
        return -1;
    int32_t page = p->free[--p->n_free];
    assert(!p->holders[page]);
    p->holders[page] = 1;
    p->written[page] = 0;
    p->stale[page] = true;
    return page;
}

void pages_keep(pages *p, int32_t page)
{
    assert(page >= 0 && page < p->n && p->holders[page] > 0);
    p->n_shared += ++p->holders[page] == 2;
}

void pages_drop(pages *p, int32_t page)
{
    assert(page >= 0 && page < p->n && p->holders[page] > 0);
    int32_t left = --p->holders[page];
    p->n_shared -= left == 1;
    if (!left)
        p->free[p->n_free++] = page;
}

bool pages_may_write(const pages *p, int32_t page, int32_t row)
{
    return p->holders[page] == 1 || row >= p->written[page];
}

void pages_write(pages *p, int32_t page, int32_t end)
{
    assert(end <= KV_PAGE);
    if (end > p->written[page])
        p->written[page] = (uint8_t)end;
}

void pages_unwrite(pages *p, int32_t page, int32_t end)
{
    if (end < p->written[page])
        p->written[page] = (uint8_t)end;
}
