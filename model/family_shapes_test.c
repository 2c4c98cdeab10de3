/* family_shapes_test.c - the tables of Qwen3 and Laguna against what is published about the files:
 * tensor counts, parameters, and the types of a stock Q4_K_M file. */
#include "tests/test.h"
#include "base/mem.h"
#include "model/laguna.h"
#include "model/qwen3.h"
#include "model/qwen35.h"

static shape_tensor *list_of(const char *name, model_shape **s, int32_t *n)
{
    err e = {0};
    CHECK_OK(shape_named(name, s, &e), e);
    CHECK_OK((*s)->family->check(*s, name, &e), e);
    *n = (*s)->family->list(*s, NULL, 0);
    shape_tensor *t = mem_calloc((size_t)*n, sizeof *t);
    CHECK(t && *n <= SHAPE_TENSORS_MAX);
    CHECK_EQ((*s)->family->list(*s, t, *n), *n);
    return t;
}

TEST(family_shapes_have_the_published_counts)
{
    /* Tensors, and parameters in millions. */
    static const struct {
        const char *name;
        int32_t tensors;
        double total;
    } want[] = {{"qwen3-0.6b", 310, 596.05},         {"mixtral-8x7b", 323, 46702.8},
                {"mistral-small-24b", 363, 23572.4}, {"llama-3.2-3b", 255, 3212.7},
                {"llama-3.3-70b", 724, 70553.7},     {"ministral-3-3b", 236, 3429.0},
                {"ministral-3-8b", 309, 8489.8},     {"ministral-3-14b", 363, 13506.1},
                {"qwen3-8b", 399, 8190.7},           {"qwen3-32b", 707, 32762.1},
                {"qwen3-30b-a3b", 579, 30532.1},     {"llama-3.1-8b", 292, 8030.3},
                {"llama-3.2-1b", 147, 1235.8},       {"llama-2-7b", 291, 6738.4},
                {"mistral-7b", 291, 7248.0},         {"mistral-nemo-12b", 363, 12247.8},
                {"qwen3-235b-a22b", 1131, 235093.6}, {"laguna-xs", 678, 33440},
                {"gemma3-270m", 236, 268.098},       {"gemma3-1b", 340, 999.886},
                {"gemma3-4b", 444, 3880.1},          {"gemma3-12b", 626, 11765.8},
                {"gemma3-27b", 808, 27009.0},        {"embeddinggemma-300m", 316, 307.58},
                {"gpt-oss-20b", 459, 20914.8},       {"gpt-oss-120b", 687, 116829.2},
                {"mmproj-31b", 356, 575.7},          {"mmproj-26b", 356, 572.8}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        AUTO_MEM model_shape *s;
        int32_t n;
        AUTO_MEM shape_tensor *t = list_of(want[i].name, &s, &n);
        double total = 0;
        CHECK_EQ(n, want[i].tensors);
        for (int32_t k = 0; k < n; k++)
            total += (double)(t[k].ne[0] * t[k].ne[1] * t[k].ne[2] * t[k].ne[3]);
        CHECK_NEAR(total * 1e-6 / want[i].total, 1, 3e-4);
    }
}

/* As many tensors of each type as llama-quantize (version 0c1e570, with an importance file) makes.
 */
TEST(mixes_of_few_bits_are_those_of_llama_cpp)
{
    static const struct {
        const char *size, *mix;
        struct {
            num_type t;
            int32_t n;
        } of[5];
    } want[] = {
        {"llama-3.1-8b",
         "iq2_xs",
         {{NUM_IQ2_XS, 188}, {NUM_Q2_K, 5}, {NUM_Q4_K, 32}, {NUM_Q5_K, 1}}},
        {"llama-3.1-8b",
         "iq1_s",
         {{NUM_IQ1_S, 156}, {NUM_IQ2_XXS, 32}, {NUM_Q2_K, 5}, {NUM_Q4_K, 32}, {NUM_Q5_K, 1}}},
        {"llama-3.1-8b",
         "iq2_s",
         {{NUM_IQ2_XS, 156}, {NUM_IQ3_S, 37}, {NUM_Q4_K, 32}, {NUM_Q5_K, 1}}},
        {"llama-3.1-8b",
         "iq2_m",
         {{NUM_IQ2_S, 156}, {NUM_IQ3_S, 37}, {NUM_Q4_K, 32}, {NUM_Q5_K, 1}}},
        {"llama-3.1-8b",
         "iq3_xxs",
         {{NUM_IQ2_S, 64}, {NUM_IQ3_S, 33}, {NUM_IQ3_XXS, 96}, {NUM_Q4_K, 32}, {NUM_Q5_K, 1}}},
        {"llama-3.1-8b",
         "iq3_xs",
         {{NUM_IQ3_S, 81}, {NUM_IQ3_XXS, 112}, {NUM_Q4_K, 32}, {NUM_Q6_K, 1}}},
        {"llama-3.1-8b", "iq3_m", {{NUM_IQ3_S, 157}, {NUM_Q4_K, 68}, {NUM_Q6_K, 1}}},
        {"mixtral-8x7b",
         "iq2_xxs",
         {{NUM_IQ2_XXS, 124}, {NUM_Q2_K, 5}, {NUM_Q4_K, 64}, {NUM_Q5_K, 33}}},
        {"mixtral-8x7b",
         "iq3_m",
         {{NUM_IQ3_S, 113}, {NUM_Q4_K, 16}, {NUM_Q5_K, 32}, {NUM_Q6_K, 1}, {NUM_Q8_0, 64}}},
        {"qwen3-30b-a3b",
         "iq2_m",
         {{NUM_IQ2_S, 234}, {NUM_IQ3_S, 55}, {NUM_Q4_K, 48}, {NUM_Q5_K, 1}}},
        {"qwen3-30b-a3b",
         "iq3_xs",
         {{NUM_IQ3_S, 121}, {NUM_IQ3_XXS, 168}, {NUM_Q4_K, 48}, {NUM_Q6_K, 1}}},
        {"e4b", "iq3_s", {{NUM_IQ3_S, 336}, {NUM_Q4_K, 42}, {NUM_Q6_K, 2}}},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        AUTO_MEM model_shape *s;
        int32_t n, count[NUM_TYPE_END] = {0};
        AUTO_MEM shape_tensor *t = list_of(want[i].size, &s, &n);
        for (int32_t k = 0; k < n; k++)
            count[weight_mix_type(weight_mix_named(want[i].mix), t, n, k)]++;
        for (int k = 0; k < 5 && want[i].of[k].n; k++) {
            num_type of = want[i].of[k].t;
            CHECK_MSG(count[of] == want[i].of[k].n, "%s in %s: %d of %s", want[i].size, want[i].mix,
                      count[of], num_name(of));
        }
    }
}

/* The official Q4_K_M file of Laguna XS-2.1: 379 Q4_K, 60 Q6_K, 239 F32, 20,274,300,032 bytes. */
TEST(laguna_xs_has_the_types_of_the_published_file)
{
    AUTO_MEM model_shape *s;
    int32_t n, count[NUM_TYPE_END] = {0};
    uint64_t bytes = 0;
    AUTO_MEM shape_tensor *t = list_of("laguna-xs", &s, &n);
    for (int32_t k = 0; k < n; k++) {
        num_type type = weight_mix_type(weight_mix_named("q4_k_m"), t, n, k);
        uint64_t row = 0;
        CHECK(num_row_bytes(type, t[k].ne[0], &row));
        bytes += row * t[k].ne[1] * t[k].ne[2];
        count[type]++;
    }
    CHECK_EQ(count[NUM_Q4_K], 379);
    CHECK_EQ(count[NUM_Q6_K], 60);
    CHECK_EQ(count[NUM_F32], 239);
    CHECK(bytes > 20.2e9 && bytes < 20.3e9);
}

TEST(family_shape_checks_name_what_is_wrong)
{
    AUTO_MEM model_shape *s;
    err e = {0};
    CHECK_OK(shape_named("qwen3-0.6b", &s, &e), e);
    ((qwen3_shape *)s)->n_head_kv[3] = 7;
    CHECK_STATUS(s->family->check(s, "config.json", &e), E_ARG);
    CHECK_STR(e.text, "config.json: layer 3: 16 heads of 128 with 7 KV heads do not share them "
                      "evenly");
    mem_free(s);
    err_clear(&e);
    CHECK_OK(shape_named("laguna-xs", &s, &e), e);
    ((laguna_shape *)s)->n_rot = 130;
    CHECK_STATUS(s->family->check(s, "config.json", &e), E_ARG);
    CHECK_STR(e.text, "config.json: rope.dimension_count is 130, expected 2 to 128");
    mem_free(s);
    err_clear(&e);
    CHECK_OK(shape_named("qwen3.6-27b", &s, &e), e);
    ((qwen35_shape *)s)->head_dim = 255;
    CHECK_STATUS(s->family->check(s, "config.json", &e), E_ARG);
    CHECK_STR(e.text, "config.json: the head size 255 is odd: expected an even number");
}
