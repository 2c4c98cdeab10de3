/* product.cuh - what the int8 products agree on, so that they add the same numbers in one order:
 * how many warps share a tile's columns. Warp w of n takes units w, w + n, ..; within a unit even
 * and odd groups are summed apart; the warps' sums are added in ascending order. The rest of the
 * agreement is group_add (formats.cuh).
 */
#ifndef BACKEND_CUDA_PRODUCT_CUH
#define BACKEND_CUDA_PRODUCT_CUH

#include "backend/cuda/formats.cuh"

/* 8 warps per tile of 16 outputs, 2 for each half of a gated pair; fewer where a warp would be
 * without a unit, or a large GPU has enough to do. From the weight's shape alone: never the row
 * count, never the GPU. */
static inline int product_warps(const packed &w, bool glu)
{
    int n = 1;
    while (n < (glu ? 2 : 8) && w.n_tile * n < 4096 && 2 * n <= w.n_unit)
        n *= 2;
    return n;
}

/* Codes of a group times 32 activations xa, xb: of the first half to *half, the second returned. */
template <int K> DEV int half_dots(const raw_group<K> &raw, uint4 xa, uint4 xb, int *half)
{
    uint32_t lo, hi;
    int i0 = 0, i1 = 0;
    code_words<K>(raw.c0.x, raw.c1.x, raw.h0, raw.h1, 0, &lo, &hi);
    i0 = dp4a(lo, xa.x, i0), i1 = dp4a(hi, xa.y, i1);
    code_words<K>(raw.c0.y, raw.c1.y, raw.h0, raw.h1, 1, &lo, &hi);
    i0 = dp4a(lo, xa.z, i0), i1 = dp4a(hi, xa.w, i1);
    code_words<K>(raw.c0.z, raw.c1.z, raw.h0, raw.h1, 2, &lo, &hi);
    i0 = dp4a(lo, xb.x, i0), i1 = dp4a(hi, xb.y, i1);
    code_words<K>(raw.c0.w, raw.c1.w, raw.h0, raw.h1, 3, &lo, &hi);
    i0 = dp4a(lo, xb.z, i0), i1 = dp4a(hi, xb.w, i1);
    *half = i0;
    return i1;
}

/* acc + one row's group g times 32 activations: codes xa, xb, scale and sums xs. */
template <int K>
DEV float group_dot(float acc, const raw_group<K> &raw, int g, uint4 xa, uint4 xb, xscale xs)
{
    int i0, i1 = half_dots<K>(raw, xa, xb, &i0);
    scales v = group_scales<K>(raw.s, g);
    if (!traits<K>::split)
        i0 += i1;
    return group_sum<K>(acc, v, i0, i1, xs.d, xs.sum0, xs.sum1);
}

#endif
