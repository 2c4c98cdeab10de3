/* generation.h - one answer in the making: from logits to tokens, events and an end.
 *
 * A generation is a state machine that owns no loop over passes and no keys: whoever runs passes
 * (carat_generate for one, a batch for many) hands it the logits of a timeline's last row and is
 * told which token to compute next, if any. All rules on tokens live in decode.c.
 *
 *     generation_open
 *     generation_reuses, generation_tell_prefill ...            while the prompt is computed
 *     do generation_next(g, t, n, w, logits) while (!generation_ended(g)) compute g's token,
 *                                             with logits as generation_needs(g) says
 *     generation_finish                      decides text that was held back, tells END
 *     generation_close
 *
 * One thread at a time. next allocates nothing.
 */
#ifndef ENGINE_GENERATION_H
#define ENGINE_GENERATION_H

#include "engine/engine_int.h"

typedef struct generation generation;

/* opt NULL: the model's defaults. What opt points at is borrowed. */
status generation_open(generation **g, const carat_model *m, const carat_generate_options *opt,
                       carat_event_fn fn, void *user, err *e);
void generation_close(generation *g); /* NULL is fine */

void generation_reuses(generation *g, int64_t n); /* tokens of the prompt, that need no passes */
/* False when the caller's callback has refused to go on. */
bool generation_tell_prefill(generation *g, int64_t done, int64_t total);
/* Of how many of the largest logits the next token will be taken; 0: it wants to see all. */
int32_t generation_needs(const generation *g);
/* Makes the token at position n of the logits of the row before it, which it changes, and applies
 * every rule that may end the answer. t->id[0..n) are the tokens before: those committed and, above
 * kv.n_past, those of rows that are computed only. On an error the generation has failed: close
 * it. */
status generation_next(generation *g, const timeline *t, int64_t n, workspace *w, row_logits logits,
                       err *e);
int32_t generation_token(const generation *g); /* the last one: what to compute unless ended */
/* Ends it from outside; the first reason stands. */
void generation_stop(generation *g, carat_finish why);
bool generation_ended(const generation *g);
status generation_finish(generation *g, err *e);

/* For reports. */
int64_t generation_count(const generation *g); /* tokens so far */
/* Writes what the generation knows of itself: counts, finish. */
void generation_report(const generation *g, carat_timings *t);

#endif
