/* flash.cuh - what the kernels of many rows over f16 share: the walk over tiles of keys, softmax,
 * masks, and the state between slices.
 *
 *     block    PAIRS pairs (row, head) of one KV head, from neighbouring rows
 *     keys     tiles of 32 to 128, from multiples of their length on
 *     slice    [from, until) of the keys: a launch (attend_slice)
 *
 * A launch takes one slice: all keys, in the store, or some keys as expand.cu wrote them. The
 * maximum, sum and O of every pair continue from the slice before.
 *
 * Instances of the kernels:
 *
 *     DENSE    all keys
 *     SKIPS    skip-softmax (sparse.h), in heads of 512 alone: in smaller ones votes cost
 *              more than they save
 *     LISTED   block selection
 *
 * SKIPS: each pair votes on each tile by itself. A tile that all pairs that share the product drop
 * is not multiplied by values. Where some pairs keep it, the probabilities of the others are 0. So
 * a pair's bits do not depend on the others.
 *
 * LISTED: the rows of a launch are whole query blocks, and a block of threads has pairs of one of
 * them: LIST_KEYS rows times the group is a multiple of PAIRS. So all its pairs read the tiles of
 * one list.
 *
 * A warp's scores and its share of O lie as mma.sync and wgmma leave them: a lane has elements of
 * two pairs, its upper (h 0) and its lower one (h 1), eight pairs on.
 */
#ifndef BACKEND_CUDA_FLASH_CUH
#define BACKEND_CUDA_FLASH_CUH

#include "backend/cuda/attend/attend.cuh"
#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/attend/lists.cuh"

enum how { DENSE, SKIPS, LISTED };

/* The keys that each pair sees, and its row. */
template <int PAIRS> struct sights {
    int lo[PAIRS], hi[PAIRS], row[PAIRS];
};

/* TILE: keys of a tile. */
template <int D, int PAIRS, int TILE> struct job {
    static constexpr int KEYS = TILE;
    const attend_args &a;
    const attend_slice &slice;
    const dev_sparse &sparse;
    const sights<PAIRS> &sees;
    int pair0, n_pairs, group;
    const uint32_t *list; /* LISTED: a bit for each tile of LIST_KEYS keys */
};

/* The pairs of this block. The last rows come first: they see the most keys. */
template <int D, int PAIRS, int TILE>
DEV job<D, PAIRS, TILE> job_of(const flash_args &x, sights<PAIRS> &sees, const uint32_t *list)
{
    const attend_args &a = x.a;
    int group = a.n_head / a.kv.n_head_kv;
    int pair0 = (int)(gridDim.x - 1 - blockIdx.x) * PAIRS;
    return job<D, PAIRS, TILE>{
        a, x.slice, x.sparse, sees, pair0, min(PAIRS, a.st.rows.n * group - pair0), group, list};
}
/* The block's tiles of keys, in the order in which all warpgroups take them; a slice may have none.
 * A block may have rows of several sequences: each run [r0, r1) of one sequence walks its own keys.
 */
struct walk {
    int r0, r1, t0, from, until;
    bool fresh; /* the first tile of a run */
};

template <class J> DEV walk walk_begin(const J &b)
{
    int r = b.pair0 / b.group;
    return walk{r, r, 0, 0, 0, false};
}
/* Goes to the next tile; false after the last. */
template <how HOW, class J> DEV bool walk_on(const J &b, walk &w)
{
    int last = (b.pair0 + b.n_pairs - 1) / b.group;
    w.t0 += J::KEYS;
    w.fresh = false;
    if constexpr (HOW == LISTED)
        w.t0 = next_listed(b.list, w.t0, w.until);
    while (w.t0 >= w.until) {
        if (w.r1 > last)
            return false;
        w.r0 = w.r1;
        w.from = 0x7fffffff, w.until = 0;
        int seq = b.a.st.rows.seq[w.r0];
        for (; w.r1 <= last && b.a.st.rows.seq[w.r1] == seq; w.r1++) {
            int m = max(w.r1 * b.group - b.pair0, 0);
            w.from = min(w.from, b.sees.lo[m]);
            w.until = max(w.until, b.sees.hi[m]);
        }
        w.from = max(w.from, b.slice.from);
        w.until = min(w.until, b.slice.until);
        w.t0 = w.from / J::KEYS * J::KEYS;
        w.fresh = true;
        if constexpr (HOW == LISTED)
            w.t0 = next_listed(b.list, w.t0, w.until);
    }
    return true;
}

/* ---- Before the first tile ---------------------------------------------------------------- */

/* The keys that pairs see. By all threads of the block. */
template <int D, int PAIRS, int KEYS>
DEV void score_keys(const job<D, PAIRS, KEYS> &b, sights<PAIRS> *sees)
{
    for (int i = (int)threadIdx.x; i < PAIRS; i += (int)blockDim.x) {
        sight s = {0, 0};
        int r = (b.pair0 + min(i, b.n_pairs - 1)) / b.group;
        if (i < b.n_pairs)
            s = row_sight(b.a.st.rows, r, b.a.kv.window);
        sees->lo[i] = s.lo;
        sees->hi[i] = s.hi;
        sees->row[i] = r;
    }
}

/* ---- A tile of scores --------------------------------------------------------------------- */

/* Minus infinity for keys that pair m, the thread's upper (h 0) or lower (h 1) one, does not see.
 */
template <int D, int PAIRS, int KEYS>
DEV void mask(const job<D, PAIRS, KEYS> &b, float (&s)[KEYS / 2], const walk &w, int m, int h)
{
    int r = b.sees.row[m], lo = b.sees.lo[m], hi = b.sees.hi[m];
    bool mine = r >= w.r0 && r < w.r1;
    if (mine && w.t0 >= lo && w.t0 + KEYS <= hi)
        return;
    uint32_t sees = 0;
#pragma unroll 1
    for (int j = 0; j < KEYS / 4; j++) {
        int t = w.t0 + j / 2 * 8 + lane_id() % 4 * 2 + j % 2;
        sees |= (uint32_t)(mine && t >= lo && t < hi) << j;
    }
#pragma unroll
    for (int j = 0; j < KEYS / 4; j++) {
        float &x = s[j / 2 * 4 + 2 * h + j % 2];
        x = sees >> j & 1 ? x : -INFINITY;
    }
}

/* A pair's maximum so far, and its sum of exponentials over the thread's columns. */
struct softmax {
    float top, sum;
};
/* Scores of pair h to exponentials relative to the new maximum; returns the factor of earlier sums.
 */
constexpr float log2_e = 1.4426950408889634f;
template <int N> DEV float exponentials_from(float (&s)[N], softmax &x, float best, int h)
{
    float part = 0;
    float less = best == -INFINITY ? 0 : -best * log2_e; /* no infinity minus itself */
    float keep = best == x.top ? 1 : fast_exp2(fma_rn(x.top, log2_e, less));
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        float &v = s[j / 2 * 4 + 2 * h + j % 2];
        v = fast_exp2(fma_rn(v, log2_e, less));
        part += v;
    }
    x.top = best;
    x.sum = x.sum * keep + part;
    return keep;
}
template <int N> DEV float exponentials(float (&s)[N], softmax &x, int h)
{
    float best = x.top;
#pragma unroll
    for (int j = 0; j < N / 2; j++)
        best = fmaxf(best, s[j / 2 * 4 + 2 * h + j % 2]);
    best = fmaxf(best, shfl_xor_f32(best, 1));
    best = fmaxf(best, shfl_xor_f32(best, 2));
    return exponentials_from(s, x, best, h);
}

/* ---- Tiles that are dropped (sparse.h) ---------------------------------------------------- */

/* A pair's sparse_walk. dropped: tiles. */
struct votes {
    float limit, delta, dropped;
};
/* Keys of tile w that pair m sees. */
template <class J> DEV int keys_in(const J &b, const walk &w, int m)
{
    int r = b.sees.row[m], n = min(b.sees.hi[m], w.t0 + J::KEYS) - max(b.sees.lo[m], w.t0);
    return r >= w.r0 && r < w.r1 ? max(n, 0) : 0;
}
/* As exponentials, of a pair that drops the tile if its largest score is so low; then all are 0.
 * A NaN keeps the tile, so that it shows. live: the tile adds to the pair's sums. */
template <class J, int N>
DEV float vote(const J &b, float (&s)[N], softmax &x, votes &v, const walk &w, int m, int h,
               bool *live)
{
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < N / 2; j++)
        top = max_nan(top, s[j / 2 * 4 + 2 * h + j % 2]);
    top = max_nan(top, shfl_xor_f32(top, 1));
    top = max_nan(top, shfl_xor_f32(top, 2));
    *live = top != -INFINITY && !(top - x.top < v.limit);
    if (*live) {
        float keep = exponentials_from(s, x, fmaxf(x.top, top), h);
        v.delta *= keep;
        return keep;
    }
    int n = keys_in(b, w, m);
    if (n && top != -INFINITY) {
        v.delta += (float)n * fast_exp2((top - x.top) * log2_e);
        v.dropped += 1;
    }
#pragma unroll
    for (int j = 0; j < N / 2; j++)
        s[j / 2 * 4 + 2 * h + j % 2] = 0;
    return 1;
}
/* Over the four lanes that share a pair. */
DEV float whole_sum(const softmax &x)
{
    float v = x.sum + shfl_xor_f32(x.sum, 1);
    return v + shfl_xor_f32(v, 2);
}

/* ---- From slice to slice ------------------------------------------------------------------ */

/* The head of pair m of the block; m < n_pairs. */
template <class J> DEV int head_of(const J &b, int m)
{
    return (int)blockIdx.y * b.group + (b.pair0 + m) % b.group;
}
template <class J> DEV float *carry_of(const J &b, int m)
{
    return b.slice.carry +
           SLICE_CARRY * ((size_t)((b.pair0 + m) / b.group) * b.a.n_head + head_of(b, m));
}
/* Where the sums of a thread's columns 8 j + 2 t of pair m lie, from `column` on. */
template <class J> DEV float *sums_of(const J &b, int m, int column, int dim)
{
    return b.a.o.at + (b.pair0 + m) / b.group * b.a.o.stride + head_of(b, m) * dim + column +
           2 * (lane_id() & 3);
}

/* Pair m before the first tile, as the slice before left it. Each of the pair's four threads goes
 * on with its own sum: one thread with the whole sum would round differently. */
template <class J> DEV softmax softmax_begin(const J &b, int m)
{
    softmax x = {-INFINITY, 0};
    if (!b.slice.first && m < b.n_pairs) {
        const float *c = carry_of(b, m);
        x.top = c[0];
        x.sum = c[1 + (lane_id() & 3)];
    }
    return x;
}
/* The same of pair m with its head's sink, after the last slice. */
template <class J> DEV float sum_with_sink(const J &b, const softmax &x, int m)
{
    float sum = whole_sum(x);
    if (b.a.kv.sinks && m < b.n_pairs)
        sum += fast_exp2((b.a.kv.sinks[head_of(b, m)] - x.top) * log2_e);
    return sum;
}
/* After the last tile: returns the factor of O. */
template <class J> DEV float softmax_end(const J &b, const softmax &x, int m)
{
    if (b.slice.last)
        return 1.0f / sum_with_sink(b, x, m);
    if (m < b.n_pairs) {
        float *c = carry_of(b, m);
        if ((lane_id() & 3) == 0)
            c[0] = x.top;
        c[1 + (lane_id() & 3)] = x.sum;
    }
    return 1;
}

template <class J> DEV votes votes_begin(const J &b, int m)
{
    int n = b.sees.hi[m] - b.sees.lo[m];
    votes v = {fminf(logf(b.sparse.skip) - logf((float)n), 0.0f), 0, 0};
    if (!b.slice.first && m < b.n_pairs) {
        const float *c = carry_of(b, m);
        v.delta = c[5];
        v.dropped = c[6];
    }
    return v;
}
/* After the last tile of a slice; x: as softmax_end takes it. */
template <class J> DEV void votes_end(const J &b, const votes &v, const softmax &x, int m)
{
    float sum = b.slice.last ? sum_with_sink(b, x, m) : 0;
    if ((lane_id() & 3) || m >= b.n_pairs)
        return;
    if (!b.slice.last) {
        float *c = carry_of(b, m);
        c[5] = v.delta;
        c[6] = v.dropped;
        return;
    }
    if (!b.sparse.stats)
        return;
    enum { DECADES = 8, STEPS = 20, BINS = SPARSE_COUNTS - 2 }; /* of sparse.h */
    int tiles = (b.sees.hi[m] + J::KEYS - 1) / J::KEYS - b.sees.lo[m] / J::KEYS, bin = 0;
    float share = v.delta > 0 ? v.delta / (sum + v.delta) : 0;
    if (share >= 1e-8f)
        bin = min((int)floorf((log10f(share) + DECADES) * STEPS) + 1, BINS - 1);
    atomicAdd(&b.sparse.stats[0], (unsigned long long)tiles);
    atomicAdd(&b.sparse.stats[1], (unsigned long long)(tiles - (int)v.dropped));
    atomicAdd(&b.sparse.stats[2 + bin], 1ull);
}

/* ---- P and O in registers --------------------------------------------------------------- */

/* Scores in the layout of a product's result to f16 in the layout of its first factor. */
template <int N> DEV void to_f16(const float (&x)[N], uint32_t (&p)[N / 8][4])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        p[i / 4][i % 4] = f32x2_to_f16(x[2 * i], x[2 * i + 1]);
}

/* Scales O of pairs m0 and m0 + 8 to their new maxima. */
template <int N> DEV void worth(float (&o)[N], const float (&keep)[2])
{
    if (!warp_max_u32(keep[0] != 1 || keep[1] != 1)) /* rare after the first tiles */
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= keep[i >> 1 & 1];
}

#endif
