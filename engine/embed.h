/* embed.h - a text as a vector: the hidden rows of its tokens, pooled.
 *
 * A hidden row is the last layer's output after the model's final norm, before the output head.
 * MEAN adds up the rows of all tokens, so it computes every token and reuses no prefix. LAST takes
 * the row of the last token.
 *
 *     embedding_open
 *     embedding_begin                     the timeline that computes it
 *     do embedding_part, run_pass, embedding_take while (!embedding_done)
 *     embedding_write, embedding_close
 *
 * Sums are in f64, in the order of positions: chunk sizes do not change a bit of the result where
 * they change no bit of a row. One thread at a time; only open and close allocate.
 *
 * The importance of a text's tokens (importance.h) goes through a batch in the same way: prompts
 * without answers, whose last passes are hidden. So such a job is an embedding of another kind.
 */
#ifndef ENGINE_EMBED_H
#define ENGINE_EMBED_H

#include "engine/importance.h"

typedef struct embedding embedding;

/* Begins the embedding of one text. The caller closes *x. E_ARG: no such pooling; E_MEMORY. */
status embedding_open(embedding **x, const carat_model *m, carat_pooling pooling, err *e);
/* The importance of n tokens, as importance_open. */
status embedding_open_importance(embedding **x, carat_model *m, const kv_layout *l,
                                 const workspace *w, int32_t chunk, int64_t n, err *e);
void embedding_close(embedding *x);                /* NULL is fine */
bool embedding_reuses_nothing(const embedding *x); /* it computes every token again */
/* Of an encoder the rows of the text, which must be in one pass; else 0: any will do. */
int32_t embedding_whole_rows(const embedding *x);
/* Prepares t for the prompt ids[0..n), which stay valid until the end. */
void embedding_begin(embedding *x, timeline *t, const int32_t *ids, int64_t n);
/* Is the next part of a hidden pass, if it has at most `rows` rows? Else it is a plain part of a
 * prompt without wanted rows, which may share a pass with others'. */
bool embedding_wants_hidden(const embedding *x, const timeline *t, int32_t rows);
/* The next part, of at most `rows` rows; hidden: as embedding_wants_hidden of these rows. */
pass_part embedding_part(const embedding *x, timeline *t, int32_t rows, bool hidden);
/* After run_pass: takes and keeps the part's rows. */
status embedding_take(embedding *x, carat_model *m, const workspace *w, const pass_part *part,
                      err *e);
/* Must the next part be the only one of its pass? */
bool embedding_is_alone(const embedding *x, const timeline *t);
bool embedding_done(const embedding *x, const timeline *t);
void embedding_write(const embedding *x, float *out); /* [n_embd]; importance: [n] */

/* The most rows of a hidden pass whose rows are all wanted: as many as fit the scratch that the
 * session has for its other passes, at most `chunk`. 1 or more. */
int32_t workspace_hidden_rows(workspace *w, const carat_model *m, const kv_layout *l,
                              int32_t chunk);

#endif
