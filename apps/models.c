/* models.c - `carat list`, `carat show`, `carat rm`: the models that have names.
 *
 * What a name is, and where models are kept, is the business of apps/hub/. Here it is shown.
 */
#include "apps/bundled.h"
#include "apps/commands.h"
#include "apps/hub/hub.h"
#include "apps/hub/made.h"
#include "apps/term.h"
#include "base/json.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct list_options {
    bool json, quiet;
} list_options;

typedef struct show_options {
    bool json;
} show_options;

static const option list_table[] = {OPT_FLAG(list_options, json, "json", 'j', "print JSON"),
                                    OPT_FLAG(list_options, quiet, "quiet", 'q', "names only"),
                                    OPT_END};
static const option show_table[] = {OPT_FLAG(show_options, json, "json", 'j', "print JSON"),
                                    OPT_END};
static const option rm_table[] = {OPT_END};

static const char *where_text(model_where w)
{
    return w == MODEL_STORE ? "store" : w == MODEL_HF_CACHE ? "cache of Hugging Face" : "file";
}

/* "4.7 GB": the units of the hub's pages. */
static const char *size_text(uint64_t v, char *buf, size_t cap)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double x = (double)v;
    int u = 0;
    for (; x >= 1000 && u < 4; u++)
        x /= 1000;
    snprintf(buf, cap, u && x < 100 ? "%.1f %s" : "%.0f %s", x, unit[u]);
    return buf;
}

/* "3 days ago" */
static const char *age_text(int64_t when_s, char *buf, size_t cap)
{
    static const struct {
        int64_t s;
        const char *name;
    } unit[] = {{365 * 86400, "year"}, {30 * 86400, "month"}, {7 * 86400, "week"},
                {86400, "day"},        {3600, "hour"},        {60, "minute"}};
    int64_t age = (int64_t)time(NULL) - when_s;
    if (age < 0)
        age = 0;
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        int64_t n = age / unit[i].s;
        if (n) {
            snprintf(buf, cap, "%" PRId64 " %s%s ago", n, unit[i].name, n > 1 ? "s" : "");
            return buf;
        }
    }
    snprintf(buf, cap, "just now");
    return buf;
}

/* 0, or 1 with a message if stdout took less than everything. */
static int flushed(void)
{
    if (!fflush(stdout) && !ferror(stdout))
        return 0;
    term_error(&(err){.text = "cannot write to standard output"});
    return 1;
}

static int print_json(json_t *v)
{
    bool short_of = json_was_short();
    bool ok = v && !short_of && json_write(stdout, v, JSON_INDENT(2));
    json_decref(v);
    if (!ok)
        term_error(short_of ? &(err){.text = "not enough memory for the report"}
                            : &(err){.text = "cannot write to standard output"});
    return ok ? 0 : 1;
}

/* The vision tower beside a model, for mem_free; NULL: none. */
static char *tower_of(const char *path)
{
    char *tower = NULL;
    mmproj_find(path, &tower, NULL);
    return tower;
}

static void add_tower(json_t *v, const char *path)
{
    char *tower = tower_of(path);
    json_object_set_new(v, "mmproj", tower ? json_lossy_text(tower, strlen(tower)) : json_null());
    json_object_set_new(v, "hears", json_boolean(tower && mmproj_hears(tower)));
    mem_free(tower);
}

static json_t *entry_json(const model_entry *m)
{
    json_t *v = json_object();
    json_object_set_new(v, "name", json_string(m->name));
    json_object_set_new(v, "repo", json_string(m->repo));
    json_object_set_new(v, "quant", json_string(m->quant));
    json_object_set_new(v, "path", json_lossy_text(m->path, strlen(m->path)));
    json_object_set_new(v, "sha256", *m->digest ? json_string(m->digest) : json_null());
    json_object_set_new(v, "bytes", json_integer((json_int_t)m->n_bytes));
    json_object_set_new(v, "files", json_integer(m->n_files));
    json_object_set_new(v, "modified", json_integer(m->when_s));
    json_object_set_new(v, "where", json_string(where_text(m->where)));
    add_tower(v, m->path);
    return v;
}

static int fail(const err *e)
{
    term_error(e);
    return e->status == E_ARG ? 2 : 1;
}

/* ---- carat list ---------------------------------------------------------------------------- */

static void put_table(const model_list *l)
{
    size_t width = 4;
    bool any_cache = false;
    char size[32], age[32];
    for (size_t i = 0; i < l->n; i++) {
        if (strlen(l->at[i].name) > width)
            width = strlen(l->at[i].name);
        any_cache = any_cache || l->at[i].where == MODEL_HF_CACHE;
    }
    printf("%-*s  %8s  %-14s%s\n", (int)width, "NAME", "SIZE", "MODIFIED", any_cache ? "  IN" : "");
    for (size_t i = 0; i < l->n; i++) {
        const model_entry *m = &l->at[i];
        term_put_name(stdout, m->name, strlen(m->name), (int)width);
        printf("  %8s  %-14s", size_text(m->n_bytes, size, sizeof size),
               age_text(m->when_s, age, sizeof age));
        char *tower = tower_of(m->path);
        printf("%s%-*s%s%s\n", any_cache ? "  " : "", any_cache && tower ? 21 : 0,
               any_cache ? where_text(m->where) : "", tower ? "  " : "", mmproj_gives(tower));
        mem_free(tower);
    }
}

/* Models that are made of others have no size of their own. */
static bool put_made(bool quiet)
{
    arena mem = {0};
    const made_model *list;
    char age[32];
    size_t n = 0;
    if (!made_list(&mem, &list, &n, NULL))
        for (size_t i = 0; i < n; i++) {
            if (!i && !quiet)
                puts("\nMADE OF OTHERS (carat create, cp; servers)");
            term_put_name(stdout, list[i].name, strlen(list[i].name), quiet ? 0 : 24);
            if (!quiet)
                printf("  %s", age_text(list[i].when_s, age, sizeof age));
            putchar('\n');
        }
    arena_free(&mem);
    return n > 0;
}

static int run_list(const command *c, int argc, char **argv)
{
    list_options o = {0};
    int n, stop = options_parse(c, argc, argv, &o, &n), code = 0;
    model_list l;
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    if (model_list_read(&l, &e))
        return fail(&e);
    if (o.json) {
        json_t *all = json_array();
        json_was_short();
        for (size_t i = 0; i < l.n; i++)
            json_array_append_new(all, entry_json(&l.at[i]));
        code = print_json(all);
    } else if (o.quiet) {
        for (size_t i = 0; i < l.n; i++) {
            term_put_name(stdout, l.at[i].name, strlen(l.at[i].name), 0);
            putchar('\n');
        }
        put_made(true);
        code = flushed();
    } else if (l.n) {
        put_table(&l);
        put_made(false);
        code = flushed();
    } else if (put_made(false)) {
        code = flushed();
    } else {
        term_note(
            "no models yet: carat pull OWNER/REPO fetches one; the bundled model needs no name");
    }
    model_list_free(&l);
    return code;
}

const command command_list = {
    .name = "list",
    .operands = "",
    .summary = "List the models that have names",
    .about =
        "These are the models of the store ($XDG_DATA_HOME/carat, ~/.local/share/carat by "
        "default),\n"
        "and those in the cache of Python's client of the Hugging Face hub, which carat reads and\n"
        "does not change. Every command that takes -m takes their names; parts of a name may be\n"
        "left out as long as one model fits. Those with a vision tower beside them see images,\n"
        "and those whose tower has a part for sound hear.",
    .options = list_table,
    .run = run_list};

/* ---- carat show ---------------------------------------------------------------------------- */

static void put_line(const char *what, const char *text)
{
    if (!text || !*text)
        return;
    printf("  %-14s ", what);
    term_put_name(stdout, text, strlen(text), 0);
    putchar('\n');
}

/* What a made model says beside its weights. */
static void put_made_lines(const json_t *made)
{
    const char *key;
    json_t *v, *one;
    size_t i;
    char line[256];
    put_line("made of", json_string_value(json_object_get(made, "from")));
    json_array_foreach(json_object_get((json_t *)made, "adapters"), i, one)
        put_line("adapter", json_string_value(one));
    put_line("system", json_string_value(json_object_get(made, "system")));
    json_object_foreach(json_object_get((json_t *)made, "parameters"), key, v)
    {
        json_t *list = json_is_array(v) ? json_incref(v) : json_pack("[O]", v);
        json_array_foreach(list, i, one)
        {
            char *text = json_dumps(one, JSON_ENCODE_ANY);
            snprintf(line, sizeof line, "%s %s", key, text ? text : "");
            put_line("parameter", line);
            mem_free(text);
        }
        json_decref(list);
    }
    if ((i = json_array_size(json_object_get(made, "messages")))) {
        snprintf(line, sizeof line, "%zu before the conversation", i);
        put_line("messages", line);
    }
    put_line("license", json_string_value(json_object_get(made, "license")));
}

/* f->path NULL: the bundled model. made: what a made model of these weights says, or NULL. */
static int show_found(const model_found *f, const model_entry *m, json_t *made, bool json)
{
    carat_model_info info = {0};
    carat_model *model = NULL;
    err why = {0};
    char a[64];
    /* Of a model that carat cannot run the rest is shown. */
    const carat_model_options o = {.vocab_only = true};
    bool opened =
        f->path ? !carat_model_open(f->path, &o, &model, &why) : !bundled_open(&o, &model, &why);
    if (opened)
        carat_model_get_info(model, &info);
    int code;
    if (json) {
        json_was_short();
        json_t *v = m ? entry_json(m) : json_object();
        if (made)
            json_object_set(v, "made", made);
        if (!m && f->path) {
            json_object_set_new(v, "path", json_lossy_text(f->path, strlen(f->path)));
            add_tower(v, f->path);
        }
        if (opened) {
            json_object_set_new(v, "architecture", json_string(info.architecture));
            json_object_set_new(v, "parameters", json_integer((json_int_t)info.n_params));
            json_object_set_new(v, "quantization", json_string(info.file_type));
            json_object_set_new(v, "context", json_integer(info.n_ctx_train));
            json_object_set_new(v, "chat", json_boolean(info.has_chat));
        } else {
            json_object_set_new(v, "error", json_string(why.text));
        }
        code = print_json(v);
    } else {
        term_put_name(stdout, f->name, strlen(f->name), 0);
        putchar('\n');
        if (made)
            put_made_lines(made);
        if (opened) {
            put_line("model", info.name);
            put_line("architecture", info.architecture);
            snprintf(a, sizeof a, "%.2f billion", (double)info.n_params * 1e-9);
            put_line("parameters", a);
            put_line("quantization", info.file_type);
            snprintf(a, sizeof a, "%" PRId32 " tokens", info.n_ctx_train);
            put_line("context", a);
            put_line("chat", !info.has_chat ? "its template is not known"
                             : info.thinks  ? "yes, thinks unless told otherwise"
                                            : "yes");
        } else {
            put_line("carat", why.text);
        }
        if (m) {
            put_line("size", size_text(m->n_bytes, a, sizeof a));
            put_line("sha256", m->digest);
            put_line("modified", age_text(m->when_s, a, sizeof a));
            put_line("in", where_text(m->where));
        }
        put_line("file", f->path ? f->path : "bundled with the program");
        char *tower = f->path ? tower_of(f->path) : NULL;
        put_line("mmproj", tower);
        if (tower && mmproj_hears(tower))
            put_line("hears", "yes, by the mmproj file");
        mem_free(tower);
        code = flushed();
    }
    carat_model_close(model);
    return code;
}

/* A made model by its name: its text, and where its weights are. *made NULL: there is none. */
static status find_made(const char *name, model_found *f, json_t **made, err *e)
{
    arena mem = {0};
    const made_model *found;
    const char *path;
    json_t *root = NULL;
    int32_t n_ctx;
    struct stat sb;
    status st = stat(name, &sb) ? made_find(name, &mem, &found, e) : (found = NULL, OK);
    if (!st && found && !(st = made_weights(found, &mem, &path, &n_ctx, e)) &&
        !(st = json_parse(&root, found->text, found->n, found->name, e))) {
        model_found own = {path ? mem_strdup(path) : NULL, mem_strdup(found->name), MODEL_PATH};
        if (!own.name || (path && !own.path)) {
            st = err_memory(e, name, strlen(name));
            model_found_free(&own);
            json_decref(root);
        } else {
            *f = own;
            *made = root;
        }
    }
    arena_free(&mem);
    return st;
}

static int run_show(const command *c, int argc, char **argv)
{
    show_options o = {0};
    int n, stop = options_parse(c, argc, argv, &o, &n), code;
    model_list l;
    model_found f = {0};
    const model_entry *m = NULL;
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    if (model_list_read(&l, &e))
        return fail(&e);
    json_t *made = NULL;
    status st = find_made(argv[0], &f, &made, &e);
    if (!st && !made)
        st = model_find(argv[0], &f, &e);
    for (size_t i = 0; !st && f.path && i < l.n; i++)
        if (!strcmp(l.at[i].path, f.path))
            m = &l.at[i];
    code = st ? fail(&e) : show_found(&f, m, made, o.json);
    json_decref(made);
    model_found_free(&f);
    model_list_free(&l);
    return code;
}

const command command_show = {.name = "show",
                              .operands = "NAME",
                              .summary = "Show what is known about a model: sizes, files, template",
                              .about = "carat inspect shows everything that the file says.",
                              .options = show_table,
                              .n_operands_min = 1,
                              .n_operands_max = 1,
                              .run = run_show};

/* ---- carat rm ------------------------------------------------------------------------------ */

static int run_rm(const command *c, int argc, char **argv)
{
    int n, stop = options_parse(c, argc, argv, &(char){0}, &n), code = 0;
    char size[32];
    if (stop)
        return stop - 1;
    term_init();
    for (int i = 0; i < n; i++) {
        uint64_t freed;
        err e = {0};
        if (model_remove(argv[i], &freed, &e)) {
            int bad = fail(&e);
            code = bad > code ? bad : code;
        } else if (freed) {
            term_note("removed %s; %s are free again", argv[i],
                      size_text(freed, size, sizeof size));
        } else {
            term_note("removed %s", argv[i]);
        }
    }
    return code;
}

const command command_rm = {
    .name = "rm",
    .operands = "NAME...",
    .summary = "Remove models from the store",
    .about = "Files that another model of the store uses stay. Models in the cache of Python's\n"
             "client of the Hugging Face hub stay too; 'hf cache rm' removes them.",
    .options = rm_table,
    .n_operands_min = 1,
    .n_operands_max = -1,
    .run = run_rm};
