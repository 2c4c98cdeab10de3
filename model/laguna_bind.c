/* laguna_bind.c - makes a laguna from GGUF metadata and tensors. Every number of the file is
 * checked here, so the forward pass can trust them all.
 *
 * Two spellings of several keys and of one tensor are in circulation: rope.dimension_count_swa and
 * rope.swa.dimension_count, rope.freq_base_swa and rope.swa.freq_base, leading_dense_block_count
 * and dense_layers, sliding_window_pattern and layer_types, attn_gate and attn_g. Either is read.
 * The kind of gate is in no key: the tensor's rows tell it.
 */
#include "model/bind.h"
#include "model/laguna.h"

#include <inttypes.h>
#include <stdio.h>

enum { GATING_SIGMOID = 2, PERIOD = 4 };

/* The shapes of all layers, read before any tensor. */
typedef struct shapes {
    int32_t n_layer, n_embd, n_ctx, head_dim, window, n_rot, n_rot_swa;
    int32_t n_expert, n_used, n_ff_exp, n_ff_shared, n_dense;
    double theta, theta_swa, eps, expert_factor;
    rope_scaling scaling;
    int32_t n_head[LAYERS_MAX], n_head_kv[LAYERS_MAX], n_ff[LAYERS_MAX], swa[LAYERS_MAX];
} shapes;

static const gguf_value *find_key(const model *m, const char *name)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->arch->name, name);
    return gguf_find(&m->file, key);
}

/* The one of two names that the file has; the first, if it has neither. */
static const char *spelled(const model *m, const char *a, const char *b)
{
    return find_key(m, a) || !find_key(m, b) ? a : b;
}

/* Kinds of the layers: a list, or a period whose first layer is full. Without a window all layers
 * are full. */
static status read_pattern(const model *m, shapes *s, err *e)
{
    const char *key = spelled(m, "attention.sliding_window_pattern", "attention.layer_types");
    const gguf_value *v = find_key(m, key);
    int32_t period = PERIOD;
    status st = OK;
    if (v && v->kind == GGUF_ARRAY)
        st = bind_per_layer(m, (int_key){key, 0, 1, REQUIRED}, s->swa, s->n_layer, e);
    else
        st = bind_int(m, (int_key){key, 1, LAYERS_MAX, PERIOD}, &period, e);
    for (int32_t i = 0; i < s->n_layer; i++) {
        if (!v || v->kind != GGUF_ARRAY)
            s->swa[i] = i % period != 0;
        if (!s->window)
            s->swa[i] = 0;
    }
    return st;
}

static status read_rotation(const model *m, shapes *s, err *e)
{
    const char *dims = spelled(m, "rope.dimension_count_swa", "rope.swa.dimension_count");
    const char *base = spelled(m, "rope.freq_base_swa", "rope.swa.freq_base");
    status st;
    if ((st = bind_int(m, (int_key){"rope.dimension_count", 2, s->head_dim, REQUIRED}, &s->n_rot,
                       e)) ||
        (st = bind_int(m, (int_key){dims, 2, s->head_dim, s->head_dim}, &s->n_rot_swa, e)) ||
        (st = bind_real(m, (real_key){"rope.freq_base", 1, 1e12, 5e5}, &s->theta, e)) ||
        (st = bind_real(m, (real_key){base, 1, 1e12, 1e4}, &s->theta_swa, e)) ||
        (st = bind_scaling(m, &s->scaling, s->n_ctx, e)))
        return st;
    if (s->head_dim % 2 || s->n_rot % 2 || s->n_rot_swa % 2)
        return err_set(e, E_FORMAT,
                       "%s: heads of %d with %d and %d rotated dims: expected even numbers",
                       m->file.path, s->head_dim, s->n_rot, s->n_rot_swa);
    return OK;
}

static status read_experts(const model *m, shapes *s, err *e)
{
    const char *dense = spelled(m, "leading_dense_block_count", "dense_layers");
    int32_t gating, normed, every, shared, n = s->n_layer;
    status st;
    if ((st = bind_int(m, (int_key){"expert_count", 0, EXPERTS_MAX, 0}, &s->n_expert, e)))
        return st;
    s->n_dense = n;
    if (!s->n_expert)
        return OK;
    if ((st = bind_int(m, (int_key){"expert_used_count", 1, s->n_expert, REQUIRED}, &s->n_used,
                       e)) ||
        (st = bind_int(m, (int_key){"expert_feed_forward_length", 1, WIDTH_MAX / 2, REQUIRED},
                       &s->n_ff_exp, e)) ||
        (st = bind_int(m, (int_key){"expert_shared_feed_forward_length", 1, WIDTH_MAX, s->n_ff_exp},
                       &s->n_ff_shared, e)) ||
        (st = bind_int(m, (int_key){"expert_shared_count", 1, EXPERTS_MAX, 1}, &shared, e)) ||
        (st = bind_int(
             m, (int_key){"expert_gating_func", GATING_SIGMOID, GATING_SIGMOID, GATING_SIGMOID},
             &gating, e)) ||
        (st = bind_int(m, (int_key){"expert_weights_norm", 1, 1, 1}, &normed, e)) ||
        (st = bind_int(m, (int_key){"decoder_sparse_step", 1, 1, 1}, &every, e)) ||
        (st = bind_int(m, (int_key){dense, 0, n, REQUIRED}, &s->n_dense, e)))
        return st;
    if (!find_key(m, "expert_weights_scale"))
        return err_set(e, E_FORMAT, "%s: key laguna.expert_weights_scale is missing", m->file.path);
    return bind_real(m, (real_key){"expert_weights_scale", 1e-3, 1e3, 1}, &s->expert_factor, e);
}

/* Layers of one kind have equal numbers of heads; then a pattern that the file contradicts, or a
 * wrong period, is found. */
static status check_heads(const model *m, const shapes *s, err *e)
{
    int32_t first[2] = {-1, -1};
    for (int32_t i = 0; i < s->n_layer; i++) {
        int32_t *of = &first[s->swa[i]];
        if (s->n_head[i] % s->n_head_kv[i] || (int64_t)s->n_head[i] * s->head_dim > WIDTH_MAX)
            return err_set(e, E_FORMAT, "%s: layer %d: %d heads of %d with %d KV heads",
                           m->file.path, i, s->n_head[i], s->head_dim, s->n_head_kv[i]);
        *of = *of < 0 ? i : *of;
        if (s->n_head[i] != s->n_head[*of])
            return err_set(e, E_FORMAT,
                           "%s: layers %d and %d both have %s attention, and %d and %d heads",
                           m->file.path, *of, i, s->swa[i] ? "sliding-window" : "full",
                           s->n_head[*of], s->n_head[i]);
    }
    return OK;
}

static status read_shapes(const model *m, shapes *s, err *e)
{
    status st;
    if ((st = bind_int(m, (int_key){"block_count", 1, LAYERS_MAX, REQUIRED}, &s->n_layer, e)) ||
        (st = bind_int(m, (int_key){"embedding_length", 1, WIDTH_MAX, REQUIRED}, &s->n_embd, e)) ||
        (st = bind_int(m, (int_key){"context_length", 1, CTX_MAX, REQUIRED}, &s->n_ctx, e)) ||
        (st = bind_int(m, (int_key){"attention.key_length", 2, WIDTH_MAX, REQUIRED}, &s->head_dim,
                       e)) ||
        (st = bind_equal(m, "attention.key_length", "attention.value_length", s->head_dim, e)) ||
        (st = bind_int(m, (int_key){"attention.sliding_window", 0, CTX_MAX, 0}, &s->window, e)) ||
        (st = bind_real(m, (real_key){"attention.layer_norm_rms_epsilon", 0, 1, 1e-6}, &s->eps,
                        e)) ||
        (st = read_rotation(m, s, e)) || (st = read_experts(m, s, e)) ||
        (st = read_pattern(m, s, e)) ||
        (st = bind_per_layer(m, (int_key){"attention.head_count", 1, HEADS_MAX, REQUIRED},
                             s->n_head, s->n_layer, e)) ||
        (st = bind_per_layer(m, (int_key){"attention.head_count_kv", 1, HEADS_MAX, s->n_head[0]},
                             s->n_head_kv, s->n_layer, e)))
        return st;
    if (s->n_dense &&
        (st = bind_per_layer(m, (int_key){"feed_forward_length", 1, WIDTH_MAX, REQUIRED}, s->n_ff,
                             s->n_layer, e)))
        return st;
    return check_heads(m, s, e);
}

static status bind_gate(const binder *b, laguna_layer *L, const shapes *s)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_g.weight", b->il);
    const model *m = b->m;
    bool other = tensor_find(&m->file.tensors, name) != NULL;
    status st =
        bind_matrix(b, &L->attn_gate, other ? "attn_g.weight" : "attn_gate.weight", s->n_embd, 0);
    if (st || L->attn_gate.n_out == L->n_head || L->attn_gate.n_out == L->n_head * s->head_dim)
        return st;
    return err_set(b->e, E_FORMAT, "%s: tensor %s has %d rows, expected %d (heads) or %d",
                   m->file.path, L->attn_gate.name, L->attn_gate.n_out, L->n_head,
                   L->n_head * s->head_dim);
}

static status bind_attention(const binder *b, laguna_layer *L, const shapes *s)
{
    int32_t d = s->n_embd, q = L->n_head * s->head_dim, kv = L->n_head_kv * s->head_dim;
    status st;
    if ((st = bind_vector(b, &L->attn_norm, "attn_norm.weight", d)) ||
        (st = bind_matrix(b, &L->wq, "attn_q.weight", d, q)) ||
        (st = bind_matrix(b, &L->wk, "attn_k.weight", d, kv)) ||
        (st = bind_matrix(b, &L->wv, "attn_v.weight", d, kv)) ||
        (st = bind_matrix(b, &L->wo, "attn_output.weight", q, d)) ||
        (st = bind_vector(b, &L->q_norm, "attn_q_norm.weight", s->head_dim)) ||
        (st = bind_vector(b, &L->k_norm, "attn_k_norm.weight", s->head_dim)))
        return st;
    return bind_gate(b, L, s);
}

static status bind_ffn(const binder *b, laguna_layer *L, const shapes *s)
{
    const expert_sizes sizes = {s->n_embd,  s->n_ff_exp,  s->n_expert,    s->n_used,
                                &L->router, &L->ffn_norm, &L->router_bias};
    int32_t d = s->n_embd, n = b->il < s->n_dense ? s->n_ff[b->il] : s->n_ff_shared;
    bool dense = b->il < s->n_dense;
    status st;
    if ((st = bind_vector(b, &L->ffn_norm, "ffn_norm.weight", d)) ||
        (st =
             bind_matrix(b, &L->gate, dense ? "ffn_gate.weight" : "ffn_gate_shexp.weight", d, n)) ||
        (st = bind_matrix(b, &L->up, dense ? "ffn_up.weight" : "ffn_up_shexp.weight", d, n)) ||
        (st = bind_matrix(b, &L->down, dense ? "ffn_down.weight" : "ffn_down_shexp.weight", n, d)))
        return st;
    if (dense)
        return OK;
    if ((st = bind_tensor(
             b, &L->router, "ffn_gate_inp.weight",
             (model_want){
                 .n_in = d, .n_out = s->n_expert, .n_mat = 1, .active = 1, .f32 = true})) ||
        (st = bind_vector(b, &L->router_bias, "exp_probs_b.bias", s->n_expert)))
        return st;
    return bind_experts(b, &sizes, &L->gate_exps, &L->up_exps, &L->down_exps);
}

static status bind_layers(model *m, laguna *g, const shapes *s, err *e)
{
    size_t n = (size_t)s->n_layer;
    g->layer = arena_array(&m->mem, n, sizeof *g->layer);
    m->kv = arena_array(&m->mem, n, sizeof *m->kv);
    if (!g->layer || !m->kv)
        return err_memory(e, m->file.path, n * (sizeof *g->layer + sizeof *m->kv));
    m->n_kv = s->n_layer;
    for (int32_t i = 0; i < s->n_layer; i++) {
        laguna_layer *L = &g->layer[i];
        const binder b = {m, i, e};
        status st;
        L->swa = s->swa[i];
        L->n_head = s->n_head[i];
        L->n_head_kv = s->n_head_kv[i];
        L->rope = L->swa ? &g->rope_swa[PASS_MAIN] : &g->rope_full[PASS_MAIN];
        if ((st = bind_attention(&b, L, s)) || (st = bind_ffn(&b, L, s)))
            return st;
        m->kv[i] = (kv_spec){.layer = i,
                             .window = L->swa ? s->window : 0,
                             .n_head_kv = L->n_head_kv,
                             .head_dim = s->head_dim,
                             .wide = bind_wide(&L->q_norm, s->head_dim, L->rope->factor) ||
                                     bind_wide(&L->k_norm, s->head_dim, L->rope->factor)};
    }
    return OK;
}

static status bind_all(model *m, laguna *g, const shapes *s, err *e)
{
    binder b = {m, -1, e};
    const turning full = {s->n_rot, s->theta, s->n_rot / 2, NULL, &s->scaling};
    const turning swa = {s->n_rot_swa, s->theta_swa, s->n_rot_swa / 2, NULL, NULL};
    status st;
    *g = (laguna){.n_layer = s->n_layer,
                  .n_embd = s->n_embd,
                  .head_dim = s->head_dim,
                  .n_expert = s->n_expert,
                  .n_used = s->n_used,
                  .eps = (float)s->eps,
                  .expert_factor = (float)s->expert_factor};
    if ((st = bind_tokens(m, &g->embd, &g->head, s->n_embd, e)) ||
        (st = bind_vector(&b, &g->out_norm, "output_norm.weight", s->n_embd)) ||
        (st = bind_rope(m, &g->rope_full[PASS_MAIN], &full, e)) ||
        (st = bind_rope(m, &g->rope_swa[PASS_MAIN], &swa, e)) || (st = bind_layers(m, g, s, e)))
        return st;
    return bind_suppressed(m, e);
}

status laguna_bind(model *m, err *e)
{
    shapes *s = arena_alloc(&m->mem, sizeof *s); /* 8 KiB: too large for a small thread's stack */
    laguna *g = arena_alloc(&m->mem, sizeof *g);
    if (!s || !g)
        return err_memory(e, m->file.path, sizeof *s + sizeof *g);
    status st;
    if ((st = read_shapes(m, s, e)) || (st = bind_all(m, g, s, e)))
        return st;
    m->impl = g;
    m->embd = &g->embd;
    m->head = &g->head;
    m->embd_scale = 1;
    m->n_layer = s->n_layer;
    m->n_embd = s->n_embd;
    m->n_ctx_train = s->n_ctx;
    m->window = s->window;
    return OK;
}
