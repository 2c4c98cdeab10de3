/* str_test.c - strings that cannot grow: they say so, and keep what they have. */
#include "base/str.h"
#include "base/mem.h"
#include "tests/test.h"

#include <stdint.h>

TEST(str_refuses_impossible_lengths_and_keeps_its_bytes)
{
    static const size_t lengths[] = {SIZE_MAX / 4 + 1, SIZE_MAX / 2, SIZE_MAX - 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        AUTO(str_free) str s = {0};
        str_puts(&s, "ab");
        str_put(&s, "x", lengths[i]);
        CHECK(s.bad && s.n == 2);
        str_puts(&s, "more"); /* a bad string lacks whole appends */
        CHECK_STR(str_text(&s), "ab");
        str_free(&s);
        str_puts(&s, "long");
        s.n = lengths[i];
        str_putc(&s, 'c');
        CHECK(s.bad && s.n == lengths[i]);
        s.n = 4;
    }
}

TEST(str_without_memory_keeps_its_bytes)
{
    AUTO(str_free) str s = {0};
    mem_fail_after(0);
    str_puts(&s, "ab");
    mem_fail_after(-1);
    CHECK(s.bad && !s.n && !*str_text(&s));
    str_puts(&s, "ab");
    CHECK(s.bad && !s.n);
}

TEST(str_fits_its_contents)
{
    str s = {0};
    str_fit(&s);
    CHECK(!s.at && !s.cap);
    for (int i = 0; i < 1000; i++)
        str_puts(&s, "x");
    str_cut(&s, 3);
    mem_fail_after(0);
    str_fit(&s); /* without memory it stays as it is */
    mem_fail_after(-1);
    CHECK(s.cap == 1024 && !s.bad);
    str_fit(&s);
    CHECK_EQ(s.cap, 4);
    CHECK_STR(s.at, "xxx");
    str_puts(&s, "y");
    CHECK_STR(s.at, "xxxy");
    str_free(&s);
}
