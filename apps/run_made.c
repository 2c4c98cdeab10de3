/* run_made.c - `carat run NAME` of a model that a server has made of another (apps/hub/made.h).
 *
 * Its system message and settings count as a preset that comes after --preset: the command line,
 * the environment and a preset say more. Its messages begin the conversation.
 */
#include "apps/commands.h"
#include "apps/hub/made.h"
#include "apps/run_int.h"
#include "base/json.h"

#include <string.h>
#include <sys/stat.h>

bool run_is_made(const char *name)
{
    arena mem = {0};
    const made_model *m = NULL;
    bool is = !made_find(name, &mem, &m, NULL) && m;
    arena_free(&mem);
    return is;
}

/* Does `run` have an option for this setting of ollama's? */
static bool has_option(const char *key)
{
    return made_setting(key) && options_find_any(command_run.options, key);
}

/* Settings of ollama's about loading. Those without an option are kept without effect. */
static bool is_of_loading(const char *key)
{
    static const char *const words[] = {"num_ctx",    "num_batch", "num_gpu",  "main_gpu",
                                        "num_thread", "num_keep",  "use_mmap", "numa",
                                        "low_vram",   "use_mlock"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(key, words[i]))
            return true;
    return false;
}

/* A number below 0 asks for the model's own value or for no limit, unless the setting has such
 * values. */
static bool is_unset(const char *key, const json_t *v)
{
    const carat_sampling_setting *is = carat_sampling_find(key);
    return json_is_number(v) && json_number_value(v) < 0 && (!is || is->min >= 0);
}

static status set_one(run_options *o, config *f, const char *key, const json_t *v, made_run *m,
                      err *e)
{
    char text[64] = "";
    const option *table = command_run.options;
    const char *value = json_string_value(v);
    if (json_is_integer(v))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        snprintf(text, sizeof text, "%.17g", json_real_value(v));
    else if (!value)
        return err_set(e, E_FORMAT, "%s: its setting %s is neither a number nor a text", m->name,
                       key);
    if (!value && !(value = arena_strndup(&m->mem, text, strlen(text))))
        return err_memory(e, m->name, sizeof text);
    err why = {0};
    status st = options_set(table, key, value, o, &f->marks, CONFIG_PRESET_FROM, &why);
    return st ? err_set(e, st, "%s: PARAMETER %s", m->name, why.text) : OK;
}

static status set_all(run_options *o, config *f, made_run *m, err *e)
{
    const char *key, *system = json_string_value(json_object_get(m->root, "system"));
    json_t *v, *all = json_object_get(m->root, "parameters");
    status st = OK;
    if (system && *system)
        st =
            options_set(command_run.options, "system", system, o, &f->marks, CONFIG_PRESET_FROM, e);
    json_object_foreach(all, key, v)
    {
        if (st || !has_option(key) || is_unset(key, v))
            continue;
        if (!json_is_array(v))
            st = set_one(o, f, key, v, m, e);
        for (size_t i = 0; !st && json_is_array(v) && i < json_array_size(v); i++)
            st = set_one(o, f, key, json_array_get(v, i), m, e);
    }
    return st;
}

status run_take_made(run_options *o, config *f, made_run *m, err *e)
{
    const made_model *found;
    struct stat sb;
    *m = (made_run){0};
    if (!o->model || !stat(o->model, &sb) || made_find(o->model, &m->mem, &found, NULL) || !found)
        return OK;
    m->name = found->name;
    status st = json_parse(&m->root, found->text, found->n, found->name, e);
    if (st)
        return st;
    const char *from = json_string_value(json_object_get(m->root, "from"));
    const char *file = json_string_value(json_object_get(m->root, "file"));
    if (!from || !*from)
        return err_set(e, E_FORMAT, "%s does not say which model it is made of", m->name);
    if (json_is_true(json_object_get(m->root, "bundled")))
        o->model = NULL;
    else
        o->model = file && !stat(file, &sb) ? file : from;
    m->messages.mem = &m->mem;
    const jtree *all, *list = NULL;
    if (json_object_get(m->root, "messages")) {
        if ((st = jtree_parse(found->text, found->n, found->name, CONVERSATION_DEPTH, &m->mem, &all,
                              e)))
            return st;
        list = jtree_get(all, "messages");
    }
    if (list && (st = conversations_take(list, &m->messages, found->name, e)))
        return st;
    const char **adapter;
    size_t n;
    st = made_adapters(found, &m->mem, &adapter, &n, e);
    for (size_t i = 0; i < n && !st; i++) {
        if (o->lora.files.n == LORA_FILES_MAX)
            st = err_set(e, E_ARG, "%s and --lora have more than %d adapters", m->name,
                         LORA_FILES_MAX);
        else if (stat(adapter[i], &sb)) /* else the end of its name may count as a scale */
            st = err_errno(e, "open the adapter", adapter[i]);
        else
            o->lora.files.at[o->lora.files.n++] = adapter[i];
    }
    return st ? st : set_all(o, f, m, e);
}

status run_check_made(const char *name, json_t *root, err *e)
{
    run_options o = run_usual;
    config f = {0};
    made_run m = {.name = name, .root = root};
    const char *key;
    json_t *v;
    status st = OK;
    json_object_foreach(json_object_get(root, "parameters"), key, v)
    {
        if (!st && !made_setting(key) && !is_of_loading(key))
            st = err_set(e, E_ARG, "%s: PARAMETER %s: carat has no such setting", name, key);
        else if (!st && !has_option(key))
            term_note("%s: PARAMETER %s has no effect in carat", name, key);
    }
    if (!st)
        st = set_all(&o, &f, &m, e);
    arena_free(&m.mem);
    return st;
}

status run_begin_made(chat *c, const run_options *o, const made_run *m, err *e)
{
    if (!m->messages.n || o->resume || o->messages_file)
        return OK;
    status st = chat_take_messages(c, &m->messages, m->name, e);
    return st || !o->system ? st : chat_set_system(c, o->system, e);
}

void made_run_free(made_run *m)
{
    json_decref(m->root);
    arena_free(&m->mem);
    *m = (made_run){0};
}
