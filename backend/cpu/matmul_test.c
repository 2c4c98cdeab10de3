/* matmul_test.c - products of every format on every instruction set, against plain sums in double.
 *
 * Two bounds. Against the same activations rounded to int8 the same way, only f32 rounding is left
 * (1e-10 in normalised square error); against the unrounded ones, what a step of amax / 127 in
 * blocks of 32 costs (8e-5 for Gaussian activations). And one equality: a row's bits do not depend
 * on the rows beside it.
 */
#include "backend/cpu/cpu_test_int.h"

static const num_type every_type[] = {
    NUM_F32,    NUM_F16,     NUM_BF16,  NUM_Q4_0,  NUM_Q4_1,  NUM_Q5_0,    NUM_Q5_1,
    NUM_Q8_0,   NUM_Q2_K,    NUM_Q3_K,  NUM_Q4_K,  NUM_Q5_K,  NUM_Q6_K,    NUM_IQ4_NL,
    NUM_IQ4_XS, NUM_MXFP4,   NUM_NVFP4, NUM_IQ1_S, NUM_IQ1_M, NUM_IQ2_XXS, NUM_IQ2_XS,
    NUM_IQ2_S,  NUM_IQ3_XXS, NUM_IQ3_S, NUM_Q1_0,  NUM_Q2_0,  NUM_TQ1_0,   NUM_TQ2_0};
enum { N_TYPES = sizeof every_type / sizeof *every_type };

/* The activations a product of codes sees: rounded to multiples of amax / 127 in blocks of 32. */
static mat rounded(mat x)
{
    mat y = test_mat(x.rows, 1, x.cols);
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t b = 0; b < x.cols; b += 32) {
            float top = 0;
            for (int i = 0; i < 32; i++)
                top = fmaxf(top, fabsf(mat_row(x, r)[b + i]));
            for (int i = 0; i < 32; i++)
                mat_row(y, r)[b + i] =
                    top > 0 ? nearbyintf(mat_row(x, r)[b + i] * (127.0f / top)) * (top / 127.0f)
                            : 0;
        }
    return y;
}

/* Those that a product of bf16 sees. */
static mat rounded_bf16(mat x)
{
    mat y = test_mat(x.rows, 1, x.cols);
    for (int32_t r = 0; r < x.rows; r++)
        for (int32_t i = 0; i < x.cols; i++)
            mat_row(y, r)[i] = num_bf16_to_f32(num_f32_to_bf16(mat_row(x, r)[i]));
    return y;
}

/* Half of the weights have biases. *bias: bias_free. */
static void put_bias(weight *w, weight *bias, uint64_t *rng)
{
    size_t n = (size_t)w->n_mat * (size_t)w->n_out;
    float *v = test_alloc(n * sizeof *v);
    CHECK(v);
    test_fill(v, n, 0.5f, rng);
    *bias = (weight){.name = "bias", .n_in = (int32_t)n, .n_out = 1, .n_mat = 1, .data = v};
    w->bias = rng_below(rng, 2) ? bias : NULL;
}

static void bias_free(weight *bias)
{
    test_free(bias->data);
}

static mat plain_product(const weight *w, int32_t k, mat x)
{
    mat y = test_mat(x.rows, 1, w->n_out);
    AUTO_MEM float *row = mem_alloc((size_t)w->n_in * sizeof(float));
    CHECK(row);
    for (int32_t o = 0; o < w->n_out; o++) {
        num_format_of(w->type)->decode(weight_row(w, k, o), row, w->n_in);
        for (int32_t r = 0; r < x.rows; r++) {
            double sum = 0;
            for (int32_t i = 0; i < w->n_in; i++)
                sum += (double)row[i] * mat_row(x, r)[i];
            mat_row(y, r)[o] = (float)(sum + (w->bias ? weight_bias(w, k)[o] : 0));
        }
    }
    return y;
}

static mat run_product(device *d, test_pass *t, const weight *w, mat x)
{
    pass *p = test_pass_begin(t, d, x.rows, 0);
    mat y = test_mat(x.rows, 1, w->n_out);
    d->op->matmul(p, y, &x, w);
    CHECK_OK(p->e.status, p->e);
    CHECK_EQ(pass_mark(p), 0);
    return y;
}

static void check_product(device *d, test_pass *t, num_type type, int32_t n_in, int32_t n_out,
                          int32_t rows, bool exact, uint64_t *rng)
{
    weight w, bias;
    err e = {0};
    test_weight(&w, type, n_in, n_out, 1, rng);
    put_bias(&w, &bias, rng);
    bool coded = pack_kind_of(type) && !exact && n_in % 32 == 0;
    /* few outputs, or few rounding errors shared by all of them, have no steady mean square; the
     * terms of one sum may cancel */
    bool many = rows * n_in >= 2048 && n_out >= 32;
    if ((coded || type == NUM_BF16) && !many) /* nor may a bias cancel what little there is */
        w.bias = NULL;
    mat x = test_mat(rows, 1, n_in);
    test_fill(x.at, (size_t)rows * (size_t)n_in, 3.0f, rng);
    size_t plan = d->weight_bytes(d, &w);
    CHECK_OK(d->weight_load(d, &w, &e), e);
    CHECK_EQ(plan, w.packed_bytes);
    mat y = run_product(d, t, &w, x), want = plain_product(&w, 0, x);
    bool pairs = type == NUM_BF16 && w.packed && ((cpu_device *)d->self)->pairs;
    double nmse = test_nmse(y, want);
    CHECK_MSG(nmse < (coded       ? many ? 6e-5 : 1
                      : pairs     ? many ? 1e-5 : 1e-2
                      : n_out > 1 ? 1e-10
                                  : 1e-8),
              "%s %s %d x %d, %d rows: nmse %g", d->name, num_name(type), n_in, n_out, rows, nmse);
    if (coded || pairs) {
        mat xr = coded ? rounded(x) : rounded_bf16(x), same = plain_product(&w, 0, xr);
        nmse = test_nmse(y, same);
        CHECK_MSG(nmse < 1e-10, "%s %s %d x %d, %d rows: nmse %g against the same activations",
                  d->name, num_name(type), n_in, n_out, rows, nmse);
        test_free(xr.at);
        test_free(same.at);
    }
    d->weight_free(d, &w);
    test_weight_free(&w);
    bias_free(&bias);
    test_free(x.at);
    test_free(y.at);
    test_free(want.at);
}

/* AddressSanitizer sees every pair of counts in some formats, and every count of outputs in each:
 * its faults are of loops over counts, which formats share. Races are between threads, whatever the
 * counts. */
static void check_shapes(const char *isa, cpu_options o)
{
    device *d = test_device(isa, o);
    uint64_t rng = test_seed();
    test_pass t;
    if (!d)
        return;
    test_pass_open(&t, 64u << 20);
    for (int i = 0; i < N_TYPES; i++) {
        int32_t block = num_format_of(every_type[i])->block_n;
        static const int32_t outs[] = {1, 7, 16, 33, 65}, rows[] = {1, 2, 5, 6, 7, 13};
        for (int a = 0; a < 5; a++)
            for (int b = 0; b < 6; b++) {
                if (SANITIZED && (i + a + b) % (RACES ? 18 : 6))
                    continue;
                check_product(d, &t, every_type[i], block * (1 + a % 3), outs[a], rows[b],
                              o.exact_f32, &rng);
                if (block == 1)
                    check_product(d, &t, every_type[i], 33 + a, outs[a], rows[b], o.exact_f32,
                                  &rng);
            }
        if (RACES && i % 4)
            continue;
        if (!SANITIZED || i % 2)
            check_product(d, &t, every_type[i], 1536, 256, 3, o.exact_f32, &rng);
        if (!SANITIZED || i % 2 == 0)
            check_product(d, &t, every_type[i], 2560, 96, 20, o.exact_f32, &rng);
        if (block <= 32)
            check_product(d, &t, every_type[i], 704, 160, 9, o.exact_f32, &rng);
    }
    test_pass_close(&t);
    device_close(d);
}

TEST(cpu_products_of_every_format_portable)
{
    check_shapes("portable", (cpu_options){0});
}
PLAIN_TEST(cpu_products_of_every_format_avx2)
{
    check_shapes("avx2", (cpu_options){0});
}
PLAIN_TEST(cpu_products_of_every_format_avx512)
{
    check_shapes("avx512", (cpu_options){0});
}
PLAIN_TEST(cpu_products_of_every_format_avx512bf16)
{
    check_shapes("avx512bf16", (cpu_options){0});
}
PLAIN_TEST(cpu_products_of_every_format_amx)
{
    check_shapes("amx", (cpu_options){0});
}
TEST(cpu_products_of_every_format_neon)
{
    check_shapes("neon", (cpu_options){0});
}
PLAIN_TEST(cpu_products_without_repacking)
{
    check_shapes(NULL, (cpu_options){.no_repack = true});
}
PLAIN_TEST(cpu_products_with_f32_activations)
{
    check_shapes(NULL, (cpu_options){.exact_f32 = true});
}
PLAIN_TEST(cpu_products_of_the_reference)
{
    check_shapes(NULL, (cpu_options){.reference = true, .exact_f32 = true});
}

PLAIN_TEST(cpu_products_of_real_shapes)
{
    static const struct {
        num_type t;
        int32_t n_in, n_out, rows;
    } s[] = {{NUM_Q4_K, 1536, 2048, 4},  {NUM_Q6_K, 1536, 8192, 1}, {NUM_Q4_K, 12288, 1536, 2},
             {NUM_Q8_0, 2112, 2816, 1},  {NUM_Q5_0, 704, 2816, 3},  {NUM_BF16, 1536, 8960, 1},
             {NUM_Q6_K, 6144, 1536, 30}, {NUM_F32, 2816, 128, 7}};
    AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){0});
    uint64_t rng = test_seed();
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 64u << 20);
    for (size_t i = 0; i < sizeof s / sizeof *s; i++)
        check_product(d, &t, s[i].t, s[i].n_in, s[i].n_out, s[i].rows, false, &rng);
}

/* Rows 1..40 and 512 together have the bits they have alone; so has a device without copies.
 * Briefly every other type, from `first` on: the next instruction set begins with the next. */
static void check_invariance(const char *isa, int32_t n_out, int first)
{
    enum { N_IN = 768, ROWS = 512 };
    size_t row_bytes = (size_t)n_out * sizeof(float);
    device *d = test_device(isa, (cpu_options){0});
    device *plain = test_device(isa, (cpu_options){.no_repack = true});
    uint64_t rng = test_seed();
    test_pass t;
    err e = {0};
    if (!d)
        return;
    test_pass_open(&t, 64u << 20);
    mat x = test_mat(ROWS, 1, N_IN);
    test_fill(x.at, (size_t)ROWS * N_IN, 1.0f, &rng);
    for (int i = test_brief() ? first % 2 : 0; i < N_TYPES; i += 1 + test_brief()) {
        weight w, file;
        test_weight(&w, every_type[i], N_IN, n_out, 1, &rng);
        file = w;
        CHECK_OK(d->weight_load(d, &w, &e), e);
        mat alone = test_mat(ROWS, 1, n_out);
        for (int32_t r = 0; r < ROWS; r++) {
            mat one = x;
            one.at = mat_row(x, r);
            one.rows = 1;
            mat y = run_product(d, &t, &w, one);
            memcpy(mat_row(alone, r), y.at, row_bytes);
            test_free(y.at);
        }
        for (int32_t n = 2; n <= 41; n++) {
            mat some = x;
            some.rows = n == 41 ? ROWS : n;
            mat y = run_product(d, &t, &w, some);
            CHECK_MSG(!memcmp(y.at, alone.at, (size_t)some.rows * row_bytes),
                      "%s %s: %d rows differ from single ones", d->name, num_name(w.type),
                      some.rows);
            test_free(y.at);
        }
        x.rows = 9;
        mat y = run_product(plain, &t, &file, x);
        if (pack_kind_of(w.type)) /* floats are the same sums too, decoded */
            CHECK(!memcmp(y.at, alone.at, 9 * row_bytes));
        x.rows = ROWS;
        test_free(y.at);
        test_free(alone.at);
        d->weight_free(d, &w);
        test_weight_free(&w);
    }
    test_free(x.at);
    test_pass_close(&t);
    device_close(d);
    device_close(plain);
}

/* The head of a published model: every one of its rows, with panels enough that each thread takes
 * many tasks. */
PLAIN_TEST(cpu_product_of_a_head_at_full_height)
{
    AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){0});
    uint64_t rng = test_seed();
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 64u << 20);
    check_product(d, &t, NUM_Q6_K, 1536, 262144, 1, false, &rng);
    check_product(d, &t, NUM_Q4_0, 256, 262144, 3, false, &rng);
}

PLAIN_TEST(cpu_product_rows_do_not_notice_their_neighbours)
{
    for (int i = 0; i < N_ISA; i++)
        for (int32_t n_out = 1; n_out <= 70; n_out += 69)
            check_invariance(every_isa[i], n_out, i + (n_out > 1));
}

/* Infinities and NaN show in the row that has them and nowhere else; huge values survive. */
TEST(cpu_products_of_hostile_activations)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f, 1e-42f, 70000.0f};
    uint64_t rng = test_seed();
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 16u << 20);
    for (int i = 0; i < 2 * N_ISA; i++) {
        device *d = test_device(every_isa[i / 2], (cpu_options){0});
        weight w;
        err e = {0};
        if (!d)
            continue;
        test_weight(&w, i % 2 ? NUM_BF16 : NUM_Q4_K, 256, 40, 1, &rng);
        CHECK_OK(d->weight_load(d, &w, &e), e);
        mat x = test_mat(6, 1, 256);
        test_fill(x.at, 6 * 256, 1.0f, &rng);
        for (int r = 0; r < 6; r++)
            mat_row(x, r)[37] = bad[r];
        mat y = run_product(d, &t, &w, x);
        for (int r = 0; r < 6; r++)
            for (int o = 0; o < 40; o++)
                CHECK_MSG(r < 3   ? !isfinite(mat_row(y, r)[o])
                          : r > 3 ? isfinite(mat_row(y, r)[o])
                                  : true,
                          "%s row %d output %d is %g", d->name, r, o, mat_row(y, r)[o]);
        test_free(x.at);
        test_free(y.at);
        d->weight_free(d, &w);
        test_weight_free(&w);
        device_close(d);
    }
}

/* ---- Gated units and experts ------------------------------------------------------------- */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* gelu_mul of two halves of z: [rows, 2 n] to [rows, n] */
static mat plain_gate(mat g, mat u)
{
    mat y = test_mat(g.rows, 1, g.cols);
    for (int32_t r = 0; r < g.rows; r++)
        for (int32_t i = 0; i < g.cols; i++)
            mat_row(y, r)[i] = (float)(gelu(mat_row(g, r)[i]) * mat_row(u, r)[i]);
    return y;
}

/* Every instruction set quantises to the same bytes, what is no number to no number. */
TEST(cpu_activations_are_quantised_alike)
{
    enum { N = 32 * 400 };
    static const num_type types[] = {NUM_Q4_K, NUM_Q6_K, NUM_Q8_0, NUM_Q4_0};
    static const float odd[] = {0,      -0.0f,    0x1p-149f, -0x1p-127f, 0x1p-100f, 0x1.8p-99f,
                                3e38f,  -3.4e38f, INFINITY,  -INFINITY,  NAN,       -NAN,
                                127.5f, -126.5f,  0.5f,      1.5f};
    static xblock want[N / 32], got[N / 32];
    static float x[N];
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *plain = test_device("portable", (cpu_options){0});
    for (int i = 0; i < N; i++) {
        int block = i / 32;
        x[i] = (float)rng_normal(&rng);
        if (block % 4 == 1) /* ties: the largest is 127 */
            x[i] = i % 32 ? (float)((int)rng_below(&rng, 509) - 254) / 2 : 127;
        /* AVX-512 takes sixteen blocks together if all of them are numbers. */
        if (block % 4 == 2 && rng_below(&rng, 8) == 0)
            x[i] = odd[rng_below(&rng, block < N / 64 ? 8 : sizeof odd / sizeof *odd)];
        if (block % 4 == 3)
            x[i] *= 0x1p-120f;
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t a = 0; a < sizeof every_isa / sizeof *every_isa; a++) {
            device *d = test_device(every_isa[a], (cpu_options){0});
            const pack_kind *kind = pack_kind_of(types[t]);
            if (!d)
                continue;
            ((cpu_device *)plain->self)->k->quantise(want, x, N, kind);
            const cpu_kernels *k = ((cpu_device *)d->self)->k;
            k->quantise(got, x, N, kind);
            for (int b = 0; b < N / 32; b++) {
                for (int h = 0; h < 2 && !kind->mins; h++)
                    got[b].start[h] -= k->dot_base;
                bool none = isnan(want[b].d);
                CHECK_MSG(
                    !memcmp(got[b].q, want[b].q, sizeof want[b].q) &&
                        (none ? isnan(got[b].d) != 0 : !memcmp(&got[b], &want[b], sizeof want[b])),
                    "%s, block %d", d->name, b);
            }
            device_close(d);
        }
}

TEST(cpu_glu_of_two_weights_and_of_halves)
{
    uint64_t rng = test_seed();
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 16u << 20);
    for (int i = 0; i < N_ISA; i++) {
        device *d = test_device(every_isa[i], (cpu_options){0});
        err e = {0};
        if (!d)
            continue;
        static const struct {
            num_type gate, up;
            int32_t f;
            bool halves;
        } c[] = {{NUM_Q4_K, NUM_Q4_K, 100, false}, {NUM_Q4_K, NUM_Q6_K, 64, false},
                 {NUM_F16, NUM_Q8_0, 31, false},   {NUM_Q8_0, NUM_Q8_0, 48, true},
                 {NUM_Q4_0, NUM_Q4_0, 41, true},   {NUM_F32, NUM_F32, 5, true}};
        for (size_t j = 0; j < sizeof c / sizeof *c; j++)
            for (int32_t rows = 1; rows <= 8; rows += 7) {
                weight gate, up;
                test_weight(&gate, c[j].gate, 256, c[j].halves ? 2 * c[j].f : c[j].f, 1, &rng);
                test_weight(&up, c[j].up, 256, c[j].f, 1, &rng);
                mat x = test_mat(rows, 1, 256);
                test_fill(x.at, (size_t)rows * 256, 2.0f, &rng);
                mat g = plain_product(&gate, 0, x), u = plain_product(&up, 0, x);
                if (c[j].halves) {
                    for (int32_t r = 0; r < rows; r++)
                        memcpy(mat_row(u, r), mat_row(g, r) + c[j].f, (size_t)c[j].f * 4);
                    g.cols = c[j].f;
                }
                mat want = plain_gate(g, u), y = test_mat(rows, 1, c[j].f);
                CHECK_OK(d->weight_load(d, &gate, &e), e);
                CHECK_OK(d->weight_load(d, &up, &e), e);
                pass *p = test_pass_begin(&t, d, rows, 0);
                d->op->glu(p, &y, x, &gate, c[j].halves ? NULL : &up, ACT_GELU_TANH);
                CHECK_OK(p->e.status, p->e);
                CHECK_EQ(pass_mark(p), 0);
                double nmse = test_nmse(y, want);
                CHECK_MSG(nmse < 2e-4, "%s case %zu, %d rows: nmse %g", d->name, j, rows, nmse);
                d->weight_free(d, &gate);
                d->weight_free(d, &up);
                test_weight_free(&gate);
                test_weight_free(&up);
                test_free(x.at);
                test_free(g.at);
                test_free(u.at);
                test_free(want.at);
                test_free(y.at);
            }
        device_close(d);
    }
}

typedef struct experts_case {
    num_type type;
    bool halves;
    int32_t f;
    int32_t first; /* the weights have E experts from there on, of 2 first + E */
} experts_case;

/* Experts of rows together: against sums in double, and bit for bit against rows alone. */
static void check_experts(const char *isa, cpu_options opt, experts_case of)
{
    enum { N_IN = 256, E = 11, K = 3, ROWS = 70 };
    const num_type type = of.type;
    const bool halves = of.halves;
    const int32_t f = of.f, n_all = 2 * of.first + E;
    device *d = test_device(isa, opt);
    uint64_t rng = test_seed();
    static int32_t id[ROWS * K];
    static float share[ROWS * K];
    weight gate, up, down, bias[3];
    test_pass t;
    err e = {0};
    if (!d)
        return;
    test_pass_open(&t, 64u << 20);
    test_weight(&gate, type, N_IN, halves ? 2 * f : f, E, &rng);
    test_weight(&up, type, N_IN, f, E, &rng);
    test_weight(&down, f % 256 ? NUM_Q8_0 : type, f, 50, E, &rng);
    put_bias(&gate, &bias[0], &rng);
    put_bias(&up, &bias[1], &rng);
    put_bias(&down, &bias[2], &rng);
    gate.first_mat = up.first_mat = down.first_mat = of.first;
    CHECK_OK(d->weight_load(d, &gate, &e), e);
    CHECK_OK(d->weight_load(d, &up, &e), e);
    CHECK_OK(d->weight_load(d, &down, &e), e);
    mat x = test_mat(ROWS, 1, N_IN), y = test_mat(ROWS, K, f), z = test_mat(ROWS, 1, 50);
    test_fill(x.at, ROWS * N_IN, 1.0f, &rng);
    test_fill(y.at, (uint64_t)ROWS * K * (uint64_t)f, 1.0f, &rng); /* results left out are zeros */
    for (int32_t i = 0; i < ROWS; i++)
        for (int32_t j = 0; j < K; j++) {
            /* distinct; the first expert takes far more rows than the others */
            id[i * K + j] = j ? (int32_t)((id[i * K] + 1 + j + i % 4) % n_all)
                              : (int32_t)(rng_below(&rng, 2) * rng_below(&rng, (uint64_t)n_all));
            share[i * K + j] = (float)rng_unit(&rng);
        }
    routing r = {.id = id, .weight = share, .rows = ROWS, .k = K};
    pass *p = test_pass_begin(&t, d, ROWS, 0);
    d->op->moe_glu(p, &y, x, &r, &gate, halves ? NULL : &up, ACT_GELU_TANH);
    d->op->moe_down(p, z, y, r, &down);
    CHECK_OK(p->e.status, p->e);
    CHECK_EQ(pass_mark(p), 0);
    mat want = test_mat(ROWS, 1, 50);
    for (int32_t i = 0; i < ROWS; i++) {
        mat xi = mat_at(mat_row(x, i), 1, 1, N_IN, N_IN);
        mat yi = test_mat(1, K, f), zi = test_mat(1, 1, 50);
        routing ri = {.id = id + i * K, .weight = share + i * K, .rows = 1, .k = K};
        p = test_pass_begin(&t, d, 1, 0);
        d->op->moe_glu(p, &yi, xi, &ri, &gate, halves ? NULL : &up, ACT_GELU_TANH);
        d->op->moe_down(p, zi, yi, ri, &down);
        CHECK(!memcmp(yi.at, mat_row(y, i), (size_t)K * (size_t)f * 4));
        CHECK(!memcmp(zi.at, mat_row(z, i), 50 * 4));
        for (int32_t o = 0; o < 50; o++)
            mat_row(want, i)[o] = 0;
        for (int32_t j = 0; j < K; j++) {
            const int32_t k = ri.id[j] - of.first;
            if (k < 0 || k >= E) {
                for (int32_t o = 0; o < f; o++)
                    CHECK(yi.at[j * f + o] == 0);
                continue;
            }
            mat g = plain_product(&gate, k, xi), u = plain_product(&up, k, xi);
            if (halves) {
                memcpy(u.at, g.at + f, (size_t)f * 4);
                g.cols = f;
            }
            mat a = plain_gate(g, u), b = plain_product(&down, k, a);
            for (int32_t o = 0; o < 50; o++)
                mat_row(want, i)[o] += ri.weight[j] * b.at[o];
            test_free(g.at);
            test_free(u.at);
            test_free(a.at);
            test_free(b.at);
        }
        test_free(yi.at);
        test_free(zi.at);
    }
    double nmse = test_nmse(z, want);
    CHECK_MSG(nmse < 4e-4, "%s %s: nmse %g", d->name, num_name(type), nmse);
    d->weight_free(d, &gate);
    d->weight_free(d, &up);
    d->weight_free(d, &down);
    test_weight_free(&gate);
    test_weight_free(&up);
    test_weight_free(&down);
    for (int i = 0; i < 3; i++)
        bias_free(&bias[i]);
    test_free(x.at);
    test_free(y.at);
    test_free(z.at);
    test_free(want.at);
    test_pass_close(&t);
    device_close(d);
}

PLAIN_TEST(cpu_experts_alone_and_together)
{
    static const experts_case of[] = {{NUM_Q4_K, true, 64, 0},  {NUM_Q8_0, true, 96, 0},
                                      {NUM_Q4_0, false, 32, 0}, {NUM_BF16, true, 32, 0},
                                      {NUM_Q4_K, true, 64, 5},  {NUM_Q8_0, false, 64, 9}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        for (int i = 0; i < N_ISA; i++)
            check_experts(every_isa[i], (cpu_options){0}, of[k]);
        check_experts(NULL, (cpu_options){.reference = true}, of[k]);
    }
}
