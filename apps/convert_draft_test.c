/* convert_draft_test.c - checkpoints of drafters, made here, converted and compared; every rule
 * that ties config.json to the tensors, broken once.
 */
#include "tests/draft_checkpoint.h"
#include "tests/test.h"
#include "apps/commands.h"
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha.h"
#include "model/dflash_shapes.h"

#include <unistd.h>

static const char *make_dir(const char *name, const draft_checkpoint *m, model_shape **s)
{
    const char *dir = test_temp(name);
    draft_checkpoint_write(dir, m, s);
    return dir;
}

static status convert(const char *dir, const char *out, const char *type, const char *dialect,
                      const char *target, err *e)
{
    uint64_t n_bytes;
    return convert_model(&(convert_request){.dir = dir,
                                            .out = out,
                                            .mix = type ? weight_mix_named(type) : NULL,
                                            .name = "a drafter",
                                            .n_threads = 2,
                                            .dialect = dialect,
                                            .target = target},
                         &n_bytes, e);
}

/* Every tensor of the file against the values that went in. */
static void compare(const gguf *g, const model_shape *s)
{
    int32_t n = s->family->list(s, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    AUTO_MEM model_shape *plain;
    err e = {0};
    int32_t n_plain;
    AUTO_MEM shape_tensor *names;
    /* Values are named after the tensors of llama.cpp's dialect. */
    CHECK_OK(shape_named(s->name, &plain, &e), e);
    n_plain = plain->family->list(plain, NULL, 0);
    names = mem_calloc((size_t)n_plain, sizeof *names);
    plain->family->list(plain, names, n_plain);
    s->family->list(s, list, n);
    CHECK_EQ(g->tensors.n, n);
    for (int32_t i = 0; i < n; i++) {
        const shape_tensor *want = &list[i];
        const tensor *t = tensor_find(&g->tensors, want->name);
        CHECK_MSG(t && !memcmp(t->ne, want->ne, sizeof t->ne), "%s", want->name);
        double noise = 0, signal = 0;
        AUTO_MEM float *x = mem_calloc((size_t)t->n_elements, sizeof *x);
        const char *name = want->name;
        uint64_t first = 0;
        int32_t at = 0;
        if (strncmp(want->hf_name, "aux_hidden_norms.", 17) == 0) {
            name = "enc.aux_norm.weight";
            first = (uint64_t)(want->hf_name[17] - '0') * t->ne[0];
        } else {
            while (strcmp(names[at].hf_name, want->hf_name) != 0)
                at++;
            name = names[at].name;
        }
        if (t->type == NUM_I32) {
            for (uint64_t k = 0; k < t->n_elements; k++) {
                int32_t id;
                memcpy(&id, t->bytes + 4 * k, 4);
                CHECK_EQ(id, t->n_elements - 1 - k);
            }
        } else {
            num_format_of(t->type)->decode(t->bytes, x, (int64_t)t->n_elements);
            for (uint64_t k = 0; k < t->n_elements; k++) {
                double v = want->role == ROLE_ROPE_FACTORS ? (k < t->n_elements / 4 ? 1.0f : 1e30f)
                                                           : draft_value(name, first + k);
                noise += ((double)x[k] - v) * ((double)x[k] - v);
                signal += v * v;
            }
            CHECK_MSG(noise <= (t->type == NUM_F32 ? 0 : 1e-4) * signal, "%s as %s: %g", t->name,
                      num_name(t->type), sqrt(noise / signal));
        }
    }
}

TEST(convert_draft_keeps_every_value)
{
    static const struct {
        draft_checkpoint m;
        const char *dialect;
    } one[] = {
        {{.size = "dflash-tiny"}, NULL},
        {{.size = "dflash-tiny", .bf16 = true, .copies = true}, "lucebox"},
        {{.size = "dflash-tiny", .shifted = true}, "ik"},
        {{.size = "dflash-tiny", .speculators = true}, NULL},
        {{.size = "dflash-tiny-laguna", .fused = true, .bf16 = true}, NULL},
        {{.size = "dflash-tiny-laguna"}, "lucebox"},
        {{.size = "dflash-tiny-laguna", .fused = true, .shifted = true}, "ik"},
        {{.size = "dflash-tiny-dspark"}, NULL},
        {{.size = "dflash-tiny-dspark", .copies = true}, "lucebox"},
        {{.size = "mtp-tiny"}, NULL},
        {{.size = "mtp-tiny",
          .inner = "{\"global_head_dim\":null,\"num_global_key_value_heads\":null,"
                   "\"per_layer_config\":{\"3\":{\"head_dim\":64,\"num_key_value_heads\":1}}}"},
         NULL},
        {{.size = "mtp-tiny-ordered", .bf16 = true}, NULL},
        {{.size = "mtp-tiny-ordered", .ids = "i32"}, "old"},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        char name[32], out[32];
        AUTO_MEM model_shape *s;
        AUTO(gguf_close) gguf g;
        err e = {0};
        int64_t v;
        gguf_string text;
        snprintf(name, sizeof name, "draft%zu", i);
        snprintf(out, sizeof out, "draft%zu.gguf", i);
        const char *dir = make_dir(name, &one[i].m, &s), *path = test_temp(out);
        CHECK_OK(convert(dir, path, NULL, one[i].dialect, NULL, &e), e);
        CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
        if (one[i].dialect)
            CHECK(s->family->dialect(s, one[i].dialect));
        compare(&g, s);
        CHECK(gguf_get_string(&g, "carat.draft.source_sha256", &text) && text.n == 64);
        CHECK(gguf_get_string(&g, "carat.draft.family", &text));
        if (s->family == &dflash_shapes) {
            const dflash_shape *d = (const dflash_shape *)s;
            const gguf_value *causal = gguf_find(&g, "carat.draft.causal");
            CHECK(gguf_get_i64(&g, "carat.draft.anchor_first", &v) && v == d->anchor_first);
            CHECK(gguf_get_i64(&g, "carat.draft.target_layers", &v) && v == d->n_target_layer);
            CHECK_EQ(causal->count, d->n_layer);
            for (int32_t il = 0; il < d->n_layer; il++)
                CHECK(gguf_item_i64(causal, (uint64_t)il, &v) && v == dflash_layer_causal(d, il));
        }
        if (!one[i].dialect && s->family == &dflash_shapes) {
            const dflash_shape *d = (const dflash_shape *)s;
            const gguf_value *ids = gguf_find(&g, "dflash.target_layers");
            CHECK_EQ(ids->count, d->n_features);
            for (int32_t k = 0; k < d->n_features; k++)
                CHECK(gguf_item_i64(ids, (uint64_t)k, &v) && v == d->feature[k] + 1);
            CHECK(gguf_get_i64(&g, "tokenizer.ggml.mask_token_id", &v) && v == d->mask_id);
            CHECK(gguf_get_i64(&g, "dflash.sample_from_anchor", &v) && v == d->anchor_first);
        }
    }
}

/* Every rule of the table, broken once. */
TEST(convert_draft_refuses_contradictions)
{
#define DF .size = "dflash-tiny"
#define LA .size = "dflash-tiny-laguna"
#define DS .size = "dflash-tiny-dspark"
#define MT .size = "mtp-tiny-ordered"
    static const struct {
        draft_checkpoint m;
        const char *part;
    } bad[] = {
        /* shapes */
        {{DF, .wrong = "hidden_norm.weight"}, "hidden_norm.weight is {97}"},
        {{DF, .wrong = "fc.weight"}, "tensor fc.weight is {288, 97}"},
        {{DF, .inner = "{\"target_layer_ids\":[1,4]}"}, "tensor fc.weight is {288, 96}"},
        {{DF, .patch = "{\"hidden_size\":64}"}, "the configuration makes it"},
        {{DF, .patch = "{\"num_hidden_layers\":2,\"layer_types\":null}"},
         "num_hidden_layers is 2, and the tensors have layers 0 to 2"},
        {{DF, .patch = "{\"num_attention_heads\":2}"}, "self_attn.q_proj.weight is {96, 128}"},
        {{DF, .patch = "{\"num_key_value_heads\":4}"}, "self_attn.k_proj.weight is {96, 64}"},
        {{DF, .patch = "{\"head_dim\":16}"}, "self_attn.q_proj.weight"},
        {{DF, .wrong = "layers.1.self_attn.q_norm.weight"}, "q_norm.weight is {33}"},
        {{DF, .patch = "{\"intermediate_size\":128}"}, "mlp.gate_proj.weight is {96, 160}"},
        {{DF, .skip = "layers.2.mlp.up_proj.weight"}, "layers.2.mlp.up_proj.weight is missing"},
        {{DF, .skip = "norm.weight"}, "norm.weight is missing"},
        {{DF, .add = "layers.0.extra_norm.weight"},
         "1 tensor that this family does not have: layers.0.extra_norm.weight"},
        {{DF, .add = "layers.7.mlp.up_proj.weight"}, "the tensors have layers 0 to 7"},
        {{LA, .fused = true, .add = "layers.0.self_attn.k_proj.weight"}, "one of them is expected"},
        {{LA, .skip = "aux_hidden_norms.1.weight"}, "aux_hidden_norms.1.weight is missing"},
        {{LA, .skip = "layers.0.self_attn.g_proj.weight"}, "g_proj.weight is missing"},
        {{LA, .patch = "{\"architectures\":[\"DFlashDraftModel\"],\"model_type\":\"qwen3\"}"},
         "there are aux_hidden_norms, and the configuration is not Laguna's"},
        {{DS, .wrong = "markov_head.markov_w2.weight"}, "markov_w2.weight is {32, 321}"},
        {{DS, .patch = "{\"markov_rank\":16}"}, "markov_w1.weight is {32, 320}"},
        {{DS, .patch = "{\"markov_rank\":0}"}, "tensors that this family does not have: markov"},
        {{DF, .copies = true, .wrong = "lm_head.weight"}, "lm_head.weight is no copy"},
        /* keys that must be there */
        {{DF, .patch = "{\"head_dim\":null}"}, "head_dim is missing"},
        {{DF, .patch = "{\"block_size\":null}"}, "block_size is missing"},
        {{DF, .inner = "{\"mask_token_id\":null}"}, "mask_token_id is missing"},
        {{DF, .inner = "{\"target_layer_ids\":null}"}, "target_layer_ids is missing"},
        {{DF, .patch = "{\"num_target_layers\":null}"}, "num_target_layers is missing"},
        {{DF, .patch = "{\"rope_theta\":null}"}, "rope_theta is missing"},
        {{DF, .patch = "{\"sliding_window\":null}"}, "sliding_window is missing"},
        {{DF, .patch = "{\"vocab_size\":null}"}, "vocab_size is missing"},
        {{DF, .patch = "{\"layer_types\":null,\"use_sliding_window\":true}"},
         "layer_types is missing"},
        /* values */
        {{DF, .inner = "{\"target_layer_ids\":[]}"}, "no list of 1 to 16 layers"},
        {{DF, .inner = "{\"target_layer_ids\":[4,1,6]}"}, "captured layer 1 is 1"},
        {{DF, .inner = "{\"target_layer_ids\":[1,4,9]}"}, "captured layer 2 is 9"},
        {{DF, .inner = "{\"target_layer_ids\":[1,4,\"6\"]}"}, "entry 2 of target_layer_ids"},
        {{DF, .patch = "{\"block_size\":65}"}, "block_size is 65, expected 2 to 64"},
        {{DF, .inner = "{\"mask_token_id\":320}"}, "mask_token_id is 320, expected 0 to 319"},
        {{DF, .patch = "{\"layer_types\":[\"full_attention\"]}"},
         "layer_types has 1 entries for 3 layers"},
        {{DF, .patch = "{\"layer_types\":[\"full_attention\",\"chunked\",\"x\"]}"},
         "no list of sliding_attention and full_attention"},
        {{DF, .patch = "{\"sliding_windows\":[16,32,0]}"}, "sliding_windows differ"},
        /* contradictions */
        {{DF, .inner = "{\"block_size\":16}"}, "two values of block_size"},
        {{DF, .inner = "{\"num_target_layers\":30}"}, "two values of num_target_layers"},
        {{DF, .patch = "{\"target_layer_ids\":[1,4,7]}"}, "two values of target_layer_ids"},
        {{DF, .patch = "{\"eagle_aux_hidden_state_layer_ids\":[1,4,6]}"},
         "eagle_aux_hidden_state_layer_ids contradicts"},
        {{DF, .patch = "{\"is_causal\":true}", .inner = "{\"causal\":false}"},
         "causal contradicts another key"},
        {{DF, .patch = "{\"is_causal\":true,\"sliding_window_non_causal\":true}"},
         "sliding_window_non_causal contradicts"},
        {{DF, .patch = "{\"sample_from_anchor\":true,\"query_zero_predicts_next\":false}"},
         "contradict each other"},
        {{DF, .patch = "{\"rope_parameters\":{\"rope_theta\":5e5}}"},
         "rope_theta is 1e+06 and rope_parameters.rope_theta 500000"},
        {{DF, .patch = "{\"rope_theta\":null,\"rope_parameters\":{\"full_attention\":"
                       "{\"rope_theta\":1e6},\"sliding_attention\":{\"rope_theta\":1e4}}}"},
         "a drafter has one base"},
        {{DF, .patch = "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}"}, "rope_scaling"},
        {{DF, .patch = "{\"hidden_act\":\"gelu\"}"}, "hidden_act is gelu, expected silu"},
        {{DF, .patch = "{\"attention_bias\":true}"}, "attention_bias is set"},
        {{DF, .inner = "{\"attention_sink_bias\":true}"}, "attention_sink_bias"},
        {{DF, .patch = "{\"draft_vocab_size\":64}"}, "a reduced vocabulary"},
        {{DS, .patch = "{\"markov_head_type\":\"rnn\"}"}, "markov_head_type is rnn"},
        {{DS, .patch = "{\"confidence_head_with_markov\":false}"}, "confidence_head_with_markov"},
        {{DS, .patch = "{\"enable_confidence_head\":true}", .skip = "confidence_head.proj.weight"},
         "confidence_head.proj.weight is missing"},
        {{DS, .patch = "{\"enable_confidence_head\":false}"}, "confidence_head.proj.weight"},
        /* assistants */
        {{MT, .wrong = "pre_projection.weight"}, "pre_projection.weight is {192, 65}"},
        {{MT, .patch = "{\"backbone_hidden_size\":128}"}, "pre_projection.weight is {192, 64}"},
        {{MT, .patch = "{\"backbone_hidden_size\":null}"}, "backbone_hidden_size is missing"},
        {{MT, .patch = "{\"num_centroids\":32}"}, "centroids.weight is {64, 16}"},
        {{MT, .patch = "{\"num_centroids\":15}"}, "do not make 15 clusters"},
        {{MT, .patch = "{\"use_ordered_embeddings\":false}"}, "masked_embedding"},
        {{MT, .wrong = "masked_embedding.token_ordering"}, "entry 1 is 0"},
        {{MT, .skip = "masked_embedding.centroids.weight"}, "centroids.weight is missing"},
        {{MT, .inner = "{\"global_head_dim\":32}"}, "q_proj.weight is {64, 256}"},
        {{MT, .inner = "{\"final_logit_softcapping\":30.0}"}, "final_logit_softcapping"},
        {{MT, .inner = "{\"enable_moe_block\":true}"}, "enable_moe_block"},
        {{MT, .inner = "{\"layer_types\":null}"}, "layer_types"},
        {{MT, .inner = "{\"rope_parameters\":null}"}, "rope_parameters"},
        {{MT, .add = "model.layers.0.self_attn.k_proj.weight"}, "k_proj.weight"},
        {{MT, .add = "lm_head.weight"}, "no copy of the embedding"},
        {{MT, .inner = "{\"num_kv_shared_layers\":2}"}, "num_kv_shared_layers"},
    };
    const char *dir = test_temp("bad"), *out = test_temp("bad.gguf");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        AUTO_MEM model_shape *s;
        err e = {0};
        draft_checkpoint_write(dir, &bad[i].m, &s);
        CHECK_MSG(convert(dir, out, NULL, NULL, NULL, &e), "case %zu (%s) was converted", i,
                  bad[i].part);
        CHECK_MSG(strstr(e.text, bad[i].part), "case %zu: \"%s\" lacks \"%s\"", i, e.text,
                  bad[i].part);
        CHECK_EQ(access(out, F_OK), -1);
    }
}

/* Other families, by their configuration or by a tensor. */
TEST(convert_draft_refuses_look_alikes)
{
    static const struct {
        draft_checkpoint m;
        const char *part;
    } alien[] = {
        {{DF, .patch = "{\"architectures\":[\"Eagle3LlamaForCausalLM\"]}"}, "an EAGLE-3 head"},
        {{DF, .patch = "{\"dflash_config\":null,\"block_size\":null,\"architectures\":null,"
                       "\"speculators_model_type\":\"x\",\"eagle_aux_hidden_state_layer_ids\":"
                       "[2]}"},
         "an EAGLE-3 head"},
        {{DF, .patch = "{\"architectures\":[\"PEagleSpeculator\"]}"}, "a P-EAGLE head"},
        {{DF, .patch = "{\"architectures\":null,\"speculators_model_type\":\"peagle\"}"},
         "a P-EAGLE head"},
        {{DF, .patch = "{\"architectures\":null,\"speculators_model_type\":\"mtp\"}"},
         "inside the target's file"},
        {{DF, .patch = "{\"architectures\":[\"DFlash2DraftModel\"]}"}, "a DFlash2 drafter"},
        {{DF, .add = "candidate_selector.selector_hidden.weight"}, "a DFlash2 drafter"},
        {{DF, .add = "layers.0.attention_conv.weight"}, "a DFlash2 drafter"},
        {{DF, .add = "prefix_gru.weight_ih"}, "a Domino drafter"},
        {{DF, .patch = "{\"shift_label\":true}"}, "a Domino drafter"},
        {{DF, .add = "d2t"}, "a reduced vocabulary"},
        {{DF, .add = "t2d"}, "a reduced vocabulary"},
        {{DF, .add = "layers.0.self_attn.sinks"}, "attention sinks"},
        {{DF, .add = "mask_embedding.weight"}, "attention sinks"},
        {{DF, .add = "layers.0.pre_feedforward_layernorm.weight"},
         "layers.0.pre_feedforward_layernorm.weight"},
        {{DF, .patch = "{\"architectures\":[\"Gemma4DSparkModel\"]}"}, "Gemma's own layers"},
        {{DF, .patch = "{\"architectures\":[\"MuseGlimmerAssistantModel\"]}"}, "a Muse assistant"},
        {{LA, .patch = "{\"architectures\":[\"LagunaDSparkModel\"]}"},
         "a Laguna drafter with DSpark"},
        {{LA, .patch = "{\"markov_rank\":32}"}, "a Laguna drafter with DSpark"},
        {{DS, .add = "markov_head.gate_proj.weight"}, "gated or recurrent"},
    };
    const char *dir = test_temp("alien"), *out = test_temp("alien.gguf");
    for (size_t i = 0; i < sizeof alien / sizeof *alien; i++) {
        AUTO_MEM model_shape *s;
        err e = {0};
        draft_checkpoint_write(dir, &alien[i].m, &s);
        status st = convert(dir, out, NULL, NULL, NULL, &e);
        CHECK_MSG(st == E_UNSUPPORTED && strstr(e.text, alien[i].part),
                  "case %zu: \"%s\" lacks \"%s\"", i, e.text, alien[i].part);
    }
}

/* What the configuration leaves open, and what it says about blocks. */
TEST(convert_draft_reads_variants)
{
    static const struct {
        draft_checkpoint m;
        const char *dir;
        bool anchor_first, swa[3], causal[3];
        int32_t window;
    } one[] = {
        {{DF}, "v0", false, {1, 1, 0}, {1, 1, 0}, 16},
        {{DF}, "dflash_tiny_block7", true, {1, 1, 0}, {1, 1, 0}, 16},
        {{DF, .patch = "{\"markov_rank\":0}"}, "v1", true, {1, 1, 0}, {1, 1, 0}, 16},
        {{DF, .patch = "{\"markov_rank\":0}", .inner = "{\"query_zero_predicts_next\":false}"},
         "v2",
         false,
         {1, 1, 0},
         {1, 1, 0},
         16},
        {{DF, .patch = "{\"is_causal\":false}"}, "v3", false, {1, 1, 0}, {0, 0, 0}, 16},
        {{DF, .inner = "{\"causal\":true}"}, "v4", false, {1, 1, 0}, {1, 1, 1}, 16},
        {{DF, .patch = "{\"sliding_window_non_causal\":true}"},
         "v5",
         false,
         {1, 1, 0},
         {0, 0, 0},
         16},
        {{DF, .patch = "{\"layer_types\":null}",
          .inner = "{\"use_swa\":true,\"swa_window_size\":24}"},
         "v6",
         false,
         {1, 1, 1},
         {0, 0, 0},
         24},
        {{DF, .patch = "{\"layer_types\":null}"}, "v7", false, {0, 0, 0}, {0, 0, 0}, 0},
        {{DF, .patch = "{\"sliding_window\":null,\"sliding_windows\":[12,12,0]}"},
         "v8",
         false,
         {1, 1, 0},
         {1, 1, 0},
         12},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        AUTO_MEM model_shape *s;
        AUTO(gguf_close) gguf g;
        err e = {0};
        int64_t v;
        const char *dir = make_dir(one[i].dir, &one[i].m, &s), *out = test_temp("variant.gguf");
        CHECK_OK(convert(dir, out, NULL, NULL, NULL, &e), e);
        CHECK_OK(gguf_open(&g, out, false, NULL, NULL, &e), e);
        const gguf_value *swa = gguf_find(&g, "dflash.attention.sliding_window_pattern");
        const gguf_value *causal = gguf_find(&g, "carat.draft.causal");
        CHECK(gguf_get_i64(&g, "dflash.sample_from_anchor", &v) && v == one[i].anchor_first);
        CHECK(gguf_get_i64(&g, "dflash.attention.sliding_window", &v) && v == one[i].window);
        for (uint64_t il = 0; il < 3; il++) {
            CHECK_MSG(gguf_item_i64(swa, il, &v) && v == one[i].swa[il], "%s", one[i].dir);
            CHECK_MSG(gguf_item_i64(causal, il, &v) && v == one[i].causal[il], "%s", one[i].dir);
        }
    }
}

/* The target's file completes and checks a configuration. */
TEST(convert_draft_compares_with_the_target)
{
    const char *target = test_temp("target.gguf"), *other = test_temp("other.gguf");
    const char *make[] = {"tiny-dense", target, "--type", "f32"};
    const char *wide[] = {"tiny-wide", other, "--type", "f32"};
    const char *out = test_temp("with.gguf");
    const draft_checkpoint plain = {DF, .patch = "{\"num_target_layers\":null}"},
                           mtp = {.size = "mtp-tiny"};
    const draft_checkpoint deep = {DF, .patch = "{\"num_target_layers\":30}"};
    model_shape *s;
    gguf g;
    err e = {0};
    double x;
    gguf_string arch;
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)wide), 0);
    const char *dir = make_dir("plain", &plain, &s);
    mem_free(s);
    CHECK_OK(convert(dir, out, NULL, NULL, target, &e), e);
    CHECK_OK(gguf_open(&g, out, false, NULL, NULL, &e), e);
    CHECK(gguf_get_string(&g, "carat.draft.target_arch", &arch) && arch.n == 6);
    CHECK(gguf_get_f64(&g, "carat.draft.embed_scale", &x) && fabs(x - sqrt(96)) < 1e-5);
    gguf_close(&g);
    CHECK_STATUS(convert(dir, out, NULL, NULL, other, &e), E_ARG);
    CHECK(strstr(e.text, "the drafter's hidden_size is 96"));
    err_clear(&e);
    CHECK_STATUS(convert(dir, out, NULL, NULL, out, &e), E_ARG);
    CHECK(strstr(e.text, "is a DFlash drafter, not the model that a drafter is for"));
    err_clear(&e);
    dir = make_dir("deep", &deep, &s);
    mem_free(s);
    CHECK_STATUS(convert(dir, out, NULL, NULL, target, &e), E_ARG);
    CHECK(strstr(e.text, "num_target_layers is 30"));
    err_clear(&e);
    dir = make_dir("mtp", &mtp, &s);
    mem_free(s);
    CHECK_OK(convert(dir, out, NULL, NULL, target, &e), e);
    CHECK_STATUS(convert(dir, out, NULL, NULL, other, &e), E_ARG);
    CHECK(strstr(e.text, "backbone_hidden_size is 96"));
    err_clear(&e);
    char inside[512];
    snprintf(inside, sizeof inside, "%s/out.gguf", dir);
    CHECK_STATUS(convert(dir, inside, NULL, NULL, NULL, &e), E_ARG);
    CHECK(strstr(e.text, "lies inside of the checkpoint"));
    err_clear(&e);
    CHECK_STATUS(convert(dir, out, NULL, "lucebox", NULL, &e), E_ARG);
}

typedef struct answer {
    int32_t id[64];
    int n;
} answer;

static bool keep_id(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN && a->n < 64)
        a->id[a->n++] = ev->id;
    return true;
}

/* The first 40 tokens after a prompt; draft NULL: without a drafter. */
static answer answer_with(const char *target, const char *draft, int64_t *n_drafted)
{
    static const int32_t prompt[] = {7, 40, 41, 42, 7, 40, 41, 43, 9};
    AUTO_MODEL *m;
    AUTO_SESSION *s;
    carat_error e = {0};
    carat_timings t;
    answer a = {.n = 0};
    const carat_model_options mo = {.draft = draft};
    const carat_session_options so = {.n_ctx = 128};
    const carat_generate_options o = {.sampling = {.repeat_penalty = 1},
                                      .max_tokens = 40,
                                      .speculation = {.n_max = 5, .fixed = true}};
    CHECK_OK(carat_model_open(target, &mo, &m, &e), e);
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    CHECK_OK(carat_generate(s, prompt, 9, &o, keep_id, &a, &t, &e), e);
    *n_drafted = t.n_drafted;
    return a;
}

/* From checkpoint to answer: converted drafters run, and change no token. */
TEST(convert_draft_files_run)
{
    static const char *const sizes[] = {"dflash-tiny", "dflash-tiny-laguna", "dflash-tiny-dspark",
                                        "mtp-tiny"};
    const char *target = test_temp("target.gguf"), *out = test_temp("run.gguf");
    const char *make[] = {"tiny-dense", target, "--type", "q8_0"};
    const char *dir = test_temp("run");
    int64_t n_drafted;
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    answer plain = answer_with(target, NULL, &n_drafted);
    CHECK(plain.n == 40 && !n_drafted);
    for (int i = 0; i < 4; i++) {
        const draft_checkpoint m = {.size = sizes[i], .bf16 = true};
        model_shape *s;
        err e = {0};
        draft_checkpoint_write(dir, &m, &s);
        mem_free(s);
        CHECK_OK(convert(dir, out, NULL, NULL, target, &e), e);
        answer a = answer_with(target, out, &n_drafted);
        CHECK_MSG(n_drafted > 20, "%s drafted %d tokens", sizes[i], (int)n_drafted);
        CHECK(a.n == plain.n && !memcmp(a.id, plain.id, sizeof a.id));
    }
}

static void digest(const char *path, char out[65])
{
    AUTO_MEM char *bytes;
    size_t n;
    sha_stream h;
    err e = {0};
    CHECK_OK(file_read_all(path, 1 << 28, &bytes, &n, &e), e);
    sha256_init(&h);
    sha_put(&h, bytes, n);
    sha_text(&h, out);
}

/* The same input and options give the same bytes, on every machine. */
TEST(convert_draft_golden_file)
{
    const draft_checkpoint m = {LA, .fused = true, .bf16 = true};
    AUTO_MEM model_shape *s;
    err e = {0};
    char first[65], second[65];
    const char *dir = make_dir("golden", &m, &s), *out = test_temp("golden.gguf");
    CHECK_OK(convert(dir, out, NULL, NULL, NULL, &e), e);
    digest(out, first);
    uint64_t n;
    convert_request r = {.dir = dir, .out = out, .name = "a drafter", .n_threads = 1};
    CHECK_OK(convert_model(&r, &n, &e), e);
    digest(out, second);
    CHECK_STR(first, second);
    CHECK_STR(first, "50f41a3d44633d6d9b31f24637e0d43721b0499e7948232c0f8c04c95dec65ad");
}

TEST(convert_draft_survives_every_failed_allocation)
{
    const draft_checkpoint m = {DS};
    model_shape *s;
    const char *dir = make_dir("memory", &m, &s), *out = test_temp("memory.gguf");
    mem_free(s);
    int failed = 0;
    for (int64_t n = 0;; n += 1 + n / 20) {
        err e = {0};
        mem_fail_after(n);
        status st = convert(dir, out, NULL, NULL, NULL, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            CHECK_OK(st, e);
            break;
        }
        failed++;
        CHECK_MSG(st == E_MEMORY, "allocation %lld failed: %s: %s", (long long)n,
                  carat_status_name(st), e.text);
        CHECK_EQ(access(out, F_OK), -1);
    }
    CHECK(failed > 40);
}
