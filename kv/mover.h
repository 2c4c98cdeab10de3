/* mover.h - moves pages of a pool to the host and back, for every cache of the pool.
 *
 *     pool, one device or several                     host
 *     page p  of device 0   -- out -->  +----------+----------+
 *             of device 1   -- out -->  | device 0 | device 1 |   one copy, page_bytes
 *                                       +----------+----------+
 *                                       in memory, or, when the budget is spent, in a file
 *
 * A copy is packed: device after device, store after store, keys before values, head after head,
 * KV_PAGE rows each. A page that is full never changes, so its copy stays good when it comes back,
 * and the page leaves again without another copy. Whoever writes to a page drops its copies.
 *
 * A move that fails loses nothing: a page is the pool's until its copy is complete, and a copy
 * stays when its page has come back.
 *
 * The file has no name: it is gone when the program ends, in whatever way. Its pages have
 * checksums.
 *
 * Only the thread that runs passes may call in, between passes.
 */
#ifndef KV_MOVER_H
#define KV_MOVER_H

#include "kv/kv.h"

/* A page on the host; zeroed: there is none. */
typedef struct kv_copy {
    unsigned char *at; /* in memory; else NULL */
    int32_t slot;      /* in the file, from 1; else 0 */
} kv_copy;

static inline bool kv_copy_is(const kv_copy *c)
{
    return c->at || c->slot;
}

typedef struct kv_mover_want {
    int64_t host_bytes; /* most memory for copies; < 0: any amount */
    const char *dir;    /* where copies go beyond it; NULL: nowhere */
    int64_t file_bytes; /* most of them there */
} kv_mover_want;

/* What kv_mover_info tells. */
typedef struct kv_mover_info {
    int64_t n_memory, n_file; /* copies now */
    int64_t n_out, n_in;      /* pages copied, since open */
    uint64_t page_bytes;
} kv_mover_info;

/* The pool closes it. Pools without linear stores have none: OK, and pool->mover is NULL. */
status kv_mover_open(kv_pool *p, const kv_mover_want *w, err *e);
void kv_mover_close(kv_pool *p); /* safe without one. All copies have been dropped */
void kv_mover_get_info(const kv_pool *p, kv_mover_info *info);

/* How many more copies there is room for; -1: any number. */
int64_t kv_mover_room(const kv_pool *p);

typedef struct kv_move {
    int32_t page;  /* of the pool */
    kv_copy *copy; /* out: empty, and set; in: read */
} kv_move;

/* Copies pages to the host, in order; the pages stay as they are. *n_done of them came. E_LIMIT:
 * the budget is spent. E_MEMORY, E_IO, E_DEVICE. */
status kv_move_out(kv_pool *p, const kv_move *m, int32_t n, int32_t *n_done, err *e);
/* Copies to pages of the pool, ahead of the passes to come. Copies stay as they are. */
status kv_move_in(kv_pool *p, const kv_move *m, int32_t n, int32_t *n_done, err *e);
void kv_copy_drop(kv_pool *p, kv_copy *c); /* an empty one is fine */
/* Where the keys of store i, which is linear, begin in a packed page. */
size_t kv_packed_keys(const kv_pool *p, int32_t i);
/* The bytes of a copy, page_bytes, in `to`. E_IO, E_FORMAT: the file has lost them. */
status kv_copy_read(kv_pool *p, const kv_copy *c, unsigned char *to, err *e);

#endif
