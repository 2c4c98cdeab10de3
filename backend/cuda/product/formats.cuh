/* formats.cuh - packed weights as kernels read them: codes, scales, and the sum of one group.
 *
 *     group    32 columns of one row: codes as 8 words of 4 bytes, and up to two factors and two
 *              offsets, one for each half of 16
 *     share    a lane's part of a unit: the groups of one parity of one row
 *
 * launch.h draws the layout. group_add alone turns integer sums into floats. Every kernel of int8
 * activations calls it in the same order of groups, so results do not depend on the number of rows.
 */
#ifndef BACKEND_CUDA_FORMATS_CUH
#define BACKEND_CUDA_FORMATS_CUH

#include "backend/cuda/launch.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/product/layouts.cuh"

/* Does a layout add a value per group? Its products need the sums of the activations too. */
static constexpr bool has_offset(int kind)
{
    return kind == PACK_Q4_1 || kind == PACK_Q5_1 || kind == PACK_Q4_K || kind == PACK_Q5_K ||
           kind == PACK_G8;
}

/* Compile-time facts of a layout. */
template <int K> struct traits {
    static constexpr bool bytes = K == PACK_Q8_0 || K == PACK_G8; /* codes of 8 bits */
    static constexpr bool five = K == PACK_Q5_0 || K == PACK_Q5_1 || K == PACK_Q5_K;
    static constexpr bool six = K == PACK_Q6_K;
    static constexpr bool super = K == PACK_Q4_K || K == PACK_Q5_K;
    static constexpr bool levels = K == PACK_IQ4 || K == PACK_FP4;
    /* Lattices (lattice.cuh): entries of four values, of eight; indices of eight bits. */
    static constexpr bool three = K == PACK_IQ3_XXS || K == PACK_IQ3_S;
    static constexpr bool one = K == PACK_IQ1;
    static constexpr bool pairs = K == PACK_IQ2_XS || K == PACK_IQ2_S; /* a scale per 16 */
    static constexpr bool two = K == PACK_IQ2_XXS || pairs, lattice = one || two || three;
    static constexpr bool xxs = K == PACK_IQ3_XXS || K == PACK_IQ2_XXS;
    static constexpr bool bits = K == PACK_BITS1 || K == PACK_BITS2;
    static constexpr bool shares = lattice || bits; /* the layout of codes */
    static constexpr bool split =
        six || one || pairs || K == PACK_FP4 || K == PACK_G8;    /* scales per 16 */
    static constexpr bool is_signed = bytes || levels || shares; /* words are int8 */
    static constexpr bool whole = super || six || shares;        /* units have all their codes */
    static constexpr bool offset = has_offset(K);
    /* Stored codes are this much larger than signed ones. */
    static constexpr int bias = K == PACK_Q4_0 ? 8 : K == PACK_Q5_0 ? 16 : K == PACK_Q6_K ? 32 : 0;
    static constexpr int code = bytes ? 32 : three || K == PACK_BITS2 ? 8 : shares ? 4 : 16;
    static constexpr int high = five || two || three ? 4 : six ? 8 : 0;
    static constexpr int scale = K == PACK_Q4_0 || K == PACK_Q5_0 || K == PACK_Q8_0 ? 2
                                 : K == PACK_Q4_1 || K == PACK_Q5_1                 ? 4
                                 : six || levels || pairs || one                    ? 2
                                 : K == PACK_G8                                     ? 16
                                                                                    : 0;
    static constexpr int super_bytes = super || K == PACK_IQ3_S        ? 16
                                       : xxs || one || K == PACK_BITS2 ? 8
                                       : levels || K == PACK_BITS1     ? 4
                                       : six || pairs                  ? 2
                                                                       : 0;
};

/* Layouts of experts that may stay with the host, whose cores can read them (offload.c). */
template <int K> static constexpr bool stays_on_host = K <= PACK_FP4;

struct scales {
    float f0, f1, m0, m1; /* factor and offset of each half; the second half's only where split */
};

/* The bytes of one group as stored: loaded early, decoded later. */
template <int K> struct raw_group {
    uint4 c0, c1;
    uint32_t h0, h1;
    uint4 s; /* scale and super; of shares: d, the scales, upper bits of indices */
};

DEV uint4 load16(const void *p)
{
#ifdef CARAT_EMU
    return *(const uint4 *)p;
#else
    uint4 v; /* a streaming load: weights are read once and must not evict activations */
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
#endif
}

/* Where a share begins in the high and scale planes, in groups. */
DEV size_t share_at(const packed &w, int tile, int unit, int parity, int row)
{
    return (((size_t)tile * w.n_unit + unit) * 2 + parity) * 64 + row * 4;
}

/* A row's bytes of a unit's super plane. */
template <int K> DEV uint4 load_super(const uint8_t *p)
{
    constexpr int bytes = traits<K>::super_bytes;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (bytes == 16)
        v = load16(p);
    if (bytes == 8) {
        uint2 half = *(const uint2 *)p;
        v.x = half.x, v.y = half.y;
    }
    if (bytes == 4)
        v.x = *(const uint32_t *)p;
    if (bytes == 2)
        v.x = *(const uint16_t *)p;
    return v;
}

/* Of group i of a parity, where codes are by shares: d; its scale, or both; upper bits of its
 * indices, with others above. s: the share's scale plane. */
template <int K> DEV uint4 share_scales(const uint4 &super, const uint2 &s, int parity, int i)
{
    using T = traits<K>;
    if (T::bits) {
        const int at = K == PACK_BITS1 ? i >> 1 : i;
        return make_uint4((at < 2 ? super.x : super.y) >> 16 * (at & 1) & 0xffff, 0, 0, 0);
    }
    if (T::one) {
        const uint32_t all = parity ? super.y >> 8 : super.x >> 16 | super.y << 16;
        return make_uint4(super.x, all >> 6 * i & 63, (i < 2 ? s.x : s.y) >> 16 * (i & 1), 0);
    }
    if (T::pairs)
        return make_uint4(super.x, s.x >> 8 * i & 0xff, s.y >> 2 * i, 0);
    uint32_t upper = K == PACK_IQ3_S ? (parity ? super.w : super.z) >> i : 0;
    return make_uint4(super.x, super.y >> 16 * parity >> 4 * i & 15, upper, 0);
}

/* tile, group g, row within the tile. */
template <int K>
DEV void load_scales(raw_group<K> *r, const packed &w, size_t base, int tile, int g, int row)
{
    using T = traits<K>;
    size_t at = share_at(w, tile, g >> 3, g & 1, row) + (g >> 1 & 3);
    size_t ts = (size_t)tile * w.n_unit + (g >> 3);
    if (T::shares) {
        uint4 super = load_super<K>(w.super + base + (ts * 16 + row) * T::super_bytes);
        uint2 s = make_uint2(0, 0);
        if (T::scale == 2)
            s = *(const uint2 *)(w.scale + base + (at & ~(size_t)3) * 2);
        r->s = share_scales<K>(super, s, g & 1, g >> 1 & 3);
        return;
    }
    if (T::scale == 2)
        r->s.x = *(const uint16_t *)(w.scale + base + at * 2);
    if (T::scale == 4)
        r->s.x = *(const uint32_t *)(w.scale + base + at * 4);
    if (T::scale == 16)
        r->s = *(const uint4 *)(w.scale + base + at * 16);
    if (T::super)
        r->s = load_super<K>(w.super + base + (ts * 16 + row) * T::super_bytes);
    if (T::six || T::levels)
        r->s.y = load_super<K>(w.super + base + (ts * 16 + row) * T::super_bytes).x;
}

template <int K>
DEV void load_high(uint32_t *h0, uint32_t *h1, const packed &w, size_t base, int tile, int g,
                   int row)
{
    using T = traits<K>;
    size_t at = share_at(w, tile, g >> 3, g & 1, row) + (g >> 1 & 3);
    if (T::high == 4)
        *h0 = *(const uint32_t *)(w.high + base + at * 4);
    if (T::six) {
        uint2 h = *(const uint2 *)(w.high + base + at * 8);
        *h0 = h.x;
        *h1 = h.y;
    }
}

template <int K>
DEV void load_group(raw_group<K> *r, const packed &w, size_t base, int tile, int g, int row)
{
    using T = traits<K>;
    size_t tg = (size_t)tile * w.n_group + g;
    if (T::bytes) {
        r->c0 = load16(w.codes + base + ((tg * 2) * 16 + row) * 16);
        r->c1 = load16(w.codes + base + ((tg * 2 + 1) * 16 + row) * 16);
    } else if (T::shares) {
        size_t at = share_at(w, tile, g >> 3, g & 1, row) + (g >> 1 & 3);
        const uint32_t *p = (const uint32_t *)(w.codes + base + at * T::code);
        r->c0 = make_uint4(p[0], T::code == 8 ? p[T::code == 8] : 0, 0, 0);
    } else {
        r->c0 = load16(w.codes + base + (tg * 16 + row) * 16);
    }
    load_high<K>(&r->h0, &r->h1, w, base, tile, g, row);
    load_scales<K>(r, w, base, tile, g, row);
}

/* The bytes of a share as stored. */
template <int K> struct raw_unit {
    static constexpr int codes = traits<K>::code / 4; /* of 16 bytes */
    uint4 c[codes];
    uint4 h[2];
    uint4 s[traits<K>::scale == 16 ? 4 : 1];
    uint4 super;
};

template <int K>
DEV void load_unit(raw_unit<K> *r, const packed &w, size_t base, int tile, int unit, int row,
                   int parity)
{
    using T = traits<K>;
    int g0 = unit * 8 + parity;
    const uint8_t *c = w.codes + base + (((size_t)tile * w.n_group + g0) * 16 + row) * T::code;
    if (T::bytes)
        c = w.codes + base + (((size_t)tile * w.n_group + g0) * 32 + row) * 16;
    size_t at = share_at(w, tile, unit, parity, row);
#pragma unroll
    for (int i = 0; i < (T::shares ? r->codes : 0); i++)
        r->c[i] = load16(w.codes + base + at * T::code + 16 * i);
#pragma unroll
    for (int i = 0; i < (T::shares ? 0 : 4); i++) {
        bool in = g0 + 2 * i < w.n_group; /* groups past the end read as zeros */
        if (T::bytes) {
            r->c[2 * i] = in ? load16(c + i * 1024) : make_uint4(0, 0, 0, 0);
            r->c[2 * i + 1] = in ? load16(c + i * 1024 + 256) : make_uint4(0, 0, 0, 0);
        } else {
            r->c[i] = in ? load16(c + i * 512) : make_uint4(0, 0, 0, 0);
        }
    }
    if (T::high == 4)
        r->h[0] = load16(w.high + base + at * 4);
    if (T::six) {
        r->h[0] = load16(w.high + base + at * 8);
        r->h[1] = load16(w.high + base + at * 8 + 16);
    }
    if (T::scale == 2) {
        uint2 s = *(const uint2 *)(w.scale + base + at * 2);
        r->s[0].x = s.x;
        r->s[0].y = s.y;
    }
    if (T::scale == 4)
        r->s[0] = load16(w.scale + base + at * 4);
    if (T::scale == 16)
#pragma unroll
        for (int i = 0; i < 4; i++)
            r->s[i] = load16(w.scale + base + at * 16 + 16 * i);
    size_t ts = ((size_t)tile * w.n_unit + unit) * 16 + row;
    if (T::super_bytes)
        r->super = load_super<K>(w.super + base + ts * T::super_bytes);
}

DEV uint32_t pick(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Group i of the share, as load_group gives it; i is a compile-time constant. */
template <int K> DEV void take_group(raw_group<K> *g, const raw_unit<K> &u, int i)
{
    using T = traits<K>;
    if (T::shares) {
        const uint4 &c = u.c[T::code == 8 ? i >> 1 : 0];
        g->c0.x = pick(c, T::code == 8 ? (i & 1) * 2 : i);
        g->c0.y = T::code == 8 ? pick(c, (i & 1) * 2 + 1) : 0;
        if (T::high)
            g->h0 = pick(u.h[0], i);
        g->s = share_scales<K>(u.super, make_uint2(u.s[0].x, u.s[0].y), lane_id() >> 4, i);
        return;
    }
    g->c0 = u.c[T::bytes ? 2 * i : i];
    if (T::bytes)
        g->c1 = u.c[T::bytes ? 2 * i + 1 : 0];
    if (T::five)
        g->h0 = pick(u.h[0], i);
    if (T::six) {
        g->h0 = pick(u.h[i >> 1], (i & 1) * 2);
        g->h1 = pick(u.h[i >> 1], (i & 1) * 2 + 1);
    }
    if (T::scale == 2)
        g->s.x = pick(u.s[0], i >> 1) >> (i & 1) * 16 & 0xffff;
    if (T::scale == 4)
        g->s.x = pick(u.s[0], i);
    if (T::scale == 16)
        g->s = u.s[T::scale == 16 ? i : 0];
    if (T::super)
        g->s = u.super;
    if (T::six || T::levels)
        g->s.y = u.super.x;
}

/* The fifth bits of word w from h, at bit 4 of each byte. */
DEV uint32_t fifth(uint32_t h, int w)
{
    return (w <= 4 ? h << (4 - w) : h >> (w - 4)) & 0x10101010;
}
DEV uint32_t fifth_sixth(uint32_t h, int w) /* w 0..3 within its half */
{
    return (w <= 2 ? h << (4 - 2 * w) : h >> (2 * w - 4)) & 0x30303030;
}

/* The levels of eight nibbles as int8: of the lower four and of the upper four. Two permutes choose
 * among eight levels each, a third takes one of the two by the nibble's top bit. */
template <int K> DEV void level_words(uint32_t nib, uint32_t *lo, uint32_t *hi)
{
    constexpr bool iq = K == PACK_IQ4;
    constexpr uint32_t a = iq ? 0xbfad9881 : 0x03020100, b = iq ? 0xf6eaddcf : 0x0c080604,
                       c = iq ? 0x26190d01 : 0xfdfeff00, d = iq ? 0x71594535 : 0xf4f8fafc;
    uint32_t at = nib & 0x77777777, top = (nib >> 1 & 0x44444444) | in_register(0x32103210);
    *lo = pick_by(pick_by(a, b, at), pick_by(c, d, at), top);
    at >>= 16;
    *hi = pick_by(pick_by(a, b, at), pick_by(c, d, at), top >> 16);
}

/* Word w (0..3) of the first half and of the second: lo and hi from one word of nibbles. */
template <int K>
DEV void code_words(uint32_t nib, uint32_t byte1, uint32_t h0, uint32_t h1, int w, uint32_t *lo,
                    uint32_t *hi)
{
    using T = traits<K>;
    if (T::bytes) {
        *lo = nib;
        *hi = byte1;
        return;
    }
    if (T::levels) {
        level_words<K>(nib, lo, hi);
        return;
    }
    *lo = nib & 0x0f0f0f0f;
    *hi = nib >> 4 & 0x0f0f0f0f;
    if (T::five) {
        *lo |= fifth(h0, w);
        *hi |= fifth(h0, w + 4);
    }
    if (T::six) {
        *lo |= fifth_sixth(h0, w);
        *hi |= fifth_sixth(h1, w);
    }
}

/* Bits 0 1, 4 5, 8 9, 12 13 of h as bits 4 and 5 of four bytes. */
DEV uint32_t spread(uint32_t h)
{
    uint32_t p = (h & 0xff) * 0x101 | (h & 0xff00) * 0x10100;
    return (p << 4 & 0x00300030) | (p & 0x30003000);
}

/* The scales of a parity's four groups from a super-block, a byte each, and their minima. */
DEV void super_scales(const uint4 &super, int parity, uint32_t *sc, uint32_t *mn)
{
    uint32_t w = super.w >> 2 * parity;
    *sc = (super.y >> 4 * parity & 0x0f0f0f0f) | spread(w);
    *mn = (super.z >> 4 * parity & 0x0f0f0f0f) | spread(w >> 16);
}

template <int K> DEV scales group_scales(const uint4 s, int g)
{
    using T = traits<K>;
    scales v = {0, 0, 0, 0};
    if (K == PACK_Q4_0 || K == PACK_Q5_0 || K == PACK_Q8_0 || T::bits) {
        v.f0 = f16_to_f32(s.x);
    } else if (K == PACK_Q4_1 || K == PACK_Q5_1) {
        v.f0 = f16_to_f32(s.x & 0xffff);
        v.m0 = f16_to_f32(s.x >> 16);
    } else if (T::super) {
        /* x: d, dmin; y, z: low nibbles of eight scales, of eight minima; w: their upper bits */
        int j = g & 7;
        int sc = (int)(s.y >> 4 * j & 15) | (int)(s.w >> 2 * j & 3) << 4;
        int mn = (int)(s.z >> 4 * j & 15) | (int)(s.w >> (16 + 2 * j) & 3) << 4;
        v.f0 = mul_rn(f16_to_f32(s.x & 0xffff), (float)sc);
        v.m0 = -mul_rn(f16_to_f32(s.x >> 16), (float)mn);
    } else if (T::six) {
        float d = f16_to_f32(s.y & 0xffff);
        v.f0 = mul_rn(d, (float)(int8_t)(s.x & 0xff));
        v.f1 = mul_rn(d, (float)(int8_t)(s.x >> 8 & 0xff));
    } else if (T::lattice) {
        constexpr float unit = !T::three ? 0.125f : T::xxs ? 0.25f : 1.0f;
        constexpr int bits = T::one ? 3 : 4; /* of a scale */
        float d = f16_to_f32(s.x & 0xffff) * unit;
        v.f0 = mul_rn(d, (float)(2 * (int)(s.y & ((1 << bits) - 1)) + 1));
        v.f1 = mul_rn(d, (float)(2 * (int)(s.y >> bits) + 1));
    } else if (K == PACK_IQ4) {
        v.f0 = mul_rn(f16_to_f32(s.x & 0xffff), __uint_as_float(s.y));
    } else if (K == PACK_FP4) { /* a bfloat16 of both halves with its sign set, or two e4m3 */
        float both = __uint_as_float((s.x & 0x7fff) << 16), by = __uint_as_float(s.y);
        float e0 = f16_to_f32((s.x & 0x7f) << 7) * 128, e1 = f16_to_f32(s.x >> 1 & 0x3f80) * 128;
        v.f0 = mul_rn(s.x & 0x8000 ? both : e0, by);
        v.f1 = mul_rn(s.x & 0x8000 ? both : e1, by);
    } else {
        v.f0 = __uint_as_float(s.x);
        v.f1 = __uint_as_float(s.y);
        v.m0 = __uint_as_float(s.z);
        v.m1 = __uint_as_float(s.w);
    }
    return v;
}

/* acc + one group's product. t0, t1: the activation's scale d times the integer dot product of each
 * half, rounded once; where scales are not split, t0 covers the whole group. e0, e1: d times the
 * activation's sum over each half, likewise, for formats with an offset. */
template <int K>
DEV float group_add(float acc, const scales &v, float t0, float t1, float e0, float e1)
{
    using T = traits<K>;
    acc = fma_rn(v.f0, t0, acc);
    if (T::split)
        acc = fma_rn(v.f1, t1, acc);
    if (T::offset)
        acc = fma_rn(v.m0, e0, acc);
    if (T::offset && T::split)
        acc = fma_rn(v.m1, e1, acc);
    return acc;
}

/* The same from dot products of stored codes, which still have their bias. */
template <int K>
DEV float group_sum(float acc, const scales &v, int i0, int i1, float d, int s0, int s1)
{
    using T = traits<K>;
    if (!T::split)
        s0 += s1;
    float e0 = T::offset ? mul_rn(d, (float)s0) : 0;
    float e1 = T::offset && T::split ? mul_rn(d, (float)s1) : 0;
    float t0 = mul_rn(d, (float)(i0 - T::bias * s0)), t1 = mul_rn(d, (float)(i1 - T::bias * s1));
    return group_add<K>(acc, v, t0, t1, e0, e1);
}

#endif
