/* offload_pool.h - threads of the host that compute offloaded experts which a GPU hands over
 * (offload_post.h).
 *
 * The GPU hands over a job: some experts of a layer, and the rows that chose them. A job is divided
 * into items:
 *
 *     gate items   16 outputs of one of the two products of a gated unit, for all rows of the
 *                  expert. Four of them make 32 outputs of the unit; the last one to end makes
 *                  their int8 copy
 *     down items   16 outputs of every segment of the down product, after all gate items of the
 *                  expert
 *
 * Threads take some items at a time, and the last ones one by one, so a slow core delays others
 * little. The thread that ends the last item answers. While a pass may post jobs, the threads poll
 * a word in memory: first without pauses, then with pauses that grow. A minute after the last pass
 * they sleep, and look twice a second. Results do not depend on how many threads there are, nor on
 * which computes what.
 *
 * Threads call nothing of a GPU's driver, allocate nothing, and hold no lock that others keep. So
 * a kernel that waits for them cannot wait for itself. They end when the pool closes, and in no
 * other way.
 */
#ifndef BACKEND_CPU_OFFLOAD_POOL_H
#define BACKEND_CPU_OFFLOAD_POOL_H

#include "backend/cpu/offload.h"
#include "backend/cpu/offload_post.h"

/* A layer's experts: matrices of expert 0; each next expert lies expert_bytes further on. up may be
 * gate's matrix, from tile up_tile on. n_ff, the outputs of a gated unit, is a multiple of 32.
 * down: one matrix, or the segments of a tensor split, of which each has some of the inputs; in the
 * room their products follow each other. What is added to both products before the unit: of expert
 * e bias_step * e further on, or NULL. Jobs count experts from `first` on. */
enum { OFFLOAD_SEGMENTS = 4 };
typedef struct offload_layer {
    offload_matrix gate, up, down[OFFLOAD_SEGMENTS];
    size_t expert_bytes;
    int32_t first, n_experts, n_ff, n_down, up_tile, gate_parts;
    const float *gate_bias, *up_bias;
    int32_t bias_step;
} offload_layer;

typedef struct offload_pool offload_pool;

/* Bytes of the block of memory that GPU and host share. Sets the sizes in *room, and its pointers
 * if `at` is not NULL: the block, aligned to 64 bytes. */
size_t offload_room_bytes(const offload_layer *l, int32_t n, char *at, offload_room *room);

/* The layers are copied; the room, the weights and the biases outlive the pool. The room is zeroed;
 * open sets the number of the last job. n_threads 0: one per physical core that this process may
 * use, but for one core, which the thread that waits for the GPU has. isa as in
 * offload_kernels_find. E_ARG for layers that this file cannot compute. */
status offload_pool_open(offload_pool **p, const offload_layer *l, int32_t n,
                         const offload_room *room, int32_t n_threads, const char *isa, err *e);
/* The same for another device that shares the model's layers, whose jobs have a room of their own.
 * The threads of `beside` and its kernels compute both. E_ARG for too many. */
enum { OFFLOAD_POOLS_MAX = 9 };
status offload_pool_open_beside(offload_pool **p, offload_pool *beside, const offload_layer *l,
                                int32_t n, const offload_room *room, err *e);
/* No job may be under way. Ends the threads, also those that others share: these answer no more,
 * and may only be closed. */
void offload_pool_close(offload_pool *p);

/* Before a pass that may post jobs. Cheap; any thread. */
void offload_pool_wake(offload_pool *p);

/* Milliseconds for one expert of layer 0 and one row, by a job of the next `n` experts: they come
 * from memory, where those of earlier calls are in caches. This thread posts it itself, before any
 * device does. Negative: no answer within a second (offload_pool_limit_ns, which
 * tests raise), or an earlier job has none yet. */
extern int64_t offload_pool_limit_ns;
double offload_pool_time(offload_pool *p, int32_t n);

typedef struct offload_use {
    uint64_t n_jobs, n_experts, n_pairs, bytes; /* answered; weights that were read */
} offload_use;
offload_use offload_pool_use(const offload_pool *p);
int32_t offload_pool_threads(const offload_pool *p);
const char *offload_pool_isa(const offload_pool *p);

/* For tests: from now on no job is answered (true), or jobs are again. */
void offload_pool_hold(offload_pool *p, bool hold);
/* For tests: threads sleep soon after the last job, as they do a minute later. */
void offload_pool_tire(offload_pool *p);

#endif
