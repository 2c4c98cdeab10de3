/* ops.c - the op table of the CUDA device: which kernel, by the kind of rows and weight layout.
 *
 *   rows of     weights of blocks                 weights of floats
 *   answers: 1  matmul_one   int8 dots            matmul_float   f32
 *   more        matmul_rows  int8 tensor cores    matmul_float   f32
 *   experts     moe_ops.c
 *   prompts     matmul_mma   bf16 tensor cores    F32: matmul_float, else matmul_mma
 *               (matmul_short, matmul_tall_hopper)
 *     long      matmul_wide or cuBLASLt (blas.c), over weights made bf16
 *     int8      as answers; long ones matmul_wide8 (rates.c)
 *
 * Answers and prompts round differently, whatever their number of rows (step.prompt). So a row's
 * bits depend neither on the other rows of its pass nor on how its prompt was cut into passes.
 *
 * Every op takes scratch first, and asks once at its end whether a launch failed. Gated units,
 * norms and attention also write the copy that the next product reads (activation_copies.c).
 */
#include "backend/cuda/ops_int.h"

#include <stdint.h>

/* Do products read it as bf16 in this pass? Rows of prompts, unless they multiply by int8. */
static bool reads_bf16(pass *p)
{
    return !cuda_few(p) && !cuda_of(p)->int8_prompts;
}

static bool may_have_copy(mat y)
{
    return y.heads == 1 && y.cols % GROUP == 0 && y.stride == y.cols;
}

/* The copy of y that the next product reads; nothing if y has no such copy. */
static dev_quant new_copy(pass *p, mat *y)
{
    return may_have_copy(*y) ? cuda_new_copy(p, y, reads_bf16(p), false) : (dev_quant){0};
}

static void c_copy_room(pass *p, mat *y)
{
    if (may_have_copy(*y))
        cuda_copy_room(p, y, reads_bf16(p));
}

/* The same where heads may be rows: the copy is that of the rows that they are part of. */
static dev_quant new_copy_of_heads(pass *p, mat *y)
{
    int32_t width = mat_width(*y), rows = p->rows->n;
    bool answers = cuda_few(p);
    if (width % GROUP || y->stride != width || (answers && rows != 1 && rows != y->rows))
        return (dev_quant){0};
    return cuda_new_copy(p, y, !answers, answers && rows == 1);
}

/* ---- Element by element -------------------------------------------------------------------- */

static void embed(pass *p, mat y, row_ids ids, const weight *w, float scale)
{
    if (cuda_loaded(p, w))
        CUDA_OP(p, "embed", y,
                cu_embed(cuda_of(p)->stream, cuda_mat(y), w->packed, (int)w->type, w->row_bytes,
                         ids, scale));
}

static void c_embed(pass *p, mat y, const weight *w, float scale)
{
    embed(p, y, (row_ids){.token = cuda_step_rows(p)->rows.token}, w, scale);
}

static void c_embed_at(pass *p, mat y, mat ids, const weight *w, float scale)
{
    embed(p, y, (row_ids){.at = ids.at, .stride = ids.stride, .n_ids = w->n_out}, w, scale);
}

/* y = rms_norm(x) w. Short rows and heads go without a copy, by a kernel that makes none. */
static void c_rms_norm(pass *p, mat *y, mat x, const weight *w, float eps)
{
    const float *v = cuda_vector(p, w);
    const bool heads =
        (x.heads > 1 || x.cols <= 512 || !may_have_copy(*y)) && cuda_heads_fit(*y, x);
    *y = heads ? mat_bare(*y) : *y;
    const dev_quant q = heads ? (dev_quant){0} : new_copy(p, y);
    if (cuda_skip(p, *y))
        return;
    if (heads)
        cuda_norm_heads(p, *y, x, v, eps);
    else
        cu_rms_norm(cuda_of(p)->stream, cuda_mat(*y), cuda_mat(x), x.heads, v, eps, q);
    cuda_done(p, "rms_norm");
}

void cuda_act_mul(pass *p, mat *y, mat a, mat b, act_kind act)
{
    dev_quant q = new_copy_of_heads(p, y);
    int share = mat_width(a) == mat_width(b) ? 1 : b.cols;
    if (cuda_skip(p, *y))
        return;
    cu_act_mul(cuda_of(p)->stream, cuda_mat(*y), cuda_mat(a), cuda_mat(b), (int)act, share, q);
    cuda_done(p, "act_mul");
}

void cuda_rope(pass *p, mat x, const rope *f)
{
    if (cuda_idle(p, x))
        return;
    const step_rows *rows = cuda_step_rows(p);
    bool axes = rope_by_axes(f, p->rows), woven = axes && f->section[0];
    cuda_select(p->dev);
    rope_args a = {.x = cuda_mat(x),
                   .heads = x.heads,
                   .head_dim = x.cols,
                   .n_pairs = f->n_pairs,
                   .part = rope_part(f),
                   .pair_width = f->interleaved ? 2 : 1,
                   .pair_step = pair_step(f),
                   .range = axes && !woven ? f->n_pairs / f->n_axes : f->n_pairs,
                   .pos = {rows->rows.pos},
                   .inv_freq = f->inv_freq,
                   .factor = rope_factor(f),
                   .grow = f->grow,
                   .period = f->period};
    for (int32_t i = 0; axes && i < f->n_axes; i++) {
        a.pos[i] = rows->axis[i];
        a.section[i] = f->section[i];
    }
    cu_rope(cuda_of(p)->stream, a);
    cuda_done(p, "rope");
}

static void c_add(pass *p, mat y, mat a, mat b)
{
    CUDA_OP(p, "add", y, cu_add(cuda_of(p)->stream, cuda_mat(y), cuda_mat(a), cuda_mat(b)));
}

_Static_assert((int)SUM_RANKS == (int)RANKS_MAX && (int)SUM_ROWS == (int)RANK_SUM_ROWS &&
                   (int)SUMS_OF_PASS == (int)RANK_SUMS_MAX,
               "inboxes of the host's size");

static void c_sum_ranks(pass *p, mat y, const rank_sum *s)
{
    cuda_device *c = cuda_of(p);
    rank_sum_args a = {.y = cuda_mat(y),
                       .n_parts = s->n_parts,
                       .n_ranks = s->n_ranks,
                       .rank = s->rank,
                       .cols = s->cols,
                       .index = s->index,
                       .pass = c->pass_number,
                       .sends = s->sends,
                       .takes = s->takes};
    for (int32_t i = 0; i < s->n_parts; i++)
        a.part[i] = cuda_mat(s->part[i]);
    a.more = cuda_mat(s->more);
    memcpy(a.inbox, s->inbox, sizeof a.inbox);
    CUDA_OP(p, "rank sum", y, cu_rank_sum(c->stream, a));
}

static void c_ordered_sum(pass *p, const ordered_sum *s)
{
    const mat y = s->y[0];
    ordered_sum_args a = {
        .n_y = s->n_y, .n_v = s->n_v, .n = (size_t)y.rows * (size_t)y.stride};
    for (int32_t i = 0; i < s->n_y; i++)
        a.y[i] = s->y[i].at;
    for (int32_t i = 0; i < s->n_v; i++)
        a.v[i] = s->v[i].at;
    CUDA_OP(p, "ordered sum", y, cu_ordered_sum(cuda_of(p)->stream, a));
}

static void c_scale(pass *p, mat x, float k, const weight *w)
{
    const float *v = cuda_vector(p, w);
    CUDA_OP(p, "scale", x, cu_scale(cuda_of(p)->stream, cuda_mat(x), k, v));
}

static void c_gather(pass *p, mat y, mat x, const int32_t *row)
{
    if (row != p->st->out_row)
        err_set(&p->e, E_UNSUPPORTED, "gather on a CUDA device takes the step's own rows");
    CUDA_OP(p, "gather", y,
            cu_gather(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), cuda_of(p)->out_row));
}

static void c_copy(pass *p, mat y, mat x)
{
    CUDA_OP(p, "copy", y, cu_gather(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), NULL));
}

static void c_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids)
{
    CUDA_OP(p, "softcap", x, cu_softcap(cuda_of(p)->stream, cuda_mat(x), cap, ids, n_ids));
}

static void c_best(pass *p, mat y, mat x)
{
    best_args a = {
        .x = cuda_mat(x), .k = y.cols, .n_piece = (x.cols + BEST_PIECE - 1) / BEST_PIECE};
    size_t n = (size_t)x.rows * (size_t)a.n_piece, mark = pass_mark(p);
    if (a.k * a.n_piece > BEST_CANDIDATES) {
        err_set(&p->e, E_UNSUPPORTED, "the best %d of %d columns on a CUDA device", a.k, x.cols);
        return;
    }
    a.candidate = pass_temp(p, n * (size_t)a.k * 2 * sizeof *a.candidate);
    a.sum = pass_temp(p, n * sizeof *a.sum);
    pass_release(p, mark);
    a.y = cuda_mat(y);
    CUDA_OP(p, "best", y, cu_best(cuda_of(p)->stream, a));
}

/* ---- Products ------------------------------------------------------------------------------ */

/* True if the product is done, or, in a dry pass, if it may be. */
static bool long_matmul(pass *p, mat y, dev_quant q, const weight *w, int32_t kind)
{
    cuda_device *c = cuda_of(p);
    int32_t n_at_a_time = w->n_mat == 1 ? cuda_long_piece(w->n_in, w->n_out) : 0;
    long_choice by = {LONG_ALL, 0}; /* of a dry pass: weights are not loaded yet */
    if (!p->dry)
        by = cuda_long_choice(c, w);
    if (!n_at_a_time || y.rows < by.rows)
        return false;
    size_t mark = pass_mark(p);
    uint16_t *to =
        kind == PACK_BF16 ? NULL : pass_temp(p, 2 * (size_t)n_at_a_time * (size_t)w->n_in);
    pass_release(p, mark);
    if (cuda_skip(p, y))
        return true;
    packed v = cuda_view(w);
    for (int32_t first = 0; first < w->n_out; first += n_at_a_time) {
        int32_t n = w->n_out - first < n_at_a_time ? w->n_out - first : n_at_a_time;
        const uint16_t *from = (const uint16_t *)v.codes + (size_t)first * (size_t)w->n_in;
        dev_mat d = cuda_mat(y);
        d.at += first;
        d.cols = n;
        if (to)
            cu_unpack_bf16(c->stream, v, first, n, to);
        if (!cuda_long_matmul(c, d, q.bf, to ? to : from, w, by.way))
            err_set(&p->e, E_IO, "%s: cuBLASLt refused a product of %d x %d x %d", c->name, y.rows,
                    w->n_in, n);
    }
    return true;
}

/* Does the product of this many rows of a prompt run on the integer tensor cores, over weights
 * turned into records? Fewer rows take the kernels of answers, which give the same bits. */
static bool is_long_int8(const pass *p, int32_t rows, const weight *w)
{
    enum { LEAST = 64 }; /* rows that repay the pass over the weights; estimated, not measured */
    return !cuda_few(p) && cuda_prompts_int8(cuda_of(p), w, cuda_kind(p, w)) && rows > LEAST &&
           cuda_long_piece(w->n_in, w->n_out);
}

static void long_int8(pass *p, mat y, mat *x, const weight *w)
{
    cuda_device *c = cuda_of(p);
    int32_t n_at_a_time = cuda_long_piece(w->n_in, w->n_out);
    dev_quant q = cuda_copy(p, x, false, false);
    size_t mark = pass_mark(p);
    void *records = pass_temp(p, wide8_bytes(w->n_in, n_at_a_time));
    pass_release(p, mark);
    if (cuda_skip(p, y))
        return;
    const packed v = cuda_view(w), sums = cuda_answers_view(w);
    for (int32_t first = 0; first < w->n_out; first += n_at_a_time) {
        dev_mat d = cuda_mat(y);
        d.at += first;
        d.cols = w->n_out - first < n_at_a_time ? w->n_out - first : n_at_a_time;
        cu_unpack8(c->stream, v, first, d.cols, records);
        cu_matmul_wide8(c->stream, d, q, &sums, records);
    }
}

/* The int8 copy. One short row without one stays floats: each block of the product makes it. */
static dev_quant rows_copy(pass *p, mat *x)
{
    enum { SHORT = 512 };
    if (x->rows == 1 && x->cols <= SHORT && !cuda_has_copy(*x, false, false))
        return (dev_quant){0};
    return cuda_copy(p, x, false, false);
}

/* Do the kernels of answers multiply these rows by w, a weight of blocks? */
static bool as_answers(const pass *p, int32_t rows, const weight *w)
{
    int32_t kind = cuda_kind(p, w);
    if (cuda_is_float(kind) || cuda_few(p))
        return !cuda_is_float(kind);
    return cuda_prompts_int8(cuda_of(p), w, kind) ? !is_long_int8(p, rows, w)
                                                  : w->n_in % PRODUCT_COLUMNS != 0;
}

/* The copy that the product of x with w reads, which the sum that is x can make. */
static dev_quant reader_copy(pass *p, mat *x, const weight *w)
{
    const bool int8 = as_answers(p, x->rows, w) || is_long_int8(p, x->rows, w);
    const bool floats = cuda_few(p) || cuda_kind(p, w) == PACK_F32 || w->n_in % PRODUCT_COLUMNS;
    if (x->cols % GROUP || x->stride != x->cols || (!int8 && floats))
        return (dev_quant){0};
    return cuda_new_copy(p, x, !int8, false);
}

static void c_residual(pass *p, mat *x, const residual *r, mat *h, const norm_want *want, int32_t n)
{
    residual_args a = {.x = cuda_mat(*x),
                       .y = cuda_mat(r->y),
                       .w = cuda_vector(p, r->norm),
                       .cw = cuda_vector(p, r->scale),
                       .eps = r->eps,
                       .b = cuda_mat(r->b.y),
                       .parts = r->b.parts,
                       .k = r->b.k,
                       .yw = cuda_vector(p, r->y_norm),
                       .bw = cuda_vector(p, r->b.w),
                       .n_h = n,
                       .plain = !r->norm};
    if (!r->y.rows && n == 1 && want->c == 1) {
        c_rms_norm(p, h, *x, want->w, r->eps);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        a.h[i] = (norm_job){.y = cuda_mat(h[i]),
                            .w = cuda_vector(p, want[i].w),
                            .c = want[i].c,
                            .q = new_copy(p, &h[i])};
    if (!n && r->reader)
        a.q = reader_copy(p, x, r->reader);
    if (cuda_skip(p, *x))
        return;
    cu_residual(cuda_of(p)->stream, a);
    cuda_done(p, "residual");
}

launch_memory cuda_launch_memory(cuda_device *c)
{
    launch_memory memory = c->launch;
    memory.ticket += c->next_ticket++ % (TICKETS / ONE_TICKETS) * ONE_TICKETS;
    return memory;
}

static void launch_products(cuda_device *c, const one_product *job, int32_t n)
{
    product_args rows[ONE_JOBS];
    one_product one[ONE_JOBS];
    for (int i = 0; i < n; i++) {
        one[i] = job[i];
        one[i].p.late |= c->router_runs;
        rows[i] = one[i].p;
    }
    if (job->p.y.rows == 1)
        cu_products(c->stream, one, n, cuda_launch_memory(c));
    else
        cu_product_rows(c->stream, rows, n, c->launch);
    for (int i = 0; i < n; i++) {
        cuda_reads(c, &job[i].p.w, 1);
        if (job[i].p.glu && !job[i].p.up_row)
            cuda_reads(c, &job[i].p.up, 1);
    }
    if (c->router_runs)
        c->routers_ended = c->n_routers;
    c->router_runs = false;
}

/* Of n parts of a row, of n_in columns each in n_tiles tiles, part i. */
static x_part part_of_row(int32_t n_in, int32_t i, int32_t n, int32_t n_tiles)
{
    const int32_t width = n_in / n_tiles / GROUP;
    if (n_tiles == 1)
        return (x_part){.first = i * width};
    return (x_part){.first = i * width, .tile = width, .step = n * width};
}

/* In one launch. timed, times: of a single product, as in one_product. n_tiles > 0: of parts of x,
 * see op_matmul_segments. */
static void multiply(pass *p, const mat *y, mat *x, const weight *const *w, int32_t n,
                     int32_t n_tiles, float *timed, const float *times)
{
    one_product job[ONE_JOBS];
    dev_quant q = n_tiles ? cuda_copy(p, x, false, false) : rows_copy(p, x);
    for (int32_t i = 0; i < n && !p->dry; i++) {
        const float *bias = cuda_vector(p, w[i]->bias);
        job[i] =
            (one_product){.p = {.w = cuda_answers_view(w[i]), .n_out = w[i]->n_out, .bias = bias},
                          .floats = q.q ? NULL : x->at,
                          .timed = timed,
                          .times = times};
        job[i].p.x = q;
        if (n_tiles)
            job[i].p.x_from = part_of_row(w[i]->n_in, i, n, n_tiles);
        job[i].p.y = cuda_mat(y[i]);
    }
    if (cuda_skip(p, y[0]))
        return;
    launch_products(cuda_of(p), job, n);
    cuda_done(p, "matmul");
}

/* Are these rows of a prompt few enough for matmul_short.cu, and w, which is loaded, for it? */
static bool is_short(const pass *p, int32_t rows, const weight *w)
{
    return rows <= SHORT_ROWS && !as_answers(p, rows, w) && !cuda_is_float(cuda_kind(p, w)) &&
           !is_long_int8(p, rows, w) && rows < cuda_long_choice(cuda_of(p), w).rows;
}

/* The first of n products in one launch: those of short rows by weights of one kind. Returns how
 * many; 0: the first is not of these, or alone. A plan has no weights yet, so it has none. */
static int32_t multiply_short(pass *p, const mat *y, mat *x, const weight *const *w, int32_t n)
{
    dev_mat to[SHORT_JOBS];
    packed of[SHORT_JOBS];
    int32_t m = 0;
    for (; !p->dry && m < n && m < SHORT_JOBS && is_short(p, x->rows, w[m]); m++) {
        to[m] = cuda_mat(y[m]);
        of[m] = cuda_view(w[m]);
        if (of[m].kind != of[0].kind)
            break;
    }
    if (m < 2)
        return 0;
    dev_quant q = cuda_copy(p, x, true, false);
    if (cuda_skip(p, y[0]))
        return m;
    if (!cu_matmul_short(cuda_of(p)->stream, to, q, of, m))
        return 0;
    for (int32_t i = 0; i < m; i++)
        if (w[i]->bias)
            cu_bias(cuda_of(p)->stream, to[i], cuda_vector(p, w[i]->bias));
    cuda_done(p, "matmul");
    return m;
}

static void multiply_alone(pass *p, mat y, mat *x, const weight *w)
{
    cuda_device *c = cuda_of(p);
    int32_t kind = cuda_kind(p, w);
    const float *bias = cuda_vector(p, w->bias);
    if (is_long_int8(p, y.rows, w)) {
        long_int8(p, y, x, w);
    } else if (cuda_few(p) || kind == PACK_F32 || w->n_in % PRODUCT_COLUMNS) {
        if (cuda_skip(p, y))
            return;
        const packed v = cuda_view(w);
        cu_matmul_float(c->stream, cuda_mat(y), cuda_mat(*x), v, !cuda_few(p));
        cuda_reads(c, &v, 1);
    } else {
        dev_quant q = cuda_copy(p, x, true, false);
        if (!long_matmul(p, y, q, w, kind) && !cuda_skip(p, y)) {
            cu_matmul_mma(c->stream, cuda_mat(y), q, cuda_view(w));
        }
    }
    if (cuda_idle(p, y))
        return;
    if (bias)
        cu_bias(c->stream, cuda_mat(y), bias);
    cuda_done(p, "matmul");
}

static void c_matmuls(pass *p, const mat *y, mat *x, const weight *const *w, int32_t n)
{
    const weight *together[ONE_JOBS];
    mat to[ONE_JOBS];
    int32_t n_together = 0;
    _Static_assert((int)ONE_JOBS == (int)MATMULS_MAX, "a launch takes all products of an op");
    for (int32_t i = 0; i < n; i++) {
        if (!cuda_loaded(p, w[i]))
            return;
        if (!as_answers(p, y[i].rows, w[i]))
            continue;
        to[n_together] = y[i];
        together[n_together++] = w[i];
    }
    if (n_together)
        multiply(p, to, x, together, n_together, 0, NULL, NULL);
    for (int32_t i = 0; i < n;) {
        const int32_t m = multiply_short(p, y + i, x, w + i, n - i);
        if (!m && !as_answers(p, y[i].rows, w[i]))
            multiply_alone(p, y[i], x, w[i]);
        i += m ? m : 1;
    }
}

/* Parts are whole groups. Those of tiles are whole units, as matmul_rows.cu takes them. */
static bool c_matmul_segments(pass *p, const mat *y, mat *x, const weight *w, int32_t n,
                              int32_t n_tiles)
{
    const weight *each[ONE_JOBS];
    const int32_t whole = n_tiles > 1 ? n_tiles * UNIT_COLUMNS : GROUP;
    bool can = x->stride == x->cols && w->n_in % whole == 0;
    for (int32_t i = 0; i < n && can; i++) {
        each[i] = &w[i];
        can = as_answers(p, x->rows, &w[i]) && w[i].n_in == w->n_in;
    }
    for (int32_t i = 0; i < n && can; i++)
        if (!cuda_loaded(p, &w[i]))
            return true;
    if (can)
        multiply(p, y, x, each, n, n_tiles > 1 ? n_tiles : 1, NULL, NULL);
    return can;
}

void cuda_matmul(pass *p, mat y, mat *x, const weight *w)
{
    c_matmuls(p, &y, x, &w, 1);
}

static void c_matmul_gate(pass *p, mat y, mat g, mat x, const weight *w, mat b, act_kind act)
{
    if (act != ACT_GELU_TANH || !cuda_few(p) || !as_answers(p, 1, w)) {
        cuda_matmul(p, g, &x, w);
        cuda_act_mul(p, &y, g, b, act);
    } else if (cuda_loaded(p, w)) {
        multiply(p, &g, &x, &w, 1, 0, y.at, b.at);
    }
}

static bool c_ple(pass *p, mat y, mat x, const weight *gate, mat b, const weight *proj)
{
    cuda_device *c = cuda_of(p);
    if (p->dry || x.rows != 1 || !cuda_few(p) || gate->bias || proj->bias || c->router_runs ||
        !gate->packed || !proj->packed || !cuda_has_copy(x, false, false) || cuda_skip(p, y))
        return false;
    const packed w[2] = {cuda_answers_view(gate), cuda_answers_view(proj)};
    if (!cu_ple(c->stream, cuda_mat(y), cuda_copy(p, &x, false, false), w[0], w[1], b.at))
        return false;
    cuda_reads(c, w, 1);
    cuda_reads(c, w + 1, 1);
    cuda_done(p, "ple");
    return true;
}

/* late: it may let the next kernel begin late. True: it does. */
static bool gated_unit(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act,
                       bool late)
{
    cuda_device *c = cuda_of(p);
    bool plain = cuda_gates(act) && act != ACT_SWIGLU_CUT && !gate->bias && !(up && up->bias);
    if (!plain || !cuda_few(p) || !cuda_pairs(p, gate, up, y->cols)) {
        mat a = pass_mat(p, x.rows, 1, gate->n_out);
        mat b = up ? pass_mat(p, x.rows, 1, up->n_out) : a;
        if (pass_failed(p))
            return false;
        c_matmuls(p, (mat[]){a, b}, &x, (const weight *[]){gate, up}, up ? 2 : 1);
        cuda_act_mul(p, y, mat_columns(a, 0, y->cols), up ? b : mat_columns(a, y->cols, y->cols),
                     act);
        return false;
    }
    if (!cuda_loaded(p, gate) || (up && !cuda_loaded(p, up)))
        return false;
    dev_quant q = rows_copy(p, &x), copy = new_copy(p, y);
    if (cuda_skip(p, *y))
        return false;
    one_product a = {.p = cuda_pair_args(gate, up, y->cols, act), .floats = q.q ? NULL : x.at};
    a.p.y = cuda_mat(*y);
    a.p.x = q;
    a.p.q = copy;
    a.p.late = late;
    launch_products(c, &a, 1);
    cuda_done(p, "glu");
    return late;
}

static void c_glu(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act)
{
    gated_unit(p, y, x, gate, up, act, false);
}

static void c_glu_router(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act,
                         routing *r, mat z, const expert_router *to)
{
    const bool late = gated_unit(p, y, x, gate, up, act, true);
    cuda_router_beside(p, r, z, to, late);
}

const device_ops cuda_ops = {
    .embed = c_embed,
    .embed_at = c_embed_at,
    .rms_norm = c_rms_norm,
    .matmul = cuda_matmul,
    .matmuls = c_matmuls,
    .matmul_gate = c_matmul_gate,
    .ple = c_ple,
    .glu = c_glu,
    .glu_router = c_glu_router,
    .act_mul = cuda_act_mul,
    .rope = cuda_rope,
    .kv_store = cuda_kv_store,
    .qkv = cuda_qkv,
    .attend = cuda_attend,
    .attend_gate = cuda_attend_gate,
    .watch_pages = cuda_watch_pages,
    .add = c_add,
    .sum_ranks = c_sum_ranks,
    .ordered_sum = c_ordered_sum,
    .matmul_segments = c_matmul_segments,
    .moe_down_segments = cuda_moe_down_segments,
    .scale = c_scale,
    .residual = c_residual,
    .copy_room = c_copy_room,
    .route = cuda_route,
    .router = cuda_router,
    .moe_glu = cuda_moe_glu,
    .moe_down = cuda_moe_down,
    .moe_parts = cuda_moe_parts,
    .mixture = cuda_mixture,
    .moe_matmul = cuda_moe_matmul,
    .renumber = cuda_renumber,
    .conv = cuda_conv,
    .delta = cuda_delta,
    .delta_unit = cuda_delta_unit,
    .gather = c_gather,
    .copy = c_copy,
    .softcap = c_softcap,
    .best = c_best,
    .clamp = cuda_clamp,
    .pool = cuda_pool,
    .standardize = cuda_standardize,
    .layer_norm = cuda_layer_norm,
    .act = cuda_act,
    .embed_mix = cuda_embed_mix,
    .unfold = cuda_unfold,
    .depthwise = cuda_depthwise,
    .near = cuda_near,
};
