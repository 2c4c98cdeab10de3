/* qwen35.c - the forward pass of Qwen3.5, 3.6 and 3.8, in the order of the paper.
 *
 * Easy to get wrong: norm weights are used as they are (the files have 1 added). The projection of
 * queries gives each head's query and gate side by side, and the gate is neither normed nor
 * rotated. A quarter of a head rotates. Value head j belongs to key head j mod n_k. The gate of
 * attention is a sigmoid, that of the delta rule SiLU. Weights of experts sum to 1.
 */
#include "model/qwen35.h"

#include <math.h>

#define QWEN35 .bind = qwen35_bind, .forward = qwen35_forward, .divide = qwen35_divide
#define SAMPLING .sampling = {.temperature = 1, .top_k = 20, .top_p = 0.95f}
const model_arch qwen35_arch = {.name = "qwen35", SAMPLING, QWEN35, .nextn = &qwen35_nextn_arch};
const model_arch qwen35moe_arch = {
    .name = "qwen35moe", SAMPLING, QWEN35, .nextn = &qwen35moe_nextn_arch};

/* In the last layer the wanted rows alone go on, once the others have left their keys or have
 * passed through the state. */
static bool cuts_rows(const pass *p, const qwen35 *g, int32_t il)
{
    return il == g->n_layer - 1 && pass_last_tap(p) < il;
}

/* x += W_out(norm(delta(conv(W_qkv h))) * silu(W_z h)) */
static void add_delta(pass *p, const qwen35 *g, const qwen35_layer *L, int32_t il,
                      const recur_view *rv, mat *x, mat h)
{
    const delta_unit u = {&L->taps, &L->out_norm, {&L->a, &L->dt}, g->eps};
    mat m = op_matmul(p, h, &L->wqkv), z = op_matmul(p, h, &L->wz);
    mat a = op_matmul(p, h, &L->wa), b = op_matmul(p, h, &L->wb);
    mat o = op_delta_unit(p, m, z, a, b, &u, rv);
    if (cuts_rows(p, g, il)) {
        op_keep_outputs(p, (mat *const[]){x, &o}, 2);
        if (!p->rows->n)
            return;
    }
    op_add(p, *x, op_matmul(p, o, &L->out));
}

void qwen35_store_keys(pass *p, const qwen35 *g, const qwen35_layer *L, const kv_view *kv, mat h)
{
    int32_t d = g->head_dim;
    mat k = mat_heads(op_matmul(p, h, &L->wk), d), v = mat_heads(op_matmul(p, h, &L->wv), d);
    k = op_rope(p, op_rms_norm_inplace(p, k, &L->k_norm, g->eps), L->rope);
    op_kv_store(p, kv, k, v);
}

void qwen35_add_attention(pass *p, const qwen35 *g, const qwen35_layer *L, const kv_view *kv, mat x,
                          mat h)
{
    int32_t d = g->head_dim;
    mat both = mat_head_rows(mat_heads(op_matmul(p, h, &L->wq), 2 * d)); /* [rows heads, 2 d] */
    mat q = op_rms_norm(p, mat_columns(both, 0, d), &L->q_norm, g->eps);
    q = mat_row_heads(q, g->n_head);
    op_tail(p, q, kv, L->rope, 1 / sqrtf((float)d));
    mat a = mat_head_rows(op_attend(p, op_rope(p, q, L->rope), kv, 1 / sqrtf((float)d)));
    a = op_act_mul(p, mat_columns(both, d, d), a, ACT_SIGMOID);
    op_add(p, x, op_matmul(p, mat_flat(mat_row_heads(a, g->n_head)), &L->wo));
}

static void add_attention(pass *p, const qwen35 *g, const qwen35_layer *L, int32_t il,
                          const kv_view *kv, mat *x, mat h)
{
    qwen35_store_keys(p, g, L, kv, h);
    if (cuts_rows(p, g, il)) {
        op_keep_outputs(p, (mat *const[]){x, &h}, 2);
        if (!p->rows->n)
            return;
    }
    qwen35_add_attention(p, g, L, kv, *x, h);
}

void qwen35_add_ffn(pass *p, const qwen35 *g, const qwen35_layer *L, mat x)
{
    mat f = op_rms_norm(p, x, &L->ffn_norm, g->eps);
    if (!L->router.n_in) {
        op_add(p, x, op_matmul(p, op_glu(p, f, &L->gate, &L->up, ACT_SILU), &L->down));
        return;
    }
    const mixture m = {.router = &L->router,
                       .gate = &L->gate_exps,
                       .up = L->up_exps.n_in ? &L->up_exps : NULL,
                       .down = &L->down_exps,
                       .shared_factor = &L->shared_gate,
                       .shared_gate = &L->gate,
                       .shared_up = &L->up,
                       .shared_down = &L->down,
                       .k = g->n_expert_used,
                       .act = ACT_SILU};
    op_add(p, x, op_mixture(p, f, &m));
}

mat qwen35_forward(pass *p, const model *m, const kv_layout *kv)
{
    const qwen35 *g = m->impl;
    if (!pass_shapes(p, "taps", pass_last_tap(p) < g->n_layer))
        return (mat){0};
    op_cross(p, g->embd.side, NULL, 0);
    mat x = op_embed(p, &g->embd, 1);
    for (int32_t il = 0; il < g->n_layer && p->rows->n && !pass_failed(p); il++) {
        const qwen35_layer *L = &g->layer[il];
        p->il = il;
        op_cross(p, L->side, (mat *const[]){&x}, 1); /* once, if the model is divided */
        size_t mark = pass_mark(p);
        mat before = x, h = op_rms_norm(p, x, &L->norm, g->eps);
        if (L->full)
            add_attention(p, g, L, il, &kv->view[L->at], &x, h);
        else
            add_delta(p, g, L, il, &kv->recur[L->at], &x, h);
        if (p->rows->n) {
            qwen35_add_ffn(p, g, L, x);
            pass_tap(p, il, x); /* a drafter may read this layer */
        }
        /* If the wanted rows were moved, they lie above the mark and are kept to the end. */
        if (x.at == before.at && x.rows == before.rows)
            pass_release(p, mark);
    }
    return model_finish(p, m, x, &g->out_norm, g->eps);
}
