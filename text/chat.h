/* chat.h - conversations to prompts, and what the model writes back to messages.
 *
 * Rendering: `messages` and `tools` in the OpenAI shape, as JSON text, become one text in which
 * every byte is known to come from the template (literal) or from the conversation (content). The
 * distinction is what keeps content from posing as control tokens; see chat_tokenize.
 *
 * Parsing: the text of an answer, in pieces of any size, becomes events: reasoning, content and
 * whole tool calls. The events carry the same text in total however the input was cut.
 *
 * No call here keeps state between conversations. Prompts and parsers belong to the caller, one
 * thread at a time each.
 */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/str.h"
#include "text/family.h"
#include "text/vocab.h"

/* ---- Messages to a prompt (chat.c, and the files of each family) ------------------------- */

/* The revision that a template text is, found by its landmarks; NULL: none that f knows. */
const chat_format *chat_format_of(const text_family *f, const char *template_text, size_t n);

enum {
    CHAT_MAX_DEPTH = 64,            /* nesting of JSON in messages, schemas and arguments */
    CHAT_MAX_CALLS = 4096,          /* of one message: each result is matched with all of them */
    CHAT_MAX_JSON_BYTES = 256 << 20 /* of messages or tools: refuse before parsing */
};

typedef struct chat_segment {
    size_t at, n; /* bytes of the text */
    bool literal; /* written by the template, not by the conversation */
} chat_segment;

typedef struct chat_prompt {
    str text;              /* valid UTF-8; begins with one BOS, if the family has one */
    chat_segment *segment; /* adjoining, in order, together the whole text */
    size_t n_segments, cap_segments;
    bool starts_thinking; /* the text ends inside a thought: the answer begins as reasoning */
    int32_t n_media;      /* place holders for images, sounds and films in the text */
    const text_family *family;
} chat_prompt;

/* f NULL: E_UNSUPPORTED. tools may be NULL (n_tools_bytes 0). opt NULL: all off. On failure p is
 * empty. */
status chat_render(const chat_format *f, const char *messages, size_t n_messages_bytes,
                   const char *tools, size_t n_tools_bytes, const carat_chat_options *opt,
                   chat_prompt *p, err *e);
void chat_prompt_free(chat_prompt *p); /* safe on a zeroed or freed prompt */

/* Appends the ids of a prompt, exactly one BOS in front (the template's own). Special pieces are
 * matched in literal segments only. In content even user-defined ones stay plain text, which
 * SPECIAL_NONE would match elsewhere: a <|tool_call> in a tool's result must not forge structure.
 * raw_markers: special pieces are matched everywhere, as by a server that renders with Jinja and
 * tokenises the result. Content without marks gives the same ids either way. */
status chat_tokenize(const vocab *v, const chat_prompt *p, bool raw_markers, id_list *out, err *e);

/* ---- An answer to events (parse.c, and the files of each family) ------------------------- */

typedef enum answer_kind { ANSWER_REASONING, ANSWER_CONTENT, ANSWER_TOOL_CALL } answer_kind;

typedef struct answer_event {
    answer_kind kind;
    const char
        *text; /* valid UTF-8, NUL-terminated, not empty; of a call: arguments, a JSON object */
    size_t n;
    const char *name; /* of a call: NUL-terminated, not empty; else NULL */
} answer_event;

/* Pointers live until the callback returns. Return false to cancel. */
typedef bool (*answer_fn)(void *user, const answer_event *ev);

typedef struct answer_parser answer_parser;

enum {
    ANSWER_MAX_CALL_BYTES = 8 << 20, /* of one call; a longer one is passed on as content */
    ANSWER_MAX_CALLS = 1024          /* of one answer; later ones are passed on as content */
};

/* f says which syntax; NULL: all is content. starts_thinking as chat_render reported it. */
status answer_open(answer_parser **a, const chat_format *f, bool starts_thinking, answer_fn fn,
                   void *user, err *e);
void answer_close(answer_parser *a); /* NULL is fine */
/* Any bytes: what is not UTF-8 becomes U+FFFD. E_CANCELLED when fn said so, E_MEMORY. */
status answer_put(answer_parser *a, const char *bytes, size_t n, err *e);
/* Call this before answer_end if a limit, not the model, ended the answer: an incomplete call is
 * then dropped. A repaired one might run half a command, and its syntax is no text for a reader. */
void answer_was_cut(answer_parser *a);
/* The answer is complete: held text is decided; an unfinished call is repaired or becomes content.
 */
status answer_end(answer_parser *a, err *e);
int32_t answer_n_calls(const answer_parser *a); /* so far */

#endif
