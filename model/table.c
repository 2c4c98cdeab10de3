/* table.c - the verbs of families' tables: table.h says what a row is. */
#include "model/bind.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 128, TAIL_BYTES = 48 /* of a tensor's name, without the layer */ };

/* ---- Fields ---- */

static bool per_layer(const table_key *r)
{
    return r->kind == KEY_COUNTS || r->kind == KEY_LIST || r->kind == KEY_FLAGS;
}

static bool is_flag(const table_key *r)
{
    return r->kind == KEY_FLAG || r->kind == KEY_FLAGS;
}

static void *field(model_shape *s, size_t at)
{
    return (char *)s + at;
}

/* A whole number of the shape; il: of fields with a number for each layer. */
static int32_t whole(const model_shape *s, size_t at, int32_t il)
{
    return ((const int32_t *)((const char *)s + at))[il];
}

double table_value(const model_shape *s, const table_key *r, int32_t il)
{
    const char *at = (const char *)s + r->at;
    if (!r->at)
        return r->value;
    if (r->of)
        return r->of(s, il);
    if (r->kind == KEY_REAL)
        return *(const double *)at;
    return is_flag(r) ? ((const bool *)at)[il] : whole(s, r->at, il);
}

static void set_whole(model_shape *s, const table_key *r, int32_t il, int32_t v)
{
    if (r->at && is_flag(r))
        ((bool *)field(s, r->at))[il] = v;
    else if (r->at)
        ((int32_t *)field(s, r->at))[il] = v;
}

/* Gives every layer the number of the first. */
static void spread(model_shape *s, const table_key *r)
{
    for (int32_t il = 1; il < s->n_layer && il < LAYERS_MAX; il++)
        set_whole(s, r, il, (int32_t)table_value(s, r, 0));
}

void table_set(model_shape *s, const table_key *r, int32_t v)
{
    set_whole(s, r, 0, v);
    if (per_layer(r))
        spread(s, r);
}

static double most_of(const model_shape *s, const table_key *r)
{
    double most = r->most;
    if (r->upto)
        most = fmin(most, whole(s, r->upto, 0));
    return r->below ? fmin(most, whole(s, r->below, 0) - 1) : most;
}

static bool has_key(const model_shape *s, const table_key *r)
{
    return r->gguf && (!r->when || r->when(s));
}

/* ---- Sizes ---- */

bool table_named(const char *size, model_shape *s)
{
    const family_table *t = s->family->table;
    size_t bytes = s->family->shape_bytes;
    for (int32_t i = 0; i < t->n_sizes; i++) {
        const model_shape *row = (const void *)((const char *)t->sizes + (size_t)i * bytes);
        if (strcmp(row->name, size) != 0)
            continue;
        memcpy(s, row, bytes);
        for (int32_t k = 0; k < t->n_keys; k++)
            if (per_layer(&t->keys[k]) && !t->keys[k].of)
                spread(s, &t->keys[k]);
        if (t->fill)
            t->fill(s, i);
        return true;
    }
    return false;
}

static status check_key(const model_shape *s, const table_key *r, const char *what, err *e)
{
    int32_t n = per_layer(r) ? s->n_layer : 1;
    double most = most_of(s, r);
    if (r->kind == KEY_YARN)
        return scaling_check((const rope_scaling *)((const char *)s + r->at), what, e);
    if (!r->at || r->same_as || is_flag(r) || (r->when && !r->when(s)))
        return OK;
    for (int32_t il = 0; il < n; il++) {
        double v = table_value(s, r, il);
        if (!(v >= r->least && v <= most)) /* also true for NaN */
            return err_set(e, E_ARG, "%s: %s is %.9g, expected %.9g to %.9g", what,
                           r->config ? r->config : r->gguf, v, r->least, most);
    }
    return OK;
}

status table_check(const model_shape *s, const char *what, err *e)
{
    const family_table *t = s->family->table;
    status st = OK;
    for (int32_t i = 0; i < t->n_keys && !st; i++)
        st = check_key(s, &t->keys[i], what, e);
    return st ? st : t->agree(s, E_ARG, what, e);
}

status table_agree_heads(int32_t il, int32_t n_head, int32_t n_head_kv, int32_t head_dim,
                         status bad, const char *what, err *e)
{
    if (n_head % n_head_kv)
        return err_set(e, bad,
                       "%s: layer %d: %d heads of %d with %d KV heads do not share them evenly",
                       what, il, n_head, head_dim, n_head_kv);
    if (((int64_t)n_head + 2 * (int64_t)n_head_kv) * head_dim > WIDTH_MAX)
        return err_set(e, bad,
                       "%s: layer %d: %d heads of %d with %d KV heads: expected at most %d values",
                       what, il, n_head, head_dim, n_head_kv, WIDTH_MAX);
    return OK;
}

/* ---- GGUF files: keys ---- */

static void put_key(gguf_writer *w, const char *arch, const model_shape *s, const table_key *r)
{
    char name[NAME_BYTES];
    uint64_t n = (uint64_t)s->n_layer;
    bool equal = r->kind == KEY_COUNTS;
    int32_t v[LAYERS_MAX];
    snprintf(name, sizeof name, "%s.%s", arch, r->gguf);
    for (int32_t il = 0; il < s->n_layer && (equal || r->kind == KEY_LIST); il++)
        v[il] = (int32_t)table_value(s, r, il);
    for (int32_t il = 1; il < s->n_layer && equal && !r->listed; il++)
        equal = v[il] == v[0];
    if (r->listed)
        equal = !r->listed(s);
    const char *at = (const char *)s + r->at;
    if (r->kind == KEY_YARN)
        scaling_put(w, arch, (const rope_scaling *)at);
    else if (r->kind == KEY_REAL)
        gguf_put_f32(w, name, (float)table_value(s, r, 0));
    else if (r->kind == KEY_FLAG)
        gguf_put_bool(w, name, table_value(s, r, 0) != 0);
    else if (r->kind == KEY_FLAGS)
        gguf_put_bools(w, name, (const bool *)at, n);
    else if (r->kind == KEY_COUNT || r->kind == KEY_UNIFORM || equal)
        gguf_put_u32(w, name,
                     (uint32_t)table_value(s, r, 0) +
                         (r->plus ? (uint32_t)whole(s, r->plus, 0) : 0));
    else
        gguf_put_i32s(w, name, v, n);
}

const char *table_arch(const model_shape *s, char buf[TABLE_ARCH])
{
    const family_table *t = s->family->table;
    return t && t->arch ? t->arch(s, buf) : s->family->arch;
}

void table_put(gguf_writer *w, const model_shape *s)
{
    char buf[TABLE_ARCH];
    const char *arch = table_arch(s, buf);
    gguf_put_string(w, "general.architecture", arch, strlen(arch));
    table_put_keys(w, arch, s);
}

void table_put_keys(gguf_writer *w, const char *arch, const model_shape *s)
{
    const family_table *t = s->family->table;
    for (int32_t i = 0; i < t->n_keys; i++)
        if (has_key(s, &t->keys[i]) && !(t->keys[i].how & READ_ONLY) &&
            !((t->keys[i].how & OMIT_ZERO) && table_value(s, &t->keys[i], 0) == 0))
            put_key(w, arch, s, &t->keys[i]);
    if (t->put)
        t->put(w, arch, s);
}

/* The one number of a list whose items are equal or 0. */
static status read_uniform(const model *m, const model_shape *s, int_key key, int32_t *out, err *e)
{
    int32_t n[LAYERS_MAX], common = 0;
    int64_t least = key.lo;
    key.lo = 0;
    status st = bind_per_layer(m, key, n, s->n_layer, e);
    for (int32_t i = 0; i < s->n_layer && !st; i++) {
        if (n[i] && common && n[i] != common)
            return err_set(e, E_UNSUPPORTED, "%s: %s.%s is %d in layer %d and %d before it",
                           m->file.path, m->arch->name, key.name, n[i], i, common);
        common = n[i] ? n[i] : common;
    }
    if (!st && common < least)
        st = err_set(e, E_FORMAT, "%s: %s.%s is 0", m->file.path, m->arch->name, key.name);
    *out = st ? *out : common;
    return st;
}

static status read_key(const model *m, model_shape *s, const table_key *r, err *e)
{
    const char *name =
        r->or_gguf && !bind_find(m, r->gguf) && bind_find(m, r->or_gguf) ? r->or_gguf : r->gguf;
    double fallback = r->otherwise && r->kind != KEY_YARN ? whole(s, r->otherwise, 0) : r->value;
    int32_t v[LAYERS_MAX];
    status st;
    if (r->kind == KEY_YARN)
        return bind_scaling(m, field(s, r->at), whole(s, r->otherwise, 0), e);
    if (r->how & TOLD) {
        const int64_t told = whole(s, r->at, 0);
        const int_key same = {name, told, told, told};
        if ((double)told < r->least || (double)told > most_of(s, r))
            return err_set(e, E_FORMAT, "%s: its tensors make %s.%s %lld: expected %lld to %lld",
                           m->file.path, m->arch->name, name, (long long)told, (long long)r->least,
                           (long long)most_of(s, r));
        return r->kind == KEY_UNIFORM ? bind_per_layer(m, same, v, s->n_layer, e)
                                      : bind_int(m, same, v, e);
    }
    if (r->same_as)
        return bind_equal(m, r->same_as, name, whole(s, r->at, 0), e);
    if (r->kind == KEY_REAL) {
        double x;
        if (!(r->how & MAY_LACK) && !bind_find(m, name))
            return err_set(e, E_FORMAT, "%s: key %s.%s is missing", m->file.path, m->arch->name,
                           name);
        st = bind_real(m, (real_key){name, r->least, r->most, fallback}, &x, e);
        if (!st && r->at)
            *(double *)field(s, r->at) = x;
        return st;
    }
    const int_key key = {name, (int64_t)r->least, (int64_t)most_of(s, r),
                         r->how & MAY_LACK ? (int64_t)fallback : REQUIRED};
    int32_t n = per_layer(r) ? s->n_layer : 1;
    st = r->kind == KEY_UNIFORM ? read_uniform(m, s, key, v, e)
         : per_layer(r)         ? bind_per_layer(m, key, v, n, e)
                                : bind_int(m, key, v, e);
    for (int32_t il = 0; il < n && !st; il++)
        set_whole(s, r, il, v[il]);
    return st;
}

/* Keys that change the arithmetic of any architecture: a family that has no row of one refuses
 * values that do. */
static const table_key everywhere[] = {
    K("attention.causal", NULL, 0, FLAG, 1, 1, .how = MAY_LACK, .value = 1),
    K("rope.scaling.factor", NULL, 0, REAL, 1, 1, .how = MAY_LACK, .value = 1),
    K("rope.scale_linear", NULL, 0, REAL, 1, 1, .how = MAY_LACK, .value = 1),
};

static bool has_row(const model_shape *s, const char *name)
{
    const family_table *t = s->family->table;
    bool found = false;
    for (const table_key *r = t->keys; r < t->keys + t->n_keys; r++)
        found |= has_key(s, r) &&
                 (!strcmp(r->gguf, name) || (r->kind == KEY_YARN && !strncmp(name, "rope.", 5)));
    return found;
}

status table_read(const model *m, const shape_family *f, model_shape **out, err *e)
{
    const family_table *t = f->table;
    model_shape *s = arena_alloc((arena *)&m->mem, f->shape_bytes);
    status st = OK;
    if (!s)
        return err_memory(e, m->file.path, f->shape_bytes);
    memset(s, 0, f->shape_bytes);
    s->family = f;
    if (t->tell)
        st = t->tell(m, s, e);
    for (int32_t i = 0; i < t->n_keys && !st; i++)
        if (has_key(s, &t->keys[i]) && !(t->keys[i].how & WRITE_ONLY))
            st = read_key(m, s, &t->keys[i], e);
    for (size_t i = 0; i < sizeof everywhere / sizeof *everywhere && !st; i++)
        if (!has_row(s, everywhere[i].gguf))
            st = read_key(m, s, &everywhere[i], e);
    if (!st && t->read)
        st = t->read(m, s, e);
    st = st ? st : t->agree(s, E_FORMAT, m->file.path, e);
    if (!st)
        *out = s;
    return st;
}

void table_cut(model_shape *s, int32_t n_layer)
{
    s->n_layer = n_layer;
}

/* ---- Tensors ---- */

bool table_tied(const model_shape *s, int32_t il)
{
    (void)il;
    return s->tied;
}

bool table_untied(const model_shape *s, int32_t il)
{
    return !table_tied(s, il);
}

/* The row's name in a dialect, without the layer; of tensor i where `each` counts them. */
static void tail_of(const table_tensor *r, int32_t dialect, int32_t i, char out[TAIL_BYTES])
{
    const char *name = dialect && r->also[dialect - 1] ? r->also[dialect - 1] : r->gguf;
    if (r->each)
        snprintf(out, TAIL_BYTES, "%s.%d.weight", name, (int)i);
    else
        snprintf(out, TAIL_BYTES, "%s", name);
}

static void describe(const model_shape *s, int32_t il, const table_tensor *r, int32_t copy,
                     shape_tensor *t)
{
    const family_table *f = s->family->table;
    char tail[TAIL_BYTES];
    *t = (shape_tensor){.role = r->role, .layer = il, .ne = {1, 1, 1, 1}};
    tail_of(r, f->dialect ? whole(s, f->dialect, 0) : 0, copy, tail);
    if (il >= 0) {
        snprintf(t->name, sizeof t->name, "%sblk.%d.%s", f->prefix ? f->prefix : "", (int)il, tail);
        snprintf(t->hf_name, sizeof t->hf_name, "layers.%d.%s", (int)il, r->hf);
    } else {
        snprintf(t->name, sizeof t->name, "%s", tail);
        snprintf(t->hf_name, sizeof t->hf_name, "%s", r->hf);
        if (r->each)
            snprintf(t->hf_name, sizeof t->hf_name, "%s.%d.weight", r->hf, (int)copy);
    }
    for (int i = 0; i < 4 && r->ne[i]; i++) {
        t->ne[i] = (uint64_t)f->dim(s, il, r->ne[i]);
        t->n_dims = i + 1;
    }
    if (f->describe)
        f->describe(s, r, t);
}

/* The rows of a layer or, for il == -1, of the model. */
static const table_tensor *rows_of(const family_table *t, int32_t il, int32_t *n)
{
    *n = il < 0 ? t->n_of_model : t->n_of_layer;
    return il < 0 ? t->of_model : t->of_layer;
}

static int32_t n_copies(const model_shape *s, const table_tensor *r)
{
    return r->each ? whole(s, r->each, 0) : 1;
}

int32_t table_list(const model_shape *s, shape_tensor *out, int32_t cap)
{
    const family_table *t = s->family->table;
    int32_t n = 0, n_rows, n_layers = s->n_layer + (t->nextn ? whole(s, t->nextn, 0) : 0);
    for (int32_t il = -1; il < n_layers; il++) {
        const table_tensor *r = rows_of(t, il, &n_rows);
        for (const table_tensor *end = r + n_rows; r < end; r++) {
            if (r->when && !r->when(s, il))
                continue;
            for (int32_t i = 0; i < n_copies(s, r); i++, n++)
                if (n < cap)
                    describe(s, il, r, i, &out[n]);
        }
    }
    return n;
}

/* The tensor of a row, by whichever of its names the file has, or NULL; tail: that name, or the
 * first. */
static status find_row(const model *m, int32_t il, const table_tensor *r, int32_t copy,
                       const tensor **out, char tail[TAIL_BYTES], err *e)
{
    const tensor *found = NULL;
    char full[NAME_BYTES], name[TAIL_BYTES];
    tail_of(r, 0, copy, tail);
    for (int32_t d = 0; d <= 3; d++) {
        if (d && !r->also[d - 1])
            continue;
        tail_of(r, d, copy, name);
        const tensor *t = tensor_find(&m->file.tensors, bind_name(m, il, name, full, sizeof full));
        if (t && found)
            return err_set(e, E_FORMAT, "%s: tensors %s and %s are the same by two names",
                           m->file.path, found->name, t->name);
        if (t)
            memcpy(tail, name, TAIL_BYTES);
        found = t ? t : found;
    }
    *out = found;
    return OK;
}

status table_find(const model *m, const shape_family *f, table_dim d, const tensor **t, err *e)
{
    char tail[TAIL_BYTES];
    int32_t n;
    const table_tensor alone = {.gguf = d.gguf}, *r = rows_of(f->table, d.il, &n), *end = r + n;
    while (r < end && strcmp(r->gguf, d.gguf) != 0)
        r++;
    return find_row(m, d.il, r < end ? r : &alone, 0, t, tail, e);
}

status table_size(const model *m, const shape_family *f, table_dim d, int32_t *out, err *e)
{
    const tensor *t;
    char name[NAME_BYTES];
    status st = table_find(m, f, d, &t, e);
    if (st)
        return st;
    if (!t)
        return err_set(e, E_FORMAT, "%s: tensor %s is missing", m->file.path,
                       bind_name(m, d.il, d.gguf, name, sizeof name));
    if (t->ne[d.i] < 1 || t->ne[d.i] > (uint64_t)d.most)
        return err_set(e, E_FORMAT, "%s: tensor %s: dimension %d is %" PRIu64 ", expected 1 to %d",
                       m->file.path, t->name, d.i, t->ne[d.i], d.most);
    *out = (int32_t)t->ne[d.i];
    return OK;
}

static status bind_row(const binder *b, const model_shape *s, const table_tensor *r, int32_t i,
                       weight *w)
{
    const family_table *t = s->family->table;
    bool matrix = r->role >= ROLE_HALF || r->role == ROLE_PLE_PROJ;
    bool table = r->role == ROLE_PLE_EMBD;
    char tail[TAIL_BYTES];
    const tensor *found;
    status st = find_row(b->m, b->il, r, i, &found, tail, b->e);
    if (st)
        return st;
    return bind_tensor(b, w, tail,
                       (model_want){.n_in = t->dim(s, b->il, r->ne[0]),
                                    .n_out = r->ne[1] ? t->dim(s, b->il, r->ne[1]) : 1,
                                    .n_mat = 1,
                                    .active = !table,
                                    .f32 = !matrix && !table,
                                    .gather = table || r->role == ROLE_TAPS,
                                    .optional = r->may_lack});
}

status table_bind(const binder *b, const model_shape *s, void *to)
{
    int32_t n_rows;
    const table_tensor *r = rows_of(s->family->table, b->il, &n_rows);
    status st = OK;
    for (const table_tensor *end = r + n_rows; r < end && !st; r++)
        if (r->at && (!r->when || r->when(s, b->il)))
            for (int32_t i = 0; i < n_copies(s, r) && !st; i++)
                st = bind_row(b, s, r, i, (weight *)((char *)to + r->at) + i);
    return st;
}
