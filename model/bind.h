/* bind.h - what the bind files of all architectures share: metadata within bounds, weights by the
 * tail of their name, rotation tables, experts.
 *
 * Keys are named without the architecture's prefix: "block_count" of a gemma4 file is
 * gemma4.block_count. Every call leaves one sentence that names the file, the key or tensor, what
 * was expected and what was found.
 */
#ifndef MODEL_BIND_H
#define MODEL_BIND_H

#include "model/model.h"

/* Bounds against absurd files, far above every published model. */
enum {
    LAYERS_MAX = 512,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 65536,
    EXPERTS_MAX = 4096,
    TURNING_MAX = 4096, /* pairs of a head that rotate */
    CTX_MAX = 1 << 24   /* token positions are exact in f32 up to here */
};

/* ---- Metadata ---- */

enum { REQUIRED = -1 };

/* A key whose value lies in [lo, hi]. An absent key has the value `fallback`, or is an error if
 * that is REQUIRED. */
typedef struct int_key {
    const char *name;
    int64_t lo, hi, fallback;
} int_key;

typedef struct real_key {
    const char *name;
    double lo, hi, fallback;
} real_key;

status bind_int(const model *m, int_key key, int32_t *out, err *e);
status bind_real(const model *m, real_key key, double *out, err *e);
/* One integer per layer, from a scalar or an array of n. */
status bind_per_layer(const model *m, int_key key, int32_t *out, int32_t n, err *e);
/* Refuses a file whose key b differs from va, the value of its key a. An absent b is fine. */
status bind_equal(const model *m, const char *a, const char *b, int32_t va, err *e);

/* ---- Weights ---- */

/* The tensors blk.IL.*, or those of the model if il is -1. */
typedef struct binder {
    model *m;
    int32_t il;
    err *e;
} binder;

status bind_tensor(const binder *b, weight *w, const char *tail, model_want want);
status bind_matrix(const binder *b, weight *w, const char *tail, int32_t n_in, int32_t n_out);
status bind_vector(const binder *b, weight *w, const char *tail, int32_t n); /* f32, as norms are */
/* The same if the file has it; else *w stays empty (n_in == 0). */
status bind_matrix_if(const binder *b, weight *w, const char *tail, int32_t n_in, int32_t n_out);
status bind_vector_if(const binder *b, weight *w, const char *tail, int32_t n);

/* The experts of a layer: gate and up in one tensor (then `up` is empty), or in two. */
typedef struct expert_sizes {
    int32_t n_embd, n_ff, n_expert, n_used;
} expert_sizes;

status bind_experts(const binder *b, const expert_sizes *s, weight *gate, weight *up, weight *down);
/* The embedding, which says how many tokens there are, and the head: output.weight, or the
 * embedding once more. The n_params of a tied model count it once. */
status bind_tokens(model *m, weight *embd, weight *head, int32_t n_embd, err *e);
/* tokenizer.ggml.suppress_tokens to m->suppress. */
status bind_suppressed(model *m, err *e);
/* The largest magnitude of a vector; infinity if an element is no number. */
float bind_largest(const weight *w);

/* ---- Rotation ---- */

/* Frequency of pair i: theta^(-2i / head_dim), divided by the file's factor for the pair. */
typedef struct turning {
    int32_t head_dim;
    double theta;
    int32_t n_turning;     /* without factors: pairs from here on stand still */
    const weight *factors; /* NULL, or empty: there are none */
} turning;

status bind_rope(model *m, rope *r, const turning *t, err *e);
/* r->turns: cosines and sines of the first ROPE_TURNS positions, for keys that are made while they
 * are read. Heads with more than TURNING_MAX turning pairs get no table. */
status bind_turns(model *m, rope *r, err *e);

#endif
