/* gemma4_mtp_bind.c - makes a gemma4_mtp from GGUF metadata and tensors, and joins it to a target.
 *
 * Shapes of tensors decide; keys that contradict them are errors. What files in circulation do:
 *   general.architecture     gemma4-assistant; gemma4_assistant (the first files); gemma4_mtp
 *   projections              nextn.*, mtp.* or assistant.*
 *   head of clusters         the tensors are there or not, whatever use_ordered_embeddings says
 *   sliding_window_pattern absent      all layers but the last have a window
 *   keys of the other dialect absent   nothing is checked against them
 *
 * A tensor that is not read is an error: a skipped norm would only make drafts worse, and no test
 * of answers would notice.
 */
#include "base/mem.h"
#include "model/bind.h"
#include "model/gemma4.h"
#include "model/gemma4_mtp.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MTP_LAYERS_MAX = 64,
    MTP_HEAD_MAX = 8192,
    CLUSTERS_MAX = 8192, /* the published files have 2048 */
    TOP_MAX = 256,
    TOP_DEFAULT = 32
};

const model_arch gemma4_mtp_arch = {.name = "gemma4-assistant", .bind = gemma4_mtp_bind};
const model_arch gemma4_mtp_arch_old = {.name = "gemma4_assistant", .bind = gemma4_mtp_bind};
const model_arch gemma4_mtp_arch_ik = {.name = "gemma4_mtp", .bind = gemma4_mtp_bind};

typedef struct tensor_names {
    const char *pre, *post, *centroids, *order;
} tensor_names;

static const tensor_names dialects[] = {
    {"nextn.pre_projection.weight", "nextn.post_projection.weight", "masked_embd_centroids.weight",
     "masked_embd_ordering"},
    {"mtp.pre_projection.weight", "mtp.post_projection.weight", "mtp.centroids.weight",
     "mtp.token_ordering.weight"},
    {"assistant.pre_projection.weight", "assistant.post_projection.weight",
     "assistant.centroids.weight", "assistant.token_ordering.weight"},
};
enum { N_DIALECTS = sizeof dialects / sizeof *dialects };

static const tensor *find(const model *m, const char *name)
{
    return tensor_find(&m->file.tensors, name);
}

static bool has_queries(const model *m, int32_t il)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_q.weight", il);
    return find(m, name) != NULL;
}

/* Dimension i of a tensor, within 1 .. most. */
static status size_of(const model *m, const tensor *t, const char *name, int i, int32_t most,
                      int32_t *out, err *e)
{
    if (!t)
        return err_set(e, E_FORMAT, "%s: tensor %s is missing", m->file.path, name);
    if (t->ne[i] < 1 || t->ne[i] > (uint64_t)most)
        return err_set(e, E_FORMAT, "%s: tensor %s: dimension %d is %" PRIu64 ", expected 1 to %d",
                       m->file.path, t->name, i, t->ne[i], most);
    *out = (int32_t)t->ne[i];
    return OK;
}

/* The file's only set of names for what lies outside the layers. */
static status find_dialect(const model *m, const tensor_names **out, err *e)
{
    const tensor_names *found = &dialects[0];
    for (int i = 0; i < N_DIALECTS; i++)
        if (find(m, dialects[i].pre))
            found = &dialects[i];
    for (int i = 0; i < N_DIALECTS; i++) {
        const tensor_names *d = &dialects[i];
        const char *const names[] = {d->pre, d->post, d->centroids, d->order};
        for (int k = 0; k < 4; k++)
            if (d != found && find(m, names[k]))
                return err_set(e, E_FORMAT, "%s: tensors %s and %s are names of two dialects",
                               m->file.path, found->pre, names[k]);
    }
    *out = found;
    return OK;
}

/* The key is absent or has the value that the tensors have. */
static status agrees(const model *m, const char *key, int32_t v, err *e)
{
    int32_t same;
    return bind_int(m, (int_key){key, v, v, v}, &same, e);
}

static bool has_key(const model *m, const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", m->arch->name, key);
    return gguf_find(&m->file, name) != NULL;
}

/* ---- Layers -------------------------------------------------------------------------------- */

/* The same of a layer's tensor. */
static status size_in_layer(const model *m, int32_t il, const char *tail, int i, int32_t most,
                            int32_t *out, err *e)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", il, tail);
    return size_of(m, find(m, name), name, i, most, out, e);
}

static status layer_shape(const model *m, gemma4_mtp_layer *L, int32_t il, err *e)
{
    int32_t n_q = 0;
    status st;
    if ((st = size_in_layer(m, il, "attn_q_norm.weight", 0, MTP_HEAD_MAX, &L->head_dim, e)) ||
        (st = size_in_layer(m, il, "attn_q.weight", 1, WIDTH_MAX, &n_q, e)) ||
        (st = size_in_layer(m, il, "ffn_gate.weight", 1, WIDTH_MAX, &L->n_ff, e)))
        return st;
    if (L->head_dim % 2 || n_q % L->head_dim)
        return err_set(e, E_FORMAT,
                       "%s: layer %d: attn_q has %d outputs and heads have %d: expected a multiple "
                       "of an even number",
                       m->file.path, il, n_q, L->head_dim);
    L->n_head = n_q / L->head_dim;
    return OK;
}

static status check_layer_keys(const model *m, const gemma4_mtp *g, err *e)
{
    int32_t heads[MTP_LAYERS_MAX], ff[MTP_LAYERS_MAX];
    status st;
    if ((st = bind_per_layer(m, (int_key){"attention.head_count", 0, HEADS_MAX, 0}, heads,
                             g->n_layer, e)) ||
        (st = bind_per_layer(m, (int_key){"feed_forward_length", 0, WIDTH_MAX, 0}, ff, g->n_layer,
                             e)))
        return st;
    for (int32_t i = 0; i < g->n_layer; i++) {
        const gemma4_mtp_layer *L = &g->layer[i];
        const char *kind = L->swa ? "_swa" : "";
        char key[4][48];
        static const char *const length[] = {"attention.key_length", "attention.value_length",
                                             "rope.dimension_count"};
        if ((heads[i] && heads[i] != L->n_head) || (ff[i] && ff[i] != L->n_ff))
            return err_set(e, E_FORMAT,
                           "%s: layer %d: %d heads and a width of %d in the metadata, %d and %d in "
                           "the tensors",
                           m->file.path, i, heads[i], ff[i], L->n_head, L->n_ff);
        for (int k = 0; k < 3; k++) {
            snprintf(key[k], sizeof key[k], "%s%s", length[k], kind);
            if ((st = agrees(m, key[k], L->head_dim, e)))
                return st;
        }
    }
    return OK;
}

static status bind_layer(const binder *b, gemma4_mtp_layer *L, int32_t d)
{
    int32_t q = L->n_head * L->head_dim;
    status st;
    if ((st = bind_vector(b, &L->attn_norm, "attn_norm.weight", d)) ||
        (st = bind_matrix(b, &L->wq, "attn_q.weight", d, q)) ||
        (st = bind_vector(b, &L->q_norm, "attn_q_norm.weight", L->head_dim)) ||
        (st = bind_matrix(b, &L->wo, "attn_output.weight", q, d)) ||
        (st = bind_vector(b, &L->attn_post_norm, "post_attention_norm.weight", d)) ||
        (st = bind_vector(b, &L->ffn_norm, "ffn_norm.weight", d)) ||
        (st = bind_matrix(b, &L->gate, "ffn_gate.weight", d, L->n_ff)) ||
        (st = bind_matrix(b, &L->up, "ffn_up.weight", d, L->n_ff)) ||
        (st = bind_matrix(b, &L->down, "ffn_down.weight", L->n_ff, d)) ||
        (st = bind_vector(b, &L->ffn_post_norm, "post_ffw_norm.weight", d)))
        return st;
    return bind_vector(b, &L->out_scale, "layer_output_scale.weight", 1);
}

static status bind_kinds(const model *m, gemma4_mtp *g, err *e)
{
    int32_t swa[MTP_LAYERS_MAX];
    const char *key = "attention.sliding_window_pattern";
    bool stated = has_key(m, key);
    status st = bind_per_layer(m, (int_key){key, 0, 1, 0}, swa, g->n_layer, e);
    const gemma4_mtp_layer *of_kind[2] = {NULL, NULL};
    for (int32_t i = 0; !st && i < g->n_layer; i++) {
        gemma4_mtp_layer *L = &g->layer[i];
        L->swa = stated ? swa[i] : i < g->n_layer - 1;
        L->rope = L->swa ? &g->rope_swa : &g->rope_global;
        if (of_kind[L->swa] && of_kind[L->swa]->head_dim != L->head_dim)
            return err_set(e, E_FORMAT, "%s: layer %d has heads of %d, others of its kind of %d",
                           m->file.path, i, L->head_dim, of_kind[L->swa]->head_dim);
        of_kind[L->swa] = L;
    }
    return st;
}

static status bind_rotation(model *m, gemma4_mtp *g, err *e)
{
    const binder b = {m, -1, e};
    double theta, theta_swa;
    int32_t head[2] = {0, 0};
    status st;
    for (int32_t i = 0; i < g->n_layer; i++)
        head[g->layer[i].swa] = g->layer[i].head_dim;
    if ((st = bind_real(m, (real_key){"rope.freq_base", 1, 1e12, 1e6}, &theta, e)) ||
        (st = bind_real(m, (real_key){"rope.freq_base_swa", 1, 1e12, 1e4}, &theta_swa, e)))
        return st;
    if (head[1]) {
        const turning t = {head[1], theta_swa, head[1] / 2, NULL, NULL};
        if ((st = bind_rope(m, &g->rope_swa, &t, e)))
            return st;
    }
    if (!head[0])
        return OK;
    const turning t = {head[0], theta, head[0] / 8, &g->rope_factors, NULL};
    if ((st = bind_vector_if(&b, &g->rope_factors, "rope_freqs.weight", head[0] / 2)))
        return st;
    return bind_rope(m, &g->rope_global, &t, e);
}

static status bind_layers(model *m, gemma4_mtp *g, err *e)
{
    status st;
    while (g->n_layer <= MTP_LAYERS_MAX && has_queries(m, g->n_layer))
        g->n_layer++;
    if (g->n_layer < 1 || g->n_layer > MTP_LAYERS_MAX)
        return err_set(e, E_FORMAT,
                       "%s: tensors blk.*.attn_q.weight: expected those of 1 to %d "
                       "layers, found %d",
                       m->file.path, MTP_LAYERS_MAX, g->n_layer);
    if ((st = agrees(m, "block_count", g->n_layer, e)) ||
        (st = agrees(m, "nextn_predict_layers", g->n_layer, e)))
        return st;
    g->layer = arena_array(&m->mem, (size_t)g->n_layer, sizeof *g->layer);
    if (!g->layer)
        return err_memory(e, m->file.path, (size_t)g->n_layer * sizeof *g->layer);
    for (int32_t i = 0; i < g->n_layer; i++)
        if ((st = layer_shape(m, &g->layer[i], i, e)))
            return st;
    if ((st = bind_kinds(m, g, e)) || (st = check_layer_keys(m, g, e)) ||
        (st = bind_rotation(m, g, e)))
        return st;
    for (int32_t i = 0; i < g->n_layer; i++) {
        const binder b = {m, i, e};
        if ((st = bind_layer(&b, &g->layer[i], g->n_embd)))
            return st;
    }
    return OK;
}

/* ---- The head ------------------------------------------------------------------------------ */

/* Token i of the list, -1 where it is none. */
static int64_t listed(const tensor *t, int64_t i)
{
    const unsigned char *at = t->bytes + (t->type == NUM_I32 ? 4 : 8) * (size_t)i;
    uint64_t v = 0;
    int n = t->type == NUM_I32 ? 4 : 8;
    for (int k = n - 1; k >= 0; k--)
        v = v << 8 | at[k];
    return n == 4 ? (int32_t)(uint32_t)v : (int64_t)v;
}

/* Reads the order of tokens, which must name each token once. */
static status bind_order(model *m, gemma4_mtp *g, const tensor *t, err *e)
{
    size_t n = (size_t)m->n_vocab;
    int32_t *order = arena_array(&m->mem, n, sizeof *order);
    bool *seen = mem_calloc(n, sizeof *seen);
    status st = order && seen ? OK : err_memory(e, m->file.path, n * sizeof *order);
    for (size_t i = 0; !st && i < n; i++) {
        int64_t id = listed(t, (int64_t)i);
        if (id < 0 || id >= m->n_vocab || seen[id])
            st = err_set(e, E_FORMAT,
                         "%s: tensor %s: item %zu is %" PRId64 ": expected each of %d tokens once",
                         m->file.path, t->name, i, id, m->n_vocab);
        else
            seen[id] = true;
        if (!st)
            order[i] = (int32_t)id;
    }
    mem_free(seen);
    g->order = order;
    if (st)
        return st;
    return model_add_table(m, (const void **)&g->order, n * sizeof *order, e);
}

/* Rows of the head by cluster, so that a cluster is a matrix of its own. */
static status sort_head(model *m, gemma4_mtp *g, err *e)
{
    weight *w = &g->head;
    unsigned char *rows = arena_alloc(&m->mem, w->n_bytes);
    if (!rows)
        return err_memory(e, w->name, w->n_bytes);
    for (int32_t i = 0; i < m->n_vocab; i++)
        memcpy(rows + (size_t)i * w->row_bytes, weight_row(w, 0, g->order[i]), w->row_bytes);
    w->data = rows;
    w->n_mat = g->n_clusters;
    w->n_out = m->n_vocab / g->n_clusters;
    w->mat_bytes = w->row_bytes * (size_t)w->n_out;
    return OK;
}

static status bind_head(model *m, gemma4_mtp *g, const tensor_names *names, err *e)
{
    const binder b = {m, -1, e};
    bool own = find(m, "output.weight") != NULL;
    const char *head = own ? "output.weight" : "token_embd.weight";
    const tensor *c = find(m, names->centroids), *o = find(m, names->order);
    double active = 1;
    status st;
    if (!c != !o)
        return err_set(e, E_FORMAT, "%s: of tensors %s and %s there is one: expected both or none",
                       m->file.path, names->centroids, names->order);
    if ((st = size_of(m, find(m, head), head, 1, INT32_MAX, &m->n_vocab, e)))
        return st;
    if (c && ((st = size_of(m, c, names->centroids, 1, CLUSTERS_MAX, &g->n_clusters, e)) ||
              (st = agrees(m, "n_centroids", g->n_clusters, e)) ||
              (st = bind_int(m,
                             (int_key){"centroid_top_k", 1,
                                       g->n_clusters < TOP_MAX ? g->n_clusters : TOP_MAX,
                                       g->n_clusters < TOP_DEFAULT ? g->n_clusters : TOP_DEFAULT},
                             &g->n_top, e)) ||
              (st = bind_matrix(&b, &g->centroids, names->centroids, g->n_embd, g->n_clusters))))
        return st;
    if (c)
        active = (double)g->n_top / g->n_clusters;
    if ((st = bind_tensor(&b, &g->head, head,
                          (model_want){.n_in = g->n_embd, .n_mat = 1, .active = active})) ||
        !c)
        return st;
    bool list = (o->type == NUM_I32 || o->type == NUM_I64) && o->ne[0] == (uint64_t)m->n_vocab &&
                o->n_elements == o->ne[0];
    if (!list || m->n_vocab % g->n_clusters)
        return err_set(e, E_FORMAT,
                       "%s: tensor %s (%s): expected %d integers, in %d clusters of equal size",
                       m->file.path, o->name, num_name(o->type), m->n_vocab, g->n_clusters);
    if ((st = bind_order(m, g, o, e)))
        return st;
    return sort_head(m, g, e);
}

/* ---- All of it ----------------------------------------------------------------------------- */

static status bind_all(model *m, gemma4_mtp *g, err *e)
{
    const binder b = {m, -1, e};
    const tensor_names *names = NULL;
    const tensor *pre;
    double eps, softcap;
    int32_t wide = 0;
    status st;
    if ((st = find_dialect(m, &names, e)))
        return st;
    pre = find(m, names->pre);
    if ((st = size_of(m, pre, names->pre, 0, 2 * WIDTH_MAX, &wide, e)) ||
        (st = size_of(m, pre, names->pre, 1, WIDTH_MAX, &g->n_embd, e)))
        return st;
    if (wide % 2)
        return err_set(e, E_FORMAT, "%s: tensor %s: %d inputs, expected an even number",
                       m->file.path, pre->name, wide);
    g->n_target_embd = wide / 2;
    if ((st = agrees(m, "embedding_length", g->n_embd, e)) ||
        (st = agrees(m, "embedding_length_out", g->n_target_embd, e)) ||
        (st = agrees(m, "n_embd_backbone", g->n_target_embd, e)) ||
        (st = bind_matrix(&b, &g->pre, names->pre, wide, g->n_embd)) ||
        (st = bind_matrix(&b, &g->post, names->post, g->n_embd, g->n_target_embd)) ||
        (st = bind_vector(&b, &g->out_norm, "output_norm.weight", g->n_embd)) ||
        (st = bind_real(m, (real_key){"attention.layer_norm_rms_epsilon", 0, 1, 1e-6}, &eps, e)) ||
        (st = bind_real(m, (real_key){"final_logit_softcapping", 0, 1e6, 0}, &softcap, e)) ||
        (st = bind_int(m, (int_key){"attention.sliding_window", 0, CTX_MAX, 0}, &g->window, e)) ||
        (st = bind_int(m, (int_key){"context_length", 1, CTX_MAX, CTX_MAX}, &m->n_ctx_train, e)) ||
        (st = bind_head(m, g, names, e)) || (st = bind_layers(m, g, e)))
        return st;
    g->eps = (float)eps;
    g->softcap = (float)softcap;
    model_claim(m, names->order);
    model_claim(m, "token_embd.weight"); /* without an own head it is the head, else it is unused */
    return OK;
}

status gemma4_mtp_bind(model *m, err *e)
{
    gemma4_mtp *g = arena_alloc(&m->mem, sizeof *g);
    if (!g)
        return err_memory(e, m->file.path, sizeof *g);
    status st = bind_all(m, g, e);
    if (st)
        return st;
    m->impl = g;
    m->n_layer = g->n_layer;
    m->n_embd = g->n_embd;
    m->window = g->window;
    return OK;
}

/* ---- The target ---------------------------------------------------------------------------- */

/* The last of the target's stores for layers of that kind; -1: none. Only layers that own keys have
 * stores. */
static int32_t donor_of(const model *target, bool swa)
{
    int32_t donor = target->n_kv - 1;
    while (donor >= 0 && (target->kv[donor].window != 0) != swa)
        donor--;
    return donor;
}

static status attach_layer(const model *m, gemma4_mtp_layer *L, int32_t il, const model *target,
                           err *e)
{
    const float room = 65504.0f / 2; /* as gemma4_table.c has it */
    L->donor = donor_of(target, L->swa);
    if (L->donor < 0)
        return err_set(e, E_ARG,
                       "%s: layer %d reads keys of a %s layer, and no such layer of %s has keys",
                       m->file.path, il, L->swa ? "sliding-window" : "global", target->name);
    const kv_spec *s = &target->kv[L->donor];
    if (s->head_dim != L->head_dim || L->n_head % s->n_head_kv)
        return err_set(e, E_ARG,
                       "%s: layer %d has %d heads of %d, and layer %d of %s, whose keys it reads, "
                       "has %d KV heads of %d: it was made for another model",
                       m->file.path, il, L->n_head, L->head_dim, L->donor, target->name,
                       s->n_head_kv, s->head_dim);
    float q = sqrtf((float)L->head_dim) * bind_largest(&L->q_norm);
    float product = s->k_is_v ? q * bind_largest(s->k_norm) : 0; /* of one stream */
    L->wide = !(q <= room && product <= room);
    return OK;
}

status gemma4_mtp_attach(model *m, const model *target, err *e)
{
    gemma4_mtp *g = m->impl;
    if (target->arch != &gemma4_arch)
        return err_set(e, E_ARG, "%s drafts for Gemma 4, and %s is of architecture %s",
                       m->file.path, target->name, target->arch->name);
    if (g->n_target_embd != target->n_embd)
        return err_set(e, E_ARG,
                       "%s drafts for a model of width %d, and %s has a width of %d: it was made "
                       "for another size",
                       m->file.path, g->n_target_embd, target->name, target->n_embd);
    if (m->n_vocab != target->n_vocab)
        return err_set(e, E_ARG, "%s has %d tokens, and %s has %d", m->file.path, m->n_vocab,
                       target->name, target->n_vocab);
    if (g->window && g->window != target->window)
        return err_set(e, E_ARG, "%s has a window of %d, and %s one of %d", m->file.path, g->window,
                       target->name, target->window);
    for (int32_t i = 0; i < g->n_layer; i++) {
        status st = attach_layer(m, &g->layer[i], i, target, e);
        if (st)
            return st;
    }
    g->target = target;
    return OK;
}
