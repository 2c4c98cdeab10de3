/* qwen3.h - Qwen3 dense text models, 0.6B to 32B.
 *
 * Reference for arithmetic and names: transformers' modeling_qwen3.py; GGUF keys and tensors:
 * llama.cpp's qwen3 architecture.
 */
#ifndef MODEL_QWEN3_H
#define MODEL_QWEN3_H

#include "model/model.h"

typedef struct qwen3_layer {
    int8_t side; /* the index of its device: pass.h */
    int32_t n_head, n_head_kv, n_ff;
    const rope *rope;
    weight attn_norm, wq, wk, wv, wo, q_norm, k_norm;
    weight ffn_norm, gate, up, down;
} qwen3_layer;

typedef struct qwen3 {
    int32_t n_layer, n_embd, head_dim;
    float eps;
    rope rope[PASS_SIDES_MAX]; /* the same tables on each device with layers */
    weight rope_factors;       /* read at bind */
    weight embd, head, out_norm;
    qwen3_layer *layer;
} qwen3;

extern const model_arch qwen3_arch;

status qwen3_bind(model *m, err *e);                             /* qwen3_bind.c */
mat qwen3_forward(pass *p, const model *m, const kv_layout *kv); /* qwen3.c */
status qwen3_divide(model *m, err *e);

#endif
