/* bytes_test.c - vocabularies of bytes: against the tokenizers package, and what their entries say
 * of pieces and ids.
 */
#include "tests/test.h"
#include "tests/vocab_json.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "text/vocab_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

RELEASED_AT(vocab_close, vocab)

TEST(bytes_agree_with_tokenizers)
{
    const char *other = getenv("BPE_CASES"); /* of tools/bytes_fixtures.py --all */
    if (other) {
        replay_vocab_cases(other);
        return;
    }
    replay_vocab_cases(test_path("tests/data/vocab/qwen2.json"));
    replay_vocab_cases(test_path("tests/data/vocab/qwen35.json"));
    replay_vocab_cases(test_path("tests/data/vocab/laguna.json"));
    replay_vocab_cases(test_path("tests/data/vocab/llama-bpe.json"));
    replay_vocab_cases(test_path("tests/data/vocab/gpt-4o.json"));
    replay_vocab_cases(test_path("tests/data/vocab/tekken.json"));
}

TEST(every_byte_is_spelled_by_a_character_of_its_own)
{
    bool seen[0x200] = {0};
    for (int b = 0; b < 256; b++) {
        uint32_t c = byte_to_char((unsigned char)b);
        CHECK(c > ' ' && c < 0x144 && !seen[c]);
        seen[c] = true;
        CHECK_EQ(char_to_byte(c), b);
    }
    for (uint32_t c = 0; c < 0x200; c++)
        CHECK(seen[c] || char_to_byte(c) == -1);
    CHECK_EQ(byte_to_char(' '), 0x120);
    CHECK_EQ(byte_to_char('\n'), 0x10A);
    CHECK_EQ(byte_to_char(0xAD), 0x143);
}

/* ---- Made by hand: all bytes, a few merges, and the pieces of a family ---- */

typedef struct added {
    const char *piece;
    int type;
} added;

typedef struct hand_made {
    const text_family *family;
    const char *pre;
    added added[12];
    int32_t bos, eos, eot; /* as the file gives them, plus one; 0: it does not */
    bool add_bos;
    int leave_out; /* this byte has no piece; 0: all have */
} hand_made;

static status build(const hand_made *h, vocab **v, err *e)
{
    static const char *const word[] = {"h", "e", "he", "l", "hel", "lo", "o", "hello"};
    static const char *const merge[] = {"h e", "he l", "l o", "hel lo"};
    vocab_settings set = {.family = h->family,
                          .model = "gpt2",
                          .pre = h->pre,
                          .bos = h->bos - 1,
                          .eos = h->eos - 1,
                          .eot = h->eot - 1,
                          .unk = -1,
                          .pad = -1,
                          .add_bos = h->add_bos};
    vocab_builder *b;
    int n = 0;
    while (n < 12 && h->added[n].piece)
        n++;
    status st = vocab_begin(&b, n + 256 + 4 - !!h->leave_out, 4, e);
    if (st)
        return st;
    for (int i = 0; i < n; i++)
        vocab_add_token(b, h->added[i].piece, strlen(h->added[i].piece), h->added[i].type);
    for (int i = 0; i < 256; i++) {
        char piece[4];
        if (!h->leave_out || i != h->leave_out)
            vocab_add_token(b, piece, (size_t)utf8_encode(byte_to_char((unsigned char)i), piece),
                            TOKEN_NORMAL);
    }
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strlen(word[i]) > 1)
            vocab_add_token(b, word[i], strlen(word[i]), TOKEN_NORMAL);
    for (size_t i = 0; i < sizeof merge / sizeof *merge; i++)
        vocab_add_merge(b, merge[i], strlen(merge[i]));
    return vocab_finish(b, &set, v, e);
}

#define QWEN_PIECES                                                                                \
    {                                                                                              \
        {"<|endoftext|>", 3}, {"<|im_start|>", 3}, {"<|im_end|>", 3}, {"<think>", 4},              \
            {"</think>", 1}, {"<|image_pad|>", 3},                                                 \
        {                                                                                          \
            "<|fim_pad|>", 4                                                                       \
        }                                                                                          \
    }

static void expect(const vocab *v, const char *text, size_t n, special_mode mode,
                   const char *const *pieces)
{
    AUTO(id_list_free) id_list l = {0};
    err e = {0};
    int64_t i = 0;
    CHECK_OK(vocab_encode(v, text, n, mode, &l, &e), e);
    for (; pieces[i]; i++) {
        size_t n_piece = 0;
        const char *p = i < l.n ? vocab_piece(v, l.at[i], &n_piece) : NULL;
        CHECK_MSG(p && n_piece == strlen(pieces[i]) && !memcmp(p, pieces[i], n_piece),
                  "\"%s\": token %lld is \"%.*s\", expected \"%s\"", text, (long long)i,
                  (int)n_piece, p ? p : "", pieces[i]);
    }
    CHECK_EQ(l.n, i);
}
#define EXPECT(v, text, mode, ...)                                                                 \
    expect(v, text, sizeof text - 1, mode, (const char *const[]){__VA_ARGS__, NULL})

TEST(bytes_qwen_pieces_by_the_entry)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    /* The file asks for a BOS, and no Qwen has one. */
    hand_made h = {&qwen_text, "qwen35", QWEN_PIECES, 1, 0, 0, true, 0};
    CHECK_OK(build(&h, &v, &e), e);
    CHECK_EQ(vocab_kind_of(v), VOCAB_BYTES);
    CHECK_EQ(vocab_bos(v), -1);
    CHECK_EQ(vocab_eos(v), 2);
    const bool ends[] = {true, false, true, false, false, false, true};
    for (int i = 0; i < 7; i++)
        CHECK_EQ(vocab_is_eog(v, i), ends[i]);
    CHECK_EQ(vocab_type(v, 4), TOKEN_USER_DEFINED); /* the file said normal */
    CHECK_EQ(vocab_type(v, 6), TOKEN_CONTROL);
    int32_t n;
    CHECK_EQ(*vocab_never_sampled(v, &n), 5);
    CHECK_EQ(n, 1);
    EXPECT(v, "<|im_start|><think>hello\n", SPECIAL_ALL, "<|im_start|>", "<think>", "hello",
           "\xC4\x8A");
    EXPECT(v, "</think> hel", SPECIAL_USER, "</think>", "\xC4\xA0", "hel");
    EXPECT(v, "<think>", SPECIAL_NONE, "<", "t", "h", "i", "n", "k", ">");
}

TEST(bytes_laguna_ends_by_spelling)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    /* As older conversions are: one end alone, and its other one an ordinary piece. */
    hand_made h = {&laguna_text,
                   "laguna",
                   {{"\xE3\x80\x88|EOS|\xE3\x80\x89", 3}, {"</assistant>", 1}, {"<assistant>", 4}},
                   1,
                   1,
                   0,
                   false,
                   0};
    CHECK_OK(build(&h, &v, &e), e);
    CHECK(vocab_is_eog(v, 0) && vocab_is_eog(v, 1) && !vocab_is_eog(v, 2));
    CHECK_EQ(vocab_type(v, 1), TOKEN_CONTROL);
    CHECK_EQ(vocab_bos(v), -1);
    CHECK_EQ(vocab_bos_token(v), 0);
    EXPECT(v, "hello</assistant>", SPECIAL_ALL, "hello", "</assistant>");
    EXPECT(v, "o</assistant>", SPECIAL_USER, "o", "<", "/", "a", "s", "s", "i", "s", "t", "a", "n",
           "t", ">");
    vocab_close(v);
    h.add_bos = true; /* the file decides */
    CHECK_OK(build(&h, &v, &e), e);
    CHECK_EQ(vocab_bos(v), 0);
}

TEST(bytes_survive_as_they_are)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    hand_made h = {&qwen_text, "qwen2", QWEN_PIECES, 0, 0, 0, false, 0};
    uint64_t rng = test_seed();
    AUTO(id_list_free) id_list ids = {0};
    AUTO(str_free) str back = {0};
    CHECK_OK(build(&h, &v, &e), e);
    for (int round = 0; round < 200; round++) {
        char text[300];
        size_t n = rng_below(&rng, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] =
                (char)(rng_below(&rng, 3) ? rng_below(&rng, 256) : (uint64_t) "hello "[i % 6]);
        ids.n = 0;
        str_cut(&back, 0);
        CHECK_OK(vocab_encode(v, text, n, SPECIAL_USER, &ids, &e), e);
        for (int64_t i = 0; i < ids.n; i++) {
            size_t n_text;
            const char *s = vocab_text(v, ids.at[i], true, &n_text);
            str_put(&back, s, n_text);
        }
        CHECK(back.n == n && !memcmp(str_text(&back), text, n));
    }
    EXPECT(v, "\xFFhello\xE4\xBD", SPECIAL_USER, "\xC3\xBF", "hello", "\xC3\xA4", "\xC2\xBD");
}

TEST(bytes_refused_by_name)
{
    vocab *v;
    err e = {0};
    hand_made h = {&qwen_text, "gpt-4o", QWEN_PIECES, 0, 0, 0, false, 0};
    CHECK_STATUS(build(&h, &v, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "\"gpt2\" (pre \"gpt-4o\")") && strstr(e.text, "(pre \"qwen35\")"));
    e = (err){0};
    h.pre = "laguna"; /* of another family */
    CHECK_STATUS(build(&h, &v, &e), E_UNSUPPORTED);
    e = (err){0};
    h.pre = "qwen2";
    h.leave_out = 0xAD;
    CHECK_STATUS(build(&h, &v, &e), E_FORMAT);
    CHECK(strstr(e.text, "0xAD"));
}

TEST(bytes_of_hostile_texts_take_linear_work)
{
    enum { N = 1 << 18 };
    static const char *const unit[] = {"h", " ",     "\n",   "\xCC\x81", "1",
                                       "'", "hello", "\r\n", "\xFF"};
    static const char *const pre[] = {"qwen2", "qwen35", "laguna"};
    AUTO_MEM char *text = mem_alloc(N);
    CHECK(text);
    for (int k = 0; k < 3; k++) {
        AUTO_PTR(vocab_close) vocab *v;
        err e = {0};
        hand_made h = {k == 2 ? &laguna_text : &qwen_text, pre[k], QWEN_PIECES, 0, 0, 0, false, 0};
        CHECK_OK(build(&h, &v, &e), e);
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
            size_t n_unit = strlen(unit[u]);
            for (size_t i = 0; i < N; i++)
                text[i] = unit[u][i % n_unit];
            encode_work w;
            AUTO(id_list_free) id_list l = {0};
            text_span all = {0, N};
            marked_text whole = {text, N, SPECIAL_ALL, &all, 1, BEFORE_NOTHING};
            CHECK_OK(encode_counted(v, &whole, &l, &w, &e), e);
            CHECK(w.pair_lookups <= 3 * (uint64_t)N && w.heap_moves <= 44 * (uint64_t)N);
        }
    }
}

static status build_and_encode(void *arg, err *e)
{
    static const hand_made h = {&qwen_text, "qwen35", QWEN_PIECES, 0, 0, 0, false, 0};
    char text[600];
    AUTO_PTR(vocab_close) vocab *v = NULL;
    AUTO(id_list_free) id_list ids = {0};
    (void)arg;
    memset(text, 'h', sizeof text);
    memcpy(text + 100, "<think>", 7);
    status st = build(&h, &v, e);
    if (!st)
        st = vocab_encode(v, text, sizeof text, SPECIAL_ALL, &ids, e);
    if (st)
        CHECK_EQ(ids.n, 0);
    return st;
}

TEST(bytes_survive_every_failed_allocation)
{
    test_every_allocation(build_and_encode, NULL);
}
