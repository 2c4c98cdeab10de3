/* importance.h - how much the end of a text attends to each of its tokens, pass by pass.
 *
 *     importance_open
 *     importance_begin                    the timeline that computes it
 *     do importance_part, run_pass        importance_take of the parts of the tail; others are
 *     while (n_past < n)                  committed like any prompt's
 *     importance_write, importance_close
 *
 * carat_importance runs it in a session, embed.c as a job of a batch. One thread at a time; only
 * open and close allocate.
 */
#ifndef ENGINE_IMPORTANCE_H
#define ENGINE_IMPORTANCE_H

#include "engine/engine_int.h"

typedef struct importance importance;

uint64_t importance_bytes(int64_t n); /* what one for n tokens takes */

/* Of a text of n tokens, by passes of a workspace w. E_ARG, E_UNSUPPORTED, E_MEMORY: as
 * carat_importance. Takes the model's pass_lock for a moment. */
status importance_open(importance **x, carat_model *m, const kv_layout *l, const workspace *w,
                       int32_t chunk, int64_t n, err *e);
void importance_close(importance *x); /* NULL is fine */
/* Prepares t for the text ids[0..n), which stays valid until the end. */
void importance_begin(importance *x, timeline *t, const int32_t *ids);
/* Is the next part one of the tail? Those are hidden, and alone in their passes. */
bool importance_at_tail(const importance *x, const timeline *t);
/* The next part, of at most `most` rows. Valid until the next call. */
pass_part importance_part(importance *x, timeline *t, int32_t most);
/* After run_pass of a part of the tail: takes and commits its rows. */
status importance_take(importance *x, carat_model *m, const pass_part *part, err *e);
void importance_write(importance *x, float *out); /* [n] */

#endif
