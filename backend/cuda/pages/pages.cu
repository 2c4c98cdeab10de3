/* pages.cu - whole pages of linear stores, copied to other places. And changes of tables of pages.
 *
 *     store   head 0 | .. [64 rows] .. | head 1 | .. [64 rows] .. |     a segment: 64 rows
 *
 * A segment is a multiple of 128 bytes, wherever it lies: rows have an even number of bytes.
 */
#include "backend/cuda/pages/launch_pages.h"
#include "backend/cuda/dev.cuh"

enum { THREADS = 256, WORDS = 4 /* of 16 bytes, of a thread */ };

DEV uint4 *segment_of(const keep_store &s, int head, int place)
{
    return (uint4 *)(s.at + ((size_t)head * s.n_slots + place) * s.row_bytes);
}

/* Pages from[i] to places to[i].
 * grid:   1024 words of 16 bytes of a store's segments x store x page
 * shared: none
 * bound:  memory */
__global__ void __launch_bounds__(THREADS) pages_kernel(page_args a)
{
    grid_wait();
    const keep_store &s = a.store[blockIdx.y];
    int page = (int)blockIdx.z, words = s.row_bytes * (PAGE_KEYS / 16);
    int i0 = (int)blockIdx.x * THREADS * WORDS + (int)threadIdx.x;
    uint4 x[WORDS];
    uint4 *to[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        int i = i0 + k * THREADS, head = i / words, w = i - head * words;
        to[k] = NULL;
        if (head >= s.n_heads)
            continue;
        to[k] = segment_of(s, head, a.to[page]) + w;
        x[k] = segment_of(s, head, a.from[page])[w];
    }
#pragma unroll
    for (int k = 0; k < WORDS; k++)
        if (to[k])
            *to[k] = x[k];
}

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

extern "C" void cu_pages(cudaStream_t s, page_args a)
{
    int most = 0;
    for (int i = 0; i < a.n_stores; i++) {
        int n = a.store[i].n_heads * a.store[i].row_bytes * (PAGE_KEYS / 16);
        most = n > most ? n : most;
    }
    dim3 grid((unsigned)((most + THREADS * WORDS - 1) / (THREADS * WORDS)), (unsigned)a.n_stores,
              (unsigned)a.n);
    LAUNCH(pages_kernel, grid, dim3(THREADS), 0, s, a);
}
