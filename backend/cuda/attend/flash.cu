/* flash.cu - attention of many rows over f16 keys and values on the f16 tensor cores of any GPU:
 * heads of 64, 128, 256 and 512, and of vision towers 72, 80, 88 and 96. The store
 * is read in place, or as slices that expand.cu makes of it.
 *
 *     warp     16 pairs (row, head): their queries, probabilities and O stay in registers
 *     block    8 warps, which share every copy of a key; 101,376 bytes of shared memory at most
 *     unit     16 KB (heads of 64: 8 KB) of keys or values; a tile is one unit of each, or two
 *
 *     unit n has arrived | barrier | products of unit n | the copy of unit n + STAGES - 1 begins
 *
 * In heads of 512 O of 16 pairs takes the registers of two warps. Each has the products of half of
 * the columns, so each has half of every score: the halves meet in shared memory, and both warps
 * take all exponentials.
 *
 * Sums, softmax and O are f32; q and the probabilities are rounded to f16.
 */
#include "backend/cuda/attend/flash.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, STAGES = 5 };

/* D: the columns that are multiplied, of a head or a little more: then the others are zeros. */
template <int D> struct shape {
    static constexpr int LINE = D <= 64 ? 128 : D <= 128 ? 256 : 2 * D; /* bytes of a key, shared */
    static constexpr bool PADDED = D > 64 && D < 128;
    static constexpr int SPLIT = D == 512 ? 2 : 1; /* warps that share pairs */
    static constexpr int PAIRS = 16 * WARPS / SPLIT, COLUMNS = D / SPLIT /* of a warp */;
    static constexpr int KEYS = D <= 128 ? 64 : 32;
    static constexpr int UNIT = D == 512 ? 16 : KEYS, UNITS = KEYS / UNIT; /* keys; of a tile */
    static constexpr int UNIT_BYTES = UNIT * LINE;
    /* of a head in memory */
    static DEV int columns(const dev_kv &kv) { return PADDED ? kv.head_dim : D; }
};

/* A tile, as its copies and its products need it. */
struct tile_note {
    const uint8_t *k, *v; /* of its first key */
    int t0, from, until;  /* the tile at t0 has keys [from, until) alone; t0 NO_TILE: the end */
    int room;             /* rows from there to the end of a ring that is read in place */
    int r0, r1;           /* it is for these rows */
};
/* Notes are written PLAN tiles at a time, so that many reads of tables of pages wait together. */
enum { NO_TILE = -1, PLAN = 16, NOTES = 2 * PLAN };

template <int D> struct shared {
    uint8_t unit[STAGES][shape<D>::UNIT_BYTES];
    float half[shape<D>::SPLIT > 1 ? WARPS : 1][shape<D>::KEYS / 8][4][32]; /* heads of 512 */
    tile_note note[NOTES];
    sights<shape<D>::PAIRS> sees;
    walk at;                 /* the last tile that has a note */
    int all_from, all_until; /* the keys that all pairs see, if they are of one sequence */
};

template <int D> using block = job<D, shape<D>::PAIRS, shape<D>::KEYS>;

/* ---- Copies -------------------------------------------------------------------------------- */

/* Writes the notes of PLAN more tiles, from number `first` on. By one warp. */
template <how HOW, int D> DEV void plan(const block<D> &b, shared<D> &s, int first)
{
    const attend_slice &slice = b.slice;
    const dev_kv &kv = b.a.kv;
    int lane = lane_id(), g = (int)blockIdx.y, line = 2 * shape<D>::columns(kv);
    walk w = s.at;
    tile_note n = {NULL, NULL, NO_TILE, 0, 0, 0, 0, 0};
#pragma unroll 1
    for (int i = 0; i < PLAN && walk_on<HOW>(b, w); i++)
        if (lane == i)
            n.t0 = w.t0, n.from = w.from, n.until = w.until, n.r0 = w.r0, n.r1 = w.r1;
    if (n.t0 != NO_TILE) {
        dev_kv_base base = store_of(b.a.st, b.a.st.rows.seq[n.r0], kv);
        const uint8_t *k = head_rows(kv, slice.k ? (void *)slice.k : base.k, g, line);
        const uint8_t *v = head_rows(kv, slice.k ? (void *)slice.v : base.v, g, line);
        if (slice.k && !slice.v)
            v = (const uint8_t *)base.k + (size_t)g * slice.values_room * line;
        int in_slice = n.t0 - slice.from, place = slice.v ? 0 : place_of_key(kv, base.page, n.t0);
        n.k = k + (size_t)(slice.k ? in_slice : place) * line;
        n.v = v + (size_t)(slice.v ? in_slice : place) * line;
        n.room = slice.k ? 0x7fffffff : kv.n_slots - place;
    }
    if (lane < PLAN)
        s.note[(first + lane) % NOTES] = n;
    __syncwarp(); /* all lanes have read s.at */
    if (lane == 0)
        s.at = w;
}

/* Finds the keys that all pairs see; none, if they are of several sequences. By one warp. */
template <int D> DEV void score_all(const block<D> &b, shared<D> &s)
{
    int lane = lane_id(), from = 0, until = 0x7fffffff;
    for (int m = lane; m < b.n_pairs; m += 32) {
        from = max(from, s.sees.lo[m]);
        until = min(until, s.sees.hi[m]);
    }
    int first = b.a.st.rows.seq[s.sees.row[0]], last = b.a.st.rows.seq[s.sees.row[b.n_pairs - 1]];
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        from = max(from, (int)shfl_xor_u32((uint32_t)from, m));
        until = min(until, (int)shfl_xor_u32((uint32_t)until, m));
    }
    if (lane == 0) {
        s.all_from = from;
        s.all_until = first == last ? until : 0;
    }
}

/* Starts the copy of unit u of a tile: a group of copies, empty after the last tile. Zeros for keys
 * that are not in the tile. Piece p of a row lies at place p ^ (row & 7), so that neither 8 rows of
 * a piece nor 8 pieces of a row share a bank. */
template <int D> DEV void copy_unit(const block<D> &b, shared<D> &s, int stage, int tile, int u)
{
    using F = shape<D>;
    constexpr int PIECES = F::LINE / 16, STEP = THREADS / PIECES;
    const tile_note &n = s.note[tile % NOTES];
    int p = (int)threadIdx.x % PIECES, k = (int)threadIdx.x / PIECES;
    int first = u % F::UNITS * F::UNIT, t0 = n.t0 + first, row = first + k;
    int line = 2 * F::columns(b.a.kv);
    uint8_t *to = s.unit[stage] + k * F::LINE;
    const uint8_t *from = (u < F::UNITS ? n.k : n.v) + (size_t)row * line + 16 * p;
    if (n.t0 == NO_TILE || (F::PADDED && p >= D / 8)) {
        copy_commit();
        return;
    }
    const bool has = !F::PADDED || 16 * p < line; /* else a piece behind the head */
    if (t0 >= n.from && t0 + F::UNIT <= n.until && first + F::UNIT <= n.room) {
#pragma unroll
        for (int i = 0; i < F::UNIT; i += STEP)
            copy16_async(to + i * F::LINE + ((p ^ (k + i & 7)) << 4), has ? from + i * line : n.k,
                         has);
    } else {
#pragma unroll 1
        for (int i = 0; i < F::UNIT; i += STEP) {
            bool in = has && t0 + k + i >= n.from && t0 + k + i < n.until;
            int back = row + i;
            while (in && back >= n.room) /* around the end of a ring, shorter than a tile perhaps */
                back -= b.a.kv.n_slots;
            copy16_async(to + i * F::LINE + ((p ^ (k + i & 7)) << 4),
                         has ? from + (in ? back - row : 0) * (ptrdiff_t)line : n.k, in);
        }
    }
    copy_commit();
}

/* Waits for the next unit. Then all warps have read the one before. */
template <int D> DEV const uint8_t *next_unit(shared<D> &s, int &stage)
{
    copy_wait<STAGES - 2>();
    __syncthreads();
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    return s.unit[stage];
}
/* After the products of unit u of a tile: the copy that the unit before it made room for, which is
 * unit u again, some tiles on. */
template <int D> DEV void copy_next(const block<D> &b, shared<D> &s, int stage, int tile, int u)
{
    constexpr int AHEAD = (STAGES - 1) / (2 * shape<D>::UNITS);
    static_assert(AHEAD * 2 * shape<D>::UNITS == STAGES - 1, "whole tiles");
    copy_unit<D>(b, s, stage ? stage - 1 : STAGES - 1, tile + AHEAD, u);
}

/* ---- Products ------------------------------------------------------------------------------ */

/* What a warp computes: 16 pairs from m0 on, and the columns from `column` on. */
struct warp_share {
    int m0, column;
};

/* A warp's queries times scale in f16, in the layout of a product's first factor. */
template <int D>
DEV void load_queries(uint32_t (&q)[shape<D>::COLUMNS / 16][4], const block<D> &b,
                      const warp_share &of)
{
    int lane = lane_id();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = of.m0 + (lane >> 2) + 8 * h, p = b.pair0 + m, r = p / b.group;
        int head = (int)blockIdx.y * b.group + p % b.group;
        const int columns = shape<D>::columns(b.a.kv);
        const float *from =
            b.a.q.at + r * b.a.q.stride + head * columns + of.column + 2 * (lane & 3);
#pragma unroll
        for (int i = 0; i < shape<D>::COLUMNS / 8; i++) {
            float2 x = make_float2(0, 0);
            if (m < b.n_pairs && (!shape<D>::PADDED || 8 * i < columns))
                x = *(const float2 *)(from + 8 * i);
            q[i / 2][2 * (i & 1) + h] = f32x2_to_f16(x.x * b.a.scale, x.y * b.a.scale);
        }
    }
}

/* S of the unit's keys, over the warp's columns. x: zeros. */
template <int D>
DEV void multiply_keys(float *x, const uint32_t (&q)[shape<D>::COLUMNS / 16][4],
                       const uint8_t *unit, const warp_share &of)
{
    int lane = lane_id(), key = (lane & 7) + (lane >> 4 << 3);
    int at = key * shape<D>::LINE + 2 * of.column + ((lane >> 3 & 1 ^ (lane & 7)) << 4);
#pragma unroll
    for (int i = 0; i < shape<D>::COLUMNS / 16; i++) {
        const uint8_t *from = unit + (at ^ (i & 3) << 5) + i / 4 * 128;
#pragma unroll
        for (int n = 0; n < shape<D>::UNIT / 16; n++) {
            uint32_t k[4];
            ldmatrix4(k, from + n * 16 * shape<D>::LINE);
            mma_f16(x + 8 * n, q[i], k);
            mma_f16(x + 8 * n + 4, q[i], k + 2);
        }
    }
}

/* O += P V of the unit's values, in the warp's columns. */
template <int D>
DEV void multiply_values(float (&o)[shape<D>::COLUMNS / 2], const uint32_t (*p)[4],
                         const uint8_t *unit, const warp_share &of)
{
    int lane = lane_id();
    int at = (lane & 15) * shape<D>::LINE + 2 * of.column + ((lane >> 4 ^ (lane & 7)) << 4);
#pragma unroll
    for (int n = 0; n < shape<D>::UNIT / 16; n++)
#pragma unroll
        for (int i = 0; i < shape<D>::COLUMNS / 16; i++) {
            uint32_t v[4];
            ldmatrix4_t(v, unit + (at ^ (i & 3) << 5) + i / 4 * 128 + n * 16 * shape<D>::LINE);
            mma_f16(o + 8 * i, p[n], v);
            mma_f16(o + 8 * i + 4, p[n], v + 2);
        }
}

/* The largest and the sum of N values, as a tree; overwrites them. NANS: a NaN is the largest. */
template <int N, bool NANS> DEV void fold_max(float *x)
{
    if constexpr (N > 1) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            x[i] = NANS ? max_nan(x[i], x[i + N / 2]) : fmaxf(x[i], x[i + N / 2]);
        fold_max<N / 2, NANS>(x);
    }
}
template <int N> DEV void fold_sum(float *x)
{
    if constexpr (N > 1) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            x[i] += x[i + N / 2];
        fold_sum<N / 2>(x);
    }
}
/* The largest of a tile's scores x of each pair. Both pairs of a lane go step by step together,
 * here and below, and folds are trees: few warps hide each other's latency in this kernel. */
template <bool NANS, int N> DEV void largest(float (&top)[2], const float (&x)[N])
{
    float part[2][N / 2];
#pragma unroll
    for (int j = 0; j < N; j++)
        part[j >> 1 & 1][j / 4 * 2 + j % 2] = x[j];
    fold_max<N / 2, NANS>(part[0]);
    fold_max<N / 2, NANS>(part[1]);
#pragma unroll
    for (int h = 0; h < 2; h++)
        top[h] = part[h][0];
#pragma unroll
    for (int m = 1; m < 4; m *= 2)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float other = shfl_xor_f32(top[h], m);
            top[h] = NANS ? max_nan(top[h], other) : fmaxf(top[h], other);
        }
}
/* Scores to exponentials relative to the new maxima, with `top` the largest of the tile; keep: the
 * factors of O. */
template <int N>
DEV void soften_both(float (&x)[N], softmax (&sm)[2], const float (&top)[2], float (&keep)[2])
{
    float part[2][N / 2], less[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float best = fmaxf(top[h], sm[h].top);
        less[h] = best == -INFINITY ? 0 : -best * log2_e; /* no infinity minus itself */
        keep[h] = best == sm[h].top ? 1 : fast_exp2(fma_rn(sm[h].top, log2_e, less[h]));
        sm[h].top = best;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        x[j] = fast_exp2(fma_rn(x[j], log2_e, less[j >> 1 & 1]));
        part[j >> 1 & 1][j / 4 * 2 + j % 2] = x[j];
    }
    fold_sum<N / 2>(part[0]);
    fold_sum<N / 2>(part[1]);
#pragma unroll
    for (int h = 0; h < 2; h++)
        sm[h].sum = fma_rn(sm[h].sum, keep[h], part[h][0]);
}
/* SKIPS: the votes of both pairs. The scores of one that drops the tile become -infinity. Returns
 * whether any pair of the warp keeps it. */
template <class J, int N>
DEV bool vote_both(const J &b, float (&x)[N], const softmax (&sm)[2], votes (&v)[2],
                   float (&top)[2], const walk &w, int m0)
{
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool live = top[h] != -INFINITY && !(top[h] - sm[h].top < v[h].limit);
        any |= live;
        if (live) {
            float best = fmaxf(top[h], sm[h].top);
            v[h].delta *= best == sm[h].top ? 1 : fast_exp2((sm[h].top - best) * log2_e);
            continue;
        }
        int n = keys_in(b, w, m0 + 8 * h);
        if (n && top[h] != -INFINITY) {
            v[h].delta += (float)n * fast_exp2((top[h] - sm[h].top) * log2_e);
            v[h].dropped += 1;
        }
        top[h] = -INFINITY;
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            x[j / 2 * 4 + 2 * h + j % 2] = -INFINITY;
    }
    return warp_any(any);
}

/* Adds the scores of the warp that has the other half of the columns. */
template <int D> DEV void add_other_half(float (&x)[shape<D>::KEYS / 2], shared<D> &s)
{
    int warp = (int)threadIdx.x >> 5, lane = lane_id();
#pragma unroll
    for (int i = 0; i < shape<D>::KEYS / 2; i++)
        s.half[warp][i / 4][i % 4][lane] = x[i];
    some_sync(1 + warp / 2, 64);
#pragma unroll
    for (int i = 0; i < shape<D>::KEYS / 2; i++)
        x[i] += s.half[warp ^ 1][i / 4][i % 4][lane];
}

/* ---- O, from slice to slice ---------------------------------------------------------------- */

template <int D>
DEV void load_sums(const block<D> &b, float (&o)[shape<D>::COLUMNS / 2], const warp_share &of)
{
#pragma unroll
    for (int i = 0; i < shape<D>::COLUMNS / 2; i++)
        o[i] = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = of.m0 + (lane_id() >> 2) + 8 * h;
        if (b.slice.first || m >= b.n_pairs)
            continue;
        const int columns = shape<D>::columns(b.a.kv);
        const float *from = sums_of(b, m, of.column, columns);
#pragma unroll
        for (int j = 0; j < shape<D>::COLUMNS / 8; j++) {
            if (shape<D>::PADDED && 8 * j >= columns)
                break;
            float2 x = *(const float2 *)(from + 8 * j);
            o[4 * j + 2 * h] = x.x;
            o[4 * j + 2 * h + 1] = x.y;
        }
    }
}
/* by: the factors of O. */
template <int D>
DEV void store_sums(const block<D> &b, const float (&o)[shape<D>::COLUMNS / 2],
                    const float (&by)[2], const warp_share &of)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = of.m0 + (lane_id() >> 2) + 8 * h;
        if (m >= b.n_pairs)
            continue;
        const int columns = shape<D>::columns(b.a.kv);
        float *to = sums_of(b, m, of.column, columns);
#pragma unroll
        for (int j = 0; j < shape<D>::COLUMNS / 8; j++)
            if (!shape<D>::PADDED || 8 * j < columns)
                *(float2 *)(to + 8 * j) =
                    make_float2(o[4 * j + 2 * h] * by[h], o[4 * j + 2 * h + 1] * by[h]);
    }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

template <how HOW, int D> DEV void attend(const block<D> &b, shared<D> &s)
{
    using F = shape<D>;
    int warp = (int)threadIdx.x >> 5;
    int stage = STAGES - 1;
    warp_share of = {16 * (warp / F::SPLIT), warp % F::SPLIT * F::COLUMNS};
    int m0 = of.m0 + (lane_id() >> 2);
    float o[F::COLUMNS / 2];
    uint32_t q[F::COLUMNS / 16][4];
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
    votes voted[2];
    if constexpr (HOW == SKIPS)
        voted[0] = votes_begin(b, m0), voted[1] = votes_begin(b, m0 + 8);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++)
        copy_unit<D>(b, s, i, i / (2 * F::UNITS), i % (2 * F::UNITS));
    load_queries<D>(q, b, of);
    load_sums<D>(b, o, of);
#pragma unroll 1
    for (int tile = 0; s.note[tile % NOTES].t0 != NO_TILE; tile++) {
        float x[F::KEYS / 2], keep[2];
        uint32_t p[F::KEYS / 16][4];
        bool live = true;
#pragma unroll
        for (int i = 0; i < F::KEYS / 2; i++)
            x[i] = 0;
#pragma unroll
        for (int u = 0; u < F::UNITS; u++) {
            multiply_keys<D>(x + u * F::UNIT / 2, q, next_unit<D>(s, stage), of);
            if (u == 0 && tile % PLAN == 0 && warp == 0)
                plan<HOW>(b, s, tile + PLAN);
            copy_next<D>(b, s, stage, tile, u);
        }
        if constexpr (F::SPLIT > 1)
            add_other_half<D>(x, s);
        const tile_note &note = s.note[tile % NOTES];
        walk w = {note.r0, note.r1, note.t0, 0, 0, false};
        if (w.t0 < s.all_from || w.t0 + F::KEYS > s.all_until) {
            mask(b, x, w, m0, 0);
            mask(b, x, w, m0 + 8, 1);
        }
        float top[2];
        largest<HOW == SKIPS>(top, x);
        if constexpr (HOW == SKIPS)
            live = vote_both(b, x, sm, voted, top, w, m0);
        soften_both(x, sm, top, keep);
        worth(o, keep);
        to_f16(x, p);
#pragma unroll
        for (int u = 0; u < F::UNITS; u++) {
            const uint8_t *unit = next_unit<D>(s, stage);
            if (live)
                multiply_values<D>(o, p + u * F::UNIT / 16, unit, of);
            copy_next<D>(b, s, stage, tile, F::UNITS + u);
        }
    }
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (of.column ==
            0) { /* one of the warps that share pairs leaves what they have in common */
            if constexpr (HOW == SKIPS)
                votes_end(b, voted[h], sm[h], m0 + 8 * h);
            by[h] = softmax_end(b, sm[h], m0 + 8 * h);
        } else {
            by[h] = b.slice.last ? 1.0f / sum_with_sink(b, sm[h], m0 + 8 * h) : 1;
        }
    }
    store_sums<D>(b, o, by, of);
}

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 128 pairs (heads of 512: 64) x KV head
 * shared: five units: 40 to 98 KB
 * bound:  shared memory during products; barriers and exponentials, in which all warps are at once
 */
template <how HOW, int D> __global__ void __launch_bounds__(THREADS, 1) flash_kernel(flash_args x)
{
    DYN_SHARED(uint8_t, mem);
    shared<D> &s = *(shared<D> *)mem;
    block<D> b = job_of<D, shape<D>::PAIRS, shape<D>::KEYS>(x, s.sees, NULL);
    if constexpr (HOW == LISTED)
        b.list = x.sparse.kept +
                 ((size_t)(b.pair0 / (LIST_KEYS * b.group)) * x.a.kv.n_head_kv + blockIdx.y) *
                     (size_t)x.sparse.n_word;
    grid_trigger();
    grid_wait();
    score_keys(b, &s.sees);
    if (threadIdx.x == 0)
        s.at = walk_begin(b);
    __syncthreads();
    if (threadIdx.x < 32) {
        plan<HOW>(b, s, 0);
        score_all(b, s);
    }
    __syncthreads();
    attend<HOW, D>(b, s);
    copy_wait<0>();
}

template <int D> static int init_of()
{
    int r = allow_shared((flash_kernel<DENSE, D>), sizeof(shared<D>));
    if constexpr (D == 512)
        r |= allow_shared((flash_kernel<SKIPS, D>), sizeof(shared<D>));
    if constexpr (D >= 128)
        r |= allow_shared((flash_kernel<LISTED, D>), sizeof(shared<D>));
    return r;
}

extern "C" int cu_flash_init(void)
{
    static_assert(sizeof(shared<512>) <= 99 * 1024, "a block of 8.6, 8.9 and 12.0");
    return init_of<64>() | init_of<80>() | init_of<96>() | init_of<128>() | init_of<256>() |
           init_of<512>();
}

template <int D> static void launch_of(cudaStream_t s, const flash_args &x)
{
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + shape<D>::PAIRS - 1) / shape<D>::PAIRS),
              (unsigned)x.a.kv.n_head_kv);
    if constexpr (D >= 128) {
        if (x.sparse.kept) {
            LAUNCH((flash_kernel<LISTED, D>), grid, dim3(THREADS), sizeof(shared<D>), s, x);
            return;
        }
    }
    if constexpr (D == 512) {
        if (x.sparse.skip > 0) {
            LAUNCH((flash_kernel<SKIPS, D>), grid, dim3(THREADS), sizeof(shared<D>), s, x);
            return;
        }
    }
    LAUNCH((flash_kernel<DENSE, D>), grid, dim3(THREADS), sizeof(shared<D>), s, x);
}

extern "C" void cu_flash(cudaStream_t s, flash_args x)
{
    const int d = x.a.kv.head_dim;
    if (d <= 64)
        launch_of<64>(s, x);
    else if (d <= 80)
        launch_of<80>(s, x);
    else if (d <= 96)
        launch_of<96>(s, x);
    else if (d <= 128)
        launch_of<128>(s, x);
    else if (d <= 256)
        launch_of<256>(s, x);
    else
        launch_of<512>(s, x);
}
