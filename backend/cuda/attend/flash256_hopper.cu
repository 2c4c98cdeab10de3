/* flash256_hopper.cu - attention of many rows over f16 keys and values in heads of 256, on GPUs of
 * compute capability 9.0. The store is read in place, or as slices that expand.cu makes of it.
 * flash_pairs.cuh draws who does what.
 *
 * A block has 128 pairs (row, head). An attending warpgroup holds O and P in registers. While the
 * tensor cores multiply P V of one tile, it takes the exponentials of the next, whose S is complete
 * before. Sums, softmax and O are f32; q and the probabilities are rounded to f16, as in flash.cu.
 */
#include "backend/cuda/attend/flash_pairs.cuh"
#include "backend/cuda/attend/launch_attend.h"

enum {
    D = 256,
    KEYS = 64,
    FETCH_REGISTERS = 24,
    ATTEND_REGISTERS = 240,
};
static_assert(FETCH_REGISTERS + 2 * ATTEND_REGISTERS <= 504, "registers");

using tiles = pair_tiles<D, KEYS>;
enum { SHARED_BYTES = sizeof(tiles) + 1024 }; /* tiles begin at a multiple of 1024 */

using block = job<D, PAIRS, KEYS>;

/* ---- Attend ------------------------------------------------------------------------------- */

/* Starts S = Q K'; the caller waits. */
DEV void multiply_keys(tiles &s, float (&x)[32], int half, int turn)
{
    uint64_t q = operand(shared_at(s.q[half]), 16), k = operand(shared_at(s.k[turn & 1]), 16);
    bar_wait(&s.n.k_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(x);
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++) { /* 16 columns: 32 of a row's 128 bytes, 4 to a block */
        int at = (i / 4 * BLOCK_BYTES + i % 4 * 32) / 16;
        wg_mma_64(x, q + at, k + at, i > 0);
    }
    wg_commit();
}
/* Starts O += P V; the caller waits. */
DEV void multiply_values(tiles &s, float (&o)[128], const uint32_t (&p)[4][4], int turn)
{
    uint64_t v = operand(shared_at(s.v[turn & 1]), BLOCK_BYTES);
    bar_wait(&s.n.v_full[turn & 1], turn >> 1 & 1);
    tensor_fence();
    hold(o);
    wg_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        wg_mma_256(o, p[i], v + i * 16 * ROW_BYTES / 16);
    wg_commit();
}

template <how HOW> DEV void attend(const block &b, tiles &s, int half)
{
    int lane = lane_id(), m0 = 64 * half + 16 * ((int)(threadIdx.x >> 5) & 3) + (lane >> 2);
    float o[128], x[32], keep[2];
    uint32_t p[4][4];
    softmax sm[2] = {softmax_begin(b, m0), softmax_begin(b, m0 + 8)};
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0;
    walk w = walk_begin(b);
    if (walk_on<HOW>(b, w)) {
        multiply_keys(s, x, half, 0);
        if (!b.slice.first)
            load_sums(b, o, m0);
        wg_wait<0>();
        hold(x);
        warp_arrive(&s.n.k_free[0]);
        soften(b, x, sm, keep, w, half);
        worth(o, keep);
        to_f16(x, p);
        int turn = 0;
        for (; walk_on<HOW>(b, w); turn++) {
            multiply_keys(s, x, half, turn + 1);
            multiply_values(s, o, p, turn);
            wg_wait<1>();
            hold(x);
            warp_arrive(&s.n.k_free[(turn + 1) & 1]);
            soften(b, x, sm, keep, w, half);
            wg_wait<0>();
            hold(o);
            warp_arrive(&s.n.v_free[turn & 1]);
            worth(o, keep);
            to_f16(x, p);
        }
        multiply_values(s, o, p, turn);
        wg_wait<0>();
        hold(o);
    } else if (!b.slice.first) {
        load_sums(b, o, m0);
    }
    store_sums(b, o, sm, m0);
}

/* ---- The kernel --------------------------------------------------------------------------- */

/* o[r, h] = sum_t softmax_t(scale q[r, h] . k[t, g]) v[t, g]
 * grid:   tile of 128 pairs x KV head
 * shared: Q, twice 64 keys and 64 values: 194 KB
 * bound:  shared memory, which an S of 64 keys reads as long as it is multiplied */
template <how HOW>
__global__ void __launch_bounds__(3 * GROUP_THREADS, 1) flash256_hopper_kernel(flash_args x)
{
    DYN_SHARED(uint8_t, mem);
    tiles &s = *(tiles *)(mem + (-shared_at(mem) & 1023));
    uint32_t *list = (uint32_t *)(&s + 1);
    block b = job_of<D, PAIRS, KEYS>(x, s.n.sees, list);
    grid_trigger();
    grid_wait();
    if (threadIdx.x == 0)
        barriers(s.n);
    if constexpr (HOW == LISTED)
        load_list(b, list);
    prepare(b, &s.n.sees, s.q[0]);
    __syncthreads();
    int role = (int)threadIdx.x / GROUP_THREADS;
    if (role == 0) {
        registers_less<FETCH_REGISTERS>();
        fetch<HOW>(b, s);
    } else {
        registers_more<ATTEND_REGISTERS>();
        attend<HOW>(b, s, role - 1);
    }
}

extern "C" int cu_flash256_hopper_init(void)
{
    return allow_shared(flash256_hopper_kernel<DENSE>, SHARED_BYTES) |
           allow_shared(flash256_hopper_kernel<LISTED>, with_list(SHARED_BYTES, LIST_WORDS));
}

extern "C" void cu_flash256_hopper(cudaStream_t s, flash_args x)
{
    int pairs = x.a.q.rows * (x.a.n_head / x.a.kv.n_head_kv);
    dim3 grid((unsigned)((pairs + PAIRS - 1) / PAIRS), (unsigned)x.a.kv.n_head_kv);
    if (x.sparse.kept)
        LAUNCH(flash256_hopper_kernel<LISTED>, grid, dim3(3 * GROUP_THREADS),
               (size_t)with_list(SHARED_BYTES, x.sparse.n_word), s, x);
    else
        LAUNCH(flash256_hopper_kernel<DENSE>, grid, dim3(3 * GROUP_THREADS), SHARED_BYTES, s, x);
}
