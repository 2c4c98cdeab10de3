/* call_harmony.c - answers of gpt-oss: messages with headers, and calls in them.
 *
 *     <|channel|>analysis<|message|> thought <|end|>
 *     <|start|>assistant<|channel|>commentary<|message|> text <|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.NAME
 * <|constrain|>json<|message|>{...}<|call|>
 *     <|start|>assistant<|channel|>final<|message|> text <|return|>
 *
 * The recipient may stand behind the role instead, as in prompts. <|call|> and <|return|> end an
 * answer. The text of a call, for its readers, begins with its name.
 */
#include "text/gpt_oss.h"
#include "text/grammar_int.h"
#include "text/parse_int.h"

#include <string.h>

#define MESSAGE "<|message|>"

static size_t name_length(const char *s, size_t n)
{
    size_t len = 0;
    while (len < n && (unsigned char)s[len] > ' ' && s[len] != '<')
        len++;
    return len;
}

static size_t body_of(const char *s, size_t n)
{
    const char *at = memmem(s, n, MESSAGE, strlen(MESSAGE));
    return at ? (size_t)(at - s) + strlen(MESSAGE) : 0;
}

/* An empty text is an empty object. */
static bool read_call(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    size_t at = body_of(c->s, c->n), end = at;
    str_cut(name, 0);
    str_cut(arguments, 0);
    if (!at || !call_take_name(name, c->s, name_length(c->s, c->n)))
        return false;
    while (end < c->n && call_is_space(c->s[end]))
        end++;
    if (end < c->n)
        return call_read_arguments(c, at, arguments, n_read);
    str_puts(arguments, "{}");
    *n_read = end;
    return true;
}

static call_head read_head(const char *s, size_t n)
{
    size_t at = body_of(s, n);
    call_head h = {.name = s, .n_name = name_length(s, n)};
    while (at < n && call_is_space(s[at]))
        at++;
    h.possible = at == n || s[at] == '{';
    h.arguments = at < n ? at + 1 : 0;
    return h;
}

/* The message behind the role. */
static gx *call_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *mark = gx_special(b, "<|constrain|>"), *json = gx_text(b, "json");
    gx *type = gx_maybe(
        b, gx_alt2(b, gx_seq3(b, gx_maybe(b, gx_text(b, " ")), mark, json), gx_text(b, " json")));
    gx *to = gx_seq2(b, gx_text(b, " to=functions."), gx_text(b, name));
    gx *channel = gx_seq2(b, gx_special(b, "<|channel|>"), gx_text(b, "commentary"));
    gx *head = gx_alt2(b, gx_seq2(b, channel, to), gx_seq2(b, to, channel));
    return gx_seq3(b, gx_seq2(b, head, type), gx_special(b, MESSAGE), arguments);
}

static const answer_heads heads = {.start = "<|start|>",
                                   .role = "assistant",
                                   .channel = "<|channel|>",
                                   .message = MESSAGE,
                                   .constrain = "<|constrain|>",
                                   .ends = STRINGS("<|end|>", "<|call|>", "<|return|>"),
                                   .thought = "analysis",
                                   .commentary = "commentary",
                                   .text = "final",
                                   .call_space = "functions."};
#define MARKS                                                                                      \
    STRINGS("<|channel|>", "<|start|>", MESSAGE, "<|constrain|>", "<|end|>", "<|call|>",           \
            "<|return|>")

static const answer_syntax answer = {.heads = &heads,
                                     .opening = "",
                                     .thought_open = "<|channel|>",
                                     .thought_label = "",
                                     .thought_close = "<|end|>",
                                     .json_calls = true,
                                     .stray = STRINGS(NULL),
                                     .thought_not = MARKS,
                                     .content_not = MARKS,
                                     .name_not = "\"\\{}<>\n\r\t ",
                                     .read_call = read_call,
                                     .read_head = read_head,
                                     .call_grammar = call_grammar};

const chat_format harmony_format = {"harmony", &gpt_oss_text, 0, &answer, true};
