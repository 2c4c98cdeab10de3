/* exchange.h - one HTTP request and its answer, between http.c and a handler.
 *
 * Handlers (generate.h, info.h) use an exchange and never a connection. http.c calls handlers and
 * sends the bytes that they leave.
 */
#ifndef APPS_SERVER_EXCHANGE_H
#define APPS_SERVER_EXCHANGE_H

#include "apps/server/models/catalog.h"

/* Bytes that arrive little by little; on the thread of the connection. */
typedef struct feed {
    /* Blocks until there are bytes. 0: the end; -1: failed, or the client left. */
    int64_t (*read)(const struct feed *f, char *buf, size_t max);
    void (*close)(const struct feed *f); /* also frees f */
} feed;

struct beginning;
struct offer_view;

typedef struct exchange {
    server *s;
    served *m; /* the model that the request names (exchange_pick); NULL: none yet */
    /* Of catalog.c: the offer of that model, and whether the request waits for its loading. */
    struct offer *wanted;
    bool waits;
    uint64_t n_failed;
    bool no_load;     /* the model must be loaded already (--no-autoload, the query's autoload) */
    bool exact;       /* the name must be one of the server's own (offers_find_own) */
    int64_t keep_ms;  /* it stays so long after this request */
    void *connection; /* of http.c alone */
    /* The value of a key of the query, or NULL. */
    const char *(*query)(const struct exchange *x, const char *key);
    /* A header of the request, or NULL. */
    const char *(*header)(const struct exchange *x, const char *name);
    const char *path, *method;
    const char *body; /* NUL-terminated */
    size_t n_body;
    int32_t owner;         /* the number of its API key; 0 without keys */
    int fd;                /* of the connection, to notice that the client left */
    char id[ID_BYTES];     /* of the request, in logs and traces */
    const dialect *errors; /* writes problems */
    /* Filled by the handler: one text, or a stream. */
    int status;
    const char *type; /* of the content; static storage */
    str out;
    const char *file; /* instead of out: static bytes */
    size_t n_file;
    /* Of a file; each may be NULL. What they name lives as long as the program. */
    const char *encoding, *tag, *policy;
    struct stream *stream;
    const struct feed *feed; /* instead of stream: another source of bytes */
    struct stream *rest;     /* goes on, unread, after `out` was sent; needs `close` */
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
/* Takes a reference to the model of this name as x->m, until the end of the exchange. NULL and "":
 * the default model; of a made model: the one that it is of. Waits until the model is loaded.
 * False: a problem. A second call with a reference in hand does nothing. */
bool exchange_pick(exchange *x, const char *name, problem *p);
/* The made model that the name means, or that the server serves in its place; b->name NULL: none.
 * False: a problem. The caller always calls beginning_free. */
bool exchange_begin(exchange *x, const char *name, struct beginning *b, problem *p);
/* What to pick for it: the offer with its weights. From then on the exchange picks no other. */
const char *exchange_weights(exchange *x, const struct beginning *b);
/* The model of list[0..n) that answers for the derived model of that name, which *b becomes. NULL:
 * the derived model is damaged, of a model outside the list, or has the name of that model. The
 * caller always calls beginning_free. */
const struct offer_view *exchange_base_of(exchange *x, const char *name,
                                          const struct offer_view *list, int32_t n,
                                          struct beginning *b);
/* The same for timeout_ms at most (< 0: no limit), and without made models. PICK_WAITS: call again.
 */
pick_state exchange_pick_within(exchange *x, const char *name, int timeout_ms, problem *p);
/* The same for requests without a body: the name is the query's `model`. On a problem the answer is
 * that problem. */
bool exchange_pick_query(exchange *x);
void exchange_release(exchange *x); /* called by http.c at the end; x->m becomes NULL */
/* The query has this key with this value. */
bool query_has(const exchange *x, const char *key, const char *value);

#endif
