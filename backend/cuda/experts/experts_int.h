/* experts_int.h - the records of experts of which only some have a place on the device.
 *
 *     one allocation   [slots of layer 0][slots of layer 1]..[stage 0][stage
 * 1][tables][counts][early] host             a page-locked copy of every expert, part after part,
 * laid out by pack.cu table            by layer and expert: from a fixed address to the expert, in
 * bytes
 *
 * Kernels add a table's entry to the planes at that address, whatever it leads to: a slot, a stage,
 * or the host's copy, which they read over the bus. So no op waits for the host, and a recorded
 * pass serves every placement.
 *
 *     passes   pass t | counts | table | pass t+1 | ..        | table | pass t+n
 *                                 |                                ^
 *     copies                      '--> expert to its slot ..  -----'
 *
 * A slot changes hands in two steps. Before a pass the table loses the expert that leaves; the copy
 * waits for this. Before a later pass that finds the copy ended, the table gets the new expert.
 * Neither waits on the host. Kernels count uses; the host reads the counts one pass later.
 *
 * A prompt of many rows uses nearly all experts of a layer. Such a pass has a second table, in
 * which experts without a slot lie in a stage. There are two stages: one is filled while the layer
 * in the other computes.
 */
#ifndef BACKEND_CUDA_EXPERTS_INT_H
#define BACKEND_CUDA_EXPERTS_INT_H

#include "backend/cuda/experts/offload.h"
#include "backend/cuda/cuda_int.h"
#include "backend/expert_slots.h"
#include "backend/experts.h"

enum {
    SWAPS = 8, /* experts on their way at a time */
    /* As many passes as the host may be ahead (device.n_ahead), so that none waits for another:
     * pinned buffers from which tables are uploaded in turn; waits for stages, read later. */
    TABLE_BUFFERS = STEP_BUFFERS,
    WAIT_SETS = STEP_BUFFERS
};

typedef struct pool_layer {
    expert_layer want;
    expert_home home[EXPERT_PARTS];
    size_t bytes;   /* of an expert: all parts */
    uint8_t *slots; /* device, [n_slots][bytes] */
    uint8_t *from;  /* the lowest address of slots, stages and copies: tables count from it, so no
                       distance is negative */
    uint8_t *host;  /* page-locked, [n_experts][bytes] */
    size_t host_bytes;
    int32_t first; /* of its experts, in tables and counts. They have room for those of other ranks
                      of a tensor split too, which lie nowhere: entries of -1 */
    expert_slots map;
} pool_layer;

typedef struct swap {
    cudaEvent_t copied;
    int32_t layer, slot;
    bool used;
} swap;

struct cuda_experts {
    int32_t n, n_all; /* layers; experts of all layers, also those of other ranks */
    pool_layer *layer;
    uint8_t *memory; /* device */
    size_t memory_bytes;
    bool filled;
    /* Tables [2][n_all]: that of answers, that of prompts that stream. */
    int64_t *table, *table_now, *table_host[TABLE_BUFFERS];
    cudaEvent_t table_sent[TABLE_BUFFERS], table_old; /* table_old: passes before it have ended */
    int32_t table_turn;
    bool table_changed;
    uint32_t *count, *count_host;        /* [n_all] on the device; pinned */
    uint32_t *count_seen, *count_before; /* as last read; as read before that */
    uint64_t *count_all;                 /* [n_all] */
    cudaEvent_t counted;
    bool counting;
    cudaStream_t copies;
    swap swap[SWAPS];
    int32_t turn; /* the layer that chooses first */
    uint8_t *stage[2];
    size_t stage_bytes;
    cudaEvent_t stage_full[2], stage_free[2];
    int32_t staged[2];  /* the layer in it, of this pass; -1: none */
    bool stage_read[2]; /* `stage_free` was not recorded since it was used */
    /* A layer's wait for its stage lies between two events. They are read when a later pass takes
     * their set, so that no pass waits for them. */
    cudaEvent_t *wait[WAIT_SETS];                      /* [n][2] */
    int32_t wait_first[WAIT_SETS], n_waits[WAIT_SETS]; /* layers with events, one after the other */
    int32_t wait_turn;
    int32_t n_passes, n_covered; /* since counts were last asked for; before that: in them */
    int32_t n_uncounted;         /* as n_passes, with those that had their misses in stages */
    bool taken;                  /* counts that have come and are not looked at for swaps yet */
    bool streams;                /* the pass under way */
    bool restless;               /* for tests: slots change hands before every pass */
    uint8_t *prefetch;           /* buffers of prefetch.h */
    size_t prefetch_bytes;       /* of one */
    cuda_offload *offload;       /* NULL: kernels read all misses over the bus */
    uint64_t offload_bytes; /* of experts that it computed, or that came early, as far as read_bytes
                            lacks them */
    expert_use use;
};

/* A failure here ends no later pass: experts are where they were. */
static inline bool fine(cudaError_t r)
{
    if (r == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

static inline uint8_t *slot_at(const pool_layer *l, int32_t slot)
{
    return l->slots + (size_t)slot * l->bytes;
}
static inline uint8_t *host_at(const pool_layer *l, int32_t expert)
{
    return l->host + (size_t)expert * l->bytes;
}
static inline int64_t distance(const pool_layer *l, const uint8_t *to)
{
    return (int64_t)((uintptr_t)to - (uintptr_t)l->from);
}

/* experts_open.c */
uint64_t cuda_experts_one_bytes(const device *d, const expert_layer *l);
uint64_t cuda_experts_bytes(const device *d, const expert_layer *l, int32_t n);
uint64_t cuda_experts_host_bytes(const device *d, const expert_layer *l, int32_t n);
status cuda_experts_open(device *d, const expert_layer *list, int32_t n, err *e);
void cuda_experts_close(device *d);

#endif
