/* llama.h - the architectures llama and mistral3: Llama 2, 3, 3.1, 3.2 and 3.3; Mistral 7B, Nemo,
 * Small and Ministral 3; Mixtral.
 *
 * Reference for arithmetic and names: transformers' modeling_llama.py, modeling_mistral.py,
 * modeling_mixtral.py and modeling_ministral3.py; GGUF keys and tensors: llama.cpp's architectures
 * of these names.
 */
#ifndef MODEL_LLAMA_H
#define MODEL_LLAMA_H

#include "model/block.h"
#include "model/shapes.h"

/* Divisors of frequencies for contexts beyond n_ctx, in a file as rope_freqs.weight: `factor` for
 * pairs that turn less than `low` times in n_ctx positions, 1 for those of more than `high`, and
 * between them in between. factor 0: none. */
typedef struct llama3_scaling {
    double factor, low, high, n_ctx;
} llama3_scaling;

typedef struct llama_shape {
    MODEL_SHAPE;
    int32_t n_head, n_head_kv, n_ff, head_dim, n_rot, window; /* window 0: full attention */
    int32_t n_expert, n_used; /* n_expert 0: dense. n_ff is an expert's width */
    double eps, theta;
    double temperature; /* of queries, by the position (rope.grow); 0: none */
    rope_scaling scaling;
    llama3_scaling llama3; /* of checkpoints; a file has the divisors instead */
} llama_shape;

typedef struct llama {
    block_model common;
    rope rope[PASS_SIDES_MAX]; /* the same tables on each device with layers */
    weight rope_factors;       /* read at bind */
    block *layer;
} llama;

extern const model_arch llama_arch, mistral3_arch;
extern const shape_family llama_shapes;

#endif
