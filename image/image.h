/* image.h - pictures: files to pixels, and pixels of one size to another.
 *
 * A picture is 8-bit RGB, row by row from the top left, without gaps. Decoders read PNG, JPEG and
 * WebP from memory. They are in programs alone: libcarat takes pixels, and is linked with no codec.
 *
 * A file may be hostile. Its header says the size, and a size above the limits is refused before
 * memory for pixels is taken. Any thread may call; nothing is shared.
 *
 * What the reference (transformers on Pillow) does is done here too: EXIF orientation is applied,
 * grey is replicated, palettes are expanded, alpha is dropped and not blended. Colour profiles and
 * gamma are ignored. Of 16 bits the upper 8 are kept, in grey too, where Pillow saturates.
 */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* 67,108,864 pixels: more than any phone's 48 megapixels, and 192 MiB. */
enum { IMAGE_SIDE_MAX = 16384, IMAGE_PIXELS_MAX = 1 << 26 };

typedef enum image_format { IMAGE_PNG, IMAGE_JPEG, IMAGE_WEBP } image_format;

typedef struct image {
    int32_t width, height;
    uint8_t *rgb; /* [height][width][3] */
} image;

/* What the beginning of a file says. */
typedef struct image_head {
    image_format format;
    int32_t width, height; /* upright: after the orientation */
    int32_t orientation;   /* EXIF, 1 to 8; 1 where the file has none */
} image_head;

/* The kind of picture by the first bytes of a file: "a PNG file"; NULL: none that is known. *reads:
 * is it one of image_format? */
const char *image_kind(const void *bytes, size_t n_bytes, bool *reads);

/* Reads a file's size and orientation, and checks them. Takes no memory for pixels. name is for
 * messages. E_UNSUPPORTED: another kind of file, or a kind of colours that is not read; E_LIMIT: a
 * picture that is too large; E_FORMAT: a damaged file. */
status image_head_read(image_head *h, const void *bytes, size_t n_bytes, const char *name, err *e);

/* The picture, upright. image_free frees it. E_FORMAT too where the file ends early. The codec and
 * the turn need up to 12 bytes a pixel beside the result's 3. */
status image_decode(image *out, const void *bytes, size_t n_bytes, const char *name, err *e);

/* Pixels for a picture of that size, uninitialised. */
status image_alloc(image *out, int32_t width, int32_t height, err *e);
void image_free(image *m); /* safe on a zeroed or freed one */

/* ---- Other sizes ---- */

typedef enum image_filter { IMAGE_BILINEAR, IMAGE_BICUBIC } image_filter;

/* Image.resize of Pillow 13, bit for bit: filters that widen where the picture shrinks, along rows
 * and along columns, with 8 bits between. */
status image_resize(image *out, const image *m, int32_t width, int32_t height, image_filter filter,
                    err *e);

#endif
