/* recur_unit.cu - a recurrent layer of answers between its products, in one kernel: convolution,
 * gated delta rule, norm of each head, gate, and the int8 copy for the product that follows.
 *
 *     block   a value head of a sequence; its rows, UNIT_ROWS at a time:
 *
 *         x, conv --> q k v of the head   a thread a channel, all rows
 *                      |    norms of q and k   a warp a vector
 *                      v
 *         S (registers) --> o, row by row      8 lanes a value row, two value rows each
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
 */
#include "backend/cuda/recur.cuh"

enum {
    UNIT_KEYS = 128, /* of a key head; values of a value head */
    UNIT_THREADS = 512,
    UNIT_BOUND = 640, /* for at most 96 registers: then it begins beside a block of a product */
    UNIT_TAPS = 4,
    UNIT_ROWS = 8,
    UNIT_HALF = UNIT_KEYS / 2 /* value rows of the first lanes */
};

/* What a block shares of its rows. */
struct unit_rows {
    float c[UNIT_ROWS][3][UNIT_KEYS]; /* q, k, v */
    float o[UNIT_ROWS][UNIT_KEYS];
    float gate[UNIT_ROWS][2];
    int last; /* has every other block of the key head read its channels? */
};

/* A thread's channel of the convolution. */
struct unit_channel {
    int part, at, c; /* 0 queries, 1 keys, 2 values, 3 none; place in the head; channel */
    bool keeps;      /* writes the journal: one block does, of those that share the channel */
    float tap[UNIT_TAPS], old[UNIT_TAPS - 1];
};

DEV unit_channel channel_of(const unit_args &a, const dev_recur_base &b, const dev_recur_seq &s,
                            int head)
{
    unit_channel u;
    int key_head = head % a.v.n_k, keys = a.v.n_k * UNIT_KEYS;
    u.part = (int)threadIdx.x / UNIT_KEYS;
    u.at = (int)threadIdx.x % UNIT_KEYS;
    u.c = u.part < 2 ? u.part * keys + key_head * UNIT_KEYS + u.at
                     : 2 * keys + head * UNIT_KEYS + u.at;
    u.keeps = u.part == 2 || head < a.v.n_k;
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
DEV void convolve(unit_rows *to, unit_channel *u, const unit_args &a, const dev_recur_base &b,
                  const dev_recur_seq &s, int r0, int n)
{
    float first[UNIT_ROWS]; /* all rows are requested before the first is used */
#pragma unroll
    for (int i = 0; i < UNIT_ROWS; i++)
        first[i] = i < n ? a.x.at[(r0 + i) * a.x.stride + u->c] : 0;
#pragma unroll
    for (int i = 0; i < UNIT_ROWS; i++)
        to->c[i][u->part][u->at] = first[i];
#pragma unroll 1
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
DEV void normalise_rows(unit_rows *at, const unit_args &a, const dev_recur_base &b,
                        const dev_recur_seq &s, int r0, int n, int head)
{
    bool keep = !s.final && head < a.v.n_k;
#pragma unroll 1
    for (int i = (int)threadIdx.x >> 5; i < 2 * n; i += UNIT_THREADS / 32) {
        float *x = at->c[i >> 1][i & 1];
        float *copy = keep && (i & 1)
                          ? row_of(a.v, b, !s.bank, r0 + (i >> 1) - s.row0).keys + head * UNIT_KEYS
                          : (float *)0;
        normalise(x, copy, x, UNIT_KEYS, i & 1 ? 1.0f : 1.0f / sqrtf((float)UNIT_KEYS));
    }
}

/* y = silu(z) * norm(o) of row r0 + i, by a warp, and its copy. */
DEV void put_gated(const unit_args &a, const float *o, int r, int head)
{
    int at = 4 * lane_id();
    int64_t from = (int64_t)head * UNIT_KEYS + at;
    float4 z = *(const float4 *)(a.z.at + r * a.z.stride + from);
    float4 w = *(const float4 *)(a.norm + at), v = *(const float4 *)(o + at);
    float sum = fma_rn(v.x, v.x, 0.0f);
    sum = fma_rn(v.y, v.y, sum);
    sum = fma_rn(v.z, v.z, sum);
    sum = fma_rn(v.w, v.w, sum);
    float inv = 1.0f / sqrtf(warp_sum(sum) / (float)UNIT_KEYS + a.eps);
    v.x = z.x / (1.0f + expf(-z.x)) * mul_rn(mul_rn(v.x, inv), w.x);
    v.y = z.y / (1.0f + expf(-z.y)) * mul_rn(mul_rn(v.y, inv), w.y);
    v.z = z.z / (1.0f + expf(-z.z)) * mul_rn(mul_rn(v.z, inv), w.z);
    v.w = z.w / (1.0f + expf(-z.w)) * mul_rn(mul_rn(v.w, inv), w.w);
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
        put_gated(a, a.x.at + r * a.x.stride + head * UNIT_KEYS, r, head);
}

/* Two sums over the eight lanes of a value row; all of them get both. */
DEV void add_lanes(float *sum)
{
#pragma unroll
    for (int m = 4; m; m >>= 1) {
        sum[0] += shfl_xor_f32(sum[0], m);
        sum[1] += shfl_xor_f32(sum[1], m);
    }
}

/* y = silu(z) norm(delta(silu(conv(x)))), and what the pass leaves in the store.
 * grid:   value head x sequence
 * shared: rows of q, k, v and o: 17 KB
 * bound:  the state, read before the wait and written; at one row, latency */
__global__ void __launch_bounds__(UNIT_BOUND, 1) unit_kernel(unit_args a)
{
    typedef lane_keys<UNIT_KEYS> keys;
    __shared__ __align__(16) unit_rows at;
    int head = (int)blockIdx.x, seq = (int)blockIdx.y, key_head = head % a.v.n_k;
    int warp = (int)threadIdx.x >> 5;
    const dev_recur_seq &s = a.st.seq[seq];
    const dev_recur_base b = a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
    int row0 = s.row0, end = row0 + s.n;
    bool final = s.final, moved = s.n_pending || final, leader = (threadIdx.x & 7) == 0;
    value_row w[2];
    keys now[2];
    float *state[2];
    grid_trigger();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        w[i] = (value_row){head, key_head, i * UNIT_HALF + ((int)threadIdx.x >> 3), true};
        state[i] = settled_row(now[i], a.v, w[i], b, s);
        if (s.n_pending && !final)
            store_keys(state[i], now[i]);
    }
    unit_channel u = channel_of(a, b, s, head);
    float kept[UNIT_TAPS - 1] = {u.old[0], u.old[1], u.old[2]};
    grid_wait();
    for (int r0 = row0; r0 < end; r0 += UNIT_ROWS) {
        int n = min((int)UNIT_ROWS, end - r0), i = (int)threadIdx.x - 3 * UNIT_KEYS;
        if (u.part < 3) {
            convolve(&at, &u, a, b, s, r0, n);
        } else if (i < n) {
            int r = r0 + i;
            float decay = decay_of(a.gate_a, a.gate_dt, head, a.a.at[r * a.a.stride + head]);
            at.gate[i][0] = decay;
            at.gate[i][1] = share_of(a.b.at[r * a.b.stride + head]);
            if (!final)
                row_of(a.v, b, !s.bank, r - row0).decays[head] = decay;
        }
        __syncthreads();
        if (r0 == row0 && moved && threadIdx.x == 0) { /* the block has read its channels */
            int *ticket = a.ticket + seq * a.v.n_k + key_head;
            write_fence();
            at.last = atomicAdd(ticket, 1) == a.v.n_v / a.v.n_k - 1;
            if (at.last)
                *ticket = 0;
        }
        normalise_rows(&at, a, b, s, r0, n, head);
        __syncthreads();
#pragma unroll 1
        for (int r = 0; r < n; r++) { /* the sums of both value rows side by side */
            keys k;
            float sum[2], error[2];
            load_keys(k, at.c[r][1]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                fade(now[j], at.gate[r][0]);
                sum[j] = partial_sum(now[j], k);
            }
            add_lanes(sum);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                error[j] = at.gate[r][1] * (at.c[r][2][w[j].i] - sum[j]);
                write_error(now[j], k, error[j]);
            }
            load_keys(k, at.c[r][0]);
#pragma unroll
            for (int j = 0; j < 2; j++)
                sum[j] = partial_sum(now[j], k);
            add_lanes(sum);
            if (!leader)
                continue;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                at.o[r][w[j].i] = sum[j];
                if (!final)
                    row_of(a.v, b, !s.bank, r0 + r - row0).errors[head * UNIT_KEYS + w[j].i] =
                        error[j];
            }
        }
        __syncthreads();
        if (warp < n)
            put_gated(a, at.o[warp], r0 + warp, head);
    }
    if (final) {
#pragma unroll
        for (int i = 0; i < 2; i++)
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
    LAUNCH(unit_kernel, dim3((unsigned)a.v.n_v, (unsigned)a.st.n_seqs), dim3(UNIT_THREADS), 0, s,
           a);
}
