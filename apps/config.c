/* config.c - see config.h; and `carat config`, which prints what would be used. */
#include "apps/config.h"

#include "apps/commands.h"
#include "apps/hub/place.h"
#include "apps/mcp_options.h"
#include "apps/term.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { WORDS_MAX = 512 };

/* The commands that take settings. */
static const command *const takers[] = {&command_run, &command_serve};
enum { N_TAKERS = sizeof takers / sizeof *takers };

/* ---- Keys ---------------------------------------------------------------------------------- */

static bool same_key(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '_' ? '-' : *a) != (*b == '_' ? '-' : *b))
            return false;
    return !*a && !*b;
}

/* Options that say how settings are read cannot be settings. */
static bool is_own(const char *key)
{
    return same_key(key, "preset") || same_key(key, "config") || same_key(key, "no-config");
}

static const option *find_row(const command *c, const char *key)
{
    return is_own(key) ? NULL : options_find_any(c->options, key);
}

static status at_line(const config *f, const toml *t, const char *says, err *e)
{
    return err_set(e, E_ARG, "%s:%d: %s", f->path, t->line, says);
}

static status unknown_key(const config *f, const toml *t, const char *const *words, size_t n,
                          err *e)
{
    const char *near = nearest_word(t->key, words, n);
    return err_set(e, E_ARG, "%s:%d: there is no setting '%s'%s%s%s", f->path, t->line, t->key,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Does the kind of a value fit the option? */
static bool fits(const option *o, const toml *t)
{
    if (o->kind == OPTION_FLAG)
        return t->kind == TOML_BOOL;
    if (o->kind == OPTION_INT || o->kind == OPTION_REAL)
        return t->kind == TOML_INTEGER || t->kind == TOML_REAL || t->kind == TOML_STRING;
    if (o->kind == OPTION_STR)
        return t->kind == TOML_STRING;
    if (t->kind != TOML_ARRAY)
        return t->kind == TOML_STRING;
    for (const toml *i = t->first; i; i = i->next)
        if (i->kind != TOML_STRING)
            return false;
    return true;
}

static const char *wanted(const option *o)
{
    return o->kind == OPTION_FLAG   ? "true or false"
           : o->kind == OPTION_INT  ? "a whole number"
           : o->kind == OPTION_REAL ? "a number"
           : o->kind == OPTION_STR  ? "a string"
                                    : "a string or an array of strings";
}

static status misfit(const config *f, const option *o, const toml *t, err *e)
{
    const toml *item = t->kind == TOML_ARRAY ? t->first : NULL;
    while (item && item->kind == TOML_STRING)
        item = item->next;
    return err_set(e, E_ARG, "%s:%d: %s: expected %s, found %s%s", f->path,
                   item ? item->line : t->line, t->key, wanted(o),
                   toml_kind_name(item ? item->kind : t->kind), item ? " in an array" : "");
}

/* Checks the keys of a table that holds options. secret: the file is its owner's alone. */
static status check_options(const config *f, const toml *table, bool preset, bool secret, err *e)
{
    if (table->kind != TOML_TABLE)
        return err_set(e, E_ARG, "%s:%d: '%s' should be a table", f->path, table->line, table->key);
    for (const toml *t = table->first; t; t = t->next) {
        const option *row = NULL;
        if (preset && same_key(t->key, "from")) {
            if (t->kind != TOML_STRING)
                return at_line(f, t, "from: expected the name of a preset", e);
            continue;
        }
        for (int i = 0; i < N_TAKERS; i++) { /* an option may be a list for one of them */
            const option *own = find_row(takers[i], t->key);
            if (own && (!row || !fits(row, t)))
                row = own;
        }
        if (!row) {
            const char *words[WORDS_MAX];
            size_t n = 0;
            for (int i = 0; i < N_TAKERS; i++)
                for (const option *o = takers[i]->options; o->name && n < WORDS_MAX; o++)
                    if (!is_own(o->name))
                        words[n++] = o->name;
            return unknown_key(f, t, words, n, e);
        }
        if (!fits(row, t))
            return misfit(f, row, t, e);
        if (!strcmp(row->name, "api-key") && !secret)
            return err_set(e, E_ARG, "%s:%d: others may read the API key here: chmod 600 %s",
                           f->path, t->line, f->path);
    }
    return OK;
}

static status check_presets(const config *f, const toml *presets, bool secret, err *e)
{
    if (presets->kind != TOML_TABLE)
        return at_line(f, presets, "expected [presets.NAME]", e);
    for (const toml *t = presets->first; t; t = t->next) {
        status st = check_options(f, t, true, secret, e);
        if (st)
            return st;
        const toml *from = toml_get(t, "from");
        const toml *other = from ? toml_get(presets, from->text) : NULL;
        if (from && !other)
            return err_set(e, E_ARG, "%s:%d: there is no preset '%s'", f->path, from->line,
                           from->text);
        if (other && toml_get(other, "from"))
            return err_set(e, E_ARG, "%s:%d: preset '%s' is itself from another one", f->path,
                           from->line, from->text);
    }
    return OK;
}

/* ---- Reading ------------------------------------------------------------------------------- */

status config_take(config *f, const char *text, size_t n, const char *path, bool secret, err *e)
{
    static const char *const tables[] = {"version", "defaults", "presets", "serve", "names", "mcp"};
    f->path = arena_strndup(&f->mem, path, strlen(path));
    if (!f->path)
        return err_memory(e, path, strlen(path));
    status st = toml_parse(&f->root, text, n, f->path, &f->mem, e);
    for (const toml *t = st ? NULL : f->root->first; t && !st; t = t->next) {
        if (!strcmp(t->key, "version")) {
            if (t->kind != TOML_INTEGER || t->integer != 1)
                st = at_line(f, t, "version: this carat reads version 1", e);
        } else if (!strcmp(t->key, "presets")) {
            st = check_presets(f, t, secret, e);
        } else if (!strcmp(t->key, "defaults") || !strcmp(t->key, "serve")) {
            st = check_options(f, t, false, secret, e);
        } else if (!strcmp(t->key, "names")) {
            st = config_check_names(f, t, e);
        } else if (!strcmp(t->key, "mcp")) {
            st = mcp_options_check(f, t, secret, e);
        } else if (t->kind != TOML_TABLE && !(t->first && t->first->kind == TOML_TABLE)) {
            st = err_set(e, E_ARG,
                         "%s:%d: '%s' stands above all tables: settings belong under [defaults], "
                         "[presets.NAME], [serve], [names] or [mcp.NAME]",
                         f->path, t->line, t->key);
        } else {
            st = unknown_key(f, t, tables, sizeof tables / sizeof *tables, e);
        }
    }
    if (st)
        f->root = NULL;
    return st;
}

status config_read(config *f, const char *path, err *e)
{
    struct stat sb;
    char *text = NULL;
    size_t n = 0;
    bool named = path != NULL;
    if (!named && !(path = xdg_path(&f->mem, "XDG_CONFIG_HOME", ".config", "carat/config.toml")))
        return OK;
    if (stat(path, &sb))
        return named ? err_errno(e, "open", path) : OK;
    if (S_ISREG(sb.st_mode) && !sb.st_size)
        return config_take(f, "", 0, path, true, e);
    status st = file_read_all(path, CONFIG_MAX, &text, &n, e);
    if (!st)
        st = config_take(f, text, n, path, !(sb.st_mode & 077), e);
    mem_free(text);
    return st;
}

const char *config_preset(const config *f, int i, const char **about)
{
    const toml *presets = toml_get(f->root, "presets"), *from;
    const toml *t = presets ? presets->first : NULL;
    while (t && i--)
        t = t->next;
    from = toml_get(t, "model") ? toml_get(t, "model") : toml_get(t, "from");
    *about = from && from->kind == TOML_STRING ? from->text : "";
    return t ? t->key : NULL;
}

void config_free(config *f)
{
    arena_free(&f->mem);
    *f = (config){0};
}

/* ---- Applying ------------------------------------------------------------------------------ */

/* Options that exclude each other: setting one by a later layer must not contradict the other. */
static const option *opposite(const command *c, const option *o)
{
    static const char *const pairs[][2] = {{"preserve-thinking", "drop-thinking"},
                                           {"model", "hf-repo"}};
    char no[80];
    snprintf(no, sizeof no, "no-%s", o->name);
    const option *other = !strncmp(o->name, "no-", 3) ? options_find(c->options, o->name + 3)
                                                      : options_find(c->options, no);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && !other; i++)
        for (int k = 0; k < 2; k++)
            if (!strcmp(o->name, pairs[i][k]))
                other = options_find(c->options, pairs[i][!k]);
    return other;
}

/* A value that is a path: "~/" is the home directory, and relative ones begin at the file. Of a
 * model, a drafter, a scorer and an MCP server the value may be a name, so there only a path that
 * exists counts.
 */
static const char *as_path(config *f, const option *o, const char *value)
{
    bool model = !strcmp(o->name, "model") || !strcmp(o->name, "draft") ||
                 !strcmp(o->name, "kv-scorer") || !strcmp(o->name, "mcp");
    bool path = o->arg && (!strcmp(o->arg, "FILE") || !strcmp(o->arg, "DIR"));
    const char *home = getenv("HOME"), *slash = strrchr(f->path, '/');
    struct stat sb;
    if ((!model && !path) || !strcmp(value, "-") || *value == '/')
        return value;
    if (!strncmp(value, "~/", 2) && home && *home)
        return path_join(&f->mem, home, value + 2);
    if (!slash)
        return value;
    const char *dir = arena_strndup(&f->mem, f->path, (size_t)(slash - f->path));
    const char *joined = dir ? path_join(&f->mem, dir, value) : NULL;
    return joined && model && stat(joined, &sb) ? value : joined;
}

/* The text of a value, as the command line would have it; NULL: no memory. */
static const char *value_text(config *f, const option *o, const toml *t)
{
    char text[64];
    if (t->kind == TOML_STRING)
        return as_path(f, o, t->text);
    if (t->kind == TOML_INTEGER)
        snprintf(text, sizeof text, "%lld", (long long)t->integer);
    else if (t->kind == TOML_REAL)
        snprintf(text, sizeof text, "%.17g", t->real);
    else
        snprintf(text, sizeof text, "%s", t->truth ? "true" : "false");
    return arena_strndup(&f->mem, text, strlen(text));
}

/* Sets one option, if no layer before this one has. key: its name there. where: for its origin, of
 * f->mem. */
static status set_one(config *f, const command *c, const option *o, const char *key,
                      const char *value, void *opts, int layer, const char *where, err *e)
{
    const option *other = opposite(c, o);
    /* "think = false" says the same as "no-think = true". */
    if (o->kind == OPTION_FLAG && !strcmp(value, "false") && other && other->kind == OPTION_FLAG) {
        const option *self = o;
        o = other;
        other = self;
        key = o->name;
        value = "true";
    }
    if (other && f->marks.layer[other - c->options] && f->marks.layer[other - c->options] < layer)
        return OK;
    status st = options_set(c->options, key, value, opts, &f->marks, layer, e);
    if (!st && f->marks.layer[o - c->options] == layer)
        f->origin[o - c->options] = where;
    return st;
}

static status apply_table(config *f, const command *c, const toml *table, void *opts, int layer,
                          err *e)
{
    for (const toml *t = table ? table->first : NULL; t; t = t->next) {
        const option *o = find_row(c, t->key);
        char where[1200];
        err why = {0};
        if (!o) /* of another command, or "from" */
            continue;
        if (!fits(o, t))
            return misfit(f, o, t, e);
        snprintf(where, sizeof where, "%s%s in %s:%d",
                 layer == CONFIG_PRESET || layer == CONFIG_PRESET_FROM ? "presets." : "",
                 table->key, f->path, t->line);
        const char *origin = arena_strndup(&f->mem, where, strlen(where));
        status st = origin ? OK : E_MEMORY;
        const toml *item = t->kind == TOML_ARRAY ? t->first : t;
        for (; item && !st; item = t->kind == TOML_ARRAY ? item->next : NULL) {
            const char *value = value_text(f, o, item);
            st = value ? set_one(f, c, o, t->key, value, opts, layer, origin, &why) : E_MEMORY;
        }
        if (st == E_MEMORY)
            return err_memory(e, f->path, sizeof where);
        if (st)
            return err_set(e, st, "%s:%d: %s", f->path, t->line, why.text);
    }
    return OK;
}

/* CARAT_KV_TYPE for kv-type. */
static status apply_environment(config *f, const command *c, void *opts, err *e)
{
    for (const option *o = c->options; o->name; o++) {
        char name[96] = "CARAT_";
        size_t n = strlen(name);
        for (const char *at = o->name; *at && n < sizeof name - 1; at++)
            name[n++] = (char)(*at == '-' ? '_' : *at >= 'a' && *at <= 'z' ? *at - 32 : *at);
        name[n] = 0;
        const char *value = getenv(name);
        /* CARAT_ISA has been read by the engine for longer, for every program of libcarat. */
        if (!value || !*value || o->kind == OPTION_HEADING || is_own(o->name) ||
            !strcmp(o->name, "isa"))
            continue;
        if (o->kind == OPTION_FLAG)
            value = !strcmp(value, "1") || !strcasecmp(value, "yes") || !strcasecmp(value, "on")
                        ? "true"
                    : !strcmp(value, "0") || !strcasecmp(value, "no") || !strcasecmp(value, "off")
                        ? "false"
                        : value;
        const char *where = arena_strndup(&f->mem, name, n);
        err why = {0};
        status st = where ? set_one(f, c, o, o->name, value, opts, CONFIG_ENVIRONMENT, where, &why)
                          : err_memory(&why, name, n);
        if (st)
            return err_set(e, st, "%s: %s", name, why.text);
    }
    return OK;
}

static status find_preset(const config *f, const char *name, const toml **out, err *e)
{
    const toml *presets = toml_get(f->root, "presets");
    const char *words[WORDS_MAX];
    size_t n = 0;
    str all = {0};
    const toml *found = toml_get(presets, name);
    if (found) {
        *out = found;
        return OK;
    }
    for (const toml *t = presets ? presets->first : NULL; t && n < WORDS_MAX; t = t->next) {
        str_printf(&all, "%s%s", n ? ", " : "", t->key);
        words[n++] = t->key;
    }
    const char *near = nearest_word(name, words, n);
    status st =
        all.bad ? err_memory(e, name, all.n)
        : !n    ? err_set(e, E_ARG, "there is no preset '%s': %s%s", name,
                       f->path ? f->path : "no file of settings was read",
                       f->path ? " has none" : "")
                : err_set(e, E_ARG, "there is no preset '%s'%s%s%s there are: %s", name,
                       near ? "; did you mean '" : ";", near ? near : "", near ? "'?" : "", all.at);
    str_free(&all);
    return st;
}

status config_apply(config *f, const command *c, const char *preset, void *opts, err *e)
{
    const toml *own = NULL, *from;
    status st = apply_environment(f, c, opts, e);
    if (!st && preset)
        st = find_preset(f, preset, &own, e);
    if (!st && own)
        st = apply_table(f, c, own, opts, CONFIG_PRESET, e);
    if (!st && own && (from = toml_get(own, "from")))
        st = apply_table(f, c, toml_get(toml_get(f->root, "presets"), from->text), opts,
                         CONFIG_PRESET_FROM, e);
    if (!st && c == &command_serve)
        st = apply_table(f, c, toml_get(f->root, "serve"), opts, CONFIG_SERVE, e);
    if (!st)
        st = apply_table(f, c, toml_get(f->root, "defaults"), opts, CONFIG_DEFAULTS, e);
    return st;
}

/* What the options or the environment say about settings. */
static status read_asked(config *f, const config_options *o, const char **preset, err *e)
{
    const char *file = o->file ? o->file : getenv("CARAT_CONFIG");
    const char *asked = o->preset ? o->preset : getenv("CARAT_PRESET");
    config_names_from(o);
    status st = o->none ? OK : config_read(f, file && *file ? file : NULL, e);
    if (!st)
        *preset = asked && *asked ? asked : NULL;
    return st;
}

int config_parse(const command *c, int argc, char **argv, void *opts, int *n_operands, config *f)
{
    const char *preset;
    err e = {0};
    *f = (config){0};
    int bad = options_parse_marked(c, argc, argv, opts, n_operands, &f->marks);
    if (bad)
        return bad;
    const option *row = options_find(c->options, "preset");
    const config_options *o =
        (const void *)((const char *)opts + row->offset - offsetof(config_options, preset));
    status st = read_asked(f, o, &preset, &e);
    if (!st)
        st = config_apply(f, c, preset, opts, &e);
    if (!st)
        return 0;
    term_init();
    term_error(&e);
    config_free(f);
    return st == E_ARG || st == E_FORMAT ? 3 : 2;
}

bool config_typed(const config *f, const command *c, const char *name)
{
    const option *o = options_find(c->options, name);
    return o && f->marks.layer[o - c->options] == CONFIG_COMMAND_LINE;
}

/* ---- carat config -------------------------------------------------------------------------- */

typedef struct config_command_options {
    config_options config;
} config_command_options;

static const option table[] = {OPT_CONFIG(config_command_options), OPT_END};

/* A string as TOML writes it. */
static void put_string(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if (*s == '\n')
            fputs("\\n", stdout);
        else if ((unsigned char)*s < 0x20 || *s == 0x7f)
            printf("\\u%04X", (unsigned)(unsigned char)*s);
        else
            putchar(*s);
    }
    putchar('"');
}

static void put_value(const option *o, const char *field)
{
    if (o->kind == OPTION_FLAG) {
        fputs(*(const bool *)field ? "true" : "false", stdout);
    } else if (o->kind == OPTION_INT) {
        printf("%lld", (long long)*(const int64_t *)field);
    } else if (o->kind == OPTION_REAL) {
        printf("%.10g", *(const double *)field);
    } else if (o->kind == OPTION_STR) {
        put_string(!strcmp(o->name, "api-key") ? "(not shown)" : *(const char *const *)field);
    } else {
        const option_list *list = (const void *)field;
        putchar('[');
        for (int i = 0; i < list->n; i++) {
            fputs(i ? ", " : "", stdout);
            put_string(list->at[i]);
        }
        putchar(']');
    }
}

/* Memory for the options of a command, set by the settings alone. *out belongs to the caller, also
 * after a failure. */
static status apply_alone(config *f, const command *c, const char *preset, char **out, err *e)
{
    size_t n_bytes = 0;
    for (const option *o = c->options; o->name; o++)
        if (o->offset + sizeof(option_list) > n_bytes)
            n_bytes = o->offset + sizeof(option_list);
    *out = mem_calloc(1, n_bytes);
    if (!*out)
        return err_memory(e, "options", n_bytes);
    f->marks = (option_marks){0};
    return config_apply(f, c, preset, *out, e);
}

status config_number(const command *c, const char *name, int64_t *out, err *e)
{
    const option *o = options_find(c->options, name);
    const char *preset;
    char *opts = NULL;
    config f = {0};
    status st = read_asked(&f, &(config_options){0}, &preset, e);
    if (!st && !(st = apply_alone(&f, c, preset, &opts, e)) && f.marks.layer[o - c->options])
        *out = *(const int64_t *)(const void *)(opts + o->offset);
    mem_free(opts);
    config_free(&f);
    return st;
}

/* The options of one command that something sets. */
static status print_for(config *f, const command *c, const char *preset, err *e)
{
    char *opts;
    status st = apply_alone(f, c, preset, &opts, e);
    if (!st)
        printf("\n[%s]\n", c->name);
    for (const option *o = c->options; o->name && !st; o++) {
        if (!f->marks.layer[o - c->options])
            continue;
        printf("%s = ", o->name);
        put_value(o, opts + o->offset);
        fputs("   # ", stdout);
        const char *origin = f->origin[o - c->options];
        term_put_name(stdout, origin, strlen(origin), 0);
        putchar('\n');
    }
    mem_free(opts);
    return st;
}

static int run_config(const command *c, int argc, char **argv)
{
    config_command_options o = {0};
    int n, stop = options_parse(c, argc, argv, &o, &n);
    config f = {0};
    const char *preset;
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    status st = read_asked(&f, &o.config, &preset, &e);
    if (!st) {
        fputs("# settings: ", stdout);
        term_put_name(stdout, f.path ? f.path : "none", strlen(f.path ? f.path : "none"), 0);
        const toml *presets = toml_get(f.root, "presets");
        fputs(presets && presets->first ? "\n# presets:" : "", stdout);
        for (const toml *t = presets ? presets->first : NULL; t; t = t->next) {
            fputs(" ", stdout);
            term_put_name(stdout, t->key, strlen(t->key), 0);
        }
        puts("\n# what is not listed is as built in; the command line comes before all of this");
    }
    for (int i = 0; i < N_TAKERS && !st; i++)
        st = print_for(&f, takers[i], preset, &e);
    if (!st)
        st = term_flush(&e);
    if (st)
        term_error(&e);
    config_free(&f);
    return !st ? 0 : st == E_ARG || st == E_FORMAT ? 2 : 1;
}

const command command_config = {
    .name = "config",
    .operands = "",
    .summary = "Print the settings that run and serve would use, with their origin",
    .about = "Settings are in $XDG_CONFIG_HOME/carat/config.toml (~/.config by default):\n"
             "[defaults] for run and serve, [serve] for serve, and [presets.NAME], which\n"
             "--preset NAME takes. Keys are the long names of options.\n"
             "\n"
             "Of several values the first in this order counts: the command line, the\n"
             "environment (CARAT_KV_TYPE is kv-type), the preset, [serve], [defaults],\n"
             "and what is built in.",
    .options = table,
    .run = run_config};
