/* snapshot.h - exact copies of a cache's state at a position, in host memory.
 *
 * A snapshot at n holds every row that a query at n - 1 or later can see. A cache that loads it
 * continues at n, or at n - 1 (to compute a prompt's last token again), bit for bit like the
 * original. It has no ring rows below n - window, so a loaded cache refuses to rewind further
 * (kv_can_rewind). The state of a recurrent layer is that of exactly n tokens: with such layers a
 * loaded cache continues at n alone, and a snapshot at n is filled while the cache is there.
 *
 * Linear rows are held in one of two ways: as the pages of the pool that they are in, which the
 * snapshot then keeps, or as rows in host memory. Pages cost nothing to take, and caches that load
 * them share them. kv_snapshot_to_rows gives them back to the pool.
 *
 * References are counted atomically. A filled snapshot of rows never changes, so any thread may
 * read it. One that holds pages belongs to the thread that runs passes, as do functions with a
 * kv_cache argument, between passes.
 */
#ifndef KV_SNAPSHOT_H
#define KV_SNAPSHOT_H

#include "kv/kv.h"

#include <stdatomic.h>

/* Rows [from, to) of every linear store. */
typedef struct kv_segment {
    atomic_int refs;
    struct kv_segment *parent; /* has the rows below `from`; NULL: from == 0 */
    int64_t from, to;
    kv_pool *pool; /* of `page`; outlives the segment. NULL: rows */
    kv_page *page; /* [n_pages]: those of rows `from` to `to`, the first and the last whole */
    int32_t n_pages;
    size_t n_bytes;      /* of host memory */
    unsigned char *rows; /* ordered by store, stream, head, row; NULL: pages */
    device *pin_dev;     /* page-locked the rows; NULL: they are plain memory */
    bool filled;
    int64_t mark; /* for counting shared segments once; owner's thread only */
} kv_segment;

/* How rows were computed. Rows of one way are never taken for those of another. */
typedef struct kv_way {
    uint64_t lossy; /* names what attention left out; 0: nothing */
    uint64_t lora;  /* names the adapters and their scales; 0: none */
} kv_way;
static inline bool kv_same_way(kv_way a, kv_way b)
{
    return a.lossy == b.lossy && a.lora == b.lora;
}

typedef struct kv_snapshot {
    atomic_int refs;
    int32_t n_views;
    kv_view *view; /* [n_views], whole stores of the original layout: shapes and types only */
    int64_t n;
    int32_t *ids; /* [n] */
    kv_segment *linear;
    unsigned char *rings; /* rows max(0, n - window) .. n - 1 per ring, stream and head */
    size_t ring_bytes;
    int32_t n_recur;
    recur_view *recur;     /* [n_recur], whole, of the original layout: shapes only */
    unsigned char *states; /* per recurrent layer: its state, its convolution's inputs, and
                              a started block of a prompt where n is inside one */
    size_t state_bytes;
    device *pin_dev;  /* page-locked the rings and states; NULL: they are plain memory */
    size_t own_bytes; /* memory of this snapshot without the linear rows it shares */
    bool filled, from_disk;
    kv_way way; /* whoever takes the snapshot sets it */
    /* What the pager of the cache knew; NULL: every token is exact. With it the linear rows are one
     * segment of rows. */
    struct kv_paging *paging;
    struct kv_snapshot *draft; /* of the drafter's own cache, at the same tokens; NULL: none */
} kv_snapshot;

void kv_segment_keep(kv_segment *s); /* NULL is fine, here and below */
void kv_segment_drop(kv_segment *s);

/* True if the rings and states hold what a snapshot at n needs, now and after a pass of n_more
 * rows.
 */
bool kv_can_save(const kv_cache *c, int64_t n, int32_t n_more);
/* What a snapshot is to be. */
typedef struct kv_snapshot_want {
    const kv_layout *layout;
    const int32_t *ids; /* [n] */
    int64_t n;
    kv_segment *base; /* a chain of segments whose rows below base_n equal those of the cache; NULL:
                         none */
    int64_t base_n;
    kv_pool *pool; /* of the cache: linear rows are held as its pages; NULL: as rows */
} kv_snapshot_want;
/* Allocates a snapshot, to be filled later. */
status kv_snapshot_new(const kv_snapshot_want *w, kv_snapshot **out, err *e);
/* The same of all tokens of a cache with a pager, exact or not, filled. E_LIMIT: rings have lost
 * what it needs. */
status kv_snapshot_lossy(kv_cache *c, const int32_t *ids, kv_snapshot **out, err *e);
/* Copies the rows, also into unfilled segments of the chain. kv_can_save must be true. */
void kv_snapshot_fill(kv_snapshot *s, kv_cache *c);
void kv_snapshot_keep(kv_snapshot *s);
void kv_snapshot_drop(kv_snapshot *s);

/* Of n_same common tokens, the number that a cache loaded with s could keep; 0: none. */
int64_t kv_snapshot_usable(const kv_snapshot *s, int64_t n_same);
/* Has the device of l page-lock n_bytes ahead of snapshots, by a thread of its own. Locked memory
 * stays locked, and later snapshots lie in it. A device that locks none is not asked. */
void kv_snapshot_lock_ahead(const kv_layout *l, size_t n_bytes);
/* Would a snapshot at n also do for a cache that goes on at m? */
bool kv_snapshot_serves(const kv_layout *l, int64_t n, int64_t m);
/* True if caches of this layout can load s. Sizes of rings and contexts may differ, and so may
 * splits, unless s has a started block of a prompt (recur_base.block). */
bool kv_snapshot_fits(const kv_snapshot *s, const kv_layout *l);
/* Replaces the contents of c. s must be filled and fit. E_LIMIT: the pool of c has too few free
 * pages; then nothing has changed. A cache with a pager may be empty after an error. */
status kv_snapshot_load(const kv_snapshot *s, kv_cache *c, err *e);
/* Free pages that loading s into c would take, after c has given back its own. */
int32_t kv_snapshot_pages(const kv_snapshot *s, const kv_cache *c);
/* Copies rows that s holds as pages to host memory, and gives the pages back. E_MEMORY: some may be
 * copied, and s is as good as before. */
status kv_snapshot_to_rows(kv_snapshot *s, err *e);
/* Host memory that this would take. */
size_t kv_snapshot_page_bytes(const kv_snapshot *s);

/* Host bytes of the recurrent layers and of the rings at n, and of n_rows of all linear stores. */
size_t kv_state_bytes(const kv_layout *l, int64_t n);
size_t kv_ring_bytes(const kv_layout *l, int64_t n);
size_t kv_linear_bytes(const kv_layout *l, int64_t n_rows);

#endif
