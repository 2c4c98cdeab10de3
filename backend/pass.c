/* pass.c - one forward pass: its scratch, its first error, who listens to its layers.
 *
 * Scratch is a bump pointer that a layer takes back to a mark: the same calls give the same
 * addresses, which recorded passes depend on, and nothing here allocates. A dry pass moves the
 * pointer without memory behind it, so the highest place it reached is what a real one needs.
 * Debug builds fill what is released with NaN.
 */
#include "backend/ops.h"
#include "backend/pass.h"

#include <string.h>

enum { SCRATCH_ALIGN = 64 };

void pass_begin(pass *p, device *dev, const step *st, void *scratch, size_t scratch_bytes)
{
    *p = (pass){.dev = dev,
                .st = st,
                .rows = &st->all,
                .scratch = scratch,
                .scratch_bytes = scratch_bytes,
                .dry = scratch == NULL,
                .il = -1};
    if (!p->dry && dev->begin)
        dev->begin(dev, p);
}

void pass_add_host(pass *p, device *dev, void *scratch, size_t scratch_bytes)
{
    p->away = (pass_side){.dev = dev, .scratch = scratch, .scratch_bytes = scratch_bytes};
    if (!p->dry && dev->begin)
        dev->begin(dev, p);
}

void pass_turn(pass *p, int32_t side)
{
    const pass_side there = p->away;
    if (side == p->side || pass_failed(p))
        return;
    if (!there.dev) {
        err_set(&p->e, E_ARG, "layer %d is on a device that the pass does not have", p->il);
        return;
    }
    p->away = (pass_side){p->dev, p->scratch, p->scratch_bytes, p->at, p->peak};
    p->dev = there.dev;
    p->scratch = there.scratch;
    p->scratch_bytes = there.scratch_bytes;
    p->at = there.at;
    p->peak = there.peak;
    p->side = side;
}

size_t pass_peak(const pass *p, int32_t side)
{
    return side == p->side ? p->peak : p->away.peak;
}

void pass_release(pass *p, size_t mark)
{
#ifdef CARAT_DEBUG
    /* A mat used after its release reads NaN, and the logits say so. */
    if (!p->dry && p->dev->kind == DEVICE_CPU && p->at > mark)
        memset(p->scratch + mark, 0xff, p->at - mark);
#endif
    p->at = mark;
}

void *pass_temp(pass *p, size_t n_bytes)
{
    if (pass_failed(p))
        return NULL;
    size_t n = (n_bytes + SCRATCH_ALIGN - 1) & ~(size_t)(SCRATCH_ALIGN - 1);
    if (n < n_bytes || (!p->dry && n > p->scratch_bytes - p->at)) {
        err_set(&p->e, E_MEMORY,
                "the pass needs more scratch than the %zu bytes planned for it (layer %d)",
                p->scratch_bytes, p->il);
        return NULL;
    }
    void *at = p->dry ? NULL : p->scratch + p->at;
    p->at += n;
    if (p->at > p->peak)
        p->peak = p->at;
    return at;
}

mat pass_mat(pass *p, int32_t rows, int32_t heads, int32_t cols)
{
    mat m = {.rows = rows, .heads = heads, .cols = cols, .stride = (int64_t)heads * cols};
    m.at = pass_temp(p, (size_t)rows * (size_t)m.stride * sizeof *m.at);
    return pass_failed(p) ? (mat){0} : m;
}

bool pass_shapes(pass *p, const char *op, bool ok)
{
    if (!pass_failed(p) && !ok)
        err_set(&p->e, E_ARG, "%s: shapes that do not fit (layer %d)", op, p->il);
    return !pass_failed(p);
}

void pass_tap(pass *p, int32_t il, mat x)
{
    if (p->n_taps && p->away.dev)
        err_set(&p->e, E_UNSUPPORTED, "nobody can listen to layers that are on two devices");
    for (int i = 0; i < p->n_taps && !pass_failed(p); i++)
        if (p->tap[i].il == il) {
            mat to = p->tap[i].to;
            if (!pass_shapes(p, "tap", to.rows >= x.rows && mat_width(to) == mat_width(x)))
                return;
            to.rows = x.rows;
            p->dev->op->copy(p, mat_flat(to), mat_flat(x));
        }
}
