/* launch_recur.h - launchers of recurrent layers. */
#ifndef BACKEND_CUDA_LAUNCH_RECUR_H
#define BACKEND_CUDA_LAUNCH_RECUR_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Recurrent layers: as recur_base, recur_seq and recur_view. */
enum { RECUR_PATH = 64, RECUR_TAPS = 8, RECUR_STORES = 64 };
typedef struct dev_recur_base {
    float *state, *conv, *journal[2], *block;
} dev_recur_base;

typedef struct dev_recur_seq {
    int32_t row0, n, final, bank, n_pending;
    int32_t pending[RECUR_PATH];
} dev_recur_seq;

typedef struct dev_recur {
    const dev_recur_base *base; /* [n_seqs][n_recur] */
    const dev_recur_seq *seq;   /* [n_seqs] */
    const int32_t *parent, *row_seq;
    int32_t n_recur, n_seqs;
} dev_recur;

typedef struct recur_shape {
    int32_t id, n_k, n_v, dk, dv, n_taps, n_channels;
    int32_t journal_floats; /* of a row */
} recur_shape;

/* recur.cu */
typedef struct conv_args {
    dev_mat y, x;
    const float *taps; /* [channels][n_taps] */
    recur_shape v;
    dev_recur st;
    bool chain; /* no row of the pass is in a tree */
} conv_args;
void cu_conv(cudaStream_t s, conv_args a);
typedef struct delta_args {
    dev_mat o, c, a, b;
    const float *gate_a, *gate_dt;
    recur_shape v;
    dev_recur st;
    float *q, *k, *gates; /* [n_k, rows, dk], the same, [n_v, rows, 2] */
} delta_args;
void cu_delta(cudaStream_t s, delta_args a);
void cu_delta_rows(cudaStream_t s, delta_args a); /* q, k and gates alone */
/* recur_chain.cu: the same of chains, for shapes that it knows; y of cu_conv without what it leaves
 * in the store, false: not this shape. */
bool cu_chain_knows(const recur_shape *v);
void cu_delta_chain(cudaStream_t s, delta_args a);
bool cu_conv_run(cudaStream_t s, const conv_args *a);
int cu_chain_init(void);
static inline bool cu_delta_knows(int32_t dk)
{
    return dk == 16 || dk == 32 || dk == 64 || dk == 128 || dk == 256;
}
/* recur_blocks.cu: the same of prompts in blocks, which end at multiples of RECUR_BLOCK_ROWS in
 * their sequences, for shapes that it knows. All rows are final. */
enum { RECUR_BLOCK_ROWS = 64, RECUR_BLOCK_HEAD_FLOATS = 64, RECUR_HEAD = 128, RECUR_BLOCKS = 16 };
typedef struct block_place {
    int32_t seq, row, from, to; /* rows from .. to - 1 of the block are rows row + i of the pass */
    int32_t pos;                /* of row 0 of the block */
    bool begins;                /* the first of its sequence in the pass */
} block_place;
typedef struct block_walk { /* blocks of one sequence: first .. first + n - 1 of the launch */
    int32_t first, n;
} block_walk;
typedef struct block_args {
    delta_args delta;   /* without q, k and gates */
    void *keys, *pairs; /* the launch's blocks, by key head and by value head */
    block_place at[RECUR_BLOCKS];
    block_walk walk[RECUR_BLOCKS];
    int32_t n, n_walks;
} block_args;
/* Bytes of a block's key head and of its value head in memory, and of shared memory. */
enum {
    RECUR_KEY_BYTES = 4 * RECUR_BLOCK_ROWS * 256,
    RECUR_PAIR_BYTES = 4 * RECUR_BLOCK_ROWS * 128 + 4 * RECUR_BLOCK_ROWS * 4,
    RECUR_WALK_BYTES = 2 * (RECUR_KEY_BYTES + RECUR_PAIR_BYTES + RECUR_BLOCK_ROWS * 64 * 4)
};
static inline bool cu_blocks_fit(void) /* has the GPU the shared memory? */
{
    return cu_gpu.shared_block >= RECUR_WALK_BYTES;
}
bool cu_blocks_know(const recur_shape *v);
void cu_delta_blocks(cudaStream_t s, const block_args *b);
int cu_blocks_init(void);
/* recur_unit.cu: a layer of answers from its convolution to the gate; chains alone. ticket:
 * [n_seqs][n_k] zeros, and again after the launch. */
enum { RECUR_KEY_HEADS = 64, RECUR_TICKETS = 64 * RECUR_KEY_HEADS };
typedef struct unit_args {
    dev_mat y, x, z, a, b;
    const float *taps, *gate_a, *gate_dt, *norm;
    float eps;
    recur_shape v;
    dev_recur st;
    dev_quant q; /* the copy of y */
    int32_t *ticket;
} unit_args;
bool cu_unit_knows(const recur_shape *v);
void cu_unit(cudaStream_t s, unit_args a);
void cu_gated(cudaStream_t s, unit_args a); /* norm and gate alone, x: the rule's output */
typedef struct settle_args {                /* several stores of one shape */
    dev_recur_base base[RECUR_STORES];
    dev_recur_seq seq;
    recur_shape v;
    int32_t n;
} settle_args;
void cu_recur_settle(cudaStream_t s, settle_args a);

#ifdef __cplusplus
}
#endif

#endif
