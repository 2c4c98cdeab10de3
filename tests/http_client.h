/* http_client.h - starts a server, and a small HTTP client over plain sockets, for tests. */
#ifndef TESTS_HTTP_CLIENT_H
#define TESTS_HTTP_CLIENT_H

#include "base/str.h"
#include "text/jtree.h"

#include <stdbool.h>

typedef struct served {
    int pid, port;
    int out;         /* its stdout */
    const char *log; /* the file with its stderr */
} served;

/* `carat serve -p 0` with more arguments (ending with NULL), ready. */
void served_start(served *s, const char *const *args);
int served_stop(served *s, int signal); /* sends it, waits; the exit status, 128 + signal if so */

typedef struct response {
    int status;
    str head, body; /* body: chunks joined */
} response;

/* headers: whole lines that end with \r\n, or NULL; body NULL: none. One connection per call. */
void http_call(response *r, const served *s, const char *method, const char *path,
               const char *headers, const char *body);
void http_post(response *r, const served *s, const char *path, const char *body);
void response_free(response *r);

/* ---- What answers say ---- */

const jtree *json_parsed(arena *mem, const char *s, size_t n); /* or the test fails */
/* The member at a path like "choices.0.message.content"; NULL if there is none. */
const jtree *json_at(const jtree *v, const char *path);
const char *text_at(arena *mem, const response *r, const char *path); /* or the test fails */
/* All that a stream said under a path, joined. */
void stream_text(const response *r, const char *path, str *out);

/* The value of a line of /metrics, whose name may have labels; a missing one fails the test. */
double http_metric(const served *s, const char *name);

/* ---- Connections that the test reads and writes itself ---- */

int http_dial(const served *s); /* a connection; the test writes the request */
/* Sends a request; the test reads the answer from the returned file descriptor. */
int http_begin(const served *s, const char *path, const char *body);
/* Reads until the text was seen. False: the connection ended before. */
bool http_read_until(int fd, str *seen, const char *text);

#endif
