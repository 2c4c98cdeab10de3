/* rows_int.h - unpacks rows of a key/value cache to floats in memory, and makes keys from values.
 *
 * Included by each matmul_*.c. Attention with many queries, as in a prefill, unpacks a few keys at
 * a time into a piece of floats that stays in cache, and pays for that once for all queries. Few
 * queries decode blocks in registers (blocks_int.h) where that is faster. Both give the same
 * floats.
 */
#ifndef BACKEND_CPU_ROWS_INT_H
#define BACKEND_CPU_ROWS_INT_H

#include "backend/cpu/heads_int.h"
#include "backend/cpu/small_int.h"
#include "backend/ops.h"

INLINE void unpack_rows(num_type t, const key_rows *k, float *to, int32_t to_stride)
{
    const char *row = k->at;
    for (int32_t r = 0; r < k->n; r++, row += k->row_bytes, to += to_stride) {
#if VL == 4
        if (is_blocks(t)) {
#if defined(__ARM_NEON)
            for (int32_t i = 0; i < k->dim; i += 32)
                unpack_block(t, (const uint8_t *)row + (size_t)(i / 32) * block_bytes(t), to + i);
#else
            num_format_of(t)->decode(row, to, k->dim);
#endif
            continue;
        }
#endif
        int32_t i = 0;
        for (; i + VL <= k->dim; i += VL)
            vf_store(to + i, load_as(t, row, i, VL));
        if (i < k->dim)
            vf_store_n(to + i, load_as(t, row, i, k->dim - i), k->dim - i);
    }
}

static void k_unpack(const key_rows *k, float *to, int32_t to_stride)
{
    switch ((int)k->type) {
#define UNPACK(t)                                                                                  \
    case t:                                                                                        \
        unpack_rows(t, k, to, to_stride);                                                          \
        return
        UNPACK(NUM_F32);
        UNPACK(NUM_F16);
        UNPACK(NUM_BF16);
        UNPACK(NUM_Q8_0);
        UNPACK(NUM_Q5_1);
        UNPACK(NUM_Q5_0);
        UNPACK(NUM_Q4_1);
        UNPACK(NUM_Q4_0);
        UNPACK(NUM_IQ4_NL);
        UNPACK(NUM_TQ3_0);
#undef UNPACK
    }
}

/* Codes times scales are exact. */
INLINE void unpack_codes(float *to, const int8_t *code, float scale, int32_t n)
{
    int32_t i = 0;
#if VL >= 8
    for (; i + VL <= n; i += VL)
        vf_store(to + i, vf_of_codes(vb_load((const uint8_t *)code + i)) * scale);
#endif
    for (; i < n; i++)
        to[i] = scale * (float)code[i];
}
INLINE void unpack_widths(float *to, const uint8_t *code, float scale, int32_t n)
{
    int32_t i = 0;
#if VL >= 8
    for (; i + VL <= n; i += VL)
        vf_store(to + i, (vf_of_codes(vb_load(code + i) ^ 0x80) + 128) * scale);
#endif
    for (; i < n; i++)
        to[i] = scale * (float)code[i];
}

static void k_unpack_bounds(const page_bounds *b, int32_t n, float *to)
{
    int32_t dim = b->dim, groups = page_sum_groups(dim);
    for (int32_t it = 0; it < n; it++, to += 2 * dim) {
        const int8_t *mid = b->code + (size_t)it * 2 * (size_t)dim;
        const uint8_t *wide = (const uint8_t *)mid + dim;
        const uint16_t *scale = b->scale + (size_t)it * 2 * (size_t)groups;
        for (int32_t i = 0; i < dim; i += PAGE_SUM_GROUP, scale += 2) {
            int32_t end = dim - i < PAGE_SUM_GROUP ? dim - i : PAGE_SUM_GROUP;
            float m = num_bf16_to_f32(scale[0]), w = num_bf16_to_f32(scale[1]);
            unpack_codes(to + i, mid + i, m, end);
            unpack_widths(to + dim + i, wide + i, w, end);
        }
    }
}

INLINE void make_keys_of(num_type t, const key_rows *u, float *to, int32_t to_stride,
                         const key_maker *m)
{
    int32_t n = m->n_turning;
    const char *row = u->at;
    const float *w = m->w, *wy = m->w_high, *c = m->turn, *s = c + n;
    for (int32_t it = 0; it < u->n; it++, row += u->row_bytes, to += to_stride) {
        float *x = to, *y = to + n;
        int32_t i = 0;
        for (; i + VL <= n; i += VL) {
            vf p = load_as(t, row, i, VL) * vf_load(w + i), cv = vf_load(c + i);
            vf q = load_as(t, row + u->high_bytes, i, VL) * vf_load(wy + i);
            vf sv = vf_load(s + i);
            vf_store(x + i, p * cv - q * sv);
            vf_store(y + i, p * sv + q * cv);
        }
        int32_t left = (n - i) & (VL - 1); /* f32, f16 and bf16 only: blocks are whole vectors */
        if (left && !is_blocks(t)) {
            vf p = load_as(t, row, i, left) * vf_load_n(w + i, left), cv = vf_load_n(c + i, left);
            vf q = load_as(t, row + u->high_bytes, i, left) * vf_load_n(wy + i, left);
            vf sv = vf_load_n(s + i, left);
            vf_store_n(x + i, p * cv - q * sv, left);
            vf_store_n(y + i, p * sv + q * cv, left);
        }
        c += 2 * n;
        s += 2 * n;
    }
}

static void k_make_keys(const key_rows *u, float *to, int32_t to_stride, const key_maker *m)
{
    switch ((int)u->type) {
#define MAKE_KEYS(t)                                                                               \
    case t:                                                                                        \
        make_keys_of(t, u, to, to_stride, m);                                                      \
        return;
        MAKE_KEYS(NUM_F32)
        MAKE_KEYS(NUM_F16)
        MAKE_KEYS(NUM_BF16)
        EACH_BLOCKS(MAKE_KEYS)
#undef MAKE_KEYS
    }
}

#endif
