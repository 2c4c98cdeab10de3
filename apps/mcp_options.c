/* mcp_options.c - see mcp_options.h. */
#include "apps/mcp_options.h"

#include "apps/state_dir.h"
#include "apps/term.h"
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

/* A table of settings as JSON, which files of other programs are: one reader checks both. NULL: no
 * memory. */
static json_t *to_json(const toml *t)
{
    json_t *out;
    if (t->kind == TOML_STRING || t->kind == TOML_DATE)
        return json_string(t->text);
    if (t->kind == TOML_INTEGER)
        return json_integer(t->integer);
    if (t->kind == TOML_REAL)
        return json_real(t->real);
    if (t->kind == TOML_BOOL)
        return json_boolean(t->truth);
    out = t->kind == TOML_ARRAY ? json_array() : json_object();
    for (const toml *i = t->first; i && out; i = i->next) {
        json_t *v = to_json(i);
        if (t->kind == TOML_ARRAY ? json_array_append_new(out, v)
                                  : json_object_set_new(out, i->key, v)) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

static status add_table(const config *f, const toml *t, mcp_specs *out, err *e)
{
    const char *slash = strrchr(f->path, '/');
    char dir[4096] = ".";
    json_t *v = to_json(t);
    err why = {0};
    if (slash)
        snprintf(dir, sizeof dir, "%.*s", (int)(slash - f->path), f->path);
    status st =
        v ? mcp_specs_add(out, t->key, v, MCP_OWN, dir, &why) : err_memory(&why, t->key, 64);
    json_decref(v);
    return st ? err_set(e, st, "%s:%d: %s", f->path, t->line, why.text) : OK;
}

status mcp_options_all(const config *f, mcp_specs *out, err *e)
{
    const toml *servers = f->root ? toml_get(f->root, "mcp") : NULL;
    status st = OK;
    for (const toml *t = servers ? servers->first : NULL; t && !st; t = t->next)
        st = add_table(f, t, out, e);
    return st;
}

status mcp_options_check(const config *f, const toml *servers, bool secret, err *e)
{
    mcp_specs all = {.n = 0};
    status st = OK;
    if (servers->kind != TOML_TABLE)
        return err_set(e, E_ARG, "%s:%d: expected [mcp.NAME]", f->path, servers->line);
    for (const toml *t = servers->first; t && !st; t = t->next) {
        const toml *headers = t->kind == TOML_TABLE ? toml_get(t, "headers") : NULL;
        st = add_table(f, t, &all, e);
        for (const toml *h = headers && !secret ? headers->first : NULL; h && !st; h = h->next)
            if (!strstr(h->text, "${"))
                st = err_set(e, E_ARG,
                             "%s:%d: others may read this header: chmod 600 %s, or write "
                             "\"${NAME}\" for what the environment has",
                             f->path, h->line, f->path);
    }
    mcp_specs_free(&all);
    return st;
}

static status no_such_server(const char *name, const config *f, const toml *servers, err *e)
{
    const char *names[MCP_SERVERS_MAX];
    size_t n = 0;
    for (const toml *t = servers ? servers->first : NULL; t && n < MCP_SERVERS_MAX; t = t->next)
        names[n++] = t->key;
    const char *near = nearest_word(name, names, n);
    return err_set(e, E_ARG, "there is no MCP server '%s'%s%s%s ([mcp.%s] in %s would name one)",
                   name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", name,
                   f->path ? f->path : "the settings");
}

status mcp_options_specs(const mcp_options *o, const config *f, mcp_specs *out, err *e)
{
    const toml *servers = f->root ? toml_get(f->root, "mcp") : NULL;
    status st = OK;
    for (int i = 0; i < o->servers.n && !st && !o->none; i++) {
        const char *name = o->servers.at[i];
        size_t n = strlen(name);
        if (strchr(name, '/') || (n > 5 && !strcmp(name + n - 5, ".json"))) {
            st = mcp_specs_add_file(out, name, e);
            continue;
        }
        const toml *t = servers ? toml_get(servers, name) : NULL;
        st = t ? add_table(f, t, out, e) : no_such_server(name, f, servers, e);
    }
    return st;
}

static bool go_on(void *user)
{
    (void)user;
    return !term_interrupts();
}

const mcp_watch mcp_until_interrupted = {go_on, NULL};

void mcp_options_tell(void *user, const char *sentence)
{
    (void)user;
    term_note("%s", sentence);
}

bool mcp_options_log(const char *server, char *path, size_t cap)
{
    char name[128];
    snprintf(name, sizeof name, "mcp-%.*s.log", MCP_NAME_MAX, server);
    for (char *c = name; *c; c++)
        if (!((*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
              strchr("-_.", *c)))
            *c = '_';
    if (!state_path(path, cap, name))
        return false;
    state_make_parents(path);
    return true;
}
