/* decode.c - which kind a file is, whether its picture is within the limits, and turning it
 * upright.
 */
#include "image/image_int.h"

#include <string.h>

static const struct {
    image_read_head *head;
    image_read_pixels *pixels;
} formats[] = {
    [IMAGE_PNG] = {png_read_head, png_read_pixels},
    [IMAGE_JPEG] = {jpeg_read_head, jpeg_read_pixels},
    [IMAGE_WEBP] = {webp_read_head, webp_read_pixels},
};

/* How files begin: `n` bytes at `at`. Kinds that are not read are here for the sentence. */
static const struct {
    const char *bytes;
    uint8_t at, n;
    int8_t format; /* -1: not read */
    const char *kind;
} beginnings[] = {
    {"\x89PNG\r\n\x1a\n", 0, 8, IMAGE_PNG, "a PNG file"},
    {"\xff\xd8\xff", 0, 3, IMAGE_JPEG, "a JPEG file"},
    {"WEBP", 8, 4, IMAGE_WEBP, "a WebP file"},
    {"GIF8", 0, 4, -1, "a GIF file"},
    {"BM", 0, 2, -1, "a BMP file"},
    {"II*\0", 0, 4, -1, "a TIFF file"},
    {"MM\0*", 0, 4, -1, "a TIFF file"},
    {"ftypheic", 4, 8, -1, "a HEIC file"},
    {"ftypheix", 4, 8, -1, "a HEIC file"},
    {"ftypmif1", 4, 8, -1, "a HEIF file"},
    {"ftypavif", 4, 8, -1, "an AVIF file"},
    {"\xff\x0a", 0, 2, -1, "a JPEG XL file"},
    {"\0\0\0\x0cJXL ", 0, 8, -1, "a JPEG XL file"},
    {"\0\0\0\x0cjP  ", 0, 8, -1, "a JPEG 2000 file"},
    {"%PDF", 0, 4, -1, "a PDF file"},
    {"<svg", 0, 4, -1, "an SVG file"},
    {"<?xml", 0, 5, -1, "an XML file"},
};

/* The row of beginnings that a file has; -1: none. */
static int find_beginning(const uint8_t *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        size_t at = beginnings[i].at, n = beginnings[i].n;
        if (n_bytes >= at + n && !memcmp(bytes + at, beginnings[i].bytes, n))
            return (int)i;
    }
    return -1;
}

const char *image_kind(const void *bytes, size_t n_bytes, bool *reads)
{
    int i = find_beginning(bytes, n_bytes);
    *reads = i >= 0 && beginnings[i].format >= 0;
    return i < 0 ? NULL : beginnings[i].kind;
}

static status find_format(const image_file *f, image_format *out, err *e)
{
    int i = find_beginning(f->bytes, f->n_bytes);
    if (i >= 0 && beginnings[i].format >= 0) {
        *out = (image_format)beginnings[i].format;
        return OK;
    }
    return err_set(e, E_UNSUPPORTED, "%s: %s; pictures are read from PNG, JPEG and WebP files",
                   f->name,
                   i >= 0       ? beginnings[i].kind
                   : f->n_bytes ? "no picture"
                                : "an empty file");
}

/* The size as the file stores it: of a picture that lies on its side, the other one. */
static void swap_sides(image_head *h)
{
    if (h->orientation >= 5) {
        int32_t width = h->width;
        h->width = h->height;
        h->height = width;
    }
}

status image_head_read(image_head *out, const void *bytes, size_t n_bytes, const char *name, err *e)
{
    const image_file f = {bytes, n_bytes, name};
    image_head h = {.orientation = 1};
    status st;
    if ((st = find_format(&f, &h.format, e)) || (st = formats[h.format].head(&f, &h, e)))
        return st;
    if (h.width < 1 || h.height < 1)
        return err_set(e, E_FORMAT, "%s: a picture of %d x %d pixels", name, h.width, h.height);
    if (h.width > IMAGE_SIDE_MAX || h.height > IMAGE_SIDE_MAX ||
        (int64_t)h.width * h.height > IMAGE_PIXELS_MAX)
        return err_set(e, E_LIMIT,
                       "%s: a picture of %d x %d pixels; at most %d a side and %d in all are read",
                       name, h.width, h.height, IMAGE_SIDE_MAX, IMAGE_PIXELS_MAX);
    swap_sides(&h);
    *out = h;
    return OK;
}

/* Orientations are numbered so: 2 mirrors left and right, 3 both, 4 top and bottom; 5 to 8 have
 * rows for columns as well. Pixel (x, y) of the upright picture is where `from` says in the stored
 * one. */
static void turn(const image *to, const image *from, int32_t orientation)
{
    bool sides = orientation >= 5;
    bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    for (int32_t y = 0; y < to->height; y++) {
        uint8_t *p = to->rgb + (size_t)3 * (size_t)to->width * (size_t)y;
        for (int32_t x = 0; x < to->width; x++, p += 3) {
            int32_t fx = sides ? y : x, fy = sides ? x : y;
            if (mirror_x)
                fx = from->width - 1 - fx;
            if (mirror_y)
                fy = from->height - 1 - fy;
            memcpy(p, from->rgb + 3 * ((size_t)from->width * (size_t)fy + (size_t)fx), 3);
        }
    }
}

status image_decode(image *out, const void *bytes, size_t n_bytes, const char *name, err *e)
{
    const image_file f = {bytes, n_bytes, name};
    image_head h;
    image stored = {0}, upright = {0};
    status st;
    if ((st = image_head_read(&h, bytes, n_bytes, name, e)))
        return st;
    bool sides = h.orientation >= 5;
    if ((st = image_alloc(&stored, sides ? h.height : h.width, sides ? h.width : h.height, e)) ||
        (st = formats[h.format].pixels(&f, &stored, e)))
        goto out;
    if (h.orientation == 1) {
        *out = stored;
        return OK;
    }
    if ((st = image_alloc(&upright, h.width, h.height, e)))
        goto out;
    turn(&upright, &stored, h.orientation);
    *out = upright;
out:
    image_free(&stored);
    return st;
}
