/* qwen_vision.c - the vision tower of Qwen3.5, 3.6 and 3.8: sizes, keys, tensors, binding, forward
 * pass.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. The patches of a token follow
 * each other. Norms are LayerNorm with bias. The patch product is over two frames, which are one
 * for a still picture, and files have a tensor for each. Limits of pixels are in no file: they are
 * those of the published processors. Towers with deepstack, Qwen3-VL's, are refused.
 */
#include "model/qwen_vision.h"
#include "model/bind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_PIXELS = 65536, MOST_PIXELS = 16777216 };
enum { THETA = 10000 }; /* of the rotation; in no file */

/* ---- Sizes ---- */

#define COMMON                                                                                     \
    .family = &qwen3vl_shapes, .patch = 16, .merge = 2, .n_pos = 2304, .image_size = 768,          \
    .eps = 1e-6
static const qwen3vl_shape sizes[] = {
    {COMMON, .name = "mmproj-qwen-9b", .n_layer = 27, .n_embd = 1152, .n_head = 16, .n_ff = 4304,
     .n_out = 4096},
    {COMMON, .name = "mmproj-qwen-27b", .n_layer = 27, .n_embd = 1152, .n_head = 16, .n_ff = 4304,
     .n_out = 5120},
    {.family = &qwen3vl_shapes,
     .name = "tiny-mmproj-qwen",
     .patch = 4,
     .merge = 2,
     .n_pos = 36,
     .image_size = 24,
     .eps = 1e-6,
     .n_layer = 2,
     .n_embd = 48,
     .n_head = 4,
     .n_ff = 80,
     .n_out = 64},
};

static const qwen3vl_shape *own(const model_shape *s)
{
    return (const qwen3vl_shape *)s;
}

/* ---- Keys ---- */

#define F(name) offsetof(qwen3vl_shape, name)
static const table_key keys[] = {
    K("vision.projection_dim", "out_hidden_size", F(n_out), COUNT, 1, WIDTH_MAX),
    K("vision.embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("vision.feed_forward_length", "intermediate_size", F(n_ff), COUNT, 1, WIDTH_MAX),
    K("vision.block_count", "depth", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("vision.attention.head_count", "num_heads", F(n_head), COUNT, 1, HEADS_MAX),
    K("vision.patch_size", "patch_size", F(patch), COUNT, 1, 256),
    K("vision.image_size", NULL, F(image_size), COUNT, 0, CTX_MAX, .how = MAY_LACK, .value = 768),
    K("vision.spatial_merge_size", "spatial_merge_size", F(merge), COUNT, 1, 16, .how = MAY_LACK,
      .value = 2),
    K("vision.attention.layer_norm_epsilon", NULL, F(eps), REAL, EPS_MIN, 1),
    K(NULL, "num_position_embeddings", F(n_pos), COUNT, 1, CTX_MAX),
};

/* 0: n is no square. */
static int32_t side_of(int32_t n)
{
    int32_t side = 1;
    while (side * side < n && side < 4096)
        side++;
    return side * side == n ? side : 0;
}

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const qwen3vl_shape *s = own(m);
    if (s->n_embd % s->n_head || s->n_embd / s->n_head % 4)
        return err_set(e, bad,
                       "%s: width %d in %d heads: expected heads of a multiple of 4, half of the "
                       "pairs each for rows and for columns",
                       what, s->n_embd, s->n_head);
    if (!side_of(s->n_pos))
        return err_set(e, bad,
                       "%s: %d positions (v.position_embd.weight): expected those of a square",
                       what, s->n_pos);
    return OK;
}

/* Deepstack adds rows of some layers to the text model's first layers. */
static status read_kind(const model *m, model_shape *shape, err *e)
{
    const gguf_value *deep = bind_find(m, "vision.is_deepstack_layers");
    const tensor *t = tensor_find(&m->file.tensors, "v.position_embd.weight");
    int64_t is;
    for (uint64_t i = 0; deep && i < deep->count; i++)
        if (gguf_item_i64(deep, i, &is) && is)
            return err_set(e, E_UNSUPPORTED,
                           "%s: layer %d has deepstack (clip.vision.is_deepstack_layers), as in "
                           "Qwen3-VL: not supported",
                           m->file.path, (int)i);
    if (!t || t->ne[1] > CTX_MAX)
        return err_set(e, E_FORMAT, "%s: tensor v.position_embd.weight is missing or too long",
                       m->file.path);
    ((qwen3vl_shape *)shape)->n_pos = (int32_t)t->ne[1];
    return OK;
}

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    static const bool none[LAYERS_MAX];
    (void)arch;
    vision_put(w, qwen3vl_vision.projector, 0.5f, 0.5f);
    gguf_put_bool(w, "clip.use_gelu", true);
    gguf_put_bools(w, "clip.vision.is_deepstack_layers", none, (uint64_t)m->n_layer);
}

/* ---- Tensors ---- */

enum { D = 1, PATCH, COLOURS, FF, QKV, N_POS, MERGED, D_OUT };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const qwen3vl_shape *s = own(m);
    const int64_t of[] = {[D] = s->n_embd,    [PATCH] = s->patch,
                          [COLOURS] = 3,      [FF] = s->n_ff,
                          [D_OUT] = s->n_out, [QKV] = 3 * (int64_t)s->n_embd,
                          [N_POS] = s->n_pos, [MERGED] = (int64_t)s->merge * s->merge * s->n_embd};
    (void)il;
    return of[d];
}

#define M(name) offsetof(qwen3vl, name)
#define PATCHES "visual.patch_embed.proj.weight" /* over both frames */
static const table_tensor of_model[] = {
    T(ALWAYS, ELSEWHERE, "v.patch_embd.weight", PATCHES, MATRIX, PATCH, PATCH, COLOURS, D),
    T(ALWAYS, ELSEWHERE, "v.patch_embd.weight.1", PATCHES, MATRIX, PATCH, PATCH, COLOURS, D),
    T(ALWAYS, M(patch_bias), "v.patch_embd.bias", "visual.patch_embed.proj.bias", BIAS, D),
    T(ALWAYS, ELSEWHERE, "v.position_embd.weight", "visual.pos_embed.weight", TAPS, D, N_POS),
    T(ALWAYS, M(out_norm), "v.post_ln.weight", "visual.merger.norm.weight", NORM, D),
    T(ALWAYS, M(out_norm_bias), "v.post_ln.bias", "visual.merger.norm.bias", BIAS, D),
    T(ALWAYS, M(merge), "mm.0.weight", "visual.merger.linear_fc1.weight", MATRIX, MERGED, MERGED),
    T(ALWAYS, M(merge_bias), "mm.0.bias", "visual.merger.linear_fc1.bias", BIAS, MERGED),
    T(ALWAYS, M(out), "mm.2.weight", "visual.merger.linear_fc2.weight", MATRIX, MERGED, D_OUT),
    T(ALWAYS, M(out_bias), "mm.2.bias", "visual.merger.linear_fc2.bias", BIAS, D_OUT),
};

#define W(name) offsetof(qwen3vl_layer, name)
#define BIASED(w_, b_, gguf_, hf_, role_, in_, out_)                                               \
    T(ALWAYS, W(w_), gguf_ ".weight", hf_ ".weight", role_, in_, out_),                            \
        T(ALWAYS, W(b_), gguf_ ".bias", hf_ ".bias", BIAS, out_)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "ln1.weight", "norm1.weight", NORM, D),
    T(ALWAYS, W(attn_norm_bias), "ln1.bias", "norm1.bias", BIAS, D),
    BIASED(wqkv, qkv_bias, "attn_qkv", "attn.qkv", MATRIX, D, QKV),
    BIASED(wo, o_bias, "attn_out", "attn.proj", MATRIX, D, D),
    T(ALWAYS, W(ffn_norm), "ln2.weight", "norm2.weight", NORM, D),
    T(ALWAYS, W(ffn_norm_bias), "ln2.bias", "norm2.bias", BIAS, D),
    BIASED(up, up_bias, "ffn_up", "mlp.linear_fc1", MATRIX, D, FF),
    BIASED(down, down_bias, "ffn_down", "mlp.linear_fc2", MATRIX, FF, D),
};

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    const qwen3vl_shape *s = own(m);
    if (t->layer >= 0)
        snprintf(t->hf_name, sizeof t->hf_name, "visual.blocks.%d.%s", (int)t->layer, r->hf);
    if (t->n_dims == 4) { /* two of them are added */
        t->fan_in = 6 * (float)s->patch * (float)s->patch;
        t->change.side = (uint32_t)s->patch;
        t->change.frames = 2;
        t->change.frame = !strcmp(r->gguf, "v.patch_embd.weight.1");
    }
    if (r->role == ROLE_TAPS)
        t->fan_in = 4;
}

static const family_table rows = {TABLE_ROWS,          .prefix = "v.",    .dim = dim,
                                  .agree = agree,      .read = read_kind, .put = put_own_keys,
                                  .describe = describe};

const shape_family qwen3vl_shapes = {TABLE_HOOKS(qwen3vl_shape, rows),
                                     .arch = "clip",
                                     .title = "qwen",
                                     .sizes = "mmproj-qwen-9b, mmproj-qwen-27b, tiny-mmproj-qwen",
                                     .tower = true,
                                     .mix = "bf16",
                                     .cut = table_cut};

/* ---- Binding ---- */

static status bind_each(model *m, qwen3vl *g, const qwen3vl_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        const binder b = {m, i, e};
        qwen3vl_layer *L = &g->layer[i];
        st = table_bind(&b, &s->common, L);
        L->rope = &g->rope;
        L->wqkv.bias = &L->qkv_bias;
        L->wo.bias = &L->o_bias;
        L->up.bias = &L->up_bias;
        L->down.bias = &L->down_bias;
    }
    return st;
}

static status bind_qwen3vl(model *m, err *e)
{
    model_shape *shape = NULL;
    qwen3vl *g = bind_begin(m, &qwen3vl_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const qwen3vl_shape *s = own(shape);
    const binder b = {m, -1, e};
    status st;
    g->n_embd = s->n_embd;
    g->head_dim = s->n_embd / s->n_head;
    g->eps = (float)s->eps;
    if ((st = vision_read_stats(m, &g->v.rule, e)) || (st = table_bind(&b, shape, g)) ||
        (st = vision_bind_patches(m, &g->patches, "v.patch_embd.weight", s->patch, s->n_embd, e)) ||
        (st = vision_bind_patches(m, &g->patches_2, "v.patch_embd.weight.1", s->patch, s->n_embd,
                                  e)) ||
        (st = vision_bind_positions(m, &g->positions, s->n_embd, s->n_pos, e)) ||
        (st = vision_bind_rope(m, &g->rope, g->head_dim / 2, THETA, false, e)) ||
        (st = bind_each(m, g, s, e)))
        return st;
    g->patches.bias = &g->patch_bias;
    g->merge.bias = &g->merge_bias;
    g->out.bias = &g->out_bias;
    g->v.rule.patch = s->patch;
    g->v.rule.merge = s->merge;
    g->v.rule.min_pixels = LEAST_PIXELS;
    g->v.rule.max_pixels = MOST_PIXELS;
    g->v.n_out = s->n_out;
    g->v.n_head = s->n_head;
    g->v.head_dim = g->head_dim;
    g->v.side = side_of(s->n_pos);
    g->v.rows_first = true;
    return vision_done(m, shape, &g->v, &qwen3vl_vision, e);
}

/* ---- The forward pass ---- */

/* Every patch sees every patch. */
static void qwen3vl_add_attention(pass *p, const qwen3vl *g, const qwen3vl_layer *L,
                                  const kv_view *kv, mat x)
{
    mat h = op_layer_norm(p, x, &L->attn_norm, &L->attn_norm_bias, g->eps);
    mat qkv = op_matmul(p, h, &L->wqkv);
    mat q = mat_heads(mat_columns(qkv, 0, g->n_embd), g->head_dim);
    mat k = mat_heads(mat_columns(qkv, g->n_embd, g->n_embd), g->head_dim);
    mat v = mat_heads(mat_columns(qkv, 2 * g->n_embd, g->n_embd), g->head_dim);
    op_kv_store(p, kv, op_rope(p, k, L->rope), v);
    mat a = op_attend(p, op_rope(p, q, L->rope), kv, 1 / sqrtf((float)g->head_dim));
    op_add(p, x, op_matmul(p, mat_flat(a), &L->wo));
}

static void qwen3vl_add_ffn(pass *p, const qwen3vl *g, const qwen3vl_layer *L, mat x)
{
    mat h = op_layer_norm(p, x, &L->ffn_norm, &L->ffn_norm_bias, g->eps);
    h = op_act(p, op_matmul(p, h, &L->up), ACT_GELU_TANH);
    op_add(p, x, op_matmul(p, h, &L->down));
}

static mat qwen3vl_forward(pass *p, const model *m, const vision_input *in)
{
    const qwen3vl *g = m->impl;
    mat x = op_matmul(p, in->patches, &g->patches);
    size_t mark = pass_mark(p);
    op_add(p, x, op_matmul(p, in->patches, &g->patches_2));
    op_add(p, x, op_embed_mix(p, in->places, in->shares, &g->positions));
    pass_release(p, mark);
    for (int32_t i = 0; i < m->n_layer && vision_goes_on(p, m, i); i++) {
        qwen3vl_add_attention(p, g, &g->layer[i], in->kv, x);
        pass_release(p, mark);
        qwen3vl_add_ffn(p, g, &g->layer[i], x);
        pass_release(p, mark);
    }
    p->il = -1;
    mat y = op_merge(p, op_layer_norm(p, x, &g->out_norm, &g->out_norm_bias, g->eps), in->merged);
    /* Not by tanh, as in the layers. */
    return op_matmul(p, op_act(p, op_matmul(p, y, &g->merge), ACT_GELU_ERF), &g->out);
}

const vision_arch qwen3vl_vision = {.projector = "qwen3vl_merger",
                                    .shapes = &qwen3vl_shapes,
                                    .bind = bind_qwen3vl,
                                    .forward = qwen3vl_forward};
