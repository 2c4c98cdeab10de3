/* cache.h - the cache of Python's client of the hub (huggingface_hub), which llama-server uses too.
 *
 *     CACHE/models--OWNER--NAME/refs/main                   the commit, 40 digits
 *     CACHE/models--OWNER--NAME/snapshots/COMMIT/A/B.gguf   links to ../../../blobs/ETAG
 *
 * It is read and never written: its clients know when a file of it may go. Links are followed as
 * the kernel follows them, but for those in a snapshot that lead to folders: the clients make none,
 * and they may lead in circles. On file systems without links the files themselves are in
 * snapshots/.
 */
#ifndef APPS_HUB_CACHE_H
#define APPS_HUB_CACHE_H

#include "apps/hub/hub.h"

/* Appends the models of the cache to l: of each repository the commit of main, else the newest. */
status cache_read(const char *cache, model_list *l, err *e);
/* The path of a file of that content in the cache, of mem; NULL: it is not there, or no memory. */
const char *cache_find_blob(const char *cache, const char *repo, const char *sha256,
                            uint64_t n_bytes, arena *mem);

#endif
