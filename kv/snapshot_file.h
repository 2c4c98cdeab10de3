/* snapshot_file.h - a snapshot as a file.
 *
 *     magic, version | layout | ids | rings | linear | table of these four, checksums | end
 *
 * Every section has a checksum, the table too, and the file ends with the table's size and a mark,
 * so a file that was cut anywhere is not one. Numbers are little-endian; rows are in logical order
 * and know nothing of rings. Files come from outside: whatever they hold, reading gives a snapshot
 * that was written whole by carat for this model and layout, or an error.
 */
#ifndef KV_SNAPSHOT_FILE_H
#define KV_SNAPSHOT_FILE_H

#include "base/str.h"
#include "kv/snapshot.h"

enum { KV_FILE_VERSION = 1 };

/* Which keys and values: of which weights, laid out how. */
typedef struct kv_file_id {
    uint64_t model[2];
    str layout; /* kv_layout_words */
} kv_file_id;

/* Shapes and formats of every store as text, all that decides what a row's bytes mean. */
void kv_layout_words(const kv_layout *l, str *s);

/* Whole or not at all, readable by the owner only. */
status kv_snapshot_write(const kv_snapshot *k, const char *path, const kv_file_id *id,
                         uint64_t *n_bytes, err *e);
/* E_FORMAT: damaged, of another version, model or layout. E_IO: it cannot be read. */
status kv_snapshot_read(const char *path, const kv_file_id *id, const kv_layout *l,
                        kv_snapshot **out, err *e);
/* The same from an open file; path is for messages. */
status kv_snapshot_read_fd(int fd, const char *path, const kv_file_id *id, const kv_layout *l,
                           kv_snapshot **out, err *e);

#endif
