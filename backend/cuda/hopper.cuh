/* hopper.cuh - instructions of compute capability 9.0: products of 64 rows with operands in shared
 * memory, barriers at which copies arrive, registers dealt out by role. For files that end in
 * _hopper.cu, which are compiled for sm_90a.
 *
 *     result D, 64 x N, of a lane with g = lane / 4, t = lane % 4 of warp w:
 *         row 16 w + g        d[4 j], d[4 j + 1]          columns 8 j + 2 t, 8 j + 2 t + 1
 *         row 16 w + g + 8    d[4 j + 2], d[4 j + 3]
 *
 * A warpgroup is four consecutive warps; all its threads call the wg_ functions together. Products
 * run in the background: between wg_fence and wg_wait no thread may touch their accumulators, and
 * their operands must stay until wg_wait.
 *
 * Operands are made of blocks of 64 columns, as piece_at lays them out (dev.cuh): 8 rows lie in
 * 1024 bytes, which begin at a multiple of 1024.
 */
#ifndef BACKEND_CUDA_HOPPER_CUH
#define BACKEND_CUDA_HOPPER_CUH

#include "backend/cuda/mma.cuh"

#ifdef CARAT_EMU
DEV uint32_t shared_at(const void *p)
{
    return (uint32_t)((const char *)p - (const char *)emu_dyn_shared());
}
/* A barrier: arrivals per phase, arrivals missing, the current phase. */
DEV void bar_init(uint64_t *bar, int count)
{
    *bar = (uint64_t)count | (uint64_t)count << 16;
}
DEV void bar_arrive(uint64_t *bar)
{
    *bar -= 1 << 16;
    if (!(*bar >> 16 & 0xffff))
        *bar = (*bar ^ (uint64_t)1 << 32) | (*bar & 0xffff) << 16;
}
/* Waits for the end of the phase of this parity; parity 1 returns at once during the first phase.
 */
DEV void bar_wait(uint64_t *bar, int parity)
{
    for (long i = 0; (int)(*bar >> 32 & 1) == parity; i++)
        emu_yield(i, "a barrier in shared memory");
}
/* Arrives as soon as this thread's copies so far are complete. */
DEV void bar_arrive_copied(uint64_t *bar)
{
    emu_copy_wait(-1);
    bar_arrive(bar);
}
/* Copies n bytes from global to shared memory and then arrives for this thread; multiples of 16. */
DEV void copy_bulk(void *to, const void *from, int n, uint64_t *bar)
{
    for (int i = 0; i < n; i += 16)
        emu_copy_async<16>((char *)to + i, (const char *)from + i);
    bar_arrive_copied(bar);
}
/* Makes earlier writes to shared memory visible to the tensor cores, including those that other
 * threads made before a barrier. */
DEV void tensor_fence()
{
}
DEV void wg_fence()
{
}
DEV void wg_commit()
{
    emu_product_commit();
}
/* Waits until at most N commits are unfinished. */
template <int N> DEV void wg_wait()
{
    emu_product_wait(N);
}
template <int N> DEV void hold(float (&)[N])
{
}
/* D = A B' (sum false) or D += A B': A 64 x 16, B 64 x 16, both along the sum. */
DEV void wg_mma_64(float (&d)[32], uint64_t a, uint64_t b, bool sum)
{
    emu_product p = {d, a, b, NULL, 64, false, sum};
    emu_product_issue(&p);
}
DEV void wg_mma_128(float (&d)[64], uint64_t a, uint64_t b, bool sum)
{
    emu_product p = {d, a, b, NULL, 128, false, sum};
    emu_product_issue(&p);
}
/* D += A B: A 64 x 16, B 16 x 128 as rows of V are. */
DEV void wg_mma_128_v(float (&d)[64], uint64_t a, uint64_t b)
{
    emu_product p = {d, a, b, NULL, 128, true, true};
    emu_product_issue(&p);
}
/* The same with A in registers, as 16-bit fragments of A are (mma.cuh), of N columns: 64, 72, 128 or
 * 256. */
template <int N> DEV void wg_mma_v(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
{
    emu_product p = {d, 0, b, a, N, true, true};
    emu_product_issue(&p);
}
/* D += A B' in bf16: A in registers, B N x 16, both along the sum. N: 32, 64, 72, 80, 96, 128, 160
 * or 192. */
template <int N> DEV void wg_mma_bf16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
{
    emu_product p = {d, 0, b, a, N, false, true, true};
    emu_product_issue(&p);
}
template <int N> DEV void registers_more()
{
}
template <int N> DEV void registers_less()
{
}
#else
DEV void bar_init(uint64_t *bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(bar)), "r"(count)
                 : "memory");
}
DEV void bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(bar)) : "memory");
}
DEV void bar_wait(uint64_t *bar, int parity)
{
    uint32_t done, at = shared_at(bar);
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!done);
}
DEV void bar_arrive_copied(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_at(bar))
                 : "memory");
}
DEV void copy_bulk(void *to, const void *from, int n, uint64_t *bar)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(bar)),
                 "r"(n)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(n), "r"(shared_at(bar))
                 : "memory");
}
DEV void tensor_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEV void wg_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEV void wg_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> DEV void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* The compiler does not know that products run in the background: it moves no use of d across this.
 */
template <int N> DEV void hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
#define TEN(t)                                                                                     \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t         \
    "8, %" #t "9, "
#define F8(i)                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32_(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
DEV void wg_mma_64(float (&d)[32], uint64_t a, uint64_t b, bool sum)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" TEN() TEN(1)
                     TEN(2) "%30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : F32_(0)
                 : "l"(a), "l"(b), "r"((int)sum));
}
DEV void wg_mma_128(float (&d)[64], uint64_t a, uint64_t b, bool sum)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" TEN() TEN(1) TEN(2) TEN(3)
                     TEN(4) TEN(5) "%60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : F32_(0), F32_(32)
                 : "l"(a), "l"(b), "r"((int)sum));
}
DEV void wg_mma_128_v(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" TEN() TEN(1) TEN(2) TEN(3)
                     TEN(4) TEN(5) "%60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 1;"
                 : F32_(0), F32_(32)
                 : "l"(a), "l"(b));
}
/* A in registers. sums, outs: the N / 2 sums; n0 .. n4: the numbers of the operands behind them.
 * across: 1 where B is as rows of V are. */
#define PRODUCT(type, across, N, sums, n0, n1, n2, n3, n4, outs)                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type " {" sums "}, {%" #n0      \
                 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", 1, 1, 1, " across ";"                 \
                 : outs                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define AND ,
#define PRODUCT_64(type, across)                                                                   \
    PRODUCT(type, across, 64, TEN() TEN(1) TEN(2) "%30, %31", 32, 33, 34, 35, 36, F32_(0))
#define PRODUCT_72(type, across)                                                                   \
    PRODUCT(type, across, 72, TEN() TEN(1) TEN(2) "%30, %31, %32, %33, %34, %35", 36, 37, 38, 39,  \
            40, F32_(0) AND "+f"(d[32]) AND "+f"(d[33]) AND "+f"(d[34]) AND "+f"(d[35]))
#define PRODUCT_128(type, across)                                                                  \
    PRODUCT(type, across, 128, TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63", 64,  \
            65, 66, 67, 68, F32_(0) AND F32_(32))
template <int N> DEV void wg_mma_v(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
{
    static_assert(N == 64 || N == 72 || N == 128 || N == 256, "columns of a product");
    if constexpr (N == 64)
        PRODUCT_64("f16.f16", "1");
    if constexpr (N == 72)
        PRODUCT_72("f16.f16", "1");
    if constexpr (N == 128)
        PRODUCT_128("f16.f16", "1");
    if constexpr (N == 256)
        PRODUCT("f16.f16", "1", 256,
                TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10)
                    TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127",
                128, 129, 130, 131, 132, F32_(0) AND F32_(32) AND F32_(64) AND F32_(96));
}
template <int N> DEV void wg_mma_bf16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
{
    static_assert(N == 32 || N == 64 || N == 72 || N == 80 || N == 96 || N == 128 || N == 160 ||
                      N == 192,
                  "columns of a product");
    if constexpr (N == 32)
        PRODUCT("bf16.bf16", "0", 32, TEN() "%10, %11, %12, %13, %14, %15", 16, 17, 18, 19, 20,
                F8(0) AND F8(8));
    if constexpr (N == 64)
        PRODUCT_64("bf16.bf16", "0");
    if constexpr (N == 72)
        PRODUCT_72("bf16.bf16", "0");
    if constexpr (N == 80)
        PRODUCT("bf16.bf16", "0", 80,
                TEN() TEN(1) TEN(2) "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39", 40, 41, 42,
                43, 44, F32_(0) AND F8(32));
    if constexpr (N == 96)
        PRODUCT("bf16.bf16", "0", 96,
                TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47", 48, 49, 50, 51,
                52, F32_(0) AND F8(32) AND F8(40));
    if constexpr (N == 128)
        PRODUCT_128("bf16.bf16", "0");
    if constexpr (N == 160)
        PRODUCT("bf16.bf16", "0", 160,
                TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
                    TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79",
                80, 81, 82, 83, 84, F32_(0) AND F32_(32) AND F8(64) AND F8(72));
    if constexpr (N == 192)
        PRODUCT("bf16.bf16", "0", 192,
                TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7)
                    TEN(8) "%90, %91, %92, %93, %94, %95",
                96, 97, 98, 99, 100, F32_(0) AND F32_(32) AND F32_(64));
}
#undef PRODUCT_64
#undef PRODUCT_72
#undef PRODUCT_128
#undef PRODUCT
#undef AND
#undef TEN
#undef F8
#undef F32_
template <int N> DEV void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> DEV void registers_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
#endif

/* One arrival for the warp. */
DEV void warp_arrive(uint64_t *bar)
{
    if (lane_id() == 0)
        bar_arrive(bar);
}

/* Describes an operand at byte `at` of shared memory to the tensor cores. next_block: bytes from 64
 * columns to the next 64, for operands laid out as V is; others take one block each. */
DEV uint64_t operand(uint32_t at, int next_block)
{
    const uint64_t eight_rows = 1024 >> 4, swizzled = 1;
    return (at >> 4 & 0x3fff) | (uint64_t)(next_block >> 4) << 16 | eight_rows << 32 |
           swizzled << 62;
}

#endif
