/* gemma4_mtp.c - a draft of the MTP assistants of Gemma 4: n steps, unrolled in one pass.
 *
 * Easy to get wrong: the embedding comes before the hidden vector; it is the target's, with the
 * target's scale. The attention scale is 1. Keys and values are the target's as stored, and the
 * position of the queries is the same in every step. The hidden vector that goes on is taken after
 * the last norm.
 *
 * If the target is divided, its embedding and its stores may be on other devices than the
 * assistant. The pass visits them; all else is on the main one. Of a target that is split by
 * tensors it visits every rank, each with the queries of the rank's KV heads.
 */
#include "model/gemma4_mtp.h"

/* The target's embeddings of the rows' own tokens, or of the best of `ids`, to columns 0.. of
 * `in`. */
static void mtp_embed(pass *p, const model *target, const mat *ids, mat in)
{
    const weight *w = target->embd;
    mat at = ids ? *ids : (mat){0};
    op_cross(p, w->side, (mat *const[]){&at}, 1);
    mat e = ids ? op_embed_at(p, at, w, target->embd_scale) : op_embed(p, w, target->embd_scale);
    op_cross(p, PASS_MAIN, (mat *const[]){&e}, 1);
    op_copy(p, mat_columns(in, 0, w->n_in), e);
}

/* q, on the main device, to the keys of a store on its own. */
static mat attend_there(pass *p, mat q, const kv_view *kv)
{
    op_cross(p, kv->side, (mat *const[]){&q}, 1);
    mat a = op_attend(p, q, kv, 1.0f);
    op_cross(p, PASS_MAIN, (mat *const[]){&a}, 1);
    return a;
}

/* The same to the parts of a store on the ranks of the target. A KV head that several ranks have is
 * read from the first of them. */
static mat attend_ranks(pass *p, const model *target, const kv_layout *kvs, int32_t donor, mat q,
                        bool wide)
{
    const int32_t n_stores = kvs->n / target->n_ranks;
    mat y = mat_flat(pass_mat(p, q.rows, q.heads, q.cols));
    for (int32_t r = 0, done = 0; r < target->n_ranks && !pass_failed(p); r++) {
        const kv_spec *part = &target->kv[r * n_stores + donor];
        kv_view kv = kvs->view[r * n_stores + donor];
        const int32_t width = q.heads / part->head_kv_all * q.cols; /* queries of a KV head */
        const int32_t first = part->head0 * width, n = part->n_head_kv * width;
        if (part->head0 + part->n_head_kv <= done)
            continue;
        kv.wide |= wide;
        kv.head_all = q.heads;
        mat some = pass_mat(p, q.rows, 1, n);
        op_copy(p, some, mat_columns(mat_flat(q), first, n));
        op_copy(p, mat_columns(y, first, n),
                mat_flat(attend_there(p, mat_heads(some, q.cols), &kv)));
        done = part->head0 + part->n_head_kv;
    }
    return y;
}

/* q: the product. */
static mat mtp_attend(pass *p, const gemma4_mtp *g, const gemma4_mtp_layer *L, const kv_layout *kvs,
                      mat q)
{
    kv_view kv = kvs->view[L->donor];
    kv.wide |= L->wide;
    q = op_qkv(p, &(qkv){.q = q, .q_norm = &L->q_norm, .eps = g->eps, .q_rope = L->rope}, &kv);
    return g->target->n_ranks ? attend_ranks(p, g->target, kvs, L->donor, q, L->wide)
                              : attend_there(p, q, &kv);
}

/* h: s->x normed. */
static void mtp_layer(pass *p, const gemma4_mtp *g, const gemma4_mtp_layer *L, const kv_layout *kvs,
                      res_stream *s, mat h)
{
    mat a = mtp_attend(p, g, L, kvs, mat_heads(op_matmul(p, h, &L->wq), L->head_dim));
    const residual r = {
        .y = op_matmul(p, mat_flat(a), &L->wo), .norm = &L->attn_post_norm, .eps = g->eps};
    h = op_residual_norm(p, s->x, &r, &L->ffn_norm);
    h = op_matmul(p, op_glu(p, h, &L->gate, &L->up, ACT_GELU_TANH), &L->down);
    res_leave(p, s, (residual){.y = h, .norm = &L->ffn_post_norm, .scale = &L->out_scale});
}

static mat mtp_cap(pass *p, const gemma4_mtp *g, mat y)
{
    return g->softcap > 0 ? op_softcap(p, y, g->softcap, NULL, 0) : y;
}

/* The best tokens for hidden rows hn, as op_best gives them. */
static mat mtp_choose(pass *p, const gemma4_mtp *g, mat hn, int32_t n_ranks)
{
    if (!g->n_clusters)
        return op_best(p, mtp_cap(p, g, op_matmul(p, hn, &g->head)), n_ranks);
    routing to = op_route(p, op_matmul(p, hn, &g->centroids), g->n_top, NULL);
    mat y = mat_flat(op_moe_matmul(p, hn, to, &g->head));
    mat best = op_best(p, mtp_cap(p, g, y), n_ranks);
    op_renumber(p, best, to, g->order, g->target->n_vocab, g->head.n_out);
    return best;
}

int32_t gemma4_mtp_ranks(const gemma4_mtp *g)
{
    int64_t n = g->n_clusters ? (int64_t)g->n_top * g->head.n_out : g->head.n_out;
    return n < BEST_MAX ? (int32_t)n : BEST_MAX;
}

typedef struct side_marks {
    size_t at[PASS_SIDES_MAX];
} side_marks;

static side_marks mark_sides(const pass *p)
{
    side_marks m;
    for (int32_t s = 0; s < p->n_sides; s++)
        m.at[s] = p->side[s].at;
    return m;
}

static void release_sides(pass *p, const side_marks *m)
{
    for (int32_t s = p->n_sides - 1; s >= 0 && !pass_failed(p); s--) { /* ends on the main one */
        pass_turn(p, s);
        pass_release(p, m->at[s]);
    }
}

mat gemma4_mtp_draft(pass *p, const model *m, const kv_layout *kv, mat h, int32_t n_steps,
                     int32_t n_ranks)
{
    const gemma4_mtp *g = m->impl;
    int32_t d = g->n_target_embd;
    mat result = pass_mat(p, p->rows->n, n_steps, 2 * n_ranks);
    mat in = pass_mat(p, p->rows->n, 1, 2 * d); /* embedding, then hidden */
    res_stream s = {
        .x = {.rows = p->rows->n, .heads = 1, .cols = g->pre.n_out, .stride = g->pre.n_out},
        .eps = g->eps};
    s.room[PASS_MAIN] = op_norm_room(p, s.x);
    side_marks mark = mark_sides(p);
    op_copy(p, mat_columns(in, d, d), h);
    mtp_embed(p, g->target, NULL, in);
    for (int32_t i = 0; i < n_steps && !pass_failed(p); i++) {
        release_sides(p, &mark);
        s.x = op_matmul(p, in, &g->pre);
        s.h.rows = 0;
        for (int32_t il = 0; il < g->n_layer; il++) {
            p->il = il;
            mat hl = res_enter(p, &s, &g->layer[il].attn_norm);
            side_marks before = mark_sides(p);
            s.next = il + 1 < g->n_layer ? &g->layer[il + 1].attn_norm : &g->out_norm;
            mtp_layer(p, g, &g->layer[il], kv, &s, hl);
            release_sides(p, &before);
        }
        p->il = -1;
        mat hn = res_enter(p, &s, &g->out_norm);
        mat best = mtp_choose(p, g, hn, n_ranks);
        op_copy(p, mat_head(result, i), best);
        if (i == n_steps - 1)
            break;
        op_copy(p, mat_columns(in, d, d), op_matmul(p, hn, &g->post));
        mtp_embed(p, g->target, &best, in);
    }
    return pass_failed(p) ? (mat){0} : result;
}
