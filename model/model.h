/* model.h - a model file bound to shapes and weights, and the registry of architectures.
 *
 * Three steps: model_bind reads shapes and finds weights (no device, nothing large touched);
 * model_plan says what a context would cost; model_load puts the weights on the device. A loaded
 * model is read-only and may serve many sessions.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "backend/ops.h"
#include "format/gguf.h"
#include "kv/kv.h"

typedef struct model model;

typedef struct model_arch {
    const char *name; /* general.architecture */
    status (*bind)(model *m, err *e);
    /* Logits [p->st->out.n, n_vocab] of the rows wanted; a mat without rows if none are. */
    mat (*forward)(pass *p, const model *m, const kv_layout *kv);
    /* Says of each weight and store which side it is on, as m->division wants it. */
    status (*divide)(model *m, err *e);
} model_arch;

/* What is not on the main device but on a CPU beside it. */
typedef struct model_division {
    int32_t n_layers; /* the first n, and what comes before them */
    bool experts;     /* the experts of all others */
} model_division;

/* Host memory until model_load moves it to the device. */
typedef struct model_table {
    const void **at;
    size_t n_bytes;
    bool moved;
} model_table;

enum { MODEL_TABLES_MAX = 16 };

struct model {
    const model_arch *arch;
    gguf file;        /* owned */
    const char *name; /* general.name or the file's name */
    int32_t n_layer, n_embd, n_vocab, n_ctx_train, window;
    int32_t n_kv;                                     /* layers that own keys */
    kv_spec *kv;                                      /* [n_kv] */
    uint64_t n_params, n_params_active, active_bytes; /* active: per decoded token, with the head */
    int32_t n_suppress;
    const int32_t *suppress; /* ids never generated */
    void *impl;              /* the architecture's own, in mem */
    weight **weights;        /* all that the forward pass uses, for loading */
    int32_t n_weights, weights_cap;
    model_table *tables; /* small computed arrays that ops read (rotation frequencies, id lists) */
    int32_t n_tables;
    model_division division;
    device *dev;  /* borrowed; NULL until loaded */
    device *host; /* borrowed; of PASS_HOST; NULL: not divided */
    arena mem;
};

/* Takes g (zeroes it) on success and on failure. */
status model_bind(model *m, gguf *g, err *e);
/* Divides m, before it is loaded or planned: the parts that d names will be on host, a CPU device,
 * which outlives m. E_ARG, with a sentence, for a division that cannot be. */
status model_divide(model *m, device *host, model_division d, err *e);
/* dev outlives m. progress may be NULL: "bytes loaded". */
status model_load(model *m, device *dev, carat_progress_fn progress, void *user, err *e);
/* Gives back what the weights take on the device, and takes it again: the same numbers, perhaps
 * elsewhere. No pass may run in between. */
void model_unload_weights(model *m);
status model_load_weights(model *m, carat_progress_fn progress, void *user, err *e);
void model_free(model *m); /* safe on a zeroed or freed model */

typedef struct model_costs {
    size_t scratch_bytes; /* for passes of up to `rows` rows of which `outs` give logits */
    uint64_t repack_bytes, largest_bytes; /* of all copies; of the largest one */
    uint64_t table_bytes;                 /* of what else is on a device beside a pass */
    uint64_t flops, weight_bytes;         /* of one such pass */
    /* The same on PASS_HOST; the above are PASS_MAIN's. host_file_bytes: of its weights. */
    size_t host_scratch_bytes;
    uint64_t host_repack_bytes, host_largest_bytes, host_file_bytes;
} model_costs;

/* A dry pass on dev (which need not hold the weights) and, of a divided model, its host. */
status model_plan(const model *m, device *dev, const kv_layout *kv, int32_t rows, int32_t outs,
                  model_costs *c, err *e);

mat model_forward(pass *p, const model *m, const kv_layout *kv);

/* For architectures, inside model/ only: a weight of the given shape. Missing: E_FORMAT, or *w left
 * empty (n_in == 0) if optional. n_mat 1 unless experts. Adds to the tallies. */
typedef struct model_want {
    const char *name;
    int64_t n_in, n_out, n_mat; /* n_out 0: take the file's */
    bool optional;
    bool gather;   /* rows are gathered, never multiplied */
    bool f32;      /* must be F32 (norms, scales) */
    double active; /* share of it read per token: 1, k/E for experts, 0 for gathered tables */
} model_want;
status model_weight(model *m, weight *w, const model_want *want, err *e);
/* Registers n_bytes at *at, in m->mem, to be moved to the device. E_LIMIT at MODEL_TABLES_MAX. */
status model_add_table(model *m, const void **at, size_t n_bytes, err *e);

#endif
