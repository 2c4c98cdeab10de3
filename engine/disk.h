/* disk.h - checkpoints that outlive the program: a directory of snapshot files with a budget.
 *
 * Files are named KEY-TOKENS-HASH.carat-kv. KEY identifies weights and layout, HASH the tokens, so
 * the longest prefix of a prompt is found without opening a file. A thread of the store writes.
 * Several programs may share a directory: a file appears complete, and a file that another program
 * has deleted counts as absent.
 *
 * A drafter's own keys have a file of their own, with another KEY and the same tokens. Without it,
 * as beside files of a program without that drafter, the drafter sees only what comes later.
 *
 * Tokens of pictures and sounds are named by their content (media_lasting).
 *
 * A model's files are the same on all devices and under all splits. Keys that others computed may
 * differ in last bits from those that a program would compute.
 *
 * Beyond that, no answer depends on a file. An unreadable file is removed and its tokens are
 * computed; a failed write is skipped. The last error message of either kind is kept for disk_info.
 *
 * find, load and offer belong to the thread that runs passes.
 */
#ifndef ENGINE_DISK_H
#define ENGINE_DISK_H

#include "kv/snapshot_file.h"
#include "model/model.h"

struct carat_model;

typedef struct disk_store disk_store;

/* What names the weights of a model in files of its keys. Reads samples of every tensor. */
status disk_identity(const model *m, uint64_t id[2], err *e);

/* Creates the directory if it is absent. A directory that cannot be used, or where other users may
 * change files, is an error. Files of other users are ignored. */
status disk_open(disk_store **d, const struct carat_model *m, const kv_layout *l, const char *dir,
                 uint64_t budget_bytes, err *e);
void disk_close(disk_store *d); /* writes queued snapshots first; NULL is allowed */
/* The drafter of the model: from now on the keys of its caches, of layout l, are written beside
 * each conversation, as a file of their own, and loaded with it. Once, before the first load or
 * offer. m outlives the call; l, the last load. */
void disk_know_drafter(disk_store *d, const model *m, const kv_layout *l);

/* way, pool: as of kv_snapshot; part of a file's name and of what it says of its rows. */
/* Loads the file with the longest prefix of ids[0..n), if that is longer than `above` tokens. NULL:
 * there is none. The caller owns the reference. */
kv_snapshot *disk_load(disk_store *d, kv_way way, uint64_t pool, const int32_t *ids, int64_t n,
                       int64_t above);
/* True if ids[0..n) have enough tokens that no file has. With a pool that is one: other tokens than
 * those of the last file would not be computed as they were. */
bool disk_wants(disk_store *d, kv_way way, uint64_t pool, const int32_t *ids, int64_t n);
/* Queues k for writing, if it has enough tokens that no file has. Takes its own reference. */
void disk_offer(disk_store *d, kv_snapshot *k);
/* Waits until each queued snapshot is a file, or has failed. */
void disk_settle(disk_store *d);
void disk_info(disk_store *d, carat_cache_info *info);

#endif
