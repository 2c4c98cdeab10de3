/* tensors.h - name to shape, type and bytes: the content of every weight file.
 *
 * Dimensions are in GGUF order: ne[0] is contiguous, unused ones are 1. The bytes belong to the
 * file that the set was made from. Read-only and thread-safe once built.
 */
#ifndef FORMAT_TENSORS_H
#define FORMAT_TENSORS_H

#include "base/arena.h"
#include "base/err.h"

enum {
    TENSOR_DIMS_MAX = 4,
    TENSOR_NAME_MAX = 255,     /* the longest in use is near 100 */
    TENSOR_COUNT_MAX = 1 << 20 /* the most in use, one per expert and matrix, is near 50000 */
};

typedef struct tensor {
    const char *name; /* NUL-terminated, in the arena; first, for name_index */
    uint32_t type;    /* a num_type; may be one that carat cannot decode */
    int32_t n_dims;
    uint64_t ne[TENSOR_DIMS_MAX];
    const unsigned char *bytes;
    uint64_t n_bytes;
    uint64_t n_elements;
    int32_t part;    /* which file of a split set */
    uint64_t offset; /* in that file, from its first byte */
} tensor;

/* Finds a record by name in an array of records whose first member is a const char *. */
typedef struct name_index {
    uint32_t *slot; /* hash of name to position + 1; 0 is free */
    uint64_t cap;   /* a power of two, at least twice the records */
} name_index;

typedef struct tensor_set {
    tensor *at;
    uint64_t n;
    name_index index;
} tensor_set;

/* Allocates in mem; false when memory is short. *twice is set to a name that occurs twice, if one
 * does, and to NULL otherwise. n < 2^31. */
bool name_index_build(name_index *x, arena *mem, const void *records, size_t size, uint64_t n,
                      const char **twice);
/* Position of the record, or -1. */
int64_t name_index_find(const name_index *x, const void *records, size_t size, const char *name);

/* Builds the index in mem. E_FORMAT on a name that occurs twice. */
status tensor_set_index(tensor_set *s, arena *mem, const char *file, err *e);
const tensor *tensor_find(const tensor_set *s, const char *name); /* NULL when absent */
/* What follows a sentence about bytes that do not fit, where a tensor is in Q2_0. */
extern const char tensor_q2_0_hint[];

/* E_FORMAT when the bytes of two tensors of one part overlap. Scratch comes from mem. */
status tensor_set_check_overlap(const tensor_set *s, arena *mem, const char *file, err *e);
/* Elements and bytes from ne and type; *why names what is wrong when it returns false. */
bool tensor_measure(tensor *t, const char **why);
/* "{2048, 1536}" for messages and listings. */
const char *tensor_shape_text(const tensor *t, char *buf, size_t cap); /* returns buf */
/* May a row of t, decoded to x, be encoded as `to`? E_NUMERIC for NaN, infinities and values beyond
 * the format: they have no code, and one of them spoils its whole block. */
status tensor_check_row(const tensor *t, uint64_t row, const float *x, uint32_t to, err *e);

#endif
