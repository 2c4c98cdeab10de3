/* gemma4.h - Gemma 4's entry, and what its files share. Included by these files and by tests. */
#ifndef TEXT_GEMMA4_H
#define TEXT_GEMMA4_H

#include "text/chat_int.h"
#include "text/family.h"

/* The revisions of the template, oldest first. */
enum {
    GEMMA4_APRIL_FIRST, /* the template as first published: no `tool` role */
    GEMMA4_APRIL_LATE,  /* `tool` messages are folded into the model's turn */
    GEMMA4_JULY_SMALL,  /* the current one, as E2B and E4B carry it */
    GEMMA4_JULY_LARGE,  /* the same plus an empty thought when thinking is off */
    N_GEMMA4_FORMATS
};

extern const text_family gemma4_text;
extern const chat_format gemma4_formats[N_GEMMA4_FORMATS];

/* Both ends of a string in declarations, calls and responses. */
#define GEMMA_QUOTE "<|\"|>"

/* ---- chat_gemma.c ---- */

void gemma_render(chat_writer *w, const chat_format *f, const jtree *messages, const jtree *tools,
                  const carat_chat_options *opt);

/* ---- tools_gemma.c ---- */

/* A value in the syntax of calls and responses; keys bare or between string delimiters. */
void tools_put_value(chat_writer *w, const jtree *v, bool quote_keys, bool check_delimiter,
                     const char *where);
/* k:v,k:v without braces, keys sorted and bare. */
void tools_put_members(chat_writer *w, const jtree *object, bool check_delimiter,
                       const char *where);
/* declaration:NAME{...} of tools[i], in the style of a revision. */
void tools_put_declaration(chat_writer *w, const jtree *tool, size_t i, int32_t revision);

/* ---- call_gemma.c ---- */

bool gemma_read_call(const char *s, size_t n, bool lenient, str *name, str *arguments);

#endif
