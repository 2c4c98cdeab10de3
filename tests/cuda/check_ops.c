/* check_ops.c - every op of the CUDA device against backend/cpu/ref.c, over awkward and real
 * shapes, and rows against the same rows alone.
 *
 * Bounds are normalised mean square errors: f32 against f64 sums 1e-10; int8 activations 2e-4
 * (their rounding, (1/127)^2 / 12 of a peak a few deviations high); bf16 operands 1e-5.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double F32_BOUND = 1e-10, INT8_BOUND = 2e-4, BF16_BOUND = 2e-5;

static const num_type block_types[] = {NUM_Q4_0,   NUM_Q4_1,   NUM_Q5_0, NUM_Q5_1, NUM_Q8_0,
                                       NUM_Q4_K,   NUM_Q5_K,   NUM_Q6_K, NUM_Q2_K, NUM_Q3_K,
                                       NUM_IQ4_NL, NUM_IQ4_XS, NUM_MXFP4};
enum { N_BLOCK_TYPES = sizeof block_types / sizeof *block_types };

/* ---- Products ------------------------------------------------------------------------------ */

static double product_bound(num_type t, int32_t rows)
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
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0), *l = draw(g, (size_t)rows * (size_t)n, 2);
    both_mat(g, &b, x, v, rows, 1, n_in);
    both_mat(g, &b, z, l, rows, 1, n);
    routing rr = op_route(&b.ref, z[0], k, &(route_rule){.scale = &scale.w[0]}),
            rg = op_route(&b.gpu, z[1], k, &(route_rule){.scale = &scale.w[1]});
    mat wr = {rr.weight, rows, 1, k, k}, wg = {rg.weight, rows, 1, k, k};
    double e = both_error(g, &b, wr, wg);
    int32_t *id = mem_calloc((size_t)rows * (size_t)k, sizeof *id);
    g->gpu->download(g->gpu, id, rg.id, (size_t)rows * (size_t)k * sizeof *id);
    if (memcmp(id, rr.id, (size_t)rows * (size_t)k * sizeof *id))
        e = NAN;
    verdict(g, "moe route", text("%d rows, %d of %d", rows, k, n), e, F32_BOUND);
    const weight *ur = fused ? NULL : &up.w[0], *ug = fused ? NULL : &up.w[1];
    mat hr = op_moe_glu(&b.ref, x[0], rr, &gate.w[0], ur, ACT_GELU_TANH);
    mat hg = op_moe_glu(&b.gpu, x[1], rg, &gate.w[1], ug, ACT_GELU_TANH);
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
            op_moe_glu(&p, x, r, &w.w[1], &w.w[1], unknown);
        wrong += p.e.status != E_UNSUPPORTED;
    }
    verdict(g, "unknown act", "glu, act_mul, moe_glu: not refused", wrong, 0);
    pair_free(g, &w);
}

/* Gated, down and the residual stream after both branches, of v's rows from..from + rows - 1:
 * gpu_rows. w: gate, up, down, a norm's; l: routing's logits. */
static void experts_of(rig *g, const weight *w, const float *v, const float *l, int32_t from,
                       int32_t rows, int32_t k, float *got[3])
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
    mat h = op_moe_glu(&p, x, r, &w[0], w[1].n_in ? &w[1] : NULL, ACT_GELU_TANH);
    mat f = op_rms_norm(&p, x, NULL, 1e-6f), y = op_moe_down(&p, h, r, &w[2]);
    got[1] = pass_failed(&p) ? NULL : gpu_rows(g, y);
    y = op_moe_down(&p, h, r, &w[2]); /* once more; add_branches overwrites it unread */
    op_add_branches(&p, x, (branch){f, &w[3]}, (branch){y, &w[3]}, &w[3], 1e-6f);
    if (pass_failed(&p))
        failed(g, "moe alone", p.e.text);
    got[0] = pass_failed(&p) ? NULL : gpu_rows(g, (mat){h.at, rows, 1, k * h.cols, k * h.cols});
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
    weight w[4] = {gate.w[1], up.w[1], down.w[1], norm.w[1]};
    float *v = draw(g, (size_t)ROWS * (size_t)n_in, 1.0), *l = draw(g, (size_t)ROWS * (size_t)n, 2);
    float *alone[ROWS][RESULTS], *got[RESULTS];
    size_t row[RESULTS] = {(size_t)k * (size_t)n_ff, (size_t)n_in, (size_t)n_in};
    int differ = 0;
    few_rows(prompt ? 0 : ROWS);
    for (int32_t r = 0; r < ROWS; r++)
        experts_of(g, w, v, l, r, 1, k, alone[r]);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int32_t rows = counts[i], from = ROWS - rows;
        experts_of(g, w, v, l, from, rows, k, got);
        for (int j = 0; j < RESULTS; j++) {
            for (int32_t r = 0; r < rows && got[j]; r++)
                differ += !alone[from + r][j] || memcmp(got[j] + (size_t)r * row[j],
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
    few_rows(FEW_ROWS);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0);
    both_mat(g, &b, x, v, rows, 1, n_in);
    routing rr = op_router(&b.ref, x[0], &w.w[0], k, &(route_rule){.scale = &scale.w[0]});
    routing rg = op_router(&b.gpu, x[1], &w.w[1], k, &(route_rule){.scale = &scale.w[1]});
    mat wr = {rr.weight, rows, 1, k, k}, wg = {rg.weight, rows, 1, k, k};
    mat ir = {(float *)rr.id, rows, 1, k, k}, ig = {(float *)rg.id, rows, 1, k, k};
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
        float *i1 = gpu_rows(g, (mat){(float *)ro.id, 1, 1, k, k});
        float *s1 = gpu_rows(g, (mat){ro.weight, 1, 1, k, k});
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

/* Two branches into the stream and the norms after it, fused and as single ops. */
static void check_branches(rig *g, int32_t rows, int32_t n)
{
    static chain c;
    pair w[3], d;
    both b;
    mat x[2], y[2], z[2], h[2][3];
    bool ok = my_turn(g, "norm") && pair_make(g, &d, NUM_Q8_0, n, 48, 1, 0.05, false);
    for (int i = 0; ok && i < 3; i++)
        ok = pair_make(g, &w[i], NUM_F32, n, 1, 1, 1.0, false);
    if (!ok)
        return;
    size_t all = (size_t)rows * (size_t)n;
    float *v = draw(g, all, 30.0), *u = draw(g, all, 3.0), *t = draw(g, all, 0.1);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, 1, n);
    both_mat(g, &b, y, u, rows, 1, n);
    both_mat(g, &b, z, t, rows, 1, n);
    char shape[64];
    snprintf(shape, sizeof shape, "%d rows of %d", rows, n);
    for (int turn = 0; turn < 2; turn++) {
        for (int side = 0; side < 2; side++) {
            pass *p = side ? &b.gpu : &b.ref;
            norm_want want[3] = {
                {&w[0].w[side], 1.0f}, {&w[1].w[side], 0.125f}, {&w[2].w[side], 1.0f}};
            if (turn == 0) {
                op_add_branches(p, x[side], (branch){y[side], &w[0].w[side]},
                                (branch){z[side], &w[1].w[side]}, &w[2].w[side], 1e-6f);
                op_scale(p, x[side], 0.75f, NULL);
            }
            op_rms_norms(p, h[side], x[side], want, 3, 1e-6f);
        }
        if (turn == 0)
            verdict(g, "norm branches", shape, both_error(g, &b, x[0], x[1]), F32_BOUND);
        for (int i = 0; i < 3; i++) {
            verdict(g, turn ? "norms" : "norms joined", shape, both_error(g, &b, h[0][i], h[1][i]),
                    F32_BOUND);
            mat pr = op_matmul(&b.ref, h[0][i], &d.w[0]), pg = op_matmul(&b.gpu, h[1][i], &d.w[1]);
            verdict(g, "norms + product", shape, both_error(g, &b, pr, pg),
                    product_bound(NUM_Q8_0, rows));
        }
    }
    mem_free(v);
    mem_free(u);
    mem_free(t);
    pair_free(g, &d);
    for (int i = 0; i < 3; i++)
        pair_free(g, &w[i]);
}

/* ---- Small ops ----------------------------------------------------------------------------- */

static void check_norms(rig *g, int32_t rows, int32_t heads, int32_t n)
{
    static chain c;
    pair w;
    both b;
    mat x[2], y[2];
    if (!my_turn(g, "norm") || !pair_make(g, &w, NUM_F32, n, 1, 1, 1.0, false))
        return;
    size_t all = (size_t)rows * (size_t)heads * (size_t)n;
    float *v = draw(g, all, 30.0), *u = draw(g, all, 3.0);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, heads, n);
    both_mat(g, &b, y, u, rows, heads, n);
    const char *shape = text("%d rows, %d heads of %d", rows, heads, n);
    char keep[128];
    snprintf(keep, sizeof keep, "%s", shape);
    mat zr = op_rms_norm(&b.ref, x[0], &w.w[0], 1e-6f),
        zg = op_rms_norm(&b.gpu, x[1], &w.w[1], 1e-6f);
    verdict(g, "rms_norm", keep, both_error(g, &b, zr, zg), F32_BOUND);
    if (heads == 1) {
        op_add_rms_norm(&b.ref, x[0], y[0], &w.w[0], 1e-6f);
        op_add_rms_norm(&b.gpu, x[1], y[1], &w.w[1], 1e-6f);
        verdict(g, "add_rms_norm", keep, both_error(g, &b, x[0], x[1]), F32_BOUND);
    }
    op_rms_norm_inplace(&b.ref, y[0], NULL, 1e-6f);
    op_rms_norm_inplace(&b.gpu, y[1], NULL, 1e-6f);
    verdict(g, "norm in place", keep, both_error(g, &b, y[0], y[1]), F32_BOUND);
    mem_free(v);
    mem_free(u);
    pair_free(g, &w);
}

static void check_small(rig *g, int32_t rows, int32_t heads, int32_t d)
{
    static chain c;
    both b;
    mat x[2], y[2];
    int32_t width = heads * d;
    char shape[64];
    snprintf(shape, sizeof shape, "%d rows, %d heads of %d", rows, heads, d);
    if (!my_turn(g, "small"))
        return;
    size_t n = (size_t)rows * (size_t)width;
    float *v = draw(g, n, 4.0), *u = draw(g, n, 2.0), *inv = draw(g, (size_t)d / 2, 1.0);
    for (int32_t i = 0; i < d / 2; i++)
        inv[i] = i % 5 == 4 ? 0 : (float)pow(1e4, -2.0 * i / d);
    float *inv_gpu = g->gpu->alloc(g->gpu, (size_t)d / 2 * 4);
    g->gpu->upload(g->gpu, inv_gpu, inv, (size_t)d / 2 * 4);
    chain_init(&c, rows, 131000, 0);
    c.st.out = c.st.all;
    c.st.out.n = (rows + 1) / 2;
    for (int32_t i = 0; i < c.st.out.n; i++)
        c.out_row[i] = 2 * i;
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, heads, d);
    both_mat(g, &b, y, u, rows, heads, d);
    op_rope(&b.ref, x[0], &(rope){.n_pairs = d / 2, .inv_freq = inv, .n_turning = d / 2});
    op_rope(&b.gpu, x[1], &(rope){.n_pairs = d / 2, .inv_freq = inv_gpu, .n_turning = d / 2});
    verdict(g, "small rope", shape, both_error(g, &b, x[0], x[1]), F32_BOUND);
    mat zr =
        op_act_mul(&b.ref, mat_head(x[0], heads - 1), mat_head(y[0], heads / 2), ACT_GELU_TANH);
    mat zg =
        op_act_mul(&b.gpu, mat_head(x[1], heads - 1), mat_head(y[1], heads / 2), ACT_GELU_TANH);
    verdict(g, "small act_mul", shape, both_error(g, &b, zr, zg), F32_BOUND);
    for (act_kind act = ACT_SILU; act < ACT_KINDS; act++) {
        mat gate[2] = {x[0], x[1]}; /* the first columns of a row gate its heads */
        gate[0].cols = gate[1].cols = act == ACT_SILU ? d : 1;
        zr = op_act_mul(&b.ref, gate[0], y[0], act);
        zg = op_act_mul(&b.gpu, gate[1], y[1], act);
        verdict(g, act == ACT_SILU ? "small silu" : "small gate", shape, both_error(g, &b, zr, zg),
                F32_BOUND);
    }
    op_add(&b.ref, x[0], y[0]);
    op_add(&b.gpu, x[1], y[1]);
    op_scale(&b.ref, x[0], 0.37f, NULL);
    op_scale(&b.gpu, x[1], 0.37f, NULL);
    verdict(g, "small add,scale", shape, both_error(g, &b, x[0], x[1]), F32_BOUND);
    int32_t ids[3] = {0, width / 2, width - 1};
    int32_t *ids_gpu = g->gpu->alloc(g->gpu, sizeof ids);
    g->gpu->upload(g->gpu, ids_gpu, ids, sizeof ids);
    mat fr = mat_flat(x[0]), fg = mat_flat(x[1]);
    op_softcap(&b.ref, fr, 3.0f, ids, 3);
    op_softcap(&b.gpu, fg, 3.0f, ids_gpu, 3);
    verdict(g, "small softcap", shape, both_error(g, &b, fr, fg), F32_BOUND);
    op_keep_outputs(&b.ref, (mat *const[]){&y[0]}, 1);
    op_keep_outputs(&b.gpu, (mat *const[]){&y[1]}, 1);
    verdict(g, "small gather", shape, both_error(g, &b, y[0], y[1]), 0);
    op_rope(
        &b.ref, y[0],
        &(rope){.n_pairs = d / 2, .inv_freq = inv, .n_turning = d / 2}); /* the second row set */
    op_rope(&b.gpu, y[1], &(rope){.n_pairs = d / 2, .inv_freq = inv_gpu, .n_turning = d / 2});
    verdict(g, "small rope out", shape, both_error(g, &b, y[0], y[1]), F32_BOUND);
    g->gpu->release(g->gpu, inv_gpu, (size_t)d / 2 * 4);
    g->gpu->release(g->gpu, ids_gpu, sizeof ids);
    mem_free(v);
    mem_free(u);
    mem_free(inv);
}

static void check_embed(rig *g, num_type t, int32_t n)
{
    static chain c;
    pair w;
    both b;
    if (!my_turn(g, "embed") || !pair_make(g, &w, t, n, 37, 1, 1.0, true))
        return;
    chain_init(&c, 9, 0, 37);
    both_begin(g, &b, &c.st);
    mat yr = op_embed(&b.ref, &w.w[0], 1.7f), yg = op_embed(&b.gpu, &w.w[1], 1.7f);
    verdict(g, "embed", text("%-6s 9 x %d", num_name(t), n), both_error(g, &b, yr, yg), 1e-13);
    float ids[9] = {0, 36, 5, 37, -1, NAN, 17, 1e9f, 5}; /* the table has 37 */
    mat at[2], row;
    both_mat(g, &b, at, ids, 9, 1, 1);
    yr = op_embed_at(&b.ref, at[0], &w.w[0], 1.7f);
    yg = op_embed_at(&b.gpu, at[1], &w.w[1], 1.7f);
    row = yr;
    row.rows = 1;
    double e = both_error(g, &b, yr, yg);
    verdict(g, "embed_at", text("%-6s 9 x %d", num_name(t), n), isnan(row.at[0]) ? NAN : e, 1e-13);
    pair_free(g, &w);
}

/* The best logits of rows, and each row alone. `what` spoils every third row: 1 NaN, 2 +inf, 3 -inf
 * alone. steps: logits are rounded to 1 / steps, so many are equal. */
static void check_best(rig *g, int32_t rows, int32_t n, int32_t k, int32_t steps, int what)
{
    static chain c;
    both b;
    mat x[2];
    if (!my_turn(g, "best"))
        return;
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    size_t all = (size_t)rows * (size_t)n;
    float *v = draw(g, all, 5.0);
    for (size_t i = 0; i < all; i++) {
        v[i] = steps ? rintf(v[i] * (float)steps) / (float)steps : v[i];
        if (what && i / (size_t)n % 3 == 0 && (what == 3 || i % (size_t)n == (size_t)n / 2))
            v[i] = what == 1 ? NAN : what == 2 ? INFINITY : -INFINITY;
    }
    both_mat(g, &b, x, v, rows, 1, n);
    mat yr = op_best(&b.ref, x[0], k), yg = op_best(&b.gpu, x[1], k);
    double e = both_error(g, &b, mat_head(yr, 1), mat_head(yg, 1));
    float *got = pass_failed(&b.gpu) ? NULL : gpu_rows(g, yg);
    int differ = 0;
    for (int32_t r = 0; got && r < rows; r++) {
        mat one = x[1];
        one.at += (size_t)r * (size_t)n;
        one.rows = 1;
        float *alone = gpu_rows(g, op_best(&b.gpu, one, k));
        differ += memcmp(alone, got + (size_t)r * 2 * (size_t)k, 2 * (size_t)k * sizeof *got) != 0;
        differ += memcmp(alone, mat_row(yr, r), (size_t)k * sizeof *got) != 0;
        mem_free(alone);
    }
    verdict(g, "best", text("%d of %d, steps %d, %d, rows %d: logarithms", k, n, steps, what, rows),
            e, 1e-11);
    verdict(g, "best", "numbers, and rows alone: that differ", got ? differ : NAN, 0);
    mem_free(got);
    mem_free(v);
}

/* ---- What waits to become one kernel -------------------------------------------------------- */

/* Three products of few rows, with heads of the first two between them, and a gated product whose
 * result is a short row of floats: each against the reference, and with a fourth that does not
 * fit. */
static void check_together(rig *g, num_type a, num_type b, int32_t n_in, int32_t rows, bool copy)
{
    static chain c;
    both o;
    mat x[2], y[4][2], z[2];
    pair w[4];
    static const int32_t n_out[] = {512, 256, 1024, 48};
    num_type t[] = {a, b, a, b};
    if (!my_turn(g, "together"))
        return;
    for (int i = 0; i < 4; i++)
        if (!pair_make(g, &w[i], t[i], n_in, n_out[i], 1, 0.05, false))
            return;
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &o, &c.st);
    both_mat(g, &o, x, v, rows, 1, n_in);
    if (copy) /* makes the int8 copy, as a norm before products does */
        for (int side = 0; side < 2; side++)
            x[side] = op_rms_norm(side ? &o.gpu : &o.ref, x[side], NULL, 1e-6f);
    for (int side = 0; side < 2; side++) {
        pass *p = side ? &o.gpu : &o.ref;
        y[0][side] = mat_heads(op_matmul(p, x[side], &w[0].w[side]), 256);
        y[1][side] = mat_heads(op_matmul(p, x[side], &w[1].w[side]), 256);
        y[1][side] = op_rms_norm(p, y[1][side], NULL, 1e-6f);
        y[0][side] = op_rms_norm_inplace(p, y[0][side], NULL, 1e-6f);
        y[2][side] = mat_heads(op_matmul(p, x[side], &w[2].w[side]), 256);
        y[3][side] = op_matmul(p, x[side], &w[3].w[side]);
        mat half = {y[2][side].at, rows, 1, 48, 1024};
        z[side] = op_act_mul(p, op_matmul(p, x[side], &w[3].w[side]), half, ACT_GELU_TANH);
    }
    double worst = both_error(g, &o, z[0], z[1]);
    for (int i = 0; i < 4; i++) {
        double error = both_error(g, &o, y[i][0], y[i][1]);
        worst = error > worst || error != error ? error : worst;
    }
    verdict(g, "together",
            text("%s and %s of %d, %d rows%s", num_name(a), num_name(b), n_in, rows,
                 copy ? ", normed" : ""),
            worst, 4 * INT8_BOUND);
    mem_free(v);
    for (int i = 0; i < 4; i++)
        pair_free(g, &w[i]);
}

/* Values of the same rows as keys, which overwrite those rows: by one kernel and by several, with
 * the same bits, and against the reference. */
static void check_values_of_keys(rig *g, int32_t rows, int32_t heads, int32_t d)
{
    static chain c;
    both o;
    mat k[2], value[2], apart;
    pair w;
    float *got[2][2], one;
    size_t n = (size_t)rows * (size_t)heads * (size_t)d;
    if (!my_turn(g, "together") || !pair_make(g, &w, NUM_F32, d, 1, 1, 1.0, false))
        return;
    float *x = draw(g, n, 1.0);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &o, &c.st);
    both_mat(g, &o, k, x, rows, heads, d);
    value[0] = op_rms_norm(&o.ref, k[0], NULL, 1e-6f);
    k[0] = op_rms_norm_inplace(&o.ref, k[0], &w.w[0], 1e-6f);
    for (int together = 0; together < 2; together++) {
        apart = pass_mat(&o.gpu, rows, heads, d);
        g->gpu->upload(g->gpu, apart.at, x, n * sizeof *x);
        value[1] = op_rms_norm(&o.gpu, apart, NULL, 1e-6f);
        if (!together)
            g->gpu->download(g->gpu, &one, value[1].at, sizeof one);
        k[1] = op_rms_norm_inplace(&o.gpu, apart, &w.w[1], 1e-6f);
        got[together][0] = gpu_rows(g, value[1]);
        got[together][1] = gpu_rows(g, k[1]);
    }
    char shape[64];
    snprintf(shape, sizeof shape, "values of keys, %d rows, %d heads of %d", rows, heads, d);
    double error = both_error(g, &o, value[0], value[1]), of_keys = both_error(g, &o, k[0], k[1]);
    verdict(g, "together", shape, error > of_keys || error != error ? error : of_keys, F32_BOUND);
    int32_t differ = 0;
    for (int i = 0; i < 2; i++) {
        differ += memcmp(got[0][i], got[1][i], n * sizeof(float)) != 0;
        mem_free(got[0][i]);
        mem_free(got[1][i]);
    }
    verdict(g, "together", text("%s: that differ", shape), differ, 0);
    mem_free(x);
    pair_free(g, &w);
}

/* Counts what is wrong with the candidates of a row v, which has a NaN (what 1), an infinity (2) or
 * neither: they must be all logits that reach the smallest candidate, the k largest among them. */
static int32_t sifted_wrong(const float *v, int32_t n, int what, const sift_want *w, int32_t cap)
{
    int32_t wrong = w->bad != (what == 1 || what == 2), reach = 0;
    float least = INFINITY;
    if (w->bad || w->n > cap)
        return wrong;
    for (int32_t i = 0; i < w->n; i++) {
        wrong += w->to[i].id < 0 || w->to[i].id >= n || w->to[i].logit != v[w->to[i].id];
        least = w->to[i].logit < least ? w->to[i].logit : least;
    }
    for (int32_t i = 0; i < n; i++)
        reach += v[i] >= least;
    return wrong + (reach != w->n || w->n < (w->k < n ? w->k : n)); /* none twice, none missing */
}

/* Several rows, each of which asks for one logit more than the last; `what` is in every third. */
static void check_sift(rig *g, int32_t n, int32_t k, int32_t steps, int what, int32_t rows)
{
    enum { CAP = 1024, MOST = 40 };
    if (!my_turn(g, "sift"))
        return;
    size_t all = (size_t)n * (size_t)rows;
    float *v = draw(g, all, 4.0), *at = g->gpu->alloc(g->gpu, all * 4);
    logit *c = mem_calloc((size_t)CAP * (size_t)rows, sizeof *c);
    sift_want want[MOST];
    for (size_t i = 0; i < all && steps; i++) /* many equal values, zeros of both signs */
        v[i] = rintf(v[i] * (float)steps) / (float)steps;
    for (int32_t r = 0; r < rows; r++) {
        size_t first = (size_t)r * (size_t)n;
        if (what && r % 3 == 0)
            v[first + (size_t)n / 3] = what == 1 ? NAN : what == 2 ? INFINITY : -INFINITY;
        want[r] = (sift_want){.row = at + first, .k = k + r, .to = c + (size_t)r * CAP};
    }
    g->gpu->upload(g->gpu, at, v, all * 4);
    g->gpu->sift(g->gpu, want, rows, n, CAP);
    int32_t wrong = 0;
    for (int32_t r = 0; r < rows; r++)
        wrong += sifted_wrong(v + (size_t)r * (size_t)n, n, r % 3 ? 0 : what, &want[r], CAP);
    verdict(g, "sift", text("%d of %d, steps %d, %d, rows %d: wrong", k, n, steps, what, rows),
            wrong, 0);
    g->gpu->release(g->gpu, at, all * 4);
    mem_free(c);
    mem_free(v);
}

/* ---- Rows do not notice their neighbours --------------------------------------------------- */

/* Rows of answers against each alone; rows of a prompt against all at once. */
static void check_invariance(rig *g, num_type t, int32_t n_in, int32_t n_out, bool glu, bool prompt)
{
    static chain c;
    pair w, u = {0};
    if (!my_turn(g, "invariance") || !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false) ||
        (glu && !pair_make(g, &u, t, n_in, n_out, 1, 0.05, false)))
        return;
    const int32_t most = prompt ? 200 : 100, base = prompt ? most : 1;
    float *v = draw(g, (size_t)most * (size_t)n_in, 1.0);
    float *alone = mem_alloc((size_t)most * (size_t)n_out * 4);
    static const int32_t counts[] = {1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 43, 64, 100};
    int differ = 0;
    few_rows(prompt ? 0 : most);
    for (int32_t i = -most / base; i < (int32_t)(sizeof counts / sizeof *counts); i++) {
        int32_t rows = i < 0 ? base : counts[i];
        int32_t from = i < 0 ? (i + most / base) * base : most - rows;
        pass p;
        chain_init(&c, rows, 0, 0);
        pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
        mat x = pass_mat(&p, rows, 1, n_in);
        g->gpu->upload(g->gpu, x.at, v + (size_t)from * (size_t)n_in,
                       (size_t)rows * (size_t)n_in * 4);
        mat y = glu ? op_glu(&p, x, &w.w[1], &u.w[1], ACT_GELU_TANH) : op_matmul(&p, x, &w.w[1]);
        if (pass_failed(&p)) {
            failed(g, "invariance", p.e.text);
            break;
        }
        float *got = gpu_rows(g, y);
        size_t n = (size_t)rows * (size_t)n_out * 4;
        if (i < 0)
            memcpy(alone + (size_t)from * (size_t)n_out, got, n);
        else
            differ += memcmp(got, alone + (size_t)from * (size_t)n_out, n) != 0;
        mem_free(got);
    }
    verdict(g, "invariance",
            text("%s%s %d -> %d, 1..%d rows%s: counts that differ", num_name(t), glu ? " glu" : "",
                 n_in, n_out, most, prompt ? " of a prompt" : ""),
            differ, 0);
    few_rows(RIG_FEW);
    mem_free(v);
    mem_free(alone);
    pair_free(g, &w);
    if (glu)
        pair_free(g, &u);
}

/* One product of v's first rows with that cut; NULL where the cut is impossible. mem_free */
static float *cut_product(rig *g, const weight *w, const float *v, int32_t rows, rows_cut cut)
{
    static chain c;
    pass p;
    chain_init(&c, rows, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat x = pass_mat(&p, rows, 1, w[0].n_in);
    g->gpu->upload(g->gpu, x.at, v, (size_t)rows * (size_t)w[0].n_in * 4);
    cu_rows_force(cut);
    mat y = w[1].n_in ? op_glu(&p, x, &w[0], &w[1], ACT_GELU_TANH) : op_matmul(&p, x, &w[0]);
    cuda_settle(g->gpu->self);
    bool none = !cu_rows_chosen().tiles;
    cu_rows_force((rows_cut){0});
    if (pass_failed(&p))
        failed(g, "invariance", p.e.text);
    return none || pass_failed(&p) ? NULL : gpu_rows(g, y);
}

/* A product of few rows has the same bits in every cut into blocks, warps and turns. */
static void check_cuts(rig *g, num_type t, int32_t n_in, int32_t n_out, bool glu)
{
    pair w, u = {0};
    if (!my_turn(g, "invariance") || !pair_make(g, &w, t, n_in, n_out, 1, 0.05, false) ||
        (glu && !pair_make(g, &u, t, n_in, n_out, 1, 0.05, false)))
        return;
    weight pairs[2] = {w.w[1], u.w[1]};
    float *v = draw(g, 32 * (size_t)n_in, 1.0);
    static const int32_t counts[] = {2, 11, 32}, warps[] = {4, 8, 12, 24};
    static const int32_t x[] = {1, 2, ROWS_WHOLE};
    int differ = 0, n = 0;
    for (int i = 0; i < 3; i++) {
        float *free = cut_product(g, pairs, v, counts[i], (rows_cut){0});
        for (int k = 0; free && k < 3 * 4 * 4 * 3 * 2; k++) {
            rows_cut cut = {1 + k % 3,     warps[k / 3 % 4], 1 << k / 12 % 4,
                            x[k / 48 % 3], 1 + k / 144,      0};
            float *y = cut_product(g, pairs, v, counts[i], cut);
            n += y != NULL;
            differ += y && memcmp(y, free, (size_t)counts[i] * (size_t)n_out * 4) != 0;
            mem_free(y);
        }
        mem_free(free);
    }
    verdict(
        g, "invariance",
        text("%s%s %d -> %d, %d cuts: that differ", num_name(t), glu ? " glu" : "", n_in, n_out, n),
        n > 6 ? differ : NAN, 0);
    mem_free(v);
    pair_free(g, &w);
    if (glu)
        pair_free(g, &u);
}

/* ---- All of them --------------------------------------------------------------------------- */

static void check_products(rig *g)
{
    check_unknown_act(g);
    static const int32_t counts[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 100, 257};
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
    }
    check_product(g, NUM_Q5_0, 704, 80, 3);
    check_product(g, NUM_Q8_0, 2112, 80, 1);
    check_product(g, NUM_Q8_0, 2112, 144, 40);
    check_product(g, NUM_Q4_0, 32, 16, 1);
    check_product(g, NUM_Q4_0, 32, 1, 4);
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
    check_experts(g, NUM_Q8_0, NUM_F16, 64, 24, 5, 2, 3, true); /* halves that end inside a tile */
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_experts_alone(g, block_types[i], block_types[N_BLOCK_TYPES - 1 - i], 768, 256, 8, 3,
                            i % 2, false);
    check_experts_alone(g, NUM_Q4_K, NUM_Q8_0, 256, 160, 40, 6, false, false);
    check_experts_alone(g, NUM_Q4_K, NUM_Q8_0, 256, 160, 40, 6, false, true);
    check_experts_alone(g, NUM_Q6_K, NUM_Q5_1, 256, 96, 8, 3, true, true);
    check_experts_alone(g, NUM_Q8_0, NUM_Q5_0, 352, 96, 256, 32, true,
                        false);                                              /* 32 rows at a time */
    check_experts_alone(g, NUM_Q4_0, NUM_Q4_0, 64, 32, 300, 4, true, false); /* too many experts */
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
    if (g->quick)
        return;
    /* Real shapes. */
    check_router(g, NUM_F32, 2816, 128, 8, 1);
    check_router(g, NUM_F32, 2816, 128, 8, 16);
    check_product(g, NUM_Q4_K, 5376, 4096, 1);
    check_product(g, NUM_Q6_K, 21504, 512, 1);
    check_product(g, NUM_Q4_K, 5376, 2048, 8);
    check_product(g, NUM_Q6_K, 21504, 256, 32);
    check_product(g, NUM_Q4_K, 5376, 512, 512);
    check_product(g, NUM_Q8_0, 2112, 2816, 17);
    check_product(g, NUM_BF16, 2560, 10752, 1);
    check_product(g, NUM_F32, 2816, 128, 16);
    check_glu(g, NUM_Q4_K, 2816, 2112, 1, false);
    check_glu(g, NUM_Q4_K, 5376, 1024, 8, false);
    check_experts(g, NUM_Q4_K, NUM_Q8_0, 2816, 704, 16, 8, 1, true);
    check_experts(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 16, 8, 4, true);
    check_experts_alone(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 64, 8, true, false);
    check_experts_alone(g, NUM_Q4_K, NUM_Q5_0, 2816, 704, 64, 8, true, true);
}

void check_ops(rig *g)
{
    static const num_type more[] = {NUM_F32, NUM_F16, NUM_BF16};
    check_norms(g, 1, 1, 5376);
    check_norms(g, 3, 1, 96);
    check_norms(g, 40, 1, 2816);
    check_norms(g, 2, 4, 32);
    check_norms(g, 5, 3, 256);
    check_norms(g, 1, 1, 7);
    check_branches(g, 1, 2816);
    check_branches(g, 5, 96);
    check_branches(g, 40, 512);
    check_branches(g, 2, 4224); /* wider than one kernel takes */
    check_small(g, 1, 4, 64);
    check_small(g, 5, 2, 256);
    check_small(g, 33, 1, 512);
    for (int i = 0; i < 3; i++)
        check_embed(g, more[i], 320);
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_embed(g, block_types[i], 512);
    check_best(g, 1, 262144, 1, 0, 0);
    check_best(g, 2, 262144, 8, 2, 0);
    check_best(g, 5, 5001, 4, 1, 0);
    check_best(g, 3, 8, 8, 0, 0);
    check_best(g, 2, 1, 1, 0, 0);
    check_best(g, 7, 2049, 3, 0, 1);
    check_best(g, 7, 2048, 8, 3, 2);
    check_best(g, 4, 4100, 2, 0, 3);
    check_products(g);
    check_attention(g);
    static const int32_t rows[] = {1, 2, 9, 32};
    for (int i = 0; i < 4; i++) {
        check_together(g, NUM_Q4_K, NUM_Q6_K, 768, rows[i], false);
        check_together(g, NUM_Q4_K, NUM_Q6_K, 2560, rows[i], true);
        check_together(g, NUM_Q8_0, NUM_Q4_0, 352, rows[i], false);
        check_together(g, NUM_Q5_0, NUM_Q5_0, 96, rows[i], true);
        check_values_of_keys(g, rows[i], 2, 512);
        check_values_of_keys(g, rows[i], 4, 256);
    }
    check_sift(g, 262144, 1, 0, 0, 1);
    check_sift(g, 262144, 70, 0, 0, 1);
    check_sift(g, 262144, 300, 0, 3, 1);
    check_sift(g, 262144, 40, 1000, 0, 1);
    check_sift(g, 5000, 64, 8, 0, 1);
    check_sift(g, 320, 8, 0, 0, 1);
    check_sift(g, 70, 100, 0, 0, 1);
    check_sift(g, 5001, 5, 0, 1, 1);
    check_sift(g, 5001, 5, 0, 2, 1);
    check_sift(g, 5001, 1, 0, 1, 40);
    check_sift(g, 777, 3, 50, 2, 16);
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        for (int prompt = 0; prompt < 2; prompt++)
            check_invariance(g, block_types[i], g->quick ? 768 : 5376, 40, false, prompt);
    check_invariance(g, NUM_Q4_K, 2816 - 2816 % 256, 96, true, false);
    check_invariance(g, NUM_Q8_0, 2112, 64, true, false);
    check_invariance(g, NUM_Q8_0, 352, 200, true, true);
    check_invariance(g, NUM_F16, 352, 136, false, true);
    if (!g->quick) { /* tiles dealt to one warp, two and four, of more tiles than blocks */
        check_invariance(g, NUM_Q4_K, 1024, 20816, false, false);
        check_invariance(g, NUM_Q4_K, 1024, 20816, false, true);
        check_invariance(g, NUM_Q6_K, 2048, 10400, false, false);
        check_invariance(g, NUM_Q6_K, 2048, 10400, false, true);
        check_invariance(g, NUM_Q5_0, 1056, 5392, false, false);
        check_invariance(g, NUM_Q4_K, 2048, 10432, true, false);
        check_invariance(g, NUM_Q4_1, 1056, 5200, true, false);
    }
    check_cuts(g, NUM_Q4_K, 2304, 72, false);
    check_cuts(g, NUM_Q4_K, 4864, 40, false);
    check_cuts(g, NUM_Q4_K, 1280, 72, true);
    check_cuts(g, NUM_Q6_K, 2304, 72, false);
    check_cuts(g, NUM_Q4_0, 2112, 72, false);
    check_cuts(g, NUM_Q5_0, 1056, 40, true);
    check_cuts(g, NUM_Q8_0, 1056, 40, false);
    check_cuts(g, NUM_Q3_K, 1280, 40, true);
    check_invariance(g, NUM_F32, 96, 40, false, false);
    check_invariance(g, NUM_F32, 96, 40, false, true);
    check_invariance(g, NUM_BF16, 2560, 64, false, false);
    check_invariance(g, NUM_BF16, 2560, 64, false, true);
}
