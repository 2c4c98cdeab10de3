/* check_products.c - the products of the CUDA device against backend/cpu/ref.c: weights in every
 * format, gated pairs, experts, routers. Rows against the same rows alone: check_invariance.c.
 *
 * Bounds are normalised mean square errors: f32 against f64 sums 1e-10; int8 activations 2e-4
 * (their rounding, (1/127)^2 / 12 of a peak a few deviations high); bf16 operands 1e-5.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/launch_small.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

const double F32_BOUND = 1e-10, INT8_BOUND = 2e-4, BF16_BOUND = 2e-5;

const num_type block_types[] = {NUM_Q4_0,   NUM_Q4_1,   NUM_Q5_0, NUM_Q5_1, NUM_Q8_0,
                                NUM_Q4_K,   NUM_Q5_K,   NUM_Q6_K, NUM_Q2_K, NUM_Q3_K,
                                NUM_IQ4_NL, NUM_IQ4_XS, NUM_MXFP4};
/* Their layouts: nibbles with two scales, entries of lattices, codes of one and two bits. */
const num_type own_types[] = {NUM_NVFP4, NUM_IQ3_XXS, NUM_IQ3_S, NUM_IQ2_XXS, NUM_IQ2_XS, NUM_IQ2_S,
                              NUM_IQ1_S, NUM_IQ1_M,   NUM_Q2_0,  NUM_TQ1_0,   NUM_TQ2_0,  NUM_Q1_0};
_Static_assert(sizeof own_types / sizeof *own_types == N_OWN_TYPES, "the list");
_Static_assert(sizeof block_types / sizeof *block_types == N_BLOCK_TYPES, "the list");

double product_bound(num_type t, int32_t rows)
{
    if (t == NUM_F32 || ((t == NUM_F16 || t == NUM_BF16) && rows <= 32))
        return F32_BOUND;
    return rows > 32 ? BF16_BOUND : INT8_BOUND;
}

static void check_product(rig *g, num_type t, int32_t n_in, int32_t n_out, int32_t rows)
{
    static chain c;
    pair w;
    both b;
    mat x[2];
    if (!my_turn(g, "matmul") || !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false))
        return;
    pair_bias(g, &w);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0);
    both_mat(g, &b, x, v, rows, 1, n_in);
    mat yr = op_matmul(&b.ref, x[0], &w.w[0]), yg = op_matmul(&b.gpu, x[1], &w.w[1]);
    verdict(g, "matmul", text("%-6s %4d x %5d -> %6d", num_name(t), rows, n_in, n_out),
            both_error(g, &b, yr, yg), product_bound(t, rows));
    mem_free(v);
    pair_free(g, &w);
}

static void check_glu(rig *g, num_type t, int32_t n_in, int32_t n_ff, int32_t rows, bool fused)
{
    static chain c;
    pair a, u = {0};
    both b;
    mat x[2];
    if (!my_turn(g, "glu") || !pair_make(g, &a, t, n_in, fused ? 2 * n_ff : n_ff, 1, 0.05, false) ||
        (!fused && !pair_make(g, &u, t, n_in, n_ff, 1, 0.05, false)))
        return;
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0);
    both_mat(g, &b, x, v, rows, 1, n_in);
    const weight *up[2] = {fused ? NULL : &u.w[0], fused ? NULL : &u.w[1]};
    mat sr = op_glu(&b.ref, x[0], &a.w[0], up[0], ACT_SILU);
    mat sg = op_glu(&b.gpu, x[1], &a.w[1], up[1], ACT_SILU);
    verdict(g, "glu silu", text("%-6s %4d x %5d -> %6d", num_name(t), rows, n_in, n_ff),
            both_error(g, &b, sr, sg), 4 * product_bound(t, rows));
    mat yr = op_glu(&b.ref, x[0], &a.w[0], up[0], ACT_GELU_TANH);
    mat yg = op_glu(&b.gpu, x[1], &a.w[1], up[1], ACT_GELU_TANH);
    verdict(g, "glu",
            text("%-6s %4d x %5d -> %6d%s", num_name(t), rows, n_in, n_ff, fused ? " halves" : ""),
            both_error(g, &b, yr, yg), 4 * product_bound(t, rows));
    /* The copy that glu made for the next product must equal a fresh one. */
    if (n_ff % 256 == 0) {
        pair d;
        if (pair_make(g, &d, t, n_ff, 64, 1, 0.05, false)) {
            mat zr = op_matmul(&b.ref, yr, &d.w[0]), zg = op_matmul(&b.gpu, yg, &d.w[1]);
            verdict(g, "glu+down", text("%-6s %4d x %5d", num_name(t), rows, n_ff),
                    both_error(g, &b, zr, zg), 8 * product_bound(t, rows));
            pair_free(g, &d);
        }
    }
    mem_free(v);
    pair_free(g, &a);
    if (!fused)
        pair_free(g, &u);
}

static void check_experts(rig *g, num_type tg, num_type td, int32_t n_in, int32_t n_ff, int32_t n,
                          int32_t k, int32_t rows, bool fused)
{
    static chain c;
    pair gate, up = {0}, down, scale;
    both b;
    mat x[2], z[2];
    if (!my_turn(g, "moe") ||
        !pair_make(g, &gate, tg, n_in, fused ? 2 * n_ff : n_ff, n, 0.05, false) ||
        (!fused && !pair_make(g, &up, tg, n_in, n_ff, n, 0.05, false)) ||
        !pair_make(g, &down, td, n_ff, n_in, n, 0.05, false) ||
        !pair_make(g, &scale, NUM_F32, n, 1, 1, 1.0, false))
        return;
    const act_kind act = rng_below(&g->rng, 2) ? ACT_GELU_TANH : ACT_SWIGLU_CUT;
    pair_bias(g, &gate);
    if (!fused)
        pair_bias(g, &up);
    pair_bias(g, &down);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0), *l = draw(g, (size_t)rows * (size_t)n, 2);
    both_mat(g, &b, x, v, rows, 1, n_in);
    both_mat(g, &b, z, l, rows, 1, n);
    routing rr = op_route(&b.ref, z[0], k, &(route_rule){.scale = &scale.w[0]}),
            rg = op_route(&b.gpu, z[1], k, &(route_rule){.scale = &scale.w[1]});
    mat wr = mat_at(rr.weight, rows, 1, k, k), wg = mat_at(rg.weight, rows, 1, k, k);
    double e = both_error(g, &b, wr, wg);
    int32_t *id = mem_calloc((size_t)rows * (size_t)k, sizeof *id);
    g->gpu->download(g->gpu, id, rg.id, (size_t)rows * (size_t)k * sizeof *id);
    if (memcmp(id, rr.id, (size_t)rows * (size_t)k * sizeof *id))
        e = NAN;
    verdict(g, "moe route", text("%d rows, %d of %d", rows, k, n), e, F32_BOUND);
    const weight *ur = fused ? NULL : &up.w[0], *ug = fused ? NULL : &up.w[1];
    if (act == ACT_SWIGLU_CUT) {
        /* Whatever the weights: with gates of mean square 9 one in fifty is beyond the cut of 7. */
        mat in = op_moe_matmul(&b.ref, x[0], rr, &gate.w[0]);
        double sum = 0;
        for (int32_t r = 0; r < in.rows; r++)
            for (int32_t i = 0; i < mat_width(in); i++)
                sum += (double)mat_row(in, r)[i] * (double)mat_row(in, r)[i];
        double rms = sqrt(sum / ((double)in.rows * mat_width(in)));
        for (size_t i = 0; i < (size_t)rows * (size_t)n_in; i++)
            v[i] *= (float)(3 / rms);
        both_mat(g, &b, x, v, rows, 1, n_in);
    }
    mat hr = op_moe_glu(&b.ref, x[0], &rr, &gate.w[0], ur, act);
    mat hg = op_moe_glu(&b.gpu, x[1], &rg, &gate.w[1], ug, act);
    verdict(g, "moe_glu", text("%-6s %4d x %d x %5d -> %5d", num_name(tg), rows, k, n_in, n_ff),
            both_error(g, &b, hr, hg), tg == NUM_F32 ? 4 * F32_BOUND : 4 * INT8_BOUND);
    mat mr = op_moe_matmul(&b.ref, x[0], rr, &gate.w[0]);
    mat mg = op_moe_matmul(&b.gpu, x[1], rg, &gate.w[1]);
    verdict(g, "moe_matmul", text("%-6s %4d x %d x %5d", num_name(tg), rows, k, n_in),
            both_error(g, &b, mr, mg), tg == NUM_F32 ? 4 * F32_BOUND : 4 * INT8_BOUND);
    mat dr = op_moe_down(&b.ref, hr, rr, &down.w[0]), dg = op_moe_down(&b.gpu, hg, rg, &down.w[1]);
    verdict(g, "moe_down", text("%-6s %4d x %d x %5d -> %5d", num_name(td), rows, k, n_ff, n_in),
            both_error(g, &b, dr, dg), tg == NUM_F32 ? 8 * F32_BOUND : 8 * INT8_BOUND);
    mem_free(id);
    mem_free(v);
    mem_free(l);
    pair_free(g, &gate);
    if (!fused)
        pair_free(g, &up);
    pair_free(g, &down);
    pair_free(g, &scale);
}

/* down as the segments that ranks have, a part of the experts each. */
enum { CUTS = 4 };
static bool cut_down(rig *g, const weight *down, weight *cut, weight *part)
{
    err e = {0};
    bool done = true;
    *cut = *down;
    cut->segment = part;
    cut->n_segments = CUTS;
    for (int32_t i = 0; i < CUTS; i++) {
        const int32_t from = i * down->n_mat / CUTS, to = (i + 1) * down->n_mat / CUTS;
        part[i] = *down;
        part[i].packed = NULL;
        part[i].data = weight_row(down, from, 0);
        part[i].first_mat = from;
        part[i].n_mat = to - from;
        part[i].n_mat_all = down->n_mat;
        part[i].n_bytes = down->mat_bytes * (size_t)(to - from);
        done = g->gpu->weight_load(g->gpu, &part[i], &e) == OK && done;
    }
    return done;
}

bool shared_make(rig *g, pair one[3], num_type t, num_type td, int32_t n_in, int32_t n_ff)
{
    return pair_make(g, &one[0], t, n_in, n_ff, 1, 0.05, false) &&
           pair_make(g, &one[1], t, n_in, n_ff, 1, 0.05, false) &&
           pair_make(g, &one[2], td, n_ff, n_in, 1, 0.05, false);
}

/* A mixture against the reference; in one launch of experts and op by op, bit for bit; and the same
 * as the segments of a tensor split. Once it has no shared expert. */
static void check_mixture(rig *g, num_type t, num_type td, int32_t n_in, int32_t n_ff, int32_t n,
                          int32_t k, bool sigmoid)
{
    static chain c;
    pair router, factor, bias, gate, up, down, one[3];
    const bool fused = n_ff % 16 == 0 && k % 2;
    device_ops apart = *g->gpu->op;
    const device_ops *usual = g->gpu->op;
    mat x[2], y[5];
    double e = 0;
    weight cut, part[CUTS];
    if (!my_turn(g, "mixture") || !pair_make(g, &router, NUM_F32, n_in, n, 1, 0.2, false) ||
        !pair_make(g, &factor, NUM_F32, n_in, 1, 1, 0.1, false) ||
        !pair_make(g, &bias, NUM_F32, n, 1, 1, 0.3, false) ||
        !pair_make(g, &gate, t, n_in, fused ? 2 * n_ff : n_ff, n, 0.05, false) ||
        !pair_make(g, &up, t, n_in, n_ff, n, 0.05, false) ||
        !pair_make(g, &down, td, n_ff, n_in, n, 0.05, false) ||
        !shared_make(g, one, t, td, n_in, n_ff))
        return;
    apart.mixture = NULL;
    if (!cut_down(g, &down.w[1], &cut, part))
        failed(g, "mixture", "segments");
    chain_init(&c, 1, 0, 0);
    for (int turn = 0; turn < 3; turn++) {
        both b;
        both_begin(g, &b, &c.st);
        float *v = draw(g, (size_t)n_in, 1.0);
        both_mat(g, &b, x, v, 1, 1, n_in);
        for (int i = 0; i < 5; i++) {
            const int w = i > 0;
            const route_rule rule = {.sigmoid = sigmoid, .bias = sigmoid ? &bias.w[w] : NULL};
            const mixture m = {.router = &router.w[w],
                               .gate = &gate.w[w],
                               .up = fused ? NULL : &up.w[w],
                               .down = i > 2 ? &cut : &down.w[w],
                               .shared_factor = sigmoid || !turn ? NULL : &factor.w[w],
                               .shared_gate = turn ? &one[0].w[w] : NULL,
                               .shared_up = turn ? &one[1].w[w] : NULL,
                               .shared_down = turn ? &one[2].w[w] : NULL,
                               .rule = &rule,
                               .k = k,
                               .act = ACT_SILU};
            g->gpu->op = i && i % 2 == 0 ? &apart : usual;
            y[i] = op_mixture(w ? &b.gpu : &b.ref, x[w], &m);
        }
        g->gpu->op = usual;
        for (int i = 1; i < 5; i += 2) {
            double now = both_error(g, &b, y[0], y[i]);
            e = now > e || now != now ? now : e;
            float *p = gpu_rows(g, y[i]), *q = gpu_rows(g, y[i + 1]);
            if (memcmp(p, q, (size_t)n_in * sizeof *p))
                e = NAN;
            mem_free(p);
            mem_free(q);
        }
        mem_free(v);
    }
    verdict(g, "mixture", text("%-6s %d of %d x %d -> %d", num_name(t), k, n, n_in, n_ff), e,
            8 * INT8_BOUND);
    pair *all[] = {&router, &factor, &bias, &gate, &up, &down, &one[0], &one[1], &one[2]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pair_free(g, all[i]);
    for (int i = 0; i < CUTS; i++)
        g->gpu->weight_free(g->gpu, &part[i]);
}

/* The part of per-layer embeddings against the reference; as one kernel and as its products, bit
 * for bit. rows, width: of several rows, and of other widths than 256, there is no such kernel. */
static void check_ple(rig *g, num_type t, num_type tp, int32_t n, int32_t width, int32_t rows)
{
    static chain c;
    pair gate, proj;
    device_ops apart = *g->gpu->op;
    const device_ops *usual = g->gpu->op;
    mat x[2], b[2], y[3];
    both o;
    if (!my_turn(g, "ple") || !pair_make(g, &gate, t, n, width, 1, 0.05, false) ||
        !pair_make(g, &proj, tp, width, n, 1, 0.05, false))
        return;
    apart.ple = NULL;
    chain_init(&c, rows, 0, 0);
    both_begin(g, &o, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n, 1.0);
    float *u = draw(g, (size_t)rows * (size_t)width, 1.0);
    both_mat(g, &o, x, v, rows, 1, n);
    both_mat(g, &o, b, u, rows, 1, width);
    for (int i = 0; i < 3; i++) {
        pass *p = i ? &o.gpu : &o.ref;
        const residual r = {.y = x[i > 0], .eps = 1e-6f, .reader = &gate.w[i > 0]};
        g->gpu->op = i == 2 ? &apart : usual;
        if (i < 2) /* x += x, and the copy of it that the product reads */
            x[i] = op_residual(p, x[i], &r, NULL, NULL, 0);
        y[i] = op_ple(p, x[i > 0], &gate.w[i > 0], b[i > 0], &proj.w[i > 0]);
    }
    g->gpu->op = usual;
    double e = both_error(g, &o, y[0], y[1]);
    float *p = gpu_rows(g, y[1]), *q = gpu_rows(g, y[2]);
    if (memcmp(p, q, (size_t)rows * (size_t)n * sizeof *p))
        e = NAN;
    verdict(g, "ple",
            text("%-6s %-6s %d rows of %d by %d", num_name(t), num_name(tp), rows, n, width), e,
            2 * INT8_BOUND);
    mem_free(p);
    mem_free(q);
    mem_free(v);
    mem_free(u);
    pair_free(g, &gate);
    pair_free(g, &proj);
}

/* An activation that the GPU does not know is refused, before and in a pass. */
static void check_unknown_act(rig *g)
{
    static chain c;
    pair w;
    pass p;
    const act_kind unknown = ACT_KINDS;
    if (!my_turn(g, "unknown act") || !pair_make(g, &w, NUM_Q8_0, 64, 64, 1, 0.05, false))
        return;
    int wrong = device_knows_act(g->gpu, unknown) + !device_knows_act(g->gpu, ACT_GELU_TANH);
    chain_init(&c, 3, 0, 0);
    for (int op = 0; op < 3; op++) {
        pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
        mat x = pass_mat(&p, 3, 1, 64);
        routing r = {.rows = 3, .k = 1};
        if (op == 0)
            op_glu(&p, x, &w.w[1], &w.w[1], unknown);
        else if (op == 1)
            op_act_mul(&p, x, x, unknown);
        else
            op_moe_glu(&p, x, &r, &w.w[1], &w.w[1], unknown);
        wrong += p.e.status != E_UNSUPPORTED;
    }
    verdict(g, "unknown act", "glu, act_mul, moe_glu: not refused", wrong, 0);
    pair_free(g, &w);
}

/* Gated, down and the residual stream after both branches, of v's rows from..from + rows - 1:
 * gpu_rows. w: gate, up, down, a norm's; l: routing's logits. */
static void experts_of(rig *g, const weight *w, const float *v, const float *l, int32_t from,
                       int32_t rows, int32_t k, act_kind act, float *got[3])
{
    static chain c;
    pass p;
    int32_t n_in = w[0].n_in, n = w[0].n_mat;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat x = pass_mat(&p, rows, 1, n_in), z = pass_mat(&p, rows, 1, n);
    g->gpu->upload(g->gpu, x.at, v + (size_t)from * (size_t)n_in,
                   (size_t)rows * (size_t)n_in * sizeof *v);
    g->gpu->upload(g->gpu, z.at, l + (size_t)from * (size_t)n,
                   (size_t)rows * (size_t)n * sizeof *l);
    routing r = op_route(&p, z, k, NULL);
    mat h = op_moe_glu(&p, x, &r, &w[0], w[1].n_in ? &w[1] : NULL, act);
    mat f = mat_bare(op_rms_norm(&p, x, NULL, 1e-6f)), y = op_moe_down(&p, h, r, &w[2]);
    got[1] = pass_failed(&p) ? NULL : gpu_rows(g, y);
    const residual sum = {.y = f,
                          .norm = &w[3],
                          .y_norm = &w[3],
                          .b = op_moe_branch(&p, h, r, &w[2], &w[3]),
                          .eps = 1e-6f};
    op_residual(&p, x, &sum, NULL, NULL, 0);
    if (pass_failed(&p))
        failed(g, "moe alone", p.e.text);
    got[0] = pass_failed(&p) ? NULL : gpu_rows(g, mat_at(h.at, rows, 1, k * h.cols, k * h.cols));
    got[2] = pass_failed(&p) ? NULL : gpu_rows(g, x);
}

/* A row gets the same bits from its experts alone as in company, where rows share an expert: many
 * experts with few rows each, and few experts with many. */
static void check_experts_alone(rig *g, num_type tg, num_type td, int32_t n_in, int32_t n_ff,
                                int32_t n, int32_t k, bool fused, bool prompt)
{
    pair gate, up = {0}, down, norm;
    if (!my_turn(g, "moe") ||
        !pair_make(g, &gate, tg, n_in, fused ? 2 * n_ff : n_ff, n, 0.05, false) ||
        (!fused && !pair_make(g, &up, tg, n_in, n_ff, n, 0.05, false)) ||
        !pair_make(g, &down, td, n_ff, n_in, n, 0.05, false) ||
        !pair_make(g, &norm, NUM_F32, n_in, 1, 1, 1.0, false))
        return;
    enum { ROWS = 70, RESULTS = 3 };
    static const int32_t counts[] = {2, 3, 5, 16, 31, 33, FEW_ROWS, ROWS};
    const act_kind act = rng_below(&g->rng, 2) ? ACT_GELU_TANH : ACT_SWIGLU_CUT;
    pair_bias(g, &gate);
    if (!fused)
        pair_bias(g, &up);
    pair_bias(g, &down);
    weight w[4] = {gate.w[1], up.w[1], down.w[1], norm.w[1]};
    float *v = draw(g, (size_t)ROWS * (size_t)n_in, 1.0), *l = draw(g, (size_t)ROWS * (size_t)n, 2);
    float *alone[ROWS][RESULTS] = {0}, *got[RESULTS];
    size_t row[RESULTS] = {(size_t)k * (size_t)n_ff, (size_t)n_in, (size_t)n_in};
    int differ = 0;
    few_rows(prompt ? 0 : ROWS);
    /* A row of a prompt alone takes the emulator as long as seventy: briefly, every fifth is. */
    for (int32_t r = 0; r < ROWS; r++)
        if (!g->brief || r % 5 == 0 || r >= ROWS - 3)
            experts_of(g, w, v, l, r, 1, k, act, alone[r]);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int32_t rows = counts[i], from = ROWS - rows;
        experts_of(g, w, v, l, from, rows, k, act, got);
        for (int j = 0; j < RESULTS; j++) {
            for (int32_t r = 0; r < rows && got[j]; r++)
                differ += alone[from + r][j] && memcmp(got[j] + (size_t)r * row[j],
                                                       alone[from + r][j], row[j] * sizeof *v);
            mem_free(got[j]);
        }
    }
    verdict(g, "moe alone",
            text("%s %s%s %d -> %d, %d of %d%s: rows that differ", num_name(tg), num_name(td),
                 fused ? " halves" : "", n_in, n_ff, k, n, prompt ? ", prompt" : ""),
            differ, 0);
    few_rows(RIG_FEW);
    for (int32_t r = 0; r < ROWS; r++)
        for (int j = 0; j < RESULTS; j++)
            mem_free(alone[r][j]);
    mem_free(v);
    mem_free(l);
    pair_free(g, &norm);
    pair_free(g, &gate);
    if (!fused)
        pair_free(g, &up);
    pair_free(g, &down);
}

/* The router and its choice; a row alone makes the same choice, bit for bit. */
static void check_router(rig *g, num_type t, int32_t n_in, int32_t n, int32_t k, int32_t rows)
{
    static chain c;
    pair w, scale;
    both b;
    mat x[2];
    if (!my_turn(g, "moe") || !pair_make(g, &w, t, n_in, n, 1, 0.05, false) ||
        !pair_make(g, &scale, NUM_F32, n, 1, 1, 1.0, false))
        return;
    pair_bias(g, &w);
    few_rows(FEW_ROWS);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0);
    both_mat(g, &b, x, v, rows, 1, n_in);
    routing rr = op_router(&b.ref, x[0], &w.w[0], k, &(route_rule){.scale = &scale.w[0]});
    routing rg = op_router(&b.gpu, x[1], &w.w[1], k, &(route_rule){.scale = &scale.w[1]});
    mat wr = mat_at(rr.weight, rows, 1, k, k), wg = mat_at(rg.weight, rows, 1, k, k);
    mat ir = mat_at((float *)rr.id, rows, 1, k, k), ig = mat_at((float *)rg.id, rows, 1, k, k);
    double e = both_error(g, &b, wr, wg);
    float *id = gpu_rows(g, ig), *share = gpu_rows(g, wg);
    if (memcmp(id, ir.at, (size_t)rows * (size_t)k * sizeof *id))
        e = NAN;
    verdict(g, "moe router", text("%-4s %d rows, %d of %d", num_name(t), rows, k, n), e, F32_BOUND);
    int differ = 0;
    for (int32_t r = 0; rows <= FEW_ROWS && r < rows; r++) {
        pass p;
        chain_init(&c, 1, 0, 0);
        pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
        mat one = pass_mat(&p, 1, 1, n_in);
        g->gpu->upload(g->gpu, one.at, v + (size_t)r * (size_t)n_in, (size_t)n_in * 4);
        routing ro = op_router(&p, one, &w.w[1], k, &(route_rule){.scale = &scale.w[1]});
        float *i1 = gpu_rows(g, mat_at((float *)ro.id, 1, 1, k, k));
        float *s1 = gpu_rows(g, mat_at(ro.weight, 1, 1, k, k));
        size_t at = (size_t)r * (size_t)k, bytes = (size_t)k * 4;
        differ += memcmp(i1, id + at, bytes) || memcmp(s1, share + at, bytes);
        mem_free(i1);
        mem_free(s1);
    }
    verdict(g, "moe router", "each row alone, rows that differ", differ, 0);
    few_rows(RIG_FEW);
    mem_free(id);
    mem_free(share);
    mem_free(v);
    pair_free(g, &w);
    pair_free(g, &scale);
}

/* Rows 16 to 16 + n of a weight as bf16: within its rounding of the values of num/, and nothing
 * past them is written. */
static void check_unpack(rig *g, num_type t, int32_t n_in, int32_t n)
{
    cuda_device *c = g->gpu->self;
    const size_t n_w = (size_t)n * (size_t)n_in, n_guard = 256;
    int32_t wrong = 0;
    pair w;
    if (!my_turn(g, "unpack") || !pair_make(g, &w, t, n_in, 16 + n + 3, 1, 0.05, false))
        return;
    uint16_t *at = g->gpu->alloc(g->gpu, 2 * (n_w + n_guard));
    uint16_t *got = mem_calloc(n_w + n_guard, sizeof *got);
    float *v = mem_calloc((size_t)n_in, sizeof *v);
    cudaMemsetAsync(at, 0x5a, 2 * (n_w + n_guard), c->stream);
    cu_unpack_bf16(c->stream, cuda_view(&w.w[1]), 16, n, at);
    g->gpu->download(g->gpu, got, at, 2 * (n_w + n_guard));
    for (int32_t r = 0; r < n; r++) {
        num_format_of(t)->decode((const char *)w.bytes + (size_t)(16 + r) * w.w[0].row_bytes, v,
                                 n_in);
        for (int32_t i = 0; i < n_in; i++) {
            const float is = num_bf16_to_f32(got[(size_t)r * (size_t)n_in + (size_t)i]);
            const float of = v[i] * (w.w[0].factor ? w.w[0].factor[0] : 1);
            wrong += !(fabsf(is - of) <= fabsf(of) * 0x1p-8f + 1e-7f);
        }
    }
    for (size_t i = n_w; i < n_w + n_guard; i++)
        wrong += got[i] != 0x5a5a;
    verdict(g, "unpack", text("%s %d of %d x %d", num_name(t), n, w.w[0].n_out, n_in), wrong, 0);
    g->gpu->release(g->gpu, at, 2 * (n_w + n_guard));
    mem_free(got);
    mem_free(v);
    pair_free(g, &w);
}

static void check_all_unpack(rig *g)
{
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_unpack(g, block_types[i], 768, 16 + i);
    for (int i = 0; i < N_OWN_TYPES; i++)
        check_unpack(g, own_types[i], 768, 16 + i);
    for (int32_t n_group = 1; n_group < 9; n_group++) { /* parts of a unit */
        check_unpack(g, NUM_Q4_0, 32 * n_group, 32);
        check_unpack(g, NUM_Q8_0, 256 + 32 * n_group, 31);
        check_unpack(g, NUM_Q5_1, 32 * n_group, 1);
        check_unpack(g, NUM_IQ4_NL, 32 * n_group, 17);
    }
}

/* matmul_wide.cu, in tiles of so many rows, gives every bit of matmul_mma.cu; columns of y past its
 * own stay as they are. */
static void check_wide(rig *g, int32_t n_in, int32_t n_out, int32_t rows, int32_t tile)
{
    cuda_device *c = g->gpu->self;
    const int32_t stride = n_out + 3;
    const size_t n_x = (size_t)rows * (size_t)n_in, n_w = (size_t)n_out * (size_t)n_in;
    const size_t n_y = (size_t)rows * (size_t)stride;
    int32_t differ = 1;
    if (!my_turn(g, "matmul wide"))
        return;
    char *at = g->gpu->alloc(g->gpu, 8 * n_y + 2 * (n_x + n_w) + 64);
    uint16_t *x = (uint16_t *)(at + 64), *w = x + n_x; /* n_in is a multiple of 16: aligned */
    float *y = (float *)(w + n_w), *z = y + n_y;
    cu_random_bf16(c->stream, x, n_x, 3);
    cu_random_bf16(c->stream, w, n_w, 4);
    cu_matmul_wide(c->stream, (dev_mat){y, rows, n_out, stride}, x, w, n_in, tile);
    cu_matmul_mma(c->stream, (dev_mat){z, rows, n_out, stride},
                  (dev_quant){.bf = x, .rows = rows, .cols = n_in},
                  (packed){.codes = (const uint8_t *)w,
                           .kind = PACK_BF16,
                           .n_in = n_in,
                           .n_out = n_out,
                           .n_mat = 1});
    cudaMemsetAsync(at, 0, sizeof differ, c->stream);
    cu_count_different(c->stream, y, z, n_y, (int32_t *)at);
    g->gpu->download(g->gpu, &differ, at, sizeof differ);
    verdict(g, "matmul wide", text("%d x %d -> %d, tiles of %d: bits", rows, n_in, n_out, tile),
            differ, 0);
    g->gpu->release(g->gpu, at, 8 * n_y + 2 * (n_x + n_w) + 64);
}

static void check_all_wide(rig *g)
{
    for (int32_t tile = 128; tile <= 256; tile += 64) {
        check_wide(g, 256, 133, 301, tile);
        check_wide(g, 32, 17, 5, tile); /* fewer steps than stages, fewer rows than a warp's */
        check_wide(g, 96, 256, tile, tile);
        check_wide(g, 176, 133, 301, tile); /* half of a step at the end */
    }
    check_wide(g, 160, 40, 2 * 256 + 1, 0);
    check_wide(g, 16, 40, 33, 0);
}

/* matmul_tall_hopper.cu, in blocks of that shape, gives every bit of matmul_mma.cu over the same
 * weights made bf16; columns of y past its own stay as they are. */
static void check_tall(rig *g, num_type t, int32_t n_in, int32_t n_out, int32_t rows, int32_t shape)
{
    cuda_device *c = g->gpu->self;
    const int32_t stride = n_out + 3;
    const size_t n_x = (size_t)rows * (size_t)n_in, n_w = (size_t)n_out * (size_t)n_in;
    const size_t n_y = (size_t)rows * (size_t)stride, n_all = 8 * n_y + 2 * (n_x + n_w) + 64;
    int32_t differ = 1;
    pair w;
    if (!c->facts.wgmma || !my_turn(g, "matmul tall") ||
        !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false))
        return;
    char *at = g->gpu->alloc(g->gpu, n_all);
    uint16_t *x = (uint16_t *)(at + 64), *u = x + n_x;
    float *y = (float *)(u + n_w), *z = y + n_y;
    const dev_quant q = {.bf = x, .rows = rows, .cols = n_in};
    cu_random_bf16(c->stream, x, n_x, 3);
    cu_unpack_bf16(c->stream, cuda_view(&w.w[1]), 0, n_out, u);
    cudaMemsetAsync(y, 0, 2 * n_y * sizeof *y, c->stream);
    bool done =
        cu_matmul_tall(c->stream, (dev_mat){y, rows, n_out, stride}, q, cuda_view(&w.w[1]), shape);
    cu_matmul_mma(c->stream, (dev_mat){z, rows, n_out, stride}, q,
                  (packed){.codes = (const uint8_t *)u,
                           .kind = PACK_BF16,
                           .n_in = n_in,
                           .n_out = n_out,
                           .n_mat = 1});
    cudaMemsetAsync(at, 0, sizeof differ, c->stream);
    cu_count_different(c->stream, y, z, n_y, (int32_t *)at);
    g->gpu->download(g->gpu, &differ, at, sizeof differ);
    verdict(g, "matmul tall",
            text("%s %d x %d -> %d, shape %d: bits", num_name(t), rows, n_in, n_out, shape),
            done ? differ : 1, 0);
    g->gpu->release(g->gpu, at, n_all);
    pair_free(g, &w);
}

static void check_all_tall(rig *g)
{
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_tall(g, block_types[i], 768, i % 2 ? 133 : 40, 97 + i, i % TALL_SHAPES);
    for (int i = 0; i < N_OWN_TYPES; i++)
        check_tall(g, own_types[i], 768, i % 2 ? 133 : 40, 97 + i, i % TALL_SHAPES);
    for (int i = 0; i < TALL_SHAPES; i++) {
        check_tall(g, NUM_Q4_K, 1280, 200, 193, i);
        check_tall(g, NUM_Q6_K, 256, 17, 70, i); /* fewer steps than stages */
        check_tall(g, NUM_Q8_0, 32 + 64 * i, 130, 96, i);
        check_tall(g, NUM_Q4_0, 864, 133, 5, i); /* parts of a unit */
    }
    check_tall(g, NUM_Q5_K, 512, 256, 400, -1);
}

/* matmul_short.cu, of n weights in one launch, gives every bit of matmul_mma.cu over the same
 * weights made bf16, whatever multiprocessors and shared memory there are; columns of y past its
 * own stay as they are. kb: of shared memory. 0: what the device has, for layouts with tables. 32:
 * 17 rows and more do not fit, and nothing is launched. */
static void check_short(rig *g, num_type t, int32_t n_in, int32_t rows, int n, int32_t n_sm, int kb)
{
    static const int32_t n_out[SHORT_JOBS] = {133, 7, 48, 17};
    cuda_device *c = g->gpu->self;
    const gpu_facts facts = c->facts;
    const size_t n_x = (size_t)rows * (size_t)n_in,
                 n_y = (size_t)rows * (133 + 7 + 48 + 17 + 4 * 3);
    const size_t n_all = 8 * n_y + 2 * (n_x + 133 * (size_t)n_in) + 64;
    pair w[SHORT_JOBS];
    packed of[SHORT_JOBS];
    dev_mat to[SHORT_JOBS];
    int32_t differ = 1;
    if (!my_turn(g, "matmul short") || facts.shared_block < kb * 1024)
        return;
    for (int i = 0; i < n; i++)
        if (!pair_make(g, &w[i], t, n_in, n_out[i], 1, 0.05, false))
            return;
    char *at = g->gpu->alloc(g->gpu, n_all);
    uint16_t *x = (uint16_t *)(at + 64), *u = x + n_x;
    float *y = (float *)(u + 133 * (size_t)n_in), *z = y + n_y;
    const dev_quant q = {.bf = x, .rows = rows, .cols = n_in};
    c->facts.n_sm = n_sm;
    c->facts.shared_block = kb ? kb * 1024 : facts.shared_block;
    cuda_select(g->gpu);
    cu_random_bf16(c->stream, x, n_x, 3);
    cudaMemsetAsync(y, 0, 2 * n_y * sizeof *y, c->stream);
    for (int i = 0; i < n; i++) {
        const int32_t stride = n_out[i] + 3;
        of[i] = cuda_view(&w[i].w[1]);
        to[i] = (dev_mat){i ? to[i - 1].at + rows * to[i - 1].stride : y, rows, n_out[i], stride};
    }
    const bool done = cu_matmul_short(c->stream, to, q, of, n), fits = kb != 32;
    c->facts = facts;
    cuda_select(g->gpu);
    for (int i = 0; i < n && fits; i++) {
        dev_mat want = to[i];
        want.at = z + (to[i].at - y);
        cu_unpack_bf16(c->stream, of[i], 0, n_out[i], u);
        cu_matmul_mma(c->stream, want, q,
                      (packed){.codes = (const uint8_t *)u,
                               .kind = PACK_BF16,
                               .n_in = n_in,
                               .n_out = n_out[i],
                               .n_mat = 1});
    }
    cudaMemsetAsync(at, 0, sizeof differ, c->stream);
    cu_count_different(c->stream, y, z, n_y, (int32_t *)at);
    g->gpu->download(g->gpu, &differ, at, sizeof differ);
    verdict(g, "matmul short",
            text("%s %d x %d -> %d weights, %d multiprocessors, %d KB: bits", num_name(t), rows,
                 n_in, n, n_sm, kb),
            done == fits ? differ : 1, 0);
    g->gpu->release(g->gpu, at, n_all);
    for (int i = 0; i < n; i++)
        pair_free(g, &w[i]);
}

static void check_all_short(rig *g)
{
    static const int32_t rows[] = {1, 15, 16, 17, 31, 33, 48, 63, 64};
    static const num_type types[] = {NUM_Q4_0, NUM_Q8_0,  NUM_Q4_K,   NUM_Q6_K,
                                     NUM_Q5_1, NUM_IQ3_S, NUM_IQ2_XS, NUM_MXFP4};
    static const int32_t n_sm[] = {1, 3, 132};
    for (int i = 0; i < 9; i++) /* parts of a unit, one unit, as many as shares and more */
        for (int j = 0; j < 3; j++) {
            const num_type t = types[(3 * i + j) % 8];
            const bool groups = t == NUM_Q4_0 || t == NUM_Q8_0 || t == NUM_Q5_1 || t == NUM_MXFP4;
            const bool tables = t == NUM_IQ3_S || t == NUM_IQ2_XS;
            static const int32_t part[] = {32, 352, 2080}, whole[] = {256, 1280, 2304};
            check_short(g, t, groups ? part[(i + j) % 3] : whole[(i + j) % 3], rows[i],
                        1 + (i + j) % SHORT_JOBS, n_sm[j],
                        tables        ? 0
                        : (i + j) % 2 ? 99
                                      : 163);
        }
    check_short(g, NUM_Q4_K, 512, 64, 2, 3, 32);
    check_short(g, NUM_Q8_0, 96, 17, 1, 1, 32);
}

/* matmul_wide8.cu gives every bit of matmul_rows.cu; columns of y past its own stay as they are. */
static void check_wide8(rig *g, num_type t, int32_t n_in, int32_t n_out, int32_t rows)
{
    cuda_device *c = g->gpu->self;
    const int32_t stride = n_out + 3, room = (rows + 7) / 8 * 8;
    const size_t n_x = (size_t)rows * (size_t)n_in, n_y = (size_t)rows * (size_t)stride;
    const size_t n_q = (size_t)room * (size_t)n_in, n_w = wide8_bytes(n_in, n_out);
    const size_t n_all = 256 + n_w + n_q + n_q / GROUP * 8 + 4 * (n_x + 2 * n_y);
    int32_t differ = 1;
    pair w;
    if (!my_turn(g, "matmul wide8") || !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false))
        return;
    char *at = g->gpu->alloc(g->gpu, n_all), *records = at + 256;
    dev_quant q = {.q = (int8_t *)(records + n_w), .rows = rows, .cols = n_in, .tile = 8};
    q.s = q.q + n_q;
    float *x = (float *)((char *)q.s + n_q / GROUP * 8), *y = x + n_x, *z = y + n_y;
    float *v = draw(g, n_x, 1.0);
    const packed of = cuda_view(&w.w[1]);
    product_args a = {.y = {z, rows, n_out, stride}, .x = q, .w = of, .n_out = n_out};
    g->gpu->upload(g->gpu, x, v, n_x * sizeof *x);
    cudaMemsetAsync(y, 0, 2 * n_y * sizeof *y, c->stream);
    cu_quantise(c->stream, (dev_mat){x, rows, n_in, n_in}, q);
    cu_unpack8(c->stream, of, 0, n_out, records);
    cu_matmul_wide8(c->stream, (dev_mat){y, rows, n_out, stride}, q, &of, records);
    cu_product_rows(c->stream, &a, 1, c->launch);
    cudaMemsetAsync(at, 0, sizeof differ, c->stream);
    cu_count_different(c->stream, y, z, n_y, (int32_t *)at);
    g->gpu->download(g->gpu, &differ, at, sizeof differ);
    verdict(g, "matmul wide8", text("%s %d x %d -> %d: bits", num_name(t), rows, n_in, n_out),
            differ, 0);
    g->gpu->release(g->gpu, at, n_all);
    mem_free(v);
    pair_free(g, &w);
}

static void check_all_wide8(rig *g)
{
    static const num_type types[] = {NUM_Q4_0, NUM_Q4_1, NUM_Q5_0, NUM_Q5_1,
                                     NUM_Q8_0, NUM_Q4_K, NUM_Q5_K, NUM_Q6_K};
    for (int i = 0; i < 8; i++)
        check_wide8(g, types[i], i < 5 ? 864 : 768, 133, i % 2 ? 97 : 10); /* parts of a unit */
    check_wide8(g, NUM_Q4_K, 2304, 40, 8); /* eight parts of unequal lengths */
    check_wide8(g, NUM_Q6_K, 256, 17, 2);
    check_wide8(g, NUM_Q8_0, 32, 300, 193);
}

/* ---- All of them --------------------------------------------------------------------------- */

static void check_single_products(rig *g)
{
    static const int32_t counts[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 100, 257};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k += 2) { /* parts of a unit */
        check_product(g, NUM_Q2_0, 320, 35, counts[k]);
        check_product(g, NUM_Q1_0, 640, 35, counts[k]);
    }
    for (int i = 0; i < N_OWN_TYPES; i++) /* one row; few; short, and long enough to be unpacked */
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k += 2)
            check_product(g, own_types[i], k % 4 ? 256 : 768, k % 3 ? 48 : 35, counts[k]);
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            if (g->quick && counts[k] > 100)
                continue;
            check_product(g, block_types[i], k % 2 ? 768 : 256, k % 3 ? 48 : 35, counts[k]);
        }
    static const num_type floats[] = {NUM_F32, NUM_F16, NUM_BF16};
    for (int i = 0; i < 3; i++) {
        check_product(g, floats[i], 96, 41, 1);
        check_product(g, floats[i], 5, 3, 3);
        check_product(g, floats[i], 130, 9, 33);
        check_product(g, floats[i], 160, 96, 9);
        check_product(g, floats[i], 160, 200, 45);
        check_product(g, floats[i], 164, 70, 150);
    }
    check_product(g, NUM_Q5_0, 704, 80, 3);
    check_product(g, NUM_Q8_0, 2112, 80, 1);
    check_product(g, NUM_Q8_0, 2112, 144, 40);
    check_product(g, NUM_Q4_0, 32, 16, 1);
    check_product(g, NUM_Q4_0, 32, 1, 4);
    check_product(g, NUM_Q6_K, 256, 130, 200); /* long enough to be unpacked first */
    check_product(g, NUM_Q8_0, 96, 40, 193);
    for (int i = 0; i < 3; i++) {
        check_product(g, floats[i], 176, 70, 150); /* half of a group at the end */
        check_product(g, floats[i], 80, 24, 45);
    }
}

static void check_gated(rig *g)
{
    for (int fused = 0; fused < 2; fused++) {
        check_glu(g, NUM_Q4_K, 256, 256, 1, fused);
        check_glu(g, NUM_Q6_K, 512, 48, 5, fused);
        check_glu(g, NUM_Q4_0, 96, 40, 2, fused);
        check_glu(g, NUM_Q8_0, 704, 256, 20, fused);
        check_glu(g, NUM_Q4_K, 256, 256, 40, fused);
        check_glu(g, NUM_F32, 96, 50, 6, fused);
        check_experts(g, NUM_Q4_K, NUM_Q8_0, 256, 96, 8, 3, 1, fused);
        check_experts(g, NUM_Q4_K, NUM_Q5_0, 256, 96, 8, 3, 5, fused);
        check_experts(g, NUM_Q8_0, fused ? NUM_Q5_1 : NUM_F16, 96, 40 + 24 * fused, 8, 8, 3, fused);
        check_experts(g, NUM_F32, NUM_F32, 96, 48, 8, 3, 4, fused);
        check_experts(g, NUM_Q4_K, NUM_Q8_0, 256, 96, 32, 4, 70, fused);
    }
    for (int i = 0; i < N_OWN_TYPES; i++) {
        check_glu(g, own_types[i], 256, 256, i % 2 ? 1 : 9, i % 3 == 0);
        check_experts(g, own_types[i], own_types[N_OWN_TYPES - 1 - i], 512, 256, 8, 3,
                      i % 2 ? 1 : 5, i % 2);
        check_experts(g, own_types[i], own_types[i], 256, 256, 8, 3, 40, true);
    }
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_ple(g, block_types[i], block_types[i], i % 2 ? 1536 : 256, 256, 1);
    check_ple(g, NUM_Q4_K, NUM_Q4_K, 2560, 256, 1);
    check_ple(g, NUM_Q4_K, NUM_Q6_K, 2560, 256, 1);
    check_ple(g, NUM_Q8_0, NUM_Q8_0, 512, 256, 3);
    check_ple(g, NUM_Q8_0, NUM_Q8_0, 256, 64, 1);
    check_ple(g, NUM_Q4_0, NUM_Q4_0, 256, 512, 1);
    check_mixture(g, NUM_Q4_K, NUM_Q6_K, 256, 256, 16, 3, false);
    check_mixture(g, NUM_Q4_K, NUM_Q4_K, 512, 512, 8, 2, true);
    check_mixture(g, NUM_Q8_0, NUM_Q5_0, 96, 64, 160, 8, false);
    if (!g->quick)
        check_mixture(g, NUM_Q4_K, NUM_Q6_K, 2048, 512, 256, 8, false);
    check_experts(g, NUM_Q8_0, NUM_F16, 64, 24, 5, 2, 3, true); /* halves that end inside a tile */
}

static void check_all_experts_alone(rig *g)
{
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_experts_alone(g, block_types[i], block_types[N_BLOCK_TYPES - 1 - i], 768, 256, 8, 3,
                            i % 2, false);
    check_experts_alone(g, NUM_IQ3_S, NUM_IQ2_XS, 256, 256, 8, 3, false, false);
    check_experts_alone(g, NUM_NVFP4, NUM_IQ3_XXS, 256, 256, 8, 3, true, false);
    check_experts_alone(g, NUM_IQ1_M, NUM_Q2_0, 256, 320, 8, 3, false, false);
    check_experts_alone(g, NUM_Q1_0, NUM_Q1_0, 384, 128, 8, 3, true, false);
    check_experts_alone(g, NUM_Q4_K, NUM_Q8_0, 256, 160, 40, 6, false, false);
    check_experts_alone(g, NUM_Q4_K, NUM_Q8_0, 256, 160, 40, 6, false, true);
    check_experts_alone(g, NUM_Q6_K, NUM_Q5_1, 256, 96, 8, 3, true, true);
    check_experts_alone(g, NUM_Q8_0, NUM_Q5_0, 352, 96, 256, 32, true,
                        false);                                              /* 32 rows at a time */
    check_experts_alone(g, NUM_Q4_0, NUM_Q4_0, 64, 32, 300, 4, true, false); /* too many experts */
    check_experts_alone(g, NUM_Q4_0, NUM_Q8_0, 4096, 32, 6, 2, true, false); /* a wide stream */
}

static void check_routers(rig *g)
{
    check_router(g, NUM_F32, 256, 8, 3, 1);
    check_router(g, NUM_BF16, 100, 37, 8, 5);
    check_router(g, NUM_F16, 3200, 256, 32, 3);
    check_router(g, NUM_F32, 2816, 128, 8, 16);
    check_router(g, NUM_F32, 64, 300, 40, 2); /* more experts than a warp's registers hold */
    check_router(g, NUM_F32, 96, 16, 4, 40);
    check_router(g, NUM_F32, 96, 2048, 32, 3); /* the clusters of a drafter's head */
    check_router(g, NUM_F32, 96, 2048, 32, 40);
    check_router(g, NUM_BF16, 96, 16, 4, FEW_ROWS);
    check_router(g, NUM_F32, 96, 16, 4, FEW_ROWS + 6);
}

static void check_real_shapes(rig *g)
{
    check_router(g, NUM_F32, 2816, 128, 8, 1);
    check_router(g, NUM_F32, 2816, 128, 8, 16);
    check_product(g, NUM_Q4_K, 5376, 4096, 1);
    check_product(g, NUM_Q6_K, 21504, 512, 1);
    check_product(g, NUM_Q4_K, 5376, 2048, 8);
    check_product(g, NUM_Q6_K, 21504, 256, 32);
    check_product(g, NUM_Q4_K, 5376, 512, 512);
    check_product(g, NUM_Q8_0, 2112, 2816, 17);
    check_product(g, NUM_BF16, 2560, 10752, 1);
    check_product(g, NUM_BF16, 4304, 1152, 512);
    check_product(g, NUM_F32, 2816, 128, 16);
    check_glu(g, NUM_Q4_K, 2816, 2112, 1, false);
    check_glu(g, NUM_Q4_K, 5376, 1024, 8, false);
    check_experts(g, NUM_Q4_K, NUM_Q8_0, 2816, 704, 16, 8, 1, true);
    check_experts(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 16, 8, 4, true);
    check_experts_alone(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 64, 8, true, false);
    check_experts_alone(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 64, 8, true, true);
}

void check_products(rig *g)
{
    check_all_unpack(g);
    check_all_wide(g);
    check_all_tall(g);
    check_all_short(g);
    check_tall_experts(g);
    check_all_wide8(g);
    check_unknown_act(g);
    check_single_products(g);
    check_gated(g);
    check_all_experts_alone(g);
    check_routers(g);
    if (!g->quick)
        check_real_shapes(g);
}
