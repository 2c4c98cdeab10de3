/* emu.h - the CUDA kernels on a CPU, for tests: the same .cu files, compiled by a C++ compiler.
 *
 *     thread   a fiber on one OS thread; a barrier or a warp-wide exchange switches to the next
 *     block    its fibers; blocks run one after the other
 *     record   launches and copies with their arguments; to wait for the stream meanwhile fails
 *     GPUs     two unequal ones; a launch needs its stream's GPU to be current, and the shared
 *              memory that this GPU has granted the kernel
 *
 * So a kernel's arithmetic, indexing, barriers and tails are tested without a GPU, and the address
 * sanitizer checks every access of device memory. Hidden are speed, what two kernels do to each
 * other, and races between warps that the fixed order of fibers avoids. The Makefile (cuda-emu)
 * includes this file before every .cu. Intrinsics of CUDA C++ are here; where a kernel's text is PTX,
 * the headers of backend/cuda have another one, mainly dev.cuh, mma.cuh and hopper.cuh.
 *
 * EMU_ORDER=SEED in the environment changes the order, block by block: blocks come in any order; in
 * every second one a warp runs from one barrier of the block to the next before another begins, and
 * its lanes begin anywhere; in every second one asynchronous copies arrive as late as allowed, and
 * their targets are NaN until then. So a barrier that is missing shows as a wrong result. What such
 * a run finds at one seed it may miss at another.
 */
#ifndef TESTS_CUDA_EMU_H
#define TESTS_CUDA_EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_runtime_api.h"

#define CARAT_EMU 1
#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) int2 {
    int32_t x, y;
};
struct alignas(16) int4 {
    int32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return uint2{x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return uint4{x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

struct emu_fiber;
extern emu_fiber *emu_now;
extern dim3 emu_block_idx, emu_block_dim, emu_grid_dim;
const dim3 &emu_thread_idx();
#define threadIdx (emu_thread_idx())
#define blockIdx emu_block_idx
#define blockDim emu_block_dim
#define gridDim emu_grid_dim

void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);
void emu_named_barrier(int id, int n_threads);
/* Gives `mine` (n words) to the warp and returns the warp's table: 32 rows of 32 words. Valid until
 * emu_warp_done, which every lane calls. */
const uint32_t (*emu_warp_give(const uint32_t *mine, int n))[32];
void emu_warp_done();
int emu_lane();
void *emu_dyn_shared(); /* at a multiple of 1024 */
/* Runs the other threads; ends the program at the ten millionth try. */
void emu_yield(long tries, const char *what);

/* This thread's share of a warpgroup's asynchronous product (hopper.cuh): d[64 x n] = or += A[64 x
 * 16] B', operands as the descriptors say. In every second block it is computed when it is issued,
 * in the others as late as allowed. So results that are read too early and operands that are
 * overwritten too early both show. */
struct emu_product {
    float *d;
    uint64_t a, b;
    const uint32_t *a_regs; /* A instead of a: this thread's fragment */
    int n;
    bool b_across, sum; /* B lies in rows of its n columns; D is added to */
    bool bf16;          /* operands are bf16, else f16 */
};
void emu_product_issue(const emu_product *p);
void emu_product_commit();
void emu_product_wait(int n); /* all but the last n commits */

/* An asynchronous copy to shared memory of n bytes; from NULL: of zeros. The barriers of
 * copy_commit and copy_wait are the thread's own. */
bool emu_copies_are_late();
void emu_copy_late(void *to, const void *from, int n);
void emu_copy_commit();
void emu_copy_wait(int n); /* all but the last n commits; -1: what is not committed too */
template <int N> static inline void emu_copy_async(void *to, const void *from)
{
    to = __builtin_assume_aligned(to, N);
    from = from ? __builtin_assume_aligned(from, N) : NULL;
    if (emu_copies_are_late())
        emu_copy_late(to, from, N);
    else if (from)
        memcpy(to, from, N);
    else
        memset(to, 0, N);
}

template <class F> void emu_call(void *f)
{
    (*(F *)f)();
}
void emu_run(dim3 grid, dim3 block, size_t shared_bytes, void (*call)(void *), void *f);
/* May the thread's current GPU run this launch? If not, it fails with the runtime's error. */
bool emu_may_launch(const void *kernel, size_t shared_bytes, cudaStream_t s);
int emu_allow_shared(const void *kernel, int bytes); /* on the current GPU; a CUDA error, or 0 */
/* A running kernel calls it: it has so many bytes of shared memory beside the dynamic ones. Fails
 * as the runtime does where both are more than a block may have. Not in recordings. */
void emu_static_shared(size_t bytes, size_t most);
template <class K> const void *emu_address(K *kernel)
{
    return (const void *)kernel;
}
/* A launch with a copy of its arguments, for a stream that is being recorded. */
bool emu_records(cudaStream_t s);
void emu_record(cudaStream_t s, dim3 grid, dim3 block, size_t shared_bytes, void (*call)(void *),
                void (*drop)(void *), void *f);
template <class F> void emu_drop(void *f)
{
    delete (F *)f;
}
template <class F>
void emu_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t s, F f)
{
    if (!emu_may_launch(kernel, shared_bytes, s))
        return;
    if (emu_records(s))
        emu_record(s, grid, block, shared_bytes, emu_call<F>, emu_drop<F>, new F(f));
    else
        emu_run(grid, block, shared_bytes, emu_call<F>, &f);
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    emu_launch(emu_address(kernel), grid, block, shared_bytes, stream, [=] { kernel(__VA_ARGS__); })
#define DYN_SHARED(type, name) type *name = (type *)emu_dyn_shared()

template <class T> T __ldg(const T *p)
{
    return *p;
}
static inline float __int_as_float(int32_t i)
{
    float f;
    memcpy(&f, &i, 4);
    return f;
}
static inline int32_t __float_as_int(float f)
{
    int32_t i;
    memcpy(&i, &f, 4);
    return i;
}
static inline uint32_t __float_as_uint(float f)
{
    return (uint32_t)__float_as_int(f);
}
static inline float __uint_as_float(uint32_t u)
{
    return __int_as_float((int32_t)u);
}
static inline int atomicAdd(int *p, int v)
{
    int old = *p;
    *p += v;
    return old;
}
static inline unsigned atomicAdd(unsigned *p, unsigned v)
{
    unsigned old = *p;
    *p += v;
    return old;
}
static inline unsigned atomicExch(unsigned *p, unsigned v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    unsigned long long old = *p;
    *p += v;
    return old;
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline void sincospif(float x, float *sn, float *cs)
{
    double angle = 3.14159265358979323846 * (double)x;
    *sn = (float)sin(angle), *cs = (float)cos(angle);
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which)
{
    uint64_t all = a | (uint64_t)b << 32;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return v;
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int)(int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
static inline int __popc(uint32_t v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
template <class T> T __ldcg(const T *p)
{
    return *p;
}

/* ---- Exchanges of a whole warp ---------------------------------------------------------------- */

/* The lane that a lane reads may be any number. */
static inline uint32_t __shfl_sync(unsigned, uint32_t v, int from)
{
    uint32_t r = emu_warp_give(&v, 1)[from & 31][0];
    emu_warp_done();
    return r;
}
static inline uint32_t __shfl_xor_sync(unsigned all, uint32_t v, int mask)
{
    return __shfl_sync(all, v, emu_lane() ^ mask);
}
static inline double __shfl_xor_sync(unsigned all, double v, int mask)
{
    uint32_t u[2];
    memcpy(u, &v, 8);
    u[0] = __shfl_xor_sync(all, u[0], mask);
    u[1] = __shfl_xor_sync(all, u[1], mask);
    memcpy(&v, u, 8);
    return v;
}
static inline uint32_t __reduce_max_sync(unsigned all, uint32_t v)
{
    for (int m = 16; m; m >>= 1) {
        uint32_t o = __shfl_xor_sync(all, v, m);
        v = o > v ? o : v;
    }
    return v;
}
static inline int __reduce_add_sync(unsigned all, int v)
{
    for (int m = 16; m; m >>= 1)
        v += (int)__shfl_xor_sync(all, (uint32_t)v, m);
    return v;
}
static inline bool __any_sync(unsigned all, bool v)
{
    return __reduce_max_sync(all, v);
}
static inline uint32_t __ballot_sync(unsigned all, bool v)
{
    return (uint32_t)__reduce_add_sync(all, (int)((uint32_t)v << emu_lane()));
}
#endif
