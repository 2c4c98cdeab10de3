/* gemma4_mtp_shapes.c - the published MTP assistants, their tensors in file order, their metadata.
 *
 * Names are llama.cpp's, with those of the first files beside them. The head of the assistants for
 * E2B and E4B sorts the tokens into clusters: it multiplies only the rows of the clusters whose
 * centroids come closest. The tensor masked_embd_ordering lists the tokens cluster by cluster.
 */
#include "model/gemma4_mtp_shapes.h"
#include "model/gemma4_shapes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Sizes ---- */

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

static const gemma4_mtp_shape *own(const model_shape *s)
{
    return (const gemma4_mtp_shape *)s;
}

/* ---- Keys ---- */

static int32_t is_swa(const model_shape *s, int32_t il)
{
    return own(s)->swa[il];
}

static int32_t n_head_kv_of(const model_shape *s, int32_t il)
{
    return is_swa(s, il) ? own(s)->n_head_kv : own(s)->n_head_kv_global;
}

static int32_t is_ordered(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->n_centroids > 0;
}

static bool is_old(const model_shape *s)
{
    return own(s)->old;
}

static bool is_new(const model_shape *s)
{
    return !is_old(s);
}

#define F(name) offsetof(gemma4_mtp_shape, name)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, MTP_SHAPE_LAYERS),
    K("nextn_predict_layers", NULL, F(n_layer), COUNT, 1, MTP_SHAPE_LAYERS, .when = is_new),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("n_embd_backbone", "backbone_hidden_size", F(n_target_embd), COUNT, 1, WIDTH_MAX,
      .when = is_old),
    K("embedding_length_out", "backbone_hidden_size", F(n_target_embd), COUNT, 1, WIDTH_MAX,
      .when = is_new),
    K("feed_forward_length", "intermediate_size", F(n_ff), COUNT, 1, WIDTH_MAX),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX),
    K("attention.head_count", "num_attention_heads", F(n_head), COUNT, 1, HEADS_MAX),
    K("attention.shared_kv_layers", NULL, F(n_layer), COUNT, 1, MTP_SHAPE_LAYERS),
    K("attention.key_length", "global_head_dim", F(head_dim_global), COUNT, 2, WIDTH_MAX),
    K("attention.value_length", NULL, F(head_dim_global), COUNT, 2, WIDTH_MAX),
    K("attention.key_length_swa", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.value_length_swa", NULL, F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 1, CTX_MAX),
    K("rope.dimension_count", NULL, F(head_dim_global), COUNT, 2, WIDTH_MAX),
    K("rope.dimension_count_swa", NULL, F(head_dim), COUNT, 2, WIDTH_MAX),
    K("n_centroids", "num_centroids", F(n_centroids), COUNT, 0, VOCAB_MAX, .how = OMIT_ZERO,
      .upto = F(n_vocab)),
    K("centroid_top_k", "centroid_intermediate_top_k", F(centroid_top_k), COUNT, 0, VOCAB_MAX,
      .how = OMIT_ZERO, .upto = F(n_centroids)),
    K(NULL, "num_key_value_heads", F(n_head_kv), COUNT, 1, HEADS_MAX, .upto = F(n_head)),
    K(NULL, "num_global_key_value_heads", F(n_head_kv_global), COUNT, 1, HEADS_MAX,
      .upto = F(n_head)),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), LIST, 1, HEADS_MAX,
      .of = n_head_kv_of),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .of = is_swa),
    K("use_ordered_embeddings", NULL, F(n_centroids), FLAG, 0, 1, .of = is_ordered),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX),
    K("rope.freq_base_swa", "rope_theta", F(theta_swa), REAL, THETA_MIN, THETA_MAX),
    K(NULL, "partial_rotary_factor", F(rotary_part), REAL, 1e-6, 1),
    K(NULL, "factor", F(rope_factor), REAL, 1e-6, 1e6),
};

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    const char *source = own(m)->source;
    (void)arch;
    gguf_put_string(w, "carat.draft.family", "mtp", 3);
    if (*source)
        gguf_put_string(w, "carat.draft.source_sha256", source, strlen(source));
}

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma4_mtp_shape *s = own(m);
    if (s->n_head % s->n_head_kv || s->n_head % s->n_head_kv_global)
        return err_set(e, bad, "%s: %d heads do not share %d or %d key heads evenly", what,
                       s->n_head, s->n_head_kv, s->n_head_kv_global);
    if (s->head_dim % 2 || s->head_dim_global % 2)
        return err_set(e, bad, "%s: head sizes %d and %d: expected even numbers", what,
                       s->head_dim_global, s->head_dim);
    if (s->n_centroids && (s->n_vocab % s->n_centroids || !s->centroid_top_k))
        return err_set(e, bad,
                       "%s: %d tokens do not make %d clusters of equal size, %d of them used", what,
                       s->n_vocab, s->n_centroids, s->centroid_top_k);
    return OK;
}

/* ---- Tensors ---- */

enum { D = 1, D_T, D_T2, FF, VOCAB, CENTROIDS, HALF_G, ONE, Q, HD };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma4_mtp_shape *s = own(m);
    int32_t hd = is_swa(m, il < 0 ? 0 : il) ? s->head_dim : s->head_dim_global;
    const int64_t of[] = {[D] = s->n_embd,
                          [D_T] = s->n_target_embd,
                          [D_T2] = 2 * (int64_t)s->n_target_embd,
                          [FF] = s->n_ff,
                          [VOCAB] = s->n_vocab,
                          [CENTROIDS] = s->n_centroids,
                          [HALF_G] = s->head_dim_global / 2,
                          [ONE] = 1,
                          [Q] = (int64_t)s->n_head * hd,
                          [HD] = hd};
    return of[d];
}

static bool if_old(const model_shape *s, int32_t il)
{
    (void)il;
    return is_old(s);
}

static bool if_new(const model_shape *s, int32_t il)
{
    return !if_old(s, il);
}

static bool if_ordered(const model_shape *s, int32_t il)
{
    return is_ordered(s, il) && is_new(s);
}

static bool if_ordered_old(const model_shape *s, int32_t il)
{
    return is_ordered(s, il) && is_old(s);
}

/* Readers bind them by the names of the dialect that a file has: gemma4_mtp_bind.c. */
#define R(when, ...) T(when, ELSEWHERE, __VA_ARGS__)
static const table_tensor of_model[] = {
    R(ALWAYS, "token_embd.weight", "model.embed_tokens.weight", EMBD, D, VOCAB),
    R(ALWAYS, "output_norm.weight", "model.norm.weight", NORM, D),
    R(ALWAYS, "rope_freqs.weight", "", ROPE_FACTORS, HALF_G),
    R(if_new, "nextn.pre_projection.weight", "pre_projection.weight", MATRIX, D_T2, D),
    R(if_old, "mtp.pre_projection.weight", "pre_projection.weight", MATRIX, D_T2, D),
    R(if_new, "nextn.post_projection.weight", "post_projection.weight", MATRIX, D, D_T),
    R(if_old, "mtp.post_projection.weight", "post_projection.weight", MATRIX, D, D_T),
    R(if_ordered, "masked_embd_centroids.weight", "masked_embedding.centroids.weight", EIGHT_BITS,
      D, CENTROIDS),
    R(if_ordered_old, "mtp.centroids.weight", "masked_embedding.centroids.weight", EIGHT_BITS, D,
      CENTROIDS),
    R(if_ordered, "masked_embd_ordering", "masked_embedding.token_ordering", IDS, VOCAB),
    R(if_ordered_old, "mtp.token_ordering.weight", "masked_embedding.token_ordering", IDS, VOCAB),
};

static const table_tensor of_layer[] = {
    R(ALWAYS, "attn_norm.weight", "input_layernorm.weight", NORM, D),
    R(ALWAYS, "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),
    R(ALWAYS, "attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORM, HD),
    R(ALWAYS, "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    R(ALWAYS, "post_attention_norm.weight", "post_attention_layernorm.weight", NORM, D),
    R(ALWAYS, "ffn_norm.weight", "pre_feedforward_layernorm.weight", NORM, D),
    R(ALWAYS, "ffn_gate.weight", "mlp.gate_proj.weight", MATRIX, D, FF),
    R(ALWAYS, "ffn_up.weight", "mlp.up_proj.weight", MATRIX, D, FF),
    R(ALWAYS, "ffn_down.weight", "mlp.down_proj.weight", FFN_DOWN, FF, D),
    R(ALWAYS, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", NORM, D),
    R(ALWAYS, "layer_output_scale.weight", "layer_scalar", SCALE, ONE),
};

static void describe(const model_shape *s, const table_tensor *r, shape_tensor *t)
{
    (void)s;
    if (t->layer >= 0)
        snprintf(t->hf_name, sizeof t->hf_name, "model.layers.%d.%s", (int)t->layer, r->hf);
    /* The attention scale is 1: the trained q norm contains its part of 1 / sqrt(head size). */
    if (r->role == ROLE_QK_NORM)
        t->centre = powf((float)t->ne[0], -0.25f);
}

static const char *arch_of(const model_shape *s, char buf[TABLE_ARCH])
{
    (void)buf;
    return is_old(s) ? "gemma4_assistant" : "gemma4-assistant";
}

/* ---- The entry ---- */

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

static const family_table rows = {TABLE_ROWS,      .dim = dim,          .agree = agree,
                                  .arch = arch_of, .put = put_own_keys, .describe = describe};

const shape_family gemma4_mtp_shapes = {
    TABLE_HOOKS(gemma4_mtp_shape, rows),
    .arch = "gemma4-assistant",
    .title = "drafter",
    .sizes = "mtp-e2b, mtp-e4b, mtp-12b, mtp-26b, mtp-31b, mtp-tiny, mtp-tiny-ordered, "
             "mtp-tiny-wide",
    .drafter = true,
    .mix = "q8_0",
    .dialects = "llama.cpp, old",
    .cut = cut_layer,
    .compute = compute,
    .dialect = set_dialect};
