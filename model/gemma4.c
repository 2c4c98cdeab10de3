/* gemma4.c - the forward pass of Gemma 4, in the order of the paper.
 *
 * Easy to get wrong: norm weights are used as they are (nothing adds 1). V and the router's input
 * are normed without weight. The attention scale is 1. A layer without a V projection takes V from
 * K's raw projection, before norm and rotation. The router reads the residual stream.
 * layer_output_scale multiplies the whole stream.
 */
#include "model/gemma4.h"

#include <math.h>

static const weight *or_null(const weight *w)
{
    return w->n_in ? w : NULL;
}

/* Per-layer embeddings: n_ple values for each row and layer, from a table and from the embedding.
 * [rows, n_layer heads, n_ple] */
static mat gemma4_ple(pass *p, const gemma4 *g, mat x0)
{
    mat a = mat_heads(op_embed(p, &g->ple_embd, sqrtf((float)g->n_ple)), g->n_ple);
    mat b = op_matmul(p, x0, &g->ple_proj);
    b = mat_heads(op_scale(p, b, 1.0f / sqrtf((float)g->n_embd), NULL), g->n_ple);
    b = op_rms_norm_inplace(p, b, &g->ple_norm, g->eps); /* one weight for all layers */
    return op_scale(p, op_add(p, a, b), (float)M_SQRT1_2, NULL);
}

/* The layer's per-layer embedding, through a gate that reads the un-normed stream. */
static residual gemma4_ple_part(pass *p, const gemma4_layer *L, mat x, mat ple)
{
    mat y = op_ple(p, x, &L->ple_gate, ple, &L->ple_proj);
    return (residual){.y = y, .norm = &L->ple_post_norm};
}

/* x += a; then a gated unit, and experts in parallel. Both read the stream x. Each branch is
 * normed, then their sum. The router's norm has no weight of its own: the router's scale takes its
 * place. */
static residual gemma4_experts(pass *p, const gemma4 *g, const gemma4_layer *L, mat x,
                               const residual *a)
{
    mat in[3] = {{.rows = 0}};
    const norm_want want[3] = {{&L->ffn_norm, 1.0f},
                               {&L->router_scale, 1.0f / sqrtf((float)g->n_embd)},
                               {&L->expert_norm, 1.0f}};
    op_residual(p, x, a, in, want, 3);

    const route_rule rule = {.scale = or_null(&L->expert_scale)};
    const expert_router choose = {&L->router, g->n_expert_used, &rule};
    routing to;
    residual r = {.norm = &L->ffn_post_norm, .y_norm = &L->dense_post_norm};
    mat f = op_glu_router(p, in[0], &L->gate, &L->up, ACT_GELU_TANH, in[1], &choose, &to);
    r.y = op_matmul(p, f, &L->down);
    mat h = in[2];
    visit v = op_visit(p, L->gate_exps.side, &h, &to); /* experts may be on another device */
    h = op_moe_glu(p, h, &to, &L->gate_exps, or_null(&L->up_exps), ACT_GELU_TANH);
    if (v.from == v.to)
        r.b = op_moe_branch(p, h, to, &L->down_exps, &L->expert_post_norm);
    else
        r.b = (branch){.y = op_return(p, v, op_moe_down(p, h, to, &L->down_exps)),
                       .w = &L->expert_post_norm};
    return r;
}

static residual gemma4_dense(pass *p, const gemma4_layer *L, mat x, const residual *a)
{
    mat f = op_residual_norm(p, x, a, &L->ffn_norm);
    f = op_matmul(p, op_glu(p, f, &L->gate, &L->up, ACT_GELU_TANH), &L->down);
    return (residual){.y = f, .norm = &L->ffn_post_norm};
}

/* One decoder layer. h: s->x normed; *ple: [rows, n_layer, n_ple] or empty.
 * In the last layer that owns keys, both are cut down to the wanted rows, unless a tap reads this
 * layer or a later one. */
static void gemma4_layer_forward(pass *p, const gemma4 *g, const gemma4_layer *L, int32_t il,
                                 const kv_layout *kvs, res_stream *s, mat h, mat *ple)
{
    const kv_view *kv = &kvs->view[L->kv];

    const weight *w[3];
    const int32_t d = L->head_dim;
    bool cut = L->last_owner && pass_last_tap(p) < il, fewer = cut && p->st->out.n < p->rows->n;
    int32_t n = 0;
    qkv of = {.q_norm = &L->q_norm,
              .k_norm = &L->k_norm,
              .v_norm = true,
              .eps = g->eps,
              .q_rope = L->rope,
              .k_rope = L->rope,
              .tail = !kv->window, /* a window has the last tokens alone */
              .scale = 1.0f};
    mat y[3];
    if (L->owns_kv) {
        w[n++] = &L->wk;
        if (L->wv.n_in && !kv->single)
            w[n++] = &L->wv;
    }
    w[n] = &L->wq;
    op_matmuls(p, y, h, w, fewer ? n : n + 1);
    if (n)
        of.k = mat_heads(y[0], d);
    if (n == 2)
        of.v = mat_heads(y[1], d);
    if (fewer) {
        op_qkv(p, &of, kv);
        of.k = of.v = (mat){0};
        op_keep_outputs(p, (mat *const[]){&s->x, &h, ple}, 3);
        if (!p->rows->n)
            return;
        y[n] = op_matmul(p, h, &L->wq);
    }
    of.q = mat_heads(y[n], d);
    mat q = op_qkv(p, &of, kv);
    if (cut)
        op_keep_outputs(p, (mat *const[]){&s->x, ple}, 2);
    mat a = op_attend(p, q, kv, 1.0f); /* no 1/sqrt(d): the q and k norms replace it */
    residual r = {
        .y = op_matmul(p, mat_flat(a), &L->wo), .norm = &L->attn_post_norm, .eps = g->eps};
    r = L->router.n_in ? gemma4_experts(p, g, L, s->x, &r) : gemma4_dense(p, L, s->x, &r);
    if (L->ple_gate.n_in) {
        r.eps = g->eps;
        r.reader = &L->ple_gate;
        const mat x = op_residual(p, s->x, &r, NULL, NULL, 0);
        r = gemma4_ple_part(p, L, x, mat_head(*ple, il));
    }
    r.scale = &L->out_scale;
    res_leave(p, s, r);
    pass_tap(p, il, s->x); /* a drafter may read this layer */
}

static mat gemma4_forward(pass *p, const model *m, const kv_layout *kv)
{
    const gemma4 *g = m->impl;
    int32_t last_tap = pass_last_tap(p);
    bool keys_done = false; /* no later layer owns keys */
    if (!pass_shapes(p, "taps", last_tap < g->n_layer))
        return (mat){0};
    op_cross(p, g->embd.side, NULL, 0);
    res_stream s = {.x = op_embed(p, &g->embd, sqrtf((float)g->n_embd)), .eps = g->eps};
    op_put_soft(p, s.x);
    mat ple = {0};
    if (g->n_ple)
        ple = gemma4_ple(p, g, s.x);

    for (int32_t il = 0; il < g->n_layer && p->rows->n && !pass_failed(p); il++) {
        const gemma4_layer *L = &g->layer[il];
        const bool last = il == g->n_layer - 1;
        p->il = il;
        op_cross(p, L->side, (mat *const[]){&s.x, &ple}, 2); /* once, if the model is divided */
        mat h = res_enter(p, &s, &L->attn_norm);
        size_t mark = pass_mark(p);
        mat before = s.x;
        keys_done |= L->last_owner;
        const bool cut = keys_done && il >= last_tap, inside = L->last_owner && il > last_tap;
        s.next = last ? &g->out_norm : &g->layer[il + 1].attn_norm;
        if ((last ? PASS_MAIN : g->layer[il + 1].side) != L->side ||
            ((cut || last) && !res_rows_stay(p, inside)))
            s.next = NULL;
        gemma4_layer_forward(p, g, L, il, kv, &s, h, &ple);
        /* If the wanted rows were moved, they lie above the mark and are kept to the end. */
        if (s.x.at == before.at && s.x.rows == before.rows)
            pass_release(p, mark);
        if (cut) /* if the layer has not */
            op_keep_outputs(p, (mat *const[]){&s.x, &ple}, 2);
    }
    return model_finish(p, m, &s, &g->out_norm);
}

const model_arch gemma4_arch = {.name = "gemma4",
                                .sampling = {.temperature = 1, .top_k = 64, .top_p = 0.95f},
                                .bind = gemma4_bind,
                                .forward = gemma4_forward,
                                .divide = gemma4_divide,
                                .at_rank = gemma4_at_rank,
                                .kv_of = gemma4_kv_of};
