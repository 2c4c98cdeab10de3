/* matmul_rows.cu - 2 rows and more times weights of blocks: drafts to verify, answers of several
 * sessions. A block has at most 32 rows, a piece of the launch's. Blocks of the same weights and
 * neighbouring pieces run side by side, so one of them reads the weights from memory and the others
 * find them in the second-level cache.
 *
 *     weights      [stages][warp][tile][unit]     each warp copies its own
 *     activations  [2 stages][8-row tile][unit]   one copy for all tiles of the block; a stage is
 *                                                 for one step, several, or the whole row
 *     scales       [warp][tile]                   of super-blocks, as floats, four groups at a time
 *     sums         [tile][part][row][16 outputs]  over the weights, once those are used
 *
 * The integer tensor cores multiply 16 weight rows x 32 columns by 8 activation rows. Every 32
 * columns have scales of their own, so each group's integer sums are scaled in f32 (rows_unit.cuh).
 * Weights are read once for all rows of the launch, through shared memory, 16 bytes a lane, two or
 * three units ahead. Reads of shared memory and instructions cost as much time as memory does. So a
 * warp has one, two or three tiles: more tiles share each read of the activations, and need more
 * registers. Where the activations of a block fit into shared memory as a whole (5376 columns, or a
 * few parts' columns), there is one stage and no barrier. Then the parts of a tile can be in
 * several blocks, which spreads tiles evenly; the last block to end adds their sums. rows_cut.c
 * chooses.
 *
 * As in matmul_one.cu several warps share the columns of a tile, and even and odd groups are summed
 * apart. So a row's result is bit-identical to that of matmul_one.cu.
 */
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/rows_cut.h"
#include "backend/cuda/product/rows_unit.cuh"

/* For M tiles to a warp: stages of its weights, and how many warps fit into the registers of a
 * multiprocessor (80, 128, 168 or 255 registers a thread). */
template <int NT, int M> struct warp_of {
    static constexpr int stages = M > 1 ? 2 : 3;
    static constexpr int most = NT * M == 1 ? 24 : NT * M == 2 ? 16 : NT * M == 4 ? 12 : 8;
};

/* One product of a launch. For a gated unit it is W; W' is p.up. */
struct rows_job {
    packed w;
    dev_mat y;
    const float *bias; /* or NULL */
    int n_out, block;  /* outputs; the product's first block */
    x_part x_from;     /* of x, for w's units */
};

struct rows_args {
    product_args p; /* the first product, whose x is that of all */
    rows_job job[ONE_JOBS];
    int n_jobs;
    int first;        /* the row of y and x where this launch begins; a multiple of 8 */
    int n_rows;       /* rows of this launch, */
    int piece_rows;   /* and of a piece; a multiple of 8 */
    int shares;       /* parts of a tile: unit u belongs to part u mod shares */
    int own;          /* parts of one block; other blocks have the other parts, */
    float *sums;      /* and leave their sums here: [tiles of a block][part][row][output] */
    int32_t *arrived; /* blocks that have left theirs, by group and piece; zero between launches */
    int abreast;      /* parts computed at a time, a warp each; the others follow in turns */
    int unit_rounds;  /* most units of a part */
    int steps;        /* of a block */
    int x_first;      /* steps covered by the first stage of activations */
    int x_steps;      /* by each further stage */
    int x_units;      /* units of activations that a stage has room for */
    bool x_whole;     /* the whole row stays: a first stage, and a second with the rest */
    bool beside;      /* runs beside the preceding kernel; x is written when it begins */
    constants is;
};

/* The rows of this block. */
struct row_piece {
    int first, n;
};
DEV row_piece block_rows(const rows_args &r)
{
    int at = (int)blockIdx.x * r.piece_rows;
    return (row_piece){r.first + at, min(r.n_rows - at, r.piece_rows)};
}

/* A place in the block's work: the turn of parts, and the round of units. */
struct place_at {
    int turn, round;
    DEV place_at next(const rows_args &r) const
    {
        return round + 1 < r.unit_rounds ? (place_at){turn, round + 1} : (place_at){turn + 1, 0};
    }
    /* The unit of the turn's first part. first: the block's first part. */
    DEV int unit(const rows_args &r, int first) const
    {
        return round * r.shares + first + turn * r.abreast;
    }
};

/* A stage of activations: those of steps k to k + n - 1, in order, from unit `at` of the stage. */
struct x_stage {
    int k, n, at;
};

/* Copies a stage, a warp per unit of eight rows: between two barriers no warp has much more of it
 * than the others. Missing rows and groups become zeros. */
template <int K, int NT>
DEV void copy_x(uint8_t *codes, const rows_args &r, const x_part &part, int first,
                const x_stage &stage)
{
    using T = traits<K>;
    using S = staged<K>;
    const dev_quant &x = r.p.x;
    const int lane = lane_id(), n_warps = (int)blockDim.x >> 5;
    const int entries = (x.cols >> 5) * 8; /* [group][row] of a tile of rows */
    const row_piece rows = block_rows(r);
    uint8_t *scales = codes + r.x_units * NT * X_CODES;
    for (int j = (int)threadIdx.x >> 5; j < stage.n * r.abreast * NT; j += n_warps) {
        const int t = j % NT, i = j / NT, k = stage.k + i / r.abreast;
        const place_at place = {k / r.unit_rounds, k % r.unit_rounds};
        const int unit = place.unit(r, first) + i % r.abreast;
        const int left = r.p.w.n_group * 8 - unit * 64;
        const int tile = part.tile ? unit * UNIT / part.tile : 0; /* tiles are of whole units */
        const int group = part.first + unit * UNIT + tile * (part.step - part.tile);
        const size_t at =
            (size_t)((rows.first >> 3) + t) * (size_t)entries + (size_t)group * 8;
        const int8_t *q = x.q + at * 32;
        const xscale *s = (const xscale *)x.s + at;
        uint8_t *to = codes + (t * r.x_units + stage.at + i) * X_CODES;
        bool row = (lane >> 1 & 7) + 8 * t < rows.n;
#pragma unroll
        for (int e = lane; e < 128; e += 32)
            copy16_async(to + e * 16, q + e * 16, row && e < 2 * left);
        to = scales + (t * r.x_units + stage.at + i) * 64 * S::x_scale;
        if (T::offset) { /* two rows'; the second may be missing: its results are not stored */
            row = 2 * (lane & 3) + 8 * t < rows.n;
            copy16_async(to + lane * 16, s + 2 * lane, row && 2 * lane < left);
            continue;
        }
        row = (lane & 7) + 8 * t < rows.n;
#pragma unroll
        for (int e = lane; e < 64; e += 32)
            copy4_async(to + e * 4, s + e, row && e < left);
    }
}

/* Formats with an offset need d and d times the group's sum instead of an xscale. Each thread
 * converts what it copied. */
template <int K, int NT> DEV void sum_x(uint8_t *codes, const rows_args &r, const x_stage &stage)
{
    if (!traits<K>::offset || traits<K>::split)
        return;
    uint2 *scales = (uint2 *)(codes + r.x_units * NT * X_CODES);
    for (int j = (int)threadIdx.x >> 5; j < stage.n * r.abreast * NT; j += (int)blockDim.x >> 5) {
        uint4 *at = (uint4 *)(scales + (j % NT * r.x_units + stage.at + j / NT) * 64) + lane_id();
        uint4 v = *at; /* of two rows */
        int sum = (int)(int16_t)v.y + (int16_t)(v.y >> 16);
        v.y = __float_as_uint(mul_rn(__uint_as_float(v.x), (float)sum));
        sum = (int)(int16_t)v.w + (int16_t)(v.w >> 16);
        v.w = __float_as_uint(mul_rn(__uint_as_float(v.z), (float)sum));
        *at = v;
    }
}

/* Parts of a tile that have sums of their own in shared memory. Where parts take turns one by one,
 * the threads keep the running sum in registers. */
DEV int places(const rows_args &r)
{
    return r.abreast > 1 ? r.own : 1;
}

/* Ends a turn: its sums are taken, added to those of earlier turns where parts take turns one by
 * one, and the accumulators are cleared. */
template <int NT, int M>
DEV void take_turn(float (*kept)[NT][4], float (*acc)[2][NT][4], bool first)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = acc[m][0][t][i] + acc[m][1][t][i];
                kept[m][t][i] = first ? v : kept[m][t][i] + v;
                acc[m][0][t][i] = acc[m][1][t][i] = 0;
            }
}

/* Writes the sums of a turn to shared memory. */
template <int NT, int M>
DEV void keep_sums(float *part, float (*kept)[NT][4], const rows_args &r, int n_slot, int turn)
{
    int gid = lane_id() >> 2, tid = lane_id() & 3, warp = (int)threadIdx.x >> 5, n = places(r);
    int slot = warp / r.abreast, share = turn * r.abreast + warp % r.abreast;
#pragma unroll
    for (int m = 0; m < M; m++) {
        float *to = part + ((m * n_slot + slot) * n + (n > 1 ? share : 0)) * NT * 128;
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[(t * 8 + 2 * tid + (i & 1)) * 16 + gid + 8 * (i >> 1)] = kept[m][t][i];
    }
}

/* Four outputs of a row, from o: the sums of all parts, added in ascending order. */
DEV float4 joined_four(const float *part, const rows_args &r, int n_row, int slot, int row, int o)
{
    float4 v = make_float4(0, 0, 0, 0);
    int n = places(r);
    for (int s = 0; s < n; s++) {
        float4 p = *(const float4 *)(part + ((slot * n + s) * n_row + row) * 16 + o);
        v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
    }
    return v;
}

/* Stores the first n of four neighbours. */
DEV void store_four(float *to, float4 v, int n)
{
    if (n >= 4 && ((size_t)to & 15) == 0) {
        *(float4 *)to = v;
        return;
    }
    to[0] = v.x;
    if (n > 1)
        to[1] = v.y;
    if (n > 2)
        to[2] = v.z;
    if (n > 3)
        to[3] = v.w;
}

/* Four neighbours from o on with their biases. */
DEV float4 with_bias(float4 v, const rows_job &j, int o)
{
    if (!j.bias)
        return v;
    v.x += j.bias[o];
    v.y += o + 1 < j.n_out ? j.bias[o + 1] : 0;
    v.z += o + 2 < j.n_out ? j.bias[o + 2] : 0;
    v.w += o + 3 < j.n_out ? j.bias[o + 3] : 0;
    return v;
}

/* part: n_row rows of each part of each tile slot; n_tile tiles of the result. */
DEV void finish(const float *part, const rows_args &r, const rows_job &j, int n_row, int n_tile)
{
    const int fours = n_tile * 4;
    const row_piece rows = block_rows(r);
    for (int i = (int)threadIdx.x; i < rows.n * fours; i += (int)blockDim.x) {
        int row = i / fours, at = i % fours * 4;
        int o = ((int)blockIdx.y - j.block) * n_tile * 16 + at;
        if (o < j.n_out)
            store_four(j.y.at + (rows.first + row) * j.y.stride + o,
                       with_bias(joined_four(part, r, n_row, at >> 4, row, at & 15), j, o),
                       j.n_out - o);
    }
}

/* The same where the parts of a tile are in several blocks: the last block to arrive adds all parts
 * in ascending order. Each group of blocks has sums of its own. */
DEV void finish_spread(float *part, const rows_args &r, const rows_job &j, int n_row, int n_tile)
{
    bool *last = (bool *)part; /* no static memory: a block may be granted no more than this */
    int spread = r.shares / r.own, width = n_tile * 16, n = r.piece_rows * width;
    const row_piece rows = block_rows(r);
    int group = (int)blockIdx.y / spread * (int)gridDim.x + (int)blockIdx.x;
    int first = (int)blockIdx.y % spread * r.own;
    float *sums = r.sums + (size_t)group * (size_t)(r.shares * n);
    for (int i = (int)threadIdx.x; i < r.own * n; i += (int)blockDim.x) {
        int share = i / n, row = i % n / width, at = i % width;
        sums[first * n + i] = part[(((at >> 4) * r.own + share) * n_row + row) * 16 + (at & 15)];
    }
    write_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(&r.arrived[group], 1) == spread - 1;
        if (*last)
            r.arrived[group] = 0; /* for the next launch */
        write_fence();
    }
    __syncthreads();
    if (!*last)
        return;
    for (int i = (int)threadIdx.x; i < rows.n * width; i += (int)blockDim.x) {
        int row = i / width, o = (((int)blockIdx.y - j.block) / spread) * width + i % width;
        float v = 0;
#pragma unroll 8
        for (int s = 0; s < r.shares; s++)
            v += load_fresh(sums + s * n + i);
        if (o < j.n_out)
            j.y.at[(rows.first + row) * j.y.stride + o] = j.bias ? v + j.bias[o] : v;
    }
}

/* The same for a gated unit: a lane has four outputs of a row. n_tile is even, so eight lanes have
 * 32 neighbouring outputs, a group of the int8 copy. */
DEV void finish_gated(const float *part, const rows_args &r, int n_row, int n_tile)
{
    const dev_mat &y = r.p.y;
    const row_piece rows = block_rows(r);
    const int n = rows.n * (n_tile / 2), n_out = r.p.n_out;
    for (int i = (int)threadIdx.x >> 5 << 2; i < n; i += (int)blockDim.x >> 3) {
        int k = i + (lane_id() >> 3), row = k / (n_tile / 2);
        int at = k % (n_tile / 2) * 32 + 4 * (lane_id() & 7);
        int o = (int)blockIdx.y * n_tile * 16 + at;
        bool in = k < n && (o & ~31) < n_out;
        float4 v = make_float4(0, 0, 0, 0);
        if (in && o < n_out) {
            float4 a = joined_four(part, r, n_row, at >> 4, row, at & 15);
            float4 b = joined_four(part, r, n_row, n_tile + (at >> 4), row, at & 15);
            float *to = y.at + (rows.first + row) * y.stride + o;
            v.x = gate_of(r.p.silu, a.x) * b.x;
            v.y = o + 1 < n_out ? gate_of(r.p.silu, a.y) * b.y : 0;
            v.z = o + 2 < n_out ? gate_of(r.p.silu, a.z) * b.z : 0;
            v.w = o + 3 < n_out ? gate_of(r.p.silu, a.w) * b.w : 0;
            store_four(to, v, n_out - o);
        }
        if (r.p.q.q)
            quantise_four(v, r.p.q, rows.first + row, o, in);
    }
}

/* The block's product. An index would copy all products to local memory, so it is chosen by
 * compares. */
DEV rows_job block_job(const rows_args &r)
{
    rows_job j = r.job[0];
#pragma unroll
    for (int i = 1; i < ONE_JOBS; i++)
        if (r.n_jobs > i && (int)blockIdx.y >= r.job[i].block)
            j = r.job[i];
    return j;
}

/* y[r, o] = sum_i x[r, i] W[o, i], of up to three W; or act(W x) * (W' x) and its int8 copy
 * grid:   pieces of rows x blocks of M warps / abreast tiles of 16 outputs; of a gated unit half of
 *         them, and one of a warp's two, are tiles of W'
 * shared: as drawn above
 * bound:  reading W; from 16 rows on also the f32 work on each group's sums */
template <int K, int NT, bool GLU, int M>
__global__ void __launch_bounds__(32 * warp_of<NT, M>::most, 1) rows_kernel(rows_args r)
{
    using S = staged<K>;
    constexpr int STAGES = warp_of<NT, M>::stages;
    DYN_SHARED(uint8_t, mem);
    const product_args &a = r.p;
    const rows_job job = block_job(r);
    int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
    int n_slot = n_warps / r.abreast, slot = warp / r.abreast, share = warp % r.abreast;
    int spread = r.shares / r.own, first = ((int)blockIdx.y - job.block) % spread * r.own;
    int n_tile = GLU ? n_slot * M / 2 : n_slot * M; /* of the result */
    int last = (job.n_out + 15) / 16 - 1, n_unit = a.w.n_unit, n_group = a.w.n_group;
    bool in = false;
    tile_at<K> from[M];
#pragma unroll
    for (int m = 0; m < M; m++) { /* a tile past the end repeats the last */
        int i = m * n_slot + slot;
        bool second = GLU && i >= n_tile;
        int tile = ((int)blockIdx.y - job.block) / spread * n_tile + (second ? i - n_tile : i);
        in = in || tile <= last;
        tile = min(tile, last);
        from[m].begin(second ? a.up : job.w, second ? tile + a.up_row / 16 : tile, 0);
    }

    uint8_t *weights = mem + warp * M * S::bytes;
    const int stage = n_warps * M * S::bytes;
    const int x_bytes = r.x_units * NT * S::x_unit;
    uint8_t *xs = mem + STAGES * stage, *table = xs + (r.x_whole ? 1 : 2) * x_bytes;
    float *part = r.own > r.abreast && r.abreast > 1 ? (float *)(table + n_warps * M * S::table)
                                                     : (float *)mem;
    table += warp * M * S::table;
    uint8_t *x_other = xs + x_bytes;

    float acc[M][2][NT][4], kept[M][NT][4];
#pragma unroll
    for (int i = 0; i < M * 2 * NT * 4; i++)
        (&acc[0][0][0][0])[i] = 0;

    /* A shuffle hides the constants from the compiler, which keeps them in registers then. */
    const constants is = {shfl_u32(r.is.power, 0), shfl_u32(r.is.top, 0)};
    place_at now = {0, 0}, ahead = now; /* the units multiplied; the units requested */
    int n_step = r.steps, at = 0;       /* the stage multiplied */
    if (!a.late)
        grid_trigger();
    for (int k = 0; k < STAGES - 1; k++, ahead = ahead.next(r))
        if (in && k < n_step && ahead.unit(r, first) + share < n_unit)
#pragma unroll
            for (int m = 0; m < M; m++)
                from[m].copy(weights + k * stage + m * S::bytes, ahead.unit(r, first) + share,
                             n_group);
    lattice_begin<K>(a.w.kind);
    if (!r.beside)
        grid_wait();
    if (a.late)
        grid_trigger();
    x_stage x_now = {0, r.x_first, 0};
    copy_x<K, NT>(xs, r, job.x_from, first, x_now);
    copy_commit();
    copy_commit(); /* commits alternate from here on: a stage of activations, then a unit of weights
                    */
    int x_at = 0;  /* the unit's place in its stage */
    for (int k = 0; k < n_step; k++) {
        copy_wait<STAGES - 2>(); /* all but the weights of units after this one */
        if (k == x_now.k) {
            sum_x<K, NT>(xs, r, x_now);
            __syncthreads();
            x_at = x_now.at + share;
            x_now.k += x_now.n;
            x_now.n = min(r.x_steps, n_step - x_now.k);
            x_now.at = r.x_whole ? x_now.k * r.abreast : 0;
            if (x_now.n > 0)
                copy_x<K, NT>(r.x_whole ? xs : x_other, r, job.x_from, first, x_now);
        } else {
            __syncwarp(); /* a warp waits for its own weights alone */
        }
        uint8_t *units = weights + at;
        place_at next = now.next(r);
        ahead = next;
        if (STAGES > 2)
            ahead = ahead.next(r);
        copy_commit();
        int unit = now.unit(r, first) + share, unit_ahead = ahead.unit(r, first) + share;
        if (in && k + STAGES - 1 < n_step && unit_ahead < n_unit) {
            uint8_t *to = weights + (at ? at - stage : (STAGES - 1) * stage);
#pragma unroll
            for (int m = 0; m < M; m++)
                from[m].copy(to + m * S::bytes, unit_ahead, n_group);
        }
        copy_commit();
        if (in && unit < n_unit) {
            x_units x = {xs + x_at * X_CODES,
                         xs + (r.x_units * NT * X_CODES + x_at * 64 * S::x_scale), r.x_units};
            multiply_units<K, NT, M>(acc, units, x, table, is);
        }
        if (next.turn != now.turn || k + 1 == n_step) {
            take_turn<NT, M>(kept, acc, r.abreast > 1 || now.turn == 0);
            if (r.abreast > 1 && k + 1 < n_step)
                keep_sums<NT, M>(part, kept, r, n_slot, now.turn);
        }
        x_at += r.abreast;
        if (!r.x_whole && k + 1 == x_now.k) {
            uint8_t *last = xs;
            xs = x_other;
            x_other = last;
        }
        now = next;
        at = at == (STAGES - 1) * stage ? 0 : at + stage;
    }
    __syncthreads(); /* sums of parts that are all abreast overwrite the weights */
    keep_sums<NT, M>(part, kept, r, n_slot, r.own / r.abreast - 1);
    __syncthreads();

    if (GLU)
        finish_gated(part, r, NT * 8, n_tile);
    else if (spread > 1)
        finish_spread(part, r, job, NT * 8, n_tile);
    else
        finish(part, r, job, NT * 8, n_tile);
    if (r.beside && blockIdx.x == 0 && blockIdx.y == 0)
        grid_wait(); /* the next kernel relies on it */
}

/* ---- Launching ----------------------------------------------------------------------------- */

static rows_cut forced, chosen; /* launch_products.h; of benches alone, which are one thread */
static bool watched, missed;

/* The launch as rows_cut.c sees it. */
static rows_shape launch_shape(const rows_args &r, int rows, int piece_rows)
{
    rows_shape s = {};
    s.n_jobs = r.n_jobs;
    for (int i = 0; i < r.n_jobs; i++)
        s.n_out[i] = r.job[i].n_out;
    s.rows = piece_rows;
    s.pieces = (rows + piece_rows - 1) / piece_rows;
    s.kind = r.p.w.kind;
    s.shares = r.shares;
    s.n_unit = r.p.w.n_unit;
    s.unit_rounds = r.unit_rounds;
    s.glu = r.p.glu;
    return s;
}

template <int K, int NT, int M>
static void try_cuts(rows_plan *best, const rows_shape &s, bool beside)
{
    using S = staged<K>;
    using W = warp_of<NT, M>;
    const rows_gpu gpu = {(size_t)cu_gpu.shared_block, cu_gpu.n_sm};
    const rows_needs needs = {
        M, NT, W::stages * S::bytes + S::table, S::x_unit, table_bytes<K>, W::most};
    rows_cut only = forced;
    if (beside) /* the kernel beside it may use the memory of sums */
        only.spread = ROWS_TOGETHER;
    rows_try(best, &s, &needs, &gpu, only);
}

template <int K, int NT, bool GLU, int M>
static void launch_cut(cudaStream_t s, rows_args r, const rows_plan &c)
{
    const rows_shape shape = launch_shape(r, r.n_rows, NT * 8);
    int n_tile = c.cut.warps / c.cut.abreast * M / (GLU ? 2 : 1), block = 0;
    r.abreast = c.cut.abreast;
    r.own = rows_own(&shape, c.cut);
    r.steps = rows_steps(&shape, c.cut);
    r.x_whole = c.cut.x == ROWS_WHOLE;
    /* Of a whole row the first step is copied first, the rest while that is multiplied. */
    r.x_first = r.x_whole ? 1 : c.cut.x;
    r.x_steps = r.x_whole ? r.steps : c.cut.x;
    r.x_units = r.x_steps * r.abreast;
    for (int i = 0; i < r.n_jobs; i++) {
        r.job[i].block = block;
        block += (r.job[i].n_out + 16 * n_tile - 1) / (16 * n_tile) * (r.shares / r.own);
    }
    r.piece_rows = NT * 8;
    dim3 grid((unsigned)shape.pieces, (unsigned)block);
    LAUNCH((rows_kernel<K, NT, GLU, M>), grid, dim3(32u * (unsigned)c.cut.warps),
           spread_bytes(c.shared, block * shape.pieces), s, r);
}

/* The most tiles of a warp: two where W and W' go in pairs, or where three exceed the registers. */
template <int NT, bool GLU> struct threes {
    static constexpr int tiles = !GLU && NT < 4 ? 3 : 2;
};

/* The quickest cut for n rows in pieces of NT * 8. */
template <int K, int NT, bool GLU> static rows_plan best_plan(const rows_args &r, int n)
{
    constexpr int MOST = threes<NT, GLU>::tiles;
    rows_plan best = {};
    const rows_shape s = launch_shape(r, n, NT * 8);
    try_cuts<K, NT, 1>(&best, s, r.beside);
    try_cuts<K, NT, 2>(&best, s, r.beside);
    if (MOST > 2)
        try_cuts<K, NT, MOST>(&best, s, r.beside);
    return best;
}

template <int K, int NT, bool GLU>
static void rows_launch(cudaStream_t s, rows_args r, int n, const rows_plan &c)
{
    constexpr int MOST = threes<NT, GLU>::tiles;
    missed = missed || !c.shared;
    if (!c.shared)
        return;
    if (watched)
        chosen = c.cut;
    r.n_rows = n;
    if (c.cut.tiles == 1)
        launch_cut<K, NT, GLU, 1>(s, r, c);
    else if (c.cut.tiles == 2)
        launch_cut<K, NT, GLU, 2>(s, r, c);
    else
        launch_cut<K, NT, GLU, MOST>(s, r, c);
}

/* Launches n rows, in pieces of 32 or 16, whichever is quicker; of 8 where there are no more rows,
 * where few tiles leave multiprocessors idle, or where shared memory holds no more. 8 rows always
 * fit. */
template <int K, bool GLU> static void launch_some(cudaStream_t s, const rows_args &r, int n)
{
    /* Estimates of several pieces of 8 rows were not compared with times: the gain must be clear.
     */
    constexpr double SURELY = 0.9;
    rows_plan four = {}, two = {}, one = {};
    if (n > 16)
        four = best_plan<K, 4, GLU>(r, n);
    if (n > 8)
        two = best_plan<K, 2, GLU>(r, n);
    if (n <= 16 || (!four.shared && !two.shared))
        one = best_plan<K, 1, GLU>(r, n);
    if (four.shared && !(two.shared && two.time < four.time))
        rows_launch<K, 4, GLU>(s, r, n, four);
    else if (two.shared && !(one.shared && one.time < SURELY * two.time))
        rows_launch<K, 2, GLU>(s, r, n, two);
    else
        rows_launch<K, 1, GLU>(s, r, n, one);
}

template <int K, bool GLU> static void launch_all(cudaStream_t s, rows_args r)
{
    int rows = r.p.y.rows;
    for (int n; r.first < rows; r.first += n) {
        n = min(rows - r.first, (int)LAUNCH_ROWS);
        launch_some<K, GLU>(s, r, n);
    }
}

static void rows_by_kind(cudaStream_t s, const rows_args &r)
{
    by_layout(all_packs, pack_kernels(r.p.w.kind), [&](auto k) {
        r.p.glu ? launch_all<k, true>(s, r) : launch_all<k, false>(s, r);
        return true;
    });
}

/* A launch for each format. The last one reads nothing that the one before it writes, so the two
 * run at the same time: the earlier one lets it begin when x is written, and of the last one's
 * blocks only one waits, at its end. Until then it must not read through the first cache, which may
 * hold older bytes before a wait: no document says otherwise. Of the layouts' kernels, those with
 * offsets do not (copy_x), so the last one has to be of these. */
static void launch_formats(cudaStream_t s, rows_args *r, int n)
{
    bool beside = n > 1 && r[0].p.y.rows <= LAUNCH_ROWS && !r[0].p.late;
    if (beside && !has_offset(r[n - 1].p.w.kind)) {
        rows_args last = r[n - 1];
        r[n - 1] = r[0];
        r[0] = last;
    }
    beside = beside && has_offset(r[n - 1].p.w.kind);
    for (int i = 0; i < n; i++) {
        r[i].p.late |= beside && i == n - 2;
        r[i].beside = beside && i == n - 1;
        rows_by_kind(s, r[i]);
    }
}

/* Products of one format and one number of parts share a launch. */
extern "C" void cu_product_rows(cudaStream_t s, const product_args *job, int n,
                                launch_memory memory)
{
    bool done[ONE_JOBS] = {false};
    rows_args launch[ONE_JOBS];
    int n_launches = 0;
    for (int i = 0; i < n; i++) {
        rows_args r = {};
        r.p = job[i];
        r.sums = memory.sums;
        r.arrived = memory.arrived;
        r.is = (constants){0x4b000000, 0x80808080};
        r.shares = product_warps(r.p.w, r.p.glu);
        r.unit_rounds = (r.p.w.n_unit + r.shares - 1) / r.shares;
        for (int j = i; j < n; j++) {
            const product_args &p = job[j];
            if (done[j] || p.w.kind != r.p.w.kind || product_warps(p.w, p.glu) != r.shares)
                continue;
            done[j] = true;
            r.job[r.n_jobs++] = (rows_job){p.w, p.y, p.bias, p.n_out, 0, p.x_from};
        }
        if (r.n_jobs)
            launch[n_launches++] = r;
    }
    launch_formats(s, launch, n_launches);
}

template <int K, int NT> static int allow_rows()
{
    const int n = cu_gpu.shared_block - table_bytes<K>;
    return allow_shared(rows_kernel<K, NT, false, 1>, n) |
           allow_shared(rows_kernel<K, NT, true, 1>, n) |
           allow_shared(rows_kernel<K, NT, false, 2>, n) |
           allow_shared(rows_kernel<K, NT, true, 2>, n) |
           allow_shared(rows_kernel<K, NT, false, threes<NT, false>::tiles>, n);
}
template <int K> static int allow_kind()
{
    return allow_rows<K, 1>() | allow_rows<K, 2>() | allow_rows<K, 4>();
}

/* Once per GPU, at open: all the shared memory that it grants a block. */
extern "C" int cu_rows_init(void)
{
    return each_layout(all_packs, [](auto k) { return allow_kind<k>(); });
}

extern "C" void cu_rows_force(rows_cut c)
{
    forced = c;
    watched = true;
    missed = false;
}
extern "C" rows_cut cu_rows_chosen(void)
{
    return missed ? (rows_cut){} : chosen;
}
