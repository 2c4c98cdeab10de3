/* jtree.h - one JSON text as a tree in an arena.
 *
 * For requests that become prompts. Three differences from jansson (base/json.h): numbers keep
 * their spelling (no 64-bit limit, no rounding), strings may hold U+0000, and lack of memory never
 * shortens a string. Strict RFC 8259: no comments, no trailing commas, valid UTF-8, surrogates only
 * in pairs, limited depth. A repeated key keeps its first place and its last value.
 *
 * A tree lives as long as its arena; it is read-only and borrows nothing from the text. It notes
 * which members were read, so that a caller can name those that nobody asked for.
 */
#ifndef TEXT_JTREE_H
#define TEXT_JTREE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

typedef enum jtree_kind {
    JTREE_NULL,
    JTREE_FALSE,
    JTREE_TRUE,
    JTREE_INTEGER, /* no fraction, no exponent */
    JTREE_REAL,
    JTREE_STRING,
    JTREE_ARRAY,
    JTREE_OBJECT
} jtree_kind;

typedef enum jtree_use {
    JTREE_UNREAD,
    JTREE_READ,  /* jtree_get or jtree_has has found it */
    JTREE_PASSED /* read, with everything in it */
} jtree_use;

typedef struct jtree jtree;
struct jtree {
    jtree_kind kind;
    unsigned char use; /* a jtree_use; set at any time, by any thread */
    bool parsed;       /* by jtree_parse, so that `use` can be written */
    const char *s;     /* of a string: its bytes; of a number: its spelling. NUL-terminated */
    size_t n;
    jtree *first, *next; /* items or members; next sibling */
    size_t count;        /* number of items or members */
    const char *key;     /* of a member: NUL-terminated; else NULL */
    size_t n_key;
};

/* `what` names the text in error messages, e.g. "messages". E_FORMAT, E_MEMORY, E_LIMIT (deeper
 * than max_depth). */
status jtree_parse(const char *text, size_t n, const char *what, int max_depth, arena *mem,
                   const jtree **out, err *e);
/* The same, but all members of a repeated key stay; jtree_get finds the first. */
status jtree_parse_repeats(const char *text, size_t n, const char *what, int max_depth, arena *mem,
                           const jtree **out, err *e);
/* Appends the character of the escape that s[0..n) begins with. Returns its length; 0: it is none,
 * or not complete. */
size_t jtree_take_escape(const char *s, size_t n, str *out);
/* The member. NULL if it is absent or null, or if v is not an object. */
const jtree *jtree_get(const jtree *v, const char *key);
bool jtree_has(const jtree *v, const char *key);
void jtree_pass(const jtree *v); /* marks v and everything in it as read; v may be NULL */
bool jtree_is(const jtree *v, jtree_kind kind); /* false for NULL */
/* Truth as in Python: false for null, false, zero, "", an empty array or object, and NULL. */
bool jtree_truthy(const jtree *v);
const char *jtree_kind_name(const jtree *v); /* "a string"; NULL: "nothing" */
/* The members in the order of Jinja's dictsort: by code points of the lower-cased key. An array of
 * `count` pointers in the arena. NULL: out of memory, or no members. */
const jtree **jtree_sorted(const jtree *object, arena *mem);

/* An object to which jtree_add appends copies of values as members, each behind the one before it
 * (NULL: none); what is in them is shared. v NULL: null. NULL: no memory. */
jtree *jtree_object(arena *mem);
jtree *jtree_add(jtree *object, jtree *last, arena *mem, const char *key, size_t n_key,
                 const jtree *v);

/* The same value in the arena. NULL: no memory. */
jtree *jtree_copy(const jtree *v, arena *mem);

/* Appends s[0..n) in quotes, escaped. */
void jtree_put_string(str *out, const char *s, size_t n);
/* Appends the value as JSON with ", " and ": ". Numbers keep their spelling. */
void jtree_put_json(str *out, const jtree *v);
/* The same, with numbers as Python prints them. False: one is no finite double. */
bool jtree_put_python_json(str *out, const jtree *v);
/* Appends the number as Python prints it (1e5 is 100000.0). False if it is not a finite double. */
bool jtree_put_python_number(str *out, const jtree *v);
/* Length of the JSON number at the start of s[0..n); 0 if there is none. *real: it has a fraction
 * or an exponent. */
size_t jtree_number_length(const char *s, size_t n, bool *real);

#endif
