/* matmul_cuda.h - the parts of bench_matmul_cuda. */
#ifndef BENCH_MATMUL_CUDA_H
#define BENCH_MATMUL_CUDA_H

#include "backend/ops.h"

/* matmul_cuda_long.c: products whose names have `only` in them; by_shape: of matmul_tall_hopper.cu.
 * Returns an exit status. */
int bench_long(device *d, const char *only, bool by_shape);
/* matmul_cuda_experts.c: experts of prompts whose names have `only` in them. */
int bench_experts(device *d, const char *only);

#endif
