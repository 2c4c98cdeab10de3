/* dflash_shapes.c - the published DFlash drafters for Gemma 4 and Laguna, their tensors, their
 * metadata.
 *
 * Each tensor has one table row with its name in the three dialects. In the dialect of llama.cpp
 * the numbers of captured layers are one higher: they name the layer whose input is captured.
 *
 * The optional booleans are always written: readers differ in their defaults. No dialect has a key
 * for the default rule of causality (sliding layers causal inside the block, full layers not);
 * carat.draft.causal states it by layer.
 */
#include "model/dflash_shapes.h"
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

#define F(name) offsetof(dflash_shape, name)
static const table_key keys[] = {
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, DFLASH_SHAPE_LAYERS),
    K("feed_forward_length", "intermediate_size", F(n_ff), COUNT, 1, WIDTH_MAX),
    K("attention.head_count", "num_attention_heads", F(n_head), COUNT, 1, HEADS_MAX),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), COUNT, 1, HEADS_MAX),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 0, CTX_MAX),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .of = is_swa),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX),
    /* put_rest writes these in the form of each dialect. */
    K(NULL, "block_size", F(block_size), COUNT, 2, 64),
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

typedef enum { NONE, D, FD, FEATURES, FF, Q, KV, HD, HEADS, VOCAB, RANK, D_RANK, ONE } dim;

typedef enum { EVERYWHERE, IF_LAGUNA, IF_AUX_ROWS, IF_MARKOV, IF_CONFIDENCE } condition;

typedef struct {
    const char *gguf[3]; /* by dialect */
    const char *hf;
    tensor_role role;
    condition when;
    dim ne[2];
} tensor_row;

static const tensor_row of_model[] = {
    {{"fc.weight", "dflash.fc.weight", "dflash_fc.weight"},
     "fc.weight",
     ROLE_EIGHT_BITS,
     EVERYWHERE,
     {FD, D}},
    {{"enc.aux_norm.weight", "", ""}, "", ROLE_NORM, IF_LAGUNA, {D, FEATURES}},
    {{"", "dflash.aux_hidden_norm", "dflash_aux_hidden_norm"},
     "aux_hidden_norms",
     ROLE_NORM,
     IF_AUX_ROWS,
     {D}},
    {{"enc.output_norm.weight", "dflash.hidden_norm.weight", "dflash_hidden_norm.weight"},
     "hidden_norm.weight",
     ROLE_NORM,
     EVERYWHERE,
     {D}},
    {{"output_norm.weight", "output_norm.weight", "output_norm.weight"},
     "norm.weight",
     ROLE_NORM,
     EVERYWHERE,
     {D}},
    {{"markov_w1.weight", "dflash.dspark.markov.w1.weight", "markov_w1.weight"},
     "markov_head.markov_w1.weight",
     ROLE_HALF,
     IF_MARKOV,
     {RANK, VOCAB}},
    {{"markov_w2.weight", "dflash.dspark.markov.w2.weight", "markov_w2.weight"},
     "markov_head.markov_w2.weight",
     ROLE_EIGHT_BITS,
     IF_MARKOV,
     {RANK, VOCAB}},
    {{"conf_proj.weight", "dflash.dspark.confidence.weight", "conf_proj.weight"},
     "confidence_head.proj.weight",
     ROLE_ROUTER,
     IF_CONFIDENCE,
     {D_RANK, ONE}},
    {{"conf_proj.bias", "dflash.dspark.confidence.bias", "conf_proj.bias"},
     "confidence_head.proj.bias",
     ROLE_BIAS,
     IF_CONFIDENCE,
     {ONE}},
};

#define ALL_THREE(name)                                                                            \
    {                                                                                              \
        name, name, name                                                                           \
    }
static const tensor_row of_layer[] = {
    {ALL_THREE("attn_norm.weight"), "input_layernorm.weight", ROLE_NORM, EVERYWHERE, {D}},
    {{"ffn_norm.weight", "ffn_norm.weight", "post_attention_norm.weight"},
     "post_attention_layernorm.weight",
     ROLE_NORM,
     EVERYWHERE,
     {D}},
    {ALL_THREE("attn_q.weight"), "self_attn.q_proj.weight", ROLE_MATRIX, EVERYWHERE, {D, Q}},
    {ALL_THREE("attn_k.weight"), "self_attn.k_proj.weight", ROLE_MATRIX, EVERYWHERE, {D, KV}},
    {ALL_THREE("attn_v.weight"), "self_attn.v_proj.weight", ROLE_ATTN_V, EVERYWHERE, {D, KV}},
    {ALL_THREE("attn_output.weight"), "self_attn.o_proj.weight", ROLE_MATRIX, EVERYWHERE, {Q, D}},
    {ALL_THREE("attn_q_norm.weight"), "self_attn.q_norm.weight", ROLE_NORM, EVERYWHERE, {HD}},
    {ALL_THREE("attn_k_norm.weight"), "self_attn.k_norm.weight", ROLE_NORM, EVERYWHERE, {HD}},
    {ALL_THREE("attn_gate.weight"), "self_attn.g_proj.weight", ROLE_HALF, IF_LAGUNA, {D, HEADS}},
    {ALL_THREE("ffn_gate.weight"), "mlp.gate_proj.weight", ROLE_MATRIX, EVERYWHERE, {D, FF}},
    {ALL_THREE("ffn_up.weight"), "mlp.up_proj.weight", ROLE_MATRIX, EVERYWHERE, {D, FF}},
    {ALL_THREE("ffn_down.weight"), "mlp.down_proj.weight", ROLE_FFN_DOWN, EVERYWHERE, {FF, D}},
};

static uint64_t size_of(const dflash_shape *s, dim d)
{
    switch (d) {
    case D:
        return (uint64_t)s->n_embd;
    case FD:
        return (uint64_t)s->n_features * (uint64_t)s->n_embd;
    case FEATURES:
        return (uint64_t)s->n_features;
    case FF:
        return (uint64_t)s->n_ff;
    case Q:
        return (uint64_t)s->n_head * (uint64_t)s->head_dim;
    case KV:
        return (uint64_t)s->n_head_kv * (uint64_t)s->head_dim;
    case HD:
        return (uint64_t)s->head_dim;
    case HEADS:
        return (uint64_t)s->n_head;
    case VOCAB:
        return (uint64_t)s->n_vocab;
    case RANK:
        return (uint64_t)s->markov_rank;
    case D_RANK:
        return (uint64_t)s->n_embd + (uint64_t)s->markov_rank;
    case ONE:
    case NONE:
        break;
    }
    return 1;
}

/* How often a row of the table occurs: aux norms are a tensor each in two dialects. */
static int32_t copies(const dflash_shape *s, const tensor_row *r)
{
    switch (r->when) {
    case IF_LAGUNA:
        return s->laguna && r->gguf[s->dialect][0];
    case IF_AUX_ROWS:
        return s->laguna && s->dialect != DFLASH_LLAMA ? s->n_features : 0;
    case IF_MARKOV:
        return s->markov_rank > 0;
    case IF_CONFIDENCE:
        return s->confidence;
    case EVERYWHERE:
        break;
    }
    return 1;
}

static void describe(const dflash_shape *s, int32_t il, int32_t copy, const tensor_row *r,
                     shape_tensor *t)
{
    *t = (shape_tensor){.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    const char *name = r->gguf[s->dialect];
    if (il >= 0) {
        snprintf(t->name, sizeof t->name, "blk.%d.%s", (int)il, name);
        snprintf(t->hf_name, sizeof t->hf_name, "layers.%d.%s", (int)il, r->hf);
    } else if (r->when == IF_AUX_ROWS) {
        snprintf(t->name, sizeof t->name, "%s.%d.weight", name, (int)copy);
        snprintf(t->hf_name, sizeof t->hf_name, "%s.%d.weight", r->hf, (int)copy);
    } else {
        snprintf(t->name, sizeof t->name, "%s", name);
        snprintf(t->hf_name, sizeof t->hf_name, "%s", r->hf);
    }
    for (int i = 0; i < 2 && r->ne[i] != NONE; i++) {
        t->ne[i] = size_of(s, r->ne[i]);
        t->n_dims = i + 1;
    }
    if (r->when == IF_MARKOV && r->role == ROLE_HALF)
        t->fan_in = 1; /* rows are looked up, not multiplied by a row of unit size */
}

static int32_t list_dialect(const model_shape *shape, shape_tensor *out, int32_t cap)
{
    const dflash_shape *s = (const dflash_shape *)shape;
    int32_t n = 0;
    shape_tensor t;
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++)
        for (int32_t k = 0; k < copies(s, &of_model[i]); k++, n++)
            describe(s, -1, k, &of_model[i], n < cap ? &out[n] : &t);
    for (int32_t il = 0; il < s->n_layer; il++)
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++)
            for (int32_t k = 0; k < copies(s, &of_layer[i]); k++, n++)
                describe(s, il, k, &of_layer[i], n < cap ? &out[n] : &t);
    return n;
}

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

/* Names of tensors differ by dialect, and some occur once per captured layer: list_dialect lists
 * them, and dflash_bind.c binds them. */
static const family_table rows = {.sizes = sizes,
                                  .n_sizes = sizeof sizes / sizeof *sizes,
                                  .keys = keys,
                                  .n_keys = sizeof keys / sizeof *keys,
                                  .agree = agree,
                                  .arch = arch_of,
                                  .put = put_rest};

const shape_family dflash_shapes = {
    .arch = "dflash",
    .title = "drafter",
    .sizes = "dflash-26b, dflash-31b, dflash-laguna-xs, dflash-tiny, dflash-tiny-laguna, "
             "dflash-tiny-xs, dflash-tiny-qwen35, dflash-tiny-dspark, dflash-tiny-wide",
    .drafter = true,
    .mix = "q8_0",
    .dialects = "llama.cpp, lucebox, ik",
    .table = &rows,
    .shape_bytes = sizeof(dflash_shape),
    .named = table_named,
    .check = table_check,
    .cut = cut_layer,
    .list = list_dialect,
    .put = table_put,
    .dialect = set_dialect};
