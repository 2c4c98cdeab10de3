/* resize.c - a picture in another size, with the bits of Pillow.
 *
 * There are two passes: one along rows, one along columns. A pass computes each new pixel as a
 * weighted sum of old ones. The filter's radius is one old pixel (bilinear) or two (bicubic). When
 * the picture shrinks, the radius grows by the same factor, so that every old pixel has a weight
 * and thin lines stay whole. Values are rounded to 8 bits between the passes. Weights are integers
 * in units of 2^-22, so that 255 times their sum fits 32 bits.
 */
#include "image/image.h"
#include "base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ---- Pixels ---- */

status image_alloc(image *out, int32_t width, int32_t height, err *e)
{
    size_t n = (size_t)3 * (size_t)width * (size_t)height;
    uint8_t *rgb = mem_alloc(n);
    if (!rgb)
        return err_memory(e, "the pixels of a picture", n);
    *out = (image){width, height, rgb};
    return OK;
}

void image_free(image *m)
{
    mem_free(m->rgb);
    *m = (image){0};
}

/* ---- Weights ---- */

enum { WEIGHT_BITS = 22 };

/* The old pixels that make up a new one: n from `first` on. */
typedef struct tap_range {
    int32_t first, n;
} tap_range;

typedef struct taps {
    tap_range *range; /* [n_out] */
    int32_t *weight;  /* [n_out][cap] */
    int32_t cap;
} taps;

static double weight_at(image_filter filter, double t)
{
    const double a = -0.5;
    t = fabs(t);
    if (filter == IMAGE_BILINEAR)
        return t < 1 ? 1 - t : 0;
    if (t < 1)
        return ((a + 2) * t - (a + 3)) * t * t + 1;
    if (t < 2)
        return (((t - 5) * t + 8) * t - 4) * a;
    return 0;
}

static void taps_free(taps *p)
{
    mem_free(p->range);
    mem_free(p->weight);
}

static status taps_init(taps *p, int32_t n_in, int32_t n_out, image_filter filter, err *e)
{
    double scale = (double)n_in / n_out, wide = scale > 1 ? scale : 1;
    double reach = (filter == IMAGE_BICUBIC ? 2 : 1) * wide, each = 1 / wide;
    int32_t cap = (int32_t)ceil(reach) * 2 + 1;
    double *w = mem_calloc((size_t)cap, sizeof *w);
    *p = (taps){mem_calloc((size_t)n_out, sizeof *p->range),
                mem_calloc((size_t)n_out * (size_t)cap, sizeof *p->weight), cap};
    if (!w || !p->range || !p->weight) {
        mem_free(w);
        taps_free(p);
        *p = (taps){0};
        return err_memory(e, "the weights of a picture's new size",
                          (size_t)n_out * (size_t)cap * sizeof *p->weight);
    }
    for (int32_t o = 0; o < n_out; o++) {
        double centre = (o + 0.5) * scale, sum = 0;
        int32_t first = (int32_t)(centre - reach + 0.5), last = (int32_t)(centre + reach + 0.5);
        first = first < 0 ? 0 : first;
        last = last > n_in ? n_in : last;
        for (int32_t i = first; i < last; i++)
            sum += w[i - first] = weight_at(filter, (i - centre + 0.5) * each);
        p->range[o] = (tap_range){first, last - first};
        for (int32_t i = 0; i < last - first; i++) {
            double v = w[i] / sum * (1 << WEIGHT_BITS);
            p->weight[(size_t)o * (size_t)cap + (size_t)i] = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
        }
    }
    mem_free(w);
    return OK;
}

static uint8_t to_byte(int32_t sum)
{
    sum >>= WEIGHT_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Each row to the width of `to`. */
static void along_rows(const image *to, const image *from, const taps *p)
{
    for (int32_t y = 0; y < from->height; y++) {
        const uint8_t *row = from->rgb + (size_t)3 * (size_t)from->width * (size_t)y;
        uint8_t *out = to->rgb + (size_t)3 * (size_t)to->width * (size_t)y;
        for (int32_t x = 0; x < to->width; x++) {
            const uint8_t *in = row + (size_t)3 * (size_t)p->range[x].first;
            const int32_t *w = p->weight + (size_t)x * (size_t)p->cap;
            int32_t r = 1 << (WEIGHT_BITS - 1), g = r, b = r;
            for (int32_t i = 0; i < p->range[x].n; i++, in += 3) {
                r += w[i] * in[0];
                g += w[i] * in[1];
                b += w[i] * in[2];
            }
            *out++ = to_byte(r);
            *out++ = to_byte(g);
            *out++ = to_byte(b);
        }
    }
}

/* Each column to the height of `to`; sum has room for a row. */
static void along_columns(const image *to, const image *from, const taps *p, int32_t *sum)
{
    size_t n = (size_t)3 * (size_t)to->width;
    for (int32_t y = 0; y < to->height; y++) {
        const uint8_t *in = from->rgb + n * (size_t)p->range[y].first;
        const int32_t *w = p->weight + (size_t)y * (size_t)p->cap;
        uint8_t *out = to->rgb + n * (size_t)y;
        for (size_t c = 0; c < n; c++)
            sum[c] = 1 << (WEIGHT_BITS - 1);
        for (int32_t i = 0; i < p->range[y].n; i++, in += n)
            for (size_t c = 0; c < n; c++)
                sum[c] += w[i] * in[c];
        for (size_t c = 0; c < n; c++)
            out[c] = to_byte(sum[c]);
    }
}

static status resize_rows(image *out, const image *m, int32_t width, image_filter filter, err *e)
{
    taps p;
    status st = taps_init(&p, m->width, width, filter, e);
    if (st)
        return st;
    if (!(st = image_alloc(out, width, m->height, e)))
        along_rows(out, m, &p);
    taps_free(&p);
    return st;
}

static status resize_columns(image *out, const image *m, int32_t height, image_filter filter,
                             err *e)
{
    taps p = {0};
    size_t n_sum = (size_t)3 * (size_t)m->width * sizeof(int32_t);
    int32_t *sum = mem_alloc(n_sum);
    status st = sum ? taps_init(&p, m->height, height, filter, e)
                    : err_memory(e, "a picture's new size", n_sum);
    if (!st && !(st = image_alloc(out, m->width, height, e)))
        along_columns(out, m, &p, sum);
    taps_free(&p);
    mem_free(sum);
    return st;
}

status image_resize(image *out, const image *m, int32_t width, int32_t height, image_filter filter,
                    err *e)
{
    image once = {0}, both = {0};
    status st = OK;
    if (width < 1 || height < 1 || width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX ||
        (int64_t)width * height > IMAGE_PIXELS_MAX)
        return err_set(e, E_LIMIT, "no picture gets %d x %d pixels", width, height);
    bool wide = width != m->width, high = height != m->height;
    /* Pillow's choice since 13.0: tall pictures lose their rows first. The bits depend on it. */
    bool columns_first = height < m->height && m->height - height > 2 * (m->width - width);
    if (!wide && !high) {
        if ((st = image_alloc(&both, width, height, e)))
            return st;
        memcpy(both.rgb, m->rgb, (size_t)3 * (size_t)width * (size_t)height);
    } else if (!wide || !high) {
        st = wide ? resize_rows(&both, m, width, filter, e)
                  : resize_columns(&both, m, height, filter, e);
    } else if (columns_first) {
        if (!(st = resize_columns(&once, m, height, filter, e)))
            st = resize_rows(&both, &once, width, filter, e);
    } else if (!(st = resize_rows(&once, m, width, filter, e))) {
        st = resize_columns(&both, &once, height, filter, e);
    }
    image_free(&once);
    if (!st)
        *out = both;
    return st;
}
