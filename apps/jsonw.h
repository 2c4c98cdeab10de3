/* jsonw.h - JSON text written straight into a str, commas included.
 *
 *     json_open(o, NULL, '{');
 *     json_text(o, "object", "list");
 *     json_open(o, "data", '[');
 *     json_int(o, NULL, 1);
 *     json_close(o, "]");
 *     json_close(o, "}");                       {"object":"list","data":[1]}
 *
 * There is no tree: a comma is written unless the last byte opens an array or object. key NULL: an
 * item of an array, or the whole text. Text must be valid UTF-8. If memory ran out, o->bad is set
 * at the end. No name may be one of jansson's, which is linked, too.
 */
#ifndef APPS_JSONW_H
#define APPS_JSONW_H

#include "base/str.h"
#include "text/jtree.h"

#include <stdint.h>

void json_key(str *o, const char *key); /* the caller appends the value */
void json_open(str *o, const char *key, char bracket);
void json_empty(str *o, const char *key, const char *brackets); /* "[]" or "{}" */
/* One or more brackets. Behind the last may be the line ends that separate texts in a stream. */
void json_close(str *o, const char *brackets);
void json_text(str *o, const char *key, const char *text); /* NULL: null */
void json_text_n(str *o, const char *key, const char *s, size_t n);
/* A text as printf makes it. */
void json_words(str *o, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A value that is JSON already; as an item also several with commas between them, or none. */
void json_ready(str *o, const char *key, const char *json, size_t n);
void json_int(str *o, const char *key, int64_t v);
void json_number(str *o, const char *key, double v);            /* not finite: null */
void json_fixed(str *o, const char *key, double v, int digits); /* v is finite */
/* Every number of the settings, as a member of its own. */
void json_sampling(str *o, const carat_sampling *s);
void json_bool(str *o, const char *key, bool v);
void json_nothing(str *o, const char *key);
/* A tree; numbers keep their spelling. NULL: null. */
void json_tree(str *o, const char *key, const jtree *v);

#endif
