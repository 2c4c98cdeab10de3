/* blocks.cuh - the file's blocks of lattices and of very few bits: one element at a time.
 *
 * For IQ1, IQ2, IQ3, TQ1_0, TQ2_0, NVFP4, Q1_0 and Q2_0. A value is a small integer, the code, times
 * a factor of its 16 neighbours. Packing (pack.cu) and tables of embeddings (elementwise.cu) use it;
 * products read packed weights.
 */
#ifndef BACKEND_CUDA_BLOCKS_CUH
#define BACKEND_CUDA_BLOCKS_CUH

#include "backend/cuda/dev.cuh"

#define LATTICE_FN DEV
#include "num/grids.h"
#include "num/lattice.h"

enum { /* numbers of GGUF types, as in num/num.h */
       B_TQ1_0 = 34,
       B_TQ2_0 = 35,
       B_NVFP4 = 40,
       B_Q1_0 = 41,
       B_Q2_0 = 42
};

static __device__ const uint16_t grid_iq2_xxs[] = {GRID_IQ2_XXS}, grid_iq2_xs[] = {GRID_IQ2_XS},
                                 grid_iq2_s[] = {GRID_IQ2_S}, grid_iq1[] = {GRID_IQ1},
                                 grid_iq3_xxs[] = {GRID_IQ3_XXS}, grid_iq3_s[] = {GRID_IQ3_S};

DEV const uint16_t *grid_of_type(int type)
{
    return type == LATTICE_IQ2_XXS   ? grid_iq2_xxs
           : type == LATTICE_IQ2_XS  ? grid_iq2_xs
           : type == LATTICE_IQ2_S   ? grid_iq2_s
           : type == LATTICE_IQ3_XXS ? grid_iq3_xxs
           : type == LATTICE_IQ3_S   ? grid_iq3_s
                                     : grid_iq1;
}

DEV float half_at(const uint8_t *p)
{
    return f16_to_f32(p[0] | (uint32_t)p[1] << 8);
}

DEV bool small_block(int type)
{
    return lattice_type(type) || type == B_TQ1_0 || type == B_TQ2_0 || type >= B_NVFP4;
}

/* The code of element i of group g (32 elements) of a row of the file, and its factor. */
DEV int small_code(int type, const uint8_t *row, int g, int i, float *f)
{
    if (lattice_type(type)) {
        lattice_group l;
        lattice_take(&l, type, row + (size_t)(g >> 3) * lattice_block_bytes(type), g & 7);
        *f = f16_to_f32(l.d) * lattice_unit(type) * (float)(2 * l.scale[i >> 4] + 1);
        return lattice_step(type, grid_of_type(type), &l, i);
    }
    int at = (g & 7) * 32 + i; /* in blocks of 256 */
    switch (type) {
    case B_NVFP4: {
        const uint8_t *b = row + (size_t)(g >> 1) * 36;
        int part = (g & 1) * 2 + (i >> 4), j = i & 15, e = b[part];
        int q = b[4 + 8 * part + (j & 7)] >> (j & 8 ? 4 : 0) & 15;
        *f = e == 0x7f ? 0 : f16_to_f32((uint32_t)(e & 0x7f) << 7) * 128;
        int m = (int)(0x0c08060403020100ull >> 8 * (q & 7) & 0xff);
        return q < 8 ? m : -m;
    }
    case B_Q1_0: {
        const uint8_t *b = row + (size_t)(g >> 2) * 18;
        *f = half_at(b);
        return (b[2 + (g & 3) * 4 + (i >> 3)] >> (i & 7) & 1) * 2 - 1;
    }
    case B_Q2_0: {
        const uint8_t *b = row + (size_t)(g >> 1) * 18;
        *f = half_at(b);
        return (b[2 + (g & 1) * 8 + (i >> 2)] >> 2 * (i & 3) & 3) - 1;
    }
    case B_TQ2_0: {
        const uint8_t *b = row + (size_t)(g >> 3) * 66;
        *f = half_at(b + 64);
        return (b[at / 128 * 32 + at % 32] >> 2 * (at % 128 / 32) & 3) - 1;
    }
    default: { /* TQ1_0: num_int.h has the digits */
        const uint8_t *b = row + (size_t)(g >> 3) * 54;
        int byte = at < 160 ? at % 32 : at < 240 ? 32 + (at - 160) % 16 : 48 + (at - 240) % 4;
        int k = at < 160 ? at / 32 : at < 240 ? (at - 160) / 16 : (at - 240) / 4;
        int power = k == 0 ? 1 : k == 1 ? 3 : k == 2 ? 9 : k == 3 ? 27 : 81;
        *f = half_at(b + 52);
        return ((b[byte] * power & 255) * 3 >> 8) - 1;
    }
    }
}

#endif
