/* heads_int.h - the inner products of attention: queries with keys, probabilities with values.
 *
 * Included by each matmul_*.c and compiled for its vectors. Keys and values are rows of head_dim
 * elements in their stored type. A type needs a loader of one vector (load_as; blocks_int.h) and a
 * case in the two dispatchers. Several queries share each row that is read: the heads of a group,
 * and in a prefill several rows.
 */
#ifndef BACKEND_CPU_HEADS_INT_H
#define BACKEND_CPU_HEADS_INT_H

#include "backend/cpu/blocks_int.h"

enum {
    /* KEY_TILE * QUERY_TILE sums are held in registers: VL of them, which one vf_sums folds */
    KEY_TILE = 2,
    QUERY_TILE = VL / 2,
    VALUE_QUERIES = VL == 16 ? 8 : 4,
    VALUE_VECTORS = 2,
    VALUE_BYTES = 16384, /* of values that all vectors of the head take before the next values */
    FEW_QUERIES = 16,    /* decode: memory is the bound */
    AHEAD_BYTES = 8192
};

/* Up to so many queries, decoding blocks in registers beats unpacking them first, although each
 * tile of queries decodes them again. */
enum { BLOCK_QUERIES = VL == 16 ? 16 : VL == 8 ? 8 : 0 };

/* n < VL only in the tail of a head size that is not a multiple of VL. */
INLINE vf load_as(num_type t, const char *p, int32_t i, int32_t n)
{
#if VL >= 8
    if (is_blocks(t))
        return load_block(t, p, i);
#endif
    if (t == NUM_F32) {
        const float *f = (const float *)(const void *)p + i;
        return n >= VL ? vf_load(f) : vf_load_n(f, n);
    }
    vh h = {0};
    memcpy(&h, p + 2 * (size_t)i, n >= VL ? sizeof h : 2 * (size_t)n);
    return t == NUM_F16 ? vf_of_f16(h) : (vf)(__builtin_convertvector(h, vu) << 16);
}

typedef struct key_span_at {
    const char *k;
    const float *q;
    size_t row_bytes, q_stride;
    int32_t dim;
} key_span_at;

/* Adds the products of `dim` elements of keys and queries to the sums. */
INLINE void key_span(num_type t, vf *sum, const key_span_at *at, const int n_q, const int n_k)
{
    enum { STEP = 32 }; /* a block: its scale is decoded once */
    int32_t i = 0, dim = at->dim;
    for (int32_t step = is_blocks(t) ? STEP : VL; i + step <= dim;)
        for (int32_t end = i + step; i < end; i += VL) {
            vf kv[KEY_TILE];
            for (int b = 0; b < n_k; b++)
                kv[b] = load_as(t, at->k + (size_t)b * at->row_bytes, i, VL);
            for (int a = 0; a < n_q; a++) {
                vf qv = vf_load(at->q + (size_t)a * at->q_stride + i);
                vf_keep(&qv); /* loaded once: one load per FMA would be the bound */
                for (int b = 0; b < n_k; b++)
                    sum[a * KEY_TILE + b] = vf_fma(qv, kv[b], sum[a * KEY_TILE + b]);
            }
        }
    if (!is_blocks(t) && i < dim)
        for (int a = 0; a < n_q; a++) {
            vf qv = vf_load_n(at->q + (size_t)a * at->q_stride + i, dim - i);
            for (int b = 0; b < n_k; b++)
                sum[a * KEY_TILE + b] =
                    vf_fma(qv, load_as(t, at->k + (size_t)b * at->row_bytes, i, dim - i),
                           sum[a * KEY_TILE + b]);
        }
}

/* s[iq, it] for n_q <= QUERY_TILE queries from iq on and n_k <= KEY_TILE keys from it on. Each sum
 * runs over the head in order, in VL interleaved parts, and is folded by vf_sum: the same for every
 * tile. */
INLINE void key_tile(num_type t, const key_product *w, int32_t iq, const int n_q, int32_t it,
                     const int n_k)
{
    float *s = w->s + (size_t)iq * (size_t)w->s_stride + it;
    key_span_at at = {.k = w->k + (size_t)it * w->row_bytes,
                      .row_bytes = w->row_bytes,
                      .q = w->q + (size_t)iq * (size_t)w->q_stride,
                      .q_stride = (size_t)w->q_stride,
                      .dim = w->dim};
    vf sum[QUERY_TILE * KEY_TILE];
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_k; b++)
            sum[a * KEY_TILE + b] = vf_set(0);
    key_span(t, sum, &at, n_q, n_k);
    if (w->high_bytes) {
        at.k += w->high_bytes;
        at.q += w->dim;
        key_span(t, sum, &at, n_q, n_k);
    }
    if (w->made_dim) {
        at.q += w->dim;
        at.dim = w->made_dim;
        at.row_bytes = (size_t)w->made_dim * sizeof(float);
        at.k = (const char *)w->made + (size_t)it * at.row_bytes;
        key_span(NUM_F32, sum, &at, n_q, n_k);
    }
    if (n_q == QUERY_TILE && n_k == KEY_TILE) {
        vf all = vf_sums(sum);
        for (int a = 0; a < n_q; a++)
            memcpy(s + (size_t)a * (size_t)w->s_stride, (const float *)&all + a * KEY_TILE,
                   KEY_TILE * sizeof(float));
        return;
    }
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_k; b++)
            s[(size_t)a * (size_t)w->s_stride + (size_t)b] = vf_sum(sum[a * KEY_TILE + b]);
}

/* Prefetches n bytes from byte `from` of the keys on; past their end, of `next`. */
INLINE void ask_keys(const key_product *w, size_t from, size_t n)
{
    size_t end = (size_t)w->n_keys * w->row_bytes;
    for (size_t i = from; i < from + n; i += 64)
        if (i < end)
            __builtin_prefetch(w->k + i);
        else if (w->next)
            __builtin_prefetch(w->next + (i - end));
}

/* tile:  KEY_TILE keys by QUERY_TILE queries in registers, the head in vectors
 * bound: decode: reading the keys, once per group; prefill: two FMA per cycle, less the folding */
INLINE void key_dot_as(num_type t, const key_product *w)
{
    const bool few = w->n_q <= FEW_QUERIES && w->source != ROWS_IN_CACHE;
    if (few && w->source == ROWS_IN_MEMORY)
        ask_keys(w, 0, AHEAD_BYTES);
    for (int32_t it = 0; it < w->n_keys; it += KEY_TILE) {
        bool pair = w->n_keys - it >= KEY_TILE;
        if (few)
            ask_keys(w, (size_t)it * w->row_bytes + AHEAD_BYTES, KEY_TILE * w->row_bytes);
        for (int32_t iq = 0; iq < w->n_q;) {
            int32_t left = w->n_q - iq;
            if (!pair) {
                key_tile(t, w, iq, 1, it, 1);
                iq += 1;
            } else if (left >= QUERY_TILE) {
                key_tile(t, w, iq, QUERY_TILE, it, KEY_TILE);
                iq += QUERY_TILE;
            } else if (left >= 2) {
                key_tile(t, w, iq, 2, it, KEY_TILE);
                iq += 2;
            } else {
                key_tile(t, w, iq, 1, it, KEY_TILE);
                iq += 1;
            }
        }
    }
}

/* A part of the values: n_keys rows from v on, with probabilities p[iq, it]; added to o[iq]. */
typedef struct value_part {
    float *o;
    int32_t o_stride;
    const float *p;
    int32_t p_stride, n_keys;
    const char *v;
    size_t row_bytes;
    bool ahead;       /* rows come from memory: prefetch the rows after them, */
    size_t n_left;    /* of which so many bytes remain from v on, */
    const char *next; /* then these; NULL: unknown */
} value_part;

INLINE void ask_values(const value_part *w, size_t from, size_t n)
{
    for (size_t i = from; i < from + n; i += 64)
        if (i < w->n_left)
            __builtin_prefetch(w->v + i);
        else if (w->next)
            __builtin_prefetch(w->next + (i - w->n_left));
}

/* n_q <= VALUE_QUERIES queries, n_v <= VALUE_VECTORS vectors of the head from element i on. */
INLINE void value_tile(num_type t, const value_part *w, const int n_q, int32_t i, const int n_v,
                       int32_t n_last)
{
    float *o = w->o;
    size_t o_stride = (size_t)w->o_stride;
    vf sum[VALUE_QUERIES][VALUE_VECTORS];
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_v; b++) {
            const float *from = o + (size_t)a * o_stride + (size_t)(i + b * VL);
            sum[a][b] = n_last == VL ? vf_load(from) : vf_load_n(from, n_last);
        }
    for (int32_t it = 0; it < w->n_keys; it++) {
        const char *row = w->v + (size_t)it * w->row_bytes;
        vf vv[VALUE_VECTORS];
        for (int b = 0; b < n_v; b++)
            vv[b] = load_as(t, row, i + b * VL, n_last);
        for (int a = 0; a < n_q; a++) {
            vf pv = vf_set(w->p[(size_t)a * (size_t)w->p_stride + (size_t)it]);
            for (int b = 0; b < n_v; b++)
                sum[a][b] = vf_fma(pv, vv[b], sum[a][b]);
        }
    }
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_v; b++) {
            float *to = o + (size_t)a * o_stride + (size_t)(i + b * VL);
            if (n_last == VL)
                vf_store(to, sum[a][b]);
            else
                vf_store_n(to, sum[a][b], n_last);
        }
}

/* All vectors of the head for the keys of one part. The part after it is prefetched in order as the
 * tiles proceed: tiles go across rows, a pattern that hardware prefetchers do not follow. */
INLINE void value_rows(num_type t, const int n_q, const value_part *w, int32_t dim)
{
    int32_t i = 0;
    size_t n_bytes = (size_t)w->n_keys * w->row_bytes, asked = 0;
    for (; i + VALUE_VECTORS * VL <= dim; i += VALUE_VECTORS * VL) {
        size_t to = w->ahead ? n_bytes * (size_t)(i + VALUE_VECTORS * VL) / (size_t)dim : 0;
        to = (to + 63) & ~(size_t)63;
        if (to > asked) {
            ask_values(w, VALUE_BYTES + asked, to - asked);
            asked = to;
        }
        value_tile(t, w, n_q, i, VALUE_VECTORS, VL);
    }
    for (; i + VL <= dim; i += VL)
        value_tile(t, w, n_q, i, 1, VL);
    if (i < dim)
        value_tile(t, w, n_q, i, 1, dim - i);
}

/* tile:  VALUE_QUERIES queries by VALUE_VECTORS vectors of the head, VALUE_BYTES of keys
 * bound: as key_dot_as, without the folding */
INLINE void value_sum_as(num_type t, const value_product *w)
{
    int32_t most = (int32_t)(VALUE_BYTES / w->row_bytes);
    most = most < 4 ? 4 : most;
    const bool ahead = w->n_q <= FEW_QUERIES && w->source == ROWS_IN_MEMORY;
    for (int32_t iq = 0; iq < w->n_q;) {
        int n = w->n_q - iq >= VALUE_QUERIES ? VALUE_QUERIES : w->n_q - iq >= 2 ? 2 : 1;
        float *to = w->o + (size_t)iq * (size_t)w->o_stride;
        for (int32_t it = 0; it < w->n_keys; it += most) {
            const value_part part = {.o = to,
                                     .o_stride = w->o_stride,
                                     .p = w->p + (size_t)iq * (size_t)w->p_stride + it,
                                     .p_stride = w->p_stride,
                                     .n_keys = w->n_keys - it < most ? w->n_keys - it : most,
                                     .v = w->v + (size_t)it * w->row_bytes,
                                     .row_bytes = w->row_bytes,
                                     .ahead = iq == 0 && ahead,
                                     .n_left = (size_t)(w->n_keys - it) * w->row_bytes,
                                     .next = w->next};
            if (part.ahead && it == 0 && AHEAD_BYTES < VALUE_BYTES)
                ask_values(&part, AHEAD_BYTES, VALUE_BYTES - AHEAD_BYTES);
            if (n == VALUE_QUERIES)
                value_rows(t, VALUE_QUERIES, &part, w->dim);
            else if (n == 2)
                value_rows(t, 2, &part, w->dim);
            else
                value_rows(t, 1, &part, w->dim);
        }
        iq += n;
    }
}

#if VL >= 8
#define EACH_BLOCKS(DO)                                                                            \
    DO(NUM_Q8_0) DO(NUM_Q5_1) DO(NUM_Q5_0) DO(NUM_Q4_1) DO(NUM_Q4_0) DO(NUM_IQ4_NL) DO(NUM_TQ3_0)
#else
#define EACH_BLOCKS(DO)
#endif

static void k_key_dot(const key_product *w)
{
    switch ((int)w->type) {
#define KEY_DOT(t)                                                                                 \
    case t:                                                                                        \
        key_dot_as(t, w);                                                                          \
        return;
        KEY_DOT(NUM_F32)
        KEY_DOT(NUM_F16)
        KEY_DOT(NUM_BF16)
        EACH_BLOCKS(KEY_DOT)
#undef KEY_DOT
    }
}

static void k_value_sum(const value_product *w)
{
    switch ((int)w->type) {
#define VALUE_SUM(t)                                                                               \
    case t:                                                                                        \
        value_sum_as(t, w);                                                                        \
        return;
        VALUE_SUM(NUM_F32)
        VALUE_SUM(NUM_F16)
        VALUE_SUM(NUM_BF16)
        EACH_BLOCKS(VALUE_SUM)
#undef VALUE_SUM
    }
}

static void k_merge(float *o, float co, const float *x, float cx, int32_t n)
{
    vf a = vf_set(co), b = vf_set(cx);
    int32_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(o + i, vf_fma(a, vf_load(o + i), b * vf_load(x + i)));
    if (i < n)
        vf_store_n(o + i, vf_fma(a, vf_load_n(o + i, n - i), b * vf_load_n(x + i, n - i)), n - i);
}

#endif
