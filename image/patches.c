/* patches.c - the size that fits a model, and pixels as rows of patches.
 *
 * Sizes are computed as transformers does it, in doubles and in its order of operations: a rounding
 * decides about a whole row of tokens.
 */
#include "image/patches.h"
#include "base/mem.h"

#include <math.h>

/* The ratio of sides that Qwen's processor refuses. */
enum { RATIO_MAX = 200 };

/* Both sides are rounded down, so the product never has more tokens than the budget. */
static void fit_budget(image_grid *g, const image_rule *rule, int32_t width, int32_t height)
{
    double token = (double)rule->patch * rule->merge;
    double f = sqrt(rule->budget * token * token / ((double)width * height));
    int32_t cols = (int32_t)(f * width / token), rows = (int32_t)(f * height / token);
    if (!rows) {
        rows = 1;
        cols = width / height;
    } else if (!cols) {
        cols = 1;
        rows = height / width;
    }
    cols = cols > rule->budget ? rule->budget : cols;
    rows = rows > rule->budget ? rule->budget : rows;
    g->width = cols * rule->patch * rule->merge;
    g->height = rows * rule->patch * rule->merge;
}

static int32_t tokens_down(double side, double token)
{
    double n = floor(side / token);
    return n < 1 ? 1 : (int32_t)n;
}

static void fit_pixels(image_grid *g, const image_rule *rule, int32_t width, int32_t height)
{
    double token = (double)rule->patch * rule->merge, area = (double)width * height;
    /* rint: halves to even, as Python rounds. A side of 0 is below every min_pixels. */
    int32_t cols = (int32_t)rint(width / token), rows = (int32_t)rint(height / token);
    double pixels = cols * token * (rows * token);
    if (pixels > (double)rule->max_pixels) {
        double beta = sqrt(area / (double)rule->max_pixels);
        cols = tokens_down(width / beta, token);
        rows = tokens_down(height / beta, token);
    } else if (pixels < (double)rule->min_pixels) {
        double beta = sqrt((double)rule->min_pixels / area);
        cols = (int32_t)ceil(width * beta / token);
        rows = (int32_t)ceil(height * beta / token);
    }
    if (rule->budget) { /* of a strip whose other side was rounded up to one token */
        cols = cols > rule->budget ? rule->budget : cols;
        rows = rows > rule->budget ? rule->budget : rows;
    }
    g->width = cols * rule->patch * rule->merge;
    g->height = rows * rule->patch * rule->merge;
}

status image_grid_for(image_grid *out, const image_rule *rule, int32_t width, int32_t height,
                      const char *name, err *e)
{
    image_grid g;
    int32_t long_side = width > height ? width : height;
    int32_t short_side = width > height ? height : width;
    if (rule->fit == IMAGE_FIT_BUDGET) {
        fit_budget(&g, rule, width, height);
    } else {
        if (long_side > (int64_t)RATIO_MAX * short_side)
            return err_set(e, E_LIMIT,
                           "%s: a picture of %d x %d pixels: one side may be %d times the other "
                           "for this model",
                           name, width, height, RATIO_MAX);
        fit_pixels(&g, rule, width, height);
    }
    g.cols = g.width / rule->patch;
    g.rows = g.height / rule->patch;
    g.n_patches = g.cols * g.rows;
    g.n_tokens = g.n_patches / (rule->merge * rule->merge);
    *out = g;
    return OK;
}

/* One patch: channel by channel. */
static float *put_patch(float *out, const image *m, const float value[3][256], int32_t patch,
                        int32_t x0, int32_t y0)
{
    for (int32_t c = 0; c < 3; c++)
        for (int32_t y = 0; y < patch; y++) {
            const uint8_t *p =
                m->rgb + 3 * ((size_t)m->width * (size_t)(y0 + y) + (size_t)x0) + (size_t)c;
            for (int32_t x = 0; x < patch; x++, p += 3)
                *out++ = value[c][*p];
        }
    return out;
}

/* Values of a picture that has the grid's size: out[n_patches][3][patch][patch]. */
static void to_patches(float *out, const image_rule *rule, const image *m)
{
    float value[3][256];
    int32_t n = rule->patch, group = rule->grouped ? rule->merge : 1;
    for (int32_t c = 0; c < 3; c++)
        for (int32_t b = 0; b < 256; b++)
            value[c][b] = ((float)(b * (1 / 255.0)) - rule->mean[c]) / rule->std[c];
    for (int32_t gy = 0; gy < m->height; gy += n * group)
        for (int32_t gx = 0; gx < m->width; gx += n * group)
            for (int32_t y = gy; y < gy + n * group; y += n)
                for (int32_t x = gx; x < gx + n * group; x += n)
                    out = put_patch(out, m, value, n, x, y);
}

status image_patches_of(float **out, image_grid *grid, const image_rule *rule, const image *m,
                        const char *name, err *e)
{
    image_grid g;
    image fitted = {0};
    status st = image_grid_for(&g, rule, m->width, m->height, name, e);
    if (!st)
        st = image_resize(&fitted, m, g.width, g.height, IMAGE_BICUBIC, e);
    if (st)
        return st;
    size_t n = (size_t)g.n_patches * 3 * (size_t)rule->patch * (size_t)rule->patch;
    float *values = mem_alloc(n * sizeof *values);
    if (values)
        to_patches(values, rule, &fitted);
    image_free(&fitted);
    if (!values)
        return err_memory(e, "a picture's patches", n * sizeof *values);
    *out = values;
    *grid = g;
    return OK;
}
