/* qwen3.c - Qwen3, dense and with experts: sizes, keys, tensors, and binding. The forward pass is
 * that of block.c.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. Easy to get wrong: heads of
 * queries and keys are normed before the rotation, all by one vector of head_dim. Values are
 * neither normed nor rotated. The size of a head is the file's, not the width over the number of
 * heads. Files may have the number of heads and the feed-forward width by layer, queries, keys and
 * values in one tensor, and divisors of frequencies. A window is refused: no published model has
 * one. With experts every layer has them, and no shared one: the feed-forward width, which files
 * state too, is of no layer. The weights of a row's experts are the softmax over all, divided by
 * their sum.
 *
 * Qwen3-VL has these layers. Its rotation turns by three axes, interleaved, and the first layers
 * add rows of deepstack behind them (model_run). Texts are computed as by Qwen3.
 */
#include "model/qwen3.h"
#include "model/bind.h"

#include <math.h>
#include <stdio.h>

/* ---- Sizes ---- */

#define PUBLISHED .family = &qwen3_shapes, .head_dim = 128, .n_vocab = 151936, .eps = 1e-6
#define COMMON PUBLISHED, .n_ctx_train = 40960, .theta = 1e6
#define SIZE_30B                                                                                   \
    .n_layer = 48, .n_embd = 2048, .n_head = {32}, .n_head_kv = {4}, .n_expert = 128, .n_used = 8, \
    .n_ff_exp = 768
#define SIZE_235B                                                                                  \
    .n_layer = 94, .n_embd = 4096, .n_ff = {12288}, .n_head = {64}, .n_head_kv = {4},              \
    .n_expert = 128, .n_used = 8, .n_ff_exp = 1536
#define SEES                                                                                       \
    PUBLISHED, .n_ctx_train = 262144, .theta = 5e6, .sees = true, .section = {24, 20, 20},         \
               .n_deep = 3
#define TINY_SEES .sees = true, .section = {6, 5, 5}, .n_deep = 2
#define EMBEDDING                                                                                  \
    .family = &qwen3_shapes, .head_dim = 128, .eps = 1e-6, .theta = 1e6, .tied = true,             \
    .pooling = POOLING_LAST
/* Heads are wider than n_embd / n_head, as in the 0.6B. */
#define TINY                                                                                       \
    .family = &qwen3_shapes, .eps = 1e-6, .theta = 1e6, .n_layer = 4, .n_embd = 64,                \
    .n_vocab = 512, .n_ff = {96}, .n_head = {4}, .n_head_kv = {2}, .head_dim = 32,                 \
    .n_ctx_train = 8192

static const qwen3_shape sizes[] = {
    {COMMON, .name = "qwen3-0.6b", .n_layer = 28, .n_embd = 1024, .n_ff = {3072}, .n_head = {16},
     .n_head_kv = {8}, .tied = true},
    {COMMON, .name = "qwen3-1.7b", .n_layer = 28, .n_embd = 2048, .n_ff = {6144}, .n_head = {16},
     .n_head_kv = {8}, .tied = true},
    {COMMON, .name = "qwen3-4b", .n_layer = 36, .n_embd = 2560, .n_ff = {9728}, .n_head = {32},
     .n_head_kv = {8}, .tied = true},
    {COMMON, .name = "qwen3-8b", .n_layer = 36, .n_embd = 4096, .n_ff = {12288}, .n_head = {32},
     .n_head_kv = {8}},
    {COMMON, .name = "qwen3-14b", .n_layer = 40, .n_embd = 5120, .n_ff = {17408}, .n_head = {40},
     .n_head_kv = {8}},
    {COMMON, .name = "qwen3-32b", .n_layer = 64, .n_embd = 5120, .n_ff = {25600}, .n_head = {64},
     .n_head_kv = {8}},
    {COMMON, SIZE_30B, .name = "qwen3-30b-a3b", .n_ff = {6144}},
    {COMMON, SIZE_235B, .name = "qwen3-235b-a22b"},
    {PUBLISHED, SIZE_30B, .name = "qwen3-coder-30b-a3b", .n_ff = {5472}, .n_ctx_train = 262144,
     .theta = 1e7},
    /* The last token's row is the vector. Their vocabulary has no rows to spare. */
    {EMBEDDING, .name = "qwen3-embedding-0.6b", .n_layer = 28, .n_embd = 1024, .n_ff = {3072},
     .n_head = {16}, .n_head_kv = {8}, .n_vocab = 151669, .n_ctx_train = 32768},
    {EMBEDDING, .name = "qwen3-embedding-4b", .n_layer = 36, .n_embd = 2560, .n_ff = {9728},
     .n_head = {32}, .n_head_kv = {8}, .n_vocab = 151665, .n_ctx_train = 40960},
    {EMBEDDING, .name = "qwen3-embedding-8b", .n_layer = 36, .n_embd = 4096, .n_ff = {12288},
     .n_head = {32}, .n_head_kv = {8}, .n_vocab = 151665, .n_ctx_train = 40960},
    {SEES, .name = "qwen3-vl-2b", .n_layer = 28, .n_embd = 2048, .n_ff = {6144}, .n_head = {16},
     .n_head_kv = {8}, .tied = true},
    {SEES, .name = "qwen3-vl-4b", .n_layer = 36, .n_embd = 2560, .n_ff = {9728}, .n_head = {32},
     .n_head_kv = {8}, .tied = true},
    {SEES, .name = "qwen3-vl-8b", .n_layer = 36, .n_embd = 4096, .n_ff = {12288}, .n_head = {32},
     .n_head_kv = {8}},
    {SEES, .name = "qwen3-vl-32b", .n_layer = 64, .n_embd = 5120, .n_ff = {25600}, .n_head = {64},
     .n_head_kv = {8}},
    {SEES, SIZE_30B, .name = "qwen3-vl-30b-a3b", .n_ff = {6144}},
    {SEES, SIZE_235B, .name = "qwen3-vl-235b-a22b"},
    {TINY, TINY_SEES, .name = "tiny-qwen3-vl", .tied = true},
    {TINY, TINY_SEES, .name = "tiny-qwen3-vl-moe", .n_expert = 8, .n_used = 2, .n_ff_exp = 32},
    {TINY, .name = "tiny-qwen3", .tied = true},
    {TINY, .name = "tiny-qwen3-reranker", .tied = true, .pooling = POOLING_RANK},
    {TINY, .name = "tiny-qwen3moe", .n_expert = 8, .n_used = 2, .n_ff_exp = 32},
};

/* ---- Keys ---- */

static const qwen3_shape *own(const model_shape *s)
{
    return (const qwen3_shape *)s;
}

static bool has_experts(const model_shape *s)
{
    return own(s)->n_expert > 0;
}

static bool sees(const model_shape *s)
{
    return own(s)->sees;
}

#define F(name) offsetof(qwen3_shape, name)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("feed_forward_length", "intermediate_size", F(n_ff), COUNTS, 1, WIDTH_MAX),
    K("attention.head_count", "num_attention_heads", F(n_head), COUNTS, 1, HEADS_MAX),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), COUNTS, 1, HEADS_MAX,
      .how = MAY_LACK, .otherwise = F(n_head)),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX,
      .same_as = "attention.key_length"),
    K("rope.dimension_count", NULL, F(n_rot), COUNT, 2, WIDTH_MAX, .how = MAY_LACK | READ_ONLY,
      .upto = F(head_dim), .otherwise = F(head_dim)),
    K("attention.sliding_window", NULL, 0, COUNT, 0, 0, .how = MAY_LACK | READ_ONLY),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1, .how = MAY_LACK,
      .value = 1e-6),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e6),
    K("n_deepstack_layers", NULL, F(n_deep), COUNT, 0, LAYERS_MAX, .how = MAY_LACK, .when = sees,
      .below = F(n_layer)),
    K("rope.scaling", NULL, F(scaling), YARN, 0, 0, .otherwise = F(n_ctx_train)),
    K(NULL, "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX),
    K("pooling_type", NULL, F(pooling), COUNT, 0, POOLING_KINDS - 1, .how = MAY_LACK | OMIT_ZERO),
    K("expert_count", "num_experts", F(n_expert), COUNT, 0, EXPERTS_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK | OMIT_ZERO, .or_config = "num_local_experts"),
    K("expert_used_count", "num_experts_per_tok", F(n_used), COUNT, 1, EXPERTS_MAX,
      .when = has_experts, .upto = F(n_expert)),
    K("expert_feed_forward_length", "moe_intermediate_size", F(n_ff_exp), COUNT, 1, WIDTH_MAX / 2,
      .when = has_experts),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const qwen3_shape *s = own(m);
    status st = OK;
    if (s->pooling == POOLING_FIRST)
        return err_set(
            e, bad, "%s: pooling_type is 2 (the first token), expected the mean or the last", what);
    if (s->head_dim % 2 || s->n_rot % 2)
        return err_set(e, bad, "%s: heads of %d with %d rotated dims: expected even numbers", what,
                       s->head_dim, s->n_rot);
    if (s->section[0] && 2 * (s->section[0] + s->section[1] + s->section[2]) != s->n_rot)
        return err_set(e, bad,
                       "%s: %d rotated dims in sections of %d, %d and %d pairs "
                       "(rope.dimension_sections, mrope_section): expected all of them",
                       what, s->n_rot, s->section[0], s->section[1], s->section[2]);
    for (int32_t il = 0; il < s->n_layer && !st; il++)
        st = table_agree_heads(il, s->n_head[il], s->n_head_kv[il], s->head_dim, bad, what, e);
    return st;
}

static void fill(model_shape *m, int32_t size)
{
    ((qwen3_shape *)m)->n_rot = sizes[size].head_dim;
}

/* ---- Tensors ---- */

enum { D = 1, VOCAB, Q, KV, HD, FF, N_EXP, FF_EXP, ANSWERS };
enum { GATES = 1, UPS, DOWNS }; /* hf_change */
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const qwen3_shape *s = own(m);
    const int64_t of[] = {[D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = (int64_t)s->n_head[il < 0 ? 0 : il] * s->head_dim,
                          [KV] = (int64_t)s->n_head_kv[il < 0 ? 0 : il] * s->head_dim,
                          [HD] = s->head_dim,
                          [FF] = s->n_ff[il < 0 ? 0 : il],
                          [N_EXP] = s->n_expert,
                          [FF_EXP] = s->n_ff_exp,
                          [ANSWERS] = RANK_ANSWERS};
    return of[d];
}

static bool is_sparse(const model_shape *s, int32_t il)
{
    (void)il;
    return has_experts(s);
}

static bool is_one_by_one(const model_shape *s, int32_t il)
{
    return is_sparse(s, il) && !sees(s);
}

static bool is_turned(const model_shape *s, int32_t il)
{
    return is_sparse(s, il) && sees(s);
}

static bool is_dense(const model_shape *s, int32_t il)
{
    return !is_sparse(s, il);
}

/* A reranker whose file has the head's rows of "yes" and "no" as a matrix of their own. */
static bool ranks(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->pooling == POOLING_RANK;
}

#define M(name) offsetof(qwen3, name)
static const table_tensor of_model[] = {
    T_TOKENS(M(common.out_norm)),
    T(ranks, ELSEWHERE, "cls.output.weight", "", EIGHT_BITS, D, ANSWERS)};

#define W(name) offsetof(block, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T_QKV,
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T_HEAD_NORMS,
    T(ALWAYS, W(ffn_norm), "ffn_norm.weight", "post_attention_layernorm.weight", NORM, D),
    T_UNIT(is_dense),
    T(is_sparse, W(router), "ffn_gate_inp.weight", "mlp.gate.weight", ROUTER, D, N_EXP),
    T_MLP_EXPERTS(is_one_by_one),
    T_AS(GATES, is_turned, ELSEWHERE, "ffn_gate_exps.weight", "mlp.experts.gate_up_proj", MATRIX, D,
         FF_EXP, N_EXP),
    T_AS(UPS, is_turned, ELSEWHERE, "ffn_up_exps.weight", "mlp.experts.gate_up_proj", MATRIX, D,
         FF_EXP, N_EXP),
    T_AS(DOWNS, is_turned, ELSEWHERE, "ffn_down_exps.weight", "mlp.experts.down_proj", DOWN_EXPERTS,
         FF_EXP, D, N_EXP),
};

/* Experts in checkpoints of Qwen3-VL: inputs before outputs, the gate's before the other's. */
static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    (void)m;
    t->change.turned = t->change.halves = r->change != 0;
    if (r->change == GATES || r->change == UPS) {
        t->change.every = 2;
        t->change.from = r->change == UPS;
    }
}

/* ---- The entry ---- */

static const char *arch_of(const model_shape *s, char buf[TABLE_ARCH])
{
    (void)buf;
    return sees(s)          ? has_experts(s) ? "qwen3vlmoe" : "qwen3vl"
           : has_experts(s) ? "qwen3moe"
                            : "qwen3";
}

static status tell_kind(const model *m, model_shape *s, err *e)
{
    (void)e;
    ((qwen3_shape *)s)->sees = m->arch == &qwen3vl_arch || m->arch == &qwen3vlmoe_arch;
    return OK;
}

static void put_sections(gguf_writer *w, const char *arch, const model_shape *m)
{
    const int32_t *n = own(m)->section;
    char key[64];
    if (!sees(m))
        return;
    snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
    gguf_put_i32s(w, key, (int32_t[]){n[0], n[1], n[2], 0}, 4);
}

static const family_table rows = {TABLE_ROWS,          .dim = dim,          .agree = agree,
                                  .fill = fill,        .arch = arch_of,     .tell = tell_kind,
                                  .put = put_sections, .describe = describe};

const shape_family qwen3_shapes = {
    TABLE_HOOKS(qwen3_shape, rows),
    .arch = "qwen3",
    .title = "qwen",
    .sizes = "qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, qwen3-30b-a3b, "
             "qwen3-235b-a22b, qwen3-coder-30b-a3b, qwen3-embedding-0.6b, qwen3-embedding-4b, "
             "qwen3-embedding-8b, qwen3-vl-2b, qwen3-vl-4b, qwen3-vl-8b, qwen3-vl-32b, "
             "qwen3-vl-30b-a3b, qwen3-vl-235b-a22b, tiny-qwen3, tiny-qwen3-reranker, "
             "tiny-qwen3moe, tiny-qwen3-vl, tiny-qwen3-vl-moe",
    .mix = "q4_k_m",
    .cut = table_cut};

/* ---- Binding ---- */

static status bind_each(model *m, qwen3 *g, const qwen3_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        block *L = &g->layer[i];
        const binder b = {m, i, e};
        const expert_sizes sizes_of = {s->n_embd,  s->n_ff_exp,  s->n_expert, s->n_used,
                                       &L->router, &L->ffn_norm, NULL,        false};
        L->rope = &g->rope[PASS_MAIN];
        if ((st = bind_qkv(&b, &L->wq, &L->wk, &L->wv, s->n_embd, dim(&s->common, i, Q),
                           dim(&s->common, i, KV))) ||
            (st = table_bind(&b, &s->common, L)) ||
            (s->n_expert && (st = bind_experts(&b, &sizes_of, &L->gate, &L->up, &L->down))))
            return st;
        m->kv[i] = (kv_spec){
            .layer = i,
            .n_head_kv = s->n_head_kv[i],
            .head_dim = s->head_dim,
            .wide = bind_wide_heads(&L->q_norm, &L->k_norm, s->head_dim, L->rope->factor)};
    }
    return st;
}

static status bind_qwen3(model *m, err *e)
{
    model_shape *shape = NULL;
    qwen3 *g = bind_begin(m, &qwen3_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const qwen3_shape *s = own(shape);
    const binder b = {m, -1, e};
    const turning t = {s->n_rot, s->theta, s->n_rot / 2, &g->rope_factors, &s->scaling};
    status st;
    g->common = (block_model){.head_dim = s->head_dim,
                              .n_used = s->n_used,
                              .eps = (float)s->eps,
                              .scale = 1.0f / sqrtf((float)s->head_dim),
                              .act = ACT_SILU};
    m->n_deep = s->n_deep;
    if (has_experts(shape) != (m->arch == &qwen3moe_arch || m->arch == &qwen3vlmoe_arch))
        return err_set(e, E_FORMAT, "%s: %s.expert_count = %d, expected %s", m->file.path,
                       m->arch->name, s->n_expert, s->n_expert ? "no experts" : "1 or more");
    if ((st = bind_tokens(m, &g->common.embd, &g->common.head, s->n_embd, e)) ||
        (st = table_bind(&b, shape, g)) ||
        (st = bind_vector_if(&b, &g->rope_factors, "rope_freqs.weight", s->n_rot / 2)) ||
        (st = bind_rope(m, &g->rope[PASS_MAIN], &t, e)) ||
        (s->sees && (st = bind_sections(m, &g->rope[PASS_MAIN], e))) ||
        (st = bind_each(m, g, s, e)))
        return st;
    if (s->sees && !m->turns_by_axes)
        return err_set(e, E_FORMAT, "%s: key %s.rope.dimension_sections is missing", m->file.path,
                       m->arch->name);
    if (ranks(shape, -1) &&
        (st = bind_tensor(
             &b, &g->answers, "cls.output.weight",
             (model_want){.n_in = s->n_embd, .n_out = RANK_ANSWERS, .n_mat = 1, .host = true})))
        return st;
    m->answers = ranks(shape, -1) ? &g->answers : NULL;
    return bind_done(m, shape, g, &g->common.embd, &g->common.head, e);
}

#define QWEN3                                                                                      \
    .sampling = {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}, .bind = bind_qwen3,            \
    .forward = block_forward, .divide = divide_plain, .at_rank = block_at_rank
const model_arch qwen3_arch = {.name = "qwen3", QWEN3};
const model_arch qwen3moe_arch = {.name = "qwen3moe", QWEN3};
#define QWEN3VL                                                                                    \
    .sampling = {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f}, .bind = bind_qwen3,             \
    .forward = block_forward, .divide = divide_plain, .at_rank = block_at_rank
const model_arch qwen3vl_arch = {.name = "qwen3vl", QWEN3VL};
const model_arch qwen3vlmoe_arch = {.name = "qwen3vlmoe", QWEN3VL};
