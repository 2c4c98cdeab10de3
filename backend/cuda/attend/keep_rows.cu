/* keep_rows.cu - the rows of a tree's accepted path, moved to the places where a chain's rows would
 * be, in all stores of keys and values at once.
 *
 *     index   first   +1   +2   +3   +4   +5
 *     row       0      1    2    3    4    5       path 0 2 4 5
 *               |      ^----+    |    |    |       row 2 to first + 1,
 *               |           ^---------+    |       row 4 to first + 2,
 *               |                ^---------+       row 5 to first + 3: in this order
 */
#include "backend/cuda/pages/launch_pages.h"
#include "backend/cuda/dev.cuh"

DEV size_t keep_place(const keep_store &s, int64_t t)
{
    return (size_t)(s.page ? s.page[t / PAGE_KEYS].place + t % PAGE_KEYS : t % s.n_slots);
}

/* Words of one head's row: this thread's word, row after row. A row that is overwritten has been
 * read before, by this same thread. */
template <class T> DEV void keep_words(const keep_args &a, const keep_store &s, int i)
{
    int words = s.row_bytes / (int)sizeof(T), h = i / words;
    if (h >= s.n_heads)
        return;
    uint8_t *head = s.at + (size_t)h * s.n_slots * s.row_bytes + (size_t)(i % words) * sizeof(T);
    for (int k = 0; k < a.n; k++) {
        size_t to = keep_place(s, a.first + k), from = keep_place(s, a.first + a.from[k]);
        if (to != from)
            *(T *)(head + to * s.row_bytes) = *(const T *)(head + from * s.row_bytes);
    }
}

/* Row first + k of each head becomes row first + from[k], for k = 0 .. n-1.
 * grid:   256 words of 2, 4 or 16 bytes x store
 * shared: none
 * bound:  latency: n dependent copies */
__global__ void __launch_bounds__(256) keep_rows_kernel(keep_args a)
{
    grid_wait();
    const keep_store &s = a.store[blockIdx.y];
    int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (s.row_bytes % 16 == 0)
        keep_words<uint4>(a, s, i);
    else if (s.row_bytes % 4 == 0)
        keep_words<uint32_t>(a, s, i);
    else
        keep_words<uint16_t>(a, s, i);
}

static int words_of(const keep_store &s)
{
    int size = s.row_bytes % 16 == 0 ? 16 : s.row_bytes % 4 == 0 ? 4 : 2;
    return s.n_heads * (s.row_bytes / size);
}

extern "C" void cu_keep_rows(cudaStream_t s, keep_args a)
{
    int most = 0;
    for (int i = 0; i < a.n_stores; i++)
        most = words_of(a.store[i]) > most ? words_of(a.store[i]) : most;
    LAUNCH(keep_rows_kernel, dim3((unsigned)((most + 255) / 256), (unsigned)a.n_stores), dim3(256),
           0, s, a);
}
