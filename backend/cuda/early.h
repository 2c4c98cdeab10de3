/* early.h - experts that are copied to the GPU before their layer has chosen them.
 *
 *     layer l      router, guess of layer l + 1 | hand over, ask | products ..
 *     host                                             '--> copies to buffers of layer l + 1 --.
 *     layer l + 1                        router, guess | hand over, ask | products wait for them
 *
 * The router's kernel of layer l also computes the logits of layer l + 1's router, from the rows of
 * layer l. The columns of that router are multiplied by the ratio of both routers' norms. So the
 * guess is what layer l + 1 would choose if the rows did not change between.
 *
 * The kernel that hands experts over (cold.h) finds the guessed experts that only the host has. It
 * writes a request for the first few of them. A thread of the host reads the request and starts the
 * copies. After each part of an expert it copies the request's number to the GPU. Layer l + 1 then
 * chooses by its own router. If it chooses a requested expert, its products wait for the number and
 * read the buffer. Products read all other cold experts over the bus, or the host computes them.
 *
 * The bytes are the same in both places. So a guess changes times and no bit of a result. A copy
 * that fails or comes too late costs a wait of limit_ns, once for a request and wave of blocks.
 *
 * Layers with even and odd numbers have buffers of their own. The kernel writes no request while
 * copies of an earlier request are on their way to the same buffers. So at most two requests are
 * open, and the thread reads each request before the GPU overwrites it.
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
