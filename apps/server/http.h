/* http.h - the server's connections, from listening to closing. */
#ifndef APPS_SERVER_HTTP_H
#define APPS_SERVER_HTTP_H

#include "apps/server/server.h"

typedef struct http http;
/* Listens; answers 503 until the server is ready. *port: the one that was taken. */
status http_open(http **h, server *s, int *port, err *e);
void http_stop_accepting(http *h);
void http_close(http *h); /* waits for the connections to end */

#endif
