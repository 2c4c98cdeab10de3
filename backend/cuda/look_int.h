/* look_int.h - scores of pages by real attention (page_look in backend/ops.h): what page_ops.c
 * passes to page_look.cu. */
#ifndef BACKEND_CUDA_LOOK_INT_H
#define BACKEND_CUDA_LOOK_INT_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#else
#include "backend/cuda/cuda_int.h"
#endif

/* Queries q: [rows, heads * head_dim]. Keys: pages first .. first + n - 1 of the table in base. to:
 * [n][stride], for each page and query (row, head) the log of the sum of exponentials of its
 * products; group: query heads of a KV head. All pointers are device memory. */
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
