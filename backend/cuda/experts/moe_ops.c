/* moe_ops.c - the ops of mixtures of experts on a CUDA device: which kernel, by rows and weight
 * layout.
 *
 *   rows of     weights of blocks                          weights of floats
 *   answers: 1  matmul_vec      one row                    matmul_float
 *   more        matmul_experts  two rows of an expert      matmul_float
 *   33 and more matmul_grouped  eight rows of an expert    matmul_float
 *   prompts     matmul_mma      pairs sorted by expert     F32: matmul_float, else matmul_mma
 *               (or matmul_tall_experts_hopper; of few rows matmul_short_experts)
 *
 * Down products of 32 rows take matmul_grouped too. ops.c says what every op does before and after
 * its launches.
 */
#include "backend/cuda/product/launch_tall.h"
#include "backend/cuda/experts/offload.h"
#include "backend/cuda/ops_int.h"

#include <stdint.h>

static choice choice_of(pass *p, const route_rule *t)
{
    choice how = {.factor = route_factor(t), .sigmoid = t->sigmoid};
    how.scale = cuda_vector(p, t->scale);
    how.bias = cuda_vector(p, t->bias);
    return how;
}

void cuda_route(pass *p, routing r, mat logits, const route_rule *rule)
{
    choice how = choice_of(p, rule);
    if (p->dry || pass_failed(p) || !r.rows)
        return;
    cuda_select(p->dev);
    cu_route(cuda_of(p)->stream, r.id, r.weight, r.k, cuda_mat(logits), how);
    cuda_done(p, "route");
}

void cuda_router(pass *p, routing *r, mat x, const weight *w, const route_rule *rule)
{
    cuda_router_beside(p, r, x, &(expert_router){w, r->k, rule}, false);
}

void cuda_router_beside(pass *p, routing *r, mat x, const expert_router *to, bool beside)
{
    const weight *w = to->w;
    const route_rule *rule = to->rule;
    choice how = choice_of(p, rule);
    mat logits = pass_mat(p, x.rows, 1, w->n_out);
    if (pass_failed(p) || !cuda_loaded(p, w))
        return;
    const float *bias = cuda_vector(p, w->bias);
    if (!cuda_is_float(cuda_kind(p, w)) || !cuda_few(p) || w->n_out > ROUTER_EXPERTS ||
        r->k > ROUTER_MOST || w->n_in % 4 || x.stride % 4) {
        cuda_matmul(p, logits, &x, w);
        cuda_route(p, *r, logits, rule);
        return;
    }
    if (cuda_skip(p, logits))
        return;
    const packed v = cuda_view(w);
    cuda_offload *offload = cuda_offload_any(cuda_of(p));
    if (offload)
        cuda_offload_guess(offload, w, cuda_mat(x), r->k, how.sigmoid);
    for (int32_t at = 0, rows; at < x.rows; at += rows) {
        rows = x.rows - at < FEW_ROWS ? x.rows - at : (int32_t)FEW_ROWS;
        router_args a = {.x = cuda_mat(mat_rows(x, at, rows)),
                         .logits = cuda_mat(mat_rows(logits, at, rows)),
                         .w = v,
                         .bias = bias,
                         .how = how,
                         .id = r->id + (size_t)at * (size_t)r->k,
                         .share = r->weight + (size_t)at * (size_t)r->k,
                         .k = r->k,
                         .ticket = cuda_of(p)->router_ticket,
                         .beside = beside && !at};
        cu_router(cuda_of(p)->stream, a, cuda_offload_tells(offload, w, x.rows, r->k));
    }
    cuda_of(p)->router_runs = true;
    cuda_of(p)->router_releases = p->side[p->here].n_releases;
    r->router = ++cuda_of(p)->n_routers;
    cuda_reads(cuda_of(p), &v, 1);
    cuda_done(p, "router");
}

/* The experts that a weight has: some, on a rank of a tensor split. */
static expert_range own_of(const weight *w)
{
    return (expert_range){w->first_mat, w->n_mat};
}
/* How many there are. */
static int32_t experts_of(const weight *w)
{
    return w->n_mat_all ? w->n_mat_all : w->n_mat;
}

/* Every pair of row and expert reads a matrix, until all are read. */
static void reads_experts(cuda_device *c, routing r, const packed *w)
{
    cuda_reads(c, w, r.rows * r.k < w->n_mat ? r.rows * r.k : w->n_mat);
}

/* [rows, k, n_ff] as [rows * k, n_ff]. */
static dev_mat by_pair(mat y)
{
    return cuda_mat(mat_head_rows(y));
}
static dev_quant copy_by_pair(pass *p, mat x, bool bf)
{
    mat pairs = mat_head_rows(x);
    return cuda_copy(p, &pairs, bf, true);
}

/* Adds the biases of experts to the products of pairs. */
static void pair_bias(pass *p, mat y, routing r, const weight *w)
{
    const float *bias = cuda_vector(p, w->bias);
    if (!bias || pass_failed(p) || !r.rows)
        return;
    cuda_select(p->dev);
    cu_pair_bias(cuda_of(p)->stream, by_pair(y), r.id, own_of(w), bias);
}

static void product_of_pairs(pass *p, mat y, mat *x, routing r, const weight *w)
{
    cuda_device *c = cuda_of(p);
    if (cuda_is_float(cuda_kind(p, w))) {
        if (!cuda_skip(p, y))
            cu_expert_float(c->stream, cuda_mat(y), cuda_mat(*x), 1, r.id, r.k, cuda_view(w),
                            own_of(w), NULL, 0, w->n_out);
        return;
    }
    dev_quant q = cuda_copy(p, x, false, false);
    if (cuda_skip(p, y))
        return;
    expert_product a = {.p = {.y = cuda_mat(y), .x = q, .w = cuda_view(w), .n_out = w->n_out},
                        .expert = r.id,
                        .own = own_of(w),
                        .k = r.k};
    cu_product_vec(c->stream, a);
    reads_experts(c, r, &a.p.w);
}

/* One matrix of every pair, without its twin: for shapes and formats that the gated kernels
 * refuse. */
static void expert_alone(pass *p, mat y, mat *x, routing r, const weight *w)
{
    product_of_pairs(p, y, x, r, w);
    pair_bias(p, y, r, w);
}

/* Counts the choice where the product that follows does not: all but int8 products do. */
static void count_choice(pass *p, routing r, const weight *gate)
{
    if (!gate->home || p->dry || pass_failed(p) || !r.rows)
        return;
    cuda_select(p->dev);
    cu_count_experts(cuda_of(p)->stream, r.id, r.rows * r.k, gate->home->count - gate->first_mat);
}

/* Prompts: pairs sorted by expert, then one product over tiles of rows of one expert. */
static bool by_expert(const pass *p, const weight *w)
{
    int32_t kind = cuda_kind(p, w);
    return !cuda_few(p) && kind != PACK_F32 && kind != PACK_NONE && w->n_in % GROUP == 0;
}

static expert_lists sort_pairs(pass *p, routing *r, const weight *w)
{
    const int32_t n = r->rows * r->k, n_expert = experts_of(w);
    sorted_pairs *s = &r->sorted;
    const bool done = s->first == w->first_mat && s->n == w->n_mat;
    if (!done) {
        const size_t tiles = (size_t)expert_tiles(n, n_expert) * EXPERT_TILE_BYTES;
        s->order = pass_temp(p, (size_t)n * sizeof *s->order);
        s->n_tiles = pass_temp(p, sizeof *s->n_tiles);
        s->tiles = pass_temp(p, tiles);
        s->first = w->first_mat;
        s->n = w->n_mat;
    }
    const expert_lists l = {s->order, s->n_tiles, s->tiles, n_expert};
    if (!done && !p->dry && !pass_failed(p))
        cu_expert_sort(cuda_select(p->dev)->stream, r->id, n, own_of(w), l);
    return l;
}

static void expert_mma(pass *p, mat y, dev_quant x, const weight *w, expert_lists l, int32_t k)
{
    if (p->dry || pass_failed(p))
        return;
    cuda_select(p->dev);
    cu_expert_mma(cuda_of(p)->stream, by_pair(y), x, cuda_view(w), l, k);
}

static unit_rule unit_rule_of(pass *p, const weight *gate, const weight *up, int32_t n_ff,
                              act_kind act)
{
    unit_rule t = {.step = gate->n_out, .cut = act == ACT_SWIGLU_CUT};
    if (p->dry)
        return t;
    t.bias = cuda_vector(p, gate->bias);
    t.up_bias = up ? cuda_vector(p, up->bias) : NULL;
    if (!up && t.bias)
        t.up_bias = t.bias + n_ff;
    return t;
}

/* The units and their copy in one launch. False: there is no kernel for it. A dry pass never asks:
 * it plans for the two products, which take more. */
static bool units_by_expert(pass *p, mat *y, dev_quant x, routing r, const weight *gate,
                            const weight *up, act_kind act, expert_lists l)
{
    if (p->dry || !cuda_gates(act) || !cuda_pairs(p, gate, up, y->cols))
        return false;
    mat pairs = mat_head_rows(*y);
    const expert_units u = {.y = cuda_mat(pairs),
                            .x = x,
                            .w = cuda_view(gate),
                            .up = cuda_view(up ? up : gate),
                            .up_row = up ? 0 : y->cols,
                            .silu = act == ACT_SILU,
                            .unit = unit_rule_of(p, gate, up, y->cols, act),
                            .copy = cuda_new_copy(p, &pairs, true, true).bf};
    if (pass_failed(p))
        return true;
    cuda_select(p->dev);
    if (!cu_expert_units(cuda_of(p)->stream, u, l, r.k))
        return false;
    y->copies = pairs.copies;
    return true;
}

/* y = act(a) * b, pair by pair; up NULL: a has both. */
static void unit_of_pairs(pass *p, mat *y, mat a, mat b, const weight *up, act_kind act)
{
    mat to = mat_head_rows(*y);
    a = mat_head_rows(a);
    b = up ? mat_head_rows(b) : mat_columns(a, y->cols, y->cols);
    cuda_act_mul(p, &to, mat_columns(a, 0, y->cols), b, act);
    y->copies = to.copies;
}

static void glu_by_expert(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                          act_kind act)
{
    dev_quant q = cuda_copy(p, &x, true, false);
    expert_lists l = sort_pairs(p, r, gate);
    const size_t mark = pass_mark(p);
    if (units_by_expert(p, y, q, *r, gate, up, act, l))
        return;
    pass_release(p, mark);
    mat a = pass_mat(p, x.rows, r->k, gate->n_out);
    mat b = up ? pass_mat(p, x.rows, r->k, up->n_out) : a;
    if (pass_failed(p))
        return;
    expert_mma(p, a, q, gate, l, r->k);
    pair_bias(p, a, *r, gate);
    if (up) {
        expert_mma(p, b, q, up, l, r->k);
        pair_bias(p, b, *r, up);
    }
    unit_of_pairs(p, y, a, b, up, act);
}

/* Is there a byte for every expert that the weight has, and one for all others? */
static bool sorts_all(const weight *w)
{
    return !w->n_mat_all || w->n_mat <= SOME_EXPERTS;
}

static offload_unit offload_unit_of(act_kind act)
{
    return act == ACT_SWIGLU_CUT ? OFFLOAD_CUT : act == ACT_SILU ? OFFLOAD_SILU : OFFLOAD_GELU;
}

/* Pairs one by one. v: as of the host's experts, or NULL. */
static void one_by_one(cuda_device *c, expert_product a, const offload_view *v)
{
    if (v)
        cu_product_vec_offload(c->stream, a, *v);
    else
        cu_product_vec(c->stream, a);
}

/* Rows of one expert share its weights, at most FEW_ROWS rows at a time. False: there is one row,
 * or no room for the pairs or experts; whether there is depends on the first piece, which is the
 * largest. v: as of the host's experts, or NULL. */
static bool together(cuda_device *c, expert_product a, const offload_view *v)
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
        if (n == 1 || !most)
            return false;
        /* With pairs, all rows are one piece: OFFLOAD_JOB_ROWS are fewer than FEW_ROWS. */
        if (!(v ? cu_product_experts_offload(c->stream, a, cuda_launch_memory(c), *v)
                : cu_product_experts(c->stream, a, cuda_launch_memory(c))))
            return false;
    }
    return true;
}

/* Two products, then the unit: for units that no kernel of products has. */
static void glu_apart(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                      act_kind act)
{
    mat a = pass_mat(p, x.rows, r->k, gate->n_out);
    mat b = up ? pass_mat(p, x.rows, r->k, up->n_out) : a;
    if (pass_failed(p))
        return;
    count_choice(p, *r, gate);
    expert_alone(p, a, &x, *r, gate);
    if (up)
        expert_alone(p, b, &x, *r, up);
    unit_of_pairs(p, y, a, b, up, act);
}

/* Weights of blocks, few rows: whole units in one launch, from experts here and on the host. */
static void glu_by_row(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                       act_kind act)
{
    cuda_device *c = cuda_of(p);
    const unit_rule unit = unit_rule_of(p, gate, up, y->cols, act);
    bool ready = cuda_has_copy(x, false, false);
    dev_quant q = cuda_copy(p, &x, false, false), copy = {0};
    mat pairs = mat_head_rows(*y);
    if (y->cols % GROUP == 0)
        copy = cuda_new_copy(p, &pairs, false, true);
    y->copies = pairs.copies;
    if (cuda_skip(p, *y))
        return;
    expert_product a = {.p = cuda_pair_args(gate, up, y->cols, act),
                        .expert = r->id,
                        .own = own_of(gate),
                        .k = r->k,
                        .chosen = r->router && r->router == c->routers_ended,
                        .unit = unit};
    a.p.y = cuda_mat(*y);
    a.p.x = q;
    a.p.q = copy;
    cuda_offload *offload = cuda_offload_of(c, gate);
    offload_view v = {0};
    if (offload) {
        v = cuda_offload_dispatch(c, offload, *r, gate, q, offload_unit_of(act));
        a.chosen = a.chosen && (v.posts || !v.pair); /* else the kernel before tells the pairs */
    }
    /* A kernel that does not wait writes beside those after the router, so not where scratch that
     * one of them may still read was released since. */
    a.ready = a.chosen && ready && p->side[p->here].n_releases == c->router_releases;
    if (!sorts_all(gate) || !together(c, a, offload ? &v : NULL))
        one_by_one(c, a, offload ? &v : NULL);
    r->in_use = true;
    reads_experts(c, *r, &a.p.w);
    if (up)
        reads_experts(c, *r, &a.p.up);
    cuda_done(p, "moe_glu");
}

void cuda_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                  act_kind act)
{
    if (!cuda_loaded(p, gate) || (up && !cuda_loaded(p, up)))
        return;
    cuda_experts_arrive(p, gate);
    const int32_t kind = cuda_kind(p, gate);
    const bool biased = gate->bias || (up && up->bias);
    if (by_expert(p, gate) && (!up || by_expert(p, up))) {
        count_choice(p, *r, gate);
        glu_by_expert(p, y, x, r, gate, up, act);
        cuda_done(p, "moe_glu");
    } else if (act == ACT_GELU_TANH && !biased && cuda_is_float(kind) &&
               (!up || cuda_kind(p, up) == kind)) {
        packed u = cuda_view(up ? up : gate);
        count_choice(p, *r, gate);
        CUDA_OP(p, "moe_glu", *y,
                cu_expert_float(cuda_of(p)->stream, cuda_mat(*y), cuda_mat(x), 1, r->id, r->k,
                                cuda_view(gate), own_of(gate), &u, up ? 0 : y->cols, y->cols));
    } else if (!cuda_gates(act) || !cuda_pairs(p, gate, up, y->cols)) {
        glu_apart(p, y, x, r, gate, up, act);
    } else {
        glu_by_row(p, y, x, r, gate, up, act);
    }
}

static expert_product down_product(mat y, dev_quant x, routing r, const weight *down)
{
    return (expert_product){
        .p = {.y = cuda_mat(y), .x = x, .w = cuda_view(down), .n_out = down->n_out},
        .expert = r.id,
        .own = own_of(down),
        .share = r.weight,
        .k = r.k,
        .x_per_pair = true,
        .chosen = r.in_use};
}

/* Of the pairs that down has; NULL: all. */
static const int32_t *joined(routing r, const weight *down)
{
    return down->n_mat_all ? r.id : NULL;
}

/* Columns first to first + n - 1 of a copy in single rows; q.cols stays the length of a row. */
static dev_quant columns_of_copy(dev_quant q, int32_t first)
{
    if (q.q) {
        q.q += first;
        q.s = (char *)q.s + (size_t)(first / GROUP) * 8;
    }
    return q;
}

/* The product of all pairs, then the sum of a row's. False: there is one row, or no room. */
static bool down_together(pass *p, mat y, dev_quant q, routing r, const weight *down,
                          const offload_view *v)
{
    cuda_device *c = cuda_of(p);
    mat outputs = pass_mat(p, y.rows, r.k, down->n_out);
    if (cuda_skip(p, y))
        return true;
    if (!sorts_all(down) || !together(c, down_product(outputs, q, r, down), v))
        return false;
    if (v)
        cu_offload_join(c->stream, cuda_mat(y), outputs.at, r.weight, r.k, joined(r, down),
                        own_of(down), *v);
    else
        cu_expert_join(c->stream, cuda_mat(y), outputs.at, NULL, r.k, joined(r, down),
                       own_of(down));
    return true;
}

static void down_bias(pass *p, mat y, routing r, const weight *down)
{
    const float *bias = cuda_vector(p, down->bias);
    if (!bias || pass_failed(p) || !y.rows)
        return;
    cuda_select(p->dev);
    cu_expert_bias(cuda_of(p)->stream, cuda_mat(y), r.id, own_of(down), r.weight, r.k, bias);
}

/* ---- Segments of a rank ---------------------------------------------------------------------- */

static void add_segment(down_segments *a, float *y, const weight *w, int32_t x_group)
{
    a->of[a->n++] = (down_segment){cuda_view(w), own_of(w), x_group, y};
}

/* Weights of blocks, rows of answers. A row alone takes one launch; so does each of several, where
 * they cannot be sorted. Others are sorted by segment. Where the host computes experts, or some
 * come early, each segment has launches of its own. */
static void segments_down(pass *p, const mat *y, mat x, routing r, const weight *w, int32_t n)
{
    cuda_device *c = cuda_of(p);
    const size_t row = (size_t)r.k;
    cuda_offload *offload = p->dry ? NULL : cuda_offload_of(c, w);
    dev_quant q = copy_by_pair(p, x, false);
    const size_t mark = pass_mark(p);
    for (int32_t i = 0, first = 0; i < n && (x.rows > 1 || offload); i++) {
        const dev_quant part = columns_of_copy(q, first);
        const offload_view v = offload ? cuda_offload_again(offload, &w[i]) : (offload_view){0};
        bool done = x.rows > 1 && down_together(p, y[i], part, r, &w[i], offload ? &v : NULL);
        if (!done && offload && !cuda_skip(p, y[i])) {
            cu_product_vec_offload(c->stream, down_product(y[i], part, r, &w[i]), v);
            done = true;
        }
        first += w[0].n_in < x.cols ? w[i].n_in : 0;
        pass_release(p, mark);
        if (!done)
            break;
        if (i == n - 1) {
            if (!cuda_idle(p, x))
                cuda_done(p, "moe_down");
            return;
        }
    }
    if (cuda_skip(p, y[0]))
        return;
    for (int32_t at = 0; at < x.rows; at++) {
        down_segments a = {.k = r.k,
                           .n_out = w->n_out,
                           .x = some_of_copy(q, at * r.k, r.k),
                           .expert = r.id + (size_t)at * row,
                           .share = r.weight + (size_t)at * row,
                           .chosen = r.in_use};
        for (int32_t i = 0, first = 0; i < n; i++) {
            add_segment(&a, mat_row(y[i], at), &w[i], first / GROUP);
            first += w[0].n_in < x.cols ? w[i].n_in : 0;
        }
        cu_down_segments(c->stream, a);
    }
    cuda_done(p, "moe_down");
}

bool cuda_moe_down_segments(pass *p, const mat *y, mat x, routing r, const weight *w, int32_t n)
{
    const int32_t kind = cuda_kind(p, w);
    bool can = cuda_few(p) && !cuda_is_float(kind) && x.cols % GROUP == 0;
    int32_t cols = 0;
    for (int32_t i = 0; i < n && can; i++) {
        can = cuda_kind(p, &w[i]) == kind && w[i].n_in % GROUP == 0;
        cols += w[i].n_in;
    }
    if (!can || (cols != x.cols && w->n_in != x.cols))
        return false;
    for (int32_t i = 0; i < n; i++)
        if (!cuda_loaded(p, &w[i]))
            return true;
    segments_down(p, y, x, r, w, n);
    for (int32_t i = 0; i < n; i++) {
        const packed v = p->dry || pass_failed(p) ? (packed){0} : cuda_view(&w[i]);
        down_bias(p, y[i], r, &w[i]);
        if (v.codes)
            reads_experts(cuda_of(p), r, &v);
    }
    cuda_experts_leave(p, w);
    return true;
}

static void moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    cuda_device *c = cuda_of(p);
    if (!cuda_loaded(p, down))
        return;
    if (by_expert(p, down)) {
        dev_quant q = copy_by_pair(p, x, true);
        expert_lists l = sort_pairs(p, &r, down);
        mat outputs = pass_mat(p, x.rows, r.k, down->n_out);
        expert_mma(p, outputs, q, down, l, 1);
        CUDA_OP(p, "moe_down", y,
                cu_expert_join(c->stream, cuda_mat(y), outputs.at, r.weight, r.k, joined(r, down),
                               own_of(down)));
        return;
    }
    if (cuda_is_float(cuda_kind(p, down))) {
        mat outputs = pass_mat(p, x.rows, r.k, down->n_out);
        if (pass_failed(p) || cuda_skip(p, y))
            return;
        cu_expert_float(c->stream, cuda_mat(outputs), cuda_mat(x), r.k, r.id, r.k, cuda_view(down),
                        own_of(down), NULL, 0, down->n_out);
        cu_expert_join(c->stream, cuda_mat(y), outputs.at, r.weight, r.k, joined(r, down),
                       own_of(down));
        cuda_done(p, "moe_down");
        return;
    }
    if (down->n_mat_all) {
        segments_down(p, &y, x, r, down, 1);
        return;
    }
    dev_quant q = copy_by_pair(p, x, false);
    if (cuda_skip(p, y)) {
        if (p->dry && x.rows > 1)
            pass_mat(p, x.rows, r.k, down->n_out);
        return;
    }
    cuda_offload *offload = cuda_offload_of(c, down);
    const offload_view v = offload ? cuda_offload_again(offload, down) : (offload_view){0};
    const packed w = cuda_view(down);
    reads_experts(c, r, &w);
    if (x.rows == 1 || !down_together(p, y, q, r, down, offload ? &v : NULL))
        one_by_one(c, down_product(y, q, r, down), offload ? &v : NULL);
    cuda_done(p, "moe_down");
}

void cuda_moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    moe_down(p, y, x, r, down);
    down_bias(p, y, r, down);
    cuda_experts_leave(p, down);
}

/* Rows of answers of which the kernels of residuals take the sums too. */
bool cuda_moe_parts(pass *p, mat parts, mat x, routing r, const weight *down)
{
    cuda_device *c = cuda_of(p);
    if (x.rows <= REHEARSED_ROWS || !cuda_few(p) || down->bias || down->n_mat_all ||
        !cuda_loaded(p, down) || cuda_is_float(cuda_kind(p, down)) ||
        (!p->dry && cuda_offload_of(c, down)))
        return false;
    dev_quant q = copy_by_pair(p, x, false);
    if (cuda_idle(p, x))
        return true;
    cuda_select(&c->dev);
    if (!together(c, down_product(parts, q, r, down), NULL))
        return false;
    const packed v = cuda_view(down);
    reads_experts(c, r, &v);
    cuda_done(p, "moe_down");
    cuda_experts_leave(p, down);
    return true;
}

/* Is w of one expert's layout and shape, so that the experts' launch can have it beside them? */
static bool like_expert(const weight *w, const weight *experts, int32_t n_out)
{
    return w->packed && experts->packed && !cuda_is_float(experts->packed_kind) &&
           w->packed_kind == experts->packed_kind && w->n_in == experts->n_in && w->n_out == n_out;
}
/* Can cu_router have the choice, and the factor of the shared expert? */
static bool routes(const mixture *m)
{
    const weight *w = m->router, *f = m->shared_factor;
    return w->packed && cuda_is_float(w->packed_kind) && w->n_in % 4 == 0 &&
           w->n_out <= ROUTER_EXPERTS && m->k < ROUTER_MOST && m->k <= w->n_out &&
           (!f || (f->packed && f->packed_kind == w->packed_kind));
}

/* Does a product of the mixture have biases? */
static bool has_biases(const mixture *m)
{
    const weight *w[] = {m->router,      m->gate,      m->up,         m->down,
                         m->shared_gate, m->shared_up, m->shared_down};
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        if (w[i] && w[i]->bias)
            return true;
    return false;
}

/* One row, whose shared expert is one more pair of the launches of experts. More rows take the
 * expansion, whose bits are the same. */
bool cuda_mixture(pass *p, mat y, mat x, const mixture *m, const mat *part)
{
    cuda_device *c = cuda_of(p);
    const weight *own = part ? m->down->segment : m->down;
    const route_rule plain = {.factor = 1}, *rule = m->rule ? m->rule : &plain;
    const weight *w = m->router;
    if (!m->shared_gate || has_biases(m) || m->act == ACT_SWIGLU_CUT)
        return false;
    int32_t n_ff = m->shared_gate->n_out, k = m->k + 1; /* pairs */
    if (p->dry || x.rows != 1 || !cuda_few(p) || !cuda_gates(m->act) || !routes(m) ||
        x.stride % 4 || n_ff % GROUP || m->gate->n_out != (m->up ? n_ff : 2 * n_ff) ||
        !like_expert(m->shared_gate, m->gate, n_ff) || !like_expert(m->shared_up, m->gate, n_ff) ||
        (m->up && !like_expert(m->up, m->gate, n_ff)) ||
        !like_expert(m->shared_down, own, own->n_out) || (part && cuda_offload_of(c, m->gate)))
        return false;
    packed down = cuda_view(m->shared_down);
    int32_t warps = cu_product_warps(&down);
    if (m->k + warps > DOWN_WARPS)
        return false;
    choice how = choice_of(p, rule);
    int32_t *id = pass_temp(p, (size_t)k * sizeof *id);
    float *share = pass_temp(p, (size_t)k * sizeof *share);
    mat logits = pass_mat(p, 1, 1, w->n_out), e = pass_mat(p, 1, k, n_ff);
    mat pairs = mat_head_rows(e);
    dev_quant q = cuda_copy(p, &x, false, false), copy = cuda_new_copy(p, &pairs, false, true);
    if (pass_failed(p) || cuda_skip(p, y))
        return true;
    router_args choose = {.x = cuda_mat(x),
                          .logits = cuda_mat(logits),
                          .w = cuda_view(w),
                          .how = how,
                          .id = id,
                          .share = share,
                          .k = m->k,
                          .ticket = c->router_ticket,
                          .shared = true,
                          .factor = m->shared_factor ? m->shared_factor->packed : NULL};
    cuda_offload *offload = cuda_offload_of(c, m->gate);
    if (offload)
        cuda_offload_guess(offload, w, cuda_mat(x), m->k, how.sigmoid);
    cu_router(c->stream, choose, cuda_offload_tells(offload, w, 1, m->k));
    expert_product a = {.p = cuda_pair_args(m->gate, m->up, n_ff, m->act),
                        .expert = id,
                        .own = own_of(m->gate),
                        .k = k,
                        .shared_warps = warps};
    a.p.y = cuda_mat(e);
    a.p.x = q;
    a.p.q = copy;
    a.shared = cuda_view(m->shared_gate);
    a.shared_up = cuda_view(m->shared_up);
    offload_view v = {0};
    const routing r = {.id = id, .weight = share, .rows = 1, .k = m->k};
    if (offload)
        v = cuda_offload_dispatch(c, offload, r, m->gate, q, offload_unit_of(m->act));
    one_by_one(c, a, offload ? &v : NULL);
    const packed *once[] = {&choose.w, &a.shared, &a.shared_up, &down};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        cuda_reads(c, once[i], 1);
    reads_experts(c, r, &a.p.w);
    if (m->up)
        reads_experts(c, r, &a.p.up);
    if (part) {
        down_segments s = {.k = m->k,
                           .n_out = own->n_out,
                           .x = copy,
                           .expert = id,
                           .share = share,
                           .chosen = true,
                           .shared = down,
                           .shared_warps = warps,
                           .shared_y = y.at};
        for (int32_t i = 0; i < m->down->n_segments; i++)
            add_segment(&s, part[i].at, &own[i], 0);
        cu_down_segments(c->stream, s);
        for (int32_t i = 0; i < s.n; i++)
            reads_experts(c, r, &s.of[i].w);
        cuda_done(p, "mixture");
        return true;
    }
    expert_product d = {
        .p = {.y = cuda_mat(y), .x = copy, .w = cuda_view(m->down), .n_out = m->down->n_out},
        .expert = id,
        .own = own_of(m->down),
        .share = share,
        .k = k,
        .x_per_pair = true,
        .chosen = true,
        .shared_warps = warps,
        .shared = down};
    if (offload)
        v = cuda_offload_again(offload, m->down);
    one_by_one(c, d, offload ? &v : NULL);
    reads_experts(c, r, &d.p.w);
    cuda_done(p, "mixture");
    return true;
}

void cuda_moe_matmul(pass *p, mat y, mat *x, routing r, const weight *w)
{
    if (!cuda_loaded(p, w))
        return;
    expert_alone(p, y, x, r, w);
    cuda_done(p, "moe_matmul");
}

void cuda_renumber(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n)
{
    (void)n_list;
    CUDA_OP(p, "renumber", x,
            cu_renumber(cuda_of(p)->stream, cuda_mat(x), x.cols, r.id, r.k, list, n));
}
