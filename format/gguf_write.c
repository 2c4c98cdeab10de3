/* gguf_write.c - writing GGUF v3: declarations into memory, then tensor data straight to disk.
 *
 * Values and tensor records are serialised when they are declared, so the header is two strings.
 * The writer keeps the first failure and gguf_write_header reports it, so callers need no check
 * after each declaration.
 */
#include "format/gguf.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include "num/num.h"

#include <inttypes.h>

enum { ALIGN = 32, VERSION = 3 };

typedef struct {
    uint64_t n_bytes;
    char name[TENSOR_NAME_MAX + 1]; /* for messages */
} declared;

struct gguf_writer {
    file_out out;
    str values, records;
    uint64_t n_values, n_tensors;
    declared *tensor;
    uint64_t tensor_cap;
    uint64_t head_bytes;       /* once written */
    uint64_t data_bytes;       /* with the padding after each tensor */
    uint64_t i_tensor, filled; /* while writing data */
    bool wrote_header, hollow;
    err first; /* the first failure while declaring */
};

status gguf_create(gguf_writer **out, const char *path, err *e)
{
    gguf_writer *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return err_memory(e, path, sizeof *w);
    status st = file_out_open(&w->out, path, e);
    if (st) {
        mem_free(w);
        return st;
    }
    *out = w;
    return OK;
}

static void put_le(str *s, uint64_t v, int n_bytes)
{
    char b[8];
    for (int i = 0; i < n_bytes; i++)
        b[i] = (char)(v >> 8 * i);
    str_put(s, b, (size_t)n_bytes);
}

static void put_gguf_text(str *s, const char *text, uint64_t n)
{
    put_le(s, n, 8);
    str_put(s, text, (size_t)n);
}

static void put_key(gguf_writer *w, const char *key, gguf_kind kind)
{
    put_gguf_text(&w->values, key, strlen(key));
    put_le(&w->values, kind, 4);
    w->n_values++;
}

static void put_array(gguf_writer *w, const char *key, gguf_kind item, uint64_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put_le(&w->values, item, 4);
    put_le(&w->values, n, 8);
}

void gguf_put_u32(gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, GGUF_U32);
    put_le(&w->values, v, 4);
}

void gguf_put_i32(gguf_writer *w, const char *key, int32_t v)
{
    put_key(w, key, GGUF_I32);
    put_le(&w->values, (uint32_t)v, 4);
}

void gguf_put_f32(gguf_writer *w, const char *key, float v)
{
    put_key(w, key, GGUF_F32);
    put_le(&w->values, num_f32_bits(v), 4);
}

void gguf_put_bool(gguf_writer *w, const char *key, bool v)
{
    put_key(w, key, GGUF_BOOL);
    put_le(&w->values, v, 1);
}

void gguf_put_string(gguf_writer *w, const char *key, const char *text, size_t n)
{
    put_key(w, key, GGUF_STRING);
    put_gguf_text(&w->values, text, n);
}

void gguf_put_u32s(gguf_writer *w, const char *key, const uint32_t *v, uint64_t n)
{
    put_array(w, key, GGUF_U32, n);
    for (uint64_t i = 0; i < n; i++)
        put_le(&w->values, v[i], 4);
}

void gguf_put_i32s(gguf_writer *w, const char *key, const int32_t *v, uint64_t n)
{
    put_array(w, key, GGUF_I32, n);
    for (uint64_t i = 0; i < n; i++)
        put_le(&w->values, (uint32_t)v[i], 4);
}

void gguf_put_f32s(gguf_writer *w, const char *key, const float *v, uint64_t n)
{
    put_array(w, key, GGUF_F32, n);
    for (uint64_t i = 0; i < n; i++)
        put_le(&w->values, num_f32_bits(v[i]), 4);
}

void gguf_put_bools(gguf_writer *w, const char *key, const bool *v, uint64_t n)
{
    put_array(w, key, GGUF_BOOL, n);
    for (uint64_t i = 0; i < n; i++)
        put_le(&w->values, v[i], 1);
}

void gguf_put_strings(gguf_writer *w, const char *key, const gguf_string *v, uint64_t n)
{
    put_array(w, key, GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_gguf_text(&w->values, v[i].at, v[i].n);
}

void gguf_put_value(gguf_writer *w, const gguf_value *v)
{
    if (v->kind == GGUF_ARRAY)
        put_array(w, v->key, v->item, v->count);
    else
        put_key(w, v->key, v->kind);
    str_put(&w->values, (const char *)v->bytes, (size_t)v->n_bytes);
}

void gguf_put_tensor(gguf_writer *w, const char *name, uint32_t type, int32_t n_dims,
                     const uint64_t *ne)
{
    tensor t = {.name = name, .type = type, .n_dims = n_dims, .ne = {1, 1, 1, 1}};
    const char *why = NULL;
    uint64_t end;
    if (strlen(name) > TENSOR_NAME_MAX || n_dims < 1 || n_dims > TENSOR_DIMS_MAX) {
        err_set(&w->first, E_ARG, "%s: tensor %.64s: bad name or number of dimensions", w->out.path,
                name);
        return;
    }
    memcpy(t.ne, ne, (size_t)n_dims * sizeof *ne);
    if (!tensor_measure(&t, &why)) {
        char shape[96];
        tensor_shape_text(&t, shape, sizeof shape);
        err_set(&w->first, E_ARG, "%s: tensor %s, %s of %s: %s", w->out.path, name, shape,
                num_name(type), why);
        return;
    }
    if (w->n_tensors == w->tensor_cap) {
        uint64_t cap = w->tensor_cap ? 2 * w->tensor_cap : 256;
        declared *p = mem_realloc(w->tensor, (size_t)cap, sizeof *p);
        if (!p) {
            err_memory(&w->first, w->out.path, (size_t)cap * sizeof *p);
            return;
        }
        w->tensor = p;
        w->tensor_cap = cap;
    }
    declared *d = &w->tensor[w->n_tensors++];
    memset(d->name, 0, sizeof d->name);
    memcpy(d->name, name, strlen(name));
    d->n_bytes = t.n_bytes;
    put_gguf_text(&w->records, name, strlen(name));
    put_le(&w->records, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        put_le(&w->records, ne[i], 8);
    put_le(&w->records, type, 4);
    put_le(&w->records, w->data_bytes, 8);
    if (!ck_add(w->data_bytes, t.n_bytes, &end) || !ck_align(end, ALIGN, &w->data_bytes))
        err_set(&w->first, E_LIMIT, "%s: too large", w->out.path);
}

void gguf_expect_holes(gguf_writer *w)
{
    w->hollow = true;
}

status gguf_write_header(gguf_writer *w, err *e)
{
    str head = {0};
    status st;
    if (w->values.bad || w->records.bad)
        err_memory(&w->first, w->out.path, w->values.n + w->records.n);
    if (w->first.status)
        return err_set(e, w->first.status, "%s", w->first.text);
    str_put(&head, "GGUF", 4);
    put_le(&head, VERSION, 4);
    put_le(&head, w->n_tensors, 8);
    put_le(&head, w->n_values, 8);
    st = head.bad ? err_memory(e, w->out.path, 64) : file_out_write(&w->out, head.at, head.n, e);
    if (!st)
        st = file_out_write(&w->out, w->values.at, w->values.n, e);
    if (!st)
        st = file_out_write(&w->out, w->records.at, w->records.n, e);
    if (!st)
        st = file_out_pad(&w->out, ALIGN, e);
    w->wrote_header = !st;
    w->head_bytes = w->out.at;
    if (!st && !w->hollow) /* a full disk fails now, not after an hour */
        st = file_out_reserve(&w->out, gguf_planned_bytes(w), e);
    str_free(&head);
    str_free(&w->values); /* a vocabulary is tens of megabytes */
    str_free(&w->records);
    return st;
}

/* The current tensor is full. */
static status next_tensor(gguf_writer *w, err *e)
{
    w->i_tensor++;
    w->filled = 0;
    return file_out_pad(&w->out, ALIGN, e);
}

status gguf_write_hole(gguf_writer *w, err *e)
{
    if (w->i_tensor >= w->n_tensors || w->filled)
        return err_set(e, E_ARG, "%s: no tensor begins here", w->out.path);
    status st = file_out_skip(&w->out, w->tensor[w->i_tensor].n_bytes, e);
    return st ? st : next_tensor(w, e);
}

status gguf_write_data(gguf_writer *w, const void *bytes, size_t n, err *e)
{
    const unsigned char *p = bytes;
    status st;
    while (n) {
        if (w->i_tensor >= w->n_tensors)
            return err_set(e, E_ARG, "%s: %zu bytes more than the tensors declared hold",
                           w->out.path, n);
        uint64_t left = w->tensor[w->i_tensor].n_bytes - w->filled;
        size_t step = n < left ? n : (size_t)left;
        if ((st = file_out_write(&w->out, p, step, e)))
            return st;
        p += step;
        n -= step;
        w->filled += step;
        if (w->filled == w->tensor[w->i_tensor].n_bytes && (st = next_tensor(w, e)))
            return st;
    }
    return OK;
}

status gguf_map_written(gguf_writer *w, file_map *m, err *e)
{
    status st = file_out_flush(&w->out, e);
    *m = (file_map){0};
    return st || !w->out.temp[0] ? st : file_map_open(m, w->out.temp, false, NULL, NULL, e);
}

status gguf_commit(gguf_writer *w, err *e)
{
    status st = OK;
    if (!w->wrote_header)
        st = err_set(e, E_ARG, "%s: the header was not written", w->out.path);
    else if (w->i_tensor < w->n_tensors)
        st =
            err_set(e, E_ARG, "%s: tensor %s has %" PRIu64 " of its %" PRIu64 " bytes", w->out.path,
                    w->tensor[w->i_tensor].name, w->filled, w->tensor[w->i_tensor].n_bytes);
    else
        st = file_out_commit(&w->out, e);
    gguf_discard(w); /* removes nothing after a commit */
    return st;
}

void gguf_discard(gguf_writer *w)
{
    if (!w)
        return;
    file_out_discard(&w->out);
    str_free(&w->values);
    str_free(&w->records);
    mem_free(w->tensor);
    mem_free(w);
}

uint64_t gguf_planned_bytes(const gguf_writer *w)
{
    uint64_t head = w->wrote_header ? w->head_bytes : 24 + w->values.n + w->records.n, sum;
    return ck_align(head, ALIGN, &head) && ck_add(head, w->data_bytes, &sum) ? sum : UINT64_MAX;
}
