/* engine_int.h - what the files of engine/ share: the model, the session, and their small verbs.
 *
 *     carat_model    weights on a device, vocabulary, chat format: read-only once open
 *     carat_session  one timeline: the ids that were computed, their keys and values, scratch
 *
 * The ids of a session are the truth about its cache: id[0 .. kv.n_past) are exactly the tokens
 * whose keys and values are in it. Every path that moves kv.n_past keeps that so.
 *
 * Passes of several sessions take turns on the device (model->pass_lock); everything else of a
 * session belongs to the one thread that is in a call on it, but for `cancel`.
 */
#ifndef ENGINE_ENGINE_INT_H
#define ENGINE_ENGINE_INT_H

#include "backend/ops.h"
#include "backend/pass.h"
#include "format/gguf.h"
#include "kv/kv.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/vocab.h"

#include "engine/sample.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    OUTPUTS_DEFAULT = 16, /* rows of a pass with logits: a verify batch; 16 MiB at 262144 ids */
    N_CTX_MIN = 64        /* a session that cannot hold even this is refused */
};

struct carat_model {
    model core;
    device *dev;
    vocab *text;          /* NULL: a model without vocabulary */
    chat_format chat;     /* CHAT_NONE: plain completion only */
    char *file_type;      /* "Q4_K_M" */
    bool loaded;          /* weights are on the device */
    bool overcommit;      /* the caller does not want to be refused */
    bool direct;          /* the file was read into memory of ours, which no kernel can take back */
    uint64_t taken_bytes; /* anonymous memory that loading took: packed or copied weights */
    double load_ms;
    carat_progress_fn progress; /* also told about prefill */
    void *progress_user;
    pthread_mutex_t pass_lock; /* the device runs one pass at a time */
    bool has_lock;
};

/* What a session of a model costs; fixed once it is open. */
typedef struct session_shape {
    int32_t n_ctx, chunk, n_outputs;
    num_type kv_k, kv_v;
} session_shape;

struct carat_session {
    carat_model *m;
    session_shape shape;
    kv_layout layout;
    kv_cache kv;
    kv_batch batch;
    void *scratch; /* device memory */
    size_t scratch_bytes;
    int32_t *id;   /* [n_ctx]: see above */
    float *logits; /* [n_vocab] of the last row, on the host */
    float *raw;    /* [n_vocab] the same before the sampler's changes, for logprobs */
    sampler sampler;
    const char *reuse; /* what the last prompt found in the cache: static storage */
    int64_t n_dropped; /* cached tokens it could not use */
    atomic_bool cancel;
};

/* engine.c */
status model_check_loaded(const carat_model *m, err *e);

/* plan.c: turns options into a shape and its costs. Refuses what cannot be or does not fit. */
status plan_shape(const carat_model *m, const carat_session_options *opt, session_shape *shape,
                  err *e);
status plan_costs(const carat_model *m, const session_shape *shape, kv_layout *layout,
                  carat_memory_plan *plan, err *e); /* layout may be NULL */
status plan_check(const carat_model *m, const carat_memory_plan *plan, err *e);

/* session.c. session_align keeps the longest usable prefix of ids[0..n): afterwards
 * kv.n_past < n, and id[0..kv.n_past) == ids[0..kv.n_past). */
void session_align(carat_session *s, const int32_t *ids, int64_t n);
status session_check_ids(const carat_session *s, const int32_t *ids, int64_t n, err *e);
/* True once per carat_session_cancel: takes the wish back as it reports it. */
bool session_take_cancel(carat_session *s);

/* prefill.c. One pass over n rows that extend the timeline; commits them. want as kv_batch_add;
 * logits receives the wanted rows, [n_wanted, n_vocab]. */
status session_pass(carat_session *s, const int32_t *ids, int32_t n, kv_want want, float *logits,
                    err *e);
/* Progress of a prefill: false to cancel. */
typedef bool (*prefill_fn)(void *user, int64_t done, int64_t total);
/* Computes ids[kv.n_past..n). all: logits of every row, [n - n_past, n_vocab]; else of the last. */
status session_prefill(carat_session *s, const int32_t *ids, int64_t n, bool all, float *logits,
                       prefill_fn fn, void *user, err *e);

#endif
