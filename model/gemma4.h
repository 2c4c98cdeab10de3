/* gemma4.h - Gemma 4 text models: E2B, E4B, 12B, 26B-A4B, 31B, and any other size of the family.
 *
 * Reference for arithmetic and names: transformers' modeling_gemma4.py; GGUF keys and tensors:
 * llama.cpp's gemma4 architecture.
 */
#ifndef MODEL_GEMMA4_H
#define MODEL_GEMMA4_H

#include "model/model.h"

typedef struct gemma4_layer {
    MODEL_LAYER;
    bool swa; /* sliding window, else global */
    bool owns_kv;
    bool last_owner; /* no later layer owns keys: only the wanted rows go on */
    int32_t kv;      /* the store it reads: its own, or its donor's */
    int32_t head_dim, n_head_kv;
    weight attn_norm, wq, wk, wv, wo, q_norm, k_norm, attn_post_norm;
    weight ffn_norm, gate, up, down, ffn_post_norm;
    weight router, router_scale, expert_scale; /* experts: router.n_in > 0 */
    weight gate_exps, up_exps, down_exps;      /* up_exps empty: gate_exps holds both */
    weight dense_post_norm, expert_norm, expert_post_norm;
    weight ple_gate, ple_proj, ple_post_norm; /* per-layer embeddings: ple_gate.n_in > 0 */
    weight out_scale;
} gemma4_layer;

typedef struct gemma4 {
    int32_t n_layer, n_embd, n_ple, n_expert, n_expert_used;
    float eps, softcap;
    /* Per side: the same tables on each device with layers. */
    rope rope_swa[PASS_SIDES_MAX], rope_global[PASS_SIDES_MAX];
    weight rope_factors; /* read at bind, into rope_global */
    weight embd, head, out_norm;
    weight ple_embd, ple_proj, ple_norm;
    gemma4_layer *layer;
} gemma4;

extern const model_arch gemma4_arch;

status gemma4_bind(model *m, err *e);   /* gemma4_table.c */
status gemma4_divide(model *m, err *e); /* gemma4_divide.c */
void gemma4_at_rank(model *rank);
int32_t gemma4_kv_of(const model *m, int32_t il);

#endif
