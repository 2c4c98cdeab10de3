/* audio_ops.c - the ops of audio towers on a CUDA device. */
#include "backend/cuda/ops_int.h"

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
