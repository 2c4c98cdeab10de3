/* qwen_vision.h - the vision tower of Qwen3-VL, and of Qwen3.5, 3.6 and 3.8. */
#ifndef MODEL_QWEN_VISION_H
#define MODEL_QWEN_VISION_H

#include "model/vision.h"

typedef struct qwen3vl_shape {
    MODEL_SHAPE;
    VISION_SHAPE;
    bool deep[LAYERS_MAX]; /* layers whose patches are merged for the text model too */
} qwen3vl_shape;

/* Patches of a token side by side, and two products with a GELU between them. */
typedef struct qwen3vl_merger {
    weight norm, norm_bias, merge, merge_bias, out, out_bias;
} qwen3vl_merger;

typedef struct qwen3vl_layer {
    MODEL_LAYER;
    weight attn_norm, attn_norm_bias, wqkv, qkv_bias, wo, o_bias;
    weight ffn_norm, ffn_norm_bias, up, up_bias, down, down_bias;
    qwen3vl_merger deep; /* empty: the layer has none */
} qwen3vl_layer;

typedef struct qwen3vl {
    vision v;
    int32_t n_embd, head_dim;
    float eps;
    rope rope;
    weight patches, patches_2, patch_bias; /* of the two frames that a still picture stands for */
    weight positions;                      /* a square table; between its entries it is linear */
    qwen3vl_merger last;
    qwen3vl_layer *layer;
} qwen3vl;

extern const shape_family qwen3vl_shapes;

#endif
