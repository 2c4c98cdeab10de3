/* offload.h - products of offloaded experts on the host's cores, with the bits of the GPU's
 * kernels.
 *
 *     offloaded expert   an expert without a place on the GPU. Its weights lie in the host's
 * memory, in the layout that the GPU's kernels read (drawn in backend/cuda/launch.h) gated unit
 * act(W x) * (W' x), and its int8 copy down product  W x, where x is that copy
 *
 * A result has the bits that the GPU's kernels give. Integer sums are exact, floats are added in
 * the same order, and every multiplication with an addition is one fma on both sides. So results do
 * not show which side computed an expert. The activation is made of the same operations on both
 * sides (offload_gated), because the GPU's own exp has no definition that a CPU could repeat. The
 * Makefile forbids the compiler to contract a product and a sum into an fma by itself.
 *
 * All functions are pure: any threads, no allocation, arguments stay the caller's.
 */
#ifndef BACKEND_CPU_OFFLOAD_H
#define BACKEND_CPU_OFFLOAD_H

#include "backend/cpu/offload_post.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum offload_kind { /* in the order of PACK_Q4_0.. */
                            OFFLOAD_Q4_0,
                            OFFLOAD_Q4_1,
                            OFFLOAD_Q5_0,
                            OFFLOAD_Q5_1,
                            OFFLOAD_Q8_0,
                            OFFLOAD_Q4_K,
                            OFFLOAD_Q5_K,
                            OFFLOAD_Q6_K,
                            OFFLOAD_G8,
                            OFFLOAD_IQ4,
                            OFFLOAD_FP4,
                            OFFLOAD_KINDS
} offload_kind;

enum {
    OFFLOAD_TILE = 16,  /* outputs of a tile */
    OFFLOAD_GROUP = 32, /* inputs of a group */
    OFFLOAD_WARPS = 2,  /* the most parts that a sum has */
    OFFLOAD_ROWS = 16   /* the most rows of one call */
};

/* One expert's W: [n_out, 32 n_group]. n_unit: n_group / 8, rounded up. */
typedef struct offload_matrix {
    const uint8_t *codes, *high, *scale, *super;
    int32_t kind, n_out, n_group, n_unit;
} offload_matrix;

/* Of 32 activations x = d q: the scale d, and the sums of q in each half of 16. */
typedef struct offload_scale {
    float d;
    int16_t sum[2];
} offload_scale;
typedef struct offload_row {
    const int8_t *q;        /* [n_group][32] */
    const offload_scale *s; /* [n_group] */
} offload_row;

typedef struct offload_kernels {
    const char *isa;
    /* y[r][o] = W x[r] for the tile's 16 outputs; part p of n_parts adds units p, p + n_parts, ..,
     * even and odd groups apart, and the parts are added in ascending order. */
    void (*tile)(const offload_matrix *w, int32_t tile, int32_t n_parts, const offload_row *x,
                 int32_t n_rows, float (*y)[OFFLOAD_TILE]);
    /* The unit of 32 pairs of values, as codes and a scale. */
    void (*gate)(offload_unit unit, const float *a, const float *b, int8_t *q, offload_scale *s);
} offload_kernels;

/* isa: NULL or "" for this processor's best; else "portable", "avx2" or "avx512". Sets *k. */
status offload_kernels_find(const char *isa, const offload_kernels **k, err *e);

/* The number of parts into which the GPU divides the sums of a gated unit, by the tiles and units
 * of its matrix. A down product has one part. */
int32_t offload_gate_parts(int32_t n_tile, int32_t n_unit);

/* How many of n offloaded experts of a layer the host computes, so that the slower side ends first:
 * the host takes dispatch_ms + k expert_ms for k of them, the GPU bus_ms for each of the others. */
int32_t offload_host_share(int32_t n, double dispatch_ms, double expert_ms, double bus_ms);

/* A gated unit; gelu by its tanh formula. Relative error of an activation below 4e-7 while
 * |a| < 80. */
float offload_gated(offload_unit unit, float a, float b);

#endif
