/* ops_attend.c - the ops from queries, keys and values to attention: rotation, stores, scores of
 * pages. See ops.c.
 */
#include "backend/key_walk.h"
#include "backend/ops_int.h"

#include <math.h>

float rope_factor_at(const rope *r, int32_t pos)
{
    return r->grow != 0 ? rope_factor(r) * (1 + r->grow * logf((float)(1 + pos / r->period)))
                        : rope_factor(r);
}

/* Can these rows be rotated so? Else it is an error of the pass. */
static bool rope_fits(pass *p, mat x, const rope *r)
{
    bool fits = r && x.cols >= 2 * r->n_pairs && x.rows == p->rows->n && !mat_copied(x) &&
                r->n_axes >= 0 && r->n_axes <= ROPE_AXES_MAX && (r->n_axes || !r->parted) &&
                (r->grow == 0 || r->period > 0);
    bool axes = fits && rope_by_axes(r, p->rows), woven = fits && r->section[0];
    if (fits && woven)
        fits = r->n_axes == 3 && !r->parted && !r->interleaved && r->grow == 0;
    else if (axes)
        fits = r->n_pairs % r->n_axes == 0;
    fits = fits && (!axes || p->dry || p->rows->axis[r->n_axes - 1]);
    return pass_shapes(p, "rope", fits) && (!axes || woven || ops_has_vision(p, "rope"));
}

mat op_rope(pass *p, mat x, const rope *r)
{
    if (rope_fits(p, x, r))
        p->dev->op->rope(p, x, r);
    return x;
}

static bool fits_kv(const kv_view *kv, mat x)
{
    return kv && x.heads == kv->n_head_kv && x.cols == kv->head_dim;
}

void op_kv_store(pass *p, const kv_view *kv, mat k, mat v)
{
    if (pass_shapes(p, "kv_store",
                    fits_kv(kv, k) && fits_kv(kv, v) && k.rows == p->rows->n && v.rows == k.rows))
        p->dev->op->kv_store(p, kv, k, v);
}

static bool qkv_fits(const pass *p, const qkv *a, bool by_rows, const kv_view *kv)
{
    const int32_t n = p->rows->n;
    if (!kv || mat_copied(a->q) || mat_copied(a->k) || mat_copied(a->v) ||
        (a->q.rows && !is_vector(a->q_norm, kv->head_dim)) ||
        (a->k.rows && !kv->single && !is_vector(a->k_norm, kv->head_dim)) ||
        (a->k.rows && !(a->k.rows == n && fits_kv(kv, a->k))) ||
        (a->v.rows && !(a->v.rows == n && fits_kv(kv, a->v))))
        return false;
    bool values = !a->k.rows || a->v.rows || a->v_norm || kv->single;
    bool keys = a->k.rows || !a->v.rows || kv->single;
    bool queries = !a->q.rows || (a->q.cols == kv->head_dim && a->q.rows % n == 0);
    return values && keys && queries && (!by_rows || (a->q_norm && a->q.heads == 1));
}

/* The expansion of op_qkv. */
static void qkv_apart(pass *p, mat q, mat v, const qkv *a, const kv_view *kv)
{
    const device_ops *op = p->dev->op;
    if (v.rows && a->v_norm && !pass_failed(p))
        op->rms_norm(p, &v, a->v.rows ? a->v : a->k, NULL, a->eps);
    if (v.rows && !kv->single) {
        mat k = a->k;
        if (a->k_norm && !pass_failed(p))
            op->rms_norm(p, &k, a->k, a->k_norm, a->eps);
        if (a->k_rope)
            op_rope(p, a->k, a->k_rope);
    }
    if (v.rows)
        op_kv_store(p, kv, kv->single ? v : a->k, v);
    if (!q.rows)
        return;
    mat to = q.rows == a->q.rows ? q : mat_head_rows(q);
    if (a->q_norm && !pass_failed(p))
        op->rms_norm(p, &to, a->q, a->q_norm, a->eps);
    if (a->tail)
        op_tail(p, q, kv, a->k_rope, a->scale);
    if (a->q_rope)
        op_rope(p, q, a->q_rope);
}

mat op_qkv(pass *p, const qkv *a, const kv_view *kv)
{
    const bool by_rows = a->q.rows && a->q.rows != p->rows->n;
    mat q = a->q, v = a->v;
    if (!pass_shapes(p, "qkv", qkv_fits(p, a, by_rows, kv)))
        return (mat){0};
    if (a->k.rows && !v.rows)
        v = kv->single ? a->k : pass_mat(p, a->k.rows, a->k.heads, a->k.cols);
    if (by_rows)
        q = pass_mat(p, p->rows->n, a->q.rows / p->rows->n, a->q.cols);
    bool turns = (!q.rows || !a->q_rope || rope_fits(p, q, a->q_rope)) &&
                 (!a->k.rows || kv->single || !a->k_rope || rope_fits(p, a->k, a->k_rope));
    if (!turns || pass_failed(p))
        return q;
    if (p->dev->op->qkv && !(a->tail && p->tail))
        p->dev->op->qkv(p, &q, v, a, kv);
    else
        qkv_apart(p, q, v, a, kv);
    return q;
}

/* The sequence's rows from w->keep->pos on are neighbours: it is a chain. */
static void keep_queries(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w)
{
    page_queries *k = w->keep;
    const rowset *rs = p->rows;
    int32_t first = 0, n = 0;
    while (first < rs->n && (rs->seq[first] != w->seq || rs->pos[first] < k->pos))
        first++;
    while (first + n < rs->n && rs->seq[first + n] == w->seq)
        n++;
    size_t floats = (size_t)n * (size_t)mat_width(q);
    if (!n || !pass_shapes(p, "keep_queries",
                           k->n < k->cap && k->used[p->here] + floats <= k->n_floats[p->here]))
        return;
    mat from = mat_flat(mat_rows(mat_bare(q), first, n)), to = from;
    to.at = k->mem[p->here] + k->used[p->here];
    to.stride = mat_width(q);
    p->dev->op->copy(p, to, from);
    k->used[p->here] += floats;
    k->at[k->n++] = (page_query){kv, scale, mat_heads(to, q.cols)};
}

static void stats_queries(pass *p, mat q)
{
    page_query_size *s = &p->side[p->here].query;
    s->layers++;
    s->heads += q.heads;
    s->floats += (size_t)mat_width(q);
}

static void watch_pages(pass *p, mat q, const kv_view *kv, float scale)
{
    if (p->dry && kv->kind == STORE_LINEAR)
        stats_queries(p, q);
    for (int32_t i = 0; i < p->n_watch && kv->kind == STORE_LINEAR && !p->dry; i++) {
        const page_watch *w = &p->watch[i];
        if (w->n_pages && w->sums[kv->id].at &&
            pass_shapes(p, "watch_pages",
                        p->dev->op->watch_pages && q.heads / kv->n_head_kv <= PAGE_WATCH_HEADS))
            p->dev->op->watch_pages(p, q, kv, scale, w);
        if (w->n_pages && w->keep && !pass_failed(p))
            keep_queries(p, q, kv, scale, w);
    }
}

/* The room of the result. */
static mat attend_room(pass *p, mat q, const kv_view *kv, float scale)
{
    if (!pass_shapes(p, "attend",
                     kv && q.cols == kv->head_dim && q.heads % kv->n_head_kv == 0 &&
                         q.rows == p->rows->n && is_vector(kv->sinks, q.heads)))
        return (mat){0};
    mat o = pass_mat(p, q.rows, q.heads, q.cols);
    watch_pages(p, q, kv, scale);
    return o;
}

mat op_attend(pass *p, mat q, const kv_view *kv, float scale)
{
    mat o = attend_room(p, q, kv, scale);
    if (!pass_failed(p))
        p->dev->op->attend(p, &o, q, kv, scale);
    return o;
}

mat op_attend_gate(pass *p, mat q, mat gate, act_kind act, const kv_view *kv, float scale)
{
    bool apart = gate.heads == 1 && gate.rows == q.rows * q.heads && gate.cols == q.cols;
    bool fits = gate.rows == q.rows && gate.heads == q.heads &&
                (gate.cols == 1 || gate.cols == q.cols) && act != ACT_SWIGLU_CUT;
    if (!pass_shapes(p, "attend_gate", fits || apart) || !ops_knows_act(p, "attend_gate", act))
        return (mat){0};
    mat o = attend_room(p, q, kv, scale);
    if (p->dev->op->attend_gate) {
        mat y = pass_mat(p, q.rows, 1, mat_width(q));
        if (!pass_failed(p))
            p->dev->op->attend_gate(p, &y, o, q, gate, act, kv, scale);
        return y;
    }
    if (!pass_failed(p))
        p->dev->op->attend(p, &o, q, kv, scale);
    mat y = op_act_mul(p, gate, apart ? mat_head_rows(o) : o, act);
    return mat_flat(apart ? mat_row_heads(y, q.heads) : y);
}

void op_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale)
{
    if (!p->tail || pass_failed(p))
        return;
    if (!p->dev->op->tail) {
        err_set(&p->e, E_UNSUPPORTED, "%s: the importance of tokens is computed on CPUs alone",
                p->dev->name);
        return;
    }
    if (!pass_shapes(p, "tail",
                     kv && q.cols == kv->head_dim && q.heads % kv->n_head_kv == 0 &&
                         q.rows == p->tail->rows && q.rows == p->rows->n && p->st->n_seqs == 1 &&
                         !p->rows->seen && (!r || 2 * r->n_pairs <= q.cols)))
        return;
    p->tail->n_layers++;
    p->dev->op->tail(p, q, kv, r, scale);
}
