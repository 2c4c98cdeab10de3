/* dev.cuh - what kernels share: launching, conversions, arithmetic, warps, blocks. mma.cuh has what
 * tensor cores and asynchronous copies need, activations.cuh activations and their int8 copies.
 *
 * Here and in mma.cuh the text depends on how it is compiled: by nvcc for a GPU, or by a C++
 * compiler against tests/cuda/emu.h, where a warp is 32 fibers.
 */
#ifndef BACKEND_CUDA_DEV_CUH
#define BACKEND_CUDA_DEV_CUH

#include "backend/cuda/launch.h"

#include <stdint.h>

#ifndef CARAT_EMU
#include <cuda_runtime.h>
#ifdef CARAT_MARKS
#include "backend/cuda/marks.cuh"
#endif
template <class... P, class... A>
static inline void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, A &&...a)
{
#ifdef CARAT_MARKS
    marks_open(CARAT_MARKS);
#endif
    /* Kernels overlap on a multiprocessor only if they want the same split of its memory. */
    cudaLaunchAttribute with[2] = {};
    with[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    with[0].val.programmaticStreamSerializationAllowed = 1;
#if CUDART_VERSION >= 12080
    with[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    with[1].val.sharedMemCarveout = 100;
#endif
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared_bytes;
    c.stream = stream;
    c.attrs = with;
    c.numAttrs = !cu_gpu.overlap ? 0 : CUDART_VERSION >= 12080 ? 2 : 1;
    cudaLaunchKernelEx(&c, kernel, static_cast<P>(a)...);
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    launch(kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
#define DYN_SHARED(type, name)                                                                     \
    extern __shared__ __align__(128) unsigned char dyn_shared_[];                                  \
    type *name = (type *)dyn_shared_
#endif

/* Once per kernel and GPU, at open: allows launches with so many bytes of dynamic shared memory.
 * Returns a CUDA error, or 0. */
template <class F> static inline int allow_shared(F *kernel, int bytes)
{
#ifdef CARAT_EMU
    return emu_allow_shared((const void *)kernel, bytes);
#else
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
#endif
}

#define DEV __device__ __forceinline__

/* ---- One kernel under the tail of another ------------------------------------------------- */

/*     kernel A  ....work....grid_trigger....work....end
 *     kernel B                          ....weights....grid_wait....work
 *
 * grid_trigger lets the next kernel start beside this one. grid_wait blocks until all earlier
 * kernels have ended. A kernel calls it before it touches memory that others write or read; weights
 * may be read before. Every grid has a block that waits, so a kernel ends after its predecessor,
 * and the order of any number of kernels holds. Other blocks without work may return without
 * waiting. Where a kernel is told that what it reads was written before its predecessor could
 * begin, it reads that without a wait, and by load_fresh: the first cache of its multiprocessor may
 * hold older bytes. */
#if !defined(CARAT_EMU) && __CUDA_ARCH__ >= 900
DEV void grid_wait()
{
#ifdef CARAT_MARKS
    const unsigned long long t0 = mark_now();
#endif
    asm volatile("griddepcontrol.wait;" ::: "memory");
#ifdef CARAT_MARKS
    mark_put(t0);
#endif
}
DEV void grid_trigger()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
DEV void grid_wait()
{
}
DEV void grid_trigger()
{
}
#endif

/* ---- Conversions -------------------------------------------------------------------------- */

DEV float bf16_to_f32(uint32_t h)
{
    return __uint_as_float(h << 16);
}
/* To nearest even; NaN stays NaN. */
DEV uint32_t f32_to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (u >> 16) | 64;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
#ifdef CARAT_EMU
DEV float f16_to_f32(uint32_t h)
{
    _Float16 x;
    uint16_t u = (uint16_t)h;
    memcpy(&x, &u, 2);
    return (float)x;
}
DEV uint32_t f32_to_f16(float f)
{
    _Float16 x = (_Float16)f;
    uint16_t u;
    memcpy(&u, &x, 2);
    return u;
}
DEV uint32_t f32x2_to_bf16(float lo, float hi)
{
    return f32_to_bf16(lo) | f32_to_bf16(hi) << 16;
}
#else
DEV float f16_to_f32(uint32_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)h));
    return f;
}
DEV uint32_t f32_to_f16(float f)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
DEV uint32_t f32x2_to_bf16(float lo, float hi)
{
    uint32_t u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(hi), "f"(lo));
    return u;
}
#endif
DEV uint32_t f32x2_to_f16(float lo, float hi)
{
    return f32_to_f16(lo) | f32_to_f16(hi) << 16;
}

/* ---- Warps -------------------------------------------------------------------------------- */

DEV int lane_id()
{
    return (int)(threadIdx.x & 31);
}

/* The same, read again: the compiler then keeps nothing derived from it in registers across a
 * loop. */
#ifdef CARAT_EMU
DEV int lane_id_anew()
{
    return lane_id();
}
#else
DEV int lane_id_anew()
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
#endif

DEV uint32_t shfl_xor_u32(uint32_t v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
DEV uint32_t shfl_u32(uint32_t v, int from)
{
    return __shfl_sync(0xffffffffu, v, from);
}
DEV float shfl_xor_f32(float v, int mask)
{
    return __uint_as_float(shfl_xor_u32(__float_as_uint(v), mask));
}
DEV float shfl_f32(float v, int from)
{
    return __uint_as_float(shfl_u32(__float_as_uint(v), from));
}
/* Sum over 2 * from neighbouring lanes, in one order; every lane gets it. */
DEV float warp_sum(float v, int from = 16)
{
    for (int m = from; m; m >>= 1)
        v += shfl_xor_f32(v, m);
    return v;
}
DEV int warp_sum_i32(int v, int from = 16)
{
    for (int m = from; m; m >>= 1)
        v += (int)shfl_xor_u32((uint32_t)v, m);
    return v;
}
DEV float warp_max(float v)
{
    for (int m = 16; m; m >>= 1) {
        float o = shfl_xor_f32(v, m);
        v = o > v ? o : v;
    }
    return v;
}
DEV uint32_t warp_max_u32(uint32_t v)
{
    return __reduce_max_sync(0xffffffffu, v);
}
DEV int warp_count(int v)
{
    return __reduce_add_sync(0xffffffffu, v);
}
DEV bool warp_any(bool v)
{
    return __any_sync(0xffffffffu, v);
}
/* Bit i: lane i's v. */
DEV uint32_t warp_votes(bool v)
{
    return __ballot_sync(0xffffffffu, v);
}
DEV int bits_set(uint32_t v)
{
    return __popc(v);
}
/* The number of the lowest bit that is set; v is not 0. */
DEV int lowest_bit(uint32_t v)
{
    return __ffs((int)v) - 1;
}
/* Earlier writes of this thread are visible everywhere before its later ones. */
DEV void write_fence()
{
    __threadfence();
}
/* The same for the threads of the block. */
DEV void block_fence()
{
    __threadfence_block();
}
/* A read that bypasses the first cache: for values that other blocks of this launch wrote. */
template <class T> DEV T load_fresh(const T *p)
{
    return __ldcg(p);
}
#ifdef CARAT_EMU
/* A barrier of n threads of a block, in whole warps. id: 0 to 15; __syncthreads has 0. */
DEV void some_sync(int id, int n)
{
    emu_named_barrier(id, n);
}
/* In a loop that waits for another warp of the block. */
DEV void spin(long tries, const char *what)
{
    emu_yield(tries, what);
}
DEV void prefetch(const void *)
{
}
#else
DEV void some_sync(int id, int n)
{
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(n) : "memory");
}
DEV void spin(long, const char *)
{
}
DEV void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
#endif

/* By a whole warp, before grid_wait: the table of places comes to the second cache, from which the
 * weights of a whole token have pushed it out. */
DEV void expect_places(const packed &w)
{
    enum { PER_LINE = 16 };
    for (int e = lane_id() * PER_LINE; w.where && e < w.n_mat; e += 32 * PER_LINE)
        prefetch(w.where + e);
}
/* From the planes of matrix 0 to those of matrix e, in bytes. */
DEV size_t mat_at(const packed &w, size_t e)
{
    return w.where ? (size_t)load_fresh(w.where + e) : e * w.mat_bytes;
}

/* Sum over a block of any number of whole warps; all threads get it. table: 32 floats. Begins and
 * ends with a barrier, so table may be used again at once. */
DEV float block_sum(float v, float *table)
{
    int n_warps = (int)(blockDim.x >> 5);
    v = warp_sum(v);
    __syncthreads();
    if (lane_id() == 0)
        table[threadIdx.x >> 5] = v;
    __syncthreads();
    float s = 0;
    for (int i = 0; i < n_warps; i++)
        s += table[i];
    __syncthreads();
    return s;
}

/* ---- Shared memory -------------------------------------------------------------------------- */

/* Bytes from the beginning of a block of 64 columns of 16-bit values to the 16-byte piece p of a
 * row. Rows have 128 bytes; piece p lies at place p ^ (row & 7), so that neither 8 rows of a piece
 * nor 8 pieces of a row share a bank. */
DEV int piece_at(int row, int p)
{
    return row * 128 + ((p ^ (row & 7)) << 4);
}

/* ---- Arithmetic, bytes, registers ----------------------------------------------------------- */

DEV float fma_rn(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
DEV float mul_rn(float a, float b)
{
    return __fmul_rn(a, b);
}
/* Four of the eight bytes of b:a, where a's come first: one hexadecimal digit of `which` each. */
DEV uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    return __byte_perm(a, b, which);
}

#ifdef CARAT_EMU
/* The same in one instruction, without a mask of the digits. A digit of 8 and more stands for the
 * sign of byte digit - 8, in all eight bits. */
DEV uint32_t pick_by(uint32_t a, uint32_t b, uint32_t which)
{
    uint32_t v = pick_bytes(a, b, which);
    for (int i = 0; i < 4; i++)
        if (which >> 4 * i & 8)
            v = (v & ~(0xffu << 8 * i)) | (v >> (8 * i + 7) & 1 ? 0xffu << 8 * i : 0);
    return v;
}
/* p, with its origin hidden from the compiler; it points to global memory. */
template <class T> DEV T *opaque(T *p)
{
    return p;
}
/* v in a register, where two of three operands would be constants. */
DEV uint32_t in_register(uint32_t v)
{
    return v;
}
/* An address in shared memory; the word so many bytes after it. */
DEV const uint32_t *opaque_shared(const uint32_t *p)
{
    return p;
}
DEV uint32_t load_shared(const uint32_t *p, uint32_t bytes)
{
    return *(const uint32_t *)((const char *)p + bytes);
}
DEV float fast_exp2(float x)
{
    return exp2f(x);
}
/* A NaN if one of them is. */
DEV float max_nan(float a, float b)
{
    return a != a ? a : b != b ? b : fmaxf(a, b);
}
#else
DEV uint32_t pick_by(uint32_t a, uint32_t b, uint32_t which)
{
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(which));
    return v;
}
template <class T> DEV T *opaque(T *p)
{
    size_t at = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(at));
    return (T *)__cvta_global_to_generic(at);
}
DEV uint32_t in_register(uint32_t v)
{
    uint32_t r;
    asm("mov.u32 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
/* The compiler keeps it as it is, instead of taking it apart at each load. */
DEV uint32_t opaque_shared(const uint32_t *p)
{
    return in_register((uint32_t)__cvta_generic_to_shared(p));
}
DEV uint32_t load_shared(uint32_t p, uint32_t bytes)
{
    return *(const uint32_t *)__cvta_shared_to_generic(p + bytes);
}
DEV float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float max_nan(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#endif

/* Sine and cosine of pos * inv_freq. Angles reach 2.6e5 radians at the end of a long context, too
 * large for f32. So the angle is computed and reduced in f64, to half turns, whose sine and cosine
 * need no slow path for large angles. */
DEV void turn_of(int pos, float inv_freq, float *sn, float *cs)
{
    double a = (double)pos * (double)inv_freq * 0.15915494309189533577;
    float halves = (float)(2 * (a - rint(a)));
    sincospif(halves, sn, cs);
}

/* The axis of pair i in interleaved M-RoPE (rope_axis). */
DEV int woven_axis(const int32_t *section, int i)
{
    int a = i % 3;
    return i < 3 * (a == 0 ? section[0] : a == 1 ? section[1] : section[2]) ? a : 0;
}

/* Four neighbouring float weights of a row, from i on. */
template <int K> DEV float4 load4(const uint8_t *row, int64_t i)
{
    if (K == PACK_F32)
        return *(const float4 *)(row + i * 4);
    uint2 u = *(const uint2 *)(row + i * 2);
    if (K == PACK_F16)
        return make_float4(f16_to_f32(u.x & 0xffff), f16_to_f32(u.x >> 16),
                           f16_to_f32(u.y & 0xffff), f16_to_f32(u.y >> 16));
    return make_float4(bf16_to_f32(u.x & 0xffff), bf16_to_f32(u.x >> 16), bf16_to_f32(u.y & 0xffff),
                       bf16_to_f32(u.y >> 16));
}

#endif
