/* safetensors.h - safetensors files, single or sharded, for conversion.
 *
 * Owns its mappings; tensors carry num types (F32, F16, BF16, F64, and integers by size) and
 * shapes in GGUF order (reversed; more than four dimensions are folded into the last). Everything
 * is checked at open: header length and depth, offsets in range, no overlap, sizes that match
 * shapes, no duplicate names. Bytes are not aligned: decode them, do not point at them.
 * Format: huggingface/safetensors README; sharded sets: model.safetensors.index.json.
 */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include "base/map.h"
#include "format/tensors.h"

typedef struct safetensors {
    tensor_set tensors; /* of all files, in file order */
    file_map *part;
    const char **part_path; /* for messages */
    int32_t n_parts;
    bool by_mlx; /* __metadata__ of a file names MLX as the program that wrote it */
    arena mem;
} safetensors;

/* path: a .safetensors file, a .safetensors.index.json, or a directory with either. */
status safetensors_open(safetensors *s, const char *path, err *e);
/* One file in memory; the bytes must outlive s. name is for messages. */
status safetensors_open_bytes(safetensors *s, const void *bytes, uint64_t n_bytes, const char *name,
                              err *e);
void safetensors_close(safetensors *s); /* safe on a zeroed or closed one */

#endif
