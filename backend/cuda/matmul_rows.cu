/* matmul_rows.cu - 2 to 32 rows times a block-format weight: verification of drafts, answers of
 * several sessions.
 *
 * The integer tensor cores take 16 weight rows x 32 columns against 8 activation rows at once; a
 * group's integer sums leave the unit and meet their scales in f32, since every 32 columns have
 * scales of their own. The weight is read once for all rows, and is what time goes by: it comes
 * through shared memory in pieces of 16 bytes a lane, three units deep.
 *
 *     weights      [3 stages][warp][unit of a tile]         each warp its own
 *     activations  [2 stages][part][8-row tile][unit]       one copy for all tiles of the block
 *     scales       [warp] a unit's as floats, made once for 8 groups
 *     sums         [tile][part][row][16 outputs]            over the weights, if they are done with
 *
 * A block has several tiles, and for each of them warps that share its columns as in
 * matmul_one.cu; even and odd groups are summed apart and joined at the end, so a row's result is
 * bit for bit the one that matmul_one.cu gives.
 */
#include "backend/cuda/product.cuh"

enum { X_CODES = 8 * 8 * 32, X_UNIT = X_CODES + 8 * 8 * 8, STAGES = 3 };

/* A unit of a tile as staged: the planes' parts one after the other. */
template <int K> struct staged {
    using T = traits<K>;
    static constexpr int codes = 128 * T::code, high = 128 * T::high, scale = 128 * T::scale;
    static constexpr int super = 16 * T::super_bytes;
    static constexpr int at_high = codes, at_scale = codes + high, at_super = at_scale + scale;
    static constexpr int bytes = at_super + super;
};

struct rows_args {
    product_args p;
    int first;       /* row of y and x that is this launch's row 0, a multiple of 8 */
    int n_rows;      /* of this launch */
    int shares;      /* parts that a tile's units are dealt to, u to part u mod shares */
    int abreast;     /* parts at work at a time, a warp each; the others have their turn after */
    int unit_rounds; /* most units of a part */
};

/* A place in the block's work: the unit that part 0 of those abreast is at. */
struct place_at {
    int turn, round;
    DEV int unit(const rows_args &r, int share) const
    {
        return round * r.shares + turn * r.abreast + share;
    }
    DEV void on(const rows_args &r)
    {
        if (++round == r.unit_rounds)
            round = 0, turn++;
    }
};

template <int BYTES> DEV void copy_plane(uint8_t *to, const uint8_t *from)
{
#pragma unroll
    for (int i = 0; i < BYTES; i += 512) {
        int at = i + 16 * lane_id();
        if (at < BYTES)
            copy16_async(to + at, from + at, true);
    }
}

/* A unit's bytes on their way to shared memory. Groups past the end have no codes: zeros. */
template <int K> DEV void copy_unit(uint8_t *to, const packed &w, int tile, int unit)
{
    using S = staged<K>;
    const uint8_t *codes = w.codes + ((size_t)tile * w.n_group + unit * 8) * (S::codes / 8);
    int n = (w.n_group - unit * 8) * (S::codes / 8);
#pragma unroll
    for (int i = 0; i < S::codes; i += 512) {
        int at = i + 16 * lane_id();
        copy16_async(to + at, codes + (at < n ? at : 0), at < n);
    }
    size_t tu = (size_t)tile * w.n_unit + unit;
    copy_plane<S::high>(to + S::at_high, w.high + tu * S::high);
    copy_plane<S::scale>(to + S::at_scale, w.scale + tu * S::scale);
    copy_plane<S::super>(to + S::at_super, w.super + tu * S::super);
}

/* The scales of a unit's activations, on their way through registers: two rows' a lane. For
 * formats with an offset the kernel wants d and d times the group's sum, not the sums. */
template <int K> struct x_scales {
    static constexpr bool made = traits<K>::offset && !traits<K>::split;
    uint2 v[2];

    DEV void load(const xscale *from, int groups, int rows)
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int b = 32 * k + lane_id();
            bool ok = b >> 3 < groups && (b & 7) < rows;
            v[k] = ok ? *(const uint2 *)(from + b) : make_uint2(0, 0);
        }
    }
    DEV void store(uint8_t *to) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint2 u = v[k];
            int sum = (int)(int16_t)u.y + (int16_t)(u.y >> 16);
            if (made)
                u.y = __float_as_uint(mul_rn(__uint_as_float(u.x), (float)sum));
            *(uint2 *)(to + 8 * (32 * k + lane_id())) = u;
        }
    }
};

/* The activations of a place, by all warps: codes in the background, scales as x_scales. A warp
 * has the pairs (part, tile of 8 rows) warp, warp + n_warps, ..: at most NT, as there are no more
 * parts abreast than warps. Zeros for rows and groups that are not there. */
template <int K, int NT> struct x_copy {
    x_scales<K> s[NT];

    DEV void begin(uint8_t *to, const rows_args &r, const place_at &at)
    {
        const dev_quant &x = r.p.x;
        int n_group = x.cols >> 5, warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int i = warp + j * n_warps, t = i % NT, unit = at.unit(r, i / NT);
            int groups = n_group - unit * 8, rows = r.n_rows - 8 * t;
            if (i >= r.abreast * NT || groups <= 0)
                break;
            size_t from = ((size_t)((r.first >> 3) + t) * n_group + unit * 8) * 8;
#pragma unroll
            for (int k = 0; k < X_CODES; k += 512) {
                int b = k + 16 * lane_id();
                bool ok = b >> 8 < groups && (b >> 5 & 7) < rows;
                copy16_async(to + i * X_UNIT + b, x.q + (ok ? from * 32 + b : 0), ok);
            }
            s[j].load((const xscale *)x.s + from, groups, rows);
        }
    }
    DEV void end(uint8_t *to, const rows_args &r, const place_at &at) const
    {
        int n_group = r.p.x.cols >> 5, warp = (int)threadIdx.x >> 5;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int i = warp + j * ((int)blockDim.x >> 5);
            if (i >= r.abreast * NT || at.unit(r, i / NT) * 8 >= n_group)
                break;
            s[j].store(to + i * X_UNIT + X_CODES);
        }
    }
};

/* A unit's scales as the lanes of a fragment want them: (f0, m0 or f1) of rows g and g + 8. */
typedef float2 unit_scales[8][8][2];

template <int K> DEV void make_scales(unit_scales to, const uint8_t *unit)
{
    using T = traits<K>;
    using S = staged<K>;
    int lane = lane_id(), row = lane & 15, parity = lane >> 4;
    uint4 super = make_uint4(0, 0, 0, 0);
    if (T::super)
        super = *(const uint4 *)(unit + S::at_super + row * 16);
    if (T::six)
        super.y = *(const uint16_t *)(unit + S::at_super + row * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint8_t *at = unit + S::at_scale + (parity * 64 + row * 4 + i) * T::scale;
        uint4 s = super;
        if (T::scale == 2)
            s.x = *(const uint16_t *)at;
        if (T::scale == 4)
            s.x = *(const uint32_t *)at;
        scales v = group_scales<K>(s, parity + 2 * i);
        to[parity + 2 * i][row & 7][row >> 3] = make_float2(v.f0, T::split ? v.f1 : v.m0);
    }
}

/* The words of a weight fragment: rows g and g + 8, halves of the group. */
template <int K> DEV void load_fragment(uint32_t *a, const uint8_t *unit, int g, int gid, int tid)
{
    using T = traits<K>;
    using S = staged<K>;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = gid + 8 * h;
        uint32_t c0, c1 = 0, h0 = 0, h1 = 0;
        if (T::bytes) {
            c0 = *(const uint32_t *)(unit + (g * 32 + row) * 16 + 4 * tid);
            c1 = *(const uint32_t *)(unit + (g * 32 + 16 + row) * 16 + 4 * tid);
        } else {
            c0 = *(const uint32_t *)(unit + (g * 16 + row) * 16 + 4 * tid);
        }
        const uint8_t *high = unit + S::at_high + ((g & 1) * 64 + row * 4 + (g >> 1)) * T::high;
        if (T::five)
            h0 = *(const uint32_t *)high;
        if (T::six) {
            uint2 both = *(const uint2 *)high;
            h0 = both.x, h1 = both.y;
        }
        code_words_at<K>(c0, c1, h0, h1, tid, &a[h], &a[2 + h]);
        a[h] = signed_codes<K>(a[h]);
        a[2 + h] = signed_codes<K>(a[2 + h]);
    }
}

template <int K>
DEV void take_scales(scales *v, const unit_scales t, const uint8_t *unit, int g, int gid)
{
    if (K == PACK_G8) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            v[h] = group_scales<K>(*(const uint4 *)(unit + staged<K>::at_scale +
                                                    ((g & 1) * 64 + (gid + 8 * h) * 4 + (g >> 1)) *
                                                        traits<K>::scale),
                                   g);
        return;
    }
    float4 f = *(const float4 *)t[g][gid];
    v[0] = {f.x, f.y, f.y, 0}; /* the second is f1 where scales are split, else m0 */
    v[1] = {f.z, f.w, f.w, 0};
}

/* group_add from what x_scales stored. */
template <int K>
DEV float add_group(float acc, const scales &v, int i0, int i1, uint32_t d, uint32_t more)
{
    float f = __uint_as_float(d), e0 = 0, e1 = 0;
    if (x_scales<K>::made)
        e0 = __uint_as_float(more);
    else if (traits<K>::offset)
        e0 = mul_rn(f, (float)(int16_t)more), e1 = mul_rn(f, (float)(int16_t)(more >> 16));
    return group_add<K>(acc, v, i0, i1, f, e0, e1);
}

/* A unit times the activations. acc: [even, odd groups][tile of 8 rows][c0..c3] */
template <int K, int NT>
DEV void multiply_unit(float (*acc)[NT][4], const uint8_t *unit, const uint8_t *x,
                       const unit_scales table)
{
    using T = traits<K>;
    int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int g = 0; g < 8; g++) {
        uint32_t a[4];
        scales v[2];
        load_fragment<K>(a, unit, g, gid, tid);
        take_scales<K>(v, table, unit, g, gid);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            uint2 b = *(const uint2 *)(x + t * X_UNIT + (g * 8 + gid) * 32 + 8 * tid);
            const uint8_t *xs = x + t * X_UNIT + X_CODES + (g * 8 + 2 * tid) * 8;
            uint4 s = *(const uint4 *)xs; /* of rows 2 tid and 2 tid + 1 */
            uint32_t d[2] = {s.x, s.z}, more[2] = {s.y, s.w};
            int c[4], c1[4] = {0, 0, 0, 0};
            if (T::split) {
                mma_s8_k16(c, a, b.x);
                mma_s8_k16(c1, a + 2, b.y);
            } else {
                uint32_t bb[2] = {b.x, b.y};
                mma_s8_k32(c, a, bb);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[g & 1][t][i] =
                    add_group<K>(acc[g & 1][t][i], v[i >> 1], c[i], c1[i], d[i & 1], more[i & 1]);
        }
    }
}

/* A part of a tile is done: its sums to where all meet, and from nothing again. */
template <int NT> DEV void keep_sums(float *part, float (*acc)[NT][4])
{
    int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            part[(t * 8 + 2 * tid + (i & 1)) * 16 + gid + 8 * (i >> 1)] = acc[0][t][i] + acc[1][t][i];
            acc[0][t][i] = acc[1][t][i] = 0;
        }
}

/* The parts of row r, output o of tile slot `slot`, in ascending order. */
DEV float joined(const float *part, const rows_args &r, int n_row, int slot, int row, int o)
{
    float v = 0;
    for (int s = 0; s < r.shares; s++)
        v += part[((slot * r.shares + s) * n_row + row) * 16 + o];
    return v;
}

/* part: n_row rows of each part of each tile slot; n_tile tiles of the result. */
DEV void finish(const float *part, const rows_args &r, int n_row, int n_tile)
{
    const dev_mat &y = r.p.y;
    for (int i = (int)threadIdx.x; i < r.n_rows * n_tile * 16; i += (int)blockDim.x) {
        int row = i / (n_tile * 16), at = i % (n_tile * 16);
        int o = (int)blockIdx.x * n_tile * 16 + at;
        if (o < r.p.n_out)
            y.at[(r.first + row) * y.stride + o] = joined(part, r, n_row, at >> 4, row, at & 15);
    }
}

/* The same, gated. n_tile is even: a warp has 32 outputs of a row, which is a group of the copy. */
DEV void finish_gated(const float *part, const rows_args &r, int n_row, int n_tile)
{
    const dev_mat &y = r.p.y;
    int pairs = n_tile / 2;
    for (int i = (int)threadIdx.x >> 5; i < r.n_rows * pairs; i += (int)blockDim.x >> 5) {
        int row = i / pairs, at = i % pairs * 32 + lane_id();
        int o = (int)blockIdx.x * n_tile * 16 + at, base = o & ~31;
        float v = 0;
        if (base >= r.p.n_out)
            continue;
        if (o < r.p.n_out) {
            v = gelu_tanh(joined(part, r, n_row, at >> 4, row, at & 15)) *
                joined(part, r, n_row, n_tile + (at >> 4), row, at & 15);
            y.at[(r.first + row) * y.stride + o] = v;
        }
        if (r.p.q.q)
            quantise_warp(v, r.p.q, r.first + row, base >> 5);
    }
}

/* y[r, o] = sum_i x[r, i] W[o, i], or gelu(W x) * (W' x) and its int8 copy where wanted
 * grid:   blocks of warps / abreast tiles of 16 outputs; gated: half of them are tiles of W'
 * shared: as drawn above
 * bound:  reading W; from 16 rows on also the f32 work on each group's sums */
template <int K, int NT, bool GLU>
__global__ void __launch_bounds__(256, NT < 4 ? 3 : 1) rows_kernel(rows_args r)
{
    DYN_SHARED(uint8_t, mem);
    const product_args &a = r.p;
    int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5;
    int n_slot = n_warps / r.abreast, slot = warp / r.abreast, share = warp % r.abreast;
    int n_tile = GLU ? n_slot / 2 : n_slot; /* of the result */
    bool second = GLU && slot >= n_tile;
    int tile = (int)blockIdx.x * n_tile + (second ? slot - n_tile : slot);
    bool in = tile * 16 < a.n_out;
    const packed &w = second ? a.up : a.w;
    if (second)
        tile += a.up_row / 16;

    uint8_t *weights = mem + warp * staged<K>::bytes;
    const int stage = n_warps * staged<K>::bytes, x_stage = r.abreast * NT * X_UNIT;
    uint8_t *xs = mem + STAGES * stage;
    unit_scales *table = (unit_scales *)(xs + 2 * x_stage);
    float *part = r.shares > r.abreast ? (float *)(table + n_warps) : (float *)mem;
    table += warp;

    float acc[2][NT][4];
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[b][t][i] = 0;

    place_at now = {0, 0}, ahead = {0, 0}; /* what is multiplied; what is asked for */
    int n_step = r.shares / r.abreast * r.unit_rounds;
    grid_trigger();
    for (int k = 0; k < STAGES - 1; k++, ahead.on(r)) {
        int u = ahead.unit(r, share);
        if (in && k < n_step && u < w.n_unit)
            copy_unit<K>(weights + k * stage, w, tile, u);
    }
    grid_wait();
    x_copy<K, NT> x;
    x.begin(xs, r, now);
    x.end(xs, r, now);
    copy_commit();
    copy_commit(); /* from here on: activations of a unit, weights of the unit after it, .. */
    for (int k = 0; k < n_step; k++, ahead.on(r)) {
        copy_wait<1>(); /* all but the unit after this one */
        __syncthreads();
        place_at next = now;
        next.on(r);
        uint8_t *x_next = xs + (~k & 1) * x_stage;
        if (k + 1 < n_step)
            x.begin(x_next, r, next);
        copy_commit();
        int u = ahead.unit(r, share);
        if (in && k + STAGES - 1 < n_step && u < w.n_unit)
            copy_unit<K>(weights + (k + STAGES - 1) % STAGES * stage, w, tile, u);
        copy_commit();
        if (in && now.unit(r, share) < w.n_unit) {
            const uint8_t *unit = weights + k % STAGES * stage;
            if (K != PACK_G8) /* floats already */
                make_scales<K>(*table, unit);
            __syncwarp();
            multiply_unit<K, NT>(acc, unit, xs + (k & 1) * x_stage + share * NT * X_UNIT, *table);
        }
        if (k + 1 < n_step)
            x.end(x_next, r, next);
        if (next.turn != now.turn && k + 1 < n_step)
            keep_sums<NT>(part + (slot * r.shares + now.turn * r.abreast + share) * NT * 128, acc);
        now = next;
    }
    __syncthreads(); /* where all parts are abreast the sums lie over the weights */
    keep_sums<NT>(part + (slot * r.shares + r.shares - r.abreast + share) * NT * 128, acc);
    __syncthreads();

    if (GLU)
        finish_gated(part, r, NT * 8, n_tile);
    else
        finish(part, r, NT * 8, n_tile);
}

static int shared_most = 99 << 10; /* a block's: what every GPU of 8.0 and above grants */
static int n_processors = 132;

/* Of n blocks side by side on a multiprocessor: warps beyond eight hide one another's waiting. */
static double time_of(int n, int warps)
{
    return n ? n * (1 + 8.0 / (n * warps)) : 0;
}

/* How a launch of up to 8 NT rows is cut: blocks of 8 or 4 warps, how many parts abreast; the rest
 * have their turn after, which changes no sum. What counts is the time of the multiprocessor that
 * gets most tiles. Returns the bytes of shared memory, 0 if
 * nothing fits. */
template <int K, int NT> static size_t cut(rows_args *r, int *n_warps)
{
    int tiles = (r->p.n_out + 15) / 16, weights = r->p.glu ? 2 : 1;
    size_t best = 0;
    double least = 0;
    r->shares = product_warps(r->p.w, r->p.glu);
    r->unit_rounds = (r->p.w.n_unit + r->shares - 1) / r->shares;
    for (int warps = 8; warps >= 4; warps /= 2)
        for (int n = 1; n <= r->shares && n <= warps / (r->p.glu ? 4 : 1); n *= 2) {
            int slots = warps / n, n_tile = slots / weights;
            size_t need =
                (size_t)warps * (STAGES * staged<K>::bytes + sizeof(unit_scales)) +
                (size_t)(2 * n * NT * X_UNIT) +
                (n < r->shares ? (size_t)(slots * r->shares * NT * 128) * sizeof(float) : 0);
            if (need > (size_t)shared_most)
                continue;
            int here = (tiles + n_tile - 1) / n_tile; /* blocks, then those of one processor */
            here = (here + n_processors - 1) / n_processors;
            int fit = (int)(((size_t)shared_most + 1024) / (need + 1024));
            int at_once = (NT < 4 ? 24 : 12) / warps; /* registers */
            fit = fit < at_once ? fit : at_once;
            double cost = n_tile * (here / fit * time_of(fit, warps) + time_of(here % fit, warps));
            if (best && cost >= least)
                continue;
            best = need;
            least = cost;
            r->abreast = n;
            *n_warps = warps;
        }
    return best;
}

template <int K, int NT, bool GLU> static bool rows_launch(cudaStream_t s, rows_args r)
{
    int warps, tiles = (r.p.n_out + 15) / 16;
    size_t shared = cut<K, NT>(&r, &warps);
    if (!shared)
        return false;
    int n_tile = warps / r.abreast / (GLU ? 2 : 1);
    LAUNCH((rows_kernel<K, NT, GLU>), dim3((unsigned)((tiles + n_tile - 1) / n_tile)),
           dim3(32u * (unsigned)warps), shared, s, r);
    return true;
}

/* As few launches as shared memory allows; 8 rows always fit. */
template <int K, bool GLU> static void rows_of(cudaStream_t s, product_args a)
{
    for (int first = 0, n; first < a.y.rows; first += n) {
        rows_args r = {a, first, a.y.rows - first, 0, 0, 0};
        n = r.n_rows;
        if (n > 16 && rows_launch<K, 4, GLU>(s, r))
            continue;
        n = r.n_rows = n > 16 ? 16 : n;
        if (n > 8 && rows_launch<K, 2, GLU>(s, r))
            continue;
        n = r.n_rows = n > 8 ? 8 : n;
        rows_launch<K, 1, GLU>(s, r);
    }
}

template <int K> static void rows_any(cudaStream_t s, product_args a)
{
    if (a.glu)
        rows_of<K, true>(s, a);
    else
        rows_of<K, false>(s, a);
}

extern "C" void cu_product_rows(cudaStream_t s, product_args a)
{
    switch (a.w.kind) {
    case PACK_Q4_0:
        rows_any<PACK_Q4_0>(s, a);
        break;
    case PACK_Q4_1:
        rows_any<PACK_Q4_1>(s, a);
        break;
    case PACK_Q5_0:
        rows_any<PACK_Q5_0>(s, a);
        break;
    case PACK_Q5_1:
        rows_any<PACK_Q5_1>(s, a);
        break;
    case PACK_Q8_0:
        rows_any<PACK_Q8_0>(s, a);
        break;
    case PACK_Q4_K:
        rows_any<PACK_Q4_K>(s, a);
        break;
    case PACK_Q5_K:
        rows_any<PACK_Q5_K>(s, a);
        break;
    case PACK_Q6_K:
        rows_any<PACK_Q6_K>(s, a);
        break;
    default:
        rows_any<PACK_G8>(s, a);
    }
}

template <class F> static int allow(F *kernel)
{
#ifdef CARAT_EMU
    (void)kernel;
    return 0;
#else
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     shared_most);
#endif
}

template <int K> static int allow_kind()
{
    return allow(rows_kernel<K, 1, false>) | allow(rows_kernel<K, 1, true>) |
           allow(rows_kernel<K, 2, false>) | allow(rows_kernel<K, 2, true>) |
           allow(rows_kernel<K, 4, false>) | allow(rows_kernel<K, 4, true>);
}

/* largest: shared memory that this GPU grants a block, in bytes. */
extern "C" int cu_rows_init(int largest, int processors)
{
    n_processors = processors;
    shared_most = largest > shared_most ? largest : shared_most;
    return allow_kind<PACK_Q4_0>() | allow_kind<PACK_Q4_1>() | allow_kind<PACK_Q5_0>() |
           allow_kind<PACK_Q5_1>() | allow_kind<PACK_Q8_0>() | allow_kind<PACK_Q4_K>() |
           allow_kind<PACK_Q5_K>() | allow_kind<PACK_Q6_K>() | allow_kind<PACK_G8>();
}
