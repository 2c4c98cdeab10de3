/* gemma4_shapes.h - Gemma 4 as data: sizes, the tensors a size has, and its metadata keys.
 *
 * Writers of Gemma 4 files (synth, convert) use this table. Readers do not: a file states its own
 * shape, and gemma4_bind.c reads it from the file. Sizes: the published configurations.
 */
#ifndef MODEL_GEMMA4_SHAPES_H
#define MODEL_GEMMA4_SHAPES_H

#include "model/shapes.h"

typedef struct gemma4_shape {
    union {
        model_shape common;
        struct {
            SHAPE_FIELDS;
        };
    };
    int32_t n_head, n_head_kv, n_head_kv_global;
    int32_t head_dim, head_dim_global;
    int32_t n_ff;
    bool double_wide;                             /* twice n_ff in the layers that share keys */
    int32_t n_expert, n_expert_used, n_ff_expert; /* 0: dense */
    int32_t n_ple;                                /* width of per-layer embeddings; 0: none */
    int32_t n_kv_shared;                          /* layers at the end without keys of their own */
    bool k_eq_v;                                  /* global layers have no V projection */
    int32_t window;
    double eps, theta, theta_swa, softcap;
    double rotary_part, rope_factor; /* global heads: share of rotating pairs; frequency divisor */
    bool swa[SHAPE_LAYERS_MAX];      /* sliding-window layer, else global */
    double density;                  /* planted attention (shape_family.plant); 0: none */
} gemma4_shape;

/* Names: e2b e4b 12b 26b-a4b 31b; for tests tiny-dense tiny-moe tiny-ple tiny-all tiny-wide
 * tiny-many. False for any other name. */
bool gemma4_shape_named(const char *name, gemma4_shape *s);
extern const shape_family gemma4_shapes;
/* E_ARG for an inconsistent shape; `what` names its source in the error sentence. */
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

/* Fills out[0..cap) in file order. Returns the number of tensors. */
int32_t gemma4_list_tensors(const gemma4_shape *s, shape_tensor *out, int32_t cap);

/* Writes all gemma4.* keys and general.architecture. */
void gemma4_put_shape(gguf_writer *w, const gemma4_shape *s);
/* The pairs of a head that rotate: the reference rounds down the dims. */
int32_t gemma4_turning_pairs(double rotary_part, int32_t head_dim);
/* head_dim_global / 2 divisors of frequencies: rope_factor for rotating pairs, 1e30 for the
 * others. Planted: another one for the last rotating pair. */
void gemma4_rope_factors(const gemma4_shape *s, float *out);

#endif
