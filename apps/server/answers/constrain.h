/* constrain.h - constraints of an answer while it is sampled: structured output, forced calls, and
 * that the answer is not empty.
 *
 * The connection's thread opens and closes a constraint. From submit to done it belongs to the
 * thread that runs passes.
 */
#ifndef APPS_SERVER_CONSTRAIN_H
#define APPS_SERVER_CONSTRAIN_H

#include "apps/server/models/served.h"

typedef struct constraint constraint;

/* Time for compiling the grammars of all answers to one request. The library's budget for one
 * grammar is about a second. */
enum { CONSTRAINT_MAX_MS = 10 * 1000 };

/* What constraint_open needs of a job. */
typedef struct constraint_plan {
    const request *rq;
    bool thinking;        /* the answer may begin with a thought */
    bool starts_thinking; /* the prompt ends inside a thought */
    int fd;               /* of the connection: compiling stops if the client leaves */
    double until_ms;      /* the end of CONSTRAINT_MAX_MS, in clock_ms */
} constraint_plan;

/* *c is NULL if there is no constraint. */
bool constraint_open(constraint **c, served *m, const constraint_plan *plan, problem *p);
void constraint_close(constraint *c); /* NULL is fine */
const carat_mask *constraint_mask(constraint *c);
const char *constraint_failure(const constraint *c); /* why no token was allowed, or "" */

#endif
