/* page_rescore_int.h - scores of pages by real attention (page_rescore in backend/ops.h): what
 * page_ops.c passes to page_rescore.cu. */
#ifndef BACKEND_CUDA_RESCORE_INT_H
#define BACKEND_CUDA_RESCORE_INT_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#else
#include "backend/cuda/cuda_int.h"
#endif

/* Queries q: [rows, heads * head_dim]. Keys: pages first .. first + n - 1 of the table in base. to:
 * [n][stride], for each page and query (row, head) the log of the sum of exponentials of its
 * products; group: query heads of a KV head. All pointers are device memory. */
typedef struct page_rescore_args {
    dev_kv kv;
    dev_kv_base base;
    dev_mat q;
    float *to;
    float scale;
    int32_t group, first, n, stride;
} page_rescore_args;
void cu_rescore_pages(cudaStream_t s, page_rescore_args a);

#ifdef __cplusplus
}
#else
void cuda_rescore_pages(device *d, const kv_view *v, const kv_base *base, const page_rescore *l);
#endif
#endif
