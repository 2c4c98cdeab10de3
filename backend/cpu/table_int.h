/* table_int.h - the entries of a cpu_kernels table that every instruction set fills alike.
 * Included inside the initialiser; KERNELS_NAME is the name. */
.name = KERNELS_NAME, .rms_norm = k_rms_norm, .add_rms_norm = k_add_rms_norm,
                      .gelu_mul = k_gelu_mul, .add = k_add, .scale = k_scale, .softcap = k_softcap,
                      .softmax = k_softmax, .sincos = k_sincos, .rotate = k_rotate,
                      .key_dot = k_key_dot, .value_sum = k_value_sum, .merge = k_merge,
                      .expand = k_expand, .float_tile = k_float_tile,
