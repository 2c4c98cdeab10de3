/* grammar.h - constrained generation: grammars over bytes, and the tokens that they allow.
 *
 *     source (GBNF, JSON schema, tools)  ->  grammar   automata, read-only, any thread
 *     vocabulary                         ->  token_tree  one per model, read-only, any thread
 *     grammar + token_tree               ->  matcher   lazily built states and masks, one thread
 *     matcher                            ->  grammar_run  the position of one generation
 *
 * A run returns the mask of allowed next tokens and accepts the chosen token. The mask is exact: a
 * token is allowed if and only if the text so far, followed by the token's bytes, can still be
 * completed to a text of the grammar. A token may hold part of a character or span several
 * terminals. Control tokens and chat markers are symbols of their own: they match only where the
 * grammar names them, never by their spelling. Tokens that end a generation are allowed where the
 * text is complete.
 *
 * Every recursion on input has a limit. A matcher never grows: when its memory is full, it drops
 * its cached states. A grammar that exceeds a limit below is refused with a sentence: at compile
 * time, or with E_LIMIT at the step that exceeds the limit.
 */
#ifndef TEXT_GRAMMAR_H
#define TEXT_GRAMMAR_H

#include "text/vocab.h"

enum {
    GRAMMAR_MAX_SOURCE_BYTES = 1 << 20, /* of one GBNF text or JSON schema */
    GRAMMAR_MAX_NESTING = 100,          /* of parentheses: parsers and builders recurse */
    GRAMMAR_MAX_RULES = 1 << 14,
    GRAMMAR_MAX_NODES = 1 << 17,  /* of all automata together: 3 MiB */
    GRAMMAR_MAX_REPEAT = 1 << 20, /* the largest count in x{m,n}, minLength or maxItems */
    GRAMMAR_MAX_SPECIALS = 32,    /* distinct chat markers in one grammar */
    GRAMMAR_MAX_DEPTH = 256,      /* open rules while matching, for example nested brackets */
    GRAMMAR_MAX_CONFIGS = 512,    /* parallel readings of an ambiguous text */
    /* Steps to compile a source, from the schema to the automata: about one second. Memory counts
     * as well: 16 bytes are one step. */
    GRAMMAR_MAX_BUILD = 1 << 24,
    GRAMMAR_MAX_MASK_WORK = 1 << 20 /* steps for one mask, 10 ms; most take a few thousand */
};

typedef struct grammar grammar;
struct answer_syntax; /* family.h */

/* The thought (reasoning) before the constrained text of an answer. */
typedef enum grammar_thought {
    THOUGHT_NONE,  /* the text begins at once */
    THOUGHT_MAY,   /* a thought may come first */
    THOUGHT_INSIDE /* the prompt ends inside a thought, which must close first */
} grammar_thought;

typedef struct grammar_setting {
    const struct answer_syntax *answer; /* syntax of thoughts and calls; NULL: neither */
    grammar_thought thought;
    /* Polled during compilation; true ends it with E_CANCELLED. NULL: never polled. */
    bool (*cancelled)(void *user);
    void *user;
} grammar_setting;

/* GBNF as llama.cpp reads it: rules `name ::= ...` with "literals", [classes], ., ( ), |, * + ? and
 * {m}, {m,}, {m,n}, # comments. `root` derives the whole text. An unquoted chat marker, such as
 * <|tool_call>, stands for its token. Left recursion is refused. how NULL: a zeroed setting.
 */
status grammar_from_gbnf(grammar **g, const char *text, size_t n, const grammar_setting *how,
                         err *e);

/* ---- From JSON schemas (json_schema.c) ---- */

/* JSON that validates against the schema, or any JSON object (schema NULL). json_schema.c lists the
 * supported keywords. Other keywords that restrict values are refused by name and place. Members
 * come in the schema's order. White space is limited. */
status grammar_from_schema(grammar **g, const char *schema, size_t n, const grammar_setting *how,
                           err *e);

/* Text that the regular expression matches as a whole. grammar_regex.c lists its syntax. */
status grammar_from_regex(grammar **g, const char *text, size_t n, const grammar_setting *how,
                          err *e);

typedef enum grammar_calls {
    CALLS_MAY,  /* text, calls, or text and then calls */
    CALLS_MUST, /* at least one call, and no text except a thought */
} grammar_calls;

typedef struct grammar_tools {
    const char *tools; /* a JSON array in the OpenAI shape */
    size_t n_tools;
    grammar_calls calls;
    const char *only; /* name of the only callable function; NULL: any */
    bool one;         /* at most one call */
    /* The form of an answer without calls. schema: JSON that validates. json: any JSON object.
     * Neither: text, which calls may follow. */
    const char *schema;
    size_t n_schema;
    bool json;
    bool strict_all; /* every tool's arguments follow its schema, not only a strict tool's */
} grammar_tools;

/* Answers with calls in the syntax of how->family. A call names one of the tools. Its
 * arguments follow the tool's schema if the tool says "strict": true; otherwise they only parse. */
status grammar_from_tools(grammar **g, const grammar_tools *t, const grammar_setting *how, err *e);

void grammar_close(grammar *g); /* NULL is fine; matchers must be closed first */

/* ---- The tokens, as a tree of their bytes (token_tree.c) ---- */

typedef struct token_tree token_tree;

/* The tree of all tokens of v, which must outlive it. E_UNSUPPORTED: v has ids only; E_LIMIT: its
 * tokens have too much text; E_MEMORY. */
status token_tree_open(token_tree **t, const vocab *v, err *e);
void token_tree_close(token_tree *t);      /* NULL is fine */
int32_t token_tree_n(const token_tree *t); /* number of token ids, and of bits in a mask */
size_t token_tree_bytes(const token_tree *t);

/* ---- Following a grammar (grammar_match.c) ---- */

typedef struct matcher matcher;

/* g and t must outlive m. E_UNSUPPORTED: the vocabulary lacks a marker that the grammar needs. */
status matcher_open(matcher **m, const grammar *g, const token_tree *t, err *e);
void matcher_close(matcher *m); /* NULL is fine; its runs must be ended first */

/* A position in a text. The caller owns the struct and must not copy or move it, because the
 * matcher links all its runs. A zeroed run is ended. */
typedef struct grammar_run grammar_run;
struct grammar_run {
    matcher *m;
    int32_t state;
    grammar_run *prev, *next;
};

status grammar_begin(grammar_run *r, matcher *m, err *e);    /* before the first byte */
void grammar_clone(grammar_run *r, const grammar_run *from); /* r: an ended run */
void grammar_end(grammar_run *r);                            /* safe on an ended run */
/* *bits: token_tree_n bits; token id is bit id % 64 of word id / 64. The matcher owns them; they
 * are valid until its next call. *n_allowed may be NULL. E_FORMAT: no token of this vocabulary
 * continues the text. */
status grammar_mask(grammar_run *r, const uint64_t **bits, int32_t *n_allowed, err *e);
/* *ok: the token is allowed. The run then advances past it; otherwise the run does not move. A
 * token that ends generation never moves the run. Costs a few lookups. */
status grammar_accept(grammar_run *r, int32_t id, bool *ok, err *e);
status grammar_accept_bytes(grammar_run *r, const char *s, size_t n, bool *ok, err *e);
bool grammar_may_end(const grammar_run *r);  /* the text is complete as it stands */
bool grammar_must_end(const grammar_run *r); /* and nothing can follow */

/* For tests: how often its states were forgotten, because the tables were full. */
uint64_t matcher_flushes(const matcher *m);

#endif
