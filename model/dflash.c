/* dflash.c - the two passes of a DFlash drafter, in the order of the paper.
 *
 * Easy to get wrong: the context's rows do not go through a layer's input norm (in Laguna's
 * variant they do). Values are never normed. The drafter's last norm replaces the target's. Soft
 * cap comes before the bigram correction. The activation is SiLU, although the target's is GELU.
 */
#include "model/dflash.h"

#include <math.h>

const model_arch dflash_arch = {.name = "dflash", .bind = dflash_bind};

/* ---- The context --------------------------------------------------------------------------- */

/* Keys and values of x, [rows, n_embd], at the rows' positions, and with n above 2 the queries,
 * which it gives. y[n]: the products of x with wk, wv, wq and head_gate. */
static mat store_keys(pass *p, const dflash *g, const dflash_layer *L, const kv_view *kv, mat x,
                      mat *y, int32_t n)
{
    op_matmuls(p, y, x, (const weight *[]){&L->wk, &L->wv, &L->wq, &L->head_gate}, n);
    qkv of = {.k = mat_heads(y[0], g->head_dim),
              .v = mat_heads(y[1], g->head_dim),
              .q_norm = &L->q_norm,
              .k_norm = &L->k_norm,
              .eps = g->eps,
              .q_rope = L->rope,
              .k_rope = L->rope};
    if (n > 2)
        of.q = mat_heads(y[2], g->head_dim);
    return op_qkv(p, &of, kv);
}

void dflash_absorb(pass *p, const model *m, const kv_layout *kv, mat features)
{
    const dflash *g = m->impl;
    pass_turn(p, p->target);
    mat f = op_wanted_rows(p, features);
    op_cross(p, PASS_MAIN, (mat *const[]){&f}, 1);
    if (!pass_shapes(p, "features", f.heads == g->n_features && f.cols == g->n_embd))
        return;
    for (int32_t i = 0; g->laguna && i < g->n_features; i++)
        op_rms_norm_inplace(p, mat_head(f, i), &g->aux_norm[i], g->eps);
    mat x = op_matmul(p, mat_flat(f), &g->fc);
    x = op_rms_norm_inplace(p, x, &g->hidden_norm, g->eps);
    for (int32_t il = 0; il < g->n_layer && !pass_failed(p); il++) {
        const dflash_layer *L = &g->layer[il];
        size_t mark = pass_mark(p);
        p->il = il;
        mat y[2], h = g->laguna ? op_rms_norm(p, x, &L->attn_norm, g->eps) : x;
        store_keys(p, g, L, &kv->view[il], h, y, 2);
        pass_release(p, mark);
    }
    p->il = -1;
}

/* ---- The block ----------------------------------------------------------------------------- */

/* h: s->x normed. */
static void block_layer(pass *p, const dflash *g, const dflash_layer *L, const kv_view *kv,
                        res_stream *s, mat h)
{
    const float scale = 1.0f / sqrtf((float)g->head_dim);
    mat y[4];
    mat q = store_keys(p, g, L, kv, h, y, g->laguna ? 4 : 3);
    mat a = g->laguna ? op_attend_gate(p, q, mat_heads(y[3], 1), ACT_SOFTPLUS, kv, scale)
                      : mat_flat(op_attend(p, q, kv, scale));
    const residual r = {.y = op_matmul(p, a, &L->wo), .eps = g->eps};
    h = op_residual_norm(p, s->x, &r, &L->ffn_norm);
    h = op_matmul(p, op_glu(p, h, &L->gate, &L->up, ACT_SILU), &L->down);
    res_leave(p, s, (residual){.y = h});
}

/* Row `at` of every block of `length` rows of m. */
static mat row_of_blocks(mat m, int32_t at, int32_t length)
{
    m = mat_rows(mat_bare(m), at, m.rows / length);
    m.stride *= length;
    return m;
}

/* The logit of the confidence in a slot, from its state h and the correction's input e. */
static mat confidence(pass *p, const dflash *g, mat h, mat e)
{
    bool both = g->conf.n_in > g->n_embd;
    if (!both)
        return op_matmul(p, h, &g->conf);
    mat in = pass_mat(p, h.rows, 1, g->conf.n_in);
    op_copy(p, mat_columns(in, 0, g->n_embd), h);
    op_copy(p, mat_columns(in, g->n_embd, e.cols), e);
    return op_matmul(p, in, &g->conf);
}

/* Slot after slot: the correction that follows from the token before is added to the logits, and
 * the best token is the next slot's token before. first: the correction's input of the first slot.
 * h, logits: the wanted rows. */
static mat corrected(pass *p, const dflash *g, mat first, mat h, mat logits, int32_t k)
{
    int32_t length = logits.rows / p->st->n_seqs, cols = 2 * k + (g->conf.n_in ? 1 : 0);
    mat out = pass_mat(p, logits.rows, 1, cols);
    mat e = pass_mat(p, p->st->n_seqs, 1, first.cols);
    op_copy(p, e, first);
    for (int32_t i = 0; i < length && !pass_failed(p); i++) {
        size_t mark = pass_mark(p);
        mat z = row_of_blocks(logits, i, length), to = row_of_blocks(out, i, length);
        op_add(p, z, op_matmul(p, e, &g->markov_out));
        mat best = op_best(p, z, k);
        op_copy(p, mat_columns(to, 0, 2 * k), mat_flat(best));
        if (g->conf.n_in)
            op_copy(p, mat_columns(to, 2 * k, 1), confidence(p, g, row_of_blocks(h, i, length), e));
        op_copy(p, e, op_embed_at(p, best, &g->markov_in, 1.0f));
        pass_release(p, mark);
    }
    return out;
}

mat dflash_forward(pass *p, const model *m, const kv_layout *kv, int32_t k)
{
    const dflash *g = m->impl;
    const model *t = g->target;
    int32_t n_seqs = p->st->n_seqs, n_rows = p->rows->n, n_out = p->st->out.n;
    mat e = {0};
    if (!pass_shapes(p, "blocks", n_seqs > 0 && n_rows % n_seqs == 0 && n_out % n_seqs == 0))
        return (mat){0};
    op_cross(p, p->target + t->embd->side, NULL, 0);
    mat x = op_embed(p, t->embd, t->embd_scale);
    op_cross(p, PASS_MAIN, (mat *const[]){&x}, 1);
    if (g->markov_in.n_in)
        e = row_of_blocks(op_embed(p, &g->markov_in, 1.0f), 0, n_rows / n_seqs);
    res_stream s = {.x = x, .eps = g->eps};
    for (int32_t il = 0; il < g->n_layer && !pass_failed(p); il++) {
        const bool last = il == g->n_layer - 1;
        p->il = il;
        mat hl = res_enter(p, &s, &g->layer[il].attn_norm);
        size_t mark = pass_mark(p);
        s.next = !last                     ? &g->layer[il + 1].attn_norm
                 : res_rows_stay(p, false) ? &g->out_norm
                                           : NULL;
        block_layer(p, g, &g->layer[il], &kv->view[il], &s, hl);
        pass_release(p, mark);
    }
    p->il = -1;
    op_keep_outputs(p, (mat *const[]){&s.x}, 1);
    mat h = res_enter(p, &s, &g->out_norm), x_head = h;
    op_cross(p, p->target, (mat *const[]){&x_head}, 1);
    mat y = model_head(p, t, &x_head, 1);
    if (!g->markov_in.n_in)
        y = mat_flat(op_best(p, y, k));
    op_cross(p, PASS_MAIN, (mat *const[]){&y}, 1); /* the best, or logits to be corrected */
    return g->markov_in.n_in ? corrected(p, g, e, h, y, k) : y;
}
