/* gemma4.h - declarations shared by the Gemma 4 files. Included by these files and by tests. */
#ifndef TEXT_GEMMA4_H
#define TEXT_GEMMA4_H

#include "text/chat_int.h"
#include "text/family.h"

/* The revisions of the template, oldest first. */
enum {
    GEMMA4_APRIL_FIRST, /* the template as first published: no `tool` role */
    GEMMA4_APRIL_LATE,  /* `tool` messages are folded into the model's turn */
    GEMMA4_JULY_SMALL,  /* the current template, as in E2B and E4B */
    GEMMA4_JULY_LARGE,  /* the same, with an empty thought when thinking is off */
    N_GEMMA4_FORMATS
};

extern const text_family gemma4_text;
extern const chat_format gemma4_formats[N_GEMMA4_FORMATS];

/* The pre-splitter of tokenizer_name, of Gemma 3 too. */
size_t gemma_word_length(const char *s, size_t n);

/* Encloses a string in declarations, calls and responses. */
#define GEMMA_QUOTE "<|\"|>"

/* ---- chat_gemma.c ---- */

/* Writes the prompt of a conversation, in the revision that f names; opt as in carat.h. Errors stay
 * in w. */
void gemma_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                  const carat_chat_options *opt);

/* ---- tools_gemma.c ---- */

/* Puts a value in the syntax of calls and responses. Keys are bare, or in GEMMA_QUOTE. */
void tools_put_value(chat_writer *w, const jtree *v, bool quote_keys, bool check_delimiter,
                     const char *where);
/* Puts k:v,k:v without braces, keys sorted and bare. */
void tools_put_members(chat_writer *w, const jtree *object, bool check_delimiter,
                       const char *where);
/* Puts declaration:NAME{...} of tools[i], as in a revision of the template. */
void tools_put_declaration(chat_writer *w, const jtree *tool, size_t i, int32_t revision);

/* ---- call_gemma.c ---- */

/* The text of one call to its name and its arguments as JSON. False: it is no call. */
bool gemma_read_call(const call_text *c, str *name, str *arguments, size_t *n_read);
call_head gemma_read_head(const char *s, size_t n);

#endif
