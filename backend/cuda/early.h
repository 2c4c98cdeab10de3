/* early.h - experts that are copied to the GPU before their layer has chosen them.
 *
 *     layer l      router, guess of layer l + 1 | hand over, ask | products ..
 *     host                                             '--> copies to buffers of layer l + 1 --.
 *     layer l + 1                        router, guess | hand over, ask | products wait for them
 *
 * The router of layer l also has the rows of layer l + 1's, with their columns multiplied by the
 * ratio of both routers' norms: what that router would choose if nothing changed in between. The
 * kernel that hands experts over (cold.h) asks the host for some of those that are in its memory
 * alone. A thread of the host starts the copies, and after each part of an expert one of the
 * number of the request. If the layer then chooses such an expert, its products wait for that
 * number and read the buffer; others are read over the bus or handed over, as without a guess.
 *
 * The bytes are the same in both places. So a guess changes times and no bit of a result, and a
 * copy that fails or comes too late costs a wait of limit_ns, once for a request and wave of
 * blocks.
 *
 * There are two sets of buffers, for layers with even and odd numbers. A request waits for nobody:
 * while copies of an earlier one are on their way to the same buffers, nothing is asked for. So at
 * most two requests are open, and no entry of the post is overwritten before it was answered.
 */
#ifndef BACKEND_CUDA_EARLY_H
#define BACKEND_CUDA_EARLY_H

#include "backend/cuda/cold.h"
#include "backend/cuda/launch_products.h"

typedef struct cuda_early cuda_early;

/* Of device memory, for lists and guesses of these layers; the buffers are with the slots
 * (experts_open.c). 0: they are not wanted. */
uint64_t cuda_early_bytes(const expert_layer *l, int32_t n);
/* buffers: device, [2][n_early][buffer_bytes]. Leaves *to NULL if they are not wanted. */
status cuda_early_open(cuda_device *c, const cold_home *home, int32_t n, uint8_t *buffers,
                       size_t buffer_bytes, double bus_bytes_s, cuda_early **to, err *e);
void cuda_early_close(cuda_device *c, cuda_early *x);

/* Before a pass that may ask. */
void cuda_early_begin(cuda_device *c, cuda_early *x);
/* Adds the guess of the next layer to a launch of this router; rows: as many as COLD_JOB_ROWS at
 * most. Nothing if there is no next layer. */
void cuda_early_guess(cuda_early *x, const weight *router, router_args *a);
/* After that launch, for the kernel that hands over the layer's experts. */
early_ask cuda_early_ask(cuda_early *x, int32_t layer, int32_t rows);
early_view cuda_early_view(const cuda_early *x, int32_t layer, int part);
void cuda_early_use(cuda_early *x, expert_use *to);

/* For tests: what happens to requests, and how long products wait. */
typedef enum early_fate { EARLY_COMES, EARLY_NEVER_COMES, EARLY_FAILS } early_fate;
void cuda_early_test(cuda_early *x, early_fate fate, uint64_t limit_ns, cuda_device *c);

#endif
