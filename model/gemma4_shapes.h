/* gemma4_shapes.h - the numbers of a Gemma 4 model: of a size, of a file, of a config.json. */
#ifndef MODEL_GEMMA4_SHAPES_H
#define MODEL_GEMMA4_SHAPES_H

#include "model/table.h"

typedef struct gemma4_shape {
    MODEL_SHAPE;
    int32_t n_head, n_head_kv, n_head_kv_global;
    int32_t head_dim, head_dim_global;
    int32_t n_ff;
    bool double_wide;                   /* twice n_ff in the layers that share keys */
    int32_t n_expert, n_used, n_ff_exp; /* 0: dense */
    int32_t n_ple;                      /* width of per-layer embeddings; 0: none */
    int32_t n_kv_shared;                /* layers at the end without keys of their own */
    bool k_eq_v;                        /* global layers have no V projection */
    int32_t window;
    double eps, theta, theta_swa, softcap;
    double rotary_part, rope_factor; /* global heads: share of rotating pairs; frequency divisor */
    bool swa[LAYERS_MAX];            /* sliding-window layer, else global */
    double density;                  /* planted attention (shape_family.plant); 0: none */
    /* By layer, as a file states them; 0: as the numbers above say. */
    int32_t heads[LAYERS_MAX], kv_heads[LAYERS_MAX], ffs[LAYERS_MAX];
} gemma4_shape;

extern const shape_family gemma4_shapes;

static inline bool gemma4_shape_named(const char *name, gemma4_shape *s)
{
    s->family = &gemma4_shapes;
    return table_named(name, &s->common);
}

static inline int32_t gemma4_head_dim(const gemma4_shape *s, int32_t il)
{
    return s->swa[il] ? s->head_dim : s->head_dim_global;
}
static inline int32_t gemma4_n_head_kv(const gemma4_shape *s, int32_t il)
{
    int32_t n = s->swa[il] ? s->n_head_kv : s->n_head_kv_global;
    return s->kv_heads[il] ? s->kv_heads[il] : n;
}
static inline int32_t gemma4_n_ff(const gemma4_shape *s, int32_t il)
{
    bool wide = s->double_wide && il >= s->n_layer - s->n_kv_shared;
    return s->ffs[il] ? s->ffs[il] : wide ? 2 * s->n_ff : s->n_ff;
}

/* The pairs of a head that rotate: the reference rounds down the dims. */
int32_t gemma4_turning_pairs(double rotary_part, int32_t head_dim);
/* head_dim_global / 2 divisors of frequencies: rope_factor for rotating pairs, 1e30 for the
 * others. Planted: another one for the last rotating pair. */
void gemma4_rope_factors(const gemma4_shape *s, float *out);

#endif
