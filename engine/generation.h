/* generation.h - one answer in the making: from logits to tokens, events and an end.
 *
 * A generation is a state machine. It runs no passes and owns no keys: the driver (answers.c) gives
 * it the logits of a row, and gets the token to compute next. All rules on tokens are in decode.c.
 *
 *     generation_open
 *     generation_reuses, generation_tell_prefill ...            while the prompt is computed
 *     do generation_next(g, t, n, w, logits) while (!generation_ended(g)) compute g's token,
 *                                             with logits as generation_needs(g) says
 *     generation_finish                      resolves withheld text, sends END
 *     generation_close
 *
 * One thread at a time. generation_next allocates nothing.
 */
#ifndef ENGINE_GENERATION_H
#define ENGINE_GENERATION_H

#include "engine/engine_int.h"

typedef struct generation generation;

/* opt NULL: the model's defaults. Arrays and strings of opt are borrowed. */
status generation_open(generation **g, const carat_model *m, const carat_generate_options *opt,
                       carat_event_fn fn, void *user, err *e);
void generation_close(generation *g); /* NULL is fine */

void generation_reuses(generation *g, int64_t n); /* prompt tokens already in the cache */
/* False if the caller's callback has cancelled. */
bool generation_tell_prefill(generation *g, int64_t done, int64_t total);
/* Reports the prompt's next token, from the logits [n_vocab] of the row before it; NULL: the first
 * token, and no sampler. */
void generation_tell_prompt(generation *g, const float *logits, int32_t id, sampler *s);
/* The next token depends on this many of the largest logits only; 0: on all logits. */
int32_t generation_needs(const generation *g);
/* Samples the token at position n from the logits of row n - 1, which it changes, and applies every
 * rule that may end the answer. t->id[0..n) are the tokens before it: the committed ones and, from
 * kv.n_past on, tokens whose rows are computed but not committed. After an error only
 * generation_close is allowed. */
status generation_next(generation *g, const timeline *t, int64_t n, workspace *w, row_logits logits,
                       err *e);
int32_t
generation_token(const generation *g); /* the last token: the next to compute, unless ended */
/* Ends the answer from outside. The first reason stands. */
void generation_stop(generation *g, carat_finish why);
bool generation_ended(const generation *g);
status generation_finish(generation *g, err *e);

/* The options of the answer; they belong to g. */
const carat_generate_options *generation_options(const generation *g);
/* The most tokens that may still come. */
int32_t generation_left(const generation *g);

/* For reports. */
int64_t generation_count(const generation *g); /* tokens so far */
/* Fills in the counts of tokens and the finish reason. */
void generation_report(const generation *g, carat_timings *t);

#endif
