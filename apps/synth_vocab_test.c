/* synth_vocab_test.c - made-up vocabularies as the engine reads them. */
#include "tests/test.h"
#include "apps/synth_vocab.h"
#include "engine/text_file.h"
#include "text/vocab.h"

RELEASED_AT(vocab_close, vocab)

static status make(const char *path, const char *arch, int32_t n, err *e)
{
    gguf_writer *w;
    status st = gguf_create(&w, path, e);
    if (st)
        return st;
    gguf_put_string(w, "general.architecture", arch, strlen(arch));
    if ((st = synth_vocab_put(w, arch, arch, n, e)) || (st = gguf_write_header(w, e))) {
        gguf_discard(w);
        return st;
    }
    return gguf_commit(w, e);
}

static void open_made(const char *arch, int32_t n, gguf *g, vocab **v)
{
    const chat_format *chat;
    err e = {0};
    const char *path = test_temp(arch);
    CHECK_OK(make(path, arch, n, &e), e);
    CHECK_OK(gguf_open(g, path, false, NULL, NULL, &e), e);
    CHECK_OK(text_from_gguf(g, n, v, &chat, &e), e);
}

static int64_t count(const vocab *v, const char *text)
{
    AUTO(id_list_free) id_list ids = {0};
    err e = {0};
    CHECK_OK(vocab_encode(v, text, strlen(text), SPECIAL_ALL, &ids, &e), e);
    int64_t n = ids.n;
    return n;
}

PLAIN_TEST(synth_vocabularies_have_the_published_special_ids)
{
    static const struct {
        const char *arch;
        int32_t n;
        const char *piece;
        int32_t id; /* -1: found by its spelling alone */
        const char *end;
    } one[] = {
        {"qwen3", 151936, "<|im_start|>", 151644, "<|im_end|>"},
        {"qwen3", 151936, "</think>", 151668, "<|endoftext|>"},
        {"qwen35", 248320, "<|im_end|>", 248046, "<|im_end|>"},
        {"qwen35moe", 248320, "<think>", 248068, "<|endoftext|>"},
        {"qwen35", 400, "<think>", -1, "<|im_end|>"},
        {"laguna", 100352, "</assistant>", 24, "</assistant>"},
        {"laguna", 100352, "<think>", 18, "\xE3\x80\x88|EOS|\xE3\x80\x89"},
        {"laguna", 300, "<tool_call>", 25, "</assistant>"},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        AUTO(gguf_close) gguf g;
        AUTO_PTR(vocab_close) vocab *v;
        open_made(one[i].arch, one[i].n, &g, &v);
        CHECK(v);
        CHECK_EQ(vocab_n(v), one[i].n);
        CHECK_EQ(vocab_kind_of(v), VOCAB_BYTES);
        int32_t id = vocab_mark(v, one[i].piece);
        CHECK(id >= 0 && (one[i].id < 0 || id == one[i].id));
        CHECK(vocab_is_eog(v, vocab_mark(v, one[i].end)));
        CHECK_EQ(vocab_bos(v), -1);
        CHECK_EQ(count(v, one[i].piece), 1);
        CHECK_EQ(count(v, "\xE5\xAD\x97\xFF"), 4); /* every byte has a piece */
        if (one[i].n > 1000)
            CHECK_EQ(count(v, "the model"), 2);
    }
}

TEST(synth_vocabularies_of_too_few_tokens_are_none)
{
    AUTO(gguf_close) gguf g;
    vocab *v;
    open_made("qwen3", 128, &g, &v);
    CHECK(!v);
    gguf_close(&g);
    open_made("gemma4", 262144, &g, &v); /* has no made-up words */
    CHECK(!v);
}

static status make_one(void *arg, err *e)
{
    return make(arg, "laguna", 1200, e);
}

TEST(synth_vocabularies_survive_every_failed_allocation)
{
    test_every_allocation(make_one, (void *)test_temp("words"));
}
