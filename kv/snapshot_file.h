/* snapshot_file.h - a snapshot as a file.
 *
 *     magic, version | layout | ids | rings | linear | states | paging | table, checksums | end
 *
 * Files of models with recurrent layers have states. Files of tokens that were computed while keys
 * were away have the records of their pager (paging.h). The version says which of the two a file
 * has.
 *
 * Every section and the table have checksums, and the file ends with the table's size and a mark,
 * so a truncated file is recognised wherever it was cut. Numbers are little-endian; rows are in
 * logical order, independent of ring sizes. Files are untrusted: reading gives either a snapshot
 * that carat wrote completely for this model and layout, or an error.
 */
#ifndef KV_SNAPSHOT_FILE_H
#define KV_SNAPSHOT_FILE_H

#include "base/str.h"
#include "kv/snapshot.h"

enum { KV_FILE_VERSION = 1, KV_FILE_STATES = 1, KV_FILE_PAGING = 2 }; /* with them: more */
static inline uint32_t kv_file_version(int32_t n_recur, bool paging)
{
    return KV_FILE_VERSION + (n_recur ? KV_FILE_STATES : 0u) + (paging ? KV_FILE_PAGING : 0u);
}

/* Identifies keys and values: their weights and their layout. */
typedef struct kv_file_id {
    uint64_t model[2];
    str layout;         /* kv_layout_words */
    uint64_t pool;      /* of files to read: as kv_snapshot.pool */
    const int32_t *ids; /* of files to write, instead of the snapshot's; NULL: those */
} kv_file_id;

/* The shape and format of every store as text: everything that defines the meaning of a row. */
void kv_layout_words(const kv_layout *l, str *s);

/* Writes the file completely or not at all; only its owner may read it. */
status kv_snapshot_write(const kv_snapshot *k, const char *path, const kv_file_id *id,
                         uint64_t *n_bytes, err *e);
/* E_FORMAT: damaged, of another version, model or layout. E_IO: it cannot be read. */
status kv_snapshot_read(const char *path, const kv_file_id *id, const kv_layout *l,
                        kv_snapshot **out, err *e);
/* The same from an open file; path appears in messages. */
status kv_snapshot_read_fd(int fd, const char *path, const kv_file_id *id, const kv_layout *l,
                           kv_snapshot **out, err *e);

#endif
