/* term_wrap.h - a stream of text on a terminal, broken between words.
 *
 * Text comes in pieces of any size. A word is held back until it is complete, so that one that does
 * not fit begins the next line. Lines of fenced code pass as they are, because a break would change
 * them. Characters that would drive a terminal are escaped on the way (base/show.h).
 *
 * The locale must be one of UTF-8: wcwidth knows wide characters and combining marks by it.
 */
#ifndef APPS_TERM_WRAP_H
#define APPS_TERM_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { WRAP_HELD_BYTES = 1024 }; /* of a word with its combining marks */

typedef struct word_wrap {
    int column;                 /* cells before the cursor */
    int gap;                    /* cells of space before the held word */
    char held[WRAP_HELD_BYTES]; /* the word */
    size_t n_held;              /* its bytes */
    int held_cells, last_cells; /* its cells; those of its last character */
    bool joins;                 /* its last character joins the next one (U+200D) */
    bool is_rest;               /* its beginning is on the terminal already */
    bool in_line;               /* the line has more than space and fence marks */
    bool fenced;                /* in a fenced block */
    char fence;                 /* which mark: ` or ~ */
    int n_fence;                /* marks at the beginning of this line */
} word_wrap;

/* A zeroed word_wrap is at the beginning of a line. columns: the terminal's width, 0 if unknown. */
void wrap_put(word_wrap *w, FILE *f, int columns, const char *text, size_t n);
void wrap_flush(word_wrap *w, FILE *f, int columns); /* the held word, complete or not */

#endif
