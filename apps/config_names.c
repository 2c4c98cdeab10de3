/* config_names.c - [names] of the settings: short names of models, which every command knows. The
 * commands without --config read the default file, and look at nothing but this table. */
#include "apps/config.h"
#include "apps/hub/names.h"
#include "apps/hub/place.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of --config and --no-config; set before there are threads. */
static const char *names_path;
static bool names_none;

void config_names_from(const config_options *o)
{
    names_path = o->file;
    names_none = o->none;
}

/* user: what stands at [names], or NULL. */
static status find_in(const void *user, const char *name, char out[ALIAS_MAX], err *e)
{
    const toml *names = user, *t = names ? names->first : NULL;
    if (names && names->kind != TOML_TABLE)
        return err_set(e, E_ARG, "line %d of the settings: expected [names]", names->line);
    while (t && strcasecmp(t->key, name) != 0)
        t = t->next;
    if (t && t->kind != TOML_STRING)
        return err_set(e, E_ARG, "'%s' in [names]: expected a string, found %s", name,
                       toml_kind_name(t->kind));
    size_t n = t ? strlen(t->text) : 0;
    if (n >= ALIAS_MAX)
        return err_set(e, E_ARG, "what '%s' stands for in [names] is longer than %d bytes", name,
                       ALIAS_MAX - 1);
    if (t)
        memcpy(out, t->text, n + 1);
    return OK;
}

status config_check_names(const config *f, const toml *names, err *e)
{
    if (names->kind != TOML_TABLE)
        return err_set(e, E_ARG, "%s:%d: expected [names]", f->path, names->line);
    for (const toml *t = names->first; t; t = t->next) {
        char out[ALIAS_MAX];
        name_parts parts;
        bool own;
        err why = {0};
        if (t->kind != TOML_STRING)
            return err_set(e, E_ARG, "%s:%d: %s: expected a string, found %s", f->path, t->line,
                           t->key, toml_kind_name(t->kind));
        if (!name_parse(t->key, NULL, &parts) || strchr(t->key, '/'))
            return err_set(e, E_ARG, "%s:%d: '%s' is no short name, which is NAME or NAME:TAG",
                           f->path, t->line, t->key);
        status st = alias_follow(t->key, find_in, names, out, &own, &why);
        if (st)
            return err_set(e, st, "%s:%d: %s", f->path, t->line, why.text);
    }
    return OK;
}

status config_own_name(const void *user, const char *name, char out[ALIAS_MAX], err *e)
{
    arena mem = {0};
    char *text = NULL;
    size_t n = 0;
    const toml *root = NULL;
    const char *file = names_path ? names_path : getenv("CARAT_CONFIG");
    (void)user;
    if (names_none)
        return OK;
    if (!file || !*file)
        file = xdg_path(&mem, "XDG_CONFIG_HOME", ".config", "carat/config.toml");
    err missing = {0};
    status st = file ? file_read_all(file, CONFIG_MAX, &text, &n, &missing) : OK;
    if (!st && text && !(st = toml_parse(&root, text, n, file, &mem, e)))
        st = find_in(toml_get(root, "names"), name, out, e);
    else if (missing.status) /* a file that is not there names nothing */
        st = OK;
    mem_free(text);
    arena_free(&mem);
    return st;
}
