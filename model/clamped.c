/* clamped.c - see clamped.h. */
#include "model/clamped.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A bound of a product; without the tensor it stays infinite. */
static status bind_bound(const binder *b, const char *name, const char *end, float *bound)
{
    char tail[64];
    weight w;
    snprintf(tail, sizeof tail, "%s.%s", name, end);
    status st = bind_tensor(
        b, &w, tail,
        (model_want){
            .n_in = 1, .n_out = 1, .n_mat = 1, .f32 = true, .host = true, .optional = true});
    if (st || !w.n_in)
        return st;
    float x;
    memcpy(&x, w.data, sizeof x);
    if (isnan(x))
        return err_set(b->e, E_FORMAT, "%s: tensor %s is no number", b->m->file.path, w.name);
    *bound = x;
    return OK;
}

status clamped_bind(const binder *b, clamped_weight *w, const char *name)
{
    status st;
    w->in_low = w->out_low = -INFINITY;
    w->in_high = w->out_high = INFINITY;
    if ((st = bind_bound(b, name, "input_min", &w->in_low)) ||
        (st = bind_bound(b, name, "input_max", &w->in_high)) ||
        (st = bind_bound(b, name, "output_min", &w->out_low)) ||
        (st = bind_bound(b, name, "output_max", &w->out_high)))
        return st;
    if (w->in_low > w->in_high || w->out_low > w->out_high)
        return err_set(b->e, E_FORMAT, "%s: the lower bound of %s is above the upper one",
                       b->m->file.path, w->w.name);
    return OK;
}

void clamped_products(pass *p, mat *y, mat x, const clamped_weight *const *w, int n)
{
    mat in = x;
    for (int i = 0; i < n; i++) {
        bool same = i && w[i]->in_low == w[i - 1]->in_low && w[i]->in_high == w[i - 1]->in_high;
        bool bounded = isfinite(w[i]->in_low) || isfinite(w[i]->in_high);
        if (!same)
            in = bounded ? op_clamp(p, x, w[i]->in_low, w[i]->in_high) : x;
        y[i] = op_matmul(p, in, &w[i]->w);
        if (isfinite(w[i]->out_low) || isfinite(w[i]->out_high))
            op_clamp_inplace(p, y[i], w[i]->out_low, w[i]->out_high);
    }
}

mat clamped_product(pass *p, mat x, const clamped_weight *w)
{
    mat y;
    clamped_products(p, &y, x, &w, 1);
    return y;
}
