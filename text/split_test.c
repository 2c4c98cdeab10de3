/* split_test.c - classes of characters against their source, and words by example. The regular
 * expressions themselves are compared in bytes_test.c, over texts of tools/bytes_fixtures.py.
 */
#include "tests/test.h"
#include "text/split.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { OTHER, LETTER, MARK, NUMBER, SPACE, UPPER, LOWER, N_CLASSES, LAST = 0x10FFFF };

/* The case of a letter: words of gpt4o end before upper case, and behind lower case in front of
 * upper case. */
static int case_seen(uint32_t c)
{
    char s[8] = "a";
    size_t n = 1 + (size_t)utf8_encode(c, s + 1);
    if (split_gpt4o(s, n) == 1)
        return UPPER;
    s[n] = 'A';
    s[n + 1] = 'a';
    return split_gpt4o(s + 1, n + 1) == n + 1 ? LETTER : LOWER;
}

/* What a word tells of character c. Words end between "a" and a sign, a number, a space; a mark
 * belongs to a word for qwen35 alone. */
static int class_seen(uint32_t c)
{
    char s[8] = "a";
    size_t n = 1 + (size_t)utf8_encode(c, s + 1), two = n + 1;
    s[n] = 'a';
    if (split_qwen2(s, n) == n)
        return case_seen(c);
    if (split_qwen35(s, n) == n)
        return MARK;
    if (split_qwen2(s + 1, two - 1) == n - 1)
        return NUMBER; /* alone before a letter; signs and spaces take the letter with them */
    *s = '-';          /* a run of signs */
    return split_qwen2(s, n) == n ? OTHER : SPACE;
}

TEST(split_classes_are_those_of_the_reference)
{
    static const char *const name[] = {"other", "letter", "mark", "number",
                                       "space", "upper",  "lower"};
    AUTO_MEM uint8_t *want = mem_calloc(LAST + 1, 1);
    FILE *f = fopen(test_path("tests/data/unicode/classes.txt"), "re");
    char line[200], class[16];
    uint32_t first, last, rows = 0;
    CHECK(f && want);
    while (fgets(line, sizeof line, f)) {
        if (*line == '#')
            continue;
        CHECK(sscanf(line, "%15s %x %x", class, &first, &last) == 3 && last <= LAST);
        int k = LAST;
        for (int i = 0; i < N_CLASSES; i++)
            k = strcmp(class, name[i]) ? k : i;
        CHECK(k < N_CLASSES);
        memset(want + first, k, last - first + 1);
        rows++;
    }
    CHECK(rows > 1000);
    fclose(f);
    for (uint32_t c = 0; c <= LAST; c++) {
        if (c == '\n' || c == '\r' || (c >= 0xD800 && c < 0xE000))
            continue; /* CR and LF have rules of their own; surrogates are not characters */
        CHECK_MSG(class_seen(c) == want[c], "U+%04X is %s, expected %s", c, name[class_seen(c)],
                  name[want[c]]);
    }
}

typedef size_t (*splitter)(const char *s, size_t n);

static void expect(splitter split, const char *text, const char *const *words)
{
    size_t n = strlen(text), at = 0;
    for (; *words; words++) {
        size_t len = at < n ? split(text + at, n - at) : 0;
        CHECK_MSG(len == strlen(*words) && !memcmp(text + at, *words, len),
                  "\"%s\": \"%.*s\", expected \"%s\"", text, (int)len, text + at, *words);
        at += len;
    }
    CHECK_EQ(at, n);
}
#define WORDS(split, text, ...) expect(split, text, (const char *const[]){__VA_ARGS__, NULL})

TEST(split_words_by_example)
{
    WORDS(split_qwen2, "Hello  world\n\n  x", "Hello", " ", " world", "\n\n", " ", " x");
    WORDS(split_qwen2, "I'll 123 \xC3\xA9t\xC3\xA9", "I", "'ll", " ", "1", "2", "3",
          " \xC3\xA9t\xC3\xA9");
    WORDS(split_qwen2, "foo()\r\n\tbar  ", "foo", "()\r\n", "\tbar", "  ");
    WORDS(split_qwen2, "  \n x", "  \n", " x");
    WORDS(split_qwen2, "it'SUN'\xC5\xBF!", "it", "'S", "UN", "'\xC5\xBF", "!");
    WORDS(split_qwen2, " 'r 're", " '", "r", " '", "re"); /* a space before is no contraction */
    WORDS(split_qwen2, "e\xCC\x81te\xCC\x81", "e", "\xCC\x81te", "\xCC\x81");
    WORDS(split_qwen35, "e\xCC\x81te\xCC\x81", "e\xCC\x81te\xCC\x81");
    WORDS(split_qwen35, "-\xCC\x81", "-\xCC\x81");
    WORDS(split_qwen2, "a\xFFz \xFF\xE4", "a", "\xFFz", " \xFF\xE4");
}

TEST(split_gpt4o_cuts_at_cases)
{
    WORDS(split_gpt4o, "HelloWorld it's DON'T", "Hello", "World", " it's", " DON'T");
    WORDS(split_gpt4o, "HTTPServer parseJSON x", "HTTPServer", " parse", "JSON", " x");
    WORDS(split_gpt4o,
          "\xE4\xB8\xAD"
          "AB",
          "\xE4\xB8\xAD", "AB"); /* the run gives back */
    WORDS(split_gpt4o,
          "\xE4\xB8\xAD"
          "ABc",
          "\xE4\xB8\xAD"
          "ABc");
    WORDS(split_gpt4o,
          "\xCC\x81"
          "AB",
          "\xCC\x81", "AB"); /* a mark alone is a word */
    WORDS(split_gpt4o,
          "\xCC\x81"
          "ABc -\xCC\x81",
          "\xCC\x81"
          "ABc",
          " -\xCC\x81");
    WORDS(split_gpt4o, "1234 a1", "123", "4", " a", "1");
    WORDS(split_gpt4o, "-\n/\r\n//a/b", "-\n/\r\n//", "a", "/b");
    WORDS(split_gpt4o, "it'S'\xC5\xBF 's", "it'S", "'\xC5\xBF", " '", "s");
    WORDS(split_gpt4o, "a\xFFz \xFF\xE4", "a", "\xFFz", " \xFF\xE4");
}

TEST(split_tekken_cuts_before_capitals)
{
    WORDS(split_tekken, "helloWorld HELLOWorld", "hello", "World", " HELLOWorld");
    WORDS(split_tekken, "ABC12d it's", "ABC", "1", "2", "d", " it", "'s");
    WORDS(split_tekken, "a//\n/b/", "a", "//\n/", "b", "/");
}

TEST(split_laguna_cuts_before_line_breaks)
{
    WORDS(split_qwen2, "a \n b", "a", " \n", " b");
    WORDS(split_laguna, "a \n b", "a", " ", "\n", " b");
    WORDS(split_laguna, "):\n", "):", "\n");
    WORDS(split_laguna, "x\r\ny", "x", "\r\n", "y");
    WORDS(split_laguna, "f(x):\r\n\n  y\rz\n", "f", "(x", "):", "\r\n\n", " ", " y", "\r", "z",
          "\n");
    WORDS(split_laguna, "a\r\r\nb", "a", "\r", "\r\n", "b");
    WORDS(split_laguna, "\n  \n", "\n", "  ", "\n");
    WORDS(split_laguna, "-\r-\r\n", "-\r", "-", "\r\n");
}
