/* part.h - a file that is being pulled: its bytes so far, and which of them are there.
 *
 *     BLOB.part   the file at its full length; holes where nothing has come yet
 *     BLOB.map    8 bytes of magic, the length (8 bytes, little-endian), then a byte for each chunk
 *                 of PART_CHUNK bytes: 1 if all of it is there
 *
 * A chunk's byte is written after the chunk. So what a killed program leaves continues where it
 * stopped; what a machine without power leaves may claim more than reached the disk, and the hash
 * at the end tells. The lock (flock of BLOB.part) belongs to one pull at a time; the file system
 * keeps it for a program that dies.
 */
#ifndef APPS_HUB_PART_H
#define APPS_HUB_PART_H

#include "base/arena.h"
#include "base/err.h"

enum { PART_CHUNK = 256 << 10 };

enum { PART_MISSING, PART_HERE, PART_CLAIMED }; /* claimed: a connection brings it */

typedef struct part {
    int fd, map_fd;
    char *path, *map_path;
    uint64_t n_bytes, n_chunks;
    unsigned char *chunk; /* [n_chunks] PART_* */
    uint64_t n_here;      /* bytes of chunks that are here */
    bool resumed;         /* some of them were here when it was opened */
} part;

typedef enum part_state {
    PART_OPEN,
    PART_BUSY, /* another pull has the lock; p is closed: try again later */
    PART_DONE  /* the blob is there; p is closed */
} part_state;

/* blob: the path of the finished file. E_IO: the disk has no room (a sentence with both sizes), or
 * cannot be written. */
status part_open(part *p, const char *blob, uint64_t n_bytes, part_state *state, err *e);
void part_close(part *p); /* keeps what is there; safe on a zeroed or closed part */
status part_write(part *p, uint64_t at, const void *bytes, size_t n, err *e);
status part_mark(part *p, uint64_t chunk, err *e); /* all of its bytes were written */
uint64_t part_end(const part *p, uint64_t chunk);  /* where it ends in the file */
status part_read(const part *p, uint64_t at, void *bytes, size_t n, err *e);
status part_restart(part *p, err *e); /* forgets all bytes */
/* The file is whole: to disk, read-only, under its name. Closes it. */
status part_finish(part *p, const char *blob, err *e);
void part_drop(part *p); /* closes it and removes what is there */

#endif
