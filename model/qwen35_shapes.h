/* qwen35_shapes.h - Qwen3.5, 3.6 and 3.8 as data: sizes, the tensors a size has, its metadata keys.
 *
 * Writers of such files (synth, convert) use this table. Readers do not: a file states its own
 * shape, and qwen35_bind.c reads it from the file.
 */
#ifndef MODEL_QWEN35_SHAPES_H
#define MODEL_QWEN35_SHAPES_H

#include "model/shapes.h"

typedef struct qwen35_shape {
    union {
        model_shape common;
        struct {
            SHAPE_FIELDS;
        };
    };
    int32_t n_head, n_head_kv, head_dim, n_rotating;
    int32_t n_k, n_v, dk, dv, n_taps;             /* of the gated delta rule */
    int32_t n_ff;                                 /* with experts that of the shared one */
    int32_t n_expert, n_expert_used, n_ff_expert; /* 0: dense */
    int32_t section[3];                           /* of rotating pairs: time, height, width */
    int32_t n_nextn;                              /* NextN layers behind the others */
    rope_scaling yarn;
    double eps, theta;
    bool full[SHAPE_LAYERS_MAX]; /* attention, else the gated delta rule */
} qwen35_shape;

extern const shape_family qwen35_shapes;
/* E_ARG for an inconsistent shape; `what` names its source in the error sentence. */
status qwen35_shape_check(const qwen35_shape *s, const char *what, err *e);

#endif
