/* safetensors.h - safetensors files, single or sharded, for conversion.
 *
 * Owns its mappings; tensors carry num types (F32, F16, BF16, F64, I8 .. I64; U8 and BOOL as I8)
 * and shapes in GGUF order (reversed). Everything is checked at open: header length and depth,
 * offsets in range, no overlap, sizes that match shapes, no duplicate names. Format:
 * huggingface/safetensors README; sharded sets: model.safetensors.index.json.
 */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include "format/tensors.h"
#include "base/map.h"

typedef struct safetensors {
    tensor_set tensors;
    file_map *part;
    int32_t n_parts;
    arena mem;
} safetensors;

/* path: a .safetensors file, a .safetensors.index.json, or a directory with either. */
status safetensors_open(safetensors *s, const char *path, err *e);
void safetensors_close(safetensors *s);

#endif
