/* qwen3_shapes.c - the published sizes of Qwen3 dense, their tensors in file order, their metadata.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. The test of this file compares
 * tensor counts and parameters with the published ones.
 */
#include "model/qwen3_shapes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define COMMON                                                                                     \
    .family = &qwen3_shapes, .head_dim = 128, .n_vocab = 151936, .n_ctx_train = 40960,             \
    .eps = 1e-6, .theta = 1e6

static const qwen3_shape sizes[] = {
    {COMMON, .name = "qwen3-0.6b", .n_layer = 28, .n_embd = 1024, .n_ff = 3072, .n_head = 16,
     .n_head_kv = 8, .tied = true},
    {COMMON, .name = "qwen3-1.7b", .n_layer = 28, .n_embd = 2048, .n_ff = 6144, .n_head = 16,
     .n_head_kv = 8, .tied = true},
    {COMMON, .name = "qwen3-4b", .n_layer = 36, .n_embd = 2560, .n_ff = 9728, .n_head = 32,
     .n_head_kv = 8, .tied = true},
    {COMMON, .name = "qwen3-8b", .n_layer = 36, .n_embd = 4096, .n_ff = 12288, .n_head = 32,
     .n_head_kv = 8},
    {COMMON, .name = "qwen3-14b", .n_layer = 40, .n_embd = 5120, .n_ff = 17408, .n_head = 40,
     .n_head_kv = 8},
    {COMMON, .name = "qwen3-32b", .n_layer = 64, .n_embd = 5120, .n_ff = 25600, .n_head = 64,
     .n_head_kv = 8},
    /* Heads are wider than n_embd / n_head, as in the 0.6B. */
    {.family = &qwen3_shapes,
     .name = "tiny-qwen3",
     .n_layer = 4,
     .n_embd = 64,
     .n_vocab = 512,
     .n_ff = 96,
     .n_head = 4,
     .n_head_kv = 2,
     .head_dim = 32,
     .n_ctx_train = 8192,
     .tied = true,
     .eps = 1e-6,
     .theta = 1e6},
};

bool qwen3_shape_named(const char *name, qwen3_shape *s)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name)) {
            *s = sizes[i];
            return true;
        }
    return false;
}

status qwen3_shape_check(const qwen3_shape *s, const char *what, err *e)
{
    enum { WIDTH_MAX = 1 << 20, VOCAB_MAX = 1 << 22 };
    const shape_range range[] = {
        {"number of layers", s->n_layer, 1, SHAPE_LAYERS_MAX},
        {"hidden size", s->n_embd, 1, WIDTH_MAX},
        {"vocabulary size", s->n_vocab, 1, VOCAB_MAX},
        {"number of heads", s->n_head, 1, 4096},
        {"number of key heads", s->n_head_kv, 1, s->n_head},
        {"head size", s->head_dim, 2, 8192},
        {"feed-forward width", s->n_ff, 1, WIDTH_MAX},
        {"number of positions", s->n_ctx_train, 1, 1 << 24},
    };
    status st = shape_check_ranges(range, sizeof range / sizeof *range, what, e);
    if (st)
        return st;
    if (s->n_head % s->n_head_kv)
        return err_set(e, E_ARG, "%s: %" PRId32 " heads do not share %" PRId32 " key heads evenly",
                       what, s->n_head, s->n_head_kv);
    if (s->head_dim % 2)
        return err_set(e, E_ARG, "%s: the head size %" PRId32 " is odd", what, s->head_dim);
    const shape_real real[] = {{"rotation base", s->theta, SHAPE_THETA_MIN, SHAPE_THETA_MAX},
                               {"epsilon of norms", s->eps, SHAPE_EPS_MIN, 1}};
    st = shape_check_reals(real, sizeof real / sizeof *real, what, e);
    return st ? st : yarn_shape_check(&s->yarn, what, e);
}

/* ---- Tensors ---- */

typedef enum dim { NONE, D, VOCAB, Q, KV, HD, FF } dim;

typedef struct tensor_row {
    const char *gguf, *hf;
    tensor_role role;
    dim ne[2];
} tensor_row;

static const tensor_row of_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", ROLE_NORM, {D}},
    {"attn_q.weight", "self_attn.q_proj.weight", ROLE_MATRIX, {D, Q}},
    {"attn_k.weight", "self_attn.k_proj.weight", ROLE_MATRIX, {D, KV}},
    {"attn_v.weight", "self_attn.v_proj.weight", ROLE_ATTN_V, {D, KV}},
    {"attn_output.weight", "self_attn.o_proj.weight", ROLE_MATRIX, {Q, D}},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", ROLE_QK_NORM, {HD}},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", ROLE_QK_NORM, {HD}},
    {"ffn_norm.weight", "post_attention_layernorm.weight", ROLE_NORM, {D}},
    {"ffn_gate.weight", "mlp.gate_proj.weight", ROLE_MATRIX, {D, FF}},
    {"ffn_up.weight", "mlp.up_proj.weight", ROLE_MATRIX, {D, FF}},
    {"ffn_down.weight", "mlp.down_proj.weight", ROLE_FFN_DOWN, {FF, D}},
};

static uint64_t size_of(const qwen3_shape *s, dim d)
{
    const int32_t of[] = {[NONE] = 1,
                          [D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = s->n_head * s->head_dim,
                          [KV] = s->n_head_kv * s->head_dim,
                          [HD] = s->head_dim,
                          [FF] = s->n_ff};
    return (uint64_t)of[d];
}

static shape_tensor describe(const qwen3_shape *s, int32_t il, const tensor_row *r)
{
    shape_tensor t = {.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    if (il < 0) {
        snprintf(t.name, sizeof t.name, "%s", r->gguf);
        snprintf(t.hf_name, sizeof t.hf_name, "%s", r->hf);
    } else {
        snprintf(t.name, sizeof t.name, "blk.%d.%s", (int)il, r->gguf);
        snprintf(t.hf_name, sizeof t.hf_name, "layers.%d.%s", (int)il, r->hf);
    }
    for (int i = 0; i < 2 && r->ne[i] != NONE; i++) {
        t.ne[i] = size_of(s, r->ne[i]);
        t.n_dims = i + 1;
    }
    return t;
}

static int32_t list(const model_shape *shape, shape_tensor *out, int32_t cap)
{
    const qwen3_shape *s = (const qwen3_shape *)shape;
    /* Beside a head of its own the embedding is one more matrix. */
    const tensor_row of_model[] = {
        {"token_embd.weight", "embed_tokens.weight", s->tied ? ROLE_EMBD : ROLE_MATRIX, {D, VOCAB}},
        {"output_norm.weight", "norm.weight", ROLE_NORM, {D}},
        {"output.weight", "", ROLE_EMBD, {D, VOCAB}},
    };
    int32_t n = 0, n_model = s->tied ? 2 : 3;
    for (int32_t i = 0; i < n_model; i++, n++)
        if (n < cap)
            out[n] = describe(s, -1, &of_model[i]);
    for (int32_t il = 0; il < s->n_layer; il++)
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++, n++)
            if (n < cap)
                out[n] = describe(s, il, &of_layer[i]);
    return n;
}

/* ---- Metadata ---- */

/* Readers multiply the key attn_factor by 1 + 0.1 ln factor. */
static double attn_factor(const yarn_shape *y)
{
    return y->magnitude != 0 ? y->magnitude / (1 + 0.1 * log(y->factor)) : 1;
}

status yarn_shape_check(const yarn_shape *y, const char *what, err *e)
{
    const shape_range range[] = {{"trained context of YaRN", y->n_ctx, 1, 1 << 24}};
    const shape_real real[] = {{"factor of YaRN", y->factor, 1, 1e6},
                               {"beta_fast of YaRN", y->beta_fast, 1e-3, 1e6},
                               {"beta_slow of YaRN", y->beta_slow, 1e-3, 1e6},
                               {"attention factor of YaRN", attn_factor(y), 1e-3, 1e3}};
    if (y->factor == 0)
        return OK;
    status st = shape_check_ranges(range, 1, what, e);
    return st ? st : shape_check_reals(real, sizeof real / sizeof *real, what, e);
}

void put_yarn_shape(gguf_writer *w, const char *arch, const yarn_shape *y)
{
    char key[96];
#define KEY(tail) (snprintf(key, sizeof key, "%s.rope.scaling." tail, arch), key)
    if (y->factor == 0)
        return;
    gguf_put_string(w, KEY("type"), "yarn", 4);
    gguf_put_f32(w, KEY("factor"), y->factor);
    gguf_put_u32(w, KEY("original_context_length"), (uint32_t)y->n_ctx);
    gguf_put_f32(w, KEY("yarn_beta_fast"), y->beta_fast);
    gguf_put_f32(w, KEY("yarn_beta_slow"), y->beta_slow);
    if (y->magnitude != 0)
        gguf_put_f32(w, KEY("attn_factor"), (float)attn_factor(y));
#undef KEY
}

static void put_shape(gguf_writer *w, const model_shape *shape)
{
    const qwen3_shape *s = (const qwen3_shape *)shape;
    gguf_put_string(w, "general.architecture", "qwen3", 5);
    gguf_put_u32(w, "qwen3.block_count", (uint32_t)s->n_layer);
    gguf_put_u32(w, "qwen3.context_length", (uint32_t)s->n_ctx_train);
    gguf_put_u32(w, "qwen3.embedding_length", (uint32_t)s->n_embd);
    gguf_put_u32(w, "qwen3.feed_forward_length", (uint32_t)s->n_ff);
    gguf_put_u32(w, "qwen3.attention.head_count", (uint32_t)s->n_head);
    gguf_put_u32(w, "qwen3.attention.head_count_kv", (uint32_t)s->n_head_kv);
    gguf_put_u32(w, "qwen3.attention.key_length", (uint32_t)s->head_dim);
    gguf_put_u32(w, "qwen3.attention.value_length", (uint32_t)s->head_dim);
    gguf_put_f32(w, "qwen3.attention.layer_norm_rms_epsilon", s->eps);
    gguf_put_f32(w, "qwen3.rope.freq_base", s->theta);
    put_yarn_shape(w, "qwen3", &s->yarn);
}

/* ---- The entry ---- */

static bool named(const char *size, model_shape *s)
{
    return qwen3_shape_named(size, (qwen3_shape *)s);
}

static status check_shape(const model_shape *s, const char *what, err *e)
{
    return qwen3_shape_check((const qwen3_shape *)s, what, e);
}

static void cut_layers(model_shape *s, int32_t n_layer)
{
    s->n_layer = n_layer;
}

const shape_family qwen3_shapes = {
    .arch = "qwen3",
    .title = "qwen",
    .sizes = "qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, tiny-qwen3",
    .mix = "q4_k_m",
    .shape_bytes = sizeof(qwen3_shape),
    .named = named,
    .check = check_shape,
    .cut = cut_layers,
    .list = list,
    .put = put_shape};
