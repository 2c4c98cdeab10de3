/* snapshot.h - exact copies of what a cache needs to go on at a position, on the host.
 *
 * A snapshot at n holds the rows that queries from n - 1 on can see, so a cache it is loaded into
 * goes on at n, or at n - 1 (to compute a prompt's last token again), exactly as the one it was
 * taken of. Rows below n - window are not there: a loaded cache knows that and refuses to rewind
 * further (kv_can_rewind).
 *
 * References are counted and atomic; a filled snapshot never changes, so threads may read it. The
 * calls that take a cache belong to the thread that runs passes, between passes.
 */
#ifndef KV_SNAPSHOT_H
#define KV_SNAPSHOT_H

#include "kv/kv.h"

#include <stdatomic.h>

/* Rows [from, to) of every linear store: per store, stream and head, rows in order. */
typedef struct kv_segment {
    atomic_int refs;
    struct kv_segment *parent; /* rows below from; NULL: from == 0 */
    int64_t from, to;
    size_t n_bytes;
    unsigned char *rows;
    device *pin_dev; /* page-locked the rows; NULL: they are plain memory */
    bool filled;
    int64_t mark; /* for whoever counts shared segments once: its owner's thread only */
} kv_segment;

typedef struct kv_snapshot {
    atomic_int refs;
    int32_t n_views;
    kv_view *view; /* [n_views], of the layout it was taken under: shapes and types only */
    int64_t n;
    int32_t *ids; /* [n] */
    kv_segment *linear;
    unsigned char *rings; /* per ring, stream and head, rows max(0, n - window) .. n - 1 */
    size_t ring_bytes;
    device *pin_dev;  /* page-locked the rings; NULL: they are plain memory */
    size_t own_bytes; /* all that was allocated for this one: linear rows it shares do not count */
    bool filled, from_disk;
} kv_snapshot;

void kv_segment_keep(kv_segment *s); /* NULL is fine, here and below */
void kv_segment_drop(kv_segment *s);

/* Do the rings hold what a snapshot at n needs, now, and still after a pass of n_more rows? */
bool kv_can_save(const kv_cache *c, int64_t n, int32_t n_more);
/* Takes all memory for a snapshot of ids[0..n), to be filled later. base: a chain of segments whose
 * rows below base_n are those of the cache it will be filled from; NULL: none. */
status kv_snapshot_new(const kv_layout *l, const int32_t *ids, int64_t n, kv_segment *base,
                       int64_t base_n, kv_snapshot **out, err *e);
/* Copies the rows; segments of the chain that are not filled yet too. kv_can_save has said yes. */
void kv_snapshot_fill(kv_snapshot *s, kv_cache *c);
void kv_snapshot_keep(kv_snapshot *s);
void kv_snapshot_drop(kv_snapshot *s);

/* How much of n_same tokens in common a cache loaded with s could keep; 0 if none. */
int64_t kv_snapshot_usable(const kv_snapshot *s, int64_t n_same);
/* May it be loaded into caches of this layout? The sizes of rings and contexts may differ. */
bool kv_snapshot_fits(const kv_snapshot *s, const kv_layout *l);
bool kv_view_stores_alike(const kv_view *a, const kv_view *b);
/* Replaces what c holds. s is filled and fits. */
void kv_snapshot_load(const kv_snapshot *s, kv_cache *c);

/* Host bytes of the rings at n, and of n_rows of all linear stores. */
size_t kv_ring_bytes(const kv_layout *l, int64_t n);
size_t kv_linear_bytes(const kv_layout *l, int64_t n_rows);

#endif
