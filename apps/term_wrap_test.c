/* term_wrap_test.c - lines break between words, however the stream is cut into pieces. */
#include "apps/term_wrap.h"
#include "tests/test.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

/* The output for text that comes in pieces of about n_piece bytes, cut between characters. */
static char *wrapped(const char *text, int columns, size_t n_piece)
{
    char *out = NULL;
    size_t n_out, n = strlen(text);
    word_wrap w = {0};
    FILE *f = open_memstream(&out, &n_out);
    CHECK(f);
    for (size_t at = 0, end; at < n; at = end) {
        end = at + n_piece < n ? at + n_piece : n;
        while (end < n && ((unsigned char)text[end] & 0xc0) == 0x80)
            end++;
        wrap_put(&w, f, columns, text + at, end - at);
    }
    wrap_flush(&w, f, columns);
    CHECK(!fclose(f));
    return out;
}

TEST(term_words_move_to_the_next_line_whole)
{
    static const struct {
        const char *text, *lines;
        int columns;
    } cases[] = {
        {"one two three", "one two\nthree", 10},
        {"one two three", "one two three", 13},
        {"one two three", "one two\nthree", 12},
        {"one two three", "one two three", 0},
        {"ends here. \n\n  an indent", "ends here.\n\n  an\nindent", 10},
        {"tab\tstops a", "tab     stops\na", 13},
        {"a  b        ccc", "a  b\nccc", 8},
        /* A word longer than a line begins a new line, and the terminal breaks it. */
        {"see http://example.org now", "see\nhttp://example.org\nnow", 10},
        {"see http://example.org up", "see\nhttp://example.org up", 11},
        /* Widths are cells, not bytes or characters. */
        {"\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F \xC3\xA4\xC3\xB6\xC3\xBC bb",
         "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F \xC3\xA4\xC3\xB6\xC3\xBC\nbb", 8},
        {"e\xCC\x81\xCC\x81 e\xCC\x81\xCC\x81"
         "e\xCC\x81 e\xCC\x81 x",
         "e\xCC\x81\xCC\x81 e\xCC\x81\xCC\x81"
         "e\xCC\x81 e\xCC\x81 x",
         8},
        {"\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2",
         "\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2\xE5\xAD\x97\n\xE6\xBC\xA2", 8},
        {"\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2\xE5\xAD\x97\xE3\x80\x82",
         "\xE6\xBC\xA2\xE5\xAD\x97\xE6\xBC\xA2\n\xE5\xAD\x97\xE3\x80\x82", 9},
        /* Code keeps its lines; the text after it is broken. */
        {"```c\nint a_long_line;  // x\n```\nwords again here",
         "```c\nint a_long_line;  // x\n```\nwords\nagain here", 10},
        {"a ``` in a line is none", "a ``` in a\nline is\nnone", 10},
        {"\x1b[2Jx \xC2\x9B yy zz", "^[[2Jx\n<009B> yy\nzz", 10},
        {"a\r\nb\rc", "a\nbc", 10},
    };
    CHECK(setlocale(LC_CTYPE, "C.UTF-8"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n_piece = 1; n_piece < 9; n_piece++) {
            AUTO_PTR(free) char *got = wrapped(cases[i].text, cases[i].columns, n_piece);
            CHECK_STR(got, cases[i].lines);
        }
}

TEST(term_a_word_without_end_is_not_kept)
{
    enum { N = 50000 };
    AUTO_PTR(free) char *text = malloc(2 * N + 2), *got;
    CHECK(text);
    text[0] = 'a';
    for (int i = 0; i < N; i++)
        memcpy(text + 1 + 2 * i, "\xCC\x81", 2);
    text[2 * N + 1] = 0;
    got = wrapped(text, 80, 100);
    CHECK_STR(got, text);
    free(got);
    memset(text, 'a', 2 * N + 1);
    got = wrapped(text, 80, 7);
    CHECK_STR(got, text);
}

static char *row_in(const char *left, const char *help, int width)
{
    char *out = NULL;
    size_t n;
    FILE *f = open_memstream(&out, &n);
    CHECK(f);
    wrap_row(f, left, help, 10, width);
    CHECK(!fclose(f));
    return out;
}

TEST(term_rows_of_help_keep_to_their_column)
{
    static const struct {
        const char *left, *help, *lines;
        int width;
    } cases[] = {
        {"  run", "Answer a prompt", "  run     Answer a prompt\n", 40},
        {"  run", "Answer a prompt, or hold a conversation",
         "  run     Answer a prompt, or hold a\n          conversation\n", 40},
        {"  --long-option", "what it does", "  --long-option\n          what it does\n", 40},
        {"  run", "Answer a prompt", "  run\n        Answer a\n        prompt\n", 20},
        {"  run", "", "  run     \n", 40},
        {"  run", "averyveryverylongword x ", "  run\n        averyveryverylongword\n        x\n",
         12},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_PTR(free) char *got = row_in(cases[i].left, cases[i].help, cases[i].width);
        CHECK_STR(got, cases[i].lines);
    }
}
