/* gpt_oss.h - gpt-oss text models: 20B and 120B.
 *
 * Reference for arithmetic and names: transformers' modeling_gpt_oss.py; GGUF keys and tensors:
 * llama.cpp's gpt-oss architecture.
 */
#ifndef MODEL_GPT_OSS_H
#define MODEL_GPT_OSS_H

#include "model/block.h"
#include "model/shapes.h"

typedef struct gpt_oss_shape {
    MODEL_SHAPE;
    int32_t n_head, n_head_kv, n_ff, head_dim, window, n_expert, n_used;
    bool swa[LAYERS_MAX];
    double eps, theta;
    rope_scaling scaling; /* of all layers */
} gpt_oss_shape;

/* b*: the bias of w*. Those of experts are [n_expert] rows. */
typedef struct gpt_oss_layer {
    block common;
    weight bq, bk, bv, bo, sinks;
    weight router_bias, gate_bias, up_bias, down_bias;
} gpt_oss_layer;

typedef struct gpt_oss {
    block_model common;
    rope rope[PASS_SIDES_MAX]; /* the same tables on each device with layers */
    gpt_oss_layer *layer;
} gpt_oss;

extern const model_arch gpt_oss_arch;
extern const shape_family gpt_oss_shapes;

#endif
