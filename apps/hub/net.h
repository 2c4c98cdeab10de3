/* net.h - requests to a hub through libcurl.
 *
 * A `net` belongs to one pull and one thread. Nothing follows redirects but net.c and fetch.c, by
 * hand, because the token must not reach another host: a request carries it only if its address has
 * the origin of the hub, and over plain http only on this machine. While a request or a pause
 * lasts, `tick` is called at least every 100 ms; it ends the pull by returning false.
 */
#ifndef APPS_HUB_NET_H
#define APPS_HUB_NET_H

#include "apps/hub/place.h"
#include "apps/hub/wire.h"
#include "base/err.h"

#include <curl/curl.h>

/* For tests: milliseconds of a second of waiting. */
extern int net_second_ms;

typedef struct net {
    const place *p;
    CURLM *multi;                               /* the connections of a file */
    CURLM *single;                              /* one request after the other */
    struct curl_slist *plain, *with_token;      /* header lines */
    bool (*tick)(void *user, const char *note); /* note: what it waits for; "" */
    void *user;
} net;

status net_open(net *n, const place *p, err *e);
void net_close(net *n); /* safe on a zeroed or closed one */

/* One request as an easy handle with the options that all have. head: is filled as lines come. */
CURL *net_request(net *n, const char *url, reply *head, char reason[CURL_ERROR_SIZE]);
/* The same without a hub: no token, and HTTP/2 where there is. NULL: no memory. */
CURL *net_plain(const char *url);
/* Pauses. E_CANCELLED. */
status net_wait(net *n, double s, const char *note, err *e);
/* Moves the connections of a file, waits for news of them, at most 100 ms, and ticks. active:
 * how many there are; busy: there is other work, so do not wait. E_CANCELLED. */
status net_poll(net *n, int active, bool busy, err *e);

/* GETs a text of at most max bytes from the hub, with retries and redirects within it. repo: for
 * sentences. E_ARG: the hub refuses; E_IO: it cannot be reached, or this is not a hub. */
status net_text(net *n, const char *url, const char *repo, size_t max, str *body, reply *head,
                err *e);
/* GETs bytes [from, to) of a file of the hub, from wherever it is kept, into body. Fewer may come.
 * *total: the bytes of the file, 0 where the storage does not say. E_UNSUPPORTED: it sends whole
 * files alone; otherwise as net_text. */
status net_range(net *n, const char *url, const char *repo, uint64_t from, uint64_t to, str *body,
                 uint64_t *total, err *e);
/* Follows redirects of a file's address, by HEAD, to where its bytes are, which may be another
 * host. *first: the head of the hub's own answer about the file, which says its size and hash. */
status net_locate(net *n, const char *url, const char *repo, char out[URL_MAX], reply *first,
                  err *e);
/* A failure of libcurl that trying again cannot help. */
bool net_is_final(CURLcode c);

#endif
