/* gemma4_mtp.h - the MTP assistants of Gemma 4: small stacks that draft token by token for a larger
 * Gemma 4.
 *
 *     token t, hidden h  ->  pre_projection  ->  layers  ->  norm  ->  head: the next token
 *                                                             |
 *                                                             post_projection: the next h
 *
 * Layers have queries only. They attend to the keys and values of the target's last layer of their
 * kind that owns any, at one position for all steps of a draft: that of the last token, which has
 * no keys yet. So an assistant has no cache and no prefill, and steps differ in t and h alone. The
 * first h is the target's: the input of its head in the row that gave the last token.
 *
 * The head is dense, or it has clusters: then the rows of the n_top clusters whose centroids score
 * best are multiplied, and all other tokens have probability 0.
 *
 * Reference: transformers' gemma4_assistant; llama.cpp for names of keys and tensors.
 */
#ifndef MODEL_GEMMA4_MTP_H
#define MODEL_GEMMA4_MTP_H

#include "model/model.h"

typedef struct gemma4_mtp_layer {
    bool swa;      /* sliding window, else global */
    bool wide;     /* its queries may exceed f16 */
    int32_t donor; /* the target's store that it reads */
    int32_t head_dim, n_head;
    const rope *rope;
    weight attn_norm, wq, q_norm, wo, attn_post_norm;
    weight ffn_norm, gate, up, down, ffn_post_norm, out_scale;
} gemma4_mtp_layer;

typedef struct gemma4_mtp {
    const model *target;                            /* NULL until attached */
    int32_t n_layer, n_embd, n_target_embd, window; /* window 0: the file does not say */
    float eps, softcap;
    rope rope_swa, rope_global;
    weight rope_factors; /* read at bind, into rope_global */
    weight pre, post, out_norm, head;
    /* A head of clusters; n_clusters 0: dense. `head` is then a matrix per cluster. */
    int32_t n_clusters, n_top;
    weight centroids;
    const int32_t *order; /* [n_vocab]: output o of cluster k is token order[k * head.n_out + o] */
    gemma4_mtp_layer *layer;
} gemma4_mtp;

/* One for each name that files give their architecture. */
extern const model_arch gemma4_mtp_arch, gemma4_mtp_arch_old, gemma4_mtp_arch_ik;

static inline bool is_gemma4_mtp(const model *m)
{
    return m->arch == &gemma4_mtp_arch || m->arch == &gemma4_mtp_arch_old ||
           m->arch == &gemma4_mtp_arch_ik;
}

/* gemma4_mtp_table.c: what the file alone says. */
status gemma4_mtp_bind(model *m, err *e);
/* What depends on the target: widths, vocabulary, donors. Between model_bind and model_load. E_ARG
 * for an assistant of another target. The target outlives m. */
status gemma4_mtp_attach(model *m, const model *target, err *e);

/* The most ranks of a step. */
int32_t gemma4_mtp_ranks(const gemma4_mtp *g);
/* n_steps tokens for each row of the pass: [rows, n_steps, 2 * n_ranks], each step as op_best gives
 * it. A row has the last token, its position, and the number of the last committed key as the
 * newest that it sees. h: [rows, n_target_embd]. kv: the target's. */
mat gemma4_mtp_draft(pass *p, const model *m, const kv_layout *kv, mat h, int32_t n_steps,
                     int32_t n_ranks);

#endif
