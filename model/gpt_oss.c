/* gpt_oss.c - gpt-oss: sizes, keys, tensors, and binding. The forward pass is that of block.c.
 *
 * Easy to get wrong: every product has a bias, those of experts and of the router too. Each head
 * has a sink: a score in the softmax that has no value. Even layers have a window, odd layers have
 * none; both use the same rotation. The rotation is YaRN, and the range of pairs that it blends has
 * ends that are not rounded to whole pairs. GGUF files have no key for that rounding. Experts clamp
 * gate and up (ACT_SWIGLU_CUT). The weights of a row's experts are the softmax over the chosen
 * ones, which is the softmax over all, divided by the sum of the chosen. In a checkpoint, gate and
 * up rows alternate in one tensor. Expert tensors in MXFP4 have outputs first, others have inputs
 * first.
 */
#include "model/gpt_oss.h"
#include "backend/swiglu.h"
#include "model/bind.h"

#include <math.h>

/* ---- Sizes ---- */

enum { PERIOD = 2 }; /* the last layer of each two has no window */

#define COMMON                                                                                     \
    .family = &gpt_oss_shapes, .eps = 1e-5, .theta = 1.5e5,                                        \
    .scaling = {SCALING_YARN, .factor = 32, .n_ctx = 4096, .beta_fast = 32, .beta_slow = 1}
#define PUBLISHED                                                                                  \
    COMMON, .n_embd = 2880, .n_ff = 2880, .n_vocab = 201088, .n_head = 64, .n_head_kv = 8,         \
            .head_dim = 64, .window = 128, .n_used = 4, .n_ctx_train = 131072

static const gpt_oss_shape sizes[] = {
    {PUBLISHED, .name = "gpt-oss-20b", .n_layer = 24, .n_expert = 32},
    {PUBLISHED, .name = "gpt-oss-120b", .n_layer = 36, .n_expert = 128},
    {COMMON, .name = "tiny-gpt-oss", .n_layer = 4, .n_embd = 64, .n_ff = 64, .n_vocab = 512,
     .n_head = 4, .n_head_kv = 2, .head_dim = 32, .window = 16, .n_expert = 8, .n_used = 2,
     .n_ctx_train = 8192},
};

static void fill(model_shape *m, int32_t size)
{
    (void)size;
    for (int32_t il = 0; il < m->n_layer; il++)
        ((gpt_oss_shape *)m)->swa[il] = (il + 1) % PERIOD != 0;
}

/* ---- Keys ---- */

static const gpt_oss_shape *own(const model_shape *s)
{
    return (const gpt_oss_shape *)s;
}

#define F(name) offsetof(gpt_oss_shape, name)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("feed_forward_length", "intermediate_size", F(n_ff), UNIFORM, 1, WIDTH_MAX / 2),
    K("expert_feed_forward_length", NULL, F(n_ff), COUNT, 1, WIDTH_MAX / 2,
      .same_as = "feed_forward_length"),
    K("attention.head_count", "num_attention_heads", F(n_head), UNIFORM, 1, HEADS_MAX),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), UNIFORM, 1, HEADS_MAX),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX, .how = CONFIG_BY_HAND),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1),
    K("expert_count", "num_local_experts", F(n_expert), COUNT, 1, EXPERTS_MAX,
      .or_config = "num_experts"),
    K("expert_used_count", "num_experts_per_tok", F(n_used), COUNT, 1, EXPERTS_MAX,
      .upto = F(n_expert), .or_config = "experts_per_token"),
    K("attention.key_length", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    K("attention.value_length", NULL, F(head_dim), COUNT, 2, WIDTH_MAX,
      .same_as = "attention.key_length"),
    K("rope.dimension_count", NULL, F(head_dim), COUNT, 2, WIDTH_MAX, .how = READ_ONLY,
      .same_as = "attention.key_length"),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 1, CTX_MAX),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .how = WRITE_ONLY),
    K("rope.scaling", NULL, F(scaling), YARN, 0, 0, .otherwise = F(n_ctx_train)),
    K(NULL, "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX),
    K(NULL, "swiglu_limit", 0, REAL, SWIGLU_CUT, SWIGLU_CUT, .how = CONFIG_BY_HAND),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gpt_oss_shape *s = own(m);
    if (s->head_dim % 2)
        return err_set(e, bad, "%s: heads of %d, expected an even number", what, s->head_dim);
    return table_agree_heads(0, s->n_head, s->n_head_kv, s->head_dim, bad, what, e);
}

static status read_rest(const model *m, model_shape *shape, err *e)
{
    gpt_oss_shape *s = (gpt_oss_shape *)shape;
    s->scaling.unrounded = true;
    return bind_windows(m, PERIOD, s->swa, s->n_layer, e);
}

/* ---- Tensors ---- */

enum { D = 1, VOCAB, Q, KV, HEADS, FF, N_EXP };
enum { GATES = 1, UPS, DOWNS };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gpt_oss_shape *s = own(m);
    const int64_t of[] = {[D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [Q] = (int64_t)s->n_head * s->head_dim,
                          [KV] = (int64_t)s->n_head_kv * s->head_dim,
                          [HEADS] = s->n_head,
                          [FF] = s->n_ff,
                          [N_EXP] = s->n_expert};
    (void)il;
    return of[d];
}

#define M(name) offsetof(gpt_oss, name)
static const table_tensor of_model[] = {T_TOKENS(M(common.out_norm))};

#define W(name) offsetof(gpt_oss_layer, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(common.attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T(ALWAYS, W(common.wq), "attn_q.weight", "self_attn.q_proj.weight", EIGHT_BITS, D, Q),
    T(ALWAYS, W(bq), "attn_q.bias", "self_attn.q_proj.bias", BIAS, Q),
    T(ALWAYS, W(common.wk), "attn_k.weight", "self_attn.k_proj.weight", EIGHT_BITS, D, KV),
    T(ALWAYS, W(bk), "attn_k.bias", "self_attn.k_proj.bias", BIAS, KV),
    T(ALWAYS, W(common.wv), "attn_v.weight", "self_attn.v_proj.weight", EIGHT_BITS, D, KV),
    T(ALWAYS, W(bv), "attn_v.bias", "self_attn.v_proj.bias", BIAS, KV),
    T(ALWAYS, W(common.wo), "attn_output.weight", "self_attn.o_proj.weight", EIGHT_BITS, Q, D),
    T(ALWAYS, W(bo), "attn_output.bias", "self_attn.o_proj.bias", BIAS, D),
    T(ALWAYS, W(sinks), "attn_sinks.weight", "self_attn.sinks", BIAS, HEADS),
    T(ALWAYS, W(common.ffn_norm), "post_attention_norm.weight", "post_attention_layernorm.weight",
      NORM, D),
    T(ALWAYS, W(common.router), "ffn_gate_inp.weight", "mlp.router.weight", ROUTER, D, N_EXP),
    T(ALWAYS, W(router_bias), "ffn_gate_inp.bias", "mlp.router.bias", BIAS, N_EXP),
    T_AS(GATES, ALWAYS, ELSEWHERE, "ffn_gate_exps.weight", "mlp.experts.gate_up_proj", MATRIX, D,
         FF, N_EXP),
    T_AS(GATES, ALWAYS, W(gate_bias), "ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", BIAS,
         FF, N_EXP),
    T_AS(UPS, ALWAYS, ELSEWHERE, "ffn_up_exps.weight", "mlp.experts.gate_up_proj", MATRIX, D, FF,
         N_EXP),
    T_AS(UPS, ALWAYS, W(up_bias), "ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", BIAS, FF,
         N_EXP),
    T_AS(DOWNS, ALWAYS, ELSEWHERE, "ffn_down_exps.weight", "mlp.experts.down_proj", DOWN_EXPERTS,
         FF, D, N_EXP),
    T(ALWAYS, W(down_bias), "ffn_down_exps.bias", "mlp.experts.down_proj_bias", BIAS, D, N_EXP),
};

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    (void)m;
    t->change.turned = r->change && r->role != ROLE_BIAS;
    if (r->change == GATES || r->change == UPS) {
        t->change.every = 2;
        t->change.from = r->change == UPS;
    }
}

static const family_table rows = {TABLE_ROWS,   .dim = dim,        .agree = agree,
                                  .fill = fill, .read = read_rest, .describe = describe};

const shape_family gpt_oss_shapes = {TABLE_HOOKS(gpt_oss_shape, rows),
                                     .arch = "gpt-oss",
                                     .title = "gpt-oss",
                                     .sizes = "gpt-oss-20b, gpt-oss-120b, tiny-gpt-oss",
                                     .mix = "mxfp4",
                                     .cut = table_cut};

/* ---- Binding ---- */

/* A bias of each expert, [n_expert] matrices of one row. */
static void by_expert(weight *w)
{
    w->n_mat = w->n_out;
    w->n_out = 1;
    w->mat_bytes = w->row_bytes;
}

static void join_biases(gpt_oss_layer *L)
{
    block *B = &L->common;
    by_expert(&L->gate_bias);
    by_expert(&L->up_bias);
    by_expert(&L->down_bias);
    B->wq.bias = &L->bq;
    B->wk.bias = &L->bk;
    B->wv.bias = &L->bv;
    B->wo.bias = &L->bo;
    B->router.bias = &L->router_bias;
    B->gate.bias = &L->gate_bias;
    B->up.bias = &L->up_bias;
    B->down.bias = &L->down_bias;
}

static status bind_each(model *m, gpt_oss *g, const gpt_oss_shape *s, err *e)
{
    status st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        gpt_oss_layer *L = &g->layer[i];
        block *B = &L->common;
        const binder b = {m, i, e};
        const expert_sizes sizes_of = {s->n_embd,  s->n_ff,      s->n_expert, s->n_used,
                                       &B->router, &B->ffn_norm, NULL,        false};
        B->rope = &g->rope[PASS_MAIN];
        if ((st = table_bind(&b, &s->common, L)) ||
            (st = bind_experts(&b, &sizes_of, &B->gate, &B->up, &B->down)))
            return st;
        if (!B->up.n_in)
            return err_set(e, E_UNSUPPORTED,
                           "%s: blk.%d.ffn_gate_up_exps.weight: gates and ups of gpt-oss are "
                           "expected apart",
                           m->file.path, i);
        join_biases(L);
        m->kv[i] = (kv_spec){.layer = i,
                             .window = s->swa[i] ? s->window : 0,
                             .n_head_kv = s->n_head_kv,
                             .head_dim = s->head_dim,
                             .sinks = &L->sinks};
    }
    return st;
}

static status bind_gpt_oss(model *m, err *e)
{
    model_shape *shape = NULL;
    gpt_oss *g = bind_begin(m, &gpt_oss_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const gpt_oss_shape *s = own(shape);
    const turning t = {s->head_dim, s->theta, s->head_dim / 2, NULL, &s->scaling};
    status st;
    g->common = (block_model){.head_dim = s->head_dim,
                              .n_used = s->n_used,
                              .eps = (float)s->eps,
                              .scale = 1.0f / sqrtf((float)s->head_dim),
                              .act = ACT_SWIGLU_CUT};
    if ((st = bind_tokens(m, &g->common.embd, &g->common.head, s->n_embd, e)) ||
        (st = table_bind(&(binder){m, -1, e}, shape, g)) ||
        (st = bind_rope(m, &g->rope[PASS_MAIN], &t, e)) || (st = bind_each(m, g, s, e)))
        return st;
    m->window = s->window;
    return bind_done(m, shape, g, &g->common.embd, &g->common.head, e);
}

const model_arch gpt_oss_arch = {.name = "gpt-oss",
                                 .sampling = {.temperature = 1, .top_p = 1},
                                 .bind = bind_gpt_oss,
                                 .forward = block_forward,
                                 .divide = divide_plain,
                                 .at_rank = block_at_rank};
