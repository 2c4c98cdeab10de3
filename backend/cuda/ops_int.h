/* ops_int.h - the beginning and the end of every op of the CUDA device, for ops.c and attend_ops.c.
 * Host code.
 */
#ifndef BACKEND_CUDA_OPS_INT_H
#define BACKEND_CUDA_OPS_INT_H

#include "backend/cuda/cuda_int.h"

/* A weight that a vector op reads: its floats on the device. NULL without a weight, and, with an
 * error, where it is not loaded. */
static inline const float *cuda_vector(pass *p, const weight *w)
{
    if (w && !w->packed)
        err_set(&p->e, E_ARG, "tensor %s is not on the device", w->name);
    return w ? w->packed : NULL;
}

static inline bool cuda_idle(const pass *p, mat y)
{
    return p->dry || pass_failed(p) || y.rows == 0;
}

/* True: there is nothing to do. False: waiting ops are launched, and the GPU is selected. */
static inline bool cuda_skip(const pass *p, mat y)
{
    if (cuda_idle(p, y))
        return true;
    cuda_settle(cuda_of(p));
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
    bool all = kv->inside == KV_INSIDE_ALL;
    dev_rows d = r->rows;
    d.index = k->index;
    d.first = k->first;
    d.newest = all ? k->last : k->index;
    d.seen = all ? NULL : r->seen;
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

/* Takes the error of a launch that failed. */
static inline void cuda_done(pass *p, const char *op)
{
    cudaError_t r = cudaGetLastError();
    if (r != cudaSuccess)
        cuda_ok(cuda_of(p), p, r, op);
}

#endif
