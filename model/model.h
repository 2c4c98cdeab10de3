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

/* What the publishers recommend, where the file says nothing. */
typedef struct model_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
} model_sampling;

typedef struct model_arch {
    const char *name; /* general.architecture */
    model_sampling sampling;
    status (*bind)(model *m, err *e);
    /* Logits [p->st->out.n, n_vocab] of the rows wanted; a mat without rows if none are. */
    mat (*forward)(pass *p, const model *m, const kv_layout *kv);
    /* Gives every weight and store the side that m->layer_side and m->expert_side say. */
    status (*divide)(model *m, err *e);
} model_arch;

/* What the main device leaves to the others. */
typedef struct model_division {
    int32_t n_layers; /* the first n, and what comes before them, in equal ranges by side */
    bool experts;     /* the experts of every layer, to the last side */
} model_division;

/* Host memory until model_load copies it to the device of its side. */
typedef struct model_table {
    const void **at;
    size_t n_bytes;
    int8_t side;
    bool moved;
} model_table;

enum { MODEL_TABLES_MAX = 8 + 4 * PASS_SIDES_MAX };

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
    int32_t n_sides;                  /* 1: not divided */
    int8_t *layer_side, *expert_side; /* [n_layer] of each layer; of its experts */
    device *dev[PASS_SIDES_MAX];      /* borrowed; dev[PASS_MAIN] is NULL until loaded */
    arena mem;
};

/* Takes g (zeroes it) on success and on failure. */
status model_bind(model *m, gguf *g, err *e);
/* Divides m, before it is loaded or planned: others[i] is the device of side 1 + i and outlives m.
 * E_ARG, with a sentence, for a division that cannot be. */
status model_divide(model *m, device *const *others, int32_t n_others, model_division d, err *e);
/* The same for a side per layer, and for each layer's experts: [n_layer] each. */
status model_place(model *m, device *const *others, int32_t n_others, const int8_t *layer_side,
                   const int8_t *expert_side, err *e);
/* How many layers side has. */
int32_t model_layers_on(const model *m, int32_t side);
/* dev outlives m. progress may be NULL: "bytes loaded". */
status model_load(model *m, device *dev, carat_progress_fn progress, void *user, err *e);
/* Gives back what the weights take on the device, and takes it again: the same numbers, perhaps
 * elsewhere. No pass may run in between. */
void model_unload_weights(model *m);
status model_load_weights(model *m, carat_progress_fn progress, void *user, err *e);
void model_free(model *m); /* safe on a zeroed or freed model */

/* Of one side. */
typedef struct model_side_costs {
    size_t scratch_bytes;                 /* of a pass */
    uint64_t repack_bytes, largest_bytes; /* of all copied weights; of the largest one */
    uint64_t table_bytes;                 /* of what else is on a device beside a pass */
    uint64_t file_bytes;                  /* of its weights, as the file has them */
} model_side_costs;

/* Of a pass of `rows` rows of which `outs` give logits. */
typedef struct model_costs {
    uint64_t flops, weight_bytes;
    model_side_costs side[PASS_SIDES_MAX];
} model_costs;

/* A dry pass on dev, which need not hold the weights, and on the model's other devices. taps: of
 * the passes that are planned; may be NULL. */
status model_plan(const model *m, device *dev, const kv_layout *kv, int32_t rows, int32_t outs,
                  const pass_taps *taps, model_costs *c, err *e);

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
/* Registers n_bytes at *at, in m->mem, to be moved to the main device. E_LIMIT at MODEL_TABLES_MAX.
 */
status model_add_table(model *m, const void **at, size_t n_bytes, err *e);
/* Registers the same bytes once more, for another side: *at, which becomes that side's copy. */
status model_copy_table(model *m, const void *const *table, const void **at, int8_t side, err *e);

#endif
