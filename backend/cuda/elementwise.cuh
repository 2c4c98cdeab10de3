/* elementwise.cuh - a matrix whose values are made one by one. */
#ifndef BACKEND_CUDA_ELEMENTWISE_CUH
#define BACKEND_CUDA_ELEMENTWISE_CUH

#include "backend/cuda/dev.cuh"

DEV float value_of(const dev_mat &m, int64_t r, int i)
{
    return m.at[r * m.stride + i];
}

/* y[r, i] = of(r, i); of reads y[r, i] or no value of y.
 * grid:   row x 256 columns
 * shared: none
 * bound:  latency at few rows, bandwidth at many */
template <class OF> __global__ void each_value_kernel(dev_mat y, OF of)
{
    grid_trigger();
    grid_wait();
    int i = (int)(blockIdx.y * 256 + threadIdx.x), r = (int)blockIdx.x;
    if (i < y.cols)
        y.at[r * y.stride + i] = of(r, i);
}

/* of: [=] __device__(int r, int i) { return the value; } */
template <class OF> void each_value(cudaStream_t s, dev_mat y, const OF &of)
{
    LAUNCH(each_value_kernel<OF>, dim3((unsigned)y.rows, (unsigned)((y.cols + 255) / 256)),
           dim3(256), 0, s, y, of);
}

#endif
