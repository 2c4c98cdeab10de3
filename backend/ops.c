/* ops.c - see ops.h: shape checks, results, tallies, and the expansions of fused ops. Attention,
 * mixtures of experts and towers have files of their own, ops_*.c.
 *
 * The one idea: a device gets only checked arguments. So kernels check nothing, and a dry pass
 * finds a mistake in a model file before any weight is loaded.
 */
#include "backend/key_walk.h"
#include "backend/lora.h"
#include "backend/ops_int.h"
#include "backend/ranks.h"

#include <stdio.h>
#include <string.h>

bool device_knows_act(const device *d, act_kind act)
{
    return (uint32_t)act < 32 && (d->acts >> act & 1);
}

bool ops_knows_act(pass *p, const char *op, act_kind act)
{
    if (!pass_failed(p) && !device_knows_act(p->dev, act))
        err_set(&p->e, E_UNSUPPORTED, "%s: activation %d is not one that %s computes (layer %d)",
                op, (int)act, p->dev->name, p->il);
    return !pass_failed(p);
}

mat op_embed(pass *p, const weight *w, float scale)
{
    if (!pass_shapes(p, "embed", w && w->n_in > 0 && w->n_mat == 1))
        return (mat){0};
    mat y = pass_mat(p, p->rows->n, 1, w->n_in);
    const bool here = !w->first_rank || !p->rank;
    if (here && !pass_failed(p))
        p->dev->op->embed(p, y, w, scale);
    if (here && !pass_failed(p) && lora_adapts(p, w))
        lora_add_embed(p, y, w, scale);
    if (w->first_rank)
        ranks_spread(p, y);
    return y;
}

void op_put_soft(pass *p, mat x)
{
    const step *st = p->st;
    bool fits = !st->n_soft || (x.rows == st->all.n && x.stride == mat_width(x));
    if (!pass_shapes(p, "put_soft", fits && !mat_copied(x)) || p->dry)
        return;
    for (int32_t i = 0; i < st->n_soft; i++) {
        const soft_run *s = &st->soft[i];
        p->dev->upload(p->dev, mat_row(x, s->row0), s->at,
                       (size_t)s->n * (size_t)x.stride * sizeof *x.at);
    }
}

void op_add_soft(pass *p, mat x, int32_t il)
{
    const step *st = p->st;
    int32_t most = p->dry ? x.rows : 0;
    if (!pass_shapes(p, "add_soft", !st->n_soft || x.rows == st->all.n))
        return;
    for (int32_t i = 0; i < st->n_soft; i++)
        most = st->soft[i].n > most ? st->soft[i].n : most;
    size_t mark = pass_mark(p);
    mat y = pass_mat(p, most, x.heads, x.cols);
    for (int32_t i = 0; i < st->n_soft && !p->dry && !pass_failed(p); i++) {
        const soft_run *s = &st->soft[i];
        y.rows = s->n;
        p->dev->upload(p->dev, y.at, s->at + (1 + il) * s->part,
                       (size_t)s->n * (size_t)y.stride * sizeof *y.at);
        op_add(p, mat_rows(x, s->row0, s->n), y);
    }
    pass_release(p, mark);
}

mat op_embed_at(pass *p, mat ids, const weight *w, float scale)
{
    if (!pass_shapes(p, "embed_at", w && w->n_in > 0 && w->n_mat == 1 && mat_width(ids) > 0))
        return (mat){0};
    mat y = pass_mat(p, ids.rows, 1, w->n_in);
    if (!pass_failed(p))
        p->dev->op->embed_at(p, y, ids, w, scale);
    return y;
}

mat op_rms_norm(pass *p, mat x, const weight *w, float eps)
{
    if (!pass_shapes(p, "rms_norm", is_vector(w, x.cols)))
        return (mat){0};
    mat y = pass_mat(p, x.rows, x.heads, x.cols);
    if (!pass_failed(p))
        p->dev->op->rms_norm(p, &y, x, w, eps);
    return y;
}

mat op_rms_norm_inplace(pass *p, mat x, const weight *w, float eps)
{
    if (pass_shapes(p, "rms_norm", is_vector(w, x.cols) && !mat_copied(x)))
        p->dev->op->rms_norm(p, &x, x, w, eps);
    return x;
}

mat op_matmul(pass *p, mat x, const weight *w)
{
    mat y;
    op_matmuls(p, &y, x, &w, 1);
    return y;
}

void op_matmuls(pass *p, mat *y, mat x, const weight *const *w, int32_t n)
{
    bool fits = n > 0 && n <= MATMULS_MAX && x.heads == 1, together = p->dev->op->matmuls && n > 1;
    if (n == 1 && w[0] && w[0]->segment) {
        *y = ranks_matmul(p, x, w[0]);
        return;
    }
    for (int32_t i = 0; i < n && fits; i++) {
        fits = w[i] && x.cols == w[i]->n_in && w[i]->n_mat == 1 && !w[i]->segment;
        together = together && fits && !lora_adapts(p, w[i]);
    }
    for (int32_t i = 0; i < n; i++)
        y[i] = (mat){0};
    if (!pass_shapes(p, "matmul", fits))
        return;
    for (int32_t i = 0; i < n; i++) {
        y[i] = pass_mat(p, x.rows, 1, w[i]->n_out);
        stats_product(p, x.rows, w[i], 1);
        if (!together && !pass_failed(p))
            p->dev->op->matmul(p, y[i], &x, w[i]);
        if (!together && !pass_failed(p) && lora_adapts(p, w[i]))
            lora_add(p, y[i], x, w[i]);
    }
    if (together && !pass_failed(p))
        p->dev->op->matmuls(p, y, &x, w, n);
}

bool op_matmul_segments(pass *p, const mat *y, mat x, const weight *w, int32_t n, int32_t n_tiles)
{
    bool can = p->dev->op->matmul_segments && n <= MATMULS_MAX && x.heads == 1;
    int32_t cols = 0;
    for (int32_t i = 0; i < n && can; i++) {
        cols += w[i].n_in;
        can = w[i].n_mat == 1 && !lora_adapts(p, &w[i]);
    }
    if (!can || cols != x.cols)
        return false;
    if (!pass_failed(p) && !p->dev->op->matmul_segments(p, y, &x, w, n, n_tiles))
        return false;
    for (int32_t i = 0; i < n; i++)
        stats_product(p, x.rows, &w[i], 1);
    return true;
}

mat op_matmul_gate(pass *p, mat x, const weight *w, mat b, act_kind act)
{
    if (!p->dev->op->matmul_gate || x.rows != 1 || lora_adapts(p, w))
        return op_act_mul(p, op_matmul(p, x, w), b, act);
    if (!pass_shapes(p, "matmul_gate",
                     x.heads == 1 && x.cols == w->n_in && w->n_mat == 1 && b.rows == 1 &&
                         b.heads == 1 && b.cols == w->n_out && act != ACT_SWIGLU_CUT) ||
        !ops_knows_act(p, "matmul_gate", act))
        return (mat){0};
    mat g = pass_mat(p, 1, 1, w->n_out), y = pass_mat(p, 1, 1, w->n_out);
    stats_product(p, 1, w, 1);
    if (!pass_failed(p))
        p->dev->op->matmul_gate(p, y, g, x, w, b, act);
    return y;
}

bool ops_glu_fits(pass *p, mat x, const weight *gate, const weight *up, act_kind act)
{
    bool fits = gate && x.heads == 1 && x.cols == gate->n_in && gate->n_mat == 1 &&
                (up ? up->n_in == gate->n_in && up->n_out == gate->n_out && up->n_mat == 1
                    : gate->n_out % 2 == 0);
    return pass_shapes(p, "glu", fits) && ops_knows_act(p, "glu", act);
}

mat ops_glu_room(pass *p, mat x, const weight *gate, const weight *up)
{
    mat y = pass_mat(p, x.rows, 1, up ? gate->n_out : gate->n_out / 2);
    stats_product(p, x.rows, gate, 1);
    if (up)
        stats_product(p, x.rows, up, 1);
    return y;
}

mat op_glu(pass *p, mat x, const weight *gate, const weight *up, act_kind act)
{
    if (!ops_glu_fits(p, x, gate, up, act))
        return (mat){0};
    mat y = ops_glu_room(p, x, gate, up);
    const int32_t n_ff = y.cols;
    if (pass_failed(p))
        return y;
    if (lora_adapts_either(p, gate, up)) {
        lora_glu(p, &y, x, gate, up, act);
        return y;
    }
    if (p->dev->op->glu) {
        p->dev->op->glu(p, &y, x, gate, up, act);
        return y;
    }
    size_t mark = pass_mark(p);
    mat a = pass_mat(p, x.rows, 1, gate->n_out);
    mat b = up ? pass_mat(p, x.rows, 1, up->n_out) : a;
    if (!pass_failed(p))
        p->dev->op->matmul(p, a, &x, gate);
    if (!pass_failed(p) && up)
        p->dev->op->matmul(p, b, &x, up);
    if (!pass_failed(p))
        p->dev->op->act_mul(p, &y, mat_columns(a, 0, n_ff), up ? b : mat_columns(a, n_ff, n_ff),
                            act);
    pass_release(p, mark);
    return mat_bare(y); /* its copy was behind the mark */
}

mat op_act_mul(pass *p, mat a, mat b, act_kind act)
{
    bool per_head = a.rows == b.rows && a.heads == b.heads && a.cols == 1;
    if (!pass_shapes(p, "act_mul", (per_head && act != ACT_SWIGLU_CUT) || same_shape(a, b)) ||
        !ops_knows_act(p, "act_mul", act))
        return (mat){0};
    mat y = pass_mat(p, b.rows, b.heads, b.cols);
    if (!pass_failed(p))
        p->dev->op->act_mul(p, &y, a, b, act);
    return y;
}

mat op_add(pass *p, mat a, mat b)
{
    if (pass_shapes(p, "add", same_shape(a, b) && !mat_copied(a)))
        p->dev->op->add(p, a, a, b);
    return a;
}

static bool fits_sum(const ordered_sum *s, mat m)
{
    return same_shape(m, s->y[0]) && m.heads == 1 && m.stride == m.cols && !mat_copied(m);
}

void op_ordered_sum(pass *p, const ordered_sum *s)
{
    const device_ops *op = p->dev->op;
    const int32_t n = s->n_v;
    const mat y = s->y[0], *v = s->v;
    bool fits = s->n_y > 0 && s->n_y <= (op->ordered_sum ? RANKS_MAX : 1) && n > 1 &&
                n <= RANKS_MAX;
    for (int32_t i = 0; i < n && fits; i++)
        fits = fits_sum(s, v[i]);
    for (int32_t i = 0; i < s->n_y && fits; i++)
        fits = fits_sum(s, s->y[i]);
    if (!pass_shapes(p, "ordered sum", fits) || y.rows == 0)
        return;
    if (op->ordered_sum) {
        op->ordered_sum(p, s);
        return;
    }
    if (n > 2) /* y may be one of v: it is written last */
        op->add(p, v[n - 1], v[n - 2], v[n - 1]);
    if (n > 3)
        op->add(p, v[0], v[0], v[1]);
    op->add(p, y, v[0], v[n - 1]);
}

mat op_scale(pass *p, mat x, float c, const weight *w)
{
    if (pass_shapes(p, "scale", is_vector(w, 1) && !mat_copied(x)))
        p->dev->op->scale(p, x, c, w);
    return x;
}

mat op_norm_room(pass *p, mat x)
{
    mat h = pass_mat(p, x.rows, x.heads, x.cols);
    if (p->dev->op->copy_room && !pass_failed(p))
        p->dev->op->copy_room(p, &h);
    return h;
}

/* The expansion of op_residual. */
static void residual_apart(pass *p, mat x, const residual *r, mat *h, const norm_want *want,
                           int32_t n)
{
    const device_ops *op = p->dev->op;
    if (r->b.y.rows) {
        mat y = op_rms_norm_inplace(p, r->y, r->y_norm, r->eps);
        op_add(p, mat_bare(y), op_rms_norm_inplace(p, r->b.y, r->b.w, r->eps));
    }
    if (r->norm && op->add_rms_norm && !pass_failed(p))
        op->add_rms_norm(p, x, r->y, r->norm, r->eps);
    else if (r->y.rows)
        op_add(p, x, r->norm ? op_rms_norm(p, r->y, r->norm, r->eps) : r->y);
    if (r->scale)
        op_scale(p, x, 1.0f, r->scale);
    for (int32_t i = 0; i < n && !pass_failed(p); i++) {
        op->rms_norm(p, &h[i], x, want[i].w, r->eps);
        if (want[i].c != 1.0f)
            h[i] = op_scale(p, mat_bare(h[i]), want[i].c, NULL);
    }
}

static bool residual_fits(mat x, const residual *r)
{
    const branch *b = &r->b;
    if (mat_copied(x) || (b->y.rows && (mat_copied(r->y) || mat_copied(b->y))))
        return false;
    if (!r->y.rows)
        return !r->norm && !r->scale && !b->y.rows;
    return same_shape(x, r->y) && is_vector(r->norm, x.cols) && is_vector(r->scale, 1) &&
           (!b->y.rows || (same_shape(x, b->y) && r->norm && is_vector(r->y_norm, x.cols) &&
                           is_vector(b->w, x.cols)));
}

mat op_residual(pass *p, mat x, const residual *r, mat *h, const norm_want *want, int32_t n)
{
    bool fits = residual_fits(x, r) && n >= 0 && n <= NORMS_MAX && x.heads == 1;
    for (int32_t i = 0; i < n; i++)
        fits = fits && is_vector(want[i].w, x.cols) &&
               (!h[i].rows || (h[i].rows >= x.rows && h[i].cols == x.cols));
    if (!pass_shapes(p, "residual", fits))
        return x;
    for (int32_t i = 0; i < n; i++) {
        if (!h[i].rows)
            h[i] = pass_mat(p, x.rows, x.heads, x.cols);
        h[i].rows = x.rows;
    }
    if (p->dev->op->residual && !pass_failed(p))
        p->dev->op->residual(p, &x, r, h, want, n);
    else
        residual_apart(p, x, r, h, want, n);
    return x;
}

mat op_residual_norm(pass *p, mat x, const residual *r, const weight *w)
{
    mat h = {.rows = 0};
    op_residual(p, x, r, &h, &(norm_want){w, 1.0f}, 1);
    return h;
}

mat op_ple(pass *p, mat x, const weight *gate, mat b, const weight *proj)
{
    if (p->dev->op->ple && p->here == gate->side && p->here == proj->side && !gate->segment &&
        !proj->segment && !lora_adapts_either(p, gate, proj) && x.cols == gate->n_in &&
        b.rows == x.rows && b.cols == gate->n_out && proj->n_in == gate->n_out) {
        size_t mark = pass_mark(p);
        mat y = pass_mat(p, x.rows, 1, proj->n_out);
        if (!pass_failed(p) && p->dev->op->ple(p, y, x, gate, b, proj)) {
            stats_product(p, x.rows, gate, 1);
            stats_product(p, x.rows, proj, 1);
            return y;
        }
        if (pass_failed(p))
            return y;
        pass_release(p, mark);
    }
    return op_matmul(p, op_matmul_gate(p, x, gate, b, ACT_GELU_TANH), proj);
}

/* ---- Recurrent layers ---------------------------------------------------------------------- */

/* Are the rows of a sequence in order, and do they and the pending ones fit into its journal?
 * Certain rows are a chain, because they pass through the state one after the other. */
static bool fits_journal(const step *st, const recur_view *v, const recur_seq *s)
{
    bool fits = s->row0 >= 0 && s->n >= 0 && s->n <= st->all.n - s->row0 &&
                (s->final || s->n <= v->journal_rows) && (s->bank == 0 || s->bank == 1) &&
                s->n_pending >= 0 && s->n_pending <= STEP_TREE_ROWS_MAX;
    for (int32_t i = 0; fits && i < s->n_pending; i++)
        fits = s->pending[i] >= 0 && s->pending[i] < v->journal_rows;
    for (int32_t i = 0; fits && i < s->n; i++) {
        int32_t from = st->parent[s->row0 + i], last = i ? s->row0 + i - 1 : -1;
        fits = s->final ? from == last : from == -1 || (from >= s->row0 && from < s->row0 + i);
    }
    return fits;
}

static bool fits_recur(const pass *p, const recur_view *v, mat x, int32_t cols)
{
    const step *st = p->st;
    if (!v || v->n_k < 1 || v->n_v < 1 || v->dk < 1 || v->dv < 1 || v->n_taps < 2 ||
        v->n_taps > RECUR_TAPS_MAX || v->journal_rows > STEP_TREE_ROWS_MAX ||
        mat_width(x) != cols || x.rows != st->all.n || p->rows != &st->all)
        return false;
    if (p->dry)
        return true;
    bool fits = v->id >= 0 && v->id < st->n_recur;
    for (int32_t i = 0; fits && i < st->n_seqs; i++)
        fits = fits_journal(st, v, &st->recur_seq[i]);
    return fits;
}

static bool has_recur(pass *p)
{
    if (!pass_failed(p) && (!p->dev->op->conv || !p->dev->op->delta))
        err_set(&p->e, E_UNSUPPORTED, "layer %d is recurrent, which %s does not compute", p->il,
                p->dev->name);
    return !pass_failed(p);
}

mat op_conv(pass *p, mat x, const weight *w, const recur_view *rv)
{
    if (!has_recur(p) ||
        !pass_shapes(p, "conv",
                     rv && w && fits_recur(p, rv, x, recur_channels(rv)) && w->type == NUM_F32 &&
                         w->n_in == rv->n_taps && w->n_out == recur_channels(rv) && w->n_mat == 1))
        return (mat){0};
    mat y = pass_mat(p, x.rows, 1, mat_width(x));
    p->n_flops += 2 * (uint64_t)x.rows * (uint64_t)mat_width(x) * (uint64_t)rv->n_taps;
    if (!pass_failed(p))
        p->dev->op->conv(p, y, mat_flat(x), w, rv);
    return y;
}

mat op_delta(pass *p, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    if (!has_recur(p) ||
        !pass_shapes(p, "delta",
                     rv && g && g->a && g->dt && fits_recur(p, rv, c, recur_channels(rv)) &&
                         is_vector(g->a, rv->n_v) && is_vector(g->dt, rv->n_v) &&
                         mat_width(a) == rv->n_v && mat_width(b) == rv->n_v && a.rows == c.rows &&
                         b.rows == c.rows))
        return (mat){0};
    mat o = pass_mat(p, c.rows, rv->n_v, rv->dv);
    /* Per element of the state: a factor, two products of S with a vector, an outer product. */
    p->n_flops += 7 * (uint64_t)c.rows * (uint64_t)rv->n_v * (uint64_t)rv->dv * (uint64_t)rv->dk;
    if (!pass_failed(p))
        p->dev->op->delta(p, o, mat_flat(c), mat_flat(a), mat_flat(b), g, rv);
    return o;
}

mat op_delta_unit(pass *p, mat x, mat z, mat a, mat b, const delta_unit *u, const recur_view *rv)
{
    int32_t width = rv ? rv->n_v * rv->dv : 0;
    if (!has_recur(p) ||
        !pass_shapes(p, "delta_unit",
                     rv && u && u->taps && u->gate.a && u->gate.dt && is_vector(u->norm, rv->dv) &&
                         fits_recur(p, rv, x, recur_channels(rv)) && mat_width(z) == width &&
                         mat_width(a) == rv->n_v && mat_width(b) == rv->n_v && z.rows == x.rows &&
                         a.rows == x.rows && b.rows == x.rows))
        return (mat){0};
    mat y = pass_mat(p, x.rows, 1, width);
    if (pass_failed(p) ||
        (p->dev->op->delta_unit &&
         p->dev->op->delta_unit(p, &y, mat_flat(x), mat_flat(z), mat_flat(a), mat_flat(b), u, rv)))
        return y;
    mat o = op_delta(p, op_conv(p, x, u->taps, rv), a, b, &u->gate, rv);
    o = op_rms_norm_inplace(p, o, u->norm, u->eps);
    if (!pass_failed(p)) /* y's copy stays in scratch, so nothing is released */
        p->dev->op->act_mul(p, &y, mat_flat(z), mat_flat(o), ACT_SILU);
    return y;
}

void op_keep_outputs(pass *p, mat *const *x, int32_t n)
{
    const rowset *out = &p->st->out;
    if (pass_failed(p) || p->rows == out)
        return;
    int32_t n_all = p->rows->n;
    p->rows = out;
    if (out->n == n_all)
        return;
    for (int32_t i = 0; i < n; i++) {
        if (!x[i] || !x[i]->rows)
            continue;
        if (!pass_shapes(p, "keep_outputs", x[i]->rows == n_all))
            return;
        mat y = pass_mat(p, out->n, x[i]->heads, x[i]->cols);
        if (pass_failed(p))
            return;
        if (out->n)
            p->dev->op->gather(p, y, *x[i], p->st->out_row);
        *x[i] = y;
    }
}

mat op_wanted_rows(pass *p, mat x)
{
    if (!pass_shapes(p, "wanted_rows", p->st->out.n == p->st->all.n))
        return (mat){0};
    mat y = pass_mat(p, p->st->out.n, x.heads, x.cols);
    if (!pass_failed(p))
        p->dev->op->gather(p, y, x, p->st->out_row);
    return y;
}

mat op_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids)
{
    if (pass_shapes(p, "softcap",
                    x.heads == 1 && n_ids >= 0 && (n_ids == 0 || ids) && !mat_copied(x)))
        p->dev->op->softcap(p, x, cap, ids, n_ids);
    return x;
}

void op_copy(pass *p, mat to, mat x)
{
    to = mat_flat(to);
    x = mat_flat(x);
    if (pass_shapes(p, "copy", same_shape(to, x) && !mat_copied(to)))
        p->dev->op->copy(p, to, x);
}

mat op_best(pass *p, mat logits, int32_t k)
{
    if (!pass_shapes(p, "best",
                     logits.heads == 1 && k > 0 && k <= BEST_MAX && k <= logits.cols &&
                         logits.cols <= BEST_COLS_MAX))
        return (mat){0};
    mat y = pass_mat(p, logits.rows, 2, k);
    if (!pass_failed(p))
        p->dev->op->best(p, y, logits);
    return y;
}

/* ---- Between devices ----------------------------------------------------------------------- */

/* A copy, on the side that the pass is on, of x on side `from`. */
static mat carried(pass *p, int32_t from, mat x)
{
    if (!pass_shapes(p, "cross", x.stride == mat_width(x)))
        return (mat){0};
    mat y = pass_mat(p, x.rows, x.heads, x.cols);
    pass_carry(p, from, y.at, x.at, (size_t)x.rows * (size_t)x.stride * sizeof *x.at,
               SEND_BEHIND_BOTH);
    return y;
}

/* The same into one of two buffers, by turns: the sender fills one while the device is at the
 * chunk in the other. */
static mat carried_by_turns(pass *p, int32_t from, mat x, bool early)
{
    if (!pass_shapes(p, "cross", x.stride == mat_width(x)))
        return (mat){0};
    mat y[2];
    for (int i = 0; i < 2; i++)
        y[i] = pass_mat(p, x.rows, x.heads, x.cols);
    mat to = y[p->side[p->here].turn];
    pass_carry(p, from, to.at, x.at, (size_t)x.rows * (size_t)x.stride * sizeof *x.at,
               early ? SEND_EARLY : SEND_BEHIND_BOTH);
    return to;
}

void op_cross(pass *p, int32_t side, mat *const *x, int32_t n)
{
    int32_t from = p->here;
    if (side == from || p->n_ranks) /* a rank has all layers */
        return;
    pass_turn(p, side);
    /* The first that a side gets. Only two devices of a kind work at the same time. */
    bool first = !p->alone && !p->side[p->here].at && p->dev->kind == p->side[from].dev->kind;
    for (int32_t i = 0; i < n && !pass_failed(p); i++)
        if (x[i]->rows)
            *x[i] = first ? carried_by_turns(p, from, *x[i], p->side[p->here].early)
                          : carried(p, from, *x[i]);
    pass_next_leg(p, from);
}

visit op_visit(pass *p, int32_t side, mat *x, routing *r)
{
    visit v = {.from = p->here, .to = side};
    if (v.from == v.to)
        return v;
    pass_turn(p, side);
    v.mark = pass_mark(p);
    if (x)
        *x = carried(p, v.from, *x);
    if (!r)
        return v;
    const routing there = *r;
    *r = (routing){.rows = there.rows, .k = there.k};
    size_t n = (size_t)there.rows * (size_t)there.k;
    r->id = pass_temp(p, n * sizeof *r->id);
    r->weight = pass_temp(p, n * sizeof *r->weight);
    pass_carry(p, v.from, r->id, there.id, n * sizeof *r->id, SEND_BEHIND_BOTH);
    pass_carry(p, v.from, r->weight, there.weight, n * sizeof *r->weight, SEND_BEHIND_BOTH);
    return v;
}

mat op_return(pass *p, visit v, mat y)
{
    if (v.from == v.to)
        return y;
    pass_turn(p, v.from);
    y = carried(p, v.to, y);
    pass_turn(p, v.to);
    if (!pass_failed(p)) /* a failed pass may not have turned */
        pass_release(p, v.mark);
    pass_turn(p, v.from);
    return y;
}

/* ---- Devices ------------------------------------------------------------------------------- */

kernel_speed device_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap)
{
    if (d->attend_kernel)
        return d->attend_kernel(d, kv, text, cap);
    bool plain = (kv->k_type == NUM_F32 || kv->k_type == NUM_F16 || kv->k_type == NUM_BF16) &&
                 (kv->v_type == NUM_F32 || kv->v_type == NUM_F16 || kv->v_type == NUM_BF16);
    snprintf(text, cap, "as stored");
    return plain && !kv->k_rot && !kv->v_rot && !kv->single ? KERNEL_FULL : KERNEL_NONE;
}

kernel_speed device_product_kernel(const device *d, const weight *w, char *text, size_t cap)
{
    if (d->product_kernel)
        return d->product_kernel(d, w, text, cap);
    snprintf(text, cap, "%s", num_name(w->type));
    return KERNEL_FULL;
}

void device_move(device *d, const block_move *m)
{
    if (d->move) {
        d->move(d, m);
        return;
    }
    for (int32_t i = 0; i < m->n; i++) {
        char *dev = m->dev + (size_t)i * m->dev_stride,
             *host = m->host + (size_t)i * m->host_stride;
        if (m->load)
            d->upload(d, dev, host, m->n_bytes);
        else
            d->download(d, host, dev, m->n_bytes);
    }
}

void device_moved(device *d)
{
    if (d->moved)
        d->moved(d);
}

void device_keep_rows(device *d, const row_store *store, int32_t n_stores, int64_t first,
                      const int32_t *from, int32_t n)
{
    if (d->keep_rows) {
        d->keep_rows(d, store, n_stores, first, from, n);
        return;
    }
    for (const row_store *s = store; s < store + n_stores; s++)
        for (int32_t h = 0; h < s->n_heads; h++) {
            char *head = s->at + (size_t)h * (size_t)s->n_slots * s->row_bytes;
            for (int32_t i = 0; i < n; i++)
                if (from[i] != i)
                    memcpy(head + store_place(s->page, s->n_slots, first + i) * s->row_bytes,
                           head + store_place(s->page, s->n_slots, first + from[i]) * s->row_bytes,
                           s->row_bytes);
        }
}

void device_close(device *d)
{
    if (d)
        d->close(d);
}
