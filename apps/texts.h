/* texts.h - a list of texts, and what a model makes of all of them, for carat embed and carat
 * rerank. */
#ifndef APPS_TEXTS_H
#define APPS_TEXTS_H

#include "base/str.h"
#include "carat.h"

typedef struct text_list {
    const char **at; /* [n] */
    size_t *bytes;   /* [n] */
    int32_t n;
    str lines; /* what the texts of a file lie in */
} text_list;

/* The words of the command line; else the lines of `file`, or of standard input ("-" or NULL).
 * E_ARG names an empty text. */
carat_status texts_read(text_list *t, char *const *words, int n_words, const char *file,
                        carat_error *e);
void texts_free(text_list *t); /* safe on a zeroed or freed one */

/* One text as ids. */
typedef struct text_ids {
    int32_t *id; /* mem_free */
    int64_t n;
} text_ids;

/* The vectors of n texts, several of them in a pass: to[n][width], or one number each of RANK.
 * exact: caches in f32. E_CANCELLED: Ctrl-C. */
carat_status texts_compute(carat_model *m, const text_ids *text, int32_t n, carat_pooling pooling,
                           const carat_session_options *so, float *to, carat_error *e);

#endif
