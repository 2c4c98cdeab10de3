/* gemma4_shapes.h - Gemma 4 as data: sizes, the tensors a size has, and its metadata keys.
 *
 * What writes Gemma 4 files (synth, convert) goes by this table; what reads them does not: a file
 * says its own shape, and gemma4_bind.c believes the file. Sizes: the published configurations.
 */
#ifndef MODEL_GEMMA4_SHAPES_H
#define MODEL_GEMMA4_SHAPES_H

#include "format/gguf.h"
#include "num/num.h"

enum { GEMMA4_LAYERS_MAX = 256 }; /* the largest published has 60 */

typedef struct gemma4_shape {
    char name[32]; /* "e2b" */
    int32_t n_layer, n_embd, n_vocab;
    int32_t n_head, n_head_kv, n_head_kv_global;
    int32_t head_dim, head_dim_global;
    int32_t n_ff;
    bool double_wide;                             /* twice n_ff in the layers that share keys */
    int32_t n_expert, n_expert_used, n_ff_expert; /* 0: dense */
    int32_t n_ple;                                /* width of per-layer embeddings; 0: none */
    int32_t n_kv_shared;                          /* layers at the end without keys of their own */
    bool k_eq_v;                                  /* global layers have no V projection */
    int32_t window, n_ctx_train;
    float eps, theta, theta_swa, softcap;
    float rotary_part, rope_factor; /* of global heads: pairs that turn, and how much slower */
    bool swa[GEMMA4_LAYERS_MAX];    /* sliding-window layer, else global */
} gemma4_shape;

/* e2b e4b 12b 26b-a4b 31b, and small ones for tests: tiny-dense tiny-moe tiny-ple tiny-all
 * tiny-wide. False for any other name. */
bool gemma4_shape_named(const char *name, gemma4_shape *s);
extern const char gemma4_shape_names[]; /* "e2b, e4b, ..." for messages */
/* E_ARG, in one sentence, for a shape that makes no sense; `what` names its source. */
status gemma4_shape_check(const gemma4_shape *s, const char *what, err *e);

static inline int32_t gemma4_head_dim(const gemma4_shape *s, int32_t il)
{
    return s->swa[il] ? s->head_dim : s->head_dim_global;
}
static inline int32_t gemma4_n_head_kv(const gemma4_shape *s, int32_t il)
{
    return s->swa[il] ? s->n_head_kv : s->n_head_kv_global;
}
static inline int32_t gemma4_n_ff(const gemma4_shape *s, int32_t il)
{
    return s->double_wide && il >= s->n_layer - s->n_kv_shared ? 2 * s->n_ff : s->n_ff;
}

/* What a tensor is for: decides how it may be stored and what random values suit it. */
typedef enum gemma4_role {
    GEMMA4_EMBD,         /* token embedding and head */
    GEMMA4_PLE_EMBD,     /* per-layer embedding table; gathered only */
    GEMMA4_PLE_PROJ,     /* never quantised */
    GEMMA4_ROPE_FACTORS, /* computed, not learned */
    GEMMA4_NORM,         /* f32 vectors from here ... */
    GEMMA4_QK_NORM,
    GEMMA4_SCALE,  /* ... around 1 */
    GEMMA4_ROUTER, /* f32 matrix */
    GEMMA4_ATTN_V, /* matrices from here on; these three have a rule in the mixes */
    GEMMA4_FFN_DOWN,
    GEMMA4_DOWN_EXPERTS,
    GEMMA4_MATRIX /* every other projection */
} gemma4_role;

typedef struct gemma4_tensor {
    char name[64];    /* in GGUF */
    char hf_name[80]; /* in safetensors, after the prefix; "" where there is none */
    gemma4_role role;
    int32_t layer;  /* -1: of the model */
    bool unused_kv; /* keys of a layer that reads another's: published, optional, not used */
    int32_t n_dims;
    uint64_t ne[TENSOR_DIMS_MAX];
} gemma4_tensor;

enum { GEMMA4_TENSORS_MAX = 8 + 27 * GEMMA4_LAYERS_MAX };

/* Fills out[0..cap) in file order; returns how many there are. */
int32_t gemma4_list_tensors(const gemma4_shape *s, gemma4_tensor *out, int32_t cap);

/* All gemma4.* keys and general.architecture. */
void gemma4_put_shape(gguf_writer *w, const gemma4_shape *s);
/* head_dim_global / 2 divisors of frequencies: rope_factor for the pairs that turn, 1e30 for those
 * that stand still. */
void gemma4_rope_factors(const gemma4_shape *s, float *out);

/* Which type each tensor gets under a name such as "q4_k_m". */
typedef struct gemma4_mix {
    const char *name;
    num_type base;     /* of the matrices */
    num_type table;    /* of the embeddings */
    num_type more;     /* of the matrices that get more bits; base when none do */
    int32_t file_type; /* general.file_type */
} gemma4_mix;

const gemma4_mix *gemma4_mix_named(const char *name); /* NULL if there is none */
extern const char gemma4_mix_names[];
/* Type of tensor i of list[0..n). Never one whose blocks do not divide its rows. */
num_type gemma4_mix_type(const gemma4_mix *m, const gemma4_tensor *list, int32_t n, int32_t i);

#endif
