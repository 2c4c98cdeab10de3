/* matmul_short_experts.cu - the experts of short prompts: tiles of up to 32 rows of one expert,
 * which come by the sorted list of pairs, times its weights, on the bf16 tensor cores.
 *
 *     weights      [stages][warp][2 units]     as packed; each warp copies its own
 *     activations  [stages][32 rows][256 + 8]  of the tile's rows, one copy for all warps
 *     scales       [warp][2][table]            fragments.cuh
 *     rows         [32]                        of a tile: where in x, and the pair
 *
 * A warp makes two tiles of 16 outputs of all rows: neighbours, or a tile of gates and the ups of
 * the same units. So each fragment of activations serves two tiles, two chains of sums hide each
 * other's latency, and a gated unit is whole in one thread.
 *
 * An expert has few rows, so what binds is making its weights bf16, once: some 80 instructions for
 * 16 x 32 of them, in the registers that feed the tensor cores. For that a multiprocessor wants 12
 * warps and more, in two blocks at least, of which one begins while the other multiplies
 * (plan_for). A tile of up to 8, 16 or 32 rows is multiplied as so many.
 *
 * Sums and weights are those of matmul_mma.cu, and so are their bits.
 */
#include "backend/cuda/experts/prompt_experts.cuh"
#include "backend/cuda/product/fragments.cuh"

enum {
    MOST_WARPS = 8,
    MOST_STAGES = 3,
    MOST_ROWS = 32, /* of a tile */
    PAIR = 2,       /* tiles of a warp */
    COLUMNS = 32 * UNIT,
    LINE = COLUMNS + 8, /* padded against bank conflicts */
    X_STAGE = MOST_ROWS * LINE * 2
};

struct short_experts {
    expert_args e;
    int stages;
};

/* A row of the tile: of x, and of y. */
struct tile_row {
    const uint16_t *x;
    size_t pair;
};

/* ---- Kernel --------------------------------------------------------------------------------- */

/* Copies a unit of the rows, a warp per row. Columns past the end become zeros. Rows past the end
 * stay undefined: they reach only results that are not stored. */
DEV void copy_rows(uint16_t *to, const tile_row *rows, int n, int unit, int n_in)
{
    const int at = unit * COLUMNS + 8 * lane_id();
    const bool in = at < n_in;
    for (int r = (int)threadIdx.x >> 5; r < n; r += (int)blockDim.x >> 5)
        copy16_async(to + r * LINE + 8 * lane_id(), rows[r].x + (in ? at : 0), in);
}

/* Columns 32 g.. of 8 TILES rows as fragments of B: [half][8 rows][2]. */
template <int TILES> DEV void load_rows(uint32_t (&b)[2][TILES][2], const uint16_t *x, int g)
{
    uint32_t r[4];
    if constexpr (TILES == 1) {
        ldmatrix4(r, x + (lane_id() & 7) * LINE + 32 * g + (lane_id() >> 3 << 3));
        b[0][0][0] = r[0], b[0][0][1] = r[1], b[1][0][0] = r[2], b[1][0][1] = r[3];
    } else {
        x += ((lane_id() & 7) + (lane_id() >> 4 << 3)) * LINE + (lane_id() >> 3 & 1) * 8;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < TILES; j += 2) {
                ldmatrix4(r, x + 8 * j * LINE + 32 * g + 16 * h);
                b[h][j][0] = r[0], b[h][j][1] = r[1];
                b[h][j + 1][0] = r[2], b[h][j + 1][1] = r[3];
            }
    }
}

/* A warp's two units times 8 TILES rows. */
template <int K, int TILES>
DEV void multiply_pair(float (&acc)[PAIR][TILES][4], const uint8_t *units, uint8_t *tables,
                       const uint16_t *x, constants is)
{
    using S = staged<K>;
    unit_scales<K> scale[PAIR][2];
#pragma unroll
    for (int m = 0; m < PAIR; m++) {
        const uint8_t *unit = units + m * S::bytes;
        if (traits<K>::super)
            write_scales(tables + m * scale_table<K>, unit + S::at_super, is.power);
        scale[m][0].begin(unit, lane_id() >> 2);
        scale[m][1].begin(unit, (lane_id() >> 2) + 8);
    }
    __syncwarp(); /* the tables are written */
#pragma unroll
    for (int g = 0; g < 8; g++) {
        uint32_t b[2][TILES][2];
        load_rows<TILES>(b, x, g);
#pragma unroll
        for (int m = 0; m < PAIR; m++) {
            uint32_t a[2][4];
            group_fragments<K>(a, units + m * S::bytes, tables + m * scale_table<K>, scale[m], g,
                               is);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < TILES; j++)
                    mma_bf16(acc[m][j], a[h], b[h][j]);
        }
    }
    __syncwarp(); /* all lanes have read the tables */
}

/* A call: a thread has many units, and the code of activations is long. */
static __device__ __noinline__ float called_unit(const expert_args &e, int expert, int unit,
                                                 float gate, float up)
{
    return unit_value(e, expert, unit, gate, up);
}

/* Writes a warp's sums of 8 TILES rows, of which there are n. tile: the first of its two, or that
 * of its units. */
template <bool GATED, int TILES>
DEV void write_pair(const expert_args &e, int expert, const tile_row *rows, int n,
                    const float (&acc)[PAIR][TILES][4], int tile)
{
    const int o0 = 16 * tile + (lane_id() >> 2);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = 8 * j + 2 * (lane_id() & 3) + (i & 1), o = o0 + 8 * (i >> 1);
            const bool in = r < n;
            const size_t pair = in ? rows[r].pair : 0;
            if constexpr (GATED) {
                write_unit(e, pair, o, called_unit(e, expert, o, acc[0][j][i], acc[1][j][i]),
                           in && o < e.n_out);
            } else {
#pragma unroll
                for (int m = 0; m < PAIR; m++)
                    if (in && o + 16 * m < e.n_out)
                        e.a.y.at[pair * e.a.y.stride + o + 16 * m] = acc[m][j][i];
            }
        }
}

/* Where a block's stages are, and how many. */
struct block_stages {
    uint8_t *units, *xs, *tables; /* units, tables: of the warp */
    const tile_row *rows;
    int n, weights; /* weights: bytes of a stage */
};

/* A block's outputs of one tile of rows, once the first copies have begun. from: the warp's tiles;
 * in: does it have outputs? */
template <int K, bool GATED, int TILES>
DEV void multiply_tile(const expert_args &e, const block_stages &s, const tile_at<K> (&from)[PAIR],
                       const expert_tile &t, int tile, bool in)
{
    const packed &w = e.a.w;
    /* A shuffle hides the constants from the compiler, which keeps them in registers then. */
    const constants is = {shfl_u32(0x4b000000, 0), shfl_u32(code_float<K>::power, 0)};
    float acc[PAIR][TILES][4];
#pragma unroll
    for (int i = 0; i < PAIR * TILES * 4; i++)
        acc[i / (TILES * 4)][i / 4 % TILES][i % 4] = 0;
    int now = 0, free = s.n - 1;
    for (int k = 0; k < w.n_unit; k++) {
        wait_for_copies(s.n - 2);
        __syncthreads(); /* all have multiplied the unit before, whose stage is free */
        const int ahead = k + s.n - 1;
        if (ahead < w.n_unit) {
#pragma unroll
            for (int m = 0; m < PAIR; m++)
                if (in)
                    from[m].copy(s.units + free * s.weights + m * staged<K>::bytes, ahead,
                                 w.n_group);
            copy_rows((uint16_t *)(s.xs + free * X_STAGE), s.rows, t.n, ahead, w.n_in);
        }
        copy_commit();
        if (in)
            multiply_pair<K, TILES>(acc, s.units + now * s.weights, s.tables,
                                    (const uint16_t *)(s.xs + now * X_STAGE), is);
        free = now;
        now = now + 1 == s.n ? 0 : now + 1;
    }
    if (in)
        write_pair<GATED, TILES>(e, t.expert, s.rows, t.n, acc, tile);
}

/* y[p, o] = sum_i x[p / k, i] W[expert(p), o, i]      W: packed, x: bf16, sums f32
 * GATED: y[p, o] = act(gate) up, both such sums
 * grid:   blocks of two tiles of outputs to a warp x tiles of rows
 * shared: as drawn above
 * bound:  making W bf16, and its bytes */
template <int K, bool GATED>
__global__ void __launch_bounds__(32 * MOST_WARPS, 2)
    short_experts_kernel(const __grid_constant__ short_experts s)
{
    DYN_SHARED(uint8_t, mem);
    const expert_args &e = s.e;
    const packed &w = e.a.w;
    const int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
    const int place = (int)blockIdx.x * n_warps + warp, last = (e.n_out + 15) / 16 - 1;
    const int tile = GATED ? place : PAIR * place;
    const bool in = tile <= last;
    block_stages b = {mem, 0, 0, 0, s.stages, n_warps * PAIR * staged<K>::bytes};
    b.xs = mem + b.n * b.weights;
    b.tables = b.xs + b.n * X_STAGE;
    tile_row *rows = (tile_row *)(b.tables + n_warps * PAIR * scale_table<K>);
    b.rows = rows;
    b.units += warp * PAIR * staged<K>::bytes;
    b.tables += warp * PAIR * scale_table<K>;

    grid_trigger();
    lattice_begin<K>(w.kind);
    grid_wait(); /* the list is written */
    if ((int)blockIdx.y >= *e.a.n_tiles)
        return;
    const expert_tile t = e.a.tiles[blockIdx.y];
    for (int r = (int)threadIdx.x; r < t.n; r += (int)blockDim.x) {
        const int pair = e.a.order[t.first + r];
        rows[r] = {e.a.x + (size_t)(pair / e.a.k) * w.n_in, (size_t)pair};
    }
    tile_at<K> from[PAIR];
#pragma unroll
    for (int m = 0; m < PAIR; m++) {
        const bool up = GATED && m;
        const packed &of = up ? e.up : w;
        from[m].begin(of, min(GATED ? tile : tile + m, last) + (up ? e.up_tile : 0),
                      mat_at(of, (size_t)t.expert));
        for (int i = 0; i < b.n - 1; i++)
            if (in && i < w.n_unit)
                from[m].copy(b.units + i * b.weights + m * staged<K>::bytes, i, w.n_group);
    }
    __syncthreads(); /* the rows are known */
    /* The first group of copies has all weights, so it waits for more than it needs, once. */
    for (int i = 0; i < b.n - 1; i++) {
        if (i < w.n_unit)
            copy_rows((uint16_t *)(b.xs + i * X_STAGE), rows, t.n, i, w.n_in);
        copy_commit();
    }
    if (t.n <= 8)
        multiply_tile<K, GATED, 1>(e, b, from, t, tile, in);
    else if (t.n <= 16)
        multiply_tile<K, GATED, 2>(e, b, from, t, tile, in);
    else
        multiply_tile<K, GATED, 4>(e, b, from, t, tile, in);
}

/* ---- Launching ------------------------------------------------------------------------------ */

struct experts_plan {
    int warps, stages; /* 0: nothing fits */
    size_t shared;
};

/* The plan that keeps most warps busy on a multiprocessor: those of as many blocks as it holds,
 * less those past the last of n places. With equally many, smaller blocks: fewer wait for each
 * other. */
template <int K> static experts_plan plan_for(int n)
{
    enum { SM_WARPS = 16 /* by registers */ };
    experts_plan best = {};
    int most = 0;
    for (int warps = 2; warps <= MOST_WARPS; warps++)
        for (int stages = MOST_STAGES; stages >= 2; stages--) {
            const int of_warp = PAIR * (stages * staged<K>::bytes + scale_table<K>);
            const int shared =
                stages * X_STAGE + warps * of_warp + MOST_ROWS * (int)sizeof(tile_row);
            const int all = shared + table_bytes<K>;
            if (all > cu_gpu.shared_block)
                continue;
            const int blocks =
                min(cu_gpu.shared_sm / (all + (int)BLOCK_RESERVED), SM_WARPS / warps);
            /* A third stage is worth little: bytes are on their way either way. */
            const int busy = 100 * blocks * n / ((n + warps - 1) / warps) + (stages > 2);
            if (busy > most) {
                best = {warps, stages, (size_t)shared};
                most = busy;
            }
        }
    return best;
}

template <int K, bool GATED>
static bool launch_experts(cudaStream_t s, const expert_args &a, const expert_lists &l)
{
    const int tiles = (a.n_out + 15) / 16, n = GATED ? tiles : (tiles + PAIR - 1) / PAIR;
    const experts_plan p = plan_for<K>(n);
    if (!p.stages)
        return false;
    const dim3 grid((unsigned)((n + p.warps - 1) / p.warps),
                    (unsigned)expert_tiles(a.a.rows, l.n_expert));
    const short_experts args = {a, p.stages};
    LAUNCH((short_experts_kernel<K, GATED>), grid, dim3(32u * (unsigned)p.warps), p.shared, s,
           args);
    return true;
}

bool cu_short_experts(cudaStream_t s, const expert_args &a, const expert_lists &l, bool units)
{
    if (expert_tile_rows(a.a.rows, l.n_expert) > MOST_ROWS)
        return false;
    return by_layout(all_packs, pack_kernels(a.a.w.kind), [&](auto k) {
        return units ? launch_experts<k, true>(s, a, l) : launch_experts<k, false>(s, a, l);
    });
}

extern "C" bool cu_expert_short(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l,
                                int32_t k)
{
    return cu_short_experts(s, args_of_product(y, x, w, l, k), l, false);
}

template <int K> static int allow_experts()
{
    const int n = cu_gpu.shared_block - table_bytes<K>;
    return allow_shared(short_experts_kernel<K, true>, n) |
           allow_shared(short_experts_kernel<K, false>, n);
}

int cu_short_experts_init()
{
    return each_layout(all_packs, [](auto k) { return allow_experts<k>(); });
}
