/* gemma4_audio.h - the audio towers of Gemma 4: E2B and E4B, whose tower is a stack of conformer
 * layers, and the 12B, which has none. */
#ifndef MODEL_GEMMA4_AUDIO_H
#define MODEL_GEMMA4_AUDIO_H

#include "model/audio.h"
#include "model/clamped.h"

typedef struct gemma4a_shape {
    MODEL_SHAPE;
    int32_t n_out, n_head, n_ff; /* n_out: the text model's width */
    int32_t n_mel, n_wide;       /* numbers of a row of features; outputs of the stack */
    int32_t n_ch[2];             /* channels of each of the two convolutions on features */
    int32_t n_taps;              /* columns of a layer's own convolution */
    double eps;
    bool clamped; /* inputs and outputs of products have bounds */
} gemma4a_shape;

typedef struct gemma4a_ffn {
    clamped_weight up, down;
    weight norm, post_norm;
} gemma4a_ffn;

typedef struct gemma4a_layer {
    MODEL_LAYER;
    gemma4a_ffn first, last;
    clamped_weight wq, wk, wv, wo;
    weight w_far, q_scale; /* q_scale: [head_dim] */
    weight attn_norm, attn_post_norm;
    clamped_weight conv_in, conv_out;
    weight conv_norm, taps, taps_norm;
    weight norm;
} gemma4a_layer;

typedef struct gemma4a {
    audio a;
    float eps;
    int32_t n_head;
    weight conv[2], conv_norm[2], in, wide, wide_bias, out;
    gemma4a_layer *layer;
} gemma4a;

/* 12B: a token is 40 milliseconds of samples, which a product makes a row of the text model. */
typedef struct gemma4ua_shape {
    MODEL_SHAPE;
    int32_t n_out, n_head, n_ff;
    double eps;
} gemma4ua_shape;

typedef struct gemma4ua {
    audio a;
    float eps;
    weight out;
} gemma4ua;

/* They are parts of the shapes of vision towers, and none by themselves. */
extern const shape_family gemma4a_shapes, gemma4ua_shapes;

/* The published sizes, and one for the tiny sizes of Gemma 4 with width 96. */
#define GEMMA4A_SHAPE(width)                                                                       \
    {                                                                                              \
        .family = &gemma4a_shapes, .n_layer = 12, .n_embd = 1024, .n_head = 8, .n_ff = 4096,       \
        .n_mel = 128, .n_wide = 1536, .n_ch = {128, 32}, .n_taps = 5, .eps = 1e-6,                 \
        .clamped = true, .n_out = width                                                            \
    }
#define GEMMA4A_TINY                                                                               \
    {                                                                                              \
        .family = &gemma4a_shapes, .n_layer = 2, .n_embd = 32, .n_head = 2, .n_ff = 128,           \
        .n_mel = 128, .n_wide = 48, .n_ch = {128, 2}, .n_taps = 5, .eps = 1e-6, .clamped = true,   \
        .n_out = 96                                                                                \
    }
#define GEMMA4UA_SHAPE(width)                                                                      \
    {                                                                                              \
        .family = &gemma4ua_shapes, .n_embd = 640, .n_out = width, .eps = 1e-6                     \
    }

#endif
