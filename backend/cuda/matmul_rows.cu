/* matmul_rows.cu - 2 to 32 rows times a block-format weight: verification of drafts, answers of
 * several sessions.
 *
 * The integer tensor cores take 16 weight rows x 32 columns against 8 activation rows at once; a
 * group's integer sums leave the unit and meet their scales in f32, since every 32 columns have
 * scales of their own. The weight is read once for all rows, through shared memory, in pieces of
 * 16 bytes a lane, two or three units deep.
 *
 *     weights      [stages][warp][tile][unit of it]         each warp its own
 *     activations  [2 stages][part][8-row tile][unit]       one copy for all tiles of the block
 *     scales       [warp][tile] of super-blocks, a byte each, taken apart once for 8 groups
 *     sums         [tile][part][row][16 outputs]            over the weights, if they are done with
 *
 * What time goes by, beside memory: reads of shared memory (128 bytes a cycle, whoever wants the
 * same) and instructions. So a warp has one tile, two or three: more read the activations once for
 * all, and want more registers and fewer warps; and by threes other numbers of tiles come out even
 * over the multiprocessors. try_cuts chooses. What a unit costs: rows_unit.cuh.
 *
 * A block has several tiles, and for each of them warps that share its columns as in
 * matmul_one.cu; even and odd groups are summed apart and joined at the end, so a row's result is
 * bit for bit the one that matmul_one.cu gives.
 */
#include "backend/cuda/rows_unit.cuh"

/* M tiles of a warp: how deep its weights are staged, and how many warps a multiprocessor has
 * registers for, be they of one block or of several. */
template <int NT, int M> struct warp_of {
    static constexpr int stages = M > 1 ? 2 : 3;
    static constexpr int most = M == 1 ? (NT < 4 ? 24 : 16) : M == 2 && NT < 4 ? 16 : 8;
};

/* One of the products of a launch; of a gated unit W, and W' is p.up. */
struct rows_job {
    packed w;
    dev_mat y;
    int n_out, block; /* outputs; the first block that has some of them */
};

struct rows_args {
    product_args p; /* the first; of all of them x */
    rows_job job[ONE_JOBS];
    int n_jobs;
    int first;       /* row of y and x that is this launch's row 0, a multiple of 8 */
    int n_rows;      /* of this launch */
    int shares;      /* parts that a tile's units are dealt to, u to part u mod shares */
    int abreast;     /* parts at work at a time, a warp each; the others have their turn after */
    int unit_rounds; /* most units of a part */
    uint32_t power;  /* the bits of 2^23: see the kernel */
};

/* A place in the block's work: the turn, and the unit that part 0 of those abreast is at. */
struct place_at {
    int turn, unit;
    DEV place_at next(const rows_args &r) const
    {
        place_at n = {turn, unit + r.shares};
        if (n.unit >= r.unit_rounds * r.shares)
            n = {turn + 1, (turn + 1) * r.abreast};
        return n;
    }
};

/* Where the planes of a tile begin for a lane, which copies 16 bytes of every 512. */
template <int K> struct tile_at {
    using S = staged<K>;
    const uint8_t *codes, *high, *scale, *super;

    DEV void begin(const packed &w, int tile)
    {
        size_t units = (size_t)tile * w.n_unit, lane = 16 * (size_t)lane_id();
        codes = w.codes + lane + (size_t)tile * w.n_group * (S::codes / 8);
        high = w.high + lane + units * S::high;
        scale = w.scale + lane + units * S::scale;
        super = w.super + lane + units * S::super;
        /* sums already: compilers keep the parts, twice the registers, and add them every time */
        codes = opaque(codes);
        high = opaque(high);
        scale = opaque(scale);
        super = opaque(super);
    }
    template <int BYTES> DEV static void copy_plane(uint8_t *to, const uint8_t *plane, int unit)
    {
        const uint8_t *from = plane + (size_t)unit * BYTES;
#pragma unroll
        for (int i = 0; i < BYTES; i += 512)
            if (BYTES - i >= 512 || 16 * lane_id() < BYTES - i)
                copy16_async(to + i, from + i, true);
    }
    /* A unit's bytes on their way to shared memory. Groups past the end have no codes: zeros. */
    DEV void copy(uint8_t *to, int unit, int n_group) const
    {
        to += 16 * lane_id();
        if (S::whole) {
            copy_plane<S::codes>(to, codes, unit);
        } else {
            const uint8_t *from = codes + (size_t)unit * S::codes;
            int n = (n_group - unit * 8) * (S::codes / 8) - 16 * lane_id();
#pragma unroll
            for (int i = 0; i < S::codes; i += 512)
                copy16_async(to + i, from + i, i < n);
        }
        copy_plane<S::high>(to + S::at_high, high, unit);
        copy_plane<S::scale>(to + S::at_scale, scale, unit);
        copy_plane<S::super>(to + S::at_super, super, unit);
    }
};

/* The activations of a place, by all threads. Codes, and scales where they are all that is wanted,
 * in the background; else scales by way of registers, two for each tile of rows: formats with an
 * offset want d and d times the group's sum, not the sums. Zeros for rows and groups that are not
 * there. A thread has 16 bytes of codes, and a scale, of every unit whose turn it is. */
template <int K, int NT> struct x_copy {
    using T = traits<K>;
    using S = staged<K>;
    const int8_t *q;
    const xscale *s;
    uint2 v[T::offset ? 2 : 1][NT];

    DEV void start(const rows_args &r)
    {
        const dev_quant &x = r.p.x;
        int id = (int)threadIdx.x;
        size_t first = (size_t)(r.first >> 3) * (x.cols >> 5) * 8;
        q = opaque(x.q + first * 32 + (id >> 7) * X_CODES + (id & 127) * 16);
        s = opaque((const xscale *)x.s + first + id);
    }
    /* Is there entry e, [group][row], of the unit and tile t of rows? */
    DEV static bool there(const rows_args &r, int unit, int e, int t)
    {
        return unit * 8 + (e >> 3) < r.p.x.cols >> 5 && (e & 7) + 8 * t < r.n_rows;
    }
    DEV void begin(uint8_t *to, const rows_args &r, int unit)
    {
        int id = (int)threadIdx.x, n = (int)blockDim.x, e = id & 63;
        size_t tile = (size_t)(r.p.x.cols >> 5) * 8; /* entries from one tile of rows to the next */
        for (int i = id >> 7, j = 0; i < r.abreast; i += n >> 7, j += n >> 7)
#pragma unroll
            for (int t = 0; t < NT; t++)
                copy16_async(to + (i * NT + t) * S::x_unit + (id & 127) * 16,
                             q + tile * 32 * t + (unit + j) * X_CODES,
                             there(r, unit + i, (id & 127) >> 1, t));
        if (!T::offset) {
            for (int i = id >> 6, j = 0; i < r.abreast; i += n >> 6, j += n >> 6)
#pragma unroll
                for (int t = 0; t < NT; t++)
                    copy4_async(to + (i * NT + t) * S::x_unit + X_CODES + 4 * e,
                                s + tile * t + (unit + j) * 64, there(r, unit + i, e, t));
        } else {
#pragma unroll
            for (int k = 0; k < (T::offset ? 2 : 1); k++) {
                int j = k * (n >> 6), i = (id >> 6) + j;
#pragma unroll
                for (int t = 0; t < NT; t++)
                    v[k][t] = i < r.abreast && there(r, unit + i, e, t)
                                  ? *(const uint2 *)(s + tile * t + (unit + j) * 64)
                                  : make_uint2(0, 0);
            }
        }
    }
    DEV void end(uint8_t *to, const rows_args &r) const
    {
        int id = (int)threadIdx.x;
#pragma unroll
        for (int k = 0; k < (T::offset ? 2 : 0); k++) {
            int i = (id >> 6) + k * ((int)blockDim.x >> 6);
            if (i >= r.abreast)
                return;
#pragma unroll
            for (int t = 0; t < NT; t++) {
                uint2 u = v[k][t];
                int sum = (int)(int16_t)u.y + (int16_t)(u.y >> 16);
                if (!T::split)
                    u.y = __float_as_uint(mul_rn(__uint_as_float(u.x), (float)sum));
                *(uint2 *)(to + (i * NT + t) * S::x_unit + X_CODES + 8 * (id & 63)) = u;
            }
        }
    }
};

/* How many parts of a tile have places of their own: where they take turns one by one, the first
 * has the sum so far. */
DEV int places(const rows_args &r)
{
    return r.abreast > 1 ? r.shares : 1;
}

/* A turn's parts are done: their sums to where all meet, and from nothing again. */
template <int NT, int M>
DEV void keep_sums(float *part, float (*acc)[2][NT][4], const rows_args &r, int n_slot, int turn)
{
    int gid = lane_id() >> 2, tid = lane_id() & 3, warp = (int)threadIdx.x >> 5, n = places(r);
    int slot = warp / r.abreast, share = turn * r.abreast + warp % r.abreast;
#pragma unroll
    for (int m = 0; m < M; m++) {
        float *to = part + ((m * n_slot + slot) * n + (n > 1 ? share : 0)) * NT * 128;
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = (t * 8 + 2 * tid + (i & 1)) * 16 + gid + 8 * (i >> 1);
                float v = acc[m][0][t][i] + acc[m][1][t][i];
                to[at] = n == 1 && turn ? to[at] + v : v;
                acc[m][0][t][i] = acc[m][1][t][i] = 0;
            }
    }
}

/* The parts of row r, output o of tile slot `slot`, in ascending order. */
DEV float joined(const float *part, const rows_args &r, int n_row, int slot, int row, int o)
{
    float v = 0;
    int n = places(r);
    for (int s = 0; s < n; s++)
        v += part[((slot * n + s) * n_row + row) * 16 + o];
    return v;
}

/* part: n_row rows of each part of each tile slot; n_tile tiles of the result. */
DEV void finish(const float *part, const rows_args &r, const rows_job &j, int n_row, int n_tile)
{
    for (int i = (int)threadIdx.x; i < r.n_rows * n_tile * 16; i += (int)blockDim.x) {
        int row = i / (n_tile * 16), at = i % (n_tile * 16);
        int o = ((int)blockIdx.x - j.block) * n_tile * 16 + at;
        if (o < j.n_out)
            j.y.at[(r.first + row) * j.y.stride + o] =
                joined(part, r, n_row, at >> 4, row, at & 15);
    }
}

/* The same, gated. n_tile is even: a warp has 32 outputs of a row, which is a group of the copy. */
DEV void finish_gated(const float *part, const rows_args &r, int n_row, int n_tile)
{
    const dev_mat &y = r.p.y;
    int pairs = n_tile / 2;
    for (int i = (int)threadIdx.x >> 5; i < r.n_rows * pairs; i += (int)blockDim.x >> 5) {
        int row = i / pairs, at = i % pairs * 32 + lane_id();
        int o = (int)blockIdx.x * n_tile * 16 + at, base = o & ~31;
        float v = 0;
        if (base >= r.p.n_out)
            continue;
        if (o < r.p.n_out) {
            v = gelu_tanh(joined(part, r, n_row, at >> 4, row, at & 15)) *
                joined(part, r, n_row, n_tile + (at >> 4), row, at & 15);
            y.at[(r.first + row) * y.stride + o] = v;
        }
        if (r.p.q.q)
            quantise_warp(v, r.p.q, r.first + row, base >> 5);
    }
}

/* The block's product. Not by an index, which would have all of them copied to memory of a thread. */
DEV rows_job job_of(const rows_args &r)
{
    rows_job j = r.job[0];
    if (r.n_jobs > 1 && (int)blockIdx.x >= r.job[1].block)
        j = r.job[1];
    if (r.n_jobs > 2 && (int)blockIdx.x >= r.job[2].block)
        j = r.job[2];
    return j;
}

/* y[r, o] = sum_i x[r, i] W[o, i], of up to three W; or gelu(W x) * (W' x) and its int8 copy where
 * wanted
 * grid:   blocks of M warps / abreast tiles of 16 outputs; gated: half of them are tiles of W', and
 *         of a warp's two one
 * shared: as drawn above
 * bound:  reading W; from 16 rows on also the f32 work on each group's sums */
template <int K, int NT, bool GLU, int M>
__global__ void __launch_bounds__(32 * warp_of<NT, M>::most, 1) rows_kernel(rows_args r)
{
    using S = staged<K>;
    constexpr int STAGES = warp_of<NT, M>::stages;
    DYN_SHARED(uint8_t, mem);
    const product_args &a = r.p;
    const rows_job job = job_of(r);
    int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
    int n_slot = n_warps / r.abreast, slot = warp / r.abreast, share = warp % r.abreast;
    int n_tile = GLU ? n_slot * M / 2 : n_slot * M; /* of the result */
    int last = (job.n_out + 15) / 16 - 1, n_unit = a.w.n_unit, n_group = a.w.n_group;
    bool in = false;
    tile_at<K> from[M];
#pragma unroll
    for (int m = 0; m < M; m++) { /* a tile past the end beside one that is not: the last again */
        int i = m * n_slot + slot;
        bool second = GLU && i >= n_tile;
        int tile = ((int)blockIdx.x - job.block) * n_tile + (second ? i - n_tile : i);
        in = in || tile <= last;
        tile = min(tile, last);
        from[m].begin(second ? a.up : job.w, second ? tile + a.up_row / 16 : tile);
    }

    uint8_t *weights = mem + warp * M * S::bytes;
    const int stage = n_warps * M * S::bytes, x_stage = r.abreast * NT * S::x_unit;
    uint8_t *xs = mem + STAGES * stage, *table = xs + 2 * x_stage;
    float *part = r.shares > r.abreast ? (float *)(table + n_warps * M * S::table) : (float *)mem;
    table += warp * M * S::table;

    float acc[M][2][NT][4];
#pragma unroll
    for (int i = 0; i < M * 2 * NT * 4; i++)
        (&acc[0][0][0][0])[i] = 0;

    /* What picks bytes has room for one constant, not two: this one is to stay in a register, and
     * compilers know no constant that has gone through a shuffle. */
    const uint32_t power = shfl_u32(r.power, 0);
    place_at now = {0, 0}, ahead = now; /* what is multiplied; what is asked for */
    int n_step = r.shares / r.abreast * r.unit_rounds, at = 0; /* the stage multiplied */
    grid_trigger();
    for (int k = 0; k < STAGES - 1; k++, ahead = ahead.next(r))
        if (in && k < n_step && ahead.unit + share < n_unit)
#pragma unroll
            for (int m = 0; m < M; m++)
                from[m].copy(weights + k * stage + m * S::bytes, ahead.unit + share, n_group);
    grid_wait();
    x_copy<K, NT> x;
    x.start(r);
    x.begin(xs, r, now.unit);
    x.end(xs, r);
    copy_commit();
    copy_commit(); /* from here on: activations of a unit, weights of one to come, .. */
    for (int k = 0; k < n_step; k++) {
        copy_wait<STAGES - 2>(); /* all but the weights of units after this one */
        __syncthreads();
        const uint8_t *units = weights + at, *x_now = xs + (k & 1) * x_stage;
        uint8_t *x_next = xs + (~k & 1) * x_stage;
        place_at next = now.next(r);
        ahead = next;
        if (STAGES > 2)
            ahead = ahead.next(r);
        if (k + 1 < n_step)
            x.begin(x_next, r, next.unit);
        copy_commit();
        if (in && k + STAGES - 1 < n_step && ahead.unit + share < n_unit) {
            uint8_t *to = weights + (at ? at - stage : (STAGES - 1) * stage);
#pragma unroll
            for (int m = 0; m < M; m++)
                from[m].copy(to + m * S::bytes, ahead.unit + share, n_group);
        }
        copy_commit();
        if (in && now.unit + share < n_unit) {
            if (S::table) {
#pragma unroll
                for (int m = 0; m < M; m++)
                    make_table<K>(table + m * S::table, units + m * S::bytes);
                __syncwarp();
            }
            multiply_units<K, NT, M>(acc, units, x_now + share * NT * S::x_unit, table, power);
        }
        if (k + 1 < n_step)
            x.end(x_next, r);
        if (next.turn != now.turn && k + 1 < n_step)
            keep_sums<NT, M>(part, acc, r, n_slot, now.turn);
        now = next;
        at = at == (STAGES - 1) * stage ? 0 : at + stage;
    }
    __syncthreads(); /* where all parts are abreast the sums lie over the weights */
    keep_sums<NT, M>(part, acc, r, n_slot, r.shares / r.abreast - 1);
    __syncthreads();

    if (GLU)
        finish_gated(part, r, NT * 8, n_tile);
    else
        finish(part, r, job, NT * 8, n_tile);
}

/* ---- Launching ----------------------------------------------------------------------------- */

static int shared_most = 99 << 10; /* a block's: what every GPU of 8.0 and above grants */
static int n_processors = 132;
static rows_cut forced, chosen; /* cuda_int.h; of benches alone, which are one thread */
static bool watched, missed;

/* A way to cut a launch, what it takes and about how long. */
struct cut_cost {
    rows_cut cut;
    size_t shared; /* bytes; 0: nothing fits */
    double time;
};
/* What a multiprocessor spends on a step, in nanoseconds: on each of its tiles, the same again for
 * each 8 rows of activations, on a warp, on staging 8 rows of a unit; and once, however many warps
 * and blocks share it: in waiting, for each tile of a warp and 8 rows. */
struct step_price {
    float tile, tile_rows, warp, staged, wait, wait_tile, wait_rows;
};
/* Fitted to 928 times on an H200 (bench_matmul_cuda --cuts); nine of ten are within a fifth. */
template <int K> static step_price price_of()
{
    using T = traits<K>;
    if (T::six)
        return (step_price){2, 63, 48, 4, 0, 457, 53};
    if (T::bytes)
        return (step_price){27, 20, 36, 44, 56, 191, 0};
    if (T::offset)
        return (step_price){30, 27, 33, 7, 0, 115, 304};
    return (step_price){23, 25, 15, 28, 275, 77, 0};
}

/* What a kernel takes: tiles of a warp, of 8 rows; bytes of a warp's tile, of a unit of 8 rows;
 * warps that there are registers for. */
struct rows_needs {
    int tiles, n_8, per_tile, per_x, warps;
    step_price price;
};

/* Blocks of n_tile tiles of the result each; products have none in common. */
static int blocks_of(const rows_args &r, int n_tile)
{
    int n = 0;
    for (int i = 0; i < r.n_jobs; i++)
        n += (r.job[i].n_out + 16 * n_tile - 1) / (16 * n_tile);
    return n;
}

static bool wanted(const rows_cut &c)
{
    return (!forced.tiles || c.tiles == forced.tiles) &&
           (!forced.warps || c.warps == forced.warps) &&
           (!forced.abreast || c.abreast == forced.abreast);
}

/* About how long a multiprocessor takes for a step of `blocks` blocks, `fit` at a time. */
static double time_of(const rows_needs &k, const rows_cut &c, int blocks, int fit)
{
    const step_price &p = k.price;
    double tiles = c.warps * c.tiles, time = 0;
    double block = tiles * (p.tile + k.n_8 * p.tile_rows) + c.warps * p.warp +
                   k.n_8 * c.abreast * p.staged;
    double wait = p.wait + k.tiles * p.wait_tile + k.n_8 * p.wait_rows;
    for (int n; blocks > 0; blocks -= n) {
        n = blocks < fit ? blocks : fit;
        time += n * block + wait;
    }
    return time / c.abreast; /* steps go by parts that have their turn */
}

/* Cuts into blocks of 4 to 24 warps; parts that are not abreast have their turn after, which
 * changes no sum. What counts is the time of the multiprocessor that gets most blocks. */
static void try_cuts(cut_cost *best, const rows_args &r, const rows_needs &k)
{
    for (int warps = 4; warps <= k.warps; warps += 4)
        for (int n = 1; n <= r.shares && n <= warps && warps % n == 0; n *= 2) {
            rows_cut c = {k.tiles, warps, n};
            int slots = warps / n * k.tiles, n_tile = r.p.glu ? slots / 2 : slots;
            int kept = n > 1 ? r.shares : 1;
            size_t need = (size_t)(warps * k.tiles * k.per_tile + 2 * n * k.n_8 * k.per_x) +
                          (n < r.shares ? (size_t)(slots * kept * k.n_8) * 512 : 0);
            if (need > (size_t)shared_most || (r.p.glu && slots % 4) || !wanted(c))
                continue;
            int here = (blocks_of(r, n_tile) + n_processors - 1) / n_processors;
            int fit = (int)(((size_t)shared_most + 1024) / (need + 1024));
            fit = fit < k.warps / warps ? fit : k.warps / warps;
            double time = time_of(k, c, here, fit);
            if (!best->shared || time < best->time)
                *best = (cut_cost){c, need, time};
        }
}

template <int K, int NT, int M> static rows_needs needs_of()
{
    using S = staged<K>;
    using W = warp_of<NT, M>;
    return (rows_needs){M,        NT,     W::stages * S::bytes + S::table, S::x_unit,
                        W::most, price_of<K>()};
}

template <int K, int NT, bool GLU, int M>
static void launch_cut(cudaStream_t s, rows_args r, const cut_cost &c)
{
    int n_tile = c.cut.warps / c.cut.abreast * M / (GLU ? 2 : 1), n_jobs = r.n_jobs;
    r.abreast = c.cut.abreast;
    for (r.n_jobs = 0; r.n_jobs < n_jobs; r.n_jobs++)
        r.job[r.n_jobs].block = blocks_of(r, n_tile); /* those of the jobs before */
    LAUNCH((rows_kernel<K, NT, GLU, M>), dim3((unsigned)blocks_of(r, n_tile)),
           dim3(32u * (unsigned)c.cut.warps), c.shared, s, r);
}

/* Three tiles of a warp: not where W and W' go in pairs, nor where registers would not do. */
template <int NT, bool GLU> struct threes {
    static constexpr int tiles = !GLU && NT < 4 ? 3 : 2;
};

template <int K, int NT, bool GLU> static bool rows_launch(cudaStream_t s, rows_args r)
{
    constexpr int MOST = threes<NT, GLU>::tiles;
    cut_cost c = {};
    try_cuts(&c, r, needs_of<K, NT, 1>());
    try_cuts(&c, r, needs_of<K, NT, 2>());
    if (MOST > 2)
        try_cuts(&c, r, needs_of<K, NT, MOST>());
    if (!c.shared)
        return false;
    if (watched)
        chosen = c.cut;
    if (c.cut.tiles == 1)
        launch_cut<K, NT, GLU, 1>(s, r, c);
    else if (c.cut.tiles == 2)
        launch_cut<K, NT, GLU, 2>(s, r, c);
    else
        launch_cut<K, NT, GLU, MOST>(s, r, c);
    return true;
}

/* As few launches as shared memory allows; 8 rows always fit. */
template <int K, bool GLU> static void rows_of(cudaStream_t s, rows_args r)
{
    int rows = r.p.y.rows;
    for (; r.first < rows; r.first += r.n_rows) {
        r.n_rows = rows - r.first;
        if (r.n_rows > 16 && rows_launch<K, 4, GLU>(s, r))
            continue;
        r.n_rows = r.n_rows > 16 ? 16 : r.n_rows;
        if (r.n_rows > 8 && rows_launch<K, 2, GLU>(s, r))
            continue;
        r.n_rows = r.n_rows > 8 ? 8 : r.n_rows;
        if (!rows_launch<K, 1, GLU>(s, r))
            missed = true;
    }
}

template <int K> static void rows_any(cudaStream_t s, const rows_args &r)
{
    if (r.p.glu)
        rows_of<K, true>(s, r);
    else
        rows_of<K, false>(s, r);
}

static void rows_by_kind(cudaStream_t s, const rows_args &r)
{
    switch (r.p.w.kind) {
    case PACK_Q4_0:
        rows_any<PACK_Q4_0>(s, r);
        break;
    case PACK_Q4_1:
        rows_any<PACK_Q4_1>(s, r);
        break;
    case PACK_Q5_0:
        rows_any<PACK_Q5_0>(s, r);
        break;
    case PACK_Q5_1:
        rows_any<PACK_Q5_1>(s, r);
        break;
    case PACK_Q8_0:
        rows_any<PACK_Q8_0>(s, r);
        break;
    case PACK_Q4_K:
        rows_any<PACK_Q4_K>(s, r);
        break;
    case PACK_Q5_K:
        rows_any<PACK_Q5_K>(s, r);
        break;
    case PACK_Q6_K:
        rows_any<PACK_Q6_K>(s, r);
        break;
    default:
        rows_any<PACK_G8>(s, r);
    }
}

/* Products of one format whose tiles are dealt to as many parts go together. */
extern "C" void cu_product_rows(cudaStream_t s, const product_args *job, int n)
{
    bool done[ONE_JOBS] = {false};
    for (int i = 0; i < n; i++) {
        rows_args r = {};
        r.p = job[i];
        r.power = 0x4b000000;
        r.shares = product_warps(r.p.w, r.p.glu);
        r.unit_rounds = (r.p.w.n_unit + r.shares - 1) / r.shares;
        for (int j = i; j < n; j++) {
            const product_args &p = job[j];
            if (done[j] || p.w.kind != r.p.w.kind || product_warps(p.w, p.glu) != r.shares)
                continue;
            done[j] = true;
            r.job[r.n_jobs++] = (rows_job){p.w, p.y, p.n_out, 0};
        }
        if (r.n_jobs)
            rows_by_kind(s, r);
    }
}

template <class F> static int allow(F *kernel)
{
#ifdef CARAT_EMU
    (void)kernel;
    return 0;
#else
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     shared_most);
#endif
}

template <int K, int NT> static int allow_rows()
{
    return allow(rows_kernel<K, NT, false, 1>) | allow(rows_kernel<K, NT, true, 1>) |
           allow(rows_kernel<K, NT, false, 2>) | allow(rows_kernel<K, NT, true, 2>) |
           allow(rows_kernel<K, NT, false, threes<NT, false>::tiles>);
}
template <int K> static int allow_kind()
{
    return allow_rows<K, 1>() | allow_rows<K, 2>() | allow_rows<K, 4>();
}

/* largest: shared memory that this GPU grants a block, in bytes. */
extern "C" int cu_rows_init(int largest, int processors)
{
    n_processors = processors;
    shared_most = largest > shared_most ? largest : shared_most;
    return allow_kind<PACK_Q4_0>() | allow_kind<PACK_Q4_1>() | allow_kind<PACK_Q5_0>() |
           allow_kind<PACK_Q5_1>() | allow_kind<PACK_Q8_0>() | allow_kind<PACK_Q4_K>() |
           allow_kind<PACK_Q5_K>() | allow_kind<PACK_Q6_K>() | allow_kind<PACK_G8>();
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
