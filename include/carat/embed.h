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
    CARAT_POOL_LAST, /* the row of the last token */
    /* Of rerankers alone (carat_model_ranks), and instead of a vector one number: the probability
     * of "yes" against "no" as the next token, for a prompt of carat_rank_tokenize. */
    CARAT_POOL_RANK
} carat_pooling;

/* The embedding of ids[0..n): out[n_embd], not normalised, or out[1] of RANK. On a CPU it is
 * bit-identical for every chunk size and whatever the cache holds. MEAN computes every token again;
 * LAST keeps a cached prefix, except in encoders. The timeline afterwards holds ids. E_LIMIT: n is
 * beyond the context; E_UNSUPPORTED: RANK of another model; E_CANCELLED, E_NUMERIC, E_MEMORY: out
 * is not written. */
CARAT_API carat_status carat_embed(carat_session *s, const int32_t *ids, int64_t n,
                                   carat_pooling pooling, float *out, carat_error *e);
/* The pooling that the file's metadata asks for (ARCH.pooling_type); MEAN if it names none of
 * these. *stated, which may be NULL: the file names one. Any thread. */
CARAT_API carat_pooling carat_model_pooling(const carat_model *m, bool *stated);
/* Is it an encoder, which makes vectors and writes no text? Any thread. */
CARAT_API bool carat_model_is_encoder(const carat_model *m);

/* ---- Texts ------------------------------------------------------------------------------- */

/* A prompt that stands before a text, by its name in config_sentence_transformers.json: the file's,
 * or those of its family. Bytes of the model, not NUL-terminated. */
typedef struct carat_embed_prompt {
    const char *name, *text;
    size_t n_name, n_text;
} carat_embed_prompt;
/* Prompt i, from 0 on; false: there are no more. Any thread. */
CARAT_API bool carat_model_embed_prompt(const carat_model *m, int32_t i, carat_embed_prompt *p);
/* The one of that name. E_ARG lists the names. Any thread. */
CARAT_API carat_status carat_embed_prompt_named(const carat_model *m, const char *name,
                                                carat_embed_prompt *p, carat_error *e);
typedef struct carat_embed_text {
    const char *prompt, *text; /* prompt: before the text */
    size_t n_prompt, n_text;
} carat_embed_text;
/* The ids of a text with its prompt, as carat_embed wants them: with the begin token, and with the
 * end token where the file says so. most > 0: at most so many; *cut: there were more. Returns the
 * number of ids, of which the first cap are written, as carat_tokenize. Any thread. */
CARAT_API int64_t carat_embed_tokenize(const carat_model *m, const carat_embed_text *t,
                                       int64_t most, int32_t *ids, int64_t cap, bool *cut,
                                       carat_error *e);

/* ---- Reranking --------------------------------------------------------------------------- */

/* Is it a reranker? Its file has the rows of "yes" and "no" (cls.output.weight), or a name with
 * "rerank" and a head. Any thread. */
CARAT_API bool carat_model_ranks(const carat_model *m);
typedef struct carat_rank_text {
    const char *query, *document, *instruction; /* instruction NULL: the usual one */
    size_t n_query, n_document, n_instruction;
} carat_rank_text;
/* The ids of the prompt in which the model judges the document, as carat_tokenize. Bytes of query,
 * document and instruction never become control tokens. Any thread. */
CARAT_API int64_t carat_rank_tokenize(const carat_model *m, const carat_rank_text *t, int32_t *ids,
                                      int64_t cap, carat_error *e);

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
