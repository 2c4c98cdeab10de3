/* compress.h - long texts of a conversation, shortened to what its question needs.
 *
 *     compress_find     which texts of a conversation may be shortened, and for which question
 *     compress_choose   one text and a value for each of its tokens -> the spans to keep
 *     compress_put      the conversation with what is kept of each text
 *
 * Nothing here knows a model: values of tokens come from outside (carat_importance). All of it is a
 * function of its arguments alone; so a text that is shortened again comes out the same.
 *
 * What is never touched: system and developer messages, tools, results of tools, calls and
 * thoughts, parts of content that are no text, and answers of the last two turns. Of the message
 * that asks in a turn, the last user message of it, the end stays whole: it holds the question. A
 * turn begins with a user message after a message of another role.
 *
 * A text of turn t is shortened for the last user message of turn t + 2, or of the last turn if
 * that comes first. So once its turn is not among the last two, it is the same in all later
 * prompts, which then begin alike.
 *
 * Spans are byte ranges of a text, ascending, not adjacent. Strings are valid UTF-8, as jtree_parse
 * gives them. After SpecPrefill (arXiv 2502.02789) and PFlash, with whole sentences instead of
 * chunks of 32 tokens.
 */
#ifndef TEXT_COMPRESS_H
#define TEXT_COMPRESS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "text/talk.h"
#include "text/vocab.h"

enum {
    COMPRESS_UNIT = 32,       /* tokens of a sentence or of a few, about */
    COMPRESS_LEAST = 512,     /* tokens of a text that is worth it */
    COMPRESS_GRAM = 4,        /* neighbouring tokens that a question and a text have in common */
    COMPRESS_QUERY_TAIL = 96, /* tokens of the question whose neighbours are looked for */
    COMPRESS_TERM_HITS = 8,   /* a word of the question that is more frequent is no name */
    COMPRESS_TURNS = 2, /* the last turns: their answers stay, their texts follow the question */
    COMPRESS_TEXTS_MAX = 65536 /* of a conversation */
};

/* ---- A text --------------------------------------------------------------------------------- */

typedef struct compress_input {
    const char *text;
    size_t n;
    const size_t *end; /* [n_tokens]: bytes of the text up to each token's end; the last is n */
    const int32_t *id; /* [n_tokens] */
    const float *value;
    int64_t n_tokens;
    const int32_t *query_id; /* [n_query]: the question, by the same vocabulary */
    int64_t n_query;
    const char *query; /* the same as text */
    size_t n_query_bytes;
    double keep; /* share of the tokens, above 0 and below 1 */
} compress_input;

typedef struct compress_result {
    text_span *span; /* [n] */
    size_t n;
    int64_t n_kept; /* tokens in them */
} compress_result;

/* Chooses the spans to keep. They begin and end at the ends of sentences or lines; of words, where
 * a sentence has more than two units; of characters, where there are no words. A block of code
 * between fences is kept or dropped as a whole.
 *
 * Kept within the budget of keep times n_tokens, in this order: the first and the last unit; units
 * with rare words of the question; units around four tokens in a row that the question has; units
 * by value. If none fits, the unit of the largest value is kept all the same. E_MEMORY. */
status compress_choose(const compress_input *in, compress_result *out, err *e);
void compress_result_free(compress_result *r); /* safe on a zeroed or freed result */

/* Appends the spans, with a mark in place of each gap: " [...] ", or a line of its own between
 * lines. */
void compress_join(const char *text, const text_span *span, size_t n, str *out);

/* The share that a text of n tokens keeps if nobody says: 0.30 up to 2K tokens, 0.20 at 8K, 0.10 at
 * 32K, 0.05 at 64K, 0.02 from 128K on, and linearly between. */
double compress_keep_of(int64_t n_tokens);

/* ---- A conversation -------------------------------------------------------------------------- */

/* A text that may be shortened. Strings belong to the conversation. */
typedef struct compress_text {
    size_t message; /* index */
    int64_t part;   /* index in the content; -1: the content is this text */
    const char *text;
    size_t n;
    const char *query; /* the question that it is shortened for */
    size_t n_query;
    bool asks;     /* it ends with a question: the caller divides it */
    size_t n_tail; /* bytes behind the n that stay as they are: that question */
} compress_text;

typedef struct compress_texts {
    compress_text *at; /* [n], in the order of the conversation; in the arena */
    size_t n;
} compress_texts;

/* The texts of at least least_bytes. They borrow from t. E_MEMORY. */
status compress_find(const carat_talk *t, size_t least_bytes, arena *mem, compress_texts *out,
                     err *e);
/* Puts now[i] in place of text i; str.at NULL: it stays. t: a copy of the conversation
 * (talk_copy) in which they were found. */
void compress_put(const compress_texts *texts, const str *now, carat_talk *t);

#endif
