/* layouts.cuh - from the layout of a weight to the kernels that are made for it. Host code.
 *
 *     by_layout(all_packs, pack_kernels(w.kind), [&](auto k) { launch<k>(..); return true; });
 */
#ifndef BACKEND_CUDA_LAYOUTS_CUH
#define BACKEND_CUDA_LAYOUTS_CUH

#include "backend/cuda/launch.h"

template <int K> struct layout {
    constexpr operator int() const
    {
        return K;
    }
};
template <int... K> struct layouts {
};
template <int... A, int... B> constexpr layouts<A..., B...> operator+(layouts<A...>, layouts<B...>)
{
    return {};
}

constexpr layouts<PACK_F32, PACK_F16, PACK_BF16> float_packs;
constexpr layouts<PACK_Q4_0, PACK_Q4_1, PACK_Q5_0, PACK_Q5_1, PACK_Q8_0, PACK_Q4_K, PACK_Q5_K,
                  PACK_Q6_K>
    common_packs;
/* Without codes by shares. */
constexpr auto plain_packs = common_packs + layouts<PACK_G8, PACK_IQ4, PACK_FP4>();
/* All that kernels of blocks are made for; pack_kernels says which of them serve a weight. */
constexpr auto all_packs = plain_packs + layouts<PACK_IQ3_XXS, PACK_IQ3_S, PACK_IQ2_XXS, PACK_IQ2_S,
                                                 PACK_IQ1, PACK_BITS2, PACK_BITS1>();

/* f(layout<kind>()), a bool; false for kinds that are not in the list. */
template <int... K, class F> bool by_layout(layouts<K...>, int32_t kind, const F &f)
{
    return ((kind == K && f(layout<K>())) || ...);
}
/* The results of f for all layouts, or-ed: errors, or 0. */
template <int... K, class F> int each_layout(layouts<K...>, const F &f)
{
    return (f(layout<K>()) | ...);
}

#endif
