/* gemma4_table.c - Gemma 4: sizes, keys, tensors, binding.
 *
 * GGUF names are llama.cpp's; safetensors names are transformers'. The test of the table compares
 * the tensor counts with those of the published files (601, 720, 667, 658, 833). Differences
 * between published files, and their treatment:
 *   head_count, head_count_kv, feed_forward_length   scalar or one per layer
 *   sliding_window_pattern   bool or integer items; a scalar applies to every layer (not a period)
 *   rope.dimension_count_swa absent means the SWA head size
 *   attn_k/v of layers that share keys   present and unused, or absent
 *   attn_v absent beside attn_k          V is K's raw projection
 *   rope_freqs absent        computed: the first quarter of the pairs rotate
 *   experts                  gate and up fused in one tensor, or apart
 */
#include "model/bind.h"
#include "model/gemma4.h"
#include "model/gemma4_shapes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Sizes ---- */

#define COMMON                                                                                     \
    .family = &gemma4_shapes, .eps = 1e-6, .theta = 1e6, .theta_swa = 1e4, .rotary_part = 0.25,    \
    .rope_factor = 1, .softcap = 30
#define FULL COMMON, .n_vocab = 262144, .head_dim = 256, .head_dim_global = 512
/* The tiny sizes keep the features of the large ones: head sizes differ between the kinds of layer,
 * the window is a few tokens long, and each kind of layer occurs more than once. */
#define TINY                                                                                       \
    COMMON, .n_vocab = 320, .n_layer = 9, .n_embd = 96, .n_ff = 160, .n_head = 4, .head_dim = 32,  \
            .head_dim_global = 64, .window = 8, .n_ctx_train = 8192
#define TINY_MOE .n_expert = 8, .n_used = 3, .n_ff_exp = 48
#define TINY_PLE .double_wide = true, .n_ple = 16, .n_kv_shared = 3

/* Every n-th layer of a size is global, as in all published patterns. */
static const int8_t periods[] = {5, 6, 6, 6, 6, 3, 3, 3, 3, 3, 3};

static const gemma4_shape sizes[] = {
    {FULL, .name = "e2b", .n_layer = 35, .n_embd = 1536, .n_head = 8, .n_head_kv = 1,
     .n_head_kv_global = 1, .n_ff = 6144, .double_wide = true, .n_ple = 256, .n_kv_shared = 20,
     .window = 512, .n_ctx_train = 131072},
    {FULL, .name = "e4b", .n_layer = 42, .n_embd = 2560, .n_head = 8, .n_head_kv = 2,
     .n_head_kv_global = 2, .n_ff = 10240, .n_ple = 256, .n_kv_shared = 18, .window = 512,
     .n_ctx_train = 131072},
    {FULL, .name = "12b", .n_layer = 48, .n_embd = 3840, .n_head = 16, .n_head_kv = 8,
     .n_head_kv_global = 1, .n_ff = 15360, .k_eq_v = true, .window = 1024, .n_ctx_train = 262144},
    {FULL, .name = "26b-a4b", .n_layer = 30, .n_embd = 2816, .n_head = 16, .n_head_kv = 8,
     .n_head_kv_global = 2, .n_ff = 2112, .n_expert = 128, .n_used = 8, .n_ff_exp = 704,
     .k_eq_v = true, .window = 1024, .n_ctx_train = 262144},
    {FULL, .name = "31b", .n_layer = 60, .n_embd = 5376, .n_head = 32, .n_head_kv = 16,
     .n_head_kv_global = 4, .n_ff = 21504, .k_eq_v = true, .window = 1024, .n_ctx_train = 262144},
    {TINY, .name = "tiny-dense", .n_head_kv = 2, .n_head_kv_global = 1, .k_eq_v = true},
    {TINY, TINY_MOE, .name = "tiny-moe", .n_head_kv = 2, .n_head_kv_global = 1, .k_eq_v = true},
    {TINY, TINY_PLE, .name = "tiny-ple", .n_head_kv = 1, .n_head_kv_global = 1},
    {TINY, TINY_MOE, TINY_PLE, .name = "tiny-all", .n_head_kv = 2, .n_head_kv_global = 1,
     .k_eq_v = true},
    /* Whole super-blocks of 256 fit these rows, so that every format and fallback occurs. */
    {COMMON, .name = "tiny-wide", .n_vocab = 512, .n_layer = 6, .n_embd = 256, .n_ff = 512,
     .n_head = 4, .n_head_kv = 2, .n_head_kv_global = 1, .head_dim = 64, .head_dim_global = 128,
     .k_eq_v = true, .n_expert = 8, .n_used = 2, .n_ff_exp = 96, .window = 16, .n_ctx_train = 8192},
    /* Experts enough that a law of their use can be seen. */
    {COMMON, .name = "tiny-many", .n_vocab = 2048, .n_layer = 3, .n_embd = 256, .n_ff = 64,
     .n_head = 2, .n_head_kv = 1, .n_head_kv_global = 1, .head_dim = 64, .head_dim_global = 64,
     .k_eq_v = true, .n_expert = 64, .n_used = 8, .n_ff_exp = 32, .window = 64,
     .n_ctx_train = 8192},
};

static void fill(model_shape *s, int32_t size)
{
    for (int32_t il = 0; il < s->n_layer; il++)
        ((gemma4_shape *)s)->swa[il] = (il + 1) % periods[size] != 0;
}

static void cut_layer(model_shape *s, int32_t n_layer)
{
    gemma4_shape *g = (gemma4_shape *)s;
    g->n_layer = n_layer;
    g->swa[n_layer - 1] = false; /* the last layer of every size is global */
    g->n_kv_shared = g->n_kv_shared < n_layer - 2 ? g->n_kv_shared : 0;
}

/* ---- Keys ---- */

static const gemma4_shape *own(const model_shape *s)
{
    return (const gemma4_shape *)s;
}

static bool has_experts(const model_shape *s)
{
    return own(s)->n_expert > 0;
}

/* Numbers of a layer: a file's, or those that sizes and configurations state. */
static int32_t n_head_of(const model_shape *s, int32_t il)
{
    return own(s)->heads[il] ? own(s)->heads[il] : own(s)->n_head;
}

static int32_t n_head_kv_of(const model_shape *s, int32_t il)
{
    return gemma4_n_head_kv(own(s), il);
}

static int32_t n_ff_of(const model_shape *s, int32_t il)
{
    return gemma4_n_ff(own(s), il);
}

/* Lists only where layers differ: old loaders read scalars, new ones read both. */
static bool kv_differs(const model_shape *s)
{
    return own(s)->n_head_kv != own(s)->n_head_kv_global;
}

#define F(name) offsetof(gemma4_shape, name)
#define SAME(gguf, field, other)                                                                   \
    K(gguf, NULL, F(field), COUNT, 2, WIDTH_MAX, .same_as = "attention.key_length" other)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX),
    K("embedding_length", "hidden_size", F(n_embd), COUNT, 1, WIDTH_MAX),
    K("embedding_length_per_layer_input", "hidden_size_per_layer_input", F(n_ple), COUNT, 0,
      WIDTH_MAX, .how = MAY_LACK | CONFIG_MAY_LACK),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = WRITE_ONLY),
    K("attention.head_count", "num_attention_heads", F(heads), COUNTS, 1, HEADS_MAX,
      .how = CONFIG_BY_HAND, .of = n_head_of),
    K("attention.key_length", "global_head_dim", F(head_dim_global), COUNT, 2, WIDTH_MAX,
      .how = CONFIG_BY_HAND),
    SAME("attention.value_length", head_dim_global, ""),
    K("attention.key_length_swa", "head_dim", F(head_dim), COUNT, 2, WIDTH_MAX),
    SAME("attention.value_length_swa", head_dim, "_swa"),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 1, CTX_MAX),
    K("attention.shared_kv_layers", "num_kv_shared_layers", F(n_kv_shared), COUNT, 0, LAYERS_MAX,
      .how = MAY_LACK | CONFIG_MAY_LACK, .below = F(n_layer)),
    SAME("rope.dimension_count", head_dim_global, ""),
    SAME("rope.dimension_count_swa", head_dim, "_swa"),
    K("attention.head_count_kv", "num_key_value_heads", F(kv_heads), COUNTS, 1, HEADS_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .otherwise = F(heads), .of = n_head_kv_of,
      .listed = kv_differs),
    K("feed_forward_length", "intermediate_size", F(ffs), COUNTS, 1, WIDTH_MAX,
      .how = CONFIG_BY_HAND, .of = n_ff_of),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1),
    K("expert_count", "num_experts", F(n_expert), COUNT, 0, EXPERTS_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND | OMIT_ZERO),
    K("expert_used_count", "top_k_experts", F(n_used), COUNT, 1, EXPERTS_MAX, .when = has_experts,
      .how = CONFIG_BY_HAND, .upto = F(n_expert)),
    K("expert_feed_forward_length", "moe_intermediate_size", F(n_ff_exp), COUNT, 1, WIDTH_MAX / 2,
      .when = has_experts, .how = CONFIG_BY_HAND),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1, .how = MAY_LACK,
      .value = 1e-6),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e6),
    K("rope.freq_base_swa", "rope_theta", F(theta_swa), REAL, THETA_MIN, THETA_MAX,
      .how = MAY_LACK | CONFIG_BY_HAND, .value = 1e4),
    /* If this key is absent, readers assume 30; so "off" is written too. */
    K("final_logit_softcapping", "final_logit_softcapping", F(softcap), REAL, 0, 1e6,
      .how = MAY_LACK | CONFIG_MAY_LACK, .value = 30),
    K(NULL, "partial_rotary_factor", F(rotary_part), REAL, 1e-6, 1, .how = CONFIG_BY_HAND),
    K(NULL, "factor", F(rope_factor), REAL, 1e-6, 1e6, .how = CONFIG_BY_HAND),
};

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma4_shape *s = own(m);
    status st = OK;
    if (s->head_dim % 2 || s->head_dim_global % 2)
        return err_set(e, bad, "%s: head sizes %d and %d: expected even numbers", what,
                       s->head_dim_global, s->head_dim);
    if ((int64_t)s->n_ple * s->n_layer > WIDTH_MAX)
        return err_set(e, bad, "%s: %d layers of %d per-layer values are too wide", what,
                       s->n_layer, s->n_ple);
    for (int32_t il = 0; il < s->n_layer && !st; il++)
        st = table_agree_heads(il, n_head_of(m, il), n_head_kv_of(m, il), gemma4_head_dim(s, il),
                               bad, what, e);
    return st;
}

/* ---- Tensors ---- */

enum { D = 1, VOCAB, PLE, PLES, N_EXP, FF_EXP, FF_EXP2, ONE, HALF_G, Q, KV, HD, FF };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma4_shape *s = own(m);
    int32_t i = il < 0 ? 0 : il, hd = gemma4_head_dim(s, i);
    const int64_t of[] = {[D] = s->n_embd,
                          [VOCAB] = s->n_vocab,
                          [PLE] = s->n_ple,
                          [PLES] = (int64_t)s->n_ple * s->n_layer,
                          [N_EXP] = s->n_expert,
                          [FF_EXP] = s->n_ff_exp,
                          [FF_EXP2] = 2 * (int64_t)s->n_ff_exp,
                          [ONE] = 1,
                          [HALF_G] = s->head_dim_global / 2,
                          [Q] = (int64_t)n_head_of(m, i) * hd,
                          [KV] = (int64_t)n_head_kv_of(m, i) * hd,
                          [HD] = hd,
                          [FF] = n_ff_of(m, i)};
    return of[d];
}

static bool if_ple(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->n_ple > 0;
}

static bool if_moe(const model_shape *s, int32_t il)
{
    (void)il;
    return has_experts(s);
}

/* Layers with own or shared keys; unused if shared. */
static bool if_keys(const model_shape *s, int32_t il)
{
    (void)s;
    return il >= 0;
}

/* The same, except where V is K. */
static bool if_values(const model_shape *s, int32_t il)
{
    return !own(s)->k_eq_v || own(s)->swa[il];
}

#define M(name) offsetof(gemma4, name)
static const table_tensor of_model[] = {
    T(ALWAYS, ELSEWHERE, "token_embd.weight", "embed_tokens.weight", EMBD, D, VOCAB),
    T(if_ple, M(ple_embd), "per_layer_token_embd.weight", "embed_tokens_per_layer.weight", PLE_EMBD,
      PLES, VOCAB),
    T(if_ple, M(ple_proj), "per_layer_model_proj.weight", "per_layer_model_projection.weight",
      PLE_PROJ, D, PLES),
    T(if_ple, M(ple_norm), "per_layer_proj_norm.weight", "per_layer_projection_norm.weight", NORM,
      PLE),
    T(ALWAYS, M(out_norm), "output_norm.weight", "norm.weight", NORM, D),
    T_IF(ALWAYS, M(rope_factors), "rope_freqs.weight", "", ROPE_FACTORS, HALF_G),
};

#define W(name) offsetof(gemma4_layer, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T(ALWAYS, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),
    T(ALWAYS, W(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORM, HD),
    T(if_keys, ELSEWHERE, "attn_k.weight", "self_attn.k_proj.weight", MATRIX, D, KV),
    T(if_keys, ELSEWHERE, "attn_k_norm.weight", "self_attn.k_norm.weight", QK_NORM, HD),
    T(if_values, ELSEWHERE, "attn_v.weight", "self_attn.v_proj.weight", ATTN_V, D, KV),
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T_GEMMA_UNIT,
    T(if_moe, W(router), "ffn_gate_inp.weight", "router.proj.weight", ROUTER, D, N_EXP),
    T(if_moe, W(router_scale), "ffn_gate_inp.scale", "router.scale", SCALE, D),
    T(if_moe, ELSEWHERE, "ffn_gate_up_exps.weight", "experts.gate_up_proj", MATRIX, D, FF_EXP2,
      N_EXP),
    T(if_moe, ELSEWHERE, "ffn_down_exps.weight", "experts.down_proj", DOWN_EXPERTS, FF_EXP, D,
      N_EXP),
    T_IF(if_moe, W(expert_scale), "ffn_down_exps.scale", "router.per_expert_scale", SCALE, N_EXP),
    T(if_moe, W(dense_post_norm), "post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight",
      NORM, D),
    T(if_moe, W(expert_norm), "pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", NORM,
      D),
    T(if_moe, W(expert_post_norm), "post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight",
      NORM, D),
    T(if_ple, W(ple_gate), "inp_gate.weight", "per_layer_input_gate.weight", MATRIX, D, PLE),
    T(if_ple, W(ple_proj), "proj.weight", "per_layer_projection.weight", MATRIX, PLE, D),
    T(if_ple, W(ple_post_norm), "post_norm.weight", "post_per_layer_input_norm.weight", NORM, D),
    T(ALWAYS, W(out_scale), "layer_output_scale.weight", "layer_scalar", SCALE, ONE),
};

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
static void lead(const gemma4_shape *s, int32_t il, const table_tensor *r, shape_tensor *t)
{
    uint32_t size = (uint32_t)s->head_dim_global;
    bool queries = !strcmp(r->gguf, "attn_q.weight"), keyed = !strcmp(r->gguf, "attn_k.weight");
    if (r->role == ROLE_EMBD || (r->role == ROLE_SCALE && r->ne[0] == ONE)) {
        t->led_period = 1;
        t->lean = 1;
    } else if (il >= 0 && !s->swa[il] && (queries || keyed || r->role == ROLE_QK_NORM)) {
        t->led_period = size;
        t->led = (uint32_t)turning_pairs(s) - 1;
        t->lean = r->role == ROLE_QK_NORM ? sqrtf((float)PEAK / (float)size) : 4;
    }
}

static void describe(const model_shape *m, const table_tensor *r, shape_tensor *t)
{
    const gemma4_shape *s = own(m);
    t->unused_kv =
        (r->when == if_keys || r->when == if_values) && t->layer >= s->n_layer - s->n_kv_shared;
    t->fan_in = r->role == ROLE_PLE_EMBD ? (float)s->n_ple /* multiplied by sqrt(n_ple) when read */
                : r->role == ROLE_ROUTER ? 1 /* the input is divided by sqrt(n_embd) */
                                         : 0;
    if (s->density > 0)
        lead(s, t->layer, r, t);
    /* The attention scale is 1: the trained q and k norms contain the 1 / sqrt(head size). */
    if (r->role == ROLE_QK_NORM)
        t->centre = powf((float)t->ne[0], -0.25f);
}

void gemma4_rope_factors(const gemma4_shape *s, float *out)
{
    int32_t n = s->head_dim_global / 2, n_turning = turning_pairs(s);
    for (int32_t i = 0; i < n; i++)
        out[i] = i < n_turning ? (float)s->rope_factor : 1e30f;
    if (s->density > 0 && n_turning > 0) {
        double plain = pow(s->theta, -(double)(n_turning - 1) / n);
        out[n_turning - 1] = (float)(plain * BLOCK / (6.283185307179586 * s->density));
    }
}

static void plant(model_shape *s, double density)
{
    ((gemma4_shape *)s)->density = density;
}

static void compute(const model_shape *s, const shape_tensor *t, void *out)
{
    (void)t; /* the only computed tensor */
    gemma4_rope_factors(own(s), out);
}

static const family_table rows = {TABLE_ROWS, .dim = dim, .agree = agree, .fill = fill,
                                  .describe = describe};

const shape_family gemma4_shapes = {
    TABLE_HOOKS(gemma4_shape, rows),
    .arch = "gemma4",
    .title = "gemma-4",
    .sizes = "e2b, e4b, 12b, 26b-a4b, 31b, tiny-dense, tiny-moe, tiny-ple, tiny-all, tiny-wide, "
             "tiny-many",
    .mix = "q4_k_m",
    .cut = cut_layer,
    .plant = plant,
    .compute = compute};

/* ---- Binding ---- */

/* Binds the keys of a layer that owns them. Some converters write unused ones for the others. */
static status bind_keys(const binder *b, gemma4_layer *L, const gemma4_shape *s)
{
    static const char *const unused[] = {"attn_k.weight", "attn_k_norm.weight", "attn_v.weight"};
    int32_t d = s->n_embd, kv = L->n_head_kv * L->head_dim;
    status st;
    for (int i = 0; !L->owns_kv && i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", b->il, unused[i]);
        model_claim(b->m, name);
    }
    if (!L->owns_kv)
        return OK;
    if ((st = bind_matrix(b, &L->wk, "attn_k.weight", d, kv)) ||
        (st = bind_vector(b, &L->k_norm, "attn_k_norm.weight", L->head_dim)))
        return st;
    return bind_matrix_if(b, &L->wv, "attn_v.weight", d, kv);
}

static status bind_layer(const binder *b, gemma4_layer *L, const gemma4_shape *s)
{
    const expert_sizes sizes_of = {s->n_embd,  s->n_ff_exp,      s->n_expert, s->n_used,
                                   &L->router, &L->router_scale, NULL,        true};
    status st;
    if ((st = table_bind(b, &s->common, L)) || (st = bind_keys(b, L, s)) || !s->n_expert)
        return st;
    return bind_experts(b, &sizes_of, &L->gate_exps, &L->up_exps, &L->down_exps);
}

/* Sets the store of each layer: its own, or that of the last owner of the same kind. */
static status bind_kv(model *m, gemma4 *g, const gemma4_shape *s, err *e)
{
    int32_t first_shared = s->n_layer - s->n_kv_shared;
    for (int32_t i = 0; i < s->n_layer; i++) {
        gemma4_layer *L = &g->layer[i];
        L->owns_kv = i < first_shared;
        L->last_owner = i == first_shared - 1;
        if (L->owns_kv) {
            L->kv = i;
            m->kv[i] = (kv_spec){.layer = i,
                                 .window = L->swa ? s->window : 0,
                                 .n_head_kv = L->n_head_kv,
                                 .head_dim = L->head_dim};
            continue;
        }
        int32_t donor = first_shared - 1;
        while (donor >= 0 && g->layer[donor].swa != L->swa)
            donor--;
        if (donor < 0)
            return err_set(e, E_FORMAT,
                           "%s: layer %d shares keys, and no %s layer before layer %d owns any",
                           m->file.path, i, L->swa ? "sliding-window" : "global", first_shared);
        if (g->layer[donor].head_dim != L->head_dim || g->layer[donor].n_head_kv != L->n_head_kv)
            return err_set(e, E_FORMAT,
                           "%s: layer %d has %d KV heads of %d, its donor layer %d has %d of %d",
                           m->file.path, i, L->n_head_kv, L->head_dim, donor,
                           g->layer[donor].n_head_kv, g->layer[donor].head_dim);
        L->kv = donor;
        m->joined_from = donor < m->joined_from ? donor : m->joined_from;
    }
    m->n_kv = first_shared;
    return OK;
}

/* A layer whose values are its raw keys may store one stream instead of keys and values. This marks
 * such layers, and gives the norm and rotation that derive the keys. */
static status bind_streams(model *m, gemma4 *g, err *e)
{
    for (int32_t i = 0; i < m->n_kv; i++) {
        gemma4_layer *L = &g->layer[i];
        rope *r = L->swa ? &g->rope_swa[PASS_MAIN] : &g->rope_global[PASS_MAIN];
        status st = L->wv.n_in ? OK : bind_turns(m, r, e);
        if (st)
            return st;
        m->kv[i].k_is_v = !L->wv.n_in && r->turns;
        m->kv[i].k_norm = &L->k_norm;
        m->kv[i].k_rope = r;
    }
    return OK;
}

/* Decides whether attention may use f16. A normed head has length sqrt(n). After the norm's weight
 * w, no element, rotating pair or rotated group exceeds sqrt(n) max |w|. Block formats may round
 * above this bound, by less than the half of the f16 range that is kept free. */
static void bind_ranges(model *m, const gemma4 *g)
{
    const float room = 65504.0f / 2;
    for (int32_t i = 0; i < g->n_layer; i++) {
        const gemma4_layer *L = &g->layer[i];
        float length = sqrtf((float)L->head_dim), k = bind_largest(&g->layer[L->kv].k_norm);
        float q = length * bind_largest(&L->q_norm);
        float product = m->kv[L->kv].k_is_v ? q * k : 0; /* one stream: q takes on k's weights */
        if (!(q <= room && length * k <= room && product <= room))
            m->kv[L->kv].wide = true;
    }
}

static status bind_all(model *m, gemma4 *g, gemma4_shape *s, err *e)
{
    status st;
    /* Without the file's list a quarter of the global pairs rotate, as in the published models. */
    const turning global = {s->head_dim_global, s->theta, s->head_dim_global / 8, &g->rope_factors,
                            NULL};
    const turning swa = {s->head_dim, s->theta_swa, s->head_dim / 2, NULL, NULL};
    *g = (gemma4){.n_layer = s->n_layer,
                  .n_embd = s->n_embd,
                  .n_ple = s->n_ple,
                  .n_expert = s->n_expert,
                  .n_expert_used = s->n_used,
                  .eps = (float)s->eps,
                  .softcap = (float)s->softcap};
    if ((st = bind_layer_structs(m, s->n_layer, (void **)&g->layer, sizeof *g->layer, e)) ||
        (st = bind_tokens(m, &g->embd, &g->head, s->n_embd, e)))
        return st;
    s->n_vocab = m->n_vocab;
    if ((st = table_bind(&(binder){m, -1, e}, &s->common, g)) ||
        (st = bind_rope(m, &g->rope_global[PASS_MAIN], &global, e)) ||
        (st = bind_rope(m, &g->rope_swa[PASS_MAIN], &swa, e)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++) {
        gemma4_layer *L = &g->layer[i];
        L->swa = s->swa[i];
        L->head_dim = gemma4_head_dim(s, i);
        L->n_head_kv = n_head_kv_of(&s->common, i);
        L->rope = L->swa ? &g->rope_swa[PASS_MAIN] : &g->rope_global[PASS_MAIN];
    }
    if ((st = bind_kv(m, g, s, e)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++)
        if ((st = bind_layer(&(binder){m, i, e}, &g->layer[i], s)))
            return st;
    if ((st = bind_streams(m, g, e)))
        return st;
    bind_ranges(m, g);
    return OK;
}

status gemma4_bind(model *m, err *e)
{
    model_shape *s = NULL;
    gemma4 *g = bind_begin(m, &gemma4_shapes, sizeof *g, &s, e);
    status st;
    if (!g)
        return e->status;
    if ((st = bind_all(m, g, (gemma4_shape *)s, e)) ||
        (st = bind_done(m, s, g, &g->embd, &g->head, e)))
        return st;
    m->embd_scale = sqrtf((float)g->n_embd);
    m->softcap = g->softcap;
    m->window = own(s)->window;
    return OK;
}
