/* exif.c - the orientation of a picture, from the block of tags that cameras write.
 *
 * The block is a TIFF file: a byte order, the place of the first directory, and there entries of 12
 * bytes: tag, type, count, value. Only the tag 0x0112 of the first directory is read. What is
 * damaged counts as absent, as with Pillow: a picture is worth more than its tags.
 */
#include "image/image_int.h"

#include <stdbool.h>

enum { ORIENTATION = 0x0112, BYTE = 1, SHORT = 3, LONG = 4 };

typedef struct tiff {
    const uint8_t *at;
    size_t n;
    bool big; /* most significant byte first */
} tiff;

/* A number of n_bytes at `at`; 0 outside of the block. */
static uint32_t number(const tiff *t, uint64_t at, uint32_t n_bytes)
{
    uint32_t v = 0;
    if (at > t->n || n_bytes > t->n - at)
        return 0;
    for (uint32_t i = 0; i < n_bytes; i++)
        v |= (uint32_t)t->at[at + i] << 8 * (t->big ? n_bytes - 1 - i : i);
    return v;
}

int32_t exif_orientation(const uint8_t *bytes, size_t n_bytes)
{
    tiff t = {bytes, n_bytes, n_bytes >= 2 && bytes[0] == 'M'};
    if (n_bytes < 8 || bytes[0] != bytes[1] || (bytes[0] != 'M' && bytes[0] != 'I') ||
        number(&t, 2, 2) != 42)
        return 1;
    uint64_t dir = number(&t, 4, 4);
    uint32_t n = number(&t, dir, 2);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = dir + 2 + (uint64_t)12 * i;
        if (number(&t, at, 2) != ORIENTATION)
            continue;
        uint32_t type = number(&t, at + 2, 2);
        uint32_t wide = type == BYTE ? 1 : type == SHORT ? 2 : type == LONG ? 4 : 0;
        uint32_t v = number(&t, at + 4, 4) == 1 ? number(&t, at + 8, wide) : 0;
        return v >= 1 && v <= 8 ? (int32_t)v : 1;
    }
    return 1;
}
