/* matmul_tall_hopper.cu - what matmul_mma.cu computes, on GPUs of compute capability 9.0: more than
 * 64 rows of a prompt times a weight of blocks, which no pass over memory makes bf16 before.
 *
 *                 rows 96 to 192
 *               +----------------+    one to three warpgroups make 64 outputs each: their weights
 *     64 to 192 |                |    become bf16 in the registers that the tensor cores read.
 *      outputs  |                |    A warp copies weights, 256 columns a step, and two warps
 *               +----------------+    copy activations, 64 columns a step
 *
 * While the tensor cores multiply 32 columns, a warp makes the next 32 of its weights bf16. A
 * product of 64 outputs x 16 columns x 128 rows takes them 64 cycles, those of two warpgroups 128,
 * in which a scheduler makes the weights of two warps: 16 of each lane, some 80 instructions. Of
 * many rows the reads of the second cache are the limit: an activation serves a block's outputs.
 */
#include "backend/cuda/product/tall.cuh"

/* WARPS that multiply 16 outputs each, and three that copy. */
template <int WARPS> static constexpr int tall_threads = 32 * (WARPS + 3);

struct tall_args {
    mma_args a;
    int stages; /* of weights */
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

/* Copies the weights of the block's tiles, a unit at a time. By one warp; a plane of a tile is one
 * copy. */
template <int K, int WARPS>
DEV void fetch_units(const packed &w, uint8_t *units, tall_bars &bars, int stages)
{
    tall_copies<K, WARPS> c;
#pragma unroll
    for (int i = 0; i < c.each; i++)
        c.begin(i, w, 0, min((int)blockIdx.y * WARPS + c.tile(i), w.n_tile - 1));
    ring_place at = {0, 0};
    for (int k = 0; k < w.n_unit; k++, at.next(stages))
        c.copy(k, w.n_group, units, bars, at);
}

/* y[r, o] = sum_i x[r, i] W[o, i]      W: packed, x: bf16, sums f32
 * grid:   tile of rows x tile of outputs, 16 to a warp
 * shared: tall.cuh
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
    if (threadIdx.x == 0)
        bars.init(WARPS, s.stages);
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
    const int gid = lane_id() >> 2, tid = lane_id() & 3, at = warp * staged<K>::bytes;
    const tall_rows of = {{at, at}, {gid, gid + 8}, tables + warp * scale_table<K>};
    float acc[ROWS / 2];
    ring_place place = {0, 0};
    int x_turn = 0;
    multiply_rows<K, ROWS, tall_x<ROWS>::stage, WARPS * staged<K>::bytes>(
        acc, of, a.w.n_unit, s.stages, units, xs, bars, place, x_turn);
    if (tile >= a.w.n_tile)
        return;
    grid_wait(); /* what the kernels before read of y is read */
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

template <int K, int ROWS, int WARPS> static bool tall(cudaStream_t s, const mma_args &a)
{
    const int n = tall_stages<K, ROWS, WARPS>();
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
    return by_layout(all_packs, pack_kernels(w.kind),
                     [&](auto k) { return tall_kind<k>(s, a, shape); });
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
    return each_layout(all_packs, [](auto k) { return allow_tall<k>(); });
}
