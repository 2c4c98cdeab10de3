/* flash_hopper.cuh - what the kernels of many rows on GPUs of 9.0 share beyond flash.cuh: copies
 * into shared memory, in blocks of 64 columns (hopper.cuh), and queries. Lists lie in shared
 * memory.
 */
#ifndef BACKEND_CUDA_FLASH_HOPPER_CUH
#define BACKEND_CUDA_FLASH_HOPPER_CUH

#include "backend/cuda/attend/flash.cuh"
#include "backend/cuda/hopper.cuh"

enum {
    GROUP_THREADS = 128,
    ROW_BYTES = 128,              /* of a block */
    BLOCK_BYTES = 64 * ROW_BYTES, /* of 64 keys or pairs */
};

/* Blocks that hold a head of D columns, and the columns that are multiplied: a product takes 16 at
 * a time. Those behind the head are zeros. */
template <int D> struct columns {
    static constexpr int BLOCKS = (D + 63) / 64, SUMMED = (D + 15) / 16 * 16;
};

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
    for (int k = 0; k < blocks; k++) {
        if constexpr (D % 64 == 0) {
            copy16_async(to + k * next_block, from + k * ROW_BYTES, in);
        } else {
            int piece = 8 * (first + k) + (int)threadIdx.x % 8;
            bool has = in && piece < D / 8;
            if (piece < columns<D>::SUMMED / 8)
                copy16_async(to + k * next_block, has ? from + k * ROW_BYTES : head, has);
        }
    }
}
/* Where the piece of the thread's first key lies in a block. */
DEV int fetch_offset()
{
    int i = (int)threadIdx.x % GROUP_THREADS;
    return piece_at(i / 8, i % 8);
}

/* ---- Queries ------------------------------------------------------------------------------ */

/* score_keys, and queries times scale in f16, [PAIRS / 64][blocks][64 pairs]; visible to the
 * tensor cores after the next barrier. */
template <int D, int PAIRS, int KEYS>
DEV void prepare(const job<D, PAIRS, KEYS> &b, sights<PAIRS> *sees, uint8_t *q)
{
    constexpr int FOURS = columns<D>::SUMMED / 4;
    score_keys(b, sees);
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < PAIRS * FOURS; i += (int)blockDim.x) {
        int m = i / FOURS, e = i % FOURS * 4, p = b.pair0 + m;
        int r = p / b.group, h = (int)blockIdx.y * b.group + p % b.group;
        uint2 u = make_uint2(0, 0);
        if (m < b.n_pairs && (D % 16 == 0 || e < D)) {
            float4 v = *(const float4 *)(b.a.q.at + r * b.a.q.stride + h * D + e);
            u = make_uint2(f32x2_to_f16(v.x * b.a.scale, v.y * b.a.scale),
                           f32x2_to_f16(v.z * b.a.scale, v.w * b.a.scale));
        }
        *(uint2 *)(q + (m / 64 * columns<D>::BLOCKS + e / 64) * BLOCK_BYTES +
                   piece_at(m % 64, e % 64 / 8) + e % 8 * 2) = u;
    }
    tensor_fence();
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
