/* bind.h - shared by the bind files of all architectures: metadata within bounds, weights by the
 * tail of their name, rotation tables, experts.
 *
 * Keys are named without the architecture's prefix: "block_count" of a gemma4 file is
 * gemma4.block_count. A failed call leaves one sentence with the file, the key or tensor, the
 * expected value and the value found.
 */
#ifndef MODEL_BIND_H
#define MODEL_BIND_H

#include "model/model.h"
#include "model/table.h"

/* ---- Metadata ---- */

enum { REQUIRED = -1 };

/* A key with a value in [lo, hi]. An absent key has the value `fallback`; with REQUIRED it is an
 * error. */
typedef struct int_key {
    const char *name;
    int64_t lo, hi, fallback;
} int_key;

typedef struct real_key {
    const char *name;
    double lo, hi, fallback;
} real_key;

const gguf_value *bind_find(const model *m, const char *name); /* NULL: the file lacks the key */
/* E_FORMAT, with key and value in the sentence: the key is missing, of another type, or out of
 * range. */
status bind_int(const model *m, int_key key, int32_t *out, err *e);
status bind_real(const model *m, real_key key, double *out, err *e);
/* One integer per layer, from a scalar or an array of n. */
status bind_per_layer(const model *m, int_key key, int32_t *out, int32_t n, err *e);
/* Which of n layers have a window: attention.sliding_window_pattern, a list, or a period (`usual`
 * if the file lacks it) whose last layer has none. */
status bind_windows(const model *m, int32_t usual, bool *swa, int32_t n, err *e);
/* Refuses a file in which key b differs from key a, whose value is va. b may be absent. */
status bind_equal(const model *m, const char *a, const char *b, int32_t va, err *e);

/* ---- Weights ---- */

/* The tensors blk.IL.*; for il == -1, those of the model. */
typedef struct binder {
    model *m;
    int32_t il;
    err *e;
} binder;

/* The whole name of a tensor of that layer, or of the model, in buf. */
const char *bind_name(const model *m, int32_t il, const char *tail, char *buf, size_t cap);
/* Bind a weight by the end of its name. bind_matrix: [n_out, n_in]. E_FORMAT: it is missing or of
 * another shape; E_UNSUPPORTED: its format. */
status bind_tensor(const binder *b, weight *w, const char *tail, model_want want);
status bind_matrix(const binder *b, weight *w, const char *tail, int32_t n_in, int32_t n_out);
status bind_vector(const binder *b, weight *w, const char *tail, int32_t n); /* f32, like norms */
/* The same, but optional: if the file lacks it, *w stays empty (n_in == 0). */
status bind_matrix_if(const binder *b, weight *w, const char *tail, int32_t n_in, int32_t n_out);
status bind_vector_if(const binder *b, weight *w, const char *tail, int32_t n);

/* Queries, keys and values from n_in numbers: three tensors of q, kv and kv rows, or the rows of
 * one, attn_qkv.weight. */
status bind_qkv(const binder *b, weight *wq, weight *wk, weight *wv, int32_t n_in, int64_t q,
                int64_t kv);

/* The experts of a layer: gate and up in one tensor (`up` is empty) or in two. */
typedef struct expert_sizes {
    int32_t n_embd, n_ff, n_expert, n_used;
    const weight *router, *router_in, *router_bias; /* as in model_experts */
    bool down_scaled; /* the family has ffn_down_exps.scale in its table */
} expert_sizes;

/* gate, up: [n_expert, n_ff, n_embd]; down: [n_expert, n_embd, n_ff]. Errors as of bind_tensor. */
status bind_experts(const binder *b, const expert_sizes *s, weight *gate, weight *up, weight *down);
/* Binds the embedding, whose rows give the number of tokens, and the head, unless it is NULL:
 * output.weight, or else the embedding. In n_params a tied model counts it once. */
status bind_tokens(model *m, weight *embd, weight *head, int32_t n_embd, err *e);
/* The largest magnitude in a vector; infinity if an element is NaN. */
float bind_largest(const weight *w);

/* ---- By a family's table ---- */

/* Reads the shape of the file of m, in m->mem. E_FORMAT, E_UNSUPPORTED: a sentence with the key. */
status table_read(const model *m, const shape_family *f, model_shape **s, err *e);
/* Binds the weights of rows with a place to `to`, a struct of the layer b->il or, for -1, of the
 * model. Errors as of bind_tensor. */
status table_bind(const binder *b, const model_shape *s, void *to);
/* Dimension i, from 1 to most, of a layer's tensor (il -1: the model's). */
typedef struct table_dim {
    int32_t il;
    const char *gguf; /* where it is in a row, the file may have any of the row's names */
    int i;
    int32_t most;
} table_dim;
/* That tensor, or NULL. E_FORMAT: the file has it under two names. */
status table_find(const model *m, const shape_family *f, table_dim d, const tensor **t, err *e);
/* That dimension. E_FORMAT: the tensor is missing, or the dimension out of its range. */
status table_size(const model *m, const shape_family *f, table_dim d, int32_t *out, err *e);
/* How binding begins: memory for the architecture's own data, zeroed, and the shape of the file.
 * NULL: an error. */
void *bind_begin(model *m, const shape_family *f, size_t impl_bytes, model_shape **s, err *e);
/* Memory for n_layer structs of layers, zeroed, and for as many kv_specs: m->kv. */
status bind_layer_structs(model *m, int32_t n_layer, void **layers, size_t layer_bytes, err *e);
/* How it ends: sets the fields of m that the shape and these three tell. head NULL: of a drafter,
 * else it reads the suppressed tokens. */
status bind_done(model *m, const model_shape *s, void *impl, const weight *embd, const weight *head,
                 err *e);

/* ---- Rotation ---- */

/* Reads rope.scaling.*; n_ctx: the file's context length. YaRN's magnitude is
 * (1 + 0.1 ln factor) times rope.scaling.attn_factor, over (1 + 0.1 m ln factor) for
 * rope.scaling.yarn_log_multiplier m. rope.scaling.yarn_attn_factor has two
 * meanings in published files and yarn_ext_factor must act as 1: neither is read. */
status bind_scaling(const model *m, rope_scaling *s, int32_t n_ctx, err *e);

/* Frequency of pair i: theta^(-2i / n_dims), divided by the file's factor for the pair. */
typedef struct turning {
    int32_t n_dims; /* of a head that rotate: pairs (i, i + n_dims / 2) */
    double theta;
    int32_t n_turning;           /* without factors: pairs from here on do not rotate */
    const weight *factors;       /* NULL or empty: none */
    const rope_scaling *scaling; /* NULL: none */
} turning;

/* Fills *r with the frequencies of t; the model owns them. E_FORMAT: a factor that is not above 0;
 * E_MEMORY. */
status bind_rope(model *m, rope *r, const turning *t, err *e);
/* Interleaved M-RoPE, where the file has rope.dimension_sections; after bind_rope. Sections of
 * other than all pairs: E_FORMAT. */
status bind_sections(model *m, rope *r, err *e);
/* Sets r->turns: cosines and sines of the first ROPE_TURNS positions, for keys that attention
 * derives from values. Heads with more than TURNING_MAX rotating pairs get no table. */
status bind_turns(model *m, rope *r, err *e);

/* ---- Values ---- */

/* May a head of that size, normed with either weight and rotated with that factor, leave the part
 * of f16 that attention relies on? A normed head has length sqrt(n), so no element, rotating pair
 * or rotated group exceeds sqrt(n) max |w| factor. Block formats may round above this bound, by
 * less than the half of the range that is kept free. */
bool bind_wide_heads(const weight *q_norm, const weight *k_norm, int32_t head_dim, float factor);

/* ---- Division between devices: divide.c ---- */

/* All of it for an architecture whose layers begin with MODEL_LAYER: the sides of weights, layers,
 * rotations and stores. The weights of `first`, a list that ends with NULL, go with the first
 * layer, those that are no layer's to the main side. divide_plain: only the embeddings go with the
 * first layer. */
status divide_layers(model *m, const weight *const *first, err *e);
status divide_plain(model *m, err *e);
/* by_side[side] becomes a copy of by_side[PASS_MAIN] on that side. */
status divide_rope(model *m, rope *by_side, int8_t side, err *e);

#endif
