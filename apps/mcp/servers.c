/* servers.c - which servers there are: entries of carat's settings, and files with "mcpServers". */
#include "apps/mcp/mcp_int.h"

#include "base/json.h"
#include "base/nearest.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_MAX_BYTES = 1 << 20, WORDS_MAX = 256 };

static const char *const keys[] = {"command", "args", "env", "cwd", "url", "headers", "timeout"};
enum { KEYS = sizeof keys / sizeof *keys };

static status misfit(const char *name, const char *key, const char *expected, err *e)
{
    return err_set(e, E_ARG, "MCP server '%s': %s: expected %s", name, key, expected);
}

static const char *keep(mcp_specs *s, const char *text, size_t n)
{
    return arena_strndup(&s->mem, text, n);
}

/* A string without U+0000, which programs and addresses cannot hold. */
static const char *text_of(const json_t *v)
{
    const char *t = json_string_value(v);
    return t && strlen(t) == json_string_length(v) ? t : NULL;
}

static status take_text(mcp_specs *s, const char *name, const json_t *o, const char *key,
                        const char **out, err *e)
{
    const json_t *v = json_object_get(o, key);
    const char *t = text_of(v);
    if (!v)
        return OK;
    if (!t || !*t)
        return misfit(name, key, "a string", e);
    *out = keep(s, t, strlen(t));
    return *out ? OK : err_memory(e, t, strlen(t));
}

static status take_args(mcp_specs *s, const char *name, const json_t *o, const char *const **out,
                        err *e)
{
    const json_t *list = json_object_get(o, "args");
    size_t n = json_array_size(list);
    if (list && (!json_is_array(list) || n > WORDS_MAX))
        return misfit(name, "args", "an array of at most 256 strings", e);
    const char **words = arena_array(&s->mem, n + 1, sizeof *words);
    if (!words)
        return err_memory(e, name, n);
    for (size_t i = 0; i < n; i++) {
        const char *t = text_of(json_array_get(list, i));
        if (!t)
            return misfit(name, "args", "an array of strings", e);
        if (!(words[i] = keep(s, t, strlen(t))))
            return err_memory(e, name, strlen(t));
    }
    *out = words;
    return OK;
}

/* An object of strings as a list of "KEY" between "VALUE". */
static status take_pairs(mcp_specs *s, const char *name, const json_t *o, const char *key,
                         const char *between, const char *const **out, err *e)
{
    json_t *all = json_object_get(o, key), *v;
    const char *k;
    size_t n = 0;
    if (all && (!json_is_object(all) || json_object_size(all) > WORDS_MAX))
        return misfit(name, key, "a table of at most 256 strings", e);
    const char **words = arena_array(&s->mem, json_object_size(all) + 1, sizeof *words);
    if (!words)
        return err_memory(e, name, 64);
    json_object_foreach(all, k, v)
    {
        str pair = {0};
        const char *t = text_of(v);
        if (!t || !*k || strpbrk(k, "=: \t\r\n"))
            return misfit(name, key, "names with strings as values", e);
        str_printf(&pair, "%s%s%s", k, between, t);
        words[n] = pair.bad ? NULL : keep(s, pair.at, pair.n);
        str_free(&pair);
        if (!words[n++])
            return err_memory(e, name, 64);
    }
    *out = words;
    return OK;
}

static status take_timeout(const char *name, const json_t *o, mcp_file kind, double *out, err *e)
{
    const json_t *v = json_object_get(o, "timeout");
    double s = json_number_value(v);
    *out = MCP_TIMEOUT_S;
    if (!v)
        return OK;
    if (kind == MCP_FOREIGN && s >= 1000)
        s *= 1e-3;
    if (!json_is_number(v) || !(s > 0 && s <= 86400))
        return misfit(name, "timeout", "seconds, more than 0 and at most 86400", e);
    *out = s;
    return OK;
}

/* A path of the settings: "~/" is the home directory, and a relative one begins at dir. */
static status place(mcp_specs *s, const char *dir, bool relative, const char **path, err *e)
{
    str full = {0};
    const char *home = getenv("HOME");
    if (!*path)
        return OK;
    if (!strncmp(*path, "~/", 2) && home)
        str_printf(&full, "%s%s", home, *path + 1);
    else if (relative && dir && **path != '/' && **path != '$')
        str_printf(&full, "%s/%s", dir, *path);
    else
        return OK;
    const char *kept = full.bad ? NULL : keep(s, full.at, full.n);
    str_free(&full);
    if (!kept)
        return err_memory(e, "a path", 256);
    *path = kept;
    return OK;
}

static status check_keys(const char *name, const json_t *o, err *e)
{
    const char *k;
    json_t *v;
    json_object_foreach((json_t *)o, k, v)
    {
        bool known = false;
        for (size_t i = 0; i < KEYS; i++)
            known = known || !strcmp(k, keys[i]);
        const char *near = known ? NULL : nearest_word(k, keys, KEYS);
        if (!known)
            return err_set(e, E_ARG, "MCP server '%s': there is no setting '%s'%s%s%s", name, k,
                           near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return OK;
}

/* What a file says of the way to a server. */
static status check_type(const char *name, const json_t *o, err *e)
{
    const char *type = text_of(json_object_get(o, "type"));
    type = type ? type : text_of(json_object_get(o, "transport"));
    if (type && !strcasecmp(type, "sse"))
        return err_set(e, E_UNSUPPORTED,
                       "MCP server '%s': carat does not speak HTTP with SSE of 2024-11-05; most "
                       "servers have streamable HTTP at another address",
                       name);
    return OK;
}

status mcp_specs_add(mcp_specs *s, const char *name, const json_t *o, mcp_file kind,
                     const char *dir, err *e)
{
    mcp_spec v = {.name = NULL};
    if (!*name || strlen(name) > MCP_NAME_MAX || strchr(name, '/'))
        return err_set(e, E_ARG, "MCP server '%.80s': a name has 1 to %d bytes and no '/'", name,
                       MCP_NAME_MAX);
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->at[i].name, name))
            return err_set(e, E_ARG, "there are two MCP servers '%s'", name);
    if (s->n == MCP_SERVERS_MAX)
        return err_set(e, E_LIMIT, "more than %d MCP servers", MCP_SERVERS_MAX);
    if (!json_is_object(o))
        return err_set(e, E_ARG, "MCP server '%s': expected a table", name);
    status st = kind == MCP_OWN ? check_keys(name, o, e) : check_type(name, o, e);
    if (!st && !(v.name = keep(s, name, strlen(name))))
        st = err_memory(e, name, strlen(name));
    if (st || (st = take_text(s, name, o, "command", &v.command, e)) ||
        (st = take_text(s, name, o, "cwd", &v.cwd, e)) ||
        (st = take_text(s, name, o, "url", &v.url, e)) || (st = take_args(s, name, o, &v.arg, e)) ||
        (st = take_pairs(s, name, o, "env", "=", &v.env, e)) ||
        (st = take_pairs(s, name, o, "headers", ": ", &v.header, e)) ||
        (st = take_timeout(name, o, kind, &v.timeout_s, e)) ||
        (st = place(s, dir, false, &v.command, e)) || (st = place(s, dir, true, &v.cwd, e)))
        return st;
    if (!v.command == !v.url)
        return err_set(e, E_ARG, "MCP server '%s': expected either command or url", name);
    if (kind == MCP_OWN && v.url && (v.arg[0] || v.env[0] || v.cwd))
        return err_set(e, E_ARG, "MCP server '%s': args, env and cwd are for one with a command",
                       name);
    if (kind == MCP_OWN && v.command && v.header[0])
        return err_set(e, E_ARG, "MCP server '%s': headers are for one with a url", name);
    s->at[s->n++] = v;
    return OK;
}

status mcp_specs_add_file(mcp_specs *s, const char *path, err *e)
{
    json_t *root = NULL, *v;
    const char *name;
    size_t before = s->n;
    status st = json_parse_file(&root, path, FILE_MAX_BYTES, e);
    json_t *servers = json_object_get(root, "mcpServers");
    if (!st && !json_is_object(servers))
        st = err_set(e, E_FORMAT, "%s: expected an object \"mcpServers\"", path);
    if (!st)
        json_object_foreach(servers, name, v)
        {
            err why = {0};
            const char *slash = strrchr(name, '/'); /* "@upstash/context7-mcp" */
            if (json_is_true(json_object_get(v, "disabled")))
                continue;
            if ((st = mcp_specs_add(s, slash && slash[1] ? slash + 1 : name, v, MCP_FOREIGN, NULL,
                                    &why))) {
                err_set(e, st, "%s: %s", path, why.text);
                break;
            }
        }
    if (!st && s->n == before)
        st = err_set(e, E_ARG, "%s: there is no MCP server in it", path);
    if (st)
        s->n = before;
    json_decref(root);
    return st;
}

void mcp_specs_free(mcp_specs *s)
{
    arena_free(&s->mem);
    *s = (mcp_specs){.n = 0};
}

status spec_expand(arena *mem, const char *server, const char *text, const char **out, err *e)
{
    str s = {0};
    const char *at = text, *from;
    while ((from = strstr(at, "${"))) {
        const char *end = strchr(from, '}');
        char name[128];
        size_t n = end ? (size_t)(end - from) - 2 : sizeof name;
        if (n >= sizeof name || !n) {
            str_free(&s);
            return err_set(e, E_ARG, "MCP server '%s': expected ${NAME} in '%.80s'", server, from);
        }
        memcpy(name, from + 2, n);
        name[n] = 0;
        const char *value =
            getenv(strncmp(name, "env:", 4) ? name : name + 4); /* as Cursor has it */
        if (!value) {
            str_free(&s);
            return err_set(e, E_ARG, "MCP server '%s': the environment has no %s", server, name);
        }
        str_put(&s, at, (size_t)(from - at));
        str_puts(&s, value);
        at = end + 1;
    }
    str_puts(&s, at);
    *out = s.bad ? NULL : arena_strndup(mem, str_text(&s), s.n);
    str_free(&s);
    return *out ? OK : err_memory(e, server, strlen(text));
}
