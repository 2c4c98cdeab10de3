/* grammar_plain.h - the meaning of grammars without automata: a matcher that tries everything.
 *
 * It works on the expressions, character by character, with backtracking. That takes exponential
 * time, so it is for small texts; it returns -1 when it would take too long.
 */
#ifndef TESTS_GRAMMAR_PLAIN_H
#define TESTS_GRAMMAR_PLAIN_H

#include "text/grammar_int.h"

typedef struct plain {
    const gx_builder *b;
    bool *productive; /* [b->n_rules] */
} plain;

bool plain_open(plain *p, const gx_builder *b); /* false: no memory */
void plain_close(plain *p);
/* Is s a text of x? prefix: or can it be completed to one? 1, 0, or -1. */
int plain_match(const plain *p, const gx *x, const char *s, size_t n, bool prefix);

#endif
