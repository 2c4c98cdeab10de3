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
#include "model/dflash_shapes.h"
#include "model/draft_kind.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW_GEMMA = 2048, WINDOW_LAGUNA = 512, MASK_GEMMA = 4, MASK_QWEN = 248070 };

/* A drafter while it is bound. */
typedef struct draft_file {
    model *m;
    dflash *g;
    dflash_shape *s;
    const char *arch; /* as the file has it */
    str notes;
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

/* A row of a number that the tensors tell: a note if the file states another. */
static void compare_key(draft_file *f, const table_key *r)
{
    const gguf_value *v = find_key(f, r->gguf);
    int64_t x, shown = (int64_t)table_value(&f->s->common, r, 0);
    if (v && (!gguf_value_i64(v, &x) || x != shown))
        note(f, "%s contradicts the tensors, which show %" PRId64, v->key, shown);
}

static bool is_qwen(const draft_file *f)
{
    return !strncmp(f->arch, "qwen", 4);
}

/* Any other row. A count out of its range is ignored; a number out of its range is an error. */
static status read_key(draft_file *f, const table_key *r)
{
    const gguf_value *v = find_key(f, r->gguf);
    bool qwen_theta = is_qwen(f) && r->at == offsetof(dflash_shape, theta);
    double usual = qwen_theta ? 1e7 : r->value, x = usual;
    int32_t n = (int32_t)usual;
    if (r->kind == KEY_REAL) {
        if (v && (!gguf_value_f64(v, &x) || !(x >= r->least && x <= r->most)))
            return err_set(f->e, E_FORMAT, "%s: %s is no number from %g to %g", f->m->file.path,
                           v->key, r->least, r->most);
        *(double *)((char *)f->s + r->at) = x;
    } else {
        if (!read_int(f, r->gguf, (int64_t)r->least, (int64_t)r->most, &n))
            v = NULL;
        table_set(&f->s->common, r, n);
    }
    if (!v && usual != 0)
        note(f, "no %s: %g is taken", r->gguf, usual);
    else if (qwen_theta && x == 1e6)
        note(f, "%s is 1e6, which early converters wrote into every file", v->key);
    return OK;
}

static status read_keys(draft_file *f)
{
    const family_table *t = dflash_shapes.table;
    status st = OK;
    for (const table_key *r = t->keys; r < t->keys + t->n_keys && !st; r++)
        if (r->gguf && r->how & TOLD)
            compare_key(f, r);
        else if (r->gguf && !(r->how & WRITE_ONLY))
            st = read_key(f, r);
    return st;
}

/* ---- Shapes -------------------------------------------------------------------------------- */

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

static const tensor *find(const draft_file *f, const char *name)
{
    return tensor_find(&f->m->file.tensors, name);
}

static status size_of(const draft_file *f, int32_t il, const char *row, int i, int32_t most,
                      int32_t *out)
{
    return table_size(f->m, &dflash_shapes, (table_dim){il, row, i, most}, out, f->e);
}

static status tell_heads(draft_file *f, const char *row, int32_t *n)
{
    int32_t rows = 0, hd = f->s->head_dim;
    status st = size_of(f, 0, row, 1, WIDTH_MAX, &rows);
    if (!st && rows % hd)
        st = err_set(f->e, E_FORMAT, "%s: tensor blk.0.%s has %d rows, no number of heads of %d",
                     f->m->file.path, row, rows, hd);
    *n = st ? *n : rows / hd;
    return st;
}

/* DSpark's tensors: the widths of the first tell whether a file has them. */
static status tell_markov(draft_file *f)
{
    dflash_shape *s = f->s;
    const char *in = "markov_w1.weight", *conf = "conf_proj.weight";
    const tensor *t;
    int32_t n_conf = 0;
    status st = table_find(f->m, &dflash_shapes, (table_dim){.il = -1, .gguf = in}, &t, f->e);
    if (st || !t)
        return st;
    if ((st = size_of(f, -1, in, 0, WIDTH_MAX, &s->markov_rank)) ||
        (st = size_of(f, -1, in, 1, VOCAB_MAX, &s->n_vocab)) ||
        (st = table_find(f->m, &dflash_shapes, (table_dim){.il = -1, .gguf = conf}, &t, f->e)) ||
        !t)
        return st;
    s->confidence = true;
    st = size_of(f, -1, conf, 0, 2 * WIDTH_MAX, &n_conf);
    s->conf_of_state = n_conf == s->n_embd;
    return st;
}

static status tell(draft_file *f)
{
    dflash_shape *s = f->s;
    const char *path = f->m->file.path;
    int32_t wide = 0;
    status st;
    s->n_layer = count_layers(&f->m->file);
    if (s->n_layer < 1 || s->n_layer > DFLASH_SHAPE_LAYERS)
        return err_set(f->e, E_FORMAT, "%s: a drafter of %d layers: 1 to %d are expected", path,
                       s->n_layer, DFLASH_SHAPE_LAYERS);
    if ((st = size_of(f, -1, "enc.output_norm.weight", 0, WIDTH_MAX, &s->n_embd)) ||
        (st = size_of(f, -1, "fc.weight", 0, DFLASH_FEATURES_MAX * WIDTH_MAX, &wide)) ||
        (st = size_of(f, 0, "attn_q_norm.weight", 0, WIDTH_MAX, &s->head_dim)) ||
        (st = tell_heads(f, "attn_q.weight", &s->n_head)) ||
        (st = tell_heads(f, "attn_k.weight", &s->n_head_kv)) ||
        (st = size_of(f, 0, "ffn_gate.weight", 1, WIDTH_MAX, &s->n_ff)))
        return st;
    s->n_features = wide / s->n_embd;
    if (wide % s->n_embd || s->n_features > DFLASH_FEATURES_MAX || s->n_features < 1)
        return err_set(f->e, E_FORMAT,
                       "%s: tensor fc.weight has rows of %d, expected 1 to %d features of %d", path,
                       wide, DFLASH_FEATURES_MAX, s->n_embd);
    if (s->head_dim % 2 || s->n_head % s->n_head_kv || s->n_head > HEADS_MAX)
        return err_set(f->e, E_FORMAT, "%s: %d heads of %d with %d KV heads", path, s->n_head,
                       s->head_dim, s->n_head_kv);
    s->laguna = find(f, "blk.0.attn_gate.weight") != NULL;
    s->dialect = find(f, "enc.aux_norm.weight") ? DFLASH_LLAMA : DFLASH_LUCEBOX;
    return tell_markov(f);
}

/* ---- What no shape tells ------------------------------------------------------------------- */

/* One flag per layer, from an array of that name; false if it is absent or of another length. */
static bool read_flags(draft_file *f, const gguf_value *v, bool *flag)
{
    bool read[DFLASH_SHAPE_LAYERS];
    int64_t x;
    if (!v)
        return false;
    int32_t n = f->s->n_layer;
    bool fits = v->kind == GGUF_ARRAY && v->count == (uint64_t)n;
    for (int32_t i = 0; fits && i < n; i++) {
        fits = gguf_item_i64(v, (uint64_t)i, &x) && (x == 0 || x == 1);
        read[i] = fits && x;
    }
    if (fits)
        memcpy(flag, read, (size_t)n * sizeof *flag);
    else
        note(f, "%s is no list of %d booleans: ignored", v->key, n);
    return fits;
}

/* Which layers slide. Without a pattern: all but the last of a file with a window; all of Laguna's.
 */
static void read_windows(draft_file *f)
{
    dflash_shape *s = f->s;
    int32_t usual = s->laguna ? WINDOW_LAGUNA : WINDOW_GEMMA;
    bool any = false;
    if (!read_flags(f, find_key(f, "attention.sliding_window_pattern"), s->swa)) {
        for (int32_t i = 0; i < s->n_layer; i++)
            s->swa[i] = s->laguna || (s->window > 0 && i < s->n_layer - 1);
        if (s->window > 0 && !s->laguna)
            note(f, "no sliding_window_pattern: all layers slide but the last");
    }
    for (int32_t i = 0; i < s->n_layer; i++)
        any |= s->swa[i];
    if (any && !s->window)
        note(f, "no sliding_window for layers that slide: %d is taken", usual);
    f->m->window = !any ? 0 : s->window ? s->window : usual;
}

/* Sight inside a block. An explicit flag holds for all layers; else sliding layers are causal. */
static void set_stores(draft_file *f)
{
    const dflash_shape *s = f->s;
    bool causal[DFLASH_SHAPE_LAYERS], all = false, laguna = s->laguna;
    gguf_string how;
    memcpy(causal, s->swa, sizeof causal);
    if (gguf_get_string(&f->m->file, "dflash.decoder_arch", &how))
        laguna |= how.n == 6 && !memcmp(how.at, "laguna", 6);
    if (!read_flags(f, gguf_find(&f->m->file, "carat.draft.causal"), causal) &&
        (read_bool(f, "attention.causal", &all) || laguna))
        for (int32_t i = 0; i < s->n_layer; i++)
            causal[i] = all || laguna;
    for (int32_t i = 0; i < s->n_layer; i++)
        f->m->kv[i] = (kv_spec){.layer = i,
                                .window = s->swa[i] ? f->m->window : 0,
                                .n_head_kv = s->n_head_kv,
                                .head_dim = s->head_dim,
                                .inside = causal[i] ? KV_INSIDE_CAUSAL : KV_INSIDE_ALL};
}

static status read_rotation(draft_file *f)
{
    const dflash_shape *s = f->s;
    const gguf_value *how = find_key(f, "rope.scaling.type");
    gguf_string type;
    if (how && (!gguf_value_string(how, &type) || type.n != 4 || memcmp(type.at, "none", 4)))
        return err_set(f->e, E_UNSUPPORTED, "%s: %s: scaled rotation is not supported",
                       f->m->file.path, how->key);
    const turning t = {s->head_dim, s->theta, s->head_dim / 2, NULL, NULL};
    return bind_rope(f->m, &f->g->rope, &t, f->e);
}

/* ---- Weights ------------------------------------------------------------------------------- */

/* Row i of the one tensor of Laguna's norms of features. */
static status bind_norms_in_rows(const draft_file *f, const binder *b)
{
    dflash *g = f->g;
    status st = OK;
    for (int32_t i = 0; i < g->n_features && !st; i++)
        st = bind_tensor(b, &g->aux_norm[i], "enc.aux_norm.weight",
                         (model_want){.n_in = g->n_embd,
                                      .n_out = 1,
                                      .n_mat = 1,
                                      .active = 1,
                                      .f32 = true,
                                      .of_rows = g->n_features,
                                      .row = i});
    return st;
}

/* What of DSpark's is no usual weight: a table whose rows are looked up, and a number. */
static status bind_markov(const draft_file *f, const binder *b)
{
    const dflash_shape *s = f->s;
    const tensor *in, *bias;
    weight w = {0};
    const table_dim names[] = {{.il = -1, .gguf = "markov_w1.weight"},
                               {.il = -1, .gguf = "conf_proj.bias"}};
    status st;
    if ((st = table_find(f->m, &dflash_shapes, names[0], &in, f->e)) ||
        (st = table_find(f->m, &dflash_shapes, names[1], &bias, f->e)))
        return st;
    if (s->markov_rank &&
        (st = bind_tensor(
             b, &f->g->markov_in, in->name,
             (model_want){
                 .n_in = s->markov_rank, .n_out = s->n_vocab, .n_mat = 1, .gather = true})))
        return st;
    if (s->confidence && bias &&
        (st = bind_tensor(
             b, &w, bias->name,
             (model_want){.n_in = 1, .n_out = 1, .n_mat = 1, .f32 = true, .host = true})))
        return st;
    f->g->conf_bias = w.n_in ? *(const float *)w.data : 0;
    return OK;
}

static status bind_weights(draft_file *f)
{
    const model_shape *s = &f->s->common;
    const binder b = {f->m, -1, f->e};
    status st;
    if ((st = table_bind(&b, s, f->g)) || (st = bind_markov(f, &b)) ||
        (f->s->laguna && f->s->dialect == DFLASH_LLAMA && (st = bind_norms_in_rows(f, &b))))
        return st;
    for (int32_t il = 0; il < s->n_layer && !st; il++) {
        f->g->layer[il].rope = &f->g->rope;
        st = table_bind(&(binder){f->m, il, f->e}, s, &f->g->layer[il]);
    }
    return st;
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
    dflash *g = f->g;
    dflash_shape *s = f->s;
    status st;
    if ((st = tell(f)) || (st = read_keys(f)))
        return st;
    s->n_ctx_train = s->n_ctx_train ? s->n_ctx_train : CTX_MAX;
    g->n_layer = s->n_layer;
    g->n_embd = s->n_embd;
    g->n_head = s->n_head;
    g->n_head_kv = s->n_head_kv;
    g->head_dim = s->head_dim;
    g->n_ff = s->n_ff;
    g->n_features = s->n_features;
    g->block = s->block_size;
    g->laguna = s->laguna;
    g->eps = (float)s->eps;
    if ((st = bind_layer_structs(f->m, s->n_layer, (void **)&g->layer, sizeof *g->layer, f->e)))
        return st;
    read_windows(f);
    set_stores(f);
    if ((st = read_rotation(f)) || (st = bind_weights(f)))
        return st;
    for (int32_t i = 0; i < s->n_layer; i++)
        f->m->kv[i].wide =
            bind_wide_heads(&g->layer[i].q_norm, &g->layer[i].k_norm, s->head_dim, g->rope.factor);
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
    f.s = arena_alloc(&m->mem, sizeof *f.s);
    f.arch = arena_strndup(&m->mem, arch.at, (size_t)arch.n);
    if (!f.g || !f.s || !f.arch)
        return err_memory(e, m->file.path, sizeof *f.g + sizeof *f.s);
    f.s->family = &dflash_shapes;
    status st = draft_kind_check(&m->file, e);
    st = st ? st : bind_file(&f);
    str_free(&f.notes);
    return st ? st : bind_done(m, &f.s->common, f.g, NULL, NULL, e);
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
    bool stamped = is_qwen(f) && !strncmp(target->arch->name, "gemma", 5);
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
