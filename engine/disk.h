/* disk.h - checkpoints that outlive the program: a directory of snapshot files with a budget.
 *
 * Files are named KEY-TOKENS-HASH.carat-kv: the key says which weights and layout, the hash which
 * tokens, so finding the longest prefix of a prompt opens no file. Writing happens on a thread of
 * the store's own. Several programs may use one directory: files appear whole, and one that is
 * gone when it is opened was never there.
 *
 * Nothing here is needed for an answer: what cannot be read is removed and computed, what cannot be
 * written is not. The last sentence about either is kept for whoever asks.
 *
 * find, load and offer belong to the thread that runs passes.
 */
#ifndef ENGINE_DISK_H
#define ENGINE_DISK_H

#include "kv/snapshot_file.h"

struct carat_model;

typedef struct disk_store disk_store;

/* The directory is made if it is not there; one that cannot be used, or that other users may change
 * files in, is an error. Files of other users are not there. */
status disk_open(disk_store **d, const struct carat_model *m, const kv_layout *l, const char *dir,
                 uint64_t budget_bytes, err *e);
void disk_close(disk_store *d); /* writes what was offered; NULL is fine */

/* Loads the file with the longest prefix of ids[0..n), if that is more than `above` tokens. NULL:
 * none. The caller's reference. */
kv_snapshot *disk_load(disk_store *d, const int32_t *ids, int64_t n, int64_t above);
/* Do ids[0..n) hold enough that no file has? */
bool disk_wants(disk_store *d, const int32_t *ids, int64_t n);
/* To be written, if it holds enough that no file has. Takes a reference of its own. */
void disk_offer(disk_store *d, kv_snapshot *k);
void disk_info(disk_store *d, carat_cache_info *info);

#endif
