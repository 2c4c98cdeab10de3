/* json_schema_int.h - shared by the reader of schemas and the writer of values.
 *
 * Values have one of two spellings: JSON, or bare, the spelling of Gemma 4 calls (unquoted keys in
 * dictionary order, strings between two quote tokens, no white space).
 */
#ifndef TEXT_JSON_SCHEMA_INT_H
#define TEXT_JSON_SCHEMA_INT_H

#include "text/grammar_int.h"
#include "text/jtree.h"

enum {
    SCHEMA_MAX_DEPTH = 100,     /* of JSON in a schema, and of nested schemas */
    SCHEMA_MAX_PARTS = 32,      /* schemas for one value: $ref, allOf, a branch of anyOf */
    SCHEMA_MAX_ENUM = 4096,     /* values */
    SCHEMA_MAX_RULES = 4096,    /* schemas in one document; lookup is linear */
    SCHEMA_MAX_VIEWS = 1 << 15, /* views per document; anyOf within allOf multiplies */
    SCHEMA_MAX_ONE_OF = 128     /* branches of oneOf; all pairs are compared */
};

/* The schemas that apply to one value, usually one. */
typedef struct view {
    const jtree *part[SCHEMA_MAX_PARTS];
    bool chosen[SCHEMA_MAX_PARTS]; /* its anyOf or oneOf is resolved: a branch is a part */
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
    const answer_syntax *bare; /* the call syntax for bare values; NULL: JSON */
    const char *raw_end;       /* strings are plain text before this mark; NULL: they are not */
    int depth, n_views;
    /* Rules of schemas by node, in order of first use. They are compiled one after another, so that
     * chains of $ref do not recurse. */
    schema_rule *todo;
    int32_t n_todo, cap_todo, n_done;
    int32_t any_value, any_object, any_string, white, number; /* rules; -1: none yet */
} schema;

/* ---- json_schema.c ---- */

gx *schema_of(schema *s, const jtree *node, const char *where); /* a reference to its rule */
bool schema_refuse(schema *s, status st, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void schema_finish(schema *s); /* compiles all schemas in todo */
/* bare: see schema; a syntax without a quote token means JSON. */
void schema_init(schema *s, gx_builder *b, arena *mem, const jtree *root,
                 const answer_syntax *bare);

/* Like schema_of, inline and for objects only: the arguments of a call. */
gx *schema_object_of(schema *s, const jtree *node, const char *where);
/* The same, spelled as pairs. Values of type string are plain text, other values JSON. A value that
 * may be a string or something else is any text. */
gx *schema_pairs_of(schema *s, const jtree *node, const call_pairs *x, const char *where);
/* The value of one pair, for schema_pairs_of. */
gx *schema_pair_value(schema *s, const jtree *node, const char *end, const char *where);
/* True: x is a whole number, for example 5, 5.0 or 5e3, in any locale. */
bool schema_whole(const jtree *x, double *value);

/* The keyword's value; NULL: no part has it. Parts with different values are refused. */
const jtree *view_get(schema *s, const view *v, const char *key);
/* The tightest value of an integer keyword. largest: the largest value is the tightest, as for
 * minLength. False: no part has the keyword, or an error. */
bool view_bound(schema *s, const view *v, const char *key, bool largest, int64_t *bound);

/* ---- json_schema_values.c ---- */

gx *schema_text(schema *s, const char *t);
gx *schema_digit(schema *s, char lo, char hi);
gx *schema_digits(schema *s, int32_t min, int32_t max);
/* A rule made once per schema. *made: the rule is new and needs a body. */
int32_t schema_shared_rule(schema *s, int32_t *rule, const char *name, bool *made);
gx *schema_set_body(schema *s, int32_t rule, gx *body); /* a reference to the rule */

gx *value_white(schema *s);
gx *value_any(schema *s);
gx *value_any_string(schema *s);
gx *value_plain_text(schema *s, const char *end); /* any text without the mark */
gx *value_literal(schema *s, const jtree *v, const char *where, int depth);
gx *value_string(schema *s, const view *v);
gx *value_array(schema *s, const view *v);
gx *value_bracketed(schema *s, const char *open, gx *inside, const char *close);
gx *value_after_comma(schema *s, gx *x);
/* min to max times x, separated by commas; max < 0: unlimited. first: no element precedes, so there
 * is no leading comma. */
gx *value_separated(schema *s, gx *x, int64_t min, int64_t max, bool first);

/* ---- json_schema_numbers.c ---- */

gx *value_integer(schema *s, const view *v);
gx *value_number(schema *s, const view *v);
gx *value_any_number(schema *s);

/* ---- json_schema_objects.c ---- */

gx *value_object(schema *s, const view *v);
gx *value_any_object(schema *s);
gx *value_key(schema *s, const char *key, size_t n, const char *where);
gx *value_colon(schema *s);
gx *value_pairs(schema *s, const view *v, const call_pairs *x);
gx *value_any_pairs(schema *s, const call_pairs *x);

#endif
