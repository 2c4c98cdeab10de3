/* qwen35_nextn.c - the NextN (MTP) layer of Qwen3.5, 3.6 and 3.8: qwen35.h has its formula.
 *
 * Easy to get wrong: the embedding is the first half of the joined row. Hidden states have passed
 * the last norm of who made them, before the layer norms them again. For chained drafts that is the
 * layer's own norm, not the model's. The entry's token is the one after the hidden state's.
 */
#include "model/qwen35.h"

#define NEXTN .bind = qwen35_nextn_bind
const model_arch qwen35_nextn_arch = {.name = "qwen35", NEXTN};
const model_arch qwen35moe_nextn_arch = {.name = "qwen35moe", NEXTN};

status qwen35_nextn_attach(model *m, const model *target, err *e)
{
    qwen35_nextn *x = m->impl;
    if (target->arch->nextn != m->arch)
        return err_set(e, E_ARG,
                       "%s has a NextN layer for a model of architecture %s, and %s is %s",
                       m->file.path, m->arch->name, target->name, target->arch->name);
    if (m->n_embd != target->n_embd || m->n_layer != target->n_layer)
        return err_set(e, E_ARG,
                       "%s has a NextN layer for a model of %d layers of width %d, and %s has %d "
                       "layers of width %d",
                       m->file.path, m->n_layer, m->n_embd, target->name, target->n_layer,
                       target->n_embd);
    x->target = target;
    m->n_vocab = target->n_vocab;
    x->g.out_norm = ((const qwen35 *)target->impl)->out_norm;
    return model_remember(m, &x->g.out_norm, e);
}

static const weight *layer_norm(const qwen35_nextn *x)
{
    return x->head_norm.n_in ? &x->head_norm : &x->g.out_norm;
}

/* The rows that enter the layer, [rows, n_embd]. */
static mat joined(pass *p, const qwen35_nextn *x, mat hidden, const weight *made_by)
{
    const model *t = x->target;
    int32_t d = t->n_embd;
    op_cross(p, p->target + t->embd->side, NULL, 0);
    mat e = op_embed(p, t->embd, t->embd_scale);
    op_put_soft(p, e);
    op_cross(p, PASS_MAIN, (mat *const[]){&e}, 1);
    mat h = op_wanted_rows(p, hidden);
    if (!pass_shapes(p, "hidden rows", h.rows == e.rows && h.cols == d && h.heads == 1))
        return e;
    h = op_rms_norm_inplace(p, h, made_by, x->g.eps);
    mat both = pass_mat(p, e.rows, 1, 2 * d);
    op_copy(p, mat_columns(both, 0, d), op_rms_norm(p, e, &x->embd_norm, x->g.eps));
    op_copy(p, mat_columns(both, d, d), op_rms_norm(p, h, &x->hidden_norm, x->g.eps));
    return op_matmul(p, both, &x->join);
}

void qwen35_nextn_absorb(pass *p, const model *m, const kv_layout *kv, mat hidden)
{
    const qwen35_nextn *x = m->impl;
    mat y = joined(p, x, hidden, &x->g.out_norm);
    mat h = op_rms_norm(p, y, &x->g.layer->norm, x->g.eps);
    qwen35_keys(p, &x->g, x->g.layer, &kv->view[0], h);
}

mat qwen35_nextn_draft(pass *p, const model *m, const kv_layout *kv, mat hidden, nextn_norm made_by,
                       mat next, int32_t k)
{
    const qwen35_nextn *x = m->impl;
    const qwen35_layer *L = x->g.layer;
    const model *t = x->target;
    res_stream s = {.eps = x->g.eps, .next = layer_norm(x)};
    s.x = joined(p, x, hidden, made_by == NEXTN_BY_MODEL ? &x->g.out_norm : layer_norm(x));
    mat h = res_enter(p, &s, &L->norm);
    h = qwen35_add_attention(p, &x->g, L, &kv->view[0], &s, h, false);
    qwen35_add_ffn(p, &x->g, L, &s, h);
    next.rows = s.x.rows;
    op_copy(p, next, s.x);
    mat z = res_enter(p, &s, layer_norm(x));
    op_cross(p, p->target, (mat *const[]){&z}, 1);
    mat best = mat_flat(op_best(p, model_head(p, t, &z, 1), k));
    op_cross(p, PASS_MAIN, (mat *const[]){&best}, 1);
    return best;
}
