/* qwen_vision.c - the vision tower of Qwen3-VL, and of Qwen3.5, 3.6 and 3.8: sizes, keys, tensors,
 * binding, forward pass.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. The patches of a token follow
 * each other. Norms are LayerNorm with bias. The patch product is over two frames, which are one
 * for a still picture, and files have a tensor for each. Limits of pixels are in no file: they are
 * those of the published processors.
 *
 * Deepstack, which Qwen3-VL's towers have, merges the patches behind some layers too, for the text
 * model's first layers. These mergers norm a token's patches as one row, the last one each patch.
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
    .n_head = 16, .eps = 1e-6
#define LARGE COMMON, .n_layer = 27, .n_embd = 1152, .n_ff = 4304
#define DEEP .deep = {[8] = true, [16] = true, [24] = true}
#define SMALL_DEEP                                                                                 \
    COMMON, .n_layer = 24, .n_embd = 1024, .n_ff = 4096,                                           \
            .deep = {[5] = true, [11] = true, [17] = true}
#define TINY                                                                                       \
    .family = &qwen3vl_shapes, .patch = 4, .merge = 2, .n_pos = 36, .image_size = 24, .eps = 1e-6, \
    .n_embd = 48, .n_head = 4, .n_ff = 80, .n_out = 64
static const qwen3vl_shape sizes[] = {
    {LARGE, .name = "mmproj-qwen-9b", .n_out = 4096},
    {LARGE, .name = "mmproj-qwen-27b", .n_out = 5120},
    {SMALL_DEEP, .name = "mmproj-qwen3-vl-2b", .n_out = 2048},
    {SMALL_DEEP, .name = "mmproj-qwen3-vl-4b", .n_out = 2560},
    {LARGE, DEEP, .name = "mmproj-qwen3-vl-8b", .n_out = 4096},
    {LARGE, DEEP, .name = "mmproj-qwen3-vl-32b", .n_out = 5120},
    {LARGE, DEEP, .name = "mmproj-qwen3-vl-30b-a3b", .n_out = 2048},
    {LARGE, DEEP, .name = "mmproj-qwen3-vl-235b-a22b", .n_out = 4096},
    {TINY, .name = "tiny-mmproj-qwen", .n_layer = 2},
    {TINY, .name = "tiny-mmproj-qwen3-vl", .n_layer = 4, .deep = {[0] = true, [2] = true}},
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
    K("vision.is_deepstack_layers", "deepstack_visual_indexes", F(deep), FLAGS, 0, 1,
      .how = MAY_LACK | CONFIG_BY_HAND),
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

static status read_kind(const model *m, model_shape *shape, err *e)
{
    return vision_read_positions(m, &((qwen3vl_shape *)shape)->n_pos, e);
}

static void fill(model_shape *m, int32_t size)
{
    memcpy(((qwen3vl_shape *)m)->deep, sizes[size].deep, sizeof sizes[size].deep);
}

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    (void)arch;
    (void)m;
    vision_put(w, qwen3vl_vision.projector, 0.5f, 0.5f);
    gguf_put_bool(w, "clip.use_gelu", true);
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
    T(ALWAYS, M(last.norm), "v.post_ln.weight", "visual.merger.norm.weight", NORM, D),
    T(ALWAYS, M(last.norm_bias), "v.post_ln.bias", "visual.merger.norm.bias", BIAS, D),
    T(ALWAYS, M(last.merge), "mm.0.weight", "visual.merger.linear_fc1.weight", MATRIX, MERGED,
      MERGED),
    T(ALWAYS, M(last.merge_bias), "mm.0.bias", "visual.merger.linear_fc1.bias", BIAS, MERGED),
    T(ALWAYS, M(last.out), "mm.2.weight", "visual.merger.linear_fc2.weight", MATRIX, MERGED, D_OUT),
    T(ALWAYS, M(last.out_bias), "mm.2.bias", "visual.merger.linear_fc2.bias", BIAS, D_OUT),
};

static bool is_deep(const model_shape *s, int32_t il)
{
    return own(s)->deep[il];
}

/* The number of layers before il that have deepstack. */
static int32_t n_deep_before(const qwen3vl_shape *s, int32_t il)
{
    int32_t n = 0;
    for (int32_t i = 0; i < il; i++)
        n += s->deep[i];
    return n;
}

#define W(name) offsetof(qwen3vl_layer, name)
#define BIASED(w_, b_, gguf_, hf_, role_, in_, out_)                                               \
    T(ALWAYS, W(w_), gguf_ ".weight", hf_ ".weight", role_, in_, out_),                            \
        T(ALWAYS, W(b_), gguf_ ".bias", hf_ ".bias", BIAS, out_)
/* Files name them v.deepstack.N, checkpoints by their order: describe, bind_deep. */
enum { OF_DEEP = 1 };
#define DEEP_ROW(gguf_, hf_, role_, ...)                                                           \
    T_AS(OF_DEEP, is_deep, ELSEWHERE, gguf_, hf_, role_, __VA_ARGS__)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "ln1.weight", "norm1.weight", NORM, D),
    T(ALWAYS, W(attn_norm_bias), "ln1.bias", "norm1.bias", BIAS, D),
    BIASED(wqkv, qkv_bias, "attn_qkv", "attn.qkv", MATRIX, D, QKV),
    BIASED(wo, o_bias, "attn_out", "attn.proj", MATRIX, D, D),
    T(ALWAYS, W(ffn_norm), "ln2.weight", "norm2.weight", NORM, D),
    T(ALWAYS, W(ffn_norm_bias), "ln2.bias", "norm2.bias", BIAS, D),
    BIASED(up, up_bias, "ffn_up", "mlp.linear_fc1", MATRIX, D, FF),
    BIASED(down, down_bias, "ffn_down", "mlp.linear_fc2", MATRIX, FF, D),
    DEEP_ROW("norm.weight", "norm.weight", NORM, MERGED),
    DEEP_ROW("norm.bias", "norm.bias", BIAS, MERGED),
    DEEP_ROW("fc1.weight", "linear_fc1.weight", MATRIX, MERGED, MERGED),
    DEEP_ROW("fc1.bias", "linear_fc1.bias", BIAS, MERGED),
    DEEP_ROW("fc2.weight", "linear_fc2.weight", MATRIX, MERGED, D_OUT),
    DEEP_ROW("fc2.bias", "linear_fc2.bias", BIAS, D_OUT),
};

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    const qwen3vl_shape *s = own(m);
    if (t->layer >= 0)
        snprintf(t->hf_name, sizeof t->hf_name, "visual.blocks.%d.%s", (int)t->layer, r->hf);
    if (r->change == OF_DEEP) {
        snprintf(t->name, sizeof t->name, "v.deepstack.%d.%s", (int)t->layer, r->gguf);
        snprintf(t->hf_name, sizeof t->hf_name, "visual.deepstack_merger_list.%d.%s",
                 (int)n_deep_before(s, t->layer), r->hf);
    }
    if (t->n_dims == 4) { /* two of them are added */
        t->fan_in = 6 * (float)s->patch * (float)s->patch;
        t->change.side = (uint32_t)s->patch;
        t->change.frames = 2;
        t->change.frame = !strcmp(r->gguf, "v.patch_embd.weight.1");
    }
    if (r->role == ROLE_TAPS)
        t->fan_in = 4;
}

static const family_table rows = {TABLE_ROWS,          .prefix = "v.",      .dim = dim,
                                  .agree = agree,      .fill = fill,        .read = read_kind,
                                  .put = put_own_keys, .describe = describe};

const shape_family qwen3vl_shapes = {TABLE_HOOKS(qwen3vl_shape, rows),
                                     .arch = "clip",
                                     .title = "qwen",
                                     .sizes =
                                         "mmproj-qwen-9b, mmproj-qwen-27b, mmproj-qwen3-vl-2b, "
                                         "mmproj-qwen3-vl-4b, mmproj-qwen3-vl-8b, "
                                         "mmproj-qwen3-vl-32b, mmproj-qwen3-vl-30b-a3b, "
                                         "mmproj-qwen3-vl-235b-a22b, tiny-mmproj-qwen, "
                                         "tiny-mmproj-qwen3-vl",
                                     .tower = true,
                                     .mix = "bf16",
                                     .cut = table_cut};

/* ---- Binding ---- */

static void join_biases(qwen3vl_merger *x)
{
    x->merge.bias = &x->merge_bias;
    x->out.bias = &x->out_bias;
}

static status bind_deep(model *m, const qwen3vl_shape *s, int32_t il, qwen3vl_merger *x, err *e)
{
    weight *const to[] = {&x->norm,       &x->norm_bias, &x->merge,
                          &x->merge_bias, &x->out,       &x->out_bias};
    const binder b = {m, -1, e};
    int32_t n = 0;
    status st = OK;
    for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer && !st; i++) {
        const table_tensor *r = &of_layer[i];
        char name[64];
        if (r->change != OF_DEEP)
            continue;
        snprintf(name, sizeof name, "v.deepstack.%d.%s", (int)il, r->gguf);
        bool matrix = r->role == ROLE_MATRIX;
        st = bind_tensor(&b, to[n++], name,
                         (model_want){.n_in = dim(&s->common, il, r->ne[0]),
                                      .n_out = matrix ? dim(&s->common, il, r->ne[1]) : 1,
                                      .n_mat = 1,
                                      .f32 = !matrix,
                                      .active = 1});
    }
    join_biases(x);
    return st;
}

static status bind_each(model *m, qwen3vl *g, const qwen3vl_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        const binder b = {m, i, e};
        qwen3vl_layer *L = &g->layer[i];
        st = table_bind(&b, &s->common, L);
        if (!st && s->deep[i])
            st = bind_deep(m, s, i, &L->deep, e);
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
    join_biases(&g->last);
    g->v.rule.patch = s->patch;
    g->v.rule.merge = s->merge;
    g->v.rule.min_pixels = LEAST_PIXELS;
    g->v.rule.max_pixels = MOST_PIXELS;
    g->v.n_out = s->n_out;
    g->v.n_deep = n_deep_before(s, s->n_layer);
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
    mat y = op_matmul(p, h, &L->wqkv);
    const qkv of = {.q = mat_heads(mat_columns(y, 0, g->n_embd), g->head_dim),
                    .k = mat_heads(mat_columns(y, g->n_embd, g->n_embd), g->head_dim),
                    .v = mat_heads(mat_columns(y, 2 * g->n_embd, g->n_embd), g->head_dim),
                    .q_rope = L->rope,
                    .k_rope = L->rope};
    mat a = op_attend(p, op_qkv(p, &of, kv), kv, 1 / sqrtf((float)g->head_dim));
    op_add(p, x, op_matmul(p, mat_flat(a), &L->wo));
}

static void qwen3vl_add_ffn(pass *p, const qwen3vl *g, const qwen3vl_layer *L, mat x)
{
    mat h = op_layer_norm(p, x, &L->ffn_norm, &L->ffn_norm_bias, g->eps);
    h = op_act(p, op_matmul(p, h, &L->up), ACT_GELU_TANH);
    op_add(p, x, op_matmul(p, h, &L->down));
}

/* Soft tokens of normed patches, or of a token's patches normed as one row: y. */
static mat qwen3vl_merge(pass *p, const qwen3vl_merger *g, mat y)
{
    /* Not by tanh, as in the layers. */
    return op_matmul(p, op_act(p, op_matmul(p, y, &g->merge), ACT_GELU_ERF), &g->out);
}

static void qwen3vl_put_deep(pass *p, const qwen3vl *g, const qwen3vl_merger *deep, int32_t merged,
                             mat x, mat to)
{
    mat y = op_merge(p, x, merged); /* the same memory: x stays as it is */
    y = op_layer_norm(p, y, &deep->norm, &deep->norm_bias, g->eps);
    op_copy(p, to, qwen3vl_merge(p, deep, y));
    p->rows = &p->st->all;
}

static mat qwen3vl_forward(pass *p, const model *m, const vision_input *in)
{
    const qwen3vl *g = m->impl;
    int32_t n = p->st->out.n, n_deep = 0;
    mat soft = {0};
    if (g->v.n_deep)
        soft = pass_mat(p, n * (1 + g->v.n_deep), 1, g->v.n_out);
    mat x = op_matmul(p, in->patches, &g->patches);
    size_t mark = pass_mark(p);
    op_add(p, x, op_matmul(p, in->patches, &g->patches_2));
    op_add(p, x, op_embed_mix(p, in->places, in->shares, &g->positions));
    pass_release(p, mark);
    for (int32_t i = 0; i < m->n_layer && vision_goes_on(p, m, i); i++) {
        const qwen3vl_layer *L = &g->layer[i];
        qwen3vl_add_attention(p, g, L, in->kv, x);
        pass_release(p, mark);
        qwen3vl_add_ffn(p, g, L, x);
        pass_release(p, mark);
        if (!L->deep.merge.n_in)
            continue;
        qwen3vl_put_deep(p, g, &L->deep, in->merged, x, mat_rows(soft, n * ++n_deep, n));
        pass_release(p, mark);
    }
    p->il = -1;
    x = op_layer_norm(p, x, &g->last.norm, &g->last.norm_bias, g->eps);
    mat y = qwen3vl_merge(p, &g->last, op_merge(p, x, in->merged));
    if (!n_deep)
        return y;
    op_copy(p, mat_rows(soft, 0, n), y);
    return soft;
}

const vision_arch qwen3vl_vision = {.projector = "qwen3vl_merger",
                                    .shapes = &qwen3vl_shapes,
                                    .bind = bind_qwen3vl,
                                    .forward = qwen3vl_forward};
