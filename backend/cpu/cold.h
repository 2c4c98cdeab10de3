/* cold.h - products of cold experts on the host's cores, with the bits of the GPU's kernels.
 *
 *     cold expert   an expert without a place on the GPU. Its weights lie in the host's memory, in
 *                   the layout that the GPU's kernels read (drawn in backend/cuda/launch.h)
 *     gated unit    act(W x) * (W' x), and its int8 copy
 *     down product  W x, where x is that copy
 *
 * A result has the bits that the GPU's kernels give. Integer sums are exact, floats are added in
 * the same order, and every multiplication with an addition is one fma on both sides. So results do
 * not show which side computed an expert. The activation is made of the same operations on both
 * sides (cold_gated), because the GPU's own exp has no definition that a CPU could repeat. The
 * Makefile forbids the compiler to contract a product and a sum into an fma by itself.
 *
 * All functions are pure: any threads, no allocation, arguments stay the caller's.
 */
#ifndef BACKEND_CPU_COLD_H
#define BACKEND_CPU_COLD_H

#include "backend/cpu/cold_post.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cold_kind { /* in the order of PACK_Q4_0.. */
                         COLD_Q4_0,
                         COLD_Q4_1,
                         COLD_Q5_0,
                         COLD_Q5_1,
                         COLD_Q8_0,
                         COLD_Q4_K,
                         COLD_Q5_K,
                         COLD_Q6_K,
                         COLD_G8,
                         COLD_IQ4,
                         COLD_FP4,
                         COLD_KINDS
} cold_kind;

enum {
    COLD_TILE = 16,  /* outputs of a tile */
    COLD_GROUP = 32, /* inputs of a group */
    COLD_WARPS = 2,  /* the most parts that a sum has */
    COLD_ROWS = 16   /* the most rows of one call */
};

/* One expert's W: [n_out, 32 n_group]. n_unit: n_group / 8, rounded up. */
typedef struct cold_matrix {
    const uint8_t *codes, *high, *scale, *super;
    int32_t kind, n_out, n_group, n_unit;
} cold_matrix;

/* Of 32 activations x = d q: the scale d, and the sums of q in each half of 16. */
typedef struct cold_scale {
    float d;
    int16_t sum[2];
} cold_scale;
typedef struct cold_row {
    const int8_t *q;     /* [n_group][32] */
    const cold_scale *s; /* [n_group] */
} cold_row;

typedef struct cold_kernels {
    const char *isa;
    /* y[r][o] = W x[r] for the tile's 16 outputs; part p of n_parts adds units p, p + n_parts, ..,
     * even and odd groups apart, and the parts are added in ascending order. */
    void (*tile)(const cold_matrix *w, int32_t tile, int32_t n_parts, const cold_row *x,
                 int32_t n_rows, float (*y)[COLD_TILE]);
    /* The unit of 32 pairs of values, as codes and a scale. */
    void (*gate)(cold_unit unit, const float *a, const float *b, int8_t *q, cold_scale *s);
} cold_kernels;

/* isa: NULL or "" for this processor's best; else "portable", "avx2" or "avx512". Sets *k. */
status cold_kernels_find(const char *isa, const cold_kernels **k, err *e);

/* Into how many parts the GPU divides the sums of a gated unit, whose matrix has so many tiles and
 * units; a down product has one part. */
int32_t cold_gate_parts(int32_t n_tile, int32_t n_unit);

/* How many of n cold experts of a layer the host computes, so that the slower side ends first: the
 * host takes hand_ms + k expert_ms for k of them, the GPU bus_ms for each of the others. */
int32_t cold_host_share(int32_t n, double hand_ms, double expert_ms, double bus_ms);

/* A gated unit; gelu by its tanh formula. Relative error of an activation below 4e-7 while
 * |a| < 80. */
float cold_gated(cold_unit unit, float a, float b);

#endif
