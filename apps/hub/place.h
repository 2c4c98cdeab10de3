/* place.h - the environment of hub/: folders, the hub's address, its token. Read here and nowhere
 * else.
 */
#ifndef APPS_HUB_PLACE_H
#define APPS_HUB_PLACE_H

#include "base/arena.h"
#include "base/err.h"

typedef struct place {
    const char *store;      /* $XDG_DATA_HOME/carat; NULL: there is no home directory */
    const char *hf_cache;   /* the folder with models--OWNER--NAME; NULL as above */
    const char *endpoint;   /* "https://huggingface.co", without a slash at its end */
    const char *token;      /* NULL: none, or not to be sent unasked */
    const char *token_from; /* where it came from, for messages */
    bool offline;           /* HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE */
    arena mem;
} place;

/* with_token: reads the token too, for which E_FORMAT says that it cannot be one. */
status place_read(place *p, bool with_token, err *e);
void place_free(place *p);

/* A variable of the XDG specification: $name/tail if that is absolute, else $HOME/home/tail; NULL
 * without a home directory or memory. Belongs to mem. */
const char *xdg_path(arena *mem, const char *name, const char *home, const char *tail);
/* Makes a directory and those above it, 0700. */
status make_dirs(const char *path, err *e);
/* a/b, of mem; NULL: no memory. */
const char *path_join(arena *mem, const char *a, const char *b);

#endif
