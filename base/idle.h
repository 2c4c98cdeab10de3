/* idle.h - how threads wait that must answer within microseconds while there is work, and cost
 * nothing when there is none.
 *
 *     since the last work    2 ms      0.2 s           a minute
 *                   polls    |  naps of 50 us   |  of 1 ms  |  sleeps, and looks twice a second
 *
 * Whoever expects work soon wakes them. All threads of one `idle` wait for the same work. Times are
 * of the monotonic clock, so a user who sets the wall clock changes nothing.
 */
#ifndef BASE_IDLE_H
#define BASE_IDLE_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct idle {
    _Alignas(64) atomic_int_least64_t woken_ns, awake_ns;
    atomic_int n_sleeping;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool open;
} idle;

/* A thread's own state. */
typedef struct idler {
    int64_t active_ns; /* when it last worked; 0: just now */
    unsigned looks;
} idler;

/* *i is zeroed before; one that was not opened may be stopped and closed. */
void idle_open(idle *i);
void idle_close(idle *i); /* its threads have ended */
/* Any thread; cheap. */
void idle_wake(idle *i);
/* Asks the threads to end: idle_stopped tells them. */
void idle_stop(idle *i);
static inline bool idle_stopped(const idle *i)
{
    return atomic_load_explicit(&i->stop, memory_order_relaxed);
}

void idler_begin(idler *t);
/* Between two looks for work. worked: the last look found some. ready: is there work? Asked before
 * a sleep, with the lock held. */
void idle_between(idle *i, idler *t, bool worked, bool (*ready)(void *), void *user);

#endif
