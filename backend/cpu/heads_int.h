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
    MANY_VALUE_QUERIES = VL == 16 ? 6 : VALUE_QUERIES,
    MANY_VALUE_VECTORS = VL == 16 ? 4 : VALUE_VECTORS,
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

/* ---- Many queries ---------------------------------------------------------------------------
 *
 *     keys, transposed    lane 0: [dim / VL] x KEYS_ACROSS keys | lane VL / 2: ... | ...
 *
 * Lanes are keys, so no sum is folded across lanes. The sums are those of key_tile all the same: VL
 * partial sums of every VL-th element, added by the tree of vf_sum. They are computed in the order
 * of the tree's leaves, which is the reverse of the bits of the lane; a finished pair is added and
 * makes room. Transposing costs as much as the products of about six queries. */
enum { KEYS_ACROSS = 2 * VL, QUERIES_ACROSS = 6, LEAF_BITS = VL == 16 ? 4 : VL == 8 ? 3 : 2 };

INLINE int leaf_lane(int leaf)
{
    int lane = 0;
    for (int i = 0; i < LEAF_BITS; i++)
        lane |= (leaf >> i & 1) << (LEAF_BITS - 1 - i);
    return lane;
}

INLINE void keys_across_of(num_type t, const key_rows *k, float *to)
{
    int32_t n = k->dim / VL;
    for (int32_t c = 0; c < n; c++)
        for (int half = 0; half < 2; half++) {
            vf v[VL];
            for (int i = 0; i < VL; i++) {
                int32_t it = half * VL + i;
                v[i] = it < k->n ? load_as(t, k->at + (size_t)it * k->row_bytes, c * VL, VL)
                                 : vf_set(0);
            }
            vf_transpose(v);
            for (int i = 0; i < VL; i++)
                vf_store(to + ((size_t)(leaf_lane(i) * n + c) * 2 + (size_t)half) * VL, v[i]);
        }
}

static void k_keys_across(const key_rows *k, float *to)
{
    switch ((int)k->type) {
#define KEYS_ACROSS_OF(t)                                                                          \
    case t:                                                                                        \
        keys_across_of(t, k, to);                                                                  \
        return;
        KEYS_ACROSS_OF(NUM_F32)
        KEYS_ACROSS_OF(NUM_F16)
        KEYS_ACROSS_OF(NUM_BF16)
#undef KEYS_ACROSS_OF
    }
}

/* One partial sum of n_q queries and two vectors of keys. */
INLINE void across_leaf(vf *sum, const float *k, const float *q, size_t q_stride, int32_t n,
                        const int n_q)
{
    for (int i = 0; i < 2 * n_q; i++)
        sum[i] = vf_set(0);
    for (int32_t c = 0; c < n; c++, k += 2 * VL, q += VL) {
        vf k0 = vf_load(k), k1 = vf_load(k + VL);
        for (int a = 0; a < n_q; a++) {
            vf qv = vf_set(q[(size_t)a * q_stride]);
            sum[2 * a] = vf_fma(qv, k0, sum[2 * a]);
            sum[2 * a + 1] = vf_fma(qv, k1, sum[2 * a + 1]);
        }
    }
}

INLINE void across_tile(const key_product *w, int32_t iq, const int n_q)
{
    enum { FOURS = VL / 4 };
    const float *k = (const float *)(const void *)w->k;
    const float *q = w->q + (size_t)iq * (size_t)w->q_stride;
    size_t q_stride = (size_t)w->q_stride;
    int32_t n = w->dim / VL;
    vf sum[2 * QUERIES_ACROSS], part[2][2 * QUERIES_ACROSS], four[2][2 * QUERIES_ACROSS];
    for (int a = 0; a < 2 * n_q; a++) /* for compilers that do not unroll; others leave it out */
        four[0][a] = four[1][a] = vf_set(0);
    for (int g = 0; g < FOURS; g++) {
        UNROLL(4)
        for (int i = 0; i < 4; i++, k += (size_t)n * 2 * VL) {
            across_leaf(sum, k, q + leaf_lane(4 * g + i), q_stride, n, n_q);
            for (int a = 0; a < 2 * n_q; a++)
                if (i == 0 || i == 2)
                    part[i / 2][a] = sum[a];
                else if (i == 1)
                    part[0][a] += sum[a];
                else
                    sum[a] = part[0][a] + (part[1][a] + sum[a]);
        }
        for (int a = 0; a < 2 * n_q; a++)
            if (g == FOURS - 1)
                sum[a] = FOURS == 4   ? four[0][a] + (four[1][a] + sum[a])
                         : FOURS == 2 ? four[0][a] + sum[a]
                                      : sum[a];
            else
                four[g / 2][a] = g % 2 ? four[g / 2][a] + sum[a] : sum[a];
    }
    for (int a = 0; a < n_q; a++) {
        float *s = w->s + (size_t)(iq + a) * (size_t)w->s_stride;
        if (w->n_keys == KEYS_ACROSS) {
            vf_store(s, sum[2 * a]);
            vf_store(s + VL, sum[2 * a + 1]);
        } else if (w->n_keys < VL) {
            vf_store_n(s, sum[2 * a], w->n_keys);
        } else {
            vf_store(s, sum[2 * a]);
            vf_store_n(s + VL, sum[2 * a + 1], w->n_keys - VL);
        }
    }
}

/* tile:  two vectors of keys by QUERIES_ACROSS queries
 * bound: two FMA per cycle: dim of them per vector and query, and VL - 1 sums */
static void k_key_dot_across(const key_product *w)
{
    int32_t iq = 0;
    for (; iq + QUERIES_ACROSS <= w->n_q; iq += QUERIES_ACROSS)
        across_tile(w, iq, QUERIES_ACROSS);
    for (; iq + 2 <= w->n_q; iq += 2)
        across_tile(w, iq, 2);
    if (iq < w->n_q)
        across_tile(w, iq, 1);
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

/* n_q <= VALUE_QUERIES queries, n_v <= MANY_VALUE_VECTORS vectors of the head from element i on. */
INLINE void value_tile(num_type t, const value_part *w, const int n_q, int32_t i, const int n_v,
                       int32_t n_last)
{
    float *o = w->o;
    size_t o_stride = (size_t)w->o_stride;
    vf sum[VALUE_QUERIES][MANY_VALUE_VECTORS];
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_v; b++) {
            const float *from = o + (size_t)a * o_stride + (size_t)(i + b * VL);
            sum[a][b] = n_last == VL ? vf_load(from) : vf_load_n(from, n_last);
        }
    for (int32_t it = 0; it < w->n_keys; it++) {
        const char *row = w->v + (size_t)it * w->row_bytes;
        vf vv[MANY_VALUE_VECTORS];
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
    /* Many queries find values in cache: these tiles ask for none. */
    if (MANY_VALUE_VECTORS > VALUE_VECTORS && n_q == MANY_VALUE_QUERIES)
        for (; i + MANY_VALUE_VECTORS * VL <= dim; i += MANY_VALUE_VECTORS * VL)
            value_tile(t, w, n_q, i, MANY_VALUE_VECTORS, VL);
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
        int32_t left = w->n_q - iq;
        int n = w->n_q > FEW_QUERIES && left >= MANY_VALUE_QUERIES ? MANY_VALUE_QUERIES
                : left >= VALUE_QUERIES                            ? VALUE_QUERIES
                : left >= 2                                        ? 2
                                                                   : 1;
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
            if (n == MANY_VALUE_QUERIES)
                value_rows(t, MANY_VALUE_QUERIES, &part, w->dim);
            else if (n == VALUE_QUERIES)
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

#define EACH_CACHED(DO) DO(NUM_F32) DO(NUM_F16) DO(NUM_BF16) EACH_BLOCKS(DO)

#define KEY_DOT(t)                                                                                 \
    static NOINLINE void key_dot_##t(const key_product *w)                                         \
    {                                                                                              \
        key_dot_as(t, w);                                                                          \
    }
EACH_CACHED(KEY_DOT)
#undef KEY_DOT

static void k_key_dot(const key_product *w)
{
    switch ((int)w->type) {
#define KEY_DOT(t)                                                                                 \
    case t:                                                                                        \
        key_dot_##t(w);                                                                            \
        return;
        EACH_CACHED(KEY_DOT)
#undef KEY_DOT
    }
}

#define VALUE_SUM(t)                                                                               \
    static NOINLINE void value_sum_##t(const value_product *w)                                     \
    {                                                                                              \
        value_sum_as(t, w);                                                                        \
    }
EACH_CACHED(VALUE_SUM)
#undef VALUE_SUM

static void k_value_sum(const value_product *w)
{
    switch ((int)w->type) {
#define VALUE_SUM(t)                                                                               \
    case t:                                                                                        \
        value_sum_##t(w);                                                                          \
        return;
        EACH_CACHED(VALUE_SUM)
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
