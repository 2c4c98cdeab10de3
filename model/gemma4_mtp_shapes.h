/* gemma4_mtp_shapes.h - the MTP assistants of Gemma 4 as data: sizes, tensors, metadata.
 *
 * An assistant is a stack of four layers that have queries only: they attend to the keys of the
 * target. */
#ifndef MODEL_GEMMA4_MTP_SHAPES_H
#define MODEL_GEMMA4_MTP_SHAPES_H

#include "model/shapes.h"

enum {
    MTP_LAYERS_MAX = 64,
    MTP_OLD = 1 /* names of the first files: gemma4_assistant, mtp.* */
};

/* n_embd is the assistant's own width. */
typedef struct gemma4_mtp_shape {
    MODEL_SHAPE;
    int32_t dialect; /* MTP_OLD, or 0 */
    int32_t n_target_embd;
    int32_t n_ff, n_head, head_dim, head_dim_global;
    int32_t n_head_kv, n_head_kv_global; /* of the target's keys */
    int32_t n_centroids, centroid_top_k; /* 0: the head is dense */
    int32_t window;
    double eps, theta, theta_swa, rotary_part, rope_factor; /* as in gemma4_shape */
    char source[65]; /* hash of the converted checkpoint; "": none */
    double softcap;  /* of files with one */
    bool swa[MTP_LAYERS_MAX];
} gemma4_mtp_shape;

extern const shape_family gemma4_mtp_shapes;

#endif
