/* lattice.h - blocks of IQ1, IQ2 and IQ3, taken apart. For the host and for CUDA kernels.
 *
 *     value = d * (2 scale + 1) * unit * step
 *
 * Steps are small integers: an entry of a lattice (grids.h) has the sizes of four or eight
 * neighbours, and a bit each has the signs. IQ1 has no signs. There a bit of each eight values, the
 * shift, says on which side of the entry they lie: its steps are 8 e + 1 or 8 e - 1.
 */
#ifndef NUM_LATTICE_H
#define NUM_LATTICE_H

#include <stdbool.h>
#include <stdint.h>

#ifndef LATTICE_FN /* .cu files: for the device */
#define LATTICE_FN static inline
#endif

enum { /* numbers of GGUF types, as in num.h */
       LATTICE_IQ2_XXS = 16,
       LATTICE_IQ2_XS = 17,
       LATTICE_IQ3_XXS = 18,
       LATTICE_IQ1_S = 19,
       LATTICE_IQ3_S = 21,
       LATTICE_IQ2_S = 22,
       LATTICE_IQ1_M = 29
};

/* A group of 32 values. */
typedef struct lattice_group {
    uint32_t negative; /* bit i: value i has a minus; IQ1: bit k: the shift of entry k is down */
    uint16_t index[8]; /* of entries; four are used where an entry has eight values */
    uint16_t d;        /* f16 */
    uint8_t scale[2];  /* of each 16 values; equal in formats with a scale per 32 */
} lattice_group;

LATTICE_FN bool lattice_type(int type)
{
    return (type >= LATTICE_IQ2_XXS && type <= LATTICE_IQ1_S) || type == LATTICE_IQ3_S ||
           type == LATTICE_IQ2_S || type == LATTICE_IQ1_M;
}
LATTICE_FN bool lattice_shifts(int type)
{
    return type == LATTICE_IQ1_S || type == LATTICE_IQ1_M;
}
LATTICE_FN int lattice_width(int type) /* values of an entry */
{
    return type == LATTICE_IQ3_XXS || type == LATTICE_IQ3_S ? 4 : 8;
}
LATTICE_FN int lattice_block_bytes(int type) /* of 256 values */
{
    switch (type) {
    case LATTICE_IQ2_XXS:
        return 66;
    case LATTICE_IQ2_XS:
        return 74;
    case LATTICE_IQ2_S:
        return 82;
    case LATTICE_IQ3_XXS:
        return 98;
    case LATTICE_IQ3_S:
        return 110;
    case LATTICE_IQ1_S:
        return 50;
    default:
        return 56;
    }
}
LATTICE_FN float lattice_unit(int type)
{
    return type == LATTICE_IQ3_XXS ? 0.25f : type == LATTICE_IQ3_S ? 1.0f : 0.125f;
}

/* Value i of an entry, without sign or shift. IQ1: 8 e. */
LATTICE_FN int lattice_size(int type, uint32_t entry, int i)
{
    if (lattice_width(type) == 8) {
        uint32_t n = entry >> 2 * i & 3;
        return lattice_shifts(type) ? 8 * (int)n - 8 : (int)(0x2b1908u >> 8 * n & 255);
    }
    int n = (int)(entry >> 4 * i & 7);
    return type == LATTICE_IQ3_S ? 2 * n + 1 : n < 7 ? 8 * n + 4 : 62;
}

/* Seven signs, and an eighth that makes the number of minuses even. */
LATTICE_FN uint32_t lattice_signs(uint32_t seven)
{
    uint32_t s = seven & 127, odd = s ^ s >> 4;
    return s | (0x6996u >> (odd & 15) & 1) << 7;
}

/* Group j of a block of 256. */
LATTICE_FN void lattice_take(lattice_group *g, int type, const uint8_t *b, int j)
{
    g->negative = 0;
    g->d = (uint16_t)(b[0] | b[1] << 8);
    switch (type) {
    case LATTICE_IQ2_XXS: /* d; of each group four indices, then a word: four times seven signs, */
    case LATTICE_IQ3_XXS: { /* and the scale. IQ3: all indices first */
        bool three = type == LATTICE_IQ3_XXS;
        const uint8_t *q = b + 2 + 8 * j, *a = three ? b + 66 + 4 * j : q + 4;
        uint32_t word = a[0] | (uint32_t)a[1] << 8 | (uint32_t)a[2] << 16 | (uint32_t)a[3] << 24;
        for (int k = 0; k < (three ? 8 : 4); k++)
            g->index[k] = q[k];
        for (int k = 0; k < 4; k++)
            g->negative |= lattice_signs(word >> 7 * k) << 8 * k;
        g->scale[0] = g->scale[1] = (uint8_t)(word >> 28);
        break;
    }
    case LATTICE_IQ2_XS: { /* d, of each eight values an index of nine bits and seven signs, scales
                            */
        const uint8_t *q = b + 2 + 8 * j;
        for (int k = 0; k < 4; k++) {
            uint32_t v = q[2 * k] | (uint32_t)q[2 * k + 1] << 8;
            g->index[k] = (uint16_t)(v & 511);
            g->negative |= lattice_signs(v >> 9) << 8 * k;
        }
        g->scale[0] = b[66 + j] & 15;
        g->scale[1] = b[66 + j] >> 4;
        break;
    }
    case LATTICE_IQ2_S: /* d, low bytes of indices, signs, upper two bits of indices, scales */
        for (int k = 0; k < 4; k++) {
            g->index[k] = (uint16_t)(b[2 + 4 * j + k] | (b[66 + j] >> 2 * k & 3) << 8);
            g->negative |= (uint32_t)b[34 + 4 * j + k] << 8 * k;
        }
        g->scale[0] = b[74 + j] & 15;
        g->scale[1] = b[74 + j] >> 4;
        break;
    case LATTICE_IQ3_S: /* d, low bytes of indices, their ninth bits, signs, scales */
        for (int k = 0; k < 8; k++)
            g->index[k] = (uint16_t)(b[2 + 8 * j + k] | (b[66 + j] >> k & 1) << 8);
        for (int k = 0; k < 4; k++)
            g->negative |= (uint32_t)b[74 + 4 * j + k] << 8 * k;
        g->scale[0] = g->scale[1] = b[106 + j / 2] >> 4 * (j % 2) & 15;
        break;
    case LATTICE_IQ1_S: { /* d, low bytes, of each group: 4 x 3 upper bits, the scale, the shift */
        uint32_t h = b[34 + 2 * j] | (uint32_t)b[35 + 2 * j] << 8;
        for (int k = 0; k < 4; k++)
            g->index[k] = (uint16_t)(b[2 + 4 * j + k] | (h >> 3 * k & 7) << 8);
        g->negative = h >> 15 ? 15 : 0;
        g->scale[0] = g->scale[1] = h >> 12 & 7;
        break;
    }
    default: { /* IQ1_M: low bytes; nibbles of three upper bits and the shift; four words of four
                  scales of three bits, whose upper nibbles are d */
        const uint8_t *s = b + 48;
        uint32_t w = s[j / 2 * 2] | (uint32_t)s[j / 2 * 2 + 1] << 8;
        for (int k = 0; k < 4; k++) {
            int n = b[32 + 2 * j + k / 2] >> 4 * (k % 2);
            g->index[k] = (uint16_t)(b[4 * j + k] | (n & 7) << 8);
            g->negative |= (uint32_t)(n >> 3 & 1) << k;
        }
        g->scale[0] = w >> 6 * (j % 2) & 7;
        g->scale[1] = w >> (6 * (j % 2) + 3) & 7;
        g->d = (uint16_t)(s[1] >> 4 | (s[3] >> 4) << 4 | (s[5] >> 4) << 8 | (s[7] >> 4) << 12);
        break;
    }
    }
}

/* Step i of a group whose entries are in `grid`. */
LATTICE_FN int lattice_step(int type, const uint16_t *grid, const lattice_group *g, int i)
{
    int width = lattice_width(type), k = i / width;
    int size = lattice_size(type, grid[g->index[k]], i % width);
    if (lattice_shifts(type))
        return g->negative >> k & 1 ? size - 1 : size + 1;
    return g->negative >> i & 1 ? -size : size;
}

#endif
