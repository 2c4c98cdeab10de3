/* gemma4_mtp_table.c - the MTP assistants of Gemma 4: sizes, keys, tensors, binding, and how one
 * joins its target.
 *
 * Names are llama.cpp's, with those of the first files beside them. The head of the assistants for
 * E2B and E4B sorts the tokens into clusters: it multiplies only the rows of the clusters whose
 * centroids come closest. The tensor masked_embd_ordering lists the tokens cluster by cluster.
 *
 * In files the shapes of tensors decide; keys that contradict them are errors. What files in
 * circulation do:
 *   general.architecture     gemma4-assistant; gemma4_assistant (the first files); gemma4_mtp
 *   projections              nextn.*, mtp.* or assistant.*
 *   head of clusters         the tensors are there or not, whatever use_ordered_embeddings says
 *   sliding_window_pattern absent      all layers but the last have a window
 *   keys of the other dialect absent   nothing is checked against them
 */
#include "base/mem.h"
#include "model/bind.h"
#include "model/gemma4.h"
#include "model/gemma4_mtp.h"
#include "model/gemma4_mtp_shapes.h"
#include "model/gemma4_shapes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MTP_HEAD_MAX = 8192,
    CLUSTERS_MAX = 8192, /* the published files have 2048 */
    TOP_MAX = 256,
    TOP_DEFAULT = 32
};

/* ---- Sizes ---- */

#define BASE                                                                                       \
    .family = &gemma4_mtp_shapes, .n_layer = 4, .swa = {1, 1, 1, 0}, .eps = 1e-6, .theta = 1e6,    \
    .theta_swa = 1e4, .rotary_part = 0.25, .rope_factor = 1
#define FULL BASE, .n_vocab = 262144, .head_dim = 256, .head_dim_global = 512
#define SMALL                                                                                      \
    FULL, .n_embd = 256, .n_ff = 2048, .n_head = 4, .n_centroids = 2048, .centroid_top_k = 32,     \
          .window = 512, .n_ctx_train = 131072
#define LARGE FULL, .n_embd = 1024, .n_ff = 8192, .window = 1024, .n_ctx_train = 262144
/* For the tiny sizes of the target with 9 layers of width 96. */
#define TINY                                                                                       \
    BASE, .n_vocab = 320, .n_embd = 64, .n_target_embd = 96, .n_ff = 128, .n_head = 4,             \
          .head_dim = 32, .head_dim_global = 64, .window = 8, .n_ctx_train = 8192

static const gemma4_mtp_shape sizes[] = {
    {SMALL, .name = "mtp-e2b", .n_target_embd = 1536, .n_head_kv = 1, .n_head_kv_global = 1},
    {SMALL, .name = "mtp-e4b", .n_target_embd = 2560, .n_head_kv = 2, .n_head_kv_global = 2},
    {LARGE, .name = "mtp-12b", .n_target_embd = 3840, .n_head = 16, .n_head_kv = 8,
     .n_head_kv_global = 1},
    {LARGE, .name = "mtp-26b", .n_target_embd = 2816, .n_head = 16, .n_head_kv = 8,
     .n_head_kv_global = 2},
    {LARGE, .name = "mtp-31b", .n_target_embd = 5376, .n_head = 32, .n_head_kv = 16,
     .n_head_kv_global = 4},
    {TINY, .name = "mtp-tiny", .n_head_kv = 2, .n_head_kv_global = 1}, /* tiny-dense, -moe, -all */
    {TINY, .name = "mtp-tiny-ordered", .n_head_kv = 1, .n_head_kv_global = 1, .n_centroids = 16,
     .centroid_top_k = 4}, /* tiny-ple */
    {BASE, .name = "mtp-tiny-wide", .n_vocab = 512, .n_embd = 256, .n_target_embd = 256,
     .n_ff = 512, .n_head = 4, .head_dim = 64, .head_dim_global = 128, .n_head_kv = 2,
     .n_head_kv_global = 1, .window = 16, .n_ctx_train = 8192},
};

static const gemma4_mtp_shape *own(const model_shape *s)
{
    return (const gemma4_mtp_shape *)s;
}

/* ---- Keys ---- */

static int32_t is_swa(const model_shape *s, int32_t il)
{
    return own(s)->swa[il];
}

static int32_t n_head_kv_of(const model_shape *s, int32_t il)
{
    return is_swa(s, il) ? own(s)->n_head_kv : own(s)->n_head_kv_global;
}

static int32_t is_ordered(const model_shape *s, int32_t il)
{
    (void)il;
    return own(s)->n_centroids > 0;
}

static bool has_clusters(const model_shape *s)
{
    return is_ordered(s, 0);
}

static bool is_old(const model_shape *s)
{
    return own(s)->dialect == MTP_OLD;
}

static bool is_new(const model_shape *s)
{
    return !is_old(s);
}

#define F(name) offsetof(gemma4_mtp_shape, name)
#define TOLD_BY_TENSOR(gguf, config, field, least, most, ...)                                      \
    K(gguf, config, field, COUNT, least, most, .how = TOLD, __VA_ARGS__)
static const table_key keys[] = {
    K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, MTP_LAYERS_MAX, .how = WRITE_ONLY),
    TOLD_BY_TENSOR("nextn_predict_layers", NULL, F(n_layer), 1, MTP_LAYERS_MAX, .when = is_new),
    K("context_length", "max_position_embeddings", F(n_ctx_train), COUNT, 1, CTX_MAX,
      .how = MAY_LACK, .value = CTX_MAX),
    TOLD_BY_TENSOR("embedding_length", "hidden_size", F(n_embd), 1, WIDTH_MAX),
    TOLD_BY_TENSOR("n_embd_backbone", "backbone_hidden_size", F(n_target_embd), 1, WIDTH_MAX,
                   .when = is_old),
    TOLD_BY_TENSOR("embedding_length_out", "backbone_hidden_size", F(n_target_embd), 1, WIDTH_MAX,
                   .when = is_new),
    K("feed_forward_length", "intermediate_size", F(n_ff), UNIFORM, 1, WIDTH_MAX, .how = TOLD),
    K("vocab_size", "vocab_size", F(n_vocab), COUNT, 1, VOCAB_MAX, .how = WRITE_ONLY),
    K("attention.head_count", "num_attention_heads", F(n_head), UNIFORM, 1, HEADS_MAX, .how = TOLD),
    K("attention.shared_kv_layers", NULL, F(n_layer), COUNT, 1, MTP_LAYERS_MAX, .how = WRITE_ONLY),
    TOLD_BY_TENSOR("attention.key_length", "global_head_dim", F(head_dim_global), 2, WIDTH_MAX),
    TOLD_BY_TENSOR("attention.value_length", NULL, F(head_dim_global), 2, WIDTH_MAX),
    TOLD_BY_TENSOR("attention.key_length_swa", "head_dim", F(head_dim), 2, WIDTH_MAX),
    TOLD_BY_TENSOR("attention.value_length_swa", NULL, F(head_dim), 2, WIDTH_MAX),
    K("attention.sliding_window", "sliding_window", F(window), COUNT, 1, CTX_MAX,
      .how = WRITE_ONLY), /* a file need not say it */
    TOLD_BY_TENSOR("rope.dimension_count", NULL, F(head_dim_global), 2, WIDTH_MAX),
    TOLD_BY_TENSOR("rope.dimension_count_swa", NULL, F(head_dim), 2, WIDTH_MAX),
    TOLD_BY_TENSOR("n_centroids", "num_centroids", F(n_centroids), 0, VOCAB_MAX, .upto = F(n_vocab),
                   .when = has_clusters),
    K("centroid_top_k", "centroid_intermediate_top_k", F(centroid_top_k), COUNT, 1, TOP_MAX,
      .how = MAY_LACK, .otherwise = F(centroid_top_k), .upto = F(n_centroids),
      .when = has_clusters),
    K(NULL, "num_key_value_heads", F(n_head_kv), COUNT, 1, HEADS_MAX, .upto = F(n_head)),
    K(NULL, "num_global_key_value_heads", F(n_head_kv_global), COUNT, 1, HEADS_MAX,
      .upto = F(n_head)),
    K("attention.head_count_kv", "num_key_value_heads", F(n_head_kv), LIST, 1, HEADS_MAX,
      .of = n_head_kv_of, .how = WRITE_ONLY),
    K("attention.sliding_window_pattern", NULL, F(swa), FLAGS, 0, 1, .of = is_swa,
      .how = WRITE_ONLY),
    K("use_ordered_embeddings", NULL, F(n_centroids), FLAG, 0, 1, .of = is_ordered,
      .how = WRITE_ONLY),
    K("attention.layer_norm_rms_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1, .how = MAY_LACK,
      .value = 1e-6),
    K("rope.freq_base", "rope_theta", F(theta), REAL, THETA_MIN, THETA_MAX, .how = MAY_LACK,
      .value = 1e6),
    K("rope.freq_base_swa", "rope_theta", F(theta_swa), REAL, THETA_MIN, THETA_MAX, .how = MAY_LACK,
      .value = 1e4),
    /* A file may have keys of the other dialect, of the same values. */
    K("nextn_predict_layers", NULL, F(n_layer), COUNT, 1, MTP_LAYERS_MAX, .how = TOLD | READ_ONLY,
      .when = is_old),
    K("n_embd_backbone", NULL, F(n_target_embd), COUNT, 1, WIDTH_MAX, .how = TOLD | READ_ONLY,
      .when = is_new),
    K("embedding_length_out", NULL, F(n_target_embd), COUNT, 1, WIDTH_MAX, .how = TOLD | READ_ONLY,
      .when = is_old),
    K("final_logit_softcapping", NULL, F(softcap), REAL, 0, 1e6, .how = MAY_LACK | READ_ONLY),
    K(NULL, "partial_rotary_factor", F(rotary_part), REAL, 1e-6, 1),
    K(NULL, "factor", F(rope_factor), REAL, 1e-6, 1e6),
};

static void put_own_keys(gguf_writer *w, const char *arch, const model_shape *m)
{
    const char *source = own(m)->source;
    (void)arch;
    gguf_put_string(w, "carat.draft.family", "mtp", 3);
    if (*source)
        gguf_put_string(w, "carat.draft.source_sha256", source, strlen(source));
}

static status agree(const model_shape *m, status bad, const char *what, err *e)
{
    const gemma4_mtp_shape *s = own(m);
    if (s->n_head % s->n_head_kv || s->n_head % s->n_head_kv_global)
        return err_set(e, bad, "%s: %d heads do not share %d or %d key heads evenly", what,
                       s->n_head, s->n_head_kv, s->n_head_kv_global);
    if (s->head_dim % 2 || s->head_dim_global % 2)
        return err_set(e, bad, "%s: head sizes %d and %d: expected even numbers", what,
                       s->head_dim_global, s->head_dim);
    if (s->n_centroids && (s->n_vocab % s->n_centroids || !s->centroid_top_k))
        return err_set(e, bad,
                       "%s: %d tokens do not make %d clusters of equal size, %d of them used", what,
                       s->n_vocab, s->n_centroids, s->centroid_top_k);
    return OK;
}

/* ---- Tensors ---- */

enum { D = 1, D_T, D_T2, FF, VOCAB, CENTROIDS, HALF_G, ONE, Q, HD };
static int64_t dim(const model_shape *m, int32_t il, int8_t d)
{
    const gemma4_mtp_shape *s = own(m);
    int32_t hd = is_swa(m, il < 0 ? 0 : il) ? s->head_dim : s->head_dim_global;
    const int64_t of[] = {[D] = s->n_embd,
                          [D_T] = s->n_target_embd,
                          [D_T2] = 2 * (int64_t)s->n_target_embd,
                          [FF] = s->n_ff,
                          [VOCAB] = s->n_vocab,
                          [CENTROIDS] = s->n_centroids,
                          [HALF_G] = s->head_dim_global / 2,
                          [ONE] = 1,
                          [Q] = (int64_t)s->n_head * hd,
                          [HD] = hd};
    return of[d];
}

static bool if_ordered(const model_shape *s, int32_t il)
{
    return is_ordered(s, il);
}

#define M(name) offsetof(gemma4_mtp, name)
#define PRE "nextn.pre_projection.weight"
#define CLUSTER_CENTRES "masked_embd_centroids.weight"
#define ORDER "masked_embd_ordering"
#define OTHERS(tail) ALSO("mtp." tail, "assistant." tail)
static const table_tensor of_model[] = {
    T(ALWAYS, ELSEWHERE, "token_embd.weight", "model.embed_tokens.weight", EMBD, D, VOCAB),
    T(ALWAYS, M(out_norm), "output_norm.weight", "model.norm.weight", NORM, D),
    T_IF(ALWAYS, M(rope_factors), "rope_freqs.weight", "", ROPE_FACTORS, HALF_G),
    T_ALSO(OTHERS("pre_projection.weight"), ALWAYS, M(pre), PRE, "pre_projection.weight", MATRIX,
           D_T2, D),
    T_ALSO(OTHERS("post_projection.weight"), ALWAYS, M(post), "nextn.post_projection.weight",
           "post_projection.weight", MATRIX, D, D_T),
    T_ALSO(OTHERS("centroids.weight"), if_ordered, M(centroids), CLUSTER_CENTRES,
           "masked_embedding.centroids.weight", EIGHT_BITS, D, CENTROIDS),
    T_ALSO(OTHERS("token_ordering.weight"), if_ordered, ELSEWHERE, ORDER,
           "masked_embedding.token_ordering", IDS, VOCAB),
};

#define W(name) offsetof(gemma4_mtp_layer, name)
static const table_tensor of_layer[] = {
    T(ALWAYS, W(attn_norm), "attn_norm.weight", "input_layernorm.weight", NORM, D),
    T(ALWAYS, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),
    T(ALWAYS, W(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORM, HD),
    T(ALWAYS, W(wo), "attn_output.weight", "self_attn.o_proj.weight", MATRIX, Q, D),
    T_GEMMA_UNIT,
    T(ALWAYS, W(out_scale), "layer_output_scale.weight", "layer_scalar", SCALE, ONE),
};

static void describe(const model_shape *s, const table_tensor *r, shape_tensor *t)
{
    (void)s;
    if (t->layer >= 0)
        snprintf(t->hf_name, sizeof t->hf_name, "model.layers.%d.%s", (int)t->layer, r->hf);
    /* The attention scale is 1: the trained q norm contains its part of 1 / sqrt(head size). */
    if (r->role == ROLE_QK_NORM)
        t->centre = powf((float)t->ne[0], -0.25f);
}

static const char *arch_of(const model_shape *s, char buf[TABLE_ARCH])
{
    (void)buf;
    return is_old(s) ? "gemma4_assistant" : "gemma4-assistant";
}

/* ---- Sizes that synth makes ---- */

/* The last layer of every size is global. */
static void cut_layer(model_shape *shape, int32_t n_layer)
{
    gemma4_mtp_shape *s = (gemma4_mtp_shape *)shape;
    s->n_layer = n_layer;
    s->swa[n_layer - 1] = false;
}

/* Synthetic ids: a permutation that spreads neighbours over the clusters. */
static void compute(const model_shape *shape, const shape_tensor *t, void *out)
{
    const gemma4_mtp_shape *s = (const gemma4_mtp_shape *)shape;
    float *f = out;
    int32_t *id = out, n = s->head_dim_global / 2;
    int64_t prime = s->n_vocab % 7919 ? 7919 : 1;
    if (t->role == ROLE_IDS) {
        for (int64_t i = 0; i < s->n_vocab; i++)
            id[i] = (int32_t)(i * prime % s->n_vocab);
        return;
    }
    int32_t n_turning = gemma4_turning_pairs(s->rotary_part, s->head_dim_global);
    for (int32_t i = 0; i < n; i++)
        f[i] = i < n_turning ? (float)s->rope_factor : 1e30f;
}

static bool set_dialect(model_shape *s, const char *name)
{
    bool old = !strcmp(name, "old");
    ((gemma4_mtp_shape *)s)->dialect = old ? MTP_OLD : 0;
    return old || !strcmp(name, "llama.cpp");
}

/* ---- What tensors of a file tell ---- */

static const tensor *find(const model *m, const char *name)
{
    return tensor_find(&m->file.tensors, name);
}

static status size_of(const model *m, table_dim d, int32_t *out, err *e)
{
    return table_size(m, &gemma4_mtp_shapes, d, out, e);
}

static status tell_clusters(const model *m, gemma4_mtp_shape *s, err *e)
{
    const table_dim centroids = {-1, CLUSTER_CENTRES, 1, CLUSTERS_MAX}, order = {-1, ORDER, 0, 0};
    const tensor *c, *o;
    status st;
    if ((st = table_find(m, &gemma4_mtp_shapes, centroids, &c, e)) ||
        (st = table_find(m, &gemma4_mtp_shapes, order, &o, e)))
        return st;
    if (!c != !o)
        return err_set(e, E_FORMAT, "%s: of tensors %s and %s there is one: expected both or none",
                       m->file.path, CLUSTER_CENTRES, ORDER);
    if (!c)
        return OK;
    st = size_of(m, centroids, &s->n_centroids, e);
    s->centroid_top_k = s->n_centroids < TOP_DEFAULT ? s->n_centroids : TOP_DEFAULT;
    return st;
}

/* Kinds of the layers, and the size of their heads. Where a file has no layer of a kind, its key
 * tells the size. */
static status tell_kinds(const model *m, gemma4_mtp_shape *s, err *e)
{
    const char *key = "attention.sliding_window_pattern";
    int32_t swa[MTP_LAYERS_MAX], *of[2] = {&s->head_dim_global, &s->head_dim};
    bool stated = bind_find(m, key) != NULL;
    status st = bind_per_layer(m, (int_key){key, 0, 1, 0}, swa, s->n_layer, e);
    for (int32_t i = 0; !st && i < s->n_layer; i++) {
        int32_t hd = 0;
        s->swa[i] = stated ? swa[i] : i < s->n_layer - 1;
        st = size_of(m, (table_dim){i, "attn_q_norm.weight", 0, MTP_HEAD_MAX}, &hd, e);
        if (!st && *of[s->swa[i]] && *of[s->swa[i]] != hd)
            return err_set(e, E_FORMAT, "%s: layer %d has heads of %d, others of its kind of %d",
                           m->file.path, i, hd, *of[s->swa[i]]);
        if (!st)
            *of[s->swa[i]] = hd;
    }
    for (int k = 0; k < 2 && !st; k++)
        if (!*of[k])
            st = bind_int(m,
                          (int_key){k ? "attention.key_length_swa" : "attention.key_length", 2,
                                    WIDTH_MAX, *of[!k]},
                          of[k], e);
    return st;
}

static status tell_heads(const model *m, gemma4_mtp_shape *s, err *e)
{
    int32_t hd = s->swa[0] ? s->head_dim : s->head_dim_global, n_q = 0;
    status st = size_of(m, (table_dim){0, "attn_q.weight", 1, WIDTH_MAX}, &n_q, e);
    if (!st && (hd % 2 || n_q % hd))
        st = err_set(e, E_FORMAT,
                     "%s: layer 0: attn_q has %d outputs and heads have %d: expected a multiple of "
                     "an even number",
                     m->file.path, n_q, hd);
    s->n_head = st ? 0 : n_q / hd;
    s->n_head_kv = s->n_head_kv_global = 1; /* the target's, which the file need not tell */
    return st;
}

static status tell_layers(const model *m, gemma4_mtp_shape *s, err *e)
{
    char name[64] = "blk.0.attn_q.weight";
    status st;
    while (s->n_layer <= MTP_LAYERS_MAX && find(m, name))
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", ++s->n_layer);
    if (s->n_layer < 1 || s->n_layer > MTP_LAYERS_MAX)
        return err_set(e, E_FORMAT,
                       "%s: tensors blk.*.attn_q.weight: expected those of 1 to %d layers, found "
                       "%d",
                       m->file.path, MTP_LAYERS_MAX, s->n_layer);
    const int_key count = {"block_count", s->n_layer, s->n_layer, s->n_layer}; /* before lists */
    if ((st = bind_int(m, count, &s->n_layer, e)) || (st = tell_kinds(m, s, e)) ||
        (st = tell_heads(m, s, e)))
        return st;
    return size_of(m, (table_dim){0, "ffn_gate.weight", 1, WIDTH_MAX}, &s->n_ff, e);
}

static const char *head_of(const model *m)
{
    return find(m, "output.weight") ? "output.weight" : "token_embd.weight";
}

static status tell(const model *m, model_shape *shape, err *e)
{
    gemma4_mtp_shape *s = (gemma4_mtp_shape *)shape;
    int32_t wide = 0;
    status st;
    s->dialect = find(m, "mtp.pre_projection.weight") ? MTP_OLD : 0;
    if ((st = size_of(m, (table_dim){-1, PRE, 0, 2 * WIDTH_MAX}, &wide, e)) ||
        (st = size_of(m, (table_dim){-1, PRE, 1, WIDTH_MAX}, &s->n_embd, e)))
        return st;
    if (wide % 2)
        return err_set(e, E_FORMAT, "%s: tensor %s: %d inputs, expected an even number",
                       m->file.path, PRE, wide);
    s->n_target_embd = wide / 2;
    if ((st = bind_int(m, (int_key){"attention.sliding_window", 0, CTX_MAX, 0}, &s->window, e)) ||
        (st = size_of(m, (table_dim){-1, head_of(m), 1, INT32_MAX}, &s->n_vocab, e)) ||
        (st = tell_clusters(m, s, e)))
        return st;
    return tell_layers(m, s, e);
}

/* ---- The entry ---- */

static const family_table rows = {TABLE_ROWS,      .dim = dim,           .agree = agree,
                                  .arch = arch_of, .put = put_own_keys,  .describe = describe,
                                  .tell = tell,    .dialect = F(dialect)};

const shape_family gemma4_mtp_shapes = {
    TABLE_HOOKS(gemma4_mtp_shape, rows),
    .arch = "gemma4-assistant",
    .title = "drafter",
    .sizes = "mtp-e2b, mtp-e4b, mtp-12b, mtp-26b, mtp-31b, mtp-tiny, mtp-tiny-ordered, "
             "mtp-tiny-wide",
    .drafter = true,
    .mix = "q8_0",
    .dialects = "llama.cpp, old",
    .cut = cut_layer,
    .compute = compute,
    .dialect = set_dialect};

/* ---- Binding ---- */

const model_arch gemma4_mtp_arch = {.name = "gemma4-assistant", .bind = gemma4_mtp_bind};
const model_arch gemma4_mtp_arch_old = {.name = "gemma4_assistant", .bind = gemma4_mtp_bind};
const model_arch gemma4_mtp_arch_ik = {.name = "gemma4_mtp", .bind = gemma4_mtp_bind};

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
    unsigned char *sorted = arena_alloc(&m->mem, w->n_bytes);
    if (!sorted)
        return err_memory(e, w->name, w->n_bytes);
    for (int32_t i = 0; i < m->n_vocab; i++)
        memcpy(sorted + (size_t)i * w->row_bytes, weight_row(w, 0, g->order[i]), w->row_bytes);
    w->data = sorted;
    w->n_mat = g->n_clusters;
    w->n_out = m->n_vocab / g->n_clusters;
    w->mat_bytes = w->row_bytes * (size_t)w->n_out;
    return OK;
}

static status bind_head(model *m, gemma4_mtp *g, const gemma4_mtp_shape *s, err *e)
{
    const binder b = {m, -1, e};
    double active = s->n_centroids ? (double)s->centroid_top_k / s->n_centroids : 1;
    status st = bind_tensor(&b, &g->head, head_of(m),
                            (model_want){.n_in = s->n_embd, .n_mat = 1, .active = active});
    model_claim(m, "token_embd.weight"); /* without an own head it is the head, else it is unused */
    if (st || !s->n_centroids)
        return st;
    const tensor *o;
    if ((st = table_find(m, &gemma4_mtp_shapes, (table_dim){-1, ORDER, 0, 0}, &o, e)))
        return st;
    model_claim(m, o->name);
    bool list = (o->type == NUM_I32 || o->type == NUM_I64) && o->ne[0] == (uint64_t)m->n_vocab &&
                o->n_elements == o->ne[0];
    if (!list)
        return err_set(e, E_FORMAT, "%s: tensor %s (%s): expected %d integers", m->file.path,
                       o->name, num_name(o->type), m->n_vocab);
    if ((st = bind_order(m, g, o, e)))
        return st;
    return sort_head(m, g, e);
}

static status bind_rotation(model *m, gemma4_mtp *g, const gemma4_mtp_shape *s, err *e)
{
    int32_t hd = s->head_dim_global;
    const turning swa = {s->head_dim, s->theta_swa, s->head_dim / 2, NULL, NULL};
    const turning global = {hd, s->theta, hd / 8, &g->rope_factors, NULL};
    status st = bind_rope(m, &g->rope_swa, &swa, e);
    return st ? st : bind_rope(m, &g->rope_global, &global, e);
}

static status bind_layers(model *m, gemma4_mtp *g, const gemma4_mtp_shape *s, err *e)
{
    status st = OK;
    g->layer = arena_array(&m->mem, (size_t)g->n_layer, sizeof *g->layer);
    if (!g->layer)
        return err_memory(e, m->file.path, (size_t)g->n_layer * sizeof *g->layer);
    for (int32_t i = 0; i < g->n_layer && !st; i++) {
        gemma4_mtp_layer *L = &g->layer[i];
        L->swa = s->swa[i];
        L->head_dim = L->swa ? s->head_dim : s->head_dim_global;
        L->n_head = s->n_head;
        L->rope = L->swa ? &g->rope_swa : &g->rope_global;
        st = table_bind(&(binder){m, i, e}, &s->common, L);
    }
    return st;
}

status gemma4_mtp_bind(model *m, err *e)
{
    model_shape *shape = NULL;
    gemma4_mtp *g = bind_begin(m, &gemma4_mtp_shapes, sizeof *g, &shape, e);
    if (!g)
        return e->status;
    const gemma4_mtp_shape *s = own(shape);
    status st;
    g->n_layer = s->n_layer;
    g->n_embd = s->n_embd;
    g->n_target_embd = s->n_target_embd;
    g->window = m->window = s->window;
    g->eps = (float)s->eps;
    g->softcap = (float)s->softcap;
    g->n_clusters = s->n_centroids;
    g->n_top = s->centroid_top_k;
    m->n_vocab = s->n_vocab;
    if ((st = table_bind(&(binder){m, -1, e}, shape, g)) || (st = bind_head(m, g, s, e)) ||
        (st = bind_rotation(m, g, s, e)) || (st = bind_layers(m, g, s, e)))
        return st;
    return bind_done(m, shape, g, NULL, NULL, e);
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
