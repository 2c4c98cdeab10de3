/* png.c - PNG files by libpng.
 *
 * libpng reports by longjmp, so everything that a failure must free is in png_job, and one function
 * calls setjmp. Its memory comes from base/mem.h. Chunks that change no pixel here, some of which
 * hold compressed texts of any size, are not read.
 */
#include "image/image_int.h"
#include "base/mem.h"

#include <png.h>
#include <setjmp.h>
#include <string.h>

enum { SIGNATURE = 8, CHUNK_BYTES_MAX = 1 << 20 };

typedef struct png_job {
    const image_file *file;
    size_t at;
    png_structp png;
    png_infop info;
    jmp_buf failed;
    status st;
    err *e;
} png_job;

static void on_error(png_structp png, png_const_charp text)
{
    png_job *j = png_get_error_ptr(png);
    if (!j->st)
        j->st = err_set(j->e, E_FORMAT, "%s: a damaged PNG file: %s", j->file->name, text);
    longjmp(j->failed, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    png_job *j = png_get_io_ptr(png);
    if (n > j->file->n_bytes - j->at) {
        j->st = err_set(j->e, E_FORMAT, "%s: the PNG file ends in the middle of the picture",
                        j->file->name);
        longjmp(j->failed, 1);
    }
    memcpy(to, j->file->bytes + j->at, n);
    j->at += n;
}

static png_voidp on_alloc(png_structp png, png_alloc_size_t n)
{
    png_job *j = png_get_mem_ptr(png);
    void *p = mem_alloc(n);
    if (!p && !j->st)
        j->st = err_memory(j->e, "a PNG file", n);
    return p;
}

static void on_free(png_structp png, png_voidp p)
{
    (void)png;
    mem_free(p);
}

/* Everything that may longjmp. m NULL: up to the header. */
static void read_png(png_job *j, image_head *h, const image *m)
{
    static const png_byte unread[] = "iCCP\0tEXt\0zTXt\0iTXt\0sPLT\0hIST\0eXIf\0";
    if (setjmp(j->failed))
        return;
    j->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, j, on_error, on_warning, j, on_alloc,
                                      on_free);
    j->info = j->png ? png_create_info_struct(j->png) : NULL;
    if (!j->info) {
        j->st = j->st ? j->st : err_memory(j->e, "a PNG file", 0);
        return;
    }
    png_set_read_fn(j->png, j, on_read);
    png_set_user_limits(j->png, 0x7fffffff, 0x7fffffff); /* decode.c has ours, and a sentence */
    png_set_chunk_malloc_max(j->png, CHUNK_BYTES_MAX);
    png_set_keep_unknown_chunks(j->png, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
    png_set_keep_unknown_chunks(j->png, PNG_HANDLE_CHUNK_NEVER, unread, sizeof unread / 5);
    png_read_info(j->png, j->info);
    png_uint_32 width = png_get_image_width(j->png, j->info),
                height = png_get_image_height(j->png, j->info);
    if (!m) {
        h->width = (int32_t)width;
        h->height = (int32_t)height;
        return;
    }
    png_set_strip_16(j->png);
    png_set_expand_gray_1_2_4_to_8(j->png);
    png_set_palette_to_rgb(j->png);
    png_set_gray_to_rgb(j->png);
    png_set_strip_alpha(j->png);
    int n_passes = png_set_interlace_handling(j->png);
    png_read_update_info(j->png, j->info);
    if (png_get_rowbytes(j->png, j->info) != (size_t)3 * (size_t)m->width ||
        height != (png_uint_32)m->height)
        png_error(j->png, "rows of another length than the header says");
    for (int pass = 0; pass < n_passes; pass++)
        for (int32_t y = 0; y < m->height; y++)
            png_read_row(j->png, m->rgb + (size_t)3 * (size_t)m->width * (size_t)y, NULL);
}

static status run(const image_file *f, image_head *h, const image *m, err *e)
{
    png_job j = {.file = f, .e = e};
    read_png(&j, h, m);
    if (j.png)
        png_destroy_read_struct(&j.png, &j.info, NULL);
    return j.st;
}

/* The orientation in the chunk eXIf, which may be behind the pixels. */
static int32_t orientation(const image_file *f)
{
    size_t at = SIGNATURE;
    while (f->n_bytes - at >= 12) {
        const uint8_t *p = f->bytes + at;
        size_t n = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        if (n > f->n_bytes - at - 12)
            return 1;
        if (!memcmp(p + 4, "eXIf", 4))
            return exif_orientation(p + 8, n);
        at += 12 + n;
    }
    return 1;
}

status png_read_head(const image_file *f, image_head *h, err *e)
{
    status st = run(f, h, NULL, e);
    if (!st)
        h->orientation = orientation(f);
    return st;
}

status png_read_pixels(const image_file *f, const image *m, err *e)
{
    return run(f, NULL, m, e);
}
