/* lora.c - see lora.h. */
#include "model/lora.h"
#include "base/hash.h"
#include "num/num.h"
#include "base/str.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- A file alone -------------------------------------------------------------------------- */

static bool says(const gguf *g, const char *key, const char *word)
{
    gguf_string s;
    return gguf_get_string(g, key, &s) && s.n == strlen(word) && !memcmp(s.at, word, strlen(word));
}

bool lora_is_adapter(const gguf *g)
{
    return says(g, "general.type", "adapter");
}

/* The tensor of a model that t is about, in buf. */
static const char *base_name(const tensor *t, char buf[TENSOR_NAME_MAX + 1])
{
    snprintf(buf, TENSOR_NAME_MAX + 1, "%.*s", (int)(strlen(t->name) - strlen(".lora_a")), t->name);
    return buf;
}

/* Tables of embeddings have A the other way round: a row for each token. */
static bool is_table(const char *name)
{
    return text_ends_with(name, "token_embd.weight");
}

static status read_keys(const gguf *g, lora_file *f, err *e)
{
    gguf_string s;
    double alpha = 0;
    if (!lora_is_adapter(g))
        return err_set(e, E_FORMAT, "%s is no adapter: its general.type is not 'adapter'", g->path);
    if (!says(g, "adapter.type", "lora"))
        return err_set(e, E_UNSUPPORTED, "%s is an adapter whose adapter.type is not 'lora'",
                       g->path);
    if (!gguf_get_string(g, "general.architecture", &s) || !s.n || s.n >= sizeof f->arch)
        return err_set(e, E_FORMAT, "%s: no general.architecture, so of no known model", g->path);
    snprintf(f->arch, sizeof f->arch, "%.*s", (int)s.n, s.at);
    if (gguf_find(g, "adapter.alora.invocation_tokens"))
        return err_set(e, E_UNSUPPORTED,
                       "%s is an adapter that begins behind certain tokens of a prompt (aLoRA), "
                       "which is not supported",
                       g->path);
    if (gguf_find(g, "adapter.lora.alpha") && !gguf_get_f64(g, "adapter.lora.alpha", &alpha))
        return err_set(e, E_FORMAT, "%s: adapter.lora.alpha is no number", g->path);
    if (!(fabs(alpha) <= 1e6))
        return err_set(e, E_FORMAT, "%s: adapter.lora.alpha is %g, expected a number up to 1000000",
                       g->path, alpha);
    f->alpha = (float)alpha;
    return OK;
}

static status read_name(gguf *g, lora_file *f, err *e)
{
    gguf_string s;
    const char *slash = strrchr(g->path, '/'), *name = slash ? slash + 1 : g->path;
    size_t n = strlen(name);
    if (gguf_get_string(g, "general.name", &s) && s.n && s.n < 256)
        f->name = arena_strndup(&g->mem, s.at, (size_t)s.n);
    else
        f->name = arena_strndup(&g->mem, name, n - (text_ends_with(name, ".gguf") ? 5 : 0));
    return f->name ? OK : err_memory(e, g->path, 256);
}

/* All elements are finite. */
static status check_values(const gguf *g, const tensor *t, err *e)
{
    enum { PIECE = 256 }; /* whole blocks of every format */
    const num_format *f = num_format_of(t->type);
    float v[PIECE];
    uint64_t row_bytes, rows = t->ne[0] ? t->n_elements / t->ne[0] : 0;
    if (!num_row_bytes(t->type, t->ne[0], &row_bytes))
        return err_set(e, E_FORMAT, "%s: tensor %s: rows do not fit %s blocks", g->path, t->name,
                       f->name);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < t->ne[0]; i += PIECE) {
            uint64_t at = 0, n = t->ne[0] - i < PIECE ? t->ne[0] - i : PIECE;
            if (i && !num_row_bytes(t->type, i, &at))
                return err_set(e, E_FORMAT, "%s: tensor %s: its rows are no blocks", g->path,
                               t->name);
            f->decode(t->bytes + r * row_bytes + at, v, (int32_t)n);
            for (uint64_t k = 0; k < n; k++)
                if (!isfinite(v[k]))
                    return err_set(e, E_FORMAT, "%s: tensor %s: element %" PRIu64 " is %g", g->path,
                                   t->name, r * t->ne[0] + i + k, (double)v[k]);
        }
    return OK;
}

static status check_tensor(const gguf *g, const tensor *t, err *e)
{
    static const num_type known[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_Q8_0};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known |= t->type == (uint32_t)known[i];
    if (text_ends_with(t->name, "_norm.weight"))
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor %s replaces a norm of the model, which adapters here cannot",
                       g->path, t->name);
    if (!text_ends_with(t->name, ".lora_a") && !text_ends_with(t->name, ".lora_b"))
        return err_set(e, E_FORMAT, "%s: tensor %s is no half of a pair .lora_a and .lora_b",
                       g->path, t->name);
    if (!is_known)
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor %s is in %s, expected f32, f16, bf16 or q8_0 in an adapter",
                       g->path, t->name, num_name(t->type));
    return check_values(g, t, e);
}

/* The halves of a pair, whose A is t, fit each other. */
static status check_pair(const gguf *g, const tensor *a, lora_file *f, err *e)
{
    char name[TENSOR_NAME_MAX + 1], want[TENSOR_NAME_MAX + 16], have[96], other[96];
    base_name(a, name);
    snprintf(want, sizeof want, "%s.lora_b", name);
    const tensor *b = tensor_find(&g->tensors, want);
    if (!b)
        return err_set(e, E_FORMAT, "%s: tensor %s is missing beside %s", g->path, want, a->name);
    uint64_t rank = is_table(name) ? a->ne[0] : a->ne[1];
    tensor_shape_text(a, have, sizeof have);
    tensor_shape_text(b, other, sizeof other);
    if (rank != b->ne[0] || a->ne[2] != b->ne[2] || a->ne[3] != 1 || b->ne[3] != 1)
        return err_set(e, E_FORMAT, "%s: %s has shape %s and %s %s: the rank is not the same",
                       g->path, a->name, have, b->name, other);
    if (rank < 1 || rank > LORA_RANK_MAX)
        return err_set(e, E_LIMIT, "%s: tensor %s: rank %" PRIu64 ", expected 1 to %d", g->path,
                       a->name, rank, LORA_RANK_MAX);
    f->rank = f->n_pairs && f->rank < (int32_t)rank ? f->rank : (int32_t)rank;
    f->most = f->most > (int32_t)rank ? f->most : (int32_t)rank;
    f->n_pairs++;
    return OK;
}

static status check_tensors(const gguf *g, lora_file *f, err *e)
{
    hash_stream *h = hash_open();
    status st = h ? OK : err_memory(e, g->path, 1024);
    char name[TENSOR_NAME_MAX + 1], want[TENSOR_NAME_MAX + 16];
    if (h)
        hash_put(h, &f->alpha, sizeof f->alpha);
    for (uint64_t i = 0; i < g->tensors.n && !st; i++) {
        const tensor *t = &g->tensors.at[i];
        if ((st = check_tensor(g, t, e)))
            break;
        if (text_ends_with(t->name, ".lora_a")) {
            st = check_pair(g, t, f, e);
        } else {
            snprintf(want, sizeof want, "%s.lora_a", base_name(t, name));
            if (!tensor_find(&g->tensors, want))
                st = err_set(e, E_FORMAT, "%s: tensor %s is missing beside %s", g->path, want,
                             t->name);
        }
        hash_put(h, t->name, strlen(t->name) + 1);
        hash_put(h, t->bytes, (size_t)t->n_bytes);
        f->n_params += t->n_elements;
        f->n_bytes += t->n_bytes;
    }
    if (!st && !f->n_pairs)
        st = err_set(e, E_FORMAT, "%s: an adapter without tensors", g->path);
    f->hash = h ? hash_value(h) : 0;
    hash_close(h);
    return st;
}

status lora_read(gguf *g, lora_file *f, err *e)
{
    lora_file read = {0};
    status st = read_keys(g, &read, e);
    st = st ? st : read_name(g, &read, e);
    st = st ? st : check_tensors(g, &read, e);
    if (!st)
        *f = read;
    return st;
}

/* ---- With a model -------------------------------------------------------------------------- */

/* Rows first .. of t, n_out of each matrix, as a weight. What products do not read as it is stored
 * is widened to f32. */
static status half_weight(model *m, weight *w, const tensor *t, uint64_t first, int32_t n_out,
                          bool gather, err *e)
{
    uint64_t row = 0, n_in = t->ne[0], n_mat = t->ne[2];
    const num_format *f = num_format_of(t->type);
    num_row_bytes(t->type, n_in, &row);
    *w = (weight){.name = t->name,
                  .type = (num_type)t->type,
                  .n_in = (int32_t)n_in,
                  .n_out = n_out,
                  .n_mat = (int32_t)n_mat,
                  .data = t->bytes + first * row,
                  .row_bytes = row,
                  .mat_bytes = row * (uint64_t)n_out,
                  .gather = gather};
    w->n_bytes = w->mat_bytes * n_mat;
    if (t->type != NUM_Q8_0 && (n_mat == 1 || (uint64_t)n_out == t->ne[1]))
        return OK;
    uint64_t n = n_in * (uint64_t)n_out; /* of a tensor that was measured: fits */
    float *v = arena_array(&m->mem, (size_t)(n * n_mat), sizeof *v);
    if (!v)
        return err_memory(e, t->name, (size_t)(n * n_mat) * sizeof *v);
    for (uint64_t k = 0; k < n_mat; k++)
        for (uint64_t r = 0; r < (uint64_t)n_out; r++)
            f->decode(t->bytes + (k * t->ne[1] + first + r) * row, v + k * n + r * n_in,
                      (int32_t)n_in);
    w->data = v;
    w->type = NUM_F32;
    w->row_bytes = (size_t)n_in * sizeof *v;
    w->mat_bytes = (size_t)n * sizeof *v;
    w->n_bytes = w->mat_bytes * (size_t)n_mat;
    return OK;
}

/* The first row of w in the tensor of its name; a weight may be some rows of it. */
static uint64_t first_row(const model *m, const weight *w)
{
    const tensor *t = tensor_find(&m->file.tensors, w->name);
    const unsigned char *at = w->data;
    return t && w->row_bytes && at >= t->bytes && at < t->bytes + t->n_bytes
               ? (uint64_t)(at - t->bytes) / w->row_bytes
               : 0;
}

/* Do the halves fit the model's tensor? */
static status check_shapes(const model *m, const model_lora *x, const tensor *base, const tensor *a,
                           const tensor *b, bool table, err *e)
{
    char have[2][96], want[96];
    uint64_t rows = base->ne[1];
    if ((table ? a->ne[1] : a->ne[0]) == (table ? rows : base->ne[0]) &&
        b->ne[1] == (table ? base->ne[0] : rows) && a->ne[2] == base->ne[2])
        return OK;
    return err_set(e, E_FORMAT,
                   "%s: the shapes %s of %s and %s of its other half do not fit the tensor %s "
                   "of %s: is it an adapter of another model?",
                   x->file.path, tensor_shape_text(a, have[0], sizeof have[0]), a->name,
                   tensor_shape_text(b, have[1], sizeof have[1]),
                   tensor_shape_text(base, want, sizeof want), m->name);
}

/* One pair for one weight. base: the weight's tensor. */
static status bind_pair(model *m, model_lora *x, const tensor *base, const tensor *a,
                        const tensor *b, weight *w, err *e)
{
    bool table = w->gather;
    uint64_t rank = table ? a->ne[0] : a->ne[1];
    status st = check_shapes(m, x, base, a, b, table, e);
    if (st)
        return st;
    lora_pair *l = &x->pair[x->n_pairs];
    st = half_weight(m, &l->a, a, 0, (int32_t)a->ne[1], table, e);
    st = st ? st
            : half_weight(m, &l->b, b, table ? 0 : first_row(m, w),
                          table ? (int32_t)b->ne[1] : w->n_out, false, e);
    if (st || (st = model_remember(m, &l->a, e)) || (st = model_remember(m, &l->b, e)))
        return st;
    l->adapter = m->n_loras;
    l->c = x->is.alpha != 0 ? x->is.alpha / (float)rank : 1;
    l->next = w->lora;
    w->lora = l;
    x->n_pairs++;
    return OK;
}

/* A weight of products or a table: the rest of a model, such as norms, is neither. */
static bool can_adapt(const weight *w)
{
    return text_ends_with(w->name, ".weight") && !text_ends_with(w->name, "_norm.weight") &&
           !text_ends_with(w->name, "conv1d.weight") &&
           !text_ends_with(w->name, "rope_freqs.weight");
}

/* Is it a matrix of keys or values that the model leaves out, in a layer that takes those of
 * another one? PEFT adapts the modules of all layers. */
static bool is_left_out(const model *m, const tensor *base)
{
    return m->claimed[base - m->file.tensors.at] && (text_ends_with(base->name, ".attn_k.weight") ||
                                                     text_ends_with(base->name, ".attn_v.weight"));
}

/* Weights of a tensor, at most: queries, keys and values in one. */
enum { PARTS_MAX = 3 };

/* The pairs of one tensor, of n_base weights of the model. */
static status bind_tensors(model *m, model_lora *x, const tensor *a, int32_t n_base, err *e)
{
    char name[TENSOR_NAME_MAX + 1], other[TENSOR_NAME_MAX + 16];
    base_name(a, name);
    snprintf(other, sizeof other, "%s.lora_b", name);
    const tensor *b = tensor_find(&x->file.tensors, other);
    const tensor *base = tensor_find(&m->file.tensors, name);
    int32_t n_before = x->n_pairs;
    bool bound = false;
    for (int32_t i = 0; i < n_base && base; i++) {
        weight *w = m->weights[i];
        bound |= !strcmp(w->name, name);
        /* A head that shares the table of embeddings is not adapted with it: adapters are trained
         * so. */
        if (strcmp(w->name, name) || !can_adapt(w) || w->gather != is_table(name))
            continue;
        if (x->n_pairs == x->is.n_pairs * PARTS_MAX)
            return err_set(e, E_LIMIT, "%s: tensor %s is more than %d weights", x->file.path,
                           a->name, PARTS_MAX);
        status st = bind_pair(m, x, base, a, b, w, e);
        if (st)
            return st;
    }
    if (base && !bound && is_left_out(m, base))
        return check_shapes(m, x, base, a, b, false, e);
    if (x->n_pairs == n_before)
        return err_set(e, E_FORMAT, "%s: tensor %s: %s has no such weight that can be adapted",
                       x->file.path, a->name, m->name);
    return OK;
}

status model_add_lora(model *m, gguf *g, err *e)
{
    model_lora *x = m->loras ? &m->loras[m->n_loras] : NULL;
    gguf_string arch = {"", 0};
    int32_t n_base = m->n_weights;
    if (m->n_loras == LORAS_MAX) {
        status st = err_set(e, E_LIMIT, "%s: more than %d adapters", g->path, LORAS_MAX);
        gguf_close(g);
        return st;
    }
    if (!x && !(m->loras = arena_array(&m->mem, LORAS_MAX, sizeof *m->loras))) {
        gguf_close(g);
        return err_memory(e, m->name, LORAS_MAX * sizeof *m->loras);
    }
    x = &m->loras[m->n_loras];
    *x = (model_lora){.file = *g};
    *g = (gguf){0};
    for (int32_t i = 0; i < m->n_loras; i++) /* their own weights are no targets */
        n_base -= 2 * m->loras[i].n_pairs;
    status st = lora_read(&x->file, &x->is, e);
    gguf_get_string(&m->file, "general.architecture", &arch);
    if (!st && (arch.n != strlen(x->is.arch) || memcmp(arch.at, x->is.arch, (size_t)arch.n)))
        st = err_set(e, E_ARG, "%s adapts models of architecture %s, and %s is of %.*s",
                     x->file.path, x->is.arch, m->name, (int)(arch.n < 64 ? arch.n : 64), arch.at);
    if (!st &&
        !(x->pair = arena_array(&m->mem, (size_t)x->is.n_pairs * PARTS_MAX, sizeof *x->pair)))
        st = err_memory(e, x->file.path, (size_t)x->is.n_pairs * PARTS_MAX * sizeof *x->pair);
    for (uint64_t i = 0; i < x->file.tensors.n && !st; i++)
        if (text_ends_with(x->file.tensors.at[i].name, ".lora_a"))
            st = bind_tensors(m, x, &x->file.tensors.at[i], n_base, e);
    if (st) {
        gguf_close(&x->file);
        return st;
    }
    m->n_loras++;
    return OK;
}

void model_place_loras(model *m)
{
    for (int32_t i = 0; i < m->n_weights; i++)
        for (const lora_pair *l = m->weights[i]->lora; l; l = l->next) {
            lora_pair *own = (lora_pair *)l; /* of m->loras, and m's to change */
            own->a.side = own->b.side = m->weights[i]->side;
        }
}

void model_free_loras(model *m)
{
    for (int32_t i = 0; i < m->n_loras; i++)
        gguf_close(&m->loras[i].file);
}

uint64_t model_lora_key(const model *m, const float *scale)
{
    uint64_t key = 0;
    for (int32_t i = 0; i < m->n_loras; i++) {
        struct {
            uint64_t hash;
            float scale, zero;
        } of = {m->loras[i].is.hash, scale ? scale[i] : 0, 0};
        if (of.scale != 0)
            key += hash64(&of, sizeof of) | 1;
    }
    return key;
}
