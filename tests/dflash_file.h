/* dflash_file.h - tiny DFlash drafters for the target of kv_rig.h, in every dialect, whole or
 * damaged, and a plain computation of what they draft.
 *
 * Weights follow from seed and name, so a file and the computation agree without reading each
 * other. Norm weights lie far from 1: a norm that is missing or applied twice shows.
 */
#ifndef TESTS_DFLASH_FILE_H
#define TESTS_DFLASH_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DF_LAYERS = 3,
    DF_EMBD = 64,
    DF_VOCAB = 64,
    DF_HEADS = 4,
    DF_HEADS_KV = 2,
    DF_DIM = 32,
    DF_FF = 96,
    DF_FEATURES = 3,
    DF_WINDOW = 12,
    DF_BLOCK = 8,
    DF_MASK = 5,
    DF_TARGET_LAYERS = 6
};

typedef enum df_dialect { DF_LLAMA, DF_LUCEBOX, DF_IK, DF_DIALECTS } df_dialect;
typedef enum df_causal { DF_BY_KIND, DF_NOT_CAUSAL, DF_CAUSAL } df_causal;

/* A number that replaces or adds a key: its whole name. */
typedef struct df_key {
    const char *key;
    int64_t value;
    bool flag; /* a boolean */
} df_key;

typedef struct df_options {
    df_dialect dialect;
    df_causal causal;
    bool laguna, anchor_first, conf,
        conf_of_state; /* conf_of_state: without the correction's row */
    int32_t rank;      /* DSpark; 0: none */
    bool all_slide;
    /* Damage. */
    const char *drop_key, *drop_tensor, *add_tensor; /* whole names */
    df_key set[4];
    const char *arch; /* NULL: the dialect's */
    const int32_t *ids;
    int32_t n_ids;
    uint32_t type; /* of matrices; 0: f32 */
    bool copies;   /* embedding and head of the target too */
} df_options;

const char *df_write(const df_options *o, const char *name); /* the path, until the test ends */

/* One block after n_ctx rows of context. */
typedef struct df_block {
    const float *features; /* [n_ctx][DF_FEATURES * DF_EMBD] */
    int32_t n_ctx;
    const float *embd, *head; /* of the target: [DF_VOCAB][DF_EMBD] */
    double embd_scale, softcap;
    int32_t token, slots; /* the last token, and how many slots there are with it */
} df_block;
/* A matrix [n_out][n_in] of normal numbers that follow from the name; mem_free. */
float *df_draw(const char *name, int32_t n_in, int32_t n_out);
/* The weights of a norm, around 1; mem_free. */
float *df_draw_norm(const char *name, int32_t n);
/* Log probabilities [slots][DF_VOCAB] and, if wanted, the logit of the confidence [slots], of the
 * slots that draft. */
void df_compute(const df_options *o, const df_block *b, double *logp, double *conf);

#endif
