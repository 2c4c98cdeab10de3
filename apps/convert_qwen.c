/* convert_qwen.c - config.json of Qwen3.5, 3.6 and 3.8 to a shape, dense and with experts.
 *
 * As in convert_families.c: what the arithmetic depends on is read or refused. Most files are
 * multimodal; their text_config is read, and the head's tie may be stated outside it.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/qwen35_shapes.h"

#include <string.h>

/* layer_types, or full_attention_interval, which published files have beside it. */
static void read_layers(config_fields *f, qwen35_shape *s)
{
    bool listed = config_get(f, "layer_types") != NULL, any = false;
    int32_t every = config_whole_or(f, "full_attention_interval", listed ? 0 : 4);
    if (f->st || s->n_layer > SHAPE_LAYERS_MAX)
        return; /* qwen35_shape_check reports this */
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

static void read_rotation(config_fields *f, qwen35_shape *s)
{
    static const char *const more[] = {"mrope_section", "mrope_interleaved", NULL};
    const json_t *rope = config_get(f, "rope_parameters"), *list;
    double part = 0.25;
    config_rope(f, config_get(f, "rope_scaling"), more, &s->theta, &part, &s->yarn);
    config_rope(f, rope, more, &s->theta, &part, &s->yarn);
    if (!(s->theta > 0))
        config_refuse(f, "rope_theta", "number");
    if (f->st)
        return;
    s->n_rotating = (int32_t)(part * s->head_dim);
    /* Texts have one position for all sections, so these are for other readers. */
    list = json_object_get(rope, "mrope_section");
    if (!list || json_is_null(list))
        return;
    for (size_t i = 0; i < 3; i++)
        if (json_array_size(list) != 3 ||
            !config_integer(json_array_get(list, i), 0, s->n_rotating, &s->section[i]))
            config_refuse(f, "mrope_section", "list of three numbers of pairs");
}

static void read_experts(config_fields *f, qwen35_shape *s)
{
    const json_t *dense = config_get(f, "mlp_only_layers");
    if (dense && json_array_size(dense))
        config_refuse(f, "mlp_only_layers", "empty list");
    if (config_whole_or(f, "decoder_sparse_step", 1) != 1)
        config_refuse(f, "decoder_sparse_step", "1, which alone is supported");
    if (config_get(f, "norm_topk_prob") && !config_truth(f, "norm_topk_prob"))
        config_refuse(f, "norm_topk_prob", "true, which alone is supported");
    s->n_expert = config_whole(f, "num_experts");
    s->n_expert_used = config_whole(f, "num_experts_per_tok");
    s->n_ff_expert = config_whole(f, "moe_intermediate_size");
    s->n_ff = config_whole(f, "shared_expert_intermediate_size");
    if (!f->st && !s->n_expert)
        config_refuse(f, "num_experts", "number from 1 on");
}

/* What only one value of is supported. */
static void refuse_variants(config_fields *f)
{
    static const neutral_option options[] = {{"hidden_act", "silu"},
                                             {"attention_bias", NULL},
                                             {"quantization_config", NULL},
                                             {"mamba_ssm_dtype", "float32"},
                                             {"mtp_use_dedicated_embeddings", NULL}};
    const char *gate = json_string_value(config_get(f, "output_gate_type"));
    config_refuse_options(f, options, sizeof options / sizeof *options);
    if (!f->st && config_get(f, "attn_output_gate") && !config_truth(f, "attn_output_gate"))
        f->st =
            err_set(f->e, E_UNSUPPORTED, "%s: attn_output_gate is false, expected true", f->path);
    /* The gate of the delta rule. Qwen3.8-Flash-Next has a sigmoid there. */
    if (!f->st && config_get(f, "output_gate_type") && !config_same(gate, "swish"))
        f->st = err_set(f->e, E_UNSUPPORTED, "%s: output_gate_type is %.60s, expected swish",
                        f->path, gate ? gate : "no text");
}

static status read_qwen35(const json_t *config, const char *path, qwen35_shape *s, str *unknown,
                          err *e)
{
    static const char *const known[] = {"model_type",
                                        "num_hidden_layers",
                                        "hidden_size",
                                        "vocab_size",
                                        "num_attention_heads",
                                        "num_key_value_heads",
                                        "head_dim",
                                        "intermediate_size",
                                        "max_position_embeddings",
                                        "rms_norm_eps",
                                        "rope_theta",
                                        "rope_scaling",
                                        "rope_parameters",
                                        "partial_rotary_factor",
                                        "tie_word_embeddings",
                                        "layer_types",
                                        "full_attention_interval",
                                        "linear_num_key_heads",
                                        "linear_num_value_heads",
                                        "linear_key_head_dim",
                                        "linear_value_head_dim",
                                        "linear_conv_kernel_dim",
                                        "num_experts",
                                        "num_experts_per_tok",
                                        "moe_intermediate_size",
                                        "shared_expert_intermediate_size",
                                        "mlp_only_layers",
                                        "decoder_sparse_step",
                                        "norm_topk_prob",
                                        "mtp_num_hidden_layers",
                                        "mtp_use_dedicated_embeddings",
                                        "hidden_act",
                                        "attention_bias",
                                        "attn_output_gate",
                                        "output_gate_type",
                                        "mamba_ssm_dtype",
                                        "quantization_config",
                                        CONFIG_WITHOUT_EFFECT,
                                        NULL};
    const json_t *text = json_object_get(config, "text_config");
    config_fields f = {text ? text : config, path, OK, e}, whole = {config, path, OK, e};
    const char *type = json_string_value(config_get(&f, "model_type"));
    const char *tie = "tie_word_embeddings";
    *s = (qwen35_shape){.family = &qwen35_shapes, .name = "converted"};
    if (!type || strncmp(type, "qwen3_5", 7) != 0)
        return err_set(e, E_UNSUPPORTED, "%s: model_type is %.64s, expected qwen3_5_text", path,
                       type ? type : "missing");
    s->n_layer = config_whole(&f, "num_hidden_layers");
    s->n_embd = config_whole(&f, "hidden_size");
    s->n_vocab = config_whole(&f, "vocab_size");
    s->n_head = config_whole(&f, "num_attention_heads");
    s->n_head_kv = config_whole(&f, "num_key_value_heads");
    s->head_dim = config_whole(&f, "head_dim");
    s->n_k = config_whole(&f, "linear_num_key_heads");
    s->n_v = config_whole(&f, "linear_num_value_heads");
    s->dk = config_whole(&f, "linear_key_head_dim");
    s->dv = config_whole(&f, "linear_value_head_dim");
    s->n_taps = config_whole(&f, "linear_conv_kernel_dim");
    s->n_ctx_train = config_whole(&f, "max_position_embeddings");
    s->eps = config_real(&f, "rms_norm_eps");
    s->n_nextn = config_whole_or(&f, "mtp_num_hidden_layers", 0);
    read_layers(&f, s);
    read_rotation(&f, s);
    if (strstr(type, "moe"))
        read_experts(&f, s);
    else
        s->n_ff = config_whole(&f, "intermediate_size");
    refuse_variants(&f);
    s->tied = config_get(&f, tie) ? config_truth(&f, tie) : config_truth(&whole, tie);
    config_list_unknown(&f, known, unknown);
    f.st = f.st ? f.st : whole.st;
    return f.st ? f.st : qwen35_shape_check(s, path, e);
}

status convert_qwen35_shape(const json_t *config, const char *path, model_shape **out, str *unknown,
                            err *e)
{
    qwen35_shape *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, path, sizeof *s);
    status st = read_qwen35(config, path, s, unknown, e);
    if (st)
        mem_free(s);
    else
        *out = &s->common;
    return st;
}
