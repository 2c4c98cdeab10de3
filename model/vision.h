/* vision.h - vision towers: models that make rows of embeddings ("soft tokens") of a picture.
 *
 * A tower is a file of its own, of the architecture clip (llama.cpp's mmproj files), bound and
 * loaded like a model. Its key vision.projector_type says which tower it is. A file may have a part
 * for sound beside it, which is left alone.
 */
#ifndef MODEL_VISION_H
#define MODEL_VISION_H

#include "image/patches.h"
#include "model/model.h"
#include "model/table.h"

/* The first fields of every tower's shape, after MODEL_SHAPE. n_layer and n_embd are the tower's.
 */
#define VISION_SHAPE                                                                               \
    int32_t n_out, n_head, n_ff; /* n_out: the text model's width */                               \
    int32_t patch, merge,                                                                          \
        n_pos;          /* pixels; patches a side of a token; rows of the position table */        \
    int32_t image_size; /* stated by files, and of no use */                                       \
    double eps

/* What every tower's own data begins with: model.impl. */
typedef struct vision {
    const char *projector; /* "gemma4v" */
    int32_t n_out;
    image_rule rule; /* without a budget; max_pixels 0: the tower has no limits of its own */
} vision;

/* One of the towers. */
typedef struct vision_arch {
    const char *projector;
    const shape_family *shapes;
    status (*bind)(model *m, err *e);
} vision_arch;
extern const vision_arch gemma4v_vision, gemma4uv_vision, qwen3vl_vision;

extern const model_arch clip_arch;

/* NULL: m is no tower. */
const vision *vision_of(const model *m);
/* How a picture of that size is cut for m: Gemma's fills a budget of soft tokens, Qwen's keeps
 * within it; budget 0: the picture's own size. Errors as of image_grid_for. */
status vision_grid(const model *m, int32_t budget, int32_t width, int32_t height, image_rule *rule,
                   image_grid *g, const char *name, err *e);
/* Soft tokens of a picture: a user's budget, unless he says another; the least and the most. */
enum { VISION_BUDGET = 560, VISION_BUDGET_MIN = 70, VISION_BUDGET_MAX = 1120 };

/* ---- For towers, inside model/ only ---- */

/* image_mean and image_std of the file, three numbers each; std above 0. */
status vision_read_stats(const model *m, image_rule *rule, err *e);
/* The keys that no row writes. */
void vision_put(gguf_writer *w, const char *projector, float mean, float std);
/* The matrix of patches: a tensor of {patch, patch, 3, n_embd}, as one of rows. */
status vision_bind_patches(model *m, weight *w, const char *name, int32_t patch, int32_t n_embd,
                           err *e);
/* The end of a tower's bind: *v's fields, and one store of keys for all layers. */
status vision_done(model *m, const model_shape *s, vision *v, const vision_arch *a, err *e);

#endif
