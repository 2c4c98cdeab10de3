/* carat/lora.h - low-rank adapters (LoRA) of a model: GGUF files as llama.cpp writes them. */
#ifndef CARAT_LORA_H
#define CARAT_LORA_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* carat_model_options.loras: the adapters of a model, at most 16. They are loaded with it. The
 * scale is that of answers which name no adapters; 0: such answers are without this one. */
typedef struct carat_lora {
    const char *path;
    float scale;
} carat_lora;

/* carat_generate_options.loras: an adapter of an answer, by its place in the model's options, and
 * how much of it. Adapters that are not named have scale 0. */
typedef struct carat_lora_use {
    int32_t id;
    float scale;
} carat_lora_use;

typedef struct carat_lora_info {
    const char *name; /* general.name, or the file's name without .gguf */
    const char *path;
    float alpha, scale;      /* of the file; of the model's options */
    int32_t n_pairs;         /* weights that it adapts */
    int32_t rank, rank_most; /* the smallest and the largest */
    uint64_t n_bytes;        /* of its tensors in the file */
} carat_lora_info;

/* Adapter i of m; false: it has fewer. The strings belong to the model. Any thread. */
CARAT_API bool carat_lora_at(const carat_model *m, int32_t i, carat_lora_info *out);
/* The scales of answers that name no adapters, of all adapters of m, from now on: an answer that
 * has begun keeps its own. E_ARG: n is not their number, or a scale is not finite. Any
 * thread. */
CARAT_API carat_status carat_lora_set_scales(carat_model *m, const float *scale, int32_t n,
                                             carat_error *e);

#ifdef __cplusplus
}
#endif

#endif
