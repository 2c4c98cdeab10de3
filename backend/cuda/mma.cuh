/* mma.cuh - integer dots, products of the tensor cores, and asynchronous copies to shared memory.
 *
 * Fragment layouts are those of the PTX manual; with g = lane / 4 and t = lane % 4:
 *
 *   C, D 16 x 8     c0 c1: row g, columns 2t 2t+1      c2 c3: row g + 8, the same columns
 *   s8 A 16 x 32    a0: row g, k 4t..   a1: row g + 8   a2: row g, k 16 + 4t..   a3: row g + 8
 *   s8 B 32 x 8     b0: column g, k 4t..                b1: column g, k 16 + 4t..
 *   16-bit A 16x16  a0: row g, k 2t..   a1: row g + 8   a2: row g, k 8 + 2t..    a3: row g + 8
 *   16-bit B 16x8   b0: column g, k 2t..                b1: column g, k 8 + 2t..
 */
#ifndef BACKEND_CUDA_MMA_CUH
#define BACKEND_CUDA_MMA_CUH

#include "backend/cuda/dev.cuh"

DEV int dp4a(uint32_t a, uint32_t b, int c)
{
    return __dp4a((int)a, (int)b, c);
}

#ifdef CARAT_EMU
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

#endif
