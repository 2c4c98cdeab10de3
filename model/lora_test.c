/* lora_test.c - adapters against the models they are merged into, and files that are refused. */
#include "tests/lora_rig.h"
#include "base/mem.h"
#include "model/lora.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include "carat.h"

#include <math.h>
#include <string.h>

enum { CTX = 160, MOST = 2 };

/* What a session computes over the whole prompt, at a chunk. mem_free. */
static float *logits_of(const fidelity *f, const char *path, carat_model_options o, int32_t chunk)
{
    AUTO_MODEL *m;
    AUTO_SESSION *s;
    err e = {0};
    size_t n = (size_t)f->n_tokens * (size_t)f->n_vocab;
    float *x = mem_calloc(n, sizeof *x);
    carat_session_options so = {.n_ctx = CTX, .chunk = chunk, .n_outputs = chunk, .kv_k = "f32"};
    CHECK(x);
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    CHECK_OK(carat_append(s, f->tokens, f->n_tokens, true, x, &e), e);
    return x;
}

static double farthest(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        most = d <= most ? most : d;
    }
    return most;
}

/* Experts in f32, whose choice depends on more than the last bits. */
static void check_merged(const char *name, const lora_recipe *r, int n_recipes, const float *scale,
                         const char *isa)
{
    static const char *const adapters[MOST] = {"a.gguf", "b.gguf"};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, name);
    char *base = mem_strdup(fidelity_write(&f, NULL)), *path[MOST] = {NULL};
    AUTO_MEM char *merged = mem_strdup(test_temp("merged.gguf"));
    carat_lora loras[MOST];
    for (int i = 0; i < n_recipes; i++) {
        path[i] = mem_strdup(test_temp(adapters[i]));
        lora_rig_adapter(base, path[i], &r[i]);
        loras[i] = (carat_lora){path[i], scale[i]};
    }
    lora_rig_merge(base, merged, r, scale, n_recipes);
    carat_model_options o = {
        .n_threads = 2, .exact_f32 = true, .isa = isa, .reference = isa && !*isa};
    if (o.reference)
        o.isa = NULL;
    float *want = logits_of(&f, merged, o, f.n_tokens);
    float *plain = logits_of(&f, base, o, f.n_tokens);
    o.loras = loras;
    o.n_loras = n_recipes;
    size_t n = (size_t)f.n_tokens * (size_t)f.n_vocab;
    float *got = logits_of(&f, base, o, f.n_tokens), *parts = logits_of(&f, base, o, 7);
    double far = farthest(want, got, n), moved = farthest(plain, got, n);
    printf("  %s, %s: %.1e from merged, %.1e from the model without\n", name, isa ? isa : "best",
           far, moved);
    CHECK_MSG(far <= 1e-3 && moved > 0.1, "%s: %.2e from merged, %.2e from the model without", name,
              far, moved);
    CHECK_MSG(!memcmp(got, parts, n * sizeof *got), "%s: other bits in chunks of 7", name);
    mem_free(want);
    mem_free(plain);
    mem_free(got);
    mem_free(parts);
    for (int i = 0; i < n_recipes; i++)
        mem_free(path[i]);
    mem_free(base);
}

/* One of each forward pass, and of each kind of layer. */
static bool is_brief(const char *name)
{
    static const char *const few[] = {"all", "moe", "qwen3moe", "laguna", "qwen35moe", "gpt-oss"};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        if (!strcmp(name, few[i]))
            return true;
    return false;
}

PLAIN_TEST(lora_equals_the_merged_model)
{
    static const char *const isas[] = {NULL, "", "portable"};
    const lora_recipe r = {.rank = 4, .alpha = 8, .seed = 31};
    for (int i = 0; fidelity_names[i]; i++)
        if (!test_brief() || is_brief(fidelity_names[i]))
            check_merged(fidelity_names[i], &r, 1, &(float){1}, test_brief() ? NULL : isas[i % 3]);
}

TEST(lora_adds_several_with_a_scale_each)
{
    const lora_recipe r[] = {{.rank = 3, .alpha = 6, .seed = 31, .only = "attn", .type = NUM_F16},
                             {.rank = 16, .seed = 77, .type = NUM_BF16}};
    check_merged("qwen3", r, 2, (const float[]){-0.5f, 0.75f}, "");
    check_merged("qwen3-yarn", r, 2, (const float[]){1, 0.25f}, "portable");
}

TEST(lora_of_rank_one_and_of_blocks)
{
    const lora_recipe one = {.rank = 1, .alpha = 1, .seed = 5},
                      blocks = {.rank = 32, .alpha = 16, .seed = 9, .type = NUM_Q8_0};
    check_merged("llama", &one, 1, &(float){1}, NULL);
    check_merged("llama", &blocks, 1, &(float){1}, "portable");
}

/* The sentence that opening ends with. */
static void check_refused(const char *base, const lora_recipe *r, carat_status want,
                          const char *says)
{
    carat_model *m = NULL;
    err e = {0};
    lora_rig_adapter(base, test_temp("bad.gguf"), r);
    const carat_lora l = {test_temp("bad.gguf"), 1};
    carat_status st =
        carat_model_open(base, &(carat_model_options){.loras = &l, .n_loras = 1}, &m, &e);
    CHECK_MSG(st == want && !m && strstr(e.text, says), "status %d, %s", (int)st, e.text);
}

/* PEFT has matrices for layers that take the keys of others: the adapter is the one without them.
 */
TEST(lora_of_keys_that_a_model_leaves_out_has_no_effect)
{
    static const char *const only[] = {"attn_k.weight", "attn_v.weight", "blk.9.attn_k.weight"};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, "e2b");
    size_t n = (size_t)f.n_tokens * (size_t)f.n_vocab;
    for (int i = 0; i < 3; i++) {
        float *x[3];
        lora_recipe r = {.rank = 4, .alpha = 8, .seed = 3, .only = only[i]};
        AUTO_MEM char *base = mem_strdup(fidelity_write(&f, &(fidelity_file){.unused_kv = true}));
        lora_rig_adapter(base, test_temp("all.gguf"), &r);
        lora_rig_merge(base, test_temp("merged.gguf"), &r, &(float){1}, 1);
        const carat_lora l = {test_temp("all.gguf"), 1};
        carat_model_options o = {.n_threads = 2, .exact_f32 = true};
        x[0] = logits_of(&f, base, o, f.n_tokens);
        x[1] = logits_of(&f, test_temp("merged.gguf"), o, f.n_tokens);
        o.loras = &l;
        o.n_loras = 1;
        x[2] = logits_of(&f, base, o, f.n_tokens);
        CHECK(farthest(x[1], x[2], n) <= 1e-3);
        CHECK((farthest(x[0], x[2], n) > 0.01) == (i < 2));
        lora_recipe wide = r;
        wide.wide = "blk.9.attn_k.weight.lora_a";
        if (i == 2)
            check_refused(base, &wide, E_FORMAT, "of another model?");
        for (int k = 0; k < 3; k++)
            mem_free(x[k]);
    }
}

TEST(lora_of_another_kind_is_refused)
{
#define GOOD .rank = 4, .alpha = 8, .seed = 3
    static const struct {
        lora_recipe r;
        carat_status st;
        const char *says;
    } bad[] = {
        {{GOOD, .arch = "llama"}, E_ARG, "adapts models of architecture llama"},
        {{GOOD, .general = "model"}, E_FORMAT, "general.type is not 'adapter'"},
        {{GOOD, .kind = "control_vector"}, E_UNSUPPORTED, "adapter.type is not 'lora'"},
        {{GOOD, .alora = true}, E_UNSUPPORTED, "aLoRA"},
        {{GOOD, .text_alpha = true}, E_FORMAT, "adapter.lora.alpha is no number"},
        {{.rank = 4, .alpha = NAN, .seed = 3}, E_FORMAT, "adapter.lora.alpha is nan"},
        {{GOOD, .drop = "blk.0.attn_q.weight.lora_b"},
         E_FORMAT,
         "blk.0.attn_q.weight.lora_b is missing beside"},
        {{GOOD, .drop = "blk.0.attn_q.weight.lora_a"},
         E_FORMAT,
         "blk.0.attn_q.weight.lora_a is missing beside"},
        {{GOOD, .nan = "blk.1.ffn_up.weight.lora_b"},
         E_FORMAT,
         "tensor blk.1.ffn_up.weight.lora_b: element 383 is nan"},
        {{GOOD, .wide = "blk.1.ffn_up.weight.lora_a"}, E_FORMAT, "of another model?"},
        {{GOOD, .wide = "blk.1.ffn_up.weight.lora_b"}, E_FORMAT, "the rank is not the same"},
        {{.rank = LORA_RANK_MAX + 1, .alpha = 1, .only = "blk.0.attn_q"},
         E_LIMIT,
         "rank 1025, expected 1 to 1024"},
        {{GOOD, .norm = "blk.0.attn_norm.weight"}, E_UNSUPPORTED, "replaces a norm"},
        {{GOOD, .norm = "blk.0.attn_q.weight"}, E_FORMAT, "no half of a pair"},
        {{GOOD, .only = "no such"}, E_FORMAT, "an adapter without tensors"},
        {{.rank = 32, .alpha = 8, .type = NUM_Q4_0},
         E_UNSUPPORTED,
         "is in q4_0, expected f32, f16, bf16 or q8_0"},
        {{GOOD, .only = "blk.0.attn_q", .rename = "blk.0.attn_q.weight.lora_a",
          .as = "blk.9.attn_q.weight.lora_a"},
         E_FORMAT,
         "blk.9.attn_q.weight.lora_b is missing"},
    };
#undef GOOD
    fidelity f;
    fidelity_open(&f, "qwen3");
    AUTO_MEM char *base = mem_strdup(fidelity_write(&f, NULL));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_refused(base, &bad[i].r, bad[i].st, bad[i].says);
    fidelity_close(&f);
    /* A pair for a tensor that the model lacks; the same names in a model of other widths. */
    fidelity_open(&f, "qwen3-yarn");
    AUTO_MEM char *other = mem_strdup(fidelity_write(&f, NULL));
    const lora_recipe r = {.rank = 4, .alpha = 8, .seed = 3};
    carat_model *m = NULL;
    err e = {0};
    lora_rig_adapter(other, test_temp("other.gguf"), &r);
    const carat_lora l = {test_temp("other.gguf"), 1};
    CHECK_STATUS(carat_model_open(base, &(carat_model_options){.loras = &l, .n_loras = 1}, &m, &e),
                 E_FORMAT);
    printf("  %s\n", e.text);
    CHECK(strstr(e.text, "of another model?") || strstr(e.text, "no such weight"));
    fidelity_close(&f);
}
