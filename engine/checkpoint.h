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

status checkpoints_open(checkpoint_store **s, struct carat_model *m, const kv_layout *l,
                        uint64_t budget_bytes, err *e);
void checkpoints_close(checkpoint_store *s); /* NULL is fine */

/* The longest prefix of ids[0..n) that a cache could have, at least more than `above` tokens.
 * NULL: none. *usable < n: the last token is left to be computed. The store's, until its next
 * call. */
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
void checkpoints_info(const checkpoint_store *s, int64_t *n, uint64_t *n_bytes);

#endif
