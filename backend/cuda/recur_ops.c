/* recur_ops.c - recurrent layers on the CUDA device: the ops, and rows applied between passes. */
#include "backend/cuda/ops_int.h"

#include <string.h>

static recur_shape shape_of(const recur_view *v)
{
    return (recur_shape){.id = v->id,
                         .n_k = v->n_k,
                         .n_v = v->n_v,
                         .dk = v->dk,
                         .dv = v->dv,
                         .n_taps = v->n_taps,
                         .n_channels = recur_channels(v),
                         .journal_floats = recur_journal_row(v)};
}

static void wrote(pass *p, mat y)
{
    cuda_wrote(cuda_of(p), y.at, (size_t)y.rows * (size_t)y.stride * sizeof(float));
}

void cuda_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    cuda_device *c = cuda_of(p);
    const float *taps = p->dry ? NULL : cuda_vector(p, w);
    _Static_assert((int)RECUR_TAPS == (int)RECUR_TAPS_MAX, "kernels hold as many taps as a view");
    if (cuda_skip(p, y))
        return;
    wrote(p, y);
    cu_conv(c->stream, (conv_args){cuda_mat(y), cuda_mat(x), taps, shape_of(rv), c->recur});
    cuda_done(p, "conv");
}

void cuda_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    cuda_device *dev = cuda_of(p);
    size_t rows = (size_t)c.rows, keys = rows * (size_t)rv->n_k * (size_t)rv->dk;
    size_t mark = pass_mark(p);
    if (!cu_delta_knows(rv->dk)) {
        err_set(&p->e, E_UNSUPPORTED,
                "key heads of %d in a recurrent layer on a CUDA device: expected 16, 32, 64, 128 "
                "or 256",
                rv->dk);
        return;
    }
    delta_args d = {.o = cuda_mat(o), .c = cuda_mat(c), .a = cuda_mat(a), .b = cuda_mat(b)};
    d.gate_a = p->dry ? NULL : cuda_vector(p, g->a);
    d.gate_dt = p->dry ? NULL : cuda_vector(p, g->dt);
    d.q = cuda_temp(p, keys * sizeof *d.q);
    d.k = cuda_temp(p, keys * sizeof *d.k);
    d.gates = cuda_temp(p, 2 * rows * (size_t)rv->n_v * sizeof *d.gates);
    pass_release(p, mark);
    if (cuda_skip(p, o))
        return;
    d.v = shape_of(rv);
    d.st = dev->recur;
    wrote(p, o);
    cu_delta(dev->stream, d);
    cuda_done(p, "delta");
}

dev_recur_seq cuda_recur_seq(const recur_seq *s)
{
    dev_recur_seq d = {
        .row0 = s->row0, .n = s->n, .final = s->final, .bank = s->bank, .n_pending = s->n_pending};
    _Static_assert((int)RECUR_PATH == (int)STEP_TREE_ROWS_MAX, "a path has at most a tree's rows");
    memcpy(d.pending, s->pending, sizeof d.pending);
    return d;
}

static bool same_shape(const recur_view *a, const recur_view *b)
{
    return a->n_k == b->n_k && a->n_v == b->n_v && a->dk == b->dk && a->dv == b->dv &&
           a->n_taps == b->n_taps;
}

void cuda_recur_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                       const recur_seq *s)
{
    cuda_device *c = cuda_select(d);
    settle_args a = {.seq = cuda_recur_seq(s)};
    if (!s->n_pending)
        return;
    cuda_settle(c);
    a.seq.n = 0;
    for (int32_t i = 0; i < n; i++) {
        a.v = shape_of(&v[i]);
        a.base[a.n++] =
            (dev_recur_base){base[i].state, base[i].conv, {base[i].journal[0], base[i].journal[1]}};
        if (i < n - 1 && a.n < RECUR_STORES && same_shape(&v[i], &v[i + 1]))
            continue;
        cu_recur_settle(c->stream, a);
        cuda_ok(c, NULL, cudaGetLastError(), "settling recurrent layers");
        a.n = 0;
    }
}
