/* batch_int.h - the one scheduler: jobs, slots, and the contributors of a pass.
 *
 *     job            what a caller wants: an answer, logits, a vector. Its class says how
 *     slot           a timeline and the job that runs on it
 *     contributor    a kind of rows: the last tokens of answers, prompts, hidden rows, ...
 *
 *     carat_batch      many slots, with a queue that other threads fill
 *     carat_session    a batch of one slot, without a queue: each call runs one job (session.c)
 *
 * A step asks each job's contributors, in order, for the first that wants rows. batch_step.c
 * decides which of these parts share the next pass, and hands each its results. It knows no
 * contributor, only what `contributor` below says of it. A row's result does not depend on the
 * other rows of its pass, so the schedule changes no result.
 */
#ifndef ENGINE_BATCH_INT_H
#define ENGINE_BATCH_INT_H

#include "engine/media.h"
#include "engine/pace.h"
#include "engine/report.h"
#include "engine/round.h"

typedef struct slot slot;
typedef struct job job;
typedef struct job_class job_class;

/* What a contributor wants of the next pass for one slot. */
typedef struct pass_want {
    int64_t left;        /* rows that are to come; 0: none */
    int32_t least;       /* of them, rows that must be in one pass; 0: any number will do */
    int32_t most;        /* rows of a whole pass that has a part of it; 0: any number */
    const int32_t *next; /* the first token of these rows, of a prompt all; NULL: the job's next */
    bool no_trees;       /* no draft tree can be beside it */
} pass_want;

typedef struct contributor {
    bool prompt; /* as pass_part.prompt */
    bool hidden; /* as pass_part.hidden: it shares passes with other hidden ones alone */
    bool alone;  /* in a pass of its own */
    bool single; /* one such part in a pass: scratch has no room for more */
    pass_want (*wants)(slot *s);
    /* NULL, or before the parts of all slots s[0..n) in a pass: decides on their rows together, at
     * most `rows`, n or more. */
    void (*prepare)(carat_batch *b, slot *const *s, int32_t n, int32_t rows, bool trees);
    /* The part of the next pass, of at most `rows` rows; of 0 rows: these are too few. */
    pass_part (*part)(slot *s, int32_t rows);
    /* After the pass: takes its results, and keeps its rows. After an error the job ends. */
    status (*take)(slot *s, const pass_part *part, err *e);
} contributor;

/* What a job computes. NULL: as is said. */
struct job_class {
    const contributor *const *contributors; /* ends with NULL */
    /* Opens what the job has for its class; `close` follows, after a failure too. */
    status (*open)(carat_batch *b, const carat_job *from, job *j, err *e);
    void (*close)(job *j);
    /* Prepares the slot's timeline. NULL: for the whole prompt. After an error the job ends. */
    status (*begin)(slot *s, err *e);
    bool (*done)(const slot *s); /* NULL: when all tokens are computed */
    /* The job ends for reason st, E_CANCELLED: somebody wished so. Gives the caller what it gets,
     * and returns what it is told. NULL: it is told st. */
    status (*end)(slot *s, status st, err *e);
};

/* Logits for the caller of a session. */
typedef struct evaluation {
    const job_class *class;
    int64_t first;      /* tokens of the timeline that come before the ids */
    bool all;           /* logits of every row, [n][n_vocab]; else of the last */
    float *logits;      /* NULL: none. With rows: of one pass, [n_outputs][n_vocab] */
    carat_rows_fn rows; /* receives the rows of each pass; NULL: they stay in logits */
    void *rows_user;
    sparse_choice sparse;
    lora_choice lora;
} evaluation;

struct job {
    job *next; /* in the queue */
    const job_class *class;
    int64_t id;
    const int32_t *ids; /* [n - first] the tokens from `first` on */
    int64_t n, first;   /* first > 0: those before them are the timeline's already */
    int64_t n_plain;    /* the results of so many first rows are not read */
    int64_t pictures;   /* tokens up to the end of the last picture; 0: there is none */
    uint64_t asked;     /* when it first asked for a tower; 0: never */
    bool anew;          /* every token is computed: no prefix is reused */
    bool cancelled;     /* while it waits */
    bool queued;        /* it is memory of its own, and so is what its options name: own */
    void *own[4];       /* NULL, or copies of ids and of arrays and strings of opt */
    carat_generate_options opt;
    void (*done)(void *user, carat_status st, const carat_error *e, const carat_timings *t);
    void *user;
    /* One of these, by class. */
    generation *g;
    struct embedding *x;
    struct importance *i;
    const evaluation *v;
    float *vector; /* where x or i goes */
    sparse_choice sparse;
    lora_choice lora;
    report r;
};

struct slot {
    carat_batch *b;
    timeline t;
    reply *x;              /* of the job */
    job *job;              /* NULL: idle */
    const contributor *by; /* of the next pass; NULL: idle */
    pass_want want;
    bool answering; /* the prompt is computed */
    bool waits;     /* for rows of pictures: their tower runs beside passes, or before one */
    bool previewed; /* the prompt's last rows have chosen the pages, and are computed again */
    bool alone;     /* a pass with its rows failed: they are computed alone, which shows whether it
                       failed because of them */
    int64_t n_reused; /* tokens of the job that were in the cache when it began */
    int64_t used_at;  /* step of its last use */
    /* The prompt's place among others: the prompt rows that the batch had computed when it came,
     * and its own. So short ones come before long ones, those of one length in the order in which
     * they came, and a long one waits for at most about as many rows as it has. */
    int64_t due;
    int32_t most;     /* rows that the next pass may have of the job; 0: it waits for pages */
    status st;        /* of its rows in the current pass */
    err e;
    atomic_bool cancel; /* the job is to end; of a session: the next one, if none runs */
};

typedef struct slot_question slot_question;

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
    int32_t n_slots, queue_max;
    int32_t gap_ms;     /* target between two tokens of an answer; 0: prompts are not cut for it */
    int32_t share_ms;   /* of a pass with prompts, for others outside the batch; 0: none wait */
    pass_part *part;    /* [n_slots] of the current pass */
    int32_t *part_slot; /* [n_slots] the slot of each part */
    slot **members;     /* [n_slots] those that a contributor prepares together */
    reply **answering;  /* [n_slots] of the current pass */
    int64_t n_prompt_rows; /* computed since open */
    bool apart;         /* prompts and answers have passes of their own */
    bool prompts_next;  /* apart, and both wait: whose turn it is */
    bool hidden_next;   /* the same of hidden passes and all others */
    const slot *only;   /* the next pass has rows of this slot alone; NULL: of all */
    int64_t n_steps;
    uint64_t n_passes, n_rows, n_generated; /* since open */
    double pass_ms;
    double (*clock)(void); /* ms; tests have one of their own */
    bool idle;             /* the devices have ended every pass */
    pace pace;
    media_waker waker; /* wakes a step that waits for a tower */

    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    bool woken, tower_woke;
    job *head, **tail;        /* the queue */
    slot_question *questions; /* about slots; batch_slots.c */
    job *admitted;            /* taken from the queue, not yet in a slot */
    int64_t *running;         /* [n_slots] ids of running jobs; 0: idle */
    int64_t last_id;
    carat_batch_info info;
    carat_slot_info *shown; /* [n_slots] */
};

struct carat_session {
    carat_batch b; /* of one slot */
    job job;       /* the call's that runs */
    status st;     /* how it ended */
    err e;
    carat_timings t;
};

static inline timeline *session_timeline(carat_session *s)
{
    return &s->b.slot->t;
}

/* How the rows of j are computed. */
static inline kv_way job_way(const job *j)
{
    return (kv_way){sparse_key(j->sparse), j->lora.key};
}

/* The tokens of s's job that come after its timeline. */
static inline const int32_t *slot_next_ids(const slot *s)
{
    return s->job->ids + (s->t.kv.n_past - s->job->first);
}

/* batch.c. Opens a zeroed batch; the caller closes it with batch_free, after a failure too.
 * verify_rows: as plan_shape. */
status batch_init(carat_batch *b, carat_model *m, const carat_session_options *opt, int32_t n_slots,
                  int32_t verify_rows, err *e);
void batch_free(carat_batch *b); /* safe on a zeroed or closed batch; ends all jobs */
/* Fills a zeroed job with from's fields. copy: also with copies of its ids and options, else these
 * stay the caller's. The caller closes it with job_close, after a failure too. */
status job_open(carat_batch *b, const carat_job *from, bool copy, job *j, err *e);
void job_close(job *j);
/* Reports the end of a job to its caller, and closes it. */
void job_done(job *j, status st, const err *e);

/* batch_jobs.c. From a job that is open to a slot that is idle. */
void begin_job(carat_batch *b, slot *s, job *j);
/* st OK: it is done, for whatever reason. */
void end_job(carat_batch *b, slot *s, status st, err *e);
/* From the queue into idle slots, as far as pages allow, one at least. A slot may copy what it
 * discards, so others follow after the next pass once that took most_ms. True: some may. */
bool admit_jobs(carat_batch *b, double most_ms);
void end_cancelled(carat_batch *b); /* ends the running jobs that somebody wants to end */

/* batch_slots.c. Answers all questions about slots. False: there was none. */
bool slots_answer(carat_batch *b);
void slots_refuse(carat_batch *b); /* the batch closes */

/* batch_step.c. One pass over the jobs in slots. False: there was nothing to do. */
bool batch_pass(carat_batch *b);

/* admission.c. Before a pass: sets slot.most, so that the pages of all rows are there; frees pages,
 * and moves jobs out and in for it. Returns the number of jobs that it had to end. */
int32_t admission_plan(carat_batch *b);
/* Before the queue is searched, and for each of its jobs in order: are there pages for j's prompt?
 */
void admission_begin_search(carat_batch *b);
bool admission_allows(carat_batch *b, const job *j);

/* Classes of jobs. */
extern const job_class answer_job;     /* answers.c: g */
extern const job_class embedding_job;  /* embed.c: x */
extern const job_class importance_job; /* importance.c: i */
/* Contributors that classes share. */
extern const contributor prompt_logprobs; /* score.c */
extern const contributor page_preview;    /* prefill.c: the last rows choose the pages of a pool */
extern const contributor plain_rows;      /* prefill.c: job.n_plain */

/* score.c. Empties the timeline for a prompt whose tokens are scored, and reports the first token.
 */
status score_begin(slot *s, err *e);
/* embed.c. The most rows of a hidden pass whose rows are all wanted: as many as fit the scratch of
 * other passes, at most a chunk. 1 or more. */
int32_t hidden_rows_most(carat_batch *b);
/* prefill.c. Rows of a prompt whose last row has logits. */
pass_want prompt_wants(slot *s);
/* n_best: as pass_part, of the last row. */
pass_part prompt_part(slot *s, int32_t rows, int32_t n_best);

/* session.c. E_ARG: a call of s runs, one of whose callbacks asks. */
status session_idle(const carat_session *s, err *e);
/* session.c. Runs one job in s until it has ended. v: instead of an answer or a vector. */
status session_run(carat_session *s, const carat_job *from, const evaluation *v, carat_timings *t,
                   err *e);

#endif
