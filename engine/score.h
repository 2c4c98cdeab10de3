/* score.h - how probable a prompt's tokens were: PROMPT_TOKEN events.
 *
 *     row      0    1    2   ..  n-2  n-1        its logits are those of the next token
 *     scores   id1  id2  id3 ..  id(n-1)  -      the last row is the answer's first
 *
 * Rows 0 .. n-2 are computed by hidden passes. The head then multiplies a few of their rows at a
 * time, in the scratch above them; each row of logits is copied to the host and becomes one event.
 * So a prompt of any length takes one row of logits. Nothing is reused: no cache has logits.
 *
 *     score_begin                                  instead of timeline_prepare
 *     while (score_wants(g, t, n))  score_part, run_pass, score_take
 *     the last row as of any prompt
 */
#ifndef ENGINE_SCORE_H
#define ENGINE_SCORE_H

#include "engine/generation.h"

/* Empties t, and reports the first token. */
void score_begin(generation *g, timeline *t, const int32_t *ids);
/* Has the prompt of n tokens rows to be scored? False without n_prompt_logprobs. */
bool score_wants(const generation *g, const timeline *t, int64_t n);
/* The next part of the prompt ids[0..n), of at most `rows` rows: a hidden part. */
pass_part score_part(timeline *t, const int32_t *ids, int64_t n, int32_t rows);
/* After run_pass: reports the tokens that the part's rows score, and keeps the rows. */
status score_take(generation *g, carat_model *m, workspace *w, const pass_part *part,
                  const int32_t *ids, err *e);
/* The most rows of a hidden pass whose rows are scored: as many as leave room in the scratch for a
 * row of logits. 0: there is none. Only the thread that runs passes. */
int32_t workspace_score_rows(workspace *w, const carat_model *m, const kv_layout *l, int32_t chunk);

#endif
