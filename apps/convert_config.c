/* convert_config.c - config.json to a shape.
 *
 * Every field that the arithmetic depends on is read or refused; none falls back on a default of
 * the reference classes, because those describe no published model.
 */
#include "apps/convert_int.h"
#include "base/map.h"

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

/* A reader of one object that keeps its first failure, so that a list of fields stays a list. */
typedef struct {
    const json_t *object;
    const char *path;
    status st;
    err *e;
} fields;

static void refuse(fields *f, const char *key, const char *expected)
{
    if (!f->st)
        f->st = err_set(f->e, E_FORMAT, "%s: %s is missing or no %s", f->path, key, expected);
}

/* null and absent are the same to transformers. */
static const json_t *get(const fields *f, const char *key)
{
    const json_t *v = json_object_get(f->object, key);
    return json_is_null(v) ? NULL : v;
}

static int32_t whole(fields *f, const char *key)
{
    const json_t *v = get(f, key);
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 0 || i > INT32_MAX)
        refuse(f, key, "number in range");
    return f->st ? 0 : (int32_t)i;
}

static int32_t whole_or(fields *f, const char *key, int32_t otherwise)
{
    return get(f, key) ? whole(f, key) : otherwise;
}

static float real(fields *f, const char *key)
{
    const json_t *v = get(f, key);
    if (!json_is_number(v))
        refuse(f, key, "number");
    return (float)json_number_value(v);
}

static bool truth(fields *f, const char *key)
{
    const json_t *v = get(f, key);
    if (v && !json_is_boolean(v))
        refuse(f, key, "true or false");
    return json_is_true(v);
}

/* layer_types: "sliding_attention" or "full_attention" for each layer. */
static void read_layers(fields *f, gemma4_shape *s)
{
    const json_t *list = get(f, "layer_types");
    if (f->st || s->n_layer > GEMMA4_LAYERS_MAX)
        return; /* gemma4_shape_check will say so */
    if (!json_is_array(list) || json_array_size(list) != (size_t)s->n_layer) {
        refuse(f, "layer_types", "list with an entry per layer");
        return;
    }
    for (int32_t il = 0; il < s->n_layer; il++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)il));
        s->swa[il] = kind && !strcmp(kind, "sliding_attention");
        if (!kind || (!s->swa[il] && strcmp(kind, "full_attention") != 0))
            refuse(f, "layer_types", "list of sliding_attention and full_attention");
    }
}

/* rope_parameters: {"full_attention": {...}, "sliding_attention": {...}} */
static void read_rope(fields *f, gemma4_shape *s)
{
    const json_t *rope = get(f, "rope_parameters");
    fields full = {json_object_get(rope, "full_attention"), f->path, f->st, f->e};
    fields swa = {json_object_get(rope, "sliding_attention"), f->path, f->st, f->e};
    const char *kind = json_string_value(get(&full, "rope_type"));
    const char *kind_swa = json_string_value(get(&swa, "rope_type"));
    if (!kind || !kind_swa || strcmp(kind_swa, "default") != 0 ||
        (strcmp(kind, "proportional") != 0 && strcmp(kind, "default") != 0)) {
        refuse(f, "rope_parameters", "pair of a proportional and a default rotation");
        return;
    }
    s->theta = real(&full, "rope_theta");
    s->theta_swa = real(&swa, "rope_theta");
    s->rotary_part = !strcmp(kind, "default") ? 1 : real(&full, "partial_rotary_factor");
    f->st = f->st ? f->st : full.st ? full.st : swa.st;
}

/* Newer files say what differs between layers in a table by layer number instead of global_*. */
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
            refuse(f, "per_layer_config", "table by layer number");
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

/* Options of the reference that change the arithmetic and that no Gemma 4 model uses. */
static void refuse_options(fields *f)
{
    const char *act = json_string_value(get(f, "hidden_activation"));
    if (f->st)
        return;
    if (act && strcmp(act, "gelu_pytorch_tanh") != 0)
        f->st = err_set(f->e, E_UNSUPPORTED,
                        "%s: hidden_activation is %.64s, expected gelu_pytorch_tanh", f->path, act);
    else if (truth(f, "attention_bias"))
        f->st = err_set(f->e, E_UNSUPPORTED, "%s: attention_bias is not supported", f->path);
}

status convert_read_shape(const json_t *config, const char *path, gemma4_shape *s, err *e)
{
    const json_t *text = json_object_get(config, "text_config");
    fields f = {text ? text : config, path, OK, e};
    const char *type = json_string_value(get(&f, "model_type"));
    *s = (gemma4_shape){.name = "converted"};
    if (!type || strncmp(type, "gemma4", 6) != 0 || strstr(type, "assistant"))
        return err_set(e, E_UNSUPPORTED, "%s: model_type is %.64s, expected a Gemma 4 text model",
                       path, type ? type : "missing");
    s->n_layer = whole(&f, "num_hidden_layers");
    s->n_embd = whole(&f, "hidden_size");
    s->n_vocab = whole(&f, "vocab_size");
    s->n_head = whole(&f, "num_attention_heads");
    s->n_head_kv = whole(&f, "num_key_value_heads");
    s->head_dim = whole(&f, "head_dim");
    s->k_eq_v = truth(&f, "attention_k_eq_v");
    s->head_dim_global = whole_or(&f, "global_head_dim", s->head_dim);
    /* The reference heeds this field only together with attention_k_eq_v. */
    s->n_head_kv_global =
        s->k_eq_v ? whole_or(&f, "num_global_key_value_heads", s->n_head_kv) : s->n_head_kv;
    s->n_ff = whole(&f, "intermediate_size");
    s->double_wide = truth(&f, "use_double_wide_mlp");
    s->n_ple = whole_or(&f, "hidden_size_per_layer_input", 0);
    s->n_kv_shared = whole_or(&f, "num_kv_shared_layers", 0);
    s->window = whole(&f, "sliding_window");
    s->n_ctx_train = whole(&f, "max_position_embeddings");
    s->eps = real(&f, "rms_norm_eps");
    s->softcap = get(&f, "final_logit_softcapping") ? real(&f, "final_logit_softcapping") : 0;
    if (truth(&f, "enable_moe_block")) {
        s->n_expert = whole(&f, "num_experts");
        s->n_expert_used = whole(&f, "top_k_experts");
        s->n_ff_expert = whole(&f, "moe_intermediate_size");
    }
    read_layers(&f, s);
    read_rope(&f, s);
    read_overrides(&f, s);
    refuse_options(&f);
    return f.st ? f.st : gemma4_shape_check(s, path, e);
}
