/* batch_int.h - a batch, as its files see it: batch.c, batch_jobs.c, batch_step.c, admission.c. */
#ifndef ENGINE_BATCH_INT_H
#define ENGINE_BATCH_INT_H

#include "engine/embed.h"
#include "engine/media.h"
#include "engine/pace.h"
#include "engine/report.h"
#include "engine/round.h"

typedef struct job {
    struct job *next; /* in the queue */
    int64_t id;
    int32_t *ids;
    int64_t n;
    int64_t pictures; /* tokens up to the end of the last picture; 0: there is none */
    carat_generate_options opt;
    char *stop_text; /* the bytes of opt.stop */
    bool has_opt, cancelled;
    carat_event_fn fn;
    void (*done)(void *user, carat_status st, const carat_error *e, const carat_timings *t);
    void *user;
    generation *g; /* NULL: an embedding, or the importance of tokens */
    embedding *x;  /* NULL: an answer */
    float *vector; /* where x goes */
    sparse_choice sparse;
    report r;
} job;

typedef struct slot {
    carat_batch *b;
    timeline t;
    reply *x;        /* of the job */
    job *job;        /* NULL: idle */
    bool answering;  /* the prompt is computed */
    bool waits;      /* for rows of pictures, from a tower that runs beside passes */
    bool looked;     /* the prompt's last rows have chosen the pages, and are computed again */
    bool alone;      /* a pass with its rows failed: they are computed alone, which shows whether it
                        failed because of them */
    int64_t used_at; /* step of its last use */
    int32_t most;    /* rows that the next pass may have of the job; 0: it waits for pages */
    status st;       /* of its rows in the current pass */
    err e;
} slot;

struct carat_batch {
    carat_model *m;
    session_shape shape;
    kv_layout layout;
    workspace w;
    rounds *rounds;
    kv_pool pool;  /* of all slots */
    bool tight;    /* the pool is smaller than the contexts of all slots */
    int32_t *mark; /* [pages of the pool] counts of holders; admission.c */
    bool full;     /* a job waits in the queue for pages; those after it wait too */
    uint64_t n_preempted;
    checkpoint_store *store; /* of all slots; NULL: none */
    slot *slot;
    int32_t n_slots, queue_max, stall_ms;
    int32_t share_ms;   /* of a pass with prompts, for others outside the batch; 0: none wait */
    pass_part *part;    /* [n_slots] of the current pass */
    int32_t *part_slot; /* [n_slots] the slot of each part */
    reply **answering;  /* [n_slots] of the current pass */
    int32_t turn;       /* the slot whose prompt comes first in the next pass */
    bool apart;         /* prompts and answers have passes of their own */
    bool prompts_next;  /* apart, and both wait: whose turn it is */
    bool hidden_next;   /* the same of hidden passes and all others */
    const slot *only;   /* the next pass has rows of this slot alone; NULL: of all */
    int64_t n_steps;
    pace pace;
    media_waker waker; /* wakes a step that waits for a tower */

    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    bool has_lock, has_cond, woken, tower_woke;
    job *head, **tail; /* the queue */
    job *admitted;     /* taken from the queue, not yet in a slot */
    int64_t *cancel;   /* [n_slots] ids of running jobs to end */
    int64_t *running;  /* [n_slots] ids of running jobs; 0: idle */
    int64_t last_id;
    carat_batch_info info;
    carat_slot_info *shown; /* [n_slots] */
};

/* batch.c. Reports the end of a job to its caller, and frees the job. */
void job_done(job *j, status st, const err *e);

/* batch_jobs.c. st OK: the generation has ended, for whatever reason. */
void end_job(carat_batch *b, slot *s, status st, err *e);
void admit_jobs(carat_batch *b);    /* from the queue into idle slots, as far as there is room */
void end_cancelled(carat_batch *b); /* ends the running jobs that somebody wants to end */

/* admission.c. Before a pass: sets slot.most, so that the pages of all rows are there; frees pages,
 * and moves jobs out and in for it. Returns the number of jobs that it had to end. */
int32_t admission_plan(carat_batch *b);
/* Before the queue is searched, and for each of its jobs in order: are there pages for j's prompt?
 */
void admission_begin_search(carat_batch *b);
bool admission_allows(carat_batch *b, const job *j);

#endif
