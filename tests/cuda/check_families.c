/* check_families.c - ops as Qwen3, Qwen3.5 and Laguna use them: rotation of the first dims of a
 * head with a factor on cosines and sines, attention with gates, and routing by sigmoids with a
 * selection bias.
 */
#include "tests/cuda/check_int.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FEW = 64 }; /* rows of answers in a pass */
static const double BOUND = 1e-9;

/* After the norm of the heads, as models call it, and alone. by_axes: interleaved M-RoPE. */
static void check_partial_rope(rig *g, int32_t rows, int32_t heads, int32_t d, int32_t n_rot,
                               float factor, bool by_axes)
{
    static chain c;
    static int32_t axis[ROPE_AXES_MAX][ROWS_MAX];
    both b;
    mat x[2];
    pair one;
    if (!my_turn(g, "partial rope") || !pair_fill(g, &one, d, 1))
        return;
    size_t bytes = (size_t)n_rot / 2 * sizeof(float);
    float *v = draw(g, (size_t)rows * (size_t)heads * (size_t)d, 2.0);
    float *inv = draw(g, (size_t)n_rot / 2, 1.0), *inv_gpu = g->gpu->alloc(g->gpu, bytes);
    for (int32_t i = 0; i < n_rot / 2; i++)
        inv[i] = (float)pow(1e7, -2.0 * i / n_rot);
    g->gpu->upload(g->gpu, inv_gpu, inv, bytes);
    rope r = {.n_pairs = n_rot / 2, .inv_freq = inv, .n_turning = n_rot / 2, .factor = factor};
    if (by_axes) {
        int32_t most = (n_rot / 2 + 2) / 3; /* as 11, 11, 10 and 24, 20, 20 */
        r.n_axes = 3;
        r.section[1] = r.section[2] = n_rot > 64 ? most - 2 : most - 1;
        r.section[0] = n_rot / 2 - r.section[1] - r.section[2];
    }
    rope there = r;
    there.inv_freq = inv_gpu;
    chain_init(&c, rows, 100000, 0);
    for (int32_t a = 0; a < ROPE_AXES_MAX && by_axes; a++) {
        for (int32_t i = 0; i < rows; i++)
            axis[a][i] = 90000 + (a == 0 ? 0 : a == 1 ? i / 7 : i % 7);
        c.st.all.axis[a] = axis[a];
    }
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, heads, d);
    const kv_view view = {.n_head_kv = heads, .head_dim = d};
    op_qkv(&b.ref, &(qkv){.q = x[0], .q_norm = &one.w[0], .eps = 1e-6f, .q_rope = &r}, &view);
    op_qkv(&b.gpu, &(qkv){.q = x[1], .q_norm = &one.w[1], .eps = 1e-6f, .q_rope = &there}, &view);
    op_rope(&b.ref, x[0], &r);
    op_rope(&b.gpu, x[1], &there);
    verdict(g, "partial rope",
            text("%d rows, %d heads, %d of %d, factor %g%s", rows, heads, n_rot, d, (double)factor,
                 by_axes ? ", by axes" : ""),
            both_error(g, &b, x[0], x[1]), BOUND);
    g->gpu->release(g->gpu, inv_gpu, bytes);
    pair_free(g, &one);
    mem_free(inv);
    mem_free(v);
}

typedef struct gated_case {
    int32_t rows, n_head, n_head_kv, d, n_rot;
    float factor;
    num_type type; /* of keys and values */
    bool beside;   /* a head's gate stands beside its query; else one gate for a head */
} gated_case;

/* Heads of keys and queries normed, turned and stored, attention, its gates and the product after
 * them: what waits for each other there. */
static mat gated_attention(pass *p, const gated_case *a, const kv_view *view, mat x, mat gate,
                           const mat kv[2], const weight *w[2], const rope *r, mat *queries)
{
    const qkv of = {.q = a->beside ? mat_columns(mat_head_rows(x), 0, a->d) : x,
                    .k = kv[0],
                    .v = kv[1],
                    .q_norm = w[0],
                    .k_norm = w[0],
                    .eps = 1e-6f,
                    .q_rope = r,
                    .k_rope = r};
    mat y;
    *queries = op_qkv(p, &of, view);
    if (a->beside)
        gate = mat_columns(mat_head_rows(x), a->d, a->d);
    y = op_attend_gate(p, *queries, gate, a->beside ? ACT_SIGMOID : ACT_SOFTPLUS, view,
                       1.0f / sqrtf((float)a->d));
    return op_matmul(p, y, w[1]);
}

static void check_gated_attention(rig *g, const gated_case *a)
{
    enum { N_OUT = 64, PIECES = 4 };
    static chain c;
    kv_layout l;
    kv_cache cache[2] = {{.layout = NULL}};
    pair norm, out;
    both b;
    mat x[2], gate[2], k[2], v[2], q[2], y[2];
    kv_base base[2];
    err e = {0};
    int32_t width = a->beside ? 2 * a->d : a->d;
    if (!my_turn(g, "gated attention") || !pair_make(g, &norm, NUM_F32, a->d, 1, 1, 1.0, false) ||
        !pair_make(g, &out, NUM_Q8_0, a->n_head * a->d, N_OUT, 1, 0.05, false))
        return;
    bool rot = a->type == NUM_TQ3_0;
    kv_spec s = {.n_head_kv = a->n_head_kv, .head_dim = a->d};
    kv_want_layout want = {.spec = &s,
                           .n = 1,
                           .choice = {.k = {a->type, rot}, .v = {a->type, rot}},
                           .n_ctx = 2 * a->rows,
                           .rows_max = a->rows,
                           .dev = {g->gpu}};
    if (kv_layout_init(&l, &want, &e) || kv_open(&cache[0], g->ref, &l, &e) ||
        kv_open(&cache[1], g->gpu, &l, &e)) {
        failed(g, "gated attention", e.text);
        return;
    }
    size_t inv_bytes = (size_t)a->n_rot / 2 * sizeof(float),
           heads = (size_t)a->rows * (size_t)a->n_head;
    size_t keys = (size_t)a->rows * (size_t)a->n_head_kv * (size_t)a->d;
    float *inv = draw(g, (size_t)a->n_rot / 2, 1.0), *inv_gpu = g->gpu->alloc(g->gpu, inv_bytes);
    float *from[PIECES] = {draw(g, heads * (size_t)width, 1.0), draw(g, heads, 1.0),
                           draw(g, keys, 1.0), draw(g, keys, 1.0)};
    for (int32_t i = 0; i < a->n_rot / 2; i++)
        inv[i] = (float)pow(1e4, -2.0 * i / a->n_rot);
    g->gpu->upload(g->gpu, inv_gpu, inv, inv_bytes);
    chain_init(&c, a->rows, 0, 0);
    c.st.prompt = of_prompt(a->rows);
    step st[2] = {c.st, c.st};
    for (int i = 0; i < 2; i++) {
        base[i] = cache[i].base[0];
        base[i].page = NULL; /* in the order of keys */
        st[i].kv = &base[i];
    }
    both_begin(g, &b, &st[0]);
    pass_begin(&b.gpu, g->gpu, &st[1], g->gpu_scratch, g->scratch_bytes);
    both_mat(g, &b, x, from[0], a->rows, a->n_head, width);
    both_mat(g, &b, gate, from[1], a->rows, a->n_head, 1);
    both_mat(g, &b, k, from[2], a->rows, a->n_head_kv, a->d);
    both_mat(g, &b, v, from[3], a->rows, a->n_head_kv, a->d);
    for (int i = 0; i < 2; i++) {
        rope r = {.n_pairs = a->n_rot / 2,
                  .inv_freq = i ? inv_gpu : inv,
                  .n_turning = a->n_rot / 2,
                  .factor = a->factor};
        y[i] =
            gated_attention(i ? &b.gpu : &b.ref, a, &l.view[0], x[i], gate[i], (mat[]){k[i], v[i]},
                            (const weight *[]){&norm.w[i], &out.w[i]}, &r, &q[i]);
    }
    char shape[96];
    snprintf(shape, sizeof shape, "%d rows, %d/%dx%d, %d turn, factor %g, %s%s", a->rows, a->n_head,
             a->n_head_kv, a->d, a->n_rot, (double)a->factor, num_name(a->type),
             a->beside ? ", gates beside queries" : "");
    verdict(g, "gated attention", text("%s: queries", shape), both_error(g, &b, q[0], q[1]), BOUND);
    verdict(g, "gated attention", shape, both_error(g, &b, y[0], y[1]), 1e-3);
    for (int i = 0; i < PIECES; i++)
        mem_free(from[i]);
    g->gpu->release(g->gpu, inv_gpu, inv_bytes);
    mem_free(inv);
    kv_close(&cache[0]);
    kv_close(&cache[1]);
    kv_layout_free(&l);
    pair_free(g, &norm);
    pair_free(g, &out);
}

static routing routed(pass *p, bool router, mat x, const weight *w, int32_t k, const route_rule *t)
{
    return router ? op_router(p, x, w, k, t) : op_route(p, op_matmul(p, x, w), k, t);
}

/* Weights and choices; a row alone makes the same choice, bit for bit. router: the fused op. */
static void check_sigmoid_route(rig *g, bool router, int32_t n_in, int32_t n, int32_t k,
                                int32_t rows, bool biased)
{
    static chain c;
    pair w, bias;
    both b;
    mat x[2];
    if (!my_turn(g, "sigmoid route") || !pair_make(g, &w, NUM_F32, n_in, n, 1, 0.05, false) ||
        !pair_make(g, &bias, NUM_F32, n, 1, 1, 0.3, false))
        return;
    few_rows(FEW);
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n_in, 1.0);
    both_mat(g, &b, x, v, rows, 1, n_in);
    const route_rule rule[2] = {
        {.sigmoid = true, .bias = biased ? &bias.w[0] : NULL, .factor = 2.5f},
        {.sigmoid = true, .bias = biased ? &bias.w[1] : NULL, .factor = 2.5f}};
    routing rr = routed(&b.ref, router, x[0], &w.w[0], k, &rule[0]);
    routing rg = routed(&b.gpu, router, x[1], &w.w[1], k, &rule[1]);
    mat wr = mat_at(rr.weight, rows, 1, k, k), wg = mat_at(rg.weight, rows, 1, k, k);
    mat ir = mat_at((float *)rr.id, rows, 1, k, k), ig = mat_at((float *)rg.id, rows, 1, k, k);
    double e = both_error(g, &b, wr, wg);
    float *id = gpu_rows(g, ig), *share = gpu_rows(g, wg);
    if (memcmp(id, ir.at, (size_t)rows * (size_t)k * sizeof *id))
        e = NAN;
    verdict(g, "sigmoid route",
            text("%s%s, %d rows, %d of %d", router ? "fused" : "alone", biased ? ", bias" : "",
                 rows, k, n),
            e, BOUND);
    int differ = 0;
    for (int32_t r = 0; r < rows && rows <= FEW; r++) {
        pass p;
        chain_init(&c, 1, 0, 0);
        pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
        mat one = pass_mat(&p, 1, 1, n_in);
        g->gpu->upload(g->gpu, one.at, v + (size_t)r * (size_t)n_in, (size_t)n_in * 4);
        routing ro = routed(&p, router, one, &w.w[1], k, &rule[1]);
        float *i1 = gpu_rows(g, mat_at((float *)ro.id, 1, 1, k, k));
        float *s1 = gpu_rows(g, mat_at(ro.weight, 1, 1, k, k));
        size_t at = (size_t)r * (size_t)k, bytes = (size_t)k * 4;
        differ += memcmp(i1, id + at, bytes) || memcmp(s1, share + at, bytes);
        mem_free(i1);
        mem_free(s1);
    }
    verdict(g, "sigmoid route", "each row alone, rows that differ", differ, 0);
    few_rows(RIG_FEW);
    mem_free(id);
    mem_free(share);
    mem_free(v);
    pair_free(g, &bias);
    pair_free(g, &w);
}

/* Equal scores go to the lower index, whatever the kernel. */
static void check_sigmoid_ties(rig *g, int32_t n, int32_t k)
{
    static chain c;
    pass p;
    int32_t id[64], wrong = 0;
    if (!my_turn(g, "sigmoid ties"))
        return;
    chain_init(&c, 1, 0, 0);
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat z = pass_mat(&p, 1, 1, n);
    float *v = mem_alloc((size_t)n * sizeof *v);
    for (int32_t i = 0; i < n; i++)
        v[i] = i % 3 == 1 ? 30.0f : 0.0f; /* sigmoid(30) is 1 in f32 */
    g->gpu->upload(g->gpu, z.at, v, (size_t)n * sizeof *v);
    routing r = op_route(&p, z, k, &(route_rule){.sigmoid = true});
    g->gpu->download(g->gpu, id, r.id, (size_t)k * sizeof *id);
    for (int32_t i = 0; i < k; i++)
        wrong += id[i] != 1 + 3 * i;
    verdict(g, "sigmoid ties", text("%d of %d: wrong choices", k, n), wrong, 0);
    mem_free(v);
}

/* x += y, its norm, and a product of that, twice in the same room: the sum and the norm are one
 * kernel. Then a sum that is scaled, and one that nothing follows; a product reads each. */
static void check_residual_sums(rig *g, int32_t rows, int32_t n)
{
    static chain c;
    pair norm, w, c_3_4;
    both b;
    mat x[2], y[2], z[2];
    mat h[2], room[2];
    if (!my_turn(g, "residual sum") || !pair_fill(g, &c_3_4, 1, 0.75f) ||
        !pair_make(g, &norm, NUM_F32, n, 1, 1, 1.0, false) ||
        !pair_make(g, &w, NUM_Q8_0, n, 64, 1, 0.05, false))
        return;
    chain_init(&c, rows, 0, 0);
    both_begin(g, &b, &c.st);
    float *v = draw(g, (size_t)rows * (size_t)n, 2.0), *u = draw(g, (size_t)rows * (size_t)n, 1.0);
    both_mat(g, &b, x, v, rows, 1, n);
    both_mat(g, &b, y, u, rows, 1, n);
    pass *const p[2] = {&b.ref, &b.gpu};
    for (int i = 0; i < 2; i++)
        room[i] = op_norm_room(p[i], x[i]);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 2; i++) {
            const norm_want want = {&norm.w[i], 1.0f};
            residual r = {.eps = 1e-6f};
            if (turn) /* the first: x as it is */
                r.y = y[i];
            h[i] = room[i];
            op_residual(p[i], x[i], &r, &h[i], &want, 1);
            z[i] = op_matmul(p[i], h[i], &w.w[i]);
        }
        verdict(g, "residual sum", text("%d rows of %d: norm", rows, n),
                both_error(g, &b, h[0], h[1]), BOUND);
        verdict(g, "residual sum", text("%d rows of %d: product", rows, n),
                both_error(g, &b, z[0], z[1]), 1e-3);
    }
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 2; i++) {
            residual r = {.y = turn ? h[i] : y[i], .reader = &w.w[i], .eps = 1e-6f};
            r.scale = turn ? NULL : &c_3_4.w[i];
            z[i] = op_matmul(p[i], op_residual(p[i], x[i], &r, NULL, NULL, 0), &w.w[i]);
        }
        verdict(g, "residual sum", text("%d rows of %d: %s", rows, n, turn ? "alone" : "scaled"),
                both_error(g, &b, x[0], x[1]), BOUND);
        verdict(g, "residual sum", text("%d rows of %d: its product", rows, n),
                both_error(g, &b, z[0], z[1]), 1e-3);
    }
    mem_free(v);
    mem_free(u);
    pair_free(g, &norm);
    pair_free(g, &w);
    pair_free(g, &c_3_4);
}

/* A row has the same bits alone, among few and among many: threads share its values otherwise.
 * norms: of the new x. What is added is y as it is, y normed, or two branches. */
static void check_residuals_alone(rig *g, int32_t n, int32_t norms)
{
    enum { ROWS = 17, BRANCHES = 3 };
    static chain c;
    pair w;
    both b;
    int differ = 0;
    if (!my_turn(g, "residual alone") || !pair_make(g, &w, NUM_F32, n, 1, 1, 1.0, false))
        return;
    const size_t all = (size_t)ROWS * (size_t)n;
    float *v[3], *whole[1 + NORMS_MAX] = {0};
    for (int i = 0; i < 3; i++)
        v[i] = draw(g, all, 2.0);
    for (int branches = 0; branches < BRANCHES; branches++)
        for (int32_t rows = ROWS; rows; rows = rows == ROWS ? 5 : rows == 5 ? 1 : 0) {
            const int32_t from = ROWS - rows;
            mat x[2], y[2], z[2];
            mat h[NORMS_MAX] = {{.rows = 0}};
            const norm_want want[NORMS_MAX] = {{&w.w[1], 1}, {NULL, 0.125f}, {&w.w[1], 1}};
            chain_init(&c, rows, 0, 0);
            both_begin(g, &b, &c.st);
            both_mat(g, &b, x, v[0] + (size_t)from * (size_t)n, rows, 1, n);
            both_mat(g, &b, y, v[1] + (size_t)from * (size_t)n, rows, 1, n);
            both_mat(g, &b, z, v[2] + (size_t)from * (size_t)n, rows, 1, n);
            residual r = {.y = y[1], .norm = branches ? &w.w[1] : NULL, .eps = 1e-6f};
            if (branches == 2) {
                r.y_norm = &w.w[1];
                r.b = (branch){.y = z[1]};
            }
            op_residual(&b.gpu, x[1], &r, h, want, norms);
            for (int32_t i = 0; i <= norms; i++) {
                float *got = gpu_rows(g, i ? h[i - 1] : x[1]);
                const bool first = rows == ROWS;
                differ += !first && memcmp(got, whole[i] + (size_t)from * (size_t)n,
                                           (size_t)rows * (size_t)n * sizeof *got);
                if (first) {
                    mem_free(whole[i]);
                    whole[i] = got;
                } else {
                    mem_free(got);
                }
            }
        }
    verdict(g, "residual alone", text("%d norms of %d: results that differ", norms, n), differ, 0);
    for (int i = 0; i < 3; i++)
        mem_free(v[i]);
    for (int i = 0; i <= NORMS_MAX; i++)
        mem_free(whole[i]);
    pair_free(g, &w);
}

void check_families(rig *g)
{
    for (int32_t norms = 0; norms <= 3; norms++) {
        check_residuals_alone(g, 2048, norms);
        check_residuals_alone(g, 1000, norms); /* a thread or more without values */
        check_residuals_alone(g, 3840, norms); /* the widest of one kernel */
    }
    check_residual_sums(g, 1, 2048);
    check_residual_sums(g, 5, 1024);
    check_residual_sums(g, 40, 1024);
    check_residual_sums(g, 3, 96);
    check_residual_sums(g, 3, 256);
    check_residual_sums(g, 2, 9216);
    check_partial_rope(g, 1, 3, 128, 64, 1.3465736f, false);
    check_partial_rope(g, 5, 2, 128, 128, 0, false);
    check_partial_rope(g, 40, 2, 256, 64, 1, false);
    check_partial_rope(g, 3, 2, 256, 256, 1.25f, false);
    check_partial_rope(g, 2, 1, 32, 8, 0.5f, false);
    check_partial_rope(g, 40, 2, 256, 64, 1, true);
    check_partial_rope(g, 1, 3, 256, 64, 1.25f, true);
    check_partial_rope(g, 9, 2, 128, 128, 1, true);
    check_partial_rope(g, 5, 2, 256, 256, 1, true);
    check_partial_rope(g, 3, 1, 96, 96, 1, true);
    check_partial_rope(g, 66, 6, 256, 256, 1, false); /* several heads of a row in a block */
    check_partial_rope(g, 66, 6, 128, 128, 1, false);
    static const gated_case gated[] = {
        {1, 6, 2, 128, 128, 1, NUM_F16, .beside = false},
        {1, 6, 2, 128, 64, 1.3465736f, NUM_Q8_0, .beside = false},
        {5, 4, 1, 128, 64, 1.3465736f, NUM_F16, .beside = false},
        {70, 6, 2, 128, 64, 1.3465736f, NUM_F16, .beside = false},
        {1, 4, 2, 256, 64, 1, NUM_F16, .beside = true},
        {3, 4, 2, 256, 64, 1, NUM_Q4_0, .beside = true},
        {70, 4, 2, 256, 64, 1, NUM_F16, .beside = true},
        {2, 3, 1, 256, 256, 1, NUM_F16, .beside = true},
        {66, 2, 1, 128, 16, 1, NUM_TQ3_0, .beside = true},
        {66, 12, 6, 256, 256, 1, NUM_F16, .beside = false},
        {66, 6, 6, 256, 256, 1, NUM_Q8_0, .beside = false},
        {1, 2, 1, 512, 64, 1, NUM_F16, .beside = true},
        {2, 2, 1, 64, 32, 1, NUM_F16, .beside = false},
    };
    for (size_t i = 0; i < sizeof gated / sizeof *gated; i++)
        check_gated_attention(g, &gated[i]);
    for (int biased = 0; biased < 2; biased++) {
        check_sigmoid_route(g, true, 256, 8, 2, 1, biased);
        check_sigmoid_route(g, true, 128, 256, 8, 3, biased);
        check_sigmoid_route(g, true, 128, 256, 8, 40, biased);
        check_sigmoid_route(g, false, 64, 300, 40, 2, biased);
        check_sigmoid_route(g, false, 64, 2048, 32, 3, biased);
        check_sigmoid_route(g, false, 64, 128, 8, 16, biased);
    }
    check_sigmoid_ties(g, 64, 8);
    check_sigmoid_ties(g, 300, 40);
}
