/* kv_formats.cuh - decoding and encoding of cached keys and values: the block formats of num/, by
 * warps.
 *
 *     kv_value   one element in f32, bit for bit as num/decode.c: the kernels of any shape
 *     kv_piece   8 neighbours in f16, 16 bytes: the tiles of the tensor cores
 *     kv_encode  8 lanes to a block of 32, four neighbours a lane: the bytes of num/encode.c
 *
 * kv_piece: codes become f16 exactly (1024 + code, by writing the code into the low byte of an
 * f16), then take scale and minimum in one rounding. kv_encode: the same roundings in the same
 * order as on the host. Sums in f64 (TQ3_0) are taken by a tree instead; they are rounded to f32
 * and f16, and differ there only if the two f64 sums part at a rounding boundary.
 */
#ifndef BACKEND_CUDA_KV_FORMATS_CUH
#define BACKEND_CUDA_KV_FORMATS_CUH

#include "backend/cuda/dev.cuh"

/* The formats that kernels on tensor cores read: all but f32. */
#define EACH_BUT_F16(DO)                                                                           \
    DO(KV_BF16) DO(KV_Q8_0) DO(KV_Q5_1) DO(KV_Q5_0) DO(KV_Q4_1) DO(KV_Q4_0) DO(KV_IQ4_NL)          \
    DO(KV_TQ3_0)
#define EACH_FORMAT(DO) DO(KV_F16) EACH_BUT_F16(DO)

/* ---- Two f16 in a register ---------------------------------------------------------------- */

#ifdef CARAT_EMU
DEV uint32_t f16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) { /* f64 has room for a product and a sum of f16 values */
        double x = f16_to_f32(a >> i & 0xffff), y = f16_to_f32(b >> i & 0xffff);
        _Float16 z = (_Float16)(x * y + f16_to_f32(c >> i & 0xffff));
        uint16_t u;
        memcpy(&u, &z, 2);
        r |= (uint32_t)u << i;
    }
    return r;
}
DEV uint32_t f16x2_sub(uint32_t a, uint32_t b)
{
    return f16x2_fma(b, 0xbc00bc00, a);
}
DEV uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    return f16x2_fma(a, b, 0x80008000);
}
#else
DEV uint32_t f16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
DEV uint32_t f16x2_sub(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEV uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
#endif
DEV double warp_sum_f64(double v)
{
    for (int m = 16; m; m >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

DEV int kv_block_bytes(int kind)
{
    switch (kind) {
    case KV_Q8_0:
        return 34;
    case KV_Q5_1:
        return 24;
    case KV_Q5_0:
        return 22;
    case KV_Q4_1:
        return 20;
    case KV_TQ3_0:
        return 14;
    default:
        return 18; /* Q4_0, IQ4_NL */
    }
}
DEV bool kv_has_min(int kind)
{
    return kind == KV_Q4_1 || kind == KV_Q5_1;
}
DEV bool kv_has_fifth(int kind)
{
    return kind == KV_Q5_0 || kind == KV_Q5_1;
}

/* Levels of IQ4_NL, four a word. */
enum : uint32_t {
    IQ4_0 = 0xbfad9881u, /* -127 -104 -83 -65 */
    IQ4_4 = 0xf6eaddcfu, /* -49 -35 -22 -10 */
    IQ4_8 = 0x26190d01u, /* 1 13 25 38 */
    IQ4_12 = 0x71594535u /* 53 69 89 113 */
};
DEV int iq4_level(int code)
{
    uint32_t w = code < 8 ? code < 4 ? IQ4_0 : IQ4_4 : code < 12 ? IQ4_8 : IQ4_12;
    return (int8_t)(w >> 8 * (code & 3));
}
DEV float tq3_level(int code)
{
    int i = code & 4 ? code & 3 : 3 - code;
    float m = i < 2 ? i ? 0.065717f : 0.021460f : i == 2 ? 0.117832f : 0.190685f;
    return code & 4 ? m : -m;
}

DEV uint32_t u16_at(const uint8_t *p) /* fields lie at even addresses */
{
    return *(const uint16_t *)p;
}
DEV uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | u16_at(p + 2) << 16;
}

/* Element i of a row, as num/decode.c decodes it. */
DEV float kv_value(const void *row, int kind, int i)
{
    const uint8_t *p = (const uint8_t *)row;
    if (kind == KV_F32)
        return ((const float *)row)[i];
    if (kind == KV_F16)
        return f16_to_f32(((const uint16_t *)row)[i]);
    if (kind == KV_BF16)
        return bf16_to_f32(((const uint16_t *)row)[i]);
    p += (size_t)(i >> 5) * kv_block_bytes(kind);
    float d = f16_to_f32(u16_at(p));
    int j = i & 31;
    if (kind == KV_TQ3_0) {
        int low = p[2 + j / 4] >> 2 * (j % 4) & 3, high = p[10 + j / 8] >> j % 8 & 1;
        return mul_rn(tq3_level(low | high << 2), d);
    }
    if (kind == KV_Q8_0)
        return mul_rn((float)(int8_t)p[2 + j], d);
    bool least = kv_has_min(kind);
    const uint8_t *q = p + (least ? 4 : 2);
    int code = 0;
    if (kv_has_fifth(kind)) {
        code = (int)(u32_at(q) >> j & 1) << 4;
        q += 4;
    }
    code |= q[j & 15] >> (j < 16 ? 0 : 4) & 15;
    if (least) /* two roundings, as on the host */
        return mul_rn((float)code, d) + f16_to_f32(u16_at(p + 2));
    code = kind == KV_IQ4_NL ? iq4_level(code) : code - (kind == KV_Q4_0 ? 8 : 16);
    return mul_rn((float)code, d);
}

/* ---- Eight neighbours as f16 --------------------------------------------------------------- */

/* 8 bytes from an even offset of a row that begins at a multiple of 4; reads no word after them. */
DEV uint2 eight_bytes(const uint8_t *row, int at)
{
    const uint32_t *w = (const uint32_t *)(row + (at & ~3));
    int odd = at >> 1 & 1;
    uint32_t a = w[0], b = w[1], c = w[1 + odd];
    uint32_t sel = odd ? 0x5432 : 0x3210;
    return make_uint2(pick_bytes(a, b, sel), pick_bytes(b, c, sel));
}
/* Four codes in bytes, 0..255, to four f16 of 1024 + code. */
DEV uint2 code_halves(uint32_t codes)
{
    return make_uint2(pick_bytes(codes, 0x64646464, 0x4140), pick_bytes(codes, 0x64646464, 0x4342));
}
/* (code - less) d, or code d + m; `less` includes the 1024. */
template <bool MIN> DEV uint4 scaled(uint32_t c0, uint32_t c1, uint32_t less, uint32_t dm)
{
    uint32_t d = pick_bytes(dm, 0, 0x1010), m = pick_bytes(dm, 0, 0x3232);
    uint2 a = code_halves(c0), b = code_halves(c1);
    uint32_t v[4] = {a.x, a.y, b.x, b.y};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = f16x2_sub(v[i], less);
        v[i] = MIN ? f16x2_fma(v[i], d, m) : f16x2_mul(v[i], d);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}
/* Bits 0..3 to bit 4 of four bytes. */
DEV uint32_t fifth_bits(uint32_t b)
{
    return ((b & 15) * 0x00204081u & 0x01010101u) << 4;
}
/* Four nibbles in bytes to the levels of IQ4_NL, plus 128. */
DEV uint32_t iq4_bytes(uint32_t n)
{
    uint32_t s = n & 0x07070707u;
    s = (s | s >> 4) & 0x00ff00ffu;
    s |= s >> 8; /* the selector is its low 16 bits */
    uint32_t low = pick_bytes(IQ4_0, IQ4_4, s & 0xffff);
    uint32_t high = pick_bytes(IQ4_8, IQ4_12, s & 0xffff);
    uint32_t upper = (n >> 3 & 0x01010101u) * 255;
    return (low ^ ((low ^ high) & upper)) ^ 0x80808080u;
}
/* Four indices 0..7, in nibbles, to f16 levels times norm. */
DEV uint2 tq3_halves(uint32_t sel, uint32_t norm)
{
    /* The eight levels in f16, ascending: their low bytes, their high bytes. */
    const uint32_t l0 = 0x7e358b1au, l1 = 0x1a8b357eu, h0 = 0xa5acafb2u, h1 = 0x322f2c25u;
    uint32_t a = pick_bytes(l0, l1, sel), b = pick_bytes(h0, h1, sel);
    return make_uint2(f16x2_mul(pick_bytes(a, b, 0x5140), norm),
                      f16x2_mul(pick_bytes(a, b, 0x7362), norm));
}
/* Elements 8e .. 8e + 7 of a row in shared memory. */
template <int KIND> DEV uint4 kv_piece(const uint8_t *row, int e)
{
    constexpr bool least = KIND == KV_Q4_1 || KIND == KV_Q5_1;
    constexpr bool fifth = KIND == KV_Q5_0 || KIND == KV_Q5_1;
    constexpr int bytes = KIND == KV_Q8_0   ? 34
                          : KIND == KV_Q5_1 ? 24
                          : KIND == KV_Q5_0 ? 22
                          : KIND == KV_Q4_1 ? 20
                          : KIND == KV_TQ3_0 ? 14
                                             : 18;
    if (KIND == KV_F16)
        return *(const uint4 *)(row + 16 * e);
    if (KIND == KV_BF16) {
        uint4 u = *(const uint4 *)(row + 16 * e);
        uint32_t v[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = f32x2_to_f16(bf16_to_f32(v[i] & 0xffff), bf16_to_f32(v[i] >> 16));
        return make_uint4(v[0], v[1], v[2], v[3]);
    }
    int at = (e >> 2) * bytes, quarter = e & 3;
    if (KIND == KV_TQ3_0) {
        uint32_t q = u16_at(row + at + 2 + 2 * quarter), s = row[at + 10 + quarter];
        q = (q | q << 8) & 0x00ff00ffu;
        q = (q | q << 4) & 0x0f0f0f0fu;
        q = (q | q << 2) & 0x33333333u;
        s = (s | s << 12) & 0x000f000fu;
        s = (s | s << 6) & 0x03030303u;
        s = (s | s << 3) & 0x11111111u;
        q |= s << 2;
        uint32_t norm = pick_bytes(u16_at(row + at), 0, 0x1010);
        uint2 a = tq3_halves(q & 0xffff, norm), b = tq3_halves(q >> 16, norm);
        return make_uint4(a.x, a.y, b.x, b.y);
    }
    uint32_t dm = least ? *(const uint32_t *)(row + at) : u16_at(row + at);
    if (KIND == KV_Q8_0) {
        uint2 c = eight_bytes(row, at + 2 + 8 * quarter);
        return scaled<false>(c.x ^ 0x80808080u, c.y ^ 0x80808080u, 0x64806480u, dm);
    }
    uint2 c = eight_bytes(row, at + (least ? 4 : 2) + (fifth ? 4 : 0) + 8 * (quarter & 1));
    uint32_t shift = quarter < 2 ? 0 : 4;
    uint32_t c0 = c.x >> shift & 0x0f0f0f0fu, c1 = c.y >> shift & 0x0f0f0f0fu;
    if (fifth) {
        uint32_t bits = row[at + (least ? 4 : 2) + quarter];
        c0 |= fifth_bits(bits);
        c1 |= fifth_bits(bits >> 4);
    }
    if (KIND == KV_IQ4_NL)
        return scaled<false>(iq4_bytes(c0), iq4_bytes(c1), 0x64806480u, dm);
    return scaled<least>(c0, c1, least ? 0x64006400u : fifth ? 0x64106410u : 0x64086408u, dm);
}

/* Rows of a tile in shared memory as the cache holds them, line_from bytes apart, to f16, line_to
 * halves apart; `from` and `to` may be the same place: a warp takes two whole rows, or as many
 * small ones as it has lanes for, into registers before it writes. */
template <int KIND, int D>
DEV void expand_rows(uint16_t *to, int line_to, const uint8_t *from, int line_from, int n_rows)
{
    constexpr int lanes = D / 8 < 32 ? D / 8 : 32, rows = 32 / lanes; /* of a row; at a time */
    constexpr int per = D / 8 / lanes, both = rows > 1 ? 1 : 2;
    int warp = (int)threadIdx.x >> 5, n_warps = (int)blockDim.x >> 5, lane = lane_id();
    int e = lane % lanes;
    for (int r = warp * rows + lane / lanes; r < n_rows; r += both * n_warps * rows) {
        uint4 v[both][per];
#pragma unroll
        for (int i = 0; i < both * per; i++)
            v[i / per][i % per] =
                kv_piece<KIND>(from + (r + i / per * n_warps) * line_from, e + lanes * (i % per));
        __syncwarp();
#pragma unroll
        for (int i = 0; i < both * per; i++)
            *(uint4 *)(to + (r + i / per * n_warps) * line_to + 8 * (e + lanes * (i % per))) =
                v[i / per][i % per];
    }
}
/* n_rows: a multiple of what all warps take at a time. f16 that is in its place already stays. */
template <int D>
DEV void expand_tile(uint16_t *to, int line_to, const uint8_t *from, int line_from, int n_rows,
                     int kind)
{
    switch (kind) {
#define DO(k)                                                                                      \
    case k:                                                                                        \
        expand_rows<k, D>(to, line_to, from, line_from, n_rows);                                   \
        break;
        EACH_BUT_F16(DO)
#undef DO
    case KV_F16:
        if (D < 256 && (const uint8_t *)to != from)
            expand_rows<KV_F16, D>(to, line_to, from, line_from, n_rows);
        break;
    }
}

/* ---- Rotation ------------------------------------------------------------------------------ */

/* A warp's 128 values, four neighbours a lane: num_rotate, or num_unrotate, bit for bit. */
DEV float4 rotate_four(float4 x, bool back)
{
    const uint32_t first[4] = {0xE46A0359u, 0x42F85949u, 0xA4C63BBBu, 0x49F250A9u};
    const uint32_t last[4] = {0x16ACEE90u, 0x3F628FDCu, 0xB7A5357Au, 0xBEA56562u};
    int lane = lane_id(), w = lane >> 3, shift = 4 * (lane & 7);
    uint32_t s1 = (w < 2 ? w ? first[1] : first[0] : w == 2 ? first[2] : first[3]) >> shift;
    uint32_t s2 = (w < 2 ? w ? last[1] : last[0] : w == 2 ? last[2] : last[3]) >> shift;
    uint32_t before = back ? s2 : s1, after = back ? s1 : s2;
    float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (before >> i & 1) << 31);
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int m = 1; m < 32; m *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float o = shfl_xor_f32(v[i], m);
            v[i] = lane & m ? o - v[i] : v[i] + o;
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = mul_rn(v[i], 0.08838834764831845f);
        v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (after >> i & 1) << 31);
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* ---- Encoding ------------------------------------------------------------------------------ */

DEV float finite(float x)
{
    const float top = 3.402823466e38f;
    return x != x ? 0 : fminf(fmaxf(x, -top), top);
}
DEV uint32_t scale_f16(float d)
{
    return f32_to_f16(fminf(fmaxf(d, -65504.0f), 65504.0f));
}
DEV float reciprocal_of(float d)
{
    float id = d != 0 ? 1.0f / d : 0;
    return fabsf(id) <= 3.402823466e38f ? id : 0;
}
DEV uint32_t code_below(float v, int top)
{
    return v > 0 ? v < (float)top ? (uint32_t)(int)v : (uint32_t)top : 0;
}
/* The value of largest magnitude of 8 lanes, with its sign; the first of equals. */
DEV float signed_max8(const float *x)
{
    float v = 0;
    for (int i = 0; i < 4; i++)
        v = fabsf(x[i]) > fabsf(v) ? x[i] : v;
    for (int m = 1; m < 8; m *= 2) {
        float o = shfl_xor_f32(v, m);
        bool mine = lane_id() & m ? fabsf(v) > fabsf(o) : fabsf(v) >= fabsf(o);
        v = mine ? v : o;
    }
    return v;
}
/* The least value of 8 lanes (way -1) or the greatest (way 1); the first of equals. */
DEV float extreme8(const float *x, float way)
{
    float v = x[0];
    for (int i = 1; i < 4; i++)
        v = x[i] * way > v * way ? x[i] : v;
    for (int m = 1; m < 8; m *= 2) {
        float o = shfl_xor_f32(v, m);
        bool mine = lane_id() & m ? v * way > o * way : v * way >= o * way;
        v = mine ? v : o;
    }
    return v;
}
DEV void put_u16(uint8_t *p, uint32_t v)
{
    *(uint16_t *)p = (uint16_t)v;
}
DEV void put_u32(uint8_t *p, uint32_t v)
{
    put_u16(p, v);
    put_u16(p + 2, v >> 16);
}

/* The largest magnitude of 8 lanes' values. */
DEV float largest8(const float *x)
{
    float v = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int m = 1; m < 8; m *= 2)
        v = fmaxf(v, shfl_xor_f32(v, m));
    return v;
}

DEV void encode_q8(uint8_t *b, const float *x, bool in)
{
    float v = largest8(x), d = v / 127, id = reciprocal_of(d);
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) { /* half away from zero */
        float y = mul_rn(x[i], id);
        int q = (int)y;
        float rest = y - (float)q;
        q += (rest >= 0.5f) - (rest <= -0.5f);
        word |= (uint32_t)(q & 255) << 8 * i;
    }
    int l = lane_id() & 7;
    if (!in)
        return;
    if (l == 0)
        put_u16(b, scale_f16(d));
    put_u32(b + 2 + 4 * l, word);
}

DEV int iq4_code_of(float v)
{
    int q = 0;
    for (int i = 0; i < 15; i++)
        q += 2 * v >= (float)(iq4_level(i) + iq4_level(i + 1));
    return q;
}
/* Codes of four values in bytes, and the block's scale: the sums go from lane to lane, since their
 * order is part of the format. */
DEV uint32_t codes_iq4(const float *x, float *scale)
{
    float top = signed_max8(x), id = reciprocal_of(top / -127), qx = 0, qq = 0;
    int lane = lane_id(), first = lane & ~7, l = lane & 7;
    uint32_t word = 0;
    float tx[4], tt[4];
    for (int i = 0; i < 4; i++) {
        int q = iq4_code_of(mul_rn(x[i], id));
        float t = (float)iq4_level(q), w = mul_rn(x[i], x[i]);
        word |= (uint32_t)q << 8 * i;
        tx[i] = mul_rn(mul_rn(w, t), x[i]);
        tt[i] = mul_rn(mul_rn(w, t), t);
    }
    for (int k = 0; k < 8; k++) {
        float sx = shfl_f32(qx, first + (k ? k - 1 : 0)), st = shfl_f32(qq, first + (k ? k - 1 : 0));
        if (k == l) {
            qx = (((k ? sx : 0) + tx[0]) + tx[1] + tx[2]) + tx[3];
            qq = (((k ? st : 0) + tt[0]) + tt[1] + tt[2]) + tt[3];
        }
    }
    qx = shfl_f32(qx, first + 7);
    qq = shfl_f32(qq, first + 7);
    float d = qq > 0 ? qx / qq : 0;
    if (!(fabsf(d) <= 65504.0f))
        d = top / -127;
    *scale = id != 0 ? d : 0;
    return word;
}

/* Formats of nibbles, with a fifth bit or a minimum or neither. */
DEV void encode_nibbles(uint8_t *b, int kind, const float *x, bool in)
{
    bool least = kv_has_min(kind), fifth = kv_has_fifth(kind);
    int top = fifth ? 31 : 15, l = lane_id() & 7;
    float d, m = 0;
    uint32_t word = 0;
    if (kind == KV_IQ4_NL) {
        word = codes_iq4(x, &d);
    } else {
        float add = 0.5f;
        if (least) {
            m = extreme8(x, -1);
            d = (extreme8(x, 1) - m) / (float)top;
        } else {
            add = fifth ? 16.5f : 8.5f;
            d = signed_max8(x) / (fifth ? -16.0f : -8.0f);
        }
        float id = reciprocal_of(d);
        for (int i = 0; i < 4; i++) {
            float y = least ? x[i] - m : x[i];
            word |= code_below(mul_rn(y, id) + add, top) << 8 * i;
        }
    }
    uint32_t other = shfl_xor_u32(word, 4), high = 0;
    if (fifth) {
        uint32_t h = word >> 4 & 0x01010101u;
        high = ((h | h >> 7 | h >> 14 | h >> 21) & 15) << 4 * l;
        for (int k = 1; k < 8; k *= 2)
            high |= shfl_xor_u32(high, k);
    }
    if (!in)
        return;
    if (l == 0) {
        put_u16(b, scale_f16(d));
        if (least)
            put_u16(b + 2, scale_f16(m));
        if (fifth)
            put_u32(b + (least ? 4 : 2), high);
    }
    if (l < 4)
        put_u32(b + (least ? 4 : 2) + (fifth ? 4 : 0) + 4 * l,
                (word & 0x0f0f0f0fu) | (other & 0x0f0f0f0fu) << 4);
}

/* A warp's group of 128, rotated already; b: this lane's block. */
DEV void encode_tq3(uint8_t *b, const float *x, bool in)
{
    double sum = 0, coded = 0;
    uint32_t low = 0, high = 0;
    int l = lane_id() & 7;
    for (int i = 0; i < 4; i++)
        sum += (double)x[i] * x[i];
    double length = sqrt(warp_sum_f64(sum));
    float inv = length > 1e-10 ? (float)(1 / length) : 0;
    for (int i = 0; i < 4; i++) {
        float v = mul_rn(x[i], inv);
        uint32_t code = (v >= -0.154259f) + (v >= -0.091775f) + (v >= -0.043589f) + (v >= 0) +
                        (v >= 0.043589f) + (v >= 0.091775f) + (v >= 0.154259f);
        float t = tq3_level((int)code);
        coded += (double)t * t;
        low |= (code & 3) << 2 * i;
        high |= code >> 2 << i;
    }
    coded = warp_sum_f64(coded);
    float norm = inv > 0 ? (float)fmin(length / sqrt(coded), 65504.0) : 0;
    uint32_t other = shfl_xor_u32(high, 1);
    if (!in)
        return;
    if (l == 0)
        put_u16(b, f32_to_f16(norm));
    b[2 + l] = (uint8_t)low;
    if (l % 2 == 0)
        b[10 + l / 2] = (uint8_t)(high | other << 4);
}

/* As the CPU's cpu_mark_overflow: beyond f16 is NaN. */
DEV uint32_t kv_f16(float v)
{
    uint32_t h = f32_to_f16(v);
    return (h & 0x7fff) == 0x7c00 ? h | 0x200 : h;
}

/* Elements e .. e + 3 of a row without blocks. */
DEV void kv_put_floats(void *row, int kind, int e, float4 v)
{
    if (kind == KV_F32)
        *(float4 *)((float *)row + e) = v;
    else if (kind == KV_F16)
        *(uint2 *)((uint16_t *)row + e) =
            make_uint2(kv_f16(v.x) | kv_f16(v.y) << 16, kv_f16(v.z) | kv_f16(v.w) << 16);
    else
        *(uint2 *)((uint16_t *)row + e) =
            make_uint2(f32x2_to_bf16(v.x, v.y), f32x2_to_bf16(v.z, v.w));
}

/* Elements e .. e + 3 of a head's row in any format. All lanes of a warp call, with neighbouring e;
 * those with !in leave nothing. Blocks: e of lane 0 is a multiple of 32, rotated: of 128. */
DEV void kv_encode(void *row, int kind, bool rot, int e, float4 v, bool in)
{
    if (kind < KV_Q8_0) {
        if (in)
            kv_put_floats(row, kind, e, v);
        return;
    }
    if (rot)
        v = rotate_four(v, false);
    float x[4] = {finite(v.x), finite(v.y), finite(v.z), finite(v.w)};
    uint8_t *b = (uint8_t *)row + (e >> 5) * kv_block_bytes(kind);
    if (kind == KV_Q8_0)
        encode_q8(b, x, in);
    else if (kind == KV_TQ3_0)
        encode_tq3(b, x, in);
    else
        encode_nibbles(b, kind, x, in);
}

#endif
