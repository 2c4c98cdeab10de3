/* kernels_int.h - the table of kernels that an instruction set fills.
 *
 * A kernel works on plain arrays, in one thread; callers split the work. It is compiled once per
 * instruction set from the same text (small_int.h, heads_int.h, float_int.h), or, for integer dot
 * products, written for each (matmul_*.c).
 *
 * Whatever the number of rows, keys or groups in a call, one result comes from one sequence of
 * operations. The sequences of two instruction sets may differ.
 */
#ifndef BACKEND_CPU_KERNELS_INT_H
#define BACKEND_CPU_KERNELS_INT_H

#include "backend/cpu/pack_int.h"

/* 32 activations for a product of int8 codes. */
typedef struct xblock {
    int8_t q[32];
    float d; /* x = d * q */
    union {
        int32_t start[2]; /* dot_base - off * sum of q: of all 32 in [0], or of each 16 (n_sub 2) */
        float sum[2];     /* d * sum of q, likewise, for formats with mins */
    };
    float unused;
} xblock;

/* Codes and scales of sixteen outputs, for a stretch of inputs. */
typedef struct codes {
    const uint8_t *q; /* [n][8][64] */
    const float *s;   /* [n][n_sub][16] */
    const float *m;   /* likewise, with mins */
} codes;

/* n rows of keys or values, dim elements of each. */
typedef struct key_rows {
    num_type type;
    const char *at;
    size_t row_bytes, high_bytes; /* make_keys: from one half of the pairs to the other */
    int32_t n, dim;
} key_rows;

/* To make keys from values: the norm's weights of both halves of the turning pairs, and per key
 * n_turning cosines and as many sines. */
typedef struct key_maker {
    const float *w, *w_high, *turn;
    int32_t n_turning;
} key_maker;

enum {
    TILE_ROWS = 6,   /* rows of activations of a product's tile */
    TILE_GROUPS = 2, /* groups of sixteen outputs */
    TILE_COLS = TILE_GROUPS * PACK_LANES,
    WIDE_ROWS = 16 /* rows of activations of a wide tile */
};

/* Where rows are. With few queries memory is the limit, so rows are prefetched. */
typedef enum row_source {
    ROWS_IN_MEMORY,
    ROWS_ASKED_FOR, /* in memory too, and prefetched by the reader of the preceding rows */
    ROWS_IN_CACHE
} row_source;

/* s[iq, it] = q[iq] . k[it] for n_q queries and n_keys rows of keys. A key may have three parts:
 * dim elements, dim more at high_bytes further on, and made_dim floats elsewhere. A query has them
 * side by side. */
typedef struct key_product {
    num_type type;
    int32_t n_q, n_keys, dim;
    float *s;
    const float *q;
    int32_t s_stride, q_stride; /* in floats */
    const char *k;
    size_t row_bytes;
    row_source source;
    const char *next;  /* the memory read next after the keys, to be prefetched; NULL: unknown */
    size_t high_bytes; /* 0: no such part */
    const float *made; /* [n_keys, made_dim] */
    int32_t made_dim;  /* 0: no such part */
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
    row_source source;
    const char *next; /* the memory read next after the values, to be prefetched; NULL: unknown */
} value_product;

/* A row of the gated delta rule, for n value rows of a head's state. */
typedef struct delta_row {
    float *s; /* [n][dk] */
    int32_t n, dk;
    float decay, write; /* the state's factor; how much of the error is written */
    const float *k, *q; /* [dk] */
    const float *v;     /* [n] */
    float *e, *o;       /* [n]: errors, outputs */
} delta_row;

/* The first of some pages of one KV head. */
typedef struct page_bounds {
    const int8_t *code;    /* [2 dim] a page: signed middles, unsigned half widths */
    const uint16_t *scale; /* [groups][2] a page */
    int32_t dim;
} page_bounds;

typedef struct cpu_kernels cpu_kernels;
typedef void (*act_mul_fn)(float *y, const float *a, const float *b, int32_t n);

struct cpu_kernels {
    const char *name;

    /* y = x * (mean(x^2) + eps)^-1/2 * w; w may be NULL; y may be x */
    void (*rms_norm)(float *y, const float *x, const float *w, int32_t n, float eps);
    void (*add_rms_norm)(float *x, const float *y, const float *w, int32_t n, float eps);
    /* y = (x - mean(x)) / its root mean square * w + b; y may be x */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int32_t n,
                       float eps);
    /* y = act(a) * b, for each act_kind; swiglu_cut: the unit of a and b */
    act_mul_fn gelu_mul, silu_mul, softplus_mul, sigmoid_mul, swiglu_cut, gelu_erf_mul;
    void (*add)(float *y, const float *a, const float *b, int32_t n);
    void (*scale)(float *x, float c, int32_t n);
    void (*softcap)(float *x, float cap, int32_t n);
    /* x = e^(x - max x), returns the sum; *top is the largest; all -inf gives zeros and sum 0 */
    float (*softmax)(float *x, int32_t n, float *top);
    void (*sincos)(float *c, float *s, const float *inv_freq, int32_t n, int32_t pos);
    void (*rotate)(float *x, const float *c, const float *s, int32_t n_pairs);

    void (*key_dot)(const key_product *);
    void (*value_sum)(const value_product *);
    /* The same products for many queries, bit for bit: n_keys <= across.keys keys, transposed into
     * [dim, across.keys] floats, dim a multiple of across.lanes. keys_across transposes rows of
     * f32, f16 or bf16. */
    void (*keys_across)(const key_rows *k, float *to);
    void (*key_dot_across)(const key_product *);
    struct {
        int32_t lanes, keys;
    } across;
    /* Up to so many queries key_dot and value_sum read blocks; with more the caller unpacks to
     * floats. Results are the same. */
    int32_t block_queries;
    /* to[it] = k[it], as num decodes it */
    void (*unpack)(const key_rows *k, float *to, int32_t to_stride);
    /* Middles and half widths of n pages, [n][2 dim]: codes times scales (page_sums in ops.h). */
    void (*unpack_bounds)(const page_bounds *b, int32_t n, float *to);
    /* to[it] = RoPE(w * u[it]) of pairs (i, n_turning + i), whose halves are at u->at and
     * u->high_bytes further on: the keys of one stream's values (kv_view). In floats `to` may be
     * u. */
    void (*make_keys)(const key_rows *u, float *to, int32_t to_stride, const key_maker *m);
    void (*to_f16)(uint16_t *to, const float *x, int32_t n);
    void (*merge)(float *o, float co, const float *x, float cx, int32_t n); /* o = co o + cx x */

    /* y = silu(sum over j, ascending, of w[j] x[j]); w: [n_taps][w_stride] */
    void (*conv_row)(float *y, const float *const *x, const float *w, int32_t w_stride,
                     int32_t n_taps, int32_t n);
    /* s = decay s; e = write (v - s k); s += e k^T; o = s q */
    void (*delta_row)(const delta_row *);
    /* s = decay s; s += e k^T: the same changes of s, bit for bit */
    void (*delta_apply)(float *s, int32_t n, int32_t dk, float decay, const float *k,
                        const float *e);

    void (*quantise)(xblock *to, const float *x, int32_t n, const pack_kind *kind);
    int32_t dot_base; /* integer dot products begin with it */
    /* n blocks of 32 inputs, whole superblocks, of one group */
    void (*expand)(const pack_kind *kind, const uint8_t *from, int32_t n, uint8_t *q, float *s,
                   float *m);
    /* acc[r][0..32) += two groups of outputs of rows 0..n_rows, n_rows <= TILE_ROWS */
    void (*code_tile)(const pack_kind *kind, const codes c[TILE_GROUPS], int32_t n,
                      const xblock *const *x, int32_t n_rows, float *acc);
    /* The same directly from the packed layout, n_rows <= packed_rows: with few rows it would cost
     * more to store the codes than to use them. NULL and 0: not in this instruction set. */
    void (*packed_tile)(const pack_kind *kind, const uint8_t *const group[TILE_GROUPS], int32_t n,
                        const xblock *const *x, int32_t n_rows, float *acc);
    int32_t packed_rows;
    /* acc[r][0..32) = the same, n_rows <= WIDE_ROWS, from interleaved activations x[n][WIDE_ROWS];
     * rows from n_rows on may hold any numbers. Used above packed_rows and up to wide_rows rows.
     * NULL and 0: not in this instruction set. */
    void (*wide_tile)(const pack_kind *kind, const uint8_t *const group[TILE_GROUPS], int32_t n,
                      const xblock *x, int32_t n_rows, float *acc);
    int32_t wide_rows;
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
    DO(NUM_MXFP4, 1, false)                                                                        \
    DO(NUM_NVFP4, 2, false)                                                                        \
    DO(NUM_Q1_0, 1, false)                                                                         \
    DO(NUM_Q2_0, 1, false)                                                                         \
    DO(NUM_TQ2_0, 1, false)                                                                        \
    DO(NUM_IQ1_S, 1, false)                                                                        \
    DO(NUM_IQ1_M, 2, false)                                                                        \
    DO(NUM_IQ2_XXS, 1, false)                                                                      \
    DO(NUM_IQ2_XS, 2, false)                                                                       \
    DO(NUM_IQ2_S, 2, false)                                                                        \
    DO(NUM_IQ3_XXS, 1, false)                                                                      \
    DO(NUM_IQ3_S, 1, false)

extern const cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_neon;

#endif
