/* compress_int.h - what prompts of texts (compress.c) and of ids (compress_ids.c) share. */
#ifndef ENGINE_COMPRESS_INT_H
#define ENGINE_COMPRESS_INT_H

#include "carat.h"
#include "text/compress.h"

enum { QUERY_MAX = 256 }; /* tokens of a question that a scorer reads, the last ones */

status compress_open(carat_compressed *out, err *e); /* empty; carat_compressed_free */
/* Shortens every text. now[i]: what it becomes; at NULL: it stays. */
status compress_all(carat_compressor *c, const carat_scorer *s, double ratio,
                    const compress_texts *texts, str *now, carat_compressed *out, err *e);
/* Where the end begins that is the question: a line, or else a word, before the last QUERY_MAX
 * tokens, by the scorer's count. */
status compress_find_question(const carat_scorer *s, const char *text, size_t n, size_t *at,
                              err *e);

#endif
