/* product.cuh - the order in which every int8 product adds, so that their results are
 * bit-identical.
 *
 *     warp w of n     units w, w + n, ..
 *     in a unit       even and odd groups apart, then together
 *     at the end      the warps' sums in ascending order
 *
 * How many warps share a tile is a function of the weight's shape (product_warps). group_add
 * (formats.cuh) adds one group.
 */
#ifndef BACKEND_CUDA_PRODUCT_CUH
#define BACKEND_CUDA_PRODUCT_CUH

#include "backend/cuda/activations.cuh"
#include "backend/cuda/product/lattice.cuh"
#include "backend/cuda/product/launch_products.h"

/* 8 warps per tile of 16 outputs, 2 for each half of a gated pair; fewer where a warp would have no
 * unit, or where tiles alone fill a large GPU. A function of the weight's shape alone, never of the
 * row count or the GPU. */
static inline int product_warps(const packed &w, bool glu)
{
    int n = 1;
    while (n < (glu ? 2 : 8) && w.n_tile * n < 4096 && 2 * n <= w.n_unit)
        n *= 2;
    return n;
}

/* The gated unit of output o of matrix `mat`, whose sums are g and u. */
DEV float unit_of(const unit_rule &t, bool silu, float g, float u, size_t mat, int o)
{
    if (t.bias)
        g += t.bias[mat * t.step + o];
    if (t.up_bias)
        u += t.up_bias[mat * t.step + o];
    return t.cut ? cut_unit(g, u) : gate_of(silu, g) * u;
}

/* Integer dot products of a group's codes with 32 activations xa, xb: *half gets the first half's,
 * the second half's is returned. */
template <int K> DEV int half_dots(const raw_group<K> &raw, uint4 xa, uint4 xb, int *half)
{
    uint32_t word[8];
    int i0 = 0, i1 = 0;
    group_words<K>(word, raw);
    i0 = dp4a(word[0], xa.x, i0), i1 = dp4a(word[4], xa.y, i1);
    i0 = dp4a(word[1], xa.z, i0), i1 = dp4a(word[5], xa.w, i1);
    i0 = dp4a(word[2], xb.x, i0), i1 = dp4a(word[6], xb.y, i1);
    i0 = dp4a(word[3], xb.z, i0), i1 = dp4a(word[7], xb.w, i1);
    *half = i0;
    return i1;
}

/* acc + the product of one row's group g with 32 activations: codes xa, xb, scale and sums xs. */
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
