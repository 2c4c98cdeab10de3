/* heads_int.h - attention's two inner products: queries with keys, probabilities with values.
 *
 * Included by each matmul_*.c and compiled for its vectors. Keys and values are rows of head_dim
 * elements in their stored type; an element type is a loader of one vector (load_as) and a case in
 * the two dispatchers. Several queries share each row that is read: the heads of a group, and in a
 * prefill several rows.
 */
#ifndef BACKEND_CPU_HEADS_INT_H
#define BACKEND_CPU_HEADS_INT_H

#include "backend/cpu/kernels_int.h"
#include "backend/cpu/vec_int.h"

enum {
    /* their product is the sums held in registers: VL, so that vf_sums folds them all */
    KEY_TILE = 2,
    QUERY_TILE = VL / 2,
    VALUE_QUERIES = VL == 16 ? 8 : 4,
    VALUE_VECTORS = 2,
    VALUE_BYTES = 16384, /* of values that all vectors of the head go over before the next ones */
    FEW_QUERIES = 16,    /* a decode: the bound is memory */
    AHEAD_BYTES = 8192
};

/* n < VL only in the tail of a head size that is not a multiple of VL. */
INLINE vf load_as(num_type t, const char *p, int32_t i, int32_t n)
{
    if (t == NUM_F32) {
        const float *f = (const float *)(const void *)p + i;
        return n >= VL ? vf_load(f) : vf_load_n(f, n);
    }
    vh h = {0};
    memcpy(&h, p + 2 * (size_t)i, n >= VL ? sizeof h : 2 * (size_t)n);
    return t == NUM_F16 ? vf_of_f16(h) : (vf)(__builtin_convertvector(h, vu) << 16);
}

/* s[iq, it] for n_q <= QUERY_TILE queries and n_k <= KEY_TILE keys. Each sum runs over the head
 * in order, in VL interleaved parts, and is folded by vf_sum: the same for every tile. */
INLINE void key_tile(num_type t, float *s, int32_t s_stride, const float *q, int32_t q_stride,
                     int n_q, const char *k, size_t row_bytes, int n_k, int32_t dim)
{
    vf sum[QUERY_TILE * KEY_TILE];
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_k; b++)
            sum[a * KEY_TILE + b] = vf_set(0);
    int32_t i = 0;
    for (; i + VL <= dim; i += VL) {
        vf kv[KEY_TILE];
        for (int b = 0; b < n_k; b++)
            kv[b] = load_as(t, k + (size_t)b * row_bytes, i, VL);
        for (int a = 0; a < n_q; a++) {
            vf qv = vf_load(q + (size_t)a * (size_t)q_stride + i);
            vf_keep(&qv); /* loaded once: one load per FMA would be the bound */
            for (int b = 0; b < n_k; b++)
                sum[a * KEY_TILE + b] = vf_fma(qv, kv[b], sum[a * KEY_TILE + b]);
        }
    }
    if (i < dim)
        for (int a = 0; a < n_q; a++) {
            vf qv = vf_load_n(q + (size_t)a * (size_t)q_stride + i, dim - i);
            for (int b = 0; b < n_k; b++)
                sum[a * KEY_TILE + b] = vf_fma(
                    qv, load_as(t, k + (size_t)b * row_bytes, i, dim - i), sum[a * KEY_TILE + b]);
        }
    if (n_q == QUERY_TILE && n_k == KEY_TILE) {
        vf all = vf_sums(sum);
        for (int a = 0; a < n_q; a++)
            memcpy(s + (size_t)a * (size_t)s_stride, (const float *)&all + a * KEY_TILE,
                   KEY_TILE * sizeof(float));
        return;
    }
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_k; b++)
            s[(size_t)a * (size_t)s_stride + (size_t)b] = vf_sum(sum[a * KEY_TILE + b]);
}

/* s[iq, it] = q[iq] . k[it]
 * tile:  KEY_TILE keys by QUERY_TILE queries in registers, the head in vectors
 * bound: decode reads the keys once per group; a prefill is two FMA per cycle less the folding */
INLINE void key_dot_as(num_type t, float *s, int32_t s_stride, const float *q, int32_t q_stride,
                       int32_t n_q, const char *k, size_t row_bytes, int32_t n_keys, int32_t dim)
{
    for (int32_t it = 0; it < n_keys; it += KEY_TILE) {
        int n_k = n_keys - it < KEY_TILE ? n_keys - it : KEY_TILE;
        const char *row = k + (size_t)it * row_bytes;
        if (n_q <= FEW_QUERIES) /* keys come from memory: ask ahead */
            for (size_t i = 0; i < KEY_TILE * row_bytes; i += 64)
                __builtin_prefetch(row + AHEAD_BYTES + i);
        for (int32_t iq = 0; iq < n_q;) {
            int n = n_k < KEY_TILE           ? 1
                    : n_q - iq >= QUERY_TILE ? QUERY_TILE
                    : n_q - iq >= 2          ? 2
                                             : 1;
            float *to = s + (size_t)iq * (size_t)s_stride + it;
            const float *from = q + (size_t)iq * (size_t)q_stride;
            if (n == QUERY_TILE)
                key_tile(t, to, s_stride, from, q_stride, QUERY_TILE, row, row_bytes, KEY_TILE,
                         dim);
            else if (n == 2)
                key_tile(t, to, s_stride, from, q_stride, 2, row, row_bytes, KEY_TILE, dim);
            else if (n_k == KEY_TILE)
                key_tile(t, to, s_stride, from, q_stride, 1, row, row_bytes, KEY_TILE, dim);
            else
                key_tile(t, to, s_stride, from, q_stride, 1, row, row_bytes, 1, dim);
            iq += n;
        }
    }
}

/* What of the values a tile takes: n_keys rows from v on, probabilities p[iq, it]. */
typedef struct value_part {
    const float *p;
    int32_t p_stride, n_keys;
    const char *v;
    size_t row_bytes;
    bool ahead; /* rows come from memory: ask for those after them */
} value_part;

/* n_q <= VALUE_QUERIES queries, n_v <= VALUE_VECTORS vectors of the head from element i on. */
INLINE void value_tile(num_type t, float *o, int32_t o_stride, const int n_q, const value_part *w,
                       int32_t i, const int n_v, int32_t n_last)
{
    vf sum[VALUE_QUERIES][VALUE_VECTORS];
    for (int a = 0; a < n_q; a++)
        for (int b = 0; b < n_v; b++) {
            const float *from = o + (size_t)a * (size_t)o_stride + i + b * VL;
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
            float *to = o + (size_t)a * (size_t)o_stride + i + b * VL;
            if (n_last == VL)
                vf_store(to, sum[a][b]);
            else
                vf_store_n(to, sum[a][b], n_last);
        }
}

/* All vectors of the head for the keys of one part. The part is asked for in order, a while ahead,
 * as the tiles go: they themselves go across its rows, which no prefetcher understands. */
INLINE void value_rows(num_type t, float *o, int32_t o_stride, const int n_q, const value_part *w,
                       int32_t dim)
{
    int32_t i = 0;
    size_t n_bytes = (size_t)w->n_keys * w->row_bytes, asked = 0;
    for (; i + VALUE_VECTORS * VL <= dim; i += VALUE_VECTORS * VL) {
        size_t to = w->ahead ? n_bytes * (size_t)(i + VALUE_VECTORS * VL) / (size_t)dim : 0;
        for (; asked < to; asked += 64)
            __builtin_prefetch(w->v + VALUE_BYTES + asked);
        value_tile(t, o, o_stride, n_q, w, i, VALUE_VECTORS, VL);
    }
    for (; i + VL <= dim; i += VL)
        value_tile(t, o, o_stride, n_q, w, i, 1, VL);
    if (i < dim)
        value_tile(t, o, o_stride, n_q, w, i, 1, dim - i);
}

/* o[iq] += sum over it, ascending, of p[iq, it] v[it]
 * tile:  VALUE_QUERIES queries by VALUE_VECTORS vectors of the head, VALUE_BYTES of keys
 * bound: as key_dot_as, without the folding */
INLINE void value_sum_as(num_type t, float *o, int32_t o_stride, int32_t n_q, const float *p,
                         int32_t p_stride, const char *v, size_t row_bytes, int32_t n_keys,
                         int32_t dim)
{
    int32_t step = (int32_t)(VALUE_BYTES / row_bytes);
    step = step < 4 ? 4 : step;
    for (int32_t iq = 0; iq < n_q;) {
        int n = n_q - iq >= VALUE_QUERIES ? VALUE_QUERIES : n_q - iq >= 2 ? 2 : 1;
        float *to = o + (size_t)iq * (size_t)o_stride;
        for (int32_t it = 0; it < n_keys; it += step) {
            const value_part w = {.p = p + (size_t)iq * (size_t)p_stride + it,
                                  .p_stride = p_stride,
                                  .n_keys = n_keys - it < step ? n_keys - it : step,
                                  .v = v + (size_t)it * row_bytes,
                                  .row_bytes = row_bytes,
                                  .ahead = iq == 0 && n_q <= FEW_QUERIES};
            if (n == VALUE_QUERIES)
                value_rows(t, to, o_stride, VALUE_QUERIES, &w, dim);
            else if (n == 2)
                value_rows(t, to, o_stride, 2, &w, dim);
            else
                value_rows(t, to, o_stride, 1, &w, dim);
        }
        iq += n;
    }
}

static void k_key_dot(num_type t, float *s, int32_t s_stride, const float *q, int32_t q_stride,
                      int32_t n_q, const char *k, size_t row_bytes, int32_t n_keys, int32_t dim)
{
    if (t == NUM_F32)
        key_dot_as(NUM_F32, s, s_stride, q, q_stride, n_q, k, row_bytes, n_keys, dim);
    else if (t == NUM_F16)
        key_dot_as(NUM_F16, s, s_stride, q, q_stride, n_q, k, row_bytes, n_keys, dim);
    else
        key_dot_as(NUM_BF16, s, s_stride, q, q_stride, n_q, k, row_bytes, n_keys, dim);
}

static void k_value_sum(num_type t, float *o, int32_t o_stride, int32_t n_q, const float *p,
                        int32_t p_stride, const char *v, size_t row_bytes, int32_t n_keys,
                        int32_t dim)
{
    if (t == NUM_F32)
        value_sum_as(NUM_F32, o, o_stride, n_q, p, p_stride, v, row_bytes, n_keys, dim);
    else if (t == NUM_F16)
        value_sum_as(NUM_F16, o, o_stride, n_q, p, p_stride, v, row_bytes, n_keys, dim);
    else
        value_sum_as(NUM_BF16, o, o_stride, n_q, p, p_stride, v, row_bytes, n_keys, dim);
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
