/* vocab.h - a model's vocabulary: bytes to token ids and back.
 *
 * A builder makes a vocabulary once and copies its input, so the caller may pass views into a
 * mapped file and unmap it afterwards. The finished vocabulary is read-only and thread-safe. This
 * folder knows no file format: the reader of a file walks its arrays and calls the add functions.
 *
 *     vocab_builder *b;
 *     if (vocab_begin(&b, n_tokens, n_merges, e)) return e->status;
 *     for (...) vocab_add_token(b, piece.at, piece.n, type);    the first error is kept
 *     for (...) vocab_add_merge(b, merge.at, merge.n);
 *     st = vocab_finish(b, &settings, &v, e);                   frees b in any case
 *
 * Ids are int32_t in [0, n). Sizes are bytes. Pieces are byte strings, not NUL-terminated, as the
 * file spells them: VOCAB_CHARS has U+2581 for a space; VOCAB_BYTES has a printable character for
 * every byte (vocab_int.h) in ordinary pieces. Texts are what pieces stand for.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/err.h"

struct text_family; /* family.h */
typedef struct vocab vocab;
typedef struct vocab_builder vocab_builder;

/* The numbers of tokenizer.ggml.token_type. */
typedef enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4, /* matched in any text, shown when generated */
    TOKEN_UNUSED = 5,       /* a placeholder: may repeat or be empty */
    TOKEN_BYTE = 6          /* "<0x0A>" */
} token_type;

typedef enum vocab_kind {
    VOCAB_NONE,  /* the model has no text: ids only */
    VOCAB_CHARS, /* BPE by merge rank over characters, with byte fallback; U+2581 for a space */
    VOCAB_BYTES  /* BPE by merge rank over bytes, which pieces spell as characters */
} vocab_kind;

/* The scalar tokenizer keys. Absent ids are -1. */
typedef struct vocab_settings {
    const struct text_family *family; /* of the file's architecture */
    const char *model;                /* tokenizer.ggml.model; "no_vocab": ids only */
    const char *pre;                  /* tokenizer.ggml.pre, or NULL */
    int32_t bos, eos, eot, unk, pad;
    bool add_bos;        /* tokenizer.ggml.add_bos_token */
    const float *score;  /* of every piece; NULL: the file has none */
    bool no_space_first; /* tokenizer.ggml.add_space_prefix is there, and false */
} vocab_settings;

/* Building: begin, add n_tokens pieces in the order of their ids, then n_merges merges, finish. The
 * first error stays in the builder, and vocab_finish reports it. type: a token_type, as the file
 * has it. vocab_finish frees b in any case. */
status vocab_begin(vocab_builder **b, int64_t n_tokens, int64_t n_merges, err *e);
void vocab_add_token(vocab_builder *b, const char *piece, size_t n, int64_t type);
/* merge is "A B", separated by its first space at index 1 or later. Ranks follow the order of
 * calls; a merge that is added again keeps its first rank. */
void vocab_add_merge(vocab_builder *b, const char *merge, size_t n);
status vocab_finish(vocab_builder *b, const vocab_settings *s, vocab **v, err *e);
void vocab_abandon(vocab_builder *b); /* frees a builder that will not be finished; NULL is fine */
void vocab_close(vocab *v);           /* NULL is fine */

/* A vocabulary never changes: any thread may read it. vocab_n: the number of ids. */
vocab_kind vocab_kind_of(const vocab *v);
int32_t vocab_n(const vocab *v);
const struct text_family *vocab_family(const vocab *v);
int32_t vocab_bos(const vocab *v);       /* raw prompts begin with it; -1: none */
int32_t vocab_bos_token(const vocab *v); /* the id of a template's BOS; -1: none */
int32_t vocab_eos(const vocab *v);       /* -1: none */
/* True for the family's end tokens and for the file's eos and eot: they end a generation. */
bool vocab_is_eog(const vocab *v, int32_t id); /* false for ids out of range */
/* Placeholders of media, and tokens of type UNUSED, which stand for nothing: no answer has them.
 * Ascending; owned by the vocabulary. */
const int32_t *vocab_never_sampled(const vocab *v, int32_t *n);
bool vocab_is_never_sampled(const vocab *v, int32_t id); /* false for ids out of range */

/* -1: no such piece. Of several ids with that piece the first that is not of type UNUSED: the one
 * that texts encode to. */
int32_t vocab_find(const vocab *v, const char *piece, size_t n);
int32_t vocab_mark(const vocab *v, const char *piece); /* the same, NUL-terminated; NULL: -1 */
token_type vocab_type(const vocab *v, int32_t id);
/* The piece as the file spells it. NULL if id is out of range. */
const char *vocab_piece(const vocab *v, int32_t id, size_t *n);
/* How VOCAB_BYTES spells a byte in its pieces: one character. Returns its length. */
size_t vocab_spell_byte(unsigned char byte, char out[4]);
/* The bytes of a token: the spellings above are undone; a byte token is its byte. They need not be
 * whole characters. A control token is empty
 * unless `special` is set. The marks of the output parser (the family's `shown`) are always spelled
 * out. NULL if id is out of range. */
const char *vocab_text(const vocab *v, int32_t id, bool special, size_t *n);

/* ---- Bytes to ids (bpe.c) ---------------------------------------------------------------- */

/* A growing list of ids. A zeroed list is empty and valid. Free with id_list_free. */
typedef struct id_list {
    int32_t *at;
    int64_t n, cap;
} id_list;

/* free: safe on a zeroed or freed list. put: appends; E_MEMORY: the list is unchanged. */
void id_list_free(id_list *l);
status id_list_put(id_list *l, int32_t id, err *e);

/* Special pieces are cut out of a text before it is encoded. Structural pieces make up chat
 * formats: control pieces, unknown pieces, and user-defined ones spelled "<|..." or "...|>". */
typedef enum special_mode {
    SPECIAL_NONE, /* structural pieces stay plain text; other user-defined ones match */
    SPECIAL_USER, /* all user-defined pieces match: llama.cpp with parse_special off */
    SPECIAL_ALL   /* control and unknown pieces match too: parse_special on */
} special_mode;

/* Appends the ids of text[0..n). Never adds BOS or EOS. Bytes that are not UTF-8 become U+FFFD in
 * VOCAB_CHARS and stay as they are in VOCAB_BYTES. Worst-case time: n log n. On failure the list is
 * as before the call. */
status vocab_encode(const vocab *v, const char *text, size_t n_bytes, special_mode mode,
                    id_list *out, err *e);

/* As vocab_encode, with `mode` inside the spans and SPECIAL_NONE outside. A special piece never
 * crosses the edge of a span; an ordinary piece may. Spans are byte ranges, ascending, without
 * overlap. */
typedef struct text_span {
    size_t at, n;
} text_span;

/* What stands before a text. A vocabulary with space_first puts a space before a text that begins,
 * as SentencePiece does, and behind special pieces before a text that does not begin with one. */
typedef enum text_before { BEFORE_NOTHING, BEFORE_SPECIAL, BEFORE_TEXT } text_before;

typedef struct marked_text {
    const char *at;
    size_t n;
    special_mode mode;
    const text_span *span;
    size_t n_spans;
    text_before before;
} marked_text;

/* Appends the ids of *t; on failure the list is as before the call. */
status vocab_encode_spans(const vocab *v, const marked_text *t, id_list *out, err *e);

#endif
