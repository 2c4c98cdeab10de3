/* kernels_int.h - the table of kernels that an instruction set fills.
 *
 * Kernels work on plain arrays of one thread; splitting is the callers' affair. Each is compiled
 * once per instruction set from the same text (small_int.h, heads_int.h, float_int.h) or, where
 * integer dot products are concerned, written for it (matmul_*.c).
 *
 * Whatever the number of rows, keys or groups in a call, one result comes from one sequence of
 * operations. The sequences of two instruction sets may differ.
 */
#ifndef BACKEND_CPU_KERNELS_INT_H
#define BACKEND_CPU_KERNELS_INT_H

#include "backend/cpu/pack_int.h"

/* 32 activations as a product of int8 codes wants them. */
typedef struct xblock {
    int8_t q[32];
    float d; /* x = d * q */
    union {
        int32_t start[2]; /* -off * sum of q: of all 32 in [0], or of each 16 (n_sub 2) */
        float sum[2];     /* d * sum of q, likewise, for formats with mins */
    };
    float unused;
} xblock;

/* Up to two groups of sixteen outputs, taken apart for a stretch of inputs. */
typedef struct codes {
    const uint8_t *q; /* [n][8][64] */
    const float *s;   /* [n][n_sub][16] */
    const float *m;   /* likewise, with mins */
} codes;

/* What makes a key of a value: the norm's weight and two angles to be added, each as n_turning
 * cosines and then as many sines. */
typedef struct key_maker {
    const float *w, *base, *turn;
    int32_t n_turning;
} key_maker;

enum {
    TILE_ROWS = 6,   /* activations a product tile takes at a time */
    TILE_GROUPS = 2, /* groups of sixteen outputs */
    TILE_COLS = TILE_GROUPS * PACK_LANES
};

/* s[iq, it] = q[iq] . k[it] for n_q queries and n_keys rows of keys */
typedef struct key_product {
    num_type type; /* of the keys: f32, f16 or bf16 */
    int32_t n_q, n_keys, dim;
    float *s;
    const float *q;
    int32_t s_stride, q_stride; /* in floats */
    const char *k;
    size_t row_bytes;
    const char *next; /* what will be read from memory after the keys; NULL: nothing known */
} key_product;

/* o[iq] += sum over it, ascending, of p[iq, it] v[it] */
typedef struct value_product {
    num_type type;
    int32_t n_q, n_keys, dim;
    float *o;
    const float *p;
    int32_t o_stride, p_stride;
    const char *v;
    size_t row_bytes;
} value_product;

typedef struct cpu_kernels cpu_kernels;

struct cpu_kernels {
    const char *name;

    /* y = x * (mean(x^2) + eps)^-1/2 * w; w may be NULL; y may be x */
    void (*rms_norm)(float *y, const float *x, const float *w, int32_t n, float eps);
    void (*add_rms_norm)(float *x, const float *y, const float *w, int32_t n, float eps);
    void (*gelu_mul)(float *y, const float *a, const float *b, int32_t n);
    void (*add)(float *y, const float *a, const float *b, int32_t n);
    void (*scale)(float *x, float c, int32_t n);
    void (*softcap)(float *x, float cap, int32_t n);
    /* x = e^(x - max x), returns the sum; *top is the largest; all -inf gives zeros and sum 0 */
    float (*softmax)(float *x, int32_t n, float *top);
    void (*sincos)(float *c, float *s, const float *inv_freq, int32_t n, int32_t pos);
    void (*rotate)(float *x, const float *c, const float *s, int32_t n_pairs);

    void (*key_dot)(const key_product *);
    void (*value_sum)(const value_product *);
    /* to[it, 0..dim) = n rows of a cache in any of its formats, as num decodes them */
    void (*unpack)(num_type t, float *to, const char *rows, size_t row_bytes, int32_t n,
                   int32_t dim);
    /* x = RoPE(w * x): a value to the key it was made of (kv_view, one stream) */
    void (*make_key)(float *x, const key_maker *m, int32_t dim);
    void (*merge)(float *o, float co, const float *x, float cx, int32_t n); /* o = co o + cx x */

    void (*quantise)(xblock *to, const float *x, int32_t n, const pack_kind *kind);
    /* n blocks of 32 inputs, whole superblocks, of one group */
    void (*expand)(const pack_kind *kind, const uint8_t *from, int32_t n, uint8_t *q, float *s,
                   float *m);
    /* acc[r][0..32) += two groups of outputs of rows 0..n_rows, n_rows <= TILE_ROWS */
    void (*code_tile)(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc);
    /* The same straight from the packed layout, n_rows <= packed_rows: for rows so few that storing
     * the codes would cost more than using them. NULL and 0: not in this instruction set. */
    void (*packed_tile)(const pack_kind *kind, const uint8_t *const group[TILE_GROUPS], int32_t n,
                        const xblock *const *x, int32_t n_rows, float *acc);
    int32_t packed_rows;
    /* the same for floats: w[g] are n inputs of a packed group in type t */
    void (*float_tile)(num_type t, const void *const w[TILE_GROUPS], int32_t n,
                       const float *const *x, int32_t n_rows, float *acc);
};

/* DO(type, scales per 32, has mins) for every packed kind, so that each is compiled on its own. */
#define EVERY_KIND(DO)                                                                             \
    DO(NUM_Q4_0, 1, false)                                                                         \
    DO(NUM_Q4_1, 1, true)                                                                          \
    DO(NUM_Q5_0, 1, false)                                                                         \
    DO(NUM_Q5_1, 1, true)                                                                          \
    DO(NUM_Q8_0, 1, false)                                                                         \
    DO(NUM_Q2_K, 2, true)                                                                          \
    DO(NUM_Q3_K, 2, false)                                                                         \
    DO(NUM_Q4_K, 1, true)                                                                          \
    DO(NUM_Q5_K, 1, true)                                                                          \
    DO(NUM_Q6_K, 2, false)                                                                         \
    DO(NUM_IQ4_NL, 1, false)                                                                       \
    DO(NUM_IQ4_XS, 1, false)                                                                       \
    DO(NUM_MXFP4, 1, false)

/* float_tile of the AVX-512 table with bf16 activations for bf16 weights (matmul_avx512bf16.c). */
void cpu_float_tile_bf16(num_type t, const void *const w[TILE_GROUPS], int32_t n,
                         const float *const *x, int32_t n_rows, float *acc);

extern const cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_neon;

#endif
