/* qwen35.c - the forward pass of Qwen3.5, 3.6 and 3.8, in the order of the paper.
 *
 * Easy to get wrong: norm weights are used as they are (the files have 1 added). The projection of
 * queries gives each head's query and gate side by side, and the gate is neither normed nor
 * rotated. A quarter of a head rotates. Value head j belongs to key head j mod n_k. The gate of
 * attention is a sigmoid, that of the delta rule SiLU. Weights of experts sum to 1.
 */
#include "model/qwen35.h"

#include <math.h>

/* Adds y to x; then x normed for the feed-forward part. */
static mat add(pass *p, const qwen35 *g, const qwen35_layer *L, mat x, mat y)
{
    return op_residual_norm(p, x, &(residual){.y = y, .eps = g->eps}, &L->ffn_norm);
}

/* x += W_out(norm(delta(conv(W_qkv h))) * silu(W_z h)). cut: the wanted rows alone go on, once the
 * others have passed through the state. */
static mat add_delta(pass *p, const qwen35 *g, const qwen35_layer *L, const recur_view *rv,
                     res_stream *s, mat h, bool cut)
{
    const delta_unit u = {&L->taps, &L->out_norm, {&L->a, &L->dt}, g->eps};
    mat y[4];
    op_matmuls(p, y, h, (const weight *[]){&L->wqkv, &L->wz, &L->wa, &L->wb}, 4);
    mat o = op_delta_unit(p, y[0], y[1], y[2], y[3], &u, rv);
    if (cut) {
        op_keep_outputs(p, (mat *const[]){&s->x, &o}, 2);
        if (!p->rows->n)
            return h;
    }
    return add(p, g, L, s->x, op_matmul(p, o, &L->out));
}

void qwen35_keys(pass *p, const qwen35 *g, const qwen35_layer *L, const kv_view *kv, mat h)
{
    mat y[2];
    op_matmuls(p, y, h, (const weight *[]){&L->wk, &L->wv}, 2);
    const qkv of = {.k = mat_heads(y[0], g->head_dim),
                    .v = mat_heads(y[1], g->head_dim),
                    .k_norm = &L->k_norm,
                    .eps = g->eps,
                    .k_rope = L->rope};
    op_qkv(p, &of, kv);
}

mat qwen35_add_attention(pass *p, const qwen35 *g, const qwen35_layer *L, const kv_view *kv,
                         res_stream *s, mat h, bool cut)
{
    const int32_t d = g->head_dim;
    const bool fewer = cut && p->st->out.n < p->rows->n;
    qkv of = {.q_norm = &L->q_norm,
              .k_norm = &L->k_norm,
              .eps = g->eps,
              .q_rope = L->rope,
              .k_rope = L->rope,
              .tail = true,
              .scale = 1 / sqrtf((float)d)};
    mat y[3];
    if (fewer) { /* the others leave their keys */
        qwen35_keys(p, g, L, kv, h);
        op_keep_outputs(p, (mat *const[]){&s->x, &h}, 2);
        if (!p->rows->n)
            return h;
        y[2] = op_matmul(p, h, &L->wq);
    } else {
        op_matmuls(p, y, h, (const weight *[]){&L->wk, &L->wv, &L->wq}, 3);
        of.k = mat_heads(y[0], d);
        of.v = mat_heads(y[1], d);
    }
    mat both = mat_head_rows(mat_heads(y[2], 2 * d)); /* [rows heads, 2 d]: of query and gate */
    of.q = mat_columns(both, 0, d);
    mat q = op_qkv(p, &of, kv);
    if (cut)
        op_keep_outputs(p, (mat *const[]){&s->x}, 1);
    mat a = op_attend_gate(p, q, mat_columns(both, d, d), ACT_SIGMOID, kv, of.scale);
    return add(p, g, L, s->x, op_matmul(p, a, &L->wo));
}

void qwen35_add_ffn(pass *p, const qwen35 *g, const qwen35_layer *L, res_stream *s, mat h)
{
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
    mat y = L->router.n_in ? op_mixture(p, h, &m)
                           : op_matmul(p, op_glu(p, h, &L->gate, &L->up, ACT_SILU), &L->down);
    res_leave(p, s, (residual){.y = y});
}

static void layer_forward(pass *p, const model *m, int32_t il, const kv_layout *kv, res_stream *s,
                          mat h)
{
    const qwen35 *g = m->impl;
    const qwen35_layer *L = &g->layer[il];
    bool cut = model_cuts_rows(p, m, il);
    h = L->full ? qwen35_add_attention(p, g, L, &kv->view[L->at], s, h, cut)
                : add_delta(p, g, L, &kv->recur[L->at], s, h, cut);
    if (p->rows->n)
        qwen35_add_ffn(p, g, L, s, h);
}

static const weight *norm_of(const model *m, int32_t il)
{
    const qwen35 *g = m->impl;
    return il < m->n_layer ? &g->layer[il].norm : &g->out_norm;
}

static mat qwen35_forward(pass *p, const model *m, const kv_layout *kv)
{
    const qwen35 *g = m->impl;
    return model_run(p, m, kv, layer_forward, norm_of, g->eps);
}

#define QWEN35                                                                                     \
    .bind = qwen35_bind, .forward = qwen35_forward, .divide = qwen35_divide,                       \
    .at_rank = qwen35_at_rank, .kv_of = qwen35_kv_of
#define SAMPLING .sampling = {.temperature = 1, .top_k = 20, .top_p = 0.95f}
const model_arch qwen35_arch = {.name = "qwen35", SAMPLING, QWEN35, .nextn = &qwen35_nextn_arch};
const model_arch qwen35moe_arch = {
    .name = "qwen35moe", SAMPLING, QWEN35, .nextn = &qwen35moe_nextn_arch};
