/* gemma4_vision_flat.c - pictures for Gemma 4 12B, which has no tower: sizes, keys, tensors,
 * binding, forward pass.
 *
 * A token is a square of 48 pixels, one row of a product. Norms are LayerNorm with bias, whose
 * epsilon of 1e-5 is in no file; the norm before the last product is RMS with the file's. Pixels
 * are from 0 to 1. GGUF files have the columns of the product, and the first norm, channel by
 * channel.
 */
#include "model/gemma4_vision.h"
#include "model/bind.h"

static const float LAYER_EPS = 1e-5f;

#define TINY                                                                                       \
    .family = &gemma4uv_shapes, .n_embd = 96, .n_out = 96, .patch = 4, .merge = 3, .n_pos = 40,    \
    .image_size = 224, .eps = 1e-6

static const gemma4uv_shape sizes[] = {
    {.family = &gemma4uv_shapes,
     .name = "mmproj-12b",
     .n_embd = 3840,
     .n_out = 3840,
     .patch = 16,
     .merge = 3,
     .n_pos = 1120,
     .image_size = 224,
     .eps = 1e-6,
     .ears = GEMMA4UA_SHAPE(3840)},
    {TINY, .name = "tiny-mmproj-flat"},
    {TINY, .name = "tiny-mmproj-flat-hears", .ears = GEMMA4UA_SHAPE(96)},
};

static const gemma4uv_shape *own(const model_shape *s)
{
    return (const gemma4uv_shape *)s;
}

/* ---- Keys ---- */

#define F(name) offsetof(gemma4uv_shape, name)
static const table_key keys[] = {
    K("vision.projection_dim", NULL, F(n_out), COUNT, 1, WIDTH_MAX),
    K("vision.embedding_length", "mm_embed_dim", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("vision.feed_forward_length", NULL, F(n_ff), COUNT, 0, 0),
    K("vision.block_count", NULL, F(n_layer), COUNT, 0, 0),
    K("vision.attention.head_count", NULL, F(n_head), COUNT, 0, 0),
    GEMMA4_PICTURE_KEYS,
    K(NULL, "mm_posemb_size", F(n_pos), COUNT, 1, CTX_MAX),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma4uv_shape *s = own(m);
    if (s->patch * s->merge > 1024)
        return err_set(e, bad, "%s: tokens of %d pixels a side: expected at most 1024", what,
                       s->patch * s->merge);
    return OK;
}

static status read_positions(const model *m, model_shape *shape, err *e)
{
    return vision_read_positions(m, &((gemma4uv_shape *)shape)->n_pos, e);
}

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    (void)arch;
    (void)m;
    vision_put(w, gemma4uv_vision.projector, 0, 1);
}

/* ---- Tensors ---- */

enum { D = 1, PIXELS, N_POS, AXES, D_OUT };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma4uv_shape *s = own(m);
    int64_t side = (int64_t)s->patch * s->merge;
    const int64_t of[] = {[D] = s->n_embd,
                          [PIXELS] = 3 * side * side,
                          [N_POS] = s->n_pos,
                          [AXES] = 2,
                          [D_OUT] = s->n_out};
    (void)il;
    return of[d];
}

#define M(name) offsetof(gemma4uv, name)
#define HF "vision_embedder."
static const table_tensor of_model[] = {
    T(ALWAYS, M(out), "mm.input_projection.weight", "embed_vision.embedding_projection.weight",
      MATRIX, D, D_OUT),
    T(ALWAYS, M(patches), "v.patch_embd.weight", HF "patch_dense.weight", MATRIX, PIXELS, D),
    T(ALWAYS, M(patch_bias), "v.patch_embd.bias", HF "patch_dense.bias", BIAS, D),
    T(ALWAYS, M(norm[0]), "v.patch_norm.1.weight", HF "patch_ln1.weight", NORM, PIXELS),
    T(ALWAYS, M(norm_bias[0]), "v.patch_norm.1.bias", HF "patch_ln1.bias", BIAS, PIXELS),
    T(ALWAYS, M(norm[1]), "v.patch_norm.2.weight", HF "patch_ln2.weight", NORM, D),
    T(ALWAYS, M(norm_bias[1]), "v.patch_norm.2.bias", HF "patch_ln2.bias", BIAS, D),
    T(ALWAYS, M(norm[2]), "v.patch_norm.3.weight", HF "pos_norm.weight", NORM, D),
    T(ALWAYS, M(norm_bias[2]), "v.patch_norm.3.bias", HF "pos_norm.bias", BIAS, D),
    T(ALWAYS, ELSEWHERE, "v.position_embd.weight", HF "pos_embedding", TAPS, D, N_POS, AXES),
};

static const table_tensor of_layer[1]; /* it has no layers */

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    const gemma4uv_shape *s = own(m);
    if (r->role == ROLE_TAPS)
        t->fan_in = 4;
    t->change.pairs = r->role == ROLE_TAPS;
    if (r->ne[0] == PIXELS)
        t->change.side = (uint32_t)(s->patch * s->merge);
}

static const family_table rows = {TABLE_ROWS,          .prefix = "v.",         .dim = dim,
                                  .agree = agree,      .read = read_positions, .put = put_own_keys,
                                  .describe = describe};

static int32_t list_all(const model_shape *s, shape_tensor *out, int32_t cap)
{
    return audio_list_with(s, &own(s)->ears.common, out, cap);
}

static void put_all(gguf_writer *w, const model_shape *s)
{
    audio_put_with(w, s, &own(s)->ears.common);
}

const shape_family gemma4uv_shapes = {.table = &rows,
                                      .shape_bytes = sizeof(gemma4uv_shape),
                                      .named = table_named,
                                      .check = table_check,
                                      .list = list_all,
                                      .put = put_all,
                                      .arch = "clip",
                                      .title = "gemma-4",
                                      .sizes =
                                          "mmproj-12b, tiny-mmproj-flat, tiny-mmproj-flat-hears",
                                      .tower = true,
                                      .mix = "bf16"};

/* ---- Binding ---- */

static status bind_gemma4uv(model *m, err *e)
{
    model_shape *shape = NULL;
    gemma4uv *g = bind_begin(m, &gemma4uv_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const gemma4uv_shape *s = own(shape);
    const binder b = {m, -1, e};
    status st;
    g->eps = (float)s->eps;
    if ((st = vision_read_stats(m, &g->v.rule, e)) || (st = table_bind(&b, shape, g)) ||
        (st = vision_bind_positions(m, &g->positions, s->n_embd, 2 * s->n_pos, e)))
        return st;
    g->patches.bias = &g->patch_bias;
    g->v.rule.patch = s->patch * s->merge;
    g->v.rule.merge = 1;
    g->v.n_out = s->n_out;
    g->v.n_pos = s->n_pos;
    return vision_done(m, shape, &g->v, &gemma4uv_vision, e);
}

/* ---- The forward pass ---- */

static mat gemma4uv_forward(pass *p, const model *m, const vision_input *in)
{
    const gemma4uv *g = m->impl;
    mat x = op_layer_norm(p, in->patches, &g->norm[0], &g->norm_bias[0], LAYER_EPS);
    x = op_layer_norm(p, op_matmul(p, x, &g->patches), &g->norm[1], &g->norm_bias[1], LAYER_EPS);
    op_add(p, x, op_embed_mix(p, in->places, in->shares, &g->positions));
    x = op_layer_norm(p, x, &g->norm[2], &g->norm_bias[2], LAYER_EPS);
    return op_matmul(p, op_rms_norm_inplace(p, x, NULL, g->eps), &g->out);
}

const vision_arch gemma4uv_vision = {.projector = "gemma4uv",
                                     .shapes = &gemma4uv_shapes,
                                     .bind = bind_gemma4uv,
                                     .forward = gemma4uv_forward};
