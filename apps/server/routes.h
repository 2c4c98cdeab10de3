/* routes.h - the table of paths: which clients may use it, which handler answers, how its errors
 * are written.
 *
 * A new endpoint is a row in routes.c and a handler. Nothing here knows a connection.
 */
#ifndef APPS_SERVER_ROUTES_H
#define APPS_SERVER_ROUTES_H

#include "apps/server/exchange.h"

/* Which clients may use a route: all, or only those that send a valid API key. */
typedef enum route_access { ANYONE, KEY_HOLDERS } route_access;

typedef struct route {
    const char *method, *path; /* a path that ends in '/' takes whatever follows, too */
    void (*handle)(exchange *x);
    route_access access;
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
/* The path that was probably meant by one that is not there; NULL: none is near. */
const char *route_near(const char *path);
/* Why there is no such path, where another server has it; NULL: none is known to. */
const char *route_refusal(const char *path);
/* Writes the errors of a path: of its route, or what clients of its prefix expect. */
const dialect *route_errors(const char *path);

#endif
