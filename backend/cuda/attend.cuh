/* attend.cuh - which keys a row sees, and where partial results lie: for all attention kernels.
 *
 * The rule is that of cpu/ref.c. Committed keys: by number and window. Keys of this pass: up to
 * `newest` without masks; by the row's mask in a tree, where positions differ from numbers.
 */
#ifndef BACKEND_CUDA_ATTEND_CUH
#define BACKEND_CUDA_ATTEND_CUH

#include "backend/cuda/key_walk.cuh"
#include "backend/cuda/kv_formats.cuh"

/* All keys that a row sees lie in [lo, hi). */
struct sight {
    int lo, hi;
};

DEV sight row_sight(const dev_rows &rs, int r, int window)
{
    sight s = {0, rs.newest[r] + 1};
    if (window && rs.pos[r] - window + 1 > 0)
        s.lo = rs.pos[r] - window + 1;
    if (rs.seen) {
        uint64_t m = rs.seen[r];
        int top = 0;
        while (top < 63 && m >> (top + 1))
            top++;
        if (m)
            s.hi = rs.first[r] + top + 1;
    }
    return s;
}

/* The position of key t, which this pass adds to a tree: the position of the row that writes it. */
DEV int tree_pos(const dev_rows &all, int seq, int t)
{
    for (int i = 0; i < all.n; i++)
        if (all.seq[i] == seq && all.index[i] == t)
            return all.pos[i];
    return t;
}

/* Does row r see key t of its sight? */
DEV bool row_sees(const attend_args &a, int r, int t)
{
    const dev_rows &rs = a.st.rows;
    int first = rs.first[r];
    if (!rs.seen || t < first)
        return true; /* positions are numbers here, and lo accounts for the window */
    if (t - first >= 64 || !(rs.seen[r] >> (t - first) & 1))
        return false;
    return !a.kv.window || rs.pos[r] - tree_pos(a.all, rs.seq[r], t) < a.kv.window;
}

/* Keys per chunk of a row with sight s. */
DEV int row_chunk(const chunk_parts &parts, sight s)
{
    int n = parts.most * SPLIT512_TURN;
    return n ? (s.hi - s.lo + n - 1) / n * SPLIT512_TURN : parts.chunk;
}

/* The partial result of a row, head and chunk: head_dim sums of weighted values, the largest score,
 * the sum of exponentials relative to it. c counts from the first chunk that the row sees. */
DEV float *part_at(const attend_args &a, const chunk_parts &parts, int r, int h, int c)
{
    size_t row = (size_t)(r - parts.row0) * a.n_head + h;
    return parts.at + (row * parts.n_chunk + c) * (a.kv.head_dim + 2);
}

/* Pair m of a tile belongs to its row m / group. */
DEV int pair_row(int m, const tile_deal &deal)
{
    return m * deal.group_inverse >> 16;
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
