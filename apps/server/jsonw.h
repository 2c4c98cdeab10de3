/* jsonw.h - JSON text written straight into a str, commas included.
 *
 *     json_open(o, NULL, '{');
 *     json_text(o, "object", "list");
 *     json_open(o, "data", '[');
 *     json_int(o, NULL, 1);
 *     json_close(o, ']');
 *     json_close(o, '}');                       {"object":"list","data":[1]}
 *
 * Answers are written as they come and never looked at again, so there is no tree: a comma is due
 * unless the last byte opens something. key NULL: an item of an array, or the whole text. Text must
 * be valid UTF-8. Memory that ran out shows in o->bad, once, at the end. No name may be one of
 * jansson's, which is linked as well.
 */
#ifndef APPS_SERVER_JSONW_H
#define APPS_SERVER_JSONW_H

#include "base/str.h"
#include "text/jtree.h"

#include <stdint.h>

void json_key(str *o, const char *key); /* what follows is the value, or json_raw_start */
void json_open(str *o, const char *key, char bracket);
void json_close(str *o, char bracket);
void json_text(str *o, const char *key, const char *text); /* NULL: null */
void json_text_n(str *o, const char *key, const char *s, size_t n);
void json_int(str *o, const char *key, int64_t v);
void json_number(str *o, const char *key, double v); /* not finite: null */
void json_bool(str *o, const char *key, bool v);
void json_nothing(str *o, const char *key);
/* A whole value as it was read; numbers keep their spelling. NULL: null. */
void json_tree(str *o, const char *key, const jtree *v);

#endif
