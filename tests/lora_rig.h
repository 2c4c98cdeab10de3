/* lora_rig.h - adapters of random numbers for a model's file, and the file with them merged into
 * its weights: W + scale * alpha / rank * B A, added up in f64.
 */
#ifndef TESTS_LORA_RIG_H
#define TESTS_LORA_RIG_H

#include "format/gguf.h"

typedef struct lora_recipe {
    int32_t rank;
    float alpha;   /* 0: the file has none */
    uint32_t type; /* of its tensors, where their rows fit blocks of it; else f32 */
    uint64_t seed;
    const char *only; /* what the names of adapted tensors have; NULL: all matrices */
    /* What is wrong with the file. */
    const char *arch, *drop, *rename, *as;
    const char *nan;            /* a tensor with a NaN at its end */
    const char *wide;           /* a tensor whose rows have one number more */
    const char *general, *kind; /* general.type, adapter.type; NULL: as it should be */
    const char *norm;           /* a tensor more */
    bool alora, text_alpha;
} lora_recipe;

/* Both write a file of the model's file `base`, whose matrices are f32. `scale` NULL: no merge. */
void lora_rig_adapter(const char *base, const char *to, const lora_recipe *r);
void lora_rig_merge(const char *base, const char *to, const lora_recipe *r, const float *scale,
                    int n);

#endif
