/* ahead_int.h - how far ahead of themselves x86 kernels ask for packed weights.
 *
 * A superblock is read scales first, then out of order, so the hardware's prefetchers lose the
 * stream, and the kernels ask for its lines themselves. What is best depends on the maker:
 *
 *   Intel  From memory to the second cache 4 KB ahead, from there to the first one 2 KB ahead. A
 *          request for the first cache holds one of its sixteen miss buffers until memory answers,
 *          so 8 KB ahead of such requests stop all other reading. Formats that are read strictly
 *          upwards gain too.
 *   AMD    To the first cache 8 KB ahead, less is slower; formats that are read strictly upwards
 *          are left to the hardware. (The second request finds the line under way.)
 *
 * bench/journal/cpu.md has the figures.
 */
#ifndef BACKEND_CPU_AHEAD_INT_H
#define BACKEND_CPU_AHEAD_INT_H

#include "backend/cpu/vec_int.h"

#include <stdbool.h>

typedef struct reach {
    int32_t near, far; /* bytes: to the first cache, to the second one */
    bool upwards;      /* also for formats that are read strictly upwards */
} reach;

INLINE reach how_far_ahead(void)
{
    return __builtin_cpu_is("amd") ? (reach){8192, 8192, false} : (reach){2048, 4096, true};
}

/* Asks for the lines of n_bytes, from the two distances after p on. */
INLINE void ask_ahead(const uint8_t *p, int n_bytes, const reach *a)
{
    for (int i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *)p + a->near + i, _MM_HINT_T0);
        _mm_prefetch((const char *)p + a->far + i, _MM_HINT_T1);
    }
}

#endif
