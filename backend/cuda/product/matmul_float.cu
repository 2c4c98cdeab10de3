/* matmul_float.cu - products with weights of floats: F32, F16, BF16, in the file's rows.
 *
 * Activations and sums are f32. Routers, per-layer projections at few rows and test models take
 * this path. Of answers one warp computes an output: a lane's columns and the tree that adds the
 * lanes are the same at every row count.
 *
 * Of prompts a row's columns are added in slices of SLICE, each in ascending order, and then the
 * slices in ascending order. Few rows, and few results, have a thread for four rows of a slice
 * (slices_kernel); others have tiles of 64 rows by 64 outputs (tile_kernel). Both give the same
 * bits.
 */
#include "backend/cuda/activations.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/experts/own.cuh"

template <int K> DEV float load1(const uint8_t *row, int64_t i)
{
    if (K == PACK_F32)
        return ((const float *)row)[i];
    uint32_t u = ((const uint16_t *)row)[i];
    return K == PACK_F16 ? f16_to_f32(u) : bf16_to_f32(u);
}

struct float_args {
    dev_mat y, x;
    packed w;
    const int32_t *expert; /* [rows * k] or NULL: the matrix of output row r, head j */
    int32_t k, x_heads;    /* experts per row; x has one head for all, or one each */
    bool glu;              /* y = gelu(W x) * (W' x), W' = up, rows up_row.. */
    packed up;
    int32_t up_row, n_out;
    expert_range own;
};

/* y[r, o] = sum_i x[r, i] W[o, i]      W: floats, x: f32, rows in tiles of R
 * grid:   one warp per output, 8 warps per block; y: tiles of rows (experts: one pair each)
 * shared: none
 * bound:  reading W, once per R rows */
template <int K, int R> __global__ void __launch_bounds__(256) matmul_float_kernel(float_args a)
{
    grid_trigger();
    grid_wait();
    int o = (int)(blockIdx.x * 8 + (threadIdx.x >> 5)), lane = lane_id();
    if (o >= a.n_out)
        return;
    int r0 = (int)blockIdx.y * R, n = a.w.n_in, head = 0;
    size_t mat = 0;
    if (a.expert) { /* R is 1 */
        const int own = own_mat(a.own, a.expert[r0]);
        if (own < 0)
            return;
        mat = (size_t)own;
        head = r0 % a.k;
        r0 /= a.k;
    }
    size_t width = K == PACK_F32 ? 4 : 2;
    const uint8_t *row = a.w.codes + mat_at(a.w, mat) + (size_t)o * n * width;
    const uint8_t *row2 = row;
    if (a.glu)
        row2 = a.up.codes + mat_at(a.up, mat) + (size_t)(o + a.up_row) * n * width;
    const float *x[R];
    float acc[R], acc2[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        int at = r0 + r < a.x.rows ? r0 + r : a.x.rows - 1; /* rows past the end repeat the last */
        x[r] = a.x.at + at * a.x.stride + (a.x_heads > 1 ? (int64_t)head * n : 0);
        acc[r] = acc2[r] = 0;
    }
    if (n % 4 == 0 && a.x.stride % 4 == 0) {
#pragma unroll 4
        for (int i = lane * 4; i < n; i += 128) {
            float4 w = load4<K>(row, i), u = a.glu ? load4<K>(row2, i) : w;
#pragma unroll
            for (int r = 0; r < R; r++) {
                float4 v = *(const float4 *)(x[r] + i);
                acc[r] = fma_rn(w.x, v.x, acc[r]);
                acc[r] = fma_rn(w.y, v.y, acc[r]);
                acc[r] = fma_rn(w.z, v.z, acc[r]);
                acc[r] = fma_rn(w.w, v.w, acc[r]);
                if (a.glu) {
                    acc2[r] = fma_rn(u.x, v.x, acc2[r]);
                    acc2[r] = fma_rn(u.y, v.y, acc2[r]);
                    acc2[r] = fma_rn(u.z, v.z, acc2[r]);
                    acc2[r] = fma_rn(u.w, v.w, acc2[r]);
                }
            }
        }
    } else {
        for (int i = lane; i < n; i += 32) {
            float w = load1<K>(row, i), u = a.glu ? load1<K>(row2, i) : w;
#pragma unroll
            for (int r = 0; r < R; r++) {
                acc[r] = fma_rn(w, x[r][i], acc[r]);
                if (a.glu)
                    acc2[r] = fma_rn(u, x[r][i], acc2[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float s = warp_sum(acc[r]), u = a.glu ? warp_sum(acc2[r]) : 0;
        if (lane == 0 && r0 + r < a.y.rows)
            a.y.at[(r0 + r) * a.y.stride + (int64_t)head * a.n_out + o] =
                a.glu ? gate_of(false, s) * u : s;
    }
}

/* ---- Rows of prompts ----------------------------------------------------------------------- */

enum {
    SLICE = 64, /* columns whose products are added in one chain */
    SLICES = 8, /* of slices_kernel at a time; its block has so many rows and outputs: */
    SLICE_TILE = 8,
    SLICE_THREADS = 128,
    TILE = 64,       /* rows and outputs of a block */
    TILE_STEP = 16,  /* columns at a time */
    TILE_STAGES = 4, /* steps in shared memory: one takes less time than a read of L2 */
    TILE_THREADS = 128,
    TILE_PIECES = TILE * TILE_STEP / 4, /* of four columns: of x, and of W */
    ROWS_OF = 8,                        /* of a thread */
    OUTS_OF = 4
};

/* Slices of a block's rows of x and of W, as they are stored, each so long that the lanes of a warp
 * meet different banks; and the slices' sums of a warp's results. */
template <int K> struct slices_stage {
    enum { SIZE = K == PACK_F32 ? 4 : 2, X_BYTES = SLICE * 4 + 16, W_BYTES = SLICE * SIZE + 16 };
    uint8_t x[SLICE_TILE][SLICES][X_BYTES], w[SLICE_TILE][SLICES][W_BYTES];
    float sum[SLICE_THREADS / 32][16][SLICES + 1];
};

/* Copies columns `from`.. of a tile's rows of x and of W. What is past an end keeps what it was: it
 * reaches no result. */
template <int K>
DEV void copy_slices(slices_stage<K> &to, const float_args &a, int r0, int o0, int from)
{
    enum { SIZE = slices_stage<K>::SIZE, PIECES = SLICES * SLICE / 4 /* of a row */ };
    const int n = a.w.n_in;
#pragma unroll 4
    for (int p = (int)threadIdx.x; p < SLICE_TILE * PIECES; p += SLICE_THREADS) {
        const int row = p / PIECES, slice = p % PIECES / (SLICE / 4), c = p % (SLICE / 4) * 4;
        const int i = from + slice * SLICE + c;
        if (i >= n)
            continue;
        if (r0 + row < a.x.rows)
            copy16_async(to.x[row][slice] + c * 4, a.x.at + (r0 + row) * a.x.stride + i, true);
        if (o0 + row < a.n_out) {
            const uint8_t *w = a.w.codes + ((size_t)(o0 + row) * n + i) * SIZE;
            if (SIZE == 4)
                copy16_async(to.w[row][slice] + c * SIZE, w, true);
            else
                copy8_async(to.w[row][slice] + c * SIZE, w);
        }
    }
    copy_commit();
}

/* y[r, o], a few rows or results. A warp has 4 x 4 of them: a lane a slice of one output and four
 * rows.
 * grid:   tile of 8 outputs x tile of 8 rows
 * shared: a stage
 * bound:  latency: reads of the second cache, 512 columns at a time */
template <int K> __global__ void __launch_bounds__(SLICE_THREADS) slices_kernel(float_args a)
{
    __shared__ __align__(16) slices_stage<K> stage;
    const int o0 = (int)blockIdx.x * SLICE_TILE, r0 = (int)blockIdx.y * SLICE_TILE, n = a.w.n_in;
    const int lane = lane_id(), warp = (int)threadIdx.x >> 5, slice = lane & 7;
    const int row = 4 * (warp & 1), out = 4 * (warp >> 1) + (lane >> 3);
    float(&sums)[16][SLICES + 1] = stage.sum[warp];
    float total = 0; /* of result `lane` of the warp's: row lane / 4, output lane % 4 */
    grid_trigger();
    grid_wait();
    for (int from = 0; from < n; from += SLICES * SLICE) {
        copy_slices(stage, a, r0, o0, from);
        copy_wait<0>();
        __syncthreads();
        const int columns = min((int)SLICE, n - from - SLICE * slice);
        float sum[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (int i = 0; i < columns; i += 4) {
            const float4 w = load4<K>(stage.w[out][slice], i);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float4 v = *(const float4 *)(stage.x[row + r][slice] + 4 * i);
                sum[r] = fma_rn(w.x, v.x, sum[r]);
                sum[r] = fma_rn(w.y, v.y, sum[r]);
                sum[r] = fma_rn(w.z, v.z, sum[r]);
                sum[r] = fma_rn(w.w, v.w, sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
            sums[4 * r + (lane >> 3)][slice] = sum[r];
        __syncthreads(); /* and all have read the stage */
        for (int i = 0; lane < 16 && i < SLICES && from + SLICE * i < n; i++)
            total += sums[lane][i];
        __syncwarp(); /* the sums are read */
    }
    const int r = r0 + row + lane / 4, o = o0 + 4 * (warp >> 1) + lane % 4;
    if (lane < 16 && r < a.y.rows && o < a.n_out)
        a.y.at[r * a.y.stride + o] = total;
}

/* A step's columns of the rows of x and of W, as they are stored. Lines are so long that the lanes
 * of a warp, which read different ones, meet different banks. */
template <int K> struct tile_stage {
    enum { SIZE = K == PACK_F32 ? 4 : 2 };
    float x[TILE][TILE_STEP + 4];
    uint8_t w[TILE][(TILE_STEP + 4) * SIZE];
};

/* Starts the copies of a step of W; columns and rows past the end become zeros. The next function:
 * of x. */
template <int K> DEV void copy_weights(tile_stage<K> &to, const float_args &a, int o0, int i)
{
    enum { SIZE = tile_stage<K>::SIZE };
#pragma unroll
    for (int p = (int)threadIdx.x; p < TILE_PIECES; p += TILE_THREADS) {
        const int row = p >> 2, c = (p & 3) * 4, n = a.w.n_in;
        const bool in = i + c < n && o0 + row < a.n_out;
        const uint8_t *from = a.w.codes + (in ? ((size_t)(o0 + row) * n + i + c) * SIZE : 0);
        if (SIZE == 4) {
            copy16_async(to.w[row] + c * SIZE, from, in);
        } else {
            copy4_async(to.w[row] + c * SIZE, from, in);
            copy4_async(to.w[row] + c * SIZE + 4, from + 4, in);
        }
    }
}
template <int K> DEV void copy_rows(tile_stage<K> &to, const float_args &a, int r0, int i)
{
#pragma unroll
    for (int p = (int)threadIdx.x; p < TILE_PIECES; p += TILE_THREADS) {
        const int row = p >> 2, c = (p & 3) * 4;
        const bool in = i + c < a.w.n_in && r0 + row < a.x.rows;
        copy16_async(to.x[row] + c, a.x.at + (in ? (r0 + row) * a.x.stride + i + c : 0), in);
    }
}

/* y[r, o], many rows.
 *
 *     thread   rows ty, ty + 8 .. of the block, outputs tx, tx + 16 ..: 8 x 4 of them
 *     stages   TILE_STAGES steps of 16 columns; copies are TILE_STAGES - 1 steps ahead
 *
 * Copies arrive in order, so a step waits for its own alone. Loads to registers do not, because the
 * compiler has one scoreboard for all of them.
 * grid:   TILE outputs x TILE rows
 * shared: the stages: 41 KB
 * bound:  reads of shared memory: 12 of 16 bytes a lane for 128 multiply-adds */
template <int K> __global__ void __launch_bounds__(TILE_THREADS, 3) tile_kernel(float_args a)
{
    __shared__ __align__(16) tile_stage<K> stage[TILE_STAGES];
    const int o0 = (int)blockIdx.x * TILE, r0 = (int)blockIdx.y * TILE, n = a.w.n_in;
    const int tx = (int)threadIdx.x & 15, ty = (int)threadIdx.x >> 4;
    float total[ROWS_OF][OUTS_OF], sum[ROWS_OF][OUTS_OF];
    grid_trigger();
    for (int s = 0; s < TILE_STAGES - 1; s++)
        copy_weights(stage[s], a, o0, s * TILE_STEP);
#pragma unroll
    for (int r = 0; r < ROWS_OF; r++)
#pragma unroll
        for (int o = 0; o < OUTS_OF; o++)
            total[r][o] = sum[r][o] = 0;
    grid_wait();
    for (int s = 0; s < TILE_STAGES - 1; s++) {
        copy_rows(stage[s], a, r0, s * TILE_STEP);
        copy_commit();
    }
    for (int i = 0, turn = 0; i < n; i += TILE_STEP, turn = (turn + 1) % TILE_STAGES) {
        const int ahead = i + (TILE_STAGES - 1) * TILE_STEP;
        tile_stage<K> &at = stage[turn], &next = stage[(turn + TILE_STAGES - 1) % TILE_STAGES];
        copy_wait<TILE_STAGES - 2>();
        __syncthreads(); /* the step is there, and all have left the one before */
        copy_weights(next, a, o0, ahead);
        copy_rows(next, a, r0, ahead);
        copy_commit();
#pragma unroll
        for (int c = 0; c < TILE_STEP; c += 4) {
            float4 w[OUTS_OF];
#pragma unroll
            for (int o = 0; o < OUTS_OF; o++)
                w[o] = load4<K>(at.w[tx + 16 * o], c);
#pragma unroll
            for (int r = 0; r < ROWS_OF; r++) {
                const float4 x = *(const float4 *)&at.x[ty + 8 * r][c];
#pragma unroll
                for (int o = 0; o < OUTS_OF; o++) {
                    sum[r][o] = fma_rn(w[o].x, x.x, sum[r][o]);
                    sum[r][o] = fma_rn(w[o].y, x.y, sum[r][o]);
                    sum[r][o] = fma_rn(w[o].z, x.z, sum[r][o]);
                    sum[r][o] = fma_rn(w[o].w, x.w, sum[r][o]);
                }
            }
        }
        if ((i + TILE_STEP) % SLICE == 0 || i + TILE_STEP >= n)
#pragma unroll
            for (int r = 0; r < ROWS_OF; r++)
#pragma unroll
                for (int o = 0; o < OUTS_OF; o++) {
                    total[r][o] += sum[r][o];
                    sum[r][o] = 0;
                }
    }
    copy_wait<0>();
#pragma unroll
    for (int r = 0; r < ROWS_OF; r++)
#pragma unroll
        for (int o = 0; o < OUTS_OF; o++) {
            const int row = r0 + ty + 8 * r, out = o0 + tx + 16 * o;
            if (row < a.y.rows && out < a.n_out)
                a.y.at[row * a.y.stride + out] = total[r][o];
        }
}

template <int K> static void launch_prompt(cudaStream_t s, const float_args &a)
{
    enum { FEW = 48, SMALL = 1 << 15 }; /* rows; results: tiles would leave most of the GPU idle */
    unsigned rows = (unsigned)a.y.rows, n = (unsigned)a.n_out;
    if (a.y.rows <= FEW || a.n_out <= 4 || (int64_t)a.y.rows * a.n_out <= SMALL)
        LAUNCH(slices_kernel<K>,
               dim3((n + SLICE_TILE - 1) / SLICE_TILE, (rows + SLICE_TILE - 1) / SLICE_TILE),
               dim3(SLICE_THREADS), 0, s, a);
    else
        LAUNCH(tile_kernel<K>, dim3((n + TILE - 1) / TILE, (rows + TILE - 1) / TILE),
               dim3(TILE_THREADS), 0, s, a);
}

template <int R> static void launch_float(cudaStream_t s, float_args a, int tiles)
{
    dim3 grid((unsigned)((a.n_out + 7) / 8), (unsigned)tiles);
    if (a.w.kind == PACK_F32)
        LAUNCH((matmul_float_kernel<PACK_F32, R>), grid, dim3(256), 0, s, a);
    else if (a.w.kind == PACK_F16)
        LAUNCH((matmul_float_kernel<PACK_F16, R>), grid, dim3(256), 0, s, a);
    else
        LAUNCH((matmul_float_kernel<PACK_BF16, R>), grid, dim3(256), 0, s, a);
}

extern "C" void cu_matmul_float(cudaStream_t s, dev_mat y, dev_mat x, packed w, bool prompt)
{
    float_args a = {y, x, w, 0, 1, 1, false, w, 0, w.n_out, {}};
    if (prompt && w.n_in % 4 == 0 && x.stride % 4 == 0) {
        if (w.kind == PACK_F32)
            launch_prompt<PACK_F32>(s, a);
        else if (w.kind == PACK_F16)
            launch_prompt<PACK_F16>(s, a);
        else
            launch_prompt<PACK_BF16>(s, a);
    } else if (y.rows == 1)
        launch_float<1>(s, a, 1);
    else
        launch_float<8>(s, a, (y.rows + 7) / 8);
}

/* Experts: row r, head j of y is a product with matrix id[r * k + j]; with up, the gated pair. */
extern "C" void cu_expert_float(cudaStream_t s, dev_mat y, dev_mat x, int32_t x_heads,
                                const int32_t *id, int32_t k, packed w, expert_range own,
                                const packed *up, int32_t up_row, int32_t n_out)
{
    float_args a = {y, x, w, id, k, x_heads, up != 0, up ? *up : w, up_row, n_out, own};
    launch_float<1>(s, a, y.rows * k);
}
