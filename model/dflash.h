/* dflash.h - DFlash drafters: a small decoder that fills a block of token slots in one pass.
 *
 *     context   features of the target -> fc, hidden_norm -> keys and values of every layer, once
 *     block     [last token, MASK, MASK, ...] -> layers -> the target's head -> best tokens
 *
 * A feature is the target's residual stream after one of its layers. The drafter never sees the
 * ids of context tokens. It has no embedding and no head: it borrows the target's, with the
 * target's scale and cap. If the drafter has a device of its own, features, embeddings of the block
 * and the hidden rows of its slots cross between that and the target's devices; ids come back. The keys of a block are written after the context's and are never
 * committed, so nothing is taken back when drafts are wrong.
 *
 * Two variants, which one file may combine:
 *   Laguna   a norm per feature; context through each layer's input norm; a gate per head; all
 *            layers causal and sliding
 *   DSpark   a bigram correction of the logits, slot after slot, and an estimate of confidence
 *
 * Reference: DFlash, arXiv 2602.06036; DSpark, arXiv 2607.05147; llama.cpp, ik_llama.cpp and
 * Lucebox for names of keys and tensors.
 */
#ifndef MODEL_DFLASH_H
#define MODEL_DFLASH_H

#include "model/model.h"

enum {
    DFLASH_FEATURES_MAX = 16, /* as many as a pass has taps */
    DFLASH_BLOCK_MIN = 2,
    DFLASH_BLOCK_MAX = 64
};

typedef struct dflash_layer {
    MODEL_LAYER;
    weight attn_norm, wq, wk, wv, wo, q_norm, k_norm;
    weight head_gate; /* Laguna */
    weight ffn_norm, gate, up, down;
} dflash_layer;

typedef struct dflash {
    int32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff;
    int32_t n_features, feature[DFLASH_FEATURES_MAX]; /* layers of the target, ascending */
    int32_t block;                                    /* most slots of a pass */
    int32_t mask_id;
    bool anchor_first; /* slot 0 predicts the token after its own; else slot i its own */
    bool laguna;
    float eps;
    rope rope;
    weight fc, hidden_norm, out_norm;
    weight aux_norm[DFLASH_FEATURES_MAX]; /* Laguna */
    weight markov_in, markov_out;         /* DSpark: [n_vocab, rank] both */
    weight conf;                          /* DSpark; empty: none */
    float conf_bias;
    dflash_layer *layer;
    const model *target; /* NULL until attached */
    const char *notes;   /* lines about contradictions in the file; "": none */
} dflash;

extern const model_arch dflash_arch;

/* dflash_bind.c: what the file alone says. */
status dflash_bind(model *m, err *e);
/* What depends on the target: captured layers, mask token, vocabulary. Between model_bind and
 * model_load. E_ARG for another target's drafter. The target outlives m. */
status dflash_attach(model *m, const model *target, err *e);

/* Slots of a block that give n drafts. */
static inline int32_t dflash_slots(const dflash *g, int32_t n)
{
    return g->anchor_first ? n : n + 1;
}
/* Drafts of a full block. */
static inline int32_t dflash_drafts(const dflash *g)
{
    return g->anchor_first ? g->block : g->block - 1;
}

/* Stores the keys and values of context rows in all layers. Row i of the pass has the features of
 * row out_row[i] of `features`: [rows, n_features, n_embd], memory of the target's main device. All
 * rows of the pass are wanted. */
void dflash_absorb(pass *p, const model *m, const kv_layout *kv, mat features);
/* One block per sequence of the pass, all of one length. The wanted rows are those that draft:
 * without anchor_first, all but each block's first. For each of them 2 k columns: the k best ids,
 * and the logarithms of their probabilities (op_best); with `conf` one more, the logit of the
 * confidence, without its bias. */
mat dflash_forward(pass *p, const model *m, const kv_layout *kv, int32_t k);

#endif
