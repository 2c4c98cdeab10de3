/* vectors.h - many texts of one request as jobs of the batch, in waves: their vectors, or what a
 * reranker says of them.
 *
 * A wave leaves one slot to others, so answers begin and go on beside a long list of texts. The
 * memory of a request is one wave, beside what the caller keeps.
 */
#ifndef APPS_SERVER_VECTORS_H
#define APPS_SERVER_VECTORS_H

#include "apps/server/http/exchange.h"

typedef struct vector_plan {
    exchange *x;
    int32_t n; /* texts */
    carat_pooling pooling;
    /* Text i as ids, which belong to the wave; mem_alloc. False: a problem. */
    bool (*ids)(void *user, int32_t i, int32_t **ids, int64_t *n, problem *p);
    /* Its vector [n_embd], or a number, in the order of the texts. False: a problem. */
    bool (*take)(void *user, int32_t i, float *v, problem *p);
    void *user;
} vector_plan;

/* False: a problem; or without one, the client left. */
bool vectors_run(const vector_plan *plan, problem *p);
/* The problem of texts for which there is no memory. */
bool vectors_no_memory(problem *p);
/* That of a text of n tokens, which the context does not hold. */
bool vectors_too_long(const exchange *x, const char *field, int32_t i, int64_t n, problem *p);

#endif
