/* matmul_short.cu - up to 64 rows of a prompt times a weight of blocks, on the bf16 tensor cores.
 *
 *     weights      [stages][warp][unit]        as packed; each warp copies its own
 *     activations  [stages][rows][256 + 8]     one copy for all warps
 *     scales       [warp][16 rows][8 groups]   of super-blocks, as floats
 *
 * A warp makes 16 outputs of all rows of the tile. It makes its weights bf16 in the registers that
 * feed the tensor cores. Copies are asynchronous and a few units of 256 columns ahead: loads to
 * registers would share one scoreboard, and each would wait for the youngest.
 *
 * Every sum adds its columns 16 at a time in ascending order, and weights are rounded to bf16 once,
 * as in matmul_mma.cu. So results are bit-identical. The columns of an output cannot be divided
 * among warps; outputs are, evenly over the multiprocessors (plan_for).
 */
#include "backend/cuda/product/fragments.cuh"
#include "backend/cuda/product/prompt.cuh"

enum {
    MOST_WARPS = 12,
    MOST_STAGES = 6,
    COLUMNS = 32 * UNIT,
    LINE = COLUMNS + 8 /* padded against bank conflicts */
};

struct short_args {
    mma_args a;
    int stages;
};

static constexpr int X_LINE = LINE * 2; /* bytes of shared memory per row */

/* ---- Kernel --------------------------------------------------------------------------------- */

/* Copies a unit of the rows, a warp per row. Columns past the end become zeros. Rows past the end
 * stay undefined: they reach only results that are not stored. */
DEV void copy_rows(uint16_t *to, const uint16_t *const *row_at, int rows, int unit, int n_in)
{
    const int at = unit * COLUMNS + 8 * lane_id();
    const bool in = at < n_in;
    for (int r = (int)threadIdx.x >> 5; r < rows; r += (int)blockDim.x >> 5)
        copy16_async(to + r * LINE + 8 * lane_id(), row_at[r] + (in ? at : 0), in);
}

/* y[r, o] = sum_i x[r, i] W[o, i]      W: packed, x: bf16, sums f32
 * grid:   blocks of a tile of 16 outputs to a warp x tile of ROWS rows
 * shared: as drawn above
 * bound:  making W bf16, some four instructions a weight */
template <int K, int ROWS>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1) short_kernel(short_args s)
{
    using S = staged<K>;
    constexpr int TILES = ROWS / 8;
    DYN_SHARED(uint8_t, mem);
    const mma_args &a = s.a;
    const int t = (int)threadIdx.x, lane = lane_id(), warp = t >> 5, n_warps = (int)blockDim.x >> 5;
    const int tile = (int)blockIdx.x * n_warps + warp, n_unit = a.w.n_unit;
    const bool in = tile < a.w.n_tile;
    const int x_stage = ROWS * X_LINE, stage = n_warps * S::bytes;
    uint8_t *units = mem + warp * S::bytes, *xs = mem + s.stages * stage;
    uint8_t *table = xs + s.stages * x_stage + warp * scale_table<K>;
    const uint16_t **row_at =
        (const uint16_t **)(xs + s.stages * x_stage + n_warps * scale_table<K>);
    tile_at<K> from;
    const int first = (int)blockIdx.y * ROWS, rows = min(a.rows - first, ROWS);

    grid_trigger();
    lattice_begin<K>(a.w.kind);
    from.begin(a.w, in ? tile : 0, 0);
    for (int i = 0; i < s.stages - 1; i++)
        if (in && i < n_unit)
            from.copy(units + i * stage, i, a.w.n_group);
    grid_wait();
    for (int r = t; r < rows; r += (int)blockDim.x)
        row_at[r] = a.x + (size_t)(first + r) * a.w.n_in;
    __syncthreads();
    for (int i = 0; i < s.stages - 1; i++) {
        if (i < n_unit)
            copy_rows((uint16_t *)(xs + i * x_stage), row_at, rows, i, a.w.n_in);
        copy_commit();
    }

    /* A shuffle hides the constants from the compiler, which keeps them in registers then. */
    const constants is = {shfl_u32(0x4b000000, 0), shfl_u32(code_float<K>::power, 0)};
    const int br = (lane & 7) + (lane >> 4 << 3), bk = (lane >> 3 & 1) << 3;
    float acc[1][TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[0][j][e] = 0;
    int now = 0, free = s.stages - 1;
    for (int k = 0; k < n_unit; k++) {
        wait_for_copies(s.stages - 2);
        __syncthreads(); /* all have multiplied the unit before, whose stage is free */
        const int ahead = k + s.stages - 1;
        if (ahead < n_unit) {
            if (in)
                from.copy(units + free * stage, ahead, a.w.n_group);
            copy_rows((uint16_t *)(xs + free * x_stage), row_at, rows, ahead, a.w.n_in);
        }
        copy_commit();
        if (in) {
            const uint8_t *unit = units + now * stage;
            const uint16_t *x = (const uint16_t *)(xs + now * x_stage) + br * LINE + bk;
            unit_scales<K> scale[2];
            if (traits<K>::super) {
                write_scales(table, unit + S::at_super, is.power);
                __syncwarp();
            }
            scale[0].begin(unit, lane >> 2);
            scale[1].begin(unit, (lane >> 2) + 8);
#pragma unroll
            for (int g = 0; g < 8; g++) {
                uint32_t fa[2][4];
                group_fragments<K>(fa, unit, table, scale, g, is);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t fb[TILES / 2][4];
#pragma unroll
                    for (int j = 0; j < TILES / 2; j++)
                        ldmatrix4(fb[j], x + 16 * j * LINE + 32 * g + 16 * h);
#pragma unroll
                    for (int j = 0; j < TILES; j++)
                        mma_bf16(acc[0][j], fa[h], &fb[j >> 1][(j & 1) * 2]);
                }
            }
            __syncwarp(); /* all lanes have read the table */
        }
        free = now;
        now = now + 1 == s.stages ? 0 : now + 1;
    }
    write_sums(a.y, {NULL, first, rows}, acc, 0, 16 * tile);
}

/* ---- Launching ------------------------------------------------------------------------------ */

struct short_plan {
    int warps, stages; /* 0: nothing fits */
    size_t shared;
};

template <int K, int ROWS> static short_plan plan_of(int warps, size_t room)
{
    const size_t fixed = (size_t)(warps * scale_table<K>)+ROWS * sizeof(void *);
    const size_t stage = (size_t)(warps * staged<K>::bytes + ROWS * X_LINE);
    int stages = room > fixed ? (int)((room - fixed) / stage) : 0;
    if (stages > MOST_STAGES)
        stages = MOST_STAGES;
    return (short_plan){warps, stages, fixed + (size_t)stages * stage};
}

/* The warps of a block for n_tile tiles of outputs and so many tiles of rows. Where each
 * multiprocessor has few tiles of outputs, one block of it has them all. Where it has many, two
 * blocks share it. Every block copies all rows, so blocks of many warps are preferred. */
template <int K, int ROWS> static short_plan plan_for(int n_tile, int tiles)
{
    enum { LEAST_OF_MANY = 4 };
    const int each = (n_tile * tiles + cu_gpu.n_sm - 1) / cu_gpu.n_sm;
    const bool many = each > MOST_WARPS;
    const size_t room = (size_t)(cu_gpu.shared_block - table_bytes<K>);
    const size_t half = (size_t)(cu_gpu.shared_block / 2 - table_bytes<K>)-BLOCK_RESERVED;
    short_plan best = {};
    int64_t least = 0;
    for (int warps = many ? 8 : MOST_WARPS; warps >= (many && best.stages ? LEAST_OF_MANY : 1);
         warps--) {
        short_plan p = plan_of<K, ROWS>(warps, many ? half : room);
        if (p.stages < 3)
            p = plan_of<K, ROWS>(warps, room);
        int64_t blocks = (int64_t)((n_tile + warps - 1) / warps) * tiles;
        int64_t load = (blocks + cu_gpu.n_sm - 1) / cu_gpu.n_sm * warps;
        if (p.stages < 2 || (best.stages && load * 16 > least * 15))
            continue;
        best = p;
        least = load;
    }
    return best;
}

template <int K, int ROWS> static bool launch_short(cudaStream_t s, const mma_args &a, int tiles)
{
    const short_plan p = plan_for<K, ROWS>(a.w.n_tile, tiles);
    if (!p.stages)
        return false;
    dim3 grid((unsigned)((a.w.n_tile + p.warps - 1) / p.warps), (unsigned)tiles);
    short_args args = {a, p.stages};
    LAUNCH((short_kernel<K, ROWS>), grid, dim3(32u * (unsigned)p.warps), p.shared, s, args);
    return true;
}

template <int K> static bool short_kind(cudaStream_t s, const mma_args &a, int tile)
{
    const int tiles = (a.rows + tile - 1) / tile;
    return tile == 16   ? launch_short<K, 16>(s, a, tiles)
           : tile == 32 ? launch_short<K, 32>(s, a, tiles)
                        : launch_short<K, 64>(s, a, tiles);
}

bool cu_short(cudaStream_t s, const mma_args &a, int tile)
{
    return by_layout(all_packs, pack_kernels(a.w.kind),
                     [&](auto k) { return short_kind<k>(s, a, tile); });
}

template <int K> static int allow_short()
{
    const int n = cu_gpu.shared_block - table_bytes<K>;
    return allow_shared(short_kernel<K, 16>, n) | allow_shared(short_kernel<K, 32>, n) |
           allow_shared(short_kernel<K, 64>, n);
}

int cu_short_init()
{
    return each_layout(all_packs, [](auto k) { return allow_short<k>(); });
}
