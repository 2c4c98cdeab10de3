/* draft_checkpoint.h - checkpoints of drafters as published, made here in any form, right or wrong.
 */
#ifndef TESTS_DRAFT_CHECKPOINT_H
#define TESTS_DRAFT_CHECKPOINT_H

#include "model/shapes.h"

/* How a made checkpoint differs from a plain one. */
typedef struct draft_checkpoint {
    const char *size;  /* of synth */
    const char *patch; /* JSON: fields of the configuration; null removes one */
    const char *inner; /* the same for dflash_config or text_config */
    const char *skip;  /* a tensor to leave out */
    const char *wrong; /* a tensor to give one row too many */
    const char *add;   /* a tensor more: [2, 8] */
    bool fused;        /* queries, keys and values in one matrix */
    bool shifted;      /* layers count on from the target's */
    bool copies;       /* with the target's embedding and head */
    bool bf16;         /* else f32 */
    bool speculators;  /* keys of layers in transformer_layer_config */
    const char *ids;   /* "i64" or "i32": how an ordering is stored; NULL: i64 */
} draft_checkpoint;

/* Writes one into dir, over the one before. *s: its shape, which the caller frees. */
void draft_checkpoint_write(const char *dir, const draft_checkpoint *m, model_shape **s);
/* The value of element i of a tensor, by its name in GGUF; exact in bf16. */
float draft_value(const char *name, uint64_t i);

#endif
