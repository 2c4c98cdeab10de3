/* checkpoint.h - snapshots of conversations beside the live caches.
 *
 * A store holds snapshots of the timelines of one session or batch, in host memory, within a
 * budget; the snapshot of least worth is dropped first. Timelines ask it for the longest prefix of
 * a prompt.
 *
 * Snapshots are taken where the next prompt probably diverges from this one: at the end of the
 * prompt (the answer is regenerated, or its thoughts are left out of the history), at the start of
 * the last user turn (the message is edited), after the system prompt (another conversation shares
 * it), and of a timeline that a switch of conversations would discard. Memory for the first three
 * is reserved before the answer begins. Their rows are copied only when a ring is about to
 * overwrite them, so most turns copy nothing.
 *
 * Linear rows are held as pages of the pool that the timelines share, which costs nothing, and a
 * timeline that is restored shares them. When the pool runs short, the least valuable ones are
 * copied to host memory, within the budget, or dropped (checkpoints_free_pages).
 *
 * The state of a recurrent layer is that of one position, and the last token of a prompt is always
 * computed. So with such layers snapshots are taken when a pass ends there, and not at the end of
 * the prompt but where its answer's turn begins, or before its last token (timeline.c).
 *
 * The store belongs to the thread that runs passes.
 */
#ifndef ENGINE_CHECKPOINT_H
#define ENGINE_CHECKPOINT_H

#include "kv/snapshot.h"
#include "model/model.h"

struct timeline;
struct carat_model;

typedef struct checkpoint_store checkpoint_store;

/* The options of a store. */
typedef struct checkpoint_wish {
    uint64_t budget_bytes;
    const char *dir; /* NULL: nothing on disk */
    uint64_t dir_bytes;
} checkpoint_wish;

/* pool: of the timelines; outlives the store. */
status checkpoints_open(checkpoint_store **s, struct carat_model *m, kv_pool *pool,
                        const checkpoint_wish *wish, err *e);
void checkpoints_close(checkpoint_store *s); /* NULL is fine */
/* Page-locks the memory of the budget from now on, beside passes. Without it memory is locked when
 * the first checkpoints are taken, and a pass waits for that: ten times as long as for the copy.
 * For stores that live long. NULL is fine. */
void checkpoints_lock_ahead(checkpoint_store *s);
/* How much it locks, of a budget, where so many bytes are available; 0: that is not known. */
uint64_t checkpoints_ahead_bytes(uint64_t budget_bytes, uint64_t available_bytes);
/* From now on files hold the keys of that drafter's caches too, of layout l, which outlives the
 * last search. A failure leaves files without them. */
void checkpoints_know_drafter(checkpoint_store *s, const model *m, const kv_layout *l);

/* way, in what follows: how rows were computed. Snapshots that differ in it share nothing. */
/* The snapshot that gives a cache the longest prefix of ids[0..n), if that is longer than `above`
 * tokens; the directory is searched too. NULL: there is none. *usable, the length of the prefix, is
 * less than n, because the last token must be computed. The caller owns the reference. */
kv_snapshot *checkpoints_find(checkpoint_store *s, kv_way way, uint64_t pool, const int32_t *ids,
                              int64_t n, int64_t above, int64_t *usable);
/* Adds a filled snapshot; takes the reference. to_disk: the directory may keep it too. */
void checkpoints_put(checkpoint_store *s, kv_snapshot *k, bool to_disk);
/* Gives pages back until the pool has n free ones, of those that only snapshots of the store hold;
 * or snapshots and `also`, whose caller will give them back too (may be NULL). False: too few.
 * Takes the lock of passes. s may be NULL. */
bool checkpoints_free_pages(checkpoint_store *s, int32_t n, const kv_cache *also);
/* Lets go of a page, or of all (-1), as checkpoints_free_pages does. s may be NULL. */
void checkpoints_leave_page(checkpoint_store *s, int32_t page);
/* True if the store has a snapshot of exactly ids[0..n). */
bool checkpoints_have(const checkpoint_store *s, kv_way way, const int32_t *ids, int64_t n);
/* Drops snapshots until n_bytes fit; false: they exceed the budget. */
bool checkpoints_make_room(checkpoint_store *s, uint64_t n_bytes);
/* A snapshot of n_bytes may be reserved, to be filled later. Between `begin` and `end` its memory is
 * part of the budget; in between own_bytes does not change. */
bool checkpoints_may_wait(const checkpoint_store *s, uint64_t n_bytes);
void checkpoints_begin_wait(checkpoint_store *s, const kv_snapshot *k);
void checkpoints_end_wait(checkpoint_store *s, const kv_snapshot *k);
/* The positions in ids[0..n) where snapshots are useful, ascending; at most CUTS_MAX. */
enum { CUTS_MAX = 4 };
int32_t checkpoints_cuts(const checkpoint_store *s, const int32_t *ids, int64_t n,
                         int64_t cut[CUTS_MAX]);
/* True if a snapshot of ids[0..n) would be written to the directory. */
bool checkpoints_on_disk_wanted(checkpoint_store *s, kv_way way, uint64_t pool, const int32_t *ids,
                                int64_t n);
/* k becomes a file and no checkpoint in memory, if the store has a directory. The store takes its
 * own reference. */
void checkpoints_to_disk(checkpoint_store *s, kv_snapshot *k);
void checkpoints_settle(checkpoint_store *s); /* waits for files that are being written */
void checkpoints_info(checkpoint_store *s, carat_cache_info *info);

#endif
