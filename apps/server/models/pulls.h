/* pulls.h - pulls that go on without the client that asked for them (llama-server's POST /models).
 *
 *     POST /models -> pulls_begin -> a thread: hub_pull -> the store
 *                                              \-> progress: pulls_list, and events
 *     POST /models/unload, the end of the server -> the thread is told to stop
 *
 * A pull that was stopped or failed is continued by the next one of the same model. One that failed
 * stays in the list for a while, so that a client that looks later sees why.
 */
#ifndef APPS_SERVER_PULLS_H
#define APPS_SERVER_PULLS_H

#include "apps/server/models/events.h"

typedef struct pulls pulls;

typedef struct pull_view {
    char name[256];         /* as it was asked for */
    char file[256];         /* at work; "": none yet */
    uint64_t done, total;   /* bytes of that file */
    uint64_t all_done, all; /* of all files; 0: not known yet */
    bool checking;          /* the file is hashed */
    bool failed;
    char text[512]; /* why it failed, or what it waits for; "" */
} pull_view;

status pulls_open(pulls **d, server *s, err *e);
void pulls_stop(pulls *d);  /* ends all pulls; no new ones begin. NULL is fine */
void pulls_close(pulls *d); /* after pulls_stop */
/* Begins a pull, and waits until the hub has said which files it has. A pull of that name that is
 * at work is no mistake. False: a problem. */
bool pulls_begin(pulls *d, const char *name, const exchange *x, problem *p);
/* Ends the pull of that name and takes it off the list. False: none was at work; *failed: one that
 * had failed before was taken off. */
bool pulls_end(pulls *d, const char *name, bool *failed);
/* All of the list, to be freed with mem_free. NULL: no memory. */
pull_view *pulls_list(pulls *d, int32_t *n);

#endif
