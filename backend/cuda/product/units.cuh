/* units.cuh - a warp's walk along a tile of 16 outputs: loading its units, and their sums. For
 * matmul_one.cu and matmul_experts.cu.
 *
 *     lane     one of the tile's 16 rows, and its even or odd groups (product.cuh)
 *     units    two in flight: one to registers, one to shared memory; at the end of a tile, the
 *              first two of the next
 *     rows     activations, in shared memory
 */
#ifndef BACKEND_CUDA_UNITS_CUH
#define BACKEND_CUDA_UNITS_CUH

#include "backend/cuda/product/product.cuh"

/* The planes of a matrix, or of a part of it that begins at a tile. */
struct planes {
    const uint8_t *codes, *high, *scale, *super;
};

template <int K> static inline planes planes_from(const packed &w, int first_row)
{
    using T = traits<K>;
    size_t tile = (size_t)(first_row / TILE_ROWS), units = tile * (size_t)w.n_unit;
    size_t codes = T::shares ? units * 128 : tile * (size_t)w.n_group * 16;
    return (planes){w.codes + codes * T::code, w.high + units * 128 * T::high,
                    w.scale + units * 128 * T::scale, w.super + units * 16 * T::super_bytes};
}

/* Formats whose offset multiplies a group's scale times the sum of its activations. */
template <int K> struct sums {
    static constexpr bool floats = traits<K>::offset && !traits<K>::split;
};

/* A warp's share of a unit in shared memory, 16-byte pieces of all lanes one after the other: codes
 * by group, then high bits, scales and super-block scales, where the format has them. */
template <int K> struct slot {
    using T = traits<K>;
    static constexpr int n_code = T::code / 4, n_high = T::high / 4;
    static constexpr int scale_bytes = 4 * T::scale;
    static constexpr int super_bytes = T::super_bytes == 2 ? 4 : T::super_bytes;
    static constexpr int high = n_code * 512, scale = high + n_high * 512;
    static constexpr int super = scale + scale_bytes * 32, bytes = super + super_bytes * 32;
};

/* A lane's share of a tile's units, two in flight: one to registers, one to shared memory. With
 * both in registers the compiler makes the older load wait for the younger. */
template <int K> struct lane_units {
    raw_unit<K> a;
    char *b;                      /* this lane's 16 bytes of the warp's slot */
    const uint8_t *c, *h, *s, *p; /* of the unit to load next */
    int left, group;              /* units still to load; groups of the row from the next unit on */

    /* Units unit, unit + step, .. of a tile, step = 1 << lg. */
    DEV void begin(const planes &j, int lg, int n_group, int n_unit, int tile, int unit)
    {
        using T = traits<K>;
        int row = lane_id() & 15, parity = lane_id() >> 4, step = 1 << lg;
        size_t g = (size_t)tile * n_group + unit * 8 + parity, u = (size_t)tile * n_unit + unit;
        size_t at = (u * 2 + parity) * 64 + row * 4;
        c = j.codes + (T::shares ? at * T::code : (g * (T::bytes ? 32 : 16) + row) * 16);
        h = j.high + at * T::high;
        s = j.scale + at * T::scale;
        p = j.super + (u * 16 + row) * T::super_bytes;
        left = (n_unit - unit + step - 1) >> lg;
        group = n_group - unit * 8 - parity;
        load(step);
        copy(step);
    }
    DEV void go_on(int step)
    {
        using T = traits<K>;
        c += step * 128 * T::code;
        h += step * 128 * T::high;
        s += step * 128 * T::scale;
        p += step * 16 * T::super_bytes;
        group -= step * 8;
    }
    DEV void load(int step)
    {
        using T = traits<K>;
        if (left-- <= 0)
            return;
#pragma unroll
        for (int i = 0; i < (T::shares ? a.codes : 0); i++)
            a.c[i] = load16(c + 16 * i);
#pragma unroll
        for (int i = 0; i < (T::shares ? 0 : 4); i++) {
            /* groups past the end read as zeros, like the padded planes; super-blocks are whole */
            bool in = T::whole || 2 * i < group;
            if (T::bytes) {
                a.c[2 * i] = in ? load16(c + i * 1024) : make_uint4(0, 0, 0, 0);
                a.c[2 * i + 1] = in ? load16(c + i * 1024 + 256) : make_uint4(0, 0, 0, 0);
            } else {
                a.c[i] = in ? load16(c + i * 512) : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int i = 0; i < T::high / 4; i++)
            a.h[i] = load16(h + 16 * i);
        if (T::scale == 2) {
            uint2 v = *(const uint2 *)s;
            a.s[0].x = v.x;
            a.s[0].y = v.y;
        }
        if (T::scale >= 4)
#pragma unroll
            for (int i = 0; i < T::scale / 4; i++)
                a.s[i] = load16(s + 16 * i);
        if (T::super_bytes)
            a.super = load_super<K>(p);
        go_on(step);
    }
    DEV void copy(int step)
    {
        using T = traits<K>;
        using S = slot<K>;
        if (left-- <= 0)
            return;
        int less = lane_id() * 16; /* b already points at this lane's piece */
#pragma unroll
        for (int i = 0; i < (T::shares ? S::n_code : 0); i++)
            copy16_async(b + i * 512, c + 16 * i, true);
#pragma unroll
        for (int i = 0; i < (T::shares ? 0 : 4); i++) {
            bool in = T::whole || 2 * i < group;
            if (T::bytes) {
                copy16_async(b + i * 1024, c + i * 1024, in);
                copy16_async(b + i * 1024 + 512, c + i * 1024 + 256, in);
            } else {
                copy16_async(b + i * 512, c + i * 512, in);
            }
        }
#pragma unroll
        for (int i = 0; i < S::n_high; i++)
            copy16_async(b + S::high + i * 512, h + 16 * i, true);
        if (T::scale == 2)
            copy8_async(b + S::scale - less / 2, s);
        if (T::scale >= 4)
#pragma unroll
            for (int i = 0; i < T::scale / 4; i++)
                copy16_async(b + S::scale + i * 512, s + 16 * i, true);
        if (T::super_bytes == 16)
            copy16_async(b + S::super, p, true);
        if (T::super_bytes == 8)
            copy8_async(b + S::super - less / 2, p);
        if (T::super_bytes == 2) /* a word holds the scales of two rows */
            copy4_async(b + S::super - less / 4 * 3, p - 2 * (lane_id() & 1), true);
        if (T::super_bytes == 4)
            copy4_async(b + S::super - less / 4 * 3, p, true);
        copy_commit();
        go_on(step);
    }
    DEV void take(raw_unit<K> *u)
    {
        using T = traits<K>;
        using S = slot<K>;
        int less = lane_id() * 16;
        copy_wait<0>();
#pragma unroll
        for (int i = 0; i < S::n_code; i++)
            u->c[i] = *(const uint4 *)(b + i * 512);
#pragma unroll
        for (int i = 0; i < S::n_high; i++)
            u->h[i] = *(const uint4 *)(b + S::high + i * 512);
        if (T::scale == 2) {
            uint2 v = *(const uint2 *)(b + S::scale - less / 2);
            u->s[0].x = v.x;
            u->s[0].y = v.y;
        }
        if (T::scale >= 4)
#pragma unroll
            for (int i = 0; i < T::scale / 4; i++)
                u->s[i] = *(const uint4 *)(b + S::scale + i * 512);
        if (T::super_bytes == 16)
            u->super = *(const uint4 *)(b + S::super);
        if (T::super_bytes == 8) {
            uint2 v = *(const uint2 *)(b + S::super - less / 2);
            u->super.x = v.x;
            u->super.y = v.y;
        }
        if (T::super_bytes == 2)
            u->super.x =
                *(const uint32_t *)(b + S::super - less / 4 * 3) >> 16 * (lane_id() & 1) & 0xffff;
        if (T::super_bytes == 4)
            u->super.x = *(const uint32_t *)(b + S::super - less / 4 * 3);
    }
};

/* ROWS activation rows side by side in shared memory, zero up to whole units; R of them are
 * multiplied. Per group and row: codes, twice 16 bytes, and an xscale, or, where the format has an
 * offset (sums), the scale and the scale times the sum. */
struct shared_rows {
    const uint4 *q;
    const float2 *s;
};

/* The scale times the sum of its codes, from an xscale. */
DEV float scaled_sum(float2 v)
{
    uint32_t both = __float_as_uint(v.y);
    return mul_rn(v.x, (float)((int16_t)(both & 0xffff) + (int16_t)(both >> 16)));
}

/* A row's n groups of codes and scales, `whole` with zeros behind them, into shared memory by
 * THREADS threads, all of the block. A barrier has to follow. */
template <int K, int THREADS>
DEV shared_rows row_to_shared(char *mem, const int8_t *codes, const void *scales, int n, int whole)
{
    uint4 *q = (uint4 *)mem;
    float2 *s = (float2 *)(mem + whole * 32);
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < 2 * whole; i += THREADS)
        q[i] = i < 2 * n ? ((const uint4 *)codes)[i] : make_uint4(0, 0, 0, 0);
    for (int i = (int)threadIdx.x; i < whole; i += THREADS) {
        float2 v = i < n ? ((const float2 *)scales)[i] : make_float2(0, 0);
        if (sums<K>::floats)
            v.y = scaled_sum(v);
        s[i] = v;
    }
    return (shared_rows){q, s};
}

DEV float byte_of(uint32_t v, int i)
{
    return (float)(uint8_t)(v >> 8 * i);
}

template <int K, int R, int ROWS>
DEV void unit_sums(float *acc, const raw_unit<K> &u, const shared_rows &x)
{
    using T = traits<K>;
    uint32_t sc = 0, mn = 0;
    float d = 0, m = 0;
    if (T::super) { /* group_scales, four groups at a time */
        super_scales(u.super, lane_id() >> 4, &sc, &mn);
        d = f16_to_f32(u.super.x & 0xffff);
        m = f16_to_f32(u.super.x >> 16);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        raw_group<K> raw;
        take_group<K>(&raw, u, i);
        scales v;
        if (T::super) {
            v.f0 = mul_rn(d, byte_of(sc, i));
            v.m0 = -mul_rn(m, byte_of(mn, i));
        } else if (sums<K>::floats) {
            v = group_scales<K>(raw.s, 0);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const uint4 *q = x.q + 4 * i * ROWS + 2 * r;
            float2 xs = x.s[2 * i * ROWS + r];
            if (!sums<K>::floats) {
                uint32_t both = __float_as_uint(xs.y);
                xscale e = {xs.x, (int16_t)(both & 0xffff), (int16_t)(both >> 16)};
                acc[r] = group_dot<K>(acc[r], raw, 0, q[0], q[1], e);
                continue;
            }
            int i0, i1 = half_dots<K>(raw, q[0], q[1], &i0);
            acc[r] = group_add<K>(acc[r], v, mul_rn(xs.x, (float)(i0 + i1)), 0, xs.y, 0);
        }
    }
}

/* acc[R]: the products of the warp's n units, from `unit` on. Lanes 0..15 and lanes 16..31 both get
 * rows 0..15 of the tile, with both parities added. */
template <int K, int R, int ROWS>
DEV void tile_sums(float *acc, lane_units<K> *t, int n, shared_rows x, int unit, int step)
{
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r] = 0;
    x.q += 2 * ROWS * (unit * 8 + (lane_id() >> 4));
    x.s += ROWS * (unit * 8 + (lane_id() >> 4));
    for (; n > 0; n -= 2) {
        unit_sums<K, R, ROWS>(acc, t->a, x);
        t->load(step);
        x.q += 16 * ROWS * step;
        x.s += 8 * ROWS * step;
        if (n > 1) {
            raw_unit<K> u;
            t->take(&u);
            unit_sums<K, R, ROWS>(acc, u, x);
        }
        t->copy(step);
        x.q += 16 * ROWS * step;
        x.s += 8 * ROWS * step;
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        acc[r] += shfl_xor_f32(acc[r], 16);
}

#endif
