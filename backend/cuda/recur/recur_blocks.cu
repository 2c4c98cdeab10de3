/* recur_blocks.cu - the gated delta rule of prompts in blocks of 64 rows (the WY form), on tensor
 * cores. Heads of 128; recur_chain.cu goes row by row.
 *
 * Of a block, with the rows k, q, v, the shares b, the decays exp(g), G the running sum of g, and
 * the state S before the block:
 *
 *     A = b_i exp(G_i - G_j) k_i k_j   j < i        T = (1 + A)^-1
 *     P = exp(G_i - G_j) q_i k_j       j <= i
 *     E = T (b v - b exp(G) k S)                     the errors that are written
 *     o = exp(G) q S + P E
 *     S = exp(G_63) S + sum of exp(G_63 - G_i) k_i E_i
 *
 *     block_local_kernel   k, q, T, P: nothing depends on S, so all blocks at once
 *
 *     block_walk_kernel    one block after the other; 16 value rows of S are a warp's own
 *
 *     block_keep_kernel    the rows of a block that the pass leaves unfinished
 *
 * Blocks end at multiples of 64 in the sequence. A pass that begins inside a block computes the
 * block again, from the state at its beginning and its earlier rows (recur_base.block). What a row
 * gives depends on no later row: later columns of A and P are exact zeros, and sums go over all of
 * a block in one order. So a row's bits do not depend on where its prompt is cut. A block that
 * begins after rows of answers has only the rows since then.
 *
 * Products are of bf16 with f32 sums. Each operand is two of them, its rounding and the rounding of
 * what that left out; of four products the three larger are added: an error of 2^-17 each. T is
 * made in f32, because its entries grow where keys repeat. G is an exact sum of integers, and only
 * differences that are not positive are exponents: 1 / exp(G) would overflow.
 */
#include "backend/cuda/recur/launch_recur.h"
#include "backend/cuda/recur/recur.cuh"

enum {
    ROWS = RECUR_BLOCK_ROWS,
    HEAD = RECUR_HEAD,      /* elements of a key and of a value */
    KEY_BYTES = ROWS * 256, /* of one rounding of a block's keys or queries */
    PAIR_BYTES = ROWS * 128,
    LOCAL_THREADS = 256,
    LOCAL_WARPS = LOCAL_THREADS / 32,
    SHARED_PER_KEY = 8 /* the most value heads of a key head: one to a warp */
};

/* A block of a key head in memory. Four parts: keys as bf16, what that rounding left out as bf16,
 * the same two of the queries. Each part has rows of 128 bf16. Of a value head: T and P alike, rows
 * of 64, and four gates. Pieces of 16 bytes are where ldmatrix meets no bank twice. */
struct key_block {
    uint8_t part[4][KEY_BYTES];
};
struct pair_block {
    uint8_t part[4][PAIR_BYTES];
    float share[ROWS], share_decay[ROWS], decay[ROWS], rest[ROWS]; /* b, b exp(G), exp(G),
                                                                      exp(G_63 - G) */
};

static_assert((int)sizeof(key_block) == (int)RECUR_KEY_BYTES, "the host allocates key blocks");
static_assert((int)sizeof(pair_block) == (int)RECUR_PAIR_BYTES, "the host allocates pair blocks");

DEV int key_piece(int row, int piece)
{
    return row * 256 + ((piece & 8) | ((piece ^ row) & 7)) * 16;
}
DEV int pair_piece(int row, int piece)
{
    return row * 128 + ((piece ^ row) & 7) * 16;
}

/* Two values as bf16, and what that left out. */
DEV void split_two(uint32_t &high, uint32_t &low, float x, float y)
{
    high = f32x2_to_bf16(x, y);
    low = f32x2_to_bf16(x - bf16_to_f32(high & 0xffff), y - bf16_to_f32(high >> 16));
}

/* ---- Rows that an earlier pass left -------------------------------------------------------- */

struct started {
    float *state, *rows, *gates; /* rows: keys, values; gates: g, shares */
    int row_floats;
};
DEV started started_of(const recur_shape &v, const dev_recur_base &b)
{
    started s;
    s.state = b.block + RECUR_BLOCK_HEAD_FLOATS;
    s.rows = s.state + (size_t)v.n_v * HEAD * HEAD;
    s.row_floats = (v.n_k + v.n_v) * HEAD;
    s.gates = s.rows + (size_t)(ROWS - 1) * s.row_floats;
    return s;
}

/* The first row of the block that is computed: an earlier pass's, if it left off where this one
 * begins, else this pass's. */
DEV int first_row(const dev_recur_base &b, const block_place &p)
{
    const int *held = (const int *)b.block; /* positions: its first row, behind its last */
    if (!p.begins || !p.from)
        return p.from;
    int at = held[0] - p.pos;
    return held[1] == p.pos + p.from && at >= 0 && at < p.from ? at : p.from;
}

DEV const dev_recur_base &base_of(const delta_args &a, int seq)
{
    return a.st.base[(size_t)seq * a.st.n_recur + a.v.id];
}

/* The logarithm of the decay of value head j in a row of the pass. */
DEV float log_decay(const delta_args &a, int row, int j)
{
    float x = a.a.at[row * a.a.stride + j] + a.gate_dt[j];
    return a.gate_a[j] * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
}

/* ---- What does not depend on the state ----------------------------------------------------- */

struct local_shared {
    union {
        key_block keys;
        struct {
            float a[ROWS][ROWS + 1], t[ROWS][ROWS + 1];
        } solve;
    } at;
    float kk[ROWS][ROWS + 2], qk[ROWS][ROWS + 2];
    float sum[SHARED_PER_KEY][ROWS], left[SHARED_PER_KEY][ROWS]; /* G = sum + left */
    float share[SHARED_PER_KEY][ROWS];
};

/* x / sqrt(|x|^2 + 1e-6) * factor of a row of 128, four elements to a lane. */
DEV float4 normal_row(const float *x, float factor)
{
    float4 v = *(const float4 *)(x + 4 * lane_id());
    float sum = fma_rn(v.x, v.x, 0.0f);
    sum = fma_rn(v.y, v.y, sum);
    sum = fma_rn(v.z, v.z, sum);
    sum = fma_rn(v.w, v.w, sum);
    float f = factor / sqrtf(warp_sum(sum) + 1e-6f);
    return make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
}

DEV void put_key(uint8_t *high, uint8_t *low, uint8_t *high_too, uint8_t *low_too, int row,
                 float4 v)
{
    uint2 h, l;
    int at = key_piece(row, lane_id() >> 1) + (lane_id() & 1) * 8;
    split_two(h.x, l.x, v.x, v.y);
    split_two(h.y, l.y, v.z, v.w);
    *(uint2 *)(high + at) = h;
    *(uint2 *)(low + at) = l;
    *(uint2 *)(high_too + at) = h;
    *(uint2 *)(low_too + at) = l;
}

/* Keys and queries of the block; rows that it lacks are zeros. */
DEV void local_rows(key_block &here, key_block &there, const delta_args &a, const block_place &p,
                    const started &s, int first, int h)
{
    const float query = 1.0f / sqrtf((float)HEAD);
    for (int i = (int)threadIdx.x >> 5; i < ROWS; i += LOCAL_WARPS) {
        float4 k = make_float4(0, 0, 0, 0), q = k;
        if (i >= p.from && i < p.to) {
            const float *c = a.c.at + (p.row + i) * a.c.stride + h * HEAD;
            q = normal_row(c, query);
            k = normal_row(c + a.v.n_k * HEAD, 1.0f);
        } else if (i >= first && i < p.from) {
            k = normal_row(s.rows + (size_t)i * s.row_floats + h * HEAD, 1.0f);
        }
        put_key(here.part[0], here.part[1], there.part[0], there.part[1], i, k);
        put_key(here.part[2], here.part[3], there.part[2], there.part[3], i, q);
    }
}

/* The running sums of g of value head j, by a warp; lane l has rows 2 l and 2 l + 1. As integers of
 * 2^-40, which is exact. Below -1e4 a decay is zero in any case. */
DEV void local_gates(local_shared &at, pair_block &to, const delta_args &a, const block_place &p,
                     const started &s, int first, int j, int warp)
{
    const double one = 1099511627776.0;
    long long sum[2];
    float share[2];
    for (int e = 0; e < 2; e++) {
        int i = 2 * lane_id() + e;
        float g = 0;
        share[e] = 0;
        if (i >= p.from && i < p.to) {
            g = log_decay(a, p.row + i, j);
            share[e] = share_of(a.b.at[(p.row + i) * a.b.stride + j]);
        } else if (i >= first && i < p.from) {
            g = s.gates[(size_t)i * 2 * a.v.n_v + j];
            share[e] = s.gates[((size_t)i * 2 + 1) * a.v.n_v + j];
        }
        sum[e] = (long long)((double)fmaxf(g, -1e4f) * one);
    }
    long long own = sum[1], upto = sum[0] + sum[1];
    for (int d = 1; d < 32; d <<= 1) {
        uint32_t lo = shfl_u32((uint32_t)upto, lane_id() - d);
        uint32_t hi = shfl_u32((uint32_t)((unsigned long long)upto >> 32), lane_id() - d);
        if (lane_id() >= d)
            upto += (long long)((unsigned long long)hi << 32 | lo);
    }
    uint32_t lo = shfl_u32((uint32_t)upto, 31);
    uint32_t hi = shfl_u32((uint32_t)((unsigned long long)upto >> 32), 31);
    const long long all = (long long)((unsigned long long)hi << 32 | lo);
    sum[0] = upto - own;
    sum[1] = upto;
    for (int e = 0; e < 2; e++) {
        int i = 2 * lane_id() + e;
        double g = (double)sum[e] / one;
        float high = (float)g, decay = expf(high);
        at.sum[warp][i] = high;
        at.left[warp][i] = (float)(g - (double)high);
        at.share[warp][i] = share[e];
        to.share[i] = share[e];
        to.share_decay[i] = share[e] * decay;
        to.decay[i] = decay;
        to.rest[i] = expf((float)((double)(all - sum[e]) / one));
    }
}

/* Rows 16 m .. of a product of keys or queries with rows 16 n .. of keys, over 128. */
DEV void local_product(float (*to)[ROWS + 2], const uint8_t *high, const uint8_t *low,
                       const key_block &keys, int m, int n)
{
    int l = lane_id();
    int row = 16 * m + (l & 15), piece = l >> 4;
    int key = 16 * n + (l & 7) + (l >> 4) * 8, key_half = l >> 3 & 1;
    float c[2][4] = {};
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        ldmatrix4(ah, high + key_piece(row, 2 * s + piece));
        ldmatrix4(al, low + key_piece(row, 2 * s + piece));
        ldmatrix4(bh, keys.part[0] + key_piece(key, 2 * s + key_half));
        ldmatrix4(bl, keys.part[1] + key_piece(key, 2 * s + key_half));
#pragma unroll
        for (int t = 0; t < 2; t++) {
            mma_bf16(c[t], ah, bh + 2 * t);
            mma_bf16(c[t], ah, bl + 2 * t);
            mma_bf16(c[t], al, bh + 2 * t);
        }
    }
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)&to[16 * m + (l >> 2) + 8 * e][16 * n + 8 * t + 2 * (l & 3)] =
                make_float2(c[t][2 * e], c[t][2 * e + 1]);
}

/* Eight values of a row of T or P to memory. */
DEV void put_pairs(uint8_t *high, uint8_t *low, int row, int piece, const float *x)
{
    uint4 h, l;
    split_two(h.x, l.x, x[0], x[1]);
    split_two(h.y, l.y, x[2], x[3]);
    split_two(h.z, l.z, x[4], x[5]);
    split_two(h.w, l.w, x[6], x[7]);
    *(uint4 *)(high + pair_piece(row, piece)) = h;
    *(uint4 *)(low + pair_piece(row, piece)) = l;
}

/* A in shared memory, P to where the walk reads it. */
DEV void local_pairs(local_shared &at, pair_block &to, int r)
{
    int i = (int)threadIdx.x >> 2, j0 = ((int)threadIdx.x & 3) * 16;
    float share = at.share[r][i], sum = at.sum[r][i], left = at.left[r][i];
    for (int half = 0; half < 2; half++) {
        float p[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int j = j0 + 8 * half + e;
            float d = j <= i ? expf((sum - at.sum[r][j]) + (left - at.left[r][j])) : 0.0f;
            p[e] = j <= i ? d * at.qk[i][j] : 0.0f;
            at.at.solve.a[i][j] = j < i ? share * d * at.kk[i][j] : 0.0f;
        }
        put_pairs(to.part[2], to.part[3], i, j0 / 8 + half, p);
    }
}

/* T = (1 + A)^-1: of tiles of 16 on the diagonal by substitution, a thread to a column; below it
 *     T_IJ = - T_II sum of A_IK T_KJ, J <= K < I
 * a thread to an element of a tile. */
DEV void local_solve(local_shared &at)
{
    int t = (int)threadIdx.x, i = t >> 4, j = t & 15;
    float(*a)[ROWS + 1] = at.at.solve.a, (*to)[ROWS + 1] = at.at.solve.t;
    if (t < ROWS) {
        float x[16];
#pragma unroll
        for (int k = 0; k < 16; k++) {
            float sum = k == j ? 1.0f : 0.0f;
#pragma unroll
            for (int l = 0; l < k; l++)
                sum = fma_rn(-a[16 * i + k][16 * i + l], x[l], sum);
            x[k] = sum;
            to[16 * i + k][16 * i + j] = sum;
        }
    }
    __syncthreads();
#pragma unroll
    for (int tile = 1; tile < ROWS / 16; tile++) {
        float sum[ROWS / 16 - 1];
#pragma unroll
        for (int n = 0; n < tile; n++) {
            sum[n] = 0;
            for (int k = 16 * n; k < 16 * tile; k++)
                sum[n] = fma_rn(a[16 * tile + i][k], to[k][16 * n + j], sum[n]);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < tile; n++)
            to[16 * tile + i][16 * n + j] = sum[n];
        __syncthreads();
#pragma unroll
        for (int n = 0; n < tile; n++) {
            sum[n] = 0;
#pragma unroll
            for (int k = 0; k < 16; k++)
                sum[n] = fma_rn(-to[16 * tile + i][16 * tile + k], to[16 * tile + k][16 * n + j],
                                sum[n]);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < tile; n++)
            to[16 * tile + i][16 * n + j] = sum[n];
        __syncthreads();
    }
}

/* Keys, queries, T, P and gates of a block, for a key head and the value heads that read it.
 * grid:   key head x block
 * shared: the block's keys and queries, products of all pairs: 106 KB
 * bound:  latency of shared memory */
__global__ void __launch_bounds__(LOCAL_THREADS) block_local_kernel(block_args b)
{
    DYN_SHARED(local_shared, at);
    const delta_args &a = b.delta;
    const block_place p = b.at[blockIdx.y];
    int h = (int)blockIdx.x, warp = (int)threadIdx.x >> 5;
    grid_trigger();
    grid_wait();
    const dev_recur_base &base = base_of(a, p.seq);
    const started s = started_of(a.v, base);
    int first = first_row(base, p);
    pair_block *pairs = (pair_block *)b.pairs + (size_t)blockIdx.y * a.v.n_v;
    local_rows(at->at.keys, ((key_block *)b.keys)[(size_t)blockIdx.y * a.v.n_k + h], a, p, s, first,
               h);
    if (h + warp * a.v.n_k < a.v.n_v)
        local_gates(*at, pairs[h + warp * a.v.n_k], a, p, s, first, h + warp * a.v.n_k, warp);
    __syncthreads();
    for (int u = warp; u < 20; u += LOCAL_WARPS) {
        int m = u % 10 < 1 ? 0 : u % 10 < 3 ? 1 : u % 10 < 6 ? 2 : 3, n = u % 10 - m * (m + 1) / 2;
        const uint8_t(*from)[KEY_BYTES] = at->at.keys.part + (u < 10 ? 0 : 2);
        local_product(u < 10 ? at->kk : at->qk, from[0], from[1], at->at.keys, m, n);
    }
    for (int r = 0; h + r * a.v.n_k < a.v.n_v; r++) {
        pair_block &to = pairs[h + r * a.v.n_k];
        __syncthreads();
        local_pairs(*at, to, r);
        __syncthreads();
        local_solve(*at);
        int i = (int)threadIdx.x >> 2, j0 = ((int)threadIdx.x & 3) * 16;
        for (int half = 0; half < 2; half++) {
            float x[8];
            for (int e = 0; e < 8; e++)
                x[e] = j0 + 8 * half + e <= i ? at->at.solve.t[i][j0 + 8 * half + e] : 0.0f;
            put_pairs(to.part[0], to.part[1], i, j0 / 8 + half, x);
        }
    }
}

/* ---- Through the state --------------------------------------------------------------------- */

template <int WARPS> struct walk_stage {
    key_block keys;
    pair_block pairs;
    float v[ROWS][16 * WARPS]; /* column c of row r is at c ^ (r / 2 % 4 * 8) */
};

/* Where a block of threads is: a value head, 16 WARPS of its value rows. */
struct walk_part {
    int head, key_head, column;
};

/* Starts the copies of the nth block of the launch, and ends their group. */
template <int WARPS>
DEV void fill_walk(walk_stage<WARPS> &to, const block_args &b, const walk_part &w, int nth)
{
    enum { THREADS = 32 * WARPS, V_PIECES = 4 * WARPS };
    const delta_args &a = b.delta;
    const block_place &p = b.at[nth];
    const dev_recur_base &base = base_of(a, p.seq);
    const started s = started_of(a.v, base);
    int t = (int)threadIdx.x, first = first_row(base, p);
    const uint8_t *keys =
        (const uint8_t *)((const key_block *)b.keys + (size_t)nth * a.v.n_k + w.key_head);
    const uint8_t *pairs =
        (const uint8_t *)((const pair_block *)b.pairs + (size_t)nth * a.v.n_v + w.head);
    for (int i = t; i < (int)sizeof(key_block) / 16; i += THREADS)
        copy16_async((uint8_t *)&to.keys + 16 * i, keys + 16 * i, true);
    for (int i = t; i < (int)sizeof(pair_block) / 16; i += THREADS)
        copy16_async((uint8_t *)&to.pairs + 16 * i, pairs + 16 * i, true);
    for (int i = t; i < ROWS * V_PIECES; i += THREADS) {
        int r = i / V_PIECES, c = i % V_PIECES * 4;
        bool own = r >= p.from && r < p.to, left = r >= first && r < p.from;
        const float *from =
            left ? s.rows + (size_t)r * s.row_floats + (a.v.n_k + w.head) * HEAD + w.column
                 : a.c.at + (p.row + (own ? r : p.from)) * a.c.stride +
                       (2 * a.v.n_k + w.head) * HEAD + w.column;
        copy16_async(&to.v[r][c ^ ((r >> 1 & 3) << 3)], from + c, own || left);
    }
    copy_commit();
}

/* 16 value rows of S, a warp's: as mma lays out sums, tile t has the keys 8 t .. 8 t + 7. */
struct walk_state {
    float s[HEAD / 8][4];
};

DEV void load_state(walk_state &w, const float *from)
{
    const float *at = from + (lane_id() >> 2) * HEAD + 2 * (lane_id() & 3);
#pragma unroll
    for (int t = 0; t < HEAD / 8; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float2 v = *(const float2 *)(at + 8 * e * HEAD + 8 * t);
            w.s[t][2 * e] = v.x;
            w.s[t][2 * e + 1] = v.y;
        }
}
DEV void store_state(float *to, const walk_state &w)
{
    float *at = to + (lane_id() >> 2) * HEAD + 2 * (lane_id() & 3);
#pragma unroll
    for (int t = 0; t < HEAD / 8; t++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)(at + 8 * e * HEAD + 8 * t) = make_float2(w.s[t][2 * e], w.s[t][2 * e + 1]);
}

/* The pending rows, by the two roundings of any other kernel. */
DEV void apply_pending(walk_state &w, const recur_shape &v, const dev_recur_base &b,
                       const dev_recur_seq &q, const walk_part &p, int row)
{
    for (int i = 0; i < q.n_pending; i++) {
        journal_row r = row_of(v, b, q.bank, q.pending[i]);
        const float *k = r.keys + p.key_head * HEAD + 2 * (lane_id() & 3);
        const float *error = r.errors + p.head * HEAD + row + (lane_id() >> 2);
        float decay = r.decays[p.head], e[2] = {error[0], error[8]};
#pragma unroll
        for (int t = 0; t < HEAD / 8; t++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                w.s[t][c] = fma_rn(e[c >> 1], k[8 * t + (c & 1)], mul_rn(w.s[t][c], decay));
    }
}

/* Sums laid out by mma, two tiles side by side, as the first operand of the next product. */
struct operand {
    uint32_t high[4], low[4];
};
DEV operand operand_of(const float (&x)[4], const float (&y)[4])
{
    operand o;
    split_two(o.high[0], o.low[0], x[0], x[1]);
    split_two(o.high[1], o.low[1], x[2], x[3]);
    split_two(o.high[2], o.low[2], y[0], y[1]);
    split_two(o.high[3], o.low[3], y[2], y[3]);
    return o;
}

/* Two tiles of sums += a b, the three larger of four products. */
DEV void add_product(float *x, float *y, const operand &a, const uint32_t *high,
                     const uint32_t *low)
{
    mma_bf16(x, a.high, high);
    mma_bf16(y, a.high, high + 2);
    mma_bf16(x, a.high, low);
    mma_bf16(y, a.high, low + 2);
    mma_bf16(x, a.low, high);
    mma_bf16(y, a.low, high + 2);
}

/* k S and q S: [16 value rows, 64 rows]. */
DEV void read_rows(float (&known)[8][4], float (&out)[8][4], const walk_state &w,
                   const key_block &keys)
{
    int l = lane_id(), row = (l & 7) + (l >> 4) * 8, half = l >> 3 & 1;
#pragma unroll
    for (int t = 0; t < 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            known[t][e] = out[t][e] = 0;
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        const operand a = operand_of(w.s[2 * s], w.s[2 * s + 1]);
#pragma unroll
        for (int n = 0; n < ROWS / 16; n++) {
            uint32_t high[4], low[4];
            int at = key_piece(16 * n + row, 2 * s + half);
            ldmatrix4(high, keys.part[0] + at);
            ldmatrix4(low, keys.part[1] + at);
            add_product(known[2 * n], known[2 * n + 1], a, high, low);
            ldmatrix4(high, keys.part[2] + at);
            ldmatrix4(low, keys.part[3] + at);
            add_product(out[2 * n], out[2 * n + 1], a, high, low);
        }
    }
}

/* to += x m^T, m [64, 64] with zeros above its diagonal. */
DEV void add_pairs(float (&to)[8][4], const float (&x)[8][4], const uint8_t *m_high,
                   const uint8_t *m_low)
{
    int l = lane_id(), row = (l & 7) + (l >> 4) * 8, half = l >> 3 & 1;
#pragma unroll
    for (int s = 0; s < ROWS / 16; s++) {
        const operand a = operand_of(x[2 * s], x[2 * s + 1]);
#pragma unroll
        for (int n = s; n < ROWS / 16; n++) {
            uint32_t high[4], low[4];
            int at = pair_piece(16 * n + row, 2 * s + half);
            ldmatrix4(high, m_high + at);
            ldmatrix4(low, m_low + at);
            add_product(to[2 * n], to[2 * n + 1], a, high, low);
        }
    }
}

/* S = decay S + e k. The sum over the rows of the block is added at once: one rounding. */
DEV void write_rows(walk_state &w, const float (&e)[8][4], const key_block &keys, float decay)
{
    enum { SIDE = 2 }; /* pairs of tiles whose sums are made side by side */
    int l = lane_id(), row = (l & 7) + (l >> 3 & 1) * 8, half = l >> 4;
    operand a[ROWS / 16];
#pragma unroll
    for (int s = 0; s < ROWS / 16; s++)
        a[s] = operand_of(e[2 * s], e[2 * s + 1]);
#pragma unroll
    for (int n = 0; n < HEAD / 16; n += SIDE) {
        float sum[2 * SIDE][4] = {};
#pragma unroll
        for (int s = 0; s < ROWS / 16; s++)
#pragma unroll
            for (int i = 0; i < SIDE; i++) {
                uint32_t high[4], low[4];
                int at = key_piece(16 * s + row, 2 * (n + i) + half);
                ldmatrix4_t(high, keys.part[0] + at);
                ldmatrix4_t(low, keys.part[1] + at);
                add_product(sum[2 * i], sum[2 * i + 1], a[s], high, low);
            }
#pragma unroll
        for (int t = 0; t < 2 * SIDE; t++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                w.s[2 * n + t][c] = fma_rn(decay, w.s[2 * n + t][c], sum[t][c]);
    }
}

/* One block: its outputs, and the state after it. */
template <int WARPS>
DEV void walk_block(walk_state &w, const walk_stage<WARPS> &at, const block_args &b,
                    const block_place &p, const walk_part &part)
{
    int warp = (int)threadIdx.x >> 5, g = lane_id() >> 2, t = lane_id() & 3;
    float x[8][4], o[8][4], e[8][4];
    read_rows(x, o, w, at.keys);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int r = 8 * n + 2 * t + (c & 1), column = 16 * warp + g + 8 * (c >> 1);
            float v = at.v[r][column ^ ((r >> 1 & 3) << 3)];
            x[n][c] = fma_rn(-at.pairs.share_decay[r], x[n][c], at.pairs.share[r] * v);
            o[n][c] *= at.pairs.decay[r];
            e[n][c] = 0;
        }
    add_pairs(e, x, at.pairs.part[0], at.pairs.part[1]);
    add_pairs(o, e, at.pairs.part[2], at.pairs.part[3]);
    float *to = b.delta.o.at + part.head * HEAD + part.column + 16 * warp + g;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int r = 8 * n + 2 * t + (c & 1);
            if (r >= p.from && r < p.to)
                to[(p.row + r) * b.delta.o.stride + 8 * (c >> 1)] = o[n][c];
            e[n][c] *= at.pairs.rest[r];
        }
    write_rows(w, e, at.keys, at.pairs.decay[ROWS - 1]);
}

/* The blocks of a sequence, in their order.
 * grid:   (value head, 16 WARPS value rows) x sequence
 * shared: two stages of a block: 226 KB with four warps
 * bound:  tensor cores, three products for one; bytes of L2, as each block of threads reads all
 * keys */
template <int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 1) block_walk_kernel(block_args b)
{
    DYN_SHARED(walk_stage<WARPS>, stage);
    enum { PARTS = HEAD / 16 / WARPS };
    const delta_args &a = b.delta;
    const block_walk k = b.walk[blockIdx.y];
    walk_part part;
    part.head = (int)blockIdx.x / PARTS;
    part.key_head = part.head % a.v.n_k;
    part.column = (int)blockIdx.x % PARTS * 16 * WARPS;
    int row = part.column + ((int)threadIdx.x >> 5) * 16;
    grid_trigger();
    grid_wait();
    fill_walk(stage[0], b, part, k.first);
    const dev_recur_base &base = base_of(a, b.at[k.first].seq);
    const started s = started_of(a.v, base);
    size_t place = ((size_t)part.head * HEAD + row) * HEAD;
    bool goes_on = first_row(base, b.at[k.first]) < b.at[k.first].from;
    walk_state w;
    load_state(w, (goes_on ? s.state : base.state) + place);
    if (b.at[k.first].begins && !goes_on)
        apply_pending(w, a.v, base, a.st.seq[b.at[k.first].seq], part, row);
    for (int i = 0; i < k.n; i++) {
        const block_place &p = b.at[k.first + i];
        copy_wait<0>();
        __syncthreads(); /* the block is there, and all have left the one before */
        if (i + 1 < k.n)
            fill_walk(stage[(i + 1) & 1], b, part, k.first + i + 1);
        if (p.to < ROWS)
            store_state(s.state + place, w);
        walk_block(w, stage[i & 1], b, p, part);
    }
    store_state(base.state + place, w);
}

/* ---- What an unfinished block leaves ------------------------------------------------------- */

/* Keys, values and gates of the pass's rows of each sequence's last block, if it is unfinished.
 * grid:   row of a block x walk
 * shared: none
 * bound:  latency */
__global__ void __launch_bounds__(LOCAL_THREADS) block_keep_kernel(block_args b)
{
    const delta_args &a = b.delta;
    const block_walk k = b.walk[blockIdx.y];
    const block_place p = b.at[k.first + k.n - 1];
    int i = (int)blockIdx.x;
    grid_trigger();
    grid_wait();
    if (p.to == ROWS || i < p.from || i >= p.to)
        return;
    const dev_recur_base &base = base_of(a, p.seq);
    const started s = started_of(a.v, base);
    const float4 *from = (const float4 *)(a.c.at + (p.row + i) * a.c.stride + a.v.n_k * HEAD);
    float4 *to = (float4 *)(s.rows + (size_t)i * s.row_floats);
    for (int j = (int)threadIdx.x; j < s.row_floats / 4; j += LOCAL_THREADS)
        to[j] = from[j];
    for (int j = (int)threadIdx.x; j < a.v.n_v; j += LOCAL_THREADS) {
        s.gates[(size_t)i * 2 * a.v.n_v + j] = log_decay(a, p.row + i, j);
        s.gates[((size_t)i * 2 + 1) * a.v.n_v + j] = share_of(a.b.at[(p.row + i) * a.b.stride + j]);
    }
    if (i == p.to - 1 && !threadIdx.x) {
        int first = first_row(base, p), *held = (int *)base.block;
        held[0] = p.pos + first;
        held[1] = p.pos + p.to;
    }
}

/* ---- Launches ------------------------------------------------------------------------------ */

static size_t walk_bytes(int warps)
{
    return 2 * (warps == 4 ? sizeof(walk_stage<4>) : sizeof(walk_stage<2>));
}

/* Two warps to a block of threads, if that leaves no multiprocessor with two of one sequence: half
 * the reads of shared memory in each. The number of sequences does not count, because a row has the
 * same bits in any company. */
static int walk_warps(const recur_shape *v)
{
    return v->n_v * 4 <= cu_gpu.n_sm ? 2 : 4;
}

static_assert(2 * (int)sizeof(walk_stage<4>) == (int)RECUR_WALK_BYTES, "the host asks for it");

/* Value head j reads key head j mod n_k. */
extern "C" bool cu_blocks_know(const recur_shape *v)
{
    return v->dk == HEAD && v->dv == HEAD && v->n_v <= SHARED_PER_KEY * v->n_k && cu_blocks_fit();
}

extern "C" void cu_delta_blocks(cudaStream_t s, const block_args *b)
{
    const recur_shape *v = &b->delta.v;
    bool unfinished = false;
    for (int i = 0; i < b->n_walks; i++)
        unfinished |= b->at[b->walk[i].first + b->walk[i].n - 1].to < ROWS;
    LAUNCH(block_local_kernel, dim3((unsigned)v->n_k, (unsigned)b->n), dim3(LOCAL_THREADS),
           sizeof(local_shared), s, *b);
    if (walk_warps(v) == 2)
        LAUNCH(block_walk_kernel<2>, dim3((unsigned)v->n_v * 4, (unsigned)b->n_walks), dim3(64),
               walk_bytes(2), s, *b);
    else
        LAUNCH(block_walk_kernel<4>, dim3((unsigned)v->n_v * 2, (unsigned)b->n_walks), dim3(128),
               walk_bytes(4), s, *b);
    if (unfinished)
        LAUNCH(block_keep_kernel, dim3(ROWS - 1, (unsigned)b->n_walks), dim3(LOCAL_THREADS), 0, s,
               *b);
}

/* Once per GPU, at open. */
extern "C" int cu_blocks_init(void)
{
    if (!cu_blocks_fit())
        return 0;
    return allow_shared(block_local_kernel, (int)sizeof(local_shared)) |
           allow_shared(block_walk_kernel<2>, (int)walk_bytes(2)) |
           allow_shared(block_walk_kernel<4>, (int)walk_bytes(4));
}
