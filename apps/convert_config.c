/* convert_config.c - config.json to a shape.
 *
 * Every field that the arithmetic depends on is read or refused. None has a default: the defaults
 * of the reference classes match no published model.
 */
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/gemma4_shapes.h"
#include "text/family.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

status convert_read_json(json_t **out, const char *dir, const char *name, bool required, err *e)
{
    char path[4096];
    struct stat sb;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, E_ARG, "%s: the path is too long", dir);
    if (!stat(dir, &sb) && !S_ISDIR(sb.st_mode))
        return err_set(e, E_ARG,
                       "%s is not a directory: expected that of a checkpoint, with config.json and "
                       "safetensors",
                       dir);
    if (!required && stat(path, &sb) && errno == ENOENT)
        return OK;
    return json_parse_file(out, path, CONVERT_JSON_MAX, e);
}

/* ---- Gemma 4 ---- */

void convert_gemma4_layers(config_fields *f, gemma4_shape *s)
{
    if (f->st || s->n_layer > SHAPE_LAYERS_MAX)
        return; /* gemma4_shape_check reports this */
    if (!config_get(f, "layer_types"))
        config_refuse(f, "layer_types", "list with an entry per layer");
    config_kinds(f, "layer_types", s->n_layer, s->swa, "sliding_attention", "full_attention");
}

/* One kind of layer's rotation. A key that is not known here could change it. */
static config_fields rope_of(const config_fields *f, const json_t *rope, const char *kind)
{
    static const char *const known[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                        "factor",    NULL};
    config_fields r = {json_object_get(rope, kind), f->path, f->st, f->e};
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
    const json_t *rope = config_get(f, "rope_parameters");
    config_fields full = rope_of(f, rope, "full_attention"),
                  swa = rope_of(f, rope, "sliding_attention");
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

/* Options of the reference that change the arithmetic and that no Gemma 4 model uses. */
static void refuse_options(config_fields *f)
{
    static const neutral_option option[] = {
        {"hidden_activation", "gelu_pytorch_tanh"},
        {"hidden_act", "gelu_pytorch_tanh"},
        {"attention_bias", NULL},
        {"mlp_bias", NULL},
        {"attn_logit_softcapping", NULL},
        {"rope_scaling", NULL},
        {"quantization_config", NULL},
        {"use_bidirectional_attention", "vision"}, /* between images; text stays causal */
    };
    config_refuse_options(f, option, sizeof option / sizeof *option);
}

/* Keys that are read here, or known to leave the logits unchanged. */
static void list_unknown(const config_fields *f, str *unknown)
{
    static const char *const known[] = {
        /* read, or refused above */
        "model_type", "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads",
        "num_key_value_heads", "head_dim", "attention_k_eq_v", "global_head_dim",
        "num_global_key_value_heads", "intermediate_size", "use_double_wide_mlp",
        "hidden_size_per_layer_input", "num_kv_shared_layers", "sliding_window",
        "max_position_embeddings", "rms_norm_eps", "final_logit_softcapping", "enable_moe_block",
        "num_experts", "top_k_experts", "moe_intermediate_size", "layer_types", "rope_parameters",
        "per_layer_config", "hidden_activation", "hidden_act", "attention_bias", "mlp_bias",
        "use_bidirectional_attention", "attn_logit_softcapping", "rope_scaling",
        "quantization_config", "tie_word_embeddings",
        /* the table of per-layer embeddings says its own size */
        "vocab_size_per_layer_input",
        /* for training, for other programs, or token ids, which the tokenizer's files state */
        "architectures", "attention_dropout", "attn_implementation", "_attn_implementation",
        "_name_or_path", "_experts_implementation", "experts_implementation", "bos_token_id",
        "boa_token_id", "boi_token_id", "eoa_token_id", "eoi_token_id", "eos_token_id",
        "image_token_id", "audio_token_id", "video_token_id", "pad_token_id", "sep_token_id",
        "cache_implementation", "chunk_size_feed_forward", "dtype", "torch_dtype", "id2label",
        "label2id", "initializer_range", "is_encoder_decoder", "num_labels", "output_attentions",
        "output_hidden_states", "output_router_logits", "problem_type", "return_dict",
        "router_aux_loss_coef", "transformers_version", "use_cache", "vision_config",
        "audio_config", NULL};
    config_list_unknown(f, known, unknown);
}

static status read_model_shape(const json_t *config, const char *path, gemma4_shape *s,
                               str *unknown, err *e)
{
    const json_t *text = json_object_get(config, "text_config");
    config_fields f = {text ? text : config, path, OK, e};
    const char *type = json_string_value(config_get(&f, "model_type"));
    *s = (gemma4_shape){.family = &gemma4_shapes, .name = "converted"};
    if (!type || strncmp(type, "gemma4", 6) != 0 || strstr(type, "assistant"))
        return err_set(e, E_UNSUPPORTED, "%s: model_type is %.64s, expected a Gemma 4 text model",
                       path, type ? type : "missing");
    s->n_layer = config_whole(&f, "num_hidden_layers");
    s->n_embd = config_whole(&f, "hidden_size");
    s->n_vocab = config_whole(&f, "vocab_size");
    s->n_head = config_whole(&f, "num_attention_heads");
    s->n_head_kv = config_whole(&f, "num_key_value_heads");
    s->head_dim = config_whole(&f, "head_dim");
    s->k_eq_v = config_truth(&f, "attention_k_eq_v");
    s->head_dim_global = config_whole_or(&f, "global_head_dim", s->head_dim);
    /* The reference uses this field only together with attention_k_eq_v. */
    s->n_head_kv_global =
        s->k_eq_v ? config_whole_or(&f, "num_global_key_value_heads", s->n_head_kv) : s->n_head_kv;
    s->n_ff = config_whole(&f, "intermediate_size");
    s->double_wide = config_truth(&f, "use_double_wide_mlp");
    s->n_ple = config_whole_or(&f, "hidden_size_per_layer_input", 0);
    s->n_kv_shared = config_whole_or(&f, "num_kv_shared_layers", 0);
    s->window = config_whole(&f, "sliding_window");
    s->n_ctx_train = config_whole(&f, "max_position_embeddings");
    s->eps = config_real(&f, "rms_norm_eps");
    s->softcap =
        config_get(&f, "final_logit_softcapping") ? config_real(&f, "final_logit_softcapping") : 0;
    if (config_truth(&f, "enable_moe_block")) {
        s->n_expert = config_whole(&f, "num_experts");
        s->n_expert_used = config_whole(&f, "top_k_experts");
        s->n_ff_expert = config_whole(&f, "moe_intermediate_size");
    }
    convert_gemma4_layers(&f, s);
    convert_gemma4_rope(&f, s);
    convert_gemma4_overrides(&f, s);
    refuse_options(&f);
    config_fields whole_model = {config, path, f.st, e};
    const char *tie = "tie_word_embeddings"; /* the reference ties by default */
    s->tied = config_get(&f, tie)             ? config_truth(&f, tie)
              : config_get(&whole_model, tie) ? config_truth(&whole_model, tie)
                                              : true;
    refuse_options(&whole_model);
    list_unknown(&f, unknown);
    f.st = f.st ? f.st : whole_model.st;
    return f.st ? f.st : gemma4_shape_check(s, path, e);
}

status convert_gemma4_shape(const json_t *config, const char *path, model_shape **out, str *unknown,
                            err *e)
{
    gemma4_shape *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, path, sizeof *s);
    status st = read_model_shape(config, path, s, unknown, e);
    if (st)
        mem_free(s);
    else
        *out = &s->common;
    return st;
}
