/* compress.h - prompt compression for `run` and `daemon`: the options, a scorer with a session of
 * its own, and what is told of it. One thread. */
#ifndef APPS_COMPRESS_H
#define APPS_COMPRESS_H

#include "apps/options.h"
#include "base/err.h"
#include "base/str.h"

typedef struct compress_options {
    const char *what, *model; /* NULL: nothing is shortened; the model itself scores */
    bool show;
} compress_options;

#define OPT_COMPRESS(T)                                                                            \
    OPT_STR(T, compress.what, "compress", 0, "WHAT",                                               \
            "shorten long texts of a conversation to what its question needs, which changes "      \
            "answers: auto (from 32,000 tokens on, the more the longer), auto:TOKENS, the share "  \
            "of tokens to keep, as 0.3, or off; docs/compression.md (default: off)"),              \
        OPT_STR(T, compress.model, "compress-model", 0, "FILE",                                    \
                "the model that says which sentences matter, on the CPU: a small one, or bundled " \
                "(default: the model itself)",                                                     \
                "compress")

#define OPT_COMPRESS_SHOW(T)                                                                       \
    OPT_FLAG(T, compress.show, "compress-show", 0,                                                 \
             "print the shortened texts on stderr, with what is left out", "compress")

/* Tokens of a text that are scored at once. Longer texts go in parts, because attention costs the
 * square of a part, and the scorer's keys take its length: 0.9 GiB with Qwen3-0.6B. */
enum { SCORER_CTX = 8192 };

bool compress_wanted(const compress_options *o); /* WHAT is neither missing nor off */
/* --compress, checked. *on: something is to be shortened. E_ARG. */
status compress_options_read(const compress_options *o, carat_compress_options *to, bool *on,
                             err *e);

/* A model that scores, and its session, which is opened for the first text and grows. */
typedef struct scorer {
    carat_model *own;           /* --compress-model's; NULL: the target scores */
    const carat_model *model;   /* the one that scores */
    carat_session *s;           /* NULL: not open */
    carat_session_options plan; /* of it, but for its length */
    carat_scorer face;          /* for the library */
} scorer;

/* path NULL: m itself. threads, isa: for a model of its own. */
typedef struct scorer_ask {
    const char *path, *isa;
    const char
        *pages; /* --kv-scorer's file, NULL: none; where path is the same, it is loaded once */
    int32_t threads;
    bool overcommit;
} scorer_ask;

/* Is the file of a scorer also that of --kv-scorer? */
bool scorer_is_shared(const char *path, const char *pages);
status scorer_open(scorer *x, carat_model *m, const scorer_ask *ask, err *e);
void scorer_close(scorer *x); /* safe on a zeroed or closed scorer */
/* Frees the session, which the next text opens again. */
void scorer_rest(scorer *x);

/* What was shortened: a line on stderr, or why nothing was. */
void compress_note(const carat_compressed *x, double ms);
/* The texts, with what is gone in dim type (without colours: between [- and -]). */
void compress_show(FILE *f, const carat_compressed *x);
/* What prompt compression did to the prompts. */
typedef struct compression_report {
    const carat_compressed *at; /* [n]; NULL: nothing was asked for */
    int32_t n;
    double ms;
    const char *scorer;
    const int32_t *origin; /* [n_origin]: a message's index in the request; NULL: the same */
    int32_t n_origin;
    bool prompts; /* n raw prompts; else one conversation */
} compression_report;

/* Appends an object: counts, and the spans of each text. */
void compress_put_json(str *out, const compression_report *t);

#endif
