/* drafter.h - one interface for all drafters: what they propose, and what they are told.
 *
 * A drafter proposes the next tokens of a timeline. The target model then computes the last token
 * and all drafts in one pass, a round (engine/round.c). A wrong draft costs time and never changes
 * an answer.
 *
 *     draft_model    a method and its weights, opened for one target model; sessions share it
 *     drafter        its work space for one session or batch
 *     draft_state    what it keeps of one timeline
 *     proposal       for each of the next positions, its best tokens and their probabilities
 *
 * The thread that runs the target's passes makes the calls, between passes and with the model's
 * pass lock held:
 *
 *     propose(ask[0..n))     drafts for n timelines, in one pass if the drafter has passes
 *     ... the target's pass over rows of these and other timelines, with the drafter's taps ...
 *     absorb(kept[0..m))     the rows that every timeline of that pass keeps: of prompts too, and
 *                            of rounds without a draft
 *     forget(state, n)       a timeline was cut to its first n tokens
 *
 * absorb may miss rows: n_past is then beyond what the state has absorbed, as after a snapshot
 * without the state's keys. A state that cannot go on without them proposes nothing until it is
 * forgotten to 0. A failed propose or absorb ends the drafting of its session; answers go on
 * without drafts. Rows that the timeline has when a drafter's work space is opened count as missed.
 */
#ifndef SPEC_DRAFTER_H
#define SPEC_DRAFTER_H

#include "backend/pass.h"
#include "kv/kv.h"
#include "model/model.h"

enum {
    DRAFT_SLOTS_MAX = STEP_TREE_ROWS_MAX - 1, /* positions after the last token */
    DRAFT_RANKS_MAX = 8                       /* tokens per position */
};

typedef struct draft_class draft_class;
typedef struct draft_state draft_state; /* each class has its own */

/* Drafts for the positions after the last token. Slot 0 is the first of them. Ranks of a slot
 * descend in probability. Drafters that go token by token give the probabilities of slot i + 1
 * under the best token of slot i; block drafters give marginals (DDTree). */
typedef struct proposal {
    int32_t n_slots; /* 0: no draft */
    int32_t n_ranks; /* of every slot */
    int32_t id[DRAFT_SLOTS_MAX][DRAFT_RANKS_MAX];
    float logp[DRAFT_SLOTS_MAX][DRAFT_RANKS_MAX]; /* natural logarithm of the probability */
} proposal;

/* A timeline that wants a draft. */
typedef struct draft_ask {
    draft_state *s;
    const kv_cache *target; /* the keys and values of id[0 .. n - 1) */
    const int32_t *id;      /* [n]; the last token has no keys yet */
    int64_t n;
    int32_t n_slots; /* at most so many, 1 or more */
    int32_t n_ranks; /* 1: a chain is wanted */
    int32_t at;      /* the last token's position on the axes of the target's layout */
    /* The answer as its client predicts it, [n_predicted], and how many of the n tokens are the
     * answer. For lookup alone. */
    const int32_t *predicted;
    int64_t n_predicted, n_answer;
    proposal *out;
} draft_ask;

/* Rows of the last pass that a timeline keeps. */
typedef struct draft_kept {
    draft_state *s;
    const kv_cache *target; /* after the commit */
    const int32_t *id;      /* [n_past + n] */
    int64_t n_past;         /* tokens before these rows */
    int32_t n;              /* rows kept; 0 is allowed */
    const int32_t *row;     /* [n] their numbers in the pass, for taps of layers; ascending */
    const step *pass;       /* the pass */
    int32_t norm_row; /* the last kept row's number in the tap PASS_TAP_NORM; -1: not wanted */
} draft_kept;

/* The sizes of a session or batch. */
typedef struct draft_sizes {
    device *dev; /* the drafter's, for dry passes too: the target's main one, or of classes `apart`
                    another */
    device *target_dev; /* then the target's main one; NULL: it is dev */
    int32_t n_ctx;
    int32_t rows_max; /* of a pass of the target */
    int32_t outs_max; /* rows of a pass with logits */
    int32_t n_seqs;   /* timelines */
    int32_t n_slots;  /* most slots of an ask */
    const kv_layout *target_kv;
} draft_sizes;

static inline device *draft_target_dev(const draft_sizes *z)
{
    return z->target_dev ? z->target_dev : z->dev;
}

/* Memory beyond the weights. */
typedef struct draft_costs {
    uint64_t device_bytes;       /* of the work space, on draft_sizes.dev: scratch, taps */
    uint64_t device_state_bytes; /* of one timeline, there */
    uint64_t target_bytes[PASS_SIDES_MAX]; /* of the work space, on other devices: by the target's
                                              side; beside the model nothing of side 0 */
    uint64_t host_bytes;         /* of work space and all timelines, on the host */
    pass_taps taps;              /* of every pass of the target, without addresses; n 0: none */
} draft_costs;
/* What the work space takes of the target's main device. */
static inline uint64_t *draft_target_cost(draft_costs *c, const draft_sizes *z)
{
    return z->target_dev ? &c->target_bytes[PASS_MAIN] : &c->device_bytes;
}

/* One open method. Classes with weights extend it; core.arch is NULL without weights. */
typedef struct draft_model {
    const draft_class *class;
    model core;          /* the drafter's own weights */
    const model *target; /* outlives it */
    int32_t n_slots;     /* most slots that it can fill */
    char why[320];       /* the reason for this drafter, as a phrase */
    const char *notes; /* contradictions in its file, a line each; NULL: nothing is known of any */
} draft_model;

/* A work space. Each class extends it. */
typedef struct drafter {
    const draft_class *class;
    const draft_model *m;
    draft_sizes sizes;
    const pass_taps *taps; /* of every pass of the target; NULL: none */
} drafter;

struct draft_class {
    const char *name; /* "lookup", "dflash", "mtp", "nextn", "model" */
    bool apart;       /* has weights, and reads no keys of the target: its device may be another */
    /* Makes the class's model in m, whose class and target are set: binds core and sets n_slots.
     * file: of classes with weights; taken, on success and on failure. */
    status (*bind)(draft_model *m, gguf *file, err *e);
    status (*plan)(const draft_model *m, const draft_sizes *z, draft_costs *c, err *e);
    status (*open)(const draft_model *m, const draft_sizes *z, drafter **out, err *e);
    void (*close)(drafter *d);
    status (*state_open)(drafter *d, draft_state **out, err *e);
    void (*state_close)(drafter *d, draft_state *s); /* s may be NULL */
    /* Fills every ask->out; one that finds nothing leaves n_slots 0. */
    status (*propose)(drafter *d, const draft_ask *ask, int32_t n, err *e);
    status (*absorb)(drafter *d, const draft_kept *kept, int32_t n, err *e); /* NULL: needs none */
    void (*forget)(drafter *d, draft_state *s, int64_t n);
    /* Absorbs what absorb has put off. NULL: absorb puts nothing off. */
    status (*settle)(drafter *d, err *e);
    /* The cache of the state's own keys, for snapshots: rows 0 .. n of it belong to the first n
     * tokens; complete after settle. NULL: the state follows from the tokens. */
    kv_cache *(*cache)(draft_state *s);
};

/* The model of a class for one target, which outlives it; the caller sets why and loads the
 * weights. file: of classes with weights; taken, on success and on failure. */
status draft_model_open(const draft_class *class, const model *target, gguf *file,
                        draft_model **out, err *e);
void draft_model_close(draft_model *m); /* NULL is fine */

extern const draft_class draft_lookup; /* lookup.c: no weights */
extern const draft_class draft_dflash; /* dflash.c: block drafters */
extern const draft_class draft_small;  /* small.c: a smaller model of the same vocabulary */
extern const draft_class draft_mtp;    /* mtp.c: MTP assistants of Gemma 4 */
extern const draft_class draft_nextn;  /* nextn.c: NextN layers of Qwen3.5 and its successors */

#endif
