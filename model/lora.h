/* lora.h - adapters of a model: GGUF files as llama.cpp writes them, checked and given to the
 * model's weights (backend/lora.h has the arithmetic).
 *
 * general.type is "adapter", adapter.type "lora", adapter.lora.alpha a number. The tensor NAME of
 * the model has NAME.lora_a {n_in, rank} and NAME.lora_b {rank, n_out}; of experts a matrix for
 * each. Of a table of embeddings NAME.lora_a is {rank, n_vocab}.
 */
#ifndef MODEL_LORA_H
#define MODEL_LORA_H

#include "backend/lora.h"
#include "model/model.h"

enum { LORA_RANK_MAX = 1024 };

/* What a file says by itself. */
typedef struct lora_file {
    char arch[64];      /* general.architecture */
    const char *name;   /* general.name, or the file's name without .gguf; in the file's memory */
    float alpha;        /* 0: products are not divided by the rank either */
    int32_t n_pairs;    /* adapted tensors */
    int32_t rank, most; /* the smallest and the largest */
    uint64_t n_params, n_bytes;
    uint64_t hash; /* of alpha and all tensors: adapters that differ in it differ */
} lora_file;

/* Is it an adapter of any kind? */
bool lora_is_adapter(const gguf *g);
/* Checks all that needs no model. E_FORMAT, E_UNSUPPORTED: a sentence. */
status lora_read(gguf *g, lora_file *f, err *e);

/* An adapter of a model. */
struct model_lora {
    gguf file; /* owned */
    lora_file is;
    lora_pair *pair; /* [n_pairs], in the model's memory */
    int32_t n_pairs;
};

/* Adds the adapter to m, bound and not yet loaded or divided. Takes g, on success and on failure.
 * E_FORMAT, E_LIMIT, E_UNSUPPORTED: a sentence; m may then have a part of it, and is to be freed.
 */
status model_add_lora(model *m, gguf *g, err *e);
/* Puts adapters beside their weights, once those have their sides. */
void model_place_loras(model *m);
void model_free_loras(model *m);
/* Names what rows with these scales, [LORAS_MAX], have been computed with; 0: no adapter. */
uint64_t model_lora_key(const model *m, const float *scale);

#endif
