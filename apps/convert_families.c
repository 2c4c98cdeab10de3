/* convert_families.c - what config.json of a family says beside the keys of its table.
 *
 * Every field that the arithmetic depends on is read or refused, and none
 * has a default that the publishers do not state in every file. Most files of Qwen3.5 are
 * multimodal; their text_config is read, and the head's tie may be stated outside it.
 */
#include "apps/convert_int.h"
#include "model/gemma3.h"
#include "model/gpt_oss.h"
#include "model/laguna.h"
#include "model/llama.h"
#include "model/qwen3.h"
#include "model/qwen35.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Qwen3 ---- */

/* Mixtures that carat has in every layer alone, with weights whose sum is 1. */
static void refuse_mixtures(config_fields *f, int32_t n_expert, bool norm_by_default)
{
    const json_t *dense = config_get(f, "mlp_only_layers"), *norm = config_get(f, "norm_topk_prob");
    if (dense && json_array_size(dense))
        config_refuse(f, "mlp_only_layers", "empty list");
    if (config_whole_or(f, "decoder_sparse_step", 1) != 1)
        config_refuse(f, "decoder_sparse_step", "1, which alone is supported");
    if (norm ? !config_truth(f, "norm_topk_prob") : !norm_by_default)
        config_refuse(f, "norm_topk_prob", "true, which alone is supported");
    if (!f->st && !n_expert)
        config_refuse(f, "num_experts", "number from 1 on");
}

/* Pairs of each axis: time, row, column. Texts have one position for all of them. */
static void read_axes(config_fields *f, const json_t *turn, int32_t most, int32_t section[3])
{
    const json_t *list = json_object_get(turn, "mrope_section");
    for (size_t i = 0; i < 3 && !f->st; i++)
        if (json_array_size(list) != 3 ||
            !config_integer(json_array_get(list, i), 0, most, &section[i]))
            config_refuse(f, "mrope_section", "list of three numbers of pairs");
}

/* The rotation: older files have the first object, newer ones the second. */
static void read_qwen3(config_fields *f, model_shape *m)
{
    static const char *const axes[] = {"mrope_section", "mrope_interleaved", NULL};
    qwen3_shape *s = (qwen3_shape *)m;
    const json_t *was = config_get(f, "rope_scaling"), *now = config_get(f, "rope_parameters");
    const char *type = json_string_value(config_get(f, "model_type"));
    s->sees = type && !strncmp(type, "qwen3_vl", 8);
    config_rope(f, was, s->sees ? axes : NULL, &s->theta, NULL, &s->scaling);
    config_rope(f, now, s->sees ? axes : NULL, &s->theta, NULL, &s->scaling);
    if (s->theta == 0)
        config_refuse(f, "rope_theta", "number");
    s->n_rot = s->head_dim;
    if (s->sees)
        read_axes(f, json_object_get(was, "mrope_section") ? was : now, s->head_dim, s->section);
    if (type && (!strcmp(type, "qwen3_moe") || strstr(type, "vl_moe")))
        refuse_mixtures(f, s->n_expert, false);
    else if (s->n_expert)
        config_refuse(f, "num_experts", "field of dense models");
}

/* The tower beside the text model says how many of its layers add rows. */
static void read_deepstack(config_fields *whole, model_shape *m)
{
    qwen3_shape *s = (qwen3_shape *)m;
    const json_t *tower = config_get(whole, "vision_config");
    if (s->sees)
        s->n_deep = (int32_t)json_array_size(json_object_get(tower, "deepstack_visual_indexes"));
}

static const neutral_option qwen3_options[] = {{"hidden_act", "silu"},
                                               {"attention_bias", NULL},
                                               {"use_sliding_window", NULL},
                                               {"quantization_config", NULL},
                                               {NULL, NULL}};
/* Without use_sliding_window the last two say nothing. */
static const char *const qwen3_more[] = {"rope_scaling",          "rope_parameters",
                                         "partial_rotary_factor", "layer_types",
                                         "sliding_window",        "max_window_layers",
                                         "mlp_only_layers",       "decoder_sparse_step",
                                         "norm_topk_prob",        NULL};

/* ---- Laguna ---- */

/* The heads of each layer, and the leading dense layers; a dense layer among the others is
 * refused. */
static void read_laguna_layers(config_fields *f, laguna_shape *s)
{
    const char *heads = "num_attention_heads_per_layer";
    const json_t *list = config_by_layer(f, heads, s->n_layer);
    bool dense[LAYERS_MAX] = {true}, windows = false; /* the reference's default */
    config_kinds(f, "layer_types", s->n_layer, s->swa, "sliding_attention", "full_attention");
    config_kinds(f, "mlp_layer_types", s->n_layer, dense, "dense", "sparse");
    for (int32_t il = 0; il < s->n_layer && !f->st; il++) {
        if (list && !config_integer(json_array_get(list, (size_t)il), 1, HEADS_MAX, &s->n_head[il]))
            config_refuse(f, heads, "list of numbers of heads");
        windows |= s->swa[il];
        if (dense[il] && s->n_dense < il)
            config_refuse(f, "mlp_layer_types", "list of dense layers, then sparse ones");
        s->n_dense += dense[il];
    }
    s->window = windows ? s->window : 0;
}

/* gating_types, a list, is the authority; else gating: true, "per-head" or "per-element". */
static void read_laguna_gate(config_fields *f, laguna_shape *s)
{
    const json_t *list = config_get(f, "gating_types"), *one = config_get(f, "gating");
    const char *kind = json_string_value(one);
    if (json_is_array(list))
        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *k = json_string_value(json_array_get(list, i));
            if (!k || (i && (!kind || strcmp(k, kind) != 0)))
                config_refuse(f, "gating_types", "list of one kind of gate");
            kind = k;
        }
    s->gate_per_element = kind && !strcmp(kind, "per-element");
    if (kind ? !s->gate_per_element && strcmp(kind, "per-head") != 0 : !json_is_true(one))
        config_refuse(f, "gating", "per-head or per-element");
}

static void read_laguna_rope(config_fields *f, laguna_shape *s)
{
    const json_t *rotation = config_get(f, "rope_parameters");
    const json_t *full = json_object_get(rotation, "full_attention");
    const json_t *swa = json_object_get(rotation, "sliding_attention");
    double part = 1, part_swa = 1;
    rope_scaling none = {0};
    if (!full || (s->window && !swa)) {
        config_refuse(f, "rope_parameters", "pair of full_attention and sliding_attention");
        return;
    }
    config_rope(f, full, NULL, &s->theta, &part, &s->scaling);
    s->theta_swa = 1e4;
    if (swa)
        config_rope(f, swa, NULL, &s->theta_swa, &part_swa, &none);
    if (none.kind && s->window)
        config_refuse(f, "rope_parameters", "plain rotation of window layers");
    s->n_rot = (int32_t)(part * s->head_dim);
    s->n_rot_swa = (int32_t)(part_swa * s->head_dim);
}

static void read_laguna(config_fields *f, model_shape *m)
{
    laguna_shape *s = (laguna_shape *)m;
    read_laguna_layers(f, s);
    read_laguna_gate(f, s);
    if (!f->st)
        read_laguna_rope(f, s);
}

static const neutral_option laguna_options[] = {{"hidden_act", "silu"},
                                                {"attention_bias", NULL},
                                                {"quantization_config", NULL},
                                                {"rope_scaling", NULL},
                                                {"moe_router_logit_softcapping", NULL},
                                                {"moe_apply_router_weight_on_input", NULL},
                                                {NULL, NULL}};
static const char *const laguna_more[] = {"num_attention_heads_per_layer",
                                          "rope_parameters",
                                          "partial_rotary_factor",
                                          "layer_types",
                                          "mlp_layer_types",
                                          "gating",
                                          "gating_types",
                                          NULL};

/* ---- Qwen3.5 ---- */

/* layer_types, or full_attention_interval, which published files have beside it. */
static void read_qwen35_layers(config_fields *f, qwen35_shape *s)
{
    bool listed = config_get(f, "layer_types") != NULL, any = false;
    int32_t every = config_whole_or(f, "full_attention_interval", listed ? 0 : 4);
    if (f->st)
        return;
    config_kinds(f, "layer_types", s->n_layer, s->full, "full_attention", "linear_attention");
    if (!listed && every < 1)
        config_refuse(f, "full_attention_interval", "number from 1 on");
    for (int32_t il = 0; il < s->n_layer && !f->st; il++) {
        s->full[il] = listed ? s->full[il] : (il + 1) % every == 0;
        any |= s->full[il];
    }
    if (!any)
        config_refuse(f, "layer_types", "list with full_attention");
}

static void read_qwen35_rotation(config_fields *f, qwen35_shape *s)
{
    static const char *const more[] = {"mrope_section", "mrope_interleaved", NULL};
    const json_t *now = config_get(f, "rope_parameters"), *list;
    double part = 0.25;
    config_rope(f, config_get(f, "rope_scaling"), more, &s->theta, &part, &s->scaling);
    config_rope(f, now, more, &s->theta, &part, &s->scaling);
    if (!(s->theta > 0))
        config_refuse(f, "rope_theta", "number");
    if (f->st)
        return;
    s->n_rotating = (int32_t)(part * s->head_dim);
    list = json_object_get(now, "mrope_section");
    if (list && !json_is_null(list))
        read_axes(f, now, s->n_rotating, s->section);
}

static void read_qwen35_experts(config_fields *f, qwen35_shape *s)
{
    s->n_expert = config_whole(f, "num_experts");
    s->n_used = config_whole(f, "num_experts_per_tok");
    s->n_ff_exp = config_whole(f, "moe_intermediate_size");
    s->n_ff = config_whole(f, "shared_expert_intermediate_size");
    refuse_mixtures(f, s->n_expert, true);
}

/* Options with a value that is supported beside their absence. */
static void refuse_qwen35_variants(config_fields *f)
{
    const char *gate = json_string_value(config_get(f, "output_gate_type"));
    if (!f->st && config_get(f, "attn_output_gate") && !config_truth(f, "attn_output_gate"))
        f->st =
            err_set(f->e, E_UNSUPPORTED, "%s: attn_output_gate is false, expected true", f->path);
    /* The gate of the delta rule. Qwen3.8-Flash-Next has a sigmoid there. */
    if (!f->st && config_get(f, "output_gate_type") && !config_same(gate, "swish"))
        f->st = err_set(f->e, E_UNSUPPORTED, "%s: output_gate_type is %.60s, expected swish",
                        f->path, gate ? gate : "no text");
}

static void read_qwen35(config_fields *f, model_shape *m)
{
    qwen35_shape *s = (qwen35_shape *)m;
    const char *type = json_string_value(config_get(f, "model_type"));
    s->inner = config_whole(f, "linear_num_value_heads") * s->dv;
    if (s->n_nextn > 1)
        f->st = f->st ? f->st
                      : err_set(f->e, E_ARG,
                                "%s: mtp_num_hidden_layers (NextN layers) is %d, expected 0 or 1",
                                f->path, s->n_nextn);
    read_qwen35_layers(f, s);
    read_qwen35_rotation(f, s);
    if (type && strstr(type, "moe"))
        read_qwen35_experts(f, s);
    else
        s->n_ff = config_whole(f, "intermediate_size");
    refuse_qwen35_variants(f);
}

static const neutral_option qwen35_options[] = {{"hidden_act", "silu"},
                                                {"attention_bias", NULL},
                                                {"quantization_config", NULL},
                                                {"mamba_ssm_dtype", "float32"},
                                                {"mtp_use_dedicated_embeddings", NULL},
                                                {NULL, NULL}};
static const char *const qwen35_more[] = {"rope_scaling",
                                          "rope_parameters",
                                          "partial_rotary_factor",
                                          "layer_types",
                                          "mlp_only_layers",
                                          "decoder_sparse_step",
                                          "norm_topk_prob",
                                          "full_attention_interval",
                                          "attn_output_gate",
                                          "output_gate_type",
                                          NULL};

/* ---- Llama and Mistral ---- */

/* rope_type llama3: false for another. */
static bool read_llama3(config_fields *f, const json_t *turn, llama_shape *s)
{
    config_fields r = {turn, f->path, f->st, f->e};
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "partial_rotary_factor",
                                        "factor",
                                        "original_max_position_embeddings",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        NULL};
    const char *key;
    json_t *v;
    if (strcmp(config_rope_kind(turn), "llama3") != 0)
        return false;
    json_object_foreach((json_t *)turn, key, v) if (!r.st && !json_is_null(v) &&
                                                    !text_is_one_of(known, key, strlen(key))) r.st =
        err_set(f->e, E_UNSUPPORTED, "%s: rotation: %.60s is not supported", f->path, key);
    s->llama3 = (llama3_scaling){.factor = config_real(&r, "factor"),
                                 .low = config_real(&r, "low_freq_factor"),
                                 .high = config_real(&r, "high_freq_factor"),
                                 .n_ctx = config_whole(&r, "original_max_position_embeddings")};
    s->theta = config_real_or(&r, "rope_theta", config_real_or(f, "rope_theta", s->theta));
    if (!(s->llama3.factor >= 1 && s->llama3.low > 0 && s->llama3.high > s->llama3.low &&
          s->llama3.n_ctx >= 1) ||
        config_real_or(&r, "partial_rotary_factor", 1) != 1)
        config_refuse(&r, "rope_type", "llama3 with a factor from 1 on and 0 < low < high");
    f->st = r.st;
    return true;
}

static void read_llama(config_fields *f, model_shape *m)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    static const char *const more[] = {"llama_4_scaling_beta", "max_position_embeddings", NULL};
    llama_shape *s = (llama_shape *)m;
    s->theta = 1e4;
    for (int i = 0; i < 2; i++)
        if (!read_llama3(f, config_get(f, names[i]), s))
            config_rope(f, config_get(f, names[i]), more, &s->theta, NULL, &s->scaling);
    for (int i = 0; i < 2 && !f->st; i++) {
        config_fields r = {config_get(f, names[i]), f->path, f->st, f->e};
        s->temperature = config_real_or(&r, "llama_4_scaling_beta", s->temperature);
        f->st = r.st;
    }
    if (!f->st && s->temperature != 0 && s->scaling.kind != SCALING_YARN)
        config_refuse(f, "rope_parameters", "rotation by YaRN beside llama_4_scaling_beta");
    if (!f->st && !s->head_dim && s->n_head)
        s->head_dim = s->n_embd / s->n_head;
    s->n_rot = s->head_dim;
}

static const neutral_option llama_options[] = {{"hidden_act", "silu"},
                                               {"attention_bias", NULL},
                                               {"mlp_bias", NULL},
                                               {"quantization_config", NULL},
                                               {NULL, NULL}};
/* pretraining_tp divides products, and changes no result. */
static const char *const llama_more[] = {"rope_scaling", "rope_parameters", "partial_rotary_factor",
                                         "pretraining_tp", NULL};

/* ---- gpt-oss ---- */

/* Without a list windows are in layers 0, 2, ..: that is the reference's default. */
static void read_gpt_oss_layers(config_fields *f, gpt_oss_shape *s)
{
    for (int32_t il = 0; il < s->n_layer; il++)
        s->swa[il] = il % 2 == 0;
    config_kinds(f, "layer_types", s->n_layer, s->swa, "sliding_attention", "full_attention");
}

/* The blend of YaRN, and the cut of the experts' units, are of the family, not of its files. */
static void read_gpt_oss(config_fields *f, model_shape *m)
{
    static const char *const more[] = {"truncate", NULL};
    gpt_oss_shape *s = (gpt_oss_shape *)m;
    const json_t *blocks = config_get(f, "quantization_config");
    const char *method = json_string_value(json_object_get(blocks, "quant_method"));
    read_gpt_oss_layers(f, s);
    s->theta = 1.5e5;
    if (!config_get(f, "rope_scaling") && !config_get(f, "rope_parameters")) /* the reference's */
        s->scaling = (rope_scaling){SCALING_YARN, 32, 4096, 32, 1, 0, true};
    config_rope(f, config_get(f, "rope_scaling"), more, &s->theta, NULL, &s->scaling);
    config_rope(f, config_get(f, "rope_parameters"), more, &s->theta, NULL, &s->scaling);
    if (s->scaling.kind == SCALING_YARN && !s->scaling.unrounded)
        config_refuse(f, "truncate", "false, which alone is supported of gpt-oss");
    if (config_real_or(f, "swiglu_limit", SWIGLU_CUT) != SWIGLU_CUT)
        config_refuse(f, "swiglu_limit", "7, which alone is supported");
    if (config_get(f, "attention_bias") && !config_truth(f, "attention_bias"))
        config_refuse(f, "attention_bias", "true, which alone is supported of gpt-oss");
    if (blocks && !config_same(method, "mxfp4"))
        config_refuse(f, "quantization_config", "mxfp4, or none");
}

static const neutral_option gpt_oss_options[] = {{"hidden_act", "silu"}, {NULL, NULL}};
/* The number of trained positions without YaRN is in rope_scaling too. */
static const char *const gpt_oss_more[] = {
    "layer_types",    "rope_scaling",        "rope_parameters",        "partial_rotary_factor",
    "attention_bias", "quantization_config", "initial_context_length", NULL};

/* ---- Gemma 4 ---- */

void convert_gemma4_layers(config_fields *f, gemma4_shape *s)
{
    if (f->st || s->n_layer > LAYERS_MAX)
        return; /* table_check reports this */
    if (!config_get(f, "layer_types"))
        config_refuse(f, "layer_types", "list with an entry per layer");
    config_kinds(f, "layer_types", s->n_layer, s->swa, "sliding_attention", "full_attention");
}

/* One kind of layer's rotation. A key that is not known here could change it. */
static config_fields rope_of(const config_fields *f, const json_t *both, const char *kind)
{
    static const char *const known[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                        "factor",    NULL};
    config_fields r = {json_object_get(both, kind), f->path, f->st, f->e};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)r.object, key, v) if (!r.st &&
                                                        !text_is_one_of(known, key, strlen(key)) &&
                                                        !json_is_null(v)) r.st =
        err_set(f->e, E_UNSUPPORTED, "%s: rope_parameters.%s.%.60s is not supported", f->path, kind,
                key);
    return r;
}

void convert_gemma4_rope(config_fields *f, gemma4_shape *s)
{
    const json_t *both = config_get(f, "rope_parameters");
    config_fields full = rope_of(f, both, "full_attention"),
                  swa = rope_of(f, both, "sliding_attention");
    const char *kind = config_rope_kind(full.object), *kind_swa = config_rope_kind(swa.object);
    f->st = full.st ? full.st : swa.st;
    if (f->st)
        return;
    if (!full.object || !swa.object || strcmp(kind_swa, "default") != 0 ||
        (strcmp(kind, "proportional") != 0 && strcmp(kind, "default") != 0)) {
        config_refuse(f, "rope_parameters", "pair of a proportional and a default rotation");
        return;
    }
    bool proportional = !strcmp(kind, "proportional");
    s->theta = config_real(&full, "rope_theta");
    s->theta_swa = config_real(&swa, "rope_theta");
    s->rotary_part = proportional ? config_real(&full, "partial_rotary_factor") : 1;
    s->rope_factor = proportional && config_get(&full, "factor") ? config_real(&full, "factor") : 1;
    const config_fields *whole_heads[] = {proportional ? &swa : &full, &swa};
    for (int i = 0; i < 2; i++)
        if (config_get(whole_heads[i], "partial_rotary_factor") &&
            json_number_value(config_get(whole_heads[i], "partial_rotary_factor")) != 1)
            config_refuse(f, "rope_parameters",
                          "rotation of whole heads where the type is default");
    f->st = f->st ? f->st : full.st ? full.st : swa.st;
}

void convert_gemma4_overrides(config_fields *f, gemma4_shape *s)
{
    const json_t *table = config_get(f, "per_layer_config");
    const char *key;
    json_t *v;
    bool first = true;
    if (f->st || !table)
        return;
    json_object_foreach((json_t *)table, key, v)
    {
        char *end;
        long il = strtol(key, &end, 10);
        if (end == key || *end || il < 0 || il >= s->n_layer) {
            config_refuse(f, "per_layer_config", "table by layer number");
            return;
        }
        config_fields one = {v, f->path, OK, f->e};
        int32_t hd =
            config_whole_or(&one, "head_dim", s->swa[il] ? s->head_dim : s->head_dim_global);
        int32_t kv = config_whole_or(&one, "num_key_value_heads",
                                     s->swa[il] ? s->n_head_kv : s->n_head_kv_global);
        if (!one.st && !s->swa[il] && first) {
            s->head_dim_global = hd;
            s->n_head_kv_global = kv;
            first = false;
        }
        if (one.st || hd != gemma4_head_dim(s, (int32_t)il) ||
            kv != gemma4_n_head_kv(s, (int32_t)il)) {
            f->st = one.st ? one.st
                           : err_set(f->e, E_UNSUPPORTED,
                                     "%s: per_layer_config gives layers of one kind different "
                                     "head sizes",
                                     f->path);
            return;
        }
    }
}

static void read_gemma4(config_fields *f, model_shape *m)
{
    gemma4_shape *s = (gemma4_shape *)m;
    s->n_head = config_whole(f, "num_attention_heads");
    s->n_head_kv = config_whole(f, "num_key_value_heads");
    s->k_eq_v = config_truth(f, "attention_k_eq_v");
    s->head_dim_global = config_whole_or(f, "global_head_dim", s->head_dim);
    /* The reference uses this field only together with attention_k_eq_v. */
    s->n_head_kv_global =
        s->k_eq_v ? config_whole_or(f, "num_global_key_value_heads", s->n_head_kv) : s->n_head_kv;
    s->n_ff = config_whole(f, "intermediate_size");
    s->double_wide = config_truth(f, "use_double_wide_mlp");
    if (config_truth(f, "enable_moe_block")) {
        s->n_expert = config_whole(f, "num_experts");
        s->n_used = config_whole(f, "top_k_experts");
        s->n_ff_exp = config_whole(f, "moe_intermediate_size");
    }
    convert_gemma4_layers(f, s);
    convert_gemma4_rope(f, s);
    convert_gemma4_overrides(f, s);
}

/* Options of the reference that change the arithmetic and that no Gemma 4 model uses. */
static const neutral_option gemma4_options[] = {
    {"hidden_activation", "gelu_pytorch_tanh"},
    {"hidden_act", "gelu_pytorch_tanh"},
    {"attention_bias", NULL},
    {"mlp_bias", NULL},
    {"attn_logit_softcapping", NULL},
    {"rope_scaling", NULL},
    {"quantization_config", NULL},
    {"use_bidirectional_attention", "vision"}, /* between images; text stays causal */
    {NULL, NULL}};
static const char *const gemma4_more[] = {
    "attention_k_eq_v", "num_global_key_value_heads", "use_double_wide_mlp", "enable_moe_block",
    "layer_types", "rope_parameters", "per_layer_config",
    /* the table of per-layer embeddings says its own size */
    "vocab_size_per_layer_input",
    /* for other programs, or token ids, which the tokenizer's files state */
    "attn_implementation", "experts_implementation", "boa_token_id", "boi_token_id", "eoa_token_id",
    "eoi_token_id", "image_token_id", "audio_token_id", "video_token_id", "sep_token_id",
    "cache_implementation", "num_labels", "vision_config", "audio_config", NULL};

/* ---- Gemma 3 ---- */

/* Published files state no more than what differs from the reference's 4B. */
static void fill_gemma3(gemma3_shape *s)
{
    s->n_head = s->n_head ? s->n_head : 8;
    s->n_head_kv = s->n_head_kv ? s->n_head_kv : 4;
    s->head_dim = s->head_dim ? s->head_dim : 256;
    s->n_ctx_train = s->n_ctx_train ? s->n_ctx_train : 131072;
    s->n_vocab = s->n_vocab ? s->n_vocab : 262208;
    s->eps = s->eps > 0 ? s->eps : 1e-6;
}

/* layer_types, or a period whose last layer is global. */
static void read_gemma3_layers(config_fields *f, gemma3_shape *s)
{
    bool listed = config_get(f, "layer_types") != NULL, windows = false;
    int32_t period = config_whole_or(f, "sliding_window_pattern",
                                     config_whole_or(f, "_sliding_window_pattern", 6));
    if (!f->st && period < 1)
        config_refuse(f, "sliding_window_pattern", "number from 1 on");
    if (f->st)
        return;
    config_kinds(f, "layer_types", s->n_layer, s->swa, "sliding_attention", "full_attention");
    for (int32_t il = 0; il < s->n_layer; il++) {
        s->swa[il] = listed ? s->swa[il] : (il + 1) % period != 0;
        windows |= s->swa[il];
    }
    s->window = windows ? s->window : 0;
}

/* Older files have rope_scaling beside two bases, newer ones an object for each kind of layer. */
static void read_gemma3_rope(config_fields *f, gemma3_shape *s)
{
    const json_t *both = config_get(f, "rope_parameters");
    const json_t *full = json_object_get(both, "full_attention");
    const json_t *swa = json_object_get(both, "sliding_attention");
    rope_scaling none = {0};
    s->theta = 1e6;
    s->theta_swa = config_real_or(f, "rope_local_base_freq", 1e4);
    config_rope(f, full ? full : config_get(f, "rope_scaling"), NULL, &s->theta, NULL, &s->scaling);
    if (swa)
        config_rope(f, swa, NULL, &s->theta_swa, NULL, &none);
    if (none.kind)
        config_refuse(f, "rope_parameters", "plain rotation of window layers");
}

static void read_gemma3(config_fields *f, model_shape *m)
{
    gemma3_shape *s = (gemma3_shape *)m;
    fill_gemma3(s);
    read_gemma3_layers(f, s);
    read_gemma3_rope(f, s);
    double scalar = config_real_or(f, "query_pre_attn_scalar", 256);
    if (!f->st && !(scalar > 0))
        config_refuse(f, "query_pre_attn_scalar", "number above 0");
    if (!f->st && fabs(1 / sqrt(scalar) - gemma3_scale(s)) > 1e-9)
        s->scale = 1 / sqrt(scalar);
}

static void read_encoder(config_fields *f, model_shape *m)
{
    gemma3_shape *s = (gemma3_shape *)m;
    read_gemma3(f, m);
    s->pooling = POOLING_MEAN; /* unless modules.json says otherwise */
    if (!f->st && s->scale > 0)
        config_refuse(f, "query_pre_attn_scalar", "head_dim: GGUF files of encoders have no scale");
}

/* EmbeddingGemma has all but the first. */
static const neutral_option gemma3_options[] = {{"use_bidirectional_attention", NULL},
                                                {"hidden_activation", "gelu_pytorch_tanh"},
                                                {"hidden_act", "gelu_pytorch_tanh"},
                                                {"attention_bias", NULL},
                                                {"attn_logit_softcapping", NULL},
                                                {"quantization_config", NULL},
                                                {NULL, NULL}};
static const char *const gemma3_more[] = {"use_bidirectional_attention",
                                          "layer_types",
                                          "sliding_window_pattern",
                                          "_sliding_window_pattern",
                                          "rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "query_pre_attn_scalar",
                                          "cache_implementation",
                                          "attn_implementation",
                                          NULL};

/* ---- The list ---- */

const config_family config_families[] = {
    {&gemma4_shapes, {"gemma4*"}, gemma4_options, gemma4_more, read_gemma4, true, NULL, NULL},
    {&gemma_embedding_shapes,
     {"gemma3_text"},
     gemma3_options + 1,
     gemma3_more,
     read_encoder,
     true,
     "use_bidirectional_attention",
     NULL},
    {&gemma3_shapes,
     {"gemma3", "gemma3_text"},
     gemma3_options,
     gemma3_more,
     read_gemma3,
     true,
     NULL,
     NULL},
    {&qwen3_shapes,
     {"qwen3", "qwen3_moe", "qwen3_vl*"},
     qwen3_options,
     qwen3_more,
     read_qwen3,
     false,
     NULL,
     read_deepstack},
    {&laguna_shapes, {"laguna"}, laguna_options, laguna_more, read_laguna, false, NULL, NULL},
    {&qwen35_shapes,
     {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"},
     qwen35_options,
     qwen35_more,
     read_qwen35,
     false,
     NULL,
     NULL},
    {&llama_shapes,
     {"llama", "mistral", "mistral3", "mixtral", "ministral3"},
     llama_options,
     llama_more,
     read_llama,
     false,
     NULL,
     NULL},
    {&gpt_oss_shapes, {"gpt_oss"}, gpt_oss_options, gpt_oss_more, read_gpt_oss, false, NULL, NULL},
    {.shapes = NULL}};
