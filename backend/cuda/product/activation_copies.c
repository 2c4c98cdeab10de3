/* activation_copies.c - copies of activations for products and attention (mat.copies).
 *
 * A product of few rows reads its activation as int8, a product of many rows as bf16. The op that
 * makes an activation makes the copy in the same kernel, where it knows that a product is next. Any
 * other is made by the first product that reads it.
 */
#include "backend/cuda/cuda_int.h"

dev_mat cuda_mat(mat m)
{
    return (dev_mat){m.at, m.rows, m.heads * m.cols, m.stride};
}

static copy_form form_of(bool bf)
{
    return bf ? COPY_BF16 : COPY_INT8;
}

/* In memory that is there; NULL: its shape alone. *n_bytes: that memory. */
static dev_quant copy_at(void *at, int32_t rows, int32_t cols, bool bf, bool single,
                         size_t *n_bytes)
{
    dev_quant q = {.rows = rows, .cols = cols, .tile = bf || single || rows == 1 ? 1 : 8};
    const size_t padded = (size_t)(rows + q.tile - 1) / (size_t)q.tile * (size_t)q.tile;
    const size_t codes = padded * (size_t)cols; /* a multiple of 32 */
    if (bf) {
        *n_bytes = (size_t)rows * (size_t)cols * sizeof *q.bf;
        q.bf = at;
        return q;
    }
    *n_bytes = codes + padded * (size_t)(cols / GROUP) * 8;
    q.q = at;
    q.s = at ? (char *)at + codes : NULL;
    return q;
}

/* Of y's floats, in scratch or in the room that y has. */
static dev_quant give_copy(pass *p, mat *y, bool bf, bool single)
{
    mat_copies *c = &y->copies;
    const copy_form f = form_of(bf);
    size_t n;
    const dev_quant q = copy_at(NULL, y->rows, mat_width(*y), bf, single, &n);
    if (c->state[f] != COPY_ROOM)
        c->at[f] = pass_temp(p, n);
    c->state[f] = q.tile == 1 ? COPY_LINE : COPY_TILES;
    c->of = y->at;
    c->rows = y->rows;
    c->cols = mat_width(*y);
    return copy_at(c->at[f], y->rows, mat_width(*y), bf, single, &n);
}

void cuda_copy_room(pass *p, mat *y, bool bf)
{
    give_copy(p, y, bf, false);
    y->copies.state[form_of(bf)] = COPY_ROOM;
}

dev_quant cuda_new_copy(pass *p, mat *y, bool bf, bool single)
{
    const copy_form f = form_of(bf), other = form_of(!bf);
    y->copies.state[other] = COPY_NONE;
    if (y->copies.state[f] != COPY_ROOM)
        y->copies.state[f] = COPY_NONE;
    return give_copy(p, y, bf, single);
}

/* Are its copies those of these floats, in these rows or, `line`, in any? */
static bool copies_are_of(mat x, bool line)
{
    const mat_copies *c = &x.copies;
    const int32_t width = mat_width(x);
    return c->of == x.at && x.stride == width &&
           (line ? (int64_t)c->rows * c->cols == (int64_t)x.rows * width
                 : c->rows == x.rows && c->cols == width);
}

void cuda_rotated_room(pass *p, mat *q)
{
    mat_copies *c = &q->copies;
    *c = (mat_copies){.of = q->at, .rows = q->rows, .cols = mat_width(*q)};
    c->at[COPY_ROTATED] = pass_temp(p, (size_t)c->rows * (size_t)c->cols * sizeof(float));
    c->state[COPY_ROTATED] = COPY_ROOM;
}

bool cuda_has_rotated_room(mat q)
{
    return q.copies.state[COPY_ROTATED] && copies_are_of(q, false);
}

bool cuda_has_copy(mat x, bool bf, bool single)
{
    const bool line = bf || single || x.rows == 1;
    return x.copies.state[form_of(bf)] == (line ? COPY_LINE : COPY_TILES) && copies_are_of(x, line);
}

dev_quant cuda_copy(pass *p, mat *x, bool bf, bool single)
{
    size_t n;
    /* Rows with different adapters are products of their own, which no dry pass has. */
    if (cuda_has_copy(*x, bf, single) && !(p->plans && p->lora))
        return copy_at(x->copies.at[form_of(bf)], x->rows, mat_width(*x), bf, single, &n);
    mat with = copies_are_of(*x, false) ? *x : mat_bare(*x);
    with.copies.state[form_of(bf)] = COPY_NONE;
    const dev_quant q = give_copy(p, &with, bf, single);
    if (x->stride == mat_width(*x))
        *x = with;
    if (!p->dry && !pass_failed(p))
        cu_quantise(cuda_select(p->dev)->stream, cuda_mat(*x), q);
    return q;
}
