/* matmul_short.cu - up to 64 rows of a prompt times weights of blocks, on the bf16 tensor cores.
 *
 *     share        a warp for each tile of a block. Share p has the units of 256 columns p, p + n,
 *                  p + 2 n.. of n shares
 *     weights      [share][stages][tile][unit]       as packed; each warp copies its own
 *     activations  [share][stages][rows][256 + 8]    one copy for all tiles
 *     scales       [warp][16 rows][8 groups]         of super-blocks, as floats
 *     sums         [tile][8 rows][lane]              on their way from one share to the next
 *     turns        [tile]                            the unit that is added next
 *
 * A tile is 16 outputs of all rows. Every sum adds its columns 16 at a time in ascending order, and
 * weights are rounded to bf16 once, as in matmul_mma.cu. So results are bit-identical, and the
 * columns of a tile cannot be added by several warps at once. Where outputs are many, one share has
 * all columns. Where they are few, most of a unit's time is making its weights bf16, in the
 * registers that feed the tensor cores: shares do that side by side, each then waits for the sums
 * up to its unit, adds its own, and hands them on.
 *
 * Copies are asynchronous and a few units ahead: loads to registers would share one scoreboard, and
 * each would wait for the youngest.
 */
#include "backend/cuda/product/fragments.cuh"
#include "backend/cuda/product/prompt.cuh"

enum {
    MOST_SHARES = 7,
    MOST_STAGES = 4,
    COLUMNS = 32 * UNIT,
    LINE = COLUMNS + 8 /* padded against bank conflicts */
};

/* Warps of a block: as many as have the registers they want. HANDED: several shares. */
template <int ROWS, bool HANDED>
static constexpr int most_warps = HANDED       ? (ROWS == 64 ? 12 : 16)
                                  : ROWS == 64 ? 16
                                  : ROWS == 32 ? 18
                                               : 24;

struct short_args {
    const uint16_t *x; /* [rows, n_in] bf16 */
    int rows, n_in;
    dev_mat y[SHORT_JOBS];
    packed w[SHORT_JOBS]; /* of one kind and as long rows */
    int end[SHORT_JOBS];  /* the tiles of all weights follow each other; where those of one end */
    int tiles, shares, stages; /* of a block; it has tiles shares warps */
    uint32_t zero;             /* 0, which the compiler does not know */
};

/* A warp's tile: of which weight, and where its results go. */
struct short_tile {
    packed w;
    dev_mat y;
    int at; /* its number in that weight; outputs 16 at to 16 at + 15 */
};

static constexpr int X_LINE = LINE * 2; /* bytes of shared memory per row */

/* Bytes of shared memory: of a share, and of a tile's sums and turn. */
template <int K, int ROWS>
static __host__ __device__ inline size_t share_bytes(int tiles, int stages)
{
    return (size_t)stages * (tiles * staged<K>::bytes + ROWS * X_LINE) + tiles * scale_table<K>;
}
template <int ROWS> static constexpr int sum_bytes = ROWS / 8 * 32 * 16;
enum { TURN_BYTES = 16 };

/* ---- Kernel --------------------------------------------------------------------------------- */

/* Selects, because an index into arguments would copy them to the stack. */
DEV short_tile tile_of(const short_args &s, int tile)
{
    short_tile t = {s.w[0], s.y[0], tile};
#pragma unroll
    for (int i = 1; i < SHORT_JOBS; i++)
        if (tile >= s.end[i - 1])
            t = {s.w[i], s.y[i], tile - s.end[i - 1]};
    return t;
}

/* Copies a unit of the rows, a warp per row: the share's warps take turns. Columns past the end
 * become zeros. Rows past the end stay undefined: they reach only results that are not stored. */
DEV void copy_rows(uint16_t *to, const uint16_t *x, int rows, int unit, int n_in, int warp,
                   int n_warps)
{
    const int at = unit * COLUMNS + 8 * lane_id();
    const bool in = at < n_in;
    x += in ? at : 0;
    for (int r = warp; r < rows; r += n_warps)
        copy16_async(to + r * LINE + 8 * lane_id(), x + (size_t)r * n_in, in);
}

/* The fragments of 16 columns of all rows. */
template <int TILES> DEV void load_rows(uint32_t (*b)[4], const uint16_t *x, int column)
{
#pragma unroll
    for (int j = 0; j < TILES / 2; j++)
        ldmatrix4(b[j], x + 16 * j * LINE + column);
}

template <int TILES> DEV void clear(float (&acc)[1][TILES][4])
{
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[0][j][e] = 0;
}

template <int TILES>
DEV void multiply(float (&acc)[1][TILES][4], const uint32_t *a, const uint32_t (*b)[4])
{
#pragma unroll
    for (int j = 0; j < TILES; j++)
        mma_bf16(acc[0][j], a, &b[j >> 1][(j & 1) * 2]);
}

/* Adds a unit: each group once it is bf16. */
template <int K, int TILES>
DEV void add_unit(float (&acc)[1][TILES][4], const uint8_t *unit, const uint8_t *table,
                  unit_scales<K> *scale, const uint16_t *x, constants is)
{
#pragma unroll
    for (int g = 0; g < 8; g++) {
        uint32_t fa[2][4];
        group_fragments<K>(fa, unit, table, scale, g, is);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t fb[TILES / 2][4];
            load_rows<TILES>(fb, x, 32 * g + 16 * h);
            multiply<TILES>(acc, fa[h], fb);
        }
    }
}

/* Waits until *turn is k. The fragments are arguments, because the compiler would make them behind
 * the wait. */
DEV void await_turn(const volatile int *turn, int k, const uint32_t (&a)[8][2][4], uint32_t zero)
{
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < 64; i++)
        all ^= a[i >> 3][i >> 2 & 1][i & 3];
    k += (int)(all & zero);
    for (long tries = 0; *turn != k; tries++)
        spin(tries, "a turn to add");
    block_fence();
}

/* Adds unit k in its turn. */
template <int K, int TILES>
DEV void add_in_turn(float (&acc)[1][TILES][4], const uint8_t *unit, const uint8_t *table,
                     unit_scales<K> *scale, const uint16_t *x, constants is, int k,
                     volatile int *turn, float4 *sums, uint32_t zero)
{
    constexpr int AHEAD = TILES == 2 ? 4 : 2; /* steps of 16 columns */
    uint32_t fa[8][2][4], fb[AHEAD][TILES / 2][4];
#pragma unroll
    for (int g = 0; g < 8; g++)
        group_fragments<K>(fa[g], unit, table, scale, g, is);
#pragma unroll
    for (int c = 0; c < AHEAD; c++)
        load_rows<TILES>(fb[c], x, 16 * c);
    if (k) {
        await_turn(turn, k, fa, zero);
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float4 v = sums[32 * j];
            acc[0][j][0] = v.x, acc[0][j][1] = v.y, acc[0][j][2] = v.z, acc[0][j][3] = v.w;
        }
    } else {
        clear<TILES>(acc);
    }
#pragma unroll
    for (int c = 0; c < 16; c++) {
        multiply<TILES>(acc, fa[c >> 1][c & 1], fb[c % AHEAD]);
        if (c + AHEAD < 16)
            load_rows<TILES>(fb[c % AHEAD], x, 16 * (c + AHEAD));
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
        sums[32 * j] = make_float4(acc[0][j][0], acc[0][j][1], acc[0][j][2], acc[0][j][3]);
    block_fence();
    __syncwarp();
    if (lane_id() == 0)
        *turn = k + 1;
}

/* y[r, o] = sum_i x[r, i] W[o, i]      W: packed, x: bf16, sums f32
 * grid:   blocks of tiles of 16 outputs of all weights x tile of ROWS rows
 * shared: as drawn above
 * bound:  making W bf16, some five instructions a weight */
template <int K, int ROWS, bool HANDED>
__global__ void __launch_bounds__(32 * most_warps<ROWS, HANDED>, 1) short_kernel(short_args s)
{
    using S = staged<K>;
    constexpr int TILES = ROWS / 8;
    DYN_SHARED(uint8_t, mem);
    const int warp = (int)threadIdx.x >> 5, n_unit = s.w[0].n_unit, n_in = s.n_in;
    const int n_group = s.w[0].n_group;
    const int share = HANDED ? warp / s.tiles : 0, own = warp - share * s.tiles;
    const int n_share = HANDED ? s.shares : 1;
    const short_tile tile = tile_of(s, (int)blockIdx.x * s.tiles + own);
    const bool in = tile.at < tile.w.n_tile;
    const int x_stage = ROWS * X_LINE, stage = s.tiles * S::bytes;
    const size_t of_share = share_bytes<K, ROWS>(s.tiles, s.stages);
    uint8_t *mine = mem + share * of_share;
    uint8_t *units = mine + own * S::bytes, *xs = mine + s.stages * stage;
    uint8_t *table = xs + s.stages * x_stage + own * scale_table<K>;
    float4 *sums = (float4 *)(mem + n_share * of_share + own * sum_bytes<ROWS>)+lane_id();
    volatile int *turn =
        (volatile int *)(mem + n_share * of_share + s.tiles * sum_bytes<ROWS> + own * TURN_BYTES);
    tile_at<K> from;
    const int first = (int)blockIdx.y * ROWS, rows = min(s.rows - first, ROWS);
    const uint16_t *x_rows = s.x + (size_t)first * n_in;

    grid_trigger();
    lattice_begin<K>(s.w[0].kind);
    from.begin(tile.w, in ? tile.at : 0, 0);
    for (int i = 0; i < s.stages - 1; i++)
        if (in && share + i * n_share < n_unit)
            from.copy(units + i * stage, share + i * n_share, n_group);
    if (HANDED) {
        *turn = 0;
        __syncthreads();
    }
    grid_wait();
    for (int i = 0; i < s.stages - 1; i++) {
        if (share + i * n_share < n_unit)
            copy_rows((uint16_t *)(xs + i * x_stage), x_rows, rows, share + i * n_share, n_in, own,
                      s.tiles);
        copy_commit();
    }

    /* A shuffle hides the constants from the compiler, which keeps them in registers then. */
    const constants is = {shfl_u32(0x4b000000, 0), shfl_u32(code_float<K>::power, 0)};
    const int br = (lane_id() & 7) + (lane_id() >> 4 << 3), bk = (lane_id() >> 3 & 1) << 3;
    float acc[1][TILES][4];
    clear<TILES>(acc);
    int now = 0, free = s.stages - 1;
    for (int k = share; k < n_unit; k += n_share) {
        wait_for_copies(s.stages - 2);
        /* the share has multiplied the unit before, whose stage is free */
        some_sync(share, 32 * s.tiles);
        const int ahead = k + (s.stages - 1) * n_share;
        if (ahead < n_unit) {
            if (in)
                from.copy(units + free * stage, ahead, n_group);
            copy_rows((uint16_t *)(xs + free * x_stage), x_rows, rows, ahead, n_in, own, s.tiles);
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
            scale[0].begin(unit, lane_id() >> 2);
            scale[1].begin(unit, (lane_id() >> 2) + 8);
            if (HANDED)
                add_in_turn<K, TILES>(acc, unit, table, scale, x, is, k, turn, sums, s.zero);
            else
                add_unit<K, TILES>(acc, unit, table, scale, x, is);
            __syncwarp(); /* all lanes have read the table */
        }
        free = now;
        now = now + 1 == s.stages ? 0 : now + 1;
    }
    if (in && share == (n_unit - 1) % n_share)
        write_sums(tile.y, {NULL, first, rows}, acc, 0, 16 * tile.at);
}

/* ---- Launching ------------------------------------------------------------------------------ */

struct short_plan {
    int tiles, shares, stages; /* 0: nothing fits */
    size_t shared;
};

template <int K, int ROWS> static bool fits(short_plan *p)
{
    const size_t sums = (size_t)p->tiles * (p->shares > 1 ? sum_bytes<ROWS> + TURN_BYTES : 0);
    for (p->stages = MOST_STAGES; p->stages > 1; p->stages--) {
        p->shared = (size_t)p->shares * share_bytes<K, ROWS>(p->tiles, p->stages) + sums;
        if (p->shared <= (size_t)(cu_gpu.shared_block - table_bytes<K>))
            return true;
    }
    return false;
}

/* A multiprocessor's tiles are one block, or as few of one size as have the warps. Where warps are
 * left, shares have them. */
template <int K, int ROWS> static short_plan plan_for(int n_tile, int n_unit, int tiles)
{
    constexpr int alone = most_warps<ROWS, false>, handed = most_warps<ROWS, true>;
    const int each = (n_tile * tiles + cu_gpu.n_sm - 1) / cu_gpu.n_sm;
    const int rounds = (each + alone - 1) / alone;
    short_plan p = {};
    for (p.tiles = (each + rounds - 1) / rounds; p.tiles > 0; p.tiles--) {
        p.shares = handed / p.tiles;
        p.shares = p.shares > MOST_SHARES ? MOST_SHARES : p.shares < 1 ? 1 : p.shares;
        p.shares = p.shares > n_unit ? n_unit : p.shares;
        for (; p.shares > 0; p.shares--)
            if (fits<K, ROWS>(&p))
                return p;
    }
    return {};
}

template <int K, int ROWS> static bool launch_short(cudaStream_t s, short_args *a, int n_tile)
{
    const int tiles = (a->rows + ROWS - 1) / ROWS;
    const short_plan p = plan_for<K, ROWS>(n_tile, a->w[0].n_unit, tiles);
    if (!p.stages)
        return false;
    dim3 grid((unsigned)((n_tile + p.tiles - 1) / p.tiles), (unsigned)tiles);
    dim3 block(32u * (unsigned)(p.tiles * p.shares));
    a->tiles = p.tiles;
    a->shares = p.shares;
    a->stages = p.stages;
    if (p.shares > 1)
        LAUNCH((short_kernel<K, ROWS, true>), grid, block, p.shared, s, *a);
    else
        LAUNCH((short_kernel<K, ROWS, false>), grid, block, p.shared, s, *a);
    return true;
}

extern "C" bool cu_matmul_short(cudaStream_t s, const dev_mat *y, dev_quant x, const packed *w,
                                int n)
{
    short_args a = {};
    int n_tile = 0;
    a.x = x.bf;
    a.rows = y->rows;
    a.n_in = w->n_in;
    for (int i = 0; i < SHORT_JOBS; i++) {
        a.y[i] = y[i < n ? i : n - 1];
        a.w[i] = w[i < n ? i : n - 1];
        n_tile += i < n ? w[i].n_tile : 0;
        a.end[i] = i + 1 < n ? n_tile : INT32_MAX;
    }
    return by_layout(all_packs, pack_kernels(w->kind), [&](auto k) {
        return a.rows <= 16   ? launch_short<k, 16>(s, &a, n_tile)
               : a.rows <= 32 ? launch_short<k, 32>(s, &a, n_tile)
                              : launch_short<k, 64>(s, &a, n_tile);
    });
}

template <int K, int ROWS> static int allow_rows()
{
    const int n = cu_gpu.shared_block - table_bytes<K>;
    return allow_shared(short_kernel<K, ROWS, false>, n) |
           allow_shared(short_kernel<K, ROWS, true>, n);
}

int cu_short_init()
{
    return each_layout(all_packs, [](auto k) {
        return allow_rows<k, 16>() | allow_rows<k, 32>() | allow_rows<k, 64>();
    });
}
