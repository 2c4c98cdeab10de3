/* carat/plan.h - the memory and the kernels that a session needs, before it exists; experts. */
#ifndef CARAT_PLAN_H
#define CARAT_PLAN_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The memory that one device of a model needs for a session. */
typedef struct carat_device_plan {
    const char *device;    /* owned by the model */
    int32_t n_layers;      /* of the model, on this device: they follow each other */
    int32_t first_layer;   /* of them */
    uint64_t weight_bytes; /* in the device's layout */
    uint64_t expert_bytes; /* where some experts are in slots: slots, stages and tables. The weights
                              are without experts then */
    uint64_t kv_swa_bytes, kv_global_bytes; /* caches of sliding-window and of global layers */
    uint64_t recurrent_bytes;               /* states of recurrent layers, and their journals */
    uint64_t scratch_bytes;                 /* of a pass */
    uint64_t draft_bytes;                   /* the drafter: weights, caches, work space */
    uint64_t vision_bytes;    /* both towers: weights, the largest picture or sound at work */
    uint64_t reserve_bytes;   /* GPUs: at most, for recorded passes, step blocks and libraries */
    uint64_t total_bytes;     /* the sum */
    uint64_t available_bytes; /* free, plus what this model has taken already; 0: unknown */
    uint64_t crossing_bytes;  /* activations that come from other devices, for each row of a pass */
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
    uint64_t vision_bytes;           /* the vision tower: weights, the largest picture at work */
    uint64_t audio_bytes;            /* the audio tower: weights, what a sound needs beyond that */
    uint64_t picture_bytes;          /* of pictures and sounds: patches that wait for the tower, and
                                        rows that are kept. Host memory */
    uint64_t checkpoint_bytes;       /* at most; part of the total only with checkpoint_mb > 0 */
    uint64_t checkpoint_state_bytes; /* of each checkpoint: states of recurrent layers */
    uint64_t total_bytes; /* while computing. Pages of repacked weights leave memory, but not with
                             no_mmap */
    uint64_t available_bytes; /* free, plus what this model has taken already; 0: unknown */
    uint64_t chunk_flops;     /* of the products of a pass of `chunk` rows, n_outputs of which give
                                 logits */
    int32_t n_ctx, chunk;     /* as chosen */
    int32_t n_ring_slots;     /* of the largest ring of a sliding-window layer; 0: no ring */
    int32_t n_devices; /* as of carat_memory: a drafter's own device is the last, without layers */
    carat_device_plan device[CARAT_DEVICES_MAX];
} carat_memory_plan;

/* The plan of the session that carat_session_open would open with opt, which may be NULL. A plan
 * that does not fit is no error here. Works for vocab_only models too. A failure leaves *plan as it
 * was. Any thread. */
CARAT_API carat_status carat_plan(const carat_model *m, const carat_session_options *opt,
                                  carat_memory_plan *plan, carat_error *e);

/* E_MEMORY for a plan that carat_session_open would refuse, with the bytes needed and available.
 * Any thread. */
CARAT_API carat_status carat_plan_check(const carat_model *m, const carat_memory_plan *plan,
                                        carat_error *e);

/* The experts of a model whose GPUs do not hold all of them, and their use since it was loaded. A
 * pair is a row of a pass and one of its experts. Of several GPUs together: sums, and the rate and
 * the times of the slowest. Of a tensor split a device's part of an expert counts as one. */
typedef struct carat_expert_info {
    int32_t n_layers;             /* with experts */
    int32_t n_experts, n_slots;   /* of all layers together */
    uint64_t all_bytes;           /* of all experts */
    uint64_t slot_bytes;          /* of those that the GPUs hold */
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
    int32_t prefetch_most;        /* experts on their way before a layer chooses; 0: none ever */
    uint64_t prefetch_bytes;      /* copied before a layer chose its experts (experts_prefetch) */
    uint64_t n_prefetched;        /* experts that these were, */
    uint64_t n_prefetched_used;   /* those of them that it then chose, */
    uint64_t n_prefetched_waited; /* of the chosen, still on their way when the layer chose, */
    uint64_t n_prefetched_late;   /* and requests that were waited for in vain */
    int32_t prefetch_ahead;       /* layers between a guess and its use, now */
    double wait_ms;               /* for the bus: as carat_timings.expert_wait_ms */
} carat_expert_info;

/* False: every device holds all experts of its layers, and *to is zeroed. Waits for a pass under
 * way. Any thread. */
CARAT_API bool carat_experts(const carat_model *m, carat_expert_info *to);
/* The same of one device, which has the experts of its layers; `which` counts as in
 * carat_memory_plan. False: it has no slots. */
CARAT_API bool carat_experts_on(const carat_model *m, int32_t which, carat_expert_info *to);

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

#ifdef __cplusplus
}
#endif
#endif
