/* router.h - llama-server's router: loading and unloading by hand, pulling, removing, events. */
#ifndef APPS_SERVER_ROUTER_H
#define APPS_SERVER_ROUTER_H

#include "apps/server/http/exchange.h"

void handle_load(exchange *x);
void handle_unload(exchange *x);
void handle_model_pull(exchange *x);   /* POST /models */
void handle_model_remove(exchange *x); /* DELETE /models */
void handle_model_events(exchange *x); /* GET /models/sse */

/* The pulls at work, and those that failed, as models of the list. */
void router_put_pulls(exchange *x);

#endif
