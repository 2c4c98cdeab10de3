/* check_follow.c - a session on the CUDA device follows another (kv_codes.h). Rows are found by the
 * number of their key alone, so a row that was stored elsewhere is not found.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"

#include <string.h>

/* ---- What a session has stored ------------------------------------------------------------ */

status codes_open(codes *c, const kv_layout *l, int32_t n, err *e)
{
    *c = (codes){.n = n};
    if (l->n > CODES_STORES)
        return err_set(e, E_ARG, "%d stores: the check has room for %d", l->n, CODES_STORES);
    for (int32_t i = 0; i < l->n; i++)
        for (int s = 0; s < 2; s++) {
            size_t bytes = (size_t)l->view[i].n_head_kv * (size_t)n * stored_bytes(&l->view[i], s);
            if (bytes && !(c->at[i][s] = mem_calloc(bytes, 1)))
                return err_memory(e, "codes", bytes);
        }
    return OK;
}

void codes_close(codes *c)
{
    for (int i = 0; i < CODES_STORES; i++)
        for (int s = 0; s < 2; s++)
            mem_free(c->at[i][s]);
    *c = (codes){0};
}

static uint8_t *code_row(const codes *c, const kv_view *v, int stream, int32_t head, int32_t index)
{
    size_t row = (size_t)head * (size_t)c->n + (size_t)index;
    return c->at[v->id][stream] + row * stored_bytes(v, stream);
}

/* A whole stream between device and host: one transfer instead of hundreds, one per row. */
static size_t whole_bytes(const kv_view *v, int stream)
{
    return (size_t)v->n_head_kv * (size_t)v->n_slots * stored_bytes(v, stream);
}
static char *stream_take(device *dev, const kv_view *v, kv_base base, int stream)
{
    char *all = mem_alloc(whole_bytes(v, stream));
    if (all)
        dev->download(dev, all, stream ? base.v : base.k, whole_bytes(v, stream));
    return all;
}

status codes_take(codes *c, device *dev, const kv_cache *from, int32_t first, int32_t n, err *e)
{
    for (int32_t i = 0; i < from->layout->n; i++)
        for (int s = 0; s < 2; s++) {
            const kv_view *v = &from->layout->view[i];
            if (!stored_bytes(v, s))
                continue;
            char *all = stream_take(dev, v, from->base[i], s);
            if (!all)
                return err_memory(e, "a stream", whole_bytes(v, s));
            const kv_base taken = {.k = all, .v = all, .page = kv_host_base(from, i).page};
            for (int32_t h = 0; h < v->n_head_kv; h++)
                for (int32_t at = first; at < first + n; at++)
                    memcpy(code_row(c, v, s, h, at), stored_at(v, taken, s, h, at),
                           stored_bytes(v, s));
            mem_free(all);
        }
    return OK;
}

/* ---- Following ---------------------------------------------------------------------------- */

static follower *now; /* an op table has no room for it */

/* A store's table of pages in memory of the host; NULL: it has none. mem_free. */
static kv_page *table_take(device *dev, const kv_view *v, const kv_base *base)
{
    size_t n_bytes = sizeof(kv_page) * (size_t)pages_of(v->n_keys);
    kv_page *table = base->page ? mem_alloc(n_bytes) : NULL;
    if (table)
        dev->download(dev, table, base->page, n_bytes);
    return table;
}

static void follow_stream(pass *p, const kv_view *v, mat m, int stream)
{
    device *dev = now->g->gpu;
    num_type type = stream ? v->v_type : v->k_type;
    int32_t n_rows = p->rows->n;
    const int32_t *index = rows_keys(p->rows, v)->index;
    size_t bytes = stored_bytes(v, stream), width = (size_t)mat_width(m), d = (size_t)v->head_dim;
    kv_base base = p->st->kv[v->id]; /* of the only sequence */
    char *all = stream_take(dev, v, base, stream);
    kv_page *table = table_take(dev, v, &base);
    const kv_base taken = {.k = all, .v = all, .page = table};
    float *x = gpu_rows(now->g, m), *values = mem_alloc(2 * d * sizeof *values);
    stored_values s = {.own = values, .first = values + d, .n = v->head_dim, .type = type};
    if (!all || !values || (base.page && !table))
        err_memory(&p->e, "a stream", whole_bytes(v, stream));
    for (int32_t r = 0; !pass_failed(p) && r < n_rows; r++)
        for (int32_t h = 0; h < v->n_head_kv; h++) {
            float *mine = x + (size_t)r * width + (size_t)h * d;
            char *at = stored_at(v, taken, stream, h, index[r]);
            const uint8_t *first = code_row(now->first, v, stream, h, index[r]);
            if (stream ? v->v_rot : v->k_rot)
                num_rotate(mine, v->head_dim);
            num_format_of(type)->decode(at, values, v->head_dim);
            num_format_of(type)->decode(first, values + d, v->head_dim);
            s.x = mine;
            code_stats_add(&now->codes, &s);
            memcpy(at, first, bytes);
        }
    if (!pass_failed(p))
        dev->upload(dev, stream ? base.v : base.k, all, whole_bytes(v, stream));
    mem_free(all);
    mem_free(table);
    mem_free(values);
    mem_free(x);
}

static void follow_store(pass *p, const kv_view *kv, mat k, mat v)
{
    now->usual->kv_store(p, kv, k, v);
    if (p->dry || pass_failed(p))
        return;
    now->n_stored += k.rows;
    follow_stream(p, kv, k, 0);
    if (!kv->single)
        follow_stream(p, kv, v, 1);
}

void follow_begin(follower *f, rig *g, const codes *first)
{
    cuda_device *c = g->gpu->self;
    *f = (follower){.g = g, .first = first, .usual = g->gpu->op, .no_graphs = c->no_graphs};
    f->codes.hair = 2 * CODE_HAIR; /* sums of f16 products may round to either side too */
    f->ops = *f->usual;
    f->ops.kv_store = follow_store;
    f->ops.qkv = NULL; /* it stores keys without that op */
    g->gpu->op = &f->ops;
    c->no_graphs = true; /* a replay would store without these functions */
    now = f;
}

void follow_end(follower *f)
{
    cuda_device *c = f->g->gpu->self;
    f->g->gpu->op = f->usual;
    c->no_graphs = f->no_graphs;
    now = NULL;
}

void follow_verdict(const follower *f, const char *name, const char *shape)
{
    const code_stats *t = &f->codes;
    verdict(f->g, name, text("%s: nothing is followed", shape), f->n_stored == 0, 0);
    verdict(f->g, name, text("%s: codes that are no hair off", shape), (double)t->n_far, t->rare);
    verdict(f->g, name, text("%s: codes beyond a step", shape), t->beyond, t->hair);
}
