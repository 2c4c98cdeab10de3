/* table_rows_test.c - every row of every family: files whose key or tensor is absent, of another
 * type, out of its range, doubled, or strange are refused by a sentence that names it. */
#include "model/gemma4_vision.h"
#include "model/table.h"
#include "tests/table_file.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static int32_t n_refused;

/* The file is refused, by a sentence that names `key`. */
static void refused(table_file *f, const char *key, const char *what)
{
    err e = {0};
    status st = table_file_open(f, &e);
    CHECK_MSG(st, "%s: %s: %s was taken", f->shape->name, key, what);
    CHECK_MSG(!st || strstr(e.text, key), "%s: %s: %s: %s", f->shape->name, key, what, e.text);
    n_refused++;
}

/* With this value of the key, which the file may have or lack. */
static void try_value(table_file *f, const char *key, gguf_value v, const char *what)
{
    gguf_value *at = table_file_key(f, key);
    at = at ? at : &f->key[f->n_keys++];
    v.key = key;
    *at = v;
    refused(f, key, what);
    table_file_reset(f);
}

static gguf_value number(gguf_kind kind, const void *bytes)
{
    return (gguf_value){
        .kind = kind, .count = 1, .bytes = bytes, .n_bytes = kind == GGUF_U32 ? 4 : 8};
}

static void try_types(table_file *f, const table_key *r, const char *key)
{
    static const unsigned char text[] = {1, 0, 0, 0, 0, 0, 0, 0, 'x'}, zeros[8 * LAYERS_MAX];
    bool layers = r->kind == KEY_COUNTS || r->kind == KEY_LIST || r->kind == KEY_FLAGS ||
                  r->kind == KEY_UNIFORM;
    try_value(f, key, (gguf_value){.kind = GGUF_STRING, .count = 1, .bytes = text, .n_bytes = 9},
              "a text");
    uint64_t n = (uint64_t)(layers ? f->shape->n_layer + 7 : 1);
    try_value(
        f, key,
        (gguf_value){
            .kind = GGUF_ARRAY, .item = GGUF_U32, .count = n, .bytes = zeros, .n_bytes = 4 * n},
        "a list of another length");
}

static void try_ranges(table_file *f, const table_key *r, const char *key)
{
    bool flag = r->kind == KEY_FLAG || r->kind == KEY_FLAGS;
    if (r->kind == KEY_REAL) {
        const double v[] = {r->least - fmax(1, fabs(r->least)), r->most * 2 + 1, NAN, INFINITY};
        for (int i = 0; i < 4; i++)
            try_value(f, key, number(GGUF_F64, &v[i]), "a number out of its range");
        return;
    }
    const int64_t v[] = {flag ? -1 : (int64_t)r->least - 1, flag ? 2 : (int64_t)r->most + 1,
                         INT64_MIN, INT64_MAX};
    for (int i = 0; i < 4; i++)
        try_value(f, key, number(GGUF_I64, &v[i]), "a number out of its range");
}

static void try_absent(table_file *f, const table_key *r, const char *key)
{
    gguf_value *at = table_file_key(f, key);
    if (!at)
        return;
    gguf_value twin = *at;
    *at = f->key[--f->n_keys];
    if (!(r->how & MAY_LACK) && !r->same_as)
        refused(f, key, "its absence");
    table_file_reset(f);
    f->key[f->n_keys++] = twin;
    refused(f, key, "twice");
    table_file_reset(f);
}

static void walk_keys(table_file *f, const model_shape *s)
{
    const family_table *t = s->family->table;
    for (int32_t i = 0; i < t->n_keys; i++) {
        const table_key *r = &t->keys[i];
        char key[160];
        if (!r->gguf || r->kind == KEY_YARN || (r->how & WRITE_ONLY) || (r->when && !r->when(s)))
            continue;
        snprintf(key, sizeof key, "%s.%s", f->arch, r->gguf);
        try_absent(f, r, key);
        try_types(f, r, key);
        try_ranges(f, r, key);
    }
}

/* The audio tower in a vision tower's file; NULL: none. */
static const model_shape *ears_of(const model_shape *s)
{
    const model_shape *ears = NULL;
    if (s->family == &gemma4v_shapes)
        ears = &((const gemma4v_shape *)s)->ears.common;
    else if (s->family == &gemma4uv_shapes)
        ears = &((const gemma4uv_shape *)s)->ears.common;
    return ears && ears->family ? ears : NULL;
}

/* The row of a tensor; NULL: it has none. */
static const table_tensor *row_of(const model_shape *s, const table_file_tensor *x)
{
    const family_table *t = s->family->table;
    size_t skip = t->prefix ? strlen(t->prefix) : 0;
    /* Of a layer: behind its group, blk or another, and its number. */
    const char *tail = x->layer < 0 ? x->name : strchr(strchr(x->name + skip, '.') + 1, '.') + 1;
    const table_tensor *r = x->layer < 0 ? t->of_model : t->of_layer;
    for (int32_t n = x->layer < 0 ? t->n_of_model : t->n_of_layer; n > 0; n--, r++)
        if (!strcmp(r->gguf, tail) && (!r->when || r->when(s, x->layer)))
            return r;
    return NULL;
}

/* A tensor whose shape tells a size is right, and another of that size is called wrong. */
static const char *called(const char *name, int axis)
{
    return axis && !strcmp(name, "a.pre_encode.out.weight")   ? "a.pre_encode.out.bias"
           : !axis && !strcmp(name, "a.blk.0.conv_dw.weight") ? "a.blk.1.conv_dw.weight"
                                                              : name;
}

static void walk_tensors(table_file *f)
{
    for (int32_t i = 0; i < f->n_tensors; i++) {
        table_file_tensor *x = &f->tensor[i], old = *x;
        bool heard = !strncmp(x->name, "a.", 2) || !strncmp(x->name, "mm.a.", 5);
        const model_shape *s = heard ? ears_of(f->shape) : f->shape;
        const table_tensor *r = s ? row_of(s, x) : NULL;
        CHECK_MSG(r, "%s: no row of %s", f->shape->name, x->name);
        if (!r || x->layer >= s->n_layer || (x->layer > 0 && x->layer < s->n_layer - 1))
            continue; /* a NextN layer is a drafter's; layers in the middle are like the first */
        if (r->at) {  /* what the family binds itself may have other spellings and dims */
            x->ne[0] += 32;
            refused(f, called(old.name, 0), "longer rows");
            *x = old;
            if (r->ne[1]) {
                x->ne[1]++;
                refused(f, called(old.name, 1), "another row");
                *x = old;
            }
        }
        if (r->at && !r->may_lack) {
            *x = f->tensor[--f->n_tensors];
            refused(f, old.name, "its absence");
            f->tensor[f->n_tensors++] = *x;
            *x = old;
        }
        x->type = 200;
        refused(f, old.name, "an unknown type");
        *x = old;
    }
    if (f->n_tensors + 1 > TABLE_FILE_TENSORS)
        return;
    static const char *const strange[] = {"blk.0.nonsense.weight", "nonsense",
                                          "blk.400.ffn_up.weight", "blk.-1.attn_norm.weight",
                                          "a.blk.0.nonsense.weight"};
    for (int i = 0; i < (ears_of(f->shape) ? 5 : 4); i++) {
        table_file_tensor *x = &f->tensor[f->n_tensors++];
        *x = (table_file_tensor){.ne = {32, 1, 1, 1}, .n_dims = 1, .type = NUM_F32};
        snprintf(x->name, sizeof x->name, "%s", strange[i]);
        refused(f, strange[i], "its presence");
        f->n_tensors--;
    }
    f->tensor[f->n_tensors] = f->tensor[0];
    f->n_tensors++;
    refused(f, f->tensor[0].name, "twice");
    table_file_reset(f);
}

TEST(rows_of_every_family_refuse_by_name)
{
    static table_file f;
    table_file_name name[32];
    int32_t n = table_file_sizes(name, 32);
    CHECK(n >= 4);
    for (int32_t i = 0; i < n; i++) {
        err e = {0};
        bool made = table_file_make(&f, name[i]);
        CHECK_MSG(made, "%s", name[i]);
        if (made) {
            CHECK_OK(table_file_open(&f, &e), e);
            walk_keys(&f, f.shape);
            if (ears_of(f.shape))
                walk_keys(&f, ears_of(f.shape));
            walk_tensors(&f);
        }
        table_file_free(&f);
    }
    CHECK(n_refused > 1500);
}

/* Of keys that no row of the family reads, those that change any model's arithmetic. */
TEST(keys_of_every_architecture_are_read_or_refused)
{
    static table_file f;
    static const char *const sizes[] = {"tiny-dense", "tiny-qwen3", "tiny-qwen35", "tiny-llama3",
                                        "tiny-gemma3"};
    const float four = 4, one = 1;
    const unsigned char no = 0, yes = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char causal[80], factor[80];
        err e = {0};
        CHECK(table_file_make(&f, sizes[i]));
        snprintf(causal, sizeof causal, "%s.attention.causal", f.arch);
        snprintf(factor, sizeof factor, "%s.rope.scale_linear", f.arch);
        gguf_value flag = {
            .key = causal, .kind = GGUF_BOOL, .count = 1, .bytes = &no, .n_bytes = 1};
        try_value(&f, causal, flag, "tokens that see later ones");
        flag.bytes = &yes;
        f.key[f.n_keys++] = flag;
        CHECK_OK(table_file_open(&f, &e), e);
        table_file_reset(&f);
        gguf_value real = {.key = factor,
                           .kind = GGUF_F32,
                           .count = 1,
                           .bytes = (const unsigned char *)&four,
                           .n_bytes = 4};
        if (i == 0) /* of the others it is the factor of the rotation */
            try_value(&f, factor, real, "a stretched rotation");
        real.bytes = (const unsigned char *)&one;
        f.key[f.n_keys++] = real;
        CHECK_OK(table_file_open(&f, &e), e);
        table_file_free(&f);
    }
}

/* Callers of the library may give no place for an error. */
TEST(every_family_refuses_without_a_place_for_errors)
{
    static table_file f;
    table_file_name name[32];
    int32_t n = table_file_sizes(name, 32);
    for (int32_t i = 0; i < n; i++) {
        model m;
        CHECK(table_file_make(&f, name[i]));
        gguf_value *arch = table_file_key(&f, "general.architecture");
        f.key[0] = *arch;
        f.n_keys = 1;
        CHECK_MSG(table_file_bind(&f, &m, NULL), "%s", name[i]);
        model_free(&m);
        table_file_free(&f);
    }
}

TEST(near_families_are_refused_by_what_they_have)
{
    static table_file f;
    static const char *const near[] = {"qwen3next", "gemma3n", "llama4", "phi3"};
    CHECK(table_file_make(&f, "tiny-qwen3"));
    for (int i = 0; i < 4; i++) {
        unsigned char text[24] = {(unsigned char)strlen(near[i])};
        char want[64];
        err e = {0};
        memcpy(text + 8, near[i], strlen(near[i]));
        gguf_value *v = table_file_key(&f, "general.architecture");
        v->bytes = text;
        v->n_bytes = 8 + strlen(near[i]);
        CHECK_STATUS(table_file_open(&f, &e), E_UNSUPPORTED);
        bool known = i < 3; /* what it has beside the family that it is near */
        snprintf(want, sizeof want, "a file: architecture %s%s%s is not supported%s",
                 known ? "" : "'", near[i], known ? "" : "'",
                 known ? ": " : " (these are: gemma4,");
        CHECK_MSG(!strncmp(e.text, want, strlen(want)), "%s", e.text);
        CHECK_MSG(known || strstr(e.text, "gpt-oss, llama, mistral3, qwen35, qwen35moe)"), "%s",
                  e.text);
    }
    table_file_free(&f);
}
