/* exchange.h - one HTTP request and its answer, between http.c and a handler.
 *
 * Handlers (generate.h, info.h) use an exchange and never a connection. http.c calls handlers and
 * sends the bytes that they leave.
 */
#ifndef APPS_SERVER_EXCHANGE_H
#define APPS_SERVER_EXCHANGE_H

#include "apps/server/server.h"

typedef struct exchange {
    server *s;
    void *connection; /* of http.c alone */
    /* The query has this key with this value. */
    bool (*query_has)(const struct exchange *x, const char *key, const char *value);
    const char *path, *method;
    const char *body; /* NUL-terminated */
    size_t n_body;
    int fd;                /* of the connection, to notice that the client left */
    char id[ID_BYTES];     /* of the request, in logs and traces */
    const dialect *errors; /* writes problems */
    /* Filled by the handler: one text, or a stream. */
    int status;
    const char *type; /* of the content; static storage */
    str out;
    const char *file; /* instead of out: static bytes */
    size_t n_file;
    struct stream *stream;
    int retry_s;
    bool close; /* closes the connection after the answer */
    /* For the log. */
    double start_ms;
    usage used;
    double ttft_ms;
    const char *note;
} exchange;

/* Makes the problem the answer, as the dialect writes errors. */
void reply_problem(exchange *x, const problem *p);

#endif
