/* gemma3.c - Gemma 3 and EmbeddingGemma: sizes, keys, tensors, and binding. The forward pass is
 * that of block.c; the dense layers of an encoder follow it.
 *
 * Easy to get wrong: a checkpoint's norms are w of 1 + w; GGUF files have 1 + w. Attention divides
 * by the root of the head size, in the 27B by that of n_embd / n_head. GGUF files have no key for
 * it: the 27B is the model with 62 layers. Linear scaling is of global layers alone. The
 * embedding's factor sqrt(n_embd) is rounded to the type of the model, which is bf16.
 *
 * EmbeddingGemma is an encoder: tokens see later ones. It is published in f32, so its factor is not
 * rounded. Its files state the width W of a whole window: a token sees W / 2 tokens on each side.
 * Two products without bias or activation follow the last norm. sentence-transformers applies them
 * to the mean of the rows; the mean of their results is the same vector.
 */
#include "model/gemma3.h"
#include "model/bind.h"

#include <math.h>

/* ---- Sizes ---- */

enum { PERIOD = 6, LAYERS_27B = 62 }; /* the last layer of each six is global */

#define ALL .eps = 1e-6, .theta = 1e6, .theta_swa = 1e4, .tied = true
#define COMMON ALL, .family = &gemma3_shapes
#define LARGE                                                                                      \
    COMMON, .n_vocab = 262144, .window = 1024, .n_ctx_train = 131072,                              \
            .scaling = {SCALING_LINEAR, .factor = 8}
#define SMALL                                                                                      \
    COMMON, .n_vocab = 262144, .window = 512, .n_ctx_train = 32768, .n_head = 4, .n_head_kv = 1,   \
            .head_dim = 256

static const gemma3_shape sizes[] = {
    {SMALL, .name = "gemma3-270m", .n_layer = 18, .n_embd = 640, .n_ff = 2048},
    {SMALL, .name = "gemma3-1b", .n_layer = 26, .n_embd = 1152, .n_ff = 6912},
    {LARGE, .name = "gemma3-4b", .n_layer = 34, .n_embd = 2560, .n_ff = 10240, .n_head = 8,
     .n_head_kv = 4, .head_dim = 256},
    {LARGE, .name = "gemma3-12b", .n_layer = 48, .n_embd = 3840, .n_ff = 15360, .n_head = 16,
     .n_head_kv = 8, .head_dim = 256},
    {LARGE, .name = "gemma3-27b", .n_layer = LAYERS_27B, .n_embd = 5376, .n_ff = 21504,
     .n_head = 32, .n_head_kv = 16, .head_dim = 128},
    {COMMON, .name = "tiny-gemma3", .n_layer = 7, .n_embd = 64, .n_ff = 96, .n_vocab = 512,
     .n_head = 4, .n_head_kv = 2, .head_dim = 32, .window = 16, .n_ctx_train = 8192,
     .scaling = {SCALING_LINEAR, .factor = 8}},
};

#define ENCODER ALL, .family = &gemma_embedding_shapes, .n_ctx_train = 2048, .pooling = POOLING_MEAN
static const gemma3_shape encoder_sizes[] = {
    {ENCODER, .name = "embeddinggemma-300m", .n_layer = 24, .n_embd = 768, .n_ff = 1152,
     .n_vocab = 262144, .n_head = 3, .n_head_kv = 1, .head_dim = 256, .window = 512,
     .n_dense = 3072},
    {ENCODER, .name = "tiny-embeddinggemma", .n_layer = 7, .n_embd = 64, .n_ff = 96, .n_vocab = 512,
     .n_head = 3, .n_head_kv = 1, .head_dim = 32, .window = 16, .n_dense = 128},
};

static bool is_encoder(const model_shape *s)
{
    return s->family == &gemma_embedding_shapes;
}

static void fill(model_shape *m, int32_t size)
{
    (void)size;
    for (int32_t il = 0; il < m->n_layer; il++)
        ((gemma3_shape *)m)->swa[il] = (il + 1) % PERIOD != 0;
}

/* ---- Keys ---- */

static const gemma3_shape *own(const model_shape *s)
{
    return (const gemma3_shape *)s;
}

static bool has_dense(const model_shape *s)
{
    return own(s)->n_dense > 0;
}

static bool has_dense_layers(const model_shape *s, int32_t il)
{
    (void)il;
    return has_dense(s);
}

#define F(name) offsetof(gemma3_shape, name)
static const table_key keys[] = {
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX,
      .how = CONFIG_MAY_LACK),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("feed_forward_length", "intermediate_size", F(n_ff), UNIFORM, 1, WIDTH_MAX),
    K("attention.head_count", "num_attention_heads", F(n_head), UNIFORM, 1, HEADS_MAX,
      .how = CONFIG_MAY_LACK),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1,
      .how = CONFIG_MAY_LACK),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX, .how = CONFIG_MAY_LACK),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX,
      .same_as = "attention.key_length"),
    K("rope.dimension_count", NULL, F(head_dim), COUNT, 2, WIDTH_MAX, .how = READ_ONLY,
      .same_as = "attention.key_length"),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e6),
    K("rope.freq_base_swa", "rope_local_base_freq", F(theta_swa), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e4),
    K("rope.scaling", NULL, F(scaling), YARN, 0, 0, .otherwise = F(n_ctx_train)),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 0, CTX_MAX, .how = MAY_LACK),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .how = WRITE_ONLY),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), UNIFORM, 1, HEADS_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK, .otherwise = F(n_head)),
    K("attention.scale", NULL, F(scale), REAL, 0, 1e3, .how = MAY_LACK | OMIT_ZERO),
    K("attn_logit_softcapping", "attn_logit_softcapping", 0, REAL, 0, 0,
      .how = MAY_LACK | READ_ONLY | CONFIG_BY_HAND),
    K("final_logit_softcapping", "final_logit_softcapping", F(softcap), REAL, 0, 1e6,
      .how = MAY_LACK | OMIT_ZERO | CONFIG_MAY_LACK),
    K("pooling_type", NULL, F(pooling), COUNT, 0, POOLING_LAST, .how = MAY_LACK,
      .value = POOLING_MEAN, .when = is_encoder),
    K("attention.causal", NULL, 0, FLAG, 0, 0, .how = MAY_LACK | READ_ONLY, .when = is_encoder),
    K("dense_2_feat_out", NULL, F(n_dense), COUNT, 0, WIDTH_MAX, .how = MAY_LACK | OMIT_ZERO,
      .when = is_encoder),
    K("dense_2_feat_in", NULL, F(n_embd), COUNT, 1, WIDTH_MAX, .same_as = "embedding_length",
      .when = has_dense),
    K("dense_3_feat_in", NULL, F(n_dense), COUNT, 1, WIDTH_MAX, .same_as = "dense_2_feat_out",
      .when = has_dense),
    K("dense_3_feat_out", NULL, F(n_embd), COUNT, 1, WIDTH_MAX, .same_as = "embedding_length",
      .when = has_dense),
    K(NULL, "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = CONFIG_MAY_LACK),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma3_shape *s = own(m);
    if (s->pooling == POOLING_FIRST)
        return err_set(
            e, bad, "%s: pooling_type is 2 (the first token), expected the mean or the last", what);
    if (s->head_dim % 2)
        return err_set(e, bad, "%s: heads of %d, expected an even number", what, s->head_dim);
    if (s->scaling.kind == SCALING_YARN)
        return err_set(e, bad, "%s: the rotation is stretched by YaRN, expected linear or none",
                       what);
    return table_agree_heads(0, s->n_head, s->n_head_kv, s->head_dim, bad, what, e);
}

static status read_kinds(const model *m, model_shape *shape, err *e)
{
    gemma3_shape *s = (gemma3_shape *)shape;
    status st = bind_windows(m, PERIOD, s->swa, s->n_layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++)
        s->swa[i] = s->swa[i] && s->window;
    return st;
}

double gemma3_scale(const gemma3_shape *s)
{
    return 1 / sqrt(s->n_layer == LAYERS_27B ? s->n_embd / s->n_head : s->head_dim);
}

/* ---- Tensors ---- */

enum { D = 1, VOCAB, Q, KV, HD, FF, DENSE };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma3_shape *s = own(m);
    const int64_t of[] = {[D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = (int64_t)s->n_head * s->head_dim,
                          [KV] = (int64_t)s->n_head_kv * s->head_dim,
                          [HD] = s->head_dim,
                          [FF] = s->n_ff,
                          [DENSE] = s->n_dense};
    (void)il;
    return of[d];
}

#define M(name) offsetof(gemma3, name)
static const table_tensor of_model[] = {T_TOKENS(M(common.out_norm)),
                                        T(has_dense_layers, M(dense_2), "dense_2.weight",
                                          "2_Dense.linear.weight", EIGHT_BITS, D, DENSE),
                                        T(has_dense_layers, M(dense_3), "dense_3.weight",
                                          "3_Dense.linear.weight", EIGHT_BITS, DENSE, D)};

#define W(name) offsetof(block, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T_QKV,
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T_HEAD_NORMS,
    T_GEMMA_UNIT,
};

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    (void)m;
    t->change.add = r->role == ROLE_NORM || r->role == ROLE_QK_NORM ? 1 : 0;
}

#define HOOKS .dim = dim, .agree = agree, .fill = fill, .read = read_kinds, .describe = describe
static const family_table rows = {TABLE_ROWS, HOOKS};
static const family_table encoder_rows = {TABLE_ROWS_OF(encoder_sizes), HOOKS};

const shape_family gemma3_shapes = {
    TABLE_HOOKS(gemma3_shape, rows),
    .arch = "gemma3",
    .title = "gemma-3",
    .sizes = "gemma3-270m, gemma3-1b, gemma3-4b, gemma3-12b, gemma3-27b, tiny-gemma3",
    .mix = "q4_k_m",
    .cut = table_cut};

const shape_family gemma_embedding_shapes = {TABLE_HOOKS(gemma3_shape, encoder_rows),
                                             .arch = "gemma-embedding",
                                             .title = "embeddinggemma",
                                             .sizes = "embeddinggemma-300m, tiny-embeddinggemma",
                                             .mix = "q8_0",
                                             .cut = table_cut};

/* ---- Binding ---- */

/* The keys of a layer: a token of an encoder sees half of a window on each side. */
static kv_spec store_of(const gemma3_shape *s, int32_t il, const block *L)
{
    bool both = is_encoder(&s->common);
    int32_t window = both ? s->window / 2 + 1 : s->window;
    return (kv_spec){.layer = il,
                     .window = s->swa[il] ? window : 0,
                     .n_head_kv = s->n_head_kv,
                     .head_dim = s->head_dim,
                     .wide = bind_wide_heads(&L->q_norm, &L->k_norm, s->head_dim, 1),
                     .inside = both ? KV_INSIDE_ROWS : KV_INSIDE_CAUSAL};
}

static status bind_each(model *m, gemma3 *g, const gemma3_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        block *L = &g->layer[i];
        const binder b = {m, i, e};
        L->rope = s->swa[i] ? &g->rope_swa[PASS_MAIN] : &g->rope_global[PASS_MAIN];
        if ((st = bind_qkv(&b, &L->wq, &L->wk, &L->wv, s->n_embd, dim(&s->common, i, Q),
                           dim(&s->common, i, KV))) ||
            (st = table_bind(&b, &s->common, L)))
            return st;
        m->kv[i] = store_of(s, i, L);
    }
    return st;
}

/* Files of f32 are of models in f32; every other file is of a published model in bf16. */
static float embd_scale(const weight *embd)
{
    float x = sqrtf((float)embd->n_in);
    return embd->type == NUM_F32 ? x : num_bf16_to_f32(num_f32_to_bf16(x));
}

static status bind_gemma3(model *m, err *e)
{
    model_shape *shape = NULL;
    bool encoder = m->arch == &gemma_embedding_arch;
    gemma3 *g =
        bind_begin(m, encoder ? &gemma_embedding_shapes : &gemma3_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const gemma3_shape *s = own(shape);
    const turning global = {s->head_dim, s->theta, s->head_dim / 2, NULL, &s->scaling};
    const turning swa = {s->head_dim, s->theta_swa, s->head_dim / 2, NULL, NULL};
    status st;
    g->common = (block_model){.head_dim = s->head_dim,
                              .eps = (float)s->eps,
                              .scale = (float)(s->scale > 0 ? s->scale : gemma3_scale(s)),
                              .act = ACT_GELU_TANH};
    weight *head = encoder ? NULL : &g->common.head;
    if (encoder)
        model_claim(m, "output.weight"); /* some files repeat the embedding as a head */
    if ((st = bind_tokens(m, &g->common.embd, head, s->n_embd, e)) ||
        (st = table_bind(&(binder){m, -1, e}, shape, g)) ||
        (st = bind_rope(m, &g->rope_global[PASS_MAIN], &global, e)) ||
        (st = bind_rope(m, &g->rope_swa[PASS_MAIN], &swa, e)) || (st = bind_each(m, g, s, e)) ||
        (st = bind_done(m, shape, g, &g->common.embd, head, e)))
        return st;
    m->embd_scale = encoder ? sqrtf((float)s->n_embd) : embd_scale(&g->common.embd);
    m->softcap = (float)s->softcap;
    m->window = s->window;
    m->encoder = encoder;
    return OK;
}

/* ---- The forward pass ---- */

static mat gemma3_forward(pass *p, const model *m, const kv_layout *kv)
{
    const gemma3 *g = m->impl;
    mat y = block_forward(p, m, kv);
    if (!g->dense_2.n_in || !y.rows)
        return y;
    return op_matmul(p, op_matmul(p, y, &g->dense_2), &g->dense_3);
}

#define GEMMA3                                                                                     \
    .sampling = {.temperature = 1, .top_k = 64, .top_p = 0.95f}, .bind = bind_gemma3,              \
    .forward = gemma3_forward, .divide = divide_plain, .at_rank = block_at_rank
const model_arch gemma3_arch = {.name = "gemma3", GEMMA3};
const model_arch gemma_embedding_arch = {.name = "gemma-embedding", GEMMA3};
