/* webp.c - WebP files, lossy and lossless, by libwebp. Of an animation the first frame is read, as
 * of an animated PNG. It may be a part of the picture: the rest is black, as if it were
 * transparent.
 */
#include "image/image_int.h"

#include <string.h>
#include <webp/decode.h>

static uint32_t le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The orientation in the chunk EXIF, which is behind the pixels. */
static int32_t orientation(const image_file *f)
{
    size_t at = 12; /* RIFF, its length, WEBP */
    while (at <= f->n_bytes && f->n_bytes - at >= 8) {
        const uint8_t *p = f->bytes + at;
        size_t n = le32(p + 4), left = f->n_bytes - at - 8;
        if (n > left)
            return 1;
        if (!memcmp(p, "EXIF", 4)) {
            /* Some programs put JPEG's six bytes before the block. */
            size_t skip = n > 6 && !memcmp(p + 8, "Exif\0", 6) ? 6 : 0;
            return exif_orientation(p + 8 + skip, n - skip);
        }
        at += 8 + n + (n & 1);
    }
    return 1;
}

static uint32_t le24(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
}

/* What libwebp decodes: a file, or the first frame of an animation, without a container. */
typedef struct still {
    const uint8_t *bytes;
    size_t n;
    int32_t width, height; /* of the whole picture */
    int32_t x, y, w, h;    /* the frame in it */
} still;

static status first_frame(const image_file *f, still *s, err *e)
{
    enum { VP8X = 12, CANVAS = VP8X + 12, FRAME_HEAD = 16 };
    size_t at = 12; /* RIFF, its length, WEBP */
    if (f->n_bytes < CANVAS + 6)
        return err_set(e, E_FORMAT, "%s: the WebP file ends in its header", f->name);
    s->width = (int32_t)le24(f->bytes + CANVAS) + 1;
    s->height = (int32_t)le24(f->bytes + CANVAS + 3) + 1;
    while (at <= f->n_bytes && f->n_bytes - at >= 8) {
        const uint8_t *p = f->bytes + at;
        size_t n = le32(p + 4), left = f->n_bytes - at - 8;
        if (n > left)
            return err_set(e, E_FORMAT, "%s: the WebP file ends in the middle of the picture",
                           f->name);
        if (!memcmp(p, "ANMF", 4) && n > FRAME_HEAD) {
            *s = (still){.bytes = p + 8 + FRAME_HEAD,
                         .n = n - FRAME_HEAD,
                         .width = s->width,
                         .height = s->height,
                         .x = 2 * (int32_t)le24(p + 8),
                         .y = 2 * (int32_t)le24(p + 11),
                         .w = (int32_t)le24(p + 14) + 1,
                         .h = (int32_t)le24(p + 17) + 1};
            return OK;
        }
        at += 8 + n + (n & 1);
    }
    return err_set(e, E_FORMAT, "%s: an animated WebP file without a frame", f->name);
}

static status find_still(const image_file *f, still *s, err *e)
{
    WebPBitstreamFeatures is = {0};
    VP8StatusCode code = WebPGetFeatures(f->bytes, f->n_bytes, &is);
    status st;
    *s = (still){f->bytes, f->n_bytes, is.width, is.height, 0, 0, is.width, is.height};
    if (!code && is.has_animation) {
        if ((st = first_frame(f, s, e)))
            return st;
        code = WebPGetFeatures(s->bytes, s->n, &is);
        if (!code && (is.has_animation || is.width != s->w || is.height != s->h ||
                      s->x > s->width - s->w || s->y > s->height - s->h))
            code = VP8_STATUS_BITSTREAM_ERROR;
    }
    if (code == VP8_STATUS_NOT_ENOUGH_DATA)
        return err_set(e, E_FORMAT, "%s: the WebP file ends in its header", f->name);
    if (code != VP8_STATUS_OK)
        return err_set(e, E_FORMAT, "%s: a damaged WebP file", f->name);
    return OK;
}

status webp_read_head(const image_file *f, image_head *h, err *e)
{
    still s;
    status st = find_still(f, &s, e);
    if (st)
        return st;
    h->width = s.width;
    h->height = s.height;
    h->orientation = orientation(f);
    return OK;
}

status webp_read_pixels(const image_file *f, const image *m, err *e)
{
    size_t stride = (size_t)3 * (size_t)m->width;
    WebPDecoderConfig how;
    still s;
    status st = find_still(f, &s, e);
    if (st)
        return st;
    if (s.w < s.width || s.h < s.height)
        memset(m->rgb, 0, stride * (size_t)m->height);
    if (!WebPInitDecoderConfig(&how))
        return err_set(e, E_UNSUPPORTED, "libwebp of another version than carat was built with");
    how.output.colorspace = MODE_RGB;
    how.output.is_external_memory = 1;
    how.output.u.RGBA.rgba = m->rgb + (size_t)s.y * stride + 3 * (size_t)s.x;
    how.output.u.RGBA.stride = (int)stride;
    how.output.u.RGBA.size = stride * (size_t)(s.h - 1) + 3 * (size_t)s.w;
    VP8StatusCode code = WebPDecode(s.bytes, s.n, &how);
    WebPFreeDecBuffer(&how.output);
    if (code == VP8_STATUS_OUT_OF_MEMORY)
        return err_set(e, E_MEMORY, "%s: out of memory in the WebP decoder", f->name);
    if (code == VP8_STATUS_NOT_ENOUGH_DATA || code == VP8_STATUS_SUSPENDED)
        return err_set(e, E_FORMAT, "%s: the WebP file ends in the middle of the picture", f->name);
    if (code != VP8_STATUS_OK)
        return err_set(e, E_FORMAT, "%s: a damaged WebP file", f->name);
    return OK;
}
