/* patches.h - pictures as a vision tower reads them: a size that fits the model, cut into patches.
 *
 * A patch is a square of pixels, one row of the tower's input. merge x merge patches become one
 * soft token, a row among the embeddings of text. Sizes need the header of a file alone, so a
 * prompt can be counted before any pixel is read.
 *
 * Patches are what transformers' processors on Pillow give, bit for bit, in the order of the
 * weights in GGUF files: channel by channel, and in a channel row by row.
 */
#ifndef IMAGE_PATCHES_H
#define IMAGE_PATCHES_H

#include "image/image.h"

#include <stdbool.h>

typedef enum image_fit {
    /* As many tokens as `budget` allows, at about the picture's ratio of sides: small pictures are
     * enlarged. Gemma 4. */
    IMAGE_FIT_BUDGET,
    /* The picture's own size, at most max_pixels and at least min_pixels. Qwen; llama.cpp for Gemma
     * 4. Ratios of sides above 200 are refused. */
    IMAGE_FIT_PIXELS
} image_fit;

typedef struct image_rule {
    int32_t patch, merge; /* pixels a side of a patch; patches a side of a token */
    image_fit fit;
    int32_t budget; /* tokens, 1 or more. IMAGE_FIT_PIXELS: of either side; 0: any number */
    int64_t min_pixels, max_pixels;
    bool grouped;          /* the patches of a token follow each other; else row by row */
    float mean[3], std[3]; /* a value is (byte / 255 - mean) / std */
} image_rule;

/* A picture's size for the tower. */
typedef struct image_grid {
    int32_t width, height; /* pixels; multiples of patch * merge */
    int32_t cols, rows;    /* patches */
    int32_t n_patches, n_tokens;
} image_grid;

/* name is for messages. E_LIMIT: the rule refuses such a shape. */
status image_grid_for(image_grid *g, const image_rule *rule, int32_t width, int32_t height,
                      const char *name, err *e);

/* Resizes a picture to its grid, which *g has then. *out: its values, [n_patches][3][patch][patch],
 * which the caller frees by mem_free. */
status image_patches_of(float **out, image_grid *g, const image_rule *rule, const image *m,
                        const char *name, err *e);

#endif
