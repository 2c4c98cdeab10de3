/* dry.h - DRY: how long a repetition each token would continue.
 *
 *     past          a b c : d e f g h    d e f
 *     a token g repeats "d e f", 3 tokens; with an allowed length of 2 its count is 3
 *
 * A token's count is the length of the longest suffix of the past that occurs earlier and was
 * followed by that token. Matches reach back to the last breaker at most. A breaker is a text; it
 * is found in tokens whose text has it, or ends with its beginning when the tokens of the rest
 * follow. Tokens that have a whole breaker are never counted.
 *
 * Matches are found by the Z algorithm over the reversed past, in linear time.
 */
#ifndef ENGINE_DRY_H
#define ENGINE_DRY_H

#include "text/vocab.h"

typedef struct dry_breakers dry_breakers;

enum {
    DRY_BREAKERS_MAX = 32,
    DRY_BREAKER_BYTES = 40, /* longer ones are cut */
    DRY_TAIL_TOKENS = 20    /* of a breaker after its head */
};

/* Compiles p->dry_breakers for a vocabulary. *d is read-only afterwards. */
status dry_open(dry_breakers **d, const vocab *v, const carat_sampling *p, err *e);
void dry_close(dry_breakers *d); /* NULL is fine */
/* The tokens that p lets DRY look back. */
int64_t dry_window(const carat_sampling *p, int64_t n_past);
/* Sets count[id] to 1 + the tokens that a repetition by id exceeds the allowed length by. Only ids
 * of the window are set. d may be NULL. match: [dry_window] of work space. False: none was set. */
bool dry_count(const dry_breakers *d, const carat_sampling *p, const int32_t *past, int64_t n_past,
               int32_t n_vocab, int32_t *match, int32_t *count);
/* What a token with this count loses. Finite. */
float dry_penalty(const carat_sampling *p, int32_t count);

#endif
