/* wire.h - the words of HTTP that a hub answers with: header lines, addresses, limits.
 *
 * All of it comes from strangers. Nothing here opens a connection. A value that is too long or no
 * value at all counts as absent.
 */
#ifndef APPS_HUB_WIRE_H
#define APPS_HUB_WIRE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    URL_MAX = 8192,
    URL_PART_MAX = 512 /* a scheme, a host, a port */
};

/* The head of one answer. Numbers that were not sent are -1. */
typedef struct reply {
    int code; /* of the status line; 0: none yet */
    int64_t length;
    int64_t range_from, range_to,
        range_total; /* Content-Range; range_from -1 in "bytes * /TOTAL" */
    int64_t linked_size;
    int64_t retry_after_s;
    int64_t limit_left, limit_reset_s; /* RateLimit: r and t */
    char location[URL_MAX];
    char next[URL_MAX]; /* Link: <...>; rel="next" */
    char etag[160], linked_etag[160];
    char commit[64];
    char error_code[64], error_message[256];
    char warning[256]; /* X-HF-Warning, the last one */
    bool json;         /* Content-Type */
    bool encoded;      /* Content-Encoding other than identity */
} reply;

/* One line of a head, with or without its CR LF. A status line begins a new head. */
void reply_take(reply *r, const char *line, size_t n);
void reply_clear(reply *r);

/* Is this an absolute http(s) address without user, password, spaces or control characters? */
bool url_valid(const char *url);
/* The address that a reference on the page `base` means. False: it is none, or too long. */
bool url_resolve(const char *base, const char *ref, char out[URL_MAX]);
bool url_same_origin(const char *a, const char *b); /* scheme, host and port */
bool url_is_https(const char *url);
bool url_is_loopback(const char *url); /* localhost, 127.*, [::1] */
/* "host:port" as it stands in the address. */
void url_host(const char *url, char out[URL_PART_MAX]);
/* Appends text, percent-encoded but for letters, digits and "-_.~"; and '/' where slash. */
void url_put(str *out, const char *text, bool slash);

/* Seconds to wait before try number `tries` + 1 after an answer, or after none at all (NULL).
 * Never more than WAIT_MAX_S, and then the wait would be in vain: -1. */
enum { WAIT_MAX_S = 310 }; /* the windows of the hub's limits last 300 s */
double wait_s(const reply *r, int tries);
bool worth_retrying(int code); /* 408, 429, 500, 502, 503, 504 */

#endif
