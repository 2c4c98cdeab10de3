/* convert_families.c - config.json of Qwen3 dense and of Laguna to a shape.
 *
 * As in convert_config.c: every field that the arithmetic depends on is read or refused, and none
 * has a default that the publishers do not state in every file.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/laguna_shapes.h"

#include <stdio.h>
#include <string.h>

/* ---- Qwen3 ---- */

static status read_qwen3(const json_t *config, const char *path, qwen3_shape *s, bool *tied,
                         str *unknown, err *e)
{
    static const char *const known[] = {
        "model_type", "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings",
        "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
        "tie_word_embeddings", "hidden_act", "attention_bias", "use_sliding_window",
        "quantization_config", "layer_types",
        /* without use_sliding_window these two say nothing */
        "sliding_window", "max_window_layers", CONFIG_WITHOUT_EFFECT, NULL};
    static const neutral_option options[] = {{"hidden_act", "silu"},
                                             {"attention_bias", NULL},
                                             {"use_sliding_window", NULL},
                                             {"quantization_config", NULL}};
    config_fields f = {config, path, OK, e};
    *s = (qwen3_shape){.family = &qwen3_shapes, .name = "converted"};
    s->n_layer = config_whole(&f, "num_hidden_layers");
    s->n_embd = config_whole(&f, "hidden_size");
    s->n_vocab = config_whole(&f, "vocab_size");
    s->n_head = config_whole(&f, "num_attention_heads");
    s->n_head_kv = config_whole(&f, "num_key_value_heads");
    s->head_dim = config_whole(&f, "head_dim"); /* not hidden_size / num_attention_heads */
    s->n_ff = config_whole(&f, "intermediate_size");
    s->n_ctx_train = config_whole(&f, "max_position_embeddings");
    s->eps = config_real(&f, "rms_norm_eps");
    /* Older files have the first, newer ones the second. */
    config_rope(&f, config_get(&f, "rope_scaling"), NULL, &s->theta, NULL, &s->yarn);
    config_rope(&f, config_get(&f, "rope_parameters"), NULL, &s->theta, NULL, &s->yarn);
    if (s->theta == 0)
        config_refuse(&f, "rope_theta", "number");
    config_refuse_options(&f, options, sizeof options / sizeof *options);
    s->tied = config_truth(&f, "tie_word_embeddings");
    config_list_unknown(&f, known, unknown);
    status st = f.st ? f.st : qwen3_shape_check(s, path, e);
    if (!st)
        *tied = s->tied;
    return st;
}

status convert_qwen3_shape(const json_t *config, const char *path, model_shape **out, bool *tied,
                           str *unknown, err *e)
{
    qwen3_shape *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, path, sizeof *s);
    status st = read_qwen3(config, path, s, tied, unknown, e);
    if (st)
        mem_free(s);
    else
        *out = &s->common;
    return st;
}

/* ---- Laguna ---- */

/* layer_types, and the heads of both kinds of layers. */
static void read_laguna_layers(config_fields *f, laguna_shape *s)
{
    const json_t *kinds = config_get(f, "layer_types");
    const json_t *heads = config_get(f, "num_attention_heads_per_layer");
    int32_t n = s->n_layer, seen[2] = {0, 0};
    if (f->st || n > SHAPE_LAYERS_MAX)
        return; /* laguna_shape_check reports this */
    if (kinds && (!json_is_array(kinds) || json_array_size(kinds) != (size_t)n))
        config_refuse(f, "layer_types", "list with an entry per layer");
    if (heads && (!json_is_array(heads) || json_array_size(heads) != (size_t)n))
        config_refuse(f, "num_attention_heads_per_layer", "list with an entry per layer");
    for (int32_t il = 0; il < n && !f->st; il++) {
        const char *kind = json_string_value(json_array_get(kinds, (size_t)il));
        const json_t *h = json_array_get(heads, (size_t)il);
        int32_t count = heads ? 0 : s->n_head;
        config_integer(h, 1, 4096, &count);
        s->swa[il] = kind && !strcmp(kind, "sliding_attention");
        if (kinds && (!kind || (!s->swa[il] && strcmp(kind, "full_attention") != 0)))
            config_refuse(f, "layer_types", "list of sliding_attention and full_attention");
        int32_t *of = &seen[s->swa[il]];
        if (count < 1 || count > 4096 || (*of && *of != count))
            config_refuse(f, "num_attention_heads_per_layer",
                          "list with one number for all layers of a kind");
        *of = count;
    }
    s->n_head = seen[0] ? seen[0] : seen[1];
    s->n_head_swa = seen[1] ? seen[1] : seen[0];
    s->window = seen[1] ? s->window : 0;
}

/* The leading dense layers; a dense layer among the others is refused. */
static void read_laguna_experts(config_fields *f, laguna_shape *s)
{
    const json_t *kinds = config_get(f, "mlp_layer_types");
    s->n_expert = config_whole(f, "num_experts");
    s->n_expert_used = config_whole(f, "num_experts_per_tok");
    s->n_ff_expert = config_whole(f, "moe_intermediate_size");
    s->n_ff_shared = config_whole(f, "shared_expert_intermediate_size");
    s->expert_scale = config_real(f, "moe_routed_scaling_factor");
    s->n_dense = 1; /* the reference's default */
    if (f->st || !kinds)
        return;
    if (!json_is_array(kinds) || json_array_size(kinds) != (size_t)s->n_layer) {
        config_refuse(f, "mlp_layer_types", "list with an entry per layer");
        return;
    }
    s->n_dense = 0;
    for (int32_t il = 0; il < s->n_layer; il++) {
        const char *kind = json_string_value(json_array_get(kinds, (size_t)il));
        bool dense = kind && !strcmp(kind, "dense");
        if (!kind || (!dense && strcmp(kind, "sparse") != 0) || (dense && s->n_dense < il))
            config_refuse(f, "mlp_layer_types", "list of dense layers, then sparse ones");
        s->n_dense += dense;
    }
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
    const json_t *rope = config_get(f, "rope_parameters");
    const json_t *full = json_object_get(rope, "full_attention");
    const json_t *swa = json_object_get(rope, "sliding_attention");
    double part = 1, part_swa = 1;
    yarn_shape none = {0};
    if (!full || (s->window && !swa)) {
        config_refuse(f, "rope_parameters", "pair of full_attention and sliding_attention");
        return;
    }
    config_rope(f, full, NULL, &s->theta, &part, &s->yarn);
    s->theta_swa = 1e4;
    if (swa)
        config_rope(f, swa, NULL, &s->theta_swa, &part_swa, &none);
    if (none.factor != 0 && s->window)
        config_refuse(f, "rope_parameters", "plain rotation of window layers");
    s->n_rot = (int32_t)(part * s->head_dim);
    s->n_rot_swa = (int32_t)(part_swa * s->head_dim);
}

static status read_laguna(const json_t *config, const char *path, laguna_shape *s, bool *tied,
                          str *unknown, err *e)
{
    static const char *const known[] = {"model_type",
                                        "num_hidden_layers",
                                        "hidden_size",
                                        "vocab_size",
                                        "num_attention_heads",
                                        "num_attention_heads_per_layer",
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
                                        "sliding_window",
                                        "layer_types",
                                        "mlp_layer_types",
                                        "num_experts",
                                        "num_experts_per_tok",
                                        "moe_intermediate_size",
                                        "shared_expert_intermediate_size",
                                        "moe_routed_scaling_factor",
                                        "gating",
                                        "gating_types",
                                        "hidden_act",
                                        "attention_bias",
                                        "quantization_config",
                                        "moe_router_logit_softcapping",
                                        "moe_apply_router_weight_on_input",
                                        CONFIG_WITHOUT_EFFECT,
                                        NULL};
    static const neutral_option options[] = {{"hidden_act", "silu"},
                                             {"attention_bias", NULL},
                                             {"quantization_config", NULL},
                                             {"rope_scaling", NULL},
                                             {"moe_router_logit_softcapping", NULL},
                                             {"moe_apply_router_weight_on_input", NULL}};
    config_fields f = {config, path, OK, e};
    *s = (laguna_shape){.family = &laguna_shapes, .name = "converted"};
    s->n_layer = config_whole(&f, "num_hidden_layers");
    s->n_embd = config_whole(&f, "hidden_size");
    s->n_vocab = config_whole(&f, "vocab_size");
    s->n_head = config_whole_or(&f, "num_attention_heads", 0);
    s->n_head_kv = config_whole(&f, "num_key_value_heads");
    s->head_dim = config_whole(&f, "head_dim");
    s->n_ff = config_whole(&f, "intermediate_size");
    s->window = config_whole_or(&f, "sliding_window", 0);
    s->n_ctx_train = config_whole(&f, "max_position_embeddings");
    s->eps = config_real(&f, "rms_norm_eps");
    read_laguna_layers(&f, s);
    read_laguna_experts(&f, s);
    read_laguna_gate(&f, s);
    if (!f.st)
        read_laguna_rope(&f, s);
    config_refuse_options(&f, options, sizeof options / sizeof *options);
    s->tied = config_truth(&f, "tie_word_embeddings");
    config_list_unknown(&f, known, unknown);
    status st = f.st ? f.st : laguna_shape_check(s, path, e);
    if (!st)
        *tied = s->tied;
    return st;
}

status convert_laguna_shape(const json_t *config, const char *path, model_shape **out, bool *tied,
                            str *unknown, err *e)
{
    laguna_shape *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, path, sizeof *s);
    status st = read_laguna(config, path, s, tied, unknown, e);
    if (st)
        mem_free(s);
    else
        *out = &s->common;
    return st;
}
