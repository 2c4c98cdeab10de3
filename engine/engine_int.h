/* engine_int.h - the types and functions that the files of engine/ share.
 *
 *     carat_model    weights on devices, vocabulary, chat format: read-only once open
 *     carat_batch    timelines that share a workspace, and so passes (batch_int.h)
 *     carat_session  a batch of one timeline
 *
 *     timeline       the tokens of a session or slot, and their keys and values
 *     workspace      buffers of passes and of sampling
 *
 * The ids of a timeline say what its cache holds: id[0 .. kv.n_past) are exactly the tokens
 * whose keys and values are in it. Whatever moves kv.n_past keeps that so; a pass does not move it
 * (pass.c).
 *
 * Passes of several sessions take turns on the devices (model->pass_lock). All else of a session,
 * except `cancel`, belongs to the thread whose call runs on it.
 */
#ifndef ENGINE_ENGINE_INT_H
#define ENGINE_ENGINE_INT_H

#include "backend/ops.h"
#include "backend/pass.h"
#include "format/gguf.h"
#include "kv/kv.h"
#include "kv/pager.h"
#include "model/model.h"
#include "spec/control.h"
#include "text/chat.h"
#include "text/grammar.h"
#include "text/vocab.h"

#include "engine/checkpoint.h"
#include "engine/lora.h"
#include "engine/sample.h"
#include "engine/sparse.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    OUTPUTS_DEFAULT = 16, /* rows of a pass with logits: a verify batch; 16 MiB at 262144 ids */
    N_CTX_MIN = 64,       /* the shortest context that longest_fit chooses (shape.c) */
    EXPERT_CHUNKS = 2,    /* chunks are so much longer where not all experts are on the GPU */
    STOPS_MAX = CUTS_MAX + 8
};

typedef struct model_pool model_pool; /* experts.c */
typedef struct media media;           /* media.h */

/* What a CPU beside the GPUs has: the first layers, with the embeddings; all experts. */
typedef struct cpu_part {
    int32_t n_layers;
    bool experts;
} cpu_part;

/* What a model gives up to fit its GPU (fit.h). */
typedef struct model_fit {
    carat_fit level;
    int32_t n_ctx;  /* of sessions that name no context; 0: the longest that fits when they open */
    const char *kv; /* formats of keys and values of sessions that name none; NULL: f16 */
    int32_t chunk;  /* of sessions that name none; 0: the device's own */
    bool trying;    /* a plan of exactly n_ctx is made */
    /* By the last plan: of the device that lacks most; of all stages. */
    uint64_t needed_bytes, available_bytes, all_needed_bytes, all_available_bytes;
    const char *device; /* the name of the former */
    bool draft_lacks;   /* that is the drafter's own */
    char text[320];
} model_fit;

struct carat_model {
    model core;
    device *dev;                       /* the main one, core.dev[PASS_MAIN]: it gives the logits */
    device *other[PASS_SIDES_MAX - 1]; /* of sides 1 .. n_sides - 1 of a divided model */
    int32_t n_sides, n_stages;         /* stages: the devices that share the layers (stages.h) */
    int32_t stage_end[PASS_SIDES_MAX]; /* the layer after the last one of each */
    double split[PASS_SIDES_MAX];      /* their proportion, by hand; 0: by memory */
    cpu_part beside;
    model_fit fit;
    lora_choice lora; /* of answers that name no adapters; under lora_lock: lora_choose */
    pthread_mutex_t lora_lock;
    model_pool *experts;              /* NULL: each layer's device holds all of its experts */
    draft_model *draft[DRAFTERS_MAX]; /* NULL: there is none */
    device *draft_dev;                /* of the drafter alone; NULL: it is on dev */
    vocab *text;                      /* NULL: a model without vocabulary */
    token_tree *tree;                 /* of text; made for the first grammar */
    pthread_mutex_t tree_lock;
    const chat_format *chat;  /* NULL: plain completion only */
    char *file_type;          /* "Q4_K_M" */
    atomic_bool loaded;       /* weights are on the device; changes under pass_lock */
    atomic_bool draft_parked; /* carat_model_park_drafter has unloaded the drafter alone */
    atomic_bool parked;       /* carat_model_park has unloaded them */
    bool strict;              /* refuse slow kernels */
    bool plan_only;           /* for a GPU that need not be here: the host's memory is not asked */
    bool overcommit;          /* allow plans beyond the available memory */
    bool said_counts;         /* the log has said why a file of counts is not used */
    bool direct; /* the file was read into memory, whose pages the kernel cannot drop */
    /* By device (held_device): memory that loading took for packed or copied weights. */
    uint64_t taken_bytes[CARAT_DEVICES_MAX];
    uint64_t reserve_taken[CARAT_DEVICES_MAX]; /* of GPUs: of their reserve, by the driver then */
    double load_ms;
    char device_why[768];       /* the reason for these devices, as a phrase */
    char passed_over[384];      /* the GPUs that cannot be opened, for device_why */
    carat_progress_fn progress; /* of loading, and of prompts */
    void *progress_user;
    pthread_mutex_t pass_lock; /* the device runs one pass at a time */
    float *answers; /* of a reranker: [2][n_embd], the head's rows of "yes" and "no" (rank.c) */
    carat_model *scorer;              /* scores pages for the policy "drafter"; NULL: none */
    bool lent_scorer;                 /* it is the caller's */
    media *media;                     /* its vision tower and pictures; NULL: it sees none */
    _Atomic(sampler *) spare_sampler; /* for the next carat_sample; NULL: in use or not made */
};

typedef struct rounds rounds; /* round.h */

/* The sizes of a session; fixed once it is open. */
typedef struct session_shape {
    int32_t n_ctx, chunk, n_outputs;
    int32_t chunk_least;   /* where stages compute chunks at the same time: stages_chunk */
    int32_t n_pool;        /* tokens of keys in the pool; 0: as many as all timelines need */
    int32_t n_seqs;        /* timelines that share one workspace */
    int32_t verify_rows;   /* most rows of one answer in a pass: its last token, and the drafts */
    int32_t answer_rows;   /* most rows of all answers in a pass; n_seqs or more */
    int32_t draft_slots;   /* most drafted tokens in a row; 0: no drafter */
    int32_t draft_tree;    /* as carat_session_options */
    int32_t checkpoint_mb; /* 0: chosen; < 0: none */
    int32_t picture_rows;  /* that have to be in one pass; 0: any number */
    kv_choice kv;
    /* Keys: paging.c. kv_resident: most tokens of a timeline on the devices; 0: its context. */
    int32_t kv_resident, kv_tau, kv_host_mb;
    kv_policy kv_policy;
    char pool_why[160], policy_why[128]; /* how auto chose; why another policy was taken; or "" */
    sparse_choice sparse;                /* unless a request asks for another */
} session_shape;

/* A snapshot's linear rows that equal a cache's below n. */
typedef struct known_rows {
    kv_segment *seg;
    int64_t n;
} known_rows;

/* Where a timeline's first n tokens end on the axes of M-RoPE. A token of text is at `next` on all
 * three. A picture's are at the same time, its rows and columns count from there, and text goes on
 * behind its longer side. It follows from the ids; kept so that no pass reads them all. */
typedef struct axes_place {
    int64_t n;
    int32_t next;
    int32_t start; /* of the picture that the last token is of */
} axes_place;

/* One sequence of tokens with its keys and values. */
typedef struct timeline {
    carat_model *m;
    kv_cache kv;
    bool roomy;              /* its pool has pages for the whole context of every timeline */
    int32_t *id;             /* [n_ctx]: id[0 .. kv.n_past) are the tokens in kv; the rest is free
                                for tokens that are being checked */
    sparse_choice sparse;    /* how the tokens in kv were computed, and the next ones are */
    lora_choice lora;        /* the adapters that they were computed with */
    sparse_stats *stats;     /* [n_layer]; NULL: nothing was ever left out */
    int64_t n_prompt;        /* tokens of the prompt under way */
    int64_t n_fixed;         /* block selection: a longer prompt may go on from here (sparse_fixed),
                                or from a multiple of SPARSE_TILE before */
    const char *reuse;       /* as carat_session_reuse; static storage */
    int64_t n_dropped;       /* cached tokens that the last prompt dropped */
    checkpoint_store *store; /* borrowed; NULL: none */
    known_rows known;        /* of the cache */
    known_rows draft_known;  /* of the drafter's own cache */
    kv_snapshot *pending[CUTS_MAX]; /* reserved; filled before a pass overwrites their rows */
    int32_t n_pending;
    int64_t stop[STOPS_MAX]; /* recurrent layers: where passes of the prompt end, for checkpoints */
    int32_t n_stops;
    int64_t saved_at; /* of the last of these checkpoints */
    axes_place place; /* of a part of the tokens: timeline_place */
    rounds *rounds;   /* whose drafters these are the states of; NULL: no drafters (round.h) */
    draft_state *draft[DRAFTERS_MAX]; /* NULL: that drafter is not there */
    struct page_scorer *scorer;       /* with the policy "drafter"; else NULL */
} timeline;

/* Buffers of passes and sampling: one set per session, one per batch. */
typedef struct workspace {
    kv_batch batch;
    const pass_taps *taps; /* of every pass: a drafter's; NULL: none */
    struct {
        void *at; /* memory of the side's device */
        size_t n_bytes;
    } scratch[PASS_SIDES_MAX];
    mat y;                    /* the result of the last pass, in scratch: logits, or hidden rows */
    bool fresh;               /* as pass.fresh, of the last pass */
    float *logits;            /* [n_vocab]: of the row that was read last */
    candidate *candidates;    /* [answer_rows][CANDIDATES_MAX] */
    int32_t *n_candidates;    /* [as many rows as a pass may have logits of, or more] */
    soft_run *soft;           /* [rows of a pass], of its pictures; NULL: the model sees none */
    struct media_item **held; /* [rows of a pass]: the pictures of soft, until the next pass */
    int32_t n_held;
    row_axes *axes; /* [rows of a pass]; NULL: the layout has no axes */
    float *raw;     /* [n_vocab] before the sampler's changes, for logprobs */
    sampler sampler;
    int32_t hidden_rows; /* embed.c: most rows of a hidden pass; 0: not planned yet */
    /* score.c: most rows of one that are scored, and of one product of the head; 0: not planned. */
    int32_t score_rows, score_slice;
} workspace;

/* The logits of one row: all of them, or a superset of the largest ones. */
enum { CANDIDATES_MAX = 1024 };
typedef struct row_logits {
    float *all;            /* [n_vocab] */
    candidate *candidates; /* if it is not NULL, `all` is not filled */
    int32_t n_candidates;
} row_logits;

static inline device *model_device(const carat_model *m, int32_t side)
{
    return side == PASS_MAIN ? m->dev : m->other[side - 1];
}
/* All devices that are open for m: its sides, then the drafter's own. */
static inline int32_t n_held_devices(const carat_model *m)
{
    return m->n_sides + (m->draft_dev != NULL);
}
static inline device *held_device(const carat_model *m, int32_t i)
{
    return i == m->n_sides ? m->draft_dev : model_device(m, i);
}
/* Where the drafter is. */
static inline device *drafter_device(const carat_model *m)
{
    return m->draft_dev ? m->draft_dev : m->dev;
}
/* Begins a pass on the model's devices, with the scratch of w. */
void workspace_begin_pass(const workspace *w, const carat_model *m, pass *p);

/* engine.c */
status model_check_loaded(const carat_model *m, err *e);
/* E_UNSUPPORTED: it is an encoder, which writes no text and has no logits. */
status model_check_writes(const carat_model *m, err *e);

/* devices.c: opens the devices of m, divides it, and checks that it fits. Sets device_why. */
status open_device(carat_model *m, const carat_model_options *opt, err *e);
/* The drafter's own device, draft_dev, which carat_model_options.draft_device names. */
status open_draft_device(carat_model *m, const carat_model_options *opt, err *e);
bool split_is_open(const carat_model_options *opt); /* --split auto */
void tell_split(carat_model *m, const char *split, const char *why); /* in device_why */
cpu_options cpu_wanted(const carat_model_options *opt);

/* Gives a CPU beside the stages that part of m, or another part; before weights are loaded. E_ARG:
 * not possible. After a failure undivide_model has to follow. */
status divide_model(carat_model *m, const carat_model_options *opt, cpu_part part, err *e);
void undivide_model(carat_model *m); /* everything is on the stages */

/* rank.c: the rows of "yes" and "no", if m is a reranker; after its vocabulary. */
status rank_open(carat_model *m, err *e);
/* The probability of "yes", from the hidden row of the prompt's last token. */
float rank_of(const carat_model *m, const double *hidden);

/* drafters.c: opens the drafters that wish names (carat_model_options.draft), their weights not yet
 * loaded; and the device that one has of its own. */
status drafters_open(carat_model *m, const carat_model_options *opt, err *e);
/* Their weights, on drafter_device. */
status drafters_load(carat_model *m, const carat_model_options *opt, err *e);
/* Gives back what the weights take on the device, and takes it again. */
void drafters_unload_weights(carat_model *m);
bool drafter_is_loaded(const carat_model *m, int which);
status drafters_load_weights(carat_model *m, err *e);
void drafters_close(carat_model *m); /* safe on a model without drafters */
/* For "auto", before weights are loaded: where `fits` fails with E_MEMORY and would not without the
 * drafter's weights, lookup takes the drafter's place and says why. Otherwise as `fits`. */
status drafters_that_fit(carat_model *m, const carat_model_options *opt,
                         status (*fits)(void *user, const carat_model *m, err *e), void *user,
                         err *e);
/* The sizes that drafters of such a session have. */
draft_sizes plan_draft_sizes(const carat_model *m, const session_shape *shape, const kv_layout *l);
/* Their memory, as draft_bytes of the plan and of the main device, and of the device that one has
 * of its own; and the taps that they want. The plan's are zero before. */
status drafters_plan(const carat_model *m, const session_shape *shape, const kv_layout *l,
                     carat_memory_plan *plan, pass_taps *taps, err *e);
/* The drafter with weights, else lookup; NULL: none. */
const draft_model *main_drafter(const carat_model *m);

/* shape.c: the shape that options describe. verify_rows 0: as the drafters need. Errors for options
 * that make no sense or do not fit. */
status plan_shape(const carat_model *m, const carat_session_options *opt, int32_t n_seqs,
                  int32_t verify_rows, session_shape *shape, err *e);
/* plan.c: its costs. */
status plan_costs(const carat_model *m, const session_shape *shape, kv_layout *layout,
                  carat_memory_plan *plan, err *e); /* layout may be NULL */
/* The same without scratch: one dry pass, where plan_costs makes a hundred. What does not fit so
 * fits with no scratch. */
status plan_least(const carat_model *m, const session_shape *s, carat_memory_plan *plan, err *e);
/* Queries of a row in each side's layers without windows. */
status plan_queries(const carat_model *m, const kv_layout *l, page_query_size to[PASS_SIDES_MAX],
                    err *e);
/* What all weights and tables of a model beside m take on dev. */
uint64_t plan_weight_bytes(const device *dev, const model *core);
status plan_check(const carat_model *m, const carat_memory_plan *plan, err *e);
/* Has every device of the plan the memory? */
bool plan_fits(const carat_model *m, const carat_memory_plan *plan);
bool same_memory(const device *a, const device *b);
/* What the devices take that share the memory of this one. */
uint64_t plan_shared_total(const carat_model *m, const carat_memory_plan *plan, int32_t side);
/* The plan's sums without a drafter's own device, unless that shares a side's memory. */
void plan_model_sums(const carat_model *m, const carat_memory_plan *plan, uint64_t *total_bytes,
                     uint64_t *available_bytes);
/* No device of a lower side shares this one's memory. */
bool memory_of_first(const carat_model *m, int32_t side);
/* With `strict`: E_UNSUPPORTED if a product has no kernel at full speed. */
status plan_check_weights(const carat_model *m, err *e);

/* paging.c: pools of keys that are smaller than the context. */
status paging_options(const carat_session_options *opt, session_shape *s, err *e);
status paging_shape(const carat_model *m, session_shape *s, err *e); /* once n_ctx is known */
bool shape_is_paged(const session_shape *s);
/* Of a side's device, beside the pool. */
uint64_t paging_bytes(const session_shape *s, const kv_layout *l, const page_query_size *query,
                      int32_t side);
/* Of the host's memory, for the scorer of the policy "drafter"; 0 with others, or without a model
 * for it. */
status paging_scorer_bytes(const carat_model *m, const session_shape *s, uint64_t *n, err *e);
const char *paging_policy(const session_shape *s); /* its name; static storage */
/* importance.c: can the model of s tell what a text attends to, and has s room for it? */
status importance_check(const carat_session *s, err *e);
uint64_t importance_bytes(int64_t n); /* what a job of n tokens takes, but for a hidden row */
/* Tokens of the pool of all timelines. */
int64_t paging_pool(const session_shape *s);
/* What moves pages to the host: for pools with pagers, and for those that timelines may leave. */
status paging_open_mover(const session_shape *s, kv_pool *p, const carat_session_options *opt,
                         err *e);

/* A pager for t, if the shape has one, and what scores its pages. */
status paging_open(session_shape *s, timeline *t, err *e);

/* timeline.c. Only between passes. store may be NULL. */
status timeline_open(timeline *t, carat_model *m, kv_pool *pool, checkpoint_store *store, err *e);
void timeline_close(timeline *t); /* safe on a zeroed or closed timeline */
/* Before a prompt is compared with t: how its tokens are computed. Tokens that were computed in
 * another way are dropped, and saved as timeline_prepare saves what goes. */
status timeline_use(timeline *t, sparse_choice c, const lora_choice *l, err *e);
void timeline_forget_stats(timeline *t); /* what was left out is counted from here on */
/* Length of the prefix of ids[0..n) that the live cache could keep, if they are computed so;
 * always < n. */
int64_t timeline_usable(const timeline *t, kv_way way, const int32_t *ids, int64_t n);
/* How t's rows were computed. */
static inline kv_way timeline_way(const timeline *t)
{
    return (kv_way){sparse_key(t->sparse), t->lora.key};
}
/* Keeps, or restores, the longest usable prefix: afterwards kv.n_past < n, and id[0..kv.n_past)
 * equals ids. */
void timeline_prepare(timeline *t, const int32_t *ids, int64_t n);
/* The tokens up to n are, or will be, a prompt; timeline_prepare says so itself. */
void timeline_prompt(timeline *t, int64_t n);
bool timeline_rewind(timeline *t,
                     int64_t n); /* false, and unchanged, if rings have lost what it needs */
void timeline_reset(timeline *t);
axes_place timeline_place(timeline *t); /* after all its tokens */
/* Empties t for a prompt that may reuse nothing. A later prompt may go on from what t had: it is
 * saved, as timeline_prepare saves it. */
void timeline_restart(timeline *t);
/* After a pass that failed: a timeline with recurrent layers is reset, any other is as before.
 * True: it was reset. */
bool timeline_abandon(timeline *t);
/* Moves pages to host memory, where they wait until timeline_page_in. leaving: as kv_page_out.
 * n_wanted: free pages of the pool that are wanted. E_MEMORY: some may have moved. */
status timeline_page_out(timeline *t, const int32_t *leaving, int32_t n_wanted, err *e);
/* E_LIMIT: the pool has too few free pages. */
status timeline_page_in(timeline *t, err *e);
/* Checkpoints let go of pages of a timeline with a pager: else none would be free when they leave
 * it. False: they hold none. */
bool timeline_unshare(timeline *t);
/* Frees the pages that n more rows need, at the cost of checkpoints. False: they hold too few. */
bool timeline_make_room(timeline *t, int32_t n);
/* Before a pass of these rows: takes the checkpoints that would be lost by it. */
void timeline_before_pass(timeline *t, const kv_rows *rows);
/* Where the next pass of a prompt should end, which ends at `end`: there, or earlier for a
 * checkpoint of recurrent layers, or because pages may move there. */
int64_t timeline_pass_end(const timeline *t, int64_t end);
/* Pages of the tokens up to `end` come into the pool, and others leave it, at the cost of
 * checkpoints. prompt: none moves again before `end`. next: the tokens after those of t, up to
 * `end` of a prompt, the next one of an answer. */
status timeline_ready(timeline *t, const int32_t *next, int64_t end, bool prompt, err *e);
/* Another prompt goes on from the first n tokens of the prompt that is being computed: a checkpoint
 * of recurrent layers is taken there. */
void timeline_stop_at(timeline *t, int64_t n);
void timeline_rest(timeline *t); /* after an answer: saves to the directory what it lacks */
/* Takes a checkpoint at the end of the common prefix of ids[0..n) and t, for another timeline to
 * continue from, if the prefix has more than `above` tokens and t still holds its rows. */
void timeline_offer(timeline *t, const int32_t *ids, int64_t n, int64_t above);
/* session.c. The public name of k, which is dropped after a failure. */
status snapshot_of(const carat_model *m, kv_snapshot *k, carat_snapshot **out, err *e);
const kv_snapshot *snapshot_rows(const carat_snapshot *p);
status snapshot_take(timeline *t, carat_snapshot **out, err *e);
status snapshot_restore(timeline *t, const carat_snapshot *p, err *e);
status timeline_snapshot(timeline *t, kv_snapshot **out, err *e);
status timeline_restore(timeline *t, const kv_snapshot *k, err *e);

/* session.c */
int64_t cache_dir_bytes(const carat_session_options *opt); /* opt may be NULL */
/* *s is NULL if opt wants no checkpoints. opt may be NULL. */
status open_checkpoints(checkpoint_store **s, carat_model *m, kv_pool *pool,
                        const carat_session_options *opt, const carat_memory_plan *plan, err *e);
status workspace_open(workspace *w, carat_model *m, const kv_layout *l, const session_shape *shape,
                      const carat_memory_plan *plan, err *e);
void workspace_close(workspace *w, carat_model *m); /* safe on a zeroed or closed workspace */
/* Checks that ids[0..n) can be a prompt in a context of n_ctx. */
status check_ids(const carat_model *m, const int32_t *ids, int64_t n, int32_t n_ctx, err *e);
/* The same of ids that follow `before`; 0: they follow none. */
status check_more_ids(const carat_model *m, int32_t before, const int32_t *ids, int64_t n,
                      int32_t n_ctx, err *e);
/* The same, and that there is no picture. what: what needs a text, "an embedding". */
status check_text_ids(const carat_model *m, const int32_t *ids, int64_t n, int32_t n_ctx,
                      const char *what, err *e);
/* carat_session_open, with verify_rows as plan_shape. */
status session_open(carat_model *m, const carat_session_options *opt, int32_t verify_rows,
                    carat_session **out, err *e);

/* sampling.c: tokens that must not be in an answer, taken out of what its next token comes from. */
void ban_place_holders(const carat_model *m, float *logits);
void drop_place_holders(const carat_model *m, row_logits *x);

/* pass.c. Rows of one timeline in a pass, and where the logits of the wanted ones go. */
enum { LOGITS_ALL = -1, LOGITS_BAD = -2 };
typedef struct pass_part {
    timeline *t;
    kv_rows rows;
    bool prompt;           /* rows of a prompt; else of an answer: step.prompt */
    int64_t until;         /* with a pager: where the chunk ends that the rows are in; 0: they are
                              not in one */
    bool rescore;          /* the end of a prompt, which chooses its pages and is computed again:
                           what it gives is not read */
    bool hidden;           /* of all parts of a pass or of none: read_hidden follows, no logits are
                              computed, and drafters miss the rows */
    pass_tail *tail;       /* of a hidden part alone in its pass; NULL: none */
    float *logits;         /* [n_wanted][n_vocab]; NULL: read_logits reads rows later */
    int32_t n_best;        /* > 0: a superset of each row's n_best largest logits will do */
    candidate *candidates; /* n_best > 0: [n_wanted][CANDIDATES_MAX] */
    int32_t *n_candidates; /* [n_wanted]: how many came of each row; LOGITS_ALL: none, so all of
                              the row's logits are read; LOGITS_BAD: a NaN or +inf is in it */
    int32_t row0, out0;    /* set by run_pass: numbers of the first row, and of the first wanted
                              row, in the pass */
    bool lost;             /* set by run_pass: it failed because of this part, or has reset its
                              timeline */
} pass_part;

/* Is no wanted row LOGITS_BAD? Without `logits`, of the rows read so far. */
static inline bool part_finite(const pass_part *p)
{
    bool finite = true;
    for (int32_t k = 0; k < kv_rows_wanted(&p->rows); k++)
        finite &= p->n_candidates[k] != LOGITS_BAD;
    return finite;
}

/* paging.c. Before the prompt ids[0..n): its first turn and its last user turn stay in the pool. */
void paging_pin(timeline *t, const int32_t *ids, int64_t n);
/* paging.c. The watch for a part of a pass, sequence seq of its step: 1, or 0 for none. */
int32_t paging_watch(kv_cache *c, int32_t seq, const pass_part *part, page_watch *to);
void paging_watched(kv_cache *c, const pass_part *part, bool ok);
/* Then, of a part that looks: which pages it attends to. */
status paging_rescore(kv_cache *c, const pass_part *part, err *e);
/* paging.c. The part of timeline_ready that asks the scorer of t, if it has one and pages will be
 * chosen. */
status paging_score(timeline *t, const int32_t *next, int64_t end, bool prompt, err *e);
/* Are the next rows of a prompt, up to `end`, computed twice: once to choose their pages, and again
 * with those? */
bool paging_rescores(const timeline *t, int64_t end);
/* The same rows as a part that looks. */
pass_part paging_rescore_part(pass_part part);
/* Must the next rows of a prompt, which ends at `end`, be in one pass? They are those that are
 * computed twice. */
bool paging_is_whole(const timeline *t, int64_t end);
/* timeline_pass_end of timelines with a pager. */
int64_t paging_pass_end(const timeline *t, int64_t end);
int64_t paging_until(const timeline *t, int64_t end); /* pass_part.until of a prompt's rows */
/* The policy by which keys were away while tokens of t were computed; NULL: t is exact. */
const char *paging_lossy(const timeline *t);
/* The most tokens of a timeline that are in the pool at a time. */
int64_t paging_most(const timeline *t, int64_t n);

/* One pass over the rows of all parts, no two of one timeline. No timeline moves. Where
 * prompts_apart of a device, all parts are prompts or none is. After a failure the parts that are
 * not `lost` may be in another pass. */
status run_pass(carat_model *m, const kv_layout *l, workspace *w, pass_part *part, int32_t n_parts,
                err *e);
/* After run_pass and before the next pass of w: wanted row k of a part. `all` is w->logits, unless
 * the part has `logits`. E_NUMERIC: a NaN or +inf is in the row, which is at position pos. */
status read_logits(carat_model *m, workspace *w, const pass_part *part, int32_t k, int64_t pos,
                   row_logits *x, err *e);
/* After a hidden pass and before the next pass of w: the normed input of the head for the wanted
 * rows k .. k + n - 1 of a part, to[n][n_embd]. E_NUMERIC as read_logits; pos: of row k. */
status read_hidden(carat_model *m, const workspace *w, const pass_part *part, int32_t k, int32_t n,
                   int64_t pos, float *to, err *e);
/* After a hidden pass and before the next pass of w: the logits of the wanted rows k .. k + n - 1
 * of a part, in the scratch above the hidden rows. n: at most w->score_slice. */
status run_head(carat_model *m, workspace *w, const pass_part *part, int32_t k, int32_t n, mat *y,
                err *e);
/* Row i of them to w->logits. E_NUMERIC as read_logits. */
status read_head(carat_model *m, workspace *w, mat y, int32_t i, int64_t pos, err *e);
/* After run_pass, also if nothing is kept: t goes on with n rows of its part. path: NULL for the
 * first n rows of a chain, else the rows' numbers from the committed context downwards, each the
 * parent of the next. The other rows are dropped. Once per pass and timeline. With recurrent
 * layers, fewer than all rows of a final part reset t. */
void timeline_commit(timeline *t, const pass_part *part, const int32_t *path, int32_t n);
status not_finite(const carat_model *m, int64_t pos, err *e); /* the sentence for LOGITS_BAD */

#endif
