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

/* ---- tools.c ---- */

/* A value in the syntax of calls and responses; keys bare or between string delimiters. */
void tools_put_value(chat_writer *w, const jtree *v, bool quote_keys, bool check_delimiter,
                     const char *where);
/* k:v,k:v without braces, keys sorted and bare. */
void tools_put_members(chat_writer *w, const jtree *object, bool check_delimiter,
                       const char *where);
/* declaration:NAME{...} of tools[i]. first_april: as the first template orders it. */
typedef enum tools_style { TOOLS_APRIL_FIRST, TOOLS_APRIL_LATE, TOOLS_JULY } tools_style;
void tools_put_declaration(chat_writer *w, const jtree *tool, size_t i, tools_style style);

/* ---- chat_gemma.c ---- */

void gemma_render(chat_writer *w, chat_format f, const jtree *messages, const jtree *tools,
                  const carat_chat_options *opt);

#define STRING_DELIMITER "<|\"|>"

#endif
