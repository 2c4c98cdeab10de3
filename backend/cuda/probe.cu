/* probe.cu - random numbers, and a comparison bit by bit: blas.c finds out with them which
 * algorithms of the library give the bits of matmul_mma.cu.
 */
#include "backend/cuda/launch_small.h"
#include "backend/cuda/dev.cuh"

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

extern "C" void cu_random_bf16(cudaStream_t s, uint16_t *to, size_t n, uint32_t seed)
{
    LAUNCH(random_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, to, n, seed);
}

extern "C" void cu_count_different(cudaStream_t s, const float *a, const float *b, size_t n,
                                   int32_t *count)
{
    LAUNCH(different_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, s, a, b, n, count);
}
