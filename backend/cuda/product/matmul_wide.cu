/* matmul_wide.cu - many rows times a weight that is bf16: long prompts, without cuBLASLt.
 *
 *             rows 128, 192 or 256
 *           +----+----+----+----+     A block makes 128 outputs of its rows, eight warps 64 outputs
 *     128   |    |    |    |    |     each, 32 columns a step. Both operands come by asynchronous
 *   outputs +----+----+----+----+     copies, three steps ahead. A warp loads the fragments of 16
 *           |    |    |    |    |     columns while it multiplies the 16 before.
 *           +----+----+----+----+
 *
 *     shared  [4 stages][128 outputs, then rows][64 bytes]    64 to 96 KB: every card has them
 *
 * Weights of blocks are made bf16 in scratch once per chunk of a prompt (cu_unpack_bf16), not by
 * every block of 256 rows anew. Blocks of the same outputs are neighbours, so that they read
 * weights from the second cache.
 *
 * Every sum is f32 and adds its columns 16 at a time in ascending order, as in matmul_mma.cu. So
 * results are bit-identical, and a row depends neither on its tile nor on the number of rows.
 */
#include "backend/cuda/mma.cuh"
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/prompt.cuh"

enum {
    BM = 128,
    BK = 32,
    LINE = 2 * BK, /* bytes of a row in a stage: four pieces of 16 */
    THREADS = 256,
    STAGES = 4,
    WARPS_N = 4 /* warps side by side along the rows */
};

struct wide_args {
    dev_mat y;
    const uint16_t *x, *w; /* bf16: [rows, n_in], [n_out, n_in] */
    int32_t n_in;
};

/* TILES: of 8 rows, to a warp. */
template <int TILES> struct wide_tile {
    static constexpr int rows = WARPS_N * 8 * TILES, stage = (BM + rows) * LINE;
    static constexpr int bytes = STAGES * stage;
};

/* Where piece p of a row lies. Of eight neighbouring rows no two pieces p share a bank. */
DEV int wide_at(int row, int p)
{
    return row * LINE + ((p ^ (row >> 1 & 3)) << 4);
}

/* A thread's share of the copies of an operand: piece t % 4 of rows t / 4 + 64 i. A row past the
 * end repeats the last one: its results are not stored. */
template <int N> struct wide_copies {
    uint32_t from[N]; /* in elements */

    DEV void begin(int first, int rows, int n_in)
    {
        const int t = (int)threadIdx.x;
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i] = (uint32_t)min(first + (t >> 2) + 64 * i, rows - 1) * (uint32_t)n_in +
                      (uint32_t)(t & 3) * 8;
    }
    /* in: the thread's columns are in the row; else zeros. */
    DEV void copy(uint8_t *to, const uint16_t *step, bool in) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            copy16_async(to + 64 * i * LINE, step + (in ? from[i] : 0), in);
    }
};

/* The operands of 16 columns. */
template <int TILES> struct wide_fragments {
    uint32_t a[4][4], b[TILES / 2][4];

    DEV void load(const uint8_t *w, const uint8_t *x)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            ldmatrix4(a[i], w + 16 * i * LINE);
#pragma unroll
        for (int j = 0; j < TILES / 2; j++)
            ldmatrix4(b[j], x + 16 * j * LINE);
    }
    DEV void multiply(float (*acc)[TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < TILES; j++) /* back and forth: one operand stays */
                mma_bf16(
                    acc[i][i & 1 ? TILES - 1 - j : j], a[i],
                    &b[(i & 1 ? TILES - 1 - j : j) >> 1][((i & 1 ? TILES - 1 - j : j) & 1) * 2]);
    }
};

/* y[r, o] = sum_i x[r, i] W[o, i]      W, x: bf16, sums f32
 * grid:   tile of rows x tile of 128 outputs
 * shared: as drawn above
 * bound:  tensor cores */
template <int TILES> __global__ void __launch_bounds__(THREADS, 1) wide_kernel(wide_args g)
{
    using T = wide_tile<TILES>;
    DYN_SHARED(uint8_t, mem);
    const int t = (int)threadIdx.x, lane = lane_id(), warp = t >> 5;
    const int n_step = (g.n_in + BK - 1) / BK, whole = g.n_in / BK; /* the last may be half */
    const bool first_half = (t & 3) < 2;
    const int r0 = (int)blockIdx.x * T::rows, o0 = (int)blockIdx.y * BM;
    const int wm = warp & 1, wn = warp >> 1;
    wide_copies<BM / 64> w;
    wide_copies<T::rows / 64> x;
    w.begin(o0, g.y.cols, g.n_in);
    x.begin(r0, g.y.rows, g.n_in);
    uint8_t *const to = mem + wide_at(t >> 2, t & 3);
    const int a_row = wm * 64 + (lane & 15);
    const int b_row = wn * 8 * TILES + (lane & 7) + (lane >> 4 << 3);
    /* The second 16 columns of a step are two pieces on: the same places with bit 5 turned. */
    const int at_a = wide_at(a_row, lane >> 4), at_b = BM * LINE + wide_at(b_row, lane >> 3 & 1);
    float acc[4][TILES][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][j][e] = 0;

    grid_trigger();
    grid_wait();
    const uint16_t *w_step = g.w, *x_step = g.x;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_step) {
            const bool in = i < whole || first_half;
            w.copy(to + i * T::stage, w_step, in);
            x.copy(to + i * T::stage + BM * LINE, x_step, in);
        }
        copy_commit();
        w_step += BK, x_step += BK;
    }
    copy_wait<STAGES - 2>();
    __syncthreads();
    wide_fragments<TILES> f[2];
    f[0].load(mem + at_a, mem + at_b);
    int now = 0, free = (STAGES - 1) * T::stage;
    for (int step = 0; step < n_step; step++) {
        f[1].load(mem + now + (at_a ^ 32), mem + now + (at_b ^ 32));
        if (step + STAGES - 1 < n_step) { /* into the stage of the step before */
            const bool in = step + STAGES - 1 < whole || first_half;
            w.copy(to + free, w_step, in);
            x.copy(to + free + BM * LINE, x_step, in);
        }
        copy_commit();
        w_step += BK, x_step += BK;
        f[0].multiply(acc);
        copy_wait<STAGES - 2>();
        __syncthreads(); /* the next step is there; all have read this one */
        free = now;
        now = now == (STAGES - 1) * T::stage ? 0 : now + T::stage;
        if (step + 1 < n_step)
            f[0].load(mem + now + at_a, mem + now + at_b);
        f[1].multiply(acc);
    }
    write_sums(g.y, {NULL, 0, g.y.rows}, acc, r0 + wn * 8 * TILES, o0 + wm * 64);
}

template <int TILES> static void wide(cudaStream_t s, const wide_args &g)
{
    using T = wide_tile<TILES>;
    dim3 grid((unsigned)((g.y.rows + T::rows - 1) / T::rows), (unsigned)((g.y.cols + BM - 1) / BM));
    LAUNCH(wide_kernel<TILES>, grid, dim3(THREADS), T::bytes, s, g);
}

/* The time of all blocks in tiles of so many rows, in arbitrary units. A multiprocessor has one
 * block at a time. A block's time grows with its rows; 32 more stand for the 128 outputs, which
 * every block reads. */
static int64_t wide_time(const dev_mat &y, int rows)
{
    int64_t blocks = (int64_t)((y.rows + rows - 1) / rows) * ((y.cols + BM - 1) / BM);
    return (blocks + cu_gpu.n_sm - 1) / cu_gpu.n_sm * (rows + 32);
}

extern "C" void cu_matmul_wide(cudaStream_t s, dev_mat y, const uint16_t *x, const uint16_t *w,
                               int32_t n_in, int32_t tile)
{
    const wide_args g = {y, x, w, n_in};
    if (!tile) {
        tile = 256;
        for (int rows = 192; rows >= 128; rows -= 64)
            if (wide_time(y, rows) < wide_time(y, tile))
                tile = rows;
    }
    if (tile == 256)
        wide<8>(s, g);
    else if (tile == 192)
        wide<6>(s, g);
    else
        wide<4>(s, g);
}

extern "C" int cu_wide_init(void)
{
    return allow_shared(wide_kernel<4>, wide_tile<4>::bytes) |
           allow_shared(wide_kernel<6>, wide_tile<6>::bytes) |
           allow_shared(wide_kernel<8>, wide_tile<8>::bytes);
}
