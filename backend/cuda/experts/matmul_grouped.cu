/* matmul_grouped.cu - products of experts for many answers at once (GROUPED_ROWS and more), on the
 * integer tensor cores.
 *
 *     pair     (row, expert); 64 rows that choose 8 of 128 experts have four pairs of each
 *     group    up to eight pairs of one expert; every block sorts the pairs into groups itself
 *     item     a group times some tiles of 16 outputs (TILES of a warp at a time, ROUNDS times); of
 *              a gated unit a warp has a tile of W and the same of W', and product_warps of a
 *              weight's warps share their columns
 *     block    computes item b, then the next free one (ticket)
 *
 *     shared   weights   [warp][2 stages][tile]   a unit of 16 rows x 256 columns each
 *              scales    [warp][tile]             as floats, see rows_unit.cuh
 *              x         [unit][group][8 pairs]   the group's activations
 *              sums      [warp][tile][lane]       of a gated unit's later parts
 *              results   [pair][output]           of a gated unit, for its int8 copy
 *              order, groups                      the pairs by expert; where each group begins
 *
 * A product of 16 x 32 weights by eight activation rows costs 35 instructions however many of the
 * rows are wanted, a row in matmul_experts.cu 20. So three pairs of an expert are enough to gain.
 * The weights of the next item's first two units are requested while the last units of an item are
 * multiplied. Two blocks on a multiprocessor hide each other's barriers. A row's result is
 * bit-identical to that of matmul_vec.cu.
 */
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/experts/pairs.cuh"
#include "backend/cuda/product/rows_unit.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, GROUP_PAIRS = 8, STAGES = 2, TILE_SUMS = 16 * GROUP_PAIRS };

struct group_at {
    uint16_t expert, first; /* its first pair in the order; the next group's is the end */
};

struct grouped_args : pair_args {
    packed w, up;    /* up: of a gated unit, */
    int32_t up_tile; /* from this tile on */
    int32_t parts;   /* warps that share a tile's columns */
    int32_t columns; /* items of a group */
    constants is;
};

/* TILES of a warp at a time: two share each read of the activations. Units of eight bits take too
 * much shared memory for that, but for W and W'. */
template <int K, bool GLU> struct grouped_shape {
    static constexpr int TILES = GLU || !traits<K>::bytes ? 2 : 1, ROUNDS = GLU ? 1 : 2;
};

/* Do the stages of a gated unit leave room in half of 227 KB? Not those of Q6_K and of eight bits:
 * such units are left to matmul_experts.cu, and so are long rows of five bits. */
template <int K> static constexpr bool pairs_fit = WARPS *STAGES * 2 * staged<K>::bytes < 104 << 10;

/* The parts of a block's shared memory, in bytes from its beginning. */
struct grouped_memory {
    int tables, x, scales, sums, results, order, groups, bytes;
};
template <int K, bool GLU>
static inline __host__ __device__ grouped_memory memory_of(int n_unit, int n_pairs, int n_expert,
                                                           int parts)
{
    using S = staged<K>;
    constexpr int TILES = grouped_shape<K, GLU>::TILES;
    const int slots = WARPS / parts, sort = (n_pairs + 3) / 4 * 4 + 4 * n_expert;
    grouped_memory m = {};
    m.tables = WARPS * STAGES * TILES * S::bytes;
    m.x = m.tables + WARPS * TILES * S::table;
    m.scales = m.x + n_unit * X_CODES;
    m.sums = m.scales + n_unit * 64 * S::x_scale;
    m.results = m.sums + (GLU ? (WARPS - slots) * TILES * TILE_SUMS * 4 : 0);
    m.order = m.results + (GLU ? slots * TILE_SUMS * 4 : 0);
    if (m.order < m.sums + sort) /* sorting has their place at first */
        m.order = m.sums + sort;
    m.groups = m.order + (2 * n_pairs + 3) / 4 * 4;
    m.bytes = m.groups + (n_expert + n_pairs / GROUP_PAIRS + 1) * (int)sizeof(group_at);
    return m;
}

/* Sorts the pairs: experts ascending, pairs ascending within an expert, the same in every block.
 * room: for a byte per pair and an int per expert. Returns the number of groups. Ends with a
 * barrier. */
DEV int sort_pairs(const grouped_args &a, uint16_t *order, group_at *groups, uint8_t *room,
                   int *sums)
{
    __shared__ int n_groups;
    uint32_t *ids = (uint32_t *)room;
    int *count = (int *)(room + (a.n_pairs + 3) / 4 * 4), e = (int)threadIdx.x;
    if (e < a.w.n_mat)
        count[e] = 0;
    __syncthreads();
#pragma unroll 1
    for (int p = (int)threadIdx.x; p < a.n_pairs; p += THREADS) {
        int id = own_mat(a.own, load_fresh(a.expert + p));
        room[p] = (uint8_t)id;
        if (id < 0)
            continue;
        atomicAdd(&count[id], 1);
        if (a.w.count && blockIdx.x == 0)
            atomicAdd(&a.w.count[id], 1u);
    }
    __syncthreads();
    int n = e < a.w.n_mat ? count[e] : 0, mine = (n + GROUP_PAIRS - 1) / GROUP_PAIRS;
    int end = sum_up_to(n << 16 | mine, sums); /* of pairs and of groups */
    int pair = (end >> 16) - n, group = (end & 0xffff) - mine;
    if (e < a.w.n_mat)
        count[e] = pair;
#pragma unroll 1
    for (int i = 0; i < mine; i++)
        groups[group + i] = (group_at){(uint16_t)e, (uint16_t)(pair + i * GROUP_PAIRS)};
    if (e == THREADS - 1) {
        groups[end & 0xffff] = (group_at){0, (uint16_t)(end >> 16)};
        n_groups = end & 0xffff;
    }
    __syncthreads();
#pragma unroll 1
    for (int p = (int)threadIdx.x; p < a.n_pairs; p += THREADS)
        if (!is_left_out(a, ids, p))
            order[count[room[p]] + rank_of(ids, p)] = (uint16_t)p;
    __syncthreads();
    return n_groups;
}

/* The pairs of a group. */
struct some_pairs {
    const uint16_t *p;
    int n;
};
DEV some_pairs pairs_of(const group_at *groups, const uint16_t *order, int g)
{
    return (some_pairs){order + groups[g].first, groups[g + 1].first - groups[g].first};
}

/* Starts the copy of a group's activations, in the layout of rows_unit.cuh. Missing pairs and
 * groups of columns become zeros. */
template <int K>
DEV void copy_pairs(const grouped_args &a, const some_pairs &of, uint8_t *codes, uint8_t *scales)
{
    const int n = a.w.n_unit * 64; /* [group][pair] */
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < 2 * n; i += THREADS) {
        int r = i >> 1 & 7, g = i >> 4;
        bool in = r < of.n && g < a.w.n_group;
        size_t at = quant_index(a.x, in ? of.p[r] / a.x_pairs : 0, in ? g : 0);
        copy16_async(codes + i * 16, a.x.q + at * 32 + (i & 1) * 16, in);
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        int r = i & 7, g = i >> 3;
        bool in = r < of.n && g < a.w.n_group;
        size_t at = quant_index(a.x, in ? of.p[r] / a.x_pairs : 0, in ? g : 0);
        const xscale *s = (const xscale *)a.x.s + at;
        if (!traits<K>::offset)
            copy4_async(scales + i * 4, s, in);
        else if (in)
            copy8_async(scales + i * 8, s);
        else
            *(uint2 *)(scales + i * 8) = make_uint2(0, 0);
    }
}

/* Formats with an offset need d and d times the group's sum. Each thread converts what it copied.
 */
template <int K> DEV void settle_pairs(const grouped_args &a, uint8_t *scales)
{
    const int n = traits<K>::offset && !traits<K>::split ? a.w.n_unit * 64 : 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        uint2 *at = (uint2 *)scales + i;
        int sum = (int)(int16_t)at->y + (int16_t)(at->y >> 16);
        at->y = __float_as_uint(mul_rn(__uint_as_float(at->x), (float)sum));
    }
}

/* A warp's requests of weights: a unit of each of its tiles at a time, item after item. */
template <int K, bool GLU> struct weight_stream {
    static constexpr int TILES = grouped_shape<K, GLU>::TILES;
    tile_at<K> from[TILES];
    int round, unit; /* the next one */

    DEV static int part(const grouped_args &a)
    {
        return ((int)threadIdx.x >> 5) % a.parts;
    }
    /* The warp's first tile of a round. */
    DEV static int tile_of(const grouped_args &a, int column, int round)
    {
        constexpr int ROUNDS = grouped_shape<K, GLU>::ROUNDS;
        int slots = WARPS / a.parts, slot = ((int)threadIdx.x >> 5) / a.parts;
        return GLU ? column * slots + slot : ((column * ROUNDS + round) * slots + slot) * TILES;
    }
    DEV static bool in(const grouped_args &a, int column, int round)
    {
        return tile_of(a, column, round) * TILE_ROWS < a.n_out;
    }
    DEV void begin_round(const grouped_args &a, int expert, int column)
    {
        int last = a.w.n_tile - 1, tile = tile_of(a, column, round);
        size_t at = mat_at(a.w, (size_t)expert), up = GLU ? mat_at(a.up, (size_t)expert) : 0;
#pragma unroll
        for (int m = 0; m < TILES; m++) /* a tile past the end repeats the last */
            if (GLU && m)
                from[m].begin(a.up, tile + a.up_tile, up);
            else
                from[m].begin(a.w, GLU ? tile : min(tile + m, last), at);
    }
    DEV void begin(const grouped_args &a, int expert, int column)
    {
        round = 0;
        unit = part(a);
        if (in(a, column, 0))
            begin_round(a, expert, column);
    }
    /* Requests the next unit, if the item has one. */
    DEV bool request(const grouped_args &a, int expert, int column, uint8_t *to)
    {
        if (round >= grouped_shape<K, GLU>::ROUNDS || !in(a, column, round))
            return false;
#pragma unroll
        for (int m = 0; m < TILES; m++)
            from[m].copy(to + m * staged<K>::bytes, unit, a.w.n_group);
        unit += a.parts;
        if (unit >= a.w.n_unit) {
            unit = part(a);
            round++;
            if (round < grouped_shape<K, GLU>::ROUNDS && in(a, column, round))
                begin_round(a, expert, column);
        }
        return true;
    }
};

template <int TILES> DEV void clear(float (*acc)[2][1][4])
{
#pragma unroll
    for (int i = 0; i < TILES * 8; i++)
        (&acc[0][0][0][0])[i] = 0;
}

/* A warp's outputs of a round: those of the pairs, times their shares. */
template <int TILES>
DEV void write_shares(const grouped_args &a, const some_pairs &of, int tile, float (*acc)[2][1][4])
{
    int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int r = 2 * tid + j;
        if (r >= of.n)
            continue;
        int p = of.p[r];
        float share = a.share[p];
        float *to = a.y.at + p / a.k * a.y.stride + (int64_t)(p % a.k) * a.n_out;
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            int m = i >> 1, h = i & 1, o = (tile + m) * TILE_ROWS + gid + 8 * h;
            if (o < a.n_out)
                to[o] = mul_rn(acc[m][0][0][2 * h + j] + acc[m][1][0][2 * h + j], share);
        }
    }
}

/* Of a gated unit: a later part leaves its sums. */
template <int TILES> DEV void keep_part(const grouped_args &a, float4 *sums, float (*acc)[2][1][4])
{
    int warp = (int)threadIdx.x >> 5, slot = warp / a.parts, part = warp % a.parts;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = acc[m][0][0][i] + acc[m][1][0][i];
        sums[((slot * (a.parts - 1) + part - 1) * TILES + m) * 32 + lane_id()] =
            make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* Of a gated unit: the first part of each tile adds the others' sums and gates, to
 * results[pair][output of the block]. */
DEV void gate_sums(const grouped_args &a, const float4 *sums, float *results, float (*acc)[2][1][4],
                   int expert, int column)
{
    int warp = (int)threadIdx.x >> 5, slot = warp / a.parts, lane = lane_id();
    int gid = lane >> 2, tid = lane & 3, width = WARPS / a.parts * TILE_ROWS;
    float v[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[m][i] = 0.0f + (acc[m][0][0][i] + acc[m][1][0][i]);
    for (int part = 1; part < a.parts; part++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float4 u = sums[((slot * (a.parts - 1) + part - 1) * 2 + m) * 32 + lane];
            v[m][0] += u.x, v[m][1] += u.y, v[m][2] += u.z, v[m][3] += u.w;
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = slot * TILE_ROWS + gid + 8 * (i >> 1);
        int o = min(column * width + at, a.n_out - 1); /* write_results skips those past the end */
        results[(2 * tid + (i & 1)) * width + at] =
            unit_of(a.unit, a.silu, v[0][i], v[1][i], (size_t)expert, o);
    }
}

/* Writes the block's outputs and their int8 copy, a warp 32 outputs of a pair. */
DEV void write_results(const grouped_args &a, const some_pairs &of, int column,
                       const float *results)
{
    int width = WARPS / a.parts * TILE_ROWS, wide = width / 32, lane = lane_id();
    for (int i = (int)threadIdx.x >> 5; i < of.n * wide; i += WARPS) {
        int r = i / wide, at = i % wide * 32 + lane, o = column * width + at, p = of.p[r];
        if (o - lane >= a.n_out)
            continue;
        float v = o < a.n_out ? results[r * width + at] : 0;
        if (o < a.n_out)
            a.y.at[p / a.k * a.y.stride + (int64_t)(p % a.k) * a.n_out + o] = v;
        if (a.copy.q)
            quantise_warp(v, a.copy, p, (o - lane) >> 5);
    }
}

/* y[p] = act(W x[p]) * (W' x[p]) with its int8 copy; or y[p] = share[p] (W x[p]); W: expert[p]'s
 * grid:   as many blocks as fit the GPU, or one per item
 * shared: as drawn above
 * bound:  reading the experts' W, each once */
template <int K, bool GLU>
__global__ void __launch_bounds__(THREADS, 2) grouped_kernel(const __grid_constant__ grouped_args a)
{
    using S = staged<K>;
    constexpr int TILES = grouped_shape<K, GLU>::TILES, ROUNDS = grouped_shape<K, GLU>::ROUNDS;
    constexpr int STAGE = TILES * S::bytes;
    DYN_SHARED(uint8_t, mem);
    __shared__ int sums_of_warps[WARPS], drawn[2];
    const grouped_memory at = memory_of<K, GLU>(a.w.n_unit, a.n_pairs, a.w.n_mat, a.parts);
    const int warp = (int)threadIdx.x >> 5, part = warp % a.parts;
    uint8_t *stages = mem + warp * STAGES * STAGE,
            *table = mem + at.tables + warp * TILES * S::table;
    uint8_t *codes = mem + at.x, *scales = mem + at.scales;
    uint16_t *order = (uint16_t *)(mem + at.order);
    group_at *groups = (group_at *)(mem + at.groups);
    lattice_begin<K>(a.w.kind);
    if (!a.chosen)
        grid_wait();
    grid_trigger(); /* a kernel that begins from here on may read the choice of experts */
    const int n_items = sort_pairs(a, order, groups, mem + at.sums, sums_of_warps) * a.columns;
    /* ahead: units that are requested and not multiplied; slot: the stage of the first of them.
     * begun: the stream has come to the next item. */
    int item = (int)blockIdx.x, next = 0, slot = 0, ahead = 0;
    bool begun = false, more = false;
    weight_stream<K, GLU> stream;
    draw_item(a.ticket, n_items, &drawn[0]);
    int g = item / a.columns, column = item - g * a.columns, then = 0, column_then = 0;
    auto refill = [&]() {
        uint8_t *to = stages + (slot + ahead) % STAGES * STAGE;
        bool got = !begun && stream.request(a, groups[g].expert, column, to);
        if (!got && !begun && more)
            stream.begin(a, groups[then].expert, column_then);
        begun = begun || !got;
        got = got || (more && stream.request(a, groups[then].expert, column_then, to));
        ahead += got;
        return got;
    };
    if (item < n_items) {
        stream.begin(a, groups[g].expert, column);
        while (ahead < STAGES && refill()) {
        }
        begun = false;
    }
    copy_commit();
    if (!a.ready)
        grid_wait();
    if (item < n_items) {
        copy_pairs<K>(a, pairs_of(groups, order, g), codes, scales);
        copy_commit();
        copy_wait<0>();
        settle_pairs<K>(a, scales);
    }
    __syncthreads();
    next = drawn[0];
    const constants is = {shfl_u32(a.is.power, 0), shfl_u32(a.is.top, 0)};
    float acc[TILES][2][1][4];
    clear<TILES>(acc);

    for (int turn = 1; item < n_items; turn ^= 1) {
        const some_pairs of = pairs_of(groups, order, g);
        more = next < n_items;
        then = more ? next / a.columns : 0;
        column_then = more ? next % a.columns : 0;
        begun = false;
        draw_item(a.ticket, n_items, &drawn[turn]);
#pragma unroll 1
        for (int round = 0; round < ROUNDS && stream.in(a, column, round); round++) {
#pragma unroll 1
            for (int unit = part; unit < a.w.n_unit; unit += a.parts) {
                copy_wait<STAGES - 1>(); /* what was there at the barrier, or all but the last */
                __syncwarp();
                x_units x = {codes + unit * X_CODES, scales + unit * 64 * S::x_scale, a.w.n_unit};
                multiply_units<K, 1, TILES>(acc, stages + slot * STAGE, x, table, is);
                __syncwarp(); /* all lanes have read the stage */
                slot = (slot + 1) % STAGES;
                ahead--;
                refill();
                copy_commit();
            }
            if (!GLU) {
                write_shares<TILES>(a, of, stream.tile_of(a, column, round), acc);
                clear<TILES>(acc);
            }
        }
        while (ahead < STAGES && refill()) {
        } /* warps without a tile, or with fewer units than stages */
        if (GLU && part)
            keep_part<TILES>(a, (float4 *)(mem + at.sums), acc);
        __syncthreads(); /* the activations have been read; the parts' sums are written */
        if (more)
            copy_pairs<K>(a, pairs_of(groups, order, then), codes, scales);
        copy_commit();
        if constexpr (GLU) {
            float *results = (float *)(mem + at.results);
            if (!part)
                gate_sums(a, (const float4 *)(mem + at.sums), results, acc, groups[g].expert,
                          column);
            clear<TILES>(acc);
            __syncthreads();
            write_results(a, of, column, results);
        }
        copy_wait<0>();
        if (more)
            settle_pairs<K>(a, scales);
        __syncthreads();
        item = next;
        next = drawn[turn];
        g = then;
        column = column_then;
    }
    if (a.ready && blockIdx.x == 0)
        grid_wait(); /* the next kernel relies on it */
}

/* ---- Launching ----------------------------------------------------------------------------- */

/* Dynamic shared memory of a block of which two fit on a multiprocessor. */
static int half_of_shared()
{
    enum { SYSTEM = 1024, STATIC = 128 };
    return (cu_gpu.shared_block + SYSTEM) / 2 - SYSTEM - STATIC;
}

enum { SPARE = 4 }; /* block slots left free for the small kernel that follows */

template <int K, bool GLU>
static bool launch_grouped(cudaStream_t s, const expert_product &e, launch_memory memory)
{
    using shape = grouped_shape<K, GLU>;
    const product_args &p = e.p;
    grouped_args a = {};
    (pair_args &)a = pairs_of_product(e, memory);
    a.w = p.w;
    a.up = p.up;
    a.up_tile = p.up_row / TILE_ROWS;
    a.parts = GLU ? product_warps(p.w, true) : 1;
    const int slots = WARPS / a.parts, tiles = GLU ? slots : slots * shape::TILES * shape::ROUNDS;
    a.columns = ((p.n_out + TILE_ROWS - 1) / TILE_ROWS + tiles - 1) / tiles;
    a.is = (constants){0x4b000000, 0x80808080};
    if (a.n_pairs > EXPERT_PAIRS || p.w.n_mat > THREADS)
        return false;
    int bytes = memory_of<K, GLU>(p.w.n_unit, a.n_pairs, p.w.n_mat, a.parts).bytes;
    int fit = 2 * cu_gpu.n_sm - SPARE, most = a.n_pairs * a.columns;
    if (bytes > half_of_shared() - table_bytes<K>)
        return false;
    LAUNCH((grouped_kernel<K, GLU>), dim3((unsigned)(most < fit ? most : fit)), dim3(THREADS),
           (size_t)bytes, s, a);
    return true;
}

template <int K> static bool grouped(cudaStream_t s, const expert_product &e, launch_memory memory)
{
    if (!e.p.glu)
        return launch_grouped<K, false>(s, e, memory);
    if constexpr (pairs_fit<K>)
        return launch_grouped<K, true>(s, e, memory);
    return false;
}

extern "C" bool cu_product_grouped(cudaStream_t s, expert_product a, launch_memory memory)
{
    return by_layout(all_packs, pack_kernels(a.p.w.kind),
                     [&](auto k) { return grouped<k>(s, a, memory); });
}

template <int K> static int allow_grouped()
{
    int n = half_of_shared() - table_bytes<K>, bad = allow_shared(grouped_kernel<K, false>, n);
    if constexpr (pairs_fit<K>)
        bad |= allow_shared(grouped_kernel<K, true>, n);
    return bad;
}

/* Once per GPU, at open. */
extern "C" int cu_grouped_init(void)
{
    return each_layout(all_packs, [](auto k) { return allow_grouped<k>(); });
}
