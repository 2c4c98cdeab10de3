/* rows_unit.cuh - the inner loop of matmul_rows.cu: a unit of weights (16 rows x 256 columns) from
 * shared memory through the integer tensor cores, in few instructions.
 *
 *     codes    formats with a bias store code + 8, 16 or 32. Moved to the top of their byte, with
 *              the top bit flipped, they are 16, 8 or 4 times the signed code
 *     sums     accumulators start at the integer whose bits are the float 1.5 * 2^23. The result,
 *              read as a float, is that number plus the sum. One multiply-add subtracts it, divides
 *              by 16, 8 or 4 and applies the activation's scale. It rounds once, because
 *              1.5 * 2^23 times the scale is exact (quant_scale)
 *     scales   of six or eight bits become floats in the same way: they replace a byte of the float
 *              2^23, and one multiply-add gives factor times scale, exact in 24 bits
 */
#ifndef BACKEND_CUDA_ROWS_UNIT_CUH
#define BACKEND_CUDA_ROWS_UNIT_CUH

#include "backend/cuda/product/product.cuh"

enum { X_CODES = 8 * 8 * 32, EXACT_BITS = 0x4b400000 /* 1.5 * 2^23 */ };
static constexpr float EXACT = 12582912.0f;

/* A unit of a tile in shared memory: its parts of the planes, one after the other. */
template <int K> struct staged {
    using T = traits<K>;
    static constexpr int codes = 128 * T::code, high = 128 * T::high, scale = 128 * T::scale;
    static constexpr int super = 16 * T::super_bytes;
    static constexpr int at_high = codes, at_scale = codes + high, at_super = at_scale + scale;
    static constexpr int bytes = at_super + super;
    /* A parity's scales as floats, [16 rows][2 groups] factor, offset: of its latter two groups. Of
     * the former two they take the place of the super-blocks that they were made of. */
    static constexpr int table = T::super ? 256 : 0;
    /* A unit of 8 rows of activations: codes, then per group and row the scale, and where a format
     * wants them its sums. */
    static constexpr int x_scale = T::offset ? 8 : 4, x_unit = X_CODES + 64 * x_scale;
};

/* Where a lane's bytes of a tile's planes begin; it copies 16 of every 512. */
template <int K> struct tile_at {
    using S = staged<K>;
    const uint8_t *codes, *high, *scale, *super;

    /* base: where the matrix begins in every plane. */
    DEV void begin(const packed &w, int tile, size_t base)
    {
        size_t units = (size_t)tile * w.n_unit, lane = base + 16 * (size_t)lane_id();
        codes = w.codes + lane +
                (traits<K>::shares ? units * S::codes : (size_t)tile * w.n_group * (S::codes / 8));
        high = w.high + lane + units * S::high;
        scale = w.scale + lane + units * S::scale;
        super = w.super + lane + units * S::super;
        /* the addresses are final: compilers would keep both summands and add them at each use */
        codes = opaque(codes);
        high = opaque(high);
        scale = opaque(scale);
        super = opaque(super);
    }
    template <int BYTES> DEV static void copy_plane(uint8_t *to, const uint8_t *plane, int unit)
    {
        const uint8_t *from = plane + (size_t)unit * BYTES;
#pragma unroll
        for (int i = 0; i < BYTES; i += 512)
            if (BYTES - i >= 512 || 16 * lane_id() < BYTES - i)
                copy16_async(to + i, from + i, true);
    }
    /* Starts the copy of a unit to shared memory. Groups past the end become zeros. */
    DEV void copy(uint8_t *to, int unit, int n_group) const
    {
        to += 16 * lane_id();
        if (traits<K>::whole) {
            copy_plane<S::codes>(to, codes, unit);
        } else {
            const uint8_t *from = codes + (size_t)unit * S::codes;
            int n = (n_group - unit * 8) * (S::codes / 8) - 16 * lane_id();
#pragma unroll
            for (int i = 0; i < S::codes; i += 512)
                copy16_async(to + i, from + i, i < n);
        }
        copy_plane<S::high>(to + S::at_high, high, unit);
        copy_plane<S::scale>(to + S::at_scale, scale, unit);
        copy_plane<S::super>(to + S::at_super, super, unit);
    }
};

/* The float 2^23 with byte i of v as byte 0 of its mantissa; the next function: as byte 1. */
DEV float in_byte0(uint32_t v, int i, uint32_t power)
{
    return __uint_as_float(pick_bytes(v, power, 0x7440 + i));
}
DEV float in_byte1(uint32_t v, int i, uint32_t power)
{
    return __uint_as_float(pick_bytes(v, power, 0x7404 + 16 * i));
}

/* A lane's part of a super-block's scales, to be made floats: of one row, two of the four groups of
 * each parity. So no two lanes decode the same scale. */
struct super_part {
    uint32_t even, odd;       /* bytes: two scales, two minima */
    float d, d_off, m, m_off; /* factors, and 2^23 times them, negated */

    DEV void begin(const uint8_t *super)
    {
        const int half = lane_id() >> 4; /* groups 4 half to 4 half + 3 */
        const uint4 v = *(const uint4 *)(super + (lane_id() & 15) * 16);
        /* Low nibbles of four scales, of four minima; upper bits of them, each four twice. */
        uint32_t low = pick_bytes(v.y, v.z, half ? 0x7632 : 0x5410);
        uint32_t up = pick_bytes(v.w, 0, half ? 0x3311 : 0x2200);
        even = (low & 0x0f0f0f0f) | (up << 4 & 0x00300030) | (up & 0x30003000);
        odd = (low >> 4 & 0x0f0f0f0f) | (up << 2 & 0x00300030) | (up >> 2 & 0x30003000);
        d = f16_to_f32(v.x & 0xffff);
        m = -f16_to_f32(v.x >> 16);
        d_off = -0x1p23f * d;
        m_off = -0x1p23f * m;
    }
    DEV void write(uint8_t *super, uint8_t *table, uint32_t v, uint32_t power) const
    {
        uint8_t *to = lane_id() < 16 ? super : table;
        *(float4 *)(to + (lane_id() & 15) * 16) = make_float4(
            fma_rn(d, in_byte0(v, 0, power), d_off), fma_rn(m, in_byte0(v, 2, power), m_off),
            fma_rn(d, in_byte0(v, 1, power), d_off), fma_rn(m, in_byte0(v, 3, power), m_off));
    }
};

/* A lane's registers for one row's scales: the unit's, and those of two or four groups. */
template <int K> struct row_scales {
    using T = traits<K>;
    using S = staged<K>;
    float d, d_off; /* a factor, and 2^23 times it, negated */
    uint4 super;    /* of shares: d and the scales */
    uint32_t w[T::scale == 4 || T::super ? 4 : 2];

    DEV void begin(const uint8_t *unit, int row)
    {
        if (T::six) { /* in byte 1 with 128 added: an offset of 9 bits, exact times d */
            d = f16_to_f32(*(const uint16_t *)(unit + S::at_super + row * 2)) * 0x1p-8f;
            d_off = -(0x1p23f + 0x1p15f) * d;
        }
        if (T::levels)
            d = *(const float *)(unit + S::at_super + row * 4);
        if (T::shares) {
            const uint8_t *p = unit + S::at_super + row * T::super_bytes;
            super.x = T::super_bytes == 2 ? *(const uint16_t *)p : *(const uint32_t *)p;
            super.y = T::super_bytes < 8 ? 0 : *(const uint32_t *)(p + 4);
        }
    }
    /* Loads the scales that group i of the parity needs. */
    DEV void before(const uint8_t *unit, const uint8_t *table, int row, int parity, int i)
    {
        const uint8_t *at = unit + S::at_scale + (parity * 64 + row * 4) * T::scale;
        if (T::super ? i & 1 : i)
            return;
        if (T::super)
            at = (i ? table : unit + S::at_super) + row * 16;
        if (T::super || T::scale == 4) {
            constexpr int more = T::super || T::scale == 4 ? 2 : 0;
            uint4 v = *(const uint4 *)at;
            w[0] = v.x, w[1] = v.y;
            w[more] = v.z, w[more + 1] = v.w;
        } else if (T::scale == 2) {
            uint2 v = *(const uint2 *)at;
            w[0] = T::six ? v.x ^ 0x80808080 : v.x;
            w[1] = T::six ? v.y ^ 0x80808080 : v.y;
        }
    }
    /* group_scales of group g, of the four. power: the bits of 2^23. */
    DEV scales group(const uint8_t *unit, int row, int g, uint32_t power) const
    {
        int i = g >> 1;
        scales v = {0, 0, 0, 0};
        uint4 s = make_uint4(0, 0, 0, 0);
        if (T::super) {
            v.f0 = __uint_as_float(w[2 * (i & 1)]);
            v.m0 = __uint_as_float(w[2 * (i & 1) + 1]);
            return v;
        }
        if (T::shares)
            return group_scales<K>(share_scales<K>(super, make_uint2(w[0], w[1]), g & 1, i), g);
        if (T::six) {
            v.f0 = fma_rn(d, in_byte1(w[i >> 1], 2 * (i & 1), power), d_off);
            v.f1 = fma_rn(d, in_byte1(w[i >> 1], 2 * (i & 1) + 1, power), d_off);
            return v;
        }
        if (T::scale == 16)
            s = *(const uint4 *)(unit + S::at_scale + ((g & 1) * 64 + row * 4 + i) * 16);
        else if (T::scale == 4)
            s.x = w[T::scale == 4 ? i : 0];
        else
            s.x = w[i >> 1] >> 16 * (i & 1) & 0xffff;
        if (T::levels)
            s.y = __float_as_uint(d);
        return group_scales<K>(s, g);
    }
};

/* The factor by which codes in a fragment are too large. */
template <int K> struct code_in {
    static constexpr int times = traits<K>::bias ? 128 / traits<K>::bias : 1;
};

/* Takes bits from a where mask is set, else from b. */
DEV uint32_t merge(uint32_t a, uint32_t b, uint32_t mask)
{
    return (a & mask) | (b & ~mask);
}

/* Constants kept in registers: byte permutes and three-input logic take one immediate, not two. */
struct constants {
    uint32_t power, top; /* the bits of 2^23; the top bit of each byte */
};

/* Word w of a group of shares in a staged unit. */
template <int K> DEV uint32_t staged_word(const uint8_t *unit, int g, int row, int w)
{
    using T = traits<K>;
    using S = staged<K>;
    const int parity = g & 1, i = g >> 1, share = parity * 64 + row * 4;
    const uint8_t *code = unit + (share + i) * T::code;
    uint32_t upper = 0, signs = 0;
    if constexpr (T::bits)
        return bits_word<K>(*(const uint32_t *)(code + (T::code == 8 ? w & 4 : 0)), w);
    if (T::one)
        upper = *(const uint16_t *)(unit + S::at_scale + (share + i) * 2);
    if (K == PACK_IQ3_S)
        upper = *(const uint32_t *)(unit + S::at_super + row * 16 + 8 + 4 * parity) >> i;
    if (T::pairs)
        upper = *(const uint32_t *)(unit + S::at_scale + share * 2 + 4) >> 2 * i;
    if (T::high)
        signs = *(const uint32_t *)(unit + S::at_high + (share + i) * 4);
    return lattice_word<K>(code, signs, upper, w);
}

/* The words of a weight fragment: rows gid and gid + 8, both halves of group g. */
template <int K>
DEV void load_fragment(uint32_t *a, const uint8_t *unit, int g, int gid, int tid, uint32_t top)
{
    using T = traits<K>;
    using S = staged<K>;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = gid + 8 * h;
        if (T::bytes) {
            a[h] = *(const uint32_t *)(unit + (g * 32 + row) * 16 + 4 * tid);
            a[2 + h] = *(const uint32_t *)(unit + (g * 32 + 16 + row) * 16 + 4 * tid);
            continue;
        }
        if constexpr (T::shares) {
            a[h] = staged_word<K>(unit, g, row, tid);
            a[2 + h] = staged_word<K>(unit, g, row, tid + 4);
            continue;
        }
        uint32_t c = *(const uint32_t *)(unit + (g * 16 + row) * 16 + 4 * tid), lo, hi;
        const uint8_t *high = unit + S::at_high + ((g & 1) * 64 + row * 4 + (g >> 1)) * T::high;
        if (T::levels) {
            level_words<K>(c, &lo, &hi);
        } else if (T::six) { /* 4 (code - 32) */
            uint2 both = *(const uint2 *)high;
            lo = merge(c << 2, both.x << (6 - 2 * tid), 0x3c3c3c3c) & 0xfcfcfcfc;
            hi = merge(c >> 2, both.y << (6 - 2 * tid), 0x3c3c3c3c) & 0xfcfcfcfc;
        } else if (T::five && T::bias) { /* 8 (code - 16) */
            uint32_t fifths = *(const uint32_t *)high;
            lo = merge(c << 3, fifths << (7 - tid), 0x78787878) & 0xf8f8f8f8;
            hi = merge(c >> 1, fifths << (3 - tid), 0x78787878) & 0xf8f8f8f8;
        } else if (T::five) {
            uint32_t fifths = *(const uint32_t *)high;
            lo = merge(c, fifths << (4 - tid), 0x0f0f0f0f) & 0x1f1f1f1f;
            hi = merge(c >> 4, fifths >> tid, 0x0f0f0f0f) & 0x1f1f1f1f;
        } else if (T::bias) { /* 16 (code - 8) */
            lo = c << 4 & 0xf0f0f0f0;
            hi = c & 0xf0f0f0f0;
        } else {
            lo = c & 0x0f0f0f0f;
            hi = c >> 4 & 0x0f0f0f0f;
        }
        a[h] = T::bias ? lo ^ top : lo;
        a[2 + h] = T::bias ? hi ^ top : hi;
    }
}

/* An activation's scale, divided by the fragment's factor. */
struct x_scale {
    float d, off;
};
template <int K> DEV x_scale scale_in(float d)
{
    constexpr float part = 1.0f / code_in<K>::times;
    /* The compiler does not drop a multiplication by 1. */
    return (x_scale){code_in<K>::times == 1 ? d : mul_rn(d, part), mul_rn(d, -EXACT * part)};
}
/* A raw accumulator as a scaled float. */
DEV float scaled_float(int c, const x_scale &x)
{
    return fma_rn(__int_as_float(c), x.d, x.off);
}

/* A unit of activations in its stage: codes [8 rows of x][units][X_CODES], scales likewise, 64. */
struct x_units {
    const uint8_t *codes, *scales;
    int units;
};

/* Units of a warp's tiles times the activations.
 * acc: [tile][even, odd groups][8 rows of x][c0..c3] */
template <int K, int NT, int M>
DEV void multiply_units(float (*acc)[2][NT][4], uint8_t *units, const x_units &x, uint8_t *tables,
                        const constants &is)
{
    using T = traits<K>;
    using S = staged<K>;
    int gid = lane_id() >> 2, tid = lane_id() & 3;
    row_scales<K> rows[M][2];
    super_part parts[M];
    if (T::super) {
#pragma unroll
        for (int m = 0; m < M; m++)
            parts[m].begin(units + m * S::bytes + S::at_super);
        __syncwarp(); /* all lanes have read the bytes that the floats overwrite */
#pragma unroll
        for (int m = 0; m < M; m++)
            parts[m].write(units + m * S::bytes + S::at_super, tables + m * S::table, parts[m].even,
                           is.power);
        __syncwarp();
    }
#pragma unroll
    for (int m = 0; m < 2 * M; m++)
        rows[m >> 1][m & 1].begin(units + (m >> 1) * S::bytes, gid + 8 * (m & 1));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        int parity = k >> 2, g = 2 * (k & 3) + parity; /* even groups first */
        uint32_t a[M][4];
        scales v[M][2];
        if (T::super && k == 4) { /* all lanes have read the scales of the even groups */
            __syncwarp();
#pragma unroll
            for (int m = 0; m < M; m++)
                parts[m].write(units + m * S::bytes + S::at_super, tables + m * S::table,
                               parts[m].odd, is.power);
            __syncwarp();
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint8_t *unit = units + m * S::bytes;
            load_fragment<K>(a[m], unit, g, gid, tid, is.top);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                rows[m][h].before(unit, tables + m * S::table, gid + 8 * h, parity, k & 3);
                v[m][h] = rows[m][h].group(unit, gid + 8 * h, g, is.power);
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const uint8_t *xq = x.codes + t * x.units * X_CODES;
            const uint8_t *xs = x.scales + (t * x.units * 64 + g * 8 + 2 * tid) * S::x_scale;
            uint2 b = *(const uint2 *)(xq + (g * 8 + gid) * 32 + 8 * tid);
            float d[2], e0[2] = {0, 0}, e1[2] = {0, 0}; /* of rows 2 tid and 2 tid + 1 */
            if (T::offset) {
                uint4 s = *(const uint4 *)xs;
                uint32_t more[2] = {s.y, s.w};
                d[0] = __uint_as_float(s.x), d[1] = __uint_as_float(s.z);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    e0[i] =
                        T::split ? mul_rn(d[i], (float)(int16_t)more[i]) : __uint_as_float(more[i]);
                    e1[i] = T::split ? mul_rn(d[i], (float)(int16_t)(more[i] >> 16)) : 0;
                }
            } else {
                float2 s = *(const float2 *)xs;
                d[0] = s.x, d[1] = s.y;
            }
            uint32_t bb[2] = {b.x, b.y};
            x_scale by[2] = {scale_in<K>(d[0]), scale_in<K>(d[1])};
#pragma unroll
            for (int m = 0; m < M; m++) {
                int c[4], c1[4];
                float *to = acc[m][parity][t];
                if (T::split) {
                    mma_s8_k16(c, a[m], b.x, EXACT_BITS);
                    mma_s8_k16(c1, a[m] + 2, b.y, EXACT_BITS);
                } else {
                    mma_s8_k32(c, a[m], bb, EXACT_BITS);
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    to[i] = group_add<K>(to[i], v[m][i >> 1], scaled_float(c[i], by[i & 1]),
                                         T::split ? scaled_float(c1[i], by[i & 1]) : 0, e0[i & 1],
                                         e1[i & 1]);
            }
        }
    }
}

#endif
