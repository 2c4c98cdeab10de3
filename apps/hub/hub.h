/* hub.h - models by name: what lies on this machine, and pulling from a hub.
 *
 * A name is OWNER/REPO:QUANT, as the Hugging Face hub has it. Parts of it may be left out as long
 * as one model fits. Files are in a store of carat's own (docs/models.md), or in the cache of
 * Python's client, which is read and never written.
 *
 * Every call works on files alone, keeps no state between calls and may come from any thread, also
 * while other processes pull or remove. The environment (HF_HOME, XDG_DATA_HOME ...) is read in
 * place.c at each call. Failures leave a sentence for the user.
 */
#ifndef APPS_HUB_HUB_H
#define APPS_HUB_HUB_H

#include "base/arena.h"
#include "base/err.h"

typedef enum model_where {
    MODEL_PATH,    /* a file that the user named */
    MODEL_STORE,   /* carat's store */
    MODEL_HF_CACHE /* the cache of Python's client */
} model_where;

typedef struct model_entry {
    const char *name;  /* "OWNER/REPO:QUANT" */
    const char *repo;  /* "OWNER/REPO" */
    const char *quant; /* "Q4_K_M"; the file's own name where that says no quantisation */
    const char *path;  /* the file to open; the first of a split set */
    char digest[65];   /* SHA-256 of that file, lower-case hexadecimal; "" where it is unknown */
    uint64_t n_bytes;  /* of all files of the model */
    int32_t n_files;
    int64_t when_s; /* seconds since 1970: pulled then; in the cache: the file's time */
    model_where where;
} model_entry;

/* All models that have a name, newest first; the strings belong to the list. */
typedef struct model_list {
    model_entry *at;
    size_t n;
    arena mem;
} model_list;

/* OK with n = 0 where there is no store and no cache. What is damaged or hostile is left out. */
status model_list_read(model_list *l, err *e);
void model_list_free(model_list *l); /* safe on a zeroed or freed list */

typedef struct model_found {
    char *path; /* the file to open */
    char *name; /* OWNER/REPO:QUANT, or the path */
    model_where where;
} model_found;

/* What the user typed to a file: an existing file, or NAME of a model on this machine: REPO,
 * REPO:QUANT, OWNER/REPO or OWNER/REPO:QUANT, in any case, "-GGUF" left out or not. Without QUANT:
 * Q4_K_M, else Q8_0, else the newest. Opens no connection. E_ARG: there is none, or several fit;
 * the sentence says what is there. */
status model_find(const char *what, model_found *out, err *e);
void model_found_free(model_found *f); /* safe on a zeroed or freed one */

/* Is this the name of a model on this machine? As model_find, but a path never counts. */
bool model_known(const char *what);

/* The vision tower beside a model file: of the mmproj files of its directory whose embeddings are
 * as wide as the model's, BF16 before F16 before Q8_0. *out NULL: there is none, or carat knows no
 * tower for such models. The caller frees it with mem_free. E_MEMORY. */
status mmproj_find(const char *model, char **out, err *e);
/* Does the file of a tower say that it has an audio tower, too? */
bool mmproj_hears(const char *path);
/* What a model does with it, in words; path NULL: "". */
const char *mmproj_gives(const char *path);
/* Does carat know towers for models of this file's architecture? */
bool mmproj_may_fit(const char *model);

/* Removes a model from the store, and its files unless another model shares them; or one that is
 * made of another (made.h), by its whole name. *freed: bytes of disk that this gave back. E_ARG: as
 * model_find; a model of the cache is not carat's to remove, and one that others are made of stays.
 */
status model_remove(const char *what, uint64_t *freed, err *e);

/* ---- Pulling ----------------------------------------------------------------------------- */

typedef enum hub_phase {
    HUB_LISTING,  /* which files there are */
    HUB_PULLING,  /* bytes of `file` arrive */
    HUB_CHECKING, /* `file` is hashed */
    HUB_WRITING,  /* the model gets its name */
    HUB_DONE
} hub_phase;

typedef struct hub_progress {
    hub_phase phase;
    const char *file;             /* its path in the repository; "" in HUB_LISTING */
    const char *digest;           /* its SHA-256; "" where the hub has none */
    uint64_t done, total;         /* bytes of that file */
    uint64_t all_done, all_total; /* bytes of all files of the model */
    uint64_t came;                /* bytes that this pull has had sent */
    const char
        *note; /* why it waits, or what it retries, as a sentence; "" when nothing is wrong */
} hub_progress;

/* Called by the thread that pulls, at least every 100 ms. False cancels. */
typedef bool (*hub_progress_fn)(void *user, const hub_progress *p);

typedef struct hub_ask {
    const char *what;     /* OWNER/REPO, OWNER/REPO:QUANT, or an address of the hub with these */
    const char *file;     /* a path in the repository instead of QUANT; may be NULL */
    const char *revision; /* a branch, tag or commit; NULL: main */
    bool no_mmproj;       /* not its vision tower, which lies in the same repository */
    int connections;      /* side by side for one file; 0: 4 */
    hub_progress_fn progress;
    void *user;
} hub_ask;

/* Makes a model of the hub one of the store, and finds it. Bytes that are there already are not
 * pulled again: files of other models, of the cache, and of an interrupted pull. E_CANCELLED: the
 * same call continues. E_IO: the network, the disk or the hub failed; E_ARG: the hub has no such
 * model or file; E_FORMAT: the hub's answer or a file is damaged. */
status hub_pull(const hub_ask *ask, model_found *out, err *e);

/* ---- Finding -------------------------------------------------------------------------------- */

enum { HUB_HITS_MAX = 30 };

/* A repository of a hub that has GGUF files. Numbers are what the hub says. */
typedef struct hub_hit {
    char repo[256];   /* OWNER/REPO */
    char changed[11]; /* "2026-11-29"; "" where the hub says none */
    uint64_t downloads, likes;
    bool gated; /* its licence must be accepted first */
} hub_hit;

typedef struct hub_hits {
    hub_hit at[HUB_HITS_MAX];
    int n;
} hub_hits;

/* Asks the hub for repositories of GGUF files by words, those with the most downloads first.
 * E_IO: it cannot be reached, or gave no whole answer within 20 s; E_CANCELLED by progress, which
 * is called at least every 100 ms; E_FORMAT. */
status hub_search(const char *words, hub_progress_fn progress, void *user, hub_hits *out, err *e);

/* ---- Before a pull -------------------------------------------------------------------------- */

/* Another model of a repository: the same with other types of weights. */
typedef struct hub_other {
    char quant[128];
    uint64_t n_bytes;
} hub_other;

/* A model of a hub that is not pulled: the file that hub_pull would take. */
typedef struct hub_view {
    char name[384]; /* OWNER/REPO:QUANT */
    char *path;     /* a file with its head and its size: a model to open with vocab_only; its
                       tower lies beside it */
    int n_files;
    uint64_t n_bytes, tower_bytes; /* of the model; of the vision tower that comes along */
    hub_other *other;              /* all with a quantisation, this one too; the largest first */
    size_t n_others;
    char *dir; /* of path, and nothing else */
    arena mem;
} hub_view;

/* Reads the listing and the head of the model's files. Statuses as hub_pull. */
status hub_preview(const hub_ask *ask, hub_view *v, err *e);
/* Takes the folder of v->path out of a sentence about that file. */
void hub_view_sentence(const hub_view *v, err *e);
void hub_view_free(hub_view *v); /* safe on a zeroed or freed one */

#endif
