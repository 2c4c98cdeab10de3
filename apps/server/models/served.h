/* served.h - one loaded model of a server, and what requests need of it.
 *
 * A request names a model; exchange_pick (exchange.h) takes a reference to it as x->m. The fields
 * are constant while there is a reference, so threads of connections read them without locks. Only
 * the batch comes and goes: readers hold batch_lock.
 */
#ifndef APPS_SERVER_SERVED_H
#define APPS_SERVER_SERVED_H

#include "apps/lora_options.h"
#include "apps/server/dialects/answer.h"
#include "apps/server/answers/replay.h"
#include "apps/server/server.h"

struct offer; /* catalog.h */

typedef struct served {
    server *s;
    struct offer *offer;          /* of which it is the loaded model */
    const struct served_ask *ask; /* while it is being loaded; else NULL */
    carat_model *model;
    const char *path; /* NULL: the bundled model */
    carat_model_info info;
    answer_model names;
    request_limits limits;
    carat_session_options session; /* of every slot */
    carat_memory_plan plan;        /* of one slot */
    carat_memory_plan total;       /* of the batch */
    int32_t n_ctx, n_slots;
    int32_t thought_open;     /* the id of the mark, -1: none */
    bool can_call;            /* its answers may have calls */
    bool bars_calls;          /* calls can be kept out of its answers */
    int32_t ends[16], n_ends; /* ids that end a turn */
    replay *calls;
    carat_compressor *shortened; /* what this model has scored for prompt compression */
    /* Readers use the batch; the writer opens and closes it. NULL: not open. */
    pthread_rwlock_t batch_lock;
    carat_batch *batch;
    /* Of the loop of passes (passes.h). */
    atomic_bool leaving;
    bool busy; /* it had work in the last turn */
    char told[sizeof((carat_cache_info *)NULL)->last_error];
    bool pool_full; /* conversations wait in host memory: the loop of passes has said so */
} served;

/* Which model to load. */
/* The adapters of made models that a model had when it was loaded last. */
typedef struct lora_history {
    char *path[LORA_FILES_MAX];
    int32_t n;
    bool alone; /* no others are to be loaded */
    bool more;  /* others were */
} lora_history;

typedef struct served_ask {
    const char *path;    /* NULL: the bundled model */
    const char *name;    /* for clients; NULL: the model's own. Outlives the served */
    int32_t n_ctx;       /* the context, where --ctx does not say it; 0: the server's own */
    lora_history *loras; /* of a scorer NULL */
    bool scorer;         /* it scores texts for other models: one slot, on the CPU */
    /* May it be loaded? p: the plan of its batch. Called before weights are read; another status
     * than OK ends the loading with it. m has model, info and session. */
    status (*room)(void *user, const served *m, const carat_memory_plan *p, err *e);
    bool (*go_on)(void *user); /* false ends the loading: CARAT_E_CANCELLED */
    void *user;
} served_ask;

/* Loads a model with the server's options, and logs its plan. *m is NULL after an error. */
status served_open(served **m, server *s, const served_ask *ask, err *e);
/* carat_batch_submit and carat_batch_cancel, which also wake the loop of passes. E_CANCELLED: the
 * batch is closed. */
status served_submit(served *m, const carat_job *job, int64_t *id, bool *queue_full, err *e);
void served_cancel(served *m, int64_t id);
/* carat_batch_ask_slot and the two for files. E_CANCELLED: the batch was halted. */
status served_ask_slot(served *m, const carat_slot_ask *ask, err *e);
status served_write_snapshot(served *m, const carat_snapshot *p, const char *path,
                             uint64_t *n_bytes, err *e);
status served_read_snapshot(served *m, const char *path, carat_snapshot **p, uint64_t *n_bytes,
                            err *e);
/* Cancels the jobs that still run. Called by the loop of passes; references may stay. */
void served_halt(served *m);
void served_close(served *m); /* nobody has a reference; NULL is fine */

enum { SLOTS_MAX = 64 };
/* The state of the batch and of its slots (SLOTS_MAX). False: it is not open. */
bool served_refresh(served *m, carat_batch_info *info, carat_slot_info *slots);
#endif
