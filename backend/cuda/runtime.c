/* runtime.c - what every file of the CUDA device asks of the runtime: the GPU that a thread works
 * with, and what went wrong.
 *
 * The runtime keeps a current GPU for each thread. Beside it each thread keeps what launchers must
 * know of that GPU (gpu_facts). Nothing about a GPU is kept for the whole process.
 */
#include "backend/cuda/cuda_int.h"

__thread gpu_facts cu_gpu;

/* Reading the current GPU first: selecting one is the dearer call, and may not be recorded. */
cuda_device *cuda_select(const device *d)
{
    cuda_device *c = d->self;
    int now = -1;
    if (cudaGetDevice(&now) != cudaSuccess || now != c->gpu)
        cudaSetDevice(c->gpu);
    cu_gpu = c->facts;
    return c;
}

bool cuda_ok(cuda_device *c, pass *p, cudaError_t r, const char *doing)
{
    if (r != cudaSuccess && !c->broken) {
        c->broken = true;
        err_set(&c->broken_why, r == cudaErrorMemoryAllocation ? E_MEMORY : E_IO, "%s: %s: %s",
                c->dev.name, doing, cudaGetErrorString(r));
    }
    if (c->broken && p)
        err_set(&p->e, c->broken_why.status, "%s", c->broken_why.text);
    return r == cudaSuccess;
}
