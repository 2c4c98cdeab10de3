/* qwen3_bind.c - makes a qwen3 from GGUF metadata and tensors. Every number of the file is checked
 * here, so the forward pass can trust them all.
 *
 * Differences between files, and their treatment:
 *   head_count, head_count_kv, feed_forward_length   scalar or one per layer
 *   output.weight absent     the head is the embedding
 *   attn_qkv.weight          queries, keys and values in one tensor: bound as three
 *   rope.scaling.*           yarn or linear, in files for longer contexts
 *   rope_freqs.weight        divisors of frequencies, by pair
 *   sliding_window           refused: no published model uses it
 */
#include "model/bind.h"
#include "model/qwen3.h"

#include <stdio.h>

/* The shapes of all layers, read before any tensor. */
typedef struct shapes {
    int32_t n_layer, n_embd, n_ctx, head_dim, n_rot;
    double theta, eps;
    rope_scaling scaling;
    int32_t n_head[LAYERS_MAX], n_head_kv[LAYERS_MAX], n_ff[LAYERS_MAX];
} shapes;

static status read_shapes(const model *m, shapes *s, err *e)
{
    int32_t window, n = 0;
    status st;
    if ((st = bind_int(m, (int_key){"block_count", 1, LAYERS_MAX, REQUIRED}, &s->n_layer, e)) ||
        (st = bind_int(m, (int_key){"embedding_length", 1, WIDTH_MAX, REQUIRED}, &s->n_embd, e)) ||
        (st = bind_int(m, (int_key){"context_length", 1, CTX_MAX, REQUIRED}, &s->n_ctx, e)) ||
        (st = bind_int(m, (int_key){"attention.key_length", 2, WIDTH_MAX, REQUIRED}, &s->head_dim,
                       e)) ||
        (st = bind_equal(m, "attention.key_length", "attention.value_length", s->head_dim, e)) ||
        (st = bind_int(m, (int_key){"rope.dimension_count", 2, s->head_dim, s->head_dim}, &s->n_rot,
                       e)) ||
        (st = bind_int(m, (int_key){"attention.sliding_window", 0, 0, 0}, &window, e)) ||
        (st = bind_real(m, (real_key){"rope.freq_base", 1, 1e12, 1e6}, &s->theta, e)) ||
        (st = bind_real(m, (real_key){"attention.layer_norm_rms_epsilon", 0, 1, 1e-6}, &s->eps,
                        e)) ||
        (st = bind_scaling(m, &s->scaling, s->n_ctx, e)))
        return st;
    n = s->n_layer;
    if ((st = bind_per_layer(m, (int_key){"attention.head_count", 1, HEADS_MAX, REQUIRED},
                             s->n_head, n, e)) ||
        (st = bind_per_layer(m, (int_key){"attention.head_count_kv", 1, HEADS_MAX, s->n_head[0]},
                             s->n_head_kv, n, e)) ||
        (st = bind_per_layer(m, (int_key){"feed_forward_length", 1, WIDTH_MAX, REQUIRED}, s->n_ff,
                             n, e)))
        return st;
    if (s->head_dim % 2 || s->n_rot % 2)
        return err_set(e, E_FORMAT, "%s: heads of %d with %d rotated dims: expected even numbers",
                       m->file.path, s->head_dim, s->n_rot);
    for (int32_t i = 0; i < n; i++)
        if (s->n_head[i] % s->n_head_kv[i] ||
            ((int64_t)s->n_head[i] + 2 * s->n_head_kv[i]) * s->head_dim > WIDTH_MAX)
            return err_set(e, E_FORMAT, "%s: layer %d: %d heads of %d with %d KV heads",
                           m->file.path, i, s->n_head[i], s->head_dim, s->n_head_kv[i]);
    return OK;
}

/* Queries, keys and values: three tensors, or the rows of one. */
static status bind_projections(const binder *b, qwen3_layer *L, const shapes *s)
{
    char fused[64];
    int32_t q = L->n_head * s->head_dim, kv = L->n_head_kv * s->head_dim;
    weight *w[] = {&L->wq, &L->wk, &L->wv};
    const char *const names[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
    const int32_t rows[] = {q, kv, kv};
    snprintf(fused, sizeof fused, "blk.%d.attn_qkv.weight", b->il);
    bool one = tensor_find(&b->m->file.tensors, fused) != NULL;
    int32_t at = 0;
    for (int i = 0; i < 3; i++) {
        model_want want = {.n_in = s->n_embd, .n_out = rows[i], .n_mat = 1, .active = 1};
        if (one) {
            want.of_rows = q + 2 * kv;
            want.row = at;
        }
        status st = bind_tensor(b, w[i], one ? "attn_qkv.weight" : names[i], want);
        if (st)
            return st;
        at += rows[i];
    }
    return OK;
}

static status bind_layer(const binder *b, qwen3_layer *L, const shapes *s)
{
    int32_t d = s->n_embd;
    status st;
    if ((st = bind_vector(b, &L->attn_norm, "attn_norm.weight", d)) ||
        (st = bind_projections(b, L, s)) ||
        (st = bind_vector(b, &L->q_norm, "attn_q_norm.weight", s->head_dim)) ||
        (st = bind_vector(b, &L->k_norm, "attn_k_norm.weight", s->head_dim)) ||
        (st = bind_matrix(b, &L->wo, "attn_output.weight", L->n_head * s->head_dim, d)) ||
        (st = bind_vector(b, &L->ffn_norm, "ffn_norm.weight", d)) ||
        (st = bind_matrix(b, &L->gate, "ffn_gate.weight", d, L->n_ff)) ||
        (st = bind_matrix(b, &L->up, "ffn_up.weight", d, L->n_ff)))
        return st;
    return bind_matrix(b, &L->down, "ffn_down.weight", L->n_ff, d);
}

static status bind_layers(model *m, qwen3 *g, const shapes *s, err *e)
{
    size_t n = (size_t)s->n_layer;
    g->layer = arena_array(&m->mem, n, sizeof *g->layer);
    m->kv = arena_array(&m->mem, n, sizeof *m->kv);
    if (!g->layer || !m->kv)
        return err_memory(e, m->file.path, n * (sizeof *g->layer + sizeof *m->kv));
    m->n_kv = s->n_layer;
    for (int32_t i = 0; i < s->n_layer; i++) {
        qwen3_layer *L = &g->layer[i];
        L->n_head = s->n_head[i];
        L->n_head_kv = s->n_head_kv[i];
        L->n_ff = s->n_ff[i];
        L->rope = &g->rope[PASS_MAIN];
        status st = bind_layer(&(binder){m, i, e}, L, s);
        if (st)
            return st;
        m->kv[i] = (kv_spec){.layer = i,
                             .n_head_kv = L->n_head_kv,
                             .head_dim = s->head_dim,
                             .wide = bind_wide(&L->q_norm, s->head_dim, L->rope->factor) ||
                                     bind_wide(&L->k_norm, s->head_dim, L->rope->factor)};
    }
    return OK;
}

static status bind_all(model *m, qwen3 *g, const shapes *s, err *e)
{
    binder b = {m, -1, e};
    const turning t = {s->n_rot, s->theta, s->n_rot / 2, &g->rope_factors, &s->scaling};
    status st;
    *g = (qwen3){
        .n_layer = s->n_layer, .n_embd = s->n_embd, .head_dim = s->head_dim, .eps = (float)s->eps};
    if ((st = bind_tokens(m, &g->embd, &g->head, s->n_embd, e)) ||
        (st = bind_vector(&b, &g->out_norm, "output_norm.weight", s->n_embd)) ||
        (st = bind_vector_if(&b, &g->rope_factors, "rope_freqs.weight", s->n_rot / 2)) ||
        (st = bind_rope(m, &g->rope[PASS_MAIN], &t, e)) || (st = bind_layers(m, g, s, e)))
        return st;
    return bind_suppressed(m, e);
}

status qwen3_bind(model *m, err *e)
{
    shapes *s = arena_alloc(&m->mem, sizeof *s); /* 6 KiB: too large for a small thread's stack */
    qwen3 *g = arena_alloc(&m->mem, sizeof *g);
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
    return OK;
}
