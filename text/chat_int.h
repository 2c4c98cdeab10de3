/* chat_int.h - what the chat formats share: a writer that knows template from conversation, and
 * the pieces that formats are put together from.
 *
 * A renderer carries one `chat_writer`. Its first error sticks; every call after it does nothing,
 * so a renderer reads like the template it follows. Paths for messages ("messages[2].content")
 * are formatted only when something is wrong.
 */
#ifndef TEXT_CHAT_INT_H
#define TEXT_CHAT_INT_H

#include "text/chat.h"
#include "text/jtree.h"

typedef struct chat_writer {
    chat_prompt *p;
    arena *mem; /* of the render: trees and sorted members */
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

/* What Python's str.strip() leaves. */
void text_trim(const char **s, size_t *n);

/* A name that can stand before a brace: a string, not empty, no braces, no control bytes. */
bool chat_is_name(const jtree *v);

#endif
