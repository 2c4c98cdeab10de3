/* json_schema_int.h - between the reader of schemas and the writer of values.
 *
 * Values are written in one of two spellings: JSON, or bare, as Gemma 4 has them in its calls (bare
 * keys in dictionary order, strings between two quote tokens, no white space).
 */
#ifndef TEXT_JSON_SCHEMA_INT_H
#define TEXT_JSON_SCHEMA_INT_H

#include "text/grammar_int.h"
#include "text/jtree.h"

enum {
    SCHEMA_MAX_DEPTH = 100,     /* of JSON in a schema, and of schemas in schemas */
    SCHEMA_MAX_PARTS = 32,      /* schemas that hold at once: $ref, allOf, a branch of anyOf */
    SCHEMA_MAX_ENUM = 4096,     /* values */
    SCHEMA_MAX_RULES = 4096,    /* schemas in one document: finding one looks at all */
    SCHEMA_MAX_VIEWS = 1 << 15, /* looked at: anyOf within allOf multiplies */
    SCHEMA_MAX_ONE_OF = 128     /* branches of oneOf: each is compared with each */
};

/* All of these hold. Most often one. */
typedef struct view {
    const jtree *part[SCHEMA_MAX_PARTS];
    bool chosen[SCHEMA_MAX_PARTS]; /* its anyOf or oneOf has been resolved: a branch is a part */
    int32_t n;
    char where[200]; /* a JSON pointer into the schema, for messages */
} view;

typedef struct schema_rule {
    const jtree *node;
    int32_t rule;
    const char *where;
} schema_rule;

typedef struct schema {
    gx_builder *b;
    arena *mem;
    const jtree *root;
    const answer_syntax *bare; /* whose calls the values are in, bare; NULL: JSON */
    int depth, n_views;
    /* Rules of schemas by node, in the order they were asked for; compiled one after the other so
     * that chains of $ref do not recurse. */
    schema_rule *todo;
    int32_t n_todo, cap_todo, n_done;
    int32_t any_value, any_object, any_string, white, number; /* rules, -1: not made yet */
} schema;

/* ---- json_schema.c ---- */

gx *schema_of(schema *s, const jtree *node, const char *where); /* a reference to its rule */
bool schema_refuse(schema *s, status st, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void schema_finish(schema *s); /* compiles what was asked for */
/* bare: see schema; one without a quote means JSON. */
void schema_init(schema *s, gx_builder *b, arena *mem, const jtree *root,
                 const answer_syntax *bare);

/* The same for what must be an object: a call's arguments. */
gx *schema_object_of(schema *s, const jtree *node, const char *where);
/* Is x a whole number? 5, 5.0 and 5e3 are; in any locale. */
bool schema_whole(const jtree *x, double *value);

/* A keyword that at most one part may have; NULL: none has. */
const jtree *view_get(schema *s, const view *v, const char *key);
/* The tightest of an integer keyword (minLength: the largest); false: no part has it. */
bool view_bound(schema *s, const view *v, const char *key, bool largest, int64_t *bound);

/* ---- json_schema_values.c ---- */

gx *value_white(schema *s);
gx *value_any(schema *s);
gx *value_any_object(schema *s);
gx *value_literal(schema *s, const jtree *v, const char *where, int depth);
gx *value_string(schema *s, const view *v);
gx *value_integer(schema *s, const view *v);
gx *value_number(schema *s, const view *v);
gx *value_array(schema *s, const view *v);
gx *value_object(schema *s, const view *v);

#endif
