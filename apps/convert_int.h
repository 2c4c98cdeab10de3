/* convert_int.h - the parts of carat convert: configuration, vocabulary, weights (convert.c). */
#ifndef APPS_CONVERT_INT_H
#define APPS_CONVERT_INT_H

#include "base/json.h"
#include "model/shapes.h"
#include "text/family.h"
#include "text/jtree.h"

enum { CONVERT_JSON_MAX = 512 << 20 }; /* a tokenizer.json is 33 MB */

/* Parses dir/name. If the file is missing and not required: OK with *out NULL. */
status convert_read_json(json_t **out, const char *dir, const char *name, bool required, err *e);

/* Reads config.json, or the text_config of a multimodal one, to a shape (mem_free). *tied: the head
 * is the embedding. unknown receives the names of unknown keys, separated by ", ". */
typedef status convert_reader(const json_t *config, const char *path, model_shape **s, bool *tied,
                              str *unknown, err *e);
convert_reader convert_gemma4_shape; /* convert_config.c */

/* The tokenizer data of a directory. */
typedef struct convert_vocab {
    json_t *tokenizer_config, *generation, *config;
    const text_family *family;
    const jtree *tokenizer; /* pieces may hold U+0000, which jansson's keys cannot */
    char *template;         /* Jinja source, or NULL */
    int32_t n;              /* tokens; 0: the directory has no tokenizer */
    gguf_string *piece;     /* [n], into the trees */
    int32_t *type;          /* [n] */
    float *score;           /* [n] */
    gguf_string *merge;     /* [n_merges] */
    uint64_t n_merges;
    arena mem;
} convert_vocab;

status convert_vocab_read(convert_vocab *v, const char *dir, err *e);
/* Cuts or extends the vocabulary to n tokens, the rows of the embedding. */
status convert_vocab_fit(convert_vocab *v, int32_t n, err *e);
status convert_vocab_put(const convert_vocab *v, gguf_writer *w,
                         err *e);          /* also general.sampling.* */
void convert_vocab_free(convert_vocab *v); /* safe on a zeroed or freed one */

/* Source and target of one conversion. */
typedef struct convert_request {
    const char *dir, *out;
    const weight_mix *mix;
    const char *name; /* general.name; NULL: the directory's name */
    int32_t n_threads;
    str *unknown; /* see convert_reader; NULL: not wanted */
} convert_request;

/* Converts a model. *n_bytes: the size of the new file. */
status convert_model(const convert_request *r, uint64_t *n_bytes, err *e); /* convert.c */

#endif
