/* bytes_grammar_test.c - masks over a vocabulary of bytes, whose tokens begin and end inside of
 * characters: each bit against the token's bytes, one after the other.
 */
#include "tests/test.h"
#include "tests/vocab_json.h"
#include "text/grammar.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

RELEASED_AT(vocab_close, vocab)

static vocab *recorded(const char *path)
{
    AUTO_MEM char *text;
    size_t n;
    err e = {0};
    AUTO(arena_free) arena mem = {0};
    const jtree *root;
    vocab *v;
    CHECK_OK(file_read_all(test_path(path), 4 << 20, &text, &n, &e), e);
    CHECK_OK(jtree_parse(text, n, path, 8, &mem, &root, &e), e);
    CHECK_OK(vocab_from_json(root, &v, &e), e);
    return v;
}

static bool bit(const uint64_t *bits, int32_t i)
{
    return bits[i >> 6] >> (i & 63) & 1;
}

/* True if the grammar allows an ordinary token next: a token that is no mark and no placeholder. */
static bool follows(const vocab *v, const grammar_run *r, int32_t id)
{
    err e = {0};
    size_t n;
    bool ok = false;
    const char *s = vocab_text(v, id, false, &n);
    grammar_run copy;
    if (vocab_type(v, id) != TOKEN_NORMAL || !n)
        return false;
    grammar_clone(&copy, r);
    CHECK_OK(grammar_accept_bytes(&copy, s, n, &ok, &e), e);
    grammar_end(&copy);
    return ok;
}

/* Walks one random answer. Returns the tokens on the way that are not whole characters. */
static int walk(const vocab *v, matcher *m, uint64_t *rng, uint64_t *had)
{
    AUTO(grammar_end) grammar_run r;
    err e = {0};
    int broken = 0;
    CHECK_OK(grammar_begin(&r, m, &e), e);
    for (int step = 0; step < 40; step++) {
        const uint64_t *bits;
        int32_t n_allowed, next = -1, seen = 0, count = 0;
        bool ok, end = grammar_may_end(&r);
        size_t n;
        CHECK_OK(grammar_mask(&r, &bits, &n_allowed, &e), e);
        memcpy(had, bits, ((size_t)vocab_n(v) + 63) / 64 * 8);
        for (int32_t id = 0; id < vocab_n(v); id++) {
            bool want = vocab_is_eog(v, id) ? end : follows(v, &r, id);
            count += want;
            const char *s = vocab_text(v, id, true, &n);
            CHECK_MSG(bit(had, id) == want, "step %d, token %d '%.*s' is %d", step, id, (int)n, s,
                      bit(had, id));
            /* Prefer what a mask can get wrong: tokens that end inside a character. */
            bool part = n && !utf8_valid(s, n);
            if (want && !vocab_is_eog(v, id) &&
                (next < 0 || !rng_below(rng, (uint64_t)(part ? 2 : ++seen + 20))))
                next = id;
        }
        CHECK_EQ(count, n_allowed);
        if (next < 0)
            break;
        const char *s = vocab_text(v, next, true, &n);
        broken += !utf8_valid(s, n);
        CHECK_OK(grammar_accept(&r, next, &ok, &e), e);
        CHECK(ok);
    }
    return broken;
}

TEST(grammar_masks_of_bytes_are_what_their_bytes_say)
{
    static const char *const gbnf[] = {
        "root ::= [^\"\\\\]{1,12} \"!\"",
        ("root ::= (\"\xE6\x9D\xB1\xE4\xBA\xAC\" | \"\xE6\x97\xA5\xE6\x9C\xAC\" [\xE4\xB8\x80-"
         "\xE9\xBF\xBF]*){2,4}"),
        "root ::= \"\\\"\" [\xD0\xB0-\xD1\x8F ]{3,8} \"\\\"\" [\xF0\x9F\x98\x80-\xF0\x9F\x9A\x80]",
    };
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"\xE5\x90\x8D\":{\"type\":"
                                 "\"string\",\"maxLength\":6},\"n\":{\"type\":\"integer\"}},"
                                 "\"required\":[\"\xE5\x90\x8D\"],\"additionalProperties\":false}";
    enum { N_GBNF = sizeof gbnf / sizeof *gbnf };
    AUTO_PTR(vocab_close) vocab *v = recorded("tests/data/vocab/qwen35.json");
    uint64_t rng = test_seed(), *had = mem_calloc(((size_t)vocab_n(v) + 63) / 64, 8);
    token_tree *t;
    err e = {0};
    int broken = 0;
    CHECK(had);
    CHECK_OK(token_tree_open(&t, v, &e), e);
    for (int k = 0; k <= N_GBNF; k++) {
        grammar *g;
        matcher *m;
        CHECK_OK(k < N_GBNF ? grammar_from_gbnf(&g, gbnf[k], strlen(gbnf[k]), NULL, &e)
                            : grammar_from_schema(&g, schema, sizeof schema - 1, NULL, &e),
                 e);
        CHECK_OK(matcher_open(&m, g, t, &e), e);
        for (int round = 0; round < 3; round++)
            broken += walk(v, m, &rng, had);
        matcher_close(m);
        grammar_close(g);
    }
    CHECK_MSG(broken > 40, "%d tokens inside of characters", broken);
    token_tree_close(t);
    mem_free(had);
}
