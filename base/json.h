/* json.h - JSON text to a jansson tree, with the limits and errors of this house.
 *
 * jansson's memory comes from base/mem.h once json_init has run; every call here sees to it. That
 * changes jansson for the whole process, in a way that others who use it there do not notice
 * (json.c says how). Of the library only readers of safetensors come here: no call of carat.h does.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stdio.h>

void json_init(void); /* any number of times, from any thread */
/* The value, owned by the caller (json_decref), or NULL. E_FORMAT with line and reason, or
 * E_MEMORY. what: a file's name. Duplicate keys, invalid UTF-8, NUL characters and depth beyond
 * 2048 are refused. */
status json_parse(json_t **out, const char *text, size_t n, const char *what, err *e);
/* The same for a file of at most max_bytes. */
status json_parse_file(json_t **out, const char *path, size_t max_bytes, err *e);
/* A file of conversations or tools: strings may hold U+0000, and the last of duplicate keys
 * counts. text, if not NULL, gets the file as it is (mem_free). */
status json_read_words(json_t **out, char **text, const char *path, size_t max_bytes, err *e);
/* The value and a newline into f, flushed; characters that drive terminals are escaped
 * (base/show.h). False: it could not be written. */
bool json_write(FILE *f, const json_t *v, size_t flags);
/* True once after an allocation of jansson's failed in this thread: what was built since the last
 * call may lack parts, which jansson's own calls do not always say. */
bool json_was_short(void);
/* File text as a JSON string: what is no UTF-8 becomes U+FFFD. NULL without memory. */
json_t *json_lossy_text(const char *s, size_t n);

#endif
