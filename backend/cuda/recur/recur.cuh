/* recur.cuh - what the kernels of recurrent layers share: journals, inputs of the convolution, and
 * a lane's share of the state. recur.cu has the kernels of any shape; recur_unit.cu the one of
 * answers.
 *
 * A row changes S by s = e k + decay s, one rounded product and one fused sum, whether it is
 * computed or applied later from a journal: same bits. The order of every sum depends on dk alone.
 */
#ifndef BACKEND_CUDA_RECUR_CUH
#define BACKEND_CUDA_RECUR_CUH

#include "backend/cuda/recur/launch_recur.h"
#include "backend/cuda/mma.cuh"

/* What a journal holds of a row. */
struct journal_row {
    float *inputs, *keys, *errors, *decays;
};

DEV journal_row row_of(const recur_shape &v, const dev_recur_base &b, int bank, int row)
{
    journal_row r;
    r.inputs = (bank ? b.journal[1] : b.journal[0]) + (size_t)row * v.journal_floats;
    r.keys = r.inputs + v.n_channels;
    r.errors = r.keys + v.n_k * v.dk;
    r.decays = r.errors + v.n_v * v.dv;
    return r;
}

/* Channel c of input i before the pass: conv first, then the pending rows. */
DEV float input_before(const recur_shape &v, const dev_recur_base &b, const dev_recur_seq &s, int i,
                       int c)
{
    int old = v.n_taps - 1;
    return i < old ? b.conv[(size_t)i * v.n_channels + c]
                   : row_of(v, b, s.bank, s.pending[i - old]).inputs[c];
}

/* to = x / sqrt(|x|^2 + 1e-6) * factor, n elements, by a warp; also to `copy`, where there is one.
 */
DEV void normalise(float *to, float *copy, const float *x, int n, float factor)
{
    float sum = 0;
    for (int i = lane_id(); i < n; i += 32)
        sum = fma_rn(x[i], x[i], sum);
    float f = factor / sqrtf(warp_sum(sum) + 1e-6f);
    for (int i = lane_id(); i < n; i += 32) {
        float v = x[i] * f;
        to[i] = v;
        if (copy)
            copy[i] = v;
    }
}

/* What a row does to the state of head j: the decay, and the share of the error that is written. */
DEV float decay_of(const float *gate_a, const float *gate_dt, int j, float a)
{
    float x = a + gate_dt[j];
    return expf(gate_a[j] * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))));
}
DEV float share_of(float b)
{
    return 1.0f / (1.0f + expf(-b));
}

/* A lane's share of a value row: the keys V l + 8 V j + e. */
template <int KEYS> struct lane_keys {
    enum { V = KEYS >= 32 ? 4 : 2, N = KEYS / 8 / V };
    float x[N][V];
};

template <int KEYS> DEV int key_at(int j)
{
    typedef lane_keys<KEYS> L;
    return L::V * (lane_id() & 7) + 8 * L::V * j;
}

/* From memory at a multiple of V floats. */
template <int KEYS> DEV void load_keys(lane_keys<KEYS> &to, const float *from)
{
    typedef lane_keys<KEYS> L;
#pragma unroll
    for (int j = 0; j < L::N; j++) {
        const float *p = from + key_at<KEYS>(j);
        if (L::V == 4) {
            float4 v = *(const float4 *)p;
            to.x[j][0] = v.x, to.x[j][1] = v.y, to.x[j][L::V - 2] = v.z, to.x[j][L::V - 1] = v.w;
        } else {
            float2 v = *(const float2 *)p;
            to.x[j][0] = v.x, to.x[j][1] = v.y;
        }
    }
}

/* From memory anywhere: rows of journals. */
template <int KEYS> DEV void load_journal_keys(lane_keys<KEYS> &to, const float *from)
{
    typedef lane_keys<KEYS> L;
#pragma unroll
    for (int j = 0; j < L::N; j++)
#pragma unroll
        for (int e = 0; e < L::V; e++)
            to.x[j][e] = from[key_at<KEYS>(j) + e];
}

template <int KEYS> DEV void store_keys(float *to, const lane_keys<KEYS> &from)
{
    typedef lane_keys<KEYS> L;
#pragma unroll
    for (int j = 0; j < L::N; j++) {
        float *p = to + key_at<KEYS>(j);
        if (L::V == 4)
            *(float4 *)p =
                make_float4(from.x[j][0], from.x[j][1], from.x[j][L::V - 2], from.x[j][L::V - 1]);
        else
            *(float2 *)p = make_float2(from.x[j][0], from.x[j][1]);
    }
}

template <int KEYS> DEV void fade(lane_keys<KEYS> &s, float decay)
{
    typedef lane_keys<KEYS> L;
#pragma unroll
    for (int j = 0; j < L::N; j++)
#pragma unroll
        for (int e = 0; e < L::V; e++)
            s.x[j][e] = mul_rn(s.x[j][e], decay);
}

template <int KEYS> DEV void write_error(lane_keys<KEYS> &s, const lane_keys<KEYS> &k, float error)
{
    typedef lane_keys<KEYS> L;
#pragma unroll
    for (int j = 0; j < L::N; j++)
#pragma unroll
        for (int e = 0; e < L::V; e++)
            s.x[j][e] = fma_rn(error, k.x[j][e], s.x[j][e]);
}

/* A lane's part of s . k. */
template <int KEYS> DEV float partial_sum(const lane_keys<KEYS> &s, const lane_keys<KEYS> &k)
{
    typedef lane_keys<KEYS> L;
    float sum[L::V];
#pragma unroll
    for (int e = 0; e < L::V; e++)
        sum[e] = mul_rn(s.x[0][e], k.x[0][e]);
#pragma unroll
    for (int j = 1; j < L::N; j++)
#pragma unroll
        for (int e = 0; e < L::V; e++)
            sum[e] = fma_rn(s.x[j][e], k.x[j][e], sum[e]);
    return L::V == 4 ? (sum[0] + sum[1]) + (sum[L::V - 2] + sum[L::V - 1]) : sum[0] + sum[1];
}

/* s . k over the eight lanes of a value row; all of them get it. */
template <int KEYS> DEV float read_state(const lane_keys<KEYS> &s, const lane_keys<KEYS> &k)
{
    return warp_sum(partial_sum(s, k), 4);
}

/* The value row of a lane: row i of the head; past the end of the head `in` is false, and the lane
 * computes a row that is there and writes nothing. */
struct value_row {
    int head, key_head, i;
    bool in;
};

/* A journal's row, applied. Its error may have been written by another lane of this warp. */
template <int KEYS>
DEV void apply_row(lane_keys<KEYS> &s, const recur_shape &v, const value_row &w, journal_row r)
{
    lane_keys<KEYS> k;
    load_journal_keys(k, r.keys + w.key_head * v.dk);
    fade(s, r.decays[w.head]);
    write_error(s, k, load_fresh(r.errors + w.head * v.dv + w.i));
}

/* A value row of the state with the pending rows applied; returns its place in the store. */
template <int KEYS>
DEV float *settled_row(lane_keys<KEYS> &s, const recur_shape &v, const value_row &w,
                       const dev_recur_base &b, const dev_recur_seq &q)
{
    float *state = b.state + ((size_t)w.head * v.dv + w.i) * v.dk;
    load_keys(s, state);
    for (int i = 0; i < q.n_pending; i++)
        apply_row(s, v, w, row_of(v, b, q.bank, q.pending[i]));
    return state;
}

#endif
