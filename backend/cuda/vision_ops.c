/* vision_ops.c - the ops of vision towers on a CUDA device. */
#include "backend/cuda/ops_int.h"

void cuda_clamp(pass *p, mat y, mat x, float low, float high)
{
    if (cuda_skip(p, y))
        return;
    cuda_wrote_mat(p, y);
    cu_clamp(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), low, high);
    cuda_done(p, "clamp");
}

void cuda_pool(pass *p, mat y, mat x, int32_t n)
{
    if (cuda_skip(p, y))
        return;
    cuda_wrote_mat(p, y);
    cu_pool(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), n);
    cuda_done(p, "pool");
}

void cuda_standardize(pass *p, mat x, const weight *shift, const weight *scale)
{
    const float *b = p->dry ? NULL : cuda_vector(p, shift),
                *c = p->dry ? NULL : cuda_vector(p, scale);
    if (cuda_skip(p, x))
        return;
    cuda_wrote_mat(p, x);
    cu_standardize(cuda_of(p)->stream, cuda_mat(x), b, c);
    cuda_done(p, "standardize");
}

void cuda_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps)
{
    const float *wv = p->dry ? NULL : cuda_vector(p, w), *bv = p->dry || !b ? NULL : cuda_vector(p, b);
    if (cuda_skip(p, y))
        return;
    cuda_wrote_mat(p, y);
    cu_layer_norm(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), wv, bv, eps);
    cuda_done(p, "layer_norm");
}

void cuda_act(pass *p, mat x, act_kind act)
{
    if (cuda_skip(p, x))
        return;
    cuda_wrote_mat(p, x);
    cu_act(cuda_of(p)->stream, cuda_mat(x), (int)act);
    cuda_done(p, "act");
}

void cuda_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w)
{
    if (cuda_skip(p, y) || !cuda_loaded(p, w))
        return;
    cuda_wrote_mat(p, y);
    cu_embed_mix(cuda_of(p)->stream, cuda_mat(y), w->packed, (int)w->type, w->row_bytes,
                 cuda_mat(ids), cuda_mat(share));
    cuda_done(p, "embed_mix");
}
