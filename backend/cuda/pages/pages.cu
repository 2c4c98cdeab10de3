/* pages.cu - changes of tables of pages, in device memory. */
#include "backend/cuda/pages/launch_pages.h"
#include "backend/cuda/dev.cuh"

enum { THREADS = 256 };

/* to[i] = word[i]
 * grid:   1
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(THREADS) put_kernel(put_args a)
{
    grid_wait();
    for (int i = (int)threadIdx.x; i < a.n; i += THREADS)
        a.to[i] = a.word[i];
}

extern "C" void cu_put(cudaStream_t s, const put_args *a)
{
    const put_args args = *a; /* the emulator's recordings keep values */
    LAUNCH(put_kernel, dim3(1), dim3(THREADS), 0, s, args);
}
