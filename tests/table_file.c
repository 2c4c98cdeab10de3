/* table_file.c - see table_file.h. */
#include "tests/table_file.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/audio.h"
#include "tests/auto.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 32, FILE_MOST = 1 << 26 };

int32_t table_file_sizes(table_file_name *name, int32_t cap)
{
    int32_t n = 0;
    for (int32_t i = 0; shape_family_at(i); i++)
        for (const char *p = shape_family_at(i)->sizes; p && !shape_family_at(i)->drafter;
             p = strchr(p, ',')) {
            p += strspn(p, ", ");
            if (!strncmp(p, "tiny", 4) && n < cap)
                snprintf(name[n++], sizeof *name, "%.*s", (int)strcspn(p, ","), p);
        }
    return n;
}

/* Only its keys are read: it has one tensor, so that it is a file. */
static status make_keys(table_file *f, const char *path, err *e)
{
    gguf_writer *w = NULL;
    const float zero = 0;
    status st = gguf_create(&w, path, e);
    if (st)
        return st;
    f->shape->family->put(w, f->shape);
    gguf_put_tensor(w, "zero", NUM_F32, 1, (const uint64_t[]){1});
    if ((st = gguf_write_header(w, e)) || (st = gguf_write_data(w, &zero, sizeof zero, e))) {
        gguf_discard(w);
        return st;
    }
    st = gguf_commit(w, e);
    return st ? st : gguf_open(&f->made, path, true, NULL, NULL, e);
}

bool table_file_make(table_file *f, const char *size)
{
    char dir[] = "/tmp/carat-table-XXXXXX", path[64];
    err e = {0};
    memset(f, 0, sizeof *f);
    if (!mkdtemp(dir))
        return false;
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    bool made = !shape_named(size, &f->shape, &e) && !make_keys(f, path, &e) &&
                f->made.n_values + 2 <= TABLE_FILE_KEYS;
    unlink(path);
    rmdir(dir);
    if (made) {
        gguf_string arch;
        gguf_get_string(&f->made, "general.architecture", &arch);
        f->arch = arena_strndup(&f->made.mem, arch.at, (size_t)arch.n);
        table_file_reset(f);
    }
    f->bytes = made ? mem_calloc(1, FILE_MOST) : NULL;
    return made && f->arch && f->bytes;
}

/* The shape's tensors, as its family lists them. */
static void list_tensors(table_file *f)
{
    int32_t n = f->shape->family->list(f->shape, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    f->n_listed = list ? f->shape->family->list(f->shape, list, n) : 0;
    f->n_listed = n < TABLE_FILE_TENSORS ? f->n_listed : TABLE_FILE_TENSORS;
    for (int32_t i = 0; i < f->n_listed; i++) {
        table_file_tensor *t = &f->listed[i];
        *t = (table_file_tensor){.layer = list[i].layer,
                                 .role = list[i].role,
                                 .n_dims = (uint32_t)list[i].n_dims,
                                 .type = NUM_F32};
        snprintf(t->name, sizeof t->name, "%s", list[i].name);
        memcpy(t->ne, list[i].ne, sizeof t->ne);
    }
}

void table_file_reset(table_file *f)
{
    if (!f->n_listed)
        list_tensors(f);
    f->n_keys = (int32_t)f->made.n_values;
    memcpy(f->key, f->made.value, (size_t)f->n_keys * sizeof *f->key);
    f->n_tensors = f->n_listed;
    memcpy(f->tensor, f->listed, (size_t)f->n_listed * sizeof *f->tensor);
}

void table_file_free(table_file *f)
{
    gguf_close(&f->made);
    mem_free(f->bytes);
    mem_free(f->shape);
    memset(f, 0, sizeof *f);
}

gguf_value *table_file_key(table_file *f, const char *key)
{
    for (int32_t i = 0; i < f->n_keys; i++)
        if (!strcmp(f->key[i].key, key))
            return &f->key[i];
    return NULL;
}

static void put(str *s, uint64_t v, int n_bytes)
{
    char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(v >> 8 * i);
    str_put(s, bytes, (size_t)n_bytes);
}

static void put_text(str *s, const char *text)
{
    put(s, strlen(text), 8);
    str_puts(s, text);
}

/* Its bytes, with padding; 0 where it cannot be measured or is too large: the reader refuses it. */
static uint64_t data_bytes(const table_file_tensor *t)
{
    tensor x = {.type = t->type, .n_dims = (int)t->n_dims};
    const char *why;
    memcpy(x.ne, t->ne, sizeof x.ne);
    bool fits = tensor_measure(&x, &why) && x.n_bytes < FILE_MOST;
    return fits ? (x.n_bytes + ALIGN - 1) / ALIGN * ALIGN : 0;
}

/* All before the data, whose bytes it returns. */
static uint64_t write_head(const table_file *f, str *s)
{
    uint64_t at = 0;
    str_puts(s, "GGUF");
    put(s, 3, 4);
    put(s, (uint64_t)f->n_tensors, 8);
    put(s, (uint64_t)f->n_keys, 8);
    for (int32_t i = 0; i < f->n_keys; i++) {
        const gguf_value *v = &f->key[i];
        put_text(s, v->key);
        put(s, v->kind, 4);
        if (v->kind == GGUF_ARRAY) {
            put(s, v->item, 4);
            put(s, v->count, 8);
        }
        str_put(s, (const char *)v->bytes, (size_t)v->n_bytes);
    }
    for (int32_t i = 0; i < f->n_tensors; i++) {
        const table_file_tensor *t = &f->tensor[i];
        put_text(s, t->name);
        put(s, t->n_dims, 4);
        for (uint32_t d = 0; d < t->n_dims; d++)
            put(s, t->ne[d], 8);
        put(s, t->type, 4);
        put(s, at, 8);
        at += data_bytes(t);
    }
    while (s->n % ALIGN)
        str_putc(s, 0);
    return at;
}

/* Factors of rotation, in the data, are ones. Those of the file before are zeros again. */
static void put_factors(table_file *f, size_t data)
{
    static const unsigned char one[] = {0, 0, 0x80, 0x3f};
    memset(f->bytes + f->ones, 0, f->ones_end - f->ones);
    f->ones = f->ones_end = 0;
    for (int32_t i = 0; i < f->n_tensors; i++) {
        size_t n = (size_t)data_bytes(&f->tensor[i]);
        bool ones = f->tensor[i].role == ROLE_ROPE_FACTORS;
        for (size_t k = 0; ones && k < n; k++)
            f->bytes[data + k] = one[k % sizeof one];
        data += n;
        f->ones = ones && !f->ones_end ? data - n : f->ones;
        f->ones_end = ones ? data : f->ones_end;
    }
}

/* ears: as its audio tower. */
static status bind_as(table_file *f, bool ears, model *m, err *e)
{
    str s = {0};
    gguf g = {0};
    *m = (model){0};
    uint64_t n = write_head(f, &s);
    if (s.bad || s.n + n > FILE_MOST) {
        str_free(&s);
        return err_set(e, E_LIMIT, "a file of the test: more than %d bytes", FILE_MOST);
    }
    if (f->head > s.n)
        memset(f->bytes + s.n, 0, f->head - s.n);
    put_factors(f, s.n);
    memcpy(f->bytes, s.at, s.n);
    f->head = s.n;
    status st = gguf_open_bytes(&g, f->bytes, s.n + n, "a file", e);
    if (!st && (!ears || audio_in_file(&g)))
        st = ears ? model_bind_audio(m, &g, e) : model_bind(m, &g, e);
    gguf_close(&g);
    str_free(&s);
    return st;
}

status table_file_bind(table_file *f, model *m, err *e)
{
    return bind_as(f, false, m, e);
}

status table_file_open(table_file *f, err *e)
{
    AUTO(model_free) model m;
    err own = {0};
    status st = table_file_bind(f, &m, e);
    model_free(&m);
    status heard = bind_as(f, true, &m, st ? &own : e);
    return st ? st : heard;
}
