/* look.h - what the end of a prompt really attends to: shares of pages instead of bounds.
 *
 *     pass      its last rows vote for pages by bounds, and their queries are kept      (pass.h)
 *     then      pages in the pool, and the best of those that are away  -- keys -->  shares
 *     score     shares of pages that were looked at, then the others in the order of their votes
 *
 * Bounds of a page are the extreme values of each dim: far above any real product. They do not
 * tell pages of one kind apart, and no page can be left out because its bound is low. But what
 * is needed is nearly always among the best quarter by votes: so many are looked at. A look moves
 * no page. Keys of pages that are away are copied to a stage, some pages at a time.
 *
 * A pool has one stage; a look takes place between passes. It takes as long as a quarter of the
 * keys take to come. It depends on the pages and queries alone, not on where copies lie.
 */
#ifndef KV_LOOK_H
#define KV_LOOK_H

#include "backend/pass.h"
#include "kv/kv.h"

enum {
    KV_LOOK_ROWS = 8,   /* queries of so many rows */
    KV_LOOK_PART = 4,   /* of the pages one in so many is looked at, and those in the pool */
    KV_LOOK_STAGED = 32 /* pages on the stage */
};

typedef struct kv_look kv_look;

/* The pool's stage, for caches with at most n_resident pages in it; query: by side. Nothing happens
 * if it has one. The pool closes it. */
status kv_look_open(kv_pool *p, int32_t n_resident, const page_query_size *query, err *e);
void kv_look_close(kv_pool *p); /* safe without one */
/* Bytes of a side's device: the stage. */
uint64_t kv_look_bytes(const kv_layout *l, const page_query_size *query, int32_t side);

/* A cache's lists and memory for the queries of KV_LOOK_ROWS rows. */
status kv_queries_open(page_queries *q, const kv_cache *c, const page_query_size *query, err *e);
void kv_queries_close(page_queries *q, const kv_cache *c); /* safe on a zeroed one */
uint64_t kv_queries_bytes(const page_query_size *query);   /* of one side */

/* Replaces the votes of c's first n pages by scores. c has a pager, whose queries those are.
 * Between passes. E_IO, E_FORMAT: a copy in the file cannot be read; the votes are then lost. */
status kv_look_at(kv_cache *c, const page_queries *q, float *votes, int32_t n, err *e);

#endif
