/* qwen3.h - Qwen3 text models: dense, 0.6B to 32B, and with experts, 30B-A3B to 480B-A35B; and
 * those of Qwen3-VL, which see pictures.
 *
 * Reference for arithmetic and names: transformers' modeling_qwen3.py and modeling_qwen3_moe.py;
 * GGUF keys and tensors: llama.cpp's qwen3 and qwen3moe architectures.
 */
#ifndef MODEL_QWEN3_H
#define MODEL_QWEN3_H

#include "model/block.h"
#include "model/shapes.h"

typedef struct qwen3_shape {
    MODEL_SHAPE;
    int32_t n_head[LAYERS_MAX], n_head_kv[LAYERS_MAX], n_ff[LAYERS_MAX];
    int32_t head_dim, n_rot;            /* n_rot: rotated dims of a head */
    int32_t n_expert, n_used, n_ff_exp; /* n_expert 0: dense */
    bool sees;                          /* Qwen3-VL */
    int32_t section[3];                 /* of it, in pairs: time, row, column */
    int32_t n_deep;                     /* layers that add rows of pictures */
    int32_t pooling;                    /* of models of vectors: as llama.cpp numbers it */
    double eps, theta;
    rope_scaling scaling;
} qwen3_shape;

typedef struct qwen3 {
    block_model common;
    rope rope[PASS_SIDES_MAX]; /* the same tables on each device with layers */
    weight rope_factors;       /* read at bind */
    weight answers;            /* of a reranker */
    block *layer;
} qwen3;

extern const model_arch qwen3_arch, qwen3moe_arch, qwen3vl_arch, qwen3vlmoe_arch;
extern const shape_family qwen3_shapes;

#endif
