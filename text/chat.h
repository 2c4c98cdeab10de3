/* chat.h - conversations to prompts, and answers to events.
 *
 * Rendering: a conversation (talk.h) becomes one text. Each of its bytes is marked as literal (from
 * the template) or content (from the conversation). So content cannot pose as control tokens; see
 * chat_tokenize.
 *
 * Parsing: the text of an answer, in pieces of any size, becomes events: reasoning, content and
 * tool calls. The events hold the same text for any division into pieces.
 *
 * No state is kept between conversations. Prompts and parsers belong to the caller; one thread at a
 * time may use each.
 */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/str.h"
#include "text/family.h"
#include "text/talk.h"
#include "text/vocab.h"

/* ---- Messages to a prompt (chat.c, and the files of each family) ------------------------- */

/* The revision of a template text, recognised by its landmarks. NULL: unknown to f. */
const chat_format *chat_format_of(const text_family *f, const char *template_text, size_t n);

enum {
    CHAT_MAX_DEPTH = 64,   /* nesting of JSON in messages, schemas and arguments */
    CHAT_MAX_CALLS = 4096, /* of one message: each result is compared with all */
    CHAT_MAX_IMAGES = 65536,
    CHAT_MAX_JSON_BYTES = 256 << 20 /* of messages or tools: refuse before parsing */
};

typedef struct chat_segment {
    size_t at, n; /* bytes of the text */
    bool literal; /* from the template, not from the conversation */
} chat_segment;

typedef struct chat_prompt {
    str text;              /* valid UTF-8; begins with one BOS, if the family has one */
    chat_segment *segment; /* in order; together they cover the text */
    size_t n_segments, cap_segments;
    bool starts_thinking; /* the text ends inside a thought: the answer begins as reasoning */
    /* The numbers of the images and sounds, in the order of their placeholders in the text. */
    int32_t *image, n_images, cap_images;
    int32_t n_sounds; /* of them */
    int32_t n_around; /* tokens that stand around a picture and not in the text */
    int32_t n_others; /* placeholders of films */
    /* ID and name of the first call whose arguments are no JSON object, and so stand in one as
     * text. "": there is none. */
    char odd_arguments[120];
    const text_family *family;
} chat_prompt;

/* f NULL: E_UNSUPPORTED. opt NULL: all off. On failure p is empty. */
status chat_render_talk(const chat_format *f, const carat_talk *t, const carat_chat_options *opt,
                        chat_prompt *p, err *e);
/* A conversation of JSON text in OpenAI's form. tools may be NULL (n_tools_bytes 0). */
status chat_read(carat_talk *t, const char *messages, size_t n_messages_bytes, const char *tools,
                 size_t n_tools_bytes, err *e);
/* Both, of a conversation that nobody needs any more. */
status chat_render(const chat_format *f, const char *messages, size_t n_messages_bytes,
                   const char *tools, size_t n_tools_bytes, const carat_chat_options *opt,
                   chat_prompt *p, err *e);
void chat_prompt_free(chat_prompt *p); /* safe on a zeroed or freed prompt */

/* Appends the ids of a prompt, with exactly one BOS in front (the template's own). Special pieces
 * match in literal segments only. In content even user-defined ones stay plain text, which
 * SPECIAL_NONE would match: a <|tool_call> in a tool's result must not forge structure.
 * raw_markers: special pieces match everywhere, as in a server that renders with Jinja and then
 * encodes the text. Content without marks gives the same ids either way. */
status chat_tokenize(const vocab *v, const chat_prompt *p, bool raw_markers, id_list *out, err *e);

/* ---- An answer to events (parse.c, and the files of each family) ------------------------- */

/* ANSWER_CALL_PART: a piece of the arguments of a call that is not complete yet. The whole call
 * follows, and the pieces are its arguments. If another event follows, it is no call, and its text
 * comes as content. If none follows, the end of the answer cut it. */
typedef enum answer_kind {
    ANSWER_REASONING,
    ANSWER_CONTENT,
    ANSWER_TOOL_CALL,
    ANSWER_CALL_PART
} answer_kind;

typedef struct answer_event {
    answer_kind kind;
    const char
        *text; /* valid UTF-8, NUL-terminated, not empty; of a call: arguments, a JSON object */
    size_t n;
    const char *name; /* of a call and its parts: NUL-terminated, not empty; else NULL */
} answer_event;

/* Pointers are valid until the callback returns. Return false to cancel. */
typedef bool (*answer_fn)(void *user, const answer_event *ev);

typedef struct answer_parser answer_parser;

enum {
    ANSWER_MAX_CALL_BYTES = 8 << 20, /* of one call; a longer one becomes content */
    ANSWER_MAX_CALLS = 1024          /* of one answer; later ones become content */
};

/* f defines the syntax; NULL: all text is content. starts_thinking: from chat_render. */
status answer_open(answer_parser **a, const chat_format *f, bool starts_thinking, answer_fn fn,
                   void *user, err *e);
void answer_close(answer_parser *a); /* NULL is fine */
/* Names the tools that the answer may call, JSON in OpenAI's form. Without them, and in invalid
 * JSON, there are none: then no text is a call. Their schemas type the arguments that a syntax
 * writes as plain text. parts: tell ANSWER_CALL_PART. Before the first answer_put. */
status answer_tools(answer_parser *a, const char *tools, size_t n, bool parts, err *e);
/* Strings that end the content, and with it the answer. Before the first answer_put; see
 * stream.h for the errors. */
status answer_stops(answer_parser *a, const char *const *stop, int32_t n, err *e);
int32_t answer_met(const answer_parser *a); /* the index of the stop string that was met, or -1 */
/* Takes any bytes; invalid UTF-8 becomes U+FFFD. E_CANCELLED: fn returned false. E_MEMORY. */
status answer_put(answer_parser *a, const char *bytes, size_t n, err *e);
/* The answer is over. Held text becomes events; a call without its end is a call if its text is
 * complete, else content. cut: the token limit ended it; then half a call is left out. */
status answer_end(answer_parser *a, bool cut, err *e);
int32_t answer_n_calls(const answer_parser *a); /* so far */

#endif
