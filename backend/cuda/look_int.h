/* look_int.h - looks at pages of keys (page_look in backend/ops.h): page_look.cu, page_ops.c. */
#ifndef BACKEND_CUDA_LOOK_INT_H
#define BACKEND_CUDA_LOOK_INT_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#else
#include "backend/cuda/cuda_int.h"
#endif

/* q: [rows, heads head_dim]; pages first .. first + n - 1; to: [n][stride]. */
typedef struct look_args {
    dev_kv kv;
    dev_kv_base base;
    dev_mat q;
    float *to;
    float scale;
    int32_t group, first, n, stride;
} look_args;
void cu_look_pages(cudaStream_t s, look_args a);

#ifdef __cplusplus
}
#else
void cuda_look_pages(device *d, const kv_view *v, const kv_base *base, const page_look *l);
#endif
#endif
