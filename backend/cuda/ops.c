/* ops.c - the op table of the CUDA device: which kernel, by the kind of rows and weight layout.
 *
 *   rows of     weights of blocks                 weights of floats
 *   answers: 1  matmul_one   int8 dots            matmul_float   f32
 *   more        matmul_rows  int8 tensor cores    matmul_float   f32
 *   experts     matmul_vec   one row; more: matmul_experts, those of one expert together
 *   prompts     matmul_mma   bf16 tensor cores    F32: matmul_float, else matmul_mma
 *
 * Answers and prompts round differently, whatever their number of rows (step.prompt). So a row's
 * bits depend neither on the other rows of its pass nor on how its prompt was cut into passes.
 *
 * Every op takes scratch first, announces what it writes before it enqueues (shadow.c says why),
 * and asks once at its end whether a launch failed. Gated units and norms also write the int8 copy
 * that the next product reads.
 */
#include "backend/cuda/ops_int.h"

#include <stdint.h>

static bool loaded(pass *p, const weight *w)
{
    if (!w->packed)
        err_set(&p->e, E_ARG, "tensor %s is not on the device", w->name);
    return w->packed != NULL;
}

static void wrote(pass *p, mat y)
{
    size_t n = (size_t)(y.rows ? y.rows - 1 : 0) * (size_t)y.stride + (size_t)mat_width(y);
    cuda_wrote(cuda_of(p), y.at, n * sizeof(float));
}

/* Do the rows of this pass take the kernels of few rows? Those of answers do. */
static bool few(const pass *p)
{
    return !p->st->prompt;
}

/* Rows first to first + n of a mat, and of a copy; `first` is a multiple of 8. */
static mat some_rows(mat m, int32_t first, int32_t n)
{
    m.at = m.at ? m.at + first * m.stride : NULL;
    m.rows = n;
    return m;
}
static dev_quant some_of_copy(dev_quant q, int32_t first, int32_t n)
{
    if (q.q) {
        q.q += (size_t)first * (size_t)q.cols;
        q.s = (char *)q.s + (size_t)first * (size_t)(q.cols / GROUP) * 8;
    }
    q.rows = n;
    return q;
}

/* Scratch for the copy of y that the next product reads; nothing if y has no such copy. */
static dev_quant copy_room(pass *p, mat y)
{
    if (y.heads != 1 || y.cols % GROUP || y.stride != y.cols)
        return (dev_quant){0};
    return cuda_quant_room(p, y.rows, y.cols, !few(p), false);
}

/* The same where heads may be rows: the copy is that of the rows that they are part of. Only
 * cuda_join_gates can make it of several rows. */
static dev_quant copy_room_of_heads(pass *p, mat y, bool gates)
{
    int32_t width = mat_width(y), rows = p->rows->n;
    bool answers = few(p);
    if (width % GROUP || y.stride != width)
        return (dev_quant){0};
    if (!answers || rows == 1 || rows == y.rows)
        return cuda_quant_room(p, y.rows, width, !answers, answers && rows == 1);
    if (!gates || rows < 1 || y.rows % rows)
        return (dev_quant){0};
    return cuda_quant_room(p, rows, y.rows / rows * width, false, false);
}

/* ---- Element by element -------------------------------------------------------------------- */

static void c_embed(pass *p, mat y, const weight *w, float scale)
{
    if (cuda_skip(p, y) || !loaded(p, w))
        return;
    wrote(p, y);
    cu_embed(cuda_of(p)->stream, cuda_mat(y), w->packed, (int)w->type, w->row_bytes,
             (row_ids){.token = cuda_step_rows(p)->rows.token}, scale);
    cuda_done(p, "embed");
}

static void c_embed_at(pass *p, mat y, mat ids, const weight *w, float scale)
{
    if (cuda_skip(p, y) || !loaded(p, w))
        return;
    wrote(p, y);
    cu_embed(cuda_of(p)->stream, cuda_mat(y), w->packed, (int)w->type, w->row_bytes,
             (row_ids){.at = ids.at, .stride = ids.stride, .n_ids = w->n_out}, scale);
    cuda_done(p, "embed_at");
}

static void c_rms_norm(pass *p, mat y, mat x, const weight *w, float eps)
{
    cuda_device *c = cuda_of(p);
    dev_quant q = copy_room(p, y);
    const float *v = p->dry ? NULL : cuda_vector(p, w);
    if (cuda_idle(p, y))
        return;
    wrote(p, y);
    head_job j = {
        .y = cuda_mat(y), .x = cuda_mat(x), .heads = x.heads, .w = v, .eps = eps, .norm = true};
    bool heads = x.heads > 1 || x.cols <= 512 || (!q.q && !q.bf);
    if (heads && cuda_wait_head(c, j, cuda_step_without_keys(p)))
        return; /* no product reads a head */
    norm_job alone = {.y = j.y, .w = v, .c = 1.0f, .q = q};
    if (heads || !cuda_join_norms(c, j.x, &alone, 1, eps)) {
        cuda_settle(c);
        cu_rms_norm(c->stream, j.y, j.x, x.heads, v, eps, q);
    }
    cuda_quant_keep(p, y.at, q);
    cuda_done(p, "rms_norm");
}

static void c_rms_norms(pass *p, const mat *y, mat x, const norm_want *want, int32_t n, float eps)
{
    cuda_device *c = cuda_of(p);
    norm_job job[NORM_JOBS];
    for (int32_t i = 0; i < n; i++)
        job[i] = (norm_job){.y = cuda_mat(y[i]),
                            .w = p->dry ? NULL : cuda_vector(p, want[i].w),
                            .c = want[i].c,
                            .q = copy_room(p, y[i])};
    if (cuda_idle(p, x))
        return;
    for (int32_t i = 0; i < n; i++)
        wrote(p, y[i]);
    if (!cuda_join_norms(c, cuda_mat(x), job, n, eps)) {
        cuda_settle(c);
        cu_norms(c->stream, cuda_mat(x), job, n, eps);
    }
    for (int32_t i = 0; i < n; i++)
        cuda_quant_keep(p, y[i].at, job[i].q);
    cuda_done(p, "rms_norms");
}

static void c_add_rms_norm(pass *p, mat x, mat y, const weight *w, float eps)
{
    const float *v = p->dry ? NULL : cuda_vector(p, w);
    if (cuda_idle(p, x))
        return;
    wrote(p, x);
    if (y.heads == 1)
        cuda_wait_residual(cuda_of(p),
                           (residual_args){.x = cuda_mat(x), .y = cuda_mat(y), .w = v, .eps = eps});
    else /* heads are normed apart: no model does this to a residual stream */
        err_set(&p->e, E_UNSUPPORTED, "add_rms_norm of %d heads on a CUDA device", y.heads);
    cuda_done(p, "add_rms_norm");
}

static void c_add_branches(pass *p, mat x, branch a, branch b, const weight *w, float eps)
{
    const float *v = p->dry ? NULL : cuda_vector(p, w);
    const float *aw = p->dry ? NULL : cuda_vector(p, a.w),
                *bw = p->dry ? NULL : cuda_vector(p, b.w);
    if (cuda_idle(p, x))
        return;
    wrote(p, x);
    wrote(p, a.y);
    wrote(p, b.y);
    cuda_wait_residual(cuda_of(p), (residual_args){.x = cuda_mat(x),
                                                   .y = cuda_mat(a.y),
                                                   .b = cuda_mat(b.y),
                                                   .w = v,
                                                   .yw = aw,
                                                   .bw = bw,
                                                   .eps = eps});
    cuda_done(p, "add_branches");
}

static void c_act_mul(pass *p, mat y, mat a, mat b, act_kind act)
{
    bool gates = act == ACT_SOFTPLUS || act == ACT_SIGMOID;
    dev_quant q = copy_room_of_heads(p, y, gates);
    int share = mat_width(a) == mat_width(b) ? 1 : b.cols;
    if (cuda_idle(p, y))
        return;
    wrote(p, y);
    if (act == ACT_GELU_TANH && share == 1 &&
        cuda_join_act_mul(cuda_of(p), cuda_mat(y), cuda_mat(a), cuda_mat(b)))
        return;
    gate_args by = {.y = cuda_mat(y), .gate = cuda_mat(a), .share = share, .act = (int32_t)act};
    if (few(p) && gates && cuda_join_gates(cuda_of(p), &by, cuda_mat(b), q)) {
        wrote(p, b); /* its copy was not made */
        cuda_quant_keep(p, y.at, q);
        cuda_done(p, "act_mul");
        return;
    }
    cuda_settle(cuda_of(p));
    if (few(p) && q.rows > 1 && q.rows != y.rows)
        q = (dev_quant){0}; /* cu_act_mul makes copies of y's own rows */
    cu_act_mul(cuda_of(p)->stream, cuda_mat(y), cuda_mat(a), cuda_mat(b), (int)act, share, q);
    cuda_quant_keep(p, y.at, q);
    cuda_done(p, "act_mul");
}

static void c_rope(pass *p, mat x, const rope *f)
{
    if (cuda_idle(p, x))
        return;
    wrote(p, x);
    if (cuda_join_rope(cuda_of(p), cuda_mat(x), x.heads, f))
        return;
    cuda_settle(cuda_of(p));
    cu_rope(cuda_of(p)->stream, (rope_args){.x = cuda_mat(x),
                                            .heads = x.heads,
                                            .head_dim = x.cols,
                                            .n_pairs = f->n_pairs,
                                            .pos = cuda_step_rows(p)->rows.pos,
                                            .inv_freq = f->inv_freq,
                                            .factor = rope_factor(f)});
    cuda_done(p, "rope");
}

static void c_add(pass *p, mat y, mat a, mat b)
{
    if (cuda_idle(p, y))
        return;
    wrote(p, y);
    if (y.at == a.at && y.heads == 1 && cu_can_wait_add(cuda_mat(y), cuda_mat(b))) {
        residual_args sum = {.x = cuda_mat(y), .y = cuda_mat(b), .plain = true};
        cuda_wait_residual(cuda_of(p), sum);
    } else {
        cuda_settle(cuda_of(p));
        cu_add(cuda_of(p)->stream, cuda_mat(y), cuda_mat(a), cuda_mat(b));
    }
    cuda_done(p, "add");
}

static void c_scale(pass *p, mat x, float k, const weight *w)
{
    const float *v = p->dry ? NULL : cuda_vector(p, w);
    if (cuda_idle(p, x))
        return;
    wrote(p, x);
    if (cuda_join_scale(cuda_of(p), cuda_mat(x), k, v))
        return;
    cuda_settle(cuda_of(p));
    cu_scale(cuda_of(p)->stream, cuda_mat(x), k, v);
    cuda_done(p, "scale");
}

static void c_gather(pass *p, mat y, mat x, const int32_t *row)
{
    if (cuda_skip(p, y))
        return;
    if (row != p->st->out_row) {
        err_set(&p->e, E_UNSUPPORTED, "gather on a CUDA device takes the step's own rows");
        return;
    }
    wrote(p, y);
    cu_gather(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), cuda_of(p)->out_row);
    cuda_done(p, "gather");
}

static void c_copy(pass *p, mat y, mat x)
{
    if (cuda_skip(p, y))
        return;
    wrote(p, y);
    cu_gather(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), NULL);
    cuda_done(p, "copy");
}

static void c_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids)
{
    if (cuda_skip(p, x))
        return;
    wrote(p, x);
    cu_softcap(cuda_of(p)->stream, cuda_mat(x), cap, ids, n_ids);
    cuda_done(p, "softcap");
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
    a.candidate = cuda_temp(p, n * (size_t)a.k * 2 * sizeof *a.candidate);
    a.sum = cuda_temp(p, n * sizeof *a.sum);
    pass_release(p, mark);
    if (cuda_skip(p, y))
        return;
    a.y = cuda_mat(y);
    wrote(p, y);
    cu_best(cuda_of(p)->stream, a);
    cuda_done(p, "best");
}

/* ---- Products ------------------------------------------------------------------------------ */

/* The layout of a weight on this device; in a dry pass the weight need not be loaded. */
static int32_t weight_kind(const pass *p, const weight *w)
{
    if (w->packed)
        return w->packed_kind;
    weight v = *w;
    v.gather = false;
    return p->dry ? cuda_pack_kind(&v) : PACK_NONE;
}

static bool is_float(int32_t kind)
{
    return kind == PACK_F32 || kind == PACK_F16 || kind == PACK_BF16;
}

enum { BLAS_ROWS = 192 }; /* from here on it is quicker to unpack the weight first */

/* True if the product is done, or, in a dry pass, if it may be. */
static bool blas_matmul(pass *p, mat y, dev_quant q, const weight *w, int32_t kind)
{
    cuda_device *c = cuda_of(p);
    int32_t n_at_a_time = w->n_mat == 1 ? cuda_blas_piece(w->n_in, w->n_out) : 0;
    blas_way way = n_at_a_time ? cuda_blas_way(c, w->n_in, w->n_out) : BLAS_NONE;
    if (p->dry && c->blas && n_at_a_time && w->n_in % 8 == 0)
        way = BLAS_ALL; /* weights are not loaded yet, so their ways are unknown */
    if (way == BLAS_NONE || (way == BLAS_LONG && y.rows < BLAS_ROWS))
        return false;
    size_t mark = pass_mark(p);
    uint16_t *to =
        kind == PACK_BF16 ? NULL : cuda_temp(p, 2 * (size_t)n_at_a_time * (size_t)w->n_in);
    pass_release(p, mark);
    if (cuda_skip(p, y))
        return true;
    packed v = cuda_view(w);
    wrote(p, y);
    for (int32_t first = 0; first < w->n_out; first += n_at_a_time) {
        int32_t n = w->n_out - first < n_at_a_time ? w->n_out - first : n_at_a_time;
        const uint16_t *from = (const uint16_t *)v.codes + (size_t)first * (size_t)w->n_in;
        dev_mat d = cuda_mat(y);
        d.at += first;
        d.cols = n;
        if (to)
            cu_unpack_bf16(c->stream, v, first, n, to);
        if (!cuda_blas_matmul(c, d, q.bf, to ? to : from, w->n_in))
            err_set(&p->e, E_IO, "%s: cuBLASLt refused a product of %d x %d x %d", c->name, y.rows,
                    w->n_in, n);
    }
    return true;
}

/* One row's int8 copy. A short row without one stays floats: each block of the product makes it. */
static dev_quant row_copy(pass *p, dev_mat x)
{
    enum { SHORT = 512 };
    return x.cols <= SHORT ? cuda_quant_of_row(p, x) : cuda_quant(p, x, false, false);
}

static void c_matmul(pass *p, mat y, mat x, const weight *w)
{
    cuda_device *c = cuda_of(p);
    int32_t kind = weight_kind(p, w);
    dev_mat dx = cuda_mat(x), dy = cuda_mat(y);
    bool mma = !few(p) && kind != PACK_F32 && w->n_in % GROUP == 0;
    if (!p->dry && !loaded(p, w))
        return;
    if (!mma && is_float(kind)) {
        if (cuda_skip(p, y))
            return;
        wrote(p, y);
        cu_matmul_float(c->stream, dy, dx, cuda_view(w), !few(p));
        cuda_done(p, "matmul");
        return;
    }
    if (!mma) {
        one_product a = {.p = {.y = dy, .n_out = w->n_out}};
        a.p.x = x.rows == 1 ? row_copy(p, dx) : cuda_quant(p, dx, false, false);
        if (cuda_idle(p, y))
            return;
        wrote(p, y);
        a.p.w = cuda_view(w);
        a.floats = a.p.x.q ? NULL : x.at;
        cuda_wait_product(c, a);
        return;
    }
    dev_quant q = cuda_quant(p, dx, mma, false);
    if (blas_matmul(p, y, q, w, kind)) {
        cuda_done(p, "matmul");
        return;
    }
    if (cuda_skip(p, y))
        return;
    wrote(p, y);
    cu_matmul_mma(c->stream, dy, q, cuda_view(w));
    cuda_done(p, "matmul");
}

/* Do the kernels that join both products of a gated unit know its activation? */
static bool gates(act_kind act)
{
    return act == ACT_GELU_TANH || act == ACT_SILU;
}

/* Can one kernel of block products read gate and up together? */
static bool pairs(const pass *p, const weight *gate, const weight *up, int32_t n_ff)
{
    int32_t kind = weight_kind(p, gate);
    return !is_float(kind) && (up ? weight_kind(p, up) == kind : n_ff % TILE_ROWS == 0);
}

static product_args pair_args(const weight *gate, const weight *up, int32_t n_ff, act_kind act)
{
    product_args a = {.w = cuda_view(gate), .n_out = n_ff, .glu = true, .silu = act == ACT_SILU};
    a.up = up ? cuda_view(up) : a.w;
    a.up_row = up ? 0 : n_ff;
    return a;
}

static void c_glu(pass *p, mat y, mat x, const weight *gate, const weight *up, act_kind act)
{
    cuda_device *c = cuda_of(p);
    if (!gates(act) || !few(p) || !pairs(p, gate, up, y.cols)) {
        mat a = pass_mat(p, x.rows, 1, gate->n_out);
        mat b = up ? pass_mat(p, x.rows, 1, up->n_out) : a;
        if (pass_failed(p))
            return;
        c_matmul(p, a, x, gate);
        if (up)
            c_matmul(p, b, x, up);
        c_act_mul(p, y, mat_columns(a, 0, y.cols), up ? b : mat_columns(a, y.cols, y.cols), act);
        return;
    }
    if (!p->dry && (!loaded(p, gate) || (up && !loaded(p, up))))
        return;
    dev_quant q = x.rows == 1 ? row_copy(p, cuda_mat(x)) : cuda_quant(p, cuda_mat(x), false, false);
    dev_quant copy = copy_room(p, y);
    if (cuda_skip(p, y))
        return;
    wrote(p, y);
    one_product a = {.p = pair_args(gate, up, y.cols, act), .floats = q.q ? NULL : x.at};
    a.p.y = cuda_mat(y);
    a.p.x = q;
    a.p.q = copy;
    cuda_products(c, &a, 1);
    cuda_quant_keep(p, y.at, copy);
    cuda_done(p, "glu");
}

/* ---- Experts ------------------------------------------------------------------------------- */

static choice choice_of(pass *p, const route_rule *t)
{
    choice how = {.factor = route_factor(t), .sigmoid = t->sigmoid};
    how.scale = p->dry ? NULL : cuda_vector(p, t->scale);
    how.bias = p->dry ? NULL : cuda_vector(p, t->bias);
    return how;
}

static void c_route(pass *p, routing r, mat logits, const route_rule *rule)
{
    choice how = choice_of(p, rule);
    if (p->dry || pass_failed(p) || !r.rows)
        return;
    cuda_settle(cuda_of(p));
    size_t n = (size_t)r.rows * (size_t)r.k * 4;
    cuda_wrote(cuda_of(p), r.id, n);
    cuda_wrote(cuda_of(p), r.weight, n);
    cu_route(cuda_of(p)->stream, r.id, r.weight, r.k, cuda_mat(logits), how);
    cuda_done(p, "route");
}

static void c_router(pass *p, routing r, mat x, const weight *w, const route_rule *rule)
{
    choice how = choice_of(p, rule);
    mat logits = pass_mat(p, x.rows, 1, w->n_out);
    if (pass_failed(p) || (!p->dry && !loaded(p, w)))
        return;
    if (!is_float(weight_kind(p, w)) || !few(p) || w->n_out > ROUTER_EXPERTS || r.k > ROUTER_MOST ||
        w->n_in % 4 || x.stride % 4) {
        c_matmul(p, logits, x, w);
        c_route(p, r, logits, rule);
        return;
    }
    if (cuda_skip(p, logits))
        return;
    size_t n = (size_t)r.rows * (size_t)r.k * 4;
    wrote(p, logits);
    cuda_wrote(cuda_of(p), r.id, n);
    cuda_wrote(cuda_of(p), r.weight, n);
    for (int32_t at = 0, rows; at < x.rows; at += rows) {
        rows = x.rows - at < FEW_ROWS ? x.rows - at : (int32_t)FEW_ROWS;
        cu_router(cuda_of(p)->stream, (router_args){.x = cuda_mat(some_rows(x, at, rows)),
                                                    .logits = cuda_mat(some_rows(logits, at, rows)),
                                                    .w = cuda_view(w),
                                                    .how = how,
                                                    .id = r.id + (size_t)at * (size_t)r.k,
                                                    .share = r.weight + (size_t)at * (size_t)r.k,
                                                    .k = r.k,
                                                    .ticket = cuda_of(p)->router_ticket});
    }
    cuda_done(p, "router");
}

/* [rows, k, n_ff] as [rows * k, n_ff]. */
static dev_mat by_pair(mat y)
{
    return (dev_mat){y.at, y.rows * y.heads, y.cols, y.cols};
}

/* One matrix of every pair, without its twin: for shapes and formats that the gated kernels
 * refuse. */
static void expert_alone(pass *p, mat y, mat x, routing r, const weight *w)
{
    cuda_device *c = cuda_of(p);
    if (is_float(weight_kind(p, w))) {
        if (!cuda_skip(p, y))
            cu_expert_float(c->stream, cuda_mat(y), cuda_mat(x), 1, r.id, r.k, cuda_view(w), NULL,
                            0, w->n_out);
        return;
    }
    dev_quant q = cuda_quant(p, cuda_mat(x), false, false);
    if (cuda_skip(p, y))
        return;
    expert_product a = {.p = {.y = cuda_mat(y), .x = q, .w = cuda_view(w), .n_out = w->n_out},
                        .expert = r.id,
                        .k = r.k};
    cu_product_vec(c->stream, a);
}

/* Counts the choice where the product that follows does not: all but int8 products do. */
static void count_choice(pass *p, routing r, const weight *gate)
{
    if (!gate->home || p->dry || pass_failed(p) || !r.rows)
        return;
    cuda_settle(cuda_of(p));
    cu_count_experts(cuda_of(p)->stream, r.id, r.rows * r.k, gate->home->count);
}

/* Prompts: pairs sorted by expert, then one product over tiles of rows of one expert. */
static bool by_expert(const pass *p, const weight *w)
{
    int32_t kind = weight_kind(p, w);
    return !few(p) && kind != PACK_F32 && kind != PACK_NONE && w->n_in % GROUP == 0;
}

static expert_lists sort_pairs(pass *p, routing r, int32_t n_expert)
{
    int32_t n = r.rows * r.k;
    sorted_pairs *known = &cuda_of(p)->sorted;
    if (!p->dry && known->id == r.id && known->n == n && known->n_expert == n_expert)
        return known->lists;
    expert_lists l = {.order = cuda_temp(p, (size_t)n * 4),
                      .n_tiles = cuda_temp(p, 4),
                      .tiles =
                          cuda_temp(p, (size_t)cu_expert_tiles(n, n_expert) * EXPERT_TILE_BYTES)};
    if (p->dry || pass_failed(p))
        return l;
    cuda_settle(cuda_of(p));
    cu_expert_sort(cuda_of(p)->stream, r.id, n, n_expert, l);
    *known = (sorted_pairs){r.id, n, n_expert, l};
    return l;
}

static void expert_mma(pass *p, mat y, dev_quant x, const weight *w, expert_lists l, int32_t k)
{
    if (p->dry || pass_failed(p))
        return;
    cuda_settle(cuda_of(p));
    wrote(p, y);
    cu_expert_mma(cuda_of(p)->stream, by_pair(y), x, cuda_view(w), l, k);
}

static void glu_by_expert(pass *p, mat y, mat x, routing r, const weight *gate, const weight *up,
                          act_kind act)
{
    dev_quant q = cuda_quant(p, cuda_mat(x), true, false);
    expert_lists l = sort_pairs(p, r, gate->n_mat);
    mat a = pass_mat(p, x.rows, r.k, gate->n_out);
    mat b = up ? pass_mat(p, x.rows, r.k, up->n_out) : a;
    if (pass_failed(p))
        return;
    expert_mma(p, a, q, gate, l, r.k);
    if (up)
        expert_mma(p, b, q, up, l, r.k);
    mat ya = {y.at, y.rows * y.heads, 1, y.cols, y.cols};
    mat aa = {a.at, ya.rows, 1, a.cols, a.cols}, bb = {b.at, ya.rows, 1, b.cols, b.cols};
    c_act_mul(p, ya, mat_columns(aa, 0, y.cols), up ? bb : mat_columns(bb, y.cols, y.cols), act);
}

/* Rows of one expert share its weights, at most FEW_ROWS rows at a time. False: there is one row,
 * or no room for the pairs or experts; whether there is depends on the first piece, which is the
 * largest. */
static bool together(cuda_device *c, expert_product a)
{
    const expert_product all = a;
    int32_t n = all.p.y.rows, k = a.x_per_pair ? a.k : 1;
    int32_t most = a.k <= EXPERT_PAIRS / FEW_ROWS ? (int32_t)FEW_ROWS : EXPERT_PAIRS / a.k & ~7;
    for (int32_t at = 0, rows; at < n; at += rows) {
        rows = n - at < most ? n - at : most;
        a.p.y.at = all.p.y.at + at * all.p.y.stride;
        a.p.y.rows = rows;
        a.p.x = some_of_copy(all.p.x, at * k, rows * k);
        if (all.p.q.q)
            a.p.q = some_of_copy(all.p.q, at * a.k, rows * a.k);
        a.expert = all.expert + (size_t)at * (size_t)a.k;
        a.share = all.share ? all.share + (size_t)at * (size_t)a.k : NULL;
        if (n == 1 || !most || !cu_product_experts(c->stream, a, cuda_launch_memory(c)))
            return false;
    }
    return true;
}

static void c_moe_glu(pass *p, mat y, mat x, routing r, const weight *gate, const weight *up,
                      act_kind act)
{
    cuda_device *c = cuda_of(p);
    if (!p->dry && (!loaded(p, gate) || (up && !loaded(p, up))))
        return;
    cuda_experts_arrive(p, gate);
    if (by_expert(p, gate) && (!up || by_expert(p, up))) {
        count_choice(p, r, gate);
        glu_by_expert(p, y, x, r, gate, up, act);
        cuda_done(p, "moe_glu");
        return;
    }
    int32_t kind = weight_kind(p, gate);
    if (act == ACT_GELU_TANH && is_float(kind) && (!up || weight_kind(p, up) == kind)) {
        if (cuda_skip(p, y))
            return;
        wrote(p, y);
        count_choice(p, r, gate);
        packed u = cuda_view(up ? up : gate);
        cu_expert_float(c->stream, cuda_mat(y), cuda_mat(x), 1, r.id, r.k, cuda_view(gate), &u,
                        up ? 0 : y.cols, y.cols);
        cuda_done(p, "moe_glu");
        return;
    }
    if (!gates(act) || !pairs(p, gate, up, y.cols)) {
        mat a = pass_mat(p, x.rows, r.k, gate->n_out);
        mat b = up ? pass_mat(p, x.rows, r.k, up->n_out) : a;
        if (pass_failed(p))
            return;
        if (!p->dry) {
            wrote(p, a);
            wrote(p, b);
        }
        count_choice(p, r, gate);
        expert_alone(p, a, x, r, gate);
        if (up)
            expert_alone(p, b, x, r, up);
        mat ya = {y.at, y.rows * y.heads, 1, y.cols, y.cols};
        mat aa = {a.at, ya.rows, 1, a.cols, a.cols}, bb = {b.at, ya.rows, 1, b.cols, b.cols};
        c_act_mul(p, ya, mat_columns(aa, 0, y.cols), up ? bb : mat_columns(bb, y.cols, y.cols),
                  act);
        return;
    }
    dev_quant q = cuda_quant(p, cuda_mat(x), false, false), copy = {0};
    if (y.cols % GROUP == 0)
        copy = cuda_quant_room(p, y.rows * y.heads, y.cols, false, true);
    if (cuda_skip(p, y))
        return;
    wrote(p, y);
    expert_product a = {.p = pair_args(gate, up, y.cols, act), .expert = r.id, .k = r.k};
    a.p.y = cuda_mat(y);
    a.p.x = q;
    a.p.q = copy;
    if (!together(c, a))
        cu_product_vec(c->stream, a);
    c->chosen = r.id;
    cuda_quant_keep(p, y.at, copy);
    cuda_done(p, "moe_glu");
}

static void moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    cuda_device *c = cuda_of(p);
    if (!p->dry && !loaded(p, down))
        return;
    if (by_expert(p, down)) {
        dev_quant q = cuda_quant(p, by_pair(x), true, true);
        expert_lists l = sort_pairs(p, r, down->n_mat);
        mat outputs = pass_mat(p, x.rows, r.k, down->n_out);
        expert_mma(p, outputs, q, down, l, 1);
        if (cuda_skip(p, y))
            return;
        wrote(p, y);
        cu_expert_join(c->stream, cuda_mat(y), outputs.at, r.weight, r.k);
        cuda_done(p, "moe_down");
        return;
    }
    if (is_float(weight_kind(p, down))) {
        mat outputs = pass_mat(p, x.rows, r.k, down->n_out);
        if (pass_failed(p) || cuda_skip(p, y))
            return;
        wrote(p, outputs);
        wrote(p, y);
        cu_expert_float(c->stream, cuda_mat(outputs), cuda_mat(x), r.k, r.id, r.k, cuda_view(down),
                        NULL, 0, down->n_out);
        cu_expert_join(c->stream, cuda_mat(y), outputs.at, r.weight, r.k);
        cuda_done(p, "moe_down");
        return;
    }
    dev_quant q = cuda_quant(p, by_pair(x), false, true);
    mat outputs = x.rows > 1 ? pass_mat(p, x.rows, r.k, down->n_out) : (mat){0};
    if (cuda_skip(p, y))
        return;
    wrote(p, y);
    expert_product a = {.p = {.y = cuda_mat(y), .x = q, .w = cuda_view(down), .n_out = down->n_out},
                        .expert = r.id,
                        .share = r.weight,
                        .k = r.k,
                        .x_per_pair = true,
                        .chosen = c->chosen == r.id};
    if (outputs.at) {
        expert_product b = a;
        wrote(p, outputs);
        b.p.y = cuda_mat(outputs);
        if (together(c, b)) {
            cu_expert_join(c->stream, a.p.y, outputs.at, NULL, r.k);
            cuda_done(p, "moe_down");
            return;
        }
    }
    cu_product_vec(c->stream, a);
    cuda_done(p, "moe_down");
}

static void c_moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    moe_down(p, y, x, r, down);
    cuda_experts_leave(p, down);
}

enum { DOWN_WARPS = 16 }; /* of a block of expert_down_kernel */

/* Is w of one expert's layout and shape, so that the experts' launch can have it beside them? */
static bool like_expert(const weight *w, const weight *experts, int32_t n_out)
{
    return w->packed && experts->packed && !is_float(experts->packed_kind) &&
           w->packed_kind == experts->packed_kind && w->n_in == experts->n_in && w->n_out == n_out;
}
/* Can cu_router have the choice, and the factor of the shared expert? */
static bool routes(const mixture *m)
{
    const weight *w = m->router, *f = m->shared_factor;
    return w->packed && is_float(w->packed_kind) && w->n_in % 4 == 0 &&
           w->n_out <= ROUTER_EXPERTS && m->k < ROUTER_MOST && m->k <= w->n_out &&
           (!f || (f->packed && f->packed_kind == w->packed_kind));
}

/* One row, whose shared expert is one more pair of the launches of experts. More rows take the
 * expansion, whose bits are the same. */
static bool c_mixture(pass *p, mat y, mat x, const mixture *m)
{
    cuda_device *c = cuda_of(p);
    const route_rule plain = {.factor = 1}, *rule = m->rule ? m->rule : &plain;
    const weight *w = m->router;
    int32_t n_ff = m->shared_gate->n_out, k = m->k + 1; /* pairs */
    if (p->dry || x.rows != 1 || !few(p) || !gates(m->act) || !routes(m) || x.stride % 4 ||
        n_ff % GROUP || m->gate->n_out != (m->up ? n_ff : 2 * n_ff) ||
        !like_expert(m->shared_gate, m->gate, n_ff) || !like_expert(m->shared_up, m->gate, n_ff) ||
        (m->up && !like_expert(m->up, m->gate, n_ff)) ||
        !like_expert(m->shared_down, m->down, m->down->n_out))
        return false;
    packed down = cuda_view(m->shared_down);
    int32_t warps = cu_product_warps(&down);
    if (m->k + warps > DOWN_WARPS)
        return false;
    choice how = choice_of(p, rule);
    int32_t *id = cuda_temp(p, (size_t)k * sizeof *id);
    float *share = cuda_temp(p, (size_t)k * sizeof *share);
    mat logits = pass_mat(p, 1, 1, w->n_out), e = pass_mat(p, 1, k, n_ff);
    dev_quant q = cuda_quant(p, cuda_mat(x), false, false);
    dev_quant copy = cuda_quant_room(p, k, n_ff, false, true);
    if (pass_failed(p) || cuda_skip(p, y))
        return true;
    wrote(p, logits);
    wrote(p, e);
    wrote(p, y);
    cu_router(c->stream,
              (router_args){.x = cuda_mat(x),
                            .logits = cuda_mat(logits),
                            .w = cuda_view(w),
                            .how = how,
                            .id = id,
                            .share = share,
                            .k = m->k,
                            .ticket = c->router_ticket,
                            .shared = true,
                            .factor = m->shared_factor ? m->shared_factor->packed : NULL});
    expert_product a = {
        .p = pair_args(m->gate, m->up, n_ff, m->act), .expert = id, .k = k, .shared_warps = warps};
    a.p.y = cuda_mat(e);
    a.p.x = q;
    a.p.q = copy;
    a.shared = cuda_view(m->shared_gate);
    a.shared_up = cuda_view(m->shared_up);
    cu_product_vec(c->stream, a);
    expert_product d = {
        .p = {.y = cuda_mat(y), .x = copy, .w = cuda_view(m->down), .n_out = m->down->n_out},
        .expert = id,
        .share = share,
        .k = k,
        .x_per_pair = true,
        .chosen = true,
        .shared_warps = warps,
        .shared = down};
    cu_product_vec(c->stream, d);
    cuda_done(p, "mixture");
    return true;
}

static void c_moe_matmul(pass *p, mat y, mat x, routing r, const weight *w)
{
    if (!p->dry && !loaded(p, w))
        return;
    if (!p->dry && !pass_failed(p))
        wrote(p, y);
    expert_alone(p, y, x, r, w);
    cuda_done(p, "moe_matmul");
}

static void c_renumber(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n)
{
    (void)n_list;
    if (cuda_skip(p, x))
        return;
    wrote(p, x);
    cu_renumber(cuda_of(p)->stream, cuda_mat(x), x.cols, r.id, r.k, list, n);
    cuda_done(p, "renumber");
}

const device_ops cuda_ops = {
    .embed = c_embed,
    .embed_at = c_embed_at,
    .rms_norm = c_rms_norm,
    .rms_norms = c_rms_norms,
    .matmul = c_matmul,
    .glu = c_glu,
    .act_mul = c_act_mul,
    .rope = c_rope,
    .kv_store = cuda_kv_store,
    .attend = cuda_attend,
    .watch_pages = cuda_watch_pages,
    .add = c_add,
    .scale = c_scale,
    .add_rms_norm = c_add_rms_norm,
    .add_branches = c_add_branches,
    .route = c_route,
    .router = c_router,
    .moe_glu = c_moe_glu,
    .moe_down = c_moe_down,
    .mixture = c_mixture,
    .moe_matmul = c_moe_matmul,
    .renumber = c_renumber,
    .conv = cuda_conv,
    .delta = cuda_delta,
    .delta_unit = cuda_delta_unit,
    .gather = c_gather,
    .copy = c_copy,
    .softcap = c_softcap,
    .best = c_best,
};
