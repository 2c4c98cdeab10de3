/* block.c - see block.h. The ops are in the order of the papers. */
#include "model/block.h"

static const weight *or_null(const weight *w)
{
    return w->n_in ? w : NULL;
}

static mat normed(pass *p, mat x, const weight *norm, float eps)
{
    return norm->n_in ? op_rms_norm_inplace(p, x, norm, eps) : x;
}

static void add_normed(pass *p, mat x, mat y, const weight *norm, float eps)
{
    if (norm->n_in)
        op_add_rms_norm(p, x, y, norm, eps);
    else
        op_add(p, x, y);
}

/* x += attention over the layer's keys and those of the rows. In the last layer only the wanted
 * rows go on, unless a tap reads it. */
static void add_attention(pass *p, const block_model *g, const block *L, const kv_view *kv, mat *x,
                          bool cut)
{
    rope turn = *L->rope;
    mat h = op_rms_norm(p, *x, &L->attn_norm, g->eps);
    mat k = mat_heads(op_matmul(p, h, &L->wk), g->head_dim);
    mat v = mat_heads(op_matmul(p, h, &L->wv), g->head_dim);
    k = op_rope(p, normed(p, k, &L->k_norm, g->eps), L->rope);
    op_kv_store(p, kv, k, v);
    if (cut)
        op_keep_outputs(p, (mat *const[]){x, &h}, 2);
    if (!p->rows->n)
        return;
    mat q = mat_heads(op_matmul(p, h, &L->wq), g->head_dim), gate = {0};
    if (L->attn_gate.n_in)
        gate = mat_heads(op_matmul(p, h, &L->attn_gate), L->attn_gate.n_out / q.heads);
    q = normed(p, q, &L->q_norm, g->eps);
    if (!kv->window && kv->inside == KV_INSIDE_CAUSAL) /* a window has the last tokens alone */
        op_tail(p, q, kv, L->rope, g->scale);
    turn.grow = g->temperature;
    turn.period = g->period;
    mat a = op_attend(p, op_rope(p, q, &turn), kv, g->scale);
    if (L->attn_gate.n_in)
        a = op_act_mul(p, gate, a, ACT_SOFTPLUS);
    add_normed(p, *x, op_matmul(p, mat_flat(a), &L->wo), &L->attn_post_norm, g->eps);
}

/* x += a gated unit, or the chosen experts' units, weighted, and the shared expert's. */
static void add_ffn(pass *p, const block_model *g, const block *L, mat x)
{
    const route_rule rule = {g->sigmoid, or_null(&L->router_bias), NULL, g->expert_factor};
    const mixture m = {.router = &L->router,
                       .gate = &L->gate,
                       .up = or_null(&L->up),
                       .down = &L->down,
                       .shared_gate = or_null(&L->shared_gate),
                       .shared_up = or_null(&L->shared_up),
                       .shared_down = or_null(&L->shared_down),
                       .rule = g->sigmoid ? &rule : NULL,
                       .k = g->n_used,
                       .act = g->act};
    mat h = op_rms_norm(p, x, &L->ffn_norm, g->eps);
    mat y = L->router.n_in ? op_mixture(p, h, &m)
                           : op_matmul(p, op_glu(p, h, &L->gate, &L->up, g->act), &L->down);
    add_normed(p, x, y, &L->ffn_post_norm, g->eps);
}

static void layer_forward(pass *p, const model *m, int32_t il, const kv_layout *kv, mat *x)
{
    const block_model *g = m->impl;
    const block *L = (const block *)((const char *)m->layers + (size_t)il * m->layer_bytes);
    add_attention(p, g, L, &kv->view[il], x, model_cuts_rows(p, m, il));
    if (p->rows->n)
        add_ffn(p, g, L, *x);
}

mat block_forward(pass *p, const model *m, const kv_layout *kv)
{
    const block_model *g = m->impl;
    return model_run(p, m, kv, layer_forward, &g->out_norm, g->eps);
}
