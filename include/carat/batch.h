/* carat/batch.h - many generations at once. */
#ifndef CARAT_BATCH_H
#define CARAT_BATCH_H

#include "embed.h"
#include "generate.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A batch runs up to n_slots generations side by side. A pass has the last token of each
 * answer, with drafts after it, and chunks of prompts in its other rows. More jobs wait in a
 * queue, first come, first served. Each slot is a timeline of its own; a job goes to the slot with
 * the longest prefix of its prompt. On a CPU every answer is bit-identical to the answer of a
 * session alone.
 *
 *     carat_batch_open(m, &(carat_batch_options){.n_slots = 4}, &b, &e);
 *     carat_batch_submit(b, &job, &id, &e);          any thread, as often as wished
 *     while (!quit) {                                one thread
 *         carat_batch_wait(b, 1000);
 *         while (carat_batch_step(b))
 *             ;
 *     }
 *
 * Any thread may call submit, cancel, wake and get_info, from callbacks too. step, wait and close
 * belong to one thread; all callbacks run there. */
typedef struct carat_batch carat_batch;

typedef struct carat_batch_options {
    carat_session_options session; /* of each slot */
    int32_t n_slots;               /* 0: 4; at most 64 */
    int32_t queue_max;             /* most jobs that wait for a slot; 0: 64 */
    int32_t gap_ms; /* target time between two tokens of an answer: beside answers, parts of prompts
                       are cut by measured time, for at least as long as the answers' rows take, and
                       jobs get slots for half of it, one at least. 0: 12; -1: neither is so */
} carat_batch_options;

/* Takes all memory that the batch will need. opt may be NULL: all defaults. On failure *b is NULL;
 * errors as of carat_session_open. Close it before its model. */
CARAT_API carat_status carat_batch_open(carat_model *m, const carat_batch_options *opt,
                                        carat_batch **b, carat_error *e);
/* Ends all jobs with E_CANCELLED, calling their done. b may be NULL. */
CARAT_API void carat_batch_close(carat_batch *b);
/* The plan of the batch that carat_batch_open would open with opt, which may be NULL: one set of
 * scratch, caches for each slot. As carat_plan otherwise. */
CARAT_API carat_status carat_plan_batch(const carat_model *m, const carat_batch_options *opt,
                                        carat_memory_plan *plan, carat_error *e);
CARAT_API int32_t carat_batch_n_ctx(const carat_batch *b); /* of each slot, in tokens. Any thread */

typedef struct carat_job {
    const int32_t *ids; /* the whole prompt; copied */
    int64_t n;
    const carat_generate_options *opt; /* NULL: as carat_generate. Copied with its stop strings and
                                          biases; the mask is used until done */
    carat_event_fn fn;                 /* may be NULL */
    /* The last call for this job, once if submit returned OK: with the result of carat_generate. A
     * cancelled job that had begun is OK with CARAT_FINISH_CANCELLED. May be NULL. */
    void (*done)(void *user, carat_status st, const carat_error *e, const carat_timings *t);
    void *user;
    /* Not NULL: the job is no answer. opt and fn are not used; before done with OK, carat_embed's
     * vector is written here, [n_embd], on the stepping thread. Cancelled, it is E_CANCELLED. */
    float *embedding;
    carat_pooling pooling;
    /* Not NULL: the same with carat_importance's values, [n]. */
    float *importance;
} carat_job;

/* *id receives the job's number, > 0 and never used twice. E_LIMIT: the prompt is longer than a
 * slot, or the queue is full; *queue_full, if not NULL, tells which. */
CARAT_API carat_status carat_batch_submit(carat_batch *b, const carat_job *job, int64_t *id,
                                          bool *queue_full, carat_error *e);
/* Ends a job after its current pass, or a waiting job at the next step. Ignores unknown ids. */
CARAT_API void carat_batch_cancel(carat_batch *b, int64_t id);
/* Runs one pass over the jobs at work; on a GPU, over their prompts or over their answers. False:
 * there was nothing to do. Failures go to the jobs. */
CARAT_API bool carat_batch_step(carat_batch *b);
/* Others wait for the passes of this batch, such as answers of another model whose passes take
 * turns with these. From the next step on, prompts are cut so that a pass takes at most about
 * pass_ms, or as long as a pass of this batch's own answers takes if that is longer; also if it has
 * no answers now, but not if gap_ms is -1. 0: nobody waits. Belongs to the thread of step. */
CARAT_API void carat_batch_share(carat_batch *b, int32_t pass_ms);
/* Sleeps until there is work, timeout_ms have passed (< 0: no limit) or wake is called. True: there
 * is work. */
CARAT_API bool carat_batch_wait(carat_batch *b, int32_t timeout_ms);
CARAT_API void carat_batch_wake(carat_batch *b);

typedef struct carat_slot_info {
    int64_t id;                            /* of the job; 0: idle */
    int64_t n_past;                        /* tokens in the cache */
    int64_t n_prompt, n_done, n_generated; /* n_done: of n_prompt, computed or reused */
    bool waits;     /* for room in the pool of keys: no row of it was in the last pass */
    bool paged_out; /* its keys wait in host memory */
    int64_t
        n_paged_out; /* tokens whose keys are not in the pool, because it keeps a part of them */
} carat_slot_info;

/* A question about the tokens of a slot. It waits until no job has the slot. */
typedef struct carat_slot_ask {
    int32_t slot;
    bool erase;                    /* forget them; */
    const carat_snapshot *restore; /* or put those of a snapshot there, which lives until done; */
                                   /* neither: take a snapshot of them */
    /* Once, on the stepping thread: p, if one was taken, is the callee's to free; n: the tokens
     * that were taken, restored or forgotten. E_CANCELLED: the batch was closed; otherwise as
     * carat_snapshot_take and carat_snapshot_restore. */
    void (*done)(void *user, carat_status st, const carat_error *e, carat_snapshot *p, int64_t n);
    void *user;
} carat_slot_ask;

/* Answered by a step or by close. E_ARG: there is no such slot. Any thread. */
CARAT_API carat_status carat_batch_ask_slot(carat_batch *b, const carat_slot_ask *ask,
                                            carat_error *e);
/* A snapshot of a slot as a file that only its owner may read, complete or not at all, and back:
 * for batches of the same model and the same formats of keys and values. Devices and
 * carat_model_options.split may differ. Of models with recurrent layers a GPU's files go to GPUs
 * alone, and those of a tensor split over several to as many. E_FORMAT: it is damaged, or of
 * another model or format; E_UNSUPPORTED: its tokens were computed while keys were left out; E_IO.
 * *n_bytes: of the file. Any thread, as long as the batch is open. */
CARAT_API carat_status carat_batch_write_snapshot(const carat_batch *b, const carat_snapshot *p,
                                                  const char *path, uint64_t *n_bytes,
                                                  carat_error *e);
CARAT_API carat_status carat_batch_read_snapshot(const carat_batch *b, const char *path,
                                                 carat_snapshot **p, uint64_t *n_bytes,
                                                 carat_error *e);

typedef struct carat_batch_info {
    int32_t n_slots, n_busy, n_queued;
    /* Sums since open, of jobs, tokens, passes and rows of passes. */
    uint64_t n_jobs, n_prompt, n_reused, n_generated, n_passes, n_rows;
    uint64_t n_rounds, n_drafted, n_accepted; /* as carat_timings */
    uint64_t n_tiles, n_tiles_kept;           /* as carat_timings */
    uint64_t n_sparse;                        /* of n_jobs: prompts whose attention left keys out */
    uint64_t kv_bytes;                        /* caches of all slots */
    /* The pool of keys that the slots share, in tokens: all of it, the free part, and the part that
     * several slots or checkpoints hold together. 0: the model has rings alone. */
    int32_t pool_tokens, pool_free, pool_shared;
    int32_t n_paged_out;  /* slots whose keys wait in host memory */
    uint64_t n_preempted; /* how often one had to leave the pool, since open */
    /* Of slots that keep part of their context in the pool: how much each, 0: all of it; the
     * policy, and why it is not the one asked for ("": it is); owned by the batch. */
    int32_t kept_tokens;
    const char *policy, *policy_why;
    /* Keys on the host, in memory and in a file, and pages that went there and came back, since
     * open. */
    uint64_t pool_host_bytes, pool_file_bytes, n_pages_out, n_pages_in;
    carat_cache_info cache;
    double pass_ms; /* time in passes, since open */
} carat_batch_info;

/* The state after the last step. slots receives the first cap slots; may be NULL. Any thread. */
CARAT_API void carat_batch_get_info(carat_batch *b, carat_batch_info *info, carat_slot_info *slots,
                                    int32_t cap);

#ifdef __cplusplus
}
#endif
#endif
