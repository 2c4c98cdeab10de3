/* flash512_hopper.cu - attention of many rows over f16 keys and values with heads of 512, on GPUs
 * of compute capability 9.0. flash512_hopper.cuh has the parts of a block and what they do.
 *
 * K comes in 4 units of 128 columns, V in 4 units of 16 keys, K one tile ahead of V: S needs a
 * tile's columns one after the other, P V its keys.
 */
#include "backend/cuda/flash512_hopper.cuh"

/* K: [2 blocks][64 keys]; V: [8 blocks][16 keys]. */
enum { V_BLOCK = 16 * ROW_BYTES };

struct tiles_two {
    static constexpr bool ONE = false;
    static constexpr int FETCH_REGISTERS = 40, SCORE_REGISTERS = 136;
    uint8_t q[D / 64 * BLOCK_BYTES], k[UNITS][UNIT_BYTES], v[UNITS][UNIT_BYTES], p[2][BLOCK_BYTES];
    shared_notes n;
    uint64_t k_full[UNITS], k_free[UNITS], v_full[UNITS], v_free[UNITS];
};
enum { SHARED_BYTES = sizeof(tiles_two) + 1024 }; /* tiles begin at a multiple of 1024 */

DEV void barriers(tiles_two &s)
{
    for (int u = 0; u < UNITS; u++) {
        bar_init(&s.k_full[u], GROUP_THREADS);
        bar_init(&s.v_full[u], GROUP_THREADS);
        bar_init(&s.k_free[u], 4); /* warps */
        bar_init(&s.v_free[u], 8);
    }
}

/* ---- Fetch -------------------------------------------------------------------------------- */

DEV void fetch_keys(tiles_two &s, const place &p, int unit, int turn)
{
    bar_wait(&s.k_free[unit], (turn & 1) ^ 1);
#pragma unroll
    for (int n = 0; n < 4; n++)
        fetch_key<D>(s.k[unit] + fetch_offset() + 16 * n * ROW_BYTES, p.k, p.at[n], 2 * unit, 2,
                     BLOCK_BYTES);
    bar_arrive_copied(&s.k_full[unit]);
}

DEV void fetch_values(tiles_two &s, const place &p, int unit, int turn)
{
    bar_wait(&s.v_free[unit], (turn & 1) ^ 1);
    fetch_key<D>(s.v[unit] + fetch_offset(), p.v, p.at[unit], 0, D / 64, V_BLOCK);
    bar_arrive_copied(&s.v_full[unit]);
}

DEV void fetch(const block &b, tiles_two &s)
{
    walk w = walk_begin(b);
    bool more = walk_on(b, w);
    place now = {}, next = {};
    if (more) {
        place_on(b, w, next);
        now = next;
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            fetch_keys(s, now, u, 0);
    }
    for (int turn = 0; more; turn++) {
        more = walk_on(b, w);
        if (more)
            place_on(b, w, next);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (more)
                fetch_keys(s, next, u, turn + 1);
            fetch_values(s, now, u, turn);
        }
        now = next;
    }
    copy_commit();
    copy_wait<0>();
}

/* ---- Score and collect -------------------------------------------------------------------- */

/* S of a tile; its units of K are free afterwards. */
DEV void multiply_keys(tiles_two &s, float (&x)[32], int turn)
{
    uint64_t q = operand(shared_at(s.q), 16), k = operand(shared_at(s.k), 16);
    hold(x);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&s.k_full[u], turn & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) /* 16 columns each: 32 of a row's 128 bytes, 4 to a block */
            wg_mma_64(x, q + ((2 * u + i / 4) * BLOCK_BYTES + i % 4 * 32) / 16,
                      k + (u * UNIT_BYTES + i / 4 * BLOCK_BYTES + i % 4 * 32) / 16, u + i > 0);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&s.k_free[u - 1]);
        }
    }
    wg_wait<0>();
    hold(x);
    warp_arrive(&s.k_free[UNITS - 1]);
}

DEV uint8_t *p_at(tiles_two &s, int turn)
{
    return s.p[turn & 1];
}
DEV void p_wait(tiles_two &s, int turn)
{
    bar_wait(&s.n.p_free[turn & 1], (turn >> 1 & 1) ^ 1);
}

/* O += P V of a tile; its units of V are free afterwards. */
DEV void multiply_values(tiles_two &s, float (&o)[2][64], int half, int turn)
{
    uint64_t p = operand(shared_at(p_at(s, turn)), 16);
    uint64_t v = operand(shared_at(s.v) + half * (COLUMNS / 64) * V_BLOCK, V_BLOCK);
    hold(o[0]);
    hold(o[1]);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        bar_wait(&s.v_full[u], turn & 1);
        tensor_fence();
        wg_fence();
#pragma unroll
        for (int i = 0; i < 2; i++)
            wg_mma_128(o[i], p + u * 32 / 16, v + (u * UNIT_BYTES + i * 2 * V_BLOCK) / 16);
        wg_commit();
        if (u > 0) {
            wg_wait<1>();
            warp_arrive(&s.v_free[u - 1]);
        }
    }
    wg_wait<0>();
    hold(o[0]);
    hold(o[1]);
    warp_arrive(&s.v_free[UNITS - 1]);
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 64 pairs x KV head, the last rows first: they see most keys
 * shared: Q, 64 keys, 64 values, P twice: 211 KB
 * bound:  64 products to a value read, so the second-level cache before the tensor cores */
__global__ void __launch_bounds__(4 * GROUP_THREADS, 1) flash512_hopper_kernel(attend_args a)
{
    DYN_SHARED(uint8_t, mem);
    attend_tiles(a, *(tiles_two *)(mem + (-shared_at(mem) & 1023)));
}

extern "C" int cu_flash512_hopper_init(void)
{
#ifdef CARAT_EMU
    return 0;
#else
    return (int)cudaFuncSetAttribute(flash512_hopper_kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
#endif
}

extern "C" void cu_flash512_hopper(cudaStream_t s, attend_args a)
{
    int pairs = a.q.rows * (a.n_head / a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)a.kv.n_head_kv);
    LAUNCH(flash512_hopper_kernel, grid, dim3(4 * GROUP_THREADS), SHARED_BYTES, s, a);
}
