/* laguna.c - the forward pass of Laguna, in the order of the paper.
 *
 * Easy to get wrong: the gate of attention is a softplus, made from the same normed rows as queries
 * and applied before the output projection. The router's bias chooses experts and is in no weight.
 * The factor of the experts' sum is not the shared expert's. Full layers and window layers differ
 * in heads, in rotated dims and in base; YaRN's factor is on the rotated dims alone.
 */
#include "model/laguna.h"
#include "model/bind.h"

#include <math.h>

/* The publisher states no sampling for the model; these are the values of a server that runs it. */
const model_arch laguna_arch = {.name = "laguna",
                                .sampling = {.temperature = 0.6f, .top_k = 50, .top_p = 0.95f},
                                .bind = laguna_bind,
                                .forward = laguna_forward,
                                .divide = laguna_divide};

static const weight *or_null(const weight *w)
{
    return w->n_in ? w : NULL;
}

/* x += gated attention over the layer's keys and those of the rows. In the last layer only the
 * wanted rows go on, unless a tap reads it. */
static void laguna_add_attention(pass *p, const laguna *g, const laguna_layer *L, const kv_view *kv,
                                 mat *x, bool cut)
{
    mat h = op_rms_norm(p, *x, &L->attn_norm, g->eps);
    mat k = mat_heads(op_matmul(p, h, &L->wk), g->head_dim);
    mat v = mat_heads(op_matmul(p, h, &L->wv), g->head_dim);
    k = op_rope(p, op_rms_norm_inplace(p, k, &L->k_norm, g->eps), L->rope);
    op_kv_store(p, kv, k, v);
    if (cut)
        op_keep_outputs(p, (mat *const[]){x, &h}, 2);
    if (!p->rows->n)
        return;
    mat q = mat_heads(op_matmul(p, h, &L->wq), g->head_dim);
    mat gate = mat_heads(op_matmul(p, h, &L->attn_gate), L->attn_gate.n_out / L->n_head);
    q = op_rms_norm_inplace(p, q, &L->q_norm, g->eps);
    if (!kv->window) /* a window has the last tokens alone */
        op_tail(p, q, kv, L->rope, 1.0f / sqrtf((float)g->head_dim));
    mat a = op_attend(p, op_rope(p, q, L->rope), kv, 1.0f / sqrtf((float)g->head_dim));
    a = op_act_mul(p, gate, a, ACT_SOFTPLUS);
    op_add(p, *x, op_matmul(p, mat_flat(a), &L->wo));
}

/* x += a gated unit: the dense layers', or the shared expert beside the routed ones. */
static void laguna_add_ffn(pass *p, const laguna *g, const laguna_layer *L, mat x)
{
    mat h = op_rms_norm(p, x, &L->ffn_norm, g->eps);
    if (!L->router.n_in) {
        op_add(p, x, op_matmul(p, op_glu(p, h, &L->gate, &L->up, ACT_SILU), &L->down));
        return;
    }
    const route_rule rule = {.sigmoid = true, .bias = &L->router_bias, .factor = g->expert_factor};
    const mixture m = {.router = &L->router,
                       .gate = &L->gate_exps,
                       .up = or_null(&L->up_exps),
                       .down = &L->down_exps,
                       .shared_gate = &L->gate,
                       .shared_up = &L->up,
                       .shared_down = &L->down,
                       .rule = &rule,
                       .k = g->n_used,
                       .act = ACT_SILU};
    op_add(p, x, op_mixture(p, h, &m));
}

mat laguna_forward(pass *p, const model *m, const kv_layout *kv)
{
    const laguna *g = m->impl;
    int32_t last_tap = pass_last_tap(p);
    if (!pass_shapes(p, "taps", last_tap < g->n_layer))
        return (mat){0};
    op_cross(p, g->embd.side, NULL, 0);
    mat x = op_embed(p, &g->embd, 1.0f);
    for (int32_t il = 0; il < g->n_layer && p->rows->n && !pass_failed(p); il++) {
        const laguna_layer *L = &g->layer[il];
        p->il = il;
        op_cross(p, L->side, (mat *const[]){&x}, 1); /* once, if the model is divided */
        size_t mark = pass_mark(p);
        mat before = x;
        laguna_add_attention(p, g, L, &kv->view[il], &x, il == g->n_layer - 1 && last_tap < il);
        if (p->rows->n)
            laguna_add_ffn(p, g, L, x);
        if (p->rows->n)
            pass_tap(p, il, x); /* a drafter may read this layer */
        /* If the wanted rows were moved, they lie above the mark and are kept to the end. */
        if (x.at == before.at && x.rows == before.rows)
            pass_release(p, mark);
    }
    return model_finish(p, m, x, &g->out_norm, g->eps);
}

/* The embeddings are on the side of the first layer, the head on the main device. */
status laguna_divide(model *m, err *e)
{
    laguna *g = m->impl;
    status st = divide_check_experts(m, g->n_expert > 0, e);
    for (int8_t side = 1; side < m->n_sides && !st; side++) {
        if (!model_layers_on(m, side))
            continue;
        st = divide_rope(m, g->rope_full, side, e);
        st = st ? st : divide_rope(m, g->rope_swa, side, e);
    }
    if (st)
        return st;
    const weight *const first[] = {&g->embd, NULL};
    divide_weights(m, g->layer, sizeof *g->layer, first);
    for (int32_t i = 0; i < g->n_layer; i++) {
        laguna_layer *L = &g->layer[i];
        L->side = m->kv[i].side = m->layer_side[i];
        L->rope = L->swa ? &g->rope_swa[L->side] : &g->rope_full[L->side];
    }
    return OK;
}
