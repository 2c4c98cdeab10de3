/* dflash_bind.c - makes a dflash from a GGUF file in any of three dialects, and fits it to its
 * target.
 *
 * Published files contradict themselves: a converter wrote the target's number of layers as the
 * number of features; another wrote the sizes of one drafter into all files. So the shapes of
 * tensors decide, metadata counts only for what no shape tells, and each contradiction is a line of
 * dflash.notes. A tensor that has no place here is an error: without it drafts would be wrong,
 * and no answer would show that.
 *
 *     dialect         llama.cpp "dflash"; Lucebox "*dflash-draft"; ik_llama.cpp "dflash-draft"
 *     captured layers target_layers of llama.cpp counts from 1; target_layer_ids counts from 0
 *     keys            "ARCH.dflash.NAME", "ARCH.NAME" or "dflash.NAME"
 */
#include "base/str.h"
#include "model/bind.h"
#include "model/dflash.h"
#include "model/draft_kind.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    DFLASH_LAYERS_MAX = 64, /* published drafters have 5 to 8 */
    NAMES = 3,              /* spellings of one tensor */
    BLOCK_USUAL = 16,
    WINDOW_GEMMA = 2048,
    WINDOW_LAGUNA = 512,
    MASK_GEMMA = 4,
    MASK_QWEN = 248070
};

/* A drafter while it is bound. */
typedef struct draft_file {
    model *m;
    dflash *g;
    const char *arch; /* as the file has it */
    str notes;
    bool sliding[DFLASH_LAYERS_MAX];
    err *e;
} draft_file;

/* ---- Notes and keys ------------------------------------------------------------------------ */

static void note(draft_file *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(draft_file *f, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    str_printf(&f->notes, "%s\n", line);
}

static const gguf_value *find_key(const draft_file *f, const char *name)
{
    const char *const prefix[] = {"%s.dflash.%s", "%s.%s"};
    char key[160];
    const gguf_value *v = NULL;
    for (int i = 0; i < 2 && !v; i++) {
        snprintf(key, sizeof key, prefix[i], f->arch, name);
        v = gguf_find(&f->m->file, key);
    }
    if (!v) {
        snprintf(key, sizeof key, "dflash.%s", name);
        v = gguf_find(&f->m->file, key);
    }
    return v;
}

/* False, with a note, for a value that is no integer from lo to hi; false if the key is absent. */
static bool read_int(draft_file *f, const char *name, int64_t lo, int64_t hi, int32_t *out)
{
    const gguf_value *v = find_key(f, name);
    int64_t x;
    if (!v)
        return false;
    if (!gguf_value_i64(v, &x) || x < lo || x > hi) {
        note(f, "%s is no number from %" PRId64 " to %" PRId64 ": ignored", v->key, lo, hi);
        return false;
    }
    *out = (int32_t)x;
    return true;
}

static bool read_bool(draft_file *f, const char *name, bool *out)
{
    int32_t x;
    if (!read_int(f, name, 0, 1, &x))
        return false;
    *out = x;
    return true;
}

/* A note if the file states another number than its tensors show. */
static void compare_key(draft_file *f, const char *name, int64_t shown)
{
    const gguf_value *v = find_key(f, name);
    int64_t x;
    if (v && (!gguf_value_i64(v, &x) || x != shown))
        note(f, "%s contradicts the tensors, which show %" PRId64, v->key, shown);
}

/* ---- Tensors ------------------------------------------------------------------------------- */

typedef struct tensor_names {
    const char *name[NAMES]; /* NULL: no further one */
} tensor_names;

static const tensor_names FC = {{"fc.weight", "dflash.fc.weight", "dflash_fc.weight"}},
                          HIDDEN_NORM = {{"enc.output_norm.weight", "dflash.hidden_norm.weight",
                                          "dflash_hidden_norm.weight"}},
                          FFN_NORM = {{"ffn_norm.weight", "post_attention_norm.weight"}},
                          MARKOV_IN = {{"markov_w1.weight", "dflash.dspark.markov.w1.weight",
                                        "dflash.dspark.markov.w1"}},
                          MARKOV_OUT = {{"markov_w2.weight", "dflash.dspark.markov.w2.weight",
                                         "dflash.dspark.markov.w2"}},
                          CONF = {{"conf_proj.weight", "dflash.dspark.confidence.weight"}},
                          CONF_BIAS = {{"conf_proj.bias", "dflash.dspark.confidence.bias"}};

/* The tensor under whichever of its names the file has; il < 0: no layer's. NULL: none. Two names
 * at once are an error. */
static const tensor *find_named(draft_file *f, int32_t il, const tensor_names *names)
{
    const tensor *found = NULL;
    for (int i = 0; i < NAMES && names->name[i]; i++) {
        char full[128];
        if (il < 0)
            snprintf(full, sizeof full, "%s", names->name[i]);
        else
            snprintf(full, sizeof full, "blk.%d.%s", il, names->name[i]);
        const tensor *t = tensor_find(&f->m->file.tensors, full);
        if (t && found)
            err_set(f->e, E_FORMAT, "%s: tensors %s and %s are the same by two names",
                    f->m->file.path, found->name, t->name);
        found = t ? t : found;
    }
    return found;
}

static status missing(draft_file *f, int32_t il, const tensor_names *names)
{
    char layer[32] = "";
    if (il >= 0)
        snprintf(layer, sizeof layer, "blk.%d.", il);
    return err_set(f->e, E_FORMAT, "%s: tensor %s%s is missing", f->m->file.path, layer,
                   names->name[0]);
}

static status bind_named(draft_file *f, int32_t il, weight *w, const tensor_names *names,
                         model_want want)
{
    const tensor *t = find_named(f, il, names);
    if (f->e->status)
        return f->e->status;
    if (!t)
        return want.optional ? OK : missing(f, il, names);
    want.name = t->name;
    want.n_mat = 1;
    return model_weight(f->m, w, &want, f->e);
}

static status bind_rows(draft_file *f, int32_t il, weight *w, const char *name, int32_t n_in,
                        int32_t n_out)
{
    return bind_named(f, il, w, &(tensor_names){{name}},
                      (model_want){.n_in = n_in, .n_out = n_out, .active = 1});
}

static status bind_norm(draft_file *f, int32_t il, weight *w, const char *name, int32_t n)
{
    return bind_named(f, il, w, &(tensor_names){{name}},
                      (model_want){.n_in = n, .n_out = 1, .active = 1, .f32 = true});
}

/* The number of layers: one more than the highest that has queries. */
static int32_t count_layers(const gguf *g)
{
    int32_t n = 0;
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        int il;
        char tail[16] = "";
        if (sscanf(g->tensors.at[i].name, "blk.%6d.%15s", &il, tail) == 2 &&
            !strcmp(tail, "attn_q.weight") && il >= n)
            n = il + 1;
    }
    return n;
}

/* ---- Shapes -------------------------------------------------------------------------------- */

/* Dimension `at` of a tensor that must be there, as a number from 1 to WIDTH_MAX. */
static status dimension(draft_file *f, int32_t il, const tensor_names *names, int at, int32_t *n)
{
    const tensor *t = find_named(f, il, names);
    char shape[96];
    if (f->e->status)
        return f->e->status;
    if (!t)
        return missing(f, il, names);
    if (t->ne[at] > WIDTH_MAX)
        return err_set(f->e, E_FORMAT, "%s: tensor %s has the shape %s: at most %d is expected",
                       f->m->file.path, t->name, tensor_shape_text(t, shape, sizeof shape),
                       WIDTH_MAX);
    *n = (int32_t)t->ne[at];
    return OK;
}

static status heads_of(draft_file *f, const char *name, int32_t *n)
{
    int32_t rows = 0;
    status st = dimension(f, 0, &(tensor_names){{name}}, 1, &rows);
    if (st)
        return st;
    if (rows % f->g->head_dim || rows / f->g->head_dim > HEADS_MAX)
        return err_set(f->e, E_FORMAT, "%s: tensor blk.0.%s has %d rows, no number of heads of %d",
                       f->m->file.path, name, rows, f->g->head_dim);
    *n = rows / f->g->head_dim;
    return OK;
}

static status read_widths(draft_file *f)
{
    dflash *g = f->g;
    const char *path = f->m->file.path;
    int32_t wide = 0;
    status st;
    g->n_layer = count_layers(&f->m->file);
    if (g->n_layer < 1 || g->n_layer > DFLASH_LAYERS_MAX)
        return err_set(f->e, E_FORMAT, "%s: a drafter of %d layers: 1 to %d are expected", path,
                       g->n_layer, DFLASH_LAYERS_MAX);
    if ((st = dimension(f, -1, &HIDDEN_NORM, 0, &g->n_embd)) ||
        (st = dimension(f, -1, &FC, 0, &wide)) ||
        (st = dimension(f, 0, &(tensor_names){{"attn_q_norm.weight"}}, 0, &g->head_dim)) ||
        (st = heads_of(f, "attn_q.weight", &g->n_head)) ||
        (st = heads_of(f, "attn_k.weight", &g->n_head_kv)) ||
        (st = dimension(f, 0, &(tensor_names){{"ffn_gate.weight"}}, 1, &g->n_ff)))
        return st;
    g->n_features = wide / g->n_embd;
    if (wide % g->n_embd || g->n_features > DFLASH_FEATURES_MAX || g->n_features < 1)
        return err_set(f->e, E_FORMAT,
                       "%s: tensor fc.weight has rows of %d, expected 1 to %d features of %d", path,
                       wide, DFLASH_FEATURES_MAX, g->n_embd);
    if (g->head_dim % 2 || g->n_head < 1 || g->n_head_kv < 1 || g->n_head % g->n_head_kv)
        return err_set(f->e, E_FORMAT, "%s: %d heads of %d with %d KV heads", path, g->n_head,
                       g->head_dim, g->n_head_kv);
    const struct {
        const char *name;
        int64_t shown;
    } known[] = {{"embedding_length", g->n_embd},           {"block_count", g->n_layer},
                 {"feed_forward_length", g->n_ff},          {"attention.head_count", g->n_head},
                 {"attention.head_count_kv", g->n_head_kv}, {"attention.key_length", g->head_dim},
                 {"attention.value_length", g->head_dim},   {"rope.dimension_count", g->head_dim},
                 {"n_target_layers", g->n_features},        {"n_target_features", wide}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        compare_key(f, known[i].name, known[i].shown);
    return OK;
}

/* ---- What no shape tells ------------------------------------------------------------------- */

/* One flag per layer, from an array of that name; false if it is absent or of another length. */
static bool read_flags(draft_file *f, const gguf_value *v, bool *flag)
{
    bool read[DFLASH_LAYERS_MAX];
    int64_t x;
    if (!v)
        return false;
    bool fits = v->kind == GGUF_ARRAY && v->count == (uint64_t)f->g->n_layer;
    for (int32_t i = 0; fits && i < f->g->n_layer; i++) {
        fits = gguf_item_i64(v, (uint64_t)i, &x) && (x == 0 || x == 1);
        read[i] = fits && x;
    }
    if (fits)
        memcpy(flag, read, (size_t)f->g->n_layer * sizeof *flag);
    else
        note(f, "%s is no list of %d booleans: ignored", v->key, f->g->n_layer);
    return fits;
}

/* Which layers slide. Without a pattern: all but the last of a file with a window; all of Laguna's.
 */
static void read_windows(draft_file *f)
{
    const dflash *g = f->g;
    int32_t usual = g->laguna ? WINDOW_LAGUNA : WINDOW_GEMMA, window = 0;
    bool any = false;
    read_int(f, "attention.sliding_window", 0, CTX_MAX, &window);
    if (!read_flags(f, find_key(f, "attention.sliding_window_pattern"), f->sliding)) {
        for (int32_t i = 0; i < g->n_layer; i++)
            f->sliding[i] = g->laguna || (window > 0 && i < g->n_layer - 1);
        if (window > 0 && !g->laguna)
            note(f, "no sliding_window_pattern: all layers slide but the last");
    }
    for (int32_t i = 0; i < g->n_layer; i++)
        any |= f->sliding[i];
    if (any && !window)
        note(f, "no sliding_window for layers that slide: %d is taken", usual);
    f->m->window = !any ? 0 : window ? window : usual;
}

/* Sight inside a block. An explicit flag holds for all layers; else sliding layers are causal. */
static status read_stores(draft_file *f)
{
    const dflash *g = f->g;
    bool causal[DFLASH_LAYERS_MAX], all = false;
    gguf_string how;
    memcpy(causal, f->sliding, sizeof causal);
    bool laguna = g->laguna;
    if (gguf_get_string(&f->m->file, "dflash.decoder_arch", &how))
        laguna |= how.n == 6 && !memcmp(how.at, "laguna", 6);
    if (!read_flags(f, gguf_find(&f->m->file, "carat.draft.causal"), causal) &&
        (read_bool(f, "attention.causal", &all) || laguna))
        for (int32_t i = 0; i < g->n_layer; i++)
            causal[i] = all || laguna;
    model *m = f->m;
    m->kv = arena_array(&m->mem, (size_t)g->n_layer, sizeof *m->kv);
    if (!m->kv)
        return err_memory(f->e, m->file.path, (size_t)g->n_layer * sizeof *m->kv);
    m->n_kv = g->n_layer;
    for (int32_t i = 0; i < g->n_layer; i++)
        m->kv[i] = (kv_spec){.layer = i,
                             .window = f->sliding[i] ? m->window : 0,
                             .n_head_kv = g->n_head_kv,
                             .head_dim = g->head_dim,
                             .inside = causal[i] ? KV_INSIDE_CAUSAL : KV_INSIDE_ALL};
    return OK;
}

/* Attention may use f16 unless a norm's weights are huge (gemma4_table.c has the bound). */
static void set_ranges(draft_file *f)
{
    const dflash *g = f->g;
    float most = 65504.0f / 2 / sqrtf((float)g->head_dim);
    for (int32_t i = 0; i < g->n_layer; i++)
        f->m->kv[i].wide = !(bind_largest(&g->layer[i].q_norm) <= most &&
                             bind_largest(&g->layer[i].k_norm) <= most);
}

static status read_rotation(draft_file *f)
{
    const char *path = f->m->file.path;
    bool qwen = !strncmp(f->arch, "qwen", 4);
    double theta = qwen ? 1e7 : 1e6;
    const gguf_value *v = find_key(f, "rope.freq_base"), *how = find_key(f, "rope.scaling.type");
    gguf_string type;
    if (how && (!gguf_value_string(how, &type) || type.n != 4 || memcmp(type.at, "none", 4)))
        return err_set(f->e, E_UNSUPPORTED, "%s: %s: scaled rotation is not supported", path,
                       how->key);
    if (v && (!gguf_value_f64(v, &theta) || !(theta >= 1 && theta <= 1e12)))
        return err_set(f->e, E_FORMAT, "%s: %s is no number from 1 to 1e12", path, v->key);
    if (!v)
        note(f, "no rope.freq_base: %g is taken", theta);
    else if (qwen && theta == 1e6)
        note(f, "%s is 1e6, which early converters wrote into every file", v->key);
    const turning t = {f->g->head_dim, theta, f->g->head_dim / 2, NULL, NULL};
    return bind_rope(f->m, &f->g->rope, &t, f->e);
}

static status read_numbers(draft_file *f)
{
    dflash *g = f->g;
    double eps = 1e-6;
    const gguf_value *v = find_key(f, "attention.layer_norm_rms_epsilon");
    if (v && (!gguf_value_f64(v, &eps) || !(eps >= 0 && eps <= 1)))
        return err_set(f->e, E_FORMAT, "%s: %s is no number from 0 to 1", f->m->file.path, v->key);
    g->eps = (float)eps;
    g->block = BLOCK_USUAL;
    if (!read_int(f, "block_size", DFLASH_BLOCK_MIN, DFLASH_BLOCK_MAX, &g->block))
        note(f, "no block_size: %d is taken", g->block);
    if (!read_int(f, "context_length", 1, CTX_MAX, &f->m->n_ctx_train))
        f->m->n_ctx_train = CTX_MAX;
    return OK;
}

/* ---- Weights ------------------------------------------------------------------------------- */

static status bind_layer(draft_file *f, int32_t il)
{
    const dflash *g = f->g;
    dflash_layer *L = &f->g->layer[il];
    int32_t d = g->n_embd, q = g->n_head * g->head_dim, kv = g->n_head_kv * g->head_dim;
    status st;
    if ((st = bind_norm(f, il, &L->attn_norm, "attn_norm.weight", d)) ||
        (st = bind_rows(f, il, &L->wq, "attn_q.weight", d, q)) ||
        (st = bind_rows(f, il, &L->wk, "attn_k.weight", d, kv)) ||
        (st = bind_rows(f, il, &L->wv, "attn_v.weight", d, kv)) ||
        (st = bind_rows(f, il, &L->wo, "attn_output.weight", q, d)) ||
        (st = bind_norm(f, il, &L->q_norm, "attn_q_norm.weight", g->head_dim)) ||
        (st = bind_norm(f, il, &L->k_norm, "attn_k_norm.weight", g->head_dim)) ||
        (st = bind_named(f, il, &L->ffn_norm, &FFN_NORM,
                         (model_want){.n_in = d, .n_out = 1, .active = 1, .f32 = true})) ||
        (st = bind_rows(f, il, &L->gate, "ffn_gate.weight", d, g->n_ff)) ||
        (st = bind_rows(f, il, &L->up, "ffn_up.weight", d, g->n_ff)) ||
        (st = bind_rows(f, il, &L->down, "ffn_down.weight", g->n_ff, d)))
        return st;
    return g->laguna ? bind_rows(f, il, &L->head_gate, "attn_gate.weight", d, g->n_head) : OK;
}

/* Laguna's norms of features: one tensor with a row each, or a tensor each. */
static status bind_feature_norms(draft_file *f)
{
    dflash *g = f->g;
    const tensor_names one = {{"enc.aux_norm.weight"}};
    status st = OK;
    for (int32_t i = 0; i < g->n_features && !st; i++) {
        char a[64], b[64];
        snprintf(a, sizeof a, "dflash.aux_hidden_norm.%d.weight", i);
        snprintf(b, sizeof b, "dflash_aux_hidden_norm.%d.weight", i);
        const tensor_names each = {{a, b}};
        model_want want = {.n_in = g->n_embd, .n_out = 1, .active = 1, .f32 = true};
        if (find_named(f, -1, &one)) {
            want.of_rows = g->n_features;
            want.row = i;
        }
        st = bind_named(f, -1, &g->aux_norm[i], want.of_rows ? &one : &each, want);
    }
    return st;
}

/* DSpark's tensors, which only the widths of the first tell from a plain drafter's. */
static status bind_markov(draft_file *f)
{
    dflash *g = f->g;
    weight bias = {0};
    int32_t rank = 0, rows = 0, n_conf = 0;
    status st;
    if (!find_named(f, -1, &MARKOV_IN))
        return f->e->status;
    if ((st = dimension(f, -1, &MARKOV_IN, 0, &rank)) ||
        (st = dimension(f, -1, &MARKOV_IN, 1, &rows)) ||
        (st = bind_named(f, -1, &g->markov_in, &MARKOV_IN,
                         (model_want){.n_in = rank, .n_out = rows, .gather = true})) ||
        (st = bind_named(f, -1, &g->markov_out, &MARKOV_OUT,
                         (model_want){.n_in = rank, .n_out = rows, .active = 1})))
        return st;
    if (!find_named(f, -1, &CONF))
        return f->e->status;
    if ((st = dimension(f, -1, &CONF, 0, &n_conf)))
        return st;
    int32_t wanted = n_conf == g->n_embd ? n_conf : g->n_embd + rank;
    if ((st = bind_named(f, -1, &g->conf, &CONF,
                         (model_want){.n_in = wanted, .n_out = 1, .active = 1})) ||
        (st = bind_named(
             f, -1, &bias, &CONF_BIAS,
             (model_want){.n_in = 1, .n_out = 1, .f32 = true, .optional = true, .host = true})))
        return st;
    g->conf_bias = bias.n_in ? *(const float *)bias.data : 0;
    return OK;
}

static status bind_weights(draft_file *f)
{
    dflash *g = f->g;
    status st;
    g->layer = arena_array(&f->m->mem, (size_t)g->n_layer, sizeof *g->layer);
    if (!g->layer)
        return err_memory(f->e, f->m->file.path, (size_t)g->n_layer * sizeof *g->layer);
    if ((st = bind_named(f, -1, &g->fc, &FC,
                         (model_want){.n_in = (int64_t)g->n_features * g->n_embd,
                                      .n_out = g->n_embd,
                                      .active = 1})) ||
        (st = bind_named(f, -1, &g->hidden_norm, &HIDDEN_NORM,
                         (model_want){.n_in = g->n_embd, .n_out = 1, .active = 1, .f32 = true})) ||
        (st = bind_norm(f, -1, &g->out_norm, "output_norm.weight", g->n_embd)))
        return st;
    if (g->laguna && (st = bind_feature_norms(f)))
        return st;
    for (int32_t il = 0; il < g->n_layer; il++)
        if ((st = bind_layer(f, il)))
            return st;
    return bind_markov(f);
}

/* The embedding and the head are the target's; a file may carry copies. */
static const char *const copies[] = {"token_embd.weight", "output.weight"};

/* ---- Binding ------------------------------------------------------------------------------- */

static status keep_notes(draft_file *f)
{
    f->g->notes = arena_strndup(&f->m->mem, str_text(&f->notes), f->notes.n);
    return f->g->notes && !f->notes.bad ? OK : err_memory(f->e, f->m->file.path, f->notes.n);
}

static status bind_file(draft_file *f)
{
    const tensor_set *t = &f->m->file.tensors;
    status st = read_widths(f);
    if (st)
        return st;
    f->g->laguna = tensor_find(t, "blk.0.attn_gate.weight") != NULL;
    read_windows(f);
    if ((st = read_stores(f)) || (st = read_rotation(f)) || (st = read_numbers(f)) ||
        (st = bind_weights(f)))
        return st;
    set_ranges(f);
    for (int i = 0; i < 2; i++)
        model_claim(f->m, copies[i]);
    return keep_notes(f);
}

status dflash_bind(model *m, err *e)
{
    gguf_string arch = {"", 0};
    draft_file f = {.m = m, .e = e};
    gguf_get_string(&m->file, "general.architecture", &arch);
    f.g = arena_alloc(&m->mem, sizeof *f.g);
    f.arch = arena_strndup(&m->mem, arch.at, (size_t)arch.n);
    if (!f.g || !f.arch)
        return err_memory(e, m->file.path, sizeof *f.g);
    status st = draft_kind_check(&m->file, e);
    st = st ? st : bind_file(&f);
    str_free(&f.notes);
    if (st)
        return st;
    m->impl = f.g;
    m->n_layer = f.g->n_layer;
    m->n_embd = f.g->n_embd;
    return OK;
}

/* ---- The target ---------------------------------------------------------------------------- */

/* round(1 + i (L - 4) / (F - 1)), halves to even; the middle layer if there is one feature. */
static int32_t usual_feature(int32_t i, int32_t n_features, int32_t n_layer)
{
    if (n_features == 1)
        return n_layer / 2;
    int32_t v = (int32_t)nearbyint(1 + (double)i * (n_layer - 4) / (n_features - 1));
    return v;
}

/* The captured layers that the file names: false, with a note, if it names none that make sense. */
static bool read_features(draft_file *f, int64_t *id)
{
    const gguf_value *v = find_key(f, "target_layer_ids"), *from_one = NULL;
    if (!v)
        v = from_one = find_key(f, "target_layers");
    if (!v) {
        note(f, "no list of captured layers: the usual ones are taken");
        return false;
    }
    bool fits = v->kind == GGUF_ARRAY && v->count == (uint64_t)f->g->n_features;
    for (int32_t i = 0; fits && i < f->g->n_features; i++) {
        fits = gguf_item_i64(v, (uint64_t)i, &id[i]) && id[i] >= (from_one ? 1 : 0);
        if (fits && from_one)
            id[i]--;
        fits = fits && (!i || id[i] > id[i - 1]);
    }
    if (!fits)
        note(f, "%s is no ascending list of %d layers: the usual ones are taken", v->key,
             f->g->n_features);
    return fits;
}

static status fit_features(draft_file *f, const model *target)
{
    int64_t id[DFLASH_FEATURES_MAX];
    dflash *g = f->g;
    bool stated = read_features(f, id);
    for (int32_t i = 0; i < g->n_features; i++) {
        int64_t il = stated ? id[i] : usual_feature(i, g->n_features, target->n_layer);
        if (il >= target->n_layer || il < 0 || (i && il <= g->feature[i - 1]))
            return err_set(f->e, E_ARG, "%s captures layer %" PRId64 ", and %s has %d layers",
                           f->m->file.path, il, target->name, target->n_layer);
        g->feature[i] = (int32_t)il;
    }
    return OK;
}

static status fit_vocabulary(draft_file *f, const model *target)
{
    dflash *g = f->g;
    int32_t n = target->n_vocab;
    bool stamped = !strncmp(f->arch, "qwen", 4) && !strncmp(target->arch->name, "gemma", 5);
    if (read_int(f, "vocab_size", 1, INT32_MAX, &n) && n != target->n_vocab) {
        if (!stamped)
            return err_set(f->e, E_ARG, "%s drafts from %d tokens, and %s has %d", f->m->file.path,
                           n, target->name, target->n_vocab);
        note(f, "vocab_size is that of another family: ignored");
    }
    if (g->markov_in.n_in && g->markov_in.n_out != target->n_vocab)
        return err_set(f->e, E_ARG, "%s: tensor %s has %d rows, and %s has %d tokens",
                       f->m->file.path, g->markov_in.name, g->markov_in.n_out, target->name,
                       target->n_vocab);
    for (int i = 0; i < 2; i++) {
        const tensor *t = tensor_find(&f->m->file.tensors, copies[i]);
        if (t && (t->ne[0] != (uint64_t)g->n_embd || t->ne[1] != (uint64_t)target->n_vocab))
            return err_set(f->e, E_UNSUPPORTED,
                           "%s: tensor %s is of another shape than that of %s, which is used",
                           f->m->file.path, t->name, target->name);
    }
    return OK;
}

static status fit_mask(draft_file *f, const model *target)
{
    const gguf *file = &f->m->file;
    bool gemma = !strncmp(target->arch->name, "gemma", 5);
    int64_t id = gemma ? MASK_GEMMA : MASK_QWEN, usual = id, stated;
    const gguf_value *v = find_key(f, "mask_token_id");
    v = v ? v : gguf_find(file, "tokenizer.ggml.mask_token_id");
    if (!v)
        note(f, "no mask_token_id: %" PRId64 " is taken", id);
    else if (!gguf_value_i64(v, &stated) || stated < 0 || stated >= target->n_vocab)
        note(f, "%s is no token of %s: %" PRId64 " is taken", v->key, target->name, id);
    else if (gemma && stated == MASK_QWEN)
        note(f, "%s is that of another family: %" PRId64 " is taken", v->key, id);
    else
        id = stated;
    if (id >= target->n_vocab)
        return err_set(f->e, E_FORMAT, "%s: no mask_token_id, and %s has no token %" PRId64,
                       file->path, target->name, usual);
    f->g->mask_id = (int32_t)id;
    return OK;
}

/* carat's own keys say for which target the file was made. */
static status check_target(draft_file *f, const model *target)
{
    const gguf *file = &f->m->file;
    int64_t n;
    double x;
    gguf_string arch;
    if (gguf_get_string(file, "carat.draft.target_arch", &arch) &&
        (arch.n != strlen(target->arch->name) || memcmp(arch.at, target->arch->name, arch.n)))
        return err_set(f->e, E_ARG, "%s was made for a target of architecture '%.*s', not '%s'",
                       file->path, (int)(arch.n < 64 ? arch.n : 64), arch.at, target->arch->name);
    if (gguf_get_i64(file, "carat.draft.target_layers", &n) && n != target->n_layer)
        return err_set(f->e, E_ARG, "%s was made for a target of %" PRId64 " layers, and %s has %d",
                       file->path, n, target->name, target->n_layer);
    if (gguf_get_f64(file, "carat.draft.embed_scale", &x) &&
        fabs(x - target->embd_scale) > 1e-3 * target->embd_scale)
        note(f, "carat.draft.embed_scale is %g; the target's %g is taken", x, target->embd_scale);
    if (gguf_get_f64(file, "carat.draft.final_softcap", &x) && fabs(x - target->softcap) > 1e-3)
        note(f, "carat.draft.final_softcap is %g; the target's %g is taken", x, target->softcap);
    return OK;
}

/* Which slots draft which tokens. */
static void read_anchor(draft_file *f)
{
    dflash *g = f->g;
    const gguf_value *own = gguf_find(&f->m->file, "carat.draft.anchor_first");
    int64_t x = 0;
    bool first = g->markov_in.n_in > 0;
    bool stated = own && gguf_value_i64(own, &x);
    if (stated)
        first = x;
    else if (read_bool(f, "sample_from_anchor", &first))
        stated = true;
    if (!stated && first)
        note(f, "no sample_from_anchor: slot 0 is taken to draft, as in DSpark's own files");
    if (g->laguna && first) {
        note(f, "Laguna's drafters do not draft in slot 0: sample_from_anchor is ignored");
        first = false;
    }
    g->anchor_first = first;
}

status dflash_attach(model *m, const model *target, err *e)
{
    dflash *g = m->impl;
    gguf_string arch = {"", 0};
    draft_file f = {.m = m, .g = g, .e = e};
    status st;
    gguf_get_string(&m->file, "general.architecture", &arch);
    f.arch = arena_strndup(&m->mem, arch.at, (size_t)arch.n);
    if (!f.arch)
        return err_memory(e, m->file.path, (size_t)arch.n);
    str_puts(&f.notes, g->notes);
    if (!target->embd || !target->head)
        st = err_set(e, E_UNSUPPORTED, "%s has no embedding that %s could use", target->name,
                     m->file.path);
    else if (g->n_embd != target->n_embd)
        st = err_set(e, E_ARG, "%s drafts for a model of width %d, and %s has width %d",
                     m->file.path, g->n_embd, target->name, target->n_embd);
    else if (!(st = check_target(&f, target)) && !(st = fit_features(&f, target)) &&
             !(st = fit_vocabulary(&f, target)) && !(st = fit_mask(&f, target))) {
        read_anchor(&f);
        st = keep_notes(&f);
    }
    str_free(&f.notes);
    if (st)
        return st;
    g->target = target;
    m->n_vocab = target->n_vocab;
    return OK;
}
