/* qwen35_table.c - Qwen3.5, 3.6 and 3.8, dense and with experts: sizes, keys, tensors, binding,
 * division between devices.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers', those of experts with the
 * expert's number in place of '*'. Differences between published files, and their treatment:
 *   block_count                includes NextN layers (nextn_predict_layers), which are no layers of
 *                              the model: they are bound as a drafter
 *   head_count, head_count_kv, feed_forward_length   scalar, or one per layer, perhaps 0 for layers
 *                              that have none
 *   attention.recurrent_layers one per layer; absent: every full_attention_interval-th attends
 *   experts                    gate and up fused in one tensor, or apart
 * Relatives whose files look alike are refused: Qwen3.8-Flash-Next by its tensors, whatever
 * architecture the file claims, and files with nothing but an MTP layer.
 */
#include "model/bind.h"
#include "model/qwen35.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Sizes ---- */

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
#define SMALL                                                                                      \
    COMMON, .n_vocab = 320, .n_layer = 8, .n_embd = 64, .n_head = 4, .n_head_kv = 2,               \
            .head_dim = 32, .n_rotating = 8, .section = {2, 1, 1}, .dk = 16, .dv = 16,             \
            .n_ctx_train = 8192
/* Three value heads to each of two key heads: then no two ways to pair them agree. */
#define TINY SMALL, .n_k = 2, .n_v = 6

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
     .n_head_kv = 2, .n_v = 32, .n_expert = 256, .n_used = 8, .n_ff_exp = 512},
    {TINY, .name = "tiny-qwen35", .n_ff = 96},
    {TINY, .name = "tiny-qwen35moe", .n_ff = 48, .n_expert = 8, .n_used = 2, .n_ff_exp = 32,
     .tied = true},
    /* With enough key heads for a tensor split. */
    {SMALL, .name = "tiny-qwen35-keys", .n_ff = 96, .n_k = 5, .n_v = 15},
    {SMALL, .name = "tiny-qwen35moe-keys", .n_ff = 48, .n_k = 8, .n_v = 16, .n_expert = 8,
     .n_used = 2, .n_ff_exp = 32, .tied = true},
};

static qwen35_shape *own(const model_shape *s)
{
    return (qwen35_shape *)s;
}

static void fill(model_shape *m, int32_t size)
{
    qwen35_shape *s = own(m);
    s->inner = sizes[size].n_v * sizes[size].dv;
    for (int32_t il = 0; il < s->n_layer; il++)
        s->full[il] = (il + 1) % FULL_EVERY == 0;
}

static void cut_layer(model_shape *s, int32_t n_layer)
{
    s->n_layer = n_layer;
    own(s)->full[n_layer - 1] = true; /* the last layer of every size attends */
}

static int32_t set_nextn(model_shape *s, int32_t n)
{
    int32_t before = own(s)->n_nextn;
    own(s)->n_nextn = n ? NEXTN_PUBLISHED : 0;
    return before;
}

/* ---- Keys ---- */

static bool has_experts(const model_shape *s)
{
    return own(s)->n_expert > 0;
}

static bool has_none(const model_shape *s)
{
    return !has_experts(s);
}

#define F(name) offsetof(qwen35_shape, name)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX, .plus = F(n_nextn)),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("feed_forward_length", "intermediate_size", F(n_ff), UNIFORM, 0, WIDTH_MAX, .when = has_none,
      .how = MAY_LACK | CONFIG_BY_HAND),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = WRITE_ONLY),
    K("attention.head_count", "num_attention_heads", F(n_head), UNIFORM, 1, HEADS_MAX),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), UNIFORM, 1, HEADS_MAX,
      .how = MAY_LACK, .otherwise = F(n_head)),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX,
      .same_as = "attention.key_length"),
    K("rope.dimension_count", NULL, F(n_rotating), COUNT, 2, WIDTH_MAX, .upto = F(head_dim)),
    K("ssm.conv_kernel", "linear_conv_kernel_dim", F(n_taps), COUNT, 2, RECUR_TAPS_MAX),
    K("ssm.state_size", "linear_key_head_dim", F(dk), COUNT, 1, WIDTH_MAX),
    K("ssm.group_count", "linear_num_key_heads", F(n_k), COUNT, 1, HEADS_MAX),
    K("ssm.time_step_rank", "linear_num_value_heads", F(n_v), COUNT, 1, HEADS_MAX),
    K("ssm.inner_size", NULL, F(inner), COUNT, 1, WIDTH_MAX),
    K(NULL, "linear_value_head_dim", F(dv), COUNT, 1, WIDTH_MAX),
    K("expert_count", "num_experts", F(n_expert), COUNT, 0, EXPERTS_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND | OMIT_ZERO),
    K("expert_used_count", "num_experts_per_tok", F(n_used), COUNT, 1, EXPERTS_MAX,
      .when = has_experts, .how = CONFIG_BY_HAND, .upto = F(n_expert)),
    K("expert_feed_forward_length", "moe_intermediate_size", F(n_ff_exp), COUNT, 1, WIDTH_MAX / 2,
      .when = has_experts, .how = CONFIG_BY_HAND),
    K("expert_shared_feed_forward_length", "shared_expert_intermediate_size", F(n_ff), COUNT, 1,
      WIDTH_MAX, .when = has_experts, .how = MAY_LACK | CONFIG_BY_HAND, .otherwise = F(n_ff_exp)),
    K("nextn_predict_layers", "mtp_num_hidden_layers", F(n_nextn), COUNT, 0, LAYERS_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK | OMIT_ZERO),
    K("rope.scaling", NULL, F(scaling), YARN, 0, 0, .otherwise = F(n_ctx_train)),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1, .how = MAY_LACK,
      .value = 1e-6),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e7),
};

/* The sections of rotation, and which layers attend. */
static void put_rest(gguf_writer *w, const char *arch, const model_shape *m)
{
    const qwen35_shape *s = own(m);
    char key[64];
    bool regular = true, linear[LAYERS_MAX] = {false};
    if (s->section[0]) {
        snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
        gguf_put_i32s(w, key, (int32_t[]){s->section[0], s->section[1], s->section[2], 0}, 4);
    }
    for (int32_t il = 0; il < s->n_layer; il++) {
        linear[il] = !s->full[il];
        regular &= s->full[il] == ((il + 1) % FULL_EVERY == 0);
    }
    snprintf(key, sizeof key, "%s.%s", arch,
             regular ? "full_attention_interval" : "attention.recurrent_layers");
    if (regular)
        gguf_put_u32(w, key, FULL_EVERY);
    else
        gguf_put_bools(w, key, linear, (uint64_t)(s->n_layer + s->n_nextn));
}

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const qwen35_shape *s = own(m);
    int32_t sections = s->section[0] + s->section[1] + s->section[2];
    status st = table_agree_heads(0, s->n_head, s->n_head_kv, s->head_dim, bad, what, e);
    if (st)
        return st;
    if ((int64_t)s->n_head * s->head_dim > WIDTH_MAX / 2 || s->n_layer + s->n_nextn > LAYERS_MAX)
        return err_set(
            e, bad, "%s: %d heads of %d, %d layers: expected at most %d values and %d layers", what,
            s->n_head, s->head_dim, s->n_layer + s->n_nextn, WIDTH_MAX / 2, LAYERS_MAX);
    if (s->n_ff < 1)
        return err_set(e, bad, "%s: feed_forward_length (intermediate_size) is 0", what);
    if (s->inner % s->n_v || s->n_v % s->n_k || (int64_t)s->n_k * s->dk > WIDTH_MAX / 4)
        return err_set(e, bad,
                       "%s: linear value heads: ssm.inner_size %d over %d value heads "
                       "(ssm.time_step_rank), which share %d key heads (ssm.group_count) of %d",
                       what, s->inner, s->n_v, s->n_k, s->dk);
    if (s->head_dim % 2)
        return err_set(e, bad, "%s: the head size %d is odd: expected an even number", what,
                       s->head_dim);
    if (s->n_rotating % 2 || (sections && 2 * sections != s->n_rotating))
        return err_set(
            e, bad,
            "%s: rope.dimension_count = %d in sections of %d pairs: expected an even number "
            "of rotating dimensions, that of all sections",
            what, s->n_rotating, sections);
    return OK;
}

static bool is_moe(const model *m)
{
    return m->arch == &qwen35moe_arch || m->arch == &qwen35moe_nextn_arch;
}

/* ---- Files that are something else ---- */

static bool is_nextn(const model *m)
{
    return m->arch == &qwen35_nextn_arch || m->arch == &qwen35moe_nextn_arch;
}

static status refuse_relatives(const model *m, err *e)
{
    static const char *const marks[] = {"hc_", "indexer.", "ple_"};
    const tensor_set *t = &m->file.tensors;
    for (uint64_t i = 0; i < t->n; i++) {
        const char *name = t->at[i].name, *tail = strncmp(name, "blk.", 4) ? name : name + 4;
        for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
            if (strstr(tail, marks[k]))
                return err_set(e, E_UNSUPPORTED,
                               "%s: tensor %s is one of Qwen3.8-Flash-Next (qwen4exp), which is "
                               "not supported: hyper-connections, n-gram embeddings and indexer "
                               "attention are missing",
                               m->file.path, name);
    }
    if (!is_nextn(m) && !tensor_find(t, "blk.0.attn_norm.weight"))
        for (uint64_t i = 0; i < t->n; i++)
            if (strstr(t->at[i].name, ".nextn."))
                return err_set(e, E_UNSUPPORTED,
                               "%s: it has a NextN (MTP) layer (%s) and no layer 0: a drafter for "
                               "the model's own file (--draft), not a model",
                               m->file.path, t->at[i].name);
    return OK;
}

/* Keys whose absence means the value that this file's arithmetic has. */
static status check_fixed(const model *m, err *e)
{
    int32_t gating, norm;
    double scale;
    status st;
    if ((st = bind_int(m, (int_key){"expert_gating_func", 0, 64, 1}, &gating, e)) ||
        (st = bind_int(m, (int_key){"expert_weights_norm", 0, 1, 1}, &norm, e)) ||
        (st = bind_real(m, (real_key){"expert_weights_scale", 0, 1e6, 1}, &scale, e)))
        return st;
    if (gating > 1 || !norm || (scale != 0 && scale != 1))
        return err_set(e, E_UNSUPPORTED,
                       "%s: %s.expert_gating_func = %d, expert_weights_norm = %d, "
                       "expert_weights_scale = %g: expected 1 (softmax), 1 and 1",
                       m->file.path, m->arch->name, gating, norm, scale);
    return OK;
}

/* Which layers attend; checks that the architecture and the experts agree. */
static status read_rest(const model *m, model_shape *shape, err *e)
{
    const int_key listed = {"attention.recurrent_layers", 0, 1, REQUIRED};
    qwen35_shape *s = own(shape);
    int32_t n = s->n_layer, linear[LAYERS_MAX], every = 0; /* n: with NextN layers */
    bool list = bind_find(m, listed.name);
    status st;
    if (s->n_nextn >= n)
        return err_set(e, E_FORMAT, "%s: %s.nextn_predict_layers = %d, expected 0 to %d",
                       m->file.path, m->arch->name, s->n_nextn, n - 1);
    if (is_moe(m) != has_experts(shape))
        return err_set(e, E_FORMAT, "%s: key %s.expert_count is %s", m->file.path, m->arch->name,
                       is_moe(m) ? "missing or 0" : "above 0, and the architecture is dense");
    if (!is_moe(m) && !s->n_ff)
        return err_set(e, E_FORMAT, "%s: key %s.feed_forward_length is missing or 0", m->file.path,
                       m->arch->name);
    if ((st = list ? bind_per_layer(m, listed, linear, n, e)
                   : bind_int(m, (int_key){"full_attention_interval", 1, LAYERS_MAX, FULL_EVERY},
                              &every, e)))
        return st;
    s->n_layer -= s->n_nextn;
    for (int32_t i = 0; i < s->n_layer; i++)
        s->full[i] = list ? !linear[i] : (i + 1) % every == 0;
    s->dv = s->inner / s->n_v;
    return check_fixed(m, e);
}

/* ---- Tensors ---- */

enum { D = 1, D2, VOCAB, Q, Q_GATE, KV, HD, QKV, VALUES, V_HEADS, TAPS, DV, FF, N_EXP, FF_EXP };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const qwen35_shape *s = own(m);
    const int64_t n_embd = s->n_embd, q = (int64_t)s->n_head * s->head_dim;
    const int64_t values = (int64_t)s->n_v * s->dv;
    const int64_t of[] = {[D] = n_embd,
                          [D2] = 2 * n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = q,
                          [Q_GATE] = 2 * q, /* of each head the query, then the gate */
                          [KV] = (int64_t)s->n_head_kv * s->head_dim,
                          [HD] = s->head_dim,
                          [QKV] = 2 * (int64_t)s->n_k * s->dk + values,
                          [VALUES] = values,
                          [V_HEADS] = s->n_v,
                          [TAPS] = s->n_taps,
                          [DV] = s->dv,
                          [FF] = s->n_ff,
                          [N_EXP] = s->n_expert,
                          [FF_EXP] = s->n_ff_exp};
    (void)il;
    return of[d];
}

static bool is_nextn_layer(const model_shape *s, int32_t il)
{
    return il >= s->n_layer;
}

static bool attends(const model_shape *s, int32_t il)
{
    return is_nextn_layer(s, il) || own(s)->full[il];
}

static bool recurs(const model_shape *s, int32_t il)
{
    return !attends(s, il);
}

static bool is_dense(const model_shape *s, int32_t il)
{
    (void)il;
    return !has_experts(s);
}

static bool is_sparse(const model_shape *s, int32_t il)
{
    return !is_dense(s, il);
}

/* From a checkpoint to a file: hf_change. */
typedef enum conversion {
    AS_IS,
    ONE_MORE,   /* norms that multiply by 1 + w */
    V_ROWS,     /* a row per value head, or dv of them */
    V_COLUMNS,  /* the same of columns */
    V_AFTER_QK, /* rows of values behind those of queries and keys */
    TAPS_OF,    /* the same, of the convolution */
    A_LOG       /* the decay; one column per value head */
} conversion;

#define M(name) offsetof(qwen35, name)
static const table_tensor of_model[] = {
    T(table_tied, ELSEWHERE, "token_embd.weight", "embed_tokens.weight", EMBD, D, VOCAB),
    T(table_untied, ELSEWHERE, "token_embd.weight", "embed_tokens.weight", MATRIX, D, VOCAB),
    T_AS(ONE_MORE, ALWAYS, M(out_norm), "output_norm.weight", "norm.weight", NORM, D),
    T(table_untied, ELSEWHERE, "output.weight", "", EMBD, D, VOCAB),
};

/* A NextN layer is a layer of attention with the last four, which bind_nextn binds. */
#define W(name) offsetof(qwen35_layer, name)
static const table_tensor of_layer[] = {
    T_AS(ONE_MORE, ALWAYS, W(norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T(attends, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q_GATE),
    T(attends, W(wk), "attn_k.weight", "self_attn.k_proj.weight", MATRIX, D, KV),
    T(attends, W(wv), "attn_v.weight", "self_attn.v_proj.weight", ATTN_V, D, KV),
    T(attends, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T_AS(ONE_MORE, attends, W(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORM,
         HD),
    T_AS(ONE_MORE, attends, W(k_norm), "attn_k_norm.weight", "self_attn.k_norm.weight", QK_NORM,
         HD),
    T_AS(V_AFTER_QK, recurs, W(wqkv), "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", MATRIX,
         D, QKV),
    T_AS(V_ROWS, recurs, W(wz), "attn_gate.weight", "linear_attn.in_proj_z.weight", MATRIX, D,
         VALUES),
    T_AS(TAPS_OF, recurs, W(taps), "ssm_conv1d.weight", "linear_attn.conv1d.weight", TAPS, TAPS,
         QKV),
    T_AS(V_COLUMNS, recurs, W(dt), "ssm_dt.bias", "linear_attn.dt_bias", BIAS, V_HEADS),
    T_AS(A_LOG, recurs, W(a), "ssm_a", "linear_attn.A_log", DECAY, V_HEADS),
    T_AS(V_ROWS, recurs, W(wa), "ssm_alpha.weight", "linear_attn.in_proj_a.weight", MATRIX, D,
         V_HEADS),
    T_AS(V_ROWS, recurs, W(wb), "ssm_beta.weight", "linear_attn.in_proj_b.weight", MATRIX, D,
         V_HEADS),
    T(recurs, W(out_norm), "ssm_norm.weight", "linear_attn.norm.weight", NORM, DV),
    T_AS(V_COLUMNS, recurs, W(out), "ssm_out.weight", "linear_attn.out_proj.weight", MATRIX, VALUES,
         D),
    T_AS(ONE_MORE, ALWAYS, W(ffn_norm), "post_attention_norm.weight",
         "post_attention_layernorm.weight", NORM, D),
    T_UNIT(is_dense),
    T(is_sparse, W(router), "ffn_gate_inp.weight", "mlp.gate.weight", ROUTER, D, N_EXP),
    T_MLP_EXPERTS(is_sparse),
    T(is_sparse, W(shared_gate), "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight",
      ROUTER, D),
    T(is_sparse, W(gate), "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", MATRIX, D,
      FF),
    T(is_sparse, W(up), "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", MATRIX, D, FF),
    T(is_sparse, W(down), "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", FFN_DOWN,
      FF, D),
    T(is_nextn_layer, ELSEWHERE, "nextn.eh_proj.weight", "fc.weight", EIGHT_BITS, D2, D),
    T_AS(ONE_MORE, is_nextn_layer, ELSEWHERE, "nextn.enorm.weight", "pre_fc_norm_embedding.weight",
         NORM, D),
    T_AS(ONE_MORE, is_nextn_layer, ELSEWHERE, "nextn.hnorm.weight", "pre_fc_norm_hidden.weight",
         NORM, D),
    T_AS(ONE_MORE, is_nextn_layer, ELSEWHERE, "nextn.shared_head_norm.weight", "norm.weight", NORM,
         D),
};

static hf_change change_of(const qwen35_shape *s, conversion how, const int8_t *ne)
{
    hf_change c = {.add = how == ONE_MORE,
                   .around_0 = how == ONE_MORE,
                   .neg_exp = how == A_LOG,
                   .taps = how == TAPS_OF};
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

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    t->change = change_of(own(m), (conversion)r->change, r->ne);
    if (t->layer < m->n_layer)
        return;
    if (r->when == is_nextn_layer)
        snprintf(t->hf_name, sizeof t->hf_name, "mtp.%s", r->hf);
    else
        snprintf(t->hf_name, sizeof t->hf_name, "mtp.layers.%d.%s", (int)(t->layer - m->n_layer),
                 r->hf);
}

static const char *arch_of(const model_shape *s, char buf[TABLE_ARCH])
{
    (void)buf;
    return has_experts(s) ? "qwen35moe" : "qwen35";
}

static const family_table rows = {TABLE_ROWS,      .dim = dim,          .agree = agree,
                                  .fill = fill,    .arch = arch_of,     .read = read_rest,
                                  .put = put_rest, .nextn = F(n_nextn), .describe = describe};

const shape_family qwen35_shapes = {
    TABLE_HOOKS(qwen35_shape, rows),
    .arch = "qwen35",
    .title = "qwen",
    .sizes = "qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, qwen3.5-9b, qwen3.6-27b, qwen3.8-27b, "
             "qwen3.6-35b-a3b, tiny-qwen35, tiny-qwen35moe, tiny-qwen35-keys, "
             "tiny-qwen35moe-keys",
    .mix = "q4_k_m",
    .cut = cut_layer,
    .set_nextn = set_nextn};

/* ---- Binding ---- */

/* A kind from the metadata, confirmed by the tensors: a file whose two disagree is damaged. */
static status check_kind(const model *m, int32_t il, bool full, err *e)
{
    char linear[48], attends[48];
    snprintf(linear, sizeof linear, "blk.%d.ssm_a", il);
    snprintf(attends, sizeof attends, "blk.%d.attn_q.weight", il);
    const tensor *a = tensor_find(&m->file.tensors, linear);
    const tensor *q = tensor_find(&m->file.tensors, attends);
    if (full ? q && !a : a && !q)
        return OK;
    return err_set(e, E_FORMAT, "%s: layer %d %s by the metadata, and tensor %s is %s",
                   m->file.path, il, full ? "attends" : "is recurrent",
                   a && q ? (full ? linear : attends) : (full ? attends : linear),
                   a && q ? "there too" : "missing");
}

static status bind_layer(const binder *b, qwen35_layer *L, const qwen35_shape *s)
{
    const expert_sizes sizes_of = {s->n_embd,  s->n_ff_exp,  s->n_expert, s->n_used,
                                   &L->router, &L->ffn_norm, NULL,        false};
    status st;
    if ((st = check_kind(b->m, b->il, L->full, b->e)) || (st = table_bind(b, &s->common, L)))
        return st;
    const float *a = L->a.data;
    for (int32_t i = 0; !L->full && i < s->n_v; i++)
        if (!(a[i] <= 0)) /* also NaN */
            return err_set(b->e, E_FORMAT,
                           "%s: item %d of %s is %g: expected -exp(A_log), which is negative",
                           b->m->file.path, i, L->a.name, (double)a[i]);
    return s->n_expert ? bind_experts(b, &sizes_of, &L->gate_exps, &L->up_exps, &L->down_exps) : OK;
}

/* Numbers the stores of both kinds. */
static status bind_stores(model *m, qwen35 *g, const qwen35_shape *s, err *e)
{
    size_t n = (size_t)s->n_layer;
    m->recur = arena_array(&m->mem, n, sizeof *m->recur);
    if (!m->recur)
        return err_memory(e, m->file.path, n * sizeof *m->recur);
    m->n_kv = 0;
    for (int32_t i = 0; i < s->n_layer; i++) {
        qwen35_layer *L = &g->layer[i];
        L->full = s->full[i];
        L->at = L->full ? m->n_kv : m->n_recur;
        if (L->full)
            m->kv[m->n_kv++] =
                (kv_spec){.layer = i, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
        else
            m->recur[m->n_recur++] = (recur_view){.id = L->at,
                                                  .layer = i,
                                                  .n_taps = s->n_taps,
                                                  .n_k = s->n_k,
                                                  .n_v = s->n_v,
                                                  .dk = s->dk,
                                                  .dv = s->dv};
    }
    if (!m->n_kv)
        return err_set(e, E_UNSUPPORTED, "%s: no layer attends", m->file.path);
    return OK;
}

static void bind_ranges(model *m, const qwen35 *g, int32_t n_layer)
{
    for (int32_t i = 0; i < n_layer; i++) {
        const qwen35_layer *L = &g->layer[i];
        if (L->full)
            m->kv[L->at].wide =
                bind_wide_heads(&L->q_norm, &L->k_norm, g->head_dim, L->rope->factor);
    }
}

/* What layers share. */
static status bind_common(model *m, qwen35 *g, const qwen35_shape *s, int32_t n_layer, err *e)
{
    const turning t = {s->n_rotating, s->theta, s->n_rotating / 2, NULL, &s->scaling};
    *g = (qwen35){.n_head = s->n_head,
                  .head_dim = s->head_dim,
                  .n_expert_used = s->n_used,
                  .eps = (float)s->eps};
    status st = bind_layer_structs(m, n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < n_layer && !st; i++)
        g->layer[i].rope = &g->rope[PASS_MAIN];
    st = st ? st : bind_rope(m, &g->rope[PASS_MAIN], &t, e);
    return st ? st : bind_sections(m, &g->rope[PASS_MAIN], e);
}

static status bind_all(model *m, qwen35 *g, const qwen35_shape *s, err *e)
{
    status st;
    if ((st = bind_common(m, g, s, s->n_layer, e)) ||
        (st = bind_tokens(m, &g->embd, &g->head, s->n_embd, e)) ||
        (st = table_bind(&(binder){m, -1, e}, &s->common, g)) || (st = bind_stores(m, g, s, e)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++)
        if ((st = bind_layer(&(binder){m, i, e}, &g->layer[i], s)))
            return st;
    bind_ranges(m, g, s->n_layer);
    model_claim_layers(m, s->n_layer, s->n_layer + s->n_nextn,
                       false);                       /* NextN: a drafter binds them */
    for (uint64_t i = 0; i < m->file.tensors.n; i++) /* the same under a checkpoint's names */
        if (!strncmp(m->file.tensors.at[i].name, "mtp.", 4))
            model_claim(m, m->file.tensors.at[i].name);
    return OK;
}

status qwen35_bind(model *m, err *e)
{
    model_shape *s = NULL;
    qwen35 *g = NULL;
    status st = refuse_relatives(m, e);
    if (!st && !(g = bind_begin(m, &qwen35_shapes, sizeof *g, &s, e)))
        st = e->status;
    if (st || (st = bind_all(m, g, own(s), e)))
        return st;
    return bind_done(m, s, g, &g->embd, &g->head, e);
}

/* ---- NextN layers ---- */

static status refuse_own_tables(const model *m, int32_t il, err *e)
{
    static const char *const tails[] = {"nextn.embed_tokens.weight",
                                        "nextn.shared_head_head.weight"};
    char name[64];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(name, sizeof name, "blk.%d.%s", il, tails[i]);
        if (tensor_find(&m->file.tensors, name))
            return err_set(
                e, E_UNSUPPORTED,
                "%s: tensor %s: carat runs NextN layers that share the model's embedding "
                "and head",
                m->file.path, name);
    }
    return OK;
}

static status bind_nextn(model *m, qwen35_nextn *x, const qwen35_shape *s, err *e)
{
    const binder b = {m, s->n_layer, e};
    qwen35 *g = &x->g;
    status st;
    if ((st = bind_common(m, g, s, 1, e)))
        return st;
    g->layer->full = true;
    *m->kv = (kv_spec){.layer = s->n_layer, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
    if ((st = refuse_own_tables(m, s->n_layer, e)) ||
        (st = bind_matrix(&b, &x->join, "nextn.eh_proj.weight", 2 * s->n_embd, s->n_embd)) ||
        (st = bind_vector(&b, &x->embd_norm, "nextn.enorm.weight", s->n_embd)) ||
        (st = bind_vector(&b, &x->hidden_norm, "nextn.hnorm.weight", s->n_embd)) ||
        (st = bind_vector_if(&b, &x->head_norm, "nextn.shared_head_norm.weight", s->n_embd)) ||
        (st = bind_layer(&b, g->layer, s)))
        return st;
    bind_ranges(m, g, 1);
    model_claim_layers(m, s->n_layer, s->n_layer + s->n_nextn, true); /* the model's own */
    return OK;
}

status qwen35_nextn_bind(model *m, err *e)
{
    model_shape *s = NULL;
    qwen35_nextn *x = NULL;
    status st = refuse_relatives(m, e);
    if (!st && !(x = bind_begin(m, &qwen35_shapes, sizeof *x, &s, e)))
        st = e->status;
    if (st)
        return st;
    if (own(s)->n_nextn != 1)
        return err_set(e, E_UNSUPPORTED,
                       "%s: %s.nextn_predict_layers = %d: carat drafts by one "
                       "NextN (MTP) layer",
                       m->file.path, m->arch->name, own(s)->n_nextn);
    if ((st = bind_nextn(m, x, own(s), e)))
        return st;
    return bind_done(m, s, x, NULL, NULL, e); /* n_layer: of the model that it drafts for */
}

/* ---- Several devices ---- */

status qwen35_divide(model *m, err *e)
{
    const qwen35 *g = m->impl;
    status st = divide_plain(m, e);
    for (int32_t i = 0; i < m->n_layer && !st; i++)
        if (!g->layer[i].full)
            m->recur[g->layer[i].at].side = g->layer[i].side;
    return st;
}

void qwen35_at_rank(model *rank)
{
    ((qwen35 *)rank->impl)->layer = rank->layers;
}

int32_t qwen35_kv_of(const model *m, int32_t il)
{
    const qwen35_layer *L = &((const qwen35 *)m->impl)->layer[il];
    return L->full ? L->at : -1;
}
