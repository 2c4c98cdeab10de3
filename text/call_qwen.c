/* call_qwen.c - calls and marks of the Qwen formats.
 *
 *     Qwen3:          <tool_call>\n{"name": "f", "arguments": {"k": 1}}\n</tool_call>
 *     later formats:  <tool_call>\n<function=f>\n<parameter=k>\n1\n</parameter>\n</function>\n
 *                     </tool_call>
 *
 * Exactly one line feed after <parameter=k> and one before </parameter> belong to the syntax. A
 * value ends at the first </parameter>. Lenient reading also takes a value that ends at the next
 * mark and a call without </function>. The JSON of Qwen3 is read, too.
 */
#include "text/qwen.h"
#include "text/grammar_int.h"
#include "text/parse_int.h"

#include <string.h>

/* The text before the next `what`, which is passed; NULL: there is none. */
static const char *take_until(call_reading *r, const char *what, size_t *n)
{
    const char *s = r->s + r->at, *end = memmem(s, r->n - r->at, what, strlen(what));
    if (!end)
        return NULL;
    *n = (size_t)(end - s);
    r->at += *n + strlen(what);
    return s;
}

/* The offset of the next of two marks, or n. Nothing behind it is searched, so that a call of many
 * values takes linear time. */
static size_t next_of(const call_reading *r, const char *a, const char *b)
{
    const char *s = r->s + r->at, *x = memmem(s, r->n - r->at, a, strlen(a));
    size_t n = x ? (size_t)(x - s) : r->n - r->at;
    const char *y = memmem(s, n, b, strlen(b));
    return r->at + (y ? (size_t)(y - s) : n);
}

/* The text of a value, without the line feeds of the syntax. */
static bool take_value(call_reading *r, const char **s, size_t *n)
{
    call_reading next = *r;
    size_t stop = r->lenient ? next_of(r, "<parameter=", "</function>") : r->n;
    next.n = stop;
    size_t len = 0;
    const char *value = take_until(&next, "</parameter>", &len);
    bool closed = value != NULL;
    if (!closed && !r->lenient)
        return false;
    if (!closed) {
        value = r->s + r->at;
        len = stop - r->at;
        while (len && call_is_space(value[len - 1]))
            len--;
    }
    r->at = closed ? next.at : stop;
    if (len && *value == '\n') {
        value++;
        len--;
    }
    if (closed && len && value[len - 1] == '\n')
        len--;
    *s = value;
    *n = len;
    return true;
}

static bool read_parameters(call_reading *r, const jtree *parameters)
{
    bool any = false;
    size_t n_key, n;
    const char *s;
    str_putc(r->out, '{');
    for (call_skip_space(r); call_take(r, "<parameter="); call_skip_space(r)) {
        const char *key = take_until(r, ">", &n_key);
        if (!key || !n_key || memchr(key, '\n', n_key) || !take_value(r, &s, &n))
            return false;
        str_puts(r->out, any ? ", " : "");
        call_put_typed(r->out, parameters, key, n_key, s, n);
        any = true;
    }
    return call_end_typed(r->out);
}

static bool read_xml(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    call_reading r = {.s = c->s, .n = c->n, .lenient = c->lenient, .out = arguments};
    size_t n_name;
    str_cut(name, 0);
    str_cut(arguments, 0);
    call_skip_space(&r);
    if (!call_take(&r, "<function="))
        return call_read_json(c, name, arguments, n_read);
    const char *called = take_until(&r, ">", &n_name);
    if (!called || !call_take_name(name, called, n_name) ||
        !read_parameters(&r, call_parameters(c->tools, str_text(name))))
        return false;
    bool closed = call_take(&r, "</function>");
    call_skip_space(&r);
    bool ok = closed || (c->lenient && (call_at_end(&r) || call_may_begin(r.s + r.at, r.n - r.at,
                                                                          "<function=", &n_name)));
    if (ok)
        *n_read = r.at;
    return ok;
}

static call_head xml_head(const char *s, size_t n)
{
    call_head h = {0};
    size_t at, end;
    h.possible = call_may_begin(s, n, "<function=", &at);
    if (!at)
        return h.possible ? h : call_json_head(s, n);
    for (end = at; end < n && s[end] != '>' && s[end] != '\n' && s[end] != '<';)
        end++;
    h.possible = end - at <= CALL_MAX_NAME_BYTES && (end == n || (s[end] == '>' && end > at));
    if (!h.possible || end == n)
        return h;
    h.name = s + at;
    h.n_name = end - at;
    h.arguments = end + 1;
    for (at = end + 1; at < n && call_is_space(s[at]);)
        at++;
    h.possible = at == n || s[at] == '<';
    return h;
}

static gx *json_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *head = gx_seq3(b, gx_text(b, "{\"name\": \""), gx_text(b, name), gx_text(b, "\", "));
    return gx_seq2(b, head, gx_seq3(b, gx_text(b, "\"arguments\": "), arguments, gx_text(b, "}")));
}

static gx *xml_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *head = gx_seq3(b, gx_text(b, "<function="), gx_text(b, name), gx_text(b, ">\n"));
    return gx_seq3(b, head, arguments, gx_text(b, "</function>"));
}

static const answer_syntax json_answer = {
    .opening = "",
    .thought_open = "<think>",
    .thought_label = "",
    .thought_close = "</think>",
    .call_open = "<tool_call>",
    .call_close = "</tool_call>",
    .json_calls = true,
    .n_gap = 2,
    .stray = STRINGS("<tool_response>", "</tool_response>"),
    .thought_not = STRINGS("</think>"),
    .content_not = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
                           "</tool_response>"),
    .name_not = "\"\\{}<>\n\r\t ",
    .read_call = call_read_json,
    .read_head = call_json_head,
    .call_space = "\n",
    .call_grammar = json_grammar};

static const call_pairs parameters = {"<parameter=",  ">\n", "\n</parameter>\n",
                                      "</parameter>", ">",   NULL};

static const answer_syntax xml_answer = {
    .opening = "",
    .thought_open = "<think>",
    .thought_label = "",
    .thought_close = "</think>",
    .call_open = "<tool_call>",
    .call_close = "</tool_call>",
    .value_open = "<parameter=",
    .value_close = "</parameter>",
    .bare_open = "<function=",
    .bare_close = "</function>",
    .stray = STRINGS("<tool_response>", "</tool_response>"),
    .thought_not = STRINGS("</think>"),
    .content_not = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
                           "</tool_response>"),
    .name_not = "\"\\{}<>\n\r\t ",
    .read_call = read_xml,
    .read_head = xml_head,
    .pairs = &parameters,
    .n_gap = 2,
    .call_space = "\n",
    .call_grammar = xml_grammar};

const chat_format qwen_formats[N_QWEN_FORMATS] = {
    {"qwen3", &qwen_text, QWEN_3, &json_answer, true},
    {"qwen3 coder", &qwen_text, QWEN_3_CODER, &xml_answer, false},
    {"qwen3-vl", &qwen_text, QWEN_3_VL, &json_answer, false},
    {"qwen3-vl thinking", &qwen_text, QWEN_3_OPENS, &json_answer, true},
    {"qwen3.5", &qwen_text, QWEN_35, &xml_answer, true},
    {"qwen3.6", &qwen_text, QWEN_36, &xml_answer, true},
    {"qwen3.8", &qwen_text, QWEN_38, &xml_answer, true}};
