/* laguna.h - Poolside's Laguna: XS.2, XS-2.1, S-2.1, M.1.
 *
 * Reference for arithmetic and names: transformers' modeling_laguna.py; GGUF keys and tensors:
 * llama.cpp's laguna architecture, and the other spellings of its keys that are in circulation.
 */
#ifndef MODEL_LAGUNA_H
#define MODEL_LAGUNA_H

#include "model/block.h"
#include "model/shapes.h"

typedef struct laguna_shape {
    MODEL_SHAPE;
    int32_t n_head[LAYERS_MAX], n_head_kv[LAYERS_MAX], n_ff[LAYERS_MAX]; /* n_ff: dense layers */
    bool swa[LAYERS_MAX];
    int32_t head_dim, window, n_rot, n_rot_swa; /* n_rot: rotated dims of a head */
    int32_t n_dense;                            /* leading layers without experts */
    int32_t n_expert, n_used, n_ff_exp, n_ff_shared;
    bool gate_per_element; /* else one gate per head; files tell it by a tensor */
    double eps, theta, theta_swa, expert_scale;
    rope_scaling scaling; /* of full layers */
} laguna_shape;

typedef struct laguna {
    block_model common;
    rope rope_full[PASS_SIDES_MAX], rope_swa[PASS_SIDES_MAX]; /* the same tables on each device */
    block *layer;
} laguna;

extern const model_arch laguna_arch;
extern const shape_family laguna_shapes;

#endif
