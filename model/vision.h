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

/* One picture, as a pass gets it: values [n_patches][3 patch patch], and for each patch the rows of
 * the tower's position table that it adds up, with their shares, [n_patches][2 or 4]. Memory of the
 * device. */
typedef struct vision_input {
    mat patches, places, shares;
    const kv_view *kv; /* one store, which all layers use in turn */
    int32_t merged;    /* patches of a token */
} vision_input;

/* What every tower's own data begins with: model.impl. */
typedef struct vision {
    const struct vision_arch *arch;
    const char *projector;    /* "gemma4v" */
    int32_t n_head, head_dim; /* 0: there is no attention */
    int32_t n_pos;   /* the position table: n_pos rows for columns, then as many for rows */
    int32_t side;    /* not 0: instead a square of side x side rows, over the whole picture */
    bool exact;      /* all matrices are f32, and so are keys on every device */
    bool rows_first; /* ropes turn by rows, then by columns; else the reverse */
    int32_t n_out;
    int32_t n_deep; /* deepstack: rows of a token that the text model adds after its first layers */
    image_rule rule; /* without a budget; max_pixels 0: the tower has no limits of its own */
} vision;

/* One of the towers. */
typedef struct vision_arch {
    const char *projector;
    const shape_family *shapes;
    status (*bind)(model *m, err *e);
    /* Soft tokens [n_tokens, n_out]; below them those for each layer of deepstack. */
    mat (*forward)(pass *p, const model *m, const vision_input *in);
} vision_arch;
extern const vision_arch gemma4v_vision, gemma4uv_vision, qwen3vl_vision;

extern const model_arch clip_arch;

/* NULL: m is no tower. */
const vision *vision_of(const model *m);
/* How a picture of that size is cut for m: Gemma's fills a budget of soft tokens, Qwen's keeps
 * within it; budget 0: the picture's own size, at most VISION_BUDGET_MAX. Errors as of
 * image_grid_for. */
status vision_grid(const model *m, int32_t budget, int32_t width, int32_t height, image_rule *rule,
                   image_grid *g, const char *name, err *e);
/* Soft tokens of a picture: a user's budget, unless he says another; the least and the most. */
enum { VISION_BUDGET = 560, VISION_BUDGET_MIN = 70, VISION_BUDGET_MAX = 1120 };

/* ---- Passes: vision_run.c ---- */

/* What a picture needs of the device's memory. */
typedef struct vision_memory {
    size_t scratch_bytes, key_bytes;
    size_t input_bytes; /* 0: the device reads the host's memory */
} vision_memory;
/* E_LIMIT: a picture with more patches a side than the tower has positions. */
/* Numbers of a soft token, with those of deepstack. */
static inline size_t vision_width(const vision *v)
{
    return (size_t)v->n_out * (1 + (size_t)v->n_deep);
}
status vision_check(const model *m, const image_grid *g, err *e);
/* E_UNSUPPORTED: an op that the device does not compute. */
status vision_plan(const model *m, device *dev, const image_grid *g, vision_memory *need, err *e);
/* All of it, in one piece. */
size_t vision_room(const vision_memory *need);
/* Soft tokens of one picture: soft[1 + n_deep][n_tokens][n_out]. patches: as image_patches_of gives
 * them by the rule of vision_grid. room: memory of the device, for this picture or a larger one. It
 * allocates nothing there: a device drops recorded passes when memory is freed. m is loaded. */
status vision_encode(const model *m, device *dev, const image_grid *g, const float *patches,
                     void *room, size_t room_bytes, float *soft, err *e);

/* ---- For towers, inside model/ only ---- */

/* image_mean and image_std of the file, three numbers each; std above 0. */
status vision_read_stats(const model *m, image_rule *rule, err *e);
/* The keys that no row writes. */
void vision_put(gguf_writer *w, const char *projector, float mean, float std);
/* The matrix of patches: a tensor of {patch, patch, 3, n_embd}, as one of rows. */
status vision_bind_patches(model *m, weight *w, const char *name, int32_t patch, int32_t n_embd,
                           err *e);
/* The number of positions, which only the table's rows tell. */
status vision_read_positions(const model *m, int32_t *n, err *e);
/* The table of positions: n_rows in all, any type. */
status vision_bind_positions(model *m, weight *w, int32_t n_embd, int32_t n_rows, err *e);
/* A rotation by column and row: half of the pairs for each. parted: each half of a head has pairs
 * of its own. n_dims: of the pairs of one axis. */
status vision_bind_rope(model *m, rope *r, int32_t n_dims, double theta, bool parted, err *e);
/* Begins layer il. False: the pass has failed, or m->progress has ended it (E_CANCELLED). */
bool vision_goes_on(pass *p, const model *m, int32_t il);
/* The end of a tower's bind: *v's fields. The model has no stores: keys live for a picture. */
status vision_done(model *m, const model_shape *s, vision *v, const vision_arch *a, err *e);

#endif
