/* scorer.h - scores of a timeline's pages by a small model: kv_policy "drafter".
 *
 *     target's tokens   |  page 0  |  page 1  |  page 2  |     64 each
 *     text              The   re   is  an   an  ci ent   ...
 *     scorer's tokens   There is an ancient ...                each belongs to the page that has
 *                                                              the middle of its bytes
 *
 * The score of a page is the mean importance of its tokens (carat_importance): how much the last
 * eight tokens of the text attend to them, before the rotation, by the head of any layer that does
 * so most. So the scorer may have another vocabulary. It needs none of the target's keys.
 *
 * The scorer has a session of its own for each timeline, with keys of its own: a later text begins
 * like the one before, and only its end is computed. Tokens beyond the scorer's context leave at
 * the front; pages without a token have the score 0.
 *
 * Scores follow from the tokens alone. The thread that runs the timeline's passes calls, between
 * passes, without the target's pass lock.
 */
#ifndef ENGINE_SCORER_H
#define ENGINE_SCORER_H

#include "carat.h"

typedef struct page_scorer page_scorer;

/* For timelines of `target` of up to n_ctx tokens. E_ARG: the target was opened without a scorer
 * (carat_model_options.scorer), or one of the two has no vocabulary. E_UNSUPPORTED: the scorer's
 * family does not tell what a text attends to. E_MEMORY. */
carat_status page_scorer_open(page_scorer **out, const carat_model *target, int32_t n_ctx,
                              carat_error *e);
void page_scorer_close(page_scorer *s); /* NULL is fine */
/* Host memory of the scorers of n_seqs such timelines: the weights once, and a session, scores and
 * the tokens of a whole context for each. The text of a context is beside it. */
carat_status page_scorer_bytes(const carat_model *target, int32_t n_ctx, int32_t n_seqs,
                               uint64_t *n_bytes, carat_error *e);

/* score[pages of n tokens] for ids[0..n) of the target. */
carat_status page_scorer_ask(page_scorer *s, const int32_t *ids, int64_t n, float *score,
                             carat_error *e);

#endif
