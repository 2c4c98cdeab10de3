/* pack.cu - from the file's blocks to the device's layout, and from that to bf16.
 *
 * Packing runs once, at load, one thread per row and group of 32. It reads single bytes, so blocks
 * need no alignment. Every code and scale is kept exactly. Formats without a layout of their own
 * become int8 codes with an f32 factor and offset per 16. Unpacking to bf16 serves products of many
 * rows.
 */
#include "backend/cuda/product/fragments.cuh"
#include "backend/cuda/product/lattice.cuh"
#include "backend/cuda/product/launch_products.h"

enum { /* numbers of GGUF types, as in num/num.h */
       T_F32 = 0,
       T_F16 = 1,
       T_Q4_0 = 2,
       T_Q4_1 = 3,
       T_Q5_0 = 6,
       T_Q5_1 = 7,
       T_Q8_0 = 8,
       T_Q2_K = 10,
       T_Q3_K = 11,
       T_Q4_K = 12,
       T_Q5_K = 13,
       T_Q6_K = 14,
       T_IQ4_NL = 20,
       T_IQ4_XS = 23,
       T_BF16 = 30,
       T_MXFP4 = 39,
       T_NVFP4 = 40
};

DEV uint32_t ld2(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}
DEV uint32_t ld4(const uint8_t *p)
{
    return ld2(p) | ld2(p + 2) << 16;
}
DEV int iq4_code(int q)
{
    /* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, a byte each */
    const uint64_t lo = 0xf6eaddcfbfad9881ull, hi = 0x7159453526190d01ull;
    return (int8_t)((q < 8 ? lo : hi) >> 8 * (q & 7));
}
DEV int mxfp4_level(int q)
{
    int m = (int)(0x0c08060403020100ull >> 8 * (q & 7) & 0xff);
    return q < 8 ? m : -m;
}

/* One group of the file: codes 0..255 (or int8), and scale bytes for group_scales, or factors. */
struct group_bits {
    uint8_t code[32];
    uint32_t scale;   /* its bytes of the scale plane, where 4 or fewer */
    float f[2], m[2]; /* PACK_G8 */
};

DEV void nibbles(group_bits *b, const uint8_t *q)
{
    for (int j = 0; j < 16; j++) {
        b->code[j] = q[j] & 15;
        b->code[j + 16] = q[j] >> 4;
    }
}

/* Group j of the super-block at p. */
DEV void take_k(group_bits *b, int type, const uint8_t *p, int j)
{
    if (type == T_Q4_K || type == T_Q5_K) {
        const uint8_t *q = p + (type == T_Q4_K ? 16 : 48) + 32 * (j / 2);
        for (int l = 0; l < 32; l++) {
            int c = j & 1 ? q[l] >> 4 : q[l] & 15;
            b->code[l] = (uint8_t)(type == T_Q5_K ? c | (p[16 + l] >> j & 1) << 4 : c);
        }
        return;
    }
    for (int h = 0; h < 2; h++) { /* the rest have sub-blocks of 16: g = 2j + h */
        int g = 2 * j + h, k = g % 8 / 2, at = h * 16;
        if (type == T_Q6_K) {
            const uint8_t *l = p + g / 8 * 64 + k % 2 * 32 + at, *u = p + 128 + g / 8 * 32 + at;
            for (int i = 0; i < 16; i++)
                b->code[at + i] = (uint8_t)((l[i] >> k / 2 * 4 & 15) | (u[i] >> 2 * k & 3) << 4);
            b->scale = (b->scale & ~(0xffu << 8 * h)) | (uint32_t)p[192 + g] << 8 * h;
        } else if (type == T_Q2_K) {
            const uint8_t *q = p + 16 + g / 8 * 32 + at;
            for (int i = 0; i < 16; i++)
                b->code[at + i] = q[i] >> 2 * k & 3;
            b->f[h] = mul_rn(f16_to_f32(ld2(p + 80)), (float)(p[g] & 15));
            b->m[h] = -mul_rn(f16_to_f32(ld2(p + 82)), (float)(p[g] >> 4));
        } else { /* Q3_K */
            const uint8_t *q = p + 32 + g / 8 * 32 + at, *hm = p + at, *sc = p + 96;
            for (int i = 0; i < 16; i++)
                b->code[at + i] = (uint8_t)(int8_t)((q[i] >> 2 * k & 3) - 4 + (hm[i] >> j & 1) * 4);
            int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
            int s = (low | (sc[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32;
            b->f[h] = mul_rn(f16_to_f32(ld2(p + 108)), (float)s);
            b->m[h] = 0;
        }
    }
}

DEV void take_file_group(group_bits *b, int type, const uint8_t *row, int g)
{
    const uint8_t *p;
    b->scale = 0;
    switch (type) {
    case T_Q4_0:
        p = row + g * 18;
        b->scale = ld2(p);
        nibbles(b, p + 2);
        break;
    case T_Q4_1:
        p = row + g * 20;
        b->scale = ld4(p);
        nibbles(b, p + 4);
        break;
    case T_Q5_0:
    case T_Q5_1: {
        int head = type == T_Q5_0 ? 2 : 4;
        p = row + g * (head + 20);
        b->scale = head == 2 ? ld2(p) : ld4(p);
        uint32_t h = ld4(p + head);
        nibbles(b, p + head + 4);
        for (int j = 0; j < 32; j++)
            b->code[j] |= (uint8_t)((h >> j & 1) << 4);
        break;
    }
    case T_Q8_0:
        p = row + g * 34;
        b->scale = ld2(p);
        for (int j = 0; j < 32; j++)
            b->code[j] = p[2 + j];
        break;
    case T_IQ4_NL:
    case T_MXFP4:
    case T_IQ4_XS: {
        float f;
        if (type == T_IQ4_NL) {
            p = row + g * 18;
            f = f16_to_f32(ld2(p));
            p += 2;
        } else if (type == T_MXFP4) {
            p = row + g * 17;
            f = __uint_as_float(p[0] < 2 ? 0x00200000u << p[0] : (uint32_t)(p[0] - 1) << 23);
            p += 1;
        } else {
            const uint8_t *sb = row + g / 8 * 136;
            int j = g & 7;
            int ls = (sb[4 + j / 2] >> 4 * (j & 1) & 15) | (int)(ld2(sb + 2) >> 2 * j & 3) << 4;
            f = mul_rn(f16_to_f32(ld2(sb)), (float)(ls - 32));
            p = sb + 8 + 16 * j;
        }
        nibbles(b, p);
        for (int j = 0; j < 32; j++)
            b->code[j] =
                (uint8_t)(type == T_MXFP4 ? mxfp4_level(b->code[j]) : iq4_code(b->code[j]));
        b->f[0] = b->f[1] = f;
        b->m[0] = b->m[1] = 0;
        break;
    }
    default: {
        if (small_block(type)) {
            for (int i = 0; i < 32; i++)
                b->code[i] = (uint8_t)small_code(type, row, g, i, &b->f[i >> 4]);
            b->m[0] = b->m[1] = 0;
            break;
        }
        int bytes = type == T_Q4_K   ? 144
                    : type == T_Q5_K ? 176
                    : type == T_Q6_K ? 210
                    : type == T_Q2_K ? 84
                                     : 110;
        take_k(b, type, row + g / 8 * bytes, g & 7);
    }
    }
}

/* The low nibbles of four bytes, next to each other. */
DEV uint32_t four_nibbles(uint32_t v)
{
    return (v & 0xf) | (v >> 4 & 0xf0) | (v >> 8 & 0xf00) | (v >> 12 & 0xf000);
}

/* Replaces the codes of b by nibbles. Returns the factor of the row's unit; the group's own becomes
 * 16 bits of b->scale (group_scales). row: NULL past n_out. */
DEV float take_levels(group_bits *b, int type, const uint8_t *row, int g, float factor)
{
    if (!row)
        return 0;
    const uint8_t *p;
    float by = factor;
    if (type == T_NVFP4) {
        p = row + (g >> 1) * 36;
        for (int h = 0; h < 2; h++) {
            int part = (g & 1) * 2 + h, e = p[part];
            b->scale |= (uint32_t)(e == 0x7f ? 0 : e & 0x7f) << 8 * h;
            for (int j = 0; j < 16; j++)
                b->code[16 * h + j] = p[4 + 8 * part + (j & 7)] >> (j & 8 ? 4 : 0) & 15;
        }
        return by;
    }
    if (type == T_MXFP4) {
        p = row + g * 17;
        b->scale = 0x8000u | (p[0] < 2 ? 0x20u << p[0] : (uint32_t)(p[0] - 1) << 7);
        p += 1;
    } else if (type == T_IQ4_NL) {
        p = row + g * 18;
        b->scale = ld2(p);
        p += 2;
    } else { /* IQ4_XS */
        const uint8_t *sb = row + g / 8 * 136;
        int j = g & 7;
        int ls = (sb[4 + j / 2] >> 4 * (j & 1) & 15) | (int)(ld2(sb + 2) >> 2 * j & 3) << 4;
        b->scale = f32_to_f16((float)(ls - 32)); /* exact */
        by = f16_to_f32(ld2(sb));
        p = sb + 8 + 16 * j;
    }
    nibbles(b, p);
    return by;
}

DEV uint8_t *plane(const uint8_t *p)
{
    return (uint8_t *)p;
}

/* Group g of a row of codes of one or two bits. row: NULL past n_out. */
DEV void pack_bits(const packed &w, size_t base, int type, const uint8_t *row, int tile, int g,
                   int r)
{
    const bool single = w.kind == PACK_BITS1;
    const size_t at = share_at(w, tile, g >> 3, g & 1, r) + (g >> 1 & 3);
    const size_t ts = ((size_t)tile * w.n_unit + (g >> 3)) * 16 + r;
    uint32_t code[2] = {0, 0}, d[2] = {0, 0};
    float f;
    for (int i = 0; row && i < 32; i++) {
        const int v = small_code(type, row, g, i, &f), word = i >> 2, to = 16 * (word & 1);
        if (single)
            code[0] |= (uint32_t)(v > 0) << (to + 4 * (i & 3) + (word >> 1));
        else
            code[word >> 2] |= (uint32_t)(v + 1) << (to + 4 * (i & 3) + (word & 2));
    }
    uint32_t *codes = (uint32_t *)(plane(w.codes) + base + at * (single ? 4 : 8));
    codes[0] = code[0];
    if (!single)
        codes[1] = code[1];
    if (g & 7)
        return;
    for (int i = 0; row && i < (single ? 2 : 4); i++) /* of the unit */
        if (g + i * (single ? 4 : 2) < w.n_group) {
            small_code(type, row, g + i * (single ? 4 : 2), 0, &f);
            d[i >> 1] |= f32_to_f16(f) << 16 * (i & 1); /* exact */
        }
    uint32_t *super = (uint32_t *)(plane(w.super) + base + ts * (single ? 4 : 8));
    super[0] = d[0];
    if (!single)
        super[1] = d[1];
}

/* The same of IQ1. */
DEV void pack_iq1(const packed &w, size_t base, int type, const uint8_t *row, int tile, int g,
                  int r)
{
    const uint8_t *block = row + (size_t)(g >> 3) * (size_t)lattice_block_bytes(type);
    const size_t at = share_at(w, tile, g >> 3, g & 1, r) + (g >> 1 & 3);
    const size_t ts = ((size_t)tile * w.n_unit + (g >> 3)) * 16 + r;
    lattice_group l = {};
    uint32_t low = 0, upper = 0;
    if (row)
        lattice_take(&l, type, block, g & 7);
    for (int k = 0; k < 4; k++) {
        low |= (l.index[k] & 255u) << 8 * k;
        upper |= ((uint32_t)l.index[k] >> 8 | (l.negative >> k & 1) << 3) << upper_at(k);
    }
    *(uint32_t *)(plane(w.codes) + base + at * 4) = low;
    *(uint16_t *)(plane(w.scale) + base + at * 2) = (uint16_t)upper;
    if (g & 7)
        return;
    uint64_t super = l.d;
    for (int j = 0; row && j < 8; j++) {
        lattice_take(&l, type, block, j);
        super |= (uint64_t)(l.scale[0] | l.scale[1] << 3) << (16 + 24 * (j & 1) + 6 * (j >> 1));
    }
    *(uint64_t *)(plane(w.super) + base + ts * 8) = super;
}

/* The same of IQ2 and IQ3. */
DEV void pack_lattice(const packed &w, size_t base, int type, const uint8_t *row, int tile, int g,
                      int r)
{
    const bool three = lattice_width(type) == 4;
    const size_t block = (size_t)(g >> 3) * (size_t)lattice_block_bytes(type);
    const size_t share = share_at(w, tile, g >> 3, g & 1, r), at = share + (g >> 1 & 3);
    const size_t ts = ((size_t)tile * w.n_unit + (g >> 3)) * 16 + r;
    lattice_group l = {};
    uint32_t low[2] = {0, 0}, signs = 0, scales = 0, upper = 0;
    if (row)
        lattice_take(&l, type, row + block, g & 7);
    for (int k = 0; k < (three ? 8 : 4); k++)
        low[k >> 2] |= (l.index[k] & 255u) << 8 * (k & 3);
    for (int i = 0; i < 32; i++)
        signs |= (l.negative >> i & 1)
                 << (three ? 4 * (i & 3) + (i >> 2 & 3) + (i & 16) : 4 * (i & 7) + (i >> 3));
    uint32_t *codes = (uint32_t *)(plane(w.codes) + base + at * (three ? 8 : 4));
    codes[0] = low[0];
    if (three)
        codes[1] = low[1];
    *(uint32_t *)(plane(w.high) + base + at * 4) = signs;
    if ((g & 7) > 1)
        return;
    /* The first group of a parity writes what its four groups share. */
    const bool pairs = w.kind == PACK_IQ2_XS || w.kind == PACK_IQ2_S;
    for (int i = 0; i < 4; i++) {
        if (row)
            lattice_take(&l, type, row + block, (g & 1) + 2 * i);
        scales |= pairs ? (l.scale[0] | (uint32_t)l.scale[1] << 4) << 8 * i
                        : (uint32_t)l.scale[0] << 4 * i;
        for (int k = 0; k < (three ? 8 : 4); k++)
            upper |= three ? (l.index[k] >> 8 & 1u) << (8 * (k & 3) + (k & 4) + i)
                           : (l.index[k] >> 8 & 3u) << (8 * k + 2 * i);
    }
    if (pairs) {
        *(uint2 *)(plane(w.scale) + base + share * 2) = make_uint2(scales, upper);
        if (g % 8 == 0)
            *(uint16_t *)(plane(w.super) + base + ts * 2) = l.d;
        return;
    }
    uint8_t *super = plane(w.super) + base + ts * (w.kind == PACK_IQ3_S ? 16 : 8);
    if (g % 8 == 0)
        *(uint32_t *)super = l.d;
    ((uint16_t *)super)[2 + g % 8] = (uint16_t)scales;
    if (w.kind == PACK_IQ3_S)
        ((uint32_t *)super)[2 + g % 8] = upper;
}

/* d, dmin and the twelve packed bytes of Q4_K and Q5_K, rearranged so that scale j and minimum j
 * are shifts by 4j and 2j: see group_scales. */
DEV uint4 k4_super(const uint8_t *p)
{
    const uint8_t *b = p + 4;
    uint4 s = make_uint4(ld4(p), 0, 0, 0);
    for (int j = 0; j < 8; j++) {
        uint32_t sc, mn;
        if (j < 4) {
            sc = b[j] & 63;
            mn = b[j + 4] & 63;
        } else {
            sc = (b[j + 4] & 15) | (uint32_t)(b[j - 4] >> 6) << 4;
            mn = (uint32_t)(b[j + 4] >> 4) | (uint32_t)(b[j] >> 6) << 4;
        }
        s.y |= (sc & 15) << 4 * j;
        s.z |= (mn & 15) << 4 * j;
        s.w |= (sc >> 4) << 2 * j | (mn >> 4) << (16 + 2 * j);
    }
    return s;
}

/* Packs all matrices of a weight; rows past n_out become zeros.
 * grid:   one thread per (row of the padded tiles, group), 128 per block; y: matrix
 * shared: none
 * bound:  reading single bytes; once per load, and far faster than the disk
 * No trigger: a following product reads weights before its wait. */
__global__ void __launch_bounds__(128)
    pack_kernel(packed w, pack_sizes z, int type, const uint8_t *file, size_t row_bytes,
                float factor)
{
    grid_wait();
    int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x;
    int64_t tg = i / 16;
    int r = (int)(i % 16), tile = (int)(tg / w.n_group), g = (int)(tg % w.n_group);
    if (tile >= w.n_tile)
        return;
    size_t base = (size_t)blockIdx.y * w.mat_bytes;
    int o = tile * 16 + r;
    const uint8_t *row = file + ((size_t)blockIdx.y * w.n_out + o) * row_bytes;
    if (w.kind >= PACK_IQ3_XXS) {
        row = o < w.n_out ? row : NULL;
        if (w.kind == PACK_BITS1 || w.kind == PACK_BITS2)
            pack_bits(w, base, type, row, tile, g, r);
        else if (w.kind == PACK_IQ1)
            pack_iq1(w, base, type, row, tile, g, r);
        else
            pack_lattice(w, base, type, row, tile, g, r);
        return;
    }
    group_bits b = {};
    const bool levels = w.kind == PACK_IQ4 || w.kind == PACK_FP4;
    float by = 0; /* of layouts with levels */
    if (levels)
        by = take_levels(&b, type, o < w.n_out ? row : NULL, g, factor);
    else if (o < w.n_out)
        take_file_group(&b, type, row, g);
    uint32_t word[8], h0 = 0, h1 = 0;
    for (int k = 0; k < 8; k++) {
        word[k] = 0;
        for (int e = 0; e < 4; e++) {
            uint32_t c = b.code[4 * k + e];
            word[k] |= (z.code == 32 ? c : c & 15) << 8 * e;
            if (z.high == 4)
                h0 |= (c >> 4 & 1) << (8 * e + k);
            else if (z.high == 8 && k < 4)
                h0 |= (c >> 4 & 3) << (8 * e + 2 * k);
            else if (z.high == 8)
                h1 |= (c >> 4 & 3) << (8 * e + 2 * (k - 4));
        }
    }
    if (z.code == 32) {
        *(uint4 *)(plane(w.codes) + base + ((tg * 2) * 16 + r) * 16) =
            make_uint4(word[0], word[1], word[2], word[3]);
        *(uint4 *)(plane(w.codes) + base + ((tg * 2 + 1) * 16 + r) * 16) =
            make_uint4(word[4], word[5], word[6], word[7]);
    } else {
        if (levels)
            for (int k = 0; k < 4; k++) {
                word[k] = four_nibbles(word[k]);
                word[k + 4] = four_nibbles(word[k + 4]) << 12; /* and 4 below */
            }
        *(uint4 *)(plane(w.codes) + base + (tg * 16 + r) * 16) =
            make_uint4(word[0] | word[4] << 4, word[1] | word[5] << 4, word[2] | word[6] << 4,
                       word[3] | word[7] << 4);
    }
    size_t at = share_at(w, tile, g >> 3, g & 1, r) + (g >> 1 & 3);
    if (z.high == 4)
        *(uint32_t *)(plane(w.high) + base + at * 4) = h0;
    if (z.high == 8)
        *(uint2 *)(plane(w.high) + base + at * 8) = make_uint2(h0, h1);
    if (z.scale == 2)
        *(uint16_t *)(plane(w.scale) + base + at * 2) = (uint16_t)b.scale;
    if (z.scale == 4)
        *(uint32_t *)(plane(w.scale) + base + at * 4) = b.scale;
    if (z.scale == 16)
        *(float4 *)(plane(w.scale) + base + at * 16) =
            make_float4(mul_rn(b.f[0], factor), mul_rn(b.f[1], factor), b.m[0], b.m[1]);
    if (g % 8 || !z.super)
        return;
    size_t ts = (size_t)tile * w.n_unit + g / 8;
    if (z.super == 4) {
        *(float *)(plane(w.super) + base + (ts * 16 + r) * 4) = by;
        return;
    }
    int bytes = type == T_Q4_K ? 144 : type == T_Q5_K ? 176 : 210;
    const uint8_t *sb = row + (size_t)(g / 8) * bytes;
    if (z.super == 16)
        *(uint4 *)(plane(w.super) + base + (ts * 16 + r) * 16) =
            o < w.n_out ? k4_super(sb) : make_uint4(0, 0, 0, 0);
    else
        *(uint16_t *)(plane(w.super) + base + (ts * 16 + r) * 2) =
            o < w.n_out ? (uint16_t)ld2(sb + 208) : 0;
}

enum { UNPACK_WARPS = 8 }; /* of a block */

/* to[i, :] = row 16 first_tile + i of matrix 0, as bf16.
 *
 *     warp     a unit: 16 rows x 256 columns; a lane loads its share, the groups of a parity of a row
 *     lines    in shared memory: two groups of all rows, 128 bytes of each row of `to`
 *
 * A lane makes columns of one row. Stored from there, 16 bytes a lane, they would fill half of each
 * sector of the second-level cache. So the lines are transposed first, and a store of the warp
 * writes four rows of 128 bytes.
 * grid:   one warp per unit, UNPACK_WARPS per block
 * shared: the lines; a row's pieces of 16 bytes are permuted, so that lanes meet different banks
 * bound:  writing 2 bytes per weight */
template <int K>
__global__ void __launch_bounds__(32 * UNPACK_WARPS)
    unpack_kernel(packed w, int first_tile, int n_rows, uint16_t *to)
{
    using T = traits<K>;
    __shared__ uint4 all_lines[UNPACK_WARPS][16 * 8];
    grid_trigger();
    lattice_begin<K>(w.kind);
    grid_wait();
    const int64_t i = (int64_t)blockIdx.x * UNPACK_WARPS + threadIdx.x / 32;
    const int tile = (int)(i / w.n_unit), unit = (int)(i % w.n_unit);
    const int r = lane_id() & 15, parity = lane_id() >> 4;
    const uint32_t power = in_register(code_float<K>::power);
    uint4 *lines = all_lines[threadIdx.x / 32];
    if (tile * 16 >= n_rows)
        return;
    raw_unit<K> raw;
    load_unit<K>(&raw, w, 0, first_tile + tile, unit, r, parity);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        const int g = unit * 8 + 2 * pair;
        raw_group<K> group;
        uint32_t words[8], word[16];
        take_group<K>(&group, raw, pair);
        const scales v = group_scales<K>(group.s, g + parity);
        group_words<K>(words, group);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const bool second = T::split && k >= 4;
            const float f = second ? v.f1 : v.f0, m = second ? v.m1 : v.m0;
            const float off = zero_first<K> ? 0 : T::offset ? m : -code_float<K>::zero * f;
            const uint32_t c = T::is_signed ? words[k] ^ 0x80808080 : words[k];
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = weight_of<K>(float_of<K>(c, e, power), f, off);
            word[2 * k] = f32x2_to_bf16(x[0], x[1]);
            word[2 * k + 1] = f32x2_to_bf16(x[2], x[3]);
        }
#pragma unroll
        for (int p = 0; p < 4; p++)
            lines[r * 8 + ((4 * parity + p) ^ (r & 7))] =
                make_uint4(word[4 * p], word[4 * p + 1], word[4 * p + 2], word[4 * p + 3]);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int row = 4 * n + (lane_id() >> 3), p = lane_id() & 7, at = g * 32 + 8 * p;
            if (tile * 16 + row < n_rows && at < w.n_in)
                *(uint4 *)(to + (size_t)(tile * 16 + row) * w.n_in + at) =
                    lines[row * 8 + (p ^ (row & 7))];
        }
        __syncwarp();
    }
}

/* The same for weights whose rows are floats.
 * grid:   one thread per element, 256 per block
 * shared: none
 * bound:  bandwidth */
__global__ void __launch_bounds__(256)
    unpack_float_kernel(packed w, int64_t first, int64_t n, uint16_t *to)
{
    grid_trigger();
    grid_wait();
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n)
        return;
    if (w.kind == PACK_F32)
        to[i] = (uint16_t)f32_to_bf16(((const float *)w.codes)[first + i]);
    else if (w.kind == PACK_F16)
        to[i] = (uint16_t)f32_to_bf16(f16_to_f32(((const uint16_t *)w.codes)[first + i]));
    else
        to[i] = ((const uint16_t *)w.codes)[first + i];
}

#define SAME(KIND, CODE, HIGH, SCALE, SUPER)                                                       \
    static_assert(traits<PACK_##KIND>::code == CODE && traits<PACK_##KIND>::high == HIGH &&        \
                      traits<PACK_##KIND>::scale == SCALE &&                                       \
                      traits<PACK_##KIND>::super_bytes == SUPER,                                   \
                  "the host lays weights out as kernels read them");
PACK_SIZES(SAME)

extern "C" void cu_pack(cudaStream_t s, packed w, int type, const void *file, size_t row_bytes,
                        const float *factor)
{
    int64_t n = (int64_t)w.n_tile * w.n_group * 16;
    pack_sizes z = pack_sizes_of(w.kind);
    dim3 grid((unsigned)((n + 127) / 128), (unsigned)(factor ? 1 : w.n_mat));
    for (int i = 0; i < (factor ? w.n_mat : 1); i++) { /* a matrix at a time, or all at once */
        LAUNCH(pack_kernel, grid, dim3(128), 0, s, w, z, type, (const uint8_t *)file, row_bytes,
               factor ? factor[i] : 1.0f);
        file = (const uint8_t *)file + (size_t)w.n_out * row_bytes;
        w.codes += w.mat_bytes;
        w.high += w.mat_bytes;
        w.scale += w.mat_bytes;
        w.super += w.mat_bytes;
    }
}

template <int K>
static void unpack_kind(cudaStream_t s, packed w, int first_row, int n_rows, uint16_t *to)
{
    const int64_t n = (int64_t)((n_rows + 15) / 16) * w.n_unit;
    LAUNCH(unpack_kernel<K>, dim3((unsigned)((n + UNPACK_WARPS - 1) / UNPACK_WARPS)),
           dim3(32 * UNPACK_WARPS), 0, s, w, first_row / 16, n_rows, to);
}

/* first_row is a multiple of 16. */
extern "C" void cu_unpack_bf16(cudaStream_t s, packed w, int32_t first_row, int32_t n_rows,
                               uint16_t *to)
{
    const bool blocks = by_layout(all_packs, pack_kernels(w.kind), [&](auto k) {
        return unpack_kind<k>(s, w, first_row, n_rows, to), true;
    });
    const int64_t n = (int64_t)n_rows * w.n_in;
    if (!blocks)
        LAUNCH(unpack_float_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, w,
               (int64_t)first_row * w.n_in, n, to);
}
