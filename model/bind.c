/* bind.c - see bind.h. */
#include "model/bind.h"
#include "base/mem.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A factor of this size or more in rope_freqs means "does not rotate". Files use 1e30. */
static const double NO_ROTATION = 1e20;

/* ---- Metadata ---- */

enum { KEY_BYTES = 128 };

static const char *full_key(const model *m, const char *key, char buf[KEY_BYTES])
{
    snprintf(buf, KEY_BYTES, "%s.%s", m->arch->name, key);
    return buf;
}

/* The file has the key. */
static status wrong_kind(const model *m, const char *key, const char *expected, err *e)
{
    const gguf_value *v = gguf_find(&m->file, key);
    bool list = v->kind == GGUF_ARRAY;
    return err_set(e, E_FORMAT, "%s: key %s is %s%s, expected %s", m->file.path, key,
                   list ? "a list of " : "of type ", gguf_kind_name(list ? v->item : v->kind),
                   expected);
}

status bind_int(const model *m, int_key key, int32_t *out, err *e)
{
    char k[KEY_BYTES];
    int64_t v = key.fallback;
    full_key(m, key.name, k);
    if (!gguf_find(&m->file, k)) {
        if (key.fallback == REQUIRED)
            return err_set(e, E_FORMAT, "%s: key %s is missing", m->file.path, k);
    } else if (!gguf_get_i64(&m->file, k, &v)) {
        return wrong_kind(m, k, "an integer", e);
    }
    if (v < key.lo || v > key.hi)
        return err_set(e, E_FORMAT, "%s: %s = %" PRId64 ", expected %" PRId64 " to %" PRId64,
                       m->file.path, k, v, key.lo, key.hi);
    *out = (int32_t)v;
    return OK;
}

status bind_real(const model *m, real_key key, double *out, err *e)
{
    char k[KEY_BYTES];
    double v = key.fallback;
    full_key(m, key.name, k);
    if (gguf_find(&m->file, k) && !gguf_get_f64(&m->file, k, &v))
        return wrong_kind(m, k, "a number", e);
    if (!(v >= key.lo && v <= key.hi)) /* also false for NaN */
        return err_set(e, E_FORMAT, "%s: %s = %g, expected %g to %g", m->file.path, k, v, key.lo,
                       key.hi);
    *out = v;
    return OK;
}

status bind_per_layer(const model *m, int_key key, int32_t *out, int32_t n, err *e)
{
    char k[KEY_BYTES];
    full_key(m, key.name, k);
    const gguf_value *v = gguf_find(&m->file, k);
    if (!v || v->kind != GGUF_ARRAY) {
        int32_t x;
        status st = bind_int(m, key, &x, e);
        for (int32_t i = 0; !st && i < n; i++)
            out[i] = x;
        return st;
    }
    if (v->count != (uint64_t)n)
        return err_set(e, E_FORMAT, "%s: %s has %" PRIu64 " items for %d layers", m->file.path, k,
                       v->count, n);
    for (int32_t i = 0; i < n; i++) {
        int64_t x;
        if (!gguf_item_i64(v, (uint64_t)i, &x) || x < key.lo || x > key.hi)
            return err_set(e, E_FORMAT,
                           "%s: item %d of %s is not an integer from %" PRId64 " to %" PRId64,
                           m->file.path, i, k, key.lo, key.hi);
        out[i] = (int32_t)x;
    }
    return OK;
}

status bind_windows(const model *m, int32_t usual, bool *swa, int32_t n, err *e)
{
    const char *name = "attention.sliding_window_pattern";
    int32_t is[LAYERS_MAX], period = usual;
    const gguf_value *v = bind_find(m, name);
    bool list = v && v->kind == GGUF_ARRAY;
    status st = list ? bind_per_layer(m, (int_key){name, 0, 1, REQUIRED}, is, n, e)
                     : bind_int(m, (int_key){name, 1, LAYERS_MAX, usual}, &period, e);
    for (int32_t i = 0; i < n && !st; i++)
        swa[i] = list ? is[i] : (i + 1) % period != 0;
    return st;
}

status bind_equal(const model *m, const char *a, const char *b, int32_t va, err *e)
{
    int32_t vb = va;
    status st = bind_int(m, (int_key){b, 1, WIDTH_MAX, va}, &vb, e);
    if (!st && va != vb)
        st = err_set(e, E_UNSUPPORTED, "%s: %s.%s = %d and %s.%s = %d: they must be equal",
                     m->file.path, m->arch->name, a, va, m->arch->name, b, vb);
    return st;
}

const gguf_value *bind_find(const model *m, const char *name)
{
    char k[KEY_BYTES];
    return gguf_find(&m->file, full_key(m, name, k));
}

/* ---- Weights ---- */

const char *bind_name(const model *m, int32_t il, const char *tail, char *buf, size_t cap)
{
    const char *prefix = m->arch->prefix;
    if (il < 0)
        snprintf(buf, cap, "%s", tail);
    else
        snprintf(buf, cap, "%sblk.%d.%s", prefix ? prefix : "", il, tail);
    return buf;
}

status bind_tensor(const binder *b, weight *w, const char *tail, model_want want)
{
    char name[128];
    want.name = bind_name(b->m, b->il, tail, name, sizeof name);
    return model_weight(b->m, w, &want, b->e);
}

status bind_matrix(const binder *b, weight *w, const char *tail, int32_t n_in, int32_t n_out)
{
    return bind_tensor(b, w, tail,
                       (model_want){.n_in = n_in, .n_out = n_out, .n_mat = 1, .active = 1});
}

status bind_vector(const binder *b, weight *w, const char *tail, int32_t n)
{
    return bind_tensor(b, w, tail,
                       (model_want){.n_in = n, .n_out = 1, .n_mat = 1, .active = 1, .f32 = true});
}

status bind_matrix_if(const binder *b, weight *w, const char *tail, int32_t n_in, int32_t n_out)
{
    return bind_tensor(
        b, w, tail,
        (model_want){.n_in = n_in, .n_out = n_out, .n_mat = 1, .active = 1, .optional = true});
}

status bind_vector_if(const binder *b, weight *w, const char *tail, int32_t n)
{
    return bind_tensor(
        b, w, tail,
        (model_want){
            .n_in = n, .n_out = 1, .n_mat = 1, .active = 1, .f32 = true, .optional = true});
}

status bind_qkv(const binder *b, weight *wq, weight *wk, weight *wv, int32_t n_in, int64_t q,
                int64_t kv)
{
    static const char *const names[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
    char fused[64];
    const int64_t n[] = {q, kv, kv};
    weight *w[] = {wq, wk, wv};
    int64_t at = 0;
    status st = OK;
    snprintf(fused, sizeof fused, "blk.%d.attn_qkv.weight", b->il);
    bool one = tensor_find(&b->m->file.tensors, fused) != NULL;
    for (int i = 0; i < 3 && !st; at += n[i++])
        st = bind_tensor(b, w[i], one ? "attn_qkv.weight" : names[i],
                         (model_want){.n_in = n_in,
                                      .n_out = n[i],
                                      .n_mat = 1,
                                      .active = 1,
                                      .of_rows = one ? q + 2 * kv : 0,
                                      .row = one ? at : 0});
    return st;
}

static status add_experts(const binder *b, model_experts x)
{
    model *m = b->m;
    size_t n = (size_t)m->n_expert_layers + 1;
    model_experts *list = mem_realloc(m->experts, n, sizeof *list);
    if (!list)
        return err_memory(b->e, m->file.path, n * sizeof *list);
    m->experts = list;
    m->experts[m->n_expert_layers++] = x;
    return OK;
}

status bind_experts(const binder *b, const expert_sizes *s, weight *gate, weight *up, weight *down)
{
    double active = (double)s->n_used / s->n_expert;
    model_want one = {.n_in = s->n_embd, .n_out = s->n_ff, .n_mat = s->n_expert, .active = active};
    model_want both = one, back = one;
    status st;
    both.n_out = 2 * s->n_ff;
    both.optional = true;
    back.n_in = s->n_ff;
    back.n_out = s->n_embd;
    back.own_scale = s->down_scaled;
    if ((st = bind_tensor(b, gate, "ffn_gate_up_exps.weight", both)) ||
        (st = bind_tensor(b, down, "ffn_down_exps.weight", back)))
        return st;
    bool apart = !gate->n_in;
    if (apart && ((st = bind_tensor(b, gate, "ffn_gate_exps.weight", one)) ||
                  (st = bind_tensor(b, up, "ffn_up_exps.weight", one))))
        return st;
    return add_experts(b, (model_experts){.gate = gate,
                                          .up = apart ? up : NULL,
                                          .down = down,
                                          .il = b->il,
                                          .n_experts = s->n_expert,
                                          .n_used = s->n_used,
                                          .router = s->router,
                                          .router_in = s->router_in,
                                          .router_bias = s->router_bias});
}

status bind_tokens(model *m, weight *embd, weight *head, int32_t n_embd, err *e)
{
    binder b = {m, -1, e};
    /* The embedding gathers single rows of the table; the head multiplies by all rows. */
    bool tied = !tensor_find(&m->file.tensors, "output.weight");
    status st = bind_tensor(&b, embd, "token_embd.weight",
                            (model_want){.n_in = n_embd, .n_mat = 1, .gather = true});
    if (st)
        return st;
    m->n_vocab = embd->n_out;
    if (!head)
        return OK;
    st = bind_matrix(&b, head, tied ? "token_embd.weight" : "output.weight", n_embd, m->n_vocab);
    if (!st && tied)
        m->n_params -= (uint64_t)embd->n_in * (uint64_t)embd->n_out;
    return st;
}

/* tokenizer.ggml.suppress_tokens to m->suppress. */
static status bind_suppressed(model *m, err *e)
{
    const gguf_value *v = gguf_find(&m->file, "tokenizer.ggml.suppress_tokens");
    if (!v || !v->count)
        return OK;
    if (v->kind != GGUF_ARRAY || v->count > (uint64_t)m->n_vocab)
        return err_set(e, E_FORMAT, "%s: tokenizer.ggml.suppress_tokens is not a list of tokens",
                       m->file.path);
    int32_t *ids = arena_array(&m->mem, (size_t)v->count, sizeof *ids);
    if (!ids)
        return err_memory(e, m->file.path, (size_t)v->count * sizeof *ids);
    for (uint64_t i = 0; i < v->count; i++) {
        int64_t id;
        if (!gguf_item_i64(v, i, &id) || id < 0 || id >= m->n_vocab)
            return err_set(e, E_FORMAT,
                           "%s: item %" PRIu64 " of tokenizer.ggml.suppress_tokens is no token",
                           m->file.path, i);
        ids[i] = (int32_t)id;
    }
    m->suppress = ids;
    m->n_suppress = (int32_t)v->count;
    return model_add_table(m, (const void **)&m->suppress, (size_t)v->count * sizeof *ids, e);
}

float bind_largest(const weight *w)
{
    const float *v = w->data;
    float most = 0;
    for (int32_t i = 0; i < w->n_in; i++)
        if (!(fabsf(v[i]) <= most))
            most = fabsf(v[i]) <= FLT_MAX ? fabsf(v[i]) : INFINITY;
    return most;
}

static bool bind_wide(const weight *w, int32_t head_dim, float factor)
{
    return !(sqrtf((float)head_dim) * bind_largest(w) * factor <= 65504.0f / 2);
}

bool bind_wide_heads(const weight *q_norm, const weight *k_norm, int32_t head_dim, float factor)
{
    return bind_wide(q_norm, head_dim, factor) || bind_wide(k_norm, head_dim, factor);
}

void *bind_begin(model *m, const shape_family *f, size_t impl_bytes, model_shape **s, err *e)
{
    void *impl = arena_alloc(&m->mem, impl_bytes);
    m->impl_bytes = impl_bytes;
    if (!impl)
        err_memory(e, m->file.path, impl_bytes);
    return impl && !table_read(m, f, s, e) ? impl : NULL;
}

status bind_layer_structs(model *m, int32_t n_layer, void **layers, size_t layer_bytes, err *e)
{
    size_t n = (size_t)n_layer;
    *layers = arena_array(&m->mem, n, layer_bytes);
    m->kv = arena_array(&m->mem, n, sizeof *m->kv);
    m->n_kv = n_layer;
    m->layers = *layers;
    m->layer_bytes = layer_bytes;
    return *layers && m->kv ? OK : err_memory(e, m->file.path, n * (layer_bytes + sizeof *m->kv));
}

status bind_done(model *m, const model_shape *s, void *impl, const weight *embd, const weight *head,
                 err *e)
{
    m->impl = impl;
    m->embd = embd;
    m->head = head;
    m->embd_scale = 1;
    m->n_layer = s->n_layer;
    m->n_embd = s->n_embd;
    m->n_ctx_train = s->n_ctx_train;
    return head ? bind_suppressed(m, e) : OK;
}

/* ---- Rotation ---- */

/* The first of two keys that is in the file. Converters write "yarn_beta_fast", others
 * "beta_fast". */
static const char *first_key(const model *m, const char *a, const char *b)
{
    return bind_find(m, a) || !bind_find(m, b) ? a : b;
}

static status scaling_kind_of(const model *m, rope_scaling *s, err *e)
{
    char k[KEY_BYTES];
    gguf_string type;
    const gguf_value *v = gguf_find(&m->file, full_key(m, "rope.scaling.type", k));
    s->kind = SCALING_LINEAR; /* of a file with a factor alone */
    if (!v)
        return OK;
    if (!gguf_get_string(&m->file, k, &type))
        return wrong_kind(m, k, "a string", e);
    if (type.n == 4 && !memcmp(type.at, "none", 4))
        s->kind = SCALING_NONE;
    else if (type.n == 4 && !memcmp(type.at, "yarn", 4))
        s->kind = SCALING_YARN;
    else if (type.n != 6 || memcmp(type.at, "linear", 6) != 0)
        return err_set(e, E_UNSUPPORTED, "%s: %s = %.*s, expected none, linear or yarn",
                       m->file.path, k, (int)(type.n < 64 ? type.n : 64), type.at);
    return OK;
}

status bind_scaling(const model *m, rope_scaling *s, int32_t n_ctx, err *e)
{
    const char *fast = first_key(m, "rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast");
    const char *slow = first_key(m, "rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow");
    const char *factor = first_key(m, "rope.scaling.factor", "rope.scale_linear"); /* old files */
    rope_scaling x = {0};
    double attn, cancel;
    int32_t trained;
    status st;
    if ((st = scaling_kind_of(m, &x, e)) ||
        (st = bind_real(m, (real_key){factor, 1, 1e6, 1}, &x.factor, e)) ||
        (st = bind_real(m, (real_key){"rope.scaling.attn_factor", 1e-3, 1e3, 1}, &attn, e)) ||
        (st =
             bind_real(m, (real_key){"rope.scaling.yarn_log_multiplier", 0, 1e3, 0}, &cancel, e)) ||
        (st = bind_real(m, (real_key){fast, 1e-3, 1e6, 32}, &x.beta_fast, e)) ||
        (st = bind_real(m, (real_key){slow, 1e-3, 1e6, 1}, &x.beta_slow, e)) ||
        (st = bind_int(m, (int_key){"rope.scaling.original_context_length", 1, CTX_MAX, n_ctx},
                       &trained, e)))
        return st;
    x.n_ctx = trained;
    x.magnitude = x.kind == SCALING_YARN
                      ? (1 + 0.1 * log(x.factor)) * attn / (1 + 0.1 * cancel * log(x.factor))
                      : 1;
    if (x.kind == SCALING_LINEAR && x.factor == 1)
        x.kind = SCALING_NONE;
    *s = x;
    return OK;
}

/* The number of the pair that turns `turns` times in the trained context. */
static double pair_of_turns(const turning *t, double turns)
{
    return t->n_dims * log(t->scaling->n_ctx / (2 * M_PI * turns)) / (2 * log(t->theta));
}

/* The divisor of frequency i, as a factor. */
static double scaled_by(const turning *t, int32_t i)
{
    const rope_scaling *s = t->scaling;
    if (!s || s->kind == SCALING_NONE)
        return 1;
    if (s->kind == SCALING_LINEAR)
        return 1 / s->factor;
    double low = pair_of_turns(t, s->beta_fast), high = pair_of_turns(t, s->beta_slow);
    low = fmax(s->unrounded ? low : floor(low), 0);
    high = fmin(s->unrounded ? high : ceil(high), t->n_dims - 1);
    double ramp = fmin(fmax((i - low) / fmax(high - low, 0.001), 0), 1);
    return 1 - ramp + ramp / s->factor;
}

status bind_rope(model *m, rope *r, const turning *t, err *e)
{
    int32_t n = t->n_dims / 2;
    float *inv = arena_array(&m->mem, (size_t)n, sizeof *inv);
    if (!inv)
        return err_memory(e, "rotation frequencies", (size_t)n * sizeof *inv);
    for (int32_t i = 0; i < n; i++) {
        double factor = i >= t->n_turning ? 2 * NO_ROTATION : 1;
        if (t->factors && t->factors->n_in)
            factor = ((const float *)t->factors->data)[i];
        if (!(factor > 0)) /* also true for NaN */
            return err_set(e, E_FORMAT, "%s: rope_freqs.weight: item %d is %g", m->file.path, i,
                           factor);
        inv[i] = factor > NO_ROTATION
                     ? 0
                     : (float)(pow(t->theta, -2.0 * i / t->n_dims) / factor * scaled_by(t, i));
    }
    r->n_pairs = n;
    r->inv_freq = inv;
    r->factor = t->scaling ? (float)t->scaling->magnitude : 1;
    for (int32_t i = 0; i < n; i++)
        r->n_turning = inv[i] != 0 ? i + 1 : r->n_turning;
    return model_add_table(m, (const void **)&r->inv_freq, (size_t)n * sizeof *inv, e);
}

status bind_sections(model *m, rope *r, err *e)
{
    enum { LISTED = 4 }; /* the last is for positions that no family has */
    const int_key key = {"rope.dimension_sections", 0, WIDTH_MAX, REQUIRED};
    int32_t n[LISTED];
    status st = bind_find(m, key.name) ? bind_per_layer(m, key, n, LISTED, e) : OK;
    if (st || !bind_find(m, key.name))
        return st;
    if (n[0] < 1 || n[3] || (int64_t)n[0] + n[1] + n[2] != r->n_pairs)
        return err_set(e, E_FORMAT,
                       "%s: %s.rope.dimension_sections = %d, %d, %d, %d: expected %d pairs in the "
                       "first three, and some in the first",
                       m->file.path, m->arch->name, n[0], n[1], n[2], n[3], r->n_pairs);
    r->n_axes = 3;
    memcpy(r->section, n, sizeof r->section);
    m->turns_by_axes = true;
    return OK;
}

status bind_turns(model *m, rope *r, err *e)
{
    if (r->turns || r->n_turning > TURNING_MAX)
        return OK; /* without a table the layer stores keys and values */
    size_t n = (size_t)r->n_turning, n_bytes = 2 * ROPE_TURNS * n * sizeof(float);
    float *t = arena_array(&m->mem, 2 * ROPE_TURNS * n, sizeof *t);
    if (!t)
        return err_memory(e, "rotation tables", n_bytes);
    for (size_t p = 0; p < ROPE_TURNS; p++)
        for (size_t i = 0; i < n; i++) {
            double angle = (double)p * r->inv_freq[i];
            t[2 * p * n + i] = (float)cos(angle);
            t[(2 * p + 1) * n + i] = (float)sin(angle);
        }
    r->turns = t;
    return model_add_table(m, (const void **)&r->turns, n_bytes, e);
}
