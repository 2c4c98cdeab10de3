/* catalog_int.h - what catalog.c, offers.c and loader.c share. */
#ifndef APPS_SERVER_CATALOG_INT_H
#define APPS_SERVER_CATALOG_INT_H

#include "apps/lora_options.h"
#include "apps/server/models/catalog.h"

#include <sys/types.h>

/* The identity of a file, to notice that it was replaced. */
typedef struct file_mark {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec time;
} file_mark;

struct offer {
    offer *next;
    char *name, *path; /* path NULL: the bundled model */
    offer_source source;
    bool made;     /* the name is that of a made model, whose weights these are */
    int32_t n_ctx; /* the context that it asks for; 0: none */
    /* Under the catalog's lock. */
    offer_state state;
    bool leaving; /* takes no requests; unloaded when the last one is answered */
    bool asked;   /* the operator wants it, though no request waits */
    bool stop;    /* the operator ends its loading */
    bool gone;    /* a look at the disk did not find it; not shown */
    served *m;    /* NULL unless it is loaded */
    int32_t n_refs, n_waiting;
    uint64_t ticket; /* its place in line */
    int64_t keep_ms; /* KEEP_FOREVER, or milliseconds after the last request */
    double used_ms;
    file_mark file; /* as loaded */
    err failure;    /* of the last try; OK: none */
    double failed_ms;
    uint64_t n_failed;
    offer_view known; /* the last part of the view */
    /* Of the loader. */
    bool no_room;                     /* the last plan did not fit */
    bool wants_gpu;                   /* it fits the CPU, and others are on the GPU */
    bool no_gpu;                      /* these stay there */
    float lora_scale[LORA_FILES_MAX]; /* of --lora, as they were when it was unloaded */
    int32_t n_lora_scales;            /* 0: it was not */
    lora_history loras;
};

struct catalog {
    server *s;
    offer *first;
    int32_t n;
    bool single; /* one offer, and the list does not follow the disk */
    bool leads;  /* the first offer is loaded at the start, kept, and takes other names, too */
    bool moving; /* directories or the store: the list follows the disk */
    bool store;  /* every model of this machine is offered */
    int64_t keep_ms, lead_keep_ms; /* of offers, and of the first one where it leads */
    uint64_t memory_bytes;         /* for all models; 0: no limit but the devices' own */
    double looked_ms;              /* at the disk */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any of the above */
    pthread_t thread;
    uint64_t last_ticket;
    int32_t n_waiting;
    bool started, ending;
};

/* ---- offers.c ---- */

status offers_read(catalog *c, err *e); /* fills c->first */
/* Looks at directories and the store again; holds no lock on entry. */
void offers_refresh(catalog *c);
/* Which offer a request's name means; NULL: none. "": the first one. An offer that leads takes any
 * name but that of another model on this machine. A name that is not known yet makes the catalog
 * look at the disk. Under the lock. */
offer *offers_find(catalog *c, const char *name);
/* The same, but the one that leads has no other names. */
offer *offers_find_known(catalog *c, const char *name);
/* The same, but only what the offers themselves are called. */
offer *offers_find_own(catalog *c, const char *name);
bool offer_leads(const catalog *c, const offer *o);
int64_t offer_keep_ms(const catalog *c, const offer *o); /* unless a request says */
/* What clients see. One that leads has the name of its file's metadata, as in answers. */
const char *offer_shown_name(const catalog *c, const offer *o);
/* "there is no model ...", with the names that are there. Under the lock. */
bool offers_missing(catalog *c, const char *name, problem *p);
void offers_free(catalog *c);

/* ---- loader.c ---- */

void *loader_run(void *catalog);
#define LOADING_STOPPED "its loading was stopped"
/* The offer is not loaded, for this reason; requests that wait for it get it. Under the lock. */
void offer_fail(catalog *c, offer *o, const err *e);
bool offer_file(const offer *o, file_mark *mark); /* false: no such file */
double offer_until_ms(const offer *o);            /* when it may be unloaded; 0: never */

#endif
