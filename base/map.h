/* map.h - whole files as read-only bytes, and files written whole or not at all.
 *
 * A file_map owns its mapping (or its copy, when read directly). A file_out writes to a temporary
 * beside the target and renames it into place on commit; anything else removes the temporary, so
 * no half file is ever left. One thread at a time per object.
 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/err.h"

typedef struct {
    const unsigned char *bytes;
    uint64_t n_bytes;
    bool mapped; /* munmap, else mem_pages_free */
} file_map;

/* direct: read into memory instead of mapping. progress may be NULL. */
status file_map_open(file_map *m, const char *path, bool direct, carat_progress_fn progress,
                     void *user, err *e);
void file_map_close(file_map *m); /* safe on a zeroed or closed map */
/* Drops the pages of bytes that will hardly be used again: they no longer count as memory of the
 * process, and the kernel reads them again if they are touched. Bytes outside of the mapping are
 * ignored. */
void file_map_forget(const file_map *m, const void *bytes, uint64_t n_bytes);

typedef struct {
    int fd;
    char *path, *temp;
    uint64_t at; /* bytes written so far */
    unsigned char *buf;
    size_t n_buf;
} file_out;

/* Follows symbolic links: the link stays and its target is written, which need not exist. */
status file_out_open(file_out *f, const char *path, err *e);
/* The same for a file that other users must not read: mode 0600. Replaces whatever has the name,
 * and never follows a link. */
status file_out_open_private(file_out *f, const char *path, err *e);
/* Reserves disk space for n_bytes, so that a full disk fails early. OK too on file systems that
 * cannot reserve. */
status file_out_reserve(file_out *f, uint64_t n_bytes, err *e);
status file_out_write(file_out *f, const void *bytes, size_t n, err *e);
status file_out_pad(file_out *f, uint64_t align, err *e); /* zeros up to a multiple */
/* Writes what is buffered. Until the commit f->temp is the file's path; of a device it is "". */
status file_out_flush(file_out *f, err *e);
/* n zeros: a hole, where the file system knows holes. */
status file_out_skip(file_out *f, uint64_t n, err *e);
status file_out_commit(file_out *f, err *e); /* flush, sync, rename; closes in any case */
void file_out_discard(file_out *f);          /* safe on a zeroed, committed or discarded file */

/* Writes a short file whole, in place of the one that has the name. Signals that end a program wait
 * meanwhile, so none leaves the temporary file. private: as file_out_open_private. */
status file_replace(const char *path, bool private, const void *bytes, size_t n, err *e);
/* Has the shell opened this file? <(COMMAND) is /dev/fd/N. Reading any other pipe could block for
 * ever. */
bool file_is_opened(const char *path);
/* Reads a whole regular file into memory, or a pipe or terminal for which file_is_opened. The
 * caller frees *bytes, [*n], with mem_free; a NUL follows the last byte. E_LIMIT: the file is
 * longer than max_bytes; E_IO, E_MEMORY: *bytes is NULL. */
status file_read_all(const char *path, uint64_t max_bytes, char **bytes, size_t *n, err *e);

#endif
