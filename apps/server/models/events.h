/* events.h - what happens to the models of a server, for clients that watch (GET /models/sse).
 *
 *     loader.c, pulls.c, router.c -> events_add -> a ring -> a feed for each client that reads
 *
 * Without a reader nothing is kept. A reader that is too slow for the ring loses the oldest events,
 * and is told to read the list of models again. Any thread may call in, also under the catalog's
 * lock.
 */
#ifndef APPS_SERVER_EVENTS_H
#define APPS_SERVER_EVENTS_H

#include "apps/server/http/exchange.h"

typedef struct events events;

status events_open(events **v, err *e);
void events_close(events *v); /* no feed is open; NULL is fine */
/* data: the text of a JSON object; NULL: none. v NULL: nothing. */
void events_add(events *v, const char *model, const char *event, const char *data);
/* Answers x with all events from now on. */
void events_follow(events *v, exchange *x);

#endif
