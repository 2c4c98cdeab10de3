/* wrap_inputs.c - the wrapper that sums the squares of what goes into products, for each input of
 * each tensor. See ops.h.
 *
 * Tensors are found in the order of their first product, which is the same in every pass, so each
 * is looked for behind the one before it. Weights that are parts of one tensor (attn_qkv) have its
 * name and the same inputs, of which the first part counts alone.
 */
#include "backend/wrap_int.h"
#include "base/mem.h"

#include <string.h>

/* The sums of a tensor. NULL: the pass has failed, or another part of the tensor counts. */
static wrap_sums *sums_of(wrapper *d, pass *p, const weight *w)
{
    for (int32_t k = 0; k < d->n_sums; k++) {
        int32_t i = (d->last_sums + 1 + k) % d->n_sums;
        wrap_sums *s = &d->sums[i];
        if (s->of != w && strcmp(s->of->name, w->name))
            continue;
        d->last_sums = i;
        return s->of == w ? s : NULL;
    }
    if (d->n_sums == d->sums_cap) {
        int32_t cap = d->sums_cap ? 2 * d->sums_cap : 256;
        wrap_sums *more = mem_realloc(d->sums, (size_t)cap, sizeof *more);
        if (!more) {
            err_memory(&p->e, "the sums of inputs", (size_t)cap * sizeof *more);
            return NULL;
        }
        d->sums = more;
        d->sums_cap = cap;
    }
    size_t n = (size_t)w->n_in * (size_t)w->n_mat;
    wrap_sums s = {w, mem_calloc(n, sizeof *s.sum), mem_calloc((size_t)w->n_mat, sizeof *s.n)};
    if (!s.sum || !s.n) {
        mem_free(s.sum);
        mem_free(s.n);
        err_memory(&p->e, "the sums of inputs", n * sizeof *s.sum);
        return NULL;
    }
    d->last_sums = d->n_sums;
    d->sums[d->n_sums] = s;
    return &d->sums[d->n_sums++];
}

static void add_row(wrap_sums *s, int32_t k, const float *x)
{
    double *sum = s->sum + (size_t)k * (size_t)s->of->n_in;
    for (int32_t i = 0; i < s->of->n_in; i++)
        sum[i] += (double)x[i] * x[i];
    s->n[k]++;
}

void inputs_add(wrapper *d, pass *p, mat x, const weight *w)
{
    wrap_sums *s = w && !p->dry && !pass_failed(p) ? sums_of(d, p, w) : NULL;
    if (s && d->apart)
        x = mirror_mat(d, p, x);
    for (int32_t r = 0; s && x.at && r < x.rows; r++)
        add_row(s, 0, mat_row(x, r));
}

void inputs_add_routed(wrapper *d, pass *p, mat x, routing r, const weight *w)
{
    wrap_sums *s = w && !p->dry && !pass_failed(p) ? sums_of(d, p, w) : NULL;
    if (s && d->apart) {
        x = mirror_mat(d, p, x);
        r = mirror_routing(d, p, r);
    }
    if (!s || !x.at || !r.id)
        return;
    bool own = x.heads == r.k && x.cols == w->n_in; /* each expert of a row has its own input */
    for (int32_t i = 0; i < r.rows; i++)
        for (int32_t j = 0; j < r.k; j++) {
            int32_t k = r.id[(size_t)i * (size_t)r.k + (size_t)j];
            if (k >= 0 && k < w->n_mat)
                add_row(s, k, mat_row(x, i) + (own ? (size_t)j * (size_t)x.cols : 0));
        }
}

void inputs_free(wrapper *d)
{
    for (int32_t i = 0; i < d->n_sums; i++) {
        mem_free(d->sums[i].sum);
        mem_free(d->sums[i].n);
    }
    mem_free(d->sums);
}

bool device_inputs_at(const device *d, int32_t i, device_inputs *out)
{
    for (; d && d->kind == DEVICE_WRAP; d = d->inner) {
        const wrapper *w = d->self;
        if (w->kind != WRAP_INPUTS)
            continue;
        if (i < 0 || i >= w->n_sums)
            return false;
        const wrap_sums *s = &w->sums[i];
        *out = (device_inputs){s->of->name, s->of->n_in, s->of->n_mat, s->sum, s->n};
        return true;
    }
    return false;
}
