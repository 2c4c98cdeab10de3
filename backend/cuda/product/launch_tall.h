/* launch_tall.h - launchers of experts of prompts: matmul_tall_experts_hopper.cu on GPUs of 9.0,
 * and matmul_short_experts.cu.
 *
 * False, and nothing is launched, for formats, shapes and numbers of rows without a kernel:
 * cu_expert_mma computes the same bits. matmul_tall_experts_hopper.cu wants all experts on the
 * device.
 */
#ifndef BACKEND_CUDA_LAUNCH_TALL_H
#define BACKEND_CUDA_LAUNCH_TALL_H

#include "backend/cuda/product/launch_products.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As cu_expert_mma, which asks both first. */
bool cu_expert_tall(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l, int32_t k);
bool cu_expert_short(cudaStream_t s, dev_mat y, dev_quant x, packed w, expert_lists l, int32_t k);
/* Gated units of pairs: y [pairs, n_ff], and the same as bf16. up_row: the first row of up, a
 * multiple of 16, where w has both. */
typedef struct expert_units {
    dev_mat y;
    dev_quant x;
    packed w, up;
    int32_t up_row;
    bool silu; /* instead of gelu */
    unit_rule unit;
    uint16_t *copy;
} expert_units;
bool cu_expert_units(cudaStream_t s, expert_units u, expert_lists l, int32_t k);
int cu_tall_experts_init(void);

#ifdef __cplusplus
}
#endif

#endif
