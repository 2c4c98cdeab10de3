/* norm.cu - RMS norms of whole rows and of heads, fused with the small ops around them.
 *
 *     rms_norm_kernel   a row or head; its int8 or bf16 copy for the next product
 *     residual_kernel   x += norm(y) w; x *= c; h = norm(x) w' with its copy
 *     branches_kernel   the same with two branches in y, or several h
 *     heads_kernel      heads: norm, rotation, store; several jobs in one launch
 *
 * A block holds a vector in registers, 8 values a thread, and reads it once. The sum of squares is
 * taken in f32 by a fixed tree, so it does not depend on other rows. Of few rows that are not too
 * long a thread has 4 values: what such a kernel takes is the way of one warp through its code.
 *
 * At one row a kernel runs every instruction once, and fetching the instructions is most of its
 * time. So loops are hardly unrolled. While a kernel waits for its predecessor, it runs once on
 * dummy input, to warm the instruction cache: in `for (int go = REHEARSES ? 0 : 1; ..)` go 0 is
 * that rehearsal, and go 1 begins with grid_wait. It loses where the multiprocessor has other work,
 * as beside attention. Kernels without it need fewer registers: they serve many rows, whose blocks
 * do not fit all at once, and GPUs on which kernels do not overlap.
 */
#include "backend/cuda/activations.cuh"
#include "backend/cuda/attend/key_walk.cuh"
#include "backend/cuda/attend/kv_formats.cuh"
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/launch_small.h"

enum { PER = 8, WIDEST = 8192 }; /* values a thread, twice four; the most of a block */

static bool rehearses(int32_t rows)
{
    return cu_gpu.overlap && rows <= REHEARSED_ROWS;
}

/* Sum over the block; every thread gets it. table: 32 floats, not used again. */
DEV float vector_sum(float v, float *table)
{
    int n_warps = (int)(blockDim.x >> 5);
    v = warp_sum(v);
    if (n_warps == 1)
        return v;
    if (lane_id() == 0)
        table[threadIdx.x >> 5] = v;
    __syncthreads();
    return warp_sum(lane_id() < n_warps ? table[lane_id()] : 0);
}

DEV float inverse(float sum, int n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* A thread's values: elements 4t.. and, of two fours, 4(t + blockDim)... Lengths are multiples of
 * 4. With one four the block has twice as many threads. */
template <int F> struct fours {
    float4 v[F];
};
typedef fours<2> eight;

DEV int place(int k)
{
    return 4 * ((int)threadIdx.x + k * (int)blockDim.x);
}
/* beyond: the value of elements past the end. */
template <int F = 2> DEV fours<F> take_row(const float *from, int n, float beyond = 0)
{
    fours<F> e;
#pragma unroll
    for (int k = 0; k < F; k++)
        e.v[k] = place(k) < n ? *(const float4 *)(from + place(k))
                              : make_float4(beyond, beyond, beyond, beyond);
    return e;
}
/* Weights of a norm, requested before the values are known; ones without weights. */
template <int F = 2> DEV fours<F> take_weight(const float *w, int n)
{
    fours<F> e;
#pragma unroll
    for (int k = 0; k < F; k++)
        e.v[k] = w && place(k) < n ? *(const float4 *)(w + place(k)) : make_float4(1, 1, 1, 1);
    return e;
}
template <int F> DEV float squares(const fours<F> &e, float sum = 0)
{
#pragma unroll
    for (int k = 0; k < F; k++) {
        sum = fma_rn(e.v[k].x, e.v[k].x, sum);
        sum = fma_rn(e.v[k].y, e.v[k].y, sum);
        sum = fma_rn(e.v[k].z, e.v[k].z, sum);
        sum = fma_rn(e.v[k].w, e.v[k].w, sum);
    }
    return sum;
}
/* The sum of a row's squares. Of one four a thread, the upper half of the block goes on from the
 * sums of the lower half: the same tree. carry: a float for each thread of the lower half. */
DEV float row_squares(const fours<2> &e, float *table, float *)
{
    return vector_sum(squares(e), table);
}
DEV float row_squares(const fours<1> &e, float *table, float *carry)
{
    const int half = (int)(blockDim.x >> 1), t = (int)threadIdx.x - half;
    if (t < 0)
        carry[threadIdx.x] = squares(e);
    __syncthreads();
    if (t >= 0) {
        const float sum = warp_sum(squares(e, carry[t]));
        if (lane_id() == 0)
            table[t >> 5] = sum;
    }
    __syncthreads();
    return warp_sum(lane_id() < half >> 5 ? table[lane_id()] : 0);
}
template <int F> DEV void row_times(fours<F> *e, float inv, const fours<F> &w)
{
#pragma unroll
    for (int k = 0; k < F; k++) {
        e->v[k].x = mul_rn(mul_rn(e->v[k].x, inv), w.v[k].x);
        e->v[k].y = mul_rn(mul_rn(e->v[k].y, inv), w.v[k].y);
        e->v[k].z = mul_rn(mul_rn(e->v[k].z, inv), w.v[k].z);
        e->v[k].w = mul_rn(mul_rn(e->v[k].w, inv), w.v[k].w);
    }
}
/* Its two steps. */
template <int F> DEV void times_all(fours<F> *e, float c)
{
#pragma unroll
    for (int k = 0; k < F; k++)
        e->v[k] = make_float4(e->v[k].x * c, e->v[k].y * c, e->v[k].z * c, e->v[k].w * c);
}
template <int F> DEV void times_each(fours<F> *e, const fours<F> &w)
{
#pragma unroll
    for (int k = 0; k < F; k++)
        e->v[k] = make_float4(mul_rn(e->v[k].x, w.v[k].x), mul_rn(e->v[k].y, w.v[k].y),
                              mul_rn(e->v[k].z, w.v[k].z), mul_rn(e->v[k].w, w.v[k].w));
}
/* Writes row r: to `to`, and to the copy q. */
template <int F> DEV void put_row(float *to, const fours<F> &e, int n, const dev_quant &q, int r)
{
#pragma unroll
    for (int k = 0; k < F; k++) {
        int i = place(k);
        bool in = i < n;
        float4 v = e.v[k];
        if (in)
            *(float4 *)(to + i) = v;
        if (q.q)
            quantise_four(v, q, r, in ? i : 0, in);
        if (q.bf && in)
            *(uint2 *)(q.bf + (size_t)r * n + i) =
                make_uint2(f32x2_to_bf16(v.x, v.y), f32x2_to_bf16(v.z, v.w));
    }
}

/* y = x * (mean(x^2) + eps)^-1/2 * w
 * grid:   one block per vector: rows x heads
 * shared: one float per warp
 * bound:  latency at few rows, bandwidth at many */
__global__ void __launch_bounds__(1024)
    rms_norm_kernel(dev_mat y, dev_mat x, int n, const float *w, float eps, dev_quant q)
{
    __shared__ float table[32];
    int h = (int)blockIdx.y, r = (int)blockIdx.x;
    grid_trigger();
    eight weight = take_weight(w, n);
    grid_wait();
    eight v = take_row(x.at + r * x.stride + (int64_t)h * n, n);
    row_times(&v, inverse(vector_sum(squares(v), table), n, eps), weight);
    put_row(y.at + r * y.stride + (int64_t)h * n, v, n, q, r);
}

/* The same for rows of any length, read twice. */
__global__ void __launch_bounds__(1024)
    rms_norm_long_kernel(dev_mat y, dev_mat x, int n, const float *w, float eps, bool residual,
                         dev_quant q)
{
    __shared__ float table[32];
    int h = (int)blockIdx.y, r = (int)blockIdx.x, step = (int)blockDim.x;
    grid_trigger();
    grid_wait();
    const float *from = x.at + r * x.stride + (int64_t)h * n;
    float *to = y.at + r * y.stride + (int64_t)h * n;
    float sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += step)
        sum = fma_rn(from[i], from[i], sum);
    float inv = inverse(vector_sum(sum, table), n, eps);
    for (int i = (int)threadIdx.x; (i & ~31) < n; i += step) {
        float u = 0;
        if (i < n) {
            u = mul_rn(from[i], inv);
            if (w)
                u = mul_rn(u, w[i]);
            to[i] = u = residual ? to[i] + u : u;
        }
        if (q.q)
            quantise_warp(u, q, r, i >> 5);
        if (q.bf && i < n)
            q.bf[(size_t)r * n + i] = (uint16_t)f32_to_bf16(u);
    }
}

template <int F> DEV fours<F> sum_of(const fours<F> &a, const fours<F> &b)
{
    fours<F> e;
#pragma unroll
    for (int k = 0; k < F; k++)
        e.v[k] = make_float4(a.v[k].x + b.v[k].x, a.v[k].y + b.v[k].y, a.v[k].z + b.v[k].z,
                             a.v[k].w + b.v[k].w);
    return e;
}

/* The sum of k vectors of n, in ascending order. */
template <int F> DEV fours<F> sum_of_parts(const float *parts, int k, int n)
{
    fours<F> e = {};
#pragma unroll 4
    for (int j = 0; j < k; j++)
        e = sum_of(e, take_row<F>(parts + (size_t)j * n, n));
    return e;
}

/* A block has 48 KiB of shared memory without asking for more. Three weights of such a row, the
 * tables and the carried sums take all of it. */
enum { BRANCHES_WIDEST = 480 * PER };
static_assert((3 * BRANCHES_WIDEST + 2 * 128 + 512) * sizeof(float) <= 48 << 10, "shared memory");

/* residual_kernel with two branches, each normed first, or with several norms of x:
 * y = rms_norm(y) yw + rms_norm(b) bw; x = (x + rms_norm(y) w) cw[0]; h = rms_norm(x) hw c
 * Without y: h alone. A kernel of its own, so that residual_kernel's code stays short.
 * grid:   a block per row
 * shared: one float per warp, eight times; as in residual_kernel; the weights of the norms of x
 * bound:  latency at few rows, bandwidth at many */
template <bool REHEARSES, int F>
__global__ void __launch_bounds__(1024 / F) branches_kernel(residual_args a)
{
    DYN_SHARED(float, hw); /* [n_h][n]; registers would need a copy of the code for each h */
    __shared__ float table[2][128], carry[F == 1 ? 512 : 1];
    int n = a.x.cols, r = (int)blockIdx.x;
    grid_trigger();
    fours<F> yw = take_weight<F>(a.yw, n), bw = take_weight<F>(a.bw, n), w = take_weight<F>(a.w, n);
#pragma unroll 1
    for (int j = 0; j < a.n_h; j++) {
        fours<F> h = take_weight<F>(a.h[j].w, n);
#pragma unroll
        for (int k = 0; k < F; k++)
            if (place(k) < n)
                *(float4 *)(hw + j * n + place(k)) = h.v[k]; /* read back by the same thread */
    }
    float c = a.cw ? a.cw[0] : 1;
#pragma unroll 1
    for (int go = REHEARSES ? 0 : 1; go < 2; go++) {
        if (go)
            grid_wait();
        int there = go ? n : 0;
        float beyond = go ? 0.0f : 1.0f, *sums = table[go];
        fours<F> x = take_row<F>(a.x.at + r * a.x.stride, there, beyond);
        if (a.y.at) {
            fours<F> y = take_row<F>(a.y.at + r * a.y.stride, there, beyond);
            if (a.b.at) {
                fours<F> b;
                if (!REHEARSES && a.parts) /* few rows are short of instructions, see above */
                    b = sum_of_parts<F>(a.parts + (size_t)r * a.k * n, a.k, n);
                else
                    b = take_row<F>(a.b.at + r * a.b.stride, there, beyond);
                float inv = inverse(row_squares(y, sums, carry), n, a.eps);
                row_times(&b, inverse(row_squares(b, sums + 32, carry), n, a.eps), bw);
                row_times(&y, inv, yw);
                y = sum_of(y, b);
            }
            row_times(&y, inverse(row_squares(y, sums + 64, carry), n, a.eps), w);
            x = sum_of(x, y);
            if (a.cw)
                times_all(&x, c);
#pragma unroll
            for (int k = 0; k < F; k++)
                if (place(k) < there)
                    *(float4 *)(a.x.at + r * a.x.stride + place(k)) = x.v[k];
        }
        if (!a.n_h)
            continue;
        float inv = inverse(row_squares(x, sums + 96, carry), n, a.eps);
#pragma unroll 1
        for (int j = 0; j < (go ? a.n_h : 1); j++) {
            fours<F> h = x;
            row_times(&h, inv, take_row<F>(hw + j * n, n));
            times_all(&h, a.h[j].c); /* times 1 changes nothing */
            put_row(a.h[j].y.at + r * a.h[j].y.stride, h, there, a.h[j].q, r);
        }
    }
}

/* x = (x + rms_norm(y) * w) * cw[0], or, PLAIN, (x + y) * cw[0]; then h = rms_norm(x) * hw and its
 * copy, or, without h, the copy of x.
 * grid:   a block per row
 * shared: one float per warp, four times; with one four a thread, one for each thread of a half
 * bound:  latency at few rows, bandwidth at many */
template <bool REHEARSES, bool PLAIN, int F>
__global__ void __launch_bounds__(1024) residual_kernel(residual_args a)
{
    __shared__ float table[2][64], carry[F == 1 ? 512 : 1];
    int n = a.x.cols, r = (int)blockIdx.x;
    grid_trigger();
    fours<F> w = take_weight<F>(PLAIN ? NULL : a.w, n), hw = take_weight<F>(a.h[0].w, n);
    float c = a.cw ? a.cw[0] : 1;
#pragma unroll 1
    for (int go = REHEARSES ? 0 : 1; go < 2; go++) {
        if (go)
            grid_wait();
        int there = go ? n : 0;
        float beyond = go ? 0.0f : 1.0f;
        fours<F> v = take_row<F>(a.y.at + r * a.y.stride, there, beyond);
        fours<F> x = take_row<F>(a.x.at + r * a.x.stride, there, beyond);
        if (!PLAIN)
            row_times(&v, inverse(row_squares(v, table[go], carry), n, a.eps), w);
        x = sum_of(x, v);
        if (a.cw)
            times_all(&x, c);
#pragma unroll
        for (int k = 0; k < F; k++)
            if (place(k) < there)
                *(float4 *)(a.x.at + r * a.x.stride + place(k)) = x.v[k];
        if (a.n_h) {
            row_times(&x, inverse(row_squares(x, table[go] + 32, carry), n, a.eps), hw);
            put_row(a.h[0].y.at + r * a.h[0].y.stride, x, there, a.h[0].q, r);
        } else if (a.q.q || a.q.bf) {
            put_row(a.x.at + r * a.x.stride, x, there, a.q, r);
        }
    }
}

/* What a thread turns: its values v[0] with v[1], or v[0] with those of the lane `apart` lanes on,
 * low half first. In heads that turn in part most frequencies are 0, and need no sine. */
struct turns {
    float f[4], sn[4], cs[4];
    int apart; /* 0: both halves are the thread's own */
};
/* Does a thread have both halves of each pair of a head of n? */
static __host__ __device__ bool turns_whole(const head_job &j, int n)
{
    return n >= 256 && 2 * j.n_pairs == n;
}
DEV turns no_turns()
{
    turns t = {};
    return t;
}
template <bool WHOLE> DEV turns turns_at(const head_job &j, int n, int r, int pos)
{
    turns t = no_turns();
    int i = place(0);
    t.apart = WHOLE || turns_whole(j, n) ? 0 : j.n_pairs / 4;
    if (t.apart && i >= 2 * j.n_pairs)
        return t;
    bool low = !t.apart || i < j.n_pairs;
    float4 f = *(const float4 *)(j.inv_freq + (low ? i : i - j.n_pairs));
    t.f[0] = f.x, t.f[1] = f.y, t.f[2] = f.z, t.f[3] = f.w;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (!WHOLE && j.axis)
            pos = j.axis[woven_axis(j.section, (low ? i : i - j.n_pairs) + k) * j.axis_step + r];
        if (t.f[k] != 0)
            turn_of(pos, t.f[k], &t.sn[k], &t.cs[k]);
    }
    if (t.apart) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            t.cs[k] = (t.f[k] != 0 ? t.cs[k] : 1) * j.factor;
            t.sn[k] *= low ? -j.factor : j.factor;
            t.f[k] = 1;
        }
    }
    return t;
}
DEV void turn(eight *e, const turns &t)
{
    float *p[4] = {&e->v[0].x, &e->v[0].y, &e->v[0].z, &e->v[0].w};
    float *q[4] = {&e->v[1].x, &e->v[1].y, &e->v[1].z, &e->v[1].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (t.apart) {
            float other = shfl_xor_f32(*p[i], t.apart);
            if (t.f[i] != 0)
                *p[i] = fma_rn(*p[i], t.cs[i], mul_rn(other, t.sn[i]));
            continue;
        }
        float u = *p[i], v = *q[i];
        if (t.f[i] == 0)
            continue;
        *p[i] = u * t.cs[i] - v * t.sn[i];
        *q[i] = u * t.sn[i] + v * t.cs[i];
    }
}

struct head_jobs {
    head_job at[HEAD_JOBS];
    int n; /* the size of a head */
};

/* Stores a thread's share of a head as keys or values. */
template <int KIND>
DEV void store_share(uint8_t *row, const eight &v, bool keys, const dev_kv &kv, int parts, bool in)
{
    int kind = keys ? kv.k_kind : kv.v_kind;
    bool rot = keys ? kv.k_rot : kv.v_rot;
    if (KIND != KV_F16) {
#pragma unroll 1
        for (int k = 0; k < parts; k++)
            kv_encode(row, KIND == KV_KINDS ? kind : KIND, rot, place(k), k ? v.v[1] : v.v[0], in);
    } else if (in) {
        kv_put_floats(row, kind, place(0), v.v[0]);
        if (parts > 1)
            kv_put_floats(row, kind, place(1), v.v[1]);
    }
}
DEV void leave_head(float *to, const eight &v, int parts)
{
    *(float4 *)(to + place(0)) = v.v[0];
    if (parts > 1)
        *(float4 *)(to + place(1)) = v.v[1];
}

/* Heads: norm, rotation and store, each as the job says. A thread of a head of 256 and more holds
 * both halves of its pairs; a head of 128 is a warp, four values a lane. KIND: the format of keys
 * and values; KV_F16 stands for all formats without blocks, KV_KINDS for a mixture. WHOLE: threads
 * have both halves of all pairs. One kernel per format and WHOLE, so that none fetches the code of
 * another, nor, of few rows, that of a second head. Of many rows a warp makes several heads of one
 * row, whose sines it takes once.
 * grid:   row x heads x job; as many threads as a head's values need, or twice as many where a job
 *         has bare rows, which the second half makes; times the heads that a block makes at once
 * shared: one float per warp, four times
 * bound:  latency; of many rows, bandwidth */
template <int KIND, bool REHEARSES, bool WHOLE>
__global__ void __launch_bounds__(512) heads_kernel(head_jobs jobs, dev_kv kv, dev_step st)
{
    constexpr bool ONE = WHOLE && REHEARSES; /* heads: the grid has a block for each */
    __shared__ float table[2][2][32];
    head_job j = blockIdx.z == 0 ? jobs.at[0] : blockIdx.z == 1 ? jobs.at[1] : jobs.at[2];
    int h = (int)(blockIdx.y * blockDim.z + threadIdx.z), step = (int)(gridDim.y * blockDim.z);
    int r = (int)blockIdx.x, n = jobs.n, parts = !WHOLE && n < 256 ? 1 : 2;
    bool second = threadIdx.y > 0;
    int what = second ? j.store & 2 : j.bare.at ? j.store & 1 : j.store; /* to store: 1 keys */
    grid_trigger();
    if (r >= j.y.rows || h >= j.heads || (second && !j.bare.at))
        return; /* other blocks of the grid wait, as grid_wait demands */
    /* These do not depend on earlier kernels: the step was uploaded before the pass. */
    eight w = take_weight(j.w, n);
    turns t = no_turns();
    if (j.inv_freq)
        t = turns_at<WHOLE>(j, n, r, st.rows.pos[r]);
    uint8_t *row = what ? stored_row(kv, st, r, h, what == 1) : NULL;
#pragma unroll 1
    for (int go = REHEARSES ? 0 : 1; ONE || h < j.heads; go++) {
        if (go == 1)
            grid_wait();
        if (!ONE && go > 1 && what)
            row = stored_row(kv, st, r, h, what == 1);
        eight v = take_row(j.x.at + r * j.x.stride + (int64_t)h * j.x_head, go ? n : 0,
                           go ? 0.0f : 1.0f);
        if (j.bare.at)
            __syncthreads(); /* keys may overwrite the rows */
        if (j.norm)
            times_all(&v, inverse(vector_sum(squares(v), table[go > 0][threadIdx.y]), n, j.eps));
        if (second) {
            if (go)
                leave_head(j.bare.at + r * j.bare.stride + (int64_t)h * n, v, parts);
        } else {
            if (j.w)
                times_each(&v, w);
            if (j.inv_freq)
                turn(&v, t);
            if (j.norm && go)
                leave_head(j.y.at + r * j.y.stride + (int64_t)h * n, v, parts);
        }
        if (KIND != KV_F16 && j.rotated && !second) {
            float *turned = j.rotated + ((int64_t)r * j.heads + h) * n;
#pragma unroll 1
            for (int k = 0; k < parts; k++) {
                float4 u = rotate_four(k ? v.v[1] : v.v[0], false);
                if (go)
                    *(float4 *)(turned + place(k)) = u;
            }
        }
        if (what)
            store_share<KIND>(row, v, what == 1, kv, parts, go);
        if (ONE && go)
            break;
        h += go ? step : 0;
    }
}

static unsigned threads_for(int n)
{
    return ((unsigned)(n + PER - 1) / PER + 31) & ~31u;
}

static void long_norm(cudaStream_t s, dev_mat y, dev_mat x, int32_t heads, const float *w,
                      float eps, bool residual, dev_quant q)
{
    LAUNCH(rms_norm_long_kernel, dim3((unsigned)x.rows, (unsigned)heads), dim3(1024), 0, s, y, x,
           x.cols / heads, w, eps, residual, q);
}

extern "C" void cu_rms_norm(cudaStream_t s, dev_mat y, dev_mat x, int32_t heads, const float *w,
                            float eps, dev_quant q)
{
    int n = x.cols / heads;
    if (n > WIDEST || n % 4 || x.stride % 4 || y.stride % 4)
        long_norm(s, y, x, heads, w, eps, false, q);
    else
        LAUNCH(rms_norm_kernel, dim3((unsigned)x.rows, (unsigned)heads), dim3(threads_for(n)), 0, s,
               y, x, n, w, eps, q);
}

static bool by_fours(dev_mat m)
{
    return m.stride % 4 == 0;
}

/* Are all of its vectors aligned for loads of four floats? */
static bool in_fours(const residual_args &a)
{
    bool ok = a.x.cols % 4 == 0 && by_fours(a.x) && by_fours(a.y) && by_fours(a.b);
    for (int i = 0; i < a.n_h; i++)
        ok = ok && by_fours(a.h[i].y);
    return ok;
}

/* Rows of which a thread has one four. */
static bool by_one(const residual_args &a)
{
    return rehearses(a.x.rows) && 2 * threads_for(a.x.cols) <= 1024;
}

static void branches(cudaStream_t s, residual_args a)
{
    const dim3 rows((unsigned)a.x.rows);
    const unsigned threads = threads_for(a.x.cols);
    const size_t bytes = (size_t)(a.n_h * a.x.cols) * sizeof(float);
    if (by_one(a))
        LAUNCH((branches_kernel<true, 1>), rows, dim3(2 * threads), bytes, s, a);
    else
        LAUNCH((rehearses(a.x.rows) ? branches_kernel<true, 2> : branches_kernel<false, 2>), rows,
               dim3(threads), bytes, s, a);
}

template <bool PLAIN> static void residuals(cudaStream_t s, const residual_args &a)
{
    const dim3 rows((unsigned)a.x.rows);
    const unsigned threads = threads_for(a.x.cols);
    if (by_one(a))
        LAUNCH((residual_kernel<true, PLAIN, 1>), rows, dim3(2 * threads), 0, s, a);
    else
        LAUNCH((rehearses(a.x.rows) ? residual_kernel<true, PLAIN, 2>
                                    : residual_kernel<false, PLAIN, 2>),
               rows, dim3(threads), 0, s, a);
}

/* Of x as it is; y and b are none. */
static void norms(cudaStream_t s, const residual_args &a)
{
    if (a.n_h > 1 && a.x.cols <= BRANCHES_WIDEST && in_fours(a)) {
        branches(s, a);
        return;
    }
    for (int i = 0; i < a.n_h; i++) {
        const norm_job &job = a.h[i];
        bool scaled = job.c != 1.0f; /* the copy must have the scaled values */
        dev_quant none = {};
        cu_rms_norm(s, job.y, a.x, 1, job.w, a.eps, scaled ? none : job.q);
        if (!scaled)
            continue;
        cu_scale(s, job.y, job.c, NULL);
        if (job.q.q || job.q.bf)
            cu_quantise(s, job.y, job.q);
    }
}

extern "C" void cu_residual(cudaStream_t s, residual_args a)
{
    dev_quant none = {};
    if (!a.y.at) {
        norms(s, a);
        return;
    }
    bool more = a.b.at || a.n_h > 1 || (a.n_h && a.h[0].c != 1.0f);
    if (!more && a.x.cols <= WIDEST && in_fours(a)) {
        a.plain ? residuals<true>(s, a) : residuals<false>(s, a);
        return;
    }
    if (!a.plain && a.x.cols <= BRANCHES_WIDEST && in_fours(a)) {
        branches(s, a);
        if (!a.n_h && (a.q.q || a.q.bf))
            cu_quantise(s, a.x, a.q);
        return;
    }
    if (a.parts)
        cu_expert_join(s, a.b, a.parts, NULL, a.k, NULL, expert_range());
    if (a.b.at) {
        cu_rms_norm(s, a.y, a.y, 1, a.yw, a.eps, none);
        cu_rms_norm(s, a.b, a.b, 1, a.bw, a.eps, none);
        cu_add(s, a.y, a.y, a.b);
    }
    if (a.plain)
        cu_add(s, a.x, a.x, a.y);
    else
        long_norm(s, a.x, a.y, 1, a.w, a.eps, true, none);
    if (a.cw)
        cu_scale(s, a.x, 1, a.cw);
    if (!a.n_h && (a.q.q || a.q.bf))
        cu_quantise(s, a.x, a.q);
    a.y.at = a.b.at = NULL;
    norms(s, a);
}

template <int KIND>
static void heads(cudaStream_t s, dim3 grid, dim3 block, const head_jobs &jobs, const dev_kv &kv,
                  const dev_step &st)
{
    bool rehearsed = rehearses((int32_t)grid.x), whole = true;
    for (int i = 0; i < (int)grid.z; i++)
        whole = whole && (jobs.at[i].inv_freq ? turns_whole(jobs.at[i], jobs.n) : jobs.n >= 256);
    if (whole)
        LAUNCH((rehearsed ? heads_kernel<KIND, true, true> : heads_kernel<KIND, false, true>), grid,
               block, 0, s, jobs, kv, st);
    else
        LAUNCH((rehearsed ? heads_kernel<KIND, true, false> : heads_kernel<KIND, false, false>),
               grid, block, 0, s, jobs, kv, st);
}

extern "C" void cu_heads(cudaStream_t s, const head_job *job, int n, dev_kv kv, dev_step st)
{
    enum { MANY_ROWS = 64, HEADS_AT_ONCE = 4 };
    head_jobs jobs = {};
    int most = 0, rows = 0;
    bool rotated = false, both = false;
    for (int i = 0; i < n; i++) {
        rotated = rotated || job[i].rotated;
        both = both || job[i].bare.at;
        jobs.at[i] = job[i];
        most = job[i].heads > most ? job[i].heads : most;
        rows = job[i].y.rows > rows ? job[i].y.rows : rows;
    }
    jobs.n = job[0].y.cols / job[0].heads;
    dim3 grid((unsigned)rows, (unsigned)most, (unsigned)n);
    dim3 block(jobs.n < 256 ? 32 : (unsigned)(jobs.n / PER), both ? 2 : 1);
    static_assert(MANY_ROWS >= (int)REHEARSED_ROWS, "a rehearsed block makes one head");
    if (rows > MANY_ROWS && block.x == 32 && !both) { /* a head is a warp */
        block.z = HEADS_AT_ONCE;
        grid.y = 1;
    }
    if (kv.k_kind < KV_Q8_0 && kv.v_kind < KV_Q8_0 && !rotated)
        heads<KV_F16>(s, grid, block, jobs, kv, st);
    else if (kv.k_kind == KV_Q8_0 && kv.v_kind == KV_Q8_0)
        heads<KV_Q8_0>(s, grid, block, jobs, kv, st);
    else if (kv.k_kind == KV_Q4_0 && kv.v_kind == KV_Q4_0)
        heads<KV_Q4_0>(s, grid, block, jobs, kv, st);
    else if (kv.k_kind == KV_TQ3_0 && kv.v_kind == KV_TQ3_0)
        heads<KV_TQ3_0>(s, grid, block, jobs, kv, st);
    else
        heads<KV_KINDS>(s, grid, block, jobs, kv, st);
}
