/* imatrix.c - importance files in both forms. See imatrix.h. */
#include "format/imatrix.h"
#include "base/bytes.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "num/num.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { ENTRIES_MAX = 1 << 20 };
/* Added to a mean of 1: an input that the text never used still counts a little. */
#define LEAST 1e-4f

typedef struct entry {
    const char *name; /* first, for name_index */
    float *value;
    uint64_t n_in, n_mat; /* n_mat 0: n_in is of all matrices, of which there is no number */
} entry;

struct imatrix {
    const char *path;
    arena mem;
    entry *at;
    uint64_t n;
    name_index index;
};

static status damaged(const imatrix *m, const char *name, const char *what, err *e)
{
    return err_set(e, E_FORMAT, "%s: importance of %s: %s", m->path, name, what);
}

/* Takes the n values of a matrix, unaligned, to a mean of 1. */
static status take_values(const imatrix *m, const char *name, const unsigned char *from, float *to,
                          uint64_t n, err *e)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&to[i], from + 4 * i, 4);
        if (!isfinite(to[i]) || to[i] < 0)
            return damaged(m, name, "a sum of squares is negative or not finite", e);
        sum += to[i];
    }
    for (uint64_t i = 0; i < n; i++) /* a matrix that the text never used: all inputs are equal */
        to[i] = (sum > 0 ? (float)(to[i] / (sum / (double)n)) : 1) + LEAST;
    return OK;
}

static status add_entry(imatrix *m, const char *name, size_t n_name, const unsigned char *bytes,
                        uint64_t n_in, uint64_t n_mat, err *e)
{
    entry *x = &m->at[m->n];
    uint64_t n_lists = n_mat ? n_mat : 1, n = n_in * n_lists; /* all are in the file */
    x->n_in = n_in;
    x->n_mat = n_mat;
    x->name = arena_strndup(&m->mem, name, n_name);
    x->value = arena_array(&m->mem, (size_t)n, sizeof *x->value);
    if (!x->name || !x->value)
        return err_memory(e, "an importance file", (size_t)n * sizeof *x->value);
    m->n++;
    for (uint64_t k = 0; k < n_lists; k++) {
        status st = take_values(m, x->name, bytes + 4 * k * n_in, x->value + k * n_in, n_in, e);
        if (st)
            return st;
    }
    return OK;
}

static status take_gguf(imatrix *m, const gguf *g, err *e)
{
    static const char tail[] = ".in_sum2";
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        const tensor *t = &g->tensors.at[i];
        char name[TENSOR_NAME_MAX + 1];
        size_t n = strlen(t->name);
        if (n < sizeof tail || strcmp(t->name + n - (sizeof tail - 1), tail))
            continue;
        n -= sizeof tail - 1;
        snprintf(name, sizeof name, "%.*s.counts", (int)n, t->name);
        const tensor *c = tensor_find(&g->tensors, name);
        uint64_t n_mat = t->ne[1] * t->ne[2] * t->ne[3];
        if (!c || c->n_elements != n_mat || c->type != NUM_F32 || t->type != NUM_F32)
            return damaged(m, t->name, "expected sums and as many counts as matrices, in f32", e);
        status st = add_entry(m, t->name, n, t->bytes, t->ne[0], n_mat, e);
        if (st)
            return st;
    }
    return OK;
}

/* The number of matrices is not in the file: imatrix_find knows it. */
static status take_records(imatrix *m, const void *bytes, uint64_t n_bytes, err *e)
{
    reader r = reader_of(bytes, (size_t)n_bytes);
    uint32_t n = rd_u32(&r);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_name = rd_u32(&r);
        const char *name = rd_bytes(&r, n_name);
        rd_u32(&r); /* calls: a factor of all values */
        uint64_t n_values = rd_u32(&r);
        const unsigned char *value = rd_bytes(&r, 4 * n_values);
        if (r.bad || n_name > TENSOR_NAME_MAX || !n_values || memchr(name, 0, n_name))
            return err_set(e, E_FORMAT,
                           "%s: record %" PRIu32 " of %" PRIu32 " is no importance of a tensor",
                           m->path, i + 1, n);
        status st = add_entry(m, name, n_name, value, n_values, 0, e);
        if (st)
            return st;
    }
    return OK;
}

static status take_file(imatrix *m, const file_map *map, err *e)
{
    uint64_t most = 0;
    gguf g = {0};
    bool is_gguf = map->n_bytes >= 4 && !memcmp(map->bytes, "GGUF", 4);
    status st = OK;
    if (is_gguf && (st = gguf_open(&g, m->path, false, NULL, NULL, e)))
        return st;
    if (is_gguf) {
        most = g.tensors.n;
    } else if (map->n_bytes >= 4) {
        reader r = reader_of(map->bytes, 4);
        most = rd_u32(&r);
        if (most > map->n_bytes / 16) /* the smallest record */
            most = 0;
    }
    if (most == 0 || most > ENTRIES_MAX)
        st = err_set(e, E_FORMAT, "%s is no importance file", m->path);
    else if (!(m->at = arena_array(&m->mem, (size_t)most, sizeof *m->at)))
        st = err_memory(e, "an importance file", (size_t)most * sizeof *m->at);
    else
        st = is_gguf ? take_gguf(m, &g, e) : take_records(m, map->bytes, map->n_bytes, e);
    gguf_close(&g);
    return st;
}

status imatrix_open(imatrix **out, const char *path, err *e)
{
    imatrix *m = mem_calloc(1, sizeof *m);
    file_map map = {0};
    const char *twice = NULL;
    status st;
    *out = NULL;
    if (!m)
        return err_memory(e, "an importance file", sizeof *m);
    m->path = path;
    if ((st = file_map_open(&map, path, false, NULL, NULL, e)) || (st = take_file(m, &map, e)))
        goto out;
    if (m->n == 0)
        st =
            err_set(e, E_FORMAT, "%s: no tensor NAME.in_sum2, so this is no importance file", path);
    else if (!name_index_build(&m->index, &m->mem, m->at, sizeof *m->at, m->n, &twice))
        st = err_memory(e, "an importance file", (size_t)m->n * sizeof *m->at);
    else if (twice)
        st = err_set(e, E_FORMAT, "%s: importance of %s occurs twice", path, twice);
out:
    file_map_close(&map);
    if (st) {
        imatrix_close(m);
        return st;
    }
    *out = m;
    return OK;
}

void imatrix_close(imatrix *m)
{
    if (m)
        arena_free(&m->mem);
    mem_free(m);
}

status imatrix_find(const imatrix *m, const char *name, uint64_t n_in, uint64_t n_mat,
                    const float **out, err *e)
{
    int64_t i = name_index_find(&m->index, m->at, sizeof *m->at, name);
    *out = NULL;
    if (i < 0)
        return OK;
    const entry *x = &m->at[i];
    if (!x->n_mat && x->n_in != n_in * n_mat)
        return err_set(e, E_FORMAT,
                       "%s: importance of %s: %" PRIu64 " values, the tensor has %" PRIu64
                       " inputs of %" PRIu64 " matrices",
                       m->path, name, x->n_in, n_in, n_mat);
    if (x->n_mat && (x->n_in != n_in || x->n_mat != n_mat))
        return err_set(e, E_FORMAT,
                       "%s: importance of %s: %" PRIu64 " inputs of %" PRIu64
                       " matrices, the tensor has %" PRIu64 " of %" PRIu64,
                       m->path, name, x->n_in, x->n_mat, n_in, n_mat);
    *out = x->value;
    return OK;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static status write_sums(gguf_writer *w, const imatrix_sums *x, err *e)
{
    float v[1024];
    uint64_t n = x->n_in * x->n_mat;
    for (uint64_t at = 0, part; at < n; at += part) {
        part = n - at < 1024 ? n - at : 1024;
        for (uint64_t i = 0; i < part; i++) {
            v[i] = (float)x->sum2[at + i];
            if (!isfinite(v[i]))
                return err_set(e, E_NUMERIC,
                               "inputs of tensor %s have a sum of squares that is not finite",
                               x->name);
        }
        status st = gguf_write_data(w, v, (size_t)part * sizeof *v, e);
        if (st)
            return st;
    }
    for (uint64_t k = 0; k < x->n_mat; k++) {
        float rows = (float)x->n[k];
        status st = gguf_write_data(w, &rows, sizeof rows, e);
        if (st)
            return st;
    }
    return OK;
}

status imatrix_write(const char *path, const imatrix_sums *x, uint64_t n,
                     const imatrix_source *from, err *e)
{
    gguf_writer *w;
    for (uint64_t i = 0; i < n; i++)
        if (strlen(x[i].name) + sizeof ".in_sum2" - 1 > TENSOR_NAME_MAX)
            return err_set(e, E_LIMIT, "tensor %s: the name is too long for an importance file",
                           x[i].name);
    status st = gguf_create(&w, path, e);
    if (st)
        return st;
    gguf_put_string(w, "general.type", "imatrix", 7);
    gguf_put_strings(w, "imatrix.datasets", &(gguf_string){from->text, strlen(from->text)}, 1);
    gguf_put_u32(w, "imatrix.chunk_count", from->n_chunks);
    gguf_put_u32(w, "imatrix.chunk_size", from->chunk_size);
    for (uint64_t i = 0; i < n; i++) {
        char name[TENSOR_NAME_MAX + 1];
        snprintf(name, sizeof name, "%s.in_sum2", x[i].name);
        gguf_put_tensor(w, name, NUM_F32, 2, (uint64_t[]){x[i].n_in, x[i].n_mat});
        snprintf(name, sizeof name, "%s.counts", x[i].name);
        gguf_put_tensor(w, name, NUM_F32, 2, (uint64_t[]){1, x[i].n_mat});
    }
    st = gguf_write_header(w, e);
    for (uint64_t i = 0; i < n && !st; i++)
        st = write_sums(w, &x[i], e);
    if (!st)
        return gguf_commit(w, e);
    gguf_discard(w);
    return st;
}
