/* fuzz_vocab.c - model files with a vocabulary of chosen sizes, from file bytes to tokens.
 *
 *     flags | n_pieces { type size:16 first } | n_merges { left right } | text
 *
 * Pieces are runs of one letter, so a few bytes of input choose sizes of up to 64 KiB: buffers that
 * are filled to the last byte, empty place holders, pieces longer than any limit. flags & 1: all
 * byte pieces are there; & 2: an empty piece is the last; & 4: the pieces are padded to a power of
 * two; & 8: a vocabulary of bytes; & 16: in place of byte pieces the first piece is the unknown
 * token. The file is refused with a sentence, or its vocabulary encodes the text and prints every
 * token.
 */
#include "fuzz/fuzz.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/text_file.h"

#include <stdlib.h>
#include <string.h>

enum { MERGES_MAX = 32, VOCAB_ROWS = 1 << 20 };
enum { U32 = 4, I32 = 5, STRING = 8, ARRAY = 9 };

/* Bytes of pieces after which a piece has at most 63. A fuzzer tries thousands of files a second
 * where it fills one buffer of the vocabulary, and a few where it fills many. The corpus fills them
 * all. */
#if CARAT_FUZZ
enum { PIECES_MAX = 32, LONG_PIECES = 1 << 10, TEXT_MAX = 64 };
#else
enum { PIECES_MAX = 96, LONG_PIECES = 1 << 23, TEXT_MAX = 65536 };
#endif

static void put_number(str *s, uint64_t v, int n_bytes)
{
    char b[8];
    for (int i = 0; i < n_bytes; i++)
        b[i] = (char)(v >> 8 * i);
    str_put(s, b, (size_t)n_bytes);
}

static void put_text(str *s, const char *text, size_t n)
{
    put_number(s, n, 8);
    str_put(s, text, n);
}

static void put_string_key(str *s, const char *key, const char *value)
{
    put_text(s, key, strlen(key));
    put_number(s, STRING, 4);
    put_text(s, value, strlen(value));
}

static void put_array_key(str *s, const char *key, int item, uint64_t n)
{
    put_text(s, key, strlen(key));
    put_number(s, ARRAY, 4);
    put_number(s, (uint64_t)item, 4);
    put_number(s, n, 8);
}

static void put_run(str *s, char letter, size_t n)
{
    char run[512];
    memset(run, letter, sizeof run);
    put_number(s, n, 8);
    for (size_t take; n; n -= take) {
        take = n < sizeof run ? n : sizeof run;
        str_put(s, run, take);
    }
}

/* The keys of a file. */
static void put_file(str *s, fuzz_bytes *b)
{
    uint8_t flags = fuzz_next(b), n = fuzz_next(b) % PIECES_MAX, types[PIECES_MAX + 2];
    uint64_t sizes[PIECES_MAX + 2], total = 0, n_bytes = 0;
    bool spelled = flags & 8, unknown = flags & 16;
    if (flags & 1 && !unknown)
        n_bytes = 256;
    uint64_t byte_total = n_bytes * 6; /* of their pieces; spelled: 94 of one byte, 162 of two */
    if (spelled)
        byte_total = n_bytes ? 94 + 162 * 2 : 0;
    char letters[PIECES_MAX + 2];
    int n_pieces = n;
    for (int i = 0; i < n; i++) {
        types[i] = fuzz_next(b) % 8;
        sizes[i] = fuzz_next(b);
        sizes[i] |= (uint64_t)fuzz_next(b) << 8;
        if (total + sizes[i] > LONG_PIECES)
            sizes[i] %= 64;
        letters[i] = (char)fuzz_next(b);
        total += sizes[i];
    }
    if (flags & 4) {
        uint64_t size = 1 << 12; /* as vocab.c begins */
        while (size < total + byte_total)
            size *= 2;
        uint64_t left = size - total - byte_total;
        types[n_pieces] = 1;
        sizes[n_pieces] = left < 65535 ? left : 65535;
        letters[n_pieces++] = '~';
    }
    if (flags & 2) {
        types[n_pieces] = 5;
        sizes[n_pieces] = 0;
        letters[n_pieces++] = 0;
    }
    str_put(s, "GGUF", 4);
    put_number(s, 3, 4);
    put_number(s, 0, 8);
    put_number(s, 5u + spelled + unknown, 8);
    put_string_key(s, "general.architecture", spelled ? "qwen35" : "gemma4");
    put_string_key(s, "tokenizer.ggml.model", spelled ? "gpt2" : "gemma4");
    if (spelled)
        put_string_key(s, "tokenizer.ggml.pre", "qwen35");
    if (unknown) {
        put_text(s, "tokenizer.ggml.unknown_token_id", 31);
        put_number(s, U32, 4);
        put_number(s, 0, 4);
    }
    put_array_key(s, "tokenizer.ggml.tokens", STRING, (uint64_t)n_pieces + n_bytes);
    for (uint64_t i = 0; i < n_bytes; i++) {
        char piece[8] = {'<', '0', 'x', "0123456789ABCDEF"[i >> 4], "0123456789ABCDEF"[i & 15],
                         '>', 0};
        size_t n_piece = spelled ? vocab_spell_byte((unsigned char)i, piece) : 6;
        put_text(s, piece, n_piece);
    }
    for (int i = 0; i < n_pieces; i++)
        put_run(s, letters[i], (size_t)sizes[i]);
    put_array_key(s, "tokenizer.ggml.token_type", I32, (uint64_t)n_pieces + n_bytes);
    for (uint64_t i = 0; i < n_bytes; i++)
        put_number(s, spelled ? TOKEN_NORMAL : TOKEN_BYTE, 4);
    for (int i = 0; i < n_pieces; i++)
        put_number(s, types[i], 4);
    int n_merges = fuzz_next(b) % MERGES_MAX;
    put_array_key(s, "tokenizer.ggml.merges", STRING, (uint64_t)n_merges);
    for (int i = 0; i < n_merges; i++) {
        str merge = {0};
        for (int side = 0; side < 2; side++) {
            int k = n_pieces ? fuzz_next(b) % n_pieces : 0;
            for (uint64_t j = 0; n_pieces && j < sizes[k] && j < 64; j++)
                str_putc(&merge, letters[k]);
            if (!side)
                str_putc(&merge, ' ');
        }
        put_text(s, str_text(&merge), merge.n);
        str_free(&merge);
    }
}

static void use(const vocab *v, const fuzz_bytes *text)
{
    const size_t n_bytes = text->n < TEXT_MAX ? text->n : TEXT_MAX;
    for (int mode = SPECIAL_NONE; mode <= SPECIAL_ALL; mode++) {
        id_list ids = {0};
        err e = {0};
        if (vocab_encode(v, (const char *)text->at, n_bytes, (special_mode)mode, &ids, &e) &&
            !*e.text)
            abort();
        id_list_free(&ids);
    }
    static char printed[65536];
    for (int32_t id = -1; id <= vocab_n(v); id++) {
        size_t n;
        const char *s = vocab_text(v, id, true, &n);
        if (s)
            memcpy(printed, s, n < sizeof printed ? n : sizeof printed); /* reads all of it */
    }
}

FUZZ(vocab)
{
    fuzz_bytes b = {data, n};
    str file = {0};
    gguf g;
    err e = {0};
    vocab *v = NULL;
    const chat_format *chat;
    put_file(&file, &b);
    void *copy = file.bad ? NULL : mem_aligned(16, file.n); /* exactly as long: no byte to spare */
    if (copy) {
        memcpy(copy, file.at, file.n);
        if (gguf_open_bytes(&g, copy, file.n, "fuzz", &e) ||
            text_from_gguf(&g, VOCAB_ROWS, &v, &chat, &e)) {
            if (!*e.text)
                abort(); /* a failure without a sentence */
        } else if (v) {
            use(v, &b);
        }
        vocab_close(v);
        gguf_close(&g);
    }
    mem_free(copy);
    str_free(&file);
}
