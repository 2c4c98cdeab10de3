/* ops.h - the op set: the algebra that models are written in, and the table a device fills.
 *
 * op_x(p, ...) checks shapes, makes the result in the pass's scratch, and calls the device at
 * once. Fused ops have an expansion here in ops.c: it is the fallback for a device without the
 * fusion and the oracle of its test. rows(x) = p->rows->n for every activation.
 *
 * A device op gets checked arguments and a pass that has not failed. It takes its temporaries with
 * pass_temp FIRST and returns right after if p->dry, so that a dry pass sizes scratch exactly. It
 * never allocates, never reads the environment, and reports failure only through p->e.
 *
 * Row invariance: a row's result is bit-identical whatever else is in the pass: one reduction order
 * per op, attention cut into chunks of fixed size. Where dev->prompts_apart, rows of prompts have
 * one order and rows of answers another (step.prompt).
 */
#ifndef BACKEND_OPS_H
#define BACKEND_OPS_H

#include "backend/page_sums.h"
#include "backend/pass.h"
#include "backend/swiglu.h"

/* Rotary embedding of the first 2 n_pairs dims of a head, half-split pairs (i, i + n_pairs) or
 * interleaved ones (2 i, 2 i + 1): angle = pos * inv_freq[i]. Later dims stay as they are. Who
 * turns many keys at once adds angles instead of computing sines: pos = ROPE_TURNS * a + b, and the
 * table has the cosines and sines of every b. */
enum { ROPE_TURNS = 128 };
typedef struct rope {
    int32_t n_pairs;       /* at most head_dim / 2 */
    const float *inv_freq; /* device memory, [n_pairs]; 0: angle 0 */
    float factor;          /* of all cosines and sines (YaRN's magnitude); 0 means 1 */
    int32_t n_turning;     /* pairs from here on have frequency 0 */
    const float *turns;    /* device memory, [ROPE_TURNS][2][n_turning], cosines first; or NULL */
    bool interleaved;
    /* 0: pairs turn by the row's position. Else they are n_axes ranges of equal length, the a-th of
     * which turns by the row's place on axis a (rowset.axis). parted: each range is a part of the
     * head with half-split pairs of its own; else the pairs are those of the whole head. */
    int32_t n_axes;
    bool parted;
    /* Interleaved M-RoPE, of 3 axes: pair i turns by axis i % 3 if i < 3 section[i % 3], else by
     * axis 0. Rows without axes turn by their position. All 0: not. */
    int32_t section[ROPE_AXES_MAX];
    /* With grow, cosines and sines at position p are also multiplied by 1 + grow ln(1 + floor(p /
     * period)): a temperature of long contexts, for queries. */
    float grow;
    int32_t period;
} rope;
/* Pairs of a part of the head. */
static inline int32_t rope_part(const rope *r)
{
    return r->parted ? r->n_pairs / r->n_axes : r->n_pairs;
}
/* Where the elements of pair i are in a head: pair_at(r, i) and pair_step(r) behind it. */
static inline int32_t pair_at(const rope *r, int32_t i)
{
    return r->interleaved ? 2 * i : i + i / rope_part(r) * rope_part(r);
}
static inline int32_t pair_step(const rope *r)
{
    return r->interleaved ? 1 : rope_part(r);
}
/* Does it turn these rows by places on axes? */
static inline bool rope_by_axes(const rope *r, const rowset *rows)
{
    return r->n_axes && (!r->section[0] || rows->axis[0]);
}
/* The axis by which pair i then turns. */
static inline int32_t rope_axis(const rope *r, int32_t i)
{
    if (!r->section[0])
        return i / (r->n_pairs / r->n_axes);
    return i < 3 * r->section[i % 3] ? i % 3 : 0;
}
static inline float rope_factor(const rope *r)
{
    return r->factor != 0 ? r->factor : 1.0f;
}
float rope_factor_at(const rope *r, int32_t pos); /* of a row at that position */

/* Activations; a device says which of them it computes (device.acts). */
typedef enum act_kind {
    ACT_GELU_TANH,
    ACT_SILU,     /* x / (1 + e^-x) */
    ACT_SOFTPLUS, /* log(1 + e^x) */
    ACT_SIGMOID,  /* 1 / (1 + e^-x) */
    /* Of a gated unit as a whole, where the others are multiplied by b: with a cut to at most 7 and
     * b to -7 .. 7, a / (1 + e^(-1.702 a)) (b + 1). */
    ACT_SWIGLU_CUT,
    ACT_GELU_ERF, /* x (1 + erf(x / sqrt(2))) / 2 */
    ACT_KINDS
} act_kind;

/* How experts are chosen from a row's logits, one per expert. Their scores are softmax(logits) or
 * sigmoid(logits). The k experts with the largest score + bias are chosen, ties by lower index.
 * Their weights are their scores, without bias, over the sum of the k, times factor and scale. */
typedef struct route_rule {
    bool sigmoid;
    const weight *bias;  /* [experts], with sigmoid only; or NULL */
    const weight *scale; /* [experts]; or NULL */
    float factor;        /* 0 means 1 */
} route_rule;
typedef struct expert_router {
    const weight *w;
    int32_t k;              /* experts of a row */
    const route_rule *rule; /* NULL: softmax, no scale */
} expert_router;
static inline float route_factor(const route_rule *t)
{
    return t->factor != 0 ? t->factor : 1.0f;
}

/* The pairs of row and expert, sorted by expert; a device's own layout. */
typedef struct sorted_pairs {
    int32_t *order, *n_tiles; /* NULL in a dry pass */
    void *tiles;
    int32_t first, n; /* the experts of the weight for which they are sorted */
} sorted_pairs;

/* Which experts a row goes to: device memory, [rows, k] each, best first. */
typedef struct routing {
    int32_t *id;
    float *weight;
    int32_t rows, k;
    /* A device's own, for the ops that read the choice: */
    uint64_t router;     /* the number of the kernel that chose; 0: unknown */
    bool in_use;         /* moe_glu has read it: later kernels begin after the choice */
    sorted_pairs sorted; /* made by moe_glu */
} routing;

/* One of several norms of the same vector: weight (or NULL) and factor. */
typedef struct norm_want {
    const weight *w;
    float c;
} norm_want;
enum { NORMS_MAX = 3 };

/* A mixture of experts, perhaps beside an expert that every row goes to: shared_*, else NULL. */
typedef struct mixture {
    const weight *router, *gate, *up, *down; /* up NULL: gate holds both */
    const weight *shared_factor;             /* [1 row of n_in]; NULL: factor 1 */
    const weight *shared_gate, *shared_up, *shared_down;
    const route_rule *rule; /* NULL: softmax, no scale */
    int32_t k;              /* experts of a row */
    act_kind act;
} mixture;

/* The output of a branch, and the weight of its norm. */
typedef struct branch {
    mat y;
    const weight *w;
    /* [rows, k, cols]: y is the sum of these over k, in ascending order, and is not computed yet.
     * NULL: it is. See op_moe_branch. */
    const float *parts;
    int32_t k;
} branch;

/* What is added to the residual stream: x += y or x += rms_norm(y) norm, then x *= scale[0]. */
typedef struct residual {
    mat y;
    const weight *norm; /* NULL: y as it is */
    /* With b.y, first y = rms_norm(y) y_norm + rms_norm(b.y) b.w. Both are overwritten. */
    const weight *y_norm;
    branch b;
    const weight *scale;  /* NULL: 1 */
    const weight *reader; /* of the product that reads the new x itself, if one is next; or NULL */
    float eps;            /* of all norms */
} residual;

/* Queries, keys and values, from products to attention. Mats without rows are absent. */
typedef struct qkv {
    /* q: [rows, heads, head_dim], or, with q_norm, [rows heads, head_dim], which need not lie side
     * by side. k, v: [rows, n_head_kv, head_dim]. Without v the values are k before its norm and
     * rotation; then v_norm is set, or the view has one stream. */
    mat q, k, v;
    const weight *q_norm, *k_norm; /* NULL: not normed */
    bool v_norm;                   /* without weight */
    float eps;
    const rope *q_rope, *k_rope;
    bool tail;   /* op_tail asks for these queries, with k_rope and scale */
    float scale; /* of attention */
} qkv;

/* The constants of a gated delta rule, [n_v] each: the decay of head j is
 * exp(a[j] * softplus(x + dt[j])). a is negative. */
typedef struct delta_gate {
    const weight *a, *dt;
} delta_gate;

/* The constants of a recurrent layer between its products: the convolution's taps, the rule's gate,
 * the weight of the norm of its heads, [dv]. */
typedef struct delta_unit {
    const weight *taps, *norm;
    delta_gate gate;
    float eps;
} delta_unit;

/* Attention of a row to itself and the rows before it, n_near in all, by place and by distance:
 *
 *     s_d = cap tanh((c scale q[r]) . (k_factor k[r - d] + far[d]) / cap)     d = 0 .. n_near - 1
 *     o[r] = sum_d softmax_d(s) v[r - d]                                      r - d >= 0 */
enum { NEAR_MAX = 64 };
typedef struct near_rule {
    int32_t n_near;         /* at most NEAR_MAX */
    const weight *scale;    /* [head_dim], f32 */
    float c, k_factor, cap; /* cap > 0 */
} near_rule;

/* A sum over the ranks of a tensor split, y = (s0 + s1) + (s2 + s3) of the products of four
 * segments. A rank has the products of one segment, or of some that follow each other, and sends
 * their sum to the other ranks' inboxes: memory that their kernels read and its own write. Then it
 * takes the other ranks' sums from its own inbox, as they arrive.
 *
 * Every value carries a mark: the number of its pass and of its sum. A reader waits for the mark,
 * so no rank clears an inbox. An inbox has two places for each sender, used by turns. Two are
 * enough: a rank sends sum k + 2 after it has received sum k + 1 of every rank, and a rank sends
 * sum k + 1 after it has read sum k. All ranks of a pass begin together. */
enum { RANKS_MAX = 4, RANK_SUM_ROWS = 64, RANK_SUMS_MAX = 1 << 10 };
typedef struct rank_sum {
    int32_t n_ranks, rank, n_parts;
    mat part[RANKS_MAX];    /* of this rank's segments: 1, 2 or 4 */
    mat more;               /* added to y: the same of every rank; or without memory */
    void *inbox[RANKS_MAX]; /* of every rank, of rank_inbox_bytes */
    int32_t cols;           /* that an inbox has room for */
    uint32_t index;         /* of the sum in its pass */
    bool sends, takes;      /* which half, or both */
} rank_sum;
/* A column takes 8 bytes. cols is even. */
static inline size_t rank_inbox_bytes(int32_t n_ranks, int32_t cols)
{
    return (size_t)(n_ranks - 1) * 2 * RANK_SUM_ROWS * (size_t)cols * 8;
}

/* A sum in the order of a tensor split, v0 + (v1 + v2) of three and (v0 + v1) + (v2 + v3) of four,
 * into every y. All have one shape, one head, and rows side by side (stride == cols). A y may be
 * one of v. With several y, some of them and of v are memory of devices that d reaches. */
typedef struct ordered_sum {
    int32_t n_y, n_v; /* n_y: 1 to RANKS_MAX; n_v: 2 to RANKS_MAX */
    mat y[RANKS_MAX], v[RANKS_MAX];
} ordered_sum;

/* What is written is a mat, or the address of one that gets a copy (mat.copies) where
 * the device makes one. x of products gets the copy that they make of it. */
typedef struct device_ops {
    /* y[r] = W[token[r]] * scale, decoded */
    void (*embed)(pass *p, mat y, const weight *w, float scale);
    /* y[r] = W[ids[r, 0]] * scale, decoded; NaN where the id is none of W's */
    void (*embed_at)(pass *p, mat y, mat ids, const weight *w, float scale);
    /* y = x * (mean(x^2) + eps)^-1/2 * w, per head; w may be NULL. y may be x. */
    void (*rms_norm)(pass *p, mat *y, mat x, const weight *w, float eps);
    /* y[r, o] = sum_i x[r, i] W[o, i] + bias[o]; the bias (weight.bias) belongs to every product */
    void (*matmul)(pass *p, mat y, mat *x, const weight *w);
    /* See op_matmuls. Optional. */
    void (*matmuls)(pass *p, const mat *y, mat *x, const weight *const *w, int32_t n);
    /* See op_matmul_segments. False: not these, and nothing was done; in a dry pass as in the real
     * one. Optional. */
    bool (*matmul_segments)(pass *p, const mat *y, mat *x, const weight *w, int32_t n,
                            int32_t n_tiles);
    /* See rank_sum. y: [rows, cols]. Optional: a device with open_inbox has it. */
    void (*sum_ranks)(pass *p, mat y, const rank_sum *s);
    /* See op_ordered_sum. Optional: a device with line_up has it. */
    void (*ordered_sum)(pass *p, const ordered_sum *s);
    /* See op_matmul_gate; of one row. g: x W'. Optional. */
    void (*matmul_gate)(pass *p, mat y, mat g, mat x, const weight *w, mat b, act_kind act);
    /* y = act(gate x) * (up x). gate and up may be the halves of one weight (up NULL: rows
     * 0..n/2-1 are the gate's, the rest up's). Optional. */
    void (*glu)(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act);
    /* y = act(a) * b; y may be a. a may have one column per head: then it is the factor of the
     * whole head, and y is not a. Of ACT_SWIGLU_CUT: the unit of a and b. */
    void (*act_mul)(pass *p, mat *y, mat a, mat b, act_kind act);
    /* in place, every head */
    void (*rope)(pass *p, mat x, const rope *r);
    /* k, v: [rows, n_head_kv, head_dim], into the slots of the rows' indices; a view of one stream
     * takes u from k and ignores v */
    void (*kv_store)(pass *p, const kv_view *kv, mat k, mat v);
    /* See op_qkv. q, v: where queries and values come to be; or without rows. Optional. */
    void (*qkv)(pass *p, mat *q, mat v, const qkv *a, const kv_view *kv);
    /* o[r, h] = sum_t softmax_t(scale * q[r, h] . k[t, h / group]) v[t, h / group]. With sinks, the
     * soft max has one more score, kv->sinks[h], whose value is 0. */
    void (*attend)(pass *p, mat *o, mat q, const kv_view *kv, float scale);
    /* See op_attend_gate. o: attend. Optional. */
    void (*attend_gate)(pass *p, mat *y, mat o, mat q, mat gate, act_kind act, const kv_view *kv,
                        float scale);
    /* See op_tail; p->tail is not NULL. r may be NULL. Optional: scorers alone need it. */
    void (*tail)(pass *p, mat q, const kv_view *kv, const rope *r, float scale);
    /* See page_watch. Optional: a device with sum_pages has it. */
    void (*watch_pages)(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w);
    void (*add)(pass *p, mat y, mat a, mat b);               /* y may be a */
    void (*scale)(pass *p, mat x, float c, const weight *w); /* x *= c * w[0]; w may be NULL */
    /* x += rms_norm(y) * w. Optional. */
    void (*add_rms_norm)(pass *p, mat x, mat y, const weight *w, float eps);
    /* See op_residual. Optional. */
    void (*residual)(pass *p, mat *x, const residual *r, mat *h, const norm_want *want, int32_t n);
    /* See op_norm_room: gives y room for its copy. Optional. */
    void (*copy_room)(pass *p, mat *y);
    /* the choice of the rule */
    void (*route)(pass *p, routing r, mat logits, const route_rule *rule);
    /* route of the logits x W'. Optional. */
    void (*router)(pass *p, routing *r, mat x, const weight *w, const route_rule *rule);
    /* See op_glu_router. Optional. */
    void (*glu_router)(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act,
                       routing *r, mat z, const expert_router *to);
    /* y[r, j] = act(gate_e x[r]) * (up_e x[r]), e = r.id[r, j]; y: [rows, k heads, n_ff] */
    void (*moe_glu)(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                    act_kind act);
    /* y[r] = sum_j weight[r, j] * (down_e x[r, j]), summed in ascending j */
    void (*moe_down)(pass *p, mat y, mat x, routing r, const weight *down);
    /* See op_moe_down_segments. False: not these, and nothing was done; in a dry pass as in the real
     * one. Optional. */
    bool (*moe_down_segments)(pass *p, const mat *y, mat x, routing r, const weight *w, int32_t n);
    /* parts[r, j] = weight[r, j] * (down_e x[r, j]), whose sum is moe_down's y. False: not these,
     * and nothing was done; in a dry pass true where it may be. Optional. */
    bool (*moe_parts)(pass *p, mat parts, mat x, routing r, const weight *down);
    /* See op_ple. False: not this one, and nothing was done or taken; always in a dry pass.
     * Optional. */
    bool (*ple)(pass *p, mat y, mat x, const weight *gate, mat b, const weight *proj);
    /* See op_mixture. False: not this one, and nothing was done or taken; always in a dry pass,
     * because the expansion takes more scratch. part: where m->down is cut, the experts' sum of each
     * of its segments, and y gets the shared expert's alone. Optional. */
    bool (*mixture)(pass *p, mat y, mat x, const mixture *m, const mat *part);
    /* y[r, j] = W_e x[r], e = r.id[r, j]; y: [rows, k heads, n_out] */
    void (*moe_matmul)(pass *p, mat y, mat *x, routing r, const weight *w);
    /* x[r, 0, i] = list[r.id[r, c / n] * n + c % n], c = x[r, 0, i]; -1 stays */
    void (*renumber)(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n);
    /* See op_conv and op_delta. Optional: only models with recurrent layers need them. */
    void (*conv)(pass *p, mat y, mat x, const weight *w, const recur_view *rv);
    void (*delta)(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv);
    /* See op_delta_unit. y: [rows, n_v dv]. False: not this one, and nothing was done or taken;
     * always in a dry pass, because the expansion takes more scratch. Optional. */
    bool (*delta_unit)(pass *p, mat *y, mat x, mat z, mat a, mat b, const delta_unit *u,
                       const recur_view *rv);
    /* y[i] = x[row[i]] */
    void (*gather)(pass *p, mat y, mat x, const int32_t *row);
    void (*copy)(pass *p, mat y, mat x);
    /* x = cap * tanh(x / cap) where cap > 0; then x[ids] = -inf */
    void (*softcap)(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids);
    /* Of vision towers: a device has all of these, or none. y = x, at least low and at most high; y
     * may be x */
    void (*clamp)(pass *p, mat y, mat x, float low, float high);
    /* y[r] = mean of x[n r] .. x[n r + n - 1] */
    void (*pool)(pass *p, mat y, mat x, int32_t n);
    /* x = (x - shift) * scale, column by column; in place */
    void (*standardize)(pass *p, mat x, const weight *shift, const weight *scale);
    /* y = (x - mean(x)) * (mean((x - mean(x))^2) + eps)^-1/2 * w + b, row by row; b may be NULL; y
     * may be x */
    void (*layer_norm)(pass *p, mat y, mat x, const weight *w, const weight *b, float eps);
    /* x = act(x), in place; not of gated units */
    void (*act)(pass *p, mat x, act_kind act);
    /* y[r] = sum_k share[r, k] W[ids[r, k]], decoded, in ascending k */
    void (*embed_mix)(pass *p, mat y, mat ids, mat share, const weight *w);
    /* Of audio towers: a device has all three, or none. See op_unfold, op_depthwise, op_near. */
    void (*unfold)(pass *p, mat y, mat x, int32_t first);
    void (*depthwise)(pass *p, mat y, mat x, const weight *w);
    void (*near)(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule);
    /* y[r, 0]: the columns of x[r]'s largest values, y[r, 1]: their log softmax; see op_best */
    void (*best)(pass *p, mat y, mat x);
} device_ops;

enum { BEST_MAX = 8, BEST_COLS_MAX = 1 << 24 /* floats hold every smaller number */ };

typedef struct logit {
    int32_t id;
    float logit;
} logit;

/* A superset of a row's k largest logits. */
typedef struct sift_want {
    const float *row;
    int32_t k;
    logit *to; /* receives the logits, in no order */
    int32_t n; /* their number; above the capacity of `to`, `to` is incomplete; -1: unknown, the
                  device could not sift */
    bool bad;  /* a NaN or +inf is in the row */
} sift_want;

/* Speed of a device's kernel for something: none exists; a correct but slow path; the fast path. */
typedef enum kernel_speed { KERNEL_NONE, KERNEL_SLOW, KERNEL_FULL } kernel_speed;

typedef enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_WRAP } device_kind;

/* n pieces of n_bytes each, at fixed strides on the host and on a device. */
typedef struct block_move {
    char *dev, *host;
    size_t dev_stride, host_stride, n_bytes;
    int32_t n;
    bool load; /* to the device; else from it */
} block_move;

/* One stream of a store of keys and values: n_heads runs of n_slots rows. Row j of a head is in the
 * place that key_walk says for key j. */
typedef struct row_store {
    char *at;
    size_t row_bytes;
    int32_t n_heads, n_slots;
    const kv_page *page; /* as kv_base.page */
} row_store;

/* What all calls of one op, shape and weight format took, and what they could not do without:
 * bytes of weights, keys and values, each read once per call, and multiply-adds (counted twice) of
 * bytes and of floats. n_in 0 and type "": no weight. */
typedef struct device_op_time {
    const char *op, *type; /* static storage */
    int32_t rows, n_in, n_out;
    int64_t n_calls;
    double ms;
    uint64_t bytes, int8_ops, f32_ops;
} device_op_time;

/* Times of recorded passes. While they are taken, a pass runs as always, or every other time op by
 * op: there kernels do not overlap, and the time of an op is that of the op alone. */
typedef struct device_pass_times {
    double read_bytes;        /* per second, by a kernel that only reads, over much memory */
    double launch_ms;         /* of a kernel that does nothing, one of many in a recording */
    double pass_ms;           /* of a pass as always, from its first kernel to its last: the mean */
    int32_t n_whole, n_split; /* passes of either kind */
    int32_t n_kernels;        /* of the last pass */
    int32_t n_ops;
    const device_op_time *ops; /* [n_ops] of all split passes; the device's, until the next call */
} device_pass_times;

struct device {
    const device_ops *op;
    device_kind kind;
    const char *name;    /* "cpu (avx512, 2 threads)" */
    bool prompts_apart;  /* rows of prompts and rows of answers round differently: a pass has rows
                            of one kind, and step.prompt says which */
    int32_t chunk_rows;  /* a good prefill chunk */
    int32_t n_ahead;     /* passes that the host may enqueue before the first of them begins; where
                            devices share the layers, all of them want to be at work. 0: a few */
    uint32_t acts;       /* bit k: it computes the activation of act_kind k */
    bool select_timed;   /* block selection was timed on such devices: "auto" may choose it */
    int32_t number;      /* devices of one kind with equal numbers share their memory */
    bool host_memory;    /* what alloc gives is memory that the host reads and writes itself */
    int32_t recur_block; /* rows of prompts go in blocks of so many through recurrent layers with
                            keys and values of recur_head elements; 0: row by row */
    int32_t recur_head;
    bool loads_gathered; /* gathered tables go through weight_load too: the host's are out of reach
                          */
    device *inner;       /* of a wrapper */
    void *self;

    /* Is one stream (kv_view.single) the better choice for such a view? NULL: never. */
    bool (*one_stream)(const device *d, const kv_view *kv);

    /* Memory of the device: weights, KV, scratch. Zeroed. NULL on failure. */
    void *(*alloc)(device *d, size_t n_bytes);
    void (*release)(device *d, void *p, size_t n_bytes);
    void (*clear)(device *d, void *p, size_t n_bytes);
    /* Host to device and back; on a CPU memcpy. Ordered with the passes. When they return the
     * caller's memory is its own again. */
    void (*upload)(device *d, void *to, const void *from, size_t n_bytes);
    void (*download)(device *d, void *to, const void *from, size_t n_bytes);
    /* Copies to memory of another device of this kind. Not waited for. NULL: copies go through the
     * host. */
    void (*send)(device *d, device *other, void *to, const void *at, size_t n_bytes,
                 send_order order);
    /* What d is given later begins when what `before` has been given so far has ended. NULL as
     * send.
     */
    void (*follow)(device *d, device *before);
    /* What each of n devices of this kind is given later begins when what all have been given so
     * far has ended. NULL as send. */
    void (*line_up)(device *const *d, int32_t n);
    /* Waits for d end with an error where d does not go on, as those of devices that share a model
     * do. Optional. */
    void (*limit_waits)(device *d);
    /* Do ops of d read memory of `other`, of its kind, where it is? The caller orders both. NULL:
     * no. */
    bool (*reaches)(device *d, const device *other);
    /* For rank_sum: n_bytes that ops of other devices of this kind write. reached: they reach d's
     * memory, so it is d's; else it is the host's. Zeroed; NULL: no memory. Optional. */
    void *(*open_inbox)(device *d, size_t n_bytes, bool reached);
    void (*close_inbox)(device *d, void *at, size_t n_bytes, bool reached);
    /* Ranks of a tensor split must compute the same bits: d takes over what `first`, of its kind,
     * has found out about itself. E_UNSUPPORTED: it cannot compute as that one does. NULL: it does.
     */
    status (*agree)(device *d, const device *first, err *e);
    /* Large transfers: `move` starts one, in order with the passes; `moved` waits for all. Host
     * memory is best taken from host_alloc, which any thread may call. All NULL: upload, download
     * and mem_pages serve. */
    void (*move)(device *d, const block_move *m);
    void (*moved)(device *d);
    /* In every store and head, row first + i becomes row first + from[i], for i from 0 to n - 1 in
     * this order. from ascends, from[i] >= i, n <= STEP_TREE_ROWS_MAX. Ordered with the passes,
     * not waited for. NULL: stores are memory of the host. */
    void (*keep_rows)(device *d, const row_store *store, int32_t n_stores, int64_t first,
                      const int32_t *from, int32_t n);
    /* Applies s's pending rows to state and conv of n stores, as the next pass would. Ordered with
     * the passes, not waited for. NULL: the device has no recurrent ops. */
    void (*settle)(device *d, const recur_view *v, const recur_base *base, int32_t n,
                   const recur_seq *s);
    /* Summarises pages of one sequence's store: keys KV_PAGE first to KV_PAGE (first + n) - 1,
     * which are all written, by KV_PAGE at a time, into rows row .. row + n - 1 of `to`. The view
     * has heads of at most PAGE_SUM_DIM_MAX. Ordered with the passes, not waited for. NULL: the
     * device cannot. */
    void (*sum_pages)(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                      int32_t first, int32_t row, int32_t n);
    /* See page_rescore. base.v is not read. Otherwise as sum_pages. */
    void (*rescore_pages)(device *d, const kv_view *v, const kv_base *base, const page_rescore *l);
    /* Makes of a rule (sparse.h) what the kernels do over such a view, in prompts or in answers:
     * their tile and least, and skip and alpha 0 where they leave nothing out. NULL: they follow
     * every rule as it is. */
    void (*narrow_sparse)(const device *d, const kv_view *kv, bool prompt, sparse_rule *rule);
    void *(*host_alloc)(device *d, size_t n_bytes);
    void (*host_free)(device *d, void *p, size_t n_bytes);
    /* Gives w a place on the device. w->data points at host bytes in the file's layout that stay
     * valid as long as the device lives; the device may keep using them, or make w->packed. */
    status (*weight_load)(device *d, weight *w, err *e);
    void (*weight_free)(device *d, weight *w);
    /* Bytes weight_load would take for a weight of this type and shape. */
    size_t (*weight_bytes)(const device *d, const weight *w);
    /* How fast it stores to and attends over such a view, and a description of the kernel. NULL:
     * f32, f16 and bf16 in two streams at full speed, no rotation. */
    kernel_speed (*attend_kernel)(const device *d, const kv_view *kv, char *text, size_t cap);
    /* The same for products with w, which need not be loaded. NULL: all at full speed. */
    kernel_speed (*product_kernel)(const device *d, const weight *w, char *text, size_t cap);
    /* Memory that alloc could still give; NULL with host_memory: mem_available_bytes. */
    uint64_t (*available_bytes)(const device *d);
    /* Bytes taken by alloc and weight_load and not released. Any thread may ask. */
    uint64_t (*used_bytes)(const device *d);
    size_t reserve_bytes; /* the most that the device takes beyond used_bytes */
    int32_t watch_rooms;  /* rooms of a page_watch that it makes use of, at most; 0: one */
    /* Sifts n_wants rows of n logits each, at once; every `to` has room for cap. May be NULL. */
    void (*sift)(device *d, sift_want *want, int32_t n_wants, int32_t n, int32_t cap);
    /* Waits until every launched op has ended. NULL: an op has ended when its function returns. */
    void (*wait)(device *d);
    /* An asynchronous device: its first failure since it was opened, or OK. May be NULL. */
    status (*failed)(const device *d, err *e);
    /* Starts a pass that computes: uploads the step. NULL: ops read the step in place. */
    void (*begin)(device *d, pass *p);
    /* Ends such a pass: what its ops have counted is taken. NULL: nothing is left to do. */
    void (*end)(device *d, pass *p);
    /* True: the pass was one like an earlier one, and has been run from a recording of that, its
     * result in *y. False: run it, end it, then call recorded. Of a pass over several devices: the
     * leg (pass.h). What `model` and `kv` point to is only compared. Both NULL: passes are always
     * run. */
    bool (*replay)(device *d, pass *p, const void *model, const void *kv, mat *y);
    void (*recorded)(device *d, pass *p, mat y);
    /* Takes times of the recorded passes that follow, and of their ops, until timed_passes, which
     * gives them and ends that. See device_pass_times. NULL: the device records no passes. */
    status (*time_passes)(device *d, err *e);
    void (*timed_passes)(device *d, device_pass_times *out);
    const struct page_move_ops *page_moves; /* page_moves.h; NULL: stores are memory of the host */
    const struct expert_ops *experts;       /* experts.h; NULL: all experts are in memory */
    void (*close)(device *d);
};

/* The ops, as models call them. */
mat op_embed(pass *p, const weight *w, float scale);
/* x, which has every row of the pass: the rows of step.soft are replaced. */
void op_put_soft(pass *p, mat x);
/* Deepstack: to these rows of x are added those of its layer `il`. */
void op_add_soft(pass *p, mat x, int32_t il);
/* The token of a row is column 0 of head 0 of `ids`, as op_best gives it. */
mat op_embed_at(pass *p, mat ids, const weight *w, float scale);
mat op_rms_norm(pass *p, mat x, const weight *w, float eps);
mat op_rms_norm_inplace(pass *p, mat x, const weight *w, float eps); /* returns x */
/* Where op_residual leaves a norm of rows like x's, or fewer, and its copy. Taken before a mark, it
 * outlives the scratch of the layer that makes the norm for the next one. */
mat op_norm_room(pass *p, mat x);
mat op_matmul(pass *p, mat x, const weight *w);
/* y[i] = op_matmul(x, w[i]), n of them. */
enum { MATMULS_MAX = 4 };
void op_matmuls(pass *p, mat *y, mat x, const weight *const *w, int32_t n);
/* y[i] = x_i W[i]', y[i]: [rows, n_out]; where x_0 are the first columns of x, x_1 the next ones, and so on; n of them.
 * n_tiles > 1: x_0 are the first columns of each of so many equal tiles of x.
 * False: this device does not do it in fewer launches than op_matmul of each, and nothing was done.
 */
bool op_matmul_segments(pass *p, const mat *y, mat x, const weight *w, int32_t n, int32_t n_tiles);
/* act(x W') * b */
mat op_matmul_gate(pass *p, mat x, const weight *w, mat b, act_kind act);
mat op_glu(pass *p, mat x, const weight *gate, const weight *up, act_kind act);
mat op_act_mul(pass *p, mat a, mat b, act_kind act);
mat op_rope(pass *p, mat x, const rope *r); /* in place; returns x */
/* A number beyond f16 is stored as NaN in f16: an infinite key might have a score of -inf, and be
 * left out without a trace. */
void op_kv_store(pass *p, const kv_view *kv, mat k, mat v);
/* k = rope(rms_norm(k)) and v = rms_norm(v), which op_kv_store stores; then q = rope(rms_norm(q)),
 * the result, [rows, heads, head_dim]. Norms are those of heads. k and q are overwritten, unless
 * q's heads are rows, and so is v. A view of one stream gets the values alone. */
mat op_qkv(pass *p, const qkv *a, const kv_view *kv);
mat op_attend(pass *p, mat q, const kv_view *kv, float scale);
/* act(gate) * op_attend(q), [rows, heads head_dim]. gate: [rows, heads, 1 or head_dim], or
 * [rows heads, head_dim], which need not lie side by side. */
mat op_attend_gate(pass *p, mat q, mat gate, act_kind act, const kv_view *kv, float scale);
/* Where p->tail is set: the shares softmax_t(scale q[r, h] . k[t]) over the keys t that row r sees,
 * without the sinks, and their maximum over the heads into p->tail->top[r][position of t] if it is
 * larger. q and k are taken before the rotation, so that distance does not count: q is not rotated
 * yet, stored keys are turned back by r (NULL: they were never rotated). Of a single stream, k is
 * its values by its weight. After op_kv_store. */
void op_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale);
mat op_add(pass *p, mat a, mat b);                      /* a += b; returns a */
mat op_scale(pass *p, mat x, float c, const weight *w); /* in place; returns x */
/* Adds to x (r->y without rows: nothing), then h[i] = rms_norm(x) want[i].w * want[i].c, n of them,
 * at most NORMS_MAX. h[i]: from op_norm_room, or without rows: then it gets scratch. Returns x with
 * the copy that r->reader reads. */
mat op_residual(pass *p, mat x, const residual *r, mat *h, const norm_want *want, int32_t n);
/* With one norm, which it returns. */
mat op_residual_norm(pass *p, mat x, const residual *r, const weight *w);
/* Gives op_glu of x. *r: op_router of z. Neither reads what the other writes, so a device may run
 * both at once. */
mat op_glu_router(pass *p, mat x, const weight *gate, const weight *up, act_kind act, mat z,
                  const expert_router *to, routing *r);
/* rule NULL: softmax, no scale. */
routing op_router(pass *p, mat x, const weight *w, int32_t k, const route_rule *rule);
routing op_route(pass *p, mat logits, int32_t k, const route_rule *rule);
mat op_moe_glu(pass *p, mat x, routing *r, const weight *gate, const weight *up, act_kind act);
mat op_moe_down(pass *p, mat x, routing r, const weight *down);
/* y[i] = op_moe_down of w[i], n of them; y[i]: [rows, n_out]. Where w[0] has fewer inputs than x has columns, w[i] takes
 * the columns of every head that follow those of w[i - 1]. False as of op_matmul_segments. */
bool op_moe_down_segments(pass *p, const mat *y, mat x, routing r, const weight *w, int32_t n);
/* The same as a branch with that norm, for op_residual: a device may leave the sum to that. */
branch op_moe_branch(pass *p, mat x, routing r, const weight *down, const weight *norm);
/* sum_j r.weight[j] E_j(x) + sigmoid(shared_factor . x) shared(x), E(x) = down(act(gate x) * (up
 * x)), r the choice of op_router. Experts may be on another device than x and the shared one. */
mat op_mixture(pass *p, mat x, const mixture *m);
/* proj (gelu(gate x) * b): what a layer makes of its per-layer embedding b, [rows, gate->n_out]. */
mat op_ple(pass *p, mat x, const weight *gate, mat b, const weight *proj);
/* The matrices of w that r names, each times the row: [rows, k heads, n_out]. */
mat op_moe_matmul(pass *p, mat x, routing r, const weight *w);
/* What op_best chose among the k * n columns of an op_moe_matmul, in the numbering of list[n_list]:
 * output o of matrix e is list[e * n + o]. In place. */
void op_renumber(pass *p, mat best, routing r, const int32_t *list, int32_t n_list, int32_t n);
/* silu of a causal convolution along each row's sequence, channel by channel: y[r, c] =
 * silu(sum_j w[c][j] x[r - (n_taps - 1) + j, c]). A tree's row looks at its ancestors. Rows before
 * the pass are those of rv's store; before the first token they are 0. w: [channels] rows of
 * n_taps. */
mat op_conv(pass *p, mat x, const weight *w, const recur_view *rv);
/* The gated delta rule (Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv 2412.06464), row by
 * row; S: [dv, dk] per value head j.
 *
 *     q, k = c's heads, each divided by sqrt(|x|^2 + 1e-6); q also by sqrt(dk)
 *     S   *= exp(g.a[j] softplus(a[r, j] + g.dt[j]))
 *     e    = sigmoid(b[r, j]) (v - S k)
 *     S   += e k^T
 *     o    = S q
 *
 * o: [rows, n_v heads, dv]; c: [rows, channels], from op_conv. A row's S is its parent's; the first
 * rows take rv's store. */
mat op_delta(pass *p, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv);
/* silu(z) * rms_norm(op_delta(op_conv(x), a, b)), the norm head by head. z: [rows, n_v dv]. */
mat op_delta_unit(pass *p, mat x, mat z, mat a, mat b, const delta_unit *u, const recur_view *rv);
/* From here on the pass has only the rows whose logits are wanted: replaces the n mats by those
 * rows of them and sets p->rows. A second call changes nothing. */
void op_keep_outputs(pass *p, mat *const *x, int32_t n);
/* Row out_row[i] of x for each row i of the pass, all of whose rows are wanted; x has any number of
 * rows. For drafters: some rows of an earlier pass's taps. */
mat op_wanted_rows(pass *p, mat x);
mat op_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids);
/* x, at least low and at most high. */
mat op_clamp(pass *p, mat x, float low, float high);
mat op_clamp_inplace(pass *p, mat x, float low, float high); /* returns x */
/* See ordered_sum. A device without that op adds two at a time: with one y, and the values of v are
 * gone. */
void op_ordered_sum(pass *p, const ordered_sum *s);
/* The mean of every n rows that follow each other. From here on the pass has the wanted rows, which
 * are so many. */
mat op_pool(pass *p, mat x, int32_t n);
mat op_standardize(pass *p, mat x, const weight *shift, const weight *scale); /* returns x */
/* Every n rows that follow each other as one. Then the pass has the wanted rows, as after op_pool.
 */
mat op_merge(pass *p, mat x, int32_t n);
mat op_layer_norm(pass *p, mat x, const weight *w, const weight *b, float eps);
mat op_act(pass *p, mat x, act_kind act); /* in place; returns x */
/* Rows of a table, added up by shares. ids, as floats, and share: [rows, any number]. */
mat op_embed_mix(pass *p, mat ids, mat share, const weight *w);
/* The inputs of a convolution of 3 x 3 with stride 2 and a border of zeros, as rows for a product.
 * x: [times, places heads, channels]. Row i of the result is time first + i / m and place i % m, of
 * which there are n * m, m = (places + 1) / 2; column (c * 3 + a) * 3 + b is x[2 time - 1 + a, 2
 * place - 1 + b, c]. */
mat op_unfold(pass *p, mat x, int32_t first, int32_t n);
/* y[r, c] = sum_j w[c][j] x[r - (n_taps - 1) + j, c], rows before the first being 0. */
mat op_depthwise(pass *p, mat x, const weight *w);
/* See near_rule. q, k, v: [rows, heads, head_dim]; far: [n_near, heads, head_dim]. */
mat op_near(pass *p, mat q, mat k, mat v, mat far, const near_rule *rule);
/* Copies x to `to`, which may be a range of columns (mat_columns). */
void op_copy(pass *p, mat to, mat x);
/* [rows, 2, k]: head 0 has the numbers of the k largest logits of each row, as floats, best first,
 * equal ones in ascending order; head 1 has the natural logarithms of their probabilities, a soft
 * max over all columns. k is 1 to BEST_MAX. In a row with a NaN or +inf, or without a finite
 * logit, numbers are -1 and logarithms NaN. A row's result does not depend on other rows. */
mat op_best(pass *p, mat logits, int32_t k);
/* Moves the pass to that side (pass.h), and replaces the n mats by copies there; a mat without rows
 * stays as it is. Does nothing if the pass is there already. Between two devices neither of which
 * has the host's memory, copies go through the host. */
void op_cross(pass *p, int32_t side, mat *const *x, int32_t n);
/* For as long as it takes: copies of x, and of r, on that side, until op_return brings the result y
 * back and releases what was taken there. x, r: NULL if there is none to copy. If the pass is on
 * that side already, the call changes nothing. */
typedef struct visit {
    int32_t from, to;
    size_t mark;
} visit;
visit op_visit(pass *p, int32_t side, mat *x, routing *r);
mat op_return(pass *p, visit v, mat y);

/* Devices. */
typedef struct cpu_options {
    int32_t n_threads; /* 0: physical cores */
    bool reference;    /* ref.c for every op */
    bool exact_f32;    /* no int8 activations */
    bool no_repack;    /* products read the file's layout */
    int nice;          /* how far its threads give way to others: 0 to 19 */
    const char *isa;   /* NULL: best; "portable", "avx2", "avx512", "avx512bf16", "amx", "neon" */
} cpu_options;

/* d->attend_kernel and d->product_kernel, or what their absence means. */
kernel_speed device_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap);
kernel_speed device_product_kernel(const device *d, const weight *w, char *text, size_t cap);
/* Does it compute this activation, in glu, act_mul and moe_glu? A model may ask before its first
 * pass; ops ask too, and a pass fails with E_UNSUPPORTED where the answer is no. */
bool device_knows_act(const device *d, act_kind act);
/* Does it have the ops of vision towers? */
bool device_knows_vision(const device *d);
/* Those of vision towers, and the three that audio towers have beside them? */
bool device_knows_audio(const device *d);
status device_open_cpu(device **d, const cpu_options *opt, err *e);

typedef struct cuda_options {
    int32_t device;       /* which GPU; 0 the first */
    uint64_t limit_bytes; /* the most that it allocates, reserve_bytes apart; 0: what is free */
    /* A compute capability such as "8.6": kernels are chosen as on a card of that capability.
     * NULL: CARAT_CARD of the environment, or else the GPU's own. E_ARG: unknown; E_UNSUPPORTED:
     * the GPU has less than such a card. */
    const char *card;
} cuda_options;

/* E_UNSUPPORTED, with a sentence, in a build without CUDA and on a machine without a GPU. */
status device_open_cuda(device **d, const cuda_options *opt, err *e);
void device_close(device *d);
/* The device inside all wrappers. */
static inline const device *device_bare(const device *d)
{
    while (d && d->kind == DEVICE_WRAP)
        d = d->inner;
    return d;
}

/* d->move and d->moved, or what their absence means. */
void device_move(device *d, const block_move *m);
void device_moved(device *d);
/* d->keep_rows, or its definition for memory of the host. */
void device_keep_rows(device *d, const row_store *store, int32_t n_stores, int64_t first,
                      const int32_t *from, int32_t n);

/* Wrappers (wrap.c): *d is replaced by a device that does the same and also
 *   trace  writes op, layer, shape and norm of each result,
 *   time   keeps a table of time per op and shape, written when the device is closed,
 *   check  repeats each op on the reference kernels and fails the pass at the first that disagrees.
 * Around a GPU results are downloaded op by op, so nothing is fused and no pass is recorded.
 * Lines go to write(user, text), newline included. Closing the wrapper closes the inner device. */
typedef void (*device_write_fn)(void *user, const char *text);
status device_wrap(device **d, const char *what, device_write_fn write, void *user, err *e);
void device_unwrap(device *d); /* closes the wrapper d alone; d->inner lives on */

enum { DEVICE_OP_TIMES_MAX = 512 };
/* The table of the time wrapper in d: at most cap lines to list, in order of appearance; clear
 * empties it. Returns their number; 0 without such a wrapper. */
int32_t device_op_times(device *d, device_op_time *list, int32_t cap, bool clear);
/* Adds a call to the line of its op, format and shape, if [DEVICE_OP_TIMES_MAX] has room for it. */
void device_add_op_time(device_op_time *list, int32_t *n, const device_op_time *call);
/* The bytes of keys and values that the first n_rows rows see, those that rows of a sequence share
 * counted once. *n_pairs: of row and key. */
uint64_t device_seen_bytes(const rowset *rs, const kv_view *kv, int32_t n_rows, uint64_t *n_pairs);
/* The bytes of a layer's recurrent states: read by every sequence, and written where rows are
 * applied. */
uint64_t device_state_bytes(const step *st, const recur_view *v);

/* A wrapper that sums the squares of what goes into products, for each input of each tensor. */
status device_wrap_inputs(device **d, err *e);
typedef struct device_inputs {
    const char *name; /* of the tensor */
    int32_t n_in, n_mat;
    const double *sum; /* [n_mat][n_in] */
    const int64_t *n;  /* [n_mat]: rows of each matrix */
} device_inputs;
/* Tensor i, in the order of their first products. False: there are no more, or d has no such
 * wrapper. Valid until the next product. */
bool device_inputs_at(const device *d, int32_t i, device_inputs *out);

#endif
