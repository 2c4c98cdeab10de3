/* runtime.c - the GPU that a thread has selected, and failures of the CUDA runtime.
 *
 * The runtime keeps a current GPU per thread. Beside it each thread keeps that GPU's facts for
 * launchers (gpu_facts). No fact of a GPU is kept per process.
 */
#include "backend/cuda/cuda_int.h"

__thread gpu_facts cu_gpu;

/* The current GPU is read first: selecting one costs more. */
cuda_device *cuda_select(const device *d)
{
    cuda_device *c = d->self;
    int now = -1;
    if (cudaGetDevice(&now) != cudaSuccess || now != c->gpu)
        cudaSetDevice(c->gpu);
    cu_gpu = c->facts;
    cu_gpu.overlap = c->facts.overlap && !c->after_edge; /* it overlaps kernels of its own alone */
    return c;
}

bool cuda_ok(cuda_device *c, pass *p, cudaError_t r, const char *doing)
{
    if (r != cudaSuccess)
        cudaGetLastError(); /* else the thread's next op on another device would be told of it */
    if (r != cudaSuccess && !c->broken) {
        c->broken = true;
        err_set(&c->broken_why, r == cudaErrorMemoryAllocation ? E_MEMORY : E_IO, "%s: %s: %s",
                c->dev.name, doing, cudaGetErrorString(r));
    }
    if (c->broken && p)
        err_set(&p->e, c->broken_why.status, "%s", c->broken_why.text);
    return r == cudaSuccess;
}
