/* gemma4_shapes_test.c - the table against what is published about the files.
 *
 * Counts of tensors, the types that a stock Q4_K_M file gives them, and factors of rotation are
 * public for each size; a shape that contradicts itself is refused by name.
 */
#include "tests/test.h"
#include "base/mem.h"
#include "model/gemma4_shapes.h"

static const char *const all[] = {"e2b",      "e4b",        "12b",      "26b-a4b",
                                  "31b",      "tiny-dense", "tiny-moe", "tiny-ple",
                                  "tiny-all", "tiny-wide",  "tiny-many"};
enum { N_ALL = sizeof all / sizeof *all };

static shape_tensor *list_of(const char *name, gemma4_shape *s, int32_t *n)
{
    err e = {0};
    CHECK(gemma4_shape_named(name, s));
    CHECK_OK(table_check(&s->common, name, &e), e);
    *n = table_list(&s->common, NULL, 0);
    shape_tensor *t = mem_calloc((size_t)*n, sizeof *t);
    CHECK_EQ(table_list(&s->common, t, *n), *n);
    CHECK(*n <= SHAPE_TENSORS_MAX);
    return t;
}

TEST(gemma4_shapes_have_the_published_tensor_counts)
{
    static const int32_t want[] = {601, 720, 667, 658, 833};
    /* Parameters in use, in units of a million: the published totals without encoders. */
    static const double total[] = {4629, 7463, 11907, 25233, 30697};
    for (int i = 0; i < 5; i++) {
        gemma4_shape s;
        int32_t n;
        AUTO_MEM shape_tensor *t = list_of(all[i], &s, &n);
        double used = 0;
        CHECK_EQ(n, want[i]);
        for (int32_t k = 0; k < n; k++)
            if (!t[k].unused_kv && t[k].role != ROLE_ROPE_FACTORS)
                used += (double)(t[k].ne[0] * t[k].ne[1] * t[k].ne[2]);
        CHECK_NEAR(used * 1e-6, total[i], 0.7);
    }
    gemma4_shape s;
    CHECK(!gemma4_shape_named("27b", &s));
}

TEST(gemma4_shapes_stock_q4_k_m_counts)
{
    /* F32, Q4_K, Q6_K, Q5_0, Q8_0, BF16 of published files made by the stock rule. */
    static const struct {
        const char *name;
        int32_t f32, q4_k, q6_k, q5_0, q8_0, bf16;
    } want[] = {{"e2b", 283, 281, 36, 0, 0, 1},
                {"e4b", 339, 336, 44, 0, 0, 1},
                {"12b", 338, 284, 45, 0, 0, 0},
                {"26b-a4b", 392, 192, 14, 32, 28, 0},
                {"31b", 422, 355, 56, 0, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        gemma4_shape s;
        int32_t n, count[NUM_TYPE_END] = {0};
        AUTO_MEM shape_tensor *t = list_of(want[i].name, &s, &n);
        for (int32_t k = 0; k < n; k++)
            count[weight_mix_type(weight_mix_named("q4_k_m"), t, n, k)]++;
        CHECK_EQ(count[NUM_F32], want[i].f32);
        CHECK_EQ(count[NUM_Q4_K], want[i].q4_k);
        CHECK_EQ(count[NUM_Q6_K], want[i].q6_k);
        CHECK_EQ(count[NUM_Q5_0], want[i].q5_0);
        CHECK_EQ(count[NUM_Q8_0], want[i].q8_0);
        CHECK_EQ(count[NUM_BF16], want[i].bf16);
    }
}

TEST(gemma4_mixes_fit_every_shape)
{
    char names[256];
    int n_mixes = 0;
    snprintf(names, sizeof names, "%s", weight_mix_names);
    for (char *m = strtok(names, ", "); m; m = strtok(NULL, ", "), n_mixes++)
        for (int i = 0; i < N_ALL; i++) {
            gemma4_shape s;
            int32_t n;
            AUTO_MEM shape_tensor *t = list_of(all[i], &s, &n);
            CHECK(weight_mix_named(m));
            for (int32_t k = 0; k < n; k++) {
                const num_format *f = num_format_of(weight_mix_type(weight_mix_named(m), t, n, k));
                CHECK(f && f->encode && t[k].ne[0] % (uint64_t)f->block_n == 0);
            }
        }
    CHECK_EQ(n_mixes, 22);
    CHECK(weight_mix_named("Q4_K_M") == weight_mix_named("q4_k_m"));
    CHECK(!weight_mix_named("q4_k"));
}

TEST(gemma4_rope_factors_of_published_sizes)
{
    gemma4_shape s;
    float f[256];
    CHECK(gemma4_shape_named("31b", &s));
    gemma4_rope_factors(&s, f);
    for (int i = 0; i < 256; i++)
        CHECK(f[i] == (i < 64 ? 1.0f : 1e30f));
    CHECK(gemma4_shape_named("tiny-all", &s));
    gemma4_rope_factors(&s, f);
    CHECK(f[7] == 1 && f[8] == 1e30f);
}

TEST(gemma4_shape_check_names_what_is_wrong)
{
    gemma4_shape s;
    err e = {0};
    CHECK(gemma4_shape_named("e2b", &s));
    s.n_kv_shared = 35;
    CHECK_STATUS(table_check(&s.common, "config.json", &e), E_ARG);
    CHECK_STR(e.text, "config.json: num_kv_shared_layers is 35, expected 0 to 34");
    CHECK(gemma4_shape_named("31b", &s));
    s.n_head_kv = 7;
    CHECK_STATUS(table_check(&s.common, "config.json", NULL), E_ARG);
    s.n_layer = INT32_MIN;
    CHECK_STATUS(table_check(&s.common, "config.json", NULL), E_ARG);
}
