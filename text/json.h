/* json.h - one JSON text as a tree in an arena.
 *
 * Made for requests that are rendered into prompts: numbers keep their spelling (no 64-bit limit,
 * no rounding), strings may hold U+0000, depth and size are limited, and running out of memory is
 * never mistaken for a shorter string. RFC 8259, strictly: no comments, no trailing commas, valid
 * UTF-8, surrogates only in pairs. A repeated key keeps its first place and its last value.
 *
 * A tree lives as long as its arena; it is read-only and borrows nothing from the text.
 */
#ifndef TEXT_JSON_H
#define TEXT_JSON_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

typedef enum json_kind {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_INTEGER, /* no fraction, no exponent */
    JSON_REAL,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} json_kind;

typedef struct json json;
struct json {
    json_kind kind;
    const char *s; /* of a string: its bytes; of a number: its spelling. NUL-terminated */
    size_t n;
    json *first, *next; /* items or members; next sibling */
    size_t count;       /* of items or members */
    const char *key;    /* of a member: NUL-terminated; else NULL */
    size_t n_key;
};

/* what names the text in messages: "messages". E_FORMAT, E_LIMIT (deeper than max_depth), E_MEMORY.
 */
status json_parse(const char *text, size_t n, const char *what, int max_depth, arena *mem,
                  const json **out, err *e);
/* The member, or NULL if it is absent or null or v is no object. */
const json *json_get(const json *v, const char *key);
bool json_has(const json *v, const char *key);
bool json_is(const json *v, json_kind kind); /* false for NULL */
/* Python's idea of true: not null, false, zero, "" or empty. NULL is false. */
bool json_truthy(const json *v);
const char *json_kind_name(const json *v); /* "a string"; NULL: "nothing" */
/* The members in the order of the templates' dictsort: by code point of the lower-cased key, as
 * an array of json_count pointers in the arena. NULL on no memory or when there are none. */
const json **json_sorted(const json *object, arena *mem);

/* s[0..n) between quotes, escaped. */
void json_put_string(str *out, const char *s, size_t n);
/* The number as Python prints it (1e5 is 100000.0). False if it is no finite double. */
bool json_put_python_number(str *out, const json *v);
/* Length of the JSON number at the start of s[0..n), 0 if there is none; *real: has a fraction
 * or an exponent. */
size_t json_number_length(const char *s, size_t n, bool *real);

#endif
