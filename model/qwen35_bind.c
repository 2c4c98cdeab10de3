/* qwen35_bind.c - makes a qwen35 from GGUF metadata and tensors, and divides it between devices.
 *
 * Every number of the file is checked here, so the forward pass can trust them all. Differences
 * between published files, and their treatment:
 *   block_count                 includes NextN layers (nextn_predict_layers), which are no layers
 * of the model: they are bound as a drafter head_count, head_count_kv, feed_forward_length scalar,
 * or one per layer, perhaps 0 for layers that have none attention.recurrent_layers  one per layer;
 * absent: every full_attention_interval-th attends experts                     gate and up fused in
 * one tensor, or apart Relatives whose files look alike are refused: Qwen3.8-Flash-Next by its
 * tensors, whatever architecture the file claims, and files with nothing but an MTP layer.
 */
#include "model/bind.h"
#include "model/qwen35.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The shapes of all layers, read before any tensor. */
typedef struct shapes {
    int32_t n_blocks, n_nextn, n_layer, n_embd, n_ctx, n_ff, n_head, n_head_kv, head_dim,
        n_rotating;
    int32_t n_expert, n_used, n_ff_exp; /* n_ff: with experts that of the shared one */
    recur_view recur;
    double theta;
    int32_t linear[LAYERS_MAX];
} shapes;

static bool has_experts(const model *m)
{
    return m->arch == &qwen35moe_arch || m->arch == &qwen35moe_nextn_arch;
}

/* ---- Files that are something else --------------------------------------------------------- */

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

/* ---- Metadata ------------------------------------------------------------------------------ */

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

/* One number for all layers, from a scalar or an array: the items that are not 0 must be equal. */
static status read_uniform(const model *m, const shapes *s, int_key key, int32_t *out, err *e)
{
    int32_t n[LAYERS_MAX];
    int32_t common = 0;
    status st = bind_per_layer(m, key, n, s->n_blocks, e);
    for (int32_t i = 0; i < s->n_blocks && !st; i++) {
        if (n[i] && common && n[i] != common)
            return err_set(e, E_UNSUPPORTED, "%s: %s.%s is %d in layer %d and %d before it",
                           m->file.path, m->arch->name, key.name, n[i], i, common);
        common = n[i] ? n[i] : common;
    }
    if (!st && !common)
        st = err_set(e, E_FORMAT, "%s: %s.%s is 0", m->file.path, m->arch->name, key.name);
    if (!st)
        *out = common;
    return st;
}

static status read_experts(const model *m, shapes *s, err *e)
{
    status st;
    if (!has_experts(m))
        return read_uniform(m, s, (int_key){"feed_forward_length", 0, WIDTH_MAX, REQUIRED},
                            &s->n_ff, e);
    if ((st = bind_int(m, (int_key){"expert_count", 1, EXPERTS_MAX, REQUIRED}, &s->n_expert, e)) ||
        (st = bind_int(m, (int_key){"expert_used_count", 1, s->n_expert, REQUIRED}, &s->n_used,
                       e)) ||
        (st = bind_int(m, (int_key){"expert_feed_forward_length", 1, WIDTH_MAX / 2, REQUIRED},
                       &s->n_ff_exp, e)))
        return st;
    return bind_int(m, (int_key){"expert_shared_feed_forward_length", 1, WIDTH_MAX, s->n_ff_exp},
                    &s->n_ff, e);
}

/* Which layers attend. */
static status read_kinds(const model *m, shapes *s, err *e)
{
    const int_key listed = {"attention.recurrent_layers", 0, 1, REQUIRED};
    int32_t every;
    char key[64];
    snprintf(key, sizeof key, "%s.%s", m->arch->name, listed.name);
    if (gguf_find(&m->file, key))
        return bind_per_layer(m, listed, s->linear, s->n_blocks, e);
    status st = bind_int(m, (int_key){"full_attention_interval", 1, LAYERS_MAX, 4}, &every, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++)
        s->linear[i] = (i + 1) % every != 0;
    return st;
}

static status read_heads(const model *m, shapes *s, err *e)
{
    status st;
    if ((st = read_uniform(m, s, (int_key){"attention.head_count", 0, HEADS_MAX, REQUIRED},
                           &s->n_head, e)) ||
        (st = read_uniform(m, s, (int_key){"attention.head_count_kv", 0, HEADS_MAX, s->n_head},
                           &s->n_head_kv, e)))
        return st;
    if (s->n_head % s->n_head_kv || (int64_t)s->n_head * s->head_dim > WIDTH_MAX / 2)
        return err_set(e, E_FORMAT, "%s: %d heads of %d with %d KV heads", m->file.path, s->n_head,
                       s->head_dim, s->n_head_kv);
    return OK;
}

static status read_recur(const model *m, shapes *s, err *e)
{
    recur_view *v = &s->recur;
    int32_t inner;
    status st;
    if ((st = bind_int(m, (int_key){"ssm.conv_kernel", 2, RECUR_TAPS_MAX, REQUIRED}, &v->n_taps,
                       e)) ||
        (st = bind_int(m, (int_key){"ssm.state_size", 1, WIDTH_MAX, REQUIRED}, &v->dk, e)) ||
        (st = bind_int(m, (int_key){"ssm.group_count", 1, HEADS_MAX, REQUIRED}, &v->n_k, e)) ||
        (st = bind_int(m, (int_key){"ssm.time_step_rank", 1, HEADS_MAX, REQUIRED}, &v->n_v, e)) ||
        (st = bind_int(m, (int_key){"ssm.inner_size", 1, WIDTH_MAX, REQUIRED}, &inner, e)))
        return st;
    if (inner % v->n_v || v->n_v % v->n_k || (int64_t)v->n_k * v->dk > WIDTH_MAX / 4)
        return err_set(
            e, E_FORMAT,
            "%s: ssm.inner_size %d over %d value heads (ssm.time_step_rank), which share "
            "%d key heads (ssm.group_count) of %d",
            m->file.path, inner, v->n_v, v->n_k, v->dk);
    v->dv = inner / v->n_v;
    return OK;
}

static status read_shapes(const model *m, shapes *s, err *e)
{
    status st;
    if ((st = bind_int(m, (int_key){"block_count", 1, LAYERS_MAX, REQUIRED}, &s->n_blocks, e)) ||
        (st = bind_int(m, (int_key){"nextn_predict_layers", 0, s->n_blocks - 1, 0}, &s->n_nextn,
                       e)) ||
        (st = bind_int(m, (int_key){"embedding_length", 1, WIDTH_MAX, REQUIRED}, &s->n_embd, e)) ||
        (st = bind_int(m, (int_key){"context_length", 1, CTX_MAX, REQUIRED}, &s->n_ctx, e)) ||
        (st = bind_int(m, (int_key){"attention.key_length", 2, WIDTH_MAX, REQUIRED}, &s->head_dim,
                       e)))
        return st;
    if (s->head_dim % 2)
        return err_set(e, E_FORMAT, "%s: heads of %d: expected an even number", m->file.path,
                       s->head_dim);
    if ((st = bind_equal(m, "attention.key_length", "attention.value_length", s->head_dim, e)) ||
        (st = bind_int(m, (int_key){"rope.dimension_count", 2, s->head_dim, REQUIRED},
                       &s->n_rotating, e)) ||
        (st = bind_real(m, (real_key){"rope.freq_base", 1, 1e12, 1e7}, &s->theta, e)))
        return st;
    s->n_layer = s->n_blocks - s->n_nextn;
    if (s->n_rotating % 2)
        return err_set(e, E_FORMAT, "%s: rope.dimension_count = %d: expected an even number",
                       m->file.path, s->n_rotating);
    if ((st = read_heads(m, s, e)) || (st = read_kinds(m, s, e)) || (st = read_recur(m, s, e)) ||
        (st = read_experts(m, s, e)))
        return st;
    return check_fixed(m, e);
}

/* ---- Tensors ------------------------------------------------------------------------------- */

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

static status bind_attention(const binder *b, qwen35_layer *L, const shapes *s)
{
    int32_t d = s->n_embd, q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim;
    status st;
    if ((st = bind_matrix(b, &L->wq, "attn_q.weight", d, 2 * q)) ||
        (st = bind_matrix(b, &L->wk, "attn_k.weight", d, kv)) ||
        (st = bind_matrix(b, &L->wv, "attn_v.weight", d, kv)) ||
        (st = bind_matrix(b, &L->wo, "attn_output.weight", q, d)) ||
        (st = bind_vector(b, &L->q_norm, "attn_q_norm.weight", s->head_dim)))
        return st;
    return bind_vector(b, &L->k_norm, "attn_k_norm.weight", s->head_dim);
}

static status bind_delta(const binder *b, qwen35_layer *L, const shapes *s)
{
    const recur_view *v = &s->recur;
    int32_t d = s->n_embd, n = recur_channels(v), values = v->n_v * v->dv;
    status st;
    if ((st = bind_matrix(b, &L->wqkv, "attn_qkv.weight", d, n)) ||
        (st = bind_matrix(b, &L->wz, "attn_gate.weight", d, values)) ||
        (st = bind_matrix(b, &L->wa, "ssm_alpha.weight", d, v->n_v)) ||
        (st = bind_matrix(b, &L->wb, "ssm_beta.weight", d, v->n_v)) ||
        (st = bind_tensor(b, &L->taps, "ssm_conv1d.weight",
                          (model_want){.n_in = v->n_taps,
                                       .n_out = n,
                                       .n_mat = 1,
                                       .active = 1,
                                       .f32 = true,
                                       .gather = true})) ||
        (st = bind_vector(b, &L->a, "ssm_a", v->n_v)) ||
        (st = bind_vector(b, &L->dt, "ssm_dt.bias", v->n_v)) ||
        (st = bind_vector(b, &L->out_norm, "ssm_norm.weight", v->dv)))
        return st;
    const float *a = L->a.data;
    for (int32_t i = 0; i < v->n_v; i++)
        if (!(a[i] <= 0)) /* also NaN */
            return err_set(b->e, E_FORMAT,
                           "%s: item %d of %s is %g: expected -exp(A_log), which is negative",
                           b->m->file.path, i, L->a.name, (double)a[i]);
    return bind_matrix(b, &L->out, "ssm_out.weight", values, d);
}

static status bind_ffn(const binder *b, qwen35_layer *L, const shapes *s)
{
    const expert_sizes sizes = {s->n_embd,  s->n_ff_exp,  s->n_expert, s->n_used,
                                &L->router, &L->ffn_norm, NULL};
    const char *gate = "ffn_gate.weight", *up = "ffn_up.weight", *down = "ffn_down.weight";
    int32_t d = s->n_embd;
    status st;
    if (s->n_expert) {
        gate = "ffn_gate_shexp.weight", up = "ffn_up_shexp.weight", down = "ffn_down_shexp.weight";
        if ((st = bind_tensor(
                 b, &L->router, "ffn_gate_inp.weight",
                 (model_want){
                     .n_in = d, .n_out = s->n_expert, .n_mat = 1, .active = 1, .f32 = true})) ||
            (st = bind_vector(b, &L->shared_gate, "ffn_gate_inp_shexp.weight", d)) ||
            (st = bind_experts(b, &sizes, &L->gate_exps, &L->up_exps, &L->down_exps)))
            return st;
    }
    if ((st = bind_matrix(b, &L->gate, gate, d, s->n_ff)) ||
        (st = bind_matrix(b, &L->up, up, d, s->n_ff)))
        return st;
    return bind_matrix(b, &L->down, down, s->n_ff, d);
}

static status bind_layer(const binder *b, qwen35_layer *L, const shapes *s)
{
    status st;
    if ((st = check_kind(b->m, b->il, L->full, b->e)) ||
        (st = bind_vector(b, &L->norm, "attn_norm.weight", s->n_embd)) ||
        (st = L->full ? bind_attention(b, L, s) : bind_delta(b, L, s)) ||
        (st = bind_vector(b, &L->ffn_norm, "post_attention_norm.weight", s->n_embd)))
        return st;
    return bind_ffn(b, L, s);
}

/* Numbers the stores of both kinds. */
static status bind_stores(model *m, qwen35 *g, const shapes *s, err *e)
{
    size_t n = (size_t)s->n_layer;
    kv_spec *kv = arena_array(&m->mem, n, sizeof *kv);
    m->recur = arena_array(&m->mem, n, sizeof *m->recur);
    if (!kv || !m->recur)
        return err_memory(e, m->file.path, n * (sizeof *kv + sizeof *m->recur));
    for (int32_t i = 0; i < s->n_layer; i++) {
        qwen35_layer *L = &g->layer[i];
        L->full = !s->linear[i];
        L->at = L->full ? m->n_kv : m->n_recur;
        if (L->full)
            kv[m->n_kv++] =
                (kv_spec){.layer = i, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
        else
            m->recur[m->n_recur++] = s->recur;
        if (!L->full)
            m->recur[L->at].id = L->at;
    }
    m->kv = kv;
    if (!m->n_kv)
        return err_set(e, E_UNSUPPORTED, "%s: no layer attends", m->file.path);
    return OK;
}

/* Decides whether attention may use f16. A normed head has length sqrt(n). After the norm's weight
 * w, no element and no rotating pair exceeds sqrt(n) max |w|; block formats may round above. */
static void bind_ranges(model *m, const qwen35 *g)
{
    const float room = 65504.0f / 2;
    for (int32_t i = 0; i < g->n_layer; i++) {
        const qwen35_layer *L = &g->layer[i];
        float length = sqrtf((float)g->head_dim);
        if (L->full && !(length * bind_largest(&L->q_norm) <= room &&
                         length * bind_largest(&L->k_norm) <= room))
            m->kv[L->at].wide = true;
    }
}

/* What layers share. */
static status bind_common(model *m, qwen35 *g, const shapes *s, int32_t n_layer, err *e)
{
    rope_scaling scaling;
    double eps;
    status st;
    *g = (qwen35){.n_layer = n_layer,
                  .n_embd = s->n_embd,
                  .n_head = s->n_head,
                  .n_head_kv = s->n_head_kv,
                  .head_dim = s->head_dim,
                  .n_expert = s->n_expert,
                  .n_expert_used = s->n_used};
    const turning t = {s->n_rotating, s->theta, s->n_rotating / 2, NULL, &scaling};
    if ((st = bind_real(m, (real_key){"attention.layer_norm_rms_epsilon", 0, 1, 1e-6}, &eps, e)) ||
        (st = bind_scaling(m, &scaling, s->n_ctx, e)) ||
        (st = bind_rope(m, &g->rope[PASS_MAIN], &t, e)))
        return st;
    g->eps = (float)eps;
    g->layer = arena_array(&m->mem, (size_t)n_layer, sizeof *g->layer);
    return g->layer ? OK : err_memory(e, m->file.path, (size_t)n_layer * sizeof *g->layer);
}

static status bind_all(model *m, qwen35 *g, const shapes *s, err *e)
{
    status st;
    if ((st = bind_common(m, g, s, s->n_layer, e)) ||
        (st = bind_tokens(m, &g->embd, &g->head, s->n_embd, e)) ||
        (st = bind_vector(&(binder){m, -1, e}, &g->out_norm, "output_norm.weight", s->n_embd)) ||
        (st = bind_stores(m, g, s, e)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++) {
        binder b = {m, i, e};
        g->layer[i].rope = &g->rope[PASS_MAIN];
        if ((st = bind_layer(&b, &g->layer[i], s)))
            return st;
    }
    bind_ranges(m, g);
    model_claim_layers(m, s->n_layer, s->n_blocks, false); /* NextN: a drafter binds them */
    for (uint64_t i = 0; i < m->file.tensors.n; i++)       /* the same under a checkpoint's names */
        if (!strncmp(m->file.tensors.at[i].name, "mtp.", 4))
            model_claim(m, m->file.tensors.at[i].name);
    return bind_suppressed(m, e);
}

status qwen35_bind(model *m, err *e)
{
    shapes *s = arena_alloc(&m->mem, sizeof *s);
    qwen35 *g = arena_alloc(&m->mem, sizeof *g);
    status st;
    if (!s || !g)
        return err_memory(e, m->file.path, sizeof *s + sizeof *g);
    if ((st = refuse_relatives(m, e)) || (st = read_shapes(m, s, e)) || (st = bind_all(m, g, s, e)))
        return st;
    m->impl = g;
    m->embd = &g->embd;
    m->head = &g->head;
    m->embd_scale = 1;
    m->n_layer = s->n_layer;
    m->n_embd = s->n_embd;
    m->n_ctx_train = s->n_ctx;
    return OK;
}

/* ---- NextN layers --------------------------------------------------------------------------- */

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

static status bind_nextn(model *m, qwen35_nextn *x, const shapes *s, err *e)
{
    const binder b = {m, s->n_layer, e};
    qwen35 *g = &x->g;
    status st;
    if ((st = bind_common(m, g, s, 1, e)))
        return st;
    *g->layer = (qwen35_layer){.full = true, .rope = &g->rope[PASS_MAIN]};
    m->n_kv = 1;
    if (!(m->kv = arena_array(&m->mem, 1, sizeof *m->kv)))
        return err_memory(e, m->file.path, sizeof *m->kv);
    *m->kv = (kv_spec){.layer = s->n_layer, .n_head_kv = s->n_head_kv, .head_dim = s->head_dim};
    if ((st = refuse_own_tables(m, s->n_layer, e)) ||
        (st = bind_matrix(&b, &x->join, "nextn.eh_proj.weight", 2 * s->n_embd, s->n_embd)) ||
        (st = bind_vector(&b, &x->embd_norm, "nextn.enorm.weight", s->n_embd)) ||
        (st = bind_vector(&b, &x->hidden_norm, "nextn.hnorm.weight", s->n_embd)) ||
        (st = bind_vector_if(&b, &x->head_norm, "nextn.shared_head_norm.weight", s->n_embd)) ||
        (st = bind_layer(&b, g->layer, s)))
        return st;
    bind_ranges(m, g);
    model_claim_layers(m, s->n_layer, s->n_blocks, true); /* the model's own */
    return OK;
}

status qwen35_nextn_bind(model *m, err *e)
{
    shapes *s = arena_alloc(&m->mem, sizeof *s);
    qwen35_nextn *x = arena_alloc(&m->mem, sizeof *x);
    status st;
    if (!s || !x)
        return err_memory(e, m->file.path, sizeof *s + sizeof *x);
    *x = (qwen35_nextn){0};
    if ((st = refuse_relatives(m, e)) || (st = read_shapes(m, s, e)))
        return st;
    if (s->n_nextn != 1)
        return err_set(e, E_UNSUPPORTED,
                       "%s: %s.nextn_predict_layers = %d: carat drafts by one "
                       "NextN (MTP) layer",
                       m->file.path, m->arch->name, s->n_nextn);
    if ((st = bind_nextn(m, x, s, e)))
        return st;
    m->impl = x;
    m->n_layer = s->n_layer; /* of the model that it drafts for */
    m->n_embd = s->n_embd;
    m->n_ctx_train = s->n_ctx;
    return OK;
}

/* ---- Several devices ----------------------------------------------------------------------- */

/* Every layer has a side, its experts perhaps another; a layer's store is where the layer is. */
status qwen35_divide(model *m, err *e)
{
    qwen35 *g = m->impl;
    status st = divide_check_experts(m, g->n_expert > 0, e);
    for (int8_t side = 1; side < m->n_sides && !st; side++)
        if (model_layers_on(m, side))
            st = divide_rope(m, g->rope, side, e);
    if (st)
        return st;
    divide_weights(m, g->layer, sizeof *g->layer, (const weight *const[]){&g->embd, NULL});
    for (int32_t i = 0; i < g->n_layer; i++) {
        qwen35_layer *L = &g->layer[i];
        L->side = m->layer_side[i];
        L->rope = &g->rope[L->side];
        *(L->full ? &m->kv[L->at].side : &m->recur[L->at].side) = L->side;
    }
    return OK;
}
