/* connect.c - `carat connect`: what a coding program needs to use a server, printed, or given to it
 * as it is started. Its own files stay as they are.
 *
 *     the server's list of models -> a recipe: environment, arguments, a text for a file -> print,
 *     or set the environment and become the program
 */
#include "apps/commands.h"
#include "apps/config.h"
#include "apps/hub/net.h"
#include "apps/jsonw.h"
#include "apps/state_dir.h"
#include "apps/term.h"
#include "base/arena.h"
#include "base/nearest.h"
#include "base/show.h"
#include "base/str.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PAIRS_MAX = 8,
    ARGS_MAX = 16,
    MODELS_MAX = 64,
    ANSWER_MAX = 1 << 20,
    ASK_S = 5,
    LONG_PROMPT = 48000 /* tokens that agents send before the user's first word, and an answer */
};

typedef struct connect_options {
    const char *url, *model, *key;
    bool start;
} connect_options;

static const option table[] = {
    OPT_STR(connect_options, url, "url", 0, "URL",
            "the server (default: this machine's, at the port of the settings or 8080)"),
    OPT_STR(connect_options, model, "model", 'm', "NAME",
            "the model, by its name there (default: the first that is loaded)"),
    OPT_STR(connect_options, key, "api-key", 0, "KEY",
            "the server's key (default: CARAT_API_KEY, else none)"),
    OPT_FLAG(connect_options, start, "start", 0, "start the program with these settings"), OPT_END};

/* The server, as it was found. */
typedef struct target {
    const char *url, *model, *key;
    int64_t n_ctx; /* 0: unknown */
    arena mem;
} target;

/* What a program needs. Strings belong to the target's mem. */
typedef struct recipe {
    const char *name[PAIRS_MAX], *value[PAIRS_MAX]; /* of the environment */
    int n_pairs;
    const char *arg[ARGS_MAX + 1];
    int n_args;
    const char *text;      /* settings, as they stand in a file of the program */
    const char *where;     /* in which one */
    const char *file_word; /* an argument after which the program takes such a file; NULL: none */
    bool bad;              /* there was no memory */
} recipe;

/* ---- Words --------------------------------------------------------------------------------- */

static const char *keep(target *t, recipe *r, str *s)
{
    const char *out = s->bad ? NULL : arena_strndup(&t->mem, str_text(s), s->n);
    str_free(s);
    r->bad = r->bad || !out;
    return out ? out : "";
}

static void set_pair(recipe *r, const char *name, const char *value)
{
    r->name[r->n_pairs] = name;
    r->value[r->n_pairs++] = value;
}

static void add_arg(recipe *r, const char *word)
{
    r->arg[r->n_args++] = word;
}

/* A string in quotation marks, as JSON, TOML and YAML have it. */
static void put_quoted(str *s, const char *text)
{
    jtree_put_string(s, text, strlen(text));
}

/* A word as a shell takes it. */
static void put_shell(str *s, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:-=,@%+";
    if (*word && !word[strspn(word, plain)]) {
        str_puts(s, word);
        return;
    }
    str_putc(s, '\'');
    for (; *word; word++)
        if (*word == '\'')
            str_puts(s, "'\\''");
        else
            str_putc(s, *word);
    str_putc(s, '\'');
}

static const char *with_v1(target *t, recipe *r)
{
    str s = {0};
    str_printf(&s, "%s/v1", t->url);
    return keep(t, r, &s);
}

/* ---- The programs --------------------------------------------------------------------------- */

static void make_claude(target *t, recipe *r)
{
    set_pair(r, "ANTHROPIC_BASE_URL", t->url);
    set_pair(r, "ANTHROPIC_AUTH_TOKEN", t->key);
    set_pair(r, "ANTHROPIC_API_KEY", ""); /* the user's own would go to this server */
    set_pair(r, "ANTHROPIC_MODEL", t->model);
    set_pair(r, "ANTHROPIC_DEFAULT_HAIKU_MODEL", t->model);
    set_pair(r, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
}

/* "NAME=VALUE" after -c, where VALUE is TOML; the same lines are the text for its file. */
static void codex_line(target *t, recipe *r, str *text, const char *key, const char *value)
{
    str s = {0};
    str_printf(&s, "%s=", key);
    put_quoted(&s, value);
    add_arg(r, "-c");
    add_arg(r, keep(t, r, &s));
    str_printf(text, "%s = ", key);
    put_quoted(text, value);
    str_putc(text, '\n');
}

static void make_codex(target *t, recipe *r)
{
    str text = {0}, s = {0};
    set_pair(r, "CARAT_KEY", t->key);
    codex_line(t, r, &text, "model", t->model);
    codex_line(t, r, &text, "model_provider", "carat");
    if (t->n_ctx) {
        str_printf(&s, "model_context_window=%lld", (long long)t->n_ctx);
        add_arg(r, "-c");
        add_arg(r, keep(t, r, &s));
        str_printf(&text, "model_context_window = %lld\n", (long long)t->n_ctx);
    }
    codex_line(t, r, &text, "model_providers.carat.name", "carat");
    codex_line(t, r, &text, "model_providers.carat.base_url", with_v1(t, r));
    codex_line(t, r, &text, "model_providers.carat.wire_api", "responses");
    codex_line(t, r, &text, "model_providers.carat.env_key", "CARAT_KEY");
    r->text = keep(t, r, &text);
    r->where = "~/.codex/config.toml, before its first table";
}

/* An OpenAI-compatible provider with one model. */
static void make_opencode(target *t, recipe *r)
{
    str s = {0};
    json_open(&s, NULL, '{');
    json_open(&s, "provider", '{');
    json_open(&s, "carat", '{');
    json_text(&s, "npm", "@ai-sdk/openai-compatible");
    json_text(&s, "name", "carat");
    json_open(&s, "options", '{');
    json_text(&s, "baseURL", with_v1(t, r));
    json_text(&s, "apiKey", t->key);
    json_close(&s, "}");
    json_open(&s, "models", '{');
    json_open(&s, t->model, '{');
    json_bool(&s, "tool_call", true);
    if (t->n_ctx) {
        json_open(&s, "limit", '{');
        json_int(&s, "context", t->n_ctx);
        json_int(&s, "output", t->n_ctx / 4);
        json_close(&s, "}");
    }
    json_close(&s, "}}}}}");
    set_pair(r, "OPENCODE_CONFIG_CONTENT", keep(t, r, &s));
    str_printf(&s, "carat/%s", t->model);
    add_arg(r, "--model");
    add_arg(r, keep(t, r, &s));
}

static void make_continue(target *t, recipe *r)
{
    str s = {0};
    str_puts(&s, "name: carat\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: carat\n"
                 "    provider: openai\n    model: ");
    put_quoted(&s, t->model);
    str_puts(&s, "\n    apiBase: ");
    put_quoted(&s, with_v1(t, r));
    str_puts(&s, "\n    apiKey: ");
    put_quoted(&s, t->key);
    str_puts(&s, "\n    roles: [chat, edit, apply]\n    capabilities: [tool_use]\n");
    r->text = keep(t, r, &s);
    r->where = "~/.continue/config.yaml";
    r->file_word = "--config";
}

static void make_zed(target *t, recipe *r)
{
    str s = {0};
    set_pair(r, "CARAT_API_KEY", t->key);
    /* A person adds it to a file of theirs, so it is indented. */
    json_t *all = json_pack("{s:{s:{s:{s:s, s:[{s:s, s:I, s:{s:b}}]}}}}", "language_models",
                            "openai_compatible", "carat", "api_url", with_v1(t, r),
                            "available_models", "name", t->model, "max_tokens",
                            (json_int_t)(t->n_ctx ? t->n_ctx : 32768), "capabilities", "tools", 1);
    char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
    r->bad |= !text;
    str_printf(&s, "%s\n", text ? text : "");
    free(text);
    json_decref(all);
    r->text = keep(t, r, &s);
    r->where = "~/.config/zed/settings.json, beside what is there";
}

static void make_aider(target *t, recipe *r)
{
    str s = {0};
    set_pair(r, "OPENAI_API_BASE", with_v1(t, r));
    set_pair(r, "OPENAI_API_KEY", t->key);
    str_printf(&s, "openai/%s", t->model);
    add_arg(r, "--model");
    add_arg(r, keep(t, r, &s));
}

static const struct client {
    const char *name, *program, *title;
    void (*make)(target *t, recipe *r);
    bool long_prompt; /* its first prompt has tens of thousands of tokens */
    bool by_file;     /* it takes settings from its own file alone */
} clients[] = {
    {"claude", "claude", "Claude Code", make_claude, true, false},
    {"codex", "codex", "Codex", make_codex, true, false},
    {"opencode", "opencode", "opencode", make_opencode, true, false},
    {"continue", "cn", "Continue", make_continue, false, false},
    {"zed", "zed", "Zed", make_zed, false, true},
    {"aider", "aider", "aider", make_aider, false, false},
};
enum { CLIENTS = sizeof clients / sizeof *clients };

/* ---- The server ----------------------------------------------------------------------------- */

typedef struct answer {
    str body;
    bool over;
} answer;

static size_t take_bytes(char *bytes, size_t one, size_t n, void *user)
{
    answer *a = user;
    (void)one;
    a->over = a->over || n > ANSWER_MAX - a->body.n;
    if (!a->over)
        str_put(&a->body, bytes, n);
    return a->over || a->body.bad ? 0 : n;
}

/* GET /v1/models. E_IO: no server answers. E_ARG: the server refuses the key. E_FORMAT: the answer
 * is no list of models. */
static status ask_models(const target *t, json_t **out, err *e)
{
    answer a = {0};
    str url = {0}, auth = {0};
    long code = 0;
    *out = NULL;
    str_printf(&url, "%s/v1/models", t->url);
    str_printf(&auth, "Authorization: Bearer %s", t->key);
    CURL *c = url.bad || auth.bad ? NULL : net_plain(url.at);
    struct curl_slist *head = c ? curl_slist_append(NULL, auth.at) : NULL;
    CURLcode result = CURLE_OUT_OF_MEMORY;
    if (head) {
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, head);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_bytes);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &a);
        curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)ASK_S);
        result = curl_easy_perform(c);
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    }
    curl_slist_free_all(head);
    curl_easy_cleanup(c);
    status st = OK;
    if (result == CURLE_OUT_OF_MEMORY || a.body.bad)
        st = err_memory(e, "the list of models", ANSWER_MAX);
    else if (a.over)
        st = err_set(e, E_FORMAT, "%s: a list of models of more than %d bytes", t->url, ANSWER_MAX);
    else if (result)
        st = err_set(e, E_IO, "no server answers at %s (%s); carat serve MODEL starts one", t->url,
                     curl_easy_strerror(result));
    else if (code == 401 || code == 403)
        st = err_set(e, E_ARG, "the server at %s wants another key (--api-key KEY)", t->url);
    else if (code == 503)
        st =
            err_set(e, E_IO, "the server at %s is still loading its model; try again soon", t->url);
    else if (code != 200 || !(*out = json_loadb(str_text(&a.body), a.body.n, 0, NULL)) ||
             !json_is_array(json_object_get(*out, "data")))
        st = err_set(e, E_FORMAT, "%s answers, but not with a list of models", t->url);
    str_free(&a.body);
    str_free(&url);
    str_free(&auth);
    return st;
}

/* A name that may stand in settings: text that a terminal shows as it is, of a sane length. */
static bool sane_name(const char *name)
{
    return *name && strlen(name) <= 256 && !strcmp(SHOWN(name), name);
}

/* Sets t->model and t->n_ctx from the list. asked: of the command line, or NULL. */
static status take_model(target *t, const json_t *list, const char *asked, err *e)
{
    const json_t *data = json_object_get(list, "data");
    const char *names[MODELS_MAX];
    size_t n = 0, i, n_all = json_array_size(data);
    const json_t *m, *best = NULL;
    bool best_loaded = false;
    json_array_foreach(data, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "id"));
        const char *state =
            json_string_value(json_object_get(json_object_get(m, "status"), "value"));
        if (!name || !sane_name(name))
            continue;
        if (n < MODELS_MAX)
            names[n++] = name;
        bool loaded = state && !strcmp(state, "loaded");
        if (asked ? !strcasecmp(asked, name) : !best || (loaded && !best_loaded)) {
            best = m;
            best_loaded = loaded;
        }
    }
    if (!best && n_all == 1 && asked) /* a server of one model takes any name */
        best = json_array_get(data, 0);
    if (!best && !asked)
        return err_set(e, E_ARG, "the server at %s has no model yet", t->url);
    const char *near = best ? NULL : nearest_word(asked, names, n);
    if (!best)
        return err_set(e, E_ARG, "the server at %s has no model '%s'%s%s%s", t->url, asked,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    const char *name = asked ? asked : json_string_value(json_object_get(best, "id"));
    json_int_t n_ctx = json_integer_value(json_object_get(best, "context_length"));
    t->model = arena_strndup(&t->mem, name, strlen(name));
    t->n_ctx = n_ctx > 0 && n_ctx < INT32_MAX ? n_ctx : 0;
    return t->model ? OK : err_memory(e, name, strlen(name));
}

/* http://127.0.0.1:PORT, with the port that `carat serve` takes from the settings. */
static status default_url(target *t, err *e)
{
    int64_t port = 8080;
    char url[64];
    status st = config_number(&command_serve, "port", &port, e);
    if (st)
        return st;
    if (!port)
        return err_set(e, E_ARG, "the settings let the server choose its port: --url says which");
    snprintf(url, sizeof url, "http://127.0.0.1:%lld", (long long)port);
    t->url = arena_strndup(&t->mem, url, strlen(url));
    return t->url ? OK : err_memory(e, "an address", sizeof url);
}

/* The address without "/v1" and slashes at its end. */
static status set_url(target *t, const char *asked, err *e)
{
    size_t n = asked ? strlen(asked) : 0;
    if (!asked)
        return default_url(t, e);
    if (!url_valid(asked))
        return err_set(e, E_ARG, "--url %.200s: expected an address such as http://127.0.0.1:8080",
                       asked);
    while (n && asked[n - 1] == '/')
        n--;
    if (n > 3 && !strncmp(asked + n - 3, "/v1", 3))
        n -= 3;
    t->url = arena_strndup(&t->mem, asked, n);
    return t->url ? OK : err_memory(e, "an address", n);
}

/* ---- Printing and starting ------------------------------------------------------------------ */

static void print_recipe(const struct client *c, const recipe *r)
{
    str s = {0};
    for (int i = 0; i < r->n_pairs; i++) {
        str_printf(&s, "export %s=", r->name[i]);
        put_shell(&s, r->value[i]);
        str_putc(&s, '\n');
    }
    if (r->text)
        str_printf(&s, "%s# %s:\n%s", r->n_pairs ? "\n" : "", r->where, r->text);
    if (!c->by_file && !r->text) {
        put_shell(&s, c->program);
        for (int i = 0; i < r->n_args; i++) {
            str_putc(&s, ' ');
            put_shell(&s, r->arg[i]);
        }
        str_putc(&s, '\n');
    }
    if (s.n)
        fwrite(s.at, 1, s.n, stdout);
    str_free(&s);
}

/* A file of carat's own, for a program that takes its settings from one it is told. */
static status write_file(target *t, const struct client *c, recipe *r, err *e)
{
    char path[4096], name[64];
    snprintf(name, sizeof name, "connect-%s.yaml", c->name);
    if (!state_path(path, sizeof path, name))
        return err_set(e, E_ARG, "there is no place for %s: HOME and XDG_STATE_HOME are not set",
                       name);
    state_make_parents(path);
    unlink(path);
    FILE *f = fopen(path, "wxe");
    if (f)
        fchmod(fileno(f), 0600);
    bool ok = f && fputs(r->text, f) >= 0;
    if (!f || fclose(f) || !ok)
        return err_errno(e, "write", path);
    add_arg(r, r->file_word);
    add_arg(r, arena_strndup(&t->mem, path, strlen(path)));
    return r->arg[r->n_args - 1] ? OK : err_memory(e, path, sizeof path);
}

/* Becomes the program; argv: words of the user for it. Returns only on failure. */
static status start(target *t, const struct client *c, recipe *r, int n, char **argv, err *e)
{
    status st = r->file_word ? write_file(t, c, r, e) : OK;
    char **args = arena_array(&t->mem, (size_t)r->n_args + (size_t)n + 2, sizeof *args);
    if (st)
        return st;
    if (!args)
        return err_memory(e, c->program, sizeof *args);
    int k = 0;
    args[k++] = arena_strndup(&t->mem, c->program, strlen(c->program));
    for (int i = 0; i < r->n_args; i++)
        args[k++] = arena_strndup(&t->mem, r->arg[i], strlen(r->arg[i]));
    for (int i = 0; i < n; i++)
        args[k++] = argv[i];
    args[k] = NULL;
    for (int i = 0; i < k; i++)
        if (!args[i])
            return err_memory(e, c->program, sizeof *args);
    for (int i = 0; i < r->n_pairs; i++)
        if (setenv(r->name[i], r->value[i], 1))
            return err_errno(e, "set the environment for", c->program);
    fflush(NULL);
    execvp(c->program, args);
    return errno == ENOENT
               ? err_set(e, E_ARG, "%s is not installed here: there is no program '%s' in PATH",
                         c->title, c->program)
               : err_errno(e, "start", c->program);
}

static const struct client *find_client(const char *name, err *e)
{
    const char *names[CLIENTS];
    for (size_t i = 0; i < CLIENTS; i++) {
        names[i] = clients[i].name;
        if (!strcmp(name, names[i]))
            return &clients[i];
    }
    const char *near = nearest_word(name, names, CLIENTS);
    err_set(e, E_ARG,
            "'%.40s' is none of claude, codex, opencode, continue, zed and aider%s%s%s "
            "(docs/clients.md has others)",
            name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return NULL;
}

static int run_connect(const command *cmd, int argc, char **argv)
{
    connect_options o = {0};
    int n, stop = options_parse(cmd, argc, argv, &o, &n);
    target t = {0};
    recipe r = {0};
    json_t *list = NULL;
    err e = {0}, away = {0};
    if (stop)
        return stop - 1;
    term_init();
    const char *env = getenv("CARAT_API_KEY");
    const struct client *c = find_client(argv[0], &e);
    status st = e.status;
    t.key = o.key ? o.key : env && *env ? env : "none";
    if (!st && !sane_name(t.key))
        st = err_set(&e, E_ARG, "--api-key: not a key");
    if (!st && o.model && !sane_name(o.model))
        st = err_set(&e, E_ARG, "--model: not a name of a model");
    if (!st && n > 1 && !o.start)
        st = err_set(&e, E_ARG, "words for %s need --start", c->title);
    if (!st && o.start && c->by_file)
        st = err_set(&e, E_ARG,
                     "%s takes settings from its own file alone, which carat leaves as it is: "
                     "carat connect %s prints what to put there",
                     c->title, c->name);
    if (!st && !(st = set_url(&t, o.url, &e)) && !(st = ask_models(&t, &list, &away)))
        st = take_model(&t, list, o.model, &e);
    /* What to set may be asked before the server runs. */
    if (away.status == E_IO && !o.start) {
        term_note("%s", away.text);
        t.model = o.model ? o.model : "carat";
        st = OK;
    } else if (away.status) {
        err_set(&e, away.status, "%s", away.text);
    }
    if (!st && c->long_prompt && t.n_ctx && t.n_ctx < LONG_PROMPT)
        term_note("the context has %lld tokens, and the first prompt of %s alone may have tens of "
                  "thousands: carat serve --ctx 64k",
                  (long long)t.n_ctx, c->title);
    if (!st) {
        c->make(&t, &r);
        if (r.bad)
            st = err_memory(&e, c->title, 0);
        else if (o.start)
            st = start(&t, c, &r, n - 1, argv + 1, &e);
        else
            print_recipe(c, &r);
    }
    if (!st)
        st = term_flush(&e);
    json_decref(list);
    arena_free(&t.mem);
    return term_exit_use(st, &e);
}

const command command_connect = {
    .name = "connect",
    .operands = "CLIENT [WORD...]",
    .summary = "Say what a coding program needs to use carat serve, or start it so",
    .about =
        "CLIENT is claude (Claude Code), codex, opencode, continue, zed or aider. Without\n"
        "--start it prints environment, command or settings for the server that runs; with\n"
        "--start it starts the program with them, and the words behind -- are for it. Files of\n"
        "the program stay as they are.",
    .options = table,
    .n_operands_min = 1,
    .n_operands_max = -1,
    .run = run_connect};
