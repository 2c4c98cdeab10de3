/* toy_model.h - a tiny model with a vocabulary and a chat format: it computes, tokenises,
 * generates and chats, all of it nonsense, in milliseconds. */
#ifndef TESTS_TOY_MODEL_H
#define TESTS_TOY_MODEL_H

#include "carat.h"

typedef struct toy_model_file {
    const char *base;       /* a name of fidelity_names; NULL: "all" */
    uint64_t seed;          /* of the embedding */
    const char *nan_tensor; /* its first element becomes NaN */
    uint32_t n_ctx_train;   /* 0: the base's own */
    bool no_chat;           /* no chat template */
    bool wide_heads;        /* of kv_rig.h's shape, whose keys every format can hold; no base */
    float scale;            /* of the embedding; 0: 1. Larger: surer answers */
    /* tests/data/vocab/NAME.json instead of Gemma's toy vocabulary; base is of its family. */
    const char *words;
    /* A reranker, with words and a base of Qwen3: by a matrix, as llama.cpp converts it, or by its
     * name and the tokens "yes" and "no", which are the last ones. */
    enum { TOY_PLAIN, TOY_RANK_MATRIX, TOY_RANK_HEAD } ranks;
    const char *template; /* tests/data/chat/FILE instead of the family's template */
} toy_model_file;

/* Writes the file into the test's temporary directory. v may be NULL. */
const char *toy_model_write(const toy_model_file *v);
carat_model *toy_model_open(const toy_model_file *v, const carat_model_options *opt);
/* Of any model: its number of tokens; n ids that the seed draws. */
int32_t toy_n_vocab(const carat_model *m);
void toy_random_ids(const carat_model *m, int32_t *ids, int64_t n, uint64_t seed);

#endif
