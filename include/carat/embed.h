/* carat/embed.h - vectors of texts, and the importance of their tokens. */
#ifndef CARAT_EMBED_H
#define CARAT_EMBED_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the hidden rows of a text's tokens become one vector. A hidden row is the last layer's output
 * after the model's final norm, before the output head. */
typedef enum carat_pooling {
    CARAT_POOL_MEAN, /* the mean of all rows, summed in f64 */
    CARAT_POOL_LAST  /* the row of the last token */
} carat_pooling;

/* The embedding of ids[0..n): out[n_embd], not normalised. On a CPU it is bit-identical for every
 * chunk size and whatever the cache holds. MEAN computes every token again; LAST keeps a cached
 * prefix. The timeline afterwards holds ids. E_LIMIT: n is beyond the context; E_CANCELLED,
 * E_NUMERIC, E_MEMORY: out is not written. */
CARAT_API carat_status carat_embed(carat_session *s, const int32_t *ids, int64_t n,
                                   carat_pooling pooling, float *out, carat_error *e);
/* The pooling that the file's metadata asks for (ARCH.pooling_type); MEAN if it names none of
 * these. *stated, which may be NULL: the file names one. Any thread. */
CARAT_API carat_pooling carat_model_pooling(const carat_model *m, bool *stated);

/* ---- Importance of tokens ---------------------------------------------------------------- */

/* How much the end of a text attends to each of its tokens, for whoever has to leave some out.
 * CARAT_IMPORTANCE_TAIL queries, those of the last tokens, are compared with all keys before the
 * rotation, so distance does not count; a token's value is the largest share of any head of any
 * layer that sees the whole text, averaged over the queries, and then over the
 * CARAT_IMPORTANCE_SMOOTH tokens around it.
 *
 * out[n]: a value between 0 and 1 for each token. A prefix that the session has is kept, so a
 * longer text costs its new tokens alone. The timeline afterwards holds ids. E_ARG: n is not above
 * CARAT_IMPORTANCE_TAIL; E_UNSUPPORTED: the model's device does not tell (CPUs do); E_LIMIT: n is
 * beyond the context; E_CANCELLED, E_NUMERIC, E_MEMORY: out is not written. */
enum { CARAT_IMPORTANCE_TAIL = 8, CARAT_IMPORTANCE_SMOOTH = 13 };
CARAT_API carat_status carat_importance(carat_session *s, const int32_t *ids, int64_t n, float *out,
                                        carat_error *e);
/* The mean value of each `chunk` tokens, the last chunk may be shorter: out[ceil(n / chunk)].
 * normal: less the mean of all chunks and over their standard deviation (0, where all are equal).
 * Returns the number of chunks. Any thread. */
CARAT_API int64_t carat_importance_chunks(const float *value, int64_t n, int32_t chunk, bool normal,
                                          float *out);

#ifdef __cplusplus
}
#endif
#endif
