/* offload_portable.c - the kernels of offload.h in plain C, which define the others. */
#include "backend/cpu/offload.h"
#include "backend/cpu/vec_int.h"

typedef struct group_codes {
    int16_t q[OFFLOAD_TILE][OFFLOAD_GROUP];
} group_codes;

static void take_codes(const int kind, group_codes *c, const uint8_t *codes, const uint8_t *high,
                       int i);
static void group_dots(const int kind, const group_codes *c, const int8_t *x, offload_scale s,
                       int32_t *i0, int32_t *i1);

#include "backend/cpu/offload_int.h"

/* Takes the codes of group i of each row. Three layouts of a row's bytes:
 *     halves    byte j has elements j and j + 16
 *     8 bits    elements 0 to 15; elements 16 to 31 follow those of all rows
 *     levels    word w has the nibbles of elements 4 w to 4 w + 3, then those of 16 + 4 w and on
 * high: [row][4 groups]. */
static void take_codes(const int kind, group_codes *c, const uint8_t *codes, const uint8_t *high,
                       int i)
{
    for (int r = 0; r < LANES; r++) {
        uint32_t h[2] = {0, 0};
        size_t n_high = (size_t)HIGH_BYTES(kind);
        if (n_high)
            memcpy(h, high + ((size_t)r * 4 + (size_t)i) * n_high, n_high);
        for (int j = 0; j < OFFLOAD_GROUP; j++) {
            int byte = j % 16, word = j / 4;
            if (IS_BYTES(kind)) {
                c->q[r][j] = (int8_t)codes[(j / 16 * LANES + r) * 16 + byte];
                continue;
            }
            if (IS_LEVELS(kind)) {
                int at = r * 16 + word % 4 * 4 + j / 16 * 2 + j % 4 / 2;
                c->q[r][j] = levels_of(kind)[codes[at] >> 4 * (j % 2) & 15];
                continue;
            }
            uint32_t q = codes[r * 16 + byte] >> 4 * (j / 16) & 15;
            if (IS_FIVE(kind))
                q |= (h[0] >> (8 * (j % 4) + word) & 1) << 4;
            if (kind == OFFLOAD_Q6_K)
                q |= (h[j / 16] >> (8 * (j % 4) + 2 * (word % 4)) & 3) << 4;
            c->q[r][j] = (int16_t)q;
        }
    }
}

static void group_dots(const int kind, const group_codes *c, const int8_t *x, offload_scale s,
                       int32_t *i0, int32_t *i1)
{
    (void)kind;
    (void)s;
    for (int r = 0; r < LANES; r++) {
        i0[r] = i1[r] = 0;
        for (int j = 0; j < 16; j++) {
            i0[r] += c->q[r][j] * x[j];
            i1[r] += c->q[r][j + 16] * x[j + 16];
        }
    }
}

float offload_gated(offload_unit unit, float a, float b)
{
    return unit == OFFLOAD_CUT ? cut_unit(a, b) : act_of(unit == OFFLOAD_SILU, a) * b;
}

extern const offload_kernels offload_kernels_portable;
const offload_kernels offload_kernels_portable = {"portable", tile_sums, gate_sums};
