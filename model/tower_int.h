/* tower_int.h - what the passes of vision and audio towers share: their inputs in the device's
 * memory. Included by vision_run.c and audio.c alone.
 *
 * A tower's pass gets one piece of memory, its room, which the caller has taken before: a device
 * drops recorded passes when memory is freed. Scratch lies first, then what else the tower needs.
 */
#ifndef MODEL_TOWER_INT_H
#define MODEL_TOWER_INT_H

#include "backend/ops.h"

enum { TOWER_ALIGN = 256 }; /* as allocations of a device are */

static inline size_t tower_align(size_t n_bytes)
{
    return (n_bytes + TOWER_ALIGN - 1) / TOWER_ALIGN * TOWER_ALIGN;
}

/* A matrix whose rows are side by side; at NULL: of a dry pass. */
static inline mat tower_mat(const float *at, int32_t rows, int32_t cols)
{
    return mat_at((float *)(uintptr_t)at, rows, 1, cols, cols);
}

static inline size_t tower_mat_bytes(mat m)
{
    return (size_t)m.rows * (size_t)m.stride * sizeof *m.at;
}

/* The same in the device's memory at *to, which moves on. */
static inline mat tower_placed(device *dev, char **to, mat m)
{
    float *at = (float *)(void *)*to;
    dev->upload(dev, at, m.at, tower_mat_bytes(m));
    *to += tower_mat_bytes(m);
    m.at = at;
    return m;
}

#endif
