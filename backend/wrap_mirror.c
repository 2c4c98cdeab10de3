/* wrap_mirror.c - copies of a device's memory on the host, which the reference of a wrapped call
 * reads.
 *
 * They live until the call ends. The output's mirror holds what it was before the call, because ops
 * in place read it. A debugging device may allocate inside a pass.
 */
#include "backend/wrap_int.h"
#include "base/mem.h"

#include <string.h>

void wrap_copy_out(wrapper *w, float *to, mat m)
{
    size_t width = (size_t)mat_width(m);
    if (w->apart && m.stride == mat_width(m)) {
        w->inner->download(w->inner, to, m.at, (size_t)m.rows * width * sizeof *to);
        return;
    }
    for (int32_t r = 0; r < m.rows; r++, to += width)
        if (w->apart)
            w->inner->download(w->inner, to, mat_row(m, r), width * sizeof *to);
        else
            memcpy(to, mat_row(m, r), width * sizeof *to);
}

void wrap_copy_in(mat m, const float *from)
{
    for (int32_t r = 0; r < m.rows; r++, from += mat_width(m))
        memcpy(mat_row(m, r), from, (size_t)mat_width(m) * sizeof *from);
}

/* n_bytes of host memory until the call ends. */
static void *mirror_room(wrapper *w, pass *p, size_t n_bytes)
{
    void *at = w->n_mirrors < MIRRORS_MAX ? mem_alloc(n_bytes ? n_bytes : 1) : NULL;
    if (at)
        w->mirror[w->n_mirrors++] = at;
    else
        err_memory(&p->e, "a device wrapper", n_bytes);
    return at;
}

void *mirror_bytes(wrapper *w, pass *p, const void *from, size_t n_bytes)
{
    void *at = mirror_room(w, p, n_bytes);
    if (at)
        w->inner->download(w->inner, at, from, n_bytes);
    return at;
}

static mat packed(mat m, float *at)
{
    m.at = at;
    m.stride = mat_width(m);
    return m;
}

mat mirror_mat(wrapper *w, pass *p, mat m)
{
    if (m.at == w->out_at) /* an op in place reads the output before the call */
        return packed(m, w->out.at);
    mat to = packed(m, mirror_room(w, p, (size_t)m.rows * (size_t)mat_width(m) * sizeof *m.at));
    if (to.at)
        wrap_copy_out(w, to.at, m);
    return to;
}

mat mirror_out(wrapper *w, pass *p, mat y)
{
    size_t n = (size_t)y.rows * (size_t)mat_width(y);
    w->out_at = y.at;
    w->out = packed(y, mirror_room(w, p, n * sizeof *y.at));
    if (w->out.at)
        memcpy(w->out.at, w->before, n * sizeof *y.at);
    return w->out;
}

routing mirror_routing(wrapper *w, pass *p, routing r)
{
    size_t n = (size_t)r.rows * (size_t)r.k;
    r.id = mirror_bytes(w, p, r.id, n * sizeof *r.id);
    r.weight = mirror_bytes(w, p, r.weight, n * sizeof *r.weight);
    return r;
}

const rope *mirror_rope(wrapper *w, pass *p, const rope *r)
{
    w->host_rope = (rope){.n_pairs = r->n_pairs,
                          .n_turning = r->n_turning,
                          .factor = r->factor,
                          .interleaved = r->interleaved,
                          .n_axes = r->n_axes,
                          .parted = r->parted,
                          .section = {r->section[0], r->section[1], r->section[2]},
                          .grow = r->grow,
                          .period = r->period};
    w->host_rope.inv_freq =
        mirror_bytes(w, p, r->inv_freq, (size_t)r->n_pairs * sizeof *r->inv_freq);
    return &w->host_rope;
}

/* The reference leaves out what the device would. */
static void mirror_rules(wrapper *w, const kv_view *kv)
{
    step *st = &w->host_step;
    const device *d = w->inner;
    if (!st->sparse || !d->narrow_sparse)
        return;
    for (int32_t i = 0; i < st->n_seqs; i++) {
        w->host_sparse[i] = st->sparse[i];
        d->narrow_sparse(d, kv, st->prompt, &w->host_sparse[i]);
    }
    st->sparse = w->host_sparse;
}

const kv_view *mirror_view(wrapper *w, pass *p, const kv_view *kv)
{
    const step *st = p->st;
    size_t n = (size_t)st->n_seqs * (size_t)st->n_kv;
    size_t rows = (size_t)kv->n_head_kv * (size_t)kv->n_slots;
    kv_base *base = mirror_room(w, p, n * sizeof *base);
    for (int32_t i = 0; base && i < st->n_seqs; i++) {
        size_t at = (size_t)i * (size_t)st->n_kv + (size_t)kv->id;
        base[at] = (kv_base){.k = mirror_bytes(w, p, st->kv[at].k, rows * kv->k_row_bytes)};
        if (st->kv[at].v)
            base[at].v = mirror_bytes(w, p, st->kv[at].v, rows * kv->v_row_bytes);
        if (st->kv[at].page)
            base[at].page =
                mirror_bytes(w, p, st->kv[at].page,
                             ((size_t)kv->n_keys + KV_PAGE - 1) / KV_PAGE * sizeof *base[at].page);
    }
    w->dev_step = st;
    w->host_step = *st;
    w->host_step.kv = base;
    p->st = &w->host_step;
    mirror_rules(w, kv);
    w->host_view = *kv;
    if (kv->k_rope)
        w->host_view.k_rope = mirror_rope(w, p, kv->k_rope);
    return &w->host_view;
}

/* Floats of a sequence's recurrent store, all parts. */
static size_t recur_floats(const recur_view *v, size_t part[4])
{
    part[0] = (size_t)v->n_v * (size_t)v->dv * (size_t)v->dk;
    part[1] = (size_t)(v->n_taps - 1) * (size_t)recur_channels(v);
    part[2] = part[3] = (size_t)v->journal_rows * (size_t)recur_journal_row(v);
    return part[0] + part[1] + part[2] + part[3];
}

static void read_recur(wrapper *w, const recur_view *v, const recur_base *b, float *to)
{
    size_t part[4];
    const float *at[4] = {b->state, b->conv, b->journal[0], b->journal[1]};
    recur_floats(v, part);
    for (int i = 0; i < 4; to += part[i++])
        if (part[i])
            w->inner->download(w->inner, to, at[i], part[i] * sizeof *to);
}

void mirror_recur(wrapper *w, pass *p, const recur_view *rv)
{
    const step *st = p->st;
    if (w->kind != WRAP_CHECK || p->dry || pass_failed(p))
        return;
    size_t part[4], n = recur_floats(rv, part);
    w->host_recur =
        mirror_room(w, p, (size_t)st->n_seqs * (size_t)st->n_recur * sizeof *w->host_recur);
    for (int32_t i = 0; w->host_recur && i < st->n_seqs && !pass_failed(p); i++) {
        size_t at = (size_t)i * (size_t)st->n_recur + (size_t)rv->id;
        float *to = mirror_room(w, p, n * sizeof *to);
        if (!to)
            return;
        read_recur(w, rv, &st->recur[at], to);
        w->host_recur[at].state = to;
        w->host_recur[at].conv = to + part[0];
        w->host_recur[at].journal[0] = to + part[0] + part[1];
        w->host_recur[at].journal[1] = to + part[0] + part[1] + part[2];
        w->host_recur[at].block = NULL; /* the reference goes row by row */
    }
}

void mirror_use_recur(wrapper *w, pass *p)
{
    if (!w->phase || p->dry || pass_failed(p))
        return;
    w->dev_step = p->st;
    w->host_step = *p->st;
    w->host_step.recur = w->host_recur;
    p->st = &w->host_step;
}

void mirror_compare_recur(wrapper *w, pass *p, const char *op, const recur_view *rv)
{
    if (!w->phase || p->dry || pass_failed(p))
        return;
    const step *st = w->dev_step;
    size_t part[4], n = recur_floats(rv, part);
    float *got = mirror_room(w, p, n * sizeof *got);
    for (int32_t i = 0; got && i < st->n_seqs; i++) {
        size_t at = (size_t)i * (size_t)st->n_recur + (size_t)rv->id;
        const float *want = w->host_recur[at].state;
        double diff = 0, sum = 0;
        read_recur(w, rv, &st->recur[at], got);
        for (size_t j = 0; j < n; j++) {
            diff += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
            sum += (double)want[j] * want[j];
        }
        if (!(diff <= wrap_tolerance(w, p, op, NULL) * (sum > 0 ? sum : 1))) /* true for NaN */
            err_set(&p->e, E_NUMERIC,
                    "check: %s in layer %d: the store of sequence %d differs from the reference by "
                    "%.2e (allowed %.0e)",
                    op, p->il, i, diff / (sum > 0 ? sum : 1), wrap_tolerance(w, p, op, NULL));
    }
}

void wrap_to_host_scratch(wrapper *w, pass *p)
{
    pass_side *s = &p->side[p->here];
    if (w->host_scratch_bytes < s->scratch_bytes) {
        mem_pages_free(w->host_scratch, w->host_scratch_bytes);
        w->host_scratch = mem_pages(s->scratch_bytes);
        w->host_scratch_bytes = w->host_scratch ? s->scratch_bytes : 0;
    }
    if (!w->host_scratch) {
        err_memory(&p->e, "a device wrapper", s->scratch_bytes);
        return;
    }
    w->dev_scratch = s->scratch;
    s->scratch = w->host_scratch;
}

void wrap_leave_call(wrapper *w, pass *p)
{
    if (w->dev_scratch)
        p->side[p->here].scratch = w->dev_scratch;
    if (w->dev_step)
        p->st = w->dev_step;
    w->dev_scratch = NULL;
    w->dev_step = NULL;
    w->out_at = NULL;
    while (w->n_mirrors)
        mem_free(w->mirror[--w->n_mirrors]);
    p->dev = &w->dev;
    p->repeats = false;
}
