/* checkpoint.h - what a model remembers of conversations beyond the live caches.
 *
 * A store holds snapshots of the timelines of one session or batch, in host memory, within a
 * budget; what is worth least goes first. Timelines ask it for the longest prefix of a prompt.
 *
 * Snapshots are taken where the next prompt is likely to part from this one: at the end of a
 * prompt (the answer is regenerated, or its thoughts are left out of the history), at the start of
 * the last user's turn (the message is edited), after the system prompt (another conversation
 * begins alike), and of what a switch of conversations would throw away. Memory for the first
 * three is taken before the answer begins, and the rows are copied only when a ring is about to
 * overwrite them: most turns copy nothing.
 *
 * Belongs to the thread that runs passes.
 */
#ifndef ENGINE_CHECKPOINT_H
#define ENGINE_CHECKPOINT_H

#include "kv/snapshot.h"

struct timeline;
struct carat_model;

typedef struct checkpoint_store checkpoint_store;

/* What the caller asked for. */
typedef struct checkpoint_wish {
    uint64_t budget_bytes;
    const char *dir; /* NULL: nothing on disk */
    uint64_t dir_bytes;
} checkpoint_wish;

status checkpoints_open(checkpoint_store **s, struct carat_model *m, const kv_layout *l,
                        const checkpoint_wish *wish, err *e);
void checkpoints_close(checkpoint_store *s); /* NULL is fine */

/* A snapshot with the longest prefix of ids[0..n) that a cache could have, if that is more than
 * `above` tokens; from the directory if that has a longer one. NULL: none. *usable < n: the last
 * token is left to be computed. The caller's reference. */
kv_snapshot *checkpoints_find(checkpoint_store *s, const int32_t *ids, int64_t n, int64_t above,
                              int64_t *usable);
/* Puts a filled snapshot in; takes the reference. */
void checkpoints_put(checkpoint_store *s, kv_snapshot *k);
/* Is there one of exactly ids[0..n)? */
bool checkpoints_have(const checkpoint_store *s, const int32_t *ids, int64_t n);
/* Makes room for n_bytes; false: they would never fit. */
bool checkpoints_make_room(checkpoint_store *s, uint64_t n_bytes);
/* The positions of ids[0..n) where snapshots are worth having, ascending; at most CUTS_MAX. */
enum { CUTS_MAX = 4 };
int32_t checkpoints_cuts(const checkpoint_store *s, const int32_t *ids, int64_t n,
                         int64_t cut[CUTS_MAX]);
/* Would one of ids[0..n) be written to the directory? */
bool checkpoints_on_disk_wanted(checkpoint_store *s, const int32_t *ids, int64_t n);
void checkpoints_info(checkpoint_store *s, carat_cache_info *info);

#endif
