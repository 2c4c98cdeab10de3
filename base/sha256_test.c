/* sha256_test.c - the examples of FIPS 180-4, whole and in pieces of every size. */
#include "tests/test.h"
#include "base/sha256.h"

TEST(sha256_gives_the_published_digests)
{
    static const struct {
        const char *text, *digest;
    } want[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char out[65];
    sha256 s;
    for (int i = 0; i < 3; i++)
        for (size_t piece = 1; piece < 64; piece++) {
            size_t n = strlen(want[i].text);
            sha256_init(&s);
            for (size_t at = 0; at < n; at += piece)
                sha256_put(&s, want[i].text + at, n - at < piece ? n - at : piece);
            sha256_text(&s, out);
            CHECK_STR(out, want[i].digest);
        }
    sha256_init(&s);
    for (int i = 0; i < 1000000; i++)
        sha256_put(&s, "a", 1);
    sha256_text(&s, out);
    CHECK_STR(out, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
