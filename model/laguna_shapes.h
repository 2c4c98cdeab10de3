/* laguna_shapes.h - Laguna as data: sizes, tensors and metadata, for synth and convert.
 *
 * Readers do not use this table: a file states its own shape, and laguna_bind.c reads it.
 */
#ifndef MODEL_LAGUNA_SHAPES_H
#define MODEL_LAGUNA_SHAPES_H

#include "model/qwen3_shapes.h"

typedef struct laguna_shape {
    union {
        model_shape common;
        struct {
            SHAPE_FIELDS;
        };
    };
    int32_t n_head, n_head_swa, n_head_kv, head_dim; /* heads of full and of window layers */
    int32_t n_rot, n_rot_swa;                        /* rotated dims of a head */
    int32_t window, n_ctx_train;
    int32_t n_dense, n_ff; /* leading dense layers and their width */
    int32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    bool tied;             /* the head is the embedding */
    bool gate_per_element; /* else one gate per head */
    double eps, theta, theta_swa, expert_scale;
    yarn_shape yarn; /* of full layers */
    bool swa[SHAPE_LAYERS_MAX];
} laguna_shape;

/* Names: laguna-xs; for tests tiny-laguna. */
bool laguna_shape_named(const char *name, laguna_shape *s);
/* E_ARG for an inconsistent shape; `what` names its source in the error sentence. */
status laguna_shape_check(const laguna_shape *s, const char *what, err *e);
extern const shape_family laguna_shapes;

#endif
