/* download.h - the bytes of one file of a hub, by several connections, checked.
 *
 *     file   |####....|########|##......|........|   chunks of part.h: here (#) or missing (.)
 *             conn. 0   done     conn. 1  missing
 *
 * Each connection asks for a run of missing chunks. What fails is asked for again, from where it
 * stopped. One thread does it all: it moves the bytes that have come (libcurl's multi interface),
 * and between that hashes the file from its beginning as far as it is whole.
 */
#ifndef APPS_HUB_DOWNLOAD_H
#define APPS_HUB_DOWNLOAD_H

#include "apps/hub/listing.h"
#include "apps/hub/net.h"

typedef struct download {
    net *net;
    const char *repo, *url; /* url: of the file at the hub (resolve) */
    const hub_file *file;
    const char *blob; /* where it goes; BLOB.part lies beside it */
    int connections;
    /* Progress, for the caller to show. Only the calling thread writes it. */
    uint64_t n_here, n_hashed, n_came;
    const char *note;
    /* Called once with the first chunk of the file, before other chunks are asked for; may be NULL.
     * Another status than OK ends the download, and nothing of the file stays. */
    status (*check_head)(const struct download *d, const void *bytes, size_t n, err *e);
    char digest[65]; /* the file's SHA-256, when it is done */
} download;

/* Pulls the file, unless it is there. Two at once: the second waits for the first. E_CANCELLED and
 * most of E_IO: the bytes received so far stay for the next call. E_FORMAT: the content is not what
 * the hub announced. */
status download_file(download *d, err *e);
/* The SHA-256 of a file, and its git SHA-1. Ticks. */
status hash_file(net *n, const char *path, uint64_t n_bytes, char sha256_out[65], char git_out[41],
                 uint64_t *n_hashed, err *e);

#endif
