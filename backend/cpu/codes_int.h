/* codes_int.h - taking packed superblocks apart: codes to bytes, scales and mins to f32.
 *
 * Plain loops of fixed length, which compilers turn into vectors; each matmul_*.c includes them.
 * pack_int.h draws the layout. A scale is the product of an f16 factor and a small integer, exact
 * in f32, so it is bit-identical in every instruction set.
 */
#ifndef BACKEND_CPU_CODES_INT_H
#define BACKEND_CPU_CODES_INT_H

#include "backend/cpu/kernels_int.h"
#include "backend/cpu/vec_int.h"
#include "num/lattice.h"

/* The sixteen levels of IQ4 (plus 128) and of MXFP4 (doubled, plus 12) as unsigned codes. */
static const uint8_t iq4_codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t fp4_codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Blocks of 32 in a superblock, scales of each, planes of bits, and a lattice's codes: pack.c. */
INLINE int blocks_of(num_type t)
{
    return t == NUM_Q2_K || t == NUM_Q3_K || t == NUM_Q4_K || t == NUM_Q5_K || t == NUM_Q6_K ||
                   t == NUM_IQ4_XS || t == NUM_TQ2_0 || lattice_type((int)t)
               ? 8
           : t == NUM_Q1_0                   ? 4
           : t == NUM_NVFP4 || t == NUM_Q2_0 ? 2
                                             : 1;
}
INLINE int lattice_halves(num_type t)
{
    return t == NUM_IQ1_M || t == NUM_IQ2_XS || t == NUM_IQ2_S ? 2 : 1;
}
INLINE int index_planes(num_type t) /* upper bits of indices */
{
    return lattice_shifts((int)t) ? 3 : t == NUM_IQ2_S ? 2 : t == NUM_IQ2_XS || t == NUM_IQ3_S;
}
INLINE const uint32_t *lattice_codes(num_type t)
{
    return t == NUM_IQ2_XXS   ? pack_codes_of.iq2_xxs
           : t == NUM_IQ2_XS  ? pack_codes_of.iq2_xs
           : t == NUM_IQ2_S   ? pack_codes_of.iq2_s
           : t == NUM_IQ3_XXS ? pack_codes_of.iq3_xxs
           : t == NUM_IQ3_S   ? pack_codes_of.iq3_s
                              : pack_codes_of.iq1;
}
INLINE int lattice_off(num_type t) /* as in pack.c: the largest size */
{
    return t == NUM_IQ3_XXS ? 62 : t == NUM_IQ3_S ? 15 : 43;
}

INLINE void f16_lanes(float *to, const uint8_t *from)
{
    for (int l = 0; l < PACK_LANES; l += VL) {
        vh h;
        memcpy(&h, from + 2 * l, sizeof h);
        vf_store(to + l, vf_of_f16(h));
    }
}

/* s[8 * n_sub][16] and m of one superblock (n_blocks * n_sub vectors). */
INLINE void take_scales(num_type t, const uint8_t *z, float *s, float *m)
{
    float d[PACK_LANES], dm[PACK_LANES];
    switch (t) {
    case NUM_MXFP4:
        for (int l = 0; l < PACK_LANES; l++) /* 2^(e - 128): below e = 2 a subnormal */
            s[l] = num_bits_f32(z[l] < 2 ? 0x00200000u << z[l] : (uint32_t)(z[l] - 1) << 23);
        break;
    case NUM_Q4_1:
    case NUM_Q5_1:
        f16_lanes(s, z);
        f16_lanes(dm, z + 32);
        for (int l = 0; l < PACK_LANES; l++)
            m[l] = -dm[l];
        break;
    case NUM_Q2_K:
        f16_lanes(d, z + 256);
        f16_lanes(dm, z + 288);
        for (int a = 0; a < 16; a++)
            for (int l = 0; l < PACK_LANES; l++) {
                s[16 * a + l] = d[l] * (float)(z[16 * a + l] & 15);
                m[16 * a + l] = dm[l] * (float)(z[16 * a + l] >> 4);
            }
        break;
    case NUM_Q3_K:
        f16_lanes(d, z + 192);
        for (int a = 0; a < 16; a++)
            for (int l = 0; l < PACK_LANES; l++)
                s[16 * a + l] = d[l] * (float)((int32_t)pack_six(z, a, l) - 32);
        break;
    case NUM_Q4_K:
    case NUM_Q5_K:
        f16_lanes(d, z + 192);
        f16_lanes(dm, z + 224);
        for (int a = 0; a < 8; a++)
            for (int l = 0; l < PACK_LANES; l++) {
                s[16 * a + l] = d[l] * (float)(int32_t)pack_six(z, a, l);
                m[16 * a + l] = dm[l] * (float)(int32_t)pack_six(z, 8 + a, l);
            }
        break;
    case NUM_Q6_K:
        f16_lanes(d, z + 256);
        for (int a = 0; a < 16; a++)
            for (int l = 0; l < PACK_LANES; l++)
                s[16 * a + l] = d[l] * (float)(int8_t)z[16 * a + l];
        break;
    case NUM_IQ4_XS:
        f16_lanes(d, z + 96);
        for (int a = 0; a < 8; a++)
            for (int l = 0; l < PACK_LANES; l++) {
                int32_t low = z[16 * (a % 4) + l] >> (4 * (a / 4)) & 15;
                int32_t high = z[64 + 16 * (a % 2) + l] >> (2 * (a / 2)) & 3;
                s[16 * a + l] = d[l] * (float)((low | high << 4) - 32);
            }
        break;
    case NUM_NVFP4: /* num_int.h: an f16 with another bias */
        for (int i = 0; i < 4 * PACK_LANES; i++)
            s[i] = num_f16_to_f32((uint16_t)(z[i] << 7)) * 128;
        break;
    default: /* one f16 per block, or with the scales of a lattice */
        if (lattice_type((int)t)) {
            int n = 4 * lattice_halves(t);
            f16_lanes(d, z + 16 * n);
            for (int a = 0; a < 2 * n; a++)
                for (int l = 0; l < PACK_LANES; l++)
                    s[16 * a + l] = d[l] * lattice_unit((int)t) *
                                    (float)(2 * (z[16 * (a % n) + l] >> (4 * (a / n)) & 15) + 1);
            break;
        }
        for (int b = 0; b < blocks_of(t); b++)
            f16_lanes(s + 16 * b, z);
        break;
    }
}

/* Codes of a lattice: an entry, a lane at a time. */
INLINE void take_entries(num_type t, const uint8_t *z, uint8_t *q)
{
    const int width = lattice_width((int)t), n = 32 / width, quads = width / 4;
    const bool shifts = lattice_shifts((int)t);
    const uint32_t *table = lattice_codes(t);
    const uint8_t *signs = z + 16 * n, *planes = signs + (shifts ? 0 : 64);
    const uint32_t twice = 0x02020202u * (uint32_t)lattice_off(t);
    for (int k = 0; k < n; k++)
        for (int l = 0; l < PACK_LANES; l++) {
            uint32_t i = z[16 * k + l];
            for (int b = 0; b < index_planes(t); b++)
                i |= (planes[2 * (n * b + k) + l / 8] >> l % 8 & 1u) << (8 + b);
            for (int h = 0; h < quads; h++) {
                uint32_t v = table[i * (uint32_t)quads + (uint32_t)h];
                if (shifts) {
                    v -= (planes[2 * (n * 3 + k) + l / 8] >> l % 8 & 1u) * 0x02020202u;
                } else {
                    uint32_t m = signs[8 * (k * quads + h) + l / 2] >> 4 * (l % 2) & 15u;
                    m = (m * 0x00204081u & 0x01010101u) * 255; /* four bits to four bytes */
                    v = (v & ~m) | ((twice - v) & m);
                }
                memcpy(q + 64 * (k * quads + h) + 4 * l, &v, 4);
            }
        }
}

/* The 512 codes of 32 inputs by 16 outputs. */
INLINE void take_codes(num_type t, const uint8_t *z, uint8_t *q)
{
    const uint8_t *pairs = z + (t == NUM_Q6_K ? 256 : 0);
    const uint8_t *bits = z + (t == NUM_Q3_K ? 128 : 256);

    if (t == NUM_Q8_0) {
        memcpy(q, z, PACK_CODES);
        return;
    }
    if (lattice_type((int)t)) {
        take_entries(t, z, q);
        return;
    }
    if (t == NUM_Q1_0) {
        for (int k = 0; k < 8; k++)
            for (int i = 0; i < 64; i++)
                q[64 * k + i] = (uint8_t)((z[i] >> k & 1) << 1);
        return;
    }
    if (t == NUM_Q2_K || t == NUM_Q3_K || t == NUM_Q2_0 || t == NUM_TQ2_0) {
        for (int k = 0; k < 8; k++)
            for (int i = 0; i < 64; i++)
                q[64 * k + i] = z[64 * (k / 4) + i] >> (2 * (k % 4)) & 3;
    } else {
        for (int i = 0; i < 256; i++) {
            q[i] = z[i] & 15;
            q[256 + i] = z[i] >> 4;
        }
    }
    if (t == NUM_Q6_K)
        for (int k = 0; k < 8; k++)
            for (int i = 0; i < 64; i++)
                q[64 * k + i] |= (uint8_t)((pairs[64 * (k / 4) + i] >> (2 * (k % 4)) & 3) << 4);
    if (t == NUM_Q3_K)
        for (int k = 0; k < 8; k++)
            for (int i = 0; i < 64; i++)
                q[64 * k + i] |= (uint8_t)((bits[i] >> k & 1) << 2);
    if (t == NUM_Q5_0 || t == NUM_Q5_1 || t == NUM_Q5_K)
        for (int k = 0; k < 8; k++)
            for (int i = 0; i < 64; i++)
                q[64 * k + i] |= (uint8_t)((bits[i] >> k & 1) << 4);
    if (t == NUM_IQ4_NL || t == NUM_IQ4_XS)
        for (int i = 0; i < PACK_CODES; i++)
            q[i] = iq4_codes[q[i]];
    if (t == NUM_MXFP4 || t == NUM_NVFP4)
        for (int i = 0; i < PACK_CODES; i++)
            q[i] = fp4_codes[q[i]];
}

INLINE void expand_as(num_type t, const pack_kind *kind, const uint8_t *z, int32_t n, uint8_t *q,
                      float *s, float *m)
{
    int32_t scales = kind->n_blocks * kind->n_sub * PACK_LANES;
    for (int32_t b = 0; b < n; b += kind->n_blocks) {
        take_scales(t, z, s, m);
        for (int j = 0; j < kind->n_blocks; j++, q += PACK_CODES)
            take_codes(t, z + kind->scale_bytes + j * kind->block_bytes, q);
        z += kind->super_bytes;
        s += scales;
        m += scales;
    }
}

__attribute__((unused)) static void k_expand(const pack_kind *kind, const uint8_t *z, int32_t n,
                                             uint8_t *q, float *s, float *m)
{
    switch (kind->type) {
#define EXPAND(t, n_sub, mins)                                                                     \
    case t:                                                                                        \
        expand_as(t, kind, z, n, q, s, m);                                                         \
        break;
        EVERY_KIND(EXPAND)
#undef EXPAND
    default:
        break;
    }
}

#endif
