/* gemma4_vision.h - the vision towers of Gemma 4: E2B, E4B, 26B-A4B and 31B, whose tower is a stack
 * of layers, and the 12B, which has none. */
#ifndef MODEL_GEMMA4_VISION_H
#define MODEL_GEMMA4_VISION_H

#include "model/clamped.h"
#include "model/gemma4_audio.h"
#include "model/vision.h"

/* Keys of both, between those of sizes and the number of positions. F is the file's own. */
#define GEMMA4_PICTURE_KEYS                                                                        \
    K("vision.patch_size", "patch_size", F(patch), COUNT, 1, 256),                                 \
        K("vision.image_size", NULL, F(image_size), COUNT, 0, CTX_MAX, .how = MAY_LACK,            \
          .value = 224),                                                                           \
        K("vision.projector.scale_factor", "pooling_kernel_size", F(merge), COUNT, 1, 16,          \
          .how = MAY_LACK | READ_ONLY, .value = 3),                                                \
        K("vision.attention.layer_norm_epsilon", "rms_norm_eps", F(eps), REAL, EPS_MIN, 1)

typedef struct gemma4v_shape {
    MODEL_SHAPE;
    VISION_SHAPE;
    bool clamped;      /* inputs and outputs of products have bounds: E2B, E4B */
    bool standardized; /* pooled rows are shifted and scaled: 26B, 31B */
    gemma4a_shape ears;
} gemma4v_shape;

typedef struct gemma4v_layer {
    MODEL_LAYER;
    clamped_weight wq, wk, wv, wo, gate, up, down;
    weight attn_norm, q_norm, k_norm, attn_post_norm, ffn_norm, ffn_post_norm;
} gemma4v_layer;

typedef struct gemma4v {
    vision v;
    int32_t n_embd, head_dim;
    float eps;
    rope rope;
    weight patches, positions;
    weight std_bias, std_scale; /* empty: not standardized */
    weight out;
    gemma4v_layer *layer;
} gemma4v;

/* 12B: a token is one square of pixels, which a product makes a row of the text model. */
typedef struct gemma4uv_shape {
    MODEL_SHAPE;
    VISION_SHAPE;
    gemma4ua_shape ears;
} gemma4uv_shape;

typedef struct gemma4uv {
    vision v;
    float eps;
    weight patches, patch_bias, norm[3], norm_bias[3], positions, out;
} gemma4uv;

extern const shape_family gemma4v_shapes, gemma4uv_shapes;

#endif
