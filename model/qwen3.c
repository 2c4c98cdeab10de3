/* qwen3.c - the forward pass of Qwen3 dense, in the order of the paper.
 *
 * Easy to get wrong: heads of queries and keys are normed before the rotation, all by one vector of
 * head_dim. Values are neither normed nor rotated. The size of a head is the file's, not the width
 * over the number of heads.
 */
#include "model/qwen3.h"
#include "model/bind.h"

#include <math.h>

const model_arch qwen3_arch = {.name = "qwen3",
                               .sampling = {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f},
                               .bind = qwen3_bind,
                               .forward = qwen3_forward,
                               .divide = qwen3_divide};

/* x += attention over the layer's keys and those of the rows. In the last layer only the wanted
 * rows go on, unless a tap reads it. */
static void qwen3_add_attention(pass *p, const qwen3 *g, const qwen3_layer *L, const kv_view *kv,
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
    q = op_rms_norm_inplace(p, q, &L->q_norm, g->eps);
    op_tail(p, q, kv, L->rope, 1.0f / sqrtf((float)g->head_dim)); /* a scorer may ask */
    mat a = op_attend(p, op_rope(p, q, L->rope), kv, 1.0f / sqrtf((float)g->head_dim));
    op_add(p, *x, op_matmul(p, mat_flat(a), &L->wo));
}

static void qwen3_add_dense(pass *p, const qwen3 *g, const qwen3_layer *L, mat x)
{
    mat h = op_rms_norm(p, x, &L->ffn_norm, g->eps);
    op_add(p, x, op_matmul(p, op_glu(p, h, &L->gate, &L->up, ACT_SILU), &L->down));
}

mat qwen3_forward(pass *p, const model *m, const kv_layout *kv)
{
    const qwen3 *g = m->impl;
    int32_t last_tap = pass_last_tap(p);
    if (!pass_shapes(p, "taps", last_tap < g->n_layer))
        return (mat){0};
    op_cross(p, g->embd.side, NULL, 0);
    mat x = op_embed(p, &g->embd, 1.0f);
    for (int32_t il = 0; il < g->n_layer && p->rows->n && !pass_failed(p); il++) {
        const qwen3_layer *L = &g->layer[il];
        p->il = il;
        op_cross(p, L->side, (mat *const[]){&x}, 1); /* once, if the model is divided */
        size_t mark = pass_mark(p);
        mat before = x;
        qwen3_add_attention(p, g, L, &kv->view[il], &x, il == g->n_layer - 1 && last_tap < il);
        if (p->rows->n)
            qwen3_add_dense(p, g, L, x);
        if (p->rows->n)
            pass_tap(p, il, x); /* a drafter may read this layer */
        /* If the wanted rows were moved, they lie above the mark and are kept to the end. */
        if (x.at == before.at && x.rows == before.rows)
            pass_release(p, mark);
    }
    return model_finish(p, m, x, &g->out_norm, g->eps);
}

/* The embeddings are on the side of the first layer, the head on the main device. */
status qwen3_divide(model *m, err *e)
{
    qwen3 *g = m->impl;
    status st = divide_check_experts(m, false, e);
    for (int8_t side = 1; side < m->n_sides && !st; side++)
        if (model_layers_on(m, side))
            st = divide_rope(m, g->rope, side, e);
    if (st)
        return st;
    const weight *const first[] = {&g->embd, NULL};
    divide_weights(m, g->layer, sizeof *g->layer, first);
    for (int32_t i = 0; i < g->n_layer; i++) {
        qwen3_layer *L = &g->layer[i];
        L->side = m->kv[i].side = m->layer_side[i];
        L->rope = &g->rope[L->side];
    }
    return OK;
}
