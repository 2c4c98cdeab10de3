/* prefetch.h - experts that are copied to the GPU before their layer has chosen them.
 *
 *     layer l        router, guess of layer l + 3 | products, request
 *     host                                              '--> copies to buffers of layer l + 3 --.
 *     layer l + 1          router, guess of layer l + 4 | products, request                     |
 *     layer l + 3                                                  router | products wait <-----'
 *
 * Beside the router of layer l some blocks compute the logits of a later layer's router,
 * PREFETCH_FAR layers on, from the rows that the router of layer l reads (guess.cuh). The columns
 * of the later router are multiplied by the ratio of both routers' norms. So the guess is what the
 * later layer would choose if the rows did not change between. The nearer the layers, the better
 * the guess; but a layer is shorter than the copy of an expert, and layers miss unequally many.
 *
 * Then a warp finds the guessed experts that only the host has. It writes a request for the first
 * few of them: as many as may be on their way besides those of earlier requests. A thread of the
 * host reads the request and starts the copies. After each expert it copies the request's
 * number to the GPU. The later layer then chooses by its own router. If it chooses a requested
 * expert, its products wait for the number and read the buffer. Products read all other offloaded
 * experts over the bus, or the host computes them.
 *
 * The bytes are the same in both places. So a guess changes times and no bit of a result. A copy
 * that fails or comes too late costs a wait of limit_ns, once for a request and wave of blocks.
 *
 * There are PREFETCH_SETS sets of buffers, which layers use in turn. No request is written while
 * copies of an earlier request are on their way to the same buffers. So each set has one open
 * request at most, and the thread reads each request before the GPU overwrites it.
 *
 * The host compares guesses with what layers choose (judge in prefetch.c). If too many guesses are
 * wrong, the GPU looks fewer layers ahead: PREFETCH_NEAR. If more than half of the guesses are
 * still wrong, the GPU requests no expert for some passes. Then the host lets the GPU try again.
 */
#ifndef BACKEND_CUDA_PREFETCH_H
#define BACKEND_CUDA_PREFETCH_H

#include "backend/cuda/experts/offload.h"
#include "backend/cuda/product/launch_products.h"

typedef struct cuda_prefetch cuda_prefetch;

/* Of device memory, for lists and guesses of these layers; the buffers are with the slots
 * (experts_open.c). 0: they are not wanted. */
uint64_t cuda_prefetch_bytes(const expert_layer *l, int32_t n);
/* Leaves *to NULL if no expert is to come early. */
status cuda_prefetch_open(cuda_device *c, const offload_homes *homes, cuda_prefetch **to, err *e);
void cuda_prefetch_close(cuda_device *c, cuda_prefetch *x);
void cuda_prefetch_abandon(cuda_prefetch *x); /* as cuda_offload_abandon */

/* Before a pass that may ask. */
void cuda_prefetch_begin(cuda_device *c, cuda_prefetch *x);
/* Before a launch of this router, which chooses k experts of each of these rows. They stay as they
 * are until the layer's gated product. */
void cuda_prefetch_guess(cuda_prefetch *x, const weight *router, dev_mat rows, int32_t k,
                         bool sigmoid);
/* For that launch, or of several rows for the kernel that hands over. .router NULL: nothing is
 * guessed, because there is no such layer, or more rows than OFFLOAD_JOB_ROWS. */
prefetch_ask cuda_prefetch_ask(cuda_prefetch *x, int32_t layer, int32_t rows);
prefetch_view cuda_prefetch_view(const cuda_prefetch *x, int32_t layer);
void cuda_prefetch_use(cuda_prefetch *x, expert_use *to);

/* For tests: what happens to requests, how long products wait, when guesses are judged. */
typedef enum prefetch_fate { PREFETCH_COMES, PREFETCH_NEVER_COMES, PREFETCH_FAILS } prefetch_fate;
void cuda_prefetch_judge(cuda_prefetch *x, int32_t after, int32_t pause); /* experts, passes */
void cuda_prefetch_test(cuda_prefetch *x, prefetch_fate fate, uint64_t limit_ns, cuda_device *c);

#endif
