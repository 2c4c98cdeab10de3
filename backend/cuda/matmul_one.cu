/* matmul_one.cu - one row times block-format weights: the kernel of decoding.
 *
 * Up to three products that read one activation are one launch: queries, keys and values. Outputs
 * are cut into items, what the 8 warps of a block compute between two barriers:
 *
 *     item     8 >> lg tiles of 16 outputs, 1 << lg warps to each (product_warps); of a gated unit
 *              4 >> lg tiles of W and as many of W'
 *     block    takes item b, then whichever is next (ticket): far multiprocessors read a third
 *              slower than near ones, and with fixed shares the last would end long after the first
 *     warp     copies its units to a ring of its own in shared memory, into the next item too; a
 *              lane copies what it will read, so nobody waits for others. (Through registers the
 *              compiler has all loads wait for each other, and one unit on its way is not enough.)
 *     lane     has one of a tile's 16 rows and the even or odd groups, as product.cuh has it
 *
 * Weights depend on no earlier kernel: the first units are asked for before those have ended. A
 * group's work is 8 dot products and a dozen instructions to feed them, and those instructions are
 * what bounds a layer whose weights arrive at 4.6 TB/s: scales of a unit are decoded at once, and
 * the sums that offsets want are in shared memory as they are wanted. Little code, too: at one row
 * much of it runs once, and waits to be fetched.
 */
#include "backend/cuda/product.cuh"

enum { WARPS = 8, DEPTH_MAX = 6 };

/* One of the products; of a gated unit W is the first and W' the second. */
struct one_job {
    const uint8_t *codes, *high, *scale, *super;
    float *y;
    int32_t n_out, lg, first; /* outputs; log2 of the warps per tile; first item */
};
/* Items of one format and the blocks that take them. ticket NULL: each one. */
struct one_share {
    int32_t first, end, blocks, depth; /* depth: units that a warp has on their way */
    int32_t *ticket;
};
struct one_args {
    one_job job[ONE_JOBS];
    int32_t n_jobs, n_group, n_unit;
    one_share share[2];
    const int8_t *q; /* the row as codes and scales, or NULL: */
    const void *s;
    const float *floats;
    const float *times; /* timed = gelu(y) * times */
    float *timed;
    dev_quant copy;  /* of a gated unit's y */
    bool glu;
};

/* Formats whose offsets want a group's scale times the sum of its activations. */
template <int K> struct sums {
    static constexpr bool floats = traits<K>::offset && !traits<K>::split;
};

/* A lane's share of a unit: 16 bytes of codes per group, then what there is of high bits, scales,
 * super-block scales; a warp's of all lanes, piece after piece. */
template <int K> struct slot {
    using T = traits<K>;
    static constexpr int n_code = T::bytes ? 8 : 4, n_high = T::high / 4;
    static constexpr int scale_bytes = 4 * T::scale, super_bytes = T::super ? 16 : T::six ? 4 : 0;
    static constexpr int high = n_code * 512, scale = high + n_high * 512;
    static constexpr int super = scale + scale_bytes * 32, bytes = super + super_bytes * 32;
};

/* Where a warp's share of an item is. */
struct spot {
    int job, tile, unit, n; /* n units from `unit` on; 0: the tile is past the end */
};

DEV spot spot_of(const one_args &a, int item)
{
    int warp = (int)threadIdx.x >> 5, half = a.glu ? WARPS / 2 : WARPS, in = warp & (half - 1);
    spot s;
    s.job = a.glu ? warp >= half
                  : (a.n_jobs > 1 && item >= a.job[1].first) +
                        (a.n_jobs > 2 && item >= a.job[2].first);
    const one_job &j = a.job[s.job];
    s.tile = (item - j.first) * (half >> j.lg) + (in >> j.lg);
    s.unit = in & ((1 << j.lg) - 1);
    s.n = s.tile * TILE_ROWS < j.n_out ? (a.n_unit - s.unit + (1 << j.lg) - 1) >> j.lg : 0;
    return s;
}

/* A warp's ring of units in shared memory, which each lane fills and reads for itself. Every put is
 * a group of copies, also where there is nothing left to copy, so that the oldest of `depth` groups
 * is the unit to use next. */
template <int K> struct ring {
    char *mem; /* this lane's 16 bytes of the first slot */
    int in, out, depth, last; /* slots, and where the last begins */
    const uint8_t *c, *h, *s, *p; /* of the next unit to copy */
    int left, group, step;        /* units to copy; groups from its first on; units from one to the next */
    int next, end;                /* the item after, below end if there is one */
    bool gap, loose;              /* nothing was put; and then again something */

    DEV void open(const one_args &a, int item)
    {
        using T = traits<K>;
        spot at = spot_of(a, item);
        const one_job &j = a.job[at.job];
        int row = lane_id() & 15, parity = lane_id() >> 4;
        size_t g = (size_t)at.tile * a.n_group + at.unit * 8 + parity;
        size_t u = (size_t)at.tile * a.n_unit + at.unit, k = (u * 2 + parity) * 64 + row * 4;
        c = j.codes + (g * (T::bytes ? 32 : 16) + row) * 16;
        h = j.high + k * T::high;
        s = j.scale + k * T::scale;
        p = j.super + (T::six ? (u * 16 + row) / 2 * 4 : (u * 16 + row) * T::super_bytes);
        left = at.n;
        step = 1 << j.lg;
        group = a.n_group - at.unit * 8 - parity;
    }
    DEV void put(const one_args &a)
    {
        using T = traits<K>;
        using S = slot<K>;
        if (!left && next < end) {
            open(a, next);
            next = end;
        }
        if (left) {
            char *to = mem + in;
            int less = lane_id() * 16; /* mem is 16 bytes a lane on */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                /* past the end: zeros, as in the padded planes; super-blocks are whole */
                bool ok = T::super || T::six || 2 * i < group;
                if (T::bytes) {
                    copy16_async(to + i * 1024, c + i * 1024, ok);
                    copy16_async(to + i * 1024 + 512, c + i * 1024 + 256, ok);
                } else {
                    copy16_async(to + i * 512, c + i * 512, ok);
                }
            }
#pragma unroll
            for (int i = 0; i < S::n_high; i++)
                copy16_async(to + S::high + i * 512, h + 16 * i, true);
            if (T::scale == 2)
                copy8_async(to + S::scale - less / 2, s);
            if (T::scale >= 4)
#pragma unroll
                for (int i = 0; i < T::scale / 4; i++)
                    copy16_async(to + S::scale + i * 512, s + 16 * i, true);
            if (T::super)
                copy16_async(to + S::super, p, true);
            if (T::six) /* two rows' in a word */
                copy4_async(to + S::super - less / 4 * 3, p);
            c += step * (T::bytes ? 4096 : 2048);
            h += step * 128 * T::high;
            s += step * 128 * T::scale;
            p += step * 16 * T::super_bytes;
            group -= step * 8;
            left--;
            in = in == last ? 0 : in + S::bytes;
            loose |= gap;
        } else {
            gap = true;
        }
        copy_commit();
    }
    DEV void take(raw_unit<K> *u)
    {
        using T = traits<K>;
        using S = slot<K>;
        if (loose || depth == 1)
            copy_wait<0>();
        else if (depth == 2)
            copy_wait<1>();
        else if (depth == 3)
            copy_wait<2>();
        else
            copy_wait<DEPTH_MAX - 1>();
        const char *from = mem + out;
        int less = lane_id() * 16;
#pragma unroll
        for (int i = 0; i < S::n_code; i++)
            u->c[i] = *(const uint4 *)(from + i * 512);
#pragma unroll
        for (int i = 0; i < S::n_high; i++)
            u->h[i] = *(const uint4 *)(from + S::high + i * 512);
        if (T::scale == 2) {
            uint2 v = *(const uint2 *)(from + S::scale - less / 2);
            u->s[0].x = v.x;
            u->s[0].y = v.y;
        }
        if (T::scale >= 4)
#pragma unroll
            for (int i = 0; i < T::scale / 4; i++)
                u->s[i] = *(const uint4 *)(from + S::scale + i * 512);
        if (T::super)
            u->super = *(const uint4 *)(from + S::super);
        if (T::six)
            u->super.x = *(const uint32_t *)(from + S::super - less / 4 * 3) >>
                             16 * (lane_id() & 1) & 0xffff;
        out = out == last ? 0 : out + S::bytes;
    }
};

/* The row in shared memory, with zeros up to whole units: codes, two 16 bytes per group, and per
 * group its scale with the sums: an xscale, or where K says so the scale times their sum. */
struct one_row {
    const uint4 *q;
    const float2 *s;
};

/* Bits 0 1, 4 5, 8 9, 12 13 of h as bits 4 and 5 of four bytes. */
DEV uint32_t spread(uint32_t h)
{
    uint32_t p = (h & 0xff) * 0x101 | (h & 0xff00) * 0x10100;
    return (p << 4 & 0x00300030) | (p & 0x30003000);
}
DEV float byte_of(uint32_t v, int i)
{
    return (float)(uint8_t)(v >> 8 * i);
}

template <int K> DEV float unit_sum(float acc, const raw_unit<K> &u, const one_row &x)
{
    using T = traits<K>;
    uint32_t sc = 0, mn = 0;
    float d = 0, m = 0;
    if (T::super) { /* group_scales, four groups at a time */
        int parity = lane_id() >> 4;
        uint32_t w = u.super.w >> 2 * parity;
        sc = (u.super.y >> 4 * parity & 0x0f0f0f0f) | spread(w);
        mn = (u.super.z >> 4 * parity & 0x0f0f0f0f) | spread(w >> 16);
        d = f16_to_f32(u.super.x & 0xffff);
        m = f16_to_f32(u.super.x >> 16);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 xa = x.q[4 * i], xb = x.q[4 * i + 1];
        float2 xs = x.s[2 * i];
        raw_group<K> raw;
        take_group<K>(&raw, u, i);
        if (!sums<K>::floats) {
            uint32_t both = __float_as_uint(xs.y);
            xscale v = {xs.x, (int16_t)(both & 0xffff), (int16_t)(both >> 16)};
            acc = group_dot<K>(acc, raw, 0, xa, xb, v);
            continue;
        }
        scales v;
        if (T::super) {
            v.f0 = mul_rn(d, byte_of(sc, i));
            v.m0 = -mul_rn(m, byte_of(mn, i));
        } else {
            v = group_scales<K>(raw.s, 0);
        }
        int i0, i1 = half_dots<K>(raw, xa, xb, &i0);
        acc = group_add<K>(acc, v, i0 + i1, 0, xs.x, xs.y, 0);
    }
    return acc;
}

/* The n units of an item; lanes 0..15 get rows 0..15, both parities joined. */
template <int K>
DEV float tile_sum(ring<K> *r, const one_args &a, const spot &at, one_row x, int step)
{
    float acc = 0;
    x.q += 2 * (at.unit * 8 + (lane_id() >> 4));
    x.s += at.unit * 8 + (lane_id() >> 4);
#pragma unroll 1
    for (int n = at.n; n > 0; n--) {
        raw_unit<K> u;
        r->take(&u);
        acc = unit_sum<K>(acc, u, x);
        r->put(a);
        x.q += 16 * step;
        x.s += 8 * step;
    }
    return acc + shfl_xor_f32(acc, 16);
}

/* What offsets want of an xscale's second word. */
DEV float scaled_sum(float2 v)
{
    uint32_t both = __float_as_uint(v.y);
    return mul_rn(v.x, (float)((int16_t)(both & 0xffff) + (int16_t)(both >> 16)));
}

template <int K> DEV one_row read_row(char *mem, const one_args &a)
{
    int n = a.n_group, whole = a.n_unit * UNIT;
    uint4 *q = (uint4 *)mem;
    float2 *s = (float2 *)(mem + whole * 32);
    if (a.q) {
#pragma unroll 2
        for (int i = (int)threadIdx.x; i < 2 * whole; i += 32 * WARPS)
            q[i] = i < 2 * n ? ((const uint4 *)a.q)[i] : make_uint4(0, 0, 0, 0);
        for (int i = (int)threadIdx.x; i < whole; i += 32 * WARPS) {
            float2 v = i < n ? ((const float2 *)a.s)[i] : make_float2(0, 0);
            if (sums<K>::floats)
                v.y = scaled_sum(v);
            s[i] = v;
        }
    } else { /* a short row: every block makes the codes for itself */
        dev_quant to = {(int8_t *)q, s, 0, 1, 32 * whole, 1};
#pragma unroll 1
        for (int g = (int)threadIdx.x >> 5; g < whole; g += WARPS) {
            quantise_warp(g < n ? a.floats[32 * g + lane_id()] : 0, to, 0, g);
            __syncwarp();
            if (sums<K>::floats && lane_id() == 0)
                s[g].y = scaled_sum(s[g]);
        }
    }
    __syncthreads();
    return (one_row){q, s};
}

/* An item's outputs from its warps' sums. */
DEV void write_item(const one_args &a, int item, const float (*part)[16])
{
    int k = (int)threadIdx.x >> 4, at = (int)threadIdx.x & 15;
    int job = a.glu ? 0
                    : (a.n_jobs > 1 && item >= a.job[1].first) +
                          (a.n_jobs > 2 && item >= a.job[2].first);
    const one_job &j = a.job[job];
    int n_tiles = (a.glu ? WARPS / 2 : WARPS) >> j.lg, tile = (item - j.first) * n_tiles + k;
    int o = tile * TILE_ROWS + at;
    if ((k & ~1) >= n_tiles || (tile & ~1) * TILE_ROWS >= j.n_out) /* whole warps */
        return;
    float v = 0, u = 0;
    if (k < n_tiles && o < j.n_out) {
        for (int i = 0; i < 1 << j.lg; i++) {
            v += part[(k << j.lg) + i][at];
            if (a.glu)
                u += part[WARPS / 2 + (k << j.lg) + i][at];
        }
        if (a.glu)
            v = gelu_tanh(v) * u;
        j.y[o] = v;
        if (a.times)
            a.timed[o] = gelu_tanh(v) * a.times[o];
    }
    if (a.copy.q) /* gated: an item is 32 outputs, or 64 */
        quantise_warp(v, a.copy, 0, tile >> 1);
}

/* A number for thread 0: the item after the next. Drawn once for each block and each item, so the
 * last to draw is known and sets the ticket back for the next launch. */
DEV void draw(const one_share &s, int *drawn)
{
    if (!s.ticket || threadIdx.x)
        return;
    int old = atomicAdd(s.ticket, 1);
    *drawn = s.first + s.blocks + old;
    if (old == s.end - s.first + s.blocks - 1)
        *s.ticket = 0;
}

struct one_shared {
    float part[2][WARPS][16];
    int drawn[2];
};

/* What block b of the share does. */
template <int K>
DEV void work(const one_args &a, const one_share &s, int b, char *mem, one_shared *shared)
{
    using S = slot<K>;
    int warp = (int)threadIdx.x >> 5, item = s.first + b, next = s.end;
    ring<K> r;
    r.mem = mem + a.n_unit * UNIT * 40 + warp * s.depth * S::bytes + lane_id() * 16;
    r.in = r.out = 0;
    r.depth = s.depth;
    r.last = (s.depth - 1) * S::bytes;
    r.next = r.end = s.end;
    r.gap = r.loose = false;
    r.open(a, item);
#pragma unroll 1
    for (int i = 0; i < s.depth; i++)
        r.put(a);
    draw(s, &shared->drawn[1]);
    grid_wait();
    one_row x = read_row<K>(mem, a);
    if (s.ticket)
        next = shared->drawn[1];
    for (int turn = 0;; turn ^= 1) {
        draw(s, &shared->drawn[turn]);
        spot at = spot_of(a, item);
        r.next = next;
        float sum = tile_sum<K>(&r, a, at, x, 1 << a.job[at.job].lg);
        if (lane_id() < 16)
            shared->part[turn][warp][lane_id()] = sum;
        __syncthreads();
        write_item(a, item, shared->part[turn]);
        if (next >= s.end)
            return;
        item = next;
        next = s.ticket ? shared->drawn[turn] : s.end;
    }
}

/* y[o] = sum_i x[i] W[o, i], of up to three W; or y = gelu(W x) * (W' x), with its copy. The first
 * share's weights are of format K, the second's of K2.
 * grid:   as many blocks as fit the GPU, or one per item
 * shared: the row, 1.25 bytes a value; the warps' rings, 50 to 150 KB
 * bound:  reading W, and as much the work on each group */
template <int K, int K2>
__global__ void __launch_bounds__(32 * WARPS, 2) one_kernel(one_args a)
{
    DYN_SHARED(char, mem);
    __shared__ one_shared shared;
    grid_trigger();
    if (K == K2 || (int)blockIdx.x < a.share[0].blocks)
        work<K>(a, a.share[0], (int)blockIdx.x, mem, &shared);
    else
        work<K2>(a, a.share[1], (int)blockIdx.x - a.share[0].blocks, mem, &shared);
}

/* ---- Launching ----------------------------------------------------------------------------- */

/* Job i of the launch; tiles of W begin at row first_row of it. */
template <int K> static void put_job(one_args *a, const product_args &p, bool up)
{
    using T = traits<K>;
    const packed &w = up ? p.up : p.w;
    size_t tile = (size_t)(up ? p.up_row / TILE_ROWS : 0), units = tile * (size_t)w.n_unit;
    one_job *j = &a->job[a->n_jobs++];
    *j = (one_job){w.codes + tile * (size_t)w.n_group * 16 * T::code,
                   w.high + units * 128 * T::high,
                   w.scale + units * 128 * T::scale,
                   w.super + units * 16 * T::super_bytes,
                   p.y.at,
                   p.n_out,
                   0,
                   0};
    while (1 << j->lg < product_warps(w, p.glu))
        j->lg++;
}

/* Jobs from..to - 1 are a share; bytes: about what its weights take. */
template <int K> static double put_share(one_args *a, int which, int from, int to)
{
    using T = traits<K>;
    one_share *s = &a->share[which];
    double bytes = 0;
    s->first = s->end = which ? a->share[0].end : 0;
    for (int i = from; i < to; i++) {
        one_job *j = &a->job[i];
        int outputs = ((a->glu ? WARPS / 2 : WARPS) >> j->lg) * TILE_ROWS;
        j->first = s->first;
        if (!a->glu || i == from) {
            j->first = s->end;
            s->end += (j->n_out + outputs - 1) / outputs;
        }
        bytes += j->n_out * (T::code + T::high + T::scale + T::super_bytes / 8.0);
    }
    return bytes;
}

/* 6 units, or 3, 2, 1: what leaves a third of a multiprocessor's memory to the next kernel, or, of
 * little memory, whatever fits. */
static int depth(one_room gpu, int per_sm, int row, int bytes)
{
    static const int depths[] = {DEPTH_MAX, 3, 2};
    int most = gpu.shared_sm / 3 * 2 / per_sm - ONE_STATIC_SHARED;
    for (int i = 0; i < 3; i++)
        if (row + WARPS * depths[i] * bytes <= (most < gpu.shared_block ? most : gpu.shared_block))
            return depths[i];
    return 1;
}

template <int K, int K2> static void start(cudaStream_t s, one_args *a, int n_first, one_room gpu)
{
    int row = a->n_unit * UNIT * 40, fit = 2 * gpu.n_sm;
    double bytes0 = put_share<K>(a, 0, 0, n_first);
    double bytes1 = K != K2 ? put_share<K2>(a, 1, n_first, a->n_jobs) : 0;
    int items0 = a->share[0].end, items1 = K != K2 ? a->share[1].end - items0 : 0;
    int one = (int)(fit * bytes1 / (bytes0 + bytes1)); /* bytes1 0: 0 */
    if (items0 + items1 > fit) {
        one = one < 1 && items1 ? 1 : one < items1 ? one : items1;
        a->share[0].blocks = items0 < fit - one ? items0 : fit - one;
        a->share[1].blocks = one;
        a->share[0].ticket = a->share[0].blocks < items0 ? gpu.ticket : 0;
        a->share[1].ticket = one < items1 ? gpu.ticket + 1 : 0;
    } else {
        a->share[0].blocks = items0;
        a->share[1].blocks = items1;
    }
    int per_sm = (a->share[0].blocks + a->share[1].blocks + gpu.n_sm - 1) / gpu.n_sm;
    a->share[0].depth = depth(gpu, per_sm, row, slot<K>::bytes);
    a->share[1].depth = depth(gpu, per_sm, row, slot<K2>::bytes);
    int shared0 = row + WARPS * slot<K>::bytes * a->share[0].depth;
    int shared1 = row + WARPS * slot<K2>::bytes * a->share[1].depth;
    LAUNCH((one_kernel<K, K2>), dim3((unsigned)(a->share[0].blocks + a->share[1].blocks)),
           dim3(32 * WARPS), (size_t)(shared0 > shared1 ? shared0 : shared1), s, *a);
}

/* The n products in p are of format K, or those after n_first of K2. */
template <int K, int K2>
static void products(cudaStream_t s, const product_args *const *p, int n, int n_first,
                     one_room gpu)
{
    one_args a = {};
    const product_args &x = *p[0];
    a.n_group = x.w.n_group;
    a.n_unit = x.w.n_unit;
    a.q = x.x.q;
    a.s = x.x.s;
    a.floats = x.floats;
    a.times = x.times;
    a.timed = x.timed;
    a.copy = x.q;
    a.glu = x.glu;
    for (int i = 0; i < n; i++) {
        if (i < n_first)
            put_job<K>(&a, *p[i], false);
        else
            put_job<K2>(&a, *p[i], false);
    }
    if (a.glu)
        put_job<K>(&a, x, true);
    start<K, K2>(s, &a, a.glu ? 2 : n_first, gpu);
}

template <int K, int K2> static int allow(int shared_block)
{
#ifdef CARAT_EMU
    return shared_block < 0;
#else
    return (int)cudaFuncSetAttribute(one_kernel<K, K2>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared_block);
#endif
}

/* Once, at open: all the shared memory there is. */
extern "C" int cu_one_init(int shared_block)
{
    int n = shared_block - ONE_STATIC_SHARED;
    return allow<PACK_Q4_0, PACK_Q4_0>(n) | allow<PACK_Q4_1, PACK_Q4_1>(n) |
           allow<PACK_Q5_0, PACK_Q5_0>(n) | allow<PACK_Q5_1, PACK_Q5_1>(n) |
           allow<PACK_Q8_0, PACK_Q8_0>(n) | allow<PACK_Q4_K, PACK_Q4_K>(n) |
           allow<PACK_Q5_K, PACK_Q5_K>(n) | allow<PACK_Q6_K, PACK_Q6_K>(n) |
           allow<PACK_G8, PACK_G8>(n) | allow<PACK_Q4_K, PACK_Q6_K>(n);
}

#define SAME(K)                                                                                    \
    case K:                                                                                        \
        products<K, K>(s, p, n, n, gpu);                                                         \
        break;
static void products_of(cudaStream_t s, const product_args *const *p, int n, one_room gpu)
{
    switch (p[0]->w.kind) {
        SAME(PACK_Q4_0)
        SAME(PACK_Q4_1)
        SAME(PACK_Q5_0)
        SAME(PACK_Q5_1)
        SAME(PACK_Q8_0)
        SAME(PACK_Q4_K)
        SAME(PACK_Q5_K)
        SAME(PACK_Q6_K)
    default:
        products<PACK_G8, PACK_G8>(s, p, n, n, gpu);
    }
}

/* Products of one format go together, and those of Q4_K with those of Q6_K, as they stand side by
 * side in the usual mix; other formats get launches of their own. */
extern "C" void cu_products(cudaStream_t s, const product_args *job, int n, one_room gpu)
{
    const product_args *p[ONE_JOBS];
    int n_by[PACK_END] = {0}, at = 0;
    for (int kind = 0; kind < PACK_END; kind++)
        for (int j = 0; j < n; j++)
            if (job[j].w.kind == kind) {
                p[at++] = &job[j];
                n_by[kind]++;
            }
    int n4 = n_by[PACK_Q4_K];
    if (n4 && n4 < n && n4 + n_by[PACK_Q6_K] == n) {
        products<PACK_Q4_K, PACK_Q6_K>(s, p, n, n4, gpu);
        return;
    }
    for (int from = 0; from < n; from += n_by[p[from]->w.kind], gpu.ticket += 2)
        products_of(s, p + from, n_by[p[from]->w.kind], gpu);
}
