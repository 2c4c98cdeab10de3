/* own.cuh - experts of which a rank of a tensor split has some. */
#ifndef BACKEND_CUDA_OWN_CUH
#define BACKEND_CUDA_OWN_CUH

#include "backend/cuda/dev.cuh"
#include "backend/cuda/product/launch_products.h"

/* The expert's matrix; -1: it is not among them. */
DEV int own_mat(const expert_range &own, int expert)
{
    const int k = expert - own.first;
    return k >= 0 && k < own.n ? k : -1;
}

#endif
