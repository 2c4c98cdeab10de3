/* shapes.h - models as data, for programs that write model files: synth, convert, quantize.
 *
 * One entry per family says which sizes it was published in, which tensors a size has and which
 * metadata. What reads model files does not go by these tables: a file says its own shape.
 */
#ifndef MODEL_SHAPES_H
#define MODEL_SHAPES_H

#include "format/gguf.h"
#include "num/num.h"

enum {
    SHAPE_LAYERS_MAX = 256, /* the largest published has 60 */
    SHAPE_TENSORS_MAX = 8 + 27 * SHAPE_LAYERS_MAX
};

/* ---- Tensors ---- */

/* What a tensor is for: decides how it may be stored and what random values suit it. */
typedef enum tensor_role {
    ROLE_EMBD,         /* token embedding and head */
    ROLE_PLE_EMBD,     /* per-layer embedding table; gathered only */
    ROLE_PLE_PROJ,     /* never quantised */
    ROLE_ROPE_FACTORS, /* computed, not learned */
    ROLE_NORM,         /* f32 vectors from here ... */
    ROLE_QK_NORM,
    ROLE_SCALE,  /* ... around 1 */
    ROLE_ROUTER, /* f32 matrix */
    ROLE_ATTN_V, /* matrices from here on; these three have a rule in the mixes */
    ROLE_FFN_DOWN,
    ROLE_DOWN_EXPERTS,
    ROLE_MATRIX /* every other projection */
} tensor_role;

typedef struct shape_tensor {
    char name[64];    /* in GGUF */
    char hf_name[80]; /* in safetensors, after the prefix; "" where there is none */
    tensor_role role;
    int32_t layer;  /* -1: of the model */
    bool unused_kv; /* keys of a layer that reads another's: published, optional, not used */
    int32_t n_dims;
    uint64_t ne[TENSOR_DIMS_MAX];
    float fan_in; /* random entries have a variance of 1 over this; 0: of 1 over ne[0] */
    float centre; /* random vectors lie around it; 0: around 1 */
} shape_tensor;

/* ---- Shapes ---- */

/* What the shape of every family begins with. */
#define SHAPE_FIELDS                                                                               \
    const struct shape_family *family;                                                             \
    char name[32]; /* "e2b" */                                                                     \
    int32_t n_layer, n_embd, n_vocab
typedef struct model_shape {
    SHAPE_FIELDS;
} model_shape;

/* The functions take shapes of their own family. */
typedef struct shape_family {
    const char *arch;  /* general.architecture */
    const char *title; /* "gemma-4": what general.name begins with */
    const char *sizes; /* "e2b, e4b, ..." for messages */
    size_t shape_bytes;
    bool (*named)(const char *size, model_shape *s); /* false: no such size */
    /* E_ARG, in one sentence, for a shape that makes no sense; `what` names its source. */
    status (*check)(const model_shape *s, const char *what, err *e);
    void (*cut)(model_shape *s, int32_t n_layer); /* keeps the first n_layer layers */
    /* Fills out[0..cap) in file order; returns how many there are. */
    int32_t (*list)(const model_shape *s, shape_tensor *out, int32_t cap);
    void (*put)(gguf_writer *w, const model_shape *s); /* its metadata */
    /* A tensor of ROLE_ROPE_FACTORS: computed, not learned. */
    void (*compute)(const model_shape *s, const shape_tensor *t, float *out);
} shape_family;

/* All entries, ended by NULL. */
extern const shape_family *const shape_families[];
/* The shape of that name; free with mem_free. E_ARG lists the names there are. */
status shape_named(const char *size, model_shape **s, err *e);

/* ---- Quantisation mixes ---- */

/* Which type each tensor gets under a name such as "q4_k_m". */
typedef struct weight_mix {
    const char *name;
    num_type base;     /* of the matrices */
    num_type table;    /* of the embeddings */
    num_type more;     /* of the matrices that get more bits; base when none do */
    int32_t file_type; /* general.file_type */
} weight_mix;

const weight_mix *weight_mix_named(const char *name); /* NULL if there is none */
extern const char weight_mix_names[];
/* Type of tensor i of list[0..n). Never one whose blocks do not divide its rows. */
num_type weight_mix_type(const weight_mix *m, const shape_tensor *list, int32_t n, int32_t i);

#endif
