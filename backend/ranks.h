/* ranks.h - the ranks of a tensor split: one forward pass for each, and where they meet.
 *
 * Each rank runs the model's own forward pass over its part of every layer, on its own device and
 * with a pass of its own (pass.rank). They take turns: a rank runs until it needs what the others
 * have computed, and then the next one runs. So there is one thread at work at any time, no op
 * needs a lock, and devices that compute asynchronously still work side by side.
 *
 *     rank 0   ops, meets |                    | ops, meets |
 *     rank 1              | ops, meets |       |            | ops, ...
 *     rank 2                           | ops, meets: all have arrived, what was posted is copied
 *
 * Rank 0 runs on the thread of the caller, the others on threads that sleep between passes.
 */
#ifndef BACKEND_RANKS_H
#define BACKEND_RANKS_H

#include "backend/ops.h"

typedef struct ranks ranks;
typedef void ranks_fn(void *arg, int32_t rank);

/* n: 1 to RANKS_MAX. E_MEMORY; E_LIMIT: the system has no thread left for a rank. */
status ranks_open(ranks **r, int32_t n, err *e);
/* Sums of few rows go through inboxes (rank_sum) from here on, where the devices have them: dev [n]
 * stay open until ranks_close. cols: outputs of the widest product whose inputs are cut. E_MEMORY:
 * no inbox was opened. */
status ranks_open_inboxes(ranks *r, device *const *dev, int32_t cols, err *e);
void ranks_close(ranks *r); /* NULL is allowed */
/* Is each device's memory read by the kernels of all others? Then inboxes are there, else in the
 * host's. Has each a GPU of its own? dev: [n] */
bool ranks_read_each_other(device *const *dev, int32_t n);
bool ranks_have_own_gpus(device *const *dev, int32_t n);
/* fn of every rank, in turns. of: [n] their passes. One call at a time; any thread. */
void ranks_run(ranks *r, pass *of, ranks_fn *fn, void *arg);

/* ---- For ops, inside fn. p is the pass of the rank that has its turn. Ranks of a dry pass do not
 * meet. */

/* y of each rank becomes x W' of all ranks' inputs. w: cut into segments, of which the rank has
 * some; x: their inputs. The result is the sum of the segments' products, in one order for any
 * number of ranks (model/shard.h). */
mat ranks_matmul(pass *p, mat x, const weight *w);
/* op_moe_down of experts that are cut, or of which a segment has some. */
mat ranks_moe_down(pass *p, mat x, routing r, const weight *down);
/* op_mixture of such experts by the device's own op. False: it is not for this one, and nothing was
 * done. */
bool ranks_mixture(pass *p, mat *y, mat x, const mixture *m);
/* y of rank 0 is copied to y of the others. */
void ranks_spread(pass *p, mat y);

#endif
