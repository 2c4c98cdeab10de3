/* kv_pieces.cuh - eight elements of a stored row as f16, in the cheapest order.
 *
 * Two blocks of Q8_0 are 17 words, two of Q4_0 nine (d, D: scales; numbers: codes):
 *
 *     d 0 1|2 3 4 5| ... |26 .. 29|30 31 D|0 1 2 3| ... |28 .. 31|
 *
 * Sums over a head may take the elements in any order, if queries have the same order; columns of a
 * result may be made in any order, if each is then written to its place. So a piece is eight
 * elements whose bytes a lane gets with aligned loads; key_order and value_order name them. The
 * eight pieces of two blocks begin at words 1, 3, .. 15 of Q8_0 and 1, 2, .. 8 of Q4_0. The fourth
 * ends with the second block's scale; it takes the first two codes of the first block instead.
 * Banks: eight rows of a tile lie an odd multiple of 16 bytes apart, and a lane's two words of Q8_0
 * are loaded in an order in which a warp's lanes meet every bank once.
 */
#ifndef BACKEND_CUDA_KV_PIECES_CUH
#define BACKEND_CUDA_KV_PIECES_CUH

#include "backend/cuda/attend/kv_formats.cuh"

/* The row's element that is the i-th of key piece e. */
DEV int key_order(int kind, int e, int i)
{
    int u = e & 7, r = e & 3, odd = u >> 2, base = 64 * (e >> 3) + 32 * odd;
    if (kind == KV_Q8_0) {
        int c = 8 * r + 4 * (i >> 2 ^ r >> 1) + (i & 3);
        return base + (odd ? c : c + 2 & 31);
    }
    if (kind == KV_Q4_0) {
        int c = 4 * r + ((i & 1) << 1) + (i >> 2), high = i >> 1 & 1;
        return base + (odd ? c : c + 2 & 15) + 16 * high;
    }
    if (kind == KV_TQ3_0)
        return 8 * e + ((i & 3) << 1) + (i >> 2);
    return 8 * e + i;
}
/* The same of value pieces. Elements i and i + 1 are neighbours where i is even. */
DEV int value_order(int kind, int e, int i)
{
    int u = e & 7, r = e & 3, odd = u >> 2, base = 64 * (e >> 3) + 32 * odd;
    if (kind == KV_Q8_0) {
        int c = 8 * r + 4 * (i >> 2 ^ odd) + (i & 3);
        return base + (odd ? c : c + 2 & 31);
    }
    if (kind == KV_Q4_0) {
        int c = 4 * r + (i & 3);
        return base + (odd ? c : c + 2 & 15) + 16 * (i >> 2);
    }
    return 8 * e + i;
}

/* Nibbles 0 and 2 of a word's even bytes to halves, less eight; and the high nibbles. */
DEV uint32_t low_nibbles(uint32_t w)
{
    return f16x2_sub((w & 0x000f000f) | 0x64006400, 0x64086408);
}
DEV uint32_t high_nibbles(uint32_t w) /* 1024 + 16 code: a sixteenth of it is exact */
{
    return f16x2_fma((w & 0x00f000f0) | 0x64006400, 0x2c002c00, 0xd480d480);
}

/* Indices of TQ3_0 elements, a nibble each: of even elements, of odd elements. low: the low bits of
 * eight elements (and of eight more in the upper half); high: their high bits, two a nibble. */
DEV uint2 tq3_indices(uint32_t low, uint32_t high)
{
    return make_uint2((low & 0x33333333) | (high << 2 & 0x44444444),
                      (low >> 2 & 0x33333333) | (high << 1 & 0x44444444));
}
/* Levels of four indices: low bytes of halves, high bytes. */
DEV uint2 tq3_bytes(uint32_t sel)
{
    return make_uint2(pick_bytes(0x7e358b1au, 0x1a8b357eu, sel),
                      pick_bytes(0xa5acafb2u, 0x322f2c25u, sel));
}

/* Bytes of a row of D elements; and from row to row in a tile: an odd multiple of 16, so that eight
 * rows begin in different banks. */
template <int KIND, int D>
static constexpr int row_bytes = KIND == KV_F16 || KIND == KV_BF16 ? 2 * D
                                 : KIND == KV_Q8_0                 ? D / 32 * 34
                                 : KIND == KV_Q5_1                 ? D / 32 * 24
                                 : KIND == KV_Q5_0                 ? D / 32 * 22
                                 : KIND == KV_Q4_1                 ? D / 32 * 20
                                 : KIND == KV_TQ3_0                ? D / 32 * 14
                                                                   : D / 32 * 18;
static constexpr __host__ __device__ int line_bytes(int row)
{
    return row % 32 ? row : row + 16;
}

/* Key piece 4 b + t, of block b, from shared memory. Terms that depend on the lane are separate
 * from terms of b, so only constants in addresses change from piece to piece. */
template <int KIND> DEV uint4 key_piece(const uint8_t *row, int b, int t)
{
    int odd = b & 1;
    if (KIND == KV_Q8_0) {
        const uint32_t *w = (const uint32_t *)row;
        const uint32_t *first = w + (1 + 2 * t + (t >> 1)), *second = w + (2 + 2 * t - (t >> 1));
        int at = 17 * (b >> 1) + 8 * odd;
        uint32_t scale = w[at], d = pick_bytes(scale, 0, odd ? 0x3232 : 0x1010);
        uint32_t x = first[at], y = second[at];
        if (!odd)
            x = pick_bytes(x, scale, t == 3 ? 0x7610 : 0x3210);
        uint2 u = code_halves(x ^ 0x80808080u), v = code_halves(y ^ 0x80808080u);
        return make_uint4(
            f16x2_mul(f16x2_sub(u.x, 0x64806480u), d), f16x2_mul(f16x2_sub(u.y, 0x64806480u), d),
            f16x2_mul(f16x2_sub(v.x, 0x64806480u), d), f16x2_mul(f16x2_sub(v.y, 0x64806480u), d));
    }
    if (KIND == KV_Q4_0) {
        const uint32_t *w = (const uint32_t *)row, *first = w + (1 + t);
        int at = 9 * (b >> 1) + 4 * odd;
        uint32_t scale = w[at], d = pick_bytes(scale, 0, odd ? 0x3232 : 0x1010), x = first[at];
        if (!odd)
            x = pick_bytes(x, scale, t == 3 ? 0x7610 : 0x3210);
        return make_uint4(f16x2_mul(low_nibbles(x), d), f16x2_mul(high_nibbles(x), d),
                          f16x2_mul(low_nibbles(x >> 8), d), f16x2_mul(high_nibbles(x >> 8), d));
    }
    if (KIND == KV_TQ3_0) {
        const uint8_t *low = row + 2 + 2 * t, *high = row + 10 + t;
        uint32_t norm = pick_bytes(u16_at(row + 14 * b), 0, 0x1010), h = high[14 * b];
        h = (h | h << 4) & 0x0f0f;
        h = (h | h << 2) & 0x3333;
        uint2 at = tq3_indices(u16_at(low + 14 * b), h), x = tq3_bytes(at.x), y = tq3_bytes(at.y);
        return make_uint4(f16x2_mul(pick_bytes(x.x, x.y, 0x5140), norm),
                          f16x2_mul(pick_bytes(x.x, x.y, 0x7362), norm),
                          f16x2_mul(pick_bytes(y.x, y.y, 0x5140), norm),
                          f16x2_mul(pick_bytes(y.x, y.y, 0x7362), norm));
    }
    return kv_piece<KIND>(row, 4 * b + t);
}

/* Value piece 8 pair + u of two rows: to[i] has element i of both. */
template <int KIND>
DEV void value_pieces(uint32_t *to, const uint8_t *row0, const uint8_t *row1, int pair, int u)
{
    int r = u & 3, odd = u >> 2;
    uint32_t fix = u == 3 ? 0x7610 : 0x3210, both = odd ? 0x7632 : 0x5410;
    if (KIND == KV_Q8_0) {
        int scale = 4 * (17 * pair + 8 * odd), first = 4 * (17 * pair + 1 + 2 * u + odd);
        int second = 4 * (17 * pair + 2 + 2 * u - odd);
        uint32_t scale0 = *(const uint32_t *)(row0 + scale);
        uint32_t scale1 = *(const uint32_t *)(row1 + scale), d = pick_bytes(scale0, scale1, both);
        uint32_t a[2] = {*(const uint32_t *)(row0 + first), *(const uint32_t *)(row0 + second)};
        uint32_t b[2] = {*(const uint32_t *)(row1 + first), *(const uint32_t *)(row1 + second)};
        a[1] = pick_bytes(a[1], scale0, fix);
        b[1] = pick_bytes(b[1], scale1, fix);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint2 x = code_halves(pick_bytes(a[i], b[i], 0x5140) ^ 0x80808080u);
            uint2 y = code_halves(pick_bytes(a[i], b[i], 0x7362) ^ 0x80808080u);
            to[4 * i] = f16x2_mul(f16x2_sub(x.x, 0x64806480u), d);
            to[4 * i + 1] = f16x2_mul(f16x2_sub(x.y, 0x64806480u), d);
            to[4 * i + 2] = f16x2_mul(f16x2_sub(y.x, 0x64806480u), d);
            to[4 * i + 3] = f16x2_mul(f16x2_sub(y.y, 0x64806480u), d);
        }
    } else if (KIND == KV_Q4_0) {
        int scale = 4 * (9 * pair + 4 * odd), first = 4 * (9 * pair + 1 + u);
        uint32_t scale0 = *(const uint32_t *)(row0 + scale);
        uint32_t scale1 = *(const uint32_t *)(row1 + scale), d = pick_bytes(scale0, scale1, both);
        uint32_t a = pick_bytes(*(const uint32_t *)(row0 + first), scale0, fix);
        uint32_t b = pick_bytes(*(const uint32_t *)(row1 + first), scale1, fix);
        uint32_t x = pick_bytes(a, b, 0x5410), y = pick_bytes(a, b, 0x7632);
        to[0] = f16x2_mul(low_nibbles(x), d);
        to[1] = f16x2_mul(low_nibbles(x >> 8), d);
        to[2] = f16x2_mul(low_nibbles(y), d);
        to[3] = f16x2_mul(low_nibbles(y >> 8), d);
        to[4] = f16x2_mul(high_nibbles(x), d);
        to[5] = f16x2_mul(high_nibbles(x >> 8), d);
        to[6] = f16x2_mul(high_nibbles(y), d);
        to[7] = f16x2_mul(high_nibbles(y >> 8), d);
    } else if (KIND == KV_TQ3_0) {
        int norm_at = 14 * (2 * pair + odd), low_at = norm_at + 2 + 2 * r,
            high_at = norm_at + 10 + r;
        uint32_t norm = pick_bytes(u16_at(row0 + norm_at), u16_at(row1 + norm_at), 0x5410);
        uint32_t low = pick_bytes(u16_at(row0 + low_at), u16_at(row1 + low_at), 0x5140);
        uint32_t h = row0[high_at] | (uint32_t)row1[high_at] << 8;
        h = (h | h << 12) & 0x0f0f0f0f;
        h = (h | h << 2) & 0x33333333;
        uint2 at = tq3_indices(low, h); /* row0, row0, row1, row1, and again */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 x = tq3_bytes((i & 1 ? at.y : at.x) >> (i & 2) * 8 & 0xffff);
            int k = 2 * (i & 2) + (i & 1);
            to[k] = f16x2_mul(pick_bytes(x.x, x.y, 0x6240), norm);
            to[k + 2] = f16x2_mul(pick_bytes(x.x, x.y, 0x7351), norm);
        }
    } else {
        uint4 a = kv_piece<KIND>(row0, 8 * pair + u), b = kv_piece<KIND>(row1, 8 * pair + u);
        uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[2 * i] = pick_bytes(x[i], y[i], 0x5410);
            to[2 * i + 1] = pick_bytes(x[i], y[i], 0x7632);
        }
    }
}

#endif
