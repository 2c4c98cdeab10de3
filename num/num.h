/* num.h - number formats: sizes, decoding and encoding of whole rows.
 *
 * The numbers of num_type are those of GGUF tensor types. Formats are bytes; nothing here knows
 * tensors. Layouts and formulas: the GGUF block formats of llama.cpp's ggml-common.h.
 * All functions are thread-safe and allocate nothing. Sources need no alignment.
 */
#ifndef NUM_NUM_H
#define NUM_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum num_type {
    NUM_F32 = 0,
    NUM_F16 = 1,
    NUM_Q4_0 = 2,
    NUM_Q4_1 = 3,
    NUM_Q5_0 = 6,
    NUM_Q5_1 = 7,
    NUM_Q8_0 = 8,
    NUM_Q8_1 = 9,
    NUM_Q2_K = 10,
    NUM_Q3_K = 11,
    NUM_Q4_K = 12,
    NUM_Q5_K = 13,
    NUM_Q6_K = 14,
    NUM_Q8_K = 15,
    NUM_IQ2_XXS = 16,
    NUM_IQ2_XS = 17,
    NUM_IQ3_XXS = 18,
    NUM_IQ1_S = 19,
    NUM_IQ4_NL = 20,
    NUM_IQ3_S = 21,
    NUM_IQ2_S = 22,
    NUM_IQ4_XS = 23,
    NUM_I8 = 24,
    NUM_I16 = 25,
    NUM_I32 = 26,
    NUM_I64 = 27,
    NUM_F64 = 28,
    NUM_IQ1_M = 29,
    NUM_BF16 = 30,
    NUM_TQ1_0 = 34,
    NUM_TQ2_0 = 35,
    NUM_MXFP4 = 39,
    NUM_NVFP4 = 40,
    NUM_Q1_0 = 41,
    NUM_Q2_0 = 42,
    NUM_TYPE_END = 64, /* above every number that files use */
    NUM_TQ3_0 = 1000   /* a format of caches: no file's number */
} num_type;

enum { NUM_ROT_GROUP = 128 }; /* elements that a rotation mixes */

/* dst[0..n) from n elements at src; n is a multiple of the block. */
typedef void (*num_decode_fn)(const void *src, float *dst, int64_t n);
/* n elements of src into blocks at dst. Non-finite input gives some finite block, never a trap. */
typedef void (*num_encode_fn)(const float *src, void *dst, int64_t n);

/* The same with an importance, at least 0, of each element: the factor of its squared error. NULL:
 * all are equal. */
typedef void (*num_weigh_fn)(const float *src, const float *importance, void *dst, int64_t n);

typedef struct num_format {
    const char *name;     /* as GGUF tools print it, lower case: "q4_k" */
    int32_t block_n;      /* elements per block */
    int32_t block_bytes;  /* bytes per block */
    num_decode_fn decode; /* NULL: known by name and size only (a weight in it is unsupported) */
    num_encode_fn encode; /* NULL: `weigh` alone, or carat does not write it */
    num_weigh_fn weigh;   /* NULL: importance has no effect */
} num_format;

/* NULL for a number without a known use. Types that carat cannot decode have a name, for error
 * sentences. */
const num_format *num_format_of(uint32_t type);
const char *num_name(uint32_t type); /* "q4_k", or "type 99" (static storage) */
/* Bytes of a row of n elements; false if n is not a multiple of the block, or on overflow. */
bool num_row_bytes(uint32_t type, uint64_t n, uint64_t *n_bytes);

/* Sets the factor of a block in one of the formats that have no encoder: f16, or for NVFP4 the
 * nearest scale, four times. With it, any other bytes are finite values. */
void num_set_factor(num_type type, void *block, float d);

/* x := Rot x, and the inverse, in place, for each group of NUM_ROT_GROUP; n is a multiple of it.
 * Rot is orthogonal: it keeps dot products and lengths. TQ3_0 encodes and decodes rotated values
 * (tq3.c). */
void num_rotate(float *x, int64_t n);
void num_unrotate(float *x, int64_t n);
/* The two diagonals of Rot, for kernels: Rot x = last * (H (first * x)) / sqrt(128), with H the
 * Walsh-Hadamard matrix in natural order. */
void num_rotation_signs(float first[NUM_ROT_GROUP], float last[NUM_ROT_GROUP]);

/* Levels of the codes of IQ4_NL, of MXFP4 and NVFP4 (doubled), and of TQ3_0, for kernels. */
extern const int8_t num_iq4_level[16], num_fp4_level[16];
extern const float num_tq3_level[8];

/* The entries of a format of lattices (lattice.h); NULL: it is none. */
const uint16_t *num_lattice(num_type type);

/* Scalars. f32 to f16 and bf16 round to nearest even; NaN stays NaN. */
static inline float num_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t num_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float num_bf16_to_f32(uint16_t h)
{
    return num_bits_f32((uint32_t)h << 16);
}
static inline uint16_t num_f32_to_bf16(float f)
{
    uint32_t u = num_f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 64); /* keep it a (quiet) NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
/* Selections instead of branches, so that loops over rows vectorise. No arithmetic on f32
 * subnormals, so that the result is the same on a thread that flushes them to zero. */
static inline float num_f16_to_f32(uint16_t h)
{
    uint32_t em = (uint32_t)(h & 0x7fff) << 13; /* exponent and mantissa, exponent bias still 15 */
    uint32_t normal = em + (112u << 23);        /* bias 15 to 127 */
    uint32_t inf_nan = em + (224u << 23);
    /* Subnormal: the mantissa on top of 2^-14, minus 2^-14; exact. */
    uint32_t tiny = num_f32_bits(num_bits_f32(em + (113u << 23)) - 0x1p-14f);
    uint32_t u = em < (1u << 23) ? tiny : em >= (31u << 23) ? inf_nan : normal;
    return num_bits_f32(u | (uint32_t)(h & 0x8000) << 16);
}
static inline uint16_t num_f32_to_f16(float f)
{
    uint32_t u = num_f32_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    /* Below 2^-14 the f32 addition rounds for us: one unit of 0.5's last place is 2^-24. */
    uint32_t tiny = num_f32_bits(num_bits_f32(u < (113u << 23) ? u : 0) + 0.5f) - (126u << 23);
    uint32_t normal = (u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13; /* may carry to infinity */
    uint32_t inf_nan = u > (255u << 23) ? 0x7e00 | (u >> 13 & 0x1ff) : 0x7c00;
    uint32_t h = u < (113u << 23) ? tiny : u >= (143u << 23) ? inf_nan : normal;
    return (uint16_t)(h | sign);
}

#endif
