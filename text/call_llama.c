/* call_llama.c - calls of Llama 3.1 to 3.3: an answer that is the JSON of one, or text behind
 * <|python_tag|>.
 *
 *     {"name": "f", "parameters": {"k": 1}}
 *
 * Models write "type": "function" in front, a list of calls, or calls with semicolons between them.
 */
#include "text/llama.h"
#include "text/grammar_int.h"
#include "text/parse_int.h"

#include <string.h>

static bool read_call(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    size_t skip = 0, read = 0;
    while (skip < c->n && (call_is_space(c->s[skip]) || c->s[skip] == ';'))
        skip++;
    const call_text rest = {c->s + skip, c->n - skip, c->lenient, c->tools};
    bool ok = call_read_json(&rest, name, arguments, &read);
    if (ok)
        *n_read = skip + read;
    return ok;
}

/* Text whose first member is none of a call's is shown as it comes. */
static call_head read_head(const char *s, size_t n)
{
    static const char *const keys[] = {"\"name\"", "\"type\"", "\"parameters\"", "\"arguments\""};
    call_head h = call_json_head(s, n);
    size_t at = 0;
    while (at < n && (call_is_space(s[at]) || s[at] == '[' || s[at] == '{'))
        at++;
    bool fits = at == n;
    for (int i = 0; i < 4 && !fits; i++)
        fits = !memcmp(s + at, keys[i], n - at < strlen(keys[i]) ? n - at : strlen(keys[i]));
    h.possible &= fits;
    return h;
}

static gx *call_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *head = gx_seq3(b, gx_text(b, "{\"name\": \""), gx_text(b, name), gx_text(b, "\", "));
    return gx_seq2(b, head, gx_seq3(b, gx_text(b, "\"parameters\": "), arguments, gx_text(b, "}")));
}

static const answer_syntax answer = {.opening = "",
                                     .thought_label = "",
                                     .call_open = "<|python_tag|>",
                                     .begins_calls = "{[",
                                     .json_calls = true,
                                     .stray = STRINGS(NULL),
                                     .thought_not = STRINGS(NULL),
                                     .content_not = STRINGS("<|python_tag|>"),
                                     .name_not = "\"\\{}<>\n\r\t ",
                                     .read_call = read_call,
                                     .read_head = read_head,
                                     .call_grammar = call_grammar};

const chat_format llama_formats[N_LLAMA_FORMATS] = {
    {"llama3", &llama_text, LLAMA_3, NULL, false},
    {"llama3.1", &llama_text, LLAMA_31, &answer, false},
    {"llama3.2", &llama_text, LLAMA_32, &answer, false}};
