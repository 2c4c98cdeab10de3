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
/* pages.cu: a few words from the launch's own arguments. */
enum { PUT_WORDS = 512 };
typedef struct put_args {
    uint32_t *to;
    int32_t n;
    uint32_t word[PUT_WORDS];
} put_args;
void cu_put(cudaStream_t s, const put_args *a);
/* Dims that share two scales of bounds. */
enum { SUM_GROUP = 128 };
/* page_sums.cu: summaries of pages, as page_sums has them, of n pages from key PAGE_KEYS * first on
 * to rows from `row` on. */
typedef struct sums_args {
    dev_kv kv;
    dev_kv_base base;
    void *to;
    int32_t n_rows, parts; /* of `to` */
    int32_t first, row, n;
    uint32_t *scales; /* of bounds: pairs of bf16, as page_scales has them */
} sums_args;
void cu_sum_pages(cudaStream_t s, sums_args a);
/* page_watch: a pass keeps the queries of its layers, and asks all of them at once.
 * A job has the queries of n rows and of n_kv KV heads from head_kv0 on: PAGE_QUERIES at most. */
enum { PAGE_QUERIES = 64, WATCH_JOBS = 64, PAGE_VOTE = 30 };
typedef struct watch_job {
    const void *sums;
    const uint32_t *scales;
    float *room;    /* [PAGE_QUERIES][n_pages] */
    float *stats;   /* [PAGE_QUERIES][2] */
    float *queries; /* as cu_keep_queries leaves them */
    unsigned long long *votes; /* [n_pages]: shares are added */
    int16_t watch;  /* its number of pages is n_pages[watch] */
    int16_t head_kv0, n_kv, n;
} watch_job;
typedef struct watch_args {
    const int32_t *n_pages; /* on the device: it changes between passes */
    int32_t head_dim, group;
    int32_t n_rows, parts; /* of sums; n_rows is the most pages */
    int32_t n_jobs;
    watch_job job[WATCH_JOBS];
} watch_args;
/* Queries of n rows from row0 on to [n][n_kv][group][head_dim], as keys are stored, and scaled. */
typedef struct query_args {
    dev_mat q;
    float *to;
    int32_t head_dim, group, head_kv0, n_kv, row0, n;
    bool rot;
    float scale;
} query_args;
void cu_keep_queries(cudaStream_t s, query_args a);
void cu_watch_pages(cudaStream_t s, const watch_args *a);

#ifdef __cplusplus
}
#endif

#endif
