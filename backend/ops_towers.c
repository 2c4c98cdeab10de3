/* ops_towers.c - the ops that towers of pictures and of sounds alone have. See ops.c. */
#include "backend/ops_int.h"

/* ---- Pictures ------------------------------------------------------------------------------- */

bool device_knows_vision(const device *d)
{
    const device_ops *o = d->op;
    return o->clamp && o->pool && o->standardize && o->layer_norm && o->act && o->embed_mix;
}

bool ops_has_vision(pass *p, const char *op)
{
    if (!pass_failed(p) && !device_knows_vision(p->dev))
        err_set(&p->e, E_UNSUPPORTED, "%s: %s does not compute vision towers", op, p->dev->name);
    return !pass_failed(p);
}

mat op_clamp(pass *p, mat x, float low, float high)
{
    if (!pass_shapes(p, "clamp", low <= high) || !ops_has_vision(p, "clamp"))
        return (mat){0};
    mat y = pass_mat(p, x.rows, x.heads, x.cols);
    if (!pass_failed(p))
        p->dev->op->clamp(p, y, x, low, high);
    return y;
}

mat op_clamp_inplace(pass *p, mat x, float low, float high)
{
    if (pass_shapes(p, "clamp", low <= high && !mat_copied(x)) && ops_has_vision(p, "clamp"))
        p->dev->op->clamp(p, x, x, low, high);
    return x;
}

/* n rows become one of the wanted rows. */
static bool joins_rows(const pass *p, mat x, int32_t n)
{
    return n > 0 && x.rows == p->rows->n && p->rows == &p->st->all &&
           (int64_t)p->st->out.n * n == x.rows;
}

mat op_merge(pass *p, mat x, int32_t n)
{
    bool fits = joins_rows(p, x, n) && x.stride == mat_width(x) && x.stride <= INT32_MAX / n;
    if (!pass_shapes(p, "merge", fits))
        return (mat){0};
    p->rows = &p->st->out;
    return mat_flat(mat_row_heads(mat_flat(x), n));
}

mat op_pool(pass *p, mat x, int32_t n)
{
    const rowset *out = &p->st->out;
    if (!pass_shapes(p, "pool", joins_rows(p, x, n)) || !ops_has_vision(p, "pool"))
        return (mat){0};
    mat y = pass_mat(p, out->n, x.heads, x.cols);
    if (!pass_failed(p))
        p->dev->op->pool(p, y, x, n);
    p->rows = out;
    return y;
}

mat op_standardize(pass *p, mat x, const weight *shift, const weight *scale)
{
    bool fits = shift && scale && is_vector(shift, x.cols) && is_vector(scale, x.cols);
    if (pass_shapes(p, "standardize", fits && x.heads == 1 && !mat_copied(x)) &&
        ops_has_vision(p, "standardize"))
        p->dev->op->standardize(p, x, shift, scale);
    return x;
}

mat op_layer_norm(pass *p, mat x, const weight *w, const weight *b, float eps)
{
    bool fits = w && x.heads == 1 && is_vector(w, x.cols) && is_vector(b, x.cols);
    if (!pass_shapes(p, "layer_norm", fits) || !ops_has_vision(p, "layer_norm"))
        return (mat){0};
    mat y = pass_mat(p, x.rows, 1, x.cols);
    if (!pass_failed(p))
        p->dev->op->layer_norm(p, y, x, w, b, eps);
    return y;
}

mat op_act(pass *p, mat x, act_kind act)
{
    if (pass_shapes(p, "act", act != ACT_SWIGLU_CUT && !mat_copied(x)) &&
        ops_has_vision(p, "act") && ops_knows_act(p, "act", act))
        p->dev->op->act(p, x, act);
    return x;
}

mat op_embed_mix(pass *p, mat ids, mat share, const weight *w)
{
    bool fits = w && w->n_in > 0 && w->n_mat == 1 && same_shape(ids, share) && mat_width(ids) > 0;
    if (!pass_shapes(p, "embed_mix", fits) || !ops_has_vision(p, "embed_mix"))
        return (mat){0};
    mat y = pass_mat(p, ids.rows, 1, w->n_in);
    if (!pass_failed(p))
        p->dev->op->embed_mix(p, y, ids, share, w);
    return y;
}

/* ---- Sounds --------------------------------------------------------------------------------- */

bool device_knows_audio(const device *d)
{
    return device_knows_vision(d) && d->op->unfold && d->op->depthwise && d->op->near;
}

static bool has_audio(pass *p, const char *op)
{
    if (!pass_failed(p) && !device_knows_audio(p->dev))
        err_set(&p->e, E_UNSUPPORTED, "%s: %s does not compute audio towers", op, p->dev->name);
    return !pass_failed(p);
}

mat op_unfold(pass *p, mat x, int32_t first, int32_t n)
{
    int32_t places = (x.heads + 1) / 2;
    bool fits = first >= 0 && n > 0 && first < INT32_MAX / 2 - n && 2 * (first + n - 1) < x.rows &&
                x.cols > 0 && x.cols <= INT32_MAX / 9 && n <= INT32_MAX / places;
    if (!pass_shapes(p, "unfold", fits) || !has_audio(p, "unfold"))
        return (mat){0};
    mat y = pass_mat(p, n * places, 1, 9 * x.cols);
    if (!pass_failed(p))
        p->dev->op->unfold(p, y, x, first);
    return y;
}

mat op_depthwise(pass *p, mat x, const weight *w)
{
    bool fits = w && w->type == NUM_F32 && w->n_mat == 1 && x.heads == 1 && w->n_out == x.cols;
    if (!pass_shapes(p, "depthwise", fits) || !has_audio(p, "depthwise"))
        return (mat){0};
    mat y = pass_mat(p, x.rows, 1, x.cols);
    p->n_flops += 2 * (uint64_t)x.rows * (uint64_t)x.cols * (uint64_t)w->n_in;
    if (!pass_failed(p))
        p->dev->op->depthwise(p, y, x, w);
    return y;
}

mat op_near(pass *p, mat q, mat k, mat v, mat far, const near_rule *rule)
{
    bool alike = k.rows == q.rows && v.rows == q.rows && k.heads == q.heads && v.heads == q.heads &&
                 far.heads == q.heads && k.cols == q.cols && v.cols == q.cols && far.cols == q.cols;
    bool fits = alike && rule->n_near > 0 && rule->n_near <= NEAR_MAX && far.rows == rule->n_near &&
                rule->cap > 0 && rule->scale && rule->scale->type == NUM_F32 &&
                rule->scale->n_in == q.cols;
    if (!pass_shapes(p, "near", fits) || !has_audio(p, "near"))
        return (mat){0};
    mat o = pass_mat(p, q.rows, q.heads, q.cols);
    p->n_flops += 6 * (uint64_t)q.rows * (uint64_t)mat_width(q) * (uint64_t)rule->n_near;
    if (!pass_failed(p))
        p->dev->op->near(p, o, q, k, v, far, rule);
    return o;
}
