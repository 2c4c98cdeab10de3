/* families_test.c - what files of Qwen3 and Laguna may say differently, and what is refused: other
 * spellings of keys, fused projections; contradictions, and tensors that change the arithmetic.
 */
#include "tests/fidelity_model.h"
#include "base/mem.h"
#include "carat.h"
#include "carat_bench.h"
#include "tests/test.h"

/* The last row's logits after 40 tokens. */
static float *logits_of(const fidelity *f, const char *path)
{
    err e = {0};
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    const carat_session_options opt = {.n_ctx = 64, .chunk = 9, .kv_k = "f32"};
    float *x = mem_calloc((size_t)f->n_vocab, sizeof *x);
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    CHECK_OK(carat_session_open(m, &opt, &s, &e), e);
    CHECK_OK(carat_eval(s, f->tokens, 40, x, NULL, &e), e);
    return x;
}

static void check_same(const char *name, const fidelity_file *v)
{
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, name);
    AUTO_MEM float *want = logits_of(&f, fidelity_write(&f, NULL)),
                   *got = logits_of(&f, fidelity_write(&f, v));
    CHECK_MSG(!memcmp(want, got, (size_t)f.n_vocab * sizeof *got), "%s: other logits", name);
}

TEST(laguna_other_spellings_of_keys)
{
    static const char *const other[][2] = {
        {".rope.dimension_count_swa", ".rope.swa.dimension_count"},
        {".rope.freq_base_swa", ".rope.swa.freq_base"},
        {".rope.scaling.yarn_beta_fast", ".rope.scaling.beta_fast"},
        {".rope.scaling.yarn_beta_slow", ".rope.scaling.beta_slow"},
        {".attention.sliding_window_pattern", ".attention.layer_types"},
        {".leading_dense_block_count", ".dense_layers"},
        {".attn_gate.weight", ".attn_g.weight"},
        {NULL, NULL}};
    check_same("laguna", &(fidelity_file){.renamed = other});
    check_same("laguna-element", &(fidelity_file){.renamed = other});
}

TEST(laguna_pattern_as_a_period_and_by_default)
{
    check_same("laguna", &(fidelity_file){.set_key = "laguna.attention.sliding_window_pattern",
                                          .set_value = 4});
    check_same("laguna", &(fidelity_file){.drop_key = "laguna.attention.sliding_window_pattern"});
    check_same("laguna", &(fidelity_file){.drop_key = "laguna.expert_gating_func"});
}

TEST(fused_projections)
{
    check_same("qwen3", &(fidelity_file){.fused_qkv = true});
    check_same("qwen3-yarn", &(fidelity_file){.fused_qkv = true});
    check_same("gemma3", &(fidelity_file){.fused_qkv = true});
    check_same("qwen3moe", &(fidelity_file){.fused_qkv = true});
}

/* As published files have them; the fixture has gate and up in one tensor. */
TEST(experts_with_gate_and_up_in_two_tensors)
{
    check_same("qwen3moe", &(fidelity_file){.split_experts = true});
    check_same("mixtral", &(fidelity_file){.split_experts = true});
}

/* Keys and values that no norm bounds. Beyond f16 a pass fails and says so; a larger format
 * computes them. In blocks they are within the range of a block's scale. */
TEST(keys_and_values_beyond_f16_fail_with_a_sentence)
{
    static const struct {
        const char *model, *tensor;
        float scale;
    } cases[] = {
        {"llama", "blk.0.attn_k.weight", 3e5f},   {"llama", "blk.2.attn_v.weight", 3e6f},
        {"gpt-oss", "blk.0.attn_k.weight", 1e6f}, {"gpt-oss", "blk.1.attn_k.bias", 1e6f},
        {"gpt-oss", "blk.1.attn_v.bias", 1e7f},   {"qwen3", "blk.1.attn_k_norm.weight", 1e5f}};
    static const char *const types[] = {"f16", "f32", "bf16", "q8_0"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, cases[i].model);
        const char *path = fidelity_write(
            &f, &(fidelity_file){.scaled_tensor = cases[i].tensor, .scale = cases[i].scale});
        for (int k = 0; k < 4; k++) {
            err e = {0};
            AUTO_MODEL *m = NULL;
            AUTO_SESSION *s = NULL;
            const carat_session_options opt = {
                .n_ctx = 64, .chunk = 9, .kv_k = types[k], .kv_v = types[k]};
            AUTO_MEM float *x = mem_calloc((size_t)f.n_vocab, sizeof *x);
            CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
            CHECK_OK(carat_session_open(m, &opt, &s, &e), e);
            status st = carat_eval(s, f.tokens, 40, x, NULL, &e);
            CHECK_MSG(!st == (k > 0), "%s, %s in %s: %s", cases[i].model, cases[i].tensor, types[k],
                      st ? e.text : "no error");
            CHECK_MSG(!st || strstr(e.text, "--kv-type bf16"), "%s", e.text);
        }
    }
}

enum { ANSWER = 24 };
typedef struct answer {
    int32_t id[ANSWER], n;
    carat_timings t;
} answer;

static bool keep_token(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN && a->n < ANSWER)
        a->id[a->n++] = ev->id;
    return true;
}

static answer answer_of(carat_model *m, carat_session *s, const int32_t *ids, int64_t n,
                        carat_script *script)
{
    carat_generate_options o = {.max_tokens = ANSWER};
    answer a = {.n = 0};
    err e = {0};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = 0;
    o.sampling.ignore_eog = true;
    o.script = script;
    o.speculation = (carat_speculation){.n_max = 4, .tree_max = -1, .fixed = true};
    CHECK_OK(carat_generate(s, ids, n, &o, keep_token, &a, &a.t, &e), e);
    return a;
}

/* Drafts of which a part is accepted; a second prompt begins like the first, and differs past the
 * window or before it. Prompts and answers pass a window and the end of its ring several times;
 * some last chunk is shorter than the window. Answers are those of a fresh session without drafts,
 * which computes the prompt in chunks of another size. */
static void check_drafts_and_prefixes(const char *model, const char *format)
{
    const char *const types[] = {"f16", format};
    static const int32_t depth[] = {4, 0, 2, 3};
    AUTO(fidelity_close) fidelity f;
    err e = {0};
    fidelity_open(&f, model);
    const char *path = fidelity_write(&f, NULL);
    carat_model *m[2];
    int64_t n_rounds = 0;
    int32_t ids[120];
    for (int i = 0; i < 120; i++)
        ids[i] = f.tokens[i % 20]; /* said six times */
    for (int i = 0; i < 2; i++)
        CHECK_OK(
            carat_model_open(path, &(carat_model_options){.draft = i ? "lookup" : NULL}, &m[i], &e),
            e);
    for (int k = 0; k < 2; k++) {
        carat_session_options so = {.n_ctx = 160, .chunk = 12, .kv_k = types[k]};
        AUTO_SESSION *kept;
        CHECK_OK(carat_session_open(m[1], &so, &kept, &e), e);
        so.chunk = 16;
        for (int64_t turn = 0; turn < 3; turn++) {
            int64_t n = 90 + 15 * turn;
            AUTO_SESSION *fresh;
            ids[turn == 1 ? 88 : 60] = 100; /* after what the last prompt began with */
            CHECK_OK(carat_session_open(m[0], &so, &fresh, &e), e);
            answer want = answer_of(m[0], fresh, ids, n, NULL);
            carat_script script = {
                .answer = want.id, .n_answer = want.n, .accept = depth, .n_accept = 4};
            answer got = answer_of(m[1], kept, ids, n, &script);
            CHECK_MSG(got.n == ANSWER && !memcmp(got.id, want.id, sizeof got.id),
                      "%s, %s, turn %d: another answer", model, types[k], (int)turn);
            n_rounds += got.t.n_rounds;
        }
    }
    CHECK(n_rounds > 0);
    carat_model_close(m[0]);
    carat_model_close(m[1]);
}

TEST(gpt_oss_with_drafts_and_prefixes_answers_alike)
{
    check_drafts_and_prefixes("gpt-oss-wide", "q8_0");
}
TEST(gemma3_with_drafts_and_prefixes_answers_alike)
{
    check_drafts_and_prefixes("gemma3", "q8_0");
}
TEST(llama_with_drafts_and_prefixes_answers_alike)
{
    check_drafts_and_prefixes("llama", "q8_0");
    check_drafts_and_prefixes("mistral", "bf16"); /* every layer has a window; heads of 16 */
    check_drafts_and_prefixes("ministral3", "q4_0");
}
TEST(qwen3moe_with_drafts_and_prefixes_answers_alike)
{
    check_drafts_and_prefixes("qwen3moe", "q8_0");
}

TEST(families_refuse_what_they_cannot_compute)
{
    static const struct {
        const char *model;
        fidelity_file file;
        const char *word;
    } wrong[] = {
        {"qwen3", {.add_tensor = "blk.0.attn_q.scale"}, "attn_q.scale"},
        {"qwen3", {.add_tensor = "blk.1.attn_k.bias"}, "attn_k.bias"},
        {"qwen3", {.add_tensor = "cls.output.weight"}, "rerankers"},
        {"qwen3", {.drop_key = "qwen3.attention.key_length"}, "key_length is missing"},
        {"qwen3",
         {.set_key = "qwen3.attention.head_count_kv", .set_value = 3},
         "4 heads of 32 with 3 KV heads"},
        {"qwen3", {.set_key = "qwen3.attention.value_length", .set_value = 16}, "must be equal"},
        {"qwen3-yarn",
         {.set_key = "qwen3.rope.scaling.original_context_length", .set_value = 0},
         "original_context_length = 0"},
        {"qwen3moe", {.drop_key = "qwen3moe.expert_count"}, "qwen3moe.expert_count = 0"},
        {"qwen3moe",
         {.set_key = "qwen3moe.expert_used_count", .set_value = 9},
         "expert_used_count = 9, expected 1 to 8"},
        {"qwen3moe", {.drop_tensor = "blk.2.ffn_gate_inp.weight"}, "gate_inp.weight is missing"},
        {"qwen3moe", {.add_tensor = "blk.0.ffn_gate_shexp.weight"}, "ffn_gate_shexp"},
        {"llama", {.add_tensor = "blk.0.attn_q.bias"}, "attn_q.bias"},
        {"llama", {.add_tensor = "blk.0.attn_q_norm.weight"}, "attn_q_norm"},
        {"llama", {.drop_key = "llama.attention.layer_norm_rms_epsilon"}, "epsilon is missing"},
        {"llama", {.set_key = "llama.attention.key_length", .set_value = 16}, "must be equal"},
        {"mistral", {.set_key = "llama.attention.head_count", .set_value = 5}, "heads of 19"},
        {"mixtral",
         {.add_tensor = "blk.0.ffn_gate.0.weight"},
         "every expert has tensors of its own"},
        {"mixtral",
         {.set_key = "llama.expert_used_count", .set_value = 9},
         "expert_used_count = 9, expected 1 to 8"},
        {"mixtral", {.drop_key = "llama.expert_count"}, "ffn_gate.weight is missing"},
        {"mixtral", {.drop_tensor = "blk.2.ffn_gate_inp.weight"}, "gate_inp.weight is missing"},
        {"ministral3",
         {.set_key = "mistral3.attention.temperature_scale", .set_value = 101},
         "temperature_scale = 101, expected 0 to 100"},
        {"ministral3",
         {.set_key = "mistral3.rope.scaling.yarn_log_multiplier", .set_value = 1001},
         "yarn_log_multiplier = 1001"},
        {"gpt-oss", {.drop_tensor = "blk.1.attn_sinks.weight"}, "attn_sinks.weight is missing"},
        {"gpt-oss", {.drop_tensor = "blk.0.attn_q.bias"}, "attn_q.bias is missing"},
        {"gpt-oss", {.drop_tensor = "blk.2.ffn_up_exps.bias"}, "ffn_up_exps.bias is missing"},
        {"gpt-oss", {.drop_tensor = "blk.3.ffn_gate_inp.bias"}, "ffn_gate_inp.bias is missing"},
        {"gpt-oss", {.drop_key = "gpt-oss.attention.sliding_window"}, "window is missing"},
        {"gpt-oss", {.drop_key = "gpt-oss.attention.key_length"}, "key_length is missing"},
        {"gpt-oss",
         {.set_key = "gpt-oss.expert_feed_forward_length", .set_value = 64},
         "feed_forward_length = 32 and gpt-oss.expert_feed_forward_length = 64: they must be "
         "equal"},
        {"gpt-oss", {.set_key = "gpt-oss.attention.head_count", .set_value = 7}, "7 heads of 32"},
        {"gpt-oss", {.add_tensor = "blk.0.attn_q_norm.weight"}, "attn_q_norm"},
        {"gpt-oss", {.add_tensor = "blk.0.ffn_gate_up_exps.weight"}, "ffn_gate_up_exps"},
        {"laguna", {.add_tensor = "blk.0.ffn_down.bias"}, "ffn_down.bias"},
        {"laguna",
         {.set_key = "laguna.attention.sliding_window_pattern", .set_value = 2},
         "layers 0 and 2 both have full attention, and 6 and 8 heads"},
        {"laguna", {.set_key = "laguna.expert_gating_func", .set_value = 1}, "gating_func = 1"},
        {"laguna", {.set_key = "laguna.expert_weights_norm", .set_value = 0}, "weights_norm = 0"},
        {"laguna", {.drop_key = "laguna.expert_weights_scale"}, "scale is missing"},
        {"laguna", {.set_key = "laguna.rope.dimension_count", .set_value = 15}, "even numbers"},
        {"laguna", {.drop_tensor = "blk.1.exp_probs_b.bias"}, "exp_probs_b.bias is missing"},
        {"laguna",
         {.set_key = "laguna.leading_dense_block_count", .set_value = 2},
         "blk.1.ffn_gate.weight is missing"},
        {"laguna", {.set_key = "laguna.attention.key_length", .set_value = 16}, "key_length = 16"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        AUTO(fidelity_close) fidelity f;
        carat_model *m = NULL;
        err e = {0};
        fidelity_open(&f, wrong[i].model);
        CHECK(carat_model_open(fidelity_write(&f, &wrong[i].file), NULL, &m, &e) != OK && !m);
        CHECK_MSG(strstr(e.text, wrong[i].word), "%s, not: %s", wrong[i].word, e.text);
    }
}

static status open_laguna(void *path, err *e)
{
    AUTO_MODEL *m = NULL;
    status st = carat_model_open(path, NULL, &m, e);
    return st;
}

TEST(laguna_opens_or_fails_without_memory)
{
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, "laguna");
    test_every_allocation(open_laguna, (void *)fidelity_write(&f, NULL));
}
