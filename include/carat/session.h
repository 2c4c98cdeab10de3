/* carat/session.h - sessions: options, evaluation, checkpoints, snapshots. */
#ifndef CARAT_SESSION_H
#define CARAT_SESSION_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carat_session_options {
    int32_t n_ctx; /* capacity in tokens; 0: the model's longest, halved until it fits memory; on a
                      GPU as carat_model_info.fit_ctx has it */
    int32_t chunk; /* most rows of a prompt in one pass; 0: chosen by the device */
    /* Formats of keys and of values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, tq3_0.
     * From q8_0 to iq4_nl, "+rot" rotates before encoding: "q4_0+rot". NULL: keys
     * carat_model_info.fit_kv, values as keys. */
    const char *kv_k, *kv_v;
    const char *kv_layers; /* NULL, or "SPEC=TYPE,..." for some layers: SPEC is global, swa, a layer
                              or first-last; TYPE as above or "keys/values". Later ones win */
    const char *kv_single; /* one stream for layers whose values are their raw keys (12B, 26B-A4B,
                              31B): "on", "off", or NULL or "auto": where the device gains by it */
    int32_t n_outputs;     /* most rows of one pass that give logits; 0: 16. carat_eval_rows
                              runs passes of min(chunk, n_outputs) rows */
    /* Host memory in MiB for checkpoints: saved states that later prompts may return to. 0: a
     * quarter of the memory left over, at most 4 GiB; < 0: none. The slots of a batch share it. */
    int32_t checkpoint_mb;
    /* A directory for checkpoints that outlive the program; NULL: none. It is made if it is not
     * there. Other users must not be able to write to it. Programs may share it. cache_mb bounds
     * the files of all models together, in MiB; 0: 4096. */
    const char *cache_dir;
    int32_t cache_mb;
    /* With a drafter. draft_max: most tokens that a round drafts in a row; 0: as many as the
     * drafter was made for, at most 15; up to 63. draft_tree: most tokens of a round that drafts
     * several continuations; 0: chosen by cost; < 0: one continuation only; up to 63. A batch may
     * check fewer for each of many slots. */
    int32_t draft_max, draft_tree;
    /* Tokens of the pool that the slots of a batch take keys and values of global layers from; at
     * least 512, at most a whole context for each. 0: that much, so nothing has to wait for
     * another. With less, jobs begin when the pool has room for their prompts, later jobs leave it
     * for earlier ones and go on when there is room again; no answer changes. n_ctx is at most the
     * pool, unless kv_resident is set. */
    int32_t kv_pool;
    /* kv_resident: tokens of keys and values of global layers that a session, or a slot of a batch,
     * keeps on the devices, at least 512. 0: its whole context. -1: chosen by free memory, or an
     * equal share of kv_pool. With fewer than n_ctx the other pages, of 64 tokens each, are in host
     * memory, byte for byte. A token attends to the pages that are on the devices alone. So tokens
     * that are computed while pages are away differ from those of a whole context; checkpoints are
     * taken of exact tokens alone (docs/kv.md).
     * kv_policy selects the pages on the devices. "scored" or NULL: those that the model's last
     * queries attend to most, at the end of a prompt by real attention, else by upper bounds of it.
     * "lru": the youngest. "snapkv": selected once, at the end of a prompt; the others are dropped
     * (arXiv 2404.14469, by pages). "drafter": those that the text's end attends to in
     * carat_model_options.scorer, which may have another vocabulary.
     * kv_tau: tokens between two selections; 0: 64. kv_host_mb: most host memory in MiB; 0: any
     * amount. Beyond it pages go to a file in cache_dir; without one the call ends with E_LIMIT. */
    int32_t kv_resident;
    const char *kv_policy;
    int32_t kv_tau, kv_host_mb;
    /* Attention of layers without a window may leave keys out, which is faster and changes answers.
     * NULL or "off": it does not. "skip:SCALE": of every tile of 128 keys whose largest score lies
     * under the row's largest so far by more than ln(n / SCALE), n the keys that the row sees,
     * values are not read. "flash:ALPHA": 128 rows of a prompt read of the tiles of 128 keys those
     * whose estimated share is at least ALPHA of the largest, the first two, the last four; the
     * last two blocks of rows read all, and so do answers. GPUs have kernels for some heads and
     * formats (docs/sparse.md). "auto": flash:0.1 in prompts of a length from which it was measured
     * to be faster with this kind of model on this kind of device, else exact; "auto:TOKENS": from
     * that length on. carat_sparse_describe says which. Keys and values computed so are reused by
     * prompts of the same setting alone: a conversation that grows past the length is computed anew
     * once. */
    const char *sparse;
} carat_session_options;

/* The pool of a session's keys (kv_resident). */
typedef struct carat_pool_info {
    bool on;                         /* smaller than the context */
    bool lossy;                      /* a token was computed while pages were away */
    int32_t n_tokens;                /* of the pool; 0: the whole context */
    int64_t n_paged_out;             /* tokens in pages that are on the host now */
    int64_t n_out, n_in;             /* pages copied to the host, and back, since open */
    int64_t n_reselected;            /* selections of pages, since open */
    uint64_t page_bytes;             /* of one page, all layers */
    uint64_t host_bytes, file_bytes; /* of pages in host memory, and in the file, now */
    const char *policy;              /* in use; static storage */
    const char *policy_why; /* why it is not the one asked for; "": it is. Owned by the session */
    const char *why;        /* how -1 was chosen; "": by the caller. Owned by the session */
} carat_pool_info;

/* Takes all memory that the session will need. opt may be NULL. On failure *s is NULL. E_MEMORY:
 * the plan does not fit (carat_plan has the numbers); E_LIMIT: n_ctx is beyond the model's; E_ARG,
 * E_UNSUPPORTED: options; E_IO: cache_dir. The session must be closed before its model. */
CARAT_API carat_status carat_session_open(carat_model *m, const carat_session_options *opt,
                                          carat_session **s, carat_error *e);
CARAT_API void carat_session_close(carat_session *s); /* s may be NULL */
CARAT_API int32_t carat_session_n_ctx(const carat_session *s);
CARAT_API int64_t carat_session_n_past(const carat_session *s); /* tokens in the cache */
/* Ends the call that runs on the session after its current pass, with E_CANCELLED; carat_generate
 * with CARAT_FINISH_CANCELLED. If no call runs, it ends the next one. Any thread;
 * async-signal-safe. */
CARAT_API void carat_session_cancel(carat_session *s);
/* How the last prompt used the cache, as a phrase for a log: "new", "extended", "rewound",
 * "restored" (from a checkpoint), "restored from disk", "rebuilt: ..."; static storage. n_dropped
 * receives the number of cached tokens that were dropped; may be NULL. */
CARAT_API const char *carat_session_reuse(const carat_session *s, int64_t *n_dropped);

/* The checkpoints of a session or batch. A failure with one never changes an answer; last_error has
 * the sentence of the latest. */
typedef struct carat_cache_info {
    int64_t n_checkpoints;     /* in memory */
    uint64_t checkpoint_bytes; /* of host memory that they take; pages of the pool not counted */
    int64_t n_files;           /* of all models in cache_dir, when it was last listed */
    uint64_t file_bytes;
    int64_t n_written, n_failed; /* files, since open */
    int64_t n_rejected;          /* damaged files, since open; they were removed */
    char last_error[256];        /* "": none */
} carat_cache_info;

/* Both fill *info; the first waits for files that are being written. The thread of the session. */
CARAT_API void carat_session_cache(const carat_session *s, carat_cache_info *info);
CARAT_API void carat_session_get_pool(const carat_session *s, carat_pool_info *info);

/* What the attention of one layer has left out, summed over pairs of row and query head. The
 * certificate of a pair is an upper bound of the share of its softmax that it left out.
 * Skip-softmax follows BLASST (arXiv 2512.12087), block selection FlashPrefill (arXiv 2603.06199).
 */
enum { CARAT_SPARSE_BINS = 9 };
typedef struct carat_sparse_layer {
    int32_t layer;
    uint64_t n_tiles, n_kept; /* tiles of 128 keys that the pairs see, and those that they read */
    double dropped_p50, dropped_p99, dropped_max; /* quantiles of the certificates, rounded up; -1:
                                                     block selection, which has none */
    /* Pairs by certificate: below 1e-8, below 1e-7, ... below 0.1, all others. */
    uint64_t bin[CARAT_SPARSE_BINS];
} carat_sparse_layer;
/* What carat_session_options.sparse means for a model on its devices, as a phrase. cap: of text;
 * 320 suffice. Errors as of carat_session_open. Any thread. */
CARAT_API carat_status carat_sparse_describe(const carat_model *m, const char *sparse, char *text,
                                             size_t cap, carat_error *e);
/* The layers that left keys out, of the tokens since the last clear or the last carat_generate.
 * Returns their number; the first cap are written; list may be NULL with cap 0. The thread of the
 * session. */
CARAT_API int32_t carat_session_sparse(carat_session *s, carat_sparse_layer *list, int32_t cap,
                                       bool clear);

/* An exact copy of a session's state, in host memory. A session that restores it continues bit for
 * bit like the original. Sessions of one open model with the same formats of keys and values may
 * exchange snapshots; n_ctx and chunk may differ. The model may be opened again with other devices
 * and another carat_model_options.split: it takes files of them (carat_batch_write_snapshot). One
 * with tokens that were computed while keys were away (kv_resident) goes to sessions of the same
 * pool, policy and kv_tau alone; others refuse it with E_ARG. A snapshot never changes, so several
 * threads may restore it. Free it before its model is closed. */
typedef struct carat_snapshot carat_snapshot;
/* On failure *p is NULL. E_ARG: the session is empty; E_LIMIT: its rings do not reach back far
 * enough; E_MEMORY; E_IO, E_FORMAT: a page of keys in a file cannot be read. */
CARAT_API carat_status carat_snapshot_take(carat_session *s, carat_snapshot **p, carat_error *e);
/* On failure s is unchanged. E_ARG: the snapshot is of another model, of other formats, or lossy
 * and of another pool; E_LIMIT: the pool has no room for it; E_MEMORY. */
CARAT_API carat_status carat_snapshot_restore(carat_session *s, const carat_snapshot *p,
                                              carat_error *e);
CARAT_API int64_t carat_snapshot_n(const carat_snapshot *p);      /* tokens */
CARAT_API uint64_t carat_snapshot_bytes(const carat_snapshot *p); /* of host memory */
CARAT_API void carat_snapshot_free(carat_snapshot *p);            /* p may be NULL */

/* Makes ids[0..n) the whole timeline: keeps the longest prefix that is cached, or saved in a
 * checkpoint, and computes the rest in chunks; at least the last token is computed. logits receives
 * the row [n_vocab] after the last token. logits and n_reused may be NULL. E_LIMIT: n is beyond the
 * context; E_CANCELLED, E_NUMERIC. After a failure the timeline is the part that was computed. */
CARAT_API carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, float *logits,
                                  int64_t *n_reused, carat_error *e);
/* Rows of logits [n, n_vocab]: those after the tokens first .. first + n - 1. They are valid during
 * the call. Returns false to cancel. */
typedef bool (*carat_rows_fn)(void *user, int64_t first, int64_t n, const float *rows);
/* As carat_eval, and fn receives the row after every token, in order, pass by pass, at most
 * n_outputs rows at a time. So every token is computed: nothing is reused. E_CANCELLED also if fn
 * returned false. */
CARAT_API carat_status carat_eval_rows(carat_session *s, const int32_t *ids, int64_t n,
                                       carat_rows_fn fn, void *user, carat_error *e);
/* Computes ids[0..n) after the tokens that are cached. As carat_eval of both together, but it
 * compares no prefix, so a token costs the host the same at any depth. With all_logits there are n
 * rows. */
CARAT_API carat_status carat_append(carat_session *s, const int32_t *ids, int64_t n,
                                    bool all_logits, float *logits, carat_error *e);
/* Forgets the tokens from position n on, so that n are left. False, and nothing changes, if the
 * rings of sliding-window layers have overwritten keys that position n would see, or if recurrent
 * layers have taken tokens after n into their states: all but those of the last pass of an answer.
 * n 0 is always possible.
 */
CARAT_API bool carat_rewind(carat_session *s, int64_t n);
CARAT_API void carat_reset(carat_session *s); /* forgets the timeline, not its checkpoints */

#ifdef __cplusplus
}
#endif
#endif
