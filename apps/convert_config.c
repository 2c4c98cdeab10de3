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
#include <stdio.h>
#include <sys/stat.h>

status convert_read_json(json_t **out, const char *dir, const char *name, bool required, err *e)
{
    char path[4096];
    struct stat sb;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, E_ARG, "%s: the path is too long", dir);
    if (!required && stat(path, &sb) && errno == ENOENT)
        return OK;
    return json_parse_file(out, path, CONVERT_JSON_MAX, e);
}

/* Reads the fields of one object and keeps its first failure: callers list fields without
 * checks. */
typedef struct {
    const json_t *object;
    const char *path;
    status st;
    err *e;
} fields;

static void refuse_config(fields *f, const char *key, const char *expected)
{
    if (!f->st)
        f->st = err_set(f->e, E_FORMAT, "%s: %s is missing or no %s", f->path, key, expected);
}

/* To transformers, null and absent are the same. */
static const json_t *get(const fields *f, const char *key)
{
    const json_t *v = json_object_get(f->object, key);
    return json_is_null(v) ? NULL : v;
}

static int32_t whole_number(fields *f, const char *key)
{
    const json_t *v = get(f, key);
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 0 || i > INT32_MAX)
        refuse_config(f, key, "number in range");
    return f->st ? 0 : (int32_t)i;
}

static int32_t whole_or(fields *f, const char *key, int32_t otherwise)
{
    return get(f, key) ? whole_number(f, key) : otherwise;
}

static float real(fields *f, const char *key)
{
    const json_t *v = get(f, key);
    if (!json_is_number(v))
        refuse_config(f, key, "number");
    return (float)json_number_value(v);
}

static bool truth(fields *f, const char *key)
{
    const json_t *v = get(f, key);
    if (v && !json_is_boolean(v))
        refuse_config(f, key, "true or false");
    return json_is_true(v);
}

/* layer_types: "sliding_attention" or "full_attention" for each layer. */
static void read_layers(fields *f, gemma4_shape *s)
{
    const json_t *list = get(f, "layer_types");
    if (f->st || s->n_layer > SHAPE_LAYERS_MAX)
        return; /* gemma4_shape_check reports this */
    if (!json_is_array(list) || json_array_size(list) != (size_t)s->n_layer) {
        refuse_config(f, "layer_types", "list with an entry per layer");
        return;
    }
    for (int32_t il = 0; il < s->n_layer; il++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)il));
        s->swa[il] = kind && !strcmp(kind, "sliding_attention");
        if (!kind || (!s->swa[il] && strcmp(kind, "full_attention") != 0))
            refuse_config(f, "layer_types", "list of sliding_attention and full_attention");
    }
}

/* One kind of layer's rotation. A key that is not known here could change it. */
static fields rope_of(const fields *f, const json_t *rope, const char *kind)
{
    static const char *const known[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                        "factor",    NULL};
    fields r = {json_object_get(rope, kind), f->path, f->st, f->e};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)r.object, key, v) if (!r.st &&
                                                        !text_is_one_of(known, key, strlen(key)) &&
                                                        !json_is_null(v)) r.st =
        err_set(f->e, E_UNSUPPORTED, "%s: rope_parameters.%s.%.60s is not supported", f->path, kind,
                key);
    return r;
}

/* rope_parameters: {"full_attention": {...}, "sliding_attention": {...}}. A proportional rotation
 * turns a part of the pairs, with frequencies divided by `factor`; a default one heeds neither. */
static void read_rope(fields *f, gemma4_shape *s)
{
    const json_t *rope = get(f, "rope_parameters");
    fields full = rope_of(f, rope, "full_attention"), swa = rope_of(f, rope, "sliding_attention");
    const char *kind = json_string_value(get(&full, "rope_type"));
    const char *kind_swa = json_string_value(get(&swa, "rope_type"));
    f->st = full.st ? full.st : swa.st;
    if (f->st)
        return;
    if (!kind || !kind_swa || strcmp(kind_swa, "default") != 0 ||
        (strcmp(kind, "proportional") != 0 && strcmp(kind, "default") != 0)) {
        refuse_config(f, "rope_parameters", "pair of a proportional and a default rotation");
        return;
    }
    bool proportional = !strcmp(kind, "proportional");
    s->theta = real(&full, "rope_theta");
    s->theta_swa = real(&swa, "rope_theta");
    s->rotary_part = proportional ? real(&full, "partial_rotary_factor") : 1;
    s->rope_factor = proportional && get(&full, "factor") ? real(&full, "factor") : 1;
    const fields *whole_heads[] = {proportional ? &swa : &full, &swa};
    for (int i = 0; i < 2; i++)
        if (get(whole_heads[i], "partial_rotary_factor") &&
            json_number_value(get(whole_heads[i], "partial_rotary_factor")) != 1)
            refuse_config(f, "rope_parameters",
                          "rotation of whole heads where the type is default");
    f->st = f->st ? f->st : full.st ? full.st : swa.st;
}

/* Newer files state the differences between layers in a table by layer number, not in global_*. */
static void read_overrides(fields *f, gemma4_shape *s)
{
    const json_t *table = get(f, "per_layer_config");
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
            refuse_config(f, "per_layer_config", "table by layer number");
            return;
        }
        fields one = {v, f->path, OK, f->e};
        int32_t hd = whole_or(&one, "head_dim", s->swa[il] ? s->head_dim : s->head_dim_global);
        int32_t kv =
            whole_or(&one, "num_key_value_heads", s->swa[il] ? s->n_head_kv : s->n_head_kv_global);
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

/* Options of the reference that change the arithmetic and that no Gemma 4 model uses. Each is
 * listed with the one value, besides null, that has no effect. */
static void refuse_options(fields *f)
{
    static const struct {
        const char *key, *neutral; /* NULL: there is none */
    } option[] = {
        {"hidden_activation", "gelu_pytorch_tanh"},
        {"hidden_act", "gelu_pytorch_tanh"},
        {"attention_bias", NULL},
        {"mlp_bias", NULL},
        {"attn_logit_softcapping", NULL},
        {"rope_scaling", NULL},
        {"quantization_config", NULL},
        {"use_bidirectional_attention", "vision"}, /* between images; text stays causal */
    };
    for (size_t i = 0; i < sizeof option / sizeof *option && !f->st; i++) {
        const json_t *v = get(f, option[i].key);
        const char *text = json_string_value(v), *neutral = option[i].neutral;
        if (!v || json_is_false(v) || (text && neutral && !strcmp(text, neutral)))
            continue;
        f->st = err_set(f->e, E_UNSUPPORTED, "%s: %s is %.80s, expected %s", f->path, option[i].key,
                        text ? text : "set", neutral ? neutral : "none");
    }
}

/* Lists unknown keys: neither read here nor known to leave the logits unchanged. */
static void list_unknown(const fields *f, str *unknown)
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
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)f->object, key,
                        v) if (!json_is_null(v) && !text_is_one_of(known, key, strlen(key)))
        str_printf(unknown, "%s%.80s", unknown->n ? ", " : "", key);
}

static status read_model_shape(const json_t *config, const char *path, gemma4_shape *s, bool *tied,
                               str *unknown, err *e)
{
    const json_t *text = json_object_get(config, "text_config");
    fields f = {text ? text : config, path, OK, e};
    const char *type = json_string_value(get(&f, "model_type"));
    *s = (gemma4_shape){.family = &gemma4_shapes, .name = "converted"};
    if (!type || strncmp(type, "gemma4", 6) != 0 || strstr(type, "assistant"))
        return err_set(e, E_UNSUPPORTED, "%s: model_type is %.64s, expected a Gemma 4 text model",
                       path, type ? type : "missing");
    s->n_layer = whole_number(&f, "num_hidden_layers");
    s->n_embd = whole_number(&f, "hidden_size");
    s->n_vocab = whole_number(&f, "vocab_size");
    s->n_head = whole_number(&f, "num_attention_heads");
    s->n_head_kv = whole_number(&f, "num_key_value_heads");
    s->head_dim = whole_number(&f, "head_dim");
    s->k_eq_v = truth(&f, "attention_k_eq_v");
    s->head_dim_global = whole_or(&f, "global_head_dim", s->head_dim);
    /* The reference uses this field only together with attention_k_eq_v. */
    s->n_head_kv_global =
        s->k_eq_v ? whole_or(&f, "num_global_key_value_heads", s->n_head_kv) : s->n_head_kv;
    s->n_ff = whole_number(&f, "intermediate_size");
    s->double_wide = truth(&f, "use_double_wide_mlp");
    s->n_ple = whole_or(&f, "hidden_size_per_layer_input", 0);
    s->n_kv_shared = whole_or(&f, "num_kv_shared_layers", 0);
    s->window = whole_number(&f, "sliding_window");
    s->n_ctx_train = whole_number(&f, "max_position_embeddings");
    s->eps = real(&f, "rms_norm_eps");
    s->softcap = get(&f, "final_logit_softcapping") ? real(&f, "final_logit_softcapping") : 0;
    if (truth(&f, "enable_moe_block")) {
        s->n_expert = whole_number(&f, "num_experts");
        s->n_expert_used = whole_number(&f, "top_k_experts");
        s->n_ff_expert = whole_number(&f, "moe_intermediate_size");
    }
    read_layers(&f, s);
    read_rope(&f, s);
    read_overrides(&f, s);
    refuse_options(&f);
    fields whole_model = {config, path, f.st, e};
    const char *tie = "tie_word_embeddings"; /* the reference ties by default */
    *tied = get(&f, tie)             ? truth(&f, tie)
            : get(&whole_model, tie) ? truth(&whole_model, tie)
                                     : true;
    refuse_options(&whole_model);
    if (unknown)
        list_unknown(&f, unknown);
    f.st = f.st ? f.st : whole_model.st;
    return f.st ? f.st : gemma4_shape_check(s, path, e);
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
