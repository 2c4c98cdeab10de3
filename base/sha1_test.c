/* sha1_test.c - the examples of FIPS 180-4, and an id that git gives. */
#include "tests/test.h"
#include "base/sha1.h"

TEST(sha1_gives_the_published_digests)
{
    static const struct {
        const char *text, *digest;
    } want[] = {{"", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
                {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
                {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                 "84983e441c3bd26ebaae4aa1f95129e5e54670f1"}};
    char out[41];
    sha1 s;
    for (int i = 0; i < 3; i++)
        for (size_t piece = 1; piece < 64; piece++) {
            size_t n = strlen(want[i].text);
            sha1_init(&s);
            for (size_t at = 0; at < n; at += piece)
                sha1_put(&s, want[i].text + at, n - at < piece ? n - at : piece);
            sha1_text(&s, out);
            CHECK_STR(out, want[i].digest);
        }
    sha1_init(&s); /* of a file that holds "hello" and a newline */
    sha1_put(&s, "blob 6\0hello\n", 13);
    sha1_text(&s, out);
    CHECK_STR(out, "ce013625030ba8dba906f756967f9e9ca394464a");
}
