/* fragments.cuh - weights of blocks as the bf16 tensor cores take them: a warp's unit of 16 outputs
 * x 256 columns in shared memory becomes fragments of A in registers, 16 columns each.
 *
 *     unit     as packed (rows_unit.cuh: staged)
 *     scales   [16 rows][8 groups] of super-blocks, as floats: the warp's table
 *
 * A weight is rounded to bf16 once, as in matmul_mma.cu, so all kernels of prompts multiply the
 * same numbers.
 */
#ifndef BACKEND_CUDA_FRAGMENTS_CUH
#define BACKEND_CUDA_FRAGMENTS_CUH

#include "backend/cuda/product/rows_unit.cuh"

enum { SCALE_LINE = 80 /* bytes of a row's scales: 8 groups, padded against bank conflicts */ };

/* Bytes of a warp's table. */
template <int K> static constexpr int scale_table = traits<K>::super ? 16 * SCALE_LINE : 0;

/* The floats that bytes become: a code in byte 2 of 2^7, or a signed code plus 128 in byte 1 of
 * 2^15. The mantissas begin with them. */
template <int K> struct code_float {
    static constexpr uint32_t power = traits<K>::is_signed ? 0x47000000 : 0x43000000;
    static constexpr float zero =
        traits<K>::is_signed ? 32768.0f + 128.0f : 128.0f + traits<K>::bias;
};

/* Byte i of v as such a float. power: its bits, in a register. */
template <int K> DEV float float_of(uint32_t v, int i, uint32_t power)
{
    return __uint_as_float(
        pick_bytes(v, power, traits<K>::is_signed ? 0x7404 + (i << 4) : 0x7044 + (i << 8)));
}

/* Where f has up to 24 bits, the zero is subtracted from the code. */
template <int K> static constexpr bool zero_first = traits<K>::levels || traits<K>::lattice;

/* The least f16 numbers are codes times 2^-24. So codes below 256 become floats two at a time,
 * where the float of a code would have to lose its zero before it is multiplied. */
template <int K> static constexpr bool least_halves = traits<K>::offset && !traits<K>::is_signed;

/* Four codes, bytes of v, times by and plus m, each rounded once. by: the factor times 2^24. */
DEV void weights_of_halves(float *x, uint32_t v, float by, float m)
{
    const uint32_t even = v & 0x00ff00ff, odd = pick_bytes(v, 0, 0x4341);
    x[0] = fma_rn(f16_to_f32(even & 0xffff), by, m);
    x[1] = fma_rn(f16_to_f32(odd & 0xffff), by, m);
    x[2] = fma_rn(f16_to_f32(even >> 16), by, m);
    x[3] = fma_rn(f16_to_f32(odd >> 16), by, m);
}

/* A weight: code times f plus m, rounded once. Without offsets, -zero f is exact, because f has at
 * most 19 bits. off: that, or m. */
template <int K> DEV float weight_of(float code, float f, float off)
{
    if (traits<K>::offset || zero_first<K>)
        return fma_rn(code - code_float<K>::zero, f, off);
    return fma_rn(code, f, off);
}

/* The codes of four columns as stored: of the 16 bytes at `row`, 2 tid, 2 tid + 1, and 8 further.
 */
DEV uint32_t four_codes(const uint8_t *row, int tid)
{
    const uint16_t *at = (const uint16_t *)row + tid;
    return at[0] | (uint32_t)at[4] << 16;
}

/* The high bits of the columns of four_codes, moved to bit 4 of each byte. The lower half of the
 * result is of word w, the upper half of word w + 2. h: 16 bits of the unit, in both halves. */
template <int BITS> DEV uint32_t high_bits(uint32_t h, int w)
{
    constexpr uint32_t mask = BITS == 1 ? 0x00000101 : 0x00000303;
    uint32_t v = (h >> BITS * w & mask) | (h >> BITS * (w + 2) & mask << 16);
    return v << 4;
}

/* One row's codes of a group, of the columns of lane tid: words of the first and second half. */
template <int K> DEV void half_codes(uint32_t *q, const uint8_t *unit, int g, int row, int tid)
{
    using T = traits<K>;
    using S = staged<K>;
    if (T::bytes) {
        q[0] = four_codes(unit + (g * 32 + row) * 16, tid) ^ 0x80808080;
        q[1] = four_codes(unit + (g * 32 + 16 + row) * 16, tid) ^ 0x80808080;
        return;
    }
    if constexpr (T::shares) {
        const int w = tid >> 1;
        const uint32_t half = tid & 1 ? 0x7632 : 0x5410;
#pragma unroll
        for (int h = 0; h < 2; h++)
            q[h] = pick_bytes(staged_word<K>(unit, g, row, 4 * h + w),
                              staged_word<K>(unit, g, row, 4 * h + w + 2), half) ^
                   0x80808080;
        return;
    }
    if (T::levels) {
        const uint32_t *at = (const uint32_t *)(unit + (g * 16 + row) * 16) + (tid >> 1);
        level_words<K>(pick_bytes(at[0], at[2], tid & 1 ? 0x7351 : 0x6240), &q[0], &q[1]);
        q[0] ^= 0x80808080;
        q[1] ^= 0x80808080;
        return;
    }
    uint32_t c = four_codes(unit + (g * 16 + row) * 16, tid);
    q[0] = c & 0x0f0f0f0f;
    q[1] = c >> 4 & 0x0f0f0f0f;
    const uint8_t *high = unit + S::at_high + ((g & 1) * 64 + row * 4 + (g >> 1)) * T::high;
    const uint32_t half = tid & 1 ? 0x3232 : 0x1010; /* the bytes of the lane's columns */
    if (T::five) {
        uint32_t h = pick_bytes(*(const uint32_t *)high, 0, half);
        q[0] |= high_bits<1>(h, tid >> 1);
        q[1] |= high_bits<1>(h, (tid >> 1) + 4);
    }
    if (T::six) {
        uint2 h = *(const uint2 *)high;
        q[0] |= high_bits<2>(pick_bytes(h.x, 0, half), tid >> 1);
        q[1] |= high_bits<2>(pick_bytes(h.y, 0, half), tid >> 1);
    }
}

/* A lane's part of a super-block's scales as floats: of one row four groups, factor and offset. */
DEV void write_scales(uint8_t *table, const uint8_t *super, uint32_t power)
{
    super_part p;
    p.begin(super);
    float4 *to = (float4 *)(table + (lane_id() & 15) * SCALE_LINE + (lane_id() >> 4) * 32);
    to[0] = make_float4(fma_rn(p.d, in_byte0(p.even, 0, power), p.d_off),
                        fma_rn(p.m, in_byte0(p.even, 2, power), p.m_off),
                        fma_rn(p.d, in_byte0(p.odd, 0, power), p.d_off),
                        fma_rn(p.m, in_byte0(p.odd, 2, power), p.m_off));
    to[1] = make_float4(fma_rn(p.d, in_byte0(p.even, 1, power), p.d_off),
                        fma_rn(p.m, in_byte0(p.even, 3, power), p.m_off),
                        fma_rn(p.d, in_byte0(p.odd, 1, power), p.d_off),
                        fma_rn(p.m, in_byte0(p.odd, 3, power), p.m_off));
}

/* A lane's registers for the scales of one row of a unit, whose groups ascend. */
template <int K> struct unit_scales {
    row_scales<K> parity[2];
    float2 pair[2]; /* of super-blocks: groups g and g + 1 */

    DEV void begin(const uint8_t *unit, int row)
    {
        parity[0].begin(unit, row);
        parity[1].begin(unit, row);
    }
    /* line: of the row in the table */
    DEV scales group(const uint8_t *unit, const uint8_t *line, int row, int g, uint32_t power)
    {
        if (traits<K>::super) {
            if (g % 2 == 0) {
                float4 v = *(const float4 *)(line + g * 8);
                pair[0] = make_float2(v.x, v.y);
                pair[1] = make_float2(v.z, v.w);
            }
            return (scales){pair[g & 1].x, 0, pair[g & 1].y, 0};
        }
        parity[g & 1].before(unit, NULL, row, g & 1, g >> 1);
        return parity[g & 1].group(unit, row, g, power);
    }
};

/* Group g as two fragments of 16 columns: of two units eight rows each. row: the lane's of each
 * unit, whose scales are in lines gid and gid + 8 of the table. */
template <int K>
DEV void group_fragments(uint32_t (*a)[4], const uint8_t *const (&unit)[2], const int (&row)[2],
                         const uint8_t *table, unit_scales<K> *at, int g, constants is)
{
    using T = traits<K>;
    const int gid = lane_id() >> 2, tid = lane_id() & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t q[2];
        half_codes<K>(q, unit[h], g, row[h], tid);
        scales v = at[h].group(unit[h], table + (gid + 8 * h) * SCALE_LINE, row[h], g, is.power);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            float f = T::split && s ? v.f1 : v.f0, x[4];
            float off = zero_first<K> ? 0
                        : T::offset   ? (T::split && s ? v.m1 : v.m0)
                                      : -code_float<K>::zero * f;
            if constexpr (least_halves<K>) {
                weights_of_halves(x, q[s], f * 0x1p24f, off);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = weight_of<K>(float_of<K>(q[s], i, is.top), f, off);
            }
            a[s][h] = f32x2_to_bf16(x[0], x[1]);
            a[s][2 + h] = f32x2_to_bf16(x[2], x[3]);
        }
    }
}

/* The same of all rows of one unit. */
template <int K>
DEV void group_fragments(uint32_t (*a)[4], const uint8_t *unit, const uint8_t *table,
                         unit_scales<K> *at, int g, constants is)
{
    const int gid = lane_id() >> 2, row[2] = {gid, gid + 8};
    const uint8_t *const both[2] = {unit, unit};
    group_fragments<K>(a, both, row, table, at, g, is);
}

/* Waits until all but the youngest n groups of copies have arrived. */
DEV void wait_for_copies(int n)
{
    if (n >= 4)
        copy_wait<4>();
    else if (n == 3)
        copy_wait<3>();
    else if (n == 2)
        copy_wait<2>();
    else if (n == 1)
        copy_wait<1>();
    else
        copy_wait<0>();
}

#endif
