/* gguf.c - reading GGUF: header, metadata, tensor records, split sets.
 *
 *   magic version n_tensors n_values | values | tensor records | pad to alignment | tensor data
 *
 * One pass over the values of a part finds its tensor records; a second pass reads the records.
 * Only keys and names are copied. Strings, arrays and tensor bytes are views into the mapping, so a
 * vocabulary of half a million merges costs one walk over its lengths.
 * Typed access to values: gguf_value.c.
 */
#include "format/gguf.h"
#include "base/bytes.h"
#include "num/num.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    VALUES_MAX = 1 << 16, /* the most in use is below 100 */
    KEY_MAX = 65535,      /* the format's own limit */
    NESTING_MAX = 4,      /* arrays in arrays; the most in use is 1 */
    PARTS_MAX = 4096,     /* the largest published set has below 100 */
    ALIGN_DEFAULT = 32,
    ALIGN_MAX = 1 << 16, /* a huge page sixteenth; more would only be waste */
    /* The smallest records: key length, one byte of key, kind, one byte; name length, one byte of
     * name, number of dimensions, one dimension, type, offset. */
    VALUE_BYTES_MIN = 8 + 1 + 4 + 1,
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8,
    POINTER_ALIGN = 8
};

static const char MAGIC[4] = {'G', 'G', 'U', 'F'};

/* One part while it is read. */
typedef struct {
    const char *path;
    file_map map;
    reader r;
    uint32_t version;
    uint64_t n_tensors, n_values, align;
    gguf_value *value;
} part;

/* Size of a kind; 0 for strings and arrays, whose sizes vary; -1 for an unknown kind. */
static int kind_bytes(uint32_t kind)
{
    static const int8_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kind < sizeof size ? size[kind] : -1;
}

static status cut_short(const part *p, const char *where, err *e)
{
    return err_set(e, E_FORMAT, "%s: the file ends inside its %s (%" PRIu64 " bytes; truncated?)",
                   p->path, where, p->map.n_bytes);
}

/* A key or tensor name of 1..max bytes, into mem. */
static status read_name(part *p, arena *mem, uint64_t max, const char *what, const char **name,
                        err *e)
{
    uint64_t n = rd_u64(&p->r);
    if (!p->r.bad && (n == 0 || n > max))
        return err_set(e, E_FORMAT, "%s: a %s of %" PRIu64 " bytes, expected 1 to %" PRIu64,
                       p->path, what, n, max);
    const char *s = rd_bytes(&p->r, n);
    if (!s)
        return cut_short(p, what, e);
    /* A NUL would make two different names equal. */
    if (memchr(s, 0, (size_t)n))
        return err_set(e, E_FORMAT, "%s: a %s contains a NUL byte", p->path, what);
    if (!(*name = arena_strndup(mem, s, (size_t)n)))
        return err_memory(e, p->path, (size_t)n);
    return OK;
}

/* Steps over count items of one kind. */
static status skip_items(part *p, uint32_t kind, uint64_t count, int depth, const char *key, err *e)
{
    int size = kind_bytes(kind);
    uint64_t n;
    if (size < 0)
        return err_set(e, E_FORMAT, "%s: %s has a value of unknown kind %" PRIu32, p->path, key,
                       kind);
    if (size > 0) {
        if (!ck_mul(count, (uint64_t)size, &n) || !rd_bytes(&p->r, n))
            return err_set(e, E_FORMAT, "%s: %s: %" PRIu64 " items do not fit in the file", p->path,
                           key, count);
        return OK;
    }
    /* The smallest string is its 8 length bytes, the smallest array 4 of kind and 8 of count. */
    if (count > reader_left(&p->r) / (kind == GGUF_STRING ? 8 : 12))
        return err_set(e, E_FORMAT, "%s: %s: %" PRIu64 " items do not fit in the file", p->path,
                       key, count);
    if (kind == GGUF_ARRAY && depth >= NESTING_MAX)
        return err_set(e, E_FORMAT, "%s: %s: arrays nested deeper than %d", p->path, key,
                       NESTING_MAX);
    for (uint64_t i = 0; i < count; i++) {
        if (kind == GGUF_STRING) {
            rd_bytes(&p->r, rd_u64(&p->r));
            if (p->r.bad)
                return err_set(e, E_FORMAT, "%s: %s: string %" PRIu64 " does not fit in the file",
                               p->path, key, i);
            continue;
        }
        uint32_t item = rd_u32(&p->r);
        uint64_t n_items = rd_u64(&p->r);
        if (p->r.bad)
            return cut_short(p, "metadata", e);
        status st = skip_items(p, item, n_items, depth + 1, key, e);
        if (st)
            return st;
    }
    return OK;
}

static status read_metadata_value(part *p, arena *mem, gguf_value *v, err *e)
{
    status st = read_name(p, mem, KEY_MAX, "metadata key", &v->key, e);
    if (st)
        return st;
    uint32_t kind = rd_u32(&p->r), item = kind;
    uint64_t count = 1;
    int depth = 0;
    if (kind == GGUF_ARRAY) {
        item = rd_u32(&p->r);
        count = rd_u64(&p->r);
        depth = 1;
    }
    if (p->r.bad)
        return cut_short(p, "metadata", e);
    v->bytes = p->r.at;
    if ((st = skip_items(p, item, count, depth, v->key, e)))
        return st;
    v->kind = (gguf_kind)kind;
    v->item = (gguf_kind)item;
    v->count = count;
    v->n_bytes = (uint64_t)(p->r.at - v->bytes);
    return OK;
}

static const gguf_value *part_find(const part *p, const char *key)
{
    for (uint64_t i = 0; i < p->n_values; i++)
        if (!strcmp(p->value[i].key, key))
            return &p->value[i];
    return NULL;
}

static bool part_i64(const part *p, const char *key, int64_t *out)
{
    const gguf_value *v = part_find(p, key);
    return v && gguf_value_i64(v, out);
}

/* What a file that is no GGUF is instead, and what to do; "" if that is not known. */
static const char *other_format(const void *bytes, size_t n)
{
    static const struct {
        uint8_t at; /* where the mark stands: a safetensors file begins with a length */
        const char *mark, *says;
    } known[] = {
        {8, "{\"", "; it looks like safetensors, of which carat convert makes a GGUF file"},
        {0, "version https://git-lfs",
         "; it is a pointer of git-lfs, and git lfs pull fetches the file"},
        {0, "PK\3\4", "; it is a zip archive, perhaps weights of PyTorch"},
        {0, "<", "; it looks like a web page: was the download refused?"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t at = known[i].at, n_mark = strlen(known[i].mark);
        if (n >= at + n_mark && !memcmp((const char *)bytes + at, known[i].mark, n_mark))
            return known[i].says;
    }
    return "";
}

/* Header and metadata; leaves the reader at the tensor records. */
static status read_head(part *p, arena *mem, err *e)
{
    status st;
    int64_t align = ALIGN_DEFAULT;
    p->r = reader_of(p->map.bytes, (size_t)p->map.n_bytes);
    if ((uintptr_t)p->map.bytes % POINTER_ALIGN)
        return err_set(e, E_ARG, "%s: the bytes in memory are not aligned to %d", p->path,
                       POINTER_ALIGN);
    const char *magic = rd_bytes(&p->r, sizeof MAGIC);
    if (!magic || memcmp(magic, MAGIC, sizeof MAGIC))
        return err_set(e, E_FORMAT, "%s: not a GGUF file (it does not begin with GGUF)%s", p->path,
                       other_format(p->map.bytes, (size_t)p->map.n_bytes));
    p->version = rd_u32(&p->r);
    if (p->version == 2u << 24 || p->version == 3u << 24)
        return err_set(e, E_UNSUPPORTED, "%s: a big-endian GGUF file; convert it to little-endian",
                       p->path);
    if (p->version != 2 && p->version != 3 && !p->r.bad)
        return err_set(e, E_UNSUPPORTED, "%s: GGUF version %" PRIu32 ", expected 2 or 3", p->path,
                       p->version);
    p->n_tensors = rd_u64(&p->r);
    p->n_values = rd_u64(&p->r);
    if (p->r.bad)
        return cut_short(p, "header", e);
    /* Credible: that many of the smallest possible records fit in what is left. */
    if (p->n_tensors > reader_left(&p->r) / TENSOR_BYTES_MIN || p->n_tensors > TENSOR_COUNT_MAX)
        return err_set(e, E_FORMAT,
                       "%s: a count of %" PRIu64
                       " tensors does not fit in the file; is the download complete?",
                       p->path, p->n_tensors);
    if (p->n_values > reader_left(&p->r) / VALUE_BYTES_MIN || p->n_values > VALUES_MAX)
        return err_set(e, E_FORMAT,
                       "%s: a count of %" PRIu64 " metadata values does not fit in the file",
                       p->path, p->n_values);
    if (!(p->value = arena_array(mem, (size_t)p->n_values, sizeof *p->value)))
        return err_memory(e, p->path, (size_t)p->n_values * sizeof *p->value);
    for (uint64_t i = 0; i < p->n_values; i++)
        if ((st = read_metadata_value(p, mem, &p->value[i], e)))
            return st;
    if (part_find(p, "general.alignment") &&
        (!part_i64(p, "general.alignment", &align) || align < 8 || align > ALIGN_MAX ||
         (align & (align - 1))))
        return err_set(e, E_FORMAT, "%s: general.alignment must be a power of two from 8 to %d",
                       p->path, ALIGN_MAX);
    p->align = (uint64_t)align;
    return OK;
}

static status read_tensor(part *p, arena *mem, tensor *t, err *e)
{
    status st = read_name(p, mem, TENSOR_NAME_MAX, "tensor name", &t->name, e);
    const char *why;
    if (st)
        return st;
    uint32_t n_dims = rd_u32(&p->r);
    if (!p->r.bad && (n_dims < 1 || n_dims > TENSOR_DIMS_MAX))
        return err_set(e, E_FORMAT, "%s: tensor %s has %" PRIu32 " dimensions, expected 1 to %d",
                       p->path, t->name, n_dims, TENSOR_DIMS_MAX);
    t->n_dims = (int32_t)n_dims;
    for (int i = 0; i < TENSOR_DIMS_MAX; i++)
        t->ne[i] = i < t->n_dims ? rd_u64(&p->r) : 1;
    t->type = rd_u32(&p->r);
    t->offset = rd_u64(&p->r); /* from the start of the data, for now */
    if (p->r.bad)
        return cut_short(p, "tensor records", e);
    if (t->type >= NUM_TYPE_END || !num_format_of(t->type))
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s has the unknown type %" PRIu32, p->path,
                       t->name, t->type);
    if (!tensor_measure(t, &why)) {
        char shape[96];
        tensor_shape_text(t, shape, sizeof shape);
        return err_set(e, E_FORMAT, "%s: tensor %s, %s of %s: %s", p->path, t->name, shape,
                       num_name(t->type), why);
    }
    return OK;
}

/* The records of one part into t[0..n_tensors), and where their bytes are. */
static status read_tensors(part *p, int32_t i_part, arena *mem, tensor *t, err *e)
{
    uint64_t data, end;
    status st;
    for (uint64_t i = 0; i < p->n_tensors; i++)
        if ((st = read_tensor(p, mem, &t[i], e)))
            return st;
    if (!ck_align((uint64_t)(p->r.at - p->map.bytes), p->align, &data))
        return cut_short(p, "tensor records", e);
    for (uint64_t i = 0; i < p->n_tensors; i++) {
        if (t[i].offset % p->align)
            return err_set(e, E_FORMAT,
                           "%s: tensor %s is at offset %" PRIu64 ", no multiple of %" PRIu64,
                           p->path, t[i].name, t[i].offset, p->align);
        if (!ck_add(t[i].offset, data, &t[i].offset) || !ck_add(t[i].offset, t[i].n_bytes, &end) ||
            end > p->map.n_bytes)
            return err_set(e, E_FORMAT,
                           "%s: tensor %s (%" PRIu64
                           " bytes) reaches past the end of the file at %" PRIu64 "%s",
                           p->path, t[i].name, t[i].n_bytes, p->map.n_bytes,
                           t[i].type == NUM_Q2_0 ? tensor_q2_0_hint
                                                 : "; is the download complete?");
        t[i].bytes = p->map.bytes + t[i].offset;
        t[i].part = i_part;
    }
    return OK;
}

/* NAME-00001-of-00003.gguf to the path of part i, in mem. */
static status part_path(arena *mem, const char *first, int64_t i, int64_t n, const char **out,
                        err *e)
{
    char want[32], name[32];
    size_t len = strlen(first);
    size_t tail = (size_t)snprintf(want, sizeof want, "-%05d-of-%05d.gguf", 1, (int)n);
    if (len <= tail || strcmp(first + len - tail, want))
        return err_set(e, E_FORMAT,
                       "%s: the first of %" PRId64 " files, so its name should end in %s for the "
                       "others to be found",
                       first, n, want);
    snprintf(name, sizeof name, "-%05d-of-%05d.gguf", (int)i + 1, (int)n);
    char *path = arena_strndup(mem, first, len);
    if (!path)
        return err_memory(e, first, len);
    memcpy(path + len - tail, name, tail); /* five digits either way: PARTS_MAX is below 99999 */
    *out = path;
    return OK;
}

/* The number of parts by the split.* keys of a part; 1 without them. */
static status split_of(const part *p, int64_t *n_parts, int64_t *no, err *e)
{
    int64_t count = 1, number = 0;
    if (part_find(p, "split.count") &&
        (!part_i64(p, "split.count", &count) || count < 0 || count > PARTS_MAX))
        return err_set(e, E_FORMAT, "%s: split.count must be a number up to %d", p->path,
                       PARTS_MAX);
    if (count <= 1) /* some tools keep these keys in merged files */
        count = 1;
    else if (!part_i64(p, "split.no", &number) || number < 0 || number >= count)
        return err_set(e, E_FORMAT, "%s: split.no must be a number below split.count", p->path);
    *n_parts = count;
    *no = number;
    return OK;
}

/* The arguments of gguf_open on how to read. */
typedef struct opening {
    bool direct;
    carat_progress_fn progress;
    void *user;
} opening;

/* Opens and reads the heads of parts 1.. of a split set; part 0 is read already. */
static status open_rest(gguf *g, part *p, int64_t n_parts, const opening *how, err *e)
{
    status st;
    int64_t want_tensors;
    uint64_t n_tensors = p[0].n_tensors;
    for (int64_t i = 1; i < n_parts; i++) {
        int64_t n, no;
        if ((st = part_path(&g->mem, p[0].path, i, n_parts, &p[i].path, e)) ||
            (st = file_map_open(&g->part[i], p[i].path, how->direct, how->progress, how->user, e)))
            return st;
        p[i].map = g->part[i];
        if ((st = read_head(&p[i], &g->mem, e)) || (st = split_of(&p[i], &n, &no, e)))
            return st;
        if (n != n_parts || no != i)
            return err_set(e, E_FORMAT,
                           "%s: says it is file %" PRId64 " of %" PRId64 ", expected %" PRId64
                           " of %" PRId64,
                           p[i].path, no + 1, n, i + 1, n_parts);
        n_tensors += p[i].n_tensors; /* at most PARTS_MAX * TENSOR_COUNT_MAX */
    }
    if (n_tensors > TENSOR_COUNT_MAX)
        return err_set(e, E_FORMAT, "%s: %" PRIu64 " tensors, at most %d are read", p[0].path,
                       n_tensors, TENSOR_COUNT_MAX);
    if (part_i64(&p[0], "split.tensors.count", &want_tensors) && want_tensors != (int64_t)n_tensors)
        return err_set(e, E_FORMAT,
                       "%s: split.tensors.count is %" PRId64 ", the files hold %" PRIu64, p[0].path,
                       want_tensors, n_tensors);
    return OK;
}

/* Tensor records of all parts, then the checks over the whole. */
static status read_set(gguf *g, part *p, err *e)
{
    status st;
    const char *twice;
    for (int32_t i = 0; i < g->n_parts; i++)
        g->tensors.n += p[i].n_tensors;
    g->tensors.at = arena_array(&g->mem, (size_t)g->tensors.n, sizeof *g->tensors.at);
    if (!g->tensors.at)
        return err_memory(e, g->path, (size_t)g->tensors.n * sizeof *g->tensors.at);
    tensor *t = g->tensors.at;
    for (int32_t i = 0; i < g->n_parts; t += p[i++].n_tensors) {
        if ((st = read_tensors(&p[i], i, &g->mem, t, e)))
            return st;
        g->file_bytes += p[i].map.n_bytes;
    }
    for (uint64_t i = 0; i < g->tensors.n; i++)
        g->data_bytes += g->tensors.at[i].n_bytes; /* disjoint ranges of the files: see below */
    g->version = p[0].version;
    g->n_values = p[0].n_values;
    g->value = p[0].value;
    if (!name_index_build(&g->keys, &g->mem, g->value, sizeof *g->value, g->n_values, &twice))
        return err_memory(e, g->path, (size_t)g->n_values * sizeof *g->keys.slot);
    if (twice)
        return err_set(e, E_FORMAT, "%s: the metadata key %s occurs twice", g->path, twice);
    if ((st = tensor_set_index(&g->tensors, &g->mem, g->path, e)))
        return st;
    return tensor_set_check_overlap(&g->tensors, &g->mem, g->path, e);
}

status gguf_open(gguf *g, const char *path, bool direct, carat_progress_fn progress, void *user,
                 err *e)
{
    part first = {0}, *p = NULL;
    file_map map;
    int64_t n_parts, no;
    status st;

    *g = (gguf){0};
    if ((st = file_map_open(&map, path, direct, progress, user, e)))
        return st;
    if (!(first.path = g->path = arena_strndup(&g->mem, path, strlen(path)))) {
        st = err_memory(e, path, strlen(path));
        goto out;
    }
    first.map = map;
    if ((st = read_head(&first, &g->mem, e)) || (st = split_of(&first, &n_parts, &no, e)))
        goto out;
    if (no != 0) {
        st = err_set(e, E_FORMAT, "%s: file %" PRId64 " of a set of %" PRId64 "; open the first",
                     path, no + 1, n_parts);
        goto out;
    }
    p = arena_array(&g->mem, (size_t)n_parts, sizeof *p);
    g->part = p ? arena_array(&g->mem, (size_t)n_parts, sizeof *g->part) : NULL;
    if (!g->part) {
        st = err_memory(e, path, (size_t)n_parts * (sizeof *p + sizeof *g->part));
        goto out;
    }
    p[0] = first;
    g->part[0] = map;
    map = (file_map){0}; /* g owns it now */
    g->n_parts = (int32_t)n_parts;
    if (n_parts > 1 && (st = open_rest(g, p, n_parts, &(opening){direct, progress, user}, e)))
        goto out;
    st = read_set(g, p, e);
out:
    file_map_close(&map);
    if (st)
        gguf_close(g);
    return st;
}

status gguf_open_bytes(gguf *g, const void *bytes, uint64_t n_bytes, const char *name, err *e)
{
    part p = {0};
    int64_t n_parts, no;
    status st;

    *g = (gguf){0};
    g->n_parts = 1; /* and no mapping of ours */
    p.map = (file_map){bytes, n_bytes, false};
    if (!(p.path = g->path = arena_strndup(&g->mem, name, strlen(name)))) {
        st = err_memory(e, name, strlen(name));
        goto out;
    }
    if ((st = read_head(&p, &g->mem, e)) || (st = split_of(&p, &n_parts, &no, e)))
        goto out;
    if (n_parts > 1) {
        st = err_set(e, E_UNSUPPORTED,
                     "%s: one of %" PRId64 " files; only whole models are read "
                     "from memory",
                     name, n_parts);
        goto out;
    }
    st = read_set(g, &p, e);
out:
    if (st)
        gguf_close(g);
    return st;
}

void gguf_close(gguf *g)
{
    for (int32_t i = 0; g->part && i < g->n_parts; i++)
        file_map_close(&g->part[i]);
    arena_free(&g->mem);
    *g = (gguf){0};
}
