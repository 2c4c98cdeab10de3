/* attend.cu - attention for every shape and format in f32, and the join of partial results.
 *
 *     keys  |...........|xxxxxxxxxxx|xxxxxxxxxxx|xxxx.......|
 *            chunk 0     chunk 1     chunk 2     chunk 3        lo ..^          ^.. hi
 *
 * Keys are cut into chunks of a fixed size at fixed numbers. attend_kernel: a block has one row,
 * one KV head with all its query heads, and one chunk; it writes a partial softmax. combine_kernel
 * joins the chunks of a row in ascending order. Neither depends on the other rows of the pass.
 * Passes of many rows have enough blocks without chunks: there a block walks all keys of its row,
 * or (LISTED: block selection, sparse.h) those of the list of its row's query block.
 * Scores, softmax and sums are f32, and q is not rounded.
 */
#include "backend/cuda/activations.cuh"
#include "backend/cuda/attend/keys.cuh"
#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/attend/launch_skip.h"
#include "backend/cuda/attend/lists.cuh"

enum { KEYS = 64 }; /* per step; chunks are multiples of it */

/* The place of key t of row r, the k-th of the tile. */
DEV int plain_place(const attend_args &a, const dev_kv_base &base, const key_walk &tile, int k,
                    int t, int r, int own_from)
{
    return t < own_from ? key_place(tile, k) : row_key_place(a.kv, base.page, a.st.rows, r, t);
}

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   chunk (1 when not split) x KV head x row; 4 warps
 * shared: q and o of the group's heads, scores of 64 keys; one stream: a key per warp
 * bound:  instructions: every element is converted to f32 and multiplied there */
template <bool LISTED>
__global__ void __launch_bounds__(128) attend_kernel(chunk_args x, const uint32_t *kept, int n_word)
{
    const attend_args &a = x.a;
    const chunk_parts &parts = x.parts; /* at NULL: rows are not cut */
    grid_trigger();
    grid_wait();
    DYN_SHARED(float, mem);
    __shared__ float top[64], total[64], shrink[64];
    int r = parts.row0 + (int)blockIdx.z, g = (int)blockIdx.y, d = a.kv.head_dim;
    int group = a.n_head / a.kv.n_head_kv, h0 = g * group;
    float *q = mem, *o = q + group * d, *p = o + group * d; /* p: [group][KEYS] */
    int warp = (int)threadIdx.x >> 5, lane = lane_id();
    sight s = row_sight(a.st.rows, r, a.kv.window);
    int from = s.lo, to = s.hi;
    if (parts.at) {
        int chunk0 = s.lo / parts.chunk;
        from = max(s.lo, (chunk0 + (int)blockIdx.x) * parts.chunk);
        to = min(s.hi, (chunk0 + (int)blockIdx.x + 1) * parts.chunk);
        if (from >= to)
            return;
    }
    dev_kv_base base = store_of(a.st, a.st.rows.seq[r], a.kv);
    const uint8_t *keys = head_rows(a.kv, base.k, g, a.kv.k_bytes), *values = keys;
    if (!a.kv.single)
        values = head_rows(a.kv, base.v, g, a.kv.v_bytes);
    float *made = p + group * KEYS + warp * d;
    for (int i = (int)threadIdx.x; i < group * d; i += 128) {
        q[i] = a.q.at[r * a.q.stride + h0 * d + i] * a.scale;
        o[i] = 0;
    }
    for (int h = (int)threadIdx.x; h < group; h += 128) {
        top[h] = -INFINITY;
        total[h] = 0;
    }
    __syncthreads();
    int own_from = own_keys_from(a.st.rows, r);
    const uint32_t *list = kept;
    if (LISTED)
        list += ((size_t)(r / LIST_KEYS) * a.kv.n_head_kv + g) * (size_t)n_word;
    int t0 = LISTED ? next_listed(list, 0, to) : from / KEYS * KEYS;
    for (; t0 < to; t0 = LISTED ? next_listed(list, t0 + KEYS, to) : t0 + KEYS) {
        const key_walk tile = key_walk_at(a.kv, base.page, t0);
        for (int k = warp; k < KEYS; k += 4) {
            int t = t0 + k;
            bool sees = t >= from && t < to;
            const uint8_t *key = keys;
            if (sees)
                key += (size_t)plain_place(a, base, tile, k, t, r, own_from) * a.kv.k_bytes;
            int kind = a.kv.k_kind;
            if (sees && a.kv.single) {
                make_plain_key(made, key, a.kv, key_pos(base.page, t));
                key = (const uint8_t *)made;
                kind = KV_F32;
            }
            for (int h = 0; h < group; h++) {
                float sum = 0;
                if (sees)
                    for (int i = lane; i < d; i += 32)
                        sum = fma_rn(q[h * d + i], kv_value(key, kind, i), sum);
                sum = warp_sum(sum);
                if (lane == 0)
                    p[h * KEYS + k] = sees ? sum : -INFINITY;
            }
        }
        __syncthreads();
        for (int h = warp; h < group; h += 4) {
            float x = p[h * KEYS + lane], y = p[h * KEYS + 32 + lane];
            float m = warp_max(x > y ? x : y), old = top[h];
            m = m > old ? m : old;
            float ex = m == -INFINITY ? 0 : expf(x - m), ey = m == -INFINITY ? 0 : expf(y - m);
            p[h * KEYS + lane] = ex;
            p[h * KEYS + 32 + lane] = ey;
            float sum = warp_sum(ex + ey), k = old == -INFINITY ? 0 : expf(old - m);
            __syncwarp();
            if (lane == 0) {
                top[h] = m;
                shrink[h] = k;
                total[h] = total[h] * k + sum;
            }
        }
        __syncthreads();
        int k0 = max(from - t0, 0), k1 = min(to - t0, (int)KEYS);
        for (int i = (int)threadIdx.x; i < group * d; i += 128) {
            int h = i / d;
            float sum = o[i] * shrink[h];
            for (int k = k0; k < k1; k++) {
                size_t place = (size_t)plain_place(a, base, tile, k, t0 + k, r, own_from);
                const uint8_t *value = values + place * a.kv.v_bytes;
                sum = fma_rn(p[h * KEYS + k], kv_value(value, a.kv.v_kind, i % d), sum);
            }
            o[i] = sum;
        }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < group * d; i += 128) {
        int h = i / d;
        if (!parts.at) {
            float sum = total[h];
            if (a.kv.sinks)
                sum += expf(a.kv.sinks[h0 + h] - top[h]);
            a.o.at[r * a.o.stride + h0 * d + i] = o[i] / sum;
            continue;
        }
        float *part = part_at(a, parts, r, h0 + h, (int)blockIdx.x);
        part[i % d] = o[i];
        if (i % d == 0) {
            part[d] = top[h];
            part[d + 1] = total[h];
        }
    }
}

enum { SUMS = 8, PARTS_MAX = 1024, WEIGHERS = PARTS_MAX / 32 };
enum { CHUNKS_FEW = 40 /* a window of 1024 keys has 33 or 34 */, CHUNKS_SOME = 128 };

/* Shapes of combine_kernel. A block has COLUMNS of a head and GROUPS threads for each column. A
 * thread loads AHEAD parts before their weights are known, then ROUND parts at a time. */
template <int C, int G, int A, int R> struct join_shape {
    static constexpr int COLUMNS = C, GROUPS = G, AHEAD = A, ROUND = R, THREADS = C * G;
    /* Of a multiprocessor. */
    static constexpr int BLOCKS = (THREADS < 256) ? 10 : (THREADS > 256) ? 1 : (A > 16) ? 2 : 4;
};
typedef join_shape<128, 1, 8, 8> join_rows;  /* many rows: as many blocks at once as there are */
typedef join_shape<128, 2, 16, 8> join_few;  /* windows, or enough blocks to fill the GPU */
typedef join_shape<32, 8, 16, 16> join_some; /* few blocks: many threads for each column */
typedef join_shape<32, 8, 72, 8> join_many;  /* hundreds of parts: all loads in flight */
typedef join_shape<128, 8, 24, 24> join_rotated; /* groups of 128 columns, rotated back */

/* The gate of column i of a head, if there are gates. */
DEV const float *gates_of(const gate_args &by, int r, int h, int i)
{
    return by.gate.at + r * by.gate.stride + (int64_t)h * by.gate_head + (by.share == 1 ? i : 0);
}
DEV float gate_value(const gate_args &by, float x)
{
    enum { SOFTPLUS = 2, SIGMOID = 3 }; /* act_kind */
    return by.act == SIGMOID ? act_of<SIGMOID>(x) : act_of<SOFTPLUS>(x);
}

/* Joins the partial results of a row's chunks into o[r, h], rotates it back where values are stored
 * rotated, multiplies it by gates, and writes its int8 copy if q is given. A column has SUMS sums,
 * of every eighth chunk each, added in order: the bits depend on the row's chunks alone, not on
 * SHAPE.
 * grid:   COLUMNS of a head x head x row; GROUPS x COLUMNS threads
 * shared: a weight per chunk; the sums of each column
 * bound:  latency; at long contexts reading the parts, 1 / chunk of the keys' own bytes */
template <class SHAPE>
__global__ void __launch_bounds__(SHAPE::THREADS, SHAPE::BLOCKS) combine_kernel(join_args j)
{
    const chunk_args &x = j.x;
    const attend_args &a = x.a;
    const dev_quant &q = j.q;
    constexpr int COLUMNS = SHAPE::COLUMNS, GROUPS = SHAPE::GROUPS, AHEAD = SHAPE::AHEAD;
    constexpr int OWN = SUMS / GROUPS, THREADS = SHAPE::THREADS, ROUND = SHAPE::ROUND;
    __shared__ float weight[PARTS_MAX], top_of[GROUPS * COLUMNS / 32], total_of[WEIGHERS];
    __shared__ __align__(16) float sums[SUMS][COLUMNS];
    grid_trigger();
    int h = (int)blockIdx.y, r = x.parts.row0 + (int)blockIdx.z, d = a.kv.head_dim,
        lane = lane_id();
    int mine = (int)threadIdx.x / COLUMNS, column = (int)threadIdx.x % COLUMNS;
    int i0 = (int)blockIdx.x * COLUMNS, i = i0 + column, c0 = (int)threadIdx.x;
    sight s = row_sight(a.st.rows, r, a.kv.window);
    int chunk = row_chunk(x.parts, s), n = (s.hi - 1) / chunk - s.lo / chunk + 1;
    const float sink = a.kv.sinks ? a.kv.sinks[h] : 0; /* a weight: loaded early */
    if (c0 < WEIGHERS)
        total_of[c0] = 0;
    grid_wait(); /* the step was uploaded before the pass; the parts are new */
    const float *part = part_at(a, x.parts, r, h, 0), *end = part + d;
    const int stride = d + PART_MORE;
    const float *gate = gates_of(j.by, r, h, j.back ? i0 + 4 * lane : i);
    bool gated = j.by.gate.at && mine == 0 && i < d;
    float g = gated && !j.back ? *gate : 0;
    /* One thread computes a chunk's weight: its two floats share no line with another chunk's. */
    float top = -INFINITY, total = 0;
    if (c0 < n) {
        top = end[(size_t)c0 * stride];
        total = end[(size_t)c0 * stride + 1];
    }
    /* These loads overlap the computation of the weights. */
    float ahead[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int c = mine + k * GROUPS;
        ahead[k] = i < d && c < n ? part[(size_t)c * stride + i] : 0;
    }
    float m = top;
    for (int c = c0 + THREADS; c < n; c += THREADS)
        m = fmaxf(m, end[(size_t)c * stride]);
    m = warp_max(m);
    if (lane == 0)
        top_of[c0 >> 5] = m;
    __syncthreads();
    m = warp_max(top_of[lane % (THREADS / 32)]);
    /* Totals are added 32 at a time, then those sums: one tree for every number of threads. */
#pragma unroll 1
    for (int c = c0; c - lane < n; c += THREADS) {
        if (c != c0 && c < n) {
            top = end[(size_t)c * stride];
            total = end[(size_t)c * stride + 1];
        }
        float w = c < n ? expf(top - m) : 0;
        weight[c] = w;
        w = warp_sum(total * w);
        if (lane == 0)
            total_of[c >> 5] = w;
    }
    __syncthreads();
    total = warp_sum(total_of[lane]);
    if (a.kv.sinks)
        total += expf(sink - m);
    float v[OWN];
#pragma unroll
    for (int k = 0; k < OWN; k++)
        v[k] = 0;
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (mine + k * GROUPS < n)
            v[k % OWN] = fma_rn(ahead[k], weight[mine + k * GROUPS], v[k % OWN]);
#pragma unroll 1
    for (int c = mine + AHEAD * GROUPS; c < n; c += ROUND * GROUPS) {
        const float *from = part + (size_t)c * stride + i;
        float next[ROUND];
#pragma unroll
        for (int k = 0; k < ROUND; k++)
            next[k] = i < d && c + k * GROUPS < n ? from[(size_t)(k * GROUPS) * stride] : 0;
#pragma unroll
        for (int k = 0; k < ROUND; k++)
            if (c + k * GROUPS < n)
                v[(AHEAD + k) % OWN] =
                    fma_rn(next[k], weight[c + k * GROUPS], v[(AHEAD + k) % OWN]);
    }
#pragma unroll
    for (int k = 0; k < OWN; k++)
        sums[mine + k * GROUPS][column] = v[k];
    __syncthreads();
    float sum = 0;
    if (mine == 0) {
        for (int k = 0; k < SUMS; k++)
            sum += sums[k][column];
        sum /= total;
    }
    float *o = a.o.at + r * a.o.stride + h * d;
    if (j.back) { /* d is a multiple of 128: one warp rotates a group */
        if (mine == 0)
            sums[0][column] = sum;
        __syncthreads();
        if (threadIdx.x >= 32)
            return;
        float4 y = rotate_four(*(float4 *)&sums[0][4 * lane], true);
        *(float4 *)(o + i0 + 4 * lane) = y;
        if (gated) {
            int step = j.by.share == 1;
            y = make_float4(gate_value(j.by, gate[0]) * y.x, gate_value(j.by, gate[step]) * y.y,
                            gate_value(j.by, gate[2 * step]) * y.z,
                            gate_value(j.by, gate[3 * step]) * y.w);
            *(float4 *)(j.by.y.at + r * j.by.y.stride + h * d + i0 + 4 * lane) = y;
        }
        if (q.q)
            quantise_four(y, q, r, h * d + i0 + 4 * lane, true);
        return;
    }
    if (mine || (i & ~31) >= d)
        return;
    if (i < d)
        o[i] = sum;
    if (gated) {
        sum *= gate_value(j.by, g);
        j.by.y.at[r * j.by.y.stride + h * d + i] = sum;
    }
    if (q.q)
        quantise_warp(sum, q, r, (h * d + i) / 32);
}

/* Columns that a block of few parts has, a warp to 32; most parts. */
enum { WARP_COLUMNS = 128, WARP_CHUNKS = 24 };

/* The same for at most MOST parts a row, up to 32, and d a multiple of 32. A lane has the weight of
 * a chunk, and the SUMS sums of a column, so warps need no barrier. Same bits. Of 33 chunks it is
 * no quicker.
 * grid:   WARP_COLUMNS of a head x head x row
 * shared: none
 * bound:  latency: a read, a warp's maximum and sum */
template <int MOST>
__global__ void __launch_bounds__(WARP_COLUMNS) combine_warps_kernel(join_args j)
{
    const chunk_args &x = j.x;
    const attend_args &a = x.a;
    static_assert(MOST <= 32, "a lane for each chunk");
    grid_trigger();
    const int h = (int)blockIdx.y, r = x.parts.row0 + (int)blockIdx.z, d = a.kv.head_dim;
    const int lane = lane_id(), i = (int)(blockIdx.x * WARP_COLUMNS + threadIdx.x);
    if (i >= d)
        return; /* whole warps; the block's first one waits */
    const sight s = row_sight(a.st.rows, r, a.kv.window);
    const int chunk = row_chunk(x.parts, s), n = (s.hi - 1) / chunk - s.lo / chunk + 1;
    const float sink = a.kv.sinks ? a.kv.sinks[h] : 0;
    const float *part = part_at(a, x.parts, r, h, 0), *gate = gates_of(j.by, r, h, i);
    const int stride = d + PART_MORE;
    grid_wait(); /* the step was uploaded before the pass; the parts are new */
    const float *end = part + lane * stride + d;
    const float top = lane < n ? end[0] : -INFINITY, total = lane < n ? end[1] : 0;
    float ahead[MOST], v[SUMS] = {};
#pragma unroll
    for (int c = 0; c < MOST; c++)
        ahead[c] = c < n ? part[c * stride + i] : 0;
    const float g = j.by.gate.at ? *gate : 0;
    const float m = warp_max(top), w = lane < n ? expf(top - m) : 0;
    float sum = warp_sum(total * w);
    if (a.kv.sinks)
        sum += expf(sink - m);
#pragma unroll
    for (int c = 0; c < MOST; c++) {
        const float weight = shfl_f32(w, c);
        if (c < n)
            v[c % SUMS] = fma_rn(ahead[c], weight, v[c % SUMS]);
    }
    float y = 0;
#pragma unroll
    for (int k = 0; k < SUMS; k++)
        y += v[k];
    y /= sum;
    a.o.at[r * a.o.stride + h * d + i] = y;
    if (j.by.gate.at) {
        y *= gate_value(j.by, g);
        j.by.y.at[r * j.by.y.stride + h * d + i] = y;
    }
    if (j.q.q)
        quantise_warp(y, j.q, r, (h * d + i) / 32);
}

template <int MOST> static void combine_warps(cudaStream_t s, const join_args &j)
{
    const attend_args &a = j.x.a;
    const int d = a.kv.head_dim, columns = d < WARP_COLUMNS ? d : (int)WARP_COLUMNS;
    dim3 grid((unsigned)((d + WARP_COLUMNS - 1) / WARP_COLUMNS), (unsigned)a.n_head,
              (unsigned)j.x.parts.n_rows);
    LAUNCH(combine_warps_kernel<MOST>, grid, dim3((unsigned)columns), 0, s, j);
}

/* Warps of a block; parts whose weights a warp has, two a lane; those it loads at a time. */
enum { QUAD_WARPS = 4, QUAD_PARTS = 64, QUAD_AHEAD = 16, QUAD_COLUMNS = 128 };

/* The same of many rows, for at most QUAD_PARTS parts a row, and d a multiple of QUAD_COLUMNS: a
 * lane has four columns and all their sums. Where the GPU has more warps than it holds, a warp that
 * reads 512 bytes at a time and never waits for others ends sooner than four that read 128. Same
 * bits.
 * grid:   QUAD_WARPS times QUAD_COLUMNS of the heads x row
 * shared: none
 * bound:  reading the parts */
__global__ void __launch_bounds__(32 * QUAD_WARPS, 4) combine_quads_kernel(join_args j)
{
    const chunk_args &x = j.x;
    const attend_args &a = x.a;
    grid_trigger();
    const int d = a.kv.head_dim, slices = d / QUAD_COLUMNS, lane = lane_id();
    const int unit = (int)(blockIdx.x * QUAD_WARPS + (threadIdx.x >> 5)), h = unit / slices;
    if (h >= a.n_head)
        return; /* whole warps; the first one of the grid waits */
    const int r = x.parts.row0 + (int)blockIdx.y;
    const int i = (unit - h * slices) * QUAD_COLUMNS + 4 * lane;
    const sight s = row_sight(a.st.rows, r, a.kv.window);
    const int chunk = row_chunk(x.parts, s), n = (s.hi - 1) / chunk - s.lo / chunk + 1;
    const float sink = a.kv.sinks ? a.kv.sinks[h] : 0;
    const float *part = part_at(a, x.parts, r, h, 0);
    const int stride = d + PART_MORE;
    grid_wait(); /* the step was uploaded before the pass; the parts are new */
    float top[2], weight[2], total = 0, m;
#pragma unroll
    for (int k = 0; k < 2; k++)
        top[k] = lane + 32 * k < n ? part[(lane + 32 * k) * stride + d] : -INFINITY;
    const float sum0 = lane < n ? part[lane * stride + d + 1] : 0;
    const float sum1 = lane + 32 < n ? part[(lane + 32) * stride + d + 1] : 0;
    float4 ahead[QUAD_AHEAD], v[SUMS] = {};
#pragma unroll
    for (int c = 0; c < QUAD_AHEAD; c++)
        if (c < n)
            ahead[c] = *(const float4 *)(part + c * stride + i);
    m = warp_max(fmaxf(top[0], top[1]));
#pragma unroll
    for (int k = 0; k < 2; k++)
        weight[k] = lane + 32 * k < n ? expf(top[k] - m) : 0;
    total = warp_sum(sum0 * weight[0]);
    if (n > 32)
        total += warp_sum(sum1 * weight[1]);
    if (a.kv.sinks)
        total += expf(sink - m);
#pragma unroll 1
    for (int c0 = 0; c0 < n; c0 += QUAD_AHEAD) {
        const float mine = c0 < 32 ? weight[0] : weight[1];
#pragma unroll
        for (int c = 0; c < QUAD_AHEAD; c++) {
            const float w = shfl_f32(mine, (c0 + c) & 31);
            float4 *to = &v[c % SUMS];
            if (c0 + c < n)
                *to = make_float4(fma_rn(ahead[c].x, w, to->x), fma_rn(ahead[c].y, w, to->y),
                                  fma_rn(ahead[c].z, w, to->z), fma_rn(ahead[c].w, w, to->w));
        }
#pragma unroll
        for (int c = 0; c < QUAD_AHEAD; c++)
            if (c0 + QUAD_AHEAD + c < n)
                ahead[c] = *(const float4 *)(part + (c0 + QUAD_AHEAD + c) * stride + i);
    }
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < SUMS; k++)
        y = make_float4(y.x + v[k].x, y.y + v[k].y, y.z + v[k].z, y.w + v[k].w);
    y = make_float4(y.x / total, y.y / total, y.z / total, y.w / total);
    *(float4 *)(a.o.at + r * a.o.stride + h * d + i) = y;
    if (j.by.gate.at) {
        const float *gate = gates_of(j.by, r, h, i);
        const int step = j.by.share == 1;
        y = make_float4(gate_value(j.by, gate[0]) * y.x, gate_value(j.by, gate[step]) * y.y,
                        gate_value(j.by, gate[2 * step]) * y.z,
                        gate_value(j.by, gate[3 * step]) * y.w);
        *(float4 *)(j.by.y.at + r * j.by.y.stride + h * d + i) = y;
    }
    if (j.q.q)
        quantise_four(y, j.q, r, h * d + i, true);
}

static void combine_quads(cudaStream_t s, const join_args &j)
{
    const attend_args &a = j.x.a;
    const int units = a.kv.head_dim / QUAD_COLUMNS * a.n_head;
    dim3 grid((unsigned)((units + QUAD_WARPS - 1) / QUAD_WARPS), (unsigned)j.x.parts.n_rows);
    LAUNCH(combine_quads_kernel, grid, dim3(32 * QUAD_WARPS), 0, s, j);
}

template <class SHAPE> static void combine(cudaStream_t s, const join_args &j)
{
    const chunk_args &x = j.x;
    const attend_args &a = x.a;
    dim3 grid((unsigned)((a.kv.head_dim + SHAPE::COLUMNS - 1) / SHAPE::COLUMNS), (unsigned)a.n_head,
              (unsigned)x.parts.n_rows);
    LAUNCH(combine_kernel<SHAPE>, grid, dim3(SHAPE::THREADS), 0, s, j);
}

extern "C" void cu_attend_combine(cudaStream_t s, join_args j, int n_sm)
{
    const chunk_args &x = j.x;
    int columns = join_few::COLUMNS, slices = (x.a.kv.head_dim + columns - 1) / columns;
    int blocks = slices * x.a.n_head * x.parts.n_rows, n = x.parts.n_chunk;
    const bool many = blocks > join_few::BLOCKS * n_sm;
    if (many && n <= QUAD_PARTS && !j.back && x.a.kv.head_dim % QUAD_COLUMNS == 0)
        combine_quads(s, j);
    else if (many)
        combine<join_rows>(s, j);
    else if (n <= WARP_CHUNKS && !j.back && x.a.kv.head_dim % 32 == 0)
        n <= 8 ? combine_warps<8>(s, j) : combine_warps<WARP_CHUNKS>(s, j);
    else if (n <= CHUNKS_FEW || blocks > 2 * n_sm)
        combine<join_few>(s, j);
    else if (j.back)
        combine<join_rotated>(s, j);
    else if (n <= CHUNKS_SOME)
        combine<join_some>(s, j);
    else
        combine<join_many>(s, j);
}

template <bool LISTED>
static void launch_plain(cudaStream_t s, const chunk_args &x, int n_chunk, int n_rows,
                         const uint32_t *kept, int n_word)
{
    const dev_kv &kv = x.a.kv;
    int group = x.a.n_head / kv.n_head_kv;
    size_t d = (size_t)kv.head_dim, made = kv.single ? 4 * d : 0;
    size_t shared = ((size_t)group * (2 * d + KEYS) + made) * sizeof(float);
    dim3 grid((unsigned)n_chunk, (unsigned)kv.n_head_kv, (unsigned)n_rows);
    LAUNCH(attend_kernel<LISTED>, grid, dim3(128), shared, s, x, kept, n_word);
}
extern "C" void cu_attend(cudaStream_t s, attend_args a)
{
    launch_plain<false>(s, chunk_args{a, {}}, 1, a.q.rows, NULL, 0);
}
extern "C" void cu_attend_listed(cudaStream_t s, listed_args x)
{
    launch_plain<true>(s, chunk_args{x.a, {}}, 1, x.a.q.rows, x.kept, x.n_word);
}
extern "C" void cu_attend_chunks(cudaStream_t s, chunk_args x)
{
    launch_plain<false>(s, x, x.parts.n_chunk, x.parts.n_rows, NULL, 0);
}

/* Called once, when the device is opened: groups of 16 heads of 512 need more shared memory. */
extern "C" int cu_attend_init(int shared_max)
{
    return allow_shared(attend_kernel<false>, shared_max) |
           allow_shared(attend_kernel<true>, shared_max);
}
