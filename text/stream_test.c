/* stream_test.c - whole characters, stop strings, any cut.
 *
 * One text is sent through in every division into pieces. What comes out must not depend on it:
 * never half a character, never a byte of a stop string, and no byte later than it could come.
 */
#include "tests/test.h"
#include "text/stream.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/utf8.h"

static bool collect(void *user, const char *text, size_t n)
{
    CHECK(n > 0);
    CHECK(utf8_valid(text, n));
    str_put(user, text, n);
    return true;
}

/* Feeds text in pieces of the given size (0: random) and returns what came out. */
static int32_t feed(const char *const *stop, int n_stops, const char *text, size_t n, size_t piece,
                    uint64_t *rng, str *out)
{
    AUTO(stream_free) stream s;
    err e = {0};
    bool going = true;
    str_cut(out, 0);
    CHECK_OK(stream_init(&s, stop, n_stops, collect, out, &e), e);
    for (size_t i = 0; i < n && going;) {
        size_t len = piece ? piece : 1 + rng_below(rng, 7);
        if (len > n - i)
            len = n - i;
        going = stream_put(&s, text + i, len);
        i += len;
    }
    CHECK_EQ(going, s.met < 0);
    stream_end(&s);
    int32_t met = s.met;
    stream_free(&s);
    return met;
}

/* What the stream should do, from the whole text. */
static int32_t whole(const char *const *stop, int n_stops, const char *text, size_t n, str *out)
{
    str_cut(out, 0);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        char c[4];
        i += (size_t)utf8_decode(text + i, n - i, &cp, &ok);
        str_put(out, c, (size_t)utf8_encode(cp, c));
    }
    for (size_t end = 1; end <= out->n; end++)
        for (int i = 0, best = -1; i <= n_stops; i++) {
            if (i == n_stops && best >= 0) {
                str_cut(out, end - strlen(stop[best]));
                return best;
            }
            size_t len = i < n_stops ? strlen(stop[i]) : SIZE_MAX;
            if (len <= end && !memcmp(out->at + end - len, stop[i], len) &&
                (best < 0 || len > strlen(stop[best])))
                best = i;
        }
    return -1;
}

TEST(stream_gives_the_same_text_however_it_is_cut)
{
    static const char *const stops[] = {"abab", "\n\n", "b", "aba", "\xC3\xA9\xC3\xA9", "aabaaab"};
    static const char *const parts[] = {"a",        "a",    "b",    "\n",   "\xC3\xA9", "\xC3",
                                        "\xA9",     "\xE2", "\x96", "\x81", "\xF0\x9F", "\x98\x8A",
                                        "\xED\xA0", "\xFF", "ab",   "aab"};
    uint64_t rng = test_seed();
    AUTO(str_free) str text = {0}, want = {0}, got = {0};
    for (int round = 0; round < 3000; round++) {
        const char *stop[6];
        int n_stops = (int)rng_below(&rng, 4);
        for (int i = 0; i < n_stops; i++)
            stop[i] = stops[rng_below(&rng, 6)];
        str_cut(&text, 0);
        for (uint64_t n = rng_below(&rng, 60); n > 0; n--)
            str_puts(&text, parts[rng_below(&rng, 16)]);
        int32_t met = whole(stop, n_stops, text.at, text.n, &want);
        for (size_t piece = 0; piece < 4; piece++) {
            int32_t met_cut = feed(stop, n_stops, text.at, text.n, piece, &rng, &got);
            CHECK_EQ(met < 0, met_cut < 0);
            CHECK_STR(str_text(&got), str_text(&want));
        }
    }
}

TEST(stream_holds_back_no_more_than_it_must)
{
    static const char *const stop[] = {"<end>"};
    stream s;
    AUTO(str_free) str out = {0};
    err e = {0};
    CHECK_OK(stream_init(&s, stop, 1, collect, &out, &e), e);
    CHECK(stream_put(&s, "ab<e", 4));
    CHECK_STR(str_text(&out), "ab");
    CHECK(stream_put(&s, "x\xE2\x96", 3));
    CHECK_STR(str_text(&out), "ab<ex");
    CHECK(stream_put(&s, "\x81<en", 4));
    CHECK_STR(str_text(&out), "ab<ex\xE2\x96\x81");
    CHECK(!stream_put(&s, "d>more", 6));
    CHECK_EQ(s.met, 0);
    CHECK(!stream_put(&s, "more", 4));
    CHECK(!stream_end(&s));
    CHECK_STR(str_text(&out), "ab<ex\xE2\x96\x81");
    stream_free(&s);
}

TEST(stream_passes_long_texts_through_a_small_buffer)
{
    static const char *const stop[] = {"aaaaaaaaaaaaaaab"};
    AUTO(str_free) str text = {0}, out = {0};
    for (int i = 0; i < 5000; i++)
        str_puts(&text, i % 7 ? "aaaa\xE2\x82\xAC" : "aaaaaaaaaaaaaaaaaaaa");
    CHECK_EQ(feed(stop, 1, text.at, text.n, text.n, NULL, &out), -1);
    CHECK_STR(str_text(&out), str_text(&text));
}

TEST(stream_refuses_useless_stop_strings)
{
    static const char *const empty[] = {""}, *const bad[] = {"\xFF"};
    AUTO(stream_free) stream s;
    CHECK_STATUS(stream_init(&s, empty, 1, collect, NULL, NULL), E_ARG);
    CHECK_STATUS(stream_init(&s, bad, 1, collect, NULL, NULL), E_ARG);
    CHECK_STATUS(stream_init(&s, bad, STREAM_MAX_STOPS + 1, collect, NULL, NULL), E_ARG);
}

static status make_stream(void *arg, err *e)
{
    static const char *const stop[] = {"one", "two"};
    AUTO(stream_free) stream s;
    status st = stream_init(&s, stop, 2, collect, arg, e);
    return st;
}

TEST(stream_survives_every_failed_allocation)
{
    test_every_allocation(make_stream, NULL);
}
