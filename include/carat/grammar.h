/* carat/grammar.h - structured output. */
#ifndef CARAT_GRAMMAR_H
#define CARAT_GRAMMAR_H

#include "generate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A grammar restricts one generation to texts of one form, exactly, with any sampling. What carat
 * cannot enforce is refused by open, with a sentence that names it.
 *
 *     carat_grammar_open(m, &(carat_grammar_options){.kind = CARAT_GRAMMAR_JSON_SCHEMA,
 *                                                    .source = schema, .n_source = n}, &g, &e);
 *     opt.mask = carat_grammar_mask(g);
 *
 * Any thread may open and close it; in between it belongs to its one generation. */
typedef struct carat_grammar carat_grammar;

typedef enum carat_grammar_kind {
    CARAT_GRAMMAR_JSON,        /* any JSON object */
    CARAT_GRAMMAR_JSON_SCHEMA, /* JSON that a JSON Schema validates; text/json_schema.c: which part
                                */
    CARAT_GRAMMAR_GBNF,        /* derivations of `root` of a grammar in llama.cpp's GBNF */
    CARAT_GRAMMAR_REGEX,       /* text that a regular expression matches as a whole */
    CARAT_GRAMMAR_TOOLS        /* text and tool calls; the tools as in OpenAI's API */
} carat_grammar_kind;

typedef struct carat_grammar_options {
    carat_grammar_kind kind;
    const char *source; /* schema, grammar, expression or tools; NULL for JSON; copied */
    size_t n_source;
    bool thinking;        /* a thought may come before the text */
    bool starts_thinking; /* the prompt ends inside a thought: from carat_chat_render */
    /* TOOLS. Only declared tools are called. Arguments follow the schema of tools that say
     * "strict": true. */
    bool must_call;        /* only calls, at least one */
    bool one_call;         /* at most one call */
    bool strict;           /* every tool is strict */
    const char *only_tool; /* the only tool that may be called; NULL: any */
    /* TOOLS: an answer without a call is JSON of this schema, or with content_json any object. */
    const char *content_schema;
    size_t n_content_schema;
    bool content_json;
    /* Compiling a large source takes up to about a second. Meanwhile it calls this repeatedly, on
     * the calling thread; true ends it with E_CANCELLED. May be NULL. */
    bool (*cancelled)(void *user);
    void *user;
} carat_grammar_options;

/* Compiles a source. On failure *g is NULL. E_ARG: no source; E_FORMAT: the source is malformed;
 * E_UNSUPPORTED: carat cannot enforce a part of it, or the model has no vocabulary; E_LIMIT: it is
 * too large; E_CANCELLED, E_MEMORY. Close g before the model. */
CARAT_API carat_status carat_grammar_open(carat_model *m, const carat_grammar_options *opt,
                                          carat_grammar **g, carat_error *e);
CARAT_API void carat_grammar_close(carat_grammar *g); /* g may be NULL */
/* Says that the text begins with these bytes, which the generation does not sample. Before the
 * first token. E_ARG: no text of the grammar begins so; then only close g. */
CARAT_API carat_status carat_grammar_follow(carat_grammar *g, const char *text, size_t n,
                                            carat_error *e);
CARAT_API const carat_mask *carat_grammar_mask(carat_grammar *g); /* valid as long as g */
/* Is the text so far one of the grammar? */
CARAT_API bool carat_grammar_complete(const carat_grammar *g);
/* Why the grammar cannot go on, as a sentence that belongs to g; "": it can. */
CARAT_API const char *carat_grammar_failure(const carat_grammar *g);

#ifdef __cplusplus
}
#endif
#endif
