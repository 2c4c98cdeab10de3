/* chat_int.h - shared by the chat formats: a writer that marks template and conversation, and
 * helpers for strings.
 *
 * A renderer holds one `chat_writer`. The writer keeps its first error, and every later call does
 * nothing; so a renderer reads like its template. Paths for error messages ("messages[2].content")
 * are formatted only on an error.
 */
#ifndef TEXT_CHAT_INT_H
#define TEXT_CHAT_INT_H

#include "text/chat.h"
#include "text/jtree.h"

typedef struct chat_writer {
    chat_prompt *p;
    arena *mem; /* of one rendering: trees and sorted members */
    err *e;
    status st;   /* the first failure */
    bool python; /* null is spelled None, as the April templates print it */
} chat_writer;

/* Text of the template; of the conversation. */
void chat_lit(chat_writer *w, const char *text);
void chat_put(chat_writer *w, const char *text, size_t n);
void chat_puts(chat_writer *w, const char *text);
void chat_fail(chat_writer *w, status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Trims the white space that Python's str.strip() removes. */
void text_trim(const char **s, size_t *n);

/* Today, for templates that name the day. */
typedef struct chat_day {
    int year, month, day; /* 1 to 12, 1 to 31 */
} chat_day;
chat_day chat_today(chat_writer *w, const carat_chat_options *opt);

/* ---- chat_messages.c: what formats read in a request ---- */

typedef enum chat_role {
    CHAT_SYSTEM,
    CHAT_DEVELOPER,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_TOOL,
    N_CHAT_ROLES
} chat_role;

extern const char *const chat_role_names[N_CHAT_ROLES];

typedef struct chat_message {
    const jtree *v;
    size_t i; /* index in the request, for error messages */
    chat_role role;
    const jtree *calls, *responses; /* non-empty arrays, or NULL */
} chat_message;

/* Text of a request. NUL-terminated only if it is a whole string. */
typedef struct chat_text {
    const char *s;
    size_t n;
} chat_text;

/* What a part of content is, and for each kind but text the placeholder that a format's template
 * writes; NULL: the format has none. */
typedef enum chat_kind { CHAT_TEXT, CHAT_IMAGE, CHAT_AUDIO, CHAT_VIDEO, N_CHAT_KINDS } chat_kind;

typedef struct chat_media {
    const char *mark[N_CHAT_KINDS];
    int32_t n_around; /* tokens around a picture that the template leaves to its program */
} chat_media;

enum { CHAT_WHERE = 120 }; /* bytes of a place in a request, for error messages */

/* Reads all messages into the arena, and checks that tools is an array or NULL. */
bool chat_read_messages(chat_writer *w, const jtree *messages, const jtree *tools,
                        chat_message **out, size_t *n);
/* The string member. NULL if absent, null or empty; an error for any other type. */
const jtree *chat_string_of(chat_writer *w, const chat_message *m, const jtree *object,
                            const char *key);
/* A string, an array, or NULL. */
const jtree *chat_content_of(chat_writer *w, const chat_message *m);
/* Reads a part of content. The number of an image or a sound is the part's `number`, or the count
 * of both before it in the prompt. False: an error; of a kind without a mark in media (NULL: none
 * has one), too.
 */
typedef struct chat_part {
    chat_kind kind;
    const jtree *text; /* CHAT_TEXT */
    int32_t number;    /* CHAT_IMAGE, CHAT_AUDIO; -1: not given */
} chat_part;
bool chat_part_of(chat_writer *w, const chat_message *m, const jtree *it, const chat_media *media,
                  chat_part *out);
/* Puts the placeholder of an image, a sound or a film as text of the template. */
void chat_put_media(chat_writer *w, const chat_media *media, chat_kind kind, int32_t number);
/* The content as one text: parts are joined without a separator. media NULL: text only. Other parts
 * become marks of this text. They hold a byte that no UTF-8 has, so no conversation can write one,
 * and chat_put_marked turns them into placeholders. */
chat_text chat_text_of(chat_writer *w, const chat_message *m, const chat_media *media);
void chat_put_marked(chat_writer *w, const chat_media *media, chat_text t);
chat_text chat_trimmed(chat_text t);                              /* Python's strip() */
chat_text chat_without_lines(chat_text t, bool front, bool back); /* strip("\n") */
/* Takes a thought out of content: the text before the first `close`, after the last `open` in it.
 * The content becomes what follows the last `close`. False: no `close`, nothing changes. */
bool chat_split_thought(chat_text *content, const char *open, const char *close,
                        chat_text *thought);
const jtree *chat_call_name(chat_writer *w, const chat_message *m, const jtree *call, size_t i);
/* An object, or NULL for no arguments. They are an object, or a string that holds the JSON text of
 * one (OpenAI's form). Others, such as the broken JSON of an earlier answer, are {"arguments":
 * TEXT}, and the prompt names their call. where: their place. */
const jtree *chat_arguments(chat_writer *w, const chat_message *m, const jtree *call, size_t i,
                            char where[CHAT_WHERE]);
bool chat_is_wrapped(const jtree *arguments); /* they are such an object */
void chat_tool_place(const jtree *tool, size_t i, char where[CHAT_WHERE]);
/* The `function` of a tool; NULL with an error if the tool is none. */
const jtree *chat_function_of(chat_writer *w, const jtree *tool, const char *where);
/* Puts JSON with ", " and ": ", as json.dumps with ensure_ascii off. */
void chat_put_json(chat_writer *w, const jtree *v, const char *where);
/* The same, and a string without quotes. */
void chat_put_value(chat_writer *w, const jtree *v, const char *where);
/* The same, and None, False and True for null, false and true. */
void chat_put_python(chat_writer *w, const jtree *v, const char *where);

/* Whether v can stand before a brace: a string, not empty, without braces or control bytes. */
bool chat_is_name(const jtree *v);

#endif
