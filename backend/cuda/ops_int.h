/* ops_int.h - the beginning and the end of every op of the CUDA device, and what its ops ask
 * of weights. Host code, for ops.c and its siblings *_ops.c.
 */
#ifndef BACKEND_CUDA_OPS_INT_H
#define BACKEND_CUDA_OPS_INT_H

#include "backend/cuda/cuda_int.h"

/* A weight that a vector op reads: its floats on the device. NULL without a weight, in a dry pass,
 * and, with an error, where it is not loaded. */
static inline const float *cuda_vector(pass *p, const weight *w)
{
    if (w && !w->packed && !p->dry)
        err_set(&p->e, E_ARG, "tensor %s is not on the device", w->name);
    return w && !p->dry ? w->packed : NULL;
}

static inline bool cuda_idle(const pass *p, mat y)
{
    return p->dry || pass_failed(p) || y.rows == 0;
}

/* True: there is nothing to do. False: the GPU is selected. */
static inline bool cuda_skip(const pass *p, mat y)
{
    if (cuda_idle(p, y))
        return true;
    cuda_select(p->dev);
    return false;
}

static inline const step_rows *cuda_step_rows(const pass *p)
{
    const cuda_device *c = cuda_of(p);
    return p->rows == &p->st->out ? &c->rows_out : &c->rows_all;
}

/* The rows with the numbers of the view's kind of store. */
static inline dev_rows cuda_rows(const step_rows *r, const kv_view *kv)
{
    const row_keys *k = &r->keys[kv->kind];
    dev_rows d = r->rows;
    d.index = k->index;
    d.first = k->first;
    d.newest = newest_keys(k, kv);
    d.seen = kv_by_tree(kv) ? r->seen : NULL;
    return d;
}

static inline dev_step cuda_step(const pass *p, const kv_view *kv)
{
    return (dev_step){cuda_rows(cuda_step_rows(p), kv), cuda_of(p)->kv, p->st->n_kv};
}

/* For kernels that look at no keys. */
static inline dev_step cuda_step_without_keys(const pass *p)
{
    return (dev_step){cuda_step_rows(p)->rows, cuda_of(p)->kv, p->st->n_kv};
}

/* After launches: takes the error of one that failed. A dry pass launches nothing. */
static inline void cuda_done(pass *p, const char *op)
{
    if (p->dry)
        return;
    cudaError_t r = cudaGetLastError();
    if (r != cudaSuccess)
        cuda_ok(cuda_of(p), p, r, op);
    cuda_of(p)->after_edge = false;
    if (cuda_of(p)->splits)
        cuda_mark_op(p, op);
}

/* In a dry pass no weight need be. */
static inline bool cuda_loaded(pass *p, const weight *w)
{
    if (!w->packed && !p->dry)
        err_set(&p->e, E_ARG, "tensor %s is not on the device", w->name);
    return w->packed || p->dry;
}

/* All of an op. */
#define CUDA_OP(p, name, y, call)                                                                  \
    do {                                                                                           \
        if (cuda_skip(p, y))                                                                       \
            break;                                                                                 \
        call;                                                                                      \
        cuda_done(p, name);                                                                        \
    } while (0)

/* Do the rows of this pass take the kernels of few rows? Those of answers do. */
static inline bool cuda_few(const pass *p)
{
    return !p->st->prompt;
}

/* Rows first to first + n of a copy; `first` is a multiple of 8. */
static inline dev_quant some_of_copy(dev_quant q, int32_t first, int32_t n)
{
    if (q.q) {
        q.q += (size_t)first * (size_t)q.cols;
        q.s = (char *)q.s + (size_t)first * (size_t)(q.cols / GROUP) * 8;
    }
    q.rows = n;
    return q;
}

/* The layout of a weight on this device; in a dry pass the weight need not be loaded. */
static inline int32_t cuda_kind(const pass *p, const weight *w)
{
    if (w->packed)
        return w->packed_kind;
    weight v = *w;
    v.gather = false;
    return p->dry ? cuda_pack_kind(&v) : PACK_NONE;
}

static inline bool cuda_is_float(int32_t kind)
{
    return kind == PACK_F32 || kind == PACK_F16 || kind == PACK_BF16;
}

/* Do the kernels that join both products of a gated unit know its activation? Those of experts do.
 */
static inline bool cuda_gates(act_kind act)
{
    return act == ACT_GELU_TANH || act == ACT_SILU || act == ACT_SWIGLU_CUT;
}

/* Can one kernel of block products read gate and up together? */
static inline bool cuda_pairs(const pass *p, const weight *gate, const weight *up, int32_t n_ff)
{
    int32_t kind = cuda_kind(p, gate);
    return !cuda_is_float(kind) && (up ? cuda_kind(p, up) == kind : n_ff % TILE_ROWS == 0);
}

/* For products of answers, and of prompts by int8. They add a row's parts in an order that follows
 * n_tile, and find its end by n_out. So n_tile is that of the whole matrix, where w is a rank's
 * part of it (weight.n_out_all). */
static inline packed cuda_answers_view(const weight *w)
{
    packed v = cuda_view(w);
    if (w->n_out_all && w->n_mat == 1)
        v.n_tile = (w->n_out_all + TILE_ROWS - 1) / TILE_ROWS;
    return v;
}

static inline product_args cuda_pair_args(const weight *gate, const weight *up, int32_t n_ff,
                                          act_kind act)
{
    product_args a = {
        .w = cuda_answers_view(gate), .n_out = n_ff, .glu = true, .silu = act == ACT_SILU};
    a.up = up ? cuda_answers_view(up) : a.w;
    a.up_row = up ? 0 : n_ff;
    return a;
}

/* ---- ops.c ---- */

void cuda_matmul(pass *p, mat y, mat *x, const weight *w);
void cuda_act_mul(pass *p, mat *y, mat a, mat b, act_kind act);
void cuda_rope(pass *p, mat x, const rope *f);

/* ---- head_ops.c ---- */

bool cuda_heads_fit(mat y, mat x); /* does heads_kernel know them? */
void cuda_norm_heads(pass *p, mat y, mat x, const float *w, float eps);
void cuda_qkv(pass *p, mat *q, mat v, const qkv *a, const kv_view *kv);

/* ---- attend_ops.c ---- */

dev_kv cuda_view_of(pass *p, const kv_view *v); /* with the weights that kernels read */
bool cuda_stores(pass *p, const kv_view *kv);   /* false: an error of the pass */

/* ---- tower_ops.c ---- */

void cuda_clamp(pass *p, mat y, mat x, float low, float high);
void cuda_pool(pass *p, mat y, mat x, int32_t n);
void cuda_standardize(pass *p, mat x, const weight *shift, const weight *scale);
void cuda_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps);
void cuda_act(pass *p, mat x, act_kind act);
void cuda_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w);
void cuda_unfold(pass *p, mat y, mat x, int32_t first);
void cuda_depthwise(pass *p, mat y, mat x, const weight *w);
void cuda_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule);

/* ---- moe_ops.c ---- */

void cuda_route(pass *p, routing r, mat logits, const route_rule *rule);
void cuda_router(pass *p, routing *r, mat x, const weight *w, const route_rule *rule);
/* beside: the kernel before is a gated unit that lets the next one begin late. */
void cuda_router_beside(pass *p, routing *r, mat x, const expert_router *to, bool beside);
void cuda_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                  act_kind act);
void cuda_moe_down(pass *p, mat y, mat x, routing r, const weight *down);
bool cuda_moe_parts(pass *p, mat parts, mat x, routing r, const weight *down);
bool cuda_moe_down_segments(pass *p, const mat *y, mat x, routing r, const weight *w, int32_t n);
bool cuda_mixture(pass *p, mat y, mat x, const mixture *m, const mat *part);
void cuda_moe_matmul(pass *p, mat y, mat *x, routing r, const weight *w);
void cuda_renumber(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n);

#endif
