/* carat/compress.h - long texts of a conversation, shortened. */
#ifndef CARAT_COMPRESS_H
#define CARAT_COMPRESS_H

#include "text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Long texts of a conversation, shortened to the sentences that its question needs, before the
 * conversation is rendered. A scorer, usually a small model, says which: by carat_importance of the
 * text with the question after it. This loses what the scorer misjudges, so it is never done
 * unasked.
 *
 * Shortened are texts of 512 tokens or more in user messages, and in answers before the last two
 * turns. Never touched: system messages, tools and their results, calls, thoughts, answers of the
 * last two turns, and the end of each turn's last user message: its last 256 tokens, from the
 * beginning of a line on, which hold the question. Blocks of code between fences stay whole or go
 * as a whole. Sentences and lines stay whole, and words always. What goes is marked by "[...]".
 *
 * A text before the last two turns is shortened for the question that came two turns after it, in
 * all later prompts alike; so these begin with what a cache has. The result depends on nothing but
 * the arguments.
 *
 * After SpecPrefill (arXiv 2502.02789) and its variant across model families (2603.02631). */

/* Scores texts. Its model may have another vocabulary than the one that answers. */
typedef struct carat_scorer {
    const carat_model *model;
    int32_t n_ctx; /* most tokens of a call; longer texts are scored in parts */
    /* carat_importance: in a session of `model`, or as a job of a batch. */
    carat_status (*score)(void *user, const int32_t *ids, int64_t n, float *out, carat_error *e);
    void *user;
} carat_scorer;

typedef struct carat_compress_options {
    double ratio; /* the share of its tokens that a text keeps, 0.01 to 0.99; 0: chosen by its
                     length, in conversations of least_tokens or more without tools */
    int64_t least_tokens; /* without a ratio; 0: CARAT_COMPRESS_FROM */
} carat_compress_options;
enum { CARAT_COMPRESS_FROM = 32000 };

/* Reads "auto", "auto:TOKENS" ("auto:4k") or a ratio. E_ARG. Any thread. */
CARAT_API carat_status carat_compress_parse(const char *text, carat_compress_options *opt,
                                            carat_error *e);

typedef struct carat_span {
    size_t at, n; /* bytes */
} carat_span;

/* A text that was shortened. */
typedef struct carat_compressed_text {
    int32_t message, part; /* indices; part: in a content of parts, else -1 */
    const char *text;      /* as it was, UTF-8; of carat_compress_text the caller's */
    size_t n_text;
    int64_t n_tokens, n_kept; /* before and after, in tokens of the scorer */
    const carat_span *span;   /* [n_spans]: what is kept, in order; the rest is gone */
    int32_t n_spans;
} carat_compressed_text;

/* Free with carat_compressed_free. */
typedef struct carat_compressed {
    char *text; /* the prompt; NULL: nothing was shortened */
    size_t n_text;
    carat_talk *talk;           /* the conversation; the same */
    char why[256];              /* without both: the reason, a sentence */
    int64_t n_original, n_kept; /* tokens of the prompt before and after; chats: as rendered */
    carat_compressed_text *at;  /* [n] */
    int32_t n;
    void *own; /* memory of the above */
} carat_compressed;

/* Remembers what it shortened, least recently used first out, in at most max_bytes (0: 64 MiB).
 * Later calls for the same text and question then need no scorer. Any thread. */
typedef struct carat_compressor carat_compressor;
CARAT_API carat_status carat_compressor_open(carat_compressor **c, size_t max_bytes,
                                             carat_error *e);
CARAT_API void carat_compressor_close(carat_compressor *c); /* c may be NULL */

/* What a conversation becomes. It borrows from t, whose texts must stay. E_UNSUPPORTED: the scorer
 * cannot read a text byte for byte, or its device does not score; with ratio 0 that is no error,
 * and nothing is shortened. Else errors of rendering and of the scorer. */
CARAT_API carat_status carat_compress_chat(carat_compressor *c, const carat_model *m,
                                           const carat_scorer *scorer, const carat_talk *t,
                                           const carat_chat_options *chat,
                                           const carat_compress_options *opt, carat_compressed *out,
                                           carat_error *e);
/* The same of a text without a chat format: all but its end, about the last 256 tokens, which are
 * the question. E_UNSUPPORTED: it spells control tokens of m, so it is a rendered conversation. */
CARAT_API carat_status carat_compress_text(carat_compressor *c, const carat_model *m,
                                           const carat_scorer *scorer, const char *text, size_t n,
                                           const carat_compress_options *opt, carat_compressed *out,
                                           carat_error *e);
/* The same of a prompt that is token ids of m: out[n] receives *n_out of them. Control tokens and
 * what belongs to them stay. The last text between two of them is the question; others are
 * shortened that come before the first, or whose first line is "user". A prompt that is one such
 * text is treated as carat_compress_text treats it. E_ARG: not an id of m. */
CARAT_API carat_status carat_compress_ids(carat_compressor *c, const carat_model *m,
                                          const carat_scorer *scorer, const int32_t *ids, int64_t n,
                                          const carat_compress_options *opt, int32_t *out,
                                          int64_t *n_out, carat_error *e);
CARAT_API void carat_compressed_free(carat_compressed *x); /* safe on a zeroed or freed one */

#ifdef __cplusplus
}
#endif
#endif
