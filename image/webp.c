/* webp.c - WebP files, lossy and lossless, by libwebp. Animated ones are refused: a frame may be a
 * part of the picture, and which one is meant is not known.
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

status webp_read_head(const image_file *f, image_head *h, err *e)
{
    WebPBitstreamFeatures is;
    VP8StatusCode code = WebPGetFeatures(f->bytes, f->n_bytes, &is);
    if (code == VP8_STATUS_NOT_ENOUGH_DATA)
        return err_set(e, E_FORMAT, "%s: the WebP file ends in its header", f->name);
    if (code != VP8_STATUS_OK)
        return err_set(e, E_FORMAT, "%s: a damaged WebP file", f->name);
    if (is.has_animation)
        return err_set(e, E_UNSUPPORTED, "%s: an animated WebP file; a still picture is needed",
                       f->name);
    h->width = is.width;
    h->height = is.height;
    h->orientation = orientation(f);
    return OK;
}

status webp_read_pixels(const image_file *f, const image *m, err *e)
{
    size_t stride = (size_t)3 * (size_t)m->width;
    WebPDecoderConfig how;
    if (!WebPInitDecoderConfig(&how))
        return err_set(e, E_UNSUPPORTED, "libwebp of another version than carat was built with");
    how.output.colorspace = MODE_RGB;
    how.output.is_external_memory = 1;
    how.output.u.RGBA.rgba = m->rgb;
    how.output.u.RGBA.stride = (int)stride;
    how.output.u.RGBA.size = stride * (size_t)m->height;
    VP8StatusCode code = WebPDecode(f->bytes, f->n_bytes, &how);
    WebPFreeDecBuffer(&how.output);
    if (code == VP8_STATUS_OUT_OF_MEMORY)
        return err_set(e, E_MEMORY, "%s: out of memory in the WebP decoder", f->name);
    if (code == VP8_STATUS_NOT_ENOUGH_DATA || code == VP8_STATUS_SUSPENDED)
        return err_set(e, E_FORMAT, "%s: the WebP file ends in the middle of the picture", f->name);
    if (code != VP8_STATUS_OK)
        return err_set(e, E_FORMAT, "%s: a damaged WebP file", f->name);
    return OK;
}
