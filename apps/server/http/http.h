/* http.h - listening, connections, and their end. */
#ifndef APPS_SERVER_HTTP_H
#define APPS_SERVER_HTTP_H

#include "apps/server/server.h"

typedef struct http http;
/* Listens, and answers 503 until the server is ready. *port: the port in use. */
status http_open(http **h, server *s, int *port, err *e);
void http_stop_accepting(http *h);
void http_close(http *h); /* waits until all connections are closed */

#endif
