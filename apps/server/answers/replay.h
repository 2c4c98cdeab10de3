/* replay.h - the sampled tokens of tool calls, kept by the ids of the calls.
 *
 * A client sends a call back as JSON. A prompt rendered from that JSON may have other tokens than
 * the model sampled: members in another order, other spaces, other spellings of numbers. The cached
 * prefix would then end at the call. So later prompts get the sampled tokens wherever a call has
 * the same id and the same content.
 *
 * Thread-safe. Beyond a limit of bytes the oldest calls are dropped.
 */
#ifndef APPS_SERVER_REPLAY_H
#define APPS_SERVER_REPLAY_H

#include "base/err.h"
#include "text/talk.h"

typedef struct replay replay;

status replay_open(replay **r, err *e);
void replay_close(replay *r); /* NULL is fine */
/* ids: from the opening mark of a call to its closing mark. arguments: JSON. Without memory the
 * call is not kept. */
void replay_put(replay *r, const char *id, const char *name, const char *arguments,
                const int32_t *ids, int64_t n);
/* A conversation and its prompt. */
typedef struct replay_prompt {
    const carat_talk *talk;
    const int32_t *ids;
    int64_t n;
    int32_t open, close; /* the marks around calls */
} replay_prompt;

/* The prompt with the sampled tokens of its calls: *n_out ids (mem_free), or NULL if no call is
 * known. */
int32_t *replay_apply(replay *r, const replay_prompt *p, int64_t *n_out);

#endif
