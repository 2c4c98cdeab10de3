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
#include "text/talk.h"

typedef struct chat_writer {
    chat_prompt *p;
    const carat_talk *talk;
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

/* ---- chat_messages.c: what formats read in a conversation ---- */

/* For each kind of part but text: the placeholder that a format's template writes; NULL: the format
 * has none. */
typedef struct chat_media {
    const char *mark[TALK_KINDS];
    int32_t n_around; /* tokens around a picture that the template leaves to its program */
} chat_media;

/* Like chat_fail; the sentence begins with the place of the turn in the request. */
void chat_fail_at(chat_writer *w, const talk_turn *m, status st, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Whether a template has this text: how formats are recognised. */
bool chat_says(const char *template_text, size_t n, const char *what);
/* Whether the answer continues turn i of n. Not after calls: their results are missing. */
bool chat_goes_on(const carat_chat_options *opt, const talk_turn *m, size_t n, size_t i);
/* Refuses results inside the message that calls, which only Google's form has. */
void chat_refuse_results(chat_writer *w, const talk_turn *m);
/* A part that the format can write. False: an error; of a kind without a mark in media (NULL: none
 * has one), too. */
bool chat_check_part(chat_writer *w, const talk_turn *m, const talk_part *part,
                     const chat_media *media);
/* Puts the placeholder of an image, a sound or a film as text of the template. Its number is the
 * part's, or the count of images and sounds before it in the prompt. */
void chat_put_media(chat_writer *w, const chat_media *media, const talk_part *part);
/* The content as one text: parts are joined without a separator. media NULL: text only. Other parts
 * become marks of this text. They hold a byte that no UTF-8 has, so no conversation can write one,
 * and chat_put_marked turns them into placeholders. */
talk_text chat_text_of(chat_writer *w, const talk_turn *m, const chat_media *media);
void chat_put_marked(chat_writer *w, const chat_media *media, talk_text t);
void chat_put_text(chat_writer *w, talk_text t);
talk_text chat_trimmed(talk_text t);                              /* Python's strip() */
talk_text chat_without_lines(talk_text t, bool front, bool back); /* strip("\n") */
/* Takes a thought out of content: the text before the first `close`, after the last `open` in it.
 * The content becomes what follows the last `close`. False: no `close`, nothing changes. */
bool chat_split_thought(talk_text *content, const char *open, const char *close,
                        talk_text *thought);
/* The name of call i; NULL with an error if it has none that a format can write. */
const talk_text *chat_call_name(chat_writer *w, const talk_turn *m, size_t i);
/* An object, or NULL for no arguments. They are an object, or a string that holds the JSON text of
 * one (OpenAI's form). Others, such as the broken JSON of an earlier answer, are {"arguments":
 * TEXT}, and the prompt names their call. where: their place. */
const jtree *chat_arguments(chat_writer *w, const talk_turn *m, size_t i, char where[TALK_WHERE]);
bool chat_is_wrapped(const jtree *arguments); /* they are such an object */
bool chat_same_id(talk_text a, talk_text b);  /* two absent ids are equal, as in Python */
/* The tools, or NULL if there are none. */
const jtree *chat_tools(const carat_talk *t);
void chat_tool_place(const jtree *tool, size_t i, char where[TALK_WHERE]);
/* The `function` of a tool; NULL with an error if the tool is none. */
const jtree *chat_function_of(chat_writer *w, const jtree *tool, const char *where);
/* Puts JSON with ", " and ": ", as json.dumps with ensure_ascii off. */
void chat_put_json(chat_writer *w, const jtree *v, const char *where);
/* The same, and a string without quotes. */
void chat_put_value(chat_writer *w, const jtree *v, const char *where);
/* The same, and None, False and True for null, false and true. */
void chat_put_python(chat_writer *w, const jtree *v, const char *where);

/* Whether t can stand before a brace: given, not empty, without braces or control bytes. */
bool chat_is_name(talk_text t);

#endif
