/* convert_draft.c - a drafter's checkpoint to GGUF: which tensor is which, and what must agree.
 *
 * Both inputs have authority here, so a contradiction is an error, where a reader of GGUF files
 * would trust the shapes. A tensor without a use is an error too: a drafter that lacks a norm
 * loads, and most of its drafts are wrong. Copies of the target's embedding and head are left out.
 *
 * The same directory and options give the same bytes. The new file is read back and compared before
 * it appears.
 */
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha.h"
#include "model/dflash.h"
#include "model/dflash_shapes.h"
#include "model/draft_kind.h"
#include "model/gemma4_mtp.h"
#include "model/gemma4_mtp_shapes.h"
#include "model/unplaced.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A checkpoint while its tensors are assigned. */
typedef struct assignment {
    convert_job *job;
    bool *used;          /* [tensors of the checkpoint] */
    int32_t first_layer; /* the number of the first layer in the checkpoint */
    err *e;
} assignment;

static const char *path_of(const assignment *a, const tensor *t)
{
    return a->job->from->part_path[t ? t->part : 0];
}

/* The tensor of that name, with or without the prefix "model.", marked as used; NULL: none. */
static const tensor *find_used(assignment *a, const char *name)
{
    static const char *const prefix[] = {"", "model."};
    const tensor_set *set = &a->job->from->tensors;
    char full[TENSOR_NAME_MAX + 1];
    const char *bare = strncmp(name, "model.", 6) ? name : name + 6;
    for (int i = 0; i < 2; i++) {
        snprintf(full, sizeof full, "%s%s", prefix[i], bare);
        const tensor *t = tensor_find(set, full);
        if (t) {
            a->used[t - set->at] = true;
            return t;
        }
    }
    return NULL;
}

/* The same for a name of the shape's list, in the numbers of the checkpoint. */
static const tensor *find_listed(assignment *a, const shape_tensor *t, const char *tail)
{
    char name[128];
    if (t->layer < 0)
        return find_used(a, tail);
    snprintf(name, sizeof name, "layers.%d.%s", (int)(t->layer + a->first_layer), tail);
    return find_used(a, name);
}

/* The name behind "layers.N.". */
static const char *tail_of(const shape_tensor *t)
{
    const char *dot = t->layer < 0 ? NULL : strstr(t->hf_name, "layers.");
    dot = dot ? strchr(dot + 7, '.') : NULL;
    return dot ? dot + 1 : t->hf_name;
}

/* ---- Layers -------------------------------------------------------------------------------- */

/* Compares the numbers of layers. Some programs count on from the target's layers. */
static status number_layers(assignment *a, int32_t n_target_layer)
{
    const tensor_set *set = &a->job->from->tensors;
    int32_t low = INT32_MAX, high = -1, n = a->job->s->n_layer;
    for (uint64_t i = 0; i < set->n; i++) {
        const char *name = set->at[i].name;
        name = strncmp(name, "model.", 6) ? name : name + 6;
        if (strncmp(name, "layers.", 7) || !isdigit((unsigned char)name[7]))
            continue;
        long il = strtol(name + 7, NULL, 10);
        il = il < SHAPE_LAYERS_MAX * 4 ? il : SHAPE_LAYERS_MAX * 4;
        low = il < low ? (int32_t)il : low;
        high = il > high ? (int32_t)il : high;
    }
    if (high < 0)
        return err_set(a->e, E_FORMAT, "%s: there are no tensors layers.*", path_of(a, NULL));
    if (low && low != n_target_layer)
        return err_set(a->e, E_FORMAT, "%s: the first layer has the number %" PRId32 ", expected 0",
                       path_of(a, NULL), low);
    if (high - low + 1 != n)
        return err_set(a->e, E_FORMAT,
                       "%s: num_hidden_layers is %" PRId32 ", and the tensors have layers %" PRId32
                       " to %" PRId32,
                       path_of(a, NULL), n, low, high);
    a->first_layer = low;
    return OK;
}

/* ---- One tensor ---------------------------------------------------------------------------- */

/* Checks the source of an item for its shape: `rows` rows in all. */
static status check_rows(assignment *a, const convert_item *it, const tensor *src, uint64_t rows)
{
    shape_tensor want = it->t;
    tensor flat = *src;
    if (want.n_dims > 1)
        want.ne[1] = rows;
    /* [n, m, 1] is [n, m], and [1, n] is [n]. */
    if (flat.n_dims == 3 && flat.ne[0] == 1) {
        memmove(flat.ne, flat.ne + 1, 3 * sizeof *flat.ne);
        flat.ne[3] = 1;
    }
    return convert_check_source(&want, &flat, path_of(a, src), a->e);
}

static status missing(assignment *a, const shape_tensor *t, const char *tail)
{
    if (t->layer < 0)
        return err_set(a->e, E_FORMAT, "%s: tensor %s is missing", path_of(a, NULL), tail);
    return err_set(a->e, E_FORMAT, "%s: tensor layers.%d.%s is missing", path_of(a, NULL),
                   (int)(t->layer + a->first_layer), tail);
}

/* Queries, keys and values in one matrix, in this order. */
static status take_fused(assignment *a, convert_item *it, const dflash_shape *s, bool *fused)
{
    static const char *const parts[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                        "self_attn.v_proj.weight"};
    const char *tail = tail_of(&it->t);
    uint64_t hd = (uint64_t)s->head_dim, q = (uint64_t)s->n_head * hd,
             kv = (uint64_t)s->n_head_kv * hd;
    int part = 0;
    while (part < 3 && strcmp(parts[part], tail) != 0)
        part++;
    const tensor *all = part < 3 ? find_listed(a, &it->t, "self_attn.qkv_proj.weight") : NULL;
    if (!all) {
        *fused = false;
        return OK;
    }
    if (find_listed(a, &it->t, tail))
        return err_set(a->e, E_FORMAT, "%s: layer %d has %s and %s: one of them is expected",
                       path_of(a, all), (int)it->t.layer, all->name, tail);
    it->source[0] = all;
    it->n_sources = 1;
    it->first_row = part == 0 ? 0 : part == 1 ? q : q + kv;
    status st = check_rows(a, it, all, q + 2 * kv);
    if (!st)
        *fused = true;
    return st;
}

/* A norm per feature: one row each. */
static status take_feature_norms(assignment *a, convert_item *it, int32_t n)
{
    char name[64];
    status st = OK;
    for (int32_t k = 0; k < n && !st; k++) {
        shape_tensor row = {.n_dims = 1, .ne = {it->t.ne[0], 1, 1, 1}};
        snprintf(name, sizeof name, "aux_hidden_norms.%" PRId32 ".weight", k);
        const tensor *src = find_used(a, name);
        if (!src)
            return missing(a, &it->t, name);
        it->source[k] = src;
        st = convert_check_source(&row, src, path_of(a, src), a->e);
    }
    it->n_sources = n;
    return st;
}

/* Cluster by cluster, every token once. */
static status check_ordering(assignment *a, const tensor *src, int32_t n_vocab)
{
    status st = OK;
    bool *seen = mem_calloc((size_t)n_vocab, sizeof *seen);
    if (!seen)
        return err_memory(a->e, src->name, (size_t)n_vocab);
    if (src->type != NUM_I32 && src->type != NUM_I64)
        st = err_set(a->e, E_FORMAT, "%s: tensor %s is of type %s, expected i32 or i64",
                     path_of(a, src), src->name, num_name(src->type));
    else if (src->n_elements != (uint64_t)n_vocab)
        st = err_set(a->e, E_FORMAT, "%s: tensor %s has %" PRIu64 " ids for %" PRId32 " tokens",
                     path_of(a, src), src->name, src->n_elements, n_vocab);
    for (uint64_t i = 0; i < src->n_elements && !st; i++) {
        int64_t id = 0;
        int32_t small = 0;
        if (src->type == NUM_I64)
            memcpy(&id, src->bytes + 8 * i, 8);
        else
            memcpy(&small, src->bytes + 4 * i, 4);
        id += small;
        if (id < 0 || id >= n_vocab || seen[id])
            st = err_set(a->e, E_FORMAT,
                         "%s: tensor %s is no order of the tokens: entry %" PRIu64 " is %" PRId64,
                         path_of(a, src), src->name, i, id);
        else
            seen[id] = true;
    }
    mem_free(seen);
    return st;
}

/* Names of the same tensors in files of other trainers. */
static const tensor *find_alias(assignment *a, const shape_tensor *t)
{
    static const char *const alias[][2] = {
        {"markov_head.markov_w1.weight", "dspark_markov_head.markov_w1.weight"},
        {"markov_head.markov_w2.weight", "dspark_markov_head.markov_w2.weight"},
        {"confidence_head.proj.weight", "dspark_confidence_head.weight"},
        {"confidence_head.proj.bias", "dspark_confidence_head.bias"}};
    const tensor *src = find_listed(a, t, tail_of(t));
    for (int i = 0; i < 4 && !src; i++)
        if (!strcmp(alias[i][0], t->hf_name))
            src = find_used(a, alias[i][1]);
    return src;
}

static status take_tensor(assignment *a, convert_item *it)
{
    const dflash_shape *d =
        a->job->s->family == &dflash_shapes ? (const dflash_shape *)a->job->s : NULL;
    bool fused = false;
    status st;
    if (it->t.role == ROLE_ROPE_FACTORS)
        return OK;
    if (d && !strcmp(it->t.name, "enc.aux_norm.weight"))
        return take_feature_norms(a, it, d->n_features);
    if (d && ((st = take_fused(a, it, d, &fused)) || fused))
        return st;
    const tensor *src = find_alias(a, &it->t);
    if (!src && it->t.role == ROLE_BIAS) /* trainers leave out a bias of zero */
        return OK;
    if (!src)
        return missing(a, &it->t, tail_of(&it->t));
    it->source[0] = src;
    it->n_sources = 1;
    return it->t.role == ROLE_IDS ? check_ordering(a, src, a->job->s->n_vocab)
                                  : check_rows(a, it, src, it->t.ne[1]);
}

/* ---- All tensors --------------------------------------------------------------------------- */

/* The embedding and the head of the target may be there as copies, which the target has anyway. The
 * head of an assistant is its own embedding. */
static status drop_copies(assignment *a, const convert_item *own_embd)
{
    static const char *const copies[] = {"embed_tokens.weight", "lm_head.weight"};
    const model_shape *s = a->job->s;
    for (int i = own_embd ? 1 : 0; i < 2; i++) {
        const tensor *t = find_used(a, copies[i]);
        if (!t)
            continue;
        bool same =
            t->n_dims == 2 && t->ne[0] == (uint64_t)s->n_embd && t->ne[1] == (uint64_t)s->n_vocab;
        if (own_embd) {
            const tensor *e = own_embd->source[0];
            same = same && e && t->n_bytes == e->n_bytes &&
                   !memcmp(t->bytes, e->bytes, (size_t)t->n_bytes);
        }
        if (!same)
            return err_set(a->e, E_UNSUPPORTED,
                           "%s: tensor %s is no copy of the %s: a drafter with a head or an "
                           "embedding of its own, which carat does not run",
                           path_of(a, t), t->name, own_embd ? "embedding" : "target's");
    }
    return OK;
}

static status refuse_unknown(const assignment *a)
{
    const tensor_set *set = &a->job->from->tensors;
    unplaced u = {0};
    for (uint64_t i = 0; i < set->n; i++)
        if (!a->used[i] && !unplaced_is_allowed(set->at[i].name))
            unplaced_add(&u, set->at[i].name);
    if (!u.n)
        return OK;
    return err_set(a->e, E_UNSUPPORTED,
                   "%s: %" PRIu64 " tensor%s that this family does not have: %s%s",
                   path_of(a, NULL), u.n, u.n > 1 ? "s" : "", u.names, u.n > 3 ? ", ..." : "");
}

static status assign(assignment *a, const weight_mix *mix)
{
    convert_job *j = a->job;
    int32_t n = j->s->family->list(j->s, NULL, 0);
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    j->at = mem_calloc((size_t)n, sizeof *j->at);
    j->n = n;
    a->used = mem_calloc((size_t)j->from->tensors.n + 1, sizeof *a->used);
    status st = OK;
    if (!list || !j->at || !a->used) {
        st = err_memory(a->e, "the list of tensors", (size_t)n * sizeof *j->at);
        goto out;
    }
    j->s->family->list(j->s, list, n);
    for (int32_t i = 0; i < n && !st; i++) {
        j->at[i] = (convert_item){.t = list[i], .type = weight_mix_type(mix, list, n, i)};
        st = take_tensor(a, &j->at[i]);
    }
    if (!st)
        st = drop_copies(a, j->s->family == &gemma4_mtp_shapes ? &j->at[0] : NULL);
    if (!st)
        st = refuse_unknown(a);
out:
    mem_free(list);
    mem_free(a->used);
    return st;
}

/* ---- The target ---------------------------------------------------------------------------- */

static status must_equal(const char *dir, const gguf *target, const char *what, int64_t mine,
                         int64_t its, err *e)
{
    if (mine == its)
        return OK;
    return err_set(e, E_ARG, "%s: the drafter's %s is %" PRId64 ", and %s has %" PRId64, dir, what,
                   mine, target->path, its);
}

static int64_t target_number(const gguf *g, const char *tail)
{
    char key[128];
    gguf_string arch = {"", 0};
    int64_t v = -1;
    gguf_get_string(g, "general.architecture", &arch);
    snprintf(key, sizeof key, "%.*s.%s", (int)(arch.n < 64 ? arch.n : 64), arch.at, tail);
    return gguf_get_i64(g, key, &v) ? v : -1;
}

/* Compares the drafter with the model that it is for. */
static status check_target(model_shape *s, const gguf *g, const char *dir, err *e)
{
    const char *what;
    const tensor *embd = tensor_find(&g->tensors, "token_embd.weight");
    gguf_string arch = {"", 0};
    int64_t width = target_number(g, "embedding_length"), depth = target_number(g, "block_count");
    status st;
    if (draft_kind_of(g, &what) != DRAFT_NONE)
        return err_set(e, E_ARG, "%s is %s, not the model that a drafter is for", g->path, what);
    if (width < 0 || depth < 1 || depth > SHAPE_LAYERS_MAX || !embd)
        return err_set(e, E_FORMAT, "%s: no embedding_length, block_count or token_embd.weight",
                       g->path);
    gguf_get_string(g, "general.architecture", &arch);
    if (s->family == &gemma4_mtp_shapes) {
        const gemma4_mtp_shape *m = (const gemma4_mtp_shape *)s;
        int64_t global = target_number(g, "attention.key_length");
        int64_t swa = target_number(g, "attention.key_length_swa");
        if ((st = must_equal(dir, g, "backbone_hidden_size", m->n_target_embd, width, e)) ||
            (global > 0 &&
             (st = must_equal(dir, g, "global_head_dim", m->head_dim_global, global, e))) ||
            (swa > 0 && (st = must_equal(dir, g, "head_dim", m->head_dim, swa, e))))
            return st;
    } else {
        dflash_shape *d = (dflash_shape *)s;
        if ((st = must_equal(dir, g, "hidden_size", d->n_embd, width, e)) ||
            (d->n_target_layer &&
             (st = must_equal(dir, g, "num_target_layers", d->n_target_layer, depth, e))))
            return st;
        d->n_target_layer = (int32_t)depth;
        snprintf(d->target_arch, sizeof d->target_arch, "%.*s", (int)(arch.n < 31 ? arch.n : 31),
                 arch.at);
        if (!strcmp(d->target_arch, "gemma4"))
            d->embed_scale = sqrtf((float)d->n_embd);
        if ((st = table_check(&d->common, dir, e)))
            return st;
    }
    return must_equal(dir, g, "vocab_size", s->n_vocab, (int64_t)embd->ne[1], e);
}

/* ---- Input and output ---------------------------------------------------------------------- */

/* An output inside of the input could be read as a part of it. */
static status refuse_inside(const char *dir, const char *out, err *e)
{
    char in[PATH_MAX], to[PATH_MAX], parent[PATH_MAX];
    const char *slash = strrchr(out, '/');
    size_t n = slash ? (size_t)(slash - out) : 0;
    snprintf(parent, sizeof parent, "%.*s", (int)(slash && !n ? 1 : n), out);
    if (!realpath(dir, in) || !realpath(slash ? parent : ".", to))
        return OK; /* opening them says what is wrong */
    size_t k = strlen(in);
    if (strncmp(in, to, k) || (to[k] && to[k] != '/'))
        return OK;
    return err_set(e, E_ARG, "%s lies inside of the checkpoint %s: name another place", out, dir);
}

/* Of config.json and all files of weights, in order. */
static status hash_source(const char *config, const safetensors *from, char out[65], err *e)
{
    sha_stream h;
    char *bytes;
    size_t n;
    status st = file_read_all(config, CONVERT_JSON_MAX, &bytes, &n, e);
    if (st)
        return st;
    sha256_init(&h);
    sha_put(&h, bytes, n);
    mem_free(bytes);
    for (int32_t i = 0; i < from->n_parts; i++)
        sha_put(&h, from->part[i].bytes, (size_t)from->part[i].n_bytes);
    sha_text(&h, out);
    return OK;
}

/* The largest relative error of a row: noise over signal. */
static double tolerance_of(num_type type)
{
    return type == NUM_F32    ? 0
           : type == NUM_F16  ? 1e-3
           : type == NUM_BF16 ? 5e-3
           : type == NUM_Q8_0 ? 1e-2
                              : 0.5;
}

/* Compares a row of the file with its source. */
static status compare_row(const convert_item *it, const tensor *t, uint64_t row, err *e)
{
    uint64_t n = it->t.ne[0], size;
    float *x = mem_alloc(2 * (size_t)n * sizeof *x), *y = x + n;
    double noise = 0, signal = 0;
    if (!x)
        return err_memory(e, t->name, 2 * (size_t)n * sizeof *x);
    num_row_bytes(t->type, n, &size);
    convert_decode_row(it, row, x);
    num_format_of(t->type)->decode(t->bytes + row * size, y, (int64_t)n);
    for (uint64_t i = 0; i < n; i++) {
        noise += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        signal += (double)x[i] * (double)x[i];
    }
    mem_free(x);
    double most = tolerance_of(it->type);
    if (noise <= most * most * signal)
        return OK;
    return err_set(e, E_NUMERIC, "tensor %s, row %" PRIu64 ": the relative error is %g, at most %g",
                   t->name, row, sqrt(noise / signal), most);
}

/* One number of the shape and what the reader makes of it. */
typedef struct seen_number {
    const char *name;
    int32_t read, want;
} seen_number;

static status compare_numbers(const char *path, const seen_number *v, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].read != v[i].want)
            return err_set(e, E_FORMAT, "%s: the %s reads as %" PRId32 ", expected %" PRId32, path,
                           v[i].name, v[i].read, v[i].want);
    return OK;
}

static status compare_dflash(const char *path, const model *m, const dflash_shape *s, err *e)
{
    const dflash *d = m->impl;
    const seen_number v[] = {{"number of layers", d->n_layer, s->n_layer},
                             {"hidden size", d->n_embd, s->n_embd},
                             {"number of heads", d->n_head, s->n_head},
                             {"number of key heads", d->n_head_kv, s->n_head_kv},
                             {"head size", d->head_dim, s->head_dim},
                             {"feed-forward width", d->n_ff, s->n_ff},
                             {"number of captured layers", d->n_features, s->n_features},
                             {"block size", d->block, s->block_size},
                             {"window", m->window, s->window},
                             {"variant of Laguna", d->laguna, s->laguna}};
    status st = compare_numbers(path, v, sizeof v / sizeof *v, e);
    for (int32_t il = 0; il < s->n_layer && !st; il++)
        if ((m->kv[il].window > 0) != s->swa[il] ||
            (m->kv[il].inside == KV_INSIDE_CAUSAL) != dflash_layer_causal(s, il))
            st = err_set(e, E_FORMAT, "%s: layer %" PRId32 " reads as another kind", path, il);
    if (!st && d->notes[0])
        st = err_set(e, E_FORMAT, "%s: %.*s", path, (int)strcspn(d->notes, "\n"), d->notes);
    return st;
}

static status compare_mtp(const char *path, const model *m, const gemma4_mtp_shape *s, err *e)
{
    const gemma4_mtp *g = m->impl;
    const seen_number v[] = {{"number of layers", g->n_layer, s->n_layer},
                             {"hidden size", g->n_embd, s->n_embd},
                             {"hidden size of the target", g->n_target_embd, s->n_target_embd},
                             {"window", g->window, s->window},
                             {"number of clusters", g->n_clusters, s->n_centroids},
                             {"number of clusters used", g->n_top, s->centroid_top_k}};
    status st = compare_numbers(path, v, sizeof v / sizeof *v, e);
    for (int32_t il = 0; il < s->n_layer && !st; il++)
        if (g->layer[il].swa != s->swa[il] || g->layer[il].n_head != s->n_head)
            st = err_set(e, E_FORMAT, "%s: layer %" PRId32 " reads as another kind", path, il);
    return st;
}

/* Binds the new file as a program that runs it does: its shapes and keys must tell what the
 * configuration says, without a contradiction. */
static status bind_back(const file_map *written, const char *path, const model_shape *s, err *e)
{
    gguf g = {0};
    model m = {0};
    status st = gguf_open_bytes(&g, written->bytes, written->n_bytes, path, e);
    if (!st)
        st = model_bind(&m, &g, e);
    if (st)
        return st;
    st = s->family == &dflash_shapes ? compare_dflash(path, &m, (const dflash_shape *)s, e)
                                     : compare_mtp(path, &m, (const gemma4_mtp_shape *)s, e);
    model_free(&m);
    return st;
}

/* Reads the new file as a program that runs it would, and compares it with the plan. */
static status read_back(const convert_job *j, const file_map *written, const char *path, err *e)
{
    gguf g = {0};
    char have[96];
    status st = gguf_open_bytes(&g, written->bytes, written->n_bytes, path, e);
    if (!st)
        st = draft_kind_check(&g, e);
    if (!st && g.tensors.n != (uint64_t)j->n)
        st = err_set(e, E_FORMAT, "%s: %" PRIu64 " tensors, expected %" PRId32, path, g.tensors.n,
                     j->n);
    for (int32_t i = 0; i < j->n && !st; i++) {
        const convert_item *it = &j->at[i];
        const tensor *t = tensor_find(&g.tensors, it->t.name);
        uint64_t rows = it->t.ne[1] * it->t.ne[2];
        if (!t || t->type != it->type || memcmp(t->ne, it->t.ne, sizeof t->ne) != 0)
            st = err_set(e, E_FORMAT, "%s: tensor %s is %s %s", path, it->t.name,
                         t ? num_name(t->type) : "missing",
                         t ? tensor_shape_text(t, have, sizeof have) : "");
        else if (it->n_sources && it->t.role != ROLE_IDS &&
                 ((st = compare_row(it, t, 0, e)) || (st = compare_row(it, t, rows / 2, e))))
            break;
        else if (it->n_sources && it->t.role != ROLE_IDS)
            st = compare_row(it, t, rows - 1, e);
    }
    gguf_close(&g);
    return st ? st : bind_back(written, path, j->s, e);
}

/* -------------------------------------------------------------------------------------------- */

static const char *last_part(const char *dir, char *buf, size_t cap)
{
    size_t n = strlen(dir), at;
    while (n > 1 && dir[n - 1] == '/')
        n--;
    for (at = n; at > 0 && dir[at - 1] != '/';)
        at--;
    snprintf(buf, cap, "%.*s", (int)(n - at), dir + at);
    return buf;
}

/* What the tensors decide: norms per feature mean Laguna, a confidence head may be absent. */
static status look_at_tensors(model_shape *s, const safetensors *from, const json_t *config, err *e)
{
    const char *alien = draft_alien_tensors(&from->tensors), *name;
    if (alien)
        return err_set(e, E_UNSUPPORTED, "%s is %s", from->part_path[0], alien);
    if (s->family != &dflash_shapes)
        return OK;
    dflash_shape *d = (dflash_shape *)s;
    bool norms = false, confidence = false;
    for (uint64_t i = 0; i < from->tensors.n; i++) {
        name = from->tensors.at[i].name;
        norms |= strstr(name, "aux_hidden_norms.") != NULL;
        confidence |= strstr(name, "confidence_head.") != NULL;
    }
    if (norms && !d->laguna)
        return err_set(e, E_FORMAT,
                       "%s: there are aux_hidden_norms, and the configuration is not Laguna's",
                       from->part_path[0]);
    if (d->markov_rank && !json_object_get(config, "enable_confidence_head"))
        d->confidence = confidence;
    return OK;
}

status convert_draft(const convert_request *r, const json_t *config, uint64_t *n_bytes, err *e)
{
    safetensors from = {0};
    gguf target = {0};
    model_shape *s = NULL;
    convert_job j = {.from = &from};
    assignment a = {.job = &j, .e = e};
    char path[4096], name[256];
    status st;
    snprintf(path, sizeof path, "%s/config.json", r->dir);
    if ((st = refuse_inside(r->dir, r->out, e)) ||
        (st = convert_draft_shape(config, path, last_part(r->dir, name, sizeof name), &s,
                                  r->unknown, e)))
        goto out;
    if (r->dialect && !s->family->dialect(s, r->dialect)) {
        st = err_set(e, E_ARG, "%s: there is no dialect %s; the dialects are %s", r->dir,
                     r->dialect, s->family->dialects);
        goto out;
    }
    if ((st = safetensors_open(&from, r->dir, e)) || (st = look_at_tensors(s, &from, config, e)))
        goto out;
    if (r->target && ((st = gguf_open(&target, r->target, false, NULL, NULL, e)) ||
                      (st = check_target(s, &target, r->dir, e))))
        goto out;
    dflash_shape *d = s->family == &dflash_shapes ? (dflash_shape *)s : NULL;
    j.s = s;
    j.check = read_back;
    if (d && !d->n_target_layer) {
        st = err_set(e, E_FORMAT, "%s: num_target_layers is missing; --target FILE tells it too",
                     path);
        goto out;
    }
    if ((st = number_layers(&a, d ? d->n_target_layer : 0)) || (st = assign(&a, r->mix)) ||
        (st = hash_source(path, &from, d ? d->source : ((gemma4_mtp_shape *)s)->source, e)) ||
        (st = convert_write(r, &j, NULL, r->target ? &target : NULL, n_bytes, e)))
        goto out;
out:
    mem_free(j.at);
    mem_free(s);
    gguf_close(&target);
    safetensors_close(&from);
    return st;
}
