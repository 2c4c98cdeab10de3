/* plan_only.c - a CUDA device without a GPU: it answers plans and dry passes, for a card that need
 * not be at hand, in every build.
 *
 * Its table of ops, its layouts of weights and its choice of kernels are those of the real device.
 * A dry pass calls no kernel and no runtime, so nothing else is needed. cuBLASLt is taken to be
 * there.
 */
#include "backend/cuda/plan_only.h"
#include "backend/cuda/cuda_int.h"

#include <stdio.h>

status device_plan_cuda(device **d, const char *card, uint64_t n_bytes, err *e)
{
    gpu_facts facts;
    card = card && *card ? card : "8.6";
    *d = NULL;
    status st = card_facts(card, &facts, e);
    if (st)
        return st;
    cuda_device *c = cuda_new_device();
    if (!c || !(c->blas = cuda_blas_plan_only())) {
        if (c)
            device_close(&c->dev);
        return err_memory(e, "the CUDA device", sizeof *c);
    }
    c->facts = cu_gpu = facts; /* the functions below read cu_gpu; no kernel follows */
    c->limit_bytes = n_bytes;
    snprintf(c->name, sizeof c->name, "cuda (planned for compute capability %.8s, %.1f GiB)", card,
             (double)n_bytes * 0x1p-30);
    c->shared_max = SHARED_LEAST;
    c->split = cu_split_limits(c->facts.shared_block);
    cuda_choose_kernels(c);
    if ((st = cuda_choose_prompts(c, false, e))) {
        device_close(&c->dev);
        return st;
    }
    *d = &c->dev;
    return OK;
}
