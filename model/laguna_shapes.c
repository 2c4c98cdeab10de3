/* laguna_shapes.c - the published sizes of Laguna, their tensors in file order, their metadata.
 *
 * GGUF names are llama.cpp's; safetensors names are those of published checkpoints. The test of
 * this file compares tensor counts and parameters with the published ones.
 */
#include "model/laguna_shapes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PERIOD = 4 }; /* the first layer of each four is full */

static const laguna_shape sizes[] = {
    {.family = &laguna_shapes,
     .name = "laguna-xs",
     .n_layer = 40,
     .n_embd = 2048,
     .n_vocab = 100352,
     .n_head = 48,
     .n_head_swa = 64,
     .n_head_kv = 8,
     .head_dim = 128,
     .n_rot = 64,
     .n_rot_swa = 128,
     .window = 512,
     .n_ctx_train = 262144,
     .n_dense = 1,
     .n_ff = 8192,
     .n_expert = 256,
     .n_expert_used = 8,
     .n_ff_expert = 512,
     .n_ff_shared = 512,
     .eps = 1e-6,
     .theta = 5e5,
     .theta_swa = 1e4,
     .expert_scale = 2.5,
     .yarn = {.factor = 32, .beta_fast = 64, .beta_slow = 1, .n_ctx = 8192}},
    {.family = &laguna_shapes,
     .name = "tiny-laguna",
     .n_layer = 4,
     .n_embd = 64,
     .n_vocab = 512,
     .n_head = 6,
     .n_head_swa = 8,
     .n_head_kv = 2,
     .head_dim = 32,
     .n_rot = 16,
     .n_rot_swa = 32,
     .window = 16,
     .n_ctx_train = 8192,
     .n_dense = 1,
     .n_ff = 96,
     .n_expert = 8,
     .n_expert_used = 2,
     .n_ff_expert = 32,
     .n_ff_shared = 64,
     .eps = 1e-6,
     .theta = 5e5,
     .theta_swa = 1e4,
     .expert_scale = 2.5,
     .yarn = {.factor = 32, .beta_fast = 64, .beta_slow = 1, .n_ctx = 8192}},
};

bool laguna_shape_named(const char *name, laguna_shape *s)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(sizes[i].name, name))
            continue;
        *s = sizes[i];
        for (int32_t il = 0; il < s->n_layer; il++)
            s->swa[il] = il % PERIOD != 0;
        return true;
    }
    return false;
}

status laguna_shape_check(const laguna_shape *s, const char *what, err *e)
{
    enum { WIDTH_MAX = 1 << 20, VOCAB_MAX = 1 << 22 };
    int32_t moe = s->n_expert ? 1 : 0;
    const shape_range range[] = {
        {"number of layers", s->n_layer, 1, SHAPE_LAYERS_MAX},
        {"hidden size", s->n_embd, 1, WIDTH_MAX},
        {"vocabulary size", s->n_vocab, 1, VOCAB_MAX},
        {"number of heads", s->n_head, 1, 4096},
        {"number of heads of window layers", s->n_head_swa, 1, 4096},
        {"number of key heads", s->n_head_kv, 1, s->n_head},
        {"head size", s->head_dim, 2, 8192},
        {"number of rotated dims", s->n_rot, 2, s->head_dim},
        {"number of rotated dims of window layers", s->n_rot_swa, 2, s->head_dim},
        {"window", s->window, 0, 1 << 24},
        {"number of positions", s->n_ctx_train, 1, 1 << 24},
        {"number of dense layers", s->n_dense, 0, s->n_layer},
        {"feed-forward width", s->n_ff, 1, WIDTH_MAX},
        {"number of experts", s->n_expert, 0, 4096},
        {"number of experts used", s->n_expert_used, moe, s->n_expert},
        {"expert width", s->n_ff_expert, moe, WIDTH_MAX},
        {"width of the shared expert", s->n_ff_shared, moe, WIDTH_MAX},
    };
    status st = shape_check_ranges(range, sizeof range / sizeof *range, what, e);
    if (st)
        return st;
    if (s->n_head % s->n_head_kv || s->n_head_swa % s->n_head_kv)
        return err_set(e, E_ARG,
                       "%s: %" PRId32 " or %" PRId32 " heads do not share %" PRId32
                       " key heads evenly",
                       what, s->n_head, s->n_head_swa, s->n_head_kv);
    if (s->head_dim % 2 || s->n_rot % 2 || s->n_rot_swa % 2)
        return err_set(e, E_ARG, "%s: a head size or a number of rotated dims is odd", what);
    const shape_real real[] = {
        {"rotation base", s->theta, SHAPE_THETA_MIN, SHAPE_THETA_MAX},
        {"rotation base of window layers", s->theta_swa, SHAPE_THETA_MIN, SHAPE_THETA_MAX},
        {"epsilon of norms", s->eps, SHAPE_EPS_MIN, 1},
        {"scale of experts", s->expert_scale, 1e-3, 1e3}};
    st = shape_check_reals(real, sizeof real / sizeof *real, what, e);
    return st ? st : yarn_shape_check(&s->yarn, what, e);
}

/* ---- Tensors ---- */

typedef enum dim { NONE, D, VOCAB, Q, KV, HD, FF, GATES, EXPERTS, FF_EXP, FF_SHARED } dim;
typedef enum condition { ALWAYS, IF_DENSE, IF_MOE } condition;

typedef struct tensor_row {
    const char *gguf, *hf;
    tensor_role role;
    condition when;
    dim ne[3];
} tensor_row;

static const tensor_row of_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", ROLE_NORM, ALWAYS, {D}},
    {"attn_q.weight", "self_attn.q_proj.weight", ROLE_MATRIX, ALWAYS, {D, Q}},
    {"attn_k.weight", "self_attn.k_proj.weight", ROLE_MATRIX, ALWAYS, {D, KV}},
    {"attn_v.weight", "self_attn.v_proj.weight", ROLE_ATTN_V, ALWAYS, {D, KV}},
    {"attn_output.weight", "self_attn.o_proj.weight", ROLE_MATRIX, ALWAYS, {Q, D}},
    {"attn_gate.weight", "self_attn.g_proj.weight", ROLE_MATRIX, ALWAYS, {D, GATES}},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", ROLE_QK_NORM, ALWAYS, {HD}},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", ROLE_QK_NORM, ALWAYS, {HD}},
    {"ffn_norm.weight", "post_attention_layernorm.weight", ROLE_NORM, ALWAYS, {D}},
    {"ffn_gate.weight", "mlp.gate_proj.weight", ROLE_MATRIX, IF_DENSE, {D, FF}},
    {"ffn_up.weight", "mlp.up_proj.weight", ROLE_MATRIX, IF_DENSE, {D, FF}},
    {"ffn_down.weight", "mlp.down_proj.weight", ROLE_FFN_DOWN, IF_DENSE, {FF, D}},
    {"ffn_gate_inp.weight", "mlp.gate.weight", ROLE_ROUTER, IF_MOE, {D, EXPERTS}},
    {"exp_probs_b.bias", "mlp.experts.e_score_correction_bias", ROLE_BIAS, IF_MOE, {EXPERTS}},
    {"ffn_gate_exps.weight",
     "mlp.experts.*.gate_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF_EXP, EXPERTS}},
    {"ffn_up_exps.weight",
     "mlp.experts.*.up_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF_EXP, EXPERTS}},
    {"ffn_down_exps.weight",
     "mlp.experts.*.down_proj.weight",
     ROLE_DOWN_EXPERTS,
     IF_MOE,
     {FF_EXP, D, EXPERTS}},
    {"ffn_gate_shexp.weight",
     "mlp.shared_expert.gate_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF_SHARED}},
    {"ffn_up_shexp.weight",
     "mlp.shared_expert.up_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF_SHARED}},
    {"ffn_down_shexp.weight",
     "mlp.shared_expert.down_proj.weight",
     ROLE_FFN_DOWN,
     IF_MOE,
     {FF_SHARED, D}},
};

static uint64_t size_of(const laguna_shape *s, int32_t il, dim d)
{
    int32_t heads = il >= 0 && s->swa[il] ? s->n_head_swa : s->n_head;
    const int32_t of[] = {[NONE] = 1,
                          [D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = heads * s->head_dim,
                          [KV] = s->n_head_kv * s->head_dim,
                          [HD] = s->head_dim,
                          [FF] = s->n_ff,
                          [GATES] = s->gate_per_element ? heads * s->head_dim : heads,
                          [EXPERTS] = s->n_expert,
                          [FF_EXP] = s->n_ff_expert,
                          [FF_SHARED] = s->n_ff_shared};
    return (uint64_t)of[d];
}

static shape_tensor describe(const laguna_shape *s, int32_t il, const tensor_row *r)
{
    shape_tensor t = {.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    if (il < 0) {
        snprintf(t.name, sizeof t.name, "%s", r->gguf);
        snprintf(t.hf_name, sizeof t.hf_name, "%s", r->hf);
    } else {
        snprintf(t.name, sizeof t.name, "blk.%d.%s", (int)il, r->gguf);
        snprintf(t.hf_name, sizeof t.hf_name, "layers.%d.%s", (int)il, r->hf);
    }
    for (int i = 0; i < 3 && r->ne[i] != NONE; i++) {
        t.ne[i] = size_of(s, il, r->ne[i]);
        t.n_dims = i + 1;
    }
    return t;
}

static int32_t list(const model_shape *shape, shape_tensor *out, int32_t cap)
{
    const laguna_shape *s = (const laguna_shape *)shape;
    /* Beside a head of its own the embedding is one more matrix. */
    const tensor_row of_model[] = {
        {"token_embd.weight",
         "embed_tokens.weight",
         s->tied ? ROLE_EMBD : ROLE_MATRIX,
         ALWAYS,
         {D, VOCAB}},
        {"output_norm.weight", "norm.weight", ROLE_NORM, ALWAYS, {D}},
        {"output.weight", "", ROLE_EMBD, ALWAYS, {D, VOCAB}},
    };
    int32_t n = 0, n_model = s->tied ? 2 : 3;
    for (int32_t i = 0; i < n_model; i++, n++)
        if (n < cap)
            out[n] = describe(s, -1, &of_model[i]);
    for (int32_t il = 0; il < s->n_layer; il++) {
        condition kind = s->n_expert && il >= s->n_dense ? IF_MOE : IF_DENSE;
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
            if (of_layer[i].when != ALWAYS && of_layer[i].when != kind)
                continue;
            if (n < cap)
                out[n] = describe(s, il, &of_layer[i]);
            n++;
        }
    }
    return n;
}

/* ---- Metadata ---- */

static void put_shape(gguf_writer *w, const model_shape *shape)
{
    const laguna_shape *s = (const laguna_shape *)shape;
    int32_t heads[SHAPE_LAYERS_MAX];
    for (int32_t il = 0; il < s->n_layer; il++)
        heads[il] = s->swa[il] ? s->n_head_swa : s->n_head;
    gguf_put_string(w, "general.architecture", "laguna", 6);
    gguf_put_u32(w, "laguna.block_count", (uint32_t)s->n_layer);
    gguf_put_u32(w, "laguna.context_length", (uint32_t)s->n_ctx_train);
    gguf_put_u32(w, "laguna.embedding_length", (uint32_t)s->n_embd);
    gguf_put_u32(w, "laguna.feed_forward_length", (uint32_t)s->n_ff);
    gguf_put_u32(w, "laguna.vocab_size", (uint32_t)s->n_vocab);
    gguf_put_i32s(w, "laguna.attention.head_count", heads, (uint64_t)s->n_layer);
    gguf_put_u32(w, "laguna.attention.head_count_kv", (uint32_t)s->n_head_kv);
    gguf_put_u32(w, "laguna.attention.key_length", (uint32_t)s->head_dim);
    gguf_put_u32(w, "laguna.attention.value_length", (uint32_t)s->head_dim);
    gguf_put_f32(w, "laguna.attention.layer_norm_rms_epsilon", s->eps);
    gguf_put_u32(w, "laguna.attention.sliding_window", (uint32_t)s->window);
    gguf_put_bools(w, "laguna.attention.sliding_window_pattern", s->swa, (uint64_t)s->n_layer);
    gguf_put_u32(w, "laguna.rope.dimension_count", (uint32_t)s->n_rot);
    gguf_put_u32(w, "laguna.rope.dimension_count_swa", (uint32_t)s->n_rot_swa);
    gguf_put_f32(w, "laguna.rope.freq_base", s->theta);
    gguf_put_f32(w, "laguna.rope.freq_base_swa", s->theta_swa);
    put_yarn_shape(w, "laguna", &s->yarn);
    gguf_put_u32(w, "laguna.expert_count", (uint32_t)s->n_expert);
    if (!s->n_expert)
        return;
    gguf_put_u32(w, "laguna.expert_used_count", (uint32_t)s->n_expert_used);
    gguf_put_u32(w, "laguna.expert_feed_forward_length", (uint32_t)s->n_ff_expert);
    gguf_put_u32(w, "laguna.expert_shared_feed_forward_length", (uint32_t)s->n_ff_shared);
    gguf_put_u32(w, "laguna.expert_gating_func", 2); /* sigmoid */
    gguf_put_bool(w, "laguna.expert_weights_norm", true);
    gguf_put_f32(w, "laguna.expert_weights_scale", s->expert_scale);
    gguf_put_u32(w, "laguna.leading_dense_block_count", (uint32_t)s->n_dense);
}

/* ---- The entry ---- */

static bool named(const char *size, model_shape *s)
{
    return laguna_shape_named(size, (laguna_shape *)s);
}

static status check_shape(const model_shape *s, const char *what, err *e)
{
    return laguna_shape_check((const laguna_shape *)s, what, e);
}

static void cut_layers(model_shape *s, int32_t n_layer)
{
    laguna_shape *g = (laguna_shape *)s;
    g->n_layer = n_layer;
    g->n_dense = g->n_dense < n_layer ? g->n_dense : n_layer;
}

const shape_family laguna_shapes = {.arch = "laguna",
                                    .title = "poolside",
                                    .sizes = "laguna-xs, tiny-laguna",
                                    .mix = "q4_k_m",
                                    .shape_bytes = sizeof(laguna_shape),
                                    .named = named,
                                    .check = check_shape,
                                    .cut = cut_layers,
                                    .list = list,
                                    .put = put_shape};
