/* toy_vocab.h - small vocabularies of the Gemma kind, for tests.
 *
 * A list of pieces that is easy to fill. It is kept beside the vocabulary made from it, so that a
 * test can also read the spelled-out pieces and merges.
 */
#ifndef TESTS_TOY_VOCAB_H
#define TESTS_TOY_VOCAB_H

#include "base/str.h"
#include "text/vocab.h"
#include "tests/auto.h"

enum { TOY_MAX_PIECES = 4096, TOY_MAX_MERGES = 8192 };

typedef struct toy_piece {
    char *at;
    size_t n;
    int type;
} toy_piece;

typedef struct toy_merge {
    int32_t left, right, merged;
} toy_merge;

typedef struct toy {
    int32_t n_pieces, n_merges;
    toy_piece piece[TOY_MAX_PIECES];
    toy_merge merge[TOY_MAX_MERGES];
    vocab *v;
} toy;

toy *toy_new(void);
void toy_free(toy *t);
RELEASED_AT(toy_free, toy)
int32_t toy_find(const toy *t, const char *piece, size_t n);
/* Adds unless the spelling exists; returns its id. */
int32_t toy_add(toy *t, const char *piece, size_t n, int type);
bool toy_merge_pieces(toy *t, int32_t left, int32_t right, int type); /* false: exists or full */
status toy_build(toy *t, err *e);                                     /* fills t->v */

/* The markers of the Gemma 4 chat format, bytes, printable ASCII, the space mark and line feeds,
 * with a few merges: enough to render and encode chat prompts. */
toy *toy_gemma(void);

#endif
