/* offload.h - experts without a place on the GPU that the host's cores compute, beside the kernels
 * that read the others over the bus.
 *
 *     router -> hand over -> gated unit -> down product -> ..      kernels of a recorded pass
 *                   |                           ^
 *                   '-> threads of the host ----'                  offload_pool.h
 *
 * After the choice of experts it is looked up which of them are in the host's memory. The host gets
 * some of these, by a table of measured costs, with the rows that chose them. The products leave
 * those pairs out. Where a row's experts are added, the host's products are read from its memory as
 * soon as its word says that they are there. A layer that misses none posts nothing and waits for
 * nothing. Of several rows a kernel of its own hands over. Of one row the block of the router that
 * chooses also tells what becomes of each pair, and a block of the gated product writes the job.
 * That saves a launch in each layer. The bits do not depend on who computed an expert
 * (backend/cpu/offload.h).
 *
 * A kernel waits at most `limit_ns`. Then the pass fails with a sentence, and later passes hand
 * nothing over.
 */
#ifndef BACKEND_CUDA_OFFLOAD_H
#define BACKEND_CUDA_OFFLOAD_H

#include "backend/cuda/cuda_int.h"
#include "backend/cuda/experts/launch_offload.h"
#include "backend/experts.h"

typedef struct cuda_offload cuda_offload;

/* Where experts.c has a layer's experts: page-locked, expert after expert. */
typedef struct offload_home {
    const expert_layer *list;
    size_t expert_bytes;
    int64_t from; /* of expert 0's copy, as tables count */
} offload_home;

/* All of a device's layers. */
typedef struct offload_homes {
    const offload_home *at; /* [n] */
    int32_t n;
    uint8_t *buffers; /* device, [2][n_prefetched][buffer_bytes]: for experts that come early */
    size_t buffer_bytes;
    double bus_bytes_s; /* as measured when the slots were filled */
} offload_homes;

/* After the slots were filled. beside: of another device, whose threads help here too; or NULL. */
status cuda_offload_open(cuda_device *c, const offload_homes *homes, const expert_help *how,
                         cuda_offload *beside, cuda_offload **to, err *e);
void cuda_offload_close(cuda_device *c, cuda_offload *x);
/* Of a GPU that has stalled: ends what can be ended without it. x may be NULL. */
void cuda_offload_abandon(cuda_offload *x);
uint64_t cuda_offload_bytes(const expert_layer *l, int32_t n); /* of device memory */

/* Before a pass. shares: it may hand experts over. */
void cuda_offload_begin(cuda_device *c, cuda_offload *x, bool shares);
/* An answer was late: says so once. */
status cuda_offload_failed(cuda_offload *x, const char *name, err *e);
void cuda_offload_use(const cuda_offload *x, expert_use *to);
/* x, if the pass under way shares; x may be NULL. */
cuda_offload *cuda_offload_shared(cuda_offload *x);

/* For the gated product, which then hands over, if the router has told what becomes of the pairs;
 * else this launches a kernel that tells and hands over. q: the int8 copy of the rows. */
offload_view cuda_offload_dispatch(cuda_device *c, cuda_offload *x, routing r, const weight *gate,
                                   dev_quant q, offload_unit unit);
/* For the product that reads the host's, or one after the other for those of all segments: the
 * same, if the layer's gated product has handed over. */
offload_view cuda_offload_again(cuda_offload *x, const weight *down);
/* For the launch of a router of so many rows, which then tells what becomes of its pairs; .pair
 * NULL: it tells nothing, because there are more rows, or x is NULL or has no such layer. */
offload_rule cuda_offload_tells(cuda_offload *x, const weight *router, int32_t rows, int32_t k);
/* After the launch of a router: prefetch.h. */
void cuda_offload_guess(cuda_offload *x, const weight *router, dev_mat rows, int32_t k,
                        bool sigmoid);
struct cuda_prefetch *cuda_offload_prefetch(cuda_offload *x); /* NULL: nothing is fetched early */

/* For tests: jobs stay unanswered, and kernels wait so long; 0: as usual again. */
void cuda_offload_hold(cuda_offload *x, uint64_t limit_ns, cuda_device *c);

/* The layer's table, from the model's first expert on: those of other ranks lie nowhere. */
const int64_t *cuda_offload_where(const expert_layer *l);

/* experts.c: NULL: the host computes none of the weight's experts in the pass under way. */
cuda_offload *cuda_offload_of(cuda_device *c, const weight *w);
cuda_offload *cuda_offload_any(cuda_device *c); /* of any layer's experts */
/* What went wrong with experts since it was last asked. */
status cuda_experts_failed(const cuda_device *c, err *e);
#endif
