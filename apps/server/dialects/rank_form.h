/* rank_form.h - requests for how well texts answer a query, and their answers as data.
 *
 *     RANK_DOCUMENTS   POST /v1/rerank, /rerank, ...    Jina's, which llama-server, vLLM and Cohere
 *                                                       share; with `texts` the form of TEI
 *     RANK_PAIRS       POST /v1/score, /score           vLLM's: one text with each, or pairs
 *
 * No model and no connection. Everything lives in the request's arena.
 */
#ifndef APPS_SERVER_RANK_FORM_H
#define APPS_SERVER_RANK_FORM_H

#include "apps/server/dialects/request.h"

typedef enum rank_api { RANK_DOCUMENTS, RANK_PAIRS } rank_api;

enum { RANK_TEXTS_MAX = 10000 };

typedef struct rank_request {
    arena mem;
    rank_api api;
    const jtree *body;
    const char *model; /* the client's name for it, or "" */
    int64_t keep_ms;
    const jtree **query;    /* [n_queries], strings; one stands for all */
    const jtree **document; /* [n], strings */
    int32_t n_queries, n;
    const char *instruction; /* NULL: the model's usual one */
    int64_t top_n;           /* the best alone; 0: all */
    bool tei;                /* a bare list with `score` */
    bool texts;              /* results have the document */
} rank_request;

/* *rq is zeroed by the caller, who always calls rank_free. */
bool rank_read(rank_request *rq, rank_api api, const char *body, size_t n, bool lenient,
               problem *p);
void rank_free(rank_request *rq);
/* scores: [rq->n]. model: shown. Documents come in descending order, equal ones in theirs. False:
 * memory is short. */
bool rank_put(const rank_request *rq, const float *scores, const char *model, int64_t n_tokens,
              str *o);

#endif
