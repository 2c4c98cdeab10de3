/* fuzz_tokenizer.c - a vocabulary and a text from the same bytes.
 *
 *     flags | n_pieces { type len bytes } | n_merges { len bytes } | text
 *
 * flags & 1: all byte pieces are there; & 2: a few chat markers too; & 8: a vocabulary of bytes,
 * with the pre-splitter flags >> 4. The vocabulary is refused with a sentence, or it encodes every
 * text in every mode to its own ids, twice to the same ids. The ids of a vocabulary of bytes spell
 * the text.
 */
#include "fuzz/fuzz.h"
#include "tests/vocab_parts.h"
#include "text/gemma4.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "text/vocab.h"

#include <string.h>

/* Of a long text the encoder sees nothing that it has not seen in a short one, and takes a hundred
 * times as long. A fuzzer tries one mode at a time, by the length of the input. */
#if CARAT_FUZZ
enum { INPUT_MAX = 192, ONE_MODE = 1 };
#else
enum { INPUT_MAX = 65536, ONE_MODE = 0 };
#endif

static const char *stretch(fuzz_bytes *b, size_t want, size_t *n)
{
    const char *s = (const char *)b->at;
    *n = want < b->n ? want : b->n;
    b->at += *n;
    b->n -= *n;
    return s;
}

static void encode(const vocab *v, const char *text, size_t n, special_mode mode, bool exact)
{
    size_t at = 0;
    id_list a = {0}, b = {0};
    err e = {0};
    text_span span[2] = {{0, n / 3}, {n / 2, n - n / 2}};
    fuzz_check(!vocab_encode(v, text, n, mode, &a, &e), e.text);
    fuzz_check(!vocab_encode(v, text, n, mode, &b, &e), e.text);
    fuzz_check(a.n == b.n && (!a.n || !memcmp(a.at, b.at, (size_t)a.n * sizeof *a.at)),
               "not the same");
    for (int64_t i = 0; i < a.n; i++) {
        size_t n_text;
        fuzz_check(a.at[i] >= 0 && a.at[i] < vocab_n(v), "an id out of range");
        const char *s = vocab_text(v, a.at[i], true, &n_text);
        fuzz_check(s != NULL, "an id without text");
        fuzz_check(!exact || (n_text <= n - at && !memcmp(s, text + at, n_text)), "another text");
        at += exact ? n_text : 0;
    }
    fuzz_check(!exact || at == n, "a shorter text");
    b.n = 0;
    fuzz_check(
        !vocab_encode_spans(v, &(marked_text){text, n, mode, span, 2, BEFORE_NOTHING}, &b, &e),
        e.text);
    id_list_free(&a);
    id_list_free(&b);
}

static void try_text(const uint8_t *data, size_t size)
{
    static const char *const markers[] = {"<bos>", "<eos>", "<|turn>", "<turn|>", "<|\"|>"};
    fuzz_bytes b = {data, size}, again;
    uint8_t flags = fuzz_next(&b);
    int n_pieces = fuzz_next(&b), n_merges = 0;
    vocab_builder *builder;
    vocab_settings set = {.family = &gemma4_text,
                          .model = "gemma4",
                          .bos = -1,
                          .eos = -1,
                          .eot = -1,
                          .unk = flags & 4 ? 0 : -1,
                          .pad = -1};
    bool spelled = flags & 8;
    if (spelled) {
        static const char *const pre[] = {"qwen2", "qwen35", "laguna"};
        set.pre = pre[(flags >> 4) % 3];
        set.model = "gpt2";
        set.family = (flags >> 4) % 3 == 2 ? &laguna_text : &qwen_text;
    }
    vocab *v;
    err e = {0};
    size_t n;

    again = b;
    for (int i = 0; i < n_pieces; i++) {
        fuzz_next(&again);
        stretch(&again, fuzz_next(&again) % 24, &n);
    }
    n_merges = fuzz_next(&again);
    if (vocab_begin(&builder, n_pieces + (flags & 1 ? 256 : 0) + (flags & 2 ? 5 : 0), n_merges, &e))
        return;
    for (int i = 0; i < n_pieces; i++) {
        int type = fuzz_next(&b) % 8;
        const char *s = stretch(&b, fuzz_next(&b) % 24, &n);
        vocab_add_token(builder, s, n, type);
    }
    for (int i = 0; i < 256 && flags & 1 && spelled; i++) {
        char c[4];
        vocab_add_token(builder, c, vocab_spell_byte((unsigned char)i, c), TOKEN_NORMAL);
    }
    if (flags & 1 && !spelled)
        add_byte_pieces(builder);
    for (int i = 0; i < 5 && flags & 2; i++)
        vocab_add_token(builder, markers[i], strlen(markers[i]),
                        i < 4 ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
    fuzz_next(&b);
    for (int i = 0; i < n_merges; i++) {
        const char *s = stretch(&b, fuzz_next(&b) % 24, &n);
        vocab_add_merge(builder, s, n);
    }
    if (vocab_finish(builder, &set, &v, &e)) {
        fuzz_check(*e.text, "refused without a sentence");
        return;
    }
    for (int mode = SPECIAL_NONE; mode <= SPECIAL_ALL; mode++)
        if (!ONE_MODE || mode == (int)(size % (SPECIAL_ALL + 1)))
            encode(v, (const char *)b.at, b.n, (special_mode)mode, spelled && flags & 1);
    vocab_close(v);
}

FUZZ(tokenizer)
{
    try_text(data, n < INPUT_MAX ? n : INPUT_MAX);
}
