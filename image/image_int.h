/* image_int.h - what the decoders of one format each give to decode.c. */
#ifndef IMAGE_IMAGE_INT_H
#define IMAGE_IMAGE_INT_H

#include "image/image.h"

/* A file in memory. */
typedef struct image_file {
    const uint8_t *bytes;
    size_t n_bytes;
    const char *name; /* for messages */
} image_file;

/* Size as the file stores it, before the orientation; the caller checks it against the limits. */
typedef status image_read_head(const image_file *f, image_head *h, err *e);
/* Pixels as the file stores them, into m->rgb, which has room for the size that read_head gave. */
typedef status image_read_pixels(const image_file *f, const image *m, err *e);

image_read_head png_read_head, jpeg_read_head, webp_read_head;
image_read_pixels png_read_pixels, jpeg_read_pixels, webp_read_pixels;

/* The orientation in an EXIF block (TIFF, without "Exif\0\0" before it): 1 to 8, or 1 where the
 * block has none or is damaged. */
int32_t exif_orientation(const uint8_t *tiff, size_t n_bytes);

#endif
