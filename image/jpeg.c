/* jpeg.c - JPEG files, baseline and progressive, by libjpeg-turbo.
 *
 * The library reports by longjmp, so everything that a failure must free is in jpeg_job, and one
 * function calls setjmp. Its memory is its own: up to 6 bytes a pixel for progressive files.
 * A file that ends early is refused, as Pillow does; other warnings are not errors.
 */
#include "image/image_int.h"

#include <stdio.h> /* before jpeglib.h, which lacks it */

#include <jpeglib.h>
#include <jerror.h>
#include <setjmp.h>
#include <string.h>

/* Each scan of a progressive file passes over all pixels, and costs its author a few bytes. Usual
 * files have about ten. */
enum { SCANS_MAX = 100 };
static const int64_t SCANNED_PIXELS_MAX = (int64_t)1 << 31;

typedef struct jpeg_job {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    const image_file *file;
    jmp_buf failed;
    status st;
    err *e;
} jpeg_job;

static void on_error(j_common_ptr d)
{
    jpeg_job *j = d->client_data;
    char text[JMSG_LENGTH_MAX];
    d->err->format_message(d, text);
    if (!j->st)
        j->st =
            d->err->msg_code == JERR_OUT_OF_MEMORY
                ? err_set(j->e, E_MEMORY, "%s: out of memory in the JPEG decoder", j->file->name)
                : err_set(j->e, E_FORMAT, "%s: a damaged JPEG file, or one that is not read: %s",
                          j->file->name, text);
    longjmp(j->failed, 1);
}

static void on_message(j_common_ptr d, int level)
{
    jpeg_job *j = d->client_data;
    if (level < 0 && d->err->msg_code == JWRN_JPEG_EOF) {
        j->st = err_set(j->e, E_FORMAT, "%s: the JPEG file ends in the middle of the picture",
                        j->file->name);
        longjmp(j->failed, 1);
    }
}

static void on_progress(j_common_ptr d)
{
    jpeg_job *j = d->client_data;
    int64_t n = j->d.input_scan_number, area = (int64_t)j->d.image_width * j->d.image_height;
    if (n > SCANS_MAX || (n > 1 && n * area > SCANNED_PIXELS_MAX)) {
        j->st = err_set(j->e, E_LIMIT, "%s: a progressive JPEG file with more than %lld scans",
                        j->file->name, (long long)n - 1);
        longjmp(j->failed, 1);
    }
}

/* The orientation in the first APP1 marker that holds EXIF. */
static int32_t orientation(const jpeg_job *j)
{
    for (jpeg_saved_marker_ptr m = j->d.marker_list; m; m = m->next)
        if (m->data_length > 6 && !memcmp(m->data, "Exif\0", 6))
            return exif_orientation(m->data + 6, m->data_length - 6);
    return 1;
}

static void refuse_colours(jpeg_job *j)
{
    J_COLOR_SPACE c = j->d.jpeg_color_space;
    if (c == JCS_CMYK || c == JCS_YCCK)
        j->st = err_set(j->e, E_UNSUPPORTED,
                        "%s: a JPEG file in CMYK, the colours of printing; RGB or grey is needed",
                        j->file->name);
    else if (c != JCS_GRAYSCALE && c != JCS_YCbCr && c != JCS_RGB)
        j->st = err_set(j->e, E_UNSUPPORTED,
                        "%s: a JPEG file with %d colour components; expected 1 or 3", j->file->name,
                        j->d.num_components);
}

/* Everything that may longjmp. m NULL: up to the header. */
static void read_jpeg(jpeg_job *j, image_head *h, const image *m)
{
    if (setjmp(j->failed))
        return;
    jpeg_create_decompress(&j->d);
    jpeg_mem_src(&j->d, j->file->bytes, j->file->n_bytes);
    if (!m)
        jpeg_save_markers(&j->d, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&j->d, TRUE);
    refuse_colours(j);
    if (j->st)
        return;
    if (!m) {
        h->width = (int32_t)j->d.image_width;
        h->height = (int32_t)j->d.image_height;
        h->orientation = orientation(j);
        return;
    }
    j->progress.progress_monitor = on_progress;
    j->d.progress = &j->progress;
    j->d.out_color_space = JCS_RGB;
    jpeg_start_decompress(&j->d);
    while (j->d.output_scanline < j->d.output_height) {
        JSAMPROW row = m->rgb + (size_t)3 * (size_t)m->width * j->d.output_scanline;
        jpeg_read_scanlines(&j->d, &row, 1);
    }
}

static status run(const image_file *f, image_head *h, const image *m, err *e)
{
    jpeg_job j = {.file = f, .e = e};
    j.d.err = jpeg_std_error(&j.errors);
    j.d.client_data = &j;
    j.errors.error_exit = on_error;
    j.errors.emit_message = on_message;
    /* jpeg_create_decompress keeps err and client_data alone. */
    read_jpeg(&j, h, m);
    jpeg_destroy_decompress(&j.d);
    return j.st;
}

status jpeg_read_head(const image_file *f, image_head *h, err *e)
{
    return run(f, h, NULL, e);
}

status jpeg_read_pixels(const image_file *f, const image *m, err *e)
{
    return run(f, NULL, m, e);
}
