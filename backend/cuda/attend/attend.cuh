/* attend.cuh - which keys a row sees, and where partial results lie: for all attention kernels.
 *
 * The rule is that of key_walk.h: a row sees every key of its range. In a tree, keys of this pass
 * are numbered by depth, and own_keys_from says where rows of one sequence begin to differ.
 */
#ifndef BACKEND_CUDA_ATTEND_CUH
#define BACKEND_CUDA_ATTEND_CUH

#include "backend/cuda/attend/key_walk.cuh"
#include "backend/cuda/attend/kv_formats.cuh"
#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/mma.cuh"

/* A row sees the keys [lo, hi). */
struct sight {
    int lo, hi;
};

DEV sight row_sight(const dev_rows &rs, int r, int window)
{
    sight s = {0, rs.newest[r] + 1};
    if (window && rs.pos[r] - window + 1 > 0)
        s.lo = rs.pos[r] - window + 1;
    if (rs.seen) {
        uint64_t mask = rs.seen[r];
        s.hi = rs.first[r] + bits_set((uint32_t)mask) + bits_set((uint32_t)(mask >> 32));
    }
    return s;
}

/* Keys per chunk of a row with sight s. */
DEV int row_chunk(const chunk_parts &parts, sight s)
{
    int n = parts.most * parts.turn, keys = s.hi - s.lo;
    return keys > parts.shallow && n ? (keys + n - 1) / n * parts.turn : parts.chunk;
}

/* The partial result of a row, head and chunk: head_dim sums of weighted values, the largest score,
 * the sum of exponentials relative to it. c counts from the first chunk that the row sees. */
DEV float *part_at(const attend_args &a, const chunk_parts &parts, int r, int h, int c)
{
    size_t row = (size_t)(r - parts.row0) * a.n_head + h;
    return parts.at + (row * parts.n_chunk + c) * (a.kv.head_dim + PART_MORE);
}

/* The rows and the chunks of a block. Rows of a tree share the chunks of committed keys: n_block
 * runs of them, as of all chunks of chains. Chunks with keys of the pass have a block for each row.
 *
 *     block x of a tile   0 .. n_block - 1                 n_block .. n_block + tile_rows - 1
 *     chain               all rows, a run of all chunks    -
 *     tree                all rows, a run of committed     one row, all other chunks
 */
struct tile_part {
    int r0, n_rows;
    bool shared, own; /* committed chunks; the others */
    int run, n_runs;
};
DEV tile_part tile_part_of(const chunk_parts &parts, const tile_schedule &schedule, bool tree,
                           int tile, int x)
{
    int r0 = tile * schedule.tile_rows, n = min(schedule.tile_rows, parts.n_rows - r0);
    if (x < schedule.n_block)
        return tile_part{parts.row0 + r0, n, true, !tree, x, schedule.n_block};
    x -= schedule.n_block;
    return tile_part{parts.row0 + r0 + min(x, n - 1), x < n ? 1 : 0, false, true, 0, 1};
}
/* Blocks of a tile beside n_block. */
static inline int own_blocks(const attend_args &a, const tile_schedule &schedule)
{
    return a.st.rows.seen ? schedule.tile_rows : 0;
}
/* Cuts the keys [first, end) to those of the part; none may be left. */
DEV void part_keys(const tile_part &part, int committed, int shift, int *first, int *end)
{
    int own = committed >> shift << shift; /* the first chunk with keys of the pass */
    if (!part.own)
        *end = max(*first, min(*end, own));
    if (!part.shared)
        *first = min(max(*first, own), *end);
}

/* Pair m of a tile belongs to its row m / group. */
DEV int pair_row(int m, const tile_schedule &schedule)
{
    return m * schedule.group_inverse >> 16;
}

/* Waits until at most `pending` groups of copies are in flight. */
DEV void copies_wait(int pending)
{
    if (pending == 5)
        copy_wait<5>();
    else if (pending == 4)
        copy_wait<4>();
    else if (pending == 3)
        copy_wait<3>();
    else if (pending == 2)
        copy_wait<2>();
    else if (pending == 1)
        copy_wait<1>();
    else
        copy_wait<0>();
}

#endif
