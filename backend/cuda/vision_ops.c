/* vision_ops.c - the ops of vision towers on a CUDA device. */
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
