/* convert_families_test.c - tiny models of Qwen3, Qwen3.5 and Laguna as directories of safetensors,
 * with the names of published checkpoints or those that transformers saves; converted, they compute
 * what they did before. Bit for bit, unless the conversion changes values (Qwen3.5).
 *
 * The file is long because all its tests change one checkpoint, which its first part writes.
 */
#include "tests/fidelity_model.h"
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "carat.h"
#include "model/gemma3.h"
#include "model/gpt_oss.h"
#include "model/laguna.h"
#include "model/qwen3.h"
#include "model/qwen35.h"
#include "tests/test.h"

#include <math.h>
#include <sys/stat.h>

#define COMMON                                                                                     \
    "\"vocab_size\":128,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"      \
    "\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-06,"                            \
    "\"max_position_embeddings\":4096,\"hidden_act\":\"silu\",\"attention_bias\":false,"
#define QWEN COMMON "\"model_type\":\"qwen3\",\"use_sliding_window\":false,"
#define QWEN3MOE                                                                                   \
    COMMON "\"model_type\":\"qwen3_moe\",\"use_sliding_window\":false,\"num_attention_heads\":4,"  \
           "\"num_experts_per_tok\":3,\"moe_intermediate_size\":32,\"norm_topk_prob\":true,"       \
           "\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"tie_word_embeddings\":false,"
#define LAGUNA                                                                                     \
    COMMON "\"model_type\":\"laguna\",\"num_experts\":8,\"num_experts_per_tok\":2,"                \
           "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":64,"                  \
           "\"sliding_window\":16,\"tie_word_embeddings\":false,"                                  \
           "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\","                      \
           "\"rope_theta\":500000.0,\"partial_rotary_factor\":0.5,\"factor\":32.0,"                \
           "\"original_max_position_embeddings\":8192,\"beta_fast\":64.0,\"beta_slow\":1.0},"      \
           "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"              \
           "\"partial_rotary_factor\":1.0}},"

#define QWEN35_COMMON                                                                              \
    "\"vocab_size\":128,\"hidden_size\":64,\"num_attention_heads\":4,"                             \
    "\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-06,"                            \
    "\"max_position_embeddings\":4096,\"hidden_act\":\"silu\",\"attention_bias\":false,"           \
    "\"attn_output_gate\":true,\"mamba_ssm_dtype\":\"float32\",\"linear_key_head_dim\":32,"        \
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000.0,"                    \
    "\"partial_rotary_factor\":0.25,\"mrope_section\":[2,1,1],\"mrope_interleaved\":true},"
#define QWEN35                                                                                     \
    QWEN35_COMMON "\"num_hidden_layers\":8,\"linear_num_key_heads\":2,"                            \
                  "\"linear_num_value_heads\":6,\"linear_value_head_dim\":32,"                     \
                  "\"linear_conv_kernel_dim\":4,"

#define GEMMA3                                                                                     \
    "\"vocab_size\":128,\"hidden_size\":64,\"intermediate_size\":96,\"head_dim\":32,"              \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":4096,\"sliding_window\":16,"            \
    "\"model_type\":\"gemma3_text\",\"hidden_activation\":\"gelu_pytorch_tanh\","
/* As published, but for sizes. */
#define GPT_OSS                                                                                    \
    "{\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,"                          \
    "\"attention_dropout\":0.0,\"eos_token_id\":200002,\"experts_per_token\":3,\"head_dim\":32,"   \
    "\"hidden_act\":\"silu\",\"hidden_size\":64,\"initial_context_length\":4096,"                  \
    "\"initializer_range\":0.02,\"intermediate_size\":32,\"layer_types\":"                         \
    "[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"],"         \
    "\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\",\"num_attention_heads\":8,"     \
    "\"num_experts_per_tok\":3,\"num_hidden_layers\":4,\"num_key_value_heads\":2,"                 \
    "\"num_local_experts\":8,\"output_router_logits\":false,\"pad_token_id\":199999,"              \
    "\"rms_norm_eps\":1e-05,\"router_aux_loss_coef\":0.9,\"sliding_window\":16,"                   \
    "\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,\"transformers_version\":\"4.55.0\","      \
    "\"use_cache\":true,\"vocab_size\":128,"
#define GPT_OSS_YARN                                                                               \
    "\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"                                        \
    "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\",\"truncate\":false}}"

typedef struct family_case {
    const char *name, *config;
    bool saved; /* by the library: experts stacked, other names */
    bool without_nextn;
    const char *extra; /* a tensor more, a vector of 64 */
    bool by_mlx;
    float shifted; /* added to the norms that conversion adds 1 to */
    bool blocks;   /* experts in MXFP4 */
    bool twin;     /* the head is the embedding once more */
} family_case;

static const family_case cases[] = {
    {"qwen3",
     "{" QWEN "\"num_attention_heads\":4,\"rope_theta\":1000000,\"rope_scaling\":null,"
     "\"tie_word_embeddings\":true}",
     false, false, NULL, false, 0, false, false},
    {"qwen3-yarn",
     "{" QWEN "\"num_attention_heads\":6,\"tie_word_embeddings\":false,\"rope_parameters\":"
     "{\"rope_type\":\"yarn\",\"rope_theta\":1000000.0,\"factor\":4.0,"
     "\"original_max_position_embeddings\":1024,\"attention_factor\":1.1386294361119891}}",
     false, false, NULL, false, 0, false, false},
    {"laguna",
     "{" LAGUNA "\"gating\":true,\"num_attention_heads\":6,\"num_attention_heads_per_layer\":"
     "[6,8,8,8],\"moe_routed_scaling_factor\":2.5,\"layer_types\":[\"full_attention\","
     "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"]}",
     false, false, NULL, false, 0, false, false},
    {"laguna-element",
     "{" LAGUNA "\"gating_types\":[\"per-element\",\"per-element\",\"per-element\","
     "\"per-element\"],\"num_attention_heads\":4,\"moe_routed_scaling_factor\":1.0,"
     "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\","
     "\"full_attention\"],\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"sparse\"]}",
     true, false, NULL, false, 0, false, false},
    /* As published: the text part of a model with vision. */
    {"qwen35",
     "{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":false,\"text_config\":{" QWEN35
     "\"model_type\":\"qwen3_5_text\",\"intermediate_size\":96,\"full_attention_interval\":4}}",
     false, false, NULL, false, 0, false, false},
    {"qwen35-nextn",
     "{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":false,\"text_config\":{" QWEN35
     "\"model_type\":\"qwen3_5_text\",\"intermediate_size\":96,\"mtp_num_hidden_layers\":1,"
     "\"mtp_use_dedicated_embeddings\":false}}",
     false, false, NULL, false, 0, false, false},
    {"qwen35-uneven",
     "{" QWEN35_COMMON "\"model_type\":\"qwen3_5_text\",\"tie_word_embeddings\":false,"
     "\"num_hidden_layers\":5,\"intermediate_size\":96,\"linear_num_key_heads\":3,"
     "\"linear_num_value_heads\":3,\"linear_value_head_dim\":24,\"linear_conv_kernel_dim\":3,"
     "\"output_gate_type\":\"swish\",\"layer_types\":[\"full_attention\",\"linear_attention\","
     "\"linear_attention\",\"full_attention\",\"linear_attention\"]}",
     false, false, NULL, false, 0, false, false},
    {"qwen35moe",
     "{" QWEN35 "\"model_type\":\"qwen3_5_moe_text\",\"tie_word_embeddings\":true,"
     "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
     "\"shared_expert_intermediate_size\":48}",
     true, false, NULL, false, 0, false, false},
    {"qwen3moe", "{" QWEN3MOE "\"num_experts\":8,\"rope_theta\":10000000.0,\"rope_scaling\":null}",
     false, false, NULL, false, 0, false, false},
    /* As transformers 5.17 saves it: another name of the experts' number. */
    {"qwen3moe",
     "{" QWEN3MOE "\"num_local_experts\":8,\"rope_parameters\":"
     "{\"rope_type\":\"default\",\"rope_theta\":10000000.0}}",
     true, false, NULL, false, 0, false, false},
    {"llama",
     "{\"vocab_size\":128,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,"
     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-05,"
     "\"max_position_embeddings\":4096,\"hidden_act\":\"silu\",\"attention_bias\":false,"
     "\"model_type\":\"llama\",\"mlp_bias\":false,"
     "\"pretraining_tp\":1,\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"rope_scaling\":"
     "{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
     "\"original_max_position_embeddings\":64,\"rope_type\":\"llama3\"}}",
     false, false, NULL, false, 0, false, false},
    {"mistral",
     "{\"vocab_size\":128,\"hidden_size\":96,\"intermediate_size\":96,\"num_hidden_layers\":4,"
     "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,"
     "\"max_position_embeddings\":4096,\"hidden_act\":\"silu\",\"model_type\":\"mistral\","
     "\"sliding_window\":16,\"rope_theta\":10000.0,\"tie_word_embeddings\":false}",
     false, false, NULL, false, 0, false, false},
    /* As published, but for sizes. */
    {"mixtral",
     "{\"architectures\":[\"MixtralForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":1,"
     "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":64,\"initializer_range\":0.02,"
     "\"intermediate_size\":32,\"max_position_embeddings\":4096,\"model_type\":\"mixtral\","
     "\"num_attention_heads\":4,\"num_experts_per_tok\":2,\"num_hidden_layers\":4,"
     "\"num_key_value_heads\":2,\"num_local_experts\":8,\"output_router_logits\":false,"
     "\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"router_aux_loss_coef\":0.02,"
     "\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
     "\"transformers_version\":\"4.36.0.dev0\",\"use_cache\":true,\"vocab_size\":128}",
     false, false, NULL, false, 0, false, false},
    {"ministral3",
     "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"dtype\":\"bfloat16\","
     "\"image_token_index\":10,\"model_type\":\"mistral3\",\"multimodal_projector_bias\":false,"
     "\"projector_hidden_act\":\"gelu\",\"spatial_merge_size\":2,\"vision_feature_layer\":-1,"
     "\"vision_config\":{\"model_type\":\"pixtral\"},\"text_config\":{\"attention_dropout\":0.0,"
     "\"head_dim\":32,\"hidden_act\":\"silu\",\"hidden_size\":64,\"initializer_range\":0.02,"
     "\"intermediate_size\":96,\"max_position_embeddings\":512,\"model_type\":\"ministral3\","
     "\"num_attention_heads\":4,\"num_hidden_layers\":4,\"num_key_value_heads\":2,"
     "\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"beta_fast\":32.0,\"beta_slow\":1.0,"
     "\"factor\":16.0,\"llama_4_scaling_beta\":0.3,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
     "\"original_max_position_embeddings\":32,\"rope_theta\":1000000.0,\"rope_type\":\"yarn\","
     "\"type\":\"yarn\"},\"sliding_window\":null,\"tie_word_embeddings\":true,\"use_cache\":true,"
     "\"vocab_size\":128}}",
     false, false, NULL, false, 0, false, false},
    /* As published: the text part of a model with a tower; few numbers, and the rest by default. */
    {"gemma3",
     "{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
     "\"vision_config\":{},\"text_config\":{" GEMMA3 "\"query_pre_attn_scalar\":32,"
     "\"num_hidden_layers\":7,\"num_attention_heads\":4,\"rope_theta\":1000000.0,"
     "\"rope_local_base_freq\":10000.0,\"sliding_window_pattern\":6,"
     "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}}",
     false, false, NULL, false, 0, false, false},
    /* As transformers 5.17 saves it. */
    {"gemma3-plain",
     "{" GEMMA3 "\"query_pre_attn_scalar\":21,\"num_hidden_layers\":3,"
     "\"num_attention_heads\":8,\"tie_word_embeddings\":false,"
     "\"final_logit_softcapping\":20.0,\"use_bidirectional_attention\":false,"
     "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"],"
     "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\","
     "\"rope_theta\":500000.0},\"sliding_attention\":{\"rope_type\":\"default\","
     "\"rope_theta\":10000.0}}}",
     true, false, NULL, false, 0, false, false},
    {"gpt-oss", GPT_OSS "\"rope_theta\":150000,\"rope_scaling\":{" GPT_OSS_YARN, false, false, NULL,
     false, 0, false, false},
    {"gpt-oss",
     GPT_OSS "\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\","
             "\"model.layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],"
             "\"quant_method\":\"mxfp4\"},\"rope_theta\":150000,\"rope_scaling\":{" GPT_OSS_YARN,
     false, false, NULL, false, 0, true, false},
    /* As transformers 5.17 saves it. */
    {"gpt-oss", GPT_OSS "\"rope_parameters\":{\"rope_theta\":150000.0," GPT_OSS_YARN, false, false,
     NULL, false, 0, false, false},
};

static bool is_qwen35(const char *name)
{
    return !strncmp(name, "qwen35", 6);
}

static void put_file(const char *dir, const char *name, const str *s)
{
    CHECK(!s->bad);
    test_write_in(dir, name, str_text(s), s->n);
}

/* A directory being written: the header and the data of its safetensors file. */
typedef struct source_dir {
    str head, data;
} source_dir;

static void put_source(source_dir *d, const char *name, const tensor *t, uint64_t ne1, uint64_t ne2,
                       const unsigned char *bytes, uint64_t n_bytes)
{
    size_t from = d->data.n;
    str_put(&d->data, (const char *)bytes, (size_t)n_bytes);
    str_printf(&d->head, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", name);
    if (ne2 > 1)
        str_printf(&d->head, "%llu,", (unsigned long long)ne2);
    if (ne1 > 1)
        str_printf(&d->head, "%llu,", (unsigned long long)ne1);
    str_printf(&d->head, "%llu],\"data_offsets\":[%zu,%zu]}", (unsigned long long)t->ne[0], from,
               d->data.n);
}

static void put_taps(source_dir *d, const char *name, const tensor *t, const unsigned char *bytes)
{
    size_t from = d->data.n;
    str_put(&d->data, (const char *)bytes, (size_t)t->n_bytes);
    str_printf(&d->head,
               ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%llu,1,%llu],\"data_offsets\":[%zu,%zu]}",
               name, (unsigned long long)t->ne[1], (unsigned long long)t->ne[0], from, d->data.n);
}

/* The library's name for one of a published file. */
static void rename_saved(char *name, size_t cap)
{
    static const char *const other[][2] = {
        {"experts.e_score_correction_bias", "gate.e_score_correction_bias"},
        {"shared_expert.", "shared_experts."}};
    char copy[160];
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(name, other[i][0]);
        if (!at)
            continue;
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - name), name, other[i][1],
                 at + strlen(other[i][0]));
        snprintf(name, cap, "%s", copy);
    }
}

/* Head h of a checkpoint belongs to key head h / r of n_k, r = n_v / n_k; a file has it as number
 * h mod r * n_k + h / r. */
static uint64_t file_head(uint64_t h, uint64_t n_k, uint64_t n_v)
{
    uint64_t r = n_v / n_k, j = h % n_v;
    return h - j + j % r * n_k + j / r;
}

/* The checkpoint's form of a tensor of Qwen3.5: what hf_change says, backwards. mem_free. */
static float *before_change(const shape_tensor *st, const tensor *t)
{
    const hf_change *c = &st->change;
    uint64_t cols = t->ne[0], rows = t->ne[1] * t->ne[2];
    const float *from = (const float *)t->bytes;
    float *to = mem_alloc((size_t)t->n_bytes);
    CHECK(to && t->type == NUM_F32);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t k = 0; k < cols; k++) {
            uint64_t at[2] = {r, k}, *moved = &at[c->columns];
            if (c->n_k && *moved >= c->before) {
                uint64_t v = *moved - c->before;
                *moved = c->before + v % c->per_head +
                         c->per_head * file_head(v / c->per_head, c->n_k, c->n_v);
            }
            float x = from[at[0] * cols + at[1]];
            to[r * cols + k] = c->neg_exp ? logf(-x) : x - c->add;
        }
    return to;
}

static bool interleaves(const char *family)
{
    static const char *const of_llama[] = {"llama", "mistral", "mixtral", "ministral3"};
    for (size_t i = 0; i < sizeof of_llama / sizeof *of_llama; i++)
        if (!strcmp(family, of_llama[i]))
            return true;
    return false;
}

static bool turns(const char *name)
{
    return strstr(name, "attn_q.weight") || strstr(name, "attn_k.weight");
}

/* Which tensors of Qwen3.5 and Gemma 3 are changed, and how. The order of heads is compared with
 * this independently of the names in the shape's table. */
static void check_change(const shape_tensor *t, bool has_heads)
{
    static const char *const heads[] = {"attn_gate.", "ssm_alpha.", "ssm_beta.", "attn_qkv.",
                                        "ssm_conv1d", "ssm_a",      "ssm_dt.",   "ssm_out."};
    const char *name = strncmp(t->name, "blk.", 4) ? t->name : strchr(t->name + 4, '.') + 1;
    bool norm = strstr(name, "norm") && strncmp(name, "ssm_", 4) != 0, moved = false;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        moved |= has_heads && !strncmp(name, heads[i], strlen(heads[i]));
    CHECK_MSG((t->change.add == 1) == norm && (t->change.n_k > 0) == moved &&
                  t->change.neg_exp == !strcmp(name, "ssm_a"),
              "%s is changed in another way", t->name);
}

/* The matrices of an expert as checkpoints name them: most families, and Mixtral. */
static void check_expert_name(const shape_tensor *t)
{
    static const char *const names[][3] = {{"gate_exps", "*.gate_proj.weight", "*.w1.weight"},
                                           {"up_exps", "*.up_proj.weight", "*.w3.weight"},
                                           {"down_exps", "*.down_proj.weight", "*.w2.weight"}};
    const char *star = strchr(t->hf_name, '*');
    for (int i = 0; i < 3; i++)
        if (strstr(t->name, names[i][0])) {
            CHECK_MSG(!strcmp(star, names[i][1]) || !strcmp(star, names[i][2]), "%s is %s", t->name,
                      t->hf_name);
            return;
        }
    CHECK_MSG(false, "%s has no known name", t->name);
}

/* One matrix of each expert: a tensor each, or rows of one tensor (gate beside up). */
static void put_experts(source_dir *d, const gguf *g, const shape_tensor *st, bool saved)
{
    const tensor *t = tensor_find(&g->tensors, st->name);
    const char *star = strchr(st->hf_name, '*');
    char name[160];
    uint64_t one = t->n_bytes / t->ne[2];
    check_expert_name(st);
    if (!saved) {
        for (uint64_t k = 0; k < t->ne[2]; k++) {
            snprintf(name, sizeof name, "model.%.*s%llu%s", (int)(star - st->hf_name), st->hf_name,
                     (unsigned long long)k, star + 1);
            put_source(d, name, t, t->ne[1], 1, t->bytes + k * one, one);
        }
        return;
    }
    bool down = !strncmp(star, "*.down", 6);
    if (!strncmp(star, "*.up", 4))
        return; /* beside the gate */
    snprintf(name, sizeof name, "model.%.*s%s", (int)(star - st->hf_name), st->hf_name,
             down ? "down_proj" : "gate_up_proj");
    if (down) {
        put_source(d, name, t, t->ne[1], t->ne[2], t->bytes, t->n_bytes);
        return;
    }
    char other[64];
    snprintf(other, sizeof other, "blk.%d.ffn_up_exps.weight", (int)st->layer);
    const tensor *up = tensor_find(&g->tensors, other);
    AUTO(str_free) str both = {0};
    for (uint64_t k = 0; k < t->ne[2]; k++) {
        str_put(&both, (const char *)t->bytes + k * one, (size_t)one);
        str_put(&both, (const char *)up->bytes + k * one, (size_t)one);
    }
    put_source(d, name, t, 2 * t->ne[1], t->ne[2], (const unsigned char *)both.at, both.n);
}

static void put_bytes(source_dir *d, const char *name, const uint64_t *ne, int32_t n_dims,
                      const unsigned char *bytes)
{
    size_t from = d->data.n, n = 1;
    str_printf(&d->head, ",\"%s\":{\"dtype\":\"U8\",\"shape\":[", name);
    for (int32_t i = n_dims - 1; i >= 0; i--) {
        str_printf(&d->head, "%llu%s", (unsigned long long)ne[i], i ? "," : "],");
        n *= (size_t)ne[i];
    }
    str_put(&d->data, (const char *)bytes, n);
    str_printf(&d->head, "\"data_offsets\":[%zu,%zu]}", from, d->data.n);
}

/* MXFP4 as published: two neighbours in a byte, scales apart. row[o]: [E][n_in] of outputs. */
static void put_blocks(source_dir *d, const char *name, const float *w, uint64_t n_in,
                       uint64_t rows, uint64_t n_experts)
{
    enum { BLOCK = 32, BYTES = 17 };
    uint64_t n = n_in / BLOCK * rows * n_experts;
    unsigned char *scale = mem_alloc(n), *code = mem_alloc(16 * n), b[BYTES];
    char full[200];
    CHECK(scale && code);
    for (uint64_t i = 0; i < n; i++) {
        num_format_of(NUM_MXFP4)->encode(w + BLOCK * i, b, BLOCK);
        scale[i] = b[0];
        for (int k = 0; k < 16; k++) { /* values 2 k and 2 k + 1 */
            unsigned low = k < 8 ? b[1 + 2 * k] & 15u : b[1 + 2 * k - 16] >> 4;
            unsigned high = k < 8 ? b[2 + 2 * k] & 15u : b[2 + 2 * k - 16] >> 4;
            code[16 * i + (uint64_t)k] = (unsigned char)(low | high << 4);
        }
    }
    snprintf(full, sizeof full, "%s_blocks", name);
    put_bytes(d, full, (const uint64_t[]){16, n_in / BLOCK, rows, n_experts}, 4, code);
    snprintf(full, sizeof full, "%s_scales", name);
    put_bytes(d, full, (const uint64_t[]){n_in / BLOCK, rows, n_experts}, 3, scale);
    mem_free(scale);
    mem_free(code);
}

/* Experts of gpt-oss: gates and ups in turns; inputs before outputs, or in blocks. */
static void put_turned(source_dir *d, const gguf *g, const shape_tensor *st, const char *name,
                       bool blocks)
{
    const tensor *t = tensor_find(&g->tensors, st->name);
    bool turned = st->change.turned;
    uint64_t every = st->change.every ? st->change.every : 1, n_in = turned ? t->ne[0] : 1;
    uint64_t rows = turned ? t->ne[1] : t->ne[0], n_experts = turned ? t->ne[2] : t->ne[1];
    const float *part[2] = {(const float *)t->bytes, NULL};
    char other[64];
    if (st->change.from)
        return; /* beside the gate */
    if (every == 2) {
        snprintf(other, sizeof other, "blk.%d.ffn_up_exps.%s", (int)st->layer,
                 turned ? "weight" : "bias");
        part[1] = (const float *)tensor_find(&g->tensors, other)->bytes;
    }
    uint64_t all = rows * every, n = n_experts * n_in * all;
    AUTO_MEM float *to = mem_alloc(n * sizeof *to);
    CHECK(to);
    for (uint64_t e = 0; e < n_experts; e++)
        for (uint64_t i = 0; i < n_in; i++)
            for (uint64_t o = 0; o < all; o++) {
                uint64_t at =
                    blocks && turned ? (e * all + o) * n_in + i : (e * n_in + i) * all + o;
                to[at] = part[o % every][(e * rows + o / every) * n_in + i];
            }
    const tensor shape = {.ne = {all, 1, 1, 1}};
    if (blocks && turned)
        put_blocks(d, name, to, n_in, all, n_experts);
    else
        put_source(d, name, &shape, turned ? n_in : n_experts, turned ? n_experts : 1,
                   (const unsigned char *)to, n * sizeof *to);
}

static const char *make_dir(const family_case *c, const gguf *g)
{
    const char *dir = test_temp(c->name);
    source_dir d = {0};
    str file = {0};
    json_t *config = NULL;
    model_shape *s = NULL;
    err e = {0};
    mkdir(dir, 0755);
    str_puts(&file, c->config);
    put_file(dir, "config.json", &file);
    CHECK_OK(convert_read_json(&config, dir, "config.json", true, &e), e);
    CHECK_OK(convert_read_shape(config, "config.json", &s, NULL, &e), e);
    int32_t n = s->family->list(s, NULL, 0);
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    s->family->list(s, list, n);
    str_printf(&d.head, "{\"__metadata__\":{\"format\":\"%s\"}", c->by_mlx ? "mlx" : "pt");
    if (c->extra) {
        static const float zeros[64];
        const tensor t = {.ne = {64, 1, 1, 1}};
        put_source(&d, c->extra, &t, 1, 1, (const unsigned char *)zeros, sizeof zeros);
    }
    for (int32_t i = 0; i < n; i++) {
        bool twin = c->twin && !strcmp(list[i].name, "output.weight");
        const tensor *t = tensor_find(&g->tensors, twin ? "token_embd.weight" : list[i].name);
        char name[160];
        CHECK_MSG(t, "%s has no %s", c->name, list[i].name);
        if (strchr(list[i].hf_name, '*')) {
            put_experts(&d, g, &list[i], c->saved);
            continue;
        }
        if (list[i].role == ROLE_ROPE_FACTORS)
            continue;
        bool beside = !strncmp(list[i].hf_name, "mtp.", 4);
        if (beside && c->without_nextn)
            continue;
        snprintf(name, sizeof name, "%s%s", beside ? "" : "model.", list[i].hf_name);
        if (!list[i].hf_name[0])
            snprintf(name, sizeof name, "lm_head.weight");
        if (c->saved && strstr(c->name, "laguna"))
            rename_saved(name, sizeof name);
        if (list[i].change.turned || list[i].change.every) {
            put_turned(&d, g, &list[i], name, c->blocks);
            continue;
        }
        AUTO_MEM float *own = before_change(&list[i], t);
        for (uint64_t k = 0; k < t->n_elements && list[i].change.add != 0; k++)
            own[k] += c->shifted;
        if (is_qwen35(c->name) || !strncmp(c->name, "gemma3", 6))
            check_change(&list[i], is_qwen35(c->name));
        else /* of the others llama's files alone have rows of heads in another order */
            CHECK_MSG((list[i].change.n_k == 2) == (interleaves(c->name) && turns(list[i].name)),
                      "%s is changed in another way", list[i].name);
        if (list[i].change.taps) /* [channels, 1, taps] */
            put_taps(&d, name, t, (const unsigned char *)own);
        else
            put_source(&d, name, t, t->ne[1], t->ne[2], (const unsigned char *)own, t->n_bytes);
    }
    str_puts(&d.head, "} ");
    str_cut(&file, 0);
    for (int k = 0; k < 8; k++)
        str_putc(&file, (char)((uint64_t)d.head.n >> 8 * k));
    str_put(&file, d.head.at, d.head.n);
    str_put(&file, str_text(&d.data), d.data.n);
    put_file(dir, "model.safetensors", &file);
    str_free(&file);
    str_free(&d.head);
    str_free(&d.data);
    mem_free(list);
    mem_free(s);
    json_decref(config);
    return dir;
}

/* Every tensor of a file has its values in the other. */
static void check_values(const gguf *have, const gguf *want, float part)
{
    CHECK_EQ(have->tensors.n, want->tensors.n);
    for (uint64_t i = 0; i < want->tensors.n; i++) {
        const tensor *b = &want->tensors.at[i], *a = tensor_find(&have->tensors, b->name);
        CHECK_MSG(a, "%s", b->name);
        if (a->type == NUM_MXFP4) { /* the bits of the checkpoint */
            unsigned char *bytes = mem_alloc(a->n_bytes);
            num_format_of(NUM_MXFP4)->encode((const float *)b->bytes, bytes,
                                             (int64_t)b->n_elements);
            CHECK_MSG(!memcmp(a->bytes, bytes, a->n_bytes), "%s: other blocks", b->name);
            mem_free(bytes);
            continue;
        }
        CHECK_MSG(a->n_bytes == b->n_bytes && a->type == NUM_F32, "%s", b->name);
        const float *x = (const float *)a->bytes, *y = (const float *)b->bytes;
        for (uint64_t k = 0; k < b->n_elements; k++)
            CHECK_MSG(fabsf(x[k] - y[k]) <= part * (1 + fabsf(y[k])), "%s, %llu: %g, expected %g",
                      b->name, (unsigned long long)k, (double)x[k], (double)y[k]);
    }
}

static float *logits_of(const fidelity *f, const char *path)
{
    err e = {0};
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    carat_session_options opt = {.n_ctx = 64, .chunk = 40, .n_outputs = 40, .kv_k = "f32"};
    float *x = mem_calloc(40 * (size_t)f->n_vocab, sizeof *x);
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    CHECK_OK(carat_session_open(m, &opt, &s, &e), e);
    CHECK_OK(carat_append(s, f->tokens, 40, true, x, &e), e);
    return x;
}

TEST(converted_families_compute_the_same)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        AUTO(fidelity_close) fidelity f;
        AUTO(gguf_close) gguf g;
        err e = {0};
        uint64_t n_bytes = 0;
        str unknown = {0}, notes = {0};
        fidelity_open(&f, cases[i].name);
        const char *path = fidelity_write(&f, &(fidelity_file){.split_experts = true});
        CHECK_OK(gguf_open(&g, path, true, NULL, NULL, &e), e);
        snprintf(out, sizeof out, "%s-out.gguf", cases[i].name);
        const convert_request r = {.dir = make_dir(&cases[i], &g),
                                   .out = test_temp(out),
                                   .mix = weight_mix_named("f32"),
                                   .n_threads = 1,
                                   .unknown = &unknown,
                                   .notes = &notes};
        CHECK_OK(convert_model(&r, &n_bytes, &e), e);
        CHECK_MSG(!unknown.n, "unknown keys: %s", unknown.at);
        CHECK_MSG(!notes.n, "%s", notes.at);
        bool changes = is_qwen35(cases[i].name) || !strncmp(cases[i].name, "gemma3", 6);
        gguf made;
        CHECK_OK(gguf_open(&made, r.out, true, NULL, NULL, &e), e);
        check_values(&made, &g, changes ? 1e-6f : 0);
        gguf_close(&made);
        AUTO_MEM float *want = logits_of(&f, path), *got = logits_of(&f, r.out);
        float most = 0;
        for (size_t k = 0; k < 40 * (size_t)f.n_vocab; k++)
            most = fmaxf(most, fabsf(want[k] - got[k]));
        CHECK_MSG(cases[i].blocks || most <= (changes ? 1e-3f : 0),
                  "%s: other logits after conversion, by %g", cases[i].name, (double)most);
        str_free(&unknown);
    }
}

/* transformers saves models without the NextN layer that their configuration states. */
TEST(a_missing_nextn_layer_is_said)
{
    family_case c = cases[5];
    AUTO(fidelity_close) fidelity f;
    gguf g;
    err e = {0};
    uint64_t n_bytes = 0;
    AUTO(str_free) str notes = {0};
    CHECK_STR(c.name, "qwen35-nextn");
    c.without_nextn = true;
    fidelity_open(&f, c.name);
    CHECK_OK(gguf_open(&g, fidelity_write(&f, &(fidelity_file){.split_experts = true}), true, NULL,
                       NULL, &e),
             e);
    const convert_request r = {.dir = make_dir(&c, &g),
                               .out = test_temp("less.gguf"),
                               .mix = weight_mix_named("f32"),
                               .n_threads = 1,
                               .notes = &notes};
    CHECK_OK(convert_model(&r, &n_bytes, &e), e);
    CHECK(notes.n && strstr(notes.at, "the new file has no NextN layer"));
    gguf_close(&g);
    CHECK_OK(gguf_open(&g, r.out, true, NULL, NULL, &e), e);
    CHECK(!gguf_find(&g, "qwen35.nextn_predict_layers") && g.tensors.n == 109);
    gguf_close(&g);
}

/* The part of config.json that Qwen's models of vectors share. */
#define QWEN_VECTORS                                                                               \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":151643,"                  \
    "\"head_dim\":128,\"hidden_act\":\"silu\",\"initializer_range\":0.02,"                         \
    "\"model_type\":\"qwen3\",\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"                   \
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,"                        \
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"                \
    "\"use_sliding_window\":false,"

/* As published, contexts too: the cards say 32K, the length that the models were trained with. */
TEST(the_published_configurations_of_models_of_vectors)
{
    static const struct {
        const char *size, *config;
        int32_t n_ctx, n_vocab;
    } of[] = {
        {"qwen3-embedding-0.6b",
         "{\"architectures\":[\"Qwen3ForCausalLM\"]," QWEN_VECTORS
         "\"eos_token_id\":151643,\"hidden_size\":1024,\"intermediate_size\":3072,"
         "\"max_position_embeddings\":32768,\"max_window_layers\":28,\"num_attention_heads\":16,"
         "\"num_hidden_layers\":28,\"transformers_version\":\"4.51.3\",\"vocab_size\":151669}",
         32768, 151669},
        {"qwen3-embedding-4b",
         "{\"architectures\":[\"Qwen3ForCausalLM\"]," QWEN_VECTORS
         "\"eos_token_id\":151643,\"hidden_size\":2560,\"intermediate_size\":9728,"
         "\"max_position_embeddings\":40960,\"max_window_layers\":36,\"num_attention_heads\":32,"
         "\"num_hidden_layers\":36,\"transformers_version\":\"4.51.2\",\"vocab_size\":151665}",
         40960, 151665},
        {"qwen3-embedding-8b",
         "{\"architectures\":[\"Qwen3ForCausalLM\"]," QWEN_VECTORS
         "\"eos_token_id\":151643,\"hidden_size\":4096,\"intermediate_size\":12288,"
         "\"max_position_embeddings\":40960,\"max_window_layers\":36,\"num_attention_heads\":32,"
         "\"num_hidden_layers\":36,\"transformers_version\":\"4.51.2\",\"vocab_size\":151665}",
         40960, 151665},
        /* Qwen3-Reranker-0.6B: a writer of tokens, with the context of the larger ones. */
        {NULL,
         "{\"architectures\":[\"Qwen3ForCausalLM\"]," QWEN_VECTORS
         "\"eos_token_id\":151645,\"hidden_size\":1024,\"intermediate_size\":3072,"
         "\"max_position_embeddings\":40960,\"max_window_layers\":28,\"num_attention_heads\":16,"
         "\"num_hidden_layers\":28,\"transformers_version\":\"4.51.3\",\"vocab_size\":151669}",
         40960, 151669},
        {"embeddinggemma-300m",
         "{\"_sliding_window_pattern\":6,\"architectures\":[\"Gemma3TextModel\"],"
         "\"attention_bias\":false,\"attention_dropout\":0.0,\"attn_logit_softcapping\":null,"
         "\"bos_token_id\":2,\"dtype\":\"float32\",\"eos_token_id\":1,"
         "\"final_logit_softcapping\":null,\"head_dim\":256,"
         "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":768,"
         "\"initializer_range\":0.02,\"intermediate_size\":1152,"
         "\"max_position_embeddings\":2048,\"model_type\":\"gemma3_text\","
         "\"num_attention_heads\":3,\"num_hidden_layers\":24,\"num_key_value_heads\":1,"
         "\"pad_token_id\":0,\"query_pre_attn_scalar\":256,\"rms_norm_eps\":1e-06,"
         "\"rope_local_base_freq\":10000.0,\"rope_scaling\":null,\"rope_theta\":1000000.0,"
         "\"sliding_window\":512,\"transformers_version\":\"4.57.0.dev0\","
         "\"use_bidirectional_attention\":true,\"use_cache\":true,\"vocab_size\":262144}",
         2048, 262144}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        json_t *j = json_loads(of[i].config, 0, NULL);
        model_shape *s, *want = NULL;
        str unknown = {0};
        err e = {0};
        CHECK(j);
        CHECK_OK(convert_read_shape(j, "config.json", &s, &unknown, &e), e);
        CHECK_MSG(!unknown.n, "%zu: unknown keys: %s", i, unknown.at);
        CHECK_EQ(s->n_ctx_train, of[i].n_ctx);
        CHECK_EQ(s->n_vocab, of[i].n_vocab);
        if (of[i].size) {
            CHECK_OK(shape_named(of[i].size, &want, &e), e);
            CHECK(want->n_ctx_train == s->n_ctx_train && want->n_vocab == s->n_vocab);
            CHECK(want->n_embd == s->n_embd && want->n_layer == s->n_layer);
            CHECK(want->tied == s->tied && want->family == s->family);
            if (s->family == &qwen3_shapes) {
                const qwen3_shape *a = (const qwen3_shape *)want, *b = (const qwen3_shape *)s;
                CHECK(a->head_dim == b->head_dim && a->eps == b->eps && a->theta == b->theta);
                for (int32_t il = 0; il < s->n_layer; il++)
                    CHECK(a->n_head[il] == b->n_head[il] && a->n_head_kv[il] == b->n_head_kv[il] &&
                          a->n_ff[il] == b->n_ff[il]);
            } else {
                const gemma3_shape *a = (const gemma3_shape *)want, *b = (const gemma3_shape *)s;
                CHECK(a->window == b->window && a->n_head == b->n_head && a->n_ff == b->n_ff);
                CHECK(!memcmp(a->swa, b->swa, sizeof a->swa));
            }
        }
        mem_free(want);
        mem_free(s);
        str_free(&unknown);
        json_decref(j);
    }
}

/* Of a key that may be absent a number out of range is not taken for its absence. */
TEST(a_number_of_a_configuration_is_not_read_as_no_number)
{
    static const struct {
        const char *more, *refused; /* NULL: taken */
    } given[] = {{"\"num_attention_heads\":4", NULL},
                 {"\"rms_norm_eps\":1e-5", NULL},
                 {"\"rms_norm_eps\":null", NULL},
                 {"\"router_jitter_noise\":0.0", NULL}, /* acts in training alone */
                 {"\"rms_norm_eps\":0", "rms_norm_eps"},
                 {"\"rms_norm_eps\":-1", "rms_norm_eps"},
                 {"\"head_dim\":0", "head_dim"},
                 {"\"num_attention_heads\":0", "num_attention_heads"},
                 {"\"max_position_embeddings\":0", "max_position_embeddings"}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        str text = {0}, unknown = {0};
        model_shape *s = NULL;
        err e = {0};
        str_printf(&text,
                   "{\"model_type\":\"gemma3_text\",\"hidden_size\":64,\"intermediate_size\":64,"
                   "\"num_hidden_layers\":6,\"num_key_value_heads\":1,\"sliding_window\":16,"
                   "\"vocab_size\":128,%s}",
                   given[i].more);
        json_t *j = json_loads(str_text(&text), 0, NULL);
        CHECK(j);
        status st = convert_read_shape(j, "config.json", &s, &unknown, &e);
        CHECK_MSG((st == OK) == !given[i].refused, "%s: %s", given[i].more, e.text);
        CHECK_MSG(!given[i].refused || strstr(e.text, given[i].refused), "%s", e.text);
        CHECK_MSG(!unknown.n, "unknown keys: %s", unknown.at);
        mem_free(s);
        str_free(&unknown);
        str_free(&text);
        json_decref(j);
    }
}

/* openai/gpt-oss-20b. */
TEST(the_published_configuration_of_gpt_oss)
{
    static const char *const refused[][3] = {
        {"\"truncate\":false", "\"truncate\":true ", "truncate"},
        {"\"swiglu_limit\":7.0", "\"swiglu_limit\":8.0", "swiglu_limit"},
        {"\"quant_method\":\"mxfp4\"", "\"quant_method\":\"nvfp4\"", "quantization_config"},
        {"\"attention_bias\":true", "\"attention_bias\":null", NULL},
        {"\"attention_bias\":true", "\"attention_bias\":0.00", "attention_bias"},
        {"\"experts_per_token\":4", "\"experts_per_toke\":4 ", NULL},
        {"\"sliding_window\":128", "\"sliding_window\":0.0", "sliding_window"},
        {"\"num_experts_per_tok\":4", "\"num_experts_per_tok\":9", NULL}};
    AUTO(str_free) str text = {0};
    model_shape *want, *s = NULL;
    json_t *j;
    err e = {0};
    str_puts(&text, "{\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,"
                    "\"attention_dropout\":0.0,\"eos_token_id\":200002,\"experts_per_token\":4,"
                    "\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2880,"
                    "\"initial_context_length\":4096,\"initializer_range\":0.02,"
                    "\"intermediate_size\":2880,\"layer_types\":[");
    for (int i = 0; i < 24; i++)
        str_printf(&text, "%s\"%s_attention\"", i ? "," : "", i % 2 ? "full" : "sliding");
    str_puts(&text,
             "],\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\","
             "\"num_attention_heads\":64,\"num_experts_per_tok\":4,\"num_hidden_layers\":24,"
             "\"num_key_value_heads\":8,\"num_local_experts\":32,\"output_router_logits\":false,"
             "\"pad_token_id\":199999,\"quantization_config\":{\"modules_to_not_convert\":["
             "\"model.layers.*.self_attn\",\"model.layers.*.mlp.router\",\"model.embed_tokens\","
             "\"lm_head\"],\"quant_method\":\"mxfp4\"},\"rms_norm_eps\":1e-05,\"rope_scaling\":{"
             "\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"
             "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\","
             "\"truncate\":false},\"rope_theta\":150000,\"router_aux_loss_coef\":0.9,"
             "\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,"
             "\"transformers_version\":\"4.55.0.dev0\",\"use_cache\":true,\"vocab_size\":201088}");
    CHECK_OK(shape_named("gpt-oss-20b", &want, &e), e);
    AUTO(str_free) str unknown = {0};
    CHECK(j = json_loads(str_text(&text), 0, NULL));
    CHECK_OK(convert_read_shape(j, "config.json", &s, &unknown, &e), e);
    CHECK_MSG(!unknown.n, "unknown keys: %s", unknown.at);
    json_decref(j);
    gpt_oss_shape *a = (gpt_oss_shape *)want, *b = (gpt_oss_shape *)s;
    memcpy(b->name, a->name, sizeof b->name);
    a->scaling.unrounded = true; /* what reading any file sets */
    CHECK(!memcmp(a, b, sizeof *a));
    mem_free(s);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *at = strstr(text.at, refused[i][0]);
        CHECK(at && strlen(refused[i][0]) == strlen(refused[i][1]));
        memcpy(at, refused[i][1], strlen(refused[i][1]));
        CHECK(j = json_loads(text.at, 0, NULL));
        memcpy(at, refused[i][0], strlen(refused[i][0]));
        status st = convert_read_shape(j, "config.json", &s, NULL, &e);
        json_decref(j);
        CHECK_MSG(!st == !refused[i][2] && (!st || strstr(e.text, refused[i][2])), "%s: %s",
                  refused[i][1], e.text);
        if (!st)
            mem_free(s);
        err_clear(&e);
    }
    mem_free(want);
}

/* The sentence names the type that is not one of carat's, within or without. */
TEST(near_families_of_config_json_are_refused_by_their_type)
{
    static const char *const near[][3] = {
        {"gemma3n", "gemma3n_text", "model_type is gemma3n_text, and carat converts"},
        {"llama4", "llama4_text", "model_type is llama4_text, and"},
        {"llava", "mistral", "model_type is llava, and"},
        {"gemma3", "mistral", "model_type is gemma3, and that of text_config mistral"},
        {"qwen3_next", NULL, "model_type is qwen3_next, and"}};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        model_shape *s = NULL;
        err e = {0};
        json_t *config = json_pack("{s:s}", "model_type", near[i][0]);
        if (near[i][1])
            json_object_set_new(config, "text_config",
                                json_pack("{s:s}", "model_type", near[i][1]));
        CHECK_STATUS(convert_read_shape(config, "config.json", &s, NULL, &e), E_UNSUPPORTED);
        CHECK_MSG(!s && strstr(e.text, near[i][2]), "%s", e.text);
        json_decref(config);
    }
}

/* Puts `is` in the place of `was` in the list of tensors of dir's file. */
static void patch_list(const char *dir, const char *was, const char *is)
{
    char path[512], *bytes;
    size_t n;
    err e = {0};
    AUTO(str_free) str file = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK_OK(file_read_all(path, 1 << 24, &bytes, &n, &e), e);
    char *at = memmem(bytes, n, was, strlen(was));
    CHECK(at);
    uint64_t n_list = 0;
    for (int k = 0; k < 8; k++)
        n_list |= (uint64_t)(unsigned char)bytes[k] << 8 * k;
    n_list += strlen(is) - strlen(was);
    for (int k = 0; k < 8; k++)
        str_putc(&file, (char)(n_list >> 8 * k));
    str_put(&file, bytes + 8, (size_t)(at - bytes) - 8);
    str_puts(&file, is);
    at += strlen(was);
    str_put(&file, at, n - (size_t)(at - bytes));
    put_file(dir, "model.safetensors", &file);
    mem_free(bytes);
}

static status convert_patched(const family_case *c, const char *was, const char *is,
                              const char *out, str *notes, err *e)
{
    AUTO(fidelity_close) fidelity f;
    AUTO(gguf_close) gguf g;
    uint64_t n_bytes = 0;
    fidelity_open(&f, c->name);
    CHECK_OK(gguf_open(&g, fidelity_write(&f, &(fidelity_file){.split_experts = true}), true, NULL,
                       NULL, e),
             *e);
    const convert_request r = {.dir = make_dir(c, &g),
                               .out = out,
                               .mix = weight_mix_named("f32"),
                               .n_threads = 1,
                               .notes = notes};
    if (was)
        patch_list(r.dir, was, is);
    status st = convert_model(&r, &n_bytes, e);
    return st;
}

static status convert_case(const family_case *c, const char *out, str *notes, err *e)
{
    return convert_patched(c, NULL, NULL, out, notes, e);
}

/* Blocks and scales come together, as bytes, in the shapes of the configuration. */
TEST(blocks_of_experts_in_other_forms_are_refused)
{
    static const char *const bad[][3] = {
        {"0.mlp.experts.gate_up_proj_blocks", "0.mlp.experts.gate_up_proj", "gate_up_proj is "},
        {"0.mlp.experts.gate_up_proj_scales", "0.mlp.experts.gate_up_proj", "gate_up_proj is "},
        {"0.mlp.experts.down_proj_blocks", "0.mlp.experts.down_proj", "down_proj is "},
        {"1.mlp.experts.down_proj_scales", "1.mlp.experts.down_proj_x", "down_proj is missing"},
        {"1.mlp.experts.down_proj_blocks", "1.mlp.experts.down_proj_x", "down_proj is missing"},
        {"_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,2,16]",
         "_blocks\":{\"dtype\":\"BF16\",\"shape\":[8,64,2,8]", "of bytes"},
        {"_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,2,16]",
         "_blocks\":{\"dtype\":\"BF16\",\"shape\":[8,16,64]", "of bytes"},
        {"_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,2,16]",
         "_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,1,32]", "of bytes"},
        {"_scales\":{\"dtype\":\"U8\",\"shape\":[8,64,2]",
         "_scales\":{\"dtype\":\"U8\",\"shape\":[8,32,4]", "of bytes"},
        {"_scales\":{\"dtype\":\"U8\",\"shape\":[8,64,2]",
         "_scales\":{\"dtype\":\"F16\",\"shape\":[8,64,1]", "of bytes"}};
    const family_case *c = cases;
    while (!c->blocks)
        c++;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        status st = convert_patched(c, bad[i][0], bad[i][1], test_temp("bad.gguf"), NULL, &e);
        CHECK_MSG(st && strstr(e.text, bad[i][2]), "%zu: %s", i, e.text);
    }
}

/* A tensor that the new file would lack is an error that names it. */
TEST(convert_refuses_tensors_without_a_use)
{
    static const char *const bad[] = {"model.layers.0.self_attn.q_proj.bias",
                                      "model.layers.0.self_attn.q_proj.lora_A.weight",
                                      "model.layers.99.input_layernorm.weight",
                                      "model.layers.1.mlp.down_proj.weight_scale",
                                      "model.layers.1.mlp.up_proj.biases",
                                      "score.weight",
                                      "lm_head.bias",
                                      "model.norm.bias",
                                      "extra"};
    static const char *const allowed[] = {"model.visual.blocks.0.norm1.weight",
                                          "model.layers.0.self_attn.rotary_emb.inv_freq"};
    const char *out = test_temp("extra.gguf");
    for (int32_t k = 0; k < 8; k += k == 4 ? 3 : 2) /* each family, and experts */
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            family_case c = cases[k];
            char name[32];
            err e = {0};
            c.extra = bad[(i + (size_t)k) % (sizeof bad / sizeof *bad)];
            CHECK_STATUS(convert_case(&c, out, NULL, &e), E_UNSUPPORTED);
            CHECK_MSG(strstr(e.text, c.extra), "%s: %s", c.extra, e.text);
            if (i < 2) {
                e = (err){0};
                c.extra = allowed[i];
                snprintf(name, sizeof name, "ok-%d-%zu.gguf", (int)k, i);
                CHECK_OK(convert_case(&c, test_temp(name), NULL, &e), e);
            }
            if (i == 3)
                break;
        }
}

/* MLX adds 1 to norms of this kind, and conversion would add it again. */
TEST(convert_knows_norms_that_mlx_has_shifted)
{
    family_case c = cases[4];
    str notes = {0};
    err e = {0};
    const char *out = test_temp("mlx.gguf");
    c.by_mlx = true;
    CHECK_STATUS(convert_case(&c, out, &notes, &e), E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "MLX"), "%s", e.text);
    c.by_mlx = false;
    c.shifted = 1;
    e = (err){0};
    CHECK_OK(convert_case(&c, out, &notes, &e), e);
    CHECK_MSG(notes.n && strstr(notes.at, "mean of the norms"), "%s", str_text(&notes));
    str_free(&notes);
    c = cases[0]; /* Qwen3 has no such norms */
    c.by_mlx = true;
    CHECK_OK(convert_case(&c, out, NULL, &e), e);
}

/* An MTP layer that config.json does not state, and a head that a tied model does not use. */
TEST(convert_says_which_known_parts_it_leaves_out)
{
    family_case c = cases[4];
    AUTO(str_free) str notes = {0};
    err e = {0};
    c.extra = "mtp.norm.weight";
    CHECK_OK(convert_case(&c, test_temp("mtp.gguf"), &notes, &e), e);
    CHECK_MSG(notes.n && strstr(notes.at, "MTP"), "%s", str_text(&notes));
    str_cut(&notes, 0);
    c = cases[5];
    c.extra = "mtp.extra.weight"; /* beside a layer that is written it has no place */
    CHECK_STATUS(convert_case(&c, test_temp("mtp2.gguf"), &notes, &e), E_UNSUPPORTED);
    e = (err){0};
    c = cases[0];
    c.extra = "lm_head.weight";
    str_cut(&notes, 0);
    CHECK_OK(convert_case(&c, test_temp("tied.gguf"), &notes, &e), e);
    CHECK_MSG(notes.n && strstr(notes.at, "lm_head.weight is not the embedding"), "%s",
              str_text(&notes));
}

/* A head that is the embedding once more is not written twice. */
TEST(convert_writes_one_of_two_equal_matrices)
{
    family_case c = cases[1];
    const char *out = test_temp("twin.gguf");
    err e = {0};
    gguf g;
    for (int i = 0; i < 2; i++) {
        c.twin = i == 1;
        CHECK_OK(convert_case(&c, out, NULL, &e), e);
        CHECK_OK(gguf_open(&g, out, false, NULL, NULL, &e), e);
        CHECK_EQ(tensor_find(&g.tensors, "output.weight") == NULL, c.twin);
        gguf_close(&g);
    }
}

/* transformers 5 saves a wrapper whose text part says false and that says true itself: it follows
 * its own key, so there is no head. */
TEST(convert_ties_a_wrapper_without_a_head)
{
    static const char outside[] = "\"tie_word_embeddings\":false", inside[] = "\"text_config\":{";
    family_case c = cases[4];
    const char *at = strstr(c.config, outside), *in = strstr(c.config, inside);
    const char *out = test_temp("outside.gguf");
    AUTO(str_free) str notes = {0};
    CHECK(at && in && at < in);
    for (int tied = 0; tied < 2; tied++) {
        str config = {0};
        gguf g;
        err e = {0};
        str_printf(&config, "%.*s\"tie_word_embeddings\":%s%.*s%s,%s", (int)(at - c.config),
                   c.config, tied ? "true" : "false",
                   (int)(in - at - (int)strlen(outside) + (int)strlen(inside)),
                   at + strlen(outside), outside, in + strlen(inside));
        family_case with = c;
        with.config = str_text(&config);
        status st = convert_patched(&with, "lm_head.weight", "visual.weight", out, &notes, &e);
        str_free(&config);
        CHECK_MSG(st == (tied ? OK : E_FORMAT), "%s", e.text);
        if (!st) {
            CHECK_OK(gguf_open(&g, out, true, NULL, NULL, &e), e);
            CHECK(!tensor_find(&g.tensors, "output.weight"));
            gguf_close(&g);
        }
    }
}

/* The shape of a case's configuration after other values; add: "KEY":VALUE, ... or "". */
static status read_patched(const family_case *c, const char *add, model_shape **s, err *e)
{
    json_t *config = NULL, *more = NULL;
    AUTO(str_free) str text = {0};
    size_t n = strlen(add);
    CHECK_OK(json_parse(&config, c->config, strlen(c->config), "config.json", e), *e);
    str_printf(&text, "{%.*s}", (int)(n ? n - 1 : 0), add);
    CHECK_OK(json_parse(&more, str_text(&text), text.n, "patch", e), *e);
    json_t *inner = json_object_get(config, "text_config");
    CHECK(!json_object_update(inner ? inner : config, more));
    status st = convert_read_shape(config, "config.json", s, NULL, e);
    json_decref(more);
    json_decref(config);
    return st;
}

/* What the arithmetic would need and does not have is refused by its name. */
TEST(options_of_families_are_refused_by_name)
{
    static const struct {
        int32_t base; /* of `cases` */
        const char *add, *word;
    } wrong[] = {
        {0, "\"use_sliding_window\":true,", "use_sliding_window"},
        {0, "\"attention_bias\":true,", "attention_bias"},
        {0, "\"hidden_act\":\"gelu\",", "hidden_act"},
        {0, "\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2},", "rope_type"},
        {0, "\"num_key_value_heads\":3,", "3 KV heads"},
        {2, "\"moe_router_logit_softcapping\":5.0,", "softcapping"},
        {2, "\"gating\":\"per-layer\",", "gating"},
        {2, "\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"sparse\"],", "dense layers"},
        {2, "\"num_attention_heads_per_layer\":[6,8,8,6],", "8 and 6 heads"},
        {6, "\"output_gate_type\":\"sigmoid\",", "output_gate_type is sigmoid"},
        {6, "\"attn_output_gate\":false,", "attn_output_gate"},
        {6, "\"mamba_ssm_dtype\":\"bfloat16\",", "mamba_ssm_dtype"},
        {6, "\"linear_num_value_heads\":4,", "linear value heads"},
        {6, "\"linear_num_key_heads\":0,", "linear_num_key_heads is 0"},
        {6, "\"linear_conv_kernel_dim\":9,", "linear_conv_kernel_dim is 9"},
        {6, "\"layer_types\":[\"full_attention\"],", "layer_types"},
        {6, "\"layer_types\":[\"mamba\",\"mamba\",\"mamba\",\"mamba\",\"mamba\"],", "layer_types"},
        {6, "\"model_type\":\"qwen3_next\",",
         "model_type is qwen3_next, and carat converts gemma4*, "},
        {6, "\"model_type\":\"gemma3n_text\",", "gemma3n_text"},
        {6, "\"model_type\":\"llama4_text\",", "ministral3, gpt_oss"},
        {6, "\"mtp_num_hidden_layers\":2,", "NextN layers"},
        {6, "\"mtp_use_dedicated_embeddings\":true,", "dedicated"},
        {6, "\"rope_parameters\":{\"rope_theta\":1e7,\"partial_rotary_factor\":0},", "partial"},
        {6, "\"rope_parameters\":{\"rope_theta\":1e7,\"mrope_section\":[9,9,9]},", "section"},
        {7, "\"norm_topk_prob\":false,", "norm_topk_prob"},
        {7, "\"mlp_only_layers\":[1],", "mlp_only_layers"},
        {7, "\"num_experts\":0,", "num_experts"},
        {7, "\"num_experts_per_tok\":9,", "num_experts_per_tok is 9"},
        {0, "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,", "dense"},
        {10, "\"attention_bias\":true,", "attention_bias"},
        {10, "\"mlp_bias\":true,", "mlp_bias"},
        {10, "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8},", "low_freq_factor"},
        {10, "\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":8},", "rope_type"},
        {10, "\"head_dim\":31,", "heads of 31"},
        {11, "\"num_attention_heads\":7,", "heads of 13"},
        {8, "\"norm_topk_prob\":null,", "norm_topk_prob"},
        {8, "\"mlp_only_layers\":[0],", "mlp_only_layers"},
        {8, "\"decoder_sparse_step\":2,", "decoder_sparse_step"},
        {8, "\"num_experts\":0,", "num_experts"},
        {8, "\"moe_intermediate_size\":null,", "moe_intermediate_size"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        model_shape *s = NULL;
        err e = {0};
        CHECK(read_patched(&cases[wrong[i].base], wrong[i].add, &s, &e) != OK && !s);
        CHECK_MSG(strstr(e.text, wrong[i].word), "%s: %s", wrong[i].add, e.text);
    }
}

/* A share of a head is multiplied as a double and then cut, as the reference does it. */
TEST(rotated_dims_of_a_share_that_is_no_power_of_two)
{
    static const struct {
        int32_t head_dim;
        const char *share;
        int32_t dims;
    } want[] = {{80, "0.7", 56}, {80, "0.9", 72},  {80, "0.6", 48}, {160, "0.35", 56},
                {80, "0.3", 24}, {160, "0.05", 8}, {40, "0.7", 28}, {256, "0.25", 64},
                {80, "1", 80},   {80, "1.0", 80}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char add[400];
        AUTO_MEM model_shape *s;
        err e = {0};
        snprintf(add, sizeof add,
                 "\"head_dim\":%d,\"rope_parameters\":{\"rope_theta\":1e7,"
                 "\"partial_rotary_factor\":%s},",
                 (int)want[i].head_dim, want[i].share);
        CHECK_OK(read_patched(&cases[4], add, &s, &e), e);
        CHECK_EQ(((qwen35_shape *)s)->n_rotating, want[i].dims);
        mem_free(s);
        snprintf(add, sizeof add,
                 "\"head_dim\":%d,\"partial_rotary_factor\":%s,\"rope_theta\":1e6,"
                 "\"rope_parameters\":{\"rope_type\":\"default\"},",
                 (int)want[i].head_dim, want[i].share);
        CHECK_OK(read_patched(&cases[4], add, &s, &e), e);
        CHECK_EQ(((qwen35_shape *)s)->n_rotating, want[i].dims);
        mem_free(s);
        snprintf(add, sizeof add,
                 "\"head_dim\":%d,\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5,"
                 "\"partial_rotary_factor\":%s},\"sliding_attention\":{\"rope_theta\":1e4,"
                 "\"partial_rotary_factor\":%s}},",
                 (int)want[i].head_dim, want[i].share, want[i].share);
        CHECK_OK(read_patched(&cases[2], add, &s, &e), e);
        CHECK_EQ(((laguna_shape *)s)->n_rot, want[i].dims);
        CHECK_EQ(((laguna_shape *)s)->n_rot_swa, want[i].dims);
    }
}

/* Other spellings of the same configuration give the same shape, byte for byte. */
TEST(equal_meanings_of_a_configuration_are_taken)
{
#define YARN "\"rope_type\":\"yarn\",\"rope_theta\":1000000.0,\"factor\":4.0,"
#define YARN_REST                                                                                  \
    "\"original_max_position_embeddings\":1024,\"attention_factor\":1.1386294361119891"
    static const struct {
        int32_t base; /* of `cases` */
        const char *add;
    } same[] = {
        {0, "\"hidden_act\":\"swish\","},
        {0, "\"rope_scaling\":{\"type\":\"default\"},"},
        {0, "\"rope_scaling\":{\"rope_type\":\"default\",\"factor\":1.0},"},
        {0, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0},"},
        {0, "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6},"},
        {0, "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":1,\"rope_theta\":1e6},"},
        {0, "\"partial_rotary_factor\":1.0,"},
        {0, "\"head_dim\":32.0,\"num_hidden_layers\":4.0,\"max_position_embeddings\":4096.0,"},
        {0, "\"rope_theta\":1000000.0,\"attention_bias\":null,\"use_sliding_window\":null,"},
        {1, "\"rope_parameters\":{" YARN YARN_REST ",\"truncate\":true},"},
        {1, "\"rope_parameters\":{" YARN YARN_REST ",\"mscale\":1,\"mscale_all_dim\":1},"},
        {1, "\"rope_parameters\":{" YARN YARN_REST ",\"beta_fast\":32,\"beta_slow\":1},"},
        {1, "\"rope_parameters\":{" YARN YARN_REST ",\"beta_fast\":0,\"beta_slow\":0},"},
        {1, "\"rope_parameters\":{" YARN YARN_REST ",\"beta_fast\":null,\"mscale\":null},"},
        {1, "\"rope_theta\":1e6,\"rope_parameters\":null,\"rope_scaling\":{\"type\":\"yarn\","
            "\"factor\":4," YARN_REST "},"},
        {1, "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6," YARN_REST "},"},
        {2, "\"hidden_act\":\"swish\","},
        {2, "\"num_attention_heads_per_layer\":[6.0,8.0,8.0,8.0],"},
        {2, "\"rope_scaling\":{\"type\":\"default\"},\"moe_router_logit_softcapping\":0.0,"},
        {4, "\"hidden_act\":\"swish\",\"output_gate_type\":\"silu\","},
        {4, "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,1,1]},"},
        {4, "\"mamba_ssm_dtype\":\"torch.float32\",\"mtp_num_hidden_layers\":0.0,"},
        {4, "\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,\"rope_parameters\":{"
            "\"mrope_section\":[2.0,1,1]},"},
        {4, "\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,\"rope_parameters\":{"
            "\"type\":\"linear\",\"factor\":1.0,\"mrope_section\":[2,1,1]},"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        AUTO_MEM model_shape *want, *s;
        err e = {0};
        CHECK_OK(read_patched(&cases[same[i].base], "", &want, &e), e);
        CHECK_MSG(!read_patched(&cases[same[i].base], same[i].add, &s, &e), "%s: %s", same[i].add,
                  e.text);
        CHECK_MSG(!memcmp(s, want, s->family->shape_bytes), "%s is another shape", same[i].add);
    }
}

/* mscale and mscale_all_dim divide two scales; the trained context defaults to the file's. */
TEST(yarn_is_scaled_as_by_the_reference)
{
    static const struct {
        const char *rope;
        double magnitude;
        int32_t n_ctx;
    } want[] = {
        {"\"factor\":4", 0, 4096},
        {"\"factor\":4,\"mscale\":1,\"mscale_all_dim\":1", 1, 4096},
        {"\"factor\":4,\"mscale\":1", 0, 4096},
        {"\"factor\":4,\"mscale\":0.707,\"mscale_all_dim\":1", 0.9643274, 4096},
        {"\"original_max_position_embeddings\":1024.0", 0, 1024},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char add[300];
        AUTO_MEM model_shape *s;
        err e = {0};
        snprintf(add, sizeof add,
                 "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6,%s},",
                 want[i].rope);
        CHECK_OK(read_patched(&cases[1], add, &s, &e), e);
        const rope_scaling *y = &((qwen3_shape *)s)->scaling;
        CHECK_MSG(fabs(y->magnitude - want[i].magnitude) < 1e-6, "%s: %g", want[i].rope,
                  y->magnitude);
        CHECK_EQ(y->n_ctx, want[i].n_ctx);
        CHECK_EQ(y->factor, 4);
    }
}

/* Numbers that the loader would refuse are refused before anything is written, by their name. */
TEST(numbers_that_no_loader_takes_are_refused)
{
#define ROPE(rest) "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6," rest "},"
    static const struct {
        int32_t base;
        const char *add, *word;
    } wrong[] = {
        {1, ROPE("\"factor\":4,\"beta_fast\":1e-9"), "beta_fast"},
        {1, ROPE("\"factor\":4,\"beta_fast\":-1"), "beta_fast"},
        {1, ROPE("\"factor\":4,\"beta_slow\":1e9"), "beta_slow"},
        {1, ROPE("\"factor\":0.5"), "factor of the rotation"},
        {1, ROPE("\"factor\":1e7"), "factor of the rotation"},
        {1, ROPE("\"factor\":4,\"attention_factor\":0"), "attention_factor"},
        {1, ROPE("\"factor\":4,\"attention_factor\":1e9"), "attention factor"},
        {1, ROPE("\"factor\":4,\"original_max_position_embeddings\":0"), "trained context"},
        {1, ROPE("\"factor\":4,\"truncate\":false"), "truncate"},
        {1, ROPE("\"factor\":\"4\""), "factor"},
        {0, "\"rope_theta\":1e13,", "rope_theta is 1e+13"},
        {0, "\"rope_theta\":0.5,", "rope_theta is 0.5"},
        {0, "\"rms_norm_eps\":2,", "rms_norm_eps is 2"},
        {0, "\"rms_norm_eps\":0,", "rms_norm_eps is 0"},
        {0, "\"head_dim\":32.5,", "head_dim"},
        {0, "\"partial_rotary_factor\":0.5,", "partial_rotary_factor"},
        {0, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5},", "factor of the rotation"},
        {0, "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1},", "rope_type"},
        {2, "\"moe_routed_scaling_factor\":1e4,", "moe_routed_scaling_factor is 10000"},
        {4, "\"max_position_embeddings\":268435456,", "max_position_embeddings is 268435456"},
        {4, "\"rope_parameters\":{\"rope_theta\":1e7,\"partial_rotary_factor\":0.66},", "rotating"},
        {4, "\"rope_parameters\":{\"rope_theta\":1e7,\"partial_rotary_factor\":1.5},", "partial"},
        {4, "\"rope_parameters\":[],", "object"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        model_shape *s = NULL;
        err e = {0};
        CHECK_MSG(read_patched(&cases[wrong[i].base], wrong[i].add, &s, &e) != OK && !s, "%s",
                  wrong[i].add);
        CHECK_MSG(strstr(e.text, wrong[i].word), "%s: %s", wrong[i].add, e.text);
    }
}
