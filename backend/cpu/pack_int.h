/* pack_int.h - the device's own layout of weights: sixteen output rows side by side.
 *
 * Outputs are taken in groups of 16 (the last group padded with zero rows); a vector lane is an
 * output, so a product needs no sums across lanes and one activation serves a whole vector. The
 * bytes per weight are the file's; only their order changes.
 *
 * Floats: for each input k, 16 values; bf16 for each pair of inputs 16 pairs, the last one of an
 * odd number filled up with 0. Block formats: for each superblock (256 inputs of a K format, 32 of
 * the others) first the scales of the 16 rows, then for each 32 inputs the codes:
 *
 *   nibbles  4 x 64 bytes: byte (lane, i) of vector t holds input 4t + i low, 16 + 4t + i high
 *   pairs    2 x 64 bytes: byte (lane, i) of vector u holds input 16u + 4f + i at bits 2f
 *   bits     1 x 64 bytes: byte (lane, i) holds input 4t + i at bit t
 *   bytes    8 x 64 bytes: byte (lane, i) of vector t is input 4t + i
 *
 *    entries  of lattices (num/lattice.h): for each entry 16 bytes, the low bytes of its index by
 *            lane; then 8 x 8 bytes of signs, bit 4 lane + i of quad t for input 4t + i; then
 * planes of 2 bytes per entry, a bit per lane: the upper bits of indices, and IQ1's shifts
 *
 * So four consecutive inputs of a row are one 32-bit lane, the operand of integer dot products.
 * Codes are unsigned: value = scale * (code - off), or scale * code - min.
 */
#ifndef BACKEND_CPU_PACK_INT_H
#define BACKEND_CPU_PACK_INT_H

#include "backend/mat.h"

enum { PACK_LANES = 16, PACK_CODES = 32 * PACK_LANES };

typedef struct pack_kind {
    num_type type;
    int32_t n_blocks; /* blocks of 32 per superblock */
    int32_t off;      /* of the codes */
    int32_t n_sub;    /* scales per 32: 1 or 2 */
    bool mins;        /* and as many mins */
    bool nibbles, pairs, bits, bytes;
    int32_t scale_bytes; /* at the head of a superblock, 16 rows */
    int32_t block_bytes; /* of 32 inputs, 16 rows */
    int32_t super_bytes;
    int32_t width, planes; /* values of a lattice's entry, or 0; planes of bits per entry */
} pack_kind;

/* The entries of each lattice as codes, four to a word; filled by pack_group. Sizes and signs: the
 * code off + size, and 2 off - code where the sign is a minus. Shifts: off + 8 e + 1, and 2 less
 * where the shift is down. */
typedef struct pack_lattices {
    uint32_t iq2_xxs[2 * 256], iq2_xs[2 * 512], iq2_s[2 * 1024], iq1[2 * 2048];
    uint32_t iq3_xxs[256], iq3_s[512];
} pack_lattices;
extern pack_lattices pack_codes_of;

/* NULL for a type that is not packed as codes. */
const pack_kind *pack_kind_of(num_type type);

/* Sixteen rows starting at `row` of matrix k into `to`; rows past n_out become zeros. Any type
 * that pack_group_bytes has bytes for. */
void pack_group(const weight *w, int32_t k, int64_t row, unsigned char *to);
size_t pack_group_bytes(const weight *w); /* 0: the type is not packed */

/* Scales 0..15 of six bits each, sixteen rows: 192 bytes. Scale a of lane l has its low six bits
 * in byte 16a + l for a < 12; the top bits of those bytes make up scales 12..15. */
static inline uint32_t pack_six(const unsigned char *z, int32_t a, int32_t lane)
{
    if (a < 12)
        return z[16 * a + lane] & 63u;
    const unsigned char *b = z + 16 * (a - 12) + lane;
    return b[0] >> 6 | (b[64] >> 6) << 2 | (b[128] >> 6) << 4;
}

#endif
