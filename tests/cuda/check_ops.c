/* check_ops.c - the small ops of the CUDA device against backend/cpu/ref.c, over awkward and real
 * shapes: norms, rotation, tables, best logits, and what waits to become one kernel.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Small ops ----------------------------------------------------------------------------- */

/* Two branches into the stream and the norms after it, fused and as single ops. */
static void check_branches(rig *g, int32_t rows, int32_t n)
{
    static chain c;
    pair w[3], d, c_3_4;
    both b;
    mat x[2], y[2], z[2];
    mat h[2][3];
    bool ok = my_turn(g, "norm") && pair_make(g, &d, NUM_Q8_0, n, 48, 1, 0.05, false);
    for (int i = 0; ok && i < 3; i++)
        ok = pair_make(g, &w[i], NUM_F32, n, 1, 1, 1.0, false);
    if (!ok || !pair_fill(g, &c_3_4, 1, 0.75f))
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
            residual r = {.eps = 1e-6f};
            if (turn == 0)
                r = (residual){.y = y[side],
                               .norm = &w[2].w[side],
                               .y_norm = &w[0].w[side],
                               .b = {.y = z[side], .w = &w[1].w[side]},
                               .scale = &c_3_4.w[side],
                               .eps = 1e-6f};
            memset(h[side], 0, sizeof h[side]);
            op_residual(p, x[side], &r, h[side], want, 3);
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
    pair_free(g, &c_3_4);
    for (int i = 0; i < 3; i++)
        pair_free(g, &w[i]);
}

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
        for (int i = 0; i < 2; i++)
            op_residual(i ? &b.gpu : &b.ref, x[i],
                        &(residual){.y = y[i], .norm = &w.w[i], .eps = 1e-6f}, NULL, NULL, 0);
        verdict(g, "add_rms_norm", keep, both_error(g, &b, x[0], x[1]), F32_BOUND);
    }
    op_rms_norm_inplace(&b.ref, y[0], NULL, 1e-6f);
    op_rms_norm_inplace(&b.gpu, y[1], NULL, 1e-6f);
    verdict(g, "norm in place", keep, both_error(g, &b, y[0], y[1]), F32_BOUND);
    mem_free(v);
    mem_free(u);
    pair_free(g, &w);
}

/* Products of either half of normed rows: the copy that the norm makes is of all rows. */
static void check_parts_of_copies(rig *g, int32_t rows, int32_t n)
{
    static chain c;
    pair norm, w;
    both b;
    mat x[2], z[2];
    if (!my_turn(g, "parts of copies") || !pair_make(g, &norm, NUM_F32, n, 1, 1, 1.0, false) ||
        !pair_make(g, &w, NUM_Q8_0, n, 48, 1, 0.05, false))
        return;
    float *v = draw(g, (size_t)rows * (size_t)n, 3.0);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, 1, n);
    for (int half = 0; half < 2; half++) {
        for (int side = 0; side < 2; side++) {
            pass *p = side ? &b.gpu : &b.ref;
            mat h = op_rms_norm(p, x[side], &norm.w[side], 1e-6f);
            z[side] = op_matmul(p, mat_rows(h, half * rows / 2, rows / 2), &w.w[side]);
        }
        verdict(g, "parts of copies", text("half %d of %d rows of %d", half, rows, n),
                both_error(g, &b, z[0], z[1]), product_bound(NUM_Q8_0, rows));
    }
    mem_free(v);
    pair_free(g, &norm);
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
    for (int i = 0; i < 2; i++) {
        rope turn = {.n_pairs = d / 2, .inv_freq = inv, .n_turning = d / 2, .interleaved = i};
        turn.grow = 0.1f * (float)i;
        turn.period = 16384;
        op_rope(&b.ref, x[0], &turn);
        turn.inv_freq = inv_gpu;
        op_rope(&b.gpu, x[1], &turn);
    }
    verdict(g, "small rope", shape, both_error(g, &b, x[0], x[1]), F32_BOUND);
    mat zr =
        op_act_mul(&b.ref, mat_head(x[0], heads - 1), mat_head(y[0], heads / 2), ACT_GELU_TANH);
    mat zg =
        op_act_mul(&b.gpu, mat_head(x[1], heads - 1), mat_head(y[1], heads / 2), ACT_GELU_TANH);
    verdict(g, "small act_mul", shape, both_error(g, &b, zr, zg), F32_BOUND);
    for (act_kind act = ACT_SILU; act < ACT_KINDS; act++) {
        mat gate[2] = {x[0], x[1]}; /* the first columns of a row gate its heads */
        gate[0].cols = gate[1].cols = act == ACT_SILU || act == ACT_SWIGLU_CUT ? d : 1;
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

/* Four products of the same rows in two formats, heads of the first two, and a product as a gate,
 * whose result is a short row of floats: each against the reference. */
static void check_together(rig *g, num_type a, num_type b, int32_t n_in, int32_t rows, bool copy)
{
    static chain c;
    both o;
    mat x[2], y[4][2], z[2], all[4];
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
        const weight *of[4] = {&w[0].w[side], &w[1].w[side], &w[2].w[side], &w[3].w[side]};
        op_matmuls(p, all, x[side], of, 4);
        y[1][side] = op_rms_norm(p, mat_heads(all[1], 256), NULL, 1e-6f);
        y[0][side] = op_rms_norm_inplace(p, mat_heads(all[0], 256), NULL, 1e-6f);
        y[2][side] = all[2];
        y[3][side] = all[3];
        z[side] = op_matmul_gate(p, x[side], of[3], mat_columns(all[2], 0, 48), ACT_GELU_TANH);
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

/* Queries, keys and values to attention. */
typedef struct heads_case {
    int32_t rows, n_head_kv, d;
    int32_t q_turning, k_turning; /* values of a head that turn */
    bool values;                  /* of their own; else the keys', normed */
    bool single, beside;          /* one stream; something stands beside each query */
} heads_case;
enum { HEADS_QUERIES = 3 }; /* for each head of keys */

/* By op_qkv (g->gpu->op->qkv, or its expansion), into a cache of its own: got, downloaded: queries,
 * keys, and both streams. The largest error of queries and keys against the reference. */
static double heads_by(rig *g, const heads_case *a, const float *const from[3], const pair norm[2],
                       const rope turn[2][2], void *got[4], size_t bytes[4])
{
    static chain c;
    const int32_t n_head = HEADS_QUERIES * a->n_head_kv, width = a->beside ? 2 * a->d : a->d;
    const kv_spec s = {.n_head_kv = a->n_head_kv,
                       .head_dim = a->d,
                       .k_is_v = a->single,
                       .k_norm = &norm[1].w[0],
                       .k_rope = &turn[0][1]};
    const kv_want_layout want = {.spec = &s,
                                 .n = 1,
                                 .choice = {.k = {NUM_F16, false},
                                            .v = {NUM_F16, false},
                                            .single = a->single ? KV_SINGLE_ON : KV_SINGLE_OFF},
                                 .n_ctx = a->rows,
                                 .rows_max = a->rows,
                                 .dev = {g->gpu}};
    kv_layout l;
    kv_cache cache[2] = {{.layout = NULL}};
    kv_base base[2];
    both o;
    mat x[2], k[2], v[2], q[2];
    err e = {0};
    if (kv_layout_init(&l, &want, &e) || kv_open(&cache[0], g->ref, &l, &e) ||
        kv_open(&cache[1], g->gpu, &l, &e)) {
        failed(g, "together", e.text);
        return NAN;
    }
    chain_init(&c, a->rows, 0, 0);
    step st[2] = {c.st, c.st};
    for (int i = 0; i < 2; i++) {
        base[i] = cache[i].base[0];
        base[i].page = NULL; /* in the order of keys */
        st[i].kv = &base[i];
    }
    both_begin(g, &o, &st[0]);
    pass_begin(&o.gpu, g->gpu, &st[1], g->gpu_scratch, g->scratch_bytes);
    both_mat(g, &o, x, from[0], a->rows, n_head, width);
    both_mat(g, &o, k, from[1], a->rows, a->n_head_kv, a->d);
    both_mat(g, &o, v, from[2], a->rows, a->n_head_kv, a->d);
    for (int i = 0; i < 2; i++) {
        kv_view view = l.view[0];
        if (a->single)
            view.k_weight = &norm[1].w[i], view.k_rope = &turn[i][1];
        const qkv of = {.q = a->beside ? mat_columns(mat_head_rows(x[i]), 0, a->d) : x[i],
                        .k = k[i],
                        .v = a->values ? v[i] : (mat){0},
                        .q_norm = &norm[0].w[i],
                        .k_norm = &norm[1].w[i],
                        .v_norm = true,
                        .eps = 1e-6f,
                        .q_rope = &turn[i][0],
                        .k_rope = &turn[i][1]};
        q[i] = op_qkv(i ? &o.gpu : &o.ref, &of, &view);
    }
    const size_t stored = (size_t)a->n_head_kv * (size_t)l.view[0].n_slots;
    bytes[0] = (size_t)a->rows * (size_t)n_head * (size_t)a->d * sizeof(float);
    bytes[1] = bytes[0] / HEADS_QUERIES;
    bytes[2] = base[1].k ? stored * l.view[0].k_row_bytes : 0;
    bytes[3] = base[1].v ? stored * l.view[0].v_row_bytes : 0;
    got[0] = gpu_rows(g, q[1]);
    got[1] = gpu_rows(g, k[1]);
    for (int i = 0; i < 2; i++)
        g->gpu->download(g->gpu, got[2 + i] = mem_alloc(bytes[2 + i] + 1),
                         i ? base[1].v : base[1].k, bytes[2 + i]);
    const double error = both_error(g, &o, q[0], q[1]), of_keys = both_error(g, &o, k[0], k[1]);
    for (int i = 0; i < 2; i++)
        kv_close(&cache[i]);
    kv_layout_free(&l);
    return error > of_keys || error != error ? error : of_keys;
}

/* |a - b|^2 / |b|^2, of halves or floats. */
static double heads_differ(const void *a, const void *b, size_t bytes, bool halves)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < bytes / (halves ? 2 : 4); i++) {
        const double x = halves ? num_f16_to_f32(((const uint16_t *)a)[i]) : ((const float *)a)[i];
        const double y = halves ? num_f16_to_f32(((const uint16_t *)b)[i]) : ((const float *)b)[i];
        d += (x - y) * (x - y);
        all += y * y;
    }
    return d / (all > 0 ? all : 1);
}

/* op_qkv against its expansion, in results and stores, and against the reference. The bits are the
 * same, except of heads that turn in part. Norms and rotations of queries are not those of keys. */
static void check_heads(rig *g, const heads_case *a)
{
    const int32_t turning[2] = {a->q_turning, a->k_turning};
    const size_t n = (size_t)a->rows * (size_t)a->n_head_kv * (size_t)a->d;
    pair norm[2];
    void *got[2][4];
    size_t bytes[4];
    double error = 0;
    if (!my_turn(g, "together") || !pair_make(g, &norm[0], NUM_F32, a->d, 1, 1, 1.0, false) ||
        !pair_make(g, &norm[1], NUM_F32, a->d, 1, 1, 1.0, false))
        return;
    float *inv = draw(g, (size_t)a->d, 1.0), *inv_gpu = g->gpu->alloc(g->gpu, (size_t)a->d * 4);
    float *from[3] = {draw(g, n * 2 * HEADS_QUERIES, 1.0), draw(g, n, 1.0), draw(g, n, 1.0)};
    rope turn[2][2];
    for (int32_t i = 0; i < a->d / 2; i++)
        inv[i] = (float)pow(1e4, -2.0 * i / a->d);
    g->gpu->upload(g->gpu, inv_gpu, inv, (size_t)a->d * 4);
    for (int i = 0; i < 4; i++)
        turn[i / 2][i % 2] = (rope){.n_pairs = turning[i % 2] / 2,
                                    .inv_freq = i / 2 ? inv_gpu : inv,
                                    .n_turning = turning[i % 2] / 2};
    const device_ops *const usual = g->gpu->op;
    device_ops apart = *usual;
    apart.qkv = NULL;
    for (int together = 0; together < 2; together++) {
        g->gpu->op = together ? usual : &apart;
        const double e =
            heads_by(g, a, (const float *const *)from, norm, turn, got[together], bytes);
        error = e > error || e != e ? e : error;
        g->gpu->op = usual;
    }
    char shape[96];
    snprintf(shape, sizeof shape, "heads, %d rows, %d of %d%s%s%s", a->rows, a->n_head_kv, a->d,
             a->values ? "" : ", values of keys", a->single ? ", one stream" : "",
             a->beside ? ", gates beside" : "");
    verdict(g, "together", shape, error, F32_BOUND);
    const bool whole = a->q_turning == a->d && a->k_turning == a->d;
    double most = 0;
    for (int i = 0; i < 4 && error == error; i++) {
        const double e = heads_differ(got[0][i], got[1][i], bytes[i], i > 1);
        most = e > most || e != e ? e : most;
        mem_free(got[0][i]);
        mem_free(got[1][i]);
    }
    verdict(g, "together", text("%s: as apart", shape), most, whole ? 0 : 1e-7);
    for (int i = 0; i < 3; i++)
        mem_free(from[i]);
    g->gpu->release(g->gpu, inv_gpu, (size_t)a->d * 4);
    mem_free(inv);
    pair_free(g, &norm[0]);
    pair_free(g, &norm[1]);
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

/* Heads as rows: more of them than a dimension of a grid but the first holds. Queries of 2,731
 * prompt rows of 24 heads are so many. */
static void check_many_rows(rig *g, int32_t rows, int32_t heads, int32_t d)
{
    static chain c;
    pair w;
    both b;
    mat x[2], a[2], n[2], y[2], z[2];
    if (!my_turn(g, "many rows") || !pair_make(g, &w, NUM_F32, d, 1, 1, 1.0, false))
        return;
    size_t all = (size_t)rows * (size_t)heads * (size_t)d;
    float *v = draw(g, all, 2.0), *u = draw(g, all, 2.0);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, heads, d);
    both_mat(g, &b, a, u, rows, heads, d);
    for (int i = 0; i < 2; i++) {
        pass *p = i ? &b.gpu : &b.ref;
        n[i] = op_rms_norm(p, mat_head_rows(x[i]), &w.w[i], 1e-6f);
        y[i] = op_act_mul(p, mat_head_rows(a[i]), n[i], ACT_SIGMOID);
        z[i] = op_scale(p, op_add(p, mat_head_rows(x[i]), y[i]), 0.5f, NULL);
    }
    char *what = text("%d x %d rows of %d", rows, heads, d);
    verdict(g, "many rows", what, both_error(g, &b, n[0], n[1]), F32_BOUND);
    verdict(g, "many rows", what, both_error(g, &b, y[0], y[1]), F32_BOUND);
    verdict(g, "many rows", what, both_error(g, &b, z[0], z[1]), F32_BOUND);
    mem_free(v);
    mem_free(u);
    pair_free(g, &w);
}

/* The ops of towers of pictures: rows with a column and a row each, four of which become a token.
 */
static void check_vision(rig *g, int32_t rows, int32_t heads, int32_t d)
{
    enum { TOKEN = 4, TAPS = 3, TABLE = 37 };
    static const num_type types[] = {NUM_F32, NUM_BF16, NUM_Q8_0};
    static chain c;
    static int32_t axis[ROPE_AXES_MAX][STEP_TREE_ROWS_MAX * 8];
    int32_t width = heads * d;
    pair w, bias, table;
    both b;
    mat x[2], y[2], ids[2], share[2];
    char shape[64];
    snprintf(shape, sizeof shape, "%d rows, %d heads of %d", rows, heads, d);
    if (!my_turn(g, "vision") || !pair_make(g, &w, NUM_F32, width, 1, 1, 1.0, false) ||
        !pair_make(g, &bias, NUM_F32, width, 1, 1, 1.0, false))
        return;
    size_t n = (size_t)rows * (size_t)width;
    float *v = draw(g, n, 4.0), *u = draw(g, n, 2.0), *inv = draw(g, (size_t)d / 2, 1.0);
    float *inv_gpu = g->gpu->alloc(g->gpu, (size_t)d / 2 * 4), id[512 * TAPS], part[512 * TAPS];
    for (int32_t i = 0; i < d / 2; i++)
        inv[i] = (float)pow(1e2, -4.0 * (i % (d / 4)) / d);
    g->gpu->upload(g->gpu, inv_gpu, inv, (size_t)d / 2 * 4);
    chain_init(&c, rows, 0, 0);
    for (int32_t r = 0; r < rows; r++) {
        axis[0][r] = r % 7;
        axis[1][r] = 3 * r / 7;
        for (int32_t k = 0; k < TAPS; k++) {
            id[r * TAPS + k] = (float)((7 * r + 5 * k) % TABLE);
            part[r * TAPS + k] = 0.3f * (float)k - 0.1f;
        }
    }
    for (int a = 0; a < ROPE_AXES_MAX; a++)
        c.st.all.axis[a] = axis[a];
    c.st.out = c.st.all;
    c.st.out.n = rows / TOKEN;
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, heads, d);
    both_mat(g, &b, y, u, rows, 1, width);
    both_mat(g, &b, ids, id, rows, 1, TAPS);
    both_mat(g, &b, share, part, rows, 1, TAPS);
    for (int i = 0; i < 2; i++) {
        rope turn = {
            .n_pairs = d / 2, .n_turning = d / 2, .n_axes = 2, .parted = i, .inv_freq = inv};
        op_rope(&b.ref, x[0], &turn);
        turn.inv_freq = inv_gpu;
        op_rope(&b.gpu, x[1], &turn);
        verdict(g, i ? "vision rope of parts" : "vision rope", shape, both_error(g, &b, x[0], x[1]),
                F32_BOUND);
    }
    mat zr = op_layer_norm(&b.ref, y[0], &w.w[0], &bias.w[0], 1e-5f),
        zg = op_layer_norm(&b.gpu, y[1], &w.w[1], &bias.w[1], 1e-5f);
    verdict(g, "vision layer_norm", shape, both_error(g, &b, zr, zg), F32_BOUND);
    op_standardize(&b.ref, zr, &bias.w[0], &w.w[0]);
    op_standardize(&b.gpu, zg, &bias.w[1], &w.w[1]);
    verdict(g, "vision standardize", shape, both_error(g, &b, zr, zg), F32_BOUND);
    for (act_kind act = ACT_GELU_TANH; act < ACT_KINDS; act++) {
        if (act == ACT_SWIGLU_CUT)
            continue;
        zr = op_act(&b.ref, op_clamp(&b.ref, y[0], -1.5f, 1.0f), act);
        zg = op_act(&b.gpu, op_clamp(&b.gpu, y[1], -1.5f, 1.0f), act);
        verdict(g, "vision clamp + act", shape, both_error(g, &b, zr, zg), F32_BOUND);
    }
    for (int i = 0; i < 3; i++) {
        if ((types[i] == NUM_Q8_0 && width % 32) ||
            !pair_make(g, &table, types[i], width, TABLE, 1, 1.0, true))
            continue;
        zr = op_embed_mix(&b.ref, ids[0], share[0], &table.w[0]);
        zg = op_embed_mix(&b.gpu, ids[1], share[1], &table.w[1]);
        verdict(g, "vision embed_mix", shape, both_error(g, &b, zr, zg), F32_BOUND);
        pair_free(g, &table);
    }
    if (rows % TOKEN == 0) {
        zr = op_pool(&b.ref, y[0], TOKEN);
        zg = op_pool(&b.gpu, y[1], TOKEN);
        verdict(g, "vision pool", shape, both_error(g, &b, zr, zg), F32_BOUND);
    }
    g->gpu->release(g->gpu, inv_gpu, (size_t)d / 2 * 4);
    mem_free(v);
    mem_free(u);
    mem_free(inv);
    pair_free(g, &w);
    pair_free(g, &bias);
}

void check_ops(rig *g)
{
    static const num_type more[] = {NUM_F32, NUM_F16, NUM_BF16};
    check_norms(g, 1, 1, 5376);
    check_norms(g, 3, 1, 96);
    check_norms(g, 40, 1, 2816);
    check_norms(g, 2, 4, 32);
    check_norms(g, 5, 3, 256);
    check_norms(g, 66, 6, 256); /* rows of which a block makes several heads, four at once */
    check_norms(g, 66, 6, 128);
    check_norms(g, 1, 1, 7);
    check_vision(g, 36, 2, 16);
    check_vision(g, 9, 1, 72);
    check_vision(g, 64, 3, 12);
    check_audio_ops(g);
    check_branches(g, 1, 2816);
    check_branches(g, 5, 96);
    check_branches(g, 40, 512);
    check_branches(g, 2, 4224); /* wider than one kernel takes */
    check_parts_of_copies(g, 2, 1024);
    check_parts_of_copies(g, 16, 1024);
    check_small(g, 1, 4, 64);
    check_small(g, 5, 2, 256);
    check_small(g, 33, 1, 512);
    check_small(g, 66, 6, 256);
    check_small(g, 66, 9, 128);
    check_small(g, 70, 1, 2052); /* many rows: four columns a thread */
    if (!g->quick) {
        check_many_rows(g, 600, 112, 64);
        check_many_rows(g, 600, 112, 256);
    }
    for (int i = 0; i < 3; i++)
        check_embed(g, more[i], 320);
    for (int i = 0; i < N_BLOCK_TYPES; i++)
        check_embed(g, block_types[i], 512);
    for (int t = NUM_IQ2_XXS; t <= NUM_Q2_0; t++)
        if (num_format_of((uint32_t)t) && num_format_of((uint32_t)t)->decode &&
            !num_format_of((uint32_t)t)->encode)
            check_embed(g, (num_type)t, 512);
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
    check_selection(g);
    check_cards(g);
    static const int32_t rows[] = {1, 2, 9, 32};
    for (int i = 0; i < 4; i++) {
        check_together(g, NUM_Q4_K, NUM_Q6_K, 768, rows[i], false);
        check_together(g, NUM_Q4_K, NUM_Q6_K, 2560, rows[i], true);
        check_together(g, NUM_Q8_0, NUM_Q4_0, 352, rows[i], false);
        check_together(g, NUM_Q5_0, NUM_Q5_0, 96, rows[i], true);
        check_heads(g, &(heads_case){rows[i], 2, 512, 512, 512, false, false, false});
        check_heads(g, &(heads_case){rows[i], 4, 256, 128, 256, true, false, false});
        check_heads(g, &(heads_case){rows[i], 1, 256, 256, 64, true, false, true});
        check_heads(g, &(heads_case){rows[i], 2, 128, 64, 128, true, false, false});
        check_heads(g, &(heads_case){rows[i], 2, 96, 48, 96, false, false, false});
        check_heads(g, &(heads_case){rows[i], 2, 512, 128, 512, false, true, false});
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
    check_invariances(g);
}
