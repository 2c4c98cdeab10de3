/* hub_rig.h - a hub and its storage on this machine, for tests: the same API, and every
 * misbehaviour.
 *
 * Two ports: the hub's, and the storage's, which is another origin. Each connection has a thread
 * and one request. The fields of `how` may be set between pulls.
 */
#ifndef TESTS_HUB_RIG_H
#define TESTS_HUB_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RIG_FILES = 16 };

typedef struct hub_rig_file {
    const char *path;
    unsigned char *bytes;
    size_t n;
    bool git;         /* not in LFS */
    const char *type; /* in the tree; NULL: "file" */
    char oid[65];     /* set by hub_rig_add; a test may falsify it */
    int64_t size;     /* in the tree; hub_rig_add: n */
    bool mapped;
} hub_rig_file;

typedef struct hub_rig_how {
    const char *token;       /* requests without it: 401 */
    const char *refuse_code; /* X-Error-Code of a refusal by refuse_status */
    const char *refuse_message;
    int refuse_status;     /* of every request to the hub */
    int busy_times;        /* so many answers of the hub are 429, */
    int busy_after;        /*   with this Retry-After; -1: RateLimit with r=0;t=0 */
    int page;              /* entries per page of the tree; 0: all */
    const char *next;      /* where the next page is said to be */
    bool portal;           /* every answer is a page for people to log in */
    const char *portal_to; /* every answer redirects there */
    bool rename;           /* the repository was renamed: 307 to "new/NAME", relative */
    bool no_storage;       /* the hub sends files itself, without redirects */
    bool no_ranges, gzip, no_commit;
    bool other_range, no_total, more_bytes;
    _Atomic bool other_bytes; /* this and bytes_per_ms may change while answers are sent */
    bool one_byte;            /* of every range */
    int cut_times;            /* so many answers of the storage end after cut_at bytes */
    size_t cut_at;
    int expire_times;   /* so many answers of the storage are 403 */
    int error_times;    /* so many are 503 */
    bool endless;       /* answers of the storage name no length and do not end */
    int endless_status; /* of these; 0: 200 */
    bool always_416, loop;
    const char *hits;            /* the answer to a search; NULL: the repository */
    bool endless_hits;           /* it does not end */
    _Atomic size_t bytes_per_ms; /* 0: no limit */
} hub_rig_how;

typedef struct hub_rig {
    const char *repo;
    hub_rig_file file[RIG_FILES];
    int n_files;
    hub_rig_how how;
    char endpoint[64], storage[64];
    int listener[2];
    pthread_t thread[2];
    atomic_int n_threads;
    atomic_bool stop;
    /* What was seen. */
    char searched[512]; /* the path of the last search */
    atomic_int n_api, n_head, n_get, n_busy, n_cut, n_expired, n_errors;
    atomic_int tokens_at_storage, tokens_at_hub, most_at_once, at_once;
    atomic_llong n_sent; /* bytes of files */
} hub_rig;

/* Starts both, for a repository OWNER/NAME. Sets HF_ENDPOINT, and empty folders as store and cache.
 */
void hub_rig_open(hub_rig *r, const char *repo);
void hub_rig_clear(hub_rig *r); /* without files, as it began; no request may be open */
void hub_rig_close(hub_rig *r);
/* Adds a file of n bytes that begins with "GGUF" and goes on with made-up ones. */
hub_rig_file *hub_rig_add(hub_rig *r, const char *path, size_t n);
/* Adds a file with this content; it is copied. */
hub_rig_file *hub_rig_add_bytes(hub_rig *r, const char *path, const void *bytes, size_t n,
                                bool git);
/* Adds a file of this machine, as long as it may be, with a made-up hash. */
hub_rig_file *hub_rig_add_file(hub_rig *r, const char *path, const char *from);

#endif
