/* listing.h - what the API of a hub says about a repository, from JSON to plain data. */
#ifndef APPS_HUB_LISTING_H
#define APPS_HUB_LISTING_H

#include "apps/hub/hub.h"

enum { LISTING_MAX = 100000 }; /* files of a repository that are looked at */

typedef struct hub_file {
    const char *path;
    char sha256[65];   /* of the content; "" for a file that is not in LFS */
    char git_sha1[41]; /* of a file that is not in LFS; "" otherwise */
    uint64_t n_bytes;
} hub_file;

typedef struct listing {
    char commit[41];
    bool gated;
    hub_file *file; /* with valid names only, in the hub's order */
    size_t n;
    arena mem;
} listing;

/* GET /api/models/ID/revision/REV: sets commit and gated. what: for sentences. E_FORMAT. */
status listing_take_revision(listing *l, const char *text, size_t n, const char *what, err *e);
/* GET /api/models/ID/tree/COMMIT, one page: appends its files. */
status listing_take_tree(listing *l, const char *text, size_t n, const char *what, err *e);
void listing_free(listing *l);
/* GET /api/models?search=...: a list of repositories. Entries without a valid name are left out,
 * and those beyond HUB_HITS_MAX. E_FORMAT. */
status listing_take_hits(hub_hits *h, const char *text, size_t n, err *e);

#endif
