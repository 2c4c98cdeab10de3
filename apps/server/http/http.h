/* http.h - listening, connections, and their end. */
#ifndef APPS_SERVER_HTTP_H
#define APPS_SERVER_HTTP_H

#include "apps/server/server.h"

typedef struct http http;
/* Takes the port, which is *port, and learns who can connect (server.loopback). */
status http_open(http **h, server *s, int *port, err *e);
/* Listens, and answers 503 until the server is ready. */
status http_start(http *h, err *e);
void http_stop_accepting(http *h);
void http_close(http *h); /* waits until all connections are closed */

#endif
