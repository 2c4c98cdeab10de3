/* recipes_test.c - files with the mixtures of formats that people publish, and their logits.
 *
 * Each recipe gives the format of every tensor, as the publisher's tool does, with llama.cpp's
 * fallbacks for rows that a block does not divide. A file of random blocks in these formats must
 * compute what a file of the same values in f32 does.
 */
#include "tests/test.h"
#include "apps/synth_blocks.h"
#include "base/mem.h"
#include "base/rng.h"
#include "carat.h"
#include "format/gguf.h"
#include "model/gemma4_shapes.h"
#include "model/gpt_oss.h"
#include "model/qwen3.h"

#include <math.h>
#include <string.h>

enum { N_TOKENS = 24, MOST_RULES = 8 };

typedef struct rule {
    const char *part; /* of a tensor's name; "": any matrix */
    num_type type;
    int32_t layers; /* of the first so many layers alone; 0: of all */
} rule;

typedef struct recipe {
    const char *name;
    rule rule[MOST_RULES]; /* the first that fits */
} recipe;

static const recipe recipes[] = {
    {"llama.cpp IQ2_XXS",
     {{"token_embd", NUM_Q5_K, 0},
      {"attn_v", NUM_Q4_K, 0},
      {"attn_output", NUM_IQ2_XXS, 0},
      {"ffn_down", NUM_Q2_K, 1},
      {"", NUM_IQ2_XXS, 0}}},
    {"bartowski IQ2_XS",
     {{"token_embd", NUM_Q8_0, 0},
      {"attn_v", NUM_Q4_K, 0},
      {"ffn_down", NUM_Q2_K, 1},
      {"", NUM_IQ2_XS, 0}}},
    {"bartowski IQ2_M",
     {{"token_embd", NUM_IQ3_S, 0},
      {"attn_v", NUM_Q4_K, 0},
      {"attn_output", NUM_IQ3_S, 0},
      {"ffn_down", NUM_IQ3_S, 1},
      {"", NUM_IQ2_S, 0}}},
    {"bartowski IQ3_XXS",
     {{"token_embd", NUM_Q5_K, 0},
      {"attn_v", NUM_IQ3_XXS, 0},
      {"attn_k", NUM_IQ2_S, 0},
      {"attn_q", NUM_IQ2_S, 0},
      {"attn_output", NUM_IQ3_S, 0},
      {"", NUM_IQ3_XXS, 0}}},
    {"bartowski IQ3_XS",
     {{"token_embd", NUM_Q6_K, 0},
      {"attn_v", NUM_IQ3_S, 0},
      {"attn_k", NUM_IQ3_XXS, 0},
      {"attn_q", NUM_IQ3_XXS, 0},
      {"ffn_gate", NUM_IQ3_XXS, 0},
      {"", NUM_IQ3_S, 0}}},
    {"bartowski IQ3_M",
     {{"token_embd", NUM_Q6_K, 0},
      {"attn_v", NUM_Q4_K, 0},
      {"attn_output", NUM_Q4_K, 0},
      {"ffn_down", NUM_Q4_K, 1},
      {"", NUM_IQ3_S, 0}}},
    {"unsloth UD-IQ1_M",
     {{"token_embd", NUM_IQ3_S, 0},
      {"attn_", NUM_Q4_K, 2},
      {"attn_", NUM_IQ3_XXS, 0},
      {"ffn_down", NUM_IQ2_XXS, 0},
      {"ffn_gate", NUM_IQ1_S, 0},
      {"", NUM_IQ1_M, 0}}},
    {"unsloth UD-IQ2_XXS",
     {{"token_embd", NUM_Q4_K, 0},
      {"attn_v", NUM_Q4_K, 0},
      {"attn_", NUM_IQ3_XXS, 0},
      {"ffn_down", NUM_IQ3_S, 2},
      {"", NUM_IQ2_XXS, 0}}},
    {"unsloth UD-IQ3_XXS",
     {{"token_embd", NUM_Q4_K, 0},
      {"attn_v", NUM_Q5_K, 0},
      {"ffn_down", NUM_IQ4_XS, 2},
      {"ffn_down", NUM_IQ3_S, 0},
      {"", NUM_IQ3_XXS, 0}}},
    {"unsloth UD-Q2_K_XL",
     {{"token_embd", NUM_Q4_K, 0},
      {"attn_", NUM_Q4_K, 2},
      {"attn_v", NUM_Q6_K, 0},
      {"ffn_down", NUM_IQ3_XXS, 0},
      {"ffn_gate", NUM_IQ2_S, 0},
      {"", NUM_Q2_K, 0}}},
    {"mudler APEX-Mini",
     {{"token_embd", NUM_Q6_K, 0},
      {"attn_", NUM_Q3_K, 0},
      {"exps", NUM_IQ2_S, 0},
      {"", NUM_Q4_K, 0}}},
    {"ggml-org MXFP4", {{"exps", NUM_MXFP4, 0}, {"", NUM_Q8_0, 0}}},
    /* of gpt-oss: the publisher's experts */
    {"unsloth Q4_K_M",
     {{"exps", NUM_MXFP4, 0},
      {"token_embd", NUM_Q6_K, 0},
      {"attn_v", NUM_Q6_K, 0},
      {"", NUM_Q4_K, 0}}},
    {"nvidia NVFP4", {{"token_embd", NUM_BF16, 0}, {"attn_v", NUM_Q8_0, 0}, {"", NUM_NVFP4, 0}}},
    {"PrismML Q1_0", {{"", NUM_Q1_0, 0}}},
    {"PrismML Q2_0", {{"", NUM_Q2_0, 0}}},
    {"llama.cpp TQ1_0",
     {{"token_embd", NUM_Q4_K, 0}, {"ffn_up", NUM_TQ2_0, 0}, {"", NUM_TQ1_0, 0}}},
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes };

/* llama.cpp's tensor_type_fallback. */
static num_type fitting(num_type t, uint64_t n_in)
{
    while (n_in % (uint64_t)num_format_of(t)->block_n)
        switch (t) {
        case NUM_Q2_K:
        case NUM_Q3_K:
        case NUM_TQ1_0:
        case NUM_TQ2_0:
        case NUM_Q1_0:
            t = NUM_Q4_0;
            break;
        case NUM_Q4_K:
            t = NUM_Q5_0;
            break;
        case NUM_Q5_K:
            t = NUM_Q5_1;
            break;
        case NUM_Q6_K:
            t = NUM_Q8_0;
            break;
        case NUM_IQ4_NL:
            t = NUM_F16;
            break;
        default:
            t = NUM_IQ4_NL;
        }
    return t;
}

static num_type type_of(const recipe *c, const shape_tensor *t)
{
    if (t->role < ROLE_EIGHT_BITS && t->role != ROLE_EMBD)
        return t->role == ROLE_IDS ? NUM_I32 : NUM_F32;
    for (const rule *r = c->rule;; r++)
        if (strstr(t->name, r->part) && (!r->layers || t->layer < r->layers))
            return fitting(r->type, t->ne[0]);
}

/* The values of a tensor: in its format, and as floats. */
typedef struct values {
    void *coded;
    float *plain;
    size_t coded_bytes, n;
    float factor; /* NAME.scale of NVFP4 */
} values;

static values draw(const model_shape *s, const shape_tensor *t, num_type type, uint64_t seed)
{
    values v = {.n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3], .factor = 1};
    const num_format *f = num_format_of(type);
    uint64_t row;
    CHECK(num_row_bytes(type, t->ne[0], &row));
    v.coded_bytes = row * (v.n / t->ne[0]);
    CHECK((v.coded = mem_alloc(v.coded_bytes)) && (v.plain = mem_alloc(v.n * sizeof *v.plain)));
    if (t->role == ROLE_IDS || t->role == ROLE_ROPE_FACTORS) {
        s->family->compute(s, t, v.coded);
        memcpy(v.plain, v.coded, v.coded_bytes);
        return v;
    }
    if (type == NUM_F32) {
        float sigma = t->n_dims > 1 ? 1 / sqrtf((float)t->ne[0]) : 0.1f;
        for (size_t i = 0; i < v.n; i++)
            v.plain[i] = sigma * (float)rng_normal(&seed) + (t->n_dims > 1 ? 0.0f : 1.0f);
        memcpy(v.coded, v.plain, v.coded_bytes);
        return v;
    }
    synth_blocks *b;
    err e = {0};
    CHECK_OK(synth_blocks_open(&b, type, &e), e);
    v.factor = type == NUM_NVFP4 ? 0.7f : 1;
    synth_blocks_fill(b, seed, 1 / (v.factor * sqrtf((float)t->ne[0])), v.coded, v.n);
    synth_blocks_close(b);
    f->decode(v.coded, v.plain, (int64_t)v.n);
    return v;
}

/* Writes the file twice: in the recipe's formats to path[0], in floats to path[1]. */
static void write_both(const model_shape *s, const recipe *c, const char *const path[2])
{
    err e = {0};
    int32_t n = s->family->list(s, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    CHECK(list);
    s->family->list(s, list, n);
    for (int plain = 0; plain < 2; plain++) {
        gguf_writer *w;
        CHECK_OK(gguf_create(&w, path[plain], &e), e);
        s->family->put(w, s);
        for (int data = 0; data < 2; data++) {
            for (int32_t i = 0; i < n; i++) {
                num_type type = type_of(c, &list[i]);
                char scale[80];
                /* The family's own weight has that name (Gemma 4); then there is one factor. */
                bool factor = type == NUM_NVFP4 && !plain;
                snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(list[i].name) - 7),
                         list[i].name);
                for (int32_t k = 0; factor && k < n; k++)
                    factor = strcmp(list[k].name, scale) != 0;
                if (!data) {
                    gguf_put_tensor(w, list[i].name,
                                    plain && type != NUM_I32 ? NUM_F32 : (uint32_t)type,
                                    list[i].n_dims, list[i].ne);
                    if (factor)
                        gguf_put_tensor(w, scale, NUM_F32, 1, &list[i].ne[2]);
                    continue;
                }
                values v = draw(s, &list[i], type, (uint64_t)i + 1);
                float f = type == NUM_NVFP4 && plain ? v.factor : 1;
                for (int32_t k = 0; k < n && plain; k++) /* as the other file has it */
                    if (!strcmp(list[k].name, scale))
                        f = 1;
                for (size_t k = 0; f != 1 && k < v.n; k++)
                    v.plain[k] *= f;
                CHECK_OK(gguf_write_data(w, plain ? (void *)v.plain : v.coded,
                                         plain ? v.n * sizeof(float) : v.coded_bytes, &e),
                         e);
                for (uint64_t k = 0; factor && k < list[i].ne[2]; k++)
                    CHECK_OK(gguf_write_data(w, &v.factor, sizeof v.factor, &e), e);
                mem_free(v.coded);
                mem_free(v.plain);
            }
            if (!data)
                CHECK_OK(gguf_write_header(w, &e), e);
        }
        CHECK_OK(gguf_commit(w, &e), e);
    }
}

static float *logits_of(const char *path, bool exact, int32_t n_vocab)
{
    err e = {0};
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    int32_t id[N_TOKENS];
    float *x = mem_calloc((size_t)n_vocab, sizeof *x);
    for (int32_t i = 0; i < N_TOKENS; i++)
        id[i] = (7 * i + 3) % n_vocab;
    CHECK_OK(carat_model_open(
                 path, &(carat_model_options){.device = "cpu", .n_threads = 1, .exact_f32 = exact},
                 &m, &e),
             e);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = 64, .chunk = 9}, &s, &e), e);
    CHECK_OK(carat_eval(s, id, N_TOKENS, x, NULL, &e), e);
    return x;
}

static double difference(const float *a, const float *b, int32_t n)
{
    double se = 0, ss = 0;
    for (int32_t i = 0; i < n; i++) {
        CHECK(isfinite(a[i]) && isfinite(b[i]));
        se += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        ss += (double)b[i] * b[i];
    }
    return se / ss;
}

static void check_recipe(const model_shape *s, const recipe *c)
{
    const char *path[2] = {test_temp("coded.gguf"), NULL};
    char plain[512];
    snprintf(plain, sizeof plain, "%s.f32", path[0]);
    path[1] = plain;
    write_both(s, c, path);
    AUTO_MEM float *want = logits_of(path[1], true, s->n_vocab),
                   *same = logits_of(path[0], true, s->n_vocab),
                   *got = logits_of(path[0], false, s->n_vocab);
    double exact = difference(same, want, s->n_vocab), rounded = difference(got, want, s->n_vocab);
    printf("%-12s %-20s %.2g exact, %.2g with rounded activations\n", s->name, c->name, exact,
           rounded);
    /* the factor of NVFP4 is rounded once per sum here, and once per value there */
    CHECK_MSG(exact < (strstr(c->name, "NVFP4") ? 1e-6 : 1e-12), "%s, %s: %g", s->name, c->name,
              exact);
    CHECK_MSG(rounded < 0.05, "%s, %s: %g", s->name, c->name, rounded);
}

/* Gemma 4 with experts whose rows of 704 have no blocks of 256, as those of the 26B. */
static void check_gemma4(int from, int to)
{
    gemma4_shape s;
    CHECK(gemma4_shape_named("tiny-wide", &s));
    s.n_layer = s.n_layer < 3 ? s.n_layer : 3;
    s.n_ff_exp = 704;
    s.n_expert = s.n_used = 4; /* all: rounded activations must not change which */
    for (int i = from; i < to; i++)
        check_recipe(&s.common, &recipes[i]);
}

static void check_qwen3(const char *name, int from, int to)
{
    AUTO_MEM model_shape *m;
    err e = {0};
    CHECK_OK(shape_named(name, &m, &e), e);
    qwen3_shape *s = (qwen3_shape *)m;
    m->family->cut(m, 2);
    m->n_embd = 256;
    s->n_ff_exp = s->n_ff_exp ? 256 : 0;
    s->n_used = s->n_expert;
    s->head_dim = 64;
    s->n_rot = s->n_rot ? 64 : 0;
    for (int il = 0; il < m->n_layer; il++)
        s->n_ff[il] = 512;
    for (int i = from; i < to; i++)
        check_recipe(m, &recipes[i]);
}

/* Rows that no block of 256 divides, as those of 2880; experts as they are published. */
static void check_gpt_oss(const char *by)
{
    AUTO_MEM model_shape *m;
    err e = {0};
    CHECK_OK(shape_named("tiny-gpt-oss", &m, &e), e);
    gpt_oss_shape *s = (gpt_oss_shape *)m;
    m->family->cut(m, 2);
    m->n_embd = 160;
    s->n_ff = 96;
    s->n_used = s->n_expert;
    s->head_dim = 64;
    for (int i = 0; i < N_RECIPES; i++)
        if (!strcmp(recipes[i].name, by))
            check_recipe(m, &recipes[i]);
}

PLAIN_TEST(recipes_of_gpt_oss)
{
    check_gpt_oss("ggml-org MXFP4");
    check_gpt_oss("unsloth Q4_K_M");
}

PLAIN_TEST(recipes_of_gemma4)
{
    check_gemma4(0, N_RECIPES / 2);
}

PLAIN_TEST(more_recipes_of_gemma4)
{
    check_gemma4(N_RECIPES / 2, N_RECIPES);
}

PLAIN_TEST(recipes_of_qwen3)
{
    check_qwen3("tiny-qwen3", 0, N_RECIPES);
}

PLAIN_TEST(recipes_of_qwen3_with_experts)
{
    check_qwen3("tiny-qwen3moe", 9, N_RECIPES);
}
