/* ops_audio.c - the ops that audio towers alone have: shapes, and the device's entry. */
#include "backend/ops.h"

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
