/* live.h - a running request: its jobs in the batch, and a mailbox of events from the thread that
 * runs passes to the thread of the connection.
 *
 *     passes:      callbacks copy events into the mailbox and list the live for the waker
 *     waker:       writes to the eventfd of each listed live, during the next pass
 *     connection:  live_wait sleeps on the eventfd and the socket, live_next takes events out
 *
 * Waking a thread takes as long as a kernel of the device. So the thread that runs passes wakes one
 * thread only, the waker, however many answers a pass has.
 *
 * The connection's thread opens and closes a live. Closing cancels the jobs and waits for their
 * last callback, so no callback uses a closed live.
 */
#ifndef APPS_SERVER_LIVE_H
#define APPS_SERVER_LIVE_H

#include "apps/server/models/served.h"

typedef struct live live;

typedef struct live_job {
    const int32_t *ids; /* the prompt; valid until live_close */
    int64_t n;
    carat_generate_options opt;
    float *embedding; /* not NULL: no answer; as in carat_job, valid until live_close */
    carat_pooling pooling;
    float *importance; /* the same with the values of tokens */
} live_job;

typedef enum live_state {
    LIVE_EVENTS, /* the mailbox has events */
    LIVE_QUIET,  /* no event in timeout_ms */
    LIVE_GONE,   /* the client closed the connection */
    LIVE_BROKEN  /* out of memory: events are missing */
} live_state;

typedef struct live_plan {
    const live_job *job;
    int32_t n;
    bool one_call; /* a job ends with its first call */
    bool keep_ids; /* keeps the sampled tokens, for traces */
} live_plan;

/* Submits all jobs or none. */
bool live_open(live **l, served *m, const live_plan *plan, problem *p);
void live_cancel(live *l); /* cancels the jobs and waits for their end */
void live_close(live *l);  /* cancels first; NULL is fine */
live_state live_wait(live *l, int fd, int timeout_ms);
/* The next event; its pointers are valid until the next live_wait. False: none now. */
bool live_next(live *l, choice_event *h);
/* The other side has closed the connection. */
bool client_left(int fd);
bool live_over(const live *l);       /* the end of every job was taken out */
double live_first_ms(const live *l); /* clock_ms of the first token; 0: none yet */
const int32_t *live_sampled(const live *l, int32_t job, int64_t *n); /* with keep_ids, when over */

/* The waker. The thread that runs passes calls waker_go after each. */
status waker_start(waker *r, err *e);
void waker_go(waker *r);
void waker_stop(waker *r); /* wakes once more; does nothing if not started */

#endif
