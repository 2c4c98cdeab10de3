/* lora.c - see lora.h. Everything is made of the device's ops, over ranges of rows. */
#include "backend/lora.h"

#include <string.h>

/* Rows first .. first + n - 1 of a mat, which have the same scales. */
typedef struct lora_run {
    int32_t first, n;
    const float *scale; /* [LORAS_MAX]; NULL: no adapters */
} lora_run;

static const float *scales_of(const pass *p, int32_t row)
{
    return p->lora ? p->lora : p->st->lora[p->rows->seq[row]];
}

static bool same_scales(const float *a, const float *b)
{
    for (int32_t i = 0; i < LORAS_MAX && a != b; i++)
        if ((a ? a[i] : 0) != (b ? b[i] : 0))
            return false;
    return true;
}

/* The next run of `rows` rows, which are those of the pass; false: there is none. Begins with
 * {0}. */
static bool next_lora_run(const pass *p, int32_t rows, lora_run *run)
{
    run->first += run->n;
    run->n = 0;
    if (run->first >= rows)
        return false;
    run->scale = scales_of(p, run->first);
    if (p->lora) {
        run->n = rows - run->first;
        return true;
    }
    while (run->first + run->n < rows && same_scales(run->scale, scales_of(p, run->first + run->n)))
        run->n++;
    return true;
}

static mat run_rows(mat m, const lora_run *run)
{
    return mat_rows(m, run->first, run->n);
}

/* What a device has made of the whole choice is that of a run of all rows. */
static routing run_routing(routing r, const lora_run *run)
{
    size_t at = (size_t)run->first * (size_t)r.k;
    if (run->n == r.rows)
        return r;
    r = (routing){.id = r.id, .weight = r.weight, .k = r.k};
    r.id = r.id ? r.id + at : NULL;
    r.weight = r.weight ? r.weight + at : NULL;
    r.rows = run->n;
    return r;
}

static float scale_of(const lora_run *run, const lora_pair *l)
{
    return run->scale ? run->scale[l->adapter] * l->c : 0;
}

static bool run_adapts(const lora_run *run, const weight *w)
{
    for (const lora_pair *l = w ? w->lora : NULL; l; l = l->next)
        if (scale_of(run, l) != 0)
            return true;
    return false;
}

bool lora_adapts(const pass *p, const weight *w)
{
    lora_run run = {0};
    if (!w || !w->lora || (!p->lora && !p->st->lora))
        return false;
    if (p->lora)
        return run_adapts(&(lora_run){.scale = p->lora}, w);
    while (next_lora_run(p, p->rows->n, &run))
        if (run_adapts(&run, w))
            return true;
    return false;
}

/* FNV-1a, of whole words. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    return (h ^ word) * 0x100000001b3u;
}

static uint64_t mix_rows(pass p, uint64_t h, const rowset *rows)
{
    lora_run run = {0};
    p.rows = rows;
    while (next_lora_run(&p, rows->n, &run)) {
        h = mix(h, (uint64_t)run.n);
        for (int32_t i = 0; i < LORAS_MAX; i++) {
            uint32_t bits = 0;
            if (run.scale)
                memcpy(&bits, &run.scale[i], sizeof bits);
            h = mix(h, bits);
        }
    }
    return h;
}

uint64_t lora_rows_key(const pass *p)
{
    if (!p->lora && !p->st->lora)
        return 0;
    uint64_t h = mix_rows(*p, 0xcbf29ce484222325u, &p->st->all);
    return mix_rows(*p, h, &p->st->out) | 1;
}

/* Are these the rows of the pass? Rows that no step describes have no adapters. */
static bool knows_rows(pass *p, mat x)
{
    return pass_shapes(p, "lora", p->lora || x.rows == p->rows->n);
}

/* y += s t B', and t is the product with A. */
static void add_half(pass *p, mat y, mat t, const lora_pair *l, float s)
{
    const device_ops *op = p->dev->op;
    mat d = pass_mat(p, y.rows, 1, l->b.n_out);
    if (!pass_failed(p) && s != 1)
        op->scale(p, t, s, NULL);
    if (!pass_failed(p))
        op->matmul(p, d, &t, &l->b);
    if (!pass_failed(p))
        op->add(p, y, y, d);
}

/* Adds to rows of one run. The copy that a product makes of x is released with its result. */
static void add_run(pass *p, mat y, mat x, const weight *w, const lora_run *run)
{
    for (const lora_pair *l = w->lora; l; l = l->next) {
        float s = scale_of(run, l);
        size_t mark = pass_mark(p);
        if (s == 0)
            continue;
        mat t = pass_mat(p, x.rows, 1, l->a.n_out), from = x;
        if (!pass_failed(p))
            p->dev->op->matmul(p, t, &from, &l->a);
        add_half(p, y, t, l, s);
        pass_release(p, mark);
    }
}

void lora_add(pass *p, mat y, mat x, const weight *w)
{
    lora_run run = {0};
    if (!knows_rows(p, x))
        return;
    while (next_lora_run(p, x.rows, &run) && !pass_failed(p))
        add_run(p, run_rows(y, &run), run_rows(x, &run), w, &run);
}

void lora_add_embed(pass *p, mat y, const weight *w, float scale)
{
    if (!knows_rows(p, y))
        return;
    for (const lora_pair *l = w->lora; l && !pass_failed(p); l = l->next) {
        lora_run run = {0};
        size_t mark = pass_mark(p);
        mat t = pass_mat(p, y.rows, 1, l->a.n_in);
        if (!pass_failed(p)) /* of every row: a device takes the tokens from the step */
            p->dev->op->embed(p, t, &l->a, 1);
        while (next_lora_run(p, y.rows, &run) && !pass_failed(p))
            if (scale_of(&run, l) != 0)
                add_half(p, run_rows(y, &run), run_rows(t, &run), l, scale_of(&run, l) * scale);
        pass_release(p, mark);
    }
}

/* The halves of a gated unit: of two weights, or of the one that has both. */
static mat up_half(mat a, mat b, const weight *up, int32_t n_ff)
{
    return up ? b : mat_columns(a, n_ff, n_ff);
}

/* A gated unit of one run, its products apart. Their results stay in scratch: behind them is the
 * copy of y that a device makes for the next product. */
static void glu_run(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act,
                    const lora_run *run)
{
    const device_ops *op = p->dev->op;
    mat a = pass_mat(p, x.rows, 1, gate->n_out);
    mat b = up ? pass_mat(p, x.rows, 1, up->n_out) : a;
    if (!pass_failed(p))
        op->matmul(p, a, &x, gate);
    if (!pass_failed(p))
        add_run(p, a, x, gate, run);
    if (!pass_failed(p) && up)
        op->matmul(p, b, &x, up);
    if (!pass_failed(p) && up)
        add_run(p, b, x, up, run);
    if (!pass_failed(p))
        op->act_mul(p, y, mat_columns(a, 0, y->cols), up_half(a, b, up, y->cols), act);
}

/* The same without adapters, as op_glu. */
static void plain_glu(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act)
{
    if (p->dev->op->glu)
        p->dev->op->glu(p, y, x, gate, up, act);
    else
        glu_run(p, y, x, gate, up, act, &(lora_run){0});
}

void lora_glu(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act)
{
    lora_run run = {0};
    if (!knows_rows(p, x))
        return;
    while (next_lora_run(p, x.rows, &run) && !pass_failed(p)) {
        mat to = run_rows(*y, &run);
        size_t mark = pass_mark(p);
        if (run_adapts(&run, gate) || run_adapts(&run, up))
            glu_run(p, &to, run_rows(x, &run), gate, up, act, &run);
        else
            plain_glu(p, &to, run_rows(x, &run), gate, up, act);
        if (run.n == y->rows)
            y->copies = to.copies;
        else /* so that many runs take no more than one of all rows */
            pass_release(p, mark);
    }
}

void lora_router(pass *p, routing *r, mat x, const weight *w, const route_rule *rule)
{
    lora_run run = {0};
    if (!knows_rows(p, x))
        return;
    while (next_lora_run(p, x.rows, &run) && !pass_failed(p)) {
        mat from = run_rows(x, &run);
        routing to = run_routing(*r, &run);
        size_t mark = pass_mark(p);
        if (!run_adapts(&run, w) && p->dev->op->router) {
            p->dev->op->router(p, &to, from, w, rule);
            if (run.n == r->rows)
                *r = to;
            continue;
        }
        mat y = pass_mat(p, from.rows, 1, w->n_out);
        if (!pass_failed(p))
            p->dev->op->matmul(p, y, &from, w);
        if (!pass_failed(p))
            add_run(p, y, from, w, &run);
        if (!pass_failed(p))
            p->dev->op->route(p, to, y, rule);
        pass_release(p, mark);
    }
}

/* ---- Experts ------------------------------------------------------------------------------- */

/* Every pair of row and choice as a row of its own, with one choice. */
static routing pairs_of(routing r)
{
    return (routing){.id = r.id, .weight = r.weight, .rows = r.rows * r.k, .k = 1};
}

/* y[r, j] += s B_e (A_e x[r]), e = r.id[r, j]; rows of y are side by side. */
static void add_experts(pass *p, mat y, mat x, routing r, const weight *w, const lora_run *run)
{
    const device_ops *op = p->dev->op;
    for (const lora_pair *l = w->lora; l; l = l->next) {
        float s = scale_of(run, l);
        size_t mark = pass_mark(p);
        if (s == 0)
            continue;
        mat t = pass_mat(p, x.rows, r.k, l->a.n_out), d = pass_mat(p, x.rows, r.k, l->b.n_out);
        mat from = x;
        if (!pass_failed(p))
            op->moe_matmul(p, t, &from, r, &l->a);
        t = mat_head_rows(t);
        d = mat_head_rows(d);
        if (!pass_failed(p) && s != 1)
            op->scale(p, t, s, NULL);
        if (!pass_failed(p))
            op->moe_matmul(p, d, &t, pairs_of(r), &l->b);
        if (!pass_failed(p))
            op->add(p, mat_head_rows(y), mat_head_rows(y), d);
        pass_release(p, mark);
    }
}

static void moe_glu_run(pass *p, mat y, mat x, routing r, const weight *gate, const weight *up,
                        act_kind act, const lora_run *run)
{
    const device_ops *op = p->dev->op;
    size_t mark = pass_mark(p);
    mat a = pass_mat(p, x.rows, r.k, gate->n_out);
    mat b = up ? pass_mat(p, x.rows, r.k, up->n_out) : a;
    if (!pass_failed(p))
        op->moe_matmul(p, a, &x, r, gate);
    if (!pass_failed(p))
        add_experts(p, a, x, r, gate, run);
    if (!pass_failed(p) && up)
        op->moe_matmul(p, b, &x, r, up);
    if (!pass_failed(p) && up)
        add_experts(p, b, x, r, up, run);
    mat to = mat_head_rows(y);
    a = mat_head_rows(a);
    b = mat_head_rows(b);
    if (!pass_failed(p))
        op->act_mul(p, &to, mat_columns(a, 0, y.cols), up_half(a, b, up, y.cols), act);
    pass_release(p, mark); /* and the copy of y */
}

void lora_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                  act_kind act)
{
    lora_run run = {0};
    if (!knows_rows(p, x))
        return;
    while (next_lora_run(p, x.rows, &run) && !pass_failed(p)) {
        mat to = run_rows(*y, &run), from = run_rows(x, &run);
        routing of = run_routing(*r, &run);
        size_t mark = pass_mark(p);
        if (run_adapts(&run, gate) || run_adapts(&run, up))
            moe_glu_run(p, to, from, of, gate, up, act, &run);
        else
            p->dev->op->moe_glu(p, &to, from, &of, gate, up, act);
        if (run.n == y->rows) {
            y->copies = to.copies;
            *r = of;
        } else {
            pass_release(p, mark);
        }
    }
}

void lora_moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    const device_ops *op = p->dev->op;
    lora_run run = {0};
    if (!knows_rows(p, x))
        return;
    op->moe_down(p, y, x, r, down);
    while (next_lora_run(p, x.rows, &run) && !pass_failed(p)) {
        mat to = run_rows(y, &run), from = run_rows(x, &run);
        routing part = run_routing(r, &run);
        for (const lora_pair *l = down->lora; l; l = l->next) {
            float s = scale_of(&run, l);
            size_t mark = pass_mark(p);
            if (s == 0)
                continue;
            mat t = pass_mat(p, run.n, r.k, l->a.n_out), d = pass_mat(p, run.n, 1, l->b.n_out);
            mat pairs = mat_head_rows(from);
            if (!pass_failed(p))
                op->moe_matmul(p, mat_head_rows(t), &pairs, pairs_of(part), &l->a);
            if (!pass_failed(p) && s != 1)
                op->scale(p, mat_head_rows(t), s, NULL);
            if (!pass_failed(p))
                op->moe_down(p, d, t, part, &l->b);
            if (!pass_failed(p))
                op->add(p, to, to, d);
            pass_release(p, mark);
        }
    }
}
