/* audio_ops.c - the ops of audio towers on a CUDA device. */
#include "backend/cuda/ops_int.h"

void cuda_unfold(pass *p, mat y, mat x, int32_t first)
{
    if (cuda_skip(p, y))
        return;
    cuda_wrote_mat(p, y);
    cu_unfold(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), x.heads, first);
    cuda_done(p, "unfold");
}

void cuda_depthwise(pass *p, mat y, mat x, const weight *w)
{
    const float *taps = p->dry ? NULL : cuda_vector(p, w);
    if (cuda_skip(p, y))
        return;
    cuda_wrote_mat(p, y);
    cu_depthwise(cuda_of(p)->stream, cuda_mat(y), cuda_mat(x), taps, w->n_in);
    cuda_done(p, "depthwise");
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
                   .scale = p->dry ? NULL : cuda_vector(p, rule->scale),
                   .c = rule->c,
                   .k_factor = rule->k_factor,
                   .cap = rule->cap};
    if (cuda_skip(p, o))
        return;
    cuda_wrote_mat(p, o);
    cu_near(cuda_of(p)->stream, a);
    cuda_done(p, "near");
}
