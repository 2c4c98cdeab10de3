/* rescore.h - selecting pages at the end of a prompt by real attention, instead of bounds.
 *
 *     pass      its last rows vote for pages by bounds, and their queries are kept     (pass.h)
 *     rescore   kept queries x keys of some pages -> each page's share of each query's attention
 *     score     rescored pages: the sum of their shares; all others come after them, in
 *               the order of their votes
 *
 * A bound follows from the range of each dimension of a page's keys. It is far above any real
 * product. So bounds do not tell similar pages apart, and a low bound is no reason to leave a page
 * out. But the pages that are needed are nearly always in the quarter with the most votes. So that
 * quarter is rescored, and all pages of the pool.
 *
 * Rescoring moves no page. It copies keys of pages that are away to a buffer on the device, the
 * stage, some pages at a time. A pool has one stage, because it happens between passes. It takes
 * about as long as copying a quarter of the keys. Its result depends on pages and queries alone,
 * not on where copies lie.
 *
 * The thread that runs passes calls in, between passes.
 */
#ifndef KV_RESCORE_H
#define KV_RESCORE_H

#include "backend/pass.h"
#include "kv/kv.h"

enum {
    KV_RESCORE_ROWS = 8, /* rows whose queries are kept: the last ones of a prompt */
    KV_RESCORE_PART = 4, /* 1 / KV_RESCORE_PART of all pages are rescored, and those in the pool */
    KV_RESCORE_STAGED = 32 /* pages that the stage holds */
};

/* Added to the shares of a rescored page: more than any votes (pager.h). */
#define KV_LOOKED ((uint64_t)1 << 62)

typedef struct kv_rescore kv_rescore;

/* Opens the pool's stage, for caches with at most n_resident pages in the pool. query: [sides] the
 * queries of a row on each device. Does nothing if the pool has a stage. The pool owns and closes
 * it. E_MEMORY. */
status kv_rescore_open(kv_pool *p, int32_t n_resident, const page_query_size *query, err *e);
void kv_rescore_close(kv_pool *p); /* safe without one */
/* Bytes of a side's device: the stage. */
uint64_t kv_rescore_bytes(const kv_layout *l, const page_query_size *query, int32_t side);

/* A cache's memory for the queries of KV_RESCORE_ROWS rows, which the caller owns. query: [sides].
 * E_MEMORY: then *q is not whole and must be closed. */
status kv_queries_open(page_queries *q, const kv_cache *c, const page_query_size *query, err *e);
void kv_queries_close(page_queries *q, const kv_cache *c); /* safe on a zeroed one */
uint64_t kv_queries_bytes(const page_query_size *query);   /* of one side */

/* Of votes[n], those of c's first n pages, rescored pages get the sum of their shares, in votes, and
 * KV_LOOKED; the others stay. q: the queries that c's pager kept
 * in the pass of those votes. E_IO, E_FORMAT: a copy in the file cannot be read; votes is then of
 * no use. */
status kv_rescore_votes(kv_cache *c, const page_queries *q, uint64_t *votes, int32_t n,
                        err *e);

#endif
