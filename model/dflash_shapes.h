/* dflash_shapes.h - DFlash drafters as data: sizes, tensors and metadata in three dialects.
 *
 * Writers of drafter files (synth, convert) and the reader (dflash_bind.c) use this table. The base
 * is the drafter of z-lab; Laguna adds a norm per feature and a gate per head, DSpark a bigram
 * correction and a confidence head.
 */
#ifndef MODEL_DFLASH_SHAPES_H
#define MODEL_DFLASH_SHAPES_H

#include "model/shapes.h"

enum {
    DFLASH_SHAPE_LAYERS = 64,
    DFLASH_SHAPE_FEATURES = 16 /* captured layers of the target */
};

/* Names of keys and tensors: general.architecture dflash; gemma4-dflash-draft and the like;
 * dflash-draft. */
typedef enum dflash_dialect { DFLASH_LLAMA, DFLASH_LUCEBOX, DFLASH_IK } dflash_dialect;

/* A value that a drafter's configuration may leave open. */
typedef enum dflash_choice { DFLASH_OPEN, DFLASH_NO, DFLASH_YES } dflash_choice;

typedef struct dflash_shape {
    MODEL_SHAPE;
    dflash_dialect dialect;
    int32_t n_head, n_head_kv, head_dim, n_ff;
    int32_t block_size, mask_id;
    int32_t window;                                     /* of the sliding layers; 0: none */
    int32_t n_features, feature[DFLASH_SHAPE_FEATURES]; /* layers of the target, from 0 */
    int32_t n_target_layer; /* layers of the target in all; 0: not known */
    char target_arch[32];   /* ""; not known */
    double eps, theta;
    double embed_scale, softcap; /* of the target; scale 0: not known; cap < 0: not known */
    dflash_choice causal; /* inside the block, for all layers; open: sliding layers are causal */
    bool anchor_first;    /* slot 0 predicts the token after the anchor */
    bool laguna;
    int32_t markov_rank; /* DSpark; 0: none */
    bool confidence;
    bool conf_of_state; /* the confidence reads the state alone; of files, not written */
    char source[65];    /* hash of the converted checkpoint; "": none */
    bool swa[DFLASH_SHAPE_LAYERS];
} dflash_shape;

extern const shape_family dflash_shapes;

static inline bool dflash_layer_causal(const dflash_shape *s, int32_t il)
{
    return s->causal == DFLASH_OPEN ? s->swa[il] : s->causal == DFLASH_YES;
}

#endif
