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

void cuda_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    cuda_device *c = cuda_of(p);
    const float *taps = cuda_vector(p, w);
    _Static_assert((int)RECUR_TAPS == (int)RECUR_TAPS_MAX, "kernels hold as many taps as a view");
    conv_args a = {.y = cuda_mat(y),
                   .x = cuda_mat(x),
                   .taps = taps,
                   .v = shape_of(rv),
                   .st = c->recur,
                   .chain = !p->st->all.seen};
    CUDA_OP(p, "conv", y, cu_conv(c->stream, a));
}

/* ---- Blocks of prompts --------------------------------------------------------------------- */

/* Has every sequence of the pass only rows that stay, and is the shape one that is computed in
 * blocks? */
static bool in_blocks(const pass *p, const recur_view *rv)
{
    const recur_shape v = shape_of(rv);
    const step *st = p->st;
    if (!rv->block || !st->prompt || !cu_blocks_know(&v))
        return false;
    for (int32_t i = 0; i < st->n_seqs; i++)
        if (!st->recur_seq[i].final)
            return false;
    return true;
}

static void launch_blocks(cuda_device *c, block_args *b)
{
    if (b->n)
        cu_delta_blocks(c->stream, b);
    b->n = b->n_walks = 0;
}

/* At most RECUR_BLOCKS blocks to a launch; a state goes from one launch to the next through its
 * store. */
static void delta_blocks(cuda_device *c, const step *st, block_args *b)
{
    b->n = b->n_walks = 0;
    for (int32_t i = 0; i < st->n_seqs; i++) {
        const recur_seq *s = &st->recur_seq[i];
        int32_t pos = s->n ? st->all.pos[s->row0] : 0, at = pos % RECUR_BLOCK_ROWS;
        for (int32_t r = 0; r < s->n; at = 0) {
            int32_t n = RECUR_BLOCK_ROWS - at < s->n - r ? RECUR_BLOCK_ROWS - at : s->n - r;
            if (b->n == RECUR_BLOCKS)
                launch_blocks(c, b);
            if (!r || !b->n)
                b->walk[b->n_walks++] = (block_walk){.first = b->n};
            b->walk[b->n_walks - 1].n++;
            b->at[b->n++] = (block_place){.seq = i,
                                          .row = s->row0 + r - at,
                                          .from = at,
                                          .to = at + n,
                                          .pos = pos + r - at,
                                          .begins = !r};
            r += n;
        }
    }
    launch_blocks(c, b);
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
    d.gate_a = cuda_vector(p, g->a);
    d.gate_dt = cuda_vector(p, g->dt);
    d.q = pass_temp(p, keys * sizeof *d.q);
    d.k = pass_temp(p, keys * sizeof *d.k);
    d.gates = pass_temp(p, 2 * rows * (size_t)rv->n_v * sizeof *d.gates);
    pass_release(p, mark);
    d.v = shape_of(rv);
    block_args blocks = {.n = 0};
    if (rv->block) { /* a pass goes in blocks or row by row: both share the scratch */
        size_t n = rows < RECUR_BLOCKS ? rows : RECUR_BLOCKS;
        blocks.keys = pass_temp(p, n * (size_t)d.v.n_k * RECUR_KEY_BYTES);
        blocks.pairs = pass_temp(p, n * (size_t)d.v.n_v * RECUR_PAIR_BYTES);
        pass_release(p, mark);
    }
    if (cuda_skip(p, o))
        return;
    d.st = dev->recur;
    if (in_blocks(p, rv)) {
        blocks.delta = d;
        delta_blocks(dev, p->st, &blocks);
    } else if (!p->st->all.seen && cu_chain_knows(&d.v))
        cu_delta_chain(dev->stream, d);
    else
        cu_delta(dev->stream, d);
    cuda_reads_bytes(dev, device_state_bytes(p->st, rv));
    cuda_done(p, "delta");
}

/* Of a prompt: norm and gate in one kernel, with the copy that the next product reads. */
static void unit_of_prompt(pass *p, unit_args d, mat *y, mat x, mat a, mat b, const delta_unit *u,
                           const recur_view *rv)
{
    mat m = pass_mat(p, x.rows, 1, x.cols), o = pass_mat(p, x.rows, rv->n_v, rv->dv);
    if (pass_failed(p))
        return;
    cuda_conv(p, m, x, u->taps, rv);
    cuda_delta(p, o, m, a, b, &u->gate, rv);
    d.q = cuda_new_copy(p, y, true, false); /* behind the rule's temporaries: they are released */
    d.x = cuda_mat(o);
    CUDA_OP(p, "delta_unit", *y, cu_gated(cuda_of(p)->stream, d));
}

bool cuda_delta_unit(pass *p, mat *y, mat x, mat z, mat a, mat b, const delta_unit *u,
                     const recur_view *rv)
{
    cuda_device *c = cuda_of(p);
    unit_args d = {.y = cuda_mat(*y), .x = cuda_mat(x), .z = cuda_mat(z), .a = cuda_mat(a)};
    d.v = shape_of(rv);
    if (p->dry || !cu_unit_knows(&d.v) || (!p->st->prompt && p->st->all.seen))
        return false;
    d.norm = cuda_vector(p, u->norm);
    d.eps = u->eps;
    if (p->st->prompt) {
        unit_of_prompt(p, d, y, x, a, b, u, rv);
        return true;
    }
    d.b = cuda_mat(b);
    d.taps = cuda_vector(p, u->taps);
    d.gate_a = cuda_vector(p, u->gate.a);
    d.gate_dt = cuda_vector(p, u->gate.dt);
    d.q = cuda_new_copy(p, y, false, false);
    d.st = c->recur;
    d.ticket = c->recur_ticket;
    CUDA_OP(p, "delta_unit", *y,
            (cu_unit(c->stream, d), cuda_reads_bytes(c, device_state_bytes(p->st, rv))));
    return true;
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
    a.seq.n = 0;
    for (int32_t i = 0; i < n; i++) {
        a.v = shape_of(&v[i]);
        a.base[a.n++] = (dev_recur_base){.state = base[i].state,
                                         .conv = base[i].conv,
                                         .journal = {base[i].journal[0], base[i].journal[1]}};
        if (i < n - 1 && a.n < RECUR_STORES && same_shape(&v[i], &v[i + 1]))
            continue;
        cu_recur_settle(c->stream, a);
        cuda_ok(c, NULL, cudaGetLastError(), "settling recurrent layers");
        a.n = 0;
    }
}
