/* qwen3_shapes.h - Qwen3 dense as data: sizes, tensors and metadata, for synth and convert.
 *
 * Readers do not use this table: a file states its own shape, and qwen3_bind.c reads it.
 */
#ifndef MODEL_QWEN3_SHAPES_H
#define MODEL_QWEN3_SHAPES_H

#include "model/shapes.h"

/* Rotation for contexts beyond the trained one; factor 0: none. */
typedef struct yarn_shape {
    double factor, beta_fast, beta_slow;
    int32_t n_ctx;    /* trained */
    double magnitude; /* of cosines and sines; 0: 1 + 0.1 ln factor */
} yarn_shape;

typedef struct qwen3_shape {
    union {
        model_shape common;
        struct {
            SHAPE_FIELDS;
        };
    };
    int32_t n_head, n_head_kv, head_dim, n_ff, n_ctx_train;
    bool tied; /* the head is the embedding */
    double eps, theta;
    yarn_shape yarn;
} qwen3_shape;

/* Names: qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b; for tests tiny-qwen3. */
bool qwen3_shape_named(const char *name, qwen3_shape *s);
/* E_ARG for an inconsistent shape; `what` names its source in the error sentence. */
status qwen3_shape_check(const qwen3_shape *s, const char *what, err *e);
extern const shape_family qwen3_shapes;

/* E_ARG for numbers that readers refuse; what: as above. */
status yarn_shape_check(const yarn_shape *y, const char *what, err *e);
/* Writes rope.scaling.* of that architecture. */
void put_yarn_shape(gguf_writer *w, const char *arch, const yarn_shape *y);

#endif
