/* safetensors.c - see safetensors.h.
 *
 *   u64 header length | header: {"name": {"dtype", "shape", "data_offsets": [from, to]}} | data
 *
 * A sharded set is a JSON index that maps names to files beside it. A file name with a slash is
 * refused, so an index cannot make carat read files elsewhere.
 */
#include "format/safetensors.h"
#include "base/bytes.h"
#include "base/json.h"
#include "num/num.h"

#include <inttypes.h>
#include <sys/stat.h>

enum {
    HEADER_MAX = 100 << 20, /* the reference implementation's limit */
    INDEX_MAX = 100 << 20,
    PARTS_MAX = 4096,
    DIMS_MAX = 16 /* vision towers have 5; beyond this it is nonsense */
};

static const struct {
    const char *name;
    num_type type;
} dtypes[] = {{"F32", NUM_F32}, {"F16", NUM_F16}, {"BF16", NUM_BF16}, {"F64", NUM_F64},
              {"I8", NUM_I8},   {"U8", NUM_I8},   {"BOOL", NUM_I8},   {"I16", NUM_I16},
              {"U16", NUM_I16}, {"I32", NUM_I32}, {"U32", NUM_I32},   {"I64", NUM_I64},
              {"U64", NUM_I64}};

static bool parse_dtype(const char *name, uint32_t *type)
{
    for (size_t i = 0; name && i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *type = dtypes[i].type;
            return true;
        }
    return false;
}

/* A JSON integer that is not negative. */
static bool json_u64(const json_t *v, uint64_t *out)
{
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 0)
        return false;
    *out = (uint64_t)i;
    return true;
}

/* "shape": [outermost, ..., contiguous] into ne, reversed. */
static bool read_header_shape(const json_t *shape, tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > DIMS_MAX)
        return false;
    t->n_dims = n < 1 ? 1 : n < TENSOR_DIMS_MAX ? (int32_t)n : TENSOR_DIMS_MAX;
    for (int i = 0; i < TENSOR_DIMS_MAX; i++)
        t->ne[i] = 1;
    for (size_t i = 0; i < n; i++) {
        size_t to = i < TENSOR_DIMS_MAX ? i : TENSOR_DIMS_MAX - 1;
        uint64_t v;
        if (!json_u64(json_array_get(shape, n - 1 - i), &v) || !ck_mul(t->ne[to], v, &t->ne[to]))
            return false;
    }
    return true;
}

/* A file whose header is being read. */
typedef struct entries {
    const char *path;
    const file_map *m;
    uint64_t data; /* where the header ends */
    arena *mem;
} entries;

static status read_entry(const entries *f, const char *name, const json_t *v, tensor *t, err *e)
{
    const char *path = f->path;
    uint64_t n_data = f->m->n_bytes - f->data;
    const char *dtype = json_string_value(json_object_get(v, "dtype")), *why;
    const json_t *at = json_object_get(v, "data_offsets");
    uint64_t from, to;
    size_t n_name = strlen(name);
    if (n_name < 1 || n_name > TENSOR_NAME_MAX)
        return err_set(e, E_FORMAT, "%s: a tensor name of %zu bytes, expected 1 to %d", path,
                       n_name, TENSOR_NAME_MAX);
    if (!(t->name = arena_strndup(f->mem, name, n_name)))
        return err_memory(e, path, n_name);
    if (!dtype)
        return err_set(e, E_FORMAT, "%s: tensor %s has no dtype", path, name);
    if (!parse_dtype(dtype, &t->type))
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor %s has the dtype %.32s, which carat does not read", path, name,
                       dtype);
    if (!read_header_shape(json_object_get(v, "shape"), t))
        return err_set(e, E_FORMAT, "%s: tensor %s has no valid shape", path, name);
    if (!tensor_measure(t, &why))
        return err_set(e, E_FORMAT, "%s: tensor %s: %s", path, name, why);
    if (json_array_size(at) != 2 || !json_u64(json_array_get(at, 0), &from) ||
        !json_u64(json_array_get(at, 1), &to) || from > to || to > n_data)
        return err_set(e, E_FORMAT,
                       "%s: tensor %s has data_offsets outside the %" PRIu64 " bytes of data "
                       "(truncated?)",
                       path, name, n_data);
    if (to - from != t->n_bytes)
        return err_set(e, E_FORMAT, "%s: tensor %s has %" PRIu64 " bytes, its shape needs %" PRIu64,
                       path, name, to - from, t->n_bytes);
    t->offset = f->data + from;
    t->bytes = f->m->bytes + t->offset;
    return OK;
}

/* The header as a tree, and where the data starts. */
static status read_header(const char *path, const file_map *m, json_t **head, uint64_t *data,
                          err *e)
{
    reader r = reader_of(m->bytes, (size_t)m->n_bytes);
    uint64_t n = rd_u64(&r);
    *head = NULL;
    if (r.bad || n < 2 || n > HEADER_MAX || n > reader_left(&r))
        return err_set(e, E_FORMAT,
                       "%s: not a safetensors file (a header of %" PRIu64
                       " bytes in a file of %" PRIu64 ")",
                       path, n, m->n_bytes);
    if (*r.at !=
        '{') /* a rule of the format; it also avoids parsing large files of other formats */
        return err_set(e, E_FORMAT, "%s: not a safetensors file (its header is no JSON object)",
                       path);
    status st = json_parse(head, (const char *)r.at, (size_t)n, path, e);
    if (st)
        return st;
    if (!json_is_object(*head)) {
        json_decref(*head);
        *head = NULL;
        return err_set(e, E_FORMAT, "%s: the header is no JSON object", path);
    }
    *data = 8 + n;
    return OK;
}

/* Appends the tensors of one file; the array grows by copying within the arena. */
static status read_shard(safetensors *s, int32_t i_part, err *e)
{
    const char *path = s->part_path[i_part], *name;
    const file_map *m = &s->part[i_part];
    json_t *head, *v;
    uint64_t data = 0;
    status st = read_header(path, m, &head, &data, e);
    if (st)
        return st;
    uint64_t n = s->tensors.n + json_object_size(head);
    tensor *t = n <= TENSOR_COUNT_MAX ? arena_array(&s->mem, (size_t)n, sizeof *t) : NULL;
    if (n > TENSOR_COUNT_MAX)
        st = err_set(e, E_FORMAT, "%s: %" PRIu64 " tensors, at most %d are read", path, n,
                     TENSOR_COUNT_MAX);
    else if (!t)
        st = err_memory(e, path, (size_t)n * sizeof *t);
    if (st)
        goto out;
    if (s->tensors.n)
        memcpy(t, s->tensors.at, (size_t)s->tensors.n * sizeof *t);
    s->tensors.at = t;
    const entries f = {path, m, data, &s->mem};
    json_object_foreach(head, name, v)
    {
        if (!strcmp(name, "__metadata__")) {
            const char *format = json_string_value(json_object_get(v, "format"));
            s->by_mlx |= format && !strcmp(format, "mlx");
            continue;
        }
        t = &s->tensors.at[s->tensors.n];
        t->part = i_part;
        if ((st = read_entry(&f, name, v, t, e)))
            goto out;
        s->tensors.n++;
    }
out:
    json_decref(head);
    return st;
}

static status finish(safetensors *s, const char *path, err *e)
{
    status st = tensor_set_index(&s->tensors, &s->mem, path, e);
    return st ? st : tensor_set_check_overlap(&s->tensors, &s->mem, path, e);
}

/* dir/name in the arena; name is one component. */
static const char *beside(arena *mem, const char *dir, size_t n_dir, const char *name)
{
    size_t n = strlen(name);
    char *p = arena_alloc(mem, n_dir + n + 2);
    if (!p)
        return NULL;
    memcpy(p, dir, n_dir);
    if (n_dir)
        p[n_dir++] = '/';
    memcpy(p + n_dir, name, n);
    return p;
}

static status reserve_parts(safetensors *s, int32_t cap, err *e)
{
    s->part = arena_array(&s->mem, (size_t)cap, sizeof *s->part);
    s->part_path = arena_array(&s->mem, (size_t)cap, sizeof *s->part_path);
    return s->part && s->part_path ? OK : err_memory(e, "safetensors", (size_t)cap * 32);
}

static status add_shard(safetensors *s, const char *path, err *e)
{
    status st = file_map_open(&s->part[s->n_parts], path, false, NULL, NULL, e);
    if (st)
        return st;
    s->part_path[s->n_parts] = path;
    return read_shard(s, s->n_parts++, e);
}

/* The file names of an index, each once, in order of first mention; then what it promises. */
static status open_index(safetensors *s, const char *path, err *e)
{
    size_t n_dir = 0;
    json_t *root, *v;
    const char *name, *slash = strrchr(path, '/');
    status st = json_parse_file(&root, path, INDEX_MAX, e);
    if (st)
        return st;
    if (slash)
        n_dir = (size_t)(slash - path);
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || !json_object_size(map)) {
        st = err_set(e, E_FORMAT, "%s: has no weight_map", path);
        goto out;
    }
    if ((st = reserve_parts(s, PARTS_MAX, e)))
        goto out;
    json_object_foreach((json_t *)map, name, v)
    {
        const char *file = json_string_value(v);
        size_t skip = n_dir + (n_dir > 0);
        int32_t i = 0;
        if (!file || !*file || strchr(file, '/') || !strcmp(file, "..")) {
            st = err_set(e, E_FORMAT, "%s: weight_map names no plain file for %s", path, name);
            goto out;
        }
        while (i < s->n_parts && strcmp(s->part_path[i] + skip, file))
            i++;
        if (i < s->n_parts)
            continue;
        if (s->n_parts == PARTS_MAX) {
            st = err_set(e, E_FORMAT, "%s: more than %d files", path, PARTS_MAX);
            goto out;
        }
        const char *part = beside(&s->mem, path, n_dir, file);
        st = part ? add_shard(s, part, e) : err_memory(e, path, strlen(file));
        if (st)
            goto out;
    }
    if ((st = finish(s, path, e)))
        goto out;
    json_object_foreach((json_t *)map, name, v)
    {
        const tensor *t = tensor_find(&s->tensors, name);
        size_t skip = n_dir + (n_dir > 0);
        if (!t || strcmp(s->part_path[t->part] + skip, json_string_value(v))) {
            st = err_set(e, E_FORMAT, "%s: tensor %s is not in %s, as weight_map says", path, name,
                         json_string_value(v));
            goto out;
        }
    }
out:
    json_decref(root);
    return st;
}

static bool exists(const char *path)
{
    struct stat sb;
    return !stat(path, &sb);
}

status safetensors_open(safetensors *s, const char *path, err *e)
{
    static const char index_name[] = "model.safetensors.index.json";
    struct stat sb;
    size_t n = strlen(path);
    status st = OK;
    *s = (safetensors){0};
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) {
        while (n > 1 && path[n - 1] == '/')
            n--;
        const char *index = beside(&s->mem, path, n, index_name);
        const char *whole = beside(&s->mem, path, n, "model.safetensors");
        if (!index || !whole)
            st = err_memory(e, path, n);
        else if (exists(index))
            path = index;
        else if (exists(whole))
            path = whole;
        else
            st = err_set(e, E_IO, "%s: has neither model.safetensors nor %s", path, index_name);
        n = strlen(path);
    }
    if (!st && n > 5 && !strcmp(path + n - 5, ".json")) {
        st = open_index(s, path, e);
    } else if (!st) {
        const char *own = arena_strndup(&s->mem, path, n);
        st = own ? reserve_parts(s, 1, e) : err_memory(e, path, n);
        if (!st && !(st = add_shard(s, own, e)))
            st = finish(s, path, e);
    }
    if (st)
        safetensors_close(s);
    return st;
}

status safetensors_open_bytes(safetensors *s, const void *bytes, uint64_t n_bytes, const char *name,
                              err *e)
{
    *s = (safetensors){0};
    status st = reserve_parts(s, 1, e);
    if (!st) {
        /* Not ours to unmap, so n_parts stays 0. */
        s->part[0] = (file_map){bytes, n_bytes, false};
        s->part_path[0] = arena_strndup(&s->mem, name, strlen(name));
        st = s->part_path[0] ? read_shard(s, 0, e) : err_memory(e, name, strlen(name));
    }
    if (!st)
        st = finish(s, name, e);
    if (st)
        safetensors_close(s);
    return st;
}

void safetensors_close(safetensors *s)
{
    for (int32_t i = 0; i < s->n_parts; i++)
        file_map_close(&s->part[i]);
    arena_free(&s->mem);
    *s = (safetensors){0};
}
