/* toml.h - TOML 1.0 for settings: text to a tree.
 *
 * Strict: a key given twice, a table opened twice, a number with a leading zero, the 30th of
 * February, control characters and invalid UTF-8 are errors, with their line. Beyond 1.0 it has
 * limits on depth and on the parts of a key, and no character U+0000 in strings.
 */
#ifndef APPS_TOML_H
#define APPS_TOML_H

#include "base/arena.h"
#include "base/err.h"

typedef enum toml_kind {
    TOML_TABLE,
    TOML_STRING,
    TOML_INTEGER,
    TOML_REAL,
    TOML_BOOL,
    TOML_ARRAY, /* [[x]] too: its items are tables */
    TOML_DATE   /* or a time, or both */
} toml_kind;

typedef struct toml {
    toml_kind kind;
    const char *key;  /* of a table's member; NULL in arrays and of the root */
    const char *text; /* a string's, a date's as it is spelled; NUL-terminated, no NUL inside */
    int64_t integer;
    double real;
    bool truth;
    int line;           /* where its key or value stands, from 1 */
    struct toml *first; /* members, items */
    struct toml *last, *next;
    struct toml *index, *branch[4]; /* a table's members by the hashes of their keys: a trie */
    unsigned char how;              /* for the parser: how a table or an array came to be */
} toml;

/* The tree, of mem. what: the file's name, for sentences "FILE:LINE: ...". E_FORMAT, E_MEMORY. */
status toml_parse(const toml **root, const char *text, size_t n, const char *what, arena *mem,
                  err *e);
const toml *toml_get(const toml *table, const char *key); /* or NULL */
const char *toml_kind_name(toml_kind k);                  /* "a string" */

#endif
