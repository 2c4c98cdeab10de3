/* routes.h - the table of paths: which clients may use it, which handler answers, how its errors
 * are written.
 *
 * A new endpoint is a row in routes.c and a handler. Nothing here knows a connection.
 */
#ifndef APPS_SERVER_ROUTES_H
#define APPS_SERVER_ROUTES_H

#include "apps/server/http/exchange.h"

/* Which clients may use a route: all, or only those that send a valid API key. */
typedef enum route_access { ANYONE, KEY_HOLDERS } route_access;

/* What /openapi.json says of a route (openapi.c). Its names are those of schemas.json. */
typedef struct route_about {
    const char *summary; /* NULL: that of the first route with this handler, if it has one */
    const char *request, *reply; /* schemas; NULL: no body; any object */
    enum {
        EVENTS = 1,     /* the reply may be text/event-stream */
        LINES = 2,      /* or application/x-ndjson */
        PLAIN = 4,      /* or text/plain; without a schema that alone */
        EMPTY = 8,      /* it has no body */
        NOT_FOUND = 16, /* 404: what the request names is not there */
        FAILS = 32,     /* 500 */
        NOT_DONE = 64,  /* 501: the model cannot do it */
        FORM = 128,     /* the request is multipart/form-data */
        STREAM = 256    /* the reply is text/event-stream */
    } more;
    const char *query; /* parameters, between blanks */
} route_about;

typedef struct route {
    const char *method, *path; /* {name} is a part without '/', or at the end whatever follows */
    void (*handle)(exchange *x);
    route_access access;
    bool needs_model;
    metrics_route metric;
    const dialect *errors;
    route_about about;
    const char *same_as; /* of route_at: the path that about describes; NULL: this one */
} route;

enum { METHODS_BYTES = 48 };

/* The i-th route. False: past the end. */
bool route_at(size_t i, route *out);
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
