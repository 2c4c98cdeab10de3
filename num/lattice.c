/* lattice.c - rows of IQ1, IQ2 and IQ3 to f32. lattice.h takes blocks apart. */
#include "num/grids.h"
#include "num/lattice.h"
#include "num/num_int.h"

static const uint16_t iq2_xxs[] = {GRID_IQ2_XXS}, iq2_xs[] = {GRID_IQ2_XS}, iq2_s[] = {GRID_IQ2_S},
                      iq1[] = {GRID_IQ1}, iq3_xxs[] = {GRID_IQ3_XXS}, iq3_s[] = {GRID_IQ3_S};

const uint16_t *num_lattice(num_type type)
{
    switch (type) {
    case NUM_IQ2_XXS:
        return iq2_xxs;
    case NUM_IQ2_XS:
        return iq2_xs;
    case NUM_IQ2_S:
        return iq2_s;
    case NUM_IQ3_XXS:
        return iq3_xxs;
    case NUM_IQ3_S:
        return iq3_s;
    case NUM_IQ1_S:
    case NUM_IQ1_M:
        return iq1;
    default:
        return NULL;
    }
}

static inline void decode(num_type type, const uint16_t *grid, const uint8_t *b, float *dst,
                          int64_t n)
{
    for (; n > 0; n -= QK, b += lattice_block_bytes((int)type))
        for (int j = 0; j < QK / 32; j++) {
            lattice_group g;
            lattice_take(&g, (int)type, b, j);
            float d = num_f16_to_f32(g.d) * lattice_unit((int)type);
            for (int i = 0; i < 32; i++)
                *dst++ = d * (float)(2 * g.scale[i / 16] + 1) *
                         (float)lattice_step((int)type, grid, &g, i);
        }
}

#define DECODE(name, TYPE, grid)                                                                   \
    NUM_DECODE(name)                                                                               \
    {                                                                                              \
        decode(TYPE, grid, src, dst, n);                                                           \
    }
DECODE(iq2_xxs, NUM_IQ2_XXS, iq2_xxs)
DECODE(iq2_xs, NUM_IQ2_XS, iq2_xs)
DECODE(iq2_s, NUM_IQ2_S, iq2_s)
DECODE(iq3_xxs, NUM_IQ3_XXS, iq3_xxs)
DECODE(iq3_s, NUM_IQ3_S, iq3_s)
DECODE(iq1_s, NUM_IQ1_S, iq1)
DECODE(iq1_m, NUM_IQ1_M, iq1)
