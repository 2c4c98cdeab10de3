/* matmul_wide8.cu - many rows times a weight of blocks by the integer tensor cores: long prompts,
 * on GPUs that multiply int8 several times as fast as bf16 with f32 sums.
 *
 *              96 rows
 *           +----+----+----+     A block makes 128 outputs of 96 rows, twelve warps 32 outputs of
 * 32 128   |    |    |    |     rows each, two groups of 32 columns a step. Both operands come by
 *   outputs +----+----+----+     asynchronous copies, three steps ahead.
 *           |    |    |    |
 *           +----+----+----+
 *
 *     record    16 outputs x 32 columns: codes as signed bytes, 16 for each lane, as its fragments;
 *               then 8 bytes of scales for each output
 *     order     of the parts of a tile (product.cuh), of each its even and its odd groups
 *     shared    [4 stages][8 records x 2][12 tiles of 8 rows x 2 groups: codes, scales]   70 KB
 *
 * Weights are made records in scratch once per chunk of a prompt (unpack8_kernel), 1.25 bytes a
 * weight. Activations are int8 with a scale per group, as products of answers read them.
 *
 * A sum adds its groups in the order of product.cuh. So every bit is that of matmul_one.cu and
 * matmul_rows.cu, which serve passes of fewer rows.
 */
#include "backend/cuda/product/launch_products.h"
#include "backend/cuda/product/product.cuh"

enum {
    BM = 128,
    ROWS = 96,
    TILES_M = BM / 16,
    TILES_N = ROWS / 8,
    WARPS_M = 4, /* along the outputs; three along the rows */
    M = TILES_M / WARPS_M,
    N = 4, /* tiles of a warp */
    THREADS = 32 * WARPS_M * TILES_N / N,
    STAGES = 4,
    CODES = 512,
    RECORD = CODES + 16 * 8,
    X_CODES = 8 * 32, /* a group of eight rows */
    X_SCALES = 8 * 8,
    W_BYTES = TILES_M * 2 * RECORD,
    STAGE = W_BYTES + TILES_N * 2 * (X_CODES + X_SCALES),
    W_PIECES = W_BYTES / 16,               /* of 16 bytes */
    X_PIECES = TILES_N * 2 * X_CODES / 16, /* a thread's each */
    S_PIECES = TILES_N * 2 * X_SCALES / 16,
    EXACT_BITS = 0x4b400000 /* 1.5 * 2^23: rows_unit.cuh */
};
static_assert(X_PIECES == THREADS && W_PIECES > THREADS && W_PIECES <= 2 * THREADS, "copies");

struct wide8_args {
    dev_mat y;
    dev_quant x;
    const uint8_t *w; /* [tile of 16 outputs][parity][unit][half][2 records] */
    int32_t n_unit, shares;
};

/* ---- Weights as records -------------------------------------------------------------------- */

/* Stored codes as signed bytes. */
template <int K> DEV uint32_t signed_codes(uint32_t v)
{
    constexpr uint32_t each = 0x01010101u, top = 0x80808080u;
    return traits<K>::bias ? ((v | top) - traits<K>::bias * each) ^ top : v;
}

/* Groups past the end of a row become zeros.
 * grid:   tile of 16 outputs x unit; a warp to a group
 * shared: none
 * bound:  writing records */
template <int K>
__global__ void __launch_bounds__(256) unpack8_kernel(packed w, int first_tile, uint8_t *to)
{
    using T = traits<K>;
    const int lane = lane_id(), j = (int)threadIdx.x >> 5, unit = (int)blockIdx.y;
    const int tile = first_tile + (int)blockIdx.x, g = unit * 8 + j, gid = lane >> 2,
              tid = lane & 3;
    const size_t tg = (size_t)tile * w.n_group + g;
    grid_trigger();
    grid_wait();
    to += ((((size_t)blockIdx.x * 2 + (j & 1)) * w.n_unit + unit) * 4 + (j >> 1)) * RECORD;
    uint32_t a[4] = {0, 0, 0, 0};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = gid + 8 * h;
        uint32_t c, more = 0, h0 = 0, h1 = 0, lo, hi;
        if (g >= w.n_group)
            continue;
        if (T::bytes) {
            c = *(const uint32_t *)(w.codes + (tg * 32 + row) * 16 + 4 * tid);
            more = *(const uint32_t *)(w.codes + (tg * 32 + 16 + row) * 16 + 4 * tid);
        } else {
            c = *(const uint32_t *)(w.codes + (tg * 16 + row) * 16 + 4 * tid);
        }
        load_high<K>(&h0, &h1, w, 0, tile, g, row);
        code_words<K>(c, more, h0, h1, tid, &lo, &hi);
        a[h] = signed_codes<K>(lo);
        a[2 + h] = signed_codes<K>(hi);
    }
    *(uint4 *)(to + 16 * lane) = make_uint4(a[0], a[1], a[2], a[3]);
    if (lane >= 16)
        return;
    float2 s = make_float2(0, 0);
    if (g < w.n_group) {
        raw_group<K> r;
        load_scales<K>(&r, w, 0, tile, g, lane);
        const scales v = group_scales<K>(r.s, g);
        s = make_float2(v.f0, T::split ? v.f1 : v.m0);
    }
    *(float2 *)(to + CODES + 8 * lane) = s;
}

/* ---- Products ------------------------------------------------------------------------------ */

/* A step: two groups of one parity of a unit. */
struct wide8_place {
    int share, unit, parity, half;

    DEV int group() const
    {
        return unit * 8 + half * 4 + parity;
    }
    DEV int record(int n_unit) const
    {
        return (parity * n_unit + unit) * 2 + half;
    }
    DEV void next(int n_unit, int shares)
    {
        half ^= 1;
        if (half)
            return;
        unit += shares;
        if (unit < n_unit)
            return;
        share += parity;
        parity ^= 1;
        unit = share;
    }
};

/* A thread's copies of a step. */
struct wide8_copies {
    const uint8_t *w[2], *x, *s; /* NULL: none */
    int group;                   /* of x and s: the step's first or second */
    int n_group;

    DEV void begin(const wide8_args &a, int first_tile, int first_rows)
    {
        const int t = (int)threadIdx.x, last = (a.y.cols + 15) / 16 - 1;
        const int last_rows = (a.y.rows + 7) / 8 - 1;
        n_group = a.x.cols >> 5;
#pragma unroll
        for (int i = 0; i < 2; i++) { /* tiles past the end repeat the last */
            const int p = t + i * THREADS, tile = min(first_tile + p / (2 * RECORD / 16), last);
            w[i] = p < W_PIECES
                       ? a.w + (size_t)tile * a.n_unit * 8 * RECORD + p % (2 * RECORD / 16) * 16
                       : NULL;
        }
        size_t at = (size_t)min(first_rows + t / 32, last_rows) * n_group;
        x = (const uint8_t *)a.x.q + at * X_CODES + t % 16 * 16;
        at = (size_t)min(first_rows + t / 8, last_rows) * n_group;
        s = t < S_PIECES ? (const uint8_t *)a.x.s + at * X_SCALES + t % 4 * 16 : NULL;
    }
    DEV void copy(uint8_t *to, const wide8_place &at, int n_unit) const
    {
        const int t = (int)threadIdx.x;
        const size_t record = (size_t)at.record(n_unit) * (2 * RECORD);
        const int gx = at.group() + (t / 16 & 1) * 2, gs = at.group() + (t / 4 & 1) * 2;
        copy16_async(to + 16 * t, w[0] + record, true);
        if (w[1])
            copy16_async(to + 16 * (t + THREADS), w[1] + record, true);
        to += W_BYTES;
        copy16_async(to + 16 * t, x + (size_t)min(gx, n_group - 1) * X_CODES, gx < n_group);
        if (s)
            copy16_async(to + 16 * (X_PIECES + t), s + (size_t)min(gs, n_group - 1) * X_SCALES,
                         gs < n_group);
    }
};

/* Formats with an offset need the scale times the group's sum. A thread converts what it copied. */
template <int K> DEV void wide8_sums(uint8_t *stage)
{
    const int t = (int)threadIdx.x;
    if (!traits<K>::offset || t >= S_PIECES)
        return;
    uint4 *at = (uint4 *)(stage + W_BYTES + 16 * (X_PIECES + t));
    uint4 v = *at; /* of two rows */
    int sum = (int)(int16_t)v.y + (int16_t)(v.y >> 16);
    v.y = __float_as_uint(mul_rn(__uint_as_float(v.x), (float)sum));
    sum = (int)(int16_t)v.w + (int16_t)(v.w >> 16);
    v.w = __float_as_uint(mul_rn(__uint_as_float(v.z), (float)sum));
    *at = v;
}

/* acc += the products of a step's i-th group. */
template <int K>
DEV void wide8_group(float (&acc)[M][N][4], const uint8_t *stage, int i, int wm, int wn)
{
    using T = traits<K>;
    constexpr float exact = 12582912.0f;
    const int lane = lane_id(), gid = lane >> 2, tid = lane & 3;
    uint4 a[M];
    scales v[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        const uint8_t *record = stage + ((wm * M + m) * 2 + i) * RECORD;
        a[m] = *(const uint4 *)(record + 16 * lane);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 s = *(const float2 *)(record + CODES + (gid + 8 * h) * 8);
            v[m][h] = T::split ? scales{s.x, s.y, 0, 0} : scales{s.x, 0, s.y, 0};
        }
    }
    stage += W_BYTES;
#pragma unroll
    for (int t = 0; t < N; t++) {
        const int at = (wn * N + t) * 2 + i;
        const uint2 b = *(const uint2 *)(stage + at * X_CODES + gid * 32 + tid * 8);
        const float4 s = *(const float4 *)(stage + X_PIECES * 16 + at * X_SCALES + 2 * tid * 8);
        const float d[2] = {s.x, s.z}, e[2] = {s.y, s.w};
        const float off[2] = {mul_rn(s.x, -exact), mul_rn(s.z, -exact)};
        const uint32_t bb[2] = {b.x, b.y};
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t fa[4] = {a[m].x, a[m].y, a[m].z, a[m].w};
            int c[4], c1[4] = {0, 0, 0, 0};
            if (T::split) {
                mma_s8_k16(c, fa, b.x, EXACT_BITS);
                mma_s8_k16(c1, fa + 2, b.y, EXACT_BITS);
            } else {
                mma_s8_k32(c, fa, bb, EXACT_BITS);
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float t0 = fma_rn(__int_as_float(c[q]), d[q & 1], off[q & 1]);
                const float t1 = T::split ? fma_rn(__int_as_float(c1[q]), d[q & 1], off[q & 1]) : 0;
                acc[m][t][q] = group_add<K>(acc[m][t][q], v[m][q >> 1], t0, t1, e[q & 1], 0);
            }
        }
    }
}

/* y[r, o] = sum_i x[r, i] W[o, i]      W: records, x: int8, sums f32
 * grid:   tile of 96 rows x tile of 128 outputs
 * shared: as drawn above
 * bound:  integer tensor cores, and as much the two or three multiply-adds of each group's sum */
template <int K> __global__ void __launch_bounds__(THREADS, 1) wide8_kernel(wide8_args g)
{
    DYN_SHARED(uint8_t, mem);
    const int lane = lane_id(), warp = (int)threadIdx.x >> 5, n_step = g.n_unit * 4;
    const int r0 = (int)blockIdx.x * ROWS, o0 = (int)blockIdx.y * BM;
    const int wm = warp % WARPS_M, wn = warp / WARPS_M;
    wide8_copies copies;
    copies.begin(g, o0 / 16, r0 / 8);
    wide8_place now = {0, 0, 0, 0}, ahead = now;
    float acc[M][N][4], even[M][N][4], sum[M][N][4];
#pragma unroll
    for (int i = 0; i < M * N * 4; i++)
        (&acc[0][0][0])[i] = (&even[0][0][0])[i] = (&sum[0][0][0])[i] = 0;

    grid_trigger();
    grid_wait();
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) { /* a row has at least four steps */
        copies.copy(mem + i * STAGE, ahead, g.n_unit);
        copy_commit();
        ahead.next(g.n_unit, g.shares);
    }
    int at = 0;
#pragma unroll 1
    for (int step = 0; step < n_step; step++) {
        copy_wait<STAGES - 2>();
        wide8_sums<K>(mem + at);
        __syncthreads(); /* the step is there; all have read the one before */
        if (step + STAGES - 1 < n_step) {
            copies.copy(mem + (at ? at - STAGE : (STAGES - 1) * STAGE), ahead, g.n_unit);
            ahead.next(g.n_unit, g.shares);
        }
        copy_commit();
        wide8_group<K>(acc, mem + at, 0, wm, wn);
        wide8_group<K>(acc, mem + at, 1, wm, wn);
        at = at == (STAGES - 1) * STAGE ? 0 : at + STAGE;
        const int parity = now.parity;
        now.next(g.n_unit, g.shares);
        if (now.parity == parity)
            continue;
#pragma unroll
        for (int i = 0; i < M * N * 4; i++) {
            float &a = (&acc[0][0][0])[i], &e = (&even[0][0][0])[i], &s = (&sum[0][0][0])[i];
            if (parity)
                s += e + a;
            else
                e = a;
            a = 0;
        }
    }

    const int gid = lane >> 2, tid = lane & 3;
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = r0 + (wn * N + t) * 8 + 2 * tid + e;
            if (r >= g.y.rows)
                continue;
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int o = o0 + (wm * M + m) * 16 + 8 * h + gid;
                    if (o < g.y.cols)
                        g.y.at[r * g.y.stride + o] = sum[m][t][2 * h + e];
                }
        }
}

/* ---- Launching ----------------------------------------------------------------------------- */

template <int K> static void unpack8(cudaStream_t s, const packed &w, int first, int n, uint8_t *to)
{
    LAUNCH(unpack8_kernel<K>, dim3((unsigned)(n + 15) / 16, (unsigned)w.n_unit), dim3(256), 0, s, w,
           first / 16, to);
}

extern "C" void cu_unpack8(cudaStream_t s, packed w, int32_t first_row, int32_t n_rows, void *to)
{
    by_layout(common_packs, w.kind, [&](auto k) {
        return unpack8<k>(s, w, first_row, n_rows, (uint8_t *)to), true;
    });
}

extern "C" void cu_matmul_wide8(cudaStream_t s, dev_mat y, dev_quant x, const packed *w,
                                const void *records)
{
    const wide8_args g = {y, x, (const uint8_t *)records, w->n_unit, product_warps(*w, false)};
    dim3 grid((unsigned)((y.rows + ROWS - 1) / ROWS), (unsigned)((y.cols + BM - 1) / BM));
    if (has_offset(w->kind))
        LAUNCH(wide8_kernel<PACK_Q4_K>, grid, dim3(THREADS), STAGES * STAGE, s, g);
    else if (w->kind == PACK_Q6_K)
        LAUNCH(wide8_kernel<PACK_Q6_K>, grid, dim3(THREADS), STAGES * STAGE, s, g);
    else
        LAUNCH(wide8_kernel<PACK_Q8_0>, grid, dim3(THREADS), STAGES * STAGE, s, g);
}

extern "C" int cu_wide8_init(void)
{
    return allow_shared(wide8_kernel<PACK_Q4_K>, STAGES * STAGE) |
           allow_shared(wide8_kernel<PACK_Q6_K>, STAGES * STAGE) |
           allow_shared(wide8_kernel<PACK_Q8_0>, STAGES * STAGE);
}
