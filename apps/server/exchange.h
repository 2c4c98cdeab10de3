/* exchange.h - one request on its way: what http.c gives a handler, and what it gets back.
 *
 * Handlers (generate.h, info.h) see this and no connection; http.c sees them and knows nothing of
 * answers but their bytes.
 */
#ifndef APPS_SERVER_EXCHANGE_H
#define APPS_SERVER_EXCHANGE_H

#include "apps/server/server.h"

/* One request on its way, as handlers see it. */
typedef struct exchange {
    server *s;
    void *connection; /* http.c's, who alone looks into it */
    /* Is `key` in the query, with this value? */
    bool (*query_has)(const struct exchange *x, const char *key, const char *value);
    const char *path, *method;
    const char *body; /* NUL-terminated */
    size_t n_body;
    int fd;                /* of the connection: to notice that the client went away */
    char id[ID_BYTES];     /* of the request, in logs and traces */
    const dialect *errors; /* how problems are spelled */
    /* What the handler leaves: one text, or a stream. */
    int status;
    const char *type; /* of the content; static storage */
    str out;
    const char *file; /* instead of out: bytes that outlive everything */
    size_t n_file;
    struct stream *stream;
    int retry_s;
    bool close; /* the connection, behind the answer */
    /* For the log. */
    double start_ms;
    usage used;
    double ttft_ms;
    const char *note;
} exchange;

/* The answer is this problem, in the words of the dialect. */
void reply_problem(exchange *x, const problem *p);

#endif
