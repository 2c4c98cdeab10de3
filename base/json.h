/* json.h - JSON text to a jansson tree, with the limits and errors of this house.
 *
 * After json_init, which every function here calls first, jansson's memory comes from base/mem.h.
 * This changes jansson for the whole process; json.c says why other users of jansson there do not
 * notice. No call of carat.h comes here: of the library only the reader of safetensors does.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stdio.h>

void json_init(void); /* may be repeated; any thread */
/* The value, owned by the caller (json_decref), or NULL. E_FORMAT with line and reason, or
 * E_MEMORY. what: a file's name. Duplicate keys, invalid UTF-8, NUL characters and depth beyond
 * 2048 are refused. */
status json_parse(json_t **out, const char *text, size_t n, const char *what, err *e);
/* The same for a file of at most max_bytes. */
status json_parse_file(json_t **out, const char *path, size_t max_bytes, err *e);
/* Tools: strings may hold U+0000, and the last of duplicate keys counts. */
status json_parse_words(json_t **out, const char *text, size_t n, const char *what, err *e);
/* Writes the value and a newline to f, and flushes. Characters that control terminals are escaped
 * (base/show.h). False: writing failed. */
bool json_write(FILE *f, const json_t *v, size_t flags);
/* True if an allocation of jansson failed in this thread since the last call: values built since
 * then may lack parts. jansson's own calls do not always report that. */
bool json_was_short(void);
/* File text as a JSON string; invalid UTF-8 becomes U+FFFD. NULL: no memory. */
json_t *json_lossy_text(const char *s, size_t n);

#endif
