/* chunk_walk.cuh - which tiles of keys a block of split_hopper.cu walks, and for which of its rows.
 *
 *     rows     0 1 2 | 3 4 5 | 6 7      runs: rows of one sequence whose chunks are equally long
 *     chunks   0 1 2 3 4 5 6 7 8 ..     of all runs in a row, dealt to the blocks in turn
 *     tiles    64 keys, from multiples of 64 on
 *
 * In a tree, tiles of committed keys are for all rows of a run; a tile with keys of the pass is
 * walked once for each row that sees some of them.
 */
#ifndef BACKEND_CUDA_CHUNK_WALK_CUH
#define BACKEND_CUDA_CHUNK_WALK_CUH

#include "backend/cuda/attend/flash_hopper.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum { PAIRS = WGMMA_PAIRS, KEYS = 64 /* of a tile */ };

/* What each row of the block sees. */
struct row_notes {
    int lo[PAIRS], hi[PAIRS], seq[PAIRS];
    int chunk[PAIRS];     /* keys of a chunk of this row; 0: it is for split.cu */
    int committed[PAIRS]; /* keys below it were stored by earlier passes */
};
struct work {
    const attend_args &a;
    const chunk_parts &parts;
    const row_notes &rows;
    int r0, n_rows, group;
    int block, n_blocks; /* the block's number among the n_blocks that share these rows */
    bool tree;
};

/* A chunk of some rows of the block: those from r0 to r1 whose chunks have `keys` keys. */
struct row_chunks {
    int r0, r1, keys, c;
};
/* The block's tiles, in the order in which all warpgroups take them. */
struct tile_walk {
    row_chunks of;
    int first, end;      /* keys that these rows see */
    int n, dealt;        /* their chunks; those of earlier runs */
    int t0, from, until; /* the tile at t0 has keys [from, until) alone */
    int own;             /* the only row that the tile is for; -1: all rows */
    bool fresh;          /* a chunk begins */
};

DEV bool takes_part(const work &b, const row_chunks &of, int r)
{
    return r >= of.r0 && r < of.r1 && b.rows.chunk[r] == of.keys;
}

DEV tile_walk walk_begin(const work &b)
{
    tile_walk w = {{0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, -1, false};
    return w;
}
/* The next rows of one sequence with chunks of one length; false after the last. */
DEV bool next_run(const work &b, tile_walk &w)
{
    const row_notes &rows = b.rows;
    int keys = 0x7fffffff;
    for (;;) {
        for (int r = w.of.r0; r < w.of.r1; r++)
            if (rows.chunk[r] > w.of.keys)
                keys = min(keys, rows.chunk[r]);
        if (keys != 0x7fffffff)
            break;
        if (w.of.r1 >= b.n_rows)
            return false;
        w.of.r0 = w.of.r1++;
        while (w.of.r1 < b.n_rows && rows.seq[w.of.r1] == rows.seq[w.of.r0])
            w.of.r1++;
        w.of.keys = 0;
    }
    w.of.keys = keys;
    w.first = 0x7fffffff, w.end = 0;
    for (int r = w.of.r0; r < w.of.r1; r++)
        if (takes_part(b, w.of, r)) {
            w.first = min(w.first, rows.lo[r]);
            w.end = max(w.end, rows.hi[r]);
        }
    w.dealt += w.n;
    int c0 = w.first / keys;
    w.n = (w.end - 1) / keys + 1 - c0;
    w.of.c = c0 + (b.block + b.n_blocks - w.dealt % b.n_blocks) % b.n_blocks;
    return true;
}
/* A tree's tiles with keys of the pass: those of the next row that has some in this chunk. */
DEV bool next_own(const work &b, tile_walk &w)
{
    const row_notes &rows = b.rows;
    int own_from = rows.committed[w.of.r0] / KEYS * KEYS;
    int end = min(w.end, (w.of.c + 1) * w.of.keys), t0 = max(w.from / KEYS * KEYS, own_from);
    for (int r = w.own < 0 ? w.of.r0 : w.own + 1; b.tree && r < w.of.r1; r++) {
        int until = min(end, rows.hi[r]);
        if (takes_part(b, w.of, r) && t0 < until) {
            w.own = r, w.t0 = t0, w.until = until;
            return true;
        }
    }
    return false;
}
/* Goes to the next tile; false after the last. */
DEV bool walk_on(const work &b, tile_walk &w)
{
    w.t0 += KEYS;
    w.fresh = false;
    if (w.t0 < w.until || (w.n && next_own(b, w)))
        return true;
    w.of.c += b.n_blocks;
    w.fresh = true;
    for (;;) {
        int c0 = w.n ? w.first / w.of.keys : 0;
        if (w.of.c >= c0 + w.n) {
            if (!next_run(b, w))
                return false;
            continue;
        }
        w.from = max(w.first, w.of.c * w.of.keys);
        w.until = min(w.end, (w.of.c + 1) * w.of.keys);
        w.t0 = w.from / KEYS * KEYS;
        w.own = -1;
        if (b.tree)
            w.until = min(w.until, b.rows.committed[w.of.r0] / KEYS * KEYS);
        if (w.t0 < w.until || next_own(b, w))
            return true;
        w.of.c += b.n_blocks;
    }
}

/* Where pair m leaves its result of the chunk; NULL if it has none. */
DEV float *pair_part(const work &b, const row_chunks &of, int m)
{
    int r = m / b.group, head = (int)blockIdx.y * b.group + m - r * b.group;
    if (!takes_part(b, of, r) || of.c * of.keys >= b.rows.hi[r])
        return NULL;
    int part = of.c - b.rows.lo[r] / of.keys;
    return part < 0 ? NULL : part_at(b.a, b.parts, b.r0 + r, head, part);
}

#endif
