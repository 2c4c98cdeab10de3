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

/* Whether v can stand before a brace: a string, not empty, without braces or control bytes. */
bool chat_is_name(const jtree *v);

#endif
