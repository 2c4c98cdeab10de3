/* dev.cuh - what kernels share: conversions, warp sums, integer dots, tensor-core products.
 *
 * The only file whose text depends on how it is compiled: by nvcc for a GPU, or by a C++ compiler
 * against tests/cuda/emu.h, where a warp is 32 fibers. Fragment layouts are those of the PTX
 * manual; with g = lane / 4 and t = lane % 4:
 *
 *   C, D 16 x 8     c0 c1: row g, columns 2t 2t+1      c2 c3: row g + 8, the same columns
 *   s8 A 16 x 32    a0: row g, k 4t..   a1: row g + 8   a2: row g, k 16 + 4t..   a3: row g + 8
 *   s8 B 32 x 8     b0: column g, k 4t..                b1: column g, k 16 + 4t..
 *   16-bit A 16x16  a0: row g, k 2t..   a1: row g + 8   a2: row g, k 8 + 2t..    a3: row g + 8
 *   16-bit B 16x8   b0: column g, k 2t..                b1: column g, k 8 + 2t..
 */
#ifndef BACKEND_CUDA_DEV_CUH
#define BACKEND_CUDA_DEV_CUH

#include "backend/cuda/launch.h"
#include "backend/swiglu.h"

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

#ifdef CARAT_EMU
DEV uint32_t shfl_xor_u32(uint32_t v, int mask)
{
    uint32_t r = emu_warp_give(&v, 1)[emu_lane() ^ mask][0];
    emu_warp_done();
    return r;
}
DEV uint32_t shfl_u32(uint32_t v, int from)
{
    uint32_t r = emu_warp_give(&v, 1)[from & 31][0];
    emu_warp_done();
    return r;
}
#else
DEV uint32_t shfl_xor_u32(uint32_t v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
DEV uint32_t shfl_u32(uint32_t v, int from)
{
    return __shfl_sync(0xffffffffu, v, from);
}
#endif
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
#ifdef CARAT_EMU
DEV uint32_t warp_max_u32(uint32_t v)
{
    for (int m = 16; m; m >>= 1) {
        uint32_t o = shfl_xor_u32(v, m);
        v = o > v ? o : v;
    }
    return v;
}
DEV int warp_count(int v)
{
    return warp_sum_i32(v);
}
DEV bool warp_any(bool v)
{
    return warp_max_u32(v);
}
/* Bit i: lane i's v. */
DEV uint32_t warp_votes(bool v)
{
    return (uint32_t)warp_sum_i32((int)((uint32_t)v << lane_id()));
}
DEV int bits_set(uint32_t v)
{
    return __builtin_popcount(v);
}
/* The number of the lowest bit that is set; v is not 0. */
DEV int lowest_bit(uint32_t v)
{
    return __builtin_ctz(v);
}
/* A barrier of n threads of a block, in whole warps. id: 1 to 15; __syncthreads has 0. */
DEV void some_sync(int id, int n)
{
    emu_named_barrier(id, n);
}
/* Earlier writes of this thread are visible everywhere before its later ones. */
DEV void write_fence()
{
}
/* A read that bypasses the first cache: for values that other blocks of this launch wrote. */
template <class T> DEV T load_fresh(const T *p)
{
    return *p;
}
DEV void prefetch(const void *)
{
}
#else
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
DEV uint32_t warp_votes(bool v)
{
    return __ballot_sync(0xffffffffu, v);
}
DEV int bits_set(uint32_t v)
{
    return __popc(v);
}
DEV int lowest_bit(uint32_t v)
{
    return __ffs((int)v) - 1;
}
DEV void some_sync(int id, int n)
{
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(n) : "memory");
}
DEV void write_fence()
{
    __threadfence();
}
template <class T> DEV T load_fresh(const T *p)
{
    return __ldcg(p);
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

/* ---- Products ----------------------------------------------------------------------------- */

#ifdef CARAT_EMU
DEV int dp4a(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int)(int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
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
/* Four of the eight bytes of b:a, where a's come first: one hexadecimal digit of `which` each. */
DEV uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    uint64_t all = a | (uint64_t)b << 32;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return v;
}
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
DEV float fma_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
DEV float mul_rn(float a, float b)
{
    return a * b;
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
/* c = from + a b; the other products add to c. */
DEV void mma_s8_k32(int *c, const uint32_t *a, const uint32_t *b, int from)
{
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const uint32_t(*w)[32] = emu_warp_give(mine, 6);
    int g = emu_lane() / 4, t = emu_lane() % 4;
    for (int i = 0; i < 4; i++)
        for (int q = 0; q < 4; q++) {
            int col = 2 * t + i % 2;
            c[i] = dp4a(w[g * 4 + q][i / 2], w[col * 4 + q][4], q ? c[i] : from);
            c[i] = dp4a(w[g * 4 + q][2 + i / 2], w[col * 4 + q][5], c[i]);
        }
    emu_warp_done();
}
DEV void mma_s8_k16(int *c, const uint32_t *a, uint32_t b, int from)
{
    uint32_t mine[3] = {a[0], a[1], b};
    const uint32_t(*w)[32] = emu_warp_give(mine, 3);
    int g = emu_lane() / 4, t = emu_lane() % 4;
    for (int i = 0; i < 4; i++)
        for (int q = 0; q < 4; q++)
            c[i] = dp4a(w[g * 4 + q][i / 2], w[(2 * t + i % 2) * 4 + q][2], q ? c[i] : from);
    emu_warp_done();
}
DEV void mma_16bit(float *c, const uint32_t *a, const uint32_t *b, bool half)
{
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const uint32_t(*w)[32] = emu_warp_give(mine, 6);
    int g = emu_lane() / 4, t = emu_lane() % 4;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            int col = 2 * t + i % 2, q = k % 8 / 2, part = k / 8, sh = k % 2 * 16;
            uint32_t u = w[g * 4 + q][i / 2 + 2 * part] >> sh, v = w[col * 4 + q][4 + part] >> sh;
            c[i] += half ? f16_to_f32(u & 0xffff) * f16_to_f32(v & 0xffff)
                         : bf16_to_f32(u & 0xffff) * bf16_to_f32(v & 0xffff);
        }
    emu_warp_done();
}
DEV void mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    mma_16bit(c, a, b, false);
}
DEV void mma_f16(float *c, const uint32_t *a, const uint32_t *b)
{
    mma_16bit(c, a, b, true);
}
/* Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8. */
DEV void ldmatrix4(uint32_t *r, const void *row)
{
    uint64_t at = (uint64_t)row;
    uint32_t mine[2] = {(uint32_t)at, (uint32_t)(at >> 32)};
    const uint32_t(*w)[32] = emu_warp_give(mine, 2);
    for (int i = 0; i < 4; i++) {
        const uint32_t *p = w[8 * i + emu_lane() / 4];
        const uint32_t *from = (const uint32_t *)(p[0] | (uint64_t)p[1] << 32);
        r[i] = from[emu_lane() % 4];
    }
    emu_warp_done();
}
/* The same, each matrix transposed. */
DEV void ldmatrix4_t(uint32_t *r, const void *row)
{
    uint64_t at = (uint64_t)row;
    uint32_t mine[2] = {(uint32_t)at, (uint32_t)(at >> 32)};
    const uint32_t(*w)[32] = emu_warp_give(mine, 2);
    int g = emu_lane() / 4, t = emu_lane() % 4;
    for (int i = 0; i < 4; i++) {
        uint32_t v = 0;
        for (int e = 0; e < 2; e++) {
            const uint32_t *p = w[8 * i + 2 * t + e];
            v |= (uint32_t)((const uint16_t *)(p[0] | (uint64_t)p[1] << 32))[g] << 16 * e;
        }
        r[i] = v;
    }
    emu_warp_done();
}
/* An 8 x 8 matrix of 16-bit values, transposed: lane (g, t) has columns 2t, 2t + 1 of row g. */
DEV uint32_t transpose8(uint32_t v)
{
    const uint32_t(*w)[32] = emu_warp_give(&v, 1);
    int g = emu_lane() / 4, t = emu_lane() % 4, sh = 16 * (g & 1);
    uint32_t lo = w[8 * t + g / 2][0], hi = w[8 * t + 4 + g / 2][0];
    emu_warp_done();
    return (lo >> sh & 0xffff) | (hi >> sh & 0xffff) << 16;
}
/* Starts a copy of 16 bytes from global to shared memory; zeros where !ok. */
DEV void copy16_async(void *to, const void *from, bool ok)
{
    emu_copy_async<16>(to, ok ? from : NULL);
}
DEV void copy8_async(void *to, const void *from)
{
    emu_copy_async<8>(to, from);
}
DEV void copy4_async(void *to, const void *from, bool ok)
{
    emu_copy_async<4>(to, ok ? from : NULL);
}
DEV void copy_commit()
{
    emu_copy_commit();
}
template <int N> DEV void copy_wait()
{
    emu_copy_wait(N);
}
#else
DEV int dp4a(uint32_t a, uint32_t b, int c)
{
    return __dp4a((int)a, (int)b, c);
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
DEV uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    return __byte_perm(a, b, which);
}
DEV uint32_t pick_by(uint32_t a, uint32_t b, uint32_t which)
{
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(which));
    return v;
}
DEV float fma_rn(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
DEV float mul_rn(float a, float b)
{
    return __fmul_rn(a, b);
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
/* c = from + a b: c need not be set first. */
DEV void mma_s8_k32(int *c, const uint32_t *a, const uint32_t *b, int from)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from));
}
DEV void mma_s8_k16(int *c, const uint32_t *a, uint32_t b, int from)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%7,%7,%7,%7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(from));
}
DEV void mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_f16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
DEV void ldmatrix4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(row))
                 : "memory");
}
DEV void ldmatrix4_t(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(row))
                 : "memory");
}
DEV uint32_t transpose8(uint32_t v)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
DEV void copy16_async(void *to, const void *from, bool ok)
{
    int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(n)
                 : "memory");
}
DEV void copy8_async(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}
DEV void copy4_async(void *to, const void *from, bool ok)
{
    int n = ok ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(n)
                 : "memory");
}
DEV void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> DEV void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

/* exp(x) by operations that a CPU has too, for the host may compute some experts (offload.h): those
 * of exp_of in backend/cpu/offload_int.h, which says how it works. expf is a few operations
 * shorter, but has one that only a GPU knows. */
DEV float exp_of(float x)
{
    const float magic = 0x1.8p23f;
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float t = fma_rn(x, 0x1.715476p0f, magic);
    float scale = __uint_as_float((__float_as_uint(t) - 0x4b400000u + 127u) << 23);
    float k = t - magic;
    float r = fma_rn(k, -0x1.62e4p-1f, x);
    r = fma_rn(k, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f;
    p = fma_rn(p, r, 0x1.6c16c2p-10f);
    p = fma_rn(p, r, 0x1.111112p-7f);
    p = fma_rn(p, r, 0x1.555556p-5f);
    p = fma_rn(p, r, 0x1.555556p-3f);
    p = fma_rn(p, r, 0.5f);
    p = fma_rn(p, r, 1.0f);
    p = fma_rn(p, r, 1.0f);
    return mul_rn(p, scale);
}

/* The activation of a gated unit: silu, or gelu by its tanh formula; offload_gated of
 * backend/cpu/offload.h. Division is IEEE's on both sides. */
DEV float gate_of(bool silu, float x)
{
    float cubic = fma_rn(mul_rn(mul_rn(0.044715f, x), x), x, x);
    float z = silu ? -x : mul_rn(-1.5957691216057308f, cubic);
    return x / (1.0f + exp_of(z));
}

/* The gated unit of gpt-oss: ACT_SWIGLU_CUT. A NaN stays one. */
DEV float cut_unit(float a, float b)
{
    a = a > SWIGLU_CUT ? SWIGLU_CUT : a;
    b = b > SWIGLU_CUT ? SWIGLU_CUT : b < -SWIGLU_CUT ? -SWIGLU_CUT : b;
    return mul_rn(a / (1.0f + exp_of(mul_rn(-SWIGLU_SLOPE, a))), b + 1.0f);
}

/* Activations by their act_kind. */
template <int ACT> DEV float act_of(float x)
{
    if (ACT == 1)
        return gate_of(true, x);
    if (ACT == 2)
        return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    if (ACT == 3)
        return 1.0f / (1.0f + expf(-x));
    if (ACT == 5)
        return 0.5f * x * erfcf(-0.70710678f * x);
    return gate_of(false, x);
}

/* act(a) * b, or the unit of both. */
template <int ACT> DEV float act_times(float a, float b)
{
    if (ACT == 4)
        return cut_unit(a, b);
    return act_of<ACT>(a) * b;
}

/* Sine and cosine of pos * inv_freq. Angles reach 2.6e5 radians at the end of a long context, too
 * large for f32. So the angle is computed and reduced in f64, to half turns, whose sine and cosine
 * need no slow path for large angles. */
DEV void turn_of(int pos, float inv_freq, float *sn, float *cs)
{
    double a = (double)pos * (double)inv_freq * 0.15915494309189533577;
    float halves = (float)(2 * (a - rint(a)));
#ifdef CARAT_EMU
    double angle = 3.14159265358979323846 * (double)halves;
    *sn = (float)sin(angle), *cs = (float)cos(angle);
#else
    sincospif(halves, sn, cs);
#endif
}

/* The axis of pair i in interleaved M-RoPE (rope_axis). */
DEV int woven_axis(const int32_t *section, int i)
{
    int a = i % 3;
    return i < 3 * (a == 0 ? section[0] : a == 1 ? section[1] : section[2]) ? a : 0;
}

/* ---- Activations as int8 ------------------------------------------------------------------ */

/* Scale of 32 values and the sums of each half's codes. */
struct __align__(8) xscale
{
    float d;
    int16_t sum0, sum1;
};

DEV size_t quant_index(const dev_quant &x, int row, int g)
{
    int n_group = x.cols >> 5;
    if (x.tile == 1)
        return (size_t)row * n_group + g;
    return ((size_t)(row >> 3) * n_group + g) * 8 + (row & 7);
}

/* max / 127 with 22 bits of mantissa, so that 1.5 * 2^23 times it is exact (rows_unit.cuh needs
 * that). NaN where the product would be near infinity, 0 where a sixteenth of it would lose
 * bits. */
DEV float quant_scale(uint32_t top)
{
    float d = __uint_as_float(__float_as_uint(__uint_as_float(top) / 127.0f) & ~3u);
    return d < 0x1p-120f ? 0.0f : d < 0x1p100f ? d : __uint_as_float(0x7fc00000);
}

/* A warp's 32 values, one a lane, as codes and a scale: d = max / 127, q = round(x / d). NaN and
 * infinity go into d, and so into every product. */
DEV void quantise_warp(float v, const dev_quant &x, int row, int g)
{
    size_t at = quant_index(x, row, g);
    uint32_t top = warp_max_u32(__float_as_uint(v) & 0x7fffffff);
    float d = quant_scale(top);
    float inv = top ? 127.0f / __uint_as_float(top) : 0.0f;
    int code = (int)rintf(v * inv), lane = lane_id();
    code = code < -127 ? -127 : code > 127 ? 127 : code;
    int sum = warp_sum_i32(code, 8);
    int other = (int)shfl_xor_u32((uint32_t)sum, 16);
    int word = lane >> 2, place = word < 4 ? 2 * word : 2 * word - 7;
    x.q[at * 32 + 4 * place + (lane & 3)] = (int8_t)code;
    if (lane == 0) {
        xscale s = {d, (int16_t)sum, (int16_t)other};
        ((xscale *)x.s)[at] = s;
    }
}

/* The same for four neighbouring values a lane, with the same bits: 8 lanes to a group, i the
 * lane's first element of the row. All lanes of a warp call it; lanes with !in write nothing. */
DEV void quantise_four(float4 v, const dev_quant &x, int row, int i, bool in)
{
    size_t at = quant_index(x, row, i >> 5);
    uint32_t top =
        __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    /* fmaxf ignores NaN, so it is added back */
    float nan = (v.x + v.y) + (v.z + v.w);
    if (nan != nan)
        top = 0x7fc00000;
    for (int m = 4; m; m >>= 1) {
        uint32_t o = shfl_xor_u32(top, m);
        top = o > top ? o : top;
    }
    float d = quant_scale(top);
    float inv = top ? 127.0f / __uint_as_float(top) : 0.0f;
    float c[4] = {v.x, v.y, v.z, v.w};
    uint32_t word = 0;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int code = (int)rintf(c[k] * inv);
        code = code < -127 ? -127 : code > 127 ? 127 : code;
        sum += code;
        word |= (uint32_t)(code & 0xff) << 8 * k;
    }
    sum = warp_sum_i32(sum, 2);
    int other = (int)shfl_xor_u32((uint32_t)sum, 4);
    if (!in)
        return;
    int w = i >> 2 & 7, place = w < 4 ? 2 * w : 2 * w - 7;
    *(uint32_t *)(x.q + at * 32 + 4 * place) = word;
    if (w == 0) {
        xscale s = {d, (int16_t)sum, (int16_t)other};
        ((xscale *)x.s)[at] = s;
    }
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
