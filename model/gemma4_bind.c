/* gemma4_bind.c - makes a gemma4 from GGUF metadata and tensors. Every number of the file is
 * checked here, so the forward pass can trust them all.
 *
 * Differences between published files, and their treatment:
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

#include <math.h>
#include <stdio.h>

/* The shapes of all layers, read before any tensor. */
typedef struct shapes {
    int32_t n_layer, n_embd, n_ctx, window, n_shared, n_ple, n_expert, n_used, n_ff_exp;
    int32_t head_dim, head_dim_swa;
    double theta, theta_swa;
    int32_t n_head[LAYERS_MAX], n_head_kv[LAYERS_MAX], n_ff[LAYERS_MAX], swa[LAYERS_MAX];
} shapes;

static status read_shapes(const model *m, shapes *s, err *e)
{
    status st;
    if ((st = bind_int(m, (int_key){"block_count", 1, LAYERS_MAX, REQUIRED}, &s->n_layer, e)) ||
        (st = bind_int(m, (int_key){"embedding_length", 1, WIDTH_MAX, REQUIRED}, &s->n_embd, e)) ||
        (st = bind_int(m, (int_key){"context_length", 1, CTX_MAX, REQUIRED}, &s->n_ctx, e)) ||
        (st = bind_int(m, (int_key){"attention.sliding_window", 1, CTX_MAX, REQUIRED}, &s->window,
                       e)) ||
        (st = bind_int(m, (int_key){"attention.shared_kv_layers", 0, s->n_layer - 1, 0},
                       &s->n_shared, e)) ||
        (st = bind_int(m, (int_key){"embedding_length_per_layer_input", 0, WIDTH_MAX, 0}, &s->n_ple,
                       e)) ||
        (st = bind_int(m, (int_key){"expert_count", 0, EXPERTS_MAX, 0}, &s->n_expert, e)) ||
        (st = bind_int(m, (int_key){"attention.key_length", 2, WIDTH_MAX, REQUIRED}, &s->head_dim,
                       e)) ||
        (st = bind_int(m, (int_key){"attention.key_length_swa", 2, WIDTH_MAX, REQUIRED},
                       &s->head_dim_swa, e)) ||
        (st = bind_equal(m, "attention.key_length", "attention.value_length", s->head_dim, e)) ||
        (st = bind_equal(m, "attention.key_length_swa", "attention.value_length_swa",
                         s->head_dim_swa, e)) ||
        (st = bind_equal(m, "attention.key_length", "rope.dimension_count", s->head_dim, e)) ||
        (st = bind_equal(m, "attention.key_length_swa", "rope.dimension_count_swa", s->head_dim_swa,
                         e)) ||
        (st = bind_real(m, (real_key){"rope.freq_base", 1, 1e12, 1e6}, &s->theta, e)) ||
        (st = bind_real(m, (real_key){"rope.freq_base_swa", 1, 1e12, 1e4}, &s->theta_swa, e)))
        return st;
    if (s->n_expert &&
        ((st = bind_int(m, (int_key){"expert_used_count", 1, s->n_expert, REQUIRED}, &s->n_used,
                        e)) ||
         (st = bind_int(m, (int_key){"expert_feed_forward_length", 1, WIDTH_MAX / 2, REQUIRED},
                        &s->n_ff_exp, e))))
        return st;
    int32_t n = s->n_layer;
    if ((st = bind_per_layer(m, (int_key){"attention.head_count", 1, HEADS_MAX, REQUIRED},
                             s->n_head, n, e)) ||
        (st = bind_per_layer(m, (int_key){"feed_forward_length", 1, WIDTH_MAX, REQUIRED}, s->n_ff,
                             n, e)) ||
        (st = bind_per_layer(m, (int_key){"attention.sliding_window_pattern", 0, 1, REQUIRED},
                             s->swa, n, e)) ||
        (st = bind_per_layer(m, (int_key){"attention.head_count_kv", 1, HEADS_MAX, s->n_head[0]},
                             s->n_head_kv, n, e)))
        return st;
    if (s->head_dim % 2 || s->head_dim_swa % 2)
        return err_set(e, E_FORMAT, "%s: head sizes %d and %d: expected even numbers", m->file.path,
                       s->head_dim, s->head_dim_swa);
    for (int32_t i = 0; i < n; i++) {
        int32_t d = s->swa[i] ? s->head_dim_swa : s->head_dim;
        if (s->n_head[i] % s->n_head_kv[i] || (int64_t)s->n_head[i] * d > WIDTH_MAX)
            return err_set(e, E_FORMAT, "%s: layer %d: %d heads of %d with %d KV heads",
                           m->file.path, i, s->n_head[i], d, s->n_head_kv[i]);
    }
    return OK;
}

static status bind_attention(const binder *b, gemma4_layer *L, const shapes *s)
{
    int32_t d = s->n_embd, q = L->n_head * L->head_dim, kv = L->n_head_kv * L->head_dim;
    status st;
    if ((st = bind_vector(b, &L->attn_norm, "attn_norm.weight", d)) ||
        (st = bind_matrix(b, &L->wq, "attn_q.weight", d, q)) ||
        (st = bind_vector(b, &L->q_norm, "attn_q_norm.weight", L->head_dim)) ||
        (st = bind_matrix(b, &L->wo, "attn_output.weight", q, d)) ||
        (st = bind_vector(b, &L->attn_post_norm, "post_attention_norm.weight", d)))
        return st;
    if (!L->owns_kv) { /* some converters write unused keys and values here */
        static const char *const unused[] = {"attn_k.weight", "attn_k_norm.weight",
                                             "attn_v.weight"};
        for (int i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s", b->il, unused[i]);
            model_claim(b->m, name);
        }
        return OK;
    }
    if ((st = bind_matrix(b, &L->wk, "attn_k.weight", d, kv)) ||
        (st = bind_vector(b, &L->k_norm, "attn_k_norm.weight", L->head_dim)))
        return st;
    return bind_matrix_if(b, &L->wv, "attn_v.weight", d, kv);
}

static status bind_moe(const binder *b, gemma4_layer *L, const shapes *s)
{
    const expert_sizes sizes = {s->n_embd,  s->n_ff_exp,      s->n_expert, s->n_used,
                                &L->router, &L->router_scale, NULL};
    int32_t d = s->n_embd, n = s->n_expert;
    status st;
    if ((st = bind_tensor(
             b, &L->router, "ffn_gate_inp.weight",
             (model_want){.n_in = d, .n_out = n, .n_mat = 1, .active = 1, .f32 = true})) ||
        (st = bind_vector(b, &L->router_scale, "ffn_gate_inp.scale", d)) ||
        (st = bind_vector_if(b, &L->expert_scale, "ffn_down_exps.scale", n)) ||
        (st = bind_experts(b, &sizes, &L->gate_exps, &L->up_exps, &L->down_exps)) ||
        (st = bind_vector(b, &L->dense_post_norm, "post_ffw_norm_1.weight", d)) ||
        (st = bind_vector(b, &L->expert_norm, "pre_ffw_norm_2.weight", d)))
        return st;
    return bind_vector(b, &L->expert_post_norm, "post_ffw_norm_2.weight", d);
}

static status bind_layer(const binder *b, gemma4_layer *L, const shapes *s)
{
    int32_t d = s->n_embd;
    status st;
    if ((st = bind_attention(b, L, s)) ||
        (st = bind_vector(b, &L->ffn_norm, "ffn_norm.weight", d)) ||
        (st = bind_matrix(b, &L->gate, "ffn_gate.weight", d, L->n_ff)) ||
        (st = bind_matrix(b, &L->up, "ffn_up.weight", d, L->n_ff)) ||
        (st = bind_matrix(b, &L->down, "ffn_down.weight", L->n_ff, d)) ||
        (st = bind_vector(b, &L->ffn_post_norm, "post_ffw_norm.weight", d)) ||
        (st = bind_vector(b, &L->out_scale, "layer_output_scale.weight", 1)))
        return st;
    if (s->n_expert && (st = bind_moe(b, L, s)))
        return st;
    if (s->n_ple && ((st = bind_matrix(b, &L->ple_gate, "inp_gate.weight", d, s->n_ple)) ||
                     (st = bind_matrix(b, &L->ple_proj, "proj.weight", s->n_ple, d)) ||
                     (st = bind_vector(b, &L->ple_post_norm, "post_norm.weight", d))))
        return st;
    return OK;
}

/* Sets the store of each layer: its own, or that of the last owner of the same kind. */
static status bind_kv(model *m, gemma4 *g, const shapes *s, kv_spec **out, err *e)
{
    int32_t first_shared = s->n_layer - s->n_shared;
    kv_spec *spec = arena_array(&m->mem, (size_t)first_shared, sizeof *spec);
    if (!spec)
        return err_memory(e, m->file.path, (size_t)first_shared * sizeof *spec);
    for (int32_t i = 0; i < s->n_layer; i++) {
        gemma4_layer *L = &g->layer[i];
        L->owns_kv = i < first_shared;
        L->last_owner = i == first_shared - 1;
        if (L->owns_kv) {
            L->kv = i;
            spec[i] = (kv_spec){.layer = i,
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
    }
    m->kv = *out = spec;
    m->n_kv = first_shared;
    return OK;
}

/* A layer whose values are its raw keys may store one stream instead of keys and values. This marks
 * such layers, and gives the norm and rotation that derive the keys. */
static status bind_streams(model *m, gemma4 *g, kv_spec *spec, err *e)
{
    for (int32_t i = 0; i < m->n_kv; i++) {
        gemma4_layer *L = &g->layer[i];
        rope *r = L->swa ? &g->rope_swa[PASS_MAIN] : &g->rope_global[PASS_MAIN];
        status st = L->wv.n_in ? OK : bind_turns(m, r, e);
        if (st)
            return st;
        spec[i].k_is_v = !L->wv.n_in && r->turns;
        spec[i].k_norm = &L->k_norm;
        spec[i].k_rope = r;
    }
    return OK;
}

/* Decides whether attention may use f16. A normed head has length sqrt(n). After the norm's weight
 * w, no element, rotating pair or rotated group exceeds sqrt(n) max |w|. Block formats may round
 * above this bound, by less than the half of the f16 range that is kept free. */
static void bind_ranges(const gemma4 *g, kv_spec *spec)
{
    const float room = 65504.0f / 2;
    for (int32_t i = 0; i < g->n_layer; i++) {
        const gemma4_layer *L = &g->layer[i];
        float length = sqrtf((float)L->head_dim), k = bind_largest(&g->layer[L->kv].k_norm);
        float q = length * bind_largest(&L->q_norm);
        float product = spec[L->kv].k_is_v ? q * k : 0; /* one stream: q takes on k's weights */
        if (!(q <= room && length * k <= room && product <= room))
            spec[L->kv].wide = true;
    }
}

static status bind_globals(model *m, gemma4 *g, const shapes *s, err *e)
{
    binder b = {m, -1, e};
    int32_t d = s->n_embd;
    status st;
    if ((st = bind_tokens(m, &g->embd, &g->head, d, e)) ||
        (st = bind_vector(&b, &g->out_norm, "output_norm.weight", d)) ||
        (st = bind_vector_if(&b, &g->rope_factors, "rope_freqs.weight", s->head_dim / 2)))
        return st;
    if (!s->n_ple)
        return OK;
    int64_t wide = (int64_t)s->n_ple * s->n_layer;
    if (wide > WIDTH_MAX)
        return err_set(e, E_FORMAT, "%s: %d layers of %d per-layer values are too wide",
                       m->file.path, s->n_layer, s->n_ple);
    if ((st = bind_tensor(
             &b, &g->ple_embd, "per_layer_token_embd.weight",
             (model_want){.n_in = wide, .n_out = m->n_vocab, .n_mat = 1, .gather = true})) ||
        (st = bind_matrix(&b, &g->ple_proj, "per_layer_model_proj.weight", d, (int32_t)wide)))
        return st;
    return bind_vector(&b, &g->ple_norm, "per_layer_proj_norm.weight", s->n_ple);
}

static status bind_all(model *m, gemma4 *g, const shapes *s, err *e)
{
    double eps, softcap;
    status st;
    *g = (gemma4){.n_layer = s->n_layer,
                  .n_embd = s->n_embd,
                  .n_ple = s->n_ple,
                  .n_expert = s->n_expert,
                  .n_expert_used = s->n_used};
    /* Without the file's list a quarter of the global pairs rotate, as in the published models. */
    const turning global = {s->head_dim, s->theta, s->head_dim / 8, &g->rope_factors, NULL};
    const turning swa = {s->head_dim_swa, s->theta_swa, s->head_dim_swa / 2, NULL, NULL};
    if ((st = bind_real(m, (real_key){"attention.layer_norm_rms_epsilon", 0, 1, 1e-6}, &eps, e)) ||
        (st = bind_real(m, (real_key){"final_logit_softcapping", 0, 1e6, 30}, &softcap, e)) ||
        (st = bind_globals(m, g, s, e)) ||
        (st = bind_rope(m, &g->rope_global[PASS_MAIN], &global, e)) ||
        (st = bind_rope(m, &g->rope_swa[PASS_MAIN], &swa, e)))
        return st;
    g->eps = (float)eps;
    g->softcap = (float)softcap;
    g->layer = arena_array(&m->mem, (size_t)s->n_layer, sizeof *g->layer);
    if (!g->layer)
        return err_memory(e, m->file.path, (size_t)s->n_layer * sizeof *g->layer);
    for (int32_t i = 0; i < s->n_layer; i++) {
        gemma4_layer *L = &g->layer[i];
        L->swa = s->swa[i];
        L->head_dim = L->swa ? s->head_dim_swa : s->head_dim;
        L->n_head = s->n_head[i];
        L->n_head_kv = s->n_head_kv[i];
        L->n_ff = s->n_ff[i];
        L->rope = L->swa ? &g->rope_swa[PASS_MAIN] : &g->rope_global[PASS_MAIN];
    }
    kv_spec *spec = NULL;
    if ((st = bind_kv(m, g, s, &spec, e)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++) {
        binder b = {m, i, e};
        if ((st = bind_layer(&b, &g->layer[i], s)))
            return st;
    }
    if ((st = bind_streams(m, g, spec, e)))
        return st;
    bind_ranges(g, spec);
    return bind_suppressed(m, e);
}

status gemma4_bind(model *m, err *e)
{
    shapes *s = arena_alloc(&m->mem, sizeof *s); /* 8 KiB: too large for a small thread's stack */
    gemma4 *g = arena_alloc(&m->mem, sizeof *g);
    if (!s || !g)
        return err_memory(e, m->file.path, sizeof *s + sizeof *g);
    status st;
    if ((st = read_shapes(m, s, e)) || (st = bind_all(m, g, s, e)))
        return st;
    m->impl = g;
    m->embd = &g->embd;
    m->head = &g->head;
    m->embd_scale = sqrtf((float)g->n_embd);
    m->softcap = g->softcap;
    m->n_layer = s->n_layer;
    m->n_embd = s->n_embd;
    m->n_ctx_train = s->n_ctx;
    m->window = s->window;
    return OK;
}
