/* modelfile.c - see modelfile.h. */
#include "apps/modelfile.h"

#include "base/json.h"
#include "base/str.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct reader {
    const char *at, *end, *what;
    int line;
    json_t *root, *messages, *settings, *adapters;
    err *e;
} reader;

static status fail(reader *r, int line, const char *says)
{
    return err_set(r->e, E_FORMAT, "%s:%d: %s", r->what, line, says);
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t'))
        r->at++;
}

static void skip_line(reader *r)
{
    while (r->at < r->end && *r->at != '\n')
        r->at++;
}

/* A word up to a blank. False: there is none, or it is too long. */
static bool take_word(reader *r, char *out, size_t cap)
{
    size_t n = 0;
    skip_blanks(r);
    while (r->at < r->end && !strchr(" \t\r\n", *r->at) && n < cap)
        out[n++] = *r->at++;
    if (n == cap)
        return false;
    out[n] = 0;
    return n > 0;
}

/* The rest of the line, or what stands in quotes; json_decref. NULL: fail says why. */
static json_t *take_value(reader *r)
{
    static const char three[] = "\"\"\"";
    int line = r->line;
    skip_blanks(r);
    const char *from = r->at, *to;
    if (r->end - from >= 3 && !memcmp(from, three, 3)) {
        from += 3;
        to = memmem(from, (size_t)(r->end - from), three, 3);
        if (!to) {
            fail(r, line, "\"\"\" without the \"\"\" that ends the text");
            return NULL;
        }
        for (const char *i = from; i < to; i++)
            r->line += *i == '\n';
        r->at = to + 3;
        skip_line(r);
    } else {
        skip_line(r);
        to = r->at;
        while (to > from && strchr(" \t\r", to[-1]))
            to--;
        if (to - from >= 2 && *from == '"' && to[-1] == '"') {
            from++;
            to--;
        }
    }
    json_t *v = json_stringn(from, (size_t)(to - from));
    if (!v)
        err_memory(r->e, r->what, (size_t)(to - from));
    return v;
}

/* A number where the text is one: settings are numbers, but for `stop`. */
static json_t *as_setting(json_t *text)
{
    const char *s = json_string_value(text);
    char *end;
    json_t *number = NULL;
    double v = strtod(s, &end);
    if (!*s || *end || strspn(s, "+-.0123456789eE") != strlen(s))
        return text;
    if (strpbrk(s, ".eE"))
        number = json_real(v);
    else if (v > -9e15 && v < 9e15)
        number = json_integer((json_int_t)v);
    if (!number)
        return text;
    json_decref(text);
    return number;
}

static status no_memory(reader *r)
{
    return err_memory(r->e, r->what, (size_t)(r->end - r->at));
}

static status take_setting(reader *r)
{
    char name[64];
    if (!take_word(r, name, sizeof name))
        return fail(r, r->line, "expected PARAMETER NAME VALUE");
    json_t *v = take_value(r);
    if (!v)
        return r->e->status;
    if (strcmp(name, "stop"))
        return json_object_set_new(r->settings, name, as_setting(v)) ? no_memory(r) : OK;
    json_t *list = json_object_get(r->settings, "stop");
    if (!list && !json_object_set_new(r->settings, "stop", json_array()))
        list = json_object_get(r->settings, "stop");
    return json_array_append_new(list, v) ? no_memory(r) : OK;
}

static status take_message(reader *r)
{
    char role[16];
    int line = r->line;
    if (!take_word(r, role, sizeof role) ||
        (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
        return fail(r, line, "expected MESSAGE user, assistant or system, and a text");
    json_t *v = take_value(r), *m = v ? json_object() : NULL;
    if (!v)
        return r->e->status;
    bool bad = !m || json_object_set_new(m, "role", json_string(role));
    bad |= json_object_set_new(m, "content", v) != 0;
    return json_array_append_new(r->messages, m) || bad ? no_memory(r) : OK;
}

static status take_adapter(reader *r)
{
    int line = r->line;
    json_t *v = take_value(r);
    if (!v)
        return r->e->status;
    if (*json_string_value(v))
        return json_array_append_new(r->adapters, v) ? no_memory(r) : OK;
    json_decref(v);
    return fail(r, line, "expected ADAPTER FILE");
}

static status take_instruction(reader *r)
{
    static const struct {
        const char *word, *key, *why;
    } all[] = {{"FROM", "from", NULL},
               {"SYSTEM", "system", NULL},
               {"LICENSE", "license", NULL},
               {"TEMPLATE", NULL, "TEMPLATE: carat uses the chat format of the model's file"},
               {"RENDERER", NULL, "RENDERER: carat uses the chat format of the model's file"},
               {"PARSER", NULL, "PARSER: carat uses the chat format of the model's file"},
               {"DRAFT", NULL, "DRAFT: --draft of carat run and carat serve chooses drafters"},
               {"REQUIRES", NULL, "REQUIRES: this is not ollama, whose version it names"}};
    char word[16];
    int line = r->line;
    if (!take_word(r, word, sizeof word))
        return fail(r, line, "expected an instruction such as FROM or PARAMETER");
    if (!strcasecmp(word, "PARAMETER"))
        return take_setting(r);
    if (!strcasecmp(word, "MESSAGE"))
        return take_message(r);
    if (!strcasecmp(word, "ADAPTER"))
        return take_adapter(r);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcasecmp(word, all[i].word))
            continue;
        if (!all[i].key)
            return fail(r, line, all[i].why);
        json_t *v = take_value(r);
        return !v ? r->e->status : json_object_set_new(r->root, all[i].key, v) ? no_memory(r) : OK;
    }
    return fail(
        r, line,
        "no instruction of a Modelfile: FROM, ADAPTER, PARAMETER, SYSTEM, MESSAGE, LICENSE");
}

status modelfile_parse(json_t **out, const char *text, size_t n, const char *what, err *e)
{
    err own = {0};
    json_init();
    json_was_short();
    reader r = {.at = text,
                .end = text + n,
                .what = what,
                .line = 1,
                .root = json_object(),
                .messages = json_array(),
                .settings = json_object(),
                .adapters = json_array(),
                .e = e ? e : &own};
    status st = OK;
    *out = NULL;
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        r.at += 3;
    if (!utf8_valid(text, n) || memchr(text, 0, n))
        st = err_set(r.e, E_FORMAT, "%s: not a text in UTF-8", what);
    while (!st && r.at < r.end) {
        skip_blanks(&r);
        if (r.at < r.end && *r.at == '#')
            skip_line(&r);
        else if (r.at < r.end && !strchr("\r\n", *r.at))
            st = take_instruction(&r);
        if (!st && r.at < r.end && *r.at == '\r')
            r.at++;
        if (!st && r.at < r.end && *r.at == '\n') {
            r.at++;
            r.line++;
        }
    }
    const char *from = json_string_value(json_object_get(r.root, "from"));
    if (!st && (!from || !*from))
        st =
            err_set(r.e, E_FORMAT, "%s: FROM is missing: the model that this one is made of", what);
    if (!st && json_array_size(r.messages) && json_object_set(r.root, "messages", r.messages))
        st = no_memory(&r);
    if (!st && json_object_size(r.settings) && json_object_set(r.root, "parameters", r.settings))
        st = no_memory(&r);
    if (!st && json_array_size(r.adapters) && json_object_set(r.root, "adapters", r.adapters))
        st = no_memory(&r);
    json_decref(r.messages);
    json_decref(r.adapters);
    json_decref(r.settings);
    if (!st && json_was_short())
        st = no_memory(&r);
    if (st)
        json_decref(r.root);
    else
        *out = r.root;
    return st;
}
