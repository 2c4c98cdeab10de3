/* expert_file.h - FILE.experts: how often each expert of a model was chosen, in all runs so far.
 *
 *     "carat experts\n"  u32 version  u64 model  u32 layers
 *     per layer: u32 layer  u32 experts  u64 count[experts]
 *     u64 hash of all before
 *
 * Little-endian. The file appears whole or not at all, and a wrong one is no reason to fail: the
 * model only begins without knowledge of its use.
 */
#ifndef ENGINE_EXPERT_FILE_H
#define ENGINE_EXPERT_FILE_H

#include "base/err.h"

typedef struct expert_counts {
    int32_t layer, n_experts;
    uint64_t *count; /* [n_experts] */
} expert_counts;

/* Fills the counts of n layers. model: a hash that tells models apart. E_IO: there is no such file;
 * E_FORMAT: a damaged file, or one of another model. On failure all counts are 0. */
status expert_file_read(const char *path, uint64_t model, const expert_counts *l, int32_t n,
                        err *e);
status expert_file_write(const char *path, uint64_t model, const expert_counts *l, int32_t n,
                         err *e);

#endif
