/* pass.c - one forward pass: its scratch, its first error, its taps.
 *
 * Scratch is a bump pointer, which a layer sets back to a mark. Equal calls give equal addresses,
 * which recorded passes require, and nothing here allocates. A dry pass moves the pointer without
 * memory behind it: its maximum is the scratch that a real pass needs. Debug builds fill released
 * scratch with NaN.
 */
#include "backend/ops.h"
#include "backend/pass.h"

#include <string.h>

enum { SCRATCH_ALIGN = 64 };

void pass_begin(pass *p, device *dev, const step *st, void *scratch, size_t scratch_bytes)
{
    static _Atomic uint32_t number;
    *p = (pass){.number = ++number,
                .dev = dev,
                .st = st,
                .rows = &st->all,
                .dry = scratch == NULL,
                .plans = scratch == NULL,
                .il = -1};
    pass_add_side(p, dev, scratch, scratch_bytes);
}

void pass_add_side(pass *p, device *dev, void *scratch, size_t scratch_bytes)
{
    if (p->n_sides == PASS_SIDES_MAX) {
        err_set(&p->e, E_ARG, "a pass over more than %d devices", PASS_SIDES_MAX);
        return;
    }
    p->side[p->n_sides++] =
        (pass_side){.dev = dev, .scratch = scratch, .scratch_bytes = scratch_bytes};
    if (!p->dry && dev->begin)
        dev->begin(dev, p);
}

void pass_end(pass *p)
{
    for (int32_t i = 0; i < p->n_sides && !p->dry; i++)
        if (p->side[i].dev->end)
            p->side[i].dev->end(p->side[i].dev, p);
}

void pass_turn(pass *p, int32_t side)
{
    if (pass_failed(p))
        return;
    if (side < 0 || side >= p->n_sides) {
        err_set(&p->e, E_ARG, "layer %d is on a device that the pass does not have", p->il);
        return;
    }
    p->here = side;
    p->dev = p->side[side].dev;
    p->dry = p->plans || p->side[side].replayed;
}

/* ---- Legs ---------------------------------------------------------------------------------- */

static void begin_leg(pass *p)
{
    pass_side *s = &p->side[p->here];
    const rowset *rows = p->rows;
    p->n_legs++;
    s->replayed = p->dev->replay(p->dev, p, p->model, p->kv, &s->y);
    p->dry = s->replayed;
    p->fresh |= !s->replayed;
    if (p->n_sides > 1)
        p->rows = rows; /* the ops follow, and op_keep_outputs is one of them */
}

void pass_first_leg(pass *p, int32_t side, const void *model, const void *kv)
{
    p->legs = true;
    p->model = model;
    p->kv = kv;
    pass_turn(p, side);
    for (int32_t i = 0; i < p->n_sides; i++)
        if (i != side) /* a recording writes to the next side without a wait of its own */
            p->dev->follow(p->dev, p->side[i].dev);
    begin_leg(p);
}

void pass_next_leg(pass *p, int32_t from)
{
    const int32_t here = p->here;
    pass_side *s = &p->side[from];
    if (!p->legs || pass_failed(p))
        return;
    pass_turn(p, from);
    if (!s->replayed) {
        if (s->dev->end)
            s->dev->end(s->dev, p);
        s->dev->recorded(s->dev, p, (mat){0});
    }
    s->replayed = false;
    pass_turn(p, here);
    if (pass_failed(p))
        return;
    p->dev->follow(p->dev, s->dev);
    begin_leg(p);
}

mat pass_last_leg(pass *p, mat y)
{
    pass_side *s = &p->side[p->here];
    bool replayed = s->replayed;
    s->replayed = p->dry = p->legs = false;
    if (replayed)
        return pass_failed(p) ? (mat){0} : s->y;
    pass_end(p);
    bool failed = pass_failed(p); /* then another side may be recording */
    for (int32_t i = 0; i < p->n_sides; i++)
        if (failed || i == p->here)
            p->side[i].dev->recorded(p->side[i].dev, p, y);
    return y;
}

/* ---- Ranks --------------------------------------------------------------------------------- */

static void follow_ranks(pass *p)
{
    device *first = p->side[PASS_MAIN].dev;
    for (int32_t i = 1; i < p->n_sides; i++)
        first->follow(first, p->side[i].dev);
}
static void lead_ranks(pass *p)
{
    for (int32_t i = 1; i < p->n_sides; i++)
        p->side[i].dev->follow(p->side[i].dev, p->side[PASS_MAIN].dev);
}

void pass_line_up_ranks(pass *p)
{
    follow_ranks(p);
    lead_ranks(p);
}

bool pass_first_ranks(pass *p, const void *model, const void *kv, mat *y)
{
    device *first = p->side[PASS_MAIN].dev;
    p->joined = true;
    follow_ranks(p);
    const bool replayed = first->replay(first, p, model, kv, y);
    p->fresh = !replayed;
    lead_ranks(p); /* behind what was replayed; or they join the recording */
    p->joined = !replayed;
    return replayed;
}

mat pass_last_ranks(pass *p, mat y)
{
    device *first = p->side[PASS_MAIN].dev;
    pass_end(p);
    if (!p->joined)
        return y;
    p->joined = false;
    follow_ranks(p);
    first->recorded(first, p, y);
    lead_ranks(p);
    return y;
}

void pass_release(pass *p, size_t mark)
{
    pass_side *s = &p->side[p->here];
#ifdef CARAT_DEBUG
    /* A mat used after its release reads NaN, and the logits say so. */
    if (!p->dry && p->dev->kind == DEVICE_CPU && s->at > mark)
        memset(s->scratch + mark, 0xff, s->at - mark);
#endif
    s->n_releases += s->at > mark;
    s->at = mark;
}

void *pass_temp(pass *p, size_t n_bytes)
{
    pass_side *s = &p->side[p->here];
    if (pass_failed(p))
        return NULL;
    size_t n = (n_bytes + SCRATCH_ALIGN - 1) & ~(size_t)(SCRATCH_ALIGN - 1);
    if (n < n_bytes || (!p->dry && n > s->scratch_bytes - s->at)) {
        err_set(&p->e, E_MEMORY,
                "the pass needs more scratch than the %zu bytes planned for it (layer %d)",
                s->scratch_bytes, p->il);
        return NULL;
    }
    void *at = p->dry ? NULL : s->scratch + s->at;
    s->at += n;
    if (s->at > s->peak)
        s->peak = s->at;
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

enum { CARRY_BYTES = 16384 }; /* the staging buffer between two devices */

void pass_carry(pass *p, int32_t from, void *to, const void *at, size_t n_bytes, send_order order)
{
    device *d = p->dev, *src = p->side[from].dev;
    char piece[CARRY_BYTES];
    if (p->plans)
        p->side[p->here].crossed += n_bytes;
    if (p->dry || p->side[from].replayed || pass_failed(p)) /* a recording has the copy too */
        return;
    if (src->send && src->kind == d->kind) {
        src->send(src, d, to, at, n_bytes, order);
        if (src->failed) /* the receiver would wait for a copy that never comes */
            src->failed(src, &p->e);
        return;
    }
    if (src->host_memory) {
        d->upload(d, to, at, n_bytes);
        return;
    }
    if (d->host_memory) {
        src->download(src, to, at, n_bytes);
        return;
    }
    for (size_t i = 0; i < n_bytes; i += sizeof piece) {
        size_t n = n_bytes - i < sizeof piece ? n_bytes - i : sizeof piece;
        src->download(src, piece, (const char *)at + i, n);
        d->upload(d, (char *)to + i, piece, n);
    }
}

/* Copies x to the tap's side, row by row, because the strides may differ. */
static void carry_tap(pass *p, int32_t side, mat to, mat x)
{
    int32_t from = p->here;
    pass_turn(p, side);
    for (int32_t r = 0; r < x.rows; r++)
        pass_carry(p, from, mat_row(to, r), mat_row(x, r), (size_t)mat_width(x) * sizeof *x.at,
                   SEND_BEHIND_BOTH);
    if (!pass_failed(p)) /* then the pass has not turned */
        pass_turn(p, from);
}

void pass_tap(pass *p, int32_t il, mat x)
{
    for (int i = 0; p->taps && i < p->taps->n && !pass_failed(p); i++) {
        const pass_tap_point *t = &p->taps->at[i];
        mat to = t->to;
        if (t->il != il || (p->n_ranks && t->side != p->rank) || /* that rank has the same x */
            !pass_shapes(p, "tap", to.rows >= x.rows && mat_width(to) == mat_width(x)))
            continue;
        to.rows = x.rows;
        if (t->side == p->here)
            p->dev->op->copy(p, mat_flat(to), mat_flat(x));
        else
            carry_tap(p, t->side, to, x);
    }
}

int32_t pass_last_tap(const pass *p)
{
    int32_t last = -1;
    for (int i = 0; p->taps && i < p->taps->n; i++)
        last = p->taps->at[i].il > last ? p->taps->at[i].il : last;
    return last;
}
