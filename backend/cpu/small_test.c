/* small_test.c - the ops over single rows, on every instruction set, against ref.c.
 *
 * Widths are odd, one past a vector, and a model's; mats have strides and heads. Outputs start as
 * NaN. Functions (exp, tanh, gelu, sine) are swept over their whole range.
 */
#include "backend/cpu/cpu_test_int.h"

static const int32_t widths[] = {1, 3, 8, 16, 17, 31, 33, 100, 256, 1536, 2817};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

typedef void (*op_fn)(device *d, pass *p, mat y, mat a, mat b, const weight *w);

static void do_norm(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    d->op->rms_norm(p, &y, a, w, 1e-6f);
}
static void do_norm_plain(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    (void)w;
    d->op->rms_norm(p, &y, a, NULL, 1e-6f);
}
static void do_act(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    d->op->act_mul(p, &y, a, b, ACT_GELU_TANH);
}
static void do_silu(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    d->op->act_mul(p, &y, a, b, ACT_SILU);
}
static void do_softplus(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    d->op->act_mul(p, &y, a, b, ACT_SOFTPLUS);
}
static void do_sigmoid(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    d->op->act_mul(p, &y, a, b, ACT_SIGMOID);
}
/* Of numbers on both sides of the cut. */
static void do_swiglu_cut(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    d->op->scale(p, a, 8, NULL);
    d->op->scale(p, b, 8, NULL);
    d->op->act_mul(p, &y, a, b, ACT_SWIGLU_CUT);
    d->op->scale(p, a, 0.125f, NULL);
    d->op->scale(p, b, 0.125f, NULL);
}
/* The first value of each row's heads, side by side, is the gate of the heads. */
static void do_head_gate(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    a.cols = 1;
    d->op->act_mul(p, &y, a, b, ACT_SOFTPLUS);
}
static void do_add(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)w;
    d->op->add(p, y, a, b);
}
static void do_scale(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    d->op->copy(p, y, a);
    d->op->scale(p, y, 1.5f, w);
}
static void do_softcap(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    static const int32_t ids[] = {0};
    (void)b;
    (void)w;
    d->op->copy(p, y, a);
    d->op->softcap(p, mat_flat(y), 3.0f, ids, 1);
}
static void do_clamp(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    (void)w;
    d->op->clamp(p, y, a, -1.5f, 2.5f);
    d->op->clamp(p, y, y, -INFINITY, 2.0f);
}
/* Means of five rows; the rows behind them stay as they are. */
static void do_pool(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    mat few = y;
    (void)b;
    (void)w;
    d->op->copy(p, y, a);
    few.rows = a.rows / 5;
    a.rows = few.rows * 5;
    d->op->pool(p, few, a, 5);
}
static void do_standardize(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    d->op->copy(p, y, a);
    d->op->standardize(p, mat_columns(y, 0, y.cols), w, w);
}
static void do_layer_norm(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    d->op->copy(p, y, a);
    y = mat_columns(y, 0, y.cols);
    d->op->layer_norm(p, y, y, w, w, 1e-5f);
}
static void do_gelu(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    (void)w;
    d->op->copy(p, y, a);
    d->op->act(p, y, ACT_GELU_TANH);
}
static void do_gelu_erf(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    (void)b;
    (void)w;
    d->op->copy(p, y, a);
    d->op->act(p, y, ACT_GELU_ERF);
}
/* Of a table that is b: the shares are a's numbers. */
static void do_embed_mix(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    enum { TAPS = 3 };
    mat ids = test_mat(y.rows, 1, TAPS), share = test_mat(y.rows, 1, TAPS);
    weight table = {.name = "table",
                    .type = NUM_F32,
                    .n_in = b.cols,
                    .n_out = b.rows * b.heads,
                    .n_mat = 1,
                    .data = b.at,
                    .row_bytes = (size_t)b.cols * sizeof(float)};
    (void)w;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t k = 0; k < TAPS; k++) {
            mat_row(ids, r)[k] = (float)((7 * r + 5 * k) % table.n_out);
            mat_row(share, r)[k] = mat_row(a, r)[k % a.cols];
        }
    d->op->copy(p, y, a);
    d->op->embed_mix(p, mat_columns(y, 0, y.cols), ids, share, &table);
    test_free(ids.at);
    test_free(share.at);
}
static void do_add_norm(device *d, pass *p, mat y, mat a, mat b, const weight *w)
{
    d->op->copy(p, y, a);
    if (d->op->add_rms_norm) {
        d->op->add_rms_norm(p, y, b, w, 1e-6f);
        return;
    }
    mat t = test_mat(y.rows, y.heads, y.cols);
    d->op->rms_norm(p, &t, b, w, 1e-6f);
    d->op->add(p, y, y, t);
    test_free(t.at);
}

static void check_op(const char *name, op_fn op, double bound)
{
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 16u << 20);
    for (int a = 0; a < N_ISA; a++) {
        device *d = test_device(every_isa[a], (cpu_options){0});
        if (!d)
            continue;
        for (int i = 0; i < N_WIDTHS; i++)
            for (int32_t heads = 1; heads <= 3; heads += 2)
                for (int32_t rows = 1; rows <= 65; rows = rows * 4 + 1) {
                    if (SANITIZED && (i + a + heads / 2) % 2) /* each width has both by turns */
                        continue;
                    int32_t n = widths[i];
                    mat x = test_mat(rows, heads, n), y = test_mat(rows, heads, n);
                    mat got = test_mat(rows, heads + 1, n), want = test_mat(rows, heads, n);
                    got.heads = heads; /* a stride wider than the row */
                    AUTO_MEM float *wv = mem_alloc((size_t)n * 4);
                    weight w = {.name = "w", .type = NUM_F32, .n_in = n, .n_out = 1, .n_mat = 1};
                    w.data = wv;
                    test_fill(wv, (size_t)n, 1.0f, &rng);
                    test_fill(x.at, (size_t)rows * (size_t)x.stride, 4.0f, &rng);
                    test_fill(y.at, (size_t)rows * (size_t)y.stride, 4.0f, &rng);
                    op(d, test_pass_begin(&t, d, rows, 0), got, x, y, &w);
                    op(ref, test_pass_begin(&t, ref, rows, 0), want, x, y, &w);
                    double nmse = test_nmse(got, want);
                    CHECK_MSG(nmse < bound, "%s %s %d x %d x %d: nmse %g", d->name, name, rows,
                              heads, n, nmse);
                    test_free(x.at);
                    test_free(y.at);
                    test_free(got.at);
                    test_free(want.at);
                }
        device_close(d);
    }
}

TEST(cpu_small_ops_equal_the_reference)
{
    check_op("rms_norm", do_norm, 1e-12);
    check_op("rms_norm without weight", do_norm_plain, 1e-12);
    check_op("act_mul", do_act, 1e-12);
    check_op("act_mul silu", do_silu, 1e-12);
    check_op("act_mul softplus", do_softplus, 1e-12);
    check_op("act_mul sigmoid", do_sigmoid, 1e-12);
    check_op("act_mul of a cut unit", do_swiglu_cut, 1e-11);
    check_op("act_mul of a head's gate", do_head_gate, 1e-12);
    check_op("add", do_add, 1e-30);
    check_op("scale", do_scale, 1e-12);
    check_op("softcap", do_softcap, 1e-12);
    check_op("add_rms_norm", do_add_norm, 1e-12);
    check_op("clamp", do_clamp, 1e-30);
    check_op("pool", do_pool, 1e-12);
    check_op("standardize", do_standardize, 1e-12);
    check_op("layer_norm", do_layer_norm, 1e-11);
    check_op("act gelu", do_gelu, 1e-12);
    check_op("act gelu by erf", do_gelu_erf, 1e-12);
    check_op("embed_mix", do_embed_mix, 1e-12);
}

/* Every function against libm in double, over its range and at its edges. */
TEST(cpu_functions_over_their_range)
{
    enum { N = 200003 };
    AUTO_MEM float *x = mem_alloc(N * 4), *one = mem_alloc(N * 4), *y = mem_alloc(N * 4);
    for (int a = 0; a < N_ISA; a++) {
        device *d = test_device(every_isa[a], (cpu_options){0});
        if (!d)
            continue;
        const cpu_kernels *k = ((cpu_device *)d->self)->k;
        for (int i = 0; i < N; i++) {
            x[i] = -110.0f + 110.0f * (float)i / (N - 1); /* the last is 0, the largest */
            one[i] = 1;
        }
        float top;
        memcpy(y, x, N * 4);
        k->softmax(y, N, &top);
        CHECK(top == 0);
        for (int i = 0; i < N; i++) {
            double e = x[i] < -87 ? 0 : exp(x[i]); /* no subnormal numbers */
            CHECK_MSG(fabs(y[i] - e) <= 1.5 * e * 0x1p-23, "%s e^%.9g is %.9g", d->name, x[i],
                      y[i]);
        }
        for (int i = 0; i < N; i++)
            x[i] = -20.0f + 40.0f * (float)i / (N - 1);
        k->gelu_mul(y, x, one, N);
        for (int i = 0; i < N; i++) {
            double u = sqrt(2 / 3.14159265358979323846) * (x[i] + 0.044715 * pow(x[i], 3));
            double g = x[i] / (1 + exp(-2 * u));
            CHECK_MSG(fabs(y[i] - g) <= 3e-5 * fabs(g) + 1e-37, "%s gelu %.9g is %.9g", d->name,
                      x[i], y[i]);
        }
        k->silu_mul(y, x, one, N);
        for (int i = 0; i < N; i++) {
            double g = x[i] / (1 + exp(-(double)x[i]));
            CHECK_MSG(fabs(y[i] - g) <= 1e-6 * fabs(g), "%s silu %.9g is %.9g", d->name, x[i],
                      y[i]);
        }
        k->softplus_mul(y, x, one, N);
        for (int i = 0; i < N; i++) {
            double g = log1p(exp(x[i]));
            CHECK_MSG(fabs(y[i] - g) <= 1e-6 * g, "%s softplus %.9g is %.9g", d->name, x[i], y[i]);
        }
        k->sigmoid_mul(y, x, one, N);
        for (int i = 0; i < N; i++) {
            double g = 1 / (1 + exp(-(double)x[i]));
            CHECK_MSG(fabs(y[i] - g) <= 1e-6 * g, "%s sigmoid %.9g is %.9g", d->name, x[i], y[i]);
        }
        memcpy(y, x, N * 4);
        k->softcap(y, 2.0f, N);
        for (int i = 0; i < N; i++) {
            double want = 2 * tanh(x[i] / 2.0);
            CHECK_MSG(fabs(y[i] - want) <= 4e-7 * fabs(want), "%s tanh %.9g is %.9g", d->name, x[i],
                      y[i]);
        }
        device_close(d);
    }
}

TEST(cpu_functions_at_their_edges)
{
    const float edge[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 0.0f, -0.0f};
    for (int a = 0; a < N_ISA; a++) {
        device *d = test_device(every_isa[a], (cpu_options){0});
        if (!d)
            continue;
        const cpu_kernels *k = ((cpu_device *)d->self)->k;
        float seven[7], ones[7] = {1, 1, 1, 1, 1, 1, 1};
        k->gelu_mul(seven, edge, ones, 7);
        CHECK(seven[0] == INFINITY && isnan(seven[2]) && seven[3] == 3e38f && seven[4] == 0 &&
              seven[5] == 0);
        k->silu_mul(seven, edge, ones, 7);
        CHECK(seven[0] == INFINITY && isnan(seven[2]) && seven[3] == 3e38f && seven[4] == 0 &&
              seven[5] == 0);
        k->softplus_mul(seven, edge, ones, 7);
        CHECK(seven[0] == INFINITY && seven[1] == 0 && seven[3] == 3e38f && seven[4] == 0);
        k->sigmoid_mul(seven, edge, ones, 7);
        CHECK(seven[0] == 1 && seven[1] == 0 && isnan(seven[2]) && seven[3] == 1 && seven[4] == 0 &&
              seven[5] == 0.5f);
        k->swiglu_cut(seven, edge, ones, 7);
        CHECK(fabsf(seven[0] - 14) < 1e-3f && isnan(seven[2]) && seven[3] == seven[0] &&
              seven[4] == 0 && seven[5] == 0);
        k->swiglu_cut(seven, ones, edge, 7);
        CHECK(seven[0] > 6 && seven[1] < -5 && isnan(seven[2]) && seven[3] == seven[0] &&
              seven[4] == seven[1]);
        memcpy(seven, edge, sizeof seven);
        k->softcap(seven, 30.0f, 7);
        CHECK(seven[0] == 30 && seven[1] == -30 && isnan(seven[2]) && seven[5] == 0);
        device_close(d);
    }
}

TEST(cpu_rope_at_every_scale_of_position)
{
    enum { PAIRS = 256 };
    static const int32_t pos[] = {0, 1, 2, 511, 512, 4095, 65537, 131071, 262143};
    uint64_t rng = test_seed();
    float inv[PAIRS];
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 1u << 20);
    for (int i = 0; i < PAIRS; i++)
        inv[i] = i % 5 == 4 ? 0.0f : (float)pow(10000.0, -2.0 * i / (2 * PAIRS));
    for (int a = 0; a < N_ISA; a++)
        for (int32_t pairs = 4; pairs <= PAIRS; pairs = pairs * 2 - pairs % 3) { /* 4, 7, 13, .. */
            device *d = test_device(every_isa[a], (cpu_options){0});
            if (!d)
                break;
            rope f = {.n_pairs = pairs, .inv_freq = inv};
            int32_t dim = 2 * pairs;
            if (pairs % 3 == 0) { /* the first dims alone, with a factor */
                f.factor = 1.3465736f;
                f.grow = 0.3f; /* and a temperature */
                f.period = 512;
                dim += pairs + 1;
            }
            mat x = test_mat(9, 2, dim), y = test_mat(9, 2, dim);
            test_fill(x.at, 9u * 2 * (size_t)dim, 1.0f, &rng);
            memcpy(y.at, x.at, 9u * 2 * (size_t)dim * 4);
            pass *p = test_pass_begin(&t, d, 9, 0);
            memcpy(t.pos, pos, sizeof pos);
            d->op->rope(p, x, &f);
            p = test_pass_begin(&t, ref, 9, 0);
            memcpy(t.pos, pos, sizeof pos);
            ref->op->rope(p, y, &f);
            CHECK(test_nmse(x, y) < 1e-13);
            test_free(x.at);
            test_free(y.at);
            device_close(d);
        }
}

/* Interleaved M-RoPE: pairs of each axis against plain rotations, and on every instruction set.
 * Rows whose places are equal have the bits of rows without axes. */
TEST(cpu_rope_by_sections)
{
    enum { ROWS = 6, HEADS = 2, DIM = 128, MOST = 64 };
    static const int32_t sections[][3] = {{11, 11, 10}, {24, 20, 20}, {2, 1, 1}, {3, 0, 2}};
    static int32_t axis[3][ROWS] = {
        {0, 7, 7, 900, 31, 5}, {0, 7, 9, 12, 31, 5}, {0, 8, 7, 3, 31, 5}};
    static const int32_t pos[ROWS] = {0, 7, 8, 1000, 31, 5};
    uint64_t rng = test_seed();
    float inv[MOST], start[ROWS * HEADS * DIM];
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 1u << 20);
    mat x = test_mat(ROWS, HEADS, DIM), y = test_mat(ROWS, HEADS, DIM),
        z = test_mat(ROWS, HEADS, DIM);
    for (int i = 0; i < 4; i++) {
        const int32_t *n = sections[i];
        rope f = {.n_pairs = n[0] + n[1] + n[2], .inv_freq = inv}, plain = f;
        f.n_axes = 3;
        memcpy(f.section, n, sizeof f.section);
        for (int k = 0; k < f.n_pairs; k++)
            inv[k] = (float)pow(1e4, -1.0 * k / f.n_pairs);
        test_fill(start, sizeof start / sizeof *start, 1.0f, &rng);
        for (int by = 0; by < 2; by++) {
            for (int a = 0; a < 3; a++)
                t.st.all.axis[a] = by ? axis[a] : NULL;
            memcpy(y.at, start, sizeof start);
            pass *p = test_pass_begin(&t, ref, ROWS, 0);
            memcpy(t.pos, pos, sizeof pos);
            op_rope(p, y, &f);
            CHECK(!pass_failed(p));
            for (int a = 0; a < 3; a++) { /* pair k is of axis k mod 3, while that has any left */
                memcpy(z.at, start, sizeof start);
                p = test_pass_begin(&t, ref, ROWS, 0);
                memcpy(t.pos, by ? axis[a] : pos, sizeof pos);
                op_rope(p, z, &plain);
                for (int32_t r = 0; r < ROWS; r++)
                    for (int32_t k = 0; k < f.n_pairs; k++) {
                        bool own = a ? k % 3 == a && k / 3 < n[a] : k % 3 == 0 || k / 3 >= n[k % 3];
                        for (int h = 0; h < HEADS && own; h++)
                            CHECK(mat_row(y, r)[h * DIM + k] == mat_row(z, r)[h * DIM + k] &&
                                  mat_row(y, r)[h * DIM + f.n_pairs + k] ==
                                      mat_row(z, r)[h * DIM + f.n_pairs + k]);
                    }
            }
            for (int isa = 0; isa < N_ISA; isa++) {
                device *d = test_device(every_isa[isa], (cpu_options){0});
                if (!d)
                    continue;
                memcpy(x.at, start, sizeof start);
                p = test_pass_begin(&t, d, ROWS, 0);
                memcpy(t.pos, pos, sizeof pos);
                op_rope(p, x, &f);
                CHECK(test_nmse(x, y) < 1e-13);
                memcpy(z.at, start, sizeof start);
                p = test_pass_begin(&t, d, ROWS, 0);
                memcpy(t.pos, pos, sizeof pos);
                op_rope(p, z, &plain);
                for (int32_t r = 0; r < ROWS; r++)
                    if (!by || (axis[1][r] == pos[r] && axis[2][r] == pos[r]))
                        CHECK(!memcmp(mat_row(x, r), mat_row(z, r), HEADS * DIM * sizeof(float)));
                device_close(d);
            }
        }
    }
    test_free(x.at);
    test_free(y.at);
    test_free(z.at);
}

/* By column and row, as towers turn: against plain rotations of the halves of a head, and on every
 * instruction set against the definition. */
TEST(cpu_rope_by_axes)
{
    enum { ROWS = 9, HEADS = 3 };
    static const int32_t dims[] = {8, 12, 64, 72}, place[] = {0, 1, 2, 7, 63, 64, 511, 3359, 10239};
    uint64_t rng = test_seed();
    int32_t axis[2][ROWS];
    float inv[36];
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 1u << 20);
    for (int r = 0; r < ROWS; r++) {
        axis[0][r] = place[r];
        axis[1][r] = place[ROWS - 1 - r] / 2;
    }
    t.st.all.axis[0] = axis[0];
    t.st.all.axis[1] = axis[1];
    for (int i = 0; i < 4; i++) {
        int32_t dim = dims[i], half = dim / 2, quarter = dim / 4;
        for (int k = 0; k < half; k++)
            inv[k] = (float)pow(100.0, -2.0 * (k % quarter) / half);
        mat x = test_mat(ROWS, HEADS, dim), y = test_mat(ROWS, HEADS, dim),
            z = test_mat(ROWS, 1, dim);
        size_t n = (size_t)ROWS * HEADS * (size_t)dim;
        float *start = mem_alloc(n * sizeof *start);
        test_fill(start, n, 1.0f, &rng);
        pass *bad = test_pass_begin(&t, ref, ROWS, 0); /* parts are those of axes */
        op_rope(bad, x, &(rope){.n_pairs = half, .inv_freq = inv, .parted = true});
        CHECK(pass_failed(bad));
        for (int parted = 0; parted < 2; parted++) {
            const rope f = {.n_pairs = half, .inv_freq = inv, .n_axes = 2, .parted = parted};
            const rope plain = {.n_pairs = quarter, .inv_freq = inv};
            memcpy(y.at, start, n * sizeof *start);
            ref->op->rope(test_pass_begin(&t, ref, ROWS, 0), y, &f);
            for (int part = 0; part < 2; part++) { /* of the first head */
                for (int32_t r = 0; r < ROWS; r++)
                    for (int32_t c = 0; c < half; c++) {
                        int32_t at = parted        ? part * half + c
                                     : c < quarter ? part * quarter + c
                                                   : half + part * quarter + c - quarter;
                        mat_row(z, r)[part * half + c] = start[r * HEADS * dim + at];
                    }
                pass *p = test_pass_begin(&t, ref, ROWS, 0);
                memcpy(t.pos, axis[part], sizeof axis[part]);
                ref->op->rope(p, mat_columns(z, part * half, half), &plain);
                for (int32_t r = 0; r < ROWS; r++)
                    for (int32_t c = 0; c < half; c++) {
                        int32_t at = parted        ? part * half + c
                                     : c < quarter ? part * quarter + c
                                                   : half + part * quarter + c - quarter;
                        CHECK(mat_row(z, r)[part * half + c] == mat_row(y, r)[at]);
                    }
            }
            for (int a = 0; a < N_ISA; a++) {
                device *d = test_device(every_isa[a], (cpu_options){0});
                if (!d)
                    continue;
                memcpy(x.at, start, n * sizeof *start);
                d->op->rope(test_pass_begin(&t, d, ROWS, 0), x, &f);
                CHECK(test_nmse(x, y) < 1e-13);
                device_close(d);
            }
        }
        mem_free(start);
        test_free(x.at);
        test_free(y.at);
        test_free(z.at);
    }
}

TEST(cpu_embed_gather_and_route)
{
    enum { E = 128, K = 8, ROWS = 40 };
    static const num_type types[] = {NUM_F32, NUM_BF16, NUM_Q6_K, NUM_Q4_K, NUM_Q8_0};
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 4u << 20);
    for (int a = 0; a < N_ISA; a++) {
        device *d = test_device(every_isa[a], (cpu_options){0});
        if (!d)
            continue;
        for (int i = 0; i < 5; i++) {
            AUTO(test_weight_free) weight w;
            err e = {0};
            test_weight(&w, types[i], 512, 50, 1, &rng);
            CHECK_OK(d->weight_load(d, &w, &e), e); /* a tied head is packed and gathered */
            mat y = test_mat(ROWS, 1, 512), want = test_mat(ROWS, 1, 512);
            pass *p = test_pass_begin(&t, d, ROWS, 0);
            for (int r = 0; r < ROWS; r++)
                t.token[r] = (int32_t)rng_below(&rng, 50);
            d->op->embed(p, y, &w, 39.2f);
            p = test_pass_begin(&t, ref, ROWS, 0);
            ref->op->embed(p, want, &w, 39.2f);
            CHECK(!memcmp(y.at, want.at, ROWS * 512 * 4));
            mat some = test_mat(3, 1, 512);
            int32_t row[3] = {ROWS - 1, 0, 7};
            d->op->gather(p, some, y, row);
            for (int r = 0; r < 3; r++)
                CHECK(!memcmp(mat_row(some, r), mat_row(want, row[r]), 512 * 4));
            test_free(y.at);
            test_free(want.at);
            test_free(some.at);
            d->weight_free(d, &w);
        }
        mat z = test_mat(ROWS, 1, E);
        test_fill(z.at, ROWS * E, 2.0f, &rng);
        for (int i = 0; i < E; i++)
            mat_row(z, 3)[i] = i % 4 == 1 ? 5.0f : 1.0f; /* ties: 1, 5, 9, ... */
        for (int i = 0; i < E; i++)
            mat_row(z, 4)[i] = NAN;
        float es[E];
        test_fill(es, E, 1.0f, &rng);
        weight scale = {.name = "s", .type = NUM_F32, .n_in = E, .n_out = 1, .n_mat = 1};
        scale.data = es;
        int32_t id[2][ROWS * K];
        float share[2][ROWS * K];
        routing r0 = {.id = id[0], .weight = share[0], .rows = ROWS, .k = K};
        routing r1 = {.id = id[1], .weight = share[1], .rows = ROWS, .k = K};
        float bv[E];
        test_fill(bv, E, 0.3f, &rng);
        weight bias = scale;
        bias.data = bv;
        const route_rule rules[] = {
            {.scale = &scale}, {.sigmoid = true}, {.sigmoid = true, .bias = &bias, .factor = 2.5f}};
        for (int rule = 0; rule < 3; rule++) {
            d->op->route(test_pass_begin(&t, d, ROWS, 0), r0, z, &rules[rule]);
            ref->op->route(test_pass_begin(&t, ref, ROWS, 0), r1, z, &rules[rule]);
            for (int i = 0; i < ROWS * K; i++) {
                if (i / K == 4) {
                    CHECK(id[0][i] >= 0 && id[0][i] < E);
                    continue;
                }
                CHECK_EQ(id[0][i], id[1][i]);
                CHECK_NEAR(share[0][i], share[1][i], 1e-6);
                if (i / K == 3 && rule < 2)
                    CHECK_EQ(id[0][i], 1 + 4 * (i % K));
            }
        }
        /* The bias chooses and is in no weight; equal scores sum to the factor. */
        for (int i = 0; i < E; i++) {
            z.at[i] = 0;
            bv[i] = i >= E - K ? 0.01f : -INFINITY;
        }
        r0.rows = 1;
        d->op->route(test_pass_begin(&t, d, 1, 0), r0, z, &rules[2]);
        for (int i = 0; i < K; i++)
            CHECK(id[0][i] == E - K + i && share[0][i] == 2.5f / K);
        for (int i = 0; i < E; i++)
            bv[i] = i % 2 ? NAN : -INFINITY;
        d->op->route(test_pass_begin(&t, d, 1, 0), r0, z, &rules[2]);
        for (int i = 0; i < K; i++)
            CHECK(id[0][i] >= 0 && id[0][i] < E);
        test_free(z.at);
        device_close(d);
    }
}
