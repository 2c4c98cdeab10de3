/* recur_int.h - kernels of recurrent layers: a row of the convolution, a row of the gated delta
 * rule.
 *
 * Included by each matmul_*.c and compiled for its vectors (vec_int.h). A value row of the state is
 * dk neighbouring floats, which no other value row touches. A row that is computed and a row that
 * is applied later change it by the same two roundings: s * decay, then one fused product and sum.
 */
#ifndef BACKEND_CPU_RECUR_INT_H
#define BACKEND_CPU_RECUR_INT_H

#include "backend/cpu/kernels_int.h"
#include "backend/cpu/small_int.h"

static void k_conv_row(float *y, const float *const *x, const float *w, int32_t w_stride,
                       int32_t n_taps, int32_t n)
{
    EACH(n, vf s = AT(w) * AT(x[0]); for (int32_t j = 1; j < n_taps; j++) s =
                                         vf_fma(AT(w + (size_t)j * (size_t)w_stride), AT(x[j]), s);
         PUT(y, vf_silu(s)));
}

/* s *= decay; returns s . k */
INLINE float fade_and_read(float *s, const float *k, int32_t dk, vf decay)
{
    vf sum[4] = {{0}, {0}, {0}, {0}};
    int32_t i = 0;
    for (; i + 4 * VL <= dk; i += 4 * VL)
        for (int j = 0; j < 4; j++) {
            vf t = vf_load(s + i + j * VL) * decay;
            sum[j] = vf_fma(t, vf_load(k + i + j * VL), sum[j]);
            vf_store(s + i + j * VL, t);
        }
    for (; i < dk; i += VL) {
        int32_t left = dk - i < VL ? dk - i : VL;
        vf t = vf_load_n(s + i, left) * decay;
        sum[0] = vf_fma(t, vf_load_n(k + i, left), sum[0]);
        vf_store_n(s + i, t, left);
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* s += e k; returns s . q */
INLINE float write_and_read(float *s, const float *k, const float *q, int32_t dk, vf e)
{
    vf sum[4] = {{0}, {0}, {0}, {0}};
    int32_t i = 0;
    for (; i + 4 * VL <= dk; i += 4 * VL)
        for (int j = 0; j < 4; j++) {
            vf t = vf_fma(e, vf_load(k + i + j * VL), vf_load(s + i + j * VL));
            sum[j] = vf_fma(t, vf_load(q + i + j * VL), sum[j]);
            vf_store(s + i + j * VL, t);
        }
    for (; i < dk; i += VL) {
        int32_t left = dk - i < VL ? dk - i : VL;
        vf t = vf_fma(e, vf_load_n(k + i, left), vf_load_n(s + i, left));
        sum[0] = vf_fma(t, vf_load_n(q + i, left), sum[0]);
        vf_store_n(s + i, t, left);
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

#if VL == 16
/* Two value rows of KEPT vectors stay in registers between the two reads: half of the loads and
 * stores of the loops above, in their order of sums. */
enum { KEPT = 8, KEPT_ROWS = 2 };
INLINE void delta_rows_kept(const delta_row *d, int32_t i)
{
    const vf decay = vf_set(d->decay);
    vf s[KEPT_ROWS][KEPT], sum[KEPT_ROWS][4] = {0}, e[KEPT_ROWS];
    float *at = d->s + (size_t)i * KEPT * VL;
    UNROLL(8)
    for (int j = 0; j < KEPT; j++) {
        vf k = vf_load(d->k + j * VL);
        UNROLL(2)
        for (int r = 0; r < KEPT_ROWS; r++) {
            s[r][j] = vf_load(at + (r * KEPT + j) * VL) * decay;
            sum[r][j & 3] = vf_fma(s[r][j], k, sum[r][j & 3]);
        }
    }
    UNROLL(2)
    for (int r = 0; r < KEPT_ROWS; r++) {
        float known = vf_sum((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]));
        d->e[i + r] = d->write * (d->v[i + r] - known);
        e[r] = vf_set(d->e[i + r]);
        UNROLL(4)
        for (int j = 0; j < 4; j++)
            sum[r][j] = vf_set(0);
    }
    UNROLL(8)
    for (int j = 0; j < KEPT; j++) {
        vf k = vf_load(d->k + j * VL), q = vf_load(d->q + j * VL);
        UNROLL(2)
        for (int r = 0; r < KEPT_ROWS; r++) {
            s[r][j] = vf_fma(e[r], k, s[r][j]);
            sum[r][j & 3] = vf_fma(s[r][j], q, sum[r][j & 3]);
            vf_store(at + (r * KEPT + j) * VL, s[r][j]);
        }
    }
    UNROLL(2)
    for (int r = 0; r < KEPT_ROWS; r++)
        d->o[i + r] = vf_sum((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]));
}
#endif

static void k_delta_row(const delta_row *d)
{
    int32_t i = 0;
#if VL == 16
    for (; d->dk == KEPT * VL && i + KEPT_ROWS <= d->n; i += KEPT_ROWS)
        delta_rows_kept(d, i);
#endif
    for (; i < d->n; i++) {
        float *s = d->s + (size_t)i * (size_t)d->dk;
        float known = fade_and_read(s, d->k, d->dk, vf_set(d->decay));
        d->e[i] = d->write * (d->v[i] - known);
        d->o[i] = write_and_read(s, d->k, d->q, d->dk, vf_set(d->e[i]));
    }
}

static void k_delta_apply(float *s, int32_t n, int32_t dk, float decay, const float *k,
                          const float *e)
{
    for (int32_t i = 0; i < n; i++, s += dk) {
        const float error = e[i];
        EACH(dk, PUT(s, vf_fma(vf_set(error), AT(k), AT(s) * vf_set(decay))));
    }
}

#endif
