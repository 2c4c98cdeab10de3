/* live.h - a request at work: its jobs in the batch, and the mailbox in which the thread that runs
 * passes leaves what happened for the thread that serves the connection.
 *
 *     passes:      live's callbacks copy events into the box, and ask for the bell to be rung
 *     ringer:      rings the bells of all that were written to, while the next pass is under way
 *     connection:  live_wait sleeps on the bell and on the socket, live_next takes events out
 *
 * To ring is to wake a thread, which takes the device as long as a kernel: a pass of many answers
 * wakes one thread alone, the ringer.
 *
 * The connection's thread opens and closes it; closing cancels what still runs and waits for it, so
 * no callback ever finds a live that is gone.
 */
#ifndef APPS_SERVER_LIVE_H
#define APPS_SERVER_LIVE_H

#include "apps/server/server.h"

typedef struct live live;

typedef struct live_job {
    const int32_t *ids; /* the prompt; must live as long as the live */
    int64_t n;
    carat_generate_options opt;
} live_job;

typedef enum live_state {
    LIVE_EVENTS, /* something is in the box */
    LIVE_QUIET,  /* nothing for timeout_ms */
    LIVE_GONE,   /* the client closed the connection */
    LIVE_BROKEN  /* out of memory: events are missing */
} live_state;

typedef struct live_plan {
    const live_job *job;
    int32_t n;
    bool one_call; /* a job ends with its first call */
    bool keep_ids; /* remembers what was sampled, for traces */
} live_plan;

/* Submits all jobs or none. */
bool live_open(live **l, server *s, const live_plan *plan, problem *p);
void live_cancel(live *l); /* ends what still runs, and waits for that */
void live_close(live *l);  /* cancels first; NULL is fine */
live_state live_wait(live *l, int fd, int timeout_ms);
/* The next happening; pointers in it live until the next live_wait. False: none is left now. */
bool live_next(live *l, happening *h);
/* Is the other side of a connection gone? */
bool client_left(int fd);
bool live_over(const live *l);       /* every job's end has been taken out */
double live_first_ms(const live *l); /* clock_ms of the first token; 0: none yet */
const int32_t *live_sampled(const live *l, int32_t job, int64_t *n); /* with keep_ids, when over */

/* The ringer. The thread that runs passes calls ringer_go after each. */
status ringer_start(ringer *r, err *e);
void ringer_go(ringer *r);
void ringer_stop(ringer *r); /* rings what is left; nothing if it was not started */

#endif
