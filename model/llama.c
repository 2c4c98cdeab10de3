/* llama.c - Llama 2 and 3, Mistral and Mixtral: sizes, keys, tensors, and binding. The forward
 * pass is that of block.c.
 *
 * Easy to get wrong: files rotate interleaved pairs (2 i, 2 i + 1) of a head, checkpoints
 * half-split ones; so conversion moves the rows of queries and keys. Nothing norms queries or keys.
 * Llama 3.1 and later divide frequencies by rope_freqs.weight, which no key mentions. Old files
 * state neither the size of a head nor the base of the rotation. With a window every layer has it.
 * Mixtral's experts all have the feed-forward width; their weights are the softmax over the chosen
 * two, which is the softmax over all, divided by the sum of the two. Ministral 3 multiplies its
 * queries by a temperature that grows with the position.
 */
#include "model/llama.h"
#include "model/bind.h"

#include <math.h>

/* ---- Sizes ---- */

#define COMMON .family = &llama_shapes, .eps = 1e-5
#define LLAMA3                                                                                     \
    COMMON, .n_vocab = 128256, .n_head_kv = 8, .theta = 5e5, .n_ctx_train = 131072,                \
            .llama3 = {.low = 1, .high = 4, .n_ctx = 8192, .factor = 8}
#define LLAMA32                                                                                    \
    COMMON, .n_vocab = 128256, .n_head_kv = 8, .theta = 5e5, .n_ctx_train = 131072,                \
            .llama3 = {.low = 1, .high = 4, .n_ctx = 8192, .factor = 32}, .tied = true
#define MISTRAL COMMON, .n_head = 32, .n_head_kv = 8, .head_dim = 128
#define MINISTRAL3                                                                                 \
    MISTRAL, .n_vocab = 131072, .n_ctx_train = 262144, .temperature = 0.1,                         \
             .scaling = {SCALING_YARN,    .factor = 16,   .n_ctx = 16384,                          \
                         .beta_fast = 32, .beta_slow = 1, .magnitude = 1}

static const llama_shape sizes[] = {
    {COMMON, .name = "llama-2-7b", .n_layer = 32, .n_embd = 4096, .n_ff = 11008, .n_head = 32,
     .n_head_kv = 32, .head_dim = 128, .n_vocab = 32000, .n_ctx_train = 4096, .theta = 1e4},
    {LLAMA32, .name = "llama-3.2-1b", .n_layer = 16, .n_embd = 2048, .n_ff = 8192, .n_head = 32,
     .head_dim = 64},
    {LLAMA32, .name = "llama-3.2-3b", .n_layer = 28, .n_embd = 3072, .n_ff = 8192, .n_head = 24,
     .head_dim = 128},
    {LLAMA3, .name = "llama-3.1-8b", .n_layer = 32, .n_embd = 4096, .n_ff = 14336, .n_head = 32,
     .head_dim = 128},
    {LLAMA3, .name = "llama-3.3-70b", .n_layer = 80, .n_embd = 8192, .n_ff = 28672, .n_head = 64,
     .head_dim = 128},
    {MISTRAL, .name = "mistral-7b", .n_layer = 32, .n_embd = 4096, .n_ff = 14336, .n_vocab = 32768,
     .n_ctx_train = 32768, .theta = 1e6},
    {MISTRAL, .name = "mistral-nemo-12b", .n_layer = 40, .n_embd = 5120, .n_ff = 14336,
     .n_vocab = 131072, .n_ctx_train = 131072, .theta = 1e6},
    {MISTRAL, .name = "mistral-small-24b", .n_layer = 40, .n_embd = 5120, .n_ff = 32768,
     .n_vocab = 131072, .n_ctx_train = 32768, .theta = 1e8},
    {MISTRAL, .name = "mixtral-8x7b", .n_layer = 32, .n_embd = 4096, .n_ff = 14336,
     .n_vocab = 32000, .n_ctx_train = 32768, .theta = 1e6, .n_expert = 8, .n_used = 2},
    {MINISTRAL3, .name = "ministral-3-3b", .n_layer = 26, .n_embd = 3072, .n_ff = 9216,
     .theta = 1e6, .tied = true},
    {MINISTRAL3, .name = "ministral-3-8b", .n_layer = 34, .n_embd = 4096, .n_ff = 14336,
     .theta = 1e6},
    {MINISTRAL3, .name = "ministral-3-14b", .n_layer = 40, .n_embd = 5120, .n_ff = 16384,
     .theta = 1e9},
    {COMMON, .name = "tiny-llama3", .n_layer = 4, .n_embd = 64, .n_ff = 96, .n_head = 4,
     .n_head_kv = 2, .head_dim = 32, .n_vocab = 512, .n_ctx_train = 8192, .theta = 5e5,
     .llama3 = {.low = 1, .high = 4, .n_ctx = 64, .factor = 8}},
    {COMMON, .name = "tiny-mixtral", .n_layer = 4, .n_embd = 64, .n_ff = 32, .n_head = 4,
     .n_head_kv = 2, .head_dim = 16, .n_vocab = 512, .n_ctx_train = 8192, .theta = 1e6,
     .n_expert = 8, .n_used = 2},
    {COMMON, .name = "tiny-ministral3", .n_layer = 4, .n_embd = 64, .n_ff = 96, .n_head = 4,
     .n_head_kv = 2, .head_dim = 32, .n_vocab = 512, .n_ctx_train = 4096, .theta = 1e6,
     .temperature = 0.1,
     .scaling = {SCALING_YARN, .factor = 16, .n_ctx = 32, .beta_fast = 32, .beta_slow = 1,
                 .magnitude = 1}},
};

static llama_shape *own(const model_shape *s)
{
    return (llama_shape *)s;
}

static void fill(model_shape *s, int32_t size)
{
    own(s)->n_rot = sizes[size].head_dim;
}

/* ---- Keys ---- */

static bool has_head_dim(const model_shape *s)
{
    return own(s)->head_dim > 0;
}

static bool has_experts(const model_shape *s)
{
    return own(s)->n_expert > 0;
}

#define F(name) offsetof(llama_shape, name)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("feed_forward_length", "intermediate_size", F(n_ff), UNIFORM, 1, WIDTH_MAX),
    K("attention.head_count", "num_attention_heads", F(n_head), UNIFORM, 1, HEADS_MAX),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), UNIFORM, 1, HEADS_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK, .otherwise = F(n_head)),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e4),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 0, WIDTH_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX, .when = has_head_dim,
      .same_as = "attention.key_length"),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = WRITE_ONLY),
    K("rope.dimension_count", NULL, F(n_rot), COUNT, 0, WIDTH_MAX, .how = MAY_LACK),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 0, CTX_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK | OMIT_ZERO),
    K("rope.scaling", NULL, F(scaling), YARN, 0, 0, .otherwise = F(n_ctx_train)),
    K("expert_count", "num_local_experts", F(n_expert), COUNT, 0, EXPERTS_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK | OMIT_ZERO),
    K("expert_used_count", "num_experts_per_tok", F(n_used), COUNT, 1, EXPERTS_MAX,
      .when = has_experts, .upto = F(n_expert)),
    K("attention.temperature_scale", NULL, F(temperature), REAL, 0, 100,
      .how = MAY_LACK | OMIT_ZERO),
};

static status read_rest(const model *m, model_shape *shape, err *e)
{
    llama_shape *s = own(shape);
    (void)m, (void)e;
    s->head_dim = s->head_dim ? s->head_dim : s->n_embd / s->n_head;
    s->n_rot = s->n_rot ? s->n_rot : s->head_dim;
    return OK;
}

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const llama_shape *s = own(m);
    if (s->head_dim < 2 || s->head_dim % 2 || s->n_rot % 2 || s->n_rot > s->head_dim)
        return err_set(e, bad, "%s: heads of %d with %d rotated dims: expected even numbers", what,
                       s->head_dim, s->n_rot);
    return table_agree_heads(0, s->n_head, s->n_head_kv, s->head_dim, bad, what, e);
}

/* ---- Tensors ---- */

enum { D = 1, VOCAB, Q, KV, FF, PAIRS, N_EXP };
enum { INTERLEAVE = 1 };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const llama_shape *s = own(m);
    const int64_t of[] = {[D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = (int64_t)s->n_head * s->head_dim,
                          [KV] = (int64_t)s->n_head_kv * s->head_dim,
                          [FF] = s->n_ff,
                          [PAIRS] = s->n_rot / 2,
                          [N_EXP] = s->n_expert};
    (void)il;
    return of[d];
}

static bool has_factors(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->llama3.factor > 0;
}

static bool is_sparse(const model_shape *s, int32_t il)
{
    (void)il;
    return has_experts(s);
}

static bool is_dense(const model_shape *s, int32_t il)
{
    return !is_sparse(s, il);
}

#define M(name) offsetof(llama, name)
static const table_tensor of_model[] = {
    T_TOKENS(M(common.out_norm)),
    T(has_factors, ELSEWHERE, "rope_freqs.weight", "", ROPE_FACTORS, PAIRS),
};

#define W(name) offsetof(block, name)
#define HF_EXPERT(w) "block_sparse_moe.experts.*." w ".weight"
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T_AS(INTERLEAVE, ALWAYS, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),
    T_AS(INTERLEAVE, ALWAYS, W(wk), "attn_k.weight", "self_attn.k_proj.weight", MATRIX, D, KV),
    T(ALWAYS, W(wv), "attn_v.weight", "self_attn.v_proj.weight", ATTN_V, D, KV),
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T(ALWAYS, W(ffn_norm), "ffn_norm.weight", "post_attention_layernorm.weight", NORM, D),
    T_UNIT(is_dense),
    T(is_sparse, W(router), "ffn_gate_inp.weight", "block_sparse_moe.gate.weight", ROUTER, D,
      N_EXP),
    T_EXPERTS(is_sparse, FF, HF_EXPERT("w1"), HF_EXPERT("w3"), HF_EXPERT("w2")),
};

/* Row 2 i + k of a file's head is row i + k head_dim / 2 of the checkpoint's. */
static void describe(const model_shape *s, const table_tensor *r, shape_tensor *t)
{
    if (r->change == INTERLEAVE)
        t->change = (hf_change){.n_k = 2, .n_v = (uint32_t)own(s)->head_dim, .per_head = 1};
}

/* The tensor of ROLE_ROPE_FACTORS. */
static void compute(const model_shape *shape, const shape_tensor *t, void *out)
{
    const llama_shape *s = own(shape);
    const llama3_scaling *y = &s->llama3;
    (void)t;
    for (int32_t i = 0; i < s->n_rot / 2; i++) {
        double turns = y->n_ctx * pow(s->theta, -2.0 * i / s->n_rot) / (2 * M_PI);
        double smooth = fmin(fmax((turns - y->low) / (y->high - y->low), 0), 1);
        ((float *)out)[i] = (float)(1 / ((1 - smooth) / y->factor + smooth));
    }
}

static const char *arch_of(const model_shape *s, char buf[TABLE_ARCH])
{
    (void)buf;
    return own(s)->temperature > 0 ? "mistral3" : "llama";
}

static const family_table rows = {TABLE_ROWS,     .dim = dim,        .agree = agree,
                                  .fill = fill,   .read = read_rest, .describe = describe,
                                  .arch = arch_of};

const shape_family llama_shapes = {
    TABLE_HOOKS(llama_shape, rows),
    .arch = "llama",
    .title = "llama",
    .sizes = "llama-2-7b, llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, llama-3.3-70b, mistral-7b, "
             "mistral-nemo-12b, mistral-small-24b, mixtral-8x7b, ministral-3-3b, ministral-3-8b, "
             "ministral-3-14b, tiny-llama3, tiny-mixtral, tiny-ministral3",
    .mix = "q4_k_m",
    .cut = table_cut,
    .compute = compute};

/* ---- Binding ---- */

static status bind_each(model *m, llama *g, const llama_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        block *L = &g->layer[i];
        const binder b = {m, i, e};
        const expert_sizes sizes_of = {s->n_embd,  s->n_ff,      s->n_expert, s->n_used,
                                       &L->router, &L->ffn_norm, NULL,        false};
        L->rope = &g->rope[PASS_MAIN];
        st = table_bind(&b, &s->common, L);
        if (!st && s->n_expert)
            st = bind_experts(&b, &sizes_of, &L->gate, &L->up, &L->down);
        m->kv[i] = (kv_spec){
            .layer = i, .window = s->window, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
    }
    return st;
}

static status bind_llama(model *m, err *e)
{
    model_shape *shape = NULL;
    llama *g = bind_begin(m, &llama_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const llama_shape *s = own(shape);
    const binder b = {m, -1, e};
    const turning t = {s->n_rot, s->theta, s->n_rot / 2, &g->rope_factors, &s->scaling};
    status st;
    g->common = (block_model){.head_dim = s->head_dim,
                              .n_used = s->n_used,
                              .eps = (float)s->eps,
                              .scale = 1.0f / sqrtf((float)s->head_dim),
                              .act = ACT_SILU,
                              .temperature = (float)s->temperature,
                              .period = (int32_t)s->scaling.n_ctx};
    if (s->n_expert && tensor_find(&m->file.tensors, "blk.0.ffn_gate.0.weight"))
        return err_set(
            e, E_UNSUPPORTED,
            "%s: every expert has tensors of its own (blk.0.ffn_gate.0.weight), as files "
            "of early 2024 have; convert the checkpoint again, or take a newer file",
            m->file.path);
    if ((st = bind_tokens(m, &g->common.embd, &g->common.head, s->n_embd, e)) ||
        (st = table_bind(&b, shape, g)) ||
        (st = bind_vector_if(&b, &g->rope_factors, "rope_freqs.weight", s->n_rot / 2)) ||
        (st = bind_rope(m, &g->rope[PASS_MAIN], &t, e)) || (st = bind_each(m, g, s, e)))
        return st;
    g->rope[PASS_MAIN].interleaved = true;
    m->window = s->window;
    return bind_done(m, shape, g, &g->common.embd, &g->common.head, e);
}

#define LLAMA                                                                                      \
    .bind = bind_llama, .forward = block_forward, .divide = divide_plain, .at_rank = block_at_rank
const model_arch llama_arch = {
    .name = "llama", .sampling = {.temperature = 0.6f, .top_p = 0.9f}, LLAMA};
/* Mistral's cards of Ministral 3 say a temperature below 0.1 for answers. */
const model_arch mistral3_arch = {.name = "mistral3", .sampling = {.temperature = 0.15f}, LLAMA};
