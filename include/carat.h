/* carat.h - the one public header of libcarat, an inference engine for language models: Gemma 4,
 * Qwen3 to 3.8 and Laguna.
 *
 * A model is an open GGUF file with its weights on a device. It is read-only, and sessions share
 * it. A session is one timeline of tokens over a model. The caller passes the whole prompt each
 * time; the session keeps the prefix that is already in its cache and computes the rest.
 *
 *     carat_error e = {0};
 *     carat_model *m;
 *     carat_session *s;
 *     if (carat_model_open("model.gguf", NULL, &m, &e) || carat_session_open(m, NULL, &s, &e))
 *         die(e.text);
 *     n = carat_tokenize(m, "Hello", 5, CARAT_TOK_BOS, ids, cap, &e);
 *     carat_generate(s, ids, n, NULL, on_event, user, NULL, &e);
 *
 * Errors: a call that can fail returns a carat_status and leaves one sentence for the user in its
 * carat_error, which may be NULL. The library never prints, exits or aborts.
 * Threads: many threads may use a model. One thread at a time may use a session or a grammar. Only
 * carat_session_cancel may come from any thread, and from a signal handler. "Any thread" at a call
 * means: also while others use the model. Ownership: what an open or take call returns is the
 * caller's, who closes or frees it: snapshots and sessions before their model. Strings in structs
 * that the library fills belong to the model or are static; the comment says which. Pointers in
 * options are read during the call only, unless the comment says otherwise. Units: token ids and
 * counts are int32_t, positions int64_t; a name that ends in _bytes, _ms or _mb says its unit.
 * Arrays of logits are f32, row-major, [rows, n_vocab].
 */
#ifndef CARAT_H
#define CARAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CARAT_API __attribute__((visibility("default")))
#else
#define CARAT_API
#endif

#define CARAT_VERSION_MAJOR 0
#define CARAT_VERSION_MINOR 2
#define CARAT_VERSION_PATCH 0

/* ---- Errors ---------------------------------------------------------------------------- */

typedef enum carat_status {
    CARAT_OK = 0,
    CARAT_E_ARG,         /* the arguments make no sense */
    CARAT_E_FORMAT,      /* a file or message is malformed or damaged */
    CARAT_E_IO,          /* the operating system refused or failed */
    CARAT_E_MEMORY,      /* not enough memory, of the host or of a device */
    CARAT_E_UNSUPPORTED, /* well formed, but carat does not do it */
    CARAT_E_LIMIT,       /* longer than the context, or beyond another stated limit */
    CARAT_E_CANCELLED,   /* by carat_session_cancel or by a callback */
    CARAT_E_NUMERIC      /* the model computed NaN or infinity */
} carat_status;

/* Zero it before the first call. The first failure stays: later ones do not overwrite it. */
typedef struct carat_error {
    carat_status status;
    char text[1024]; /* one sentence for the user, UTF-8, NUL-terminated */
} carat_error;

CARAT_API const char *carat_status_name(carat_status st); /* "E_FORMAT"; static storage */
CARAT_API const char *carat_version(void);                /* "MAJOR.MINOR.PATCH"; static */

/* ---- Models ---------------------------------------------------------------------------- */

typedef struct carat_model carat_model;
typedef struct carat_session carat_session;

/* Tells the progress of loading and of long prompts. `what` names the unit of done and total:
 * "bytes read", "bytes loaded", "prompt tokens". Runs on the thread of the call that it reports.
 * Return false to cancel that call. */
typedef bool (*carat_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* Receives the lines of the device wrappers (`wrap` below), each with its newline. Must not call
 * the library. */
typedef void (*carat_log_fn)(void *user, const char *text);

/* See `planned` below. */
typedef carat_status (*carat_planned_fn)(void *user, const carat_model *m, carat_error *e);

/* A file in memory. */
typedef struct carat_bytes {
    const void *at;
    size_t n;
    const char *name; /* for sentences, and where a name chooses one of several */
} carat_bytes;

typedef struct carat_model_options {
    int32_t n_threads; /* 0: one per physical core this process may use */
    bool no_mmap;      /* read the file into memory instead of mapping it */
    bool vocab_only;   /* metadata, tokenizer and plans; no weights are loaded */
    bool reference;    /* the plain reference kernels: slow and exact, for tests */
    bool exact_f32;    /* CPU: activations stay f32 in matrix products instead of int8 */
    bool no_repack;    /* CPU: products read the file's layout: less memory, less speed */
    bool overcommit;   /* plans beyond the available memory are allowed */
    const char *wrap;  /* NULL, or any of "trace", "time", "check" joined by commas */
    const char *isa;   /* NULL: the best of this CPU; or "portable", "avx2", "avx512",
                          "avx512bf16", "neon" */
    /* "cpu", "cuda" or "cuda:N": that device, or an error. NULL or "auto": a GPU if this build
     * supports it, the machine has one, the model fits and no option above asks for CPU kernels;
     * else the CPU. */
    const char *device;
    /* For a model on a GPU: the number of layers there, counted from the last; 0: all. The CPU has
     * the other layers and the embeddings. With cpu_experts it has the experts of all layers. */
    int32_t gpu_layers;
    bool cpu_experts;
    /* The most memory, in MiB, that carat may take of the GPU; 0: what is free. */
    int64_t gpu_mb;
    /* Of a mixture: the experts that the GPU holds. The others stay in the host's memory, where the
     * GPU reads them; those used lately are exchanged for others. Answers do not depend on it. NULL
     * or "auto": all that fit beside the rest; "0.5" or "50%": that part of them; "4000": as many
     * as fit in so many MiB. */
    const char *experts_gpu;
    /* Of the other experts, those that the CPU computes beside the GPU, which reads the rest: NULL
     * or "off": none; "auto": as many of each layer's as make it end first, by measured speeds;
     * "0.5" or "50%": that part of them. Passes of more than 16 rows, and prompts, have none. Its
     * threads, n_threads of them, take their cores as long as answers come. Answers do not depend
     * on it. */
    const char *experts_cpu;
    /* Experts that a layer will probably choose are copied to the GPU before it chooses, where it
     * does not hold them: so many at a time, "1" to "4", or none, "off". NULL or "auto": 2, if the
     * model's routers allow it and the CPU has a core for the thread that starts the copies. While
     * most guesses are wrong, none is copied. Answers do not depend on it. */
    const char *experts_early;
    /* The sessions for which "auto" leaves room; NULL: one of a few thousand tokens. Read while the
     * model is opened. */
    const struct carat_session_options *session;
    int32_t n_sessions; /* that share a batch; 0: 1 */
    bool strict;        /* refuse a model or session that needs a slow kernel */
    /* The drafter, whose tokens the model then checks, several in one pass. Answers are the same
     * with every drafter and without one. NULL or "none": nothing; "lookup": what came after the
     * last tokens earlier in prompt and answer; "nextn": the NextN (MTP) layer of the model's own
     * file; a path: the drafter in that file or directory; "auto": the NextN layer, else a drafter
     * file beside the model file, else "lookup". */
    const char *draft;
    /* Drafters that the program carries with it, as files in memory. The bytes must outlive the
     * model. "auto" takes the first that fits before it looks beside the model file; `draft` may be
     * the name of one. */
    const carat_bytes *draft_bytes;
    int32_t n_draft_bytes;
    /* A model file that scores pages of keys for kv_policy "drafter", of any family and vocabulary.
     * It runs on the CPU, with n_threads; plans have its memory. NULL: none. */
    const char *scorer;
    /* Called after devices are chosen and before weights are loaded. It may ask for plans and
     * nothing else. Another status than OK makes opening fail with that status and e. With draft
     * "auto", E_MEMORY leads to a second call without the drafter's weights: if that is OK, lookup
     * takes the drafter's place. May be NULL. */
    carat_planned_fn planned;
    void *planned_user;
    carat_progress_fn progress; /* of loading; of prompts, where no event reports it. May be NULL */
    void *progress_user;
    carat_log_fn log; /* for `wrap` and what is done without; may be NULL */
    void *log_user;   /* progress and log are kept until the model is closed */
} carat_model_options;

/* Opens a GGUF file, version 2 or 3, or the first file of a split set, and loads its weights. opt
 * may be NULL: all defaults. On failure *m is NULL. E_FORMAT: the file; E_UNSUPPORTED: an
 * architecture, format or device that carat does not do; E_MEMORY: the plan does not fit; E_IO,
 * E_CANCELLED, E_ARG. */
CARAT_API carat_status carat_model_open(const char *path, const carat_model_options *opt,
                                        carat_model **m, carat_error *e);
/* The same from the bytes of one file, which must outlive the model. name: for error sentences; may
 * be NULL. */
CARAT_API carat_status carat_model_open_bytes(const void *bytes, size_t n_bytes, const char *name,
                                              const carat_model_options *opt, carat_model **m,
                                              carat_error *e);
/* m may be NULL. Its sessions, batches, grammars and snapshots must be closed before. */
CARAT_API void carat_model_close(carat_model *m);

/* Frees the device memory of the weights until unpark loads them again. Sessions, their caches and
 * snapshots stay. A call that computes while the model is parked fails with E_ARG. Any thread. A
 * failed unpark leaves the model parked and may be repeated. */
CARAT_API void carat_model_park(carat_model *m);
CARAT_API carat_status carat_model_unpark(carat_model *m, carat_error *e);

typedef struct carat_model_info {
    const char *name;         /* general.name, or the file name */
    const char *architecture; /* "gemma4" */
    const char *file_type;    /* "Q4_K_M", or the commonest weight type */
    const char *device;       /* the main device: "cpu (avx512, 2 threads)" */
    const char *device_why;   /* the reason for this device, as a phrase */
    bool on_gpu;              /* the main device is a GPU */
    int32_t n_layer, n_embd, n_vocab;
    int32_t n_ctx_train;               /* the longest context, in tokens */
    int32_t window;                    /* of sliding-window layers, in tokens */
    const char *drafter, *drafter_why; /* its method, and the reason for it; NULL: none */
    /* Contradictions in the drafter's file, and what was taken instead: lines. "": none. */
    const char *drafter_notes;
    uint64_t n_params;
    uint64_t n_params_active;        /* that one token uses, the head included */
    uint64_t weight_bytes;           /* of all tensors in the file */
    uint64_t active_bytes_per_token; /* weights that one decoded token reads */
    bool has_vocab;                  /* can turn text into tokens */
    bool has_chat;                   /* its chat template is known */
    bool thinks;                     /* the template asks for a thought unless told otherwise */
} carat_model_info;

/* The strings in *info belong to the model. Any thread. */
CARAT_API void carat_model_get_info(const carat_model *m, carat_model_info *info);

/* One entry of the file's metadata, or one item of a list. */
typedef enum carat_meta_kind {
    CARAT_META_INT,
    CARAT_META_REAL,
    CARAT_META_BOOL,
    CARAT_META_TEXT,
    CARAT_META_LIST,
    CARAT_META_OTHER /* a list inside a list, or text that is not valid UTF-8 */
} carat_meta_kind;
typedef struct carat_meta {
    const char *key; /* "gemma4.context_length"; NULL: an item */
    carat_meta_kind kind;
    int64_t i;        /* INT, BOOL; of a u64 beyond int64_t: INT64_MAX */
    double real;      /* REAL */
    const char *text; /* TEXT: n_text bytes of UTF-8, not NUL-terminated */
    uint64_t n_text;
    uint64_t n_items; /* LIST */
    const void *list; /* LIST: for carat_meta_next */
} carat_meta;

/* Entry i, in the order of the file. False: past the end. What *out points to belongs to the model.
 * Any thread. */
CARAT_API bool carat_model_meta(const carat_model *m, int64_t i, carat_meta *out);
CARAT_API bool carat_model_find_meta(const carat_model *m, const char *key, carat_meta *out);
/* The items of a list, one call each. *at is 0 before the first call. False: past the end. */
CARAT_API bool carat_meta_next(const carat_meta *list, uint64_t *at, carat_meta *item);

/* Memory of one device of a model, at the time of the call. */
typedef struct carat_device_memory {
    const char *device;       /* owned by the model */
    uint64_t used_bytes;      /* by this model: copied weights, caches, scratch */
    uint64_t available_bytes; /* free, for any program; 0: unknown */
} carat_device_memory;
enum { CARAT_DEVICES_MAX = 9 }; /* of one model: eight GPUs and a CPU */
/* Returns the number of devices of the model. The first is the main one. Any thread. */
CARAT_API int32_t carat_memory(const carat_model *m, carat_device_memory list[CARAT_DEVICES_MAX]);

/* The time of all calls of one op with one shape and weight format, for a model opened with the
 * wrapper "time". Beside it, the least work of these calls: for a comparison with what the machine
 * can do. */
typedef struct carat_op_time {
    const char *op, *type; /* "matmul", "q4_k"; type "" without a weight; static storage */
    int32_t rows, n_in, n_out;
    int64_t n_calls;
    double ms;
    uint64_t bytes;             /* of weights, keys and values, each read once per call */
    uint64_t int8_ops, f32_ops; /* a multiply-add counts as two */
} carat_op_time;

/* Copies at most cap lines to list and returns the number copied. list may be NULL with cap 0.
 * clear empties the table. No call may be computing on the model meanwhile. */
CARAT_API int32_t carat_op_times(carat_model *m, carat_op_time *list, int32_t cap, bool clear);

/* ---- Text ------------------------------------------------------------------------------ */

enum {
    CARAT_TOK_BOS = 1,     /* the begin-of-sequence token comes first */
    CARAT_TOK_SPECIAL = 2, /* control tokens spelled out in the text become control tokens */
};

/* Bytes to ids, by the tokenizer of the file (byte-pair merges). Returns the number of tokens of
 * the whole text, of which the first cap are written; ids may be NULL with cap 0. -1: failed, e
 * says why. Any thread. */
CARAT_API int64_t carat_tokenize(const carat_model *m, const char *text, size_t n_bytes,
                                 int32_t flags, int32_t *ids, int64_t cap, carat_error *e);
/* The bytes of one token, which need not be valid UTF-8 by themselves. A control token has none
 * unless `special`. Returns their number, or -1 if id is out of range. *bytes belongs to the model
 * and is not NUL-terminated. Any thread. */
CARAT_API int32_t carat_token_bytes(const carat_model *m, int32_t id, bool special,
                                    const char **bytes);
CARAT_API int32_t carat_token_bos(const carat_model *m);             /* -1: the file has none */
CARAT_API bool carat_token_is_eog(const carat_model *m, int32_t id); /* does it end a turn? */

/* The tokens that mark up a model's answers; -1: it has none of that kind. */
typedef struct carat_marks {
    int32_t thought_open, thought_close, call_open, call_close;
    int32_t all[16]; /* these, and the marks of turns, results and ends: never part of a text */
    int32_t n_all;
} carat_marks;

CARAT_API void carat_model_get_marks(const carat_model *m, carat_marks *marks); /* any thread */

typedef struct carat_chat_options {
    bool thinking;             /* ask the model to think first */
    bool preserve_thinking;    /* keep the thoughts of finished tool turns */
    bool no_generation_prompt; /* do not open the assistant's turn */
    bool raw_markers;   /* markers inside content become control tokens, as in a Jinja server */
    bool continue_last; /* a last assistant message is the beginning of the answer: not closed */
    bool drop_thinking; /* drop finished thoughts where the model's template keeps them by itself */
    /* minimal, low, medium, high, xhigh or max, for templates with an instruction about it; others
     * ignore it. NULL: the template's default. Read during the call. */
    const char *reasoning_effort;
} carat_chat_options;

/* A rendered conversation: the prompt as text and as tokens. Free with carat_chat_free. */
typedef struct carat_chat {
    char *text; /* NUL-terminated; begins with one BOS, if the model has one */
    size_t n_text;
    int32_t *ids;
    int64_t n_ids;
    bool starts_thinking; /* the prompt ends inside a thought: carat_generate_options wants it */
} carat_chat;

/* Renders a conversation with the model's own chat format. messages_json: an array of messages as
 * in OpenAI's chat completions; tools_json: an array of tools of the same API, or NULL. opt may be
 * NULL. Without raw_markers, content never becomes a control token. E_FORMAT: the JSON or
 * a message; E_UNSUPPORTED: images and sounds, or a model without chat format. Any thread. */
CARAT_API carat_status carat_chat_render(const carat_model *m, const char *messages_json,
                                         const char *tools_json, const carat_chat_options *opt,
                                         carat_chat *out, carat_error *e);
CARAT_API void carat_chat_free(carat_chat *c); /* safe on a zeroed or freed chat */

/* ---- Sessions -------------------------------------------------------------------------- */

typedef struct carat_session_options {
    int32_t n_ctx; /* capacity in tokens; 0: the model's longest, halved until it fits memory */
    int32_t chunk; /* most rows of a prompt in one pass; 0: chosen by the device */
    /* Formats of keys and of values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, tq3_0.
     * From q8_0 to iq4_nl, "+rot" rotates before encoding: "q4_0+rot". NULL: keys "f16", values as
     * keys. */
    const char *kv_k, *kv_v;
    const char *kv_layers; /* NULL, or "SPEC=TYPE,..." for some layers: SPEC is global, swa, a layer
                              or first-last; TYPE as above or "keys/values". Later ones win */
    const char *kv_single; /* one stream for layers whose values are their raw keys (12B, 26B-A4B,
                              31B): "on", "off", or NULL or "auto": where the device gains by it */
    int32_t n_outputs; /* most rows of one pass that give logits; 0: 16. carat_eval with all_logits
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
    int64_t n_away;                  /* tokens in pages that are on the host now */
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

/* Both fill *info. The thread of the session. */
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
 * bit like the original. Sessions of one model with the same formats of keys and values may
 * exchange snapshots; n_ctx and chunk may differ. One with tokens that were computed while keys
 * were away (kv_resident) goes to sessions of the same pool, policy and kv_tau alone; others refuse
 * it with E_ARG. A snapshot never changes, so several threads may restore it. Free it before its
 * model is closed. */
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

/* The memory that one device of a model needs for a session. */
typedef struct carat_device_plan {
    const char *device;    /* owned by the model */
    int32_t n_layers;      /* of the model, on this device */
    uint64_t weight_bytes; /* in the device's layout */
    uint64_t expert_bytes; /* where some experts are in slots: slots, stages and tables. The weights
                              are without experts then */
    uint64_t kv_swa_bytes, kv_global_bytes; /* caches of sliding-window and of global layers */
    uint64_t recurrent_bytes;               /* states of recurrent layers, and their journals */
    uint64_t scratch_bytes;                 /* of a pass */
    uint64_t draft_bytes;                   /* the drafter: weights, caches, work space */
    uint64_t reserve_bytes;   /* GPUs: at most, for recorded passes, step blocks and libraries */
    uint64_t total_bytes;     /* the sum */
    uint64_t available_bytes; /* free, plus what this model has taken already; 0: unknown */
} carat_device_plan;

/* The memory that a session needs, by purpose, computed before the session exists. Sums over the
 * devices, then each device. */
typedef struct carat_memory_plan {
    uint64_t weight_bytes;                  /* of the file, which is mapped */
    uint64_t repack_bytes;                  /* copies of weights in the devices' layouts */
    uint64_t kv_swa_bytes, kv_global_bytes; /* caches of sliding-window and of global layers */
    uint64_t recurrent_bytes;               /* states of recurrent layers, and their journals */
    uint64_t scratch_bytes;                 /* of a pass */
    uint64_t draft_bytes;                   /* the drafter: weights, caches, work space */
    uint64_t scorer_bytes;           /* of kv_policy "drafter": weights, sessions. Host memory */
    uint64_t checkpoint_bytes;       /* at most; part of the total only with checkpoint_mb > 0 */
    uint64_t checkpoint_state_bytes; /* of each checkpoint: states of recurrent layers */
    uint64_t total_bytes; /* while computing. Pages of repacked weights leave memory, but not with
                             no_mmap */
    uint64_t available_bytes; /* free, plus what this model has taken already; 0: unknown */
    uint64_t chunk_flops;     /* of the products of a pass of `chunk` rows, n_outputs of which give
                                 logits */
    int32_t n_ctx, chunk;     /* as chosen */
    int32_t n_ring_slots;     /* of the largest ring of a sliding-window layer; 0: no ring */
    int32_t n_devices;
    carat_device_plan device[CARAT_DEVICES_MAX];
} carat_memory_plan;

/* The plan of the session that carat_session_open would open with opt, which may be NULL. A plan
 * that does not fit is no error here. Works for vocab_only models too. Any thread. */
CARAT_API carat_status carat_plan(const carat_model *m, const carat_session_options *opt,
                                  carat_memory_plan *plan, carat_error *e);

/* E_MEMORY for a plan that carat_session_open would refuse, with the bytes needed and available.
 * Any thread. */
CARAT_API carat_status carat_plan_check(const carat_model *m, const carat_memory_plan *plan,
                                        carat_error *e);

/* The experts of a model whose GPU does not hold all of them, and their use since it was loaded. A
 * pair is a row of a pass and one of its experts. */
typedef struct carat_expert_info {
    int32_t n_layers;             /* with experts */
    int32_t n_experts, n_slots;   /* of all layers together */
    uint64_t all_bytes;           /* of all experts */
    uint64_t slot_bytes;          /* of those that the GPU holds */
    uint64_t device_bytes;        /* slots, stages for prompts, tables */
    uint64_t host_bytes;          /* copies of all experts */
    const char *counts_file;      /* where counts are kept; NULL: nowhere. Owned by the model */
    uint64_t n_hits, n_misses;    /* pairs whose expert was in a slot, or was not */
    uint64_t n_swaps, swap_bytes; /* experts that were copied into slots */
    uint64_t n_failed;            /* copies that failed; passes do not depend on them */
    uint64_t n_streamed;          /* passes of prompts that copied experts layer by layer */
    uint64_t stream_bytes;        /* which they copied */
    uint64_t read_bytes;          /* of misses, read over the bus by the products themselves */
    double bus_bytes_s;           /* the bus to the GPU, measured when the model was loaded */
    int32_t cpu_threads;          /* that compute experts; 0: experts_cpu is off */
    double cpu_expert_ms;         /* their time for one expert, measured likewise */
    uint64_t n_cpu, cpu_bytes;    /* pairs of the misses that they computed; their experts */
    int32_t early_most;           /* experts on their way before a layer chooses; 0: none ever */
    uint64_t early_bytes;         /* copied before a layer chose its experts (experts_early) */
    uint64_t n_early;             /* experts that these were, */
    uint64_t n_early_used;        /* those of them that it then chose, */
    uint64_t n_early_waited;      /* of the chosen, still on their way when the layer chose, */
    uint64_t n_early_late;        /* and requests that were waited for in vain */
    int32_t early_ahead;          /* layers between a guess and its use, now */
    double wait_ms;               /* for the bus: as carat_timings.expert_wait_ms */
} carat_expert_info;

/* False: every device holds all experts of its layers, and *to is zeroed. Waits for a pass under
 * way. Any thread. */
CARAT_API bool carat_experts(const carat_model *m, carat_expert_info *to);

/* Layers of a session that store keys and values in the same way, and the kernel that reads them.
 */
typedef struct carat_kv_kind {
    const char *device;      /* owned by the model */
    int32_t n_layers, first; /* layers with keys of their own; the number of the first */
    int32_t window;          /* in tokens; 0: global */
    int32_t n_head_kv, head_dim;
    int32_t n_slots;   /* rows that a store holds, in tokens */
    bool single;       /* one stream of keys and values */
    char k[16], v[16]; /* formats, named as in carat_session_options */
    char kernel[96];   /* "avx512: unpacked 16 at a time" */
    bool slow;         /* correct, but not a fast path */
    uint64_t n_bytes;  /* of all n_layers */
} carat_kv_kind;

/* The kinds of the session that carat_session_open would open with opt, in order of their first
 * layers. Returns their number, of which the first cap are written; -1: failed, e says why. opt may
 * be NULL. Any thread. */
CARAT_API int32_t carat_plan_kv(const carat_model *m, const carat_session_options *opt,
                                carat_kv_kind *kinds, int32_t cap, carat_error *e);

/* Weights of one purpose, format and device, and the kernel that multiplies by them. */
typedef struct carat_weight_kind {
    const char *device; /* owned by the model */
    int32_t n;          /* tensors */
    const char *what;   /* "matrices", "experts", "tables" (looked up, never multiplied) */
    const char *type;   /* "q4_k"; static storage */
    char kernel[96];
    bool slow;        /* correct, but not a fast path */
    uint64_t n_bytes; /* in the file */
} carat_weight_kind;

/* The kinds of the model's weights, vectors left out. Returns the number written, at most cap. Any
 * thread. */
CARAT_API int32_t carat_plan_weights(const carat_model *m, carat_weight_kind *kinds, int32_t cap);

/* Makes ids[0..n) the whole timeline: keeps the longest prefix that is cached, or saved in a
 * checkpoint, and computes the rest in chunks; at least the last token is computed. logits receives
 * the row [n_vocab] after the last token; with all_logits the rows [n - *n_reused, n_vocab] after
 * every computed token. logits may be NULL without all_logits; n_reused may be NULL. E_LIMIT: n is
 * beyond the context; E_CANCELLED, E_NUMERIC. After a failure the timeline is the part that was
 * computed. */
CARAT_API carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                                  float *logits, int64_t *n_reused, carat_error *e);
/* Computes ids[0..n) after the tokens that are cached. As carat_eval of both together, but it
 * compares no prefix, so a token costs the host the same at any depth. With all_logits there are n
 * rows. */
CARAT_API carat_status carat_append(carat_session *s, const int32_t *ids, int64_t n,
                                    bool all_logits, float *logits, carat_error *e);
/* For measurements: makes ids[0..n) the whole timeline without computing them. Their keys and
 * values are whatever the session's memory holds, zeros at first, so later logits mean nothing, but
 * take the time that they would take. No drafter is told. E_UNSUPPORTED: the model has recurrent
 * layers; E_LIMIT as carat_eval. */
CARAT_API carat_status carat_pretend(carat_session *s, const int32_t *ids, int64_t n,
                                     carat_error *e);
/* Forgets the tokens from position n on, so that n are left. False, and nothing changes, if the
 * rings of sliding-window layers have overwritten keys that position n would see, or if recurrent
 * layers have taken tokens after n into their states: all but those of the last pass of an answer.
 * n 0 is always possible.
 */
CARAT_API bool carat_rewind(carat_session *s, int64_t n);
CARAT_API void carat_reset(carat_session *s); /* forgets the timeline, not its checkpoints */

/* ---- Generation ------------------------------------------------------------------------ */

typedef struct carat_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY bans the token */
} carat_logit_bias;

/* The steps that choose a token, in the default order. Bias and bans come before all of them. */
typedef enum carat_sampler {
    CARAT_SAMPLER_NONE,        /* ends an order */
    CARAT_SAMPLER_PENALTIES,   /* repeat, presence and frequency */
    CARAT_SAMPLER_DRY,         /* tokens that would continue a repetition */
    CARAT_SAMPLER_TOP_N_SIGMA, /* logits within n standard deviations of the largest */
    CARAT_SAMPLER_TOP_K,
    CARAT_SAMPLER_TYPICAL_P, /* tokens whose information is nearest to the entropy */
    CARAT_SAMPLER_TOP_P,
    CARAT_SAMPLER_MIN_P,
    CARAT_SAMPLER_XTC, /* drops the likeliest of several likely tokens, by chance */
    CARAT_SAMPLER_TEMPERATURE,
    CARAT_SAMPLERS_MAX = CARAT_SAMPLER_TEMPERATURE
} carat_sampler;

/* engine/sample.h has the definition of each step. All random numbers for a token depend on seed
 * and position alone. A struct of zeros with top_p and repeat_penalty 1 has every step off. */
typedef struct carat_sampling {
    float temperature;                         /* <= 0: greedy */
    int32_t top_k;                             /* <= 0: off */
    float top_p, min_p;                        /* 1 and 0: off */
    float repeat_penalty;                      /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    int32_t penalty_last_n; /* tokens that penalties look back, the prompt's too; -1: all, 0: off */
    uint32_t seed;
    const carat_logit_bias *bias; /* [n_bias]; read during the call */
    int32_t n_bias;
    int32_t n_top_logprobs; /* 0: no logprobs; at most 20 */
    bool ignore_eog;        /* go on after tokens that end a turn (for benchmarks) */
    float typical_p;        /* 0 and 1: off */
    float top_n_sigma;      /* <= 0: off */
    /* XTC: with this probability, all tokens of at least the threshold are dropped but the least
     * likely of them. Probability 0 or a threshold above 0.5: off. */
    float xtc_probability, xtc_threshold;
    /* The temperature moves within `range` of `temperature` with the entropy of the candidates.
     * range 0: off. exponent: 1 is usual. */
    float dynatemp_range, dynatemp_exponent;
    int32_t min_keep; /* top_p, min_p, typical_p and XTC leave at least so many tokens */
    /* DRY: a token that would make a repetition of n >= allowed_length + 1 tokens loses
     * multiplier * base^(n - 1 - allowed_length). multiplier 0 or base below 1: off. last_n: tokens
     * that it looks back; -1: all, 0: off. No repetition reaches back across a breaker; breakers
     * NULL: "\n", ":", "\"" and "*". Read as `bias` is. */
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_last_n;
    const char *const *dry_breakers; /* [n_dry_breakers], at most 32 */
    int32_t n_dry_breakers;
    /* Mirostat 1 or 2 keeps the surprise of tokens near tau bits; eta: how fast it adapts. Of the
     * steps above only bias and the plain temperature count beside it. 0: off. */
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;
    /* The order of the steps, ended by CARAT_SAMPLER_NONE or full; each at most once. A step that
     * is not in it is off. All zero: the default order, with all steps. */
    carat_sampler order[CARAT_SAMPLERS_MAX];
} carat_sampling;

/* The step that other programs call by this name ("top_k", "typ_p", "temp") or letter ("k");
 * CARAT_SAMPLER_NONE: there is none. Any thread. */
CARAT_API carat_sampler carat_sampler_named(const char *name);
/* "top_k"; static storage; NULL: not a step. */
CARAT_API const char *carat_sampler_name(carat_sampler step);

/* Fills *s with the recommended settings: general.sampling.* of the file, else those of the model's
 * family. Any thread. */
CARAT_API void carat_sampling_default(const carat_model *m, carat_sampling *s);

typedef enum carat_event_kind {
    CARAT_EV_PREFILL,     /* progress: n_done of n_total prompt tokens */
    CARAT_EV_TOKEN,       /* one sampled token, before its text; also the token that ends the turn,
                             which has no text */
    CARAT_EV_REASONING,   /* text of a thought */
    CARAT_EV_CONTENT,     /* text of the answer */
    CARAT_EV_TOOL_CALL,   /* a complete call: name and arguments as JSON */
    CARAT_EV_END,         /* the reason of the end; the last event. Not sent if the call fails */
    CARAT_EV_PROMPT_TOKEN /* with n_prompt_logprobs: the next token of the prompt and how probable
                             it was, from the first token on; before the first TOKEN */
} carat_event_kind;

typedef enum carat_finish {
    CARAT_FINISH_STOP,   /* the model ended its turn, or a stop string was met */
    CARAT_FINISH_LENGTH, /* max_tokens, or the context is full */
    CARAT_FINISH_TOOL_CALLS,
    CARAT_FINISH_CANCELLED
} carat_finish;

typedef struct carat_logprob {
    int32_t id;
    float logprob; /* natural logarithm of the probability before any sampling setting */
} carat_logprob;

/* The kind says which fields are set. */
typedef struct carat_event {
    carat_event_kind kind;
    int32_t id;               /* TOKEN, PROMPT_TOKEN */
    float logprob;            /* TOKEN, with n_top_logprobs > 0; PROMPT_TOKEN, but for the first */
    const carat_logprob *top; /* TOKEN, PROMPT_TOKEN: the n_top most probable ones, in descending
                                 order; none of the prompt's first token */
    int32_t n_top;
    int32_t rank;     /* PROMPT_TOKEN: 1 + the number of more probable tokens; 0: the first token */
    const char *text; /* REASONING, CONTENT; TOOL_CALL: arguments. Valid UTF-8, NUL-terminated */
    size_t n_text;
    const char *name;        /* TOOL_CALL */
    int64_t n_done, n_total; /* PREFILL: prompt tokens */
    int64_t n_reused;        /* PREFILL: of n_done, tokens that a cache had */
    carat_finish finish;     /* END */
    const char *stop;        /* END: the stop string met, or NULL */
    bool by_stop_id;         /* END: a token of stop_ids ended the answer: */
    int32_t stop_id;
} carat_event;

/* Runs on the thread of the call. Pointers in the event are valid until the callback returns.
 * Return false to cancel the generation. */
typedef bool (*carat_event_fn)(void *user, const carat_event *ev);

/* Restricts the next token, for structured output. The thread that runs the generation calls fill
 * before each token and accept after it. Neither may call back into the generation. */
typedef struct carat_mask {
    /* allowed: [(n_vocab + 31) / 32] words, all zero. Bit id & 31 of word id / 32 allows id; tokens
     * that end the turn are no exception. Returns how the token is chosen: */
    enum carat_mask_use {
        CARAT_MASK_NONE,  /* from all tokens; the words are not read */
        CARAT_MASK_APPLY, /* from the allowed tokens; without any, the generation fails: E_ARG */
        CARAT_MASK_FAIL   /* not at all; the generation fails: E_LIMIT */
    } (*fill)(void *user, uint32_t *allowed, int32_t n_vocab);
    /* Receives the chosen token: sampled, or forced to close a thought. May be NULL. */
    void (*accept)(void *user, int32_t id);
    void *user;
} carat_mask;

/* How much is drafted for one answer. All zero: as the session's options say. It never changes the
 * answer. */
typedef struct carat_speculation {
    bool off;
    int32_t n_max;    /* most tokens in a row; 0: the session's */
    int32_t tree_max; /* most tokens of a tree; 0: the session's; < 0: no trees */
    bool fixed;       /* always n_max and tree_max, whatever it costs: for measurements */
} carat_speculation;

/* A pass that checked drafts. */
typedef struct carat_round {
    const char *drafter;           /* static storage */
    int32_t n_drafted, n_accepted; /* tokens drafted, and those of them that the answer has */
    int32_t n_rows;                /* of the pass, with the rows of other answers */
    bool tree;
    double draft_ms, pass_ms;
} carat_round;

/* For benchmarks and tests: drafts whose outcome is decided beforehand take the place of the
 * drafter's own, which are computed all the same. Round i drafts accept[i % n_accept] of the next
 * tokens of answer rightly, and what follows wrongly. */
typedef struct carat_script {
    const int32_t *answer; /* [n_answer] tokens, as the answer has them without a drafter */
    int64_t n_answer;
    const int32_t *accept; /* [n_accept] */
    int32_t n_accept;
    int32_t rank; /* in trees: the right tokens are the best of their places after `rank` others */
    /* [n_chance] what the drafts say of themselves: the probability of the best token of each
     * place, 0 to 1. Places after the last one take its number. NULL: one half everywhere. */
    const float *chance;
    int32_t n_chance;
} carat_script;

/* Runs on the thread of the call, after the tokens of the round were reported. */
typedef void (*carat_round_fn)(void *user, const carat_round *r);

typedef struct carat_tokens {
    const int32_t *at; /* [n] */
    int64_t n;
} carat_tokens;

typedef struct carat_generate_options {
    carat_sampling sampling;
    int32_t max_tokens;      /* <= 0: until the context is full */
    const char *const *stop; /* [n_stop] strings that end the answer; read during the call */
    int32_t n_stop;
    bool parse;           /* split the output into reasoning, content and tool calls */
    bool starts_thinking; /* the prompt ends inside a thought: from carat_chat_render */
    /* A thought is closed by force after max_thinking tokens, or when answer_reserve tokens of
     * max_tokens are left. <= 0: never. E_UNSUPPORTED if the chat format has no thoughts. */
    int32_t max_thinking, answer_reserve;
    const carat_mask *mask; /* NULL: none. Used until the generation ends */
    carat_speculation speculation;
    const carat_script *script; /* NULL: none. Read until the generation ends */
    /* Tokens of a text that the answer is likely to repeat in parts, as a client predicts it: one
     * more text for the lookup drafter to copy from, as if it followed the prompt. It never changes
     * the answer, and without a drafter it does nothing. Read until the generation ends. */
    const int32_t *predicted; /* [n_predicted]; NULL: none */
    int64_t n_predicted;
    /* For parse: the tools of the prompt, as in carat_chat_render; NULL: none. Where a model writes
     * arguments as plain text, the tools' schemas give them their types. Read at the begin. */
    const char *tools_json;
    carat_round_fn on_round; /* NULL: none */
    void *round_user;
    int32_t min_tokens; /* no token ends the answer before it has so many */
    /* Tokens that end the answer, after their own text. Read at the begin, like the lists below. */
    const int32_t *stop_ids; /* [n_stop_ids] */
    int32_t n_stop_ids;
    const carat_tokens *bad; /* [n_bad]: the last token of a list never follows its other tokens */
    int32_t n_bad;
    const int32_t *only_ids; /* [n_only_ids]: no other token is sampled; NULL: any */
    int32_t n_only_ids;
    bool no_answer; /* ends after the prompt, with CARAT_FINISH_LENGTH */
    /* > 0: a PROMPT_TOKEN event for every token of the prompt, with so many of the most probable
     * ones, at most 20. The whole prompt is computed: no cache has its logits. */
    int32_t n_prompt_logprobs;
    const char *sparse; /* as carat_session_options.sparse, for this answer; NULL: the session's.
                           Read at the begin */
} carat_generate_options;

typedef struct carat_timings {
    int64_t n_prompt;              /* tokens of the prompt */
    int64_t n_reused;              /* of n_prompt: not computed, from a cache */
    int64_t n_generated;           /* sampled tokens */
    int64_t n_thinking;            /* of n_generated: tokens of thoughts, with their marks */
    bool thinking_cut;             /* a thought was closed by force */
    const char *reuse;             /* as from carat_session_reuse; static storage */
    double queue_ms;               /* from submit until a slot was free; 0 outside a batch */
    int64_t n_rounds;              /* passes that checked drafts */
    int64_t n_drafted, n_accepted; /* tokens drafted in them, and those that the answer has */
    const char *drafter;           /* its method, static storage; NULL: none */
    const char *sparse; /* "skip", "flash": attention left keys out; static storage; NULL: none */
    float sparse_value; /* its SCALE or ALPHA */
    bool sparse_auto;   /* "auto" decided so, or against it */
    const char *lossy;  /* "scored", ..: tokens were computed while pages of keys were away, which
                           this policy had chosen (kv_resident); static storage; NULL: none */
    int64_t n_exact;    /* with lossy: tokens of the context before the first of them */
    uint64_t n_tiles, n_tiles_kept; /* as carat_sparse_layer, of all layers */
    double dropped_p99;             /* of the layer that left out most; -1: no certificate */
    /* Of a model whose GPU does not hold all experts (carat_experts), in the passes of this answer,
     * which may have had company. Counts of the last pass or two are missing. */
    bool cold_experts;
    uint64_t n_expert_hits, n_expert_misses;
    uint64_t n_expert_cpu; /* pairs that the CPU computed (carat_model_options.experts_cpu) */
    uint64_t expert_bytes; /* that the bus carried: misses, exchanges, prompts */
    double expert_wait_ms; /* for the bus. Of prompts measured; of answers the time that the bus
                              takes for the misses, in part of which other experts compute */
    double prefill_ms, decode_ms;
    double load_ms;      /* of opening the model */
    uint64_t peak_bytes; /* the highest resident memory of the process so far */
    carat_finish finish;
} carat_timings;

/* Computes the prompt ids[0..n) as carat_eval does, then samples tokens until the turn ends. opt
 * NULL: the model's default sampling, without parse. fn and t may be NULL. The timeline afterwards
 * holds the prompt and the computed tokens of the answer. Errors as carat_eval, and those of mask
 * and options. */
CARAT_API carat_status carat_generate(carat_session *s, const int32_t *ids, int64_t n,
                                      const carat_generate_options *opt, carat_event_fn fn,
                                      void *user, carat_timings *t, carat_error *e);

/* "stop", "length", "tool_calls", "cancelled"; static storage. */
CARAT_API const char *carat_finish_name(carat_finish f);

/* ---- Structured output ----------------------------------------------------------------- */

/* A grammar restricts one generation to texts of one form, exactly, with any sampling. What carat
 * cannot enforce is refused by open, with a sentence that names it.
 *
 *     carat_grammar_open(m, &(carat_grammar_options){.kind = CARAT_GRAMMAR_JSON_SCHEMA,
 *                                                    .source = schema, .n_source = n}, &g, &e);
 *     opt.mask = carat_grammar_mask(g);
 *
 * Any thread may open and close it; in between it belongs to its one generation. */
typedef struct carat_grammar carat_grammar;

typedef enum carat_grammar_kind {
    CARAT_GRAMMAR_JSON,        /* any JSON object */
    CARAT_GRAMMAR_JSON_SCHEMA, /* JSON that a JSON Schema validates; text/json_schema.c: which part
                                */
    CARAT_GRAMMAR_GBNF,        /* derivations of `root` of a grammar in llama.cpp's GBNF */
    CARAT_GRAMMAR_REGEX,       /* text that a regular expression matches as a whole */
    CARAT_GRAMMAR_TOOLS        /* text and tool calls; the tools as in OpenAI's API */
} carat_grammar_kind;

typedef struct carat_grammar_options {
    carat_grammar_kind kind;
    const char *source; /* schema, grammar, expression or tools; NULL for JSON; copied */
    size_t n_source;
    bool thinking;        /* a thought may come before the text */
    bool starts_thinking; /* the prompt ends inside a thought: from carat_chat_render */
    /* TOOLS. Only declared tools are called. Arguments follow the schema of tools that say
     * "strict": true. */
    bool must_call;        /* only calls, at least one */
    bool one_call;         /* at most one call */
    bool strict;           /* every tool is strict */
    const char *only_tool; /* the only tool that may be called; NULL: any */
    /* TOOLS: an answer without a call is JSON of this schema, or with content_json any object. */
    const char *content_schema;
    size_t n_content_schema;
    bool content_json;
    /* Compiling a large source takes up to about a second. Meanwhile it calls this repeatedly, on
     * the calling thread; true ends it with E_CANCELLED. May be NULL. */
    bool (*cancelled)(void *user);
    void *user;
} carat_grammar_options;

/* Compiles a source. On failure *g is NULL. E_ARG: no source; E_FORMAT: the source is malformed;
 * E_UNSUPPORTED: carat cannot enforce a part of it, or the model has no vocabulary; E_LIMIT: it is
 * too large; E_CANCELLED, E_MEMORY. Close g before the model. */
CARAT_API carat_status carat_grammar_open(carat_model *m, const carat_grammar_options *opt,
                                          carat_grammar **g, carat_error *e);
CARAT_API void carat_grammar_close(carat_grammar *g); /* g may be NULL */
/* Says that the text begins with these bytes, which the generation does not sample. Before the
 * first token. E_ARG: no text of the grammar begins so; then only close g. */
CARAT_API carat_status carat_grammar_follow(carat_grammar *g, const char *text, size_t n,
                                            carat_error *e);
CARAT_API const carat_mask *carat_grammar_mask(carat_grammar *g); /* valid as long as g */
/* Is the text so far one of the grammar? */
CARAT_API bool carat_grammar_complete(const carat_grammar *g);
/* Why the grammar cannot go on, as a sentence that belongs to g; "": it can. */
CARAT_API const char *carat_grammar_failure(const carat_grammar *g);

/* ---- Embeddings ------------------------------------------------------------------------- */

/* How the hidden rows of a text's tokens become one vector. A hidden row is the last layer's output
 * after the model's final norm, before the output head. */
typedef enum carat_pooling {
    CARAT_POOL_MEAN, /* the mean of all rows, summed in f64 */
    CARAT_POOL_LAST  /* the row of the last token */
} carat_pooling;

/* The embedding of ids[0..n): out[n_embd], not normalised. On a CPU it is bit-identical for every
 * chunk size and whatever the cache holds. MEAN computes every token again; LAST keeps a cached
 * prefix. The timeline afterwards holds ids. E_LIMIT: n is beyond the context; E_CANCELLED,
 * E_NUMERIC, E_MEMORY: out is not written. */
CARAT_API carat_status carat_embed(carat_session *s, const int32_t *ids, int64_t n,
                                   carat_pooling pooling, float *out, carat_error *e);
/* The pooling that the file's metadata asks for (ARCH.pooling_type); MEAN if it names none of
 * these. *stated, which may be NULL: the file names one. Any thread. */
CARAT_API carat_pooling carat_model_pooling(const carat_model *m, bool *stated);

/* ---- Importance of tokens ---------------------------------------------------------------- */

/* How much the end of a text attends to each of its tokens, for whoever has to leave some out.
 * CARAT_IMPORTANCE_TAIL queries, those of the last tokens, are compared with all keys before the
 * rotation, so distance does not count; a token's value is the largest share of any head of any
 * layer that sees the whole text, averaged over the queries, and then over the
 * CARAT_IMPORTANCE_SMOOTH tokens around it.
 *
 * out[n]: a value between 0 and 1 for each token. A prefix that the session has is kept, so a
 * longer text costs its new tokens alone. The timeline afterwards holds ids. E_ARG: n is not above
 * CARAT_IMPORTANCE_TAIL; E_UNSUPPORTED: the model's device does not tell (CPUs do); E_LIMIT: n is
 * beyond the context; E_CANCELLED, E_NUMERIC, E_MEMORY: out is not written. */
enum { CARAT_IMPORTANCE_TAIL = 8, CARAT_IMPORTANCE_SMOOTH = 13 };
CARAT_API carat_status carat_importance(carat_session *s, const int32_t *ids, int64_t n, float *out,
                                        carat_error *e);
/* The mean value of each `chunk` tokens, the last chunk may be shorter: out[ceil(n / chunk)].
 * normal: less the mean of all chunks and over their standard deviation (0, where all are equal).
 * Returns the number of chunks. Any thread. */
CARAT_API int64_t carat_importance_chunks(const float *value, int64_t n, int32_t chunk, bool normal,
                                          float *out);

/* ---- Prompt compression ------------------------------------------------------------------ */

/* Long texts of a conversation, shortened to the sentences that its question needs, before the
 * conversation is rendered. A scorer, usually a small model, says which: by carat_importance of the
 * text with the question after it. This loses what the scorer misjudges, so it is never done
 * unasked.
 *
 * Shortened are texts of 512 tokens or more in user messages, and in answers before the last two
 * turns. Never touched: system messages, tools and their results, calls, thoughts, the last user
 * message, answers of the last two turns. Blocks of code between fences stay whole or go as a
 * whole. Sentences and lines stay whole, and words always. What goes is marked by "[...]".
 *
 * A text before the last two turns is shortened for the question that came two turns after it, in
 * all later prompts alike; so these begin with what a cache has. The result depends on nothing but
 * the arguments.
 *
 * After SpecPrefill (arXiv 2502.02789) and its variant across model families (2603.02631). */

/* Scores texts. Its model may have another vocabulary than the one that answers. */
typedef struct carat_scorer {
    const carat_model *model;
    int32_t n_ctx; /* most tokens of a call; longer texts are scored in parts */
    /* carat_importance: in a session of `model`, or as a job of a batch. */
    carat_status (*score)(void *user, const int32_t *ids, int64_t n, float *out, carat_error *e);
    void *user;
} carat_scorer;

typedef struct carat_compress_options {
    double ratio; /* the share of its tokens that a text keeps, 0.01 to 0.99; 0: chosen by its
                     length, in conversations of CARAT_COMPRESS_FROM tokens or more without tools */
} carat_compress_options;
enum { CARAT_COMPRESS_FROM = 32000 };

/* Reads "auto" or a ratio. E_ARG. Any thread. */
CARAT_API carat_status carat_compress_parse(const char *text, carat_compress_options *opt,
                                            carat_error *e);

typedef struct carat_span {
    size_t at, n; /* bytes */
} carat_span;

/* A text that was shortened. */
typedef struct carat_compressed_text {
    int32_t message, part; /* indices; part: in a content of parts, else -1 */
    const char *text;      /* as it was, UTF-8; of carat_compress_text the caller's */
    size_t n_text;
    int64_t n_tokens, n_kept; /* before and after, in tokens of the scorer */
    const carat_span *span;   /* [n_spans]: what is kept, in order; the rest is gone */
    int32_t n_spans;
} carat_compressed_text;

/* Free with carat_compressed_free. */
typedef struct carat_compressed {
    char *text; /* the messages as JSON, or the prompt; NULL: nothing was shortened */
    size_t n_text;
    char why[256];              /* without text: the reason, a sentence */
    int64_t n_original, n_kept; /* tokens of the prompt before and after; chats: as rendered */
    carat_compressed_text *at;  /* [n] */
    int32_t n;
    void *own; /* memory of the above */
} carat_compressed;

/* Remembers what it shortened, least recently used first out, in at most max_bytes (0: 64 MiB).
 * Later calls for the same text and question then need no scorer. Any thread. */
typedef struct carat_compressor carat_compressor;
CARAT_API carat_status carat_compressor_open(carat_compressor **c, size_t max_bytes,
                                             carat_error *e);
CARAT_API void carat_compressor_close(carat_compressor *c); /* c may be NULL */

/* What a conversation becomes; arguments as carat_chat_render. E_UNSUPPORTED: the scorer cannot
 * read a text byte for byte, or its device does not score; with ratio 0 that is no error, and
 * nothing is shortened. Else errors of rendering and of the scorer. */
CARAT_API carat_status carat_compress_chat(carat_compressor *c, const carat_model *m,
                                           const carat_scorer *scorer, const char *messages_json,
                                           const char *tools_json, const carat_chat_options *chat,
                                           const carat_compress_options *opt, carat_compressed *out,
                                           carat_error *e);
/* The same of a text without a chat format: all but its end, about the last 256 tokens, which are
 * the question. E_UNSUPPORTED: it spells control tokens of m, so it is a rendered conversation. */
CARAT_API carat_status carat_compress_text(carat_compressor *c, const carat_model *m,
                                           const carat_scorer *scorer, const char *text, size_t n,
                                           const carat_compress_options *opt, carat_compressed *out,
                                           carat_error *e);
/* The same of a prompt that is token ids of m: out[n] receives *n_out of them. Control tokens and
 * what belongs to them stay. The last text between two of them is the question; others are
 * shortened that come before the first, or whose first line is "user". A prompt that is one such
 * text is treated as carat_compress_text treats it. E_ARG: not an id of m. */
CARAT_API carat_status carat_compress_ids(carat_compressor *c, const carat_model *m,
                                          const carat_scorer *scorer, const int32_t *ids, int64_t n,
                                          const carat_compress_options *opt, int32_t *out,
                                          int64_t *n_out, carat_error *e);
CARAT_API void carat_compressed_free(carat_compressed *x); /* safe on a zeroed or freed one */

/* ---- Many generations at once ---------------------------------------------------------- */

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
    int32_t stall_ms; /* beside answers, chunks of prompts are cut so that a pass takes at most
                         about this long, or twice the time of the answers' rows; 0: 200 */
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
 * pass_ms, also if this batch has no answers. 0: nobody waits. Belongs to the thread of step. */
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
    int64_t n_away; /* tokens whose keys are not in the pool, because it keeps a part of them */
} carat_slot_info;

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

/* ---- For callers with a loop of their own ------------------------------------------------ */

/* Samples one token from logits [n_vocab], which it changes. past[0..n_past) are the tokens before,
 * for penalties and DRY; *rng_state is advanced. *mu is mirostat's state: 0 before the first token;
 * NULL without mirostat. Returns the id; -1: no logit is finite, the settings are invalid, or there
 * is no memory for the work space that the first call allocates and the model keeps. Any thread. */
CARAT_API int32_t carat_sample(const carat_model *m, const carat_sampling *p, float *logits,
                               const int32_t *past, int64_t n_past, uint64_t *rng_state, float *mu);

#ifdef __cplusplus
}
#endif
#endif
