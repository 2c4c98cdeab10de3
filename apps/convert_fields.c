/* convert_fields.c - fields of a config.json, and config.json to a shape by the rows of a family's
 * table.
 *
 * Every field that the arithmetic depends on is read or refused. None has a default: the defaults
 * of the reference classes match no published model.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "text/family.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
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

/* ---- By layer ---- */

const json_t *config_by_layer(config_fields *f, const char *key, int32_t n_layer)
{
    const json_t *list = config_get(f, key);
    if (list && (!json_is_array(list) || json_array_size(list) != (size_t)n_layer))
        config_refuse(f, key, "list with an entry per layer");
    return f->st ? NULL : list;
}

void config_kinds(config_fields *f, const char *key, int32_t n, bool *is, const char *yes,
                  const char *no)
{
    const json_t *list = config_by_layer(f, key, n);
    char expected[96];
    snprintf(expected, sizeof expected, "list of %s and %s", no, yes);
    for (int32_t il = 0; list && il < n; il++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)il));
        is[il] = kind && !strcmp(kind, yes);
        if (!kind || (!is[il] && strcmp(kind, no) != 0))
            config_refuse(f, key, expected);
    }
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

const char *config_rope_kind(const json_t *rope)
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
    return !strcmp(config_rope_kind(rope), "default");
}

bool config_is_neutral(const json_t *v, const char *neutral)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == 0) ||
           config_same(json_string_value(v), neutral) || (json_is_object(v) && is_plain_rope(v));
}

/* Refuses options whose values have an effect. */
static void refuse_options(config_fields *f, const neutral_option *option, size_t n)
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

static void read_yarn(config_fields *f, config_fields *r, rope_scaling *y)
{
    int32_t n_trained;
    const char *trained = "original_max_position_embeddings";
    double m = config_real_or(r, "mscale", 0), m_all = config_real_or(r, "mscale_all_dim", 0);
    int32_t n_ctx = config_whole_or(f, "max_position_embeddings", 0);
    n_trained = config_whole_or(r, trained, n_ctx);
    y->kind = SCALING_YARN;
    y->n_ctx = n_trained;
    if (config_get(r, "factor") || !config_get(r, trained) || !n_trained || !n_ctx)
        y->factor = config_real(r, "factor");
    else
        y->factor = (double)n_ctx / n_trained;
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
    y->unrounded = config_get(r, "truncate") && !config_truth(r, "truncate");
}

void config_rope(config_fields *f, const json_t *rope, const char *const *more, double *theta,
                 double *part, rope_scaling *y)
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
    const char *kind = config_rope_kind(rope), *key;
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
    if (!strcmp(kind, "yarn")) {
        read_yarn(f, &r, y);
        if (y->unrounded && !(more && text_is_one_of(more, "truncate", strlen("truncate"))))
            config_refuse(&r, "truncate", "true, which alone is supported");
    } else if (!strcmp(kind, "linear"))
        *y = (rope_scaling){SCALING_LINEAR, .factor = config_real(&r, "factor")};
    else if (strcmp(kind, "default") != 0)
        config_refuse(&r, "rope_type", "default, linear or yarn");
    f->st = f->st ? f->st : r.st;
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

/* ---- A family's table ---- */

static void read_key(config_fields *f, model_shape *s, const table_key *r)
{
    int32_t v;
    if (!r->config || (r->how & CONFIG_BY_HAND) || (r->when && !r->when(s)))
        return;
    const char *name = r->or_config && !config_get(f, r->config) ? r->or_config : r->config;
    /* 0 stands for a key that is not there, so it must not come from the file. */
    const json_t *given = r->how & CONFIG_MAY_LACK ? config_get(f, name) : NULL;
    if (json_is_number(given) && json_number_value(given) < r->least) {
        config_refuse(f, name, "number in range");
        return;
    }
    if (r->kind == KEY_REAL) {
        *(double *)((char *)s + r->at) =
            r->how & CONFIG_MAY_LACK ? config_real_or(f, name, 0) : config_real(f, name);
        return;
    }
    if (r->kind == KEY_FLAG)
        v = config_truth(f, name);
    else if (r->how & CONFIG_MAY_LACK)
        v = config_whole_or(f, name, r->otherwise ? *(int32_t *)((char *)s + r->otherwise) : 0);
    else
        v = config_whole(f, name);
    table_set(s, r, v);
}

/* Whether a family's tables name a key, or it says nothing about the arithmetic. */
static bool is_known(const config_family *c, const char *key)
{
    static const char *const always[] = {"model_type", "tie_word_embeddings", CONFIG_WITHOUT_EFFECT,
                                         NULL};
    const family_table *t = c->shapes->table;
    size_t n = strlen(key);
    for (int32_t i = 0; i < t->n_keys; i++)
        if ((t->keys[i].config && !strcmp(t->keys[i].config, key)) ||
            (t->keys[i].or_config && !strcmp(t->keys[i].or_config, key)))
            return true;
    for (const neutral_option *o = c->options; o->key; o++)
        if (!strcmp(o->key, key))
            return true;
    return text_is_one_of(always, key, n) || text_is_one_of(c->more, key, n);
}

static void list_unknown(const config_family *c, const json_t *object, str *unknown)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)object, key, v)
    {
        if (unknown && !json_is_null(v) && !is_known(c, key))
            str_printf(unknown, "%s%.80s", unknown->n ? ", " : "", key);
    }
}

bool config_is_type(const config_family *c, const char *type)
{
    for (const char *const *t = c->types; *t; t++) {
        size_t n = strlen(*t), n_begin = n - ((*t)[n - 1] == '*');
        if (n_begin < n ? !strncmp(type, *t, n_begin) : !strcmp(type, *t))
            return true;
    }
    return false;
}

static bool is_listed(const config_family *upto, const char *type)
{
    const config_family *c = config_families;
    while (c < upto && !config_is_type(c, type))
        c++;
    return c < upto;
}

status config_refuse_type(const char *path, const char *type, err *e)
{
    char known[400] = "";
    size_t n = 0;
    for (const config_family *c = config_families; c->shapes; c++)
        for (const char *const *t = c->types; *t; t++)
            if (n < sizeof known && !is_listed(c, *t))
                n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", *t);
    return err_set(e, E_UNSUPPORTED, "%s: model_type is %.64s, and carat converts %s", path, type,
                   known);
}

static status read_shape(const config_family *c, const json_t *config, const char *path,
                         model_shape *s, str *unknown, err *e)
{
    const family_table *t = c->shapes->table;
    const json_t *text = json_object_get(config, "text_config");
    const char *tie = "tie_word_embeddings";
    config_fields f = {text ? text : config, path, OK, e}, all = {config, path, OK, e};
    size_t n_options = 0;
    const char *type = json_string_value(config_get(&f, "model_type"));
    if (!type || !config_is_type(c, type))
        return err_set(e, E_UNSUPPORTED, "%s: model_type is %.64s, expected %s", path,
                       type ? type : "missing", c->types[0]);
    s->family = c->shapes;
    snprintf(s->name, sizeof s->name, "converted");
    for (int32_t i = 0; i < t->n_keys; i++)
        read_key(&f, s, &t->keys[i]);
    if (!f.st && s->n_layer <= LAYERS_MAX) /* else the check has a sentence */
        c->read(&f, s);
    if (c->whole && !f.st)
        c->whole(&all, s);
    while (c->options[n_options].key)
        n_options++;
    refuse_options(&f, c->options, n_options);
    refuse_options(&all, c->options, f.st ? 0 : n_options);
    s->tied = config_get(&f, tie)     ? config_truth(&f, tie)
              : config_get(&all, tie) ? config_truth(&all, tie)
                                      : c->tied;
    list_unknown(c, f.object, unknown);
    f.st = f.st ? f.st : all.st;
    return f.st ? f.st : table_check(s, path, e);
}

status config_read_shape(const config_family *c, const json_t *config, const char *path,
                         model_shape **out, str *unknown, err *e)
{
    model_shape *s = mem_calloc(1, c->shapes->shape_bytes);
    if (!s)
        return err_memory(e, path, c->shapes->shape_bytes);
    status st = read_shape(c, config, path, s, unknown, e);
    if (st)
        mem_free(s);
    else
        *out = s;
    return st;
}
