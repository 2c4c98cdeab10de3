/* qwen35.h - Qwen3.5, 3.6 and 3.8: three layers of gated delta rule, then one of gated attention,
 * dense (`qwen35`) or with experts (`qwen35moe`).
 *
 * Reference for arithmetic: transformers' modeling_qwen3_5.py and modeling_qwen3_5_moe.py; GGUF
 * keys and tensors: llama.cpp's qwen35 and qwen35moe architectures.
 */
#ifndef MODEL_QWEN35_H
#define MODEL_QWEN35_H

#include "model/model.h"

typedef struct qwen35_layer {
    bool full;   /* attention, else the gated delta rule */
    int8_t side; /* the index of its device: pass.h */
    int32_t at;  /* its store: of keys and values, or recurrent */
    const rope *rope;
    weight norm, ffn_norm;
    /* Attention. wq: for each head the query's rows, then the gate's. */
    weight wq, wk, wv, wo, q_norm, k_norm;
    /* Gated delta rule. */
    weight wqkv, wz, wa, wb, taps, a, dt, out_norm, out;
    weight gate, up, down;                /* the feed-forward unit; with experts the shared one */
    weight router, shared_gate;           /* experts: router.n_in > 0 */
    weight gate_exps, up_exps, down_exps; /* up_exps empty: gate_exps holds both */
} qwen35_layer;

typedef struct qwen35 {
    int32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_expert, n_expert_used;
    float eps;
    rope rope[PASS_SIDES_MAX]; /* the same table on each device with layers */
    weight embd, head, out_norm;
    qwen35_layer *layer;
} qwen35;

extern const model_arch qwen35_arch, qwen35moe_arch;

status qwen35_bind(model *m, err *e);                             /* qwen35_bind.c */
status qwen35_divide(model *m, err *e);                           /* qwen35_bind.c */
mat qwen35_forward(pass *p, const model *m, const kv_layout *kv); /* qwen35.c */

#endif
