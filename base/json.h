/* json.h - JSON text to a jansson tree, with the limits and errors of this house.
 *
 * jansson's memory comes from base/mem.h once json_init has run; json_parse sees to it.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/err.h"

#include <jansson.h>

void json_init(void); /* any number of times, from any thread */
/* The value, owned by the caller (json_decref), or NULL. E_FORMAT with line and reason, or
 * E_MEMORY. what: a file's name. Duplicate keys, invalid UTF-8, NUL characters and depth beyond
 * 2048 are refused. */
status json_parse(json_t **out, const char *text, size_t n, const char *what, err *e);
/* The same for a file of at most max_bytes. */
status json_parse_file(json_t **out, const char *path, size_t max_bytes, err *e);

#endif
