/* vocab.h - the pieces a model reads and writes: bytes to token ids and back.
 *
 * A builder makes a vocabulary once and copies its input, so the caller may pass views into a
 * mapped file and unmap it afterwards. The finished vocabulary is read-only and thread-safe. No
 * file format is known here: the opener of a file walks its arrays and calls add.
 *
 *     vocab_builder *b;
 *     if (vocab_begin(&b, n_tokens, n_merges, e)) return e->status;
 *     for (...) vocab_add_token(b, piece.at, piece.n, type);    errors stick and wait
 *     for (...) vocab_add_merge(b, merge.at, merge.n);
 *     st = vocab_finish(b, &settings, &v, e);                   frees b in any case
 *
 * Ids are int32_t in [0, n). Sizes are bytes. Pieces are byte strings, not NUL-terminated, and
 * spell a space as U+2581; texts spell it as a space.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/err.h"

struct text_family; /* family.h */
typedef struct vocab vocab;
typedef struct vocab_builder vocab_builder;

/* As tokenizer.ggml.token_type numbers them. */
typedef enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4, /* matched in any text, shown when generated */
    TOKEN_UNUSED = 5,       /* a place holder: may repeat or be empty */
    TOKEN_BYTE = 6          /* "<0x0A>" */
} token_type;

typedef enum vocab_kind {
    VOCAB_NONE, /* the model has no text: ids only */
    VOCAB_CHARS /* BPE by merge rank over characters, spaces spelled U+2581, bytes as fallback */
} vocab_kind;

/* The tokenizer keys that are no arrays. Absent ids are -1. */
typedef struct vocab_settings {
    const struct text_family *family; /* of the file's architecture */
    const char *model;                /* tokenizer.ggml.model; "no_vocab": ids only */
    const char *pre;                  /* tokenizer.ggml.pre, or NULL */
    int32_t bos, eos, eot, unk, pad;
    bool add_bos; /* tokenizer.ggml.add_bos_token */
} vocab_settings;

status vocab_begin(vocab_builder **b, int64_t n_tokens, int64_t n_merges, err *e);
void vocab_add_token(vocab_builder *b, const char *piece, size_t n, int64_t type);
/* "A B": the first space at index 1 or later separates. The order of the calls is the rank. */
void vocab_add_merge(vocab_builder *b, const char *merge, size_t n);
status vocab_finish(vocab_builder *b, const vocab_settings *s, vocab **v, err *e);
void vocab_abandon(vocab_builder *b); /* frees a builder that will not be finished; NULL is fine */
void vocab_close(vocab *v);           /* NULL is fine */

vocab_kind vocab_kind_of(const vocab *v);
int32_t vocab_n(const vocab *v);
const struct text_family *vocab_family(const vocab *v);
int32_t vocab_bos(const vocab *v);       /* raw prompts begin with it; -1: with none */
int32_t vocab_bos_token(const vocab *v); /* what a template's BOS becomes; -1: there is none */
int32_t vocab_eos(const vocab *v);       /* -1: none */
/* Generation ends with any of the family's ends, and with the file's eos and eot. */
bool vocab_is_eog(const vocab *v, int32_t id); /* false for ids out of range */
/* Place holders for media, which a text model must never sample. Owned by the vocabulary. */
const int32_t *vocab_never_sampled(const vocab *v, int32_t *n);

int32_t vocab_find(const vocab *v, const char *piece, size_t n); /* -1: no such piece */
int32_t vocab_mark(const vocab *v, const char *piece); /* the same, NUL-terminated; NULL: -1 */
token_type vocab_type(const vocab *v, int32_t id);
/* The piece as the file spells it. NULL if id is out of range. */
const char *vocab_piece(const vocab *v, int32_t id, size_t *n);
/* The bytes a token stands for: U+2581 is a space again, a byte token is its byte. Control tokens
 * are empty unless special is set; the marks that an output parser needs (the family's `shown`) are
 * always spelled out. NULL if id is out of range. */
const char *vocab_text(const vocab *v, int32_t id, bool special, size_t *n);

/* ---- Bytes to ids (bpe.c) ---------------------------------------------------------------- */

/* A growing list of ids. A zeroed list is empty and valid. Free with id_list_free. */
typedef struct id_list {
    int32_t *at;
    int64_t n, cap;
} id_list;

void id_list_free(id_list *l);
status id_list_put(id_list *l, int32_t id, err *e);

/* Special pieces are cut out of a text before it is encoded. Structural pieces are those a chat
 * format is made of: control, unknown, and user-defined ones spelled "<|..." or "...|>". */
typedef enum special_mode {
    SPECIAL_NONE, /* structure stays plain text; other user-defined pieces are matched */
    SPECIAL_USER, /* all user-defined pieces are matched: what llama.cpp calls parse_special off */
    SPECIAL_ALL   /* control and unknown pieces too: parse_special on */
} special_mode;

/* Appends the ids of text[0..n). Never adds BOS or EOS. Bytes that are not UTF-8 become U+FFFD.
 * Time grows as n log n at worst. On failure the list keeps what it held before the call. */
status vocab_encode(const vocab *v, const char *text, size_t n_bytes, special_mode mode,
                    id_list *out, err *e);

/* The same with special pieces in parts of the text only: mode applies inside the spans,
 * SPECIAL_NONE outside. Ordinary pieces may cross the edges of spans, special ones may not.
 * Spans ascend, in bytes, and do not overlap. */
typedef struct text_span {
    size_t at, n;
} text_span;

typedef struct marked_text {
    const char *at;
    size_t n;
    special_mode mode;
    const text_span *span;
    size_t n_spans;
} marked_text;

status vocab_encode_spans(const vocab *v, const marked_text *t, id_list *out, err *e);

#endif
