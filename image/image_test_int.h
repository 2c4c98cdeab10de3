/* image_test_int.h - pictures that tests draw, as tools/image_fixtures.py draws them, and hashes.
 */
#ifndef IMAGE_IMAGE_TEST_INT_H
#define IMAGE_IMAGE_TEST_INT_H

#include "tests/test.h"
#include "base/rng.h"
#include "base/sha.h"
#include "image/image.h"

/* Noise, a smooth pattern or hard edges. */
static inline void test_picture(image *m, int64_t seed, int32_t w, int32_t h)
{
    err e = {0};
    CHECK_OK(image_alloc(m, w, h, &e), e);
    uint8_t *p = m->rgb;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++)
            for (int64_t c = 0; c < 3; c++)
                *p++ =
                    seed % 3 == 0
                        ? (uint8_t)rng_mix((uint64_t)((y * w + x) * 3 + c) + ((uint64_t)seed << 32))
                    : seed % 3 == 1 ? (uint8_t)((3 * x * x + 5 * y * y + 85 * c + seed) >> 4)
                                    : (uint8_t)((x / 3 + y / 2 + c) % 2 * 255);
}

enum { TEST_DIGEST = 17 };
/* The first 16 digits of the SHA-256 of n bytes. */
static inline const char *test_digest(const void *bytes, size_t n, char out[TEST_DIGEST])
{
    char text[SHA256_TEXT];
    sha_stream s;
    sha256_init(&s);
    sha_put(&s, bytes, n);
    sha_text(&s, text);
    memcpy(out, text, TEST_DIGEST - 1);
    out[TEST_DIGEST - 1] = 0;
    return out;
}

static inline const char *test_image_digest(const image *m, char out[TEST_DIGEST])
{
    return test_digest(m->rgb, (size_t)3 * (size_t)m->width * (size_t)m->height, out);
}

#endif
