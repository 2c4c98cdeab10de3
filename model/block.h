/* block.h - the transformer block that most families have: attention and a feed-forward part, each
 * behind a norm and added to the rows.
 *
 * Families differ in which weights their files have, and in few numbers. So the forward pass of
 * llama, qwen3, gemma3, gpt-oss and laguna is one function. Families with other ops have their own.
 */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "model/model.h"

/* The weights of a layer. An empty one (n_in == 0) is skipped. Products add the biases of their
 * weights, attention the sinks of its view. */
typedef struct block {
    MODEL_LAYER;
    weight attn_norm, wq, wk, wv, wo;
    weight q_norm, k_norm; /* of each head */
    weight attn_gate;      /* softplus of it is a factor: one per head, or one per element */
    weight attn_post_norm; /* of the result, before it is added */
    weight ffn_norm, gate, up, down, ffn_post_norm;
    weight router; /* gate, up and down are those of all experts; up empty: gate has both */
    weight router_bias, shared_gate, shared_up, shared_down; /* of mixtures */
} block;

/* The rest. An architecture's own data (model.impl) begins with it. */
typedef struct block_model {
    int32_t head_dim, n_used; /* n_used: experts of a row */
    float eps, scale;         /* scale: of attention */
    act_kind act;
    bool sigmoid; /* experts' scores: route_rule */
    float expert_factor;
    float temperature; /* of queries, by the position (rope.grow); 0: none */
    int32_t period;
    weight embd, head, out_norm;
} block_model;

/* model_arch.forward. Structs of layers begin with a block. */
mat block_forward(pass *p, const model *m, const kv_layout *kv);
/* model_arch.at_rank: the forward pass finds layers by model.layers alone. */
void block_at_rank(model *rank);

#endif
