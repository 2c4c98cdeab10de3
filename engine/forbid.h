/* forbid.h - tokens that an answer may not have at a place, and tokens that end it.
 *
 *     bad         the last token of a list, where the other tokens of the list come before
 *     only_ids    all tokens but these
 *     min_tokens  tokens that would end the answer, while it is too short
 *
 * The lists of the options are copied. Everything is a function of the tokens before, so drafts
 * that are rejected leave no trace.
 */
#ifndef ENGINE_FORBID_H
#define ENGINE_FORBID_H

#include "engine/engine_int.h"

typedef struct forbidden {
    int32_t n_vocab;
    int32_t *stop; /* [n_stop] */
    int32_t n_stop;
    int32_t *end; /* [n_end]: with min_tokens, all tokens that end an answer */
    int32_t n_end, min_tokens;
    carat_tokens *bad; /* [n_bad], with their ids in bad_ids */
    int32_t *bad_ids;
    int32_t n_bad;
    uint32_t *only; /* a bit per token; NULL: all are possible */
} forbidden;

enum { FORBID_LISTS_MAX = 4096, FORBID_IDS_MAX = 1 << 20 };

/* E_ARG for ids that the model does not have, and for empty lists. */
status forbidden_open(forbidden *f, const carat_model *m, const carat_generate_options *o, err *e);
void forbidden_free(forbidden *f); /* safe on a zeroed or freed one */
/* Is a token forbidden after n_generated tokens, perhaps? */
bool forbids_any(const forbidden *f, int64_t n_generated);
/* Bans tokens for the place after past[0..n). */
void forbid_tokens(const forbidden *f, const int32_t *past, int64_t n, int64_t n_generated,
                   float *logits);
bool forbid_is_stop(const forbidden *f, int32_t id);

#endif
