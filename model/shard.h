/* shard.h - a tensor split as data: which part of each tensor a rank has.
 *
 * Ranks are the devices of a tensor split. A layer is cut into SHARD_SEGMENTS segments, whatever
 * the number of ranks: query heads with their keys, hidden units of feed-forward parts, key heads
 * of recurrent layers with their values. A rank has some segments that follow each other.
 *
 *     ranks    segments of each
 *     1        0 1 2 3
 *     2        0 1 | 2 3
 *     3        0 1 | 2 | 3
 *     4        0 | 1 | 2 | 3
 *
 * Where a cut through hidden units would be inside a block, experts are shared whole: a segment has
 * some that follow each other, and adds up its own in the order in which a row chose them. Such
 * units of another kind are on every rank, which then computes what all others do.
 *
 * Each rank computes a product whose outputs are cut alone. The output head is cut so, by tokens.
 * Of a product whose inputs are cut, each segment gives a sum, and the ranks add the sums:
 * (s0 + s1) + (s2 + s3). This order is the same for any number of ranks, and so are the bits.
 *
 * Nothing here knows of devices or of bound models: names, shapes and bytes alone.
 */
#ifndef MODEL_SHARD_H
#define MODEL_SHARD_H

#include "base/err.h"
#include "num/num.h"

enum {
    SHARD_SEGMENTS = 4,
    SHARD_SPANS_MAX = 16, /* of the published models at most 5: q, k and 3 tiles of values */
    SHARD_TILE = 16,      /* rows that kernels take at a time: tokens are cut at multiples of it */
    SHARD_FLOATS = 8      /* inputs of floats are cut at multiples of it, for kernels' loads */
};

/* The segments from .. to - 1. */
typedef struct shard_range {
    int32_t from, to;
} shard_range;
/* Of rank r of n. n: 1 to SHARD_SEGMENTS. */
shard_range shard_range_of(int32_t r, int32_t n);

/* What a layer's tensors are cut by. */
typedef struct shard_layer {
    bool recurs;               /* a recurrent layer, else attention */
    int32_t n_head, n_head_kv; /* attention; 0: unknown, which is an error where a tensor asks */
    int32_t n_k, n_v, dk, dv;  /* recurrent layers */
    /* num_types of the matrices whose inputs are the hidden units; -1: there is none */
    int32_t down, down_exps, down_shexp;
    int32_t n_ff_exps, n_expert; /* hidden units of an expert */
} shard_layer;

/* Which rank has what of a tensor. */
typedef enum shard_axis {
    SHARD_WHOLE, /* all of it: on every rank, or on the first */
    SHARD_NONE,  /* nothing: the first rank has it */
    SHARD_OUT,   /* rows (ne[1]), of every matrix */
    SHARD_IN,    /* elements of every row (ne[0]), at the borders of blocks */
    SHARD_MAT    /* matrices (ne[2]): experts */
} shard_axis;

/* A rank's part: n spans, one after the other. */
typedef struct shard {
    shard_axis axis;
    bool partial; /* of products' inputs, or of experts' sums: the segments' results are added */
    int32_t n;
    struct {
        int64_t first, n;
    } span[SHARD_SPANS_MAX];
} shard;

/* A tensor as a file has it. */
typedef struct shard_tensor {
    const char *name; /* "blk.3.attn_q.weight" */
    uint32_t type;    /* a num_type */
    int32_t n_dims;
    int64_t ne[3];
} shard_tensor;

/* The part of these segments. E_UNSUPPORTED, with a sentence: a tensor that has no place in a
 * tensor split, or one that cannot be cut into SHARD_SEGMENTS parts. The sentence does not depend
 * on the range. */
status shard_of(const shard_layer *layer, const shard_tensor *t, shard_range range, shard *out,
                err *e);

/* Rows, elements of rows or matrices, along its axis. */
int64_t shard_size(const shard *s);
uint64_t shard_bytes(const shard *s, const shard_tensor *t);
/* Copies the part out of the tensor's bytes, span by span, so that `to` has the layout of a tensor
 * of shard_bytes. */
void shard_copy(const shard *s, const shard_tensor *t, const void *from, void *to);

/* Heads of attention in these segments, which follow each other. A KV head that several ranks need
 * is in the ranges of all of them. E_UNSUPPORTED: heads that cannot be cut so. */
typedef struct shard_heads {
    int32_t first, n, kv_first, kv_n;
} shard_heads;
status shard_heads_of(int32_t n_head, int32_t n_head_kv, shard_range range, shard_heads *out,
                      err *e);

/* Key heads of a recurrent layer in these segments. */
int32_t shard_keys_of(int32_t n_k, shard_range range);

#endif
