/* recur_unit.cu - a recurrent layer of answers between its products, in one kernel: convolution,
 * gated delta rule, norm of each head, gate, and the int8 copy for the product that follows.
 *
 *     block   a value head of a sequence, or, where blocks go in pairs, half of its value rows; its
 *             rows, UNIT_ROWS at a time:
 *
 *         S, pending rows                      the latter through shared memory, before the wait
 *         x, conv --> q k v of the head   a thread a channel, all rows
 *                      |    norms of q and k   a warp a vector
 *                      v
 *         S (registers) --> o, row by row      8 lanes a value row, one or two value rows each
 *                      |    norm, gate, copy   a warp a row
 *                      v
 *         y
 *
 * It computes what conv_kernel, delta_rows_kernel, delta_kernel, rms_norm_kernel and act_mul_kernel
 * compute, with the same bits: heads of 128, four taps, chains. Everything else takes those.
 *
 * State and convolution are read before grid_wait: no other kernel of a pass touches them. Value
 * heads of one key head read the same channels of the convolution. The last of them to have read
 * those channels writes what the pass leaves there (ticket).
 *
 * A row's instructions are what verified rows wait for, so one sequence takes two multiprocessors
 * to a head where the GPU has them: both blocks compute q and k, each has half of the value rows,
 * and they read each other's o for the norm. Rows are shared out between them by their numbers.
 */
#include "backend/cuda/activations.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/recur/launch_recur.h"
#include "backend/cuda/recur/recur.cuh"

enum {
    UNIT_KEYS = 128, /* of a key head; values of a value head */
    UNIT_THREADS = 512,
    UNIT_BOUND = 640, /* for at most 96 registers: then it begins beside a block of a product */
    UNIT_TAPS = 4,
    UNIT_ROWS = 8,
    UNIT_HALF = UNIT_KEYS / 2 /* value rows of the first lanes */
};

/* ---- A block's rows ------------------------------------------------------------------------ */

/* What a block shares of its rows. */
template <int SPLIT> struct unit_rows {
    float c[UNIT_ROWS][3][UNIT_KEYS]; /* q, k, and v from the block's first value row on */
    float o[UNIT_ROWS][UNIT_KEYS / SPLIT];
    float gate[UNIT_ROWS][2];
    int last; /* has every other block of the key head read its channels? */
};

/* What a block computes: value rows first to first + UNIT_KEYS / SPLIT of a head. */
struct unit_place {
    int head, key_head, first;
};

/* A thread's channel of the convolution. */
struct unit_channel {
    int part, at, c; /* 0 queries, 1 keys, 2 values, 3 none; place in the head; channel */
    bool keeps;      /* writes the journal: one block does, of those that share the channel */
    float tap[UNIT_TAPS], old[UNIT_TAPS - 1];
};

template <int SPLIT>
DEV unit_channel channel_of(const unit_args &a, const dev_recur_base &b, const dev_recur_seq &s,
                            const unit_place &p)
{
    unit_channel u;
    int keys = a.v.n_k * UNIT_KEYS;
    u.part = (int)threadIdx.x / UNIT_KEYS;
    u.at = (int)threadIdx.x % UNIT_KEYS;
    u.c = u.part < 2 ? u.part * keys + p.key_head * UNIT_KEYS + u.at
                     : 2 * keys + p.head * UNIT_KEYS + p.first + u.at;
    u.keeps = u.part == 2 || (p.head < a.v.n_k && p.first == 0);
    if (u.part == 2 && u.at >= UNIT_KEYS / SPLIT)
        u.part = 3;
    if (u.part == 3)
        return u;
    float4 w = *(const float4 *)(a.taps + (size_t)u.c * UNIT_TAPS);
    u.tap[0] = w.x, u.tap[1] = w.y, u.tap[2] = w.z, u.tap[3] = w.w;
#pragma unroll
    for (int i = 0; i < UNIT_TAPS - 1; i++)
        u.old[i] = input_before(a.v, b, s, s.n_pending + i, u.c);
    return u;
}

/* Rows r0 to r0 + n of the channel, to shared memory and to the journal; `old` moves on. */
template <int SPLIT>
DEV void convolve(unit_rows<SPLIT> *to, unit_channel *u, const unit_args &a,
                  const dev_recur_base &b, const dev_recur_seq &s, int r0, int n)
{
    float first[UNIT_ROWS]; /* all rows are requested before the first is used */
#pragma unroll
    for (int i = 0; i < UNIT_ROWS; i++)
        first[i] = i < n ? a.x.at[(r0 + i) * a.x.stride + u->c] : 0;
#pragma unroll
    for (int i = 0; i < UNIT_ROWS; i++)
        to->c[i][u->part][u->at] = first[i];
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        float *at = &to->c[i][u->part][u->at], x = *at;
        float sum = mul_rn(u->tap[0], u->old[0]);
        sum = fma_rn(u->tap[1], u->old[1], sum);
        sum = fma_rn(u->tap[2], u->old[2], sum);
        sum = fma_rn(u->tap[3], x, sum);
        *at = sum / (1.0f + expf(-sum));
        if (!s.final && u->keeps)
            row_of(a.v, b, !s.bank, r0 + i - s.row0).inputs[u->c] = x;
        u->old[0] = u->old[1];
        u->old[1] = u->old[2];
        u->old[2] = x;
    }
}

/* Queries and keys of n rows divided by their lengths, a warp each; keys also to the journal. */
template <int SPLIT>
DEV void normalise_rows(unit_rows<SPLIT> *at, const unit_args &a, const dev_recur_base &b,
                        const dev_recur_seq &s, int r0, int n, const unit_place &p)
{
    bool keep = !s.final && p.head < a.v.n_k && p.first == 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x >> 5; i < 2 * n; i += UNIT_THREADS / 32) {
        float *x = at->c[i >> 1][i & 1];
        float *copy = keep && (i & 1) ? row_of(a.v, b, !s.bank, r0 + (i >> 1) - s.row0).keys +
                                            p.head * UNIT_KEYS
                                      : (float *)0;
        normalise(x, copy, x, UNIT_KEYS, i & 1 ? 1.0f : 1.0f / sqrtf((float)UNIT_KEYS));
    }
}

/* The pending rows' keys, errors and decays come to shared memory together, UNIT_ROWS at a time.
 * Read one by one, each would cost the latency of memory. */
template <int SPLIT, int N>
DEV void apply_pending(lane_keys<UNIT_KEYS> (&now)[N], const int (&row)[N], unit_rows<SPLIT> *at,
                       const unit_args &a, const dev_recur_base &b, const dev_recur_seq &s,
                       const unit_place &p)
{
    enum { PER = UNIT_ROWS / 2 }; /* rows of a thread */
    const int t = (int)threadIdx.x, i = t % UNIT_KEYS, r0 = t / UNIT_KEYS % 2 * PER;
    const bool error = t >= 2 * UNIT_KEYS, wanted = !error || i < UNIT_KEYS / SPLIT;
#pragma unroll 1
    for (int done = 0; done < s.n_pending; done += UNIT_ROWS) {
        const int n = min((int)UNIT_ROWS, s.n_pending - done);
        float x[PER], decay = 0;
#pragma unroll
        for (int k = 0; k < PER; k++) {
            x[k] = 0;
            if (wanted && r0 + k < n) {
                journal_row j = row_of(a.v, b, s.bank, s.pending[done + r0 + k]);
                x[k] = error ? j.errors[p.head * UNIT_KEYS + p.first + i]
                             : j.keys[p.key_head * UNIT_KEYS + i];
            }
        }
        if (t < n)
            decay = row_of(a.v, b, s.bank, s.pending[done + t]).decays[p.head];
        __syncthreads(); /* all have applied the rows before */
#pragma unroll
        for (int k = 0; k < PER; k++)
            at->c[r0 + k][error ? 2 : 1][i] = x[k];
        if (t < n)
            at->gate[t][0] = decay;
        __syncthreads();
#pragma unroll 1
        for (int r = 0; r < n; r++) {
            lane_keys<UNIT_KEYS> k;
            load_keys(k, at->c[r][1]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                fade(now[j], at->gate[r][0]);
                write_error(now[j], k, at->c[r][2][row[j]]);
            }
        }
    }
    if (s.n_pending)
        __syncthreads();
}

/* What a lane reads of z and of the norm's weights, before the row's output is known. */
struct gate_of_row {
    float4 z, w;
};
DEV gate_of_row gate_at(const unit_args &a, int r, int head)
{
    int at = 4 * lane_id();
    return (gate_of_row){*(const float4 *)(a.z.at + r * a.z.stride + head * UNIT_KEYS + at),
                         *(const float4 *)(a.norm + at)};
}

/* y = silu(z) * norm(v) of row r, by a warp, and its copy, with the bits of act_mul_kernel. v: a
 * lane's four values of the head. */
DEV void put_gated(const unit_args &a, const gate_of_row &g, float4 v, int r, int head)
{
    const float4 z = g.z, w = g.w;
    int64_t from = (int64_t)head * UNIT_KEYS + 4 * lane_id();
    float sum = fma_rn(v.x, v.x, 0.0f);
    sum = fma_rn(v.y, v.y, sum);
    sum = fma_rn(v.z, v.z, sum);
    sum = fma_rn(v.w, v.w, sum);
    float inv = 1.0f / sqrtf(warp_sum(sum) / (float)UNIT_KEYS + a.eps);
    v.x = gate_of(true, z.x) * mul_rn(mul_rn(v.x, inv), w.x);
    v.y = gate_of(true, z.y) * mul_rn(mul_rn(v.y, inv), w.y);
    v.z = gate_of(true, z.z) * mul_rn(mul_rn(v.z, inv), w.z);
    v.w = gate_of(true, z.w) * mul_rn(mul_rn(v.w, inv), w.w);
    *(float4 *)(a.y.at + r * a.y.stride + from) = v;
    if (a.q.q)
        quantise_four(v, a.q, r, (int)from, true);
    if (a.q.bf)
        *(uint2 *)(a.q.bf + (size_t)r * a.y.cols + from) =
            make_uint2(f32x2_to_bf16(v.x, v.y), f32x2_to_bf16(v.z, v.w));
}

/* The last step alone, of prompts: y = silu(z) * norm(x), x being the rule's output.
 * grid:   8 heads x row, a warp each
 * shared: none
 * bound:  reading x and z, writing y and its copy */
__global__ void __launch_bounds__(256) gated_kernel(unit_args a)
{
    grid_trigger();
    grid_wait();
    int head = (int)(blockIdx.y * 8 + (threadIdx.x >> 5)), r = (int)blockIdx.x;
    if (head < a.v.n_v)
        put_gated(a, gate_at(a, r, head),
                  *(const float4 *)(a.x.at + r * a.x.stride + head * UNIT_KEYS + 4 * lane_id()), r,
                  head);
}

/* Sums over the eight lanes of a value row; all of them get them. */
template <int N> DEV void add_lanes(float (&sum)[N])
{
#pragma unroll
    for (int m = 4; m; m >>= 1)
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] += shfl_xor_f32(sum[j], m);
}

/* A lane's four values of row i of the head, from its own block or from the other one. */
template <int SPLIT> DEV float4 output_of(const unit_rows<SPLIT> *at, int i)
{
    int from = 4 * lane_id();
    if (SPLIT == 1)
        return *(const float4 *)(at->o[i] + from);
    return cluster_four(&at->o[i][from % (UNIT_KEYS / SPLIT)], from / (UNIT_KEYS / SPLIT));
}

/* y = silu(z) norm(delta(silu(conv(x)))), and what the pass leaves in the store.
 * grid:   value head x sequence; SPLIT 2: a pair of blocks to a head
 * shared: rows of q, k, v and o: 17 KB
 * bound:  the state, read before the wait and written; at one row, latency */
template <int SPLIT> __global__ void __launch_bounds__(UNIT_BOUND, 1) unit_kernel(unit_args a)
{
    typedef lane_keys<UNIT_KEYS> keys;
    enum { N = 2 / SPLIT }; /* value rows of a lane */
    __shared__ __align__(16) unit_rows<SPLIT> at;
    int part = (int)blockIdx.x % SPLIT, head = (int)blockIdx.x / SPLIT;
    const unit_place p = {head, head % a.v.n_k, part * (UNIT_KEYS / SPLIT)};
    int warp = (int)threadIdx.x >> 5, seq = (int)blockIdx.y;
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    int row0 = s.row0, end = row0 + s.n;
    bool final = s.final, moved = s.n_pending || final, leader = (threadIdx.x & 7) == 0;
    int w[N]; /* the lane's value rows, from the block's first one on */
    keys now[N];
    float *state[N];
    grid_trigger();
#pragma unroll
    for (int i = 0; i < N; i++) {
        w[i] = i * UNIT_HALF + ((int)threadIdx.x >> 3);
        state[i] = b.state + ((size_t)head * UNIT_KEYS + p.first + w[i]) * UNIT_KEYS;
        load_keys(now[i], state[i]);
    }
    unit_channel u = channel_of<SPLIT>(a, b, s, p);
    float kept[UNIT_TAPS - 1] = {u.old[0], u.old[1], u.old[2]};
    apply_pending<SPLIT>(now, w, &at, a, b, s, p);
    if (s.n_pending && !final)
#pragma unroll
        for (int i = 0; i < N; i++)
            store_keys(state[i], now[i]);
    grid_wait();
    for (int r0 = row0; r0 < end; r0 += UNIT_ROWS) {
        int n = min((int)UNIT_ROWS, end - r0), i = (int)threadIdx.x - 3 * UNIT_KEYS;
        int mine = warp * SPLIT + part; /* the row that the warp norms */
        gate_of_row g = {};
        if (mine < n)
            g = gate_at(a, r0 + mine, head);
        if (u.part < 3) {
            convolve(&at, &u, a, b, s, r0, n);
        } else if (i >= 0 && i < n) {
            int r = r0 + i;
            float decay = decay_of(a.gate_a, a.gate_dt, head, a.a.at[r * a.a.stride + head]);
            at.gate[i][0] = decay;
            at.gate[i][1] = share_of(a.b.at[r * a.b.stride + head]);
            if (!final && part == 0)
                row_of(a.v, b, !s.bank, r - row0).decays[head] = decay;
        }
        __syncthreads();
        normalise_rows(&at, a, b, s, r0, n, p);
        __syncthreads();
#pragma unroll 1
        for (int r = 0; r < n; r++) { /* the sums of the value rows side by side */
            keys k;
            float sum[N], error[N];
            load_keys(k, at.c[r][1]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                fade(now[j], at.gate[r][0]);
                sum[j] = partial_sum(now[j], k);
            }
            add_lanes(sum);
#pragma unroll
            for (int j = 0; j < N; j++) {
                error[j] = at.gate[r][1] * (at.c[r][2][w[j]] - sum[j]);
                write_error(now[j], k, error[j]);
            }
            load_keys(k, at.c[r][0]);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] = partial_sum(now[j], k);
            add_lanes(sum);
            if (!leader)
                continue;
#pragma unroll
            for (int j = 0; j < N; j++) {
                at.o[r][w[j]] = sum[j];
                if (!final)
                    row_of(a.v, b, !s.bank, r0 + r - row0)
                        .errors[head * UNIT_KEYS + p.first + w[j]] = error[j];
            }
        }
        if (SPLIT == 1)
            __syncthreads();
        else
            cluster_sync();
        /* The block has read its channels. A warp that has no row of the gate asks. */
        if (moved && r0 + UNIT_ROWS >= end && threadIdx.x == UNIT_THREADS - 1) {
            int *ticket = a.ticket + seq * a.v.n_k + p.key_head;
            write_fence();
            at.last = atomicAdd(ticket, 1) == a.v.n_v / a.v.n_k * SPLIT - 1;
            if (at.last)
                *ticket = 0;
        }
        if (mine < n)
            put_gated(a, g, output_of(&at, mine), r0 + mine, head);
        if (SPLIT > 1)
            cluster_sync(); /* the other block has read its outputs */
        else if (moved && r0 + UNIT_ROWS >= end)
            __syncthreads(); /* for at.last */
    }
    if (final) {
#pragma unroll
        for (int i = 0; i < N; i++)
            store_keys(state[i], now[i]);
#pragma unroll
        for (int i = 0; i < UNIT_TAPS - 1; i++)
            kept[i] = u.old[i];
    }
    if (!moved || u.part == 3 || (u.part < 2 && !at.last))
        return;
#pragma unroll
    for (int i = 0; i < UNIT_TAPS - 1; i++)
        b.conv[(size_t)i * a.v.n_channels + u.c] = kept[i];
}

extern "C" bool cu_unit_knows(const recur_shape *v)
{
    return v->dk == UNIT_KEYS && v->dv == UNIT_KEYS && v->n_taps == UNIT_TAPS &&
           v->n_k <= RECUR_KEY_HEADS;
}

extern "C" void cu_gated(cudaStream_t s, unit_args a)
{
    LAUNCH(gated_kernel, dim3((unsigned)a.x.rows, (unsigned)(a.v.n_v + 7) / 8), dim3(256), 0, s, a);
}

extern "C" void cu_unit(cudaStream_t s, unit_args a)
{
    dim3 block(UNIT_THREADS), one((unsigned)a.v.n_v, (unsigned)a.st.n_seqs);
    dim3 two((unsigned)a.v.n_v * 2, (unsigned)a.st.n_seqs);
    if (has_clusters() && 2 * a.v.n_v * a.st.n_seqs <= cu_gpu.n_sm)
        launch_cluster(unit_kernel<2>, two, block, 0, 2, s, a);
    else
        LAUNCH(unit_kernel<1>, one, block, 0, s, a);
}
