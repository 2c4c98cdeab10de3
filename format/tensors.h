/* tensors.h - name to shape, type and bytes: what every weight file comes down to.
 *
 * Dimensions are in GGUF order: ne[0] is contiguous, unused ones are 1. The bytes belong to the
 * file that the set was made from. Read-only and thread-safe once built.
 */
#ifndef FORMAT_TENSORS_H
#define FORMAT_TENSORS_H

#include "base/arena.h"
#include "base/err.h"

enum { TENSOR_DIMS_MAX = 4, TENSOR_NAME_MAX = 255 };

typedef struct tensor {
    const char *name; /* NUL-terminated, in the arena */
    uint32_t type;    /* a num_type; may be one that carat cannot decode */
    int32_t n_dims;
    uint64_t ne[TENSOR_DIMS_MAX];
    const unsigned char *bytes;
    uint64_t n_bytes;
    uint64_t n_elements;
    int32_t part;    /* which file of a split set */
    uint64_t offset; /* in that file */
} tensor;

typedef struct tensor_set {
    tensor *at;
    uint64_t n;
    uint32_t *index; /* hash of name to position + 1; a power of two long */
    uint64_t index_cap;
} tensor_set;

/* Builds the index in mem. E_FORMAT on a name that occurs twice. */
status tensor_set_index(tensor_set *s, arena *mem, const char *file, err *e);
const tensor *tensor_find(const tensor_set *s, const char *name); /* NULL when absent */

#endif
