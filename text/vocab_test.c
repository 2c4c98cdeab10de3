/* vocab_test.c - what is accepted as a vocabulary, what its tokens print as, what ends a turn.
 *
 * Vocabularies are built here in every kind that files carry, and broken in one place each. The
 * algorithm that cuts texts into tokens has tests of its own in bpe_test.c.
 */
#include "tests/test.h"
#include "tests/toy_vocab.h"
#include "tests/vocab_parts.h"
#include "text/gemma4.h"
#include "text/qwen.h"
#include "text/vocab_int.h"

RELEASED_AT(vocab_close, vocab)

typedef struct source {
    const char *model, *pre;
    const char *pieces[16];
    int types[16];
    const char *merges[8];
    int32_t bos, eos, eot;
} source;

static status build(const source *s, vocab **v, err *e)
{
    vocab_builder *b;
    int64_t n = 0, m = 0;
    vocab_settings set = {&gemma4_text, s->model, s->pre, s->bos - 1, s->eos - 1, s->eot - 1,
                          -1,           -1,       false,  NULL,       false};
    while (n < 16 && s->pieces[n])
        n++;
    while (m < 8 && s->merges[m])
        m++;
    *v = NULL;
    status st = vocab_begin(&b, n + 256, m, e);
    if (st)
        return st;
    for (int64_t i = 0; i < n; i++)
        vocab_add_token(b, s->pieces[i], strlen(s->pieces[i]), s->types[i] ? s->types[i] : 1);
    add_byte_pieces(b);
    for (int64_t i = 0; i < m; i++)
        vocab_add_merge(b, s->merges[i], strlen(s->merges[i]));
    return vocab_finish(b, &set, v, e);
}

/* Ids in a source are given plus one, so that zero means absent. */
static void refused(const source *s, status want, const char *sentence)
{
    vocab *v;
    err e = {0};
    CHECK_STATUS(build(s, &v, &e), want);
    CHECK(!v);
    CHECK_MSG(strstr(e.text, sentence), "\"%s\" does not say \"%s\"", e.text, sentence);
}

TEST(vocabularies_that_are_refused)
{
    refused(&(source){"gemma4", NULL, {"a", "b"}, {0}, {NULL}, 0, 0, 0}, E_FORMAT, "no merges");
    refused(&(source){"gemma4", NULL, {"a", "b"}, {0}, {"a b"}, 0, 0, 0}, E_FORMAT,
            "the whole is not a piece");
    refused(&(source){"gemma4", NULL, {"a", "ac"}, {0}, {"a c"}, 0, 0, 0}, E_FORMAT,
            "the second is not a piece");
    refused(&(source){"gemma4", NULL, {"a"}, {0}, {"ab"}, 0, 0, 0}, E_FORMAT,
            "not two pieces and a space");
    refused(&(source){"gemma4", NULL, {"a"}, {0}, {"a "}, 0, 0, 0}, E_FORMAT,
            "not two pieces and a space");
    refused(&(source){"gemma4", NULL, {"a", "aa"}, {7}, {"a a"}, 0, 0, 0}, E_FORMAT, "type 7");
    refused(&(source){"gemma4", NULL, {"a", "aa"}, {6}, {"a a"}, 0, 0, 0}, E_FORMAT,
            "of type byte but is spelled \"a\"");
    refused(&(source){"gemma4", NULL, {"", "a", "aa"}, {0}, {"a a"}, 0, 0, 0}, E_FORMAT,
            "piece 0 is empty");
    refused(&(source){"gemma4", NULL, {"a", "aa"}, {0}, {"a a"}, 999, 0, 0}, E_FORMAT,
            "begin-of-sequence id is 998");
    refused(&(source){"gpt2", "qwen2", {"a", "aa"}, {0}, {"a a"}, 0, 0, 0}, E_UNSUPPORTED,
            "\"gpt2\"");
    refused(&(source){"llama", NULL, {"a", "aa"}, {0}, {NULL}, 0, 0, 0}, E_UNSUPPORTED,
            "\"llama\"");
    vocab_builder *b;
    err e = {0};
    CHECK_STATUS(vocab_begin(&b, INT64_MAX, 0, &e), E_FORMAT);
    e = (err){0};
    CHECK_STATUS(vocab_begin(&b, 10, -1, &e), E_FORMAT);
    e = (err){0};
    CHECK_OK(vocab_begin(&b, 3, 0, &e), e);
    vocab *v;
    vocab_settings set = {&gemma4_text, "gemma4", NULL, -1, -1, -1, -1, -1, false, NULL, false};
    CHECK_STATUS(vocab_finish(b, &set, &v, &e), E_ARG); /* announced three, none came */
    e = (err){0};
    CHECK_OK(vocab_begin(&b, 1, 1, &e), e);
    vocab_add_token(b, "a", 1, 1);
    vocab_abandon(b);
}

TEST(vocabularies_without_bytes_need_an_unknown_token)
{
    vocab_builder *b;
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    AUTO(id_list_free) id_list ids = {0};
    vocab_settings set = {&gemma4_text, "gemma4", NULL, -1, -1, -1, -1, -1, false, NULL, false};
    for (int unk = 0; unk < 2; unk++) {
        CHECK_OK(vocab_begin(&b, 3, 1, &e), e);
        vocab_add_token(b, "a", 1, 1);
        vocab_add_token(b, "aa", 2, 1);
        vocab_add_token(b, unk ? "<unk>" : "b", unk ? 5 : 1, unk ? TOKEN_UNKNOWN : 1);
        vocab_add_merge(b, "a a", 3);
        CHECK_EQ(vocab_finish(b, &set, &v, &e), unk ? OK : E_FORMAT);
        e = (err){0};
    }
    CHECK_OK(vocab_encode(v, "aaxyz\xC3\xA9 a", 9, SPECIAL_USER, &ids, &e), e);
    CHECK_EQ(ids.n, 3); /* aa, one unknown for all of "xyz..." and the space, a */
    CHECK_EQ(ids.at[1], 2);
}

TEST(kinds_are_told_by_model_pre_and_merges)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    source s = {"llama", "gemma4", {"a", "aa"}, {0}, {"a a"}, 0, 0, 0};
    CHECK_OK(build(&s, &v, &e), e);
    CHECK_EQ(vocab_kind_of(v), VOCAB_CHARS);
    vocab_close(v);
    s.pre = NULL; /* merges decide */
    CHECK_OK(build(&s, &v, &e), e);
    vocab_close(v);
    s = (source){.model = "no_vocab"};
    CHECK_OK(build(&s, &v, &e), e);
    CHECK_EQ(vocab_kind_of(v), VOCAB_NONE);
    id_list ids = {0};
    CHECK_STATUS(vocab_encode(v, "a", 1, SPECIAL_ALL, &ids, &e), E_UNSUPPORTED);
}

TEST(turns_end_by_spelling_and_by_the_files_ids)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    source s = {"gemma4",
                NULL,
                {"a", "aa", "</s>", "<eos>", "<turn|>", "<|tool_response>", "<bos>", "<end>"},
                {1, 1, 1, 3, 3, 4, 3, 3},
                {"a a"},
                0,
                3, /* the file says </s>: an HTML tag in this family, never an end */
                8};
    CHECK_OK(build(&s, &v, &e), e);
    const bool want[] = {false, false, false, true, true, true, false, true};
    for (int id = 0; id < 8; id++)
        CHECK_EQ(vocab_is_eog(v, id), want[id]);
    CHECK(!vocab_is_eog(v, -1) && !vocab_is_eog(v, 1 << 20));
    CHECK_EQ(vocab_bos(v), 6);
}

static void shows(const vocab *v, const char *piece, bool special, const char *want)
{
    size_t n;
    const char *text = vocab_text(v, vocab_find(v, piece, strlen(piece)), special, &n);
    CHECK_MSG(text && n == strlen(want) && !memcmp(text, want, n), "%s prints as \"%.*s\"", piece,
              (int)n, text ? text : "");
}

TEST(tokens_print_as_their_type_says)
{
    AUTO_PTR(toy_free) toy *t = toy_gemma();
    size_t n;
    shows(t->v, "\xE2\x96\x81the", false, " the");
    shows(t->v, "\xE2\x96\x81\xE2\x96\x81", false, "  ");
    shows(t->v, "<0x41>", false, "A");
    shows(t->v, "<|channel>", false, "<|channel>");
    shows(t->v, "<|\"|>", false, "<|\"|>");
    shows(t->v, "<|turn>", false, "<|turn>"); /* the output parser drops it */
    shows(t->v, "<|tool_response>", false, "");
    shows(t->v, "<|tool_response>", true, "<|tool_response>");
    shows(t->v, "<turn|>", false, "");
    shows(t->v, "<bos>", true, "<bos>");
    shows(t->v, "<|image|>", false, "");
    CHECK(!vocab_text(t->v, -1, true, &n) && !vocab_text(t->v, t->n_pieces, true, &n));
    CHECK(!vocab_piece(t->v, t->n_pieces, &n));
    int32_t n_never;
    const int32_t *never = vocab_never_sampled(t->v, &n_never);
    CHECK_EQ(n_never, 7);
    for (int i = 0; i < n_never; i++)
        CHECK_EQ(vocab_type(t->v, never[i]), TOKEN_CONTROL);
}

TEST(added_tokens_print_their_spaces)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    source s = {"gemma4",
                NULL,
                {"a", "aa", "\xE2\x96\x81\xE2\x96\x81", "<|x\xE2\x96\x81y|>", "<\xE2\x96\x81>"},
                {1, 1, 4, 4, 3},
                {"a a"},
                0,
                0,
                0};
    CHECK_OK(build(&s, &v, &e), e);
    shows(v, "\xE2\x96\x81\xE2\x96\x81", false, "  ");
    shows(v, "<|x\xE2\x96\x81y|>", false, "<|x y|>");
    shows(v, "<\xE2\x96\x81>", true, "< >");
}

/* The pieces fill their buffer to the last byte, and the last piece is an empty place holder: with
 * AddressSanitizer a look at its first byte is an error. */
TEST(an_empty_last_piece_is_not_looked_at)
{
    enum { BUFFER = 1 << 16, LONG = 1 << 12 };
    vocab_builder *b;
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    char piece[LONG];
    vocab_settings set = {&gemma4_text, "gemma4", NULL, -1, -1, -1, 0, -1, false, NULL, false};
    CHECK_OK(vocab_begin(&b, BUFFER / LONG + 1 + 2, 1, &e), e);
    for (int i = 0; i < BUFFER / LONG; i++) {
        size_t n = i ? LONG : LONG - 3;
        memset(piece, 'b' + i, n);
        vocab_add_token(b, piece, n, TOKEN_NORMAL);
    }
    vocab_add_token(b, "a", 1, TOKEN_NORMAL);
    vocab_add_token(b, "aa", 2, TOKEN_NORMAL);
    vocab_add_token(b, "", 0, TOKEN_UNUSED);
    vocab_add_merge(b, "a a", 3);
    CHECK_OK(vocab_finish(b, &set, &v, &e), e);
}

TEST(plain_text_never_merges_into_structure)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    AUTO(id_list_free) id_list ids = {0};
    source s = {"gemma4", NULL, {"<", "x", ">", "<x", "<x>"}, {1, 1, 1, 1, 3}, {"< x", "<x >"}, 0,
                0,        0};
    CHECK_OK(build(&s, &v, &e), e);
    CHECK_OK(vocab_encode(v, "<x>", 3, SPECIAL_NONE, &ids, &e), e);
    CHECK_EQ(ids.n, 2);
    CHECK_EQ(ids.at[0], 3);
    ids.n = 0;
    CHECK_OK(vocab_encode(v, "<x>", 3, SPECIAL_ALL, &ids, &e), e);
    CHECK_EQ(ids.n, 1);
    CHECK_EQ(ids.at[0], 4);
}

static void encodes(const vocab *v, const char *text, special_mode mode, int32_t want)
{
    AUTO(id_list_free) id_list ids = {0};
    err e = {0};
    CHECK_OK(vocab_encode(v, text, strlen(text), mode, &ids, &e), e);
    CHECK_EQ(ids.n, 1);
    CHECK_EQ(ids.at[0], want);
}

static void decodes(const vocab *v, int32_t id, const char *want)
{
    size_t n;
    const char *text = vocab_text(v, id, true, &n);
    CHECK_EQ(n, strlen(want));
    CHECK(!memcmp(text, want, n));
}

/* Published files list pieces twice: ordinary ones, special ones, single characters, line breaks,
 * the marks and ends of the family; and the type of one of them may be UNUSED. */
TEST(of_pieces_listed_twice_the_first_encodes_and_all_decode)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    source s = {"gemma4",
                NULL,
                {"a", "aa", "a", "aa", "<x>", "<x>", "\n\n", "\n\n", "<turn|>", "<turn|>", "<eos>",
                 "b", "b", "b", "<|image|>", "<|image|>"},
                {1, 1, 1, 1, 3, 3, 4, 4, 1, 4, 3, 5, 1, 1, 3, 1},
                {"a a", "a a"},
                0,
                0,
                0};
    CHECK_OK(build(&s, &v, &e), e);
    encodes(v, "a", SPECIAL_ALL, 0);
    encodes(v, "aa", SPECIAL_ALL, 1);
    encodes(v, "<x>", SPECIAL_ALL, 4);
    encodes(v, "\n\n", SPECIAL_ALL, 6);
    encodes(v, "\n\n", SPECIAL_NONE, 6);
    encodes(v, "<turn|>", SPECIAL_ALL, 8);
    encodes(v, "b", SPECIAL_ALL, 12); /* the one of type UNUSED stands for nothing */
    for (int32_t id = 0; id < 16; id++)
        decodes(v, id, s.pieces[id]);
    CHECK(vocab_is_eog(v, 8) && vocab_is_eog(v, 9));
    CHECK(vocab_type(v, 8) == TOKEN_CONTROL && vocab_type(v, 9) == TOKEN_CONTROL);
    CHECK(vocab_is_never_sampled(v, 11) && vocab_is_never_sampled(v, 14));
    CHECK(vocab_is_never_sampled(v, 15));
}

/* An ordinary piece and a special one of the same spelling, in either order. */
TEST(of_an_ordinary_piece_and_a_special_one_the_first_encodes)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    source s = {"gemma4",
                NULL,
                {"a", "aa", "aa", "aa", "b", "b", "x", "x"},
                {1, 1, 4, 1, 4, 1, 1, 3},
                {"a a"},
                0,
                0,
                0};
    CHECK_OK(build(&s, &v, &e), e);
    encodes(v, "aa", SPECIAL_ALL, 1);
    encodes(v, "b", SPECIAL_ALL, 4);
    encodes(v, "b", SPECIAL_NONE, 4);
    encodes(v, "x", SPECIAL_ALL, 7); /* a control token stays one */
    encodes(v, "x", SPECIAL_NONE, 6);
}

TEST(of_a_merge_listed_twice_the_first_rank_counts)
{
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    AUTO(id_list_free) id_list ids = {0};
    source s = {"gemma4", NULL, {"a", "b", "c", "ab", "bc"}, {0}, {"a b", "b c", "a b"}, 0, 0, 0};
    CHECK_OK(build(&s, &v, &e), e);
    CHECK_OK(vocab_encode(v, "abc", 3, SPECIAL_ALL, &ids, &e), e);
    CHECK_EQ(ids.n, 2);
    CHECK_EQ(ids.at[0], 3);
    CHECK_EQ(ids.at[1], 2);
}

/* Bytes and special pieces of a vocabulary over bytes. */
TEST(of_byte_pieces_listed_twice_the_first_encodes)
{
    vocab_builder *b;
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    vocab_settings set = {&qwen_text, "gpt2", "qwen2", -1, -1, -1, -1, -1, false, NULL, false};
    CHECK_OK(vocab_begin(&b, 256 + 6, 1, &e), e);
    for (int i = 0; i < 256; i++) {
        char piece[4];
        size_t n = vocab_spell_byte((unsigned char)i, piece);
        vocab_add_token(b, piece, n, TOKEN_NORMAL);
    }
    vocab_add_token(b, "a", 1, TOKEN_NORMAL);
    vocab_add_token(b, "aa", 2, TOKEN_NORMAL);
    vocab_add_token(b, "aa", 2, TOKEN_NORMAL);
    vocab_add_token(b, "<|im_end|>", 10, TOKEN_CONTROL);
    vocab_add_token(b, "<|im_end|>", 10, TOKEN_CONTROL);
    vocab_add_token(b, "<tool_call>", 11, TOKEN_USER_DEFINED);
    vocab_add_merge(b, "a a", 3);
    CHECK_OK(vocab_finish(b, &set, &v, &e), e);
    encodes(v, "a", SPECIAL_ALL, 'a');
    encodes(v, "aa", SPECIAL_ALL, 257);
    encodes(v, "<|im_end|>", SPECIAL_ALL, 259);
    decodes(v, 256, "a");
    decodes(v, 258, "aa");
    CHECK(vocab_is_eog(v, 259) && vocab_is_eog(v, 260));
}

/* A marker that is spelled as a byte takes nothing from the piece of that byte. */
TEST(a_byte_that_a_marker_is_spelled_as_is_encoded_by_its_own_piece)
{
    vocab_builder *b;
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    vocab_settings set = {&qwen_text, "gpt2", "qwen2", -1, -1, -1, -1, -1, false, NULL, false};
    CHECK_OK(vocab_begin(&b, 256 + 3, 1, &e), e);
    vocab_add_token(b, "\xC4\xA0", 2, TOKEN_CONTROL); /* as a blank */
    vocab_add_token(b, "a", 1, TOKEN_CONTROL);
    for (int i = 0; i < 256; i++) {
        char piece[4];
        vocab_add_token(b, piece, vocab_spell_byte((unsigned char)i, piece), TOKEN_NORMAL);
    }
    vocab_add_token(b, "bc", 2, TOKEN_NORMAL);
    vocab_add_merge(b, "b c", 3);
    CHECK_OK(vocab_finish(b, &set, &v, &e), e);
    encodes(v, " ", SPECIAL_NONE, 2 + ' ');
    encodes(v, "a", SPECIAL_NONE, 2 + 'a');
}

/* The first one has id 0, and no piece spells its character. */
TEST(of_pieces_of_a_byte_listed_twice_the_first_encodes_though_its_id_is_0)
{
    vocab_builder *b;
    AUTO_PTR(vocab_close) vocab *v;
    err e = {0};
    AUTO(id_list_free) id_list ids = {0};
    vocab_settings set = gemma_settings();
    CHECK_OK(vocab_begin(&b, 256 + 4, 1, &e), e);
    add_byte_pieces(b);
    vocab_add_token(b, "<0x00>", BYTE_PIECE_LEN, TOKEN_BYTE);
    vocab_add_token(b, "<0x01>", BYTE_PIECE_LEN, TOKEN_BYTE);
    vocab_add_token(b, "a", 1, TOKEN_NORMAL);
    vocab_add_token(b, "aa", 2, TOKEN_NORMAL);
    vocab_add_merge(b, "a a", 3);
    CHECK_OK(vocab_finish(b, &set, &v, &e), e);
    CHECK_OK(vocab_encode(v, "\0\1", 2, SPECIAL_ALL, &ids, &e), e);
    CHECK(ids.n == 2 && ids.at[0] == 0 && ids.at[1] == 1);
}

static status build_and_encode(void *arg, err *e)
{
    static const source s = {
        "gemma4", NULL, {"a", "aa", "<x>", "aaaa"}, {1, 1, 3, 1}, {"a a", "aa aa"}, 0, 0, 0};
    char text[600];
    AUTO_PTR(vocab_close) vocab *v;
    AUTO(id_list_free) id_list ids = {0};
    (void)arg;
    memset(text, 'a', sizeof text);
    memcpy(text + 100, "<x>", 3);
    status st = build(&s, &v, e);
    if (!st)
        st = vocab_encode(v, text, sizeof text, SPECIAL_ALL, &ids, e);
    if (st)
        CHECK_EQ(ids.n, 0);
    return st;
}

TEST(vocabulary_survives_every_failed_allocation)
{
    test_every_allocation(build_and_encode, NULL);
}
