/* toml.h - TOML 1.0 for settings: text to a tree.
 *
 * Everything of TOML but dates and arrays of tables, which no setting has: they are refused by
 * name. Strict: a key given twice, a table opened twice, a number with a leading zero, control
 * characters and invalid UTF-8 are errors, with their line.
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
    TOML_ARRAY
} toml_kind;

typedef struct toml {
    toml_kind kind;
    const char *key;  /* of a table's member; NULL in arrays and of the root */
    const char *text; /* a string's; NUL-terminated, and without NUL inside */
    int64_t integer;
    double real;
    bool truth;
    int line;           /* where its key or value stands, from 1 */
    struct toml *first; /* members, items */
    struct toml *last, *next;
    unsigned char how; /* for the parser: how a table came to be */
} toml;

/* The tree, of mem. what: the file's name, for sentences "FILE:LINE: ...". E_FORMAT, E_MEMORY. */
status toml_parse(const toml **root, const char *text, size_t n, const char *what, arena *mem,
                  err *e);
const toml *toml_get(const toml *table, const char *key); /* or NULL */
const char *toml_kind_name(toml_kind k);                  /* "a string" */

#endif
