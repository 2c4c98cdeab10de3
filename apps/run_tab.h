/* run_tab.h - what the Tab key offers in a conversation: /commands, their words, files. */
#ifndef APPS_RUN_TAB_H
#define APPS_RUN_TAB_H

#include "base/str.h"

enum { TAB_MAX = 400 }; /* names that are collected */

typedef struct tab_choices {
    char *at[TAB_MAX]; /* names that fit, in order; directories end in a slash */
    size_t n;
    bool more;  /* there are further ones */
    str insert; /* what all of them begin with beyond the typed part, quoted as the line needs it;
                 * of a single name its end, too: a space, or a quote */
} tab_choices;

/* line[0..n): the text in front of the cursor, UTF-8. False, with nothing to free: no memory. */
bool tab_find(const char *line, size_t n, tab_choices *c);
void tab_free(tab_choices *c);
/* Prints the names in columns on stderr. */
void tab_print(const tab_choices *c, int columns);

#endif
