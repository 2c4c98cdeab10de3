/* probe.cu - what the device finds out about itself: random numbers and a comparison bit by bit, by
 * which blas.c learns which algorithms of the library give the bits of matmul_mma.cu; launches and
 * reading, whose times op_times.c takes.
 */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/dev.cuh"

#ifdef CARAT_MARKS
mark_list cu_marks;
#endif

/* A hash of the place, as bf16 between -1 and 1 with eight random bits.
 * grid:   a thread per number
 * shared: none
 * bound:  writing */
__global__ void __launch_bounds__(256) random_kernel(uint16_t *to, size_t n, uint32_t seed)
{
    size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n)
        return;
    uint32_t h = (uint32_t)i * 0x9e3779b1u ^ (uint32_t)(i >> 32) ^ seed * 0x85ebca6bu;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    h ^= h >> 15;
    to[i] = (uint16_t)f32_to_bf16((float)(int)(h & 0xffff) * 0x1p-15f - 1.0f);
}

/* *count += floats of a and b whose bits differ.
 * grid:   a thread per float
 * shared: none
 * bound:  reading */
__global__ void __launch_bounds__(256)
    different_kernel(const float *a, const float *b, size_t n, int32_t *count)
{
    size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n && __float_as_uint(a[i]) != __float_as_uint(b[i]))
        atomicAdd(count, 1);
}

/* What a launch costs in a recording.
 * grid:   one block
 * shared: none
 * bound:  launching */
__global__ void __launch_bounds__(32) nothing_kernel(int32_t)
{
    grid_trigger();
    grid_wait();
}

/* The sum of all words goes to no place that is there: so every word is read.
 * grid:   eight blocks to a multiprocessor, a thread 64 bytes at a time
 * shared: none
 * bound:  reading: this is the rate that other kernels are compared with */
__global__ void __launch_bounds__(256)
    read_kernel(const uint4 *from, size_t n_lines, uint32_t never, uint32_t *to)
{
    uint32_t sum = 0;
    const size_t n = (size_t)gridDim.x * 256;
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < n_lines; i += n) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = from[i + (size_t)k * n_lines];
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == never)
        *to = sum;
}

extern "C" void cu_nothing(cudaStream_t s)
{
    LAUNCH(nothing_kernel, dim3(1), dim3(32), 0, s, 0);
}

extern "C" void cu_read(cudaStream_t s, const void *from, size_t n_bytes, int n_sm)
{
    LAUNCH(read_kernel, dim3((unsigned)(8 * n_sm)), dim3(256), 0, s, (const uint4 *)from,
           n_bytes / 64, 0x5eed5eedu, (uint32_t *)from);
}

extern "C" void cu_random_bf16(cudaStream_t s, uint16_t *to, size_t n, uint32_t seed)
{
    LAUNCH(random_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, to, n, seed);
}

extern "C" void cu_count_different(cudaStream_t s, const float *a, const float *b, size_t n,
                                   int32_t *count)
{
    LAUNCH(different_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, a, b, n, count);
}
