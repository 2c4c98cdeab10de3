/* headers.h - values of headers that a client sends for a file: which codings it takes, which
 * version it has. Any thread; nothing is allocated. A value that breaks the grammar means less,
 * never an error. */
#ifndef APPS_SERVER_HEADERS_H
#define APPS_SERVER_HEADERS_H

#include <stdbool.h>

/* The value of an Accept-Encoding header (NULL: there is none) accepts gzip. */
bool accepts_gzip(const char *value);
/* The value of an If-None-Match header (NULL: there is none) names the tag, which has quotes. */
bool names_tag(const char *value, const char *tag);

#endif
