/* plan_only.h - a CUDA device without a GPU, in every build: it answers plans and dry passes alone.
 * And the number of GPUs that are here. */
#ifndef BACKEND_CUDA_PLAN_ONLY_H
#define BACKEND_CUDA_PLAN_ONLY_H

#include "backend/ops.h"

/* The device has n_bytes of free memory and is of compute capability `card`; NULL: "8.6". E_ARG:
 * an unknown one. *d is NULL after a failure. */
status device_plan_cuda(device **d, const char *card, uint64_t n_bytes, err *e);

/* 0: none can be used, or the build is without CUDA. */
int32_t device_count_cuda(void);

#endif
