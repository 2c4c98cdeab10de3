/* parse_int.h - shared by all readers of calls. */
#ifndef TEXT_PARSE_INT_H
#define TEXT_PARSE_INT_H

#include "base/str.h"
#include "text/family.h"
#include "text/jtree.h"

enum {
    CALL_MAX_DEPTH = 64,       /* nesting of a call's arguments, the outer braces included */
    CALL_MAX_NAME_BYTES = 256, /* of a function's name */
};

/* ---- call_values.c ---- */

/* A position in the text of a call. */
typedef struct call_reading {
    const char *s;
    size_t n, at;
    bool lenient;
    bool unpaired[2];  /* for ' and ": the text has no further one, so the search is not repeated */
    bool equals;       /* some key was followed by = */
    const char *quote; /* encloses strings; NULL: only lenient reading knows strings */
    str *out;
    char open[CALL_MAX_DEPTH]; /* the closers of the open brackets, outermost first */
    int depth;
} call_reading;

bool call_is_space(char c);
void call_skip_space(call_reading *r);
bool call_at_end(const call_reading *r);
bool call_take(call_reading *r, const char *what); /* false: other text comes next */
/* Reads an object from behind its opening brace, and writes it as JSON. */
bool call_read_object(call_reading *r);

/* The schema's properties of the tool with this name; NULL: unknown. */
const jtree *call_parameters(const jtree *tools, const char *name);
/* Writes the argument `key` with the text s[0..n) as JSON. parameters: from call_parameters. A
 * parameter of type string takes the text as it is. Another type takes it as JSON or as Python
 * spells it, and as a string if it is neither. */
void call_put_typed(str *out, const jtree *parameters, const char *key, size_t n_key, const char *s,
                    size_t n);
/* Ends the object that begins with "{" and holds such arguments. False: it is no JSON. */
bool call_end_typed(str *out);
/* The kinds of values that a schema inside `root` allows, as bits 1 << jtree_kind. It follows type,
 * enum, const, anyOf, oneOf, allOf and $ref; other keywords exclude no kind. */
unsigned call_kinds_of(const jtree *root, const jtree *schema);
/* Reads {"name": NAME, "arguments": {...}} at the beginning of c; commas and the brackets of a list
 * around such objects are passed. */
bool call_read_json(const call_text *c, str *name, str *arguments, size_t *n_read);
/* Reads the object at c->s[at] as JSON. */
bool call_read_arguments(const call_text *c, size_t at, str *arguments, size_t *n_read);
/* Appends the name s[0..n) without white space around it. False: no possible name. */
bool call_take_name(str *name, const char *s, size_t n);
/* s[0..n) is, but for white space, the beginning of `what`, or begins with it; *at: the offset
 * behind it, or 0. */
bool call_may_begin(const char *s, size_t n, const char *what, size_t *at);
call_head call_json_head(const char *s, size_t n);

/* ---- heads.c ---- */

enum { HEAD_MAX_BYTES = 512 };

typedef enum head_kind { HEAD_TEXT, HEAD_THOUGHT, HEAD_CALL } head_kind;
typedef enum head_found {
    HEAD_NONE,
    HEAD_OPEN, /* the text can become a header */
    HEAD_WHOLE
} head_found;

/* The header of a message. */
typedef struct answer_head {
    head_kind kind;
    size_t n;            /* its bytes; the message's text follows */
    size_t at;           /* the end of the message before it has these bytes of them */
    size_t name, n_name; /* of a call's function */
} answer_head;

/* Looks for a header at s[0]. */
head_found head_read(const answer_heads *x, const char *s, size_t n, answer_head *h);

/* ---- call_parts.c ---- */

/* Writes arguments as JSON while they come. */
typedef struct call_parts {
    const answer_syntax *syntax;
    const jtree *parameters;
    size_t at,
        seen;   /* of the call's text: all before `at` is done, all before `seen` was searched */
    bool stuck; /* the rest is not written before the call is complete */
    bool any,
        begun; /* some value is written, of the innermost object or list; in a value of text */
    bool wants_key, has_key, after; /* after: a value has ended */
    str key;                        /* has_key: of the value that comes next */
    char open[64];                  /* of objects and lists: the closers of the open brackets */
    int depth;
} call_parts;

void call_parts_begin(call_parts *p, const answer_syntax *syntax, const jtree *parameters,
                      size_t at);
void call_parts_free(call_parts *p);
/* Appends to out what is certain of the arguments in s[0..n), the call's text so far. */
void call_parts_put(call_parts *p, const char *s, size_t n, str *out);

#endif
