/* recur_chain.cu - recurrent layers of prompts: the convolution by runs of rows, the gated delta
 * rule row by row without waiting for a row's output, norm and gate. Chains, heads of 128, four
 * taps; recur.cu has the kernels of any shape. The bits are those of recur.cu.
 *
 *     chain_kernel: a block is (value head, VALUES value rows, sequence); eight lanes to a value
 * row
 *
 *         row t      e = share (v - d); S += e k      d: S k, from the turn before
 *                    o = S q      S *= decay'; d = S k'      of row t + 1: two sums at once
 *
 * A row depends on the one before, so a warp waits for each row's sum over eight lanes. The sums of
 * o and of the next d are made side by side, and rows arrive in shared memory two stages ahead.
 * Blocks are dealt evenly: six on one multiprocessor take three times as long as two.
 */
#include "backend/cuda/recur/launch_recur.h"
#include "backend/cuda/recur/recur.cuh"

enum {
    CHAIN_KEYS = 128,
    CHAIN_STAGE = 16, /* rows */
    CHAIN_STAGES = 3,
    CONV_TAPS = 4,
    CONV_RUN = 16, /* rows of a thread */
    CONV_THREADS = 256
};

/* ---- Convolution --------------------------------------------------------------------------- */

/* The inputs before row r, oldest first. */
DEV void inputs_before_row(float *old, const conv_args &a, int r, int c)
{
    int seq = a.st.row_seq[r];
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
#pragma unroll
    for (int j = 0; j < CONV_TAPS - 1; j++) {
        int from = r - (CONV_TAPS - 1) + j;
        old[j] = from >= s.row0
                     ? a.x.at[from * a.x.stride + c]
                     : input_before(a.v, b, s, s.n_pending + CONV_TAPS - 1 + from - s.row0, c);
    }
}

/* y = silu(conv(x)) of chains.
 * grid:   256 channels x CONV_RUN rows
 * shared: none
 * bound:  reading x, writing y */
__global__ void __launch_bounds__(CONV_THREADS) conv_run_kernel(conv_args a)
{
    grid_trigger();
    grid_wait();
    int c = (int)(blockIdx.x * CONV_THREADS + threadIdx.x), r0 = (int)blockIdx.y * CONV_RUN;
    int n = min((int)CONV_RUN, a.x.rows - r0);
    if (c >= a.v.n_channels)
        return;
    float x[CONV_RUN], old[CONV_TAPS - 1];
#pragma unroll
    for (int i = 0; i < CONV_RUN; i++)
        x[i] = i < n ? a.x.at[(r0 + i) * a.x.stride + c] : 0;
    float4 w = *(const float4 *)(a.taps + (size_t)c * CONV_TAPS);
    inputs_before_row(old, a, r0, c);
    int seq = a.st.row_seq[r0];
#pragma unroll
    for (int i = 0; i < CONV_RUN; i++) {
        if (i >= n)
            break;
        int now = a.st.row_seq[r0 + i];
        if (now != seq)
            inputs_before_row(old, a, r0 + i, c);
        seq = now;
        float sum = mul_rn(w.x, old[0]);
        sum = fma_rn(w.y, old[1], sum);
        sum = fma_rn(w.z, old[2], sum);
        sum = fma_rn(w.w, x[i], sum);
        a.y.at[(r0 + i) * a.y.stride + c] = sum / (1.0f + expf(-sum));
        old[0] = old[1];
        old[1] = old[2];
        old[2] = x[i];
    }
}

extern "C" bool cu_conv_run(cudaStream_t s, const conv_args *a)
{
    if (a->v.n_taps != CONV_TAPS)
        return false;
    const conv_args args = *a; /* the emulator's recordings keep values */
    LAUNCH(conv_run_kernel,
           dim3((unsigned)((a->v.n_channels + CONV_THREADS - 1) / CONV_THREADS),
                (unsigned)((a->x.rows + CONV_RUN - 1) / CONV_RUN)),
           dim3(CONV_THREADS), 0, s, args);
    return true;
}

/* ---- The gated delta rule ------------------------------------------------------------------ */

template <int VALUES> struct chain_stage {
    float k[CHAIN_STAGE][CHAIN_KEYS], q[CHAIN_STAGE][CHAIN_KEYS];
    float v[CHAIN_STAGE][VALUES];
    float gate[CHAIN_STAGE][2];
};

/* Where a block's rows are. */
struct chain_rows {
    const float *k, *q, *gate, *v; /* of row 0 of the pass */
    int64_t v_stride;
};

/* Starts the copies of rows r0 .. of the sequence, and ends their group. */
template <int VALUES>
DEV void fill_stage(chain_stage<VALUES> &to, const chain_rows &from, int r0, int end)
{
    enum { THREADS = 8 * VALUES, PIECES = CHAIN_STAGE * CHAIN_KEYS / 4, WIDE = VALUES / 4 };
    int n = min((int)CHAIN_STAGE, end - r0), t = (int)threadIdx.x;
    const float *k = from.k + (size_t)r0 * CHAIN_KEYS, *q = from.q + (size_t)r0 * CHAIN_KEYS;
    if (n > 0) {
#pragma unroll
        for (int i = t; i < PIECES; i += THREADS)
            if (i < n * (CHAIN_KEYS / 4)) {
                copy16_async(&to.k[0][0] + 4 * i, k + 4 * i, true);
                copy16_async(&to.q[0][0] + 4 * i, q + 4 * i, true);
            }
        if (t < n * WIDE)
            copy16_async(&to.v[0][0] + 4 * t,
                         from.v + (r0 + t / WIDE) * from.v_stride + t % WIDE * 4, true);
        if (t < n)
            copy8_async(to.gate[t], from.gate + (size_t)(r0 + t) * 2);
    }
    copy_commit();
}

/* All rows of a sequence through VALUES value rows of a head.
 * grid:   (value head, VALUES value rows) x sequence
 * shared: CHAIN_STAGES stages of keys, queries, values and gates: 53 KB
 * bound:  4 instructions per element of the state and row, and the wait for a row's sum */
template <int VALUES> __global__ void __launch_bounds__(8 * VALUES) chain_kernel(delta_args a)
{
    typedef lane_keys<CHAIN_KEYS> keys;
    typedef chain_stage<VALUES> stage;
    DYN_SHARED(stage, at);
    enum { PARTS = CHAIN_KEYS / VALUES };
    int seq = (int)blockIdx.y, head = (int)blockIdx.x / PARTS, part = (int)blockIdx.x % PARTS;
    int lane_row = (int)threadIdx.x >> 3;
    const value_row w = {head, head % a.v.n_k, part * VALUES + lane_row, true};
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    int row0 = s.row0, end = row0 + s.n, bank = s.bank;
    bool final = s.final, leader = (threadIdx.x & 7) == 0;
    size_t rows = (size_t)a.c.rows;
    const chain_rows from = {a.k + w.key_head * rows * CHAIN_KEYS,
                             a.q + w.key_head * rows * CHAIN_KEYS, a.gates + head * rows * 2,
                             a.c.at + 2 * a.v.n_k * CHAIN_KEYS + head * CHAIN_KEYS + part * VALUES,
                             a.c.stride};
    keys now, k, next, q;

    grid_trigger();
    float *state = settled_row(now, a.v, w, b, s);
    if (s.n_pending && !final)
        store_keys(state, now);
    grid_wait();
    fill_stage(at[0], from, row0, end);
    fill_stage(at[1], from, row0 + CHAIN_STAGE, end);
    copy_wait<1>();
    __syncthreads();
    load_keys(k, at[0].k[0]);
    fade(now, at[0].gate[0][0]);
    float d = read_state(now, k);
    float *o = a.o.at + row0 * a.o.stride + head * CHAIN_KEYS + w.i;
    float *errors = row_of(a.v, b, !bank, 0).errors + head * CHAIN_KEYS + w.i;
    for (int r0 = row0, turn = 0; r0 < end; r0 += CHAIN_STAGE) {
        const stage &here = at[turn];
        turn = turn == CHAIN_STAGES - 1 ? 0 : turn + 1;
        int n = min((int)CHAIN_STAGE, end - r0);
#pragma unroll 2
        for (int i = 0; i < n; i++) {
            if (i == CHAIN_STAGE - 1) { /* all have left the stage before this one */
                copy_wait<0>();
                __syncthreads();
                fill_stage(at[turn == CHAIN_STAGES - 1 ? 0 : turn + 1], from, r0 + 2 * CHAIN_STAGE,
                           end);
            }
            /* The row after the last one is that row again, with decay 1. */
            bool more = r0 + i + 1 < end, over = i == CHAIN_STAGE - 1;
            const stage &there = more && over ? at[turn] : here;
            int j = !more ? i : over ? 0 : i + 1;
            load_keys(q, here.q[i]); /* on their way while the error is made */
            load_keys(next, there.k[j]);
            float decay = more ? there.gate[j][0] : 1.0f;
            float error = here.gate[i][1] * (here.v[i][lane_row] - d);
            write_error(now, k, error);
            float sum = partial_sum(now, q);
            fade(now, decay);
            d = partial_sum(now, next);
#pragma unroll
            for (int m = 4; m; m >>= 1) {
                sum += shfl_xor_f32(sum, m);
                d += shfl_xor_f32(d, m);
            }
            if (leader) {
                *o = sum;
                if (!final)
                    errors[(size_t)(r0 + i - row0) * a.v.journal_floats] = error;
            }
            o += a.o.stride;
            k = next;
        }
    }
    copy_wait<0>();
    if (final)
        store_keys(state, now);
}

template <int VALUES> static void launch_chain(cudaStream_t s, const delta_args &a)
{
    int blocks = a.v.n_v * (CHAIN_KEYS / VALUES), all = blocks * a.st.n_seqs;
    size_t bytes = CHAIN_STAGES * sizeof(chain_stage<VALUES>);
    int share = (all + cu_gpu.n_sm - 1) / cu_gpu.n_sm;
    size_t one_more = (size_t)(cu_gpu.shared_sm / (share + 1) - (int)BLOCK_RESERVED + 16);
    if (cu_gpu.overlap && one_more > bytes && one_more <= (size_t)cu_gpu.shared_block)
        bytes = one_more; /* no multiprocessor takes more than its share */
    LAUNCH(chain_kernel<VALUES>, dim3((unsigned)blocks, (unsigned)a.st.n_seqs), dim3(8 * VALUES),
           bytes, s, a);
}

extern "C" bool cu_chain_knows(const recur_shape *v)
{
    return v->dk == CHAIN_KEYS && v->dv == CHAIN_KEYS && v->n_taps == CONV_TAPS;
}

extern "C" void cu_delta_chain(cudaStream_t s, delta_args a)
{
    /* Value rows of a multiprocessor, in blocks of 16 and of 32. Blocks of 32 read keys half as
     * often. */
    int all = a.v.n_v * CHAIN_KEYS * a.st.n_seqs, n = cu_gpu.n_sm;
    int by16 = (all / 16 + n - 1) / n * 16, by32 = (all / 32 + n - 1) / n * 32;
    cu_delta_rows(s, a);
    if (by32 <= by16)
        launch_chain<32>(s, a);
    else
        launch_chain<16>(s, a);
}

/* Once per GPU, at open. */
extern "C" int cu_chain_init(void)
{
    return allow_shared(chain_kernel<16>, cu_gpu.shared_block) |
           allow_shared(chain_kernel<32>, cu_gpu.shared_block);
}
