/* constrain.h - what an answer is held to while it is sampled: structured output, calls that must
 * come, and that there is an answer at all.
 *
 * Opened and closed by the connection's thread; in between, from submit to done, it belongs to the
 * thread that runs passes.
 */
#ifndef APPS_SERVER_CONSTRAIN_H
#define APPS_SERVER_CONSTRAIN_H

#include "apps/server/server.h"

typedef struct constraint constraint;

/* For the grammars of all answers to one request. One grammar takes a second at most, by the
 * library's budget. */
enum { CONSTRAINT_MAX_MS = 10 * 1000 };

/* What an answer is held to. */
typedef struct constraint_plan {
    const request *rq;
    bool thinking;        /* the answer may begin with a thought */
    bool starts_thinking; /* the prompt ends in one */
    int fd;               /* of the connection: a client that left needs no grammar */
    double until_ms;      /* clock_ms by which the grammars of all answers must be there */
} constraint_plan;

/* *c may come out NULL: nothing to hold to. */
bool constraint_open(constraint **c, server *s, const constraint_plan *plan, problem *p);
void constraint_close(constraint *c); /* NULL is fine */
const carat_mask *constraint_mask(constraint *c);
const char *constraint_failure(const constraint *c); /* why it could not be followed, or "" */

#endif
