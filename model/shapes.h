/* shapes.h - models as data, for programs that write model files: synth, convert, quantize.
 *
 * One entry per family lists its published sizes, and the tensors and metadata of each size.
 * Readers of model files do not use these tables: a file states its own shape.
 */
#ifndef MODEL_SHAPES_H
#define MODEL_SHAPES_H

#include "format/gguf.h"
#include "num/num.h"

enum {
    SHAPE_LAYERS_MAX = 256, /* the largest published has 60 */
    SHAPE_TENSORS_MAX = 8 + 27 * SHAPE_LAYERS_MAX
};

/* Bounds against malformed files, far above every published model. */
enum {
    LAYERS_MAX = 512,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 65536,
    EXPERTS_MAX = 4096,
    VOCAB_MAX = 1 << 22,
    TURNING_MAX = 4096, /* pairs of a head that rotate */
    CTX_MAX = 1 << 24   /* token positions are exact in f32 up to here */
};

/* How the rows of a text become one vector: ARCH.pooling_type, as llama.cpp numbers it. A reranker
 * gives the probability of "yes" against "no". */
enum { POOLING_NONE, POOLING_MEAN, POOLING_FIRST, POOLING_LAST, POOLING_RANK, POOLING_KINDS };
enum { RANK_ANSWERS = 2 };

/* ---- Tensors ---- */

/* The use of a tensor. It decides the storage formats and the random values. */
typedef enum tensor_role {
    ROLE_EMBD,         /* token embedding and head */
    ROLE_PLE_EMBD,     /* per-layer embedding table; gathered only */
    ROLE_PLE_PROJ,     /* never quantised */
    ROLE_ROPE_FACTORS, /* computed, not learned */
    ROLE_NORM,         /* f32 vectors from here ... */
    ROLE_QK_NORM,
    ROLE_SCALE, /* ... around 1 */
    ROLE_BIAS,  /* f32 vector around 0 */
    ROLE_DECAY, /* f32 vector of negative numbers */
    ROLE_TAPS,  /* f32 matrix: the taps of a convolution */
    ROLE_IDS,   /* token ids, I32; computed */
    ROLE_LOW,   /* f32: a bound that inputs or outputs of a product are clamped to */
    ROLE_HIGH,
    ROLE_ROUTER,     /* f32 matrix */
    ROLE_HALF,       /* f16 matrix: few rows, or rows that are looked up */
    ROLE_EIGHT_BITS, /* matrix with at least 8 bits: its inputs have entries of any size */
    ROLE_ATTN_V,     /* matrices from here on; these three have a rule in the mixes */
    ROLE_FFN_DOWN,
    ROLE_DOWN_EXPERTS,
    ROLE_MATRIX /* all other projections */
} tensor_role;

/* How a checkpoint's tensor becomes the file's. Zeroed: unchanged.
 *
 * Value heads of the gated delta rule: a checkpoint groups them, so head i belongs to key head
 * i / (n_v / n_k); a file tiles them, so head j belongs to key head j mod n_k. The heads are
 * `per_head` rows or columns each, after `before` others. */
typedef struct hf_change {
    float add;     /* to every value */
    bool around_0; /* the values are, before the addition: else it is done already */
    bool neg_exp;  /* then x becomes -exp(x) */
    bool columns;  /* the heads are columns, else rows */
    bool taps;     /* [channels, 1, taps]: the axis in the middle is left out */
    /* Row i, or entry i of a row of biases, is `every` i + `from` of the checkpoint's. every 0: i
     */
    uint32_t every, from;
    bool halves; /* of matrices of experts: row i of `from` is behind all of the others instead */
    /* Matrices of experts, [inputs, outputs] each, or in MXFP4: NAME_blocks and NAME_scales. */
    bool turned;
    /* Of towers (apps/convert_tower.c): squares of so many pixels a side, whose colours lie
     * together; one frame of a kernel over `frames` pictures; two tables whose rows take turns. */
    uint32_t side, frames, frame;
    bool pairs;
    bool softplus;     /* every value becomes log(1 + e^x) */
    uint32_t n_k, n_v; /* n_k 0: the order is kept; heads beyond n_v: in groups of n_v */
    uint64_t per_head, before;
} hf_change;

typedef struct shape_tensor {
    char name[64];    /* in GGUF */
    char hf_name[80]; /* in safetensors, after the prefix; "": none */
    tensor_role role;
    int32_t layer;  /* -1: of the model */
    bool unused_kv; /* published, optional, not used: the layer shares keys */
    int32_t n_dims;
    uint64_t ne[TENSOR_DIMS_MAX];
    float fan_in; /* variance of random entries: 1 / fan_in; 0: 1 / ne[0] */
    float centre; /* mean of random vectors; 0: 1 */
    /* After shape_family.plant, rows of a matrix, or entries of a vector, whose number modulo
     * led_period is led or led + led_period / 2: a row's random entries have a mean of `lean`
     * standard deviations, an entry is `lean`. led_period 0: none. */
    uint32_t led_period, led;
    float lean;
    hf_change change;
} shape_tensor;

/* ---- Rotation ---- */

/* Stretches rotation to contexts beyond the trained one. LINEAR divides every frequency by factor.
 * YARN (Peng et al., arXiv 2309.00071) divides those of the slow pairs, which turn less than
 * beta_slow times in n_ctx positions, leaves those of more than beta_fast turns, and blends in
 * between; cosines and sines are multiplied by magnitude. In a shape that is written, magnitude 0
 * is the usual one, 1 + 0.1 ln factor. */
typedef enum scaling_kind { SCALING_NONE, SCALING_LINEAR, SCALING_YARN } scaling_kind;
typedef struct rope_scaling {
    scaling_kind kind;
    double factor, n_ctx, beta_fast, beta_slow, magnitude;
    bool unrounded; /* YARN: the blend's ends are not rounded to whole pairs */
} rope_scaling;

/* E_ARG for a scaling that readers refuse; what: as in shape_family.check. */
status scaling_check(const rope_scaling *s, const char *what, err *e);
/* Writes rope.scaling.* of that architecture. */
void scaling_put(gguf_writer *w, const char *arch, const rope_scaling *s);

/* ---- Shapes ---- */

/* The first fields of every family's shape: MODEL_SHAPE. */
#define SHAPE_FIELDS                                                                               \
    const struct shape_family *family;                                                             \
    char name[32]; /* "e2b" */                                                                     \
    int32_t n_layer, n_embd, n_vocab, n_ctx_train;                                                 \
    bool tied /* the head is the embedding */
typedef struct model_shape {
    SHAPE_FIELDS;
} model_shape;

#define MODEL_SHAPE                                                                                \
    union {                                                                                        \
        model_shape common;                                                                        \
        struct {                                                                                   \
            SHAPE_FIELDS;                                                                          \
        };                                                                                         \
    }

/* Each function takes a shape of its own family. */
typedef struct shape_family {
    const char *arch;     /* general.architecture */
    const char *title;    /* "gemma-4": the prefix of general.name */
    const char *sizes;    /* "e2b, e4b, ..." for messages */
    bool drafter;         /* of another model */
    bool tower;           /* makes embeddings of pictures: no vocabulary */
    const char *mix;      /* the default type, a weight_mix */
    const char *dialects; /* names that `dialect` takes, for messages; NULL: one dialect */
    size_t shape_bytes;
    bool (*named)(const char *size, model_shape *s); /* s->family is set; false: no such size */
    /* E_ARG for an inconsistent shape; `what` names its source in the error sentence. */
    status (*check)(const model_shape *s, const char *what, err *e);
    void (*cut)(model_shape *s, int32_t n_layer); /* keeps the first n_layer of its layers */
    /* Sets the number of NextN layers to 0 or, for any other n, the published one. Returns the
     * number before. NULL: the family has none. */
    int32_t (*set_nextn)(model_shape *s, int32_t n);
    /* Random weights by which attention without a window lies in every (1 / density)-th block of
     * 128 keys, counted back from the query. density: above 0, at most 1. NULL: not this family. */
    void (*plant)(model_shape *s, double density);
    /* Fills out[0..cap) in file order. Returns the number of tensors. */
    int32_t (*list)(const model_shape *s, shape_tensor *out, int32_t cap);
    void (*put)(gguf_writer *w, const model_shape *s); /* its metadata */
    /* Computes a tensor of ROLE_ROPE_FACTORS (f32) or ROLE_IDS (int32_t). */
    void (*compute)(const model_shape *s, const shape_tensor *t, void *out);
    /* Sets the names of keys and tensors; false: no such dialect. NULL: one dialect. */
    bool (*dialect)(model_shape *s, const char *name);
    const struct family_table *table; /* NULL: the family has none yet */
} shape_family;

#define THETA_MIN 1
#define THETA_MAX 1e12
#define EPS_MIN 1e-30

/* The families, in the order in which names are looked up; NULL after the last. */
const shape_family *shape_family_at(int32_t i);
/* The shape of that name; free it with mem_free. E_ARG lists the known names. */
status shape_named(const char *size, model_shape **s, err *e);

/* ---- Quantisation mixes ---- */

/* The type of each tensor under a name such as "q4_k_m". */
typedef struct weight_mix {
    const char *name;
    num_type base;     /* of the matrices */
    num_type table;    /* of the embeddings */
    num_type more;     /* of the matrices with more bits; equal to base if none, or if rules say */
    int32_t file_type; /* general.file_type */
} weight_mix;

const weight_mix *weight_mix_named(const char *name); /* in any case; NULL if there is none */
extern const char
    weight_mix_names[]; /* the types that weight_mix_writes is true of, for messages */
/* The types that only weight_mix_quantizes is true of: they want more than a row to be written, the
 * factor of a matrix or the importance of its inputs. */
extern const char weight_mix_quantize_names[];
bool weight_mix_writes(const weight_mix *m);
bool weight_mix_quantizes(const weight_mix *m);
/* The type of tensor i of list[0..n). Its blocks always divide the rows. */
num_type weight_mix_type(const weight_mix *m, const shape_tensor *list, int32_t n, int32_t i);

#endif
