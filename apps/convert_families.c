/* convert_families.c - config.json of Laguna to a shape.
 *
 * As in convert_config.c: every field that the arithmetic depends on is read or refused, and none
 * has a default that the publishers do not state in every file.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/laguna.h"
#include "model/qwen3.h"

#include <stdio.h>
#include <string.h>

/* ---- Qwen3 ---- */

/* The rotation: older files have the first object, newer ones the second. */
static void read_qwen3(config_fields *f, model_shape *m)
{
    qwen3_shape *s = (qwen3_shape *)m;
    config_rope(f, config_get(f, "rope_scaling"), NULL, &s->theta, NULL, &s->scaling);
    config_rope(f, config_get(f, "rope_parameters"), NULL, &s->theta, NULL, &s->scaling);
    if (s->theta == 0)
        config_refuse(f, "rope_theta", "number");
    s->n_rot = s->head_dim;
}

static const neutral_option qwen3_options[] = {{"hidden_act", "silu"},
                                               {"attention_bias", NULL},
                                               {"use_sliding_window", NULL},
                                               {"quantization_config", NULL},
                                               {NULL, NULL}};
/* Without use_sliding_window the last two say nothing. */
static const char *const qwen3_more[] = {"rope_scaling",
                                         "rope_parameters",
                                         "partial_rotary_factor",
                                         "layer_types",
                                         "sliding_window",
                                         "max_window_layers",
                                         NULL};

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
                                          "rope_theta",
                                          "rope_parameters",
                                          "partial_rotary_factor",
                                          "layer_types",
                                          "mlp_layer_types",
                                          "gating",
                                          "gating_types",
                                          NULL};

/* ---- The list ---- */

const config_family config_families[] = {
    {&qwen3_shapes, {"qwen3"}, qwen3_options, qwen3_more, read_qwen3},
    {&laguna_shapes, {"laguna"}, laguna_options, laguna_more, read_laguna},
    {.shapes = NULL}};
