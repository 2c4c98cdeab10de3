/* table_int.h - the entries of a cpu_kernels table that every instruction set fills alike: the
 * kernels of small_int.h, heads_int.h, rows_int.h, float_int.h and recur_int.h. */
#ifndef BACKEND_CPU_TABLE_INT_H
#define BACKEND_CPU_TABLE_INT_H

#define SHARED_KERNELS                                                                             \
    .rms_norm = k_rms_norm, .add_rms_norm = k_add_rms_norm, .layer_norm = k_layer_norm,            \
    .gelu_mul = k_gelu_mul, .gelu_erf_mul = k_gelu_erf_mul, .silu_mul = k_silu_mul,                \
    .softplus_mul = k_softplus_mul, .sigmoid_mul = k_sigmoid_mul, .swiglu_cut = k_swiglu_cut,      \
    .add = k_add, .scale = k_scale, .softcap = k_softcap, .softmax = k_softmax,                    \
    .sincos = k_sincos, .rotate = k_rotate, .key_dot = k_key_dot, .value_sum = k_value_sum,        \
    .keys_across = k_keys_across, .key_dot_across = k_key_dot_across, .across = {VL, KEYS_ACROSS}, \
    .dot_base = DOT_BASE, .to_f16 = k_to_f16, .merge = k_merge, .unpack = k_unpack,                \
    .unpack_bounds = k_unpack_bounds, .make_keys = k_make_keys, .block_queries = BLOCK_QUERIES,    \
    .float_tile = k_float_tile, .quantise = k_quantise, .conv_row = k_conv_row,                    \
    .delta_row = k_delta_row, .delta_apply = k_delta_apply

#endif
