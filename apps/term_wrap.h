/* term_wrap.h - breaks a stream of text between words, for a terminal.
 *
 * Text comes in pieces of any size. A word is held back until it is complete. If it does not fit,
 * it moves to the next line. Fenced code is not broken, because a line break would change it.
 * Control characters are escaped (base/show.h).
 *
 * The locale must be one of UTF-8: wcwidth gives the cells of wide characters and combining marks.
 */
#ifndef APPS_TERM_WRAP_H
#define APPS_TERM_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { WRAP_HELD_BYTES = 1024 }; /* of a word with its combining marks */

typedef struct word_wrap {
    int column;                 /* cells to the left of the cursor */
    int gap;                    /* cells of space between the cursor and the held word */
    char held[WRAP_HELD_BYTES]; /* the word */
    size_t n_held;              /* its bytes */
    int held_cells, last_cells; /* cells of the word, and of its last character */
    bool joins;                 /* the word ends with U+200D, which joins the next character */
    bool is_rest;               /* the beginning of the word is printed already */
    bool in_line;               /* the line has other characters than spaces and fence marks */
    bool fenced;                /* in a fenced block */
    char fence;                 /* the mark of the fence: ` or ~ */
    int n_fence;                /* fence marks at the beginning of the line */
} word_wrap;

/* A zeroed word_wrap begins a line. columns: the terminal's width; 0: unknown, no line breaks. */
void wrap_put(word_wrap *w, FILE *f, int columns, const char *text, size_t n);
void wrap_flush(word_wrap *w, FILE *f, int columns); /* prints the held word, complete or not */

/* The rest is for help, which is ASCII. Prints words, and a newline, so that no line is longer than
 * `width`, unless a word is. The first line stands at column `at`; the others begin at `indent`. */
void wrap_words(FILE *f, const char *s, size_t n, int at, int indent, int width);
/* A name, and from column `indent` on what it is; below the name where that leaves too little. */
void wrap_row(FILE *f, const char *left, const char *help, int indent, int width);

#endif
