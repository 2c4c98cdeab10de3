/* lower_test.c - lower case against Python's: every character, and strings around the sigma.
 *
 * tests/data/unicode/lower.txt is made by tools/lower_table.py.
 */
#include "tests/test.h"
#include "text/lower.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

#include <stdlib.h>

enum { N_CODE_POINTS = 0x110000 };

static size_t lower_of(const char *s, size_t n, uint32_t *out, size_t cap)
{
    lower_reader r = {.s = s, .n = n};
    size_t k = 0;
    while (k < cap && lower_next(&r, &out[k]))
        k++;
    return k;
}

/* Numbers in hexadecimal, apart by '.' or ' ', up to the end of the line or `stop`. */
static size_t read_numbers(const char **at, char stop, uint32_t *out, size_t cap)
{
    size_t n = 0;
    do {
        char *end;
        CHECK(n < cap);
        out[n++] = (uint32_t)strtoul(*at, &end, 16);
        *at = end + (*end != '\n');
        if (*end == '\n' || *end == stop)
            break;
    } while (true);
    return n;
}

static void check_string(const uint32_t *s, size_t n_s, const uint32_t *want, size_t n)
{
    AUTO(str_free) str text = {0};
    uint32_t have[32];
    for (size_t i = 0; i < n_s; i++) {
        char c[4];
        str_put(&text, c, (size_t)utf8_encode(s[i], c));
    }
    CHECK_EQ(lower_of(text.at, text.n, have, 32), n);
    CHECK_MSG(!memcmp(have, want, n * sizeof *have), "a string that begins with U+%04X", s[0]);
}

static void check_class(const char *name, uint32_t first, uint32_t last)
{
    /* "cΣ" and "acΣ" tell the classes apart. */
    bool cased = !strncmp(name, "cased", 5);
    for (uint32_t c = first; c <= last; c++) {
        const uint32_t alone[] = {c, 0x3A3}, behind[] = {'a', c, 0x3A3};
        for (int with_a = 0; with_a < 2; with_a++) {
            AUTO(str_free) str text = {0};
            uint32_t out[8];
            const uint32_t *s = with_a ? behind : alone;
            for (int i = 0; i < 2 + with_a; i++) {
                char u[4];
                str_put(&text, u, (size_t)utf8_encode(s[i], u));
            }
            size_t n = lower_of(text.at, text.n, out, 8);
            CHECK_MSG(out[n - 1] == (cased || with_a ? 0x3C2 : 0x3C3), "U+%04X is not %.6s", c,
                      name);
        }
    }
}

TEST(lower_case_is_pythons_for_every_character)
{
    AUTO_MEM char *text;
    size_t n;
    err e = {0};
    uint32_t *want = mem_calloc(N_CODE_POINTS, 2 * sizeof *want);
    CHECK(want);
    for (uint32_t c = 0; c < N_CODE_POINTS; c++)
        want[2 * c] = c;
    CHECK_OK(file_read_all(test_path("tests/data/unicode/lower.txt"), 1 << 20, &text, &n, &e), e);
    int n_changed = 0, n_strings = 0, n_classes = 0;
    for (const char *at = text; at < text + n;) {
        uint32_t a[32], b[32];
        const char *line = at;
        at += 2;
        if (*line == 'c') {
            size_t k = read_numbers(&at, 0, a, 3);
            want[2 * a[0]] = a[1];
            want[2 * a[0] + 1] = k > 2 ? a[2] : 0;
            n_changed++;
        } else if (*line == 's') {
            size_t n_a = read_numbers(&at, ' ', a, 32), n_b = read_numbers(&at, 0, b, 32);
            check_string(a, n_a, b, n_b);
            n_strings++;
        } else if (*line == 'k') {
            const char *name = at;
            at = strchr(at, ' ') + 1;
            read_numbers(&at, 0, a, 2);
            check_class(name, a[0], a[1]);
            n_classes++;
        } else {
            at = strchr(line, '\n') + 1;
        }
    }
    CHECK(n_changed > 1400 && n_strings == 400 && n_classes > 400);
    for (uint32_t c = 0; c < N_CODE_POINTS; c++) {
        char s[4];
        uint32_t out[4] = {0};
        if (c >= 0xD800 && c < 0xE000)
            continue; /* no characters */
        size_t k = lower_of(s, (size_t)utf8_encode(c, s), out, 4);
        CHECK_MSG(k == 1 + (want[2 * c + 1] != 0) && out[0] == want[2 * c] &&
                      out[1] == want[2 * c + 1],
                  "the lower case of U+%04X is U+%04X", c, out[0]);
    }
    mem_free(want);
}
