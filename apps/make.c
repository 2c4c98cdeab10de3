/* make.c - `carat create` and `carat cp`: models made of others (apps/hub/made.h), by hand. */
#include "apps/commands.h"
#include "apps/hub/hub.h"
#include "apps/hub/made.h"
#include "apps/modelfile.h"
#include "apps/run_int.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct create_options {
    const char *file;
} create_options;

static const option create_table[] = {
    OPT_STR(create_options, file, "file", 'f', "FILE", "ollama's Modelfile (default: Modelfile)"),
    OPT_END};
static const option cp_table[] = {OPT_END};

static int fail(const err *e)
{
    term_error(e);
    return e->status == E_ARG || e->status == E_FORMAT ? 2 : 1;
}

/* ---- What a model is made of ---- */

/* Parts of the model that this one is of, for what it does not say. */
static status take_parts(json_t *root, const char *text, size_t n, const char *name, err *e)
{
    static const char *const parts[] = {"system", "messages", "license"};
    static const char *const weights[] = {"from", "file", "bundled"};
    json_t *base;
    status st = json_parse(&base, text, n, name, e);
    if (st)
        return st;
    for (size_t i = 0; i < 3; i++) {
        if (!json_object_get(root, parts[i]) && json_object_get(base, parts[i]))
            json_object_set(root, parts[i], json_object_get(base, parts[i]));
        if (json_object_get(base, weights[i]))
            json_object_set(root, weights[i], json_object_get(base, weights[i]));
    }
    json_t *before = json_object_get(base, "adapters"), *more = json_object_get(root, "adapters");
    if (json_is_array(before) && more)
        json_array_extend(before, more);
    if (json_is_array(before))
        json_object_set(root, "adapters", before);
    json_t *own = json_object_get(root, "parameters"), *old = json_object_get(base, "parameters");
    if (json_is_object(own) && json_is_object(old))
        json_object_update_missing(own, old);
    else if (json_is_object(old))
        json_object_set(root, "parameters", old);
    json_decref(base);
    return json_was_short() ? err_memory(e, name, n) : OK;
}

/* Says where the weights are: those of a made model, a file, the bundled model, or a name. */
static status find_weights(json_t *root, err *e)
{
    arena mem = {0};
    const char *from = json_string_value(json_object_get(root, "from"));
    const made_model *made;
    model_found found = {0};
    struct stat sb;
    char path[4096], dir[2048] = "";
    json_was_short();
    status st = stat(from, &sb) ? made_find(from, &mem, &made, e) : (made = NULL, OK);
    if (!st && made) {
        st = take_parts(root, made->text, made->n, made->name, e);
    } else if (!st && !strcmp(from, "bundled") && stat(from, &sb)) {
        json_object_set_new(root, "bundled", json_true());
    } else if (!st && !(st = model_find(from, &found, e))) {
        bool absolute = *found.path == '/';
        bool whole = absolute || getcwd(dir, sizeof dir);
        int n = snprintf(path, sizeof path, "%s%s%s", dir, absolute ? "" : "/", found.path);
        if (found.where == MODEL_PATH && stat(found.path, &sb))
            st = err_errno(e, "open", found.path);
        else if (found.where == MODEL_PATH && (!whole || n >= (int)sizeof path))
            st = err_set(e, E_LIMIT, "%s: its path is too long", found.path);
        else if (found.where == MODEL_PATH)
            json_object_set_new(root, "file", json_string(path));
        else /* parts of a name may come to fit another model, too */
            json_object_set_new(root, "from", json_string(found.name));
    }
    if (!st && json_was_short())
        st = err_memory(e, "a model", 1);
    model_found_free(&found);
    arena_free(&mem);
    return st;
}

/* Adapters are files beside the Modelfile, or absolute: absolute ones from here on. */
static status find_adapters(json_t *root, const char *modelfile, err *e)
{
    json_t *list = json_object_get(root, "adapters");
    const char *slash = strrchr(modelfile, '/');
    int n_dir = slash ? (int)(slash + 1 - modelfile) : 0;
    status st = OK;
    json_was_short();
    for (size_t i = 0; i < json_array_size(list) && !st; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        char path[4096], *whole = NULL;
        int n = snprintf(path, sizeof path, "%.*s%s", *name == '/' ? 0 : n_dir, modelfile, name);
        if (n >= (int)sizeof path)
            st = err_set(e, E_LIMIT, "%s: its path is too long", name);
        else if (!(whole = realpath(path, NULL)))
            st = err_errno(e, "open the adapter", path);
        else
            json_array_set_new(list, i, json_string(whole));
        free(whole);
    }
    return !st && json_was_short() ? err_memory(e, "an adapter", 256) : st;
}

static status check_adapters(const made_model *m, err *e)
{
    arena mem = {0};
    const char **adapter, *path;
    size_t n;
    int32_t n_ctx;
    status st = made_adapters(m, &mem, &adapter, &n, e);
    for (size_t i = 1; i < n && !st; i++)
        for (size_t k = 0; k < i && !st; k++)
            if (!strcmp(adapter[i], adapter[k]))
                st = err_set(e, E_ARG, "%s has the adapter %s twice", m->name, adapter[i]);
    if (!st && n && !(st = made_weights(m, &mem, &path, &n_ctx, e)))
        st = lora_check(path, adapter, n, e);
    arena_free(&mem);
    return st;
}

static status write_made(const char *name, const json_t *root, err *e)
{
    char *text = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text)
        return err_memory(e, name, 1);
    size_t n = strlen(text);
    status st = check_adapters(&(made_model){.name = name, .text = text, .n = n}, e);
    if (!st)
        st = made_write(name, text, n, e);
    mem_free(text);
    return st;
}

/* The name of a model with weights stays that model's. */
static status check_name(const char *name, err *e)
{
    return model_known(name) ? err_set(e, E_ARG, "'%s' is the name of a model with weights", name)
                             : OK;
}

/* ---- The commands ---- */

static int run_create(const command *c, int argc, char **argv)
{
    create_options o = {.file = "Modelfile"};
    int n, stop = options_parse(c, argc, argv, &o, &n);
    char *text = NULL;
    size_t n_text = 0;
    json_t *root = NULL;
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    status st = check_name(argv[0], &e);
    if (!st && !(st = file_read_all(o.file, MADE_BYTES_MAX, &text, &n_text, &e)) &&
        !(st = modelfile_parse(&root, text, n_text, o.file, &e)) &&
        !(st = run_check_made(o.file, root, &e)) && !(st = find_adapters(root, o.file, &e)) &&
        !(st = find_weights(root, &e)))
        st = write_made(argv[0], root, &e);
    if (!st)
        term_note("%s is made of %s: carat run %s", argv[0],
                  json_string_value(json_object_get(root, "from")), argv[0]);
    json_decref(root);
    mem_free(text);
    return st ? fail(&e) : 0;
}

const command command_create = {
    .name = "create",
    .operands = "NAME",
    .summary = "Make a model of another, by a Modelfile",
    .about =
        "Such a model has no weights: it is a name for another one with a system message, "
        "settings\n"
        "and messages, which carat run NAME and requests to carat serve take for what they do not\n"
        "say. FROM (a model of carat list, a GGUF file, or the word bundled), ADAPTER (a LoRA\n"
        "adapter, beside the Modelfile), PARAMETER, SYSTEM, MESSAGE and LICENSE of ollama's\n"
        "Modelfile are read; TEMPLATE is refused.",
    .options = create_table,
    .n_operands_min = 1,
    .n_operands_max = 1,
    .run = run_create};

static int run_cp(const command *c, int argc, char **argv)
{
    int n, stop = options_parse(c, argc, argv, &(char){0}, &n);
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    json_t *root = json_pack("{s:s}", "from", argv[0]);
    status st = root ? check_name(argv[1], &e) : err_memory(&e, argv[0], 1);
    if (!st && !(st = find_weights(root, &e)))
        st = write_made(argv[1], root, &e);
    json_decref(root);
    return st ? fail(&e) : 0;
}

const command command_cp = {.name = "cp",
                            .operands = "NAME NEW_NAME",
                            .summary = "Give a model a second name",
                            .about = "No file is copied. carat rm NEW_NAME takes the name back.",
                            .options = cp_table,
                            .n_operands_min = 2,
                            .n_operands_max = 2,
                            .run = run_cp};
