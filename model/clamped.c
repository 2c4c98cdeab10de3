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

mat clamped_product(pass *p, mat x, const clamped_weight *w)
{
    if (isfinite(w->in_low) || isfinite(w->in_high))
        x = op_clamp(p, x, w->in_low, w->in_high);
    mat y = op_matmul(p, x, &w->w);
    if (isfinite(w->out_low) || isfinite(w->out_high))
        op_clamp_inplace(p, y, w->out_low, w->out_high);
    return y;
}
