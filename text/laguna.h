/* laguna.h - declarations shared by the Laguna files. Included by these files and by tests. */
#ifndef TEXT_LAGUNA_H
#define TEXT_LAGUNA_H

#include "text/chat_int.h"
#include "text/family.h"

/* Between U+3008 and U+3009. It begins and ends a sequence. */
#define LAGUNA_EOS "\xE3\x80\x88|EOS|\xE3\x80\x89"

/* The revisions of the template, oldest first. */
enum {
    LAGUNA_LINES,   /* v2, also called v5: marks stand on lines of their own */
    LAGUNA_COMPACT, /* v8: no line feeds around marks */
    N_LAGUNA_FORMATS
};

extern const text_family laguna_text;
extern const chat_format laguna_formats[N_LAGUNA_FORMATS];

/* ---- chat_laguna.c ---- */

/* The format of a file's chat template of n bytes, by what it contains; NULL: not Laguna's. */
const chat_format *laguna_recognise(const char *template_text, size_t n);
/* As gemma_render. */
void laguna_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                   const carat_chat_options *opt);

#endif
