/* matmul_tall_hopper.cu - what matmul_mma.cu computes, on GPUs of compute capability 9.0: more than
 * 64 rows of a prompt times a weight of blocks, which no pass over memory makes bf16 before.
 *
 *                 rows 96 to 192
 *               +----------------+    one to three warpgroups make 64 outputs each: their weights
 *     64 to 192 |                |    become bf16 in the registers that the tensor cores read.
 *      outputs  |                |    A warp copies weights, 256 columns a step, and two warps
 *               +----------------+    copy activations, 64 columns a step
 *
 *     activations  [stages][rows][64]          bf16, swizzled (hopper.cuh)
 *     weights      [stages][warps][unit]       as packed: 16 outputs to a warp
 *     scales       [warps][table]              fragments.cuh
 *
 * While the tensor cores multiply 32 columns, a warp makes the next 32 of its weights bf16. A
 * product of 64 outputs x 16 columns x 128 rows takes them 64 cycles, those of two warpgroups 128,
 * in which a scheduler makes the weights of two warps: 16 of each lane, some 80 instructions. Of
 * many rows the reads of the second cache are the limit: an activation serves a block's outputs.
 *
 * Every sum adds its columns 16 at a time in ascending order, as in matmul_mma.cu. So results are
 * bit-identical.
 */
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/launch_products.h"
#include "backend/cuda/prompt.cuh"

enum {
    STEP = 64,             /* columns of a stage of activations */
    STEP_BYTES = 2 * STEP, /* of a row */
    X_STAGES = 4,
    MOST_STAGES = 4 /* of weights */
};

/* WARPS that multiply 16 outputs each, and three that copy. */
template <int WARPS> static constexpr int tall_threads = 32 * (WARPS + 3);

struct tall_args {
    mma_args a;
    int stages; /* of weights */
};

template <int ROWS> struct tall_x {
    static constexpr int stage = ROWS * STEP_BYTES;
};

struct tall_bars {
    uint64_t full[X_STAGES], free[X_STAGES], units_full[MOST_STAGES], units_free[MOST_STAGES];
};

/* Copies rows of the tile, 64 columns at a time: a lane's are every eighth, a piece of 16 bytes
 * each. Columns and rows past the end become zeros and are not read: hundreds of blocks that read
 * one line of the second cache wait for each other. By each of two warps; addresses are made once,
 * because a lone warp would wait for their arithmetic at every copy. */
template <int ROWS>
DEV void fetch_rows(const mma_args &a, uint8_t *xs, tall_bars &bars, int first, int which_warp)
{
    const int piece = lane_id() & 7, row = 4 * which_warp + (lane_id() >> 3);
    const int n_step = 4 * a.w.n_unit;
    uint32_t from[ROWS / 8], there = 0; /* there: bit i for row + 8 i */
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        from[i] = (uint32_t)(first + row + 8 * i) * (uint32_t)a.w.n_in;
        there |= (first + row + 8 * i < a.rows ? 1u : 0) << i;
    }
    const uint16_t *x = a.x + 8 * piece;
    xs += piece_at(row, piece);
    for (int s = 0, which = 0, turn = 0; s < n_step; s++, x += STEP) {
        uint8_t *to = xs + which * tall_x<ROWS>::stage;
        const bool in = STEP * s + 8 * piece < a.w.n_in;
        bar_wait(&bars.free[which], turn ^ 1);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
            copy16_async(to + 8 * i * STEP_BYTES, in && (there >> i & 1) ? x + from[i] : a.x,
                         in && (there >> i & 1));
        bar_arrive_copied(&bars.full[which]);
        if (++which == X_STAGES)
            which = 0, turn ^= 1;
    }
    copy_commit();
    copy_wait<0>();
}

/* One plane of a unit: where a warp's tile has it, and where it goes. A lane of the fetching warp
 * copies plane lane % 4 of tile lane / 4. */
template <int K> struct tall_plane {
    using S = staged<K>;
    const uint8_t *from;
    int bytes, to; /* of a unit; from the beginning of the warp's unit */
    bool codes;    /* of groups, of which the last unit may have fewer than eight */

    DEV void begin(const packed &w, int tile, int which)
    {
        const size_t units = (size_t)tile * w.n_unit;
        codes = which == 0 && !traits<K>::whole;
        bytes = which == 0 ? S::codes : which == 1 ? S::high : which == 2 ? S::scale : S::super;
        to = which == 0 ? 0 : which == 1 ? S::at_high : which == 2 ? S::at_scale : S::at_super;
        from = (which == 0   ? w.codes
                : which == 1 ? w.high
                : which == 2 ? w.scale
                             : w.super) +
               (traits<K>::shares || which ? units * bytes
                                           : (size_t)tile * w.n_group * (S::codes / 8));
    }
    /* Groups past the end keep what the stage had: they meet zeros of x. */
    DEV int bytes_of(int unit, int n_group) const
    {
        return codes ? min(bytes, (n_group - 8 * unit) * (S::codes / 8)) : bytes;
    }
};

/* Copies the weights of the block's tiles, a unit at a time. By one warp; a plane of a tile is one
 * copy. */
template <int K, int WARPS>
DEV void fetch_units(const packed &w, uint8_t *units, tall_bars &bars, int stages)
{
    enum { COPIES = 4 * WARPS, EACH = (COPIES + 31) / 32 };
    tall_plane<K> p[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int tile = (lane_id() + 32 * i) / 4;
        p[i].begin(w, min((int)blockIdx.y * WARPS + tile, w.n_tile - 1), lane_id() & 3);
        p[i].to += tile * staged<K>::bytes;
    }
    for (int k = 0, which = 0, turn = 0; k < w.n_unit; k++) {
        uint8_t *to = units + which * WARPS * staged<K>::bytes;
        bar_wait(&bars.units_free[which], turn ^ 1);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int n = p[i].bytes_of(k, w.n_group);
            if (COPIES % 32 && lane_id() + 32 * i >= COPIES)
                continue;
            if (n > 0)
                copy_bulk(to + p[i].to, p[i].from + (size_t)k * p[i].bytes, n,
                          &bars.units_full[which]);
            else
                bar_arrive(&bars.units_full[which]);
        }
        if (++which == stages)
            which = 0, turn ^= 1;
    }
}

/* The products of a warpgroup's 64 outputs with all rows; acc: as hopper.cuh has D. */
template <int K, int ROWS, int WARPS>
DEV void multiply_rows(float (&acc)[ROWS / 2], const tall_args &s, uint8_t *units, uint8_t *table,
                       uint8_t *xs, tall_bars &bars)
{
    /* A shuffle hides the constants from the compiler, which keeps them in registers then. */
    const constants is = {shfl_u32(0x4b000000, 0), shfl_u32(code_float<K>::power, 0)};
    uint32_t fa[2][2][4]; /* of a group while the tensor cores read those of the one before */
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        acc[i] = 0;
    for (int k = 0, now = 0, turn = 0; k < s.a.w.n_unit; k++) {
        const uint8_t *unit = units + now * (WARPS * staged<K>::bytes);
        unit_scales<K> scale[2];
        bar_wait(&bars.units_full[now], turn);
        if (traits<K>::super) {
            write_scales(table, unit + staged<K>::at_super, is.power);
            __syncwarp();
        }
        scale[0].begin(unit, lane_id() >> 2);
        scale[1].begin(unit, (lane_id() >> 2) + 8);
#pragma unroll
        for (int g = 0; g < 8; g++) {
            const int step = 4 * k + g / 2, which = step % X_STAGES;
            group_fragments<K>(fa[g & 1], unit, table, scale, g, is);
            if (g % 2 == 0) {
                bar_wait(&bars.full[which], step / X_STAGES & 1);
                tensor_fence();
            }
            const uint64_t x = operand(shared_at(xs + which * tall_x<ROWS>::stage), 16);
            hold(acc);
            wg_fence();
#pragma unroll
            for (int h = 0; h < 2; h++)
                wg_mma_bf16<ROWS>(acc, fa[g & 1][h], x + (g % 2 * 64 + h * 32) / 16);
            wg_commit();
            wg_wait<1>(); /* the group before is multiplied: its fragments and its rows are free */
            hold(acc);
            if (g % 2 == 0 && step > 0)
                warp_arrive(&bars.free[(step - 1) % X_STAGES]);
        }
        __syncwarp(); /* all lanes have read the unit and the table */
        warp_arrive(&bars.units_free[now]);
        if (++now == s.stages)
            now = 0, turn ^= 1;
    }
    wg_wait<0>();
    hold(acc);
}

/* y[r, o] = sum_i x[r, i] W[o, i]      W: packed, x: bf16, sums f32
 * grid:   tile of rows x tile of outputs, 16 to a warp
 * shared: as drawn above
 * bound:  latency at few rows; reads of the second cache at many */
template <int K, int ROWS, int WARPS>
__global__ void __launch_bounds__(tall_threads<WARPS>, 1) tall_kernel(tall_args s)
{
    DYN_SHARED(uint8_t, mem);
    const mma_args &a = s.a;
    uint8_t *xs = mem + (-shared_at(mem) & 1023);
    uint8_t *units = xs + X_STAGES * tall_x<ROWS>::stage;
    uint8_t *tables = units + s.stages * WARPS * staged<K>::bytes;
    tall_bars &bars = *(tall_bars *)(tables + WARPS * scale_table<K>);
    const int warp = (int)threadIdx.x >> 5, first = (int)blockIdx.x * ROWS;

    grid_trigger();
    lattice_begin<K>(a.w.kind);
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) {
            bar_init(&bars.full[i], 64);
            bar_init(&bars.free[i], WARPS);
        }
        for (int i = 0; i < s.stages; i++) {
            bar_init(&bars.units_full[i], 4 * WARPS);
            bar_init(&bars.units_free[i], WARPS);
        }
        tensor_fence(); /* bulk copies arrive at them */
    }
    __syncthreads();
    if (warp >= WARPS + 1) {
        grid_wait();
        fetch_rows<ROWS>(a, xs, bars, first, warp - WARPS - 1);
        return;
    }
    if (warp == WARPS) {
        fetch_units<K, WARPS>(a.w, units, bars, s.stages);
        return;
    }
    const int tile = (int)blockIdx.y * WARPS + warp;
    float acc[ROWS / 2];
    multiply_rows<K, ROWS, WARPS>(acc, s, units + warp * staged<K>::bytes,
                                  tables + warp * scale_table<K>, xs, bars);
    if (tile >= a.w.n_tile)
        return;
    grid_wait(); /* what the kernels before read of y is read */
    const int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = first + 8 * j + 2 * tid + e;
            if (r >= a.rows)
                continue;
            float *y = a.y.at + r * a.y.stride + 16 * tile;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (16 * tile + 8 * h + gid < a.w.n_out)
                    y[8 * h + gid] = acc[4 * j + 2 * h + e];
        }
}

/* ---- Launching ------------------------------------------------------------------------------ */

/* Stages of weights that fit beside those of activations; bytes: with so many. */
template <int K, int ROWS, int WARPS> static int tall_bytes(int stages)
{
    return 1024 + X_STAGES * tall_x<ROWS>::stage +
           WARPS * (stages * staged<K>::bytes + scale_table<K>)+(int)sizeof(tall_bars);
}
template <int K, int ROWS, int WARPS> static bool tall(cudaStream_t s, const mma_args &a)
{
    int n = MOST_STAGES;
    while (n > 0 && tall_bytes<K, ROWS, WARPS>(n) > cu_gpu.shared_block - table_bytes<K>)
        n--;
    if (n < 2)
        return false;
    const tall_args args = {a, n};
    dim3 grid((unsigned)((a.rows + ROWS - 1) / ROWS),
              (unsigned)((a.w.n_out + 16 * WARPS - 1) / (16 * WARPS)));
    LAUNCH((tall_kernel<K, ROWS, WARPS>), grid, dim3(tall_threads<WARPS>),
           (size_t)(tall_bytes<K, ROWS, WARPS>(n)), s, args);
    return true;
}

/* Shapes of blocks: rows, warps, and the time of a block, in units of 10 ns for 32 columns:
 * measured on an H200 with Q4_K, where Q6_K and Q8_0 have the same ratios. */
#define EACH_TALL(DO)                                                                              \
    DO(96, 4, 19)                                                                                  \
    DO(96, 8, 25)                                                                                  \
    DO(128, 8, 27)                                                                                 \
    DO(160, 8, 30)                                                                                 \
    DO(192, 8, 33)                                                                                 \
    DO(96, 12, 34)                                                                                 \
    DO(128, 12, 37)
#define ONE_MORE(rows, warps, time) +1
static_assert(EACH_TALL(ONE_MORE) == (int)TALL_SHAPES, "the shapes");
#undef ONE_MORE

/* The time of all blocks of so long each. A multiprocessor has one block at a time. */
static int64_t tall_time(const mma_args &a, int rows, int warps, int time)
{
    int64_t outputs = (a.w.n_out + 16 * warps - 1) / (16 * warps);
    int64_t blocks = (a.rows + rows - 1) / rows * outputs;
    return (blocks + cu_gpu.n_sm - 1) / cu_gpu.n_sm * time;
}

static int quickest(const mma_args &a)
{
    int best = 0, i = 0;
    int64_t least = INT64_MAX;
#define CONSIDER(rows, warps, time)                                                                \
    if (tall_time(a, rows, warps, time) < least)                                                   \
        least = tall_time(a, rows, warps, time), best = i;                                         \
    i++;
    EACH_TALL(CONSIDER)
#undef CONSIDER
    return best;
}

template <int K> static bool tall_kind(cudaStream_t s, const mma_args &a, int shape)
{
    int i = 0;
#define DO(rows, warps, time)                                                                      \
    if (shape == i++)                                                                              \
        return tall<K, rows, warps>(s, a);
    EACH_TALL(DO)
#undef DO
    return false;
}

extern "C" bool cu_matmul_tall(cudaStream_t s, dev_mat y, dev_quant x, packed w, int32_t shape)
{
    const mma_args a = {y, x.bf, w, y.rows, 0, 0, 0, 1};
    if (!cu_gpu.wgmma)
        return false;
    if (shape < 0)
        shape = quickest(a);
    switch (pack_kernels(w.kind)) {
#define DO(kind)                                                                                   \
    case kind:                                                                                     \
        return tall_kind<kind>(s, a, shape);
        EACH_PACK(DO)
#undef DO
    default:
        return false;
    }
}

template <int K> static int allow_tall()
{
    const int n = cu_gpu.shared_block - table_bytes<K>;
    int bad = 0;
#define DO(rows, warps, time) bad |= allow_shared(tall_kernel<K, rows, warps>, n);
    EACH_TALL(DO)
#undef DO
    return bad;
}

extern "C" int cu_tall_init(void)
{
    int bad = 0;
#define DO(kind) bad |= allow_tall<kind>();
    EACH_PACK(DO)
#undef DO
    return bad;
}
