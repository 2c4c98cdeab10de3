/* gemma4_shapes.c - the published sizes, their tensors in file order, their metadata.
 *
 * Each tensor has one table row, with the condition under which a layer has it. GGUF names are
 * llama.cpp's; safetensors names are transformers'. The test of this file compares the tensor
 * counts with those of the published files (601, 720, 667, 658, 833).
 */
#include "model/gemma4_shapes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Sizes --------------------------------------------------------------------------------- */

/* Every period-th layer is global, as in all published patterns. Files carry the whole list. */
typedef struct {
    gemma4_shape s;
    int32_t period;
} row;

#define COMMON                                                                                     \
    .family = &gemma4_shapes, .eps = 1e-6, .theta = 1e6, .theta_swa = 1e4, .rotary_part = 0.25,    \
    .rope_factor = 1, .softcap = 30
#define FULL COMMON, .n_vocab = 262144, .head_dim = 256, .head_dim_global = 512
/* The tiny sizes keep the features of the large ones: head sizes differ between the kinds of layer,
 * the window is a few tokens long, and each kind of layer occurs more than once. */
#define TINY                                                                                       \
    COMMON, .n_vocab = 320, .n_layer = 9, .n_embd = 96, .n_ff = 160, .n_head = 4, .head_dim = 32,  \
            .head_dim_global = 64, .window = 8, .n_ctx_train = 8192
#define TINY_MOE .n_expert = 8, .n_expert_used = 3, .n_ff_expert = 48
#define TINY_PLE .double_wide = true, .n_ple = 16, .n_kv_shared = 3

static const row sizes[] = {
    {{FULL, .name = "e2b", .n_layer = 35, .n_embd = 1536, .n_head = 8, .n_head_kv = 1,
      .n_head_kv_global = 1, .n_ff = 6144, .double_wide = true, .n_ple = 256, .n_kv_shared = 20,
      .window = 512, .n_ctx_train = 131072},
     5},
    {{FULL, .name = "e4b", .n_layer = 42, .n_embd = 2560, .n_head = 8, .n_head_kv = 2,
      .n_head_kv_global = 2, .n_ff = 10240, .n_ple = 256, .n_kv_shared = 18, .window = 512,
      .n_ctx_train = 131072},
     6},
    {{FULL, .name = "12b", .n_layer = 48, .n_embd = 3840, .n_head = 16, .n_head_kv = 8,
      .n_head_kv_global = 1, .n_ff = 15360, .k_eq_v = true, .window = 1024, .n_ctx_train = 262144},
     6},
    {{FULL, .name = "26b-a4b", .n_layer = 30, .n_embd = 2816, .n_head = 16, .n_head_kv = 8,
      .n_head_kv_global = 2, .n_ff = 2112, .n_expert = 128, .n_expert_used = 8, .n_ff_expert = 704,
      .k_eq_v = true, .window = 1024, .n_ctx_train = 262144},
     6},
    {{FULL, .name = "31b", .n_layer = 60, .n_embd = 5376, .n_head = 32, .n_head_kv = 16,
      .n_head_kv_global = 4, .n_ff = 21504, .k_eq_v = true, .window = 1024, .n_ctx_train = 262144},
     6},
    {{TINY, .name = "tiny-dense", .n_head_kv = 2, .n_head_kv_global = 1, .k_eq_v = true}, 3},
    {{TINY, TINY_MOE, .name = "tiny-moe", .n_head_kv = 2, .n_head_kv_global = 1, .k_eq_v = true},
     3},
    {{TINY, TINY_PLE, .name = "tiny-ple", .n_head_kv = 1, .n_head_kv_global = 1}, 3},
    {{TINY, TINY_MOE, TINY_PLE, .name = "tiny-all", .n_head_kv = 2, .n_head_kv_global = 1,
      .k_eq_v = true},
     3},
    /* Whole super-blocks of 256 fit these rows, so that every format and fallback occurs. */
    {{COMMON, .name = "tiny-wide", .n_vocab = 512, .n_layer = 6, .n_embd = 256, .n_ff = 512,
      .n_head = 4, .n_head_kv = 2, .n_head_kv_global = 1, .head_dim = 64, .head_dim_global = 128,
      .k_eq_v = true, .n_expert = 8, .n_expert_used = 2, .n_ff_expert = 96, .window = 16,
      .n_ctx_train = 8192},
     3},
    /* Experts enough that a law of their use can be seen. */
    {{COMMON, .name = "tiny-many", .n_vocab = 2048, .n_layer = 3, .n_embd = 256, .n_ff = 64,
      .n_head = 2, .n_head_kv = 1, .n_head_kv_global = 1, .head_dim = 64, .head_dim_global = 64,
      .k_eq_v = true, .n_expert = 64, .n_expert_used = 8, .n_ff_expert = 32, .window = 64,
      .n_ctx_train = 8192},
     3},
};

bool gemma4_shape_named(const char *name, gemma4_shape *s)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(sizes[i].s.name, name))
            continue;
        *s = sizes[i].s;
        for (int32_t il = 0; il < s->n_layer; il++)
            s->swa[il] = (il + 1) % sizes[i].period != 0;
        return true;
    }
    return false;
}

status gemma4_shape_check(const gemma4_shape *s, const char *what, err *e)
{
    /* Far above every published size. A product of two is far below an overflow of int64. */
    const shape_range range[] = {
        {"number of layers", s->n_layer, 1, SHAPE_LAYERS_MAX},
        {"hidden size", s->n_embd, 1, WIDTH_MAX},
        {"vocabulary size", s->n_vocab, 1, VOCAB_MAX},
        {"number of heads", s->n_head, 1, 4096},
        {"number of key heads", s->n_head_kv, 1, s->n_head},
        {"number of key heads of global layers", s->n_head_kv_global, 1, s->n_head},
        {"head size", s->head_dim, 2, 8192},
        {"head size of global layers", s->head_dim_global, 2, 8192},
        {"feed-forward width", s->n_ff, 1, WIDTH_MAX},
        {"number of experts", s->n_expert, 0, 4096},
        {"number of experts used", s->n_expert_used, s->n_expert ? 1 : 0, s->n_expert},
        {"expert width", s->n_ff_expert, s->n_expert ? 1 : 0, WIDTH_MAX},
        {"per-layer embedding width", s->n_ple, 0, 8192},
        {"number of layers that share keys", s->n_kv_shared, 0,
         s->n_layer > 0 ? s->n_layer - 1 : 0},
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
    const shape_real real[] = {
        {"rotation base of global layers", s->theta, THETA_MIN, THETA_MAX},
        {"rotation base of window layers", s->theta_swa, THETA_MIN, THETA_MAX},
        {"rotating part of global heads", s->rotary_part, 1e-6, 1},
        {"factor of rotation", s->rope_factor, 1e-6, 1e6},
        {"epsilon of norms", s->eps, EPS_MIN, 1},
        {"soft cap", s->softcap, 0, 1e6}};
    return shape_check_reals(real, sizeof real / sizeof *real, what, e);
}

/* ---- Tensors ------------------------------------------------------------------------------- */

/* Sizes a row of the table can ask for; those from LAYER on differ between layers. */
typedef enum {
    NONE,
    D,
    VOCAB,
    PLE,
    PLES,
    EXPERTS,
    FF_EXP,
    FF_EXP2,
    ONE,
    HALF_G,
    Q,
    KV,
    HD,
    FF
} dim;

typedef enum {
    ALWAYS,
    IF_PLE,
    IF_MOE,
    IF_KEYS,  /* layers with own or shared keys; unused if shared */
    IF_VALUES /* the same, except where V is K */
} condition;

typedef struct {
    const char *gguf, *hf;
    tensor_role role;
    condition when;
    dim ne[3];
} tensor_row;

static const tensor_row of_model[] = {
    {"token_embd.weight", "embed_tokens.weight", ROLE_EMBD, ALWAYS, {D, VOCAB}},
    {"per_layer_token_embd.weight",
     "embed_tokens_per_layer.weight",
     ROLE_PLE_EMBD,
     IF_PLE,
     {PLES, VOCAB}},
    {"per_layer_model_proj.weight",
     "per_layer_model_projection.weight",
     ROLE_PLE_PROJ,
     IF_PLE,
     {D, PLES}},
    {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight", ROLE_NORM, IF_PLE, {PLE}},
    {"output_norm.weight", "norm.weight", ROLE_NORM, ALWAYS, {D}},
    {"rope_freqs.weight", "", ROLE_ROPE_FACTORS, ALWAYS, {HALF_G}},
};

static const tensor_row of_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", ROLE_NORM, ALWAYS, {D}},
    {"attn_q.weight", "self_attn.q_proj.weight", ROLE_MATRIX, ALWAYS, {D, Q}},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", ROLE_QK_NORM, ALWAYS, {HD}},
    {"attn_k.weight", "self_attn.k_proj.weight", ROLE_MATRIX, IF_KEYS, {D, KV}},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", ROLE_QK_NORM, IF_KEYS, {HD}},
    {"attn_v.weight", "self_attn.v_proj.weight", ROLE_ATTN_V, IF_VALUES, {D, KV}},
    {"attn_output.weight", "self_attn.o_proj.weight", ROLE_MATRIX, ALWAYS, {Q, D}},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", ROLE_NORM, ALWAYS, {D}},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight", ROLE_NORM, ALWAYS, {D}},
    {"ffn_gate.weight", "mlp.gate_proj.weight", ROLE_MATRIX, ALWAYS, {D, FF}},
    {"ffn_up.weight", "mlp.up_proj.weight", ROLE_MATRIX, ALWAYS, {D, FF}},
    {"ffn_down.weight", "mlp.down_proj.weight", ROLE_FFN_DOWN, ALWAYS, {FF, D}},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", ROLE_NORM, ALWAYS, {D}},
    {"ffn_gate_inp.weight", "router.proj.weight", ROLE_ROUTER, IF_MOE, {D, EXPERTS}},
    {"ffn_gate_inp.scale", "router.scale", ROLE_SCALE, IF_MOE, {D}},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj", ROLE_MATRIX, IF_MOE, {D, FF_EXP2, EXPERTS}},
    {"ffn_down_exps.weight", "experts.down_proj", ROLE_DOWN_EXPERTS, IF_MOE, {FF_EXP, D, EXPERTS}},
    {"ffn_down_exps.scale", "router.per_expert_scale", ROLE_SCALE, IF_MOE, {EXPERTS}},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", ROLE_NORM, IF_MOE, {D}},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", ROLE_NORM, IF_MOE, {D}},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", ROLE_NORM, IF_MOE, {D}},
    {"inp_gate.weight", "per_layer_input_gate.weight", ROLE_MATRIX, IF_PLE, {D, PLE}},
    {"proj.weight", "per_layer_projection.weight", ROLE_MATRIX, IF_PLE, {PLE, D}},
    {"post_norm.weight", "post_per_layer_input_norm.weight", ROLE_NORM, IF_PLE, {D}},
    {"layer_output_scale.weight", "layer_scalar", ROLE_SCALE, ALWAYS, {ONE}},
};

static uint64_t size_of(const gemma4_shape *s, int32_t il, dim d)
{
    switch (d) {
    case D:
        return (uint64_t)s->n_embd;
    case VOCAB:
        return (uint64_t)s->n_vocab;
    case PLE:
        return (uint64_t)s->n_ple;
    case PLES:
        return (uint64_t)s->n_ple * (uint64_t)s->n_layer;
    case EXPERTS:
        return (uint64_t)s->n_expert;
    case FF_EXP:
        return (uint64_t)s->n_ff_expert;
    case FF_EXP2:
        return 2 * (uint64_t)s->n_ff_expert;
    case HALF_G:
        return (uint64_t)s->head_dim_global / 2;
    case Q:
        return (uint64_t)s->n_head * (uint64_t)gemma4_head_dim(s, il);
    case KV:
        return (uint64_t)gemma4_n_head_kv(s, il) * (uint64_t)gemma4_head_dim(s, il);
    case HD:
        return (uint64_t)gemma4_head_dim(s, il);
    case FF:
        return (uint64_t)gemma4_n_ff(s, il);
    case ONE:
    case NONE:
        break;
    }
    return 1;
}

static bool has_feature(const gemma4_shape *s, int32_t il, condition when)
{
    switch (when) {
    case IF_PLE:
        return s->n_ple > 0;
    case IF_MOE:
        return s->n_expert > 0;
    case IF_VALUES:
        return !s->k_eq_v || s->swa[il];
    case IF_KEYS:
    case ALWAYS:
        break;
    }
    return true;
}

int32_t gemma4_turning_pairs(double rotary_part, int32_t head_dim)
{
    return (int32_t)(rotary_part * head_dim / 2);
}

static int32_t turning_pairs(const gemma4_shape *s)
{
    return gemma4_turning_pairs(s->rotary_part, s->head_dim_global);
}

/* Planted attention. All hidden states have a common part, the mean of their entries: embeddings
 * have one, and no layer scales it away. Rows of q and k for the last rotating pair lean along it,
 * so that this pair is large and has the same angle in every query and key. Its frequency is 2 pi
 * for 128 / density positions, so scores are those of a cosine: largest at whole turns. PEAK: that
 * score. The standard deviation of the soft max around a turn is 1 / sqrt(PEAK) radians. */
enum { BLOCK = 128, PEAK = 45 };
static void lead(const gemma4_shape *s, int32_t il, const tensor_row *r, shape_tensor *t)
{
    uint32_t size = (uint32_t)s->head_dim_global;
    bool queries = !strcmp(r->gguf, "attn_q.weight"), keys = !strcmp(r->gguf, "attn_k.weight");
    if (r->role == ROLE_EMBD || (r->role == ROLE_SCALE && r->ne[0] == ONE)) {
        t->led_period = 1;
        t->lean = 1;
    } else if (il >= 0 && !s->swa[il] && (queries || keys || r->role == ROLE_QK_NORM)) {
        t->led_period = size;
        t->led = (uint32_t)turning_pairs(s) - 1;
        t->lean = r->role == ROLE_QK_NORM ? sqrtf((float)PEAK / (float)size) : 4;
    }
}

static void describe(const gemma4_shape *s, int32_t il, const tensor_row *r, shape_tensor *t)
{
    *t = (shape_tensor){.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    if (il < 0) {
        snprintf(t->name, sizeof t->name, "%s", r->gguf);
        snprintf(t->hf_name, sizeof t->hf_name, "%s", r->hf);
    } else {
        snprintf(t->name, sizeof t->name, "blk.%d.%s", (int)il, r->gguf);
        snprintf(t->hf_name, sizeof t->hf_name, "layers.%d.%s", (int)il, r->hf);
    }
    t->unused_kv =
        (r->when == IF_KEYS || r->when == IF_VALUES) && il >= s->n_layer - s->n_kv_shared;
    t->fan_in = r->role == ROLE_PLE_EMBD ? (float)s->n_ple /* multiplied by sqrt(n_ple) when read */
                : r->role == ROLE_ROUTER ? 1 /* the input is divided by sqrt(n_embd) */
                                         : 0;
    for (int i = 0; i < 3 && r->ne[i] != NONE; i++) {
        t->ne[i] = size_of(s, il < 0 ? 0 : il, r->ne[i]); /* global tensors: no layer size */
        t->n_dims = i + 1;
    }
    if (s->density > 0)
        lead(s, il, r, t);
    /* The attention scale is 1: the trained q and k norms contain the 1 / sqrt(head size). */
    if (r->role == ROLE_QK_NORM)
        t->centre = powf((float)t->ne[0], -0.25f);
}

int32_t gemma4_list_tensors(const gemma4_shape *s, shape_tensor *out, int32_t cap)
{
    int32_t n = 0;
    shape_tensor t;
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++)
        if (has_feature(s, 0, of_model[i].when)) {
            describe(s, -1, &of_model[i], n < cap ? &out[n] : &t);
            n++;
        }
    for (int32_t il = 0; il < s->n_layer; il++)
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++)
            if (has_feature(s, il, of_layer[i].when)) {
                describe(s, il, &of_layer[i], n < cap ? &out[n] : &t);
                n++;
            }
    return n;
}

/* ---- Metadata ------------------------------------------------------------------------------ */

void gemma4_put_shape(gguf_writer *w, const gemma4_shape *s)
{
    int32_t kv[SHAPE_LAYERS_MAX], ff[SHAPE_LAYERS_MAX];
    for (int32_t il = 0; il < s->n_layer; il++) {
        kv[il] = gemma4_n_head_kv(s, il);
        ff[il] = gemma4_n_ff(s, il);
    }
    const struct {
        const char *key;
        int32_t v;
    } numbers[] = {
        {"gemma4.block_count", s->n_layer},
        {"gemma4.context_length", s->n_ctx_train},
        {"gemma4.embedding_length", s->n_embd},
        {"gemma4.embedding_length_per_layer_input", s->n_ple},
        {"gemma4.vocab_size", s->n_vocab},
        {"gemma4.attention.head_count", s->n_head},
        {"gemma4.attention.key_length", s->head_dim_global},
        {"gemma4.attention.value_length", s->head_dim_global},
        {"gemma4.attention.key_length_swa", s->head_dim},
        {"gemma4.attention.value_length_swa", s->head_dim},
        {"gemma4.attention.sliding_window", s->window},
        {"gemma4.attention.shared_kv_layers", s->n_kv_shared},
        {"gemma4.rope.dimension_count", s->head_dim_global},
        {"gemma4.rope.dimension_count_swa", s->head_dim},
    };
    gguf_put_string(w, "general.architecture", "gemma4", 6);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        gguf_put_u32(w, numbers[i].key, (uint32_t)numbers[i].v);
    /* Arrays only where layers differ: old loaders read scalars, new ones read both. */
    uint64_t n = (uint64_t)s->n_layer;
    if (s->n_head_kv != s->n_head_kv_global)
        gguf_put_i32s(w, "gemma4.attention.head_count_kv", kv, n);
    else
        gguf_put_u32(w, "gemma4.attention.head_count_kv", (uint32_t)s->n_head_kv);
    if (s->double_wide && s->n_kv_shared)
        gguf_put_i32s(w, "gemma4.feed_forward_length", ff, n);
    else
        gguf_put_u32(w, "gemma4.feed_forward_length", (uint32_t)s->n_ff);
    gguf_put_bools(w, "gemma4.attention.sliding_window_pattern", s->swa, n);
    if (s->n_expert) {
        gguf_put_u32(w, "gemma4.expert_count", (uint32_t)s->n_expert);
        gguf_put_u32(w, "gemma4.expert_used_count", (uint32_t)s->n_expert_used);
        gguf_put_u32(w, "gemma4.expert_feed_forward_length", (uint32_t)s->n_ff_expert);
    }
    gguf_put_f32(w, "gemma4.attention.layer_norm_rms_epsilon", s->eps);
    gguf_put_f32(w, "gemma4.rope.freq_base", s->theta);
    gguf_put_f32(w, "gemma4.rope.freq_base_swa", s->theta_swa);
    /* If this key is absent, readers assume 30; so "off" is written too. */
    gguf_put_f32(w, "gemma4.final_logit_softcapping", s->softcap);
}

void gemma4_rope_factors(const gemma4_shape *s, float *out)
{
    int32_t n = s->head_dim_global / 2, turning = turning_pairs(s);
    for (int32_t i = 0; i < n; i++)
        out[i] = i < turning ? (float)s->rope_factor : 1e30f;
    if (s->density > 0 && turning > 0) {
        double plain = pow(s->theta, -(double)(turning - 1) / n);
        out[turning - 1] = (float)(plain * BLOCK / (6.283185307179586 * s->density));
    }
}

/* ---- The entry ----------------------------------------------------------------------------- */

static const gemma4_shape *own(const model_shape *s)
{
    return (const gemma4_shape *)s;
}

static bool named(const char *size, model_shape *s)
{
    return gemma4_shape_named(size, (gemma4_shape *)s);
}

static status check_shape(const model_shape *s, const char *what, err *e)
{
    return gemma4_shape_check(own(s), what, e);
}

static void cut_layer(model_shape *s, int32_t n_layer)
{
    gemma4_shape *g = (gemma4_shape *)s;
    g->n_layer = n_layer;
    g->swa[n_layer - 1] = false; /* the last layer of every size is global */
    g->n_kv_shared = g->n_kv_shared < n_layer - 2 ? g->n_kv_shared : 0;
}

static void plant(model_shape *s, double density)
{
    ((gemma4_shape *)s)->density = density;
}

static int32_t list(const model_shape *s, shape_tensor *out, int32_t cap)
{
    return gemma4_list_tensors(own(s), out, cap);
}

static void put_shape(gguf_writer *w, const model_shape *s)
{
    gemma4_put_shape(w, own(s));
}

static void compute(const model_shape *s, const shape_tensor *t, void *out)
{
    (void)t; /* the only computed tensor */
    gemma4_rope_factors(own(s), out);
}

const shape_family gemma4_shapes = {
    .arch = "gemma4",
    .title = "gemma-4",
    .sizes = "e2b, e4b, 12b, 26b-a4b, 31b, tiny-dense, tiny-moe, tiny-ple, tiny-all, tiny-wide, "
             "tiny-many",
    .mix = "q4_k_m",
    .shape_bytes = sizeof(gemma4_shape),
    .named = named,
    .check = check_shape,
    .cut = cut_layer,
    .plant = plant,
    .list = list,
    .put = put_shape,
    .compute = compute};
