/* grammar.h - what a model may say: grammars over bytes, and the tokens that follow them.
 *
 *     source (GBNF, JSON schema, tools)  ->  grammar   automata, read-only, any thread
 *     vocabulary                         ->  token_tree  one per model, read-only, any thread
 *     grammar + token_tree               ->  matcher   lazily built states and masks, one thread
 *     matcher                            ->  grammar_run  where one generation stands
 *
 * A run is asked for the mask of tokens that may come next and told which token came. The mask is
 * exact: a token is allowed if and only if the text so far, followed by the token's bytes, can
 * still be completed to a text of the grammar. Tokens may hold a part of a character or span
 * several terminals. Control tokens and chat markers are symbols of their own: they match only
 * where the grammar names them, never by their spelling. Tokens that end a generation are allowed
 * where the text is complete.
 *
 * Nothing here recurses on input without a limit, and a matcher never grows: what it has learned
 * is dropped when its memory is full. A grammar that cannot be followed within the limits below is
 * refused with a sentence, when it is compiled or (E_LIMIT) at the step that breaks one.
 */
#ifndef TEXT_GRAMMAR_H
#define TEXT_GRAMMAR_H

#include "text/vocab.h"

enum {
    GRAMMAR_MAX_SOURCE_BYTES = 1 << 20, /* of one GBNF text or JSON schema */
    GRAMMAR_MAX_NESTING = 100,          /* of parentheses: parsers and builders recurse on them */
    GRAMMAR_MAX_RULES = 1 << 14,
    GRAMMAR_MAX_NODES = 1 << 17,  /* of all automata together: 3 MiB */
    GRAMMAR_MAX_REPEAT = 1 << 20, /* the largest count in x{m,n}, minLength or maxItems */
    GRAMMAR_MAX_SPECIALS = 32,    /* different chat markers in one grammar */
    GRAMMAR_MAX_DEPTH = 256,      /* rules open at once while matching: brackets in brackets */
    GRAMMAR_MAX_CONFIGS = 512,    /* readings of one text followed at once: ambiguity */
    /* Steps of compiling a source, from reading a schema to its automata: about a second. Memory is
     * counted as well, 16 bytes a step. */
    GRAMMAR_MAX_BUILD = 1 << 24,
    GRAMMAR_MAX_MASK_WORK = 1 << 20 /* steps of one mask, 10 ms; usual ones take some thousand */
};

typedef struct grammar grammar;
struct text_family; /* family.h */

/* What stands before the constrained text in an answer. */
typedef enum grammar_thought {
    THOUGHT_NONE,  /* the text begins at once */
    THOUGHT_MAY,   /* a thought may come first */
    THOUGHT_INSIDE /* the prompt ends in a thought: it is to be closed first */
} grammar_thought;

typedef struct grammar_setting {
    const struct text_family *family; /* whose thoughts and calls; NULL: there are none */
    grammar_thought thought;
    /* Asked again and again while a source is compiled; true ends it with E_CANCELLED. NULL: never
     * asked. */
    bool (*cancelled)(void *user);
    void *user;
} grammar_setting;

/* GBNF as llama.cpp reads it: rules `name ::= ...` with "literals", [classes], ., ( ), |, * + ? and
 * {m}, {m,}, {m,n}, # comments; the text is what `root` derives. A chat marker outside of quotes,
 * such as <|tool_call>, stands for that token. Left recursion is refused. how NULL: a zeroed one.
 */
status grammar_from_gbnf(grammar **g, const char *text, size_t n, const grammar_setting *how,
                         err *e);

/* ---- From JSON schemas (json_schema.c) ---- */

/* JSON that validates against the schema, or any JSON object (schema NULL). See json_schema.c for
 * the keywords; one that is not supported is refused by its name and place. Members come in the
 * schema's order; white space is limited. */
status grammar_from_schema(grammar **g, const char *schema, size_t n, const grammar_setting *how,
                           err *e);

/* Text that all of a regular expression matches; see grammar_regex.c for what it may be. */
status grammar_from_regex(grammar **g, const char *text, size_t n, const grammar_setting *how,
                          err *e);

typedef enum grammar_calls {
    CALLS_MAY,  /* text, or calls, or text and then calls */
    CALLS_MUST, /* at least one call, nothing else but a thought */
} grammar_calls;

typedef struct grammar_tools {
    const char *tools; /* a JSON array in the OpenAI shape */
    size_t n_tools;
    grammar_calls calls;
    const char *only; /* the one function that may be called, or NULL: any */
    bool one;         /* at most one call */
    /* Without a call the answer is JSON: of this schema, or (json) any object. Not with both NULL
     * and false: then it is text, which calls may follow. */
    const char *schema;
    size_t n_schema;
    bool json;
    bool strict_all; /* arguments follow the schema of every tool, not only of strict ones */
} grammar_tools;

/* Answers with calls in the syntax of how->family. A call's name is one of the tools'. Its
 * arguments follow the schema if the tool says "strict": true; else they are any that parse. */
status grammar_from_tools(grammar **g, const grammar_tools *t, const grammar_setting *how, err *e);

void grammar_close(grammar *g); /* NULL is fine; matchers must be closed first */
size_t grammar_bytes(const grammar *g);

/* ---- The tokens, as a tree of their bytes (token_tree.c) ---- */

typedef struct token_tree token_tree;

status token_tree_open(token_tree **t, const vocab *v, err *e);
void token_tree_close(token_tree *t);      /* NULL is fine */
int32_t token_tree_n(const token_tree *t); /* ids are below this; masks have as many bits */
size_t token_tree_bytes(const token_tree *t);

/* ---- Following a grammar (grammar_match.c) ---- */

typedef struct matcher matcher;

/* g and t must outlive m. E_UNSUPPORTED: the vocabulary lacks a marker that the grammar needs. */
status matcher_open(matcher **m, const grammar *g, const token_tree *t, err *e);
void matcher_close(matcher *m); /* NULL is fine; its runs must be ended first */
size_t matcher_bytes(const matcher *m);

/* A place in a text. The caller holds the struct and must not copy or move it; the matcher knows
 * all its runs. A zeroed run is ended. */
typedef struct grammar_run grammar_run;
struct grammar_run {
    matcher *m;
    int32_t state;
    grammar_run *prev, *next;
};

status grammar_begin(grammar_run *r, matcher *m, err *e);    /* before the first byte */
void grammar_clone(grammar_run *r, const grammar_run *from); /* r: ended; the same place */
void grammar_end(grammar_run *r);                            /* safe on an ended run */
/* *bits: token_tree_n bits, bit id % 64 of word id / 64; the matcher's, until its next call.
 * *n_allowed may be NULL. E_FORMAT: no token of this vocabulary continues the text. */
status grammar_mask(grammar_run *r, const uint64_t **bits, int32_t *n_allowed, err *e);
/* *ok: the token is allowed; then the run is behind it, else where it was. After a token that ends
 * generation the run stays where it was. Costs a few lookups. */
status grammar_accept(grammar_run *r, int32_t id, bool *ok, err *e);
status grammar_accept_bytes(grammar_run *r, const char *s, size_t n, bool *ok, err *e);
bool grammar_may_end(const grammar_run *r);  /* the text is complete as it stands */
bool grammar_must_end(const grammar_run *r); /* and nothing can follow */

/* Since the matcher was opened; for benches and metrics. */
typedef struct matcher_work {
    uint64_t masks, masks_cached, nodes, steps, flushes;
} matcher_work;
matcher_work matcher_worked(const matcher *m);

#endif
