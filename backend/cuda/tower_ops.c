/* tower_ops.c - the ops of vision and audio towers on a CUDA device. */
#include "backend/cuda/ops_int.h"

void cuda_clamp(pass *p, mat y, mat x, float low, float high)
{
    CUDA_OP(p, "clamp", y, cu_clamp(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), low, high));
}

void cuda_pool(pass *p, mat y, mat x, int32_t n)
{
    CUDA_OP(p, "pool", y, cu_pool(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), n));
}

void cuda_standardize(pass *p, mat x, const weight *shift, const weight *scale)
{
    const float *b = cuda_vector(p, shift), *c = cuda_vector(p, scale);
    CUDA_OP(p, "standardize", x, cu_standardize(cuda_of(p)->stream, cuda_mat(x), b, c));
}

void cuda_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps)
{
    const float *wv = cuda_vector(p, w), *bv = cuda_vector(p, b);
    CUDA_OP(p, "layer_norm", y,
            cu_layer_norm(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), wv, bv, eps));
}

void cuda_act(pass *p, mat x, act_kind act)
{
    CUDA_OP(p, "act", x, cu_act(cuda_of(p)->stream, cuda_mat(x), (int)act));
}

void cuda_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w)
{
    if (cuda_loaded(p, w))
        CUDA_OP(p, "embed_mix", y,
                cu_embed_mix(cuda_of(p)->stream, cuda_mat(y), w->packed, (int)w->type, w->row_bytes,
                             cuda_mat(ids), cuda_mat(share)));
}

/* ---- Sound ---- */

void cuda_unfold(pass *p, mat y, mat x, int32_t first)
{
    CUDA_OP(p, "unfold", y,
            cu_unfold(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), x.heads, first));
}

void cuda_depthwise(pass *p, mat y, mat x, const weight *w)
{
    const float *taps = cuda_vector(p, w);
    CUDA_OP(p, "depthwise", y,
            cu_depthwise(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), taps, w->n_in));
}

void cuda_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule)
{
    near_args a = {.o = cuda_mat(o),
                   .q = cuda_mat(q),
                   .k = cuda_mat(k),
                   .v = cuda_mat(v),
                   .far = cuda_mat(far),
                   .heads = q.heads,
                   .n_near = rule->n_near,
                   .scale = cuda_vector(p, rule->scale),
                   .c = rule->c,
                   .k_factor = rule->k_factor,
                   .cap = rule->cap};
    CUDA_OP(p, "near", o, cu_near(cuda_of(p)->stream, a));
}
