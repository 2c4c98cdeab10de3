/* block.c - see block.h. The ops are in the order of the papers. */
#include "model/block.h"

static const weight *or_null(const weight *w)
{
    return w->n_in ? w : NULL;
}

/* x += attention over the layer's keys and those of the rows. In the last layer only the wanted
 * rows go on, unless a tap reads it. Gives the new x normed for the feed-forward part. */
static mat add_attention(pass *p, const block_model *g, const block *L, const kv_view *kv,
                         res_stream *s, mat h, bool cut)
{
    rope turn = *L->rope;
    const weight *const w[] = {&L->wk, &L->wv, &L->wq, &L->attn_gate};
    const int32_t n = L->attn_gate.n_in ? 4 : 3, d = g->head_dim, n_head = L->wq.n_out / d;
    const bool fewer = cut && p->st->out.n < p->rows->n;
    qkv of = {.q_norm = or_null(&L->q_norm),
              .k_norm = or_null(&L->k_norm),
              .eps = g->eps,
              .q_rope = &turn,
              .k_rope = L->rope,
              /* a window has the last tokens alone */
              .tail = !kv->window && kv->inside == KV_INSIDE_CAUSAL,
              .scale = g->scale};
    turn.grow = g->temperature;
    turn.period = g->period;
    mat y[4];
    op_matmuls(p, y, h, w, fewer ? 2 : n);
    of.k = mat_heads(y[0], d);
    of.v = mat_heads(y[1], d);
    if (fewer) { /* the others leave their keys */
        op_qkv(p, &of, kv);
        of.k = of.v = (mat){0};
        op_keep_outputs(p, (mat *const[]){&s->x, &h}, 2);
        if (!p->rows->n)
            return h;
        op_matmuls(p, y + 2, h, w + 2, n - 2);
    }
    of.q = mat_heads(y[2], d);
    mat q = op_qkv(p, &of, kv);
    if (cut)
        op_keep_outputs(p, (mat *const[]){&s->x}, 1);
    mat a = n == 3 ? mat_flat(op_attend(p, q, kv, g->scale))
                   : op_attend_gate(p, q, mat_heads(y[3], L->attn_gate.n_out / n_head),
                                    ACT_SOFTPLUS, kv, g->scale);
    const residual r = {
        .y = op_matmul(p, a, &L->wo), .norm = or_null(&L->attn_post_norm), .eps = g->eps};
    return op_residual_norm(p, s->x, &r, &L->ffn_norm);
}

/* x += a gated unit, or the chosen experts' units, weighted, and the shared expert's. */
static void add_ffn(pass *p, const block_model *g, const block *L, res_stream *s, mat h)
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
    mat y = L->router.n_in ? op_mixture(p, h, &m)
                           : op_matmul(p, op_glu(p, h, &L->gate, &L->up, g->act), &L->down);
    res_leave(p, s, (residual){.y = y, .norm = or_null(&L->ffn_post_norm)});
}

static const block *layer_of(const model *m, int32_t il)
{
    return (const block *)((const char *)m->layers + (size_t)il * m->layer_bytes);
}

static void layer_forward(pass *p, const model *m, int32_t il, const kv_layout *kv, res_stream *s,
                          mat h)
{
    const block_model *g = m->impl;
    h = add_attention(p, g, layer_of(m, il), &kv->view[il], s, h, model_cuts_rows(p, m, il));
    if (p->rows->n)
        add_ffn(p, g, layer_of(m, il), s, h);
}

static const weight *norm_of(const model *m, int32_t il)
{
    const block_model *g = m->impl;
    return il < m->n_layer ? &layer_of(m, il)->attn_norm : &g->out_norm;
}

mat block_forward(pass *p, const model *m, const kv_layout *kv)
{
    const block_model *g = m->impl;
    return model_run(p, m, kv, layer_forward, norm_of, g->eps);
}

void block_at_rank(model *rank)
{
    (void)rank;
}
