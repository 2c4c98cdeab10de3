/* recur.cu - recurrent layers: the convolution, the gated delta rule row by row, pending rows.
 *
 *     delta_kernel: a block is (value head, 16 value rows, sequence); four value rows to a warp,
 *     eight lanes to a value row, dk / 8 elements of the state S to a lane, in registers:
 *
 *         lane   0     1    ...  7    | 8 ...           keys of lane l: V l + 8 V j .. + V - 1,
 *         row 0  s s.. s s..    s s.. |                 V = 4 (dk = 16: 2)
 *         row 1                       | s s..
 *
 *         S from the store, pending rows applied, back to the store        before grid_wait
 *         rows of the pass: STAGE rows of keys, queries, values and gates on their way to shared
 *         memory while STAGE others are computed
 *
 * Only the step upload separates a pass from the writes of the one before, and no kernel of a pass
 * touches a layer's state but this one. So S is read before grid_wait.
 */
#include "backend/cuda/recur/launch_recur.h"
#include "backend/cuda/recur/recur.cuh"

enum { BLOCK_ROWS = 16, DELTA_THREADS = 128, CONV_THREADS = 256 };

/* ---- Convolution --------------------------------------------------------------------------- */

DEV float conv_of(const conv_args &a, const dev_recur_base &b, const dev_recur_seq &s, int r, int c)
{
    float in[RECUR_TAPS], sum = 0;
    int at = r, before = a.v.n_taps - 2 + s.n_pending;
#pragma unroll
    for (int j = RECUR_TAPS - 1; j >= 0; j--) {
        int t = j - (RECUR_TAPS - a.v.n_taps); /* the taps at the end of the array */
        if (t < 0)
            continue;
        in[j] = at >= 0 ? a.x.at[at * a.x.stride + c] : input_before(a.v, b, s, before--, c);
        at = at >= 0 ? a.st.parent[at] : at;
    }
#pragma unroll
    for (int j = 0; j < RECUR_TAPS; j++) {
        int t = j - (RECUR_TAPS - a.v.n_taps);
        if (t >= 0)
            sum = t ? fma_rn(a.taps[c * a.v.n_taps + t], in[j], sum)
                    : mul_rn(a.taps[c * a.v.n_taps], in[j]);
    }
    return sum / (1.0f + expf(-sum));
}

/* What the pass leaves of channel c: the new conv, and the rows' inputs in the journal. Ascending,
 * because what is read lies at or behind the place that is written. */
DEV void keep_inputs(const recur_shape &v, const dev_recur_base &b, const dev_recur_seq &s,
                     const dev_mat &x, int c)
{
    int old = v.n_taps - 1, n = s.n_pending + (s.final ? s.n : 0);
    for (int i = 0; i < s.n && !s.final; i++)
        row_of(v, b, !s.bank, i).inputs[c] = x.at[(s.row0 + i) * x.stride + c];
    for (int t = 0; n && t < old; t++) {
        int from = t + n, row = from - old - s.n_pending;
        b.conv[(size_t)t * v.n_channels + c] =
            row < 0 ? input_before(v, b, s, from, c) : x.at[(s.row0 + row) * x.stride + c];
    }
}

/* y = silu(conv(x)), and what is left of x.
 * grid:   256 channels x sequence; a thread takes its channel through all rows
 * shared: none
 * bound:  latency; few rows */
__global__ void __launch_bounds__(CONV_THREADS) conv_kernel(conv_args a)
{
    grid_trigger();
    grid_wait();
    int c = (int)(blockIdx.x * CONV_THREADS + threadIdx.x), seq = (int)blockIdx.y;
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    if (c >= a.v.n_channels)
        return;
    for (int r = s.row0; r < s.row0 + s.n; r++)
        a.y.at[r * a.y.stride + c] = conv_of(a, b, s, r, c);
    keep_inputs(a.v, b, s, a.x, c);
}

/* y alone, of many rows.
 * grid:   256 channels x row
 * shared: none
 * bound:  reading x, writing y */
__global__ void __launch_bounds__(CONV_THREADS) conv_rows_kernel(conv_args a)
{
    grid_trigger();
    grid_wait();
    int c = (int)(blockIdx.x * CONV_THREADS + threadIdx.x), r = (int)blockIdx.y;
    if (c >= a.v.n_channels)
        return;
    int seq = a.st.row_seq[r];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    a.y.at[r * a.y.stride + c] = conv_of(a, b, a.st.seq[seq], r, c);
}

/* What is left of x after conv_rows_kernel.
 * grid:   256 channels x sequence
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(CONV_THREADS) conv_keep_kernel(conv_args a)
{
    grid_trigger();
    grid_wait();
    int c = (int)(blockIdx.x * CONV_THREADS + threadIdx.x), seq = (int)blockIdx.y;
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    if (c < a.v.n_channels)
        keep_inputs(a.v, b, a.st.seq[seq], a.x, c);
}

extern "C" void cu_conv(cudaStream_t s, conv_args a)
{
    enum { FEW = 16 }; /* rows per sequence that a thread takes in turn */
    unsigned blocks = (unsigned)((a.v.n_channels + CONV_THREADS - 1) / CONV_THREADS);
    unsigned seqs = (unsigned)a.st.n_seqs;
    if (a.x.rows <= FEW * a.st.n_seqs) {
        LAUNCH(conv_kernel, dim3(blocks, seqs), dim3(CONV_THREADS), 0, s, a);
        return;
    }
    if (!a.chain || !cu_conv_run(s, &a))
        LAUNCH(conv_rows_kernel, dim3(blocks, (unsigned)a.x.rows), dim3(CONV_THREADS), 0, s, a);
    LAUNCH(conv_keep_kernel, dim3(blocks, seqs), dim3(CONV_THREADS), 0, s, a);
}

/* ---- The gated delta rule ------------------------------------------------------------------ */

/* What all value rows read of a row: queries and keys divided by their lengths, decays, and the
 * shares of errors that are written. Keys and decays also to the journal, of uncertain rows.
 * grid:   row; a warp per key head in turn
 * shared: none
 * bound:  latency of few rows, bandwidth of many */
__global__ void __launch_bounds__(256) delta_rows_kernel(delta_args a)
{
    grid_trigger();
    grid_wait();
    int r = (int)blockIdx.x, seq = a.st.row_seq[r];
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    journal_row to = {};
    if (!s.final)
        to = row_of(a.v, b, !s.bank, r - s.row0);
    const float *c = a.c.at + r * a.c.stride;
    for (int h = (int)(threadIdx.x >> 5); h < 2 * a.v.n_k; h += 8) {
        bool key = h >= a.v.n_k;
        int at = (key ? h - a.v.n_k : h) * a.v.dk;
        size_t to_row = ((size_t)(at / a.v.dk) * a.c.rows + r) * a.v.dk;
        normalise((key ? a.k : a.q) + to_row, key && !s.final ? to.keys + at : (float *)0,
                  c + h * a.v.dk, a.v.dk, key ? 1.0f : 1.0f / sqrtf((float)a.v.dk));
    }
    for (int j = (int)threadIdx.x; j < a.v.n_v; j += 256) {
        float decay = decay_of(a.gate_a, a.gate_dt, j, a.a.at[r * a.a.stride + j]);
        float *gate = a.gates + ((size_t)j * a.c.rows + r) * 2;
        gate[0] = decay;
        gate[1] = share_of(a.b.at[r * a.b.stride + j]);
        if (!s.final)
            to.decays[j] = decay;
    }
}

DEV value_row value_row_of(const recur_shape &v, int block)
{
    int blocks = (v.dv + BLOCK_ROWS - 1) / BLOCK_ROWS;
    value_row w;
    w.head = block / blocks;
    w.key_head = w.head % v.n_k;
    w.i = block % blocks * BLOCK_ROWS + (int)(threadIdx.x >> 3);
    w.in = w.i < v.dv;
    w.i = min(w.i, v.dv - 1);
    return w;
}

/* Rows of the pass in shared memory. */
template <int KEYS> struct delta_stage {
    enum { ROWS = KEYS <= 128 ? 16 : 8 };
    float k[ROWS][KEYS], q[ROWS][KEYS];
    float v[ROWS][BLOCK_ROWS];
    float gate[ROWS][2];
};

/* Starts the copies of rows r0 .. of the sequence, and ends their group. */
template <int KEYS>
DEV void stage_rows(delta_stage<KEYS> &to, const delta_args &a, const value_row &w, int block,
                    int r0, int end)
{
    enum { PIECES = KEYS / 4, ROWS = delta_stage<KEYS>::ROWS };
    int n = min((int)ROWS, end - r0), width = a.v.n_k * KEYS;
    int blocks = (a.v.dv + BLOCK_ROWS - 1) / BLOCK_ROWS, first = block % blocks * BLOCK_ROWS;
    for (int i = (int)threadIdx.x; i < 2 * n * PIECES; i += DELTA_THREADS) {
        int r = i / (2 * PIECES), at = i % (2 * PIECES) * 4;
        bool key = at < KEYS;
        const float *from = (key ? a.k : a.q) + ((size_t)w.key_head * a.c.rows + r0 + r) * KEYS +
                            (key ? at : at - KEYS);
        copy16_async(key ? &to.k[r][at] : &to.q[r][at - KEYS], from, true);
    }
    for (int i = (int)threadIdx.x; i < n * BLOCK_ROWS; i += DELTA_THREADS) {
        int r = i / BLOCK_ROWS, j = i % BLOCK_ROWS;
        bool ok = first + j < a.v.dv;
        const float *from = a.c.at + (r0 + r) * a.c.stride + 2 * width + w.head * a.v.dv;
        copy4_async(&to.v[r][j], from + (ok ? first + j : 0), ok);
    }
    for (int i = (int)threadIdx.x; i < 2 * n; i += DELTA_THREADS)
        copy4_async(&to.gate[i / 2][i % 2],
                    a.gates + ((size_t)w.head * a.c.rows + r0 + i / 2) * 2 + i % 2, true);
    copy_commit();
}

/* All rows of a sequence through 16 value rows of a head.
 * grid:   (value head, 16 value rows) x sequence
 * shared: two stages of keys, queries, values and gates: 35 KB with keys of 128
 * bound:  one row per sequence: the state, read and written once; many rows: 4 instructions per
 *         element of the state and row */
template <int KEYS> __global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(delta_args a)
{
    __shared__ __align__(16) delta_stage<KEYS> stage[2];
    enum { ROWS = delta_stage<KEYS>::ROWS };
    int seq = (int)blockIdx.y, block = (int)blockIdx.x, last = -1;
    const value_row w = value_row_of(a.v, block);
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    int row0 = s.row0, end = row0 + s.n, bank = s.bank;
    bool final = s.final, leader = w.in && (threadIdx.x & 7) == 0;
    lane_keys<KEYS> now, k;

    grid_trigger();
    float *state = settled_row(now, a.v, w, b, s);
    if (s.n_pending && w.in && !final)
        store_keys(state, now);
    grid_wait();
    stage_rows(stage[0], a, w, block, row0, end);
    for (int r0 = row0, turn = 0; r0 < end; r0 += ROWS, turn ^= 1) {
        stage_rows(stage[turn ^ 1], a, w, block, r0 + ROWS, end);
        copy_wait<1>();
        __syncthreads();
        const delta_stage<KEYS> &at = stage[turn];
        for (int r = r0; r < min(r0 + (int)ROWS, end); last = r++) {
            int i = r - r0;
            if (!final && a.st.parent[r] != last) { /* another branch of a tree */
                int path[RECUR_PATH], n = 0;
                for (int p = a.st.parent[r]; p >= 0 && n < RECUR_PATH; p = a.st.parent[p])
                    path[n++] = p;
                load_keys(now, state);
                __syncwarp();
                while (n)
                    apply_row(now, a.v, w, row_of(a.v, b, !bank, path[--n] - row0));
            }
            load_keys(k, at.k[i]);
            fade(now, at.gate[i][0]);
            float error = at.gate[i][1] * (at.v[i][threadIdx.x >> 3] - read_state(now, k));
            write_error(now, k, error);
            load_keys(k, at.q[i]);
            float o = read_state(now, k);
            if (leader) {
                a.o.at[r * a.o.stride + w.head * a.v.dv + w.i] = o;
                if (!final)
                    row_of(a.v, b, !bank, r - row0).errors[w.head * a.v.dv + w.i] = error;
            }
        }
        __syncthreads();
    }
    copy_wait<0>();
    if (final && w.in)
        store_keys(state, now);
}

template <int KEYS> static void launch_delta(cudaStream_t s, delta_args a)
{
    int blocks = (a.v.dv + BLOCK_ROWS - 1) / BLOCK_ROWS;
    LAUNCH(delta_kernel<KEYS>, dim3((unsigned)(a.v.n_v * blocks), (unsigned)a.st.n_seqs),
           dim3(DELTA_THREADS), 0, s, a);
}

extern "C" void cu_delta_rows(cudaStream_t s, delta_args a)
{
    LAUNCH(delta_rows_kernel, dim3((unsigned)a.c.rows), dim3(256), 0, s, a);
}

extern "C" void cu_delta(cudaStream_t s, delta_args a)
{
    cu_delta_rows(s, a);
    if (a.v.dk == 16)
        launch_delta<16>(s, a);
    else if (a.v.dk == 32)
        launch_delta<32>(s, a);
    else if (a.v.dk == 64)
        launch_delta<64>(s, a);
    else if (a.v.dk == 128)
        launch_delta<128>(s, a);
    else
        launch_delta<256>(s, a);
}

/* ---- Between passes ------------------------------------------------------------------------ */

/* Pending rows into the states and convs of several stores of one shape.
 * grid:   (value head, 16 value rows) x store
 * shared: none
 * bound:  the states, read and written once */
template <int KEYS> __global__ void __launch_bounds__(DELTA_THREADS) settle_kernel(settle_args a)
{
    grid_trigger();
    grid_wait();
    const dev_recur_base &b = a.base[blockIdx.y];
    const value_row w = value_row_of(a.v, (int)blockIdx.x);
    lane_keys<KEYS> now;
    float *state = settled_row(now, a.v, w, b, a.seq);
    if (w.in)
        store_keys(state, now);
}

/* grid:   256 channels x store
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(CONV_THREADS) settle_conv_kernel(settle_args a)
{
    grid_trigger();
    grid_wait();
    int c = (int)(blockIdx.x * CONV_THREADS + threadIdx.x);
    if (c < a.v.n_channels)
        keep_inputs(a.v, a.base[blockIdx.y], a.seq, dev_mat{}, c);
}

template <int KEYS> static void launch_settle(cudaStream_t s, const settle_args &a)
{
    int blocks = (a.v.dv + BLOCK_ROWS - 1) / BLOCK_ROWS;
    LAUNCH(settle_kernel<KEYS>, dim3((unsigned)(a.v.n_v * blocks), (unsigned)a.n),
           dim3(DELTA_THREADS), 0, s, a);
}

extern "C" void cu_recur_settle(cudaStream_t s, settle_args a)
{
    unsigned blocks = (unsigned)((a.v.n_channels + CONV_THREADS - 1) / CONV_THREADS);
    LAUNCH(settle_conv_kernel, dim3(blocks, (unsigned)a.n), dim3(CONV_THREADS), 0, s, a);
    if (a.v.dk == 16)
        launch_settle<16>(s, a);
    else if (a.v.dk == 32)
        launch_settle<32>(s, a);
    else if (a.v.dk == 64)
        launch_settle<64>(s, a);
    else if (a.v.dk == 128)
        launch_settle<128>(s, a);
    else
        launch_settle<256>(s, a);
}
