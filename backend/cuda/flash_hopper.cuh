/* flash_hopper.cuh - what the kernels of many rows on GPUs of 9.0 share: the walk over tiles of
 * keys, copies into shared memory, queries, softmax, masks, and the state between slices.
 *
 *     block    PAIRS pairs (row, head) of one KV head, from neighbouring rows
 *     keys     tiles of 64 or 128, from multiples of their length on; in blocks of 64 columns
 *              (hopper.cuh)
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
 * SKIPS: each pair votes on each tile by itself. A tile that all pairs of the block drop is not
 * multiplied by values. Where some pairs keep it, the probabilities of the others are 0. So a
 * pair's bits do not depend on the others.
 *
 * LISTED: the rows of a launch are whole query blocks, and a block of threads has pairs of one of
 * them: LIST_KEYS rows times the group is a multiple of PAIRS. So all its pairs read the tiles of
 * one list, which lies in shared memory.
 */
#ifndef BACKEND_CUDA_FLASH_HOPPER_CUH
#define BACKEND_CUDA_FLASH_HOPPER_CUH

#include "backend/cuda/attend.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/launch_attend.h"
#include "backend/cuda/lists.cuh"

enum {
    GROUP_THREADS = 128,
    ROW_BYTES = 128,              /* of a block */
    BLOCK_BYTES = 64 * ROW_BYTES, /* of 64 keys or pairs */
};

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
DEV job<D, PAIRS, TILE> job_of(const hopper_args &x, sights<PAIRS> &sees, const uint32_t *list)
{
    const attend_args &a = x.a;
    int group = a.n_head / a.kv.n_head_kv;
    int pair0 = (int)(gridDim.x - 1 - blockIdx.x) * PAIRS;
    return job<D, PAIRS, TILE>{
        a, x.slice, x.sparse, sees, pair0, min(PAIRS, a.st.rows.n * group - pair0), group, list};
}
/* LISTED: the list of this block's pairs, to shared memory. By all threads. */
template <class J> DEV void load_list(const J &b, uint32_t *to)
{
    int block = b.pair0 / (LIST_KEYS * b.group), n = b.sparse.n_word;
    const uint32_t *from =
        b.sparse.kept + ((size_t)block * b.a.kv.n_head_kv + blockIdx.y) * (size_t)n;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        to[i] = from[i];
}
/* Bytes of shared memory of an instance that has `bytes` without a list. */
static inline int with_list(int bytes, int n_word)
{
    return bytes + n_word * (int)sizeof(uint32_t);
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

/* ---- Copies ------------------------------------------------------------------------------- */

/* A thread's share of the copies of a tile: piece `thread % 8` of every block of keys thread / 8 +
 * 16 n. The tile's first key, and every 64th after it, lies in row k_at[] of k; its value in row
 * v_at[] of v. in: bit n is set where the thread's n-th key is in the tile. */
template <int KEYS> struct place {
    static constexpr int PAGES = KEYS / PAGE_KEYS;
    const uint8_t *k, *v;
    int k_at[PAGES], v_at[PAGES];
    uint32_t in;
};

/* Moves p to tile w. `next` is at tile w of the store, and then at the one after. But for tables of
 * pages, a tile ahead, memory is read once per run of rows: each read would delay copies. Keys of a
 * slice lie one after the other, and so do its values, unless they stay in the store. */
template <how HOW, int D, int PAIRS, int KEYS>
DEV void place_on(const job<D, PAIRS, KEYS> &b, const walk &w,
                  key_walk_of<place<KEYS>::PAGES> &next, place<KEYS> &p)
{
    dev_kv kv = b.a.kv;
    const attend_slice &s = b.slice;
    int i = (int)threadIdx.x % GROUP_THREADS, g = (int)blockIdx.y;
    if (w.fresh) {
        dev_kv_base base = store_of(b.a.st, b.a.st.rows.seq[w.r0], kv);
        p.k = head_rows(kv, s.k ? (void *)s.k : base.k, g, 2 * D) + i % 8 * 16;
        p.v = head_rows(kv, s.k ? (void *)s.v : base.v, g, 2 * D) + i % 8 * 16;
        if (s.k && !s.v) {
            kv.n_slots = s.values_room;
            p.v = head_rows(kv, base.k, g, 2 * D) + i % 8 * 16;
        }
        key_walk_begin(&next, kv, base.page, w.t0, w.until);
    }
#pragma unroll
    for (int n = 0; n < place<KEYS>::PAGES; n++) {
        int in_slice = w.t0 + n * PAGE_KEYS - s.from;
        p.k_at[n] = s.k ? in_slice : next.place[n];
        p.v_at[n] = s.v ? in_slice : next.place[n];
    }
    p.in = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        int t = w.t0 + i / 8 + 16 * n;
        p.in |= (uint32_t)(t >= w.from && t < w.until) << n;
    }
    if (s.v)
        return;
    if constexpr (HOW == LISTED)
        key_walk_to(&next, next_listed(b.list, w.t0 + KEYS, w.until), w.until);
    else
        key_walk_on(&next, KEYS, w.t0 + KEYS, w.until);
}
/* The row of the thread's n-th key, of those that begin at `at`. Only a ring that is read in place
 * has an end. */
template <class J, int PAGES> DEV int row_of_key(const J &b, const int (&at)[PAGES], int n)
{
    int k = (int)threadIdx.x % GROUP_THREADS / 8 + 16 * (n % (PAGE_KEYS / 16));
    return place_within(at[n * 16 / PAGE_KEYS] + k, b.slice.k ? 0x7fffffff : b.a.kv.n_slots);
}

/* Copies the thread's piece of the key in row `at`, of `blocks` blocks of the row from `first` on;
 * in shared memory they lie next_block bytes apart. Zeros where it is not `in` the tile. */
template <int D>
DEV void fetch_key(uint8_t *to, const uint8_t *head, int at, bool in, int first, int blocks,
                   int next_block)
{
    const uint8_t *from = head + (size_t)at * (2 * D) + first * ROW_BYTES;
#pragma unroll
    for (int k = 0; k < blocks; k++)
        copy16_async(to + k * next_block, from + k * ROW_BYTES, in);
}
/* Where the piece of the thread's first key lies in a block. */
DEV int fetch_offset()
{
    int i = (int)threadIdx.x % GROUP_THREADS;
    return piece_at(i / 8, i % 8);
}

/* ---- Before the first tile ---------------------------------------------------------------- */

/* The keys that pairs see. By all threads of the block. */
template <int D, int PAIRS, int KEYS>
DEV void look_at_keys(const job<D, PAIRS, KEYS> &b, sights<PAIRS> *sees)
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

/* The same, and queries times scale in f16, [PAIRS / 64][D / 64 blocks][64 pairs]; visible to the
 * tensor cores after the next barrier. */
template <int D, int PAIRS, int KEYS>
DEV void prepare(const job<D, PAIRS, KEYS> &b, sights<PAIRS> *sees, uint8_t *q)
{
    look_at_keys(b, sees);
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < PAIRS * (D / 4); i += (int)blockDim.x) {
        int m = i / (D / 4), e = i % (D / 4) * 4, p = b.pair0 + m;
        int r = p / b.group, h = (int)blockIdx.y * b.group + p % b.group;
        uint2 u = make_uint2(0, 0);
        if (m < b.n_pairs) {
            float4 v = *(const float4 *)(b.a.q.at + r * b.a.q.stride + h * D + e);
            u = make_uint2(f32x2_to_f16(v.x * b.a.scale, v.y * b.a.scale),
                           f32x2_to_f16(v.z * b.a.scale, v.w * b.a.scale));
        }
        *(uint2 *)(q + (m / 64 * (D / 64) + e / 64) * BLOCK_BYTES + piece_at(m % 64, e % 64 / 8) +
                   e % 8 * 2) = u;
    }
    tensor_fence();
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
/* After the last tile: returns the factor of O. */
template <class J> DEV float softmax_end(const J &b, const softmax &x, int m)
{
    float sum = whole_sum(x);
    if (b.slice.last)
        return 1.0f / sum;
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
    float sum = whole_sum(x);
    if ((lane_id() & 3) || m >= b.n_pairs)
        return;
    if (!b.slice.last) {
        float *c = carry_of(b, m);
        c[5] = v.delta;
        c[6] = v.dropped;
        return;
    }
    if (!b.sparse.tally)
        return;
    enum { DECADES = 8, STEPS = 20, BINS = SPARSE_COUNTS - 2 }; /* of sparse.h */
    int tiles = (b.sees.hi[m] + J::KEYS - 1) / J::KEYS - b.sees.lo[m] / J::KEYS, bin = 0;
    float share = v.delta > 0 ? v.delta / (sum + v.delta) : 0;
    if (share >= 1e-8f)
        bin = min((int)floorf((log10f(share) + DECADES) * STEPS) + 1, BINS - 1);
    atomicAdd(&b.sparse.tally[0], (unsigned long long)tiles);
    atomicAdd(&b.sparse.tally[1], (unsigned long long)(tiles - (int)v.dropped));
    atomicAdd(&b.sparse.tally[2 + bin], 1ull);
}

/* ---- Warpgroups that hold their pairs' P themselves ---------------------------------------- */

/* Masks a tile's scores of warpgroup `half` of the block and makes exponentials of them; keep: the
 * factors of O. */
template <class J, int N>
DEV void soften(const J &b, float (&x)[N], softmax (&sm)[2], float (&keep)[2], const walk &w,
                int half)
{
    int warp = (int)(threadIdx.x >> 5) & 3, m0 = 64 * half + 16 * warp + (lane_id() >> 2);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mask(b, x, w, m0 + 8 * h, h);
        keep[h] = exponentials(x, sm[h], h);
    }
}

#endif
