/* carat.h - the one public header of libcarat, an inference engine for Gemma 4.
 *
 * A model is a file held in memory, shared and read-only once opened. A session is one timeline
 * of tokens over a model: the caller hands over the whole prompt each time, the session keeps
 * whatever prefix of it is already in its cache and computes the rest.
 *
 *     carat_error e = {0};
 *     carat_model *m;
 *     carat_session *s;
 *     if (carat_model_open("model.gguf", NULL, &m, &e) || carat_session_open(m, NULL, &s, &e))
 *         die(e.text);
 *     n = carat_tokenize(m, "Hello", 5, CARAT_TOK_BOS, ids, cap, &e);
 *     carat_generate(s, ids, n, NULL, on_event, user, NULL, &e);
 *
 * Errors: every call that can fail returns a carat_status and leaves one sentence for the user in
 * the carat_error it was given (which may be NULL). The library never prints, exits or aborts.
 * Threads: a model may be used from many threads; a session from one at a time, except
 * carat_session_cancel, which may be called from any thread and from a signal handler.
 * Units: token ids and counts are int32_t, positions int64_t, sizes in bytes end in _bytes.
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
#define CARAT_VERSION_MINOR 1
#define CARAT_VERSION_PATCH 0

/* ---- Errors ---------------------------------------------------------------------------- */

typedef enum carat_status {
    CARAT_OK = 0,
    CARAT_E_ARG,         /* the caller asked for something that makes no sense */
    CARAT_E_FORMAT,      /* a file or message is not what it claims to be */
    CARAT_E_IO,          /* the operating system refused or failed */
    CARAT_E_MEMORY,      /* not enough memory */
    CARAT_E_UNSUPPORTED, /* well formed, and not something carat does */
    CARAT_E_LIMIT,       /* longer than the context, larger than a stated limit */
    CARAT_E_CANCELLED,   /* carat_session_cancel or a callback's wish */
    CARAT_E_NUMERIC      /* the model computed NaN or infinity */
} carat_status;

/* One sentence for the user. The first failure is kept, later ones do not overwrite it. */
typedef struct carat_error {
    carat_status status;
    char text[1024];
} carat_error;

CARAT_API const char *carat_status_name(carat_status st); /* "E_FORMAT"; static storage */
CARAT_API const char *carat_version(void);                /* "0.1.0"; static storage */

/* ---- Models ---------------------------------------------------------------------------- */

typedef struct carat_model carat_model;
typedef struct carat_session carat_session;

/* Called while loading and during long prefills. done and total in the unit that `what` names.
 * Return false to cancel. Same thread as the call that reports. */
typedef bool (*carat_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* Lines that a wrapped device writes (see `wrap`), newline included. */
typedef void (*carat_log_fn)(void *user, const char *text);

typedef carat_status (*carat_planned_fn)(void *user, const carat_model *m, carat_error *e);

typedef struct carat_model_options {
    int32_t n_threads; /* 0: one per physical core this process may use */
    bool no_mmap;      /* read the file instead of mapping it */
    bool vocab_only;   /* metadata, tokenizer and plans, no weights: nothing large is touched */
    bool reference;    /* the plain reference kernels (slow, exact): for tests and for doubt */
    bool exact_f32;    /* activations stay f32 in matrix products: no int8 quantisation */
    bool no_repack;    /* matrix products read the file's own layout: less memory, less speed */
    bool overcommit;   /* go on even if the plan exceeds the memory that is available */
    const char *wrap;  /* NULL, or any of "trace", "time", "check" joined by commas */
    const char *isa;   /* NULL: the best this CPU has; or "portable", "avx2", "avx512",
                          "avx512bf16", "neon" */
    /* NULL or "auto": a GPU if this build can use one, one is there, the model fits it and nothing
     * above asks for CPU kernels; else the CPU. "cpu", "cuda", "cuda:1": that one or an error. */
    const char *device;
    /* Of a model on a GPU: how many of its layers, the last ones, are there; 0: all. The others,
     * with the embeddings, are the CPU's, and so are all experts with cpu_experts. */
    int32_t gpu_layers;
    bool cpu_experts;
    bool strict; /* refuse a model or session that some slow path would be used for */
    /* Called once, when it is settled what runs where and nothing is loaded yet: plans can be asked
     * for, nothing else. Not OK: opening fails with that and what was put into e. NULL: not called.
     */
    carat_planned_fn planned;
    void *planned_user;
    carat_progress_fn progress; /* loading; and prefill, in tokens, unless events report it */
    void *progress_user;
    carat_log_fn log; /* for `wrap`; must not call back into the library */
    void *log_user;
} carat_model_options;

/* Opens a GGUF file (or the first of a split set). opt may be NULL. On success *m is owned by the
 * caller: carat_model_close. On failure *m is NULL. */
CARAT_API carat_status carat_model_open(const char *path, const carat_model_options *opt,
                                        carat_model **m, carat_error *e);
/* Opens a model from bytes in memory (the bundled model). The bytes must outlive the model. */
CARAT_API carat_status carat_model_open_bytes(const void *bytes, size_t n_bytes, const char *name,
                                              const carat_model_options *opt, carat_model **m,
                                              carat_error *e);
CARAT_API void carat_model_close(carat_model *m); /* NULL is fine; all sessions must be closed */

/* Gives the device back what the weights take, until unpark loads them again: sessions, what they
 * remember and snapshots stay. Meanwhile whatever would compute is E_ARG. Any thread. */
CARAT_API void carat_model_park(carat_model *m);
CARAT_API carat_status carat_model_unpark(carat_model *m, carat_error *e); /* may be repeated */

typedef struct carat_model_info {
    const char *name;         /* general.name, or the file name; owned by the model */
    const char *architecture; /* "gemma4" */
    const char *file_type;    /* "Q4_K_M", or the commonest weight type */
    const char *device;       /* "cpu (avx512, 2 threads)" */
    const char *device_why;   /* why it is that one: a phrase; owned by the model */
    bool on_gpu;              /* it is a GPU */
    int32_t n_layer, n_embd, n_vocab, n_ctx_train, window;
    uint64_t n_params, n_params_active;            /* per token, with the head */
    uint64_t weight_bytes, active_bytes_per_token; /* resident; read per decoded token */
    bool has_vocab, has_chat; /* can turn text into tokens; has a chat format */
} carat_model_info;

CARAT_API void carat_model_get_info(const carat_model *m, carat_model_info *info);

/* Memory of the devices that a model is on, now. Any thread. */
typedef struct carat_device_memory {
    const char *device;       /* owned by the model */
    uint64_t used_bytes;      /* by this model: weights that were copied, caches, scratch */
    uint64_t available_bytes; /* that it could still give, to anybody; 0 unknown */
} carat_device_memory;
enum { CARAT_DEVICES_MAX = 9 }; /* that one model may be on: eight GPUs and a CPU */
/* Returns how many devices the model is on. The first is the main one. */
CARAT_API int32_t carat_memory(const carat_model *m, carat_device_memory list[CARAT_DEVICES_MAX]);

/* Where the time went, for a model opened with "time" among its wrappers: one line per op, shape
 * and weight format. What a call could not do without is beside what it took: bytes of weights,
 * keys and values, each read once, and multiply-adds, counted twice, of bytes and of floats. */
typedef struct carat_op_time {
    const char *op, *type; /* "matmul", "q4_k"; type "" without a weight; static storage */
    int32_t rows, n_in, n_out;
    int64_t n_calls;
    double ms;
    uint64_t bytes, int8_ops, f32_ops;
} carat_op_time;

/* Copies at most cap lines to list (may be NULL with cap 0), returns their number; clear empties
 * the table. Only between calls that compute on the model. */
CARAT_API int32_t carat_op_times(carat_model *m, carat_op_time *list, int32_t cap, bool clear);

/* ---- Text ------------------------------------------------------------------------------ */

enum {
    CARAT_TOK_BOS = 1,     /* put the begin-of-sequence token in front */
    CARAT_TOK_SPECIAL = 2, /* control tokens spelled out in the text become those tokens */
};

/* Bytes to ids. Returns the number of tokens, or -1 with e set. With ids == NULL or cap too small
 * nothing is written past cap and the count needed is returned all the same. */
CARAT_API int64_t carat_tokenize(const carat_model *m, const char *text, size_t n_bytes,
                                 int32_t flags, int32_t *ids, int64_t cap, carat_error *e);
/* The bytes of one token (not necessarily valid UTF-8 alone); control tokens only if `special`.
 * Returns their number; owned by the model, not NUL-terminated. -1 if id is out of range. */
CARAT_API int32_t carat_token_bytes(const carat_model *m, int32_t id, bool special,
                                    const char **bytes);
CARAT_API int32_t carat_token_bos(const carat_model *m); /* -1 when the file has none */
CARAT_API bool carat_token_is_eog(const carat_model *m, int32_t id);

/* A conversation in the OpenAI shape, as JSON text: `messages` an array, `tools` an array or
 * NULL. Rendered with the model's own chat format. Content can never smuggle in control tokens
 * unless raw_markers is set. Images and sounds are refused: E_UNSUPPORTED. */
typedef struct carat_chat_options {
    bool thinking;          /* ask the model to think first */
    bool preserve_thinking; /* keep the thoughts of finished tool turns */
    bool no_generation_prompt;
    bool raw_markers; /* markers inside content become control tokens (what a Jinja server does) */
    bool continue_last; /* a last message of the assistant's is how the answer begins: not closed */
} carat_chat_options;

/* A rendered conversation: the prompt as text and as tokens. Free with carat_chat_free. */
typedef struct carat_chat {
    char *text; /* NUL-terminated, begins with one "<bos>" */
    size_t n_text;
    int32_t *ids;
    int64_t n_ids;
    bool starts_thinking; /* for carat_generate_options: the prompt ends inside a thought */
} carat_chat;

CARAT_API carat_status carat_chat_render(const carat_model *m, const char *messages_json,
                                         const char *tools_json, const carat_chat_options *opt,
                                         carat_chat *out, carat_error *e);
CARAT_API void carat_chat_free(carat_chat *c); /* safe on a zeroed or freed chat */

/* ---- Sessions -------------------------------------------------------------------------- */

typedef struct carat_session_options {
    int32_t n_ctx; /* tokens the session can hold; 0: the model's own, bounded by memory */
    int32_t chunk; /* rows per prefill pass; 0: chosen by the device */
    /* Types of keys and of values (NULL: "f16"; as keys): f32, f16, bf16, q8_0, q5_1, q5_0, q4_1,
     * q4_0, iq4_nl, tq3_0; those from q8_0 to iq4_nl also rotated first: "q4_0+rot". */
    const char *kv_k, *kv_v;
    const char *kv_layers; /* NULL, or "SPEC=TYPE,...": SPEC global, swa, a layer or first-last;
                              TYPE as above or "keys/values"; later ones win */
    const char *kv_single; /* layers whose values are their raw keys (12B, 26B-A4B, 31B) keep one
                              stream: "on", "off"; NULL or "auto": where that is worth it,
                              which so far means on a CPU */
    int32_t n_outputs; /* rows of one pass that may give logits; 0: 16. carat_eval with all_logits
                          runs passes of min(chunk, n_outputs) rows */
    /* Host memory for checkpoints, in MiB: states of conversations that prompts may go back to. 0:
     * a quarter of what is left over, at most 4 GiB; < 0: none. A batch shares it. */
    int32_t checkpoint_mb;
    /* A directory for checkpoints that outlive the program, made if need be; NULL: none. Several
     * programs may share it. Files of any model count to cache_mb MiB; 0: 4096. */
    const char *cache_dir;
    int32_t cache_mb;
} carat_session_options;

CARAT_API carat_status carat_session_open(carat_model *m, const carat_session_options *opt,
                                          carat_session **s, carat_error *e);
CARAT_API void carat_session_close(carat_session *s);
CARAT_API int32_t carat_session_n_ctx(const carat_session *s);
CARAT_API int64_t carat_session_n_past(const carat_session *s); /* tokens in the cache */
/* Any thread; async-signal-safe. Ends the call that runs on the session with E_CANCELLED (or, for
 * carat_generate, CARAT_FINISH_CANCELLED), after the pass it is in. If none runs, the next. */
CARAT_API void carat_session_cancel(carat_session *s);
/* What the last prompt found in the cache, as one phrase for a log: "new", "extended", "rewound",
 * "restored" (a checkpoint), "restored from disk", "rebuilt: ..."; static storage. n_dropped, if
 * not NULL: cached tokens that were of no use. */
CARAT_API const char *carat_session_reuse(const carat_session *s, int64_t *n_dropped);

/* Checkpoints there are now, and what they take. Nothing that goes wrong with them changes an
 * answer; the last such thing is told here. */
typedef struct carat_cache_info {
    int64_t n_checkpoints;
    uint64_t checkpoint_bytes;
    int64_t n_files; /* of all models in cache_dir, as of the last look */
    uint64_t file_bytes;
    int64_t n_written, n_failed; /* since open */
    int64_t n_rejected;          /* damaged or strange files that were removed */
    char last_error[256];        /* "": none */
} carat_cache_info;

CARAT_API void carat_session_cache(const carat_session *s, carat_cache_info *info);

/* An exact copy of what a session remembers, in host memory: a session it is restored into goes on
 * bit for bit as the one it was taken of would. Sessions of one model and one choice of key and
 * value formats may exchange snapshots, whatever their contexts and chunks. Freed before the model
 * is closed; never changes, so several threads may restore it. */
typedef struct carat_snapshot carat_snapshot;
CARAT_API carat_status carat_snapshot_take(carat_session *s, carat_snapshot **p, carat_error *e);
CARAT_API carat_status carat_snapshot_restore(carat_session *s, const carat_snapshot *p,
                                              carat_error *e); /* on failure s is unchanged */
CARAT_API int64_t carat_snapshot_n(const carat_snapshot *p);   /* tokens */
CARAT_API uint64_t carat_snapshot_bytes(const carat_snapshot *p);
CARAT_API void carat_snapshot_free(carat_snapshot *p); /* NULL is fine */

/* What one of a model's devices needs for a session. */
typedef struct carat_device_plan {
    const char *device;    /* owned by the model */
    int32_t n_layers;      /* computed there */
    uint64_t weight_bytes; /* as they will be there */
    uint64_t kv_swa_bytes, kv_global_bytes, scratch_bytes;
    uint64_t reserve_bytes; /* GPUs: recorded passes, the step, libraries: at most */
    uint64_t total_bytes;
    uint64_t available_bytes; /* that the device can give, what this model has of it included; 0
                                 unknown */
} carat_device_plan;

/* Bytes a session needs, by purpose, before it exists. n_ctx 0: the model's own. */
typedef struct carat_memory_plan {
    uint64_t weight_bytes; /* of the file, mapped */
    uint64_t repack_bytes; /* copies made for speed */
    uint64_t kv_swa_bytes, kv_global_bytes;
    uint64_t scratch_bytes;
    uint64_t checkpoint_bytes; /* at most; part of the total only if it was asked for */
    uint64_t total_bytes;      /* at work: weights that were repacked are not read from the file,
                                  but stay in memory with no_mmap */
    uint64_t
        available_bytes; /* what the machine says it can give, this model included; 0 unknown */
    uint64_t
        chunk_flops; /* matrix products of a pass of chunk rows, n_outputs of them with logits */
    int32_t n_ctx, chunk, n_ring_slots;
    int32_t n_devices; /* the above are the sums over these */
    carat_device_plan device[CARAT_DEVICES_MAX];
} carat_memory_plan;

/* Works without weights too (vocab_only). Reports a plan that exceeds memory without an error. */
CARAT_API carat_status carat_plan(const carat_model *m, const carat_session_options *opt,
                                  carat_memory_plan *plan, carat_error *e);

/* E_MEMORY, with a sentence, for a plan that carat_session_open would refuse. */
CARAT_API carat_status carat_plan_check(const carat_model *m, const carat_memory_plan *plan,
                                        carat_error *e);

/* Layers that keep their keys and values alike, and how attention reads them: one line of the table
 * that a session's layout makes. */
typedef struct carat_kv_kind {
    const char *device;      /* where they are; owned by the model */
    int32_t n_layers, first; /* layers with keys of their own; the first of them */
    int32_t window;          /* 0: global */
    int32_t n_head_kv, head_dim, n_slots;
    bool single;       /* one stream of keys and values */
    char k[16], v[16]; /* types, as options name them */
    char kernel[96];   /* "avx512: unpacked 16 at a time" */
    bool slow;         /* right, but not a path that was made fast */
    uint64_t n_bytes;  /* of all n_layers */
} carat_kv_kind;

/* The kinds of a session that carat_session_open would open, in order of their first layers.
 * Returns their number, of which the first cap are written; -1 with e set. */
CARAT_API int32_t carat_plan_kv(const carat_model *m, const carat_session_options *opt,
                                carat_kv_kind *kinds, int32_t cap, carat_error *e);

/* Weights of one format whose products one kernel does, by purpose. */
typedef struct carat_weight_kind {
    const char *device; /* where they are; owned by the model */
    int32_t n;          /* tensors */
    const char *what;   /* "matrices", "experts", "tables" (looked up, never multiplied) */
    const char *type;   /* "q4_k"; static storage */
    char kernel[96];
    bool slow;
    uint64_t n_bytes; /* in the file */
} carat_weight_kind;

/* The model's own weights but for vectors. Returns the number of kinds written, at most cap. */
CARAT_API int32_t carat_plan_weights(const carat_model *m, carat_weight_kind *kinds, int32_t cap);

/* Evaluates ids[0..n) as the whole timeline: keeps the longest prefix already cached, computes
 * the rest in chunks. logits may be NULL; else it receives f32 [n_vocab] of the last token, or
 * with all_logits [n_new, n_vocab] where n_new = n - *n_reused rows. n_reused may be NULL. */
CARAT_API carat_status carat_eval(carat_session *s, const int32_t *ids, int64_t n, bool all_logits,
                                  float *logits, int64_t *n_reused, carat_error *e);
/* Computes ids[0..n) as what comes after the tokens in the cache: carat_eval that compares nothing,
 * so that a token costs the host the same at any depth. Logits as there, with all_logits of n rows.
 * E_LIMIT where the context does not hold them. */
CARAT_API carat_status carat_append(carat_session *s, const int32_t *ids, int64_t n,
                                    bool all_logits, float *logits, carat_error *e);
/* Forgets positions >= n. Returns false if the rings no longer hold what that needs. */
CARAT_API bool carat_rewind(carat_session *s, int64_t n);
CARAT_API void carat_reset(carat_session *s); /* forgets the timeline; checkpoints of it stay */

/* ---- Generation ------------------------------------------------------------------------ */

typedef struct carat_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY bans the token */
} carat_logit_bias;

typedef struct carat_sampling {
    float temperature;                         /* <= 0: greedy */
    int32_t top_k;                             /* <= 0: off */
    float top_p, min_p;                        /* 1 and 0: off */
    float repeat_penalty;                      /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    int32_t penalty_last_n;                    /* tokens looked back at; -1: all, 0: off */
    uint32_t seed;
    const carat_logit_bias *bias; /* borrowed for the call */
    int32_t n_bias;
    int32_t n_top_logprobs; /* 0: no logprobs; at most 20 */
    bool ignore_eog;        /* never end by itself (benchmarks) */
} carat_sampling;

/* The model's recommended settings: general.sampling.* of the file, else the family's. */
CARAT_API void carat_sampling_default(const carat_model *m, carat_sampling *s);

typedef enum carat_event_kind {
    CARAT_EV_PREFILL,   /* progress: n_done of n_total prompt tokens */
    CARAT_EV_TOKEN,     /* one sampled token, before any text of it is shown; also the one that
                           ends the turn and has no text */
    CARAT_EV_REASONING, /* text of a thought */
    CARAT_EV_CONTENT,   /* text of the answer */
    CARAT_EV_TOOL_CALL, /* a complete call: name and arguments as JSON */
    CARAT_EV_END        /* the last event, unless the call fails: why it ended */
} carat_event_kind;

typedef enum carat_finish {
    CARAT_FINISH_STOP,   /* the model ended its turn, or a stop string was met */
    CARAT_FINISH_LENGTH, /* max_tokens, or the context is full */
    CARAT_FINISH_TOOL_CALLS,
    CARAT_FINISH_CANCELLED
} carat_finish;

typedef struct carat_logprob {
    int32_t id;
    float logprob; /* natural logarithm, of the model's own distribution at temperature 1 */
} carat_logprob;

typedef struct carat_event {
    carat_event_kind kind;
    int32_t id;               /* TOKEN */
    float logprob;            /* TOKEN, with n_top_logprobs > 0 */
    const carat_logprob *top; /* TOKEN: n_top best, best first */
    int32_t n_top;
    const char *text; /* REASONING, CONTENT, TOOL_CALL arguments: NUL-terminated valid UTF-8 */
    size_t n_text;
    const char *name;        /* TOOL_CALL */
    int64_t n_done, n_total; /* PREFILL; n_reused of those done were in a cache */
    int64_t n_reused;
    carat_finish finish; /* END */
    const char *stop;    /* END: the stop string met, or NULL */
} carat_event;

/* Pointers in the event live until the callback returns. Return false to cancel. */
typedef bool (*carat_event_fn)(void *user, const carat_event *ev);

/* Restricts what may be sampled next: structured output. Both are called by the thread that runs
 * the generation, fill before each token and accept after it, and may not call back into it. */
typedef struct carat_mask {
    /* allowed: [(n_vocab + 31) / 32] words, all bits zero; bit id & 31 of word id / 32 lets id be
     * sampled. Tokens that end the turn are like any other. Returns how the token is chosen: */
    enum carat_mask_use {
        CARAT_MASK_NONE,  /* freely; the words are not looked at */
        CARAT_MASK_APPLY, /* among the bits that are set; none set: the generation fails, E_ARG */
        CARAT_MASK_FAIL   /* not at all: the generation fails, E_LIMIT */
    } (*fill)(void *user, uint32_t *allowed, int32_t n_vocab);
    /* The token that was taken: sampled, or forced to close a thought. May be NULL. */
    void (*accept)(void *user, int32_t id);
    void *user;
} carat_mask;

typedef struct carat_generate_options {
    carat_sampling sampling;
    int32_t max_tokens;      /* <= 0: until the context is full */
    const char *const *stop; /* stop strings; borrowed */
    int32_t n_stop;
    bool parse;           /* split the output into reasoning, content and tool calls */
    bool starts_thinking; /* the prompt ended inside a thought: as carat_chat_render said */
    /* A thought is closed by force, and the answer begun, after max_thinking tokens of thought or
     * when no more than answer_reserve of max_tokens are left. <= 0: never. Only for models whose
     * chat format has thoughts; for others E_UNSUPPORTED. */
    int32_t max_thinking, answer_reserve;
    const carat_mask *mask; /* NULL: none; borrowed until the generation is over */
} carat_generate_options;

typedef struct carat_timings {
    int64_t n_prompt, n_reused, n_generated;
    int64_t n_thinking; /* of n_generated: tokens of thoughts, their marks included */
    bool thinking_cut;  /* a thought was closed by force */
    const char *reuse;  /* as carat_session_reuse says it; static storage */
    double queue_ms;    /* from submit until a slot was free; 0 outside a batch */
    double prefill_ms, decode_ms, load_ms;
    uint64_t peak_bytes; /* resident memory of the process, the highest so far */
    carat_finish finish;
} carat_timings;

/* Evaluates the prompt (reusing what it can), then samples until something ends it. opt NULL: the
 * defaults of the model, parse off. t may be NULL. */
CARAT_API carat_status carat_generate(carat_session *s, const int32_t *ids, int64_t n,
                                      const carat_generate_options *opt, carat_event_fn fn,
                                      void *user, carat_timings *t, carat_error *e);

/* One short name per finish: "stop", "length", "tool_calls", "cancelled"; static storage. */
CARAT_API const char *carat_finish_name(carat_finish f);

/* ---- Structured output ----------------------------------------------------------------- */

/* A grammar holds one generation to texts of one form: exactly, token by token, with any sampling.
 * What it asks for and cannot do is refused when it is opened, with a sentence that names it.
 *
 *     carat_grammar_open(m, &(carat_grammar_options){.kind = CARAT_GRAMMAR_JSON_SCHEMA,
 *                                                    .source = schema, .n_source = n}, &g, &e);
 *     opt.mask = carat_grammar_mask(g);
 *
 * Open and close on any thread; in between it belongs to the generation. One for each. */
typedef struct carat_grammar carat_grammar;

typedef enum carat_grammar_kind {
    CARAT_GRAMMAR_JSON,        /* any JSON object */
    CARAT_GRAMMAR_JSON_SCHEMA, /* JSON that the schema validates; see text/json_schema.c */
    CARAT_GRAMMAR_GBNF,        /* what `root` of a grammar in llama.cpp's notation derives */
    CARAT_GRAMMAR_REGEX,       /* text that a regular expression matches, all of it */
    CARAT_GRAMMAR_TOOLS        /* text and tool calls, of the tools given as OpenAI has them */
} carat_grammar_kind;

typedef struct carat_grammar_options {
    carat_grammar_kind kind;
    const char *source; /* schema, grammar, expression or tools; NULL for JSON; copied */
    size_t n_source;
    bool thinking;        /* the prompt allows a thought, which comes before the text */
    bool starts_thinking; /* the prompt ended inside one: as carat_chat_render said */
    /* TOOLS. Calls are of declared tools in any case, and their arguments follow the schema of a
     * tool that says "strict": true. */
    bool must_call;        /* nothing but calls, one at least */
    bool one_call;         /* one at most */
    bool strict;           /* every tool is strict */
    const char *only_tool; /* the one that may be called; NULL: any */
    /* TOOLS: an answer without a call is JSON, of this schema or (json) any object. */
    const char *content_schema;
    size_t n_content_schema;
    bool content_json;
    /* Compiling a large source takes up to about a second. It asks this again and again, on the
     * calling thread; true ends it with E_CANCELLED. NULL: never asked. */
    bool (*cancelled)(void *user);
    void *user;
} carat_grammar_options;

CARAT_API carat_status carat_grammar_open(carat_model *m, const carat_grammar_options *opt,
                                          carat_grammar **g, carat_error *e);
CARAT_API void carat_grammar_close(carat_grammar *g); /* NULL is fine */
/* The text has begun with these bytes, which come from elsewhere. E_ARG: none of the grammar does;
 * then g is of no more use. Before the first mask. */
CARAT_API carat_status carat_grammar_follow(carat_grammar *g, const char *text, size_t n,
                                            carat_error *e);
CARAT_API const carat_mask *carat_grammar_mask(carat_grammar *g);    /* lives as long as g */
CARAT_API bool carat_grammar_complete(const carat_grammar *g);       /* the text so far is one */
CARAT_API const char *carat_grammar_failure(const carat_grammar *g); /* "": it can go on */

/* ---- Many generations at once ---------------------------------------------------------- */

/* A batch runs up to n_slots generations side by side: one pass has a row of each that is
 * answering, and what rows are left compute prompts in chunks. Further ones wait in a queue, first
 * come, first served. Each slot is a timeline of its own; a prompt goes to the slot that holds its
 * longest prefix. On a CPU every answer is the same, bit for bit, as if it ran alone.
 *
 *     carat_batch_open(m, &(carat_batch_options){.n_slots = 4}, &b, &e);
 *     carat_batch_submit(b, &job, &id, &e);          any thread, as often as wished
 *     while (!quit) {                                one thread
 *         carat_batch_wait(b, 1000);
 *         while (carat_batch_step(b))
 *             ;
 *     }
 *
 * submit, cancel, wake and the statistics may be called from any thread, callbacks included. step,
 * wait and close belong to one thread; all callbacks run there. */
typedef struct carat_batch carat_batch;

typedef struct carat_batch_options {
    carat_session_options session; /* of each slot */
    int32_t n_slots;               /* 0: 4; at most 64 */
    int32_t queue_max;             /* jobs that may wait for a slot; 0: 64 */
    int32_t stall_ms; /* while anyone is answering, prompts are cut so that a pass takes about this
                         long at most, or twice as long as the answers' part; 0: 200 */
} carat_batch_options;

CARAT_API carat_status carat_batch_open(carat_model *m, const carat_batch_options *opt,
                                        carat_batch **b, carat_error *e);
/* Jobs that are not over end with E_CANCELLED: their done is called from here. */
CARAT_API void carat_batch_close(carat_batch *b);          /* NULL is fine */
CARAT_API int32_t carat_batch_n_ctx(const carat_batch *b); /* of each slot */

typedef struct carat_job {
    const int32_t *ids; /* the whole prompt; copied */
    int64_t n;
    const carat_generate_options *opt; /* NULL: as carat_generate. Copied, stop strings and biases
                                          too; the mask is borrowed until done */
    carat_event_fn fn;                 /* may be NULL */
    /* The last call for this job, exactly one if submit returned OK: what carat_generate would
     * have returned. A cancelled job that had begun is OK with CARAT_FINISH_CANCELLED. */
    void (*done)(void *user, carat_status st, const carat_error *e, const carat_timings *t);
    void *user;
} carat_job;

/* E_LIMIT: the prompt is longer than a slot, or the queue is full (*queue_full, which may be NULL,
 * tells which). id: > 0, never used twice. */
CARAT_API carat_status carat_batch_submit(carat_batch *b, const carat_job *job, int64_t *id,
                                          bool *queue_full, carat_error *e);
/* Ends a job after the pass it is in; one in the queue at the next step. Unknown ids: nothing. */
CARAT_API void carat_batch_cancel(carat_batch *b, int64_t id);
/* One pass over all that is alive. False: there is nothing to do. Failures go to the jobs. */
CARAT_API bool carat_batch_step(carat_batch *b);
/* Sleeps until there is something to do, timeout_ms have passed (< 0: no limit), or wake was
 * called. True: there is something to do. */
CARAT_API bool carat_batch_wait(carat_batch *b, int32_t timeout_ms);
CARAT_API void carat_batch_wake(carat_batch *b);

typedef struct carat_slot_info {
    int64_t id;                            /* of the job; 0: idle */
    int64_t n_past;                        /* tokens in the cache */
    int64_t n_prompt, n_done, n_generated; /* n_done of n_prompt are computed or reused */
} carat_slot_info;

typedef struct carat_batch_info {
    int32_t n_slots, n_busy, n_queued;
    /* Sums since open. n_rows: rows of all passes. */
    uint64_t n_jobs, n_prompt, n_reused, n_generated, n_passes, n_rows;
    uint64_t kv_bytes; /* of all slots */
    carat_cache_info cache;
    double pass_ms; /* time in passes */
} carat_batch_info;

/* As of the last step. slots may be NULL; else the first cap are written. */
CARAT_API void carat_batch_get_info(carat_batch *b, carat_batch_info *info, carat_slot_info *slots,
                                    int32_t cap);

/* ---- For callers with a loop of their own ------------------------------------------------ */

/* One sampling step over logits [n_vocab] (modified in place) after `past` tokens. For callers
 * with a loop of their own. Returns the id, or -1 when no finite logit is left (or no memory: the
 * first call allocates work space, which the model keeps). */
CARAT_API int32_t carat_sample(const carat_model *m, const carat_sampling *p, float *logits,
                               const int32_t *past, int64_t n_past, uint64_t *rng_state);

#ifdef __cplusplus
}
#endif
#endif
