/* base64_test.c - known texts, breaks and padding, and what is refused. */
#include "base/base64.h"
#include "tests/test.h"

#include <string.h>

TEST(base64_of_published_vectors)
{
    static const struct {
        const char *text, *bytes;
    } row[] = {{"", ""},
               {"Zg==", "f"},
               {"Zm8=", "fo"},
               {"Zm9v", "foo"},
               {"Zm9vYg==", "foob"},
               {"Zm9vYmE=", "fooba"},
               {"Zm9vYmFy", "foobar"},
               {"Zg", "f"},
               {"Zm9vYmE", "fooba"},
               {"Zm9v\r\nYmFy\n", "foobar"},
               {"Z\ng=\n=", "f"},
               {"+/+/", "\xFB\xFF\xBF"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint8_t out[32];
        size_t n = 99, bad, len = strlen(row[i].text);
        CHECK_MSG(base64_decode(row[i].text, len, out, &n, &bad), "\"%s\"", row[i].text);
        CHECK_EQ(n, strlen(row[i].bytes));
        CHECK(!memcmp(out, row[i].bytes, n) && n <= base64_most(len));
        AUTO(str_free) str text = {0};
        base64_put(&text, out, n);
        CHECK(i < 7 ? !strcmp(str_text(&text), row[i].text) : text.n % 4 == 0);
    }
}

TEST(base64_that_is_none)
{
    static const struct {
        const char *text;
        size_t bad;
    } row[] = {{"Z", 1},      {"Zm9vZ", 5},   {"Z===", 4},     {"Zg=", 3},
               {"Zm8==", 5},  {"=", 1},       {"Zm9v====", 8}, {"Zg==Zg==", 4},
               {"Zm 9", 2},   {"Zm-9", 2},    {"Zm_9", 2},     {"Zm\t9", 2},
               {"Zm9v\"", 4}, {"\x80m9v", 0}, {"Zm.v", 2},     {"Zm9v!x", 4}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint8_t out[32];
        size_t n = 99, bad = 99;
        CHECK_MSG(!base64_decode(row[i].text, strlen(row[i].text), out, &n, &bad), "\"%s\"",
                  row[i].text);
        CHECK_EQ(n, 99);
        CHECK_MSG(bad == row[i].bad, "\"%s\": %zu", row[i].text, bad);
    }
}
