/* replay.h - the tokens of calls as they were sampled, by the ids that clients know them by.
 *
 * A client sends a call back as JSON, and a prompt made of that JSON need not have the tokens that
 * the model wrote: members in another order, other spaces, numbers spelled anew. Then the cache
 * would end at the call. So the tokens are remembered, and put into later prompts where the same
 * call, by its id and by what it says, stands.
 *
 * Any thread; what is remembered has a limit in bytes, beyond which the oldest goes.
 */
#ifndef APPS_SERVER_REPLAY_H
#define APPS_SERVER_REPLAY_H

#include "base/err.h"
#include "text/jtree.h"

typedef struct replay replay;

status replay_open(replay **r, err *e);
void replay_close(replay *r); /* NULL is fine */
/* ids: from the mark that opens a call to the one that closes it. Without memory it is forgotten.
 * arguments: JSON. */
void replay_put(replay *r, const char *id, const char *name, const char *arguments,
                const int32_t *ids, int64_t n);
/* A conversation in the OpenAI shape, and the prompt that was made of it. */
typedef struct replay_prompt {
    const char *messages;
    size_t n_messages;
    const int32_t *ids;
    int64_t n;
    int32_t open, close; /* the marks around calls */
} replay_prompt;

/* The prompt with the calls in it as they were sampled: new memory (mem_free) of *n_out ids, or
 * NULL if nothing was to be replaced. */
int32_t *replay_apply(replay *r, const replay_prompt *p, int64_t *n_out);

/* The same value, whatever the order of members and the spelling of numbers. */

bool same_json_value(const jtree *a, const jtree *b);

#endif
