/* qwen35.h - Qwen3.5, 3.6 and 3.8: three layers of gated delta rule, then one of gated attention,
 * dense (`qwen35`) or with experts (`qwen35moe`).
 *
 * Reference for arithmetic: transformers' modeling_qwen3_5.py and modeling_qwen3_5_moe.py; GGUF
 * keys and tensors: llama.cpp's qwen35 and qwen35moe architectures.
 */
#ifndef MODEL_QWEN35_H
#define MODEL_QWEN35_H

#include "model/model.h"
#include "model/shapes.h"

typedef struct qwen35_shape {
    MODEL_SHAPE;
    int32_t n_head, n_head_kv, head_dim, n_rotating;
    int32_t n_k, n_v, dk, dv, n_taps, inner; /* of the gated delta rule; inner: n_v * dv */
    int32_t n_ff;                            /* with experts that of the shared one */
    int32_t n_expert, n_used, n_ff_exp;      /* 0: dense */
    int32_t section[3];                      /* of rotating pairs: time, height, width */
    int32_t n_nextn;                         /* NextN layers behind the others */
    rope_scaling scaling;
    double eps, theta;
    bool full[LAYERS_MAX]; /* attention, else the gated delta rule */
} qwen35_shape;

extern const shape_family qwen35_shapes;

typedef struct qwen35_layer {
    MODEL_LAYER;
    bool full;  /* attention, else the gated delta rule */
    int32_t at; /* its store: of keys and values, or recurrent */
    weight norm, ffn_norm;
    /* Attention. wq: for each head the query's rows, then the gate's. */
    weight wq, wk, wv, wo, q_norm, k_norm;
    /* Gated delta rule. */
    weight wqkv, wz, wa, wb, taps, a, dt, out_norm, out;
    weight gate, up, down;                /* the feed-forward unit; with experts the shared one */
    weight router, shared_gate;           /* experts: router.n_in > 0 */
    weight gate_exps, up_exps, down_exps; /* up_exps empty: gate_exps holds both */
} qwen35_layer;

typedef struct qwen35 {
    int32_t n_head, head_dim, n_expert_used;
    float eps;
    rope rope[PASS_SIDES_MAX]; /* the same table on each device with layers */
    weight embd, head, out_norm;
    qwen35_layer *layer;
} qwen35;

extern const model_arch qwen35_arch, qwen35moe_arch;

status qwen35_bind(model *m, err *e);             /* qwen35_table.c */
status qwen35_divide(model *m, err *e);           /* qwen35_table.c */
void qwen35_at_rank(model *rank);                 /* qwen35_table.c */
int32_t qwen35_kv_of(const model *m, int32_t il); /* qwen35_table.c */

/* ---- The NextN (MTP) layer: qwen35_nextn.c ----
 *
 * A layer of attention behind the model's own, which drafts. An entry joins a token's embedding and
 * the hidden state of the token before it:
 *
 *     y = W_eh [ norm(embedding) ; norm(hidden) ]  ->  attention, feed-forward  ->  norm, head
 *
 * Entry p of a timeline has token p, the hidden state of token p - 1, and position p. It predicts
 * token p + 1. For tokens of the timeline the hidden state is the model's, after the model's last
 * norm. Behind them it is the layer's own, after the layer's last norm, so drafts go on. Before the
 * first token it is zero. Embedding and head are borrowed. The model's last norm is small: the layer
 * has a copy, because its device may be another.
 *
 * Hidden rows are kept without their norm. `made_by` says whose norm that is. */

extern const model_arch qwen35_nextn_arch, qwen35moe_nextn_arch;

typedef struct qwen35_nextn {
    qwen35 g; /* sizes, rotation, one layer, and the model's last norm */
    weight join, embd_norm, hidden_norm;
    weight head_norm;    /* empty: the model's last norm */
    const model *target; /* NULL until attached */
} qwen35_nextn;

typedef enum nextn_norm { NEXTN_BY_MODEL, NEXTN_BY_LAYER } nextn_norm;

/* Binds the NextN layer of a file, which may have no other: qwen35_table.c. */
status qwen35_nextn_bind(model *m, err *e);
/* Between model_bind_nextn and model_load. E_ARG for a layer of another model. The target outlives
 * m. */
status qwen35_nextn_attach(model *m, const model *target, err *e);

/* Row i of the pass joins its token with row out_row[i] of `hidden`: [rows, n_embd]. All rows are
 * wanted. The first function stores keys alone, of rows whose drafts are known. The second leaves
 * the layer's own hidden rows in `next`, and returns the k best tokens of each row (op_best). */
void qwen35_nextn_absorb(pass *p, const model *m, const kv_layout *kv, mat hidden);
mat qwen35_nextn_draft(pass *p, const model *m, const kv_layout *kv, mat hidden, nextn_norm made_by,
                       mat next, int32_t k);

/* Parts of a layer, for qwen35_nextn.c. */
/* Stores keys and values of the layer's normed input h. */
void qwen35_keys(pass *p, const qwen35 *g, const qwen35_layer *L, const kv_view *kv, mat h);
/* The same, and x += W_o(attend(q, k, v) * sigmoid(gate)). cut: of the wanted rows alone, which
 * s->x is cut down to. Gives x normed for qwen35_add_ffn, which ends the layer. */
mat qwen35_add_attention(pass *p, const qwen35 *g, const qwen35_layer *L, const kv_view *kv,
                         res_stream *s, mat h, bool cut);
void qwen35_add_ffn(pass *p, const qwen35 *g, const qwen35_layer *L, res_stream *s, mat h);

#endif
