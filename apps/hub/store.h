/* store.h - carat's own store of models.
 *
 *     STORE/blobs/sha256-HEX                 a file's content, by its SHA-256; several models may
 * use it STORE/blobs/sha256-HEX.part, .map      a pull in progress (part.h)
 *     STORE/models/OWNER/REPO/QUANT/FILE     links to ../../../../blobs/sha256-HEX
 *     STORE/models/OWNER/REPO/QUANT/manifest.json
 *     STORE/lock                             held while a model is entered or removed
 *
 * A model exists when its manifest does. A manifest is written last and removed first, by rename
 * and unlink, so a program that dies leaves a whole model or none. Blobs appear by rename after
 * their hash was checked. Removing takes the lock, and deletes blobs that no manifest names;
 * entering takes it too, and looks again that every blob is there. So no two programs can break
 * each other's models, also where file systems ignore locks: then an entered model may lack a blob,
 * which opening reports.
 */
#ifndef APPS_HUB_STORE_H
#define APPS_HUB_STORE_H

#include "apps/hub/hub.h"
#include "apps/hub/place.h"

enum { STORE_FILES_MAX = 9999, MANIFEST_MAX = 8 << 20 };

typedef struct store_file {
    const char *path; /* in the repository */
    char sha256[65];
    uint64_t n_bytes;
} store_file;

typedef struct manifest {
    const char *repo, *quant, *endpoint, *revision;
    char commit[65];
    int64_t pulled_s;
    store_file *file; /* [0] is opened */
    int32_t n_files;
    uint64_t n_bytes; /* of all files */
} manifest;

/* text: of a file called `what`. Every name in it is checked. Strings belong to mem. E_FORMAT. */
status manifest_parse(manifest *m, const char *text, size_t n, const char *what, arena *mem,
                      err *e);

typedef struct store_lock {
    int fd;
} store_lock;

/* Waits for it. Where the file system has no locks, it counts as taken. */
status store_lock_take(store_lock *l, const char *store, err *e);
void store_lock_drop(store_lock *l); /* safe on a dropped one; { -1 } is one */

/* Appends the models of the store to l. */
status store_read(const char *store, model_list *l, err *e);
/* Is this very version entered already, and can its first file be read? Then *path is it, of mem.
 */
bool store_has(const char *store, const manifest *m, arena *mem, const char **path);
/* Enters a model whose blobs are all there, in place of an older version of it, and gives the path
 * of its first file, of mem. The caller holds the lock, and has looked that the blobs are there. */
status store_enter(const char *store, const manifest *m, arena *mem, const char **path, err *e);
/* Removes the model with that name, and its blobs. Takes the lock. */
status store_remove(const char *store, const model_entry *entry, uint64_t *freed, err *e);

/* STORE/blobs/sha256-HEX + ending; NULL: no memory. */
const char *blob_path(arena *mem, const char *store, const char *sha256, const char *ending);
/* Adds room for one entry to l; NULL: no memory. */
model_entry *list_add(model_list *l);

#endif
