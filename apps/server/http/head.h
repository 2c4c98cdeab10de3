/* head.h - what the head of a request says: how long its body is, for which host and from which
 * page it comes, with which key, which codings its client takes. All of it comes from outside.
 * Nothing here knows a connection.
 */
#ifndef APPS_SERVER_HEAD_H
#define APPS_SERVER_HEAD_H

#include "apps/server/dialects/request.h"

/* What the headers say together. Zeroed before the first. */
typedef struct head {
    int n_lengths, n_encodings;
    bool bad;           /* a length that is not a number, an encoding other than chunked */
    const char *coding; /* of the content; NULL: it is as it is */
    unsigned seen;      /* the headers that may come once, by bits */
    const char *twice;  /* one of these that came again; NULL: none */
} head;

/* The next header; value may be NULL. Keeps pointers to it. */
void head_take(head *h, const char *name, const char *value);
/* False: the body's length or encoding cannot be relied on, or a header comes twice that must not.
 */
bool head_check(const head *h, problem *p);

bool host_is_local(const char *host); /* the value of Host is a name of this machine */
/* A page of this server's own has the server's address for its origin. host may be NULL. */
bool origin_is_own(const char *origin, const char *host);
bool origin_is_listed(const char *list, const char *origin); /* --cors; NULL: no list */
bool key_is(const char *key, const char *given);             /* in constant time */
/* Decodes %XX in place; returns the length. %00 stays as it is. */
size_t url_unescape(char *text);
/* The value of Accept-Encoding (NULL: there is none) accepts gzip. */
bool accepts_gzip(const char *value);
/* The value of If-None-Match (NULL: there is none) names the tag, which has quotes. */
bool names_tag(const char *value, const char *tag);
/* The end of the header that begins s[0..n), or NULL if it is not complete. */
const char *header_end(const char *s, size_t n);

#endif
