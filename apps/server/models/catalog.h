/* catalog.h - the models of a server by name: loaded on demand, unloaded when they are idle.
 *
 *     a request names a model -> loaded: it takes a reference
 *                             -> else it waits in line; the loader makes room and loads
 *     no reference for --keep-alive, or the memory is wanted: the loader unloads
 *
 * An offer is a model that the server may load. Offers are made from the options (offers.c) and
 * live until the catalog is closed. One thread loads and unloads (loader.c), one model at a time,
 * so that two plans never count the same memory. Passes of loaded models go on meanwhile.
 *
 * A server with one offer loads it at the start and keeps it. It takes any name but those of other
 * models on this machine: it never answers in the name of a model that somebody may mean. A server
 * whose options name no model does the same with the bundled one, and offers every model of this
 * machine beside it. The offer that is kept so leads.
 *
 * Any thread may call in, unless a call says otherwise.
 */
#ifndef APPS_SERVER_CATALOG_H
#define APPS_SERVER_CATALOG_H

#include "apps/server/models/served.h"

typedef struct catalog catalog;
typedef struct offer offer;
struct exchange;

enum { KEEP_ALIVE_MS = 5 * 60 * 1000 }; /* of several models, unless options say */

/* Reads the options' models. E_ARG, E_IO: a name or a directory that is not there. */
status catalog_open(catalog **c, server *s, err *e);
/* Starts the thread that loads. */
status catalog_start(catalog *c, err *e);
/* Waits until the first offer is loaded. The error is that of loading. */
status catalog_load_first(catalog *c, err *e);
/* Ends loading and the thread, once the server drains. Waiting requests get their answer. */
void catalog_stop(catalog *c);
/* Unloads all. Nobody has a reference; NULL is fine. */
void catalog_close(catalog *c);

/* ---- Requests ---- */

typedef enum pick_state { PICK_DONE, PICK_WAITS, PICK_FAILED } pick_state;

/* Takes a reference to the model as x->m, or gets in line for it (x->wanted). NULL and "": the
 * first offer. PICK_FAILED: p says why. */
pick_state catalog_pick(catalog *c, const char *name, struct exchange *x, problem *p);
/* Goes on with a pick that waits, for timeout_ms at most (< 0: no limit). Ends when the client
 * leaves. */
pick_state catalog_wait(catalog *c, struct exchange *x, int timeout_ms, problem *p);
/* Gives the reference back because the model is to be loaded again, with what is on the disk now,
 * once it is not in use, and gets in line for it. */
void catalog_again(catalog *c, struct exchange *x);
/* Gives reference or place in line back. x->keep_ms: the model stays so long after it. */
void catalog_release(catalog *c, struct exchange *x);

/* ---- The operator ---- */

/* Starts loading, and returns. False: no such model, or it cannot be loaded. */
bool catalog_load(catalog *c, const char *name, problem *p);
/* Unloads as soon as its requests are answered, or stops its loading, and returns. False: no such
 * model. */
bool catalog_unload(catalog *c, const char *name, problem *p);

/* Models of this machine have come or gone: the next question looks at the disk. */
void catalog_refresh(catalog *c);

/* ---- What there is ---- */

typedef enum offer_state {
    OFFER_UNLOADED,
    OFFER_QUEUED, /* waits for the thread that loads */
    OFFER_LOADING,
    OFFER_LOADED,
    OFFER_UNLOADING
} offer_state;

/* Where an offer comes from. */
typedef enum offer_source {
    OFFER_BUNDLED,
    OFFER_NAMED, /* by the options */
    OFFER_DIRECTORY,
    OFFER_STORED, /* carat's own store, from which it may be removed */
    OFFER_CACHED, /* the cache of Python's client */
    OFFER_MADE,   /* of another model (apps/hub/made.h) */
    OFFER_ADAPTER /* of --lora, beside its model */
} offer_source;

/* An offer at the time of the call. Strings belong to the catalog. */
typedef struct offer_view {
    const char *name, *path; /* path: NULL for the bundled model */
    const char *parent;      /* of an adapter: the name of its model; else NULL */
    offer_state state;
    offer_source source;
    double used_ms, until_ms; /* clock_ms: of its last request; when it is unloaded, 0: not */
    const char *failure;      /* why it was not loaded at the last try, or "" */
    uint64_t file_bytes;      /* of the first file */
    int64_t file_s;           /* its time, in seconds since 1970 */
    int32_t n_waiting;
    /* Known from the first loading on; else zero and "". */
    bool known, images, sounds; /* it takes images, and sound */
    char title[128], architecture[32], file_type[32];
    int32_t n_ctx, n_ctx_train, n_vocab, n_embd;
    uint64_t n_params, weight_bytes;
    uint64_t total_bytes, gpu_bytes; /* as planned, while it is loaded; on GPUs, part of these */
} offer_view;

/* All offers, the default first, to be freed with mem_free. NULL: no memory. */
offer_view *catalog_list(catalog *c, int32_t *n);
const char *offer_state_name(offer_state s); /* as llama-server's router names it */
const char *offer_source_name(offer_source s);
bool catalog_leads(const catalog *c);      /* the first offer is loaded at the start and kept */
bool catalog_offers_all(const catalog *c); /* every model of this machine */
bool catalog_leader(const catalog *c, const served *m); /* it is that model */
/* The name of the offer that is called so, has this file, or is the bundled model, as clients see
 * it; NULL: none. */
const char *catalog_own_name(catalog *c, const char *name);
/* The same for any name that a request may have. */
const char *catalog_meant(catalog *c, const char *name);
/* The made model that answers to this name because it is the offer; NULL: none. */
const char *catalog_made(catalog *c, const char *name);
/* References to all loaded models, which do not count as use. Returns their number. */
int32_t catalog_hold(catalog *c, served *list[PASSES_MAX]);
void catalog_drop(catalog *c, served *const *list, int32_t n);
/* The name of a loaded model's offer, while there is a reference to it. */
const char *catalog_name(const served *m);

#endif
