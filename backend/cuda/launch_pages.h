/* launch_pages.h - launchers that move rows and pages of stores, and summarise pages. */
#ifndef BACKEND_CUDA_LAUNCH_PAGES_H
#define BACKEND_CUDA_LAUNCH_PAGES_H

#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* keep_rows.cu: as device.keep_rows; from: as many as a tree has rows */
enum { KEEP_STORES = 64, KEEP_ROWS = 64 };
typedef struct keep_store {
    uint8_t *at;
    const dev_kv_page *page; /* or NULL */
    int32_t row_bytes, n_heads, n_slots;
} keep_store;
typedef struct keep_args {
    keep_store store[KEEP_STORES];
    int64_t first;
    int32_t n_stores, n;
    uint8_t from[KEEP_ROWS];
} keep_args;
void cu_keep_rows(cudaStream_t s, keep_args a);
/* pages.cu: pages of all stores, page from[i] to place to[i], for n of them */
enum { PAGE_COPIES = 64 };
typedef struct page_args {
    keep_store store[KEEP_STORES];
    int32_t from[PAGE_COPIES], to[PAGE_COPIES];
    int32_t n_stores, n;
} page_args;
void cu_pages(cudaStream_t s, page_args a);
/* A few words from the launch's own arguments. */
enum { PUT_WORDS = 512 };
typedef struct put_args {
    uint32_t *to;
    int32_t n;
    uint32_t word[PUT_WORDS];
} put_args;
void cu_put(cudaStream_t s, const put_args *a);
/* page_sums.cu: summaries of pages, as page_sums has them, of n pages from key PAGE_KEYS * first on
 * to rows from `row` on. */
typedef struct sums_args {
    dev_kv kv;
    dev_kv_base base;
    uint16_t *to;
    int32_t n_rows, parts; /* of `to` */
    int32_t first, row, n;
} sums_args;
void cu_sum_pages(cudaStream_t s, sums_args a);
/* page_watch of n rows from row0 on, and n_kv KV heads from head_kv0 on: PAGE_QUERIES queries at
 * most. room: PAGE_QUERIES floats for each page, and two more for each query. */
enum { PAGE_QUERIES = 64 };
typedef struct watch_args {
    dev_kv kv;
    dev_mat q;
    const uint16_t *sums;
    float *room, *score;
    const int32_t *n_pages; /* on the device: it changes between passes */
    int32_t n_rows, parts;  /* of sums; n_rows is the most pages */
    int32_t group, head_kv0, n_kv, row0, n;
    float scale;
} watch_args;
void cu_watch_pages(cudaStream_t s, watch_args a);

#ifdef __cplusplus
}
#endif

#endif
