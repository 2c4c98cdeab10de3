/* fuzz_image.h - any bytes as a picture: refused with a sentence, or as large as the header says.
 *
 * Pictures of more than a few thousand pixels are left alone: they cost time and show no more.
 */
#ifndef FUZZ_FUZZ_IMAGE_H
#define FUZZ_FUZZ_IMAGE_H

#include "fuzz/fuzz.h"
#include "image/image.h"

static inline void fuzz_image(const uint8_t *data, size_t n)
{
    image_head h;
    image m = {0};
    err e = {0};
    status st = image_head_read(&h, data, n, "fuzz", &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    if (st || (int64_t)h.width * h.height > 1 << 14)
        return;
    st = image_decode(&m, data, n, "fuzz", &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    fuzz_check(st ? !m.rgb : m.width == h.width && m.height == h.height, "the header's size");
    image_free(&m);
}

#endif
