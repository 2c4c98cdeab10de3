/* gemma4_vision.c - the vision tower of Gemma 4 (E2B, E4B, 26B-A4B, 31B): sizes, keys, tensors,
 * binding, and the forward pass in the order of the paper.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. A position is a patch's column
 * and row; both tables are one tensor, columns first. Files say neither the theta of the rotation,
 * 100, nor the activation, gelu by tanh. Norms are used as they are stored. Tensors tell whether
 * products are clamped and whether pooled rows are standardized.
 */
#include "model/gemma4_vision.h"
#include "model/bind.h"

#include <math.h>
#include <stdio.h>

enum { THETA = 100 }; /* of the rotation; in no file */

/* ---- Sizes ---- */

#define COMMON                                                                                     \
    .family = &gemma4v_shapes, .patch = 16, .merge = 3, .n_pos = 10240, .image_size = 224,         \
    .eps = 1e-6
#define SMALL COMMON, .n_layer = 16, .n_embd = 768, .n_head = 12, .n_ff = 3072, .clamped = true
#define LARGE                                                                                      \
    COMMON, .n_layer = 27, .n_embd = 1152, .n_head = 16, .n_ff = 4304, .standardized = true
/* Their pictures are for the tiny sizes of Gemma 4 with width 96. */
#define TINY                                                                                       \
    .family = &gemma4v_shapes, .patch = 4, .merge = 3, .n_pos = 128, .image_size = 224,            \
    .eps = 1e-6, .n_out = 96

static const gemma4v_shape sizes[] = {
    {SMALL, .name = "mmproj-e2b", .n_out = 1536, .ears = GEMMA4A_SHAPE(1536)},
    {SMALL, .name = "mmproj-e4b", .n_out = 2560, .ears = GEMMA4A_SHAPE(2560)},
    {LARGE, .name = "mmproj-26b", .n_out = 2816},
    {LARGE, .name = "mmproj-31b", .n_out = 5376},
    {TINY, .name = "tiny-mmproj-clamped", .n_layer = 3, .n_embd = 32, .n_head = 2, .n_ff = 48,
     .clamped = true},
    {TINY, .name = "tiny-mmproj-hears", .n_layer = 1, .n_embd = 32, .n_head = 2, .n_ff = 48,
     .clamped = true, .ears = GEMMA4A_TINY},
    {TINY, .name = "tiny-mmproj-standard", .n_layer = 2, .n_embd = 48, .n_head = 4, .n_ff = 80,
     .standardized = true},
};

static const gemma4v_shape *own(const model_shape *s)
{
    return (const gemma4v_shape *)s;
}

/* ---- Keys ---- */

#define F(name) offsetof(gemma4v_shape, name)
static const table_key keys[] = {
    K("vision.projection_dim", NULL, F(n_out), COUNT, 1, WIDTH_MAX),
    K("vision.embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("vision.feed_forward_length", "intermediate_size", F(n_ff), COUNT, 1, WIDTH_MAX),
    K("vision.block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("vision.attention.head_count", "num_attention_heads", F(n_head), COUNT, 1, HEADS_MAX),
    GEMMA4_PICTURE_KEYS,
    K(NULL, "position_embedding_size", F(n_pos), COUNT, 1, CTX_MAX),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma4v_shape *s = own(m);
    if (s->n_embd % s->n_head || s->n_embd / s->n_head % 4)
        return err_set(e, bad,
                       "%s: width %d in %d heads: expected heads of a multiple of 4, half of each "
                       "for columns and for rows",
                       what, s->n_embd, s->n_head);
    return OK;
}

/* What tensors tell. */
static status read_kind(const model *m, model_shape *shape, err *e)
{
    gemma4v_shape *s = (gemma4v_shape *)shape;
    s->clamped = tensor_find(&m->file.tensors, "v.blk.0.attn_q.input_max") != NULL;
    s->standardized =
        tensor_find(&m->file.tensors, "v.std_scale") || tensor_find(&m->file.tensors, "v.std_bias");
    return vision_read_positions(m, &s->n_pos, e);
}

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    (void)arch;
    (void)m;
    vision_put(w, gemma4v_vision.projector, 0, 1);
}

/* ---- Tensors ---- */

enum { D = 1, PATCH, COLOURS, FF, HD, N_POS, AXES, D_OUT, ONE };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma4v_shape *s = own(m);
    const int64_t of[] = {[D] = s->n_embd, [PATCH] = s->patch, [COLOURS] = 3,
                          [FF] = s->n_ff,  [AXES] = 2,         [HD] = s->n_embd / s->n_head,
                          [ONE] = 1,       [N_POS] = s->n_pos, [D_OUT] = s->n_out};
    (void)il;
    return of[d];
}

static bool is_clamped(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->clamped;
}

static bool is_standardized(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->standardized;
}

#define M(name) offsetof(gemma4v, name)
static const table_tensor of_model[] = {
    T(ALWAYS, M(out), "mm.input_projection.weight", "embed_vision.embedding_projection.weight",
      MATRIX, D, D_OUT),
    T(ALWAYS, ELSEWHERE, "v.patch_embd.weight", "vision_tower.patch_embedder.input_proj.weight",
      MATRIX, PATCH, PATCH, COLOURS, D), /* see vision_bind_patches */
    T(ALWAYS, ELSEWHERE, "v.position_embd.weight",
      "vision_tower.patch_embedder.position_embedding_table", TAPS, D, N_POS, AXES),
    T(is_standardized, M(std_bias), "v.std_bias", "vision_tower.std_bias", BIAS, D),
    T(is_standardized, M(std_scale), "v.std_scale", "vision_tower.std_scale", NORM, D),
};

#define W(name) offsetof(gemma4v_layer, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "ln1.weight", "input_layernorm.weight", NORM, D),
    CLAMPED(W, is_clamped, wq, "attn_q", "self_attn.q_proj", MATRIX, D, D),
    CLAMPED(W, is_clamped, wk, "attn_k", "self_attn.k_proj", MATRIX, D, D),
    CLAMPED(W, is_clamped, wv, "attn_v", "self_attn.v_proj", MATRIX, D, D),
    CLAMPED(W, is_clamped, wo, "attn_out", "self_attn.o_proj", MATRIX, D, D),
    T(ALWAYS, W(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORM, HD),
    T(ALWAYS, W(k_norm), "attn_k_norm.weight", "self_attn.k_norm.weight", QK_NORM, HD),
    T(ALWAYS, W(attn_post_norm), "attn_post_norm.weight", "post_attention_layernorm.weight", NORM,
      D),
    T(ALWAYS, W(ffn_norm), "ln2.weight", "pre_feedforward_layernorm.weight", NORM, D),
    CLAMPED(W, is_clamped, gate, "ffn_gate", "mlp.gate_proj", MATRIX, D, FF),
    CLAMPED(W, is_clamped, up, "ffn_up", "mlp.up_proj", MATRIX, D, FF),
    CLAMPED(W, is_clamped, down, "ffn_down", "mlp.down_proj", MATRIX, FF, D),
    T(ALWAYS, W(ffn_post_norm), "ffn_post_norm.weight", "post_feedforward_layernorm.weight", NORM,
      D),
};

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    const gemma4v_shape *s = own(m);
    if (t->layer >= 0)
        snprintf(t->hf_name, sizeof t->hf_name, "vision_tower.encoder.layers.%d.%s", (int)t->layer,
                 r->hf);
    if (t->n_dims == 4) {
        t->fan_in = 3 * (float)s->patch * (float)s->patch;
        t->change.side = (uint32_t)s->patch;
    }
    if (r->role == ROLE_TAPS)
        t->fan_in = 4;
    /* Scores are not divided by the root of the head size. Norms near 1 would make them large, and
     * every row would read one patch alone. */
    if (r->role == ROLE_QK_NORM)
        t->centre = 0.55f;
}

static const family_table rows = {TABLE_ROWS,          .prefix = "v.",    .dim = dim,
                                  .agree = agree,      .read = read_kind, .put = put_own_keys,
                                  .describe = describe};

static int32_t list_all(const model_shape *s, shape_tensor *out, int32_t cap)
{
    return audio_list_with(s, &own(s)->ears.common, out, cap);
}

static void put_all(gguf_writer *w, const model_shape *s)
{
    audio_put_with(w, s, &own(s)->ears.common);
}

const shape_family gemma4v_shapes = {
    .table = &rows,
    .shape_bytes = sizeof(gemma4v_shape),
    .named = table_named,
    .check = table_check,
    .list = list_all,
    .put = put_all,
    .arch = "clip",
    .title = "gemma-4",
    .sizes = "mmproj-e2b, mmproj-e4b, mmproj-26b, mmproj-31b, tiny-mmproj-clamped, "
             "tiny-mmproj-standard, tiny-mmproj-hears",
    .tower = true,
    .mix = "bf16",
    .cut = table_cut};

/* ---- Binding ---- */

static status bind_each(model *m, gemma4v *g, const gemma4v_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        gemma4v_layer *L = &g->layer[i];
        const binder b = {m, i, e};
        struct {
            clamped_weight *w;
            const char *name;
        } products[] = {{&L->wq, "attn_q"},    {&L->wk, "attn_k"},     {&L->wv, "attn_v"},
                        {&L->wo, "attn_out"},  {&L->gate, "ffn_gate"}, {&L->up, "ffn_up"},
                        {&L->down, "ffn_down"}};
        L->rope = &g->rope;
        st = table_bind(&b, &s->common, L);
        for (size_t k = 0; k < sizeof products / sizeof *products && !st; k++)
            st = clamped_bind(&b, products[k].w, products[k].name);
    }
    return st;
}

static status bind_gemma4v(model *m, err *e)
{
    model_shape *shape = NULL;
    gemma4v *g = bind_begin(m, &gemma4v_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const gemma4v_shape *s = own(shape);
    const binder b = {m, -1, e};
    status st;
    g->n_embd = s->n_embd;
    g->head_dim = s->n_embd / s->n_head;
    g->eps = (float)s->eps;
    if ((st = vision_read_stats(m, &g->v.rule, e)) || (st = table_bind(&b, shape, g)) ||
        (st = vision_bind_patches(m, &g->patches, "v.patch_embd.weight", s->patch, s->n_embd, e)) ||
        (st = vision_bind_positions(m, &g->positions, s->n_embd, 2 * s->n_pos, e)) ||
        (st = vision_bind_rope(m, &g->rope, g->head_dim / 2, THETA, true, e)) ||
        (st = bind_each(m, g, s, e)))
        return st;
    /* The tower's first step is 2 x - 1. */
    for (int c = 0; c < 3; c++) {
        g->v.rule.mean[c] += 0.5f * g->v.rule.std[c];
        g->v.rule.std[c] *= 0.5f;
    }
    g->v.rule.patch = s->patch;
    g->v.rule.merge = s->merge;
    g->v.n_out = s->n_out;
    g->v.n_head = s->n_head;
    g->v.head_dim = g->head_dim;
    g->v.n_pos = s->n_pos;
    return vision_done(m, shape, &g->v, &gemma4v_vision, e);
}

/* ---- The forward pass ---- */

/* Every patch sees every patch. */
static void gemma4v_add_attention(pass *p, const gemma4v *g, const gemma4v_layer *L,
                                  const kv_view *kv, res_stream *s)
{
    mat h = res_enter(p, s, &L->attn_norm);
    mat y[3];
    clamped_products(p, y, h, (const clamped_weight *[]){&L->wq, &L->wk, &L->wv}, 3);
    const qkv of = {.q = mat_heads(y[0], g->head_dim),
                    .k = mat_heads(y[1], g->head_dim),
                    .v = mat_heads(y[2], g->head_dim),
                    .q_norm = &L->q_norm,
                    .k_norm = &L->k_norm,
                    .v_norm = true,
                    .eps = g->eps,
                    .q_rope = L->rope,
                    .k_rope = L->rope};
    mat q = op_qkv(p, &of, kv);
    mat a = op_attend(p, q, kv, 1); /* no 1 / sqrt(head_dim): norms stand in for it */
    mat o = clamped_product(p, mat_flat(a), &L->wo);
    res_leave(p, s, (residual){.y = o, .norm = &L->attn_post_norm});
}

static void gemma4v_add_ffn(pass *p, const gemma4v_layer *L, res_stream *s)
{
    mat h = res_enter(p, s, &L->ffn_norm);
    mat gu[2];
    clamped_products(p, gu, h, (const clamped_weight *[]){&L->gate, &L->up}, 2);
    mat y = clamped_product(p, op_act_mul(p, gu[0], gu[1], ACT_GELU_TANH), &L->down);
    res_leave(p, s, (residual){.y = y, .norm = &L->ffn_post_norm});
}

static mat gemma4v_forward(pass *p, const model *m, const vision_input *in)
{
    const gemma4v *g = m->impl;
    mat x = op_matmul(p, in->patches, &g->patches);
    size_t mark = pass_mark(p);
    op_add(p, x, op_embed_mix(p, in->places, in->shares, &g->positions));
    pass_release(p, mark);
    res_stream s = {.x = x, .eps = g->eps};
    s.room[p->here] = op_norm_room(p, x);
    mark = pass_mark(p);
    for (int32_t i = 0; i < m->n_layer && vision_goes_on(p, m, i); i++) {
        s.next = &g->layer[i].ffn_norm;
        gemma4v_add_attention(p, g, &g->layer[i], in->kv, &s);
        pass_release(p, mark);
        s.next = i + 1 < m->n_layer ? &g->layer[i + 1].attn_norm : NULL;
        gemma4v_add_ffn(p, &g->layer[i], &s);
        pass_release(p, mark);
    }
    p->il = -1;
    /* In f32: pooled values of the large tower reach 8e4. */
    mat y = op_scale(p, op_pool(p, x, in->merged), sqrtf((float)g->n_embd), NULL);
    if (g->std_scale.n_in)
        op_standardize(p, y, &g->std_bias, &g->std_scale);
    return op_matmul(p, op_rms_norm_inplace(p, y, NULL, g->eps), &g->out);
}

const vision_arch gemma4v_vision = {.projector = "gemma4v",
                                    .shapes = &gemma4v_shapes,
                                    .bind = bind_gemma4v,
                                    .forward = gemma4v_forward};
