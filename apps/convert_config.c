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

void config_refuse(config_fields *f, const char *key, const char *expected)
{
    if (!f->st)
        f->st = err_set(f->e, E_FORMAT, "%s: %s is missing or no %s", f->path, key, expected);
}

const json_t *config_get(const config_fields *f, const char *key)
{
    const json_t *v = json_object_get(f->object, key);
    return json_is_null(v) ? NULL : v;
}

bool config_integer(const json_t *v, int64_t lo, int64_t hi, int32_t *out)
{
    double x = json_is_integer(v) ? (double)json_integer_value(v) : json_real_value(v);
    if (!json_is_number(v) || !(x >= (double)lo && x <= (double)hi) || x != floor(x))
        return false;
    *out = (int32_t)x;
    return true;
}

int32_t config_whole(config_fields *f, const char *key)
{
    int32_t i = 0;
    if (!config_integer(config_get(f, key), 0, INT32_MAX, &i))
        config_refuse(f, key, "number in range");
    return f->st ? 0 : i;
}

int32_t config_whole_or(config_fields *f, const char *key, int32_t otherwise)
{
    return config_get(f, key) ? config_whole(f, key) : otherwise;
}

double config_real(config_fields *f, const char *key)
{
    const json_t *v = config_get(f, key);
    if (!json_is_number(v))
        config_refuse(f, key, "number");
    return json_number_value(v);
}

double config_real_or(config_fields *f, const char *key, double otherwise)
{
    return config_get(f, key) ? config_real(f, key) : otherwise;
}

bool config_truth(config_fields *f, const char *key)
{
    const json_t *v = config_get(f, key);
    if (v && !json_is_boolean(v))
        config_refuse(f, key, "true or false");
    return json_is_true(v);
}

/* ---- Equal meanings ---- */

bool config_same(const char *have, const char *want)
{
    /* The names of torch's and of transformers' functions. */
    static const char *const groups[][7] = {{"silu", "swish", NULL},
                                            {"gelu_pytorch_tanh", "gelu_new", "gelu_fast",
                                             "gelu_accurate", "gelu_python_tanh", "gelu_tanh",
                                             NULL},
                                            {"float32", "torch.float32", "fp32", NULL}};
    if (!have || !want)
        return false;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (text_is_one_of(groups[i], have, strlen(have)) &&
            text_is_one_of(groups[i], want, strlen(want)))
            return true;
    return !strcmp(have, want);
}

static bool is_one(const json_t *factor)
{
    return !factor || json_is_null(factor) || json_number_value(factor) == 1;
}

/* The kind of a rotation; sections of pairs by axis mean nothing for texts, and a linear one by 1
 * changes nothing. A factor without a kind is no rotation that the reference defines. */
static const char *rope_kind(const json_t *rope)
{
    const char *kind = json_string_value(json_object_get(rope, "rope_type"));
    kind = kind ? kind : json_string_value(json_object_get(rope, "type"));
    if (!kind)
        return is_one(json_object_get(rope, "factor")) ? "default" : "";
    if (!strcmp(kind, "linear") && is_one(json_object_get(rope, "factor")))
        return "default";
    return strcmp(kind, "mrope") ? kind : "default";
}

/* Whether a rotation is that of no scaling at all. */
static bool is_plain_rope(const json_t *rope)
{
    static const char *const known[] = {
        "rope_type",         "type", "factor", "original_max_position_embeddings", "mrope_section",
        "mrope_interleaved", NULL};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)rope, key, v)
    {
        if (!json_is_null(v) && !text_is_one_of(known, key, strlen(key)))
            return false;
    }
    return !strcmp(rope_kind(rope), "default");
}

bool config_is_neutral(const json_t *v, const char *neutral)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == 0) ||
           config_same(json_string_value(v), neutral) || (json_is_object(v) && is_plain_rope(v));
}

void config_refuse_options(config_fields *f, const neutral_option *option, size_t n)
{
    for (size_t i = 0; i < n && !f->st; i++) {
        const json_t *v = config_get(f, option[i].key);
        const char *text = json_string_value(v), *neutral = option[i].neutral;
        if (!config_is_neutral(v, neutral))
            f->st = err_set(f->e, E_UNSUPPORTED, "%s: %s is %.80s, expected %s", f->path,
                            option[i].key, text ? text : "set", neutral ? neutral : "none");
    }
}

/* ---- Rotation ---- */

/* How the reference scales cosines and sines for a stretched context. */
static double yarn_scale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static void read_yarn(config_fields *f, config_fields *r, yarn_shape *y)
{
    const char *trained = "original_max_position_embeddings";
    double m = config_real_or(r, "mscale", 0), m_all = config_real_or(r, "mscale_all_dim", 0);
    int32_t n_ctx = config_whole_or(f, "max_position_embeddings", 0);
    y->n_ctx = config_whole_or(r, trained, n_ctx);
    if (config_get(r, "factor") || !config_get(r, trained) || !y->n_ctx || !n_ctx)
        y->factor = config_real(r, "factor");
    else
        y->factor = (double)n_ctx / y->n_ctx;
    /* For the reference zero means the usual value. */
    y->beta_fast = config_real_or(r, "beta_fast", 32);
    y->beta_slow = config_real_or(r, "beta_slow", 1);
    y->beta_fast = y->beta_fast != 0 ? y->beta_fast : 32;
    y->beta_slow = y->beta_slow != 0 ? y->beta_slow : 1;
    y->magnitude =
        m != 0 && m_all != 0 ? yarn_scale(y->factor, m) / yarn_scale(y->factor, m_all) : 0;
    if (config_get(r, "attention_factor")) {
        y->magnitude = config_real(r, "attention_factor");
        if (!(y->magnitude > 0))
            config_refuse(r, "attention_factor", "number above 0");
    }
    if (config_get(r, "truncate") && !config_truth(r, "truncate"))
        config_refuse(r, "truncate", "true, which alone is supported");
}

void config_rope(config_fields *f, const json_t *rope, const char *const *more, double *theta,
                 double *part, yarn_shape *y)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "partial_rotary_factor",
                                        "factor",
                                        "original_max_position_embeddings",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        NULL};
    const char *kind = rope_kind(rope), *key;
    config_fields r = {rope, f->path, f->st, f->e};
    json_t *v;
    if (rope && !json_is_object(rope))
        config_refuse(&r, "the rotation", "object");
    json_object_foreach((json_t *)rope, key, v)
    {
        if (!r.st && !json_is_null(v) && !text_is_one_of(known, key, strlen(key)) &&
            !(more && text_is_one_of(more, key, strlen(key))))
            r.st =
                err_set(f->e, E_UNSUPPORTED, "%s: rotation: %.60s is not supported", f->path, key);
    }
    if (r.st) {
        f->st = r.st;
        return;
    }
    *theta = config_real_or(&r, "rope_theta", config_real_or(f, "rope_theta", *theta));
    double share = config_real_or(f, "partial_rotary_factor", part ? *part : 1);
    share = config_real_or(&r, "partial_rotary_factor", share);
    if (part)
        *part = share;
    if (!(share > 0 && share <= 1) || (!part && share != 1))
        config_refuse(&r, "partial_rotary_factor",
                      part ? "share of a head" : "1, which alone is supported");
    if (!strcmp(kind, "yarn"))
        read_yarn(f, &r, y);
    else if (strcmp(kind, "default") != 0)
        config_refuse(&r, "rope_type", "default or yarn");
    f->st = f->st ? f->st : r.st;
}

/* ---- Gemma 4 ---- */

void convert_gemma4_layers(config_fields *f, gemma4_shape *s)
{
    const json_t *list = config_get(f, "layer_types");
    if (f->st || s->n_layer > SHAPE_LAYERS_MAX)
        return; /* gemma4_shape_check reports this */
    if (!json_is_array(list) || json_array_size(list) != (size_t)s->n_layer) {
        config_refuse(f, "layer_types", "list with an entry per layer");
        return;
    }
    for (int32_t il = 0; il < s->n_layer; il++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)il));
        s->swa[il] = kind && !strcmp(kind, "sliding_attention");
        if (!kind || (!s->swa[il] && strcmp(kind, "full_attention") != 0))
            config_refuse(f, "layer_types", "list of sliding_attention and full_attention");
    }
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
    const char *kind = rope_kind(full.object), *kind_swa = rope_kind(swa.object);
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

void config_list_unknown(const config_fields *f, const char *const *known, str *unknown)
{
    const char *key;
    json_t *v;
    if (!unknown)
        return;
    json_object_foreach((json_t *)f->object, key,
                        v) if (!json_is_null(v) && !text_is_one_of(known, key, strlen(key)))
        str_printf(unknown, "%s%.80s", unknown->n ? ", " : "", key);
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

static status read_model_shape(const json_t *config, const char *path, gemma4_shape *s, bool *tied,
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
    bool ties = config_get(&f, tie)             ? config_truth(&f, tie)
                : config_get(&whole_model, tie) ? config_truth(&whole_model, tie)
                                                : true;
    refuse_options(&whole_model);
    list_unknown(&f, unknown);
    f.st = f.st ? f.st : whole_model.st;
    status st = f.st ? f.st : gemma4_shape_check(s, path, e);
    if (!st)
        *tied = ties;
    return st;
}

status convert_gemma4_shape(const json_t *config, const char *path, model_shape **out, bool *tied,
                            str *unknown, err *e)
{
    gemma4_shape *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, path, sizeof *s);
    status st = read_model_shape(config, path, s, tied, unknown, e);
    if (st)
        mem_free(s);
    else
        *out = &s->common;
    return st;
}
