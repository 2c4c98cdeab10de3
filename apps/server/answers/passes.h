/* passes.h - the loop of passes: the batches of all loaded models take turns in one thread.
 *
 * A turn is one pass of one batch. While several batches have work, passes with prompts are cut so
 * that an answer waits for the others at most about --token-gap ms, unless that is 0. Work is
 * announced with passes_wake; served_submit and served_cancel do so.
 */
#ifndef APPS_SERVER_PASSES_H
#define APPS_SERVER_PASSES_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct server;
struct served;

enum { PASSES_MAX = 64 }; /* batches in the loop */

typedef struct passes {
    pthread_mutex_t lock; /* of all fields but the last */
    pthread_cond_t work, gone;
    struct served *at[PASSES_MAX];
    int32_t n;
    bool woken, ended;
    atomic_ullong
        busy_us; /* microseconds of turns with work: their passes and the time between passes */
} passes;

void passes_init(passes *p);
void passes_free(passes *p);
/* Runs passes until the server drains and its requests are answered or --drain seconds are over.
 */
void passes_run(struct server *s);
/* Halts all batches (served_halt) and takes no more. The thread of the loop, after it. */
void passes_end(struct server *s);
void passes_wake(struct server *s); /* any thread */
/* Any thread. False: the loop has ended, or it has PASSES_MAX batches. */
bool passes_add(struct server *s, struct served *m);
/* Waits until the loop has halted the model's batch and forgotten it. Not the thread of the loop.
 */
void passes_remove(struct server *s, struct served *m);

#endif
