/* embed_form.h - requests for embeddings and their answers as data, in four dialects.
 *
 *     EMBED_OPENAI       POST /v1/embeddings                 an object; base64 if asked for
 *     EMBED_LLAMA        POST /embedding, /embeddings        llama-server's: a bare array
 *     EMBED_OLLAMA       POST /api/embed                     ollama's
 *     EMBED_OLLAMA_OLD   POST /api/embeddings                ollama's former one: one prompt
 *
 * No model and no connection. Everything lives in the request's arena.
 */
#ifndef APPS_SERVER_EMBED_FORM_H
#define APPS_SERVER_EMBED_FORM_H

#include "apps/server/dialects/request.h"

typedef enum embed_api { EMBED_OPENAI, EMBED_LLAMA, EMBED_OLLAMA, EMBED_OLLAMA_OLD } embed_api;

enum {
    EMBED_INPUTS_MAX = 2048,    /* OpenAI's limit */
    EMBED_VALUES_MAX = 8 << 20, /* numbers of one answer, which is about 100 MB of text */
    EMBED_NORM_NONE = -1,       /* of llama-server's embd_normalize */
    EMBED_NORM_MAX = 0,         /* the largest becomes 32760 */
    EMBED_NORM_EUCLID = 2
};

typedef struct embed_request {
    arena mem;
    embed_api api;
    const jtree *body;
    const char *model; /* the client's name for it, or "" */
    int64_t keep_ms;   /* keep_alive: how long the model stays loaded after it */
    raw_prompt *input;
    int32_t n_inputs;
    const char *prompt_name; /* of the prompt before each text; NULL: none */
    bool truncate;           /* a longer input is cut; else it is refused */
    bool base64;             /* little-endian f32; else an array of numbers */
    int64_t dimensions;      /* the first numbers only; 0: all */
    int32_t norm;            /* p of the p-norm, or one of the above */
    bool pooling_given;      /* else as the model's file says */
    carat_pooling pooling;
} embed_request;

/* The JSON, the known fields and the model's name. *rq is zeroed by the caller, who always calls
 * embed_free. */
bool embed_open(embed_request *rq, embed_api api, const char *body, size_t n, bool lenient,
                problem *p);
/* The rest, which needs the model's sizes. */
bool embed_read(embed_request *rq, int32_t n_vocab, int32_t n_embd, problem *p);
void embed_free(embed_request *rq);

/* Cuts the vector to rq->dimensions and norms it, in f64. False: a problem, for a vector without
 * length. *n: its numbers before and after. */
bool embed_norm(const embed_request *rq, float *v, int32_t *n, problem *p);

/* The answer: begin, a vector per input in order, end. */
typedef struct embed_answer {
    const embed_request *rq;
    const char *model;   /* shown */
    const char *pooling; /* "mean", "last" */
    int64_t n_tokens;    /* of all inputs */
    double total_ms, load_ms;
} embed_answer;
void embed_begin(const embed_answer *a, str *o);
void embed_put(const embed_answer *a, int32_t index, const float *v, int32_t n, str *o);
void embed_end(const embed_answer *a, str *o);

#endif
