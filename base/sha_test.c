/* sha_test.c - the examples of FIPS 180-4, whole and in pieces of every size, and an id that git
 * gives. */
#include "tests/test.h"
#include "base/sha.h"

static const struct {
    void (*init)(sha_stream *);
    const char *digest[4]; /* of nothing, "abc", `two`, and a million times "a" */
} kinds[] = {
    {sha1_init,
     {"da39a3ee5e6b4b0d3255bfef95601890afd80709", "a9993e364706816aba3e25717850c26c9cd0d89d",
      "84983e441c3bd26ebaae4aa1f95129e5e54670f1", "34aa973cd4c4daa4f61eeb2bdbad27316534016f"}},
    {sha256_init,
     {"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}}};

TEST(sha_gives_the_published_digests)
{
    static const char *const text[] = {"", "abc",
                                       "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"};
    char out[SHA256_TEXT];
    sha_stream s;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int i = 0; i < 3; i++)
            for (size_t piece = 1; piece < 64; piece++) {
                size_t n = strlen(text[i]);
                kinds[k].init(&s);
                for (size_t at = 0; at < n; at += piece)
                    sha_put(&s, text[i] + at, n - at < piece ? n - at : piece);
                sha_text(&s, out);
                CHECK_STR(out, kinds[k].digest[i]);
            }
        char many[1000];
        memset(many, 'a', sizeof many);
        for (size_t piece = 1; piece <= sizeof many; piece *= 10) {
            kinds[k].init(&s);
            for (size_t i = 0; i < 1000000 / piece; i++)
                sha_put(&s, many, piece);
            sha_text(&s, out);
            CHECK_STR(out, kinds[k].digest[3]);
        }
    }
    sha1_init(&s); /* of a file that holds "hello" and a newline */
    sha_put(&s, "blob 6\0hello\n", 13);
    sha_text(&s, out);
    CHECK_STR(out, "ce013625030ba8dba906f756967f9e9ca394464a");
}
