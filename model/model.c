/* model.c - the registry of architectures, and their common part: finding weights, loading,
 * planning.
 *
 * No arithmetic here. An architecture's bind asks for each weight by name and shape; model_load
 * puts these weights on the device.
 */
#include "model/model.h"
#include "backend/plan.h"
#include "backend/ranks.h"
#include "base/mem.h"
#include "model/dflash.h"
#include "model/gemma3.h"
#include "model/gemma4.h"
#include "model/gemma4_mtp.h"
#include "model/gpt_oss.h"
#include "model/laguna.h"
#include "model/llama.h"
#include "model/lora.h"
#include "model/qwen3.h"
#include "model/qwen35.h"
#include "model/tensor_split.h"
#include "model/unplaced.h"
#include "model/vision.h"

#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* F32-only weights of fewer elements than this are widened at bind. Norms have thousands. */
enum { WIDEN_MAX = 1 << 22 };

/* By the values of general.architecture; one architecture may have several names. */
static const struct {
    const char *name;
    const model_arch *arch;
} archs[] = {
    {"gemma4", &gemma4_arch},
    {"gemma3", &gemma3_arch},
    {"gemma-embedding", &gemma_embedding_arch},
    {"qwen3", &qwen3_arch},
    {"qwen3moe", &qwen3moe_arch},
    {"qwen3vl", &qwen3vl_arch},
    {"qwen3vlmoe", &qwen3vlmoe_arch},
    {"laguna", &laguna_arch},
    {"gpt-oss", &gpt_oss_arch},
    {"llama", &llama_arch},
    {"mistral3", &mistral3_arch},
    {"dflash", &dflash_arch},
    {"*dflash-draft", &dflash_arch},
    {"gemma4-assistant", &gemma4_mtp_arch},
    {"gemma4_assistant", &gemma4_mtp_arch_old},
    {"gemma4_mtp", &gemma4_mtp_arch_ik},
    {"qwen35", &qwen35_arch},
    {"qwen35moe", &qwen35moe_arch},
    {"clip", &clip_arch},
};

/* pattern: a name, or "*" and its end. */
static bool is_name(gguf_string name, const char *pattern)
{
    bool end = *pattern == '*';
    size_t n = strlen(pattern + end);
    return (end ? name.n >= n : name.n == n) && !memcmp(name.at + name.n - n, pattern + end, n);
}

static const model_arch *find_arch(gguf_string name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (is_name(name, archs[i].name))
            return archs[i].arch;
    return NULL;
}

const model_sampling *model_usual_sampling(const char *arch)
{
    const model_arch *a = find_arch((gguf_string){arch, strlen(arch)});
    return a && a->forward ? &a->sampling : NULL;
}

/* Architectures that look like a supported one, and what carat lacks for them. */
static status refuse_known(const char *path, gguf_string arch, err *e)
{
    static const struct {
        const char *name, *why;
    } relatives[] = {
        {"qwen3next",
         "Qwen3-Next packs the projections of its recurrent layers in another way than "
         "Qwen3.5, and orders their heads in another way"},
        {"gemma3n",
         "Gemma 3n has alternating updates, learned residual scales and sparse activations, which "
         "Gemma 4 does not have"},
        {"llama4",
         "Llama 4 has attention in chunks, layers without rotation and experts that scale "
         "their input, which Llama 3 does not have"},
        {"qwen4exp", "for Qwen3.8-Flash-Next, hyper-connections, n-gram embeddings and indexer "
                     "attention are missing"},
    };
    for (size_t i = 0; i < sizeof relatives / sizeof *relatives; i++)
        if (is_name(arch, relatives[i].name))
            return err_set(e, E_UNSUPPORTED, "%s: architecture %s is not supported: %s", path,
                           relatives[i].name, relatives[i].why);
    return OK;
}

/* Of models that run alone: neither drafters nor towers. */
static const char *arch_names(char *buf, size_t cap)
{
    size_t n = 0;
    *buf = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs && n < cap; i++)
        if (archs[i].arch->forward && !archs[i].arch->tower)
            n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? ", " : "", archs[i].name);
    return buf;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const tensor *model_claim(model *m, const char *name)
{
    const tensor *t = tensor_find(&m->file.tensors, name);
    if (t)
        m->claimed[t - m->file.tensors.at] = true;
    return t;
}

void model_claim_layers(model *m, int32_t lo, int32_t hi, bool outside)
{
    for (uint64_t i = 0; i < m->file.tensors.n; i++) {
        const char *name = m->file.tensors.at[i].name;
        char *end = NULL;
        long il = strncmp(name, "blk.", 4) ? -1 : strtol(name + 4, &end, 10);
        bool inside = end && *end == '.' && il >= lo && il < hi;
        m->claimed[i] |= inside != outside;
    }
}

static status check_claims(const model *m, err *e)
{
    unplaced u = {0};
    char kind[64];
    for (uint64_t i = 0; i < m->file.tensors.n; i++) {
        const char *name = m->file.tensors.at[i].name;
        if (!m->claimed[i] && (m->arch->tower || !unplaced_is_allowed(name)))
            unplaced_add(&u, name);
    }
    snprintf(kind, sizeof kind, "a model of %s", m->arch->name);
    return unplaced_refuse(&u, m->file.path, kind, e);
}

/* Which part of a file. */
typedef enum bind_part { PART_MODEL, PART_NEXTN, PART_AUDIO } bind_part;

static status bind_file(model *m, gguf *g, bind_part part, err *e)
{
    *m = (model){.file = *g, .joined_from = INT32_MAX};
    *g = (gguf){0};
    gguf_string arch, name;
    const char *path = m->file.path;
    err own = {0};
    status st;
    e = e ? e : &own; /* families return its status */
    if (!gguf_get_string(&m->file, "general.architecture", &arch)) {
        st = err_set(e, E_FORMAT, "%s: no general.architecture, so not a model", path);
        goto fail;
    }
    if (!(m->arch = find_arch(arch))) {
        char known[256];
        if ((st = refuse_known(path, arch, e)))
            goto fail;
        st = err_set(e, E_UNSUPPORTED, "%s: architecture '%.*s' is not supported (these are: %s)",
                     path, (int)(arch.n < 64 ? arch.n : 64), arch.at,
                     arch_names(known, sizeof known));
        goto fail;
    }
    if (part == PART_NEXTN && !m->arch->nextn) {
        st = err_set(e, E_UNSUPPORTED, "%s: models of architecture %s have no NextN layers", path,
                     m->arch->name);
        goto fail;
    }
    if (part == PART_AUDIO && !m->arch->audio) {
        st = err_set(e, E_UNSUPPORTED, "%s is no audio tower", path);
        goto fail;
    }
    m->arch = part == PART_NEXTN ? m->arch->nextn : part == PART_AUDIO ? m->arch->audio : m->arch;
    if (gguf_get_string(&m->file, "general.name", &name) && name.n && name.n < 256)
        m->name = arena_strndup(&m->mem, name.at, (size_t)name.n);
    else
        m->name = arena_strndup(&m->mem, file_name(path), strlen(file_name(path)));
    m->tables = arena_array(&m->mem, MODEL_TABLES_MAX, sizeof *m->tables);
    m->weights_cap = 0;
    m->claimed = arena_array(&m->mem, (size_t)m->file.tensors.n + 1, sizeof *m->claimed);
    if (!m->name || !m->tables || !m->claimed) {
        st = err_memory(e, path, 256);
        goto fail;
    }
    if ((st = m->arch->bind(m, e)) || (st = check_claims(m, e)))
        goto fail;
    m->n_sides = 1;
    m->layer_side = arena_array(&m->mem, (size_t)m->n_layer, sizeof *m->layer_side);
    m->expert_side = arena_array(&m->mem, (size_t)m->n_layer, sizeof *m->expert_side);
    if (!m->layer_side || !m->expert_side) {
        st = err_memory(e, path, (size_t)m->n_layer);
        goto fail;
    }
    return OK;
fail:
    model_free(m);
    return st;
}

status model_bind(model *m, gguf *g, err *e)
{
    return bind_file(m, g, PART_MODEL, e);
}

status model_bind_nextn(model *m, gguf *g, err *e)
{
    return bind_file(m, g, PART_NEXTN, e);
}

status model_bind_audio(model *m, gguf *g, err *e)
{
    return bind_file(m, g, PART_AUDIO, e);
}

int32_t model_nextn_layers(const gguf *g)
{
    const model_arch *a;
    gguf_string arch;
    char key[64];
    int64_t n;
    if (!gguf_get_string(g, "general.architecture", &arch) || !(a = find_arch(arch)) || !a->nextn)
        return 0;
    snprintf(key, sizeof key, "%s.nextn_predict_layers", a->name);
    return gguf_get_i64(g, key, &n) && n > 0 && n <= INT32_MAX ? (int32_t)n : 0;
}

/* The device of a side. main: that of PASS_MAIN, which m may not know yet. */
static device *device_of(const model *m, device *main, int32_t side)
{
    return side == PASS_MAIN ? main : m->dev[side];
}

/* Whether d loads w, instead of reading it from the file's bytes. */
static bool loads(const device *d, const weight *w)
{
    return !w->gather || d->loads_gathered;
}

uint64_t model_weight_bytes(const device *d, const weight *w)
{
    uint64_t n = loads(d, w) ? d->weight_bytes(d, w) : 0;
    return d->host_memory && n < w->n_bytes ? w->n_bytes : n;
}

/* Drops the tables of sides that are there no more. */
static void forget_tables(model *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_tables; i++)
        if (m->tables[i].side < m->n_sides)
            m->tables[n++] = m->tables[i];
    m->n_tables = n;
}

status model_place(model *m, device *const *others, int32_t n_others, const int8_t *layer_side,
                   const int8_t *expert_side, err *e)
{
    if (n_others < 0 || n_others >= PASS_SIDES_MAX)
        return err_set(e, E_ARG, "%s on %d devices: at most %d", m->name, n_others + 1,
                       PASS_SIDES_MAX);
    for (int32_t i = 0; i < m->n_layer; i++)
        if (layer_side[i] < 0 || layer_side[i] > n_others || expert_side[i] < 0 ||
            expert_side[i] > n_others)
            return err_set(e, E_ARG, "layer %d of %s is on a device that is not there", i, m->name);
    m->n_sides = 1 + n_others;
    forget_tables(m);
    if (n_others)
        memcpy(m->dev + 1, others, (size_t)n_others * sizeof *others);
    memcpy(m->layer_side, layer_side, (size_t)m->n_layer * sizeof *layer_side);
    memcpy(m->expert_side, expert_side, (size_t)m->n_layer * sizeof *expert_side);
    status st = m->arch->divide(m, e);
    model_place_loras(m);
    return st;
}

int32_t model_layers_on(const model *m, int32_t side)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_layer; i++)
        n += m->layer_side[i] == side || side < m->n_ranks; /* a rank has all of them */
    return n;
}

void model_unload_weights(model *m)
{
    for (int32_t i = 0; m->dev[PASS_MAIN] && i < m->n_weights; i++) {
        device *d = m->dev[m->weights[i]->side];
        if (loads(d, m->weights[i]))
            d->weight_free(d, m->weights[i]);
        weight_drop(m->weights[i]);
    }
}

void model_free(model *m)
{
    for (int32_t i = 0; i < m->n_tables; i++) {
        const model_table *t = &m->tables[i];
        device *d = m->dev[t->side];
        if (t->moved)
            d->release(d, (void *)*t->at, t->n_bytes);
    }
    model_unload_weights(m);
    ranks_close(m->ranks);
    mem_free(m->experts);
    mem_free(m->weights);
    model_free_loras(m);
    arena_free(&m->mem);
    gguf_close(&m->file);
    *m = (model){0};
}

status model_remember(model *m, weight *w, err *e)
{
    if (m->n_weights == m->weights_cap) {
        int32_t cap = m->weights_cap ? 2 * m->weights_cap : 256;
        weight **list = mem_realloc(m->weights, (size_t)cap, sizeof *list);
        if (!list)
            return err_memory(e, m->file.path, (size_t)cap * sizeof *list);
        m->weights = list;
        m->weights_cap = cap;
    }
    m->weights[m->n_weights++] = w;
    return OK;
}

static status widen_weights(model *m, weight *w, const num_format *f, err *e)
{
    uint64_t n = (uint64_t)w->n_in * (uint64_t)w->n_out;
    if (n > WIDEN_MAX)
        return err_set(e, E_FORMAT, "%s: tensor %s: %s where f32 was expected", m->file.path,
                       w->name, f->name);
    float *v = arena_array(&m->mem, (size_t)n, sizeof *v);
    if (!v)
        return err_memory(e, w->name, (size_t)n * sizeof *v);
    for (int32_t r = 0; r < w->n_out; r++)
        f->decode(weight_row(w, 0, r), v + (size_t)r * (size_t)w->n_in, w->n_in);
    w->data = v;
    w->type = NUM_F32;
    w->row_bytes = (size_t)w->n_in * sizeof *v;
    w->mat_bytes = w->n_bytes = (size_t)n * sizeof *v;
    return OK;
}

/* The factor of a weight in NVFP4: NAME.scale, a number for each matrix. NAME.input_scale would
 * scale activations of four bits; carat computes with its own. */
static status bind_factor(model *m, weight *w, err *e)
{
    char name[160], have[96];
    size_t n = strlen(w->name), tail = strlen(".weight");
    if (n < tail || n >= sizeof name - 16 || strcmp(w->name + n - tail, ".weight"))
        return OK;
    snprintf(name, sizeof name, "%.*s.input_scale", (int)(n - tail), w->name);
    model_claim(m, name);
    snprintf(name, sizeof name, "%.*s.scale", (int)(n - tail), w->name);
    const tensor *t = model_claim(m, name);
    if (!t)
        return OK;
    if (t->type != NUM_F32 || t->n_elements != (uint64_t)w->n_mat)
        return err_set(e, E_FORMAT, "%s: tensor %s: shape %s in %s, expected {%d} in f32",
                       m->file.path, t->name, tensor_shape_text(t, have, sizeof have),
                       num_name(t->type), w->n_mat);
    if (w->gather)
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor %s: a table of embeddings with a factor is "
                       "not supported",
                       m->file.path, t->name);
    float *v = arena_array(&m->mem, (size_t)w->n_mat, sizeof *v);
    if (!v)
        return err_memory(e, t->name, (size_t)w->n_mat * sizeof *v);
    memcpy(v, t->bytes, (size_t)w->n_mat * sizeof *v);
    for (int32_t i = 0; i < w->n_mat; i++)
        if (!isfinite(v[i]))
            return err_set(e, E_FORMAT, "%s: tensor %s: element %d is %g", m->file.path, t->name, i,
                           (double)v[i]);
    w->factor = v;
    return OK;
}

status model_weight(model *m, weight *w, const model_want *want, err *e)
{
    *w = (weight){0};
    const char *path = m->file.path;
    const tensor *t = model_claim(m, want->name);
    if (!t && want->optional)
        return OK;
    if (!t)
        return err_set(e, E_FORMAT, "%s: tensor %s is missing", path, want->name);
    const num_format *f = num_format_of(t->type);
    if (!f || !f->decode)
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s: format %s is not supported", path, t->name,
                       num_name(t->type));
    uint64_t n_in = t->ne[0], n_out = t->ne[1], n_mat = t->ne[2], more = t->ne[3];
    if (want->folded) { /* products of dims fit: the tensor was measured */
        n_in *= n_out * n_mat;
        n_out = more;
        n_mat = more = 1;
    } else if (want->flat) {
        n_out *= n_mat;
        n_mat = 1;
    }
    int64_t rows = want->of_rows ? want->of_rows : want->n_out, part = want->n_out;
    char have[96], out[32] = "any";
    if (rows)
        snprintf(out, sizeof out, "%" PRId64, rows);
    if (n_in != (uint64_t)want->n_in || (rows && n_out != (uint64_t)rows) ||
        n_mat != (uint64_t)want->n_mat || more != 1 || n_out > INT32_MAX)
        return err_set(
            e, E_FORMAT, "%s: tensor %s: shape %s, expected {%" PRId64 ", %s, %" PRId64 "}", path,
            t->name, tensor_shape_text(t, have, sizeof have), want->n_in, out, want->n_mat);
    uint64_t row;
    if (!num_row_bytes(t->type, n_in, &row))
        return err_set(e, E_FORMAT, "%s: tensor %s: rows of %" PRIu64 " do not fit %s blocks", path,
                       t->name, n_in, f->name);
    *w = (weight){.name = t->name,
                  .type = (num_type)t->type,
                  .n_in = (int32_t)n_in,
                  .n_out = (int32_t)n_out,
                  .n_mat = (int32_t)n_mat,
                  .data = t->bytes,
                  .row_bytes = row,
                  .mat_bytes = row * n_out,
                  .n_bytes = t->n_bytes,
                  .gather = want->gather};
    uint64_t n_elements = t->n_elements;
    if (want->of_rows) {
        w->data = weight_row(w, 0, want->row);
        w->n_out = (int32_t)part;
        w->n_bytes = w->mat_bytes = row * (uint64_t)part;
        n_elements = n_in * (uint64_t)part;
    }
    size_t n_bytes = w->n_bytes; /* in the file */
    status st = want->f32 && t->type != NUM_F32 ? widen_weights(m, w, f, e) : OK;
    if (!st && w->type == NUM_NVFP4 && !want->own_scale)
        st = bind_factor(m, w, e);
    if (st || (!want->host && (st = model_remember(m, w, e))))
        return st;
    m->n_params += n_elements;
    m->n_params_active += (uint64_t)(want->active * (double)n_elements);
    m->active_bytes += (uint64_t)(want->active * (double)n_bytes);
    return OK;
}

static status add_table(model *m, model_table t, err *e)
{
    if (m->n_tables >= MODEL_TABLES_MAX)
        return err_set(e, E_LIMIT, "%s: more than %d tables for its devices", m->file.path,
                       MODEL_TABLES_MAX);
    m->tables[m->n_tables++] = t;
    return OK;
}

status model_add_table(model *m, const void **at, size_t n_bytes, err *e)
{
    return add_table(m, (model_table){.at = at, .n_bytes = n_bytes}, e);
}

status model_copy_table(model *m, const void *const *table, const void **at, int8_t side, err *e)
{
    for (int32_t i = 0; i < m->n_tables; i++)
        if (m->tables[i].at == at) { /* the model was divided before */
            *at = *table;
            return OK;
        }
    for (int32_t i = 0; i < m->n_tables; i++)
        if (m->tables[i].at == (const void **)table) {
            *at = *table;
            return add_table(
                m, (model_table){.at = at, .n_bytes = m->tables[i].n_bytes, .side = side}, e);
        }
    return OK; /* there is no such table: *at stays NULL */
}

/* Sums over ranks are of hidden rows, or of those of two branches (weight.sum_waits). */
static int32_t inbox_cols(const model *m)
{
    return (m->n_expert_layers ? 2 : 1) * (m->n_embd + m->n_embd % 2);
}

/* GPUs that do not reach each other have their inboxes in the host's memory. */
static bool inboxes_on_gpus(const model *m, device *main)
{
    device *dev[PASS_SIDES_MAX] = {NULL};
    for (int32_t r = 0; r < m->n_ranks; r++)
        dev[r] = device_of(m, main, r);
    return m->n_ranks > 1 && main->open_inbox && ranks_read_each_other(dev, m->n_ranks);
}

status model_load(model *m, device *dev, carat_progress_fn progress, void *user, err *e)
{
    m->dev[PASS_MAIN] = dev;
    for (int32_t i = 0; i < m->n_tables; i++) {
        model_table *t = &m->tables[i];
        device *d = m->dev[t->side];
        void *to = d->alloc(d, t->n_bytes);
        if (!to)
            return err_memory(e, m->file.path, t->n_bytes);
        d->upload(d, to, *t->at, t->n_bytes);
        *t->at = to;
        t->moved = true;
    }
    status st = m->n_ranks ? ranks_open_inboxes(m->ranks, m->dev, inbox_cols(m), e) : OK;
    return st ? st : model_load_weights(m, progress, user, e);
}

status model_load_weights(model *m, carat_progress_fn progress, void *user, err *e)
{
    uint64_t done = 0, total = 0;
    status st;
    for (int32_t i = 0; i < m->n_weights; i++)
        if (loads(m->dev[m->weights[i]->side], m->weights[i]))
            total += m->weights[i]->n_bytes;
    for (int32_t i = 0; i < m->n_weights; i++) {
        weight *w = m->weights[i];
        device *dev = m->dev[w->side];
        if ((st = weight_gather(w, e)))
            return st;
        if (!loads(dev, w))
            continue;
        if ((st = dev->weight_load(dev, w, e)))
            return st;
        if (w->packed) /* from here on products read the packed copy */
            weight_drop(w);
        if (w->packed && !w->pieces)
            for (int32_t k = 0; m->file.part && k < m->file.n_parts;
                 k++) /* no part: the bytes are in memory */
                file_map_forget(&m->file.part[k], w->data, w->n_bytes);
        done += w->n_bytes;
        if (progress && !progress(user, "bytes loaded", done, total))
            return err_set(e, E_CANCELLED, "%s: loading was cancelled", m->file.path);
    }
    return OK;
}

static void run_dry_once(pass *p, const model *m, device *dev, const kv_layout *kv, const step *st,
                         pass of)
{
    pass_begin(p, dev, st, NULL, 0);
    p->taps = of.taps;
    p->tail = of.tail;
    p->hidden = of.hidden;
    p->lora = of.lora;
    for (int32_t i = 1; i < m->n_sides; i++)
        pass_add_side(p, m->dev[i], NULL, 0);
    model_forward(p, m, kv);
}

/* of: taps, tail and hidden. Of a model with adapters, peaks are the most of rows without adapters
 * and of rows with all. */
static status run_dry(pass *p, const model *m, device *dev, const kv_layout *kv, const step *st,
                      pass of, err *e)
{
    static const float all[LORAS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    size_t peak[PASS_SIDES_MAX] = {0};
    run_dry_once(p, m, dev, kv, st, of);
    if (m->n_loras && !pass_failed(p)) {
        for (int32_t i = 0; i < m->n_sides; i++)
            peak[i] = p->side[i].peak;
        if (of.tail)
            of.tail->n_layers = 0;
        of.lora = all;
        run_dry_once(p, m, dev, kv, st, of);
    }
    for (int32_t i = 0; i < m->n_sides; i++)
        p->side[i].peak = p->side[i].peak > peak[i] ? p->side[i].peak : peak[i];
    return pass_failed(p) ? err_set(e, p->e.status, "%s", p->e.text) : OK;
}

/* A dry pass. Scratch is the most of all passes planned into c. */
static status plan_pass_of(const model *m, device *dev, const kv_layout *kv, step st,
                           const pass_taps *taps, model_costs *c, err *e)
{
    pass p;
    st.n_kv = kv->n;
    status failed = run_dry(&p, m, dev, kv, &st, (pass){.taps = taps}, e);
    if (failed)
        return failed;
    c->flops = p.n_flops;
    c->weight_bytes = p.weight_bytes_read;
    for (int32_t i = 0; i < m->n_sides; i++) {
        if (c->side[i].scratch_bytes < p.side[i].peak)
            c->side[i].scratch_bytes = p.side[i].peak;
        if (c->side[i].query.layers < p.side[i].query.layers)
            c->side[i].query = p.side[i].query;
        uint64_t crossing = p.side[i].crossed / (uint64_t)st.all.n;
        c->side[i].crossing_bytes =
            crossing > c->side[i].crossing_bytes ? crossing : c->side[i].crossing_bytes;
    }
    return OK;
}

status model_plan(const model *m, device *dev, const kv_layout *kv, int32_t rows, int32_t outs,
                  const pass_taps *taps, model_costs *c, err *e)
{
    bool apart = dev->prompts_apart;
    *c = (model_costs){0};
    for (int32_t i = 1; i < m->n_sides; i++)
        apart |= m->dev[i]->prompts_apart;
    status failed = plan_pass_of(m, dev, kv, plan_step(rows, outs, true), taps, c, e);
    if (!failed && apart && rows == outs)
        failed = plan_pass_of(m, dev, kv, plan_step(rows, outs, false), taps, c, e);
    if (failed)
        return failed;
    for (int32_t i = 0; i < m->n_tables; i++)
        c->side[m->tables[i].side].table_bytes += m->tables[i].n_bytes;
    if (inboxes_on_gpus(m, dev))
        for (int32_t r = 0; r < m->n_ranks; r++)
            c->side[r].table_bytes += rank_inbox_bytes(m->n_ranks, inbox_cols(m));
    for (int32_t i = 0; i < m->n_weights; i++) {
        const weight *w = m->weights[i];
        const device *d = device_of(m, dev, w->side);
        model_side_costs *s = &c->side[w->side];
        uint64_t n = loads(d, w) ? d->weight_bytes(d, w) : 0;
        s->repack_bytes += n;
        s->largest_bytes = n > s->largest_bytes ? n : s->largest_bytes;
        s->file_bytes += w->n_bytes;
    }
    return OK;
}

status model_plan_hidden(const model *m, device *dev, const kv_layout *kv, int32_t rows,
                         int32_t outs, size_t scratch_bytes[PASS_SIDES_MAX], err *e)
{
    pass p;
    step st = plan_step(rows, outs, true);
    st.n_kv = kv->n;
    status failed = run_dry(&p, m, dev, kv, &st, (pass){.hidden = true}, e);
    for (int32_t i = 0; i < m->n_sides && !failed; i++)
        scratch_bytes[i] = p.side[i].peak;
    return failed;
}

status model_plan_tail(const model *m, device *dev, const kv_layout *kv, int32_t rows,
                       size_t scratch_bytes[PASS_SIDES_MAX], int32_t *n_layers, err *e)
{
    pass_tail tail = {.rows = rows};
    pass p;
    step st = plan_step(rows, rows, true);
    st.n_kv = kv->n;
    status failed = run_dry(&p, m, dev, kv, &st, (pass){.tail = &tail, .hidden = true}, e);
    for (int32_t i = 0; i < m->n_sides && !failed; i++)
        scratch_bytes[i] = p.side[i].peak;
    if (!failed)
        *n_layers = tail.n_layers;
    return failed;
}

status model_plan_head(const model *m, device *dev, const kv_layout *kv, int32_t rows, int32_t outs,
                       int32_t slice, size_t scratch_bytes[PASS_SIDES_MAX], err *e)
{
    pass p;
    step st = plan_step(rows, outs, true);
    st.n_kv = kv->n;
    status failed = run_dry(&p, m, dev, kv, &st, (pass){.hidden = true}, e);
    mat x = {.rows = slice, .heads = 1, .cols = m->n_embd, .stride = m->n_embd};
    if (failed)
        return failed;
    model_head(&p, m, &x, 1); /* above the hidden rows */
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    for (int32_t i = 0; i < m->n_sides; i++)
        scratch_bytes[i] = p.side[i].peak;
    return OK;
}

mat model_head(pass *p, const model *m, const mat *x, int32_t n_x)
{
    const bool is_cut = m->head->n_out < m->n_vocab;
    mat y = is_cut ? model_head_ranks(p, m, x, n_x) : op_matmul(p, *x, m->head);
    return op_softcap(p, y, m->softcap, m->suppress, m->n_suppress);
}

mat model_finish(pass *p, const model *m, res_stream *s, const weight *norm)
{
    p->il = -1;
    op_cross(p, PASS_MAIN, (mat *const[]){&s->x}, 1);
    op_keep_outputs(p, (mat *const[]){&s->x}, 1);
    if (!p->rows->n)
        return (mat){0};
    mat y = res_enter(p, s, norm);
    pass_tap(p, PASS_TAP_NORM, y);
    if (p->n_ranks) /* model_forward_ranks goes on */
        return y;
    return p->hidden || m->encoder ? mat_bare(y) : model_head(p, m, &y, 1);
}

bool model_cuts_rows(const pass *p, const model *m, int32_t il)
{
    return il == m->n_layer - 1 && pass_last_tap(p) < il;
}

/* The norm that layer il makes for what follows: none across devices, and none where rows of
 * deepstack are added behind the layer, or rows leave there. */
static const weight *next_norm(const pass *p, const model *m, model_norm_fn *norm, int32_t il)
{
    const bool last = il == m->n_layer - 1, deep = il < m->n_deep && p->st->n_soft;
    const int32_t side = last ? PASS_MAIN : m->layer_side[il + 1];
    if (side != m->layer_side[il] || deep || (last && !res_rows_stay(p, model_cuts_rows(p, m, il))))
        return NULL;
    return norm(m, il + 1);
}

mat model_run(pass *p, const model *m, const kv_layout *kv, model_layer_fn *layer,
              model_norm_fn *norm, float eps)
{
    if (!pass_shapes(p, "taps", pass_last_tap(p) < m->n_layer))
        return (mat){0};
    op_cross(p, m->embd->side, NULL, 0);
    res_stream s = {.x = op_embed(p, m->embd, m->embd_scale), .eps = eps};
    op_put_soft(p, s.x);
    for (int32_t il = 0; il < m->n_layer && p->rows->n && !pass_failed(p); il++) {
        p->il = il;
        op_cross(p, m->layer_side[il], (mat *const[]){&s.x}, 1); /* once, if the model is divided */
        mat h = res_enter(p, &s, norm(m, il));
        size_t mark = pass_mark(p);
        mat before = s.x;
        s.next = next_norm(p, m, norm, il);
        layer(p, m, il, kv, &s, h);
        if (il < m->n_deep)
            op_add_soft(p, s.x, il);
        if (p->rows->n)
            pass_tap(p, il, s.x); /* a drafter may read this layer */
        /* If the wanted rows were moved, they lie above the mark and are kept to the end. */
        if (s.x.at == before.at && s.x.rows == before.rows)
            pass_release(p, mark);
    }
    return model_finish(p, m, &s, norm(m, m->n_layer));
}

/* Answers' passes, where every device can. Prompts over several devices go without: their chunks
 * overlap, and legs wait for each other. */
static bool may_be_recorded(const pass *p)
{
    bool can = !p->dry && (p->n_sides == 1 || !p->st->prompt);
    for (int32_t i = 0; i < p->n_sides; i++)
        can = can && p->side[i].dev->replay && (p->n_sides == 1 || p->side[i].dev->follow);
    return can;
}

mat model_forward(pass *p, const model *m, const kv_layout *kv)
{
    mat y = {0};
    const bool recorded = may_be_recorded(p);
    if (m->n_ranks) {
        if (recorded && !p->st->sparse && pass_first_ranks(p, m, kv, &y))
            return pass_failed(p) ? (mat){0} : y;
        if (!p->dry && !p->joined && p->dev->follow)
            pass_line_up_ranks(p);
        return pass_last_ranks(p, model_forward_ranks(p, m, kv));
    }
    if (!recorded) {
        y = m->arch->forward(p, m, kv);
        pass_end(p);
        return y;
    }
    pass_first_leg(p, m->embd ? m->embd->side : PASS_MAIN, m, kv);
    if (!p->dry || p->n_sides > 1)
        y = m->arch->forward(p, m, kv);
    return pass_last_leg(p, y);
}
