/* gemma4_mtp_shapes.c - the published MTP assistants, their tensors in file order, their metadata.
 *
 * Names are llama.cpp's, with those of the first files beside them. The head of the assistants for
 * E2B and E4B sorts the tokens into clusters: it multiplies only the rows of the clusters whose
 * centroids come closest. The tensor masked_embd_ordering lists the tokens cluster by cluster.
 */
#include "model/gemma4_mtp_shapes.h"
#include "model/gemma4_shapes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Sizes --------------------------------------------------------------------------------- */

#define BASE                                                                                       \
    .family = &gemma4_mtp_shapes, .n_layer = 4, .swa = {1, 1, 1, 0}, .eps = 1e-6, .theta = 1e6,    \
    .theta_swa = 1e4, .rotary_part = 0.25, .rope_factor = 1
#define FULL BASE, .n_vocab = 262144, .head_dim = 256, .head_dim_global = 512
#define SMALL                                                                                      \
    FULL, .n_embd = 256, .n_ff = 2048, .n_head = 4, .n_centroids = 2048, .centroid_top_k = 32,     \
          .window = 512, .n_ctx_train = 131072
#define LARGE FULL, .n_embd = 1024, .n_ff = 8192, .window = 1024, .n_ctx_train = 262144
/* For the tiny sizes of the target with 9 layers of width 96. */
#define TINY                                                                                       \
    BASE, .n_vocab = 320, .n_embd = 64, .n_target_embd = 96, .n_ff = 128, .n_head = 4,             \
          .head_dim = 32, .head_dim_global = 64, .window = 8, .n_ctx_train = 8192

static const gemma4_mtp_shape sizes[] = {
    {SMALL, .name = "mtp-e2b", .n_target_embd = 1536, .n_head_kv = 1, .n_head_kv_global = 1},
    {SMALL, .name = "mtp-e4b", .n_target_embd = 2560, .n_head_kv = 2, .n_head_kv_global = 2},
    {LARGE, .name = "mtp-12b", .n_target_embd = 3840, .n_head = 16, .n_head_kv = 8,
     .n_head_kv_global = 1},
    {LARGE, .name = "mtp-26b", .n_target_embd = 2816, .n_head = 16, .n_head_kv = 8,
     .n_head_kv_global = 2},
    {LARGE, .name = "mtp-31b", .n_target_embd = 5376, .n_head = 32, .n_head_kv = 16,
     .n_head_kv_global = 4},
    {TINY, .name = "mtp-tiny", .n_head_kv = 2, .n_head_kv_global = 1}, /* tiny-dense, -moe, -all */
    {TINY, .name = "mtp-tiny-ordered", .n_head_kv = 1, .n_head_kv_global = 1, .n_centroids = 16,
     .centroid_top_k = 4}, /* tiny-ple */
    {BASE, .name = "mtp-tiny-wide", .n_vocab = 512, .n_embd = 256, .n_target_embd = 256,
     .n_ff = 512, .n_head = 4, .head_dim = 64, .head_dim_global = 128, .n_head_kv = 2,
     .n_head_kv_global = 1, .window = 16, .n_ctx_train = 8192},
};

status gemma4_mtp_shape_check(const gemma4_mtp_shape *s, const char *what, err *e)
{
    /* Far above every published size. A product of two is far below an overflow of int64. */
    const shape_range range[] = {
        {"number of layers", s->n_layer, 1, MTP_SHAPE_LAYERS},
        {"hidden size", s->n_embd, 1, WIDTH_MAX},
        {"hidden size of the target", s->n_target_embd, 1, WIDTH_MAX},
        {"vocabulary size", s->n_vocab, 1, VOCAB_MAX},
        {"number of heads", s->n_head, 1, 4096},
        {"number of key heads", s->n_head_kv, 1, s->n_head},
        {"number of key heads of global layers", s->n_head_kv_global, 1, s->n_head},
        {"head size", s->head_dim, 2, 8192},
        {"head size of global layers", s->head_dim_global, 2, 8192},
        {"feed-forward width", s->n_ff, 1, WIDTH_MAX},
        {"number of centroids", s->n_centroids, 0, s->n_vocab},
        {"number of centroids used", s->centroid_top_k, s->n_centroids ? 1 : 0, s->n_centroids},
        {"window", s->window, 1, 1 << 24},
        {"number of positions", s->n_ctx_train, 1, 1 << 24},
    };
    status st = shape_check_ranges(range, sizeof range / sizeof *range, what, e);
    if (st)
        return st;
    if (s->n_head % s->n_head_kv || s->n_head % s->n_head_kv_global)
        return err_set(e, E_ARG,
                       "%s: %" PRId32 " heads do not share %" PRId32 " or %" PRId32
                       " key heads evenly",
                       what, s->n_head, s->n_head_kv, s->n_head_kv_global);
    if (s->head_dim % 2 || s->head_dim_global % 2)
        return err_set(e, E_ARG, "%s: a head size is odd", what);
    if (s->n_centroids && s->n_vocab % s->n_centroids)
        return err_set(e, E_ARG,
                       "%s: %" PRId32 " tokens do not make %" PRId32 " clusters of equal size",
                       what, s->n_vocab, s->n_centroids);
    const shape_real real[] = {
        {"rotation base of global layers", s->theta, THETA_MIN, THETA_MAX},
        {"rotation base of window layers", s->theta_swa, THETA_MIN, THETA_MAX},
        {"rotating part of global heads", s->rotary_part, 1e-6, 1},
        {"factor of rotation", s->rope_factor, 1e-6, 1e6},
        {"epsilon of norms", s->eps, EPS_MIN, 1}};
    return shape_check_reals(real, sizeof real / sizeof *real, what, e);
}

/* ---- Tensors ------------------------------------------------------------------------------- */

/* Sizes from Q on differ between layers. */
typedef enum { NONE, D, D_T, D_T2, FF, VOCAB, CENTROIDS, HALF_G, ONE, Q, HD } dim;

typedef struct {
    const char *gguf, *old; /* old NULL: the same */
    const char *hf;
    tensor_role role;
    bool ordered; /* only with a head of clusters */
    dim ne[2];
} tensor_row;

static const tensor_row of_model[] = {
    {"token_embd.weight", NULL, "model.embed_tokens.weight", ROLE_EMBD, false, {D, VOCAB}},
    {"output_norm.weight", NULL, "model.norm.weight", ROLE_NORM, false, {D}},
    {"rope_freqs.weight", NULL, "", ROLE_ROPE_FACTORS, false, {HALF_G}},
    {"nextn.pre_projection.weight",
     "mtp.pre_projection.weight",
     "pre_projection.weight",
     ROLE_MATRIX,
     false,
     {D_T2, D}},
    {"nextn.post_projection.weight",
     "mtp.post_projection.weight",
     "post_projection.weight",
     ROLE_MATRIX,
     false,
     {D, D_T}},
    {"masked_embd_centroids.weight",
     "mtp.centroids.weight",
     "masked_embedding.centroids.weight",
     ROLE_EIGHT_BITS,
     true,
     {D, CENTROIDS}},
    {"masked_embd_ordering",
     "mtp.token_ordering.weight",
     "masked_embedding.token_ordering",
     ROLE_IDS,
     true,
     {VOCAB}},
};

static const tensor_row of_layer[] = {
    {"attn_norm.weight", NULL, "input_layernorm.weight", ROLE_NORM, false, {D}},
    {"attn_q.weight", NULL, "self_attn.q_proj.weight", ROLE_MATRIX, false, {D, Q}},
    {"attn_q_norm.weight", NULL, "self_attn.q_norm.weight", ROLE_QK_NORM, false, {HD}},
    {"attn_output.weight", NULL, "self_attn.o_proj.weight", ROLE_MATRIX, false, {Q, D}},
    {"post_attention_norm.weight", NULL, "post_attention_layernorm.weight", ROLE_NORM, false, {D}},
    {"ffn_norm.weight", NULL, "pre_feedforward_layernorm.weight", ROLE_NORM, false, {D}},
    {"ffn_gate.weight", NULL, "mlp.gate_proj.weight", ROLE_MATRIX, false, {D, FF}},
    {"ffn_up.weight", NULL, "mlp.up_proj.weight", ROLE_MATRIX, false, {D, FF}},
    {"ffn_down.weight", NULL, "mlp.down_proj.weight", ROLE_FFN_DOWN, false, {FF, D}},
    {"post_ffw_norm.weight", NULL, "post_feedforward_layernorm.weight", ROLE_NORM, false, {D}},
    {"layer_output_scale.weight", NULL, "layer_scalar", ROLE_SCALE, false, {ONE}},
};

static int32_t head_dim_of(const gemma4_mtp_shape *s, int32_t il)
{
    return s->swa[il] ? s->head_dim : s->head_dim_global;
}

static uint64_t size_of(const gemma4_mtp_shape *s, int32_t il, dim d)
{
    switch (d) {
    case D:
        return (uint64_t)s->n_embd;
    case D_T:
        return (uint64_t)s->n_target_embd;
    case D_T2:
        return 2 * (uint64_t)s->n_target_embd;
    case FF:
        return (uint64_t)s->n_ff;
    case VOCAB:
        return (uint64_t)s->n_vocab;
    case CENTROIDS:
        return (uint64_t)s->n_centroids;
    case HALF_G:
        return (uint64_t)s->head_dim_global / 2;
    case Q:
        return (uint64_t)s->n_head * (uint64_t)head_dim_of(s, il);
    case HD:
        return (uint64_t)head_dim_of(s, il);
    case ONE:
    case NONE:
        break;
    }
    return 1;
}

static void describe(const gemma4_mtp_shape *s, int32_t il, const tensor_row *r, shape_tensor *t)
{
    *t = (shape_tensor){.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    if (il < 0) {
        snprintf(t->name, sizeof t->name, "%s", s->old && r->old ? r->old : r->gguf);
        snprintf(t->hf_name, sizeof t->hf_name, "%s", r->hf);
    } else {
        snprintf(t->name, sizeof t->name, "blk.%d.%s", (int)il, r->gguf);
        snprintf(t->hf_name, sizeof t->hf_name, "model.layers.%d.%s", (int)il, r->hf);
    }
    for (int i = 0; i < 2 && r->ne[i] != NONE; i++) {
        t->ne[i] = size_of(s, il < 0 ? 0 : il, r->ne[i]);
        t->n_dims = i + 1;
    }
    /* The attention scale is 1: the trained q norm contains its part of 1 / sqrt(head size). */
    if (r->role == ROLE_QK_NORM)
        t->centre = powf((float)t->ne[0], -0.25f);
}

static int32_t list(const model_shape *shape, shape_tensor *out, int32_t cap)
{
    const gemma4_mtp_shape *s = (const gemma4_mtp_shape *)shape;
    int32_t n = 0;
    shape_tensor t;
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++)
        if (!of_model[i].ordered || s->n_centroids) {
            describe(s, -1, &of_model[i], n < cap ? &out[n] : &t);
            n++;
        }
    for (int32_t il = 0; il < s->n_layer; il++)
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++, n++)
            describe(s, il, &of_layer[i], n < cap ? &out[n] : &t);
    return n;
}

/* ---- Metadata ------------------------------------------------------------------------------ */

static void put_shape(gguf_writer *w, const model_shape *shape)
{
    const gemma4_mtp_shape *s = (const gemma4_mtp_shape *)shape;
    const char *arch = s->old ? "gemma4_assistant" : "gemma4-assistant";
    char key[96];
    int32_t kv[MTP_SHAPE_LAYERS];
    const struct {
        const char *key;
        int32_t v;
        bool skip;
    } numbers[] = {
        {"block_count", s->n_layer, false},
        {"nextn_predict_layers", s->n_layer, s->old},
        {"context_length", s->n_ctx_train, false},
        {"embedding_length", s->n_embd, false},
        {s->old ? "n_embd_backbone" : "embedding_length_out", s->n_target_embd, false},
        {"feed_forward_length", s->n_ff, false},
        {"vocab_size", s->n_vocab, false},
        {"attention.head_count", s->n_head, false},
        {"attention.shared_kv_layers", s->n_layer, false},
        {"attention.key_length", s->head_dim_global, false},
        {"attention.value_length", s->head_dim_global, false},
        {"attention.key_length_swa", s->head_dim, false},
        {"attention.value_length_swa", s->head_dim, false},
        {"attention.sliding_window", s->window, false},
        {"rope.dimension_count", s->head_dim_global, false},
        {"rope.dimension_count_swa", s->head_dim, false},
        {"n_centroids", s->n_centroids, !s->n_centroids},
        {"centroid_top_k", s->centroid_top_k, !s->n_centroids},
    };
    for (int32_t il = 0; il < s->n_layer; il++)
        kv[il] = s->swa[il] ? s->n_head_kv : s->n_head_kv_global;
    gguf_put_string(w, "general.architecture", arch, strlen(arch));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!numbers[i].skip) {
            snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
            gguf_put_u32(w, key, (uint32_t)numbers[i].v);
        }
    snprintf(key, sizeof key, "%s.attention.head_count_kv", arch);
    gguf_put_i32s(w, key, kv, (uint64_t)s->n_layer);
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    gguf_put_bools(w, key, s->swa, (uint64_t)s->n_layer);
    snprintf(key, sizeof key, "%s.use_ordered_embeddings", arch);
    gguf_put_bool(w, key, s->n_centroids > 0);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_put_f32(w, key, s->eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gguf_put_f32(w, key, s->theta);
    snprintf(key, sizeof key, "%s.rope.freq_base_swa", arch);
    gguf_put_f32(w, key, s->theta_swa);
    gguf_put_string(w, "carat.draft.family", "mtp", 3);
    if (s->source[0])
        gguf_put_string(w, "carat.draft.source_sha256", s->source, strlen(s->source));
}

/* ---- The entry ----------------------------------------------------------------------------- */

static bool named(const char *size, model_shape *s)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, size)) {
            *(gemma4_mtp_shape *)s = sizes[i];
            return true;
        }
    return false;
}

static status check_shape(const model_shape *s, const char *what, err *e)
{
    return gemma4_mtp_shape_check((const gemma4_mtp_shape *)s, what, e);
}

/* The last layer of every size is global. */
static void cut_layer(model_shape *shape, int32_t n_layer)
{
    gemma4_mtp_shape *s = (gemma4_mtp_shape *)shape;
    s->n_layer = n_layer;
    s->swa[n_layer - 1] = false;
}

/* Synthetic ids: a permutation that spreads neighbours over the clusters. */
static void compute(const model_shape *shape, const shape_tensor *t, void *out)
{
    const gemma4_mtp_shape *s = (const gemma4_mtp_shape *)shape;
    float *f = out;
    int32_t *id = out, n = s->head_dim_global / 2;
    int64_t prime = s->n_vocab % 7919 ? 7919 : 1;
    if (t->role == ROLE_IDS) {
        for (int64_t i = 0; i < s->n_vocab; i++)
            id[i] = (int32_t)(i * prime % s->n_vocab);
        return;
    }
    int32_t turning = gemma4_turning_pairs(s->rotary_part, s->head_dim_global);
    for (int32_t i = 0; i < n; i++)
        f[i] = i < turning ? (float)s->rope_factor : 1e30f;
}

static bool set_dialect(model_shape *s, const char *name)
{
    ((gemma4_mtp_shape *)s)->old = !strcmp(name, "old");
    return !strcmp(name, "old") || !strcmp(name, "llama.cpp");
}

const shape_family gemma4_mtp_shapes = {
    .arch = "gemma4-assistant",
    .title = "drafter",
    .sizes = "mtp-e2b, mtp-e4b, mtp-12b, mtp-26b, mtp-31b, mtp-tiny, mtp-tiny-ordered, "
             "mtp-tiny-wide",
    .drafter = true,
    .mix = "q8_0",
    .dialects = "llama.cpp, old",
    .shape_bytes = sizeof(gemma4_mtp_shape),
    .named = named,
    .check = check_shape,
    .cut = cut_layer,
    .list = list,
    .put = put_shape,
    .compute = compute,
    .dialect = set_dialect};
