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

/* Every format has these: a scale whose bits are all ones is NaN. */
enum { ZEROS = 0, NANS = 0xff };

static void fill(device *d, char *at, size_t n_bytes, int with)
{
    unsigned char from[PART_BYTES];
    memset(from, with, sizeof from);
    for (size_t part; n_bytes; n_bytes -= part, at += part) {
        part = n_bytes < sizeof from ? n_bytes : sizeof from;
        d->upload(d, at, from, part);
    }
}

static void fill_page(kv_pool *p, int32_t page, int with)
{
    for (int32_t i = 0; i < p->layout->n; i++) {
        const kv_view *v = &p->layout->view[i];
        const kv_base *b = &p->base[i];
        device *d = p->dev[v->side];
        size_t first = (size_t)page * KV_PAGE;
        for (int32_t h = 0; h < v->n_head_kv && !v->window; h++) {
            fill(d, key_row(v, b->k, v->k_row_bytes, h, first), KV_PAGE * v->k_row_bytes, with);
            if (b->v)
                fill(d, key_row(v, b->v, v->v_row_bytes, h, first), KV_PAGE * v->v_row_bytes, with);
        }
    }
}

void kv_poison_free(kv_pool *p)
{
    for (int32_t i = 0; i < p->pages.n; i++)
        if (!p->pages.holders[i] && p->pages.stale[i]) {
            fill_page(p, i, NANS);
            p->pages.stale[i] = false;
        }
}

void kv_blank_page(kv_pool *p, int32_t page)
{
    fill_page(p, page, ZEROS);
}
