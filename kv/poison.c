/* poison.c - fills pages that nobody holds with NaN, so that a kernel which reads one says so.
 *
 * A debugging aid: on in debug builds on a CPU, and where a test turns it on (kv_pool.poison). A
 * page is filled before it is taken and before every pass that follows its release. So rows beyond
 * the written ones are NaN too.
 */
#include "backend/key_walk.h"
#include "kv/kv.h"

#include <string.h>

enum { PART_BYTES = 4096 };

static void fill(device *d, char *at, size_t n_bytes)
{
    unsigned char nan[PART_BYTES]; /* in every format: a scale of all ones is NaN */
    memset(nan, 0xff, sizeof nan);
    for (size_t part; n_bytes; n_bytes -= part, at += part) {
        part = n_bytes < sizeof nan ? n_bytes : sizeof nan;
        d->upload(d, at, nan, part);
    }
}

static void fill_page(kv_pool *p, int32_t page)
{
    for (int32_t i = 0; i < p->layout->n; i++) {
        const kv_view *v = &p->layout->view[i];
        const kv_base *b = &p->base[i];
        device *d = p->dev[v->side];
        size_t first = (size_t)page * KV_PAGE;
        for (int32_t h = 0; h < v->n_head_kv && !v->window; h++) {
            fill(d, key_row(v, b->k, v->k_row_bytes, h, first), KV_PAGE * v->k_row_bytes);
            if (b->v)
                fill(d, key_row(v, b->v, v->v_row_bytes, h, first), KV_PAGE * v->v_row_bytes);
        }
    }
}

void kv_poison_free(kv_pool *p)
{
    for (int32_t i = 0; i < p->pages.n; i++)
        if (!p->pages.holders[i] && p->pages.stale[i]) {
            fill_page(p, i);
            p->pages.stale[i] = false;
        }
}

int32_t kv_take_page(kv_pool *p)
{
    if (p->poison)
        kv_poison_free(p);
    return pages_take(&p->pages);
}
