/* dflash_shapes.c - the published DFlash drafters for Gemma 4 and Laguna, their tensors, their
 * metadata.
 *
 * Each tensor has one row with its name in the three dialects. In the dialect of llama.cpp the
 * numbers of captured layers are one higher: they name the layer whose input is captured.
 *
 * The optional booleans are always written: readers differ in their defaults. No dialect has a key
 * for the default rule of causality (sliding layers causal inside the block, full layers not);
 * carat.draft.causal states it by layer.
 */
#include "model/dflash_shapes.h"
#include "model/dflash.h"
#include "model/table.h"

#include <stdio.h>
#include <string.h>

/* ---- Sizes --------------------------------------------------------------------------------- */

#define BASE                                                                                       \
    .family = &dflash_shapes, .eps = 1e-6, .theta = 1e6, .softcap = 30, .target_arch = "gemma4",   \
    .mask_id = 4
#define FULL                                                                                       \
    BASE, .n_vocab = 262144, .n_layer = 5, .n_head_kv = 8, .head_dim = 128, .block_size = 16,      \
          .window = 2048, .n_ctx_train = 262144, .swa = {1, 1, 1, 1, 0}, .n_features = 6
/* For the tiny sizes of the target with 9 layers of width 96. */
#define TINY                                                                                       \
    BASE, .n_vocab = 320, .n_layer = 3, .n_embd = 96, .n_ff = 160, .n_head = 4, .n_head_kv = 2,    \
          .head_dim = 32, .block_size = 8, .window = 16, .n_ctx_train = 8192, .n_features = 3,     \
          .n_target_layer = 9, .embed_scale = 9.797959

/* For targets that neither scale embeddings nor cap logits. */
#define BARE(arch) .family = &dflash_shapes, .eps = 1e-6, .embed_scale = 1, .target_arch = arch
#define LAGUNA BARE("laguna"), .theta = 5e5, .mask_id = 12, .laguna = true, .causal = DFLASH_YES
/* For the tiny sizes of width 64. */
#define NARROW                                                                                     \
    .n_layer = 3, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .head_dim = 32,           \
    .block_size = 8, .window = 16, .n_ctx_train = 8192, .n_features = 3

static const dflash_shape sizes[] = {
    {FULL, .name = "dflash-26b", .n_embd = 2816, .n_head = 32, .n_ff = 5632, .n_target_layer = 30,
     .feature = {1, 6, 11, 17, 22, 27}, .embed_scale = 53.06599},
    {FULL, .name = "dflash-31b", .n_embd = 5376, .n_head = 64, .n_ff = 10752, .n_target_layer = 60,
     .feature = {1, 12, 23, 35, 46, 57}, .embed_scale = 73.321205},
    {LAGUNA, .name = "dflash-laguna-xs", .n_vocab = 100352, .n_layer = 5, .n_embd = 2048,
     .n_ff = 8192, .n_head = 64, .n_head_kv = 8, .head_dim = 128, .block_size = 16, .window = 512,
     .n_ctx_train = 262144, .n_features = 5, .feature = {1, 13, 25, 33, 39}, .n_target_layer = 40,
     .swa = {1, 1, 1, 1, 1}},
    {LAGUNA, NARROW, .name = "dflash-tiny-xs", .n_vocab = 512, .n_target_layer = 4,
     .feature = {0, 2, 3}, .swa = {1, 1, 1}},
    {BARE("qwen35"), NARROW, .name = "dflash-tiny-qwen35", .theta = 1e7, .mask_id = 4,
     .n_vocab = 320, .n_target_layer = 8, .feature = {1, 3, 6}, .swa = {1, 1, 0}},
    {TINY, .name = "dflash-tiny", .feature = {1, 4, 6}, .swa = {1, 1, 0}},
    {TINY, .name = "dflash-tiny-laguna", .feature = {1, 4, 8}, .swa = {1, 1, 1}, .laguna = true,
     .causal = DFLASH_YES},
    {TINY, .name = "dflash-tiny-dspark", .feature = {1, 4, 6}, .swa = {1, 1, 0}, .markov_rank = 32,
     .confidence = true, .anchor_first = true},
    /* For the target tiny-wide: whole super-blocks of 256 fit these rows. */
    {BASE, .name = "dflash-tiny-wide", .n_vocab = 512, .n_layer = 2, .n_embd = 256, .n_ff = 512,
     .n_head = 4, .n_head_kv = 2, .head_dim = 64, .block_size = 16, .window = 32,
     .n_ctx_train = 8192, .n_features = 3, .feature = {1, 2, 3}, .n_target_layer = 6,
     .embed_scale = 16, .swa = {1, 0}},
};

/* The value of carat.draft.family. */
static const char *family_name(const dflash_shape *s)
{
    return s->laguna ? "laguna-dflash" : s->markov_rank ? "dspark" : "dflash";
}

static dflash_shape *own(const model_shape *s)
{
    return (dflash_shape *)s;
}

static int32_t is_swa(const model_shape *s, int32_t il)
{
    return own(s)->swa[il];
}

static bool has_windows(const model_shape *s)
{
    bool any = false;
    for (int32_t il = 0; il < s->n_layer; il++)
        any |= own(s)->swa[il];
    return any;
}

static int32_t feature_width(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->n_features * s->n_embd;
}

#define F(name) offsetof(dflash_shape, name)
static const table_key keys[] = {
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX,
      .how = MAY_LACK),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX, .how = TOLD),
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, DFLASH_SHAPE_LAYERS, .how = TOLD),
    K("feed_forward_length", "intermediate_size", F(n_ff), COUNT, 1, WIDTH_MAX, .how = TOLD),
    K("attention.head_count", "num_attention_heads", F(n_head), COUNT, 1, HEADS_MAX, .how = TOLD),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), COUNT, 1, HEADS_MAX,
      .how = TOLD),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX, .how = TOLD),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX, .how = TOLD),
    K("rope.dimension_count", NULL, F(head_dim), COUNT, 2, WIDTH_MAX, .how = TOLD | READ_ONLY),
    K("n_target_layers", NULL, F(n_features), COUNT, 1, DFLASH_SHAPE_FEATURES,
      .how = TOLD | READ_ONLY),
    K("n_target_features", NULL, F(n_features), COUNT, 1, (double)DFLASH_SHAPE_FEATURES *WIDTH_MAX,
      .of = feature_width, .how = TOLD | READ_ONLY),
    /* dflash_attach and read_windows read the WRITE_ONLY ones. */
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = WRITE_ONLY),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 0, CTX_MAX, .how = MAY_LACK),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .of = is_swa,
      .how = WRITE_ONLY),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1, .how = MAY_LACK,
      .value = 1e-6),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX, .how = MAY_LACK,
      .value = 1e6),
    /* put_rest writes these in the form of each dialect. */
    K("block_size", "block_size", F(block_size), COUNT, DFLASH_BLOCK_MIN, DFLASH_BLOCK_MAX,
      .how = MAY_LACK | READ_ONLY, .value = 16),
    K(NULL, "mask_token_id", F(mask_id), COUNT, 0, VOCAB_MAX, .below = F(n_vocab)),
    K(NULL, "number of captured layers", F(n_features), COUNT, 1, DFLASH_SHAPE_FEATURES),
    K(NULL, "num_target_layers", F(n_target_layer), COUNT, 0, SHAPE_LAYERS_MAX),
    K(NULL, "markov_rank", F(markov_rank), COUNT, 0, 8192),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const dflash_shape *s = own(m);
    int32_t depth = s->n_target_layer ? s->n_target_layer : SHAPE_LAYERS_MAX;
    status st = table_agree_heads(0, s->n_head, s->n_head_kv, s->head_dim, bad, what, e);
    if (st)
        return st;
    if (s->head_dim % 2)
        return err_set(e, bad, "%s: the head size %d is odd", what, s->head_dim);
    if (!s->window && has_windows(m))
        return err_set(e, bad, "%s: sliding_window is 0, and layers have a window", what);
    for (int32_t i = 0; i < s->n_features; i++)
        if (s->feature[i] < 0 || s->feature[i] >= depth ||
            (i && s->feature[i] <= s->feature[i - 1]))
            return err_set(e, bad,
                           "%s: captured layer %d is %d, expected ascending numbers below %d", what,
                           i, s->feature[i], depth);
    if (s->confidence && !s->markov_rank)
        return err_set(e, bad, "%s: a confidence head without a bigram correction", what);
    return OK;
}

/* ---- Tensors ------------------------------------------------------------------------------- */

enum { D = 1, FD, FEATURES, FF, Q, KV, HD, HEADS, VOCAB, RANK, CONF, ONE };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const dflash_shape *s = own(m);
    (void)il;
    const int64_t of[] = {[D] = s->n_embd,
                          [FD] = (int64_t)s->n_features * s->n_embd,
                          [FEATURES] = s->n_features,
                          [FF] = s->n_ff,
                          [Q] = (int64_t)s->n_head * s->head_dim,
                          [KV] = (int64_t)s->n_head_kv * s->head_dim,
                          [HD] = s->head_dim,
                          [HEADS] = s->n_head,
                          [VOCAB] = s->n_vocab,
                          [RANK] = s->markov_rank,
                          [CONF] = (int64_t)s->n_embd + (s->conf_of_state ? 0 : s->markov_rank),
                          [ONE] = 1};
    return of[d];
}

static bool is_laguna(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->laguna;
}

/* Laguna's norms of features are rows of one tensor in the dialect of llama.cpp, else a tensor
 * each. */
static bool has_norms_in_rows(const model_shape *s, int32_t il)
{
    return is_laguna(s, il) && own(s)->dialect == DFLASH_LLAMA;
}

static bool has_norms_apart(const model_shape *s, int32_t il)
{
    return is_laguna(s, il) && own(s)->dialect != DFLASH_LLAMA;
}

static bool has_markov(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->markov_rank > 0;
}

static bool has_confidence(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->confidence;
}

enum { LOOKED_UP = 1 }; /* its rows: none is multiplied by a row of unit size */
static void describe(const model_shape *s, const table_tensor *r, shape_tensor *t)
{
    (void)s;
    if (r->change == LOOKED_UP)
        t->fan_in = 1;
}

#define M(name) offsetof(dflash, name)
static const table_tensor of_model[] = {
    T_ALSO(ALSO("dflash.fc.weight", "dflash_fc.weight"), ALWAYS, M(fc), "fc.weight", "fc.weight",
           EIGHT_BITS, FD, D),
    T(has_norms_in_rows, ELSEWHERE, "enc.aux_norm.weight", "", NORM, D, FEATURES),
    {TENSOR(has_norms_apart, M(aux_norm), "dflash.aux_hidden_norm", "aux_hidden_norms", NORM, D),
     ALSO(NULL, "dflash_aux_hidden_norm"), .each = F(n_features)},
    T_ALSO(ALSO("dflash.hidden_norm.weight", "dflash_hidden_norm.weight"), ALWAYS, M(hidden_norm),
           "enc.output_norm.weight", "hidden_norm.weight", NORM, D),
    T(ALWAYS, M(out_norm), "output_norm.weight", "norm.weight", NORM, D),
    {TENSOR(has_markov, ELSEWHERE, "markov_w1.weight", "markov_head.markov_w1.weight", HALF, RANK,
            VOCAB),
     ALSO("dflash.dspark.markov.w1.weight", NULL, "dflash.dspark.markov.w1"), .change = LOOKED_UP},
    T_ALSO(ALSO("dflash.dspark.markov.w2.weight", NULL, "dflash.dspark.markov.w2"), has_markov,
           M(markov_out), "markov_w2.weight", "markov_head.markov_w2.weight", EIGHT_BITS, RANK,
           VOCAB),
    T_ALSO(ALSO("dflash.dspark.confidence.weight"), has_confidence, M(conf), "conf_proj.weight",
           "confidence_head.proj.weight", ROUTER, CONF, ONE),
    T_ALSO(ALSO("dflash.dspark.confidence.bias"), has_confidence, ELSEWHERE, "conf_proj.bias",
           "confidence_head.proj.bias", BIAS, ONE),
};

#define W(name) offsetof(dflash_layer, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T_ALSO(ALSO(NULL, "post_attention_norm.weight"), ALWAYS, W(ffn_norm), "ffn_norm.weight",
           "post_attention_layernorm.weight", NORM, D),
    T(ALWAYS, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),
    T(ALWAYS, W(wk), "attn_k.weight", "self_attn.k_proj.weight", MATRIX, D, KV),
    T(ALWAYS, W(wv), "attn_v.weight", "self_attn.v_proj.weight", ATTN_V, D, KV),
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T(ALWAYS, W(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", NORM, HD),
    T(ALWAYS, W(k_norm), "attn_k_norm.weight", "self_attn.k_norm.weight", NORM, HD),
    T(is_laguna, W(head_gate), "attn_gate.weight", "self_attn.g_proj.weight", HALF, D, HEADS),
    T_UNIT(ALWAYS),
};

/* ---- Metadata ------------------------------------------------------------------------------ */

/* general.architecture, which is the prefix of the keys too. */
static const char *arch_of(const model_shape *m, char buf[TABLE_ARCH])
{
    const dflash_shape *s = own(m);
    if (s->dialect == DFLASH_LLAMA)
        return "dflash";
    if (s->dialect == DFLASH_IK || !s->target_arch[0])
        return "dflash-draft";
    snprintf(buf, TABLE_ARCH, "%s-dflash-draft", s->target_arch);
    return buf;
}

static const char *key_of(const char *arch, const char *tail, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s.%s", arch, tail);
    return buf;
}

static void put_captured(gguf_writer *w, const dflash_shape *s, const char *arch)
{
    char key[96];
    uint32_t next[DFLASH_SHAPE_FEATURES];
    uint64_t n = (uint64_t)s->n_features;
    for (int32_t i = 0; i < s->n_features; i++)
        next[i] = (uint32_t)s->feature[i] + 1;
    if (s->dialect == DFLASH_LLAMA) {
        gguf_put_u32(w, "dflash.block_size", (uint32_t)s->block_size);
        gguf_put_u32s(w, "dflash.target_layers", next, n);
        gguf_put_u32(w, "tokenizer.ggml.mask_token_id", (uint32_t)s->mask_id);
        return;
    }
    gguf_put_u32(w, key_of(arch, "dflash.block_size", key, sizeof key), (uint32_t)s->block_size);
    gguf_put_u32(w, key_of(arch, "dflash.mask_token_id", key, sizeof key), (uint32_t)s->mask_id);
    gguf_put_i32s(w, key_of(arch, "dflash.target_layer_ids", key, sizeof key), s->feature, n);
    if (s->dialect == DFLASH_LUCEBOX)
        gguf_put_u32(w, key_of(arch, "dflash.n_target_layers", key, sizeof key),
                     (uint32_t)s->n_features);
    else
        gguf_put_u32(w, key_of(arch, "dflash.n_target_features", key, sizeof key),
                     (uint32_t)s->n_features * (uint32_t)s->n_embd);
}

/* Keys of the variants. causal: as the configuration states it, if it does. */
static void put_variant(gguf_writer *w, const dflash_shape *s, const char *arch)
{
    char key[96];
    if (s->causal != DFLASH_OPEN && s->dialect != DFLASH_LUCEBOX)
        gguf_put_bool(w, key_of(arch, "attention.causal", key, sizeof key),
                      s->causal == DFLASH_YES);
    if (s->dialect == DFLASH_LLAMA)
        gguf_put_bool(w, "dflash.sample_from_anchor", s->anchor_first);
    if (s->dialect == DFLASH_IK)
        gguf_put_bool(w, key_of(arch, "dflash.laguna", key, sizeof key), s->laguna);
    if (s->markov_rank && s->dialect == DFLASH_LUCEBOX) {
        gguf_put_bool(w, key_of(arch, "dflash.dspark.enabled", key, sizeof key), true);
        gguf_put_u32(w, key_of(arch, "dflash.dspark.markov_rank", key, sizeof key),
                     (uint32_t)s->markov_rank);
        gguf_put_u32(w, key_of(arch, "dflash.dspark.vocab_size", key, sizeof key),
                     (uint32_t)s->n_vocab);
        gguf_put_u32(w, key_of(arch, "dflash.dspark.confidence_dim", key, sizeof key),
                     s->confidence ? (uint32_t)(s->n_embd + s->markov_rank) : 0);
    } else if (s->markov_rank) {
        gguf_put_bool(w, key_of(arch, "has_confidence_head", key, sizeof key), s->confidence);
    }
}

/* carat's own keys. Other readers ignore them. */
static void put_own_keys(gguf_writer *w, const dflash_shape *s)
{
    const char *family = family_name(s);
    bool causal[DFLASH_SHAPE_LAYERS];
    for (int32_t il = 0; il < s->n_layer; il++)
        causal[il] = dflash_layer_causal(s, il);
    gguf_put_string(w, "carat.draft.family", family, strlen(family));
    gguf_put_bools(w, "carat.draft.causal", causal, (uint64_t)s->n_layer);
    gguf_put_bool(w, "carat.draft.anchor_first", s->anchor_first);
    if (s->embed_scale > 0)
        gguf_put_f32(w, "carat.draft.embed_scale", s->embed_scale);
    if (s->softcap >= 0)
        gguf_put_f32(w, "carat.draft.final_softcap", s->softcap);
    if (s->target_arch[0])
        gguf_put_string(w, "carat.draft.target_arch", s->target_arch, strlen(s->target_arch));
    if (s->n_target_layer)
        gguf_put_u32(w, "carat.draft.target_layers", (uint32_t)s->n_target_layer);
    if (s->source[0])
        gguf_put_string(w, "carat.draft.source_sha256", s->source, strlen(s->source));
}

static void put_rest(gguf_writer *w, const char *arch, const model_shape *m)
{
    put_captured(w, own(m), arch);
    put_variant(w, own(m), arch);
    put_own_keys(w, own(m));
}

/* ---- The entry ---- */

/* The last layer keeps its kind: in the published drafters it is the only full one. */
static void cut_layer(model_shape *shape, int32_t n_layer)
{
    dflash_shape *s = (dflash_shape *)shape;
    s->swa[n_layer - 1] = s->swa[s->n_layer - 1];
    s->n_layer = n_layer;
}

static bool set_dialect(model_shape *shape, const char *name)
{
    static const char *const names[] = {"llama.cpp", "lucebox", "ik"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(names[i], name)) {
            ((dflash_shape *)shape)->dialect = (dflash_dialect)i;
            return true;
        }
    return false;
}

static const family_table rows = {TABLE_ROWS,           .dim = dim,      .agree = agree,
                                  .arch = arch_of,      .put = put_rest, .describe = describe,
                                  .dialect = F(dialect)};

const shape_family dflash_shapes = {
    TABLE_HOOKS(dflash_shape, rows),
    .arch = "dflash",
    .title = "drafter",
    .sizes = "dflash-26b, dflash-31b, dflash-laguna-xs, dflash-tiny, dflash-tiny-laguna, "
             "dflash-tiny-xs, dflash-tiny-qwen35, dflash-tiny-dspark, dflash-tiny-wide",
    .drafter = true,
    .mix = "q8_0",
    .dialects = "llama.cpp, lucebox, ik",
    .cut = cut_layer,
    .dialect = set_dialect};
