/* convert_sentence.c - what a directory of sentence-transformers says beside the model:
 * modules.json, how rows become a vector, the dense layers behind it, and the prompts by name.
 *
 *     modules.json                       Transformer, Pooling, Dense ..., Normalize
 *     1_Pooling/config.json              the mean of the rows, or one of them
 *     2_Dense/config.json, model.safetensors
 *     config_sentence_transformers.json  prompts
 *
 * Everything that would change a vector is read or refused.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/table.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *flag, *word;
    int32_t type;
} poolings[] = {{"pooling_mode_mean_tokens", "mean", POOLING_MEAN},
                {"pooling_mode_cls_token", "cls", POOLING_FIRST},
                {"pooling_mode_lasttoken", "lasttoken", POOLING_LAST}};

/* Older files have a flag for each way, newer ones a word. Other ways are refused. */
static status read_pooling(sentence_modules *x, const json_t *config, const char *path, err *e)
{
    const char *word = json_string_value(json_object_get(config, "pooling_mode"));
    const char *key;
    json_t *v;
    int32_t n = 0;
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++)
        if (word ? !strcmp(word, poolings[i].word)
                 : json_is_true(json_object_get(config, poolings[i].flag))) {
            x->pooling = poolings[i].type;
            n++;
        }
    json_object_foreach((json_t *)config, key, v)
    {
        bool other = !word && !strncmp(key, "pooling_mode_", 13) && json_is_true(v);
        for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++)
            other &= strcmp(key, poolings[i].flag) != 0;
        n += other;
    }
    if (json_is_false(json_object_get(config, "include_prompt")))
        return err_set(e, E_UNSUPPORTED, "%s: include_prompt is false: the rows of a prompt count",
                       path);
    if (n != 1 || !x->pooling)
        return err_set(e, E_UNSUPPORTED,
                       "%s: expected one way of pooling, the mean, the first or the last token",
                       path);
    return OK;
}

static status read_dense(sentence_modules *x, const json_t *config, const char *dir,
                         const char *path, err *e)
{
    const char *act = json_string_value(json_object_get(config, "activation_function"));
    const char *dot = act ? strrchr(act, '.') : NULL;
    char file[4096 + 32];
    if (x->n_dense == SENTENCE_DENSE_MAX)
        return err_set(e, E_UNSUPPORTED, "%s: more than %d dense layers", path, SENTENCE_DENSE_MAX);
    if (!json_is_false(json_object_get(config, "bias")))
        return err_set(e, E_UNSUPPORTED, "%s: bias is not false", path);
    if (!act || strcmp(dot ? dot + 1 : act, "Identity") != 0)
        return err_set(e, E_UNSUPPORTED, "%s: activation_function is %.60s, expected Identity",
                       path, act ? act : "missing");
    if (!config_integer(json_object_get(config, "out_features"), 1, WIDTH_MAX,
                        &x->n_out[x->n_dense]))
        return err_set(e, E_FORMAT, "%s: out_features is missing or out of range", path);
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    return safetensors_open(&x->dense[x->n_dense++], file, e);
}

static status read_module(sentence_modules *x, const char *dir, const json_t *module, err *e)
{
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *name = json_string_value(json_object_get(module, "path"));
    const char *dot = type ? strrchr(type, '.') : NULL, *kind = dot ? dot + 1 : type;
    char sub[4096], path[4096 + 16];
    json_t *config = NULL;
    status st;
    if (!type || !name || strchr(name, '/') || *name == '.')
        return err_set(e, E_FORMAT, "%s/modules.json: a module without a type or a folder", dir);
    if (!strcmp(kind, "Transformer") || !strcmp(kind, "Normalize"))
        return OK;
    if (strcmp(kind, "Pooling") != 0 && strcmp(kind, "Dense") != 0)
        return err_set(e, E_UNSUPPORTED,
                       "%s/modules.json: carat has no module %.60s: these are Transformer, "
                       "Pooling, Dense and Normalize",
                       dir, kind);
    if (snprintf(sub, sizeof sub, "%s/%s", dir, name) >= (int)sizeof sub)
        return err_set(e, E_ARG, "%s: the path is too long", dir);
    if ((st = convert_read_json(&config, sub, "config.json", true, e)))
        return st;
    snprintf(path, sizeof path, "%s/config.json", sub);
    st = *kind == 'P' ? read_pooling(x, config, path, e) : read_dense(x, config, sub, path, e);
    json_decref(config);
    return st;
}

status sentence_modules_read(sentence_modules *x, const char *dir, err *e)
{
    json_t *list = NULL;
    status st;
    *x = (sentence_modules){0};
    if ((st = convert_read_json(&list, dir, "modules.json", false, e)) || !list)
        return st;
    if (!json_is_array(list))
        st = err_set(e, E_FORMAT, "%s/modules.json: expected a list", dir);
    for (size_t i = 0; i < json_array_size(list) && !st; i++)
        st = read_module(x, dir, json_array_get(list, i), e);
    json_decref(list);
    if (!st)
        st = convert_read_json(&x->config, dir, "config_sentence_transformers.json", false, e);
    return st;
}

void sentence_modules_free(sentence_modules *x)
{
    for (int32_t i = 0; i < x->n_dense; i++)
        safetensors_close(&x->dense[i]);
    json_decref(x->config);
    *x = (sentence_modules){0};
}

/* The family's row of a key; NULL: it has none. */
static const table_key *row_of(const model_shape *s, const char *key)
{
    const family_table *t = s->family->table;
    for (int32_t i = 0; t && i < t->n_keys; i++)
        if (t->keys[i].gguf && !strcmp(t->keys[i].gguf, key) &&
            (!t->keys[i].when || t->keys[i].when(s)))
            return &t->keys[i];
    return NULL;
}

status sentence_modules_apply(const sentence_modules *x, model_shape *s, const char *dir,
                              str *notes, err *e)
{
    const table_key *pooling = row_of(s, "pooling_type"), *dense = row_of(s, "dense_2_feat_out");
    if (x->pooling && !pooling)
        return err_set(e, E_UNSUPPORTED,
                       "%s: modules.json makes it a model of vectors, which carat does not know "
                       "of %s",
                       dir, s->family->arch);
    if (x->n_dense && (!dense || x->n_dense != SENTENCE_DENSE_MAX))
        return err_set(e, E_UNSUPPORTED, "%s: %d dense layers behind a model of %s, expected %d",
                       dir, x->n_dense, s->family->arch, dense ? SENTENCE_DENSE_MAX : 0);
    if (dense)
        table_set(s, dense, x->n_dense ? x->n_out[0] : 0);
    if (dense && !x->n_dense && notes)
        str_printf(notes,
                   "%sthere is no modules.json with two Dense modules: vectors are those of "
                   "the model without them",
                   notes->n ? "; " : "");
    if (x->pooling)
        table_set(s, pooling, x->pooling);
    s->tied |= x->pooling != 0; /* vectors need no head; checkpoints of them have none */
    return OK;
}

const tensor *sentence_modules_find(const sentence_modules *x, const char *name)
{
    static const char *const folder[SENTENCE_DENSE_MAX] = {"2_Dense.", "3_Dense."};
    for (int32_t i = 0; x && i < x->n_dense; i++)
        if (!strncmp(name, folder[i], strlen(folder[i])))
            return tensor_find(&x->dense[i].tensors, name + strlen(folder[i]));
    return NULL;
}

/* As carat_embed_prompts reads them. */
status sentence_modules_put(const sentence_modules *x, gguf_writer *w, err *e)
{
    const json_t *prompts = json_object_get(x->config, "prompts");
    size_t n = json_object_size(prompts), k = 0;
    gguf_string *list = n ? mem_calloc(2 * n, sizeof *list) : NULL;
    const char *key;
    json_t *v;
    if (!n)
        return OK;
    if (!list)
        return err_memory(e, "the prompts", 2 * n * sizeof *list);
    json_object_foreach((json_t *)prompts, key, v) if (json_is_string(v))
    {
        list[k] = (gguf_string){key, strlen(key)};
        list[n + k++] = (gguf_string){json_string_value(v), json_string_length(v)};
    }
    if (k) {
        gguf_put_strings(w, "sentence_transformers.prompt.names", list, k);
        gguf_put_strings(w, "sentence_transformers.prompt.texts", list + n, k);
    }
    mem_free(list);
    return OK;
}
