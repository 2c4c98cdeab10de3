/* carat/model.h - models: opening them, and what their files say. */
#ifndef CARAT_MODEL_H
#define CARAT_MODEL_H

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct carat_model carat_model;
typedef struct carat_session carat_session;

/* Tells the progress of loading and of long prompts. `what` names the unit of done and total:
 * "bytes read", "bytes loaded", "prompt tokens". Runs on the thread of the call that it reports.
 * Return false to cancel that call. */
typedef bool (*carat_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* Receives lines, each with its newline: those of the device wrappers (`wrap` below), and what a
 * model is opened without, and why. Must not call the library. */
typedef void (*carat_log_fn)(void *user, const char *text);

/* See `planned` below. */
typedef carat_status (*carat_planned_fn)(void *user, const carat_model *m, carat_error *e);

/* A file in memory. */
typedef struct carat_bytes {
    const void *at;
    size_t n;
    const char *name; /* for sentences, and where a name chooses one of several */
} carat_bytes;

/* Of one model: eight GPUs, a CPU and a drafter's device. */
enum { CARAT_DEVICES_MAX = 10, CARAT_GPUS_MAX = 8 };

typedef struct carat_model_options {
    int32_t n_threads; /* 0: one per physical core this process may use */
    bool no_mmap;      /* read the file into memory instead of mapping it */
    bool vocab_only;   /* metadata, tokenizer and plans; no weights are loaded */
    bool reference;    /* the plain reference kernels: slow and exact, for tests */
    bool exact_f32;    /* CPU: activations stay f32 in matrix products instead of int8 */
    bool no_repack;    /* CPU: products read the file's layout: less memory, less speed */
    bool overcommit;   /* plans beyond the available memory are allowed */
    bool sum_inputs;   /* the squares of what goes into products are summed: carat_input_sums_at.
                          Slower; on the CPU unless `device` names another; without a drafter */
    const char *wrap;  /* NULL, or any of "trace", "time", "check" joined by commas */
    const char *isa;   /* NULL: the best of this CPU; or "portable", "avx2", "avx512",
                          "avx512bf16", "amx", "neon" */
    /* "cpu", "cuda" or "cuda:N": that device, or an error. NULL or "auto": a GPU if this build
     * supports it, the machine has one, the model fits and no option above asks for CPU kernels;
     * else the CPU. */
    const char *device;
    /* Several GPUs, by their numbers: "0,1". Each has a range of the layers; the last one is the
     * main device. A number may come again: then that GPU does the work of two. Answers do not
     * depend on it, if the GPUs are of one kind. NULL: `device`, and "auto" there takes several if
     * the model does not fit one as a whole: the fewest with which least is given up. "auto": the
     * same, also of the GPUs of plan_gpu_mb. */
    const char *gpus;
    /* In which proportion these GPUs have layers: "3,1". NULL: by the plan, so that of each GPU the
     * same part of its memory is taken. */
    const char *gpu_split;
    /* How they share the model: NULL or "layers"; "tensor": each has a part of every layer, also
     * where there is one, and answers do not depend on their number; "auto": one of these, by
     * links that are measured now, so the next opening may choose the other; "none" refuses more
     * than one. */
    const char *split;
    /* For a model on GPUs: the number of layers there, counted from the last; 0: all. The CPU has
     * the other layers and the embeddings. With cpu_experts it has the experts of all layers. */
    int32_t gpu_layers;
    bool cpu_experts;
    /* The most memory, in MiB, that carat may take of each GPU; 0: what is free. */
    int64_t gpu_mb;
    /* A compute capability, "8.0", "8.6", "8.9", "9.0", "10.0" or "12.0": kernels are chosen as on
     * a card of that capability, for checks and measurements. NULL: CARAT_CARD of the environment,
     * or else the GPU's own. */
    const char *card;
    /* With vocab_only: plans are made for GPUs with so much free memory, in MiB, and of compute
     * capability `card` ("8.6" if NULL). They need not be here, and the host's memory is not asked.
     * Ends with 0; at once: not. */
    int64_t plan_gpu_mb[CARAT_GPUS_MAX + 1];
    /* Of a mixture: the experts that the GPU holds. The others stay in the host's memory, where the
     * GPU reads them; those used lately are exchanged for others. Answers do not depend on it. NULL
     * or "auto": as many as fit beside everything else on the GPU; "0.5" or "50%": that part of
     * them; "4000": as many as fit in 4000 MiB. Of several GPUs that is of each. */
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
    const char *experts_prefetch;
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
    /* "cpu", "cuda" or "cuda:N": the drafter has its weights, keys and passes there, opened for it
     * alone, also where the model is on it too. NULL: the model's main device. Of the model it
     * gets rows, token by token. E_UNSUPPORTED with an MTP assistant, which reads the model's keys;
     * E_ARG without a drafter's weights. */
    const char *draft_device;
    /* A model file that scores pages of keys for kv_policy "drafter", of any family and vocabulary.
     * It runs on the CPU, with n_threads; plans have its memory. NULL: none. */
    const char *scorer;
    const carat_bytes *scorer_bytes;  /* the same as a file in memory, in place of `scorer` */
    struct carat_model *scorer_model; /* the same, open already: of the caller, who closes it after
                                         this model. It is neither parked nor unparked with it */
    /* The model's vision tower (an mmproj file), for pictures in prompts (media.h). NULL: none.
     * E_UNSUPPORTED: it is another model's, or carat does not compute the two together. */
    const char *mmproj;
    const carat_bytes *mmproj_bytes; /* the same as a file in memory, in place of `mmproj` */
    int32_t image_tokens; /* the most soft tokens of a picture, 70 to 1120; -1: by its own size, at
                             most 1120; 0: 560 */
    const struct carat_lora *loras; /* [n_loras], lora.h */
    int32_t n_loras;
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

/* The last thing that a model gave up to fit the memory of its GPU, of those that its options left
 * open. Each comes after the ones before it. */
typedef enum carat_fit {
    CARAT_FIT_WHOLE,   /* nothing */
    CARAT_FIT_CONTEXT, /* the longest context */
    CARAT_FIT_KEYS,    /* keys of f16: they are q8_0 */
    CARAT_FIT_EXPERTS, /* experts on the GPU: some are in the host's memory */
    CARAT_FIT_LAYERS   /* layers on the GPU: the CPU computes some */
} carat_fit;

typedef struct carat_model_info {
    const char *name;         /* general.name, or the file name */
    const char *architecture; /* "gemma4" */
    const char *file_type;    /* "Q4_K_M", or the commonest weight type */
    const char *device;       /* the main device: "cpu (avx512, 2 threads)" */
    const char *device_why;   /* the reason for this device, as a phrase */
    bool on_gpu;              /* the main device is a GPU */
    carat_fit fit;            /* and for the sessions that carat_model_options.session describes */
    const char *fit_text;     /* a line that says so; "": nothing was given up */
    int32_t fit_ctx;          /* tokens of a session that names no context; 0: not chosen yet */
    const char *fit_kv;       /* formats of a session that names none: "f16" or "q8_0" */
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
    const char *mmproj; /* the name of its vision tower's file; NULL: it sees nothing */
    bool hears;         /* that file has an audio tower too */
    bool has_vocab;     /* can turn text into tokens */
    bool has_chat;      /* its chat template is known */
    bool thinks;        /* the template asks for a thought unless told otherwise */
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
/* Returns the number of devices of the model. The first is the main one; the last is that of
 * carat_model_options.draft_device, if it was given. Any thread. */
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

/* What went into the products with a tensor so far, for a model opened with sum_inputs: how much
 * each input matters, by which carat quantize weighs errors (`carat imatrix`). */
typedef struct carat_input_sums {
    const char *tensor;  /* owned by the model, like the lists */
    int32_t n_in, n_mat; /* n_mat: experts, else 1 */
    const double *sum2;  /* [n_mat][n_in]: of the squares of each input */
    const int64_t *n;    /* [n_mat]: rows of each matrix */
} carat_input_sums;
/* Tensor i, in the order of their first products. False: there are no more. *out is valid until the
 * model computes again. */
CARAT_API bool carat_input_sums_at(const carat_model *m, int32_t i, carat_input_sums *out);

#ifdef __cplusplus
}
#endif
#endif
