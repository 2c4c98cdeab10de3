/* routes.h - the table of paths: who may ask, which handler answers, how its errors are written.
 *
 * A new endpoint is a row in routes.c and a handler. Nothing here knows a connection.
 */
#ifndef APPS_SERVER_ROUTES_H
#define APPS_SERVER_ROUTES_H

#include "apps/server/exchange.h"

typedef enum who { ANYONE, KEY_HOLDERS } who;

typedef struct route {
    const char *method, *path; /* a path that ends in '/' takes whatever follows, too */
    void (*handle)(exchange *x);
    who who;
    bool needs_model;
    metrics_route metric;
    const dialect *errors;
} route;

enum { METHODS_BYTES = 48 };

/* HEAD finds the row of GET. NULL: no such path, or the path has other methods. */
const route *find_route(const char *method, const char *path);
/* The methods of a path, as the header Allow lists them; "*" is the whole server. False: no such
 * path. */
bool route_methods(const char *path, char out[METHODS_BYTES]);
/* Writes the errors of a path: of its route, or what clients of its prefix expect. */
const dialect *route_errors(const char *path);

#endif
