/* lists.cuh - the walk over listed tiles of keys (block selection, sparse.h), for the kernels of
 * prompts. A list has a bit for each tile of LIST_KEYS keys. */
#ifndef BACKEND_CUDA_LISTS_CUH
#define BACKEND_CUDA_LISTS_CUH

#include "backend/cuda/dev.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum { LIST_KEYS = SELECT_ROWS };

/* The first key of the first listed tile from t on, or a number of at least `until`. */
DEV int next_listed(const uint32_t *list, int t, int until)
{
    int n = t / LIST_KEYS, end = (until + LIST_KEYS - 1) / LIST_KEYS;
    uint32_t bits = n < end ? list[n / 32] >> n % 32 : 0;
    if (bits & 1)
        return t;
    while (!bits) {
        n = (n / 32 + 1) * 32;
        if (n >= end)
            return until;
        bits = list[n / 32];
    }
    return (n + lowest_bit(bits)) * LIST_KEYS;
}

#endif
