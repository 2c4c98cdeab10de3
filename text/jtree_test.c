/* jtree_test.c - JSON as requests carry it.
 *
 * What RFC 8259 allows is read, all else is refused with a place; keys repeat and sort as they do
 * in Python, because templates are rendered there, and numbers print as Python prints them.
 */
#include "tests/test.h"
#include "text/jtree.h"

static status parse(const char *text, arena *mem, const jtree **v, err *e)
{
    *e = (err){0};
    return jtree_parse(text, strlen(text), "text", 8, mem, v, e);
}

TEST(json_values)
{
    AUTO(arena_free) arena mem = {0};
    const jtree *v;
    err e;
    CHECK_OK(parse(" {\"a\":[1,-2.5e3,true,null,\"x\\u00e9\\ud83d\\ude0a\\n\\u0000y\"],\"b\":{}} ",
                   &mem, &v, &e),
             e);
    const jtree *a = jtree_get(v, "a"), *it = a->first;
    CHECK_EQ(a->count, 5);
    CHECK_EQ(it->kind, JTREE_INTEGER);
    CHECK_EQ((it = it->next)->kind, JTREE_REAL);
    CHECK_STR(it->s, "-2.5e3");
    CHECK_EQ((it = it->next)->kind, JTREE_TRUE);
    CHECK_EQ((it = it->next)->kind, JTREE_NULL);
    it = it->next;
    CHECK_EQ(it->n, 10);
    CHECK(!memcmp(it->s, "x\xC3\xA9\xF0\x9F\x98\x8A\n\0y", 10));
    CHECK(jtree_is(jtree_get(v, "b"), JTREE_OBJECT) && !jtree_get(v, "c"));
}

TEST(json_that_is_refused)
{
    static const char *const bad[] = {"",
                                      "{",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "01",
                                      "1.",
                                      "-",
                                      "1e",
                                      "nul",
                                      "\"\\x\"",
                                      "\"\\ud800\"",
                                      "\"\\udc00\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"a",
                                      "\"\n\"",
                                      "\"\xFF\"",
                                      "[1] 2",
                                      "[1 2]",
                                      "{\"a\" 1}",
                                      "'a'",
                                      "NaN",
                                      "\"\\u12g4\"",
                                      "+1",
                                      ".5"};
    AUTO(arena_free) arena mem = {0};
    const jtree *v;
    err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_MSG(parse(bad[i], &mem, &v, &e) == E_FORMAT, "%s was accepted", bad[i]);
        CHECK(!v && strstr(e.text, "line 1, column "));
    }
    CHECK_STATUS(parse("[[[[[[[[1]]]]]]]]", &mem, &v, &e), OK);
    CHECK_STATUS(parse("[[[[[[[[[1]]]]]]]]]", &mem, &v, &e), E_LIMIT);
}

TEST(json_keys_repeat_and_sort_as_in_python)
{
    AUTO(arena_free) arena mem = {0};
    const jtree *v;
    err e;
    AUTO(str_free) str s = {0};
    CHECK_OK(
        parse("{\"b\":1,\"B\":2,\"a\":3,\"b\":[4],\"\xC3\x84\":5,\"\xC3\xA4\":6,\"Z\":7,\"_\":8,"
              "\"\xD0\xAF\":9,\"\xE1\xBB\xAEu\":10,\"\xE1\xBB\xAF"
              "a\":11}", /* U+1EEE and U+1EEF are one letter */
              &mem, &v, &e),
        e);
    CHECK_EQ(v->count, 10);
    CHECK_EQ(jtree_get(v, "b")->count, 1);
    CHECK_EQ(jtree_get(v, "B")->count, 0);
    const jtree **m = jtree_sorted(v, &mem);
    for (size_t i = 0; i < v->count; i++)
        str_puts(&s, m[i]->key);
    CHECK_STR(s.at, "_abBZ\xC3\x84\xC3\xA4\xD0\xAF\xE1\xBB\xAF"
                    "a\xE1\xBB\xAEu");
}

TEST(numbers_print_as_python_prints_them)
{
    static const char *const pairs[][2] = {
        {"1", "1"},
        {"-0", "0"},
        {"100000000000000000000000000", "100000000000000000000000000"},
        {"1.0", "1.0"},
        {"1e5", "100000.0"},
        {"1e16", "1e+16"},
        {"123456789012345680.0", "1.2345678901234568e+17"},
        {"0.1", "0.1"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1.5e-7", "1.5e-07"},
        {"-0.0", "-0.0"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"12.50", "12.5"},
        {"1E2", "100.0"}};
    AUTO(arena_free) arena mem = {0};
    const jtree *v;
    err e;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        AUTO(str_free) str s = {0};
        CHECK_OK(parse(pairs[i][0], &mem, &v, &e), e);
        CHECK(jtree_put_python_number(&s, v));
        CHECK_STR(s.at, pairs[i][1]);
    }
    CHECK_OK(parse("1e999", &mem, &v, &e), e);
    AUTO(str_free) str s = {0};
    CHECK(!jtree_put_python_number(&s, v));
}

static status parse_some(void *arg, err *e)
{
    AUTO(arena_free) arena mem = {0};
    const jtree *v;
    (void)arg;
    static const char text[] = "{\"a long key to grow a buffer with, and more of it than fits at "
                               "first\":[1,2],\"b\":\"x\",\"b\":null}";
    status st = jtree_parse(text, sizeof text - 1, "text", 8, &mem, &v, e);
    return st;
}

TEST(json_survives_every_failed_allocation)
{
    test_every_allocation(parse_some, NULL);
}
