/* page_sums.h - summaries of pages of keys, and the attention of queries to pages: layouts and
 * sizes. Kernels and the reference fill them (device.sum_pages, device.rescore_pages in ops.h).
 */
#ifndef BACKEND_PAGE_SUMS_H
#define BACKEND_PAGE_SUMS_H

#include "backend/mat.h"
#include "backend/step.h"

/* Summaries of pages of keys, by which a page is judged without reading it. A row is a page of
 * KV_PAGE keys of one KV head, in memory of the store's device.
 *
 *     PAGE_SUM_MEAN     the mean of the keys, bf16. The mean of a block of two pages is the mean of
 *                       their means. A NaN in a key stays one
 *     PAGE_SUM_BOUNDS   a middle m and a half width w of every dim: |k_i - m_i| <= w_i for each
 *                       key k of the page. So no product of a query q with a key of the page is
 *                       above sum_i q_i m_i + |q_i| w_i
 *
 * m and w are codes of 8 bits, signed and unsigned, times two scales in bf16 that PAGE_SUM_GROUP
 * dims share. A product of code and scale is exact in f32. A scale is 0, or at least 2^-100. In a
 * group with a NaN, or with m or w of 2^126 or more, codes are 0 and scales NaN.
 *
 *     at   int8 m [head_dim], uint8 w [head_dim]     [n_head_kv][n_rows]
 *          bf16 scale of m, of w                     [n_head_kv][n_rows][groups]
 *
 * The summaries are in the domain in which attention meets the keys: of a rotated format Rot k, so
 * queries are rotated once (num_rotate); of one stream the keys that are made of the values. Heads
 * have an even number of dims. */
enum {
    PAGE_SUM_MEAN = 1,
    PAGE_SUM_BOUNDS = 2,
    PAGE_SUM_GROUP = 128,
    PAGE_SUM_GROUPS_MAX = 8,
    PAGE_SUM_DIM_MAX = PAGE_SUM_GROUP * PAGE_SUM_GROUPS_MAX
};
typedef struct page_sums {
    void *at;       /* page_sums_bytes */
    int32_t n_rows; /* by page: the page at position pos has row pos / KV_PAGE */
    int32_t parts;  /* PAGE_SUM_MEAN: means; PAGE_SUM_BOUNDS: middles, half widths */
} page_sums;
static inline int32_t page_sum_groups(int32_t head_dim)
{
    return (head_dim + PAGE_SUM_GROUP - 1) / PAGE_SUM_GROUP;
}
/* Row `row` of head `head`. */
static inline size_t page_sum_row(const page_sums *s, int32_t head, int32_t row)
{
    return (size_t)head * (size_t)s->n_rows + (size_t)row;
}
/* The mean of a page: [head_dim]. */
static inline uint16_t *page_mean(const page_sums *s, const kv_view *v, int32_t head, int32_t row)
{
    return (uint16_t *)s->at + page_sum_row(s, head, row) * (size_t)v->head_dim;
}
/* Codes of middles [head_dim]; those of half widths are the next head_dim bytes. */
static inline int8_t *page_middles(const page_sums *s, const kv_view *v, int32_t head, int32_t row)
{
    return (int8_t *)s->at + page_sum_row(s, head, row) * 2 * (size_t)v->head_dim;
}
static inline uint8_t *page_widths(const page_sums *s, const kv_view *v, int32_t head, int32_t row)
{
    return (uint8_t *)page_middles(s, v, head, row) + v->head_dim;
}
/* Their scales: [groups][2]. */
static inline uint16_t *page_scales(const page_sums *s, const kv_view *v, int32_t head, int32_t row)
{
    return (uint16_t *)(void *)page_middles(s, v, v->n_head_kv, 0) +
           page_sum_row(s, head, row) * 2 * (size_t)page_sum_groups(v->head_dim);
}
/* Memory of a store's summaries. */
static inline size_t page_sums_bytes(const page_sums *s, const kv_view *v)
{
    size_t each = 2 * (size_t)v->head_dim; /* a mean, or the codes */
    if (s->parts == PAGE_SUM_BOUNDS)
        each += 2 * sizeof(uint16_t) * (size_t)page_sum_groups(v->head_dim);
    return page_sum_row(s, v->n_head_kv, 0) * each;
}

/* How much queries attend to each of n pages of a store: query j = r heads + h of q [rows, heads,
 * head_dim] to page i, the keys KV_PAGE (first + i) .. + KV_PAGE - 1 in the order of the store:
 *
 *     to[i stride + j] = log sum_t exp(scale q_j . k_t)
 *
 * -infinity where that is no number, or infinite. exp of it over the sum for all pages is the
 * page's share of the attention of j. */
typedef struct page_rescore {
    mat q; /* as attention gets them; memory of the device, like `to` */
    float scale;
    int32_t first, n;
    float *to;
    int32_t stride; /* rows heads of q, or more */
} page_rescore;

#endif
