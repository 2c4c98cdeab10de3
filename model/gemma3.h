/* gemma3.h - Gemma 3 text models: 270M, 1B, 4B, 12B, 27B; and EmbeddingGemma, an encoder.
 *
 * Reference for arithmetic and names: transformers' modeling_gemma3.py, and sentence-transformers
 * for what follows the model in EmbeddingGemma; GGUF keys and tensors: llama.cpp's architectures
 * gemma3 and gemma-embedding.
 */
#ifndef MODEL_GEMMA3_H
#define MODEL_GEMMA3_H

#include "model/block.h"
#include "model/shapes.h"

typedef struct gemma3_shape {
    MODEL_SHAPE;
    int32_t n_head, n_head_kv, n_ff, head_dim, window;
    bool swa[LAYERS_MAX];
    double eps, theta, theta_swa, softcap;
    double scale;         /* of attention; 0: gemma3_scale */
    rope_scaling scaling; /* of global layers */
    /* Of an encoder: the rows of the first dense layer behind it, 0: there are none; how rows
     * become a vector, as llama.cpp numbers it. */
    int32_t n_dense, pooling;
} gemma3_shape;

typedef struct gemma3 {
    block_model common;
    rope rope_swa[PASS_SIDES_MAX], rope_global[PASS_SIDES_MAX]; /* the same tables on each device */
    weight dense_2, dense_3;                                    /* of an encoder; perhaps empty */
    block *layer;
} gemma3;

/* The scale of attention that GGUF files imply. */
double gemma3_scale(const gemma3_shape *s);

extern const model_arch gemma3_arch, gemma_embedding_arch;
extern const shape_family gemma3_shapes, gemma_embedding_shapes;

#endif
