/* gguf.h - GGUF v2/v3 files: metadata and tensor records. No model names.
 *
 * A gguf owns its file mappings (all parts of a split set) and its index; strings and tensor bytes
 * are views into the mappings. Everything in the file is checked before gguf_open returns: counts,
 * lengths, products, alignment, overlap, duplicates. Read-only and thread-safe once open.
 * Format: ggml's docs/gguf.md, versions 2 and 3, little-endian.
 */
#ifndef FORMAT_GGUF_H
#define FORMAT_GGUF_H

#include "base/arena.h"
#include "base/map.h"
#include "format/tensors.h"

typedef enum gguf_kind {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
} gguf_kind;

typedef struct gguf_string {
    const char *at; /* not NUL-terminated */
    uint64_t n;
} gguf_string;

typedef struct gguf_value {
    const char *key; /* NUL-terminated, in the arena; first, for name_index */
    gguf_kind kind;
    gguf_kind item; /* of an array */
    uint64_t count; /* of an array; 1 for a scalar */
    /* The scalar, or the first item. A string is 8 length bytes and the text; an array inside an
     * array is 4 bytes of kind, 8 of count, and its items. Not aligned. */
    const unsigned char *bytes;
    uint64_t n_bytes;
} gguf_value;

typedef struct gguf {
    uint32_t version;
    uint64_t n_values;
    gguf_value *value; /* of the first part, in file order */
    name_index keys;
    tensor_set tensors;  /* of all parts, in file order */
    uint64_t data_bytes; /* of all tensors */
    uint64_t file_bytes; /* of all parts */
    int32_t n_parts;
    file_map *part;
    arena mem;
    const char *path; /* of the first part */
} gguf;

/* path: a file, or the first of a split set NAME-00001-of-0000N.gguf. direct: read into memory
 * instead of mapping. progress may be NULL. */
status gguf_open(gguf *g, const char *path, bool direct, carat_progress_fn progress, void *user,
                 err *e);
/* A whole file in memory, aligned to 8; the bytes must outlive g. name is for messages. */
status gguf_open_bytes(gguf *g, const void *bytes, uint64_t n_bytes, const char *name, err *e);
void gguf_close(gguf *g); /* safe on a zeroed or closed gguf */

const gguf_value *gguf_find(const gguf *g, const char *key); /* NULL when absent */
/* Any integer width, signedness or bool; false if absent, an array, or out of range. */
bool gguf_get_i64(const gguf *g, const char *key, int64_t *out);
bool gguf_get_f64(const gguf *g, const char *key, double *out); /* any number */
bool gguf_get_bool(const gguf *g, const char *key, bool *out);  /* bool or integer */
bool gguf_get_string(const gguf *g, const char *key, gguf_string *out);
/* Item i of an array of numbers or bools; false if not such an array or i out of range. */
bool gguf_item_i64(const gguf_value *v, uint64_t i, int64_t *out);
bool gguf_item_f64(const gguf_value *v, uint64_t i, double *out);
/* The same for scalars; gguf_get_* are these after gguf_find. */
bool gguf_value_i64(const gguf_value *v, int64_t *out);
bool gguf_value_f64(const gguf_value *v, double *out);
bool gguf_value_string(const gguf_value *v, gguf_string *out);
/* Walks the strings of an array, which have no index. *at is 0 before the first call and belongs to
 * the function after it. */
bool gguf_next_string(const gguf_value *v, uint64_t *at, gguf_string *out);
const char *gguf_kind_name(gguf_kind k);

/* Writing. The caller declares everything, then writes the tensor data in the declared order; the
 * writer computes offsets and padding. The file appears on commit. A failure while declaring is
 * kept, and gguf_write_header reports it. */
typedef struct gguf_writer gguf_writer;

/* Opens a temporary file beside path. On success the caller ends *w by gguf_commit or
 * gguf_discard. E_IO, E_MEMORY: *w is NULL. */
status gguf_create(gguf_writer **w, const char *path, err *e);
/* Declare a metadata value of the type in the name; n: bytes of a text, items of an array. Copied.
 */
void gguf_put_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_put_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_put_f32(gguf_writer *w, const char *key, float v);
void gguf_put_bool(gguf_writer *w, const char *key, bool v);
void gguf_put_string(gguf_writer *w, const char *key, const char *text, size_t n);
void gguf_put_u32s(gguf_writer *w, const char *key, const uint32_t *v, uint64_t n);
void gguf_put_i32s(gguf_writer *w, const char *key, const int32_t *v, uint64_t n);
void gguf_put_f32s(gguf_writer *w, const char *key, const float *v, uint64_t n);
void gguf_put_bools(gguf_writer *w, const char *key, const bool *v, uint64_t n);
void gguf_put_strings(gguf_writer *w, const char *key, const gguf_string *v, uint64_t n);
void gguf_put_value(gguf_writer *w, const gguf_value *v); /* copied from another file */
void gguf_put_tensor(gguf_writer *w, const char *name, uint32_t type, int32_t n_dims,
                     const uint64_t *ne);
/* Before the header: not all of the data will be written, so the disk need not have room for it. */
void gguf_expect_holes(gguf_writer *w);
/* Ends the declarations, writes the header. Reports any earlier failure. */
status gguf_write_header(gguf_writer *w, err *e);
/* The next tensor is zeros: a hole in the file, where the file system knows holes. */
status gguf_write_hole(gguf_writer *w, err *e);
/* The next bytes of the current tensor; moves on to the next tensor when it is full. */
status gguf_write_data(gguf_writer *w, const void *bytes, size_t n, err *e);
/* Maps what is written so far, for checks before the commit. Of a device *m is empty: n_bytes 0. */
status gguf_map_written(gguf_writer *w, file_map *m, err *e);
status gguf_commit(gguf_writer *w,
                   err *e);        /* frees w in any case; fails if tensor data is missing */
void gguf_discard(gguf_writer *w); /* frees w, which may be NULL */
uint64_t gguf_planned_bytes(const gguf_writer *w); /* of the whole file, after the header */

#endif
