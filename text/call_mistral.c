/* call_mistral.c - calls and marks of Mistral's formats.
 *
 *     v3    [TOOL_CALLS][{"name": "f", "arguments": {"k": 1}, "id": "aB3..."}, ...]
 *     v11   [TOOL_CALLS]f[CALL_ID]aB3...[ARGS]{"k": 1}[TOOL_CALLS]...
 *     v13   [TOOL_CALLS]f[ARGS]{"k": 1}[TOOL_CALLS]...
 *
 * No mark ends a call: the next call does, or the answer's end. The texts of SentencePiece's pieces
 * begin with a space, which is no part of the answer.
 */
#include "text/mistral.h"
#include "text/grammar_int.h"
#include "text/parse_int.h"

#include <string.h>

#define CALL_ID "[CALL_ID]"
#define ARGS "[ARGS]"

enum { NUMBER_MAX = 64 }; /* bytes of a call's id */

/* The end of the name at s[0], and the end of the mark before the arguments; 0: it is not there. */
static size_t name_end(const char *s, size_t n, size_t *arguments)
{
    const char *mark = memchr(s, '[', n), *args = memmem(s, n, ARGS, strlen(ARGS));
    *arguments = args ? (size_t)(args - s) + strlen(ARGS) : 0;
    return mark ? (size_t)(mark - s) : n;
}

static bool is_mark(const char *s, size_t n, const char *mark)
{
    size_t len = strlen(mark);
    return !memcmp(s, mark, n < len ? n : len);
}

static bool read_call(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    size_t at, end = name_end(c->s, c->n, &at);
    str_cut(name, 0);
    str_cut(arguments, 0);
    return at && call_take_name(name, c->s, end) && call_read_arguments(c, at, arguments, n_read);
}

static call_head read_head(const char *s, size_t n)
{
    size_t at, end = name_end(s, n, &at);
    call_head h = {.possible = end <= CALL_MAX_NAME_BYTES &&
                               (end == n || is_mark(s + end, n - end, CALL_ID) ||
                                is_mark(s + end, n - end, ARGS))};
    h.possible &= at || n - end < sizeof CALL_ID + NUMBER_MAX + sizeof ARGS;
    if (!h.possible || !at)
        return h;
    h.name = s;
    h.n_name = end;
    while (at < n && call_is_space(s[at]))
        at++;
    h.possible = at == n || s[at] == '{';
    h.arguments = at < n ? at + 1 : 0;
    return h;
}

/* ---- Grammars ---- */

static gx *id(gx_builder *b)
{
    static const gx_range letters[] = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
    return gx_repeat(b, gx_set(b, letters, 3, false), 9, 9);
}

static gx *list_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *head = gx_seq3(b, gx_text(b, "{\"name\": \""), gx_text(b, name),
                       gx_text(b, "\", \"arguments\": "));
    gx *number = gx_maybe(b, gx_seq3(b, gx_text(b, ", \"id\": \""), id(b), gx_text(b, "\"")));
    return gx_seq2(b, head, gx_seq3(b, arguments, number, gx_text(b, "}")));
}

static gx *bare_grammar(gx_builder *b, const char *name, gx *arguments)
{
    return gx_seq3(b, gx_text(b, name), gx_special(b, ARGS), arguments);
}

static gx *id_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *head = gx_seq3(b, gx_text(b, name), gx_special(b, CALL_ID), id(b));
    return gx_seq3(b, head, gx_special(b, ARGS), arguments);
}

/* ---- The formats ---- */

static const answer_syntax spaced_answer = {.opening = " ",
                                            .thought_label = "",
                                            .stray = STRINGS(NULL),
                                            .thought_not = STRINGS(NULL),
                                            .content_not = STRINGS(NULL),
                                            .name_not = ""};

#define LIST_CALLS                                                                                 \
    .thought_label = "", .call_open = "[TOOL_CALLS]", .json_calls = true, .stray = STRINGS(NULL),  \
    .thought_not = STRINGS(NULL), .content_not = STRINGS("[TOOL_CALLS]"),                          \
    .name_not = "\"\\{}<>\n\r\t ", .read_call = call_read_json, .read_head = call_json_head,       \
    .list_open = "[", .list_next = ", ", .list_close = "]", .call_grammar = list_grammar

static const answer_syntax list_answer = {.opening = "", LIST_CALLS};
static const answer_syntax spaced_list_answer = {.opening = " ", LIST_CALLS};

#define NAMED_CALLS                                                                                \
    .opening = "", .thought_label = "", .call_open = "[TOOL_CALLS]", .json_calls = true,           \
    .stray = STRINGS(NULL), .name_not = "\"\\{}<>[]\n\r\t ", .read_call = read_call,               \
    .read_head = read_head

static const answer_syntax id_answer = {NAMED_CALLS, .thought_not = STRINGS(NULL),
                                        .content_not = STRINGS("[TOOL_CALLS]", CALL_ID, ARGS),
                                        .call_grammar = id_grammar};
static const answer_syntax bare_answer = {NAMED_CALLS,
                                          .thought_open = "[THINK]",
                                          .thought_close = "[/THINK]",
                                          .thought_not = STRINGS("[/THINK]"),
                                          .content_not =
                                              STRINGS("[THINK]", "[/THINK]", "[TOOL_CALLS]", ARGS),
                                          .call_grammar = bare_grammar};

const chat_format mistral_formats[N_MISTRAL_FORMATS] = {
    {"llama2", &mistral_text, LLAMA2, &spaced_answer, false},
    {"mistral v0.1", &mistral_text, MISTRAL_V0, &spaced_answer, false},
    {"mistral v0.2", &mistral_text, MISTRAL_V0_TIGHT, &spaced_answer, false},
    {"mistral v1", &mistral_text, MISTRAL_V1, &spaced_answer, false},
    {"mistral v3", &mistral_text, MISTRAL_V3, &spaced_list_answer, false},
    {"mistral v3 tekken", &mistral_text, MISTRAL_V3_TEKKEN, &list_answer, false},
    {"mistral v7", &mistral_text, MISTRAL_V7, &spaced_answer, false},
    {"mistral v7 tekken", &mistral_text, MISTRAL_V7_TEKKEN, NULL, false},
    {"mistral v11", &mistral_text, MISTRAL_V11, &id_answer, false},
    {"mistral v13", &mistral_text, MISTRAL_V13, &bare_answer, false}};
