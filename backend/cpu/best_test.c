/* best_test.c - the largest logits of rows: the reference against a sort, every instruction set
 * against the reference, a row among others against the row alone, and rows that are no logits. */
#include "backend/cpu/cpu_test_int.h"

static int by_logit(const void *a, const void *b)
{
    const logit *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The definition, otherwise: a full sort, and the sum from the smallest logit up. */
static void check_by_sort(mat x, mat y)
{
    AUTO_MEM logit *all = mem_alloc((size_t)x.cols * sizeof *all);
    CHECK(all);
    for (int32_t r = 0; r < x.rows; r++) {
        double sum = 0;
        for (int32_t i = 0; i < x.cols; i++)
            all[i] = (logit){i, mat_row(x, r)[i]};
        qsort(all, (size_t)x.cols, sizeof *all, by_logit);
        for (int32_t i = x.cols - 1; i >= 0; i--)
            sum += exp((double)all[i].logit);
        for (int32_t k = 0; k < y.cols; k++) {
            CHECK_EQ((int32_t)mat_row(y, r)[k], all[k].id);
            CHECK_NEAR(mat_row(y, r)[y.cols + k], all[k].logit - log(sum), 1e-5);
        }
    }
}

static void check_best(test_pass *t, device *ref, device *d, int32_t rows, int32_t n, int32_t k,
                       float steps, uint64_t *rng)
{
    mat x = test_mat(rows, 1, n), want = test_mat(rows, 2, k), got = test_mat(rows, 3, k);
    mat one = test_mat(1, 2, k);
    got.heads = 2; /* a stride wider than the row */
    test_fill(x.at, (size_t)rows * (size_t)n, 6.0f, rng);
    for (size_t i = 0; steps > 0 && i < (size_t)rows * (size_t)n; i++)
        x.at[i] = roundf(x.at[i] * steps) / steps; /* equal logits, and -0 beside 0 */
    ref->op->best(test_pass_begin(t, ref, rows, 0), want, x);
    check_by_sort(x, want);
    d->op->best(test_pass_begin(t, d, rows, 0), got, x);
    for (int32_t r = 0; r < rows; r++) {
        mat row = x;
        row.at = mat_row(x, r);
        row.rows = 1;
        CHECK(!memcmp(mat_row(got, r), mat_row(want, r), (size_t)k * sizeof(float)));
        for (int32_t j = k; j < 2 * k; j++)
            CHECK_NEAR(mat_row(got, r)[j], mat_row(want, r)[j], 1e-5);
        d->op->best(test_pass_begin(t, d, 1, 0), one, row);
        CHECK(!memcmp(one.at, mat_row(got, r), 2 * (size_t)k * sizeof(float)));
    }
    test_free(x.at);
    test_free(want.at);
    test_free(got.at);
    test_free(one.at);
}

TEST(cpu_best_logits_of_rows)
{
    static const struct {
        int32_t rows, n, k;
        float steps;
    } c[] = {{1, 1, 1, 0},       {3, 8, 8, 0},   {2, 9, 3, 1},     {5, 4096, 4, 0}, {1, 4097, 8, 2},
             {3, 10001, 8, .2f}, {7, 512, 1, 0}, {2, 30000, 5, 9}, {33, 700, 2, 1}};
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 4u << 20);
    for (int a = 0; a < N_ISA; a++) {
        device *d = test_device(every_isa[a], (cpu_options){0});
        for (size_t i = 0; d && i < sizeof c / sizeof *c; i++)
            check_best(&t, ref, d, c[i].rows, c[i].n, c[i].k, c[i].steps, &rng);
        if (d)
            device_close(d);
    }
}

/* NaN, +inf and rows without a finite logit have no best; -inf beside finite logits is the last. */
TEST(cpu_best_of_rows_that_are_no_logits)
{
    enum { N = 5000, K = 3 };
    const float odd[] = {NAN, INFINITY, -NAN, -INFINITY};
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 1u << 20);
    for (int a = -1; a < N_ISA; a++) {
        device *d = test_device(a < 0 ? NULL : every_isa[a], (cpu_options){.reference = a < 0});
        if (!d)
            continue;
        for (int o = 0; o < 6; o++) {
            mat x = test_mat(3, 1, N), y = test_mat(3, 2, K);
            for (int32_t i = 0; i < 3 * N; i++)
                x.at[i] = i / N == 1 && o >= 4 ? -INFINITY : (float)(i % 7);
            if (o < 4)
                mat_row(x, 1)[o % 2 ? N - 1 : 0] = odd[o];
            if (o == 5)
                mat_row(x, 1)[4500] = -3;
            pass *p = test_pass_begin(&t, d, 3, 0);
            d->op->best(p, y, x);
            for (int32_t r = 0; r < 3; r++)
                for (int32_t k = 0; k < K; k++) {
                    float id = mat_row(y, r)[k], logp = mat_row(y, r)[K + k];
                    if (r == 1 && (o < 3 || o == 4))
                        CHECK(id == -1 && isnan(logp));
                    else if (r == 1 && o == 5)
                        CHECK(id == (k ? (float)k - 1 : 4500) && logp == (k ? -INFINITY : 0));
                    else
                        CHECK(id == (float)((13 - r * N % 7) % 7 + 7 * k));
                }
            test_free(x.at);
            test_free(y.at);
        }
        device_close(d);
    }
}

/* op_best says what it refuses; a chosen id becomes the next embedding, and none becomes NaN. */
TEST(cpu_best_then_embed)
{
    enum { V = 40, D = 64, K = 2 };
    static const num_type types[] = {NUM_F32, NUM_Q8_0};
    uint64_t rng = test_seed();
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 1u << 20);
    for (int a = -1; a < N_ISA; a++) {
        device *d = test_device(a < 0 ? NULL : every_isa[a], (cpu_options){.reference = a < 0});
        for (int i = 0; d && i < 2; i++) {
            AUTO(test_weight_free) weight w;
            float row[D];
            test_weight(&w, types[i], D, V, 1, &rng);
            mat z = test_mat(3, 1, V);
            for (int32_t r = 0; r < 3; r++)
                for (int32_t v = 0; v < V; v++)
                    mat_row(z, r)[v] = v == 11 * r + 5 ? 4.0f : r == 1 && v == 0 ? NAN : 1.0f;
            pass *p = test_pass_begin(&t, d, 3, 0);
            mat y = op_best(p, z, K), e = op_embed_at(p, y, &w, 1.5f);
            CHECK(!pass_failed(p) && e.rows == 3 && e.cols == D);
            for (int32_t r = 0; r < 3; r++) {
                num_format_of(w.type)->decode(weight_row(&w, 0, 11 * r + 5), row, D);
                for (int32_t v = 0; v < D; v++)
                    CHECK(r == 1 ? isnan(mat_row(e, r)[v]) : mat_row(e, r)[v] == row[v] * 1.5f);
            }
            mat_row(y, 0)[0] = V; /* past the table */
            e = op_embed_at(p, y, &w, 1.0f);
            CHECK(isnan(mat_row(e, 0)[0]) && !isnan(mat_row(e, 2)[0]));
            op_best(p, z, BEST_MAX + 1);
            CHECK(p->e.status == E_ARG);
            test_free(z.at);
        }
        if (d)
            device_close(d);
    }
}

/* Matrices that rows choose, in many formats; then the numbers of the best outputs. */
TEST(cpu_products_with_chosen_matrices)
{
    enum { ROWS = 7, N = 9, K = 3, OUT = 48, IN = 256 };
    static const num_type types[] = {NUM_F32, NUM_F16, NUM_Q8_0, NUM_Q4_K};
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 4u << 20);
    for (int a = 0; a < N_ISA * 4; a++) {
        device *d = test_device(every_isa[a / 4], (cpu_options){0});
        int32_t id[ROWS * K], order[N * OUT];
        float share[ROWS * K];
        routing r = {.id = id, .weight = share, .rows = ROWS, .k = K};
        weight w;
        err e = {0};
        if (!d)
            continue;
        test_weight(&w, types[a % 4], IN, OUT, N, &rng);
        CHECK_OK(d->weight_load(d, &w, &e), e);
        mat x = test_mat(ROWS, 1, IN), want = test_mat(ROWS, K, OUT);
        test_fill(x.at, ROWS * IN, 1.0f, &rng);
        for (int i = 0; i < ROWS * K; i++)
            id[i] = (i / K + i % K * 4) % N;
        for (int i = 0; i < N * OUT; i++)
            order[i] = N * OUT - 1 - i;
        ref->op->moe_matmul(test_pass_begin(&t, ref, ROWS, 0), want, &x, r, &w);
        pass *p = test_pass_begin(&t, d, ROWS, 0);
        mat y = op_moe_matmul(p, x, r, &w);
        CHECK_OK(p->e.status, p->e);
        CHECK(test_nmse(y, want) < (types[a % 4] == NUM_F32 ? 1e-10 : 1e-3));
        mat best = op_best(p, mat_flat(y), 2), old = op_best(p, mat_flat(y), 2);
        op_renumber(p, best, r, order, N * OUT, OUT);
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < 2; k++) {
                int32_t c = (int32_t)mat_row(old, i)[k];
                CHECK_EQ((int32_t)mat_row(best, i)[k], order[id[i * K + c / OUT] * OUT + c % OUT]);
                CHECK(mat_row(best, i)[2 + k] == mat_row(old, i)[2 + k]);
            }
        d->weight_free(d, &w);
        test_weight_free(&w);
        test_free(x.at);
        test_free(want.at);
        device_close(d);
    }
}
