/* call_laguna.c - calls and marks of the Laguna formats.
 *
 *     <tool_call>NAME <arg_key>k</arg_key> <arg_value>v</arg_value> ... </tool_call>
 *
 * The older template has line feeds between the marks, the newer one nothing; both are read alike.
 * Lenient reading also takes a value without its end mark, and an object instead of the pairs. The
 * JSON of Qwen3 is read, too.
 */
#include "text/laguna.h"
#include "text/grammar_int.h"
#include "text/parse_int.h"

#include <string.h>

/* *unclosed: no </arg_value> is left, so the search is not repeated. */
static bool take_pair(call_reading *r, const jtree *parameters, bool any, bool *unclosed)
{
    static const char key_end[] = "</arg_key>", value_end[] = "</arg_value>";
    const char *key = r->s + r->at, *end = memmem(key, r->n - r->at, key_end, sizeof key_end - 1);
    if (!end)
        return false;
    size_t n_key = (size_t)(end - key);
    r->at += n_key + sizeof key_end - 1;
    while (n_key && call_is_space(*key)) {
        key++;
        n_key--;
    }
    while (n_key && call_is_space(key[n_key - 1]))
        n_key--;
    call_skip_space(r);
    if (!n_key || !call_take(r, "<arg_value>"))
        return false;
    const char *s = r->s + r->at;
    end = *unclosed ? NULL : memmem(s, r->n - r->at, value_end, sizeof value_end - 1);
    bool closed = end != NULL;
    *unclosed = !closed;
    if (!closed && !r->lenient)
        return false;
    if (!closed && !(end = memmem(s, r->n - r->at, "<arg_key>", 9)))
        end = r->s + r->n;
    str_puts(r->out, any ? ", " : "");
    call_put_typed(r->out, parameters, key, n_key, s, (size_t)(end - s));
    r->at = (size_t)(end - r->s) + (closed ? sizeof value_end - 1 : 0);
    return true;
}

/* The end of the name at s[at]. */
static size_t name_end(const char *s, size_t at, size_t n)
{
    while (at < n && s[at] != '<' && s[at] != '{' && !call_is_space(s[at]))
        at++;
    return at;
}

static bool read_call(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    call_reading r = {.s = c->s, .n = c->n, .lenient = c->lenient, .out = arguments};
    bool any = false, unclosed = false, ok;
    str_cut(name, 0);
    str_cut(arguments, 0);
    call_skip_space(&r);
    if (r.at < r.n && (r.s[r.at] == '{' || r.s[r.at] == '['))
        return call_read_json(c, name, arguments, n_read);
    size_t end = name_end(r.s, r.at, r.n);
    if (!call_take_name(name, r.s + r.at, end - r.at))
        return false;
    r.at = end;
    call_skip_space(&r);
    if (c->lenient && call_take(&r, "{")) {
        ok = call_read_object(&r);
        call_skip_space(&r);
        if (ok)
            *n_read = r.at;
        return ok;
    }
    const jtree *parameters = call_parameters(c->tools, str_text(name));
    str_putc(arguments, '{');
    for (; call_take(&r, "<arg_key>"); call_skip_space(&r), any = true)
        if (!take_pair(&r, parameters, any, &unclosed))
            return false;
    ok = call_end_typed(arguments) && (any || call_at_end(&r));
    if (ok)
        *n_read = r.at;
    return ok;
}

static call_head read_head(const char *s, size_t n)
{
    call_head h = {.possible = true};
    size_t at = 0, end;
    while (at < n && call_is_space(s[at]))
        at++;
    if (at < n && (s[at] == '{' || s[at] == '['))
        return call_json_head(s, n);
    end = name_end(s, at, n);
    h.possible = end - at <= CALL_MAX_NAME_BYTES && (end == n || end > at);
    if (!h.possible || end == n)
        return h;
    h.name = s + at;
    h.n_name = end - at;
    while (end < n && call_is_space(s[end]))
        end++;
    size_t pair = 0;
    h.possible = end == n || s[end] == '{' || call_may_begin(s + end, n - end, "<arg_key>", &pair);
    h.arguments = pair ? end : 0;
    return h;
}

static gx *lines_grammar(gx_builder *b, const char *name, gx *arguments)
{
    return gx_seq3(b, gx_text(b, name), gx_text(b, "\n"), arguments);
}

static gx *compact_grammar(gx_builder *b, const char *name, gx *arguments)
{
    return gx_seq2(b, gx_text(b, name), arguments);
}

/* What both templates have in common. */
#define LAGUNA_ANSWER                                                                              \
    .opening = "", .thought_open = "<think>", .thought_label = "", .thought_close = "</think>",    \
    .call_open = "<tool_call>", .call_close = "</tool_call>", .value_open = "<arg_value>",         \
    .value_close = "</arg_value>", .stray = STRINGS("<assistant>", "</assistant>"),                \
    .thought_not = STRINGS("</think>", "</assistant>"),                                            \
    .content_not = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>", "<assistant>",    \
                           "</assistant>"),                                                        \
    .name_not = "\"\\{}<>\n\r\t ", .read_call = read_call, .read_head = read_head

static const call_pairs lines = {"<arg_key>",      "</arg_key>\n<arg_value>",
                                 "</arg_value>\n", "</arg_value>",
                                 "</arg_key>",     "<arg_value>"};
static const call_pairs compact = {"<arg_key>",    "</arg_key><arg_value>",
                                   "</arg_value>", "</arg_value>",
                                   "</arg_key>",   "<arg_value>"};

static const answer_syntax lines_answer = {LAGUNA_ANSWER, .n_gap = 1, .pairs = &lines,
                                           .call_grammar = lines_grammar};
static const answer_syntax compact_answer = {LAGUNA_ANSWER, .pairs = &compact,
                                             .call_grammar = compact_grammar};

const chat_format laguna_formats[N_LAGUNA_FORMATS] = {
    {"laguna v5", &laguna_text, LAGUNA_LINES, &lines_answer, false},
    {"laguna v8", &laguna_text, LAGUNA_COMPACT, &compact_answer, false}};
