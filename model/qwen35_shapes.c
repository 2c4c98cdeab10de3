/* qwen35_shapes.c - the published sizes of Qwen3.5, 3.6 and 3.8, their tensors in file order, their
 * metadata.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers', those of experts with the
 * expert's number in place of '*'. The NextN layer is written on request. The test of this file
 * compares the tensor counts with those of published files (851 and 866, 733 and 753).
 */
#include "model/qwen35_shapes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Sizes --------------------------------------------------------------------------------- */

enum {
    FULL_EVERY = 4,     /* in every published size */
    NEXTN_PUBLISHED = 1 /* NextN layers of a checkpoint */
};

#define COMMON .family = &qwen35_shapes, .eps = 1e-6, .theta = 1e7, .n_taps = 4
#define PUBLISHED                                                                                  \
    COMMON, .n_vocab = 248320, .head_dim = 256, .n_rotating = 64, .section = {11, 11, 10},         \
            .n_k = 16, .dk = 128, .dv = 128, .n_ctx_train = 262144
#define SIZE_27B                                                                                   \
    .n_layer = 64, .n_embd = 5120, .n_ff = 17408, .n_head = 24, .n_head_kv = 4, .n_v = 48
/* Three value heads to each of two key heads: then no two ways to pair them agree. */
#define TINY                                                                                       \
    COMMON, .n_vocab = 320, .n_layer = 8, .n_embd = 64, .n_head = 4, .n_head_kv = 2,               \
            .head_dim = 32, .n_rotating = 8, .section = {2, 1, 1}, .n_k = 2, .n_v = 6, .dk = 16,   \
            .dv = 16, .n_ctx_train = 8192

static const qwen35_shape sizes[] = {
    {PUBLISHED, .name = "qwen3.5-0.8b", .n_layer = 24, .n_embd = 1024, .n_ff = 3584, .n_head = 8,
     .n_head_kv = 2, .n_v = 16, .tied = true},
    {PUBLISHED, .name = "qwen3.5-2b", .n_layer = 24, .n_embd = 2048, .n_ff = 6144, .n_head = 8,
     .n_head_kv = 2, .n_v = 16, .tied = true},
    {PUBLISHED, .name = "qwen3.5-4b", .n_layer = 32, .n_embd = 2560, .n_ff = 9216, .n_head = 16,
     .n_head_kv = 4, .n_v = 32, .tied = true},
    {PUBLISHED, .name = "qwen3.5-9b", .n_layer = 32, .n_embd = 4096, .n_ff = 12288, .n_head = 16,
     .n_head_kv = 4, .n_v = 32},
    {PUBLISHED, SIZE_27B, .name = "qwen3.6-27b"},
    {PUBLISHED, SIZE_27B, .name = "qwen3.8-27b"},
    {PUBLISHED, .name = "qwen3.6-35b-a3b", .n_layer = 40, .n_embd = 2048, .n_ff = 512, .n_head = 16,
     .n_head_kv = 2, .n_v = 32, .n_expert = 256, .n_expert_used = 8, .n_ff_expert = 512},
    {TINY, .name = "tiny-qwen35", .n_ff = 96},
    {TINY, .name = "tiny-qwen35moe", .n_ff = 48, .n_expert = 8, .n_expert_used = 2,
     .n_ff_expert = 32, .tied = true},
};

static const qwen35_shape *own(const model_shape *s)
{
    return (const qwen35_shape *)s;
}

static bool named(const char *size, model_shape *to)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(sizes[i].name, size))
            continue;
        qwen35_shape *s = (qwen35_shape *)to;
        *s = sizes[i];
        for (int32_t il = 0; il < s->n_layer; il++)
            s->full[il] = (il + 1) % FULL_EVERY == 0;
        return true;
    }
    return false;
}

status qwen35_shape_check(const qwen35_shape *s, const char *what, err *e)
{
    const shape_range range[] = {
        {"number of layers", s->n_layer, 1, SHAPE_LAYERS_MAX - NEXTN_PUBLISHED},
        {"number of NextN layers", s->n_nextn, 0, NEXTN_PUBLISHED},
        {"hidden size", s->n_embd, 1, WIDTH_MAX},
        {"vocabulary size", s->n_vocab, 1, VOCAB_MAX},
        {"number of heads", s->n_head, 1, 4096},
        {"number of key heads", s->n_head_kv, 1, s->n_head},
        {"head size", s->head_dim, 2, 8192},
        {"number of rotating dimensions", s->n_rotating, 2, s->head_dim},
        {"number of linear key heads", s->n_k, 1, 4096},
        {"number of linear value heads", s->n_v, 1, 4096},
        {"size of linear key heads", s->dk, 1, 8192},
        {"size of linear value heads", s->dv, 1, 8192},
        {"kernel size of the convolution", s->n_taps, 2, 8},
        {"feed-forward width", s->n_ff, 1, WIDTH_MAX},
        {"number of experts", s->n_expert, 0, 4096},
        {"number of experts used", s->n_expert_used, s->n_expert ? 1 : 0, s->n_expert},
        {"expert width", s->n_ff_expert, s->n_expert ? 1 : 0, WIDTH_MAX},
        {"number of positions", s->n_ctx_train, 1, 1 << 24},
    };
    status st = shape_check_ranges(range, sizeof range / sizeof *range, what, e);
    if (st)
        return st;
    if (s->n_head % s->n_head_kv || s->n_v % s->n_k)
        return err_set(e, E_ARG,
                       "%s: %" PRId32 " heads share %" PRId32 " key heads, %" PRId32
                       " linear value heads share %" PRId32 " key heads: expected whole numbers",
                       what, s->n_head, s->n_head_kv, s->n_v, s->n_k);
    if (s->head_dim % 2)
        return err_set(e, E_ARG, "%s: the head size %" PRId32 " is odd", what, s->head_dim);
    int32_t sections = s->section[0] + s->section[1] + s->section[2];
    if (s->n_rotating % 2 || (sections && 2 * sections != s->n_rotating))
        return err_set(e, E_ARG,
                       "%s: %" PRId32 " rotating dimensions in sections of %" PRId32 " pairs", what,
                       s->n_rotating, sections);
    const shape_real real[] = {{"rotation base", s->theta, THETA_MIN, THETA_MAX},
                               {"epsilon of norms", s->eps, EPS_MIN, 1}};
    st = shape_check_reals(real, sizeof real / sizeof *real, what, e);
    return st ? st : scaling_check(&s->yarn, what, e);
}

static void cut_layer(model_shape *s, int32_t n_layer)
{
    s->n_layer = n_layer;
    ((qwen35_shape *)s)->full[n_layer - 1] = true; /* the last layer of every size attends */
}

static int32_t set_nextn(model_shape *s, int32_t n)
{
    int32_t before = ((qwen35_shape *)s)->n_nextn;
    ((qwen35_shape *)s)->n_nextn = n ? NEXTN_PUBLISHED : 0;
    return before;
}

/* ---- Tensors ------------------------------------------------------------------------------- */

typedef enum {
    NONE,
    D,
    D2,
    VOCAB,
    Q,
    Q_GATE,
    KV,
    HD,
    QKV,
    VALUES,
    HEADS,
    TAPS,
    DV,
    FF,
    EXPERTS,
    FF_EXP,
    FF_EXP2
} dim;

typedef enum { ALWAYS, IF_FULL, IF_LINEAR, IF_DENSE, IF_MOE, IF_HEAD, IF_TIED } condition;

/* From a checkpoint to a file: hf_change. */
typedef enum {
    AS_IS,
    ONE_MORE,   /* norms that multiply by 1 + w */
    V_ROWS,     /* a row per value head, or dv of them */
    V_COLUMNS,  /* the same of columns */
    V_AFTER_QK, /* rows of values behind those of queries and keys */
    TAPS_OF,    /* the same, of the convolution */
    A_LOG       /* the decay; one column per value head */
} conversion;

typedef struct {
    const char *gguf, *hf;
    tensor_role role;
    condition when;
    dim ne[3];
    conversion how;
} tensor_row;

static const tensor_row of_model[] = {
    {"token_embd.weight", "embed_tokens.weight", ROLE_EMBD, IF_TIED, {D, VOCAB}, AS_IS},
    {"token_embd.weight", "embed_tokens.weight", ROLE_MATRIX, IF_HEAD, {D, VOCAB}, AS_IS},
    {"output_norm.weight", "norm.weight", ROLE_NORM, ALWAYS, {D}, ONE_MORE},
    {"output.weight", "", ROLE_EMBD, IF_HEAD, {D, VOCAB}, AS_IS},
};

static const tensor_row of_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", ROLE_NORM, ALWAYS, {D}, ONE_MORE},
    {"attn_q.weight", "self_attn.q_proj.weight", ROLE_MATRIX, IF_FULL, {D, Q_GATE}, AS_IS},
    {"attn_k.weight", "self_attn.k_proj.weight", ROLE_MATRIX, IF_FULL, {D, KV}, AS_IS},
    {"attn_v.weight", "self_attn.v_proj.weight", ROLE_ATTN_V, IF_FULL, {D, KV}, AS_IS},
    {"attn_output.weight", "self_attn.o_proj.weight", ROLE_MATRIX, IF_FULL, {Q, D}, AS_IS},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", ROLE_QK_NORM, IF_FULL, {HD}, ONE_MORE},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", ROLE_QK_NORM, IF_FULL, {HD}, ONE_MORE},
    {"attn_qkv.weight",
     "linear_attn.in_proj_qkv.weight",
     ROLE_MATRIX,
     IF_LINEAR,
     {D, QKV},
     V_AFTER_QK},
    {"attn_gate.weight",
     "linear_attn.in_proj_z.weight",
     ROLE_MATRIX,
     IF_LINEAR,
     {D, VALUES},
     V_ROWS},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", ROLE_TAPS, IF_LINEAR, {TAPS, QKV}, TAPS_OF},
    {"ssm_dt.bias", "linear_attn.dt_bias", ROLE_BIAS, IF_LINEAR, {HEADS}, V_COLUMNS},
    {"ssm_a", "linear_attn.A_log", ROLE_DECAY, IF_LINEAR, {HEADS}, A_LOG},
    {"ssm_alpha.weight",
     "linear_attn.in_proj_a.weight",
     ROLE_MATRIX,
     IF_LINEAR,
     {D, HEADS},
     V_ROWS},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", ROLE_MATRIX, IF_LINEAR, {D, HEADS}, V_ROWS},
    {"ssm_norm.weight", "linear_attn.norm.weight", ROLE_NORM, IF_LINEAR, {DV}, AS_IS},
    {"ssm_out.weight",
     "linear_attn.out_proj.weight",
     ROLE_MATRIX,
     IF_LINEAR,
     {VALUES, D},
     V_COLUMNS},
    {"post_attention_norm.weight",
     "post_attention_layernorm.weight",
     ROLE_NORM,
     ALWAYS,
     {D},
     ONE_MORE},
    {"ffn_gate.weight", "mlp.gate_proj.weight", ROLE_MATRIX, IF_DENSE, {D, FF}, AS_IS},
    {"ffn_up.weight", "mlp.up_proj.weight", ROLE_MATRIX, IF_DENSE, {D, FF}, AS_IS},
    {"ffn_down.weight", "mlp.down_proj.weight", ROLE_FFN_DOWN, IF_DENSE, {FF, D}, AS_IS},
    {"ffn_gate_inp.weight", "mlp.gate.weight", ROLE_ROUTER, IF_MOE, {D, EXPERTS}, AS_IS},
    {"ffn_gate_exps.weight",
     "mlp.experts.*.gate_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF_EXP, EXPERTS},
     AS_IS},
    {"ffn_up_exps.weight",
     "mlp.experts.*.up_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF_EXP, EXPERTS},
     AS_IS},
    {"ffn_down_exps.weight",
     "mlp.experts.*.down_proj.weight",
     ROLE_DOWN_EXPERTS,
     IF_MOE,
     {FF_EXP, D, EXPERTS},
     AS_IS},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", ROLE_ROUTER, IF_MOE, {D}, AS_IS},
    {"ffn_gate_shexp.weight",
     "mlp.shared_expert.gate_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF},
     AS_IS},
    {"ffn_up_shexp.weight",
     "mlp.shared_expert.up_proj.weight",
     ROLE_MATRIX,
     IF_MOE,
     {D, FF},
     AS_IS},
    {"ffn_down_shexp.weight",
     "mlp.shared_expert.down_proj.weight",
     ROLE_FFN_DOWN,
     IF_MOE,
     {FF, D},
     AS_IS},
};

/* A NextN layer is a layer of attention with these. Its hf names have their own start. */
static const tensor_row of_nextn[] = {
    {"nextn.eh_proj.weight", "fc.weight", ROLE_EIGHT_BITS, ALWAYS, {D2, D}, AS_IS},
    {"nextn.enorm.weight", "pre_fc_norm_embedding.weight", ROLE_NORM, ALWAYS, {D}, ONE_MORE},
    {"nextn.hnorm.weight", "pre_fc_norm_hidden.weight", ROLE_NORM, ALWAYS, {D}, ONE_MORE},
    {"nextn.shared_head_norm.weight", "norm.weight", ROLE_NORM, ALWAYS, {D}, ONE_MORE},
};

static uint64_t size_of(const qwen35_shape *s, dim d)
{
    const uint64_t sizes_of[] = {
        [NONE] = 1,
        [D] = (uint64_t)s->n_embd,
        [D2] = 2 * (uint64_t)s->n_embd,
        [VOCAB] = (uint64_t)s->n_vocab,
        [Q] = (uint64_t)s->n_head * (uint64_t)s->head_dim,
        [Q_GATE] = 2 * (uint64_t)s->n_head * (uint64_t)s->head_dim,
        [KV] = (uint64_t)s->n_head_kv * (uint64_t)s->head_dim,
        [HD] = (uint64_t)s->head_dim,
        [QKV] = 2 * (uint64_t)s->n_k * (uint64_t)s->dk + (uint64_t)s->n_v * (uint64_t)s->dv,
        [VALUES] = (uint64_t)s->n_v * (uint64_t)s->dv,
        [HEADS] = (uint64_t)s->n_v,
        [TAPS] = (uint64_t)s->n_taps,
        [DV] = (uint64_t)s->dv,
        [FF] = (uint64_t)s->n_ff,
        [EXPERTS] = (uint64_t)s->n_expert,
        [FF_EXP] = (uint64_t)s->n_ff_expert,
    };
    return sizes_of[d];
}

static bool is_full(const qwen35_shape *s, int32_t il)
{
    return il >= s->n_layer || s->full[il];
}

static bool has_feature(const qwen35_shape *s, int32_t il, condition when)
{
    switch (when) {
    case IF_FULL:
        return is_full(s, il);
    case IF_LINEAR:
        return !is_full(s, il);
    case IF_DENSE:
        return !s->n_expert;
    case IF_MOE:
        return s->n_expert > 0;
    case IF_HEAD:
        return !s->tied;
    case IF_TIED:
        return s->tied;
    case ALWAYS:
        break;
    }
    return true;
}

static hf_change change_of(const qwen35_shape *s, conversion how, const dim *ne)
{
    hf_change c = {.add = how == ONE_MORE, .neg_exp = how == A_LOG, .taps = how == TAPS_OF};
    if (how == AS_IS || how == ONE_MORE)
        return c;
    c.columns = how == V_COLUMNS || how == A_LOG;
    c.n_k = (uint32_t)s->n_k;
    c.n_v = (uint32_t)s->n_v;
    bool in_qkv = how == V_AFTER_QK || how == TAPS_OF;
    bool wide = in_qkv || ne[c.columns ? 0 : 1] == VALUES;
    c.per_head = wide ? (uint64_t)s->dv : 1;
    c.before = in_qkv ? 2 * (uint64_t)s->n_k * (uint64_t)s->dk : 0;
    return c;
}

static void describe(const qwen35_shape *s, int32_t il, const tensor_row *r, shape_tensor *t)
{
    *t = (shape_tensor){.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    if (r->ne[1] == VOCAB && !s->tied && r->when == ALWAYS)
        t->role = ROLE_MATRIX; /* rows of an embedding that is not the head are looked up */
    if (il < 0) {
        snprintf(t->name, sizeof t->name, "%s", r->gguf);
        snprintf(t->hf_name, sizeof t->hf_name, "%s", r->hf);
    } else {
        snprintf(t->name, sizeof t->name, "blk.%d.%s", (int)il, r->gguf);
        if (il < s->n_layer)
            snprintf(t->hf_name, sizeof t->hf_name, "layers.%d.%s", (int)il, r->hf);
        else if (strncmp(r->gguf, "nextn.", 6) != 0)
            snprintf(t->hf_name, sizeof t->hf_name, "mtp.layers.%d.%s", (int)(il - s->n_layer),
                     r->hf);
        else
            snprintf(t->hf_name, sizeof t->hf_name, "mtp.%s", r->hf);
    }
    t->change = change_of(s, r->how, r->ne);
    for (int i = 0; i < 3 && r->ne[i] != NONE; i++) {
        t->ne[i] = size_of(s, r->ne[i]);
        t->n_dims = i + 1;
    }
}

/* A list in the making. */
typedef struct {
    shape_tensor *out;
    int32_t n, cap;
} tensor_list;

static void add_rows(tensor_list *to, const qwen35_shape *s, int32_t il, const tensor_row *r,
                     size_t n)
{
    shape_tensor t;
    for (size_t i = 0; i < n; i++)
        if (has_feature(s, il < 0 ? 0 : il, r[i].when)) {
            describe(s, il, &r[i], to->n < to->cap ? &to->out[to->n] : &t);
            to->n++;
        }
}

static int32_t list(const model_shape *m, shape_tensor *out, int32_t cap)
{
    const qwen35_shape *s = own(m);
    tensor_list to = {out, 0, cap};
    add_rows(&to, s, -1, of_model, sizeof of_model / sizeof *of_model);
    for (int32_t il = 0; il < s->n_layer + s->n_nextn; il++) {
        add_rows(&to, s, il, of_layer, sizeof of_layer / sizeof *of_layer);
        if (il >= s->n_layer)
            add_rows(&to, s, il, of_nextn, sizeof of_nextn / sizeof *of_nextn);
    }
    return to.n;
}

/* ---- Metadata ------------------------------------------------------------------------------ */

static void put_shape(gguf_writer *w, const model_shape *m)
{
    const qwen35_shape *s = own(m);
    const char *arch = s->n_expert ? "qwen35moe" : "qwen35";
    const struct {
        const char *key;
        int32_t v;
        bool moe, dense;
    } numbers[] = {
        {"block_count", s->n_layer + s->n_nextn, true, true},
        {"context_length", s->n_ctx_train, true, true},
        {"embedding_length", s->n_embd, true, true},
        {"feed_forward_length", s->n_ff, false, true},
        {"vocab_size", s->n_vocab, true, true},
        {"attention.head_count", s->n_head, true, true},
        {"attention.head_count_kv", s->n_head_kv, true, true},
        {"attention.key_length", s->head_dim, true, true},
        {"attention.value_length", s->head_dim, true, true},
        {"rope.dimension_count", s->n_rotating, true, true},
        {"ssm.conv_kernel", s->n_taps, true, true},
        {"ssm.state_size", s->dk, true, true},
        {"ssm.group_count", s->n_k, true, true},
        {"ssm.time_step_rank", s->n_v, true, true},
        {"ssm.inner_size", s->n_v * s->dv, true, true},
        {"expert_count", s->n_expert, true, false},
        {"expert_used_count", s->n_expert_used, true, false},
        {"expert_feed_forward_length", s->n_ff_expert, true, false},
        {"expert_shared_feed_forward_length", s->n_ff, true, false},
    };
    char key[64];
    bool regular = true, linear[SHAPE_LAYERS_MAX] = {false};
    gguf_put_string(w, "general.architecture", arch, strlen(arch));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (s->n_expert ? !numbers[i].moe : !numbers[i].dense)
            continue;
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
        gguf_put_u32(w, key, (uint32_t)numbers[i].v);
    }
    if (s->n_nextn) {
        snprintf(key, sizeof key, "%s.nextn_predict_layers", arch);
        gguf_put_u32(w, key, (uint32_t)s->n_nextn);
    }
    scaling_put(w, arch, &s->yarn);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_put_f32(w, key, s->eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gguf_put_f32(w, key, s->theta);
    if (s->section[0]) {
        snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
        gguf_put_i32s(w, key, (int32_t[]){s->section[0], s->section[1], s->section[2], 0}, 4);
    }
    for (int32_t il = 0; il < s->n_layer; il++) {
        linear[il] = !s->full[il];
        regular &= s->full[il] == ((il + 1) % FULL_EVERY == 0);
    }
    if (regular) {
        snprintf(key, sizeof key, "%s.full_attention_interval", arch);
        gguf_put_u32(w, key, FULL_EVERY);
    } else {
        snprintf(key, sizeof key, "%s.attention.recurrent_layers", arch);
        gguf_put_bools(w, key, linear, (uint64_t)(s->n_layer + s->n_nextn));
    }
}

static status check_shape(const model_shape *s, const char *what, err *e)
{
    return qwen35_shape_check(own(s), what, e);
}

const shape_family qwen35_shapes = {
    .arch = "qwen35",
    .title = "qwen",
    .sizes = "qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, qwen3.5-9b, qwen3.6-27b, qwen3.8-27b, "
             "qwen3.6-35b-a3b, tiny-qwen35, tiny-qwen35moe",
    .mix = "q4_k_m",
    .shape_bytes = sizeof(qwen35_shape),
    .named = named,
    .check = check_shape,
    .cut = cut_layer,
    .set_nextn = set_nextn,
    .list = list,
    .put = put_shape};
