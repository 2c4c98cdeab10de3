/* launch_skip.h - launchers of attention that leaves keys out (sparse.h), on GPUs of 8.0 and above:
 * skip-softmax in answers, and prompts by the lists of block selection. */
#ifndef BACKEND_CUDA_LAUNCH_SKIP_H
#define BACKEND_CUDA_LAUNCH_SKIP_H

#include "backend/cuda/attend/launch_attend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SKIP_TILE = 128, /* keys that are dropped or kept together; tiles begin at multiples */
    SKIP_TILES = 64, /* of a chunk, at most */
    SKIP_SEQS = 64,  /* sequences of a pass, at most */
    /* Answers' rows of fewer keys are exact: as predicted, not as measured. In some stores (skip.c)
     * those of fewer than so many times that number. */
    SKIP_LEAST = 8192,
    SKIP_FAR = 8,
    SKIP_WORDS = LIST_WORDS
};

/* Rows parts.row0 .. + n_rows - 1 of a pass, whose store has no window. Arrays lie in scratch. */
typedef struct skip_args {
    attend_args a;
    chunk_parts parts;      /* chunk: SKIP_TILES tiles at most; at: of 8-byte alignment */
    tile_schedule schedule; /* tile_rows and group_inverse; the rest is filled in for each launch */
    uint16_t *weights; /* f16 [n_rows, heads, n_tiles, SKIP_TILE]: e^(score - the tile's largest) */
    float *tops;       /* [n_rows, heads, n_tiles][2]: largest score, base 2; sum of weights */
    uint32_t *kept;    /* [n_rows, heads, n_word]: a bit for each tile */
    int32_t n_tiles, n_word;
    float skip[SKIP_SEQS];                /* sparse_rule.skip of each sequence */
    unsigned long long *stats[SKIP_SEQS]; /* [SPARSE_COUNTS] each; NULL: it is not counted */
} skip_args;
/* Leaves the parts of each row and head for combine_kernel. Heads of 128, 256 or 512 in two streams
 * of any format but f32, at most SPLIT_PAIRS query heads per KV head. */
void cu_skip(cudaStream_t s, skip_args x);
/* Do two stages of copies fit in a block's shared memory? */
bool cu_skip_fits(dev_kv kv);
int cu_skip_init(int largest);

/* Rows of a launch, by lists as dev_sparse has them; kept NULL: they read all keys. */
typedef struct listed_args {
    attend_args a;
    const uint32_t *kept;
    int32_t n_word;
} listed_args;
void cu_attend_listed(cudaStream_t s, listed_args x); /* attend.cu; kept is not NULL */

#ifdef __cplusplus
}
#endif
#endif
