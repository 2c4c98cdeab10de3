/* laguna.c - Laguna: sizes, keys, tensors, binding. The forward pass is block.c.
 *
 * Easy to get wrong: the gate of attention is a softplus, made from the same normed rows as queries
 * and applied before the output projection. The router's bias chooses experts and is in no weight.
 * The factor of the experts' sum is not the shared expert's. Full layers and window layers differ
 * in heads, in rotated dims and in base; YaRN's factor is on the rotated dims alone.
 *
 * Two spellings of several keys and of one tensor are in circulation; either is read. The kind of
 * gate is in no key: the tensor's rows tell it.
 */
#include "model/laguna.h"
#include "model/bind.h"

#include <math.h>
#include <stdio.h>

/* ---- Sizes ---- */

enum { PERIOD = 4, GATING_SIGMOID = 2 }; /* the first layer of each four is full */

#define COMMON                                                                                     \
    .family = &laguna_shapes, .n_dense = 1, .eps = 1e-6, .theta = 5e5, .theta_swa = 1e4,           \
    .expert_scale = 2.5,                                                                           \
    .scaling = {SCALING_YARN, .factor = 32, .beta_fast = 64, .beta_slow = 1, .n_ctx = 8192}

static const laguna_shape sizes[] = {
    {COMMON, .name = "laguna-xs", .n_layer = 40, .n_embd = 2048, .n_vocab = 100352,
     .n_head = {48, 64}, .n_head_kv = {8}, .head_dim = 128, .n_rot = 64, .n_rot_swa = 128,
     .window = 512, .n_ctx_train = 262144, .n_ff = {8192}, .n_expert = 256, .n_used = 8,
     .n_ff_exp = 512, .n_ff_shared = 512},
    {COMMON, .name = "tiny-laguna", .n_layer = 4, .n_embd = 64, .n_vocab = 512, .n_head = {6, 8},
     .n_head_kv = {2}, .head_dim = 32, .n_rot = 16, .n_rot_swa = 32, .window = 16,
     .n_ctx_train = 8192, .n_ff = {96}, .n_expert = 8, .n_used = 2, .n_ff_exp = 32,
     .n_ff_shared = 64},
    /* Heads that can be cut into four parts, as those of the published size. */
    {COMMON, .name = "tiny-laguna-heads", .n_layer = 4, .n_embd = 64, .n_vocab = 512,
     .n_head = {12, 8}, .n_head_kv = {4}, .head_dim = 32, .n_rot = 16, .n_rot_swa = 32,
     .window = 16, .n_ctx_train = 8192, .n_ff = {96}, .n_expert = 8, .n_used = 2, .n_ff_exp = 32,
     .n_ff_shared = 64},
};

/* A size has the heads of a full layer and of a window layer. */
static void fill(model_shape *m, int32_t size)
{
    laguna_shape *s = (laguna_shape *)m;
    for (int32_t il = 0; il < s->n_layer; il++) {
        s->swa[il] = il % PERIOD != 0;
        s->n_head[il] = sizes[size].n_head[s->swa[il]];
    }
}

static void cut_layers(model_shape *m, int32_t n_layer)
{
    laguna_shape *s = (laguna_shape *)m;
    s->n_layer = n_layer;
    s->n_dense = s->n_dense < n_layer ? s->n_dense : n_layer;
}

/* ---- Keys ---- */

static const laguna_shape *own(const model_shape *s)
{
    return (const laguna_shape *)s;
}

static bool has_experts(const model_shape *s)
{
    return own(s)->n_expert > 0;
}

#define F(name) offsetof(laguna_shape, name)
#define EXPERTS(gguf, config, field, least, most, ...)                                             \
    K(gguf, config, field, COUNT, least, most, .when = has_experts, __VA_ARGS__)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("feed_forward_length", "intermediate_size", F(n_ff), COUNTS, 0, WIDTH_MAX, .how = MAY_LACK),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = WRITE_ONLY),
    K("attention.head_count", "num_attention_heads", F(n_head), LIST, 1, HEADS_MAX,
      .how = CONFIG_MAY_LACK),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), COUNTS, 1, HEADS_MAX,
      .how = MAY_LACK, .otherwise = F(n_head)),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX,
      .same_as = "attention.key_length"),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1, .how = MAY_LACK,
      .value = 1e-6),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 0, CTX_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .how = WRITE_ONLY),
    K("rope.dimension_count", NULL, F(n_rot), COUNT, 2, WIDTH_MAX, .upto = F(head_dim)),
    K("rope.dimension_count_swa", NULL, F(n_rot_swa), COUNT, 2, WIDTH_MAX, .how = MAY_LACK,
      .upto = F(head_dim), .otherwise = F(head_dim), .or_gguf = "rope.swa.dimension_count"),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 5e5),
    K("rope.freq_base_swa", "rope_theta", F(theta_swa), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e4, .or_gguf = "rope.swa.freq_base"),
    K("rope.scaling", NULL, F(scaling), YARN, 0, 0, .otherwise = F(n_ctx_train)),
    K("expert_count", "num_experts", F(n_expert), COUNT, 0, EXPERTS_MAX, .how = MAY_LACK),
    EXPERTS("expert_used_count", "num_experts_per_tok", F(n_used), 1, EXPERTS_MAX,
            .upto = F(n_expert)),
    EXPERTS("expert_feed_forward_length", "moe_intermediate_size", F(n_ff_exp), 1, WIDTH_MAX / 2),
    EXPERTS("expert_shared_feed_forward_length", "shared_expert_intermediate_size", F(n_ff_shared),
            1, WIDTH_MAX, .how = MAY_LACK, .otherwise = F(n_ff_exp)),
    EXPERTS("expert_shared_count", NULL, 0, 1, EXPERTS_MAX, .how = MAY_LACK | READ_ONLY,
            .value = 1),
    EXPERTS("expert_gating_func", NULL, 0, GATING_SIGMOID, GATING_SIGMOID, .how = MAY_LACK,
            .value = GATING_SIGMOID),
    K("expert_weights_norm", NULL, 0, FLAG, 1, 1, .when = has_experts, .how = MAY_LACK, .value = 1),
    EXPERTS("decoder_sparse_step", NULL, 0, 1, 1, .how = MAY_LACK | READ_ONLY, .value = 1),
    K("expert_weights_scale", "moe_routed_scaling_factor", F(expert_scale), REAL, 1e-3, 1e3,
      .when = has_experts),
    EXPERTS("leading_dense_block_count", NULL, F(n_dense), 0, LAYERS_MAX, .upto = F(n_layer),
            .or_gguf = "dense_layers"),
};

/* Layers of one kind have equal numbers of heads; then a pattern that the file contradicts, or a
 * wrong period, is found. */
static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const laguna_shape *s = own(m);
    int32_t first[2] = {-1, -1};
    if (s->head_dim % 2 || s->n_rot % 2 || s->n_rot_swa % 2)
        return err_set(e, bad, "%s: heads of %d with %d and %d rotated dims: expected even numbers",
                       what, s->head_dim, s->n_rot, s->n_rot_swa);
    for (int32_t i = 0; i < s->n_layer; i++) {
        int32_t *of = &first[s->swa[i]];
        status st = table_agree_heads(i, s->n_head[i], s->n_head_kv[i], s->head_dim, bad, what, e);
        if (st)
            return st;
        *of = *of < 0 ? i : *of;
        if (s->n_head[i] != s->n_head[*of])
            return err_set(
                e, bad, "%s: layers %d and %d both have %s attention, and %d and %d heads", what,
                *of, i, s->swa[i] ? "sliding-window" : "full", s->n_head[*of], s->n_head[i]);
        if (i < s->n_dense && !s->n_ff[i])
            return err_set(e, bad,
                           "%s: layer %d is dense, and laguna.feed_forward_length is missing or 0",
                           what, i);
    }
    return OK;
}

/* Kinds of the layers: a list, or a period whose first layer is full. Without a window all layers
 * are full, without experts all are dense. */
static status read_kinds(const model *m, model_shape *shape, err *e)
{
    laguna_shape *s = (laguna_shape *)shape;
    const char *name = "attention.sliding_window_pattern", *other = "attention.layer_types";
    int32_t swa[LAYERS_MAX], period = PERIOD;
    name = bind_find(m, name) || !bind_find(m, other) ? name : other;
    const gguf_value *v = bind_find(m, name);
    bool list = v && v->kind == GGUF_ARRAY;
    status st = list ? bind_per_layer(m, (int_key){name, 0, 1, REQUIRED}, swa, s->n_layer, e)
                     : bind_int(m, (int_key){name, 1, LAYERS_MAX, PERIOD}, &period, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++)
        s->swa[i] = s->window && (list ? swa[i] : i % period != 0);
    if (!s->n_expert)
        s->n_dense = s->n_layer;
    return st;
}

/* ---- Tensors ---- */

enum { D = 1, VOCAB, Q, KV, HD, FF, GATES, N_EXP, FF_EXP, FF_SHARED };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const laguna_shape *s = own(m);
    int32_t i = il < 0 ? 0 : il, heads = s->n_head[i];
    const int64_t of[] = {[D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = (int64_t)heads * s->head_dim,
                          [KV] = (int64_t)s->n_head_kv[i] * s->head_dim,
                          [HD] = s->head_dim,
                          [FF] = s->n_ff[i],
                          [GATES] = s->gate_per_element ? (int64_t)heads * s->head_dim : heads,
                          [N_EXP] = s->n_expert,
                          [FF_EXP] = s->n_ff_exp,
                          [FF_SHARED] = s->n_ff_shared};
    return of[d];
}

static bool is_dense(const model_shape *s, int32_t il)
{
    return !has_experts(s) || il < own(s)->n_dense;
}

static bool is_sparse(const model_shape *s, int32_t il)
{
    return !is_dense(s, il);
}

#define M(name) offsetof(block_model, name)
static const table_tensor of_model[] = {T_TOKENS(M(out_norm))};

#define W(name) offsetof(block, name)
#define HF_SHARED(tail) "mlp.shared_expert." tail "_proj.weight"
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T(ALWAYS, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),
    T(ALWAYS, W(wk), "attn_k.weight", "self_attn.k_proj.weight", MATRIX, D, KV),
    T(ALWAYS, W(wv), "attn_v.weight", "self_attn.v_proj.weight", ATTN_V, D, KV),
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T(ALWAYS, ELSEWHERE, "attn_gate.weight", "self_attn.g_proj.weight", MATRIX, D, GATES),
    T_HEAD_NORMS,
    T(ALWAYS, W(ffn_norm), "ffn_norm.weight", "post_attention_layernorm.weight", NORM, D),
    T_UNIT(is_dense),
    T(is_sparse, W(router), "ffn_gate_inp.weight", "mlp.gate.weight", ROUTER, D, N_EXP),
    T(is_sparse, W(router_bias), "exp_probs_b.bias", "mlp.experts.e_score_correction_bias", BIAS,
      N_EXP),
    T_MLP_EXPERTS(is_sparse),
    T(is_sparse, W(shared_gate), "ffn_gate_shexp.weight", HF_SHARED("gate"), MATRIX, D, FF_SHARED),
    T(is_sparse, W(shared_up), "ffn_up_shexp.weight", HF_SHARED("up"), MATRIX, D, FF_SHARED),
    T(is_sparse, W(shared_down), "ffn_down_shexp.weight", HF_SHARED("down"), FFN_DOWN, FF_SHARED,
      D),
};

static const family_table rows = {TABLE_ROWS, .dim = dim, .agree = agree, .fill = fill,
                                  .read = read_kinds};

const shape_family laguna_shapes = {
    TABLE_HOOKS(laguna_shape, rows),   .arch = "laguna", .title = "poolside",
    .sizes = "laguna-xs, tiny-laguna", .mix = "q4_k_m",  .cut = cut_layers};

/* ---- Binding ---- */

static status bind_gate(const binder *b, block *L, const laguna_shape *s)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_g.weight", b->il);
    const model *m = b->m;
    bool other = tensor_find(&m->file.tensors, name) != NULL;
    int32_t heads = s->n_head[b->il], *n = &L->attn_gate.n_out;
    status st =
        bind_matrix(b, &L->attn_gate, other ? "attn_g.weight" : "attn_gate.weight", s->n_embd, 0);
    if (st || *n == heads || *n == heads * s->head_dim)
        return st;
    return err_set(b->e, E_FORMAT, "%s: tensor %s has %d rows, expected %d (heads) or %d",
                   m->file.path, L->attn_gate.name, *n, heads, heads * s->head_dim);
}

static status bind_layer(model *m, laguna *g, const laguna_shape *s, int32_t i, err *e)
{
    block *L = &g->layer[i];
    const binder b = {m, i, e};
    const expert_sizes sizes_of = {s->n_embd,  s->n_ff_exp,  s->n_expert,     s->n_used,
                                   &L->router, &L->ffn_norm, &L->router_bias, false};
    status st;
    L->rope = s->swa[i] ? &g->rope_swa[PASS_MAIN] : &g->rope_full[PASS_MAIN];
    if ((st = table_bind(&b, &s->common, L)) || (st = bind_gate(&b, L, s)) ||
        (is_sparse(&s->common, i) &&
         (st = bind_experts(&b, &sizes_of, &L->gate, &L->up, &L->down))))
        return st;
    m->kv[i] =
        (kv_spec){.layer = i,
                  .window = s->swa[i] ? s->window : 0,
                  .n_head_kv = s->n_head_kv[i],
                  .head_dim = s->head_dim,
                  .wide = bind_wide_heads(&L->q_norm, &L->k_norm, s->head_dim, L->rope->factor)};
    return OK;
}

static status bind_laguna(model *m, err *e)
{
    model_shape *shape = NULL;
    laguna *g = bind_begin(m, &laguna_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const laguna_shape *s = own(shape);
    const turning full = {s->n_rot, s->theta, s->n_rot / 2, NULL, &s->scaling};
    const turning swa = {s->n_rot_swa, s->theta_swa, s->n_rot_swa / 2, NULL, NULL};
    status st;
    g->common = (block_model){.head_dim = s->head_dim,
                              .n_used = s->n_used,
                              .eps = (float)s->eps,
                              .scale = 1.0f / sqrtf((float)s->head_dim),
                              .act = ACT_SILU,
                              .sigmoid = true,
                              .expert_factor = (float)s->expert_scale};
    if ((st = bind_tokens(m, &g->common.embd, &g->common.head, s->n_embd, e)) ||
        (st = table_bind(&(binder){m, -1, e}, shape, g)) ||
        (st = bind_rope(m, &g->rope_full[PASS_MAIN], &full, e)) ||
        (st = bind_rope(m, &g->rope_swa[PASS_MAIN], &swa, e)) ||
        (st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++)
        if ((st = bind_layer(m, g, s, i, e)))
            return st;
    m->window = s->window;
    return bind_done(m, shape, g, &g->common.embd, &g->common.head, e);
}

/* The publisher states no sampling for the model; these are the values of a server that runs it. */
const model_arch laguna_arch = {.name = "laguna",
                                .sampling = {.temperature = 0.6f, .top_k = 50, .top_p = 0.95f},
                                .bind = bind_laguna,
                                .forward = block_forward,
                                .divide = divide_plain,
                                .at_rank = block_at_rank};
