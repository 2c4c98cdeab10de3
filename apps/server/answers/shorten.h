/* shorten.h - the prompts of a request, shortened before they become tokens (prompt compression).
 *
 *     connection:  shorten_start -> shorten_wait, with pings in between -> results
 *     thread:      carat_compress_chat -> texts to score -> jobs of a batch (carat_job.importance)
 *
 * Scoring a long text takes as long as its prompt, so a thread of its own does it, and the
 * connection's thread goes on sending pings. Texts are scored in the batch of --compress-model, or
 * in the request's own one, among its other jobs. The connection's thread owns a shortening.
 */
#ifndef APPS_SERVER_SHORTEN_H
#define APPS_SERVER_SHORTEN_H

#include "apps/server/models/catalog.h"

typedef struct shortening shortening;

/* Read until the end; strings, too. */
typedef struct shorten_ask {
    served *m; /* the request's model; a reference is held until shorten_close */
    carat_compress_options opt;
    const carat_talk *talk; /* a conversation, or raw prompts */
    carat_chat_options chat;
    const raw_prompt *prompt; /* [n_prompts]; NULL: a conversation */
    int32_t n_prompts;
} shorten_ask;

bool shorten_start(shortening **x, const shorten_ask *ask, problem *p);
/* PICK_WAITS: not done after timeout_ms (< 0: no limit). PICK_FAILED: p says why, such as that the
 * client left. */
pick_state shorten_wait(shortening *x, const request *rq, int fd, int timeout_ms, problem *p);
/* After PICK_DONE: one of the conversation, or one of each prompt. Valid until shorten_close. */
const carat_compressed *shorten_results(const shortening *x, int32_t *n, double *ms);
const char *shorten_scorer(const shortening *x); /* the model's name, which it owns */
void shorten_close(shortening *x);               /* ends the thread; NULL is fine */

#endif
